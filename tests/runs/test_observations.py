"""What an environment observes and allows becomes what networks see, in training, in evaluations, and in notebooks."""

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from attempts import attempt
from click.testing import CliRunner
from gymnasium import spaces
from twin_graph_cli.main import cli

from twin_graph import envs, notebook
from twin_graph.agent.agent import Agent
from twin_graph.config.settings import EnvSettings, Settings
from twin_graph.envs import EnvSpec, VectorEnv
from twin_graph.envs.masks import Mask, MaskReader
from twin_graph.envs.observations import Reading, as_declared
from twin_graph.errors import ForeignError, UsageError
from twin_graph.evaluation.player import Player
from twin_graph.snapshots.run import Run, create
from twin_graph.training.readiness import ready
from twin_graph.twin import networks
from twin_graph.twin.model import ModelSpec
from twin_graph.twin.twin import Twin

Make = Callable[..., Settings]
A = 5
SEEN = np.array([0.5, -0.5, 0.25], np.float32)


class Allowing(gymnasium.Env[Any, Any]):
    """Two of five actions are legal at each step. Counts the illegal ones, and says what is legal as `told` says."""

    observation_space: spaces.Space[Any] = spaces.Box(-1, 1, (3,), np.float32)
    action_space: spaces.Discrete = spaces.Discrete(A)
    steps_made = illegal = 0  # of all environments of a kind

    def __init__(self, render_mode: str | None = None) -> None:
        self.steps = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.steps = 0
        self.turn()
        return self.told()

    def turn(self) -> None:
        self.legal = np.zeros(A, np.int8)
        if self.steps < 7:
            self.legal[self.np_random.choice(A, 2, replace=False)] = 1

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        kind = type(self)
        kind.steps_made += 1
        kind.illegal += not self.legal[action - self.action_space.start]
        self.steps += 1
        self.turn()
        observation, info = self.told()
        return observation, 1.0, self.steps == 7, False, info

    def told(self) -> tuple[Any, dict[str, Any]]:
        return SEEN, {}


def beside(mask: str, **others: spaces.Space[Any]) -> type[Allowing]:
    """The mask in a Dict of observations."""

    class InDict(Allowing):
        observation_space = spaces.Dict({mask: spaces.MultiBinary(A), **others})

        def told(self) -> tuple[Any, dict[str, Any]]:
            seen = {name: SEEN if space.shape == (3,) else 2 for name, space in others.items()}
            return {mask: self.legal, **seen}, {}

    return InDict


def in_info(name: str, make: Callable[[Allowing], Any] = lambda env: env.legal) -> type[Allowing]:
    class InInfo(Allowing):
        def told(self) -> tuple[Any, dict[str, Any]]:
            return SEEN, {name: make(self)}

    return InInfo


def numbers(env: Allowing) -> list[int]:
    return [int(action) + int(env.action_space.start) for action in np.flatnonzero(env.legal)]


class ByMethod(Allowing):
    def action_masks(self) -> list[bool]:
        return [bool(legal) for legal in self.legal]


class ByNumbersOfAMethod(Allowing):
    def legal_actions(self) -> list[int]:
        return numbers(self)


class FromThree(in_info("legal_actions", numbers)):  # type: ignore[misc]
    action_space = spaces.Discrete(A, start=3)


BOX = spaces.Box(-1, 1, (3,), np.float32)
#: How others' environments say which actions are legal.
WAYS = {
    "PettingZoo": beside("action_mask", observation=BOX),
    "PettingZoo in info": in_info("action_mask"),
    "RLlib": beside("action_mask", observations=BOX),
    "RLlib before": beside("action_mask", real_obs=BOX),
    "RLlib with embeddings": beside("action_mask", avail_actions=BOX, real_obs=BOX),
    "Tianshou": beside("mask", obs=BOX, agent_id=spaces.Discrete(4)),
    "Tianshou in info": in_info("mask"),
    "sb3-contrib": ByMethod,
    "OpenSpiel": in_info("legal_actions", numbers),
    "OpenSpiel's mask": in_info("legal_actions_mask"),
    "by a method": ByNumbersOfAMethod,
    "natural": beside("action_mask", stock=spaces.Discrete(4), day=BOX),
    "of flags": in_info("legal_actions", lambda env: env.legal != 0),
    "from three": FromThree,
}
for way, kind in WAYS.items():
    gymnasium.register(f"{way.title().replace(' ', '').replace(chr(39), '')}-v0", kind)


