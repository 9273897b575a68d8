"""Target policies: pure functions that choose which snapshots the target restores at a refresh.

(Not the target policy of off-policy learning, the one that is learned about: these choose the target network's
weights.)

A policy sees committed records and a random stream that depends on the run's seed and the number of updates alone, so
that a resumed run chooses as the uninterrupted one would have. To add one, write

    def mine(history: History, random: np.random.Generator, period: int) -> Choice: ...

and name it as `--set target.policy='my_module:mine(3)'`, or add it to `POLICIES`. Parameters need annotations; they are
checked when the settings are read. A policy that chooses several snapshots declares how many with a decorator,
`@needs(members=3)`. Their Q values are averaged unless `combine`, in `needs` or as a parameter, says otherwise: `min`
takes the least of them, `weights` makes one network of their mean weights.

The candidates that a policy names decide what retention keeps: they must be all the present snapshots that it could
choose now, or could still choose once newer ones have been committed.
"""

from __future__ import annotations

import functools
import re
import reprlib
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, TypeVar, get_args

import numpy as np
from pydantic import AfterValidator, Field

from twin_graph.base.streams import Purpose, stream
from twin_graph.base.text import counted
from twin_graph.config import lookup
from twin_graph.errors import ForeignError, UsageError, foreign_error
from twin_graph.snapshots.ledger import Commit, Counters

if TYPE_CHECKING:
    from twin_graph.config.settings import Settings
    from twin_graph.snapshots.store import SnapshotStore

ENSEMBLE_LIMIT = 8
#: The fewest games from which the test of `best` is to be believed.
TEST_EPISODES = 10
_RESAMPLES = 10_000
#: One-sided. Snapshots that score alike then change places in fewer than 5% of comparisons, which a test measures:
#: the percentile bootstrap of so few games is too confident at a level of 5%.
_LEVEL = 0.01

F = TypeVar("F", bound=Callable[..., Any])
Count = Annotated[int, Field(ge=1)]
Probability = Annotated[float, Field(ge=0, le=1)]


class Match(NamedTuple):
    """A scheduled evaluation: who played the same games, and what each of them scored.

    Attributes:
      updates: made when it was played.
      challenger: the snapshot that was the newest.
      returns: by snapshot id, of each episode. The first ten of a match begin from the same seeds; see
        `twin_graph.evaluation.games.play`.
    """

    updates: int
    challenger: str
    returns: dict[str, list[float]]


class History(NamedTuple):
    """What a policy may look at.

    Attributes:
      updates: made so far.
      snapshots: of the lineage to choose from, oldest first, never empty; only those whose weights are present.
      matches: scheduled evaluations under the present protocol, oldest first.
      league: the newest snapshot of each other run that has arrived from its remote, if any are named.
    """

    updates: int
    snapshots: Sequence[Commit]
    matches: Sequence[Match] = ()
    league: Sequence[Commit] = ()

    @classmethod
    def of(cls, store: SnapshotStore, lineage: str, now: Counters, played: Sequence[Match]) -> History:
        """The history of one lineage, with the matches of its snapshots."""
        snapshots = [s for s in store.available if s.lineage == lineage and s.updates <= now.updates]
        matches = [match for match in played if store.lineage_of(match.challenger) in (lineage, None)]
        return cls(now.updates, snapshots, matches, store.league(now.agent_steps))


class Choice(NamedTuple):
    """What a policy returns.

    Attributes:
      snapshots: what to restore: one, or the members of an ensemble.
      candidates: see this module's text.
      reason: in words, for the ledger.
      draw: the random number that decided, if one did.
    """

    snapshots: Sequence[Commit]
    candidates: Sequence[Commit]
    reason: str
    draw: float | None = None


Combine = Literal["mean", "min", "weights"]


class Needs(NamedTuple):
    """What a policy needs besides its parameters.

    Each function takes the policy's own parameters, by name, after the arguments listed here.

    Attributes:
      members: the largest number of snapshots it chooses at once, or a function that returns it.
      combine: how several become one: `mean` or `min` of their Q values, or `weights`, their mean.
      rival: takes the history; returns the snapshot that the newest has to beat in scheduled evaluations, or None.
      check: takes the settings; returns, in words, what the policy needs and they lack; empty if nothing.
      snapshot: returns the id of the snapshot that it requires, or the beginning of that id; empty for none.
    """

    members: int | Callable[..., int] = 1
    combine: Combine = "mean"
    rival: Callable[..., str | None] | None = None
    check: Callable[..., str] = lambda settings, **_: ""  # noqa: ARG005
    snapshot: Callable[..., str] = lambda **_: ""


