"""Optimizers, accumulated gradients and dueling heads, against NumPy."""

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
from attempts import attempt, end, whole_and_killed
from tables import rows

from twin_graph import config
from twin_graph.agent.actor import Actor
from twin_graph.agent.held_out import HeldOut
from twin_graph.agent.learner import Learner, Losses, Prepared, feeds
from twin_graph.base.counters import Tally
from twin_graph.config.settings import ModelSettings, Settings, TrainSettings
from twin_graph.envs import EnvSpec
from twin_graph.errors import UsageError
from twin_graph.records import report
from twin_graph.replay.ring import Transition
from twin_graph.snapshots.run import Run, create
from twin_graph.twin.model import ModelSpec
from twin_graph.twin.twin import Compute, Twin

#: Five steps of eight environments.
ROLLOUTS = {"train__rollout_steps": 5, "train__n_step": 5, "train__every_steps": 40, "train__start_steps": 200}
Make = Callable[..., Settings]
Arrays = dict[str, np.ndarray]


def spec(loss: str = "huber", *, dueling: bool = False, **train: object) -> ModelSpec:
    return ModelSpec(
        EnvSpec((4,), 3),
        network="mlp",
        loss=loss,
        model=ModelSettings(hidden_units=[8], dueling=dueling),
        train=config.load("cartpole").train.model_copy(update=train),
    )


def minibatch(size: int, seed: int = 0) -> Arrays:
    random = np.random.default_rng(seed)
    return {
        "s_tm1": random.normal(size=(size, 4)).astype(np.float32),
        "a_tm1": random.integers(0, 3, size),
        "r_t": random.normal(size=size).astype(np.float32),
        "discount_t": random.choice([0, 0.9], size).astype(np.float32),
        "q_target_t": random.normal(size=(size, 3)).astype(np.float32),
    }


def feed(twin: Twin, batch: Arrays) -> dict[object, np.ndarray]:
    return {getattr(twin.model, name): values for name, values in batch.items()}


def gradients_of(batch: Arrays, weights: Arrays) -> Arrays:
    """Of the mean squared TD error, by hand, for one hidden layer."""
    s, size = batch["s_tm1"], len(batch["r_t"])
    hidden = np.maximum(0, s @ weights["fc1/weights"] + weights["fc1/bias"])
    q = hidden @ weights["q/weights"] + weights["q/bias"]
    rows = np.arange(size)
    y = batch["r_t"] + batch["discount_t"] * batch["q_target_t"].max(axis=1)
    at_output = np.zeros_like(q)
    at_output[rows, batch["a_tm1"]] = 2 * (q[rows, batch["a_tm1"]] - y) / size
    back = (at_output @ weights["q/weights"].T) * (hidden > 0)
    return {
        "fc1/weights": s.T @ back,
        "fc1/bias": back.sum(axis=0),
        "q/weights": hidden.T @ at_output,
        "q/bias": at_output.sum(axis=0),
    }


