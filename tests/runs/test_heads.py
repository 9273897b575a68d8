"""Distributions: projection, quantile loss, and what an update does, against NumPy written from the papers."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from attempts import attempt, end, whole_and_killed
from hypothesis import given, settings
from hypothesis import strategies as st

from twin_graph import config, targets
from twin_graph.analysis.reproduce import reproduce
from twin_graph.config.settings import ModelSettings, Settings
from twin_graph.envs import EnvSpec
from twin_graph.errors import ForeignError, UsageError
from twin_graph.layers import last_layer, torch_default
from twin_graph.snapshots.fork import fork
from twin_graph.snapshots.resumable import point_at
from twin_graph.snapshots.run import Run, create
from twin_graph.twin import heads
from twin_graph.twin.model import ModelSpec
from twin_graph.twin.tf import tf
from twin_graph.twin.twin import Compute, Twin

Make = Callable[..., Settings]
Arrays = dict[str, np.ndarray]
A, N, UNITS = 3, 7, 8
SUPPORT = (-3.0, 5.0)
HEADS = ("categorical", "quantile")


def evaluated(compute: Callable[..., Any], *values: np.ndarray) -> np.ndarray:
    with tf.Graph().as_default(), tf.Session() as session:
        result: np.ndarray = session.run(compute(*(tf.constant(value) for value in values)))
        return result


def softmax(x: np.ndarray) -> np.ndarray:
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


def projected(r: np.ndarray, discount: np.ndarray, p: np.ndarray) -> np.ndarray:
    """Algorithm 1 of Bellemare et al. 2017, number by number."""
    z = np.linspace(*SUPPORT, p.shape[1])
    dz = z[1] - z[0]
    m = np.zeros_like(p, np.float64)
    for i in range(len(p)):
        for j in range(p.shape[1]):
            b = (np.clip(r[i] + discount[i] * z[j], *SUPPORT) - z[0]) / dz
            lower, upper = int(np.floor(b)), int(np.ceil(b))
            if lower == upper:
                m[i, lower] += p[i, j]
            else:
                m[i, lower] += p[i, j] * (upper - b)
                m[i, upper] += p[i, j] * (b - lower)
    return m


def quantile_loss(theta: np.ndarray, target: np.ndarray, kappa: float = 1.0) -> tuple[np.ndarray, np.ndarray]:
    """Equation 10 and algorithm 1 of Dabney et al. 2018, and the derivative by `theta`, each number by itself."""
    loss, gradient, n = np.zeros(len(theta)), np.zeros_like(theta, np.float64), theta.shape[1]
    for b in range(len(theta)):
        for i in range(n):
            for goal in target[b]:
                u, tau = float(goal) - float(theta[b, i]), (2 * i + 1) / (2 * n)
                weight = abs(tau - (u < 0)) / kappa / target.shape[1]
                loss[b] += weight * (0.5 * u * u if abs(u) <= kappa else kappa * (abs(u) - kappa / 2))
                gradient[b, i] -= weight * float(np.clip(u, -kappa, kappa))
    return loss, gradient


probabilities = st.lists(st.floats(0.01, 1), min_size=N, max_size=N)
returns = st.floats(-10, 10, width=32)


@given(probabilities, returns, st.floats(0, 1, width=32))
@settings(max_examples=30)
def test_a_projection_keeps_the_mass_and_is_that_of_the_paper(weights: list[float], r: float, discount: float) -> None:
    head = heads.Categorical(SUPPORT, N)
    p = np.array([weights], np.float32) / np.float32(sum(weights))
    batch = np.array([r], np.float32), np.array([discount], np.float32), p
    found = evaluated(head.target, *batch)
    assert found.sum() == pytest.approx(1, abs=1e-5)
    np.testing.assert_allclose(found, projected(*batch), atol=2e-5)


def test_a_distribution_that_is_not_moved_stays_and_one_moved_by_an_atom_shifts() -> None:
    head = heads.Categorical((0.0, 6.0), 7)
    p = softmax(np.random.default_rng(0).normal(size=(1, 7))).astype(np.float32)
    one, none = np.ones(1, np.float32), np.zeros(1, np.float32)
    np.testing.assert_allclose(evaluated(head.target, none, one, p), p, atol=1e-6)
    shifted = evaluated(head.target, one, one, p)
    np.testing.assert_allclose(shifted[0, 1:-1], p[0, :-2], atol=1e-6)
    assert shifted[0, -1] == pytest.approx(p[0, -2:].sum(), abs=1e-6)
    np.testing.assert_allclose(evaluated(head.target, 2 * one, none, p), np.eye(7)[[2]], atol=1e-6)  # terminal


@given(st.integers(1, 6), st.integers(1, 6), st.floats(0.1, 4), st.integers(0, 100))
@settings(max_examples=30)
def test_the_quantile_loss_is_that_of_the_paper(n: int, targets: int, kappa: float, seed: int) -> None:
    random = np.random.default_rng(seed)
    theta, target = (random.normal(size=(2, k), scale=2).astype(np.float32) for k in (n, targets))
    found = evaluated(lambda a, b: heads.quantile_huber(a, b, kappa), theta, target)
    np.testing.assert_allclose(found, quantile_loss(theta, target, kappa)[0], rtol=1e-4, atol=1e-6)


def test_one_quantile_is_half_a_huber_loss_of_the_value() -> None:
    """Its level is one half, so that both signs of an error weigh the same."""
    theta, target = np.array([[1.0], [4.0]], np.float32), np.array([[1.5], [0.0]], np.float32)
    np.testing.assert_allclose(evaluated(heads.quantile_huber, theta, target), [0.5 * 0.125, 0.5 * 3.5])


def spec(head: str, **train: Any) -> ModelSpec:
    model = ModelSettings(hidden_units=[UNITS], head=head, atoms=N, support=list(SUPPORT))
    chosen = config.load("cartpole").train.model_copy(
        update={"optimizer": "rmsprop_centered", "learning_rate": 0.0, "double": False, **train}
    )
    return ModelSpec(EnvSpec((4,), A), network="mlp", loss="huber", model=model, train=chosen)


def minibatch(head: str, size: int, seed: int) -> Arrays:
    """With terminal steps, and others as truncated ones are: bootstrapped."""
    random = np.random.default_rng(seed)
    supplied = random.normal(size=(size, A, N)).astype(np.float32)
    return {
        "s_tm1": random.normal(size=(size, 4)).astype(np.float32),
        "s_t": random.normal(size=(size, 4)).astype(np.float32),
        "a_tm1": random.integers(0, A, size),
        "r_t": random.normal(size=size).astype(np.float32),
        "discount_t": random.choice([0, 0.9, 0.9**3], size).astype(np.float32),
        "weight": random.uniform(0.1, 1, size).astype(np.float32),
        "q_target_t": softmax(supplied) if head == "categorical" else supplied,
    }


def outputs_of(s: np.ndarray, w: Arrays) -> tuple[np.ndarray, np.ndarray]:
    hidden = np.maximum(0, s.astype(np.float64) @ w["fc1/weights"] + w["fc1/bias"])
    return hidden, (hidden @ w["q/weights"] + w["q/bias"]).reshape(-1, A, N)


def expected(head: str, batch: Arrays, w: Arrays, *, double: bool) -> tuple[np.ndarray, Arrays]:
    """Each example's loss, and the gradients of the mean weighted loss, by hand."""
    z = np.linspace(*SUPPORT, N)

    def mean(supplied: np.ndarray) -> np.ndarray:
        return supplied @ z if head == "categorical" else supplied.mean(axis=-1)

    rows, size = np.arange(len(batch["r_t"])), len(batch["r_t"])
    own = outputs_of(batch["s_t"], w)[1]
    selector = mean(softmax(own) if head == "categorical" else own) if double else mean(batch["q_target_t"])
    best = batch["q_target_t"][rows, selector.argmax(axis=1)]
    hidden, outputs = outputs_of(batch["s_tm1"], w)
    taken = outputs[rows, batch["a_tm1"]]
    if head == "categorical":
        m = projected(batch["r_t"], batch["discount_t"], best)
        loss = -(m * np.log(softmax(taken))).sum(axis=1)
        slope = softmax(taken) - m
    else:
        target = batch["r_t"][:, None] + batch["discount_t"][:, None] * best
        loss, slope = quantile_loss(taken, target)
    at_outputs = np.zeros_like(outputs)
    at_outputs[rows, batch["a_tm1"]] = slope * (batch["weight"] / size)[:, None]
    flat = at_outputs.reshape(size, -1)
    back = (flat @ w["q/weights"].T) * (hidden > 0)
    return loss, {
        "fc1/weights": batch["s_tm1"].T.astype(np.float64) @ back,
        "fc1/bias": back.sum(axis=0),
        "q/weights": hidden.T @ flat,
        "q/bias": flat.sum(axis=0),
    }


