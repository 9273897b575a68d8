"""Where a run's time goes.

In chunks, `act`, `environment`, `sample` and `target` happen in a second thread while this one is in `train` (except
for targets that are evaluated again after a refresh); `wait` is how long this one then waits for the other.
"""

import contextlib
import time
from collections.abc import Iterator

PHASES = (
    "act",
    "environment",
    "sample",
    "target",
    "train",
    "wait",
    "save",
    "refresh",
    "telemetry",
    "evaluate",
    "resume point",
    "prune",
)


class Stopwatch:
    """Seconds spent and calls made in each phase since the beginning."""

    def __init__(self) -> None:
        self.seconds = dict.fromkeys(PHASES, 0.0)
        self.calls = dict.fromkeys(PHASES, 0)

    @contextlib.contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Counts the time inside `with` toward a phase."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[name] += time.perf_counter() - start
            self.calls[name] += 1
