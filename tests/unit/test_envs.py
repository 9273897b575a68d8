"""Environments, on the real emulator and on Gymnasium."""

import contextlib
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from ale_py.vector_env import AtariVectorEnv
from gymnasium import spaces
from gymnasium.envs.classic_control import CartPoleEnv
from minatar.gym import BaseEnv
from tables import rows

from twin_graph import envs
from twin_graph.config.settings import EnvSettings, Settings
from twin_graph.envs import EnvSpec, VectorEnv, VectorStep, minatar
from twin_graph.envs.gym import check_version
from twin_graph.errors import ForeignError, UsageError
from twin_graph.evaluation import games as evaluation

# An Atari emulator takes a tenth of a second to make, as does every new game on it; a step is a 300th of that.
SEEDS = np.array([11, 12, 13])
TWO = SEEDS[:2]


MINATAR = [f"MinAtar/{game}-v{version}" for game in minatar.GAMES for version in (0, 1)]


def play(env: VectorEnv, steps: int, seeds: np.ndarray = SEEDS) -> tuple[np.ndarray, list[VectorStep]]:
    random = np.random.default_rng(3)
    first = env.reset(seeds)
    return first, [env.step(random.integers(0, env.spec.n_actions, size=env.count)) for _ in range(steps)]


@pytest.mark.parametrize("environment", ["ALE/Pong-v5", "CartPole-v1"])
def test_equal_seeds_and_actions_give_equal_games(environment: str) -> None:
    games = []
    for _ in range(2):
        env = envs.make(EnvSettings(id=environment), count=2)
        first, steps = play(env, 100, TWO)
        env.close()
        games.append((first, *(np.stack([getattr(step, field) for step in steps]) for field in VectorStep._fields)))
    for ours, again in zip(*games, strict=True):
        np.testing.assert_array_equal(ours, again)


@pytest.mark.parametrize("environment", ["ALE/Breakout-v5", "CartPole-v1", *MINATAR])
def test_a_reset_in_the_middle_of_a_game_is_a_fresh_game(environment: str) -> None:
    env = envs.make(EnvSettings(id=environment), count=2)
    first, steps = play(env, 60, TWO)
    again, steps_again = play(env, 60, TWO)
    env.close()
    np.testing.assert_array_equal(first, again)
    for step, step_again in zip(steps, steps_again, strict=True):
        np.testing.assert_array_equal(step.s_t, step_again.s_t)


def test_atari_games_are_those_of_the_emulators_default_mode_without_its_idle_steps() -> None:
    """ALE resets in the step after the end by default; we reset in the same step. Frames and rewards agree."""
    settings = EnvSettings(id="ALE/Breakout-v5", noop_max=9, life_loss=False, clip_rewards=False)
    ours = envs.make(settings, count=1)
    reference = AtariVectorEnv(
        "breakout", 1, noop_max=10, episodic_life=False, reward_clipping=False, use_fire_reset=False
    )
    random = np.random.default_rng(0)
    s_next = ours.reset(SEEDS[:1])
    np.testing.assert_array_equal(s_next, reference.reset(seed=SEEDS[:1])[0])
    ends = 0
    while ends < 2:
        action = random.integers(0, 4, size=1)
        step = ours.step(action)
        observation, reward, terminated, truncated, _ = reference.step(action)
        np.testing.assert_array_equal(step.s_t, observation)
        assert step.r_t == reward
        assert step.last_t == (terminated | truncated)
        if step.last_t[0]:
            ends += 1
            observation, *_ = reference.step(action)  # the idle step: it resets and ignores its action
        np.testing.assert_array_equal(step.s_next, observation)
    ours.close()
    reference.close()


@pytest.fixture(scope="module")
def games_of_breakout() -> tuple[np.ndarray, list[VectorStep]]:
    """What is seen first, and 400 steps of three environments."""
    with contextlib.closing(envs.make(EnvSettings(id="ALE/Breakout-v5"), count=3)) as env:
        return play(env, 400)


def test_a_new_game_begins_with_one_frame_after_zeros(games_of_breakout: tuple[np.ndarray, list[VectorStep]]) -> None:
    first, steps = games_of_breakout
    begun = [first] + [step.s_next[step.last_t] for step in steps]
    assert sum(len(observations) for observations in begun) > 5
    for observations in begun:
        assert not observations[:, :-1].any()
        assert observations[:, -1].any(axis=(1, 2)).all()


