"""The analysis of studies/genealogy.toml, as it was named before the runs.

    python studies/genealogy.py [TABLES]

TABLES is the folder of an experiment's tables, `studies/results/genealogy` unless given. Printed are, for each
environment, condition and n-step: the score, what the last six snapshots expected, and how much more that is than the
return of their own games over as many agent steps as their depth (hypothesis 1); and each policy less its control of
equal depth, in pairs of equal seeds, corrected for all pairs printed (hypothesis 2).
"""

from pathlib import Path

import click
import numpy as np

from twin_graph.experiments import statistics, tables
from twin_graph.experiments.results import Result

#: The `latest` whose snapshots have the same depth.
CONTROLS = {"lag": "latest-512", "mix": "latest-512", "mean": "latest-640", "window": "latest-1152"}
#: The most that a discounted return can be, at a reward of 1 a step and a discount of 0.99.
LARGEST = 100.0


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
    runs = {
        (condition, task): [r for r in results if r.planned.condition == condition and r.planned.task == task]
        for condition in plan.conditions
        for task in plan.tasks
    }
    print("| environment | condition | score (95%) | expects | expects too much (95%) | share of the largest return |")
    print("|---|---|---|---|---|---|")
    for (condition, task), of in runs.items():
        score, expected, too_much = (
            statistics.mean(np.array([[function(run)] for run in of]))
            for function in (lambda run: run.final, lambda run: run.newest(run.expected), residual)
        )
        print(
            f"| {task} | {condition} | {score.words('.0f')} | {expected.value:.1f} | {too_much.words('+.2f')} "
            f"| {abs(too_much.value) / LARGEST:.1%} |"
        )

    norm, pairs = statistics.norms(plan, results), []
    for (condition, task), of in runs.items():
        head, _, name = condition.rpartition(", ")
        if control := CONTROLS.get(name):
            rows = ([[run] for run in side] for side in (of, runs[f"{head}, {control}", task]))
            pairs.append((task, condition, control, statistics.differences(*rows, norm)))
    corrected = statistics.holm([statistics.p_of(less) for *_, less in pairs])
    print("\n| environment | policy | control | difference in pairs (95%) | p |\n|---|---|---|---|---|")
    for (task, condition, control, less), p in zip(pairs, corrected, strict=True):
        print(f"| {task} | {condition} | {control} | {statistics.mean(less).words('+.0f')} | {p:.2g} |")


if __name__ == "__main__":
    main()
