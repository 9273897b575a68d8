"""The probe: observations on which twins are compared, the same for the whole run."""

import math
from collections.abc import Iterator

import numpy as np

from twin_graph.agent.counters import Tally
from twin_graph.agent.learner import Learner
from twin_graph.agent.learners import Learners
from twin_graph.base.streams import Purpose, stream
from twin_graph.config.settings import TrainSettings
from twin_graph.envs.legal import ILLEGAL, legal_only
from twin_graph.replay.ring import Replay
from twin_graph.snapshots.ledger import Health

PROBE_SIZE = 32


class Probe:
    """Measures learners.

    Args:
      train: the discount, and whether rewards are rescaled.
      tally: the largest reward so far.

    Attributes:
      observations: `[PROBE_SIZE, *observation_shape]`; None until they are chosen; until then nothing is measured.
    """

    def __init__(self, train: TrainSettings, tally: Tally) -> None:
        self._discount, self._rescaled = train.discount, train.rescale_r
        self._tally = tally
        self.observations: np.ndarray | None = None

    def choose(self, replay: Replay, seed: int) -> None:
        """Draws the observations from a replay, once it holds something to learn from."""
        if self.observations is None:
            self.observations = replay.sample(PROBE_SIZE, [stream(seed, Purpose.PROBE, 0)]).s_tm1

    def health(self, learner: Learner) -> Health | None:
        """The size of its Q values, and the limit that no return can exceed."""
        if self.observations is None:
            return None
        q_abs = np.abs(legal_only(learner.online.q_values(self.observations)))
        finite = bool(np.isfinite(q_abs).all())
        largest = self._tally.reward_limit / (self._tally.r_max if self._rescaled else 1)
        return Health(
            q_abs_mean=float(q_abs.mean()) if finite else None,
            q_abs_max=float(q_abs.max()) if finite else None,
            q_limit=largest / (1 - self._discount) if self._discount < 1 and largest else None,
        )

    def telemetry(self, learners: Learners) -> dict[str, float]:
        """How far each target is from its online twin, and two learners from each other."""
        if self.observations is None:
            return {}
        first, *others = learners
        measured = _distances(first, self.observations)
        for other in others:
            measured |= {f"{name}/{other.name}": value for name, value in _distances(other, self.observations).items()}
            ours, theirs = (learner.online.q_values(self.observations) for learner in (first, other))
            measured["learners/q_distance"] = q_distance(ours, theirs)
            measured["learners/greedy_agreement"] = greedy_agreement(ours, theirs)
        return measured

    def arrays(self, learners: Learners) -> Iterator[tuple[str, np.ndarray]]:
        """What TensorBoard shows as histograms: trainable variables, and activations on these observations."""
        for name, value in learners.weights().items():
            yield f"variables/{name}", value
        if self.observations is not None:
            for name, value in learners.first.online.activations(self.observations).items():
                yield f"activations/{name}", value


def _distances(learner: Learner, observations: np.ndarray) -> dict[str, float]:
    """How far a target is from its online twin, on these observations."""
    ours, theirs = learner.online.q_values(observations), learner.target.q_values(observations)
    online, target = learner.online.weights(), learner.target.weights()
    return {
        "target/q_distance": q_distance(ours, theirs),
        "target/greedy_agreement": greedy_agreement(ours, theirs),
        "target/weight_distance": math.sqrt(sum(float(np.square(online[n] - target[n]).sum()) for n in online)),
    }


def q_distance(q: np.ndarray, other_q: np.ndarray) -> float:
    """The mean of |Q - other Q| over the legal actions, of Q values `[B, A]`."""
    return float(np.abs(q - other_q)[~(q <= ILLEGAL)].mean())


def greedy_agreement(q: np.ndarray, other_q: np.ndarray) -> float:
    """Share of observations, of Q values `[B, A]`, on which both prefer the same action."""
    return float((q.argmax(axis=1) == other_q.argmax(axis=1)).mean())
