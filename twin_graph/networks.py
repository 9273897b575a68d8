"""Q networks: plain `tf.nn` on resource variables.

Layers before a rectifier start uniform in +-sqrt(6/fan_in) (He et al. 2015), the read-out in +-1/sqrt(fan_in), biases
at zero. DQN 3.0, Stable-Baselines3 and CleanRL start every layer from Torch's +-1/sqrt(fan_in). Four layers of that
leaves a spread of 0.0002 between the Q values of different Pong screens, so that at the beginning all gradients agree:
with Adam at 2e-4 the first convolution was dead after 10,000 updates (no unit above zero on any screen), and nothing
was learnt.
"""

from collections.abc import Sequence
from typing import Any

from twin_graph.errors import UsageError
from twin_graph.graph_mode import tf

Tensor = Any


def nature(observation: Tensor, n_actions: int, *, padding: str) -> Tensor:
    """The network of Mnih et al. 2015: three convolutions, 512 units.

    Args:
      observation: uint8 `[B, stack, H, W]`, frames first, as Gymnasium stacks them; 4x84x84 in the paper.
      n_actions: A.
      padding: `VALID` (the paper) or `SAME`, for every convolution.

    Returns:
      Q values, float32 `[B, A]`.
    """
    # On the CPU TensorFlow convolves with channels last. Moving bytes would be no faster, and oneDNN refuses it.
    x = tf.transpose(tf.cast(observation, tf.float32) / 255.0, [0, 2, 3, 1])
    x = _convolution("conv1", x, kernel=8, channels=32, stride=4, padding=padding)
    x = _convolution("conv2", x, kernel=4, channels=64, stride=2, padding=padding)
    x = _convolution("conv3", x, kernel=3, channels=64, stride=1, padding=padding)
    return _read_out(_dense("fc1", _flatten(x), 512), n_actions)


def mlp(observation: Tensor, n_actions: int, *, hidden_units: Sequence[int]) -> Tensor:
    """Fully connected layers of `hidden_units` with rectifiers, for vectors: float32 `[B, D]` to Q `[B, A]`."""
    x = _flatten(tf.cast(observation, tf.float32))
    for i, units in enumerate(hidden_units, start=1):
        x = _dense(f"fc{i}", x, units)
    return _read_out(x, n_actions)


def _flatten(x: Tensor) -> Tensor:
    return tf.reshape(x, [-1, x.shape[1:].num_elements()])


def _convolution(name: str, x: Tensor, *, kernel: int, channels: int, stride: int, padding: str) -> Tensor:
    height, width, depth = x.shape[1:].as_list()
    if padding == "VALID" and min(height, width) < kernel:
        raise UsageError(
            f"the image is too small for the network: {name} has a {kernel}x{kernel} kernel and gets {height}x{width}; "
            "raise env.image_height and env.image_width, or set model.padding=SAME"
        )
    fan_in = kernel * kernel * depth
    weights, bias = _weights_and_bias(name, [kernel, kernel, depth, channels], limit=(6 / fan_in) ** 0.5)
    return tf.nn.relu(tf.nn.bias_add(tf.nn.conv2d(x, weights, strides=stride, padding=padding), bias))


def _dense(name: str, x: Tensor, units: int) -> Tensor:
    fan_in = int(x.shape[1])
    weights, bias = _weights_and_bias(name, [fan_in, units], limit=(6 / fan_in) ** 0.5)
    return tf.nn.relu(tf.nn.bias_add(tf.matmul(x, weights), bias))


def _read_out(x: Tensor, n_actions: int) -> Tensor:
    fan_in = int(x.shape[1])
    weights, bias = _weights_and_bias("q", [fan_in, n_actions], limit=fan_in**-0.5)
    return tf.nn.bias_add(tf.matmul(x, weights), bias)


def _weights_and_bias(name: str, shape: Sequence[int], *, limit: float) -> tuple[Tensor, Tensor]:
    with tf.variable_scope(name):
        return (
            tf.get_variable(
                "weights", shape, initializer=tf.random_uniform_initializer(-limit, limit), use_resource=True
            ),
            tf.get_variable("bias", shape[-1:], initializer=tf.zeros_initializer(), use_resource=True),
        )
