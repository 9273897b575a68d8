"""`twin-graph evaluate`."""

import click

from twin_graph.errors import TwinGraphError, UsageError
from twin_graph.remote import reading
from twin_graph.remote.urls import is_url
from twin_graph.snapshots.lines import record_evaluation
from twin_graph.snapshots.run import locate

from .display import Meter
from .params import (
    ANY_REF_HELP,
    Count,
    echo,
    json_option,
    print_json,
    protocol_line,
    ref_argument,
    run_argument,
    trust_option,
)


@click.command(epilog=ANY_REF_HELP)
@run_argument
@ref_argument(default="latest")
@click.option("--episodes", type=Count(min=1, max=100_000), default=30, show_default=True, help="Games to play.")
@click.option("--seed", type=click.IntRange(0, 2**31 - 1), default=0, show_default=True, help="Seed of the games.")
@trust_option
@json_option
def evaluate(run: str, ref: str, episodes: int, seed: int, as_json: bool) -> None:
    """Measure the true score of snapshot REF of RUN, and record it.

    Plays whole games with unclipped rewards. The games differ from those of scheduled evaluations, and their scores
    never influence a target policy.

    RUN may be a URL to which a run was sent, also URL:REF. Its score is shown, and recorded nowhere.

    \b
    Examples:
      twin-graph evaluate pong-seed1-1 best --episodes 100
      twin-graph evaluate s3://our-bucket/pong:best
    """
    name, named = reading.url_and_reference(run)
    if named and ref != "latest":
        raise UsageError(f"{run} names a snapshot already: leave out {ref}")
    found = reading.opened(name)
    owner, snapshot = locate(found, named or ref)
    if is_url(name):
        reading.fetch_weights(name, owner, snapshot.id)
    owner.store().prefix(snapshot.id)

    from twin_graph.evaluation.player import Player

    with Player(owner, snapshot) as player, Meter() as meter:
        meter.show(f"games of {snapshot.id}", 0, episodes)
        for evaluation in player.play(episodes=episodes, seed=seed):
            meter.show(f"games of {snapshot.id}", len(evaluation.returns), episodes)
    failed = None
    try:
        if not is_url(name):
            record_evaluation(owner, snapshot, evaluation.summary())
    except OSError as error:  # a score that took an hour is shown all the same
        failed = error
    if as_json:
        print_json({"snapshot": snapshot.id, **evaluation.summary()})
    else:
        of = f" of {owner.folder}, and recorded there" if owner.folder != found.folder and not failed else ""
        echo(f"{snapshot.id}{of}: mean return {evaluation.words()}")
        echo(protocol_line(evaluation.protocol))
    if failed:
        raise TwinGraphError(f"this score is not recorded: {failed.strerror} ({owner.folder})")
