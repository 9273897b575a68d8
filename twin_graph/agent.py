"""The agent: an online twin, a target, a replay, and a snapshot store between the twins."""

import contextlib
import math
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, NamedTuple, Self

import numpy as np

from twin_graph import retention, targets
from twin_graph.bootstrap import Bootstrap
from twin_graph.config import Schedule, Settings
from twin_graph.errors import DivergedError, TwinMismatchError, UsageError
from twin_graph.model import ModelSpec
from twin_graph.replay import Batch, Observations, Replay, Transition
from twin_graph.resume import ReplayLog
from twin_graph.snapshots.ledger import BY_HAND, UNDO, Commit, Counters, End, Health, Swap, utc_now
from twin_graph.snapshots.points import VARIABLES_PREFIX, PointState
from twin_graph.snapshots.run import Run
from twin_graph.snapshots.store import VariableRecord
from twin_graph.stopwatch import Stopwatch
from twin_graph.streams import Purpose, environment_seeds, stream
from twin_graph.twin import Twin, weights_sha256

LINEAGE = "online"
PROBE_SIZE = 32
_TARGET_BATCH = 128  # observations; larger batches are no faster, and need more memory


class Work(NamedTuple):
    """Updates that can be made without a look at replay or target.

    Attributes:
      updates: their numbers, from 0.
      batch: their minibatches, one after the other.
      snapshots: what the target held.
      q_target_t: what it said of `batch.s_t`, float32 `[B, A]`; None without `train.target_q`.
    """

    updates: range
    batch: Batch
    snapshots: tuple[str, ...]
    q_target_t: np.ndarray | None


