"""The replay of transitions, and how minibatches are drawn from it."""

from twin_graph.replay.ring import Transition

__all__ = ["Transition"]
