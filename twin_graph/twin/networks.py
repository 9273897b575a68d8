"""Q networks, as in their papers.

Each takes observations `[B, *observation_shape]`, the number of actions A, and a `Build`; it returns Q values, float32
`[B, A]`, or with `model.head` what that needs of each action, `[B, A, N]`: `Build.last_layer` makes either. A network
of your own, named as `module:function`, does the same. Its variables come from `tf.get_variable`, or from the functions
of `twin_graph.layers`.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np

from twin_graph.config import lookup
from twin_graph.errors import ForeignError, UsageError, foreign_error
from twin_graph.twin import keras_models
from twin_graph.twin.heads import Scalar
from twin_graph.twin.layers import (
    Start,
    Tensor,
    dense,
    dropout,
    flatten,
    glorot,
    he,
    last_layer,
    layer_norm,
    looks_channels_last,
    noisy_dense,
    relu,
    scaled,
    torch_default,
    torch_weights,
)
from twin_graph.twin.tf import tf

if TYPE_CHECKING:
    from twin_graph.config.settings import ModelSettings
    from twin_graph.envs import EnvSpec
    from twin_graph.twin.heads import Head


LEVELS = "levels"  # the layer that embeds them
_WAVES = 64  # that embed a level: n of Dabney et al. 2018b


class Layers(Protocol):
    """What `layers`, `cpu_layers` and `xla_layers` all provide."""

    def convolution_of_frames(
        self, name: str, frames: Tensor, channels: int, padding: str, start: Start, dtype: Any
    ) -> Tensor: ...

    def convolution(
        self, name: str, x: Tensor, kernel: int, channels: int, stride: int, padding: str, start: Start
    ) -> Tensor: ...

    def hidden(self, name: str, x: Tensor, units: int, start: Start) -> Tensor: ...

    def in_parts(self, layers: Callable[[Tensor], Tensor], x: Tensor) -> Tensor: ...


class Build(NamedTuple):
    """How a network is built.

    Attributes:
      model: its settings.
      dtype: in which its layers multiply, float32 or bfloat16.
      layers: the module whose layers to use: `layers` (plain), `cpu_layers` or `xla_layers`.
      dropout_seed: int32 `[2]`, seed of the dropout masks; no dropout if its first number is negative.
      head: what the last layer's numbers mean.
      noise_key: int32 `[2]`, of the noise of `model.noisy`; no noise if its first number is negative.
      levels: of the quantiles that are asked for, float32 `[B, n]`; None unless the head samples them.
    """

    model: ModelSettings
    dtype: Any
    layers: Layers
    dropout_seed: Tensor
    head: Head = Scalar()
    noise_key: Tensor | None = None
    levels: Tensor | None = None

    def features(self, x: Tensor) -> Tensor:
        """What goes into the last hidden layer, `[B, D]`: for each level of a quantile by itself, `[B * n, D]`.

        As in Dabney et al. 2018b, equation 4: `x * relu(sum_i cos(pi i level) w_ij + b_j)`, with i from 1 to 64 as in
        Dopamine. For another head it is `x`.
        """
        if self.levels is None:
            return x
        units = int(x.shape[1])
        numbers = np.pi * np.arange(1, _WAVES + 1)
        waves = tf.cos(tf.reshape(self.levels, [-1, 1]) * numbers.astype(np.float32))
        embedded = relu(LEVELS, dense(LEVELS, tf.cast(waves, x.dtype), units, torch_default))
        of_levels = tf.reshape(embedded, [-1, int(self.levels.shape[1]), units])
        return tf.reshape(x[:, None, :] * of_levels, [-1, units])

    def hidden(self, name: str, x: Tensor, units: int, start: Start) -> Tensor:
        """A hidden fully connected layer, `[B, D]` to `[B, units]`; with `model.noisy` a noisy one."""
        return self._noisy(name, x, units) if self.model.noisy else self.layers.hidden(name, x, units, start)

    def last_layer(self, name: str, x: Tensor, actions: int, start: Start) -> Tensor:
        """The numbers of the head for so many actions, `[B, actions]` or `[B, actions, N]`, in float32."""
        axes = () if self.levels is not None else self.head.axes
        x, units = tf.cast(x, tf.float32), actions * math.prod(axes)
        outputs = self._noisy(name, x, units) if self.model.noisy else last_layer(name, x, units, start)
        if self.levels is not None:
            return tf.transpose(tf.reshape(outputs, [-1, int(self.levels.shape[1]), actions]), [0, 2, 1])
        return tf.reshape(outputs, [-1, actions, *axes]) if axes else outputs

    def relu(self, name: str, x: Tensor) -> Tensor:
        """The rectifier after the layer of this name; with `model.layer_norm` the layer is normalized before."""
        return relu(name, layer_norm(name, x) if self.model.layer_norm else x)

    def _noisy(self, name: str, x: Tensor, units: int) -> Tensor:
        return noisy_dense(name, x, units, self.model.noisy_sigma, self.noise_key)


def nature(observation: Tensor, n_actions: int, build: Build) -> Tensor:
    """The network of Mnih et al. 2015: three convolutions, 512 units.

    Layers before a ReLU are initialized uniformly in +-sqrt(6/fan_in) (He et al. 2015), the output layer in
    +-1/sqrt(fan_in), biases to zero. DQN 3.0, Stable-Baselines3 and CleanRL start every layer from Torch's
    +-1/sqrt(fan_in). Four such layers leave a spread of 0.0002 between the Q values of different Pong screens, so at
    first all gradients agree: with Adam at 2e-4 the first convolution was dead after 10,000 updates (no unit above zero
    on any screen), and nothing was learnt.

    Args:
      observation: uint8 `[B, stack, H, W]`, frames first, as Gymnasium stacks them (4x84x84 in the paper), or images
        with channels last, `[B, H, W, C]`, or grey ones, `[B, H, W]`.
      n_actions: A.
      build: `model.padding` applies to every convolution; for `model.dueling` see `_read_out`.
    """
    return _read_out("fc1", _convolutions(observation, he, build), 512, n_actions, (he, torch_weights), build)


def dopamine(observation: Tensor, n_actions: int, build: Build) -> Tensor:
    """The network of Dopamine's Rainbow and DrQ(eps): `nature`, but the streams of `model.dueling` share its 512 units.

    Dopamine's padding is SAME (`model.padding=SAME`). Weights start uniform in +-sqrt(6/(fan_in + fan_out)) (Glorot and
    Bengio 2010).
    """
    x = build.features(_convolutions(observation, glorot, build))
    x = build.relu("fc1", build.hidden("fc1", x, 512, glorot))
    if not build.model.dueling:
        return build.last_layer("q", x, n_actions, glorot)
    return _dueling(build.last_layer("value", x, 1, glorot), build.last_layer("advantage", x, n_actions, glorot))


def mnih2013(observation: Tensor, n_actions: int, build: Build) -> Tensor:
    """The network of Mnih et al. 2013: 16 filters 8x8 with stride 4, 32 filters 4x4 with stride 2, 256 units.

    Takes images as `nature`, down to 20 pixels a side; layers start as those of `nature`.
    """

    def convolutions(image: Tensor) -> Tensor:
        x = build.relu("conv1", _first_convolution(image, 16, he, build))
        return flatten(build.relu("conv2", build.layers.convolution("conv2", x, 4, 32, 2, build.model.padding, he)))

    x = build.layers.in_parts(convolutions, observation)
    return _read_out("fc1", x, 256, n_actions, (he, torch_weights), build)


def pooled80(observation: Tensor, n_actions: int, build: Build) -> Tensor:
    """One convolution of 32 filters and a 2x2 maximum: 3200 numbers, from which Q is read out without a hidden layer.

    Takes uint8 `[B, stack, 80, 80]`, frames first. Layers start as those of `nature`.
    """
    x = build.relu("conv1", _first_convolution(observation, 32, he, build, "SAME"))
    x = build.features(flatten(tf.nn.max_pool2d(x, 2, 2, "SAME")))
    return build.last_layer("q", x, n_actions, torch_weights)


def minatar(observation: Tensor, n_actions: int, build: Build) -> Tensor:
    """The network of Young and Tian 2019: 16 3x3 filters, 128 units; started as Torch does.

    Takes uint8 `[B, 10, 10, C]` or `[B, C, 10, 10]`, or other images.
    """
    x = scaled(_channels_last(observation), build.dtype)
    x = build.relu("conv1", build.layers.convolution("conv1", x, 3, 16, 1, build.model.padding, torch_default))
    return _read_out("fc1", flatten(x), 128, n_actions, (torch_default, torch_default), build)


def board(observation: Tensor, n_actions: int, build: Build) -> Tensor:
    """For boards where four in a row matter: 64 4x4 filters, 128 units; initialized like `mlp`.

    Takes `[B, H, W, C]` or `[B, C, H, W]`.
    """
    x = scaled(_channels_last(observation), build.dtype)
    x = build.relu("conv1", build.layers.convolution("conv1", x, 4, 64, 1, build.model.padding, torch_default))
    return _read_out("fc1", flatten(x), 128, n_actions, (torch_default, torch_default), build)


def mlp(observation: Tensor, n_actions: int, build: Build) -> Tensor:
    """Fully connected layers of `model.hidden_units` with rectifiers, for vectors: float32 `[B, D]` to Q `[B, A]`.

    Everything starts uniform in +-1/sqrt(fan_in), as in Torch. With zero biases, every unit would switch at the origin,
    near which the few inputs of a task like CartPole stay.
    """
    x = flatten(scaled(observation, build.dtype))
    *shared, last = build.model.hidden_units
    for i, units in enumerate(shared, start=1):
        x = build.relu(f"fc{i}", build.hidden(f"fc{i}", x, units, torch_default))
    return _read_out(f"fc{len(shared) + 1}", x, last, n_actions, (torch_default, torch_default), build)


def blob(observation: Tensor, n_actions: int, build: Build) -> Tensor:
    """The network of the Blob tutorial: two blocks of 256 3x3 filters, pooling and dropout, 64 units, Q values.

    The 64 units have no activation, so that they and the read-out are one linear map of rank 64. Weights start as
    Keras' do, uniform in +-sqrt(6/(fan_in + fan_out)) (Glorot and Bengio 2010).

    Takes uint8 `[B, 10, 10, 3]`, or `[B, 3, 10, 10]`.
    """
    x = scaled(_channels_last(observation), build.dtype)
    for block in (1, 2):
        x = build.relu(f"conv{block}", build.layers.convolution(f"conv{block}", x, 3, 256, 1, "VALID", glorot))
        x = tf.nn.max_pool2d(x, 2, 2, "VALID")
        x = dropout(x, 0.2, tf.stack([build.dropout_seed[0], 2 * build.dropout_seed[1] + block]))
    x = build.hidden("fc1", build.features(flatten(x)), 64, glorot)
    return build.last_layer("q", x, n_actions, glorot)


def _convolutions(observation: Tensor, start: Start, build: Build) -> Tensor:
    """The three convolutions of Mnih et al. 2015, to `[B, D]`."""
    layers, padding = build.layers, build.model.padding

    def convolutions(image: Tensor) -> Tensor:
        x = build.relu("conv1", _first_convolution(image, 32, start, build))
        x = build.relu("conv2", layers.convolution("conv2", x, 4, 64, 2, padding, start))
        x = build.relu("conv3", layers.convolution("conv3", x, 3, 64, 1, padding, start))
        return flatten(x)

    return layers.in_parts(convolutions, observation)


def _first_convolution(image: Tensor, channels: int, start: Start, build: Build, padding: str = "") -> Tensor:
    """Filters of 8x8 with stride 4, of frames `[B, stack, H, W]` or images `[B, H, W, C]`, `[B, H, W]`."""
    padding = padding or build.model.padding
    if image.shape.rank == 3:
        image = image[..., None]
    if looks_channels_last(image.shape[1:].as_list()):
        return build.layers.convolution("conv1", scaled(image, build.dtype), 8, channels, 4, padding, start)
    return build.layers.convolution_of_frames("conv1", image, channels, padding, start, build.dtype)


def _channels_last(image: Tensor) -> Tensor:
    """Images `[B, H, W, C]`, of these or of `[B, C, H, W]`."""
    return tf.transpose(image, [0, 2, 3, 1]) if _looks_channels_first(image.shape[1:].as_list()) else image


def _looks_channels_first(shape: Sequence[int]) -> bool:
    """Whether a board, which may have more channels than rows, is `[C, H, W]`: its last two sides alone are equal, or
    none are and the first is the shortest."""
    channels, *sides = shape
    return len({*shape}) > 1 and (sides[0] == sides[1] or (len({*shape}) == 3 and channels == min(shape)))


def takes_channels_first(name: str, env: EnvSpec) -> bool:
    """Whether a network that was made for images with channels last transposes this environment's."""
    network = NETWORKS.get(name)
    return bool(network and network.channels_last) and _looks_channels_first(env.network_shape)


