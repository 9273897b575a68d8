"""A parameter server: holds variables until the chief leaves, which is the last to need them."""

from __future__ import annotations

import sys
import threading
from typing import TYPE_CHECKING

from twin_graph.distributed.cluster import LOOPBACK
from twin_graph.distributed.shared import ServerSession, done_queue, is_finished, start_server
from twin_graph.twin.tf import tf

if TYPE_CHECKING:
    from twin_graph.distributed.relay import Relay

#: How long a server stays whose run has made all its steps when nobody is connected any more: its chief was killed.
ALONE_SECONDS = 60.0
_LOOK_SECONDS = 1.0


def serve(relay: Relay) -> None:
    """The life of a parameter server. (`Server.join()` would never return.)

    Args:
      relay: which has the public address.

    Raises:
      TwinGraphError: the server cannot be closed to others.
    """
    server = start_server(f"{LOOPBACK}:0")
    relay.serve(int(server.target.rpartition(":")[2]))
    with tf.Graph().as_default() as graph:
        left, finished = done_queue().dequeue(), is_finished()
    with ServerSession(server.target, graph=graph) as session:
        waiting = threading.Thread(target=session.run, args=(left,), daemon=True)
        waiting.start()
        while waiting.is_alive():
            waiting.join(_LOOK_SECONDS)
            if relay.idle_seconds() > ALONE_SECONDS and session.run(finished):
                alone = f"all steps are made, and nobody was connected for {ALONE_SECONDS:.0f} s: this server ends"
                print(alone, file=sys.stderr, flush=True)
                return
