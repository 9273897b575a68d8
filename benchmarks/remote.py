r"""What a remote costs on Pong: bytes of each resume point, and seconds to push and to pull a run with its replay.

    python benchmarks/remote.py [--steps 100000] [--json FILE]
    python benchmarks/slices.py '. resume.every_steps=2000' '. resume.every_steps=2000 remote=yes'   # and its speed

The remote is a folder on the same disk: so what is measured is reading, compressing, hashing and writing.
"""

import json
import tempfile
import time
from pathlib import Path

import click
from rich.console import Console

from twin_graph import config, envs, training
from twin_graph.base import machine
from twin_graph.base.text import size
from twin_graph.remote import fetching, heads
from twin_graph.remote.sending import Sender
from twin_graph.remote.urls import place_at
from twin_graph.snapshots.run import create

POINTS = 4


@click.command()
@click.option("--steps", default=100_000, show_default=True, type=click.IntRange(min=20_000), help="Agent steps.")
@click.option("--json", "path", type=click.Path(path_type=Path), help="Also write the figures here.")
def main(steps: int, path: Path | None) -> None:
    """Train Pong with a few resume points, and send each."""
    console = Console(width=120, highlight=False)
    changes = {"train.steps": steps, "resume.every_steps": steps // POINTS, "evaluate.episodes": 0}
    settings = config.load("pong", changes.items())
    with tempfile.TemporaryDirectory() as folder:
        run = create(Path(folder) / "run", settings)
        place = place_at((Path(folder) / "remote").as_uri())
        env = envs.make(settings.env, count=settings.env.count)
        sender = Sender(run, place, "a" * 32)
        sender.begin()
        points, newest = list[dict[str, float]](), -1
        known = set[str]()
        for progress in training.train(run, env):
            point = progress.live.resume_points.newest
            if point and point.number > newest:
                newest = point.number
                began = time.perf_counter()
                head = sender.send()
                new = {sha256: length for sha256, length in head.pieces.items() if sha256 not in known}
                known.update(new)
                seconds = time.perf_counter() - began
                points.append({"agent_steps": head.agent_steps, "new_bytes": sum(new.values()), "seconds": seconds})
        env.close()
        began = time.perf_counter()
        again = place_at((Path(folder) / "again").as_uri())
        other = Sender(run, again, "b" * 32)
        other.begin()
        head = other.send()
        pushed = time.perf_counter() - began
        began = time.perf_counter()
        fetching.pull(again, head, Path(folder) / "pulled")
        pulled = time.perf_counter() - began
        stored = sum(one.bytes for one in again.objects(heads.OBJECTS).values())
    for one in points:
        more, seconds = size(int(one["new_bytes"])), one["seconds"]
        console.print(f"at {one['agent_steps']:>7,} agent steps: {more} new, {seconds:.1f} s")
    console.print(f"the run: {size(head.bytes)}, stored as {size(stored)}; push {pushed:.1f} s, pull {pulled:.1f} s")
    if path:
        whole = {"bytes": head.bytes, "stored_bytes": stored, "push_seconds": pushed, "pull_seconds": pulled}
        document = {"processor": machine.describe()._asdict(), "points": points, **whole}
        path.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
