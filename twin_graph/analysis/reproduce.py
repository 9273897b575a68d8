"""Trains a stretch of a run again, and compares the result with the record.

What people did in that stretch is done again where they did it: swaps, resume points on request, stops, and changes of
settings. A process that was killed is not killed again: what it did beyond its point is no part of the record.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from twin_graph import config, envs
from twin_graph.base import machine
from twin_graph.config import lookup, trust
from twin_graph.errors import UsageError
from twin_graph.evaluation.player import check_declared
from twin_graph.snapshots.files import checked, make_folder, write_new
from twin_graph.snapshots.fork import copy_past, describe, reading_past, share_snapshot
from twin_graph.snapshots.forms import LEDGER
from twin_graph.snapshots.ledger import (
    BY_REQUEST,
    IMPORT,
    Commit,
    End,
    Fork,
    Point,
    Prune,
    Restore,
    Start,
    utc_now,
)
from twin_graph.snapshots.run import DESCRIPTION, Run, check_new_folder
from twin_graph.training import requirements, trainer
from twin_graph.twin.twin import weights_sha256
from twin_graph.twin.weights import read_checkpoint

if TYPE_CHECKING:
    from twin_graph.config.settings import Settings
    from twin_graph.snapshots.points import PointState
    from twin_graph.training.progress import Progress


class Difference(NamedTuple):
    """The first thing that differs from the record.

    Attributes:
      after_updates: where.
      what: in words.
      recorded, reproduced: what the record says, and what training again gave; None where there is nothing.
    """

    after_updates: int
    what: str
    recorded: str | None
    reproduced: str | None


class Reproduction(NamedTuple):
    """What was compared.

    Attributes:
      first, last: updates, from 1.
      snapshots, swaps, evaluations: how many were equal.
      difference: None if all were.
    """

    first: int
    last: int
    snapshots: int
    swaps: int
    evaluations: int
    difference: Difference | None


class _Part(NamedTuple):
    """What one process contributed to the stretch, or several with the same settings, all but the last killed.

    Attributes:
      attempt: the process life.
      settings: with which it trained.
      stop: agent steps at which a person or a callback ended it; None where nobody did.
      until: agent steps of the point from which the next part continues; None for the last.
    """

    attempt: int
    settings: Settings
    stop: int | None
    until: int | None


class _Life(NamedTuple):
    """From where to where the steps of an attempt are part of the run.

    Attributes:
      attempt: the process life.
      begin: agent steps of the point from which it continued; 0 for the first.
      until: those of the point from which the next one did; None for the last.
    """

    attempt: int
    begin: int
    until: int | None


class _Recorded(NamedTuple):
    """A run's records that were not abandoned: snapshots, target swaps and scheduled evaluations, in order."""

    commits: list[Commit]
    swaps: list[Restore]
    evaluations: list[dict[str, Any]]

    @classmethod
    def of(cls, run: Run) -> _Recorded:
        return cls(
            [commit for commit in run.ledger.events(Commit) if commit.lineage != IMPORT],
            run.ledger.events(Restore),
            [line for line in run.evaluation_lines() if line["scheduled"]],
        )

    def since(self, before: _Recorded, last: int | None) -> _Recorded:
        """Without what was there before, and what is later than an update."""

        def counts(updates: int) -> bool:
            return last is None or updates <= last

        return _Recorded(
            [commit for commit in self.commits[len(before.commits) :] if counts(commit.updates)],
            [swap for swap in self.swaps[len(before.swaps) :] if counts(swap.counters.updates)],
            [line for line in self.evaluations[len(before.evaluations) :] if counts(line["played_at"]["updates"])],
        )


