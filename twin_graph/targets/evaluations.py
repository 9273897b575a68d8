"""The scheduled evaluations of a run, as target policies such as `best` see them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from twin_graph.errors import DamagedError
from twin_graph.snapshots.ledger import Commit, Counters
from twin_graph.snapshots.lines import comparable, record_evaluation
from twin_graph.targets.policies import Match

if TYPE_CHECKING:
    from twin_graph.config.settings import Settings
    from twin_graph.snapshots.run import Run


def matches(evaluations: Iterable[Mapping[str, Any]]) -> list[Match]:
    """The matches among the comparable evaluation records."""
    found: dict[tuple[int, str], Match] = {}  # two learners are evaluated at the same agent step, each for itself
    for line in comparable(evaluations):
        at = line["played_at"]
        match = found.setdefault((at["agent_steps"], line["challenger"]), Match(at["updates"], line["challenger"], {}))
        match.returns[line["snapshot"]] = line["returns"]
    return [match for match in found.values() if match.challenger in match.returns]


class Matches:
    """Reads and records the scheduled evaluations of a run.

    Args:
      run: whose.

    Attributes:
      played: oldest first.
    """

    def __init__(self, run: Run) -> None:
        self._run = run
        self._records = list(run.evaluation_lines())
        self._lowest: tuple[Settings, tuple[float, str]] | None = None  # of the records so far
        self.played = matches(self._records)

    def record(self, snapshot: Commit, result: Mapping[str, Any], *, challenger: Commit, played_at: Counters) -> None:
        """Adds a scheduled evaluation.

        Args:
          snapshot: which played.
          result: see `twin_graph.evaluation.Evaluation.summary`.
          challenger: the newest snapshot, which played the same games.
          played_at: counters of now.
        """
        self._records.append(
            record_evaluation(self._run, snapshot, result, played_at=played_at, challenger=challenger.id)
        )
        self.played = matches(self._records)
        self._lowest = None

    def lower_bound(self, settings: Settings) -> tuple[float, str]:
        """The lower end of the newest score's 95% interval, and whose it is; of two learners, the smaller one.

        Minus infinity before the first evaluation under these settings' rules, and after one of a single game.
        """
        if self._lowest and self._lowest[0] is settings:
            return self._lowest[1]  # the run loop asks after each vector step
        scores = [line for line in self._records if line["scheduled"] and line["snapshot"] == line["challenger"]]
        newest = [line for line in scores if _rules(self._run.settings_of(line["attempt"])) == _rules(settings)]
        now = [line for line in newest if line["played_at"] == newest[-1]["played_at"]]
        bounds = ((interval[0] if (interval := line["interval_95"]) else -math.inf, line["snapshot"]) for line in now)
        lowest = min(bounds, default=(-math.inf, ""))
        self._lowest = settings, lowest
        return lowest

    def reached(self, score: float, settings: Settings) -> str:
        """How the newest score by these settings reached `train.until_score`, for people; empty if it did not."""
        bound, snapshot = self.lower_bound(settings)
        if bound < score:
            return ""
        made = next((line["agent_steps"] for line in self._records if line["snapshot"] == snapshot), 0)
        return f"train.until_score={score:zg} with {snapshot} of {made:,} agent steps, lower bound {bound:z.2f}"

    def complete(self, agent_steps: int, settings: Settings) -> bool:
        """Whether a run has all steps of these settings, and its last snapshot was evaluated if they ask for that."""
        evaluated = not settings.evaluate.episodes or self.last.agent_steps >= agent_steps
        return agent_steps >= settings.train.steps and evaluated

    @property
    def last(self) -> Counters:
        """Counters at the newest; zero before the first."""
        at = [line["played_at"] for line in self._records if line["scheduled"]]
        return max(map(Counters.model_validate, at), key=lambda c: c.agent_steps, default=Counters.zero())


def nothing_left(run: Run, agent_steps: int, settings: Settings) -> str:
    """Why a run of these settings would not train from a point after so many agent steps; empty if it would."""
    try:
        matches = Matches(run)
    except DamagedError:  # beyond the point, whose records were checked, and abandoned when training begins
        return ""
    if matches.complete(agent_steps, settings):
        return f"{run.folder} is complete at {agent_steps:,} agent steps; give more with --steps"
    until = settings.train.until_score
    if until is not None and run.state() == "finished" and (reached := matches.reached(until, settings)):
        return f"{run.folder} has reached {reached}; give a higher one, or null, with --set"
    return ""


def _rules(settings: Settings) -> tuple[object, ...]:
    """What a score depends on."""
    evaluate = settings.evaluate
    return settings.env, evaluate.epsilon, evaluate.max_steps, evaluate.against
