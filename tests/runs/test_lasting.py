"""What outlives an episode in an environment: kept through a kill, lent to evaluations, or named before training."""

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from attempts import end, whole_and_killed
from gymnasium import spaces, wrappers
from gymnasium.envs.classic_control import CartPoleEnv

from twin_graph import envs, notebook
from twin_graph.config.settings import EnvSettings, Settings
from twin_graph.envs import lasting
from twin_graph.errors import ForeignError, UsageError
from twin_graph.evaluation.games import Contender, last, play
from twin_graph.snapshots.run import Run, create
from twin_graph.training.readiness import check_settings

Make = Callable[..., Settings]
Env = gymnasium.Env[Any, Any]


def cartpole_env(**options: Any) -> Env:
    return gymnasium.make("CartPole-v1", **options)


def drawn(**options: Any) -> Env:
    return cartpole_env(**{**options, "render_mode": "rgb_array"})


def screens(env: Env) -> Env:
    """Small pictures of the game as observations, uint8 `[20, 30, 3]`."""
    small = spaces.Box(0, 255, (20, 30, 3), np.uint8)
    return wrappers.TransformObservation(
        wrappers.AddRenderObservation(env), lambda seen: np.ascontiguousarray(seen[::20, ::20]), small
    )


def bounded(env: Env) -> Env:
    box = spaces.Box(-5, 5, (4,), np.float32)
    return wrappers.TransformObservation(env, lambda seen: np.clip(seen, -5, 5), box)


def in_dict(env: Env) -> Env:
    both = spaces.Dict(a=env.observation_space, b=env.observation_space)
    return wrappers.TransformObservation(env, lambda seen: {"a": seen, "b": seen}, both)


#: Gymnasium's wrappers around CartPole; None for those that no environment with Discrete actions and NumPy arrays can
#: have.
WRAPPED: dict[str, Callable[..., Env] | None] = {
    "AddRenderObservation": lambda **o: screens(drawn(**o)),
    "AddWhiteNoise": lambda **o: wrappers.AddWhiteNoise(screens(drawn(**o)), 0.3),
    "ArrayConversion": None,
    "AtariPreprocessing": None,
    "Autoreset": lambda **o: wrappers.Autoreset(cartpole_env(**o)),
    "ClipAction": None,
    "ClipReward": lambda **o: wrappers.ClipReward(cartpole_env(**o), 0.0, 0.5),
    "DelayObservation": lambda **o: wrappers.DelayObservation(cartpole_env(**o), 2),
    "DiscretizeAction": None,
    "DiscretizeObservation": lambda **o: wrappers.DiscretizeObservation(
        bounded(cartpole_env(**o)), 5, multidiscrete=True
    ),
    "DtypeObservation": lambda **o: wrappers.DtypeObservation(cartpole_env(**o), np.float64),
    "FilterObservation": lambda **o: wrappers.FilterObservation(in_dict(cartpole_env(**o)), ["b"]),
    "FlattenObservation": lambda **o: wrappers.FlattenObservation(in_dict(cartpole_env(**o))),
    "FrameStackObservation": lambda **o: wrappers.FrameStackObservation(cartpole_env(**o), 3),
    "GrayscaleObservation": lambda **o: wrappers.GrayscaleObservation(screens(drawn(**o))),
    "HumanRendering": lambda **o: wrappers.HumanRendering(drawn(**o)),
    "JaxToNumpy": None,
    "JaxToTorch": None,
    "MaxAndSkipObservation": lambda **o: wrappers.MaxAndSkipObservation(cartpole_env(**o), 2),
    "NormalizeObservation": lambda **o: wrappers.NormalizeObservation(cartpole_env(**o)),
    "NormalizeReward": lambda **o: wrappers.NormalizeReward(cartpole_env(**o)),
    "NumpyToTorch": None,
    "ObstructView": lambda **o: wrappers.ObstructView(screens(drawn(**o)), 0.3, 2),
    "OrderEnforcing": lambda **o: wrappers.OrderEnforcing(cartpole_env(**o)),
    "PassiveEnvChecker": lambda **o: wrappers.PassiveEnvChecker(cartpole_env(**o)),
    "RecordEpisodeStatistics": lambda **o: wrappers.RecordEpisodeStatistics(cartpole_env(**o)),
    "RecordVideo": lambda **o: wrappers.RecordVideo(drawn(**o), "videos"),
    "RenderCollection": lambda **o: wrappers.RenderCollection(drawn(**o)),
    "RepeatAction": lambda **o: wrappers.RepeatAction(cartpole_env(**o), 2),
    "RescaleAction": None,
    "RescaleObservation": lambda **o: wrappers.RescaleObservation(
        bounded(cartpole_env(**o)), np.float32(-1), np.float32(1)
    ),
    "ReshapeObservation": lambda **o: wrappers.ReshapeObservation(cartpole_env(**o), (2, 2)),
    "ResizeObservation": lambda **o: wrappers.ResizeObservation(screens(drawn(**o)), (10, 10)),
    "StickyAction": lambda **o: wrappers.StickyAction(cartpole_env(**o), 0.3),
    "TimeAwareObservation": lambda **o: wrappers.TimeAwareObservation(cartpole_env(**o)),
    "TimeLimit": lambda **o: wrappers.TimeLimit(cartpole_env(**o), 20),
    "TransformAction": lambda **o: wrappers.TransformAction(cartpole_env(**o), lambda a: 1 - a, spaces.Discrete(2)),
    "TransformObservation": lambda **o: bounded(cartpole_env(**o)),
    "TransformReward": lambda **o: wrappers.TransformReward(cartpole_env(**o), lambda r: r / 2),
}


