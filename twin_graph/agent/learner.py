"""Learners: each an online twin, a target, and the snapshots that turn one into the other; and what they learn from."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from twin_graph import targets
from twin_graph.agent.role import Role, Why
from twin_graph.base.streams import NoiseKeys, Purpose
from twin_graph.envs.seats import Turn, at_random, by_values
from twin_graph.errors import DivergedError, TwinMismatchError, UsageError
from twin_graph.snapshots.points import LearnerState
from twin_graph.snapshots.store import Provenance, SnapshotStore
from twin_graph.targets.policies import own_weights
from twin_graph.twin.twin import Compute, Twin, weights_sha256

if TYPE_CHECKING:
    from twin_graph.base.counters import Tally
    from twin_graph.base.stopwatch import Stopwatch
    from twin_graph.config.settings import TrainSettings
    from twin_graph.config.turns import Turns
    from twin_graph.replay.ring import Batch
    from twin_graph.snapshots.ledger import Commit, Counters, Health, Restore
    from twin_graph.snapshots.run import Run
    from twin_graph.twin.model import Model, ModelSpec


class Prepared(NamedTuple):
    """Updates that can be made without access to replay or target.

    Attributes:
      updates: their numbers, from 0.
      per_minibatch: updates that learn from one minibatch.
      batch: their minibatches, one after the other.
      snapshots: the snapshots in each learner's target.
      by_target: what each update needs of its learner's target, by the name in `Model`: float32
        `[updates * examples, A]`, or `[..., A, N]` of distributions; see `Ensemble.for_updates`.
    """

    updates: range
    per_minibatch: int
    batch: Batch
    snapshots: Sequence[tuple[str, ...]]
    by_target: Mapping[str, np.ndarray]

    def values(self, updates: Sequence[int]) -> dict[str, np.ndarray]:
        """The inputs of these updates, one after the other, by the names in `Model.fed`: `[N * examples, ...]`."""
        numbers = self.minibatches(updates)
        values = {name: self.rows(array, numbers) for name, array in self.batch._asdict().items()}
        which = [update - self.updates.start for update in updates]
        return values | {name: self.rows(array, which) for name, array in self.by_target.items()}

    def minibatches(self, updates: Sequence[int]) -> list[int]:
        """Which of the minibatches in `batch`, from 0, each of these updates learns from."""
        return [update // self.per_minibatch - self.updates.start // self.per_minibatch for update in updates]

    @property
    def examples(self) -> int:
        """Transitions of one minibatch."""
        return len(self.batch.step) * self.per_minibatch // len(self.updates)

    def rows(self, array: np.ndarray, numbers: list[int]) -> np.ndarray:
        """The rows of minibatches `numbers` (from 0), `[M * examples, ...]`; a view if the numbers are consecutive."""
        first, size = numbers[0], self.examples
        if numbers == list(range(first, first + len(numbers))):
            return array[first * size : (first + len(numbers)) * size]
        rest = array.shape[1:]
        return array.reshape(-1, size, *rest)[numbers].reshape(-1, *rest)


def feeds(model: Model, train: TrainSettings, values: Mapping[str, np.ndarray]) -> list[dict[Any, np.ndarray]]:
    """What to feed for one update: a mapping for each of the `train.accumulate` parts whose gradients are added up.

    Args:
      model: of the twin that trains.
      train: settings.
      values: `[train.examples, ...]`, by the names in `model.fed`.
    """
    parts = (slice(first, first + train.batch_size) for first in range(0, train.examples, train.batch_size))
    return [{tensor: values[name][rows] for name, tensor in model.fed.items()} for rows in parts]


class Losses(NamedTuple):
    """What N updates report: loss and max_a Q, means over the minibatch, `[N]`, and TD errors, float32 `[N, B]`."""

    loss: np.ndarray
    q_mean: np.ndarray
    td_error: np.ndarray


class Learner:
    """Owns its twins; closed by `close()`.

    Args:
      name: `online`, or `a` or `b` of two.
      turns: says where its snapshots go, and whose supply its target.
      run: in whose folder snapshots are committed and swaps recorded.
      store: the run's snapshots.
      spec: of the twins.
      stopwatch: measures phases.
      like: a twin with which these must be able to exchange snapshots.

    Attributes:
      online: the twin that trains.
      target: supplies bootstrap values.
      roles: by name, the target, and in games of two players the opponent.
      lineage: where its snapshots go.
      updates: its own.
      newest: its last snapshot; None before the first.
    """

    def __init__(
        self,
        name: str,
        turns: Turns,
        run: Run,
        store: SnapshotStore,
        spec: ModelSpec,
        stopwatch: Stopwatch,
        *,
        like: Twin | None = None,
    ) -> None:
        settings = run.settings
        self.name, self.lineage, self._whose = name, turns.lineage(name), turns.whose(name)
        self.updates = 0
        self.newest: Commit | None = None
        self._run = run
        self._store = store
        self._stopwatch = stopwatch
        self._settings, self._settings_sha256 = settings, settings.sha256()
        self._noise = NoiseKeys(settings.seed, Purpose.NOISE, draws=settings.model.draws)
        compute = Compute(settings.twin.threads, settings.ops_at_once, settings.twin.precision)
        make = functools.partial(Twin, spec=spec, compute=compute)
        # Far from the seeds that other runs are likely to have. (TensorFlow takes seeds modulo 2**31 - 1.)
        seed = settings.seed + turns.learners.index(name) * 2**30
        self.online = make(name, seed=seed, block=settings.block_updates, like=like)
        self.roles: dict[str, Role] = {}
        held = functools.partial(make, learns=False, like=self.online)
        try:
            for role, policy in targets.roles(settings).items():
                self.roles[role] = Role(role, name, turns.source(name), policy, run, store, held)
        except BaseException:
            self.close()
            raise
        self.target = self.roles["target"]

    def close(self) -> None:
        """Ends the sessions."""
        for role in self.roles.values():
            role.close()
        self.online.close()

    def train(self, updates: Sequence[int], prepared: Prepared) -> Losses:
        """Makes prepared updates, one optimizer step each.

        Args:
          updates: their numbers in the run, counted from 0; only those that this learner makes.
          prepared: has their minibatches.

        Raises:
          DivergedError: a loss is NaN or infinite.
        """
        if self.online.model.block:
            size = self.online.model.block.updates
            made = [self._block(updates[i : i + size], prepared) for i in range(0, len(updates), size)]
        else:
            made = [self._step(update, prepared) for update in updates]
        losses = Losses(*(np.concatenate(values) for values in zip(*made, strict=True)))
        if not np.isfinite(losses.loss).all():
            first = int(np.argmin(np.isfinite(losses.loss)))
            raise self._diverged(f"the loss{self._whose} is {losses.loss[first]} at update {updates[first] + 1}")
        self.updates += len(updates)
        return losses

    def _step(self, update: int, prepared: Prepared) -> Losses:
        """One update by `train_op`."""
        model = self.online.model
        feed: dict[Any, Any] = {getattr(model, name): value for name, value in self._of_update(update).items()}
        parts = feeds(model, self._settings.train, prepared.values([update]))
        made = []
        with self._stopwatch.phase("train"):
            for i, part in enumerate(parts):
                op = model.train_op if i == len(parts) - 1 else model.accumulate_op
                feed[model.dropout_seed] = self._settings.seed, update * len(parts) + i  # each has its own masks
                _, *fetched = self.online.run((op, model.loss, model.q_mean, model.td_error), {**part, **feed})
                made.append(fetched)
        loss, q_mean, td_error = zip(*made, strict=True)
        return Losses(np.mean([loss], axis=1), np.mean([q_mean], axis=1), np.concatenate(td_error)[None])

    def _block(self, updates: Sequence[int], prepared: Prepared) -> Losses:
        """Several updates in one run."""
        block = self.online.model.block
        assert block
        values = prepared.values(updates)
        values["dropout_seed"] = np.array([(self._settings.seed, update) for update in updates])
        each = [self._of_update(update) for update in updates]
        values |= {name: np.array([of[name] for of in each]) for name in each[0]}
        with self._stopwatch.phase("train"):
            fetched = self.online.run(block.fetches, block.feed(values))
        return Losses(*(values[: len(updates)] for values in fetched))

    def _of_update(self, update: int) -> dict[str, Any]:
        """What is fed once an update, by its name in `Model`."""
        fed = {
            "learning_rate": np.float32(self._settings.train.learning_rate_at(update)),
            "noise_key": self._noise.at(update),
        }
        return {name: value for name, value in fed.items() if value is not None}

    def commit(self, counters: Counters, health: Health | None, lasting: Mapping[str, np.ndarray]) -> Commit:
        """Saves the online twin as a durable snapshot, or returns the newest one if nothing was learnt since.

        Args:
          counters: of the run.
          health: of its Q values.
          lasting: what its environments keep; see `twin_graph.envs.lasting`.

        Raises:
          OSError: the disk is full or failed; nothing was committed.
          DivergedError: a weight is NaN or infinite; nothing was committed.
        """
        with self._stopwatch.phase("save"):
            weights = self.online.weights()
            sha256 = weights_sha256(weights)
            if self.newest and self.newest.weights_sha256 == sha256:
                return self.newest
            self.check_finite(weights, counters.updates)
            self.newest = self._store.commit(
                self.online.save,
                Provenance(
                    lineage=self.lineage,
                    learner=self.name,
                    learner_updates=self.updates,
                    attempt=self._run.attempt,
                    counters=counters,
                    settings_sha256=self._settings_sha256,
                    weights_sha256=sha256,
                    variables=self.online.variables,
                    health=health,
                ),
                lasting,
            )
            return self.newest

    def check_finite(self, values: Mapping[str, np.ndarray], updates: int) -> None:
        """Raises `DivergedError` if one of these variables is NaN or infinite after this many updates."""
        if wrong := next((name for name, value in values.items() if not np.isfinite(value).all()), None):
            raise self._diverged(f"{wrong}{self._whose} is not finite after update {updates}")

    def _diverged(self, what: str) -> DivergedError:
        newest = f"the last good snapshot is {self.newest.id}" if self.newest else "there is no snapshot yet"
        advice = "Try a smaller train.learning_rate" if self.updates else "Look at rewards, observations and the loss"
        return DivergedError(f"{what}; {newest}. {advice}")

    def try_online(self, snapshot: Commit) -> None:
        """Changes nothing. Raises `DamagedError` if a snapshot cannot be restored, or has other weights than those
        committed."""
        before = self.online.weights()
        try:
            self.online.restore_snapshot(snapshot, self._store)
        finally:
            self.online.load(before)

    def swap_online(self, snapshot: Commit, counters: Counters, why: Why) -> Restore:
        """Restores what a person chose into the online twin, forgets the optimizer's moments, and records it."""
        assert self.newest is not None
        self.online.restore_snapshot(snapshot, self._store)
        self.online.reset_optimizer()
        which = {"into": "online", "learner": self.name}
        return why.record(self._run, counters, **which, snapshots=(snapshot.id,), previous=(self.newest.id,))

    def check_target(self, when: str) -> None:
        """With `twin.check`: raises `TwinMismatchError` if a target twin holds other weights than its snapshot."""
        if self._settings.twin.check and (wrong := self.target.changed(self._store)):
            raise TwinMismatchError(f"the target twin of {wrong} holds other weights, {when}")

    def acting_q_values(
        self, observations: np.ndarray, *, frozen: bool, noise_key: np.ndarray | None = None
    ) -> np.ndarray:
        """Q values to act by, float32 `[B, A]`: the online twin's, or with `act.with=target` the target's."""
        if self._settings.act.with_ == "target":
            return self.target.q_values(observations, noise_key)
        return self.online.q_values(observations, frozen=frozen, noise_key=noise_key)

    def opponent_actions(self, turn: Turn, *, frozen: bool) -> np.ndarray:
        """The opponent's actions, int64 `[B]`: by the snapshots it holds, the online twin's weights, or at random."""
        opponent, spec, epsilon = self.roles["opponent"], self.online.spec.env, self._settings.opponent.epsilon
        if opponent.snapshots:
            return by_values(spec, opponent.q_values, epsilon)(turn)
        if opponent.policy.function is own_weights:
            own = functools.partial(self.online.q_values, frozen=frozen)
            return by_values(spec, own, epsilon)(turn)
        return at_random(spec)(turn)

    @property
    def state(self) -> LearnerState:
        """What a resume point stores of it, apart from the variables."""
        roles = {name: role.state for name, role in self.roles.items()}
        return LearnerState.model_validate({"name": self.name, "updates": self.updates, **roles})

    def restore(self, state: LearnerState, variables: Path) -> list[tuple[Role, str]]:
        """Returns to a resume point.

        Args:
          state: of this learner.
          variables: prefix of a Saver's files with all variables.

        Returns:
          What the caller has to refresh because another policy chose its snapshots, and that policy.
        """
        self.updates = state.updates
        self.online.restore(variables, optimizer=True)
        mine = [snapshot for snapshot in self._store.snapshots if snapshot.learner == self.name]
        self.newest = mine[-1] if mine else None
        chosen_otherwise = []
        for name, role in self.roles.items():
            then = state.roles.get(name)
            if not role.take_up(then):
                chosen_otherwise.append((role, then.policy if then else "none"))
        return chosen_otherwise


