"""Manual swaps during training: new requests, and those of an earlier attempt that must happen again."""

from twin_graph.errors import TwinGraphError, UsageError
from twin_graph.keeper import Keeper
from twin_graph.snapshots import control
from twin_graph.snapshots.control import Answer, Request
from twin_graph.snapshots.ledger import BY_HAND, BY_REQUEST, UNDO, Commit, Swap
from twin_graph.snapshots.run import Run


class SwapRequests:
    """Carries out what people request of a run while it trains, between two vector steps.

    A swap that was carried out after the resume point is an input of the run: when the run resumes, it is repeated at
    its recorded agent step.
    """

    def __init__(self, run: Run, keeper: Keeper) -> None:
        self._run = run
        self._keeper = keeper
        self._inbox = control.Inbox(run.control)
        swaps = run.ledger.with_abandoned(Swap, text=BY_REQUEST)
        self._done = {swap.request for swap, holds in swaps if holds}
        again = {swap.request: swap for swap, _ in swaps if swap.request not in self._done}
        self._again = sorted(again.values(), key=lambda swap: (swap.counters.agent_steps, swap.request))

    def carry_out(self, *, at_point: bool) -> bool:
        """Carries out what is due now.

        Args:
          at_point: a resume point was made at this very step, as a swap into the online twin needs.

        Returns:
          Whether a swap into the online twin waits for a resume point: make one, then call this again.
        """
        while self._again and self._again[0].counters.agent_steps <= self._keeper.tally.agent_steps:
            swap = self._again[0]
            if swap.into == "online" and not at_point:
                return True
            snapshots = [self._keeper.store.find(i) for i in swap.snapshots]
            assert swap.request is not None
            self._swap(
                snapshots, swap.learner, swap.into, hold=swap.hold, request=swap.request, undo=swap.policy == UNDO
            )
            del self._again[0]
        for request in self._inbox.new():
            if request.id in self._done or any(request.id == swap.request for swap in self._again):
                continue
            try:
                snapshots, learner, into = self._wanted(request)
            except TwinGraphError as error:
                control.answer(self._run.control, request, Answer(done=False, message=str(error)))
                continue
            if into == "online" and not at_point:
                self._inbox.look_again()
                return True
            self._swap(snapshots, learner, into, hold=request.hold, request=request.id, undo=request.kind == "undo")
        return False

    def _wanted(self, request: Request) -> tuple[list[Commit], str, str]:
        """What to restore, into whose twin, and into which."""
        store = self._keeper.store
        store.reload()
        last = self._last_by_hand() if request.kind == "undo" else None
        learner, into = (last.learner, last.into) if last else (request.learner, request.into)
        snapshots = [store.find(snapshot_id) for snapshot_id in (last.previous if last else (request.snapshot,))]
        if into == "target" and len(snapshots) > len(self._keeper.learners[learner].target.twins):
            raise UsageError(f"the target was {len(snapshots)} snapshots together, which this policy has no twins for")
        for snapshot in snapshots:
            store.prefix(snapshot.id)  # its weights are there
            store.check_files(snapshot.id)
            store.check_same_variables(snapshot.id, store.newest.id)
        return snapshots, learner, into

    def _last_by_hand(self) -> Swap:
        swaps = self._run.ledger.events(Swap, text=BY_REQUEST)
        if swaps and swaps[-1].policy != UNDO:
            last = swaps[-1]
            if last.into == "target" and self._keeper.learners[last.learner].target.policy != BY_HAND:
                raise UsageError(f"the schedule has replaced {last.snapshots[0]} since; nothing to undo")
            return last
        raise UsageError("there is no manual swap to undo")

    def _swap(self, snapshots: list[Commit], learner: str, into: str, *, hold: bool, request: str, undo: bool) -> None:
        swap = self._keeper.swap(snapshots, learner=learner, into=into, hold=hold, request=request, undo=undo)
        self._done.add(request)
        names = ", ".join(swap.snapshots)
        whose = "" if len(self._keeper.learners) == 1 else f"{learner}'s "
        message = f"{names} is in {whose or 'the '}{into} twin from update {swap.first_update:,} on" + (
            ", held" if hold else ""
        )
        answer = Answer(done=True, message=message, first_update=swap.first_update)
        for waiting in control.pending(self._run.control):
            if waiting.id == request:
                control.answer(self._run.control, waiting, answer)