def channels_axis(name: str, env: EnvSpec) -> int | None:
    """Which axis of observations `[H, W, C]` or `[stack, H, W]` has the channels; None if that is unknown.

    The named network decides; for `mlp` and networks of your own, the shape does.
    """
    network, shape = NETWORKS.get(name), env.observation_shape
    if network and network.function is not mlp:
        last = not _looks_channels_first(shape) if network.channels_last else looks_channels_last(shape)
        return 2 if last else 0
    if env.stack > 1:
        return 0
    return 2 if looks_channels_last(shape) and shape[2] in (1, 3, 4) else None  # grey, RGB, or RGB and alpha


def _read_out(name: str, x: Tensor, units: int, n_actions: int, starts: tuple[Start, Start], build: Build) -> Tensor:
    """The last hidden layer and the Q values.

    With `model.dueling` there are two of that layer, one for the value of the state and one for the advantages of
    actions.
    """
    before_rectifier, before_nothing = starts
    x = build.features(x)

    def stream(prefix: str, read_out: str, outputs: int) -> Tensor:
        x_hidden = build.relu(prefix + name, build.hidden(prefix + name, x, units, before_rectifier))
        return build.last_layer(read_out, x_hidden, outputs, before_nothing)

    if not build.model.dueling:
        return stream("", "q", n_actions)
    advantage = stream("advantage_", "advantage", n_actions)
    return _dueling(stream("value_", "value", 1), advantage)


