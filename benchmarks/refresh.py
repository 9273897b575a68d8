r"""How long it takes to give a target network the online network's weights: through the disk and in memory.

    pip install '.[peers]'
    python benchmarks/refresh.py [--rounds 30] [--folder FOLDER] [--json benchmarks/results/refresh.json]

The network is that of the 2015 paper with 6 actions: 1,687,206 parameters, 6.7 MB. In one process and in turn, ROUNDS
times after a round that is not counted:

    twin-graph                `commit` writes the online twin's weights to files that did not exist, with the sha256 of
                              weights and files, Q values of 32 observations for the health record, a manifest, fsync
                              of files and folders, and a line in the ledger; `refresh` restores the target twin from
                              these files and writes another line
    Saver files               `Twin.save` to files that did not exist, `Twin.restore` into another twin; no fsync
    TensorFlow, in memory     `target.load(online.weights())`: through NumPy arrays, from one session to another
    PyTorch, in memory        `target.load_state_dict(online.state_dict())`
    PyTorch, file             `torch.save` to a file that did not exist, `torch.load`, `load_state_dict`
    PyTorch, file and fsync   the same, with fsync of the file and its folder after `torch.save`

PyTorch has one thread here: with two, copying in memory took 0.9 ms at best, in place of 1.1, but 16 ms in the median
while other programs ran. TensorFlow has one for each core, as in the training.

Before each round the weights are changed; after each way the target's are compared with the online ones, and the files
are removed (twin-graph's in the next round), so that all ways write to memory that was in use before; none of this is
timed. What is read from files was just written and comes from memory. fsync takes what the disk under FOLDER takes. A
share is that of one refresh in the time of 1,000 updates and this refresh. The update is this project's for every row:
TensorFlow, a minibatch of 32, with its sampling and the target's values; playing is left out.
"""

import importlib.metadata
import json
import os
import shutil
import statistics
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import numpy as np
import psutil
from rich.console import Console
from rich.progress import track
from rich.table import Table
from store import milliseconds, nature_agent

from twin_graph import cpu
from twin_graph.snapshots.files import fsync
from twin_graph.twin import Twin

# After TensorFlow, which the imports above bring in.
import torch  # isort: skip

UPDATES = 1_000  # between two refreshes
PACKAGES = ("twin-graph", "tensorflow", "torch", "numpy")


