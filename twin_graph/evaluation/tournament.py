"""Tournaments: snapshots of one or several runs, and fixed players, play each other from both seats.

The games of each pair are recorded with the runs as soon as they are played: a killed tournament continues
where it was, and ratings are computed from the records alone.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import inspect
import itertools
import math
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import choix
import numpy as np
from scipy.sparse.csgraph import connected_components
from scipy.stats import binomtest

from twin_graph.base.streams import Purpose, stream
from twin_graph.base.text import counted
from twin_graph.envs.seats import NOBODY, Boards, Player, boards_of, by_values, play_turn
from twin_graph.errors import UsageError
from twin_graph.evaluation.player import spec_of
from twin_graph.snapshots.files import append_line, checked, read_lines, write_file
from twin_graph.snapshots.forms import GameLine, problem
from twin_graph.snapshots.ledger import Commit, utc_now
from twin_graph.snapshots.run import GAMES, RATINGS, Run
from twin_graph.twin.twin import Compute, Twin

if TYPE_CHECKING:
    from twin_graph.config.settings import EnvSettings
    from twin_graph.twin.model import ModelSpec

#: The player rated 0, if it takes part.
ANCHOR = "random"
_ELO = 400 / np.log(10)  # a difference of 400 is a probability of 10 : 1 (Elo 1978)
_RESAMPLES = 300
_LEVEL = 0.05
#: What everybody is credited with against everybody, in wins: without it, who won all games would have no rating.
_PRIOR = 0.1


class Contestant(NamedTuple):
    """A player in a tournament.

    Attributes:
      name: for people: `RUN:SNAPSHOT`, or that of a fixed player. RUN is a folder where two runs have one name.
      key: by which games are found again: the hash of a snapshot's weights, or the full name of a fixed player, with
        one of its code if it is your own.
      run, snapshot: whose weights these are; None for a fixed player.
    """

    name: str
    key: str
    run: Run | None = None
    snapshot: Commit | None = None

    def short(self, *, with_run: bool) -> str:
        """For pictures: the snapshot's number, with the run if there are several."""
        if self.run is None or self.snapshot is None:
            return self.name
        number = self.snapshot.id.partition("-")[0]
        return f"{self.name.rpartition(':')[0]}:{number}" if with_run else number


class Pairing(NamedTuple):
    """The games of two contestants.

    Attributes:
      first, second: their keys.
      returns: the first one's, of each game; games 2i and 2i + 1 share an opening, which it plays from seat 0, then 1.
    """

    first: str
    second: str
    returns: Sequence[float]

    @property
    def score(self) -> float:
        """The share of points that the first got: a win is one, a draw a half."""
        return float(np.mean(_points(self.returns)))


class Rating(NamedTuple):
    """Elo, as points above `random` if it plays, else above the mean; with its 95% bootstrap interval over openings.

    The interval is NaN where there is only one opening, and where no game says how far the player is from `random`, or
    without it from anybody: see `groups`.
    """

    elo: float
    low: float
    high: float


class Rules(NamedTuple):
    """The rules under which games are comparable.

    Attributes:
      games: per pair; even.
      opening_moves: made at random before the contestants take over.
      epsilon: share of random actions of snapshots.
      seed: of openings and of everything else that is random.
    """

    games: int
    opening_moves: int
    epsilon: float
    seed: int