def _dueling(value: Tensor, advantage: Tensor) -> Tensor:
    """Q = V + A - mean(A), of `[B, 1]` and `[B, A]` (Wang et al. 2016, equation 9), or of each atom by itself, of
    `[B, 1, N]` and `[B, A, N]` (Hessel et al. 2018)."""
    return value + advantage - tf.reduce_mean(advantage, axis=1, keepdims=True)


Function = Callable[[Tensor, int, Build], Tensor]


class Network(NamedTuple):
    """A network; the observations that it takes, in words and as a check; whether it was made for channels last."""

    function: Function
    takes: str
    fits: Callable[[EnvSpec], bool]
    channels_last: bool = False  # as its paper has them


def _is_image(env: EnvSpec) -> bool:
    return len(env.network_shape) == 3 or (len(env.network_shape) == 2 and env.observation_dtype == "uint8")


def _is_single_image(env: EnvSpec) -> bool:
    return len(env.network_shape) == 3 and env.stack == 1


def _is_large_enough_for_blob(env: EnvSpec) -> bool:
    shape = env.network_shape
    return _is_single_image(env) and min(shape[1:] if _looks_channels_first(shape) else shape[:2]) >= 10


_SMALLEST_SIDE = 36  # pixels: below this, the three convolutions of `nature` leave nothing

