"""The learners of a run, one or the two of `mode=mutual`, and what they do together."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from twin_graph.agent.prepared import Prepared
from twin_graph.errors import UsageError

if TYPE_CHECKING:
    from twin_graph.agent.learner import Learner
    from twin_graph.base.counters import Tally
    from twin_graph.base.stopwatch import Stopwatch
    from twin_graph.config.turns import Turns
    from twin_graph.replay.ring import Batch


class Trained(NamedTuple):
    """The result of prepared updates: the loss of each, and the absolute TD error of each row of their batch, float32
    `[B]`; if both learners learned from a row, the larger of their errors."""

    losses: list[float]
    td_error: np.ndarray


class Learners:
    """Lets callers treat two learners as one, whichever of them acts or learns.

    Args:
      learners: one, or two.
      turns: whose turn it is.
      tally: counts their updates.
      stopwatch: measures phases.

    Attributes:
      turns: as given.
      each: the learners.
      roles: each one's target, and the opponent in games of two players.
    """

    def __init__(self, learners: Sequence[Learner], turns: Turns, tally: Tally, stopwatch: Stopwatch) -> None:
        self.each = tuple(learners)
        self.roles = tuple(role for learner in learners for role in learner.roles.values())
        self._learners = {learner.name: learner for learner in learners}
        self.turns = turns
        self._tally = tally
        self._stopwatch = stopwatch
        self._frozen_at = 0

    def __iter__(self) -> Iterator[Learner]:
        return iter(self._learners.values())

    def __len__(self) -> int:
        return len(self._learners)

    def __getitem__(self, name: str) -> Learner:
        """The learner of this name. Raises `UsageError` if there is none."""
        if name not in self._learners:
            raise UsageError(f"there is no learner {name!r}; choose {' or '.join(self._learners)}")
        return self._learners[name]

    @property
    def first(self) -> Learner:
        """The only one, or `a`."""
        return next(iter(self))

    @property
    def target_snapshots(self) -> list[tuple[str, ...]]:
        """The snapshots in each one's target."""
        return [learner.target.snapshots for learner in self]

    @property
    def target_served(self) -> int:
        """Updates made since the target was restored; with two targets, since the one that was restored earlier."""
        return self._tally.updates - min(learner.target.since.updates for learner in self)

    def q_values(self, observations: np.ndarray) -> np.ndarray:
        """Q values, float32 `[B, A]`, of observations `[B, *observation_shape]`; of two learners, their mean."""
        return _mean([learner.online.q_values(observations) for learner in self])

    def freeze(self) -> None:
        """Freezes the current weights, and remembers whose turn it is to act, for
        `acting_q_values(..., frozen=True)`."""
        for learner in self:
            learner.online.freeze()
        self._frozen_at = self._tally.updates

    def acting_q_values(self, observations: np.ndarray, *, frozen: bool) -> np.ndarray:
        """Q values to act by, float32 `[E, A]`, of the learners whose turn it is."""
        update = self._frozen_at if frozen else self._tally.updates
        acting = self.turns.act(self._tally.agent_steps, update)
        return _mean([self[name].acting_q_values(observations, frozen=frozen) for name in acting])

    def weights(self) -> dict[str, np.ndarray]:
        """The online twin's trainable weights by name; of two learners, by `a/` or `b/` and the name."""
        if len(self) == 1:
            return self.first.online.weights()
        return {f"{learner.name}/{n}": w for learner in self for n, w in learner.online.weights().items()}

    def prepare(self, updates: range, batch: Batch) -> Prepared:
        """The minibatches of these updates with the current targets' values for them.

        Args:
          updates: their numbers, from 0.
          batch: their minibatches, one after the other.
        """
        settings = self.turns.settings
        prepared = Prepared(updates, settings.updates_per_minibatch, batch, self.target_snapshots, None)
        if not settings.train.target_q:
            return prepared
        q = []
        with self._stopwatch.phase("target"):
            for name, turn in itertools.groupby(updates, self.turns.learns):
                s_t = prepared.rows(batch.s_t, prepared.minibatches(list(turn)))
                q.append(self[name].target.in_blocks(s_t))
        return prepared._replace(q_target_t=np.concatenate(q))

    def by_present_targets(self, prepared: Prepared) -> Prepared:
        """The same updates, evaluated again if a target has been refreshed since."""
        if prepared.snapshots == self.target_snapshots:
            return prepared
        return self.prepare(prepared.updates, prepared.batch)

    def train(self, prepared: Prepared) -> Trained:
        """Makes prepared updates. Raises `DivergedError` if a loss is NaN or infinite."""
        count = len(prepared.updates)
        loss, q_mean = np.zeros((2, count))
        td_error = np.zeros((count // prepared.per_minibatch, prepared.examples), np.float32)
        whose = [self.turns.learns(update) for update in prepared.updates]
        for learner in self:
            updates = [update for update, name in zip(prepared.updates, whose, strict=True) if name == learner.name]
            if updates:
                made = learner.train(updates, prepared)
                which = np.array(updates) - prepared.updates.start
                loss[which], q_mean[which] = made.loss, made.q_mean
                rows = prepared.minibatches(updates)  # both may learn from one
                td_error[rows] = np.maximum(td_error[rows], np.abs(made.td_error))
        self._tally.updates += count
        self._tally.loss, self._tally.q_mean = float(loss[-1]), float(q_mean[-1])
        for learner in self:
            learner.check(f"by update {self._tally.updates}")
        return Trained(loss.tolist(), td_error.ravel())


def _mean(q: list[np.ndarray]) -> np.ndarray:
    return q[0] if len(q) == 1 else np.mean(q, axis=0)
