"""The folder in which a command began: environments may change the process's, as game engines do."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from pathlib import Path

_began: list[Path] = []


@contextlib.contextmanager
def began_here() -> Iterator[None]:
    """While it lasts, relative paths mean what they mean now, whatever an environment does."""
    _began.append(Path.cwd())
    try:
        yield
    finally:
        _began.pop()


def absolute(path: Path) -> Path:
    """A path from the folder in which the command began; outside of commands, from the present one."""
    return (_began[-1] if _began else Path.cwd()) / path


def shortened(text: str) -> str:
    """A text for people, with the paths below that folder as one would write them there."""
    if not _began or _began[-1].parent == _began[-1]:
        return text
    return re.sub(rf"(?<![\w./~-]){re.escape(str(_began[-1]))}/(?=[^\s/])", "", text)
