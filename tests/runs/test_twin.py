"""Twins: the same variables in two graphs, weights passed through Saver files, no tensor in the wrong session."""

import contextlib
import dataclasses
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from twin_graph import envs
from twin_graph.config.settings import ModelSettings, Settings
from twin_graph.envs import EnvSpec
from twin_graph.errors import DamagedError, TwinMismatchError, UsageError, WrongGraphError
from twin_graph.twin import cpu_layers, layers, networks
from twin_graph.twin.model import ModelSpec, build_model
from twin_graph.twin.tf import tf
from twin_graph.twin.twin import Twin, weights_sha256


@pytest.fixture
def spec(cartpole: Callable[..., Settings]) -> ModelSpec:
    return ModelSpec.of(cartpole(), EnvSpec((4,), 2))


@pytest.fixture
def pair(spec: ModelSpec) -> Iterator[tuple[Twin, Twin]]:
    with Twin("online", spec, seed=1) as online, Twin("target", spec, seed=2, like=online) as target:
        yield online, target


def test_twins_have_the_same_variables_in_different_graphs(pair: tuple[Twin, Twin]) -> None:
    online, target = pair
    assert online.graph is not target.graph
    assert online.session is not target.session
    assert online.variables == target.variables
    assert {"fc1/weights", "fc1/bias", "q/weights", "q/bias"} <= {v.name for v in online.variables}


def test_a_twin_that_never_learns_is_the_network_alone(spec: ModelSpec, tmp_path: Path) -> None:
    """And takes the snapshots of one that learns, which hold nothing else."""
    with Twin("online", spec, seed=1) as online, Twin("target", spec, seed=1, learns=False, like=online) as target:
        assert target.variables == online.variables
        assert target.weights_sha256() == online.weights_sha256()
        assert target.all_variables().keys() == target.weights().keys() < online.all_variables().keys()
        kinds = {twin: {op.type for op in twin.graph.get_operations()} for twin in (online, target)}
        learning = {"ResourceApplyAdam", "ReluGrad", "StopGradient"}
        assert learning <= kinds[online]
        assert not learning & kinds[target]
        assert not [op.name for op in target.graph.get_operations() if op.name.startswith(("gradients", "frozen"))]
        online.load({name: value + 1 for name, value in online.weights().items()})
        online.save(tmp_path / "snapshot")
        online.save(tmp_path / "point", optimizer=True)
        target.restore(tmp_path / "snapshot")
        assert target.weights_sha256() == online.weights_sha256()
        with pytest.raises(DamagedError, match="not this network's weights"):
            target.restore(tmp_path / "point")


def test_weights_pass_through_saver_files_bit_for_bit(pair: tuple[Twin, Twin], tmp_path: Path) -> None:
    online, target = pair
    assert online.weights_sha256() != target.weights_sha256()
    online.save(tmp_path / "model")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model.data-00000-of-00001", "model.index"]
    target.restore(tmp_path / "model")
    assert online.weights_sha256() == target.weights_sha256()
    observations = np.random.default_rng(0).normal(size=(7, 4)).astype(np.float32)
    np.testing.assert_array_equal(online.q_values(observations), target.q_values(observations))


def test_saving_and_restoring_do_not_grow_the_graph(pair: tuple[Twin, Twin], tmp_path: Path) -> None:
    online, target = pair
    before = len(online.graph.get_operations()), len(target.graph.get_operations())
    for _ in range(3):
        online.save(tmp_path / "model")
        target.restore(tmp_path / "model")
    assert (len(online.graph.get_operations()), len(target.graph.get_operations())) == before
    with pytest.raises(RuntimeError, match="finalized"), online.graph.as_default():
        tf.constant(1)


def test_a_fetch_of_the_other_twin_names_tensor_and_both_twins(pair: tuple[Twin, Twin]) -> None:
    online, target = pair
    with pytest.raises(WrongGraphError, match=r"tensor q_tm1:0 belongs to twin 'target' .* of twin 'online'"):
        online.run(target.model.q_tm1, {online.model.s_tm1: np.zeros((1, 4))})


def test_a_feed_of_the_other_twin_names_tensor_and_both_twins(pair: tuple[Twin, Twin]) -> None:
    online, target = pair
    with pytest.raises(WrongGraphError, match=r"tensor s_tm1:0 belongs to twin 'online' .* of twin 'target'"):
        target.run(target.model.q_tm1, {online.model.s_tm1: np.zeros((1, 4))})


