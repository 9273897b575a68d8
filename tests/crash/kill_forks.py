"""Kills `fork`, `reproduce`, forked runs and their parent with SIGKILL at random moments.

    python tests/crash/kill_forks.py [--kills 200] [--seed 1] [--json tests/crash/results/kill_forks.json]

A run whose end is known, and one that is killed, resumed and forked while it trains. After every kill both must be
whole by `verify`, the first unchanged to the byte; there is all of a fork or nothing; and what a killed `reproduce`
left is gone after the next. At its end every fork, and the run that was killed, must have the known weights.
"""

import contextlib
import hashlib
import json
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import click
from rich.console import Console

sys.path.insert(0, str(Path(__file__).parents[1]))
from commands import Command, twin_graph

from twin_graph.base import machine
from twin_graph.records.verify import verify
from twin_graph.snapshots.resumable import newest_point
from twin_graph.snapshots.run import Run

SETTINGS = {
    "env.count": 2,
    "train.steps": 1_600,
    "train.start_steps": 96,
    "train.every_steps": 4,
    "train.chunk_steps": 32,
    "train.batch_size": 8,
    "model.hidden_units": [8],
    "replay.capacity_steps": 320,
    "target.refresh_every_updates": 10,
    "save.every_updates": 5,
    "save.keep_last": 2,
    "save.keep_every": 0,
    "resume.every_steps": 160,
    "evaluate.every_steps": 400,
    "evaluate.episodes": 3,
    "log.every_steps": 64,
    "twin.threads": 1,
    "twin.compiled": False,
}
#: What is killed, and the seconds within which it is.
VICTIMS = {"fork": 0.15, "forked run": 2.0, "reproduce": 2.0, "parent": 2.0}


