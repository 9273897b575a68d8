"""A task of a cluster, by its name: `ps:0`, `worker:1`."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from twin_graph.errors import TwinGraphError, UsageError

if TYPE_CHECKING:
    from twin_graph.distributed.cluster import Cluster


def run_task(cluster: Cluster, task: str) -> None:
    """The whole life of a parameter server or a worker.

    Args:
      cluster: described.
      task: its name.

    Raises:
      UsageError: there is no such task.
      TwinGraphError: it failed.
    """
    job, index = parse(cluster, task)
    from twin_graph.distributed import server, worker
    from twin_graph.distributed.shared import in_words
    from twin_graph.twin.tf import tf

    try:
        if job == "ps":
            server.serve(cluster, index)
        else:
            worker.work(cluster, index)
    except tf.errors.OpError as error:
        errors = tf.errors
        lost = isinstance(
            error, errors.UnavailableError | errors.DeadlineExceededError | errors.AbortedError | errors.CancelledError
        )
        raise TwinGraphError(f"{task}{' lost a parameter server' if lost else ''}: {in_words(error)}") from None


def parse(cluster: Cluster, task: str) -> tuple[str, int]:
    """Job and number. Raises `UsageError`."""
    match = re.fullmatch(r"(ps|worker):(\d+)", task)
    if not match:
        raise UsageError(f"task {task!r}: write ps:0 or worker:0")
    job, index = match[1], int(match[2])
    count = len(cluster.ps) if job == "ps" else cluster.workers
    if index >= count:
        raise UsageError(f"task {task}: the cluster has only {count} of {job}, counted from {job}:0")
    return job, index
