"""A parameter server: holds variables until everybody is done with them."""

from twin_graph.distributed.cluster import Cluster
from twin_graph.distributed.shared import CHIEF, done_queue, session_config, start_server
from twin_graph.graph_mode import tf


def serve(cluster: Cluster, index: int) -> None:
    """The life of a parameter server: ends when each worker and the chief have put their token into its queue.

    `Server.join()` would never return.
    """
    server = start_server(cluster, "ps", index, session_config("/job:ps"))
    with tf.Graph().as_default() as graph:
        token = done_queue(index).dequeue()
    with tf.Session(server.target, graph=graph, config=session_config(f"/job:ps/task:{index}")) as session:
        using = {*range(len(cluster.worker)), CHIEF}
        while using:
            using.discard(int(session.run(token)))
