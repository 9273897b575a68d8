"""The agent: an actor and learners, with the targets, snapshots and resume points of a run that is open."""

from typing import TYPE_CHECKING

from twin_graph.base import lazy

if TYPE_CHECKING:
    from twin_graph.agent.agent import Agent as Agent

__all__ = ["Agent"]
__getattr__ = lazy.names_of(__name__, {"Agent": "twin_graph.agent.agent"})
