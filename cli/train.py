"""`twin-graph train`, and what `twin-graph resume` shares with it."""

from __future__ import annotations

import contextlib
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

import click

from twin_graph import config
from twin_graph.base import machine
from twin_graph.base.signals import on_signal
from twin_graph.base.text import command
from twin_graph.config.no_effect import without_effect
from twin_graph.config.rules import check_that_it_learns
from twin_graph.config.settings import EVALUATION_MAX_STEPS
from twin_graph.errors import INTERRUPTED_EXIT_CODE, DivergedError, InUseError, MovedError, UsageError
from twin_graph.snapshots.files import remove_folder
from twin_graph.snapshots.resumable import has_begun
from twin_graph.snapshots.run import Run, check_new_folder, create, free_folder, make_in
from twin_graph.snapshots.workers import GIVEN_UP
from twin_graph.training.lines import ended

from .display import TrainingDisplay
from .params import (
    PATH,
    Count,
    complete_preset,
    json_option,
    overrides_of,
    print_json,
    protocol_line,
    say,
    set_option,
    stderr,
    verbose_option,
)
from .records import worker_line
from .remote import background, check_empty, check_opponents, league, send_the_rest

if TYPE_CHECKING:
    from twin_graph.config.settings import Settings
    from twin_graph.distributed.cluster import Cluster
    from twin_graph.envs import VectorEnv
    from twin_graph.remote.background import Background
    from twin_graph.remote.league import League
    from twin_graph.snapshots.points import PointState
    from twin_graph.training.progress import Progress
    from twin_graph.training.readiness import Ready


def cluster_options(command: Any) -> Any:
    """Options of the two commands that can use machines beyond this one."""
    file = click.option(
        "--cluster",
        type=PATH,
        help="Train on the workers and servers described in this file; see `twin-graph cluster --help`.",
    )
    insecure = click.option(
        "--insecure-network", is_flag=True, help="Confirm that you trust everyone who can reach the cluster's network."
    )
    return file(insecure(command))


remote_option = click.option(
    "--remote",
    metavar="URL",
    help="Send each resume point there, in the background, as `push` does; `resume URL` continues on another machine.",
)


opponent_option = click.option(
    "--opponent",
    "opponents",
    multiple=True,
    metavar="URL",
    help="Another run's remote: its newest snapshots become opponents of this one (opponent.policy=league). Can be "
    "repeated.",
)


@click.command()
@click.argument("preset", shell_complete=complete_preset)
@click.option(
    "--env", "env_id", metavar="ID", help="Gymnasium id of another environment, e.g. ALE/Breakout-v5 or CartPole-v1."
)
@click.option("--steps", type=Count(min=1), help="Length of the run in agent steps.")
@click.option("--seed", type=int, help="Seed of everything random.  [default: 1]")
@click.option(
    "--workers",
    type=Count(min=1),
    help="Train asynchronously, with this many worker processes.  [default: none]",
)
@click.option("--ps", type=Count(min=1), help="Parameter servers for the workers.  [default: 1]")
@cluster_options
@click.option(
    "--run-dir",
    type=PATH,
    help="Folder of the run, which must not exist yet.  [default: checkpoints/PRESET-seedS-N; with an environment that "
    "is not the preset's, its name instead of PRESET]",
)
@remote_option
@opponent_option
@set_option
@verbose_option
@json_option
def train(
    preset: str,
    env_id: str | None,
    steps: int | None,
    seed: int | None,
    workers: int | None,
    ps: int | None,
    cluster: Path | None,
    insecure_network: bool,
    run_dir: Path | None,
    remote: str | None,
    opponents: tuple[str, ...],
    assignments: tuple[str, ...],
    verbose: bool,
    as_json: bool,
) -> None:
    """Train an agent from a PRESET; `twin-graph presets` lists them.

    Progress goes to stderr. Ctrl-C stops after committing a snapshot and a resume point. `twin-graph resume` continues
    a run that was stopped, killed or lost in a crash.

    \b
    Examples:
      twin-graph train pong
      twin-graph train atari --env ALE/SpaceInvaders-v5 --set env.sticky=0.25
      twin-graph train cartpole --workers 2
      twin-graph train cartpole --seed 2 --set target.policy='mix(0.8, 8)'
      twin-graph train pong --remote s3://our-bucket/pong
    """
    described = described_cluster(cluster, insecure_network)
    if described:
        if workers or ps or run_dir:
            raise UsageError(
                f"{cluster} already gives workers, servers and folder; leave out --workers, --ps and --run-dir"
            )
        workers, ps, run_dir = described.workers, len(described.ps), described.run
    named = {"env.id": env_id, "train.steps": steps, "seed": seed, "workers.count": workers, "workers.servers": ps}
    overrides = overrides_of(assignments, named)
    settings = config.load(preset, overrides)
    if ps and not settings.workers.count:
        raise UsageError(f"--ps {ps} needs --workers: parameter servers are for asynchronous training")
    check_that_it_learns(settings)
    if opponents:
        check_opponents(settings, opponents)
    for sentence in without_effect(settings, (key for key, _ in overrides)):
        say(sentence)
    stem = f"{_name_of(settings)}-seed{settings.seed}-"
    folder = run_dir or free_folder(stem)
    check_new_folder(folder, f"change `run` in {cluster}" if described else "choose another --run-dir")
    if remote:
        check_empty(remote)

    with contextlib.ExitStack() as open_:
        with starting_up("the run started; nothing was written"):
            from twin_graph.training import readiness

            begun = open_.enter_context(readiness.ready(settings, folder, elsewhere=elsewhere_of(described)))
        run = make_in(run_dir, stem, lambda folder: create(folder, begun.settings, begun.env.protocol))
        try:
            _introduce(run, begun)
            sends = background(run, remote) if remote else None
            others = league(run, run.settings, opponents)
            show_training(
                run, begun.env, cluster=described, remote=sends, others=others, as_json=as_json, verbose=verbose
            )
        except BaseException as error:
            in_use = isinstance(error, InUseError | MovedError)  # what has its name is another's
            if not in_use and not has_begun(run):  # its name shall be free
                remove_folder(run.folder)
            raise


