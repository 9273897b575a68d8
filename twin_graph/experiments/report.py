"""The report of an experiment: one HTML page that needs nothing else, and the same as Markdown, CSV and PNG.

<experiment>/report/
  index.html       everything; pictures are in it
  report.md        the same, with its pictures in separate files
  *.png            the pictures
  conditions.csv   a line for each condition: the numbers of the first table, with their intervals
  plan.json, runs.csv and others: see `twin_graph.experiments.tables`
"""

from __future__ import annotations

import io
import itertools
import math
import re
from collections.abc import Callable, Iterator, Sequence
from importlib.metadata import version
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any, NamedTuple

from matplotlib.figure import Figure

from twin_graph.base.text import counted
from twin_graph.experiments import clock, figures, fonts, page, statistics, tables
from twin_graph.experiments.figures import Line
from twin_graph.experiments.page import Page, Picture, Table
from twin_graph.experiments.plan import NUDGED, Origin, Pairs, Plan
from twin_graph.experiments.statistics import FEW_SEEDS, GOOD_SEEDS, RESAMPLES, Band, Condition, Estimate, Norm
from twin_graph.experiments.tables import last
from twin_graph.records import code
from twin_graph.snapshots.files import make_folder, write_file

if TYPE_CHECKING:
    from twin_graph.experiments.results import Curve, Result

_DPI = 200
_LEFT_OUT = {"png": "Software", "pdf": "CreationDate", "svg": "Date"}  # of metadata: what is not about the picture
# Of each figure, its heading and what it shows.
_WORDS = {
    "learning": (
        "Learning curves",
        "The interquartile mean over seeds of each evaluation's mean return, with its 95% stratified bootstrap "
        "interval; thin lines are single runs. Where bands are apart, the conditions differ at that moment; where "
        "they overlap, the question stays open.",
    ),
    "aggregates": (
        "Score and optimality gap",
        "The interquartile mean drops the best and the worst quarter of the runs (of fewer than four, none), so that "
        "one lucky seed does not decide. The optimality gap is how far runs stay below the high score on average; less "
        "is better.",
    ),
    "profiles": (
        "Performance profiles",
        "For each normalised score the share of runs that end above it, with its 95% interval. A line that is above "
        "another everywhere is the better one; lines that cross say that it depends on what you ask for.",
    ),
    "improvement": (
        "Probability of improvement over {first}",
        "How probable it is that a run of this condition ends with a higher score than one of {first}, ties counting "
        "half. An interval that contains 0.5 leaves open which is better.",
    ),
    "threshold": (
        "Steps and time to the threshold",
        "When each run's score first reached {threshold}: a dot for each run, in agent steps and, where "
        "that is known, in minutes of training. The number on the right says how many never did.",
    ),
    "age": (
        "Age of the targets",
        "For each update, the age in updates of the snapshot that supplied its targets, by the ledger; the mean over "
        "runs with its 95% interval. Old targets are steadier and further behind; a line that climbs is a target that "
        "stays.",
    ),
    "served": (
        "Which snapshot served, and for how long",
        "Of the first seed: a stroke for each time that a snapshot gave the targets, from its first update to its "
        "last, at the height of the update at which it was committed (orange: chosen by a person, or the target of "
        "learner b). On the grey diagonal targets would be fresh; the distance below it is their age.",
    ),
    "distance": (
        "Distance between the twins",
        "The mean of |Q - Q_target| on 32 observations fixed at the first update, the mean over runs with its 95% "
        "interval. It says how much a refresh changes the targets; it drops at each, hence zigzags.",
    ),
    "agreement": (
        "Greedy agreement of the twins",
        "The share of those observations on which both twins prefer the same action. Near 1, double Q-learning and "
        "plain Q-learning bootstrap from the same action.",
    ),
    "clock": (
        "What the ledger predicts",
        "What each evaluated snapshot expects of a game (as above) against what it can expect by the genealogy of its "
        "targets alone: the rewards of as many steps as its depth, with no parameter fitted{assumption}. {fit}. What "
        "lies above the line is overestimated.",
    ),
    "overestimation": (
        "Overestimation",
        "What a snapshot expects of a game at its first observation (the largest Q value) less what it then gets "
        "(the discounted return of that game), the mean over evaluation games and runs with its 95% interval. Above "
        "0 it overestimates; a game that is cut by its time limit makes it look so, by what would have "
        "come after. With env.life_loss it is understated: values end with a life, while these games go on.",
    ),
}


