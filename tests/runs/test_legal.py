"""Legal actions: an illegal one is never taken, sampled for exploration, or bootstrapped from."""

import contextlib
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays
from tables import rows

from twin_graph import envs
from twin_graph.agent.held_out import HELD_OUT_SIZE
from twin_graph.base.counters import Tally
from twin_graph.config.settings import EnvSettings, Settings
from twin_graph.distributed.chief import Chief
from twin_graph.envs import EnvSpec, VectorEnv, VectorStep
from twin_graph.envs.legal import ILLEGAL, legal_only, pick
from twin_graph.errors import ForeignError, UsageError
from twin_graph.replay.ring import Replay, Transition
from twin_graph.snapshots.run import Run
from twin_graph.twin.model import ModelSpec
from twin_graph.twin.tf import tf
from twin_graph.twin.twin import Compute, Twin

Make = Callable[..., Settings]


class Picky(gymnasium.Env[np.ndarray, np.int64]):
    """Two of five actions are legal at each step, and an illegal one is an error; nothing is legal at the end."""

    observation_space = spaces.Box(-1, 1, (3,), np.float32)
    action_space = spaces.Discrete(5)
    told: Any = None  # in place of the mask
    told_at_the_end = True

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.steps = 0
        return self.observed()

    def observed(self) -> tuple[Any, dict[str, Any]]:
        self.legal = np.zeros(5, np.int8)
        if self.steps < 7:
            self.legal[self.np_random.choice(5, 2, replace=False)] = 1
        told = self.legal if self.told is None or self.steps < 2 else self.told
        info = {"action_mask": told} if self.told_at_the_end or self.steps < 7 else {}
        return self.np_random.uniform(-1, 1, 3).astype(np.float32), info

    def step(self, action: np.int64) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert self.legal[action], f"{action} is illegal"
        self.steps += 1
        observation, info = self.observed()
        return observation, 1.0, self.steps == 7, False, info


class InDict(Picky):
    """The same, with the mask beside the observation, as PettingZoo's games have it."""

    observation_space = spaces.Dict({"observation": Picky.observation_space, "action_mask": spaces.MultiBinary(5)})

    def observed(self) -> tuple[Any, dict[str, Any]]:
        observation, info = super().observed()
        return {"observation": observation, **info}, {}


class ThreeTold(Picky):
    told = np.ones(3)


class NoneTold(Picky):
    told = np.zeros(5)


class NoneAtTheEnd(Picky):
    told_at_the_end = False


class CutOff(Picky):
    """Truncated where nothing is legal, and so without a value to go on from."""

    def step(self, action: np.int64) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        observation, reward, terminated, _, info = super().step(action)
        return observation, reward, False, terminated, info


gymnasium.register("Picky-v0", Picky)
for kind in (InDict, ThreeTold, NoneTold, NoneAtTheEnd, CutOff):
    gymnasium.register(f"{kind.__name__}-v0", kind)


@given(
    arrays(np.bool_, array_shapes(min_dims=2, max_dims=2, max_side=9)).filter(lambda legal: bool(legal.any(1).all())),
    st.floats(0, 1, exclude_max=True),
)
def test_a_pick_is_always_legal(legal: np.ndarray, draw: float) -> None:
    picked = pick(legal, np.full(len(legal), draw))
    assert legal[np.arange(len(legal)), picked].all()


def test_each_legal_action_is_picked_as_often() -> None:
    legal = np.tile([True, False, True, True, False], (6_000, 1))
    counts = np.bincount(pick(legal, np.random.default_rng(1).random(6_000)), minlength=5)
    assert counts[[1, 4]].sum() == 0
    assert (abs(counts[[0, 2, 3]] - 2_000) < 150).all()


def test_where_everything_is_legal_draws_are_as_ever() -> None:
    """Runs of one player that were made before end with the same weights."""
    actions = EnvSpec((3,), 4).random_actions(np.zeros((6, 3)), np.random.default_rng(1))
    np.testing.assert_array_equal(actions, np.random.default_rng(1).integers(0, 4, size=6))


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"env__id": "InDict-v0"},
        {"train__chunk_steps": 16, "train__double": True},
        {"train__chunk_steps": 16, "twin__compiled": True, "train__steps": 600},
        {"train__target_q": False},
        {"target__policy": "ensemble(2, mean)", "model__dueling": True},
        {"replay__prioritized": True, "act__with": "target"},
    ],
    ids=lambda changes: ", ".join(f"{key}={value}" for key, value in changes.items()) or "plain",
)
def test_no_illegal_action_is_ever_taken(
    cartpole: Make, train: Callable[[Settings], Run], changes: dict[str, Any]
) -> None:
    """While it explores, acts greedily, and is evaluated."""
    run = train(cartpole(**{"env__id": "Picky-v0", "act__epsilon_decay_steps": 400, **changes}))
    newest = run.store().newest
    assert newest.health is not None
    assert newest.health.q_abs_max is not None
    assert newest.health.q_abs_max < 100  # of legal actions alone
    assert next(line["mean"] for line in run.evaluation_lines()) == 7
    shown = [line["q_mean"] for line in run.metric_lines() if line.get("q_mean") is not None]
    assert max(map(abs, shown)) < 100


