"""The chief: keeps the run whose steps and updates workers make, on variables that are on parameter servers."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import numpy as np

from twin_graph import errors
from twin_graph.agent.held_out import HELD_OUT_SIZE
from twin_graph.agent.live_run import LiveRun
from twin_graph.base.counters import Tally
from twin_graph.base.streams import Purpose, environment_seeds, stream
from twin_graph.distributed import private, relay
from twin_graph.distributed.cluster import Cluster
from twin_graph.distributed.shared import Counts, NotOursError, Shared, in_words
from twin_graph.distributed.supervisor import Supervisor
from twin_graph.errors import NoWorkerError, TwinGraphError
from twin_graph.snapshots.files import make_folder
from twin_graph.snapshots.workers import (
    CLUSTER,
    FOLDER,
    GIVEN_UP,
    WorkerStatus,
    name_of,
    own_status,
    statuses,
    write_status,
)
from twin_graph.training.loop import Stepper
from twin_graph.training.progress import Progress
from twin_graph.training.trainer import run_to_its_end, stop_requests
from twin_graph.twin.model import ModelSpec
from twin_graph.twin.tf import tf

if TYPE_CHECKING:
    from twin_graph.envs import VectorEnv
    from twin_graph.snapshots.points import PointState
    from twin_graph.snapshots.run import Run

_TICK_SECONDS = 0.2
_HELD_OUT_EVERY = 20  # vector steps
_LOOK_SECONDS = 1.0
_LATE_SECONDS = 30.0  # a worker begins within a few
_WORKERS_END_SECONDS = 60.0  # for the last updates
_WORKERS_STOP_SECONDS = 4.0  # for a last message; after that, it is not waited for


class Chief(Stepper):
    """Follows what workers do; the online twin is a mirror of the shared variables, renewed before it is used.

    Args:
      live: the run while it is trained.
      env: provides the observations on which twins are compared, since the replays are the workers'.
      cluster: who trains.
      supervisor: of the cluster's processes, if they are this one's children.

    Attributes:
      supervisor: as given.
    """

    def __init__(self, live: LiveRun, env: VectorEnv, cluster: Cluster, supervisor: Supervisor | None) -> None:
        self._live, self._env, self._cluster = live, env, cluster
        self._run, self._tally = live.run, live.tally
        [self._learner] = live.learners
        self._taken: dict[tuple[str, int], int] = {}  # episodes of each worker's process whose returns were taken
        self._looked = 0.0
        self._heard: dict[int, tuple[float, float]] = {}  # of each worker: what its clock said last, and when by ours
        self._has_servers = self._has_waited = False
        self._given_up: dict[int, str] = {}
        self._patient_until = math.inf
        self._since = self._tally.counters
        self.supervisor = supervisor
        self._shared = Shared(cluster, self._learner.online, live.settings.vector_steps, self._run.id)

    def start(self) -> Iterator[None]:
        """Lets the workers begin, once the servers answer; yields while they do not.

        Raises:
          TwinGraphError: they never do, or not as they should.
        """
        counts = Counts(self._tally.agent_steps // self._env.count, self._tally.updates, self._tally.episodes)
        for news in self._shared.begin(self._learner.online.all_variables(), counts, attempt=self._run.attempt):
            self._live.notices += filter(None, [news])
            self._supervise()
            yield
        self._has_servers = True
        if not self.supervisor:
            self._patient_until = time.monotonic() + _LATE_SECONDS

    def close(self) -> None:
        """Lets the servers go once the workers have ended, or have had time to; nothing where one is lost."""
        try:
            if self._has_servers and not self._has_waited:
                with contextlib.suppress(tf.errors.OpError, NotOursError):
                    self._shared.ask_to_stop()
                self._wait_for_workers(_WORKERS_STOP_SECONDS)
        finally:
            if self._has_servers:
                self._has_servers = False
                self._shared.leave()
            self._shared.close()

    def begin(self) -> None:
        if self._live.held_out.observations is None:
            self._live.held_out.observations = self._seen_at_random()

    def advance(self) -> list[float]:
        self._share_swapped()
        time.sleep(_TICK_SECONDS)
        self.meanwhile()
        return self._returns()

    def meanwhile(self) -> None:
        """Looks at what the workers have done, commits and refreshes what is due."""
        settings = self._live.settings
        with self._speaking():
            self._count()
        looking = settings.save_schedule, settings.log.schedule, settings.resume.schedule
        if any(schedule.due(self._since, self._tally) for schedule in looking):
            self._renew()
        self._since = self._tally.counters
        self._live.commit_if_due()
        self._live.refresh_if_due()
        self._look_at_workers()

    def settle(self) -> None:
        self._renew()

    def end(self) -> list[float]:
        with self._speaking():
            self._shared.ask_to_stop()
        all_made = self._tally.agent_steps >= self._live.settings.train.steps
        self._wait_for_workers(_WORKERS_END_SECONDS if all_made else _WORKERS_STOP_SECONDS, self._supervise)
        self._looked = 0.0
        self._look_at_workers()
        self._renew()
        return self._returns()

    def _seen_at_random(self) -> np.ndarray:
        """Observations `[HELD_OUT_SIZE, ...]` of random play."""
        env, seed = self._env, self._live.settings.seed
        random = stream(seed, Purpose.HELD_OUT, 0)
        seeds = environment_seeds(seed, Purpose.ENVIRONMENT, self._tally.agent_steps, env.count)
        newest = env.reset(seeds)
        observations = [newest.copy()]
        while len(observations) * env.count < HELD_OUT_SIZE:
            for _ in range(_HELD_OUT_EVERY):
                newest = env.step(env.spec.random_actions(newest, random)).s_next
            observations.append(newest.copy())
        return np.concatenate(observations)[:HELD_OUT_SIZE]

    def _count(self) -> None:
        counts = self._shared.counts()
        self._tally.agent_steps = counts.vector_steps * self._env.count
        self._tally.updates, self._tally.episodes = counts.updates, counts.episodes

    def _renew(self) -> None:
        """Brings counters and online twin up to what the servers hold; counters first, so that they are not ahead."""
        self._share_swapped()
        with self._speaking():
            self._count()
            values = self._shared.pull()
        self._learner.online.load_all(values)
        self._learner.updates = self._tally.updates

    def _share_swapped(self) -> None:
        """Gives the servers the snapshot that a person put into the online twin, if one did."""
        online = self._learner.online
        if online.snapshot_id:
            with self._speaking():
                self._shared.push(online.all_variables())
            online.snapshot_id = ""

    def _look_at_workers(self) -> None:
        if time.monotonic() - self._looked < _LOOK_SECONDS:
            return
        self._looked = time.monotonic()
        workers = self._hear()
        if not workers and time.monotonic() > self._patient_until:
            self._patient_until = math.inf
            self._live.notices.append(
                "no worker has begun yet; start each with: twin-graph cluster FILE --task worker:N"
            )
        restarted = self.supervisor.restarted if self.supervisor else [0] * self._cluster.workers
        self.workers = [(worker, restarted[worker.index]) for worker in workers]
        for worker in workers:
            _raise_failure(worker)
        tally = self._tally
        tally.reward_limit = max([tally.reward_limit, *(worker.reward_limit for worker in workers)])
        if learning := [worker for worker in workers if worker.is_training and worker.loss is not None]:
            tally.loss = sum(worker.loss or 0.0 for worker in learning) / len(learning)
            tally.q_mean = sum(worker.q_mean or 0.0 for worker in learning) / len(learning)

    def _returns(self) -> list[float]:
        """True scores of episodes that ended; each is returned once."""
        returns: list[float] = []
        for worker, _ in self.workers:
            key = worker.name, worker.pid
            new = worker.episodes - self._taken.get(key, 0)
            self._taken[key] = worker.episodes
            returns += worker.returns[-new:] if new else ()
        return returns

    def _wait_for_workers(self, seconds: float, meanwhile: Callable[[], None] = lambda: None) -> None:
        """Until they have ended, but not longer than this, and once."""
        self._has_waited = True
        deadline = time.monotonic() + seconds
        while self._going() and time.monotonic() < deadline:
            meanwhile()
            time.sleep(_TICK_SECONDS / 2)

    def _going(self) -> set[int]:
        """Workers that have not ended, and not fallen silent."""
        if self.supervisor:
            return self.supervisor.going()
        return {worker.index for worker in self._hear() if worker.is_training}

    def _hear(self) -> list[WorkerStatus]:
        """What workers say now, at times of our clock, with which those of other machines are not compared."""
        found = []
        for worker in statuses(self._run.folder, self._run.attempt):
            if self._heard.get(worker.index, (None,))[0] != worker.time:
                self._heard[worker.index] = worker.time, time.monotonic()
            silent = time.monotonic() - self._heard[worker.index][1]
            found.append(worker.model_copy(update={"time": time.time() - silent}))
        return found

    @contextlib.contextmanager
    def _speaking(self) -> Iterator[None]:
        """With the servers. Raises `TwinGraphError` if one is lost."""
        try:
            self._supervise()
            yield
        except tf.errors.OpError as error:
            self._has_servers = False
            self._supervise()  # the cause, which says more
            lost = self._shared.unheard()
            which = f"the parameter server at {', '.join(lost)}" if lost else "a parameter server"
            raise TwinGraphError(f"{which} does not answer ({in_words(error)})") from None
        except NotOursError:
            self._has_servers = False
            raise

    def _supervise(self) -> None:
        if self.supervisor:
            try:
                restarted, given_up = self.supervisor.look()
            except TwinGraphError:
                self._has_servers = False
                raise
            self._live.notices += [f"{name_of(worker)} {why}" for worker, why in restarted.items()]
            known = {status.index: status for status in self._hear()} if given_up else {}
            for worker, why in given_up.items():
                last = known.get(worker) or own_status(worker, self._run.attempt, GIVEN_UP)
                _raise_failure(last)
                write_status(self._run.folder, last.model_copy(update={"state": GIVEN_UP, "message": why}))
            self._given_up |= given_up
            if given_up and not self.supervisor.has_workers:
                every = "; ".join(f"{name_of(worker)} {why}" for worker, why in sorted(self._given_up.items()))
                raise NoWorkerError(f"no worker is left: {every}")


def _raise_failure(worker: WorkerStatus) -> None:
    """Raises the error with which a worker failed, if it did."""
    if worker.state == "failed":
        raise getattr(errors, worker.error, TwinGraphError)(f"{worker.name}: {worker.message}")


def protection(cluster: Cluster | None) -> str:
    """What keeps others from a run's servers, for people.

    Args:
      cluster: as for `train`.
    """
    return relay.protection(list(cluster.ps) if cluster else [], is_private=private.is_possible())


def train(
    run: Run, env: VectorEnv, point: PointState | None = None, *, cluster: Cluster | None = None
) -> Iterator[Progress]:
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
            supervisor = Supervisor(folder / CLUSTER, cluster, workers.restarts)
            open_.enter_context(contextlib.closing(supervisor))
        stop = open_.enter_context(stop_requests())
        spec = ModelSpec.of(run.settings, env.spec)
        live = open_.enter_context(LiveRun(run, spec, Tally(env.spec.frames_per_step), None, point))
        progress = Progress(live, stop)
        chief = open_.enter_context(contextlib.closing(Chief(live, env, cluster, supervisor)))
        progress.note = f"waiting for the parameter servers at {', '.join(cluster.ps)}"
        for _ in chief.start():
            yield progress
            if stop.is_set():
                raise KeyboardInterrupt
        progress.note = ""
        yield from run_to_its_end(progress, chief)
