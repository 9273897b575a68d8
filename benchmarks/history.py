"""What a long history costs: commands that read a run, and a trainer that resumes it, at 100 to 20,000 snapshots.

python benchmarks/history.py --json benchmarks/results/history.json

A run of CartPole is trained for some steps and then given snapshots, one for each update, with their refreshes,
evaluations and removals, by the calls that a trainer makes. Fsyncs are left out while it grows.
"""

import contextlib
import gc
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click
import psutil
from rich.console import Console
from rich.table import Table

from twin_graph import config
from twin_graph.base import machine

SETTINGS = {
    "train.steps": 10**9,
    "train.start_steps": 200,
    "train.batch_size": 16,
    "model.hidden_units": [16],
    "save.every_updates": 10**9,
    "target.refresh_every_updates": 10**9,
    "evaluate.every_steps": 10**8,
    "resume.every_steps": 10**9,
    "twin.threads": 1,
}
POLICIES = ("latest", "window(8)", "mix(0.8, 8)", "lag(500)", "best")
KEPT = 1_000
EVALUATED_EVERY = 100
COMMANDS = ("status", "log -n 3", "show", "explain --update 50", "verify", "prune --dry-run")


@contextlib.contextmanager
def trainer(folder: Path, changes: dict[str, Any]) -> Iterator[Any]:
    """The agent of a run, new or resumed, after a few steps; it ends with the `with`."""
    from twin_graph import envs, training
    from twin_graph.snapshots.resumable import newest_point
    from twin_graph.snapshots.run import Run, create

    is_new = not folder.exists()
    run = create(folder, config.load("cartpole", {**SETTINGS, **changes}.items())) if is_new else Run(folder)
    with contextlib.closing(envs.make(run.settings.env, count=run.settings.env.count)) as env:
        point = None if is_new else newest_point(run).point
        with contextlib.closing(training.train(run, env, point)) as progresses:
            progress = next(progresses)
            while progress.updates < 1:
                progress = next(progresses)
            yield progress.live


def grow(folder: Path, count: int) -> None:
    """Makes a run with so many snapshots, of which the newest `KEPT` have weights."""
    from twin_graph.agent.role import Why
    from twin_graph.snapshots.files import write_new
    from twin_graph.snapshots.store import Provenance, SnapshotStore

    os.fsync = lambda fd: None  # noqa: ARG005
    with trainer(folder, {"save.keep_last": KEPT, "save.keep_every": 0, "seed": 1}) as live:
        [learner], store = live.learners, live.store
        first, sha256 = store.prefix(store.newest.id).parent, store.newest.weights_sha256
        weights = [(path.suffix, path.read_bytes()) for path in first.glob("model.*")]

        def save(prefix: Path) -> None:
            for suffix, content in weights:
                write_new(prefix.with_suffix(suffix), content)

        began = len(store.snapshots)
        for number in range(began, count):
            live.tally.updates += 1
            live.tally.agent_steps += live.settings.train.every_steps
            learner.newest = store.commit(
                save,
                Provenance(
                    lineage=learner.lineage,
                    attempt=1,
                    counters=live.tally.counters,
                    settings_sha256="0" * 64,
                    weights_sha256=sha256,
                    variables=learner.online.variables,
                    health=live.held_out.health(learner.online),
                ),
            )
            newest, previous, at = (learner.newest.id,), (store.snapshots[-2].id,), live.tally.counters
            why = Why("latest", "every update: the newest", newest)
            why.record(live.run, at, into="target", learner="online", snapshots=newest, previous=previous)
            if number % EVALUATED_EVERY == 0:
                returns = [float(number % 7)] * 10
                result = {"returns": returns, "mean": returns[0], "episodes": 10, "interval_95": [0, 9], "protocol": {}}
                live.matches.record(learner.newest, result, challenger=learner.newest, played_at=at)
            if number > KEPT and number % 10 == 0:
                doomed = [s.id for s in store.snapshots[number - KEPT - 10 : number - KEPT]]
                _prune(store, doomed)
        learner.target.restore([store.newest], SnapshotStore(store.folder, live.run.ledger))
        live.commit_point()
        live.commit_point()


def _prune(store: Any, doomed: list[str]) -> None:
    """What `remove_weights` does, without a look at all that was removed before, which some versions take."""
    from twin_graph.snapshots.ledger import Prune, utc_now

    store._ledger.append(Prune(attempt=1, time=utc_now(), snapshots=tuple(doomed)))
    for snapshot_id in doomed:
        store._unlink_weights(snapshot_id)


