"""Any Gymnasium environment with discrete actions, on Gymnasium's own vector API."""

from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete, Space
from gymnasium.vector import AutoresetMode

import twin_graph.envs.blob  # noqa: F401 - registers the environment
from twin_graph.config import EnvSettings, nearest
from twin_graph.envs import VectorStep
from twin_graph.errors import UsageError


class Gym:
    """Implements `twin_graph.envs.VectorEnv`; owns the environments."""

    def __init__(self, settings: EnvSettings, *, count: int) -> None:
        action_space, observation_space, time_limit = _look_at(settings.id)
        if settings.actions is not None:
            raise UsageError(f"env.actions chooses among the actions of an Atari game, and {settings.id} is none")
        if not isinstance(action_space, Discrete):
            raise UsageError(
                f"{settings.id} has continuous actions ({action_space}); Q-learning needs discrete ones"
                if isinstance(action_space, Box)
                else f"{settings.id} has actions {action_space}; only Discrete ones are supported"
            )
        if not isinstance(observation_space, Box):
            raise UsageError(
                f"{settings.id} observes {observation_space}; only Box observations are supported: "
                "register it with gymnasium.wrappers.FlattenObservation"
            )
        self._env = gymnasium.make_vec(
            settings.id,
            num_envs=count,
            vectorization_mode="sync",
            vector_kwargs={"autoreset_mode": AutoresetMode.SAME_STEP},
        )
        self._first_action = int(action_space.start)
        self.count = count
        self.n_actions = int(action_space.n)
        self.observation_shape = observation_space.shape
        self.observation_dtype = np.dtype(np.uint8 if observation_space.dtype == np.uint8 else np.float32)
        self.stack = 1
        self.frames_per_step = 1
        self.evaluation_epsilon = 0.0
        self.protocol: dict[str, str | int | float | bool] = {
            "environment": settings.id,
            "environments": count,
            "actions": self.n_actions,
            "time limit, steps": time_limit or "none",
        }

    def reset(self, seeds: np.ndarray) -> np.ndarray:
        # Gymnasium's vector environments take a list of seeds; the base class's annotation does not say so.
        observations, _ = self._env.reset(seed=[int(seed) for seed in seeds])  # type: ignore[arg-type]
        return self._typed(observations)

    def step(self, actions: np.ndarray) -> VectorStep:
        observations, rewards, terminated, truncated, info = self._env.step(actions + self._first_action)
        s_next = self._typed(observations)
        last_t = terminated | truncated
        s_t = s_next
        if last_t.any():
            s_t = s_next.copy()
            for e in np.flatnonzero(last_t):
                s_t[e] = info["final_obs"][e]
        r_t = rewards.astype(np.float32)
        return VectorStep(s_t=s_t, r_t=r_t, terminal_t=terminated, last_t=last_t, s_next=s_next, score_t=r_t)

    def close(self) -> None:
        self._env.close()

    def _typed(self, observations: np.ndarray) -> np.ndarray:
        # A copy: Gymnasium may hand out a buffer that its next step overwrites.
        return np.array(observations, self.observation_dtype)


def _look_at(environment_id: str) -> tuple[Space[Any], Space[Any], int | None]:
    """Spaces and time limit (in agent steps) of an environment, or one line on why it cannot be made."""
    if environment_id.endswith(("NoFrameskip-v4", "Deterministic-v4")):
        raise UsageError(
            f"{environment_id!r} is an old name: Atari games are named ALE/Pong-v5 here, "
            "and env.frame_skip and env.sticky say what the old names did"
        )
    try:
        environment = gymnasium.make(environment_id)
    except (gymnasium.error.UnregisteredEnv, gymnasium.error.DeprecatedEnv) as error:
        hint = nearest(environment_id, gymnasium.registry)
        raise UsageError(f"cannot make {environment_id!r}: {_first_sentence(error)}{hint}") from None
    except (gymnasium.error.Error, ImportError) as error:
        raise UsageError(f"cannot make {environment_id!r}: {_first_sentence(error)}") from None
    spaces = environment.action_space, environment.observation_space
    time_limit = environment.spec.max_episode_steps if environment.spec else None
    environment.close()
    return *spaces, time_limit


def _first_sentence(error: Exception) -> str:
    return str(error).split("\n")[0].split(". ")[0].rstrip(".")
