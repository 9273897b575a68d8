"""What is on the parameter servers, and how chief and workers reach it.

Each step of a session is of one server alone: values are fed and fetched, and no process waits for a part of another's
step. See `ServerSession` for why.
"""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from twin_graph.distributed.cluster import Cluster, is_loopback
from twin_graph.distributed.loopback import accept_loopback_only
from twin_graph.errors import TwinGraphError
from twin_graph.snapshots.store import Variable
from twin_graph.twin import optimizers
from twin_graph.twin.tf import tf
from twin_graph.twin.twin import Twin, setters, to_set

if TYPE_CHECKING:
    from twin_graph.twin.model import ModelSpec

_COUNTERS = ("vector_steps", "updates", "episodes", "stop", "attempt")
_NO_LIMIT = 2**62
_ANSWER_MILLISECONDS = 10_000
_START_SECONDS = 600.0
_TRY_SECONDS = 0.2
_LINE = 300  # characters
_REFUSED = "RunGraph (Worker) request was received twice"
#: What a call raises whose server is gone, or not up yet.
_NOT_THERE = (tf.errors.UnavailableError, tf.errors.DeadlineExceededError)
ANOTHER_CHIEF = "the run was resumed without this task; start it again"


class Counts(NamedTuple):
    """What all workers together have done.

    Attributes:
      vector_steps: of E agent steps each.
      updates: applied to the shared variables.
      episodes: that ended.
    """

    vector_steps: int
    updates: int
    episodes: int


class ServerSession(tf.Session):  # type: ignore[misc]
    """A session with one server, which asks again if the server mistakes a request for an earlier one.

    A Ctrl-C during a request is a KeyboardInterrupt, which TensorFlow makes a RuntimeError of.

    TensorFlow makes each step in a thread of its own, and numbers its requests by a generator of that thread, whose
    seed has 32 bits. A server that finds a number among its last 100,000 takes the request for one that came twice: it
    refuses one in 43,000, once it has seen that many, which ended a run of CartPole with four workers after three
    minutes. A refused request has done nothing. But where a step has parts on several servers, others may have done
    theirs, or wait for it forever: so no step here has.

    The refusal quotes the request, with the numbers that were fed as text. TensorFlow looks for names of operations in
    it, between brackets, and where numbers look like one it raises a ValueError about that name instead.
    """

    def run(self, *args: Any, **options: Any) -> Any:
        while True:
            try:
                return super().run(*args, **options)
            except (tf.errors.AbortedError, ValueError) as error:
                refusal = error.__context__ if isinstance(error, ValueError) else error
                if not isinstance(refusal, tf.errors.AbortedError) or _REFUSED not in refusal.message:
                    raise
            except RuntimeError as error:
                if "KeyboardInterrupt" in str(error):
                    raise KeyboardInterrupt from None
                raise

    def close(self) -> None:
        """Nothing: the session ends with its server, and to say so to one that is gone would take 10 s."""


def in_words(error: Any) -> str:
    """A TensorFlow error in one line."""
    return f"{type(error).__name__}: {' '.join(error.message.split())[:_LINE]}"


def start_server(address: str) -> Any:
    """A `tf.train.Server`, alone in its cluster; on a loopback address it accepts connections from this machine only.

    Raises:
      TwinGraphError: its port is taken, most likely.
    """
    config = tf.ConfigProto(device_count={"GPU": 0})  # graphics memory is for workers
    try:
        server = tf.train.Server({"ps": [address]}, job_name="ps", task_index=0, config=config)
    except tf.errors.OpError as error:
        raise TwinGraphError(f"cannot listen on {address}: {error.message}. Does another run use the port?") from None
    if is_loopback(address):
        accept_loopback_only(int(address.rpartition(":")[2]))
    return server


def placement(variables: Sequence[Variable], servers: int) -> list[list[Variable]]:
    """What each server holds: the largest first, each to the server with the least."""
    placed: list[list[Variable]] = [[] for _ in range(servers)]
    load = [0] * servers
    for variable in sorted(variables, key=lambda v: (-int(np.prod(v.shape)), v.name)):
        server = load.index(min(load))
        load[server] += int(np.prod(variable.shape))
        placed[server].append(variable)
    return placed


def _count_up(counter: Any, limit: int) -> Any:
    """Atomically adds one and returns the number before; OutOfRangeError at `limit`. No two callers get the same."""
    return tf.raw_ops.ResourceCountUpTo(resource=counter.handle, limit=limit, T=tf.int64)


def done_queue() -> Any:
    """A queue on a server, into which the chief puts something when it leaves."""
    return tf.FIFOQueue(1, tf.bool, shapes=[[]], shared_name="done")


