"""What the records of an experiment's runs say, as plain numbers."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from statistics import fmean
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from twin_graph.base.machine import Cpu
from twin_graph.config import turns
from twin_graph.errors import DamagedError, UsageError
from twin_graph.experiments.experiment import Experiment, State, look
from twin_graph.records import code
from twin_graph.snapshots.ledger import (
    BY_HAND,
    IMPORT,
    UNDO,
    Commit,
    End,
    Event,
    Fork,
    Pin,
    Point,
    Prune,
    Restore,
    Start,
    target_swaps,
)
from twin_graph.snapshots.lines import learning_curve

if TYPE_CHECKING:
    from twin_graph.experiments.plan import PlannedRun
    from twin_graph.records.code import Code
    from twin_graph.snapshots.run import Run

Curve = dict[int, float]


class Service(NamedTuple):
    """A target's snapshots gave the targets of these updates.

    Attributes:
      first, last: updates, from 1.
      committed: after how many updates each snapshot was committed: one, or the members of an ensemble.
      learner: whose targets.
      by_hand: a person chose.
    """

    first: int
    last: int
    committed: tuple[int, ...]
    learner: str
    by_hand: bool

    def mean_age(self, first: int, last: int) -> tuple[float, int]:
        """How many updates old the targets of updates `first` to `last` were, as far as they are these, and how many
        updates that were; of an ensemble the mean over its members."""
        first, last = max(first, self.first), min(last, self.last)
        return (first + last) / 2 - 1 - fmean(self.committed), max(0, last - first + 1)


#: Attributes of a `Result` by agent steps: those of evaluations by when they were played, the others by when they were
#: logged.
_CURVES = (
    *("scores", "made", "evaluated", "expected", "realised", "depths", "truncated"),
    *("seconds", "train_return", "q_distance", "agreement"),
)


class Result(NamedTuple):
    """One run; of one that is forked what came since, but for `services`.

    Attributes:
      planned: which.
      state: see `twin_graph.experiments.experiment.State`.
      agent_steps, updates: according to its records.
      scores: mean return of the games that the newest snapshot played, by the agent steps at which it played them (with
        workers, at which that was due), since runs have these in common; of two learners, their mean.
      made, evaluated: after how many agent steps, and updates, that snapshot was committed, likewise: there a score is
        shown.
      games: how many games such a score is the mean of, at most.
      expected: what those snapshots expected of these games: mean of the largest Q of the first observations.
      realised: what these games returned: mean discounted return, of rewards as they are learnt from.
      depths: how many agent steps deep those snapshots are, of two learners both; see `twin_graph.records.depth`.
      truncated: as `realised`, of no more steps than that.
      seconds: since training began, evaluations and resume points included, until this many agent steps.
      train_return: mean return of the newest training episodes, exploration included, by agent steps.
      q_distance, agreement: of the targets from their online twins, by agent steps.
      services: of the targets, in order, but for those that were imported.
      attempts: processes that trained it.
      stops: how often a person or an error ended it at a resume point of its own, which adds an episode boundary.
      processor: on which it was trained, with its instruction set; its name alone in earlier tables.
      code: versions of packages and users' modules with which it was trained; see `twin_graph.records.code`.
      error: why it failed.
      taken_from: of a run that was not done here, the folder where it is, or its tables; else empty.
    """

    planned: PlannedRun
    state: str
    agent_steps: int
    updates: int
    scores: Curve
    made: dict[int, int]
    evaluated: dict[int, int]
    games: int
    expected: Curve
    realised: Curve
    depths: dict[int, tuple[float, ...]]
    truncated: Curve
    seconds: Curve
    train_return: Curve
    q_distance: Curve
    agreement: Curve
    services: list[Service]
    attempts: int
    stops: int
    processor: str
    code: Code
    error: str
    taken_from: str = ""

    @property
    def overestimation(self) -> Curve:
        """Expected less realised."""
        return {step: self.expected[step] - self.realised[step] for step in self.expected}

    @property
    def final(self) -> float:
        """The mean of the newest scores, of as many as the plan says; NaN before the first."""
        return self.newest(self.scores)

    def newest(self, curve: Curve) -> float:
        """The mean of the newest values of one of its curves, of as many as the plan says; NaN before the first."""
        steps = sorted(curve)[-self.planned.last :]
        return fmean(curve[step] for step in steps) if steps else math.nan

    def scored_by(self, last: int) -> Result:
        """The same run, its score the mean of this many of its newest evaluations, whatever the plan says."""
        return self._replace(planned=self.planned._replace(last=last))

    @property
    def score_mean(self) -> float:
        """The mean of all scores: how good it was on the way; NaN before the first."""
        return fmean(self.scores.values()) if self.scores else math.nan

    def position(self, evaluated_at: int) -> int:
        """The agent steps of the snapshot that was evaluated then."""
        return self.made.get(evaluated_at, evaluated_at)

    def placed(self, curve: Curve) -> Curve:
        """One of its curves of evaluations, by the agent steps of the snapshots; of one snapshot the newest value."""
        return {self.position(step): value for step, value in sorted(curve.items())}

    def reached(self, threshold: float) -> int | None:
        """The agent steps of the first snapshot whose score was at the threshold, or above."""
        return next((self.position(step) for step, score in sorted(self.scores.items()) if score >= threshold), None)

    def seconds_at(self, agent_steps: int) -> float:
        """Seconds of training until this many agent steps, between those that were logged; NaN where none were."""
        if not self.seconds:
            return math.nan
        logged = {self.planned.span[0]: 0.0, **self.seconds}
        steps = sorted(logged)
        return float(np.interp(agent_steps, steps, [logged[step] for step in steps]))

    @property
    def own_services(self) -> list[Service]:
        """`services` without updates of the run from which it is forked."""
        if self.planned.point is None:
            return self.services
        begin = self.planned.point.updates + 1
        return [service._replace(first=max(begin, service.first)) for service in self.services if service.last >= begin]

    def mean_age(self, first: int, last: int) -> float | None:
        """How many updates old the targets of these updates were, on average; None where there were no targets.
        Updates of the run from which it is forked are not counted."""
        spans = [span for service in self.own_services if (span := service.mean_age(first, last))[1]]
        return sum(age * count for age, count in spans) / sum(count for _, count in spans) if spans else None


def of_whole_seeds(results: Sequence[Result]) -> list[Result]:
    """Those of the seeds of which all runs are done."""
    unfinished = {result.planned.seed for result in results if result.state != "done"}
    return [result for result in results if result.planned.seed not in unfinished]


def read(experiment: Experiment) -> Iterator[Result]:
    """Every run of an experiment, started or not; for a damaged one, only that it is damaged."""
    for state in look(experiment):
        try:
            run = None if state.state == "damaged" else experiment.found(state.planned)
            yield _result(state, run) if run else _nothing(state)
        except (DamagedError, UsageError) as error:  # also where somebody has changed its settings meanwhile
            yield _nothing(state._replace(state="damaged", error=str(error)))


def _nothing(state: State) -> Result:
    nothing: dict[str, Any] = {name: {} for name in _CURVES}
    nothing |= dict.fromkeys(("agent_steps", "updates", "games", "attempts", "stops"), 0)
    return Result(state.planned, state.state, services=[], processor="", code={}, error=state.error, **nothing)


def _result(state: State, run: Run) -> Result:
    # Somebody may have resumed the run for longer: what lies beyond the experiment's steps is not compared. What lies
    # before the point from which it is forked is the same for all.
    begin, end = state.planned.span
    end += run.settings.env.count
    evaluations = [line for line in learning_curve(run) if begin < line["played_at"]["agent_steps"] <= end]
    logged = [line for line in run.metric_lines() if "agent_steps_per_second" in line and line["agent_steps"] <= end]
    metrics = [line for line in logged if line["agent_steps"] > begin]
    if run.settings.workers.count:
        evaluations, metrics = _when_due(run, evaluations, metrics, state.planned.settings.train.steps)
    events = [e for e in run.ledger.events() if not isinstance(e, Restore) or e.counters.agent_steps <= end]
    newest = logged[-1] if logged else {"agent_steps": 0, "updates": 0}
    comparable = not run.settings.train.rescale_r  # or Q values are in other units than rewards
    every = run.ledger.with_abandoned()
    own = every[max((i for i, (event, _) in enumerate(every) if isinstance(event, Fork)), default=0) :]
    return Result(
        planned=state.planned,
        state=state.state,
        agent_steps=newest["agent_steps"],
        updates=newest["updates"],
        scores=_by_step(evaluations, lambda line: line["returns"]),
        made={line["played_at"]["agent_steps"]: line["agent_steps"] for line in evaluations},
        evaluated={line["played_at"]["agent_steps"]: line["updates"] for line in evaluations},
        games=max((len(line["returns"]) for line in evaluations), default=0),
        expected=_by_step(evaluations, lambda line: line.get("q_start", ()) if comparable else ()),
        realised=_by_step(evaluations, lambda line: line.get("discounted", ()) if comparable else ()),
        depths=_depths(evaluations),
        truncated=_by_step(evaluations, lambda line: line.get("truncated", ()) if comparable else ()),
        seconds=_seconds(metrics),
        train_return=_telemetry(metrics, "train_return"),
        q_distance=_telemetry(metrics, "target/q_distance"),
        agreement=_telemetry(metrics, "target/greedy_agreement"),
        services=list(_services(run, events, newest["updates"])),
        attempts=max(1, sum(isinstance(event, Start) for event, _ in own)),
        stops=_stops(own, state.planned.settings.train.steps),
        processor=_processors(run, [event for event, _ in own if isinstance(event, Start)]),
        code={**code.packages(run), **code.of(run, since_fork=True)},
        error=state.error,
    )


def _processors(run: Run, starts: Sequence[Start]) -> str:
    began = run.description["cpu"]
    recorded = [start.processor or began for start in starts] or [began]
    return " and ".join(dict.fromkeys(Cpu.of(one).words() for one in recorded))


def _when_due(
    run: Run, evaluations: Sequence[dict[str, Any]], metrics: Sequence[dict[str, Any]], end: int
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The lines of a run with workers, under the agent steps at which they were due; of several the newest.

    Its chief looks five times a second, and workers go on while games are played: no two such runs would have an agent
    step in common, and curves are drawn through those that all runs have.
    """

    def due(steps: int, every: int) -> int:
        return end if steps >= end else steps - steps % every

    by_step = {due(line["played_at"]["agent_steps"], run.settings.evaluate.every_steps): line for line in evaluations}
    played = [{**line, "played_at": {**line["played_at"], "agent_steps": step}} for step, line in by_step.items()]
    every = run.settings.log.every_steps
    return played, [{**line, "agent_steps": due(line["agent_steps"], every)} for line in metrics]


