"""How a run looks on stderr: a live panel on a terminal, plain lines elsewhere."""

import contextlib
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

from twin_graph.base import doing
from twin_graph.base.doing import LINE_SECONDS
from twin_graph.base.text import counted, printable
from twin_graph.training.lines import RATE_SECONDS, Lines, clock, number, phases, recent_return, targets

from .params import say, stderr
from .records import worker_line

_PANEL_SECONDS = 0.25


class TrainingDisplay:
    """Shows a `twin_graph.progress.Progress` whenever enough time has passed; ends the live panel on exit.

    Args:
      console: a terminal gets a panel, anything else lines.
      verbose: also show loss, Q, epsilon, ages, and where the time goes.
    """

    def __init__(self, console: Console, *, verbose: bool = False) -> None:
        def say(text: str) -> None:
            console.print(printable(text), soft_wrap=True)

        def draw(progress: Any, elapsed: float, rate: Task) -> None:
            self._live.update(_panel(progress, elapsed, rate, verbose=verbose), refresh=True)

        self._live = Live(console=console, auto_refresh=False)
        self._is_live = console.is_interactive
        lines = Lines(say, draw=draw, every=_PANEL_SECONDS) if self._is_live else Lines(say, verbose=verbose)
        self.show = lines.show
        self._open = contextlib.ExitStack()

    def __enter__(self) -> Self:
        if self._is_live:
            self._open.enter_context(self._live)
            self._open.enter_context(doing.heard_by(lambda what: None))  # noqa: ARG005 - the panel says more
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._open.close()


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
    facts.add_row("loss", f"{number(progress.loss, 4)}, mean max Q {number(progress.q_mean, 2)}")
    facts.add_row("return", recent_return(progress))
    facts.add_row("score", _score(progress))
    facts.add_row("target", f"{targets(progress)}, serving for {served}" if progress.has_target else "none")
    if progress.opponent:
        facts.add_row("opponent", progress.opponent)
    workers = Table.grid(padding=(0, 2))
    for worker, restarts in progress.workers:
        again = f", restarted {counted(restarts, 'time')}" if restarts else ""
        workers.add_row(worker.name, worker_line(worker) + again)
    where = Text(phases(progress) if verbose else "", "dim")
    return Group(bar, counts, facts, workers, where, Text(printable(progress.note), "yellow"))


def _score(progress: Any) -> str:
    found = [f"{evaluation.mean:z.2f} ({snapshot})" for snapshot, evaluation in progress.evaluations.values()]
    return ", ".join(found) or "not evaluated yet"
