"""Resume points on disk: everything that a run needs to continue after a crash.

resume/
  000007/
    state.json          counters, what the target held, which files belong to it: see `PointState`
    online.index, online.data-00000-of-00001    all variables of the learner's online twin, with the optimizer's; of two
                        learners, a.* and b.*
    probe.npy           the observations on which targets are compared
    environment-*.npy   what outlived episodes in the environments
    priorities.npy ...  of prioritized replay
  replay/
    000001-000004096-000004608.npys    a part of the replay, shared by the points that need it

A replay segment is written as steps happen, and made durable by the first point that names it. So a point costs what is
new since the last. Segments never change.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, Self

from pydantic import Field

from twin_graph.base.counters import Whole
from twin_graph.errors import DamagedError
from twin_graph.snapshots.files import (
    checked,
    commit_folder,
    fsync,
    lock_folder,
    make_folder,
    remove_folder,
    remove_leftovers,
    write_new,
)
from twin_graph.snapshots.forms import POINT_FOLDER, EachOnce, LearnerName, Lengths, Record, SnapshotId
from twin_graph.snapshots.ledger import Counters, Point, read_record
from twin_graph.snapshots.store import FileRecord, read_arrays

if TYPE_CHECKING:  # imported where arrays are read or written: commands that only look at records need not wait
    import numpy as np

    from twin_graph.snapshots.run import Run

STATE = "state.json"
HELD_OUT = "probe"  # `.npy`
ENVIRONMENT = "environment-"  # what the names of arrays begin with that outlive episodes in environments
SEGMENTS = "replay"


class Segment(Record):
    """A part of the replay, in vector steps.

    Attributes:
      first, stop: the steps it holds, `range(first, stop)`.
    """

    file: FileRecord
    first: Whole
    stop: Whole


class RoleState(Record):
    """What a target, or an opponent, held.

    Attributes:
      snapshots: restored.
      since: counters when that was done.
      policy: which chose.
      held: refreshes are suspended.
    """

    snapshots: tuple[SnapshotId, ...]
    since: Counters
    policy: str
    held: bool


class LearnerState(Record):
    """What is kept of a learner apart from its variables.

    Attributes:
      name: of the learner, and of the files with its variables.
      updates: its own.
      target, opponent: see `RoleState`; there is an opponent in games of two players.
    """

    name: LearnerName
    updates: Whole
    target: RoleState
    opponent: RoleState | None = None

    @property
    def roles(self) -> dict[str, RoleState]:
        """By name."""
        return {"target": self.target} | ({"opponent": self.opponent} if self.opponent else {})


class PointState(Record):
    """What `state.json` says.

    Attributes:
      number: of the point, in the order of the run's.
      attempt, time: who wrote it, and when.
      counters: at this point.
      weights_sha256: of the online twin's weights; with two learners, of both together, see `Learners.weights`.
      learners: see `LearnerState`.
      saved: counters when the save schedule last fired.
      reward_limit: the largest |reward| met.
      r_max: the largest reward seen, at least 1.
      returns: of the newest training episodes, for progress.
      known_bytes: length of each file of records when the point was made, by name.
      segments: of the replay, in order and without gaps.
      files: in the point's own folder.
    """

    format: Literal[1] = 1
    number: Whole
    attempt: Annotated[Whole, Field(ge=1)]
    time: str
    counters: Counters
    weights_sha256: str
    learners: tuple[LearnerState, ...]
    saved: Counters
    reward_limit: float
    r_max: float = 1.0
    returns: tuple[float, ...]
    known_bytes: Lengths = Field(min_length=1)
    segments: tuple[Segment, ...]
    files: Annotated[tuple[FileRecord, ...], EachOnce] = ()

    @property
    def snapshots(self) -> tuple[str, ...]:
        """Those in targets and opponents."""
        return tuple(i for learner in self.learners for role in learner.roles.values() for i in role.snapshots)

    @property
    def held(self) -> list[str]:
        """The roles whose refreshes were suspended, for any learner."""
        roles = [item for learner in self.learners for item in learner.roles.items()]
        return list(dict.fromkeys(name for name, role in roles if role.held))

    @classmethod
    def read(cls, folder: Path) -> Self:
        """The state in a point's folder. Raises `DamagedError`."""
        state = read_record(cls, folder / STATE)
        if f"{state.number:06d}" != folder.name:
            raise DamagedError(f"{folder / STATE} is damaged: it names itself {state.number}")
        return state