def test_the_optimizer_of_dqn3_steps_as_the_lua_code_does_from_zero_moments() -> None:
    with Twin(
        "online", spec(loss="mse", optimizer="rmsprop_dqn3", learning_rate=0.01), seed=1, compute=Compute(threads=1)
    ) as twin:
        w = twin.weights()
        g, g2 = ({name: np.zeros_like(value) for name, value in w.items()} for _ in range(2))
        for step in range(6):
            batch = minibatch(16, seed=step)
            for name, dw in gradients_of(batch, w).items():
                dw = -dw  # the Lua code ascends
                g[name] = 0.95 * g[name] + 0.05 * dw
                g2[name] = 0.95 * g2[name] + 0.05 * dw * dw
                w[name] = w[name] + 0.01 * dw / np.sqrt(g2[name] - g[name] ** 2 + 0.01)
            twin.run(twin.model.train_op, feed(twin, batch))
            for name, value in twin.weights().items():
                np.testing.assert_allclose(value, w[name], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_centered_rmsprop_steps_as_pytorch_has_it_from_zero_moments(momentum: float) -> None:
    how = {"rmsprop_decay": 0.95, "rmsprop_momentum": momentum, "rmsprop_epsilon": 0.01}
    chosen = spec(loss="mse", optimizer="rmsprop_centered", learning_rate=0.01, **how)
    with Twin("online", chosen, seed=1, compute=Compute(threads=1)) as twin:
        w = twin.weights()
        g, g2, moved = ({name: np.zeros_like(value) for name, value in w.items()} for _ in range(3))
        for step in range(6):
            batch = minibatch(16, seed=step)
            for name, dw in gradients_of(batch, w).items():
                g[name] = 0.95 * g[name] + 0.05 * dw
                g2[name] = 0.95 * g2[name] + 0.05 * dw * dw
                moved[name] = momentum * moved[name] + dw / (np.sqrt(g2[name] - g[name] ** 2) + 0.01)
                w[name] = w[name] - 0.01 * moved[name]
            twin.run(twin.model.train_op, feed(twin, batch))
            for name, value in twin.weights().items():
                np.testing.assert_allclose(value, w[name], rtol=1e-3, atol=1e-5)


def test_tensorflows_own_rmsprop_is_the_uncentered_one() -> None:
    chosen = spec(loss="mse", optimizer="rmsprop", learning_rate=0.01, rmsprop_epsilon=0.1, rmsprop_decay=0.9)
    with Twin("online", chosen, seed=1, compute=Compute(threads=1)) as twin:
        w, square = twin.weights(), {}
        for step in range(4):
            batch = minibatch(16, seed=step)
            for name, dw in gradients_of(batch, w).items():
                square[name] = 0.9 * square.get(name, np.ones_like(dw)) + 0.1 * dw * dw
                w[name] = w[name] - 0.01 * dw / np.sqrt(square[name] + 0.1)
            twin.run(twin.model.train_op, feed(twin, batch))
        for name, value in twin.weights().items():
            np.testing.assert_allclose(value, w[name], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("loss", ["huber", "mse", "dqn3"])
@pytest.mark.parametrize("clip", [None, 0.05])
def test_accumulated_minibatches_equal_one_that_is_as_large(loss: str, clip: float | None) -> None:
    options = {"loss": loss, "gradient_clip_norm": clip, "learning_rate": 0.01}
    with (
        Twin("parts", spec(accumulate=4, **options), seed=1, compute=Compute(threads=1)) as parts,
        Twin("whole", spec(**options), seed=1, compute=Compute(threads=1)) as whole,
    ):
        for step in range(3):
            batch = minibatch(32, seed=step)
            whole.run(whole.model.train_op, feed(whole, batch))
            for i in range(4):
                part = {name: values[8 * i : 8 * i + 8] for name, values in batch.items()}
                op = parts.model.train_op if i == 3 else parts.model.accumulate_op
                assert parts.run(op, feed(parts, part)) is None
        for name, value in parts.weights().items():
            np.testing.assert_allclose(value, whole.weights()[name], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("loss", ["huber", "mse", "dqn3"])
def test_a_minibatchs_gradient_is_the_sum_of_its_examples_by_their_weights(loss: str) -> None:
    batch, weights = minibatch(16), np.linspace(0, 1, 16).astype(np.float32)
    with Twin("online", spec(loss=loss), seed=1, compute=Compute(threads=1)) as twin:

        def gradients(weight: np.ndarray) -> list[np.ndarray]:
            values: list[np.ndarray] = twin.run(twin.model.gradients, {**feed(twin, batch), twin.model.weight: weight})
            return values

        weighted = gradients(weights)
        each = [gradients(one) for one in np.eye(16, dtype=np.float32)]
    for i, gradient in enumerate(weighted):
        parts = [weight * one[i] for weight, one in zip(weights, each, strict=True)]
        np.testing.assert_allclose(gradient, np.sum(parts, axis=0), rtol=1e-3, atol=1e-5)
    assert np.abs(each[3][0]).max() > 0


def test_gradients_are_clipped_by_the_norm_of_all_together() -> None:
    batch = minibatch(16)
    with Twin(
        "online", spec(loss="mse", gradient_clip_norm=0.1, accumulate=2), seed=1, compute=Compute(threads=1)
    ) as twin:
        gradients = gradients_of(batch, twin.weights())
        norm = np.sqrt(sum((g**2).sum() for g in gradients.values()))
        assert norm > 0.1
    with Twin(
        "online",
        spec(loss="mse", gradient_clip_norm=0.1, optimizer="rmsprop_dqn3", learning_rate=1.0),
        seed=1,
        compute=Compute(threads=1),
    ) as twin:
        before = twin.weights()
        twin.run(twin.model.train_op, feed(twin, batch))
        after = twin.weights()
    for name, g in gradients.items():
        g = g * 0.1 / norm
        step = g / np.sqrt(0.05 * g**2 - (0.05 * g) ** 2 + 0.01)
        np.testing.assert_allclose(after[name], before[name] - step, rtol=1e-4, atol=1e-6)


def test_a_dueling_head_is_value_plus_centered_advantage() -> None:
    s = minibatch(16)["s_tm1"]
    with Twin("online", spec(dueling=True), seed=1, compute=Compute(threads=1)) as twin:
        w = twin.weights()
        q = twin.q_values(s)

    def stream(hidden: str, read_out: str) -> np.ndarray:
        x = np.maximum(0, s @ w[f"{hidden}/weights"] + w[f"{hidden}/bias"])
        return np.asarray(x @ w[f"{read_out}/weights"] + w[f"{read_out}/bias"])

    value, advantage = stream("value_fc1", "value"), stream("advantage_fc1", "advantage")
    assert value.shape == (16, 1)
    np.testing.assert_allclose(q, value + advantage - advantage.mean(axis=1, keepdims=True), rtol=1e-5, atol=1e-6)


def test_learning_rates_follow_their_schedules(cartpole: Make) -> None:
    def rates(**settings: object) -> list[float]:
        train = cartpole(train__learning_rate=0.1, train__learning_rate_updates=10, **settings).train
        return [train.learning_rate_at(update) for update in (0, 5, 9, 10, 25)]

    assert rates() == [0.1] * 5
    linear = rates(train__learning_rate_schedule="linear", train__learning_rate_end=0.02)
    assert linear == pytest.approx([0.1, 0.06, 0.028, 0.02, 0.02])
    stairs = rates(train__learning_rate_schedule="staircase", train__learning_rate_decay=0.5)
    assert stairs == pytest.approx([0.1, 0.1, 0.1, 0.05, 0.025])


@pytest.mark.parametrize(("settings", "message"), rows("learners", "contradictions", "settings", "message"))
def test_settings_that_make_no_sense_together_are_refused(
    cartpole: Make, settings: dict[str, object], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        cartpole(**settings)


def test_dropout_follows_from_its_seed_and_is_off_without_one() -> None:
    settings = config.load("cartpole", [("network", "blob")])
    blob = ModelSpec.of(settings, EnvSpec((10, 10, 3), 9, "uint8"))
    random = np.random.default_rng(0)
    batch = {
        "s_tm1": random.integers(0, 256, (64, 10, 10, 3), np.uint8),
        "a_tm1": random.integers(0, 9, 64),
        "r_t": random.normal(size=64).astype(np.float32),
        "discount_t": np.zeros(64, np.float32),
        "q_target_t": np.zeros((64, 9), np.float32),
    }
    with Twin("online", blob, seed=1, compute=Compute(threads=1)) as twin:
        losses = [
            twin.run(twin.model.loss, {**feed(twin, batch), **seed})
            for seed in [{}, {}, *({twin.model.dropout_seed: (1, k)} for k in (5, 5, 6))]
        ]
        q = twin.q_values(batch["s_tm1"])
        twin.freeze()
        np.testing.assert_array_equal(twin.q_values(batch["s_tm1"], frozen=True), q)
    assert losses[0] == losses[1]
    assert losses[2] == losses[3]
    assert len(set(losses)) == 3


def test_the_loss_of_an_update_is_that_of_all_its_minibatches(
    cartpole: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    learn = Learner.train
    compared = []

    def traced(learner: Learner, updates: Sequence[int], prepared: Prepared) -> Losses:
        model = learner.online.model
        parts = feeds(model, settings.train, prepared.values(updates))
        each = [learner.online.run((model.loss, model.q_mean), part) for part in parts]
        found = learn(learner, updates, prepared)
        compared.append(((found.loss[0], found.q_mean[0]), np.mean(each, axis=0)))
        return found

    monkeypatch.setattr(Learner, "train", traced)
    settings = cartpole(train__steps=400, train__accumulate=3, evaluate__episodes=0)
    attempt(create(tmp_path / "run", settings))
    assert compared
    for ours, theirs in compared:
        np.testing.assert_allclose(ours, theirs, rtol=1e-5)


@pytest.mark.parametrize(
    "settings",
    [
        {"train__double": True, "model__dueling": True},
        {"loss": "dqn3", "train__rescale_r": True, "train__optimizer": "rmsprop_dqn3", "train__learning_rate": 2.5e-4},
        {"train__target_q": False},
        {"train__minto": True, "train__chunk_steps": 16, "target__policy": "average(3)", "save__every_updates": 10},
        {"train__accumulate": 3, "train__gradient_clip_norm": 10.0, "train__learning_rate_schedule": "staircase"},
        {"train__optimizer": "rmsprop", "train__chunk_steps": 40},
        {"replay__prioritized": True, "train__n_step": 2},
        {"replay__prioritized": True, "train__double": True, "train__chunk_steps": 24, "loss": "dqn3"},
        {**ROLLOUTS, "train__batch_size": 40},
        {**ROLLOUTS, "train__batch_size": 8, "train__accumulate": 5, "train__chunk_steps": 80, "train__double": True},
    ],
    ids=lambda settings: " ".join(f"{key}={value}" for key, value in settings.items()),
)
def test_each_learner_trains_and_resumes_exactly(
    cartpole: Make, trained: Callable[[Settings], Run], tmp_path: Path, settings: dict[str, object]
) -> None:
    # Squared: the Huber loss clips the large errors of the beginning, and with them the target's influence.
    usual = {"loss": "mse", "train__steps": 800, "evaluate__episodes": 0, "resume__every_steps": 400}
    chosen = cartpole(**{**usual, **settings})
    whole, killed = whole_and_killed(chosen, tmp_path, 640)
    assert end(killed) == end(whole)
    assert end(trained(cartpole(**usual)))[0] != end(whole)[0]


@pytest.mark.parametrize(("rescaled", "largest"), [(False, 200), (True, 40)])
def test_values_are_healthy_up_to_what_rewards_in_their_units_can_add_up_to(*, rescaled: bool, largest: float) -> None:
    tally = Tally(reward_limit=20.0, r_max=5.0)
    probe = HeldOut(TrainSettings(discount=0.9, rescale_r=rescaled), tally)
    probe.observations = np.zeros((32, 4), np.float32)
    with Twin("online", spec(), seed=1, compute=Compute(threads=1)) as online:
        health = probe.health(online)
    assert health is not None
    assert health.q_limit == pytest.approx(largest)


def test_the_preset_of_2015_trains_and_resumes_exactly(tmp_path: Path) -> None:
    small = {
        "train.steps": 160,
        "train.start_steps": 100,
        "replay.capacity_steps": 1_000,
        "target.refresh_every_updates": 6,
        "resume.every_steps": 100,
        "evaluate.episodes": 0,
        "twin.threads": 1,
    }
    settings = config.load("dqn2015", small.items())
    assert (settings.loss, settings.train.optimizer, settings.train.batch_size) == ("dqn3", "rmsprop_dqn3", 32)
    whole, killed = whole_and_killed(settings, tmp_path, 140)
    assert end(whole) == end(killed)
    point = whole.points().newest()
    assert point is not None
    assert point.counters.updates == 15
    assert len({snapshot.weights_sha256 for snapshot in whole.store().snapshots}) > 2


def test_a_run_without_a_target_is_not_explained_by_one(cartpole: Make, tmp_path: Path) -> None:
    run = create(tmp_path / "run", cartpole(train__steps=400, evaluate__episodes=0, train__target_q=False))
    attempt(run)
    with pytest.raises(UsageError, match="uses no target"):
        report.explain(run, 10)


def test_rewards_are_divided_by_the_largest_so_far(cartpole: Make) -> None:
    settings = cartpole(loss="dqn3", train__rescale_r=True, train__n_step=1)
    actor, no = Actor(settings, Tally(1), EnvSpec((4,), 2), 8), np.zeros(8, np.bool_)
    for largest, sampled in ((5.0, [1 / 5]), (20.0, [1 / 20, 5 / 20])):  # all but the newest step
        for reward in (1.0, largest):
            seen = np.zeros((8, 4), np.float32)
            actor.observe(Transition(seen, np.zeros(8, np.int64), np.full(8, reward, np.float32), no, no, seen))
        np.testing.assert_allclose(np.unique(actor.sample(range(20)).r_t), sampled)
