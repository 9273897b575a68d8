"""A worker: environments, replay and target of its own, gradients for the shared variables."""

from __future__ import annotations

import contextlib
import functools
import sys
import time
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from twin_graph import envs
from twin_graph.agent.actor import Actor
from twin_graph.agent.ensemble import Ensemble
from twin_graph.agent.learner import feeds
from twin_graph.base.counters import Tally
from twin_graph.base.streams import NoiseKeys, Purpose, environment_seeds
from twin_graph.config import trust
from twin_graph.distributed.copy import Applied, Copy
from twin_graph.distributed.shared import AnotherAttemptError, Shared
from twin_graph.errors import TwinGraphError, UsageError
from twin_graph.replay.ring import Batch, Transition
from twin_graph.snapshots.files import hold_folder
from twin_graph.snapshots.ledger import ONLY_LEARNER, Restore, is_target_of, utc_now
from twin_graph.snapshots.run import DESCRIPTION, Run
from twin_graph.snapshots.workers import FOLDER, UpdateLog, name_of, own_status, write_status
from twin_graph.targets import policies
from twin_graph.training.progress import RECENT_EPISODES, RunningScores
from twin_graph.twin.model import ModelSpec
from twin_graph.twin.twin import Compute, Twin

if TYPE_CHECKING:
    from twin_graph.config.settings import Settings
    from twin_graph.distributed.cluster import Cluster
    from twin_graph.envs import VectorEnv

_STATUS_SECONDS = 1.0
_CHIEF_SECONDS = 600.0
_DROPOUT_SEEDS = 2**30  # which a network may double


class _Applying(NamedTuple):
    """An update on its way: its outcome, what it learns from, and the refresh that gave its targets."""

    applied: Future[Applied]
    batch: Batch
    swap: Restore | None


class Worker:
    """Acts and learns until all vector steps are made, or the chief wants an end.

    Args:
      run: has the settings and the snapshots.
      index: which worker.
      settings: its own, see `Settings.of_worker`.
      env: its environments.
      shared: the servers' variables.
      copy: the worker's copy of these variables.
    """

    def __init__(self, run: Run, index: int, settings: Settings, env: VectorEnv, shared: Shared, copy: Copy) -> None:
        self._run, self._index, self._env, self._settings = run, index, env, settings
        self._shared, self._copy = shared, copy
        self._tally = Tally(env.spec.frames_per_step)
        self._actor = Actor(settings, self._tally, env.spec, env.count)
        of_noise = functools.partial(NoiseKeys, settings.seed, draws=settings.model.draws)
        self._noise, self._noise_of_target = of_noise(Purpose.NOISE), of_noise(Purpose.NOISE_OF_TARGET)
        self._noise_of_acting = of_noise(Purpose.NOISE_OF_ACTING)
        policy = policies.parse(settings.target.policy)
        self._target = Ensemble(
            "target",
            functools.partial(Twin, spec=copy.twin.spec, compute=Compute(threads=settings.twin.threads), learns=False),
            members=policy.members,
            combine=policy.combine,
        )
        self._status = own_status(index, run.attempt, "training")
        self._log = UpdateLog(run.folder, self._status.name, run.attempt)
        self._followed: Restore | None = None
        self._recorded: Restore | None = None
        self._staleness = deque[int](maxlen=100)
        self._returns = deque[float](maxlen=RECENT_EPISODES)
        self._scores = RunningScores(env.count)
        self._marked = time.monotonic(), 0

    def close(self) -> None:
        self._target.close()
        self._log.close()

    def train(self) -> None:
        """Trains until the end.

        Raises:
          DivergedError: a loss is not finite.
          AnotherAttemptError: the run was resumed.
          tf.errors.OpError: a parameter server is lost.
        """
        write_status(self._run.folder, self._status)
        with ThreadPoolExecutor(1, "claims") as claims, ThreadPoolExecutor(1, "gradients") as gradients:
            claim = claims.submit(self._shared.claim_step)
            applying: _Applying | None = None
            s_tm1 = None
            while (step := claim.result()) is not None:
                claim = claims.submit(self._shared.claim_step)
                if s_tm1 is None:
                    s_tm1 = self._env.reset(self._seeds(step))
                s_tm1 = self._make(step, s_tm1)
                for update in self._actor.due_updates(self._tally.updates):
                    swap = self._follow_target()
                    batch = self._actor.sample(range(update, update + 1))
                    key = self._noise_of_target.at(update)
                    by_target = self._target.for_updates(self._settings.train, batch.s_tm1, batch.s_t, key)
                    self._tally.updates += 1
                    if applying:
                        self._record(applying)
                    else:
                        self._copy.pull()  # others have trained while this one filled its replay
                    applying = _Applying(gradients.submit(self._apply, batch, by_target), batch, swap)
                self._tell()
            if applying:
                self._record(applying)
        self._tell("done")

    def _seeds(self, step: int) -> np.ndarray:
        return environment_seeds(self._settings.seed, Purpose.ENVIRONMENT, step, self._env.count)

    def _make(self, step: int, s_tm1: np.ndarray) -> np.ndarray:
        """One vector step, by the copy's Q values; returns the next observations."""
        agent_step = step * self._env.count
        key = self._noise_of_acting.at(agent_step)
        a_tm1 = self._actor.act(s_tm1, lambda: self._copy.twin.q_values(s_tm1, noise_key=key), agent_step)
        answer = self._env.step(a_tm1)
        self._actor.observe(Transition(s_tm1, a_tm1, answer.r_t, answer.terminal_t, answer.last_t, answer.s_t))
        if ended := self._scores.add(answer):
            self._returns.extend(ended)
            self._shared.count_episodes(len(ended))
        return answer.s_next

    def _follow_target(self) -> Restore | None:
        """Restores what the run's target was last refreshed with, if that has changed; returns that refresh."""
        swaps = self._run.ledger.newest_first(Restore)
        newest = next((swap for swap in swaps if is_target_of(swap, ONLY_LEARNER)), None)
        if self._run.ledger.attempt != self._run.attempt:
            raise AnotherAttemptError
        if newest and newest != self._followed:
            store = self._run.store()
            with store.reading():
                self._target.restore([store.find(snapshot) for snapshot in newest.snapshots], store)
            self._followed = newest
        return self._followed

    def _apply(self, batch: Batch, by_target: dict[str, np.ndarray]) -> Applied:
        """Gradients to the servers, then the renewed variables back; meanwhile the worker acts."""
        model, train, version = self._copy.twin.model, self._settings.train, self._copy.version
        values = {**batch._asdict(), **by_target}
        parts = feeds(model, train, values)
        first = (version * self._run.settings.workers.count + self._index) * len(parts)
        key = self._noise.at(version)
        noise = {} if key is None else {model.noise_key: key}
        fed: list[dict[Any, Any]] = [
            {**part, **noise, model.dropout_seed: (self._run.settings.seed, (first + i) % _DROPOUT_SEEDS)}
            for i, part in enumerate(parts)
        ]
        applied = self._copy.apply(fed, train.learning_rate_at(version))
        self._copy.pull()
        return applied

    def _record(self, applying: _Applying) -> None:
        """Waits for an update and records it, and the refresh that gave its targets, if that is not the last one's."""
        applied, swap = applying.applied.result(), applying.swap
        if swap and swap != self._recorded:
            own = {
                "worker": self._status.name,
                "first_update": applied.update + 1,
                "time": utc_now(),
                "attempt": self._run.attempt,
                "request": None,
            }
            self._run.ledger.append(swap.model_copy(update=own))
            self._recorded = swap
        self._log.append(applied.update)
        self._actor.sampler.learnt(applying.batch, applied.td_error)
        self._staleness.append(applied.staleness)
        self._status = self._status.model_copy(
            update={"loss": applied.loss, "q_mean": applied.q_mean, "updates": self._status.updates + 1}
        )

    def _tell(self, state: str = "training") -> None:
        then, steps = self._marked
        elapsed = time.monotonic() - then
        if elapsed < _STATUS_SECONDS and state == "training":
            return
        self._marked = time.monotonic(), self._tally.agent_steps
        self._status = self._status.model_copy(
            update={
                "state": state,
                "time": time.time(),
                "agent_steps": self._tally.agent_steps,
                "episodes": self._tally.episodes,
                "reward_limit": self._tally.reward_limit,
                "agent_steps_per_second": (self._tally.agent_steps - steps) / elapsed,
                "staleness": float(np.mean(self._staleness)) if self._staleness else 0.0,
                "target": self._target.snapshots,
                "returns": tuple(self._returns),
            }
        )
        write_status(self._run.folder, self._status)


