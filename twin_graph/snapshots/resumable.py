"""Which resume points of a run are whole: for all who continue from one, or read it. No TensorFlow import."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from twin_graph.base import doing
from twin_graph.base.text import command
from twin_graph.errors import DamagedError, UsageError
from twin_graph.snapshots.files import damaged_line, read_lines
from twin_graph.snapshots.forms import METRICS
from twin_graph.snapshots.ledger import IMPORT, Commit, End, Point, Restore, Start
from twin_graph.snapshots.points import PointState
from twin_graph.snapshots.store import Snapshots, update_of

if TYPE_CHECKING:
    from twin_graph.snapshots.run import Run


class Found(NamedTuple):
    """Where a run can continue.

    Attributes:
      point: the newest that is whole, or the oldest.
      damage: why newer ones (for the oldest point: older ones) are not whole, and what training does without: one line
        each.
    """

    point: PointState
    damage: list[str]


def newest_point(run: Run) -> Found:
    """The newest resume point whose files, and the records before it, are exactly what was written.

    But for `metrics.jsonl`, which is for people alone.

    Raises:
      UsageError: none was ever made.
      DamagedError: none is whole.
    """
    doing.now("checking the newest resume point")
    points = run.points()
    folders = points.folders()
    if not folders:
        known: list[Commit | Restore] = [*run.ledger.events(Commit), *run.ledger.events(Restore)]
        if steps := max((event.counters.agent_steps for event in known), default=0):
            why = f"those that it made are not in {points.folder}"
            if not run.ledger.events(Point):
                why = "a custom loop makes them with Agent.commit_point()"
            raise UsageError(f"{run.folder} has no resume point, after {steps:,} agent steps: {why}")
        if not run.ledger.events(Start):
            raise UsageError(f"{run.folder} has not been trained yet: call its train() in Python{_or_anew(run)}")
        raise UsageError(f"{run.folder} ended before its first resume point{_or_anew(run)}")
    lost = lost_point(run)
    point, damage = _first_whole(run, reversed(folders))
    return Found(point, [lost, *damage] if lost else damage)


def _or_anew(run: Run) -> str:
    """How a run that has nothing to lose is begun again, for the end of a message."""
    return f"; or `{command('train', run.settings.preset)}` begins a new run, and this one may be removed"


def oldest_point(run: Run) -> Found | None:
    """The oldest resume point that is whole, as `newest_point`; None if none was ever made. Raises `DamagedError`."""
    folders = run.points().folders()
    return _first_whole(run, folders) if folders else None


def _first_whole(run: Run, folders: Iterable[Path]) -> Found:
    damage: list[str] = []
    for folder in folders:
        try:
            point = _checked_point(run, folder)
        except DamagedError as error:
            damage.append(str(error))
        else:
            return Found(point, [*damage, *itertools.islice(_wrong_records(run, point, METRICS), 1)])
    raise DamagedError(f"{run.folder} has no intact resume point: {damage[0]}")


def point_at(run: Run, reference: str) -> PointState:
    """The resume point that a reference names: its number, or `@update:12000` for the newest at or before that update.

    Raises:
      UsageError: there is none, or it has been removed.
      DamagedError: it is not whole.
    """
    points = run.points()
    if reference.isdecimal() and (folder := points.path(int(reference))).exists():
        return _checked_point(run, folder)
    states = [state for folder in points.folders() if (state := points.readable(int(folder.name)))]
    update = update_of(reference)
    found = [state for state in states if update is not None and state.counters.updates <= update]
    if not found:
        kept = ", ".join(f"{state.number} (@update:{state.counters.updates})" for state in states)
        raise UsageError(
            f"{run.folder} has no resume point {reference}; kept are: {kept or 'none'}. "
            "--set resume.keep=all keeps all that are made from then on"
        )
    return _checked_point(run, points.path(found[-1].number))


def _checked_point(run: Run, folder: Path) -> PointState:
    point = PointState.read(folder)
    run.points().check_files(point)
    check_records(run, point)
    return point


def check_records(run: Run, point: PointState) -> None:
    """Checks the records before a point, and the snapshots in its targets and opponent. Raises `DamagedError`."""
    for name in point.known_bytes.keys() - {METRICS}:
        for wrong in _wrong_records(run, point, name):
            raise DamagedError(wrong)
    run.ledger.check_lines(upto=point.known_bytes[run.ledger.path.name])
    store = Snapshots(run.store_folder, run.ledger, upto=point.known_bytes[run.ledger.path.name])
    for snapshot_id in point.snapshots:
        store.check_files(snapshot_id)


def _wrong_records(run: Run, point: PointState, name: str) -> Iterator[str]:
    """What is wrong with a file of records, as far as it was written before a point."""
    path = run.folder / name
    if short := too_short(run, point, name):
        yield short
    for line in read_lines(path):
        if line.start < point.known_bytes[name] and not line.is_whole:
            yield damaged_line(path, line.number)


def too_short(run: Run, point: PointState, name: str) -> str:
    """That a file of records is shorter than when a point was made, in words; empty if it is not."""
    path, known = run.folder / name, point.known_bytes[name]
    if known and (not path.exists() or path.stat().st_size < known):
        return f"{path} is damaged: it is shorter than when resume point {point.number} was made"
    return ""


def lost_point(run: Run) -> str:
    """That the newest resume point is gone, in words; empty if it is not. That it was there follows from what came
    after it: a process may also have died between the ledger's line and the folder."""
    followed = False
    for event in run.ledger.newest_first(Commit, Point, End):
        if isinstance(event, Point):
            folder = run.points().path(event.number)
            if folder.exists():
                return ""
            if followed:
                return f"{folder} is gone, which the ledger has"
        if isinstance(event, End):
            followed = followed or event.is_deliberate
        else:
            followed = followed or not (isinstance(event, Commit) and event.lineage == IMPORT)
    return ""


def has_begun(run: Run) -> bool:
    """Whether it has a resume point, or had made a step when something was recorded; otherwise nothing is lost
    with it. True where its records cannot be read."""
    try:
        # The ledger names a point before it is there, and so perhaps one that never was.
        recorded: list[Commit | Point] = [*run.ledger.events(Commit), *run.ledger.events(Point)]
    except DamagedError:
        return True
    return bool(run.points().folders()) or any(event.counters.agent_steps for event in recorded)
