"""Random shifts of images, so that a minibatch never shows the same picture twice (Kostrikov et al. 2021, DrQ)."""

import numpy as np

from twin_graph.envs import EnvSpec
from twin_graph.errors import UsageError
from twin_graph.networks import channels_axis
from twin_graph.settings import Settings


def check(settings: Settings, env: EnvSpec) -> None:
    """Raises `UsageError` if `train.random_shift` cannot move what the environment shows."""
    pixels, shape = settings.train.random_shift, env.observation_shape
    if not pixels:
        return
    moves = f"train.random_shift={pixels} moves images, and"
    if len(shape) != 3:
        raise UsageError(
            f"{moves} {settings.env.id} gives observations of shape {list(shape)}; use --set train.random_shift=0"
        )
    channels = channels_axis(settings.network, env)
    if channels is None:
        raise UsageError(
            f"{moves} network={settings.network} does not say which axis of {list(shape)} has their channels; "
            "use --set train.random_shift=0, or another network"
        )
    side = min(size for axis, size in enumerate(shape) if axis != channels)
    if pixels >= side:
        raise UsageError(
            f"train.random_shift={pixels} is not less than the image's {side} pixels; choose less, e.g. 4 for 84"
        )


def shift(images: np.ndarray, pixels: int, random: np.random.Generator) -> None:
    """Moves each image by up to `pixels` vertically and horizontally, each shift equally likely, its frames together.

    The space that this leaves is filled by repeating the border's pixels.

    Args:
      images: `[B, frames, H, W]`, changed in place.
      pixels: the most.
      random: draws two numbers an image, whatever they are.
    """
    for image, (down, right) in zip(images, random.integers(-pixels, pixels + 1, (len(images), 2)), strict=True):
        _move(image, down)
        _move(image.swapaxes(1, 2), right)


def _move(image: np.ndarray, down: int) -> None:
    """Moves `[frames, H, W]` along its second axis."""
    if down > 0:
        image[:, down:] = image[:, :-down].copy()
        image[:, :down] = image[:, down : down + 1]
    elif down < 0:
        image[:, :down] = image[:, -down:].copy()
        image[:, down:] = image[:, down - 1 : down]
