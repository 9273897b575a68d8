"""Two-player games as environments of one player: the agent has one seat at each board, an opponent the other.

Boards take one move at a time. Where both players of a game move at once, as in Pong, the first one's move waits until
the second has moved without seeing it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np

from twin_graph.envs import EnvSpec, VectorEnv, VectorStep, make
from twin_graph.envs.legal import pick
from twin_graph.errors import UsageError

if TYPE_CHECKING:
    from twin_graph.config.settings import EnvSettings

#: Who is to move on a board where nobody is: the game is over.
NOBODY = -1


class Turn(NamedTuple):
    """What the players whose turn it is are shown, on B boards.

    Attributes:
      observations: `[B, *observation_shape]`, each from the side of whoever is to move.
      draws: random numbers in [0, 1) for this move alone, float64 `[B, 2]`.
      states: the games themselves, for players that look ahead; empty where they cannot be copied.
    """

    observations: np.ndarray
    draws: np.ndarray
    states: Sequence[Any] = ()


#: Chooses an action, int64 `[B]`, on each board. It depends on the turn alone, so that games can be played again.
Player = Callable[[Turn], np.ndarray]


class Boards(Protocol):
    """E boards of one game. Seats are numbered 0 and 1.

    Attributes:
      count: E.
      spec: of one seat.
      protocol: what a score depends on, in words for people.
      to_move: whose turn it is, int64 `[E]`, or `NOBODY`.
      cut: bool `[E]`; the game was ended by its time limit.
      action_names: for people; empty where actions have none.
    """

    count: int
    spec: EnvSpec
    protocol: dict[str, str | int | float | bool]
    to_move: np.ndarray
    cut: np.ndarray
    action_names: tuple[str, ...]

    def begin(self, board: int, random: np.random.Generator) -> None:
        """Begins a new game."""
        ...

    def observe(self, boards: np.ndarray, seats: np.ndarray) -> np.ndarray:
        """Observations `[B, *observation_shape]` of these boards from these seats."""
        ...

    def states(self, boards: np.ndarray) -> Sequence[Any]:
        """See `Turn`."""
        ...

    def move(self, boards: np.ndarray, actions: np.ndarray) -> np.ndarray:
        """Makes a move on each of these boards; returns what both seats gain, float32 `[B, 2]`."""
        ...

    def fixed_player(self, name: str) -> Player:
        """A player that never learns, by its name. Raises `UsageError` if there is none."""
        ...

    def full_name(self, name: str) -> str:
        """The full name of such a player, with all of its arguments, if there is one."""
        ...

    def show(self, board: int) -> tuple[str, dict[int, str]]:
        """The board as text, and people's name for each legal action. Raises `UsageError` if it cannot be shown so."""
        ...

    def close(self) -> None:
        """Ends what was begun."""
        ...


