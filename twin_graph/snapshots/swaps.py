"""Manual swaps, as the command line and the page ask for them: checked here, carried out by the trainer."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

from twin_graph.base.text import command
from twin_graph.config import turns
from twin_graph.errors import TwinGraphError, UsageError
from twin_graph.snapshots import control
from twin_graph.snapshots.control import Answer, Request
from twin_graph.snapshots.ledger import BY_REQUEST, UNDO, Commit, Into, Restore

if TYPE_CHECKING:
    from twin_graph.snapshots.run import Run
    from twin_graph.snapshots.store import SnapshotStore

_PATIENCE_SECONDS = 120.0  # an evaluation or a resume point may be under way


class Outcome(NamedTuple):
    """The outcome of a swap that somebody asked for.

    Attributes:
      message: in words.
      done: whether it has taken effect, or withdrew a swap that was waiting.
      snapshot: which the reference meant; empty of an undo.
      request: what was requested of the trainer; None where nothing was, as in a dry run.
      answer: the trainer's; None where none trains.
    """

    message: str
    done: bool = False
    snapshot: str = ""
    request: Request | None = None
    answer: Answer | None = None


def swap(
    run: Run, reference: str, into: Into = "target", *, learner: str = "", hold: bool = False, dry_run: bool = False
) -> Outcome:
    """Checks whether a snapshot can be restored into a twin, and requests it.

    Args:
      run: whose twin.
      reference: see `SnapshotStore.resolve`.
      into: which twin.
      learner: whose; may be left out where there is one.
      hold: suspend refreshes by the schedule.
      dry_run: only check.

    Raises:
      UsageError: it is not possible; nothing was requested.
      DamagedError: the snapshot's files are not what was written.
      TwinGraphError: the trainer gave no answer.
    """
    if hold and into == "online":
        raise UsageError("--hold is only for a swap into the target or the opponent")
    if into == "opponent" and run.settings.opponent.policy is None:
        raise UsageError(f"{run.folder} has no opponent: {run.settings.env.id} has one player")
    names = turns.Turns(run.settings).learners
    if (learner or names[0]) not in names:
        raise UsageError(f"{run.folder} has one learner; leave out --learner")
    if not learner and len(names) > 1:
        raise UsageError(f"{run.folder} has two learners; choose one with --learner a or --learner b")
    store = run.store()
    snapshot = store.resolve(reference, run.scores)
    store.check_usable(snapshot.id)
    store.check_fits(snapshot.id)
    if run.state() != "running":
        _check_kept(run, store, snapshot)
    if dry_run:
        return Outcome(f"{snapshot.id} fits; nothing was changed", snapshot=snapshot.id)
    request = control.ask(run.control, "swap", snapshot.id, into, learner=learner or names[0], hold=hold)
    return _requested(run, request, snapshot.id)


def _check_kept(run: Run, store: SnapshotStore, snapshot: Commit) -> None:
    """Raises `UsageError` if a run that resumes now would abandon a snapshot: one committed after its resume point."""
    if point := run.points().newest():
        beyond = run.ledger.beyond(point.known_bytes[run.ledger.path.name])
        lost = {event.id for event in beyond if isinstance(event, Commit)}
        if snapshot.id in lost:
            kept = [other.id for other in store.available if other.id not in lost]
            raise UsageError(
                f"{snapshot.id} is newer than resume point {point.number}, from which {run.folder} resumes; "
                f"the newest that it then has is {kept[-1] if kept else 'none'}"
            )


def undo(run: Run, *, dry_run: bool = False) -> Outcome:
    """Reverts the last manual swap, even one that has not taken effect yet. Raises what `swap` raises."""
    waiting = [request for request in control.pending(run.control) if request.kind != "point"]
    # A process that was killed may have carried the last one out, and not have answered it: it will be repeated.
    was_made = waiting and any(
        swap.request == waiting[-1].id for swap, _ in run.ledger.with_abandoned(Restore, text=BY_REQUEST)
    )
    if waiting and not was_made and run.state() != "running":
        last = waiting[-1]
        if not dry_run:
            control.answer(run.control, last, Answer(done=False, message="undone before it took effect"))
        words = f"{'would undo' if dry_run else 'undone'}: {last.words()}, which had not taken effect yet"
        return Outcome(words, done=not dry_run)
    # A run that has just started may not have carried out waiting requests yet. It takes requests in order.
    swap = None if any(request.kind == "swap" for request in waiting) else last_by_hand(run)
    if dry_run:
        what = waiting[-1].words() if waiting and waiting[-1].kind == "swap" else "what is then the last swap"
        if swap:
            what = control.words_of_swap(", ".join(swap.snapshots), swap.into, swap.learner, hold=swap.hold)
        return Outcome(f"would undo: {what}; nothing was changed")
    return _requested(run, control.ask(run.control, "undo"))


def last_by_hand(run: Run) -> Restore:
    """The manual swap that an undo reverts: the newest that is neither undone nor replaced by the schedule.

    Raises `UsageError` if there is none.
    """
    none, because = f"there is no manual swap to undo in {run.folder}", ""
    if not run.ledger.events(Restore, text=BY_REQUEST):  # all others need not be read
        raise UsageError(none)
    undone, replaced = Counter[tuple[str, ...]](), set[tuple[str, ...]]()
    for swap in run.ledger.newest_first(Restore):
        twin = swap.into, swap.learner, swap.worker
        if swap.request is None:
            replaced.add(twin)
        elif swap.policy == UNDO:
            undone[twin] += 1
        elif undone[twin]:
            undone[twin] -= 1
        elif twin not in replaced:
            return swap
        else:
            because = because or f": the schedule has replaced {swap.snapshots[0]} since"
    raise UsageError(none + because)


def answered(run: Run, request: Request, otherwise: str) -> Answer:
    """The answer of a run that is training.

    Raises:
      TwinGraphError: there is none; the message ends with `otherwise`.
    """
    answer = control.wait(run.control, request, lambda: run.state() == "running", _PATIENCE_SECONDS)
    if answer is None:
        gone = run.state() != "running"
        raise TwinGraphError(f"the run {'ended without an answer' if gone else 'has not answered yet'}; {otherwise}")
    return answer


def _requested(run: Run, request: Request, snapshot: str = "") -> Outcome:
    if run.state() != "running":
        recorded = "the run is not training now; this takes effect when it resumes. `swap --undo` undoes it"
        return Outcome(f"recorded: {recorded}", snapshot=snapshot, request=request)
    undoing = command("swap", run.folder, "--undo")
    answer = answered(run, request, f"the request stays recorded, and `{undoing}` undoes it")
    return Outcome(answer.message, answer.done, snapshot, request, answer)
