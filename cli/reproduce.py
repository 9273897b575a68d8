"""`twin-graph reproduce`."""

from pathlib import Path

import click

from twin_graph.base.text import counted
from twin_graph.errors import UsageError
from twin_graph.snapshots.files import scratch_folder
from twin_graph.snapshots.ledger import Point
from twin_graph.snapshots.resumable import oldest_point, point_at
from twin_graph.snapshots.run import Run, find
from twin_graph.snapshots.store import update_of

from .display import TrainingDisplay
from .params import PATH, json_option, print_json, run_argument, say, stderr, trust_option
from .train import starting_up

_START = "start"


@click.command()
@run_argument
@click.option(
    "--from",
    "begin",
    metavar="POINT",
    help="Where to begin: number of a resume point, @update:N for the newest up to update N, or start.  [default: the "
    "oldest kept]",
)
@click.option(
    "--to", "end", metavar="POINT", help="Where to end: number of a resume point, or @update:N.  [default: the newest]"
)
@click.option(
    "--run-dir",
    type=PATH,
    help="Folder to train in, which must not exist yet and is kept.  [default: one that is removed afterwards]",
)
@trust_option
@json_option
def reproduce(run: str, begin: str | None, end: str | None, run_dir: Path | None, as_json: bool) -> None:
    """Train part of RUN again, and compare every snapshot and every evaluation with the record.

    Manual swaps, stops and changed settings are repeated where they happened. RUN stays as it is. Exit code 0 means
    identical, bit for bit; 1 means that something differs: the first difference is shown, and how this machine differs.
    The built-in loop trains, so a run that a loop of your own made cannot be reproduced.

    \b
    Examples:
      twin-graph reproduce pong-seed1-1
      twin-graph reproduce pong-seed1-1 --from start --to @update:5000
    """
    found = find(run)
    last = None if end is None else _last_update(found, end)
    with starting_up("anything was trained"):
        from twin_graph.analysis import reproduce as reproducing

        with found.points().reading():
            oldest = None if begin else oldest_point(found)
            point = point_at(found, begin) if begin and begin != _START else oldest and oldest.point
        for reason in oldest.damage if oldest else ():
            say(f"skipped: {reason}")
        if last is not None and last <= (first := point.counters.updates if point else 0):
            since = f"--from {begin}" if begin else f"resume point {point.number}" if point else "the start"
            raise UsageError(
                f"--to {end} is after update {last:,}, and {since} is after update {first:,}: no update is between them"
            )
    where = f"resume point {point.number}" if point else "the start"
    say(f"training {found.name} again from {where}, update {point.counters.updates + 1 if point else 1:,}")
    with scratch_folder(found.folder, run_dir) as folder, TrainingDisplay(stderr) as display:
        result = reproducing.reproduce(found, point, last, folder, display.show)
    different = list(reproducing.differences_of_machine(found, result.first))
    if as_json:
        difference = result.difference
        document = {**result._asdict(), "difference": difference and difference._asdict(), "machine": different}
        print_json({"run": str(found.folder), **document})
    equal = [
        counted(result.snapshots, "snapshot"),
        counted(result.swaps, "target swap"),
        counted(result.evaluations, "evaluation"),
    ]
    if result.difference is None:
        say(f"reproduced: updates {result.first:,} to {result.last:,}, bit for bit: {', '.join(equal)}")
        return
    say(f"not reproduced: after update {result.difference.after_updates:,}, {result.difference.what} differs")
    say(f"  recorded:   {result.difference.recorded or 'nothing'}")
    say(f"  reproduced: {result.difference.reproduced or 'nothing'}")
    say(f"  equal before it: {', '.join(equal)}")
    for line in different:
        say(f"  different about this machine: {line}")
    if not different:
        say(f"  nothing that is recorded differs: {reproducing.known_of_machine(found, result.first)}")
    raise click.exceptions.Exit(1)


def _last_update(run: Run, reference: str) -> int:
    if (update := update_of(reference)) is not None:
        return update
    points = {made.number: made.counters.updates for made in run.ledger.events(Point)}
    if not reference.isdecimal() or int(reference) not in points:
        numbers = ", ".join(map(str, points))
        raise UsageError(f"{run.folder} has made no resume point {reference}; there are {numbers or 'none on record'}")
    return points[int(reference)]
