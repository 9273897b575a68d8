"""Weights in and out: compares snapshots, writes them for other programs, and imports outside checkpoints."""

import contextlib
import dataclasses
import math
import re
import shlex
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from twin_graph import envs
from twin_graph.config import nearest
from twin_graph.errors import DamagedError, UsageError
from twin_graph.graph_mode import tf
from twin_graph.model import ModelSpec, build_model
from twin_graph.snapshots.files import fsync, publish, remove_leftovers, temporary_of
from twin_graph.snapshots.ledger import IMPORT, Commit, Counters
from twin_graph.snapshots.run import Run, check_no_pattern
from twin_graph.snapshots.store import SnapshotStore
from twin_graph.twin import Twin, setters, to_set, weights_sha256

Format = Literal["tf1", "savedmodel", "onnx", "tflite", "npz"]


def spec_of(run: Run) -> ModelSpec:
    """The model of a run; makes one of its environments to learn the shapes."""
    settings = run.settings
    with contextlib.closing(envs.make(settings.env, count=1)) as env:
        return ModelSpec.of(settings, env.spec)


class Difference(NamedTuple):
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


def diff(first: tuple[SnapshotStore, Commit], second: tuple[SnapshotStore, Commit]) -> list[Difference]:
    """Compares two snapshots, of one run or of two, variable by variable; the last line is all of them together.

    Raises:
      UsageError: their variables do not have the same names and shapes.
      DamagedError: files are not what was written.
    """
    ours, theirs = (_weights(store, snapshot) for store, snapshot in (first, second))
    shapes = [{name: value.shape for name, value in weights.items()} for weights in (ours, theirs)]
    if differing := sorted({name for name, _ in shapes[0].items() ^ shapes[1].items()}):
        raise UsageError(f"{first[1].id} and {second[1].id} are of different networks: {', '.join(differing)} differ")
    rows = [difference(name, ours[name], theirs[name]) for name in sorted(ours)]
    return [*rows, difference("all", flat(ours), flat(theirs))]


def difference(name: str, a: np.ndarray, b: np.ndarray) -> Difference:
    """How far apart two arrays of one shape are."""
    change = b.astype(np.float64) - a
    distance, norm = float(np.linalg.norm(change)), float(np.linalg.norm(a))
    relative = distance / norm if norm else math.inf if distance else 0.0
    return Difference(name, a.shape, distance, float(np.abs(change).max()), relative)


def flat(weights: Mapping[str, np.ndarray]) -> np.ndarray:
    """All weights in one array, by the order of their names."""
    return np.concatenate([weights[name].ravel() for name in sorted(weights)])


def _weights(store: SnapshotStore, snapshot: Commit) -> dict[str, np.ndarray]:
    with store.reading():
        store.check_usable(snapshot.id)
        prefix = store.prefix(snapshot.id)
        return read(prefix)


def read(prefix: Path) -> dict[str, np.ndarray]:
    """All variables of a Saver checkpoint, sorted by name. Raises `DamagedError` if its files are not whole."""
    check_no_pattern(prefix, "move the checkpoint elsewhere")
    try:
        reader = tf.train.NewCheckpointReader(str(prefix))  # `load_checkpoint` would prefer a folder of this name
        return {name: np.asarray(reader.get_tensor(name)) for name in sorted(reader.get_variable_to_shape_map())}
    except (tf.errors.OpError, ValueError, RuntimeError, IndexError) as error:  # the last where data is cut short
        reason = str(error).partition("\n")[0]
        raise DamagedError(f"{prefix} cannot be read: {reason}") from None