for name, make in WRAPPED.items():
    if make:
        gymnasium.register(f"With{name}-v0", lambda _make=make, **options: _make(**options), max_episode_steps=500)


def small(cartpole: Make, env_id: str, **changes: Any) -> Settings:
    short = {"train__steps": 240, "train__start_steps": 64, "resume__every_steps": 80, "evaluate__every_steps": 120}
    short |= {"evaluate__episodes": 2}
    return cartpole(**{"env__id": env_id, "loss": "mse", "save__every_updates": 20, **short, **changes})


def noticed(settings: Settings) -> list[str]:
    with contextlib.closing(envs.make(settings.env, count=1)) as env:
        return env.notices(settings.train.steps)


def test_every_wrapper_of_gymnasium_is_tried() -> None:
    assert set(WRAPPED) == set(wrappers.__all__) - {"vector"}


@pytest.mark.parametrize("name", [name for name, make in WRAPPED.items() if make])
@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")
def test_a_run_with_any_wrapper_of_gymnasium_resumes_exactly_or_is_refused_or_named(
    name: str, cartpole: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")
    settings = small(cartpole, f"With{name}-v0", env__count=2)
    try:
        told = noticed(settings)
    except UsageError:  # it needs a package, or closes the windows of others
        return
    whole, killed = whole_and_killed(settings, tmp_path, 180)
    assert (end(killed) == end(whole)) == (not told), told


def test_normalizers_go_on_in_processes_of_their_own(
    cartpole: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "normalizing.py").write_text(
        "import gymnasium\nfrom gymnasium.wrappers import NormalizeObservation\n"
        "gymnasium.register('Normalizing-v0', lambda **o: NormalizeObservation(gymnasium.make('CartPole-v1', **o)))\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    settings = small(cartpole, "normalizing:Normalizing-v0", env__vectorization="async", env__count=2)
    whole, killed = whole_and_killed(settings, tmp_path, 180)
    assert end(killed) == end(whole)


class Quiz(Env):
    """Five questions; the right answer is told by the sign of a number of which only the mean over time is known."""

    observation_space = spaces.Box(-np.inf, np.inf, (1,), np.float32)
    action_space = spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.asked = 0
        return self.question(), {}

    def question(self) -> np.ndarray:
        self.answer = int(self.np_random.integers(2))
        return np.array([100 + self.answer], np.float32)

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        reward = float(action == self.answer)
        self.asked += 1
        return self.question(), reward, self.asked == 5, False, {}


gymnasium.register("Quiz-v0", lambda **options: wrappers.NormalizeObservation(Quiz(**options)))


def by_sign(observations: np.ndarray) -> np.ndarray:
    return np.concatenate([-observations, observations], axis=1)


def test_evaluations_are_lent_the_statistics_of_training(cartpole: Make, train: Callable[[Settings], Run]) -> None:
    settings = small(cartpole, "Quiz-v0")
    run = train(settings)
    store = run.store()
    statistics = store.lasting(store.newest.id)
    fresh = last(play(Contender(by_sign), settings, episodes=20, at=(1, 0))).mean
    lent = last(play(Contender(by_sign, statistics), settings, episodes=20, at=(1, 0)))
    assert (fresh < 4, lent.mean) == (True, 5.0)
    assert statistics["0-NormalizeObservation.obs_rms.mean"][0] == pytest.approx([100.5], abs=0.1)
    assert statistics["0-NormalizeObservation.obs_rms.count"][0] > settings.train.steps  # of all environments


def test_a_snapshot_in_a_notebook_prepares_an_environment_of_ones_own(
    cartpole: Make, train: Callable[[Settings], Run]
) -> None:
    run = notebook.find(train(small(cartpole, "Quiz-v0", act__epsilon_decay_steps=100)).folder)
    env = gymnasium.make("Quiz-v0")
    with run.policy() as policy:
        policy.lend(env)
    observation, _ = env.reset(seed=1)
    assert abs(abs(observation[0]) - 1) < 0.05
    before = observation.copy()
    assert np.array_equal(env.reset(seed=1)[0], before)  # frozen


def test_scores_are_in_the_units_of_the_game(cartpole: Make) -> None:
    """Normalized rewards change their unit while a run is trained: `best` would compare different units."""
    settings = small(cartpole, "WithNormalizeReward-v0")
    worn = {"0-NormalizeReward.return_rms.var": np.array([400.0]), "0-NormalizeReward.return_rms.mean": np.zeros(1)}
    worn |= {"0-NormalizeReward.return_rms.count": np.ones(1), "0-NormalizeReward.discounted_reward": np.zeros((1, 1))}
    always_left = Contender(lambda s: np.tile([1.0, 0.0], (len(s), 1)), worn)
    score = last(play(always_left, settings, episodes=5, at=(1, 0))).mean
    assert score == last(play(Contender(always_left.q_values), cartpole(), episodes=5, at=(1, 0))).mean > 8


class Curriculum(CartPoleEnv):
    """Gravity grows with the number of steps."""

    begins = 0

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.made = 0

    def step(self, action: int) -> Any:
        self.made += 1
        self.gravity = 9.8 + max(0, self.made - self.begins) / 50
        return super().step(action)


class LateCurriculum(Curriculum):
    begins = 50_000


class KeptCurriculum(Curriculum):
    outlives_episodes = ("made",)


class Unseeded(CartPoleEnv):
    """Its chance does not come from the seed."""

    def reset(self, **options: Any) -> Any:
        observation, info = super().reset(**options)
        return observation + np.random.default_rng().uniform(0, 0.01, 4).astype(np.float32), info


class WrongCurriculum(Curriculum):
    outlives_episodes = ("metadata",)


for kind in (Curriculum, LateCurriculum, KeptCurriculum, Unseeded, WrongCurriculum):
    gymnasium.register(f"{kind.__name__}-v0", kind, max_episode_steps=500)


@pytest.mark.parametrize(
    ("env_id", "steps", "named"),
    [
        ("Curriculum-v0", 1_200, "made seems to outlive an episode"),
        ("LateCurriculum-v0", 1_200, None),
        ("LateCurriculum-v0", 100_000, "made seems to outlive an episode"),
        ("KeptCurriculum-v0", 1_200, None),
        ("Unseeded-v0", 1_200, "something outlives an episode, or chance does not come from self.np_random"),
        ("CartPole-v1", 1_200, None),
        ("WithRecordEpisodeStatistics-v0", 1_200, None),
        ("MountainCar-v0", 1_200, None),
    ],
)
def test_other_state_that_changes_what_follows_a_reset_is_named(
    env_id: str, steps: int, named: str | None, cartpole: Make
) -> None:
    told = noticed(cartpole(env__id=env_id, train__steps=steps))
    assert [named in line for line in told] == [True] if named else told == []


def test_a_curriculum_that_says_what_to_keep_resumes_exactly_and_is_evaluated_as_it_stands(
    cartpole: Make, tmp_path: Path
) -> None:
    whole, killed = whole_and_killed(small(cartpole, "KeptCurriculum-v0"), tmp_path, 180)
    assert end(killed) == end(whole)
    store = whole.store()
    assert store.lasting(store.newest.id)["0-KeptCurriculum.made"][0] > 0


def test_what_cannot_be_kept_is_told(cartpole: Make) -> None:
    with pytest.raises(ForeignError, match=r"WrongCurriculum\.metadata outlives an episode, and is not a number"):
        envs.make(EnvSettings(id="WrongCurriculum-v0"), count=1)


def test_workers_share_no_statistics(cartpole: Make) -> None:
    settings = cartpole(env__id="WithNormalizeObservation-v0", workers__count=2)
    with (
        contextlib.closing(envs.make(settings.env, count=1)) as env,
        pytest.raises(UsageError, match=r"outlives its episodes \(0-NormalizeObservation.*--set workers\.count=0"),
    ):
        check_settings(settings, env)


def test_statistics_of_several_environments_are_those_of_all_that_they_saw() -> None:
    seen = np.random.default_rng(1).normal(5, 3, (3, 50, 2)).astype(np.float32)
    each = []
    for observations in seen:
        statistics = wrappers.utils.RunningMeanStd(shape=(2,), dtype=np.float32)
        for observation in observations:
            statistics.update(observation[None])
        each.append(statistics)
    parts = {f"x.{part}": np.array([getattr(one, part) for one in each]) for part in ("mean", "var", "count")}
    pooled = lasting.pooled(parts)
    np.testing.assert_allclose(pooled["x.mean"], [seen.mean((0, 1))], rtol=1e-4)
    np.testing.assert_allclose(pooled["x.var"], [seen.var((0, 1))], rtol=1e-3)
    assert pooled["x.count"] == pytest.approx(150, abs=0.01)


def test_an_older_resume_point_without_statistics_is_told(cartpole: Make, tmp_path: Path) -> None:
    from twin_graph.snapshots.points import ENVIRONMENT
    from twin_graph.training.readiness import ready

    settings = small(cartpole, "WithNormalizeObservation-v0")
    run = create(tmp_path / "run", settings)
    from attempts import attempt

    attempt(run, 180)
    point = run.points().newest()
    assert point
    older = point.model_copy(update={"files": tuple(f for f in point.files if not f.name.startswith(ENVIRONMENT))})
    with ready(settings, run.folder, (run, point)) as begun:
        assert begun.notices == []
    with ready(settings, run.folder, (run, older)) as begun:
        assert "has no statistics of the environments" in begun.notices[0]


class Rising(CartPoleEnv):
    """Its level begins as a whole number and becomes another."""

    outlives_episodes = "level"

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.level = 0

    def step(self, action: int) -> Any:
        self.level += 0.75
        return super().step(action)


class LaterSet(CartPoleEnv):
    outlives_episodes = ("later",)

    def reset(self, **options: Any) -> Any:
        self.later = 1
        return super().reset(**options)


class Listing(CartPoleEnv):
    outlives_episodes = ("levels",)

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.levels = [1, 2]


for kind in (Rising, LaterSet, Listing):
    gymnasium.register(f"{kind.__name__}-v0", kind)


def test_a_number_keeps_its_fraction_though_it_began_without() -> None:
    env, other = Rising(), Rising()
    env.reset(seed=1)
    env.step(0)
    lasting.lend(other, lasting.kept(env))
    assert (other.level, type(other.level)) == (0.75, float)


@pytest.mark.parametrize(
    ("name", "message"),
    [("LaterSet", "later outlives an episode, and __init__ does not set it"), ("Listing", "levels .* is not a number")],
)
def test_what_is_kept_is_set_from_the_beginning_and_of_numbers(name: str, message: str) -> None:
    with pytest.raises(ForeignError, match=message):
        envs.make(EnvSettings(id=f"{name}-v0"), count=1)


def test_an_environment_may_be_prepared_for_one_snapshot_after_another() -> None:
    env = wrappers.TimeAwareObservation(wrappers.NormalizeReward(gymnasium.make("CartPole-v1")))
    for _ in range(3):
        lasting.freeze(env)
        env.reset(seed=1)
        assert env.step(0)[1] == 1.0
