"""Commands that look after the store: `verify`, `pin`, `unpin`, `prune`. None of them imports TensorFlow."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from twin_graph.base.text import command, counted, listed, size
from twin_graph.errors import DamagedError, UsageError
from twin_graph.remote.urls import is_url
from twin_graph.snapshots.run import find

from .params import (
    REF_HELP,
    Count,
    json_option,
    print_json,
    ref_argument,
    run_argument,
    say,
    stderr,
    stdout,
    trust_option,
)
from .remote import verify_remote

if TYPE_CHECKING:
    from twin_graph.snapshots.ledger import Commit
    from twin_graph.targets.pruning import Held


@click.command()
@run_argument
@click.option("--read", is_flag=True, help="With a URL: fetch everything, and check every byte.")
@json_option
def verify(run: str, read: bool, as_json: bool) -> None:
    """Check the files of RUN against what was recorded when they were written.

    Lists damaged files (exit code 3), files left unfinished by a process that died, also beside RUN, and files that do
    not belong to the run. No hashes are recorded of films, TensorBoard's events and workers' logs. Changes nothing.

    Of a URL to which a run was sent, the lists and records are checked, and that each object is there with its length.

    \b
    Examples:
      twin-graph verify pong-seed1-1
      twin-graph verify s3://our-bucket/pong --read
    """
    from twin_graph.records.verify import verify as check

    if is_url(run):
        verify_remote(run, read=read, as_json=as_json)
        return
    if read:
        raise UsageError("--read is for a URL: here, every byte is read anyway")
    found = find(run)
    findings = check(found)
    if as_json:
        print_json(findings._asdict())
    tell = functools.partial(say, console=stderr if as_json else stdout)
    for path in findings.leftover:
        tell(f"left by a process that died; the next `resume` removes it: {path}")
    for path in findings.beside:
        tell(f"left beside the run by a process that died, and of no use: remove it: {path}")
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
@click.option(
    "--keep-points",
    type=Count(min=1),
    help="First give up all resume points but so many of the newest.  [default: all that are there]",
)
@click.option("--dry-run", is_flag=True, help="Only list what would be removed.")
@trust_option
@json_option
def prune(
    run: str,
    keep_last: int | None,
    keep_every: int | None,
    keep_points: int | None,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Remove the weights of RUN's snapshots that retention would not keep. Manifests stay.

    Training does this by itself at each resume point. Says what only resume points hold: each of them holds all weights
    that the run would need to continue from there, those committed since among them. `resume.keep` is how many points
    there are; --keep-points gives up older ones now, which also works on a full disk.

    \b
    Examples:
      twin-graph prune pong-seed1-1 --keep-last 10 --dry-run
      twin-graph prune pong-seed1-1 --keep-last 10 --keep-points 1
    """
    from twin_graph.targets import pruning

    found = find(run)
    kept = {"keep_last": keep_last, "keep_every": keep_every}
    removed = pruning.prune(found, **kept, keep_points=keep_points, dry_run=dry_run)
    held = pruning.held_by_points(found, **kept, keep_points=keep_points if dry_run else None)
    if as_json:
        ids = {"by_newest_point": held.by_newest, "by_older_points": held.by_older}
        document = {"removed": [snapshot.id for snapshot in removed], "bytes": _bytes(removed), "dry_run": dry_run}
        print_json({**document, "held": {by: [snapshot.id for snapshot in each] for by, each in ids.items()}})
        return
    for snapshot in removed:
        stdout.print(snapshot.id)
    lost = "would lose" if dry_run else "lost"
    weights = "its weights" if len(removed) == 1 else "their weights"
    say(f"{counted(len(removed), 'snapshot')} {lost} {weights}, {size(_bytes(removed))}")
    _say_held(run, held, kept)


def _say_held(run: str, held: Held, kept: Mapping[str, int | None]) -> None:
    """What resume points hold, and how to free it."""
    if held.by_older:
        options = [word for name, n in kept.items() if n is not None for word in (f"--{name.replace('_', '-')}", n)]
        points = f"resume point{'s' if len(held.older) > 1 else ''} {listed([str(number) for number in held.older])}"
        verb, them = ("hold", "these points") if len(held.older) > 1 else ("holds", "this point")
        say(
            f"{points} {verb} {counted(len(held.by_older), 'snapshot')}, {size(_bytes(held.by_older))}, that nothing "
            f"else needs; to give {them} up: {command('prune', run, *options, '--keep-points', 1)}"
        )
    if held.by_newest:
        say(
            f"resume point {held.newest}, the newest, holds {counted(len(held.by_newest), 'snapshot')}, "
            f"{size(_bytes(held.by_newest))}: what it needs to resume, and what was committed since"
        )


def _bytes(snapshots: Sequence[Commit]) -> int:
    return sum(snapshot.bytes for snapshot in snapshots)
