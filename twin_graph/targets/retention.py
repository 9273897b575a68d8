"""Which snapshots' weight files may be removed."""

from __future__ import annotations

import contextlib
import itertools
from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

from twin_graph.config.loading import change
from twin_graph.config.turns import Turns
from twin_graph.errors import InUseError, UsageError
from twin_graph.snapshots import control
from twin_graph.snapshots.ledger import BY_REQUEST, Commit, Restore
from twin_graph.snapshots.resumable import descent, newest_point
from twin_graph.targets.evaluations import matches
from twin_graph.targets.policies import History, SnapshotPolicy, choice_stream, roles

if TYPE_CHECKING:
    from twin_graph.config.settings import SaveSettings, Settings
    from twin_graph.snapshots.points import PointState
    from twin_graph.snapshots.run import Run
    from twin_graph.snapshots.store import SnapshotStore


def removable(
    run: Run, store: SnapshotStore, oldest: PointState, policies: Mapping[str, SnapshotPolicy], save: SaveSettings
) -> list[str]:
    """Ids of the snapshots whose weights are no longer needed.

    Kept are each learner's newest `save.keep_last`, each `save.keep_every`-th, all that is pinned or best, and all
    that a run resumed from the oldest resume point could want: the newest then, its target and its opponent, what their
    policies could choose, what was committed later, and what people asked for.

    Args:
      run, store: just read.
      oldest: the oldest resume point that is kept.
      policies: by role.
      save: the retention settings.
    """
    kept = _kept_anyway(run, store, save) | _kept_to_resume(run, store, oldest, policies)
    return [snapshot.id for snapshot in _with_weights(store) if snapshot.id not in kept]


def _with_weights(store: SnapshotStore) -> list[Commit]:
    """Those that retention may be about, abandoned ones too."""
    return [s for s in [*store.available, *store.abandoned] if store.has_weights(s.id)]


def _kept_anyway(run: Run, store: SnapshotStore, save: SaveSettings) -> set[str]:
    """Ids of what is kept whatever resume points there are."""
    kept = set(store.pins) | {request.snapshot for request in control.pending(run.control)}
    kept |= _newest_of_each(store, save.keep_last)
    if save.keep_every:
        kept |= _every(store, save.keep_every)
    if best := store.best(run.scores()):
        kept.add(best.id)
    for swap, holds in run.ledger.with_abandoned(Restore, text=BY_REQUEST):
        if not holds:  # it is repeated when the run gets there
            kept.update(swap.snapshots)
        kept.update(swap.previous)  # `swap --undo` may want these
    return kept


def _kept_to_resume(
    run: Run, store: SnapshotStore, point: PointState, policies: Mapping[str, SnapshotPolicy]
) -> set[str]:
    """Ids of what a run resumed from this point could want."""
    then = point.counters.updates
    beyond = run.ledger.beyond(point.known_bytes[run.ledger.path.name])
    later = {event.id for event in beyond if isinstance(event, Commit)}
    kept = later.union(*(event.snapshots for event in beyond if isinstance(event, Restore)), point.snapshots)
    evaluations = [line for line in run.evaluation_lines() if line["scheduled"]]
    played = matches(line for line in evaluations if line["played_at"]["updates"] <= then)
    turns = Turns(run.settings)
    for learner in turns.learners:
        history = History.of(store, turns.source(learner), then, played)
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


class Held(NamedTuple):
    """Snapshots that nothing but resume points keeps from being removed.

    Attributes:
      newest: the number of the newest point; `by_newest`: what it holds, as it must for the run to resume.
      older: numbers of the points before it, oldest first; `by_older`: what they hold beyond that.
    """

    newest: int
    by_newest: list[Commit]
    older: list[int]
    by_older: list[Commit]


def prune(
    run: Run, *, keep_last: int | None, keep_every: int | None, keep_points: int | None = None, dry_run: bool
) -> list[Commit]:
    """Applies retention to a run that is not training.

    Args:
      run: its settings do not change.
      keep_last, keep_every: instead of the run's settings.
      keep_points: first give up all resume points but so many of the newest; None for none.
      dry_run: remove nothing; the run may then be training.

    Returns:
      The snapshots whose weights were, or would be, removed.

    Raises:
      InUseError: it is training, which prunes by itself, or somebody is reading it.
      UsageError: it has no resume point, or a newer one than those to be kept is damaged.
    """
    settings = _with_retention(run, keep_last, keep_every)
    with contextlib.nullcontext() if dry_run else run.lock("prune"):
        oldest, *_ = _points(run, keep_points, dry_run=dry_run)
        store = run.store()
        present = {snapshot.id: snapshot for snapshot in [*store.available, *store.abandoned]}

        def choose() -> list[str]:
            return removable(run, store, oldest, roles(settings), settings.save)

        if dry_run:
            return [present[i] for i in choose()]
        try:
            removed = store.remove_weights(choose, attempt=oldest.attempt, look_again=True)
        except BlockingIOError:
            raise InUseError(f"{run.folder} is being read, and nothing was removed; try again") from None
        return [present[i] for i in removed]


def held_by_points(run: Run, *, keep_last: int | None, keep_every: int | None, keep_points: int | None = None) -> Held:
    """What keeps its weights for the sake of resume points alone; arguments as of a `prune` that removes nothing."""
    settings, store = _with_retention(run, keep_last, keep_every), run.store()
    *older, newest = points = _points(run, keep_points, dry_run=True)
    kept = _kept_anyway(run, store, settings.save)
    rest = [snapshot for snapshot in _with_weights(store) if snapshot.id not in kept]
    by_newest, by_oldest = (_kept_to_resume(run, store, point, roles(settings)) for point in (newest, points[0]))
    return Held(
        newest.number,
        [snapshot for snapshot in rest if snapshot.id in by_newest],
        [point.number for point in older],
        [snapshot for snapshot in rest if snapshot.id in by_oldest - by_newest],
    )


def _with_retention(run: Run, keep_last: int | None, keep_every: int | None) -> Settings:
    """The settings of a run, but for what is given."""
    changes = {"save.keep_last": keep_last, "save.keep_every": keep_every}
    return change(run.settings, [(key, value) for key, value in changes.items() if value is not None])


def _points(run: Run, count: int | None, *, dry_run: bool) -> list[PointState]:
    """The resume points that can be read, oldest first, once all but the newest `count` are removed."""
    points = run.points()
    oldest = oldest_readable(run)
    every = [state for folder in points.folders() if (state := points.readable(int(folder.name)))]
    if count is not None:
        found = newest_point(run)
        if found.damage:
            raise UsageError(f"{found.damage[0]}, so no older resume point is given up")
        # Runs of older versions have no points in the ledger: those come by their numbers.
        chain = {state.number: state for state in [*descent(run, found.point), *reversed(every)]}
        kept = list(itertools.islice(chain.values(), count))
        if dry_run:
            return kept[::-1]
        oldest = points.retain(kept, count)
    return [state for state in every if state.number >= oldest.number]


def oldest_readable(run: Run) -> PointState:
    """The oldest resume point of a run that can be read. Raises `UsageError` if there is none."""
    if point := run.points().oldest():
        return point
    raise UsageError(f"{run.folder} has no resume point that can be read")
