r"""Breaks a run on two hosts in every way, and prints what people see and whether its steps are exact.

    python tests/crash/two_hosts.py [--only link] [--output tests/crash/results/two_hosts.json]

The hosts are network namespaces with a cable between them; root only. The first has the parameter server and a worker,
the second the chief and the other worker. A run that ends early is resumed, with those of its tasks started again that
have ended; in the end it must have exactly its steps, and no process may be left. It takes about ten minutes.
"""

import itertools
import json
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
from hosts import FIRST, Host, two_hosts
from kill_async import SETTINGS
from rich.console import Console
from rich.table import Table

from twin_graph.errors import TwinGraphError
from twin_graph.records import report
from twin_graph.records.verify import verify
from twin_graph.snapshots.run import Run

STEPS = 8_000
CONSENT = "--insecure-network"
START_SECONDS = 120.0
PATIENT_SECONDS = 300.0
TRY = """
import socket, sys
try:
    client = socket.create_connection((sys.argv[1], int(sys.argv[2])), timeout=3)
    client.sendall(b"PRI * HTTP/2.0\\r\\n\\r\\nSM\\r\\n\\r\\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0]))
    client.settimeout(3)
    print("answered" if client.recv(9) else "closed", end="")
except OSError as error:
    print(type(error).__name__, end="")
"""


class Trial:
    """One run and its tasks."""

    def __init__(self, hosts: tuple[Host, Host], folder: Path, port: int) -> None:
        self.first, self.second = hosts
        self.folder, self.run, self.port = folder, folder / "run", port
        self.file = folder / "cluster.toml"
        self.file.write_text(f'run = "{self.run}"\nps = ["{FIRST}:{port}"]\nworkers = 2\n')
        self.processes: dict[str, subprocess.Popen[str]] = {}
        self.wanted = STEPS

    def log(self, name: str) -> Path:
        return self.folder / f"{name}.log"

    def last(self, name: str) -> str:
        """What a task said last."""
        lines = self.log(name).read_text().splitlines() if self.log(name).exists() else []
        said = [line for line in lines if line.startswith(("Error: ", "refused"))] or lines
        return re.sub(r"\S*/run\b", "RUN", said[-1].strip() if said else "")

    def start(self, name: str) -> None:
        host = self.second if name in ("chief", "worker:1") else self.first
        words: tuple[str, ...] = ("cluster", str(self.file), f"--task={name}")
        if name == "ps:0":
            words += (f"--listen={FIRST}", CONSENT)
        elif name == "chief":
            begun = self.run.exists()
            words = (
                ("resume", str(self.run)) if begun else ("train", "cartpole", f"--steps={self.wanted}", *SETTINGS[:-1])
            )
            words += (f"--cluster={self.file}", CONSENT)
        self.processes[name] = host.twin_graph(*words, log=self.log(name))

    def steps(self) -> int:
        try:
            return int(report.status(Run(self.run)).agent_steps)
        except (TwinGraphError, OSError):
            return 0

    def wait_until_training(self) -> None:
        """Until both workers have made steps in the newest attempt."""
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline:
            try:
                status = report.status(Run(self.run))
                if status.state == "running" and sum(worker.agent_steps > 300 for worker in status.workers) == 2:
                    return
            except (TwinGraphError, OSError):
                pass
            time.sleep(0.2)

    def finish(self) -> str:
        """Waits for the end, and starts again what has ended before it; returns in words what was needed."""
        words, deadline = [], time.monotonic() + PATIENT_SECONDS
        while time.monotonic() < deadline:
            time.sleep(1)
            ended = [name for name, process in self.processes.items() if process.poll() is not None]
            if "chief" in ended and self.processes["chief"].returncode == 0:
                break
            if "chief" in ended:
                words.append(f"chief: {self.last('chief')}")
                self.start("chief")
            elif ended and self.steps() < self.wanted:
                words += [f"started again: {', '.join(ended)}"]
                for name in ended:
                    self.start(name)
        return "; ".join(words) or "went on by itself"

    def end(self) -> dict[str, Any]:
        """What is left."""
        for process in self.processes.values():
            try:
                process.wait(90)
            except subprocess.TimeoutExpired:
                continue
        left = len(self.first.processes() + self.second.processes())
        status = report.status(Run(self.run))
        damage = len(verify(Run(self.run)).damage)
        for process in self.processes.values():
            process.kill()
        exact = status.state == "finished" and status.agent_steps == self.wanted
        return {"steps": status.agent_steps, "exact": exact, "processes left": left, "damage": damage}


def _all(trial: Trial) -> None:
    for name in ("ps:0", "worker:0", "worker:1", "chief"):
        trial.start(name)
    trial.wait_until_training()


def _in_order(order: tuple[str, ...]) -> Callable[[Trial], str]:
    def act(trial: Trial) -> str:
        for name in order:
            trial.start(name)
            time.sleep(4)
        trial.start("worker:1")
        return trial.finish()

    return act