def test_a_lost_life_is_terminal_for_learning_and_the_game_goes_on(
    games_of_breakout: tuple[np.ndarray, list[VectorStep]],
) -> None:
    _, steps = games_of_breakout
    terminal = np.stack([step.terminal_t for step in steps])
    last = np.stack([step.last_t for step in steps])
    # Breakout gives five lives: four are lost on the way, the fifth ends the game.
    per_game = [
        int(terminal[start:end, e].sum())
        for e in range(3)
        for ends in [np.flatnonzero(last[:, e]) + 1]
        for start, end in zip([0, *ends[:-1]], ends, strict=True)
    ]
    assert len(per_game) >= 3
    assert set(per_game) == {5}
    for step in steps:
        lost = step.terminal_t & ~step.last_t
        np.testing.assert_array_equal(step.s_t[lost], step.s_next[lost])


def test_evaluation_plays_whole_games_for_true_rewards() -> None:
    settings = EnvSettings(id="ALE/SpaceInvaders-v5", fire_reset=True)
    training, evaluation = envs.make(settings, count=1), envs.make(settings, count=1, evaluation=True)
    _, steps = play(training, 200, SEEDS[2:])
    assert any(step.terminal_t > step.last_t for step in steps)
    assert {reward for step in steps for reward in step.r_t} == {0.0, 1.0}
    assert {score for step in steps for score in step.score_t} > {0.0, 5.0}
    _, steps = play(evaluation, 200, SEEDS[2:])
    for step in steps:
        np.testing.assert_array_equal(step.r_t, step.score_t)
        np.testing.assert_array_equal(step.terminal_t, step.last_t)
    assert evaluation.protocol["rewards clipped"] is False
    assert evaluation.protocol["life loss is terminal"] is False
    assert evaluation.protocol["fire at reset"] is False
    training.close()
    evaluation.close()


def test_a_game_cut_by_its_time_limit_is_not_terminal() -> None:
    env = envs.make(EnvSettings(id="ALE/Pong-v5", max_frames=80), count=2)
    _, steps = play(env, 25, TWO)
    env.close()
    cuts = [i for i, step in enumerate(steps) if step.last_t.any()]
    assert cuts == [19]
    assert steps[19].last_t.all()
    assert not steps[19].terminal_t.any()
    assert not np.array_equal(steps[19].s_t, steps[19].s_next)


@pytest.mark.parametrize(("limit", "cuts"), [(-1, []), (90, [89, 179, 269])])
def test_a_limit_that_is_given_replaces_the_registered_one(limit: int, cuts: list[int]) -> None:
    """MountainCar is registered with 200 steps, and random actions do not get it out of the valley in so few."""
    env = envs.make(EnvSettings(id="MountainCar-v0", kwargs={"max_episode_steps": limit}), count=1)
    _, steps = play(env, 300, SEEDS[:1])
    env.close()
    assert [i for i, step in enumerate(steps) if step.last_t.any()] == cuts
    assert (env.endless, env.protocol["time limit, steps"]) == (not cuts, limit if cuts else "none")


def test_the_final_observation_of_an_episode_is_kept_apart_from_the_next_ones_first() -> None:
    """CartPole ends when the pole leans beyond 0.2095 rad or the cart leaves +-2.4, and starts within +-0.05."""
    env = envs.make(EnvSettings(id="CartPole-v1"), count=3)
    _, steps = play(env, 300)
    env.close()
    ended = [(step.s_t[step.last_t], step.s_next[step.last_t]) for step in steps if step.last_t.any()]
    assert len(ended) > 10
    for final, first in ended:
        assert ((abs(final[:, 2]) > 0.2095) | (abs(final[:, 0]) > 2.4)).all()
        assert (abs(first) <= 0.05).all()


def test_an_environment_of_the_users_own_module(monkeypatch: pytest.MonkeyPatch, tmp_path: object) -> None:
    (tmp_path / "my_envs.py").write_text(  # type: ignore[operator]
        "import gymnasium\n"
        "from gymnasium.envs.classic_control import CartPoleEnv\n"
        "gymnasium.register('Mine-v0', CartPoleEnv, max_episode_steps=7)\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    env = envs.make(EnvSettings(id="my_envs:Mine-v0"), count=3)
    _, steps = play(env, 7)
    env.close()
    assert env.protocol["time limit, steps"] == 7
    assert steps[-1].last_t.all()
    assert not steps[-1].terminal_t.all()
    gymnasium.registry.pop("Mine-v0")


def test_an_id_without_version_is_refused_before_anything_has_imported_its_module(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "versioned.py").write_text(
        "import gymnasium\ngymnasium.register('Versioned-v3', 'gymnasium.envs.classic_control:CartPoleEnv')\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(UsageError, match="give versioned:Versioned-v3"):
        check_version("versioned:Versioned")
    gymnasium.registry.pop("Versioned-v3")


def test_actions_that_do_not_begin_at_zero() -> None:
    class FromOne(gymnasium.Env):  # type: ignore[type-arg]
        observation_space = gymnasium.spaces.Box(-1, 1, (1,))
        action_space = gymnasium.spaces.Discrete(2, start=1)

        def reset(self, **_: object) -> tuple[np.ndarray, dict[str, object]]:
            return np.zeros(1, np.float32), {}

        def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, object]]:
            return np.zeros(1, np.float32), float(action), False, False, {}

    gymnasium.register("FromOne-v0", FromOne)
    env = envs.make(EnvSettings(id="FromOne-v0"), count=2)
    env.reset(SEEDS[:2])
    assert env.step(np.array([0, 1])).r_t.tolist() == [1.0, 2.0]
    env.close()
    gymnasium.registry.pop("FromOne-v0")


