"""`build_model()`: all that one twin computes, built once in each graph so that both hold the same variables."""

import contextlib
import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from twin_graph import cpu_layers, losses, networks, optimizers
from twin_graph import layers as plain_layers
from twin_graph.errors import UsageError
from twin_graph.graph_mode import tf
from twin_graph.settings import Settings

Tensor = Any


@dataclasses.dataclass(frozen=True)
class ModelSpec:
    """What decides a model's graph, and nothing else: equal specs give twins.

    Attributes:
      observation_shape: shape of one observation; `(stack, H, W)` for images, `(D,)` for vectors.
      observation_dtype: its NumPy type, `uint8` or `float32`.
      n_actions: A, the number of discrete actions.
      network: `nature`, `pooled80`, `blob` or `mlp`.
      hidden_units: widths of the layers of `mlp`.
      padding: `VALID` or `SAME`, for the convolutions of `nature`.
      dueling: a value and an advantage for each action in place of the last layers.
      loss: a key of `losses.LOSSES`, or `dqn3`.
      clip_delta: TD errors are clipped to it, in `dqn3`.
      double: the online twin chooses the action whose value is bootstrapped from.
      target_q: whether a target supplies bootstrap values; if not, the twin itself does.
      optimizer: `adam`, `rmsprop` or `rmsprop_dqn3`.
      learning_rate: where none is fed.
      optimizer_epsilon: of Adam or RMSProp.
      rmsprop_decay: of RMSProp's mean square.
      gradient_clip_norm: the norm of all gradients together is at most this; None for any.
      accumulate: minibatches whose gradients make up one update.
    """

    observation_shape: tuple[int, ...]
    observation_dtype: str
    n_actions: int
    network: str
    hidden_units: tuple[int, ...]
    padding: str
    dueling: bool
    loss: str
    clip_delta: float | None
    double: bool
    target_q: bool
    optimizer: str
    learning_rate: float
    optimizer_epsilon: float
    rmsprop_decay: float
    gradient_clip_norm: float | None
    accumulate: int

    @classmethod
    def of(
        cls, settings: Settings, observation_shape: tuple[int, ...], dtype: np.typing.DTypeLike, n_actions: int
    ) -> "ModelSpec":
        """The spec that `settings` ask for in an environment with these observations and actions."""
        channels_last = networks.channels_last(observation_shape)
        grey = len(observation_shape) == 2 and np.dtype(dtype) == np.uint8
        if settings.network == "nature" and len(observation_shape) != 3 and not grey:
            raise UsageError(
                f"network=nature needs images [stack, H, W] or [H, W, channels] and {settings.env.id} gives "
                f"observations of shape {list(observation_shape)}; use --set network=mlp"
            )
        if settings.network == "pooled80" and observation_shape[1:] != (80, 80):
            other = "blob" if channels_last else "nature" if len(observation_shape) == 3 else "mlp"
            atari = settings.env.id.startswith("ALE/")
            raise UsageError(
                f"network=pooled80 needs images [stack, 80, 80] and {settings.env.id} gives observations of shape "
                f"{list(observation_shape)}; use --set "
                + ("env.image_height=80 --set env.image_width=80" if atari else f"network={other}")
            )
        if settings.network == "blob" and len(observation_shape) != 3:
            raise UsageError(
                f"network=blob needs images [H, W, channels] and {settings.env.id} gives observations of shape "
                f"{list(observation_shape)}; use --set network=mlp"
            )
        return cls(
            observation_shape=observation_shape,
            observation_dtype=np.dtype(dtype).name,
            n_actions=n_actions,
            network=settings.network,
            hidden_units=tuple(settings.model.hidden_units),
            padding=settings.model.padding,
            dueling=settings.model.dueling,
            loss=settings.loss,
            clip_delta=settings.train.clip_delta,
            double=settings.train.double,
            target_q=settings.train.target_q,
            optimizer=settings.train.optimizer,
            learning_rate=settings.train.learning_rate,
            optimizer_epsilon=settings.train.adam_epsilon
            if settings.train.optimizer == "adam"
            else settings.train.rmsprop_epsilon,
            rmsprop_decay=settings.train.rmsprop_decay,
            gradient_clip_norm=settings.train.gradient_clip_norm,
            accumulate=settings.train.accumulate,
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
      s_t: placeholder `[B, *observation_shape]`, used by `double` and without `target_q`.
      weight: placeholder float32 `[B]`, of each example; one if it is not fed.
      dropout_seed: placeholder int32 `[2]`, from which the masks of dropout follow; if it is not fed there is none.
      learning_rate: placeholder float32 scalar; the spec's if it is not fed.
      q_tm1: float32 `[B, A]`, Q at `s_tm1`.
      q_frozen: float32 `[B, A]`, Q at `s_tm1` by the weights of the last `freeze`.
      freeze: copies the weights for `q_frozen`; to be run before it.
      td_error: float32 `[B]`.
      loss: float32 scalar.
      q_mean: float32 scalar, mean over the batch of max_a Q at `s_tm1`.
      train_op: one optimizer step on the minibatch's gradients, and on those accumulated.
      accumulate_op: adds the minibatch's gradients to those accumulated; None if the spec has one minibatch an update.
      gradients: of the minibatch and those accumulated, by which `train_op` would change `trainables`, in their order.
      clear_op: forgets what was accumulated, after `gradients`; for those who apply these elsewhere.
      activations: of hidden layers at `s_tm1`, `[B, ...]` or of parts of the batch, each named `LAYER/activation`.
      trainables: what a snapshot holds, sorted by name.
    """

    s_tm1: Tensor
    a_tm1: Tensor
    r_t: Tensor
    discount_t: Tensor
    q_target_t: Tensor
    s_t: Tensor
    weight: Tensor
    dropout_seed: Tensor
    learning_rate: Tensor
    q_tm1: Tensor
    q_frozen: Tensor
    freeze: Any
    td_error: Tensor
    loss: Tensor
    q_mean: Tensor
    train_op: Any
    accumulate_op: Any
    gradients: tuple[Tensor, ...]
    clear_op: Any
    activations: tuple[Tensor, ...]
    trainables: tuple[Any, ...]


def build_model(spec: ModelSpec, dtype: Any = tf.float32, *, plain: bool = False) -> Model:
    """Adds placeholders, network, loss, gradient and train op to the current default graph.

    The target values come in as `q_target_t` and the TD error is formed here, so that the same graph serves the
    twin that trains and the twin that only evaluates.

    Args:
      spec: what to build.
      dtype: in which the network multiplies, float32 or bfloat16; variables are the same in both.
      plain: compute with plain layers and TensorFlow's own gradients, as on a GPU; for those who read the graph without
        this package.
    """
    layers: networks.Layers = cpu_layers
    if plain or tf.config.list_physical_devices("GPU"):
        layers = plain_layers
    s_tm1 = tf.placeholder(spec.observation_dtype, [None, *spec.observation_shape], name="s_tm1")
    a_tm1 = tf.placeholder(tf.int32, [None], name="a_tm1")
    r_t = tf.placeholder(tf.float32, [None], name="r_t")
    discount_t = tf.placeholder(tf.float32, [None], name="discount_t")
    q_target_t = tf.placeholder(tf.float32, [None, spec.n_actions], name="q_target_t")
    s_t = tf.placeholder(spec.observation_dtype, [None, *spec.observation_shape], name="s_t")
    weight = tf.placeholder_with_default(tf.ones([1]), [None], name="weight")
    no_dropout = tf.constant([-1, -1])
    dropout_seed = tf.placeholder_with_default(no_dropout, [2], name="dropout_seed")
    learning_rate = tf.placeholder_with_default(tf.constant(spec.learning_rate), [], name="learning_rate")

    network = functools.partial(_network, spec, dtype=dtype, layers=layers)
    q_tm1 = tf.identity(network(s_tm1, dropout_seed), name="q_tm1")
    activations = tuple(tf.get_collection(plain_layers.ACTIVATIONS))
    trainables = tuple(sorted(tf.trainable_variables(), key=lambda variable: str(variable.name)))
    with tf.variable_scope("frozen", custom_getter=_local):
        q_frozen = network(s_tm1, no_dropout)
    freeze = _freeze(trainables)

    q_own_t = None
    if spec.double or not spec.target_q:
        with tf.variable_scope(tf.get_variable_scope(), reuse=True):
            q_own_t = network(s_t, no_dropout)
    q_bootstrap_t = q_target_t if spec.target_q else q_own_t
    y = losses.q_learning_target(r_t, discount_t, q_bootstrap_t, q_own_t if spec.double else None)
    td_error = tf.subtract(y, tf.reduce_sum(q_tm1 * tf.one_hot(a_tm1, spec.n_actions), axis=1), name="td_error")
    shown = losses.LOSSES["huber" if spec.loss == "dqn3" else spec.loss](td_error, spec.n_actions)
    loss = tf.reduce_mean(weight * shown, name="loss")
    if spec.loss == "dqn3":
        gradients = losses.dqn3_gradients(q_tm1, a_tm1, td_error, weight, list(trainables), spec.clip_delta)
    else:
        gradients = tf.gradients(loss / spec.accumulate, trainables)

    accumulate_op, clear = None, None
    if spec.accumulate > 1:
        with tf.variable_scope("accumulated"):
            accumulate_op, gradients, clear = optimizers.accumulate(gradients, trainables)
    if spec.gradient_clip_norm is not None:
        gradients, _ = tf.clip_by_global_norm(gradients, spec.gradient_clip_norm)
    optimizer = optimizers.optimizer(spec.optimizer, learning_rate, spec.optimizer_epsilon, spec.rmsprop_decay)
    # Whoever trains on from an export makes an optimizer of its own, whose slots have the plain names.
    with tf.variable_scope("optimizer") if plain else contextlib.nullcontext():
        applied = optimizer.apply_gradients(zip(gradients, trainables, strict=True))
    with tf.control_dependencies([applied]):
        train_op = tf.group(applied, *(clear() if clear else ()), name="train_op")
    with tf.control_dependencies(gradients):
        clear_op = tf.group(*(clear() if clear else ()))
    return Model(
        s_tm1=s_tm1,
        a_tm1=a_tm1,
        r_t=r_t,
        discount_t=discount_t,
        q_target_t=q_target_t,
        s_t=s_t,
        weight=weight,
        dropout_seed=dropout_seed,
        learning_rate=learning_rate,
        q_tm1=q_tm1,
        q_frozen=q_frozen,
        freeze=freeze,
        td_error=td_error,
        loss=loss,
        q_mean=tf.reduce_mean(tf.reduce_max(q_tm1, axis=1)),
        train_op=train_op,
        accumulate_op=accumulate_op,
        gradients=tuple(gradients),
        clear_op=clear_op,
        activations=activations,
        trainables=trainables,
    )


def _network(spec: ModelSpec, observation: Tensor, dropout_seed: Tensor, dtype: Any, layers: networks.Layers) -> Tensor:
    n_actions, common = spec.n_actions, {"dtype": dtype, "layers": layers}
    if spec.network == "blob":
        return networks.blob(observation, n_actions, dropout_seed=dropout_seed, **common)
    if spec.network == "pooled80":
        return networks.pooled80(observation, n_actions, **common)
    if spec.network == "nature":
        return networks.nature(observation, n_actions, padding=spec.padding, dueling=spec.dueling, **common)
    return networks.mlp(observation, n_actions, hidden_units=spec.hidden_units, dueling=spec.dueling, **common)


def _freeze(trainables: tuple[Any, ...]) -> Any:
    """An op that copies the trainables to the local variables of the scope `frozen`."""
    frozen = sorted(tf.get_collection(tf.GraphKeys.LOCAL_VARIABLES, "frozen/"), key=lambda v: str(v.name))
    copies = zip(frozen, trainables, strict=True)
    return tf.group(*(copy.assign(variable, read_value=False) for copy, variable in copies))


def _local(getter: Callable[..., Any], name: str, *args: Any, **settings: Any) -> Any:
    """Makes variables that no Saver, optimizer or other twin sees: a copy inside this graph is no snapshot."""
    local = {"trainable": False, "collections": [tf.GraphKeys.LOCAL_VARIABLES]}
    return getter(name, *args, **{**settings, **local})
