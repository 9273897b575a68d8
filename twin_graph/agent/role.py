"""What past selves are restored for: a target, which supplies bootstrap values, or an opponent in a game of two."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from twin_graph.agent.ensemble import Ensemble
from twin_graph.errors import DamagedError
from twin_graph.snapshots.control import swap_command
from twin_graph.snapshots.ledger import BY_HAND, UNDO, Commit, Counters, Restore, utc_now
from twin_graph.snapshots.points import RoleState
from twin_graph.targets.policies import Choice, History, Match, SnapshotPolicy, choice_stream

if TYPE_CHECKING:
    from twin_graph.base.counters import Tally
    from twin_graph.snapshots.run import Run
    from twin_graph.snapshots.store import SnapshotStore
    from twin_graph.twin.twin import Twin


class Why(NamedTuple):
    """Who chose snapshots, and why; see `twin_graph.snapshots.ledger.Restore`."""

    policy: str
    reason: str
    candidates: tuple[str, ...]
    draw: float | None = None
    hold: bool = False
    request: str | None = None
    at_point: bool = False

    def record(
        self,
        run: Run,
        counters: Counters,
        *,
        into: str,
        learner: str,
        snapshots: Sequence[str],
        previous: Sequence[str],
        combine: str = "",
    ) -> Restore:
        """Records what was restored, durable when this returns; returns the ledger's line."""
        swap = Restore(
            attempt=run.attempt,
            time=utc_now(),
            into=into,
            learner=learner,
            snapshots=tuple(snapshots),
            combine=combine if len(snapshots) > 1 else "",
            first_update=counters.updates + 1,
            counters=counters,
            previous=tuple(previous),
            **self._asdict(),
        )
        run.ledger.append(swap)
        return swap


class Role(Ensemble):
    """A learner's target, or its opponent: the twins, the policy that chooses for them, when, and what was recorded.

    Args:
      name: `target` or `opponent`.
      learner: whose, by its name.
      source: the lineage from which the policy chooses.
      policy: of the run's settings.
      run: in whose ledger each restore is recorded.
      store: the run's snapshots.
      make: makes a twin of the given name.

    Attributes:
      name, policy: as given.
      schedule: of its refreshes.
      has_rivals: whether the policy wants games of other snapshots besides the newest one's.
      since: counters when the present snapshots were restored.
      chosen_by: the policy that chose them, or a person's request.
      held: whether a person has suspended scheduled refreshes.
    """

    def __init__(
        self,
        name: str,
        learner: str,
        source: str,
        policy: SnapshotPolicy,
        run: Run,
        store: SnapshotStore,
        make: Callable[[str], Twin],
    ) -> None:
        # A person can swap a snapshot in even where the policy uses none.
        super().__init__(name, make, members=max(1, policy.members), combine=policy.combine)
        self.name, self.policy, self.has_rivals = name, policy, policy.has_rivals
        self._learner, self._source = learner, source
        self._run, self._store = run, store
        self.schedule = run.settings.refresh_schedule_of(name)
        self.since = Counters.zero()
        self.chosen_by = ""
        self.held = False

    def is_due(self, tally: Tally) -> bool:
        """Whether the schedule asks for a refresh, unless a person holds it."""
        return not self.held and self.schedule.due(self.since, tally)

    def refresh(self, counters: Counters, played: Sequence[Match], reason: str, *, instead: str = "") -> None:
        """Restores what the policy chooses now, and records it.

        Args:
          counters: of now.
          played: the scheduled evaluations so far.
          reason: why now, for the ledger.
          instead: what people can do if the snapshot is damaged; by default, hold another.

        Raises:
          ForeignError: the policy is a user's own, and failed.
          DamagedError: what it chose cannot be restored.
        """
        choice = self.choose(counters, played)
        candidates = tuple(snapshot.id for snapshot in choice.candidates)
        why = Why(self.policy.text, f"{reason}: {choice.reason}", candidates, choice.draw)
        try:
            self._restore(choice.snapshots, counters, why)
        except DamagedError as error:
            swap = swap_command(self._run.folder, "--hold", into=self.name, learner=self._learner)
            instead = instead or f"hold another: `{swap} REF`; then resume"
            raise DamagedError(f"{error}. Restore its files, or {instead}") from error

    def choose(self, now: Counters, played: Sequence[Match]) -> Choice:
        """What the policy chooses. Raises `ForeignError` if it is a user's own, and fails."""
        history = History.of(self._store, self._source, now, played)
        return self.policy.choose(
            history, choice_stream(self._run.settings.seed, self.name, self._learner, now.updates)
        )

    def swap(self, snapshots: Sequence[Commit], counters: Counters, why: Why) -> Restore:
        """Restores what a person chose, and records it."""
        swap = self._restore(snapshots, counters, why)
        self.held = why.hold
        return swap

    def _restore(self, snapshots: Sequence[Commit], counters: Counters, why: Why) -> Restore:
        previous = self.snapshots
        self.restore(snapshots, self._store)
        self.since, self.chosen_by = counters, why.policy
        return why.record(
            self._run,
            counters,
            into=self.name,
            learner=self._learner,
            snapshots=self.snapshots,
            previous=previous,
            combine=self.policy.combine,
        )

    @property
    def state(self) -> RoleState:
        """What a resume point stores about it."""
        return RoleState(snapshots=self.snapshots, since=self.since, policy=self.chosen_by, held=self.held)

    def take_up(self, state: RoleState | None) -> bool:
        """Returns to what a resume point stored; False if another policy chose that, so that it must be refreshed."""
        if state is None or state.policy not in (self.policy.text, BY_HAND, UNDO):
            return False
        # A player without snapshots, to which a person went back, is none of a policy that needs some.
        if not min(1, self.policy.members) <= len(state.snapshots) <= len(self.twins):
            return False
        self.restore([self._store.find(i) for i in state.snapshots], self._store)
        self.since, self.chosen_by, self.held = state.since, state.policy, state.held
        return True