def resumed(folder: Path) -> dict[str, float]:
    """What a trainer that resumes a run needs: medians in milliseconds, megabytes."""
    from twin_graph.snapshots.ledger import Restore
    from twin_graph.targets.policies import parse

    memory = psutil.Process().memory_info
    began = time.perf_counter()
    with trainer(folder, {}) as live:
        found = {"resume": 1000 * (time.perf_counter() - began)}
        live.commit_point()

        def commit() -> None:
            live.tally.updates += 1
            learner = live.learners.first
            learner.online.load({name: w + 1e-4 for name, w in learner.online.weights().items()})
            live.commit()

        found["commit"] = _milliseconds(commit)
        for policy in POLICIES:
            live.learners.first.target.policy = parse(policy)
            found[f"refresh by {policy}"] = _milliseconds(lambda: live.refresh("benchmark"))
            assert next(live.run.ledger.newest_first(Restore)).policy == policy
        found["resume point"] = _milliseconds(live.commit_point, rounds=5)
        gc.collect()
        found["megabytes"] = memory().rss / 1e6
    return found


def _milliseconds(action: Callable[[], object], *, rounds: int = 9) -> float:
    times = []
    for _ in range(rounds):
        began = time.perf_counter()
        action()
        times.append(1000 * (time.perf_counter() - began))
    return statistics.median(times[1:])


def command(folder: Path, text: str, *, rounds: int = 3) -> dict[str, float]:
    """Wall time of a whole process, the shortest of three, and its largest memory."""
    name, *options = text.split()
    seconds, megabytes = [], 0.0
    for _ in range(rounds):
        began = time.perf_counter()
        process = subprocess.Popen(
            [sys.executable, "-m", "twin_graph_cli", name, str(folder), *options], stdout=subprocess.DEVNULL
        )
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        assert process.returncode == 0
        seconds.append(time.perf_counter() - began)
        megabytes = max(megabytes, used.ru_maxrss / 1e3)
    return {"seconds": min(seconds), "megabytes": megabytes}


def in_another_process(part: str, *arguments: object) -> Any:
    """What a part of this script prints, as JSON."""
    call = [sys.executable, __file__, part, *map(str, arguments)]
    return json.loads(subprocess.run(call, check=True, stdout=subprocess.PIPE, text=True).stdout or "null")


def measure(folder: Path) -> dict[str, Any]:
    """All figures of a run; it is left as it was."""
    reading = {text: command(folder, text) for text in COMMANDS}
    reading["runs"] = command(folder.parent, "runs")
    copy = folder.with_name(f"{folder.name}-resumed")
    shutil.copytree(folder, copy)
    training = in_another_process("resumed", copy)
    shutil.rmtree(copy)
    return {"commands": reading, "trainer": training}


@click.command()
@click.option("--snapshots", multiple=True, type=int, default=(100, 2_000, 20_000), show_default=True)
@click.option("--runs", "kept", type=click.Path(path_type=Path), help="Where runs are made, or are already.")
@click.option("--json", "path", type=click.Path(path_type=Path), help="Also write the figures here.")
def main(snapshots: tuple[int, ...], kept: Path | None, path: Path | None) -> None:
    """Measure what the history of a run costs on this machine."""
    figures: dict[str, Any] = {"processor": machine.describe()._asdict(), "snapshots": {}}
    with tempfile.TemporaryDirectory() as temporary:
        for count in snapshots:
            folder = (kept or Path(temporary)) / str(count) / "run"
            if not folder.exists():
                in_another_process("grow", folder, count)
            figures["snapshots"][count] = measure(folder)
    table = Table(box=None, pad_edge=False)
    for heading in ("what", *(f"{count:,} snapshots" for count in snapshots)):
        table.add_column(heading, justify="left" if heading == "what" else "right")
    every = list(figures["snapshots"].values())
    for name in every[0]["commands"]:
        cells = (found["commands"][name] for found in every)
        table.add_row(name, *(f"{cell['seconds']:.2f} s, {cell['megabytes']:.0f} MB" for cell in cells))
    for name in every[0]["trainer"]:
        unit = "MB" if name == "megabytes" else "ms"
        table.add_row(f"trainer: {name}", *(f"{found['trainer'][name]:.1f} {unit}" for found in every))
    Console().print(table)
    if path:
        path.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    if sys.argv[1:2] == ["grow"]:
        grow(Path(sys.argv[2]), int(sys.argv[3]))
    elif sys.argv[1:2] == ["resumed"]:
        print(json.dumps(resumed(Path(sys.argv[2]))))
    else:
        main()
