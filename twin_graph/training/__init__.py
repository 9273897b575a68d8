"""Training: what is checked and measured before it, its loop, and what people see and request meanwhile."""

from typing import TYPE_CHECKING

from twin_graph.base import lazy

if TYPE_CHECKING:
    from twin_graph.training.trainer import train as train

__all__ = ["train"]
__getattr__ = lazy.names_of(__name__, {"train": "twin_graph.training.trainer"})
