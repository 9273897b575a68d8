"""Losses of Q-learning, as tensors: the mean over the batch of a function of the TD error."""

from typing import Any

from twin_graph.graph_mode import tf

Tensor = Any


def q_learning_target(r_t: Tensor, discount_t: Tensor, q_target_t: Tensor) -> Tensor:
    """`y = r_t + discount_t * max_a q_target_t[a]`, cut off from the gradient.

    Args:
      r_t: rewards (n-step returns), float32 `[B]`.
      discount_t: discounts of the bootstrap value, float32 `[B]`; 0 after a terminal step.
      q_target_t: the target twin's Q values at `s_t`, float32 `[B, A]`.

    Returns:
      float32 `[B]`. Source: Watkins 1989; Mnih et al. 2015, algorithm 1.
    """
    return tf.stop_gradient(r_t + discount_t * tf.reduce_max(q_target_t, axis=1))


def huber(td_error: Tensor, n_actions: int) -> Tensor:  # noqa: ARG001 - losses share one signature
    """Half the square up to 1, linear beyond: the gradient is the TD error clipped to +-1 (Mnih et al. 2015)."""
    size = tf.abs(td_error)
    inside = tf.minimum(size, 1.0)
    return tf.reduce_mean(0.5 * tf.square(inside) + (size - inside))


def mse(td_error: Tensor, n_actions: int) -> Tensor:  # noqa: ARG001
    """The mean squared TD error of the actions taken."""
    return tf.reduce_mean(tf.square(td_error))


def mse_all(td_error: Tensor, n_actions: int) -> Tensor:
    """The squared difference averaged over all actions, the targets of those not taken being their own values.

    What classic code computes by `reduce_mean(squared_difference(targets, q))` or Keras' `fit(..., loss="mse")`
    on a copy of the predictions in which one entry was replaced: the untaken actions add nothing to the sum and
    A - 1 to its divisor, so the loss and its gradient are `mse` divided by the number of actions.
    """
    return tf.reduce_mean(tf.square(td_error)) / n_actions


LOSSES = {"huber": huber, "mse": mse, "mse_all": mse_all}