class _Part:
    """What one server holds: some trainables, what the optimizer has of them, counters."""

    def __init__(self, address: str, spec: ModelSpec, trainables: Sequence[Variable], vector_steps: int) -> None:
        graph = tf.Graph()
        with graph.as_default():
            held = [
                tf.get_variable(v.name, v.shape, v.dtype, initializer=tf.zeros_initializer(), use_resource=True)
                for v in trainables
            ]
            self.gradients = {v.name: tf.placeholder(v.dtype, v.shape) for v in trainables}
            self.learning_rate = tf.placeholder(tf.float32, [])
            self.counters = {
                name: tf.get_variable(
                    f"counters/{name}",
                    [],
                    tf.int64,
                    initializer=tf.zeros_initializer(),
                    trainable=False,
                    use_resource=True,
                    collections=[],
                )
                for name in _COUNTERS
            }
            self.attempt = tf.placeholder(tf.int64, [])
            present = tf.debugging.assert_equal(self.counters["attempt"], self.attempt, message=ANOTHER_CHIEF)
            applied = present
            if held:
                optimizer = optimizers.Optimizer(spec.train)
                with tf.control_dependencies([present]):
                    applied = optimizer.apply(list(self.gradients.values()), held, self.learning_rate)
            self.trainables = {v.op.name: v for v in held}
            self.variables = {v.op.name: v for v in tf.global_variables()}
            self._setters = setters({**self.variables, **self.counters})
            self.is_begun = tf.raw_ops.VarIsInitializedOp(resource=self.counters["attempt"].handle)
            with tf.control_dependencies([applied]):
                self.update = _count_up(self.counters["updates"], _NO_LIMIT)
            self.ended = tf.placeholder(tf.int64, [])
            with tf.control_dependencies([present]):
                self.stops = tf.identity(self.counters["stop"])
                self.claim = _count_up(self.counters["vector_steps"], vector_steps)
                self.count_episodes = self.counters["episodes"].assign_add(self.ended, read_value=False)
            self.leave = done_queue().enqueue(True)
        graph.finalize()
        config = tf.ConfigProto(operation_timeout_in_ms=_ANSWER_MILLISECONDS)
        # Not `SessionCalls`: what these look up is given back at the end, which takes forever if the server is gone.
        self.run = ServerSession(f"grpc://{address}", graph=graph, config=config).run

    def run_in(self, attempt: int, wanted: Any, fed: Mapping[Any, Any] = MappingProxyType({})) -> Any:
        """As `run`, for workers. Raises `TwinGraphError` if the server is at another attempt of the run."""
        try:
            return self.run(wanted, {**fed, self.attempt: attempt})
        except tf.errors.InvalidArgumentError as error:
            if ANOTHER_CHIEF not in error.message:
                raise
            raise TwinGraphError(ANOTHER_CHIEF) from None

    def assign(self, values: Mapping[str, Any]) -> None:
        """Sets variables and counters by name."""
        self.run(*to_set(self._setters, values))


def _reach_directly(addresses: Sequence[str]) -> None:
    """Lets gRPC reach these without the proxy of `http_proxy`, which does not know this machine's ports."""
    direct = os.environ.get("no_grpc_proxy", os.environ.get("no_proxy", ""))  # noqa: SIM112 - gRPC reads these
    hosts = [address.rpartition(":")[0] for address in addresses]
    os.environ["no_grpc_proxy"] = ",".join(dict.fromkeys(filter(None, [*direct.split(","), *hosts])))  # noqa: SIM112


