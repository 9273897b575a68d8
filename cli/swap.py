"""`twin-graph swap`."""

from typing import Any

import click

from twin_graph import mutual
from twin_graph.errors import TwinGraphError, UsageError
from twin_graph.snapshots import control
from twin_graph.snapshots.control import Answer, Request
from twin_graph.snapshots.ledger import BY_REQUEST, Into, Swap
from twin_graph.snapshots.run import Run, find
from twin_graph.words import command

from .params import json_option, print_json, run_argument, say

_PATIENCE_SECONDS = 120.0  # an evaluation or a resume point may be under way


@click.command()
@run_argument
@click.argument("ref", required=False)
@click.option(
    "--into",
    type=click.Choice(["target", "opponent", "online"]),
    default="target",
    show_default=True,
    help="Which twin to restore it into.",
)
@click.option("--learner", type=click.Choice(["a", "b"]), help="Whose twin, in mode=mutual.")
@click.option("--hold", is_flag=True, help="Suspend scheduled refreshes until --undo.")
@click.option("--undo", is_flag=True, help="Undo the last manual swap, and end --hold.")
@click.option("--dry-run", is_flag=True, help="Only check whether it is possible.")
@json_option
def swap(
    run: str,
    ref: str | None,
    into: Into,
    learner: str | None,
    hold: bool,
    undo: bool,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Restore snapshot REF into a twin of RUN, whether or not RUN is training.

    While RUN trains, the swap happens at the next agent step, and the answer names the first update that used it.
    Otherwise it is recorded, and takes effect when RUN is resumed. A swap into the online twin first commits its
    weights and a resume point, and resets the optimizer.

    \b
    Examples:
      twin-graph swap pong-seed1-1 latest~5 --hold
      twin-graph swap pong-seed1-1 --undo
    """
    found = find(run)
    if undo == (ref is not None):
        raise UsageError("give REF, or --undo to undo the last swap")
    if hold and (undo or into == "online"):
        raise UsageError("--hold is only for a swap into the target or the opponent")
    names = mutual.Turns(found.settings).learners
    if not undo and (learner or names[0]) not in names:
        raise UsageError(f"{found.folder} has one learner; leave out --learner")
    if not undo and not learner and len(names) > 1:
        raise UsageError(f"{found.folder} has two learners; choose one with --learner a or --learner b")
    if undo:
        _undo(found, dry_run, as_json)
        return
    assert ref is not None
    store = found.store()
    snapshot = store.resolve(ref, found.scores())
    store.prefix(snapshot.id)
    store.check_files(snapshot.id)
    store.check_same_variables(snapshot.id, store.newest.id)
    if dry_run:
        say(f"{snapshot.id} fits; nothing was changed")
        return
    _ask(found, as_json, "swap", snapshot.id, into, learner=learner or names[0], hold=hold)


def _undo(run: Run, dry_run: bool, as_json: bool) -> None:
    waiting = control.pending(run.control)
    if waiting and run.state() != "running":
        last = waiting[-1]
        if not dry_run:
            control.answer(run.control, last, Answer(done=False, message="undone before it took effect"))
        say(f"{'would undo' if dry_run else 'undone'}: {last.words()}, which had not taken effect yet")
        return
    if not run.ledger.events(Swap, text=BY_REQUEST):
        raise UsageError(f"there is no manual swap to undo in {run.folder}")
    if dry_run:
        say("there is a manual swap to undo; nothing was changed")
        return
    _ask(run, as_json, "undo")


def _ask(run: Run, as_json: bool, *what: Any, **how: Any) -> None:
    """Requests something of a run; reports what became of it if it is training, else that it is recorded."""
    request = control.ask(run.control, *what, **how)
    if run.state() == "running":
        answered(
            run,
            request,
            f"the request stays recorded, and `{command('swap', run.folder, '--undo')}` undoes it",
            as_json,
        )
        return
    say("recorded: the run is not training; it takes effect when the run is resumed. `swap --undo` undoes it")
    if as_json:
        print_json({"request": request.id, "done": False, "message": "recorded"})


def answered(run: Run, request: Request, otherwise: str, as_json: bool) -> None:
    """Waits for the answer of a run that is training. Raises `TwinGraphError` if there is none, or it was refused."""
    answer = control.wait(run.control, request, lambda: run.state() == "running", _PATIENCE_SECONDS)
    if answer is None:
        gone = run.state() != "running"
        raise TwinGraphError(f"the run {'ended without an answer' if gone else 'has not answered yet'}; {otherwise}")
    if as_json:
        print_json({"request": request.id, **answer.model_dump()})
    if not answer.done:
        raise TwinGraphError(answer.message)
    say(answer.message)