def reproduce(
    run: Run, point: PointState | None, last: int | None, folder: Path, tell: Callable[[Progress], None]
) -> Reproduction:
    """Trains again from a resume point, or from the beginning, and compares; ends at the first difference.

    Args:
      run: which; stays as it is.
      point: one of its points, found whole; None for the beginning.
      last: the last update to be compared; None for all that is recorded.
      folder: in which to train; must not exist yet.
      tell: called with progress.

    Raises:
      UsageError: this stretch cannot be trained again.
      TwinGraphError: there is not enough memory or disk space.
      KeyboardInterrupt: a person stopped it.
    """
    _check(run, point)
    parts = list(_parts(run, point, last))
    for part in parts:
        trust.check_all(part.settings, run.folder)
    ours, first = _Recorded.of(run), point.counters.updates + 1 if point else 1
    if not any(first <= commit.updates and (last is None or commit.updates <= last) for commit in ours.commits):
        raise UsageError(f"{run.folder} has recorded no snapshot in that stretch: there is nothing to compare")
    with contextlib.closing(envs.make(run.settings.env, count=run.settings.env.count)) as env:
        check_declared(run, env)
        requirements.check_enough(requirements.measure(parts[0].settings, env, folder))
        scratch = _scratch(run, point, folder, parts[0].settings)
        before = _Recorded.of(scratch)
        recorded = ours.since(before, last)
        _record_inputs(run, scratch)
        comparison = _Comparison(run, scratch, before, recorded, is_last=recorded == ours.since(before, None))
        for part in parts:
            if scratch.settings != part.settings:
                scratch.change_settings(part.settings)
            with contextlib.closing(trainer.train(scratch, env, scratch.points().newest())) as progresses:
                is_complete = _train(part, progresses, comparison, tell)
            if is_complete:
                break
    return comparison.result(first)


def _train(
    part: _Part, progresses: Iterator[Progress], comparison: _Comparison, tell: Callable[[Progress], None]
) -> bool:
    """Trains a part again; returns whether nothing is left to compare."""
    stopped = False
    for progress in progresses:
        tell(progress)
        if progress.stop.is_set() and not stopped:
            raise KeyboardInterrupt
        if comparison.is_complete(progress, part.until):
            return True
        if part.stop is not None and progress.agent_steps >= part.stop and comparison.has_played(part):
            stopped = True
            progress.stop.set()
        newest = progress.live.resume_points.newest
        if (
            part.until is not None
            and newest
            and newest.attempt == progress.live.run.attempt  # not the one from which it began
            and newest.counters.agent_steps >= part.until
        ):
            break
    return False


def differences_of_machine(run: Run, first_update: int) -> Iterator[str]:
    """How this machine and its code differ from those of the attempts since an update, a line each, as far as recorded.

    Versions of packages are recorded only of a run's beginning.
    """
    from importlib.metadata import version

    now = machine.describe()
    others = dict.fromkeys(other for then in run.processors(first_update) for other in machine.differences(then, now))
    for what, there, here in others:
        yield f"{what}: {there}, here {here}"
    for name, before in run.description["versions"].items():
        if (here := version(name)) != before:
            yield f"{name}: {before}, here {here}"
    edited: dict[str, int] = {}
    for start in run.starts_since(first_update):
        edited |= dict.fromkeys(lookup.edited(start.modules), start.attempt)
    for module, attempt in edited.items():
        yield f"{module}: its file has changed since attempt {attempt}"


def known_of_machine(run: Run, first_update: int) -> str:
    """What `differences_of_machine` compares, for people."""
    modules = {module for start in run.starts_since(first_update) for module in start.modules}
    known = [
        machine.known_words(*run.processors(first_update), machine.describe()),
        f"versions of {', '.join(run.description['versions'])}",
    ]
    return "; ".join([*known, *([f"the file of {', '.join(sorted(modules))}"] if modules else [])])


