"""`twin-graph swap`."""

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
    help="Undo the last manual swap, and end its --hold; while it trains, again for the one before.",
)
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

    While RUN trains, the swap happens after the current step, or chunk of steps, and the answer names the first update
    that used it. Otherwise it is recorded, and takes effect when RUN is resumed. Before a swap into the online twin,
    its weights and a resume point are committed; after it, the optimizer is reset.

    \b
    Examples:
      twin-graph swap pong-seed1-1 latest~5 --hold
      twin-graph swap pong-seed1-1 --undo
    """
    found = find(run)
    if undo == (ref is not None):
        raise UsageError("give REF or --undo, not both" if undo else "give REF, or --undo to undo the last swap")
    if undo and (hold or learner or into != "target"):
        raise UsageError("--undo takes back the last manual swap, into any twin; leave out --into, --learner, --hold")
    if undo:
        outcome = swaps.undo(found, dry_run=dry_run)
    else:
        assert ref is not None
        outcome = swaps.swap(found, ref, into, learner=learner or "", hold=hold, dry_run=dry_run)
    if outcome.request and outcome.answer:
        tell(outcome.request, outcome.answer, as_json)
        return
    say(outcome.message)
    if as_json:
        request = outcome.request.id if outcome.request else None
        print_json({"request": request, "done": outcome.done, "message": outcome.message})


def tell(request: Request, answer: Answer, as_json: bool) -> None:
    """Reports the answer of a run that is training. Raises `TwinGraphError` if it refused."""
    if as_json:
        print_json({"request": request.id, **answer.model_dump()})
    if not answer.done:
        raise TwinGraphError(answer.message)
    say(answer.message)
