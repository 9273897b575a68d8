"""The smallest change that a network can have: its effect tells a real difference from mere sensitivity."""

from pathlib import Path

import numpy as np

from twin_graph.snapshots.files import checked, fsync, write_new
from twin_graph.snapshots.points import STATE, PointState
from twin_graph.snapshots.run import SNAPSHOTS
from twin_graph.snapshots.store import FileRecord, Manifest
from twin_graph.twin.tf import tf
from twin_graph.twin.twin import weights_sha256
from twin_graph.twin.weights import read_checkpoint


def nudge(folder: Path, state: PointState) -> tuple[str, PointState]:
    """Moves the largest weight of a resume point's first learner by one unit in the last place.

    Args:
      folder: of the point, in the folder of a run; its files may be shared with another run's.
      state: of the point.

    Returns:
      What was done, in words for people, and the new state.
    """
    files = {learner.name: read_checkpoint(folder / learner.name) for learner in state.learners}
    first = state.learners[0].name
    snapshot = Manifest.read(folder.parent.parent / SNAPSHOTS / state.snapshots[0])
    trainable = [variable.name for variable in snapshot.variables]
    name = max(trainable, key=lambda name: float(np.abs(files[first][name]).max()))
    weights = files[first][name]
    at = np.unravel_index(np.abs(weights).argmax(), weights.shape)
    before = weights[at]
    weights[at] = np.nextafter(before, np.inf, dtype=weights.dtype)
    _write(folder / first, files[first])
    prefixes = {learner: "" if len(files) == 1 else f"{learner}/" for learner in files}
    every = {f"{prefixes[learner]}{name}": values[name] for learner, values in files.items() for name in trainable}
    changed = tuple(FileRecord.of(folder / file.name) for file in state.files)
    state = state.model_copy(update={"files": changed, "weights_sha256": weights_sha256(every)})
    (folder / STATE).unlink()
    write_new(folder / STATE, checked(state.model_dump(mode="json"), indent=1))
    for path in folder.iterdir():
        fsync(path)
    return f"{name}{[int(i) for i in at]} from {before} to {weights[at]}", state


def _write(prefix: Path, values: dict[str, np.ndarray]) -> None:
    """Writes the files that a Saver would; new files, since another run may share the present ones."""
    for path in prefix.parent.glob(f"{prefix.name}.*"):
        path.unlink()
    with tf.Graph().as_default() as graph, tf.Session(graph=graph) as session:
        fed = {tf.placeholder(value.dtype, value.shape): value for value in values.values()}
        save = tf.raw_ops.SaveV2(
            prefix=str(prefix), tensor_names=list(values), shape_and_slices=[""] * len(values), tensors=list(fed)
        )
        session.run(save, fed)
