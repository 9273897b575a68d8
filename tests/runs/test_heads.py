"""Distributions: projection, quantile loss, and what an update does, against NumPy written from the papers."""

from __future__ import annotations

import dataclasses
import functools
import math
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from attempts import attempt, end, reproduced_and_forked, whole_and_killed
from hypothesis import given, settings
from hypothesis import strategies as st

from twin_graph import config, targets
from twin_graph.base.streams import NoiseKeys, Purpose
from twin_graph.config.settings import ModelSettings, Settings, TrainSettings
from twin_graph.envs import EnvSpec
from twin_graph.envs.legal import ILLEGAL, is_illegal, legal_only
from twin_graph.errors import ForeignError, UsageError
from twin_graph.layers import last_layer, torch_default
from twin_graph.snapshots.run import create
from twin_graph.twin import heads
from twin_graph.twin.model import ModelSpec
from twin_graph.twin.tf import tf
from twin_graph.twin.twin import Compute, Twin

Make = Callable[..., Settings]
Arrays = dict[str, np.ndarray]
A, N, UNITS = 3, 7, 8
SUPPORT = (-3.0, 5.0)
HEADS = ("categorical", "quantile", "implicit")
TARGET, ACTING = 5, 4  # levels that are drawn with the implicit head, besides N
GAUSS = "categorical by hl_gauss"
SIGMA = 0.6


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


def bell_curve(value: float) -> np.ndarray:
    """Section 3 of Farebrother et al. 2024: the mass of each bin, of all that is within the support."""
    edges = np.linspace(*SUPPORT, N)
    width = edges[1] - edges[0]
    edges = np.append(edges - width / 2, edges[-1] + width / 2)
    below = [0.5 * (1 + math.erf((edge - value) / (SIGMA * width * 2**0.5))) for edge in edges]
    return np.diff(below) / (below[-1] - below[0])


