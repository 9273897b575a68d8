"""The analysis of studies/atari-100k-targets.toml, atari-memory.toml and atari-images.toml: policies less `latest`.

It was fixed before the runs; the picture was added after those of atari-memory.

    python studies/atari_targets.py [TABLES] [--plot PICTURE]
    python studies/atari_targets.py --power

TABLES is the folder of the experiment's tables, `studies/results/atari-100k-targets` unless given. Only seeds count
that are done in all games under all policies. Printed are:

1. for each game and policy the score, how old its targets were in updates, and how much more its last snapshots expect
   at the start of a game than their games return, discounted and as rewarded in training (where a lost life ends what
   is expected, too much is understated; see docs/experiments.md);
2. for each policy its normalised score less that of `latest`, over pairs of equal game and seed, and in how many pairs
   it is ahead; once all seeds are done, also p, corrected for the number of policies.

With --plot, the learning curves of the policies are drawn, too.

With --power, instead: how often a study like atari-100k-targets would find a difference, if a policy changed every
score by a given amount, and runs differed from each other as the published ones do.
"""

from pathlib import Path
from statistics import fmean

import click
import numpy as np
from atari_100k import published
from matplotlib.figure import Figure

from twin_graph.experiments import figures, statistics, tables
from twin_graph.experiments import plan as plans
from twin_graph.experiments.results import Result, of_whole_seeds

HERE = Path(__file__).parent
FILE = HERE / "atari-100k-targets.toml"
STUDIES = 1_000  # simulated for each amount
AMOUNTS = 0.5, 1.0, 1.5  # in standard deviations of the published runs


@click.command()
@click.argument(
    "folder",
    type=click.Path(path_type=Path, file_okay=False),
    default=HERE / "results" / "atari-100k-targets",
)
@click.option("--plot", type=click.Path(path_type=Path, dir_okay=False), help="Draw learning curves, too.")
@click.option("--power", is_flag=True, help="Print what a study of this size can find.")
def main(folder: Path, plot: Path | None, power: bool) -> None:
    """Print the table of games, and the comparison over all games."""
    if power:
        print_power()
        return
    if not folder.is_dir():
        raise click.ClickException(f"there is no folder {folder}")
    plan, _, results = tables.read(folder)
    whole = of_whole_seeds(results)
    seeds = list(dict.fromkeys(run.planned.seed for run in whole))
    if not seeds:
        raise click.ClickException(f"{folder}: no seed is done in all games under all policies")
    by_place = {(run.planned.condition, run.planned.seed, run.planned.task): run for run in whole}
    rows = {
        policy: [[by_place[policy, seed, task] for task in plan.tasks] for seed in seeds] for policy in plan.conditions
    }

    print("| game | policy | score (95%) | target's age | expected too much |")
    print("|---|---|---|---|---|")
    for i, task in enumerate(plan.tasks):
        for policy in plan.conditions:
            print(f"| {task.rpartition('/')[2]} | `{policy}` | {_cells([row[i] for row in rows[policy]])} |")

    first, *others = plan.conditions
    norm = statistics.norms(plan, results)
    less = {policy: statistics.differences(rows[policy], rows[first], norm).reshape(-1, 1) for policy in others}
    planned = {run.seed for run in plan.runs}
    usual = fmean(norm[run.planned.task].normalised(run.final) for row in rows[first] for run in row)
    pairs_of = f"in {len(less[others[0]])} pairs of equal game and seed"
    print(f"\nNormalised scores less those of `{first}`, which scores {usual:.2f}, {pairs_of}:")
    corrected = statistics.holm([statistics.p_of(pairs) for pairs in less.values()])
    for (policy, pairs), p in zip(less.items(), corrected, strict=True):
        tested = f", p = {p:.2g}" if len(seeds) == len(planned) else ""
        ahead = f"ahead in {int((pairs > 0).sum())} of {len(pairs)}"
        print(f"`{policy}`: {statistics.mean(pairs).words('+.2f')}{tested}, {ahead}")
    if len(seeds) < len(planned):
        print(f"{len(seeds)} of {len(planned)} seeds: nothing is tested before all are done")
    if plot:
        plot.parent.mkdir(parents=True, exist_ok=True)
        learning(rows, norm).savefig(plot, dpi=200)


def learning(rows: dict[str, list[list[Result]]], norm: dict[str, statistics.Norm]) -> Figure:
    """Normalised scores of each policy while its runs train: the interquartile mean over games and seeds."""
    lines = [figures.Line(policy, statistics.learning(runs, norm)) for policy, runs in rows.items()]
    return figures.lines(lines, "agent steps", "normalised score")


def _cells(runs: list[Result]) -> str:
    """What is printed of a policy's runs of one game."""
    score = statistics.mean(np.array([[run.final] for run in runs])).words(".1f")
    age = fmean(run.mean_age(1, run.updates) or 0.0 for run in runs)
    too_much = fmean(run.newest(run.overestimation) for run in runs)
    return f"{score} | {age:,.0f} | {too_much:+z.2f}"


def print_power() -> None:
    """Draws each run of a study from the published runs of its game, and tests as `main` does."""
    plan, rng = plans.parse(FILE.read_text(encoding="utf-8")), np.random.default_rng(0)
    norm, seeds = statistics.norms(plan, []), len({run.seed for run in plan.runs})
    scores = [np.array([[norm[task].normalised(score)] for [score] in published()[task]]) for task in plan.tasks]
    level = statistics.LEVEL / (len(plan.conditions) - 1)  # of the smallest p, corrected
    for amount in AMOUNTS:
        found = 0
        for _ in range(STUDIES):
            ours, theirs = (np.concatenate([rng.choice(of, seeds) for of in scores]) for _ in range(2))
            found += statistics.p_of(ours + amount - theirs) < level
        print(f"every score {amount:g} higher: found in {found / STUDIES:.0%} of {STUDIES:,} studies of {seeds} seeds")


if __name__ == "__main__":
    main()