def work(cluster: Cluster, index: int) -> None:
    """The life of a worker process.

    Raises:
      TwinGraphError: no chief came, a loss is not finite.
    """
    run = _wait_for_run(cluster)
    whole = run.settings
    trust.check_all(whole, run.folder)
    if index >= whole.workers.count:
        raise UsageError(f"{run.folder} is trained by {whole.workers.count} workers: there is no {name_of(index)}")
    with hold_folder(run.folder), contextlib.ExitStack() as open_:
        env = open_.enter_context(contextlib.closing(envs.make(whole.env, count=whole.env.count)))
        spec = ModelSpec.of(whole, env.spec)
        fraction = whole.workers.gpu_memory_fraction
        twin = open_.enter_context(
            Twin(name_of(index), spec, compute=Compute(threads=whole.twin.threads, gpu_memory_fraction=fraction))
        )
        shared = open_.enter_context(contextlib.closing(Shared(cluster, twin, whole.vector_steps, run.id)))
        copy = Copy(shared, twin)
        while _train(run, index, env, shared, copy):
            tell("the run was resumed: this worker begins again, with an empty replay")


def _train(run: Run, index: int, env: VectorEnv, shared: Shared, copy: Copy) -> bool:
    """Trains in the run's next attempt, until the end; returns whether another attempt has begun meanwhile."""
    newest = max(1, Run(run.folder).ledger.attempt)  # 0 before the first
    run.attempt = shared.wait_for_chief(_CHIEF_SECONDS, since=newest, tell=tell)
    if Run(run.folder).settings != run.settings:
        raise TwinGraphError(f"the settings of {run.folder} were changed since this task began; start it again")
    copy.pull()
    settings = run.settings.of_worker(index, updates=copy.version)
    with contextlib.closing(Worker(run, index, settings, env, shared, copy)) as worker:
        try:
            worker.train()
        except AnotherAttemptError:
            return True
        except TwinGraphError as error:
            failed = own_status(index, run.attempt, "failed", str(error), type(error).__name__)
            write_status(run.folder, failed)
            raise
    return False


def tell(line: str) -> None:
    """Says something to whoever reads this task's output."""
    print(line, file=sys.stderr, flush=True)


def _wait_for_run(cluster: Cluster) -> Run:
    """The run, when the chief has made its folder."""
    deadline = time.monotonic() + _CHIEF_SECONDS
    while not ((cluster.run / DESCRIPTION).exists() and (cluster.run / FOLDER).exists()):
        if time.monotonic() > deadline:
            raise TwinGraphError(
                f"no run in {cluster.run}: has the chief been started, and does it use the same storage?"
            )
        time.sleep(0.2)
    return Run(cluster.run)
