"""Q networks, as their papers have them.

Each takes the type in which its layers multiply, `dtype`, float32 or bfloat16, and the layers to compute with: those of
`layers`, which are plain, or of `cpu_layers`.
"""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from twin_graph.graph_mode import tf
from twin_graph.layers import (
    Start,
    Tensor,
    dense,
    dropout,
    flatten,
    glorot,
    he,
    linear,
    numbers,
    q_values,
    relu,
    torch,
)


class Layers(Protocol):
    """What `layers` and `cpu_layers` have in common."""

    def convolution_of_frames(
        self, name: str, frames: Tensor, channels: int, padding: str, start: Start, dtype: Any
    ) -> Tensor: ...

    def convolution(
        self, name: str, x: Tensor, kernel: int, channels: int, stride: int, padding: str, start: Start
    ) -> Tensor: ...

    def hidden(self, name: str, x: Tensor, units: int, start: Start) -> Tensor: ...

    def in_parts(self, layers: Callable[[Tensor], Tensor], x: Tensor) -> Tensor: ...


def nature(observation: Tensor, n_actions: int, *, padding: str, dueling: bool, dtype: Any, layers: Layers) -> Tensor:
    """The network of Mnih et al. 2015: three convolutions, 512 units.

    Layers before a rectifier start uniform in +-sqrt(6/fan_in) (He et al. 2015), the read-out in +-1/sqrt(fan_in),
    biases at zero. DQN 3.0, Stable-Baselines3 and CleanRL start every layer from Torch's +-1/sqrt(fan_in). Four layers
    of that leave a spread of 0.0002 between the Q values of different Pong screens, so that at the beginning all
    gradients agree: with Adam at 2e-4 the first convolution was dead after 10,000 updates (no unit above zero on any
    screen), and nothing was learnt.

    Args:
      observation: uint8 `[B, stack, H, W]`, frames first, as Gymnasium stacks them (4x84x84 in the paper), or images
        with channels last, `[B, H, W, C]`, or grey ones, `[B, H, W]`.
      n_actions: A.
      padding: `VALID` (the paper) or `SAME`, for every convolution.
      dueling: see `_read_out`.
      dtype: in which it multiplies.
      layers: see this module's text.

    Returns:
      Q values, float32 `[B, A]`.
    """

    def convolutions(image: Tensor) -> Tensor:
        x = relu("conv1", _first_convolution(image, padding, dtype, layers))
        x = relu("conv2", layers.convolution("conv2", x, 4, 64, 2, padding, he))
        x = relu("conv3", layers.convolution("conv3", x, 3, 64, 1, padding, he))
        return flatten(x)

    x = layers.in_parts(convolutions, observation)
    return _read_out("fc1", x, 512, n_actions, dueling, (he, linear), layers)


def pooled80(observation: Tensor, n_actions: int, *, dtype: Any, layers: Layers) -> Tensor:
    """One convolution of 32 filters and a 2x2 maximum: 3200 numbers, from which Q is read out without a hidden layer.

    Layers start as those of `nature`.

    Args:
      observation: uint8 `[B, stack, 80, 80]`, frames first.
      n_actions: A.
      dtype: in which it multiplies.
      layers: see this module's text.

    Returns:
      Q values, float32 `[B, A]`.
    """
    x = relu("conv1", _first_convolution(observation, "SAME", dtype, layers))
    return q_values("q", flatten(tf.nn.max_pool2d(x, 2, 2, "SAME")), n_actions, linear)


def mlp(
    observation: Tensor, n_actions: int, *, hidden_units: Sequence[int], dueling: bool, dtype: Any, layers: Layers
) -> Tensor:
    """Fully connected layers of `hidden_units` with rectifiers, for vectors: float32 `[B, D]` to Q `[B, A]`.

    Everything starts uniform in +-1/sqrt(fan_in), as in Torch. Biases at zero would let every unit bend at the origin,
    which is where the few numbers of a task like CartPole stay.
    """
    x = flatten(numbers(observation, dtype))
    *shared, last = hidden_units
    for i, units in enumerate(shared, start=1):
        x = relu(f"fc{i}", dense(f"fc{i}", x, units, torch))
    return _read_out(f"fc{len(hidden_units)}", x, last, n_actions, dueling, (torch, torch), layers)


def blob(observation: Tensor, n_actions: int, *, dropout_seed: Tensor, dtype: Any, layers: Layers) -> Tensor:
    """The network of the Blob tutorial: two blocks of 256 3x3 filters, pooling and dropout, 64 units, Q values.

    The 64 units have no activation, so that they and the read-out are one linear map of rank 64. Weights start as
    Keras' do, uniform in +-sqrt(6/(fan_in + fan_out)) (Glorot and Bengio 2010).

    Args:
      observation: uint8 `[B, 10, 10, 3]`.
      n_actions: A.
      dropout_seed: int32 `[2]`, from which the masks follow; without dropout if the first is negative.
      dtype: in which it multiplies.
      layers: see this module's text.

    Returns:
      Q values, float32 `[B, A]`.
    """
    x = numbers(observation, dtype)
    for block in (1, 2):
        x = relu(f"conv{block}", layers.convolution(f"conv{block}", x, 3, 256, 1, "VALID", glorot))
        x = tf.nn.max_pool2d(x, 2, 2, "VALID")
        x = dropout(x, 0.2, tf.stack([dropout_seed[0], 2 * dropout_seed[1] + block]))
    x = dense("fc1", flatten(x), 64, glorot)
    return q_values("q", x, n_actions, glorot)


def _first_convolution(image: Tensor, padding: str, dtype: Any, layers: Layers) -> Tensor:
    """32 filters, 8x8 with stride 4, of frames `[B, stack, H, W]` or images `[B, H, W, C]`, `[B, H, W]`."""
    if image.shape.rank == 3:
        image = image[..., None]
    if channels_last(image.shape[1:].as_list()):
        return layers.convolution("conv1", numbers(image, dtype), 8, 32, 4, padding, he)
    return layers.convolution_of_frames("conv1", image, 32, padding, he, dtype)


def channels_last(shape: Sequence[int]) -> bool:
    """Whether an observation of three axes is an image whose last one is its channels: grey, RGB, or RGB and alpha."""
    return len(shape) == 3 and shape[2] in (1, 3, 4) and shape[2] < shape[0]


def _read_out(
    name: str, x: Tensor, units: int, n_actions: int, dueling: bool, starts: tuple[Start, Start], layers: Layers
) -> Tensor:
    """The last hidden layer and the Q values.

    With `dueling` there are two of that layer, one for the value of the state and one for the advantages of actions:
    Q = V + A - mean(A) (Wang et al. 2016, equation 9).
    """
    before_rectifier, before_nothing = starts

    def stream(prefix: str, read_out: str, outputs: int) -> Tensor:
        x_hidden = relu(prefix + name, layers.hidden(prefix + name, x, units, before_rectifier))
        return q_values(read_out, x_hidden, outputs, before_nothing)

    if not dueling:
        return stream("", "q", n_actions)
    advantage = stream("advantage_", "advantage", n_actions)
    return stream("value_", "value", 1) + advantage - tf.reduce_mean(advantage, axis=1, keepdims=True)
