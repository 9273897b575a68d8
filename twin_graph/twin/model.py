"""`build_model()`: everything that one twin computes, built once per graph so that both hold the same variables."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from twin_graph.errors import UsageError
from twin_graph.twin import compiled_updates as blocks
from twin_graph.twin import cpu_layers, heads, losses, networks, optimizers, xla_layers
from twin_graph.twin import layers as plain_layers
from twin_graph.twin.tf import tf

if TYPE_CHECKING:
    from twin_graph.config.settings import ModelSettings, Settings, TrainSettings
    from twin_graph.envs import EnvSpec

Tensor = Any

_NONE = [-1, -1]  # a seed with which there is no dropout, a key with which there is no noise
_PER_UPDATE = "dropout_seed", "noise_key", "learning_rate"


@dataclasses.dataclass(frozen=True)
class ModelSpec:
    """What determines a model's graph: equal specs give twins.

    Attributes:
      env: observations and actions.
      network: a name in `networks.NETWORKS`, or `module:function`.
      loss: a name in `losses.LOSSES`, or `module:function`.
      model, train: sections of the settings.
      plain: with plain layers and TensorFlow's own gradients, as on a GPU; for readers of the graph who do not have
        this package.
    """

    env: EnvSpec
    network: str
    loss: str
    model: ModelSettings
    train: TrainSettings
    plain: bool = False

    @classmethod
    def of(cls, settings: Settings, env: EnvSpec) -> ModelSpec:
        """The spec for these settings in an environment. Raises `UsageError` if they do not fit it."""
        networks.check_fits(settings.network, settings.env.id, env)
        _check_players(settings, env)
        _check_shift(settings, env)
        if env.masked and settings.train.munchausen and settings.model.head == "categorical":
            raise UsageError(
                f"train.munchausen with loss=hl_gauss gives illegal actions a probability, and {settings.env.id} has "
                "some; use --set model.head=quantile --set loss=huber"
            )
        return cls(env, settings.network, settings.loss, settings.model, settings.train)


def _check_players(settings: Settings, env: EnvSpec) -> None:
    """Raises `UsageError` if a game of two players has no opponent, or one of one player has an opponent."""
    policy, env_id = settings.opponent.policy, settings.env.id
    if env.players == 2 and policy is None:
        raise UsageError(f"{env_id} has two players: choose the other with --set opponent.policy=latest")
    if env.players == 1 and policy is not None:
        raise UsageError(f"opponent.policy={policy}: {env_id} has one player; use --set opponent.policy=null")


def _check_shift(settings: Settings, env: EnvSpec) -> None:
    """Raises `UsageError` if `train.random_shift` cannot move what the environment shows."""
    pixels, shape = settings.train.random_shift, env.observation_shape
    if not pixels:
        return
    moves = f"train.random_shift={pixels} moves images, and"
    if len(shape) != 3:
        raise UsageError(
            f"{moves} {settings.env.id} gives observations of shape {list(shape)}; use --set train.random_shift=0"
        )
    channels = networks.channels_axis(settings.network, env)
    if channels is None:
        raise UsageError(
            f"{moves} network={settings.network} does not say which axis of {list(shape)} has their channels; "
            "use --set train.random_shift=0, or another network"
        )
    side = min(size for axis, size in enumerate(shape) if axis != channels)
    if pixels >= side:
        raise UsageError(
            f"train.random_shift={pixels} is not less than the image's {side} pixels; choose less, e.g. 4 for 84"
        )


@dataclasses.dataclass(frozen=True)
class Inputs:
    """The placeholders of one twin's graph. Shapes: B examples, A actions.

    Attributes:
      s_tm1: `[B, *observation_shape]`, what Q is evaluated at.
      a_tm1: int32 `[B]`, the action taken.
      r_t: float32 `[B]`, the n-step return.
      discount_t: float32 `[B]`, 0 after a terminal step.
      q_target_t: float32 `[B, A]`, Q at `s_t` by the twin that supplies bootstrap values; with a distribution
        `[B, A, N]`, its probabilities or quantiles.
      q_target_tm1: float32 `[B, A]`, Q at `s_tm1` by that twin, used by `munchausen`.
      s_t: `[B, *observation_shape]`, used by `double`, `minto` and without `target_q`.
      weight: float32 `[B]`, weight of each example; 1 if not fed.
      dropout_seed: int32 `[2]`, seed of the dropout masks; no dropout if not fed.
      noise_key: int32 `[2]`, of which the noise of `model.noisy`, and levels of quantiles with `model.head=implicit`,
        are functions; no noise, and levels that are evenly spread, if not fed. None without both.
      learning_rate: float32 scalar; the settings' if it is not fed.
    """

    s_tm1: Tensor
    a_tm1: Tensor
    r_t: Tensor
    discount_t: Tensor
    q_target_t: Tensor
    q_target_tm1: Tensor
    s_t: Tensor
    weight: Tensor
    dropout_seed: Tensor
    noise_key: Tensor
    learning_rate: Tensor

    @classmethod
    def add(cls, spec: ModelSpec, head: heads.Head, *, learns: bool) -> Inputs:
        """Adds them to the current default graph."""
        env, soft = spec.env, spec.train.munchausen > 0
        draws = spec.model.draws and (learns or not spec.plain)  # formats of exports lack what draws
        return cls(
            s_tm1=tf.placeholder(env.observation_dtype, [None, *env.observation_shape], name="s_tm1"),
            a_tm1=tf.placeholder(tf.int32, [None], name="a_tm1"),
            r_t=tf.placeholder(tf.float32, [None], name="r_t"),
            discount_t=tf.placeholder(tf.float32, [None], name="discount_t"),
            q_target_t=tf.placeholder(tf.float32, [None, env.n_actions, *head.axes], name="q_target_t"),
            q_target_tm1=tf.placeholder(tf.float32, [None, env.n_actions], name="q_target_tm1") if soft else None,
            s_t=tf.placeholder(env.observation_dtype, [None, *env.observation_shape], name="s_t"),
            weight=tf.placeholder_with_default(tf.ones([1]), [None], name="weight"),
            dropout_seed=tf.placeholder_with_default(tf.constant(_NONE), [2], name="dropout_seed"),
            noise_key=tf.placeholder_with_default(tf.constant(_NONE), [2], name="noise_key") if draws else None,
            learning_rate=tf.placeholder_with_default(tf.constant(spec.train.learning_rate), [], name="learning_rate"),
        )

    def needed(self, train: TrainSettings) -> dict[str, Tensor]:
        """The per-example inputs that an update needs, by name."""
        names = ["s_tm1", "a_tm1", "r_t", "discount_t", "weight"]
        names += ["q_target_t"] if train.target_q else []
        names += ["q_target_tm1"] if train.munchausen else []
        names += ["s_t"] if train.double or train.minto or not train.target_q else []
        return {name: getattr(self, name) for name in names}


@dataclasses.dataclass(frozen=True)
class Model(Inputs):
    """The tensors and ops of one twin's graph.

    Attributes:
      q_tm1: float32 `[B, A]`, Q at `s_tm1`.
      supplied_tm1: what this twin supplies as a target: Q, or with a distribution `[B, A, N]`.
      activations: of hidden layers at `s_tm1`, `[B, ...]` or of parts of the batch, each named `LAYER/activation`.
      trainables: what a snapshot holds, sorted by name.

    Those that follow are only in a twin that learns:

      q_acting: float32 `[B, A]`, Q at `s_tm1` by the weights of the last `freeze`.
      freeze: copies the weights for `q_acting`; run it first.
      td_error: float32 `[B]`.
      loss: float32 scalar.
      q_mean: float32 scalar, mean over the batch of max_a Q at `s_tm1`.
      train_op: one optimizer step on the microbatch's gradients, and on those accumulated.
      accumulate_op: adds the microbatch's gradients to those accumulated; None if an update has only one microbatch.
      gradients: what `train_op` would apply: the microbatch's plus the accumulated gradients, in the order of
        `trainables`.
      clear_op: discards the accumulated gradients once `gradients` have been computed; for workers, which apply them on
        a server.
      fed: the per-example placeholders that an update needs, by name.
      block: many updates in one run; None if none was asked for.
    """

    q_tm1: Tensor
    supplied_tm1: Tensor
    activations: tuple[Tensor, ...]
    trainables: tuple[Any, ...]
    q_acting: Tensor = None
    freeze: Any = None
    td_error: Tensor = None
    loss: Tensor = None
    q_mean: Tensor = None
    train_op: Any = None
    accumulate_op: Any = None
    gradients: tuple[Tensor, ...] = ()
    clear_op: Any = None
    fed: Mapping[str, Tensor] = dataclasses.field(default_factory=dict)
    block: blocks.Block | None = None


def build_model(spec: ModelSpec, dtype: Any = tf.float32, *, learns: bool = True, block: int = 0) -> Model:
    """Adds placeholders, network, loss, gradient and train op to the current default graph.

    The variables of the network have the same names, shapes and initial values whether the twin learns or not, so that
    a snapshot of one that does can be restored into one that only supplies values: a target, an opponent, a player.

    Args:
      spec: what to build.
      dtype: in which the network multiplies, float32 or bfloat16; variables are the same in both.
      learns: add loss, gradient and train op, and what they need; otherwise the network is all.
      block: updates that can be made in one run, apart from those of `train_op`; 0 for none.
    """
    network = _Network(spec, dtype)
    x, head = Inputs.add(spec, network.head, learns=learns), network.head
    # Whoever does not learn has no dropout: its ops would hinder exports to formats that lack them.
    use: heads.Use = "learning" if learns else "target"
    outputs_tm1 = network(x.s_tm1, x.dropout_seed if learns else tf.constant(_NONE), x.noise_key, use)
    activations = tuple(tf.get_collection(plain_layers.ACTIVATIONS))

    def outputs_for(other: heads.Use) -> Tensor:
        if head.samples is None or other == use:
            return outputs_tm1
        with tf.variable_scope(tf.get_variable_scope(), reuse=True):
            return network(x.s_tm1, tf.constant(_NONE), x.noise_key, other)

    q_tm1 = tf.identity(head.q_values(outputs_for("acting")), name="q_tm1")
    trainables = tuple(sorted(tf.trainable_variables(), key=lambda variable: str(variable.name)))
    _check_variables(spec, trainables)
    supplied_tm1 = tf.identity(head.supplied(outputs_for("target")), name="supplied_tm1") if head.axes else q_tm1
    model = Model(**vars(x), q_tm1=q_tm1, supplied_tm1=supplied_tm1, activations=activations, trainables=trainables)
    return _learning(model, network, outputs_tm1, block) if learns else model


class _Network:
    """The network of a spec, to be called for each input; its loss.

    Args:
      spec: what to build.
      dtype: in which to multiply.

    Attributes:
      spec: as given.
      head: of the spec.
      block_layers: those for a block of updates.
    """

    def __init__(self, spec: ModelSpec, dtype: Any) -> None:
        gpu = bool(tf.config.list_physical_devices("GPU"))
        self.spec, self.head, self._dtype = spec, heads.of(spec.model), dtype
        self._network = networks.find_network(spec.network, spec.env)
        self._layers: networks.Layers = plain_layers if spec.plain or gpu else cpu_layers
        self.block_layers: networks.Layers = plain_layers if gpu else xla_layers

    def __call__(
        self,
        observation: Tensor,
        dropout_seed: Tensor,
        noise_key: Tensor | None,
        use: heads.Use,
        layers: networks.Layers | None = None,
    ) -> Tensor:
        """What the head needs of observations; the second call in a variable scope has to reuse its variables."""
        using, levels = layers or self._layers, None
        if isinstance(self.head, heads.Implicit):
            levels = self.head.levels(getattr(self.head.samples, use), noise_key, tf.shape(observation)[0])
        build = networks.Build(self.spec.model, self._dtype, using, dropout_seed, self.head, noise_key, levels)
        return networks.q_network(self._network, observation, self.spec.env, build)

    def td_learning(
        self,
        x: Mapping[str, Tensor],
        outputs_tm1: Tensor,
        trainables: tuple[Any, ...],
        layers: networks.Layers | None = None,
    ) -> tuple[Tensor, Tensor, list[Tensor]]:
        """TD errors, the loss, and its gradients. Noise at `s_t` is another than at `s_tm1`, as in Fortunato et al."""
        outputs_t = None
        if "s_t" in x:
            with tf.variable_scope(tf.get_variable_scope(), reuse=True):
                key = x.get("noise_key")
                use: heads.Use = "acting" if self.spec.train.target_q else "target"
                outputs_t = self(x["s_t"], tf.constant(_NONE), key if key is None else key + 1, use, layers)
        learning = losses.Learning(self.spec.loss, self.spec.train, self.head)
        return learning.gradients(x, outputs_tm1, outputs_t, trainables)


def _learning(model: Model, network: _Network, outputs_tm1: Tensor, block: int) -> Model:
    """A model with what only a twin that learns has."""
    spec, train, trainables = network.spec, network.spec.train, model.trainables
    fed = model.needed(train)
    with tf.variable_scope("frozen", custom_getter=_local):
        q_acting = network.head.q_values(network(model.s_tm1, tf.constant(_NONE), model.noise_key, "acting"))
    _check_shared(spec, trainables)
    freeze = _freeze(trainables)
    # Of a value, differentiated from where it has its name.
    outputs_tm1 = outputs_tm1 if network.head.axes else model.q_tm1
    per_update = {name: getattr(model, name) for name in _PER_UPDATE if getattr(model, name) is not None}
    td_error, loss, gradients = network.td_learning(fed | per_update, outputs_tm1, trainables)
    _check_gradients(spec, trainables, gradients)
    accumulate_op, clear = None, None
    if train.accumulate > 1:
        with tf.variable_scope("accumulated"):
            accumulate_op, gradients, clear = optimizers.accumulate(gradients, trainables)
    gradients = optimizers.clip(gradients, train)
    optimizer = optimizers.Optimizer(train)
    # Code that trains an export further makes its own optimizer, whose slots take the plain names.
    with tf.variable_scope("optimizer") if spec.plain else contextlib.nullcontext():
        applied = optimizer.apply(gradients, trainables, model.learning_rate)
    with tf.control_dependencies([applied]):
        train_op = tf.group(applied, *(clear() if clear else ()), name="train_op")
    with tf.control_dependencies(gradients):
        clear_op = tf.group(*(clear() if clear else ()))

    def learn(x: Mapping[str, Tensor]) -> tuple[Any, Tensor, Tensor, Tensor]:
        """What `train_op` does, on the same variables, inside the block's loop."""
        with tf.variable_scope(tf.get_variable_scope(), reuse=True):
            outputs_tm1 = network(x["s_tm1"], x["dropout_seed"], x.get("noise_key"), "learning", network.block_layers)
        td_error, loss, gradients = network.td_learning(x, outputs_tm1, trainables, network.block_layers)
        applied = optimizer.apply(optimizers.clip(gradients, train), trainables, x["learning_rate"])
        return applied, loss, _q_mean(network.head.q_values(outputs_tm1)), td_error

    return dataclasses.replace(
        model,
        q_acting=q_acting,
        freeze=freeze,
        td_error=td_error,
        loss=loss,
        q_mean=_q_mean(network.head.q_values(outputs_tm1)),
        train_op=train_op,
        accumulate_op=accumulate_op,
        gradients=tuple(gradients),
        clear_op=clear_op,
        fed=fed,
        block=blocks.build(block, train.batch_size, fed | per_update, learn) if block else None,
    )


