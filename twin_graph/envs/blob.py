"""Blob: three coloured squares on a 10x10 board. The player looks for the food and avoids the enemy.

After a well-known tutorial on deep Q-learning, as a Gymnasium environment whose actions do just what they say. A step
costs 1, the enemy 300, the food gives 25; the last two end the episode, and after 200 steps it is cut. Food and enemy
stand still.
"""

from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete

ID = "TwinGraph/Blob-v0"
SIZE, MAX_STEPS = 10, 200
STEP_REWARD, FOOD_REWARD, ENEMY_REWARD = -1.0, 25.0, -300.0

#: Moves of the nine actions: down and right are positive.
MOVES = np.array([(1, 1), (-1, -1), (-1, 1), (1, -1), (1, 0), (-1, 0), (0, 1), (0, -1), (0, 0)])
_MEANINGS = ("down right", "up left", "up right", "down left", "down", "up", "right", "left", "stay")
_PLAYER, _FOOD, _ENEMY = (0, 175, 255), (0, 255, 0), (255, 0, 0)  # RGB


class Blob(gymnasium.Env[np.ndarray, np.int64]):
    """Observes the board as an image, uint8 `[10, 10, 3]`; nine actions, see `MOVES`."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 10}  # noqa: RUF012 - Gymnasium's own form

    def __init__(self, render_mode: str | None = None) -> None:
        self.render_mode = render_mode
        self.observation_space = Box(0, 255, (SIZE, SIZE, 3), np.uint8)
        self.action_space = Discrete(len(MOVES))
        self._player = self._food = self._enemy = np.zeros(2, int)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed, options=options)
        squares = self.np_random.choice(SIZE * SIZE, size=3, replace=False)
        self._player, self._food, self._enemy = (np.array(divmod(int(square), SIZE)) for square in squares)
        return self._image(), {}

    def step(self, action: np.int64) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self._player = np.clip(self._player + MOVES[action], 0, SIZE - 1)
        if (self._player == self._enemy).all():
            return self._image(), ENEMY_REWARD, True, False, {}
        if (self._player == self._food).all():
            return self._image(), FOOD_REWARD, True, False, {}
        return self._image(), STEP_REWARD, False, False, {}

    def get_action_meanings(self) -> list[str]:
        """What the actions do, for people."""
        return list(_MEANINGS)

    def render(self) -> np.ndarray:
        """The board, 300x300 pixels."""
        return self._image().repeat(30, axis=0).repeat(30, axis=1)

    def _image(self) -> np.ndarray:
        image = np.zeros((SIZE, SIZE, 3), np.uint8)
        for square, colour in ((self._food, _FOOD), (self._enemy, _ENEMY), (self._player, _PLAYER)):
            image[tuple(square)] = colour
        return image


gymnasium.register(ID, entry_point="twin_graph.envs.blob:Blob", max_episode_steps=MAX_STEPS)
