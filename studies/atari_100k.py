"""The analysis of studies/atari-100k.toml, as it was named before the runs: our runs beside the published ones. Seeds
that have finished in every game count.

    python studies/atari_100k.py [TABLES]

TABLES is the folder of the experiment's tables, `studies/results/atari-100k` unless given. studies/data/drq-eps.csv has
the scores of 100 runs a game of DrQ(eps) by Agarwal et al. 2021, as published in results/data of
github.com/eloialonso/iris; what a random player and a human score, in the study's file, is from there too.
"""

import csv
from pathlib import Path

import click
import numpy as np

from twin_graph.experiments import statistics, tables

PUBLISHED = Path(__file__).parent / "data" / "drq-eps.csv"


def published() -> dict[str, list[list[float]]]:
    """Scores by environment, `[runs][1]`."""
    found: dict[str, list[list[float]]] = {}
    with PUBLISHED.open(newline="") as file:
        for row in csv.DictReader(file):
            found.setdefault(row["environment"], []).append([float(row["score"])])
    return found


@click.command()
@click.argument(
    "folder",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    default=Path(__file__).parent / "results" / "atari-100k",
)
def main(folder: Path) -> None:
    """Print the comparison, game by game and over all games."""
    plan, _, results = tables.read(folder)
    norm, of = statistics.norms(plan, results), published()
    unfinished = {run.planned.seed for run in results if run.state != "done"}
    whole = [run for run in results if run.planned.seed not in unfinished]
    if not whole:
        raise click.ClickException("no seed has finished in every game; continue the experiment")
    seeds = len(whole) // len(plan.tasks)
    normalised: list[tuple[np.ndarray, np.ndarray]] = []
    print(f"| game | ours, runs: {seeds} (95%) | published, runs: 100 (95%) | a run of ours is the better one (95%) |")
    print("|---|---|---|---|")
    for game in plan.tasks:
        ours = np.array([[run.final] for run in whole if run.planned.task == game])
        theirs = np.array(of[game])
        means = (statistics.mean(scores).words(".1f") for scores in (ours, theirs))
        print(f"| {game} | {' | '.join(means)} | {statistics.improvement(ours, theirs).words('.2f')} |")
        normalised.append((norm[game].normalised(ours), norm[game].normalised(theirs)))
    for whose, columns in zip(("ours", "published"), zip(*normalised, strict=True), strict=True):
        scores = np.hstack(columns)
        iqm = statistics.estimates(scores, lambda drawn: np.array([statistics.iqm(drawn)]), 1)[0]
        print(f"\nIQM of human-normalised scores, {whose}: {iqm.words('.2f')}")


if __name__ == "__main__":
    main()
