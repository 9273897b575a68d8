"""The analysis of the three studies of studies/genealogy*.toml, as it was named before the runs.

    python studies/genealogy.py [TABLES] [--plot docs/findings/genealogy.png]

TABLES is the folder of an experiment's tables, `studies/results/genealogy` unless given; the picture shows all three
studies. Printed are, for each environment, condition and n-step: the score, what the last six snapshots expected, and
how much more that is than the return of their own games over as many agent steps as their depth (hypothesis 1); and
each policy less its control of equal depth, in pairs of equal seeds, corrected for all pairs of the table: by score
(hypothesis 2), and by what was expected too much, in % of the largest return (hypothesis 3, not of genealogy.toml).
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import click
import numpy as np
from matplotlib.figure import Figure

from twin_graph.experiments import statistics, tables
from twin_graph.experiments.results import Result

RESULTS = Path(__file__).parent / "results"
#: The `latest` whose snapshots have the same depth.
CONTROLS = {"lag": "latest-512", "mix": "latest-512", "mean": "latest-640", "window": "latest-1152"}
#: The largest discounted return, by environment: at a reward of 1 a step and a discount of 0.99; in LunarLander about
#: what is seen of a good landing; in MinAtar what was seen before the runs.
LARGEST = {
    "CartPole-v1": 100.0,
    "Acrobot-v1": 100.0,
    "LunarLander-v3": 100.0,
    "MinAtar/Breakout-v1": 5.0,
    "MinAtar/SpaceInvaders-v1": 12.0,
}
STUDIES = ("genealogy", "genealogy-lunarlander", "genealogy-minatar")
#: Okabe and Ito's colours, by how a condition's name begins.
COLOURS = {"n_step=1": "#0072b2", "n_step=3": "#d55e00"}


#: By condition and environment.
Runs = dict[tuple[str, str], Sequence[Result]]


def score(run: Result) -> float:
    """The mean of a run's last evaluations."""
    return run.final


def residual(run: Result) -> float:
    """How much more a run's last snapshots expected than their games returned over their depth."""
    return run.newest(run.expected) - run.newest(run.truncated)


def share(run: Result) -> float:
    """`residual`, in % of the largest return."""
    return 100 * residual(run) / LARGEST[run.planned.task]


def places(task: str) -> int:
    """How many decimals scores of an environment are given with."""
    return 0 if LARGEST[task] >= 100 else 1


def read(folder: Path) -> tuple[Runs, dict[str, statistics.Norm]]:
    """The runs of a folder of tables, and how their scores are normalised."""
    plan, _, results = tables.read(folder)
    runs = {
        (condition, task): [r for r in results if r.planned.condition == condition and r.planned.task == task]
        for condition in plan.conditions
        for task in plan.tasks
    }
    return runs, statistics.norms(plan, results)


@click.command()
@click.argument(
    "folder",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    default=RESULTS / "genealogy",
)
@click.option("--plot", type=click.Path(path_type=Path), help="Draw what the snapshots of all studies expect, too.")
def main(folder: Path, plot: Path | None) -> None:
    """Print the analysis of a folder of tables."""
    runs, norm = read(folder)
    print("| environment | condition | score (95%) | expects | expects too much (95%) | share of the largest return |")
    print("|---|---|---|---|---|---|")
    for (condition, task), of in runs.items():
        scored, expected, too_much, of_largest = (
            statistics.mean(np.array([[function(run)] for run in of]))
            for function in (score, lambda run: run.newest(run.expected), residual, share)
        )
        print(
            f"| {task} | {condition} | {scored.words(f'.{places(task)}f')} | {expected.value:.1f} "
            f"| {too_much.words('+.2f')} | {of_largest.value:+.1f}% |"
        )

    print_pairs(runs, norm, score, "", places)
    print_pairs(runs, norm, share, " of residuals, % of the largest return", lambda _: 1)
    if plot:
        draw({key: of for study in STUDIES for key, of in read(RESULTS / study)[0].items()}, plot)


def print_pairs(
    runs: Runs,
    norm: Mapping[str, statistics.Norm],
    outcome: Callable[[Result], float],
    of: str,
    places: Callable[[str], int],
) -> None:
    """Each policy less its control, in pairs of runs of equal seeds."""
    pairs = []
    for (condition, task), ours in runs.items():
        head, _, name = condition.rpartition(", ")
        if control := CONTROLS.get(name):
            rows = ([[run] for run in side] for side in (ours, runs[f"{head}, {control}", task]))
            pairs.append((task, condition, control, statistics.differences(*rows, norm, outcome)))
    corrected = statistics.holm([statistics.p_of(less) for *_, less in pairs])
    print(f"\n| environment | policy | control | difference in pairs{of} (95%) | p |\n|---|---|---|---|---|")
    for (task, condition, control, less), p in zip(pairs, corrected, strict=True):
        print(f"| {task} | {condition} | {control} | {statistics.mean(less).words(f'+.{places(task)}f')} | {p:.2g} |")


def draw(runs: Runs, path: Path) -> None:
    """What each condition's last snapshots expect, by what their games return; a policy is joined to its control."""
    at = {
        key: [
            np.mean([run.newest(curve(run)) for run in of]) for curve in (lambda r: r.truncated, lambda r: r.expected)
        ]
        for key, of in runs.items()
    }
    tasks = list(dict.fromkeys(task for _, task in runs))
    figure = Figure(figsize=(9, 6), layout="constrained")
    panels = figure.subplots(2, 3).flat
    for task, axes in zip(tasks, panels, strict=False):
        ends = [f([x for (_, t), point in at.items() if t == task for x in point]) for f in (min, max)]
        axes.plot(ends, ends, color="#999999", linewidth=1, label="expects what its games return")
        for n, colour in COLOURS.items():
            of = {condition: point for (condition, t), point in at.items() if t == task and condition.startswith(n)}
            policies = {name: control for name, control in CONTROLS.items() if f"{n}, {name}" in of}
            for name, control in policies.items():
                axes.plot(*zip(of[f"{n}, {name}"], of[f"{n}, {control}"], strict=True), color=colour, linewidth=0.8)
            for names, marker, fill in ((set(policies), "o", colour), ({*policies.values(), "latest"}, "s", "white")):
                x, y = zip(*(of[f"{n}, {name}"] for name in sorted(names)), strict=True)
                whose = f"{n.replace('n_step=', 'n = ')}, {'policies' if marker == 'o' else 'latest'}"
                axes.scatter(x, y, 28, marker=marker, edgecolors=colour, facecolors=fill, zorder=3, label=whose)
        axes.set_title(task, fontsize=10)
        axes.spines[["top", "right"]].set_visible(False)
    figure.supxlabel("return over the depth of the targets", fontsize=10)
    figure.supylabel("expected at the start of a game", fontsize=10)
    for axes in panels:
        axes.axis("off")
        axes.legend(*figure.axes[0].get_legend_handles_labels(), frameon=False, loc="center left")
    figure.savefig(path, dpi=150)


if __name__ == "__main__":
    main()
