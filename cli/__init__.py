"""The command line of twin-graph; installed as `twin_graph_cli`. Commands parse, call the library and print."""

import contextlib
import os
import sys
from pathlib import Path

for _name, _mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
    if getattr(sys, _name) is None:  # closed by the shell, as by `>&-`; the next file would get its number
        setattr(sys, _name, Path(os.devnull).open(_mode))  # noqa: SIM115 - until the process ends


def _keep_stdout() -> None:
    """Gives `sys.stdout` a file of its own. What prints to the process's, as engines in C and environments in processes
    of their own do, prints to stderr."""
    given = sys.stdout
    with contextlib.suppress(OSError, ValueError):  # it is closed
        own = os.dup(given.fileno())
        os.dup2(sys.stderr.fileno(), given.fileno())
        sys.stdout = open(own, "w", encoding=given.encoding, errors=given.errors)  # noqa: SIM115, PTH123


def run() -> None:
    """Calls `main()`, for the console script.

    Already while its modules are imported, Ctrl-C is answered in one line, and so are people who wait.
    """
    _keep_stdout()
    from .waiting import waiting

    with waiting():
        try:
            from .main import main
        except KeyboardInterrupt:
            from twin_graph.errors import INTERRUPTED_EXIT_CODE

            sys.stderr.write("interrupted\n")
            sys.exit(INTERRUPTED_EXIT_CODE)
        main()
