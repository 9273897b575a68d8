"""TD errors, losses and their gradients, as tensors. B examples, A actions."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from twin_graph.config import lookup
from twin_graph.errors import ForeignError, foreign_error
from twin_graph.twin import heads
from twin_graph.twin.tf import tf

if TYPE_CHECKING:
    from twin_graph.config.settings import TrainSettings

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


class SoftTarget(NamedTuple):
    """What `munchausen` makes of a target's values.

    Attributes:
      bonus: added to rewards, float32 `[B]`.
      policy_t: its policy at `s_t`, float32 `[B, A]`.
      entropy_t: added to the value of each action at `s_t`, float32 `[B, A]`.
    """

    bonus: Tensor
    policy_t: Tensor
    entropy_t: Tensor

    def value(self, supplied_t: Tensor) -> Tensor:
        """`sum_a policy_t[a] (supplied_t[a] + entropy_t[a])` of values `[B, A]`, or of each quantile `[B, A, N]`."""
        axes = [..., *[None] * (supplied_t.shape.rank - 2)]
        return tf.reduce_sum(self.policy_t[axes] * (supplied_t + self.entropy_t[axes]), axis=1)


def munchausen(q_target_tm1: Tensor, a_tm1: Tensor, q_target_t: Tensor, train: TrainSettings) -> SoftTarget:
    """The log-policy of a target as a bonus, and its entropy (Vieillard et al. 2020, equations 1 and 2).

    With `pi = softmax(q / tau)`, the bonus is `alpha * max(tau * log pi(a_tm1 | s_tm1), lowest)`, and `-tau * log pi`
    is added to the value of each action at `s_t`.

    Args:
      q_target_tm1, q_target_t: Q values of the target at `s_tm1` and `s_t`, float32 `[B, A]`.
      a_tm1: actions taken, int32 `[B]`.
      train: alpha, tau and lowest are `train.munchausen`, `.munchausen_temperature` and `.munchausen_lowest`.
    """
    tau = train.munchausen_temperature

    def scaled_log_policy(q: Tensor) -> Tensor:
        return tau * tf.nn.log_softmax((q - tf.reduce_max(q, axis=1, keepdims=True)) / tau)

    taken = tf.gather(scaled_log_policy(q_target_tm1), a_tm1, batch_dims=1)
    log_t = scaled_log_policy(q_target_t)
    return SoftTarget(train.munchausen * tf.maximum(taken, train.munchausen_lowest), tf.exp(log_t / tau), -log_t)


def huber(td_error: Tensor, n_actions: int) -> Tensor:  # noqa: ARG001 - losses share one signature
    """Half the square up to 1, linear beyond: the gradient is the TD error clipped to +-1 (Mnih et al. 2015)."""
    size = tf.abs(td_error)
    inside = tf.minimum(size, 1.0)
    return 0.5 * tf.square(inside) + (size - inside)


def mse(td_error: Tensor, n_actions: int) -> Tensor:  # noqa: ARG001
    """The squared TD error of the action taken."""
    return tf.square(td_error)


def mse_all(td_error: Tensor, n_actions: int) -> Tensor:
    """The squared difference averaged over all actions; actions not taken have their own values as targets.

    What classic code computes by `reduce_mean(squared_difference(targets, q))` or Keras' `fit(..., loss="mse")`
    on a copy of the predictions in which one entry was replaced: the untaken actions add nothing to the sum and
    A - 1 to its divisor, so the loss and its gradient are `mse` divided by the number of actions.
    """
    return tf.square(td_error) / n_actions


def dqn3_gradients(
    q_tm1: Tensor, a_tm1: Tensor, td_error: Tensor, weight: Tensor, variables: list[Tensor], train: TrainSettings
) -> list[Tensor]:
    """What DQN 3.0 passes to its optimizer, negated: the TD errors, propagated back from the output layer.

    Its author's Lua code has no loss. `getQUpdate` clips the TD errors, puts each at its action among zeros, and
    `network:backward` takes that for the gradient of the output. There it is summed over the minibatch, where other
    losses are averaged: with a batch of B these gradients are B times those of `huber`, if `train.clip_delta` is 1.

    Args:
      q_tm1: Q values at `s_tm1`, float32 `[B, A]`.
      a_tm1: actions taken, int32 `[B]`.
      td_error: target minus Q of the action taken, float32 `[B]`.
      weight: of each example, float32 `[B]`.
      variables: differentiate with respect to these.
      train: TD errors are clipped to plus and minus `train.clip_delta`; None for no clipping.

    Returns:
      One gradient per variable, to be descended.
    """
    if train.clip_delta is not None:
        td_error = tf.clip_by_value(td_error, -train.clip_delta, train.clip_delta)
    targets = tf.one_hot(a_tm1, int(q_tm1.shape[1])) * (weight * td_error)[:, None]
    gradients: list[Tensor] = tf.gradients(q_tm1, variables, grad_ys=-tf.stop_gradient(targets))
    return gradients


class Loss(NamedTuple):
    """What is minimized.

    Attributes:
      of_examples: TD errors, float32 `[B]`, and A, to the loss of each example, float32 `[B]`. Their weighted mean over
        the minibatch is what is shown, and minimized unless there are `gradients`.
      gradients: in place of TensorFlow's own; takes what `dqn3_gradients` takes.
    """

    of_examples: Callable[[Tensor, int], Tensor]
    gradients: Callable[[Tensor, Tensor, Tensor, Tensor, list[Tensor], TrainSettings], list[Tensor]] | None = None


LOSSES = {
    "huber": Loss(huber),
    "mse": Loss(mse),
    "mse_all": Loss(mse_all),
    "dqn3": Loss(huber, dqn3_gradients),
    "hl_gauss": Loss(huber),  # of a distribution, whose loss is that of its head
}


def find_loss(name: str) -> Loss:
    """The loss of this name, or your own as `module:function`: a function like `huber`.

    Raises:
      UsageError: there is none.
      ForeignError: when it is used and fails.
    """
    found = lookup.find("loss", name, LOSSES)
    if isinstance(found, Loss):
        return found

    def of_examples(td_error: Tensor, n_actions: int) -> Tensor:
        return _own_loss(name, lambda: found(td_error, n_actions), td_error.shape)

    return Loss(of_examples)


class Learning(NamedTuple):
    """How a twin learns from its target.

    Attributes:
      loss: its name.
      train: settings.
      head: what the network's outputs mean.
    """

    loss: str
    train: TrainSettings
    head: heads.Head

    def gradients(
        self, fed: Mapping[str, Tensor], outputs_tm1: Tensor, outputs_t: Tensor | None, variables: Sequence[Tensor]
    ) -> tuple[Tensor, Tensor, list[Tensor]]:
        """From what a network says to gradients.

        Args:
          fed: `a_tm1`, `r_t`, `discount_t`, `weight`, and of a target `q_target_t` and `q_target_tm1`; see `Model`.
          outputs_tm1: of the network at `s_tm1`, float32 `[B, A]`, or `[B, A, N]` of a distribution.
          outputs_t: of the same twin at `s_t`; None if nothing needs them.
          variables: differentiate with respect to these.

        Returns:
          TD errors, float32 `[B]`; the loss, a scalar; a gradient for each variable.
        """
        if isinstance(self.head, heads.Scalar):
            return self._of_values(fed, outputs_tm1, outputs_t, variables)
        q_own_t = self.head.q_values(outputs_t) if outputs_t is not None else None
        supplied_t = fed["q_target_t"] if self.train.target_q else self.head.supplied(outputs_t)
        q_t, r_t = self.head.expectation(supplied_t), fed["r_t"]
        if self.train.munchausen:
            soft = munchausen(fed["q_target_tm1"], fed["a_tm1"], q_t, self.train)
            r_t += soft.bonus
            value_t, best_t = soft.value(q_t), soft.value(supplied_t)
        else:
            best = tf.argmax(q_own_t if self.train.double else q_t, axis=1)
            value_t, best_t = (tf.gather(of_actions, best, batch_dims=1) for of_actions in (q_t, supplied_t))
        if self.loss == "hl_gauss" and isinstance(self.head, heads.Categorical):
            target = self.head.bell_curve(r_t + fed["discount_t"] * value_t, self.train.gauss_sigma)
        else:
            target = self.head.target(r_t, fed["discount_t"], best_t)
        target = tf.stop_gradient(target)
        taken = tf.one_hot(fed["a_tm1"], int(outputs_tm1.shape[1]))
        taken_tm1 = tf.reduce_sum(outputs_tm1 * taken[:, :, None], axis=1)
        of_examples = self._loss(fed)(taken_tm1, target)
        td_error = tf.identity(of_examples, name="td_error")
        loss = tf.reduce_mean(fed["weight"] * of_examples, name="loss")
        return td_error, loss, tf.gradients(loss / self.train.accumulate, variables)

    def _loss(self, fed: Mapping[str, Tensor]) -> Callable[[Tensor, Tensor], Tensor]:
        """Each example's loss, float32 `[B]`, from what there is for the action taken and its target, `[B, N]` each."""
        if self.loss not in LOSSES:
            return _own_loss_of_distribution(self.loss)
        loss = heads.LOSSES[type(self.head)]  # `huber` and `hl_gauss` are all that the settings let pass
        if isinstance(self.head, heads.Implicit):
            levels = self.head.levels(self.head.samples.learning, fed["noise_key"], tf.shape(fed["a_tm1"])[0])
            return functools.partial(heads.quantile_huber, levels=levels)
        return loss

    def _of_values(
        self, fed: Mapping[str, Tensor], q_tm1: Tensor, q_own_t: Tensor | None, variables: Sequence[Tensor]
    ) -> tuple[Tensor, Tensor, list[Tensor]]:
        train, loss_function = self.train, find_loss(self.loss)
        n_actions = int(q_tm1.shape[1])
        q_bootstrap_t = fed["q_target_t"] if train.target_q else q_own_t
        if train.minto:
            q_bootstrap_t = tf.minimum(q_bootstrap_t, q_own_t)
        if train.munchausen:
            soft = munchausen(fed["q_target_tm1"], fed["a_tm1"], q_bootstrap_t, train)
            y = tf.stop_gradient(fed["r_t"] + soft.bonus + fed["discount_t"] * soft.value(q_bootstrap_t))
        else:
            y = q_learning_target(fed["r_t"], fed["discount_t"], q_bootstrap_t, q_own_t if train.double else None)
        taken = tf.one_hot(fed["a_tm1"], n_actions)
        td_error = tf.subtract(y, tf.reduce_sum(q_tm1 * taken, axis=1), name="td_error")
        loss = tf.reduce_mean(fed["weight"] * loss_function.of_examples(td_error, n_actions), name="loss")
        if loss_function.gradients:
            gradients = loss_function.gradients(q_tm1, fed["a_tm1"], td_error, fed["weight"], list(variables), train)
        else:
            gradients = tf.gradients(loss / train.accumulate, variables)
        return td_error, loss, gradients


def _own_loss_of_distribution(name: str) -> Callable[[Tensor, Tensor], Tensor]:
    found: Callable[..., Any] = lookup.find("loss", name, {})

    def of_examples(outputs_tm1: Tensor, target: Tensor) -> Tensor:
        return _own_loss(name, lambda: found(outputs_tm1, target), outputs_tm1.shape[:1])

    return of_examples


def _own_loss(name: str, compute: Callable[[], Any], shape: Any) -> Tensor:
    """What a user's own loss returns, of each example. Raises `ForeignError`."""
    try:
        loss = tf.convert_to_tensor(compute())
    except Exception as error:
        raise foreign_error(f"loss={name}", error) from error
    if not loss.shape.is_compatible_with(shape):
        raise ForeignError(f"loss={name} must return each example's loss, of shape {shape}, not {loss.shape}")
    return loss
