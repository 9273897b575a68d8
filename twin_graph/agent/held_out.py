"""Held-out observations, on which twins are compared: the same for the whole run (Mnih et al. 2015)."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from twin_graph.base.streams import Purpose, stream
from twin_graph.envs.legal import is_illegal, legal_only
from twin_graph.snapshots.ledger import Health

if TYPE_CHECKING:
    from twin_graph.agent.ensemble import Ensemble
    from twin_graph.base.counters import Tally
    from twin_graph.config.settings import TrainSettings
    from twin_graph.replay.ring import Replay
    from twin_graph.twin.twin import Twin

HELD_OUT_SIZE = 32


class HeldOut:
    """Measures twins.

    Args:
      train: the discount, and whether rewards are rescaled.
      tally: the largest reward so far.

    Attributes:
      observations: `[HELD_OUT_SIZE, *observation_shape]`; None until they are chosen; until then nothing is measured.
    """

    def __init__(self, train: TrainSettings, tally: Tally) -> None:
        self._discount, self._rescaled = train.discount, train.rescale_r
        self._bonus = -train.munchausen * train.munchausen_lowest
        self._tally = tally
        self.observations: np.ndarray | None = None

    def choose(self, replay: Replay, seed: int) -> None:
        """Draws the observations from a replay that holds something to learn from."""
        self.observations = replay.sample(HELD_OUT_SIZE, [stream(seed, Purpose.HELD_OUT, 0)]).s_tm1

    def health(self, online: Twin) -> Health | None:
        """The size of its Q values, and the limit that no return can exceed."""
        if self.observations is None:
            return None
        q_abs = np.abs(legal_only(online.q_values(self.observations)))
        finite = bool(np.isfinite(q_abs).all())
        largest = self._tally.reward_limit / (self._tally.r_max if self._rescaled else 1) + self._bonus
        return Health(
            q_abs_mean=float(q_abs.mean()) if finite else None,
            q_abs_max=float(q_abs.max()) if finite else None,
            q_limit=largest / (1 - self._discount) if self._discount < 1 and largest else None,
        )

    def apart(self, online: Twin, target: Ensemble) -> dict[str, float]:
        """How far a target is from its online twin; nothing before the observations are chosen."""
        if self.observations is None:
            return {}
        ours, theirs = online.q_values(self.observations), target.q_values(self.observations)
        w, w_target = online.weights(), target.weights()
        return {
            "target/q_distance": q_distance(ours, theirs),
            "target/greedy_agreement": greedy_agreement(ours, theirs),
            "target/weight_distance": math.sqrt(sum(float(np.square(w[n] - w_target[n]).sum()) for n in w)),
        }

    def between(self, first: Twin, second: Twin) -> dict[str, float]:
        """How far two learners are from each other; nothing before the observations are chosen."""
        if self.observations is None:
            return {}
        ours, theirs = (twin.q_values(self.observations) for twin in (first, second))
        return {
            "learners/q_distance": q_distance(ours, theirs),
            "learners/greedy_agreement": greedy_agreement(ours, theirs),
        }

    def activations(self, online: Twin) -> dict[str, np.ndarray]:
        """Of hidden layers on the observations, by the layers' names; nothing before these are chosen."""
        return {} if self.observations is None else online.activations(self.observations)


def q_distance(q: np.ndarray, other_q: np.ndarray) -> float:
    """The mean of |Q - other Q| over the legal actions, of Q values `[B, A]`."""
    return float(np.abs(q - other_q)[~is_illegal(q)].mean())


def greedy_agreement(q: np.ndarray, other_q: np.ndarray) -> float:
    """Share of observations, of Q values `[B, A]`, on which both prefer the same action."""
    return float((q.argmax(axis=1) == other_q.argmax(axis=1)).mean())