def test_another_mistake_in_a_feed_keeps_its_own_message(pair: tuple[Twin, Twin]) -> None:
    online, _ = pair
    for shape in ((1, 5), (4,), (1, 4, 1)):
        with pytest.raises(ValueError, match="shape"):
            online.run(online.model.q_tm1, {online.model.s_tm1: np.zeros(shape)})


def test_run_gives_what_the_session_gives(pair: tuple[Twin, Twin]) -> None:
    online, _ = pair
    model = online.model
    feed = {model.s_tm1: np.random.default_rng(0).normal(size=(7, 4))}
    q = online.session.run(model.q_tm1, feed)
    for _ in range(2):  # the second time what was made ready the first time
        np.testing.assert_array_equal(online.run(model.q_tm1, feed), q)
        nothing, again, bias = online.run([model.freeze, model.q_tm1, model.trainables[0]], feed)
        assert nothing is None
        np.testing.assert_array_equal(again, q)
        np.testing.assert_array_equal(bias, online.session.run(model.trainables[0]))
    assert online.run(model.freeze) is None
    online.close()
    with pytest.raises(tf.errors.CancelledError, match="closed"):
        online.run(model.q_tm1, feed)


def test_weights_that_are_missing_damaged_or_of_another_network_are_refused(
    pair: tuple[Twin, Twin], spec: ModelSpec, tmp_path: Path
) -> None:
    online, target = pair
    before = target.weights_sha256()
    with pytest.raises(DamagedError, match=r"nothing\.index cannot be read: No such file"):
        target.restore(tmp_path / "nothing")
    with Twin("other", dataclasses.replace(spec, model=ModelSettings(hidden_units=[32]))) as other:
        other.save(tmp_path / "other")
    with pytest.raises(DamagedError, match="other cannot be restored"):
        target.restore(tmp_path / "other")
    online.save(tmp_path / "model")
    data = tmp_path / "model.data-00000-of-00001"
    data.write_bytes(data.read_bytes()[:-20])
    with pytest.raises(DamagedError, match=r"model\.data-00000-of-00001 is damaged: it ends before"):
        target.restore(tmp_path / "model")
    assert target.weights_sha256() == before
    online.save(tmp_path / "model")
    index = tmp_path / "model.index"
    content = index.read_bytes()
    for at in range(len(content)):
        index.write_bytes(bytes([*content[:at], content[at] ^ 0xFF, *content[at + 1 :]]))
        with contextlib.suppress(DamagedError):  # TensorFlow gives errors of several types
            target.restore(tmp_path / "model")


def test_a_save_that_cannot_be_written_is_an_oserror(pair: tuple[Twin, Twin], tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="file/model"):
        pair[0].save(tmp_path / "file" / "model")


def test_twins_that_differ_are_refused_and_the_message_says_where(spec: ModelSpec) -> None:
    wider = dataclasses.replace(spec, model=ModelSettings(hidden_units=[32]))
    deeper = dataclasses.replace(spec, model=ModelSettings(hidden_units=[16, 16]))
    with Twin("online", spec) as online:
        with pytest.raises(
            TwinMismatchError, match=r"fc1/weights is float32\[4, 16\] in 'online' and float32\[4, 32\] in 'target'"
        ):
            Twin("target", wider, like=online)
        with pytest.raises(TwinMismatchError, match="fc2/weights only in 'target'"):
            Twin("target", deeper, like=online)


def test_equal_seeds_give_equal_weights(spec: ModelSpec) -> None:
    hashes = []
    for seed in (1, 1, 2):
        with Twin("twin", spec, seed=seed) as twin:
            hashes.append(twin.weights_sha256())
    assert hashes[0] == hashes[1] != hashes[2]


def test_the_hash_of_weights_sees_names_shapes_types_and_values() -> None:
    value = np.arange(6, dtype=np.float32)
    variants = [
        {"a": value},
        {"b": value},
        {"a": value.reshape(2, 3)},
        {"a": value.astype(np.float64)},
        {"a": value + 1},
        {"a": value, "b": value},
    ]
    assert len({weights_sha256(v) for v in variants}) == len(variants)


