r"""Asynchronous training: learning curves and speed, next to standard training and to what others have published.

    python benchmarks/async_learning.py [--only cartpole] [--only pong] [--seeds 3] [--steps 30000]
                                        [--folder checkpoints/async-learning]
                                        [--json benchmarks/results/async_learning.json]
                                        [--picture benchmarks/results/async_learning.png]

Trains one run after the other, each by the command that a user types, and then reads their records. A run that has
all its agent steps, or its score, is not made again; one that was cut is continued by `twin-graph resume`. So the same
command continues after any interruption, and `--no-train` shows what is there so far.

Modes: standard training, in one process that may use all cores; and 1, 2 and 4 workers, each with one thread and on
one core, with one parameter server and the chief beside them wherever there is room. Settings are equal otherwise:
`train.every_steps` is of each worker, so that all modes make as many updates in as many agent steps, from minibatches
of one size; a replay of one size is shared out among workers. By its nature each worker has environments of its own (8,
as many as the others have in all), gradients are of weights that are a few updates old, and a standard training of Pong
acts in chunks.

- CartPole, to a fixed score: the preset with the learning rate and decay of the studies (docs/findings.md) and more
  frequent evaluations, until two snapshots in succession have a mean return of 475 in the 20 episodes of their
  scheduled evaluations (one alone may be luck), or to 100,000 agent steps. Agent steps and time are those of the second
  snapshot. Time is that of training, the start of workers included; evaluations are left out where training stands
  still for them, in standard mode, and not where workers go on beside, who lose a part of a core to them. `--set`
  changes settings of all modes alike, in another `--folder`.
- Pong, to a fixed number of agent steps: rate, and the mean return of the last 20 training games on the way. At the end
  of a run, and each 50,000 agent steps, 10 whole games for a true score. With so few agent steps as 30,000 nobody plays
  well: these runs are for their speed.

Rates are agent steps per second over the second half of a run's agent steps, evaluations counted as said. The
efficiency is the speed-up over one worker for each core that the workers can use: four workers on two cores use two.
"""

import importlib.metadata
import itertools
import json
import shutil
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import click
import numpy as np
from rich.console import Console
from rich.table import Table

from twin_graph.base import machine
from twin_graph.errors import TwinGraphError
from twin_graph.snapshots.run import DESCRIPTION, VERSIONED, Run

GOAL, GAMES = 475.0, 20  # CartPole-v1's reward threshold in Gymnasium's registry
CARTPOLE_STEPS = 100_000
CARTPOLE = (
    "train.learning_rate=2e-3",
    "act.epsilon_decay_steps=10000",
    "evaluate.every_steps=2500",
    f"evaluate.episodes={GAMES}",
    "log.every_steps=500",
)
PONG = (
    "log.every_steps=500",
    "resume.every_steps=20000",  # each resume point cuts short the games that are on
    "twin.precision=fp32",  # workers have no other
)
STANDARD = 0
MODES = (STANDARD, 1, 2, 4)  # workers
LOOK_SECONDS, SAY_SECONDS = 1.0, 30.0
PUBLISHED = {
    "a DQN on parameter servers, Pong": {1: 1.0, 10: 12_812 / 5_523},  # seconds that one and ten workers took
    "Mnih et al. 2016, asynchronous 1-step Q, Atari": {1: 1.0, 2: 3.0, 4: 6.3, 8: 13.3, 16: 24.1},
}


class Plan(NamedTuple):
    """A run that is wanted."""

    game: str
    workers: int
    seed: int
    steps: int
    settings: tuple[str, ...]

    @property
    def name(self) -> str:
        return f"{self.game}-{mode_of(self.workers).replace(' ', '-')}-seed{self.seed}"

    def command(self, where: Path) -> list[str]:
        """The command that starts it, or resumes it."""
        if where.exists():
            return ["resume", str(where), f"--steps={self.steps}"]
        settings = list(self.settings)
        if self.workers:
            settings += ["twin.threads=1"]
        return [
            *("train", self.game, f"--seed={self.seed}", f"--steps={self.steps}", f"--run-dir={where}"),
            *((f"--workers={self.workers}",) if self.workers else ()),
            *(f"--set={setting}" for setting in settings),
        ]


