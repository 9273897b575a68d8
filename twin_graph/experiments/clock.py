"""What snapshots can expect according to the ledger alone, against what they do expect: the ledger's clock.

The prediction has no parameter that is fitted: see `twin_graph.records.depth`. Where every step is worth the same, it
follows from the depth; elsewhere it is what the evaluation's games gave in as many steps as the snapshot's depth.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from statistics import fmean
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from twin_graph.records.depth import value_of

if TYPE_CHECKING:
    from twin_graph.experiments.plan import PlannedRun
    from twin_graph.experiments.results import Curve, Result

#: Reward of each step, by environment, where it is always the same.
_STEP_REWARDS = {"CartPole-v1": 1.0}


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
    return float(np.median([service.last - service.first + 1 for service in run.own_services] or [0]))


def step_reward(planned: PlannedRun) -> float | None:
    """Reward of each step, where it is always the same and known; arguments of an environment may change it."""
    return None if planned.settings.env.kwargs else _STEP_REWARDS.get(planned.task)


def predicted(run: Result) -> Curve:
    """What the snapshot of each evaluation can expect of a game; empty if the records do not say.

    An untrained network expects about nothing, but with `model.head=categorical` the middle of the support. Of that,
    what lies beyond the depth is left, and nothing outside of the support is ever expected.
    """
    settings = run.planned.settings
    if settings.train.munchausen:  # it expects more than rewards: bonuses, and an entropy
        return {}
    reward, discount = step_reward(run.planned), settings.train.discount
    lowest, highest = settings.model.support if settings.model.head == "categorical" else (-math.inf, math.inf)
    untrained = (lowest + highest) / 2 if math.isfinite(highest) else 0.0
    if reward is None:
        return {} if untrained else {step: min(max(v, lowest), highest) for step, v in run.truncated.items()}

    def value(depth: float) -> float:
        expected: float = reward * value_of(depth, discount) + discount**depth * untrained
        return min(max(expected, lowest), highest)

    return {step: fmean(map(value, of)) for step, of in run.depths.items()}


def words(found: Fit) -> str:
    """For people."""
    if not found.evaluations:
        return "The records do not say"
    numbers = f"r = {found.correlation:z.4f}, mean error {found.error:.2f}, mean excess {found.bias:z.2f}"
    return f"{numbers}, over {found.evaluations:,} evaluations"
