"""`session.run` for what runs repeatedly: names are looked up once."""

import weakref
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from twin_graph.base.arrays import takes
from twin_graph.errors import WrongGraphError
from twin_graph.twin.tf import CallableOptions, tf

#: What messages call the owner of a graph.
_OWNERS = weakref.WeakKeyDictionary[Any, str]()


class SessionCalls:
    """`session.run` that examines fetches and feeds only the first time.

    `session.run` does so each time, in Python, which takes longer than a small network: an update of the CartPole
    preset took 1.2 ms that way and takes 0.5 ms here, or 0.4 ms in one thread.

    Args:
      session: to run in; its graph does not change.
      owner: how messages call it, e.g. `twin 'online'`.
    """

    def __init__(self, session: Any, owner: str) -> None:
        self._session = session
        self._owner = owner
        self._calls: dict[tuple[int, ...], _Call] = {}
        _OWNERS[session.graph] = owner

    def close(self) -> None:
        """Ends the session. Safe to call twice."""
        self._calls.clear()
        self._session.close()

    def run(self, fetches: Any, feed: Mapping[Any, Any] | None = None, *, in_this_thread: bool = False) -> Any:
        """Runs a tensor, operation or variable, or a tuple or list of them.

        Args:
          fetches: what to run.
          feed: values by tensor.
          in_this_thread: run the ops one after another in the calling thread, not in the session's pool. Waking another
            thread takes longer than an op of a small network.

        Returns:
          The value, None of an operation; of several, a list.

        Raises:
          WrongGraphError: something belongs to another graph; the message names tensor and owners.
          ValueError: an array's shape is not the tensor's, or its type cannot be converted, such as floats for uint8.
        """
        feed = feed or {}
        wanted = fetches if isinstance(fetches, tuple | list) else (fetches,)
        key = (in_this_thread, *map(id, wanted), len(wanted), *map(id, feed))
        call = self._calls.get(key)
        if call is None:
            for tensor in (*wanted, *feed):
                self._check_graph(tensor)
            call = self._calls[key] = _Call(self._session, wanted, tuple(feed), in_this_thread)
        values = call(feed.values())
        return values if wanted is fetches else values[0]

    def _check_graph(self, tensor: Any) -> None:
        """Twins have tensors of the same names, so TensorFlow would mistake another's for this one's."""
        if tensor.graph is not self._session.graph:
            owner = _OWNERS.get(tensor.graph, "a graph that belongs to no twin")
            raise WrongGraphError(
                f"tensor {tensor.name} belongs to {owner} and was run in the session of {self._owner}; "
                "run it in its own twin's session"
            )


class _Call:
    """One set of fetches with one set of fed tensors.

    The public `session.make_callable` passes its feeds through `session.run`. This calls the layer below it, which
    Keras used to run its graphs.
    """

    def __init__(self, session: Any, fetches: Sequence[Any], feeds: Sequence[Any], in_this_thread: bool) -> None:
        # `SessionCalls` finds both by their ids: they must live as long as this does.
        self._fetches, self._feeds = fetches, feeds
        self._fed = [(feed.name, np.dtype(feed.dtype.as_numpy_dtype), tuple(feed.shape.as_list())) for feed in feeds]
        elements = [session.graph.as_graph_element(fetch) for fetch in fetches]
        self._is_tensor = [isinstance(element, tf.Tensor) for element in elements]
        options = CallableOptions(run_options=tf.RunOptions(inter_op_thread_pool=-1 if in_this_thread else 0))
        options.feed.extend(feed.name for feed in feeds)
        options.fetch.extend(element.name for element in elements if isinstance(element, tf.Tensor))
        options.target.extend(element.name for element in elements if not isinstance(element, tf.Tensor))
        self._run = session._make_callable_from_options(options)

    def __call__(self, values: Iterable[Any]) -> list[Any]:
        arrays = []
        for value, (name, dtype, shape) in zip(values, self._fed, strict=True):
            array = np.asarray(value)
            if array.dtype != dtype:
                if not takes(dtype, array.dtype):
                    raise ValueError(f"{array.dtype} was fed to {name}, which takes {dtype}")
                array = array.astype(dtype)
            # TensorFlow checks this only in `session.run`.
            if array.ndim != len(shape) or any(n not in (None, m) for n, m in zip(shape, array.shape, strict=True)):
                raise ValueError(f"an array of shape {array.shape} was fed to {name}, which takes {shape}")
            arrays.append(array)
        fetched = iter(self._run(*arrays))
        return [next(fetched) if is_tensor else None for is_tensor in self._is_tensor]