def quantile_loss(
    theta: np.ndarray, target: np.ndarray, kappa: float = 1.0, levels: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Equation 10 and algorithm 1 of Dabney et al. 2018, and the derivative by `theta`, each number by itself."""
    loss, gradient, n = np.zeros(len(theta)), np.zeros_like(theta, np.float64), theta.shape[1]
    for b in range(len(theta)):
        for i in range(n):
            for goal in target[b]:
                u, tau = float(goal) - float(theta[b, i]), (2 * i + 1) / (2 * n) if levels is None else levels[b, i]
                weight = abs(tau - (u < 0)) / kappa / target.shape[1]
                loss[b] += weight * (0.5 * u * u if abs(u) <= kappa else kappa * (abs(u) - kappa / 2))
                gradient[b, i] -= weight * float(np.clip(u, -kappa, kappa))
    return loss, gradient


@given(st.floats(-20, 20, width=32))
@settings(max_examples=30)
def test_a_bell_curve_has_the_mass_of_each_bin(value: float) -> None:
    head = heads.Categorical(SUPPORT, N)
    found = evaluated(lambda x: head.bell_curve(x, SIGMA), np.array([value], np.float32))
    np.testing.assert_allclose(found[0], bell_curve(min(max(value, SUPPORT[0]), SUPPORT[1])), atol=2e-6)


def test_a_narrow_bell_curve_is_at_the_value_and_a_wide_one_even() -> None:
    head = heads.Categorical(SUPPORT, N)
    atom = head.returns[[2]]
    np.testing.assert_allclose(evaluated(lambda x: head.bell_curve(x, 0.01), atom), np.eye(N)[[2]], atol=1e-6)
    np.testing.assert_allclose(evaluated(lambda x: head.bell_curve(x, 99.0), atom), np.full((1, N), 1 / N), atol=1e-3)


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


def test_with_a_large_kappa_the_quantile_loss_is_of_weighted_squares() -> None:
    theta, target = np.random.default_rng(0).normal(size=(2, 3, 4)).astype(np.float32)
    error = target[:, None, :] - theta[:, :, None]
    weight = np.abs((np.arange(4) + 0.5)[None, :, None] / 4 - (error < 0))
    squares = (weight * error**2 / 2).mean(axis=2).sum(axis=1)
    found = evaluated(lambda a, b: 1000 * heads.quantile_huber(a, b, 1000.0), theta, target)
    np.testing.assert_allclose(found, squares, rtol=1e-5)


def test_one_quantile_is_half_a_huber_loss_of_the_value() -> None:
    """Its level is one half, so that both signs of an error weigh the same."""
    theta, target = np.array([[1.0], [4.0]], np.float32), np.array([[1.5], [0.0]], np.float32)
    np.testing.assert_allclose(evaluated(heads.quantile_huber, theta, target), [0.5 * 0.125, 0.5 * 3.5])


def spec(head: str, *, model: dict[str, Any] | None = None, masked: bool = False, **train: Any) -> ModelSpec:
    loss = "hl_gauss" if head == GAUSS else "huber"
    head = head.partition(" ")[0]
    sizes: dict[str, Any] = {"hidden_units": [UNITS], "head": head, "atoms": N, "support": list(SUPPORT)}
    sizes |= {"atoms_of_target": TARGET, "atoms_of_acting": ACTING}
    numbers = {"adam_epsilon": 1e-3, "double": False, "gauss_sigma": SIGMA, **train}
    chosen = config.load("cartpole").train.model_copy(update=numbers)
    env = EnvSpec((4 + A,), A, masked=True, seen_shape=(4,)) if masked else EnvSpec((4,), A)
    return ModelSpec(env, network="mlp", loss=loss, model=ModelSettings(**sizes | (model or {})), train=chosen)


def minibatch(head: str, size: int, seed: int, *, masked: bool = False) -> Arrays:
    """With terminal steps, and others as truncated ones are: bootstrapped."""
    random = np.random.default_rng(seed)
    axes = (size, A) if head == "scalar" else (size, A, TARGET if head == "implicit" else N)
    supplied = random.normal(size=axes).astype(np.float32)
    supplied = softmax(supplied) if head.startswith("categorical") else supplied
    q_target_tm1 = random.normal(size=(size, A)).astype(np.float32)
    s_tm1, s_t = random.normal(size=(2, size, 4)).astype(np.float32)
    a_tm1 = random.integers(0, A, size)
    if masked:
        legal = random.random((2, size, A)) < 0.5
        legal[0, np.arange(size), a_tm1] = True
        legal[1, np.arange(size), random.integers(0, A, size)] = True
        s_tm1, s_t = (np.concatenate(both, axis=1, dtype=np.float32) for both in ((s_tm1, legal[0]), (s_t, legal[1])))
        q_target_tm1[~legal[0]] = ILLEGAL
        supplied[~legal[1]] = np.eye(N)[0] if head.startswith("categorical") else ILLEGAL
    return {
        "s_tm1": s_tm1,
        "s_t": s_t,
        "a_tm1": a_tm1,
        "r_t": random.normal(size=size).astype(np.float32),
        "discount_t": random.choice([0, 0.9, 0.9**3], size).astype(np.float32),  # of other lengths, too
        "weight": random.uniform(0.1, 1, size).astype(np.float32),
        "q_target_t": supplied,
        "q_target_tm1": q_target_tm1,
    }


@functools.cache
def normal(n: int) -> Callable[[np.ndarray], np.ndarray]:
    """Draws n normal numbers from a seed."""
    with tf.Graph().as_default() as graph:
        seed = tf.placeholder(tf.int32, [2])
        drawn = tf.random.stateless_normal([n], seed)
    session = tf.Session(graph=graph)
    return lambda value: session.run(drawn, {seed: value})


@functools.cache
def uniform(*shape: int) -> Callable[[np.ndarray], np.ndarray]:
    """Draws numbers from (0, 1) from a seed."""
    with tf.Graph().as_default() as graph:
        seed = tf.placeholder(tf.int32, [2])
        drawn = tf.random.stateless_uniform(shape, seed)
    session = tf.Session(graph=graph)
    return lambda value: session.run(drawn, {seed: value})


def levels(size: int, count: int, key: np.ndarray) -> np.ndarray:
    """The levels of quantiles that are drawn with a key, `[size, count]`."""
    return uniform(size, count)(np.array([key[0] ^ zlib.crc32(b"levels") >> 1, key[1]])).astype(np.float64)


def noise(name: str, shape: tuple[int, ...], key: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
    """The noise of weights and biases: equations 10 and 11 of Fortunato et al. 2018."""
    if key is None:
        return np.zeros(shape), np.zeros(shape[1])
    salt = zlib.crc32(name.encode()) >> 1
    p, q = (normal(n)(np.array([key[0] ^ salt, key[1] ^ which])) for which, n in enumerate(shape))
    f_p, f_q = (np.sign(z) * np.abs(z.astype(np.float64)) ** 0.5 for z in (p, q))
    return np.outer(f_p, f_q), f_q


class Layer:
    """A fully connected layer, with noise if there is a key, and its gradients."""

    def __init__(self, name: str, w: Arrays, key: np.ndarray | None) -> None:
        self.name, self.is_noisy = name, f"{name}/weights_sigma" in w
        self.of_weights, self.of_bias = noise(name, w[f"{name}/weights"].shape, key)
        self.weights, self.bias = w[f"{name}/weights"], w[f"{name}/bias"]
        if self.is_noisy:  # equation 9
            self.weights = self.weights + w[f"{name}/weights_sigma"] * self.of_weights
            self.bias = self.bias + w[f"{name}/bias_sigma"] * self.of_bias
        self.x = np.empty(0)

    def forward(self, x: np.ndarray) -> np.ndarray:
        self.x = x
        return x @ self.weights + self.bias

    def back(self, slope: np.ndarray, into: Arrays) -> np.ndarray:
        into[f"{self.name}/weights"], into[f"{self.name}/bias"] = self.x.T @ slope, slope.sum(axis=0)
        if self.is_noisy:
            into[f"{self.name}/weights_sigma"] = into[f"{self.name}/weights"] * self.of_weights
            into[f"{self.name}/bias_sigma"] = into[f"{self.name}/bias"] * self.of_bias
        return slope @ self.weights.T


class Norm:
    """A layer's normalization (Ba et al. 2016), and its gradients; nothing where there is none."""

    def __init__(self, name: str, w: Arrays) -> None:
        self.name, self.is_there = name, f"{name}/norm_scale" in w
        if self.is_there:
            self.scale, self.shift = w[f"{name}/norm_scale"], w[f"{name}/norm_shift"]
        self.x, self.root = np.empty(0), np.empty(0)

    def forward(self, x: np.ndarray) -> np.ndarray:
        if not self.is_there:
            return x
        self.root = np.sqrt(x.var(axis=1, keepdims=True) + 1e-6)
        self.x = (x - x.mean(axis=1, keepdims=True)) / self.root
        return self.scale * self.x + self.shift

    def back(self, slope: np.ndarray, into: Arrays) -> np.ndarray:
        if not self.is_there:
            return slope
        into[f"{self.name}/norm_scale"], into[f"{self.name}/norm_shift"] = (slope * self.x).sum(0), slope.sum(0)
        of_x = slope * self.scale
        along = (of_x * self.x).mean(axis=1, keepdims=True)
        return (of_x - of_x.mean(axis=1, keepdims=True) - self.x * along) / self.root


class Network:
    """`mlp` with one hidden layer, in NumPy."""

    def __init__(self, head: str, w: Arrays, key: np.ndarray | None, count: int = N) -> None:
        self.is_implicit, self.key, self.count = head == "implicit", key, count
        self.n = 1 if head in ("scalar", "implicit") else N
        self.of_levels = Layer("levels", w, None) if self.is_implicit else None
        names = [("value_fc1", "value"), ("advantage_fc1", "advantage")] if "value/bias" in w else [("fc1", "q")]
        self.streams = [(Layer(hidden, w, key), Layer(last, w, key)) for hidden, last in names]
        self.norms = [Norm(hidden, w) for hidden, _ in names]

    def forward(self, s: np.ndarray) -> np.ndarray:
        """What it has of each action, `[B, A, n]`."""
        self.x = x = s[:, :4].astype(np.float64)
        if self.of_levels:  # equation 4 of Dabney et al. 2018b
            assert self.key is not None
            # Angles of up to 200, of which float32 leaves 1e-5: as they are there.
            numbers = (np.pi * np.arange(1, 65)).astype(np.float32)
            angles = levels(len(s), self.count, self.key)[:, :, None].astype(np.float32) * numbers
            waves = np.cos(angles.astype(np.float64))
            self.embedded = np.maximum(0, self.of_levels.forward(waves.reshape(-1, 64)))
            x = (x[:, None, :] * self.embedded.reshape(len(s), -1, 4)).reshape(-1, 4)
        self.hidden = [
            np.maximum(0, norm.forward(hidden.forward(x)))
            for norm, (hidden, _) in zip(self.norms, self.streams, strict=True)
        ]
        made = [
            last.forward(h).reshape(len(h), -1, self.n) for h, (_, last) in zip(self.hidden, self.streams, strict=True)
        ]
        if self.is_implicit:  # a row for each level
            made = [one.reshape(len(s), self.count, -1).transpose(0, 2, 1) for one in made]
        return made[0] if len(made) == 1 else made[0] + made[1] - made[1].mean(axis=1, keepdims=True)

    def back(self, slope: np.ndarray) -> Arrays:
        """Gradients of all weights from that of what `forward` returned."""
        found: Arrays = {}
        centred = slope - slope.mean(axis=1, keepdims=True)
        slopes = [slope] if len(self.streams) == 1 else [slope.sum(axis=1, keepdims=True), centred]
        at_x = np.zeros(1)
        for of, h, norm, (hidden, last) in zip(slopes, self.hidden, self.norms, self.streams, strict=True):
            of_rows = (of.transpose(0, 2, 1) if self.is_implicit else of).reshape(len(h), -1)
            at_x = at_x + hidden.back(norm.back(last.back(of_rows, found) * (h > 0), found), found)
        if self.of_levels:
            at_embedded = (at_x.reshape(len(slope), -1, 4) * self.x[:, None, :]).reshape(-1, 4)
            self.of_levels.back(at_embedded * (self.embedded > 0), found)
        return found


def log_policy(q: np.ndarray, tau: float) -> np.ndarray:
    """`tau log pi` of `pi = softmax(q / tau)`, float64."""
    scaled = (q - q.max(axis=1, keepdims=True)) / tau
    log: np.ndarray = tau * (scaled - np.log(np.exp(scaled).sum(axis=1, keepdims=True)))
    return log


def expected(
    head: str, batch: Arrays, w: Arrays, key: np.ndarray | None, train: TrainSettings
) -> tuple[np.ndarray, Arrays]:
    """Each example's TD error, or its loss, and the gradients of the mean weighted loss, by hand."""
    is_gauss, head = head == GAUSS, head.partition(" ")[0]
    z = np.linspace(*SUPPORT, N)
    size = len(batch["r_t"])
    rows = np.arange(size)

    def mean(supplied: np.ndarray) -> np.ndarray:
        return supplied @ z if head == "categorical" else supplied.mean(axis=-1)

    supplied = batch["q_target_t"].astype(np.float64).reshape(size, A, -1)
    selector = mean(supplied)
    r_t = batch["r_t"].astype(np.float64)
    if train.double:
        own = Network(head, w, None if key is None else key + 1, ACTING).forward(batch["s_t"])
        selector = mean(softmax(own) if head == "categorical" else own)
        if batch["s_t"].shape[1] > 4:
            selector = np.where(batch["s_t"][:, 4:] > 0, selector, -np.inf)
    best = supplied[rows, selector.argmax(axis=1)]
    value = mean(best)
    if tau := train.munchausen and train.munchausen_temperature:  # equations 1 and 2 of Vieillard et al. 2020
        bonus = log_policy(batch["q_target_tm1"].astype(np.float64), tau)[rows, batch["a_tm1"]]
        r_t = r_t + train.munchausen * np.clip(bonus, train.munchausen_lowest, 0)
        log = log_policy(mean(supplied), tau)
        soft = np.exp(log / tau)
        value = (soft * (mean(supplied) - log)).sum(axis=1)
        best = (soft[..., None] * (supplied - log[..., None])).sum(axis=1)
    network = Network(head, w, key)
    taken = network.forward(batch["s_tm1"])[rows, batch["a_tm1"]]
    if head == "categorical":
        m = np.array([bell_curve(y) for y in np.clip(r_t + batch["discount_t"] * value, *SUPPORT)])
        m = m if is_gauss else projected(batch["r_t"], batch["discount_t"], best)
        error = -(m * np.log(softmax(taken))).sum(axis=1)
        slope = softmax(taken) - m
    else:
        target = r_t[:, None] + batch["discount_t"][:, None] * best
        drawn = levels(size, N, key) if head == "implicit" and key is not None else None
        error, slope = quantile_loss(taken, target, levels=drawn)
        if head == "scalar":
            error = (target - taken)[:, 0]
            slope = -np.clip(target - taken, -1, 1)
    at_outputs = np.zeros((size, A, slope.shape[1]))
    at_outputs[rows, batch["a_tm1"]] = slope * (batch["weight"] / size)[:, None]
    return error, network.back(at_outputs)


MUNCHAUSEN = {"munchausen": 0.9, "munchausen_temperature": 0.3}
#: What an update is made with: settings of the model, of training, whether some actions are illegal.
UPDATES: dict[str, tuple[dict[str, Any], dict[str, Any], bool]] = {
    "plain": ({}, {}, False),
    "double": ({}, {"double": True}, False),
    "dueling": ({"dueling": True}, {}, False),
    "masks": ({}, {"double": True}, True),
    "accumulated": ({}, {"accumulate": 2}, False),
    "noise": ({"noisy": True}, {}, False),
    "norm": ({"layer_norm": True, "dueling": True}, {}, False),
    "munchausen": ({}, MUNCHAUSEN, False),
    "munchausen, masks": ({"layer_norm": True}, MUNCHAUSEN | {"munchausen_lowest": -0.2}, True),
    "all": ({"noisy": True, "dueling": True}, {"double": True, "accumulate": 2}, True),
}


@pytest.mark.parametrize("update", UPDATES)
@pytest.mark.parametrize("head", ["scalar", *HEADS, GAUSS])
def test_an_update_is_that_of_the_papers(head: str, update: str) -> None:
    """Errors, gradients and new weights, of 200 minibatches in a row."""
    of_model, of_training, masked = UPDATES[update]
    if head == "categorical" and "munchausen" in of_training:
        pytest.skip("is refused")
    made = spec(head, model=of_model, masked=masked, **of_training)
    rate, epsilon, parts = made.train.learning_rate, made.train.adam_epsilon, made.train.accumulate
    keys = NoiseKeys(1, Purpose.NOISE, draws=made.model.draws)
    first, second = ({v.name: np.zeros(v.shape) for v in variables} for variables in 2 * [Twin("w", made).variables])
    with Twin("online", made, seed=1, compute=Compute(threads=1)) as twin:
        model = twin.model
        for number in range(200):
            w = {name: value.astype(np.float64) for name, value in twin.weights().items()}
            key = keys.at(number)
            noise_key = {} if key is None else {model.noise_key: key}
            by_hand = {name: np.zeros(value.shape) for name, value in w.items()}
            for part in range(parts):
                batch = minibatch(head, 8, parts * number + part, masked=masked)
                error, gradients = expected(head, batch, w, key, made.train)
                by_hand = {name: by_hand[name] + gradient / parts for name, gradient in gradients.items()}
                feed = {getattr(model, name): value for name, value in batch.items() if name in {*model.fed}}
                is_last = part == parts - 1
                ops = [model.train_op, *model.gradients] if is_last else [model.accumulate_op]
                td_error, _, *found = twin.run([model.td_error, *ops], feed | noise_key)
                close(td_error, error, np.abs(error).max())
            largest = max(np.abs(gradient).max() for gradient in by_hand.values())
            for variable, gradient in zip(model.trainables, found, strict=True):
                name = variable.op.name
                close(gradient, by_hand[name], largest)
                # Kingma and Ba 2015, as in the note on its order of computation.
                first[name] = 0.9 * first[name] + 0.1 * by_hand[name]
                second[name] = 0.999 * second[name] + 0.001 * by_hand[name] ** 2
                scale = rate * np.sqrt(1 - 0.999 ** (number + 1)) / (1 - 0.9 ** (number + 1))
                new = w[name] - scale * first[name] / (np.sqrt(second[name]) + epsilon)
                # What begins at 0 is no more than the steps that it made.
                close(twin.weights()[name], new, max(np.abs(new).max(), 10 * rate))


def close(found: np.ndarray, wanted: np.ndarray, scale: float) -> None:
    """To 1e-5, or where larger numbers cancel, a millionth of the scale."""
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6 * scale)