def _stops(events: Sequence[tuple[Event, bool]], end: int) -> int:
    """How often it ended unfinished right after a resume point that holds, of fewer than `end` agent steps."""
    acts = [(event, holds) for event, holds in events if not isinstance(event, Pin | Prune)]
    return sum(
        isinstance(point, Point) and holds and point.counters.agent_steps < end
        for (point, holds), (event, _) in itertools.pairwise(acts)
        if isinstance(event, End) and event.state != "finished"
    )


def _by_step(lines: Iterable[Mapping[str, Any]], values: Any) -> Curve:
    """The mean of some numbers of the evaluations made at each agent step; see `_at_each_step`."""
    return {step: fmean(numbers) for step, numbers in _at_each_step(lines, values).items()}


def _at_each_step(lines: Iterable[Mapping[str, Any]], values: Any) -> dict[int, list[float]]:
    """Some numbers of the evaluations made at each agent step; none where one of them is not known, or not finite."""
    found: dict[int, list[float]] = {}
    for line in lines:
        found.setdefault(line["played_at"]["agent_steps"], []).extend(values(line))
    return {step: numbers for step, numbers in sorted(found.items()) if numbers and None not in numbers}


def _depths(lines: Iterable[Mapping[str, Any]]) -> dict[int, tuple[float, ...]]:
    """The depths of the snapshots evaluated at each agent step; none where one of them is not known."""
    return {step: tuple(of) for step, of in _at_each_step(lines, lambda line: [line.get("depth_agent_steps")]).items()}


