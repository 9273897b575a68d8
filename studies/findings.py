"""The tables of docs/findings.md, made from the tables in studies/results/.

    python studies/findings.py [STUDY]... [--plot docs/findings]

A run's score is the mean of its last six scheduled evaluations, and beside it stands its last evaluation alone. Each
condition is compared with the first one in pairs of equal seeds by a permutation test, corrected for the number of
comparisons (Holm 1979). "Expects" is the largest Q of a game's first observation in the last evaluation, the least and
the most of the runs; "above 100" counts the runs in which it ever was more than can be true.
"""

import functools
from collections.abc import Sequence
from pathlib import Path

import click
import numpy as np
from matplotlib.figure import Figure

from twin_graph.experiments import figures, statistics, tables
from twin_graph.experiments.plan import Pairs, Plan
from twin_graph.experiments.results import Result

RESULTS = Path(__file__).parent / "results"
LAST = 6
#: Evaluations of which a run's score is the mean, and what that is called; the second is what was planned at first.
MEASURES = {LAST: f"last {LAST} evaluations", 1: "last evaluation alone"}
#: What no agent can get on CartPole: a game without end, at a discount of 0.99, is worth 100; one of 500 steps is 99.3.
POSSIBLE = 100.0
STUDIES = (
    "cartpole-policies",
    "refresh-period",
    "mutual-vs-double",
    "own-policy",
    "proposed-targets",
    "proposed-targets-replication",
)
#: What a study's conditions end with, if each such part is a table with comparisons of its own.
PARTS = {"proposed-targets": (", 50", ", 250")}
#: Conditions that were compared only after their studies: studies, ours, theirs.
AFTERWARDS = (
    (("proposed-targets",), "mean, 50", "latest, 250"),
    (("mutual-vs-double",), "mutual-both", "plain-twice"),
    (("proposed-targets", "proposed-targets-replication"), "mean, 50", "latest, 50"),
    (("proposed-targets", "proposed-targets-replication"), "mean, 50", "latest, 250"),
)
#: The picture of a study's differences.
PICTURES = {"cartpole-policies": "policies.png", "mutual-vs-double": "mutual.png"}
#: The chance with which a difference is to be found, and how many studies are drawn to see with which it is.
POWER, STUDIES_DRAWN = 0.8, 250
HEAD = """\
| condition | score (95%) | difference in pairs | p | last alone | p | target's age | expects | above 100 |
|---|---|---|---|---|---|---|---|---|"""


@functools.cache
def read(study: str) -> tuple[Plan, Pairs, list[Result]]:
    """As `tables.read`, once: the tables and pictures of a study are of the same runs."""
    return tables.read(RESULTS / study)


