"""A twin: one graph, its session and its Saver. Weights pass between twins through Saver files and no other way."""

from __future__ import annotations

import errno
import hashlib
import math
import os
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import numpy as np

from twin_graph.base import machine
from twin_graph.errors import DamagedError, TwinMismatchError
from twin_graph.snapshots.files import check_no_pattern
from twin_graph.snapshots.store import SnapshotStore, Variable
from twin_graph.twin import checkpoints, heads
from twin_graph.twin.callables import SessionCalls
from twin_graph.twin.model import Model, ModelSpec, build_model
from twin_graph.twin.tf import tf

if TYPE_CHECKING:
    from twin_graph.snapshots.ledger import Commit


#: Returns and their probabilities, float32 `[B, A, N]` each.
Distribution = tuple[np.ndarray, np.ndarray]


class Built(NamedTuple):
    """A finalized graph and what runs in it; of sessions, which hold all values, nothing stays here.

    Attributes:
      graph: of `model`.
      model: what it computes.
      variables: all of them, the optimizer's too.
      recorded: those that a snapshot holds.
      saver, saver_of_all: for those that a snapshot holds, and for all.
      setters: see `setters`.
      initialize, initialize_optimizer: set all variables, or those that are not trainable, to their initial values.
    """

    graph: Any
    model: Model
    variables: list[Any]
    recorded: tuple[Variable, ...]
    saver: Any
    saver_of_all: Any
    setters: dict[str, tuple[Any, Any]]
    initialize: Any
    initialize_optimizer: Any


def built(spec: ModelSpec, seed: int, dtype: Any, *, learns: bool, block: int) -> Built:
    """The graph of a twin; see `Twin` and `build_model`."""
    with tf.Graph().as_default() as graph:
        tf.set_random_seed(seed)
        model = build_model(spec, dtype, learns=learns, block=block)
        variables = tf.global_variables()
        trainable = {v.op.name for v in model.trainables}
        # A Saver is built once: one built at each save would grow the graph, and with it every later save.
        saver = tf.train.Saver(model.trainables, max_to_keep=0)
        found = Built(
            graph,
            model,
            variables,
            tuple(Variable.of(v) for v in variables if v.op.name in trainable),
            saver,
            tf.train.Saver(variables, max_to_keep=0) if learns else saver,
            setters({v.op.name: v for v in variables}),
            tf.global_variables_initializer(),
            tf.variables_initializer([v for v in variables if v.op.name not in trainable]),
        )
    graph.finalize()
    return found


class Compute(NamedTuple):
    """What computes a twin.

    Attributes:
      threads: of its session's ops; 0 is one for each core. With 1, ops run one after another in the calling thread.
      at_once: how many concurrent ops share the threads, 1 or 2.
      precision: `bf16` for products in bfloat16; anything else is float32.
      gpu_memory_fraction: share of each GPU's memory for this process (only its first twin's counts); None: as much as
        it needs.
    """

    threads: int = 0
    at_once: int = 1
    precision: str = "fp32"
    gpu_memory_fraction: float | None = None


_DEFAULT = Compute()


