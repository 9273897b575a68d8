"""What a training will need of memory and disk, known before its first step."""

import shutil
from pathlib import Path
from typing import NamedTuple

import psutil

from twin_graph.config import Settings
from twin_graph.envs import VectorEnv
from twin_graph.errors import TwinGraphError
from twin_graph.graph_mode import tf
from twin_graph.model import ModelSpec, build_model
from twin_graph.replay import Replay

# TensorFlow, three twins of the nature network with their activations, and the emulators.
PROCESS_BYTES = 1_300_000_000
_MANIFEST_AND_LEDGER_BYTES = 8_000
_METRICS_BYTES = 3_000  # a line of metrics.jsonl and its event


class Needs(NamedTuple):
    """In bytes: what a training will need, and what is free now."""

    replay: int
    memory: int
    memory_free: int
    disk: int
    disk_free: int


def measure(settings: Settings, env: VectorEnv, folder: Path) -> Needs:
    """The needs of a training of these settings in a run folder that may not exist yet.

    Raises:
      UsageError: the network does not fit the environment's observations.
    """
    spec = ModelSpec.of(settings, env.observation_shape, env.observation_dtype, env.n_actions)
    with tf.Graph().as_default():
        weights = sum(4 * variable.shape.num_elements() for variable in build_model(spec).trainables)
    train = settings.train
    updates = max(0, train.steps - train.start_steps) // train.every_steps
    snapshots = updates // settings.target.refresh_every_updates + 2
    replay = Replay.bytes_needed(
        settings.replay.capacity_steps, env.observation_shape, env.observation_dtype, env.stack
    )
    existing = next(parent for parent in [folder.absolute(), *folder.absolute().parents] if parent.exists())
    return Needs(
        replay=replay,
        memory=replay + PROCESS_BYTES,
        memory_free=_memory_free(),
        disk=snapshots * (weights + _MANIFEST_AND_LEDGER_BYTES)
        + train.steps // settings.log.every_steps * _METRICS_BYTES,
        disk_free=shutil.disk_usage(existing).free,
    )


def check(needed: Needs) -> None:
    """Raises `TwinGraphError` if memory or disk will not suffice."""
    if needed.memory > needed.memory_free:
        raise TwinGraphError(
            f"too little memory: this training needs about {gigabytes(needed.memory)} "
            f"({gigabytes(needed.replay)} of it for the replay) and {gigabytes(needed.memory_free)} are free; "
            "lower replay.capacity_steps"
        )
    if needed.disk > needed.disk_free:
        raise TwinGraphError(
            f"too little disk: this training will write about {gigabytes(needed.disk)} of snapshots and "
            f"{gigabytes(needed.disk_free)} are free; raise target.refresh_every_updates, or choose another --run-dir"
        )


def _memory_free() -> int:
    """What the machine has free, or this container's limit leaves (Linux control groups, version 2)."""
    free = int(psutil.virtual_memory().available)
    group = Path("/sys/fs/cgroup")
    try:
        limit = int((group / "memory.max").read_text())
        used = int((group / "memory.current").read_text())
    except (OSError, ValueError):  # no such group, or its limit is "max"
        return free
    return min(free, limit - used)


def gigabytes(size: int) -> str:
    """For people: `1.3 GB`."""
    return f"{size / 1e9:.1f} GB"
