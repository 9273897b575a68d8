"""Whether a run can be trained here: all that can be wrong with it is found before time is spent."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from twin_graph import envs, targets
from twin_graph.agent import trackers
from twin_graph.base import doing
from twin_graph.config import trust
from twin_graph.config.rules import check_length, check_that_it_learns
from twin_graph.envs.gym import check_version
from twin_graph.errors import CompleteError, UsageError
from twin_graph.evaluation import games
from twin_graph.evaluation.player import check_declared
from twin_graph.snapshots.files import check_no_pattern
from twin_graph.snapshots.points import ENVIRONMENT
from twin_graph.targets.evaluations import nothing_left
from twin_graph.training import requirements, tuning
from twin_graph.twin.model import ModelSpec

if TYPE_CHECKING:
    from twin_graph.config.settings import Settings
    from twin_graph.envs import EnvSpec, VectorEnv
    from twin_graph.snapshots.points import PointState
    from twin_graph.snapshots.run import Run


class Ready(NamedTuple):
    """A run that can be trained.

    Attributes:
      settings: with threads and precision measured, where a new run left them open.
      env: the environments.
      needs: memory and disk space.
      measured: the timings that decided, the fastest first.
      notices: what a person should know before it trains, a line each.
    """

    settings: Settings
    env: VectorEnv
    needs: requirements.Needs
    measured: Sequence[tuning.Timing] = ()
    notices: Sequence[str] = ()


@contextlib.contextmanager
def ready(
    settings: Settings, folder: Path, continued: tuple[Run, PointState] | None = None, *, elsewhere: bool = False
) -> Iterator[Ready]:
    """Yields the environments of a run, once it is clear that it can be trained here; closes them afterwards.

    Args:
      settings: with which it is to be trained.
      folder: of the run; for the beginning it need not exist yet.
      continued: the run and its point where that continues; None for the beginning.
      elsewhere: whether workers and servers have machines of their own.

    Raises:
      UsageError: the run cannot be trained as its settings say.
      CompleteError: nothing is left to train.
      TwinGraphError: there is not enough memory or disk space.
    """
    if continued:
        run, made = continued[0], continued[1].counters
        trust.check_all(settings, run.folder)
        check_length(settings, made.agent_steps)
        if why := nothing_left(run, made.agent_steps, settings):
            raise CompleteError(why)
        targets.check_present(settings, run.store(), made.updates)
    else:
        check_version(settings.env.id)
    check_no_pattern(folder, "rename the folder")
    doing.now("making environments")
    with contextlib.closing(envs.make(settings.env, count=settings.env.count)) as env:
        if continued:
            check_declared(run, env)
        needs = requirements.measure(settings, env, folder, elsewhere=elsewhere)
        requirements.check_enough(needs, begun=folder.exists())
        with env.aside():
            check_settings(settings, env)
        if not (continued and trackers.needs_nothing(continued[0], settings)):
            trackers.check_tracker(settings)
        notices = env.notices(settings.train.steps)
        if continued:
            run, point = continued
            if env.lasting() and not any(file.name.startswith(ENVIRONMENT) for file in point.files):
                notices.append(f"resume point {point.number} has no statistics of the environments: they begin anew")
            yield Ready(settings, env, needs, notices=notices)
        else:
            tuned, measured = tuning.fix(settings, ModelSpec.of(settings, env.spec), elsewhere=elsewhere)
            yield Ready(tuned, env, needs, measured, notices)


def check_settings(settings: Settings, env: VectorEnv) -> None:
    """Raises a one-line `UsageError` for problems that a run with these settings would meet only
    later, or never notice."""
    check_that_it_learns(settings)
    check_rescaling(settings, env.spec)
    if settings.workers.count and (kept := env.lasting()):
        raise UsageError(
            f"{settings.env.id} has state that outlives its episodes ({', '.join(kept)}), which workers do not share: "
            "train without --workers (--set workers.count=0)"
        )
    games.check_evaluations(settings)


def check_rescaling(settings: Settings, env: EnvSpec) -> None:
    """Raises `UsageError` if workers would divide rewards by different numbers."""
    if settings.workers.count and settings.train.rescale_r and env.reward_clip is None:
        instead = "train.rescale_r=false" if settings.env.clip_rewards else "env.clip_rewards=true"
        raise UsageError(f"each worker would divide by its own largest reward (train.rescale_r): use --set {instead}")
