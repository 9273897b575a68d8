"""Counter-based random streams: a draw depends on (seed, purpose, counter) alone, not on what happened before."""

import enum
from typing import Any

import numpy as np


class Purpose(enum.IntEnum):
    """What a stream is for. Numbers are part of a run's identity: never reuse one."""

    ACT = 1
    SAMPLE = 2
    ENVIRONMENT = 3
    EVALUATION_ENVIRONMENT = 4
    EVALUATION_ACT = 5
    BOOTSTRAP = 6
    TARGET = 7
    HELD_OUT = 8
    WHO_LEARNS = 9
    WHO_ACTS = 10
    OPPONENT = 11
    TOURNAMENT = 12
    OPENING = 13
    SHIFT = 14
    TARGET_OF_B = 15
    NOISE = 16
    NOISE_OF_TARGET = 17
    NOISE_OF_ACTING = 18


def stream(seed: int, purpose: Purpose, counter: int) -> np.random.Generator:
    """A separate generator for each (seed, purpose, counter), each with 2**194 numbers before the next begins."""
    key = np.array([seed, purpose], dtype=np.uint64)
    return np.random.Generator(np.random.Philox(key=key, counter=[0, 0, 0, counter]))


class Streams:
    """The streams of one purpose, one at a time, from one generator: making a new one takes ten times as long.

    Args:
      seed, purpose: see `stream`.
    """

    def __init__(self, seed: int, purpose: Purpose) -> None:
        self._generator = stream(seed, purpose, 0)
        self._beginning: Any = self._generator.bit_generator.state

    def at(self, counter: int) -> np.random.Generator:
        """What `stream` returns for this counter, until this is called again."""
        self._beginning["state"]["counter"][3] = counter
        self._generator.bit_generator.state = self._beginning
        return self._generator


class NoiseKeys:
    """Keys of what TensorFlow's stateless ops draw, one for each counter.

    Args:
      seed, purpose: see `stream`.
      draws: whether anything is drawn.
    """

    def __init__(self, seed: int, purpose: Purpose, *, draws: bool) -> None:
        self._streams = Streams(seed, purpose) if draws else None

    def at(self, counter: int) -> np.ndarray | None:
        """Int32 `[2]`, not negative, also if 1 is added, which makes another key; None if nothing is drawn."""
        return self._streams.at(counter).integers(0, 2**31 - 1, size=2, dtype=np.int32) if self._streams else None


def environment_seeds(seed: int, purpose: Purpose, counter: int, count: int) -> np.ndarray:
    """`count` seeds for emulators: int64 `[count]` in [0, 2**31), the range that ALE takes."""
    return stream(seed, purpose, counter).integers(0, 2**31, size=count, dtype=np.int64)
