"""Runs a module on a leash: it is killed when the process that started it is gone.

    python -m twin_graph.base.leash PARENT MODULE ARGUMENTS...

For runs that a Ray worker starts, and, by `hold`, for workers and parameter servers of a chief: without it nobody
watches them any more, and somebody else may start them again. Killed, and not asked to stop: what is resumed then ends
like an uninterrupted run.
"""

import os
import runpy
import signal
import sys
import threading
import time

_LOOK_SECONDS = 0.5


def hold(parent: int) -> None:
    """Puts this process on the leash of the process that started it, by a thread."""
    threading.Thread(target=_watch, args=(parent,), daemon=True).start()


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(_LOOK_SECONDS)
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    parent, module, *arguments = sys.argv[1:]
    hold(int(parent))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})  # Ray blocks it in all that it starts
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)
