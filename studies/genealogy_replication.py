"""The analysis of studies/genealogy-replication.toml and of its part on MinAtar: what was named there, before the runs.

    python studies/genealogy_replication.py [TABLES ...]

TABLES are folders of the experiments' tables, both in `studies/results` unless given. Printed are for each environment,
in pairs of equal seeds:

1. the residual of `mean` less that of its control of equal depth, in % of the largest return;
2. the score of the policies that look back, their mean, less that of the `latest` that is refreshed as often.

The six comparisons for which a hypothesis was stated have a p, corrected for six, once all runs are done.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import click
import numpy as np
from genealogy import AS_OFTEN, CONTROLS, RESULTS, means, pairs, places, read, score, share

from twin_graph.experiments import statistics, tables

STUDIES = ("genealogy-replication", "genealogy-minatar-replication")
EXPECTS, SCORES = "residual of `mean`", "score of looking back"
#: The hypotheses: in which direction each difference lies.
STATED = {
    (EXPECTS, "CartPole-v1"): "less",
    (EXPECTS, "MinAtar/SpaceInvaders-v1"): "less",
    (SCORES, "CartPole-v1"): "more",
    (SCORES, "Acrobot-v1"): "less",
    (SCORES, "MinAtar/Breakout-v1"): "less",
    (SCORES, "MinAtar/SpaceInvaders-v1"): "more",
}


class Comparison(NamedTuple):
    """One outcome in one environment: the differences, `[seeds, 1]`, and with how many decimals to give them."""

    what: str
    task: str
    less: np.ndarray
    places: int


@click.command()
@click.argument("folders", type=click.Path(path_type=Path, exists=True, file_okay=False), nargs=-1)
def main(folders: tuple[Path, ...]) -> None:
    """Print both outcomes in each environment."""
    folders = folders or tuple(RESULTS / study for study in STUDIES)
    found = sorted((one for folder in folders for one in comparisons(folder)), key=lambda one: one.what)
    stated = [one for one in found if (one.what, one.task) in STATED]
    finished = len(stated) == len(STATED) and all(map(is_done, folders))
    p = {}
    if finished:
        corrected = statistics.holm([statistics.p_of(one.less) for one in stated])
        p = {(one.what, one.task): f"{value:.2g}" for one, value in zip(stated, corrected, strict=True)}
    print("| outcome | environment | difference in pairs (95%) | positive in | stated | p |\n|---|---|---|---|---|---|")
    for what, task, less, decimals in found:
        print(
            f"| {what} | {task} | {statistics.mean(less).words(f'+.{decimals}f')} "
            f"| {int((less > 0).sum())} of {len(less)} | {STATED.get((what, task), '')} | {p.get((what, task), '')} |"
        )
    if not finished:
        print("\nNothing is tested before all runs of both experiments are done.")


def comparisons(folder: Path) -> Iterator[Comparison]:
    """Both outcomes in each environment of a folder of tables, of the seeds that are done everywhere."""
    runs, norm = read(folder)
    for pair in pairs(runs, norm, share, {"mean": CONTROLS["mean"]}):
        yield Comparison(EXPECTS, pair.task, pair.less, 2)
    for task, less in means(list(pairs(runs, norm, score, AS_OFTEN))):
        yield Comparison(SCORES, task, less, places(task))


def is_done(folder: Path) -> bool:
    """Whether all runs are."""
    _, _, results = tables.read(folder)
    return all(result.state == "done" for result in results)


if __name__ == "__main__":
    main()
