"""A block: many updates in one `session.run`, for networks that are faster to compute than TensorFlow is to call.

The loop over minibatches is in the graph, and XLA compiles it into one program. Each update reads and assigns the
variables as it would alone, so a block of K equals K blocks of one, bit for bit.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from twin_graph.twin.tf import function, tf

Tensor = Any


class Block(NamedTuple):
    """The tensors of K updates of B examples.

    Attributes:
      updates: K.
      count: placeholder int32 scalar, how many of them to make.
      examples: placeholders `[K, B, ...]`, or `[K, ...]` of what is fed once an update, by their names in `Model`.
      fetches: the loss `[K]`, the mean over the batch of max_a Q `[K]`, TD errors `[K, B]`; zeros beyond `count`.
    """

    updates: int
    count: Tensor
    examples: Mapping[str, Tensor]
    fetches: tuple[Tensor, Tensor, Tensor]

    def feed(self, values: Mapping[str, np.ndarray]) -> dict[Tensor, Any]:
        """What to feed so that `values`, `[N * B, ...]` or `[N, ...]` of N updates, up to K, are learnt from."""
        count = len(values["dropout_seed"])
        fed: dict[Tensor, Any] = {self.count: count}
        for name, tensor in self.examples.items():
            value = values[name].reshape(count, *tensor.shape[1:])
            if count < self.updates:  # XLA compiles for one shape
                value = np.concatenate([value, np.zeros((self.updates - count, *value.shape[1:]), value.dtype)])
            fed[tensor] = value
        return fed


def build(
    updates: int, batch: int, examples: Mapping[str, Tensor], learn: Callable[[Mapping[str, Tensor]], tuple[Any, ...]]
) -> Block:
    """Adds a block to the current default graph.

    Args:
      updates: K.
      batch: B.
      examples: placeholders of one update by their names.
      learn: adds one update's ops: returns the op that makes it, loss, q_mean and TD errors. All variables that it
        uses, including the optimizer's, must exist already.
    """
    shapes = {name: [batch if n is None else n for n in x.shape.as_list()] for name, x in examples.items()}
    stacked = {name: tf.placeholder(x.dtype, [updates, *shapes[name]], f"block/{name}") for name, x in examples.items()}
    count = tf.placeholder(tf.int32, [], "block/count")

    def loop(count: Tensor, *values: Tensor) -> Any:
        def body(i: Tensor, *made: Tensor) -> tuple[Tensor, ...]:
            op, *news = learn(dict(zip(stacked, (value[i] for value in values), strict=True)))
            with tf.control_dependencies([op]):
                kept = [
                    tf.tensor_scatter_nd_update(all_, [[i]], new[None]) for all_, new in zip(made, news, strict=True)
                ]
            return i + 1, *kept

        zeros = tf.zeros([updates]), tf.zeros([updates]), tf.zeros([updates, batch])
        return tf.while_loop(lambda i, *_: i < count, body, (tf.constant(0), *zeros), parallel_iterations=1)[1:]

    compiled = function(loop, jit_compile=True, autograph=False)
    return Block(updates, count, stacked, tuple(compiled(count, *stacked.values())))