def spec_of(cartpole: Make, **changes: Any) -> ModelSpec:
    return ModelSpec.of(cartpole(**changes), EnvSpec((6 + 3,), 3, masked=True, seen_shape=(6,)))


@pytest.mark.parametrize("rule", ["", "double", "minto"])
@pytest.mark.parametrize("block", [0, 1])
def test_bootstrap_values_come_from_legal_actions(cartpole: Make, rule: str, block: int) -> None:
    """Against the formula, in NumPy, with Q values of both twins that would choose what is illegal."""
    spec = spec_of(cartpole, train__double=rule == "double", train__minto=rule == "minto", train__batch_size=4)
    random = np.random.default_rng(2)
    legal = np.array([[1, 0, 1], [0, 1, 0], [1, 1, 1], [0, 0, 0]])
    s_t = np.concatenate([random.normal(size=(4, 6)), legal], axis=1).astype(np.float32)
    discount_t = np.array([0.9, 0.9, 0.9, 0], np.float32)
    with (
        Twin("online", spec, seed=1, compute=Compute(threads=1), block=block) as online,
        Twin("target", spec, seed=2, compute=Compute(threads=1)) as target,
    ):
        q_target, q_own = target.q_values(s_t), online.q_values(s_t)
        assert ((q_target == ILLEGAL) == (legal == 0)).all()
        values = {
            "s_tm1": s_t,
            "a_tm1": np.array([2, 1, 0, 0], np.int32),
            "r_t": np.arange(4, dtype=np.float32),
            "discount_t": discount_t,
            "q_target_t": q_target,
            "s_t": s_t,
            "weight": np.ones(4, np.float32),
        }
        q_t = np.minimum(q_target, q_own) if rule == "minto" else q_target
        every = np.where(legal, q_own if rule == "double" else q_t, -np.inf)
        best = every[:3].argmax(axis=1)
        y = values["r_t"] + np.append(0.9 * q_t[np.arange(3), best], 0)
        assert not np.allclose(q_t, q_own)
        assert np.allclose(q_t, q_target) == (rule != "minto")
        q_taken = q_own[np.arange(4), values["a_tm1"]]
        model = online.model
        if block:
            assert model.block
            per_update = {"dropout_seed": np.zeros((1, 2), np.int32), "learning_rate": np.array([1e-3], np.float32)}
            fed = model.block.feed({**values, **per_update})
            td_error = online.run(model.block.fetches, fed)[2][0]
        else:
            fed = {tensor: values[name] for name, tensor in model.fed.items()}
            _, td_error = online.run((model.train_op, model.td_error), fed)
        np.testing.assert_allclose(td_error[:3], (y - q_taken)[:3], rtol=1e-4, atol=1e-5)
        assert all(np.isfinite(value).all() for value in online.weights().values())


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_in_any_precision_illegal_actions_are_never_greedy(cartpole: Make, precision: str) -> None:
    observations = np.random.default_rng(3).normal(size=(200, 9)).astype(np.float32)
    observations[:, 6:] = np.eye(3)[np.arange(200) % 3]
    with Twin("online", spec_of(cartpole), seed=1, compute=Compute(precision=precision)) as twin:
        assert (twin.q_values(observations).argmax(axis=1) == np.arange(200) % 3).all()


def test_precision_changes_products_and_no_weight(cartpole: Make) -> None:
    observations = np.random.default_rng(3).normal(size=(50, 4)).astype(np.float32)
    spec = ModelSpec.of(cartpole(), EnvSpec((4,), 2))
    with Twin("one", spec, seed=1) as one, Twin("other", spec, seed=1, compute=Compute(precision="bf16")) as other:
        exact, rounded = one.q_values(observations), other.q_values(observations)
        assert one.weights_sha256() == other.weights_sha256()
    assert not np.array_equal(exact, rounded)
    np.testing.assert_allclose(exact, rounded, atol=0.05)


