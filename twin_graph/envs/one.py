"""One Gymnasium environment of a vector: what it gives becomes arrays, and its errors say which it is."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import gymnasium
import numpy as np
from gymnasium import spaces

from twin_graph.envs import lasting, probe
from twin_graph.envs.masks import MaskReader, check_none_later
from twin_graph.errors import ForeignError, UsageError, foreign_error

if TYPE_CHECKING:
    from twin_graph.envs.observations import Reading

_SHORT = 40  # characters of a value that is named


class One(gymnasium.Wrapper[Any, Any, Any, Any]):
    """One environment, whose observations are arrays of their own: it is reset before anybody copies the last one.

    It has no `info`, which nobody reads and which Gymnasium cannot always stack over environments. An error inside it,
    and an observation of another shape than it declares, is a `ForeignError` that says where it was raised.

    Args:
      env: with Discrete actions.
      reading: makes arrays of what it gives.
      name: for messages.

    Attributes:
      name: as given.
      seen: the newest observation.
      masked: whether it ends with a mask of legal actions.
    """

    def __init__(self, env: gymnasium.Env[Any, Any], reading: Reading, name: str) -> None:
        super().__init__(env)
        self._reading, self.name = reading, name
        self.seen, self.masked = np.empty(0), reading.mask is not None
        assert isinstance(env.action_space, spaces.Discrete)
        self._mask = MaskReader(reading.mask, env.action_space, name) if reading.mask else None
        low, high = (0, 255) if reading.dtype == np.uint8 else (-np.inf, np.inf)
        self.observation_space = spaces.Box(low, high, reading.shape, reading.dtype.type)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        try:
            answer = self.env.reset(seed=seed, options=options)
            if not (isinstance(answer, tuple) and len(answer) == 2 and isinstance(answer[1], dict)):
                raise self._unexpected("reset", answer, "(observation, info)")
            return self._read("reset", *answer), {}
        except ForeignError:
            raise
        except (Exception, SystemExit) as error:
            raise foreign_error(f"{self.name}, reset", error) from error

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        try:
            answer = self.env.step(action)
            if not (isinstance(answer, tuple) and len(answer) == 5 and isinstance(answer[4], dict)):
                raise self._unexpected("step", answer, "(observation, reward, terminated, truncated, info)")
            observation, reward, terminated, truncated, info = answer
            if not _is_number(reward):
                raise self._unexpected("step", reward, "a number", "a reward that is ")
            for name, flag in (("terminated", terminated), ("truncated", truncated)):
                if not (_is_number(flag) and flag in (0, 1)):
                    raise self._unexpected("step", flag, "True or False", f"{name} that is ")
            told = float(reward), bool(terminated), bool(truncated)
            return self._read("step", observation, info, terminated=told[1], truncated=told[2]), *told, {}
        except ForeignError:
            raise
        except (Exception, SystemExit) as error:
            raise foreign_error(f"{self.name}, step", error) from error

    def changes(self, horizon: int) -> str | None:
        """See `twin_graph.envs.probe.changes`."""
        return probe.changes(self, horizon)

    def close(self) -> None:
        try:
            self.env.close()
        except (Exception, SystemExit) as error:  # what was played is played
            warnings.warn(str(foreign_error(f"{self.name}, close", error)), stacklevel=1)

    @property
    def lasting(self) -> dict[str, np.ndarray]:
        """See `twin_graph.envs.lasting.kept`. May be set."""
        return lasting.kept(self.env)

    @lasting.setter
    def lasting(self, arrays: Mapping[str, np.ndarray]) -> None:
        lasting.lend(self.env, arrays)

    def _unexpected(self, method: str, answer: Any, expected: str, what: str = "") -> ForeignError:
        return ForeignError(
            f"{self.name}, {method}: it returned {what}{_described(answer)}, and must return {expected}"
        )

    def _read(
        self,
        method: str,
        observation: Any,
        info: Mapping[str, Any],
        *,
        terminated: bool = False,
        truncated: bool = False,
    ) -> np.ndarray:
        where = f"{self.name}, {method}"
        if self._mask is None:
            check_none_later(self.name, info)
            self.seen = self._reading.array(observation, where)
            return self.seen
        mask = self._mask.mask
        answer = info if mask.place == "info" else observation
        legal = self._mask.read(self.env, method, answer, terminated=terminated)
        if not terminated and not legal.any():
            on = "was truncated, not terminated" if truncated else "goes on"
            raise ForeignError(f"{where}: {mask.name} forbids every action, and the episode {on}")
        self.seen = self._reading.array(observation, where, legal)
        return self.seen


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float | np.number | np.bool_) or (isinstance(value, np.ndarray) and value.ndim == 0)


def _described(answer: Any) -> str:
    """What something is, in a few words."""
    if isinstance(answer, tuple):
        return f"a tuple of {len(answer)}: ({', '.join(map(_described, answer[:6]))})"
    if isinstance(answer, np.ndarray):
        return f"an array of shape {list(answer.shape)}"
    short = repr(answer)
    return f"{type(answer).__name__} {short}" if len(short) <= _SHORT else f"a {type(answer).__name__}"


class Drawn(gymnasium.Wrapper[Any, Any, Any, Any]):
    """One environment that is drawn for people. If that fails, the game continues without pictures."""

    def __init__(self, make: Callable[..., gymnasium.Env[Any, Any]], name: str) -> None:
        self._failed: ForeignError | UsageError | None = None
        try:
            env = make(render_mode="rgb_array")
        except ForeignError as error:
            self._failed, env = error, make()
        super().__init__(env)
        self._name = name
        self._now = np.empty(0)
        self._shown: list[np.ndarray] = []

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        answer = self.env.reset(seed=seed, options=options)
        self._draw()
        return answer

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        answer = self.env.step(action)
        before = self._now
        self._draw()
        self._shown = [before, self._now]
        return answer

    def shown(self) -> list[np.ndarray]:
        """See `VectorEnv.screens`."""
        if self._failed:
            raise self._failed
        return self._shown

    def _draw(self) -> None:
        if self._failed is None:
            try:
                self._now = self._rendered()
            except (ForeignError, UsageError) as error:
                self._failed = error

    def _rendered(self) -> np.ndarray:
        try:
            screen = np.array(self.env.render())  # some draw the next one into the same array
        except gymnasium.error.DependencyNotInstalled as error:
            raise UsageError(f"{self._name} cannot be drawn: {first_sentence(error)}") from None
        except (Exception, SystemExit) as error:
            raise foreign_error(f"{self._name}, render", error) from error
        if screen.ndim != 3 or screen.shape[2] != 3 or screen.dtype != np.uint8 or not screen.size:
            raise ForeignError(f"{self._name}, render: it gave {screen.dtype}{list(screen.shape)}, not uint8 [H, W, 3]")
        return screen


def first_sentence(error: Exception) -> str:
    """The first sentence of a message that may have many lines, without its end."""
    return str(error).split("\n")[0].split(". ")[0].rstrip(".")