class Harness:
    """Two runs in a folder, the forks of them, and what came of killing.

    Attributes:
      kills: by victim.
      forks: how many were made, whole; `ended`, how many were trained to their ends.
      problems: what was lost.
    """

    def __init__(self, folder: Path, seed: int) -> None:
        self._folder = folder
        self._random = random.Random(seed)
        self._sets = [f"--set={key}={json.dumps(value)}" for key, value in SETTINGS.items()]
        self.kills: Counter[str] = Counter()
        self.forks = self.ended = self.number = 0
        self.problems: list[str] = []
        made = twin_graph("train", "cartpole", "--run-dir=known", "--set=resume.keep=all", *self._sets, cwd=folder)
        if made.returncode:
            raise SystemExit(made.stderr)
        self._known = Run(folder / "known")
        self._end, self._bytes = self._end_of(self._known), self._contents()
        self._begin_parent()

    def kill(self) -> None:
        """Kills something, and looks at what is left."""
        seldom = min(VICTIMS, key=lambda victim: self.kills[victim])
        victim = self._random.choice([*VICTIMS, *[seldom] * len(VICTIMS)])
        forks = sorted(path for path in self._folder.glob("fork*") if path.name != "forked")
        if victim == "forked run" and not forks:
            victim = "fork"
        arguments = {
            "fork": lambda: ["fork", self._random.choice(["known", "parent"]), "--run-dir", f"fork{self.number}"],
            "forked run": lambda: ["resume", self._random.choice(forks).name],
            "reproduce": lambda: ["reproduce", "known", "--from", self._random.choice("0369")],
            "parent": lambda: ["resume", "parent"],
        }[victim]()
        if arguments[:2] == ["fork", "known"]:
            arguments += ["--at", self._random.choice("0123456789")]
        beside = self._beside(victim)
        command = Command(*arguments, cwd=self._folder)
        time.sleep(self._random.uniform(0, VICTIMS[victim]))
        with contextlib.suppress(ProcessLookupError):  # it has ended just now
            command.kill()
        code = command.wait()
        if code not in (-9, 0):
            self.problems.append(f"{' '.join(arguments)}: {command.communicate()[1].strip()}")
        self.kills[victim] += code == -9
        if beside:
            with contextlib.suppress(ProcessLookupError):
                beside.kill()
            beside.wait()
        self._look(victim)
        self.number += 1

    def finish(self) -> None:
        """Trains everything to its end."""
        for folder in [*self._folder.glob("fork*"), self._folder / "parent"]:
            twin_graph("resume", folder.name, cwd=self._folder)
            self._ended(folder)
        done = twin_graph("reproduce", "known", cwd=self._folder)
        if done.returncode:
            self.problems.append(f"reproduce: {done.stderr}")
        left = [path.name for path in self._folder.iterdir() if path.name.startswith(".tmp-known")]
        if left:
            self.problems.append(f"left by reproduce: {left}")

    def _beside(self, victim: str) -> Command | None:
        """The parent is trained meanwhile, in half of the kills that are not of itself."""
        if victim == "parent" or self._random.random() < 0.5:
            return None
        return Command("resume", "parent", cwd=self._folder)

    def _begin_parent(self) -> None:
        shutil.rmtree(self._folder / "parent", ignore_errors=True)
        train = Command("train", "cartpole", "--run-dir=parent", *self._sets, cwd=self._folder)
        while not (self._folder / "parent" / "resume" / "000001" / "state.json").exists():
            time.sleep(0.01)
        train.kill()
        train.wait()

    def _look(self, victim: str) -> None:
        if self._contents() != self._bytes:
            self.problems.append(f"{victim}: the known run changed")
        for folder in self._folder.glob("fork*"):
            run = Run(folder)
            self.problems += [f"{victim}: {line}" for line in verify(run).damage]
            if self._is_complete(run):
                self._ended(folder)
        parent = Run(self._folder / "parent")
        self.problems += [f"{victim}: {line}" for line in verify(parent).damage]
        if self._is_complete(parent):
            self._ended(parent.folder)
            self._begin_parent()
        if victim == "fork":
            self.forks += (self._folder / f"fork{self.number}").exists()

    def _ended(self, folder: Path) -> None:
        if self._end_of(Run(folder)) != self._end:
            self.problems.append(f"{folder.name} ended with other weights")
        elif folder.name != "parent":
            self.ended += 1
            shutil.rmtree(folder)

    def _contents(self) -> str:
        digest = hashlib.sha256()
        for path in sorted(self._known.folder.rglob("*")):
            if path.is_file() and path.parent.name != "control":
                digest.update(str(path).encode() + path.read_bytes())
        return digest.hexdigest()

    @staticmethod
    def _is_complete(run: Run) -> bool:
        """Whether its last point is made; it may have been killed before it could say so."""
        return newest_point(run).point.counters.agent_steps >= run.settings.train.steps

    @staticmethod
    def _end_of(run: Run) -> tuple[str, list[str]]:
        newest = run.points().newest()
        assert newest is not None
        return newest.weights_sha256, [snapshot.id for snapshot in run.store().snapshots]


@click.command()
@click.option("--kills", default=200, show_default=True)
@click.option("--seed", default=1, show_default=True)
@click.option("--json", "path", type=click.Path(path_type=Path), help="Write what was found here.")
def main(kills: int, seed: int, path: Path | None) -> None:
    """Kills until there were so many; exits with 1 if anything was lost."""
    console, began = Console(stderr=True), time.monotonic()
    with tempfile.TemporaryDirectory() as name:
        harness = Harness(Path(name), seed)
        while harness.kills.total() < kills and not harness.problems:
            harness.kill()
            if harness.number % 20 == 0:
                console.print(
                    f"{harness.kills.total()} kills: {dict(harness.kills)}, {harness.ended} forks at their ends"
                )
        harness.finish()
    found = {
        "kills": dict(harness.kills),
        "forks_made": harness.forks,
        "forks_ended_with_the_known_weights": harness.ended,
        "problems": harness.problems,
        "seconds": round(time.monotonic() - began),
        "cpu": machine.describe()._asdict(),
    }
    console.print(found)
    if path:
        path.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    sys.exit(bool(harness.problems))


if __name__ == "__main__":
    main()
