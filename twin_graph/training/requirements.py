"""How much memory and disk a run needs, known before its first step."""

from __future__ import annotations

import math
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from twin_graph import targets
from twin_graph.agent.replay_log import SEGMENT_BYTES
from twin_graph.base import machine
from twin_graph.base.text import size
from twin_graph.config import turns
from twin_graph.errors import TwinGraphError
from twin_graph.replay.ring import Replay
from twin_graph.snapshots.run import POINTS, SNAPSHOTS
from twin_graph.twin import heads
from twin_graph.twin.model import Model, ModelSpec, build_model
from twin_graph.twin.tf import tf

if TYPE_CHECKING:
    from twin_graph.config.settings import Settings
    from twin_graph.envs import VectorEnv

# TensorFlow, three twins of the nature network with their activations, and the emulators.
PROCESS_BYTES = 1_300_000_000
_TWIN_BYTES = 30_000_000  # one more member of an ensemble; 10 MB were measured of the nature network
_MANIFEST_AND_LEDGER_BYTES = 8_000
_METRICS_BYTES = 3_000  # a line of metrics.jsonl and its event
_VARIABLE_BYTES = 1_000  # of such an event, with log.variables
_FEWER_POINTS = "set resume.keep=2"  # where all are kept, and with them all that was committed since the first
_EPISODE_STEPS = 10  # agent steps: where snapshots are committed by episodes, few are shorter on average


class Need(NamedTuple):
    """Bytes for one purpose, and how to need fewer, for people; `in_new` if only a new run can do that."""

    purpose: str
    bytes: int
    remedy: str
    in_new: bool = False

    def words(self) -> str:
        """For people, to follow the total."""
        return f"{size(self.bytes)} of it for {self.purpose}"


class Needs(NamedTuple):
    """What a run needs and what is free now, in bytes; `members` counts the target twins of each learner.

    Attributes:
      in_memory, on_disk: by purpose; on disk including what is there already.
      there: how much of that is on disk already.
    """

    in_memory: Sequence[Need]
    memory_free: int
    on_disk: Sequence[Need]
    there: int
    disk_free: int
    members: int

    @property
    def memory(self) -> int:
        return sum(need.bytes for need in self.in_memory)

    @property
    def disk(self) -> int:
        return max(0, sum(need.bytes for need in self.on_disk) - self.there)

    def words(self) -> str:
        """For people."""
        return (
            f"needs: memory {size(self.memory)} of {size(self.memory_free)} free, {_largest(self.in_memory).words()}; "
            f"disk {size(self.disk)} of {size(self.disk_free)} free"
            + (f"; {self.members} target twins, each evaluated at every update" if self.members > 1 else "")
        )


def _largest(needs: Sequence[Need]) -> Need:
    return max(needs, key=lambda need: need.bytes)


def measure(settings: Settings, env: VectorEnv, folder: Path, *, elsewhere: bool = False) -> Needs:
    """What a run with these settings needs.

    Args:
      settings: of the run.
      env: its environments.
      folder: of the run; what it has already counts.
      elsewhere: workers and servers, and the replay with them, are on other machines.

    Raises:
      UsageError: the network does not fit the environment's observations.
    """
    spec = ModelSpec.of(settings, env.spec)
    with tf.Graph().as_default():
        model = build_model(spec, learns=False)
    shape, dtype = env.spec.observation_shape, env.spec.observation_dtype
    capacity = 0 if elsewhere else settings.replay.capacity_steps
    replay = Replay.bytes_needed(capacity, shape, dtype, env.spec.stack) if capacity else 0
    workers = settings.workers
    processes = 1 + (workers.count + workers.servers if workers.count and not elsewhere else 0)
    files = (path for part in (SNAPSHOTS, POINTS) for path in (folder / part).rglob("*"))
    existing = next(parent for parent in [folder.absolute(), *folder.absolute().parents] if parent.exists())
    return Needs(
        in_memory=list(_in_memory(settings, env, model, replay, processes)),
        memory_free=machine.memory_free(),
        on_disk=list(_on_disk(settings, model, replay)),
        there=sum(path.stat().st_size for path in files if path.is_file()),
        disk_free=shutil.disk_usage(existing).free,
        members=targets.roles(settings)["target"].members,
    )


def _weights(model: Model) -> int:
    return sum(4 * variable.shape.num_elements() for variable in model.trainables)