class Seat(VectorEnv):
    """Implements `twin_graph.envs.VectorEnv`: one seat of each board, which changes sides from game to game.

    An agent step is its move and the opponent's answer: what it observes next is its own next turn, or the end.

    Args:
      boards: on which it is played.
      draw: returns the first board as a picture for people, uint8 `[H, W, 3]`.

    Attributes:
      boards: as given.
      opponent: has the other seats; set it before the first reset.
    """

    endless = False
    cut_after: int | None = None
    evaluation_epsilon = 0.0
    screens_per_second = 1.5

    def __init__(self, boards: Boards, *, draw: Callable[[], np.ndarray] | None = None) -> None:
        self.boards = boards
        self.count, self.spec = boards.count, boards.spec
        self.protocol, self.action_names = boards.protocol, boards.action_names
        self._drawn, self._screens = draw, list[np.ndarray]()
        self.opponent: Player | None = None
        self._all = np.arange(self.count)
        self._seats = self._all % 2
        self._randoms: list[np.random.Generator] = []

    def reset(self, seeds: np.ndarray) -> np.ndarray:
        self._randoms = [np.random.Generator(np.random.Philox(key=int(seed))) for seed in seeds]
        self._seats = self._all % 2
        self._begin(range(self.count))
        return self.boards.observe(self._all, self._seats)

    def step(self, actions: np.ndarray) -> VectorStep:
        boards = self.boards
        self._draw(anew=True)
        gains = boards.move(self._all, actions)
        self._draw()
        gains += self._answer()
        self._draw()
        score_t = gains[self._all, self._seats]
        last_t = boards.to_move == NOBODY
        terminal_t = last_t & ~boards.cut
        s_next = s_t = boards.observe(self._all, self._seats)
        if last_t.any():
            self._seats[last_t] = 1 - self._seats[last_t]
            self._begin(np.flatnonzero(last_t).tolist())
            s_next = boards.observe(self._all, self._seats)
        clip = self.spec.reward_clip
        r_t = score_t if clip is None else np.clip(score_t, -clip, clip)
        return VectorStep(s_t=s_t, r_t=r_t, terminal_t=terminal_t, last_t=last_t, s_next=s_next, score_t=score_t)

    def screens(self) -> list[np.ndarray]:
        return self._screens

    def _draw(self, *, anew: bool = False) -> None:
        if self._drawn:
            self._screens = [*([] if anew else self._screens), self._drawn()]

    def close(self) -> None:
        self.boards.close()

    def _begin(self, boards: Iterable[int]) -> None:
        """Begins games up to the agent's first move."""
        for board in boards:
            self.boards.begin(board, self._randoms[board])
        self._answer()
        if (self.boards.to_move == NOBODY).any():
            raise UsageError(
                f"{self.protocol['environment']} can end before its second player's first move, so it cannot be learnt"
            )

    def _answer(self) -> np.ndarray:
        """The opponent moves, on all boards at once, until it is the agent's turn or the end; returns the gains."""
        gains = np.zeros((self.count, 2), np.float32)
        while True:
            theirs = np.flatnonzero(self.boards.to_move == 1 - self._seats)
            if not len(theirs):
                return gains
            assert self.opponent is not None
            gains[theirs] += play_turn(self.boards, theirs, self.opponent, [self._randoms[board] for board in theirs])


def boards_of(settings: EnvSettings, count: int) -> Boards:
    """`count` boards of the game of `settings.id`. Raises `UsageError` if it has one player."""
    env = make(settings, count=count)
    if isinstance(env, Seat):
        return env.boards
    env.close()
    raise UsageError(f"{settings.id} has one player: there is nobody to play against")


def play_turn(boards: Boards, which: np.ndarray, player: Player, randoms: Sequence[np.random.Generator]) -> np.ndarray:
    """One player moves on those boards where it is to move; returns what both seats gain, float32 `[B, 2]`.

    Args:
      boards: all of them.
      which: those to play on, integers `[B]`.
      player: who moves.
      randoms: a generator for each.
    """
    observations = boards.observe(which, boards.to_move[which])
    draws = np.stack([random.random(2) for random in randoms])
    return boards.move(which, player(Turn(observations, draws, boards.states(which))))


def at_random(spec: EnvSpec) -> Player:
    """A player that takes each legal action with the same probability."""
    return lambda turn: pick(spec.legal(turn.observations), turn.draws[:, 0])


def by_values(spec: EnvSpec, q_values: Callable[[np.ndarray], np.ndarray], epsilon: float = 0.0) -> Player:
    """A player that takes the action of the highest Q value, except for a share of random ones.

    Args:
      spec: of a seat.
      q_values: observations `[B, ...]` to Q values `[B, A]`.
      epsilon: the share.
    """
    random = at_random(spec)

    def move(turn: Turn) -> np.ndarray:
        greedy: np.ndarray = q_values(turn.observations).argmax(axis=1)
        if not epsilon:
            return greedy
        return np.where(turn.draws[:, 1] < epsilon, random(turn), greedy)

    return move
