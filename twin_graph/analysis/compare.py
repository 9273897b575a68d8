"""Two runs side by side: where they diverge, and how far apart they are from then on."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from twin_graph import config
from twin_graph.agent.held_out import greedy_agreement, q_distance
from twin_graph.base import doing, machine
from twin_graph.errors import DamagedError, UsageError
from twin_graph.evaluation.player import spec_of
from twin_graph.records import code
from twin_graph.snapshots.forms import MetricsLine, problem
from twin_graph.snapshots.ledger import ONLY_LEARNER, Commit, Counters, Fork, Point, Restore
from twin_graph.snapshots.lines import learning_curve
from twin_graph.snapshots.points import HELD_OUT
from twin_graph.snapshots.run import VERSIONED
from twin_graph.twin.twin import Compute, Twin
from twin_graph.twin.weights import distance, flat

if TYPE_CHECKING:
    from twin_graph.records.code import Code
    from twin_graph.snapshots.run import Run

_PAIRS = 50


class Parting(NamedTuple):
    """The first thing that two runs did differently.

    Attributes:
      updates: made when it was recorded; for a target swap, those before it was used.
      what: in words.
      first, second: what each run did; None where it did nothing of the kind.
    """

    updates: int
    what: str
    first: str | None
    second: str | None


class Pair(NamedTuple):
    """Two snapshots after equally many updates.

    Attributes:
      updates, agent_steps: when they were committed; steps of the first run.
      learner: whose, in both runs.
      first, second: their ids.
      weight_distance: root of the summed squared differences of their weights; None of different networks.
      relative: that by the norm of the first one's weights.
      q_distance: mean |Q - Q'| on the observations; None without any, or with other actions.
      agreement: share of the observations on which both prefer the same action.
    """

    updates: int
    agent_steps: int
    learner: str
    first: str
    second: str
    weight_distance: float | None
    relative: float | None
    q_distance: float | None
    agreement: float | None


class Score(NamedTuple):
    """A scheduled evaluation of a learner's newest snapshot: when that was committed, mean return, and its 95%
    interval, NaN of one game."""

    updates: int
    agent_steps: int
    learner: str
    snapshot: str
    mean: float
    low: float
    high: float


class Comparison(NamedTuple):
    """What `compare` found.

    Attributes:
      settings: name and both values of each setting that differs, where the runs part or now.
      machines: what differs, and both in words, of processors and versions, as far as that is recorded.
      recorded: what was compared of these, for people.
      code: users' modules of either run; see `twin_graph.records.code`.
      equal: updates up to which everything that both have recorded is equal.
      parted: the first thing that is not; None where there is none.
      pairs: snapshots since, oldest first.
      scores: of either run.
    """

    settings: list[tuple[str, Any, Any]]
    machines: list[tuple[str, str, str]]
    recorded: str
    code: tuple[Code, Code]
    equal: int
    parted: Parting | None
    pairs: list[Pair]
    scores: tuple[list[Score], list[Score]]


def compare(first: Run, second: Run) -> Comparison:
    """Compares the records of two runs, and the weights and Q values of snapshots that both still have.

    Q values are those on the fixed observations of the first run, or of the second if the first has none.

    Raises:
      UsageError: they play different environments.
      DamagedError: a record or a snapshot is not what was written.
    """
    ids = first.settings.env.id, second.settings.env.id
    if ids[0] != ids[1]:
        raise UsageError(f"{first.folder} plays {ids[0]} and {second.folder} {ids[1]}: there is nothing to compare")
    marks = _marks(first), _marks(second)
    equal, parted = _parting(*marks)
    since = parted.updates if parted else equal
    scores = list(_scores(first)), list(_scores(second))
    settings = {name: (name, *values) for name, *values in config.differences(first.settings, second.settings)}
    if parted:  # either run may have been resumed with others since
        ours, theirs = (run.settings_of(run.ledger.attempt_of(max(0, parted.updates - 1))) for run in (first, second))
        settings |= {name: (name, *values) for name, *values in config.differences(ours, theirs)}
    machines = list(dict.fromkeys(_machines(first, second)))
    recorded = f"{machine.known_words(*first.processors(), *second.processors())}; versions of {', '.join(VERSIONED)}"
    pairs = list(_pairs(first, second, since))
    codes = code.of(first), code.of(second)
    return Comparison(list(settings.values()), machines, recorded, codes, equal, parted, pairs, scores)


def _machines(first: Run, second: Run) -> Iterator[tuple[str, str, str]]:
    """How the processors of two runs differ, and the versions of packages with which they began."""
    for ours, theirs in itertools.product(first.processors(), second.processors()):
        yield from machine.differences(ours, theirs)
    versions = [run.description["versions"] for run in (first, second)]
    for name in VERSIONED:
        before, after = (str(version.get(name, "absent")) for version in versions)
        if before != after:
            yield name, before, after


#: What a run did, by place: (updates, order, which) -> (how people call it, what it was). Order 0 may be missing.
_Marks = dict[tuple[int, int, str], tuple[str, str]]


def _marks(run: Run) -> _Marks:
    """Everything that a run's records say about its training, in a form in which two runs can be compared."""
    marks: _Marks = {}
    for line in run.metric_lines():
        if not problem(MetricsLine, line) and line.get("loss") is not None:
            counters = Counters(**{name: line[name] for name in Counters.model_fields})
            key = counters.updates, 0, f"{counters.agent_steps}"
            marks[key] = f"the loss logged at {counters.agent_steps:,} agent steps", repr(line["loss"])
    for point in run.ledger.events(Point):
        steps = point.counters.agent_steps
        marks[point.counters.updates, 0, f"{steps} point"] = (
            f"the resume point at {steps:,} agent steps",
            point.weights_sha256,
        )
    for fork in run.ledger.events(Fork):
        if fork.changed:
            steps = fork.counters.agent_steps
            marks[fork.counters.updates, 0, f"{steps} point"] = (
                f"the resume point at {steps:,} agent steps",
                fork.changed,
            )
    for commit in run.store().snapshots:
        marks[commit.updates, 1, commit.learner] = "the snapshot", commit.id
    for number, swap in enumerate(run.ledger.events(Restore)):
        if not swap.worker:
            into = f"{swap.into}{'' if swap.learner == ONLY_LEARNER else f' of learner {swap.learner}'}"
            words = f"what was restored into the {into}"
            marks[swap.first_update - 1, 2, f"{into} {number}"] = words, ", ".join(swap.snapshots)
    return marks


