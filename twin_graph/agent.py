"""The agent: learners, the replay that they learn from, and counters by which everything happens."""

import contextlib
import itertools
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

import numpy as np

from twin_graph import mutual, retention, sampling, targets
from twin_graph.bootstrap import Bootstrap
from twin_graph.config import Schedule, Settings
from twin_graph.envs import check_finite
from twin_graph.errors import UsageError
from twin_graph.events import EventFile
from twin_graph.learner import Learner, epsilon_greedy, greedy_agreement, minibatches
from twin_graph.model import ModelSpec
from twin_graph.replay import Batch, Observations, Replay, Transition
from twin_graph.resume import ReplayLog
from twin_graph.snapshots.ledger import Commit, Counters, End, Health, Swap, utc_now
from twin_graph.snapshots.points import PointState
from twin_graph.snapshots.run import Run
from twin_graph.snapshots.workers import WorkerStatus
from twin_graph.stopwatch import Stopwatch
from twin_graph.streams import Purpose, environment_seeds, stream
from twin_graph.twin import Twin, weights_sha256

PROBE = "probe"
PROBE_SIZE = 32


class Work(NamedTuple):
    """Updates that can be made without a look at replay or target.

    Attributes:
      updates: their numbers, from 0.
      batch: their minibatches, one after the other.
      snapshots: what each learner's target held.
      q_target_t: what the target of each update's learner said of `s_t` of its minibatches, float32
        `[updates, minibatches, A]`; None without `train.target_q`.
    """

    updates: range
    batch: Batch
    snapshots: list[tuple[str, ...]]
    q_target_t: np.ndarray | None


