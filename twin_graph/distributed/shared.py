"""What is on the parameter servers, and how chief and workers reach it.

Each step of a session is of one server alone: values are fed and fetched, and no process waits for a part of another's
step. See `ServerSession` for why.
"""

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np

from twin_graph import optimizers
from twin_graph.distributed.cluster import Cluster, is_loopback
from twin_graph.distributed.loopback import accept_loopback_only
from twin_graph.errors import TwinGraphError
from twin_graph.graph_mode import tf
from twin_graph.model import ModelSpec
from twin_graph.snapshots.store import Variable
from twin_graph.twin import Twin, setters, to_set

_COUNTERS = ("vector_steps", "updates", "episodes", "stop", "attempt")
_NO_LIMIT = 2**62
_TOKENS = 100_000  # more than there can be
CHIEF = -1
_ANSWER_MILLISECONDS = 10_000
_START_SECONDS = 600.0
_TRY_SECONDS = 0.2
_LINE = 300  # characters
_REFUSED = "RunGraph (Worker) request was received twice"


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

    def close(self) -> None:
        """Nothing: the session ends with its server, and to say so to one that is gone would take 10 s."""


def named(error: Any) -> str:
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
    """A queue on a server for the numbers of those who are done with it: the workers', and `CHIEF`."""
    return tf.FIFOQueue(_TOKENS, tf.int32, shapes=[[]], shared_name="done")


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
            applied = tf.no_op()
            if held:
                optimizer = optimizers.Optimizer(spec.train)
                applied = optimizer.apply(list(self.gradients.values()), held, self.learning_rate)
            self.trainables = {v.op.name: v for v in held}
            self.variables = {v.op.name: v for v in tf.global_variables()}
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
            self._setters = setters({**self.variables, **self.counters})
            self.is_begun = tf.raw_ops.VarIsInitializedOp(resource=self.counters["attempt"].handle)
            self.claim = _count_up(self.counters["vector_steps"], vector_steps)
            with tf.control_dependencies([applied]):
                self.update = _count_up(self.counters["updates"], _NO_LIMIT)
            self.ended = tf.placeholder(tf.int64, [])
            self.count_episodes = self.counters["episodes"].assign_add(self.ended, read_value=False)
            self.token = tf.placeholder(tf.int32, [])
            self.put_token = done_queue().enqueue(self.token)
        graph.finalize()
        config = tf.ConfigProto(operation_timeout_in_ms=_ANSWER_MILLISECONDS)
        # Not `SessionCalls`: what these look up is given back at the end, which takes forever if the server is gone.
        self.run = ServerSession(f"grpc://{address}", graph=graph, config=config).run

    def assign(self, values: Mapping[str, Any]) -> None:
        """Sets variables and counters by name."""
        self.run(*to_set(self._setters, values))


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

    def _of_each(self, work: Callable[[_Part], Any]) -> Iterator[Any]:
        """By each server that holds something, at once."""
        return self._threads.map(work, self._holding) if self._threads else map(work, self._holding)

    def begin(
        self,
        values: Mapping[str, np.ndarray],
        counts: Counts,
        *,
        attempt: int,
        between: Callable[[], None] = lambda: None,
    ) -> None:
        """Sets everything, once the servers answer; workers wait for this.

        Args:
          values: of the shared variables, by name.
          counts: to begin with.
          attempt: of the run, from 1; workers of an earlier one end when they see it.
          between: called before each try; may raise.

        Raises:
          TwinGraphError: no server answers, or not as one should.
        """

        def set_all() -> bool:
            between()
            self._first.assign({"attempt": 0})  # no worker begins, and those that have begun claim no more steps
            self.push(values)
            for part in self._parts:
                part.assign(counts._asdict() | {"stop": 0})
            self._first.assign({"attempt": attempt})
            return True

        try:
            done = _try_for(_START_SECONDS, set_all)
        except tf.errors.OpError as error:
            raise TwinGraphError(f"a parameter server cannot be used: {named(error)}") from None
        if not done:
            raise TwinGraphError(f"no parameter server answers at {', '.join(self._addresses)}")

    def wait_for_chief(self, seconds: float) -> int:
        """The run's attempt, when the chief has begun it; in whatever order processes were started.

        Raises:
          TwinGraphError: it has not.
        """
        if not _try_for(seconds, lambda: bool(self._first.run(self._first.is_begun)) and self._attempt() > 0):
            raise TwinGraphError(f"no chief in {seconds:.0f} s: has it been started?")
        return self._attempt()

    def _attempt(self) -> int:
        return int(self._first.run(self._first.counters["attempt"]))

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

    def put_tokens(self, who: Sequence[int]) -> None:
        """Says to every server that these will not use it any more."""
        for part in self._parts:
            for token in who:
                part.run(part.put_token, {part.token: token})

    def claim_step(self, attempt: int) -> int | None:
        """The number of a vector step that nobody else makes; None if all are made, or the chief wants an end.

        Raises:
          TwinGraphError: there is another chief, who began from a resume point.
        """
        counters = self._first.counters
        stop, now = self._first.run([counters["stop"], counters["attempt"]])
        if now != attempt:
            raise TwinGraphError("the run was resumed without this task; start it again")
        if stop:
            return None
        try:
            return int(self._first.run(self._first.claim))
        except tf.errors.OutOfRangeError:
            return None

    def count_episodes(self, ended: int) -> None:
        self._first.run(self._first.count_episodes, {self._first.ended: ended})

    def apply(self, gradients: Mapping[str, np.ndarray], learning_rate: float) -> int:
        """One optimizer step; returns its number in the run, from 0."""

        def apply_part(part: _Part) -> int:
            fed = {placeholder: gradients[name] for name, placeholder in part.gradients.items()}
            return int(part.run(part.update, {**fed, part.learning_rate: learning_rate}))

        update, *_ = self._of_each(apply_part)
        return int(update)


def _try_for(seconds: float, work: Callable[[], bool]) -> bool:
    """Whether it was done, once servers that are not there yet are."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        with contextlib.suppress(tf.errors.UnavailableError, tf.errors.DeadlineExceededError):
            if work():
                return True
        time.sleep(_TRY_SECONDS)
    return False
