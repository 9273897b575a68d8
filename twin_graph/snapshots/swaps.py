"""Manual swaps, as the command line and the page ask for them: checked here, carried out by the trainer."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from twin_graph.base import doing
from twin_graph.base.text import command, counted
from twin_graph.config import turns
from twin_graph.errors import TwinGraphError, UsageError
from twin_graph.snapshots import control
from twin_graph.snapshots.control import Answer, Request
from twin_graph.snapshots.ledger import BY_REQUEST, IMPORT, Commit, Counters, Fork, Into, Point, Restore, Start

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
      loss: what the online twin loses by it, in words; empty if nothing.
    """

    message: str
    done: bool = False
    snapshot: str = ""
    request: Request | None = None
    answer: Answer | None = None
    loss: str = ""


def swap(
    run: Run,
    reference: str,
    into: Into = "target",
    *,
    learner: str = "",
    hold: bool = False,
    dry_run: bool = False,
    yes: bool = False,
) -> Outcome:
    """Checks whether a snapshot can be restored into a twin, and requests it.

    Args:
      run: whose twin.
      reference: see `SnapshotStore.resolve`.
      into: which twin.
      learner: whose; may be left out where there is one.
      hold: suspend refreshes by the schedule.
      dry_run: only check.
      yes: whoever asks knows the loss, which a dry run says, and agrees.

    Raises:
      UsageError: it is not possible, or the online twin would lose what nobody agreed to; nothing was requested.
      DamagedError: the snapshot's files are not what was written.
      TwinGraphError: the trainer gave no answer.
    """
    if hold and into == "online":
        raise UsageError("--hold is only for a swap into the target or the opponent")
    learner = _named_learner(run, into, learner)
    store = run.store()
    snapshot = store.resolve(reference, run.scores)
    store.check_usable(snapshot.id)
    store.check_fits(snapshot.id)
    if run.state() != "running":
        _check_kept(run, store, snapshot)
    loss = _loss_by_swap(run, snapshot, learner) if into == "online" else ""
    if dry_run:
        return Outcome(_tried(f"{snapshot.id} fits", loss), snapshot=snapshot.id, loss=loss)
    _check_agreed(loss, yes=yes)
    request = control.ask(run.control, "swap", snapshot.id, into, learner=learner, hold=hold)
    return _requested(run, request, snapshot.id, loss)


def _named_learner(run: Run, into: Into, learner: str) -> str:
    """The learner that is meant. Raises `UsageError` if the run has no such learner, or no such twin."""
    if into == "opponent" and run.settings.opponent.policy is None:
        raise UsageError(f"{run.folder} has no opponent: {run.settings.env.id} has one player")
    names = turns.Turns(run.settings).learners
    if (learner or names[0]) not in names:
        raise UsageError(f"{run.folder} has one learner; leave out --learner")
    if not learner and len(names) > 1:
        raise UsageError(f"{run.folder} has two learners; choose one with --learner a or --learner b")
    return learner or names[0]


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


def undo(run: Run, into: Into = "target", *, learner: str = "", dry_run: bool = False, yes: bool = False) -> Outcome:
    """Reverts the newest manual swap into a twin, if the present attempt made it; one that waits is withdrawn.

    An undo is itself a manual swap: a second one brings back what the first replaced. Raises what `swap` raises.
    """
    learner = _named_learner(run, into, learner)
    waiting = _waiting(run, into, learner)
    if waiting and not waiting.is_made and run.state() != "running":
        return _withdrawn(run, waiting.request, dry_run=dry_run)
    if waiting and not waiting.holds:  # a run takes requests in order: it will be made, and then undone
        words, undoes, loss = waiting.request.words(), waiting.request.id, ""
    else:
        swap, _ = last_by_hand(run, into, learner)
        _check_present(run, swap)
        words, undoes = _words(swap), swap.request or ""
        loss = _loss(run, swap.counters, words, learner) if into == "online" else ""
    if dry_run:
        return Outcome(_tried(f"would undo: {words}", loss), loss=loss)
    _check_agreed(loss, yes=yes)
    return _requested(run, control.ask(run.control, "undo", into=into, learner=learner, undoes=undoes), loss=loss)


