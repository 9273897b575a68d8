"""Writes that are whole or absent after a crash, durable once they return, and checked when they are read.

Every write, fsync, rename and removal of a run's records goes through this module.
"""

import contextlib
import fcntl
import json
import math
import os
import shutil
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from twin_graph.errors import DamagedError

_Result = TypeVar("_Result")
_TEMPORARY = ".tmp-"
_SUM = b'"crc": '


def fsync(path: Path) -> None:
    """Makes a file's bytes, or a folder's entries, durable."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def make_folder(folder: Path) -> None:
    """Makes a folder, and those above it, durably; nothing where it is there already."""
    if not folder.exists():
        make_folder(folder.parent)
        folder.mkdir(exist_ok=True)
        fsync(folder.parent)


def write_new(path: Path, *parts: bytes | memoryview) -> None:
    """Creates a file of these parts, one after the other; not durable yet. What is there in part after an error is."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
    try:
        for part in parts:
            _write(descriptor, part)
    finally:
        os.close(descriptor)


def commit_folder(destination: Path, fill: Callable[[Path], _Result]) -> _Result:
    """Creates the folder `destination` with what `fill(folder)` writes into it: all of it, or nothing.

    Everything is written into a temporary folder beside it, made durable, and renamed.

    Returns:
      What `fill` returned.

    Raises:
      OSError: the disk is full, a write or an fsync failed; `destination` does not exist then.
    """
    temporary = destination.with_name(f"{_TEMPORARY}{destination.name}-{os.getpid()}")
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir()
    try:
        result = fill(temporary)
        for file in temporary.iterdir():
            fsync(file)
        fsync(temporary)
        temporary.rename(destination)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    try:
        fsync(destination.parent)
    except BaseException:
        with contextlib.suppress(OSError):
            remove_folder(destination)
        raise
    return result


def write_file(path: Path, content: bytes) -> None:
    """Creates or replaces a small file, durably: readers see the old content or the new."""
    temporary = path.with_name(f"{_TEMPORARY}{path.name}-{os.getpid()}")
    try:
        temporary.unlink(missing_ok=True)  # of a process that died and had the same number, as in containers
        write_new(temporary, content)
        fsync(temporary)
        temporary.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise
    fsync(path.parent)


def remove_leftovers(folder: Path) -> None:
    """Removes what writers that died left behind in a folder. Only for the one process that writes there."""
    for path in folder.glob(f"{_TEMPORARY}*"):
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


def remove_folder(folder: Path) -> None:
    """Removes a folder of ours: readers see all of it or nothing."""
    doomed = folder.with_name(f"{_TEMPORARY}{folder.name}-{os.getpid()}")
    folder.rename(doomed)
    shutil.rmtree(doomed)


def checked(record: dict[str, Any], *, indent: int | None = None) -> bytes:
    """A JSON object that ends with the CRC-32 of all that stands before it; NaN and infinity are written as null."""
    text = json.dumps(_finite(record), ensure_ascii=False, allow_nan=False, indent=indent).encode()
    head = text[:-1] + b", " if indent is None else text[:-2] + b",\n" + b" " * indent
    return head + _sum(head) + (b"}" if indent is None else b"\n}\n")


def unchecked(content: bytes) -> dict[str, Any]:
    """The record that `checked` wrote, without its sum. Raises ValueError if it is not what was written."""
    head, mark, tail = content.rpartition(_SUM)
    if mark + tail not in (_sum(head) + b"}", _sum(head) + b"\n}\n"):
        raise ValueError("its checksum is wrong")
    record = json.loads(content)
    if not isinstance(record, dict):
        raise ValueError("it holds no record")
    del record["crc"]
    return record


def append_line(path: Path, record: dict[str, Any], *, durable: bool = True) -> None:
    """Appends a record as one line.

    Several processes may append to one file. A last line without an end is what a crash left of a line that nobody
    was told of: it is removed first.

    Raises:
      OSError: the disk is full, or a write or an fsync failed; the line is not there, or will be taken for absent.
    """
    line = checked(record) + b"\n"
    is_new = not path.exists()
    descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o666)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        end = _end_of_whole_lines(descriptor)
        if end < os.fstat(descriptor).st_size:
            os.ftruncate(descriptor, end)
        try:
            _write(descriptor, line)
            if durable:
                os.fsync(descriptor)
        except BaseException:
            with contextlib.suppress(OSError):
                os.ftruncate(descriptor, end)
            raise
    finally:
        os.close(descriptor)
    if durable and is_new:
        fsync(path.parent)


class Line(NamedTuple):
    """One line of a file of records.

    Attributes:
      number: from 1.
      start: its first byte's place in the file.
      record: None where the line is not what was written.
    """

    number: int
    start: int
    record: dict[str, Any] | None


def read_lines(path: Path, *, newest_bytes: int | None = None) -> Iterator[Line]:
    """The lines of a file; none where there is no file. A last line without an end is one that is being written.

    Args:
      path: of the file.
      newest_bytes: only the lines that begin in the last so many bytes.
    """
    try:
        with path.open("rb") as file:
            start = 0
            if newest_bytes is not None and file.seek(0, os.SEEK_END) > newest_bytes:
                file.seek(-newest_bytes - 1, os.SEEK_END)
                file.readline()  # the rest of a line that began earlier
                start = file.tell()
            file.seek(start)
            lines = file.read().split(b"\n")[:-1]
    except FileNotFoundError:
        return
    for number, line in enumerate(lines, start=1):
        try:
            record = unchecked(line)
        except ValueError:
            record = None
        yield Line(number, start, record)
        start += len(line) + 1


def whole_bytes(path: Path) -> int:
    """How much of a file is whole lines; 0 where there is no file."""
    try:
        with path.open("rb") as file:
            return _end_of_whole_lines(file.fileno())
    except FileNotFoundError:
        return 0


def read_file(path: Path) -> dict[str, Any]:
    """The record in a file of its own that `checked` wrote.

    Raises:
      DamagedError: it is missing, or not what was written.
    """
    try:
        return unchecked(path.read_bytes())
    except OSError as error:
        raise DamagedError(f"{path} cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise DamagedError(f"{path} is damaged: {error}") from None


def _sum(head: bytes) -> bytes:
    return b'%s"%08x"' % (_SUM, zlib.crc32(head))


def _write(descriptor: int, content: bytes | memoryview) -> None:
    left = memoryview(content).cast("B")
    while left.nbytes:
        left = left[os.write(descriptor, left) :]


def _end_of_whole_lines(descriptor: int) -> int:
    end = os.fstat(descriptor).st_size
    while end and os.pread(descriptor, 1, end - 1) != b"\n":
        end -= 1
    return end


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
