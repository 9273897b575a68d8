"""Commands that look after the store: `verify`, `pin`, `unpin`, `prune`. None of them imports TensorFlow."""

import functools
from pathlib import Path

import click

from twin_graph.base.text import counted, size
from twin_graph.errors import DamagedError
from twin_graph.snapshots.run import find

from .params import REF_HELP, Count, json_option, print_json, ref_argument, run_argument, say, stderr, stdout


@click.command()
@run_argument
@json_option
def verify(run: str, as_json: bool) -> None:
    """Check the files of RUN against what was recorded when they were written.

    Lists damaged files (exit code 3), files left unfinished by a process that died, and files that do not belong to the
    run. No hashes are recorded of films, TensorBoard's events and workers' logs. Changes nothing.

    \b
    Example:
      twin-graph verify pong-seed1-1
    """
    from twin_graph.records.verify import verify as check

    found = find(run)
    findings = check(found)
    if as_json:
        print_json(findings._asdict())
    tell = functools.partial(say, console=stderr if as_json else stdout)
    for path in findings.leftover:
        tell(f"left by a process that died; the next `resume` removes it: {path}")
    for path in findings.unknown:
        tell(f"unknown, left alone: {path}")
    if findings.unchecked:
        folders = sorted({Path(path).relative_to(found.folder).parts[0] for path in findings.unchecked})
        unchecked = counted(len(findings.unchecked), "file")
        tell(f"{unchecked} in {', '.join(folders)} not checked: no hashes of these are recorded")
    if findings.damage:
        for line in findings.damage:
            tell(f"damaged: {line}")
        tell(f"{len(findings.damage):,} damaged")
        raise click.exceptions.Exit(DamagedError.exit_code)
    if not as_json:
        stdout.print(f"{counted(findings.files, 'file')}, {size(findings.bytes)}: all exactly as written")


def _pin(run: str, ref: str, *, keep: bool, as_json: bool) -> None:
    found = find(run)
    store = found.store()
    snapshot = ref if ref in store.pins else found.resolve(ref).id  # an abandoned one is found by its id alone
    store.pin(snapshot, keep=keep, attempt=max(1, found.ledger.attempt))
    if as_json:
        print_json({"snapshot": snapshot, "kept": keep})
        return
    say(f"{snapshot} is {'kept' if keep else 'released'}")


@click.command(epilog=REF_HELP)
@run_argument
@ref_argument()
@json_option
def pin(run: str, ref: str, as_json: bool) -> None:
    """Keep the weights of snapshot REF of RUN, regardless of retention.

    \b
    Example:
      twin-graph pin pong-seed1-1 best
    """
    _pin(run, ref, keep=True, as_json=as_json)


@click.command(epilog=REF_HELP)
@run_argument
@ref_argument()
@json_option
def unpin(run: str, ref: str, as_json: bool) -> None:
    """Unpin snapshot REF of RUN, so that retention may remove its weights.

    \b
    Example:
      twin-graph unpin pong-seed1-1 000042
    """
    _pin(run, ref, keep=False, as_json=as_json)


@click.command()
@run_argument
@click.option("--keep-last", type=Count(min=1), help="How many of the newest to keep.  [default: save.keep_last]")
@click.option("--keep-every", type=Count(min=0), help="Keep every n-th, too.  [default: save.keep_every]")
@click.option("--dry-run", is_flag=True, help="Only list what would be removed.")
@json_option
def prune(run: str, keep_last: int | None, keep_every: int | None, dry_run: bool, as_json: bool) -> None:
    """Remove the weights of RUN's snapshots that retention would not keep. Manifests stay.

    Training does this by itself at each resume point.

    \b
    Example:
      twin-graph prune pong-seed1-1 --keep-last 10 --dry-run
    """
    from twin_graph.targets.retention import prune as apply

    found = find(run)
    removed = apply(found, keep_last=keep_last, keep_every=keep_every, dry_run=dry_run)
    freed = sum(snapshot.bytes for snapshot in removed)
    if as_json:
        print_json({"removed": [snapshot.id for snapshot in removed], "bytes": freed, "dry_run": dry_run})
        return
    for snapshot in removed:
        stdout.print(snapshot.id)
    lost = "would lose" if dry_run else "lost"
    say(f"{counted(len(removed), 'snapshot')} {lost} {'its' if len(removed) == 1 else 'their'} weights, {size(freed)}")