class Shared:
    """The shared variables and counters, as a client of the servers; closed by `close()`. For several threads at once.

    Args:
      cluster: whose.
      twin: whose trainables they are, by name, shape and optimizer.
      vector_steps: of all workers together, at which the run ends.

    Every method raises `tf.errors.OpError` where a server does not answer.
    """

    def __init__(self, cluster: Cluster, twin: Twin, vector_steps: int) -> None:
        self._addresses = cluster.ps
        _reach_directly(cluster.ps)
        self._attempt = 0  # of the run, as a worker found it
        placed = placement([Variable.of(v) for v in twin.model.trainables], len(cluster.ps))
        self._parts = [
            _Part(address, twin.spec, trainables, vector_steps)
            for address, trainables in zip(cluster.ps, placed, strict=True)
        ]
        self._first = self._parts[0]  # whose counters count
        self._holding = [part for part in self._parts if part.trainables]
        self._threads = ThreadPoolExecutor(len(self._holding), "servers") if len(self._holding) > 1 else None

    def close(self) -> None:
        """Ends the threads."""
        if self._threads:
            self._threads.shutdown()

    def unheard(self) -> list[str]:
        """Addresses at which no server listens."""
        return [address for address in self._addresses if not _listens(address)]

    def _of_each(self, work: Callable[[_Part], Any]) -> Iterator[Any]:
        """By each server that holds something, at once."""
        return self._threads.map(work, self._holding) if self._threads else map(work, self._holding)

    def begin(self, values: Mapping[str, np.ndarray], counts: Counts, *, attempt: int) -> Iterator[None]:
        """Sets everything, once the servers answer; workers wait for this. Yields while they do not.

        Args:
          values: of the shared variables, by name.
          counts: to begin with.
          attempt: of the run, from 1; workers of an earlier one end when they see it.

        Raises:
          TwinGraphError: no server answers, or not as one should.
        """
        for _ in _tries(_START_SECONDS):
            if not all(map(_listens, self._addresses)):  # up to the first that does not
                yield
                continue
            try:
                for part in self._parts:  # no worker begins, and those that have begun change nothing any more
                    part.assign({"attempt": 0})
                self.push(values)
                for part in reversed(self._parts):  # workers wait for the first
                    part.assign(counts._asdict() | {"stop": 0})
                    part.assign({"attempt": attempt})
                return
            except _NOT_THERE:
                yield
            except tf.errors.OpError as error:
                raise TwinGraphError(f"a parameter server cannot be used: {in_words(error)}") from None
        raise TwinGraphError(f"no parameter server answers at {', '.join(self._addresses)}")

    def wait_for_chief(self, seconds: float) -> int:
        """The run's attempt, when the chief has begun it, in whatever order processes were started. For workers, first.

        Raises:
          TwinGraphError: it has not.
        """
        for _ in _tries(seconds):
            with contextlib.suppress(*_NOT_THERE):
                if _listens(self._addresses[0]) and self._first.run(self._first.is_begun):
                    self._attempt = int(self._first.run(self._first.counters["attempt"]))
                    if self._attempt:
                        return self._attempt
        raise TwinGraphError(f"no chief in {seconds:.0f} s: has it been started?")

    def push(self, values: Mapping[str, np.ndarray]) -> None:
        """Sets the shared variables."""
        list(self._of_each(lambda part: part.assign({name: values[name] for name in part.variables})))

    def pull(self) -> dict[str, np.ndarray]:
        """The shared variables; updates that come in meanwhile are in some and not in others."""
        return self._values(lambda part: part.variables)[1]

    def pull_trainables(self) -> tuple[int, dict[str, np.ndarray]]:
        """How many updates were made, and the trainables; for those that come in meanwhile see `pull`."""
        return self._values(lambda part: part.trainables)

    def _values(self, of: Callable[[_Part], dict[str, Any]]) -> tuple[int, dict[str, np.ndarray]]:
        answers = list(self._of_each(lambda part: part.run([part.counters["updates"], *of(part).values()])))
        names = [name for part in self._holding for name in of(part)]
        return int(answers[0][0]), dict(zip(names, (value for answer in answers for value in answer[1:]), strict=True))

    def counts(self) -> Counts:
        values = self._first.run([self._first.counters[name] for name in Counts._fields])
        return Counts(*map(int, values))

    def ask_to_stop(self) -> None:
        """Workers end at their next vector step."""
        self._first.assign({"stop": 1})

    def leave(self) -> None:
        """Ends the servers; one that is gone is passed over."""
        for part in self._parts:
            with contextlib.suppress(tf.errors.OpError):
                part.run(part.leave)

    def claim_step(self) -> int | None:
        """The number of a vector step that nobody else makes; None if all are made, or the chief wants an end.

        As the two below, it raises `TwinGraphError` if a chief has begun another attempt than this worker's.
        """
        if self._first.run_in(self._attempt, self._first.stops):
            return None
        try:
            return int(self._first.run_in(self._attempt, self._first.claim))
        except tf.errors.OutOfRangeError:
            return None

    def count_episodes(self, ended: int) -> None:
        self._first.run_in(self._attempt, self._first.count_episodes, {self._first.ended: ended})

    def apply(self, gradients: Mapping[str, np.ndarray], learning_rate: float) -> int:
        """One optimizer step; returns its number in the run, from 0."""

        def apply_part(part: _Part) -> int:
            fed = {placeholder: gradients[name] for name, placeholder in part.gradients.items()}
            return int(part.run_in(self._attempt, part.update, {**fed, part.learning_rate: learning_rate}))

        update, *_ = self._of_each(apply_part)
        return int(update)


def _tries(seconds: float) -> Iterator[None]:
    """Something to do again and again until it works, for so long."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        yield
        time.sleep(_TRY_SECONDS)


def _listens(address: str) -> bool:
    """Whether anybody does; a session would wait for that, and could not be interrupted meanwhile."""
    host, _, port = address.rpartition(":")
    with contextlib.suppress(OSError), socket.create_connection((host, int(port)), timeout=1):
        return True
    return False