@pytest.mark.parametrize(("high", "brightness"), [(1, 255), (2, 128), (3, 85), (255, 1)])
def test_bytes_are_as_bright_as_their_bound_says(high: int, brightness: int) -> None:
    class Board(gymnasium.Env):  # type: ignore[type-arg]
        observation_space = gymnasium.spaces.Box(0, high, (3, 3, 2), np.uint8)
        action_space = gymnasium.spaces.Discrete(2)

        def reset(self, **_: object) -> tuple[np.ndarray, dict[str, object]]:
            return np.ones((3, 3, 2), np.uint8), {}

        def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, object]]:
            return np.zeros((3, 3, 2), np.uint8), 0.0, False, False, {}

    gymnasium.register("Board-v0", Board)
    with contextlib.closing(envs.make(EnvSettings(id="Board-v0"), count=2)) as env:
        first = env.reset(SEEDS[:2])
        assert (first.dtype, set(first.flat)) == (np.uint8, {brightness})
        assert set(env.step(np.array([0, 1])).s_t.flat) == {0}
    gymnasium.registry.pop("Board-v0")


def test_names_of_other_actions_than_a_wrapper_has_are_not_used() -> None:
    def meanings(self: CartPoleEnv) -> list[str]:
        return ["west", "east"]

    def one_way(**options: object) -> gymnasium.Env[Any, Any]:
        return gymnasium.wrappers.TransformAction(gymnasium.make(named), lambda action: 0, spaces.Discrete(1))

    named = registered("Named", get_action_meanings=meanings)
    gymnasium.register("OneWay-v0", one_way)
    for environment, names in ((named, ("west", "east")), ("OneWay-v0", ())):
        with contextlib.closing(envs.make(EnvSettings(id=environment), count=1)) as env:
            assert env.action_names == names


@pytest.mark.parametrize(("environment", "message"), rows("envs", "not_learnable", "environment", "message"))
def test_environments_that_cannot_be_learnt_get_one_line(environment: str, message: str) -> None:
    with pytest.raises(UsageError, match=message) as error:
        envs.make(EnvSettings(id=environment), count=1)
    assert "\n" not in str(error.value)


MEANINGS = ["NOOP", "FIRE", "RIGHT", "LEFT", "RIGHTFIRE", "LEFTFIRE"]  # of Pong, in ALE's order


@pytest.mark.parametrize("evaluation", [False, True])
def test_chosen_actions_are_what_the_emulator_gets(evaluation: bool) -> None:
    """Played by their new numbers, and by their old ones in the whole set, the games are equal."""
    chosen = [3, 0, 2]
    some = envs.make(EnvSettings(id="ALE/Pong-v5", actions=chosen), count=2, evaluation=evaluation)
    every = envs.make(EnvSettings(id="ALE/Pong-v5"), count=2, evaluation=evaluation)
    assert (some.spec.n_actions, every.spec.n_actions) == (3, 6)
    random = np.random.default_rng(0)
    np.testing.assert_array_equal(some.reset(TWO), every.reset(TWO))
    for _ in range(60):
        actions = random.integers(0, 3, size=2)
        for ours, theirs in zip(some.step(actions), every.step(np.array(chosen)[actions]), strict=True):
            np.testing.assert_array_equal(ours, theirs)
    some.close()
    every.close()


def test_right_and_left_move_the_paddle_up_and_down() -> None:
    """The player's paddle is at the right edge of Pong's screen; the bytes are those that the network sees."""
    ends = []
    env = envs.make(EnvSettings(id="ALE/Pong-v5", actions=[0, 2, 3], noop_max=0), count=1)
    for action in range(3):
        env.reset(SEEDS[:1])
        for _ in range(8):
            screen = env.step(np.array([action])).s_next[0, -1]
        column = screen[14:77, 74].astype(int)  # between the two walls
        ends.append(float(np.flatnonzero(column != np.median(column)).mean()))
    env.close()
    stays, right, left = ends
    assert right < stays - 10
    assert left > stays + 10