def id_of(way: str) -> str:
    return f"{way.title().replace(' ', '').replace(chr(39), '')}-v0"


@pytest.mark.parametrize("way", WAYS)
def test_no_illegal_action_is_taken_however_the_mask_is_given(
    way: str, cartpole: Make, train: Callable[[Settings], Run]
) -> None:
    """While it explores, acts greedily, and is evaluated."""
    kind = WAYS[way]
    kind.steps_made = kind.illegal = 0
    changes = {"train__steps": 320, "train__start_steps": 64, "evaluate__every_steps": 160, "env__count": 2}
    run = train(cartpole(env__id=id_of(way), act__epsilon_decay_steps=200, **changes))
    assert kind.steps_made > 320
    assert kind.illegal / kind.steps_made == 0
    assert "legal" in run.description["protocol"].get("actions", "legal")


@pytest.mark.parametrize("way", WAYS)
def test_a_policy_takes_what_the_environment_returns(
    way: str, cartpole: Make, trained: Callable[[Settings], Run]
) -> None:
    run = notebook.find(trained(cartpole(env__id=id_of(way), train__steps=240, evaluate__episodes=0)).folder)
    env = gymnasium.make(id_of(way))
    inner: Any = env.unwrapped
    kind = WAYS[way]
    kind.steps_made = kind.illegal = 0
    with run.policy() as policy:
        observation, _ = env.reset(seed=3)
        over = False
        while not over:
            masks = None if isinstance(env.observation_space, spaces.Dict) else inner.legal
            action, _ = policy.predict(observation, action_masks=masks, deterministic=False)
            observation, _, over, _, _ = env.step(action)
        if not isinstance(env.observation_space, spaces.Dict):
            with pytest.raises(UsageError, match=r"give the mask of legal actions, too: action_masks="):
                policy.predict(observation)
    assert (kind.steps_made, kind.illegal) == (7, 0)


def test_several_observations_of_a_dict_are_taken_as_gymnasium_batches_them(
    cartpole: Make, trained: Callable[[Settings], Run]
) -> None:
    run = notebook.find(trained(cartpole(env__id=id_of("natural"), train__steps=240, evaluate__episodes=0)).folder)
    vector = gymnasium.make_vec(id_of("natural"), 3, vectorization_mode="sync")
    observations, _ = vector.reset(seed=2)
    with run.policy() as policy:
        q = policy.q_values(observations)
        assert q.shape == (3, A)
        for e in range(3):
            one = {name: part[e] for name, part in observations.items()}
            np.testing.assert_allclose(policy.q_values(one), q[e], rtol=1e-5)
        with pytest.raises(UsageError, match="an observation has action_mask: "):
            policy.q_values({"stock": 1})


class LaterOnly(Allowing):
    def told(self) -> tuple[Any, dict[str, Any]]:
        return SEEN, {"action_mask": self.legal} if self.steps else {}


class Unused(Allowing):
    def legal_moves(self, player: int) -> list[int]:
        return numbers(self)


class WrongNumber(in_info("legal_actions", lambda env: [0, A])):  # type: ignore[misc]
    pass


gymnasium.register("LaterOnly-v0", LaterOnly)
gymnasium.register("Unused-v0", Unused)
gymnasium.register("WrongNumber-v0", WrongNumber)


def made(env_id: str, count: int = 1) -> contextlib.closing[VectorEnv]:
    return contextlib.closing(envs.make(EnvSettings(id=env_id), count=count))


def test_a_mask_that_comes_after_the_first_reset_stops_the_run() -> None:
    message = r"LaterOnly-v0, environment 0, step: there is action_mask in info, and there was none at the first reset"
    with made("LaterOnly-v0") as env, pytest.raises(ForeignError, match=message):
        env.reset(np.zeros(1, np.int64))
        env.step(np.zeros(1, np.int64))


