"""What is on the parameter servers, and how chief and workers reach it.

Each step of a session is of one server alone: values are fed and fetched, and no process waits for a part of another's
step. See `ServerSession` for why.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from twin_graph.distributed.cluster import Cluster, is_loopback
from twin_graph.distributed.probe import OTHER, SILENT, look
from twin_graph.errors import TwinGraphError
from twin_graph.snapshots.store import Variable
from twin_graph.twin import optimizers
from twin_graph.twin.tf import tf
from twin_graph.twin.twin import Twin, to_set

if TYPE_CHECKING:
    from twin_graph.twin.model import ModelSpec

_COUNTERS = ("vector_steps", "updates", "episodes", "stop", "finished", "attempt", "run")
_NO_LIMIT = 2**62
_ANSWER_MILLISECONDS = 10_000
_ANSWER_BEYOND_MILLISECONDS = 30_000  # of another machine: a link may be down for 10 s, and TCP asks again ever later
_RUN_DIGITS = 15  # of a run's id, which are a number that an int64 holds
_START_SECONDS = 600.0
_TRY_SECONDS = 0.2
_LINE = 300  # characters
_REFUSED = "RunGraph (Worker) request was received twice"
#: What a call raises whose server is gone, or not up yet.
_NOT_THERE = (tf.errors.UnavailableError, tf.errors.DeadlineExceededError)
_ANOTHER_CHIEF = "the run was resumed without this task; start it again"
_ANOTHER_RUN = "the server is of another run"
#: Of waiting for a server, before it is said.
PATIENT_SECONDS = 10.0


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


class NotOursError(TwinGraphError):
    """A server that answers is another run's, another attempt's, or was started anew and knows nothing."""


class AnotherAttemptError(NotOursError):
    """The run was resumed by another chief."""

    def __init__(self) -> None:
        super().__init__(_ANOTHER_CHIEF)


def start_server(address: str) -> Any:
    """A `tf.train.Server`, alone in its cluster. It listens on every interface: who starts it keeps others away.

    Args:
      address: its port may be 0, for a free one.

    Raises:
      TwinGraphError: it cannot listen.
    """
    config = tf.ConfigProto(device_count={"GPU": 0})  # graphics memory is for workers
    try:
        return tf.train.Server({"ps": [address]}, job_name="ps", task_index=0, config=config)
    except tf.errors.OpError as error:
        raise TwinGraphError(f"cannot listen on {address}: {error.message}. Does another run use the port?") from None


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


def _counters() -> dict[str, Any]:
    """By name: of a server, or for its clients."""
    return {
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


def _is_set(counter: Any) -> Any:
    return tf.raw_ops.VarIsInitializedOp(resource=counter.handle)


def _or_zero(counter: Any) -> Any:
    """A counter's value; 0 while nobody has set it."""
    return tf.cond(_is_set(counter), counter.read_value, lambda: tf.zeros([], tf.int64))


def is_finished() -> Any:
    """Whether a worker has found that all steps of the server's run are made."""
    return _or_zero(_counters()["finished"]) > 0


def number_of(run_id: str) -> int:
    """A run's number on the servers, from its id."""
    return int(run_id[:_RUN_DIGITS], 16)


