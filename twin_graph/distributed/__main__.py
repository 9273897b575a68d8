"""One task of a chief on this machine: `python -m twin_graph.distributed CLUSTER_FILE ps:0 CHIEF`.

It is killed when the process CHIEF, which started it, is gone; CHIEF may be left out.
"""

import signal
import sys
from pathlib import Path

from twin_graph.base import leash, modules
from twin_graph.base.signals import STOPS
from twin_graph.base.text import printable
from twin_graph.distributed.cluster import Cluster
from twin_graph.distributed.task import relay_for, run_task
from twin_graph.errors import TwinGraphError

if __name__ == "__main__":
    for number in STOPS:  # which may reach all processes of a run: the chief needs this one to save, and then ends it
        signal.signal(number, signal.SIG_IGN)
    modules.find_here()
    file, task, *chief = sys.argv[1:]
    try:
        cluster = Cluster.described(Path(file))
        relay = relay_for(cluster, task)  # which there may be only one thread for
        for process in chief:
            leash.hold(int(process))
        run_task(cluster, task, relay)
    except TwinGraphError as error:
        print(printable(f"Error: {error}", one_line=True), file=sys.stderr)
        sys.exit(error.exit_code)