@pytest.mark.parametrize("head", HEADS)
def test_no_illegal_action_is_ever_the_best(head: str) -> None:
    """Not by the network, nor by what it supplies as a target, however bad the legal ones are."""
    masked = spec(head, masked=True)
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
    for head, atoms in (("scalar", 1), ("categorical", N), ("quantile", N), ("implicit", TARGET)):
        made = spec(head, model={"atoms_of_acting": TARGET})
        with Twin("online", made, seed=1, compute=Compute(threads=1)) as twin:
            returns, probabilities = twin.distribution(observations)
            assert returns.shape == probabilities.shape == (5, A, atoms)
            q = (returns * probabilities).sum(axis=2)
            np.testing.assert_allclose(q, twin.q_values(observations), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"train__minto": True}, "train.minto takes the smaller of two values"),
        ({"loss": "mse"}, "loss=mse is of values: model.head=quantile has a loss of its own"),
        ({"loss": "dqn3"}, "loss=dqn3 is of values"),
        ({"loss": "mse_all"}, "loss=mse_all is of values"),
        ({"model__head": "categorical", "model__support": [5, 5]}, "needs the lowest return, then the highest"),
        ({"model__head": "categorical", "model__atoms": 1}, "model.atoms=2 or more"),
        ({"loss": "hl_gauss"}, "needs model.head=categorical, not quantile"),
        ({"train__munchausen": 0.9, "train__double": True}, "chooses none: it needs train.double=false"),
        ({"train__munchausen": 0.9, "train__n_step": 3}, "one action to one reward: it needs train.n_step=1"),
        ({"train__munchausen": 0.9, "train__target_q": False, "train__n_step": 1}, "needs train.target_q=true"),
        (
            {"train__munchausen": 0.9, "train__n_step": 1, "model__head": "categorical"},
            "needs another model.head, or loss=hl_gauss",
        ),
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