@pytest.mark.parametrize("double", [False, True])
@pytest.mark.parametrize("head", HEADS)
def test_an_update_is_that_of_the_papers(head: str, double: bool) -> None:
    with Twin("online", spec(head, double=double), seed=1, compute=Compute(threads=1)) as twin:
        model = twin.model
        w = {name: value.astype(np.float64) for name, value in twin.weights().items()}
        for seed in range(200):
            batch = minibatch(head, 8, seed)
            feed = {getattr(model, name): value for name, value in batch.items() if name in {*model.fed}}
            td_error, loss, *gradients = twin.run([model.td_error, model.loss, *model.gradients], feed)
            of_examples, by_hand = expected(head, batch, w, double=double)
            np.testing.assert_allclose(td_error, of_examples, rtol=1e-4, atol=1e-6)
            assert loss == pytest.approx((batch["weight"] * of_examples).mean(), rel=1e-4)
            for variable, gradient in zip(model.trainables, gradients, strict=True):
                wanted = by_hand[variable.op.name]
                np.testing.assert_allclose(gradient, wanted, rtol=1e-4, atol=1e-5 * np.abs(wanted).max())


@pytest.mark.parametrize("head", HEADS)
def test_no_illegal_action_is_ever_the_best(head: str) -> None:
    """Not by the network, nor by what it supplies as a target, however bad the legal ones are."""
    chosen = spec(head)
    masked = ModelSpec(EnvSpec((4 + A,), A, masked=True, seen_shape=(4,)), "mlp", "huber", chosen.model, chosen.train)
    random = np.random.default_rng(0)
    legal = np.eye(A, dtype=np.float32)[random.integers(0, A, 64)]
    observations = np.concatenate([random.normal(size=(64, 4), scale=30).astype(np.float32), legal], axis=1)
    with Twin("online", masked, seed=1, compute=Compute(threads=1)) as twin:
        twin.load({name: value - 30 for name, value in twin.weights().items()})
        best = legal.argmax(axis=1)
        np.testing.assert_array_equal(twin.q_values(observations).argmax(axis=1), best)
        returns, probabilities = twin.distribution(observations)
        np.testing.assert_allclose(probabilities.sum(axis=2), 1, atol=1e-5)
        expectation = (returns * probabilities).sum(axis=2)
        assert (expectation.max(axis=1) <= expectation[np.arange(64), best] + 1e-5).all()


