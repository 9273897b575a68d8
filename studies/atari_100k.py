"""The analysis of studies/atari-100k.toml, as fixed before the runs: our runs next to the published ones.

Game by game, all finished runs count; over all games, only those of seeds that are finished in every game. The p
values were added after the runs: exact rank tests (Mann and Whitney 1947) of ours against theirs, Holm-corrected.

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
from scipy.stats import mannwhitneyu

from twin_graph.base.text import counted
from twin_graph.experiments import statistics, tables
from twin_graph.experiments.results import of_whole_seeds

PUBLISHED = Path(__file__).parent / "data" / "drq-eps.csv"


def published() -> dict[str, list[list[float]]]:
    """Scores by environment, `[runs][1]`."""
    found: dict[str, list[list[float]]] = {}
    with PUBLISHED.open(newline="") as file:
        for row in csv.DictReader(file):
            found.setdefault(row["environment"], []).append([float(row["score"])])
    return found


def draw(scores: dict[str, tuple[np.ndarray, np.ndarray]], path: Path) -> None:
    """Saves a picture: for each game, the published runs in the order of their scores, with ours among them.

    Args:
      scores: by game, of our runs and of the published ones, both `[runs][1]`.
      path: of the picture.
    """
    figure = Figure(figsize=(10, 2.8), layout="constrained")
    for axes, (game, (ours, theirs)) in zip(figure.subplots(1, len(scores), sharey=True), scores.items(), strict=True):
        axes.ecdf(theirs[:, 0], color="#777777")
        for [score] in ours:
            axes.plot(score, np.mean(theirs <= score), "o", color="#0072b2", clip_on=False)
        axes.set_title(game.removeprefix("ALE/").removesuffix("-v5"))
        axes.set_xlabel("score, mean of 100 games")
    figure.axes[0].set_ylabel("share of published runs at or below")
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
    done = [run for run in results if run.state == "done"]
    scores: dict[str, tuple[np.ndarray, np.ndarray]] = {}
    print("| game | ours (95%) | runs | published (95%) | runs | a run of ours is the better one (95%) | p |")
    print("|---|---|---|---|---|---|---|")
    for game in plan.tasks:
        scores[game] = np.array([[run.final] for run in done if run.planned.task == game]), np.array(of[game])
    p = statistics.holm(
        [float(mannwhitneyu(ours, theirs, method="exact").pvalue[0]) for ours, theirs in scores.values()]
    )
    for (game, (ours, theirs)), corrected in zip(scores.items(), p, strict=True):
        cells = (cell for runs in (ours, theirs) for cell in (statistics.mean(runs).words(".1f"), str(len(runs))))
        better = statistics.improvement(ours, theirs).words(".2f")
        print(f"| {game} | {' | '.join(cells)} | {better} | {corrected:.2g} |")
    whole = of_whole_seeds(results)
    of_whole = np.column_stack([[run.final for run in whole if run.planned.task == game] for game in plan.tasks])
    for whose, matrix in (("ours", of_whole), ("published", np.hstack([theirs for _, theirs in scores.values()]))):
        columns = zip(plan.tasks, matrix.T, strict=True)
        normalised = np.column_stack([norm[game].normalised(column) for game, column in columns])
        iqm = statistics.estimates(normalised, lambda drawn: np.array([statistics.iqm(drawn)]), 1)[0]
        runs = f"{counted(len(matrix), 'run')} of each game"
        print(f"\nIQM of human-normalised scores, {whose}, {runs}: {iqm.words('.2f')}")
    if plot:
        draw(scores, plot)


if __name__ == "__main__":
    main()