NETWORKS = {
    "nature": Network(nature, "images [stack, H, W] or [H, W, channels]", _is_image),
    "dopamine": Network(dopamine, "images [stack, H, W] or [H, W, channels]", _is_image),
    "mnih2013": Network(mnih2013, "images [stack, H, W] or [H, W, channels]", _is_image),
    "pooled80": Network(pooled80, "images [stack, 80, 80]", lambda env: env.network_shape[1:] == (80, 80)),
    "minatar": Network(minatar, "images [H, W, channels]", _is_single_image, channels_last=True),
    "board": Network(board, "boards [H, W, channels]", _is_single_image, channels_last=True),
    "blob": Network(blob, "images [H, W, channels] of 10x10 or more", _is_large_enough_for_blob, channels_last=True),
    "mlp": Network(mlp, "numbers", lambda env: True),  # noqa: ARG005
}


def _advised(env: EnvSpec) -> str:
    """The name of a network that takes these observations."""
    shape = env.network_shape
    sides = shape[:2] if looks_channels_last(shape) else shape[-2:]
    if _is_image(env) and min(sides) >= _SMALLEST_SIDE:
        return "nature"
    return "minatar" if _is_single_image(env) else "mlp"


def check_fits(name: str, env_id: str, env: EnvSpec) -> None:
    """Raises `UsageError` if there is no network of this name, or it does not take this environment's observations."""
    network = lookup.find("network", name, NETWORKS)
    if not isinstance(network, Network) or network.fits(env):
        return
    shape = env.network_shape
    other = f"network={_advised(env)}"
    if network.function is pooled80 and env.stack > 1:
        other = "env.image_height=80 --set env.image_width=80"
    raise UsageError(
        f"network={name} needs {network.takes} and {env_id} gives observations of shape {list(shape)}; "
        f"use --set {other}"
    )


