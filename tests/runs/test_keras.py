"""Models of Keras as networks: the same variables in both twins, exact runs, one line for what cannot work."""

from __future__ import annotations

import contextlib
import itertools
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import keras
import numpy as np
import pytest
from attempts import attempt, end, reproduced_and_forked, whole_and_killed
from commands import twin_graph
from gymnasium import spaces
from keras import layers

from twin_graph import config, envs
from twin_graph.config.settings import ModelSettings, Settings
from twin_graph.envs import EnvSpec
from twin_graph.errors import ForeignError, TwinGraphError, UsageError
from twin_graph.evaluation.player import Player
from twin_graph.exchange.export import export
from twin_graph.exchange.importing import import_checkpoint
from twin_graph.snapshots.run import create
from twin_graph.twin.model import ModelSpec
from twin_graph.twin.twin import Compute, Twin

Make = Callable[..., Settings]
A = 3


def sequential(observation_shape: tuple[int, ...], n_actions: int) -> keras.Model:
    return keras.Sequential(
        [layers.Input(observation_shape), layers.Dense(8, activation="relu"), layers.Dense(n_actions)]
    )


def without_arguments() -> keras.Model:
    """As the Blob tutorial makes its own, for CartPole."""
    model = keras.Sequential()
    model.add(layers.Dense(8, activation="relu"))
    model.add(layers.Dropout(0.2))
    model.add(layers.LayerNormalization())
    model.add(layers.Dense(2, activation="linear"))
    return model


def dueling(observation_shape: tuple[int, ...], n_actions: int) -> keras.Model:
    s = keras.Input(observation_shape)
    x = layers.Dense(8, activation="relu")(s)
    value, advantage = layers.Dense(1)(x), layers.Dense(n_actions)(x)
    return keras.Model(s, value + advantage - keras.ops.mean(advantage, axis=1, keepdims=True))


class Subclassed(keras.Model):  # type: ignore[misc]
    def __init__(self, n_actions: int) -> None:
        super().__init__()
        self.hidden = layers.Dense(8, activation="relu", name="features")
        self.q = layers.Dense(n_actions)

    def call(self, s: Any) -> Any:
        return self.q(self.hidden(s))


class Trained(Subclassed):
    def __init__(self, n_actions: int) -> None:
        super().__init__(n_actions)
        self.drop = layers.Dropout(0.1)

    def call(self, s: Any, training: bool = False) -> Any:
        return self.q(self.drop(self.hidden(s), training=training))


def recurrent(n_actions: int) -> keras.Model:
    return keras.Sequential([layers.Reshape((4, 1)), layers.GRU(4, dropout=0.1), layers.Dense(n_actions)])


MODELS = ("sequential", "without_arguments", "dueling", "Subclassed", "Trained", "recurrent")


def named(model: str) -> str:
    return f"{__name__}:{model}"


def spec(model: str, env: EnvSpec | None = None) -> ModelSpec:
    train = config.load("cartpole").train.model_copy(update={"learning_rate": 1e-3})
    return ModelSpec(env or EnvSpec((4,), 2), named(model), "huber", ModelSettings(), train)


def twin(model: str, seed: int = 1, **options: Any) -> Twin:
    return Twin("online", spec(model), seed=seed, compute=Compute(threads=1), **options)


@pytest.mark.parametrize("model", MODELS)
def test_names_and_first_weights_follow_from_model_and_seed_whatever_came_before(model: str) -> None:
    random.seed(5)
    drawn = random.random()
    random.seed(5)
    with twin(model) as one:
        assert random.random() == drawn  # the process's own draws go on as if nothing had been made
        for _ in range(10):
            keras.Sequential([layers.Dense(3), layers.Dense(2)]).build((None, 4))
        with twin(model, learns=False) as other, twin(model, seed=2) as differing:
            assert one.variables == other.variables
            assert one.weights_sha256() == other.weights_sha256() != differing.weights_sha256()
            names = [variable.name for variable in one.variables]
            assert all(name[0].isdigit() and not name.partition("/")[0][-1].isdigit() for name in names)


def test_names_are_positions_and_layers() -> None:
    with twin("Subclassed") as made:
        names = [variable.name for variable in made.variables]
        assert sorted(names) == ["0-features/bias", "0-features/kernel", "1-dense/bias", "1-dense/kernel"]


def test_layers_drop_out_in_updates_alone_by_the_seed_that_is_fed() -> None:
    s = np.random.default_rng(0).normal(size=(6, 4)).astype(np.float32)
    for model in ("without_arguments", "Trained", "recurrent"):
        with twin(model) as made:
            seeds = [{}, {}, *({made.model.dropout_seed: (1, k)} for k in (5, 5, 6))]
            plain, again, five, five_again, six = (
                made.run(made.model.q_tm1, {made.model.s_tm1: s, **seed}) for seed in seeds
            )
            np.testing.assert_array_equal(plain, again)
            np.testing.assert_array_equal(five, five_again)
            assert (np.abs(five - plain).max(), np.abs(five - six).max()) > (0, 0)
            made.freeze()
            np.testing.assert_allclose(made.q_values(s, frozen=True), plain, rtol=1e-6)


