"""What `twin_graph.training.train` yields."""

from twin_graph.training.progress import Progress

__all__ = ["Progress"]
