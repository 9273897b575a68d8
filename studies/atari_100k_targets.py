"""The analysis of studies/atari-100k-targets.toml, as fixed before the runs: each policy less `latest`.

    python studies/atari_100k_targets.py [TABLES]

TABLES is the folder of the experiment's tables, `studies/results/atari-100k-targets` unless given. Only seeds count
that are done in all games under all policies. Printed are:

1. for each game and policy the score, how old its targets were in updates, and how much more its last snapshots expect
   at the start of a game than their games return, in discounted clipped rewards (where a lost life ends what is
   expected, too much is understated; see docs/experiments.md);
2. for each policy its normalised score less that of `latest`, over pairs of equal game and seed, corrected for the
   number of policies, and in how many pairs it is ahead.
"""

from pathlib import Path
from statistics import fmean

import click
import numpy as np

from twin_graph.experiments import statistics, tables
from twin_graph.experiments.results import Result


@click.command()
@click.argument(
    "folder",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    default=Path(__file__).parent / "results" / "atari-100k-targets",
)
def main(folder: Path) -> None:
    """Print the table of games, and the comparison over all games."""
    plan, _, results = tables.read(folder)
    norm = statistics.norms(plan, results)
    whole = {run.planned.seed for run in results} - {run.planned.seed for run in results if run.state != "done"}
    runs: dict[tuple[str, str], list[Result]] = {}  # of each condition and game, by seed
    for run in sorted(results, key=lambda run: run.planned.seed):
        if run.planned.seed in whole:
            runs.setdefault((run.planned.condition, run.planned.task), []).append(run)
    if not runs:
        raise click.ClickException(f"{folder}: no seed is done in all games under all policies")

    print("| game | policy | score (95%) | target's age | expected too much |")
    print("|---|---|---|---|---|")
    for task in plan.tasks:
        for policy in plan.conditions:
            of = runs[policy, task]
            score = statistics.mean(np.array([[run.final] for run in of])).words(".1f")
            age = fmean(run.mean_age(1, run.updates) or 0.0 for run in of)
            too_much = fmean(run.newest(run.overestimation) for run in of)
            print(f"| {task} | `{policy}` | {score} | {age:,.0f} | {too_much:+.2f} |")

    first, *others = plan.conditions
    less = {policy: _less(runs, plan.tasks, policy, first, norm) for policy in others}
    corrected = statistics.holm([statistics.p_of(pairs) for pairs in less.values()])
    print(f"\nNormalised scores less those of `{first}`, in {len(less[others[0]])} pairs of equal game and seed:")
    for (policy, pairs), p in zip(less.items(), corrected, strict=True):
        ahead = int((pairs > 0).sum())
        print(f"`{policy}`: {statistics.mean(pairs).words('+.2f')}, p = {p:.2g}, ahead in {ahead} of {len(pairs)}")


def _less(
    runs: dict[tuple[str, str], list[Result]],
    tasks: list[str],
    policy: str,
    first: str,
    norm: dict[str, statistics.Norm],
) -> np.ndarray:
    """Normalised scores of a policy less those of the first, `[pairs, 1]`."""
    return np.array(
        [
            [norm[task].normalised(ours.final) - norm[task].normalised(theirs.final)]
            for task in tasks
            for ours, theirs in zip(runs[policy, task], runs[first, task], strict=True)
        ]
    )


if __name__ == "__main__":
    main()
