"""MinAtar (Young and Tian 2019): five small Atari games on a board of 10x10, from the package of the extra `minatar`.

Gymnasium knows `MinAtar/Breakout-v1` and the others when this module has been imported; versions 0 offer all six
actions in each game, versions 1 those that do something.
"""

from typing import Any

import gymnasium

#: By the names that Gymnasium knows, those of MinAtar.
GAMES = {
    "Asterix": "asterix",
    "Breakout": "breakout",
    "Freeway": "freeway",
    "Seaquest": "seaquest",
    "SpaceInvaders": "space_invaders",
}


class _ForgetsLastAction(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Begins each game without an action to repeat.

    MinAtar repeats the previous action in a tenth of all steps, and does not forget it at a reset: a game would depend
    not on its seed alone, but also on how the one before it ended.
    """

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self.unwrapped.game.last_action = 0  # type: ignore[attr-defined]
        return self.env.reset(seed=seed, options=options)


def make(**arguments: Any) -> gymnasium.Env[Any, Any]:
    """A game of MinAtar: `game`, `use_minimal_action_set`, `sticky_action_prob`, `difficulty_ramping`."""
    try:
        from minatar.gym import BaseEnv
    except ModuleNotFoundError:
        raise gymnasium.error.DependencyNotInstalled("pip install 'twin-graph[minatar]'") from None
    return _ForgetsLastAction(BaseEnv(**arguments))


for _name, _game in GAMES.items():
    for _version in (0, 1):
        gymnasium.register(
            f"MinAtar/{_name}-v{_version}",
            entry_point=f"{__name__}:make",
            kwargs={"game": _game, "use_minimal_action_set": _version == 1},
        )
