"""What lies on the parameter servers, and the sessions of those who use it."""

import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any, NamedTuple, Self

import numpy as np

from twin_graph.calls import Calls
from twin_graph.distributed.cluster import Cluster
from twin_graph.distributed.loopback import accept_loopback_only
from twin_graph.errors import TwinGraphError
from twin_graph.graph_mode import tf
from twin_graph.model import ModelSpec, build_model
from twin_graph.twin import Variable

_COUNTERS = ("vector_steps", "updates", "episodes", "stop", "attempt")
_NO_LIMIT = 2**62
_TOKENS = 100_000  # never so many
CHIEF = -1
_ANSWER_MILLISECONDS = 10_000
_START_SECONDS = 600.0  # as long as workers wait for the chief
_TRY_SECONDS = 0.2


class Counts(NamedTuple):
    """Of all workers together.

    Attributes:
      vector_steps: of E agent steps each.
      updates: applied to the shared variables.
      episodes: that ended.
    """

    vector_steps: int
    updates: int
    episodes: int


def session_config(*devices: str, gpu_memory_fraction: float | None = None, threads: int = 0) -> Any:
    """For a Server and its sessions; a session in a cluster has its GPU options from the Server alone.

    Args:
      devices: the only jobs that it speaks with: so another worker may die and come back without its noticing.
      gpu_memory_fraction: of each GPU, for this process; None for as much as it needs.
      threads: inside one op; 0 for as many as there are cores.
    """
    gpu = tf.GPUOptions(allow_growth=gpu_memory_fraction is None)
    if gpu_memory_fraction is not None:
        gpu.per_process_gpu_memory_fraction = gpu_memory_fraction
    return tf.ConfigProto(device_filters=devices, gpu_options=gpu, intra_op_parallelism_threads=threads)


def start_server(cluster: Cluster, job: str, index: int, config: Any) -> Any:
    """A `tf.train.Server`; on a loopback address it hears this machine alone.

    Raises:
      TwinGraphError: its port is taken, most likely.
    """
    address = getattr(cluster, job)[index]
    jobs = tf.train.ClusterSpec({"ps": list(cluster.ps), "worker": list(cluster.worker)})
    try:
        server = tf.train.Server(jobs, job_name=job, task_index=index, config=config)
    except tf.errors.OpError as error:
        raise TwinGraphError(
            f"{job}:{index} cannot listen on {address}: {error.message}. Does another training use the port?"
        ) from None
    if address not in cluster.beyond_this_machine:
        accept_loopback_only(int(address.rpartition(":")[2]))
    return server


def shared_variables(spec: ModelSpec) -> list[Variable]:
    """What lies on the servers, of a model: trainables and the optimizer's, not what gradients are summed up in."""
    with tf.Graph().as_default():
        build_model(spec, copy=True)
        return [
            Variable(v.op.name, tuple(v.shape.as_list()), v.dtype.base_dtype.name)
            for v in sorted(tf.global_variables(), key=lambda variable: str(variable.op.name))
        ]


def placement(variables: Sequence[Variable], servers: int) -> dict[str, str]:
    """Devices by name: the largest first, each to the server with the least; slots lie by their variable."""
    names = {variable.name for variable in variables}
    groups: dict[str, list[Variable]] = {}
    for variable in variables:
        owner = next((n for n in names if variable.name.startswith(f"{n}/")), variable.name)
        groups.setdefault(owner, []).append(variable)
    sizes = {owner: sum(int(np.prod(v.shape)) for v in group) for owner, group in groups.items()}
    load = [0] * servers
    devices = {}
    for owner in sorted(groups, key=lambda name: (-sizes[name], name)):
        server = load.index(min(load))
        load[server] += sizes[owner]
        devices.update({v.name: f"/job:ps/task:{server}" for v in groups[owner]})
    return devices


def _counters() -> dict[str, Any]:
    with tf.device("/job:ps/task:0"), tf.variable_scope("counters"):
        return {
            name: tf.get_variable(
                name,
                [],
                tf.int64,
                initializer=tf.zeros_initializer(),
                trainable=False,
                use_resource=True,
                collections=[],
            )
            for name in _COUNTERS
        }


