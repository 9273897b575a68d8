"""In which order a dense layer after convolutions has its rows: height, width, channels here, as on any CPU.

What was trained with data_format=NCHW, as on a GPU, may have channels first. Shapes do not show it, graphs do.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from google.protobuf.message import DecodeError

from twin_graph.errors import DamagedError, UsageError
from twin_graph.twin.tf import tf

DataFormat = Literal["NHWC", "NCHW"]
#: Height, width and channels.
Image = tuple[int, int, int]
Node = Any

_READS = ("Identity", "ReadVariableOp", "Cast")


def flattened(definition: Any, weights: Mapping[str, np.ndarray]) -> dict[str, Image]:
    """The output of convolutions that this network flattens before a dense layer, by the name of its weights.

    Args:
      definition: of the network, from `as_graph_def(add_shapes=True)`.
      weights: by name; others than those of such layers are left out, and where the order makes no difference.
    """
    graph = Graph(definition)
    images = {name: graph.flattened(name) for name in weights}
    return {
        name: image
        for name, image in images.items()
        if image and math.prod(image) == len(weights[name]) and min(image[0] * image[1], image[2]) > 1
    }


class Rows(NamedTuple):
    """Weights with rows in the order of this network; see `Imported`."""

    weights: dict[str, np.ndarray]
    reordered: list[str]
    assumed: list[str]


def in_our_order(
    weights: Mapping[str, np.ndarray],
    images: Mapping[str, Image],
    there: Mapping[str, str],
    prefix: Path,
    data_format: DataFormat | None,
) -> Rows:
    """Puts rows in the order of this network.

    Args:
      weights: of a checkpoint, by their names here.
      images: what `flattened` returned.
      there: the names in the checkpoint, by those here.
      prefix: of the checkpoint.
      data_format: in which its images were flattened; None for what `prefix.meta` says, or NHWC without it.

    Raises:
      UsageError: the order cannot be known; the message says what to do.
      DamagedError: `prefix.meta` cannot be read.
    """
    if data_format and not images:
        raise UsageError(f"--data-format {data_format}: this network flattens no output of convolutions; leave it out")
    ordered, reordered = dict(weights), list[str]()
    graph = _graph_beside(prefix) if images and not data_format else None
    for name, image in images.items():
        axes = data_format or (_axes_of(there[name], graph, prefix) if graph else "NHWC")
        if axes != "NHWC":
            ordered[name] = _permuted(weights[name], image, axes[1:])
            reordered.append(name)
    return Rows(ordered, reordered, [] if graph or data_format else list(images))


def _graph_beside(prefix: Path) -> Graph | None:
    """The graph that a Saver wrote beside a checkpoint, if it did."""
    path = Path(f"{prefix}.meta")
    if not path.exists():
        return None
    try:
        if path.is_file():  # no pipe, which nobody may ever write to
            return Graph(tf.MetaGraphDef.FromString(path.read_bytes()).graph_def)
    except (DecodeError, UnicodeDecodeError):
        pass
    raise _unreadable(prefix)


def _unreadable(prefix: Path) -> DamagedError:
    return DamagedError(f"{prefix}.meta cannot be read; without it, import with --data-format NCHW or NHWC")


def _axes_of(variable: str, graph: Graph, prefix: Path) -> str:
    """The axes of what the graph of a checkpoint flattens before it is multiplied by a variable."""
    try:
        axes = graph.axes(variable)
    except (LookupError, ValueError, TypeError, RecursionError):  # what no Saver writes
        raise _unreadable(prefix) from None
    if axes[:1] == "N" and sorted(axes) == sorted("NHWC"):
        return axes
    if graph.has_channels_first:
        raise UsageError(
            f"{prefix}.meta convolves channels first (data_format=NCHW), and does not show in which order {variable} "
            "has its rows: give --data-format NCHW, or NHWC if they are channels last"
        )
    return "NHWC"


def _permuted(weights: np.ndarray, image: Image, there: str) -> np.ndarray:
    """Weights `[height * width * channels, units]` whose rows went by these axes, such as `CHW`."""
    sizes = dict(zip("HWC", image, strict=True))
    by_axis = weights.reshape(*(sizes[axis] for axis in there), -1)
    return by_axis.transpose(*(there.index(axis) for axis in "HWC"), 3).reshape(weights.shape)


class Graph:
    """The ops of a graph.

    Args:
      definition: a GraphDef.
    """

    def __init__(self, definition: Any) -> None:
        self._nodes: dict[str, Node] = {node.name: node for node in definition.node}
        inside = (node for function in definition.library.function for node in function.node_def)
        #: Whether anything in it has channels first.
        self.has_channels_first = any(_data_format(node) == "NCHW" for node in (*definition.node, *inside))

    def flattened(self, variable: str) -> Image | None:
        """Height, width and channels of what convolutions made, and is flattened and multiplied by a variable.

        None if there is no such thing. Needs the shapes of `as_graph_def(add_shapes=True)`.
        """
        for inputs in self._multiplied(variable):
            nodes = list(self._upstream(inputs))
            shapes = ([axis.size for axis in node.attr["_output_shapes"].list.shape[0].dim] for node in nodes)
            image = next((shape for shape in shapes if len(shape) == 4), None)
            if image and any("Conv" in node.op for node in nodes):
                return image[1], image[2], image[3]
        return None

    def axes(self, variable: str) -> str:
        """The axes of what is flattened before it is multiplied by a variable, such as `NCHW`; empty if unknown."""
        return next(filter(None, (self._axes(inputs, set()) for inputs in self._multiplied(variable))), "")

    def _multiplied(self, variable: str) -> Iterator[Node]:
        """What is multiplied by a variable, not by its transpose as in a gradient."""
        for node in self._nodes.values():
            if node.op == "MatMul" and not node.attr["transpose_b"].b:
                inputs, weights = self._inputs(node)
                seen = set[str]()
                while weights.op in _READS and weights.name not in seen:
                    seen.add(weights.name)
                    [weights] = self._inputs(weights)[:1]
                if weights.name == variable:
                    yield inputs

    def _upstream(self, node: Node) -> Iterator[Node]:
        """A node and those it depends on, the next ones first, up to another product."""
        queue, seen = [node], set[str]()
        while queue:
            node = queue.pop(0)
            if node.name not in seen and node.op != "MatMul":
                seen.add(node.name)
                yield node
                queue += self._inputs(node)

    def _axes(self, node: Node, seen: set[str]) -> str:
        """Of the images that a node outputs, or flattens."""
        if node.name in seen or node.op == "MatMul":
            return ""
        seen.add(node.name)
        if found := _data_format(node):
            return found
        inputs = self._inputs(node)
        if node.op != "Transpose":
            return next(filter(None, (self._axes(one, seen) for one in inputs)), "")
        before, order = self._axes(inputs[0], seen), inputs[1]
        tensor = order.attr["value"].tensor
        # Of another shape, it might also be too large for memory.
        if order.op != "Const" or [axis.size for axis in tensor.tensor_shape.dim] != [len(before)]:
            return ""
        return "".join(before[place] for place in tf.make_ndarray(tensor))

    def _inputs(self, node: Node) -> list[Node]:
        names = (name.partition(":")[0] for name in node.input if not name.startswith("^"))
        return [self._nodes[name] for name in names]


def _data_format(node: Node) -> str:
    return str(node.attr["data_format"].s.decode()) if "data_format" in node.attr else ""
