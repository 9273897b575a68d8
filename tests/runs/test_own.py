"""What people write themselves and name as `module:function`: a loss, a network, a target policy."""

import gc
import hashlib
import importlib
import sys
import weakref
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from attempts import attempt, end
from tables import rows

from twin_graph import config, envs, errors
from twin_graph.analysis.reproduce import differences_of_machine
from twin_graph.config import lookup
from twin_graph.config.settings import EnvSettings, Settings
from twin_graph.envs import EnvSpec
from twin_graph.envs.gym import Gym
from twin_graph.errors import UsageError
from twin_graph.records.report import restored
from twin_graph.snapshots.ledger import Restore, Start
from twin_graph.snapshots.resumable import newest_point
from twin_graph.snapshots.run import Run, create
from twin_graph.twin.losses import LOSSES
from twin_graph.twin.model import ModelSpec, build_model
from twin_graph.twin.networks import NETWORKS
from twin_graph.twin.optimizers import OPTIMIZERS
from twin_graph.twin.tf import tf
from twin_graph.twin.twin import Twin

EXAMPLES = Path(__file__).parents[2] / "examples"
Make = Callable[..., Settings]
Train = Callable[[Settings], Run]

#: An environment that looks through a model of Keras'.
THROUGH_KERAS = """
import gymnasium, keras, numpy as np

class ThroughKeras(gymnasium.ObservationWrapper):
    def __init__(self, **options):
        super().__init__(gymnasium.make("CartPole-v1").unwrapped)
        self.eye = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3)])
        self.observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (3,), np.float32)

    def observation(self, observation):
        return self.eye(observation[None]).numpy()[0]

gymnasium.register("ThroughKeras-v0", ThroughKeras)
"""

WRONG = """
def of_another_shape(td_error, n_actions):
    return td_error[:, None] * [[1.0, 2.0]]

def of_nothing(td_error, n_actions):
    import tensorflow.compat.v1 as tf
    return tf.ones_like(td_error)

def that_fails(observation, n_actions, build):
    raise RuntimeError("no idea")

def one_value(observation, n_actions, build):
    return observation[:, :1]

def with_a_layer_too_many(observation, n_actions, build):
    from twin_graph.layers import dense, torch_default
    dense("aux", observation, 3, torch_default)
    return dense("q", observation, n_actions, torch_default)

def with_a_fixed_variable(observation, n_actions, build):
    import tensorflow.compat.v1 as tf
    from twin_graph.layers import dense, torch_default
    scale = tf.get_variable("scale", [], trainable=False)
    return dense("q", observation * scale, n_actions, torch_default)

def in_bfloat16(observation, n_actions, build):
    import tensorflow.compat.v1 as tf
    from twin_graph.layers import dense, torch_default
    return dense("q", tf.cast(observation, tf.bfloat16), n_actions, torch_default)

def of_keras(observation, n_actions, build):
    import tensorflow as tf
    return tf.keras.layers.Dense(n_actions)(observation)

def a_constant(observation, n_actions, build):
    import tensorflow.compat.v1 as tf
    return tf.zeros([tf.shape(observation)[0], n_actions])

def no_optimizer(learning_rate, train):
    return None

def that_counts(learning_rate, train):
    import tensorflow.compat.v1 as tf

    class Counting(tf.train.GradientDescentOptimizer):
        def apply_gradients(self, *args, **options):
            count = tf.get_variable("count", [], initializer=tf.zeros_initializer(), use_resource=True)
            with tf.control_dependencies([super().apply_gradients(*args, **options)]):
                return count.assign_add(1.0)

    return Counting(learning_rate)

def keras_optimizer(learning_rate, train):
    import tensorflow as tf
    return tf.keras.optimizers.Adam(1e-3)
"""


