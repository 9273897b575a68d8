"""True scores: whole games, unclipped, in environments of their own."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from twin_graph import envs
from twin_graph.config import Settings
from twin_graph.streams import Purpose, environment_seeds, stream

PARALLEL_GAMES = 10
RESAMPLES = 10_000


class Evaluation(NamedTuple):
    """Scores of one snapshot.

    Attributes:
      returns: the undiscounted, unclipped sum of rewards of each episode.
      seeds: of the environments; the k-th plays episodes k, k + len(seeds), ...
      protocol: what the score depends on.
    """

    returns: list[float]
    seeds: list[int]
    protocol: dict[str, Any]

    @property
    def mean(self) -> float:
        return float(np.mean(self.returns))

    @property
    def interval(self) -> tuple[float, float]:
        """95% percentile bootstrap interval of the mean (Efron 1979), over episodes."""
        random = stream(0, Purpose.BOOTSTRAP, 0)
        draws = random.choice(self.returns, size=(RESAMPLES, len(self.returns))).mean(axis=1)
        low, high = np.percentile(draws, [2.5, 97.5])
        return float(low), float(high)

    def summary(self) -> dict[str, Any]:
        """For `evaluations.jsonl` and `--json`."""
        low, high = self.interval
        return {
            "mean": self.mean,
            "interval_95": [low, high],
            "episodes": len(self.returns),
            "returns": self.returns,
            "seeds": self.seeds,
            "protocol": self.protocol,
        }


def evaluate(
    q_values: Callable[[np.ndarray], np.ndarray],
    settings: Settings,
    *,
    episodes: int,
    seed: int,
    counter: int,
    progress: Callable[[int], None] | None = None,
) -> Evaluation:
    """Plays `episodes` whole games greedily but for `evaluate.epsilon`.

    Every environment plays a number of games fixed beforehand: taking the first that finish would favour short ones.

    Args:
      q_values: observations `[B, ...]` to Q values `[B, A]`.
      settings: of the run.
      episodes: games to play.
      seed, counter: give the environments' seeds and the random actions; use a pair once for fresh ones.
      progress: told the number of finished games whenever it grows.
    """
    count = min(episodes, PARALLEL_GAMES)
    left = np.array([len(range(e, episodes, count)) for e in range(count)])
    returns: list[list[float]] = [[] for _ in range(count)]
    score = np.zeros(count)
    epsilon = settings.evaluate.epsilon
    seeds = environment_seeds(seed, Purpose.EVALUATION_ENVIRONMENT, counter, count)
    random = stream(seed, Purpose.EVALUATION_ACT, counter)

    env = envs.make(settings.env, count=count, evaluation=True)
    try:
        s_tm1 = env.reset(seeds)
        while left.any():
            explore = random.random(count) < epsilon
            actions = np.where(explore, random.integers(0, env.n_actions, size=count), q_values(s_tm1).argmax(axis=1))
            step = env.step(actions)
            score += step.score_t
            for e in np.flatnonzero(step.last_t):
                if left[e]:
                    returns[e].append(float(score[e]))
                    left[e] -= 1
                    if progress:
                        progress(episodes - int(left.sum()))
                score[e] = 0
            s_tm1 = step.s_next
        return Evaluation(
            returns=[returns[k % count][k // count] for k in range(episodes)],
            seeds=[int(s) for s in seeds],
            protocol={**env.protocol, "epsilon": epsilon},
        )
    finally:
        env.close()
