"""`twin-graph train`."""

import contextlib
from pathlib import Path
from typing import Any

import click

from twin_graph import config
from twin_graph.snapshots.run import check_new_folder, create, default_folder

from .display import TrainingDisplay
from .main import INTERRUPTED
from .params import complete_preset, complete_setting, json_option, print_json, say, stderr


@click.command()
@click.argument("preset", shell_complete=complete_preset)
@click.option("--env", "env_id", metavar="ID", help="Another environment, e.g. ALE/Breakout-v5 or CartPole-v1.")
@click.option("--steps", type=click.IntRange(min=1), help="Length of the training in agent steps.")
@click.option("--seed", type=int, help="Of everything random.  [default: 1]")
@click.option(
    "--run-dir",
    type=click.Path(path_type=Path),
    help="The run's folder, which must not exist yet.  [default: checkpoints/PRESET-seedS-N]",
)
@click.option(
    "--set",
    "assignments",
    shell_complete=complete_setting,
    multiple=True,
    metavar="KEY=VALUE",
    help="Change a setting; `twin-graph presets PRESET` lists them. Repeatable.",
)
@json_option
def train(
    preset: str,
    env_id: str | None,
    steps: int | None,
    seed: int | None,
    run_dir: Path | None,
    assignments: tuple[str, ...],
    as_json: bool,
) -> None:
    """Train an agent from a PRESET: pong, breakout, atari, cartpole.

    Progress goes to stderr. Ctrl-C ends it after committing a snapshot of what was learnt.

    \b
    Examples:
      twin-graph train pong
      twin-graph train atari --env ALE/SpaceInvaders-v5 --set env.sticky=0.25
      twin-graph train cartpole --seed 2 --set target.refresh_every_updates=100
    """
    overrides = [config.parse_assignment(text) for text in assignments]
    named = {"env.id": env_id, "train.steps": steps, "seed": seed}
    overrides += [(key, value) for key, value in named.items() if value is not None]
    settings = config.load(preset, overrides)
    folder = run_dir or default_folder(settings)
    check_new_folder(folder)

    from twin_graph import envs

    with contextlib.closing(envs.make(settings.env, count=settings.env.count)) as env:
        from twin_graph import needs, training

        needed = needs.measure(settings, env, folder)
        needs.check(needed)
        run = create(folder, settings, env.protocol)

        say(f"{folder}  (seed {settings.seed}; watch it with: tensorboard --logdir {folder})")
        say("protocol: " + ", ".join(f"{name} {_plain(value)}" for name, value in env.protocol.items()))
        say(
            f"needs: memory {needs.gigabytes(needed.memory)} of {needs.gigabytes(needed.memory_free)} free, "
            f"{needs.gigabytes(needed.replay)} of it for the replay; "
            f"disk {needs.gigabytes(needed.disk)} of {needs.gigabytes(needed.disk_free)} free"
        )
        progress = None
        with TrainingDisplay(stderr) as display:
            for progress in training.train(run, env):
                display.show(progress)
    assert progress is not None
    _report(folder, progress, as_json)
    if progress.stop.is_set():
        raise click.exceptions.Exit(INTERRUPTED)


def _report(folder: Path, progress: Any, as_json: bool) -> None:
    agent = progress.agent
    snapshot = agent.store.newest
    evaluation = progress.evaluation
    if as_json:
        print_json(
            {
                "run": str(folder),
                "state": "stopped" if progress.stop.is_set() else "finished",
                **agent.counters.model_dump(),
                "snapshot": snapshot.id,
                "weights_sha256": snapshot.weights_sha256,
                "evaluation": {"snapshot": evaluation[0], **evaluation[1].summary()} if evaluation else None,
            }
        )
    say(f"{'interrupted' if progress.stop.is_set() else 'finished'} at {agent.agent_steps:,} agent steps")
    if evaluation:
        say(f"score of {evaluation[0]}: {evaluation[1].words()}")
    say(f"newest snapshot: {snapshot.id}\nweights_sha256: {snapshot.weights_sha256}")
    say(f"next: twin-graph log {folder}    twin-graph evaluate {folder} --episodes 30")


def _plain(value: object) -> str:
    return {True: "yes", False: "no"}[value] if isinstance(value, bool) else str(value)
