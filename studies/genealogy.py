"""The analysis of the three studies of studies/genealogy*.toml.

For each study, hypotheses and outcomes were committed before its runs began, and the analysis before they ended,
except what is named below as added.

    python studies/genealogy.py [TABLES] [--plot docs/findings/genealogy.png]

TABLES is the folder of an experiment's tables, `studies/results/genealogy` unless given; the picture shows all three
studies. Printed are:

1. for each environment and condition the score, how deep the last six snapshots are, what they expected, and how much
   more that is than the return of their own games over as many agent steps as their depth (hypothesis 1);
2. each policy less its control of equal depth by score, in pairs of equal seeds, corrected for all pairs of the table
   (hypothesis 2), and the mean of an environment's pairs, which was added after the first study;
3. the same by what was expected too much, in % of the largest return (hypothesis 3, not of genealogy.toml);
4. each policy less the `latest` that is refreshed as often, which is deeper: whether depth shows in scores at all. This
   was added after the runs.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from types import MappingProxyType
from typing import NamedTuple

import click
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from twin_graph.experiments import statistics, tables
from twin_graph.experiments.results import Result, of_whole_seeds
from twin_graph.experiments.statistics import Estimate, Norm

RESULTS = Path(__file__).parent / "results"
STUDIES = ("genealogy", "genealogy-lunarlander", "genealogy-minatar")
#: The `latest` whose snapshots have about the same depth.
CONTROLS = {"lag": "latest-512", "mix": "latest-512", "mean": "latest-640", "window": "latest-1152"}
#: The `latest` that is refreshed as often.
AS_OFTEN = dict.fromkeys(CONTROLS, "latest")
#: The largest discounted return, by environment: at a reward of 1 a step and a discount of 0.99; in LunarLander about
#: what is seen of a good landing; in MinAtar what was seen before the runs.
LARGEST = {
    "CartPole-v1": 100.0,
    "Acrobot-v1": 100.0,
    "LunarLander-v3": 100.0,
    "MinAtar/Breakout-v1": 5.0,
    "MinAtar/SpaceInvaders-v1": 12.0,
}
#: In % of the largest return, the difference between residuals that counts as none (genealogy-minatar.toml).
MARGIN = 10.0
#: Okabe and Ito's colours, by how a condition's name begins.
COLOURS = {"n_step=1": "#0072b2", "n_step=3": "#d55e00"}

#: By condition and environment.
Runs = dict[tuple[str, str], Sequence[Result]]


class Pair(NamedTuple):
    """A policy less its control in an environment: by seed, `[seeds, 1]`."""

    task: str
    condition: str
    control: str
    less: np.ndarray


def score(run: Result) -> float:
    """The mean of a run's last evaluations."""
    return run.final


def depth(run: Result) -> float:
    """How many agent steps deep a run's last snapshots were."""
    return run.newest({step: fmean(of) for step, of in run.depths.items()})


def expected(run: Result) -> float:
    """What a run's last snapshots expected of a game."""
    return run.newest(run.expected)


def residual(run: Result) -> float:
    """How much more that is than their games returned over their depth."""
    return expected(run) - run.newest(run.truncated)


def share(run: Result) -> float:
    """`residual`, in % of the largest return."""
    return 100 * residual(run) / LARGEST[run.planned.task]


def read(folder: Path) -> tuple[Runs, dict[str, Norm]]:
    """The runs of a folder of tables, of the seeds that are done everywhere, and how their scores are normalised."""
    plan, _, results = tables.read(folder)
    whole = of_whole_seeds(results)
    runs: Runs = {
        (condition, task): [r for r in whole if r.planned.condition == condition and r.planned.task == task]
        for task in plan.tasks
        for condition in plan.conditions
    }
    return runs, statistics.norms(plan, results)


def over(runs: Sequence[Result], outcome: Callable[[Result], float]) -> Estimate:
    """The mean over seeds."""
    return statistics.mean(np.array([[outcome(run)] for run in runs]))


def pairs(
    runs: Runs,
    norm: Mapping[str, Norm],
    outcome: Callable[[Result], float],
    controls: Mapping[str, str] = MappingProxyType(CONTROLS),
) -> Iterator[Pair]:
    """Each policy less its control."""
    for (condition, task), ours in runs.items():
        head, _, name = condition.rpartition(", ")
        if control := controls.get(name):
            rows, others = ([[run] for run in side] for side in (ours, runs[f"{head}, {control}", task]))
            yield Pair(task, condition, control, statistics.differences(rows, others, norm, outcome))


@click.command()
@click.argument(
    "folder",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    default=RESULTS / "genealogy",
)
@click.option("--plot", type=click.Path(path_type=Path), help="Draw all three studies, too.")
def main(folder: Path, plot: Path | None) -> None:
    """Print the analysis of a folder of tables."""
    runs, norm = read(folder)
    print(
        "| environment | condition | score (95%) | depth | expects | expects too much (95%) | of the largest return |"
    )
    print("|---|---|---|---|---|---|---|")
    for (condition, task), of in runs.items():
        print(
            f"| {task} | {condition} | {over(of, score).words(f'.{places(task)}f')} | {fmean(map(depth, of)):.0f} "
            f"| {fmean(map(expected, of)):.1f} | {over(of, residual).words('+.2f')} | {fmean(map(share, of)):+z.1f}% |"
        )
    print_pairs(list(pairs(runs, norm, score)), "", places)
    print_pairs(list(pairs(runs, norm, share)), " of residuals, % of the largest return", lambda _: 1)
    print_pairs(list(pairs(runs, norm, score, AS_OFTEN)), ", refreshed as often", places)
    if plot:
        draw(plot)