def export(run: Run, snapshot: Commit, form: Format, path: Path) -> list[Path]:
    """Writes a snapshot for other programs.

    `tf1`: `path.meta`, `.index` and `.data-...`, for `tf.train.import_meta_graph(path + ".meta")` and `restore(path)`.
    `savedmodel`: a folder whose signature `serving_default` maps `observations` to `q_values`.
    `onnx`, `tflite`: a file whose input is `observations`, of any number, and whose output is `q_values`.
    `npz`: the variables by name.

    Returns:
      The files or the folder.

    Raises:
      UsageError: something is there already, or the extra `onnx` is missing.
    """
    if path.name in ("", ".."):
        raise UsageError(f"{path} is a folder: give a path in it, such as {path / 'network'}")
    ends, write = FORMATS[form]
    path = path.with_suffix("") if path.suffix.lower() in ends else path
    targets = [path.with_name(path.name + end) for end in ends]
    for target in targets:
        if target.exists():
            raise UsageError(f"{target} exists already; choose another path")
    if not path.parent.is_dir():
        raise UsageError(f"there is no folder {path.parent}; make it with: mkdir -p {shlex.quote(str(path.parent))}")
    if form in ("tf1", "savedmodel"):
        check_no_pattern(path, "choose another path")
    store = run.store()
    remove_leftovers(path.parent, of=path.name, spare_the_living=True)
    temporary = temporary_of(path)
    temporary.mkdir()
    try:
        spec = spec_of(run)
        # Who trains on with the graph makes one step of each minibatch.
        spec = dataclasses.replace(spec, train=spec.train.model_copy(update={"accumulate": 1}))
        with store.reading(), Twin("export", spec, learns=form == "tf1", plain=True) as twin:
            store.check_usable(snapshot.id)
            twin.restore_snapshot(snapshot, store)
            write(twin, temporary / (targets[0] if len(targets) == 1 else path).name)
        for target in targets:
            made = temporary / target.name
            for path_inside in [made, *made.rglob("*")]:
                fsync(path_inside)
            publish(made, target)
        fsync(path.parent)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return targets


def _tf1(twin: Twin, path: Path) -> None:
    twin.save(path, meta_graph=True)


def _npz(twin: Twin, path: Path) -> None:
    weights: dict[str, Any] = twin.weights()  # by names with a slash: none is an option of savez
    np.savez(path, **weights)


def _savedmodel(twin: Twin, path: Path) -> None:
    # A graph of its own: saving adds ops to it, and a twin's graph is final.
    with tf.Graph().as_default(), tf.Session() as session:
        model = build_model(twin.spec, learns=False, plain=True)
        session.run(tf.global_variables_initializer())
        variables = {variable.op.name: variable for variable in model.trainables}
        session.run(*to_set(setters(variables), twin.weights()))
        builder = tf.saved_model.Builder(str(path))
        signature = tf.saved_model.predict_signature_def({"observations": model.s_tm1}, {"q_values": model.q_tm1})
        builder.add_meta_graph_and_variables(
            session, [tf.saved_model.tag_constants.SERVING], {"serving_default": signature}
        )
        builder.save()


def _onnx(twin: Twin, path: Path) -> None:
    try:
        import tf2onnx
    except ModuleNotFoundError as error:
        raise UsageError(f"--format onnx needs {error.name}: pip install 'twin-graph[onnx]'") from None
    with _frozen(twin) as session:
        graph = session.graph.as_graph_def()
    model, _ = tf2onnx.convert.from_graph_def(
        graph,
        input_names=["observations:0"],
        output_names=["q_values:0"],
        tensors_to_rename={"observations:0": "observations", "q_values:0": "q_values"},
    )
    path.write_bytes(model.SerializeToString())


def _tflite(twin: Twin, path: Path) -> None:
    with _frozen(twin) as session:
        tensors = [[session.graph.get_tensor_by_name(f"{name}:0")] for name in ("observations", "q_values")]
        path.write_bytes(tf.lite.TFLiteConverter.from_session(session, *tensors).convert())