def test_a_protocol_names_the_actions_that_were_chosen() -> None:
    for actions, named in ((None, 6), ([0, 2, 3], "NOOP RIGHT LEFT"), ([5, 1], "LEFTFIRE FIRE")):
        env = envs.make(EnvSettings(id="ALE/Pong-v5", actions=actions), count=1, evaluation=True)
        env.close()
        assert env.protocol["actions"] == named


@pytest.mark.parametrize("actions", [[], [2], [0, 2, 2], [0, 6], [-1, 2]])
def test_actions_that_are_none_of_the_games_are_refused_with_their_meanings(actions: list[int]) -> None:
    with pytest.raises(UsageError) as error:
        envs.make(EnvSettings(id="ALE/Pong-v5", actions=actions), count=1)
    message = str(error.value)
    assert message.startswith(f"env.actions={actions}: ")
    assert all(f"{i} {meaning}" in message for i, meaning in enumerate(MEANINGS))
    assert "\n" not in message


def test_actions_are_chosen_in_atari_games_only() -> None:
    with pytest.raises(UsageError, match=r"env\.actions chooses among the actions of an Atari game"):
        envs.make(EnvSettings(id="CartPole-v1", actions=[0, 1]), count=1)


def registered(name: str, **methods: object) -> str:
    """The id of an environment of the test's own: CartPole with other methods, without a time limit."""
    kind = type(name, (CartPoleEnv,), methods)
    gymnasium.register(f"{name}-v0", kind)
    return f"{name}-v0"


def step_from(number: int, answer: Callable[[tuple[Any, ...]], Any]) -> Callable[..., Any]:
    """A `step` that answers as CartPole, and from this step of the first environment on as `answer` makes of it."""
    made = [0]

    def step(self: CartPoleEnv, action: int) -> Any:
        told = CartPoleEnv.step(self, action)
        made[0] += 1
        return answer(told) if made[0] >= number else told

    return step


def explode(told: tuple[Any, ...]) -> Any:
    raise RuntimeError("simulator exploded")


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (explode, r"-v0, environment 1, step: RuntimeError: simulator exploded \(.*test_envs\.py:\d+, in explode\)"),
        (
            lambda told: (told[0][:3], *told[1:]),
            r"-v0, environment 1, step: the observation has shape \[3\], and obs",
        ),
        (lambda told: (told[0], float("nan"), *told[2:]), r"-v0, environment 1: the reward is nan, and must be finite"),
        (lambda told: (told[0] * np.inf, *told[1:]), r"-v0, environment 1: the observation is -?inf, and must be fin"),
        (
            lambda told: (told[0], None, *told[2:]),
            r"-v0, environment 1, step: it returned a reward that is NoneType None, and must return a number",
        ),
    ],
    ids=["raises", "shape", "reward", "observation", "no reward"],
)
@pytest.mark.filterwarnings("ignore:.*:UserWarning", "ignore:invalid value:RuntimeWarning")
def test_what_goes_wrong_in_an_environment_is_told_with_its_number_and_line(
    request: pytest.FixtureRequest, answer: Callable[..., Any], message: str
) -> None:
    name = "Wrong" + request.node.callspec.id.replace(" ", "").title()
    env = envs.make(EnvSettings(id=registered(name, step=step_from(5, answer))), count=3)
    with contextlib.closing(env), pytest.raises(ForeignError, match=f"^{name}{message}"):
        play(env, 2)


def test_what_an_environment_says_of_itself_for_people_need_not_be_right() -> None:
    name = registered("Boastful", get_action_meanings=explode, metadata={"render_fps": "fast", "render_modes": []})
    env = envs.make(EnvSettings(id=name), count=1)
    assert (env.action_names, env.screens_per_second) == ((), 30.0)


def test_an_evaluation_of_an_environment_without_a_limit_ends(cartpole: Callable[..., Settings]) -> None:
    """Nobody ever falls: without a limit the games last for ever."""

    def never_ends(self: CartPoleEnv, action: int) -> Any:
        return np.zeros(4, np.float32), 1.0, False, False, {}

    endless = registered("Endless", step=never_ends)
    settings = cartpole(env__id=endless, evaluate__max_steps=70)
    assert envs.make(settings.env, count=1).endless
    told = evaluation.last(
        evaluation.play(evaluation.Contender(lambda s: np.zeros((len(s), 2))), settings, episodes=3, at=(1, 0))
    )
    assert told.returns == [70.0] * 3
    assert told.protocol["time limit, steps"] == 70
    assert "3 cut at the step limit" in told.words()
    assert told.summary()["cut"] == 3
    evaluated = envs.make(settings.env, count=1, evaluation=True)
    assert not evaluated.endless
    assert evaluated.protocol["time limit, steps"] == 27_000
    # Where games have a limit of their own, nothing is said or cut.
    plain = evaluation.last(
        evaluation.play(evaluation.Contender(lambda s: np.zeros((len(s), 2))), cartpole(), episodes=3, at=(1, 0))
    )
    assert "cut" not in plain.summary()
    assert plain.protocol["time limit, steps"] == 500