@pytest.mark.parametrize(
    ("key", "table"),
    [("loss", LOSSES), ("network", NETWORKS), ("train.optimizer", OPTIMIZERS)],
    ids=["loss", "network", "optimizer"],
)
def test_everything_in_a_table_can_be_chosen_and_one_of_ones_own(key: str, table: Mapping[str, Any]) -> None:
    [setting] = [setting for setting in config.describe(config.Settings()) if setting.key == key]
    assert setting.type == " | ".join([*table, "module:function"])
    for name in (*table, "my_module:mine"):
        config.load("cartpole", {key: name, "model.head": "categorical" if name == "hl_gauss" else "scalar"})
    with pytest.raises(UsageError, match=f"{key}=my_module: must be .* or module:function"):
        config.load("cartpole", {key: "my_module"})


@pytest.fixture(autouse=True)
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    (tmp_path / "wrong.py").write_text(WRONG)
    (tmp_path / "half.py").write_text("\nundefined\n")
    (tmp_path / "through_keras.py").write_text(THROUGH_KERAS)
    monkeypatch.syspath_prepend(EXAMPLES)
    monkeypatch.syspath_prepend(tmp_path)
    yield
    for name in ("wrong", "half", "through_keras", "own_loss", "own_network", "own_ensemble", "edited_loss"):
        sys.modules.pop(name, None)


@pytest.mark.parametrize("name", ["own_loss", "own_network", "own_ensemble", "own_environment"])
def test_the_examples_are_short(name: str) -> None:
    code = (EXAMPLES / f"{name}.py").read_text(encoding="utf-8").splitlines()
    assert len(code) <= 30


@pytest.mark.parametrize(
    "chosen",
    [
        {"loss": "own_loss:log_cosh"},
        {"network": "own_network:residual", "model__hidden_units": [16]},
        {"target__policy": "own_ensemble:spread(min)", "save__every_updates": 20, "save__keep_last": 100},
        {"env__id": "own_environment:Memory/Boxing-v5", "env__count": 2},  # an emulator takes 0.1 s to make
    ],
    ids=lambda chosen: next(iter(chosen.values())),
)
def test_each_example_trains_and_resumes_exactly(
    cartpole: Make, trained: Train, tmp_path: Path, chosen: dict[str, object]
) -> None:
    settings = cartpole(evaluate__episodes=0, **chosen)
    whole, killed = trained(settings), create(tmp_path / "killed", settings)
    attempt(killed, 840)
    attempt(killed)
    assert end(killed) == end(whole)
    assert end(whole) != end(trained(cartpole(evaluate__episodes=0)))


def test_the_environment_shows_the_memory_of_two_steps_and_counts_in_its_unit() -> None:
    mine, game = gymnasium.make("own_environment:Memory/Krull-v5"), gymnasium.make("ALE/Krull-v5", obs_type="ram")
    s_tm1, _ = game.reset(seed=3)
    assert np.array_equal(mine.reset(seed=3)[0], np.concatenate([s_tm1, s_tm1]))
    points = 0.0
    for step in range(600):
        s_t, r_t, terminal_t, last_t, _ = game.step(step % 18)
        seen, reward, *ends, _ = mine.step(step % 18)
        assert np.array_equal(seen, np.concatenate([s_tm1, s_t]))
        assert (reward, ends) == (r_t / 100, [terminal_t, last_t])
        s_tm1, points = s_t, points + r_t
    assert points > 0


@pytest.mark.parametrize("chunk_steps", [0, 16])
def test_an_environment_may_hold_a_model_of_keras(cartpole: Make, train: Train, chunk_steps: int) -> None:
    run = train(cartpole(env__id="through_keras:ThroughKeras-v0", train__steps=400, train__chunk_steps=chunk_steps))
    assert run.outcome() == ("finished", "")
    assert len(list(run.evaluation_lines())) == 1


def test_a_closed_environment_lets_its_games_go() -> None:
    """An emulator that is still there when Python ends fills the terminal with complaints."""
    env = envs.make(EnvSettings(id="own_environment:Memory/Boxing-v5"), count=2)
    assert isinstance(env, Gym)
    games = [weakref.ref(game.unwrapped) for game in env._env.envs]
    env.reset(np.arange(2))
    env.close()
    gc.collect()
    assert [game() for game in games] == [None, None]


