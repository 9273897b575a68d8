"""The analysis of studies/genealogy-replication.toml and of its part on MinAtar: what was named there, before the runs.

    python studies/genealogy_replication.py [TABLES ...]

TABLES are folders of the experiments' tables, both in `studies/results` unless given. Printed are for each environment,
in pairs of equal seeds, beside what the first studies had found with 1-step returns:

1. the residual of `mean` less that of its control of equal depth, in % of the largest return;
2. the score of the policies that look back, their mean, less that of the `latest` that is refreshed as often; and below
   it that of each, which was added after the runs.

The six comparisons for which a hypothesis was stated have a p, corrected for six, once all runs are done.
"""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import click
import genealogy
import numpy as np
from genealogy import AS_OFTEN, CONTROLS, RESULTS, Pair, Runs, means, pairs, places, score, share

from twin_graph.experiments import statistics, tables
from twin_graph.experiments.statistics import Norm

FIRST = ("genealogy", "genealogy-minatar")
STUDIES = ("genealogy-replication", "genealogy-minatar-replication")
POLICIES = ("lag", "mean", "window")
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

    @property
    def words(self) -> str:
        """The mean difference and its interval."""
        return statistics.mean(self.less).words(f"+.{self.places}f")


@click.command()
@click.argument("folders", type=click.Path(path_type=Path, exists=True, file_okay=False), nargs=-1)
def main(folders: tuple[Path, ...]) -> None:
    """Print both outcomes in each environment."""
    folders = folders or tuple(RESULTS / study for study in STUDIES)
    read = [read_one_step(folder) for folder in folders]
    found = sorted((one for runs, norm in read for one in comparisons(runs, norm)), key=lambda one: one.what)
    stated = [one for one in found if (one.what, one.task) in STATED]
    finished = len(stated) == len(STATED) and all(map(is_done, folders))
    p = {}
    if finished:
        corrected = statistics.holm([statistics.p_of(one.less) for one in stated])
        p = {(one.what, one.task): f"{value:.2g}" for one, value in zip(stated, corrected, strict=True)}
    first = (one for study in FIRST for one in comparisons(*read_one_step(RESULTS / study)))
    before = {(one.what, one.task): one.words for one in first}
    print("| outcome | environment | first study | difference in pairs (95%) | positive in | stated | p |")
    print("|---|---|---|---|---|---|---|")
    for one in found:
        key, positive = (one.what, one.task), f"{int((one.less > 0).sum())} of {len(one.less)}"
        cells = (*key, before[key], one.words, positive, STATED.get(key, ""), p.get(key, ""))
        print(f"| {' | '.join(cells)} |")
    if not finished:
        print("\nNothing is tested before all runs of both experiments are done.")
    print_policies(pair for runs, norm in read for pair in looking_back(runs, norm))


def print_policies(of: Iterable[Pair]) -> None:
    """A row for each policy that looks back, a column for each environment."""
    words = {
        (pair.condition.rpartition(", ")[2], pair.task): statistics.mean(pair.less).words(f"+.{places(pair.task)}f")
        for pair in of
    }
    tasks = list(dict.fromkeys(task for _, task in words))
    print(f"\n| {SCORES} | {' | '.join(tasks)} |\n|---|{'---|' * len(tasks)}")
    for policy in POLICIES:
        print(f"| `{policy}` | {' | '.join(words[policy, task] for task in tasks)} |")


def comparisons(runs: Runs, norm: Mapping[str, Norm]) -> Iterator[Comparison]:
    """Both outcomes in each environment."""
    for pair in pairs(runs, norm, share, {"mean": CONTROLS["mean"]}):
        yield Comparison(EXPECTS, pair.task, pair.less, 2)
    for task, less in means(list(looking_back(runs, norm))):
        yield Comparison(SCORES, task, less, places(task))


def looking_back(runs: Runs, norm: Mapping[str, Norm]) -> Iterator[Pair]:
    """Each of the three policies less the `latest` that is refreshed as often, by score."""
    return pairs(runs, norm, score, {policy: AS_OFTEN[policy] for policy in POLICIES})


def read_one_step(folder: Path) -> tuple[Runs, dict[str, Norm]]:
    """As `genealogy.read`, without the 3-step returns that the first studies have, too."""
    runs, norm = genealogy.read(folder)
    return {key: of for key, of in runs.items() if key[0].startswith("n_step=1, ")}, norm


def is_done(folder: Path) -> bool:
    """Whether all runs are."""
    _, _, results = tables.read(folder)
    return all(result.state == "done" for result in results)


if __name__ == "__main__":
    main()
