"""A task of a cluster, by its name: `ps:0`, `worker:1`."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from twin_graph.distributed.relay import Relay
from twin_graph.errors import TwinGraphError, UsageError

if TYPE_CHECKING:
    from twin_graph.distributed.cluster import Cluster


def relay_for(cluster: Cluster, task: str) -> Relay | None:
    """The public end of a parameter server; none for a worker. To be made before TensorFlow is imported.

    Raises:
      UsageError: there is no such task, or its host is unknown.
      TwinGraphError: this is not Linux.
    """
    job, index = parse(cluster, task)
    return Relay(cluster.ps[index]) if job == "ps" else None


def run_task(cluster: Cluster, task: str, relay: Relay | None) -> None:
    """The whole life of a parameter server or a worker.

    Args:
      cluster: described.
      task: its name.
      relay: see `relay_for`.

    Raises:
      TwinGraphError: it failed.
    """
    if relay:
        relay.take_port()
    _, index = parse(cluster, task)
    from twin_graph.distributed import server, worker
    from twin_graph.distributed.shared import in_words
    from twin_graph.twin.tf import tf

    try:
        if relay:
            server.serve(relay)
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
