"""What this machine can do, and what a run needs on it."""

import itertools
import math
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple

import psutil

from twin_graph import config, envs
from twin_graph.base import doing, machine
from twin_graph.base.text import size
from twin_graph.snapshots.run import RUNS, VERSIONED, create
from twin_graph.training import requirements, trainer, tuning
from twin_graph.twin.model import ModelSpec
from twin_graph.twin.tf import tf

_MEASURED_FROM, _MEASURED_STEPS = 500, 1_000  # agent steps
_SAID_STEPS = 100  # agent steps
_LOOKED_SECONDS = 1.0


class Finding(NamedTuple):
    """One thing that was examined; `advice` says what to do if it is not `ok`."""

    subject: str
    ok: bool
    found: str
    advice: str = ""


def examine() -> list[Finding]:
    """Looks at processor, memory, disk and packages, and trains Pong for `_MEASURED_STEPS` agent steps."""
    return list(_findings())


def _findings() -> Iterator[Finding]:
    doing.now("looking at the machine")
    processor = machine.describe()
    busy = psutil.cpu_percent(_LOOKED_SECONDS) / 100 * (psutil.cpu_count() or 1)
    yield Finding("processor", True, f"{processor.exactly()}, {processor.cores} cores")
    yield Finding(
        "GPU", True, ", ".join(d.name for d in tf.config.list_physical_devices("GPU")) or "none; the CPU computes"
    )
    yield Finding(
        "packages",
        True,
        ", ".join(f"{name} {version(name)}" for name in VERSIONED),
    )
    onednn = os.environ["TF_ENABLE_ONEDNN_OPTS"].lower() in ("1", "true")
    yield Finding("oneDNN", onednn, "on" if onednn else "off", "unset TF_ENABLE_ONEDNN_OPTS: about half the speed")

    settings = config.load("pong")
    env = envs.make(settings.env, count=settings.env.count)
    try:
        needed = requirements.measure(settings, env, RUNS)
        yield Finding(
            "memory",
            needed.memory <= needed.memory_free,
            f"{size(needed.memory_free)} free; pong needs {size(needed.memory)}",
            "close other programs, or lower replay.capacity_steps",
        )
        yield Finding(
            "disk",
            needed.disk <= needed.disk_free,
            f"{size(needed.disk_free)} free; pong needs {size(needed.disk)}",
            "make room, or choose another --run-dir",
        )
        spec = ModelSpec.of(settings, env.spec)
        settings, choices = tuning.fix(settings, spec)
        yield Finding("threads, precision", True, "; ".join(map(str, choices)) or "no choice: 1 thread, fp32")
        speed = rate(env, settings)
    finally:
        env.close()
    minutes = settings.train.steps / speed / 60
    beside = f"; {busy:.1f} cores had other work, and without it this is faster" if busy > 0.1 * processor.cores else ""
    yield Finding("speed", True, f"{speed:.0f} agent steps/s; pong takes about {minutes:.0f} minutes{beside}")


def rate(env: envs.VectorEnv, settings: config.Settings) -> float:
    """Agent steps per second once a run learns and its network chooses the actions, without evaluations."""
    fewest = max(_MEASURED_FROM, settings.fewest_start_steps)
    start = min(settings.train.start_steps, math.ceil(fewest / env.count) * env.count)
    measured = max(_MEASURED_STEPS, 4 * settings.train.chunk_steps, 4 * env.count)
    short = {
        "train.start_steps": start,
        "train.steps": start + measured,
        "act.epsilon_start": settings.act.epsilon_end,
        "evaluate.episodes": 0,
        "evaluate.video": False,
        "target.policy": "latest",
        "log.to": "tensorboard",
    }
    if (settings.opponent.policy or "").startswith("best"):
        short["opponent.policy"] = "latest"
    folder = Path(tempfile.mkdtemp(prefix="twin-graph-rate-"))
    try:
        run = create(folder / "run", config.replace(settings, short.items()), env.protocol)
        began, before = math.nan, 0
        said = itertools.count(0, _SAID_STEPS)
        due = next(said)
        for progress in trainer.train(run, env):
            if progress.agent_steps >= due:
                doing.now(
                    f"measuring the speed of training: {progress.agent_steps:,} of {start + measured:,} agent steps"
                )
                due = next(step for step in said if step > progress.agent_steps)
            if math.isnan(began) and progress.agent_steps >= start + measured // 4:
                # The first updates, slower, are left out.
                began, before = time.perf_counter(), progress.agent_steps
        if progress.stop.is_set():
            raise KeyboardInterrupt
        return (progress.agent_steps - before) / (time.perf_counter() - began)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
