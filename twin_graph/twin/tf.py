"""TensorFlow's graphs and sessions: the one place that imports it.

Everything else takes `tf` from here. Importing this module costs seconds, so the commands that only read
records never do. Eager execution stays as it is, for models of a notebook or of an environment: graphs are built within
`tf.Graph().as_default()`, and a Saver, which goes by the present context, is called within its graph's.
"""

import contextlib
import ctypes
import gc
import importlib.util
import os
import signal
import sys
import tempfile
from collections.abc import Iterator
from typing import Any

from twin_graph.base import doing
from twin_graph.base.signals import on_signal


@contextlib.contextmanager
def _signals_held_back() -> Iterator[None]:
    """Lets signals that ask to stop wait for a second or two.

    Since Python 3.12, an exception that a handler raises within TensorFlow's C++ aborts the process. Blocking the
    signals does not help: threads of other libraries take them.
    """
    came: list[int] = []
    try:
        with on_signal(lambda number, _: came.append(number)):
            yield
    finally:
        for missed in dict.fromkeys(came):
            signal.raise_signal(missed)


@contextlib.contextmanager
def _stderr_held_back() -> Iterator[None]:
    """Holds back what is written to file descriptor 2, and shows it only if an error follows.

    TensorFlow's libraries greet each process with lines that no log level silences (tensorflow issue 100442), and
    with an error where there is no GPU. TF_CPP_MIN_LOG_LEVEL=0 shows them.
    """
    if os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2") < "2":
        yield
        return
    sys.stderr.flush()
    with tempfile.TemporaryFile() as held:
        stderr = os.dup(2)
        os.dup2(held.fileno(), 2)
        try:
            yield
        except BaseException:
            held.seek(0)
            os.write(stderr, held.read())
            raise
        finally:
            os.dup2(stderr, 2)
            os.close(stderr)


@contextlib.contextmanager
def _keras_left_for_later() -> Iterator[None]:
    """Keeps TensorFlow from importing Keras along with it, which takes a third of the time of both.

    It does not if Keras 2 is asked for and not installed. What `tf.keras` is gets decided when it is first used.
    """
    name = "TF_USE_LEGACY_KERAS"
    if name in os.environ or importlib.util.find_spec("tf_keras"):
        yield
        return
    os.environ[name] = "1"
    try:
        yield
    finally:
        del os.environ[name]


@contextlib.contextmanager
def _garbage_left() -> Iterator[None]:
    """Imports with Python's garbage collector off, and exempts what exists afterwards from it for good.

    It would go through TensorFlow's 290,000 objects again and again, a third of the time until a command starts, to
    find that 2,000 of them are garbage (4 MB).
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if enabled:
            gc.enable()


# oneDNN is TensorFlow's default only on CPUs with AVX512-VNNI or newer. On an AVX2 machine (EPYC 7003) it takes
# the update of the nature network from 56 to 28 ms, so it is on unless the user's environment says otherwise.
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")

# Without it the first session of a process decides how many threads the ops of all later ones have:
# `use_per_session_threads` is about the threads between ops only.
os.environ.setdefault("TF_OVERRIDE_GLOBAL_THREADPOOL", "1")

# What TensorFlow frees, megabytes many times a second, glibc would give back to the kernel, which clears new pages for
# the next: half of the time of a parameter server. In bytes.
_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_THRESHOLD = -1, -2, -3
_libc = ctypes.CDLL(None)
if hasattr(_libc, "mallopt"):
    _libc.mallopt(_M_TRIM_THRESHOLD, 512 << 20)
    _libc.mallopt(_M_TOP_PAD, 256 << 20)
    _libc.mallopt(_M_MMAP_THRESHOLD, 256 << 20)

doing.now("loading TensorFlow")
with _signals_held_back(), _stderr_held_back(), _garbage_left():
    with _keras_left_for_later():
        import tensorflow
    from tensorflow.core.protobuf.config_pb2 import CallableOptions as CallableOptions

    tf = tensorflow.compat.v1
    function = tensorflow.function  # of TensorFlow 2, where XLA is asked for
    tf.logging.set_verbosity(tf.logging.ERROR)
    tf.config.list_physical_devices()  # looks for GPUs now, with what it has to say about them
doing.now("building graphs")


def tflite_files() -> tuple[Any, Any]:
    """What reads and writes TFLite's files as objects, and what these objects are."""
    from tensorflow.lite.python import schema_py_generated
    from tensorflow.lite.tools import flatbuffer_utils

    return flatbuffer_utils, schema_py_generated
