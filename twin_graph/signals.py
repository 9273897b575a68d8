"""SIGINT and SIGTERM, by which people, terminals and batch systems ask a program to stop."""

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any


@contextlib.contextmanager
def on_signal(handler: Callable[[int, FrameType | None], Any], *, once: bool = False) -> Iterator[None]:
    """Lets both signals call `handler(number, frame)` for a while.

    Nothing changes in other threads than the main one, which alone can set handlers, nor for a signal whose handler
    was set from C, as Python could not set that one again.

    Args:
      once: the first of each signal; after it, that signal does what it did before.
    """
    main = threading.current_thread() is threading.main_thread()
    numbers = (signal.SIGINT, signal.SIGTERM) if main else ()
    previous: dict[int, Any] = {n: before for n in numbers if (before := signal.getsignal(n)) is not None}

    def handle(number: int, frame: FrameType | None) -> None:
        if once:
            signal.signal(number, previous[number])
        handler(number, frame)

    try:
        for number in previous:
            signal.signal(number, handle)
        yield
    finally:
        for number, before in previous.items():
            signal.signal(number, before)
