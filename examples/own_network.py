"""A network of your own: two hidden layers, and a connection that skips the second.

PYTHONPATH=examples twin-graph train cartpole --set network=own_network:residual --set model.hidden_units='[64]'
"""

import tensorflow.compat.v1 as tf

from twin_graph.layers import dense, glorot, last_layer
from twin_graph.networks import Build


def residual(observation: tf.Tensor, n_actions: int, build: Build) -> tf.Tensor:
    """Q values, float32 `[B, A]`, of observations `[B, D]`."""
    [units] = build.model.hidden_units
    x = tf.nn.relu(dense("fc1", tf.cast(observation, build.dtype), units, glorot))
    x += tf.nn.relu(dense("fc2", x, units, glorot))
    return last_layer("q", x, n_actions, glorot)