def table(study: str, part: str = "") -> list[str]:
    """The lines of a study's table, or of one of its parts."""
    plan, _, results = read(study)
    names = [name for name in plan.conditions if name.endswith(part)]
    of = {name: [result for result in results if result.planned.condition == name] for name in names}
    norm = statistics.norms(plan, results)
    six, one = (_compared([_scored(runs, last) for runs in of.values()], norm) for last in MEASURES)
    lines = HEAD.splitlines()
    for name, runs, (score, difference, p), (last, _, p_last) in zip(names, of.values(), six, one, strict=True):
        ages = [run.mean_age(1, run.updates) for run in runs]
        ends = sorted(run.expected[max(run.expected)] for run in runs)
        above = sum(max(run.expected.values()) > POSSIBLE for run in runs)
        cells = [
            f"`{name}`",
            score.words(".0f"),
            difference.words("+.0f") if difference else "",
            f"{p:.2g}" if difference else "",
            f"{last.value:.0f}",
            f"{p_last:.2g}" if difference else "",
            f"{np.mean([age for age in ages if age is not None]):,.0f}",
            f"{ends[0]:.0f} to {ends[-1]:.0f}",
            f"{above} of {len(runs)}",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def _scored(runs: list[Result], last: int) -> list[list[Result]]:
    """A row for each run, whose score is the mean of as many evaluations."""
    return [[run.scored_by(last)] for run in runs]


def _compared(
    conditions: list[list[list[Result]]], norm: dict[str, statistics.Norm]
) -> list[tuple[statistics.Estimate, statistics.Estimate | None, float]]:
    """Of each condition the interquartile mean, its difference from the first, and that difference's corrected p."""
    first, *others = conditions
    pairs = [statistics.differences(rows, first, norm) for rows in others]
    p = statistics.holm([statistics.p_of(found) for found in pairs])
    differences = [statistics.mean(found) for found in pairs]
    scores = [np.array([[row[0].final] for row in rows]) for rows in conditions]
    iqm = [statistics.estimates(found, lambda x: np.array([statistics.iqm(x)]), 1)[0] for found in scores]
    return list(zip(iqm, [None, *differences], [1.0, *p], strict=True))


def afterwards(studies: Sequence[str], ours: str, theirs: str) -> str:
    """One condition less another, in the pairs of all these studies."""
    less = np.concatenate([_pairs(study, ours, theirs, LAST) for study in studies])
    words = f"{len(less)} pairs, {statistics.mean(less).words('+.0f')}, p = {statistics.p_of(less):.2g}, not corrected"
    return f"`{ours}` less `{theirs}`, not planned: {words}"


def _pairs(study: str, ours: str, theirs: str, last: int) -> np.ndarray:
    """A study's scores under one condition less those under another, `[seeds, 1]`, as means of `last` evaluations."""
    plan, _, results = read(study)
    sides = ([run for run in results if run.planned.condition == name] for name in (ours, theirs))
    rows, others = (_scored(side, last) for side in sides)
    return statistics.differences(rows, others, statistics.norms(plan, results))


def spread(study: str = "cartpole-policies") -> str:
    """How far scores of the first condition lie apart, and which differences from it a study of as many seeds finds."""
    plan, _, results = read(study)
    of = {name: [result for result in results if result.planned.condition == name] for name in plan.conditions}
    first, *others = of.values()
    scores = np.array([[score for _, score in sorted(run.scores.items())][-LAST:] for run in first])
    within, between = np.sqrt(scores.var(1, ddof=1).mean()), scores.mean(1).std(ddof=1)
    norm = statistics.norms(plan, results)

    def apart(last: int) -> float:
        """The standard deviation of differences in pairs, the mean over conditions."""
        pairs = [statistics.differences(_scored(runs, last), _scored(first, last), norm) for runs in others]
        return float(np.mean([found.std(ddof=1) for found in pairs]))

    one, strict = (detectable(len(first), level) for level in (statistics.LEVEL, statistics.LEVEL / len(others)))
    return (
        f"`{plan.conditions[0]}`, standard deviation: {within:.0f} within a run, {between:.0f} between runs' means; of "
        f"differences in pairs {apart(LAST):.0f}, by the last evaluation alone {apart(1):.0f}. {len(first)} seeds find "
        f"a difference of {one * apart(1):.0f} by the last evaluation, {one * apart(LAST):.0f} by the mean of {LAST}, "
        f"and {strict * apart(LAST):.0f} by that where {len(others)} are compared, with a chance of {POWER:.0%}."
    )


def detectable(pairs: int, level: float) -> float:
    """The mean difference that the test finds with a chance of `POWER`, to 0.02, by drawing normal pairs.

    In standard deviations of the differences in pairs.
    """
    drawn = np.random.default_rng(0).standard_normal((STUDIES_DRAWN, pairs))
    low, high = 0.0, 3.0
    while high - low > 0.02:
        middle = (low + high) / 2
        found = np.mean(statistics.p_of_each(drawn + middle) <= level)
        low, high = (low, middle) if found >= POWER else (middle, high)
    return high


def picture_of_expected(study: str = "proposed-targets", part: str = ", 50") -> Figure:
    """What the snapshots of a study's part expect, the mean and its interval over seeds."""
    plan, _, results = read(study)
    series = []
    for name in (name for name in plan.conditions if name.endswith(part)):
        runs = [result for result in results if result.planned.condition == name]
        band = statistics.curve([[run.expected] for run in runs], statistics.mean_by_step)
        series.append(figures.Line(name.removesuffix(part), statistics.placed(band, runs)))
    return figures.lines(
        series, "agent steps", "expected at the start of a game", at=POSSIBLE, at_label="the most that is possible"
    )


def picture_of_differences(study: str) -> Figure:
    """A study's conditions less the first one, and below them those that were compared only afterwards."""
    plan, _, _ = read(study)
    first, *others = plan.conditions
    rows = {name: (name, first) for name in others}
    rows |= {f"{ours}\nless {theirs}": (ours, theirs) for studies, ours, theirs in AFTERWARDS if studies == (study,)}
    panels = [
        (
            f"score less that of {first}, {words}",
            [statistics.mean(_pairs(study, *pair, last)) for pair in rows.values()],
        )
        for last, words in MEASURES.items()
    ]
    figure = figures.intervals(panels, list(rows), at=0)
    ends = [axes.get_xlim() for axes in figure.axes]
    for axes in figure.axes:
        axes.set_xlim(min(low for low, _ in ends), max(high for _, high in ends))
    return figure


@click.command()
@click.argument("studies", nargs=-1)
@click.option(
    "--plot", type=click.Path(path_type=Path, file_okay=False), help="Draw the page's pictures into this folder, too."
)
def main(studies: tuple[str, ...], plot: Path | None) -> None:
    """Print the tables of docs/findings.md."""
    for study in studies or STUDIES:
        for part in PARTS.get(study, ("",)):
            print(f"## {study}{part}\n", *table(study, part), "", sep="\n")
    if not studies:
        print(*(afterwards(*conditions) for conditions in AFTERWARDS), spread(), sep="\n")
    if plot:
        plot.mkdir(parents=True, exist_ok=True)
        picture_of_expected().savefig(plot / "expected.png", dpi=150)
        for study, name in PICTURES.items():
            picture_of_differences(study).savefig(plot / name, dpi=150)


if __name__ == "__main__":
    main()
