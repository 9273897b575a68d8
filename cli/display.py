"""How a training looks on stderr: a live panel on a terminal, plain lines elsewhere."""

import math
import time
from types import TracebackType
from typing import Any, Self

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table

from twin_graph.stopwatch import PHASES

from .records import worker_line

_PANEL_SECONDS = 0.25
_LINE_SECONDS = 15.0


class TrainingDisplay:
    """Shows a `twin_graph.training.Progress` whenever enough time has passed; ends the live panel on exit."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live = Live(console=console, auto_refresh=False) if console.is_terminal else None
        self._interval = _PANEL_SECONDS if self._live else _LINE_SECONDS
        self._start = self._shown = time.monotonic()
        self._evaluation: object = None

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
        new_evaluation = progress.evaluation is not self._evaluation
        if now - self._shown < self._interval and not new_evaluation:
            return
        self._shown = now
        if new_evaluation:
            self._evaluation = progress.evaluation
            snapshot, evaluation = progress.evaluation
            self._console.print(
                f"{progress.agent.agent_steps:>11,} agent steps: score of {snapshot} is {evaluation.words()}",
                soft_wrap=True,
            )
        if self._live:
            self._live.update(_panel(progress, now - self._start), refresh=True)
        else:
            self._console.print(_line(progress, now - self._start), soft_wrap=True)


def _line(progress: Any, elapsed: float) -> str:
    agent = progress.agent
    if progress.note:
        return f"{agent.agent_steps:>11,} agent steps  {progress.note}"
    return (
        f"{agent.agent_steps:>11,} agent steps  {agent.updates:,} updates  return {_recent_return(progress)}  "
        f"epsilon {agent.epsilon:.2f}  loss {agent.last_loss:.4f}  q {agent.last_q:.2f}  "
        f"target {_targets(agent)} ({agent.target_age:,} updates old)  "
        f"{_rate(progress)}  {_left(progress, elapsed)}  {_phases(progress)}"
    )


def _panel(progress: Any, elapsed: float) -> Group:
    agent = progress.agent
    bar = Table.grid(padding=(0, 1))
    bar.add_row(
        ProgressBar(total=progress.total_steps, completed=agent.agent_steps, width=40),
        f"{agent.agent_steps:,} of {progress.total_steps:,} agent steps",
        _left(progress, elapsed),
    )
    facts = Table.grid(padding=(0, 2))
    facts.add_row("updates", f"{agent.updates:,}", "episodes", f"{agent.episodes:,}", "epsilon", f"{agent.epsilon:.3f}")
    facts.add_row(
        "return", _recent_return(progress), "loss", f"{agent.last_loss:.4f}", "mean max Q", f"{agent.last_q:.2f}"
    )
    facts.add_row(
        "target",
        _targets(agent),
        "age",
        f"{agent.target_age:,} updates",
        "rate",
        _rate(progress),
    )
    facts.add_row("score", _score(progress))
    workers = Table.grid(padding=(0, 2))
    for worker in agent.workers:
        restarts = agent.restarts(worker.index)
        again = f", started again {restarts} times" if restarts else ""
        workers.add_row(worker.name, worker_line(worker.model_dump()) + again)
    return Group(bar, facts, workers, f"[dim]{_phases(progress)}[/]", f"[yellow]{progress.note}[/]")


def _phases(progress: Any) -> str:
    """Mean milliseconds of each phase, and its share of the time."""
    latest = progress.latest
    return "  ".join(
        f"{phase} {latest[f'milliseconds/{phase}']:.1f} ms ({latest[f'time_share/{phase}']:.0%})"
        for phase in PHASES
        if latest and latest[f"time_share/{phase}"] > 0
    )


def _score(progress: Any) -> str:
    if progress.evaluation is None:
        return "not evaluated yet"
    snapshot, evaluation = progress.evaluation
    return f"{evaluation.mean:.2f} ({snapshot})"


def _recent_return(progress: Any) -> str:
    returns = progress.returns
    return f"{sum(returns) / len(returns):.2f} (last {len(returns)} games)" if returns else "no game ended yet"


def _rate(progress: Any) -> str:
    latest = progress.latest
    return f"{latest['agent_steps_per_second']:.0f} agent steps/s" if latest else "rate not known yet"


def _left(progress: Any, elapsed: float) -> str:
    """Elapsed and remaining time; the rate after the first updates counts, since filling the replay is fast."""
    latest = progress.latest
    text = f"{clock(elapsed)} gone"
    if latest and progress.agent.updates and latest["agent_steps_per_second"] > 0:
        left = (progress.total_steps - progress.agent.agent_steps) / latest["agent_steps_per_second"]
        text += f", about {clock(left)} left"
    return text


def clock(seconds: float) -> str:
    """`h:mm:ss`."""
    whole = math.ceil(seconds)
    return f"{whole // 3600}:{whole // 60 % 60:02}:{whole % 60:02}"


def _targets(agent: Any) -> str:
    return ", ".join(agent.target_snapshots) + (
        " held" if any(learner.bootstrap.held for learner in agent.learners) else ""
    )
