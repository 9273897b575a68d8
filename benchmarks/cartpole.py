r"""Trains CartPole with several seeds and evaluates each last snapshot over 100 fresh episodes.

    python benchmarks/cartpole.py [--seeds 5] [--output benchmarks/results/cartpole.json]
    python benchmarks/cartpole.py --seeds 2 --policy best --policy 'lag(500)' --policy 'window(4)' \
        --set evaluate.every_steps=2500 --output benchmarks/results/cartpole-policies.json

Nothing is chosen: the last snapshot counts, not the best. The commands are those that a user types. `seconds` are of
the whole command, `training` those between the run's start and end in its ledger, evaluations included.
"""

import itertools
import json
import subprocess
import sys
import tempfile
import time
from datetime import datetime
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from twin_graph.base import machine
from twin_graph.snapshots.ledger import End, Start
from twin_graph.snapshots.run import Run

GOAL = 475.0  # CartPole-v1's reward threshold in Gymnasium's registry
EPISODES = 100


@click.command()
@click.option("--seeds", default=5, show_default=True, help="Seeds 1 to this one.")
@click.option("--policy", "policies", multiple=True, default=["latest"], help="target.policy; repeatable.")
@click.option("--set", "settings", multiple=True, metavar="KEY=VALUE", help="As in `twin-graph train`; repeatable.")
@click.option("--output", type=click.Path(path_type=Path), default=Path("benchmarks/results/cartpole.json"))
def main(seeds: int, policies: tuple[str, ...], settings: tuple[str, ...], output: Path) -> None:
    """Train, evaluate, print a table and write JSON."""
    results = []
    with tempfile.TemporaryDirectory() as folder:
        for number, (policy, seed) in enumerate(itertools.product(policies, range(1, seeds + 1))):
            run = f"{folder}/{number}"
            start = time.perf_counter()
            chosen = [f"--set={setting}" for setting in (f"target.policy={policy}", *settings)]
            trained = twin_graph("train", "cartpole", "--seed", str(seed), "--run-dir", run, *chosen)
            seconds = time.perf_counter() - start
            evaluated = twin_graph("evaluate", run, "latest", "--episodes", str(EPISODES))
            results.append(
                {
                    "policy": policy,
                    "seed": seed,
                    "mean": evaluated["mean"],
                    "interval_95": evaluated["interval_95"],
                    "minimum": min(evaluated["returns"]),
                    "episodes": evaluated["episodes"],
                    "agent_steps": trained["agent_steps"],
                    "updates": trained["updates"],
                    "seconds": round(seconds, 1),
                    "training_seconds": round(training_seconds(Path(run)), 1),
                    "weights_sha256": trained["weights_sha256"],
                }
            )
            Console(stderr=True).print(results[-1])
    document = {"goal": GOAL, "settings": settings, "cpu": machine.describe()._asdict(), "results": results}
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    of_time = ("agent steps", "seconds", "training")
    table = Table("policy", "seed", "mean return", "95% interval", "worst", *of_time, "reached", box=None)
    for result in results:
        low, high = result["interval_95"]
        table.add_row(
            result["policy"],
            str(result["seed"]),
            f"{result['mean']:.1f}",
            f"{low:.1f} to {high:.1f}",
            f"{result['minimum']:.0f}",
            f"{result['agent_steps']:,}",
            f"{result['seconds']:.1f}",
            f"{result['training_seconds']:.1f}",
            "yes" if result["mean"] >= GOAL else "no",
        )
    Console().print(table)


def training_seconds(folder: Path) -> float:
    """Of a run, without what TensorFlow takes to be imported and the graphs to be built."""
    events = list(Run(folder).ledger.events())
    begun, ended = (
        datetime.fromisoformat(next(e for e in events if isinstance(e, kind)).time) for kind in (Start, End)
    )
    return (ended - begun).total_seconds()


def twin_graph(*arguments: str) -> dict[str, Any]:
    """What a command prints with `--json`."""
    command = [sys.executable, "-m", "twin_graph_cli", *arguments, "--json"]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE)
    document: dict[str, Any] = json.loads(done.stdout)
    return document


if __name__ == "__main__":
    main()