def _parting(first: _Marks, second: _Marks) -> tuple[int, Parting | None]:
    """Updates up to which two runs are equal, and the first thing in which they are not."""
    ends = [max(marks, default=(0, 0, ""))[0] for marks in (first, second)]
    equal = 0
    for key in sorted(first.keys() | second.keys()):
        ours, theirs = first.get(key), second.get(key)
        if ours == theirs:
            equal = key[0]
        elif (ours is None or theirs is None) and key[0] >= min(ends):  # one of them has not come this far
            break
        elif (ours is None or theirs is None) and key[1] == 0:  # they log, or make points, at different steps
            continue
        else:
            words = (ours or theirs or ("",))[0]
            return equal, Parting(key[0], words, ours and ours[1], theirs and theirs[1])
    return equal, None


def _pairs(first: Run, second: Run, since: int) -> Iterator[Pair]:
    """Snapshots of both runs after equally many updates, from where they diverged; a selection, if there are many."""
    stores = first.store(), second.store()
    with stores[0].reading(), stores[1].reading():
        there = [{(c.updates, c.learner): c for c in store.available if c.updates >= since} for store in stores]
        keys = sorted(there[0].keys() & there[1].keys())
        if len(keys) > _PAIRS:
            keys = [keys[i] for i in np.linspace(0, len(keys) - 1, _PAIRS).round().astype(int)]
        if not keys:
            return
        observations = next((seen for run in (first, second) if (seen := _held_out(run)) is not None), None)
        specs = spec_of(first), spec_of(second)
        doing.now("comparing snapshots")
        with (
            Twin("first", specs[0], compute=Compute(threads=1), learns=False) as one,
            Twin("second", specs[1], compute=Compute(threads=1), learns=False) as other,
        ):
            for key in keys:
                snapshots = there[0][key], there[1][key]
                for twin, snapshot, store in zip((one, other), snapshots, stores, strict=True):
                    store.check_files(snapshot.id)
                    twin.restore_snapshot(snapshot, store)
                yield _pair(*snapshots, one, other, observations)


def _pair(first: Commit, second: Commit, one: Twin, other: Twin, observations: np.ndarray | None) -> Pair:
    ours, theirs = one.weights(), other.weights()
    apart = how_far = q_apart = agreement = None
    if {n: w.shape for n, w in ours.items()} == {n: w.shape for n, w in theirs.items()}:
        found = distance("all", flat(ours), flat(theirs))
        apart, how_far = found.distance, found.relative
    if observations is not None and one.spec.env.observation_shape == other.spec.env.observation_shape:
        q, other_q = one.q_values(observations), other.q_values(observations)
        if q.shape == other_q.shape:
            q_apart, agreement = q_distance(q, other_q), greedy_agreement(q, other_q)
    counters = first.counters
    ids = first.id, second.id
    return Pair(counters.updates, counters.agent_steps, first.learner, *ids, apart, how_far, q_apart, agreement)


def _held_out(run: Run) -> np.ndarray | None:
    """The observations on which a run measures its twins, from its newest resume point."""
    points = run.points()
    with points.reading():
        newest = points.newest()
        return points.array(newest, HELD_OUT) if newest else None


def _scores(run: Run) -> Iterator[Score]:
    learners = {commit.id: commit.learner for commit in run.ledger.events(Commit)}
    for line in learning_curve(run):
        low, high = line["interval_95"] or (math.nan, math.nan)
        snapshot = line["snapshot"]
        if snapshot not in learners:
            raise DamagedError(f"{run.ledger.path} is damaged: it lacks the commit of {snapshot}, which was evaluated")
        yield Score(line["updates"], line["agent_steps"], learners[snapshot], snapshot, line["mean"], low, high)
