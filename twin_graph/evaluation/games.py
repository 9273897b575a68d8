"""True scores: whole games, unclipped, in environments of their own."""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from twin_graph import envs
from twin_graph.base.streams import Purpose, environment_seeds, stream
from twin_graph.base.text import counted, interval_before
from twin_graph.envs.seats import Seat
from twin_graph.evaluation import film

if TYPE_CHECKING:
    from twin_graph.config.settings import Settings
    from twin_graph.twin.twin import Distribution, Twin

PARALLEL_GAMES = 10
RESAMPLES = 10_000
#: Gets the environments, Q values `[E, A]`, the actions chosen by them, int `[E]`, what came of these, and the
#: distribution in the first environment, `[1, A, N]`, if there is one.
Watch = Callable[[envs.VectorEnv, np.ndarray, np.ndarray, envs.VectorStep, "Distribution | None"], None]
_RESAMPLED_AT_ONCE = 1_000_000  # numbers; bounds the memory


class Contender(NamedTuple):
    """Who plays.

    Attributes:
      q_values: observations `[B, ...]` to Q values `[B, A]`.
      lasting: what its environments had kept, lent to those of the games; see `twin_graph.envs.lasting`.
      depth: how many agent steps ahead it can look, if that is known; see `twin_graph.records.depth`.
      distribution: observations to what it expects as a distribution; None if it has values alone.
    """

    q_values: Callable[[np.ndarray], np.ndarray]
    lasting: Mapping[str, np.ndarray] = MappingProxyType({})
    depth: float | None = None
    distribution: Callable[[np.ndarray], Distribution] | None = None

    @classmethod
    def of(cls, twin: Twin, lasting: Mapping[str, np.ndarray], depth: float | None = None) -> Contender:
        """What a twin holds."""
        return cls(twin.q_values, lasting, depth, twin.distribution if twin.has_distributions else None)