@contextlib.contextmanager
def _frozen(twin: Twin) -> Iterator[Any]:
    """A session whose graph computes `q_values` of `observations`, with the weights as constants."""
    constants = tf.graph_util.convert_variables_to_constants(twin.session, twin.graph.as_graph_def(), ["q_tm1"])
    with tf.Graph().as_default(), tf.Session() as session:
        observations = tf.placeholder(twin.model.s_tm1.dtype, twin.model.s_tm1.shape, name="observations")
        [q_values] = tf.import_graph_def(constants, {"s_tm1": observations}, ["q_tm1:0"], name="network")
        tf.identity(q_values, name="q_values")
        yield session


#: What the files of a format end in, and what writes them.
FORMATS: dict[Format, tuple[tuple[str, ...], Callable[[Twin, Path], None]]] = {
    "tf1": ((".meta", ".data-00000-of-00001", ".index"), _tf1),
    "savedmodel": (("",), _savedmodel),
    "onnx": ((".onnx",), _onnx),
    "tflite": ((".tflite",), _tflite),
    "npz": ((".npz",), _npz),
}


class Imported(NamedTuple):
    """What was imported.

    Attributes:
      snapshot: of lineage `import`.
      ignored: variables of the checkpoint that this network has no place for.
    """

    snapshot: Commit
    ignored: list[str]


def import_checkpoint(run: Run, prefix: Path, renamed: Mapping[str, str]) -> Imported:
    """Imports an outside Saver checkpoint as a snapshot of a run that is not training.

    Args:
      run: whose network it has to fit.
      prefix: what was passed to `Saver.save`, or one of the files that it wrote, or their folder for the newest there.
      renamed: names in the checkpoint to names in the network; they win over variables that have these names already.

    Raises:
      UsageError: names, shapes or types do not fit; the message says how they could.
      InUseError: the run trains.
    """
    check_no_pattern(prefix, "move the checkpoint elsewhere")
    if re.fullmatch(r"\.(meta|index|data-\d{5}-of-\d{5})", prefix.suffix):
        prefix = prefix.with_suffix("")
    if prefix.is_dir() and not Path(f"{prefix}.index").exists():
        prefix = Path(tf.train.latest_checkpoint(str(prefix)) or prefix)
    if not (prefix.is_file() or Path(f"{prefix}.index").exists()):
        raise UsageError(
            f"there is no TensorFlow Saver checkpoint {prefix}: give what was passed to Saver.save, or one of its files"
        )
    outside = read(prefix)
    if unknown := [old for old in renamed if old not in outside]:
        raise UsageError(f"--map {unknown[0]}: not in {prefix}{nearest(unknown[0], outside)}; it has {_list(outside)}")
    for new in renamed.values():
        if len(twice := [old for old in renamed if renamed[old] == new]) > 1:
            raise UsageError(f"{' and '.join(twice)} are both mapped to {new}; keep one")
    # A mapping wins over a variable that has the name already, as the other network's has in a file of both.
    mapped = set(renamed.values())
    names = {old: renamed.get(old, old) for old in outside if old in renamed or old not in mapped}
    found = {new: outside[old] for old, new in names.items()}
    with run.lock("import"), Twin("import", spec_of(run), learns=False) as twin:
        ours = twin.weights()
        for old, new in renamed.items():
            if new not in ours:
                raise UsageError(
                    f"--map {old}={new}: this network has no {new}{nearest(new, ours)}; it has {_list(ours)}"
                )
        spoken_for = {*renamed, *ours}
        free = {old: value for old, value in outside.items() if old not in spoken_for and not _is_slot(old, outside)}
        weights = dict(_fitting(ours, found, free, prefix))
        snapshot = _commit(run, run.store(), twin, weights, origin=str(prefix.absolute()))
    used = {old for old, new in names.items() if new in weights}
    return Imported(snapshot, sorted(set(outside) - used, key=_as_people_count))


