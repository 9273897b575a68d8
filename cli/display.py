"""How a run looks on stderr: a live panel on a terminal, plain lines elsewhere."""

import math
import time
from types import TracebackType
from typing import Any, Self

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, Task, TextColumn, TimeRemainingColumn
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from twin_graph.base.stopwatch import PHASES
from twin_graph.base.text import counted

from .params import say, stderr
from .records import worker_line

_PANEL_SECONDS = 0.25
LINE_SECONDS = 15.0  # between lines, where there is no terminal
RATE_SECONDS = 300.0  # over which a rate is measured; with all that happens in them, as evaluations


class TrainingDisplay:
    """Shows a `twin_graph.progress.Progress` whenever enough time has passed; ends the live panel on exit.

    Args:
      console: a terminal gets a panel, anything else lines.
      verbose: also show loss, Q, epsilon, ages, and where the time goes.
    """

    def __init__(self, console: Console, *, verbose: bool = False) -> None:
        self._console = console
        self._verbose = verbose
        self._live = Live(console=console, auto_refresh=False) if console.is_interactive else None
        self._interval = _PANEL_SECONDS if self._live else LINE_SECONDS
        self._start = self._shown = self._measured = time.monotonic()
        self._rate = Progress(disable=True, speed_estimate_period=RATE_SECONDS, get_time=time.monotonic)
        self._task = self._rate.add_task("")
        self._of: object = None  # the newest progress; `reproduce` has several, one after the other
        self._notices = 0  # that have been shown

    def __enter__(self) -> Self:
        if self._live:
            self._live.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._live:
            self._live.stop()

    def show(self, progress: Any) -> None:
        """Called after every vector step; costs nothing most of the time."""
        now = time.monotonic()
        if progress is not self._of:
            self._of, self._notices = progress, 0
            self._rate.reset(self._task, total=progress.total_steps)
        for notice in progress.notices[self._notices :]:
            self._console.print(notice, soft_wrap=True)
        self._notices = len(progress.notices)
        if progress.updates and now - self._measured >= _PANEL_SECONDS:  # filling the replay is faster
            self._measured = now
            self._rate.update(self._task, completed=progress.agent_steps)
        if now - self._shown < self._interval and not progress.happened.evaluations:
            return
        self._shown = now
        for snapshot, evaluation in progress.happened.evaluations:
            self._console.print(
                f"{snapshot.counters.agent_steps:>11,} agent steps: score of {snapshot.id} is {evaluation.words()}",
                soft_wrap=True,
            )
        rate = self._rate.tasks[0]
        if self._live:
            self._live.update(_panel(progress, now - self._start, rate, verbose=self._verbose), refresh=True)
        else:
            self._console.print(_line(progress, now - self._start, rate, verbose=self._verbose), soft_wrap=True)


class Meter:
    """How far a command is, on stderr: a bar on a terminal, which is gone in the end; a line now and then elsewhere."""

    def __init__(self) -> None:
        columns = (
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
        )
        live = stderr.is_interactive
        self._bar = Progress(
            *columns,
            console=stderr,
            transient=True,
            disable=not live,
            speed_estimate_period=RATE_SECONDS,
            get_time=time.monotonic,
        )
        self._task = self._bar.add_task("", total=None)
        self._shown = math.inf if live else time.monotonic()

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._bar.stop()

    def show(self, what: str, done: int, total: int) -> None:
        """Shows that `done` of `total` are done; costs nothing most of the time."""
        self._bar.update(self._task, description=what, completed=done, total=total)
        now = time.monotonic()
        if now - self._shown >= LINE_SECONDS:
            self._shown = now
            left = self._bar.tasks[0].time_remaining
            say(f"{what}: {done:,} of {total:,}" + ("" if left is None else f", {clock(left)} left"))


