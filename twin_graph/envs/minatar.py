"""MinAtar (Young and Tian 2019): five small Atari games on a board of 10x10, from the package of the extra `minatar`.

Gymnasium knows `MinAtar/Breakout-v1` and the others when this module has been imported; versions 0 offer all six
actions in each game, versions 1 those that do something.
"""

from typing import Any

import gymnasium
import numpy as np

#: By the names that Gymnasium knows, those of MinAtar.
GAMES = {
    "Asterix": "asterix",
    "Breakout": "breakout",
    "Freeway": "freeway",
    "Seaquest": "seaquest",
    "SpaceInvaders": "space_invaders",
}


#: RGB of the board's channels; later ones lie on top.
_COLOURS = np.array(
    [
        *((0, 0, 0), (86, 180, 233), (240, 228, 66), (213, 94, 0), (0, 158, 115), (204, 121, 167)),
        *((0, 114, 178), (230, 159, 0), (200, 200, 200), (150, 110, 60), (90, 90, 220)),
    ],
    np.uint8,
)
_MEANINGS = {"n": "none", "l": "left", "u": "up", "r": "right", "d": "down", "f": "fire"}


class _MinAtar(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Begins each game without an action to repeat, returns boards of booleans, and draws them without seaborn.

    MinAtar repeats the previous action in a tenth of all steps, and does not forget it at a reset: a game would depend
    not on its seed alone, but also on how the one before it ended. Its source after 1.0.15 has bytes of 0 and 1 on
    its boards, which would be taken for brightness.
    """

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        super().__init__(env)
        self.observation_space = gymnasium.spaces.Box(0, 1, env.observation_space.shape, np.bool_)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self.unwrapped.game.last_action = 0  # type: ignore[attr-defined]
        board, info = self.env.reset(seed=seed, options=options)
        return np.asarray(board, np.bool_), info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        board, reward, terminated, truncated, info = self.env.step(action)
        return np.asarray(board, np.bool_), reward, terminated, truncated, info

    def get_action_meanings(self) -> list[str]:
        """What the actions do, for people."""
        env: Any = self.unwrapped
        return [_MEANINGS[env.game.env.action_map[action]] for action in env.action_set]

    def render(self) -> Any:
        """The board, 300x300 pixels, where that was asked for."""
        if self.render_mode != "rgb_array":
            return self.env.render()
        state = self.unwrapped.game.state()  # type: ignore[attr-defined]
        topmost = (state * np.arange(1, state.shape[2] + 1)).max(axis=2)
        return _COLOURS[topmost].repeat(30, axis=0).repeat(30, axis=1)


def make(**arguments: Any) -> gymnasium.Env[Any, Any]:
    """A game of MinAtar: `game`, `use_minimal_action_set`, `sticky_action_prob`, `difficulty_ramping`."""
    try:
        from minatar.gym import BaseEnv
    except ModuleNotFoundError:
        raise gymnasium.error.DependencyNotInstalled(
            "MinAtar is not installed: pip install 'twin-graph[minatar]'"
        ) from None
    game = _MinAtar(BaseEnv(**arguments))
    game.metadata = {**game.metadata, "render_fps": 15}
    return game


for _name, _game in GAMES.items():
    for _version in (0, 1):
        gymnasium.register(
            f"MinAtar/{_name}-v{_version}",
            entry_point=f"{__name__}:make",
            kwargs={"game": _game, "use_minimal_action_set": _version == 1},
        )