def _in_memory(settings: Settings, env: VectorEnv, model: Model, replay: int, processes: int) -> Iterator[Need]:
    """What all processes on this machine need."""
    train, shape = settings.train, env.spec.observation_shape
    learners = len(turns.Turns(settings).learners)
    twins = learners * (1 + sum(max(1, policy.members) for policy in targets.roles(settings).values()))
    yield Need("the replay", replay, "lower replay.capacity_steps", in_new=True)
    trainers = settings.workers.count if processes > 1 else 1
    yield Need(
        "TensorFlow" if processes == 1 else f"TensorFlow in {processes} processes",
        processes * PROCESS_BYTES,
        "close other programs" if processes == 1 else "lower workers.count",
    )
    yield Need("more targets", (twins - 2) * _TWIN_BYTES, "choose policies with fewer snapshots")
    # A twin has its weights, the evaluating one too. One that learns also has Adam's two moments, a frozen copy,
    # gradients, and for a moment what of these a resume point saves.
    copies = twins + bool(settings.evaluate.episodes) + 5 * learners
    yield Need("the network", processes * copies * _weights(model), "choose a smaller network", in_new=True)
    # Both observations of every transition in the chunk being trained and in the one being prepared. For one minibatch
    # also the activations with their gradients, and the observations as floats.
    prepared = max(1, math.ceil(train.chunk_steps / train.every_steps)) * train.examples
    observation = int(np.prod(shape)) * np.dtype(env.spec.observation_dtype).itemsize
    # By layer: some work on a minibatch in parts.
    activations = {tensor.op.name.partition("/")[0]: tensor.shape[1:].num_elements() for tensor in model.activations}
    head = heads.of(settings.model)
    rows = train.batch_size * (head.samples.learning if head.samples else 1)  # of most layers
    minibatch = 4 * (rows * 2 * sum(activations.values()) + train.batch_size * int(np.prod(shape)))
    yield Need("minibatches", trainers * (2 * 2 * prepared * observation + minibatch), "lower train.batch_size")


def _on_disk(settings: Settings, model: Model, replay: int) -> Iterator[Need]:
    """What the run's folder needs at most."""
    train, save, resume, weights = settings.train, settings.save, settings.resume, _weights(model)
    learners = len(turns.Turns(settings).learners)
    units = {"updates": settings.total_updates, "steps": train.steps, "episodes": train.steps // _EPISODE_STEPS}
    snapshots = learners * (units[settings.save_schedule.unit] // settings.save_schedule.every + 2)
    kept = min(snapshots, learners * save.keep_last + (snapshots // save.keep_every if save.keep_every else 0))
    # Between two resume points nothing is removed, and those kept are there while the next is being written.
    points = min(resume.keep or math.inf, train.steps // resume.every_steps + 2)
    recent = int(points * resume.every_steps * snapshots // train.steps)
    fewer = "lower save.keep_last" + (", or set save.keep_every=0" if save.keep_every else "")
    yield Need("snapshots", min(snapshots, kept + recent) * weights, fewer if resume.keep else _FEWER_POINTS)
    fewer = "lower resume.keep" if resume.keep else _FEWER_POINTS
    yield Need("resume points", int(points + 1) * 3 * learners * weights, fewer)
    capacity = settings.replay.capacity_steps
    stored, between_points = (replay * min(steps, train.steps) // capacity for steps in (capacity, resume.every_steps))
    # Older points may need what the newest no longer does, and segments go as a whole.
    older = int(min(replay * train.steps // capacity, (points - 1) * between_points + SEGMENT_BYTES))
    fewer = "lower replay.capacity_steps" if resume.keep else _FEWER_POINTS
    yield Need("the replay at resume points", stored + older + between_points, fewer, in_new=bool(resume.keep))
    records = snapshots * _MANIFEST_AND_LEDGER_BYTES
    yield Need("records of snapshots", records, "commit less often (save.every_updates)")
    shown = len(model.trainables) + len(model.activations)
    line = _METRICS_BYTES + (_VARIABLE_BYTES * shown if settings.log.variables else 0)
    yield Need("what is logged", train.steps // settings.log.every_steps * line, "raise log.every_steps")


def check_enough(needed: Needs, *, begun: bool = False) -> None:
    """Raises `TwinGraphError` if there is not enough memory or disk.

    The message says what needs most, and what helps; where the run has `begun`, only what can still be done.
    """
    if needed.memory > needed.memory_free:
        remedies = _remedies(needed.in_memory, needed.memory - needed.memory_free, begun=begun)
        raise TwinGraphError(
            f"not enough memory: this run needs about {size(needed.memory)}, {_largest(needed.in_memory).words()}, and "
            f"{size(needed.memory_free)} are free; {remedies}"
        )
    if needed.disk > needed.disk_free:
        remedies = _remedies(needed.on_disk, needed.disk - needed.disk_free, begun=begun)
        room = "make room" if begun else "choose another folder for the run"
        raise TwinGraphError(
            f"not enough disk space: this run needs about {size(needed.disk)}, {_largest(needed.on_disk).words()}, and "
            f"{size(needed.disk_free)} are free; {remedies}, or {room}"
        )


def _remedies(needs: Sequence[Need], missing: int, *, begun: bool) -> str:
    """The remedies that may suffice alone, the most effective first; if none does, the most effective."""
    by_size = sorted((need for need in needs if not (begun and need.in_new)), key=lambda need: -need.bytes)
    enough = [need.remedy for need in by_size if need.bytes > missing] or [by_size[0].remedy]
    return ", or ".join(dict.fromkeys(enough))
