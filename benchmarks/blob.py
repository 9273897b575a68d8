r"""Trains the preset `blob` with several seeds and evaluates it over fresh episodes, next to a random player.

    python benchmarks/blob.py [--seeds 2] [--runs FOLDER] [--output benchmarks/results/blob.json]
    python benchmarks/blob.py --seeds 1 --set train.steps=7000 --set act.epsilon_decay_steps=3000

Two snapshots of each run are evaluated: the last, and the best of the training's own evaluations, which played other
episodes. The commands are those that a user types.
"""

import json
import tempfile
from pathlib import Path
from typing import Any

import click
import numpy as np
from cartpole import twin_graph
from rich.console import Console
from rich.table import Table

from twin_graph import config
from twin_graph.base import machine
from twin_graph.evaluation.games import Contender, last, play
from twin_graph.snapshots.run import Run

EPISODES = 100


@click.command()
@click.option("--seeds", default=2, show_default=True, help="Seeds 1 to this one.")
@click.option("--set", "settings", multiple=True, metavar="KEY=VALUE", help="As in `twin-graph train`; repeatable.")
@click.option("--runs", type=click.Path(path_type=Path), help="Keeps the runs here, and makes none that is there.")
@click.option("--output", type=click.Path(path_type=Path), default=Path("benchmarks/results/blob.json"))
def main(seeds: int, settings: tuple[str, ...], runs: Path | None, output: Path) -> None:
    """Train, evaluate, print a table and write JSON."""
    results = [{"player": "random", **random_player()}]
    with tempfile.TemporaryDirectory() as folder:
        for seed in range(1, seeds + 1):
            run = f"{runs or folder}/{seed}"
            if not Path(run).exists():
                chosen = [f"--set={setting}" for setting in settings]
                twin_graph("train", "blob", "--seed", str(seed), "--run-dir", run, *chosen)
            trained = Run(Path(run))
            changed = {key: value for key, _, value in config.differences(config.load("blob"), trained.settings)}
            seconds = sum(line.get("seconds", 0) for line in trained.metric_lines())
            for ref in ("latest", "best"):
                evaluated = twin_graph("evaluate", run, ref, "--episodes", str(EPISODES))
                snapshot = twin_graph("show", run, evaluated["snapshot"])
                results.append(
                    {
                        "player": ref,
                        "seed": seed,
                        **figures(evaluated),
                        "snapshot": snapshot["manifest"]["counters"],
                        "weights_sha256": snapshot["manifest"]["weights_sha256"],
                        "settings": changed,
                        "seconds": round(seconds, 1),
                    }
                )
                Console(stderr=True).print(results[-1])
    document = {"cpu": machine.describe()._asdict(), "results": results}
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    table = Table("player", "seed", "updates", "mean return", "95% interval", "food", "enemy", "cut", box=None)
    for result in results:
        low, high = result["interval_95"]
        table.add_row(
            result["player"],
            str(result.get("seed", "-")),
            str(result["snapshot"]["updates"]) if "snapshot" in result else "-",
            f"{result['mean']:.1f}",
            f"{low:.1f} to {high:.1f}",
            *(str(result[end]) for end in ("food", "enemy", "cut")),
        )
    Console().print(table)


def random_player() -> dict[str, Any]:
    """What uniformly random actions are worth, over as many episodes as an agent plays."""
    settings = config.load("blob", [("evaluate.epsilon", 1.0)])
    played = last(play(Contender(lambda s: np.zeros((len(s), 1))), settings, episodes=EPISODES, at=(settings.seed, 0)))
    return figures(played.summary())


def figures(evaluated: dict[str, Any]) -> dict[str, Any]:
    """Mean return, and how episodes ended: which follows from their returns, -200 where the time was up."""
    returns = np.array(evaluated["returns"])
    return {
        "mean": evaluated["mean"],
        "interval_95": evaluated["interval_95"],
        "episodes": evaluated["episodes"],
        "food": int((returns > -200 + 25).sum()),
        "enemy": int((returns < -200).sum()),
        "cut": int((returns == -200).sum()),
    }


if __name__ == "__main__":
    main()
