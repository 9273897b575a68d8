"""The Blob environment, through Gymnasium's own checks and by hand."""

from pathlib import Path

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from test_resume import attempt, end

from twin_graph import config
from twin_graph.envs import blob
from twin_graph.errors import UsageError
from twin_graph.model import ModelSpec
from twin_graph.snapshots.run import create


@pytest.fixture
def env() -> gymnasium.Env:
    return gymnasium.make(blob.ID, render_mode="rgb_array")


def square(image: np.ndarray, colour: tuple[int, int, int]) -> np.ndarray:
    [at] = np.argwhere((image == colour).all(axis=2))
    return np.asarray(at)


def test_gymnasiums_own_checks_pass(env: gymnasium.Env) -> None:
    check_env(env.unwrapped)


def test_three_squares_of_their_own_and_the_same_for_a_seed(env: gymnasium.Env) -> None:
    boards = [env.reset(seed=seed)[0] for seed in (7, 7, 8)]
    assert np.array_equal(boards[0], boards[1])
    assert not np.array_equal(boards[0], boards[2])
    for seed in range(50):
        image, _ = env.reset(seed=seed)
        assert image.shape == (10, 10, 3)
        assert (image.any(axis=2)).sum() == 3


def test_every_action_moves_as_it_says_and_not_beyond_the_board(env: gymnasium.Env) -> None:
    for action, move in enumerate(blob.MOVES):
        for seed in range(20):
            image, _ = env.reset(seed=seed)
            before = square(image, blob._PLAYER)
            after, *_ = env.step(action)
            assert square(after, blob._PLAYER).tolist() == np.clip(before + move, 0, 9).tolist()
    assert len({tuple(move) for move in blob.MOVES}) == 9


def test_rewards_and_ends(env: gymnasium.Env) -> None:
    seen: dict[float, tuple[bool, bool]] = {}
    for seed in range(60):
        image, _ = env.reset(seed=seed)
        goal = square(image, blob._FOOD if seed % 2 else blob._ENEMY)
        for _ in range(12):
            step = np.sign(goal - square(image, blob._PLAYER))
            image, reward, terminated, truncated, _ = env.step(int((step == blob.MOVES).all(axis=1).argmax()))
            seen[float(reward)] = terminated, truncated
            if terminated:
                break
    assert seen == {-1.0: (False, False), 25.0: (True, False), -300.0: (True, False)}


def test_an_episode_is_cut_after_200_steps(env: gymnasium.Env) -> None:
    env.reset(seed=0)
    ends = [env.step(8)[2:4] for _ in range(200)]
    assert ends == [(False, False)] * 199 + [(False, True)]


def test_it_is_rendered_as_an_image(env: gymnasium.Env) -> None:
    env.reset(seed=0)
    picture = env.render()
    assert isinstance(picture, np.ndarray)
    assert picture.shape == (300, 300, 3)
    assert picture.dtype == np.uint8


def test_its_network_trains_on_it(tmp_path: Path) -> None:
    small = {
        "env.id": blob.ID,
        "network": "blob",
        "train.steps": 300,
        "train.start_steps": 200,
        "resume.every_steps": 100,
        "evaluate.episodes": 0,
    }
    settings = config.load("cartpole", small.items())
    whole, killed = (create(tmp_path / name, settings) for name in ("whole", "killed"))
    attempt(whole)
    attempt(killed, 250)
    attempt(killed)
    assert end(whole) == end(killed)


def test_its_network_refuses_what_is_no_image() -> None:
    settings = config.load("cartpole", [("network", "blob")])
    with pytest.raises(UsageError, match="network=blob needs images"):
        ModelSpec.of(settings, (4,), np.float32, 2)
