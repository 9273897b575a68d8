r"""How cost grows with environments, with minibatches, and with the replay.

    python benchmarks/scaling.py [--rounds 3] [--seconds 10] [--json benchmarks/results/scaling.json]
                                 [--picture benchmarks/results/scaling.png]

- Environments 1 to 64, with minibatches of 32: agent steps per second.
- Minibatches of 32 to 512, with 8 environments: updates and transitions per second.
- Replays of 10,000 to 1,000,000 agent steps, each 84x84x4: time to sample, and memory.

Trainings are of the preset `pong` by chunks of 64 agent steps, one update each 4 agent steps, one thread for each core
and fp32, with exploration at its end value, a replay of 20,000 that begins with 1,024 steps, without evaluations and
without lines of metrics. What is timed begins 192 agent steps later, after the first updates, and lasts to the end of
the chunk in which `--seconds` are over. Memory is the largest resident memory that the process ever had.

Replays are of 8 environments, filled through `Replay.add` with random frames and games of 1,000 vector steps. What is
timed is the sampling of the 16 minibatches of a chunk at once, and then of one of 32, with the making of their random
generators, for half of `--seconds` each; the figure is the median. The chunk comes first because the C library gives
memory back to the system at each call until larger arrays than a minibatch were freed, which a training does early.
Memory is what the process's resident memory grew by from before the replay was made until it was full. A replay that
would leave less than 2 GB of the machine's memory is left out.

Each point is measured in a fresh process, once a round, all points in turn; figures are medians over the rounds.
`others` is what other processes used of the cores meanwhile: the more, the less the rates say. `--environments`,
`--batch` and `--replay` choose other points.
"""

import importlib.metadata
import json
import resource
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
import numpy as np
import psutil
from fresh import in_a_process
from rich.console import Console
from rich.progress import track
from rich.table import Table

from twin_graph import config, cpu
from twin_graph.snapshots.run import VERSIONED, create

START, WARM_UP, CHUNK, EVERY, CAPACITY = 1_024, 192, 64, 4, 20_000  # agent steps
ENVIRONMENTS, BATCH = 8, 32  # where they do not vary
IMAGE = (4, 84, 84)
GAME = 1_000  # vector steps
MEMORY_LEFT = 2_000_000_000  # bytes

#: What is measured, and with what sizes: ("training", environments, batch) or ("replay", agent steps).
Point = tuple[str | int, ...]
Figures = dict[str, float]


def training(environments: int, batch: int, seconds: float) -> Figures:
    """Rates of a training, and the memory that it needed."""
    from phases import Busy

    from twin_graph import envs
    from twin_graph.training import train

    changes = {
        "env.count": environments,
        "train.batch_size": batch,
        "train.steps": 10**9,  # not reached
        "train.start_steps": START,
        "train.every_steps": EVERY,
        "train.chunk_steps": CHUNK,
        "replay.capacity_steps": CAPACITY,
        "act.epsilon_start": config.load("pong").act.epsilon_end,
        "evaluate.episodes": 0,
        "log.every_steps": 10**9,
        "twin.threads": cpu.describe().cores,
        "twin.precision": "fp32",
    }
    settings = config.load("pong", changes.items())
    env = envs.make(settings.env, count=environments)
    before: tuple[float, int, int, Busy] | None = None
    elapsed = steps = updates = others = 0.0
    with tempfile.TemporaryDirectory() as folder:
        for progress in train(create(Path(folder) / "run", settings), env):
            now, agent = time.perf_counter(), progress.agent
            if before is None and agent.agent_steps >= START + WARM_UP:
                before = now, agent.agent_steps, agent.updates, Busy.now()
            elif before and not steps and now - before[0] >= seconds:
                elapsed, steps, updates = now - before[0], agent.agent_steps - before[1], agent.updates - before[2]
                others = Busy.now().others(before[3]) / elapsed / cpu.describe().cores
                progress.stop.set()
    env.close()
    if not steps:
        raise SystemExit("the training was stopped before the timed part was over")
    if abs(EVERY * updates - steps) > CHUNK:
        raise SystemExit(f"{updates} updates in {steps} agent steps are not one each {EVERY}")
    return {
        "seconds": elapsed,
        "agent_steps_per_second": steps / elapsed,
        "updates_per_second": updates / elapsed,
        "transitions_per_second": batch * updates / elapsed,
        "others_share": others,
        "peak_resident_bytes": 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss,  # kilobytes on Linux
    }