class PointStore:
    """The resume points of one run, in its folder `resume/`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._not_durable: list[Path] = []
        self._first_kept: PointState | None = None  # where all are kept

    def folders(self) -> list[Path]:
        """The folders of points, oldest first."""
        return sorted(
            (p for p in self.folder.glob("*") if POINT_FOLDER.fullmatch(p.name)), key=lambda path: int(path.name)
        )

    def path(self, number: int) -> Path:
        """The folder of a point."""
        return self.folder / f"{number:06d}"

    def newest(self) -> PointState | None:
        """The newest point whose state can be read; its files are not looked at."""
        return next((state for folder in reversed(self.folders()) if (state := _readable(folder))), None)

    def oldest(self) -> PointState | None:
        """The oldest point whose state can be read."""
        return next((state for folder in self.folders() if (state := _readable(folder))), None)

    def readable(self, number: int) -> PointState | None:
        """The point of this number, if it is there and its state can be read."""
        return _readable(self.path(number))

    def next_number(self) -> int:
        """That of a new point: above all that are there, whole or not."""
        return max((int(path.name) + 1 for path in self.folders()), default=0)

    def write_segment(self, attempt: int, steps: range, arrays: Mapping[str, np.ndarray]) -> Segment:
        """Writes a part of the replay; durable when a point that names it is committed. Raises OSError."""
        folder = self.folder / SEGMENTS
        make_folder(folder)
        path = folder / f"{attempt:06d}-{steps.start:09d}-{steps.stop:09d}.npys"
        parts = [part for array in arrays.values() for part in _npy(array)]
        digest = hashlib.sha256()
        for part in parts:
            digest.update(part)
        path.unlink(missing_ok=True)  # what an attempt to write it left, on a full disk for example
        write_new(path, *parts)
        self._not_durable.append(path)
        size = sum(memoryview(part).nbytes for part in parts)
        file = FileRecord(name=path.name, size=size, sha256=digest.hexdigest())
        return Segment(file=file, first=steps.start, stop=steps.stop)

    def read_segment(self, segment: Segment, names: Sequence[str]) -> dict[str, np.ndarray]:
        """The arrays of a part of the replay. Raises `DamagedError`."""
        path = self.folder / SEGMENTS / segment.file.name
        segment.file.check_in(path.parent)
        return read_arrays(path, names)

    def commit(self, state: PointState, save: Callable[[Path], None], arrays: Mapping[str, np.ndarray]) -> None:
        """Makes a resume point durable; `save(folder)` writes all variables. Raises OSError: nothing was committed."""
        for path in self._not_durable:
            fsync(path)
        if self._not_durable:
            fsync(self.folder / SEGMENTS)
        self._not_durable.clear()

        def fill(folder: Path) -> None:
            save(folder)
            for name, array in arrays.items():
                write_new(folder / f"{name}.npy", *_npy(array))
            files = tuple(FileRecord.of(path) for path in sorted(folder.iterdir()))
            content = checked(state.model_copy(update={"files": files}).model_dump(mode="json"), indent=1)
            write_new(folder / STATE, content)

        make_folder(self.folder)
        commit_folder(self.path(state.number), fill)

    def arrays(self, state: PointState) -> dict[str, np.ndarray]:
        """What `commit` was given, by name."""
        paths = [self.path(state.number) / file.name for file in state.files if file.name.endswith(".npy")]
        return {path.stem: read_arrays(path, [path.stem])[path.stem] for path in paths}

    def array(self, state: PointState, name: str) -> np.ndarray | None:
        """One of them, checked; None if there is none of this name. Raises `DamagedError`."""
        for file in state.files:
            if file.name == f"{name}.npy":
                file.check_in(self.path(state.number))
                return read_arrays(self.path(state.number) / file.name, [name])[name]
        return None

    def check_files(self, state: PointState) -> None:
        """Reads every file of a point, those of the replay too. Raises `DamagedError` for the first that is damaged."""
        for file in state.files:
            file.check_in(self.path(state.number))
        for segment in state.segments:
            segment.file.check_in(self.folder / SEGMENTS)

    @contextlib.contextmanager
    def reading(self) -> Iterator[None]:
        """While it lasts, nothing is removed: what is found inside can be read inside."""
        with lock_folder(self.folder, shared=True):
            yield

    def retain(self, chain: Iterable[PointState], count: int | None) -> PointState:
        """Removes all points but the newest `count` of `chain`, and all segments that these do not need.

        A point whose state cannot be read is left for a person to look at. Nothing is removed if readers keep the lock
        for seconds.

        Args:
          chain: points from which the present training descends, newest first; the first was just committed.
          count: how many are kept; None for all of them.

        Returns:
          The oldest that is still there.
        """
        if count is None and self._first_kept:  # nothing is to be removed but what a crash left, once
            return self._first_kept
        kept = list(itertools.islice(chain, count))
        try:
            with lock_folder(self.folder, shared=False):
                self._remove_all_but(kept)
        except BlockingIOError:  # a fork of an older one, perhaps, which needs its snapshots too
            return self.oldest() or kept[-1]
        self._first_kept = kept[-1]
        return self._first_kept

    def _remove_all_but(self, kept: Sequence[PointState]) -> None:
        numbers = {state.number for state in kept}
        for folder in self.folders():
            if int(folder.name) not in numbers and _readable(folder):
                remove_folder(folder)
        needed = {segment.file.name for state in kept for segment in state.segments}
        for path in (self.folder / SEGMENTS).glob("*.npys"):
            if path.name not in needed and path not in self._not_durable:
                path.unlink()

    def remove_leftovers(self) -> None:
        """Removes what a writer that died left; only for the process that holds the run's lock."""
        if self.folder.exists():
            remove_leftovers(self.folder)


def _readable(folder: Path) -> PointState | None:
    try:
        return PointState.read(folder)
    except DamagedError:
        return None


def _npy(array: np.ndarray) -> tuple[bytes, memoryview]:
    """A `.npy` file's header and content, without a copy of the content."""
    import numpy as np

    contiguous = np.ascontiguousarray(array)
    header = _Header()
    np.lib.format.write_array_header_2_0(header, np.lib.format.header_data_from_array_1_0(contiguous))
    return bytes(header), contiguous.reshape(-1).view(np.uint8).data


class _Header(bytearray):
    """What NumPy writes a header into."""

    def write(self, part: bytes) -> None:
        self.extend(part)


def descent(run: Run, newest: PointState, before: PointState | None = None) -> Iterator[PointState]:
    """The points from which the present training descends, newest first.

    Args:
      run: whose.
      newest: the first of them.
      before: the one before it, if that is known; runs of older versions have none in the ledger.
    """
    yield newest
    recorded = [before.number] if before else []
    recorded += [point.number for point in run.ledger.newest_first(Point)]
    for number in dict.fromkeys(recorded):
        if number != newest.number and (state := run.points().readable(number)):
            yield state
