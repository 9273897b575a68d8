"""Checks of the paths for pictures and films, made before any time is spent on what could not be written."""

import importlib.util
from collections.abc import Sequence
from pathlib import Path

from twin_graph.errors import UsageError


def check_new(path: Path, what: str, endings: Sequence[str]) -> None:
    """Raises `UsageError` unless the file is a new one, in a folder that exists, with one of these endings.

    Args:
      path: of the file.
      what: what it will be, such as `film`.
      endings: two or more, such as `.mp4`; they determine the format.
    """
    if path.suffix.lower() not in endings:
        *others, last = endings
        raise UsageError(f"{path}: a {what}'s name ends in {', '.join(others)} or {last}")
    if path.exists() or path.is_symlink():
        raise UsageError(f"{path} exists already; choose another path, or remove it")
    if not path.absolute().parent.is_dir():
        raise UsageError(f"there is no folder {path.parent}; make it first")


def check_picture(path: Path | None) -> None:
    """Raises `UsageError` if a picture is wanted that cannot be drawn there, or matplotlib is missing."""
    if path is None:
        return
    check_new(path, "picture", (".png", ".svg", ".pdf"))
    if not importlib.util.find_spec("matplotlib"):
        raise UsageError("pictures need matplotlib: pip install 'twin-graph[experiments]'")