class Trained(NamedTuple):
    """The result of prepared updates: the loss of each, and the absolute TD error of each row of their batch, float32
    `[B]`; if both learners learned from a row, the larger of their errors."""

    losses: list[float]
    td_error: np.ndarray


class Learners:
    """Lets callers treat two learners as one, whichever of them acts or learns.

    Args:
      learners: one, or two.
      turns: whose turn it is.
      tally: counts their updates.
      stopwatch: measures phases.

    Attributes:
      turns: as given.
      each: the learners.
      roles: each one's target, and the opponent in games of two players.
    """

    def __init__(self, learners: Sequence[Learner], turns: Turns, tally: Tally, stopwatch: Stopwatch) -> None:
        self.each = tuple(learners)
        self.roles = tuple(role for learner in learners for role in learner.roles.values())
        self._learners = {learner.name: learner for learner in learners}
        self.turns = turns
        self._tally = tally
        self._stopwatch = stopwatch
        self._frozen_at = 0
        seed, draws = turns.settings.seed, turns.settings.model.draws
        self._noise_of_acting = NoiseKeys(seed, Purpose.NOISE_OF_ACTING, draws=draws)
        self._noise_of_target = NoiseKeys(seed, Purpose.NOISE_OF_TARGET, draws=draws)

    def __iter__(self) -> Iterator[Learner]:
        return iter(self._learners.values())

    def __len__(self) -> int:
        return len(self._learners)

    def __getitem__(self, name: str) -> Learner:
        """The learner of this name. Raises `UsageError` if there is none."""
        if name not in self._learners:
            raise UsageError(f"there is no learner {name!r}; choose {' or '.join(self._learners)}")
        return self._learners[name]

    @property
    def first(self) -> Learner:
        """The only one, or `a`."""
        return next(iter(self))

    @property
    def target_snapshots(self) -> list[tuple[str, ...]]:
        """The snapshots in each one's target."""
        return [learner.target.snapshots for learner in self]

    @property
    def target_served(self) -> int:
        """Updates made since the target was restored; with two targets, since the one that was restored earlier."""
        return self._tally.updates - min(learner.target.since.updates for learner in self)

    def q_values(self, observations: np.ndarray) -> np.ndarray:
        """Q values, float32 `[B, A]`, of observations `[B, *observation_shape]`; of two learners, their mean."""
        return _mean([learner.online.q_values(observations) for learner in self])

    def freeze(self) -> None:
        """Freezes the current weights, and remembers whose turn it is to act, for
        `acting_q_values(..., frozen=True)`."""
        for learner in self:
            learner.online.freeze()
        self._frozen_at = self._tally.updates

    def acting_q_values(self, observations: np.ndarray, *, frozen: bool) -> np.ndarray:
        """Q values to act by, float32 `[E, A]`, of the learners whose turn it is."""
        update = self._frozen_at if frozen else self._tally.updates
        acting = self.turns.act(self._tally.agent_steps, update)
        key = self._noise_of_acting.at(self._tally.agent_steps)
        return _mean([self[name].acting_q_values(observations, frozen=frozen, noise_key=key) for name in acting])

    def weights(self) -> dict[str, np.ndarray]:
        """The online twin's trainable weights by name; of two learners, by `a/` or `b/` and the name."""
        if len(self) == 1:
            return self.first.online.weights()
        return {f"{learner.name}/{n}": w for learner in self for n, w in learner.online.weights().items()}

    def prepare(self, updates: range, batch: Batch) -> Prepared:
        """The minibatches of these updates with the current targets' values for them.

        Args:
          updates: their numbers, from 0.
          batch: their minibatches, one after the other.
        """
        settings = self.turns.settings
        prepared = Prepared(updates, settings.updates_per_minibatch, batch, self.target_snapshots, {})
        found = []
        with self._stopwatch.phase("target"):
            # At once what one target supplies with one draw of noise.
            draw = settings.model.draws
            for (name, update), turn in itertools.groupby(updates, lambda u: (self.turns.learns(u), u if draw else 0)):
                numbers = prepared.minibatches(list(turn))
                s_tm1, s_t = (prepared.rows(observations, numbers) for observations in (batch.s_tm1, batch.s_t))
                key = self._noise_of_target.at(update)
                found.append(self[name].target.for_updates(settings.train, s_tm1, s_t, key))
        return prepared._replace(by_target={name: np.concatenate([one[name] for one in found]) for name in found[0]})

    def by_present_targets(self, prepared: Prepared) -> Prepared:
        """The same updates, evaluated again if a target has been refreshed since."""
        if prepared.snapshots == self.target_snapshots:
            return prepared
        return self.prepare(prepared.updates, prepared.batch)

    def train(self, prepared: Prepared) -> Trained:
        """Makes prepared updates. Raises `DivergedError` if a loss is NaN or infinite."""
        count = len(prepared.updates)
        loss, q_mean = np.zeros((2, count))
        td_error = np.zeros((count // prepared.per_minibatch, prepared.examples), np.float32)
        whose = [self.turns.learns(update) for update in prepared.updates]
        for learner in self:
            updates = [update for update, name in zip(prepared.updates, whose, strict=True) if name == learner.name]
            if updates:
                made = learner.train(updates, prepared)
                which = np.array(updates) - prepared.updates.start
                loss[which], q_mean[which] = made.loss, made.q_mean
                rows = prepared.minibatches(updates)  # both may learn from one
                td_error[rows] = np.maximum(td_error[rows], np.abs(made.td_error))
        self._tally.updates += count
        self._tally.loss, self._tally.q_mean = float(loss[-1]), float(q_mean[-1])
        for learner in self:
            learner.check_target(f"by update {self._tally.updates}")
        return Trained(loss.tolist(), td_error.ravel())


def _mean(q: list[np.ndarray]) -> np.ndarray:
    return q[0] if len(q) == 1 else np.mean(q, axis=0)
