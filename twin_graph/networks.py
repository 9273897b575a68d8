"""Q networks: plain `tf.nn` on resource variables."""

from collections.abc import Callable, Sequence
from typing import Any

from twin_graph.errors import UsageError
from twin_graph.graph_mode import tf

Tensor = Any
Initializer = Any

#: How a layer's weights and biases start, from the number of inputs of each of its units and of outputs of each input.
Start = Callable[[int, int], tuple[Initializer, Initializer]]


def nature(observation: Tensor, n_actions: int, *, padding: str, dueling: bool) -> Tensor:
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

    Returns:
      Q values, float32 `[B, A]`.
    """
    # On the CPU TensorFlow convolves with channels last. Moving bytes would be no faster, and oneDNN refuses it.
    x = tf.transpose(_floats(observation), [0, 2, 3, 1])
    for name, kernel, channels, stride in (("conv1", 8, 32, 4), ("conv2", 4, 64, 2), ("conv3", 3, 64, 1)):
        x = tf.nn.relu(_convolution(name, x, kernel, channels, stride, padding, _he))
    return _read_out("fc1", _flatten(x), 512, n_actions, dueling, (_he, _linear))


def pooled80(observation: Tensor, n_actions: int) -> Tensor:
    """One convolution of 32 filters and a 2x2 maximum: 3200 numbers, from which Q is read out without a hidden layer.

    Layers start as those of `nature`.

    Args:
      observation: uint8 `[B, stack, 80, 80]`, frames first.
      n_actions: A.

    Returns:
      Q values, float32 `[B, A]`.
    """
    x = tf.transpose(_floats(observation), [0, 2, 3, 1])
    x = tf.nn.relu(_convolution("conv1", x, 8, 32, 4, "SAME", _he))
    return _dense("q", _flatten(tf.nn.max_pool2d(x, 2, 2, "SAME")), n_actions, _linear)


def mlp(observation: Tensor, n_actions: int, *, hidden_units: Sequence[int], dueling: bool) -> Tensor:
    """Fully connected layers of `hidden_units` with rectifiers, for vectors: float32 `[B, D]` to Q `[B, A]`.

    Everything starts uniform in +-1/sqrt(fan_in), as in Torch. Biases at zero would let every unit bend at the origin,
    which is where the few numbers of a task like CartPole stay.
    """
    x = _flatten(_floats(observation))
    *shared, last = hidden_units
    for i, units in enumerate(shared, start=1):
        x = tf.nn.relu(_dense(f"fc{i}", x, units, _torch))
    return _read_out(f"fc{len(hidden_units)}", x, last, n_actions, dueling, (_torch, _torch))


def blob(observation: Tensor, n_actions: int, *, dropout_seed: Tensor) -> Tensor:
    """The network of the Blob tutorial: two blocks of 256 3x3 filters, pooling and dropout, 64 units, Q values.

    The 64 units have no activation, so that they and the read-out are one linear map of rank 64. Weights start as
    Keras' do, uniform in +-sqrt(6/(fan_in + fan_out)) (Glorot and Bengio 2010).

    Args:
      observation: uint8 `[B, 10, 10, 3]`.
      n_actions: A.
      dropout_seed: int32 `[2]`, from which the masks follow; without dropout if the first is negative.

    Returns:
      Q values, float32 `[B, A]`.
    """
    x = _floats(observation)
    for block in (1, 2):
        x = tf.nn.relu(_convolution(f"conv{block}", x, 3, 256, 1, "VALID", _glorot))
        x = tf.nn.max_pool2d(x, 2, 2, "VALID")
        x = _dropout(x, 0.2, tf.stack([dropout_seed[0], 2 * dropout_seed[1] + block]))
    x = _dense("fc1", _flatten(x), 64, _glorot)
    return _dense("q", x, n_actions, _glorot)


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
        return _dense(read_out, tf.nn.relu(_dense(prefix + name, x, units, before_rectifier)), outputs, linear)

    if not dueling:
        return stream("", "q", n_actions)
    advantage = stream("advantage_", "advantage", n_actions)
    return stream("value_", "value", 1) + advantage - tf.reduce_mean(advantage, axis=1, keepdims=True)


def _floats(observation: Tensor) -> Tensor:
    """Bytes are taken for brightness and scaled to 0..1; other numbers stay as they are."""
    x = tf.cast(observation, tf.float32)
    return x / 255.0 if observation.dtype == tf.uint8 else x


def _flatten(x: Tensor) -> Tensor:
    return tf.reshape(x, [-1, x.shape[1:].num_elements()])


def _convolution(name: str, x: Tensor, kernel: int, channels: int, stride: int, padding: str, start: Start) -> Tensor:
    height, width, depth = x.shape[1:].as_list()
    if padding == "VALID" and min(height, width) < kernel:
        raise UsageError(
            f"the image is too small for the network: {name} has a {kernel}x{kernel} kernel and gets {height}x{width}; "
            "raise env.image_height and env.image_width, or set model.padding=SAME"
        )
    weights, bias = _weights_and_bias(
        name, [kernel, kernel, depth, channels], start(kernel * kernel * depth, kernel * kernel * channels)
    )
    return tf.nn.bias_add(tf.nn.conv2d(x, weights, strides=stride, padding=padding), bias)


def _dense(name: str, x: Tensor, units: int, start: Start) -> Tensor:
    fan_in = int(x.shape[1])
    weights, bias = _weights_and_bias(name, [fan_in, units], start(fan_in, units))
    return tf.nn.bias_add(tf.matmul(x, weights), bias)


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
