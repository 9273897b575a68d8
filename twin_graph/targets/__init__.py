"""Targets: the policies that choose snapshots for them, what these may look at, and what must be kept for them."""

from twin_graph.targets.policies import Choice, Count, History, Match, Needs, needs
from twin_graph.targets.policies import check_present as check_present
from twin_graph.targets.policies import choice_stream as choice_stream
from twin_graph.targets.policies import latest as latest
from twin_graph.targets.policies import roles as roles

__all__ = ["Choice", "Count", "History", "Match", "Needs", "needs"]
