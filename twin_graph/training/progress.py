"""The progress of a run, for `metrics.jsonl`, TensorBoard and the terminal alike."""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from twin_graph.base.stopwatch import PHASES
from twin_graph.records.depth import Depths

if TYPE_CHECKING:
    from twin_graph.agent.live_run import LiveRun
    from twin_graph.envs import VectorStep
    from twin_graph.evaluation.games import Evaluation
    from twin_graph.snapshots.ledger import Commit, Counters
    from twin_graph.snapshots.workers import WorkerStatus

RECENT_EPISODES = 20


class Happened(NamedTuple):
    """What happened in a part of a training.

    Attributes:
      scores: true scores of the training episodes that ended.
      evaluations: scheduled ones that were recorded, with their snapshots.
      note: what is being done when it is not training, for people.
    """

    scores: Sequence[float] = ()
    evaluations: Sequence[tuple[Commit, Evaluation]] = ()
    note: str = ""


class Progress:
    """What `train` yields; the terminal shows this and needs nothing else.

    Args:
      live: the run while it is trained.
      stop: set by whoever wants training to end after its next vector step, or chunk.

    Attributes:
      live, stop: as given.
      total_steps: agent steps of the whole run.
      returns: true scores of the newest training episodes.
      happened: since it was last yielded.
      depths: of the run's snapshots.
      ended_by: which callback ended the run, in words; empty if none did.
      evaluation: the newest, with its snapshot's id; None before the first.
      evaluations: the newest of each learner that has one, likewise, by the learner's name.
      note: what is being done when it is not training, for people.
      latest: what `metrics()` last returned; empty before.
      workers: what each worker last reported, and how often it was restarted, in asynchronous training.
    """

    def __init__(self, live: LiveRun, stop: threading.Event) -> None:
        self.live = live
        self.stop = stop
        self.total_steps = live.settings.total_steps
        point = live.resume_points.newest
        self.returns = deque(point.returns if point else (), maxlen=RECENT_EPISODES)
        self.happened = Happened()
        self.ended_by = ""
        self.evaluation: tuple[str, Evaluation] | None = None
        self.evaluations: dict[str, tuple[str, Evaluation]] = {}
        self.note = ""
        self.latest: dict[str, Any] = {}
        self.workers: Sequence[tuple[WorkerStatus, int]] = ()
        self.depths = Depths(live.run)
        self._marked = time.perf_counter()
        self._mark = self._so_far()  # a resumed run has steps that this process did not make

    @property
    def agent_steps(self) -> int:
        return self.live.tally.agent_steps

    @property
    def updates(self) -> int:
        return self.live.tally.updates

    @property
    def counters(self) -> Counters:
        return self.live.tally.counters

    @property
    def notices(self) -> list[str]:
        """What people should know, from the whole run so far."""
        return self.live.notices

    @property
    def epsilon(self) -> float:
        """The share of random actions at this agent step."""
        return self.live.settings.act.epsilon_at(self.agent_steps)

    @property
    def loss(self) -> float:
        """The newest update's loss; NaN before the first."""
        return self.live.tally.loss

    @property
    def q_mean(self) -> float:
        """Mean of max_a Q in the newest update; NaN before the first."""
        return self.live.tally.q_mean

    @property
    def target(self) -> tuple[str, ...]:
        """The snapshots that supply bootstrap values."""
        return tuple(snapshot for snapshots in self.live.learners.target_snapshots for snapshot in snapshots)

    @property
    def opponent(self) -> str | None:
        """Who has the other seat, for people: snapshots, or a policy without any; None in games of one player."""
        opponent = self.live.learners.first.roles.get("opponent")
        return None if opponent is None else ", ".join(opponent.snapshots) or self.live.settings.opponent.policy

    @property
    def has_target(self) -> bool:
        """Whether a target supplies bootstrap values: `train.target_q`."""
        return self.live.settings.train.target_q

    @property
    def target_served(self) -> int:
        """Updates made since a target was restored."""
        return self.live.learners.target_served

    @property
    def target_held(self) -> bool:
        """Whether a person has suspended refreshes."""
        return any(learner.target.held for learner in self.live.learners)

    @property
    def newest_snapshot(self) -> str:
        return self.live.store.newest.id

    @property
    def newest_snapshots(self) -> dict[str, str]:
        """The newest snapshot of each learner, by the learner's name."""
        by_learner = {snapshot.learner: snapshot.id for snapshot in self.live.store.snapshots}
        return {learner.name: by_learner[learner.name] for learner in self.live.learners}

    @property
    def weights_sha256(self) -> str:
        """The hash of the newest resume point's weights, of both learners together; empty before the first."""
        point = self.live.resume_points.newest
        return point.weights_sha256 if point else ""

    @property
    def complete(self) -> bool:
        """See `Matches.complete`."""
        return self.live.matches.complete(self.agent_steps, self.live.settings)

    @property
    def interrupted(self) -> bool:
        """Whether it was asked to stop before it was complete."""
        return self.stop.is_set() and not (self.complete or self.reached or self.ended_by)

    @property
    def reached(self) -> str:
        """How the newest evaluation reached `train.until_score`, in words for people; empty if it did not."""
        until = self.live.settings.train.until_score
        return "" if until is None else self.live.matches.reached(until, self.live.settings)

    def metrics(self) -> dict[str, Any]:
        """Everything that is logged; rates and times are those since the last call."""
        with self.live.stopwatch.phase("telemetry"):
            telemetry = {**self.live.distances(), **self._depth()}
        for worker in (worker for worker, _ in self.workers if worker.is_training):
            telemetry[f"workers/{worker.name}/agent_steps_per_second"] = worker.agent_steps_per_second
            telemetry[f"workers/{worker.name}/staleness"] = worker.staleness
        now = time.perf_counter()
        elapsed = now - self._marked
        (steps, updates, seconds, calls), so_far = self._mark, self._so_far()
        metrics: dict[str, Any] = {
            **self.counters.model_dump(),
            "epsilon": self.epsilon,
            "loss": self.loss,
            "q_mean": self.q_mean,
            "train_return": sum(self.returns) / len(self.returns) if self.returns else math.nan,
            "target_snapshots": self.target,
            "target_served_updates": self.target_served,
            **({} if self.opponent is None else {"opponent": self.opponent}),
            **telemetry,
            "agent_steps_per_second": (so_far[0] - steps) / elapsed,
            "updates_per_second": (so_far[1] - updates) / elapsed,
            "seconds": elapsed,
        }
        for phase in PHASES:
            spent = so_far[2][phase] - seconds[phase]
            metrics[f"time_share/{phase}"] = spent / elapsed
            metrics[f"milliseconds/{phase}"] = 1000 * spent / max(1, so_far[3][phase] - calls[phase])
        self._marked, self._mark, self.latest = now, so_far, metrics
        return metrics

    def take(self, happened: Happened) -> None:
        """Notes what happened."""
        self.happened, self.note = happened, happened.note
        for snapshot, evaluation in happened.evaluations:
            self.evaluation = self.evaluations[snapshot.learner] = snapshot.id, evaluation

    def _depth(self) -> dict[str, float]:
        """How many agent steps ahead the values that are being learned can reach; see `twin_graph.records.depth`."""
        self.depths.catch_up()
        learners = self.live.learners
        depths = {learner.name: self.depths.of_targets(learner.name) for learner in learners}
        names = {name: "depth" if name == learners.first.name else f"depth/{name}" for name in depths}
        return {names[name]: depth for name, depth in depths.items() if depth is not None}

    def _so_far(self) -> tuple[int, int, dict[str, float], dict[str, int]]:
        stopwatch = self.live.stopwatch
        return self.agent_steps, self.updates, dict(stopwatch.seconds), dict(stopwatch.calls)


class RunningScores:
    """Adds up the true scores of the episodes that E environments play."""

    def __init__(self, environments: int) -> None:
        self._scores = [0.0] * environments

    def add(self, step: VectorStep) -> list[float]:
        """The scores of the episodes that ended in this step."""
        ended = []
        for e, score in enumerate(step.score_t):
            self._scores[e] += float(score)
            if step.last_t[e]:
                ended.append(self._scores[e])
                self._scores[e] = 0.0
        return ended