def _check(run: Run, point: PointState | None) -> None:
    """Raises `UsageError` if what follows a point cannot be trained again."""
    if run.settings.workers.count:
        raise UsageError(f"{run.folder} is asynchronous: its weights depend on timing and cannot be reproduced")
    known = point.known_bytes[LEDGER] if point else 0
    starts = [start for start, _ in run.ledger.with_abandoned(Start)]
    if not starts:
        raise UsageError(f"{run.folder} has not been trained yet")
    since = starts[len(run.ledger.with_abandoned(Start, upto=known)) :]
    if point and any(start.known_bytes[LEDGER] < known for start in since):
        raise UsageError(f"resume point {point.number} is abandoned: the run continued from an earlier one")
    changed = [fork for fork in run.ledger.events(Fork) if fork.changed]
    if changed and (point is None or point.counters.updates < changed[-1].counters.updates):
        raise UsageError(f"a weight was moved when {run.folder} was forked; reproduce what followed, with --from")


def _parts(run: Run, point: PointState | None, last: int | None) -> Iterator[_Part]:
    """What each process that trained since a point did, in order; raises `UsageError` if it cannot be done again."""
    points = [made for made, _ in run.ledger.with_abandoned(Point)]
    ends = {end.attempt: end for end, _ in run.ledger.with_abandoned(End)}
    parts = []
    for life in _lives(run, point):
        made = [one for one in points if one.attempt == life.attempt]
        newest = max(made, key=lambda one: one.counters.agent_steps, default=None)
        parts.append(_part(run, life, newest, ends.get(life.attempt), last))
    for part, following in itertools.zip_longest(parts, parts[1:]):
        if following is None or part.stop is not None or part.settings != following.settings:
            yield part


def _lives(run: Run, point: PointState | None) -> Iterator[_Life]:
    """The attempts since a point that left something: steps, the first weights, or an evaluation that was left out."""
    known = point.known_bytes[LEDGER] if point else 0
    starts = run.ledger.events(Start)[len([s for s, holds in run.ledger.with_abandoned(Start, upto=known) if holds]) :]
    begins = [(start.attempt, start.counters.agent_steps if start.counters else 0) for start in starts]
    if point:
        begins.insert(0, (point.attempt, point.counters.agent_steps))
    new = [made for made in run.ledger.events(Point) if point is None or made.number > point.number]
    made_at = {(made.attempt, made.counters.agent_steps) for made in new}
    untils = [*(begin for _, begin in begins[1:]), None]
    for (attempt, begin), until in zip(begins, untils, strict=True):
        if until != begin or (attempt, until) in made_at:
            yield _Life(attempt, begin, until)


def _part(run: Run, life: _Life, made: Point | None, end: End | None, last: int | None) -> _Part:
    """How an attempt, with the newest point that it made and its end, can be trained again. Raises `UsageError` if it
    cannot."""
    attempt, begin, until = life
    # A tracker would take the repetition for another run; and the films are there.
    settings = config.replace(run.settings_of(attempt), [("log.to", "tensorboard"), ("evaluate.video", False)])
    newest: int | None
    if made:
        newest = made.counters.agent_steps
    else:  # runs of older versions have no points in the ledger
        here = run.points().newest()
        newest = here.counters.agent_steps if here and until is None else until
    stop = None
    if end and until in (None, newest) and until != begin:
        if until is not None and made and (last is None or last > made.counters.updates):
            _check_recurs(end, settings, made)
        stop = newest if _is_stop(end, settings, newest) else None
    return _Part(attempt, settings, stop, until)


def _is_stop(end: End, settings: Settings, agent_steps: int | None) -> bool:
    """Whether a person ended an attempt, or a callback, which is not here to end it again; a score that was reached
    is."""
    is_short = bool(agent_steps and agent_steps < settings.train.steps)
    return end.cause == "interrupted" or (end.cause == "callback" and is_short)


