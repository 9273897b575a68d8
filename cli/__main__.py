"""`python -m twin_graph_cli`."""

import os
import sys

# Python looks for modules in the present folder first, which may be an unpacked archive.
if not sys.flags.safe_path and sys.path[:1] in ([""], [os.getcwd()]):  # noqa: PTH109 - as Python has put it there
    del sys.path[0]

from . import run

run()
