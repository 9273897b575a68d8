"""A run while it is trained: its lock, learners, snapshots, refreshes, resume points and records."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Protocol, Self

import numpy as np

from twin_graph import targets
from twin_graph.agent import trackers
from twin_graph.agent.held_out import HeldOut
from twin_graph.agent.learner import Learner, Learners
from twin_graph.agent.resume_points import ResumePoints
from twin_graph.agent.role import Role, Why
from twin_graph.agent.tensorboard import EventFile
from twin_graph.base.stopwatch import Stopwatch
from twin_graph.config.turns import Turns
from twin_graph.envs.lasting import pooled
from twin_graph.errors import UsageError
from twin_graph.snapshots.files import displaced
from twin_graph.snapshots.forms import METRICS
from twin_graph.snapshots.ledger import BY_HAND, IMPORT, UNDO, Cause, Commit, Counters, End, Restore, utc_now
from twin_graph.snapshots.lines import record_metrics
from twin_graph.snapshots.store import Manifest, Provenance
from twin_graph.targets import retention
from twin_graph.targets.evaluations import Matches

if TYPE_CHECKING:
    from twin_graph.agent.actor import Actor
    from twin_graph.base.counters import Tally
    from twin_graph.snapshots.points import PointState
    from twin_graph.snapshots.run import Run
    from twin_graph.twin.model import ModelSpec

#: What the ledger says of an end that was neither requested nor a failure.
_ABANDONED = {KeyboardInterrupt: "aborted", GeneratorExit: "the caller stopped iterating"}
_STATES: dict[Cause, Literal["stopped", "failed"]]
_STATES = {"interrupted": "stopped", "abandoned": "stopped", "error": "failed"}


class Arrival(Protocol):
    """A snapshot of another run that fits: what it is there, from where it comes, and what writes its files."""

    @property
    def manifest(self) -> Manifest: ...

    @property
    def origin(self) -> str: ...

    def save(self, prefix: Path) -> None: ...


class LiveRun:
    """Owns the run's lock, learners and records, closed by `close()` or `with`.

    Creating one takes the lock and records a start in the ledger; closing it records an end.

    Args:
      run: in whose folder everything is kept.
      spec: of the twins.
      tally: the counters.
      actor: has the replay that resume points store; None if other processes act.
      point: where to continue; None for the beginning.

    Attributes:
      run, settings, tally: as given.
      store: the run's snapshots.
      learners: one, or two in `mode=mutual`.
      held_out: observations on which they are measured.
      resume_points: makes and restores them.
      matches: its scheduled evaluations.
      stopwatch: where the time goes.
      notices: what could not be done, and why, for people.

    Raises:
      InUseError: another process has the run.
      UsageError: the run was trained already, and there is no `point`.
    """

    def __init__(self, run: Run, spec: ModelSpec, tally: Tally, actor: Actor | None, point: PointState | None) -> None:
        self.run, self.settings, self.tally = run, run.settings, tally
        self.stopwatch = Stopwatch()
        self._saved, self._actor = tally.counters, actor
        self.notices: list[str] = []
        self._end: End | None = None
        targets.roles(run.settings)  # before anything is begun: raises if one cannot work
        with contextlib.ExitStack() as building:
            building.enter_context(run.lock("train"))
            self.store = run.store()
            if self.store.snapshots and point is None:
                resumable = run.points().folders()
                what_now = (
                    "`twin-graph resume` continues it" if resumable else "it has no resume point, so train a new run"
                )
                raise UsageError(f"{run.folder} was trained already; {what_now}")
            self.learners = self._build_learners(spec, building)
            self.store.remove_leftovers()
            self.held_out = HeldOut(run.settings.train, tally)
            self.resume_points = ResumePoints(run, tally, self.learners, self.held_out, actor)
            secured = point.known_bytes[METRICS] if point else 0
            self._tracker = tracker = trackers.of(run, self.notices, secured)
            if tracker:
                building.callback(lambda: tracker.close(self._end.state if self._end else "failed"))
            run.record_start(point, spec.env.declared)
            self._owned = building.pop_all()
        try:
            resumed_at = point.counters.agent_steps if point else None
            graph = self.learners.first.online.graph
            self._events = self._owned.enter_context(EventFile(run.events, graph, resumed_at=resumed_at))
            self.matches = Matches(run)
            if point is None:
                self.commit()
                self.refresh("start")
            else:
                self._restore(point)
        except BaseException as error:
            self.__exit__(type(error), error, None)
            raise

    def _build_learners(self, spec: ModelSpec, building: contextlib.ExitStack) -> Learners:
        turns, built = Turns(self.settings), list[Learner]()
        for name in turns.learners:
            like = built[0].online if built else None
            built.append(Learner(name, turns, self.run, self.store, spec, self.stopwatch, like=like))
            building.callback(built[-1].close)
        return Learners(built, turns, self.tally, self.stopwatch)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if error is None:
            self.close()
            return
        moved = displaced(self.run.folder)  # of which whatever failed is a consequence
        with contextlib.suppress(OSError):  # e.g. a full disk: the original error matters more
            if reason := _ABANDONED.get(type(error)):
                self.close("abandoned", reason)
            else:
                self.close("error", str(moved or error) or type(error).__name__)
        if moved and isinstance(error, Exception):
            raise moved from error

    def close(self, cause: Cause = "complete", reason: str = "") -> None:
        """Ends the sessions and records in the ledger why the run ended, with a reason in words; what was committed
        stays."""
        if self._end:
            return
        state = _STATES.get(cause, "finished")
        self._end = End(attempt=self.run.attempt, time=utc_now(), state=state, reason=reason, cause=cause)
        with self._owned:
            self.run.record_end(self._end)

    @property
    def at_point(self) -> bool:
        """Whether the newest resume point was made at this very step."""
        point = self.resume_points.newest
        return point is not None and point.counters.agent_steps == self.tally.agent_steps

    def commit_if_due(self) -> None:
        """Commits a snapshot if the schedule says so."""
        if self.settings.save_schedule.due(self._saved, self.tally):
            self.commit()

    def commit(self) -> list[Commit]:
        """Saves each learner's online twin as a snapshot, durable when this returns; see `Learner.commit`.

        Raises:
          OSError: the disk is full or failed.
          DivergedError: a weight is NaN or infinite.
        """
        self._saved = self.tally.counters
        learners = [self.learners[name] for name in self.learners.turns.commits(len(self.store.snapshots))]
        lasting = pooled(self._actor.lasting()) if self._actor else {}
        return [learner.commit(self._saved, self.held_out.health(learner.online), lasting) for learner in learners]

    def refresh_if_due(self) -> None:
        """Refreshes each target and opponent whose schedule says so, unless it is held."""
        for role in self.learners.roles:
            if role.is_due(self.tally):
                self._refresh(role, str(role.schedule))

    def refresh(self, reason: str) -> None:
        """Refreshes each target, and the opponent if there is one, with what the policies choose."""
        for role in self.learners.roles:
            self._refresh(role, reason)

    def _refresh(self, role: Role, reason: str, instead: str = "") -> None:
        with self.stopwatch.phase("refresh"):
            role.refresh(self.tally.counters, self.matches.played, reason, instead=instead)

    def rivals(self, learner: Learner) -> dict[str, Commit]:
        """By role, what the newest has to beat at the next scheduled evaluation, where a policy wants that."""
        asking = {name: role.policy for name, role in learner.roles.items() if role.has_rivals}
        if not asking:
            return {}
        history = targets.History.of(self.store, learner.lineage, self.tally.counters, self.matches.played)
        rivals = {name: policy.rival(history) for name, policy in asking.items()}
        return {name: self.store.find(rival) for name, rival in rivals.items() if rival}

    def swap(
        self, snapshots: Sequence[Commit], *, learner: str, into: str, hold: bool, request: str, undo: bool = False
    ) -> Restore:
        """Restores what a person chose, and records it.

        Before a swap into the online twin, its current weights are committed; after it, the optimizer is reset.

        Args:
          snapshots: one, unless undoing a swap restores an ensemble.
          learner: its name.
          into: `target`, `opponent` or `online`.
          hold: no scheduled refreshes until it is undone.
          request: id of the person's request, for the ledger.
          undo: whether this reverts another swap.

        Returns:
          The ledger's record.

        Raises:
          DamagedError: a snapshot cannot be restored, or has other weights than those committed. A target or an
            opponent holds what it did; for the online twin, see `Learner.try_online`.
        """
        if into == "online":
            self.commit()
        policy, reason = (UNDO, "undone by hand") if undo else (BY_HAND, "by hand")
        chosen = tuple(snapshot.id for snapshot in snapshots)
        why = Why(policy, reason, chosen, hold=hold, request=request, at_point=self.at_point)
        with self.stopwatch.phase("refresh"):
            if into == "online":
                [snapshot] = snapshots
                return self.learners[learner].swap_online(snapshot, self.tally.counters, why)
            return self.learners[learner].roles[into].swap(snapshots, self.tally.counters, why)

    def take_in(self, arrival: Arrival) -> Commit:
        """Commits a snapshot of another run, which the opponent's policy can choose after the present agent step.

        Raises:
          OSError: the disk is full or failed.
        """
        theirs = arrival.manifest
        made = Provenance(
            lineage=IMPORT,
            learner_updates=theirs.counters.updates,
            attempt=self.run.attempt,
            counters=self.tally.counters,
            settings_sha256=self.settings.sha256(),
            weights_sha256=theirs.weights_sha256,
            variables=theirs.variables,
            origin=arrival.origin,
        )
        return self.store.commit(arrival.save, made)

    def log(self, values: Mapping[str, Any], counters: Counters | None = None) -> None:
        """Writes values, with counters, to `metrics.jsonl`, and those that are numbers to TensorBoard.

        What `log.to` asks for gets them with the next resume point.

        Args:
          values: by name; a name with a slash is in TensorBoard's section before it.
          counters: to which they belong; by default the current ones.

        Raises:
          OSError: the disk is full or failed.
        """
        counters = counters or self.tally.counters
        plain = {name: value.item() if isinstance(value, np.generic) else value for name, value in values.items()}
        record_metrics(self.run, {**plain, **counters.model_dump()})
        numbers = {name: float(value) for name, value in plain.items() if isinstance(value, int | float)}
        self._events.write(counters.agent_steps, numbers)

    def log_variables(self) -> None:
        """Writes statistics and histograms to TensorBoard: of trainable variables, and of activations."""
        variables = {f"variables/{name}": value for name, value in self.learners.weights().items()}
        seen = self.held_out.activations(self.learners.first.online)
        activations = {f"activations/{name}": value for name, value in seen.items()}
        self._events.write_histograms(self.tally.agent_steps, {**variables, **activations})

    def distances(self) -> dict[str, float]:
        """How far each target is from its online twin, and two learners from each other, for telemetry."""
        first, *others = self.learners
        measured = self.held_out.apart(first.online, first.target)
        for other in others:
            theirs = self.held_out.apart(other.online, other.target)
            measured |= {f"{name}/{other.name}": value for name, value in theirs.items()}
            measured |= self.held_out.between(first.online, other.online)
        return measured

    def commit_point(self, returns: Sequence[float] = (), request: str | None = None) -> PointState:
        """Makes a resume point, sends what it has secured to what `log.to` asks for, and removes weights that are no
        longer needed; see `ResumePoints.commit`."""
        with self.stopwatch.phase("resume point"):
            point, oldest = self.resume_points.commit(self._saved, returns, request)
        if self._tracker:
            with self.stopwatch.phase("telemetry"):
                self._tracker.send(point.known_bytes[METRICS])
        policies = {name: role.policy for name, role in self.learners.first.roles.items()}
        # If readers hold the lock, the next point removes them.
        with self.stopwatch.phase("prune"), contextlib.suppress(BlockingIOError):
            self.store.remove_weights(
                lambda: retention.removable(self.run, self.store, oldest, policies, self.settings.save),
                attempt=self.run.attempt,
            )
        return point

    def _restore(self, point: PointState) -> None:
        self._saved = point.saved
        self.store.reload()
        targets.check_present(self.settings, self.store, point.counters.updates)
        for role, policy in self.resume_points.restore(point):
            # Before training begins, nobody can hold another.
            instead = f"resume with another {role.name}.policy"
            if role.policy.text != "latest":
                instead = f"resume with --set {role.name}.policy=latest"
            self._refresh(role, f"the policy was {policy}", instead)
