"""The analysis of studies/minatar.toml: our runs beside the published curves, as fixed before the runs, and beside what
was published at a learning rate like ours, which was added after them. With the tables of
studies/minatar-breakout.toml, theirs.

    python studies/minatar.py [TABLES] [--plot docs/findings/minatar.png]

TABLES is the folder of the experiment's tables, `studies/results/minatar` unless given. Young and Tian's numbers are
read off pictures in img/ of github.com/kenjyoung/MinAtar, where a pixel is 0.04 of Breakout's returns and 0.45 of Space
Invaders':

data/minatar-dqn.csv                  learning_curves.gif: mean of 30 runs, every 50,000 frames where it can be seen
data/minatar-dqn-learning-rates.csv   sensitivity_curves.gif: mean over the last 100 episodes of 5,000,000 frames

The curves end where the best learning rate of their game does: they are of that one.
"""

import csv
from pathlib import Path
from statistics import fmean

import click
from matplotlib.figure import Figure

from twin_graph.experiments import tables
from twin_graph.experiments.results import Curve, Result

DATA = Path(__file__).parent / "data"
#: The learning rate nearest to ours, 2.5e-4, as its exponent of 2.
OURS = -12
#: The primary outcome is the mean of what was logged in this many frames, the last ones.
FRAMES = 100_000


def published(name: str, by: str) -> dict[str, Curve]:
    """Returns in training by environment, and by frames or another column."""
    found: dict[str, Curve] = {}
    with (DATA / name).open(newline="") as file:
        for row in csv.DictReader(file):
            found.setdefault(row["environment"], {})[int(row[by])] = float(row["train_return"])
    return found


def until(curve: Curve, frames: int) -> float:
    """The mean of a curve over the `FRAMES` before, `frames` among them."""
    return fmean(value for step, value in curve.items() if frames - FRAMES < step <= frames)


def points(curve: Curve) -> tuple[list[int], list[float]]:
    frames = sorted(curve)
    return frames, [curve[step] for step in frames]


def short(game: str) -> str:
    return game.removeprefix("MinAtar/").removesuffix("-v0")


def words(numbers: list[float]) -> str:
    return f"{fmean(numbers):.1f} ({min(numbers):.1f} to {max(numbers):.1f})"


def draw(runs: dict[str, list[Result]], theirs: dict[str, Curve], path: Path) -> None:
    """A panel for each game: our runs, and the published curve as far."""
    figure = Figure(figsize=(7.5, 4.6), layout="constrained")
    *panels, legend = figure.subplots(2, 3).flat
    for axes, (game, of) in zip(panels, runs.items(), strict=False):
        for run in of:
            [ours] = axes.plot(*points(run.train_return), color="#0072b2", linewidth=0.8, alpha=0.7)
        end = max(run.agent_steps for run in of)
        [published_one] = axes.plot(
            *points({frames: value for frames, value in theirs[game].items() if frames <= end}),
            color="#d55e00",
            linewidth=2,
            linestyle="dashed",
        )
        axes.set_title(short(game), fontsize=10)
        axes.xaxis.set_major_formatter(lambda frames, _: f"{frames / 1e6:g}")
        axes.set_xlabel("million frames", fontsize=9)
        axes.set_ylabel("return in training", fontsize=9)
        axes.spines[["top", "right"]].set_visible(False)
    for axes in [*panels[len(runs) :], legend]:
        axes.set_axis_off()
    names = ["one run of ours", "Young and Tian,\nmean of 30 runs"]
    legend.legend([ours, published_one], names, loc="center", frameon=False)
    figure.savefig(path, dpi=200)


@click.command()
@click.argument(
    "folder",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    default=Path(__file__).parent / "results" / "minatar",
)
@click.option("--plot", type=click.Path(path_type=Path), help="Draw the curves, too.")
def main(folder: Path, plot: Path | None) -> None:
    """Print the comparison game by game."""
    plan, _, results = tables.read(folder)
    runs = {game: [run for run in results if run.planned.task == game and run.train_return] for game in plan.tasks}
    theirs = published("minatar-dqn.csv", "frames")
    by_rate = published("minatar-dqn-learning-rates.csv", "log2_learning_rate")
    millions = f"{plan.steps / 1e6:g}M"
    theirs_at = f"published, {millions} | published, 5M | published, 2^{OURS}"
    print(f"| game | ours, {millions} frames | {theirs_at} | ours, greedy |")
    print("|---|---|---|---|---|---|")
    for game, of in runs.items():
        cells = [
            short(game),
            words([until(run.train_return, run.agent_steps) for run in of]),
            f"{until(theirs[game], plan.steps):.1f} (2^{max(by_rate[game], key=lambda rate: by_rate[game][rate])})",
            f"{until(theirs[game], max(theirs[game])):.1f}",
            f"{by_rate[game][OURS]:.1f}",
            words([run.final for run in of]),
        ]
        print(f"| {' | '.join(cells)} |")
    whole = sum(run.agent_steps >= plan.steps for run in results)
    print(f"\n{whole} of {len(results)} runs have all {plan.steps:,} frames.")
    if plot:
        draw(runs, theirs, plot)


if __name__ == "__main__":
    main()
