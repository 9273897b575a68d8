"""Trains the runs of an experiment on the machines of a Ray cluster. Needs the extra `ray`.

A run is the same command as on this machine, in the same folder and environment; the child of a Ray actor, which
passes signals on and returns the exit code. Ray ends the actor when this process or either machine is gone, and the
child ends with it, see `twin_graph.base.leash`.

With a remote, machines share no storage: each trains in a folder of its own and sends the run to `URL/NAME`, from where
another continues it, and from where it is fetched when its process has ended.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import filelock

from twin_graph.base.text import command, size
from twin_graph.errors import TwinGraphError, UsageError
from twin_graph.remote import fetching, heads
from twin_graph.remote.heads import TakenOverError
from twin_graph.remote.urls import place_at
from twin_graph.snapshots.files import acquire, file_lock
from twin_graph.snapshots.forms import LEDGER
from twin_graph.snapshots.run import DESCRIPTION, Run

_ADDRESS = os.environ.get("RAY_ADDRESS") or "local"

# Ray reads both when it is imported. By the second it listens on loopback alone, as it always does on other systems.
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
if _ADDRESS == "local":
    os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"

import ray  # noqa: E402
from ray.exceptions import RayActorError  # noqa: E402

if TYPE_CHECKING:
    from twin_graph.experiments.experiment import Experiment
    from twin_graph.experiments.runner import Begin, Process
    from twin_graph.remote.places import Place


#: Stands in a command for a folder of the machine that runs it.
_SCRATCH = "{scratch}"


class _Trainer:
    """A process on a machine of the cluster.

    Args:
      arguments: of `twin-graph`.
      environment: its environment variables.
      shared: on storage that all machines share, its log, its working directory, and a lock that is held by the process
        that started it; None if there is none.
    """

    def __init__(
        self, arguments: list[str], environment: dict[str, str], shared: tuple[Path, Path, Path] | None
    ) -> None:
        self._said = b""
        self._own = None if shared else tempfile.TemporaryDirectory(prefix="twin-graph-")
        scratch = Path(self._own.name) if self._own else Path()
        self._log, folder, lock = shared or (scratch / "log", scratch, None)
        if self._own:
            environment = environment | {"XDG_CONFIG_HOME": str(scratch / "home")}
        arguments = [argument.replace(_SCRATCH, str(scratch)) for argument in arguments]
        command = [sys.executable, "-P", "-m", "twin_graph.base.leash", str(os.getpid()), "twin_graph_cli", *arguments]
        with self._log.open("ab") as output:
            if lock:
                check_storage(lock)
            self._process = subprocess.Popen(
                command,
                cwd=folder,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )

    def wait(self) -> tuple[int, bytes]:
        """Its exit code, and what it said if nobody else can read that."""
        code = self._process.wait()
        if self._own:  # only once: Ray asks again if the answer is lost
            self._said = self._log.read_bytes()
            self._own.cleanup()  # no exit handler runs where Ray kills an actor
            self._own = None
        return code, self._said

    def send_signal(self, number: int) -> None:
        self._process.send_signal(number)


class _Task:
    """A `Process` on a machine of the cluster, or waiting for one that has room.

    Args:
      trainer: a `_Trainer` there.
      log: of its run, here.
      fetch: with a remote, brings the run here when it has ended.
    """

    def __init__(self, trainer: Any, log: Path, fetch: Callable[[], object] | None = None) -> None:
        self._trainer = trainer
        self._log, self._fetch = log, fetch
        self._begun = trainer.__ray_ready__.remote()
        # Asked again while the machine does not answer: until Ray has given it up, it would be given the next try too.
        self._ended = trainer.wait.options(max_task_retries=-1).remote()
        self._code: int | None = None

    def poll(self) -> int | None:
        if self._code is None and ray.wait([self._ended], timeout=0)[0]:
            self._code = self._find_code()
            ray.kill(self._trainer)  # its threads are free for the next at once
            try:
                if self._fetch:
                    self._fetch()
            except (OSError, TwinGraphError) as error:
                self._say(f"Error: {error}\n")
                self._code = self._code or 1
        return self._code

    def wait(self) -> int:
        while (code := self.poll()) is None:
            ray.wait([self._ended])
        return code

    def send_signal(self, sig: int) -> None:
        if ray.wait([self._begun], timeout=0)[0]:
            self._trainer.send_signal.remote(sig)
        else:
            ray.kill(self._trainer)
            self._code = -signal.SIGKILL

    def _find_code(self) -> int:
        try:
            code, said = ray.get(self._ended)
        except RayActorError as error:
            words = str(error).strip()
            if error.actor_init_failed:
                self._say(f"Error: {words.splitlines()[-1]}\n")
                return 1
            self._say(f"Ray lost this process: {words}\n")
            return -signal.SIGKILL  # by its leash
        self._say(said.decode(errors="replace"))
        # Who has taken it over is no trainer here, whose end one could wait for.
        return 1 if self._fetch and code == TakenOverError.exit_code else int(code)

    def _say(self, words: str) -> None:
        with self._log.open("a", encoding="utf-8") as log:
            log.write(words)


def _elsewhere(arguments: list[str], place: Place, folder: Path) -> list[str]:
    """A command that trains a run in a folder, as one for another machine, which knows only where the run is sent.

    Raises:
      UsageError: what is here was not sent, or something else is there.
    """
    head, here = heads.newest(place), _copy_in(folder)
    if here and (head is None or head.run != here.id or head.agent_steps < here.agent_steps):
        push = command("push", folder, place.url)
        raise UsageError(f"{folder} is not what is at {place.url}: send it with `{push}`, or choose another --remote")
    if head:
        steps = arguments[arguments.index("--steps") + 1]
        return ["resume", place.url, "--run-dir", f"{_SCRATCH}/run", "--steps", steps]
    at = arguments.index("--run-dir") + 1
    return [*arguments[:at], f"{_SCRATCH}/run", "--remote", place.url, *arguments[at + 1 :]]


class _Copy(NamedTuple):
    """What is here of a run: its id, how far its newest resume point is, and the length of its ledger."""

    id: str
    agent_steps: int
    ledger_bytes: int


def _copy_in(folder: Path) -> _Copy | None:
    if not (folder / DESCRIPTION).exists():
        return None
    run = Run(folder)
    point = run.points().newest()
    return _Copy(run.id, point.counters.agent_steps if point else 0, (folder / LEDGER).stat().st_size)


def _fetch(place: Place, folder: Path) -> None:
    """Brings a run here up to what was sent, if anything was. Raises `UsageError` if that is another run."""
    head, here = heads.newest(place), _copy_in(folder)
    if head is None:
        return
    if here and here.id != head.run:
        raise UsageError(f"{place.url} holds another run than {folder}; choose another --remote")
    sent = next((file.bytes for file in head.files if file.name == LEDGER), 0)
    if here is None or (here.agent_steps <= head.agent_steps and here.ledger_bytes != sent):
        fetching.replace(place, head, folder)


def check_remote(experiment: Experiment, remote: str) -> None:
    """Raises `UsageError` if a run that is not here yet has another in its place in the remote."""
    for planned in experiment.plan.runs:
        place = place_at(f"{remote}/{planned.name}")
        if experiment.found(planned) or not (head := heads.newest(place)):
            continue
        with tempfile.TemporaryDirectory() as scratch:
            fetching.add(place, [file for file in head.files if file.name == DESCRIPTION], Path(scratch))
            theirs = Run(Path(scratch)).settings
        if differing := [key for key, _, _ in experiment.differences(planned, theirs)]:
            raise UsageError(
                f"{place.url} holds a run with other settings ({', '.join(differing[:3])}); choose another --remote"
            )


def check_address() -> None:
    """Raises `UsageError` if nobody listens at RAY_ADDRESS; Ray itself would try for minutes."""
    if _ADDRESS == "local":
        return
    host, _, port = _ADDRESS.rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=5).close()
    except (OSError, ValueError) as error:
        raise UsageError(f"RAY_ADDRESS={_ADDRESS} is no Ray cluster's host:port: {error}") from None


@contextlib.contextmanager
def cluster(lock: Path, threads: int, memory: int, remote: str | None) -> Iterator[Begin]:
    """Connects to the cluster that RAY_ADDRESS names, or starts one of this machine alone, for as long as it lasts.

    Args:
      lock: of the experiment, which the caller has by the time that a run begins.
      threads: of the run that has most.
      memory: bytes that a run needs.
      remote: URL below which runs are sent; None where machines share storage.

    Raises:
      UsageError: no machine of the cluster has so much.
    """
    own = {"include_dashboard": False, "_node_ip_address": "127.0.0.1", "object_store_memory": 100 * 2**20}

    def begin(arguments: list[str], log: Path, threads: int) -> Process:
        # Two calls at a time, so that a signal does not wait for `wait`.
        trainer = ray.remote(num_cpus=max(1, threads), memory=memory, max_concurrency=2)(_Trainer)
        environment = dict(os.environ)
        if remote is None:
            shared = (log.absolute(), Path.cwd(), lock.absolute())
            return _Task(trainer.remote(arguments, environment, shared), log)
        folder = lock.absolute().parent / log.stem
        place = place_at(f"{remote}/{log.stem}")
        task = trainer.remote(_elsewhere(arguments, place, folder), environment, None)
        return _Task(task, log, lambda: _fetch(place, folder))

    # Ray prints what happens to its machines on stdout. What became of a run is in the run's log.
    with Path(os.devnull).open("w") as nowhere, contextlib.redirect_stdout(nowhere):
        try:
            ray.init(_ADDRESS, log_to_driver=False, logging_level=logging.ERROR, **(own if _ADDRESS == "local" else {}))
            machines = [node["Resources"] for node in ray.nodes() if node["Alive"]]
            if not any(has.get("CPU", 0) >= threads and has.get("memory", 0) >= memory for has in machines):
                raise UsageError(
                    f"a run has {threads} threads (twin.threads) and needs {size(memory)} of memory: no machine "
                    "of the Ray cluster has so much"
                )
            yield begin
        finally:
            ray.shutdown()


def check_storage(lock: Path) -> None:
    """Raises `OSError` if a lock that another process has is not seen here, and `UsageError` where there are no locks:
    then nothing keeps two apart."""
    with contextlib.suppress(filelock.Timeout):
        acquire(file_lock(lock), lock.parent)
        raise OSError(f"the lock {lock} of another machine is not seen here: this storage is not for --executor ray")