class Curve(NamedTuple):
    """What a run's records say: agent steps, seconds of training and a return at each point.

    Attributes:
      clock: agent steps and seconds of training, rising, from (0, 0).
      points: agent steps, seconds, return: of evaluations on CartPole, of training games on Pong.
      scores: agent steps and mean return of evaluations.
    """

    clock: list[tuple[int, float]]
    points: list[tuple[int, float, float]]
    scores: list[tuple[int, float]]

    @property
    def agent_steps(self) -> int:
        return self.clock[-1][0]

    @property
    def reached(self) -> tuple[int, float] | None:
        """Agent steps and seconds of the first snapshot that has CartPole's score after another that had it."""
        pairs = itertools.pairwise(self.points)
        return next((now[:2] for before, now in pairs if min(before[2], now[2]) >= GOAL), None)

    @property
    def rate(self) -> float:
        """Agent steps per second, over the second half."""
        first = next((mark for mark in self.clock if mark[0] >= self.agent_steps / 2), self.clock[-1])
        steps, seconds = (end - begin for end, begin in zip(self.clock[-1], first, strict=True))
        return steps / seconds if seconds else float("nan")


def say(what: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {what}", file=sys.stderr, flush=True)


def mode_of(workers: int) -> str:
    return "standard" if workers == STANDARD else f"{workers} worker{'s' if workers > 1 else ''}"


def read(run: Run) -> Curve:
    """The curve of a run, finished or not."""
    asynchronous = run.settings.workers.count > 0
    clock, played = [(0, 0.0)], []
    for line in run.metric_lines():
        if "seconds" in line:
            trained = line["seconds"] * (1 if asynchronous else 1 - line["time_share/evaluate"])
            clock.append((line["agent_steps"], clock[-1][1] + trained))
            if line["train_return"] is not None:
                played.append((*clock[-1], line["train_return"]))
    scores = [(line["agent_steps"], line["mean"]) for line in run.evaluation_lines() if line["scheduled"]]
    if not run.settings.env.id.startswith("ALE/"):
        steps, seconds = zip(*clock, strict=True)
        played = [(at, float(np.interp(at, steps, seconds)), score) for at, score in scores]
    return Curve(clock, played, scores)


def curve_of(where: Path) -> Curve | None:
    """That of the run in a folder; None before there is one."""
    try:
        return read(Run(where))
    except (TwinGraphError, OSError):
        return None


def is_done(plan: Plan, where: Path) -> bool:
    """Whether there is nothing left to do: all its agent steps, or its score."""
    curve = curve_of(where)
    if curve is None:
        return False
    if plan.game == "cartpole" and curve.reached:
        return True
    return curve.agent_steps >= plan.steps and Run(where).state() == "finished"


def make(plan: Plan, where: Path, log: Path) -> None:
    """Trains until it is done; ends the training in order at CartPole's score, and with this program."""
    if where.exists() and not ((where / DESCRIPTION).exists() and Run(where).points().newest()):
        shutil.rmtree(where)  # cut before it had anything to go on from
    with log.open("ab") as output:
        command = [sys.executable, "-m", "twin_graph_cli", *plan.command(where)]
        # In a session of its own: Ctrl-C is for this program, which passes it on once.
        training = subprocess.Popen(command, stdout=output, stderr=output, start_new_session=True)
        said = time.monotonic()
        try:
            while training.poll() is None:
                time.sleep(LOOK_SECONDS)
                if plan.game == "cartpole" and is_done(plan, where):
                    break
                if time.monotonic() - said > SAY_SECONDS and (curve := curve_of(where)):
                    said = time.monotonic()
                    say(f"  {curve.agent_steps:,} of {plan.steps:,} agent steps")
        finally:
            if training.poll() is None:
                training.send_signal(signal.SIGINT)
            code = training.wait()
    if not is_done(plan, where):
        raise SystemExit(f"{plan.name} ended with {code}; see {log}")


def summary(game: str, curves: dict[tuple[str, int, int], Curve]) -> list[dict[str, Any]]:
    """The table's rows of a game: medians over seeds."""
    cores = machine.describe().cores
    rows: list[dict[str, Any]] = []
    for workers in MODES:
        runs = [curve for (its, count, _), curve in curves.items() if (its, count) == (game, workers)]
        if not runs:
            continue
        row: dict[str, Any] = {
            "game": game,
            "mode": mode_of(workers),
            "workers": workers,
            "runs": len(runs),
            "agent_steps_per_second": statistics.median(run.rate for run in runs),
            "rates": [run.rate for run in runs],
            "cores_of_workers": min(workers, cores) if workers else None,
        }
        if game == "cartpole":
            reached = [run.reached for run in runs if run.reached]
            row["reached"] = len(reached)
            if reached:
                row["agent_steps_to_score"] = statistics.median(steps for steps, _ in reached)
                row["seconds_to_score"] = statistics.median(seconds for _, seconds in reached)
        else:
            row["agent_steps"] = max(run.agent_steps for run in runs)
            for name, ends in (
                ("train_return", [run.points[-1][2] for run in runs if run.points]),
                ("score", [run.scores[-1][1] for run in runs if run.scores]),
            ):
                row[name] = statistics.median(ends) if ends else None
        rows.append(row)
    by_workers = {row["workers"]: row["agent_steps_per_second"] for row in rows}
    for row in rows:
        rate = row["agent_steps_per_second"]
        row["times_standard"] = rate / by_workers[STANDARD] if STANDARD in by_workers else None
        row["times_one_worker"] = rate / by_workers[1] if row["workers"] and 1 in by_workers else None
        if row["times_one_worker"]:
            row["efficiency_per_core"] = row["times_one_worker"] / row["cores_of_workers"]
    return rows


def show(rows: Sequence[dict[str, Any]], console: Console) -> None:
    """One table for each game, and what others have published."""

    def number(row: dict[str, Any], name: str, form: str) -> str:
        return format(row[name], form) if row.get(name) is not None else ""

    for game in dict.fromkeys(row["game"] for row in rows):
        table = Table("mode", "runs", "agent steps/s", "times standard", "times one worker", box=None, title=game)
        ends = (
            (("reached", ""), ("agent_steps_to_score", ",.0f"), ("seconds_to_score", ".0f"))
            if game == "cartpole"
            else (("agent_steps", ","), ("train_return", ".1f"), ("score", ".1f"))
        )
        for heading in ("cores of workers", "efficiency a core", *(name.replace("_", " ") for name, _ in ends)):
            table.add_column(heading)
        for row in rows:
            if row["game"] == game:
                table.add_row(
                    *(row["mode"], str(row["runs"]), number(row, "agent_steps_per_second", ".0f")),
                    *(number(row, "times_standard", ".2f"), number(row, "times_one_worker", ".2f")),
                    *(number(row, "cores_of_workers", ""), number(row, "efficiency_per_core", ".0%")),
                    *(number(row, name, form) for name, form in ends),
                )
        console.print(table)
    table = Table("published", "workers or threads", "times one", "efficiency a worker", box=None)
    for who, speed_ups in PUBLISHED.items():
        for count, times in speed_ups.items():
            table.add_row(who, str(count), f"{times:.2f}", f"{times / count:.0%}")
    console.print(table)
    cores = machine.describe().cores
    console.print(f"this machine has {cores} cores: more than {cores} workers share them")


def draw(curves: dict[tuple[str, int, int], Curve], picture: Path) -> None:
    """Returns over time and over agent steps, a row of panels for each game; thick: medians over seeds."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt
    from matplotlib.lines import Line2D

    colours = dict(zip(MODES, ("#444444", "#0b6e99", "#c2571a", "#4c8c3f"), strict=True))
    games = list(dict.fromkeys(game for game, _, _ in curves))
    mpl.rcParams["font.size"] = 9
    figure, rows = plt.subplots(
        len(games), 2, figsize=(9, 3.4 * len(games)), sharey="row", squeeze=False, layout="constrained"
    )
    for game, panels in zip(games, rows, strict=True):
        for workers, colour in colours.items():
            lines = [
                tuple(np.array(numbers) for numbers in zip(*curve.points, strict=True))
                for (its, count, _), curve in curves.items()
                if (its, count) == (game, workers) and curve.points
            ]
            for panel, column, unit in ((panels[0], 1, 60), (panels[1], 0, 1000)):
                for line in lines:
                    panel.plot(line[column] / unit, line[2], color=colour, lw=0.6, alpha=0.35 if lines[1:] else 1)
                if lines:
                    # A run that has its score is over, and counts on with its last return.
                    xs = np.unique(np.concatenate([line[column] for line in lines]))
                    xs = xs[xs >= max(line[column][0] for line in lines)]
                    middle = np.median([np.interp(xs, line[column], line[2]) for line in lines], axis=0)
                    panel.plot(xs / unit, middle, color=colour, lw=2)
        for panel, name in zip(panels, ("minutes of training", "thousand agent steps"), strict=True):
            panel.set(xlabel=name, title="CartPole" if game == "cartpole" else "Pong")
            panel.set_xlim(left=0)
            panel.grid(alpha=0.3)
            panel.spines[["top", "right"]].set_visible(False)
            if game == "cartpole":
                panel.axhline(GOAL, color="#888888", lw=0.8, ls=":")
        if game == "pong":  # -21 is the least there is; a spread of half a point shall not fill a panel
            low, high = panels[0].get_ylim()
            panels[0].set_ylim(min(low, -21.2), max(high, -18))
        what = f"mean return of {GAMES} episodes" if game == "cartpole" else "mean return of 20 training games"
        panels[0].set_ylabel(what)
    keys = [Line2D([], [], color=colour, lw=2, label=mode_of(workers)) for workers, colour in colours.items()]
    figure.legend(handles=keys, loc="outside upper center", ncols=len(keys), frameon=False)
    figure.savefig(picture, dpi=150)


@click.command()
@click.option("--only", "games", multiple=True, type=click.Choice(["cartpole", "pong"]), help="Repeatable.")
@click.option("--mode", "modes", multiple=True, type=int, help=f"Workers, 0 for standard; of {MODES}. Repeatable.")
@click.option("--seeds", default=3, show_default=True, type=click.IntRange(min=1), help="1 to this; Pong: 1.")
@click.option("--steps", default=30_000, show_default=True, type=click.IntRange(min=1_000), help="Agent steps of Pong.")
@click.option("--accumulate", default=4, show_default=True, type=click.IntRange(1, 64), help="Minibatches, on Pong.")
@click.option(
    "--folder", type=click.Path(path_type=Path), default=Path("checkpoints/async-learning"), show_default=True
)
@click.option("--set", "changes", multiple=True, metavar="KEY=VALUE", help="A setting of CartPole. Repeatable.")
@click.option("--train/--no-train", default=True, help="Only read what there is.")
@click.option("--json", "path", type=click.Path(path_type=Path), help="Write the figures here.")
@click.option("--picture", type=click.Path(path_type=Path), help="Draw the curves here, PNG or SVG.")
def main(
    games: tuple[str, ...],
    modes: tuple[int, ...],
    seeds: int,
    steps: int,
    accumulate: int,
    folder: Path,
    changes: tuple[str, ...],
    train: bool,
    path: Path | None,
    picture: Path | None,
) -> None:
    """Train what is missing, print tables, write JSON, draw."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # ends the training too
    cartpole = (*CARTPOLE, *changes)
    pong = (
        *(*PONG, f"train.accumulate={accumulate}", f"train.every_steps={4 * accumulate}"),
        f"train.start_steps={min(10_000, steps // 4)}",
    )
    plans = [Plan("cartpole", w, seed, CARTPOLE_STEPS, cartpole) for seed in range(1, seeds + 1) for w in MODES]
    plans += [Plan("pong", workers, 1, steps, pong) for workers in MODES]
    plans = [plan for plan in plans if plan.game in (games or ("cartpole", "pong"))]
    plans = [plan for plan in plans if plan.workers in (modes or MODES)]
    folder.mkdir(parents=True, exist_ok=True)
    curves: dict[tuple[str, int, int], Curve] = {}
    for number, plan in enumerate(plans, start=1):
        where = folder / plan.name
        if train and not is_done(plan, where):
            say(f"{number} of {len(plans)}: {plan.name}")
            make(plan, where, folder / f"{plan.name}.log")
        curve = curve_of(where)
        if curve and curve.agent_steps:
            curves[plan.game, plan.workers, plan.seed] = curve
    rows = [row for game in ("cartpole", "pong") for row in summary(game, curves)]
    show(rows, Console(width=160, highlight=False))
    if path:
        document = {
            "processor": machine.describe()._asdict(),
            "versions": {name: importlib.metadata.version(name) for name in VERSIONED},
            "goal": {"return": GOAL, "episodes": GAMES, "settings": cartpole, "at_most_agent_steps": CARTPOLE_STEPS},
            "pong": {"agent_steps": steps, "settings": pong},
            "rows": rows,
            "published": PUBLISHED,
            "curves": [
                {"game": game, "workers": workers, "seed": seed, **curve._asdict()}
                for (game, workers, seed), curve in curves.items()
            ],
        }
        path.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    if picture and curves:
        draw(curves, picture)


if __name__ == "__main__":
    main()
