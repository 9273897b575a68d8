"""The schedule by chunks: what acts, is sampled and supplies targets follows from counters, never from timing."""

import contextlib
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from attempts import attempt, end

from twin_graph import envs, training
from twin_graph.agent.agent import Agent
from twin_graph.agent.ensemble import Ensemble
from twin_graph.agent.learner import Learners, Prepared, Trained
from twin_graph.base.streams import Purpose, environment_seeds, stream
from twin_graph.config.settings import Settings
from twin_graph.errors import DivergedError
from twin_graph.replay.ring import Batch, Replay, Transition
from twin_graph.snapshots.ledger import Restore
from twin_graph.snapshots.run import Run, create
from twin_graph.twin.model import ModelSpec
from twin_graph.twin.twin import Compute, Twin, weights_sha256

Make = Callable[..., Settings]
Train = Callable[[Settings], Run]


def reference(settings: Settings) -> tuple[str, list[int]]:
    """The schedule written down once more, in one thread, without store, agent or run loop: docs/schedule.md in code.

    Returns:
      The hash of the online weights at the end, and the updates before which the target was refreshed.
    """
    train, chunk = settings.train, settings.train.chunk_steps
    env = envs.make(settings.env, count=settings.env.count)
    shape, dtype = env.spec.observation_shape, env.spec.observation_dtype
    spec = ModelSpec.of(settings, env.spec)
    replay = Replay(
        capacity_steps=settings.replay.capacity_steps,
        environments=env.count,
        observation_shape=shape,
        dtype=dtype,
        stack=env.spec.stack,
        n_step=train.n_step,
        discount=train.discount,
    )
    refreshes, updates, steps = [0], 0, 0
    prepared: list[Batch] = []
    with contextlib.ExitStack() as open_:
        open_.callback(env.close)
        online, target, behaviour = (
            open_.enter_context(Twin(name, spec, seed=settings.seed, compute=Compute(threads=1)))
            for name in ("o", "t", "b")
        )
        model, every, act = online.model, settings.refresh_schedule_of("target").every, settings.act

        def refresh_if_due() -> None:
            if updates // every > refreshes[-1] // every:
                refreshes.append(updates)
                target.load(online.weights())

        def train_on(batches: list[Batch]) -> int:
            for batch in batches:
                feed = {
                    model.s_tm1: batch.s_tm1,
                    model.a_tm1: batch.a_tm1,
                    model.r_t: batch.r_t,
                    model.discount_t: batch.discount_t,
                    model.q_target_t: target.q_values(batch.s_t),
                }
                online.run(model.train_op, feed)
            return len(batches)

        target.load(online.weights())
        s_tm1 = env.reset(environment_seeds(settings.seed, Purpose.ENVIRONMENT, 0, env.count))
        while steps < train.steps:
            if prepared:
                refresh_if_due()
            behaviour.load(online.weights())
            waiting, prepared = prepared, []
            while True:
                decay = min(1.0, steps / act.epsilon_decay_steps)
                random = stream(settings.seed, Purpose.ACT, steps)
                explore = random.random(env.count) < act.epsilon_start + decay * (act.epsilon_end - act.epsilon_start)
                drawn = random.integers(0, env.spec.n_actions, size=env.count)
                actions = np.where(explore, drawn, behaviour.q_values(s_tm1).argmax(axis=1))
                answer = env.step(actions)
                replay.add(Transition(s_tm1, actions, answer.r_t, answer.terminal_t, answer.last_t, answer.s_t))
                s_tm1 = answer.s_next
                steps += env.count
                if steps >= train.steps or steps // chunk > (steps - env.count) // chunk:
                    break
            due = max(0, (steps - train.start_steps) // train.every_steps)
            for update in range(updates + len(waiting), due):
                prepared.append(replay.sample(train.batch_size, [stream(settings.seed, Purpose.SAMPLE, update)]))
            updates += train_on(waiting)
        refresh_if_due()
        train_on(prepared)
        return weights_sha256(online.weights()), refreshes


# One minibatch a block of targets, so that the reference evaluates the same shapes.
@pytest.mark.parametrize(("chunk", "refresh"), [(8, 3), (16, 7), (50, 20), (64, 16)])
def test_a_training_follows_the_schedule_as_written_down(
    cartpole: Make, train: Train, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chunk: int, refresh: int
) -> None:
    settings = cartpole(
        loss="mse",
        train__steps=600,
        train__chunk_steps=chunk,
        target__refresh_every_updates=refresh,
        resume__every_steps=1_000,
        evaluate__episodes=0,
    )
    monkeypatch.setattr("twin_graph.agent.ensemble.TARGET_BATCH", settings.train.batch_size)
    monkeypatch.setattr("twin_graph.agent.ensemble._FEW_NUMBERS", 0)
    run = train(settings)
    weights, refreshes = reference(settings)
    assert run.store().newest.weights_sha256 == weights
    swaps = [event for event in run.ledger.events() if isinstance(event, Restore)]
    assert [swap.first_update - 1 for swap in swaps] == refreshes
    assert run.store().newest.counters.updates == 100


def test_overlapped_or_not_and_whoever_is_slow_the_weights_are_the_same(
    pong: Make, train: Train, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = pong(loss="mse", train__steps=200)
    in_turn = end(train(settings.model_copy(update={"twin": settings.twin.model_copy(update={"overlap": False})})))
    assert end(train(settings)) == in_turn
    with monkeypatch.context() as patched:
        slow(patched, Learners, "train")
        assert end(train(settings)) == in_turn
    with monkeypatch.context() as patched:
        slow(patched, Agent, "prepare")
        slow(patched, Agent, "act")
        assert end(train(settings)) == in_turn


def slow(patched: pytest.MonkeyPatch, owner: type, name: str) -> None:
    quick = getattr(owner, name)

    def late(*args: object, **options: object) -> object:
        time.sleep(0.03)
        return quick(*args, **options)

    patched.setattr(owner, name, late)


def test_the_chunk_matters(cartpole: Make, train: Train) -> None:
    """The comparisons above would prove little if it had no influence."""
    weights = {train(cartpole(train__chunk_steps=chunk)).store().newest.weights_sha256 for chunk in (0, 16, 64)}
    assert len(weights) == 3


@pytest.mark.parametrize("policy", ["best(mean)", "ensemble(3, min)"])
def test_a_training_by_chunks_that_was_killed_ends_as_one_that_was_not(
    cartpole: Make, train: Train, tmp_path: Path, policy: str
) -> None:
    settings = cartpole(target__policy=policy, loss="mse", save__every_updates=20, train__chunk_steps=48)
    whole = create(tmp_path / "whole", settings)
    held = attempt(whole)
    killed = create(tmp_path / "killed", settings)
    attempt(killed, 640)
    attempt(killed, 1_100)
    attempt(killed)
    assert end(killed) == end(whole)
    # What the ledger says of each update is what the twins held when its targets were evaluated.
    swaps = [event for event in whole.ledger.events() if isinstance(event, Restore)]
    for update, snapshots in held:
        newest = [swap for swap in swaps if swap.first_update <= update][-1]
        assert list(newest.snapshots) == snapshots
    assert len(swaps) > 3


def test_targets_that_were_prepared_are_those_of_the_target_of_their_update(
    cartpole: Make, train: Train, monkeypatch: pytest.MonkeyPatch
) -> None:
    stale = []
    train_prepared = Learners.train

    def look(learners: Learners, prepared: Prepared) -> Trained:
        stale.append(
            not np.array_equal(prepared.by_target["q_target_t"], learners.first.target.q_values(prepared.batch.s_t))
        )
        return train_prepared(learners, prepared)

    monkeypatch.setattr(Learners, "train", look)
    monkeypatch.setattr("twin_graph.agent.ensemble.TARGET_BATCH", 10_000)
    train(cartpole(train__chunk_steps=32, target__refresh_every_updates=10))
    assert len(stale) > 20
    assert not any(stale)


def test_acting_with_the_target_asks_the_target(cartpole: Make, train: Train, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    q_values = Ensemble.q_values

    def count(target: Ensemble, observations: np.ndarray, *noise: Any) -> np.ndarray:
        asked.append(len(observations))
        return q_values(target, observations, *noise)

    monkeypatch.setattr(Ensemble, "q_values", count)
    act = {"act__epsilon_start": 0.0, "act__epsilon_end": 0.0}
    train(cartpole(act__with="target", **act))
    assert asked.count(8) == 1_200 // 8
    asked.clear()
    train(cartpole(**act))
    assert 8 not in asked


def test_a_training_that_diverges_beside_the_actor_ends_cleanly(
    cartpole: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow(monkeypatch, Agent, "act")
    run = create(tmp_path / "run", cartpole(loss="mse", train__learning_rate=1.0, train__chunk_steps=16))
    diverge(run, r"the loss is (inf|nan) at update \d")
    assert run.state() == "failed"
    assert [snapshot.lineage for snapshot in run.store().snapshots] == ["online"]


def diverge(run: Run, message: str) -> None:
    """Trains from rewards whose squares are infinite in single precision; the error has to match."""
    with contextlib.closing(envs.make(run.settings.env, count=8)) as env:
        step = env.step
        env.step = lambda actions: step(actions)._replace(r_t=np.full(8, 1e30, np.float32))  # type: ignore[method-assign]
        with pytest.raises(DivergedError, match=message):
            for _ in training.train(run, env):
                pass