def _name_of(settings: Settings) -> str:
    """What a run is called: by its preset, or, with an environment that is not the preset's, by that.

    `shop` for `shop:Shop-v0`, `spaceinvaders` for `ALE/SpaceInvaders-v5`.
    """
    if settings.env.id == config.load(settings.preset).env.id:
        return settings.preset
    name = re.split(r"[:/]", settings.env.id)[-1]
    plain = re.sub(r"[^a-z0-9_]+", "-", re.sub(r"-v\d+$", "", name).lower())
    return plain.strip("-") or settings.preset


def _introduce(run: Run, begun: Ready) -> None:
    """What a person should know before it trains."""
    from twin_graph.twin import networks

    if begun.measured:
        best, *others = begun.measured
        say(f"twins: {best}" + "".join(f" ({other})" for other in others) + "; fixed for this run")
    env, settings, board = begun.env, run.settings, shlex.join(["tensorboard", "--logdir", str(run.folder)])
    say(f"{run.folder}  (seed {settings.seed}; watch it with: {board})")
    say(protocol_line(env.protocol))
    if env.endless:
        limit = settings.evaluate.max_steps or EVALUATION_MAX_STEPS
        say(f"no time limit: evaluations cut games after {limit:,} agent steps (evaluate.max_steps)")
    if settings.network == "mlp" and len(env.spec.observation_shape) == 3:
        say("network=mlp flattens the image to a list of numbers; --set network=nature is made for images")
    if networks.takes_channels_first(settings.network, env.spec):
        say(f"network={settings.network} takes images {list(env.spec.network_shape)} to have their channels first")
    say(begun.needs.words())
    for notice in begun.notices:
        say(notice)


@contextlib.contextmanager
def starting_up(before: str) -> Iterator[None]:
    """While TensorFlow is imported and threads are measured, a signal ends the command with one line."""
    signalled = False

    def interrupt(number: int, frame: FrameType | None) -> None:  # noqa: ARG001
        nonlocal signalled
        signalled = True
        raise KeyboardInterrupt

    try:
        with on_signal(interrupt):
            yield
    except BaseException:  # the interrupt, or what a library that is being imported makes of it
        if not signalled:
            raise
    if signalled:  # also where such a library swallowed it
        say(f"interrupted before {before}")
        raise click.exceptions.Exit(INTERRUPTED_EXIT_CODE)