def torch_network() -> torch.nn.Module:
    """The network of the 2015 paper, 6 actions."""
    nn = torch.nn
    return nn.Sequential(
        nn.Conv2d(4, 32, 8, 4),
        nn.ReLU(),
        nn.Conv2d(32, 64, 4, 2),
        nn.ReLU(),
        nn.Conv2d(64, 64, 3, 1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(3136, 512),
        nn.ReLU(),
        nn.Linear(512, 6),
    )


def same(ours: dict[str, Any], theirs: dict[str, Any]) -> bool:
    """Whether two sets of weights are equal, bit for bit."""
    return ours.keys() == theirs.keys() and all(np.array_equal(ours[name], theirs[name]) for name in ours)


def measure(folder: Path, rounds: int) -> dict[str, list[float]]:
    """Milliseconds by way, one for each round."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    online, target = torch_network(), torch_network()
    with nature_agent(folder / "run") as agent, Twin("other", agent.online.spec, like=agent.online) as other:
        sizes = (sum(w.size for w in agent.online.weights().values()), sum(p.numel() for p in online.parameters()))
        if sizes[0] != sizes[1]:
            raise SystemExit(f"the networks have {sizes[0]} and {sizes[1]} parameters; the comparison would be unequal")
        here = folder / "others"

        def commit() -> None:
            before = len(agent.store.snapshots)
            agent.commit()
            if len(agent.store.snapshots) != before + 1:
                raise SystemExit("nothing was committed: the weights had not changed")

        def saver_files() -> None:
            agent.online.save(here / "model")
            other.restore(here / "model")

        def torch_file(*, durable: bool) -> None:
            torch.save(online.state_dict(), here / "model.pt")
            if durable:
                fsync(here / "model.pt")
                fsync(here)
            target.load_state_dict(torch.load(here / "model.pt"))

        def in_tensorflow(twin: Twin) -> bool:
            return same(agent.online.weights(), twin.weights())

        def in_torch() -> bool:
            return same(online.state_dict(), target.state_dict())

        ways: dict[str, tuple[Callable[[], object], Callable[[], bool]]] = {
            "commit": (commit, lambda: True),
            "refresh": (lambda: agent.refresh("benchmark"), lambda: in_tensorflow(agent.bootstrap.twins[0])),
            "Saver files": (saver_files, lambda: in_tensorflow(other)),
            "TensorFlow, in memory": (lambda: other.load(agent.online.weights()), lambda: in_tensorflow(other)),
            "PyTorch, in memory": (lambda: target.load_state_dict(online.state_dict()), in_torch),
            "PyTorch, file": (lambda: torch_file(durable=False), in_torch),
            "PyTorch, file and fsync": (lambda: torch_file(durable=True), in_torch),
        }
        times: dict[str, list[float]] = {name: [] for name in ("update", *ways)}
        for _ in track(range(1 + rounds), "rounds", console=Console(stderr=True)):
            agent.agent_steps += agent.settings.train.every_steps
            before = agent.updates
            times["update"].append(milliseconds(agent.learn))
            if agent.updates != before + 1:
                raise SystemExit(f"{agent.updates - before} updates were made and not one")
            for name, (way, equal) in ways.items():
                # The way before has made them equal.
                other.load({variable: np.zeros_like(w) for variable, w in other.weights().items()})
                with torch.no_grad():
                    for parameter in online.parameters():
                        parameter.add_(1e-4 * torch.randn_like(parameter))
                here.mkdir()
                times[name].append(milliseconds(way))
                if not equal():
                    raise SystemExit(f"{name}: the target does not hold the online weights")
                shutil.rmtree(here)
                if name == "refresh":
                    *_, older, _ = agent.store.snapshots
                    agent.store.remove_weights(lambda older=older: [older.id], attempt=1)
                fsync(folder)  # now, so that no fsync that is timed has to do what the removal left to do
    times["twin-graph"] = [sum(both) for both in zip(times["commit"], times["refresh"], strict=True)]
    return {name: values[1:] for name, values in times.items()}


def file_system(folder: Path) -> str:
    """The kind of file system on which a folder is, as `ext4`."""
    mounts = {Path(part.mountpoint): part.fstype for part in psutil.disk_partitions(all=True)}
    return next((mounts[place] for place in (folder, *folder.parents) if place in mounts), "unknown")


@click.command()
@click.option("--rounds", default=30, show_default=True, type=click.IntRange(min=1))
@click.option("--folder", type=click.Path(exists=True, file_okay=False, path_type=Path), help="Write below this one.")
@click.option("--json", "path", type=click.Path(path_type=Path), help="Also write the figures here.")
def main(rounds: int, folder: Path | None, path: Path | None) -> None:
    """Time every way of refreshing a target, ROUNDS times in turn; print a table."""
    with tempfile.TemporaryDirectory(dir=folder) as temporary:
        kind = file_system(Path(temporary).resolve())
        times = measure(Path(temporary), rounds)
    update = statistics.median(times["update"])
    rows = {
        "twin-graph: commit and refresh": "twin-graph",
        "  commit": "commit",
        "  refresh": "refresh",
        **{name: name for name in times if name not in ("twin-graph", "commit", "refresh", "update")},
        "one update, for comparison": "update",
    }
    table = Table("", "median ms", "least", "most", f"share, {UPDATES:,} updates", box=None, pad_edge=False)
    shares = {}
    for label, name in rows.items():
        median = statistics.median(times[name])
        cells = [f"{x:.2f}" for x in (median, min(times[name]), max(times[name]))]
        if name != "update":
            shares[name] = median / (UPDATES * update + median)
            cells.append(f"{shares[name]:.4%}")
        table.add_row(label, *cells)
    Console(width=120).print(table)
    document = {
        "processor": cpu.describe()._asdict(),
        "versions": {name: importlib.metadata.version(name) for name in PACKAGES},
        "file_system": kind,
        "load_average": os.getloadavg(),
        "milliseconds": times,
        "share_at_one_refresh_per_1000_updates": shares,
    }
    if path:
        path.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