class _Data(NamedTuple):
    plan: Plan
    results: list[Result]
    norms: dict[str, Norm]
    conditions: list[Condition]

    @property
    def unit(self) -> str:
        return "return" if self.only else "normalised score"

    @property
    def outcome(self) -> str:
        """What a run's score is, in words."""
        last = min(self.plan.runs[0].last, max((len(run.scores) for run in self.results), default=1) or 1)
        return "its last scheduled evaluation" if last == 1 else f"the mean of its last {last} scheduled evaluations"

    @property
    def only(self) -> Norm | None:
        """The norm of the only environment, whose scores are shown as they are; None where there are several."""
        return self.norms[self.plan.tasks[0]] if len(self.plan.tasks) == 1 else None

    def shown(self, normalised: Any) -> Any:
        """A normalised score in the unit in which it is shown; the aggregates of scores scale with them."""
        return normalised if self.only is None else self.only.low + normalised * (self.only.high - self.only.low)

    def estimate(self, estimate: Estimate) -> Estimate:
        return Estimate(*(float(self.shown(number)) for number in estimate))

    def band(self, band: Band | None) -> Band | None:
        return band and Band(band.at, *(self.shown(line) for line in band[1:]))


def write(
    plan: Plan,
    fixed: Pairs,
    found: list[Result],
    folder: Path,
    tell: Callable[[str, int, int], None],
    *,
    also: str | None = None,
) -> tuple[list[Path], dict[str, Any]]:
    """Writes the report of an experiment, finished or not.

    Args:
      plan, fixed: of the experiment.
      found: its runs.
      folder: where to write.
      tell: called with what is being done, for progress: in words, how many of how many are done.
      also: a second format for the pictures, `pdf` or `svg`.

    Returns:
      The files, the page first; and the numbers of the comparison.

    Raises:
      OSError: a file could not be written; each that was is whole.
    """
    norms = statistics.norms(plan, found)
    conditions = statistics.analyse(plan, found, norms, tell)
    data = _Data(plan, found, norms, conditions)
    tell("drawing", 0, 1)
    made = _page(data)
    tell("writing", 0, 1)
    make_folder(folder)
    pictures = {picture.name: _drawn(picture.figure, "png") for picture in made.pictures}
    files = {f"{name}.png": content for name, content in pictures.items()}
    if also:
        files |= {f"{picture.name}.{also}": _drawn(picture.figure, also) for picture in made.pictures}
    files["conditions.csv"] = tables.as_csv([numbers(condition) for condition in conditions])
    files |= tables.write(plan, fixed, found, norms)
    files["report.md"] = page.markdown(made).encode()
    files["index.html"] = page.html(made, pictures).encode()
    for name in sorted(files, key=lambda name: name == tables.PLAN):  # last: it says that the tables are whole
        write_file(folder / name, files[name])
    summary = {
        "experiment": plan.name,
        "conditions": [numbers(condition) for condition in conditions],
        "findings": made.findings,
        "warnings": made.warnings,
    }
    return [folder / name for name in reversed(files)], summary


def numbers(condition: Condition) -> dict[str, Any]:
    """What `conditions.csv` has of a condition; scores are normalised."""
    done = sum(run.state == "done" for run in condition.runs)
    row: dict[str, Any] = {"condition": condition.name, "runs": len(condition.runs), "runs_done": done}
    for name in ("iqm", "mean", "optimality_gap", "improvement"):
        estimate = getattr(condition, name) or statistics.UNKNOWN
        row |= {f"{name}{end}": value for end, value in zip(("", "_low", "_high"), estimate, strict=True)}
    within = condition.difference or statistics.UNKNOWN
    row |= {f"difference{end}": value for end, value in zip(("", "_low", "_high"), within, strict=True)}
    row["difference_p"] = condition.p
    row["reached_threshold"] = sum(math.isfinite(steps) for steps in condition.steps_to)
    row["steps_to_threshold"] = statistics.typical(condition.steps_to)
    row["seconds_to_threshold"] = statistics.typical(condition.seconds_to)
    row["target_age_updates"] = _mean(_mean_age(run) for run in _shown_runs(condition))
    row["overestimation"] = _mean(last(run.overestimation) for run in _shown_runs(condition))
    return {
        name: None if isinstance(value, float) and not math.isfinite(value) else value for name, value in row.items()
    }