class _Waiting(NamedTuple):
    """A request without an answer. A killed process may have made its swap: `holds`, or abandoned and to be repeated.

    Attributes:
      request: which.
      is_made: whether the ledger has its swap, though it may be abandoned.
      holds: whether it is not.
    """

    request: Request
    is_made: bool
    holds: bool


def _waiting(run: Run, into: Into, learner: str) -> _Waiting | None:
    """The newest request for a swap or an undo into this twin, if one waits for an answer."""
    into_it = (one for one in reversed(control.pending(run.control)) if (one.into, one.learner) == (into, learner))
    if request := next((one for one in into_it if one.kind != "point"), None):
        made = run.ledger.with_abandoned(Restore, text=BY_REQUEST)
        holding = [holds for swap, holds in made if swap.request == request.id]
        return _Waiting(request, bool(holding), any(holding))
    return None


def _withdrawn(run: Run, request: Request, *, dry_run: bool) -> Outcome:
    if not dry_run:
        control.answer(run.control, request, Answer(done=False, message="undone before it took effect"))
    words = f"{'would undo' if dry_run else 'undone'}: {request.words()}, which had not taken effect yet"
    return Outcome(words, done=not dry_run)


def last_by_hand(run: Run, into: str, learner: str) -> tuple[Restore, bool]:
    """The manual swap that an undo of a twin reverts: the newest, an undo too, unless the schedule has replaced it.

    Returns:
      It, and whether what it replaced was held.

    Raises:
      UsageError: there is none.
    """
    by_hand = run.ledger.events(Restore, text=BY_REQUEST)  # all others need not be read
    if not any(_is_into(swap, into, learner) for swap in by_hand):
        raise _nothing_to_undo(
            run, f"none was made into {control.words_of_twin(into, learner)}{_elsewhere(run, by_hand)}"
        )
    all_into_it = (swap for swap in run.ledger.newest_first(Restore) if _is_into(swap, into, learner))
    newest = next(all_into_it)
    if newest.request is None:
        lost = next(swap for swap in reversed(by_hand) if _is_into(swap, into, learner))
        another = control.swap_command(run.folder, "REF", into=into, learner=learner)
        raise _nothing_to_undo(
            run, f"the schedule has replaced {_names(lost.snapshots)} since; `{another}` restores another"
        )
    if into == "online":  # which has no schedule, and so no holds
        return newest, False
    before = next(all_into_it, None)
    return newest, before is not None and before.hold


def _is_into(swap: Restore, into: str, learner: str) -> bool:
    return (swap.into, swap.learner, swap.worker) == (into, learner, "")


def _is_present(run: Run, swap: Restore) -> bool:
    """Whether a swap was made since the run was last begun, resumed or forked."""
    began = next(run.ledger.newest_first(Start, Fork), None)
    return isinstance(began, Start) and swap.attempt == began.attempt


def _check_present(run: Run, swap: Restore) -> None:
    """Raises `UsageError` if an earlier attempt made a swap: much may have been trained on it since."""
    if not _is_present(run, swap):
        back = _names(swap.previous[:1]) or "REF"
        back_to = control.swap_command(run.folder, back, into=swap.into, learner=swap.learner)
        at = command("fork", run.folder, "--at", "POINT")
        raise _nothing_to_undo(
            run,
            f"the newest, {_words(swap)}, was made by attempt {swap.attempt}, and the run has been resumed since; "
            f"`{back_to}` restores what it replaced, and `{at}` an earlier state of the run",
        )


def _nothing_to_undo(run: Run, because: str) -> UsageError:
    return UsageError(f"there is no manual swap to undo in {run.folder}: {because}")


