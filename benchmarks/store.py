"""What the store costs: a refresh through the disk against bare Saver calls, `log` of many snapshots, start-up times.

python benchmarks/store.py --json benchmarks/results/store.json
"""

import contextlib
import hashlib
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import numpy as np
from rich.console import Console
from rich.progress import track
from rich.table import Table

from twin_graph import config
from twin_graph.agent.agent import Agent
from twin_graph.base import machine
from twin_graph.envs import EnvSpec
from twin_graph.replay.ring import Transition
from twin_graph.snapshots.files import fsync
from twin_graph.snapshots.ledger import Commit, Counters
from twin_graph.snapshots.run import Run, create
from twin_graph.twin.twin import Twin

#: Index, data, manifest, their folder, its parent, and the ledger's lines of the commit and of the swap.
FSYNCS = 7


def nature_agent(folder: Path) -> Agent:
    """An agent with the network of the 2015 paper that has learnt enough to have held-out observations."""
    changes = {
        "env.count": 1,
        "train.start_steps": 100,
        "replay.capacity_steps": 1_000,
        "save.every_updates": 10**9,
        "target.refresh_every_updates": 10**9,
    }
    agent = Agent(create(folder, config.load("pong", changes.items())), EnvSpec((4, 84, 84), 6, "uint8", stack=4))
    random = np.random.default_rng(0)
    while agent.updates < 1:
        s = np.zeros((1, 4, 84, 84), np.uint8)
        s[:, -1] = random.integers(0, 256, (1, 84, 84))
        end = np.array([True])
        agent.observe(Transition(s, np.array([0]), np.ones(1, np.float32), end, end, s))
        agent.learn()
    return agent


def milliseconds(action: Callable[[], object]) -> float:
    """How long it takes."""
    began = time.perf_counter()
    action()
    return 1000 * (time.perf_counter() - began)


def refreshes(folder: Path, rounds: int) -> dict[str, float]:
    """Medians in milliseconds over interleaved rounds."""
    times: dict[str, list[float]] = {"ours": [], "bare": [], "sha256": [], "fsync": [], "update": []}
    with contextlib.ExitStack() as stack, nature_agent(folder / "run") as agent:
        online = agent.learners.first.online
        other = stack.enter_context(Twin("other", online.spec, learns=False, like=online))
        bare = folder / "bare"
        bare.mkdir()
        random = np.random.default_rng(1)

        def ours() -> None:
            agent.commit()
            agent.live.refresh("benchmark")

        def saver_alone() -> None:
            online._built.saver.save(online.session, str(bare / "model"), write_meta_graph=False, write_state=False)
            other._built.saver.restore(other.session, str(bare / "model"))

        def one_hash() -> None:
            for path in bare.iterdir():
                hashlib.sha256(path.read_bytes()).digest()

        def fsyncs() -> None:
            small = bare / "small"
            for _ in range(FSYNCS - 1):
                small.write_bytes(b"x" * 1000)
                fsync(small)

        for _ in track(range(rounds), console=Console(stderr=True)):
            agent.tally.agent_steps += agent.settings.train.every_steps
            times["update"].append(milliseconds(agent.learn))  # new weights, so that a commit is none that is skipped
            online.load({n: w + random.normal(0, 1e-4, w.shape) for n, w in online.weights().items()})
            times["ours"].append(milliseconds(ours))
            times["bare"].append(milliseconds(saver_alone))
            times["fsync"].append(
                milliseconds(lambda: fsync(bare / "model.data-00000-of-00001")) + milliseconds(fsyncs)
            )
            times["sha256"].append(milliseconds(one_hash))
    return {name: statistics.median(values[1:]) for name, values in times.items()}


def many_snapshots(folder: Path, count: int) -> Run:
    """A run whose ledger lists `count` snapshots."""
    run = create(folder, config.load("pong"))
    run.record_start()
    for number in range(count):
        counters = Counters(agent_steps=4000 * number, updates=1000 * number, frames=16000 * number, episodes=number)
        name = f"{number:06d}-{number:08x}"
        commit = Commit(
            attempt=1,
            time="2026-01-01T00:00:00.000+00:00",
            snapshot=name,
            number=number,
            lineage="online",
            parent=None,
            counters=counters,
            weights_sha256="0" * 64,
            bytes=6_700_000,
        )
        with run.ledger.path.open("ab") as file:  # one fsync would do for all
            from twin_graph.snapshots.files import checked

            file.write(checked(commit.model_dump(mode="json")) + b"\n")
    return run


def command_seconds(*arguments: str) -> float:
    """The shortest of three, from start to end of the process."""
    command = [sys.executable, "-m", "twin_graph_cli", *arguments]
    times = []
    for _ in range(3):
        began = time.perf_counter()
        subprocess.run(command, check=True, capture_output=True)
        times.append(time.perf_counter() - began)
    return min(times)


@click.command()
@click.option("--rounds", default=30, show_default=True, type=click.IntRange(min=3))
@click.option("--json", "path", type=click.Path(path_type=Path), help="Also write the figures here.")
def main(rounds: int, path: Path | None) -> None:
    """Measure what the store costs on this machine."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        ms = refreshes(folder, rounds)
        run = many_snapshots(folder / "many", 10_000)
        reading = {name: command_seconds(*name.split(), str(run.folder)) for name in ("log", "log --json", "status")}
        small = many_snapshots(folder / "small", 10)
        starting = {name: command_seconds(name, str(small.folder)) for name in ("status", "log", "runs")}
        starting["explain --help"] = command_seconds("explain", "--help")
    allowed = 1.5 * ms["bare"] + ms["sha256"] + ms["fsync"]
    blocked = ms["ours"] / (1000 * ms["update"] + ms["ours"])
    figures: dict[str, Any] = {
        "processor": machine.describe()._asdict(),
        "milliseconds": ms,
        "save_and_restore_allowed": allowed,
        "blocked_share_at_one_refresh_per_1000_updates": blocked,
        "seconds_for_10000_snapshots": reading,
        "seconds_without_tensorflow": starting,
    }
    table = Table(box=None, pad_edge=False)
    for heading in ("what", "measured", "limit"):
        table.add_column(heading)
    table.add_row("save, commit, restore, two ledger lines", f"{ms['ours']:.1f} ms", f"{allowed:.1f} ms")
    table.add_row("  Saver.save and Saver.restore alone", f"{ms['bare']:.1f} ms", "")
    table.add_row("  one sha256 of the files", f"{ms['sha256']:.1f} ms", "")
    table.add_row(f"  {FSYNCS} fsyncs", f"{ms['fsync']:.1f} ms", "")
    table.add_row("training blocked, a refresh each 1,000 updates", f"{blocked:.2%}", "1%")
    for name, seconds in reading.items():
        table.add_row(f"{name}, 10,000 snapshots", f"{seconds:.2f} s", "1 s")
    for name, seconds in starting.items():
        table.add_row(name, f"{seconds:.2f} s", "0.5 s")
    Console().print(table)
    if path:
        path.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