def _check_recurs(end: End, settings: Settings, newest: Point) -> None:
    """Raises `UsageError` if an error made an attempt's newest point, as far as one can tell."""
    steps, resume = newest.counters.agent_steps, settings.resume
    # A chunk ends at the first vector step that is not short of its multiple.
    is_scheduled = steps % resume.every_steps < max(1, settings.train.chunk_steps) + settings.env.count - 1
    if end.state == "failed" and not (newest.request or is_scheduled):
        raise UsageError(
            f"attempt {end.attempt} failed at agent step {steps:,} and so ended all episodes there, which cannot be "
            f"reproduced: reproduce the part before it, with --to @update:{newest.counters.updates}, or the part after "
            "it, with --from"
        )


def _scratch(run: Run, point: PointState | None, folder: Path, settings: Settings) -> Run:
    """A run with the past of another before a point."""
    check_new_folder(folder)
    make_folder(folder)
    gone: tuple[str, ...] = ()
    if point:
        with reading_past(run, point):
            gone = copy_past(run, point, folder)
    description = {**describe(run, point.attempt if point else 0, settings), "name": folder.name, "created": utc_now()}
    write_new(folder / DESCRIPTION, checked(description, indent=1))
    made = Run(folder)
    if point and gone:
        made.ledger.append(Prune(attempt=point.attempt, time=utc_now(), snapshots=gone))
    return made


def _inputs(run: Run) -> tuple[list[Point], list[Restore]]:
    """What people requested, and what came of it."""
    points = [point for point in run.ledger.events(Point) if point.request]
    return points, run.ledger.events(Restore, text=BY_REQUEST)


def _record_inputs(run: Run, scratch: Run) -> None:
    """Records what people did after the scratch's point, so that it is repeated as after a crash."""
    (points, swaps), (known_points, known_swaps) = _inputs(run), _inputs(scratch)
    inputs: list[Point | Restore] = [*points[len(known_points) :], *swaps[len(known_swaps) :]]
    for event in inputs:
        scratch.ledger.append(event)
    store, known = run.store(), {snapshot.id for snapshot in scratch.store().imports}
    with store.reading():
        for snapshot in store.imports:
            if snapshot.id not in known:
                share_snapshot(store, snapshot.id, scratch.store_folder, weights=store.has_weights(snapshot.id))
                scratch.ledger.append(snapshot)


