"""Trains the runs of an experiment on the machines of a Ray cluster. Needs the extra `ray`.

A run is the same command as on this machine, in the same folder and environment; the child of a Ray actor, which
passes signals on and returns the exit code. Ray ends the actor when this process or either machine is gone, and the
child ends with it, see `twin_graph.base.leash`.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import filelock

from twin_graph.base.text import size
from twin_graph.errors import UsageError
from twin_graph.snapshots.files import acquire, file_lock

_ADDRESS = os.environ.get("RAY_ADDRESS") or "local"

# Ray reads both when it is imported. By the second it listens on loopback alone, as it always does on other systems.
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
if _ADDRESS == "local":
    os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"

import ray  # noqa: E402
from ray.exceptions import RayActorError  # noqa: E402

if TYPE_CHECKING:
    from twin_graph.experiments.runner import Begin, Process


class _Trainer:
    """A process on a machine of the cluster. `lock` is held by the process that started it."""

    def __init__(self, arguments: list[str], log: Path, folder: Path, environment: dict[str, str], lock: Path) -> None:
        command = [sys.executable, "-P", "-m", "twin_graph.base.leash", str(os.getpid()), "twin_graph_cli", *arguments]
        with log.open("ab") as output:
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

    def wait(self) -> int:
        return self._process.wait()

    def send_signal(self, number: int) -> None:
        self._process.send_signal(number)


class _Task:
    """A `Process` on a machine of the cluster, or waiting for one that has room."""

    def __init__(self, trainer: Any, log: Path) -> None:
        self._trainer = trainer
        self._log = log
        self._begun = trainer.__ray_ready__.remote()
        # Asked again while the machine does not answer: until Ray has given it up, it would be given the next try too.
        self._ended = trainer.wait.options(max_task_retries=-1).remote()
        self._code: int | None = None

    def poll(self) -> int | None:
        if self._code is None and ray.wait([self._ended], timeout=0)[0]:
            self._code = self._find_code()
            ray.kill(self._trainer)  # its threads are free for the next at once
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
            return int(ray.get(self._ended))
        except RayActorError as error:
            said = str(error).strip()
            with self._log.open("a", encoding="utf-8") as log:
                if error.actor_init_failed:
                    log.write(f"Error: {said.splitlines()[-1]}\n")
                    return 1
                log.write(f"Ray lost this process: {said}\n")
            return -signal.SIGKILL  # by its leash


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
def cluster(lock: Path, threads: int, memory: int) -> Iterator[Begin]:
    """Connects to the cluster that RAY_ADDRESS names, or starts one of this machine alone, for as long as it lasts.

    Args:
      lock: of the experiment, which the caller has by the time that a run begins.
      threads: of the run that has most.
      memory: bytes that a run needs.

    Raises:
      UsageError: no machine of the cluster has so much.
    """
    own = {"include_dashboard": False, "_node_ip_address": "127.0.0.1", "object_store_memory": 100 * 2**20}

    def begin(arguments: list[str], log: Path, threads: int) -> Process:
        # Two calls at a time, so that a signal does not wait for `wait`.
        trainer = ray.remote(num_cpus=max(1, threads), memory=memory, max_concurrency=2)(_Trainer)
        its = (arguments, log.absolute(), Path.cwd(), dict(os.environ), lock.absolute())
        return _Task(trainer.remote(*its), log)

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