def places(task: str) -> int:
    """How many decimals the scores of an environment are given with."""
    return 0 if LARGEST[task] >= 100 else 1


def print_pairs(of: Sequence[Pair], what: str, places: Callable[[str], int]) -> None:
    """A table of differences, and of their mean in each environment."""
    corrected = statistics.holm([statistics.p_of(pair.less) for pair in of])
    print(f"\n| environment | policy | control | difference in pairs{what} (95%) | p |\n|---|---|---|---|---|")
    for (task, condition, control, less), p in zip(of, corrected, strict=True):
        print(f"| {task} | {condition} | {control} | {statistics.mean(less).words(f'+.{places(task)}f')} | {p:.2g} |")
    for task, less in means(of):
        words = statistics.mean(less).words(f"+.{places(task)}f")
        print(f"| {task} | mean of these | | {words} | {statistics.p_of(less):.2g}, not corrected |")


def means(of: Sequence[Pair]) -> Iterator[tuple[str, np.ndarray]]:
    """For each environment the mean of its pairs, by seed."""
    for task in dict.fromkeys(pair.task for pair in of):
        yield task, np.mean([pair.less for pair in of if pair.task == task], axis=0)


def draw(path: Path) -> None:
    """What snapshots expect by what their games return; and each policy less its control, by residual and by score."""
    found = [read(RESULTS / study) for study in STUDIES]
    runs = {key: of for some, _ in found for key, of in some.items()}
    norm = {task: scale for _, scales in found for task, scale in scales.items()}
    tasks = list(norm)
    figure = Figure(figsize=(12, 8), layout="constrained")
    panels = figure.subplots(3, len(tasks), squeeze=False, height_ratios=(1.1, 1, 1))
    for column, task in enumerate(tasks):
        of = {condition: some for (condition, t), some in runs.items() if t == task}
        _draw_expected(panels[0, column], of, 100 / LARGEST[task])
        panels[0, column].set_title(task, fontsize=10)
        scale = norm[task].high - norm[task].low
        for row, (outcome, unit) in enumerate(((share, 1.0), (score, 100 / scale)), 1):
            _draw_pairs(panels[row, column], [p for p in pairs(runs, norm, outcome) if p.task == task], unit)
            if column:
                panels[row, column].tick_params(labelleft=False)
        panels[1, column].axvspan(-MARGIN, MARGIN, color="#e8e8e8", linewidth=0)
    for row, words in enumerate(
        (
            "return over the depth of the targets, % of the largest return",
            "policy less its control: what is expected too much, % of the largest return (95%)",
            "policy less its control: score, % of its range (95%)",
        )
    ):
        panels[row, len(tasks) // 2].set_xlabel(words)
    panels[0, 0].set_ylabel("expected, %")
    panels[0, 0].legend(frameon=False, fontsize=7)
    figure.savefig(path, dpi=130)


def _draw_expected(axes: Axes, of: Mapping[str, Sequence[Result]], unit: float) -> None:
    """A point for each condition."""
    axes.axline((0, 0), slope=1, color="#999999", linewidth=1)
    for n, colour in COLOURS.items():
        for kind, marker, fill in (("policies", "o", colour), ("latest", "s", "white")):
            some = [
                runs
                for condition, runs in of.items()
                if condition.startswith(n) and ("latest" in condition) == (kind == "latest")
            ]
            y = np.array([np.mean([expected(run) for run in runs]) for runs in some])
            x = y - [np.mean([residual(run) for run in runs]) for runs in some]
            label = f"{n.replace('n_step=', 'n = ')}, {kind}"
            axes.scatter(unit * x, unit * y, 26, marker=marker, edgecolors=colour, facecolors=fill, label=label)
    axes.spines[["top", "right"]].set_visible(False)


def _draw_pairs(axes: Axes, of: Sequence[Pair], unit: float) -> None:
    """A difference with its interval in each row."""
    axes.axvline(0, color="#999999", linewidth=1)
    for y, pair in enumerate(of):
        value, low, high = (unit * number for number in statistics.mean(pair.less))
        colour = COLOURS[pair.condition.partition(", ")[0]]
        axes.errorbar(value, y, xerr=[[value - low], [high - value]], fmt="o", color=colour, markersize=4, zorder=3)
    names = [pair.condition.replace("n_step=", "n = ") for pair in of]
    axes.set_yticks(range(len(of)), names, fontsize=8)
    axes.set_ylim(len(of) - 0.5, -0.5)
    axes.spines[["top", "right"]].set_visible(False)


if __name__ == "__main__":
    main()