def _seconds(metrics: Sequence[Mapping[str, Any]]) -> Curve:
    total, found = 0.0, {}
    for line in metrics:
        total += line["seconds"]
        found[line["agent_steps"]] = total
    return found


def _telemetry(metrics: Iterable[Mapping[str, Any]], name: str) -> Curve:
    """A number by agent steps; of two learners, the second's is called `name/b`, and the mean counts."""
    found = {}
    for line in metrics:
        values = [line[key] for key in line if key == name or key.startswith(f"{name}/")]
        if values and None not in values:
            found[line["agent_steps"]] = fmean(values)
    return found


def _services(run: Run, events: Sequence[Event], updates: int) -> Iterator[Service]:
    # An import was committed after no number of this run's updates.
    committed = {e.snapshot: e.updates for e in events if isinstance(e, Commit) and e.lineage != IMPORT}
    if not run.settings.train.target_q:
        return
    for learner in turns.Turns(run.settings).learners:
        swaps = target_swaps(events, learner=learner)
        for swap, after in itertools.zip_longest(swaps, swaps[1:]):  # a run that has just been made has none yet
            last = after.first_update - 1 if after else updates
            if last >= swap.first_update and committed.keys() >= set(swap.snapshots):
                sources = tuple(committed[snapshot] for snapshot in swap.snapshots)
                yield Service(swap.first_update, last, sources, learner, by_hand=swap.policy in (BY_HAND, UNDO))
