"""Pong for two on the Atari 2600, `TwoPlayer/Pong`, by the package multi_agent_ale_py of the extra `selfplay`.

Preprocessed as games of one player are: the maximum of the last two grey screens of an agent step, scaled to 84x84,
four of them stacked. It is evaluated in the game of one player, against the computer player of the cartridge.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from ale_py import roms

from twin_graph.envs import EnvSpec, VectorEnv
from twin_graph.envs.atari import REWARD_CLIP, Atari, actions_of
from twin_graph.envs.seats import NOBODY, Player, Seat, at_random
from twin_graph.errors import UsageError

if TYPE_CHECKING:
    from twin_graph.config.settings import EnvSettings

try:
    import multi_agent_ale_py
except ModuleNotFoundError:
    raise UsageError("Pong for two is not installed: pip install 'twin-graph[selfplay]'") from None

ID, ALONE = "TwoPlayer/Pong", "ALE/Pong-v5"
#: Of the cartridge: two players with one paddle each, whose button makes a hit faster. `ALE/Pong-v5`, whose mode 0 is 1
#: here, has the same rules for one player. In the modes 2 and 4, which is PettingZoo's, it makes a hit steeper instead.
_MODE = 3
#: In the order in which `ALE/Pong-v5` has them, as the emulator numbers them.
_ACTIONS = {"NOOP": 0, "FIRE": 1, "RIGHT": 3, "LEFT": 4, "RIGHTFIRE": 11, "LEFTFIRE": 12}
_PRESSED = np.arange(18)  # the same with the button pressed, and without
_PRESSED[[0, 3, 4]] = 1, 11, 12
_RELEASED = np.arange(18)
_RELEASED[[1, 11, 12]] = 0, 3, 4
_COURT, _BALL = np.s_[34:194, 20:140], 236  # the part of the 210x160 screen where only the ball is seen; its grey


def make(
    settings: EnvSettings,
    *,
    count: int,
    evaluation: bool,
    max_steps: int | None = None,
    screens: bool = False,
) -> VectorEnv:
    """A kind of environments; see `twin_graph.envs.make`."""
    if settings.id != ID:
        raise UsageError(f"unknown game {settings.id!r}; there is {ID}")
    if evaluation:
        alone = settings.model_copy(update={"id": ALONE, "kwargs": {}})
        return Atari(alone, count=count, evaluation=True, max_steps=max_steps, screens=screens)
    return Seat(Pong(settings, count))


class Pong:
    """Implements `twin_graph.envs.seats.Boards`. Both paddles move at once: seat 0's move waits for seat 1's.

    Seat 0 has the right paddle, as the agent has in the game of one player. Seat 1 sees the screen mirrored, so that
    its paddle is on the right too; the two paddles' greys differ by one part in 256.

    A point is 1 for who made it and -1 for the other. The ball is served at once, as it is in the game of one player:
    both players' buttons are pressed until it is seen.

    `env.kwargs.button` is the share of games in which a player's button works, drawn for each player; 1 unless given.
    Players whose buttons always work meet fast balls alone, and the cartridge's own player never presses it.
    """

    def __init__(self, settings: EnvSettings, count: int) -> None:
        self._button = _button(settings.kwargs)
        self._settings = settings
        names = list(_ACTIONS)
        self.action_names: tuple[str, ...] = tuple(names[i] for i in actions_of(settings, names))
        self._actions = np.array([_ACTIONS[name] for name in self.action_names])
        height, width, stack = settings.image_height, settings.image_width, settings.stack
        self.count = count
        clip = REWARD_CLIP if settings.clip_rewards else None
        self.spec = EnvSpec(
            (stack, height, width), len(self._actions), "uint8", stack, settings.frame_skip, reward_clip=clip, players=2
        )
        self.protocol: dict[str, str | int | float | bool] = {
            "environment": settings.id,
            "environments": count,
            "actions": " ".join(self.action_names) if settings.actions else len(self._actions),
            "seats": "both, in turns",
            "frame skip": settings.frame_skip,
            "sticky actions": settings.sticky,
            "no-ops up to": settings.noop_max,
            "working buttons": self._button,
            "time limit, frames": settings.max_frames,
            "image": f"{height}x{width}x{stack}",
        }
        multi_agent_ale_py.ALEInterface.setLoggerMode("error")
        self._emulators = [_emulator() for _ in range(count)]
        screen = self._emulators[0].getScreenGrayscale().shape
        self._rows, self._columns = _averages(height, screen[0]), _averages(width, screen[1])
        self._frames = np.zeros((count, stack, height, width), np.uint8)
        self._randoms: list[np.random.Generator] = [np.random.default_rng(0)] * count
        self._first_move = np.zeros(count, np.int64)
        self._last_actions = np.zeros((count, 2), np.int64)
        self._number = np.zeros(count, np.int64)
        self._served = np.zeros(count, np.bool_)
        self._broken = np.zeros((count, 2), np.bool_)
        self.cut = np.zeros(count, np.bool_)
        self.to_move = np.zeros(count, np.int64)

    def begin(self, board: int, random: np.random.Generator) -> None:
        self._randoms[board] = random
        emulator = self._emulators[board]
        emulator.reset_game()
        self._last_actions[board] = 0
        for _ in range(int(random.integers(0, self._settings.noop_max + 1))):
            emulator.act(self._last_actions[board])
        self._frames[board] = 0
        self._frames[board, -1] = self._scaled(emulator.getScreenGrayscale())
        self._number[board] = 0
        self._served[board] = False
        self._broken[board] = random.random(2) >= self._button
        self.to_move[board] = 0

    def observe(self, boards: np.ndarray, seats: np.ndarray) -> np.ndarray:
        frames: np.ndarray = self._frames[boards]
        mirrored = seats == 1
        frames[mirrored] = frames[mirrored, ..., ::-1]
        return frames

    def states(self, boards: np.ndarray) -> Sequence[Any]:  # noqa: ARG002 - emulators are not copied
        return ()

    def move(self, boards: np.ndarray, actions: np.ndarray) -> np.ndarray:
        gains = np.zeros((len(boards), 2), np.float32)
        for row, (board, action) in enumerate(zip(boards.tolist(), actions.tolist(), strict=True)):
            if self.to_move[board] == 0:
                self._first_move[board] = action
                self.to_move[board] = 1
            else:
                gains[row] = self._step(board, self._actions[[self._first_move[board], action]])
        return gains

    def _step(self, board: int, actions: np.ndarray) -> np.ndarray:
        """One agent step of both players; returns what both gain."""
        settings, emulator = self._settings, self._emulators[board]
        gains, screens = np.zeros(2, np.float32), []
        for frame in range(settings.frame_skip):
            sticks = settings.sticky > 0 and self._randoms[board].random(2) < settings.sticky
            self._last_actions[board] = np.where(sticks, self._last_actions[board], actions)
            moves = np.where(self._broken[board], _RELEASED[self._last_actions[board]], self._last_actions[board])
            gains += emulator.act(moves if self._served[board] else _PRESSED[moves])
            if frame >= settings.frame_skip - 2:
                screens.append(emulator.getScreenGrayscale())
        self._frames[board, :-1] = self._frames[board, 1:]
        self._frames[board, -1] = self._scaled(np.max(screens, axis=0))
        seen = bool((screens[-1][_COURT] == _BALL).any())
        self._served[board] = (self._served[board] or seen) and not gains.any()
        self._number[board] += 1
        over = bool(emulator.game_over())
        self.cut[board] = not over and self._number[board] * settings.frame_skip >= settings.max_frames
        self.to_move[board] = NOBODY if over or self.cut[board] else 0
        return gains

    def _scaled(self, screen: np.ndarray) -> np.ndarray:
        # No matrix product: numpy makes it in threads of its own, which wait for the cores that TensorFlow has.
        (rows, row_shares), (columns, column_shares) = self._rows, self._columns
        flat = (screen[..., 0][rows] * row_shares[..., None]).sum(axis=0)
        scaled: np.ndarray = ((flat[:, columns] * column_shares).sum(axis=1) + 0.5).astype(np.uint8)
        return scaled

    def fixed_player(self, name: str) -> Player:
        if name != "random":
            raise UsageError(f"against={name}: {ID} has no fixed player but random")
        return at_random(self.spec)

    def full_name(self, name: str) -> str:
        return name

    def show(self, board: int) -> tuple[str, dict[int, str]]:  # noqa: ARG002
        raise UsageError(f"{ID} cannot be played in a terminal: both paddles move at once")

    def close(self) -> None:
        self._emulators.clear()


def _button(kwargs: Mapping[str, Any]) -> float:
    if others := set(kwargs) - {"button"}:
        raise UsageError(f"env.kwargs.{min(others)}: {ID} takes only button, the share of games in which it works")
    share = kwargs.get("button", 1)
    if isinstance(share, bool) or not isinstance(share, int | float) or not 0 <= share <= 1:
        raise UsageError(f"env.kwargs.button={share}: must be a number from 0 to 1")
    return float(share)


def _emulator() -> Any:
    emulator = multi_agent_ale_py.ALEInterface()
    emulator.setInt(b"random_seed", 0)
    emulator.setFloat(b"repeat_action_probability", 0.0)  # sticky actions are drawn here, one for each player
    emulator.loadROM(str(roms.get_rom_path("pong")))
    emulator.setMode(_MODE)
    return emulator


def _averages(size: int, pixels: int) -> tuple[np.ndarray, np.ndarray]:
    """Which of so many pixels go into each of fewer, int64 `[N, size]`, and with which shares, float32 `[N, size]`."""
    ends = np.arange(size + 1) * pixels / size
    count = math.ceil(pixels / size) + 1
    at = np.minimum(ends[:-1].astype(np.int64), pixels - count) + np.arange(count)[:, None]
    overlap = np.minimum(ends[1:], at + 1) - np.maximum(ends[:-1], at)
    shares: np.ndarray = (np.clip(overlap, 0, 1) * size / pixels).astype(np.float32)
    return at, shares