class Agent:
    """Q-learning from E environments that somebody else steps; owns its learners, closed by `close()` or `with`.

    A loop of one's own is `a = agent.act(s)`, one step of the environments, `agent.observe(transition)`,
    `agent.learn()`, with `agent.log({...})` and `agent.commit_point()` where it wants them. All counters and all random
    draws follow from the number of calls and the run's seed. Making an agent takes the run's lock and records a start
    in its ledger, closing it an end.

    Args:
      run: the folder in which snapshots are committed and refreshes recorded; its settings are the agent's.
      observation_shape: of one observation; `(stack, H, W)` for images, newest frame last.
      n_actions: A.
      environments: E.
      observation_dtype: NumPy type of observations, `uint8` or `float32`.
      stack: frames on an observation's first axis; 1 where an observation is to be stored whole.
      frames_per_step: emulator frames in one agent step, for the counter of frames alone.
      point: where to go on; None for the beginning. Its environments must be reset, with `environment_seeds()`.

    Attributes:
      learners: one, or two in `mode=mutual`.
      agent_steps, updates, episodes: counters, from 0; updates are those of all learners.
      store: the run's snapshots.
      point: the newest resume point; None before the first.
      work: what was prepared in the newest chunk and is to be trained in the next; None in the classic loop.
      last_loss, last_q: of the newest update; NaN before the first.
      workers: what each worker last said of itself, in asynchronous training.

    Raises:
      InUseError: another process has the run.
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
        point: PointState | None = None,
    ) -> None:
        settings = run.settings
        self.settings: Settings = settings
        self.agent_steps = self.updates = self.episodes = 0
        self.last_loss = self.last_q = math.nan
        self.stopwatch = Stopwatch()
        self.point: PointState | None = None
        self.work: Work | None = None
        self.workers: Sequence[WorkerStatus] = ()
        self._run = run
        self._environments = environments
        self._frames_per_step = frames_per_step
        self._n_actions = n_actions
        self._policy = targets.parse(settings.target.policy)
        self._save_schedule, self._refresh_schedule = settings.save_schedule, settings.refresh_schedule
        self._saved = self.counters
        self._reward_limit, self._r_max = 0.0, 1.0
        self._updates_of_minibatch = mutual.updates_of_minibatch(settings)
        self._frozen_at = 0
        self._found: tuple[Batch, np.ndarray] | None = None
        self._probe: np.ndarray | None = None
        self._rooms: list[Observations | None] = [None, None]
        self._replay = Replay(
            capacity_steps=settings.replay.capacity_steps,
            environments=environments,
            observation_shape=observation_shape,
            dtype=observation_dtype,
            stack=stack,
            n_step=settings.train.n_step,
            discount=settings.train.discount,
        )
        self._sampler = sampling.of(self._replay, settings)
        spec = ModelSpec.of(settings, observation_shape, observation_dtype, n_actions)
        self.learners: list[Learner] = []
        with contextlib.ExitStack() as building:
            building.enter_context(run.lock("train"))
            self.store = run.store()
            for i, name in enumerate(mutual.learners(settings)):
                learner = Learner(
                    name,
                    run,
                    self.store,
                    spec,
                    self._policy,
                    self.stopwatch,
                    # Apart from those of runs with seeds near. (TensorFlow takes seeds modulo 2**31 - 1.)
                    seed=settings.seed + i * 2**30,
                    like=self.learners[0].online if self.learners else None,
                )
                building.callback(learner.close)
                self.learners.append(learner)
            if self.store.snapshots and point is None:
                raise UsageError(f"{run.folder} was trained already; `twin-graph resume` goes on with it")
            self.store.remove_leftovers()
            self._points = run.points()
            self._points.remove_leftovers()
            self._log = ReplayLog(self._points, self._replay)
            run.record_start(point)
            self._closed = False
            self._owned = building.pop_all()
        try:
            resumed_at = point.counters.agent_steps if point else None
            self._events = self._owned.enter_context(EventFile(run.events, self.online.graph, resumed_at=resumed_at))
            self._evaluations = list(run.evaluations())
            self._matches = targets.matches(self._evaluations)
            if point is None:
                self.commit()
                self.refresh("start")
            else:
                self._restore(point)
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
        """Ends the sessions and records in the ledger how the agent ended; what was committed stays.

        Args:
          state: `finished`, `stopped` or `failed`.
          reason: for people.
        """
        if self._closed:
            return
        self._closed = True
        with self._owned:
            end = {"attempt": self._run.attempt, "time": utc_now(), "state": state, "reason": reason}
            self._run.ledger.append(End.model_validate(end))

    @property
    def online(self) -> Twin:
        """The twin that trains; of two learners, the first's."""
        return self.learners[0].online

    @property
    def bootstrap(self) -> Bootstrap:
        """The target; of two learners, the first's."""
        return self.learners[0].bootstrap

    def learner(self, name: str) -> Learner:
        """The learner of this name. Raises `UsageError` if there is none."""
        for learner in self.learners:
            if learner.name == name:
                return learner
        raise UsageError(f"{self._run.folder} has no learner {name!r}")

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
        return self.settings.act.epsilon_at(self.agent_steps)

    @property
    def target_snapshots(self) -> tuple[str, ...]:
        """The snapshots that the targets hold."""
        return tuple(snapshot for learner in self.learners for snapshot in learner.bootstrap.snapshots)

    @property
    def target_age(self) -> int:
        """Updates made since a target was restored; of two learners, since the older of the two was."""
        return self.updates - min(learner.bootstrap.since.updates for learner in self.learners)

    @property
    def at_point(self) -> bool:
        """Whether a resume point was made at this very step, so that the environments have to be reset."""
        return self.point is not None and self.point.counters.agent_steps == self.agent_steps

    def history(self, lineage: str) -> targets.History:
        """What a target policy may look at now."""
        snapshots = [snapshot for snapshot in self.store.available if snapshot.lineage == lineage]
        return targets.History(self.updates, snapshots, self._matches)

    def rival(self, learner: Learner) -> Commit | None:
        """The snapshot that the newest has to beat at the next scheduled evaluation, if the policy wants one."""
        rival = self._policy.rival(self.history(learner.lineage))
        return self.store.find(rival) if rival else None

    def environment_seeds(self) -> np.ndarray:
        """Seeds, int64 `[E]`, from which the environments begin at this agent step: at the start, after each point."""
        return environment_seeds(self.settings.seed, Purpose.ENVIRONMENT, self.agent_steps, self._environments)

    def q_values(self, observations: np.ndarray) -> np.ndarray:
        """Q values, float32 `[B, A]`, of observations `[B, *observation_shape]`; of two learners, their mean."""
        return self._mean([learner.online.q_values(observations) for learner in self.learners])

    def weights(self) -> dict[str, np.ndarray]:
        """The online twin's trainable weights by name; of two learners, by `a/` or `b/` and the name."""
        if len(self.learners) == 1:
            return self.online.weights()
        return {f"{learner.name}/{n}": w for learner in self.learners for n, w in learner.online.weights().items()}

    def get_qs(self, observation: np.ndarray) -> np.ndarray:
        """The online twin's Q values, float32 `[A]`, of one observation `[*observation_shape]`; images as bytes."""
        q: np.ndarray = self.q_values(observation[None])[0]
        return q

    def act(self, observations: np.ndarray, *, frozen: bool = False) -> np.ndarray:
        """Epsilon-greedy actions, int64 `[E]`, for observations `[E, *observation_shape]`.

        Args:
          observations: of all E environments.
          frozen: by the online weights of `begin_chunk`, not those of now; without meaning if `act.with` is `target`.
        """
        with self.stopwatch.phase("act"):
            random = stream(self.settings.seed, Purpose.ACT, self.agent_steps)
            return epsilon_greedy(
                lambda: self._acting_q_values(observations, frozen),
                self.epsilon,
                random,
                len(observations),
                self._n_actions,
            )

    def _acting_q_values(self, observations: np.ndarray, frozen: bool) -> np.ndarray:
        actors = mutual.act(self.settings, self.agent_steps, self._frozen_at if frozen else self.updates)
        return self._mean(
            [self._act(learner, observations, frozen) for learner in self.learners if learner.name in actors]
        )

    def _act(self, learner: Learner, observations: np.ndarray, frozen: bool) -> np.ndarray:
        if self.settings.act.with_ == "target":
            return learner.bootstrap.q_values(observations)
        return learner.online.q_values(observations, frozen=frozen)

    @staticmethod
    def _mean(q: list[np.ndarray]) -> np.ndarray:
        return q[0] if len(q) == 1 else np.mean(q, axis=0)

    def observe(self, transition: Transition) -> None:
        """Puts one step of all E environments into the replay.

        Raises:
          ForeignError: a reward or an observation is NaN or infinite.
        """
        check_finite(self.settings.env.id, "reward", transition.r_t)
        check_finite(self.settings.env.id, "observation", transition.s_t)
        self._replay.add(transition)
        self._sampler.added()
        self._log.write_if_full(self._run.attempt)
        self.agent_steps += self._environments
        self.episodes += int(transition.last_t.sum())
        self._reward_limit = max(self._reward_limit, float(np.abs(transition.r_t).max()))
        self._r_max = max(self._r_max, float(transition.r_t.max()))

    def learn(self) -> list[float]:
        """Makes the updates that are due at this agent step, and the commits and refreshes between them.

        A snapshot is committed when it is due; the target is refreshed only when the next update needs it, so that an
        evaluation at equal counters comes between the two.

        Returns:
          The losses of the updates made; often none.

        Raises:
          DivergedError: a loss is NaN or infinite.
        """
        losses = []
        due = self._due(self.updates)
        for first in range(due.start, due.stop, self._updates_of_minibatch):
            self._refresh_if_due()
            work = self._prepare(range(first, first + self._updates_of_minibatch))
            losses += self._train(work)
            self._tell_sampler()
            self.commit_if_due()
        return losses

    def begin_chunk(self) -> None:
        """Refreshes the target if the next update needs it; freezes what acts until the next call."""
        if self.work:
            self._refresh_work(self.work)
        for learner in self.learners:
            learner.online.freeze()
        self._frozen_at = self.updates

    def prepare(self) -> Work | None:
        """Samples for the updates that became due, and evaluates the target for them; None if there are none.

        Touches neither the counter of updates nor a variable of the online twin: another thread may call `train_work`.
        """
        due = self._due(self.work.updates.stop if self.work else self.updates)
        return self._prepare(due) if due else None

    def train_work(self) -> None:
        """Makes the updates prepared in the chunk before. Raises `DivergedError`."""
        if self.work:
            self._train(self.work)

    def finish_work(self) -> None:
        """Makes the updates prepared so far, so that all that are due are made."""
        if self.work:
            self._train(self._refresh_work(self.work))
            self._tell_sampler()
            self.work = None

    def meanwhile(self) -> None:
        """Called while an evaluation goes on; in asynchronous training others train on."""

    def end(self) -> None:
        """No more steps will be made: makes the updates that are due, and commits a snapshot."""
        self.finish_work()
        self.commit()

    def take_returns(self) -> Sequence[float]:
        """True scores of training episodes that ended elsewhere, in asynchronous training; each is given once."""
        return ()

    def end_chunk(self) -> None:
        """What waits for both threads: the sampler learns of TD errors, a snapshot is committed if it is due."""
        self._tell_sampler()
        self.commit_if_due()

    def commit_if_due(self) -> None:
        """Commits a snapshot if the schedule says so."""
        if self._is_due(self._save_schedule, self._saved):
            self.commit()

    def _due(self, first: int) -> range:
        """The numbers, from `first` on, of the updates that are due at this agent step."""
        train = self.settings.train
        minibatches = (self.agent_steps - train.start_steps) // train.every_steps
        return range(first, max(first, minibatches * self._updates_of_minibatch))

    def _tell_sampler(self) -> None:
        if self._found:
            self._sampler.learnt(*self._found)
            self._found = None

    def _refresh_work(self, work: Work) -> Work:
        """Refreshes the target if it is due; where it changed since it was evaluated, it is evaluated anew."""
        self._refresh_if_due()
        if work.snapshots != self._snapshots():
            work = self.work = self._evaluated(work.updates, work.batch)
        return work

    def _snapshots(self) -> list[tuple[str, ...]]:
        return [learner.bootstrap.snapshots for learner in self.learners]

    def _refresh_if_due(self) -> None:
        for learner in self.learners:
            if not learner.bootstrap.held and self._is_due(self._refresh_schedule, learner.bootstrap.since):
                self._refresh(learner, str(self._refresh_schedule))

    def _is_due(self, schedule: Schedule, since: Counters) -> bool:
        """Whether a multiple of the schedule's period was reached or passed since then."""
        now = {"updates": self.updates, "steps": self.agent_steps, "episodes": self.episodes}[schedule.unit]
        then = {"updates": since.updates, "steps": since.agent_steps, "episodes": since.episodes}[schedule.unit]
        return now // schedule.every > then // schedule.every

    def _prepare(self, updates: range) -> Work:
        if self._probe is None:
            self._probe = self._replay.sample(PROBE_SIZE, [stream(self.settings.seed, Purpose.PROBE, 0)]).s_tm1
        with self.stopwatch.phase("sample"):
            share = self._updates_of_minibatch
            minibatches = range(updates.start // share, updates.stop // share)
            batch = self._sampler.sample(minibatches, self._room(len(minibatches) * self.settings.train.examples))
            if self.settings.train.rescale_r:
                batch = batch._replace(r_t=batch.r_t / np.float32(self._r_max))
        return self._evaluated(updates, batch)

    def _room(self, transitions: int) -> Observations:
        """Arrays for so many observations, in turn from two places: one is trained on while the other is filled."""
        self._rooms.reverse()
        room = self._rooms[0]
        if room is None or len(room[0]) < transitions:
            shape, dtype = (transitions, *self.online.spec.observation_shape), self.online.spec.observation_dtype
            room = self._rooms[0] = np.empty(shape, dtype), np.empty(shape, dtype)
        return room[0][:transitions], room[1][:transitions]

    def _evaluated(self, updates: range, batch: Batch) -> Work:
        if not self.settings.train.target_q:
            return Work(updates, batch, self._snapshots(), None)
        q = []
        with self.stopwatch.phase("target"):
            for name, turn in itertools.groupby(updates, lambda update: mutual.learns(self.settings, update)):
                learner = self.learner(name)
                first, *others = turn
                last = others[-1] if others else first
                s_t = batch.s_t[self._rows(updates, first).start : self._rows(updates, last).stop]
                q.append(learner.bootstrap.in_blocks(s_t))
        return Work(updates, batch, self._snapshots(), np.concatenate(q))

    def _rows(self, updates: range, update: int) -> slice:
        """Where the minibatch of one of these updates lies in their batch."""
        share, examples = self._updates_of_minibatch, self.settings.train.examples
        first = (update // share - updates.start // share) * examples
        return slice(first, first + examples)

    def _train(self, work: Work) -> list[float]:
        """Makes the updates; returns their losses."""
        train = self.settings.train
        td_error = np.zeros(len(work.batch.step), np.float32)
        losses = []
        for update in work.updates:
            learner = self.learner(mutual.learns(self.settings, update))
            rows, q_first = self._rows(work.updates, update), (update - work.updates.start) * train.examples
            q_target_t = None if work.q_target_t is None else work.q_target_t[q_first : q_first + train.examples]
            batch = Batch(*(values[rows] for values in work.batch))
            found = learner.train(update, minibatches(learner.online.model, train, batch, q_target_t))
            self.updates += 1
            self.last_loss, self.last_q = found.loss, found.q_mean
            losses.append(found.loss)
            td_error[rows] = found.td_error
        self._found = work.batch, td_error
        for learner in self.learners:
            learner.check(f"by update {self.updates}")
        return losses

    def commit(self) -> list[Commit]:
        """Saves each learner's online twin as a snapshot, durable when this returns; see `Learner.commit`.

        Raises:
          OSError: the disk is full or failed.
          DivergedError: a weight is NaN or infinite.
        """
        self._saved = self.counters
        return [learner.commit(self._saved, self._health(learner)) for learner in self.learners]

    def refresh(self, reason: str) -> None:
        """Restores what the target policy chooses into each learner's target, and records it."""
        for learner in self.learners:
            self._refresh(learner, reason)

    def _refresh(self, learner: Learner, reason: str) -> None:
        random = stream(self.settings.seed, Purpose.TARGET, self.updates)
        choice = self._policy.choose(self.history(learner.source), random)
        learner.refresh(choice, self.counters, policy=self._policy.text, reason=reason)

    def swap(
        self, snapshots: Sequence[Commit], *, learner: str, into: str, hold: bool, request: str, undo: bool = False
    ) -> Swap:
        """Restores what a person chose, and records it.

        Into the online twin the present weights are committed first, and the optimizer begins anew.

        Args:
          snapshots: one, but for the undoing of a swap of an ensemble.
          learner: its name.
          into: `target` or `online`.
          hold: no refreshes by the schedule until it is undone.
          request: the person's, for the ledger.
          undo: whether this takes back another swap.

        Returns:
          The ledger's record.
        """
        if into == "online":
            self.commit()
        whose = self.learner(learner)
        return whose.swap(snapshots, self.counters, into=into, hold=hold, request=request, undo=undo)

    def _health(self, learner: Learner) -> Health | None:
        if self._probe is None:
            return None
        q_abs = np.abs(learner.online.q_values(self._probe))
        finite = bool(np.isfinite(q_abs).all())
        horizon = 1 - self.settings.train.discount
        return Health(
            q_abs_mean=float(q_abs.mean()) if finite else None,
            q_abs_max=float(q_abs.max()) if finite else None,
            q_limit=self._reward_limit / horizon if horizon and self._reward_limit else None,
        )

    def record_evaluation(self, snapshot: Commit, result: Mapping[str, Any], challenger: Commit) -> None:
        """Records a scheduled evaluation, made now.

        Args:
          snapshot: which played.
          result: see `twin_graph.evaluation.Evaluation.summary`.
          challenger: the newest snapshot, which played the same games.
        """
        self._evaluations.append(
            self._run.record_evaluation(snapshot, result, played_at=self.counters, challenger=challenger.id)
        )
        self._matches = targets.matches(self._evaluations)

    @property
    def evaluated_at(self) -> set[int]:
        """Agent steps at which scheduled evaluations were made."""
        return {line["played_at"]["agent_steps"] for line in self._evaluations if line["scheduled"]}

    def telemetry(self) -> dict[str, float]:
        """How far each target is from its online twin, and two learners from each other, on the probe batch.

        Empty before there is one.
        """
        if self._probe is None:
            return {}
        first, *others = self.learners
        measured = first.telemetry(self._probe)
        for other in others:
            measured |= {f"{name}/{other.name}": value for name, value in other.telemetry(self._probe).items()}
            ours, theirs = first.online.q_values(self._probe), other.online.q_values(self._probe)
            measured["learners/q_distance"] = float(np.abs(ours - theirs).mean())
            measured["learners/greedy_agreement"] = greedy_agreement(ours, theirs)
        return measured

    def log(self, values: Mapping[str, Any], counters: Counters | None = None) -> None:
        """Writes values, with counters, to `metrics.jsonl`, and those that are numbers to TensorBoard.

        Args:
          values: by name; a name with a slash is in TensorBoard's section before it.
          counters: to which they belong; by default those of now.

        Raises:
          OSError: the disk is full or failed.
        """
        counters = counters or self.counters
        self._run.record_metrics({**values, **counters.model_dump()})
        numbers = {name: float(value) for name, value in values.items() if isinstance(value, int | float | np.number)}
        self._events.write(counters.agent_steps, numbers)

    def log_variables(self) -> None:
        """Writes statistics and histograms to TensorBoard: of trainable variables, and of activations on the probe."""
        arrays = {f"variables/{name}": value for name, value in self.weights().items()}
        if self._probe is not None:
            arrays |= {f"activations/{name}": value for name, value in self.online.activations(self._probe).items()}
        self._events.write_histograms(self.agent_steps, arrays)

    def commit_point_where_it_broke_off(self, returns: Sequence[float] = ()) -> PointState:
        """A resume point after code that is not ours failed, between any two steps or before a refresh.

        Updates that were prepared for the part of a chunk that never came are prepared again by whoever resumes.
        """
        self.work = None
        self._tell_sampler()
        return self.point if self.point and self.at_point else self.commit_point(returns)

    def commit_point(self, returns: Sequence[float] = ()) -> PointState:
        """Makes all that is needed to resume from here durable, and ends every episode.

        Reset the environments after it, from `environment_seeds()`. Updates that were prepared are made first.

        Args:
          returns: of the newest training episodes, kept in the point.

        Raises:
          OSError: the disk is full or failed; the point before stays the newest.
        """
        self.finish_work()
        with self.stopwatch.phase("resume point"):
            self._replay.cut()
            state = PointState(
                number=self._points.next_number(),
                attempt=self._run.attempt,
                time=utc_now(),
                counters=self.counters,
                weights_sha256=weights_sha256(self.weights()),
                learners=tuple(learner.state for learner in self.learners),
                saved=self._saved,
                reward_limit=self._reward_limit,
                r_max=self._r_max,
                returns=tuple(returns),
                known_bytes=self._run.known_bytes(),
                segments=self._log.write_rest(self._run.attempt),
            )
            self._points.commit(state, self._save_variables, self._arrays())
            chain = [self.point, state] if self.point else [state]
            self.point = state
            kept = self._points.retain(chain)
        with self.stopwatch.phase("prune"):
            self.store.remove_weights(
                lambda: retention.removable(self._run, self.store, kept[0], self._policy, self.settings.save),
                attempt=self._run.attempt,
            )
        return state

    def _save_variables(self, folder: Path) -> None:
        for learner in self.learners:
            learner.online.save(folder / learner.name, optimizer=True)

    def _arrays(self) -> dict[str, np.ndarray]:
        """What a resume point keeps beside variables and replay."""
        probe = {} if self._probe is None else {PROBE: self._probe}
        return probe | self._sampler.state()

    def _restore(self, point: PointState) -> None:
        """Goes back to a resume point; the ledger already says so."""
        self.agent_steps = point.counters.agent_steps
        self.updates = point.counters.updates
        self.episodes = point.counters.episodes
        self._saved = point.saved
        self._reward_limit, self._r_max = point.reward_limit, point.r_max
        self.point = point
        arrays = self._points.arrays(point)
        self._probe = arrays.get(PROBE)
        self._log.restore(point.segments)
        self._sampler.restore(arrays)
        self.store.reload()
        for learner, state in zip(self.learners, point.learners, strict=True):
            if not learner.restore(state, self._points.path(point.number) / learner.name, self._policy):
                self._refresh(learner, f"the policy was {state.target.policy}")
