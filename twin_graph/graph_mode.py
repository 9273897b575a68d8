"""TensorFlow in graph mode: the one place that imports it and the one place that switches eager execution off.

Everything else takes `tf` from here. Importing this module costs seconds, so the commands that only read
records never do.
"""

import os

# oneDNN is TensorFlow's default only on CPUs with AVX512-VNNI or newer. On an AVX2 machine (EPYC 7003) it takes
# the update of the nature network from 56 to 28 ms, so it is on unless the user's environment says otherwise.
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import tensorflow

tf = tensorflow.compat.v1
tf.disable_eager_execution()
tf.logging.set_verbosity(tf.logging.ERROR)
TENSORFLOW_VERSION: str = tensorflow.__version__