@pytest.mark.parametrize(
    ("model", "way"),
    [
        *(("sequential", "compiled"), ("without_arguments", "chunks"), ("without_arguments", "compiled")),
        *(("dueling", "mutual"), ("Subclassed", "plain"), ("Trained", "compiled")),
        *(("recurrent", "plain"), ("recurrent", "compiled")),
    ],
)
def test_a_run_that_was_killed_ends_as_one_that_was_not(cartpole: Make, tmp_path: Path, model: str, way: str) -> None:
    ways: dict[str, dict[str, Any]] = {
        "plain": {"train__double": True},
        "chunks": {"train__chunk_steps": 64},
        "compiled": {"train__chunk_steps": 64, "twin__compiled": True},
        "mutual": {"mode": "mutual"},
    }
    chosen = cartpole(network=named(model), train__steps=700, evaluate__episodes=0, **ways[way])
    whole, killed = whole_and_killed(chosen, tmp_path, 350)
    assert end(killed) == end(whole)


@pytest.mark.parametrize("model", ["without_arguments", "dueling"])
def test_a_record_is_reproduced_and_a_fork_has_its_parents_future(cartpole: Make, tmp_path: Path, model: str) -> None:
    chosen = cartpole(network=named(model), train__steps=700, resume__keep="all")
    difference, run, forked = reproduced_and_forked(chosen, tmp_path)
    assert difference is None
    assert end(forked) == end(run)


ELSEWHERE = """
import sys
import keras
import numpy as np
assert not any(name.startswith("twin_graph") for name in sys.modules)
path, observations, into = sys.argv[1:]
model = keras.models.load_model(path, custom_objects={})
np.save(into, model.predict(np.load(observations), verbose=0))
assert not any(name.startswith("twin_graph") for name in sys.modules)
"""


@pytest.mark.parametrize("model", ["sequential", "without_arguments", "dueling", "recurrent"])
def test_keras_loads_an_export_elsewhere_with_the_same_q_values(cartpole: Make, tmp_path: Path, model: str) -> None:
    chosen = cartpole(network=named(model), train__steps=700, evaluate__episodes=0)
    run = create(tmp_path / "run", chosen)
    attempt(run)
    snapshot = run.store().newest
    observations = np.random.default_rng(0).normal(size=(1_000, 4)).astype(np.float32)
    with Player(run, snapshot) as player:
        q = player.twin.q_values(observations)
    [path] = export(run, snapshot, "keras", tmp_path / "model")
    np.save(tmp_path / "s.npy", observations)
    command = [sys.executable, "-c", ELSEWHERE, str(path), str(tmp_path / "s.npy"), str(tmp_path / "q.npy")]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    np.testing.assert_allclose(np.load(tmp_path / "q.npy"), q, rtol=1e-5, atol=1e-6)


def test_files_of_keras_come_back_as_the_same_snapshot(cartpole: Make, tmp_path: Path) -> None:
    run = create(tmp_path / "run", cartpole(network=named("dueling"), train__steps=700, evaluate__episodes=0))
    attempt(run)
    snapshot = run.store().newest
    for form in ("keras", "weights.h5"):
        [path] = export(run, snapshot, form, tmp_path / "model")  # type: ignore[arg-type]
        assert path.name == f"model.{form}"
        assert import_checkpoint(run, path, {}).snapshot.weights_sha256 == snapshot.weights_sha256
    other = sequential((4,), 2)
    other.save(tmp_path / "other.keras")
    with pytest.raises(UsageError, match=r"other\.keras does not fit network="):
        import_checkpoint(run, tmp_path / "other.keras", {})
    with pytest.raises(UsageError, match="--map is for checkpoints"):
        import_checkpoint(run, path, {"a": "b"})


def test_files_of_keras_are_for_keras_models(cartpole: Make, tmp_path: Path) -> None:
    run = create(tmp_path / "run", cartpole(train__steps=300, evaluate__episodes=0))
    attempt(run)
    with pytest.raises(UsageError, match="network=mlp is no Keras model"):
        export(run, run.store().newest, "keras", tmp_path / "model.keras")
    assert not list(tmp_path.glob("model*"))


