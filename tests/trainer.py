"""A trainer in a process of its own, for tests that kill it: `python trainer.py FOLDER [--stop-at N] [--signal NAME]`.

Trains the run in FOLDER, from its newest resume point if there is one, and writes which snapshots the target twins
held at each update to FOLDER.trace, a JSON line each.
"""

import argparse
import json
import os
import signal
from pathlib import Path

from twin_graph import envs, training
from twin_graph.agent import Agent
from twin_graph.resume import newest_point
from twin_graph.snapshots.run import Run


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--stop-at", type=int, help="agent steps at which the process gets the signal")
    parser.add_argument("--signal", default="SIGKILL")
    options = parser.parse_args()

    run = Run(options.folder)
    point = newest_point(run).point if run.points().folders() else None
    update = Agent._update
    with Path(f"{options.folder}.trace").open("a") as trace:

        def traced_update(agent: Agent) -> float:
            loss = update(agent)
            held = [twin.holds for twin in agent.bootstrap._active]  # what Saver.restore really loaded
            trace.write(json.dumps([agent.updates, held]) + "\n")
            trace.flush()
            return loss

        Agent._update = traced_update  # type: ignore[method-assign]
        env = envs.make(run.settings.env, count=run.settings.env.count)
        sent = False
        for progress in training.train(run, env, point):
            if options.stop_at and not sent and progress.agent.agent_steps >= options.stop_at:
                sent = True
                os.kill(os.getpid(), getattr(signal, options.signal))


if __name__ == "__main__":
    main()