def needs(**what: Any) -> Callable[[F], F]:
    """Decorates a policy with what it needs: `@needs(members=3)`; see `Needs`."""

    def remember(function: F) -> F:
        function.needs = Needs(**what)  # type: ignore[attr-defined]
        return function

    return remember


def latest(history: History, random: np.random.Generator) -> Choice:  # noqa: ARG001
    """The newest snapshot.

    Source: the periodic copy of Mnih et al. 2015, by way of the disk.
    """
    newest = history.snapshots[-1:]
    return Choice(newest, newest, "the newest")


def lag(history: History, random: np.random.Generator, updates: Count) -> Choice:  # noqa: ARG001
    """The newest snapshot that is at least `updates` updates old; until there is one, the first.

    Source: a periodic copy (Mnih et al. 2015) is up to N updates old; this one is always about N.
    """
    old = [i for i, s in enumerate(history.snapshots) if s.updates <= history.updates - updates]
    at = old[-1] if old else 0
    chosen = history.snapshots[at]
    age = history.updates - chosen.updates
    reason = (
        f"the newest that is at least {updates:,} updates old" if old else f"the first; none is {updates:,} updates old"
    )
    return Choice([chosen], history.snapshots[at:], f"{reason} ({age:,})")


def window(history: History, random: np.random.Generator, size: Count) -> Choice:
    """One of the last `size` snapshots, each with the same probability.

    Source: opponent sampling in self-play (Bansal et al. 2018; the window of ML-Agents' ghost trainer).
    """
    last = history.snapshots[-size:]
    draw = float(random.random())
    at = int(draw * len(last))
    return Choice([last[at]], last, f"number {at + 1} of the last {len(last)}, drawn at random", draw)


def mix(history: History, random: np.random.Generator, probability: Probability, size: Count = 8) -> Choice:
    """The newest snapshot with this `probability`, else one of the last `size` as `window` draws it.

    Source: the mixture of latest and past opponents in OpenAI Five (Berner et al. 2019: 80% latest).
    """
    draw = float(random.random())
    last = history.snapshots[-size:]
    if draw < probability:
        return Choice(last[-1:], last, f"the newest: the draw is below {probability:g}", draw)
    drawn = window(history, random, size)
    return drawn._replace(reason=f"{drawn.reason}, since {draw:.3f} is not below {probability:g}")


def league(history: History, random: np.random.Generator, past: Probability = 0.5, size: Count = 8) -> Choice:
    """One of the last `size` own snapshots with the probability `past`, else the newest of one of the other runs.

    Other runs are named by `train --opponent URL`. Until a snapshot of one has arrived, all are own.

    Source: past and other agents as opponents in one league (Vinyals et al. 2019, AlphaStar).
    """
    draw = float(random.random())
    own, others = history.snapshots[-size:], history.league
    if draw < past or not others:
        drawn = window(history, random, size)
        return drawn._replace(candidates=[*own, *others])
    at = int((draw - past) / (1 - past) * len(others))
    reason = f"number {at + 1} of {counted(len(others), 'other run')}: {others[at].origin}"
    return Choice([others[at]], [*own, *others], reason, draw)


def _id(text: str) -> str:
    """A snapshot id or a prefix of one, zero-padded: `3` becomes `000003`."""
    if not re.fullmatch(r"\d{1,6}|\d{6,}(-[0-9a-f]{0,8})?", text):
        raise ValueError("must be a snapshot's number or id, such as 3 or 000003-3fa9c1d2")
    return text.zfill(6)


@needs(snapshot=lambda snapshot: snapshot)
def pinned(
    history: History,
    random: np.random.Generator,  # noqa: ARG001
    snapshot: Annotated[str, AfterValidator(_id)],
) -> Choice:
    """Always the snapshot with this number or id; the newest until it exists, or where it is another learner's.

    Source: a fixed opponent, or a regression to a target that was chosen by hand.
    """
    matching = [s for s in history.snapshots if s.id.startswith(snapshot)]
    if not matching:
        return Choice(history.snapshots[-1:], history.snapshots[-1:], f"the newest: {snapshot} is not among these")
    return Choice(matching[:1], matching[:1], "pinned")