@pytest.mark.parametrize("form", ["tf1", "savedmodel", "onnx", "tflite", "npz"])
def test_a_keras_model_is_exported_to_every_format(cartpole: Make, tmp_path: Path, form: str) -> None:
    run = create(tmp_path / "run", cartpole(network=named("without_arguments"), train__steps=300, evaluate__episodes=0))
    attempt(run)
    written = export(run, run.store().newest, form, tmp_path / "model")  # type: ignore[arg-type]
    assert all(path.exists() for path in written)
    if form == "onnx":
        onnxruntime = pytest.importorskip("onnxruntime")
        session = onnxruntime.InferenceSession(written[0])
        s = np.random.default_rng(0).normal(size=(5, 4)).astype(np.float32)
        with Player(run, run.store().newest) as player:
            q = player.twin.q_values(s)
        np.testing.assert_allclose(session.run(None, {"observations": s})[0], q, rtol=1e-4, atol=1e-5)


def seen_by(model: str, env: EnvSpec) -> tuple[int, ...]:
    """The shape of observations that the model gets."""
    SEEN.clear()
    with Twin("online", spec(model, env), compute=Compute(threads=1)):
        return SEEN[0]


SEEN: list[tuple[int, ...]] = []


def looking(observation_shape: tuple[int, ...], n_actions: int) -> keras.Model:
    SEEN.append(observation_shape)
    return keras.Sequential([layers.Flatten(), layers.Dense(n_actions)])


def test_images_are_channels_last_and_scaled() -> None:
    frames = EnvSpec((4, 12, 12), A, observation_dtype="uint8", stack=4)
    assert seen_by("looking", frames) == (12, 12, 4)
    assert seen_by("looking", EnvSpec((10, 10, 3), A, observation_dtype="uint8")) == (10, 10, 3)
    with Twin("online", spec("looking", frames), compute=Compute(threads=1)) as made:
        white = np.full((1, 4, 12, 12), 255, np.uint8)
        weights = made.weights()
        expected = weights["0-dense/kernel"].sum(axis=0) + weights["0-dense/bias"]
        np.testing.assert_allclose(made.q_values(white)[0], expected, rtol=1e-5, atol=1e-5)


class Places(gymnasium.Env[dict[str, Any], np.int64]):
    """Observes a Dict: an image, numbers, a choice."""

    observation_space = spaces.Dict(
        {
            "image": spaces.Box(0, 255, (6, 6, 3), np.uint8),
            "numbers": spaces.Box(-1, 1, (2,), np.float32),
            "which": spaces.Discrete(3),
        }
    )
    action_space = spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[dict[str, Any], dict[str, Any]]:
        super().reset(seed=seed)
        self.left = 9
        return self.observed(), {}

    def observed(self) -> dict[str, Any]:
        random = self.np_random
        return {
            "image": random.integers(0, 256, (6, 6, 3), np.uint8),
            "numbers": random.uniform(-1, 1, 2).astype(np.float32),
            "which": random.integers(3),
        }

    def step(self, action: Any) -> tuple[dict[str, Any], float, bool, bool, dict[str, Any]]:
        self.left -= 1
        return self.observed(), float(action), self.left == 0, False, {}


gymnasium.register("Places-v0", Places)


def of_several_inputs(observation_shape: dict[str, tuple[int, ...]], n_actions: int) -> keras.Model:
    SEEN.append(observation_shape)  # type: ignore[arg-type]
    inputs = {name: keras.Input(shape, name=name) for name, shape in observation_shape.items()}
    image = layers.Flatten()(layers.Conv2D(2, 3, activation="relu")(inputs["image"]))
    return keras.Model(
        inputs, layers.Dense(n_actions)(layers.Concatenate()([image, inputs["numbers"], inputs["which"]]))
    )


def test_a_dict_comes_as_several_inputs(cartpole: Make, tmp_path: Path) -> None:
    chosen = cartpole(
        env__id=f"{__name__}:Places-v0", network=named("of_several_inputs"), train__steps=300, evaluate__episodes=0
    )
    SEEN.clear()
    whole, killed = whole_and_killed(chosen, tmp_path, 150)
    assert end(killed) == end(whole)
    assert SEEN[0] == {"image": (6, 6, 3), "numbers": (2,), "which": (3,)}  # type: ignore[comparison-overlap]
    [path] = export(whole, whole.store().newest, "keras", tmp_path / "model")
    model = keras.models.load_model(path)
    with contextlib.closing(envs.make(chosen.env, count=3)) as env, Player(whole, whole.store().newest) as player:
        s = env.reset(np.arange(3))
        image = s[:, :108].reshape(3, 6, 6, 3)
        given = {"image": image, "numbers": s[:, 108:110], "which": s[:, 110:]}
        np.testing.assert_allclose(np.asarray(model(given)), player.twin.q_values(s), rtol=1e-5, atol=1e-6)


