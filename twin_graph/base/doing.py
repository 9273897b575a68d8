"""What this process is doing while people wait: said where it is done, and shown by whoever listens.

For what takes seconds and has no progress of its own to show, such as importing TensorFlow.
"""

import contextlib
import time
from collections.abc import Callable, Iterator

Listener = Callable[[str], object]

LINE_SECONDS = 15.0  # between lines for people, where there is no terminal

#: Begins the lines by which a process tells the one that started it.
TOLD = "doing: "

_listeners: list[Listener] = []


def now(what: str) -> None:
    """Says what is done from here on: `measuring threads and precision (2 of 16)`."""
    if _listeners:
        _listeners[-1](what)


@contextlib.contextmanager
def heard_by(listener: Listener) -> Iterator[None]:
    """While it lasts, `listener` alone is called with what `now` is told."""
    _listeners.append(listener)
    try:
        yield
    finally:
        _listeners.remove(listener)


def now_and_then(say: Listener) -> Listener:
    """A listener that passes on what is new after `LINE_SECONDS` of silence."""
    said = time.monotonic()

    def listen(what: str) -> None:
        nonlocal said
        if time.monotonic() - said >= LINE_SECONDS:
            said = time.monotonic()
            say(what)

    return listen