def test_what_may_be_a_mask_and_is_not_used_is_told() -> None:
    with made("Unused-v0") as env:
        [told] = env.notices(1_000)
        assert "may say which actions are legal (Unused.legal_moves), and is not asked" in told
    for env_id in ("CartPole-v1", "MountainCar-v0", "FrozenLake-v1", "Taxi-v4", "MinAtar/Breakout-v1"):
        with made(env_id) as env:
            assert env.notices(1_000) == []


def test_numbers_of_actions_that_there_are_not_are_told() -> None:
    with (
        made("WrongNumber-v0") as env,
        pytest.raises(ForeignError, match=r"legal_actions is \[0, 5\], and actions are 0 to 4"),
    ):
        env.reset(np.zeros(1, np.int64))


class FromOne(gymnasium.Env[Any, Any]):
    """The larger number is right."""

    observation_space = spaces.Box(-1, 1, (1,), np.float32)
    action_space = spaces.Discrete(2, start=1)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.steps = 0
        return np.zeros(1, np.float32), {}

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.steps += 1
        return np.zeros(1, np.float32), float(action == 2), self.steps == 10, False, {}


gymnasium.register("StartsAtOne-v0", FromOne)


def test_a_policy_returns_what_step_takes_where_actions_begin_at_one(
    cartpole: Make, train: Callable[[Settings], Run]
) -> None:
    run = notebook.find(train(cartpole(env__id="StartsAtOne-v0", act__epsilon_decay_steps=400)).folder)
    env = gymnasium.make("StartsAtOne-v0")
    with run.policy() as policy:
        assert policy.play(episodes=2).mean == 10
        observation, _ = env.reset()
        score, over = 0.0, False
        while not over:
            observation, reward, over, _, _ = env.step(policy.predict(observation)[0])
            score += float(reward)
        assert score == 10
        assert set(policy.predict(np.zeros((200, 1), np.float32), deterministic=False)[0]) <= {1, 2}


def reading(space: spaces.Space[Any]) -> Reading:
    return Reading(space, spaces.Discrete(2), None)


@pytest.mark.parametrize(
    ("space", "given", "seen", "words"),
    [
        (spaces.Box(0, 2, (3,), np.uint8), [0, 1, 2], [0, 128, 255], "divided by 2"),
        (spaces.Box(0, 1, (3,), np.uint8), [0, 1, 1], [0, 255, 255], ""),
        (spaces.Box(0, 255, (3,), np.uint8), [0, 1, 255], [0, 1, 255], ""),
        (spaces.Box(0, 2, (3,), np.int8), [0, 1, 2], [0.0, 1.0, 2.0], ""),
        (spaces.Box(-4, 4, (3,), np.float32), [-4, 1, 4], [-4.0, 1.0, 4.0], ""),
        (spaces.Box(0, 255, (1, 1, 3), np.uint16), [[[0, 51, 255]]], [[[0.0, 0.2, 1.0]]], "divided by 255"),
        (spaces.Box(0, 255, (1, 1, 3), np.float32), [[[0, 51, 255]]], [[[0.0, 0.2, 1.0]]], "divided by 255"),
        (spaces.Box(0, 1, (1, 1, 3), np.float32), [[[0, 0.2, 1]]], [[[0.0, 0.2, 1.0]]], ""),
        (spaces.Box(0, np.inf, (1, 1, 3), np.float32), [[[0, 51, 255]]], [[[0.0, 51.0, 255.0]]], ""),
        (
            spaces.Box(np.zeros(2, np.uint8), np.array([3, 255], np.uint8), dtype=np.uint8),
            [1, 1],
            [85, 1],
            "divided by their bounds",
        ),
        (
            spaces.Dict(a=spaces.Box(0, 255, (2,), np.uint8), b=spaces.Box(-3, 3, (1,), np.float32)),
            {"a": np.array([0, 255], np.uint8), "b": np.array([3], np.float32)},
            [0.0, 1.0, 3.0],
            "Dict flattened to 3 numbers, divided by their bounds",
        ),
    ],
    ids=str,
)
def test_bytes_and_images_are_divided_by_their_bounds(space: Any, given: Any, seen: Any, words: str) -> None:
    told = reading(space)
    observation = given if isinstance(given, dict) else np.array(given, space.dtype)
    array = told.array(observation, "")
    np.testing.assert_allclose(array, seen, rtol=1e-6)
    assert (array.dtype, array.shape, told.words) == (told.dtype, told.shape, words)
    assert array.dtype == (np.uint8 if isinstance(seen[0], int) else np.float32)