def test_the_hash_of_weights_does_not_see_order_or_memory_layout() -> None:
    value = np.arange(6, dtype=np.float32).reshape(2, 3)
    reference = weights_sha256({"a": value, "b": value})
    assert weights_sha256({"b": value, "a": np.asfortranarray(value)}) == reference
    assert weights_sha256({"a": value.astype(">f4"), "b": value}) == reference


def test_initial_weights_are_uniform_within_their_limits(spec: ModelSpec, pong: Callable[..., Settings]) -> None:
    """Torch's +-1/sqrt(fan_in) for vectors; He's +-sqrt(6/fan_in) before the rectifiers of the image network."""
    with Twin("vectors", spec, seed=1) as vectors:
        weights = vectors.weights()
    for layer, fan_in in (("fc1", 4), ("q", 16)):
        for name in ("weights", "bias"):
            assert 0.1 * fan_in**-0.5 < abs(weights[f"{layer}/{name}"]).max() <= fan_in**-0.5
    with Twin("images", ModelSpec.of(pong(), EnvSpec((4, 84, 84), 6, "uint8")), seed=1) as images:
        weights = images.weights()
    fan_in = {"conv1": 256, "conv2": 512, "conv3": 576, "fc1": 3136}
    for layer, limit in [(layer, (6 / n) ** 0.5) for layer, n in fan_in.items()] + [("q", 512**-0.5)]:
        assert 0.99 * limit < abs(weights[f"{layer}/weights"]).max() <= limit
        assert not weights[f"{layer}/bias"].any()


def test_the_untrained_network_tells_pong_screens_apart(pong: Callable[..., Settings]) -> None:
    """With Torch's initial weights the spread is 0.0002, and a run died of it: see `twin_graph.networks`."""
    settings = pong(env__count=8)
    env = envs.make(settings.env, count=8)
    env.reset(np.arange(8))
    for _ in range(60):
        screens = env.step(np.arange(8) % 6).s_t
    env.close()
    with Twin("online", ModelSpec.of(settings, EnvSpec((4, 84, 84), 6, "uint8")), seed=1) as online:
        spread = online.q_values(screens).std(axis=0)
    assert spread.min() > 0.002


@pytest.mark.parametrize(
    ("image", "padding", "flat"),
    [((84, 84), "VALID", 7 * 7 * 64), ((84, 84), "SAME", 11 * 11 * 64), ((105, 80), "SAME", 14 * 10 * 64)],
)
def test_the_nature_network_flattens_to_the_sizes_of_its_sources(
    pong: Callable[..., Settings], image: tuple[int, int], padding: str, flat: int
) -> None:
    """7x7x64 stands in the 2015 paper's released code, 14x10x64 in the question that this project comes from."""
    settings = pong(model__padding=padding)
    spec = ModelSpec.of(settings, EnvSpec((4, *image), 6, "uint8"))
    with tf.Graph().as_default():
        model = build_model(spec)
    shapes = {v.op.name: tuple(v.shape.as_list()) for v in model.trainables}
    assert shapes == {
        "conv1/weights": (8, 8, 4, 32),
        "conv1/bias": (32,),
        "conv2/weights": (4, 4, 32, 64),
        "conv2/bias": (64,),
        "conv3/weights": (3, 3, 64, 64),
        "conv3/bias": (64,),
        "fc1/weights": (flat, 512),
        "fc1/bias": (512,),
        "q/weights": (512, 6),
        "q/bias": (6,),
    }


def test_an_image_too_small_for_the_network_is_refused(pong: Callable[..., Settings]) -> None:
    spec = ModelSpec.of(pong(), EnvSpec((4, 20, 84), 6, "uint8"))
    with tf.Graph().as_default(), pytest.raises(UsageError, match="conv3 has a 3x3 kernel and gets 1x9"):
        build_model(spec)


def test_the_image_network_refuses_vectors(pong: Callable[..., Settings]) -> None:
    with pytest.raises(UsageError, match="use --set network=mlp"):
        ModelSpec.of(pong(), EnvSpec((4,), 2))