def _page(data: _Data) -> Page:
    plan, done = data.plan, sum(run.state == "done" for run in data.results)
    environments = ", ".join(plan.tasks)
    return Page(
        title=plan.name,
        lead=" ".join(
            [
                *([re.sub(r"(?<![.?!])\Z", ".", plan.description)] if plan.description else []),
                f"{counted(len(data.conditions), 'condition')} of preset {plan.preset.preset} on {environments}, "
                f"{counted(len(data.results), 'run')} of {plan.steps:,} agent steps, {done} of them done.",
                *([f"All are forked from {_origin(plan.origin)}."] if plan.origin else []),
            ]
        ),
        findings=list(_findings(data)),
        warnings=list(_warnings(data)),
        comparison=_comparison(data),
        pictures=list(_pictures(data)),
        runs=_runs(data),
        method=list(_method(data)),
    )


def _origin(origin: Origin) -> str:
    points = [f"{point.number} (update {point.updates:,})" for point in origin.points.values()]
    return f"{origin.folder.name} at resume point{'s' if len(points) > 1 else ''} {_listed(points)}"


def _findings(data: _Data) -> Iterator[str]:
    known = [c for c in data.conditions if not math.isnan(c.iqm.value)]
    if len(data.conditions) == 1 and known:
        [only] = known
        score = _interval(data.estimate(only.iqm))
        yield f"{data.unit.capitalize()} at the end: {only.name}, {score} (interquartile mean)."
        return
    if len(known) < 2:
        yield "Too few runs are done for a comparison."
        return
    best = max(known, key=lambda condition: condition.iqm.value)
    yield f"Highest {data.unit} at the end: {best.name}, {_interval(data.estimate(best.iqm))} (interquartile mean)."
    first = data.conditions[0]
    if not len(first.scores):
        yield f"No run of {first.name}, with which the others are compared, is done."
        return
    others = [c for c in known if not math.isnan(c.p)]
    if not others:
        return
    differ = [f"{c.name} ({_number(c.difference.value)})" for c in others if c.difference and c.p < statistics.LEVEL]
    compared = f"{counted(len(others), 'comparison')} with {first.name}, in pairs of runs that began alike"
    pairs = max(condition.pairs for condition in others)
    if len(statistics.compared(data.conditions)) * 2 / 2**pairs >= statistics.LEVEL:  # of 2**n signs 2 give the least p
        cannot = f"{counted(pairs, 'pair')} cannot show a difference in {compared}"
        yield f"{cannot}: corrected, no p can be below {statistics.LEVEL}."
    elif differ:
        yield f"Of {compared}, these differ, corrected for their number: {_listed(differ)}."
    else:
        yield f"Of {compared}, none differs, corrected for their number."


