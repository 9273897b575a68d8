"""Layers for networks of your own; see docs/how-to/own-network.md. They are in `twin_graph.twin.layers`."""

from twin_graph.twin.layers import dense, glorot, he, last_layer, relu, torch_default

__all__ = ["dense", "glorot", "he", "last_layer", "relu", "torch_default"]
