"""Which snapshots may lose their weight files."""

from twin_graph.config import SaveSettings, change
from twin_graph.errors import UsageError
from twin_graph.snapshots import control
from twin_graph.snapshots.ledger import Swap
from twin_graph.snapshots.points import PointState
from twin_graph.snapshots.run import Run
from twin_graph.snapshots.store import SnapshotStore
from twin_graph.streams import Purpose, stream
from twin_graph.targets import History, Policy, matches, parse


def removable(run: Run, store: SnapshotStore, oldest: PointState, policy: Policy, save: SaveSettings) -> list[str]:
    """Ids of the snapshots whose weights nobody needs.

    Kept are each learner's newest `save.keep_last`, each `save.keep_every`-th, all that is pinned or best, and all
    that a training which goes on from the oldest resume point could want: its target, what its policy could choose,
    what was committed later, and what people asked for.

    Args:
      run, store: just read.
      oldest: the oldest resume point that is kept.
      policy: the target's.
      save: the retention settings.
    """
    kept = set(store.pins) | set(oldest.targets) | {request.snapshot for request in control.pending(run.control)}
    for whose in {(snapshot.lineage, snapshot.learner) for snapshot in store.snapshots}:
        own = [snapshot.id for snapshot in store.snapshots if (snapshot.lineage, snapshot.learner) == whose]
        kept.update(own[-save.keep_last :])
    if save.keep_every:
        kept |= {s.id for s in store.snapshots if s.number is not None and s.number % save.keep_every == 0}
    if best := store.best(run.scores()):
        kept.add(best.id)
    for event, holds in run.ledger.with_abandoned():
        # Those that do not hold are made again when the training comes to them.
        if isinstance(event, Swap) and (not holds or event.first_update > oldest.counters.updates):
            kept.update(event.snapshots if event.request or holds else ())
        if isinstance(event, Swap) and event.request:  # `swap --undo` may want these
            kept.update(event.previous)

    then = oldest.counters.updates
    before = [snapshot for snapshot in store.available if snapshot.updates <= then]
    kept |= {snapshot.id for snapshot in store.available if snapshot.updates > then}
    evaluations = [line for line in run.evaluations() if line["scheduled"]]
    played = matches(line for line in evaluations if line["played_at"]["updates"] <= then)
    for lineage in {snapshot.lineage for snapshot in before}:
        history = History(then, [snapshot for snapshot in before if snapshot.lineage == lineage], played)
        kept |= {s.id for s in policy.choose(history, stream(run.settings.seed, Purpose.TARGET, then)).candidates}
    return [s.id for s in [*store.available, *store.abandoned] if s.id not in kept]


def prune(run: Run, *, keep_last: int | None, keep_every: int | None, dry_run: bool) -> list[str]:
    """Applies retention to a run at rest.

    Args:
      run: its settings stay as they are.
      keep_last, keep_every: instead of the run's settings.
      dry_run: remove nothing.

    Returns:
      The ids of what was, or would be, removed.

    Raises:
      InUseError: it trains; it then prunes by itself.
    """
    changes = {"save.keep_last": keep_last, "save.keep_every": keep_every}
    settings = change(run.settings, [(key, value) for key, value in changes.items() if value is not None])
    with run.lock("prune"):
        point = oldest_point(run)
        store = run.store()

        def choose() -> list[str]:
            return removable(run, store, point, parse(settings.target.policy), settings.save)

        return choose() if dry_run else store.remove_weights(choose, attempt=point.attempt)


def oldest_point(run: Run) -> PointState:
    """The oldest resume point of a run. Raises `UsageError` if there is none, `DamagedError` if it cannot be read."""
    folders = run.points().folders()
    if not folders:
        raise UsageError(f"{run.folder} has no resume point yet")
    return PointState.read(folders[0])
