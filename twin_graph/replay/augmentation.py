"""Random shifts of images, so that a minibatch never shows the same picture twice (Kostrikov et al. 2021, DrQ)."""

import numpy as np


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
