"""How much of QR-DQN's early lead on Breakout is its head? Runs of studies/heads.toml beside Dopamine's.

    twin-graph experiment run studies/heads.toml --jobs 2 --out heads
    python studies/heads.py --collect heads     # adds runs that are done to studies/results/heads/returns.csv
    python studies/heads.py [--plot docs/findings/heads.png]

The outcome and what was expected are in the study's file. studies/data/dopamine-breakout-early.csv has the training
returns of Dopamine's five runs of DQN and QR-DQN, by iterations of 250,000 agent steps, from the tables of its CNN
agents (github.com/google/dopamine, docs); the iteration that ends at 500,000 is compared.
"""

from __future__ import annotations

import csv
import itertools
from collections.abc import Iterator
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

import click
from matplotlib.figure import Figure

from twin_graph.records import report
from twin_graph.snapshots.run import Run

HERE = Path(__file__).parent
RETURNS = HERE / "results" / "heads" / "returns.csv"
PUBLISHED = HERE / "data" / "dopamine-breakout-early.csv"
FROM, TO = 250_000, 500_000  # agent steps
#: Okabe and Ito's colours.
COLOURS = {"dqn": "#0072b2", "rest": "#e69f00", "qr-dqn": "#d55e00"}
DOPAMINE = {"dqn": "DQN", "qr-dqn": "QR-DQN"}


class Line(NamedTuple):
    """What a run logged: episodes so far, and the mean return of the newest 20."""

    run: str
    agent_steps: int
    episodes: int
    train_return: float

    @property
    def arm(self) -> str:
        return self.run.partition(",")[0]


def collect(experiment: Path) -> Iterator[Line]:
    """Of the runs that are done."""
    for folder in sorted(experiment.glob("*,seed=*")):
        run = Run(folder)
        if report.status(run).state != "finished":
            continue
        for line in run.metric_lines():
            if (value := line.get("train_return")) is not None:
                yield Line(folder.name, line["agent_steps"], line["episodes"], value)


def read() -> dict[str, list[Line]]:
    """By run."""
    found: dict[str, list[Line]] = {}
    with RETURNS.open(newline="") as file:
        for row in csv.DictReader(file):
            line = Line(row["run"], int(row["agent_steps"]), int(row["episodes"]), float(row["train_return"]))
            found.setdefault(line.run, []).append(line)
    return found


def outcome(lines: list[Line]) -> float:
    """The mean return of the episodes that ended between `FROM` and `TO`: lines count by their new episodes."""
    total, episodes = 0.0, 0
    for before, line in itertools.pairwise(lines):
        if FROM < line.agent_steps <= TO:
            total += line.train_return * (line.episodes - before.episodes)
            episodes += line.episodes - before.episodes
    return total / episodes


def published() -> dict[str, list[float]]:
    """Dopamine's outcomes, by arm."""
    with PUBLISHED.open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if int(row["agent_steps_at_end"]) == TO]
    return {
        arm: [float(row["training_return"]) for row in rows if row["agent"] == agent] for arm, agent in DOPAMINE.items()
    }


def draw(runs: dict[str, list[Line]], path: Path) -> None:
    figure = Figure(figsize=(7.5, 4.2), layout="constrained")
    axes = figure.subplots()
    for name, lines in runs.items():
        arm, seed = lines[0].arm, name.rpartition("=")[2]
        axes.plot(
            [line.agent_steps for line in lines],
            [line.train_return for line in lines],
            color=COLOURS[arm],
            linewidth=1,
            label=arm if seed == "1" else None,
        )
    for arm, values in published().items():
        low, high = min(values), max(values)
        axes.fill_between([FROM, TO], low, high, color=COLOURS[arm], alpha=0.15, linewidth=0)
        behind = {"facecolor": "white", "alpha": 0.8, "edgecolor": "none", "pad": 1}
        words = f"{DOPAMINE[arm]}: range of Dopamine's five runs"
        axes.text(FROM + 5_000, low + 0.3, words, fontsize=8, color=COLOURS[arm], bbox=behind)
    axes.set_xlabel("agent steps")
    axes.set_ylabel("return in training, newest 20 episodes")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=8)
    figure.savefig(path, dpi=150)


@click.command()
@click.option("--collect", "experiment", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--plot", type=click.Path(path_type=Path), help="Draw the curves, too.")
def main(experiment: Path | None, plot: Path | None) -> None:
    """Print each arm's outcome beside Dopamine's."""
    if experiment:
        runs = read() if RETURNS.exists() else {}
        for line in collect(experiment):
            runs.setdefault(line.run, []).append(line)
        RETURNS.parent.mkdir(exist_ok=True)
        with RETURNS.open("w", newline="") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(Line._fields)
            writer.writerows(sorted({line for lines in runs.values() for line in lines}))
    runs, theirs = read() if RETURNS.exists() else {}, published()
    arms: dict[str, list[float]] = {}
    for lines in runs.values():
        arms.setdefault(lines[0].arm, []).append(outcome(lines))
    print("| arm | each seed | mean | Dopamine's five runs |\n|---|---|---|---|")
    for arm in COLOURS:
        values, beside = arms.get(arm, []), theirs.get(arm, [])
        span = f"{min(beside):.1f} to {max(beside):.1f}" if beside else ""
        mean = f"{fmean(values):.1f}" if values else ""
        print(f"| {arm} | {', '.join(f'{value:.1f}' for value in values)} | {mean} | {span} |")
    if arms.keys() == COLOURS.keys():
        dqn, rest, qr = (fmean(arms[arm]) for arm in COLOURS)
        covered = (rest - dqn) / (qr - dqn)
        print(f"\nOf the {qr - dqn:.1f} between them, n-step returns, priorities and Adam cover {covered:.0%}.")
    if plot:
        draw(runs, plot)


if __name__ == "__main__":
    main()
