"""Which of a run's evaluations may be compared."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from twin_graph.snapshots.run import Run


def learning_curve(run: Run) -> Iterator[dict[str, Any]]:
    """The scheduled evaluations of what was a learner's newest snapshot then, oldest first; see `played_at`."""
    return (line for line in run.evaluation_lines() if line["scheduled"] and line["snapshot"] == line["challenger"])


def comparable(evaluations: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The scheduled ones of these evaluations that were played under the protocol of the newest."""
    return like_the_newest([line for line in evaluations if line["scheduled"]])


def like_the_newest(evaluations: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Those of these evaluations that were played under the protocol of the last of them.

    However many games were played side by side: that does not change a score.
    """
    rules = [{**line["protocol"], "environments": None} for line in evaluations]
    return [line for line, of_line in zip(evaluations, rules, strict=True) if of_line == rules[-1]]
