"""The processes of a cluster on this machine: started, watched, restarted, ended."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from twin_graph.base import ended
from twin_graph.base.text import counted
from twin_graph.errors import TwinGraphError
from twin_graph.snapshots.files import check_in_place
from twin_graph.snapshots.workers import name_of

if TYPE_CHECKING:
    from twin_graph.distributed.cluster import Cluster

_END_SECONDS = 2.0


class Looked(NamedTuple):
    """What became of workers that have died, in words, by their numbers: started again, or died too often."""

    restarted: dict[int, str]
    given_up: dict[int, str]


class Supervisor:
    """Owns the child processes; `close()` or `with` ends them all.

    Args:
      file: the cluster's description, which the children read.
      cluster: the same.
      restarts: how many times each worker that died is restarted.

    Attributes:
      restarted: how often each worker was, by its number.
    """

    def __init__(self, file: Path, cluster: Cluster, restarts: int) -> None:
        self._file = file
        self._most = restarts
        self.restarted = [0] * cluster.workers
        self._printed: dict[Path, int] = {}  # bytes in a task's log before its process began
        self._servers: list[subprocess.Popen[bytes]] = []
        self._workers: list[subprocess.Popen[bytes] | None] = []
        try:
            self._servers = [self._start(f"ps:{i}") for i in range(len(cluster.ps))]
            self._workers = [self._start(f"worker:{i}") for i in range(cluster.workers)]
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Ends every process that is still there."""
        everyone = [*self._servers, *(worker for worker in self._workers if worker)]
        for end in (None, subprocess.Popen.kill):  # by themselves, if they can
            deadline = time.monotonic() + _END_SECONDS
            for process in everyone:
                if end and process.poll() is None:
                    end(process)
            for process in everyone:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(max(0.0, deadline - time.monotonic()))

    def _start(self, task: str) -> subprocess.Popen[bytes]:
        log = self._log(task.replace(":", "-"))
        command = [
            sys.executable,
            "-P",
            "-m",
            "twin_graph.distributed",
            str(self._file),
            task,
            str(os.getpid()),
        ]
        check_in_place(log)
        with log.open("ab") as output:
            self._printed[log] = output.tell()
            # A session of its own: Ctrl-C in the terminal is for the chief, which ends the others in order.
            return subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
            )

    def look(self) -> Looked:
        """Restarts workers that have died.

        Raises:
          TwinGraphError: a parameter server is gone.
        """
        for i, server in enumerate(self._servers):
            if server.poll() is not None:
                raise TwinGraphError(
                    f"parameter server {i} ended ({self._why(f'ps-{i}', server.returncode)}), and with it the newest "
                    "updates"
                )
        looked = Looked({}, {})
        for i, worker in enumerate(self._workers):
            if worker is None or worker.poll() in (None, 0):
                continue
            why = self._why(name_of(i), worker.returncode)
            if self.restarted[i] < self._most:
                self.restarted[i] += 1
                self._workers[i] = self._start(f"worker:{i}")
                times = f"restart {self.restarted[i]} of {self._most}, workers.restarts"
                looked.restarted[i] = f"ended ({why}) and is restarted with an empty replay ({times})"
            else:
                self._workers[i] = None
                restarted = f"restarted {counted(self._most, 'time')} (workers.restarts)"
                looked.given_up[i] = f"ended ({why}), {restarted}; see {self._log(name_of(i))}"
        return looked

    @property
    def has_workers(self) -> bool:
        """Whether any worker was not given up."""
        return any(self._workers)

    def _why(self, name: str, code: int) -> str:
        log = self._log(name)
        return ended.why(code, log, self._printed[log])

    def _log(self, name: str) -> Path:
        return self._file.parent / f"{name}.log"

    def going(self) -> set[int]:
        """Workers whose process has not ended."""
        return {i for i, worker in enumerate(self._workers) if worker and worker.poll() is None}
