"""Resume points, from which a run continues bit for bit: how one is made, restored and found.

`twin_graph.snapshots.points` has what they look like on disk.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from twin_graph.errors import DamagedError, UsageError
from twin_graph.replay import STORED, Replay
from twin_graph.snapshots.files import read_lines
from twin_graph.snapshots.ledger import Commit, Counters, Point, Swap, utc_now
from twin_graph.snapshots.points import PointState, PointStore, Segment
from twin_graph.snapshots.run import Run
from twin_graph.snapshots.store import Snapshots, update_of

if TYPE_CHECKING:  # looking for a point does not need TensorFlow
    from twin_graph.actor import Actor
    from twin_graph.learner import Learner
    from twin_graph.learners import Learners
    from twin_graph.probe import Probe
    from twin_graph.tally import Tally
    from twin_graph.targets import Policy

SEGMENT_BYTES = 16_000_000
PROBE = "probe"


class Checkpoints:
    """Makes resume points of a run while it trains, and restores one.

    Args:
      run: whose.
      tally, learners, probe: what a point is of.
      actor: with the replay; None where others act.

    Attributes:
      newest: the point made or restored last; None before the first.
    """

    def __init__(self, run: Run, tally: "Tally", learners: "Learners", probe: "Probe", actor: "Actor | None") -> None:
        self._run = run
        self._tally, self._learners, self._probe, self._actor = tally, learners, probe, actor
        self._points = run.points()
        self._points.remove_leftovers()
        self._log = ReplayLog(self._points, actor.replay) if actor else None
        self.newest: PointState | None = None

    def replay_grew(self) -> None:
        """Streams what is new in the replay to disk once there is enough of it, so that points need not write it."""
        if self._log:
            self._log.write_if_full(self._run.attempt)

    def commit(
        self, saved: Counters, returns: Sequence[float], request: str | None = None
    ) -> tuple[PointState, PointState]:
        """Makes all that is needed to resume from here durable, and ends every episode; removes surplus points.

        Args:
          saved: counters when the save schedule last fired.
          returns: of the newest training episodes.
          request: the person's request that it answers, if any.

        Returns:
          The new point, and the oldest that is kept.

        Raises:
          OSError: the disk is full or failed; the point before stays the newest.
          DivergedError: a variable is NaN or infinite; likewise.
        """
        from twin_graph.twin import weights_sha256

        learners, tally, run = self._learners, self._tally, self._run
        for learner in learners:
            learner.check_finite(learner.online.all_variables(), tally.updates)
        number, sha256 = self._points.next_number(), weights_sha256(learners.weights())
        arrays = {} if self._probe.observations is None else {PROBE: self._probe.observations}
        if self._actor:
            self._actor.replay.cut()
            arrays |= self._actor.sampler.state()
        # Before the point itself, so that the records that belong to the point say that it was made.
        run.ledger.append(
            Point(
                attempt=run.attempt,
                time=utc_now(),
                number=number,
                counters=tally.counters,
                weights_sha256=sha256,
                request=request,
            )
        )
        state = PointState(
            number=number,
            attempt=run.attempt,
            time=utc_now(),
            counters=tally.counters,
            weights_sha256=sha256,
            learners=tuple(learner.state for learner in learners),
            saved=saved,
            reward_limit=tally.reward_limit,
            r_max=tally.r_max,
            returns=tuple(returns),
            known_bytes=run.settle_records(),
            segments=self._log.write_rest(run.attempt) if self._log else (),
        )

        def save(folder: Path) -> None:
            for learner in learners:
                learner.online.save(folder / learner.name, optimizer=True)

        self._points.commit(state, save, arrays)
        before, self.newest = self.newest, state
        return state, self._points.retain(self._chain(state, before), run.settings.resume.keep)

    def _chain(self, newest: PointState, before: PointState | None) -> Iterator[PointState]:
        """The points from which the present training descends, newest first."""
        yield newest
        # Runs of older versions have none in the ledger.
        recorded = [before.number] if before else []
        recorded += [point.number for point in self._run.ledger.newest_first(Point)]
        for number in dict.fromkeys(recorded):
            if number != newest.number and (state := self._points.readable(number)):
                yield state

    def restore(self, point: PointState, policies: "Mapping[str, Policy]") -> list[tuple["Learner", str, str]]:
        """Restores a resume point; the ledger has already recorded it.

        Args:
          point: which.
          policies: of the present settings, by roles.

        Returns:
          What the caller must refresh because another policy chose it: learner, role, and that policy.
        """
        arrays = self._points.arrays(point)
        self._tally.restore(point)
        self._probe.observations = arrays.get(PROBE)
        if self._actor and self._log:
            self._log.restore(point.segments)
            self._actor.sampler.restore(arrays)
        self.newest = point
        folder = self._points.path(point.number)
        return [
            (learner, role, policy)
            for learner, state in zip(self._learners, point.learners, strict=True)
            for role, policy in learner.restore(state, folder / learner.name, policies)
        ]


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
    """Where a run can continue.

    Attributes:
      point: the newest that is whole, or the oldest.
      damage: why newer ones (for the oldest point: older ones) are not whole, one line each.
    """

    point: PointState
    damage: list[str]


def newest_point(run: Run) -> Found:
    """The newest resume point whose files, and the records before it, are exactly what was written.

    Raises:
      UsageError: none was ever made.
      DamagedError: none is whole.
    """
    points = run.points()
    folders = points.folders()
    if not folders:
        known: list[Commit | Swap] = [*run.ledger.events(Commit), *run.ledger.events(Swap)]
        if steps := max((event.counters.agent_steps for event in known), default=0):
            why = f"those that it made are not in {points.folder}"
            if not run.ledger.events(Point):
                why = "a custom loop makes them with Agent.commit_point()"
            raise UsageError(f"{run.folder} has no resume point, after {steps:,} agent steps: {why}")
        raise UsageError(f"{run.folder} ended before its first resume point; train a new run")
    lost = run.lost_point()
    return _first_whole(run, reversed(folders), [lost] if lost else [])


def oldest_point(run: Run) -> Found | None:
    """The oldest resume point that is whole, as `newest_point`; None if none was ever made. Raises `DamagedError`."""
    folders = run.points().folders()
    return _first_whole(run, folders, []) if folders else None


def _first_whole(run: Run, folders: Iterable[Path], damage: list[str]) -> Found:
    for folder in folders:
        try:
            point = _checked_point(run, folder)
        except DamagedError as error:
            damage.append(str(error))
        else:
            return Found(point, damage)
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
    run.points().check(point)
    check_records(run, point)
    return point


def check_records(run: Run, point: PointState) -> None:
    """Checks the records before a point, and the snapshots in its targets and opponent. Raises `DamagedError`."""
    for name, known in point.known_bytes.items():
        path = run.folder / name
        if known and (not path.exists() or path.stat().st_size < known):
            raise DamagedError(f"{path} is damaged: it is shorter than when resume point {point.number} was made")
        for line in read_lines(path):
            if line.start < known and not line.is_whole:
                raise DamagedError(f"{path} is damaged: line {line.number} is not what was written")
    run.ledger.check(upto=point.known_bytes[run.ledger.path.name])
    store = Snapshots(run.store_folder, run.ledger, upto=point.known_bytes[run.ledger.path.name])
    for snapshot_id in point.snapshots:
        store.check_files(snapshot_id)