def twice_the_same_name(n_actions: int) -> keras.Model:
    def block() -> Any:
        return keras.Sequential([layers.Dense(4, name="dense")], name="block")

    return keras.Sequential([block(), keras.Sequential([block()], name="outer"), layers.Dense(n_actions, name="dense")])


def test_layers_of_equal_names_keep_their_own_variables() -> None:
    with twin("twice_the_same_name") as made:
        assert sorted({v.name.partition("/")[0] for v in made.variables}) == ["0-dense", "1-dense", "2-dense"]


def no_output(observation_shape: tuple[int, ...]) -> keras.Model:
    return keras.Sequential([layers.Dense(16, activation="relu")])


def too_many_outputs(n_actions: int) -> keras.Model:
    return keras.Sequential([layers.Dense(n_actions + 1)])


def two_outputs(observation_shape: tuple[int, ...], n_actions: int) -> keras.Model:
    s = keras.Input(observation_shape)
    return keras.Model(s, [layers.Dense(n_actions)(s), layers.Dense(1)(s)])


class MakesLayersAtCall(keras.Model):  # type: ignore[misc]
    def call(self, s: Any) -> Any:
        self.layer = layers.Dense(2)
        return self.layer(s)


def counting() -> keras.Model:
    counter = itertools.count()
    return keras.Sequential([layers.Dense(2), layers.Lambda(lambda x: x + next(counter))])


def of_integers() -> keras.Model:
    return keras.Sequential([layers.Dense(2), layers.Lambda(lambda x: keras.ops.cast(x, "int32"))])


def normalized() -> keras.Model:
    return keras.Sequential([layers.Dense(8), layers.BatchNormalization(), layers.Dense(2)])


def stateful() -> keras.Model:
    return keras.Sequential([layers.Reshape((4, 1)), layers.GRU(4, stateful=True), layers.Dense(2)])


def frozen() -> keras.Model:
    return keras.Sequential([layers.Dense(8, trainable=False), layers.Dense(2)])


def nothing_to_learn() -> keras.Model:
    return keras.Sequential([layers.Lambda(lambda x: x[:, :2])])


def for_another_shape() -> keras.Model:
    return keras.Sequential([layers.Input((7,)), layers.Dense(2)])


def none() -> None:
    return None


def with_strange_arguments(state_size: int, action_size: int) -> keras.Model:
    return keras.Sequential([layers.Dense(action_size)])


def that_fails(n_actions: int) -> keras.Model:
    raise RuntimeError("no weights today")


WRONG = {
    "no_output": r"must return Q values of shape \(None, 2\), not \(None, 16\)",
    "too_many_outputs": r"must return Q values of shape \(None, 2\), not \(None, 3\)",
    "two_outputs": "has 2 outputs; it needs one, of Q values",
    "MakesLayersAtCall": r"All state must be created in the `__init__\(\)` method",
    "counting": "computes something else each time it is called",
    "of_integers": "must return float32, not int32",
    "normalized": "batch_normalization.* has moving_mean, which is not trained, and no snapshot would hold it",
    "stateful": "gru.* is stateful, so its values would depend on those before",
    "frozen": "dense.* has kernel, which is not trained, and no snapshot would hold it",
    "nothing_to_learn": "has no weights to learn",
    "for_another_shape": "ValueError: .*expected axis -1 of input shape to have value 7, but received .* shape",
    "none": r"returned builtins\.NoneType, not a model of Keras 3",
    "with_strange_arguments": r"takes \(state_size, action_size\): what makes a Keras model takes observation_shape",
    "that_fails": r"RuntimeError: no weights today .*in that_fails",
}


@pytest.mark.parametrize("model", WRONG)
def test_what_cannot_work_is_told_in_one_line(model: str) -> None:
    with pytest.raises((UsageError, ForeignError), match=WRONG[model]) as told:
        twin(model)
    assert isinstance(told.value, TwinGraphError)
    assert "\n" not in str(told.value)
    assert len(str(told.value)) < 400


def compiled() -> keras.Model:
    model = without_arguments()
    model.compile(loss="mse", optimizer="adam")
    return model


def test_what_it_was_compiled_with_is_named_as_ignored_in_one_line(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match="is compiled: its optimizer and loss are ignored"):
        twin("compiled").close()
    (tmp_path / "mine.py").write_text(
        "import keras\n\n\ndef model(n_actions):\n    made = keras.Sequential([keras.layers.Dense(n_actions)])\n"
        "    made.compile(loss='mse')\n    return made\n"
    )
    done = twin_graph(
        *("train", "cartpole", "--set", "network=mine:model", "--steps", "300", "--set", "train.start_steps=100"),
        *("--set", "evaluate.episodes=0"),
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    told = [line for line in done.stderr.splitlines() if "ignored" in line]
    assert told == ["network=mine:model is compiled: its optimizer and loss are ignored; see train.optimizer and loss"]
