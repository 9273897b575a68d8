"""What a run's records say, compiled for `status`, `runs`, `log`, `show` and `explain`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from twin_graph import config
from twin_graph.base import machine
from twin_graph.base.text import counted
from twin_graph.config import lookup, no_effect, turns
from twin_graph.errors import DamagedError, UsageError
from twin_graph.records import code
from twin_graph.records.depth import Depths
from twin_graph.records.told import (
    Damaged,
    Entry,
    Explained,
    ExplainedStep,
    NewestPoint,
    Opponent,
    OpponentThen,
    Score,
    Scores,
    Served,
    Shown,
    Status,
    Target,
    Waiting,
)
from twin_graph.snapshots import control
from twin_graph.snapshots import workers as worker_records
from twin_graph.snapshots.ledger import IMPORT, Commit, Counters, Fork, Point, Restore, Start, is_import, is_target_of
from twin_graph.snapshots.run import Run, folders_of_runs

if TYPE_CHECKING:
    from twin_graph.snapshots.points import PointState
    from twin_graph.snapshots.store import SnapshotStore

_NONE = Counters.zero()


def status(run: Run) -> Status:
    """State, counters, targets and scores of a run."""
    store, scores = run.store(), run.scores()
    counters, metrics, point, targets, opponent = _now(run, store)
    (state, reason), has_target = run.outcome(), run.settings.train.target_q
    latest = next((snapshot for snapshot in reversed(store.snapshots) if snapshot.id in scores), None)
    numbers = {name: value for name, value in metrics.items() if isinstance(value, int | float | None)}
    return Status(
        run=run.name,
        state=state,
        reason=reason,
        attempt=max(1, run.ledger.attempt),
        forked_from=run.description.get("forked_from"),
        environment=run.settings.env.id,
        total_steps=run.settings.total_steps,
        **counters.model_dump(),
        targets=[target for swap in targets for target in _targets(swap, counters.updates)] if has_target else [],
        opponent=_opponent(opponent, counters) if opponent else None,
        telemetry={name: value for name, value in numbers.items() if has_target and name.startswith("target/")},
        refresh_milliseconds=numbers.get("milliseconds/refresh"),
        workers=list(worker_records.statuses(run.folder, run.ledger.attempt)),
        snapshots=len(store.snapshots),
        snapshots_with_weights=len(store.available),
        resume_point=NewestPoint(point.number, **point.counters.model_dump()) if point else None,
        requests=[
            Waiting(**one.model_dump(include={"kind", "snapshot", "into", "learner", "hold"}), words=one.words())
            for one in control.pending(run.control)
        ],
        agent_steps_per_second=numbers.get("agent_steps_per_second"),
        scores=Scores(*(Score(one.id, scores[one.id]) if one else None for one in (latest, store.best(scores)))),
        weights_sha256=point.weights_sha256 if point else None,
        code=code.of(run),
        without_effect=list(no_effect.without_effect(run.settings, config.changed_from_preset(run.settings))),
    )


class _Now(NamedTuple):
    """How far a run has come, as far as its records say, and what went last into its targets and its opponent."""

    counters: Counters
    metrics: dict[str, Any]
    point: PointState | None
    targets: list[Restore]
    opponent: Restore | None


def _now(run: Run, store: SnapshotStore) -> _Now:
    metrics, point = run.newest_metrics(), _newest_point(run)
    targets, opponent, known = _newest_swaps(run)
    known += [snapshot.counters for snapshot in store.snapshots[-1:]]
    if point:
        known.append(point.counters)
    if metrics.get("attempt") == max(1, run.ledger.attempt) and run.state() == "running":
        known.append(Counters(**{name: metrics[name] for name in Counters.model_fields}))
    counters = max(known, key=lambda one: (one.agent_steps, one.updates), default=_NONE)
    return _Now(counters, metrics, point, targets, opponent)


def _newest_swaps(run: Run) -> tuple[list[Restore], Restore | None, list[Counters]]:
    """What went last into each learner's target, in that order, and into an opponent; and how far the run was at the
    swaps since its last commit: at those before it was not farther.
    """
    newest: dict[str, Restore] = {}
    opponent: Restore | None = None
    has_opponent = run.settings.opponent.policy is not None
    counters: list[Counters] = []
    committed = False
    for event in run.ledger.newest_first(Commit, Restore):
        if isinstance(event, Commit):
            committed |= event.lineage != IMPORT
        elif isinstance(event, Restore):
            if not committed:
                counters.append(event.counters)
            if event.into == "target" and not event.worker:
                newest.setdefault(event.learner, event)
            if event.into == "opponent":
                opponent = opponent or event
        if committed and len(newest) == len(turns.Turns(run.settings).learners) and (opponent or not has_opponent):
            break
    return sorted(newest.values(), key=lambda swap: swap.learner), opponent, counters


def _newest_point(run: Run) -> PointState | None:
    """The newest resume point that is not abandoned, as one is from which a run could not be resumed for a time."""
    points = run.points()
    held = (points.readable(made.number) for made in run.ledger.newest_first(Point))
    return next(filter(None, held), None) or points.newest()  # runs of older versions have none in the ledger


def _opponent(swap: Restore, counters: Counters) -> Opponent:
    since = swap.counters.agent_steps
    return Opponent(list(swap.snapshots), swap.policy, since, max(0, counters.agent_steps - since), swap.hold)


def _targets(swap: Restore, updates: int) -> list[Target]:
    served = max(0, updates - swap.first_update + 1)
    return [Target(snapshot, swap.learner, swap.policy, served, swap.hold) for snapshot in swap.snapshots]


def runs(folder: Path) -> list[Status | Damaged]:
    """The status of each run in a folder, by name."""
    summaries: list[Status | Damaged] = []
    for one in folders_of_runs(folder):
        try:
            summaries.append(status(Run(one)))
        except (DamagedError, OSError) as error:  # another user's, for example
            summaries.append(Damaged(one.name, "damaged", str(error)))
        except UsageError:  # it was removed just now
            continue
    return summaries


def parent_of(summary: Status | Damaged) -> str:
    """The name of the run from which one was forked; empty where it was not, or is damaged."""
    origin = summary.forked_from if isinstance(summary, Status) else None
    return str((origin or {}).get("run", ""))


def tree(runs: Sequence[tuple[str, str]]) -> Iterator[tuple[int, int]]:
    """Which run comes next, as its place in the list, and the number of its ancestors: forks follow their parents.

    Args:
      runs: the name of each run, and of the run from which it was forked; empty where it was not.
    """
    names = {name for name, _ in runs}
    forks: dict[str, list[int]] = {}
    for place, (name, parent) in enumerate(runs):
        forks.setdefault(parent if parent in names - {name} else "", []).append(place)
    waiting = [(0, place) for place in reversed(forks.pop("", []))]
    while waiting or forks:
        if not waiting:  # these name each other
            waiting = [(0, place) for place in reversed(forks.pop(next(iter(forks))))]
        depth, place = waiting.pop()
        yield depth, place
        waiting += [(depth + 1, fork) for fork in reversed(forks.pop(runs[place][0], []))]


def log(run: Run, *, abandoned: bool = False, count: int | None = None) -> list[Entry]:
    """The snapshots, or the newest `count`, newest first, with scores and marks.

    Marks: `latest`, `best`, `target`, `pinned`, `imported`, `removed` (retention took the weights), `abandoned` (beyond
    a point from which the run resumed; shown only if asked for).
    """
    store, depths = run.store(), _depths(run)
    scores = run.scores()
    targets, *_ = _newest_swaps(run)
    best, has_target = store.best(scores), run.settings.train.target_q
    marked = {
        "latest": {snapshot.id for snapshot in store.snapshots[-1:]},
        "best": {best.id} if best else set(),
        "target": {snapshot for swap in targets for snapshot in swap.snapshots} if has_target else set(),
        "pinned": store.pins,
        "imported": {snapshot.id for snapshot in store.imports},
        "abandoned": {snapshot.id for snapshot in store.abandoned},
    }
    entries = [*store.snapshots, *store.imports, *(store.abandoned if abandoned else [])]
    place = {commit.id: i for i, (commit, _) in enumerate(run.ledger.with_abandoned(Commit))}
    shown = sorted(entries, key=lambda snapshot: place[snapshot.id], reverse=True)[:count]
    makers = {attempt: _maker_of(run, attempt) for attempt in {snapshot.attempt for snapshot in shown}}
    return [
        Entry(
            id=snapshot.id,
            parent=snapshot.parent,
            lineage=snapshot.lineage,
            learner=snapshot.learner,
            attempt=snapshot.attempt,
            run=_maker_of_import(run, snapshot.id) if is_import(snapshot.id) else makers[snapshot.attempt],
            time=snapshot.time,
            **{name: None if is_import(snapshot.id) else n for name, n in snapshot.counters.model_dump().items()},
            score=scores.get(snapshot.id),
            depth_agent_steps=depths.of(snapshot.id),
            bytes=snapshot.bytes,
            weights_sha256=snapshot.weights_sha256,
            marks=[mark for mark, ids in marked.items() if snapshot.id in ids]
            + ([] if store.has_weights(snapshot.id) else ["removed"]),
        )
        for snapshot in shown
    ]


def show(run: Run, reference: str) -> Shown:
    """One snapshot: its manifest, its evaluations, and the ledger's lines on when it became the target.

    By its whole id also one that was abandoned.
    """
    store = run.store()
    abandoned = next((snapshot for snapshot in store.abandoned if snapshot.id == reference), None)
    snapshot = abandoned or store.resolve(reference, run.scores)
    return Shown(
        run=_maker_of_import(run, snapshot.id) if is_import(snapshot.id) else _maker_of(run, snapshot.attempt),
        depth_agent_steps=_depths(run).of(snapshot.id),
        manifest=store.manifest(snapshot.id),
        has_weights=store.has_weights(snapshot.id),
        pinned=snapshot.id in store.pins,
        abandoned=abandoned is not None,
        evaluations=[line for line in run.evaluation_lines() if line["snapshot"] == snapshot.id],
        swaps=[swap for swap in run.ledger.events(Restore, text=snapshot.id) if snapshot.id in swap.snapshots],
    )


def _maker_of(run: Run, attempt: int) -> str:
    """The name of the run that made an attempt: this one's, or that of the run from which it was forked since."""
    forks = run.ledger.events(Fork)
    return next((fork.run for fork in forks if attempt <= fork.attempt), run.name)


