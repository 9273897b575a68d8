"""The depth of snapshots: how many agent steps ahead their values can reach, from the genealogy in the ledger.

What a network learns from targets of depth d, with n-step returns, has the depth n + d: it has met n rewards itself,
and the rest through the snapshots from which its targets came, and theirs. The untrained network has depth 0. So if
every step is worth 1, as in CartPole, and the network fits its targets, a snapshot expects

    V(snapshot) = (1 - g**n) / (1 - g) + g**n * combine(V(s) for s in the snapshots of its target),    V(untrained) = 0

with the discount g. The depth is the number of steps d that such a sum of rewards has, V = (1 - g**d) / (1 - g); it is
whole unless several targets were averaged. What a snapshot expects beyond the return of so many steps is overestimated.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean
from typing import TYPE_CHECKING

from twin_graph.errors import UsageError
from twin_graph.snapshots.ledger import Commit, Follower, Restore, Start

if TYPE_CHECKING:
    from twin_graph.snapshots.run import Run


def value_of(depth: float, discount: float) -> float:
    """The value of so many agent steps with a reward of 1 each."""
    return depth if discount == 1 else (1 - discount**depth) / (1 - discount)


def mean_depth(depths: Sequence[float], discount: float) -> float:
    """The depth whose value is the average of these depths' values."""
    least = min(depths)
    if discount == 1:
        return fmean(depths)
    if discount == 0:
        return least
    # Powers of the differences alone: those of great depths themselves are nothing beside 1, and have no logarithm.
    return least + math.log(fmean(discount ** (depth - least) for depth in depths)) / math.log(discount)


def learnt_from(depths: Sequence[float], *, n_steps: Sequence[int], discount: float, combine: str) -> float:
    """The depth that learning from targets of these depths gives.

    Args:
      depths: of the target's snapshots; several in an ensemble.
      n_steps: of the returns; several where their lengths differ, each as often.
      discount: per agent step.
      combine: how several snapshots become one: `min`, or `mean`, to which `weights` comes close.
    """
    target = min(depths) if combine == "min" else mean_depth(depths, discount)
    return target + mean_depth(n_steps, discount)


class Depths:
    """The depths of a run's snapshots, in agent steps.

    None of what has another past: imports, and what was learnt from them; of what was learnt from an ensemble whose
    policy is not here; and all of a run without a target.
    """

    def __init__(self, run: Run) -> None:
        self._run = run
        self._followed: Follower[Start | Commit | Restore] = Follower(run.ledger, Start, Commit, Restore)
        self._forget()

    def _forget(self) -> None:
        self._snapshots: dict[str, float | None] = {}
        self._online: dict[str, float | None] = {}  # by learner
        self._targets: dict[str, Restore] = {}  # by learner, what its target was last restored from
        self._learning: dict[str, tuple[int, float | None]] = {}  # the depth it has from an update on

    def catch_up(self) -> None:
        """Sees what the ledger has recorded since."""
        is_anew, events = self._followed.new()
        if is_anew:
            self._forget()
        for event, holds in events:
            if not holds:
                continue
            if isinstance(event, Start):
                self._see_start(event)
            elif isinstance(event, Restore):
                if not event.worker:  # a worker's own target follows that of the run
                    self._see_swap(event)
            elif isinstance(event, Commit) and event.number is not None:
                self._snapshots[event.id] = self._now(event.learner, event.updates)

    def of(self, snapshot: str) -> float | None:
        """The depth of a snapshot."""
        return self._snapshots.get(snapshot)

    def of_targets(self, learner: str) -> float | None:
        """The depth of what a learner learns from its present target."""
        return self._learning.get(learner, (0, None))[1]

    def _now(self, learner: str, updates: int) -> float | None:
        first, depth = self._learning.get(learner, (1, 0.0))
        return depth if updates >= first else self._online.get(learner, 0.0)

    def _see_start(self, start: Start) -> None:
        if start.counters:  # resumed, maybe with other settings, by which it learns from the targets that it has
            for learner in self._targets:
                self._learn(learner, start.counters.updates + 1, start.attempt)

    def _see_swap(self, swap: Restore) -> None:
        if swap.into == "opponent":  # an opponent supplies no target values
            return
        if swap.into == "target":
            self._targets[swap.learner] = swap
        self._learn(swap.learner, swap.first_update, swap.attempt)
        if swap.into == "online":
            self._online[swap.learner] = self.of(swap.snapshots[0])

    def _learn(self, learner: str, first_update: int, attempt: int) -> None:
        self._online[learner] = self._now(learner, first_update - 1)
        self._learning[learner] = first_update, self._learnt_from(self._targets.get(learner), attempt)

    def _learnt_from(self, target: Restore | None, attempt: int) -> float | None:
        settings, snapshots = self._run.settings_of(attempt), target.snapshots if target else ()
        train = settings.train
        known = [depth for name in snapshots if (depth := self.of(name)) is not None]
        if target is None or not known or len(known) < len(snapshots) or not train.target_q:
            return None
        combine = combined_by(target, settings.target.policy) if len(known) > 1 else "mean"
        if combine is None:
            return None
        return learnt_from(known, n_steps=train.return_lengths, discount=train.discount, combine=combine)


def combined_by(target: Restore, policy: str) -> str | None:
    """How several snapshots became one; None of a user's own policy in runs of earlier versions."""
    if target.combine or ":" in policy:
        return target.combine or None
    from twin_graph.targets.policies import parse  # NumPy: commands that read records need not wait for it

    try:
        return parse(policy).combine
    except UsageError:  # one that this version does not have
        return None