class Agent:
    """Q-learning from E environments that somebody else steps; owns all twins, closed by `close()` or `with`.

    A loop of one's own is `a = agent.act(s)`, one step of the environments, `agent.observe(transition)`,
    `agent.learn()`. All counters and all random draws follow from the number of calls and the run's seed. Making an
    agent takes the run's lock and records a start in its ledger, closing it an end.

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
      online: the twin that trains.
      bootstrap: the target.
      agent_steps, updates, episodes: counters, from 0.
      store: the run's snapshots.
      point: the newest resume point; None before the first.
      work: what was prepared in the newest chunk and is to be trained in the next; None in the classic loop.
      last_loss, last_q: of the newest update; NaN before the first.

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
        self._run = run
        self._environments = environments
        self._frames_per_step = frames_per_step
        self._n_actions = n_actions
        self._settings_sha256 = settings.sha256()
        self._policy = targets.parse(settings.target.policy)
        self._save_schedule, self._refresh_schedule = settings.save_schedule, settings.refresh_schedule
        self._saved = self.counters
        self._reward_limit, self._r_max = 0.0, 1.0
        self._examples = settings.train.batch_size * settings.train.accumulate  # of one update
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
        spec = ModelSpec.of(settings, observation_shape, observation_dtype, n_actions)
        threads, precision = settings.twin.threads, settings.twin.precision
        with contextlib.ExitStack() as building:
            building.enter_context(run.lock("train"))
            self.online = building.enter_context(
                Twin("online", spec, seed=settings.seed, threads=threads, precision=precision)
            )
            self.bootstrap = Bootstrap(
                spec,
                threads=threads,
                precision=precision,
                members=self._policy.members,
                combine=self._policy.combine,
                like=self.online,
            )
            building.callback(self.bootstrap.close)
            self.store = run.store()
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
            self._evaluations = list(run.evaluations())
            if point is None:
                self.commit()
                self.refresh(reason="start")
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

    @property
    def target_age(self) -> int:
        """Updates made since the target was restored."""
        return self.updates - self.bootstrap.since.updates

    @property
    def at_point(self) -> bool:
        """Whether a resume point was made at this very step, so that the environments have to be reset."""
        return self.point is not None and self.point.counters.agent_steps == self.agent_steps

    @property
    def history(self) -> targets.History:
        """What the target policy may look at now."""
        snapshots = [snapshot for snapshot in self.store.available if snapshot.lineage == LINEAGE]
        return targets.History(self.updates, snapshots, targets.matches(self._evaluations))

    @property
    def rival(self) -> Commit | None:
        """The snapshot that the newest has to beat at the next scheduled evaluation, if the policy wants one."""
        rival = self._policy.rival(self.history)
        return self.store.find(rival) if rival else None

    def environment_seeds(self) -> np.ndarray:
        """Seeds, int64 `[E]`, from which the environments begin at this agent step: at the start, after each point."""
        return environment_seeds(self.settings.seed, Purpose.ENVIRONMENT, self.agent_steps, self._environments)

    def q_values(self, observations: np.ndarray) -> np.ndarray:
        """The online twin's Q values, float32 `[B, A]`, of observations `[B, *observation_shape]`."""
        return self.online.q_values(observations)

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
            explore = random.random(len(observations)) < self.epsilon
            actions = random.integers(0, self._n_actions, size=len(observations))
            if not explore.all():
                if self.settings.act.with_ == "target":
                    q = self.bootstrap.q_values(observations)
                else:
                    q = self.online.q_values(observations, frozen=frozen)
                actions = np.where(explore, actions, q.argmax(axis=1))
            return actions

    def observe(self, transition: Transition) -> None:
        """Puts one step of all E environments into the replay."""
        self._replay.add(transition)
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
        for update in self._due(self.updates):
            self._refresh_if_due()
            losses += self._train(self._prepare(range(update, update + 1)))
            self.commit_if_due()
        return losses

    def begin_chunk(self) -> None:
        """Refreshes the target if the next update needs it; freezes what acts until the next call."""
        if self.work:
            self._refresh_work(self.work)
        self.online.freeze()

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
            self.work = None

    def commit_if_due(self) -> None:
        """Commits a snapshot if the schedule says so."""
        if self._is_due(self._save_schedule, self._saved):
            self.commit()

    def _due(self, first: int) -> range:
        """The numbers, from `first` on, of the updates that are due at this agent step."""
        train = self.settings.train
        return range(first, max(first, (self.agent_steps - train.start_steps) // train.every_steps))

    def _refresh_work(self, work: Work) -> Work:
        """Refreshes the target if it is due; where it changed since it was evaluated, it is evaluated anew."""
        self._refresh_if_due()
        if work.snapshots != self.bootstrap.snapshots:
            work = self.work = self._evaluated(work.updates, work.batch)
        return work

    def _refresh_if_due(self) -> None:
        if not self.bootstrap.held and self._is_due(self._refresh_schedule, self.bootstrap.since):
            self.refresh(reason=str(self._refresh_schedule))

    def _is_due(self, schedule: Schedule, since: Counters) -> bool:
        """Whether a multiple of the schedule's period was reached or passed since then."""
        now = {"updates": self.updates, "steps": self.agent_steps, "episodes": self.episodes}[schedule.unit]
        then = {"updates": since.updates, "steps": since.agent_steps, "episodes": since.episodes}[schedule.unit]
        return now // schedule.every > then // schedule.every

    def _prepare(self, updates: range) -> Work:
        if self._probe is None:
            self._probe = self._replay.sample(PROBE_SIZE, [stream(self.settings.seed, Purpose.PROBE, 0)]).s_tm1
        with self.stopwatch.phase("sample"):
            randoms = [stream(self.settings.seed, Purpose.SAMPLE, update) for update in updates]
            batch = self._replay.sample(self._examples, randoms, self._room(len(updates) * self._examples))
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
            return Work(updates, batch, self.bootstrap.snapshots, None)
        with self.stopwatch.phase("target"):
            blocks = (batch.s_t[i : i + _TARGET_BATCH] for i in range(0, len(batch.s_t), _TARGET_BATCH))
            q_target_t = np.concatenate([self.bootstrap.q_values(block) for block in blocks])
        return Work(updates, batch, self.bootstrap.snapshots, q_target_t)

    def _train(self, work: Work) -> list[float]:
        """One optimizer step an update; returns the losses of their last minibatches."""
        model, train = self.online.model, self.settings.train
        losses = []
        *before, last = range(train.accumulate)
        for update in work.updates:
            with self.stopwatch.phase("train"):
                for minibatch in before:
                    self.online.run(model.accumulate_op, self._feed(work, update, minibatch))
                fetches = (model.train_op, model.loss, model.q_mean)
                _, loss, q = self.online.run(fetches, self._feed(work, update, last))
            self.updates += 1
            self.last_loss, self.last_q = float(loss), float(q)
            losses.append(self.last_loss)
            if not math.isfinite(self.last_loss):
                raise DivergedError(
                    f"the loss is {self.last_loss} at update {self.updates}; the last good snapshot is "
                    f"{self.store.newest.id}. Try a smaller train.learning_rate"
                )
        if self.settings.twin.check and (changed := self.bootstrap.check(self.store)):
            raise TwinMismatchError(f"the target twin of {changed} changed, by update {self.updates}")
        return losses

    def _feed(self, work: Work, update: int, minibatch: int) -> dict[Any, Any]:
        """What the online twin needs for one of an update's minibatches."""
        model, train = self.online.model, self.settings.train
        first = (update - work.updates.start) * self._examples + minibatch * train.batch_size
        rows = slice(first, first + train.batch_size)
        feed = {
            model.s_tm1: work.batch.s_tm1[rows],
            model.a_tm1: work.batch.a_tm1[rows],
            model.r_t: work.batch.r_t[rows],
            model.discount_t: work.batch.discount_t[rows],
            model.learning_rate: train.learning_rate_at(update),
            model.dropout_seed: (self.settings.seed, update * train.accumulate + minibatch),
        }
        if work.q_target_t is not None:
            feed[model.q_target_t] = work.q_target_t[rows]
        if train.double or not train.target_q:
            feed[model.s_t] = work.batch.s_t[rows]
        return feed

    def commit(self) -> Commit:
        """Saves the online twin as a snapshot, durable when this returns; gives the newest if nothing was learnt since.

        Raises:
          OSError: the disk is full or failed; nothing was committed.
          DivergedError: a weight is NaN or infinite; nothing was committed.
        """
        self._saved = self.counters
        with self.stopwatch.phase("save"):
            weights = self.online.weights()
            sha256 = weights_sha256(weights)
            if self.store.snapshots and self.store.newest.weights_sha256 == sha256:
                return self.store.newest
            if not all(np.isfinite(value).all() for value in weights.values()):
                raise DivergedError(
                    f"the weights are not finite after update {self.updates}; the last good snapshot is "
                    f"{self.store.newest.id}. Try a smaller train.learning_rate"
                )
            return self.store.commit(
                self.online.save,
                lineage=LINEAGE,
                attempt=self._run.attempt,
                counters=self._saved,
                settings_sha256=self._settings_sha256,
                weights_sha256=sha256,
                variables=[VariableRecord(**v._asdict()) for v in self.online.variables if v.name in weights],
                health=self._health(),
            )

    def refresh(self, reason: str) -> None:
        """Restores what the target policy chooses into the target, and records it."""
        random = stream(self.settings.seed, Purpose.TARGET, self.updates)
        choice = self._policy.choose(self.history, random)
        self._restore_target(
            choice.snapshots,
            policy=self._policy.text,
            candidates=tuple(snapshot.id for snapshot in choice.candidates),
            reason=f"{reason}: {choice.reason}",
            draw=choice.draw,
        )

    def swap(self, snapshots: Sequence[Commit], *, into: str, hold: bool, request: str, undo: bool = False) -> Swap:
        """Restores what a person chose, and records it.

        Into the online twin the present weights are committed first, and the optimizer begins anew.

        Args:
          snapshots: one, but for the undoing of a swap of an ensemble.
          into: `target` or `online`.
          hold: no refreshes by the schedule until it is undone.
          request: the person's, for the ledger.
          undo: whether this takes back another swap.

        Returns:
          The ledger's record.
        """
        policy, reason = (UNDO, "undone by hand") if undo else (BY_HAND, "by hand")
        candidates = tuple(snapshot.id for snapshot in snapshots)
        if into == "target":
            self.bootstrap.held = hold
            return self._restore_target(
                snapshots, policy=policy, candidates=candidates, reason=reason, request=request, hold=hold
            )
        before = self.commit()
        [snapshot] = snapshots
        self.online.restore(self.store.prefix(snapshot.id))
        self.online.reset_optimizer()
        swap = self._swap_record(
            into="online",
            snapshots=(snapshot.id,),
            policy=policy,
            candidates=candidates,
            reason=reason,
            request=request,
            previous=(before.id,),
        )
        self._run.ledger.append(swap)
        return swap

    def _restore_target(
        self,
        snapshots: Sequence[Commit],
        *,
        policy: str,
        candidates: tuple[str, ...],
        reason: str,
        draw: float | None = None,
        request: str | None = None,
        hold: bool = False,
    ) -> Swap:
        with self.stopwatch.phase("refresh"):
            previous = self.bootstrap.snapshots
            self.bootstrap.restore(snapshots, self.store)
            self.bootstrap.since = self.counters
            self.bootstrap.policy = policy
            swap = self._swap_record(
                into="target",
                snapshots=self.bootstrap.snapshots,
                policy=policy,
                candidates=candidates,
                reason=reason,
                draw=draw,
                request=request,
                hold=hold,
                previous=previous,
            )
            self._run.ledger.append(swap)
        if self.settings.twin.check and (wrong := self.bootstrap.check(self.store)):
            raise TwinMismatchError(f"after the refresh at update {self.updates} the target is not {wrong}")
        return swap

    def _swap_record(self, **fields: object) -> Swap:
        return Swap.model_validate(
            {
                "attempt": self._run.attempt,
                "time": utc_now(),
                "first_update": self.updates + 1,
                "counters": self.counters,
                **fields,
            }
        )

    def _health(self) -> Health | None:
        if self._probe is None:
            return None
        q_abs = np.abs(self.online.q_values(self._probe))
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

    @property
    def evaluated_at(self) -> set[int]:
        """Agent steps at which scheduled evaluations were made."""
        return {line["played_at"]["agent_steps"] for line in self._evaluations if line["scheduled"]}

    def telemetry(self) -> dict[str, float]:
        """How far the target is from the online twin, on the probe batch; empty before there is one."""
        if self._probe is None:
            return {}
        ours, theirs = self.online.q_values(self._probe), self.bootstrap.q_values(self._probe)
        online, target = self.online.weights(), self.bootstrap.weights()
        return {
            "target/q_distance": float(np.abs(ours - theirs).mean()),
            "target/greedy_agreement": float((ours.argmax(axis=1) == theirs.argmax(axis=1)).mean()),
            "target/weight_distance": math.sqrt(sum(float(np.square(online[n] - target[n]).sum()) for n in online)),
        }

    def commit_point(self, s_t: np.ndarray | None = None, returns: Sequence[float] = ()) -> PointState:
        """Makes all that is needed to go on from here durable, and ends every episode; reset the environments after it.

        Updates that were prepared are made first.

        Args:
          s_t: what was observed last, before any reset, `[E, *observation_shape]`; None before the first step.
          returns: of the newest training episodes, kept for `restored.returns`.

        Raises:
          OSError: the disk is full or failed; the point before stays the newest.
        """
        self.finish_work()
        with self.stopwatch.phase("resume point"):
            if s_t is not None:
                self._replay.cut(s_t)
            state = PointState(
                number=self._points.next_number(),
                attempt=self._run.attempt,
                time=utc_now(),
                counters=self.counters,
                weights_sha256=self.online.weights_sha256(),
                target=self.bootstrap.state,
                saved=self._saved,
                reward_limit=self._reward_limit,
                r_max=self._r_max,
                returns=tuple(returns),
                known_bytes=self._run.known_bytes(),
                segments=self._log.write_rest(self._run.attempt),
            )
            self._points.commit(state, lambda prefix: self.online.save(prefix, optimizer=True), self._probe)
            chain = [self.point, state] if self.point else [state]
            self.point = state
            kept = self._points.retain(chain)
        with self.stopwatch.phase("prune"):
            self.store.remove_weights(
                lambda: retention.removable(self._run, self.store, kept[0], self._policy, self.settings.save),
                attempt=self._run.attempt,
            )
        return state

    def _restore(self, point: PointState) -> None:
        """Goes back to a resume point; the ledger already says so."""
        self.agent_steps = point.counters.agent_steps
        self.updates = point.counters.updates
        self.episodes = point.counters.episodes
        self._saved = point.saved
        self._reward_limit, self._r_max = point.reward_limit, point.r_max
        self._probe = self._points.probe(point.number)
        self.online.restore(self._points.path(point.number) / VARIABLES_PREFIX, optimizer=True)
        self._log.restore(point.segments)
        self.store.reload()
        self.point = point
        target = point.target
        if target.policy in (self._policy.text, BY_HAND, UNDO) and len(target.snapshots) <= self._policy.members:
            self.bootstrap.restore([self.store.find(i) for i in target.snapshots], self.store)
            self.bootstrap.since, self.bootstrap.policy, self.bootstrap.held = target.since, target.policy, target.held
        else:
            self.refresh(reason=f"the policy was {target.policy}")