def _check_variables(spec: ModelSpec, trainables: tuple[Any, ...]) -> None:
    """Raises `UsageError` if a custom network has nothing to train, has variables that no snapshot would contain, or
    lacks the noise, the norm or the quantiles that were asked for."""
    if not trainables:
        raise UsageError(f"network={spec.network} makes no variables, so there is nothing to learn")
    if fixed := sorted(v.op.name for v in tf.global_variables() if all(v is not other for other in trainables)):
        raise UsageError(
            f"network={spec.network} makes {', '.join(fixed)} with trainable=False, and no snapshot would hold that; "
            "use a constant"
        )
    if spec.model.layer_norm and not any(v.op.name.endswith(plain_layers.NORM_SCALE) for v in trainables):
        raise UsageError(f"model.layer_norm=true, but network={spec.network} has no normalized layer: use build.relu")
    if spec.model.head == "implicit" and not any(v.op.name.startswith(f"{networks.LEVELS}/") for v in trainables):
        raise UsageError(
            f"model.head=implicit, but network={spec.network} asks for no quantiles: give build.features(x) to its "
            "last hidden layer"
        )
    if spec.model.noisy and not any(v.op.name.endswith(plain_layers.SIGMA) for v in trainables):
        raise UsageError(
            f"model.noisy=true, but network={spec.network} has no noisy layer: use build.hidden and build.last_layer"
        )