class _Part:
    """What one server holds: some trainables, what the optimizer has of them, counters.

    Args:
      address: of the server.
      spec: of the twins.
      trainables: which it holds.
      vector_steps: at which the run ends.
      run: its number.
    """

    def __init__(
        self, address: str, spec: ModelSpec, trainables: Sequence[Variable], vector_steps: int, run: int
    ) -> None:
        self.address, self._number = address, run
        graph = tf.Graph()
        with graph.as_default():
            held = [
                tf.get_variable(v.name, v.shape, v.dtype, initializer=tf.zeros_initializer(), use_resource=True)
                for v in trainables
            ]
            self.gradients = {v.name: tf.placeholder(v.dtype, v.shape) for v in trainables}
            self.learning_rate = tf.placeholder(tf.float32, [])
            self.counters = _counters()
            self.attempt = tf.placeholder(tf.int64, [])
            self._run_number = tf.constant(run, tf.int64)
            self._ours = tf.debugging.assert_equal(self.counters["run"], self._run_number, message=_ANOTHER_RUN)
            with tf.control_dependencies([self._ours]):
                self.present = tf.debugging.assert_equal(self.counters["attempt"], self.attempt, message=_ANOTHER_CHIEF)
            applied = self.present
            if held:
                optimizer = optimizers.Optimizer(spec.train)
                with tf.control_dependencies([self.present]):
                    applied = optimizer.apply(list(self.gradients.values()), held, self.learning_rate)
            self.trainables = {v.op.name: v for v in held}
            self.variables = {v.op.name: v for v in tf.global_variables()}
            self._setters = self._guarded_setters({**self.variables, **self.counters})
            self.begun = _or_zero(self.counters["attempt"])
            with tf.control_dependencies([applied]):
                self.update = _count_up(self.counters["updates"], _NO_LIMIT)
            self.ended = tf.placeholder(tf.int64, [])
            with tf.control_dependencies([self.present]):
                self.stops = tf.identity(self.counters["stop"])
                self.claim = _count_up(self.counters["vector_steps"], vector_steps)
                self.count_episodes = self.counters["episodes"].assign_add(self.ended, read_value=False)
                self.finish = self.counters["finished"].assign(1, read_value=False)
                self.leave = done_queue().enqueue(True)
            self._take = self._taken()
            self._owner = _or_zero(self.counters["run"])
        graph.finalize()
        patience = _ANSWER_MILLISECONDS if is_loopback(address) else _ANSWER_BEYOND_MILLISECONDS
        config = tf.ConfigProto(operation_timeout_in_ms=patience)
        # Not `SessionCalls`: what these look up is given back at the end, which takes forever if the server is gone.
        self.run = ServerSession(f"grpc://{address}", graph=graph, config=config).run

    def _guarded_setters(self, variables: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
        """As `setters`, of a server that is this run's: of another's, nothing is changed."""
        # Made outside: what is made inside waits for the check in place of what takes it in, and not where it is fed.
        fed = {name: tf.placeholder(variable.dtype.base_dtype, variable.shape) for name, variable in variables.items()}
        with tf.control_dependencies([self._ours]):
            return {
                name: (variable.assign(fed[name], read_value=False), fed[name]) for name, variable in variables.items()
            }

    def _taken(self) -> Any:
        """Makes the server this run's if it is nobody's yet; whose it is then. No two chiefs get it."""

        def take() -> Any:
            owner = _or_zero(self.counters["run"])
            owner = tf.where(tf.equal(owner, 0), self._run_number, owner)
            with tf.control_dependencies([self.counters["run"].assign(owner, read_value=False)]):
                return tf.identity(owner)

        return tf.CriticalSection(shared_name="taking").execute(take)

    def take(self) -> None:
        """Makes the server this run's, for its life. Raises `NotOursError` if it is another's; nothing is changed."""
        self._check(int(self.run(self._take)))

    def check_owner(self) -> None:
        """Raises `NotOursError` if the server is another run's; it may be nobody's yet."""
        if owner := int(self.run(self._owner)):
            self._check(owner)

    def _check(self, owner: int) -> None:
        if owner != self._number:
            raise NotOursError(
                f"the parameter server at {self.address} serves another run (its id begins with "
                f"{owner:0{_RUN_DIGITS}x}); end it or use another address"
            )

    def run_in(self, attempt: int, wanted: Any, fed: Mapping[Any, Any] = MappingProxyType({})) -> Any:
        """As `run`, if the server is at this attempt of this run. Raises `NotOursError` if it is not."""
        with self._explained():
            return self.run([wanted, self.present], {**fed, self.attempt: attempt})[0]

    def assign(self, values: Mapping[str, Any]) -> None:
        """Sets variables and counters by name. Raises `NotOursError` if the server is not this run's."""
        with self._explained():
            self.run(*to_set(self._setters, values))

    @contextlib.contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except tf.errors.InvalidArgumentError as error:
            if _ANOTHER_CHIEF in error.message:
                raise AnotherAttemptError from None
            if _ANOTHER_RUN not in error.message:
                raise
            self.check_owner()
            raise
        except tf.errors.FailedPreconditionError:  # its variables were never set
            raise NotOursError(
                f"the parameter server at {self.address} was started anew, and the newest updates are lost"
            ) from None


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
      run: its id.

    Every method raises `tf.errors.OpError` where a server does not answer, and `NotOursError` where one is another
    run's, or another attempt's.
    """

    def __init__(self, cluster: Cluster, twin: Twin, vector_steps: int, run: str) -> None:
        self._addresses = cluster.ps
        _reach_directly(cluster.ps)
        self._attempt = 0  # of the run, as the chief began it
        placed = placement([Variable.of(v) for v in twin.model.trainables], len(cluster.ps))
        self._parts = [
            _Part(address, twin.spec, trainables, vector_steps, number_of(run))
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
        """Addresses at which no server answers."""
        return [address for address in self._addresses if look(address)]

    def _of_each(self, work: Callable[[_Part], Any]) -> Iterator[Any]:
        """By each server that holds something, at once."""
        return self._threads.map(work, self._holding) if self._threads else map(work, self._holding)

    def begin(self, values: Mapping[str, np.ndarray], counts: Counts, *, attempt: int) -> Iterator[str]:
        """Sets everything, once the servers answer; workers wait for this. Yields while they do not.

        Now and then it yields what it waits for, in words, once each; otherwise an empty string.

        Args:
          values: of the shared variables, by name.
          counts: to begin with.
          attempt: of the run, from 1; workers of an earlier one end when they see it.

        Raises:
          NotOursError: a server is another run's; nothing was changed there.
          TwinGraphError: no server answers, or not as one should.
        """
        waiting = _Waiting(self._addresses)
        for _ in _tries(_START_SECONDS):
            if not waiting.is_over():
                yield waiting.news()
                continue
            try:
                for part in self._parts:
                    part.check_owner()
                for part in self._parts:
                    part.take()
                for part in self._parts:  # no worker begins, and those that have begun change nothing any more
                    part.assign({"attempt": 0})
                self.push(values)
                for part in reversed(self._parts):  # workers wait for the first
                    part.assign(counts._asdict() | {"stop": 0, "finished": 0})
                    part.assign({"attempt": attempt})
                self._attempt = attempt
                return
            except _NOT_THERE:
                yield ""
            except tf.errors.OpError as error:
                raise TwinGraphError(f"a parameter server cannot be used: {in_words(error)}") from None
        raise TwinGraphError(f"no parameter server answers at {', '.join(self._addresses)}")

    def wait_for_chief(self, seconds: float, *, since: int = 1, tell: Callable[[str], None] = lambda _: None) -> int:
        """The run's attempt, when the chief has begun it, in whatever order processes were started. For workers, first.

        Args:
          seconds: to wait.
          since: the first attempt that will do: a server may still be at that of a chief that is gone.
          tell: told in words if it takes long.

        Raises:
          NotOursError: the server is another run's.
          TwinGraphError: the chief has not begun.
        """
        waiting = _Waiting(self._addresses[:1])
        for _ in _tries(seconds):
            with contextlib.suppress(*_NOT_THERE):
                if waiting.is_over():
                    self._first.check_owner()
                    self._attempt = int(self._first.run(self._first.begun))
                    if self._attempt >= since:
                        return self._attempt
                elif news := waiting.news():
                    tell(news)
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

    def _ask(self, part: _Part, wanted: Any, fed: Mapping[Any, Any] = MappingProxyType({})) -> Any:
        return part.run_in(self._attempt, wanted, fed)

    def _values(self, of: Callable[[_Part], dict[str, Any]]) -> tuple[int, dict[str, np.ndarray]]:
        answers = list(self._of_each(lambda part: self._ask(part, [part.counters["updates"], *of(part).values()])))
        names = [name for part in self._holding for name in of(part)]
        return int(answers[0][0]), dict(zip(names, (value for answer in answers for value in answer[1:]), strict=True))

    def counts(self) -> Counts:
        values = self._ask(self._first, [self._first.counters[name] for name in Counts._fields])
        return Counts(*map(int, values))

    def ask_to_stop(self) -> None:
        """Workers end at their next vector step."""
        self._first.assign({"stop": 1})

    def leave(self) -> None:
        """Ends the servers; one that is gone is passed over."""
        for part in self._parts:
            with contextlib.suppress(tf.errors.OpError, NotOursError):
                self._ask(part, part.leave)

    def claim_step(self) -> int | None:
        """The number of a vector step that nobody else makes; None if all are made, or the chief wants an end.

        As the two below, it raises `NotOursError` if a chief has begun another attempt than this worker's.
        """
        if self._ask(self._first, self._first.stops):
            return None
        try:
            return int(self._ask(self._first, self._first.claim))
        except tf.errors.OutOfRangeError:
            for part in self._parts:
                with contextlib.suppress(tf.errors.OpError):  # the chief may have ended it by now
                    self._ask(part, part.finish)
            return None

    def count_episodes(self, ended: int) -> None:
        self._ask(self._first, self._first.count_episodes, {self._first.ended: ended})

    def apply(self, gradients: Mapping[str, np.ndarray], learning_rate: float) -> int:
        """One optimizer step; returns its number in the run, from 0."""

        def apply_part(part: _Part) -> int:
            fed = {placeholder: gradients[name] for name, placeholder in part.gradients.items()}
            return int(self._ask(part, part.update, {**fed, part.learning_rate: learning_rate}))

        update, *_ = self._of_each(apply_part)
        return int(update)


def _tries(seconds: float) -> Iterator[None]:
    """Something to do again and again until it works, for so long."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        yield
        time.sleep(_TRY_SECONDS)


class _Waiting:
    """For servers that do not answer yet.

    Args:
      addresses: of the servers.
    """

    def __init__(self, addresses: Sequence[str]) -> None:
        self._addresses = addresses
        self._found: dict[str, str] = {}  # of those that do not answer, what is there instead
        self._said: dict[str, str] = {}
        self._since = time.monotonic()

    def is_over(self) -> bool:
        """Whether all answer. A session would wait for that, and could not be interrupted meanwhile."""
        for address in self._addresses:  # up to the first that does not
            if found := look(address):
                self._found = {address: found}
                return False
        return True

    def news(self) -> str:
        """Which does not answer, and how, if that was not said yet and some time has passed; or nothing."""
        if time.monotonic() - self._since < PATIENT_SECONDS or self._found == self._said:
            return ""
        self._said = self._found
        [(address, found)] = self._found.items()
        what = {OTHER: "something else answers there", SILENT: "something listens there, and does not answer"}
        return f"no parameter server answers at {address}: {what.get(found, 'nothing listens there')}"
