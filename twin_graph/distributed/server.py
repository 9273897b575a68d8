"""A parameter server: holds variables until everybody is done with them."""

from twin_graph.distributed.cluster import Cluster
from twin_graph.distributed.shared import CHIEF, ServerSession, done_queue, start_server
from twin_graph.graph_mode import tf


def serve(cluster: Cluster, index: int) -> None:
    """The life of a parameter server: ends when each worker and the chief have put their token into its queue.

    `Server.join()` would never return.
    """
    server = start_server(cluster.ps[index])
    with tf.Graph().as_default() as graph:
        token = done_queue().dequeue()
    with ServerSession(server.target, graph=graph) as session:
        using = {*range(cluster.workers), CHIEF}
        while using:
            using.discard(int(session.run(token)))
