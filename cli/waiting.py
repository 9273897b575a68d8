"""What a command is doing before it has something to show. Imports nothing that takes time."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import threading
from collections.abc import Iterator
from typing import Any, TextIO

from twin_graph.base import doing
from twin_graph.base.text import printable

_PATIENCE_SECONDS = 0.3  # many commands have shown what they found soon after


_ERASE = "\r\x1b[K"  # to the beginning of the line, and all of it away


class _Line:
    """One line of a terminal that is there until something else is written.

    Args:
      terminal: where it is written.
    """

    def __init__(self, terminal: TextIO) -> None:
        self._terminal = terminal
        self._lock = threading.RLock()
        self._is_shown = False
        self._first = threading.Timer(_PATIENCE_SECONDS, self.show, ["starting"])
        self._first.daemon = True
        self._first.start()

    def show(self, what: str) -> None:
        with self._lock, contextlib.suppress(OSError):  # the terminal may be gone
            text = f"{printable(what, one_line=True)} ..."[: shutil.get_terminal_size().columns - 1]
            self._replace(text)

    def erase(self) -> None:
        with self._lock:
            self._replace("")

    def _replace(self, text: str) -> None:
        self._first.cancel()
        erase = _ERASE if self._is_shown else ""
        self._is_shown = bool(text)
        if erase or text:
            self._terminal.write(erase + text)
            self._terminal.flush()


class _Erasing:
    """A stream to the terminal whose writes erase the line first."""

    def __init__(self, stream: TextIO, line: _Line) -> None:
        self._stream, self._line = stream, line

    def write(self, text: str) -> int:
        with contextlib.suppress(OSError):  # the write itself says more
            self._line.erase()
        return self._stream.write(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def _say(what: str) -> None:
    with contextlib.suppress(OSError):  # nobody reads it any more
        print(printable(what, one_line=True), file=sys.stderr, flush=True)


@contextlib.contextmanager
def waiting() -> Iterator[None]:
    """While it lasts, stderr says what `doing.now` is told.

    On a terminal in one line, soon after the start, until the command prints something itself;
    elsewhere in a line now and then.
    """
    if not sys.stderr.isatty() or os.environ.get("TERM") in (None, "dumb", "unknown"):
        with doing.heard_by(doing.now_and_then(_say)):
            yield
        return
    before = sys.stdout, sys.stderr
    line = _Line(sys.stderr)
    try:
        for name in ("stdout", "stderr"):
            if (stream := getattr(sys, name)).isatty():
                setattr(sys, name, _Erasing(stream, line))
        with doing.heard_by(line.show):
            yield
    finally:
        sys.stdout, sys.stderr = before
        with contextlib.suppress(OSError):
            line.erase()