def _warnings(data: _Data) -> Iterator[str]:
    for sentence in code.mixed({run.planned.name: run.code for run in data.results}):
        yield f"{sentence}. What follows mixes them."
    counts = [len(condition.scores) for condition in data.conditions]
    if min(counts) < FEW_SEEDS:
        yield (
            f"Too few seeds: {_range(counts)} per condition. Bootstrap intervals from so few runs are too narrow, and "
            f"none here supports a claim. Use {GOOD_SEEDS}."
        )
    elif min(counts) < GOOD_SEEDS:
        yield f"Few seeds: {_range(counts)} per condition. Only believe large differences, or use {GOOD_SEEDS}."
    states = [run.state for run in data.results]
    if open_ := sum(state in ("waiting", "running", "cut") for state in states):
        yield f"Unfinished: {open_} of {len(states)} runs are not done, and count in no score, interval or time."
    for run in data.results:
        if run.state in ("failed", "damaged"):
            yield f"{run.planned.name} {'failed' if run.state == 'failed' else 'is damaged'}: {run.error}"
    if lost := [c.name for c in data.conditions if any(r.state == "failed" for r in c.runs) and len(c.scores)]:
        yield f"Of {_listed(lost)} the runs that failed are missing, so its score may be too high."
    if silent := [run.planned.name for run in data.results if run.state == "done" and not run.scores]:
        yield f"Without scheduled evaluations, and so without a score: {_listed(silent)}."
    if alone := [run.planned.name for condition in data.conditions for run in _alone(condition)]:
        yield f"Done, but in no score, interval or time, since their seeds lack another environment: {_listed(alone)}."
    games = [run.games for run in data.results if run.scores]
    if games and min(games) < 10:
        yield f"A score is the mean of only {min(games)} games; evaluate.episodes=10 or more leaves less to luck."
    for task, norm in data.norms.items():
        if "seen" in norm.source:
            yield (
                f"Scores of {task} are normalised by {norm.source}, {norm.low:g} and {norm.high:g}, so that "
                "normalised scores and optimality gaps mean nothing beyond this report. Give [scores] in the file."
            )
    if stopped := [run.planned.name for run in data.results if run.stops]:
        yield (
            f"Stopped and resumed, which adds an episode boundary: {_listed(stopped)}. Their results are valid, but "
            "a fresh run of this file will differ from them. (Killed runs are not affected.)"
        )
    elsewhere: dict[str, list[str]] = {}
    for run in data.results:
        if run.taken_from:
            elsewhere.setdefault(run.taken_from, []).append(run.planned.name)
    for where, names in elsewhere.items():
        yield f"Not done in this folder, and taken from {where}: {_listed(names)}."
    if len(processors := _processors(data.results)) > 1:
        yield f"Runs on different processors: {', '.join(processors)}. Times do not compare."


def _processors(results: Sequence[Result]) -> list[str]:
    """Those that are known to differ; an older table's name alone may be that of one whose instructions are known."""
    names = {run.processor for run in results if run.processor}
    older = {name for name in names if not name.endswith(")")}
    distinct = names - {name for name in older if any(other.startswith(f"{name} (") for other in names)}
    return sorted(f"{name} (instruction set not recorded)" if name in older else name for name in distinct)


#: The columns of the table of conditions; `first` is the condition with which the others are compared.
COMPARISON = (
    "condition",
    "runs done",
    "{unit}, IQM (95%)",
    "optimality gap (95%)",
    "better than {first} (95%)",
    "mean paired difference from {first} (95%)",
    "p, by Holm",
    "agent steps to threshold",
    "age of targets, updates",
    "overestimation at the end",
)


def _comparison(data: _Data) -> Table:
    first = data.conditions[0].name
    rows = []
    for c in data.conditions:
        row = numbers(c)
        reached = f"{row['reached_threshold']} of {len(c.steps_to)}"
        steps = row["steps_to_threshold"]
        rows.append(
            [
                c.name,
                f"{row['runs_done']} of {row['runs']}",
                _interval(data.estimate(c.iqm)),
                _interval(c.optimality_gap),
                _interval(c.improvement) if c.improvement else "-",
                _interval(c.difference) if c.difference else "-",
                "-" if math.isnan(c.p) else f"{c.p:.2g}",
                f"{steps:,.0f} ({reached})" if steps is not None else reached,
                _number(row["target_age_updates"]),
                _number(row["overestimation"]),
            ]
        )
    columns = [name.format(unit=data.unit, first=first) for name in COMPARISON]
    text = (
        f"{data.unit.capitalize()}: interquartile mean over runs of {data.outcome}. In pairs: of runs that began "
        "alike, by a permutation test, corrected for the number of comparisons (Holm 1979). Agent steps to the "
        "threshold: median over runs, and how many reached it."
    )
    return Table("Comparison", text, columns, rows)


def _pictures(data: _Data) -> Iterator[Picture]:
    constant = all(clock.step_reward(run) == 1 for run in data.plan.runs)
    words = {
        "first": data.conditions[0].name,
        "threshold": _thresholds(data),
        "fit": _fits(data),
        "assumption": ", at a reward of 1 each" if constant else "; the rewards are those of the evaluation's games",
    }
    for name, figure in itertools.chain(_score_figures(data), _target_figures(data)):
        heading, text = _WORDS[name]
        yield Picture(name, heading.format(**words), text.format(**words), figure)