class Twin:
    """Owns a finalized graph built by `build_model()`, its session and its Saver; `close()` or `with` ends the session.

    Args:
      name: used in messages, e.g. `online`.
      spec: what to build.
      seed: of the initial weights. Equal seeds give equal weights.
      compute: what its session may use.
      learns, block: see `build_model`.
      like: a twin with which this one must be able to exchange snapshots.

    Attributes:
      variables: those that a snapshot holds.
      snapshot_id: id of the last snapshot restored; empty before the first and after a failed restore.

    Raises:
      TwinMismatchError: these are not those of `like`; the message names those that differ.
    """

    def __init__(
        self,
        name: str,
        spec: ModelSpec,
        *,
        seed: int = 0,
        compute: Compute = _DEFAULT,
        learns: bool = True,
        block: int = 0,
        like: Twin | None = None,
    ) -> None:
        self.name = name
        self.spec = spec
        self.snapshot_id = ""
        dtype = tf.bfloat16 if compute.precision == "bf16" else tf.float32
        self._built = built(spec, seed, dtype, learns=learns, block=block)
        self.graph, self.model, self.variables = self._built.graph, self._built.model, self._built.recorded
        if like is not None:
            check_same_variables(like, self)
        config = session_config(compute)
        self.session = tf.Session(graph=self.graph, config=config)
        self._calls = SessionCalls(self.session, f"twin {name!r}")
        self._in_order, self._forward_in_order = compute.threads == 1, config.intra_op_parallelism_threads == 1
        self.session.run(self._built.initialize)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Ends the session and frees its variables. Safe to call twice."""
        self._calls.close()

    def run(self, fetches: Any, feed: Mapping[Any, Any] | None = None) -> Any:
        """Runs something of this twin's graph in its session; see `SessionCalls.run`."""
        return self._calls.run(fetches, feed, in_this_thread=self._in_order)

    def q_values(
        self, observations: np.ndarray, *, frozen: bool = False, noise_key: np.ndarray | None = None
    ) -> np.ndarray:
        """Q values, float32 `[B, A]`, of observations `[B, *observation_shape]`.

        Args:
          observations: as said.
          frozen: by the weights of the last `freeze()`, also while another thread trains this twin.
          noise_key: of the noise of `model.noisy`, int32 `[2]`; by default there is none.
        """
        # `s_tm1` is only the model's name for its input: a target is fed `s_t`.
        q = self.model.q_acting if frozen else self.model.q_tm1
        return self._forward(q, observations, noise_key)

    def supplied(self, observations: np.ndarray, noise_key: np.ndarray | None = None) -> np.ndarray:
        """What it supplies as a target: `q_values`, or with a distribution probabilities or quantiles, `[B, A, N]`."""
        return self._forward(self.model.supplied_tm1, observations, noise_key)

    def _forward(self, fetched: Any, observations: np.ndarray, noise_key: np.ndarray | None) -> np.ndarray:
        feed = {self.model.s_tm1: observations}
        if noise_key is not None:
            feed[self.model.noise_key] = noise_key
        # A forward pass is a chain of ops: if each has one thread, it may as well be this one.
        values: np.ndarray = self._calls.run(fetched, feed, in_this_thread=self._forward_in_order)
        return values

    @property
    def has_distributions(self) -> bool:
        """Whether it expects a distribution of each action, and not a value alone."""
        return self.model.supplied_tm1 is not self.model.q_tm1

    def distribution(self, observations: np.ndarray) -> Distribution:
        """What it expects of each action, as a distribution.

        Returns:
          Returns, and their probabilities, float32 `[B, A, N]` each; N is 1 of a single value.
        """
        supplied, head = self.supplied(observations), heads.of(self.spec.model)
        if isinstance(head, heads.Categorical):
            return np.broadcast_to(head.returns, supplied.shape), supplied
        values = supplied.reshape(*supplied.shape[:2], -1)
        return values, np.full(values.shape, 1 / values.shape[-1], np.float32)

    def activations(self, observations: np.ndarray) -> dict[str, np.ndarray]:
        """Outputs of `layers.relu` in the hidden layers, `[B, ...]`, by layer name."""
        if not self.model.activations:
            return {}
        parts: dict[str, list[np.ndarray]] = {}
        values = self.run(list(self.model.activations), {self.model.s_tm1: observations})
        for tensor, value in zip(self.model.activations, values, strict=True):
            parts.setdefault(tensor.op.name.partition("/")[0], []).append(value)
        return {name: np.concatenate(values) for name, values in parts.items()}

    def freeze(self) -> None:
        """Keeps a copy of the present weights for `q_values(..., frozen=True)`."""
        self.run(self.model.freeze)

    def save(self, prefix: Path, *, optimizer: bool = False, meta_graph: bool = False) -> None:
        """Writes `prefix.index` and `prefix.data-00000-of-00001`, not fsynced.

        Args:
          prefix: of the files.
          optimizer: save all variables, including the optimizer's, not only the trainable ones.
          meta_graph: also write `prefix.meta`, from which the graph can be rebuilt without this package.

        Raises:
          OSError: the disk is full or cannot be written.
        """
        saver = self._built.saver_of_all if optimizer else self._built.saver
        try:
            # The meta graph doubles the time; TensorFlow's `checkpoint` file is not crash-safe.
            with self.graph.as_default():
                saver.save(self.session, str(prefix), write_meta_graph=meta_graph, write_state=False)
        except tf.errors.ResourceExhaustedError:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(prefix)) from None
        except (tf.errors.OpError, ValueError) as error:
            raise OSError(errno.EIO, "TensorFlow cannot write the weights", str(prefix)) from error

    def restore(self, prefix: Path, *, optimizer: bool = False) -> None:
        """Loads what `save()` of a twin wrote under `prefix`, with the same `optimizer`.

        Raises:
          DamagedError: the files are missing, damaged, or hold other variables.
          UsageError: TensorFlow cannot read files at this kind of path.
        """
        check_no_pattern(prefix, "rename the folder")
        checkpoints.check(prefix)
        saver = self._built.saver_of_all if optimizer else self._built.saver
        variables = self._built.variables if optimizer else self.model.trainables
        try:
            # A resource variable accepts any shape: without this check, another network's weights of the same names
            # would load silently.
            shapes = {v.op.name: v.shape.as_list() for v in variables}
            if tf.train.NewCheckpointReader(str(prefix)).get_variable_to_shape_map() != shapes:
                raise ValueError("other variables")
            with self.graph.as_default():
                saver.restore(self.session, str(prefix))
        except (tf.errors.OpError, ValueError, RuntimeError, IndexError) as error:  # the last where data is cut short
            raise DamagedError(f"{prefix} cannot be restored: not this network's weights, or damaged") from error

    def restore_snapshot(self, snapshot: Commit, store: SnapshotStore) -> None:
        """Loads a snapshot and verifies that its weights are those that were committed.

        Intact files may still belong to another snapshot. So the weights are hashed, which takes 6 ms for 1.7 million.

        Raises:
          UsageError: retention has removed the weights.
          DamagedError: the files are missing or damaged, or hold other weights.
        """
        prefix = store.prefix(snapshot.id)
        self.snapshot_id = ""
        self.restore(prefix)
        if self.weights_sha256() != snapshot.weights_sha256:
            raise DamagedError(
                f"{store.folder / snapshot.id} holds other weights than those committed; "
                "`twin-graph verify` checks the other snapshots"
            )
        self.snapshot_id = snapshot.id

    def reset_optimizer(self) -> None:
        """Sets all variables that are not trainable to their initial values."""
        self.session.run(self._built.initialize_optimizer)

    def load(self, weights: Mapping[str, np.ndarray]) -> None:
        """Sets the trainable variables to values by name."""
        self.load_all({variable.op.name: weights[variable.op.name] for variable in self.model.trainables})

    def load_all(self, values: Mapping[str, np.ndarray]) -> None:
        """Sets all variables that `values` names, the optimizer's too."""
        self.run(*to_set(self._built.setters, values))

    def all_variables(self) -> dict[str, np.ndarray]:
        """The values of all variables by name, the optimizer's too."""
        names = [variable.op.name for variable in self._built.variables]
        return dict(zip(names, self.run(list(self._built.variables)), strict=True))

    def weights(self) -> dict[str, np.ndarray]:
        """The trainable variables' values by name, in the order of names."""
        names = [variable.op.name for variable in self.model.trainables]
        return dict(zip(names, self.run(list(self.model.trainables)), strict=True))

    def weights_sha256(self) -> str:
        """The hash that names these weights: see `weights_sha256`."""
        return weights_sha256(self.weights())


