"""A learner: an online twin, a target, and the snapshots that turn one into the other."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from twin_graph import targets
from twin_graph.agent.prepared import Prepared, feeds
from twin_graph.agent.role import Role, Why
from twin_graph.envs.seats import Turn, at_random, by_values
from twin_graph.errors import DivergedError, TwinMismatchError
from twin_graph.snapshots.points import LearnerState
from twin_graph.snapshots.store import Provenance, SnapshotStore
from twin_graph.targets.policies import own_weights
from twin_graph.twin.twin import Compute, Twin, weights_sha256

if TYPE_CHECKING:
    from twin_graph.base.stopwatch import Stopwatch
    from twin_graph.config.turns import Turns
    from twin_graph.snapshots.ledger import Commit, Counters, Health, Swap
    from twin_graph.snapshots.run import Run
    from twin_graph.twin.model import ModelSpec


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
        feed: dict[Any, Any] = {model.learning_rate: self._settings.train.learning_rate_at(update)}
        parts = feeds(model, self._settings.train, prepared.values([update]))
        made = []
        with self._stopwatch.phase("train"):
            for i, part in enumerate(parts):
                op = model.train_op if i == len(parts) - 1 else model.accumulate_op
                feed[model.dropout_seed] = self._settings.seed, update * len(parts) + i
                _, *fetched = self.online.run((op, model.loss, model.q_mean, model.td_error), {**part, **feed})
                made.append(fetched)
        loss, q_mean, td_error = zip(*made, strict=True)
        return Losses(np.mean([loss], axis=1), np.mean([q_mean], axis=1), np.concatenate(td_error)[None])

    def _block(self, updates: Sequence[int], prepared: Prepared) -> Losses:
        """Several updates in one run."""
        block = self.online.model.block
        assert block
        values = {
            **prepared.values(updates),
            "dropout_seed": np.array([(self._settings.seed, update) for update in updates]),
            "learning_rate": np.array(
                [self._settings.train.learning_rate_at(update) for update in updates], np.float32
            ),
        }
        with self._stopwatch.phase("train"):
            fetched = self.online.run(block.fetches, block.feed(values))
        return Losses(*(values[: len(updates)] for values in fetched))

    def commit(self, counters: Counters, health: Health | None) -> Commit:
        """Saves the online twin as a durable snapshot, or returns the newest one if nothing was learnt since.

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

    def swap_online(self, snapshot: Commit, counters: Counters, why: Why) -> Swap:
        """Restores what a person chose into the online twin, forgets the optimizer's moments, and records it."""
        assert self.newest is not None
        self.online.restore_snapshot(snapshot, self._store)
        self.online.reset_optimizer()
        which = {"into": "online", "learner": self.name}
        return why.record(self._run, counters, **which, snapshots=(snapshot.id,), previous=(self.newest.id,))

    def check(self, when: str) -> None:
        """With `twin.check`: raises `TwinMismatchError` if a target twin holds other weights than its snapshot."""
        if self._settings.twin.check and (wrong := self.target.changed(self._store)):
            raise TwinMismatchError(f"the target twin of {wrong} holds other weights, {when}")

    def acting_q_values(self, observations: np.ndarray, *, frozen: bool) -> np.ndarray:
        """Q values to act by, float32 `[B, A]`: the online twin's, or with `act.with=target` the target's."""
        if self._settings.act.with_ == "target":
            return self.target.q_values(observations)
        return self.online.q_values(observations, frozen=frozen)

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
        then = {name: state.roles.get(name) for name in self.roles}
        return [
            (role, held.policy if (held := then[name]) else "none")
            for name, role in self.roles.items()
            if not role.take_up(then[name])
        ]
