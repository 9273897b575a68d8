"""The command line of twin-graph; installed as `twin_graph_cli`. Commands parse, call the library and print."""

import os
import sys
from pathlib import Path

for _name, _mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
    if getattr(sys, _name) is None:  # closed by the shell, as by `>&-`; the next file would get its number
        setattr(sys, _name, Path(os.devnull).open(_mode))  # noqa: SIM115 - until the process ends