def test_levels_are_drawn_with_a_key_for_each_example_and_evenly_spread_without_one() -> None:
    head = heads.Implicit(heads.Samples(N, TARGET, ACTING))
    with tf.Graph().as_default(), tf.Session() as session:
        one, again, other, even = session.run([head.levels(N, key, 50) for key in ([3, 4], [3, 4], [4, 4], [-1, -1])])
    np.testing.assert_array_equal(one, again)
    assert len(np.unique(one)) == len(np.unique(np.append(one, other))) / 2 == 50 * N
    np.testing.assert_allclose(even, [[(i + 0.5) / N for i in range(N)]] * 50, rtol=1e-6)
    s = np.random.default_rng(0).normal(size=(1, 4)).astype(np.float32).repeat(3, axis=0)
    with Twin("online", spec("implicit"), seed=1, compute=Compute(threads=1)) as twin:
        key = NoiseKeys(1, Purpose.NOISE, draws=True).at(0)
        assert len(np.unique(twin.q_values(s, noise_key=key), axis=0)) == 3
        assert len(np.unique(twin.q_values(s), axis=0)) == 1
        assert twin.supplied(s, key).shape == (3, A, TARGET)


@pytest.mark.parametrize("head", ["scalar", "categorical", "quantile"])
def test_noise_is_a_function_of_its_key_the_same_for_all_examples_and_absent_without_one(head: str) -> None:
    s = np.repeat(np.random.default_rng(0).normal(size=(1, 4)).astype(np.float32), 3, axis=0)
    keys = NoiseKeys(1, Purpose.NOISE, draws=True)
    with Twin("online", spec(head, model={"noisy": True}), seed=1, compute=Compute(threads=1)) as twin:
        one, again, other = (twin.q_values(s, noise_key=keys.at(i)) for i in (0, 0, 1))
        np.testing.assert_array_equal(one, again)
        assert np.abs(one - other).min() > 0
        np.testing.assert_allclose(one, one[:1].repeat(3, axis=0), rtol=1e-6)
        twin.freeze()
        np.testing.assert_allclose(twin.q_values(s, frozen=True, noise_key=keys.at(0)), one, rtol=1e-6)
        means = twin.q_values(s)
        twin.load({name: 0 * w if name.endswith("_sigma") else w for name, w in twin.weights().items()})
        np.testing.assert_array_equal(means, twin.q_values(s, noise_key=keys.at(0)))


