"""The signals by which people, terminals and batch systems ask a program to stop."""

import contextlib
import signal
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

#: Of Slurm before a job's time is over, and of a terminal that is closed, perhaps by its kernel and its shell.
WARNINGS = (signal.SIGUSR1, signal.SIGHUP)
#: All of them.
STOPS = (signal.SIGINT, signal.SIGTERM, *WARNINGS)

_SAME_SECONDS = 0.3  # less than between two Ctrl-C of a person


def is_ignored(number: int) -> bool:
    """Whether whoever began this process wants it to survive a signal, as `nohup` does of SIGHUP.

    Never of SIGINT, which shells have ignored by what they begin in the background.
    """
    return number != signal.SIGINT and signal.getsignal(number) is signal.SIG_IGN


def set_stops(handler: Any, *numbers: int) -> None:
    """Sets what these signals do, but for those that are ignored."""
    for number in numbers:
        if not is_ignored(number):
            signal.signal(number, handler)


@contextlib.contextmanager
def on_signal(handler: Callable[[int, FrameType | None], Any], *, once: bool = False) -> Iterator[None]:
    """Lets all `STOPS` that are not ignored call `handler(number, frame)` for a while; each of `WARNINGS` once.

    Nothing changes in other threads than the main one, which alone can set handlers, nor for a signal whose handler
    was set from C, as Python could not set that one again.

    Args:
      once: the first of each signal; after it, SIGINT and SIGTERM do what they did before, but not in the moment in
        which wrappers such as `timeout` send them once more, to the whole process group.
    """
    main = threading.current_thread() is threading.main_thread()
    numbers = [number for number in STOPS if not is_ignored(number)] if main else ()
    previous: dict[int, Any] = {n: before for n in numbers if (before := signal.getsignal(n)) is not None}

    came: dict[int, float] = {}

    def handle(number: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        only_first = once or number in WARNINGS
        if not only_first or came.setdefault(number, now) == now:
            handler(number, frame)
        elif number not in WARNINGS and now - came[number] > _SAME_SECONDS:
            signal.signal(number, previous[number])
            signal.raise_signal(number)

    try:
        for number in previous:
            signal.signal(number, handle)
        yield
    finally:
        for number, before in previous.items():
            signal.signal(number, before)
