"""What a resume point keeps of a replay, and which point a run goes on from."""

from typing import NamedTuple

from twin_graph.errors import DamagedError, UsageError
from twin_graph.replay import STORED, Replay
from twin_graph.snapshots.files import read_lines
from twin_graph.snapshots.ledger import Commit, Swap
from twin_graph.snapshots.points import PointState, PointStore, Segment
from twin_graph.snapshots.run import Run

SEGMENT_BYTES = 16_000_000


class ReplayLog:
    """Streams a replay to disk in segments, and puts it back.

    Writes nothing before the first point, so that an agent that never makes one leaves nothing on disk.
    """

    def __init__(self, points: PointStore, replay: Replay) -> None:
        self._points = points
        self._replay = replay
        self._segments: list[Segment] = []
        self._begun = False
        self._most = max(1, min(SEGMENT_BYTES // replay.step_bytes, replay.length // 2))

    def write_if_full(self, attempt: int) -> None:
        """Writes a segment if there is enough that is new, but for the newest step, which a point may still cut."""
        if self._begun and self._replay.written - self._stop > self._most:
            self._write(attempt, range(self._stop, self._replay.written - 1))

    def write_rest(self, attempt: int) -> tuple[Segment, ...]:
        """Writes all that is new; gives the segments that make up the replay."""
        self._begun = True
        oldest = self._replay.kept.start
        if self._replay.written > self._stop:
            self._write(attempt, range(max(oldest, self._stop), self._replay.written))
        self._segments = [segment for segment in self._segments if segment.stop > oldest]
        return tuple(self._segments)

    def restore(self, segments: tuple[Segment, ...]) -> None:
        """Fills the replay. Raises `DamagedError`."""
        for segment in segments:
            arrays = self._points.read_segment(segment, [*STORED, "cut", "cut_frames"])
            try:
                self._replay.restore(segment.first, arrays)
            except ValueError as error:
                raise DamagedError(f"{segment.file.name} does not fit this replay: {error}") from None
        self._segments = list(segments)
        self._begun = True

    @property
    def _stop(self) -> int:
        return self._segments[-1].stop if self._segments else 0

    def _write(self, attempt: int, steps: range) -> None:
        self._segments.append(self._points.write_segment(attempt, steps, self._replay.stored(steps)))


class Found(NamedTuple):
    """Where a run can go on.

    Attributes:
      point: the newest that is whole.
      damage: why newer ones are not, a line each.
    """

    point: PointState
    damage: list[str]


def newest_point(run: Run) -> Found:
    """The newest resume point of which every file, and every record before it, is what was written.

    Raises:
      UsageError: none was ever made.
      DamagedError: none is whole.
    """
    points = run.points()
    folders = points.folders()
    if not folders:
        known: list[Commit | Swap] = [*run.ledger.events(Commit), *run.ledger.events(Swap)]
        if steps := max((event.counters.agent_steps for event in known), default=0):
            raise UsageError(
                f"{run.folder} has no resume point, after {steps:,} agent steps: a loop of one's own makes them "
                "with Agent.commit_point()"
            )
        raise UsageError(f"{run.folder} ended before its first resume point; train a new run")
    damage: list[str] = []
    for folder in reversed(folders):
        try:
            point = PointState.read(folder)
            points.check(point)
            check_records(run, point)
        except DamagedError as error:
            damage.append(str(error))
        else:
            return Found(point, damage)
    raise DamagedError(f"{run.folder} has no whole resume point: {damage[0]}")


def check_records(run: Run, point: PointState) -> None:
    """Checks the records before a point and the weights of its target. Raises `DamagedError`."""
    for name, known in point.known_bytes.items():
        path = run.folder / name
        if known and (not path.exists() or path.stat().st_size < known):
            raise DamagedError(f"{path} is damaged: it is shorter than resume point {point.number} knew it")
        for line in read_lines(path):
            if line.start < known and not line.is_whole:
                raise DamagedError(f"{path} is damaged: line {line.number} is not what was written")
    run.ledger.check(upto=point.known_bytes[run.ledger.path.name])
    store = run.store(upto=point.known_bytes[run.ledger.path.name])
    for snapshot_id in point.targets:
        store.check_files(snapshot_id)