class _Comparison:
    """Compares what was recorded of a run with what a scratch run does.

    Args:
      run, scratch: these.
      before: what the scratch had from the start.
      recorded: what the run recorded since, to be found again.
      is_last: whether the run recorded no more after that.
    """

    def __init__(self, run: Run, scratch: Run, before: _Recorded, recorded: _Recorded, *, is_last: bool) -> None:
        self._store = run.store()
        self._scratch, self._before, self._recorded = scratch, before, recorded
        newest = next(run.ledger.newest_first(Start, End, Fork), None)
        self._is_broken_off = is_last and not (isinstance(newest, End) and newest.is_deliberate)
        played = [line["played_at"]["updates"] for line in recorded.evaluations]
        swapped = [swap.counters.updates for swap in recorded.swaps]
        self.last = max([recorded.commits[-1].updates, *played[-1:], *swapped[-1:]])
        self._snapshots = self._evaluations = 0
        self._newest = before.commits[-1].id if before.commits else ""
        self._seen = ""
        self.difference: Difference | None = None

    def is_complete(self, progress: Progress, until: int | None) -> bool:
        """Whether everything recorded has been reproduced, or something differs.

        Args:
          progress: of the scratch.
          until: agent steps beyond which the scratch does what will be abandoned.
        """
        over = progress.updates > self.last
        if progress.newest_snapshot == self._seen and not progress.happened.evaluations and not over:
            return False
        self._seen = progress.newest_snapshot
        self._compare(until)
        return over or self.difference is not None

    def has_played(self, part: _Part) -> bool:
        """Whether the evaluations are made that were recorded where an attempt was stopped, by it or one before."""

        def count(lines: Iterable[dict[str, Any]]) -> int:
            return sum(line["played_at"]["agent_steps"] == part.stop for line in lines)

        then = [line for line in self._recorded.evaluations if line["attempt"] <= part.attempt]
        return count(_Recorded.of(self._scratch).since(self._before, None).evaluations) >= count(then)

    def result(self, first: int) -> Reproduction:
        """What was found, after all has been trained."""
        if self.difference is None:
            self._compare(None)
        recorded, swaps = self._recorded, 0
        if self.difference is None:
            made = _Recorded.of(self._scratch).since(self._before, self.last)
            swaps = self._compare_swaps(made.swaps)
        if self.difference is None and self._snapshots < len(recorded.commits):
            missing = recorded.commits[self._snapshots]
            self.difference = Difference(missing.updates, "the snapshot after", missing.id, None)
        if self.difference is None and self._evaluations < len(recorded.evaluations):
            line = recorded.evaluations[self._evaluations]
            self.difference = Difference(line["played_at"]["updates"], "the evaluation", line["snapshot"], None)
        last = self.difference.after_updates if self.difference else self.last
        return Reproduction(first, last, self._snapshots, swaps, self._evaluations, self.difference)

    def _compare(self, until: int | None) -> None:
        new = itertools.takewhile(lambda c: c.id != self._newest, self._scratch.ledger.newest_first(Commit))
        made = [c for c in new if c.lineage != IMPORT and (until is None or c.counters.agent_steps <= until)]
        for commit in reversed(made):
            if self.difference or self._snapshots == len(self._recorded.commits):
                return
            self._newest = commit.id
            self.difference = self._difference(self._recorded.commits[self._snapshots], commit)
            self._snapshots += self.difference is None
        lines = _Recorded.of(self._scratch).since(self._before, None).evaluations
        for line in lines[self._evaluations : len(self._recorded.evaluations)]:
            recorded = self._recorded.evaluations[self._evaluations]
            keys = "snapshot", "challenger", "played_at", "returns", "protocol"
            if unlike := next((key for key in keys if recorded[key] != line[key]), None):
                updates, what = line["played_at"]["updates"], f"{unlike} of the evaluation of {recorded['snapshot']}"
                self.difference = Difference(updates, what, str(recorded[unlike]), str(line[unlike]))
                return
            self._evaluations += 1

    def _compare_swaps(self, made: list[Restore]) -> int:
        recorded = self._recorded.swaps
        while self._is_broken_off and len(made) > len(recorded) and made[-1].counters.updates == self.last:
            made = made[:-1]  # the run would have made it, had it not been killed before
        for n, (ours, theirs) in enumerate(itertools.zip_longest(made, recorded)):
            a, b = ((s.first_update, s.learner, s.into, s.snapshots) if s else None for s in (ours, theirs))
            if a != b:
                after = (theirs or ours).counters.updates
                self.difference = Difference(after, "the swap", b and str(b), a and str(a))
                return n
        return len(made)

    def _difference(self, recorded: Commit, made: Commit) -> Difference | None:
        """Between a snapshot that was recorded and the one made instead: in ledger, manifest and files."""
        after = recorded.updates
        if (recorded.lineage, recorded.counters) != (made.lineage, made.counters):
            return Difference(after, "the next snapshot", _place(recorded), _place(made))
        if (recorded.id, recorded.weights_sha256) != (made.id, made.weights_sha256):
            return Difference(after, f"snapshot {recorded.number}", recorded.weights_sha256, made.weights_sha256)
        with self._store.reading():
            says = self._store.manifest(recorded.id).weights_sha256
            if says != made.weights_sha256:
                return Difference(after, f"the manifest of {recorded.id}", says, made.weights_sha256)
            if self._store.has_weights(recorded.id):
                holds = weights_sha256(read_checkpoint(self._store.prefix(recorded.id)))
                if holds != made.weights_sha256:
                    return Difference(after, f"the weights in the files of {recorded.id}", holds, made.weights_sha256)
        return None


def _place(snapshot: Commit) -> str:
    return f"{snapshot.id} after {snapshot.counters.updates} updates, {snapshot.counters.agent_steps} agent steps"
