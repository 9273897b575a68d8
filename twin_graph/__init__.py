"""Deep Q-learning on twin TensorFlow graphs: the target network is a snapshot on disk.

    settings = twin_graph.load("cartpole", [("train.batch_size", 64)])
    run = twin_graph.create("checkpoints/mine", settings)
    with twin_graph.Agent(run, twin_graph.EnvSpec(observation_shape=(4,), n_actions=2)) as agent:
        ...

    run = twin_graph.find("pong-seed1-1")
    run.evaluations()
    run.policy("best").predict(observation)

`examples/own_loop.py` is a whole program, `examples/notebook.ipynb` a notebook.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from twin_graph.agent import Agent as Agent
    from twin_graph.config import load as load
    from twin_graph.envs import EnvSpec as EnvSpec
    from twin_graph.errors import TwinGraphError as TwinGraphError
    from twin_graph.notebook import create as create
    from twin_graph.notebook import find as find
    from twin_graph.replay import Transition as Transition
    from twin_graph.settings import Settings as Settings
    from twin_graph.snapshots.resumable import newest_point as newest_point

# Looked up when first used: importing the agent imports TensorFlow, which takes seconds.
_HOMES = {
    "Agent": "twin_graph.agent",
    "EnvSpec": "twin_graph.envs",
    "Settings": "twin_graph.settings",
    "Transition": "twin_graph.replay",
    "TwinGraphError": "twin_graph.errors",
    "create": "twin_graph.notebook",
    "find": "twin_graph.notebook",
    "load": "twin_graph.config",
    "newest_point": "twin_graph.snapshots.resumable",
}
__all__ = ["Agent", "EnvSpec", "Settings", "Transition", "TwinGraphError", "create", "find", "load", "newest_point"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)
