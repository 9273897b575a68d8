"""Whether settings can be trained here, what they will need, and how fast the first of them is.

    python -m twin_graph.training.trial < SETTINGS

Reads settings by name, as JSON, from standard input, and prints what `twin_graph.experiments.trial.Trial` has. What it
is doing goes to standard error.
"""

import contextlib
import json
import sys
import time

import psutil

from twin_graph import config, envs
from twin_graph.agent.trackers import check_tracker
from twin_graph.base import doing, modules
from twin_graph.envs.gym import check_version
from twin_graph.errors import TwinGraphError, UsageError
from twin_graph.snapshots.run import RUNS
from twin_graph.training import doctor, readiness, requirements, tuning
from twin_graph.twin.model import ModelSpec, build_model
from twin_graph.twin.tf import tf


def _tell(what: str) -> None:
    print(f"{doing.TOLD}{what}", file=sys.stderr, flush=True)


def _main() -> None:
    every = {name: config.validate(tree) for name, tree in json.load(sys.stdin).items()}
    rate, startup, disk, memory = 0.0, 0.0, [], 0
    for name, settings in every.items():
        doing.now(f"checking {name}")
        with contextlib.ExitStack() as stack:
            try:
                check_version(settings.env.id)
                env = stack.enter_context(contextlib.closing(envs.make(settings.env, count=settings.env.count)))
                readiness.check_settings(settings, env)
                check_tracker(settings)
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
    print(json.dumps({"rate": rate, "startup": startup, "disk": disk, "memory": memory}))


if __name__ == "__main__":
    modules.find_here()
    try:
        with doing.heard_by(_tell):
            _main()
    except TwinGraphError as error:
        sys.stderr.write(f"{error}\n")
        sys.exit(error.exit_code)
