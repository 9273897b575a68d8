"""Losses and targets against NumPy, for random inputs."""

import numpy as np
import pytest

from twin_graph.config.settings import ModelSettings, TrainSettings
from twin_graph.envs import EnvSpec
from twin_graph.twin.losses import LOSSES, dqn3_gradients, q_learning_target
from twin_graph.twin.model import ModelSpec
from twin_graph.twin.tf import tf
from twin_graph.twin.twin import Compute, Twin

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
        loss = tf.reduce_mean(LOSSES["huber"].of_examples(x, A))
        return [loss, tf.gradients(loss, x)[0]]

    loss, gradient = evaluate(loss_and_gradient, delta)
    size = abs(delta)
    np.testing.assert_allclose(loss, np.where(size <= 1, delta**2 / 2, size - 0.5).mean(), rtol=1e-6)
    np.testing.assert_allclose(gradient, np.clip(delta, -1, 1) / B, rtol=1e-6)


def test_mse_is_the_mean_square(random: np.random.Generator) -> None:
    delta = random.normal(size=B).astype(np.float32)
    [loss] = evaluate(lambda x: [LOSSES["mse"].of_examples(x, A)], delta)
    np.testing.assert_allclose(loss, delta**2, rtol=1e-6)


def test_mse_all_is_what_classic_code_computes_over_all_actions(random: np.random.Generator) -> None:
    """Seed programs copy the predictions, put the new value at the taken action and average all squared differences."""
    q = random.normal(size=(B, A)).astype(np.float32)
    a = random.integers(0, A, size=B)
    y = random.normal(size=B).astype(np.float32)
    labels = q.copy()
    labels[np.arange(B), a] = y
    [loss] = evaluate(lambda x: [LOSSES["mse_all"].of_examples(x, A)], y - q[np.arange(B), a])
    np.testing.assert_allclose(loss.mean(), ((labels - q) ** 2).mean(), rtol=1e-6)


def test_double_q_learning_takes_the_value_of_the_action_that_the_other_net_prefers(
    random: np.random.Generator,
) -> None:
    """RLax: `target = r_t + discount_t * q_t_value[argmax(q_t_selector)]`."""
    r_t, discount_t = (random.normal(size=B).astype(np.float32) for _ in range(2))
    q_t_value, q_t_selector = (random.normal(size=(B, A)).astype(np.float32) for _ in range(2))
    [y] = evaluate(lambda *tensors: [q_learning_target(*tensors)], r_t, discount_t, q_t_value, q_t_selector)
    wanted = [r_t[b] + discount_t[b] * q_t_value[b][q_t_selector[b].argmax()] for b in range(B)]
    np.testing.assert_allclose(y, wanted, rtol=1e-6)
    assert not np.allclose(y, r_t + discount_t * q_t_value.max(axis=1))


def get_q_update(
    q_all: np.ndarray,
    q2_all: np.ndarray,
    a: np.ndarray,
    r: np.ndarray,
    term: np.ndarray,
    *,
    discount: float,
    clip_delta: float | None,
) -> np.ndarray:
    """What DQN 3.0's `getQUpdate` computes, line by line, of rewards rescaled already; `q2_all` is of whichever
    net supplies bootstrap values."""
    term = 1 - term
    q2_max = np.array([row.max() for row in q2_all])
    q2 = q2_max * discount * term
    delta = r.copy()
    delta += q2
    q = np.zeros(len(q_all))
    for i in range(len(q_all)):
        q[i] = q_all[i][a[i]]
    delta += -q
    if clip_delta is not None:
        delta[delta >= clip_delta] = clip_delta
        delta[delta <= -clip_delta] = -clip_delta
    targets = np.zeros_like(q_all)
    for i in range(len(a)):
        targets[i][a[i]] = delta[i]
    return targets


@pytest.mark.parametrize("clip_delta", [None, 1.0, 0.3])
@pytest.mark.parametrize("target_q", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_dqn3_propagates_back_what_the_lua_code_does(clip_delta: float | None, target_q: bool, seed: int) -> None:
    """On the whole graph that `build_model` makes: the gradient of each weight, by TensorFlow and by hand."""
    random = np.random.default_rng(seed)
    spec = ModelSpec(
        EnvSpec((3,), A),
        network="mlp",
        loss="dqn3",
        model=ModelSettings(hidden_units=[7]),
        train=TrainSettings(clip_delta=clip_delta, target_q=target_q, learning_rate=0.5, accumulate=2),  # see gradients
    )
    s, s2 = (random.normal(size=(B, 3)).astype(np.float32) for _ in range(2))
    a, term = random.integers(0, A, B), random.integers(0, 2, B).astype(np.float32)
    r = 3 * random.normal(size=B).astype(np.float32)
    with (
        Twin("online", spec, seed=1, compute=Compute(threads=1)) as online,
        Twin("target", spec, seed=2, compute=Compute(threads=1)) as target,
    ):
        model = online.model
        feed = {
            model.s_tm1: s,
            model.a_tm1: a,
            model.r_t: r,
            model.discount_t: 0.9 * (1 - term),
            model.s_t: s2,
        }
        if target_q:
            feed[model.q_target_t] = target.q_values(s2)
        q_all, q2_all = online.q_values(s), (target if target_q else online).q_values(s2)
        targets = get_q_update(q_all, q2_all, a, r, term, discount=0.9, clip_delta=clip_delta)
        assert online.run(model.accumulate_op, feed) is None
        sums = {v.op.name: v for v in online.graph.get_collection("variables") if v.op.name.startswith("accumulated/")}
        gradients = {name.removeprefix("accumulated/"): online.run(v) for name, v in sums.items()}
        weights = online.weights()
    hidden = np.maximum(0, s @ weights["fc1/weights"] + weights["fc1/bias"])
    back = (targets @ weights["q/weights"].T) * (hidden > 0)
    wanted = {
        "q/weights": hidden.T @ targets,
        "q/bias": targets.sum(axis=0),
        "fc1/weights": s.T @ back,
        "fc1/bias": back.sum(axis=0),
    }
    for name, gradient in wanted.items():
        np.testing.assert_allclose(gradients[name], -gradient, rtol=1e-4, atol=1e-5)


def test_dqn3_is_the_huber_loss_but_for_the_sum_where_deltas_are_clipped_at_one(random: np.random.Generator) -> None:
    q = random.normal(size=(B, A)).astype(np.float32)
    y = 3 * random.normal(size=B).astype(np.float32)
    a = random.integers(0, A, B)

    def both(q: object, y: object) -> list[object]:
        td_error = y - tf.reduce_sum(q * tf.one_hot(a, A), axis=1)
        huber = tf.gradients(tf.reduce_mean(LOSSES["huber"].of_examples(td_error, A)), q)[0]
        clipped = [TrainSettings(clip_delta=clip) for clip in (1.0, 0.5, None)]
        by_clip = [dqn3_gradients(tf.identity(q), a, td_error, tf.ones([1]), [q], train)[0] for train in clipped]
        return [huber, *by_clip]

    huber, at_one, at_half, unclipped = evaluate(both, q, y)
    np.testing.assert_allclose(at_one, B * huber, rtol=1e-5, atol=1e-6)
    assert not np.allclose(at_half, B * huber, atol=1e-2)
    assert not np.allclose(unclipped, B * huber, atol=1e-2)
