"""The analysis of studies/genealogy.toml and studies/genealogy-lunarlander.toml, as it was named before the runs.

    python studies/genealogy.py [TABLES] [--plot docs/findings/genealogy.png]

TABLES is the folder of an experiment's tables, `studies/results/genealogy` unless given; the picture shows both
studies. Printed are, for each environment, condition and n-step: the score, what the last six snapshots expected, and
how much more that is than the return of their own games over as many agent steps as their depth (hypothesis 1); and
each policy less its control of equal depth, in pairs of equal seeds, corrected for all pairs of the table: by score
(hypothesis 2), and by what was expected too much (hypothesis 3, of genealogy-lunarlander.toml alone).
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
#: The most that a discounted return can be, at a reward of 1 a step and a discount of 0.99; in LunarLander about the
#: most that is seen of a landing.
LARGEST = 100.0
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
@click.option("--plot", type=click.Path(path_type=Path), help="Draw what both studies' snapshots expect, too.")
def main(folder: Path, plot: Path | None) -> None:
    """Print the analysis of a folder of tables."""
    runs, norm = read(folder)
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
        print_pairs(runs, norm, outcome, digits)
    if plot:
        draw({**read(RESULTS / "genealogy")[0], **read(RESULTS / "genealogy-lunarlander")[0]}, plot)


def print_pairs(
    runs: Runs, norm: Mapping[str, statistics.Norm], outcome: Callable[[Result], float], digits: str
) -> None:
    """Each policy less its control, in pairs of runs of equal seeds."""
    pairs = []
    for (condition, task), ours in runs.items():
        head, _, name = condition.rpartition(", ")
        if control := CONTROLS.get(name):
            rows = ([[run] for run in side] for side in (ours, runs[f"{head}, {control}", task]))
            pairs.append((task, condition, control, statistics.differences(*rows, norm, outcome)))
    corrected = statistics.holm([statistics.p_of(less) for *_, less in pairs])
    print("\n| environment | policy | control | difference in pairs (95%) | p |\n|---|---|---|---|---|")
    for (task, condition, control, less), p in zip(pairs, corrected, strict=True):
        print(f"| {task} | {condition} | {control} | {statistics.mean(less).words(digits)} | {p:.2g} |")


def draw(runs: Runs, path: Path) -> None:
    """What each condition's last snapshots expect, by what their games return; a policy is joined to its control."""
    at = {
        key: [
            np.mean([run.newest(curve(run)) for run in of]) for curve in (lambda r: r.truncated, lambda r: r.expected)
        ]
        for key, of in runs.items()
    }
    tasks = list(dict.fromkeys(task for _, task in runs))
    figure = Figure(figsize=(9, 3.4), layout="constrained")
    for axes, task in zip(figure.subplots(1, len(tasks)), tasks, strict=True):
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
        axes.set_xlabel("return over the depth of the targets")
        axes.spines[["top", "right"]].set_visible(False)
    figure.axes[0].set_ylabel("expected at the start of a game")
    figure.axes[0].legend(frameon=False, fontsize=7)
    figure.savefig(path, dpi=150)


if __name__ == "__main__":
    main()
