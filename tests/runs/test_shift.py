"""Random shifts: images moved as NumPy's padding and slicing move them, the same in runs of one seed."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from attempts import end, whole_and_killed

from twin_graph.agent.actor import Actor
from twin_graph.base.counters import Tally
from twin_graph.config.settings import Settings
from twin_graph.envs import EnvSpec
from twin_graph.errors import UsageError
from twin_graph.replay.augmentation import shift
from twin_graph.replay.ring import Batch
from twin_graph.snapshots.run import Run
from twin_graph.twin.model import ModelSpec

Make = Callable[..., Settings]


def padded(image: np.ndarray, pixels: int, down: int, right: int) -> np.ndarray:
    """DrQ's way: repeat the border, then cut out a window."""
    whole = np.pad(image, [(0, 0), (pixels, pixels), (pixels, pixels)], "edge")
    height, width = image.shape[1:]
    return whole[:, pixels - down :, pixels - right :][:, :height, :width]


@pytest.mark.parametrize("pixels", [1, 4])
def test_an_image_is_cut_out_of_a_padded_one(pixels: int) -> None:
    images = np.random.default_rng(1).integers(0, 256, (300, 2, 9, 12)).astype(np.uint8)
    moved = images.copy()
    shift(moved, pixels, np.random.default_rng(2))
    drawn = set()
    for before, after in zip(images, moved, strict=True):
        fitting = [
            (down, right)
            for down in range(-pixels, pixels + 1)
            for right in range(-pixels, pixels + 1)
            if np.array_equal(padded(before, pixels, down, right), after)
        ]
        assert len(fitting) == 1
        drawn.add(fitting[0])
    assert len(drawn) > 0.9 * (2 * pixels + 1) ** 2


def test_what_is_learnt_from_is_moved(pong: Make, trained: Callable[[Settings], Run]) -> None:
    run = trained(pong(train__random_shift=4))
    still = trained(pong())
    assert end(run)[0] != end(still)[0]


@pytest.mark.parametrize("channels", [4, 7])
def test_channels_are_not_moved(cartpole: Make, channels: int) -> None:
    """What a channel of a board means is its place among the channels."""
    settings = cartpole(network="minatar", train__random_shift=2)
    size, spec = settings.train.examples, EnvSpec((10, 10, channels), 3, "uint8")
    boards = np.zeros((2, size, 10, 10, channels), np.uint8)
    boards[..., 2:8, 2:8, 1] = 1
    rest = dict.fromkeys(set(Batch._fields) - {"s_tm1", "s_t"}, np.zeros(size))
    before = boards.copy()
    Actor(settings, Tally(1), spec, 2)._shift(Batch(s_tm1=boards[0], s_t=boards[1], **rest), range(1))
    np.testing.assert_array_equal(boards.sum(axis=(2, 3)), before.sum(axis=(2, 3)))
    assert not np.array_equal(boards, before)


@pytest.mark.parametrize("network", ["mlp", "twin_graph.twin.networks:board"])
def test_what_may_be_channels_is_not_moved(cartpole: Make, network: str) -> None:
    settings = cartpole(network=network, train__random_shift=2)
    with pytest.raises(
        UsageError, match=rf"network={network} does not say which axis of \[10, 10, 6\] has their channels"
    ):
        ModelSpec.of(settings, EnvSpec((10, 10, 6), 3, "uint8"))
    assert ModelSpec.of(settings, EnvSpec((84, 84, 3), 3, "uint8"))
    assert ModelSpec.of(settings, EnvSpec((4, 84, 84), 3, "uint8", stack=4))


def test_a_shift_is_smaller_than_the_image(cartpole: Make) -> None:
    settings = cartpole(network="minatar", train__random_shift=10)
    with pytest.raises(UsageError, match=r"train\.random_shift=10 is not less than the image's 10 pixels"):
        ModelSpec.of(settings, EnvSpec((10, 10, 4), 3, "uint8"))


@pytest.mark.parametrize("changes", [{"train__chunk_steps": 16}, {"train__chunk_steps": 0, "train__target_q": False}])
def test_a_run_with_shifts_that_was_killed_ends_as_one_that_was_not(
    pong: Make, tmp_path: Path, changes: dict[str, Any]
) -> None:
    settings = pong(train__random_shift=2, **changes)
    whole, killed = whole_and_killed(settings, tmp_path, settings.train.steps * 3 // 4)
    assert end(killed) == end(whole)


def test_minibatches_are_moved_alike_sampled_together_or_one_by_one(pong: Make) -> None:
    settings = pong(train__random_shift=3)
    size, spec = settings.train.examples, EnvSpec((4, 84, 84), 6, "uint8", stack=4)
    images = np.random.default_rng(1).integers(0, 256, (2, 2 * size, *spec.observation_shape)).astype(np.uint8)
    rest = dict.fromkeys(set(Batch._fields) - {"s_tm1", "s_t"}, np.zeros(2 * size))
    together, alone = (Batch(s_tm1=images[0].copy(), s_t=images[1].copy(), **rest) for _ in range(2))
    actor = Actor(settings, Tally(1), spec, 2)
    actor._shift(together, range(5, 7))
    for i, number in enumerate((5, 6)):
        actor._shift(Batch(*(array[i * size : (i + 1) * size] for array in alone)), range(number, number + 1))
    np.testing.assert_array_equal(together.s_tm1, alone.s_tm1)
    np.testing.assert_array_equal(together.s_t, alone.s_t)
    assert not np.array_equal(together.s_tm1[0], images[0][0])


def test_what_is_no_image_is_refused_before_a_run_begins(cartpole: Make, train: Callable[[Settings], Run]) -> None:
    with pytest.raises(
        UsageError, match=r"random_shift=4 moves images, and CartPole-v1 gives .* \[4\]; use --set train"
    ):
        train(cartpole(train__random_shift=4))
