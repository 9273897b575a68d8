"""Checks across settings: each says in one sentence what to change."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from twin_graph.errors import UsageError

if TYPE_CHECKING:
    from twin_graph.config.settings import Settings


def check_together(settings: Settings) -> None:
    """Raises ValueError for the first contradiction."""
    train, env, replay, store = settings.train, settings.env, settings.replay, settings.store
    policy = settings.target.policy
    if settings.network == "pooled80" and settings.model.dueling:
        raise ValueError("model.dueling=true splits the last hidden layer: pooled80 has no hidden layer to split")
    if train.rescale_r and settings.loss != "dqn3":
        raise ValueError(f"train.rescale_r is part of DQN 3.0: it needs loss=dqn3, not {settings.loss}")
    if train.double and not train.target_q:
        raise ValueError("train.double needs a target whose values the online twin chooses from: train.target_q=true")
    if train.minto and (train.double or not train.target_q):
        other = "train.double=false" if train.double else "train.target_q=true"
        raise ValueError(f"train.minto takes the smaller of target and online Q for each action: it needs {other}")
    _check_distribution(settings)
    if train.munchausen:
        _check_munchausen(settings)
    if not train.target_q and settings.act.with_ == "target":
        raise ValueError("act.with=target needs a target: train.target_q=true")
    if not train.target_q and policy != "latest":
        raise ValueError(f"target.policy={policy} chooses nothing: train.target_q=false uses no target")
    if train.until_score is not None and settings.evaluate.episodes < 2:
        raise ValueError(
            f"train.until_score={train.until_score:g} waits for an evaluation's lower bound: it needs "
            "evaluate.episodes=2 or more"
        )
    if settings.evaluate.video and not settings.evaluate.episodes:
        raise ValueError("evaluate.video=true films scheduled evaluations: it needs evaluate.episodes=1 or more")
    if env.alone and (env.count > 1 or settings.workers.count):
        other = "workers.count=0" if settings.workers.count else "env.count=1"
        raise ValueError(f"env.alone=true is for an environment of which only one can exist: set {other}")
    if settings.block_updates and train.accumulate > 1:
        raise ValueError(
            f"twin.compiled=true accumulates nothing: use train.batch_size={train.examples} in place of "
            f"train.accumulate={train.accumulate}"
        )
    if settings.opponent.policy is not None and (settings.mode == "mutual" or settings.workers.count):
        other = "mode=plain" if settings.mode == "mutual" else "workers.count=0"
        raise ValueError(f"opponent.policy={settings.opponent.policy} needs one learner in one process: {other}")
    if train.rollout_steps:
        _check_rollouts(settings)
    if settings.mode == "mutual" and not train.target_q:
        raise ValueError("mode=mutual needs train.target_q=true: its learners see nothing of each other but targets")
    if store.shared and settings.mode != "mutual":
        raise ValueError("store.shared=true needs mode=mutual: a single learner shares nothing")
    if store.shared and policy != "latest":
        raise ValueError(
            f"store.shared=true needs target.policy=latest, not {policy}: learners that share one "
            "sequence of snapshots can only take the latest"
        )
    reach = settings.fewest_start_steps
    if replay.capacity_steps < max(reach, train.start_steps):
        raise ValueError(
            f"replay.capacity_steps={replay.capacity_steps} is too small: it must hold train.start_steps="
            f"{train.start_steps} and, for {env.count} environments, at least {reach} agent steps"
        )
    if settings.workers.count:
        _check_workers(settings, reach)
    if train.start_steps < reach:
        raise ValueError(
            f"train.start_steps={train.start_steps} is too small: {env.count} environments need {reach} "
            "agent steps before one n-step transition of each is complete"
        )


def _check_workers(settings: Settings, reach: int) -> None:
    if settings.mode == "mutual":
        raise ValueError("mode=mutual trains in one process: set workers.count=0")
    if settings.act.with_ == "target":
        raise ValueError("act.with=target acts by one target; workers act by the shared variables")
    if settings.twin.precision == "bf16":
        raise ValueError("twin.precision=bf16 does not work with workers; leave it out")
    own = settings.of_worker(0)
    if own.replay.capacity_steps < max(reach, own.train.start_steps):
        raise ValueError(
            f"replay.capacity_steps={settings.replay.capacity_steps} is too small for {settings.workers.count} "
            f"workers, which share it: each needs {max(reach, own.train.start_steps)}"
        )


def _check_distribution(settings: Settings) -> None:
    """Raises ValueError if something is set that has no meaning for what the network says of each action."""
    if settings.loss == "hl_gauss" and settings.model.head != "categorical":
        raise ValueError(
            f"loss=hl_gauss spreads a value over a fixed support: it needs model.head=categorical, not "
            f"{settings.model.head}"
        )
    if settings.model.head == "scalar":
        return
    head, train, (lowest, highest) = f"model.head={settings.model.head}", settings.train, settings.model.support
    if train.minto:
        raise ValueError(f"train.minto takes the smaller of two values: {head} has distributions; train.minto=false")
    if settings.loss in ("mse", "mse_all", "dqn3"):
        raise ValueError(f"loss={settings.loss} is of values: {head} has a loss of its own; loss=huber")
    if settings.model.head == "categorical" and not (lowest < highest and settings.model.atoms != 1):
        raise ValueError(
            f"model.support={settings.model.support}: {head} needs the lowest return, then the highest, and "
            "model.atoms=2 or more"
        )


def _check_munchausen(settings: Settings) -> None:
    """Raises ValueError if the log-policy of a target has no meaning with what else is set."""
    train = settings.train
    for is_set, what, other in (
        (not train.target_q, "takes the policy of a target", "train.target_q=true"),
        (train.double, "bootstraps from all actions, and chooses none", "train.double=false"),
        (train.minto, "bootstraps from all actions, and compares none", "train.minto=false"),
        (train.n_step > 1, "adds the bonus of one action to one reward", "train.n_step=1"),
        (
            settings.model.head == "categorical" and settings.loss != "hl_gauss",
            "needs values, or quantiles, that its bonus can move",
            "another model.head, or loss=hl_gauss",
        ),
    ):
        if is_set:
            raise ValueError(f"train.munchausen={train.munchausen:g} {what}: it needs {other}")


def _check_rollouts(settings: Settings) -> None:
    """Raises ValueError with all the numbers that have to fit the length of a rollout."""
    train, environments = settings.train, settings.env.count
    steps = train.rollout_steps * environments
    if settings.replay.prioritized:
        raise ValueError("replay.prioritized does not work with train.rollout_steps, which uses each step once")
    if settings.mode == "mutual" and settings.mutual.learn == "both":
        raise ValueError("mutual.learn=both does not work with train.rollout_steps, which uses each step once")
    fits = (
        train.examples == train.every_steps == steps
        and train.n_step == train.rollout_steps
        and train.start_steps % environments == 0
    )
    if not fits:
        start = math.ceil(train.start_steps / environments) * environments
        raise ValueError(
            f"train.rollout_steps={train.rollout_steps} of {environments} environments needs "
            f"train.n_step={train.rollout_steps}, train.every_steps={steps}, train.start_steps={start} and "
            f"train.batch_size={steps} (or a k-th of it, with train.accumulate=k)"
        )
    if settings.replay.capacity_steps < 2 * (steps + train.chunk_steps):
        raise ValueError(f"replay.capacity_steps must hold two rollouts: {2 * (steps + train.chunk_steps)}")


def check_that_it_learns(settings: Settings) -> None:
    """Raises `UsageError` if no update would become due until the end, or many at a learning rate of 0."""
    train, first = settings.train, settings.first_update_steps
    if settings.total_steps < first:
        raise UsageError(
            f"this run would never learn: the first update is due after {first:,} agent steps and train.steps="
            f"{train.steps:,}; raise train.steps (--steps), or lower train.start_steps={train.start_steps:,}"
        )
    updates = settings.total_updates
    if train.learning_rate_schedule == "linear" and not train.learning_rate_at(updates - 1):
        raise UsageError(
            f"this run would learn nothing after {train.learning_rate_updates:,} of {updates:,} updates, when the "
            f"learning rate is at 0: set train.learning_rate_updates={updates}, or train.learning_rate_end"
        )


def check_length(settings: Settings, made: int) -> None:
    """Raises `UsageError` if a run that has made so many agent steps would now be shorter than that."""
    steps = settings.train.steps
    if settings.total_steps < made:
        raise UsageError(
            f"{steps:,} would be the total length, and the run has already made {made:,} agent steps; to train "
            f"{steps:,} more, give {made + steps}"
        )