def described_cluster(file: Path | None, insecure_network: bool) -> Cluster | None:
    """The cluster that a file describes, if one is given."""
    if file is None:
        if insecure_network:
            raise UsageError("--insecure-network only works with --cluster")
        return None
    from twin_graph.distributed.cluster import Cluster

    from .cluster import WARNING

    described = Cluster.described(file)
    if described.beyond_this_machine and not insecure_network:
        raise UsageError(f"{file} names addresses beyond this machine: give --insecure-network. {WARNING}")
    return described


def elsewhere_of(described: Cluster | None) -> bool:
    """Whether workers and servers have machines of their own."""
    return bool(described and described.beyond_this_machine)


def show_training(
    run: Run,
    env: VectorEnv,
    point: PointState | None = None,
    *,
    cluster: Cluster | None,
    remote: Background | None,
    others: League | None,
    as_json: bool,
    verbose: bool,
) -> None:
    """Trains, from the beginning or from a resume point, and shows how that goes and how it ended.

    Args:
      run, env, point: see `trainer.train`.
      cluster: of machines that take part.
      remote: sends the run's states meanwhile.
      others: fetches opponents meanwhile.
      as_json: print how it ended as a document.
      verbose: show more.
    """
    from twin_graph.training import trainer

    for sentence in machine.emulated(run.settings.twin.precision):
        say(sentence)
    if run.settings.workers.count:
        from twin_graph.distributed import chief

        progresses = chief.train(run, env, point, cluster=cluster)
        say("asynchronous: weights depend on timing, so two runs with the same seed end differently")
        say(f"parameter servers: {chief.protection(cluster)}")
    else:
        progresses = trainer.train(run, env, point)
    progress = None
    with contextlib.ExitStack() as sending:
        if remote:
            sending.enter_context(remote)
            remote.start()
            progresses = remote.follow(progresses)
        try:
            with others or contextlib.nullcontext(), TrainingDisplay(stderr, verbose=verbose) as display:
                for progress in others.follow(progresses) if others else progresses:
                    display.show(progress)
                assert progress is not None
                display.show(progress)  # what was noticed when it ended
        except (Exception, KeyboardInterrupt) as error:
            there = run if not isinstance(error, MovedError) else Run(error.there) if error.there else None
            if there and (newest := there.points().newest()):
                at = f"resume point {newest.number}, at {newest.counters.agent_steps:,} agent steps"
                other = ""
                if isinstance(error, DivergedError):  # with the same settings it would, again
                    other = f" --set train.learning_rate={run.settings.train.learning_rate / 2:g}"
                say(f"continue from {at}, with: {_resume(there.folder, cluster)}{other}")
                if remote and not remote.all_sent:
                    say(f"send that point with: {command('push', there.folder, remote.url)}")
            raise
        _report(run.folder, progress, as_json, cluster)
        if remote:
            send_the_rest(run, remote, interrupted=progress.interrupted)
    if progress.interrupted:
        raise click.exceptions.Exit(INTERRUPTED_EXIT_CODE)


def _resume(folder: Path, cluster: Cluster | None) -> str:
    """The command that resumes a run, by the same machines."""
    described = ["--cluster", "FILE"] if cluster else []
    insecure = ["--insecure-network"] if elsewhere_of(cluster) else []
    return command("resume", folder, *described, *insecure)


def _report(folder: Path, progress: Progress, as_json: bool, cluster: Cluster | None) -> None:
    evaluations = progress.evaluations.values()
    if as_json:
        print_json(
            {
                "run": str(folder),
                "state": "stopped" if progress.interrupted else "finished",
                **progress.counters.model_dump(),
                "snapshot": progress.newest_snapshot,
                "snapshots": progress.newest_snapshots,
                "weights_sha256": progress.weights_sha256,
                "evaluations": [{"snapshot": snapshot, **found.summary()} for snapshot, found in evaluations],
            }
        )
    say(ended(progress))
    for worker, _ in progress.workers:
        if worker.state == GIVEN_UP:
            say(f"{worker.name}: {worker_line(worker)}")
    for snapshot, found in evaluations:
        say(f"score of {snapshot}: {found.words()}")
    newest = progress.newest_snapshots
    for learner, snapshot in newest.items():
        say(f"newest snapshot{f' of {learner}' if len(newest) > 1 else ''}: {snapshot}")
    say(f"weights_sha256{' of both learners together' if len(newest) > 1 else ''}: {progress.weights_sha256}")
    if progress.interrupted:
        say(f"continue with: {_resume(folder, cluster)}")
    say(f"next: {command('log', folder)}    {command('evaluate', folder, '--episodes', 30)}")
