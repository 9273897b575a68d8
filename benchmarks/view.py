"""What the page of `twin-graph view` costs: a list of 200 runs, and a run with 10,000 snapshots.

python benchmarks/view.py --json benchmarks/results/view.json

Needs Debian's packages chromium and chromium-driver. Each page is opened by a new server: once while it reads the runs,
then again.
"""

import contextlib
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import history
import psutil
from rich.console import Console
from rich.table import Table
from selenium import webdriver

from twin_graph.base import machine
from twin_graph.snapshots.forms import METRICS
from twin_graph.snapshots.lines import record_metrics
from twin_graph.snapshots.run import Run

ROUNDS = 5
PAGES = {
    "list": ("#/", "document.querySelectorAll('.runs tbody tr').length >= {runs}"),
    "scores": ("#/", "document.querySelectorAll('.runs .spark').length >= {runs}"),
    "run": (
        "#/run/0",
        "document.querySelectorAll(':is(#learning, #targets, #twins, #time) canvas').length >= 8"
        " && document.querySelectorAll('.ledger tbody tr').length > 0",
    ),
}


def many(folder: Path, count: int) -> None:
    """So many runs of CartPole, with what a list reads of each."""
    folder.mkdir()
    first = folder / "0"
    settings = ["--set=target.policy=mix(0.8, 8)", "--set=evaluate.every_steps=5000", "--set=log.every_steps=500"]
    train = [sys.executable, "-m", "twin_graph_cli", "train", "cartpole", "--run-dir", str(first), *settings]
    subprocess.run(train, check=True)
    unread = shutil.ignore_patterns("model.*", "resume", "events")
    for number in range(1, count):
        shutil.copytree(first, folder / str(number), ignore=unread)


def long(folder: Path, count: int, lines: Path) -> None:
    """One run with so many snapshots, and as many lines of metrics, which are those of another run again and again."""
    history.in_another_process("grow", folder / "long", count)
    run = Run(folder / "long")
    logged = [line for line in Run(lines).metric_lines() if "agent_steps_per_second" in line]
    (run.folder / METRICS).unlink(missing_ok=True)
    for number in range(count):
        line = {name: value for name, value in logged[number % len(logged)].items() if name != "attempt"}
        record_metrics(run, {**line, "agent_steps": number * run.settings.train.every_steps, "updates": number})


@contextlib.contextmanager
def server(folder: Path) -> Iterator[tuple[psutil.Process, str]]:
    """`twin-graph view` in a process, and its address."""
    command = [sys.executable, "-m", "twin_graph_cli", "view", "--no-browser", "--folder", str(folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None
        try:
            yield psutil.Process(process.pid), process.stdout.readline().strip()
        finally:
            process.terminate()


@contextlib.contextmanager
def chromium() -> Iterator[webdriver.Chrome]:
    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium") or ""
    for argument in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu"):
        options.add_argument(argument)
    with webdriver.Chrome(options=options, service=webdriver.ChromeService(shutil.which("chromedriver"))) as browser:
        browser.get("about:blank")
        yield browser


def opened(browser: webdriver.Chrome, address: str, ready: str) -> dict[str, float]:
    """Seconds to the first paint, and to what is waited for, by the browser's own clock."""
    watch = (
        "const done = arguments[0]; const look = () => "
        f"({ready}) ? done(performance.now()) : requestAnimationFrame(look); look()"
    )
    browser.get("about:blank")
    browser.get(address)
    there = browser.execute_async_script(watch)
    paint = browser.execute_script("return performance.getEntriesByName('first-contentful-paint')[0].startTime")
    return {"first paint": paint / 1000, "content": there / 1000}


def measure(folder: Path, page: str, runs: int) -> dict[str, float]:
    """Medians over new servers: seconds while it reads the runs and again, megabytes, the share of a processor."""
    place, ready = PAGES[page]
    rounds = []
    for _ in range(ROUNDS):
        with chromium() as browser, server(folder) as (process, address):
            found: dict[str, float] = {}
            for when in ("", ", again"):
                found |= {f"{k}{when}": v for k, v in opened(browser, address + place, ready.format(runs=runs)).items()}
            time.sleep(2)
            before = process.cpu_times()
            time.sleep(5)
            after = process.cpu_times()
            busy = after.user + after.system - before.user - before.system
            rounds.append({**found, "megabytes": process.memory_info().rss / 1e6, "share of a processor": busy / 5})
    return {name: statistics.median(one[name] for one in rounds) for name in rounds[0]}


@click.command()
@click.option("--runs", default=200, show_default=True)
@click.option("--snapshots", default=10_000, show_default=True)
@click.option("--json", "path", type=click.Path(path_type=Path), help="Also write the figures here.")
def main(runs: int, snapshots: int, path: Path | None) -> None:
    """Measure what the page costs on this machine."""
    with tempfile.TemporaryDirectory() as temporary:
        list_folder, run_folder = Path(temporary, "many"), Path(temporary, "one")
        many(list_folder, runs)
        long(run_folder, snapshots, list_folder / "0")
        figures: dict[str, Any] = {
            "processor": machine.describe()._asdict(),
            "load": psutil.getloadavg()[0],
            "runs": runs,
            "snapshots": snapshots,
            "list": measure(list_folder, "list", runs),
            "scores": measure(list_folder, "scores", runs),
            "run": measure(run_folder, "run", 1),
        }
    table = Table(box=None, pad_edge=False)
    pages = {"list": f"{runs} runs listed", "scores": "with scores", "run": f"{snapshots:,} snapshots"}
    for heading in ("what", *pages.values()):
        table.add_column(heading, justify="left" if heading == "what" else "right")
    for name in figures["list"]:
        table.add_row(name, *(f"{figures[page][name]:.3g}" for page in pages))
    Console().print(table)
    if path:
        path.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
