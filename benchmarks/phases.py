r"""Where a second of training goes: the time of each phase in both threads, in chunks and in the classic loop.

    python benchmarks/phases.py [--preset pong] [--steps 4000] [--set KEY=VALUE] [--json benchmarks/results/phases.json]

Trains the preset twice, each in a fresh process: in chunks, as the preset has it, and with
`train.chunk_steps=0`. The first 1,000 agent steps are without updates, exploration is at its end value from the start,
there are no evaluations and no lines of metrics. What is timed comes after a warm-up of 512 agent steps with updates,
and is rounded up to whole chunks. Times are those of `Progress.metrics()`, which is called at both ends of the timed
part; the `telemetry` of the second call is in it.

In chunks `act`, `environment`, `sample` and `target` pass in the actor's thread beside `train`: the shares of each
thread add up to 1. `rest` is what no phase counts: in the training thread mostly the freezing of the weights, in the
actor's the replay, the segments that it writes for the next resume point, and the time after it has finished a chunk.
After a refresh the training thread evaluates the target of one chunk again; that counts as `target` too, in the actor's
rows.

A run from the command line begins with a choice of threads and precision. Here they are one thread for each core
and fp32, unless `--set` says otherwise. What other processes used of the cores is shown: the more, the less the times
say.
"""

from __future__ import annotations

import importlib.metadata
import json
import math
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import click
import psutil
from fresh import in_a_process
from rich.console import Console
from rich.table import Table

from twin_graph import config
from twin_graph.base import machine as cpu
from twin_graph.base.stopwatch import PHASES
from twin_graph.snapshots.run import VERSIONED, create

START, WARM_UP = 1_000, 512  # agent steps without updates, and those with updates before the timed part
BESIDE = ("act", "environment", "sample", "target")  # in the actor's thread, where there is one
IN_SESSION = ("act", "target", "train")  # little else than session.run
LIMIT = 0.15  # of the training thread's time, outside session.run
SCHEDULES = ("chunks", "classic")

Figures = dict[str, Any]


class Busy(NamedTuple):
    """Processor seconds spent so far by this process, and by everything on this machine."""

    own: float
    machine: float

    @classmethod
    def now(cls) -> Busy:
        own, machine = psutil.Process().cpu_times(), psutil.cpu_times()
        kinds = ("user", "nice", "system", "irq", "softirq", "steal")  # guests are in `user` and `nice`
        return cls(own.user + own.system, sum(getattr(machine, kind, 0.0) for kind in kinds))

    def others(self, before: Busy) -> float:
        """Processor seconds that other processes spent since then."""
        return max(0.0, self.machine - before.machine - self.own + before.own)


def chosen_settings(schedule: str, preset: str, steps: int, assignments: tuple[str, ...]) -> config.Settings:
    """Those of the preset, those of the command line, and those without which the timing would mean something else."""
    common = {
        "train.start_steps": START,
        "evaluate.episodes": 0,
        "twin.threads": cpu.describe().cores,
        "twin.precision": "fp32",
    }
    settings = config.load(preset, [*common.items(), *(config.parse_assignment(text) for text in assignments)])
    fixed = {
        "act.epsilon_start": settings.act.epsilon_end,
        "log.every_steps": 10**9,  # a line of metrics begins a new measurement
        "train.steps": 2 * (settings.train.start_steps + WARM_UP + steps + settings.train.chunk_steps),  # not reached
    }
    if schedule == "classic":
        fixed["train.chunk_steps"] = 0
    return config.change(settings, fixed.items())


def measure(settings: config.Settings, steps: int) -> Figures:
    """Trains, and times at least `steps` agent steps after the warm-up."""
    from twin_graph import envs, training

    env = envs.make(settings.env, count=settings.env.count)
    warm = settings.train.start_steps + WARM_UP
    before: tuple[int, int, Busy] | None = None
    figures: Figures = {}
    with tempfile.TemporaryDirectory() as folder:
        for progress in training.train(create(Path(folder) / "run", settings), env):
            if before is None and progress.agent_steps >= warm:
                progress.metrics()
                before = progress.agent_steps, progress.updates, Busy.now()
            elif before and not figures and progress.agent_steps >= before[0] + steps:
                metrics, busy = progress.metrics(), Busy.now()
                figures = _figures(metrics, settings, progress.agent_steps - before[0], progress.updates - before[1])
                core_seconds = cpu.describe().cores * metrics["seconds"]
                figures |= {
                    "cores_share": (busy.own - before[2].own) / core_seconds,
                    "others_share": busy.others(before[2]) / core_seconds,
                }
                progress.stop.set()
    env.close()
    if not figures:
        raise SystemExit("the training was stopped before the timed part was over")
    return figures


