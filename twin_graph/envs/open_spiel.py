"""Games of OpenSpiel (Lanctot et al. 2019), from the package of the extra `selfplay`: `OpenSpiel/connect_four`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
from pydantic import Field

from twin_graph.base.text import assigned, nearest
from twin_graph.config.lookup import call
from twin_graph.envs import EnvSpec
from twin_graph.envs.seats import NOBODY, Player, Seat, Turn, at_random
from twin_graph.errors import ForeignError, UsageError, foreign_error

if TYPE_CHECKING:
    from twin_graph.config.settings import EnvSettings

try:
    import pyspiel
except ModuleNotFoundError:
    raise UsageError("OpenSpiel is not installed: pip install 'twin-graph[selfplay]'") from None

#: In games whose observation does not depend on who looks: the planes of the first player's pieces and the second's.
#: They are exchanged for the second, so that a network sees its own pieces in the same place from either seat.
PIECES = {"tic_tac_toe": (2, 1), "connect_four": (0, 1)}
_FROM_BELOW = ("connect_four",)  # games whose first row is the lowest
_CELL, _BOARD, _FREE, _DISCS = 60, (38, 46, 62), (16, 20, 28), ((255, 200, 60), (240, 90, 90))
_PERFECT_MOVES = 20  # of the longest game that is searched whole
_PERFECT_LIMIT = 20_000  # states that this search may look at
_MCTS_UCT, _MCTS_MEMORY_MB = 1.4, 64


def make(
    settings: EnvSettings,
    *,
    count: int,
    evaluation: bool,  # noqa: ARG001
    max_steps: int | None = None,
    screens: bool = False,
) -> Seat:
    """A kind of environments; see `twin_graph.envs.make`."""
    if max_steps is not None:
        raise UsageError(f"evaluate.max_steps is for other environments; games of {settings.id} end by themselves")
    boards = Spiel(settings, count)
    if not screens:
        return Seat(boards)
    boards.draw()  # of other games nothing is begun
    return Seat(boards, draw=boards.draw)


class Spiel:
    """Implements `twin_graph.envs.seats.Boards` for sequential, deterministic zero-sum games of perfect information.

    Observations are float32: the tensor that OpenSpiel gives the player, channels last if it is an image, with one more
    number or plane that is 1 for the second player where `PIECES` does not know the game.
    """

    def __init__(self, settings: EnvSettings, count: int) -> None:
        self._game = load(settings)
        name = self._game.get_type().short_name
        self._id, self._from_below = settings.id, name in _FROM_BELOW
        shape = self._game.observation_tensor_shape()
        self._planes = shape if len(shape) == 3 else [int(np.prod(shape)), 1, 1]
        self._pieces = PIECES.get(name)
        channels = self._planes[0] + (self._pieces is None)
        seen = (*self._planes[1:], channels) if len(shape) == 3 else (channels,)
        n_actions = self._game.num_distinct_actions()
        size = int(np.prod(seen)) + n_actions
        self.count = count
        self.spec = EnvSpec((size,), n_actions, masked=True, seen_shape=seen, players=2)
        self.protocol: dict[str, str | int | float | bool] = {
            "environment": settings.id,
            "environments": count,
            "actions": f"{n_actions}, of which the legal ones",
            "seats": "both, in turns",
            "time limit, steps": "none",
        }
        if settings.kwargs:
            self.protocol["arguments"] = assigned(settings.kwargs)
        self._states = [self._game.new_initial_state() for _ in range(count)]
        # Some other games end the process if they are asked for the name of an illegal action.
        known = range(n_actions if self._pieces else 0)
        self.action_names = tuple(self._states[0].action_to_string(0, action)[1:] for action in known)
        self.to_move = np.zeros(count, np.int64)
        self.cut = np.zeros(count, np.bool_)

    def begin(self, board: int, random: np.random.Generator) -> None:  # noqa: ARG002 - nothing is random in them
        self.set_state(board, self.new_state())

    def new_state(self) -> Any:
        """A game's beginning, as OpenSpiel has it."""
        return self._game.new_initial_state()

    def set_state(self, board: int, state: Any) -> None:
        """Continues a board from here."""
        self._states[board] = state
        self.to_move[board] = NOBODY if state.is_terminal() else state.current_player()

    def observe(self, boards: np.ndarray, seats: np.ndarray) -> np.ndarray:
        seen = np.empty((len(boards), *self.spec.observation_shape), np.float32)
        for row, (board, seat) in enumerate(zip(boards, seats, strict=True)):
            state = self._states[board]
            planes = np.array(state.observation_tensor(int(seat)), np.float32).reshape(self._planes)
            if self._pieces is None:
                planes = np.concatenate([planes, np.full((1, *self._planes[1:]), seat, np.float32)])
            elif seat:
                planes[list(self._pieces)] = planes[list(reversed(self._pieces))]
            seen[row, : -self.spec.n_actions] = planes.transpose(1, 2, 0).ravel()
            seen[row, -self.spec.n_actions :] = 0
            if not state.is_terminal():
                seen[row, -self.spec.n_actions :] = state.legal_actions_mask()
        return seen

    def states(self, boards: np.ndarray) -> Sequence[Any]:
        return [self._states[board] for board in boards]

    def move(self, boards: np.ndarray, actions: np.ndarray) -> np.ndarray:
        gains = np.zeros((len(boards), 2), np.float32)
        for row, (board, action) in enumerate(zip(boards, actions, strict=True)):
            state = self._states[board]
            state.apply_action(int(action))
            self.set_state(board, state)
            if state.is_terminal():
                gains[row] = state.returns()
        return gains

    def fixed_player(self, name: str) -> Player:
        function, arguments = call("against", name, PLAYERS, skip=2)
        if ":" not in name:
            player: Player = function(self._game, self.spec, **arguments)
            return player
        try:
            made = function(self._game, self.spec, **arguments)
        except Exception as error:
            raise foreign_error(f"against={name}", error) from error
        return _checked(name, made, self.spec)

    def full_name(self, name: str) -> str:
        _, arguments = call("against", name, PLAYERS, skip=2)
        return name.partition("(")[0].strip() + (f"({','.join(map(str, arguments.values()))})" if arguments else "")

    def show(self, board: int) -> tuple[str, dict[int, str]]:
        state = self._states[board]
        return str(state), {action: state.action_to_string(action) for action in state.legal_actions()}

    def draw(self) -> np.ndarray:
        """The first board as a picture, uint8 `[H, W, 3]`. Raises `UsageError` if there is none of this game."""
        if self._pieces is None:
            raise UsageError(f"{self._id} cannot be drawn; {' and '.join(PIECES)} can")
        planes = np.array(self._states[0].observation_tensor(0)).reshape(self._planes)
        pieces = [planes[plane, :: -1 if self._from_below else 1] > 0 for plane in self._pieces]
        y, x = np.indices((_CELL, _CELL)) - (_CELL - 1) / 2
        disc = np.tile(np.hypot(x, y) < 0.4 * _CELL, pieces[0].shape)
        picture = np.full((*disc.shape, 3), _BOARD, np.uint8)
        picture[disc] = _FREE
        for there, colour in zip(pieces, _DISCS, strict=True):
            picture[disc & there.repeat(_CELL, axis=0).repeat(_CELL, axis=1)] = colour
        return picture

    def close(self) -> None:
        pass