def find_network(name: str, env: EnvSpec) -> Function:
    """The network of this name, or the user's own; for one graph, in which a Keras model is made once.

    Args:
      name: in `NETWORKS`, or `module:function`.
      env: what it observes.

    Raises:
      UsageError: there is none.
    """
    network = lookup.find("network", name, NETWORKS)
    if isinstance(network, Network):
        return network.function
    own = keras_models.KerasNetwork(name, network, env) if keras_models.is_creator(name, network) else network
    return functools.partial(_of_own, name, own)


def q_network(network: Function, observation: Tensor, env: EnvSpec, build: Build) -> Tensor:
    """What a network has for the head, float32 `[B, A]` or `[B, A, N]`; see `heads` on illegal actions.

    Raises:
      ForeignError: a user's own network fails.
    """
    if not env.masked:
        return network(observation, env.n_actions, build)
    seen, legal = observation[:, : -env.n_actions], observation[:, -env.n_actions :]
    outputs = network(tf.reshape(seen, [-1, *env.seen_shape]), env.n_actions, build)
    return build.head.with_illegal(outputs, tf.not_equal(legal, tf.zeros([], legal.dtype)))


def _of_own(name: str, network: Function, observation: Tensor, n_actions: int, build: Build) -> Tensor:
    try:
        q = tf.convert_to_tensor(network(observation, n_actions, build))
    except UsageError:
        raise
    except Exception as error:
        raise foreign_error(f"network={name}", error) from error
    axes = build.head.axes if build.levels is None else (int(build.levels.shape[1]),)
    wanted = (None, n_actions, *axes)
    if not q.shape.is_compatible_with(wanted):
        what, advice = "Q values", ""
        if build.head.axes:
            what, advice = f"what model.head={build.model.head} needs,", ": end it with build.last_layer"
            if build.levels is not None:
                advice = ": give build.features(x) to its last hidden layer, and end it with build.last_layer"
        raise ForeignError(f"network={name} must return {what} of shape {wanted}, not {q.shape}{advice}")
    if q.dtype != tf.float32:
        raise ForeignError(
            f"network={name} must return float32, not {q.dtype.name}, which cannot tell nearly equal actions apart: "
            "end it with last_layer"
        )
    return q
