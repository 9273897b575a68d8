r"""Which of several versions or settings of twin-graph trains faster: they take turns, in slices of a second or less.

    python benchmarks/slices.py [--seconds 0.4] [--cycles 60] [--copies 2] [--json FILE] VARIANT VARIANT...

A VARIANT is the folder of a checkout, and settings: '. twin.precision=bf16' or '../old train.chunk_steps=0'. Every one
trains the preset `pong`, or another (`preset=cartpole`), as its own `phases.py` does, in processes of its own, until
they make updates; then all of them are halted (SIGSTOP) but the one whose turn it is. The first is what the others are
compared with. With `remote=yes` its resume points are sent to a folder.

The speed of a shared machine changes by a third within minutes, and so do the figures of runs made one after the
other. Slices meet the same minutes. What remains: processes of one version differ, for as long as they live, by up to
1.04 times, and those started first were the slowest in five of six series of four. So each variant has several copies,
started in turn from the first to the last and from the last to the first, and the table gives least and most by copies:
a gain smaller than that is none. What a variant has in the caches is lost at each turn, of all alike. Linux.
"""

import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import phases
import psutil
from rich.console import Console
from rich.progress import track
from rich.table import Table

from twin_graph.base import machine

STARTED = phases.START + phases.WARM_UP  # agent steps


class Copy:
    """A training of a variant in a process of its own, halted but for its turns; ends with `close()`."""

    def __init__(self, text: str, records: Path) -> None:
        self.text = text
        folder, *settings = text.split()
        self._counter = records / "agent_steps"
        records.mkdir()
        self._counter.write_text("0", encoding="utf-8")
        self._process = psutil.Popen(
            [sys.executable, Path(folder, "benchmarks", "slices.py").resolve(), "--train", str(records), *settings],
            env={**os.environ, "PYTHONPATH": str(Path(folder).resolve())},
            stdout=subprocess.DEVNULL,
        )
        while self._steps() < STARTED:
            if self._process.poll() is not None:
                raise click.ClickException(f"{text} did not train; its error stands above")
            time.sleep(0.05)
        self._to_the_next_count()
        self._process.suspend()
        self._active, self._first, self._spent = 0.0, self._steps(), self._processor()

    def turn(self, seconds: float) -> None:
        """Lets it train so long."""
        with self._running():
            time.sleep(seconds)

    def finish(self) -> None:
        """Lets it train until it counts steps, as it was when it was first halted: it counts whole chunks."""
        with self._running():
            self._to_the_next_count()

    def figures(self) -> dict[str, Any]:
        """Of all its turns."""
        steps, processor = self._steps() - self._first, self._processor() - self._spent
        return {
            "agent_steps": steps,
            "seconds": self._active,
            "agent_steps_per_second": steps / self._active,
            "processor_milliseconds_per_agent_step": 1000 * processor / steps,
            "cores_share": processor / self._active / machine.describe().cores,
        }

    def close(self) -> None:
        self._process.kill()
        self._process.wait()

    @contextlib.contextmanager
    def _running(self) -> Iterator[None]:
        began = time.perf_counter()
        self._process.resume()
        yield
        self._process.suspend()
        self._active += time.perf_counter() - began

    def _to_the_next_count(self) -> None:
        steps = self._steps()
        while self._steps() == steps and self._process.poll() is None:
            time.sleep(0.001)

    def _steps(self) -> int:
        return int(self._counter.read_text(encoding="utf-8"))

    def _processor(self) -> float:
        times = self._process.cpu_times()
        return times.user + times.system