@pytest.mark.parametrize("changes", [{"env__max_frames": 400}, {"env__frame_skip": 2, "evaluate__max_steps": 100}])
def test_atari_games_that_a_setting_ends_count_as_cut(pong: Callable[..., Settings], changes: dict[str, Any]) -> None:
    settings = pong(**changes)
    played = evaluation.play(evaluation.Contender(lambda s: np.zeros((len(s), 6))), settings, episodes=2, at=(1, 0))
    assert evaluation.last(played).summary()["cut"] == 2


def test_atari_games_are_cut_by_an_evaluations_limit_too() -> None:
    settings = EnvSettings(id="ALE/Pong-v5")
    with contextlib.closing(envs.make(settings, count=1, evaluation=True, max_steps=50)) as env:
        assert env.protocol["time limit, frames"] == 200
    with contextlib.closing(envs.make(settings, count=1, evaluation=True)) as env:
        assert env.protocol["time limit, frames"] == 108_000


def test_arguments_reach_the_environment_and_wrong_ones_get_one_line() -> None:
    frozen = EnvSettings(id="FrozenLake-v1", kwargs={"is_slippery": False, "map_name": "8x8"})
    with contextlib.closing(envs.make(frozen, count=2)) as env:
        assert env.spec.observation_shape == (64,)
        assert env.protocol["arguments"] == "is_slippery=False, map_name='8x8'"
        s_0 = env.reset(np.array([1, 2]))
        for action in (2, 2, 1):
            s_t = env.step(np.array([action, action])).s_t
        assert s_0.argmax(axis=1).tolist() == [0, 0]
        assert s_t.argmax(axis=1).tolist() == [10, 10]
    with pytest.raises(UsageError, match=r"cannot make 'FrozenLake-v1': TypeError: .* keyword argument 'size'"):
        envs.make(EnvSettings(id="FrozenLake-v1", kwargs={"size": 8}), count=1)
    with pytest.raises(UsageError, match=r"env\.kwargs is not for Atari games"):
        envs.make(EnvSettings(id="ALE/Pong-v5", kwargs={"mode": 1}), count=1)
    with pytest.raises(UsageError, match=r"env\.vectorization=async .* leave it out for ALE/Pong-v5"):
        envs.make(EnvSettings(id="ALE/Pong-v5", vectorization="async"), count=1)


SPACES = {
    "Discrete": (spaces.Discrete(5), 5, "Discrete flattened to 5 numbers"),
    "MultiBinary": (spaces.MultiBinary(3), 3, "MultiBinary flattened to 3 numbers"),
    "MultiDiscrete": (spaces.MultiDiscrete([2, 3]), 5, "MultiDiscrete flattened to 5 numbers"),
    "Tuple": (spaces.Tuple([spaces.Discrete(2), spaces.Box(0, 1, (2, 2))]), 6, "Tuple flattened to 6 numbers"),
    "Dict": (spaces.Dict(a=spaces.Discrete(2), b=spaces.Box(-1, 1, (3,))), 5, "Dict flattened to 5 numbers"),
}


@pytest.mark.parametrize("kind", SPACES)
def test_observations_that_are_no_box_are_flattened(kind: str) -> None:
    space, size, told = SPACES[kind]

    def init(self: CartPoleEnv) -> None:
        CartPoleEnv.__init__(self)
        self.observation_space = space

    def reset(self: CartPoleEnv, *, seed: int | None = None, options: object = None) -> Any:
        space.seed(seed)
        return space.sample(), {}

    def step(self: CartPoleEnv, action: int) -> Any:
        return space.sample(), 1.0, False, False, {}

    name = registered(f"Spaces{kind}", __init__=init, reset=reset, step=step)
    with contextlib.closing(envs.make(EnvSettings(id=name), count=2)) as env:
        first, steps = play(env, 3, SEEDS[:2])
        space.seed(12)
        expected = spaces.flatten(space, space.sample())
        np.testing.assert_array_equal(first[1], np.asarray(expected, np.float32))
        assert env.protocol["observations"] == told
        assert steps[-1].s_t.shape == (2, size)


