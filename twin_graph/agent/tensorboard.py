"""TensorBoard's event file, written in the caller's thread, so that a full disk is noticed here and by its name."""

import errno
import os
import re
import socket
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np

from twin_graph.twin.tf import tf

_HISTOGRAM_BUCKETS = 30
_STEM = "events.out.tfevents"


class EventFile:
    """Owns one event file, for the whole life of a run; `with` closes it.

    Args:
      folder: made if it does not exist; TensorBoard's `--logdir`, or below it.
      graph: what TensorBoard shows as the graph.
      resumed_at: agent steps from which an attempt continues.

    Raises:
      OSError: the disk is full or cannot be written; so do the methods.
    """

    def __init__(self, folder: Path, graph: Any, *, resumed_at: int | None = None) -> None:
        folder.mkdir(exist_ok=True)
        self._path = folder / f"{_STEM}.{_seconds(folder):010d}.{socket.gethostname()}"
        try:
            self._file = tf.io.TFRecordWriter(str(self._path))
        except tf.errors.OpError as error:
            raise self._os_error(error) from error
        self._write(file_version="brain.Event:2")
        if resumed_at is not None:  # TensorBoard then forgets what an earlier attempt has shown beyond it
            self._write(step=resumed_at + 1, session_log=tf.SessionLog(status=tf.SessionLog.START))
        self._write(graph_def=graph.as_graph_def().SerializeToString())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        try:
            self._file.close()
        except tf.errors.OpError as close_error:
            if error is None:
                raise self._os_error(close_error) from close_error

    def write(self, agent_steps: int, values: dict[str, float]) -> None:
        """Writes values by their tags at `agent_steps`, which is always TensorBoard's horizontal axis."""
        summary = tf.Summary(value=[tf.Summary.Value(tag=tag, simple_value=value) for tag, value in values.items()])
        self._write(step=agent_steps, summary=summary)

    def write_histograms(self, agent_steps: int, arrays: Mapping[str, np.ndarray]) -> None:
        """Shows each array's mean, standard deviation, extremes and share of zeros, and a histogram, by their tags.

        Of an array with numbers that are not finite there is no histogram.
        """
        shown = []
        for tag, array in arrays.items():
            values = array.astype(np.float64)
            with np.errstate(invalid="ignore"):
                statistics = {"mean": values.mean(), "std": values.std(), "min": values.min(), "max": values.max()}
                statistics["zeros"] = (values == 0).mean()
            shown += [tf.Summary.Value(tag=f"{tag}/{key}", simple_value=value) for key, value in statistics.items()]
            if np.isfinite(values).all():
                shown.append(tf.Summary.Value(tag=tag, histo=_histogram(values)))
        self._write(step=agent_steps, summary=tf.Summary(value=shown))

    def _write(self, **fields: Any) -> None:
        try:
            self._file.write(tf.Event(wall_time=time.time(), **fields).SerializeToString())
            self._file.flush()
        except tf.errors.OpError as error:
            raise self._os_error(error) from error

    def _os_error(self, error: Any) -> OSError:
        if isinstance(error, tf.errors.ResourceExhaustedError):
            return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self._path))
        return OSError(errno.EIO, error.message, str(self._path))


def _seconds(folder: Path) -> int:
    """The present time for the name of a file, later than those that are there.

    TensorBoard reads files in the order of their names. The clock may have been set back, or be another machine's, and
    an attempt that fails at once may be followed by another within the second.
    """
    found = (re.match(rf"{re.escape(_STEM)}\.(\d+)", path.name) for path in folder.iterdir())
    return max([int(time.time()), *(int(match[1]) + 1 for match in found if match)])


def _histogram(values: np.ndarray) -> Any:
    """Buckets of equal width from the smallest value to the largest; one bucket if they are the same."""
    low, high = values.min(), values.max()
    counts, edges = np.histogram(values, _HISTOGRAM_BUCKETS if low < high else 1, (low, high))
    return tf.HistogramProto(
        min=low,
        max=high,
        num=values.size,
        sum=values.sum(),
        sum_squares=np.square(values).sum(),
        bucket_limit=[*edges[1:-1], high],  # each bucket begins where the one before ends
        bucket=counts,
    )