def rollback(history: History, random: np.random.Generator, limit: Annotated[float, Field(gt=0)] = 1.0) -> Choice:  # noqa: ARG001
    """The newest snapshot, unless its Q values diverge; then the newest healthy one.

    A snapshot is unhealthy when the largest |Q| on the held-out observations is not finite, or above `limit` times the
    largest value that a return can have: the largest |reward| seen / (1 - discount).

    Source: soft divergence in van Hasselt et al. 2018, "Deep Reinforcement Learning and the Deadly Triad".
    """

    def healthy(s: Commit) -> bool:
        if s.health is None:
            return True
        largest, highest = s.health.q_abs_max, s.health.q_limit
        return largest is not None and (highest is None or largest <= limit * highest)

    newest = history.snapshots[-1]
    if healthy(newest):
        return Choice([newest], [newest], "the newest; its Q values are healthy")
    fallback = next((s for s in reversed(history.snapshots) if healthy(s)), history.snapshots[0])
    assert newest.health is not None
    largest, highest = newest.health.q_abs_max, newest.health.q_limit
    found = "not finite" if largest is None else f"up to {largest:.3g}, returns at most {highest:.3g}"
    return Choice([fallback], [fallback, newest], f"{newest.id} diverges: |Q| is {found}")


@needs(members=lambda size, combine: size)  # noqa: ARG005
def ensemble(
    history: History,
    random: np.random.Generator,  # noqa: ARG001
    size: Annotated[int, Field(ge=1, le=ENSEMBLE_LIMIT)],
    combine: Literal["min", "mean"] = "mean",  # noqa: ARG001
) -> Choice:
    """The last `size` snapshots together; Q is their minimum or mean, for each action, before the maximum.

    Source: mean, Averaged-DQN (Anschel et al. 2017); min, Maxmin Q-learning (Lan et al. 2020), there with learners
    trained apart.
    """
    last = history.snapshots[-size:]
    return Choice(last, last, f"the last {len(last)}")


@needs(members=lambda size: size, combine="weights")
def average(
    history: History,
    random: np.random.Generator,
    size: Annotated[int, Field(ge=1, le=ENSEMBLE_LIMIT)],
) -> Choice:
    """One network whose weights are the mean of the last `size` snapshots': a soft target whose parts are on disk.

    Source: Polyak and Juditsky 1992; the soft updates of Lillicrap et al. 2016 weight the past geometrically instead.
    """
    return ensemble(history, random, size)


class Incumbent(NamedTuple):
    """The best snapshot, how many challengers it has stood against, and why it is best."""

    snapshot: str
    stood: int
    reason: str


def incumbent(history: History, rule: str = "test") -> Incumbent | None:
    """The best snapshot after these matches, among those whose weights are present; None before the first.

    A match counts even if its challenger lost and has been removed: retention must not change the choice. If the best
    one's own weights are gone, the result is whichever would be best without it.
    """
    present = {snapshot.id for snapshot in history.snapshots}
    gone: set[str] = set()
    while found := _best_of([match for match in history.matches if match.challenger not in gone], rule):
        if found.snapshot in present:
            return found
        gone.add(found.snapshot)
    return None


def _best_of(matches: Sequence[Match], rule: str) -> Incumbent | None:
    leader: Incumbent | None = None
    returns: dict[str, list[float]] = {}
    for match in matches:
        challenger = match.challenger
        for snapshot, scores in match.returns.items():
            returns.setdefault(snapshot, []).extend(scores)
        if leader is None:
            leader = Incumbent(challenger, 0, "the first that was evaluated")
        elif challenger != leader.snapshot:
            won = _beats(rule, challenger, leader.snapshot, match, returns)
            leader = Incumbent(challenger, 0, won) if won else leader._replace(stood=leader.stood + 1)
    return leader


def _beats(rule: str, ours: str, theirs: str, match: Match, returns: Mapping[str, Sequence[float]]) -> str:
    """Why the challenger takes the incumbent's place; empty if it does not."""
    if rule == "mean":
        means = float(np.mean(returns[ours])), float(np.mean(returns[theirs]))
        return f"mean return {means[0]:.2f}, {theirs} had {means[1]:.2f}" if means[0] > means[1] else ""
    if theirs not in match.returns:
        return ""
    p = bootstrap_p(tuple(match.returns[ours]), tuple(match.returns[theirs]))
    return f"beat {theirs} in the same games (p {p:.4f})" if p < _LEVEL else ""


@functools.lru_cache(maxsize=4096)  # each refresh looks at all matches again
def bootstrap_p(challenger: tuple[float, ...], incumbent: tuple[float, ...]) -> float:
    """One-sided p value: share of bootstrap resamples in which the challenger's mean is not above the incumbent's.

    Args:
      challenger, incumbent: returns, in pairs of episodes that began alike, if possible.
    """
    differences = np.subtract(challenger, incumbent)
    means = differences[_resamples(_RESAMPLES, len(differences))].mean(axis=1)
    return float((means <= 0).mean())


