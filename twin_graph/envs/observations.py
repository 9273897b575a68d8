"""How what an environment observes becomes an array for networks: flattened, scaled, with a mask of legal actions."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any

import numpy as np
from gymnasium import spaces
from gymnasium.vector.utils import batch_space, iterate

from twin_graph.base.text import counted
from twin_graph.envs.masks import Mask, MaskReader
from twin_graph.errors import ForeignError, UsageError

_FROM, _DIVIDED = " from ", ", divided by that"
_LISTED = 16  # bounds that are told one by one; of more, their hash is


class Reading:
    """Makes arrays of the observations of one kind of environment.

    Spaces other than Box are flattened. Bytes, and images of any numbers, are divided by their bounds, bytes so that
    they stay bytes: networks divide these by 255. Other numbers are taken as they are.

    Args:
      observed: the space of the environment's observations.
      actions: A of them.
      mask: where the environment says which actions are legal; None if all are.

    Attributes:
      seen_shape: of what a network sees.
      shape: of an array: as `seen_shape`, or `(N + A,)` with a mask at its end.
      dtype: of an array, uint8 or float32.
      mask: as given.
      words: what is done with observations, for the protocol; empty if nothing is.
      notice: what else a person should know; mostly empty.
      declared: what is observed, a line for each part.
      parts: of a Dict, the name and the shape of each part of an array, in their order; empty of others.
      is_rescaled: whether versions before 0.3.0 would have made other arrays.
    """

    def __init__(self, observed: spaces.Space[Any], actions: spaces.Discrete, mask: Mask | None) -> None:
        self._observed, self.mask, n_actions = observed, mask, int(actions.n)
        self._reader = MaskReader(mask, actions, "action_masks") if mask else None
        self._key = mask.name if mask and mask.place == "observation" else None
        self._others = [name for name in getattr(observed, "spaces", ()) if name != self._key] if self._key else []
        self._space = space = _without(observed, self._key)
        flat = space if isinstance(space, spaces.Box) else spaces.flatten_space(space)
        assert isinstance(flat, spaces.Box)
        self.seen_shape = flat.shape
        self.shape = (int(np.prod(flat.shape)) + n_actions,) if mask else flat.shape
        self.dtype = np.dtype(np.uint8 if flat.dtype in (np.uint8, np.bool_) else np.float32)
        bounds = np.concatenate([np.ravel(_bound(leaf)) for _, leaf in _leaves(space)]).reshape(flat.shape)
        self._divisor = _one_number(bounds)
        self._rescales = bool(np.any(self._divisor != (255 if self.dtype == np.uint8 else 1)))
        exact = (255 % bounds == 0).all()  # then bytes need not become floats in between
        self._factor = _one_number(255 / bounds).astype(np.uint8 if exact else np.float32)
        self.words = ", ".join(self._words())
        unbounded = isinstance(space, spaces.Box) and _is_image(space) and not _is_bounded(space).all()
        self.notice = f"images of {flat.dtype} without a bound are taken as they are" if unbounded else ""
        self.declared = tuple(f"{name}{_described(leaf)}" for name, leaf in _leaves(observed))
        shapes = {
            name.removesuffix(": "): (part.shape or (1,)) if isinstance(part, spaces.Box) else (spaces.flatdim(part),)
            for name, part in _leaves(space)
        }
        self.parts = tuple(shapes.items()) if isinstance(space, spaces.Dict) else ()
        flags = self.dtype == np.uint8 and (bounds == 1).all()
        self.is_rescaled = self._rescales and not flags

    def _words(self) -> Iterator[str]:
        if not isinstance(self._space, spaces.Box):
            yield f"{type(self._space).__name__} flattened to {counted(self.seen_shape[0], 'number')}"
        if self._rescales and np.max(self._divisor) > 1:
            by = f"{self._divisor:g}" if np.ndim(self._divisor) == 0 else "their bounds"
            yield f"divided by {by}"

    def array(self, observation: Any, where: str, legal: np.ndarray | None = None) -> np.ndarray:
        """One observation, `[*shape]`, in an array of its own.

        Args:
          observation: as the environment gave it.
          where: it did, for messages.
          legal: the mask, bool `[A]`, if there is one.

        Raises:
          ForeignError: the observation is not as declared.
        """
        seen = self._scaled(self._flat(observation, where), where)
        if legal is None:
            return seen
        return np.concatenate([seen.ravel(), legal], dtype=self.dtype)

    def arrays(self, observations: Any, legal: Any = None) -> np.ndarray:
        """Several observations, batched as a vector environment of Gymnasium does, `[B, *shape]`; or a single one.

        Args:
          observations: as the environment gave them.
          legal: masks, `[B, A]` or `[A]`; None if there are none, or if the observations hold them.

        Raises:
          UsageError: these are none, or masks are missing, wrong or of no use.
        """
        single = _looks_like(self._observed, observations)
        each = [observations] if single else list(self._iterated(observations))
        given: list[Any] = [None] * len(each)
        if self._key:
            given = [one[self._key] for one in each]
        elif self.mask:
            if legal is None:
                raise UsageError(f"give the mask of legal actions, too: action_masks=... ({self.mask.words()})")
            given = [legal] if single else list(legal)
            if len(given) != len(each):
                raise UsageError(f"action_masks has {len(given)} masks for {counted(len(each), 'observation')}")
        elif legal is not None:
            raise UsageError("all actions are legal in this environment: leave out action_masks")
        try:
            masks = [self._reader.legal(one, "given") if self._reader else None for one in given]
            made = [self.array(one, "given", mask) for one, mask in zip(each, masks, strict=True)]
        except ForeignError as error:
            raise UsageError(str(error)) from None
        return made[0] if single else np.stack(made)

    def _iterated(self, observations: Any) -> Iterator[Any]:
        try:
            count = len(_first(observations))
            each = list(iterate(batch_space(self._observed, count), observations))
        except Exception:
            each = []
        if not each or not _looks_like(self._observed, each[0]):
            one = f"shape {list(self._observed.shape)}" if self._observed.shape else ", ".join(self.declared)
            raise UsageError(f"an observation has {one}, or [B, ...] for B of them; this has {_shapes(observations)}")
        return iter(each)

    def _flat(self, observation: Any, where: str) -> np.ndarray:
        try:
            seen = observation
            if self._key:
                seen = {name: observation[name] for name in self._others}
                seen = seen[self._others[0]] if len(self._others) == 1 else seen
            if isinstance(self._space, spaces.Box):
                return as_declared(self._space, seen, where)
            _check(self._space, seen, where)
            return np.asarray(spaces.flatten(self._space, seen))
        except (KeyError, TypeError, ValueError, IndexError, AssertionError, OverflowError) as error:
            raise ForeignError(f"{where}: {observation!r} is not in observation_space: {error}") from error

    def _scaled(self, seen: np.ndarray, where: str) -> np.ndarray:
        if self.dtype != np.uint8:
            numbers = seen.astype(np.float32, copy=False)
            return numbers / self._divisor if self._rescales else numbers
        bytes_ = seen.view(np.uint8) if seen.dtype == np.bool_ else seen.astype(np.uint8, copy=False)
        if not self._rescales:
            return bytes_
        if (bytes_ > self._divisor).any():
            beyond = bytes_[bytes_ > self._divisor][0]
            raise ForeignError(
                f"{where}: observed {beyond}, and observation_space says {np.max(self._divisor):g} at most"
            )
        scaled: np.ndarray = bytes_ * self._factor
        return scaled if scaled.dtype == np.uint8 else np.rint(scaled).astype(np.uint8)


def _check(space: spaces.Space[Any], observation: Any, where: str) -> None:
    """Raises `ForeignError`, or what a wrong type makes Python raise, unless each part is as its space says:
    flattening would take other numbers without a word."""
    if isinstance(space, spaces.Dict):
        for name, part in space.spaces.items():
            _check(part, observation[name], where)
    elif isinstance(space, spaces.Tuple):
        for part, seen in zip(space.spaces, observation, strict=True):
            _check(part, seen, where)
    elif isinstance(space, spaces.Box):
        as_declared(space, observation, where)
    elif isinstance(space, spaces.Discrete | spaces.MultiDiscrete | spaces.MultiBinary):
        binary = isinstance(space, spaces.MultiBinary)
        count = 2 if binary else getattr(space, "nvec", getattr(space, "n", 0))
        number = np.asarray(observation) - getattr(space, "start", 0)
        if number.shape != (space.shape or ()) or (number < 0).any() or (number >= count).any():
            raise ForeignError(f"{where}: observed {observation!r}, and observation_space says {space}")


def as_declared(box: spaces.Box, observation: Any, where: str) -> np.ndarray:
    """An observation in an array of its own, of the declared type. Raises `ForeignError` where that changes a number
    (floats are rounded, as between float64 and float32), or the shape is another."""
    given = np.asarray(observation)
    if given.shape != box.shape:
        raise ForeignError(
            f"{where}: the observation has shape {list(given.shape)}, and observation_space says {list(box.shape)}"
        )
    if given.dtype == box.dtype:
        return given.copy()
    with np.errstate(invalid="ignore"):  # NaN as an integer is another number
        own = np.array(given, box.dtype)
    if not np.issubdtype(box.dtype, np.floating) and not np.array_equal(own, given):
        raise ForeignError(f"{where}: observed {given[own != given][0]}, and observation_space says {box.dtype}")
    return own


def check_readable(environment_id: str, observed: spaces.Space[Any], mask: Mask | None) -> None:
    """Raises `UsageError` unless observations are numbers, or can be flattened to such."""
    space = _without(observed, mask.name if mask and mask.place == "observation" else None)
    try:
        flat = spaces.flatten_space(space)
        if isinstance(flat, spaces.Box) and spaces.flatdim(flat):
            return
    except NotImplementedError:
        pass
    raise UsageError(
        f"{environment_id} observes {space}, which cannot be flattened to a fixed number of numbers, at least one; "
        "register it with a wrapper that makes it a Box (gymnasium.wrappers.TransformObservation)"
    )


def _without(observed: spaces.Space[Any], key: str | None) -> spaces.Space[Any]:
    """What is observed beside a mask: the only other part, or a Dict of the others."""
    if key is None:
        return observed
    assert isinstance(observed, spaces.Dict)
    others = {name: space for name, space in observed.spaces.items() if name != key}
    return next(iter(others.values())) if len(others) == 1 else spaces.Dict(others)


def _leaves(space: spaces.Space[Any], name: str = "") -> Iterator[tuple[str, spaces.Space[Any]]]:
    """The parts of a space with their names, in the order in which Gymnasium flattens them."""
    if isinstance(space, spaces.Dict | spaces.Tuple):
        parts = space.spaces.items() if isinstance(space, spaces.Dict) else enumerate(space.spaces)
        for key, part in parts:
            yield from _leaves(part, f"{name.removesuffix(': ')}{'.' if name else ''}{key}: ")
    else:
        yield name, space


def _bound(space: spaces.Space[Any]) -> np.ndarray:
    """What the numbers of a part are divided by, float64, flat or of its own shape."""
    if not isinstance(space, spaces.Box):
        ones: np.ndarray = np.ones(spaces.flatdim(space))
        return ones
    if not _is_divided(space):
        return np.ones(space.shape)
    bounds = np.maximum(np.abs(space.low.astype(np.float64)), np.abs(space.high.astype(np.float64)))
    return np.where(_is_bounded(space) & (bounds > 1), bounds, 1)


def _is_bounded(box: spaces.Box) -> np.ndarray:
    """Which numbers have a bound, bool of its shape; Gymnasium takes the type's own for infinity in whole numbers."""
    bounded: np.ndarray = box.bounded_below & box.bounded_above
    if box.dtype in (np.int32, np.uint32, np.int64, np.uint64):
        bounded = bounded & (box.high < 2**31 - 4)
    return bounded


