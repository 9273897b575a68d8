"""What happens to gradients: they are clipped, accumulated and applied, all in the graph."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from twin_graph.config import lookup
from twin_graph.errors import foreign_error
from twin_graph.twin.tf import tf

if TYPE_CHECKING:
    from twin_graph.config.settings import TrainSettings

Tensor = Any
#: Returns the learning rate, a scalar tensor. All optimizers of `tf.train` take a callable and call it when they are
#: applied.
Rate = Callable[[], Tensor]

# DQN 3.0's own numbers (NeuralQLearner.lua).
_DQN3_DECAY, _DQN3_MINIMUM = 0.95, 0.01


class Dqn3RmsProp(tf.train.Optimizer):  # type: ignore[misc]
    """The optimizer of DQN 3.0: centered RMSProp, both of whose moments start at zero.

    TensorFlow's `RMSPropOptimizer(centered=True)` starts its mean square at one, which makes the first steps several
    times smaller:

        g  <- 0.95 g  + 0.05 dw
        g2 <- 0.95 g2 + 0.05 dw^2
        w  <- w - learning_rate * dw / sqrt(g2 - g^2 + 0.01)
    """

    def __init__(self, learning_rate: Rate) -> None:
        super().__init__(use_locking=False, name="Dqn3RmsProp")
        self._learning_rate = learning_rate

    def _create_slots(self, variables: Sequence[Any]) -> None:
        for variable in variables:
            self._zeros_slot(variable, "g", self._name)
            self._zeros_slot(variable, "g2", self._name)

    def _resource_apply_dense(self, gradient: Tensor, variable: Any) -> Any:
        g, g2 = self.get_slot(variable, "g"), self.get_slot(variable, "g2")
        mean = g.assign(_DQN3_DECAY * g + (1 - _DQN3_DECAY) * gradient, read_value=False)
        square = g2.assign(_DQN3_DECAY * g2 + (1 - _DQN3_DECAY) * tf.square(gradient), read_value=False)
        with tf.control_dependencies([mean, square]):
            # Never below zero, but for rounding, and for two workers that write their means at once.
            spread = tf.maximum(g2.read_value() - tf.square(g.read_value()), 0)
            root = tf.sqrt(spread + _DQN3_MINIMUM)
            return variable.assign_sub(self._learning_rate() * gradient / root, read_value=False)


class CenteredRmsProp(tf.train.Optimizer):  # type: ignore[misc]
    """Centered RMSProp as in PyTorch; the networks of MinAtar's paper were trained by it, without momentum.

    TensorFlow's starts its mean square at one, and has epsilon inside the root:

        g  <- decay g  + (1 - decay) dw
        g2 <- decay g2 + (1 - decay) dw^2
        m  <- momentum m + dw / (sqrt(g2 - g^2) + epsilon)
        w  <- w - learning_rate * m
    """

    def __init__(self, learning_rate: Rate, train: TrainSettings) -> None:
        super().__init__(use_locking=False, name="CenteredRmsProp")
        self._learning_rate = learning_rate
        self._train = train

    def _create_slots(self, variables: Sequence[Any]) -> None:
        slots = ("g", "g2", "momentum") if self._train.rmsprop_momentum else ("g", "g2")
        for variable in variables:
            for slot in slots:
                self._zeros_slot(variable, slot, self._name)

    def _resource_apply_dense(self, gradient: Tensor, variable: Any) -> Any:
        g, g2 = self.get_slot(variable, "g"), self.get_slot(variable, "g2")
        decay, momentum = self._train.rmsprop_decay, self._train.rmsprop_momentum
        mean = decay * g.read_value() + (1 - decay) * gradient
        square = decay * g2.read_value() + (1 - decay) * tf.square(gradient)
        spread = tf.maximum(square - tf.square(mean), 0)  # never below zero, but for rounding
        step = gradient / (tf.sqrt(spread) + self._train.rmsprop_epsilon)
        kept = []
        if momentum:
            m = self.get_slot(variable, "momentum")
            step = momentum * m.read_value() + step
            kept = [m.assign(step, read_value=False)]
        return tf.group(
            g.assign(mean, read_value=False),
            g2.assign(square, read_value=False),
            *kept,
            variable.assign_sub(self._learning_rate() * step, read_value=False),
        )


#: By name, what makes an optimizer of a learning rate and the settings of training.
OPTIMIZERS: dict[str, Callable[[Rate, TrainSettings], Any]] = {
    "adam": lambda rate, train: tf.train.AdamOptimizer(rate, epsilon=train.adam_epsilon),
    "rmsprop": lambda rate, train: tf.train.RMSPropOptimizer(
        rate, decay=train.rmsprop_decay, momentum=train.rmsprop_momentum, epsilon=train.rmsprop_epsilon
    ),
    "rmsprop_centered": CenteredRmsProp,
    "rmsprop_dqn3": lambda rate, train: Dqn3RmsProp(rate),  # noqa: ARG005 - its numbers are DQN 3.0's
}


class Optimizer:
    """What `train.optimizer` names, with a learning rate passed at each step.

    Raises:
      UsageError: there is none of this name.
      ForeignError: a user's own failed.
    """

    def __init__(self, train: TrainSettings) -> None:
        self._rate: Tensor = None
        self._name = f"train.optimizer={train.optimizer}"
        make = lookup.find("train.optimizer", train.optimizer, OPTIMIZERS)
        try:
            self._made = make(lambda: self._rate, train)
        except Exception as error:
            raise foreign_error(self._name, error) from error

    def apply(self, gradients: Sequence[Tensor], variables: Sequence[Any], learning_rate: Tensor) -> Any:
        """An op that makes one step; all these ops share the optimizer's variables."""
        self._rate = learning_rate
        try:
            applied = self._made.apply_gradients(zip(gradients, variables, strict=True))
            with tf.control_dependencies([applied]):  # refuses what no operation can wait for, as what Keras' return
                return applied
        except Exception as error:
            raise foreign_error(self._name, error) from error


def clip(gradients: Sequence[Tensor], train: TrainSettings) -> list[Tensor]:
    """The gradients, scaled down if their common norm is beyond `train.gradient_clip_norm`."""
    if train.gradient_clip_norm is None:
        return list(gradients)
    clipped: list[Tensor] = tf.clip_by_global_norm(gradients, train.gradient_clip_norm)[0]
    return clipped


def accumulate(
    gradients: Sequence[Tensor], variables: Sequence[Any]
) -> tuple[Any, list[Tensor], Callable[[], list[Any]]]:
    """Sums gradients over several microbatches in variables of the graph, of the current variable scope.

    Returns:
      An op that adds the microbatch's gradients; the sums with these on top; what makes the ops that clear the sums, to
      be called under a control dependency on their use.
    """
    sums = [
        tf.get_variable(v.op.name, v.shape, initializer=tf.zeros_initializer(), trainable=False, use_resource=True)
        for v in variables
    ]
    add = tf.group(*(s.assign_add(g, read_value=False) for s, g in zip(sums, gradients, strict=True)))
    total = [s + g for s, g in zip(sums, gradients, strict=True)]

    def clear() -> list[Any]:
        return [s.assign(tf.zeros(s.shape), read_value=False) for s in sums]

    return add, total, clear
