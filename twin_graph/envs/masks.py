"""Where environments say which actions are legal: in a key of their observations, in `info`, or by a method."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Literal, NamedTuple

import gymnasium
import numpy as np
from gymnasium import spaces

from twin_graph.base.text import counted
from twin_graph.errors import ForeignError

#: Masks of A numbers: `action_mask` as in Gymnasium's Taxi, PettingZoo and RLlib, `mask` as in Tianshou, `action_masks`
#: and `valid_action_mask` as in sb3-contrib, `legal_actions_mask` as in OpenSpiel.
_MASKS = "action_mask", "action_masks", "valid_action_mask", "legal_actions_mask", "mask"
#: The numbers of the legal actions, as in OpenSpiel.
_NUMBERS = "legal_actions"
_NAMES = (*_MASKS, _NUMBERS)
#: Too usual a word to be taken for a mask of actions where nothing else says so.
_VAGUE = "mask"
#: What else may be about legal actions.
_SUSPECT = re.compile(r"(legal|valid|avail|available|illegal|invalid|feasible)_?(action|move)s?|action_?mask|^masks?$")

Place = Literal["observation", "info", "method"]


class Mask(NamedTuple):
    """Where the mask is.

    Attributes:
      place: a key of the observation, a key of `info`, or a method of the environment.
      name: of the key or the method.
    """

    place: Place
    name: str

    def words(self) -> str:
        """For people, as in the protocol."""
        return f"{self.name}()" if self.place == "method" else f"{self.name} in {self.place}"


def find(env: gymnasium.Env[Any, Any], info: Mapping[str, Any]) -> Mask | None:
    """Where an environment that was just reset, and gave this `info`, says which of its Discrete actions are legal."""
    assert isinstance(env.action_space, spaces.Discrete)
    n_actions, observed = int(env.action_space.n), env.observation_space
    if isinstance(observed, spaces.Dict) and len(observed) > 1:
        for name in _NAMES:
            if name in observed.spaces and observed[name].shape == (n_actions,):
                return Mask("observation", name)
    for name in _NAMES:
        if name in info and (name != _VAGUE or np.shape(info[name]) == (n_actions,)) and info[name] is not None:
            return Mask("info", name)
    for name in _NAMES:
        if name != _VAGUE and env.has_wrapper_attr(name) and np.ndim(_listed(_told(env, name))) == 1:
            return Mask("method", name)
    return None


def unused(env: gymnasium.Env[Any, Any], info: Mapping[str, Any]) -> list[str]:
    """What may say which actions are legal, where `find` found nothing, in words."""
    keys = env.observation_space.spaces if isinstance(env.observation_space, spaces.Dict) else {}
    return [
        *(f"{name} in the observation" for name in _suspects(keys)),
        *(f"{name} in info" for name in _suspects(info)),
        *(f"{type(env.unwrapped).__name__}.{name}" for name in _suspects(_public(env.unwrapped))),
    ]


def _suspects(names: Iterable[Any]) -> Iterator[str]:
    return (name for name in names if isinstance(name, str) and _SUSPECT.search(name))


def _public(env: gymnasium.Env[Any, Any]) -> list[str]:
    return [name for name in dir(env) if not name.startswith("_")]


def _told(env: gymnasium.Env[Any, Any], name: str) -> Any:
    """What a method or an attribute says; None if it cannot be asked."""
    with contextlib.suppress(Exception):
        return _asked(env, name)
    return None


def _asked(env: gymnasium.Env[Any, Any], name: str) -> Any:
    value = env.get_wrapper_attr(name)
    return value() if callable(value) else value


def check_none_later(name: str, info: Mapping[str, Any]) -> None:
    """Raises `ForeignError` if the `info` of a step has a mask, where that of the first reset had none."""
    if found := next((key for key in _NAMES if key != _VAGUE and key in info), None):
        raise ForeignError(
            f"{name}, step: there is {found} in info, and there was none at the first reset: return it there, too"
        )


class MaskReader:
    """Reads the mask of one environment.

    Args:
      mask: where it is.
      actions: of the environment.
      name: of the environment, for messages.

    Attributes:
      mask: as given.
    """

    def __init__(self, mask: Mask, actions: spaces.Discrete, name: str) -> None:
        self.mask, self._name = mask, name
        self._n, self._first = int(actions.n), int(actions.start)

    def read(
        self, env: gymnasium.Env[Any, Any], method: str, answer: Mapping[str, Any], *, terminated: bool
    ) -> np.ndarray:
        """Which actions are legal, bool `[A]`; none where the episode has terminated and nothing is said.

        Args:
          env: was just reset, or stepped.
          method: which of these, for messages.
          answer: the observation, or `info`, wherever the mask is.
          terminated: whether no action follows.

        Raises:
          ForeignError: there is no mask, or it fits no action.
        """
        place, name = self.mask
        given = answer.get(name) if place != "method" else None if terminated else _asked(env, name)
        if given is None:
            if terminated:
                return np.zeros(self._n, np.bool_)
            raise ForeignError(f"{self._name}, {method}: there is no {name}, and there was one at the first reset")
        return self.legal(given, method)

    def legal(self, given: Any, method: str) -> np.ndarray:
        """The mask, bool `[A]`, given as one or as the numbers of the legal actions. Raises `ForeignError`."""
        told = np.asarray(_listed(given))
        # A key of the observation was chosen by its shape: there, these are never numbers.
        if self.mask.name == _NUMBERS and self.mask.place != "observation" and not _is_mask(told, self._n):
            return self._by_numbers(told, method)
        if told.shape != (self._n,):
            actions = counted(self._n, "action")
            raise ForeignError(f"{self._name}, {method}: {self.mask.name} has shape {list(told.shape)} for {actions}")
        if not np.isin(told, (0, 1)).all():
            raise ForeignError(f"{self._name}, {method}: {self.mask.name} is {told.tolist()}, and must be of 0 and 1")
        legal: np.ndarray = told != 0
        return legal

    def _by_numbers(self, numbers: np.ndarray, method: str) -> np.ndarray:
        legal = np.zeros(self._n, np.bool_)
        indices = numbers.astype(np.int64, copy=False) - self._first if numbers.size else np.empty(0, np.int64)
        if numbers.ndim != 1 or (indices < 0).any() or (indices >= self._n).any():
            last = self._first + self._n - 1
            raise ForeignError(
                f"{self._name}, {method}: {self.mask.name} is {numbers.tolist()}, and actions are {self._first} to "
                f"{last}"
            )
        legal[indices] = True
        return legal


def _listed(given: Any) -> Any:
    return list(given) if isinstance(given, set | frozenset | range) else given


def _is_mask(told: np.ndarray, n_actions: int) -> bool:
    """Whether these are A truth values, and not the numbers of actions: those are never named twice."""
    if told.shape != (n_actions,):
        return False
    return told.dtype == np.bool_ or (len(np.unique(told)) < n_actions and bool(np.isin(told, (0, 1)).all()))
