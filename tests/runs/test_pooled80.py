"""The network of one convolution and one pooling, against NumPy, and what it refuses."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from attempts import end, whole_and_killed
from tables import rows
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from twin_graph import config, envs
from twin_graph.envs import EnvSpec
from twin_graph.errors import UsageError
from twin_graph.snapshots.run import Run
from twin_graph.twin.model import ModelSpec, build_model
from twin_graph.twin.tf import tf
from twin_graph.twin.twin import Compute, Twin

POOLED = {"network": "pooled80", "env.image_height": 80, "env.image_width": 80}


def load(**changes: object) -> config.Settings:
    return config.load("pong", {**POOLED, **{key.replace("__", "."): value for key, value in changes.items()}}.items())


def reference(images: np.ndarray, w: dict[str, np.ndarray]) -> np.ndarray:
    """`[B, stack, 80, 80]` to `[B, A]`. TensorFlow's SAME adds 4 pixels to 80, the half of them on either side."""
    x = np.pad(images.transpose(0, 2, 3, 1) / 255.0, ((0, 0), (2, 2), (2, 2), (0, 0)))
    convolved = np.empty((len(x), 20, 20, 32))
    for i in range(20):
        for j in range(20):
            window = x[:, 4 * i : 4 * i + 8, 4 * j : 4 * j + 8]
            convolved[:, i, j] = np.tensordot(window, w["conv1/weights"], axes=3) + w["conv1/bias"]
    pooled = np.maximum(convolved, 0).reshape(-1, 10, 2, 10, 2, 32).max(axis=(2, 4))
    return np.asarray(pooled.reshape(-1, 3200) @ w["q/weights"] + w["q/bias"])


@pytest.mark.parametrize("stack", [1, 3])
def test_its_values_are_those_of_numpy(stack: int) -> None:
    spec = ModelSpec.of(load(), EnvSpec((stack, 80, 80), 3, "uint8"))
    random = np.random.default_rng(stack)
    images = random.integers(0, 256, (5, stack, 80, 80), np.uint8)
    with Twin("online", spec, compute=Compute(threads=1)) as twin:
        shapes = {name: value.shape for name, value in twin.weights().items()}
        assert shapes == {
            "conv1/bias": (32,),
            "conv1/weights": (8, 8, stack, 32),
            "q/bias": (3,),
            "q/weights": (3200, 3),
        }
        weights = {name: random.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}
        twin.load(weights)
        q = twin.q_values(images)
    np.testing.assert_allclose(q, reference(images, weights), rtol=1e-4, atol=1e-2)
    assert q.std() > 10


def test_its_weights_begin_as_those_before_a_rectifier_and_of_a_read_out() -> None:
    spec = ModelSpec.of(load(), EnvSpec((1, 80, 80), 6, "uint8"))
    with Twin("online", spec, seed=1, compute=Compute(threads=1)) as twin:
        weights = twin.weights()
    for name, limit in (("conv1/weights", (6 / 64) ** 0.5), ("q/weights", 3200**-0.5)):
        assert 0.98 * limit < abs(weights[name]).max() <= limit
    assert not weights["conv1/bias"].any()
    assert not weights["q/bias"].any()


@pytest.mark.parametrize("stack", [1, 2])
def test_it_trains_on_the_emulator_and_resumes_exactly(
    pong: Callable[..., config.Settings], tmp_path: Path, stack: int
) -> None:
    settings = pong(**POOLED, env__stack=stack, evaluate__episodes=0)
    whole, killed = whole_and_killed(settings, tmp_path, 130)
    assert end(whole) == end(killed)
    assert len({snapshot.weights_sha256 for snapshot in whole.store().snapshots}) > 1


def test_one_frame_is_a_whole_observation() -> None:
    env = envs.make(load(env__stack=1).env, count=2)
    first = env.reset(np.array([1, 2]))
    step = env.step(np.array([0, 0]))
    env.close()
    assert env.spec.stack == 1
    assert env.spec.observation_shape == (1, 80, 80)
    assert first.shape == step.s_t.shape == step.s_next.shape == (2, 1, 80, 80)
    assert first.any()


def test_it_has_no_dueling_head() -> None:
    with pytest.raises(UsageError, match=r"model\.dueling.*pooled80 has no hidden layer to split"):
        load(model__dueling=True)


@pytest.mark.parametrize(
    ("environment", "shape", "advice"), rows("pooled80", "other_observations", "environment", "shape", "advice")
)
def test_other_observations_are_refused_with_what_to_set(environment: str, shape: list[int], advice: str) -> None:
    settings = load(env__id=environment)
    with pytest.raises(UsageError, match="network=pooled80 needs images") as error:
        ModelSpec.of(settings, EnvSpec(tuple(shape), 2, "uint8", stack=4 if environment.startswith("ALE/") else 1))
    assert advice in str(error.value)
    assert "\n" not in str(error.value)
    if name := advice.partition("network=")[2]:
        with tf.Graph().as_default():
            build_model(ModelSpec.of(load(env__id=environment, network=name), EnvSpec(tuple(shape), 2, "uint8")))


def test_its_preset_trains_and_plays_three_actions_and_shows_its_variables(
    train: Callable[[config.Settings], Run],
) -> None:
    small = {
        **{"train.steps": 400, "evaluate.episodes": 1, "env.max_frames": 200},
    }
    run = train(config.load("pong-rollouts", small.items()))
    newest = run.store().newest
    assert newest.updates == 8  # one for each rollout of 40 steps after the first 80
    shapes = {variable.name: tuple(variable.shape) for variable in run.store().manifest(newest.id).variables}
    assert (shapes["conv1/weights"], shapes["q/weights"]) == ((8, 8, 1, 32), (3200, 3))
    [evaluation] = run.evaluation_lines()
    assert evaluation["protocol"]["actions"] == "NOOP RIGHT LEFT"
    assert evaluation["protocol"]["image"] == "80x80x1"
    events = EventAccumulator(str(run.events))
    events.Reload()
    assert events.Tags()["histograms"] == [f"variables/{name}" for name in sorted(shapes)] + ["activations/conv1"]
