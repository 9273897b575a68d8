"""Plain layers of Q networks: `tf.nn` on resource variables, channels last. For GPUs and for exported graphs.

A layer multiplies in the type of its input, float32 or bfloat16. Variables are float32 in both, and so is the
last layer: bfloat16's eight bits cannot tell two close values apart. `cpu_layers` computes some of them faster.
"""

import zlib
from collections.abc import Callable, Sequence
from typing import Any

from twin_graph.errors import UsageError
from twin_graph.twin.tf import tf

Tensor = Any
Initializer = Any

#: A layer's initializers of weights and biases, given fan_in and fan_out.
Start = Callable[[int, int], tuple[Initializer, Initializer]]

#: How the names of variables end that scale noise.
SIGMA = "_sigma"
#: What the names of variables end with that scale a normalized layer.
NORM_SCALE = "norm_scale"
#: The graph collection with the hidden layers' outputs, each named `LAYER/activation`.
ACTIVATIONS = "activations"


def convolution_of_frames(name: str, frames: Tensor, channels: int, padding: str, start: Start, dtype: Any) -> Tensor:
    """An 8x8 convolution with stride 4 of stacked frames; bytes are scaled to 0..1.

    Args:
      name: of the layer.
      frames: `[B, stack, H, W]`.
      channels: C, of the output.
      padding: `VALID` or `SAME`.
      start: of weights `[8, 8, stack, C]` and bias.
      dtype: of the output.

    Returns:
      `[B, H', W', C]`.
    """
    return convolution(name, tf.transpose(scaled(frames, dtype), [0, 2, 3, 1]), 8, channels, 4, padding, start)


def convolution(name: str, x: Tensor, kernel: int, channels: int, stride: int, padding: str, start: Start) -> Tensor:
    """A square convolution with biases, `[B, H, W, C]` to `[B, H', W', channels]`."""
    weights, bias = convolution_weights(name, x, kernel, channels, padding, start)
    return tf.nn.bias_add(tf.nn.conv2d(x, weights, strides=stride, padding=padding), bias)


def hidden(name: str, x: Tensor, units: int, start: Start) -> Tensor:
    """A hidden fully connected layer, `[B, D]` to `[B, units]`."""
    return dense(name, x, units, start)


