"""Writes that are whole or absent after a crash, and durable once they return."""

import contextlib
import fcntl
import json
import math
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

from twin_graph.errors import DamagedError

_Result = TypeVar("_Result")


def fsync(path: Path) -> None:
    """Makes a file's bytes, or a folder's entries, durable."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
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
    temporary = destination.with_name(f".tmp-{destination.name}-{os.getpid()}")
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
        shutil.rmtree(destination, ignore_errors=True)
        raise
    return result


def write_file(path: Path, text: str) -> None:
    """Creates or replaces a small file: readers see the old text or the new."""
    temporary = path.with_name(f".tmp-{path.name}-{os.getpid()}")
    try:
        temporary.write_text(text, encoding="utf-8")
        fsync(temporary)
        temporary.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise
    fsync(path.parent)


def append_line(path: Path, record: dict[str, Any], *, durable: bool = True) -> None:
    """Appends one JSON document as one line; NaN and infinity are written as null.

    Several processes may append to one file. A line that a crash cut short is closed first, so that the damage stays
    in it.

    Raises:
      OSError: the disk is full, or a write or an fsync failed; the line may be there in part.
    """
    line = json.dumps(_finite(record), ensure_ascii=False, allow_nan=False).encode() + b"\n"
    is_new = not path.exists()
    descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o666)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        size = os.fstat(descriptor).st_size
        if size and os.pread(descriptor, 1, size - 1) != b"\n":
            line = b"\n" + line
        while line:
            line = line[os.write(descriptor, line) :]
        if durable:
            os.fsync(descriptor)
    finally:
        os.close(descriptor)
    if durable and is_new:
        fsync(path.parent)


def read_lines(path: Path, *, newest_bytes: int | None = None) -> Iterator[dict[str, Any]]:
    """The records of a file of JSON lines; none where there is no file. Lines that a crash cut short are passed over.

    Args:
      path: of the file.
      newest_bytes: read only the lines that begin in the last so many bytes.

    Raises:
      DamagedError: a line is JSON but no record.
    """
    try:
        with path.open("rb") as file:
            if newest_bytes is not None and file.seek(0, os.SEEK_END) > newest_bytes:
                file.seek(-newest_bytes - 1, os.SEEK_END)
                file.readline()  # the rest of a line that began earlier
            else:
                file.seek(0)
            lines = file.read().split(b"\n")
    except FileNotFoundError:
        return
    for number, line in enumerate(lines, start=1):
        try:
            record = json.loads(line.decode())
        except ValueError:
            continue
        if not isinstance(record, dict):
            raise DamagedError(f"{path} is damaged: line {number} holds no record")
        yield record


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
