"""A target policy of your own that restores three snapshots: the newest, the oldest, and the one between.

PYTHONPATH=examples twin-graph train cartpole --set target.policy='own_ensemble:spread(min)'
"""

from typing import Literal

import numpy as np

from twin_graph.targets import Choice, History, needs


@needs(members=3)
def spread(history: History, random: np.random.Generator, combine: Literal["min", "mean"] = "mean") -> Choice:  # noqa: ARG001
    """Three snapshots, as far apart as there are; fewer at the beginning."""
    there = history.snapshots
    chosen = [there[i] for i in sorted({0, len(there) // 2, len(there) - 1})]
    # What retention keeps: which one is between depends on how many there are, so it could be any of them.
    return Choice(chosen, there, f"{len(chosen)} of {len(there)}, spread evenly")
