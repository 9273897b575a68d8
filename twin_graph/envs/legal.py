"""Legal actions: where some actions are illegal, an observation says at its end which are legal.

The mask is a part of the observation, so that it goes wherever the observation goes: through replay, resume points,
both twins, exports. The network gives an illegal action the value `ILLEGAL`, below every other, so that no maximum
chooses it, whether that of acting, of a target, or of double Q-learning.
"""

import numpy as np

#: Q of an illegal action: finite, since infinity times a discount of 0 is no number.
ILLEGAL = np.float32(-1e9)


def is_illegal(q: np.ndarray) -> np.ndarray:
    """Of Q values, whether each is of an illegal action: the mean of several `ILLEGAL` may be a little above one."""
    illegal: np.ndarray = q <= ILLEGAL / 2
    return illegal


def pick(legal: np.ndarray, draw: np.ndarray) -> np.ndarray:
    """Legal actions, int64 `[B]`, chosen by draws from [0, 1), float64 `[B]`; each mask of `[B, A]` allows some."""
    number = (draw * legal.sum(axis=1)).astype(np.int64)
    picked: np.ndarray = (legal.cumsum(axis=1) > number[:, None]).argmax(axis=1)
    return picked


def legal_only(q: np.ndarray) -> np.ndarray:
    """Q values of legal actions, one after the other, of Q values `[B, A]`; also those that are not finite."""
    legal: np.ndarray = q[~is_illegal(q) | ~np.isfinite(q)]
    return legal
