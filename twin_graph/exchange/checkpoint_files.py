"""Finds the checkpoint that a path means, and says what a file is that is none."""

from __future__ import annotations

import re
import zipfile
from pathlib import Path

from twin_graph.base.text import some_of
from twin_graph.errors import UsageError
from twin_graph.snapshots.files import check_no_pattern
from twin_graph.twin.tf import tf

#: How files of other programs begin.
_BEGINNINGS = {
    b"\x89HDF\r\n\x1a\n": "an HDF5 file, as Keras writes,",
    b"\x93NUMPY": "an array of NumPy",
    **{bytes([0x80, protocol]): "a pickle" for protocol in range(2, 6)},
}
#: What their zip archives hold.
_ZIPPED = {
    r"model\.weights\.h5": "a model of Keras",
    r".*/data\.pkl": "a file of PyTorch",
    r"policy\.pth": "a model of Stable-Baselines3",
    r".*\.npy": "arrays of NumPy",
}
#: What they are by their endings, where nothing inside says it.
_ENDINGS = {
    **{".h5": "an HDF5 file, as Keras writes,", ".hdf5": "an HDF5 file, as Keras writes,"},
    **{".keras": "a model of Keras", ".npy": "an array of NumPy", ".npz": "arrays of NumPy"},
    **{".pkl": "a pickle", ".pickle": "a pickle", ".pt": "a file of PyTorch", ".pth": "a file of PyTorch"},
    **{".onnx": "a network in ONNX", ".tflite": "a network in TFLite", ".safetensors": "a file of safetensors"},
    ".pb": "a graph of TensorFlow",
}
_SAVED_MODEL = "saved_model.pb"


def prefix_of(path: Path) -> Path:
    """What was passed to `Saver.save`, by itself, by one of the files that it wrote, or by their folder.

    Raises:
      UsageError: there is no such checkpoint, or what is there is something else; the message says what to do.
    """
    check_no_pattern(path, "move the checkpoint elsewhere")
    if re.fullmatch(r"\.(meta|index|data-\d{5}-of-\d{5})", path.suffix):
        path = path.with_suffix("")
    if _is_checkpoint(path):
        return path
    model = path if path.is_dir() else path.parent
    if (model / _SAVED_MODEL).is_file() and path in (model, model / _SAVED_MODEL):
        raise UsageError(f"{path} is a SavedModel: give the checkpoint in it, {model / 'variables' / 'variables'}")
    if path.is_dir():
        return _newest_in(path)
    if not path.is_file():
        raise _none(path)
    if what := _of_another_program(path):
        raise UsageError(
            f"{path} is {what} and no TensorFlow checkpoint: load it with the program that made it, and write its "
            "weights as one; docs/coming-from-two-graphs.md shows how"
        )
    return path  # Savers once wrote a single file


def is_of_keras(path: Path) -> bool:
    """Whether a file is one of those that Keras writes."""
    return path.is_file() and (_of_another_program(path) or "").endswith(("Keras", "as Keras writes,"))


def _newest_in(folder: Path) -> Path:
    """The checkpoint of a folder, the newest by its file `checkpoint`, which names where it was when it was written."""
    try:
        state = tf.train.get_checkpoint_state(str(folder))
    except ValueError:  # it is no text
        state = None
    if state and _is_checkpoint(newest := folder / Path(state.model_checkpoint_path).name):
        return newest
    there = [index.with_suffix("") for index in folder.glob("*.index")]
    if not there:
        raise _none(folder)
    if len(there) > 1:
        names = some_of(prefix.name for prefix in there)
        raise UsageError(f"{folder} holds {names}, and no `checkpoint` says which is the newest: give one of them")
    return there[0]


def _none(path: Path) -> UsageError:
    return UsageError(
        f"there is no TensorFlow Saver checkpoint {path}: give what was passed to Saver.save, or one of its files"
    )


def _is_checkpoint(prefix: Path) -> bool:
    return Path(f"{prefix}.index").exists()


def _of_another_program(path: Path) -> str | None:
    """What a file is that no Saver wrote, in words; None if that cannot be said."""
    with path.open("rb") as file:
        beginning = file.read(16)
    if zipfile.is_zipfile(path):
        try:
            with zipfile.ZipFile(path) as archive:
                inside = archive.namelist()
        except (zipfile.BadZipFile, ValueError, NotImplementedError):
            inside = []
        found = (what for pattern, what in _ZIPPED.items() if any(re.fullmatch(pattern, name) for name in inside))
        return next(found, "a zip archive")
    found = (what for known, what in _BEGINNINGS.items() if beginning.startswith(known))
    return next(found, _ENDINGS.get(path.suffix.lower()))