def _maker_of_import(run: Run, snapshot_id: str) -> str:
    """The name of the run into which it was imported, or in which it was averaged: this one's, or as above.

    That may have been before this run's first attempt, but after the fork.
    """
    maker = run.name
    for event in run.ledger.newest_first(Fork, Commit):
        if isinstance(event, Fork):
            maker = event.run
        elif isinstance(event, Commit) and event.id == snapshot_id:
            break
    return maker


def _names(snapshots: Sequence[str]) -> str:
    return f"{', '.join(snapshots)} " if snapshots else ""


def restored(run: Run, point: PointState) -> Iterator[str]:
    """What a run that continues from a point restores and what it repeats, a line each for people."""
    counters = point.counters
    made = counted(counters.updates, "update"), counted(counters.agent_steps, "agent step")
    yield f"restored: weights and optimizer, after {made[0]} ({point.weights_sha256[:12]})"
    yield f"restored: {made[1]}, {counted(counters.episodes, 'episode')}; epsilon, random streams"
    if point.segments:
        steps, count = point.segments[-1].stop - point.segments[0].first, run.settings.env.count
        # The replay has room for only a part of the oldest segment.
        remembered = counted(min(steps, run.settings.replay.capacity_steps // count) * count, "agent step")
        yield f"restored: replay, {remembered} in {counted(len(point.segments), 'segment')}"
    elif run.settings.workers.count:
        yield "absent: replay, each worker fills its own again"
    else:
        yield "absent: replay, nothing was collected yet"
    for learner in point.learners:
        whose = "" if len(point.learners) == 1 else f"{learner.name}'s "
        for role, holder in learner.roles.items():
            held = ", held by hand" if holder.held else ""
            yield f"restored: {whose}{role} {_names(holder.snapshots)}(policy {holder.policy}{held})"
    yield "reset: environments, as at every resume point"
    for request in control.pending(run.control):
        yield f"waiting: {request.words()}, since {request.time[:19]}"
    beyond = run.ledger.beyond(point.known_bytes[run.ledger.path.name])
    lost = {"snapshot": Commit, "swap": Restore}
    counts = [
        counted(n, name) for name, kind in lost.items() if (n := sum(isinstance(event, kind) for event in beyond))
    ]
    if counts:
        yield f"abandoned: {', '.join(counts)} recorded beyond this point (`twin-graph log --all` shows them)"
    now = machine.describe()
    others = dict.fromkeys(other for then in run.processors() for other in machine.differences(then, now))
    for what, there, here in others:
        yield f"not guaranteed: equal weights; the run was trained with another {what}: {there}, here {here}"
    sources = lookup.sources(run.settings)
    for module, digest in run.ledger.events(Start)[-1].modules.items():
        if sources.get(module, digest) != digest:
            yield f"not guaranteed: equal weights; the file of {module} has changed since this run was last trained"


def explain(run: Run, update: int) -> Explained:
    """Which snapshots bootstrapped an update, and why they were chosen.

    Raises:
      UsageError: the records have no such update, or the run uses no target.
    """
    if not run.settings.train.target_q:
        raise UsageError(f"{run.folder} uses no target (train.target_q=false): updates bootstrap from the online twin")
    store = run.store()
    last = _now(run, store).counters.updates
    if not last:
        raise UsageError(f"{run.folder} has made no update yet")
    if not 1 <= update <= last:
        raise UsageError(f"update {update:,}: the records hold updates 1 to {last:,}")
    attempt = run.ledger.attempt_of(update - 1)
    learner, worker = turns.Turns(run.settings_of(attempt)).learns(update - 1), ""
    if run.settings.workers.count:
        found = worker_records.who_applied(run.folder, attempt, update - 1)
        if found is None:
            raise UsageError(f"update {update:,}: no worker recorded it; one that was killed may have applied it")
        worker = found
    for swap in run.ledger.newest_first(Restore):
        if is_target_of(swap, learner, worker):
            if swap.first_update <= update:
                break
            last = min(last, swap.first_update - 1)
    else:
        of_whom = f" of {worker} is recorded; it may have been killed just then" if worker else " is recorded"
        raise UsageError(f"update {update:,}: no target{of_whom}")
    depths = _depths(run)
    return Explained(
        update=update,
        learner=learner,
        worker=worker,
        snapshots=[_served(store, store.find(one), update, depths.of(one)) for one in swap.snapshots],
        policy=swap.policy,
        reason=swap.reason,
        candidates=list(swap.candidates),
        draw=swap.draw,
        used_for_updates=[swap.first_update, last],
        attempt=swap.attempt,
        run=_maker_of(run, swap.attempt),
        time=swap.time,
        held=swap.hold,
        request=swap.request,
        opponent=_opponent_at(run, update - 1) if run.settings.opponent.policy else None,
    )


def explain_step(run: Run, agent_step: int) -> ExplainedStep:
    """Who had the other seat at an agent step, and why.

    Raises:
      UsageError: the records have no such step, or the run has no opponent.
    """
    if run.settings.opponent.policy is None:
        raise UsageError(f"{run.folder} has no opponent: {run.settings.env.id} has one player")
    made = _now(run, run.store()).counters.agent_steps
    if not 1 <= agent_step <= made:
        raise UsageError(f"agent step {agent_step:,}: the records hold agent steps 1 to {made:,}")
    return ExplainedStep(agent_step, _opponent_at(run, agent_step - 1, by="agent_steps"))


def _opponent_at(run: Run, count: int, *, by: str = "updates") -> OpponentThen:
    """Who the opponent was after so many updates, or agent steps."""
    until: int | None = None
    for swap in run.ledger.newest_first(Restore):
        if swap.into == "opponent":
            if getattr(swap.counters, by) <= count:
                break
            until = swap.counters.agent_steps
    else:
        raise UsageError(f"{run.folder} records no opponent")
    return OpponentThen(
        snapshots=list(swap.snapshots),
        policy=swap.policy,
        reason=swap.reason,
        draw=swap.draw,
        agent_steps=[swap.counters.agent_steps + 1, until],
        held=swap.hold,
        request=swap.request,
    )


def _depths(run: Run) -> Depths:
    depths = Depths(run)
    depths.catch_up()
    return depths


def _served(store: SnapshotStore, snapshot: Commit, update: int, depth: float | None) -> Served:
    """What people are told of a snapshot that gave an update its targets."""
    imported = snapshot.number is None
    return Served(
        id=snapshot.id,
        lineage=snapshot.lineage,
        updates=snapshot.updates,
        age_updates=None if imported else update - 1 - snapshot.updates,
        origin=store.manifest(snapshot.id).origin if imported else None,
        depth_agent_steps=depth,
    )