def _score_figures(data: _Data) -> Iterator[tuple[str, Figure]]:
    conditions, only = data.conditions, data.only
    names = [condition.name for condition in conditions]
    curves = [
        Line(c.name, data.band(c.curve), [r.placed(r.scores) for r in c.runs] if only else ()) for c in conditions
    ]
    highest = max((score for run in data.results for score in run.scores.values()), default=0.0)
    near = only is not None and only.normalised(highest) > only.normalised(only.threshold) / 2
    threshold = only.threshold if only and near else None  # far above all lines it would press them flat
    yield "learning", figures.lines(curves, "agent steps", data.unit, at=threshold, at_label="threshold")
    iqm, gap = [data.estimate(c.iqm) for c in conditions], [c.optimality_gap for c in conditions]
    yield "aggregates", figures.intervals([(f"{data.unit}, IQM", iqm), ("optimality gap", gap)], names)
    yield "profiles", figures.profiles(names, [c.profile for c in conditions], statistics.PROFILE_AT)
    if len(conditions) > 1:
        improved = [c.improvement or statistics.UNKNOWN for c in conditions[1:]]
        label = f"probability of a higher score than {names[0]}"
        yield "improvement", figures.intervals([(label, improved)], names[1:], at=0.5)
    done = [run for run in data.results if run.state == "done"]
    minutes = [[seconds / 60 for seconds in c.seconds_to] for c in conditions]
    steps = [c.steps_to for c in conditions]
    panels = [("agent steps", float(data.plan.steps), steps)]
    if done and all(run.seconds for run in done):  # tables alone may not have the time
        longest = max(run.seconds_at(run.agent_steps) for run in done) / 60
        panels.append(("minutes of training", longest or 1.0, minutes))
    yield "threshold", figures.dots(panels, names)


def _target_figures(data: _Data) -> Iterator[tuple[str, Figure]]:
    conditions = data.conditions

    def of_runs(curve: Callable[[Result], Curve], x_label: str, y_label: str, **reference: Any) -> Figure:
        return figures.lines([_mean_line(condition, curve) for condition in conditions], x_label, y_label, **reference)

    shown = [run for condition in conditions for run in _shown_runs(condition)]
    if taught := [run for run in shown if run.services]:
        yield "age", of_runs(figures.ages(taught), "update", "age in updates")
        yield "served", figures.served([(c.name, _shown_runs(c)[0]) for c in conditions if _shown_runs(c)])
    if any(run.q_distance for run in shown):
        yield "distance", of_runs(lambda run: run.q_distance, "agent steps", "|Q - Q_target|")
    if any(run.agreement for run in shown):
        yield "agreement", of_runs(lambda run: run.agreement, "agent steps", "share of equal greedy actions")
    if any(run.expected for run in shown):
        label, zero = "expected less realised return", "neither too much nor too little"
        by_condition = [(_mean_line(c, lambda run: run.overestimation), _shown_runs(c)) for c in conditions]
        placed = [line._replace(band=statistics.placed(line.band, runs)) for line, runs in by_condition]
        yield "overestimation", figures.lines(placed, "agent steps", label, at=0.0, at_label=zero)
    # Returns of several environments differ too much for conditions to be seen: each has a colour of its own then.
    alike = {c.name: c.runs for c in conditions} if data.only else _by_environment(data)
    points = {name: [pair for run in runs for pair in clock.pairs(run)] for name, runs in alike.items()}
    if any(points.values()):
        yield "clock", figures.against(points, "predicted by the ledger", "expected by the snapshot")


def _by_environment(data: _Data) -> dict[str, list[Result]]:
    return {task: [run for run in data.results if run.planned.task == task] for task in data.plan.tasks}


def _fits(data: _Data) -> str:
    """How well the ledger predicts what is expected, in each environment."""
    fits = {
        task: clock.words(clock.fit(pair for run in runs for pair in clock.pairs(run)))
        for task, runs in _by_environment(data).items()
    }
    return ". ".join(words if data.only else f"{task}: {words}" for task, words in fits.items())


def _mean_line(condition: Condition, of: Callable[[Result], Curve]) -> Line:
    rows = [[of(run) for run in row] for row in condition.rows]
    return Line(condition.name, statistics.curve(rows, statistics.mean_by_step))


def _shown_runs(condition: Condition) -> list[Result]:
    return [run for row in condition.rows for run in row]


