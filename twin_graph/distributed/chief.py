"""The chief: an agent whose steps and updates are made by workers, on variables that lie on parameter servers."""

import contextlib
import functools
import time
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from twin_graph import training
from twin_graph.agent import PROBE_SIZE, Agent
from twin_graph.distributed.cluster import Cluster
from twin_graph.distributed.shared import CHIEF, Counts, Shared, named
from twin_graph.distributed.supervisor import Supervisor
from twin_graph.envs import VectorEnv, VectorStep
from twin_graph.errors import DivergedError, TwinGraphError
from twin_graph.graph_mode import tf
from twin_graph.snapshots.files import make_folder
from twin_graph.snapshots.ledger import Commit, Swap
from twin_graph.snapshots.points import PointState
from twin_graph.snapshots.run import Run
from twin_graph.snapshots.workers import CLUSTER, FOLDER, GIVEN_UP, SILENT_SECONDS, own_status, statuses, write_status
from twin_graph.streams import Purpose, stream

_TICK_SECONDS = 0.2
_PROBE_EVERY = 20  # vector steps
_LOOK_SECONDS = 1.0
_WORKERS_END_SECONDS = 60.0  # for the last updates
_WORKERS_STOP_SECONDS = 4.0  # what they then have not sent is not waited for


class Chief(Agent):
    """Owns the run's folder; its online twin is a mirror of the shared variables, renewed whenever it is looked at.

    Args:
      run: see `Agent`, and for `agent`.
      cluster: who trains.
      supervisor: of the cluster's processes, if they are this one's children.

    Attributes:
      workers: what they last said of themselves.
      supervisor: as given.
    """

    def __init__(self, run: Run, *, cluster: Cluster, supervisor: Supervisor | None, **agent: Any) -> None:
        self._cluster = cluster
        self._shared: Shared | None = None
        self._taken: dict[tuple[str, int], int] = {}  # episodes of each worker's process whose returns were taken
        self._looked = 0.0
        self._lost = False
        self.supervisor = supervisor
        super().__init__(run, **agent)
        try:
            self._shared = Shared(cluster, self.online, self.settings.vector_steps)
            self._owned.callback(self._release, self._shared)
            counts = Counts(self.agent_steps // self._environments, self.updates, self.episodes)
            self._shared.begin(self.online.all_variables(), counts, attempt=self._run.attempt, between=self._supervise)
        except BaseException as error:
            self.__exit__(type(error), error, None)
            raise

    def _release(self, shared: Shared) -> None:
        """Lets servers go when the last worker does, of those that are left; nothing where a server is lost."""
        if not self._lost:
            going = self._going()
            gone = [worker for worker in range(self._cluster.workers) if worker not in going]
            with contextlib.suppress(tf.errors.OpError):
                shared.ask_to_stop()
                shared.put_tokens([*gone, CHIEF])
        shared.close()

    def follow(self, env: VectorEnv) -> Iterator[list[VectorStep]]:
        """In place of the run loop: looks at what the workers have done, commits and refreshes what is due."""
        if self._probe is None:
            self._probe = self._seen_at_random(env)
        while True:
            time.sleep(_TICK_SECONDS)
            self.meanwhile()
            yield []

    def meanwhile(self) -> None:
        with self._speaking():
            self._count()
        self.commit_if_due()
        self._refresh_if_due()
        self._look_at_workers()

    def _seen_at_random(self, env: VectorEnv) -> np.ndarray:
        """Observations `[PROBE_SIZE, ...]` of random play, to compare twins on: the chief has no replay."""
        random = stream(self.settings.seed, Purpose.PROBE, 0)
        observations = [env.reset(self.environment_seeds())]
        while len(observations) * env.count < PROBE_SIZE:
            for _ in range(_PROBE_EVERY):
                newest = env.step(random.integers(0, env.n_actions, size=env.count)).s_next
            observations.append(newest.copy())
        return np.concatenate(observations)[:PROBE_SIZE]

    def _count(self) -> None:
        if self._shared:
            counts = self._shared.counts()
            self.agent_steps = counts.vector_steps * self._environments
            self.updates, self.episodes = counts.updates, counts.episodes

    def _renew(self) -> None:
        """Brings counters and online twin up to what the servers hold; counters first, so that they are not ahead."""
        if self._shared:
            with self._speaking():
                self._count()
                values = self._shared.pull()
            self.online.load_all(values)
            self.learners[0].updates = self.updates

    def _look_at_workers(self) -> None:
        if time.monotonic() - self._looked < _LOOK_SECONDS:
            return
        self._looked = time.monotonic()
        self.workers = statuses(self._run.folder, self._run.attempt)
        for worker in self.workers:
            if worker.state == "failed":
                raise DivergedError(f"{worker.name}: {worker.message}")
        self._reward_limit = max([self._reward_limit, *(worker.reward_limit for worker in self.workers)])
        if losses := [worker.loss for worker in self.workers if worker.loss is not None]:
            self.last_loss = sum(losses) / len(losses)
            self.last_q = sum(worker.q_mean or 0.0 for worker in self.workers) / len(losses)

    def take_returns(self) -> list[float]:
        returns: list[float] = []
        for worker in self.workers:
            key = worker.name, worker.pid
            new = worker.episodes - self._taken.get(key, 0)
            self._taken[key] = worker.episodes
            returns += worker.returns[-new:] if new else ()
        return returns

    def restarts(self, worker: int) -> int:
        """How often a worker was started again."""
        return self.supervisor.restarted[worker] if self.supervisor else 0

    def end(self) -> None:
        if self._shared:
            with self._speaking():
                self._shared.ask_to_stop()
            self._wait_for_workers()
        super().end()

    def _wait_for_workers(self) -> None:
        all_made = self.agent_steps >= self.settings.train.steps
        deadline = time.monotonic() + (_WORKERS_END_SECONDS if all_made else _WORKERS_STOP_SECONDS)
        while self._going() and time.monotonic() < deadline:
            self._supervise()
            time.sleep(_TICK_SECONDS / 2)
        self._looked = 0.0
        self._look_at_workers()

    def _going(self) -> set[int]:
        """Workers that have not ended, and not fallen silent."""
        if self.supervisor:
            return self.supervisor.going()
        said = statuses(self._run.folder, self._run.attempt)
        return {w.index for w in said if w.state == "training" and time.time() - w.time < SILENT_SECONDS}

    def commit(self) -> list[Commit]:
        self._renew()
        return super().commit()

    def commit_point(self, returns: Sequence[float] = ()) -> PointState:
        self._renew()
        return super().commit_point(returns)

    def telemetry(self) -> dict[str, float]:
        self._renew()
        measured = super().telemetry()
        for worker in self.workers:
            measured[f"workers/{worker.name}/agent_steps_per_second"] = worker.agent_steps_per_second
            measured[f"workers/{worker.name}/staleness"] = worker.staleness
        return measured

    def swap(self, snapshots: Sequence[Commit], *, into: str, **fields: Any) -> Swap:
        swap = super().swap(snapshots, into=into, **fields)
        if into == "online" and self._shared:
            with self._speaking():
                self._shared.push(self.online.all_variables())
        return swap

    @contextlib.contextmanager
    def _speaking(self) -> Iterator[None]:
        """With the servers. Raises `TwinGraphError` if one is lost."""
        try:
            self._supervise()
            yield
        except tf.errors.OpError as error:
            self._lost = True
            self._supervise()  # knows better what happened
            raise TwinGraphError(
                f"a parameter server does not answer ({named(error)}); "
                "`twin-graph resume` goes on from the last resume point"
            ) from None

    def _supervise(self) -> None:
        if self.supervisor:
            try:
                given_up = self.supervisor.look()
            except TwinGraphError:
                self._lost = True
                raise
            for worker, why in given_up.items():
                write_status(self._run.folder, own_status(worker, self._run.attempt, GIVEN_UP, why))


def train(
    run: Run, env: VectorEnv, point: PointState | None = None, *, cluster: Cluster | None = None
) -> Iterator[training.Progress]:
    """Like `training.train`, by the workers of a cluster; by default one of child processes on this machine."""
    folder = run.folder / FOLDER
    make_folder(folder)
    with contextlib.ExitStack() as open_:
        supervisor = None
        if cluster is None:
            open_.enter_context(run.lock("train"))  # before any process is started
            workers = run.settings.workers
            cluster = Cluster.on_this_machine(run.folder, workers=workers.count, servers=workers.servers)
            cluster.write(folder / CLUSTER)
            supervisor = open_.enter_context(
                contextlib.closing(Supervisor(folder / CLUSTER, cluster, workers.restarts))
            )
        make = functools.partial(Chief, cluster=cluster, supervisor=supervisor)
        yield from training.train(run, env, point, make_agent=make, loop=Chief.follow)