def _checked(name: str, player: Any, spec: EnvSpec) -> Player:
    """A player of one's own, whose answers are legal actions, or `ForeignError` says what they are."""
    if not callable(player):
        raise ForeignError(f"against={name} returned {player!r}, which is no function of a Turn")

    def move(turn: Turn) -> np.ndarray:
        try:
            actions = np.asarray(player(turn))
        except Exception as error:
            raise foreign_error(f"against={name}", error) from error
        legal, rows = spec.legal(turn.observations), np.arange(len(turn.observations))
        is_one = actions.shape == rows.shape and np.issubdtype(actions.dtype, np.integer)
        if not is_one or (actions < 0).any() or (actions >= spec.n_actions).any() or not legal[rows, actions].all():
            raise ForeignError(
                f"against={name} answered {actions.tolist()}; it must be a legal action, of 0 to {spec.n_actions - 1}, "
                f"on each of {len(rows)} boards"
            )
        return actions

    return move


def load(settings: EnvSettings) -> Any:
    """The game of `settings.id`. Raises `UsageError` if there is none, or it is not of a kind that can be learnt."""
    name = settings.id.partition("/")[2]
    known = {game.short_name: game for game in pyspiel.registered_games()}
    if name not in known:
        raise UsageError(f"unknown game {settings.id!r}{nearest(name, known)}")
    if settings.actions is not None:
        raise UsageError(f"env.actions chooses among the actions of an Atari game, which {settings.id} is not")
    if name in PIECES and settings.kwargs.get("egocentric_obs_tensor"):
        raise UsageError("env.kwargs.egocentric_obs_tensor: each player sees its own pieces first anyway; leave it out")
    kind = known[name]
    wrong = [
        words
        for words, is_wrong in {
            "its players move at the same time": kind.dynamics != pyspiel.GameType.Dynamics.SEQUENTIAL,
            "its players have secrets": kind.information != pyspiel.GameType.Information.PERFECT_INFORMATION,
            "it has dice or cards": kind.chance_mode != pyspiel.GameType.ChanceMode.DETERMINISTIC,
            "one player's gain is not the other's loss": kind.utility != pyspiel.GameType.Utility.ZERO_SUM,
            "it is not for two players": not kind.min_num_players <= 2 <= kind.max_num_players,
            "it has no observation tensor": not kind.provides_observation_tensor,
        }.items()
        if is_wrong
    ]
    if wrong:
        raise UsageError(f"{settings.id} cannot be learnt here: {' and '.join(wrong)}")
    try:
        game = pyspiel.load_game(name, settings.kwargs)
        begin = game.new_initial_state()  # some arguments are looked at here alone
        begin.observation_tensor(0)
    except (pyspiel.SpielError, RuntimeError, TypeError, ValueError) as error:
        first_line = str(error).split("\n")[0]
        raise UsageError(f"cannot make {settings.id}: {first_line}") from None
    if begin.is_terminal():
        raise UsageError(f"with env.kwargs={settings.kwargs} {settings.id} is over before it begins")
    players, actions, seen = game.num_players(), game.num_distinct_actions(), game.observation_tensor_shape()
    if players != 2 or actions < 1 or min(seen) < 1:
        raise UsageError(
            f"with env.kwargs={settings.kwargs} {settings.id} has {players} players, {actions} actions and "
            f"observations of shape {seen}"
        )
    return game


