"""The numbers of an experiment as CSV files, and back: enough to draw its report again after the runs are gone.

plan.json        the experiment's file, its preset and what was fixed at its start, and of how many evaluations a score
                 is the mean
runs.csv         a line for each run
curves.csv       a line for each scheduled evaluation, with the counters of the snapshot that it judges
targets.csv      a line for each time that a snapshot was the target
telemetry.csv    a line for each time that a run logged its progress
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from twin_graph import config
from twin_graph.base.here import shortened
from twin_graph.errors import DamagedError, UsageError
from twin_graph.experiments import plan as plans
from twin_graph.experiments.clock import predicted
from twin_graph.experiments.experiment import Experiment
from twin_graph.experiments.results import Curve, Result, Service
from twin_graph.experiments.results import read as read_runs
from twin_graph.snapshots.files import checked, read_file

if TYPE_CHECKING:
    from twin_graph.experiments.plan import Plan
    from twin_graph.experiments.statistics import Norm
    from twin_graph.records.code import Code

PLAN = "plan.json"
REPORT = "report"  # the folder of a report, in an experiment's
_NOT_DONE = "waiting", "cut", "running"
_DEPTH = "depth_agent_steps"
_EVALUATED = "evaluated_at_agent_steps"
_TELEMETRY = ("seconds", "train_return", "q_distance", "agreement")


def write(plan: Plan, fixed: plans.Pairs, results: Sequence[Result], norms: Mapping[str, Norm]) -> dict[str, bytes]:
    """The files, by name."""
    return {
        PLAN: checked({**plans.record(plan, fixed), "last": plan.runs[0].last}, indent=1),
        "runs.csv": as_csv([_of_run(result, norms[result.planned.task]) for result in results]),
        "curves.csv": as_csv([row for result in results for row in _of_evaluations(result)]),
        "targets.csv": as_csv([row for result in results for row in _of_targets(result)]),
        "telemetry.csv": as_csv([row for result in results for row in _of_telemetry(result)]),
    }


def read(folder: Path) -> tuple[Plan, plans.Pairs, list[Result]]:
    """What `write` wrote. Raises `DamagedError`, or `UsageError` if there is nothing."""
    if not (folder / PLAN).exists():
        raise UsageError(f"no tables of an experiment in {folder}: there is no {PLAN}")
    record = read_file(folder / PLAN)
    try:
        plan, fixed = plans.recorded(record)
        plan = plan.scored_by(record.get("last", plan.last))  # older ones lack it
        rows = {name: _grouped(_rows(folder / f"{name}.csv")) for name in ("curves", "targets", "telemetry")}
        of_runs = {row["run"]: row for row in _rows(folder / "runs.csv")}
        results = [
            _result(run, of_runs[run.name], **{name: found.get(run.name, []) for name, found in rows.items()})
            for run in plan.runs
        ]
    except (KeyError, TypeError, ValueError, UsageError) as error:
        raise DamagedError(f"the tables in {folder} cannot be used: {error!r}") from None
    return plan, fixed, results


def found(folder: Path, more: Sequence[Path] = ()) -> tuple[Plan, plans.Pairs, list[Result]]:
    """What `read` returns, of an experiment in a folder, or of a folder of tables.

    Runs that are not done are taken from `more` such folders, and then from the tables of the experiment's last report,
    if they are done there.
    """
    is_tables = (folder / PLAN).exists()
    if is_tables:
        plan, fixed, runs = read(folder)
    else:
        experiment = Experiment.open(folder)
        plan, fixed, runs = experiment.plan, experiment.fixed, list(read_runs(experiment))
    for other in more:
        _, _, elsewhere = found(other)
        runs = filled_in(runs, elsewhere, other)
    last_report = folder / REPORT
    if not is_tables and (last_report / PLAN).exists() and any(run.state in _NOT_DONE for run in runs):
        _, _, written = read(last_report)
        runs = filled_in(runs, written, last_report)
    return plan, fixed, runs


def filled_in(runs: Sequence[Result], elsewhere: Iterable[Result], where: Path) -> list[Result]:
    """These results, with those of runs that are not done taken from elsewhere, if they are done there.

    A run that failed here, or is damaged, stays as it is: a report has to say so.

    Raises:
      UsageError: such a run has other settings there, or was forked from other weights.
    """
    done = {_place(result.planned): result for result in elsewhere if result.state == "done"}

    def filled(result: Result) -> Result:
        planned, other = result.planned, done.get(_place(result.planned))
        if result.state not in _NOT_DONE or other is None:
            return result
        for key, ours, theirs in config.differences(planned.settings, other.planned.settings):
            raise UsageError(f"{planned.name} is of another experiment in {where}: {key} is {theirs}, not {ours}")
        if _forked_from(planned) != _forked_from(other.planned):
            raise UsageError(f"{planned.name} is of another experiment in {where}: it is forked from other weights")
        return other._replace(planned=planned, taken_from=shortened(str(where)))

    return [filled(result) for result in runs]


def _place(planned: plans.PlannedRun) -> tuple[str, str, tuple[int, int]]:
    """Which run of an experiment it is: an earlier version may have called its folder otherwise."""
    return planned.condition, planned.task, planned.pair


def _forked_from(planned: plans.PlannedRun) -> tuple[str, int, int] | None:
    point = planned.point
    return (point.weights_sha256, point.agent_steps, point.updates) if point else None


def as_csv(rows: Sequence[Mapping[str, Any]]) -> bytes:
    buffer = io.StringIO()
    if rows:
        writer = csv.DictWriter(buffer, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    return buffer.getvalue().encode()


def _of_run(run: Result, norm: Norm) -> dict[str, Any]:
    steps, mean_age = run.reached(norm.threshold), run.mean_age(1, run.updates)
    row = {
        "run": run.planned.name,
        "condition": run.planned.condition,
        "environment": run.planned.task,
        "seed": run.planned.seed,
        "state": run.state,
        "agent_steps": run.agent_steps,
        "updates": run.updates,
        "score": run.final,
        "normalised_score": norm.normalised(run.final),
        "mean_of_scores": run.score_mean,
        "steps_to_threshold": steps,
        "seconds_to_threshold": None if steps is None else round(run.seconds_at(steps), 1),
        "expected": last(run.expected),
        "realised": last(run.realised),
        "target_age_updates": mean_age,
        "games": run.games,
        "attempts": run.attempts,
        "stops": run.stops,
        "processor": run.processor,
        "code": " ".join(f"{name}={version}" for name, versions in run.code.items() for version in versions),
        "error": run.error,
    }
    return {name: None if isinstance(value, float) and math.isnan(value) else value for name, value in row.items()}


def _of_evaluations(run: Result) -> Iterator[dict[str, Any]]:
    can = predicted(run)
    for step, score in run.scores.items():
        yield {
            "run": run.planned.name,
            "condition": run.planned.condition,
            "environment": run.planned.task,
            "seed": run.planned.seed,
            "agent_steps": run.position(step),
            "updates": run.evaluated[step],
            _EVALUATED: step,
            "score": score,
            "expected": run.expected.get(step),
            "realised": run.realised.get(step),
            _DEPTH: " ".join(map(str, run.depths.get(step, ()))),
            "truncated": run.truncated.get(step),
            "predicted": can.get(step),
        }


def _of_targets(run: Result) -> Iterator[dict[str, Any]]:
    for service in run.services:
        yield {
            "run": run.planned.name,
            "learner": service.learner,
            "first_update": service.first,
            "last_update": service.last,
            "committed_at_updates": " ".join(map(str, service.committed)),
            "by_hand": service.by_hand,
        }


def _of_telemetry(run: Result) -> Iterator[dict[str, Any]]:
    for step in sorted({step for name in _TELEMETRY for step in getattr(run, name)}):
        row = {name: getattr(run, name).get(step) for name in _TELEMETRY}
        yield {"run": run.planned.name, "agent_steps": step, **row}


def _result(
    planned: plans.PlannedRun,
    row: Mapping[str, str],
    curves: Sequence[Mapping[str, str]],
    targets: Sequence[Mapping[str, str]],
    telemetry: Sequence[Mapping[str, str]],
) -> Result:
    return Result(
        planned=planned,
        state=row["state"],
        agent_steps=int(row["agent_steps"]),
        updates=int(row["updates"]),
        scores=_curve(curves, "score"),
        made={_moment(line): int(line["agent_steps"]) for line in curves},
        evaluated={_moment(line): int(line["updates"]) for line in curves},
        games=int(row["games"]),
        expected=_curve(curves, "expected"),
        realised=_curve(curves, "realised"),
        depths={step: tuple(map(float, of.split())) for step, of in _column(curves, _DEPTH)},
        truncated=_curve(curves, "truncated"),
        seconds=_curve(telemetry, "seconds"),
        train_return=_curve(telemetry, "train_return"),
        q_distance=_curve(telemetry, "q_distance"),
        agreement=_curve(telemetry, "agreement"),
        services=[_service(line) for line in targets],
        attempts=int(row["attempts"]),
        stops=int(row["stops"]),
        processor=row["processor"],
        code=_code(row.get("code") or ""),  # older tables lack it
        error=row["error"],
    )


def _code(text: str) -> Code:
    found: dict[str, tuple[str, ...]] = {}
    for word in text.split():
        name, _, version = word.partition("=")
        found[name] = (*found.get(name, ()), version)
    return found


def _service(line: Mapping[str, str]) -> Service:
    committed = tuple(map(int, line["committed_at_updates"].split()))
    span = int(line["first_update"]), int(line["last_update"])
    return Service(*span, committed, line["learner"], line["by_hand"] == "True")


def _curve(lines: Iterable[Mapping[str, str]], name: str) -> Curve:
    return {step: float(value) for step, value in _column(lines, name)}


def _column(lines: Iterable[Mapping[str, str]], name: str) -> Iterator[tuple[int, str]]:
    """What a column says at agent steps; older tables lack some."""
    return ((_moment(line), value) for line in lines if (value := line.get(name)))


def _moment(line: Mapping[str, str]) -> int:
    """The agent steps by which a line is found. Of an evaluation, older tables have no others."""
    return int(line.get(_EVALUATED) or line["agent_steps"])


def _rows(path: Path) -> list[dict[str, str]]:
    if not path.exists():  # tables of older versions have no telemetry
        return []
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def _grouped(rows: Iterable[dict[str, str]]) -> dict[str, list[dict[str, str]]]:
    found: dict[str, list[dict[str, str]]] = {}
    for row in rows:
        found.setdefault(row["run"], []).append(row)
    return found


def last(curve: Curve) -> float:
    """The newest number; NaN of none."""
    return curve[max(curve)] if curve else math.nan
