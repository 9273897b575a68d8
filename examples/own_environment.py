"""An environment of your own: Atari games seen as the console's memory, 128 bytes, instead of its screen.

PYTHONPATH=examples twin-graph train cartpole --env own_environment:Memory/Boxing-v5
"""

from typing import Any

import ale_py
import gymnasium
from gymnasium.wrappers import FlattenObservation, FrameStackObservation, TransformReward

gymnasium.register_envs(ale_py)

#: How many points are a reward of 1, where that is not one point.
UNITS = {"ALE/Asterix-v5": 100.0, "ALE/Krull-v5": 100.0}


def make(game: str, **arguments: Any) -> gymnasium.Env[Any, Any]:
    """A game by its Gymnasium id; observations are its memory at this agent step and the one before, uint8 `[256]`."""
    memory = gymnasium.make(game, obs_type="ram", **arguments)
    unit = UNITS.get(game, 1.0)
    return TransformReward(FlattenObservation(FrameStackObservation(memory, 2)), lambda points: float(points) / unit)


for name in [name for name in gymnasium.registry if name.startswith("ALE/")]:
    gymnasium.register(name.replace("ALE/", "Memory/"), make, kwargs={"game": name}, max_episode_steps=27_000)
