"""The command line of twin-graph; installed as `twin_graph_cli`. Commands parse, call the library and print."""

import contextlib
import os
import sys
import warnings
from pathlib import Path
from typing import Any

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


def _in_one_line(message: Any, category: type[Warning], filename: str, lineno: int, line: str | None = None) -> str:
    """A warning of the package's without the place in its code; others as Python writes them."""
    if Path(filename).is_relative_to(_PACKAGE):
        return f"{message}\n"
    return _as_python_does(message, category, filename, lineno, line)


_PACKAGE = Path(__file__).resolve().parent.parent / "twin_graph"
_as_python_does = warnings.formatwarning


def run() -> None:
    """Calls `main()`, for the console script.

    Already while its modules are imported, Ctrl-C is answered in one line, and so are people who wait.
    """
    _keep_stdout()
    warnings.formatwarning = _in_one_line
    from .waiting import waiting

    with waiting():
        try:
            from .main import main
        except KeyboardInterrupt:
            from twin_graph.errors import INTERRUPTED_EXIT_CODE

            sys.stderr.write("interrupted\n")
            sys.exit(INTERRUPTED_EXIT_CODE)
        main()
