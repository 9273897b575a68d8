"""`twin-graph swap`."""

import functools
import sys

import click

from twin_graph.errors import TwinGraphError, UsageError
from twin_graph.snapshots import swaps
from twin_graph.snapshots.control import Answer, Request
from twin_graph.snapshots.ledger import Into
from twin_graph.snapshots.run import find

from .params import REF_HELP, json_option, print_json, ref_argument, run_argument, say


@click.command(epilog=REF_HELP)
@run_argument
@ref_argument(required=False)
@click.option(
    "--into",
    type=click.Choice(["target", "opponent", "online"]),
    default="target",
    show_default=True,
    help="Which twin to restore it into.",
)
@click.option("--learner", type=click.Choice(["a", "b"]), help="Whose twin, in mode=mutual.")
@click.option(
    "--hold",
    is_flag=True,
    help="Suspend scheduled refreshes until --undo, or a swap into the same twin without --hold.",
)
@click.option(
    "--undo",
    is_flag=True,
    help="Undo the last manual swap into this twin, and its --hold, if RUN was not resumed since. Again: redo.",
)
@click.option("--yes", is_flag=True, help="Agree to what the online twin loses, without being asked.")
@click.option("--dry-run", is_flag=True, help="Only check whether it is possible, and what the online twin would lose.")
@json_option
def swap(
    run: str,
    ref: str | None,
    into: Into,
    learner: str | None,
    hold: bool,
    undo: bool,
    yes: bool,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Restore snapshot REF into a twin of RUN, whether or not RUN is training.

    While RUN trains, the swap happens after the current step, or chunk of steps, and the answer names the first update
    that used it. Otherwise it is recorded, and takes effect when RUN is resumed. Before a swap into the online twin,
    its weights and a resume point are committed; after it, the optimizer is reset. What the twin loses is said first,
    and you are asked; where nobody can answer, --yes is needed.

    \b
    Examples:
      twin-graph swap pong-seed1-1 latest~5 --hold
      twin-graph swap pong-seed1-1 --undo
      twin-graph swap pong-seed1-1 best --into online --yes
    """
    found = find(run)
    if undo == (ref is not None):
        raise UsageError("give REF or --undo, not both" if undo else "give REF, or --undo to undo the last swap")
    if undo and hold:
        raise UsageError("--undo returns to the hold of before; leave out --hold")
    if undo:
        act = functools.partial(swaps.undo, found, into, learner=learner or "")
    else:
        act = functools.partial(swaps.swap, found, ref or "", into, learner=learner or "", hold=hold)
    outcome = act(dry_run=True)
    if not dry_run:
        outcome = act(yes=_agreed(outcome.loss, yes=yes))
    if outcome.request and outcome.answer:
        tell(outcome.request, outcome.answer, as_json)
        return
    say(outcome.message)
    if as_json:
        request = outcome.request.id if outcome.request else None
        print_json({"request": request, "done": outcome.done, "message": outcome.message})


def _agreed(loss: str, *, yes: bool) -> bool:
    """Says what would be lost, and asks whether to go on unless that is agreed to; ends the command if not.

    Where nobody can answer it asks nothing, and the swap is refused.
    """
    if not loss or not (yes or sys.stdin.isatty()):
        return False
    say(loss)
    if not (yes or click.confirm("Go on?", err=True)):
        say("nothing was changed")
        raise click.exceptions.Exit(1)
    return True


def tell(request: Request, answer: Answer, as_json: bool) -> None:
    """Reports the answer of a run that is training. Raises `TwinGraphError` if it refused."""
    if as_json:
        print_json({"request": request.id, **answer.model_dump()})
    if not answer.done:
        raise TwinGraphError(answer.message)
    say(answer.message)