def _is_divided(box: spaces.Box) -> bool:
    """Whether its numbers are divided by their bounds, here or, where these are 255, in the network."""
    return box.dtype in (np.uint8, np.bool_) or _is_image(box)


def _is_image(box: spaces.Box) -> bool:
    return len(box.shape) == 3 or (len(box.shape) == 2 and np.issubdtype(box.dtype, np.integer))


def _one_number(array: np.ndarray) -> Any:
    """The number, as float32, that all elements are, or else the array."""
    numbers = array.astype(np.float32)
    return numbers.flat[0] if (numbers == numbers.flat[0]).all() else numbers


def _described(space: spaces.Space[Any]) -> str:
    """A space with its type, shape and bounds."""
    if not isinstance(space, spaces.Box):
        return repr(space)
    low, high = _told(space.low), _told(space.high)
    divided = _DIVIDED if _is_divided(space) else ""
    return f"Box {space.dtype} {list(space.shape)}{_FROM}{low} to {high}{divided}"


def essence(line: str) -> str:
    """What a line of `Reading.declared` says but for bounds that nothing is divided by."""
    return line if line.endswith(_DIVIDED) else line.partition(_FROM)[0]


def _told(bounds: np.ndarray) -> str:
    if (bounds == bounds.flat[0]).all():
        return f"{float(bounds.flat[0]):g}"
    if bounds.size <= _LISTED:
        return "(" + " ".join(f"{float(bound):g}" for bound in bounds.flat) + ")"
    digest = hashlib.sha256(bounds.astype(np.float64).tobytes()).hexdigest()
    return f"bounds {digest[:8]}"


def _looks_like(space: spaces.Space[Any], observation: Any) -> bool:
    """Whether this is one observation, by its shapes."""
    if isinstance(space, spaces.Dict):
        return isinstance(observation, dict) and all(
            key in observation and _looks_like(part, observation[key]) for key, part in space.spaces.items()
        )
    if isinstance(space, spaces.Tuple):
        return (
            isinstance(observation, tuple | list)
            and len(observation) == len(space.spaces)
            and all(map(_looks_like, space.spaces, observation))
        )
    return bool(np.shape(observation) == (space.shape or ()))


def _first(observations: Any) -> Any:
    while isinstance(observations, dict | tuple):
        observations = next(iter(observations.values() if isinstance(observations, dict) else observations))
    return observations


def _shapes(observations: Any) -> str:
    if isinstance(observations, dict):
        return "{" + ", ".join(f"{key}: {_shapes(part)}" for key, part in observations.items()) + "}"
    return str(list(np.shape(observations)))