def test_a_byte_beyond_its_bound_is_told() -> None:
    with pytest.raises(ForeignError, match="observed 3, and observation_space says 2 at most"):
        reading(spaces.Box(0, 2, (2,), np.uint8)).array(np.array([3, 0], np.uint8), "here")


def test_images_without_a_bound_are_told_before_training() -> None:
    assert reading(spaces.Box(0, np.inf, (4, 4, 1), np.float32)).notice == (
        "images of float32 without a bound are taken as they are"
    )
    assert reading(spaces.Box(0, np.inf, (4,), np.float32)).notice == ""


@pytest.mark.parametrize("network", ["minatar", "board", "blob"])
def test_images_with_channels_first_give_what_those_with_channels_last_give(network: str, cartpole: Make) -> None:
    images = np.random.default_rng(1).integers(0, 255, (5, 10, 10, 4), np.uint8)
    frames = np.moveaxis(images, -1, 1)
    settings = cartpole(network=network)
    with (
        Twin("last", ModelSpec.of(settings, EnvSpec(images.shape[1:], 3, "uint8")), seed=1) as last,
        Twin("first", ModelSpec.of(settings, EnvSpec(frames.shape[1:], 3, "uint8")), like=last) as first,
    ):
        first.load(last.weights())
        np.testing.assert_allclose(last.q_values(images), first.q_values(frames), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    ("shape", "first"),
    [
        *(((4, 10, 10), True), ((3, 6, 7), True), ((20, 8, 8), True)),
        *(((10, 10, 4), False), ((10, 10, 10), False), ((3, 3, 9), False), ((6, 7, 3), False), ((8, 8, 20), False)),
    ],
)
def test_boards_may_have_more_channels_than_rows(shape: tuple[int, ...], first: bool) -> None:
    spec = EnvSpec(shape, 2, "uint8")
    assert networks.takes_channels_first("minatar", spec) == first
    assert networks.channels_axis("minatar", spec) == (0 if first else 2)
    assert not networks.takes_channels_first("mlp", spec)


class Answering(gymnasium.Env[Any, Any]):
    """The answer is seen under one of these names, beside noise; the action that it says is right."""

    action_space = spaces.Discrete(2)
    answer, bound = "a_answer", 1.0

    def __init__(self, render_mode: str | None = None) -> None:
        parts = {self.answer: spaces.Box(-self.bound, self.bound, (1,)), "noise": spaces.Box(-1, 1, (3,))}
        self.observation_space = spaces.Dict(parts)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.steps = 0
        return self.seen(), {}

    def seen(self) -> dict[str, np.ndarray]:
        self.right = int(self.np_random.integers(2))
        noise = self.np_random.uniform(-1, 1, 3).astype(np.float32)
        return {self.answer: np.array([2 * self.right - 1], np.float32), "noise": noise}

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        reward = float(action == self.right)
        self.steps += 1
        return self.seen(), reward, self.steps == 20, False, {}


gymnasium.register("Answering-v0", Answering)