def _line(progress: Any, elapsed: float, rate: Task, *, verbose: bool) -> str:
    done = f"{progress.agent_steps:>9,} of {progress.total_steps:,} agent steps"
    if progress.note:
        return f"{done}  {progress.note}"
    parts = [done, f"return {_recent_return(progress)}"]
    if progress.evaluations:
        parts.append(f"score {', '.join(f'{found.mean:z.2f}' for _, found in progress.evaluations.values())}")
    if rate.speed:
        parts.append(f"{rate.speed:,.0f}/s")
    if left := rate.time_remaining:
        parts.append(f"{clock(left)} left")
    if progress.has_target:
        served = f" (for {counted(progress.target_served, 'update')})" if verbose else ""
        parts.append(f"target {_targets(progress)}{served}")
    if progress.opponent:
        parts.append(f"opponent {progress.opponent}")
    if verbose:
        parts += [f"{clock(elapsed)} elapsed", counted(progress.updates, "update"), f"epsilon {progress.epsilon:.2f}"]
        parts += [f"loss {_number(progress.loss, 4)}", f"q {_number(progress.q_mean, 2)}", _phases(progress)]
    return "  ".join(parts)


def _panel(progress: Any, elapsed: float, rate: Task, *, verbose: bool) -> Group:
    bar = Table.grid(padding=(0, 1))
    bar.add_row(
        ProgressBar(total=progress.total_steps, completed=progress.agent_steps, width=40),
        f"{progress.agent_steps:,} of {progress.total_steps:,} agent steps",
    )
    counts = Table.grid(padding=(0, 2))
    counts.add_row(
        *("updates", f"{progress.updates:,}"),
        *("episodes", f"{progress.counters.episodes:,}"),
        *("epsilon", f"{progress.epsilon:.3f}"),
    )
    left, served = rate.time_remaining, counted(progress.target_served, "update")
    speed = f"{rate.speed:.0f} agent steps/s" if rate.speed else "rate not known yet"
    facts = Table.grid(padding=(0, 2))  # a line each: names of snapshots are long, and lines of 80 letters are not
    facts.add_row("time", f"{clock(elapsed)}{f', about {clock(left)} left' if left else ''}, {speed}")
    facts.add_row("loss", f"{_number(progress.loss, 4)}, mean max Q {_number(progress.q_mean, 2)}")
    facts.add_row("return", _recent_return(progress))
    facts.add_row("score", _score(progress))
    facts.add_row("target", f"{_targets(progress)}, serving for {served}" if progress.has_target else "none")
    if progress.opponent:
        facts.add_row("opponent", progress.opponent)
    workers = Table.grid(padding=(0, 2))
    for worker, restarts in progress.workers:
        again = f", restarted {counted(restarts, 'time')}" if restarts else ""
        workers.add_row(worker.name, worker_line(worker) + again)
    phases = Text(_phases(progress) if verbose else "", "dim")
    return Group(bar, counts, facts, workers, phases, Text(progress.note, "yellow"))


def _phases(progress: Any) -> str:
    """Mean milliseconds of each phase, and its share of the time."""
    latest = progress.latest
    return "  ".join(
        f"{phase} {latest[f'milliseconds/{phase}']:.1f} ms ({latest[f'time_share/{phase}']:.0%})"
        for phase in PHASES
        if latest and latest[f"time_share/{phase}"] > 0
    )


def _score(progress: Any) -> str:
    found = [f"{evaluation.mean:z.2f} ({snapshot})" for snapshot, evaluation in progress.evaluations.values()]
    return ", ".join(found) or "not evaluated yet"


def _recent_return(progress: Any) -> str:
    returns = progress.returns
    recent = f"(last {counted(len(returns), 'game')})"
    return f"{sum(returns) / len(returns):z.2f} {recent}" if returns else "no game ended yet"


def _number(value: float, digits: int) -> str:
    """A dash before there is one."""
    return "-" if math.isnan(value) else f"{value:z.{digits}f}"


def clock(seconds: float) -> str:
    """`h:mm:ss`."""
    whole = math.ceil(seconds)
    return f"{whole // 3600}:{whole // 60 % 60:02}:{whole % 60:02}"


def _targets(progress: Any) -> str:
    first, *others = progress.target
    more = f" and {len(others)} more" if others else ""
    return str(first) + more + (", held" if progress.target_held else "")
