"""Q networks: plain `tf.nn` on resource variables.

Each takes the type in which its layers multiply, `dtype`: float32 or bfloat16. Variables are float32 in both, and so is
the last layer: the values of two actions may not differ in bfloat16's eight bits.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

from twin_graph.errors import UsageError
from twin_graph.graph_mode import tf

Tensor = Any
Initializer = Any

#: How a layer's weights and biases start, from the number of inputs of each of its units and of outputs of each input.
Start = Callable[[int, int], tuple[Initializer, Initializer]]


def nature(observation: Tensor, n_actions: int, *, padding: str, dueling: bool, dtype: Any) -> Tensor:
    """The network of Mnih et al. 2015: three convolutions, 512 units.

    Layers before a rectifier start uniform in +-sqrt(6/fan_in) (He et al. 2015), the read-out in +-1/sqrt(fan_in),
    biases at zero. DQN 3.0, Stable-Baselines3 and CleanRL start every layer from Torch's +-1/sqrt(fan_in). Four layers
    of that leave a spread of 0.0002 between the Q values of different Pong screens, so that at the beginning all
    gradients agree: with Adam at 2e-4 the first convolution was dead after 10,000 updates (no unit above zero on any
    screen), and nothing was learnt.

    Args:
      observation: uint8 `[B, stack, H, W]`, frames first, as Gymnasium stacks them; 4x84x84 in the paper.
      n_actions: A.
      padding: `VALID` (the paper) or `SAME`, for every convolution.
      dueling: see `_read_out`.
      dtype: in which it multiplies.

    Returns:
      Q values, float32 `[B, A]`.
    """

    def convolutions(observation: Tensor) -> Tensor:
        x = tf.nn.relu(_convolution_of_frames("conv1", observation, 32, padding, _he, dtype))
        for name, kernel, channels, stride in (("conv2", 4, 64, 2), ("conv3", 3, 64, 1)):
            x = tf.nn.relu(_convolution(name, x, kernel, channels, stride, padding, _he))
        return _flatten(x)

    return _read_out("fc1", _in_halves(convolutions, observation), 512, n_actions, dueling, (_he, _linear))


def pooled80(observation: Tensor, n_actions: int, *, dtype: Any) -> Tensor:
    """One convolution of 32 filters and a 2x2 maximum: 3200 numbers, from which Q is read out without a hidden layer.

    Layers start as those of `nature`.

    Args:
      observation: uint8 `[B, stack, 80, 80]`, frames first.
      n_actions: A.
      dtype: in which it multiplies.

    Returns:
      Q values, float32 `[B, A]`.
    """
    x = tf.nn.relu(_convolution_of_frames("conv1", observation, 32, "SAME", _he, dtype))
    return _q_values("q", _flatten(tf.nn.max_pool2d(x, 2, 2, "SAME")), n_actions, _linear)


def mlp(observation: Tensor, n_actions: int, *, hidden_units: Sequence[int], dueling: bool, dtype: Any) -> Tensor:
    """Fully connected layers of `hidden_units` with rectifiers, for vectors: float32 `[B, D]` to Q `[B, A]`.

    Everything starts uniform in +-1/sqrt(fan_in), as in Torch. Biases at zero would let every unit bend at the origin,
    which is where the few numbers of a task like CartPole stay.
    """
    x = _flatten(_numbers(observation, dtype))
    *shared, last = hidden_units
    for i, units in enumerate(shared, start=1):
        x = tf.nn.relu(_dense(f"fc{i}", x, units, _torch))
    return _read_out(f"fc{len(hidden_units)}", x, last, n_actions, dueling, (_torch, _torch))


def blob(observation: Tensor, n_actions: int, *, dropout_seed: Tensor, dtype: Any) -> Tensor:
    """The network of the Blob tutorial: two blocks of 256 3x3 filters, pooling and dropout, 64 units, Q values.

    The 64 units have no activation, so that they and the read-out are one linear map of rank 64. Weights start as
    Keras' do, uniform in +-sqrt(6/(fan_in + fan_out)) (Glorot and Bengio 2010).

    Args:
      observation: uint8 `[B, 10, 10, 3]`.
      n_actions: A.
      dropout_seed: int32 `[2]`, from which the masks follow; without dropout if the first is negative.
      dtype: in which it multiplies.

    Returns:
      Q values, float32 `[B, A]`.
    """
    x = _numbers(observation, dtype)
    for block in (1, 2):
        x = tf.nn.relu(_convolution(f"conv{block}", x, 3, 256, 1, "VALID", _glorot))
        x = tf.nn.max_pool2d(x, 2, 2, "VALID")
        x = _dropout(x, 0.2, tf.stack([dropout_seed[0], 2 * dropout_seed[1] + block]))
    x = _dense("fc1", _flatten(x), 64, _glorot)
    return _q_values("q", x, n_actions, _glorot)


def _dropout(x: Tensor, rate: float, seed: Tensor) -> Tensor:
    """Zeros for a share of the numbers, more for the others; a function of the seed alone, unlike `tf.nn.dropout`."""
    kept = tf.random.stateless_uniform(tf.shape(x), seed=seed) >= rate
    return tf.where(seed[0] < 0, x, tf.where(kept, x / (1 - rate), tf.zeros_like(x)))


def _read_out(name: str, x: Tensor, units: int, n_actions: int, dueling: bool, starts: tuple[Start, Start]) -> Tensor:
    """The last hidden layer and the Q values.

    With `dueling` there are two of that layer, one for the value of the state and one for the advantages of actions:
    Q = V + A - mean(A) (Wang et al. 2016, equation 9).
    """
    before_rectifier, linear = starts

    def stream(prefix: str, read_out: str, outputs: int) -> Tensor:
        with tf.get_default_graph().gradient_override_map({"MatMul": _WEIGHTS_LAST}):
            hidden = tf.nn.relu(_dense(prefix + name, x, units, before_rectifier))
        return _q_values(read_out, hidden, outputs, linear)

    if not dueling:
        return stream("", "q", n_actions)
    advantage = stream("advantage_", "advantage", n_actions)
    return stream("value_", "value", 1) + advantage - tf.reduce_mean(advantage, axis=1, keepdims=True)


_WEIGHTS_LAST = "WeightsLast"


@tf.RegisterGradient(_WEIGHTS_LAST)  # type: ignore[untyped-decorator]
def _weights_last(product: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
    """The gradients of a product; the weights' is there when the inputs' is.

    TensorFlow's own come in any order. An optimizer that is told of the weights' while the inputs' is still reading
    them changes a copy, and in the network of 2015 this layer has nine tenths of all weights.
    """
    x, weights = product.inputs
    of_x = tf.matmul(gradient, weights, transpose_b=True)
    of_weights = tf.matmul(x, gradient, transpose_a=True)
    with tf.control_dependencies([of_x]):
        return of_x, tf.identity(of_weights)


def _numbers(observation: Tensor, dtype: Any) -> Tensor:
    """Bytes are taken for brightness and scaled to 0..1; other numbers stay as they are."""
    x = tf.cast(observation, dtype)
    return x / 255 if observation.dtype == tf.uint8 else x


def _flatten(x: Tensor) -> Tensor:
    return tf.reshape(x, [-1, x.shape[1:].num_elements()])


def _in_halves(layers: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """What `layers` make of `x`, half of the examples at a time.

    One layer has to wait for another, there and back, but one half does not wait for the other: two cores can have one
    each, where threads that share one op would wait for each other at its end.
    """
    half = tf.shape(x)[0] // 2
    first = layers(x[: tf.maximum(half, 1)])[:half]  # of one example, too: oneDNN cannot convolve none
    with tf.variable_scope(tf.get_variable_scope(), reuse=True):
        return tf.concat([first, layers(x[half:])], axis=0)


def _convolution_of_frames(name: str, frames: Tensor, channels: int, padding: str, start: Start, dtype: Any) -> Tensor:
    """An 8x8 convolution with stride 4 of stacked frames, channels last; bytes are scaled to 0..1.

    On the CPU TensorFlow convolves with channels last, and to bring a stack's frames together pixel by pixel takes as
    long as half a layer. Four pixels of a row lie together as they are, and four is the stride: taken for channels they
    need a kernel of 8x2, which adds up the same products, and only cells of four pixels are to be moved.

    Args:
      name: of the layer.
      frames: `[B, stack, H, W]`.
      channels: C, of the output.
      padding: `VALID` or `SAME`.
      start: of weights `[8, 8, stack, C]` and bias.
      dtype: of the output.
    """
    stack, height, width = frames.shape[1:].as_list()
    _check_size(name, 8, height, width, padding)
    weights, bias = _weights_and_bias(name, [8, 8, stack, channels], start(8 * 8 * stack, 8 * 8 * channels))
    rows, columns = (4 * (size // 4 if padding == "VALID" else math.ceil(size / 4) + 1) for size in (height, width))
    if padding == "SAME":
        above, left = (rows - height) // 2, (columns - width) // 2
        around = [[above, rows - height - above], [left, columns - width - left]]
        frames = tf.pad(frames, [[0, 0], [0, 0], *around])
    cells = tf.reshape(frames[:, :, :rows, :columns], [-1, stack, rows * columns // 4, 4])
    if frames.dtype == tf.uint8:  # a cell of bytes moves as one word; oneDNN moves words only if they are called floats
        cells = tf.bitcast(tf.transpose(tf.bitcast(cells, tf.float32), [0, 2, 1]), tf.uint8)
        weights = weights / 255  # bytes are exact in bfloat16, their 255th parts are not
    else:
        cells = tf.transpose(cells, [0, 2, 1, 3])
    x = tf.cast(tf.reshape(cells, [-1, rows, columns // 4, stack * 4]), dtype)
    kernel = tf.transpose(tf.reshape(weights, [8, 2, 4, stack, channels]), [0, 1, 3, 2, 4])
    kernel = tf.cast(tf.reshape(kernel, [8, 2, stack * 4, channels]), dtype)
    return tf.nn.bias_add(tf.nn.conv2d(x, kernel, strides=[4, 1], padding="VALID"), tf.cast(bias, dtype))


def _convolution(name: str, x: Tensor, kernel: int, channels: int, stride: int, padding: str, start: Start) -> Tensor:
    height, width, depth = x.shape[1:].as_list()
    _check_size(name, kernel, height, width, padding)
    weights, bias = _weights_and_bias(
        name, [kernel, kernel, depth, channels], start(kernel * kernel * depth, kernel * kernel * channels)
    )
    faster = _FASTER_GRADIENTS if x.dtype == tf.bfloat16 and padding == "VALID" else {}
    with tf.get_default_graph().gradient_override_map(faster):
        x = tf.nn.conv2d(x, tf.cast(weights, x.dtype), strides=stride, padding=padding)
        return tf.nn.bias_add(x, tf.cast(bias, x.dtype))


#: By the type of an op, under which name its gradient is registered.
_FASTER_GRADIENTS = {"Conv2D": "WeightsByDilation", "BiasAdd": "BiasInFloat32"}


@tf.RegisterGradient(_FASTER_GRADIENTS["Conv2D"])  # type: ignore[untyped-decorator]
def _weights_by_dilation(convolution: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
    """The gradients of a convolution without padding; the weights' is a convolution, too.

    The same sums as TensorFlow's own: of the images with the gradient as a filter, whose taps are the stride apart. In
    bfloat16 oneDNN makes it in two thirds of the time that its own needs; in float32 it does not.
    """
    x, weights = convolution.inputs
    strides = convolution.get_attr("strides")
    _, stride, *_ = strides
    height, width = ((n - 1) * stride + k for n, k in zip(gradient.shape[1:3], weights.shape[:2], strict=True))
    of_x = tf.nn.conv2d_backprop_input(tf.shape(x), weights, gradient, strides, "VALID")
    of_weights = tf.nn.conv2d(
        tf.transpose(x[:, :height, :width], [3, 1, 2, 0]),
        tf.transpose(gradient, [1, 2, 0, 3]),
        strides=1,
        padding="VALID",
        dilations=stride,
    )
    return of_x, tf.transpose(of_weights, [1, 2, 0, 3])


@tf.RegisterGradient(_FASTER_GRADIENTS["BiasAdd"])  # type: ignore[untyped-decorator]
def _bias_in_float32(addition: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
    """TensorFlow adds up in bfloat16, where oneDNN does not do it beside its own gradient of the weights."""
    of_bias = tf.reduce_sum(tf.cast(gradient, tf.float32), axis=[0, 1, 2])
    return gradient, tf.cast(of_bias, addition.inputs[1].dtype)


def _check_size(name: str, kernel: int, height: int, width: int, padding: str) -> None:
    if padding == "VALID" and min(height, width) < kernel:
        raise UsageError(
            f"the image is too small for the network: {name} has a {kernel}x{kernel} kernel and gets {height}x{width}; "
            "raise env.image_height and env.image_width, or set model.padding=SAME"
        )


def _q_values(name: str, x: Tensor, outputs: int, start: Start) -> Tensor:
    """The last layer, in float32."""
    return _dense(name, tf.cast(x, tf.float32), outputs, start)


def _dense(name: str, x: Tensor, units: int, start: Start) -> Tensor:
    fan_in = int(x.shape[1])
    weights, bias = _weights_and_bias(name, [fan_in, units], start(fan_in, units))
    return tf.nn.bias_add(tf.matmul(x, tf.cast(weights, x.dtype)), tf.cast(bias, x.dtype))


def _weights_and_bias(
    name: str, shape: Sequence[int], initializers: tuple[Initializer, Initializer]
) -> tuple[Tensor, Tensor]:
    with tf.variable_scope(name):
        return (
            tf.get_variable("weights", shape, initializer=initializers[0], use_resource=True),
            tf.get_variable("bias", shape[-1:], initializer=initializers[1], use_resource=True),
        )


def _he(fan_in: int, _: int) -> tuple[Initializer, Initializer]:
    return _uniform((6 / fan_in) ** 0.5), tf.zeros_initializer()


def _linear(fan_in: int, _: int) -> tuple[Initializer, Initializer]:
    return _uniform(fan_in**-0.5), tf.zeros_initializer()


def _torch(fan_in: int, _: int) -> tuple[Initializer, Initializer]:
    return _uniform(fan_in**-0.5), _uniform(fan_in**-0.5)


def _glorot(fan_in: int, fan_out: int) -> tuple[Initializer, Initializer]:
    return _uniform((6 / (fan_in + fan_out)) ** 0.5), tf.zeros_initializer()


def _uniform(limit: float) -> Initializer:
    return tf.random_uniform_initializer(-limit, limit)
