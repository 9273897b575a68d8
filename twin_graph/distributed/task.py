"""A task of a cluster, by its name: `ps:0`, `worker:1`."""

import os
import re
import signal
import threading
import time

from twin_graph.distributed.cluster import Cluster
from twin_graph.errors import TwinGraphError, UsageError

_PARENT_SECONDS = 0.5


def run_task(cluster: Cluster, task: str, *, parent: int | None = None) -> None:
    """The whole life of a parameter server or a worker.

    Args:
      cluster: described.
      task: its name.
      parent: the process that started this one, which ends with it and leaves Ctrl-C to it; None if a person did.

    Raises:
      UsageError: there is no such task.
      TwinGraphError: it failed.
    """
    job, index = parse(cluster, task)
    if parent is not None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
    from twin_graph.distributed import server, worker
    from twin_graph.distributed.shared import named
    from twin_graph.graph_mode import tf

    try:
        if job == "ps":
            if parent is None:
                signal.signal(signal.SIGINT, signal.SIG_DFL)  # Python would first wait for the session's answer
            server.serve(cluster, index)
        else:
            worker.work(cluster, index)
    except tf.errors.OpError as error:
        errors = tf.errors
        lost = isinstance(
            error, errors.UnavailableError | errors.DeadlineExceededError | errors.AbortedError | errors.CancelledError
        )
        raise TwinGraphError(f"{task}{' lost a parameter server' if lost else ''}: {named(error)}") from None


def parse(cluster: Cluster, task: str) -> tuple[str, int]:
    """Job and number. Raises `UsageError`."""
    match = re.fullmatch(r"(ps|worker):(\d+)", task)
    if not match:
        raise UsageError(f"task {task!r}: write ps:0 or worker:0")
    job, index = match[1], int(match[2])
    count = len(cluster.ps) if job == "ps" else cluster.workers
    if index >= count:
        raise UsageError(f"task {task}: the cluster has {count} of {job}, from {job}:0 on")
    return job, index


def _end_with(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(_PARENT_SECONDS)
    os._exit(1)
