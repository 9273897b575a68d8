"""Layers in the form that a CPU computes fastest: the same variables and sums as in `layers`, in another order.

benchmarks/README.md says what each of them gains; tests compare them with the plain ones.
"""

import math
from collections.abc import Callable
from typing import Any

from twin_graph.twin.layers import Start, Tensor, check_size, convolution_weights, dense, weights_and_bias
from twin_graph.twin.tf import tf


def in_parts(layers: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """`layers(x)`, for half of the examples at a time.

    Layers wait for each other, forward and backward; the halves do not. So each of two cores can take one, whereas
    threads that share an op wait for each other at its end.
    """
    half = tf.shape(x)[0] // 2
    first = layers(x[: tf.maximum(half, 1)])[:half]  # one example at least: oneDNN cannot convolve an empty batch
    with tf.variable_scope(tf.get_variable_scope(), reuse=True):
        return tf.concat([first, layers(x[half:])], axis=0)


def convolution_of_frames(name: str, frames: Tensor, channels: int, padding: str, start: Start, dtype: Any) -> Tensor:
    """An 8x8 convolution with stride 4 of stacked frames, channels last; bytes are scaled to 0..1.

    On the CPU, TensorFlow convolves with channels last, and interleaving a stack's frames pixel by pixel takes half as
    long as the layer. The stride is four, so four neighbouring pixels of a row serve as channels instead, with a kernel
    of 8x2: the products are the same, and only whole cells of four bytes have to be moved.

    Args:
      name: of the layer.
      frames: `[B, stack, H, W]`.
      channels: C, of the output.
      padding: `VALID` or `SAME`.
      start: of weights `[8, 8, stack, C]` and bias.
      dtype: of the output.
    """
    stack, height, width = frames.shape[1:].as_list()
    check_size(name, 8, height, width, padding)
    weights, bias = weights_and_bias(name, [8, 8, stack, channels], start(8 * 8 * stack, 8 * 8 * channels))
    rows, columns = (4 * (size // 4 if padding == "VALID" else math.ceil(size / 4) + 1) for size in (height, width))
    if padding == "SAME":
        above, left = (rows - height) // 2, (columns - width) // 2
        around = [[above, rows - height - above], [left, columns - width - left]]
        frames = tf.pad(frames, [[0, 0], [0, 0], *around])
    cells = tf.reshape(frames[:, :, :rows, :columns], [-1, stack, rows * columns // 4, 4])
    if frames.dtype == tf.uint8:  # a cell of bytes moves as one word; oneDNN moves words only if they are called floats
        cells = tf.bitcast(tf.transpose(tf.bitcast(cells, tf.float32), [0, 2, 1]), tf.uint8)
        weights = weights / 255  # bytes are exact in bfloat16; bytes divided by 255 are not
    else:
        cells = tf.transpose(cells, [0, 2, 1, 3])
    x = tf.cast(tf.reshape(cells, [-1, rows, columns // 4, stack * 4]), dtype)
    kernel = tf.transpose(tf.reshape(weights, [8, 2, 4, stack, channels]), [0, 1, 3, 2, 4])
    kernel = tf.cast(tf.reshape(kernel, [8, 2, stack * 4, channels]), dtype)
    return tf.nn.bias_add(tf.nn.conv2d(x, kernel, strides=[4, 1], padding="VALID"), tf.cast(bias, dtype))


def convolution(name: str, x: Tensor, kernel: int, channels: int, stride: int, padding: str, start: Start) -> Tensor:
    """Like `layers.convolution`, but with its own gradients in bfloat16."""
    weights, bias = convolution_weights(name, x, kernel, channels, padding, start)
    faster = _FASTER_GRADIENTS if x.dtype == tf.bfloat16 and padding == "VALID" else {}
    with tf.get_default_graph().gradient_override_map(faster):
        return tf.nn.bias_add(tf.nn.conv2d(x, weights, strides=stride, padding=padding), bias)


#: The name under which each op type's gradient is registered.
_FASTER_GRADIENTS = {"Conv2D": "WeightsByDilation", "BiasAdd": "BiasInFloat32"}


@tf.RegisterGradient(_FASTER_GRADIENTS["Conv2D"])  # type: ignore[untyped-decorator]
def _weights_by_dilation(convolution: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
    """The gradients of a convolution without padding; the weights' is a convolution, too.

    The same sums as TensorFlow's: the images convolved with the gradient as a filter, dilated by the stride. In
    bfloat16 oneDNN needs two thirds of the time of TensorFlow's op for it; in float32 there is no gain.
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
    """Sums in float32. TensorFlow would sum in bfloat16 unless oneDNN computes the bias gradient along with the
    weights'."""
    of_bias = tf.reduce_sum(tf.cast(gradient, tf.float32), axis=[0, 1, 2])
    return gradient, tf.cast(of_bias, addition.inputs[1].dtype)


def hidden(name: str, x: Tensor, units: int, start: Start) -> Tensor:
    """Like `layers.hidden`, with gradients in an order that saves the optimizer a copy."""
    with tf.get_default_graph().gradient_override_map({"MatMul": _WEIGHTS_LAST}):
        return dense(name, x, units, start)


_WEIGHTS_LAST = "WeightsLast"


@tf.RegisterGradient(_WEIGHTS_LAST)  # type: ignore[untyped-decorator]
def _weights_last(product: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
    """The gradients of a product; the weights' is released only once the inputs' is computed.

    TensorFlow computes them in any order. If the weights' gradient is applied while the inputs' gradient still reads
    the weights, the optimizer has to change a copy; in the 2015 network this layer has nine tenths of all weights.
    """
    x, weights = product.inputs
    of_x = tf.matmul(gradient, weights, transpose_b=True)
    of_weights = tf.matmul(x, gradient, transpose_a=True)
    with tf.control_dependencies([of_x]):
        return of_x, tf.identity(of_weights)
