r"""Kills workers and launchers of an asynchronous training at random moments, and checks what is left.

    python tests/crash/kill_async.py [--kills 50] [--output tests/crash/results/kill_async.json]

Two workers train CartPole. At random moments a worker or, in one case of four, the launcher gets SIGKILL. After a
launcher's death no process of the cluster may be left after 5 seconds, `verify` must find nothing, and `resume` goes
on. At the end a training of so many agent steps more must finish with exactly these.
"""

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from twin_graph.base import machine
from twin_graph.errors import TwinGraphError
from twin_graph.records import report
from twin_graph.records.verify import verify
from twin_graph.snapshots.run import Run

STEPS_AT_THE_END = 3_000
ORPHAN_SECONDS = 5.0
SETTINGS = [
    *("--set=model.hidden_units=[16]", "--set=train.start_steps=200", "--set=train.accumulate=2"),
    *("--set=resume.every_steps=500", "--set=evaluate.episodes=0", "--set=log.every_steps=500"),
    *("--set=target.refresh_every_updates=40", "--set=workers.restarts=1000"),
]


class Launcher:
    """A training in the background."""

    def __init__(self, *arguments: str) -> None:
        command = [sys.executable, "-m", "twin_graph_cli", *arguments]
        self.process = subprocess.Popen(command, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


def tasks(run: Path) -> dict[str, int]:
    """Numbers of the cluster's processes by task."""
    found = {}
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            words = (process / "cmdline").read_bytes().decode().split("\0")
            if str(run / "workers" / "cluster.json") in words:
                found[words[words.index(str(run / "workers" / "cluster.json")) + 1]] = int(process.name)
    return found


def wait_until_training(run: Path, launcher: Launcher) -> None:
    """Until both workers have made steps in this life of the launcher."""
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        with contextlib.suppress(TwinGraphError, OSError):
            status = report.status(Run(run))
            busy = [worker for worker in status.workers if worker.agent_steps]
            if status.state == "running" and len(busy) == 2:
                return
        if launcher.process.poll() is not None:
            raise SystemExit(f"the launcher ended by itself with {launcher.process.returncode}; see {run}")
        time.sleep(0.2)
    raise SystemExit(f"two minutes without a step; see {run}")


@click.command()
@click.option("--kills", default=50, show_default=True)
@click.option("--seed", default=1, show_default=True, help="Of the moments and victims.")
@click.option("--output", type=click.Path(path_type=Path), help="Write the figures here.")
def main(kills: int, seed: int, output: Path | None) -> None:
    """Kill, verify, resume, and count."""
    console = Console(stderr=True)
    choose = random.Random(seed)
    made: dict[str, Any] = {"worker": 0, "launcher": 0, "orphans": 0, "damaged": 0}
    folder = tempfile.mkdtemp(prefix="kill-async-")
    run = Path(folder) / "run"
    launcher = Launcher("train", "cartpole", "--workers=2", "--steps=100000000", f"--run-dir={run}", *SETTINGS)
    for number in range(1, kills + 1):
        wait_until_training(run, launcher)
        time.sleep(choose.uniform(0, 4))
        victim = "launcher" if choose.random() < 0.25 else choose.choice(["worker:0", "worker:1"])
        if victim == "launcher":
            launcher.kill()
            made["launcher"] += 1
            time.sleep(ORPHAN_SECONDS)
            made["orphans"] += len(tasks(run))
            made["damaged"] += len(verify(Run(run)).damage)
            launcher = Launcher("resume", str(run))
        elif (process := tasks(run).get(victim)) is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
            made["worker"] += 1
        console.print(f"{number} of {kills}: {victim}, {report.status(Run(run)).agent_steps:,} agent steps")
    wait_until_training(run, launcher)
    launcher.process.send_signal(signal.SIGINT)
    launcher.process.wait(120)
    wanted = report.status(Run(run)).agent_steps + STEPS_AT_THE_END
    Launcher("resume", str(run), f"--steps={wanted}").process.wait(600)
    status = report.status(Run(run))
    findings = verify(Run(run))
    result = {
        "kills": made,
        "wanted_agent_steps": wanted,
        "agent_steps": status.agent_steps,
        "updates": status.updates,
        "state": status.state,
        "attempts": status.attempt,
        "damage": findings.damage,
        "unknown": findings.unknown,
        "processor": machine.describe()._asdict(),
    }
    console.print(result)
    if output:
        output.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    exact = status.agent_steps == -(-wanted // 8) * 8 and status.state == "finished"
    if not exact or made["orphans"] or made["damaged"] or findings.damage:
        raise SystemExit(f"something is wrong; {folder} is left to look at")


if __name__ == "__main__":
    main()
