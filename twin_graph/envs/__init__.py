"""Environments behind one vector interface: Atari on ALE's vector emulator, all others on Gymnasium's vector API.

Both reset an environment in the step in which its episode ends (`SAME_STEP`), so that every vector step is exactly
`count` agent steps and none has to be masked.
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np

from twin_graph.envs.legal import pick
from twin_graph.errors import ForeignError, UsageError

if TYPE_CHECKING:
    from twin_graph.config.settings import EnvSettings
    from twin_graph.envs.observations import Reading

__all__ = ["EnvSpec", "VectorEnv", "VectorStep", "make"]


class EnvSpec(NamedTuple):
    """Everything that other modules need to know about an environment.

    Attributes:
      observation_shape: of one observation: `(stack, H, W)` for stacked frames, `(H, W, C)` for images, `(D,)`.
      n_actions: A; actions are the integers below it.
      observation_dtype: NumPy type of observations, `uint8` or `float32`.
      stack: newest frames on the observation's first axis; 1 where observations are whole.
      frames_per_step: emulator frames in one agent step.
      reward_clip: rewards are clipped to plus and minus this in training; None where they are not.
      masked: an observation is `(N + A,)`, and its last A numbers say which actions are legal; see
        `twin_graph.envs.legal`.
      seen_shape: of the part before the mask.
      players: 2 for one seat of a game whose other seat an opponent has; see `twin_graph.envs.seats`.
      first_action: the environment's number for action 0.
      declared: what it observes and does, a line for each part; empty where the settings say it all.
      parts: of a Dict, which is one array here, the name and the shape of each part; empty of others.
    """

    observation_shape: tuple[int, ...]
    n_actions: int
    observation_dtype: str = "float32"
    stack: int = 1
    frames_per_step: int = 1
    reward_clip: float | None = None
    masked: bool = False
    seen_shape: tuple[int, ...] = ()
    players: int = 1
    first_action: int = 0
    declared: tuple[str, ...] = ()
    parts: tuple[tuple[str, tuple[int, ...]], ...] = ()

    @property
    def network_shape(self) -> tuple[int, ...]:
        """The shape of what a network takes: observations without their mask."""
        return self.seen_shape if self.masked else self.observation_shape

    def legal(self, observations: np.ndarray) -> np.ndarray:
        """Which actions are legal, bool `[B, A]`, at observations `[B, *observation_shape]`."""
        if self.masked:
            mask: np.ndarray = observations[:, -self.n_actions :] != 0
            return mask
        return np.ones((len(observations), self.n_actions), np.bool_)

    def random_actions(self, observations: np.ndarray, random: np.random.Generator) -> np.ndarray:
        """Actions, int64 `[B]`, each legal one equally likely; the number of draws does not depend on what is legal."""
        if self.masked:
            return pick(self.legal(observations), random.random(len(observations)))
        return random.integers(0, self.n_actions, size=len(observations))


class VectorStep(NamedTuple):
    """What E environments return for one action each.

    Attributes:
      s_t: observations that followed the actions, before any reset, `[E, *observation_shape]`.
      r_t: rewards to learn from (clipped, if the protocol says so), float32 `[E]`.
      terminal_t: bool `[E]`; no value follows: the game is over or, if the protocol says so, a life.
      last_t: bool `[E]`; the episode ended, or was cut by its time limit.
      s_next: observations to act on now: a new episode's first where `last_t`, else `s_t`.
      score_t: rewards as the environment gave them, float32 `[E]`.
    """

    s_t: np.ndarray
    r_t: np.ndarray
    terminal_t: np.ndarray
    last_t: np.ndarray
    s_next: np.ndarray
    score_t: np.ndarray


def check_finite(name: str, what: str, values: np.ndarray) -> None:
    """Raises `ForeignError` where a reward or an observation is NaN or infinite: no network could recover from it.

    Args:
      name: of the environment.
      what: `reward` or `observation`.
      values: of E environments, `[E, ...]`.
    """
    if values.dtype != np.uint8 and not np.isfinite(values).all():
        e = int(np.argwhere(~np.isfinite(values))[0][0])
        wrong = values[e][~np.isfinite(values[e])][0]
        raise ForeignError(f"{name}, environment {e}: the {what} is {wrong}, and must be finite")


class VectorEnv(Protocol):
    """E copies of one environment.

    Attributes:
      count: E.
      spec: of each.
      endless: whether a game may last forever.
      cut_after: agent steps after which a setting ends a game that would go on; None where only the game's rules do.
      evaluation_epsilon: share of random actions in evaluations, unless the settings say.
      protocol: what a score depends on, in words for people; shown with every score.
      action_names: of all actions, for people; empty where they have none.
      screens_per_second: how many screens are one second of play for people.
      reading: how what one environment gives becomes an array; None where that is an array already.
    """

    count: int
    spec: EnvSpec
    endless: bool
    cut_after: int | None
    evaluation_epsilon: float
    protocol: dict[str, str | int | float | bool]
    action_names: tuple[str, ...]
    screens_per_second: float
    reading: Reading | None = None

    def reset(self, seeds: np.ndarray) -> np.ndarray:
        """Begins an episode in each environment from its seed, int64 `[E]`; returns `s_0`."""
        ...

    def step(self, actions: np.ndarray) -> VectorStep:
        """Takes one action, integers `[E]`, in each environment."""
        ...

    def screens(self) -> list[np.ndarray]:
        """What the first environment showed in the newest step, if it was made with `screens`; uint8 `[H, W, 3]` each.

        The first is what the action was chosen from, the last what came of it. Sizes may differ.

        Raises:
          ForeignError: it could not be drawn in this step, or one before.
          UsageError: it cannot be drawn at all.
        """
        ...

    def lasting(self) -> dict[str, np.ndarray]:
        """What outlives an episode, by name, `[E, ...]` each; see `twin_graph.envs.lasting`."""
        return {}

    def lend(self, lasting: Mapping[str, np.ndarray]) -> None:
        """Sets that, in turn where there are more or fewer environments; evaluations do not change it."""
        assert not lasting, "nothing outlives an episode here"

    def notices(self, horizon: int) -> list[str]:  # noqa: ARG002
        """What a person should know before training of so many agent steps. Tries an environment, for half a second."""
        return []

    def aside(self) -> contextlib.AbstractContextManager[bool]:
        """While it lasts, another may be made, where only one can exist at a time; yields whether that is so. Reset
        them afterwards."""
        return contextlib.nullcontext(False)

    def close(self) -> None:
        """Ends the emulators."""
        ...


class Kind(Protocol):
    """Makes environments of one kind; see `make`."""

    def __call__(
        self,
        settings: EnvSettings,
        *,
        count: int,
        evaluation: bool,
        max_steps: int | None = None,
        screens: bool = False,
    ) -> VectorEnv: ...


#: Kinds of environments by the namespace of their ids; "" is for all others. Imported when one is made, since ALE takes
#: half a second.
KINDS = {
    "ALE/": "twin_graph.envs.atari:Atari",
    "OpenSpiel/": "twin_graph.envs.open_spiel:make",
    "TwoPlayer/": "twin_graph.envs.pong:make",
    "": "twin_graph.envs.gym:Gym",
}


def make(
    settings: EnvSettings,
    *,
    count: int,
    evaluation: bool = False,
    max_steps: int | None = None,
    screens: bool = False,
) -> VectorEnv:
    """`count` environments of `settings.id`; for evaluation, with true rewards, whole games and no help at the start.

    Args:
      settings: which environment.
      count: how many.
      evaluation: see above.
      max_steps: agent steps after which a game is cut, if its own limit does not come before.
      screens: the first environment is also drawn for people; see `VectorEnv.screens`.

    Raises:
      UsageError: the environment does not exist, its actions or observations are not of a kind that can be learnt, or
        it is to be drawn and cannot be.
    """
    if not settings.id:
        raise UsageError("no environment: give one as env.id, for example by --env ALE/Breakout-v5")
    module, _, inside = settings.id.rpartition(":")
    if module == "ale_py" or (module and inside.startswith("ALE/")):
        raise UsageError(f"env.id={settings.id} would be an Atari game without its protocol; write ALE/Pong-v5")
    namespace = settings.id.partition("/")[0] + "/"
    if namespace in KINDS and settings.vectorization != "sync":
        raise UsageError(f"env.vectorization=async is for other environments; leave it out for {settings.id}")
    module, _, name = KINDS.get(namespace, KINDS[""]).partition(":")
    kind: Kind = getattr(importlib.import_module(module), name)
    return kind(settings, count=count, evaluation=evaluation, max_steps=max_steps, screens=screens)
