"""Minibatches with their target values, ready to be trained on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from twin_graph.config.settings import TrainSettings
    from twin_graph.replay.ring import Batch
    from twin_graph.twin.model import Model


class Prepared(NamedTuple):
    """Updates that can be made without access to replay or target.

    Attributes:
      updates: their numbers, from 0.
      per_minibatch: updates that learn from one minibatch.
      batch: their minibatches, one after the other.
      snapshots: the snapshots in each learner's target.
      q_target_t: Q values of the target of each update's learner at `s_t` of its minibatch, float32
        `[updates * examples, A]`; None without `train.target_q`.
    """

    updates: range
    per_minibatch: int
    batch: Batch
    snapshots: Sequence[tuple[str, ...]]
    q_target_t: np.ndarray | None

    def values(self, updates: Sequence[int]) -> dict[str, np.ndarray]:
        """The inputs of these updates, one after the other, by the names in `Model.fed`: `[N * examples, ...]`."""
        numbers = self.minibatches(updates)
        values = {name: self.rows(array, numbers) for name, array in self.batch._asdict().items()}
        if self.q_target_t is not None:
            values["q_target_t"] = self.rows(self.q_target_t, [update - self.updates.start for update in updates])
        return values

    def minibatches(self, updates: Sequence[int]) -> list[int]:
        """Which of the minibatches in `batch`, from 0, each of these updates learns from."""
        return [update // self.per_minibatch - self.updates.start // self.per_minibatch for update in updates]

    @property
    def examples(self) -> int:
        """Transitions of one minibatch."""
        return len(self.batch.step) * self.per_minibatch // len(self.updates)

    def rows(self, array: np.ndarray, numbers: list[int]) -> np.ndarray:
        """The rows of minibatches `numbers` (from 0), `[M * examples, ...]`; a view if the numbers are consecutive."""
        first, size = numbers[0], self.examples
        if numbers == list(range(first, first + len(numbers))):
            return array[first * size : (first + len(numbers)) * size]
        rest = array.shape[1:]
        return array.reshape(-1, size, *rest)[numbers].reshape(-1, *rest)


def feeds(model: Model, train: TrainSettings, values: Mapping[str, np.ndarray]) -> list[dict[Any, np.ndarray]]:
    """What to feed for one update: a mapping for each of the `train.accumulate` parts whose gradients are added up.

    Args:
      model: of the twin that trains.
      train: settings.
      values: `[train.examples, ...]`, by the names in `model.fed`.
    """
    parts = (slice(first, first + train.batch_size) for first in range(0, train.examples, train.batch_size))
    return [{tensor: values[name][rows] for name, tensor in model.fed.items()} for rows in parts]
