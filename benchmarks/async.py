r"""Asynchronous training: how throughput grows with workers.

    python benchmarks/async.py [--rounds 2] [--json benchmarks/results/async.json]

Pong with the network of the 2015 paper, minibatches of 32, one minibatch for each 4 agent steps of a worker, 8
environments a worker. Each worker is pinned to a core of its own and has one thread; the parameter server may use all
cores, whether there is one worker or two. Gradients of 1, 4 or 8 minibatches are added up before they are sent. The
rate is that of the second half of each training, in turn for all variants.
"""

import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import click
from rich.console import Console
from rich.progress import track
from rich.table import Table

from twin_graph.base import machine
from twin_graph.snapshots.run import Run

STEPS = {1: 3_000, 2: 5_000}  # agent steps of all workers
COMMON = [
    *("--set=train.start_steps=400", "--set=replay.capacity_steps=20000", "--set=act.epsilon_start=0.02"),
    *("--set=act.epsilon_end=0.02", "--set=evaluate.episodes=0", "--set=log.every_steps=400"),
    *("--set=twin.threads=1", "--set=resume.every_steps=1000000"),
]


def rate(workers: int, accumulate: int, servers: int = 1, steps: int = 0) -> float:
    """Agent steps per second of all workers together, over the second half; of a training of `STEPS` by default."""
    steps = steps or STEPS[workers]
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        settings = [f"--set=train.accumulate={accumulate}", f"--set=train.every_steps={4 * accumulate}"]
        command = [sys.executable, "-m", "twin_graph_cli", "train", "pong", f"--workers={workers}", f"--ps={servers}"]
        arguments = [f"--steps={steps}", f"--run-dir={run}", *COMMON, *settings]
        done = subprocess.run([*command, *arguments], capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(done.stderr[-2_000:])
        lines = [line for line in Run(run).metric_lines() if "seconds" in line][
            :-1
        ]  # the last waits for processes to end
        late = [line for line in lines if line["agent_steps"] > steps // 2]
        made = late[-1]["agent_steps"] - lines[-len(late) - 1]["agent_steps"]
        return float(made / sum(line["seconds"] for line in late))


@click.command()
@click.option("--rounds", default=2, show_default=True)
@click.option("--json", "path", type=click.Path(path_type=Path), help="Write the figures here.")
def main(rounds: int, path: Path | None) -> None:
    """Time all variants in turn, print a table, write JSON."""
    variants = [(workers, accumulate) for accumulate in (1, 4, 8) for workers in (1, 2)]
    rates: dict[tuple[int, int], list[float]] = {variant: [] for variant in variants}
    for _ in track(range(rounds), "rounds"):
        for variant in variants:
            rates[variant].append(rate(*variant))
    table = Table("minibatches a message", "workers", "agent steps/s", "times one worker, by rounds", box=None)
    results = []
    for workers, accumulate in variants:
        measured, one = rates[workers, accumulate], rates[1, accumulate]
        ratios = [ours / theirs for ours, theirs in zip(measured, one, strict=True)]
        table.add_row(
            str(accumulate),
            str(workers),
            f"{statistics.median(measured):.0f} ({min(measured):.0f} to {max(measured):.0f})",
            f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})",
        )
        results.append({"workers": workers, "accumulate": accumulate, "rates": measured, "ratios": ratios})
    Console().print(table)
    if path:
        document = {"processor": machine.describe()._asdict(), "rounds": rounds, "results": results}
        path.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
