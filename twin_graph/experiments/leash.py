"""Becomes `twin-graph`, on a leash: it is killed when the process that began it is.

    python -m twin_graph.experiments.leash PARENT train ...

For a training that a Ray worker begins. If the worker is gone, nobody watches the training any more, and somebody else
may begin it again. Killed, and not asked to end: what is resumed then ends like one that was never interrupted.
"""

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1

if __name__ == "__main__":
    parent, *arguments = sys.argv[1:]
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != int(parent):  # it was gone before
        sys.exit(1)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})  # Ray blocks it in all that it starts
    os.execv(sys.executable, [sys.executable, "-m", "twin_graph_cli", *arguments])
