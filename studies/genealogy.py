"""The analysis of studies/genealogy.toml and studies/genealogy-lunarlander.toml, as it was named before the runs.

    python studies/genealogy.py [TABLES]

TABLES is the folder of an experiment's tables, `studies/results/genealogy` unless given. Printed are, for each
environment, condition and n-step: the score, what the last six snapshots expected, and how much more that is than the
return of their own games over as many agent steps as their depth (hypothesis 1); and each policy less its control of
equal depth, in pairs of equal seeds, corrected for all pairs of the table: by score (hypothesis 2), and by what was
expected too much (hypothesis 3, of genealogy-lunarlander.toml alone).
"""

from collections.abc import Callable, Sequence
from pathlib import Path

import click
import numpy as np

from twin_graph.experiments import statistics, tables
from twin_graph.experiments.results import Result

#: The `latest` whose snapshots have the same depth.
CONTROLS = {"lag": "latest-512", "mix": "latest-512", "mean": "latest-640", "window": "latest-1152"}
#: The most that a discounted return can be, at a reward of 1 a step and a discount of 0.99; in LunarLander about the
#: most that is seen of a landing.
LARGEST = 100.0


#: By condition and environment.
Runs = dict[tuple[str, str], Sequence[Result]]


def score(run: Result) -> float:
    """The mean of a run's last evaluations."""
    return run.final


def residual(run: Result) -> float:
    """How much more a run's last snapshots expected than their games returned over their depth."""
    return run.newest(run.expected) - run.newest(run.truncated)


@click.command()
@click.argument(
    "folder",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    default=Path(__file__).parent / "results" / "genealogy",
)
def main(folder: Path) -> None:
    """Print the analysis of a folder of tables."""
    plan, _, results = tables.read(folder)
    runs: Runs = {
        (condition, task): [r for r in results if r.planned.condition == condition and r.planned.task == task]
        for condition in plan.conditions
        for task in plan.tasks
    }
    print("| environment | condition | score (95%) | expects | expects too much (95%) | share of the largest return |")
    print("|---|---|---|---|---|---|")
    for (condition, task), of in runs.items():
        scored, expected, too_much = (
            statistics.mean(np.array([[function(run)] for run in of]))
            for function in (score, lambda run: run.newest(run.expected), residual)
        )
        print(
            f"| {task} | {condition} | {scored.words('.0f')} | {expected.value:.1f} | {too_much.words('+.2f')} "
            f"| {abs(too_much.value) / LARGEST:.1%} |"
        )

    for outcome, digits in ((score, "+.0f"), (residual, "+.1f")):
        print_pairs(runs, outcome, digits)


def print_pairs(runs: Runs, outcome: Callable[[Result], float], digits: str) -> None:
    """Each policy less its control, in pairs of runs of equal seeds."""
    pairs = []
    for (condition, task), ours in runs.items():
        head, _, name = condition.rpartition(", ")
        if control := CONTROLS.get(name):
            theirs = {run.planned.seed: run for run in runs[f"{head}, {control}", task]}
            less = np.array([[outcome(run) - outcome(theirs[run.planned.seed])] for run in ours])
            pairs.append((task, condition, control, less))
    corrected = statistics.holm([statistics.p_of(less) for *_, less in pairs])
    print("\n| environment | policy | control | difference in pairs (95%) | p |\n|---|---|---|---|---|")
    for (task, condition, control, less), p in zip(pairs, corrected, strict=True):
        print(f"| {task} | {condition} | {control} | {statistics.mean(less).words(digits)} | {p:.2g} |")


if __name__ == "__main__":
    main()