@pytest.mark.parametrize(
    ("observes", "acts", "message"),
    [
        (
            spaces.Box(-1, 1, (0,), np.float32),
            None,
            "observes Box.*, which cannot be flattened to a fixed number of numbers, at",
        ),
        (
            spaces.Sequence(spaces.Discrete(3)),
            None,
            "cannot be flattened to a fixed number of numbers, at least one; register it",
        ),
        (None, spaces.MultiDiscrete([2, 3]), "only Discrete ones are supported; register it with a wrapper that maps"),
        (None, spaces.MultiBinary(3), "only Discrete ones are supported; register it with a wrapper that maps"),
    ],
)
def test_spaces_that_cannot_be_learnt_get_advice(observes: Any, acts: Any, message: str) -> None:
    def init(self: CartPoleEnv) -> None:
        CartPoleEnv.__init__(self)
        self.observation_space, self.action_space = observes or self.observation_space, acts or self.action_space

    with pytest.raises(UsageError, match=message):
        envs.make(EnvSettings(id=registered(f"Advised{type(acts).__name__}", __init__=init)), count=1)


def test_minatar_repeats_no_action_of_the_game_before() -> None:
    """A wrong one would be repeated in a tenth of first steps: of 100 games, in some."""
    env = envs.make(EnvSettings(id="MinAtar/Breakout-v1"), count=1)
    fresh, worn = ([], [])
    for seed in range(100):
        for games, action_before in ((fresh, 0), (worn, 2)):
            env.reset(np.array([1]))
            for _ in range(3):
                env.step(np.array([action_before]))
            first = env.reset(np.array([seed]))
            games.append([first, *(env.step(np.array([1])).s_t for _ in range(3))])
    env.close()
    np.testing.assert_array_equal(fresh, worn)


def test_what_is_there_or_not_is_seen_as_bright_or_dark() -> None:
    env = envs.make(EnvSettings(id="MinAtar/Seaquest-v1"), count=2)
    assert env.spec._replace(declared=()) == EnvSpec((10, 10, 10), 6, "uint8")
    first, steps = play(env, 50, np.array([1, 2]))
    env.close()
    assert {*np.unique(first)} == {0, 255}
    assert all({*np.unique(step.s_t)} == {*np.unique(step.s_next)} == {0, 255} for step in steps)
    assert any(step.last_t.any() for step in steps)


def test_boards_of_bytes_are_those_of_truth_values(monkeypatch: pytest.MonkeyPatch) -> None:
    """MinAtar's source after version 1.0.15 has them."""

    class Newer(BaseEnv):  # type: ignore[misc]
        def __init__(self, **arguments: Any) -> None:
            super().__init__(**arguments)
            self.observation_space = spaces.Box(0, 1, self.game.state_shape(), np.uint8)

        def reset(self, **arguments: Any) -> tuple[np.ndarray, dict[str, Any]]:
            board, info = super().reset(**arguments)
            return board.astype(np.uint8), info

        def step(self, action: int) -> tuple[Any, ...]:
            board, *rest = super().step(action)
            return board.astype(np.uint8), *rest

    def played() -> tuple[np.ndarray, list[np.ndarray]]:
        with contextlib.closing(envs.make(EnvSettings(id="MinAtar/Seaquest-v1"), count=1)) as env:
            first, steps = play(env, 20, np.array([1]))
            return first, [step.s_t for step in steps]

    before = played()
    monkeypatch.setattr("minatar.gym.BaseEnv", Newer)
    np.testing.assert_equal(played(), before)


def test_without_minatar_one_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "minatar.gym", None)
    with pytest.raises(
        UsageError,
        match=r"cannot make 'MinAtar/Breakout-v1': MinAtar is not installed: pip install 'twin-graph\[minatar\]'$",
    ):
        envs.make(EnvSettings(id="MinAtar/Breakout-v1"), count=1)


def test_an_error_in_a_process_of_its_own_is_told_without_the_tracebacks_of_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, recwarn: pytest.WarningsRecorder
) -> None:
    (tmp_path / "failing.py").write_text(FAILING)
    monkeypatch.syspath_prepend(tmp_path)
    env = envs.make(EnvSettings(id="failing:Failing-v0", vectorization="async"), count=3)
    with contextlib.closing(env), pytest.raises(ForeignError, match=r"environment \d, step: RuntimeError: it broke"):
        play(env, 2)
    assert not [str(warning.message) for warning in recwarn if "Worker-" in str(warning.message)]


FAILING = """
import gymnasium
from gymnasium.envs.classic_control import CartPoleEnv

class Failing(CartPoleEnv):
    def step(self, action):
        raise RuntimeError("it broke")

gymnasium.register("Failing-v0", Failing)
"""


PERISHABLE = """
import os, sys
import gymnasium
from gymnasium.envs.classic_control import CartPoleEnv

class Perishable(CartPoleEnv):
    made = 0

    def __init__(self, how, **options):
        super().__init__(**options)
        Perishable.made += 1
        self.how = how
        if how == "second" and Perishable.made > 2:  # the first is only looked at
            raise OSError(98, "Address already in use")

    def step(self, action):
        if self.how == "dies":
            os._exit(9)
        if self.how == "exits":
            sys.exit(3)
        return super().step(action)

    def close(self):
        super().close()
        if self.how == "closes":
            raise RuntimeError("it is gone already")

gymnasium.register("Perishable-v0", Perishable)
"""


