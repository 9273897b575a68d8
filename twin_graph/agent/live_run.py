"""The keeper of a run while it trains: its learners, snapshots, refreshes, resume points and records."""

import contextlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np

from twin_graph import targets
from twin_graph.agent import trackers
from twin_graph.agent.actor import Actor
from twin_graph.agent.counters import Tally
from twin_graph.agent.held_out import Probe
from twin_graph.agent.learner import Learner, Why
from twin_graph.agent.learners import Learners
from twin_graph.agent.resume_points import ResumePoints
from twin_graph.agent.tensorboard import EventFile
from twin_graph.base.stopwatch import Stopwatch
from twin_graph.config.turns import Turns
from twin_graph.errors import DamagedError, UsageError
from twin_graph.snapshots.control import swap_command
from twin_graph.snapshots.ledger import BY_HAND, UNDO, Commit, Counters, End, Swap, utc_now
from twin_graph.snapshots.points import PointState
from twin_graph.snapshots.run import Run
from twin_graph.targets import retention
from twin_graph.targets.evaluations import Matches
from twin_graph.twin.model import ModelSpec

#: The reason of an end that was neither requested nor a failure.
_BROKEN_OFF = {KeyboardInterrupt: "aborted", GeneratorExit: "the caller stopped iterating"}


class Keeper:
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
      probe: observations on which they are measured.
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
        self._policies = targets.roles(run.settings)
        self._saved = tally.counters
        self.notices: list[str] = []
        self._end: End | None = None
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
            self.probe = Probe(run.settings.train, tally)
            self.resume_points = ResumePoints(run, tally, self.learners, self.probe, actor)
            self._tracker = tracker = trackers.of(run, self.notices)
            if tracker:
                building.callback(lambda: tracker.close(self._end.state if self._end else "failed"))
            run.record_start(point)
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
        for i, name in enumerate(turns.learners):
            # Far from the seeds that other runs are likely to have. (TensorFlow takes seeds modulo 2**31 - 1.)
            seed = self.settings.seed + i * 2**30
            like = built[0].online if built else None
            learner = Learner(
                name, turns, self.run, self.store, spec, self._policies, self.stopwatch, seed=seed, like=like
            )
            building.callback(learner.close)
            built.append(learner)
        return Learners(built, turns, self.tally, self.stopwatch)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if error is None:
            self.close()
        else:
            with contextlib.suppress(OSError):  # e.g. a full disk: the original error matters more
                if reason := _BROKEN_OFF.get(type(error)):
                    self.close("stopped", reason)
                else:
                    self.close("failed", str(error) or type(error).__name__)

    def close(self, state: str = "finished", reason: str = "") -> None:
        """Ends the sessions and records in the ledger how the run ended; what was committed stays.

        Args:
          state: `finished`, `stopped` or `failed`.
          reason: for people.
        """
        if self._end:
            return
        end = {"attempt": self.run.attempt, "time": utc_now(), "state": state, "reason": reason}
        self._end = End.model_validate(end)
        with self._owned:
            self.run.ledger.append(self._end)

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
        return [learner.commit(self._saved, self.probe.health(learner)) for learner in learners]

    def refresh_if_due(self) -> None:
        """Refreshes each target and opponent whose schedule says so, unless it is held."""
        for learner in self.learners:
            for role, holder in learner.holders.items():
                schedule = self.settings.refresh_schedule_of(role)
                if not holder.held and schedule.due(holder.since, self.tally):
                    self._refresh(learner, role, str(schedule))

    def refresh(self, reason: str) -> None:
        """Refreshes each learner's target, and the opponent if there is one, with what the policies choose, and records
        it."""
        for learner in self.learners:
            for role in learner.holders:
                self._refresh(learner, role, reason)

    def choice(self, learner: Learner, role: str) -> targets.Choice:
        """What the policy of a role would choose now."""
        random = targets.choice_stream(self.settings.seed, role, learner.name, self.tally.updates)
        return self._policies[role].choose(self._history(learner.source), random)

    def _refresh(self, learner: Learner, role: str, reason: str, *, instead: str = "") -> None:
        choice, policy = self.choice(learner, role), self._policies[role].text
        try:
            learner.refresh(role, choice, self.tally.counters, policy=policy, reason=reason)
        except DamagedError as error:
            swap = swap_command(self.run.folder, "--hold", into=role, learner=learner.name)
            instead = instead or f"hold another: `{swap} REF`; then resume"
            raise DamagedError(f"{error}. Restore its files, or {instead}") from error

    def rivals(self, learner: Learner) -> dict[str, Commit]:
        """By role, what the newest has to beat at the next scheduled evaluation, where a policy wants that."""
        history = self._history(learner.lineage)
        rivals = {role: policy.rival(history) for role, policy in self._policies.items()}
        return {role: self.store.find(rival) for role, rival in rivals.items() if rival}

    def _history(self, lineage: str) -> targets.History:
        """What a target policy may look at now."""
        return targets.History.of(self.store, lineage, self.tally.updates, self.matches.played)

    def swap(
        self, snapshots: Sequence[Commit], *, learner: str, into: str, hold: bool, request: str, undo: bool = False
    ) -> Swap:
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
        """
        if into == "online":
            self.commit()
        policy, reason = (UNDO, "undone by hand") if undo else (BY_HAND, "by hand")
        chosen = tuple(snapshot.id for snapshot in snapshots)
        why = Why(policy, reason, chosen, hold=hold, request=request, at_point=self.at_point)
        return self.learners[learner].swap(into, snapshots, self.tally.counters, why)

    def log(self, values: Mapping[str, Any], counters: Counters | None = None) -> None:
        """Writes values, with counters, to `metrics.jsonl`, and those that are numbers to TensorBoard and `log.to`.

        Args:
          values: by name; a name with a slash is in TensorBoard's section before it.
          counters: to which they belong; by default the current ones.

        Raises:
          OSError: the disk is full or failed.
        """
        counters = counters or self.tally.counters
        plain = {name: value.item() if isinstance(value, np.generic) else value for name, value in values.items()}
        self.run.record_metrics({**plain, **counters.model_dump()})
        numbers = {name: float(value) for name, value in plain.items() if isinstance(value, int | float)}
        self._events.write(counters.agent_steps, numbers)
        if self._tracker:
            self._tracker.log(counters.agent_steps, numbers)

    def log_film(self, film: Path) -> None:
        """Passes the film of an evaluation to `log.to`."""
        if self._tracker:
            self._tracker.film(self.tally.agent_steps, film)

    def log_variables(self) -> None:
        """Writes statistics and histograms to TensorBoard: of trainable variables, and of activations on the probe."""
        self._events.write_histograms(self.tally.agent_steps, dict(self.probe.arrays(self.learners)))

    def commit_point(self, returns: Sequence[float] = (), request: str | None = None) -> PointState:
        """Makes a resume point, and removes weights that are no longer needed; see `ResumePoints.commit`."""
        with self.stopwatch.phase("resume point"):
            point, oldest = self.resume_points.commit(self._saved, returns, request)
        # If readers hold the lock, the next point removes them.
        with self.stopwatch.phase("prune"), contextlib.suppress(BlockingIOError):
            self.store.remove_weights(
                lambda: retention.removable(self.run, self.store, oldest, self._policies, self.settings.save),
                attempt=self.run.attempt,
            )
        return point

    def _restore(self, point: PointState) -> None:
        self._saved = point.saved
        self.store.reload()
        targets.check_present(self.settings, self.store, point.counters.updates)
        for learner, role, policy in self.resume_points.restore(point, self._policies):
            # Before training begins, nobody can hold another.
            instead = f"resume with another {role}.policy"
            if self._policies[role].text != "latest":
                instead = f"resume with --set {role}.policy=latest"
            self._refresh(learner, role, f"the policy was {policy}", instead=instead)
