"""Examines an experiment's runs before they are trained: do they fit, what will they need, how fast is one.

    python -m twin_graph.experiments.trial < SETTINGS

In a process of its own, since it needs TensorFlow: reads settings by name, as JSON, from standard input, and prints a
`Trial`.
"""

import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Mapping
from typing import NamedTuple

import psutil

from twin_graph import config
from twin_graph.config.lookup import find_modules_here
from twin_graph.errors import TwinGraphError, UsageError


class Trial(NamedTuple):
    """What was found.

    Attributes:
      rate: agent steps per second of the first of the settings, measured, without evaluations.
      startup: seconds until training starts, for TensorFlow and the graphs.
      disk: bytes of each, in all.
      memory: bytes of the one that needs most.
    """

    rate: float
    startup: float
    disk: list[int]
    memory: int


def run(settings: Mapping[str, config.Settings]) -> Trial:
    """Examines settings, each with a name for messages, in a process of its own; takes some seconds.

    Raises:
      UsageError: one cannot be trained; the message says which and why.
      TwinGraphError: the process failed.
    """
    done = subprocess.run(
        [sys.executable, "-P", "-m", __name__],
        input=json.dumps({name: one.model_dump() for name, one in settings.items()}),
        capture_output=True,
        text=True,
    )
    if done.returncode:
        lines = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
        kind = UsageError if done.returncode == UsageError.exit_code else TwinGraphError
        raise kind(lines[-1])
    return Trial(**json.loads(done.stdout.splitlines()[-1]))


def _main() -> None:
    from twin_graph import envs
    from twin_graph.envs.gym import check_version
    from twin_graph.snapshots.run import RUNS
    from twin_graph.training import doctor, readiness, requirements, tuning
    from twin_graph.twin.model import ModelSpec, build_model
    from twin_graph.twin.tf import tf

    every = {name: config.validate(tree) for name, tree in json.load(sys.stdin).items()}
    rate, startup, disk, memory = 0.0, 0.0, [], 0
    for name, settings in every.items():
        with contextlib.ExitStack() as stack:
            try:
                check_version(settings.env.id)
                env = stack.enter_context(contextlib.closing(envs.make(settings.env, count=settings.env.count)))
                readiness.check(settings, env)
                needed = requirements.measure(settings, env, RUNS)  # no run's folder, as the present one may be
                spec = ModelSpec.of(settings, env.spec)
                with tf.Graph().as_default():
                    build_model(spec)  # whether the loss fits the network
            except UsageError as error:
                raise UsageError(f"{name}: {error}" if len(every) > 1 else str(error)) from None
            disk.append(needed.disk)
            memory = max(memory, needed.memory)
            if not rate:
                tuned, _ = tuning.fix(settings, spec)
                startup = time.time() - psutil.Process().create_time()
                rate = doctor.rate(env, tuned)
    print(json.dumps(Trial(rate, startup, disk, memory)._asdict()))


if __name__ == "__main__":
    find_modules_here()
    try:
        _main()
    except TwinGraphError as error:
        sys.stderr.write(f"{error}\n")
        sys.exit(error.exit_code)
