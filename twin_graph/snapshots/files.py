"""Writes that are whole or absent after a crash, and durable once they return."""

import contextlib
import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from twin_graph.errors import DamagedError


def fsync(path: Path) -> None:
    """Makes a file's bytes, or a folder's entries, durable."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def commit_folder(destination: Path, fill: Callable[[Path], None]) -> None:
    """Creates the folder `destination` with what `fill(folder)` writes into it: all of it, or nothing.

    Everything is written into a temporary folder beside it, made durable, and renamed.

    Raises:
      OSError: the disk is full, a write or an fsync failed; `destination` does not exist then.
    """
    temporary = destination.with_name(f".tmp-{destination.name}-{os.getpid()}")
    temporary.mkdir()
    try:
        fill(temporary)
        for file in temporary.iterdir():
            fsync(file)
        fsync(temporary)
        temporary.rename(destination)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    fsync(destination.parent)


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
    """Appends one JSON document as one line, with one write; NaN and infinity are written as null.

    A line that a crash cut short is closed first, so that the damage stays in it.
    """
    line = json.dumps(_finite(record), ensure_ascii=False, allow_nan=False) + "\n"
    with path.open("a+b") as file:
        if file.tell():
            file.seek(-1, os.SEEK_END)
            if file.read(1) != b"\n":
                line = "\n" + line
        file.write(line.encode())
        file.flush()
        if durable:
            os.fsync(file.fileno())


def read_lines(path: Path) -> Iterator[dict[str, Any]]:
    """The records of a file of JSON lines; none where there is no file. Lines that a crash cut short are passed over.

    Raises:
      DamagedError: the file is not text, or a line is JSON but no record.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return
    except UnicodeDecodeError:
        raise DamagedError(f"{path} is damaged: it is not UTF-8 text") from None
    for number, line in enumerate(text.splitlines(), start=1):
        try:
            record = json.loads(line)
        except json.JSONDecodeError:
            continue
        if not isinstance(record, dict):
            raise DamagedError(f"{path}:{number} is damaged: it holds no record")
        yield record


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    if isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):
        return None
    return value
