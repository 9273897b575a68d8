"""The folder in which a command began: environments may change the process's, as game engines do."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from pathlib import Path


class _Begun:
    """A command: the folder in which it began, and the relative paths that it was given."""

    def __init__(self) -> None:
        self.folder = Path.cwd()
        self.given: dict[str, str] = {}


_commands: list[_Begun] = []


@contextlib.contextmanager
def began_here() -> Iterator[None]:
    """While it lasts, relative paths mean what they mean now, whatever an environment does."""
    _commands.append(_Begun())
    try:
        yield
    finally:
        ended = _commands.pop()
        if _commands:  # which tells of its errors
            _commands[-1].given |= ended.given


def absolute(path: Path) -> Path:
    """A path from the folder in which the command began; outside of commands, from the present one."""
    if not _commands:
        return path.absolute()
    here = _commands[-1]
    if not path.is_absolute() and ".." not in path.parts:
        # What lies beside it is shown as it is.
        beside = f"{path.parent}/" if path.parent.name else ""
        here.given |= {f"{here.folder / path.parent}/": beside, str(here.folder / path): str(path)}
    return here.folder / path


def shortened(text: str) -> str:
    """A text for people, with relative paths as they were given."""
    given = _commands[-1].given if _commands else {}
    for found in sorted(given, key=len, reverse=True):
        text = re.sub(rf"(?<![\w./~-]){re.escape(found)}", given[found].replace("\\", r"\\"), text)
    return text
