"""`twin-graph evaluate`."""

import click
from rich.progress import Progress

from twin_graph.snapshots.run import find

from .params import json_option, print_json, run_argument, stderr

# Seeds of runs are below this, so that an evaluation by hand never plays the games of a scheduled one.
_BY_HAND = 2**31


@click.command()
@run_argument
@click.argument("ref", default="latest")
@click.option("--episodes", type=click.IntRange(min=1), default=30, show_default=True, help="Games to play.")
@click.option("--seed", type=click.IntRange(0, 2**31 - 1), default=0, show_default=True, help="Of the games.")
@json_option
def evaluate(run: str, ref: str, episodes: int, seed: int, as_json: bool) -> None:
    """Measure the true score of snapshot REF of RUN, and record it.

    Whole games in an environment of its own, rewards not clipped. REF is an id or a unique beginning of one, latest,
    latest~3, best, or @update:12000. The games differ from those of the scheduled evaluations, and steer nothing.

    \b
    Example:
      twin-graph evaluate pong-seed1-1 best --episodes 100
    """
    found = find(run)
    store = found.store()
    snapshot = store.resolve(ref, found.scores())
    store.check_files(snapshot)

    from twin_graph import envs
    from twin_graph.evaluation import play
    from twin_graph.model import ModelSpec
    from twin_graph.training import record_evaluation
    from twin_graph.twin import Twin

    settings = found.settings
    env = envs.make(settings.env, count=1, evaluation=True)
    spec = ModelSpec.of(settings, env.observation_shape, env.observation_dtype, env.n_actions)
    env.close()
    with (
        Twin("evaluation", spec, threads=settings.twin.threads) as twin,
        Progress(console=stderr, transient=True) as bar,
    ):
        twin.restore(store.prefix(snapshot))
        task = bar.add_task(f"{snapshot.id}", total=episodes)
        games = play(twin.q_values, settings, episodes=episodes, seed=_BY_HAND + seed, counter=snapshot.number)
        for evaluation in games:
            bar.update(task, completed=len(evaluation.returns))
    record_evaluation(found, snapshot, evaluation, scheduled=False)
    if as_json:
        print_json({"snapshot": snapshot.id, **evaluation.summary()})
        return
    click.echo(f"{snapshot.id}: mean return {evaluation.words()}")
    click.echo("protocol: " + ", ".join(f"{name} {value}" for name, value in evaluation.protocol.items()))