def train(records: Path, assignments: tuple[str, ...]) -> None:
    """Trains until it is killed, and keeps the number of agent steps in a file."""
    from twin_graph import envs, training
    from twin_graph.snapshots.run import create

    presets = [word.removeprefix("preset=") for word in assignments if word.startswith("preset=")]
    others = tuple(word for word in assignments if not word.startswith(("preset=", "remote=")))
    settings = phases.chosen_settings("chunks", [*presets, "pong"][0], 10**6, others)
    env = envs.make(settings.env, count=settings.env.count)
    counter = os.open(records / "agent_steps", os.O_WRONLY)
    run = create(records / "run", settings)
    progresses: Iterator[Any] = training.train(run, env)
    if "remote=yes" in assignments:
        from twin_graph.remote import owners
        from twin_graph.remote.background import Background
        from twin_graph.remote.urls import place_at

        url = (records / "remote").as_uri()
        sends = Background(run, place_at(url), owners.of(run, url))
        sends.start()
        progresses = sends.follow(progresses)
    for progress in progresses:
        os.pwrite(counter, b"%d" % getattr(progress, "agent", progress).agent_steps, 0)  # of older versions, too


@click.command()
@click.argument("variants", nargs=-1, metavar="VARIANT...")
@click.option("--seconds", default=0.4, show_default=True, type=click.FloatRange(min=0.1), help="Of one slice.")
@click.option("--cycles", default=60, show_default=True, type=click.IntRange(min=1), help="Slices of each copy.")
@click.option("--copies", default=2, show_default=True, type=click.IntRange(min=1), help="Processes of each variant.")
@click.option("--json", "path", type=click.Path(path_type=Path), help="Also write the figures here.")
@click.option("--train", "records", type=click.Path(path_type=Path), hidden=True)
def main(
    variants: tuple[str, ...], seconds: float, cycles: int, copies: int, path: Path | None, records: Path | None
) -> None:
    """Compare the speed of versions and settings, in slices; for example '../old' '. train.chunk_steps=128'."""
    if records:
        train(records, variants)
        return
    if not variants or len(set(variants)) < len(variants):
        raise click.UsageError("give one variant or several different ones, for example '.' '. train.chunk_steps=128'")
    console = Console(width=120, highlight=False)
    running: list[Copy] = []
    with tempfile.TemporaryDirectory() as folder:
        try:
            for i in range(copies):
                for text in variants if i % 2 == 0 else reversed(variants):
                    console.print(f"starting {text}")
                    running.append(Copy(text, Path(folder) / str(len(running))))
            for cycle in track(range(cycles), "cycles", console=Console(stderr=True)):
                first = cycle % len(running)
                for copy in running[first:] + running[:first]:
                    copy.turn(seconds)
            for copy in running:
                copy.finish()
            rows: list[dict[str, Any]] = [
                {"variant": text, "copies": [copy.figures() for copy in running if copy.text == text]}
                for text in variants
            ]
        finally:
            for copy in running:
                copy.close()
    table = Table(box=None)
    for heading in ("variant", "agent steps/s", "times the first", "processor ms an agent step", "of the cores"):
        table.add_column(heading, justify="left" if heading == "variant" else "right")
    compared = statistics.fmean(over(rows[0]["copies"], "agent_steps_per_second"))
    for row in rows:
        rates = over(row["copies"], "agent_steps_per_second")
        row["times_the_first"] = statistics.fmean(rates) / compared
        spread = f"({min(rates) / compared:.3f} to {max(rates) / compared:.3f})"
        table.add_row(
            row["variant"],
            f"{statistics.fmean(rates):.0f}",
            f"{row['times_the_first']:.3f} {spread}",
            f"{statistics.fmean(over(row['copies'], 'processor_milliseconds_per_agent_step')):.2f}",
            f"{statistics.fmean(over(row['copies'], 'cores_share')):.0%}",
        )
    console.print(table)
    if path:
        document = {"processor": machine.describe()._asdict(), "seconds": seconds, "cycles": cycles, "variants": rows}
        path.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


def over(copies: list[dict[str, Any]], name: str) -> list[float]:
    """A figure of each copy."""
    return [copy[name] for copy in copies]


if __name__ == "__main__":
    main()
