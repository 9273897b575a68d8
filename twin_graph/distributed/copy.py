"""A worker's copy of the shared variables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from twin_graph.errors import DivergedError

if TYPE_CHECKING:
    from twin_graph.distributed.shared import Shared
    from twin_graph.twin.twin import Twin


class Applied(NamedTuple):
    """An update: its number in the run, from 0; how many came between the pull and it; its loss and so on."""

    update: int
    staleness: int
    loss: float
    q_mean: float
    td_error: np.ndarray


class Copy:
    """Holds the shared trainables as they were at the last `pull`, and sends gradients by them.

    Args:
      shared: the servers'.
      twin: of this worker, in whose graph gradients are accumulated; no optimizer step is made in it.

    Attributes:
      version: how many updates, of all workers, the copy contains.
    """

    def __init__(self, shared: Shared, twin: Twin) -> None:
        self.twin = twin
        self.version = 0
        self._shared = shared
        self._names = [variable.op.name for variable in twin.model.trainables]

    def pull(self) -> None:
        """Renews the copy."""
        self.version, trainables = self._shared.pull_trainables()
        self.twin.load(trainables)

    def apply(self, microbatches: Sequence[Mapping[Any, Any]], learning_rate: float) -> Applied:
        """Accumulates the gradients of these microbatches locally and applies their sum to the shared variables.

        Raises:
          DivergedError: the loss is NaN or infinite; nothing was applied.
          TwinGraphError: a chief has begun another attempt; nothing was applied.
        """
        model = self.twin.model
        told = model.loss, model.q_mean, model.td_error
        found = []
        for microbatch in microbatches[:-1]:
            *each, _ = self.twin.run((*told, model.accumulate_op), microbatch)
            found.append(each)
        wanted = *told, model.clear_op, *model.gradients
        loss, q_mean, td_error, _, *gradients = self.twin.run(wanted, microbatches[-1])
        losses, q_means, td_errors = zip(*found, (loss, q_mean, td_error), strict=True)
        if not np.isfinite(losses).all():
            raise DivergedError(
                f"the loss is {np.mean(losses)} after update {self.version}; try a smaller train.learning_rate"
            )
        update = self._shared.apply(dict(zip(self._names, gradients, strict=True)), learning_rate)
        means = float(np.mean(losses)), float(np.mean(q_means))
        return Applied(update, update - self.version, *means, np.concatenate(td_errors))
