"""TD errors, losses and their gradients, as tensors. B examples, A actions."""

from typing import Any

from twin_graph.graph_mode import tf

Tensor = Any


def q_learning_target(
    r_t: Tensor, discount_t: Tensor, q_target_t: Tensor, q_selector_t: Tensor | None = None
) -> Tensor:
    """`y = r_t + discount_t * q_target_t[argmax_a q_selector_t[a]]`, cut off from the gradient.

    Args:
      r_t: rewards (n-step returns), float32 `[B]`.
      discount_t: discounts of the bootstrap value, float32 `[B]`; 0 after a terminal step.
      q_target_t: Q values at `s_t` by whoever supplies bootstrap values, float32 `[B, A]`.
      q_selector_t: Q values that choose the action, float32 `[B, A]`: the online twin's for double Q-learning (van
        Hasselt et al. 2016). By default those of `q_target_t`, whose maximum it then is (Watkins 1989; Mnih et al.
        2015, algorithm 1).

    Returns:
      float32 `[B]`.
    """
    if q_selector_t is None:
        bootstrap = tf.reduce_max(q_target_t, axis=1)
    else:
        bootstrap = tf.gather(q_target_t, tf.argmax(q_selector_t, axis=1), batch_dims=1)
    return tf.stop_gradient(r_t + discount_t * bootstrap)


def huber(td_error: Tensor, n_actions: int) -> Tensor:  # noqa: ARG001 - losses share one signature
    """Half the square up to 1, linear beyond: the gradient is the TD error clipped to +-1 (Mnih et al. 2015)."""
    size = tf.abs(td_error)
    inside = tf.minimum(size, 1.0)
    return 0.5 * tf.square(inside) + (size - inside)


def mse(td_error: Tensor, n_actions: int) -> Tensor:  # noqa: ARG001
    """The squared TD error of the action taken."""
    return tf.square(td_error)


def mse_all(td_error: Tensor, n_actions: int) -> Tensor:
    """The squared difference averaged over all actions, the targets of those not taken being their own values.

    What classic code computes by `reduce_mean(squared_difference(targets, q))` or Keras' `fit(..., loss="mse")`
    on a copy of the predictions in which one entry was replaced: the untaken actions add nothing to the sum and
    A - 1 to its divisor, so the loss and its gradient are `mse` divided by the number of actions.
    """
    return tf.square(td_error) / n_actions


#: Losses of single examples, float32 `[B]`; their weighted mean over the minibatch is what is minimized.
LOSSES = {"huber": huber, "mse": mse, "mse_all": mse_all}


def dqn3_gradients(
    q_tm1: Tensor, a_tm1: Tensor, td_error: Tensor, weight: Tensor, variables: list[Tensor], clip_delta: float | None
) -> list[Tensor]:
    """What DQN 3.0 hands its optimizer, negated: the TD errors, propagated back from the output layer.

    Its author's Lua code has no loss. `getQUpdate` clips the TD errors, puts each at its action among zeros, and
    `network:backward` takes that for the gradient of the output. There it is summed over the minibatch, where `LOSSES`
    are averaged: with a batch of B these gradients are B times those of `huber`, if `clip_delta` is 1.

    Args:
      q_tm1: Q values at `s_tm1`, float32 `[B, A]`.
      a_tm1: actions taken, int32 `[B]`.
      td_error: target minus Q of the action taken, float32 `[B]`.
      weight: of each example, float32 `[B]`.
      variables: by which is differentiated.
      clip_delta: TD errors are clipped to plus and minus this; None for not.

    Returns:
      One gradient a variable, to be descended.
    """
    if clip_delta is not None:
        td_error = tf.clip_by_value(td_error, -clip_delta, clip_delta)
    targets = tf.one_hot(a_tm1, int(q_tm1.shape[1])) * (weight * td_error)[:, None]
    gradients: list[Tensor] = tf.gradients(q_tm1, variables, grad_ys=-tf.stop_gradient(targets))
    return gradients