def _figures(metrics: Figures, settings: config.Settings, agent_steps: int, updates: int) -> Figures:
    seconds, train = metrics["seconds"], settings.train
    beside = BESIDE if train.chunk_steps and settings.twin.overlap else ()
    phases = {
        phase: {
            "thread": "actor" if phase in beside else "training",
            "share": metrics[f"time_share/{phase}"],
            "milliseconds_per_call": metrics[f"milliseconds/{phase}"],
            "milliseconds_per_update": 1000 * seconds * metrics[f"time_share/{phase}"] / updates,
        }
        for phase in PHASES
        if metrics[f"time_share/{phase}"]
    }
    rest = {
        thread: 1 - sum(phase["share"] for phase in phases.values() if phase["thread"] == thread)
        for thread in sorted({phase["thread"] for phase in phases.values()})
    }
    in_session = sum(phases[phase]["share"] for phase in IN_SESSION if phases[phase]["thread"] == "training")
    return {
        "settings": settings.model_dump(),
        "agent_steps": agent_steps,
        "updates": updates,
        "seconds": seconds,
        "agent_steps_per_second": metrics["agent_steps_per_second"],
        "updates_per_second": metrics["updates_per_second"],
        "phases": phases,
        "rest": rest,
        "outside_train_share": 1 - phases["train"]["share"],
        "outside_session_share": 1 - in_session,
    }


def show(schedule: str, figures: Figures, console: Console) -> None:
    """The table of one schedule, and what its threads and cores did."""
    title = f"{schedule}: {figures['agent_steps']:,} agent steps, {figures['updates']:,} updates, "
    table = Table(title=f"{title}{figures['agent_steps_per_second']:.0f} agent steps/s", title_justify="left", box=None)
    table.add_column("phase")
    table.add_column("thread")
    for heading in ("share of time", "ms a call", "ms an update"):
        table.add_column(heading, justify="right")
    per_update = 1000 * figures["seconds"] / figures["updates"]
    for thread, rest in figures["rest"].items():
        for name, phase in figures["phases"].items():
            if phase["thread"] == thread:
                call, update = phase["milliseconds_per_call"], phase["milliseconds_per_update"]
                table.add_row(name, thread, f"{phase['share']:.2%}", f"{call:.3f}", f"{update:.3f}")
        table.add_row("rest", thread, f"{rest:.2%}", "", f"{rest * per_update:.3f}")
    console.print(table)
    outside, session = figures["outside_train_share"], figures["outside_session_share"]
    line = f"training thread outside session.run (1 - train): {outside:.1%}, limit {LIMIT:.0%}"
    if not math.isclose(outside, session):
        line += f"; act and target are session.run too, without them {session:.1%}"
    cores = cpu.describe().cores
    line += f"; {figures['cores_share']:.1%} of {cores} cores used, {figures['others_share']:.1%} by other processes"
    console.print(f"{line}\n", soft_wrap=True)


@click.command()
@click.option("--preset", default="pong", show_default=True, help="What to train.")
@click.option("--steps", default=4_000, show_default=True, type=click.IntRange(min=64), help="Agent steps to time.")
@click.option(
    "--set",
    "assignments",
    multiple=True,
    metavar="KEY=VALUE",
    help="Change a setting of the preset. Repeatable. train.steps, log.every_steps and act.epsilon_start are given.",
)
@click.option("--json", "path", type=click.Path(path_type=Path), help="Also write the figures here.")
@click.option("--schedule", type=click.Choice(SCHEDULES), hidden=True)
def main(preset: str, steps: int, assignments: tuple[str, ...], path: Path | None, schedule: str | None) -> None:
    """Measure where the time of a training goes; print a table for each schedule."""
    if schedule:
        print(json.dumps(measure(chosen_settings(schedule, preset, steps, assignments), steps)))
        return
    # A wrong setting is said at once.
    by_chunks, _ = (chosen_settings(name, preset, steps, assignments) for name in SCHEDULES)
    if not by_chunks.train.chunk_steps:
        raise click.UsageError("train.chunk_steps=0 is the classic loop, which is measured anyway")
    console = Console(width=120, highlight=False)
    schedules = {}
    chosen = ["--preset", preset, "--steps", str(steps), *(f"--set={text}" for text in assignments)]
    for name in SCHEDULES:
        schedules[name] = in_a_process(__file__, "--schedule", name, *chosen)
        show(name, schedules[name], console)
    document = {
        "processor": cpu.describe()._asdict(),
        "versions": {name: importlib.metadata.version(name) for name in VERSIONED},
        "limit_outside_session": LIMIT,
        "schedules": schedules,
    }
    if path:
        path.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
