"""Which steps of the replay an update learns from: any, preferably those with large TD errors, or those of one rollout.

A sampler is told of every step that is added, and of its samples' TD errors. Its methods:

    added()                       a vector step was added to the replay
    sample(minibatches, into)     the minibatches of these numbers, one after the other, in one Batch
    learnt(batch, td_error)       their TD errors, float32 `[B]`
    state(), restore(arrays)      what a resume point keeps of it
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from twin_graph.base.streams import Purpose, Streams
from twin_graph.errors import UsageError
from twin_graph.replay.sum_tree import SumTree

if TYPE_CHECKING:
    from twin_graph.config.settings import ReplaySettings, Settings
    from twin_graph.replay.ring import Batch, Observations, Replay

PRIORITIES, LARGEST = "priorities", "largest_priority"


class Uniform:
    """All steps equally likely.

    Args:
      replay: whose steps.
      settings: of the run.
    """

    def __init__(self, replay: Replay, settings: Settings) -> None:
        self._replay = replay
        self._streams = Streams(settings.seed, Purpose.SAMPLE)
        self._examples = settings.train.examples

    def added(self) -> None:
        pass

    def sample(self, minibatches: range, into: Observations | None = None) -> Batch:
        """Raises ValueError if nothing can be sampled yet."""
        randoms = (self._streams.at(number) for number in minibatches)
        return self._replay.sample(self._examples, randoms, into)

    def learnt(self, batch: Batch, td_error: np.ndarray) -> None:
        pass

    def state(self) -> dict[str, np.ndarray]:
        return {}

    def restore(self, arrays: Mapping[str, np.ndarray]) -> None:
        pass


class Rollouts(Uniform):
    """The steps since the last update, each once: n-step Q-learning without replay (Mnih et al. 2016, algorithm S2).

    Returns reach to the end of the rollout, or of the episode, and no further.
    """

    def __init__(self, replay: Replay, settings: Settings) -> None:
        super().__init__(replay, settings)
        self._environments = replay.environments
        self._start = settings.train.start_steps // self._environments
        self._length = settings.train.rollout_steps

    def sample(self, minibatches: range, into: Observations | None = None) -> Batch:
        first, stop = (self._start + number * self._length for number in (minibatches.start, minibatches.stop))
        if first < self._replay.steps().start:
            raise UsageError(
                "replay.capacity_steps is too small: a rollout's frames were overwritten before its update"
            )
        step = np.repeat(np.arange(first, stop), self._environments)
        environment = np.tile(np.arange(self._environments), stop - first)
        end = step - (step - first) % self._length + self._length
        return self._replay.gather(step, environment, into, end)


class Prioritized(Uniform):
    """Steps in proportion to |TD error| ** priority_exponent, with importance weights (Schaul et al. 2016).

    As DQN Zoo computes it: a new step has the largest priority seen; a small share is drawn uniformly, and all of them
    while every TD error is 0; the weights of a minibatch are divided by their largest.
    """

    def __init__(self, replay: Replay, settings: Settings) -> None:
        super().__init__(replay, settings)
        self._settings: ReplaySettings = settings.replay
        self._updates_of_minibatch = settings.updates_per_minibatch
        self._environments = replay.environments
        self._tree = SumTree(replay.length * self._environments)
        self._largest = 1.0
        self._known = range(0)

    def added(self) -> None:
        steps = self._replay.steps()
        gone = range(self._known.start, min(steps.start, self._known.stop))
        new = range(max(steps.start, self._known.stop), steps.stop)
        self._set([*gone, *new], [0.0] * len(gone) + [self._largest**self._settings.priority_exponent] * len(new))
        self._known = steps

    def sample(self, minibatches: range, into: Observations | None = None) -> Batch:
        every = len(self._known) * self._environments
        if not every:
            raise ValueError("no transition of n steps is complete yet")
        total = self._tree.total
        uniform_share = self._settings.uniform_share if total else 1.0
        drawn, weights = [], []
        for number in minibatches:
            random = self._streams.at(number)
            anywhere = self._known.start * self._environments + random.integers(0, every, size=self._examples)
            leaf = np.where(
                random.random(self._examples) < uniform_share,
                anywhere % (self._replay.length * self._environments),
                self._tree.find(random.random(self._examples) * total),
            )
            probability = (1 - uniform_share) * self._tree.get(leaf) / (total or 1.0) + uniform_share / every
            weight = (1 / every / probability) ** self._settings.importance_at(number * self._updates_of_minibatch)
            drawn.append(leaf)
            weights.append(weight / weight.max())
        slot, environment = np.divmod(np.concatenate(drawn), self._environments)
        step = self._known.start + (slot - self._known.start) % self._replay.length
        batch = self._replay.gather(step, environment, into)
        return batch._replace(weight=np.concatenate(weights).astype(np.float32))

    def learnt(self, batch: Batch, td_error: np.ndarray) -> None:
        priority = np.abs(td_error.astype(np.float64))
        self._largest = max(self._largest, float(priority.max()))
        here = batch.step >= self._known.start  # the ring may have moved on since
        leaf = batch.step[here] % self._replay.length * self._environments + batch.environment[here]
        self._tree.set(leaf, priority[here] ** self._settings.priority_exponent)

    def state(self) -> dict[str, np.ndarray]:
        return {PRIORITIES: self._tree.get(self._known_leaves()), LARGEST: np.array([self._largest])}

    def restore(self, arrays: Mapping[str, np.ndarray]) -> None:
        steps, stored = self._replay.steps(), arrays[PRIORITIES]
        # With another n-step than when they were stored, fewer or more steps are complete.
        self._known = range(steps.start, min(steps.stop, steps.start + len(stored)))
        self._tree.set(self._known_leaves().ravel(), stored[: len(self._known)].ravel())
        self._largest = float(arrays[LARGEST][0])
        self.added()

    def _set(self, steps: list[int], values: list[float]) -> None:
        self._tree.set(self._leaves(np.array(steps, np.int64)).ravel(), np.repeat(values, self._environments))

    def _known_leaves(self) -> np.ndarray:
        return self._leaves(np.arange(self._known.start, self._known.stop))

    def _leaves(self, step: np.ndarray) -> np.ndarray:
        """Leaves of these steps `[N]`, of all environments, `[N, E]`."""
        return (step % self._replay.length * self._environments)[:, None] + np.arange(self._environments)


def of(replay: Replay, settings: Settings) -> Uniform:
    """The sampler for these settings. Raises `UsageError` if the replay has too few environments for it."""
    if settings.train.rollout_steps:
        if replay.environments != settings.env.count:
            raise UsageError(
                f"train.rollout_steps needs env.count={settings.env.count} environments; the agent has "
                f"{replay.environments}"
            )
        return Rollouts(replay, settings)
    return (Prioritized if settings.replay.prioritized else Uniform)(replay, settings)
