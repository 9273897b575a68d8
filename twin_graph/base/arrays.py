"""Types of numbers that arrays may have, and files of arrays, also those that somebody else has written."""

import errno
import io
import math
import os
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from twin_graph.base.text import first_line

_NPZ_MEMBER = ".npy"
_MOST_MEMBERS = 10_000
_LONGEST_HEADER = 10_000  # bytes, as NumPy itself evaluates at most
#: What reads the header of a version of the format, and how many bytes say how long it is.
_HEADERS = {
    (1, 0): (np.lib.format.read_array_header_1_0, 2),
    (2, 0): (np.lib.format.read_array_header_2_0, 4),
}


def takes(dtype: np.dtype[Any], given: np.dtype[Any]) -> bool:
    """Whether numbers of one type can be converted to another. uint8 means images and takes nothing else: booleans
    would be nearly black, and larger numbers would keep only their last eight bits."""
    return given == dtype if dtype == np.uint8 else np.can_cast(given, dtype, "same_kind")


def load_all(path: Path, names: Sequence[str] = ()) -> dict[str, np.ndarray]:
    """The arrays of a file, by name.

    Args:
      path: of an `.npz` file, or of one that is an `.npy` file, or several one after the other.
      names: of the latter.

    Raises:
      OSError: it cannot be read.
      ValueError: with a reason: it holds something else, or less than it says.
    """
    with path.open("rb") as file:
        stop = _size(file)
        if path.suffix == ".npz":
            return _members(file, stop)
        arrays = {name: _array(file, stop) for name in names}
        if file.read(1):
            raise ValueError(f"something follows its {len(names)} arrays")
        return arrays


def _size(file: BinaryIO) -> int:
    return os.fstat(file.fileno()).st_size


def _members(file: BinaryIO, size: int) -> dict[str, np.ndarray]:
    """The arrays of an archive whose members are stored as they are, by name."""
    arrays = dict[str, np.ndarray]()
    try:
        with zipfile.ZipFile(file) as archive:
            members = archive.infolist()
            if len(members) > _MOST_MEMBERS or sum(member.file_size for member in members) > size:
                raise ValueError("it says to hold more than it does")
            for member in members:
                name = member.filename.removesuffix(_NPZ_MEMBER)
                if member.compress_type != zipfile.ZIP_STORED or member.file_size != member.compress_size:
                    raise ValueError("it is compressed")
                if name == member.filename or name in arrays:
                    raise ValueError("it holds something else than arrays, or one twice")
                with archive.open(member) as content:
                    array = _array(content, member.file_size)  # type: ignore[arg-type]
                    if content.read(1):  # which also compares its checksum
                        raise ValueError("something follows an array")
                arrays[name] = array
    except (zipfile.BadZipFile, NotImplementedError, RuntimeError, EOFError, OverflowError) as error:
        raise ValueError(f"it is no whole archive: {error}") from None
    except OSError as error:
        if error.errno != errno.EINVAL:  # a place before the file's beginning
            raise
        raise ValueError("it is no whole archive") from None
    return arrays


def _array(file: BinaryIO, stop: int) -> np.ndarray:
    """The array that begins here, if it ends before `stop`; nothing larger than that is allocated."""
    try:
        version = np.lib.format.read_magic(file)
        if version not in _HEADERS:
            raise ValueError("it is of an unknown version")
        read_header, width = _HEADERS[version]
        length = file.read(width)
        if (size := int.from_bytes(length, "little")) > _LONGEST_HEADER:
            raise ValueError("its header is too long")
        header = io.BytesIO(length + file.read(size))
        shape, in_fortran_order, dtype = read_header(header, max_header_size=_LONGEST_HEADER)
    except Exception as error:  # NumPy parses the header as Python, and raises what that does
        raise ValueError(f"it holds no array: {first_line(error)}") from None
    if dtype.hasobject or dtype.itemsize == 0:
        raise ValueError(f"its array is of {dtype}, and not of numbers")
    if not all(type(axis) is int and axis >= 0 for axis in shape) or len(shape) > 32:
        raise ValueError("its array has an impossible shape")
    size = math.prod(shape) * dtype.itemsize
    if math.prod(filter(None, shape)) * dtype.itemsize >= 1 << 63 or file.tell() + size > stop:
        raise ValueError(f"it is cut short: its array {list(shape)} of {dtype} is not in it")
    content = np.empty(size, np.uint8)
    filled = 0
    while filled < size and (count := file.readinto(content.data[filled:])):  # type: ignore[attr-defined]
        filled += count
    if filled < size:
        raise ValueError("it is cut short")
    return content.view(dtype).reshape(shape, order="F" if in_fortran_order else "C")
