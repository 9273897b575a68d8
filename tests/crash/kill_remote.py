"""Kills what sends, fetches, trains with a remote and takes over, while the network fails; looks at what is left.

    python tests/crash/kill_remote.py [--kills 300] [--races 50] [--seed 0] [--share 0.05] [--json FILE]

A run is trained with a remote on a server that speaks S3 (tests/s3.py), of whose requests a share is lost, answered by
half, late, with what was there before, or not answered. Each process is killed at a random moment, also while it sends
or fetches. Next, the same machine continues, or another one takes over that knows nothing but the URL, or somebody
pushes or pulls. After each kill, what is in the remote must be fetched whole, must not be behind what it had, and the
run here must be whole. At its end its weights must be, bit for bit, those of a training that nobody killed.

In a race, two machines continue one killed run at the same time: only one may complete it, the other has to stop.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import click
from rich.console import Console
from rich.progress import track

sys.path.insert(0, str(Path(__file__).parent.parent))

import s3
from commands import Command

from twin_graph.records.verify import verify
from twin_graph.remote import fetching, heads
from twin_graph.remote.heads import TakenOverError
from twin_graph.remote.urls import place_at
from twin_graph.snapshots.resumable import newest_point
from twin_graph.snapshots.run import Run

STEPS = 2_400
SETTINGS = {
    "train.chunk_steps": 0,
    "twin.compiled": "false",
    "twin.threads": 1,
    "train.start_steps": 200,
    "train.every_steps": 4,
    "train.batch_size": 16,
    "model.hidden_units": "[16]",
    "target.refresh_every_updates": 50,
    "resume.every_steps": 200,
    "evaluate.episodes": 0,
}
#: How long each may take until it is killed, at most, in lengths of a training that nobody kills: some shall complete.
_LONGEST = {"train": 0.9, "resume": 1.1, "take over": 1.1, "push": 0.2, "pull": 0.2}


class Machine(NamedTuple):
    """A folder for the run, and a home."""

    folder: Path
    home: Path

    @property
    def environment(self) -> dict[str, str]:
        return {**os.environ, "XDG_CONFIG_HOME": str(self.home), "XDG_CACHE_HOME": str(self.home)}


class Harness:
    """One run at a time, over and over; counts what happened."""

    def __init__(self, folder: Path, server: s3.S3, seed: int, share: float) -> None:
        self._folder, self._server, self._share = folder, server, share
        self._draw = random.Random(seed)
        self._number = self.killed = 0
        self.counts: Counter[str] = Counter()
        whole, began = self._new_machine(), time.monotonic()
        self._finished(self._command("train", whole, "cartpole", *self._settings, "--run-dir", whole.folder))
        self._whole = time.monotonic() - began
        self._wanted = _weights(whole.folder)
        self._begin()

    @property
    def _settings(self) -> list[str]:
        return ["--steps", str(STEPS), *(f"--set={key}={value}" for key, value in SETTINGS.items())]

    def _new_machine(self) -> Machine:
        self._number += 1
        folder = self._folder / f"machine-{self._number}"
        return Machine(folder / "run", folder / "home")

    def _begin(self) -> None:
        self._machine = self._new_machine()
        self._url = f"{self._server.url}/run-{self._number}"
        self._steps = -1

    def kill_once(self) -> None:
        """Lets something run, kills it, and checks what is left; begins a new run where one is complete."""
        what, command = self._next()
        ended = self._killed(command, self._draw.uniform(0, _LONGEST[what] * self._whole))
        self.killed += ended is None
        self.counts[f"{what}, {'ended before' if ended is not None else 'killed'}"] += 1
        self._check()
        if ended == 0 and what in ("train", "resume", "take over") and self._machine.folder.exists():
            got = _weights(self._machine.folder)
            assert got == self._wanted, f"{got}, and not {self._wanted}"
            self._finished(self._command("push", self._machine, self._machine.folder, self._url))
            self._check()
            self.counts["complete, with the weights of one that nobody killed"] += 1
            shutil.rmtree(self._folder / "scratch", ignore_errors=True)
            self._begin()

    def race(self) -> None:
        """Lets two machines continue a killed run; the one that lost has to stop, and the other to complete the run."""
        self._server.faults = s3.none
        while not (there := heads.newest(place_at(self._url))) or not 0 < there.agent_steps < STEPS:
            self._begin()
            to = ("--run-dir", self._machine.folder, "--remote", self._url)
            command = self._command("train", self._machine, "cartpole", *self._settings, *to)
            self._killed(command, self._draw.uniform(0.2, 0.8) * self._whole)
        machines = [self._new_machine() for _ in range(2)]
        commands = [self._command("resume", machine, self._url, "--run-dir", machine.folder) for machine in machines]
        codes = [command.wait(120) for command in commands]
        words = [command.communicate()[1] for command in commands]
        assert 0 in codes, words
        for machine, code, said in zip(machines, codes, words, strict=True):
            if code == 0:
                assert _weights(machine.folder) == self._wanted
            else:
                stopped = code == TakenOverError.exit_code
                self.counts[f"races, the other {'was stopped' if stopped else 'came when it was complete'}"] += 1
                assert stopped or f"is complete at {STEPS:,} agent steps" in said, said
        self._steps = -1
        self._check()
        head = heads.newest(place_at(self._url))
        assert head
        assert head.agent_steps == STEPS
        assert codes.count(0) == 1
        for machine in machines:
            shutil.rmtree(machine.folder.parent)
        self._begin()

    def _next(self) -> tuple[str, Command]:
        self._server.faults = s3.at_random(self._draw.randrange(2**32), self._share)
        place = place_at(self._url)
        there = heads.newest(place) if heads.numbers(place) else None
        here = self._machine.folder
        if not here.exists() and there is None:
            to = ("--run-dir", here, "--remote", self._url)
            return "train", self._command("train", self._machine, "cartpole", *self._settings, *to)
        if not here.exists():
            return "take over", self._taken_over()
        if not Run(here).points().newest():  # nothing to go on from: it is begun again, elsewhere
            shutil.rmtree(here)
            if there is None:
                return self._next()
        what = self._draw.choices(["resume", "take over", "push", "pull"], [3, 2, 1, 1])[0]
        if what == "take over" and there:
            return what, self._taken_over()
        if what == "pull" and there:
            scratch = self._folder / "scratch" / str(self._draw.randrange(10**9))
            return what, self._command("pull", self._machine, self._url, "--run-dir", scratch)
        if what == "push":
            return what, self._command("push", self._machine, here, self._url)
        return "resume", self._command("resume", self._machine, here, "--remote", self._url)

    def _taken_over(self) -> Command:
        self._machine = self._new_machine()
        return self._command("resume", self._machine, self._url, "--run-dir", self._machine.folder)

    def _command(self, name: str, machine: Machine, *arguments: object) -> Command:
        machine.home.mkdir(parents=True, exist_ok=True)
        environment = machine.environment | self._server.environment
        return Command(name, *map(str, arguments), cwd=self._folder, env=environment)

    def _killed(self, command: Command, seconds: float) -> int | None:
        try:
            return command.wait(seconds)
        except TimeoutError:
            command.kill()
            command.wait(10)
            return None

    def _finished(self, command: Command) -> None:
        assert command.wait(120) == 0, command.communicate()[1]

    def _check(self) -> None:
        """What is there can be fetched and is not behind what it was; what is here is whole."""
        self._server.faults = s3.none
        place = place_at(self._url)
        if there := heads.newest(place):
            assert there.agent_steps >= self._steps, f"{there.agent_steps} agent steps, and {self._steps} before"
            self._steps = there.agent_steps
            with tempfile.TemporaryDirectory(dir=self._folder) as scratch:
                pulled = fetching.pull(place, there, Path(scratch) / "pulled")
                damage = verify(pulled).damage
                assert not damage, damage
                if pulled.points().newest():
                    assert newest_point(pulled).point.counters.agent_steps == there.agent_steps
        if self._machine.folder.exists():
            damage = verify(Run(self._machine.folder)).damage
            assert not damage, damage
        for path in (self._folder / "scratch").glob("[0-9]*"):
            assert not verify(Run(path)).damage
            shutil.rmtree(path)


def _weights(folder: Path) -> str:
    return newest_point(Run(folder)).point.weights_sha256


@click.command()
@click.option("--kills", default=300, show_default=True, type=click.IntRange(min=0))
@click.option("--races", default=0, show_default=True, type=click.IntRange(min=0))
@click.option("--seed", default=0, show_default=True)
@click.option("--share", default=0.05, show_default=True, type=click.FloatRange(0, 1), help="Of requests that fail.")
@click.option("--json", "path", type=click.Path(path_type=Path), help="Also write the figures here.")
def main(kills: int, races: int, seed: int, share: float, path: Path | None) -> None:
    """Kill KILLS processes, and let two machines race RACES times."""
    console = Console(width=120, highlight=False)
    with s3.serve() as server, tempfile.TemporaryDirectory(prefix="twin-graph-") as folder:
        os.environ.update(server.environment)
        harness = Harness(Path(folder), server, seed, share)
        for kill in track(range(kills), "kills", console=Console(stderr=True)):
            while harness.killed <= kill:
                harness.kill_once()
        for _ in track(range(races), "races", console=Console(stderr=True)):
            harness.race()
        counts = {**harness.counts, **Counter(f"requests: {fault}" for fault, _ in server.met)}
    for what, count in sorted(counts.items()):
        console.print(f"{count:>6,} {what}")
    if path:
        figures = {"kills": kills, "races": races, "seed": seed, "share": share, **counts}
        path.write_text(json.dumps(figures, indent=1) + "\n")


if __name__ == "__main__":
    main()