@functools.lru_cache(maxsize=1)  # a run's evaluations have a number of games
def _resamples(count: int, size: int) -> np.ndarray:
    """What each of `count` bootstrap resamples draws: the same each time."""
    return np.random.Generator(np.random.Philox(key=0)).integers(size, size=(count, size))


def _rival_of_best(history: History, rule: str, stall: int) -> str | None:  # noqa: ARG001
    leader = incumbent(history) if rule == "test" else None
    return leader.snapshot if leader and leader.snapshot != history.snapshots[-1].id else None


def _check_best(settings: Settings, rule: str, stall: int) -> str:  # noqa: ARG001
    evaluate = settings.evaluate
    if not evaluate.episodes or evaluate.every_steps >= settings.train.steps:
        what = "lower evaluate.every_steps" if evaluate.episodes else "raise evaluate.episodes"
        return f"scheduled evaluations: {what}"
    if rule == "test" and evaluate.episodes < TEST_EPISODES:
        return f"evaluate.episodes={TEST_EPISODES} or more, or best(mean)"
    return ""


@needs(rival=_rival_of_best, check=_check_best)
def best(
    history: History,
    random: np.random.Generator,  # noqa: ARG001
    rule: Literal["test", "mean"] = "test",
    stall: Count = 3,
) -> Choice:
    """The best snapshot so far by scheduled evaluations; the newest until one was evaluated.

    `test`: at each evaluation the newest snapshot and the incumbent play the same fresh games, and the newest takes
    its place only if a paired bootstrap test of the difference says so, since the highest of many means is luck.
    `mean`: the highest mean return, as most trainers keep it. After `stall` evaluations without a change the newest is
    chosen instead, until the incumbent changes: values learned from one target forever converge to its bootstrap
    values, and no challenger can come from those.

    Source: keeping the best network, DQN's own Lua code (Mnih et al. 2015); the percentile bootstrap, Efron 1979.
    """
    newest = history.snapshots[-1]
    leader = incumbent(history, rule)
    chosen = next((s for s in history.snapshots if leader and s.id == leader.snapshot), None)
    if leader is None or chosen is None:
        return Choice([newest], [newest], "the newest: none has been evaluated yet")
    candidates = [chosen] if chosen is newest else [chosen, newest]
    if leader.stood >= stall:
        reason = f"the newest: {chosen.id} has been best for {leader.stood} evaluations, the limit is {stall}"
        return Choice([newest], candidates, reason)
    return Choice([chosen], candidates, leader.reason)


@needs(members=0)
def no_snapshot(history: History, random: np.random.Generator) -> Choice:  # noqa: ARG001
    """None: the opponent takes each legal action with the same probability."""
    return Choice([], [], "moves at random")


@needs(members=0)
def own_weights(history: History, random: np.random.Generator) -> Choice:  # noqa: ARG001
    """None: the opponent acts by the agent's own current weights."""
    return Choice([], [], "the current weights")


POLICIES: dict[str, Callable[..., Choice]] = {
    function.__name__: function
    for function in (latest, best, lag, window, mix, pinned, rollback, ensemble, average, league)
} | {"random": no_snapshot, "self": own_weights}

#: The random stream of each role's choices.
PURPOSES = {"target": Purpose.TARGET, "opponent": Purpose.OPPONENT}


def choice_stream(seed: int, role: str, learner: str, updates: int) -> np.random.Generator:
    """The random numbers of a policy's choice after so many updates: each learner has its own."""
    purpose = Purpose.TARGET_OF_B if (role, learner) == ("target", "b") else PURPOSES[role]
    return stream(seed, purpose, updates)


