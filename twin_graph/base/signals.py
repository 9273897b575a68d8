"""SIGINT and SIGTERM, by which people, terminals and batch systems ask a program to stop."""

import contextlib
import signal
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

_SAME_SECONDS = 0.3  # less than between two Ctrl-C of a person


@contextlib.contextmanager
def on_signal(handler: Callable[[int, FrameType | None], Any], *, once: bool = False) -> Iterator[None]:
    """Lets both signals call `handler(number, frame)` for a while.

    Nothing changes in other threads than the main one, which alone can set handlers, nor for a signal whose handler
    was set from C, as Python could not set that one again.

    Args:
      once: the first of each signal; after it, that signal does what it did before, but not in the moment in which
        wrappers such as `timeout` send it once more, to the whole process group.
    """
    main = threading.current_thread() is threading.main_thread()
    numbers = (signal.SIGINT, signal.SIGTERM) if main else ()
    previous: dict[int, Any] = {n: before for n in numbers if (before := signal.getsignal(n)) is not None}

    came: dict[int, float] = {}

    def handle(number: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        if not once or came.setdefault(number, now) == now:
            handler(number, frame)
        elif now - came[number] > _SAME_SECONDS:
            signal.signal(number, previous[number])
            signal.raise_signal(number)

    try:
        for number in previous:
            signal.signal(number, handle)
        yield
    finally:
        for number, before in previous.items():
            signal.signal(number, before)
