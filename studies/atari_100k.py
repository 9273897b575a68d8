"""The analysis of studies/atari-100k.toml, as it was named before the runs: our runs beside the published ones. Seeds
that have finished in every game count.

    python studies/atari_100k.py [TABLES] [--plot docs/findings/atari-100k.png]

TABLES is the folder of the experiment's tables, `studies/results/atari-100k` unless given. studies/data/drq-eps.csv has
the scores of 100 runs a game of DrQ(eps) by Agarwal et al. 2021, as published in results/data of
github.com/eloialonso/iris; what a random player and a human score, in the study's file, is from there too.
"""

import csv
from pathlib import Path

import click
import numpy as np
from matplotlib.figure import Figure

from twin_graph.experiments import statistics, tables

PUBLISHED = Path(__file__).parent / "data" / "drq-eps.csv"


def published() -> dict[str, list[list[float]]]:
    """Scores by environment, `[runs][1]`."""
    found: dict[str, list[list[float]]] = {}
    with PUBLISHED.open(newline="") as file:
        for row in csv.DictReader(file):
            found.setdefault(row["environment"], []).append([float(row["score"])])
    return found


def draw(scores: dict[str, tuple[np.ndarray, np.ndarray]], path: Path) -> None:
    """Saves a picture: for each game the published runs in the order of their scores, and ours among them.

    Args:
      scores: by game, of our runs and of the published ones, both `[runs][1]`.
      path: of the picture.
    """
    figure = Figure(figsize=(10, 2.8), layout="constrained")
    for axes, (game, (ours, theirs)) in zip(figure.subplots(1, len(scores), sharey=True), scores.items(), strict=True):
        axes.ecdf(theirs[:, 0], color="#777777", label=f"published, {len(theirs)} runs")
        at = [np.mean(theirs <= score) for score in ours[:, 0]]
        axes.plot(ours[:, 0], at, "o", color="#0072b2", clip_on=False, label=f"ours, {len(ours)}")
        axes.set_title(game.removeprefix("ALE/").removesuffix("-v5"))
        axes.set_xlabel("score, mean of 100 games")
    figure.axes[0].set_ylabel("share of runs at or below")
    figure.axes[0].legend(loc="lower right", fontsize="small")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)


@click.command()
@click.argument(
    "folder",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    default=Path(__file__).parent / "results" / "atari-100k",
)
@click.option("--plot", type=click.Path(path_type=Path), help="Draw our runs among the published ones, too.")
def main(folder: Path, plot: Path | None) -> None:
    """Print the comparison, game by game and over all games."""
    plan, _, results = tables.read(folder)
    norm, of = statistics.norms(plan, results), published()
    unfinished = {run.planned.seed for run in results if run.state != "done"}
    whole = [run for run in results if run.planned.seed not in unfinished]
    if not whole:
        raise click.ClickException("no seed has finished in every game; continue the experiment")
    seeds = len(whole) // len(plan.tasks)
    scores: dict[str, tuple[np.ndarray, np.ndarray]] = {}
    print(f"| game | ours, runs: {seeds} (95%) | published, runs: 100 (95%) | a run of ours is the better one (95%) |")
    print("|---|---|---|---|")
    for game in plan.tasks:
        ours = np.array([[run.final] for run in whole if run.planned.task == game])
        theirs = np.array(of[game])
        scores[game] = ours, theirs
        means = (statistics.mean(of_runs).words(".1f") for of_runs in scores[game])
        print(f"| {game} | {' | '.join(means)} | {statistics.improvement(ours, theirs).words('.2f')} |")
    for whose, columns in zip(("ours", "published"), zip(*scores.values(), strict=True), strict=True):
        normalised = np.hstack([norm[game].normalised(column) for game, column in zip(scores, columns, strict=True)])
        iqm = statistics.estimates(normalised, lambda drawn: np.array([statistics.iqm(drawn)]), 1)[0]
        print(f"\nIQM of human-normalised scores, {whose}: {iqm.words('.2f')}")
    if plot:
        draw(scores, plot)


if __name__ == "__main__":
    main()
