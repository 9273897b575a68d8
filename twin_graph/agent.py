"""The agent: an online twin, a target twin, a replay, and a snapshot store between the twins."""

import contextlib
import math
from types import TracebackType
from typing import Self

import numpy as np

from twin_graph import targets
from twin_graph.config import Settings
from twin_graph.errors import DivergedError, TwinMismatchError, UsageError
from twin_graph.model import ModelSpec
from twin_graph.replay import Replay, Transition
from twin_graph.snapshots.run import Run, utc_now
from twin_graph.snapshots.store import Counters, Manifest, VariableRecord
from twin_graph.stopwatch import Stopwatch
from twin_graph.streams import Purpose, stream
from twin_graph.twin import Twin, weights_sha256

LINEAGE = "online"


class Agent:
    """Q-learning from E environments that somebody else steps; owns both twins, closed by `close()` or `with`.

    A loop of one's own is `a = agent.act(s)`, one step of the environments, `agent.observe(transition)`,
    `agent.learn()`. All counters and all random draws follow from the number of calls and the run's seed. Making an
    agent records a start in the run's ledger, closing it an end.

    Args:
      run: the folder in which snapshots are committed and refreshes recorded; its settings are the agent's.
      observation_shape: of one observation; `(stack, H, W)` for images, newest frame last.
      n_actions: A.
      environments: E.
      observation_dtype: NumPy type of observations, `uint8` or `float32`.
      stack: frames on an observation's first axis; 1 where an observation is to be stored whole.
      frames_per_step: emulator frames in one agent step, for the counter of frames alone.

    Attributes:
      online, target: the twins.
      agent_steps, updates, episodes: counters, from 0.
      store: the run's snapshots.
      target_snapshot: what the target twin holds.
      target_since_update: the number of updates done when it was restored.
      last_loss, last_q: of the newest update; NaN before the first.
    """

    def __init__(
        self,
        run: Run,
        *,
        observation_shape: tuple[int, ...],
        n_actions: int,
        environments: int = 1,
        observation_dtype: np.typing.DTypeLike = np.float32,
        stack: int = 1,
        frames_per_step: int = 1,
    ) -> None:
        settings = run.settings
        self.settings: Settings = settings
        self.agent_steps = self.updates = self.episodes = 0
        self.last_loss = self.last_q = math.nan
        self.stopwatch = Stopwatch()
        self._run = run
        self.store = run.store()
        if self.store.manifests:
            raise UsageError(f"{run.folder} was trained already; make a new run for a new agent")
        self._environments = environments
        self._frames_per_step = frames_per_step
        self._n_actions = n_actions
        self._settings_sha256 = settings.sha256()
        self._replay = Replay(
            capacity_steps=settings.replay.capacity_steps,
            environments=environments,
            observation_shape=observation_shape,
            dtype=observation_dtype,
            stack=stack,
            n_step=settings.train.n_step,
            discount=settings.train.discount,
        )
        spec = ModelSpec.of(settings, observation_shape, observation_dtype, n_actions)
        with contextlib.ExitStack() as building:
            self.online = building.enter_context(
                Twin("online", spec, seed=settings.seed, threads=settings.twin.threads)
            )
            self.target = building.enter_context(
                Twin("target", spec, seed=settings.seed, threads=settings.twin.threads, like=self.online)
            )
            run.record_start()
            self._closed = False
            self._twins = building.pop_all()
        try:
            self.commit()
            self.refresh(reason="start")
        except BaseException as error:
            self.__exit__(type(error), error, None)
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if error is None:
            self.close()
        else:
            by_hand = isinstance(error, KeyboardInterrupt | GeneratorExit)
            with contextlib.suppress(OSError):  # a full disk, perhaps: the error itself matters more
                self.close("stopped" if by_hand else "failed", str(error) or type(error).__name__)

    def close(self, state: str = "finished", reason: str = "") -> None:
        """Ends both sessions and records in the ledger how the agent ended; what was committed stays.

        Args:
          state: `finished`, `stopped` or `failed`.
          reason: for people.
        """
        if self._closed:
            return
        self._closed = True
        self._twins.close()
        newest = self.store.manifests[-1:]
        self._run.record("end", state=state, reason=reason, weights_sha256=newest[0].weights_sha256 if newest else None)

    @property
    def counters(self) -> Counters:
        return Counters(
            agent_steps=self.agent_steps,
            updates=self.updates,
            frames=self.agent_steps * self._frames_per_step,
            episodes=self.episodes,
        )

    @property
    def epsilon(self) -> float:
        """The share of random actions at this agent step."""
        act = self.settings.act
        progress = min(1.0, self.agent_steps / act.epsilon_decay_steps)
        return act.epsilon_start + progress * (act.epsilon_end - act.epsilon_start)

    def q_values(self, observations: np.ndarray) -> np.ndarray:
        """The online twin's Q values, float32 `[B, A]`, of observations `[B, *observation_shape]`."""
        return self.online.q_values(observations)

    def act(self, observations: np.ndarray) -> np.ndarray:
        """Epsilon-greedy actions, int64 `[E]`, for observations `[E, *observation_shape]`."""
        with self.stopwatch.phase("act"):
            random = stream(self.settings.seed, Purpose.ACT, self.agent_steps)
            explore = random.random(len(observations)) < self.epsilon
            actions = random.integers(0, self._n_actions, size=len(observations))
            if not explore.all():
                actions = np.where(explore, actions, self.q_values(observations).argmax(axis=1))
            return actions

    def observe(self, transition: Transition) -> None:
        """Puts one step of all E environments into the replay."""
        self._replay.add(transition)
        self.agent_steps += self._environments
        self.episodes += int(transition.last_t.sum())

    def learn(self) -> list[float]:
        """Makes the updates, and the refreshes between them, that are due at this agent step.

        Returns:
          The losses of the updates made; often none.

        Raises:
          DivergedError: a loss is NaN or infinite.
        """
        train = self.settings.train
        due = (self.agent_steps - train.start_steps) // train.every_steps
        losses = []
        while self.updates < due:
            losses.append(self._update())
            if self.updates % self.settings.target.refresh_every_updates == 0:
                self.commit()
                self.refresh(reason=f"every {self.settings.target.refresh_every_updates} updates")
        return losses

    def _update(self) -> float:
        """One minibatch: sample, evaluate the target twin at `s_t`, train the online twin."""
        with self.stopwatch.phase("sample"):
            random = stream(self.settings.seed, Purpose.SAMPLE, self.updates)
            batch = self._replay.sample(self.settings.train.batch_size, random)
        with self.stopwatch.phase("target"):
            q_target_t = self.target.q_values(batch.s_t)
        with self.stopwatch.phase("train"):
            model = self.online.model
            _, loss, q = self.online.run(
                (model.train_op, model.loss, model.q_mean),
                {
                    model.s_tm1: batch.s_tm1,
                    model.a_tm1: batch.a_tm1,
                    model.r_t: batch.r_t,
                    model.discount_t: batch.discount_t,
                    model.q_target_t: q_target_t,
                },
            )
        self.updates += 1
        self.last_loss, self.last_q = float(loss), float(q)
        if not math.isfinite(self.last_loss):
            raise DivergedError(
                f"the loss is {self.last_loss} at update {self.updates}; the last good snapshot is "
                f"{self.store.newest.id}. Try a smaller train.learning_rate"
            )
        if self.settings.twin.check and self.target.weights_sha256() != self.target_snapshot.weights_sha256:
            raise TwinMismatchError(f"the target twin changed between two refreshes, by update {self.updates}")
        return self.last_loss

    def commit(self) -> Manifest:
        """Saves the online twin as a snapshot, durable when this returns; gives the newest if nothing was learnt since.

        Raises:
          OSError: the disk is full or failed; nothing was committed.
          DivergedError: a weight is NaN or infinite; nothing was committed.
        """
        if self.store.manifests and self.store.newest.counters.updates == self.updates:
            return self.store.newest
        with self.stopwatch.phase("save"):
            weights = self.online.weights()
            if not all(np.isfinite(value).all() for value in weights.values()):
                raise DivergedError(
                    f"the weights are not finite after update {self.updates}; the last good snapshot is "
                    f"{self.store.newest.id}. Try a smaller train.learning_rate"
                )
            trainable = {variable.op.name for variable in self.online.model.trainables}
            snapshot = self.store.commit(
                self.online.save,
                lineage=LINEAGE,
                attempt=self._run.attempt,
                time=utc_now(),
                counters=self.counters,
                settings_sha256=self._settings_sha256,
                weights_sha256=weights_sha256(weights),
                variables=[VariableRecord(**v._asdict()) for v in self.online.variables if v.name in trainable],
            )
            self._run.record("commit", snapshot=snapshot.id, lineage=LINEAGE, **snapshot.counters.model_dump())
        return snapshot

    def refresh(self, reason: str) -> None:
        """Restores the snapshot that the target policy chooses into the target twin, and records it."""
        policy = self.settings.target.policy
        snapshot = targets.POLICIES[policy](self.store.manifests)
        with self.stopwatch.phase("refresh"):
            self.target.restore(self.store.prefix(snapshot))
            self._run.record(
                "swap",
                snapshot=snapshot.id,
                into="target",
                policy=policy,
                reason=reason,
                first_update=self.updates + 1,
                agent_steps=self.agent_steps,
            )
        self.target_snapshot = snapshot
        self.target_since_update = self.updates
        if self.settings.twin.check:
            self._check_restored()

    def _check_restored(self) -> None:
        restored = self.target.weights_sha256()
        if restored != self.target_snapshot.weights_sha256 or restored != self.online.weights_sha256():
            raise TwinMismatchError(
                f"after the refresh at update {self.updates} the twins differ, or differ from {self.target_snapshot.id}"
            )