@pytest.mark.parametrize(("how", "vectorization", "message"), rows("envs", "dying", "how", "vectorization", "message"))
def test_an_environment_that_ends_or_cannot_be_made_again_is_named(
    how: str, vectorization: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "perishable.py").write_text(PERISHABLE)
    monkeypatch.syspath_prepend(tmp_path)
    kwargs = {"id": "perishable:Perishable-v0", "vectorization": vectorization, "kwargs": {"how": how}}
    try:
        with (
            pytest.raises(ForeignError, match=message),
            contextlib.closing(envs.make(EnvSettings.model_validate(kwargs), count=3)) as env,
        ):
            play(env, 2)
    finally:
        gymnasium.registry.pop("Perishable-v0", None)
        sys.modules.pop("perishable", None)


def test_a_module_of_environments_that_ends_itself_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "script_of_games.py").write_text("import sys\n\nsys.exit(0)\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(UsageError, match=r"cannot make 'script_of_games:My-v0': SystemExit: 0 \(.*games\.py:3, in"):
        envs.make(EnvSettings(id="script_of_games:My-v0"), count=1)


def test_an_error_when_an_environment_is_closed_costs_nothing_that_was_played(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "perishable.py").write_text(PERISHABLE)
    monkeypatch.syspath_prepend(tmp_path)
    settings = EnvSettings.model_validate({"id": "perishable:Perishable-v0", "kwargs": {"how": "closes"}})
    try:
        env = envs.make(settings, count=3)
        play(env, 2)
        with pytest.warns(UserWarning, match="environment 0, close: RuntimeError: it is gone already"):
            env.close()
    finally:
        gymnasium.registry.pop("Perishable-v0", None)
        sys.modules.pop("perishable", None)


REUSING = """
import gymnasium
import numpy as np
from gymnasium import spaces

class Reusing(gymnasium.Env):
    metadata = {"render_modes": ["rgb_array"], "render_fps": 10}
    observation_space = spaces.Box(0, 255, (2,), np.uint8)
    action_space = spaces.Discrete(2)

    def __init__(self, first=0, number="uint8", render_mode=None):
        self.first, self.seen, self.canvas = first, np.zeros(2, number), np.zeros((8, 8, 3), np.uint8)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.seen[:] = self.first
        return self.seen, {"legal": np.arange(int(self.np_random.integers(1, 9)))}

    def step(self, action):
        self.seen[:] = self.seen + 1
        return self.seen, 1.0, False, False, {"step": int(self.seen[0]) if action else {"action": 0}}

    def render(self):
        self.canvas[:] = self.seen[0]
        return self.canvas

gymnasium.register("Reusing-v0", Reusing, max_episode_steps=3)
"""


@pytest.fixture
def reusing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The id of an environment that gives the same array at every step, in `info` what cannot be stacked, and numbers
    of another type than it declares if `number` says so."""
    (tmp_path / "reusing.py").write_text(REUSING)
    monkeypatch.syspath_prepend(tmp_path)
    yield "reusing:Reusing-v0"
    gymnasium.registry.pop("Reusing-v0", None)
    sys.modules.pop("reusing", None)


@pytest.mark.parametrize("number", ["uint8", "int64", "float32"])
@pytest.mark.parametrize("vectorization", ["sync", "async"])
def test_what_an_environment_observes_is_not_what_it_writes_there_later(
    reusing: str, vectorization: str, number: str
) -> None:
    settings = EnvSettings.model_validate(
        {"id": reusing, "vectorization": vectorization, "kwargs": {"first": 40, "number": number}}
    )
    with contextlib.closing(envs.make(settings, count=2)) as env:
        assert env.reset(SEEDS[:2]).tolist() == [[40, 40], [40, 40]]
        steps = [env.step(np.array([0, 1])) for _ in range(3)]
    assert [step.s_t[0, 0] for step in steps] == [41, 42, 43]
    assert [step.s_next[0, 0] for step in steps] == [41, 42, 40]


def test_what_an_environment_draws_is_not_what_it_draws_later(reusing: str) -> None:
    with contextlib.closing(envs.make(EnvSettings(id=reusing), count=1, evaluation=True, screens=True)) as env:
        env.reset(SEEDS[:1])
        drawn = []
        for _ in range(3):
            env.step(np.array([0]))
            drawn.append([int(screen.max()) for screen in env.screens()])
    assert drawn == [[0, 1], [1, 2], [2, 3]]


@pytest.mark.parametrize("vectorization", ["sync", "async"])
@pytest.mark.parametrize(("first", "number", "seen"), [(254, "int64", "256"), (0.5, "float32", "0.5")])
def test_numbers_that_are_not_of_the_declared_type_are_told(
    reusing: str, vectorization: str, first: float, number: str, seen: str
) -> None:
    kwargs = {"first": first, "number": number}
    settings = EnvSettings.model_validate({"id": reusing, "vectorization": vectorization, "kwargs": kwargs})
    env = envs.make(settings, count=2)
    wrong = rf"Reusing-v0, environment \d, (reset|step): observed {seen}, and observation_space says uint8$"
    with contextlib.closing(env), pytest.raises(ForeignError, match=wrong):
        env.reset(SEEDS[:2])
        for _ in range(2):
            env.step(np.array([0, 0]))


@pytest.mark.parametrize("old", ["Pong-v0", "Pong-v4", "Pong-v5", "Pong-ram-v4", "PongNoFrameskip-v4"])
@pytest.mark.parametrize("registered", [True, False])
def test_old_names_of_atari_games_are_refused_before_and_after_ale_py_was_imported(
    monkeypatch: pytest.MonkeyPatch, old: str, registered: bool
) -> None:
    if not registered:
        monkeypatch.delitem(gymnasium.registry, old, raising=False)
    with pytest.raises(UsageError, match=f"^'{old}' is an old name: write ALE/Pong-v5"):
        envs.make(EnvSettings(id=old), count=1)


def test_a_name_of_ones_own_may_be_that_of_a_game(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(gymnasium.registry, "Pong-v4", raising=False)
    gymnasium.register("Pong-v4", CartPoleEnv)
    with contextlib.closing(envs.make(EnvSettings(id="Pong-v4"), count=1)) as env:
        assert env.spec.observation_shape == (4,)


@pytest.mark.parametrize(("high", "info", "seen"), [(1, {}, "0.5"), (255, {"action_mask": np.ones(2)}, "300")])
def test_flags_and_what_comes_with_a_mask_are_of_the_declared_type_too(
    high: int, info: dict[str, Any], seen: str
) -> None:
    class Wrong(gymnasium.Env):  # type: ignore[type-arg]
        observation_space = spaces.Box(0, high, (2,), np.uint8)
        action_space = spaces.Discrete(2)

        def reset(self, **_: object) -> tuple[np.ndarray, dict[str, Any]]:
            return np.zeros(2, np.uint8), info

        def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
            return np.array([float(seen), 0.0]), 0.0, False, False, info

    gymnasium.register("WrongType-v0", Wrong)
    with (
        contextlib.closing(envs.make(EnvSettings(id="WrongType-v0"), count=2)) as env,
        pytest.raises(ForeignError, match=f"WrongType-v0, environment 0.*: observed {seen}.*says uint8"),
    ):
        env.reset(SEEDS[:2])
        env.step(np.array([0, 1]))
    gymnasium.registry.pop("WrongType-v0")


def breakout(settings: EnvSettings, actions: Iterable[int]) -> np.ndarray:
    """The newest frames of a game of Breakout."""
    with contextlib.closing(envs.make(settings, count=1)) as env:
        env.reset(np.array([5]))
        return np.array([env.step(np.array([action])).s_t[0, -1] for action in actions])


def test_sticky_actions_change_the_game() -> None:
    actions = np.random.default_rng(0).integers(0, 4, 60).tolist()
    frames = [breakout(EnvSettings(id="ALE/Breakout-v5", noop_max=0, sticky=p), actions) for p in (0.0, 0.5)]
    assert not np.array_equal(*frames)


@pytest.mark.parametrize("fire", [True, False])
def test_fire_begins_the_game_where_it_is_pressed(*, fire: bool) -> None:
    frames = breakout(EnvSettings(id="ALE/Breakout-v5", noop_max=0, fire_reset=fire), [0] * 10)
    assert (frames[0] != frames[-1]).any() == fire


@pytest.mark.parametrize(
    ("file", "given", "proposed"),
    [
        ("shop.py", "Shop-v0", "shop:Shop-v0"),
        ("shop.py", "Shop", "shop:Shop-v0"),
        ("shops/__init__.py", "Shop-v0", "shops:Shop-v0"),
    ],
)
def test_an_id_that_a_module_here_registers_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: str, given: str, proposed: str
) -> None:
    """By the module's text: who imported it would run it."""
    (tmp_path / file).parent.mkdir(exist_ok=True)
    (tmp_path / file).write_text("raise SystemExit\ngymnasium.register(\n    id='Shop-v0', entry_point='shop:Shop')\n")
    (tmp_path / "about.py").write_text("# 'Shop-v0' is an environment\n")
    (tmp_path / "not-a-module.py").write_text("gymnasium.register('Shop-v0')\n")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match=rf"cannot make '{given}': .*; {file} here registers it: write {proposed}$"):
        envs.make(EnvSettings(id=given), count=1)