class SnapshotPolicy(NamedTuple):
    """A policy and its parameters, as a setting names them: `target.policy` or `opponent.policy`."""

    setting: str
    text: str
    function: Callable[..., Choice]
    arguments: dict[str, Any]

    def check_settings(self, settings: Settings) -> None:
        """Raises `UsageError` if the other settings do not let this policy work."""
        # There is nothing to bootstrap from, or what others have learned of another Q.
        if self.setting == "target.policy" and (not self.members or self.function is league):
            raise UsageError(f"{self.setting}={self.text} needs a game to play: it is for opponent.policy")
        if self.combine not in get_args(Combine):
            raise UsageError(
                f"{self.setting}={self.text} combines by {self.combine!r}; possible are {', '.join(get_args(Combine))}"
            )
        is_target = self.setting == "target.policy"
        if is_target and self.members > 1 and self.combine == "min" and settings.model.head != "scalar":
            raise UsageError(
                f"{self.setting}={self.text} takes the least of several values: model.head={settings.model.head} has "
                "distributions, of which there is a mean; use ensemble(size, mean)"
            )
        if wrong := self._needs.check(settings, **self.arguments):
            raise UsageError(f"{self.setting}={self.text} needs {wrong}")

    def check_present(self, store: SnapshotStore, updates: int) -> None:
        """Raises `UsageError` if the snapshot that it requires was committed by this update, and has no weights."""
        wanted = self._needs.snapshot(**self.arguments)
        found = [s.id for s in store.snapshots if wanted and s.id.startswith(wanted) and s.updates <= updates]
        if found and not any(map(store.has_weights, found)):
            raise UsageError(
                f"{self.setting}={self.text} cannot be used: retention has removed the weights of {found[0]}; choose "
                "another snapshot"
            )

    def choose(self, history: History, random: np.random.Generator) -> Choice:
        """Raises `ForeignError` if a user's own policy fails, or does not return snapshots from its history."""
        try:
            choice = self.function(history, random, **self.arguments)
        except Exception as error:
            raise foreign_error(f"{self.setting}={self.text}", error) from error
        shown = {snapshot.id for snapshot in [*history.snapshots, *history.league]}
        if not isinstance(choice, Choice) or not all(
            isinstance(part, Sequence)
            and (part or not self.members)
            and all(isinstance(s, Commit) and s.id in shown for s in part)
            for part in choice[:2]
        ):
            raise ForeignError(
                f"{self.setting}={self.text} must return a Choice among history.snapshots, not {reprlib.repr(choice)}"
            )
        chosen, candidates = ({snapshot.id for snapshot in part} for part in choice[:2])
        if outside := sorted(chosen - candidates):
            raise ForeignError(
                f"{self.setting}={self.text} chose {', '.join(outside)}, not among its own candidates, which are all "
                "that retention keeps"
            )
        if not isinstance(choice.reason, str):
            raise ForeignError(f"{self.setting}={self.text} must give its reason in words, not {choice.reason!r}")
        if not isinstance(choice.draw, float | int | None):
            raise ForeignError(f"{self.setting}={self.text} must give its draw as a number, not {choice.draw!r}")
        if len(choice.snapshots) > self.members:
            raise ForeignError(
                f"{self.setting}={self.text} chose {len(choice.snapshots)} snapshots but has "
                f"{counted(self.members, 'twin')}: put `@needs(members=...)` above the function to say how many"
            )
        return choice

    @property
    def members(self) -> int:
        """The largest number of snapshots it chooses at once, each in a target twin of its own."""
        members = self._needs.members
        return int(members(**self.arguments) if callable(members) else members)

    @property
    def combine(self) -> str:
        """How several members become one; see `Needs.combine`."""
        return str(self.arguments.get("combine", self._needs.combine))

    @property
    def has_rivals(self) -> bool:
        """Whether the newest snapshot may have one to beat in scheduled evaluations."""
        return self._needs.rival is not None

    def rival(self, history: History) -> str | None:
        """The snapshot that the newest has to beat in the next scheduled evaluation, if there is one.

        Raises `ForeignError` if a user's own function fails.
        """
        try:
            return self._needs.rival(history, **self.arguments) if self._needs.rival else None
        except Exception as error:
            raise foreign_error(f"{self.setting}={self.text}", error) from error

    @property
    def _needs(self) -> Needs:
        return getattr(self.function, "needs", Needs())


def parse(text: str, setting: str = "target.policy") -> SnapshotPolicy:
    """The policy that a setting names, for example `latest`, `mix(0.8, 8)` or `my_module:mine(3)`.

    Raises:
      UsageError: an unknown name, or parameters that do not fit it.
    """
    return SnapshotPolicy(setting, text, *lookup.call(setting, text, POLICIES, skip=2))


def roles(settings: Settings) -> dict[str, SnapshotPolicy]:
    """The policies of a run by the roles for which they choose: `target`, and `opponent` in games of two players.

    Raises:
      UsageError: one is unknown, or the other settings do not let it work.
    """
    found = {"target": parse(settings.target.policy)}
    if settings.opponent.policy:
        found["opponent"] = parse(settings.opponent.policy, "opponent.policy")
    for policy in found.values():
        policy.check_settings(settings)
    return found


def check_present(settings: Settings, store: SnapshotStore, updates: int) -> None:
    """Raises `UsageError` if a snapshot that a policy requires was committed by this update, and has no weights."""
    for policy in roles(settings).values():
        policy.check_present(store, updates)