def test_a_run_whose_environment_observes_something_else_is_neither_played_nor_resumed(
    cartpole: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = create(tmp_path / "run", cartpole(env__id="Answering-v0", train__steps=600))
    attempt(run, 520)
    run = Run(run.folder)
    point = run.points().newest()
    assert point
    Player(run, run.store().newest).close()
    monkeypatch.setattr(Answering, "answer", "the_answer")  # as Gymnasium sorts keys, after the noise
    message = (
        r"Answering-v0 is not what it was when .*run was trained: then a_answer: Box float32 \[1\] from -1 to 1; "
        r"now the_answer: Box float32 \[1\] from -1 to 1\. Restore its code"
    )
    with pytest.raises(UsageError, match=message):
        Player(run, run.store().newest)
    with pytest.raises(UsageError, match=message), ready(run.settings, run.folder, (run, point)):
        pass
    for command in (["evaluate", str(run.folder)], ["reproduce", str(run.folder)], ["resume", str(run.folder)]):
        told = CliRunner().invoke(cli, command)
        assert told.exit_code != 0
        assert "is not what it was" in str(told.exception)


def test_a_bound_that_nothing_is_divided_by_is_only_named(
    cartpole: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = create(tmp_path / "run", cartpole(env__id="Answering-v0", train__steps=300))
    attempt(run)
    monkeypatch.setattr(Answering, "bound", 2.0)
    with pytest.warns(UserWarning, match=r"then a_answer: Box float32 \[1\] from -1 to 1; now a_answer: .* -2 to 2"):
        Player(run, run.store().newest).close()


class Bytes(FromOne):
    observation_space = spaces.Box(0, 2, (9,), np.uint8)

    def reset(self, **options: Any) -> tuple[Any, dict[str, Any]]:
        super().reset(**options)
        return np.zeros(9, np.uint8), {}

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        _, *rest = super().step(action)
        return np.zeros(9, np.uint8), *rest  # type: ignore[return-value]


gymnasium.register("Bytes-v0", Bytes)


def test_a_run_of_an_earlier_version_that_saw_other_numbers_is_refused(cartpole: Make, tmp_path: Path) -> None:
    """Such a run has no record of what its environment declared."""
    run = create(tmp_path / "run", cartpole(env__id="Bytes-v0"))
    with Agent(run, EnvSpec((9,), 2, "uint8")):
        pass
    with pytest.raises(UsageError, match=r"this one divides them by their bounds \(divided by 2\): train a new run"):
        Player(run, run.store().newest)


def test_an_observation_of_the_declared_type_is_copied() -> None:
    given = np.ones(3, np.float32)
    own = as_declared(spaces.Box(-1, 1, (3,), np.float32), given, "")
    given[:] = 0
    assert own.tolist() == [1, 1, 1]


ENGINE = """
import os

import gymnasium
from gymnasium.envs.classic_control import CartPoleEnv

class Engine(CartPoleEnv):
    def __init__(self, when, **options):
        super().__init__(**options)
        self.when = when
        self.go("init")

    def go(self, now):
        if now == self.when:
            os.chdir(os.path.join(os.path.dirname(os.path.abspath(__file__)), "engine"))

    def reset(self, **options):
        self.go("reset")
        return super().reset(**options)

    def step(self, action):
        self.go("step")
        return super().step(action)

gymnasium.register("Engine-v0", Engine, max_episode_steps=500)
"""


@pytest.mark.parametrize("when", ["init", "reset", "step"])
def test_an_environment_may_change_the_working_directory(
    when: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As game engines do, to find their files."""
    (tmp_path / "engine").mkdir()
    (tmp_path / f"engine_{when}.py").write_text(ENGINE)
    monkeypatch.syspath_prepend(tmp_path)

    def command(*words: str) -> str:
        monkeypatch.chdir(tmp_path)
        told = CliRunner().invoke(cli, words, catch_exceptions=False)
        assert told.exit_code == 0, told.output
        return told.output

    short = ("train.start_steps=100", "evaluate.every_steps=200", "resume.every_steps=200", "twin.threads=1")
    settings = [part for setting in (f"env.kwargs.when={when}", *short) for part in ("--set", setting)]
    printed = command("train", "cartpole", "--env", f"engine_{when}:Engine-v0", "--steps", "400", *settings)
    assert "next: twin-graph log checkpoints/engine-seed1-1 " in printed
    command("resume", "checkpoints/engine-seed1-1", "--steps", "600")
    command("evaluate", "engine-seed1-1", "--episodes", "2")
    command("export", "engine-seed1-1", "latest", "network.npz")
    command("reproduce", "checkpoints/engine-seed1-1", "--run-dir", "again")
    made = {path.name for path in tmp_path.iterdir() if not path.name.startswith("__")}
    assert made == {"again", "checkpoints", "engine", "network.npz", f"engine_{when}.py"}
    assert list((tmp_path / "engine").iterdir()) == []


def legal_of(mask: Mask, given: Any, n_actions: int = 2, start: int = 0) -> list[bool]:
    return list(MaskReader(mask, spaces.Discrete(n_actions, start=start), "it").legal(given, "reset"))


def test_what_a_mask_says_is_not_taken_for_something_else() -> None:
    assert legal_of(Mask("observation", "legal_actions"), [1, 0]) == [True, False]  # chosen by its shape
    assert legal_of(Mask("info", "legal_actions"), {4, 6}, 3, 4) == [True, False, True]
    for wrong in ([0.0, -np.inf], [np.nan, 1.0], [2, 1]):
        with pytest.raises(ForeignError, match="must be of 0 and 1"):
            legal_of(Mask("info", "action_mask"), wrong)


class Flagged(Allowing):
    action_mask = False  # no mask, though it is called one


gymnasium.register("Flagged-v0", Flagged)


def test_a_flag_of_such_a_name_is_no_mask() -> None:
    with made("Flagged-v0") as env:
        assert not env.spec.masked
        assert "Flagged.action_mask" in env.notices(1_000)[0]


def test_masks_that_are_given_where_none_are_known_or_of_numbers_are_read_as_in_training(
    cartpole: Make, trained: Callable[[Settings], Run]
) -> None:
    masked = Reading(BOX, spaces.Discrete(3), Mask("info", "legal_actions"))
    assert masked.arrays(SEEN, [0, 1, 2])[-3:].tolist() == [1, 1, 1]
    assert masked.arrays(SEEN, [0, 2])[-3:].tolist() == [1, 0, 1]
    with pytest.raises(UsageError, match="action_masks has 1 masks for 2 observations"):
        masked.arrays(np.stack([SEEN, SEEN]), [[0]])
    with pytest.raises(UsageError, match="all actions are legal in this environment: leave out action_masks"):
        reading(BOX).arrays(SEEN, [1, 1])


@pytest.mark.parametrize(
    ("space", "wrong"),
    [
        (spaces.Discrete(4), -1),
        (spaces.Discrete(4, start=1), 0),
        (spaces.MultiDiscrete([2, 3]), [2, 0]),
        (spaces.MultiBinary(2), [2, 0]),
        (spaces.Dict(b=spaces.Box(-1, 1, (2, 3))), {"b": np.zeros((3, 2), np.float32)}),
        (spaces.Dict(a=spaces.Box(0, 255, (2,), np.uint8)), {"a": np.array([300, 1])}),
        (spaces.Dict(a=spaces.Box(-1, 1, (2,))), {"a": np.zeros(3, np.float32)}),
        (spaces.Dict(a=spaces.Box(-1, 1, (2,))), {"b": np.zeros(2, np.float32)}),
    ],
    ids=str,
)
def test_what_is_flattened_is_as_its_space_says(space: spaces.Space[Any], wrong: Any) -> None:
    with pytest.raises(ForeignError, match=r"^here: "):
        reading(space).array(wrong, "here")


def test_a_key_that_no_space_declares_is_not_seen() -> None:
    declared = spaces.Dict(obs=spaces.Box(-1, 1, (2,)), action_mask=spaces.MultiBinary(2))
    told = Reading(declared, spaces.Discrete(2), Mask("observation", "action_mask"))
    seen = {"extra": np.full(2, 0.5, np.float32), "obs": np.zeros(2, np.float32), "action_mask": np.ones(2)}
    assert told.array(seen, "", np.ones(2, np.bool_)).tolist() == [0, 0, 1, 1]
    nested = spaces.Dict(obs=spaces.Dict(obs=spaces.Box(-1, 1, (2,))), action_mask=spaces.MultiBinary(2))
    told = Reading(nested, spaces.Discrete(2), Mask("observation", "action_mask"))
    seen = {"obs": {"obs": np.ones(2, np.float32)}, "action_mask": np.ones(2)}
    assert told.array(seen, "", np.ones(2, np.bool_)).tolist() == [1, 1, 1, 1]


@pytest.mark.parametrize("low", [-np.inf, 0])
def test_whole_numbers_without_a_bound_are_not_divided_by_that_of_their_type(low: float) -> None:
    high = np.inf if low else np.iinfo(np.int32).max
    told = reading(spaces.Box(low, high, (2, 2), np.int32))
    assert told.array(np.array([[2, 4], [8, 2048]], np.int32), "").tolist() == [[2, 4], [8, 2048]]
    assert "without a bound" in told.notice