def _count_up(counter: Any, limit: int) -> Any:
    """Adds one, indivisibly, and gives the number before, to everyone another. OutOfRangeError at `limit`."""
    with tf.device("/job:ps/task:0"):
        return tf.raw_ops.ResourceCountUpTo(resource=counter.handle, limit=limit, T=tf.int64)


def done_queue(server: int) -> Any:
    """A queue on a server for the numbers of those who are done with it: the workers', and `CHIEF`."""
    with tf.device(f"/job:ps/task:{server}"):
        return tf.FIFOQueue(_TOKENS, tf.int32, shapes=[[]], shared_name=f"done{server}")


class ChiefSession:
    """What the chief does with the shared variables, as a client of the first parameter server; closed by `close()`.

    Args:
      cluster: whose.
      variables: those on the servers.
    """

    def __init__(self, cluster: Cluster, variables: Sequence[Variable]) -> None:
        self._graph = tf.Graph()
        self._servers = cluster.ps
        devices = placement(variables, len(cluster.ps))
        with self._graph.as_default():
            self._shared = {}
            for v in variables:
                with tf.device(devices[v.name]):
                    self._shared[v.name] = tf.get_variable(
                        v.name, v.shape, v.dtype, initializer=tf.zeros_initializer(), use_resource=True
                    )
            self._counters = _counters()
            self._token = tf.placeholder(tf.int32, [])
            self._put_token = tf.group(*(done_queue(i).enqueue(self._token) for i in range(len(cluster.ps))))
        config = session_config("/job:ps")
        config.operation_timeout_in_ms = _ANSWER_MILLISECONDS
        self._session = tf.Session(f"grpc://{cluster.ps[0]}", graph=self._graph, config=config)

    def close(self) -> None:
        with contextlib.suppress(tf.errors.OpError):  # the servers may be gone
            self._session.close()

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
          TwinGraphError: no server answers.
        """
        deadline = time.monotonic() + _START_SECONDS
        while True:
            between()
            try:
                self._begin(values, counts, attempt)
                return
            except (tf.errors.UnavailableError, tf.errors.DeadlineExceededError):
                if time.monotonic() > deadline:
                    raise TwinGraphError(f"no parameter server answers at {', '.join(self._servers)}") from None
                time.sleep(_TRY_SECONDS)

    def _begin(self, values: Mapping[str, np.ndarray], counts: Counts, attempt: int) -> None:
        self._session.run([self._counters[name].initializer for name in _COUNTERS])
        self.push(values)
        for name, value in counts._asdict().items():
            self._counters[name].load(value, self._session)
        self._counters["attempt"].load(attempt, self._session)

    def push(self, values: Mapping[str, np.ndarray]) -> None:
        """Sets the shared variables."""
        fed = {variable.initializer.inputs[1]: values[name] for name, variable in self._shared.items()}
        self._session.run([variable.initializer for variable in self._shared.values()], fed)

    def pull(self) -> dict[str, np.ndarray]:
        """The shared variables; updates that come in meanwhile are in some and not in others."""
        values: dict[str, np.ndarray] = self._session.run(self._shared)
        return values

    def counts(self) -> Counts:
        values = self._session.run({name: self._counters[name] for name in Counts._fields})
        return Counts(**{name: int(value) for name, value in values.items()})

    def ask_to_stop(self) -> None:
        """Workers end at their next vector step."""
        self._counters["stop"].load(1, self._session)

    def put_tokens(self, who: Sequence[int]) -> None:
        """Says to every server that these will not use it any more."""
        for token in who:
            self._session.run(self._put_token, {self._token: token})


class Applied(NamedTuple):
    """An update: its number in the run, from 0; how many came between the pull and it; its loss and so on."""

    update: int
    staleness: int
    loss: float
    q_mean: float
    td_error: np.ndarray


class WorkerSession:
    """A worker's graph: the shared variables on the servers, a copy and its gradients here. Closed by `with`.

    Args:
      cluster: whose.
      index: which worker.
      spec: of the model.
      vector_steps: of all workers together, at which the training ends.
      config: of the server, and of its session.

    Attributes:
      calls: run things in its session.
      version: updates that the copy is made of, of all workers.
    """

    def __init__(self, cluster: Cluster, index: int, spec: ModelSpec, vector_steps: int, config: Any) -> None:
        server = start_server(cluster, "worker", index, config)
        devices = placement(shared_variables(spec), len(cluster.ps))
        here = f"/job:worker/task:{index}"
        graph = tf.Graph()
        with graph.as_default(), tf.device(lambda op: op.device or devices.get(op.name, here)):
            self.model = build_model(spec, copy=True)
            counters = _counters()
            self._is_begun = tf.is_variable_initialized(counters["attempt"])
            self._attempt = counters["attempt"].read_value()
            self._version = counters["updates"].read_value()
            self._stop = counters["stop"].read_value()
            self._step = _count_up(counters["vector_steps"], vector_steps)
            with tf.control_dependencies([self.model.train_op]):
                self._update = _count_up(counters["updates"], _NO_LIMIT)
            self._ended = tf.placeholder(tf.int64, [])
            self._count_episodes = counters["episodes"].assign_add(self._ended, read_value=False)
            self._done = tf.group(*(done_queue(i).enqueue(index) for i in range(len(cluster.ps))))
            initialize = tf.local_variables_initializer()
        graph.finalize()
        self.calls = Calls(tf.Session(server.target, graph=graph, config=config), f"worker {index}")
        self._initialize = initialize
        self._own_attempt = 0
        self.version = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.calls.close()

    def wait_for_chief(self, seconds: float) -> int:
        """The run's attempt, when the chief has set the shared variables; in whatever order processes were started."""
        deadline = time.monotonic() + seconds
        while not (self.calls.run(self._is_begun) and self.calls.run(self._attempt)):
            if time.monotonic() > deadline:
                raise TwinGraphError(f"no chief in {seconds:.0f} s: has it been started?")
            time.sleep(0.1)
        self.calls.run(self._initialize)
        self.pull()
        self._own_attempt = int(self.calls.run(self._attempt))
        return self._own_attempt

    def pull(self) -> None:
        """Renews the copy."""
        self.version = int(self.calls.run((self._version, self.model.pull))[0])

    def claim_step(self) -> int | None:
        """The number of a vector step that nobody else makes; None if all are made, or the chief wants an end.

        Raises:
          TwinGraphError: there is another chief, who began from a resume point.
        """
        try:
            stop, attempt = self.calls.run((self._stop, self._attempt))
            if attempt != self._own_attempt:
                raise TwinGraphError("the training was resumed without this task; start it again")
            if stop:
                return None
            return int(self.calls.run(self._step))
        except tf.errors.OutOfRangeError:
            return None

    def count_episodes(self, ended: int) -> None:
        self.calls.run(self._count_episodes, {self._ended: ended})

    def q_values(self, observations: np.ndarray) -> np.ndarray:
        """The copy's Q values, float32 `[B, A]`."""
        q: np.ndarray = self.calls.run(self.model.q_tm1, {self.model.s_tm1: observations})
        return q

    def apply(self, minibatches: Sequence[Mapping[Any, np.ndarray]], fed: Mapping[Any, Any]) -> Applied:
        """Adds up the minibatches' gradients here, and applies their sum to the shared variables."""
        model = self.model
        td_errors = []
        for minibatch in minibatches[:-1]:
            td_errors.append(self.calls.run((model.td_error, model.accumulate_op), {**minibatch, **fed})[0])
        fetches = (self._update, model.loss, model.q_mean, model.td_error)
        update, loss, q_mean, td_error = self.calls.run(fetches, {**minibatches[-1], **fed})
        td_errors.append(td_error)
        return Applied(int(update), int(update) - self.version, float(loss), float(q_mean), np.concatenate(td_errors))

    def say_done(self) -> None:
        """Puts this worker's token into every server's queue."""
        with contextlib.suppress(tf.errors.OpError):  # a server that is gone needs none
            self.calls.run(self._done)
