"""Games that count: of a snapshot by itself, filmed, on request, and of snapshots against each other."""

from twin_graph.evaluation.games import Evaluation

__all__ = ["Evaluation"]