def contestants(runs: Sequence[Run], snapshots: int, fixed: Sequence[str]) -> list[Contestant]:
    """Snapshots of each run, spaced evenly over its updates from the newest to the first, and fixed players by names.

    Snapshots of equal weights, as forks share them, are one contestant.

    Raises:
      UsageError: the runs play different games, or games of one player, or there is no such fixed player.
    """
    if others := [run for run in runs if _game(run) != _game(runs[0])]:
        ours, theirs = runs[0].settings.env.id, others[0].settings.env.id
        raise UsageError(f"{runs[0].name} plays {ours} and {others[0].name} plays {theirs}, or env settings differ")
    with contextlib.closing(boards_of(runs[0].settings.env, 1)) as boards:
        for name in fixed:
            boards.fixed_player(name)
        fixed_names = list(dict.fromkeys(map(boards.full_name, fixed)))  # mcts and mcts(100) are one
    found: dict[str, Contestant] = {}
    names = Counter(run.name for run in runs)
    for run in runs:
        name = run.name if names[run.name] == 1 else str(run.folder)
        present = run.store().available
        if not present:
            raise UsageError(f"{run.folder} has no snapshot with weights")
        chosen = present
        if snapshots < len(present):
            spaced = np.linspace(present[-1].updates, present[0].updates, snapshots)[::-1]
            left = dict.fromkeys(present)
            for at in spaced:
                del left[min(left, key=lambda snapshot: abs(snapshot.updates - at))]
            chosen = [snapshot for snapshot in present if snapshot not in left]
        for one in chosen:
            found.setdefault(one.weights_sha256, Contestant(f"{name}:{one.id}", one.weights_sha256, run, one))
    return [*found.values(), *(Contestant(name, name + _code_of(name)) for name in fixed_names)]


def _code_of(name: str) -> str:
    """A hash of the file with a fixed player of one's own, which may change; nothing for others."""
    module, separator, _ = name.partition(":")
    if not separator:
        return ""
    source = inspect.getsource(importlib.import_module(module))
    return f" {hashlib.sha256(source.encode()).hexdigest()[:8]}"


def _game(run: Run) -> EnvSettings:
    """What runs must have in common: everything but how many games they trained on at a time, and how."""
    return run.settings.env.model_copy(update={"count": 1, "vectorization": "sync"})


def play(runs: Sequence[Run], who: Sequence[Contestant], rules: Rules) -> Iterator[tuple[int, int, list[Pairing]]]:
    """Plays all pairs whose games are not recorded yet; yields how many pairs are done, of how many, and these.

    Raises:
      UsageError: there is nobody to play against, every game is over after its random opening, or all are the same.
    """
    greedy = runs[0].settings.env.id.startswith("OpenSpiel/") and not rules.opening_moves and not rules.epsilon
    if greedy and sum(one.run is not None for one in who) > 1:
        raise UsageError("without random moves two snapshots repeat one game: raise --opening or --epsilon")
    if len(who) < 2:
        raise UsageError(f"{who[0].name} has nobody to play against; raise --snapshots, or add --against {ANCHOR}")
    for run in runs:
        if not os.access(run.folder, os.W_OK):
            raise UsageError(f"{run.folder} cannot be written to: a tournament records its games there")
    pairs = list(itertools.combinations(who, 2))
    recorded = read(runs, rules)
    done = [recorded[a.key, b.key] for a, b in pairs if (a.key, b.key) in recorded]
    left = [(a, b) for a, b in pairs if (a.key, b.key) not in recorded]
    boards = boards_of(runs[0].settings.env, rules.games)
    players = _Players(boards, rules.epsilon)
    try:
        players.read(itertools.chain.from_iterable(left))
        yield len(done), len(pairs), done
        for a, b in left:
            returns = match(boards, players.first(a), players.second(b), rules)
            pairing = Pairing(a.key, b.key, returns)
            _record(a.run or b.run or runs[0], a, b, pairing, rules)
            done.append(pairing)
            yield len(done), len(pairs), done
    finally:
        players.close()
        boards.close()