def test_q_values_are_the_mean_of_the_distribution() -> None:
    observations = np.random.default_rng(0).normal(size=(5, 4)).astype(np.float32)
    for head in ("scalar", *HEADS):
        with Twin("online", spec(head), seed=1, compute=Compute(threads=1)) as twin:
            returns, probabilities = twin.distribution(observations)
            assert returns.shape == probabilities.shape == (5, A, 1 if head == "scalar" else N)
            q = (returns * probabilities).sum(axis=2)
            np.testing.assert_allclose(q, twin.q_values(observations), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"train__minto": True}, "train.minto takes the smaller of two values"),
        ({"loss": "mse"}, "loss=mse is of values: model.head=quantile has a loss of its own"),
        ({"loss": "dqn3"}, "loss=dqn3 is of values"),
        ({"loss": "mse_all"}, "loss=mse_all is of values"),
        ({"model__head": "categorical", "model__support": [5, 5]}, "it needs the lowest return, then the highest"),
        ({"model__head": "categorical", "model__atoms": 1}, "model.atoms=2 or more"),
    ],
)
def test_what_is_of_values_is_refused(cartpole: Make, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        cartpole(**{"model__head": "quantile", **changes})


def test_the_least_of_several_distributions_is_refused_and_their_mean_is_not(cartpole: Make) -> None:
    for head in HEADS:
        chosen = cartpole(model__head=head, target__policy="ensemble(2, min)")
        with pytest.raises(UsageError, match=f"model.head={head} has distributions"):
            targets.roles(chosen)
        targets.roles(cartpole(model__head=head, target__policy="ensemble(2, mean)"))


def of_one_value(observation: Any, n_actions: int, build: Any) -> Any:
    return last_layer("q", observation, n_actions, torch_default)


def of_a_distribution(observation: Any, n_actions: int, build: Any) -> Any:
    return build.last_layer("q", observation, n_actions, torch_default)


def squared_mean(outputs_tm1: Any, target: Any) -> Any:
    return tf.square(tf.reduce_mean(outputs_tm1 - target, axis=1))


def test_a_network_and_a_loss_of_ones_own_may_be_of_distributions() -> None:
    own = dataclasses.replace(spec("quantile"), network=f"{__name__}:of_one_value")
    with pytest.raises(ForeignError, match=r"must return what model.head=quantile needs, of shape \(None, 3, 7\)"):
        Twin("online", own)
    own = dataclasses.replace(own, network=f"{__name__}:of_a_distribution", loss=f"{__name__}:squared_mean")
    with Twin("online", own, seed=1, compute=Compute(threads=1)) as twin:
        batch = minibatch("quantile", 4, 0)
        feed = {getattr(twin.model, name): value for name, value in batch.items() if name in {*twin.model.fed}}
        td_error = twin.run(twin.model.td_error, feed)
        assert td_error.shape == (4,)


#: With what a distribution has to get along.
VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "compiled": {"train__chunk_steps": 64, "twin__compiled": True},
    "dueling, double, prioritized": {"model__dueling": True, "train__double": True, "replay__prioritized": True},
    "mutual": {"mode": "mutual"},
    "accumulated": {"train__accumulate": 2, "train__batch_size": 8},
    "no target": {"train__target_q": False},
    "mean of several": {"target__policy": "ensemble(2, mean)"},
    "mean weights": {"target__policy": "average(2)"},
}


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("head", HEADS)
def test_a_run_that_was_killed_ends_as_one_that_was_not(
    cartpole: Make, tmp_path: Path, head: str, variant: str
) -> None:
    chosen = cartpole(model__head=head, model__atoms=11, train__steps=900, evaluate__episodes=0, **VARIANTS[variant])
    whole, killed = whole_and_killed(chosen, tmp_path, 450)
    assert end(killed) == end(whole)


@pytest.mark.parametrize("head", HEADS)
def test_a_record_is_reproduced_and_a_fork_has_its_parents_future(cartpole: Make, tmp_path: Path, head: str) -> None:
    chosen = cartpole(model__head=head, model__atoms=11, train__steps=900, resume__keep="all")
    run = create(tmp_path / "run", chosen)
    attempt(run)
    assert reproduce(run, None, None, tmp_path / "again", lambda _: None).difference is None
    made = fork(run, point_at(run, "1"), tmp_path / "fork", run.settings)
    attempt(made)
    assert end(Run(made.folder)) == end(run)
