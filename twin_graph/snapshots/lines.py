"""The lines of a run's evaluations and metrics: recorded, and which of them may be compared."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from twin_graph.snapshots.files import append_line
from twin_graph.snapshots.ledger import Commit, utc_now

if TYPE_CHECKING:
    from twin_graph.base.counters import Counters
    from twin_graph.snapshots.run import Run


def record_evaluation(
    run: Run,
    snapshot: Commit,
    result: Mapping[str, Any],
    *,
    played_at: Counters | None = None,
    challenger: str = "",
) -> dict[str, Any]:
    """Appends a durable line to `evaluations.jsonl`, and returns it.

    Args:
      run: whose.
      snapshot: which played.
      result: see `twin_graph.evaluation.Evaluation.summary`.
      played_at: counters of the run by then, if it is a scheduled evaluation; None for a manual one, which influences
        nothing.
      challenger: of a scheduled evaluation, the newest snapshot, which played the same games.
    """
    line = {
        "attempt": run.attempt if played_at else max(1, run.ledger.attempt),
        "time": utc_now(),
        "snapshot": snapshot.id,
        "scheduled": played_at is not None,
        "played_at": played_at.model_dump() if played_at else None,
        "challenger": challenger,
        **snapshot.counters.model_dump(),
        **result,
    }
    append_line(run.evaluations_file, line)
    return line


def record_metrics(run: Run, metrics: Mapping[str, Any]) -> None:
    """Appends a line to `metrics.jsonl`; not fsynced before the next resume point, see `Run.settle_records`."""
    append_line(run.metrics_file, {"attempt": run.attempt, "time": utc_now(), **metrics}, durable=False)


def learning_curve(run: Run) -> Iterator[dict[str, Any]]:
    """The scheduled evaluations of what was a learner's newest snapshot then, oldest first.

    A score's place is that of the snapshot which it judges, wherever it is shown: `agent_steps` and `updates` of its
    line. That may be before its games were played, at `played_at`, from which nothing but schedules count.
    """
    return (line for line in run.evaluation_lines() if line["scheduled"] and line["snapshot"] == line["challenger"])


def comparable(evaluations: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The scheduled ones of these evaluations that were played under the protocol of the newest."""
    return like_the_newest([line for line in evaluations if line["scheduled"]])


def like_the_newest(evaluations: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Those of these evaluations that were played under the protocol of the last of them."""
    rules = [_rules(line["protocol"]) for line in evaluations]
    return [line for line, of_line in zip(evaluations, rules, strict=True) if of_line == rules[-1]]


def _rules(protocol: Mapping[str, Any]) -> dict[str, Any]:
    """What of a protocol changes a score: not how many games are played side by side.

    Nor the limit that versions before 0.3 named for board games, half of the longest game's moves: nothing applied it.
    """
    no_matter = {"environments", "time limit, steps"} if "seats" in protocol else {"environments"}
    return {name: value for name, value in protocol.items() if name not in no_matter}
