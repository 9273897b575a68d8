"""Reads a checkpoint of TensorFlow's first format, of before 0.12, which nothing has checked: TensorFlow may end the
process.

    python -m twin_graph.twin.first_format CHECKPOINT VARIABLES.npz
"""

import sys

import numpy as np

from twin_graph.twin.tf import tf

if __name__ == "__main__":
    reader = tf.train.NewCheckpointReader(sys.argv[1])
    np.savez(sys.argv[2], **{name: reader.get_tensor(name) for name in sorted(reader.get_variable_to_shape_map())})
