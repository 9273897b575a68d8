"""One task of a chief on this machine: `python -m twin_graph.distributed CLUSTER_FILE ps:0`."""

import signal
import sys
from pathlib import Path

from twin_graph.base.signals import STOPS
from twin_graph.config import trust
from twin_graph.distributed.cluster import Cluster
from twin_graph.distributed.task import run_task
from twin_graph.errors import TwinGraphError

if __name__ == "__main__":
    for number in STOPS:  # which may reach all processes of a run: the chief needs this one to save, and then ends it
        signal.signal(number, signal.SIG_IGN)
    trust.find_here()
    try:
        run_task(Cluster.described(Path(sys.argv[1])), sys.argv[2])
    except TwinGraphError as error:
        print(f"Error: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
