"""Who acts and who learns, also in `mode=mutual`, for the trainer and for readers of its records.

Learners are identified by their names: `online` where there is one, `a` and `b` where there are two.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from twin_graph.config.settings import Settings

SHARED = "shared"


class Turns:
    """Who acts, who learns, and from whose snapshots; all of this follows from settings and counters.

    Args:
      settings: of the run.

    Attributes:
      settings: as given.
      learners: their names.
    """

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.learners: tuple[str, ...] = ("a", "b") if settings.mode == "mutual" else ("online",)

    def lineage(self, learner: str) -> str:
        """Where a learner's snapshots are committed."""
        return SHARED if self.settings.store.shared else learner

    def source(self, learner: str) -> str:
        """The lineage from which a learner's target is restored: the other's, if there is one."""
        return self.lineage(self.learners[self.learners.index(learner) - 1])

    def commits(self, committed: int) -> tuple[str, ...]:
        """The order in which learners commit after so many snapshots.

        In a shared lineage it alternates, because `latest` would otherwise always be the second learner's.
        """
        reverse = self.settings.store.shared and committed // 2 % 2
        return self.learners[::-1] if reverse else self.learners

    def whose(self, learner: str) -> str:
        """For messages, after a noun: ` of learner a`; empty if there is only one."""
        return f" of learner {learner}" if len(self.learners) > 1 else ""

    def learns(self, update: int) -> str:
        """Whose turn it is at this update, counted from 0."""
        mutual = self.settings.mutual
        if len(self.learners) == 1:
            return self.learners[0]
        if mutual.learn == "alternate":
            return self.learners[update // mutual.turn_updates % 2]
        if mutual.learn == "random":
            return self.learners[self._lot("WHO_LEARNS", update)]
        return self.learners[update % 2]

    def act(self, agent_step: int, update: int) -> tuple[str, ...]:
        """Whose Q values choose the actions of a vector step, after this many agent steps and updates."""
        mutual = self.settings.mutual
        if len(self.learners) == 1 or mutual.act == "both":
            return self.learners
        if mutual.act == "alternate":
            return (self.learners[update // mutual.turn_updates % 2],)
        if mutual.act == "random":
            return (self.learners[self._lot("WHO_ACTS", agent_step)],)
        return (mutual.act,)

    def _lot(self, purpose: str, counter: int) -> int:
        from twin_graph.base.streams import Purpose, stream  # NumPy: commands that read records need not wait for it

        return int(stream(self.settings.seed, Purpose[purpose], counter).integers(2))
