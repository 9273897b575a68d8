"""Which snapshots' weight files may be removed."""

from __future__ import annotations

import itertools
import sys
from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING

from twin_graph.config.turns import Turns
from twin_graph.snapshots import control
from twin_graph.snapshots.ledger import BY_REQUEST, OF_AN_IMPORT, Commit, Restore, is_import
from twin_graph.targets.evaluations import matches
from twin_graph.targets.policies import History, SnapshotPolicy, choice_stream

if TYPE_CHECKING:
    from twin_graph.config.settings import SaveSettings
    from twin_graph.snapshots.points import PointState
    from twin_graph.snapshots.run import Run
    from twin_graph.snapshots.store import SnapshotStore


def removable(
    run: Run, store: SnapshotStore, oldest: PointState, policies: Mapping[str, SnapshotPolicy], save: SaveSettings
) -> list[str]:
    """Ids of the snapshots whose weights are no longer needed.

    Kept are each learner's newest `save.keep_last`, each `save.keep_every`-th, all that is pinned or best, those of
    other runs that were restored, and all that a run resumed from the oldest resume point could want: the newest then,
    its target and its opponent, what their policies could choose, what was committed later, and what people asked for.

    Args:
      run, store: just read.
      oldest: the oldest resume point that is kept.
      policies: by role.
      save: the retention settings.
    """
    kept = kept_anyway(run, store, save) | kept_to_resume(run, store, oldest, policies)
    return [snapshot.id for snapshot in with_weights(store) if snapshot.id not in kept]


def with_weights(store: SnapshotStore) -> list[Commit]:
    """Those that retention may be about, abandoned ones and those of other runs too."""
    arrived = [snapshot for snapshot in store.imports if snapshot.arrived_from]
    return [s for s in [*store.available, *arrived, *store.abandoned] if store.has_weights(s.id)]


def kept_anyway(run: Run, store: SnapshotStore, save: SaveSettings) -> set[str]:
    """Ids of what is kept whatever resume points there are."""
    kept = set(store.pins) | {request.snapshot for request in control.pending(run.control)}
    kept |= _newest_of_each(store, save.keep_last)
    if save.keep_every:
        kept |= _every(store, save.keep_every)
    if best := store.best(run.scores()):
        kept.add(best.id)
    kept |= {snapshot.id for snapshot in store.league(sys.maxsize)}
    for swap, _ in run.ledger.with_abandoned(Restore, text=OF_AN_IMPORT):  # which nobody here can train again
        kept.update(filter(is_import, swap.snapshots))
    for swap, holds in run.ledger.with_abandoned(Restore, text=BY_REQUEST):
        if not holds:  # it is repeated when the run gets there
            kept.update(swap.snapshots)
        kept.update(swap.previous)  # `swap --undo` may want these
    return kept


def kept_to_resume(
    run: Run, store: SnapshotStore, point: PointState, policies: Mapping[str, SnapshotPolicy]
) -> set[str]:
    """Ids of what a run resumed from this point could want."""
    then = point.counters.updates
    beyond = run.ledger.beyond(point.known_bytes[run.ledger.path.name])
    later = {event.id for event in beyond if isinstance(event, Commit)}
    kept = later.union(*(event.snapshots for event in beyond if isinstance(event, Restore)), point.snapshots)
    kept |= {s.id for s in store.imports if s.arrived_from and s.counters.agent_steps >= point.counters.agent_steps}
    evaluations = [line for line in run.evaluation_lines() if line["scheduled"]]
    played = matches(line for line in evaluations if line["played_at"]["updates"] <= then)
    turns = Turns(run.settings)
    for learner in turns.learners:
        history = History.of(store, turns.source(learner), point.counters, played)
        known = [snapshot for snapshot in history.snapshots if snapshot.id not in later]
        mine = (s for s in reversed(store.snapshots) if s.learner == learner and s.id not in later)
        kept |= {snapshot.id for snapshot in itertools.islice(mine, 1)}  # an evaluation that is due there plays it
        for role, policy in policies.items() if known else ():
            choice = policy.choose(
                history._replace(snapshots=known), choice_stream(run.settings.seed, role, learner, then)
            )
            kept |= {snapshot.id for snapshot in choice.candidates}
    return kept


def _newest_of_each(store: SnapshotStore, count: int) -> set[str]:
    """The newest snapshots of each learner."""
    left = {(snapshot.lineage, snapshot.learner): count for snapshot in store.available}
    newest: set[str] = set()
    for snapshot in reversed(store.snapshots):
        if not any(left.values()):
            break
        whose = snapshot.lineage, snapshot.learner
        if left.get(whose):
            left[whose] -= 1
            newest.add(snapshot.id)
    return newest


def _every(store: SnapshotStore, period: int) -> set[str]:
    """The first of each learner's snapshots, and every `period`-th after it."""
    made: Counter[tuple[str, str]] = Counter()
    found: set[str] = set()
    for snapshot in store.snapshots:
        whose = snapshot.lineage, snapshot.learner
        if made[whose] % period == 0:
            found.add(snapshot.id)
        made[whose] += 1
    return found
