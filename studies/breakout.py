"""Two runs on Breakout next to the curves that others published, at equal agent steps.

    twin-graph train breakout --steps 2500000
    python studies/breakout.py [RUN...] [--plot docs/findings/breakout.png]

RUN is the folder of a run, or of its records; by default, of both in `studies/results`. The primary outcome of both,
the mean return in training over the last 250,000 agent steps, and what was expected were named before they ended.

breakout-before  the preset as it was: three-step returns, a target refreshed every 1,000 updates, no FIRE at resets,
                 new games every 50,000 agent steps (docs/published.md has the command). Expected: not below CleanRL's,
                 which ended at 160.5. It ended at 75.5.
breakout         CleanRL's settings for these, which are the preset's since, and new games every 250,000 agent steps.
                 Expected: above 120; then they explain why the other run stopped improving. If not, another seed, or
                 something else in what we do, explains it. It ended at 148.5. It was also to have CleanRL's squared
                 loss, but was given `train.clip_delta=null`, which has no effect on `loss=huber`.

studies/data/breakout-dqn.csv has returns in training, means over the 250,000 agent steps before:

CleanRL         mean of three runs, read off docs/rl-algorithms/dqn/BreakoutNoFrameskip-v4.png of
                github.com/vwxyzjn/cleanrl, where a pixel is 0.23
RL Zoo          one run, of each game in dqn/BreakoutNoFrameskip-v4_1/0.monitor.csv of
                github.com/DLR-RM/rl-trained-agents
Dopamine        mean of five runs, baselines/atari/data/breakout.json of github.com/google/dopamine: DQN
Dopamine, Adam  the same: DQN (Adam + MSE in JAX)
"""

import csv
import math
from collections.abc import Iterator
from pathlib import Path
from statistics import fmean
from typing import Any

import click
from matplotlib.figure import Figure

from twin_graph.snapshots.run import Run

HERE = Path(__file__).parent
WINDOW = 250_000  # agent steps
RUNS = [HERE / "results" / "breakout-before", HERE / "results" / "breakout"]
#: Okabe and Ito's colours.
COLOURS = {
    "breakout-before": "#56b4e9",
    "breakout": "#0072b2",
    "CleanRL": "#d55e00",
    "RL Zoo": "#009e73",
    "Dopamine": "#999999",
    "Dopamine, Adam": "#000000",
}

Curve = dict[int, float]
Games = dict[int, dict[str, Any]]


def published() -> dict[str, Curve]:
    """Mean return in training over the `WINDOW` before these agent steps, by source."""
    found: dict[str, Curve] = {}
    with (HERE / "data" / "breakout-dqn.csv").open(newline="") as file:
        for row in csv.DictReader(file):
            found.setdefault(row["source"], {})[int(row["agent_steps"])] = float(row["train_return"])
    return found


def trained(run: Run) -> Curve:
    """The same for a run of ours, for each whole window: the mean of what its metrics say of the newest 20 games."""
    windows: dict[int, list[float]] = {}
    newest = 0
    for line in run.metric_lines():
        if (value := line.get("train_return")) is not None:
            windows.setdefault(-(-line["agent_steps"] // WINDOW) * WINDOW, []).append(value)
            newest = line["agent_steps"]
    return {end: fmean(values) for end, values in windows.items() if end <= newest}


def evaluations(run: Run) -> Iterator[tuple[int, dict[str, Any]]]:
    """Scheduled evaluations, and the window at whose end, about, the snapshot of each was committed."""
    for line in run.evaluation_lines():
        if line["scheduled"]:
            yield round(line["agent_steps"] / WINDOW) * WINDOW, line


def colour(source: str) -> str:
    """The colour of a curve; all runs of a user's own have the same."""
    return COLOURS.get(source, "#cc79a7")


def draw(curves: dict[str, Curve], games: dict[str, Games], path: Path) -> None:
    """The curves, and the evaluations of our runs with their intervals."""
    figure = Figure(figsize=(7.5, 4.2), layout="constrained")
    axes = figure.subplots()
    end = max(step for source in games for step in curves[source])
    for source, curve in curves.items():
        steps = sorted(step for step in curve if step <= end)
        width = 2.5 if source in games else 1.5
        axes.plot(steps, [curve[step] for step in steps], color=colour(source), linewidth=width, label=source)
    for source, of in games.items():
        played = list(of.values())
        means = [line["mean"] for line in played]
        low, high = zip(*(line["interval_95"] or (math.nan, math.nan) for line in played), strict=True)
        bars = [[m - x for m, x in zip(means, low, strict=True)], [x - m for m, x in zip(means, high, strict=True)]]
        label = f"{source}, evaluated (95%)"
        axes.errorbar(list(of), means, bars, fmt="o", markersize=4, linewidth=1, color=colour(source), label=label)
    axes.xaxis.set_major_formatter(lambda step, _: f"{step / 1e6:g}")
    axes.set_xlabel("million agent steps")
    axes.set_ylabel("mean return; lines in training")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=8)
    figure.savefig(path, dpi=150)


@click.command()
@click.argument("folders", nargs=-1, type=click.Path(path_type=Path, exists=True, file_okay=False))
@click.option("--plot", type=click.Path(path_type=Path), help="Draw the curves, too.")
def main(folders: tuple[Path, ...], plot: Path | None) -> None:
    """Print the comparison, window by window."""
    runs = {folder.name: Run(folder) for folder in folders or RUNS}
    curves = {name: trained(run) for name, run in runs.items()}
    games = {name: dict(evaluations(run)) for name, run in runs.items()}
    windows = sorted({end for curve in curves.values() for end in curve})
    curves |= published()
    print(f"| agent steps | {' | '.join([*curves, *(f'{name}, evaluated (95%)' for name in games)])} |")
    print("|---" * (1 + len(curves) + len(games)) + "|")
    for end in windows:
        cells = [f"{end:,}", *(f"{curve[end]:.1f}" if end in curve else "" for curve in curves.values())]
        cells += [scored(of[end]) if end in of else "" for of in games.values()]
        print(f"| {' | '.join(cells)} |")
    if plot:
        draw(curves, games, plot)


def scored(line: dict[str, Any]) -> str:
    """An evaluation's mean, and its interval if it was of more than one game."""
    interval = line["interval_95"]
    return f"{line['mean']:.1f}" + (f" ({interval[0]:.1f} to {interval[1]:.1f})" if interval else "")


if __name__ == "__main__":
    main()