def _alone(condition: Condition) -> list[Result]:
    """Runs that have a score, of seeds that are missing an environment."""
    whole = [row[0].planned.pair for row in condition.rows[: len(condition.scores)]]
    return [r for r in condition.runs if r.state == "done" and r.scores and r.planned.pair not in whole]


def _runs(data: _Data) -> Table:
    rows = [
        [
            run.planned.name,
            run.state,
            f"{run.agent_steps:,}",
            _number(None if math.isnan(run.final) else run.final),
            _number(last(run.overestimation)),
            str(run.attempts) if run.attempts else "-",
        ]
        for run in data.results
    ]
    text = "`twin-graph log`, `explain` and all other commands take the folder of a run."
    return Table("Runs", text, ("run", "state", "agent steps", "score", "overestimation", "processes"), rows)


def _method(data: _Data) -> Iterator[str]:
    for task, norm in data.norms.items():
        yield (
            f"Scores of {task}: {norm.low:g} counts as 0 and {norm.high:g} as 1 ({norm.source}); the threshold is "
            f"{norm.threshold:g}."
        )
    chosen = "Nothing is chosen afterwards: not the best snapshot, not the best seed."
    if data.plan.runs[0].last != data.plan.last:
        chosen = f"That was chosen when this report was made (--last); the experiment's file says {data.plan.last}."
    yield (
        "A score is the mean return of whole, unclipped games that the newest snapshot plays at a scheduled "
        f"evaluation; a run's score is {data.outcome}. {chosen}"
    )
    yield (
        f"All intervals are 95% percentile intervals of a stratified bootstrap over seeds with {RESAMPLES:,} "
        f"resamples, by rliable {version('rliable')} (Agarwal et al. 2021), with a fixed seed. Curves use the runs "
        "that are done; while none of a condition is, those that have begun, as far as all of these have come."
    )
    if data.plan.origin:
        yield (
            "Pairs are runs of two conditions that were forked from the same resume point and have the same noise from "
            "there on. The mean difference within pairs has an interval over pairs; it is about these beginnings."
        )
        if any(run.planned.nudge for run in data.results):
            yield (
                f"The condition{NUDGED} is the first one with its largest weight moved by one unit in the last place. "
                "Where another condition differs from the first no more than this one does, the difference is chaos."
            )
    fields = ("env.id", "train.discount", "evaluate.episodes", "evaluate.every_steps")
    settings = data.plan.runs[0].settings.model_dump()
    said = ", ".join(f"{field} {settings[field.split('.')[0]][field.split('.')[1]]}" for field in fields)
    yield f"In the first run: {said}. All settings of a run are in its run.json."


def _thresholds(data: _Data) -> str:
    if data.only:
        return f"{data.only.threshold:g}"
    return ", ".join(f"{norm.threshold:g} ({task})" for task, norm in data.norms.items())


def _mean_age(run: Result) -> float:
    age = run.mean_age(1, run.updates)
    return math.nan if age is None else age


def _mean(values: Iterator[float]) -> float:
    known = [value for value in values if not math.isnan(value)]
    return fmean(known) if known else math.nan


def _number(value: float | None) -> str:
    if value is None or math.isnan(value):
        return "-"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:z.3g}" if abs(value) < 100 else f"{value:.1f}"


def _interval(estimate: Estimate) -> str:
    if math.isnan(estimate.value):
        return "-"
    if math.isnan(estimate.low):
        return f"{_number(estimate.value)} (one run)"
    return f"{_number(estimate.value)} ({_number(estimate.low)} to {_number(estimate.high)})"


def _range(counts: Sequence[int]) -> str:
    least, most = min(counts), max(counts)
    return f"{least}" if least == most else f"{least} to {most}"


def _listed(names: Sequence[str]) -> str:
    shown = list(names[:6]) + ([f"{len(names) - 6} more"] if len(names) > 6 else [])
    return shown[0] if len(shown) == 1 else f"{'; '.join(shown[:-1])} and {shown[-1]}"


def _drawn(figure: Figure, form: str) -> bytes:
    buffer = io.BytesIO()
    fonts.save(figure, buffer, dpi=_DPI, format=form, metadata={_LEFT_OUT[form]: None})
    return buffer.getvalue()
