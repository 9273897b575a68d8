"""Layers as XLA computes them fastest on a CPU: the same variables and sums as in `layers`.

XLA convolves without oneDNN. That takes five times as long as a matrix product with the same sums.
"""

import math
from typing import Any

from twin_graph.twin.layers import Start, Tensor, convolution_weights, dense, in_parts, scaled
from twin_graph.twin.tf import tf

__all__ = ["convolution", "convolution_of_frames", "hidden", "in_parts"]

hidden = dense


def convolution_of_frames(name: str, frames: Tensor, channels: int, padding: str, start: Start, dtype: Any) -> Tensor:
    """See `layers.convolution_of_frames`."""
    return convolution(name, tf.transpose(scaled(frames, dtype), [0, 2, 3, 1]), 8, channels, 4, padding, start)


def convolution(name: str, x: Tensor, kernel: int, channels: int, stride: int, padding: str, start: Start) -> Tensor:
    """See `layers.convolution`; here by im2col: the receptive field of each output is one row, and all rows
    are multiplied at once."""
    weights, bias = convolution_weights(name, x, kernel, channels, padding, start)
    if padding == "SAME":
        missing = [max(0, (math.ceil(n / stride) - 1) * stride + kernel - n) for n in x.shape[1:3].as_list()]
        x = tf.pad(x, [[0, 0], *([n // 2, n - n // 2] for n in missing), [0, 0]])
    rows, columns = ((n - kernel) // stride + 1 for n in x.shape[1:3].as_list())
    seen = tf.concat(
        [
            x[:, i : i + (rows - 1) * stride + 1 : stride, j : j + (columns - 1) * stride + 1 : stride]
            for i in range(kernel)
            for j in range(kernel)
        ],
        axis=3,
    )
    size = kernel * kernel * int(x.shape[3])
    product = tf.matmul(tf.reshape(seen, [-1, size]), tf.reshape(weights, [size, channels]))
    return tf.reshape(product, [-1, rows, columns, channels]) + bias