def _check_shared(spec: ModelSpec, trainables: tuple[Any, ...]) -> None:
    """Raises `UsageError` if a second call of a network of your own has made variables of its own."""
    if len(tf.trainable_variables()) > len(trainables):
        raise UsageError(
            f"network={spec.network} creates new variables on every call, as Keras layers do; create them "
            "with tf.get_variable or twin_graph.layers"
        )


def _check_gradients(spec: ModelSpec, trainables: tuple[Any, ...], gradients: list[Tensor]) -> None:
    """Raises `UsageError` if there are variables on which the loss does not depend."""
    idle = [variable.op.name for variable, gradient in zip(trainables, gradients, strict=True) if gradient is None]
    if len(idle) == len(trainables):
        raise UsageError(f"loss={spec.loss} depends on nothing that network={spec.network} computes")
    if idle:
        raise UsageError(f"network={spec.network}: the loss does not depend on {', '.join(idle)}; leave these out")


def _q_mean(q: Tensor) -> Tensor:
    return tf.reduce_mean(tf.reduce_max(q, axis=1))


def _freeze(trainables: tuple[Any, ...]) -> Any:
    """An op that copies the trainables to the local variables of the scope `frozen`."""
    frozen = sorted(tf.get_collection(tf.GraphKeys.LOCAL_VARIABLES, "frozen/"), key=lambda v: str(v.name))
    copies = zip(frozen, trainables, strict=True)
    return tf.group(*(copy.assign(variable, read_value=False) for copy, variable in copies))


def _local(getter: Callable[..., Any], name: str, *args: Any, **settings: Any) -> Any:
    """Makes variables that no Saver, optimizer or other twin sees: a copy inside this graph is not a snapshot."""
    local = {"trainable": False, "collections": [tf.GraphKeys.LOCAL_VARIABLES]}
    return getter(name, *args, **{**settings, **local})