def _unplugged(seconds: float) -> Callable[[Trial], str]:
    def act(trial: Trial) -> str:
        _all(trial)
        trial.second.plug(into=False)
        time.sleep(seconds)
        trial.second.plug(into=True)
        return trial.finish()

    return act


def _killed(name: str) -> Callable[[Trial], str]:
    def act(trial: Trial) -> str:
        _all(trial)
        trial.processes[name].kill()
        trial.processes[name].wait()
        if name.startswith("worker"):
            time.sleep(3)
            trial.start(name)
        return trial.finish()

    return act


def _second_run(trial: Trial) -> str:
    trial.wanted *= 4  # so that the first still trains
    _all(trial)
    other = trial.folder / "other.toml"
    other.write_text(f'run = "{trial.folder / "other"}"\nps = ["{FIRST}:{trial.port}"]\nworkers = 1\n')
    words = ("train", "cartpole", f"--cluster={other}", CONSENT, *SETTINGS[:-1])
    code = trial.second.twin_graph(*words, log=trial.log("other")).wait(100)
    return f"it: exit {code}, {trial.last('other')}; the first: {trial.finish()}"


def _another_user(trial: Trial) -> str:
    _all(trial)
    # The interpreter of the system: another user may not be able to run ours.
    command = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "/usr/bin/python3", "-c", TRY]
    theirs = trial.first.says(*command, FIRST, str(trial.port))
    ours = trial.first.says(sys.executable, "-c", TRY, FIRST, str(trial.port))
    return f"they: {theirs}, the owner: {ours}; server: {trial.last('ps:0')}; {trial.finish()}"


def _another_namespace(trial: Trial) -> str:
    """Of servers at a loopback address, on the first host."""
    run, log = trial.folder / "local", trial.log("local")
    words = ("train", "cartpole", "--workers=1", "--steps=3000", f"--run-dir={run}", *SETTINGS)
    local = trial.first.twin_graph(*words, log=log)
    deadline = time.monotonic() + START_SECONDS
    while not (listening := trial.first.listening()) and time.monotonic() < deadline:
        time.sleep(0.2)
    port = listening[0].rpartition(":")[2]
    time.sleep(3)
    tried = {host: trial.second.says(sys.executable, "-c", TRY, host, port) for host in (FIRST, "127.0.0.1")}
    code = local.wait(120)
    _all(trial)
    return f"it listens at {', '.join(listening)}; from the second host: {tried}; exit {code}; {trial.finish()}"


def _port_taken(trial: Trial) -> str:
    """For 15 s, by something that does not answer."""
    holding = f"import socket, time; s = socket.create_server(('{FIRST}', {trial.port})); time.sleep(20)"
    trial.first.start(sys.executable, "-c", holding)
    time.sleep(1)
    _all(trial)
    news = [line for line in trial.log("chief").read_text().splitlines() if "no parameter server" in line]
    server = next((line for line in trial.log("ps:0").read_text().splitlines() if "in use" in line), "")
    return f"server: {server}; chief: {news}; {trial.finish()}"


ACTS = {
    **{
        f"order: {', '.join(order)}": _in_order(order)
        for order in itertools.permutations(("ps:0", "worker:0", "chief"))
    },
    "link down for 10 s": _unplugged(10),
    "link down for 60 s": _unplugged(60),
    "server killed": _killed("ps:0"),
    "worker killed and started again": _killed("worker:1"),
    "chief killed": _killed("chief"),
    "second run on the address": _second_run,
    "another user of the server's host": _another_user,
    "another network, server at a loopback address": _another_namespace,
    "port taken for 20 s": _port_taken,
}


@click.command()
@click.option("--only", default="", help="Trials whose names begin with this.")
@click.option("--output", type=click.Path(path_type=Path), help="Write the figures here.")
def main(only: str, output: Path | None) -> None:
    """Make all trials, and print a table."""
    console, results = Console(), []
    table = Table("trial", "seconds", "what was seen", "steps", "exact", "processes left", "damage")
    for number, (name, act) in enumerate(ACTS.items()):
        if not name.startswith(only):
            continue
        with tempfile.TemporaryDirectory(prefix="two-hosts-") as folder, two_hosts() as hosts:
            trial, began = Trial(hosts, Path(folder), 24_100 + number), time.monotonic()
            try:
                seen = act(trial)
                result = {"trial": name, "seen": seen, **trial.end(), "seconds": round(time.monotonic() - began)}
            except (subprocess.SubprocessError, TwinGraphError, OSError) as error:
                logs = {log.name: trial.last(log.stem) for log in Path(folder).glob("*.log")}
                result = {"trial": name, "seen": f"{type(error).__name__}: {error}; {logs}", "exact": False}
        results.append(result)
        console.print(result)
        cells = ("trial", "seconds", "seen", "steps", "exact", "processes left", "damage")
        table.add_row(*(str(result.get(cell, "")) for cell in cells))
    console.print(table)
    if output:
        output.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    if not all(result["exact"] and not result["processes left"] for result in results):
        raise SystemExit("something is wrong")


if __name__ == "__main__":
    main()