def test_a_policy_of_ones_own_restores_three_snapshots(cartpole: Make, train: Train) -> None:
    run = train(cartpole(evaluate__episodes=0, target__policy="own_ensemble:spread(min)", save__every_updates=20))
    swaps = [event for event in run.ledger.events() if isinstance(event, Restore)]
    assert [len(swap.snapshots) for swap in swaps][-1] == 3
    first, *_, last = swaps[-1].candidates
    assert (swaps[-1].snapshots[0], swaps[-1].snapshots[-1]) == (first, last)


def test_log_cosh_is_what_it_says() -> None:
    log_cosh = importlib.import_module("own_loss").log_cosh
    error = np.array([-3.0, -0.5, 0.0, 0.1, 20.0], np.float32)
    with tf.Graph().as_default(), tf.Session() as session:
        loss = session.run(log_cosh(tf.constant(error), 2))
    np.testing.assert_allclose(loss, np.log(np.cosh(error.astype(np.float64))), rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize(("settings", "error", "message"), rows("own", "bad_choices", "settings", "error", "message"))
def test_what_does_not_work_is_said_before_anything_is_written(
    cartpole: Make, settings: dict[str, object], error: str, message: str
) -> None:
    with tf.Graph().as_default(), pytest.raises(getattr(errors, error), match=message):
        build_model(ModelSpec.of(cartpole(**settings), EnvSpec((4,), 2)))


def test_an_optimizer_may_give_what_an_operation_can_wait_for(cartpole: Make) -> None:
    with tf.Graph().as_default(), tf.Session() as session:
        model = build_model(ModelSpec.of(cartpole(train__optimizer="wrong:that_counts"), EnvSpec((4,), 2)))
        session.run(tf.global_variables_initializer())
        batch = {"s_tm1": np.ones((2, 4)), "a_tm1": [0, 1], "r_t": [1, 1], "discount_t": [0, 0], "weight": [1, 1]}
        batch |= {"q_target_t": np.zeros((2, 2)), "s_t": np.ones((2, 4))}
        for _ in range(3):
            session.run(model.train_op, {getattr(model, name): values for name, values in batch.items()})
        [count] = (variable for variable in tf.global_variables() if variable.op.name.endswith("count"))
        assert session.run(count) == 3


def test_a_network_of_ones_own_is_a_twin_like_others(cartpole: Make, tmp_path: Path) -> None:
    settings = cartpole(network="own_network:residual", model__hidden_units=[16])
    spec = ModelSpec.of(settings, EnvSpec((4,), 2))
    with Twin("online", spec, seed=1) as online, Twin("target", spec, seed=2, like=online) as target:
        online.save(tmp_path / "model")
        target.restore(tmp_path / "model")
        observations = np.eye(4, dtype=np.float32)
        np.testing.assert_array_equal(online.q_values(observations), target.q_values(observations))
        assert online.q_values(observations).shape == (4, 2)
        assert online.activations(observations) == {}  # of its own rectifiers nothing is known


def test_a_module_that_was_edited_since_is_named(cartpole: Make, tmp_path: Path) -> None:
    """A resumed run, or one trained again, then has other code than its record."""
    module = tmp_path / "edited_loss.py"
    module.write_text("def square(td_error, n_actions):\n    return td_error * td_error\n")
    run = create(tmp_path / "run", cartpole(loss="edited_loss:square"))
    attempt(run, 560)
    [start] = run.ledger.events(Start)
    assert start.modules == {"edited_loss": hashlib.sha256(module.read_bytes()).hexdigest()}
    point = newest_point(run).point
    assert not [line for line in restored(run, point) if "edited_loss" in line]
    assert list(differences_of_machine(run, 1)) == []
    module.write_text("def square(td_error, n_actions):\n    return td_error**2\n")
    changed = "the file of edited_loss has changed since this run was last trained"
    assert f"not guaranteed: equal weights; {changed}" in list(restored(run, point))
    assert list(differences_of_machine(run, 1)) == ["edited_loss: its file has changed since attempt 1"]
    attempt(run, 760)
    assert list(differences_of_machine(run, point.counters.updates + 1)) == []


def test_a_package_that_cannot_be_imported_any_more_hides_no_record(tmp_path: Path) -> None:
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "__init__.py").write_text("this is no Python")
    assert lookup.edited({"broken.loss": "0" * 64}) == []
