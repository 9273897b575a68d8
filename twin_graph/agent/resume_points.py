"""Resume points, from which a run continues bit for bit: how a run that trains makes and restores them.

`twin_graph.snapshots.points` has what they look like on disk, `twin_graph.snapshots.resumable` how one is found.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from twin_graph.agent.replay_log import ReplayLog
from twin_graph.base.text import first_line
from twin_graph.errors import DamagedError, UsageError
from twin_graph.snapshots.ledger import Counters, Point, utc_now
from twin_graph.snapshots.points import HELD_OUT, PointState, descent
from twin_graph.twin.twin import weights_sha256

if TYPE_CHECKING:
    from twin_graph.agent.actor import Actor
    from twin_graph.agent.held_out import HeldOut
    from twin_graph.agent.learner import Learners
    from twin_graph.agent.role import Role
    from twin_graph.base.counters import Tally
    from twin_graph.snapshots.run import Run


class ResumePoints:
    """Makes resume points of a run while it trains, and restores one.

    Args:
      run: whose.
      tally, learners, held_out: what a point is of.
      actor: with the replay; None where others act.

    Attributes:
      newest: the point made or restored last; None before the first.
    """

    def __init__(self, run: Run, tally: Tally, learners: Learners, held_out: HeldOut, actor: Actor | None) -> None:
        self._run = run
        self._tally, self._learners, self._held_out, self._actor = tally, learners, held_out, actor
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
          UsageError: a return is; likewise.
        """
        learners, tally, run = self._learners, self._tally, self._run
        if not all(map(math.isfinite, returns)):
            raise UsageError(f"returns of training episodes must be finite, not {list(returns)}")
        for learner in learners:
            learner.check_finite(learner.online.all_variables(), tally.updates)
        number, sha256 = self._points.next_number(), weights_sha256(learners.weights())
        arrays = {} if self._held_out.observations is None else {HELD_OUT: self._held_out.observations}
        if self._actor:
            self._actor.replay.cut()
            arrays |= self._actor.state()
        made: dict[str, Any] = {"attempt": run.attempt, "time": utc_now(), "number": number}
        made |= {"counters": tally.counters, "weights_sha256": sha256}
        # Before the point itself, so that the records that belong to the point say that it was made.
        run.ledger.append(Point(**made, request=request))
        state = PointState(
            **made,
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
        return state, self._points.retain(descent(run, state, before), run.settings.resume.keep)

    def restore(self, point: PointState) -> list[tuple[Role, str]]:
        """Restores a resume point; the ledger has already recorded it.

        Returns:
          What the caller must refresh because another policy chose its snapshots, and that policy.
        """
        if [state.name for state in point.learners] != [learner.name for learner in self._learners]:
            names = ", ".join(state.name for state in point.learners)
            raise DamagedError(f"{self._points.path(point.number)} is damaged: it is of other learners ({names})")
        arrays = self._points.arrays(point)
        self._tally.restore(point.counters, reward_limit=point.reward_limit, r_max=point.r_max)
        self._held_out.observations = arrays.get(HELD_OUT)
        folder = self._points.path(point.number)
        if self._actor and self._log:
            try:
                self._log.restore(point.segments)
                self._actor.restore(arrays)
            except (ValueError, LookupError, TypeError) as error:
                raise DamagedError(
                    f"{folder} is damaged: its arrays do not fit the run ({first_line(error)})"
                ) from None
        self.newest = point
        restored = zip(self._learners, point.learners, strict=True)
        return [left for learner, state in restored for left in learner.restore(state, folder / learner.name)]
