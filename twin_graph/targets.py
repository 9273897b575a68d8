"""Target policies: pure functions of the committed snapshots that choose which one the target twin restores."""

from collections.abc import Sequence

from twin_graph.snapshots.store import Manifest


def latest(snapshots: Sequence[Manifest]) -> Manifest:
    """The newest snapshot: the periodic copy of Mnih et al. 2015, by way of the disk."""
    return snapshots[-1]


POLICIES = {"latest": latest}