def test_a_noisy_agent_acts_and_learns_with_a_draw_for_each_step_and_update(
    cartpole: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fed: list[tuple[str, bytes]] = []
    forward, run_ = Twin._forward, Twin.run

    def forwarded(twin: Twin, fetched: Any, observations: np.ndarray, key: np.ndarray | None) -> np.ndarray:
        fed.append((f"{twin.name} {len(observations)}", b"" if key is None else key.tobytes()))
        return forward(twin, fetched, observations, key)

    def ran(twin: Twin, fetches: Any, feed: Any = None) -> Any:
        if feed and twin.model.noise_key in feed:
            fed.append(("update", feed[twin.model.noise_key].tobytes()))
        return run_(twin, fetches, feed)

    monkeypatch.setattr(Twin, "_forward", forwarded)
    monkeypatch.setattr(Twin, "run", ran)
    chosen = cartpole(
        model__noisy=True, act__epsilon_start=0.0, act__epsilon_end=0.0, train__steps=600, evaluate__episodes=2
    )
    attempt(create(tmp_path / "run", chosen))
    updates = [key for what, key in fed if what == "update"]
    acting = [key for what, key in fed if what == f"online {chosen.env.count}"]
    supplied = [key for what, key in fed if what.startswith("target") and key]
    assert len(set(updates)) == len(updates) == len(set(supplied)) == len(supplied) > 50
    assert len(set(acting)) == len(acting) == 600 // chosen.env.count
    assert len({*updates, *acting, *supplied}) == len(updates) + len(acting) + len(supplied)
    assert all(key or not what.startswith(f"online {chosen.env.count}") for what, key in fed)


def of_one_level(observation: Any, n_actions: int, build: Any) -> Any:
    return build.last_layer("q", observation, n_actions, torch_default)


def test_a_network_of_ones_own_that_asks_for_no_quantiles_is_told() -> None:
    """Its rows would be taken for levels of other examples."""
    made = dataclasses.replace(spec("implicit"), network=f"{__name__}:of_one_level")
    with pytest.raises(UsageError, match=r"asks for no quantiles: give build.features\(x\) to its last hidden layer"):
        Twin("online", made)


@pytest.mark.parametrize("atoms", [9, 13, 1000])
def test_the_mean_of_values_of_illegal_actions_is_that_of_one(atoms: int) -> None:
    mean = np.full((1, A, atoms), ILLEGAL, np.float32).mean(axis=-1)
    assert is_illegal(mean).all()
    assert not len(legal_only(mean))


def test_a_network_of_ones_own_that_leaves_the_noise_out_is_told() -> None:
    made = dataclasses.replace(spec("scalar", model={"noisy": True}), network=f"{__name__}:of_one_value")
    with pytest.raises(UsageError, match=r"has no noisy layer: use build.hidden and build.last_layer"):
        Twin("online", made)


NOISY = {"model__noisy": True}
CHUNKS = {"train__chunk_steps": 64}
SOFT = {"train__munchausen": 0.9, "train__n_step": 1}
#: With what a head has to get along.
VARIANTS: list[tuple[str, dict[str, Any]]] = [
    *((head, {}) for head in HEADS),
    *((head, {**CHUNKS, "twin__compiled": True}) for head in HEADS),
    *((head, {**CHUNKS, **NOISY, "twin__compiled": True}) for head in ("scalar", *HEADS)),
    *(
        (head, {**CHUNKS, **NOISY, "model__dueling": True, "train__double": True, "replay__prioritized": True})
        for head in ("scalar", *HEADS)
    ),
    ("categorical", {"mode": "mutual", "train__n_step": 3}),
    ("quantile", {**NOISY, "mode": "mutual", "mutual__learn": "both"}),
    ("quantile", {**NOISY, "train__accumulate": 2, "train__batch_size": 8}),
    ("categorical", {"train__target_q": False}),
    ("quantile", {"target__policy": "ensemble(2, mean)"}),
    ("categorical", {"target__policy": "average(2)"}),
    ("categorical", {**NOISY, "act__with": "target"}),
    ("categorical", {"loss": "hl_gauss", "model__layer_norm": True, **CHUNKS, "twin__compiled": True}),
    ("quantile", {**SOFT, **CHUNKS, "twin__compiled": True, "model__layer_norm": True}),
    ("scalar", {**SOFT, **NOISY, "mode": "mutual", "replay__prioritized": True}),
    ("categorical", {**SOFT, "loss": "hl_gauss", "target__policy": "ensemble(2, mean)"}),
]


@pytest.mark.parametrize(("head", "changes"), VARIANTS, ids=lambda value: str(value))
def test_a_run_that_was_killed_ends_as_one_that_was_not(
    cartpole: Make, tmp_path: Path, head: str, changes: dict[str, Any]
) -> None:
    chosen = cartpole(model__head=head, model__atoms=11, train__steps=900, evaluate__episodes=0, **changes)
    whole, killed = whole_and_killed(chosen, tmp_path, 450)
    assert end(killed) == end(whole)


@pytest.mark.parametrize("head", HEADS)
def test_a_record_is_reproduced_and_a_fork_has_its_parents_future(cartpole: Make, tmp_path: Path, head: str) -> None:
    chosen = cartpole(model__head=head, model__atoms=11, train__steps=900, resume__keep="all")
    difference, run, forked = reproduced_and_forked(chosen, tmp_path)
    assert difference is None
    assert end(forked) == end(run)
