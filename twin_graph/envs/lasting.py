"""What outlives an episode in an environment: kept with snapshots and resume points, and lent to evaluations.

Gymnasium's normalizers have running statistics. A class of one's own names its attributes of this kind:

    class Curriculum(gymnasium.Wrapper):
        outlives_episodes = ("steps",)  # numbers or arrays
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import gymnasium
import numpy as np
from gymnasium.wrappers import NormalizeObservation, NormalizeReward
from gymnasium.wrappers.utils import RunningMeanStd

from twin_graph.errors import ForeignError

_STATISTICS = "mean", "var", "count"  # of a `RunningMeanStd`


def layers(env: gymnasium.Env[Any, Any]) -> list[gymnasium.Env[Any, Any]]:
    """An environment and all that it wraps, the innermost first."""
    found = [env]
    while isinstance(found[-1], gymnasium.Wrapper):
        found.append(found[-1].env)
    return found[::-1]


def _names(layer: gymnasium.Env[Any, Any]) -> tuple[str, ...]:
    """The attributes of one of these layers that outlive an episode."""
    if isinstance(layer, NormalizeObservation):
        return ("obs_rms",)
    if isinstance(layer, NormalizeReward):
        return "return_rms", "discounted_reward"
    names = getattr(type(layer), "outlives_episodes", ())
    return (names,) if isinstance(names, str) else tuple(names)


def _holders(env: gymnasium.Env[Any, Any]) -> Iterator[tuple[str, Any, str]]:
    """Of each number or array that is kept: a name, the object that has it as an attribute, and that attribute's name.
    Raises `ForeignError` if there is no such attribute."""
    keeping = [layer for layer in layers(env) if _names(layer)]
    for i, layer in enumerate(keeping):
        for name in _names(layer):
            prefix = f"{i}-{type(layer).__name__}.{name}"
            if not hasattr(layer, name):
                raise ForeignError(f"{prefix} outlives an episode, and __init__ does not set it")
            value = getattr(layer, name)
            if isinstance(value, RunningMeanStd):
                for part in _STATISTICS:
                    yield f"{prefix}.{part}", value, part
            else:
                yield prefix, layer, name


def kept(env: gymnasium.Env[Any, Any]) -> dict[str, np.ndarray]:
    """Copies of what outlives an episode, by name. Raises `ForeignError` for what is not of numbers."""
    arrays = {}
    for name, holder, attribute in _holders(env):
        value = getattr(holder, attribute)
        arrays[name] = np.array(None if isinstance(value, list | tuple) else value)
        if arrays[name].dtype.kind not in "biuf":
            raise ForeignError(f"{name} outlives an episode, and is not a number or an array of numbers")
    return arrays


def lend(env: gymnasium.Env[Any, Any], arrays: Mapping[str, np.ndarray]) -> None:
    """Sets what outlives an episode to what was kept of another environment of its kind. Raises `ForeignError`."""
    if not arrays:
        return
    holders = list(_holders(env))
    if differing := sorted({name for name, *_ in holders} ^ set(arrays)):
        raise ForeignError(f"what outlives an episode is not what it was: {', '.join(differing)}")
    for name, holder, attribute in holders:
        array, now = np.array(arrays[name]), getattr(holder, attribute)
        # A Python number leaves the type of the arrays that it meets; a NumPy one of the same value may not.
        is_plain = isinstance(now, int | float) and not isinstance(now, np.generic) and not array.ndim
        setattr(holder, attribute, array.item() if is_plain else array if array.ndim else array[()])


def freeze(env: gymnasium.Env[Any, Any]) -> None:
    """Prepares an environment for evaluation: its statistics stay as they are lent, and rewards as they were given.

    A score in units that change during the run would compare no two snapshots. A `NormalizeReward` that is the
    outermost of all stays as it is.
    """
    for layer in layers(env):
        if isinstance(layer, NormalizeObservation | NormalizeReward):
            layer.update_running_mean = False
    for outer in layers(env):
        if isinstance(outer, _AsGiven) or not isinstance(outer, gymnasium.Wrapper):
            continue
        if isinstance(outer.env, NormalizeReward):
            outer.env = _AsGiven(outer.env)


class _AsGiven(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Goes round a `NormalizeReward`, which stays for its statistics."""

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        return self.env.env.step(action)  # type: ignore[attr-defined, no-any-return]


def pooled(arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """What E environments have kept, `[E, ...]` each, for one, `[1, ...]`: statistics of all that they have seen.

    Of anything else, what the first has.
    """
    one = {name: array[:1] for name, array in arrays.items()}
    for mean in (name for name in arrays if name.endswith(".mean")):
        names = [mean.removesuffix("mean") + part for part in _STATISTICS]
        if not all(name in arrays for name in names):
            continue
        statistics = RunningMeanStd(shape=arrays[mean].shape[1:])  # type: ignore[no-untyped-call]
        first, *others = zip(*(arrays[name] for name in names), strict=True)
        statistics.mean, statistics.var, statistics.count = first
        for moments in others:
            statistics.update_from_moments(*moments)  # type: ignore[no-untyped-call]
        one |= {name: np.array([getattr(statistics, part)]) for name, part in zip(names, _STATISTICS, strict=True)}
    return {name: value.astype(arrays[name].dtype, copy=False) for name, value in one.items()}
