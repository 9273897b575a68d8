"""The weights of snapshots and checkpoints as arrays by name, and how far apart two are."""

from __future__ import annotations

import math
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from twin_graph.base.arrays import load_all
from twin_graph.base.text import first_line
from twin_graph.errors import DamagedError, UsageError
from twin_graph.snapshots.files import check_no_pattern
from twin_graph.twin import checkpoints, first_format
from twin_graph.twin.tf import tf

if TYPE_CHECKING:
    from twin_graph.snapshots.ledger import Commit
    from twin_graph.snapshots.store import SnapshotStore


class Distance(NamedTuple):
    """One variable of two snapshots.

    Attributes:
      name, shape: of the variable.
      distance: square root of the sum of squared differences.
      largest: the largest absolute difference of an element.
      relative: distance by the first one's norm; infinite where that is 0 and the distance is not.
    """

    name: str
    shape: tuple[int, ...]
    distance: float
    largest: float
    relative: float


def diff(first: tuple[SnapshotStore, Commit], second: tuple[SnapshotStore, Commit]) -> list[Distance]:
    """Compares two snapshots, of one run or of two, variable by variable; the last line is all of them together.

    Raises:
      UsageError: their variables do not have the same names and shapes.
      DamagedError: files are not what was written.
    """
    ours, theirs = (_weights(store, snapshot) for store, snapshot in (first, second))
    shapes = [{name: value.shape for name, value in weights.items()} for weights in (ours, theirs)]
    if differing := sorted({name for name, _ in shapes[0].items() ^ shapes[1].items()}):
        raise UsageError(f"{first[1].id} and {second[1].id} are of different networks: {', '.join(differing)} differ")
    rows = [distance(name, ours[name], theirs[name]) for name in sorted(ours)]
    return [*rows, distance("all", flat(ours), flat(theirs))]


def distance(name: str, a: np.ndarray, b: np.ndarray) -> Distance:
    """How far apart two arrays of one shape are."""
    change = b.astype(np.float64) - a
    distance, norm = float(np.linalg.norm(change)), float(np.linalg.norm(a))
    relative = distance / norm if norm else math.inf if distance else 0.0
    return Distance(name, a.shape, distance, float(np.abs(change).max()), relative)


def flat(weights: Mapping[str, np.ndarray]) -> np.ndarray:
    """All weights in one array, by the order of their names."""
    return np.concatenate([weights[name].ravel() for name in sorted(weights)])


def _weights(store: SnapshotStore, snapshot: Commit) -> dict[str, np.ndarray]:
    with store.reading():
        store.check_usable(snapshot.id)
        prefix = store.prefix(snapshot.id)
        return read_checkpoint(prefix)


def read_checkpoint(prefix: Path) -> dict[str, np.ndarray]:
    """All variables of a Saver checkpoint, sorted by name.

    Raises:
      DamagedError: its files are not whole, or not what a Saver writes.
      UsageError: TensorFlow cannot read files at this kind of path.
    """
    check_no_pattern(prefix, "move the checkpoint elsewhere")
    if checkpoints.is_of_first_format(prefix):
        return _read_apart(prefix)
    checkpoints.check(prefix)
    try:
        reader = tf.train.NewCheckpointReader(str(prefix))  # `load_checkpoint` would prefer a folder of this name
        return {name: np.asarray(reader.get_tensor(name)) for name in sorted(reader.get_variable_to_shape_map())}
    except (tf.errors.OpError, ValueError, RuntimeError, IndexError) as error:  # the last where data is cut short
        raise DamagedError(f"{prefix} cannot be read: {first_line(error)}") from None


def _read_apart(prefix: Path) -> dict[str, np.ndarray]:
    """By a process of its own, which TensorFlow may end."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "variables.npz")
        command = [sys.executable, "-P", "-m", first_format.__name__, str(prefix.absolute()), str(path)]
        ended = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, check=False)
        try:
            if not ended.returncode:
                return load_all(path)
        except (OSError, ValueError):  # as where it holds what is no array
            pass
    raise DamagedError(f"{prefix} cannot be read, though it ends as a checkpoint of TensorFlow's first format does")
