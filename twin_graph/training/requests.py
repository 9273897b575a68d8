"""What people request of a run while it trains, and what they requested of an earlier attempt after its last point."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from twin_graph.base.text import counted
from twin_graph.errors import DamagedError, ForeignError, UsageError
from twin_graph.snapshots import control
from twin_graph.snapshots.control import Answer, Request
from twin_graph.snapshots.ledger import BY_REQUEST, UNDO, Commit, Fork, Point, Restore
from twin_graph.snapshots.swaps import last_by_hand

if TYPE_CHECKING:
    from twin_graph.agent.live_run import LiveRun


class Requests:
    """Carries out what people request of a run between two vector steps: swaps and resume points.

    What was carried out after the resume point is an input of the run: when the run resumes, it is repeated at its
    recorded agent step. A fork does not repeat it: its future is its own. What was left out then is not made up for
    later. What could not be done or repeated is added to the run's notices.
    """

    def __init__(self, live: LiveRun) -> None:
        self._live = live
        self._run = run = live.run
        self._inbox = control.Inbox(run.control, live.notices)
        self._at_rest = {request.id for request in control.pending(run.control)}
        points = run.ledger.with_abandoned(Point)
        events: list[tuple[Point | Restore, bool]] = [(point, holds) for point, holds in points if point.request]
        events += run.ledger.with_abandoned(Restore, text=BY_REQUEST)
        self._done = {(event.event, event.request) for event, holds in events if holds}
        forked = max((fork.attempt for fork in run.ledger.events(Fork)), default=0)
        again = {(event.event, event.request): event for event, _ in events if event.attempt > forked}
        here = live.tally.agent_steps
        waiting = [e for key, e in again.items() if key not in self._done and e.counters.agent_steps >= here]
        # A point comes before the swap that asked for it.
        self._again = sorted(waiting, key=lambda e: (e.counters.agent_steps, e.request or "", e.event))

    def carry_out(self) -> str | None:
        """Carries out what is due now.

        Returns:
          The request that waits for a resume point at this step, if one does: make it, then call this again.
        """
        while self._again and self._again[0].counters.agent_steps <= self._live.tally.agent_steps:
            event = self._again[0]
            assert event.request is not None
            if not self._live.at_point and (isinstance(event, Point) or event.at_point or event.into == "online"):
                return event.request
            if isinstance(event, Restore):
                self._repeat(event, event.request)
            del self._again[0]
            self._inbox.look_again()  # a crash may have left its request without an answer
        for request in self._inbox.new():
            if any(self._waits_for(request, event) for event in self._again):
                continue
            if waits := self._answer(request):
                self._inbox.look_again()
                return waits
        return None

    def _waits_for(self, request: Request, event: Point | Restore) -> bool:
        """Whether something that is still to be repeated comes first.

        The event is this very request; or the request is an undo that may refer to it; or, repeated later, it would
        overwrite what was requested at rest.
        """
        if request.id == event.request:
            return True
        if request.kind == "point" or isinstance(event, Point):
            return False
        same = (request.learner, request.into) == (event.learner, event.into)
        return same and (request.kind == "undo" or request.id in self._at_rest)

    def _repeat(self, swap: Restore, request: str) -> None:
        """Repeats a swap of an earlier attempt; adds a notice if its snapshot was not made again, or no longer fits."""
        undo = swap.policy == UNDO
        try:
            snapshots = self._usable(swap.snapshots, swap.learner, swap.into)
            self._swap(snapshots, swap.learner, swap.into, hold=swap.hold, request=request, undo=undo)
        except (UsageError, DamagedError, ForeignError) as error:
            what, after = "the undo of a swap" if undo else "a swap", counted(swap.counters.agent_steps, "agent step")
            self._live.notices.append(f"{what} after {after} was not repeated: {error}")

    def _answer(self, request: Request) -> str | None:
        """Carries out a new request, or one that a crash left unanswered; returns as `carry_out` does."""
        if request.kind == "point":
            if not self._live.at_point and ("point", request.id) not in self._done:
                return request.id
            point = self._live.resume_points.newest
            assert point is not None
            message = f"resume point {point.number} is after {counted(point.counters.updates, 'update')}"
            control.answer(self._run.control, request, Answer(done=True, message=message))
        elif ("swap", request.id) not in self._done:
            learner, into, undo = request.learner, request.into, request.kind == "undo"
            try:
                snapshots, hold = self._wanted(request)
                if into == "online" and not self._live.at_point:
                    return request.id
                self._swap(snapshots, learner, into, hold=hold, request=request.id, undo=undo)
            except (UsageError, DamagedError, ForeignError) as error:
                control.answer(self._run.control, request, Answer(done=False, message=str(error)))
                self._live.notices.append(f"{request.words()} is refused: {error}")
        return None

    def _wanted(self, request: Request) -> tuple[list[Commit], bool]:
        """What to restore, and whether it is held."""
        self._live.store.reload()
        undo = request.kind == "undo"
        wanted, hold = self._before(request) if undo else ([request.snapshot], request.hold)
        return self._usable(wanted, request.learner, request.into), hold

    def _before(self, undo: Request) -> tuple[Sequence[str], bool]:
        """What the twin held before the swap that is undone, and whether that was held."""
        last, was_held = last_by_hand(self._run, undo.into, undo.learner)
        if undo.undoes not in ("", last.request):
            raise UsageError(f"it was asked of another swap than the newest, which is now {', '.join(last.snapshots)}")
        role = self._live.learners[undo.learner].roles.get(undo.into)
        if last.previous or not role:
            return last.previous, was_held
        chosen = role.choose(self._live.tally.counters, self._live.matches.played)  # it was a player without snapshots
        return [snapshot.id for snapshot in chosen.snapshots], was_held

    def _usable(self, ids: Sequence[str], learner: str, into: str) -> list[Commit]:
        """These snapshots. Raises `TwinGraphError` unless they can be restored into that twin."""
        store = self._live.store
        snapshots = [store.find(snapshot_id) for snapshot_id in ids]
        role = self._live.learners[learner].roles.get(into)
        if into != "online" and not role:
            raise UsageError(f"there is no {into}: opponent.policy is not set")
        if role and len(snapshots) > len(role.twins):
            raise UsageError(f"the {into} held {len(snapshots)} snapshots, more than this policy has twins for")
        for snapshot in snapshots:
            store.check_usable(snapshot.id)
            store.check_fits(snapshot.id)
        if into == "online":  # before a resume point and a snapshot are made for it
            self._live.learners[learner].try_online(*snapshots)
        return snapshots

    def _swap(self, snapshots: list[Commit], learner: str, into: str, *, hold: bool, request: str, undo: bool) -> None:
        role = self._live.learners[learner].roles.get(into)
        was_held = role is not None and role.held
        swap = self._live.swap(snapshots, learner=learner, into=into, hold=hold, request=request, undo=undo)
        self._done.add(("swap", request))
        names = ", ".join(swap.snapshots) or self._live.settings.opponent.policy
        whose = "" if len(self._live.learners) == 1 else f"{learner}'s "
        twin = into if into == "opponent" else f"{into} twin"
        verb = "are" if len(swap.snapshots) > 1 else "is"
        end = ", held" if hold else ", and the hold has ended" if was_held else ""
        message = f"{names} {verb} in {whose or 'the '}{twin} from update {swap.first_update:,} on{end}"
        answer = Answer(done=True, message=message, first_update=swap.first_update)
        for waiting in control.pending(self._run.control):
            if waiting.id == request:
                control.answer(self._run.control, waiting, answer)
