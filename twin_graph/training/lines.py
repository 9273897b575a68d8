"""Lines for people on how a run trains: where there is no terminal, and in scripts."""

import math
import time
from collections.abc import Callable
from typing import Any

from rich.progress import Progress, Task

from twin_graph.base.doing import LINE_SECONDS
from twin_graph.base.stopwatch import PHASES
from twin_graph.base.text import counted

RATE_SECONDS = 300.0  # over which a rate is measured; with all that happens in them, as evaluations
_MEASURED_SECONDS = 0.25


class Lines:
    """Shows a `twin_graph.progress.Progress` now and then, and what people should not miss at once.

    Args:
      say: prints a line.
      verbose: also show loss, Q, epsilon, ages, and where the time goes.
      draw: shows `(progress, seconds, rate)` in another way than a line.
      every: seconds from one to the next; by default `LINE_SECONDS`.
    """

    def __init__(
        self,
        say: Callable[[str], object],
        *,
        verbose: bool = False,
        draw: Callable[[Any, float, Task], object] | None = None,
        every: float | None = None,
    ) -> None:
        self._say, self._every = say, LINE_SECONDS if every is None else every
        self._draw = draw or (lambda *shown: say(_line(*shown, verbose=verbose)))
        self._start = self._shown = self._measured = time.monotonic()
        self._rate = Progress(disable=True, speed_estimate_period=RATE_SECONDS, get_time=time.monotonic)
        self._task = self._rate.add_task("")
        self._of: object = None  # the newest progress; `reproduce` has several, one after the other
        self._notices = 0  # that have been shown

    def show(self, progress: Any) -> None:
        """Called after every vector step; costs nothing most of the time."""
        now = time.monotonic()
        if progress is not self._of:
            self._of, self._notices = progress, 0
            self._rate.reset(self._task, total=progress.total_steps)
        for notice in progress.notices[self._notices :]:
            self._say(notice)
        self._notices = len(progress.notices)
        if progress.updates and now - self._measured >= _MEASURED_SECONDS:  # filling the replay is faster
            self._measured = now
            self._rate.update(self._task, completed=progress.agent_steps)
        if now - self._shown < self._every and not progress.happened.evaluations:
            return
        self._shown = now
        for snapshot, evaluation in progress.happened.evaluations:
            made = snapshot.counters.agent_steps
            self._say(f"{made:>11,} agent steps: score of {snapshot.id} is {evaluation.words()}")
        self._draw(progress, now - self._start, self._rate.tasks[0])


def ended(progress: Any) -> str:
    """For people: how a run ended, and where."""
    reached = f": reached {progress.reached}" if progress.reached else ""
    return f"{'interrupted' if progress.interrupted else 'finished'} at {progress.agent_steps:,} agent steps{reached}"


def _line(progress: Any, elapsed: float, rate: Task, *, verbose: bool) -> str:
    done = f"{progress.agent_steps:>9,} of {progress.total_steps:,} agent steps"
    if progress.note:
        return f"{done}  {progress.note}"
    parts = [done, f"return {recent_return(progress)}"]
    if progress.evaluations:
        parts.append(f"score {', '.join(f'{found.mean:z.2f}' for _, found in progress.evaluations.values())}")
    if rate.speed:
        parts.append(f"{rate.speed:,.0f}/s")
    if left := rate.time_remaining:
        parts.append(f"{clock(left)} left")
    if progress.has_target:
        served = f" (for {counted(progress.target_served, 'update')})" if verbose else ""
        parts.append(f"target {targets(progress)}{served}")
    if progress.opponent:
        parts.append(f"opponent {progress.opponent}")
    if verbose:
        parts += [f"{clock(elapsed)} elapsed", counted(progress.updates, "update"), f"epsilon {progress.epsilon:.2f}"]
        parts += [f"loss {number(progress.loss, 4)}", f"q {number(progress.q_mean, 2)}", phases(progress)]
    return "  ".join(parts)


def phases(progress: Any) -> str:
    """Mean milliseconds of each phase, and its share of the time."""
    latest = progress.latest
    return "  ".join(
        f"{phase} {latest[f'milliseconds/{phase}']:.1f} ms ({latest[f'time_share/{phase}']:.0%})"
        for phase in PHASES
        if latest and latest[f"time_share/{phase}"] > 0
    )


def recent_return(progress: Any) -> str:
    returns = progress.returns
    recent = f"(last {counted(len(returns), 'game')})"
    return f"{sum(returns) / len(returns):z.2f} {recent}" if returns else "no game ended yet"


def number(value: float, digits: int) -> str:
    """A dash before there is one."""
    return "-" if math.isnan(value) else f"{value:z.{digits}f}"


def clock(seconds: float) -> str:
    """`h:mm:ss`."""
    whole = math.ceil(seconds)
    return f"{whole // 3600}:{whole // 60 % 60:02}:{whole % 60:02}"


def targets(progress: Any) -> str:
    first, *others = progress.target
    more = f" and {len(others)} more" if others else ""
    return str(first) + more + (", held" if progress.target_held else "")
