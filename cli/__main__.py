"""`python -m twin_graph_cli`."""

from . import run

run()
