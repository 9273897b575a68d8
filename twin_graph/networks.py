"""What a network of your own gets; see docs/how-to/own-network.md. Ours are in `twin_graph.twin.networks`."""

from twin_graph.twin.networks import Build

__all__ = ["Build"]