def match(boards: Boards, first: Player, second: Player, rules: Rules) -> list[float]:
    """Plays `rules.games` games at once, on as many boards.

    Returns, for each game, half the difference between what the first and the second player gained: if one gains what
    the other loses, this is the first one's return.
    """
    games = np.arange(boards.count)
    seats = games % 2  # of the first player
    randoms = [stream(rules.seed, Purpose.TOURNAMENT, int(game)) for game in games]
    openings = [stream(rules.seed, Purpose.OPENING, int(game) // 2) for game in games]
    gained = np.zeros((boards.count, 2))
    for game in games.tolist():
        boards.begin(game, openings[game])
    anybody = boards.fixed_player(ANCHOR)
    for _ in range(rules.opening_moves):
        going = games[boards.to_move != NOBODY]
        if not len(going):
            break
        gained[going] += play_turn(boards, going, anybody, [openings[game] for game in going])
    if (boards.to_move == NOBODY).all():
        raise UsageError(f"after {counted(rules.opening_moves, 'random move')} every game is over; lower --opening")
    while (boards.to_move != NOBODY).any():
        for player, seat in ((first, seats), (second, 1 - seats)):
            turn = games[boards.to_move == seat]
            if len(turn):
                gained[turn] += play_turn(boards, turn, player, [randoms[game] for game in turn])
    returns: list[float] = ((gained[games, seats] - gained[games, 1 - seats]) / 2).tolist()
    return returns


class _Players:
    """Turns contestants into players; owns two twins per kind of network, one for each side."""

    def __init__(self, boards: Boards, epsilon: float) -> None:
        self._boards, self._epsilon = boards, epsilon
        self._specs: dict[Path, ModelSpec] = {}
        self._twins: list[tuple[str, ModelSpec, Twin]] = []
        self._weights: dict[str, dict[str, np.ndarray]] = {}  # by the contestant's key
        self._fixed: dict[str, Player] = {}

    def read(self, contestants: Iterable[Contestant]) -> None:
        """Reads the weights of all who will play: a run that trains may remove them between two games."""
        for who in contestants:
            if who.run and who.snapshot and who.key not in self._weights:
                store, twin = who.run.store(), self._twin(who.run, "first")
                with store.reading():
                    twin.restore_snapshot(who.snapshot, store)
                self._weights[who.key] = twin.weights()

    def first(self, who: Contestant) -> Player:
        return self._player(who, "first")

    def second(self, who: Contestant) -> Player:
        return self._player(who, "second")

    def close(self) -> None:
        for _, _, twin in self._twins:
            twin.close()

    def _player(self, who: Contestant, side: str) -> Player:
        if who.run is None or who.snapshot is None:
            if who.name not in self._fixed:
                self._fixed[who.name] = self._boards.fixed_player(who.name)
            return self._fixed[who.name]
        twin = self._twin(who.run, side)
        twin.load(self._weights[who.key])
        return by_values(twin.spec.env, twin.q_values, self._epsilon)

    def _twin(self, run: Run, side: str) -> Twin:
        folder = run.folder  # runs in two folders may have one name
        spec = self._specs.get(folder) or self._specs.setdefault(folder, spec_of(run))
        twin = next((twin for of_side, of, twin in self._twins if (of_side, of) == (side, spec)), None)
        if twin is None:
            twin = Twin(side, spec, compute=Compute(threads=1), learns=False)
            self._twins.append((side, spec, twin))
        return twin


def _record(run: Run, a: Contestant, b: Contestant, pairing: Pairing, rules: Rules) -> None:
    line = {
        "time": utc_now(),
        "players": [a.name, b.name],
        "keys": [a.key, b.key],
        "rules": rules._asdict(),
        "environment": run.settings.env.id,
        "returns": list(pairing.returns),
    }
    append_line(run.folder / GAMES, line)


def read(runs: Sequence[Run], rules: Rules) -> dict[tuple[str, str], Pairing]:
    """The games recorded with these runs and played by these rules, by the keys of both players."""
    found = {}
    for run in runs:
        for line in read_lines(run.folder / GAMES):
            record = line.record
            if record and not problem(GameLine, record) and record["rules"] == rules._asdict():
                first, second = record["keys"]
                found[first, second] = Pairing(first, second, record["returns"])
                found[second, first] = Pairing(second, first, [-r for r in record["returns"]])
    return found


def rate(who: Sequence[Contestant], pairings: Sequence[Pairing]) -> list[Rating]:
    """Ratings of the contestants, in their order, from the model of Bradley and Terry (1952); a draw is half a win.

    Args:
      who: contestants.
      pairings: all of their games, as many for each.
    """
    place = {one.key: i for i, one in enumerate(who)}
    points = [_points(pairing.returns) for pairing in pairings]
    ends = [(place[pairing.first], place[pairing.second]) for pairing in pairings]
    at = place.get(ANCHOR)

    def elo(scores: Sequence[np.ndarray]) -> np.ndarray:
        wins = _PRIOR * (1 - np.eye(len(who)))
        for (i, j), score in zip(ends, scores, strict=True):
            wins[i, j] += score.sum()
            wins[j, i] += len(score) - score.sum()
        values: np.ndarray = choix.ilsr_pairwise_dense(wins, max_iter=1_000) * _ELO
        values -= values.mean() if at is None else values[at]
        return values

    random, openings = stream(0, Purpose.BOOTSTRAP, 0), len(points[0]) // 2 if points else 0
    resampled = []
    for _ in range(_RESAMPLES):
        chosen = random.integers(0, openings, openings)  # the same ones for all pairs
        resampled.append(elo([score.reshape(-1, 2)[chosen].ravel() for score in points]))
    low, high = np.percentile(resampled, [2.5, 97.5], axis=0)
    labels = _labels(shares(who, pairings))
    known = labels == labels[at] if at is not None else np.full(len(who), labels.max(initial=0) == 0)
    known &= openings > 1  # of one, each sample is the same
    low[~known] = high[~known] = math.nan
    return [Rating(float(value), float(a), float(b)) for value, a, b in zip(elo(points), low, high, strict=True)]


def shares(who: Sequence[Contestant], pairings: Sequence[Pairing]) -> np.ndarray:
    """The share of points of each against each, `[N, N]` in their order; NaN where they did not meet."""
    place = {one.key: i for i, one in enumerate(who)}
    found = np.full((len(who), len(who)), np.nan)
    for pairing in pairings:
        a, b = place[pairing.first], place[pairing.second]
        found[a, b], found[b, a] = pairing.score, 1 - pairing.score
    return found


def groups(who: Sequence[Contestant], shares: np.ndarray) -> list[list[str]]:
    """Names of contestants, in groups. Of any two groups, one won every game against the other: only the credit, and no
    game, says how far apart they are."""
    labels = _labels(shares)
    return [[one.name for one, label in zip(who, labels, strict=True) if label == group] for group in np.unique(labels)]


def _labels(shares: np.ndarray) -> np.ndarray:
    """The number of each one's group, from 0."""
    _, labels = connected_components(shares > 0, connection="strong")
    return np.asarray(labels)


def cycles(who: Sequence[Contestant], pairings: Sequence[Pairing]) -> list[tuple[str, str, str]]:
    """Contestants of whom the first beats the second, the second the third, and the third the first, by their names."""
    names, won = {one.key: one.name for one in who}, beats(pairings)
    after: dict[str, list[str]] = {}
    for one, other in sorted(won):
        after.setdefault(one, []).append(other)
    return [
        (names[a], names[b], names[c])
        for a in after
        for b in after[a]
        for c in after.get(b, [])
        if (c, a) in won and a == min(a, b, c)
    ]


def beats(pairings: Sequence[Pairing]) -> set[tuple[str, str]]:
    """By their keys, who beats whom: has more points in significantly more openings, by a sign test at 5%."""
    found = set()
    for pairing in pairings:
        by_opening = _points(pairing.returns).reshape(-1, 2).mean(axis=1)
        better, worse = int((by_opening > 0.5).sum()), int((by_opening < 0.5).sum())
        if better + worse and binomtest(better, better + worse).pvalue < _LEVEL:
            found.add((pairing.first, pairing.second) if better > worse else (pairing.second, pairing.first))
    return found


def record_ratings(
    runs: Sequence[Run], who: Sequence[Contestant], ratings: Sequence[Rating], rules: Rules
) -> Mapping[str, Any]:
    """Writes `ratings.json` in the folder of each run, durably, and returns what it says."""
    rated = sorted(zip(who, ratings, strict=True), key=lambda pair: -pair[1].elo)
    document = {
        "rules": rules._asdict(),
        "environment": runs[0].settings.env.id,
        "players": [{"name": one.name, "key": one.key, **rating._asdict()} for one, rating in rated],
    }
    for run in runs:
        write_file(run.folder / RATINGS, checked(document, indent=1))
    return document


def _points(returns: Sequence[float]) -> np.ndarray:
    points: np.ndarray = (np.sign(np.array(returns)) + 1) / 2
    return points
