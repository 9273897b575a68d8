"""`python -m twin_graph_cli`."""

from .main import main

main()
