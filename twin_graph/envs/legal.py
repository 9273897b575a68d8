"""Legal actions: where some actions are illegal, an observation says at its end which are legal.

The mask is a part of the observation, so that it goes wherever the observation goes: through replay, resume points,
both twins, exports. The network gives an illegal action the value `ILLEGAL`, below every other, so that no maximum
chooses it, whether that of acting, of a target, or of double Q-learning.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from twin_graph.envs import EnvSpec

#: Q of an illegal action: finite, since infinity times a discount of 0 is no number.
ILLEGAL = np.float32(-1e9)


def mask(env: EnvSpec, observations: np.ndarray) -> np.ndarray:
    """Which actions are legal, bool `[B, A]`, at observations `[B, *observation_shape]`."""
    if env.masked:
        legal: np.ndarray = observations[:, -env.n_actions :] != 0
        return legal
    return np.ones((len(observations), env.n_actions), np.bool_)


def random_actions(env: EnvSpec, observations: np.ndarray, random: np.random.Generator) -> np.ndarray:
    """Actions, int64 `[B]`, each legal one equally likely; the number of draws does not depend on what is legal."""
    if env.masked:
        return pick(mask(env, observations), random.random(len(observations)))
    return random.integers(0, env.n_actions, size=len(observations))


def pick(legal: np.ndarray, draw: np.ndarray) -> np.ndarray:
    """Legal actions, int64 `[B]`, chosen by draws from [0, 1), float64 `[B]`; each mask of `[B, A]` allows some."""
    number = (draw * legal.sum(axis=1)).astype(np.int64)
    picked: np.ndarray = (legal.cumsum(axis=1) > number[:, None]).argmax(axis=1)
    return picked


def legal_only(q: np.ndarray) -> np.ndarray:
    """Q values of legal actions, one after the other, of Q values `[B, A]`; also those that are not finite."""
    legal: np.ndarray = q[(q > ILLEGAL) | ~np.isfinite(q)]
    return legal
