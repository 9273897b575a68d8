"""What `twin-graph prune` does: retention by hand, of a run that is not training."""

from __future__ import annotations

import contextlib
import itertools
from typing import TYPE_CHECKING, NamedTuple

from twin_graph.config import trust
from twin_graph.config.loading import change
from twin_graph.errors import InUseError, UsageError
from twin_graph.snapshots.points import descent
from twin_graph.snapshots.resumable import newest_point
from twin_graph.targets.policies import roles
from twin_graph.targets.retention import kept_anyway, kept_to_resume, removable, with_weights

if TYPE_CHECKING:
    from twin_graph.config.settings import Settings
    from twin_graph.snapshots.ledger import Commit
    from twin_graph.snapshots.points import PointState
    from twin_graph.snapshots.run import Run


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
    trust.check_all(settings, run.folder)
    with contextlib.nullcontext() if dry_run else run.lock("prune"):
        oldest, *_ = _points(run, keep_points, dry_run=dry_run)
        store = run.store()
        present = {snapshot.id: snapshot for snapshot in with_weights(store)}

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
    kept = kept_anyway(run, store, settings.save)
    rest = [snapshot for snapshot in with_weights(store) if snapshot.id not in kept]
    by_newest, by_oldest = (kept_to_resume(run, store, point, roles(settings)) for point in (newest, points[0]))
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