def in_parts(layers: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """`layers(x)`, for all examples at once."""
    return layers(x)


def dense(name: str, x: Tensor, units: int, start: Start) -> Tensor:
    """A fully connected layer, `[B, D]` to `[B, units]`."""
    fan_in = int(x.shape[1])
    weights, bias = weights_and_bias(name, [fan_in, units], start(fan_in, units))
    return tf.nn.bias_add(tf.matmul(x, tf.cast(weights, x.dtype)), tf.cast(bias, x.dtype))


def last_layer(name: str, x: Tensor, outputs: int, start: Start) -> Tensor:
    """The last layer, in float32."""
    return dense(name, tf.cast(x, tf.float32), outputs, start)


def noisy_dense(name: str, x: Tensor, units: int, sigma: float, key: Tensor | None) -> Tensor:
    """A fully connected layer with factorized noise on its weights (Fortunato et al. 2018, equations 9 to 11).

    `y = (mu_w + sigma_w * f(p) f(q)^T)^T x + mu_b + sigma_b * f(q)`, with `f(z) = sgn(z) sqrt(|z|)` of normal numbers,
    the same for all examples. `mu` starts uniform in +-1/sqrt(fan_in), `sigma` at `sigma / sqrt(fan_in)`.

    Args:
      name: of the layer; layers of other names have other noise.
      x: `[B, D]`.
      units: of the output.
      sigma: initial size of the noise.
      key: int32 `[2]`, of which the noise is a function; no noise without one, or if its first number is negative.

    Returns:
      `[B, units]`, in the type of `x`.
    """
    fan_in, salt = int(x.shape[1]), zlib.crc32(name.encode()) >> 1

    shape, start = [fan_in, units], tf.constant_initializer(sigma * fan_in**-0.5)
    weights, bias = weights_and_bias(name, shape, torch_default(fan_in, units))
    weights_sigma, bias_sigma = weights_and_bias(name, shape, (start, start), suffix=SIGMA)
    mean = tf.matmul(x, tf.cast(weights, x.dtype))
    if key is None:
        return mean + tf.cast(bias, x.dtype)

    def noise(size: int, which: int) -> Tensor:
        z = tf.random.stateless_normal([size], seed=tf.bitwise.bitwise_xor(key, [salt, which]))
        return tf.where(key[0] < 0, tf.zeros_like(z), tf.sign(z) * tf.sqrt(tf.abs(z)))

    of_inputs, of_outputs = noise(fan_in, 0), noise(units, 1)
    # The noise of the weights is of rank one, so that their matrix need not be made.
    moved = tf.matmul(x * tf.cast(of_inputs, x.dtype), tf.cast(weights_sigma, x.dtype)) * tf.cast(of_outputs, x.dtype)
    return mean + moved + tf.cast(bias + bias_sigma * of_outputs, x.dtype)


def layer_norm(name: str, x: Tensor) -> Tensor:
    """`scale * (x - mean) / sqrt(variance + 1e-6) + shift` over the last axis, for each example and pixel by itself (Ba
    et al. 2016; over channels alone as in PQN, Gallici et al. 2025). In the type of `x`; computed in float32."""
    with tf.variable_scope(name):
        scale = tf.get_variable(NORM_SCALE, x.shape[-1:], initializer=tf.ones_initializer(), use_resource=True)
        shift = tf.get_variable("norm_shift", x.shape[-1:], initializer=tf.zeros_initializer(), use_resource=True)
    mean, variance = tf.nn.moments(tf.cast(x, tf.float32), axes=[-1], keepdims=True)
    normalized = (tf.cast(x, tf.float32) - mean) * tf.math.rsqrt(variance + 1e-6)
    return tf.cast(scale * normalized + shift, x.dtype)


def relu(name: str, x: Tensor) -> Tensor:
    """The rectifier after the layer of this name; its output is kept in `ACTIVATIONS` for people to look at."""
    activation = tf.nn.relu(x, name=f"{name}/activation")
    tf.add_to_collection(ACTIVATIONS, activation)
    return activation


def dropout(x: Tensor, rate: float, seed: Tensor) -> Tensor:
    """Sets a share of the numbers to zero and scales up the rest; depends on the seed alone, unlike `tf.nn.dropout`."""
    kept = tf.random.stateless_uniform(tf.shape(x), seed=seed) >= rate
    return tf.where(seed[0] < 0, x, tf.where(kept, x / (1 - rate), tf.zeros_like(x)))


def scaled(observation: Tensor, dtype: Any) -> Tensor:
    """As numbers of this type: bytes are brightness and become 0 to 1, other numbers stay as they are."""
    x = tf.cast(observation, dtype)
    return x / 255 if observation.dtype == tf.uint8 else x


def looks_channels_last(shape: Sequence[int]) -> bool:
    """Whether an image `[H, W, C]` or `[C, H, W]` is the former: it has no more channels than rows."""
    return len(shape) == 3 and shape[2] <= shape[0]


def flatten(x: Tensor) -> Tensor:
    return tf.reshape(x, [-1, x.shape[1:].num_elements()])


def convolution_weights(
    name: str, x: Tensor, kernel: int, channels: int, padding: str, start: Start
) -> tuple[Tensor, Tensor]:
    """Weights `[kernel, kernel, C, channels]` and bias of a convolution of `x`, in its type."""
    height, width, depth = x.shape[1:].as_list()
    check_size(name, kernel, height, width, padding)
    weights, bias = weights_and_bias(
        name, [kernel, kernel, depth, channels], start(kernel * kernel * depth, kernel * kernel * channels)
    )
    return tf.cast(weights, x.dtype), tf.cast(bias, x.dtype)


def check_size(name: str, kernel: int, height: int, width: int, padding: str) -> None:
    if padding == "VALID" and min(height, width) < kernel:
        raise UsageError(
            f"the image is too small for the network: {name} has a {kernel}x{kernel} kernel and gets {height}x{width}; "
            "set model.padding=SAME where the network has it (nature, dopamine, mnih2013, minatar, board), or for "
            "Atari games raise env.image_height and env.image_width"
        )


def weights_and_bias(
    name: str, shape: Sequence[int], initializers: tuple[Initializer, Initializer], *, suffix: str = ""
) -> tuple[Tensor, Tensor]:
    with tf.variable_scope(name):
        return (
            tf.get_variable(f"weights{suffix}", shape, initializer=initializers[0], use_resource=True),
            tf.get_variable(f"bias{suffix}", shape[-1:], initializer=initializers[1], use_resource=True),
        )


def he(fan_in: int, _: int) -> tuple[Initializer, Initializer]:
    """Uniform in +-sqrt(6/fan_in), for layers before a rectifier (He et al. 2015); biases at zero."""
    return _uniform((6 / fan_in) ** 0.5), tf.zeros_initializer()


def torch_weights(fan_in: int, _: int) -> tuple[Initializer, Initializer]:
    """Torch's weights, uniform in +-1/sqrt(fan_in); biases at zero."""
    return _uniform(fan_in**-0.5), tf.zeros_initializer()


def torch_default(fan_in: int, _: int) -> tuple[Initializer, Initializer]:
    """Torch's weights and biases, uniform in +-1/sqrt(fan_in)."""
    return _uniform(fan_in**-0.5), _uniform(fan_in**-0.5)


def glorot(fan_in: int, fan_out: int) -> tuple[Initializer, Initializer]:
    """Uniform in +-sqrt(6/(fan_in + fan_out)) (Glorot and Bengio 2010); biases at zero."""
    return _uniform((6 / (fan_in + fan_out)) ** 0.5), tf.zeros_initializer()


def _uniform(limit: float) -> Initializer:
    return tf.random_uniform_initializer(-limit, limit)