def _elsewhere(run: Run, by_hand: Sequence[Restore]) -> str:
    """For a message: the newest manual swap into another twin, and how to undo it, if that can be done."""
    of_run = [swap for swap in by_hand if not swap.worker]
    if not of_run or not _is_present(run, of_run[-1]):
        return ""
    newest = of_run[-1]
    undoing = control.swap_command(run.folder, "--undo", into=newest.into, learner=newest.learner)
    return f"; `{undoing}` undoes the newest, {_words(newest)}"


def _names(snapshots: Sequence[str]) -> str:
    return ", ".join(snapshots)


def _words(swap: Restore) -> str:
    names = _names(swap.snapshots) or "the policy's choice"
    return control.words_of_swap(names, swap.into, swap.learner, hold=swap.hold)


def _loss_by_swap(run: Run, snapshot: Commit, learner: str) -> str:
    """As `_loss`, if a snapshot is restored; one from outside, or of another learner, has nothing of this twin's."""
    if snapshot.lineage == IMPORT or snapshot.learner != learner:
        return _loss(run, Counters.zero(), "the run began", learner)
    return _loss(run, snapshot.counters, snapshot.id, learner)


def _loss(run: Run, since: Counters, what: str, learner: str) -> str:
    """What the online twin loses if it returns to what it was then, in words; empty if it has not learned anything."""
    is_running = run.state() == "running"
    now = _recorded(run) if is_running else _at_rest(run)
    if not now.updates:
        return ""
    lost, at_least = "the optimizer's state", "at least " if is_running else ""
    if now.updates > since.updates:
        updates = counted(now.updates - since.updates, "update")
        steps = counted(max(0, now.agent_steps - since.agent_steps), "agent step")
        lost = f"what it learned in {at_least}{updates} and {steps} since {what}, and {lost}"
    back = control.swap_command(run.folder, "--undo", into="online", learner=learner)
    twin = control.words_of_twin("online", learner)
    return f"{twin} loses {lost}; its weights are committed as a snapshot first, and `{back}` brings them back"


def _at_rest(run: Run) -> Counters:
    """Where a run that is not training will resume."""
    point = run.points().newest()
    return point.counters if point else Counters.zero()


def _recorded(run: Run) -> Counters:
    """How far a run that is training has come at least, by its records."""
    newest = (
        event.counters
        for event in run.ledger.newest_first(Commit, Restore, Point)
        if isinstance(event, Restore | Point) or (isinstance(event, Commit) and event.lineage != IMPORT)
    )
    known = list(itertools.islice(newest, 1))
    metrics = run.newest_metrics()
    if metrics.get("attempt") == run.ledger.attempt:
        known.append(Counters(**{name: metrics[name] for name in Counters.model_fields}))
    return max(known, key=lambda one: (one.updates, one.agent_steps), default=Counters.zero())


def _check_agreed(loss: str, *, yes: bool) -> None:
    if loss and not yes:
        raise UsageError(f"{loss}; agree with --yes")


def _tried(what: str, loss: str) -> str:
    return f"{what}; nothing was changed{f'. With it, {loss}' if loss else ''}"


def answered(run: Run, request: Request, otherwise: str) -> Answer:
    """The answer of a run that is training.

    Raises:
      TwinGraphError: there is none; the message ends with `otherwise`.
    """
    doing.now("waiting for the trainer to answer")
    answer = control.wait(run.control, request, lambda: run.state() == "running", _PATIENCE_SECONDS)
    if answer is None:
        gone = run.state() != "running"
        raise TwinGraphError(f"the run {'ended without an answer' if gone else 'has not answered yet'}; {otherwise}")
    return answer


def _requested(run: Run, request: Request, snapshot: str = "", loss: str = "") -> Outcome:
    undoing = control.swap_command(run.folder, "--undo", into=request.into, learner=request.learner)
    if run.state() != "running":
        recorded = f"the run is not training now; this takes effect when it resumes. `{undoing}` undoes it"
        return Outcome(f"recorded: {recorded}", snapshot=snapshot, request=request, loss=loss)
    answer = answered(run, request, f"the request stays recorded, and `{undoing}` undoes it")
    return Outcome(answer.message, answer.done, snapshot, request, answer, loss)
