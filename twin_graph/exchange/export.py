"""Writes snapshots for other programs."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from twin_graph.errors import UsageError
from twin_graph.evaluation.player import spec_of
from twin_graph.snapshots.files import check_no_pattern, fsync, make_folder, publish, remove_leftovers, temporary_of
from twin_graph.twin import keras_models
from twin_graph.twin.model import build_model
from twin_graph.twin.tf import tf, tflite_files
from twin_graph.twin.twin import Twin, setters, to_set

if TYPE_CHECKING:
    from twin_graph.snapshots.ledger import Commit
    from twin_graph.snapshots.run import Run

_SIGNATURE = "serving_default"

Format = Literal["tf1", "savedmodel", "onnx", "tflite", "npz", "keras", "weights.h5"]


def export(run: Run, snapshot: Commit, form: Format, path: Path) -> list[Path]:
    """Writes a snapshot for other programs, in a folder that is made if it does not exist.

    `tf1`: `path.meta`, `.index` and `.data-...`, for `tf.train.import_meta_graph(path + ".meta")` and `restore(path)`;
    and `checkpoint` beside them, by which `tf.train.latest_checkpoint` finds them, unless one is there.
    `savedmodel`: a folder whose signature `serving_default` maps `observations` to `q_values`.
    `onnx`, `tflite`: a file whose input is `observations`, of any number, and whose output is `q_values`; of `tflite`
    also by the signature `serving_default`.
    `npz`: the variables by name.
    `keras`, `weights.h5`: for `keras.models.load_model` and `load_weights`, of networks that Keras makes. The model
    takes what it takes here: images with their channels last, bytes divided by 255.

    Returns:
      The files or the folder.

    Raises:
      UsageError: something is there already, or the extra `onnx` is missing.
      OSError: the disk is full or failed.
    """
    if path.name in ("", ".."):
        raise UsageError(f"{path} is a folder: give a path in it, such as {path / 'network'}")
    ends, write = FORMATS[form]
    path = next((path.with_name(path.name[: -len(e)]) for e in ends if e and path.name.lower().endswith(e)), path)
    targets = [path.with_name(path.name + end) for end in ends]
    for target in targets:
        if target.exists():
            raise UsageError(f"{target} exists already; choose another path")
    if form in ("tf1", "savedmodel"):
        check_no_pattern(path, "choose another path")
    store = run.store()
    make_folder(path.parent)
    remove_leftovers(path.parent, of=path.name, spare_the_living=True)
    temporary = temporary_of(path)
    temporary.mkdir()
    try:
        spec = spec_of(run)
        # Who trains on with the graph makes one step of each minibatch.
        spec = dataclasses.replace(spec, train=spec.train.model_copy(update={"accumulate": 1}), plain=True)
        with store.reading(), Twin("export", spec, learns=form == "tf1") as twin:
            store.check_usable(snapshot.id)
            twin.restore_snapshot(snapshot, store)
            _write(write, twin, temporary / (targets[0] if len(targets) == 1 else path).name, path)
        for target in targets:
            made = temporary / target.name
            for path_inside in [made, *made.rglob("*")]:
                fsync(path_inside)
            publish(made, target)
        if form == "tf1" and (state := _publish_state(path, temporary)):
            targets.append(state)
        fsync(path.parent)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return targets


def _write(write: Callable[[Twin, Path], None], twin: Twin, made: Path, path: Path) -> None:
    """Raises OSError, with the path that people know, where TensorFlow cannot write."""
    try:
        write(twin, made)
    except tf.errors.OpError as error:
        # On a full disk also that a temporary file of TensorFlow's own, never written, is not there.
        is_full = isinstance(error, tf.errors.ResourceExhaustedError) or not shutil.disk_usage(made.parent).free
        number = errno.ENOSPC if is_full else errno.EIO
        raise OSError(number, os.strerror(number), str(path)) from error
    except OSError as error:
        error.filename, error.filename2 = str(path), None  # people do not know the temporary one
        raise


def _publish_state(path: Path, temporary: Path) -> Path | None:
    """The file by which `tf.train.latest_checkpoint` finds a checkpoint in its folder, wherever that is moved.

    None if there is one already: it may say what somebody trains elsewhere, and is not ours to change.
    """
    state, made = path.with_name("checkpoint"), temporary / "checkpoint"
    made.write_text(str(tf.train.generate_checkpoint_state_proto(".", path.name)), encoding="utf-8")
    fsync(made)
    try:
        publish(made, state)
    except UsageError:
        return None
    return state


def _tf1(twin: Twin, path: Path) -> None:
    twin.save(path, meta_graph=True)


def _npz(twin: Twin, path: Path) -> None:
    weights: dict[str, Any] = twin.weights()  # by names with a slash: none is an option of savez
    np.savez(path, **weights)


def _keras(twin: Twin, path: Path) -> None:
    model = keras_models.model_of(twin.spec)
    keras_models.set_weights(model, twin.weights())
    (model.save if path.suffix == ".keras" else model.save_weights)(path)


def _savedmodel(twin: Twin, path: Path) -> None:
    # A graph of its own: saving adds ops to it, and a twin's graph is final.
    with tf.Graph().as_default(), tf.Session() as session:
        model = build_model(twin.spec, learns=False)
        session.run(tf.global_variables_initializer())
        variables = {variable.op.name: variable for variable in model.trainables}
        session.run(*to_set(setters(variables), twin.weights()))
        builder = tf.saved_model.Builder(str(path))
        signature = tf.saved_model.predict_signature_def({"observations": model.s_tm1}, {"q_values": model.q_tm1})
        builder.add_meta_graph_and_variables(session, [tf.saved_model.tag_constants.SERVING], {_SIGNATURE: signature})
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
        path.write_bytes(_signed(tf.lite.TFLiteConverter.from_session(session, *tensors).convert()))


def _signed(model: bytes) -> bytes:
    """A TFLite model with the signature `serving_default`, which its converter leaves out in graph mode."""
    files, schema = tflite_files()
    made = files.convert_bytearray_to_object(bytearray(model))
    [graph] = made.subgraphs

    def named(index: int) -> Any:
        tensor = schema.TensorMapT()
        tensor.name, tensor.tensorIndex = graph.tensors[index].name, index
        return tensor

    signature = schema.SignatureDefT()
    signature.signatureKey, signature.subgraphIndex = _SIGNATURE, 0
    signature.inputs, signature.outputs = [[named(int(i)) for i in ends] for ends in (graph.inputs, graph.outputs)]
    made.signatureDefs = [signature]
    return bytes(files.convert_object_to_bytearray(made))


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
    "keras": ((".keras",), _keras),
    "weights.h5": ((".weights.h5",), _keras),
}
