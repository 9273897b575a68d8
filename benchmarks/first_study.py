r"""A new user's path, timed: from a fresh clone to the report of a first study.

    python benchmarks/first_study.py [--json benchmarks/results/first_study.json]

A clone of this repository, a virtual environment with nothing in it, `pip install '.[experiments]'`, then the study of
two policies and three seeds on CartPole below, two runs at a time, and its report. Each is a command of the README.
How long pip takes depends on the network and on pip's cache, which is used if there is one.
"""

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table

from twin_graph import cpu

ROOT = Path(__file__).parents[1]
FILE = """
name = "first"
preset = "cartpole"
steps = 20_000
seeds = [1, 2, 3]

[settings]
evaluate.every_steps = 1_000

[factors]
target.policy = ["latest", "lag(1000)"]
"""


@click.command()
@click.option("--json", "path", type=click.Path(path_type=Path), help="Write the figures here.")
def main(path: Path | None) -> None:
    """Time each step of the path; print a table."""
    with tempfile.TemporaryDirectory(prefix="first-study-") as folder:
        clone = Path(folder, "twin-graph")
        program = str(clone / ".venv/bin/twin-graph")
        commands = {
            "clone": ["git", "clone", "--quiet", str(ROOT), str(clone)],
            "virtual environment": [sys.executable, "-m", "venv", str(clone / ".venv")],
            "install": [str(clone / ".venv/bin/pip"), "install", "--quiet", f"{clone}[experiments]"],
            "plan": [program, "experiment", "run", "first.toml", "--dry-run"],
            "train": [program, "experiment", "run", "first.toml", "--jobs", "2"],
            "report": [program, "experiment", "report", "first"],
        }
        seconds = {}
        for name, command in commands.items():
            began = time.monotonic()
            subprocess.run(command, cwd=clone if clone.exists() else folder, check=True)
            seconds[name] = time.monotonic() - began
            if name == "clone":
                (clone / "first.toml").write_text(FILE, encoding="utf-8")
        report = clone / "checkpoints/experiments/first/report/index.html"
        report_bytes = report.stat().st_size
    table = Table("step", "seconds", box=None)
    for name, spent in [*seconds.items(), ("all", sum(seconds.values()))]:
        table.add_row(name, f"{spent:.0f}")
    Console().print(table)
    if path:
        document = {"seconds": seconds, "report_bytes": report_bytes, "processor": cpu.describe()._asdict()}
        path.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
