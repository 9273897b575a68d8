"""Looks for what outlives an episode in an environment and is not kept: a resumed run could not continue the same."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import gymnasium
import numpy as np
from gymnasium import spaces

from twin_graph.envs.lasting import layers
from twin_graph.errors import ForeignError

if TYPE_CHECKING:
    from twin_graph.envs.one import One

_SEED = 2_147_483_629  # of no training environment, and of no evaluation
_LOOKED_AT = 64  # agent steps after a reset
_BETWEEN = 300  # agent steps of other games
_SECONDS = 0.5  # after which no more of these are made

_Game = list[tuple[Any, ...]]


def changes(env: One, horizon: int) -> str | None:
    """Whether what follows a reset with a seed depends on what was before, which `lasting` does not keep.

    Plays the same actions after two resets with one seed, other games in between. What has grown meanwhile is then set
    to what it may be at the end of training: a curriculum may begin late.

    Args:
      env: a new one; it is of no other use afterwards.
      horizon: agent steps of training.

    Returns:
      The names of attributes that seem to be the reason, as words, perhaps empty; None if nothing depends.
    """
    lasting = env.lasting
    fresh, first = _game(env, lasting)
    played, steps = _other_games(env), len(first) - 1
    worn, again = _game(env, lasting, steps)
    outlived = {name: value for name, value in worn.items() if fresh.get(name, value) != value}
    if not _equal(first, again):
        return _words(outlived)
    late = [
        name
        for name, value in outlived.items()
        if (game := _game_with(env, lasting, (name, value * max(1.0, horizon / played)), steps))
        and not _equal(first, game)
    ]
    return _words(late) if late else None


def _words(names: Any) -> str:
    return ", ".join(dict.fromkeys(name.partition("-")[2] for name in names))


def _actions(env: One) -> Iterator[int]:
    """The same for each game, all of them legal."""
    assert isinstance(env.action_space, spaces.Discrete)
    n_actions, start, masked = int(env.action_space.n), int(env.action_space.start), env.masked
    random = np.random.default_rng(_SEED)
    while True:
        legal = np.flatnonzero(env.seen[-n_actions:]) if masked else np.arange(n_actions)
        yield start + int(legal[int(random.integers(len(legal)))] if len(legal) else 0)


def _game(
    env: One, lasting: Mapping[str, np.ndarray], steps: int | None = None
) -> tuple[dict[str, int | float], _Game]:
    """A reset with the seed, where this is kept: the numbers that the environment has then, and what is seen from there
    on, to the end of the game or for so many steps; by default, for a while."""
    env.lasting, ends = lasting, time.monotonic() + _SECONDS
    seen: _Game = [_finite(env, env.reset(seed=_SEED))]
    numbers = _numbers(env)
    for action in itertools.islice(_actions(env), _LOOKED_AT if steps is None else steps):
        seen.append(_finite(env, env.step(action)))
        if seen[-1][2] or seen[-1][3] or (steps is None and time.monotonic() > ends):
            break
    return numbers, seen


def _other_games(env: One) -> int:
    """Plays on; returns the number of steps made."""
    ends, steps = time.monotonic() + _SECONDS, 0
    env.reset()
    for action in itertools.islice(_actions(env), _BETWEEN):
        _, _, terminated, truncated, _ = _finite(env, env.step(action))
        steps += 1
        if terminated or truncated:
            env.reset()
        if time.monotonic() > ends:
            break
    return steps


def _finite(env: One, answer: tuple[Any, ...]) -> tuple[Any, ...]:
    """What an environment returned. Raises `ForeignError` where a number of it is NaN or infinite."""
    for what, value in zip(("observation", "reward"), answer[:2], strict=True):
        if not isinstance(value, dict) and not np.isfinite(value).all():
            wrong = np.ravel(value)[~np.isfinite(np.ravel(value))][0]
            raise ForeignError(f"{env.name}: the {what} is {wrong}, and must be finite")
    return answer


def _equal(first: _Game, again: _Game) -> bool:
    return len(first) == len(again) and all(
        np.array_equal(a[0], b[0], equal_nan=True) and a[1:-1] == b[1:-1] for a, b in zip(first, again, strict=True)
    )


def _numbers(env: gymnasium.Env[Any, Any]) -> dict[str, int | float]:
    """The attributes of all layers that are numbers, by layer and name."""
    return {
        f"{i}-{name}": value
        for i, layer in enumerate(layers(env))
        for name, value in vars(layer).items()
        if isinstance(value, int | float) and not isinstance(value, bool)
    }


def _game_with(env: One, lasting: Mapping[str, np.ndarray], number: tuple[str, float], steps: int) -> _Game:
    """What is seen where an attribute is another number; nothing if it cannot be set."""
    name, value = number
    place, _, attribute = name.partition("-")
    layer = layers(env)[int(place)]
    before = getattr(layer, attribute)
    try:
        setattr(layer, attribute, type(before)(value))
        return _game(env, lasting, steps)[1]
    except Exception:  # it was never meant to be set
        return []
    finally:
        setattr(layer, attribute, before)
