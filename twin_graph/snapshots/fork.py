"""Forks: new runs with the past of another, up to one of its resume points.

A fork has all of that past in its own folder: the records up to the point, as bytes, and the files of snapshots, point
and replay, which never change, and which it shares with the other run where the disk can share. So everything that
reads a run reads a fork, neither run can remove what the other needs, and the other may be deleted.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

from twin_graph.config import trust
from twin_graph.errors import DamagedError, UsageError
from twin_graph.snapshots import workers
from twin_graph.snapshots.files import (
    checked,
    fsync,
    lengthen,
    make_folder,
    open_plain,
    share,
    write_new,
)
from twin_graph.snapshots.forms import LEDGER, RECORDS
from twin_graph.snapshots.ledger import End, Fork, Ledger, Point, Prune, Start, utc_now
from twin_graph.snapshots.points import SEGMENTS, STATE, PointState
from twin_graph.snapshots.run import DESCRIPTION, POINTS, Run, make_run, new_id
from twin_graph.snapshots.store import MANIFEST, Snapshots

if TYPE_CHECKING:
    from twin_graph.config.settings import Settings

_FSYNCS_AT_ONCE = 32

#: Changes the variables of a resume point: takes its folder and state, and returns what it did, and the state since.
Change = Callable[[Path, PointState], tuple[str, PointState]]


def fork(parent: Run, point: PointState, folder: Path, settings: Settings, change: Change | None = None) -> Run:
    """Makes a run that continues from a resume point of another, which may be training.

    Args:
      parent: the other.
      point: one of its points, found whole.
      folder: of the new run; must not exist yet.
      settings: of the new run.
      change: what to do to the point's variables, if anything.

    Raises:
      UsageError: the folder exists or cannot be made, or the point was removed meanwhile.
      OSError: the disk is full or failed; there is no new run then.
    """

    def fill(temporary: Path) -> None:
        gone = copy_past(parent, point, temporary)
        state, changed = point, ""
        if change:
            changed, state = change(temporary / POINTS / parent.points().path(point.number).name, point)
        ledger, now = Ledger(temporary / LEDGER), utc_now()
        at: dict[str, Any] = {"attempt": point.attempt, "time": now}
        of: dict[str, Any] = {"run": parent.name, "point": point.number, "weights_sha256": point.weights_sha256}
        ledger.append(Fork(**at, **of, counters=point.counters, changed=changed))
        if gone:
            ledger.append(Prune(**at, snapshots=gone))
        origin: dict[str, Any] = {"run": parent.name, "folder": str(parent.folder.absolute()), "point": point.number}
        origin |= {**point.counters.model_dump(), "weights_sha256": state.weights_sha256, "moved": changed}
        description = describe(parent, point.attempt, settings)
        description |= {"name": folder.name, "created": now, "forked_from": origin}
        trust.remember(settings)
        if trust.is_own(parent.id):
            trust.claim(description["id"])
        write_new(temporary / DESCRIPTION, checked(description, indent=1))
        _fsync_folders(temporary)

    with reading_past(parent, point):
        return make_run(folder, fill)


def _fsync_folders(folder: Path) -> None:
    folders = [inside for inside in folder.rglob("*") if inside.is_dir()]
    with ThreadPoolExecutor(_FSYNCS_AT_ONCE) as pool:  # one after the other, 100,000 snapshots take minutes
        list(pool.map(fsync, folders))


def describe(parent: Run, attempt: int, settings: Settings) -> dict[str, Any]:
    """What `run.json` says of a run that continues with these settings after an attempt of its parent."""
    past = [one for one in parent.description["past_settings"] if one["attempt"] < attempt]
    before = parent.settings_of(attempt)
    if before != settings:
        past.append({"attempt": attempt, "settings": before.model_dump(), "settings_sha256": before.sha256()})
    return {
        **parent.description,
        "id": new_id(),
        "settings": settings.model_dump(),
        "settings_sha256": settings.sha256(),
        "past_settings": past,
    }


@contextlib.contextmanager
def reading_past(parent: Run, point: PointState) -> Iterator[None]:
    """While it lasts, nothing that `copy_past` reads is removed. Raises `UsageError` if the point is gone by now."""
    with parent.points().reading(), parent.store().reading():
        if parent.points().readable(point.number) != point:
            raise UsageError(f"{parent.folder} has removed resume point {point.number} just now; try again")
        yield


def copy_past(parent: Run, point: PointState, folder: Path) -> tuple[str, ...]:
    """Copies the records of a run before one of its points, and shares all files that belong to that past.

    Returns:
      The snapshots whose weights were there when the point was made, and are no longer, or not whole.
    """
    for name in RECORDS:
        if size := point.known_bytes[name]:
            if (parent.folder / name).exists():
                with open_plain(parent.folder / name) as file:
                    write_new(folder / name, file.read(size))
            lengthen(folder / name, size)  # some metrics, or all, may be lost
    # What the records of then do not say: how the attempt ended there, and that the parent is itself a fork from there.
    ledger = Ledger(folder / LEDGER)
    made = [other.number for other, _ in parent.ledger.with_abandoned(Point) if other.attempt == point.attempt]
    if made[-1:] == [point.number]:
        for end, _ in parent.ledger.with_abandoned(End):
            if end.attempt == point.attempt:
                ledger.append(end)
    for before in parent.ledger.events(Fork):
        if before.point == point.number:
            ledger.append(before)
    for path in workers.update_logs(parent.folder, upto=point.attempt):
        make_folder(folder / workers.FOLDER)
        with open_plain(path) as file:
            write_new(folder / workers.FOLDER / path.name, file.read())

    then = Snapshots(parent.store_folder, parent.ledger, upto=point.known_bytes[LEDGER])
    now, gone = parent.store(), []
    for snapshot in [*then.snapshots, *then.imports, *then.abandoned]:
        had_weights = then.has_weights(snapshot.id)
        has_weights = had_weights and now.has_weights(snapshot.id) and _is_whole(now, snapshot.id)
        if had_weights and not has_weights:
            gone.append(snapshot.id)
        share_snapshot(then, snapshot.id, folder / then.folder.name, weights=has_weights)

    points, kept = parent.points(), folder / parent.points().folder.name
    into = kept / points.path(point.number).name
    into.mkdir(parents=True)
    for name in (STATE, *(file.name for file in point.files)):
        share(points.path(point.number) / name, into / name)
    (kept / SEGMENTS).mkdir()
    for segment in point.segments:
        share(points.folder / SEGMENTS / segment.file.name, kept / SEGMENTS / segment.file.name)
    return tuple(gone)


def _is_whole(store: Snapshots, snapshot_id: str) -> bool:
    """Whether a snapshot's files are what was written: a point does without most of those that are not."""
    try:
        store.check_files(snapshot_id)
    except DamagedError:
        return False
    return True


def share_snapshot(store: Snapshots, snapshot_id: str, folder: Path, *, weights: bool) -> None:
    """Shares a snapshot with the store of another run: its manifest, and its weights too if they are wanted."""
    into = folder / snapshot_id
    into.mkdir(parents=True)
    manifest = store.manifest(snapshot_id)
    names = [file.name for file in manifest.files] if weights else []
    for name in (MANIFEST, *names):
        path = store.folder / snapshot_id / name
        if not path.exists():
            raise DamagedError(f"{path} is gone")
        share(path, into / name)


def settings_from(run: Run, point: PointState) -> Settings:
    """The settings with which a run continued from one of its points, or as a fork would continue from it; if it
    did neither, those that made the point."""
    for event in run.ledger.newest_first(Start, Fork):
        if isinstance(event, Start) and event.resumed_from == point.number:
            return run.settings_of(event.attempt)
        if isinstance(event, Fork) and event.point == point.number:
            return run.settings_of(event.attempt + 1)
    return run.settings_of(point.attempt)
