"""How far a run has come, as records have it and while it is counted."""

import dataclasses
import math
from typing import Annotated, Self

from pydantic import BaseModel, ConfigDict, Field

#: What is counted: far above anything that can happen, and within what NumPy can hold.
Whole = Annotated[int, Field(ge=0, le=2**62)]
#: Bytes of a file of records: those of the longest runs have a tenth of it.
LARGEST_FILE = 2**29


class Counters(BaseModel):
    """How far a run had come. `frames` is agent steps times the frame skip."""

    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)

    agent_steps: Whole
    updates: Whole
    frames: Whole
    episodes: Whole

    @classmethod
    def zero(cls) -> Self:
        """At the beginning."""
        return cls(agent_steps=0, updates=0, frames=0, episodes=0)


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

    def restore(self, counters: Counters, *, reward_limit: float, r_max: float) -> None:
        """Restores what a resume point has."""
        self.agent_steps, self.updates, self.episodes = counters.agent_steps, counters.updates, counters.episodes
        self.reward_limit, self.r_max = reward_limit, r_max