def random(game: Any, spec: EnvSpec) -> Player:  # noqa: ARG001 - players share one signature
    """Takes each legal action with the same probability."""
    return at_random(spec)


def mcts(game: Any, spec: EnvSpec, simulations: Annotated[int, Field(ge=2)] = 100) -> Player:  # noqa: ARG001
    """Monte Carlo tree search by OpenSpiel: UCT, constant 1.4, random games to the end (Kocsis and Szepesvari 2006)."""

    def move(turn: Turn) -> np.ndarray:
        return np.array(
            [search(state, int(draw * 2**31)) for state, draw in zip(turn.states, turn.draws[:, 0], strict=True)]
        )

    def search(state: Any, seed: int) -> int:
        evaluator = pyspiel.RandomRolloutEvaluator(1, seed)
        bot = pyspiel.MCTSBot(game, evaluator, _MCTS_UCT, simulations, _MCTS_MEMORY_MB, True, seed, False)
        return int(bot.step(state))

    return move


def perfect(game: Any, spec: EnvSpec) -> Player:  # noqa: ARG001
    """Searches the game to its end, if it is small enough, and takes one of the best actions at random."""
    too_large = f"the perfect player needs a smaller game than {game.get_type().short_name}"
    if game.max_game_length() > _PERFECT_MOVES:
        raise UsageError(too_large)
    values: dict[tuple[int, str], float] = {}

    def value(state: Any) -> float:
        """What the first player gets if both play perfectly from here."""
        key = state.current_player(), str(state)  # the words may not say whose turn it is
        if key not in values:
            if len(values) > _PERFECT_LIMIT:
                raise UsageError(too_large)
            values[key] = state.returns()[0] if state.is_terminal() else best(state)[0]
        return values[key]

    def best(state: Any) -> tuple[float, list[int]]:
        sign = 1 if state.current_player() == 0 else -1
        by_action = {action: sign * value(state.child(action)) for action in state.legal_actions()}
        most = max(by_action.values())
        return sign * most, [action for action, gain in by_action.items() if gain == most]

    value(game.new_initial_state())

    def move(turn: Turn) -> np.ndarray:
        choices = [best(state)[1] for state in turn.states]
        return np.array([good[int(draw * len(good))] for good, draw in zip(choices, turn.draws[:, 0], strict=True)])

    return move


#: Players that never learn, by name.
PLAYERS = {function.__name__: function for function in (random, mcts, perfect)}
