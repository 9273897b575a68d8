"""The replay on disk, streamed while steps happen, so that a resume point costs what is new since the last."""

from __future__ import annotations

from typing import TYPE_CHECKING

from twin_graph.base.text import counted
from twin_graph.errors import DamagedError, UsageError
from twin_graph.replay.ring import STORED, Replay

if TYPE_CHECKING:
    from twin_graph.snapshots.points import PointStore, Segment

SEGMENT_BYTES = 16_000_000


class ReplayLog:
    """Streams a replay to disk in segments, and restores it.

    Writes nothing before the first point, so that an agent that never makes one leaves nothing on disk.
    """

    def __init__(self, points: PointStore, replay: Replay) -> None:
        self._points = points
        self._replay = replay
        self._segments: list[Segment] = []
        self._begun = False
        self._most = max(1, min(SEGMENT_BYTES // replay.step_bytes, replay.length // 2))

    def write_if_full(self, attempt: int) -> None:
        """Writes a segment if enough is new, without the newest step, which a point may still cut."""
        if self._begun and self._replay.written - self._stop > self._most:
            self._write(attempt, range(self._stop, self._replay.written - 1))

    def write_rest(self, attempt: int) -> tuple[Segment, ...]:
        """Writes all that is new; returns the segments that make up the replay."""
        self._begun = True
        oldest = self._replay.kept.start
        if self._replay.written > self._stop:
            self._write(attempt, range(max(oldest, self._stop), self._replay.written))
        self._segments = [segment for segment in self._segments if segment.stop > oldest]
        return tuple(self._segments)

    def restore(self, segments: tuple[Segment, ...]) -> None:
        """Fills the replay. Raises `DamagedError`; and `UsageError` where it is of another number of environments."""
        for segment in segments:
            arrays = self._points.read_segment(segment, [*STORED, "cut", "cut_frames"])
            if (environments := arrays["actions"].shape[1]) != self._replay.environments:
                raise UsageError(
                    f"this run was trained with {counted(environments, 'environment')}, and its agent now has "
                    f"{self._replay.environments}: resume it by the loop that trained it, not by another"
                )
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
