"""What workers record in the run's folder, for the chief, `status` and `explain`. No TensorFlow import.

workers/
  cluster.json                   who is in it: see `twin_graph.distributed.cluster`
  worker-0.json                  how it is doing, renewed each second
  worker-0-000001.updates        the updates that it applied in attempt 1, from 0: int64, little-endian, rising
  worker-0.log                   what it printed
"""

import fcntl
import os
import time
from pathlib import Path
from typing import Annotated

from pydantic import Field

from twin_graph.base.counters import Whole
from twin_graph.errors import DamagedError, InUseError
from twin_graph.snapshots.files import check_in_place, checked, open_plain
from twin_graph.snapshots.forms import UPDATES_FILE, Record, SnapshotId, WorkerName
from twin_graph.snapshots.ledger import read_record

FOLDER = "workers"
CLUSTER = "cluster.json"
SUFFIXES = (".json", ".new", ".updates", ".log")
GIVEN_UP = "given up"
SILENT_SECONDS = 30.0  # of silence, after which a worker counts as gone


class WorkerStatus(Record):
    """How a worker is doing.

    Attributes:
      name, pid, attempt: which worker it is.
      state: `training`, `done`, `failed`, or `given up`, which the chief writes of one that died too often.
      message: why it failed or was given up.
      error: which of `twin_graph.errors` it was, if it failed.
      time: seconds since 1970 when this was written.
      agent_steps, updates, episodes: its own, of this process.
      agent_steps_per_second: since the line before.
      staleness: mean number of updates that others applied between a pull and the gradient's arrival.
      target: the snapshots that it bootstraps from.
      reward_limit: the largest |reward| that it met.
      loss, q_mean: of its newest update; None before it.
      returns: true scores of its newest episodes.
    """

    name: Annotated[WorkerName, Field(min_length=1)]
    pid: Whole
    attempt: Whole
    state: str
    message: str = ""
    error: str = ""
    time: float
    agent_steps: Whole = 0
    updates: Whole = 0
    episodes: Whole = 0
    agent_steps_per_second: float = 0.0
    staleness: float = 0.0
    target: tuple[SnapshotId, ...] = ()
    reward_limit: float = 0.0
    loss: float | None = None
    q_mean: float | None = None
    returns: tuple[float, ...] = ()

    @property
    def is_training(self) -> bool:
        """Whether it has not ended, and not fallen silent."""
        return self.state == "training" and time.time() - self.time < SILENT_SECONDS

    @property
    def index(self) -> int:
        return int(self.name.rpartition("-")[2])


def name_of(index: int) -> str:
    return f"worker-{index}"


def own_status(index: int, attempt: int, state: str, message: str = "", error: str = "") -> WorkerStatus:
    """The status of this process, a worker that has done nothing yet."""
    who = {"name": name_of(index), "pid": os.getpid(), "attempt": attempt}
    return WorkerStatus(**who, state=state, message=message, error=error, time=time.time())


def write_status(run: Path, status: WorkerStatus) -> None:
    """Replaces the previous status; readers see one or the other."""
    path = run / FOLDER / f"{status.name}.json"
    check_in_place(path)
    fresh = path.with_suffix(".new")
    fresh.write_bytes(checked(status.model_dump(mode="json")))
    fresh.replace(path)


def statuses(run: Path, attempt: int) -> list[WorkerStatus]:
    """Each worker's status, by names; of those that have written one in this attempt."""
    found = []
    for path in sorted((run / FOLDER).glob("worker-*.json")):
        try:
            status = read_record(WorkerStatus, path)
        except DamagedError:
            continue
        if status.attempt == attempt and status.name == path.stem:
            found.append(status)
    return found


class UpdateLog:
    """Appends the numbers of the updates that a worker applied; not fsynced, since nothing is decided by it."""

    def __init__(self, run: Path, name: str, attempt: int) -> None:
        """Raises `InUseError` if another process is this worker."""
        path = run / FOLDER / f"{name}-{attempt:06d}.updates"
        self._descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._descriptor)
            raise InUseError(f"{name} of {run} has been started already") from None

    def append(self, update: int) -> None:
        os.write(self._descriptor, update.to_bytes(8, "little"))

    def close(self) -> None:
        os.close(self._descriptor)


def update_logs(run: Path, *, upto: int) -> list[Path]:
    """The files that `UpdateLog` wrote in attempts up to this one."""
    named = ((path, UPDATES_FILE.fullmatch(path.name)) for path in (run / FOLDER).glob("*.updates"))
    return [path for path, found in named if found and int(found["attempt"]) <= upto]


def who_applied(run: Path, attempt: int, update: int) -> str | None:
    """The worker that applied an update, counted from 0, in an attempt; None if the records do not say."""
    import numpy as np  # commands that do not need it need not wait for it

    for path in sorted((run / FOLDER).glob(f"worker-*-{attempt:06d}.updates")):
        with open_plain(path) as file:
            content = file.read()
        updates = np.frombuffer(content[: len(content) // 8 * 8], "<i8")
        at = int(np.searchsorted(updates, update))
        if at < len(updates) and updates[at] == update:
            return path.name.rpartition("-")[0]
    return None
