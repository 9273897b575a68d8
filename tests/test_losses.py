"""Losses and targets against NumPy, for random inputs."""

import numpy as np
import pytest

from twin_graph.graph_mode import tf
from twin_graph.losses import LOSSES, q_learning_target

B, A = 64, 5


@pytest.fixture
def random() -> np.random.Generator:
    return np.random.default_rng(0)


def evaluate(make: object, *arrays: np.ndarray) -> list[np.ndarray]:
    """Values of the tensors that `make(*placeholders)` returns."""
    with tf.Graph().as_default(), tf.Session() as session:
        placeholders = [tf.placeholder(a.dtype, a.shape) for a in arrays]
        return session.run(make(*placeholders), dict(zip(placeholders, arrays, strict=True)))


def test_the_target_is_reward_plus_discounted_maximum(random: np.random.Generator) -> None:
    r_t = random.normal(size=B).astype(np.float32)
    discount_t = random.choice([0.0, 0.97], size=B).astype(np.float32)
    q_target_t = random.normal(size=(B, A)).astype(np.float32)
    [y] = evaluate(lambda *tensors: [q_learning_target(*tensors)], r_t, discount_t, q_target_t)
    np.testing.assert_allclose(y, r_t + discount_t * q_target_t.max(axis=1), rtol=1e-6)


def test_no_gradient_reaches_the_target(random: np.random.Generator) -> None:
    q_target_t = random.normal(size=(B, A)).astype(np.float32)
    ones = np.ones(B, np.float32)
    with tf.Graph().as_default():
        q = tf.constant(q_target_t)
        assert tf.gradients(q_learning_target(tf.constant(ones), tf.constant(ones), q), q) == [None]


def test_huber_has_the_clipped_error_as_its_gradient(random: np.random.Generator) -> None:
    delta = (3 * random.normal(size=B)).astype(np.float32)

    def loss_and_gradient(x: object) -> list[object]:
        loss = LOSSES["huber"](x, A)
        return [loss, tf.gradients(loss, x)[0]]

    loss, gradient = evaluate(loss_and_gradient, delta)
    size = abs(delta)
    np.testing.assert_allclose(loss, np.where(size <= 1, delta**2 / 2, size - 0.5).mean(), rtol=1e-6)
    np.testing.assert_allclose(gradient, np.clip(delta, -1, 1) / B, rtol=1e-6)


def test_mse_is_the_mean_square(random: np.random.Generator) -> None:
    delta = random.normal(size=B).astype(np.float32)
    [loss] = evaluate(lambda x: [LOSSES["mse"](x, A)], delta)
    np.testing.assert_allclose(loss, (delta**2).mean(), rtol=1e-6)


def test_mse_all_is_what_classic_code_computes_over_all_actions(random: np.random.Generator) -> None:
    """Seed programs copy the predictions, put the new value at the taken action and average all squared differences."""
    q = random.normal(size=(B, A)).astype(np.float32)
    a = random.integers(0, A, size=B)
    y = random.normal(size=B).astype(np.float32)
    labels = q.copy()
    labels[np.arange(B), a] = y
    [loss] = evaluate(lambda x: [LOSSES["mse_all"](x, A)], y - q[np.arange(B), a])
    np.testing.assert_allclose(loss, ((labels - q) ** 2).mean(), rtol=1e-6)
