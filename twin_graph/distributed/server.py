"""A parameter server: holds variables until the chief leaves, which is the last to need them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from twin_graph.distributed.shared import ServerSession, done_queue, start_server
from twin_graph.twin.tf import tf

if TYPE_CHECKING:
    from twin_graph.distributed.cluster import Cluster


def serve(cluster: Cluster, index: int) -> None:
    """The life of a parameter server. (`Server.join()` would never return.)"""
    server = start_server(cluster.ps[index])
    with tf.Graph().as_default() as graph:
        left = done_queue().dequeue()
    with ServerSession(server.target, graph=graph) as session:
        session.run(left)
