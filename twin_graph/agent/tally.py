"""What a run has counted and seen so far."""

import dataclasses
import math

from twin_graph.snapshots.ledger import Counters
from twin_graph.snapshots.points import PointState


@dataclasses.dataclass
class Tally:
    """Counters that, with the run's seed, determine everything; shared by whoever acts and whoever learns.

    Attributes:
      frames_per_step: emulator frames in one agent step.
      agent_steps, updates, episodes: from 0; updates are those of all learners.
      reward_limit: the largest |reward| seen.
      r_max: the largest reward seen, at least 1.
      loss, q_mean: of the newest update; NaN before the first.
    """

    frames_per_step: int = 1
    agent_steps: int = 0
    updates: int = 0
    episodes: int = 0
    reward_limit: float = 0.0
    r_max: float = 1.0
    loss: float = math.nan
    q_mean: float = math.nan

    @property
    def counters(self) -> Counters:
        """The counters as records have them."""
        return Counters(
            agent_steps=self.agent_steps,
            updates=self.updates,
            frames=self.agent_steps * self.frames_per_step,
            episodes=self.episodes,
        )

    def restore(self, point: PointState) -> None:
        """Restores the counters of a resume point."""
        self.agent_steps, self.updates = point.counters.agent_steps, point.counters.updates
        self.episodes = point.counters.episodes
        self.reward_limit, self.r_max = point.reward_limit, point.r_max