class Evaluation(NamedTuple):
    """Scores of one snapshot.

    Attributes:
      returns: the undiscounted, unclipped sum of rewards of each episode.
      seeds: of the environments; the k-th plays episodes k, k + len(seeds), ...
      protocol: what the score depends on.
      q_start: the largest Q value at the first observation of each episode: what the snapshot expects.
      discounted: the discounted return of each episode, of rewards clipped as in training.
      cut: games that lasted as long as an evaluation allows; they count with the score reached by then.
      truncated: as `discounted`, of the first `depth` steps alone; empty where that is not known.
      depth: how many agent steps ahead the snapshot can look; see `twin_graph.records.depth`.
    """

    returns: list[float]
    seeds: list[int]
    protocol: dict[str, Any]
    q_start: Sequence[float] = ()
    discounted: Sequence[float] = ()
    cut: int = 0
    truncated: Sequence[float] = ()
    depth: float | None = None

    @property
    def mean(self) -> float:
        return float(np.mean(self.returns))

    @property
    def interval(self) -> tuple[float, float] | None:
        """95% percentile bootstrap interval of the mean (Efron 1979), over episodes; None of fewer than two."""
        if len(self.returns) < 2:
            return None
        random = stream(0, Purpose.BOOTSTRAP, 0)
        rows = max(1, _RESAMPLED_AT_ONCE // len(self.returns))
        draws = np.concatenate(
            [
                random.choice(self.returns, size=(min(rows, RESAMPLES - done), len(self.returns))).mean(axis=1)
                for done in range(0, RESAMPLES, rows)
            ]
        )
        low, high = np.percentile(draws, [2.5, 97.5])
        return float(low), float(high)

    def words(self) -> str:
        """For people: the mean, its interval if there is one, the number of games."""
        cut = f", {self.cut} cut at the step limit" if self.cut else ""
        against = f" against {player}" if (player := self.protocol.get("against")) else ""
        games = counted(len(self.returns), "episode")
        return f"{self.mean:z.2f}{against} ({interval_before(self.interval)}{games}{cut})"

    def summary(self) -> dict[str, Any]:
        """For `evaluations.jsonl` and `--json`."""
        return {
            "mean": self.mean,
            "interval_95": self.interval and list(self.interval),
            "episodes": len(self.returns),
            "returns": self.returns,
            "seeds": self.seeds,
            "protocol": self.protocol,
            "q_start": list(self.q_start),
            "discounted": list(self.discounted),
            **({"cut": self.cut} if self.cut else {}),
            **({} if self.depth is None else {"truncated": list(self.truncated), "depth_agent_steps": self.depth}),
        }


@dataclasses.dataclass
class _Game:
    """A game in progress; see `Evaluation`."""

    score: float = 0.0
    q_start: float = math.nan
    discounted: float = 0.0
    truncated: float = 0.0
    weight: float = 1.0
    steps: int = 0
    cut: bool = False

    def add(self, score_t: float, r_t: float, q_tm1: float, discount: float, depth: float) -> None:
        if math.isnan(self.q_start):
            self.q_start = q_tm1
        self.score += score_t
        self.discounted += self.weight * r_t
        self.truncated += self.weight * r_t * min(1.0, max(0.0, depth - self.steps))
        self.steps += 1
        self.weight *= discount


class _Games:
    """Games that are played side by side.

    Every environment plays a number of games fixed beforehand: taking the first that finish would favour short ones.

    Attributes:
      ended: how many games ended.
    """

    def __init__(self, episodes: int, env: envs.VectorEnv, settings: Settings, depth: float | None) -> None:
        self.ended = 0
        self._whole: list[_Game | None] = [None] * episodes
        self._playing = np.arange(env.count)  # which game each environment plays; those beyond the last do not count
        self._now = [_Game() for _ in range(env.count)]
        self._clip, self._discount, self._depth = env.spec.reward_clip, settings.train.discount, depth or 0.0
        self._cut_after = env.cut_after

    @property
    def left(self) -> bool:
        return bool((self._playing < len(self._whole)).any())

    @property
    def whole(self) -> list[_Game]:
        """Those that ended, in the order of their numbers."""
        return [game for game in self._whole if game]

    def add(self, q_tm1: np.ndarray, step: envs.VectorStep) -> None:
        """What followed the actions that Q values `[E, A]` chose."""
        r_t = step.score_t if self._clip is None else np.clip(step.score_t, -self._clip, self._clip)
        for e, game in enumerate(self._now):
            game.add(float(step.score_t[e]), float(r_t[e]), float(q_tm1[e].max()), self._discount, self._depth)
            if step.last_t[e]:
                game.cut = not step.terminal_t[e] and game.steps == self._cut_after
                if self._playing[e] < len(self._whole):
                    self._whole[self._playing[e]] = game
                    self.ended += 1
                self._playing[e] += len(self._now)
                self._now[e] = _Game()


def check_evaluations(settings: Settings) -> None:
    """Raises `UsageError` if `evaluate.against`, `.max_steps` or `.video` asks for something unavailable."""
    film.check_filming(settings)
    if settings.opponent.policy is not None and settings.evaluate.episodes:
        max_steps = settings.evaluate.max_steps
        with contextlib.closing(envs.make(settings.env, count=1, evaluation=True, max_steps=max_steps)) as env:
            if isinstance(env, Seat):
                env.boards.fixed_player(settings.evaluate.against)


def play(
    who: Contender,
    settings: Settings,
    *,
    episodes: int,
    at: tuple[int, int],
    at_once: int | None = None,
    watch: Watch | None = None,
) -> Iterator[Evaluation]:
    """Plays `episodes` whole games, greedily except for `evaluate.epsilon`; yields results after each vector step.

    Only the last evaluation yielded, which has all games, is a score. The others may lack a hundredth of those played.

    Args:
      who: plays.
      settings: of the run.
      episodes: games to play.
      at: seed and counter, which give the environments' seeds and the random actions; use a pair once for fresh ones.
      at_once: games played side by side, if there are so many; None for `PARALLEL_GAMES`. So many have seeds of their
        own. Chance in those that follow depends on how long the games before them lasted.
      watch: called after each vector step; the first environment is then drawn, see `VectorEnv.screens`.
    """
    (seed, counter), count = at, 1 if settings.env.alone else min(episodes, at_once or PARALLEL_GAMES)
    seeds = environment_seeds(seed, Purpose.EVALUATION_ENVIRONMENT, counter, count)
    random = stream(seed, Purpose.EVALUATION_ACT, counter)
    max_steps, drawn = settings.evaluate.max_steps, watch is not None
    with contextlib.closing(
        envs.make(settings.env, count=count, evaluation=True, max_steps=max_steps, screens=drawn)
    ) as env:
        epsilon = env.evaluation_epsilon if settings.evaluate.epsilon is None else settings.evaluate.epsilon
        protocol = {**env.protocol, "epsilon": epsilon}
        if isinstance(env, Seat):
            env.opponent = env.boards.fixed_player(settings.evaluate.against)
            protocol["against"] = settings.evaluate.against
        env.lend(who.lasting)
        games = _Games(episodes, env, settings, who.depth)
        evaluation = Evaluation([], [int(s) for s in seeds], protocol, depth=who.depth)
        s_tm1 = env.reset(seeds)
        while games.left:
            explore = random.random(count) < epsilon
            q_tm1 = who.q_values(s_tm1)
            a_tm1 = np.where(explore, env.spec.random_actions(s_tm1, random), q_tm1.argmax(axis=1))
            step = env.step(a_tm1)
            if watch:
                watch(env, q_tm1, a_tm1, step, who.distribution(s_tm1[:1]) if who.distribution else None)
            games.add(q_tm1, step)
            s_tm1 = step.s_next
            if games.ended > len(evaluation.returns) + episodes // 100 or not games.left:
                whole = games.whole
                evaluation = evaluation._replace(
                    returns=[game.score for game in whole],
                    q_start=[game.q_start for game in whole],
                    discounted=[game.discounted for game in whole],
                    cut=sum(game.cut for game in whole),
                    truncated=[] if who.depth is None else [game.truncated for game in whole],
                )
            yield evaluation


def last(evaluations: Iterable[Evaluation]) -> Evaluation:
    """What `play` ends with: the score of all games."""
    return deque(evaluations, maxlen=1).pop()
