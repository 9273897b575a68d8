"""Fetches runs from remotes: a state as a whole, its records alone, or some of its snapshots.

Nothing in a remote is trusted. A head has a checked form, paths are those of a run's files, an object is what its name
says, and what it unpacks to is as long as the head says. What then is a run's folder is opened as any stranger's.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from twin_graph.base.text import size
from twin_graph.errors import DamagedError, UsageError
from twin_graph.remote import heads
from twin_graph.remote.heads import Stored
from twin_graph.snapshots.files import fsync, make_folder, scratch_folder, temporary_of
from twin_graph.snapshots.run import DESCRIPTION, POINTS, SNAPSHOTS, Run, make_run
from twin_graph.snapshots.store import MANIFEST

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable
    from pathlib import Path

    from twin_graph.remote.heads import Head
    from twin_graph.remote.places import Place

_AT_ONCE = 8

#: Which files of a state are fetched.
Wanted = Callable[[Stored], bool]


def everything(_: Stored) -> bool:
    """All files."""
    return True


def newest(place: Place) -> Head:
    """The newest state. Raises `UsageError` if there is none."""
    head = heads.newest(place)
    if head is None:
        inside = place.folders()
        there = f"; below it are {', '.join(inside[:5])}{', ...' if len(inside) > 5 else ''}" if inside else ""
        raise UsageError(f"no run in {place.url}{there}")
    return head


def pull(
    place: Place,
    head: Head,
    folder: Path,
    *,
    wanted: Wanted = everything,
    tell: Callable[[int], object] = lambda _: None,
) -> Run:
    """Makes a run here of a state.

    Args:
      place: where it is.
      head: the state.
      folder: of the run; must not exist yet.
      wanted: which files; the others are left out.
      tell: called with the number of bytes that were written.

    Raises:
      UsageError: the folder exists, or cannot be made.
      DamagedError: something is not what the head says.
      OSError: the place cannot be reached, or the disk is full. There is no new run then.
    """

    files = [file for file in head.files if wanted(file)]
    _check_room(sum(file.bytes for file in files), folder)

    def fill(temporary: Path) -> None:
        _write_all(place, files, temporary, tell)
        if not (temporary / DESCRIPTION).exists():
            raise DamagedError(f"{place.url} is damaged: its state {head.number} has no {DESCRIPTION}")
        if (found := Run(temporary).id) != head.run:
            raise DamagedError(f"{place.url} is damaged: its state {head.number} is of another run, {found}")

    return make_run(folder, fill)


def replace(place: Place, head: Head, folder: Path, *, tell: Callable[[int], object] = lambda _: None) -> Run:
    """Puts a state in the place of an older copy of the run, if there is one. Arguments and errors as of `pull`."""
    with scratch_folder(folder) as newer:
        pull(place, head, newer, tell=tell)
        if folder.exists():
            shutil.rmtree(folder)
        newer.rename(folder)
    return Run(folder)


def _check_room(needed: int, folder: Path) -> None:
    there = next(parent for parent in folder.absolute().parents if parent.exists())
    if (free := shutil.disk_usage(there).free) < needed:
        raise UsageError(f"{size(needed)} are to be fetched, and {size(free)} are free in {there}")


def _write_all(place: Place, files: Iterable[Stored], folder: Path, tell: Callable[[int], object]) -> None:
    done = 0

    def write(file: Stored) -> int:
        path = folder / file.name
        path.parent.mkdir(parents=True, exist_ok=True)
        _write(place, file, path)
        return file.bytes

    with ThreadPoolExecutor(_AT_ONCE, "fetching") as pool:
        waiting = [pool.submit(write, file) for file in files]
        try:
            for one in waiting:
                done += one.result()
                tell(done)
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    for inside in [path for path in folder.rglob("*") if path.is_dir()]:
        fsync(inside)


def add(place: Place, files: Iterable[Stored], folder: Path) -> None:
    """Adds files of a state to a run here. Raises as `pull`; what failed is not there."""
    for file in files:
        there = folder / file.name
        make_folder(there.parent)
        made = temporary_of(there)
        made.unlink(missing_ok=True)
        try:
            _write(place, file, made)
            made.replace(there)
        finally:
            made.unlink(missing_ok=True)


def _write(place: Place, file: Stored, path: Path) -> None:
    with path.open("xb") as opened:
        for part in heads.content_of(place, file):
            opened.write(part)
        opened.flush()
        os.fsync(opened.fileno())


def is_record(file: Stored) -> bool:
    """Whether a file is none of weights, replay or films: what reading commands need."""
    kind, _, rest = file.name.partition("/")
    return kind not in (SNAPSHOTS, POINTS, "videos", "events") or rest.endswith(f"/{MANIFEST}")


def of_snapshots(ids: Collection[str]) -> Wanted:
    """Whether a file is a record, or belongs to one of these snapshots."""
    return lambda file: is_record(file) or any(file.name.startswith(f"{SNAPSHOTS}/{i}/") for i in ids)
