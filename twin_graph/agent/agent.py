"""The agent: an actor and learners, for a loop of your own or for those of `twin_graph.training.loop`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from twin_graph.agent.actor import Actor
from twin_graph.agent.live_run import LiveRun
from twin_graph.base.counters import Tally
from twin_graph.base.streams import Purpose, environment_seeds
from twin_graph.twin.model import ModelSpec

if TYPE_CHECKING:
    from twin_graph.agent.learner import Prepared
    from twin_graph.envs import EnvSpec, VectorEnv
    from twin_graph.envs.seats import Turn
    from twin_graph.replay.ring import Transition
    from twin_graph.snapshots.ledger import Commit
    from twin_graph.snapshots.points import PointState
    from twin_graph.snapshots.run import Run


class Agent:
    """Q-learning from E environments that the caller steps; closed by `close()` or `with`.

    To write your own loop: `a = agent.act(s)`, step the environments, `agent.observe(transition)`, `agent.learn()`;
    call `agent.log({...})` and `agent.commit_point()` where you like. All counters and random draws depend only on the
    number of calls and the run's seed.

    Args:
      run: where snapshots are committed and refreshes recorded; its settings are the agent's.
      env: observations and actions of one environment.
      environments: E.
      point: where to continue; None for the beginning. The caller must then reset the environments with
        `environment_seeds()`.
      vector: the environments, if they are of `twin_graph.envs`: what outlives an episode in them, statistics of
        normalizers for example, is then kept with snapshots and resume points.

    Attributes:
      live: the run while it is trained, with targets, resume points and records.
      store: the run's snapshots.
      actor: with the replay.
      learners: one, or two in `mode=mutual`.
      tally: counters, and the newest update's loss.

    Raises:
      InUseError: another process has the run.
    """

    def __init__(
        self,
        run: Run,
        env: EnvSpec,
        *,
        environments: int = 1,
        point: PointState | None = None,
        vector: VectorEnv | None = None,
    ) -> None:
        self.settings = run.settings
        self.tally = Tally(env.frames_per_step)
        self._environments = environments
        self.actor = Actor(run.settings, self.tally, env, environments, vector)
        self.live = LiveRun(run, ModelSpec.of(run.settings, env), self.tally, self.actor, point)
        self.learners, self.store = self.live.learners, self.live.store

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.live.__exit__(kind, error, at)

    def close(self) -> None:
        """Ends the sessions and records in the ledger that the run finished; what was committed stays."""
        self.live.close()

    @property
    def agent_steps(self) -> int:
        """Steps observed so far, of all environments together."""
        return self.tally.agent_steps

    @property
    def updates(self) -> int:
        """Updates made so far, of all learners together."""
        return self.tally.updates

    @property
    def epsilon(self) -> float:
        """The share of random actions at this agent step."""
        return self.settings.act.epsilon_at(self.tally.agent_steps)

    def environment_seeds(self) -> np.ndarray:
        """Seeds, int64 `[E]`, from which the environments begin at this agent step: at the start, after each point."""
        return environment_seeds(self.settings.seed, Purpose.ENVIRONMENT, self.tally.agent_steps, self._environments)

    def q_values(self, observations: np.ndarray) -> np.ndarray:
        """Q values, float32 `[B, A]`, of observations `[B, *observation_shape]`; of two learners, their mean."""
        return self.learners.q_values(observations)

    def get_qs(self, observation: np.ndarray) -> np.ndarray:
        """Q values, float32 `[A]`, of one observation `[*observation_shape]`; images as uint8."""
        q: np.ndarray = self.q_values(observation[None])[0]
        return q

    def act(self, observations: np.ndarray, *, frozen: bool = False) -> np.ndarray:
        """Epsilon-greedy actions, int64 `[E]`, for observations `[E, *observation_shape]`.

        Args:
          observations: of all E environments.
          frozen: use the weights of `learners.freeze()`, not the current ones; ignored if `act.with` is `target`.
        """
        with self.live.stopwatch.phase("act"):
            return self.actor.act(
                observations, lambda: self.learners.acting_q_values(observations, frozen=frozen), self.tally.agent_steps
            )

    def opponent_actions(self, turn: Turn, *, frozen: bool = False) -> np.ndarray:
        """The opponent's actions, int64 `[B]`, in games of two players; `frozen` as in `act`."""
        return self.learners.first.opponent_actions(turn, frozen=frozen)

    def observe(self, transition: Transition) -> None:
        """Adds one step of all E environments to the replay.

        Raises:
          ValueError: an array's shape or type is not this environment's, or there is no such action.
          ForeignError: a reward or an observation is NaN or infinite.
        """
        self.observe_checked(self.actor.checked(transition))

    def observe_checked(self, transition: Transition) -> None:
        """The same for what a `VectorEnv` returned, whose arrays need no check. Raises `ForeignError`."""
        self.actor.observe(transition)
        self.live.resume_points.replay_grew()

    def learn(self) -> list[float]:
        """Makes the updates that are due at this agent step, and the commits and refreshes between them.

        A snapshot is committed as soon as it is due; if it is due by steps or episodes, even when no update is. The
        target is refreshed only just before the next update, so that an evaluation at the same counters comes in
        between.

        Returns:
          The losses of the updates made; often empty.

        Raises:
          DivergedError: a loss is NaN or infinite.
          ForeignError: your own network, loss, optimizer or target policy failed.
          DamagedError: a snapshot cannot be restored.
          OSError: the disk is full or failed.
        """
        losses = []
        due = self.actor.due_updates(self.tally.updates)
        per_minibatch = self.settings.updates_per_minibatch
        self.live.commit_if_due()
        for first in range(due.start, due.stop, per_minibatch):
            self.live.refresh_if_due()
            losses += self.train(self.prepare(range(first, first + per_minibatch)))
            self.live.commit_if_due()
        return losses

    def train(self, prepared: Prepared) -> list[float]:
        """Makes prepared updates and passes their TD errors to the sampler; returns their losses."""
        trained = self.learners.train(prepared)
        self.actor.sampler.learnt(prepared.batch, trained.td_error)
        return trained.losses

    def prepare(self, updates: range) -> Prepared:
        """Samples the minibatches of these updates, and evaluates the target for them.

        Touches neither the update counter nor any variable of an online twin, so another thread may train meanwhile.
        """
        if self.live.held_out.observations is None:
            self.live.held_out.choose(self.actor.replay, self.settings.seed)
        with self.live.stopwatch.phase("sample"):
            batch = self.actor.sample(updates)
        return self.learners.prepare(updates, batch)

    def log(self, values: Mapping[str, Any]) -> None:
        """Writes values, with counters, to `metrics.jsonl`, and those that are numbers to TensorBoard.

        What `log.to` asks for gets them with the next resume point, or when the run finishes.
        """
        self.live.log(values)

    def commit(self) -> list[Commit]:
        """Saves the online twin (with two learners, both) as a snapshot; durable when this returns."""
        return self.live.commit()

    def commit_point(self, returns: Sequence[float] = ()) -> PointState:
        """Commits a resume point, durable when this returns, and ends every episode.

        Reset the environments afterwards, with `environment_seeds()`.

        Args:
          returns: of the newest training episodes, kept in the point.

        Raises:
          OSError: the disk is full or failed; the point before stays the newest.
          DivergedError: a variable is NaN or infinite; likewise.
          UsageError: a return is; likewise.
        """
        return self.live.commit_point(returns)
