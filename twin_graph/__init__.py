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

from typing import TYPE_CHECKING

from twin_graph.base import lazy

if TYPE_CHECKING:
    from twin_graph.agent.agent import Agent as Agent
    from twin_graph.config.loading import load as load
    from twin_graph.config.settings import Settings as Settings
    from twin_graph.envs import EnvSpec as EnvSpec
    from twin_graph.errors import TwinGraphError as TwinGraphError
    from twin_graph.notebook import create as create
    from twin_graph.notebook import find as find
    from twin_graph.replay.ring import Transition as Transition
    from twin_graph.snapshots.resumable import newest_point as newest_point

__all__ = ["Agent", "EnvSpec", "Settings", "Transition", "TwinGraphError", "create", "find", "load", "newest_point"]
__getattr__ = lazy.names_of(
    __name__,
    {
        "Agent": "twin_graph.agent.agent",
        "EnvSpec": "twin_graph.envs",
        "Settings": "twin_graph.config.settings",
        "Transition": "twin_graph.replay.ring",
        "TwinGraphError": "twin_graph.errors",
        "create": "twin_graph.notebook",
        "find": "twin_graph.notebook",
        "load": "twin_graph.config.loading",
        "newest_point": "twin_graph.snapshots.resumable",
    },
)
