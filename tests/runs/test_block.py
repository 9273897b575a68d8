"""Many updates in one run, compiled by XLA: the same updates as single ones, in whatever portions they are made."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from attempts import attempt, end, whole_and_killed
from test_schedule import diverge

from twin_graph.config.settings import Settings
from twin_graph.envs import EnvSpec
from twin_graph.errors import UsageError
from twin_graph.snapshots.run import Run, create
from twin_graph.twin import cpu_layers, layers, xla_layers
from twin_graph.twin.model import ModelSpec
from twin_graph.twin.tf import tf
from twin_graph.twin.twin import Compute, Twin, weights_sha256

Make = Callable[..., Settings]
Train = Callable[[Settings], Run]
K, B = 4, 8

VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "double dueling": {"train__double": True, "model__dueling": True, "train__gradient_clip_norm": 1.0},
    "own values": {"train__target_q": False, "train__optimizer": "rmsprop"},
    "dqn3": {"loss": "dqn3", "train__optimizer": "rmsprop_dqn3", "train__learning_rate": 1e-3},
    "centered": {
        "train__optimizer": "rmsprop_centered",
        "train__rmsprop_momentum": 0.9,
        "train__rmsprop_epsilon": 0.01,
    },
    "minatar": {"network": "minatar"},
    "dropout": {"network": "blob"},
}


def values_of(spec: ModelSpec, count: int) -> dict[str, np.ndarray]:
    """Random minibatches, one after the other, by the names in `Model.fed`."""
    random, shape = np.random.default_rng(1), (count * B, *spec.env.observation_shape)

    def observations() -> np.ndarray:
        if spec.env.observation_dtype == "uint8":
            return random.integers(0, 256, shape).astype(np.uint8)
        return random.normal(size=shape).astype(np.float32)

    return {
        "s_tm1": observations(),
        "a_tm1": random.integers(0, spec.env.n_actions, count * B).astype(np.int32),
        "r_t": random.normal(size=count * B).astype(np.float32),
        "discount_t": np.where(random.random(count * B) < 0.2, 0, 0.9).astype(np.float32),
        "weight": random.uniform(0.5, 1, count * B).astype(np.float32),
        "q_target_t": random.normal(size=(count * B, spec.env.n_actions)).astype(np.float32),
        "s_t": observations(),
        "dropout_seed": np.array([(1, update) for update in range(count)]),
        "learning_rate": np.array([spec.train.learning_rate / (1 + update) for update in range(count)], np.float32),
    }


def part(values: dict[str, np.ndarray], updates: range) -> dict[str, np.ndarray]:
    size = {name: len(value) // len(values["dropout_seed"]) for name, value in values.items()}
    return {name: value[updates.start * size[name] : updates.stop * size[name]] for name, value in values.items()}


def by_blocks(
    twin: Twin, values: dict[str, np.ndarray], portions: Sequence[int]
) -> tuple[dict[str, np.ndarray], list[np.ndarray]]:
    """Weights after `K` updates, and loss, q_mean and TD errors of each."""
    assert twin.model.block
    made, told = 0, []
    for count in portions:
        fetched = twin.run(twin.model.block.fetches, twin.model.block.feed(part(values, range(made, made + count))))
        told.append([one[:count] for one in fetched])
        made += count
    return twin.weights(), [np.concatenate(one) for one in zip(*told, strict=True)]


@pytest.fixture(params=VARIANTS, ids=lambda name: name.replace(" ", "-"))
def spec(request: pytest.FixtureRequest, cartpole: Make) -> ModelSpec:
    changes = VARIANTS[request.param]
    image = changes.get("network") in ("minatar", "blob")
    env = EnvSpec((10, 10, 3), 4, "uint8") if image else EnvSpec((4,), 3)
    settings = cartpole(train__batch_size=B, **changes)
    return ModelSpec(env, settings.network, settings.loss, settings.model, settings.train)


def test_a_block_is_its_updates_one_by_one_to_the_bit_and_those_of_train_op_but_for_rounding(spec: ModelSpec) -> None:
    with Twin("online", spec, seed=1, compute=Compute(threads=1), block=K) as twin:
        beginning, values, model = twin.all_variables(), values_of(spec, K), twin.model
        weights, told = by_blocks(twin, values, [K])
        for portions in ([1] * K, [2, 1, 1]):
            twin.load_all(beginning)
            others, told_then = by_blocks(twin, values, portions)
            assert weights_sha256(others) == weights_sha256(weights), portions
            assert all(map(np.array_equal, told_then, told))
        values["dropout_seed"] = np.full((K, 2), -1)  # XLA draws other masks than TensorFlow
        twin.load_all(beginning)
        weights, without = by_blocks(twin, values, [K])
        assert np.array_equal(without[0], told[0]) == (spec.network != "blob")
        twin.load_all(beginning)
        for update in range(K):
            batch = part(values, range(update, update + 1))
            fed = {tensor: batch[name] for name, tensor in model.fed.items()}
            fed |= {model.dropout_seed: batch["dropout_seed"][0], model.learning_rate: batch["learning_rate"][0]}
            _, *one = twin.run((model.train_op, model.loss, model.q_mean, model.td_error), fed)
            for value, of_block in zip(one, without, strict=True):
                np.testing.assert_allclose(of_block[update], value, rtol=1e-3, atol=1e-4)
        for name, value in twin.weights().items():
            moved = np.linalg.norm(value - beginning[name])
            assert moved > 0
            assert np.linalg.norm(weights[name] - value) < 0.01 * moved, name


@pytest.mark.parametrize(
    "changes",
    [
        {"replay__prioritized": True},
        {"mode": "mutual"},
        {"train__learning_rate_schedule": "linear", "train__learning_rate_updates": 40},
        {"train__learning_rate_schedule": "staircase", "train__learning_rate_updates": 8},
    ],
)
def test_a_compiled_run_makes_the_updates_of_one_that_is_not(
    cartpole: Make, train: Train, changes: dict[str, Any]
) -> None:
    """The first 30 updates, in chunks, with records of the same snapshots; later, roundings grow."""
    given = {"train__steps": 320, "train__chunk_steps": 48, "evaluate__episodes": 0, **changes}
    plain, compiled = (
        train(cartpole(twin__compiled=compiled, target__refresh_every_updates=10, **given))
        for compiled in (False, True)
    )
    ours, theirs = (
        [(type(event), getattr(event, "counters", None)) for event in run.ledger.events()] for run in (compiled, plain)
    )
    assert ours == theirs
    losses = [[line["loss"] for line in run.metric_lines() if line.get("loss")] for run in (compiled, plain)]
    np.testing.assert_allclose(*losses, rtol=1e-3)


def test_a_compiled_run_that_was_killed_ends_as_one_that_was_not_overlapped_or_not(
    cartpole: Make, tmp_path: Path
) -> None:
    settings = cartpole(twin__compiled=True, train__chunk_steps=48, save__every_updates=20, replay__prioritized=True)
    whole, killed = whole_and_killed(settings, tmp_path, 640, 1_100)
    assert end(killed) == end(whole)
    in_turn = create(
        tmp_path / "in_turn", settings.model_copy(update={"twin": settings.twin.model_copy(update={"overlap": False})})
    )
    attempt(in_turn)
    assert end(in_turn) == end(whole)


def test_a_compiled_run_that_diverges_names_the_update(cartpole: Make, tmp_path: Path) -> None:
    run = create(tmp_path / "run", cartpole(twin__compiled=True, loss="mse", train__chunk_steps=32))
    diverge(run, r"the loss is (inf|nan) at update 1; the last good snapshot is 0")


def test_accumulated_minibatches_are_refused_with_what_to_do(cartpole: Make) -> None:
    with pytest.raises(UsageError, match=r"use train.batch_size=32 in place of train.accumulate=2"):
        cartpole(twin__compiled=True, train__accumulate=2)
    assert cartpole(twin__compiled=True, train__accumulate=2, workers__count=2).block_updates == 0


@pytest.mark.parametrize("padding", ["VALID", "SAME"])
@pytest.mark.parametrize(("size", "kernel", "stride"), [((10, 10), 3, 1), ((11, 8), 4, 2), ((12, 9), 3, 2)])
def test_convolutions_for_xla_are_convolutions(padding: str, size: tuple[int, int], kernel: int, stride: int) -> None:
    x = np.random.default_rng(1).normal(size=(5, *size, 3)).astype(np.float32)
    with tf.Graph().as_default(), tf.Session() as session:
        tf.set_random_seed(1)
        outputs = []
        for computed_with in (layers, xla_layers, cpu_layers):
            with tf.variable_scope("same", reuse=tf.AUTO_REUSE):
                outputs.append(
                    computed_with.convolution("c", tf.constant(x), kernel, 7, stride, padding, layers.torch_default)
                )
        session.run(tf.global_variables_initializer())
        plain, for_xla, fast = session.run(outputs)
    np.testing.assert_allclose(for_xla, plain, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(fast, plain, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("padding", ["VALID", "SAME"])
def test_frames_for_xla_are_those_of_plain_layers(padding: str) -> None:
    frames = np.random.default_rng(1).integers(0, 256, (3, 4, 30, 26)).astype(np.uint8)
    with tf.Graph().as_default(), tf.Session() as session:
        outputs = []
        for computed_with in (layers, xla_layers):
            with tf.variable_scope("same", reuse=tf.AUTO_REUSE):
                outputs.append(
                    computed_with.convolution_of_frames("c", tf.constant(frames), 7, padding, layers.he, tf.float32)
                )
        session.run(tf.global_variables_initializer())
        plain, for_xla = session.run(outputs)
    np.testing.assert_allclose(for_xla, plain, rtol=1e-4, atol=1e-5)
