"""`build_model()`: all that one twin computes, built once in each graph so that both hold the same variables."""

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np

from twin_graph import losses, networks
from twin_graph.config import Settings
from twin_graph.errors import UsageError
from twin_graph.graph_mode import tf

Tensor = Any


@dataclasses.dataclass(frozen=True)
class ModelSpec:
    """What decides a model's graph, and nothing else: equal specs give twins.

    Attributes:
      observation_shape: shape of one observation; `(stack, H, W)` for images, `(D,)` for vectors.
      observation_dtype: its NumPy type, `uint8` or `float32`.
      n_actions: A, the number of discrete actions.
      network: `nature` or `mlp`.
      hidden_units: widths of the layers of `mlp`.
      padding: `VALID` or `SAME`, for the convolutions of `nature`.
      loss: a key of `losses.LOSSES`.
      learning_rate, adam_epsilon: of Adam.
    """

    observation_shape: tuple[int, ...]
    observation_dtype: str
    n_actions: int
    network: str
    hidden_units: tuple[int, ...]
    padding: str
    loss: str
    learning_rate: float
    adam_epsilon: float

    @classmethod
    def of(
        cls, settings: Settings, observation_shape: tuple[int, ...], dtype: np.typing.DTypeLike, n_actions: int
    ) -> "ModelSpec":
        """The spec that `settings` ask for in an environment with these observations and actions."""
        channels_last = len(observation_shape) == 3 and observation_shape[2] in (1, 3, 4)
        if settings.network == "nature" and (len(observation_shape) != 3 or channels_last):
            raise UsageError(
                f"network=nature needs stacked images [stack, H, W] and {settings.env.id} gives observations of shape "
                f"{list(observation_shape)}; use --set network=mlp"
                + (", or an environment that puts its channels first" if channels_last else "")
            )
        return cls(
            observation_shape=observation_shape,
            observation_dtype=np.dtype(dtype).name,
            n_actions=n_actions,
            network=settings.network,
            hidden_units=tuple(settings.model.hidden_units),
            padding=settings.model.padding,
            loss=settings.loss,
            learning_rate=settings.train.learning_rate,
            adam_epsilon=settings.train.adam_epsilon,
        )


@dataclasses.dataclass(frozen=True)
class Model:
    """The tensors and ops of one twin's graph. Shapes: B examples, A actions.

    Attributes:
      s_tm1: placeholder `[B, *observation_shape]`, what Q is evaluated at.
      a_tm1: placeholder int32 `[B]`, the action taken.
      r_t: placeholder float32 `[B]`, the n-step return.
      discount_t: placeholder float32 `[B]`, 0 after a terminal step.
      q_target_t: placeholder float32 `[B, A]`, Q at `s_t` by the twin that supplies bootstrap values.
      q_tm1: float32 `[B, A]`, Q at `s_tm1`.
      q_frozen: float32 `[B, A]`, Q at `s_tm1` by the weights of the last `freeze`.
      freeze: copies the weights for `q_frozen`; to be run before it.
      loss: float32 scalar.
      q_mean: float32 scalar, mean over the batch of max_a Q at `s_tm1`.
      train_op: one optimizer step on `loss`.
      trainables: what a snapshot holds, sorted by name.
    """

    s_tm1: Tensor
    a_tm1: Tensor
    r_t: Tensor
    discount_t: Tensor
    q_target_t: Tensor
    q_tm1: Tensor
    q_frozen: Tensor
    freeze: Any
    loss: Tensor
    q_mean: Tensor
    train_op: Any
    trainables: tuple[Any, ...]


def build_model(spec: ModelSpec) -> Model:
    """Adds placeholders, network, loss, gradient and train op to the current default graph.

    The target values come in as `q_target_t` and the TD error is formed here, so that the same graph serves the
    twin that trains and the twin that only evaluates.
    """
    s_tm1 = tf.placeholder(spec.observation_dtype, [None, *spec.observation_shape], name="s_tm1")
    a_tm1 = tf.placeholder(tf.int32, [None], name="a_tm1")
    r_t = tf.placeholder(tf.float32, [None], name="r_t")
    discount_t = tf.placeholder(tf.float32, [None], name="discount_t")
    q_target_t = tf.placeholder(tf.float32, [None, spec.n_actions], name="q_target_t")

    q_tm1 = tf.identity(_network(spec, s_tm1), name="q_tm1")
    with tf.variable_scope("frozen", custom_getter=_frozen):
        q_frozen = _network(spec, s_tm1)
    q_taken = tf.reduce_sum(q_tm1 * tf.one_hot(a_tm1, spec.n_actions), axis=1)
    td_error = losses.q_learning_target(r_t, discount_t, q_target_t) - q_taken
    loss = tf.identity(losses.LOSSES[spec.loss](td_error, spec.n_actions), name="loss")
    train_op = tf.train.AdamOptimizer(spec.learning_rate, epsilon=spec.adam_epsilon).minimize(loss)
    trainables = tuple(sorted(tf.trainable_variables(), key=lambda variable: str(variable.name)))
    frozen = sorted(tf.local_variables(), key=lambda variable: str(variable.name))
    return Model(
        s_tm1=s_tm1,
        a_tm1=a_tm1,
        r_t=r_t,
        discount_t=discount_t,
        q_target_t=q_target_t,
        q_tm1=q_tm1,
        q_frozen=q_frozen,
        freeze=tf.group(*(copy.assign(variable) for copy, variable in zip(frozen, trainables, strict=True))),
        loss=loss,
        q_mean=tf.reduce_mean(tf.reduce_max(q_tm1, axis=1)),
        train_op=train_op,
        trainables=trainables,
    )


def _network(spec: ModelSpec, observation: Tensor) -> Tensor:
    if spec.network == "nature":
        return networks.nature(observation, spec.n_actions, padding=spec.padding)
    return networks.mlp(observation, spec.n_actions, hidden_units=spec.hidden_units)


def _frozen(getter: Callable[..., Any], name: str, *args: Any, **settings: Any) -> Any:
    """Makes variables that no Saver, optimizer or other twin sees: a copy inside this graph is no snapshot."""
    local = {"trainable": False, "collections": [tf.GraphKeys.LOCAL_VARIABLES]}
    return getter(name, *args, **{**settings, **local})