def setters(variables: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """For each variable, by its name, the op that sets it and the tensor to feed its value to."""
    return {name: (variable.initializer, variable.initializer.inputs[1]) for name, variable in variables.items()}


def to_set(setters: Mapping[str, tuple[Any, Any]], values: Mapping[str, Any]) -> tuple[list[Any], dict[Any, Any]]:
    """What to run and what to feed to set the variables that `values` names."""
    return [setters[name][0] for name in values], {setters[name][1]: value for name, value in values.items()}


def check_same_variables(first: Twin, second: Twin) -> None:
    """Raises `TwinMismatchError` unless both hold variables of the same names, shapes and types."""
    differences = []
    ours, theirs = ({v.name: v for v in twin.variables} for twin in (first, second))
    for name in sorted(ours.keys() | theirs.keys()):
        a, b = ours.get(name), theirs.get(name)
        if a is None or b is None:
            differences.append(f"{name} only in {(first if b is None else second).name!r}")
        elif a != b:
            differences.append(
                f"{name} is {a.dtype}{list(a.shape)} in {first.name!r} and {b.dtype}{list(b.shape)} in {second.name!r}"
            )
    if differences:
        raise TwinMismatchError(f"{first.name!r} and {second.name!r} are not twins: " + "; ".join(differences))


def weights_sha256(weights: Mapping[str, np.ndarray]) -> str:
    """sha256 over the weights sorted by name: name, type, shape and little-endian C-order bytes, length-prefixed."""
    digest = hashlib.sha256()
    for name in sorted(weights):
        value = weights[name]
        little_endian = np.ascontiguousarray(value, dtype=value.dtype.newbyteorder("<"))
        for part in (name.encode(), value.dtype.name.encode(), repr(value.shape).encode(), little_endian.data):
            digest.update(memoryview(part).nbytes.to_bytes(8, "little"))
            digest.update(part)
    return digest.hexdigest()


def session_config(compute: Compute) -> Any:
    """The configuration of a twin's session."""
    gpu = tf.GPUOptions(allow_growth=compute.gpu_memory_fraction is None)
    if compute.gpu_memory_fraction is not None:
        gpu.per_process_gpu_memory_fraction = compute.gpu_memory_fraction
    config = tf.ConfigProto(
        intra_op_parallelism_threads=math.ceil((compute.threads or machine.describe().cores) / compute.at_once),
        # One thread for `train_op`, one for `q_acting`; or one each for gradients that do not depend on each other.
        inter_op_parallelism_threads=2,
        use_per_session_threads=True,
        gpu_options=gpu,
    )
    config.experimental.disable_thread_spinning = True  # the other twin has work for the core
    return config
