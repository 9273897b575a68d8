r"""Kills experiments with SIGKILL at random moments, and compares what comes of them with one that nobody killed.

    python tests/crash/kill_experiment.py [--kills 20] [--seed 1] [--json tests/crash/results/kill_experiment.json]

An experiment of two policies and two seeds, two runs at a time. At a random moment `experiment run` gets the signal,
or one of its trainings, or all of them; then the same command again, until the experiment is done; then a new one,
until there were so many kills. Each must end with the weights and the tables of the one that nobody killed (but for
seconds, attempts and stops), with none of its runs brought to its end twice, and with nothing that `verify` finds.
"""

import contextlib
import csv
import json
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import click
import psutil
from rich.console import Console

from twin_graph.base import machine
from twin_graph.records import report
from twin_graph.records.verify import verify
from twin_graph.snapshots.run import Run

FILE = """
name = "small"
preset = "cartpole"
steps = 4_000
seeds = [1, 2]
[settings]
train.start_steps = 200
model.hidden_units = [16]
target.refresh_every_updates = 50
resume.every_steps = 500
evaluate.every_steps = 1_000
evaluate.episodes = 3
log.every_steps = 500
[factors]
target.policy = ["latest", "lag(100)"]
"""
RUNS = ["latest,seed=1", "lag-100,seed=1", "latest,seed=2", "lag-100,seed=2"]
VICTIMS = ["the runner", "a training", "all"]
#: Columns that tell of the clock and of the kills themselves.
CLOCK = ("seconds_to_threshold", "attempts", "stops")


def command(folder: Path, *arguments: str) -> list[str]:
    """Of the experiment in a folder."""
    (folder / "small.toml").write_text(FILE, encoding="utf-8")
    return [sys.executable, "-m", "twin_graph_cli", "experiment", *arguments]


def trainings(folder: Path) -> list[psutil.Process]:
    """Processes that train a run in a folder."""
    found = psutil.process_iter(["cmdline"])
    return [process for process in found if any(f"{folder}/" in word for word in process.info["cmdline"] or ())]


def killed(folder: Path, victim: str, seconds: float) -> bool:
    """Runs the experiment for about so long and kills; False if it was done before."""
    again = command(folder, "run", "small.toml", "--jobs=2", "--retries=3")
    runner = subprocess.Popen(again, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while not trainings(folder) and runner.poll() is None:
        time.sleep(0.05)
    with contextlib.suppress(subprocess.TimeoutExpired):
        runner.wait(seconds)
    if runner.poll() is not None:
        return False
    if victim != "a training":
        runner.kill()
    targets = trainings(folder)
    for process in {"the runner": [], "a training": targets[:1], "all": targets}[victim]:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    if victim == "a training":  # the runner is to go on with it by itself
        runner.wait()
    return True


def outcome(folder: Path) -> dict[str, Any]:
    """What the experiment in a folder came to, without what a clock says."""
    subprocess.run(command(folder, "report", "small"), cwd=folder, check=True, stdout=subprocess.DEVNULL)
    experiment = folder / "checkpoints" / "experiments" / "small"
    tables = {}
    for name in ("curves", "targets", "conditions", "runs"):
        with (experiment / "report" / f"{name}.csv").open(encoding="utf-8") as file:
            tables[name] = [{key: row[key] for key in row if key not in CLOCK} for row in csv.DictReader(file)]
    weights = {name: report.status(Run(experiment / name)).weights_sha256 for name in RUNS}
    return {"weights": weights, **tables}


def faults(folder: Path, wanted: dict[str, Any]) -> list[str]:
    """What is not as it should be in the experiment in a folder."""
    experiment = folder / "checkpoints" / "experiments" / "small"
    found = [f"{folder}: {what} differ" for what, value in outcome(folder).items() if value != wanted[what]]
    lines = [json.loads(line) for line in (experiment / "outcomes.jsonl").read_text(encoding="utf-8").splitlines()]
    ends = Counter(line["run"] for line in lines if line["code"] == 0)
    found += [f"{experiment / name} came to its end {count} times" for name, count in ends.items() if count > 1]
    for name in RUNS:
        findings = verify(Run(experiment / name))
        found += [f"{experiment / name}: {damage}" for damage in findings.damage]
        finished = (experiment / name / "ledger.jsonl").read_text(encoding="utf-8").count('"finished"')
        if finished != 1:
            found.append(f"{experiment / name} says {finished} times that it is finished")
    return found


@click.command()
@click.option("--kills", default=20, show_default=True)
@click.option("--seed", default=1, show_default=True, help="Of the moments and victims.")
@click.option("--json", "path", type=click.Path(path_type=Path), help="Write the figures here.")
def main(kills: int, seed: int, path: Path | None) -> None:
    """Kill, go on, and compare."""
    console = Console(stderr=True)
    choose = random.Random(seed)
    made: Counter[str] = Counter()
    wrong: list[str] = []
    experiments = 0
    with tempfile.TemporaryDirectory(prefix="kill-experiment-") as root:
        whole = Path(root, "whole")
        whole.mkdir()
        subprocess.run(command(whole, "run", "small.toml", "--jobs=2"), cwd=whole, check=True)
        wanted = outcome(whole)
        while made.total() < kills:
            experiments += 1
            folder = Path(root, str(experiments))
            folder.mkdir()
            # A training takes some seconds until TensorFlow is there, and some to train.
            while made.total() < kills and killed(folder, victim := choose.choice(VICTIMS), choose.uniform(0, 15)):
                made[victim] += 1
                console.print(f"{made.total()} of {kills}: {victim}, experiment {experiments}")
            subprocess.run(command(folder, "run", "small.toml", "--jobs=2"), cwd=folder, check=True)
            if trainings(folder):
                wrong.append(f"{folder}: a training goes on after its experiment")
            wrong += faults(folder, wanted)
    document = {"kills": made, "experiments": experiments, "faults": wrong, "processor": machine.describe()._asdict()}
    console.print_json(data=document)
    if path:
        path.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    if wrong:
        raise SystemExit("something is wrong")


if __name__ == "__main__":
    main()