def replay(capacity: int, seconds: float) -> Figures:
    """Times to sample from a full replay, and its memory."""
    from twin_graph.replay import Replay, Transition
    from twin_graph.streams import Purpose, stream

    train = config.load("pong").train
    random = np.random.default_rng(0)
    frames = random.integers(0, 256, (64, ENVIRONMENTS, *IMAGE[1:]), np.uint8)
    s = np.zeros((ENVIRONMENTS, *IMAGE), np.uint8)
    actions, rewards = np.zeros(ENVIRONMENTS, np.int64), np.zeros(ENVIRONMENTS, np.float32)
    process = psutil.Process()
    before = process.memory_info().rss
    ring = Replay(
        capacity_steps=capacity,
        environments=ENVIRONMENTS,
        observation_shape=IMAGE,
        dtype=np.uint8,
        stack=IMAGE[0],
        n_step=train.n_step,
        discount=train.discount,
    )
    for step in range(ring.length):
        s[:, -1] = frames[step % len(frames)]
        end = np.full(ENVIRONMENTS, (step + 1) % GAME == 0)
        ring.add(Transition(s, actions, rewards, end, end, s))
    grown = process.memory_info().rss - before

    def milliseconds(minibatches: int) -> float:
        times: list[float] = []
        until = time.perf_counter() + seconds / 2
        while (began := time.perf_counter()) < until:
            first = len(times) * minibatches
            ring.sample(BATCH, [stream(1, Purpose.SAMPLE, first + i) for i in range(minibatches)])
            times.append(1000 * (time.perf_counter() - began))
        return statistics.median(times)

    return {
        "chunk_milliseconds": milliseconds(CHUNK // EVERY),
        "minibatch_milliseconds": milliseconds(1),
        "resident_bytes": grown,
        "bytes_per_agent_step": grown / (ring.length * ENVIRONMENTS),
    }


def lacking(capacity: int) -> str:
    """What to say if there is too little free memory for a replay; empty if there is enough."""
    from twin_graph.replay import Replay

    needed = Replay.bytes_needed(capacity, IMAGE, np.uint8, IMAGE[0]) + MEMORY_LEFT
    free = psutil.virtual_memory().available
    if needed <= free:
        return ""
    return f"left out: a replay of {capacity:,} agent steps, {needed / 1e9:.1f} GB wanted, {free / 1e9:.1f} GB free"


class Results:
    """The figures of all rounds, by point."""

    def __init__(self) -> None:
        self.rounds: dict[Point, list[Figures]] = {}

    def add(self, point: Point, figures: Figures) -> None:
        self.rounds.setdefault(point, []).append(figures)

    def median(self, point: Point, name: str) -> float:
        return statistics.median(figures[name] for figures in self.rounds[point])

    def spread(self, point: Point, name: str) -> tuple[float, float]:
        """The least and the most."""
        values = [figures[name] for figures in self.rounds[point]]
        return min(values), max(values)

    def document(self, points: Sequence[Point]) -> list[dict[str, Any]]:
        """Of these points, for JSON."""
        return [
            {
                "point": point,
                "median": {name: self.median(point, name) for name in self.rounds[point][0]},
                "rounds": self.rounds[point],
            }
            for point in points
        ]


def show(results: Results, by_count: Sequence[Point], by_batch: Sequence[Point], by_size: Sequence[Point]) -> None:
    """Three tables."""
    console = Console(width=120, highlight=False)

    def table(title: str, *headings: str) -> Table:
        made = Table(title=title, title_justify="left", box=None)
        for heading in headings:
            made.add_column(heading, justify="right")
        return made

    def spread(point: Point, name: str, digits: int) -> list[str]:
        return [f"{x:,.{digits}f}" for x in (results.median(point, name), *results.spread(point, name))]

    def others(point: Point) -> str:
        return f"{results.median(point, 'others_share'):.0%}"

    def megabytes(point: Point, name: str) -> str:
        return f"{results.median(point, name) / 1e6:,.0f} MB"

    tables = [
        table(f"minibatches of {BATCH}", "environments", "agent steps/s", "least", "most", "largest memory", "others"),
        table(
            f"{ENVIRONMENTS} environments",
            *("minibatch", "updates/s", "least", "most", "transitions/s", "least", "most", "largest memory", "others"),
        ),
        table(
            "replay",
            *("agent steps", f"ms for {BATCH}", "least", "most", f"ms for {CHUNK // EVERY} x {BATCH}", "least", "most"),
            *("memory", "bytes an agent step"),
        ),
    ]
    for point in by_count:
        rates = spread(point, "agent_steps_per_second", 0)
        tables[0].add_row(str(point[1]), *rates, megabytes(point, "peak_resident_bytes"), others(point))
    for point in by_batch:
        rates = spread(point, "updates_per_second", 1) + spread(point, "transitions_per_second", 0)
        tables[1].add_row(str(point[2]), *rates, megabytes(point, "peak_resident_bytes"), others(point))
    for point in by_size:
        times = spread(point, "minibatch_milliseconds", 2) + spread(point, "chunk_milliseconds", 1)
        memory = [megabytes(point, "resident_bytes"), f"{results.median(point, 'bytes_per_agent_step'):,.0f}"]
        tables[2].add_row(f"{point[1]:,}", *times, *memory)
    for made in tables:
        if made.row_count:
            console.print(made)
            console.print()


def draw(
    results: Results, by_count: Sequence[Point], by_batch: Sequence[Point], by_size: Sequence[Point], picture: Path
) -> None:
    """Three panels, each median with the least and the most of the rounds."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt
    from matplotlib.ticker import LogLocator, NullLocator

    blue, orange = "#0b6e99", "#c2571a"

    def line(axes: Any, points: Sequence[Point], at: int, name: str, color: str, label: str) -> None:
        medians = [results.median(point, name) for point in points]
        spreads = [results.spread(point, name) for point in points]
        axes.errorbar(
            [point[at] for point in points],
            medians,
            yerr=[
                [median - least for median, (least, _) in zip(medians, spreads, strict=True)],
                [most - median for median, (_, most) in zip(medians, spreads, strict=True)],
            ],
            color=color,
            label=label,
            marker="o",
            markersize=4,
            capsize=3,
        )

    def log2(axes: Any, values: Sequence[Any], labels: Sequence[str]) -> None:
        axes.set_xscale("log", base=2)
        axes.set_xticks(values, labels)
        axes.minorticks_off()
        axes.margins(x=0.1)

    mpl.rcParams["font.size"] = 9
    figure, (left, middle, right) = plt.subplots(1, 3, figsize=(9, 3.4), layout="constrained")
    line(left, by_count, 1, "agent_steps_per_second", blue, "")
    log2(left, [point[1] for point in by_count], [str(point[1]) for point in by_count])
    left.set_ylim(0, 1.1 * left.get_ylim()[1])
    left.set(title=f"minibatches of {BATCH}", xlabel="environments", ylabel="agent steps per second")

    line(middle, by_batch, 2, "transitions_per_second", orange, "transitions")
    line(middle, by_batch, 2, "updates_per_second", blue, "updates")
    log2(middle, [point[2] for point in by_batch], [str(point[2]) for point in by_batch])
    middle.set_yscale("log")
    middle.set(title=f"{ENVIRONMENTS} environments", xlabel="minibatch, transitions", ylabel="per second")

    line(right, by_size, 1, "chunk_milliseconds", orange, f"{CHUNK // EVERY} minibatches of {BATCH}")
    line(right, by_size, 1, "minibatch_milliseconds", blue, f"a minibatch of {BATCH}")
    sizes = [f"{point[1]:,}\n{results.median(point, 'resident_bytes') / 1e9:.2g} GB" for point in by_size]
    log2(right, [point[1] for point in by_size], sizes)
    right.set_yscale("log")
    right.set(title="sampling from a full replay", xlabel="replay, agent steps and memory", ylabel="milliseconds")

    for axes in (middle, right):
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.10g}")
        axes.yaxis.set_minor_locator(NullLocator())
        axes.legend(frameon=False)
    for axes in (left, middle, right):
        axes.grid(alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(picture, dpi=200)


@click.command()
@click.option("--rounds", default=3, show_default=True, type=click.IntRange(min=1))
@click.option("--seconds", default=10.0, show_default=True, type=click.FloatRange(min=0.1), help="Timed at each point.")
@click.option(
    "--environments", "counts", multiple=True, default=(1, 2, 4, 8, 16, 32, 64), type=click.IntRange(1, CHUNK)
)
@click.option("--batch", "batches", multiple=True, default=(32, 64, 128, 256, 512), type=click.IntRange(min=1))
@click.option("--replay", "sizes", multiple=True, default=(10_000, 100_000, 1_000_000), type=click.IntRange(min=1_000))
@click.option("--json", "path", type=click.Path(path_type=Path), help="Also write the figures here.")
@click.option("--picture", type=click.Path(path_type=Path), help="Also draw them here (PNG or SVG).")
@click.option("--point", hidden=True)
def main(
    rounds: int,
    seconds: float,
    counts: tuple[int, ...],
    batches: tuple[int, ...],
    sizes: tuple[int, ...],
    path: Path | None,
    picture: Path | None,
    point: str | None,
) -> None:
    """Measure every point in turn, ROUNDS times; print three tables."""
    if point:
        kind, *numbers = json.loads(point)
        print(json.dumps({"training": training, "replay": replay}[kind](*numbers, seconds)))
        return
    by_count: list[Point] = [("training", count, BATCH) for count in sorted(set(counts))]
    by_batch: list[Point] = [("training", ENVIRONMENTS, batch) for batch in sorted(set(batches))]
    by_size: list[Point] = [("replay", size) for size in sorted(set(sizes))]
    turns = [*dict.fromkeys(by_count + by_batch), *by_size] * rounds  # what both have is measured once
    results, left_out = Results(), dict[Point, str]()
    for turn in track(turns, "points", console=Console(stderr=True)):
        if turn[0] == "replay" and (reason := lacking(int(turn[1]))):
            left_out[turn] = reason
        else:
            results.add(turn, in_a_process(__file__, "--seconds", str(seconds), "--point", json.dumps(turn)))
    by_size = [size for size in by_size if size in results.rounds]
    show(results, by_count, by_batch, by_size)
    for turn, reason in left_out.items():
        print(f"{reason} ({len(results.rounds.get(turn, ()))} of {rounds} rounds measured)")
    document = {
        "processor": cpu.describe()._asdict(),
        "versions": {name: importlib.metadata.version(name) for name in VERSIONED},
        "seconds": seconds,
        "environments": results.document(by_count),
        "minibatches": results.document(by_batch),
        "replays": results.document(by_size),
        "left_out": list(left_out.values()),
    }
    if path:
        path.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    if picture:
        draw(results, by_count, by_batch, by_size, picture)


if __name__ == "__main__":
    main()
