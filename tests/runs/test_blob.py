"""The Blob environment, through Gymnasium's own checks and by hand."""

import contextlib
from pathlib import Path

import gymnasium
import numpy as np
import pytest
from attempts import attempt, end, whole_and_killed
from gymnasium.utils.env_checker import check_env

from twin_graph import config
from twin_graph.agent.agent import Agent
from twin_graph.envs import EnvSpec, blob
from twin_graph.errors import UsageError
from twin_graph.snapshots.run import create
from twin_graph.twin import networks
from twin_graph.twin.model import ModelSpec


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


def test_its_preset_learns_when_the_replay_is_full_and_resumes_exactly(tmp_path: Path) -> None:
    small = {
        "env.count": 1,
        "train.every_steps": 1,
        "train.steps": 260,
        "train.start_steps": 200,
        "train.batch_size": 16,
        "replay.capacity_steps": 200,
        "twin.threads": 1,
        "resume.every_steps": 100,
        "evaluate.episodes": 0,
    }
    settings = config.load("blob", small.items())
    whole, killed = whole_and_killed(settings, tmp_path, 240)
    assert end(whole) == end(killed)
    point = whole.points().newest()
    assert point is not None
    assert point.counters.updates == 60


def test_get_qs_gives_the_online_twins_values_of_one_observation(env: gymnasium.Env, tmp_path: Path) -> None:
    run = create(tmp_path / "run", config.load("blob", [("twin.threads", 1)]))
    boards = np.stack([env.reset(seed=seed)[0] for seed in range(3)])
    with Agent(run, EnvSpec((10, 10, 3), 9, "uint8")) as agent:
        q = agent.q_values(boards)
        for board, values in zip(boards, q, strict=True):
            one = agent.get_qs(board)
            assert (one.shape, one.dtype) == ((9,), np.float32)
            np.testing.assert_allclose(one, values, rtol=1e-5, atol=1e-6)
    assert not np.allclose(q[0], q[1])


def test_its_network_refuses_what_is_no_image() -> None:
    settings = config.load("cartpole", [("network", "blob")])
    for side, fits in ((9, False), (10, True)):
        with contextlib.nullcontext() if fits else pytest.raises(UsageError, match=r"needs images .* of 10x10 or more"):
            ModelSpec.of(settings, EnvSpec((side, 12, 3), 2, "uint8"))
    with pytest.raises(UsageError, match="network=blob needs images"):
        ModelSpec.of(settings, EnvSpec((4,), 2))


@pytest.mark.usefixtures("graphs_of_its_own")
def test_its_network_is_trained_with_dropout(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    settings = config.load("blob", [("train.steps", 1_200), ("train.start_steps", 1_000), ("evaluate.episodes", 0)])
    ends = []
    for name, dropout in (("with", networks.dropout), ("without", lambda x, rate, seed: x)):
        monkeypatch.setattr(networks, "dropout", dropout)
        attempt(
            run := create(tmp_path / name, config.replace(settings, [("twin.threads", 1), ("twin.compiled", False)]))
        )
        ends.append(end(run)[0])
    assert ends[0] != ends[1]
