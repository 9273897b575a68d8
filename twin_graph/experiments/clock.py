"""What snapshots can expect according to the ledger alone, against what they do expect: the ledger's clock.

The prediction has no parameter that is fitted: see `twin_graph.snapshots.depth`. Where every step is worth the same, it
follows from the depth; elsewhere it is what the evaluation's games gave in as many steps as the snapshot's depth.
"""

import math
from collections.abc import Iterable, Sequence
from statistics import fmean
from typing import NamedTuple

import numpy as np

from twin_graph import mutual
from twin_graph.experiments.results import Curve, Result, Service
from twin_graph.settings import Settings
from twin_graph.snapshots.depth import combined_by, learnt_from, value_of

#: Reward of each step, by environment, where it is always the same.
STEP_REWARDS = {"CartPole-v1": 1.0}


class Fit(NamedTuple):
    """How well predictions agree with what was observed.

    Attributes:
      evaluations: how many.
      correlation: Pearson's; NaN of fewer than three.
      error: mean absolute difference.
      bias: mean of observed minus predicted.
    """

    evaluations: int
    correlation: float
    error: float
    bias: float


def fit(pairs: Iterable[tuple[float, float]]) -> Fit:
    """How well predictions fit, from pairs (predicted, observed)."""
    numbers = list(pairs)
    if not numbers:
        return Fit(0, math.nan, math.nan, math.nan)
    before, seen = np.array(numbers, np.float64).T
    varied = len(numbers) > 2 and before.min() < before.max() and seen.min() < seen.max()
    correlation = float(np.corrcoef(before, seen)[0, 1]) if varied else math.nan
    return Fit(len(numbers), correlation, float(np.abs(seen - before).mean()), float((seen - before).mean()))


def pairs(run: Result) -> list[tuple[float, float]]:
    """(predicted, observed) at each evaluation of a run for which both are known."""
    can = predicted(run)
    return [(can[step], run.expected[step]) for step in run.expected if step in can]


def served(run: Result) -> float:
    """The median number of updates for which a target of a run served; 0 without any."""
    return float(np.median([service.last - service.first + 1 for service in run.services] or [0]))


def predicted(run: Result) -> Curve:
    """What the snapshot of each evaluation can expect of a game; empty if the records do not say."""
    reward, discount = STEP_REWARDS.get(run.planned.task), run.planned.settings.train.discount
    if reward is None:
        return run.truncated
    return {step: reward * fmean(value_of(depth, discount) for depth in of) for step, of in depths(run).items()}


def depths(run: Result) -> dict[int, list[float]]:
    """How many agent steps deep the snapshot of each evaluation is, of two learners both; see
    `twin_graph.snapshots.depth`. Empty where the records do not say.

    Of a fork, the past counts by the settings with which its parent went on from that point.
    """
    settings = run.planned.settings
    learners = mutual.Turns(settings).learners
    recorded = sum(service.last - service.first + 1 for service in run.services)
    if not run.services or settings.store.shared or recorded < run.updates * len(learners):  # a target was imported
        return {}
    several, point = any(len(service.committed) > 1 for service in run.services), run.planned.point
    since = _Learning.by(settings, several)
    before = _Learning.by(point.settings, several) if point else since
    if before is None or since is None:
        return {}
    last = point.updates if point else 0  # of the run from which it is forked
    of = {learner: _Depths(learner, run.services, before, since, last) for learner in learners}
    for name, other in zip(learners, learners[::-1], strict=True):
        of[name].source = of[other]
    for service in sorted(run.services, key=lambda service: service.first):  # in order, or one asks for all before it
        for committed in service.committed:
            of[service.learner].source.of(committed)
    return {step: [of[name].of(updates) for name in learners] for step, updates in run.evaluated.items()}


class _Learning(NamedTuple):
    """What settings say of learning from targets; see `twin_graph.snapshots.depth.learnt_from`."""

    n_steps: Sequence[int]
    discount: float
    combine: str

    @classmethod
    def by(cls, settings: Settings, several: bool) -> "_Learning | None":
        """None if they combine several snapshots as nobody here knows."""
        combine = combined_by(settings.target.policy) if several else "mean"
        return cls(settings.train.return_lengths, settings.train.discount, combine) if combine else None


class _Depths:
    """The depths of a learner's snapshots, by the updates after which they were committed: until update `last`, it
    learnt as `before` says, and then as `since` says."""

    def __init__(
        self, learner: str, services: Sequence[Service], before: _Learning, since: _Learning, last: int
    ) -> None:
        self._services = [service for service in services if service.learner == learner]
        self._before, self._since, self._last = before, since, last
        self._known = {0: 0.0}
        self.source = self

    def of(self, updates: int) -> float:
        served = [service for service in self._services if service.first <= updates]
        if updates not in self._known:
            below = [self.source.of(committed) for committed in served[-1].committed]
            learning = self._before if updates <= self._last else self._since
            self._known[updates] = learnt_from(below, **learning._asdict())
        return self._known[updates]


def words(found: Fit) -> str:
    """For people."""
    if not found.evaluations:
        return "The records do not say"
    numbers = f"r = {found.correlation:.4f}, mean error {found.error:.2f}, mean excess {found.bias:.2f}"
    return f"{numbers}, over {found.evaluations:,} evaluations"
