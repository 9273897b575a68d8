"""How much memory and disk a run needs, known before its first step."""

import math
import shutil
from pathlib import Path
from typing import NamedTuple

import numpy as np

from twin_graph import cpu, mutual, targets
from twin_graph.checkpoint import SEGMENT_BYTES
from twin_graph.envs import VectorEnv
from twin_graph.errors import TwinGraphError
from twin_graph.graph_mode import tf
from twin_graph.model import ModelSpec, build_model
from twin_graph.replay import Replay
from twin_graph.settings import Settings
from twin_graph.snapshots.run import POINTS, SNAPSHOTS
from twin_graph.words import size

# TensorFlow, three twins of the nature network with their activations, and the emulators.
PROCESS_BYTES = 1_300_000_000
_TWIN_BYTES = 100_000_000  # one more member of an ensemble
_MANIFEST_AND_LEDGER_BYTES = 8_000
_METRICS_BYTES = 3_000  # a line of metrics.jsonl and its event
_VARIABLE_BYTES = 1_000  # of such an event, with log.variables
_EPISODE_STEPS = 10  # agent steps: where snapshots are committed by episodes, few are shorter on average


class Needs(NamedTuple):
    """What a run needs and what is free now, in bytes; `members` counts the target twins of each learner."""

    replay: int
    memory: int
    memory_free: int
    disk: int
    disk_free: int
    members: int

    def words(self) -> str:
        """For people."""
        return (
            f"needs: memory {size(self.memory)} of {size(self.memory_free)} free, "
            f"{size(self.replay)} of it for the replay; "
            f"disk {size(self.disk)} of {size(self.disk_free)} free"
            + (f"; {self.members} target twins, each evaluated at every update" if self.members > 1 else "")
        )


def measure(settings: Settings, env: VectorEnv, folder: Path, *, elsewhere: bool = False) -> Needs:
    """What a run with these settings needs: memory, and disk beyond what its folder has already if there is one.

    Args:
      settings: of the run.
      env: its environments.
      folder: of the run.
      elsewhere: workers and servers, and the replay with them, are on other machines.

    Raises:
      UsageError: the network does not fit the environment's observations.
    """
    policies = targets.roles(settings)
    twins = sum(max(1, policy.members) for policy in policies.values())
    spec = ModelSpec.of(settings, env.spec)
    with tf.Graph().as_default():
        model = build_model(spec)
    weights = sum(4 * variable.shape.num_elements() for variable in model.trainables)
    train, save = settings.train, settings.save
    learners = len(mutual.Turns(settings).learners)
    minibatches = max(0, train.steps - train.start_steps) // train.every_steps
    updates = minibatches * settings.updates_per_minibatch
    units = {"updates": updates, "steps": train.steps, "episodes": train.steps // _EPISODE_STEPS}
    snapshots = learners * (units[settings.save_schedule.unit] // settings.save_schedule.every + 2)
    kept = min(snapshots, learners * save.keep_last + (snapshots // save.keep_every if save.keep_every else 0))
    # Between two resume points nothing is removed, and those kept are there while the next is being written.
    points = min(settings.resume.keep or math.inf, train.steps // settings.resume.every_steps + 2)
    prepared = max(1, math.ceil(train.chunk_steps / train.every_steps)) * train.batch_size * train.accumulate
    children = settings.workers.count + settings.workers.servers if settings.workers.count and not elsewhere else 0
    observation = int(np.prod(env.spec.observation_shape)) * np.dtype(env.spec.observation_dtype).itemsize
    recent = int(points * settings.resume.every_steps * snapshots // train.steps)
    capacity = settings.replay.capacity_steps
    replay = 0
    if not elsewhere:
        replay = Replay.bytes_needed(capacity, env.spec.observation_shape, env.spec.observation_dtype, env.spec.stack)
    stored = replay * min(capacity, train.steps) // capacity
    between_points = replay * min(settings.resume.every_steps, train.steps) // capacity
    shown = len(model.trainables) + len(model.activations)
    logged = _METRICS_BYTES + (_VARIABLE_BYTES * shown if settings.log.variables else 0)
    files = (path for part in (SNAPSHOTS, POINTS) for path in (folder / part).rglob("*"))
    there = sum(path.stat().st_size for path in files if path.is_file())
    disk = (
        min(snapshots, kept + recent) * weights
        + snapshots * _MANIFEST_AND_LEDGER_BYTES
        + int(points + 1) * 3 * learners * weights
        # Older points may need what the newest no longer does, and segments go as a whole.
        + stored
        + int(min(replay * train.steps // capacity, (points - 1) * between_points + SEGMENT_BYTES))
        + between_points
        + train.steps // settings.log.every_steps * logged
    )
    existing = next(parent for parent in [folder.absolute(), *folder.absolute().parents] if parent.exists())
    return Needs(
        replay=replay,
        # Both observations of each transition, of the chunk that is trained and of the one that is prepared.
        memory=replay
        + (1 + children) * PROCESS_BYTES
        + (learners * (twins + 1) - 2) * _TWIN_BYTES
        + 2 * 2 * prepared * observation,
        memory_free=cpu.memory_free(),
        disk=max(0, disk - there),
        disk_free=shutil.disk_usage(existing).free,
        members=policies["target"].members,
    )


def check(needed: Needs) -> None:
    """Raises `TwinGraphError` if memory or disk will not suffice."""
    if needed.memory > needed.memory_free:
        raise TwinGraphError(
            f"too little memory: this run needs about {size(needed.memory)} "
            f"({size(needed.replay)} of it for the replay) and {size(needed.memory_free)} are free; "
            "lower replay.capacity_steps"
        )
    if needed.disk > needed.disk_free:
        raise TwinGraphError(
            f"too little disk: this run needs about {size(needed.disk)} for snapshots and resume points and "
            f"{size(needed.disk_free)} are free; lower save.keep_last, or choose another --run-dir"
        )
