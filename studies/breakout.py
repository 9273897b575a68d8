"""One run of the preset `breakout` next to the curves that others published, at equal agent steps.

    twin-graph train breakout --steps 2500000
    python studies/breakout.py [RUN] [--plot docs/findings/breakout.png]

RUN is the folder of a run, or of its records, `studies/results/breakout` unless given. Named before the run ended:
primary outcome, the mean return in training over the last 250,000 agent steps, beside the others' over the same steps.
Expected: not below CleanRL's, whose settings the preset has but for three-step returns (and, as was noticed after the
run, for the period of the target). It ended at 75.5, CleanRL's at 160.5.

A second run has the other settings of CleanRL's, too, with which it finds out whether these explain it:

    twin-graph train breakout --steps 2500000 --set train.n_step=1 --set target.refresh_every_updates=250 \
      --set train.clip_delta=null --set env.fire_reset=true --set resume.every_steps=250000

Named before it began: the same primary outcome. Expected: above 120. Then they do; if not, another seed, or something
else in what we do, explains it.

studies/data/breakout-dqn.csv has returns in training, means over the 250,000 agent steps before:

CleanRL         mean of three runs, read off docs/rl-algorithms/dqn/BreakoutNoFrameskip-v4.png of
                github.com/vwxyzjn/cleanrl, where a pixel is 0.23
RL Zoo          one run, of each game in dqn/BreakoutNoFrameskip-v4_1/0.monitor.csv of
                github.com/DLR-RM/rl-trained-agents
Dopamine        mean of five runs, baselines/atari/data/breakout.json of github.com/google/dopamine: DQN
Dopamine, Adam  the same: DQN (Adam + MSE in JAX)
"""

import csv
from collections.abc import Iterator
from pathlib import Path
from statistics import fmean
from typing import Any

import click
from matplotlib.figure import Figure

from twin_graph.snapshots.run import Run

HERE = Path(__file__).parent
WINDOW = 250_000  # agent steps
OURS = "twin-graph"
#: Okabe and Ito's colours.
COLOURS = {
    OURS: "#0072b2",
    "CleanRL": "#d55e00",
    "RL Zoo": "#009e73",
    "Dopamine": "#999999",
    "Dopamine, Adam": "#000000",
}

Curve = dict[int, float]


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
    """Scheduled evaluations, and the window at whose end each was."""
    for line in run.evaluation_lines():
        if line["scheduled"]:
            yield round(line["played_at"]["agent_steps"] / WINDOW) * WINDOW, line


def draw(curves: dict[str, Curve], games: dict[int, dict[str, Any]], path: Path) -> None:
    """The curves, and our evaluations with their intervals."""
    figure = Figure(figsize=(7.5, 4.2), layout="constrained")
    axes = figure.subplots()
    end = max(curves[OURS])
    for source, curve in curves.items():
        steps = sorted(step for step in curve if step <= end)
        width = 2.5 if source == OURS else 1.5
        axes.plot(steps, [curve[step] for step in steps], color=COLOURS[source], linewidth=width, label=source)
    played = list(games.values())
    means = [line["mean"] for line in played]
    low, high = zip(*(line["interval_95"] for line in played), strict=True)
    bars = [[m - x for m, x in zip(means, low, strict=True)], [x - m for m, x in zip(means, high, strict=True)]]
    axes.errorbar(
        list(games),
        means,
        bars,
        fmt="o",
        markersize=4,
        linewidth=1,
        color=COLOURS[OURS],
        label=f"{OURS}, {played[0]['episodes']} games, {played[0]['protocol']['epsilon']:.1%} random actions (95%)",
    )
    axes.xaxis.set_major_formatter(lambda step, _: f"{step / 1e6:g}")
    axes.set_xlabel("million agent steps")
    axes.set_ylabel("mean return; lines in training")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=8)
    figure.savefig(path, dpi=150)


@click.command()
@click.argument(
    "folder",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    default=HERE / "results" / "breakout",
)
@click.option("--plot", type=click.Path(path_type=Path), help="Draw the curves, too.")
def main(folder: Path, plot: Path | None) -> None:
    """Print the comparison, window by window."""
    run = Run(folder)
    curves = {OURS: trained(run), **published()}
    games = dict(evaluations(run))
    print(f"| agent steps | {' | '.join(curves)} | {OURS}, evaluated (95%) |")
    print("|---" * (len(curves) + 2) + "|")
    for end in sorted(curves[OURS]):
        cells = [f"{end:,}", *(f"{curve[end]:.1f}" for curve in curves.values())]
        if line := games.get(end):
            low, high = line["interval_95"]
            cells.append(f"{line['mean']:.1f} ({low:.1f} to {high:.1f})")
        print(f"| {' | '.join(cells)} |")
    if plot:
        draw(curves, games, plot)


if __name__ == "__main__":
    main()