def test_a_mask_goes_through_replay_and_over_a_cut() -> None:
    """Taxi is cut after 200 steps, and bootstraps from the state that it was cut in, whose mask is its own."""
    random = np.random.default_rng(1)
    with contextlib.closing(envs.make(EnvSettings(id="Taxi-v4"), count=2)) as env:
        spec = env.spec
        replay = Replay(
            capacity_steps=1_000,
            environments=2,
            observation_shape=spec.observation_shape,
            dtype=spec.observation_dtype,
            stack=spec.stack,
            n_step=1,
            discount=0.9,
        )
        s_tm1, steps = env.reset(np.arange(2)), []
        for _ in range(450):
            a_tm1 = spec.random_actions(s_tm1, random)
            step = env.step(a_tm1)
            replay.add(Transition(s_tm1, a_tm1, step.r_t, step.terminal_t, step.last_t, step.s_t))
            steps.append(step)
            s_tm1 = step.s_next
    of = {name: np.array([getattr(step, name) for step in steps[:-1]]) for name in ("s_t", "s_next", "terminal_t")}
    at, environment = (axis.ravel() for axis in np.indices((449, 2)))
    batch, terminal_t = replay.gather(at, environment), of["terminal_t"].ravel()
    np.testing.assert_array_equal(batch.discount_t, np.where(terminal_t, 0, np.float32(0.9)))
    np.testing.assert_array_equal(batch.s_t[~terminal_t], of["s_t"][~of["terminal_t"]])
    cut = (of["s_t"] != of["s_next"]).any(axis=2) & ~of["terminal_t"]
    assert cut.sum() >= 3
    assert (spec.legal(of["s_t"][cut]) != spec.legal(of["s_next"][cut])).any()


@pytest.mark.parametrize(("env_id", "message"), rows("legal", "wrong_masks", "env_id", "message"))
def test_a_wrong_mask_is_told_in_one_line(env_id: str, message: str) -> None:
    with (
        contextlib.closing(envs.make(EnvSettings(id=env_id), count=2)) as env,
        pytest.raises(ForeignError, match=message),
    ):
        play_to_an_end(env)


def test_at_the_end_nothing_is_legal_whether_that_is_told_or_not() -> None:
    with contextlib.closing(envs.make(EnvSettings(id="NoneAtTheEnd-v0"), count=2)) as env:
        last = play_to_an_end(env)
        assert last.terminal_t.all()
        assert not env.spec.legal(last.s_t).any()


def play_to_an_end(env: VectorEnv) -> VectorStep:
    """By the first legal actions."""
    s_tm1 = env.reset(np.arange(2))
    while not (step := env.step(env.spec.legal(s_tm1).argmax(axis=1))).last_t.any():
        s_tm1 = step.s_next
    return step


def test_an_export_holds_the_mask_too(cartpole: Make, train: Callable[[Settings], Run], tmp_path: Any) -> None:
    from twin_graph.exchange.export import export

    run = train(cartpole(env__id="Picky-v0", evaluate__episodes=0))
    export(run, run.store().newest, "savedmodel", tmp_path / "model")
    observations = np.random.default_rng(4).normal(size=(8, 8)).astype(np.float32)
    observations[:, 3:] = np.arange(5) == 2
    with tf.Graph().as_default(), tf.Session() as session:
        loaded = tf.saved_model.load(session, ["serve"], str(tmp_path / "model"))
        signature = loaded.signature_def["serving_default"]
        q = session.run(signature.outputs["q_values"].name, {signature.inputs["observations"].name: observations})
    assert (q.argmax(axis=1) == 2).all()


def test_a_game_of_two_needs_an_opponent_and_others_none(cartpole: Make) -> None:
    with pytest.raises(UsageError, match=r"has two players: choose the other with --set opponent\.policy=latest"):
        ModelSpec.of(cartpole(), EnvSpec((4,), 2, players=2))
    with pytest.raises(UsageError, match=r"CartPole-v1 has one player; use --set opponent\.policy=null"):
        ModelSpec.of(cartpole(opponent__policy="self"), EnvSpec((4,), 2))


def test_values_that_are_not_finite_are_not_taken_for_illegal_ones() -> None:
    q = np.array([[np.nan, 1, ILLEGAL], [-np.inf, np.inf, ILLEGAL]], np.float32)
    np.testing.assert_array_equal(legal_only(q), np.array([np.nan, 1, -np.inf, np.inf], np.float32))


def test_the_chief_looks_for_its_observations_by_legal_moves(cartpole: Make) -> None:
    settings = cartpole(env__id="Picky-v0")
    with contextlib.closing(envs.make(settings.env, count=8)) as env:
        chief = SimpleNamespace(_env=env, _live=SimpleNamespace(settings=settings), _tally=Tally(1))
        assert Chief._seen_at_random(chief).shape == (HELD_OUT_SIZE, 8)  # type: ignore[arg-type]