def average(run: Run, snapshots: Sequence[Commit]) -> Commit:
    """Makes a snapshot of lineage `import` from the mean of snapshots' weights, in a run that is not training.

    Source: averaging weights along the path of the optimizer, Polyak and Juditsky 1992, Izmailov et al. 2018.

    Raises:
      UsageError: they are not snapshots of one network.
      DamagedError: the weights of one are not those committed.
      InUseError: the run trains.
    """
    with run.lock("average"), Twin("average", spec_of(run), learns=False) as twin:
        store, members = run.store(), list[dict[str, np.ndarray]]()
        for snapshot in snapshots:
            store.check_fits(snapshot.id)
            twin.restore_snapshot(snapshot, store)
            members.append(twin.weights())
        weights = {name: np.mean([member[name] for member in members], axis=0) for name in members[0]}
        return _commit(run, store, twin, weights, origin=f"mean of {', '.join(snapshot.id for snapshot in snapshots)}")


def _commit(run: Run, store: SnapshotStore, twin: Twin, weights: Mapping[str, np.ndarray], origin: str) -> Commit:
    twin.load(weights)
    return store.commit(
        twin.save,
        lineage=IMPORT,
        attempt=max(1, run.ledger.attempt),
        counters=Counters.zero(),
        settings_sha256=run.settings.sha256(),
        weights_sha256=weights_sha256(weights),
        variables=twin.variables,
        origin=origin,
    )


def _fitting(
    wanted: Mapping[str, np.ndarray], found: Mapping[str, np.ndarray], free: Mapping[str, np.ndarray], prefix: Path
) -> Iterator[tuple[str, np.ndarray]]:
    """The variables of a network and their values. Raises `UsageError` with a hint from what is `free` to be mapped."""
    for name, ours in wanted.items():
        theirs = found.get(name)
        if theirs is None:
            alike = sorted((old for old, value in free.items() if value.shape == ours.shape), key=_as_people_count)
            hint = f"; of that shape it has {_list(alike)}: --map {alike[0]}={name}" if alike else nearest(name, free)
            maps = _by_shape_and_order({other: wanted[other] for other in wanted if other not in found}, free)
            if len(maps) > 1:
                hint += f". All {len(maps)} that are missing, by shape and order, to be checked: {' '.join(maps)}"
            raise UsageError(f"{prefix} has no {name} {list(ours.shape)}{hint or f'; it has {_list(free)}'}")
        if theirs.shape != ours.shape or theirs.dtype != ours.dtype:
            raise UsageError(
                f"{name} is {theirs.dtype}{list(theirs.shape)} in {prefix} and {ours.dtype}{list(ours.shape)} here"
            )
        if not np.isfinite(theirs).all():
            raise DamagedError(f"{name} in {prefix} holds values that are not finite")
        yield name, theirs


def _by_shape_and_order(missing: Mapping[str, np.ndarray], free: Mapping[str, np.ndarray]) -> list[str]:
    """`--map OLD=NEW` for each variable that is missing; empty if one of them can have no partner."""
    left, maps = sorted(free, key=_as_people_count), []
    for name in sorted(missing, key=_as_people_count):
        partner = next((old for old in left if free[old].shape == missing[name].shape), None)
        if partner is None:
            return []
        left.remove(partner)
        maps.append(f"--map {partner}={name}")
    return maps


def _is_slot(name: str, outside: Mapping[str, np.ndarray]) -> bool:
    """Whether it is an optimizer's moment of another variable of the same shape, for example `conv1/bias/Adam`."""
    variable = name.rpartition("/")[0]
    return variable in outside and outside[variable].shape == outside[name].shape


def _as_people_count(name: str) -> list[str | int]:
    """Sorts `Variable_2` before `Variable_10`."""
    return [int(part) if part.isdecimal() else part for part in re.split(r"(\d+)", name)]


def _list(names: Iterable[str]) -> str:
    ordered = sorted(names, key=_as_people_count)
    return ", ".join(ordered[:8]) + (", ..." if len(ordered) > 8 else "")