@pytest.mark.parametrize("shape", [(84, 84, 3), (64, 64, 1), (96, 72, 4), (84, 84, 2), (64, 84, 12), (50, 60)])
def test_images_with_channels_last_and_grey_ones_give_what_frames_of_the_same_pixels_give(
    pong: Callable[..., Settings], shape: tuple[int, ...]
) -> None:
    images = np.random.default_rng(1).integers(0, 255, (5, *shape), np.uint8)
    frames = np.moveaxis(images, -1, 1) if len(shape) == 3 else images[:, None]
    with (
        Twin("last", ModelSpec.of(pong(), EnvSpec(shape, 6, "uint8")), seed=1) as last,
        Twin("first", ModelSpec.of(pong(), EnvSpec(frames.shape[1:], 6, "uint8")), like=last) as first,
    ):
        first.load(last.weights())
        np.testing.assert_allclose(last.q_values(images), first.q_values(frames), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("shape", [(4, 84, 84), (3, 64, 64), (4, 4, 84)])
def test_frames_are_not_taken_for_images_with_channels_last(shape: tuple[int, ...]) -> None:
    assert not networks.looks_channels_last(shape)


@pytest.mark.parametrize("shape", [(84, 84, 4), (10, 10, 10), (210, 160, 3)])
def test_images_may_have_as_many_channels_as_rows(shape: tuple[int, ...]) -> None:
    assert networks.looks_channels_last(shape)


def test_bytes_are_scaled_and_numbers_are_not(spec: ModelSpec) -> None:
    with (
        Twin("bytes", dataclasses.replace(spec, env=spec.env._replace(observation_dtype="uint8")), seed=1) as of_bytes,
        Twin("floats", spec, seed=1) as of_floats,
    ):
        observations = np.array([[0, 51, 102, 255]], np.uint8)
        np.testing.assert_allclose(
            of_bytes.q_values(observations), of_floats.q_values(observations.astype(np.float32) / 255), rtol=1e-6
        )


def nature_as_written(observation: Any, weights: Mapping[str, Any], padding: str) -> Any:
    """The network of Mnih et al. 2015, with the frames of a stack as the last axis."""
    x = tf.cast(observation, tf.float32) / (255 if observation.dtype == tf.uint8 else 1)
    x = tf.transpose(x, [0, 2, 3, 1])
    for layer, stride in (("conv1", 4), ("conv2", 2), ("conv3", 1)):
        x = tf.nn.relu(tf.nn.conv2d(x, weights[f"{layer}/weights"], stride, padding) + weights[f"{layer}/bias"])
    x = tf.reshape(x, [-1, x.shape[1:].num_elements()])
    x = tf.nn.relu(x @ weights["fc1/weights"] + weights["fc1/bias"])
    return x @ weights["q/weights"] + weights["q/bias"]


@pytest.mark.parametrize("examples", [1, 7, 8])
@pytest.mark.parametrize("padding", ["VALID", "SAME"])
@pytest.mark.parametrize(
    ("shape", "numbers", "dtype", "tolerance"),
    [
        ((4, 84, 84), "uint8", "float32", 1e-5),
        ((4, 87, 90), "uint8", "float32", 1e-5),
        ((3, 86, 61), "float32", "float32", 1e-5),
        ((4, 84, 84), "uint8", "bfloat16", 0.15),
        ((4, 87, 90), "uint8", "bfloat16", 0.15),
    ],
)
def test_the_nature_network_and_its_gradients_are_those_of_plain_convolutions(
    shape: tuple[int, ...], numbers: str, dtype: str, tolerance: float, padding: str, examples: int
) -> None:
    """Layers by halves, the first one and, in bfloat16, gradients are written otherwise than they are thought of."""
    random = np.random.default_rng(1)
    # All patterns of four bytes may come, also those that are no numbers as a float32.
    bits = random.integers(0, 256, (examples, *shape)).astype(np.uint8)
    observations = bits if numbers == "uint8" else (bits / 255).astype(np.float32)
    observations[0, 0, 0, :4] = 1, 0, 128, 127
    chosen = random.normal(size=(examples, 6)).astype(np.float32)
    with tf.Graph().as_default(), tf.Session() as session:
        tf.set_random_seed(1)
        observation = tf.placeholder(numbers, [None, *shape])
        fast_build, plain_build = (
            networks.Build(ModelSettings(padding=padding), tf.as_dtype(dtype), computed_with, tf.constant([-1, -1]))
            for computed_with in (cpu_layers, layers)
        )
        fast = networks.nature(observation, 6, fast_build)
        with tf.variable_scope(tf.get_variable_scope(), reuse=True):
            plain = networks.nature(observation, 6, plain_build)
        weights = {v.op.name: v for v in tf.trainable_variables()}
        # In bfloat16 the plain ones, with TensorFlow's own gradients, are further off than the fast.
        every = [nature_as_written(observation, weights, padding), fast, *([plain] if dtype == "float32" else [])]
        of_q = [tf.gradients(q, list(weights.values()), chosen) for q in every]
        session.run(tf.global_variables_initializer())
        (q_as_written, as_written), *computed = session.run(
            list(zip(every, of_q, strict=True)), {observation: observations}
        )
    for q, gradients in computed:
        assert q.dtype == np.float32
        assert off(q, q_as_written) < tolerance
        wrong = {n: off(*pair) for n, *pair in zip(weights, gradients, as_written, strict=True)}
        assert max(wrong.values()) < tolerance, wrong


@pytest.mark.parametrize("dueling", [False, True])
def test_both_streams_of_dopamines_network_share_its_hidden_layer(dueling: bool) -> None:
    observations = np.random.default_rng(1).integers(0, 256, (5, 4, 84, 84)).astype(np.uint8)
    with tf.Graph().as_default(), tf.Session() as session:
        tf.set_random_seed(1)
        observation = tf.placeholder("uint8", [None, 4, 84, 84])
        model = ModelSettings(padding="SAME", dueling=dueling)
        build = networks.Build(model, tf.float32, cpu_layers, tf.constant([-1, -1]))
        of_q = networks.dopamine(observation, 6, build)
        session.run(tf.global_variables_initializer())
        w = session.run({v.op.name: v for v in tf.trainable_variables()})
        x, q = session.run(["fc1/activation:0", of_q], {observation: observations})
    heads = [x @ w[f"{name}/weights"] for name in (("value", "advantage") if dueling else ("q",))]
    expected = heads[0] + heads[1] - heads[1].mean(axis=1, keepdims=True) if dueling else heads[0]
    np.testing.assert_allclose(q, expected, rtol=1e-4, atol=1e-5)
    assert w["fc1/weights"].shape == (11 * 11 * 64, 512)
    for name, fans in {"conv1": 64 * (4 + 32), "conv2": 16 * (32 + 64), "fc1": 7744 + 512}.items():
        limit = (6 / fans) ** 0.5
        assert 0.99 * limit < np.abs(w[f"{name}/weights"]).max() <= limit
        assert not w[f"{name}/bias"].any()


def off(value: np.ndarray, expected: np.ndarray) -> float:
    """How far it is off, as a part of what it should be."""
    return float(np.linalg.norm(value - expected) / np.linalg.norm(expected))


def test_training_moves_q_toward_the_target(spec: ModelSpec) -> None:
    """One state, one action, target 1 + 0.5 * 4 = 3: the taken action's value gets there, by Adam at 0.01."""
    with Twin(
        "online", dataclasses.replace(spec, train=spec.train.model_copy(update={"learning_rate": 0.01})), seed=1
    ) as online:
        model = online.model
        feed = {
            model.s_tm1: np.ones((1, 4), np.float32),
            model.a_tm1: [1],
            model.r_t: [1.0],
            model.discount_t: [0.5],
            model.q_target_t: [[4.0, -9.0]],
        }
        for _ in range(400):
            online.run(model.train_op, feed)
        assert online.q_values(np.ones((1, 4), np.float32))[0, 1] == pytest.approx(3.0, abs=0.05)


def test_keras_is_imported_when_it_is_first_used_and_not_before() -> None:
    """TensorFlow would import it at once: a third of the time in which a command starts."""
    code = (
        "import os, sys; from twin_graph.twin.tf import tf; assert 'keras' not in sys.modules, 'imported';"
        "assert 'TF_USE_LEGACY_KERAS' not in os.environ; assert tf.keras.__version__[0] == '3'"
    )
    clean = {name: value for name, value in os.environ.items() if name != "TF_USE_LEGACY_KERAS"}
    subprocess.run([sys.executable, "-c", code], check=True, env=clean)


def test_pythons_collector_does_not_go_through_tensorflow_and_then_works_on() -> None:
    """As often as it would, it takes a third of the time in which a command starts."""
    code = (
        "import gc; before = gc.get_stats()[2]['collections']; import twin_graph.twin.tf;"
        "assert gc.get_stats()[2]['collections'] == before, 'collected'; assert gc.get_freeze_count() > 100_000;"
        "assert gc.isenabled()"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
