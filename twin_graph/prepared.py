"""Minibatches with their target values, ready to be trained on."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from twin_graph.model import Model
from twin_graph.replay import Batch
from twin_graph.settings import TrainSettings


class Prepared(NamedTuple):
    """Updates that can be made without a look at replay or target.

    Attributes:
      updates: their numbers, from 0.
      per_minibatch: updates that learn from one minibatch.
      batch: their minibatches, one after the other.
      snapshots: what each learner's target held.
      q_target_t: Q values of the target of each update's learner at `s_t` of its minibatch, float32
        `[updates * examples, A]`; None without `train.target_q`.
    """

    updates: range
    per_minibatch: int
    batch: Batch
    snapshots: Sequence[tuple[str, ...]]
    q_target_t: np.ndarray | None

    def rows(self, update: int) -> slice:
        """Where the minibatch of one of these updates is in `batch`."""
        number = update // self.per_minibatch - self.updates.start // self.per_minibatch
        examples = len(self.batch.step) * self.per_minibatch // len(self.updates)
        return slice(number * examples, (number + 1) * examples)

    def of(self, update: int) -> tuple[Batch, np.ndarray | None]:
        """The minibatch of one of these updates, and its target values."""
        rows = self.rows(update)
        batch = Batch(*(values[rows] for values in self.batch))
        if self.q_target_t is None:
            return batch, None
        examples = rows.stop - rows.start
        first = (update - self.updates.start) * examples
        return batch, self.q_target_t[first : first + examples]


def feeds(
    model: Model, train: TrainSettings, batch: Batch, q_target_t: np.ndarray | None
) -> list[dict[Any, np.ndarray]]:
    """What to feed for one update: a mapping for each of the `train.accumulate` parts whose gradients it adds up.

    Args:
      model: of the twin that trains.
      train: settings.
      batch: the update's transitions, `train.examples` of them.
      q_target_t: the target's Q values at their `s_t`, float32 `[examples, A]`; None without `train.target_q`.
    """
    fed = []
    for first in range(0, train.examples, train.batch_size):
        rows = slice(first, first + train.batch_size)
        feed = {
            model.s_tm1: batch.s_tm1[rows],
            model.a_tm1: batch.a_tm1[rows],
            model.r_t: batch.r_t[rows],
            model.discount_t: batch.discount_t[rows],
            model.weight: batch.weight[rows],
        }
        if q_target_t is not None:
            feed[model.q_target_t] = q_target_t[rows]
        if train.double or not train.target_q:
            feed[model.s_t] = batch.s_t[rows]
        fed.append(feed)
    return fed
