"""A target policy of your own: among the last snapshots, the one that promises least.

    PYTHONPATH=examples twin-graph train cartpole --set target.policy='own_policy:modest(8)'
    PYTHONPATH=examples twin-graph experiment run studies/own-policy.toml

Q-learning overestimates, since it takes the largest of several noisy values. This policy looks at the largest |Q| that
each of the last snapshots has on the run's held-out observations, and takes the snapshot where it is smallest. That is
modest where rewards are not negative, as in CartPole; where they are, the smallest |Q| may promise the most.
"""

import math

import numpy as np

from twin_graph.snapshots.ledger import Commit
from twin_graph.targets import Choice, Count, History


def modest(history: History, random: np.random.Generator, size: Count) -> Choice:  # noqa: ARG001
    """Of the last `size` snapshots the one with the smallest |Q|.

    It looks at nothing but its arguments, so that a resumed training chooses the same again. The candidates are all
    that it could still choose later: that is what retention keeps.
    """
    last = history.snapshots[-size:]
    chosen = min(last, key=_largest_q)
    return Choice([chosen], last, f"the smallest |Q| of the last {len(last)}: up to {_largest_q(chosen):.3g}")


def _largest_q(snapshot: Commit) -> float:
    if snapshot.health is None:  # committed before there were any
        return 0.0
    return math.inf if snapshot.health.q_abs_max is None else snapshot.health.q_abs_max
