"""`twin-graph evaluate`."""

import click
from rich.progress import Progress

from twin_graph.snapshots.run import find, locate

from .params import json_option, print_json, protocol_line, run_argument, stderr

# Seeds of runs are below this, so that an evaluation by hand never plays the games of a scheduled one.
_BY_HAND = 2**31


@click.command()
@run_argument
@click.argument("ref", default="latest")
@click.option("--episodes", type=click.IntRange(min=1), default=30, show_default=True, help="Games to play.")
@click.option("--seed", type=click.IntRange(0, 2**31 - 1), default=0, show_default=True, help="Seed of the games.")
@json_option
def evaluate(run: str, ref: str, episodes: int, seed: int, as_json: bool) -> None:
    """Measure the true score of snapshot REF of RUN, and record it.

    Plays whole games with unclipped rewards. REF is an id or the beginning of one, latest, latest~3, best,
    @update:12000, or RUN:REF. The games are not those of scheduled evaluations, and never influence a target policy.

    \b
    Example:
      twin-graph evaluate pong-seed1-1 best --episodes 100
    """
    owner, snapshot = locate(find(run), ref)
    store = owner.store()
    store.prefix(snapshot.id)
    store.check_files(snapshot.id)

    from twin_graph.evaluation import play
    from twin_graph.exchange import spec_of
    from twin_graph.twin import Twin

    settings = owner.settings
    with (
        Twin("evaluation", spec_of(owner), threads=settings.twin.threads) as twin,
        Progress(console=stderr, transient=True) as bar,
    ):
        with store.reading():
            twin.restore_snapshot(snapshot, store)
        task = bar.add_task(f"{snapshot.id}", total=episodes)
        games = play(twin.q_values, settings, episodes=episodes, seed=_BY_HAND + seed, counter=snapshot.number or 0)
        for evaluation in games:
            bar.update(task, completed=len(evaluation.returns))
    owner.record_evaluation(snapshot, evaluation.summary())
    if as_json:
        print_json({"snapshot": snapshot.id, **evaluation.summary()})
        return
    click.echo(f"{snapshot.id}: mean return {evaluation.words()}")
    click.echo(protocol_line(evaluation.protocol))
