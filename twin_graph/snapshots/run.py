"""The folder of a run: where everything in it lies, and what its records say.

checkpoints/<run>/
  run.json            what this run is: settings, protocol, versions, processor
  snapshots/<id>/     see `twin_graph.snapshots.store`
  ledger.jsonl        starts and ends of the trainer, commits, swaps
  evaluations.jsonl   scores by snapshot id, every episode's return
  metrics.jsonl       what TensorBoard shows, as lines
  events/             TensorBoard's own file, one for each attempt
"""

import datetime
import json
import os
import shutil
import socket
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import psutil

from twin_graph import cpu
from twin_graph.config import Settings, validate
from twin_graph.errors import DamagedError, UsageError
from twin_graph.snapshots.files import append_line, fsync, read_lines, write_file
from twin_graph.snapshots.store import FORMAT, Manifest, SnapshotStore

RUNS = Path("checkpoints")

_NEWEST_METRICS_BYTES = 65_536

#: Packages whose versions a run records.
VERSIONED = ("twin-graph", "tensorflow", "numpy", "gymnasium", "ale-py")


class Run:
    """Paths and records of one run. Opening it reads `run.json` alone.

    Raises:
      UsageError: there is no run in this folder.
      DamagedError: its `run.json` is not what was written.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.attempt = 1
        try:
            self.description = json.loads((folder / "run.json").read_text(encoding="utf-8"))
            if self.description["format"] != FORMAT:
                raise DamagedError(
                    f"{folder} has format {self.description['format']}; this version of twin-graph reads {FORMAT}"
                )
            self.settings: Settings = validate(self.description["settings"])
        except (FileNotFoundError, NotADirectoryError):
            raise UsageError(f"no run in {folder}; `twin-graph runs` lists those in {RUNS}/") from None
        except (ValueError, KeyError, TypeError, UsageError) as error:
            raise DamagedError(f"{folder / 'run.json'} is damaged: {error}") from None

    @property
    def name(self) -> str:
        return self.folder.resolve().name

    @property
    def events(self) -> Path:
        """TensorBoard's folder."""
        return self.folder / "events"

    def store(self) -> SnapshotStore:
        """The run's snapshots as they are now."""
        return SnapshotStore(self.folder / "snapshots")

    def record(self, event: str, **fields: Any) -> None:
        """Appends a durable line to the ledger; every line says event, attempt and time."""
        append_line(
            self.folder / "ledger.jsonl", {"event": event, "attempt": self.attempt, "time": utc_now(), **fields}
        )

    def record_start(self) -> None:
        """The ledger's line on the process that trains from here on."""
        pid = os.getpid()
        self.record("start", pid=pid, host=socket.gethostname(), process_started=_process_started(pid))

    def record_evaluation(self, evaluation: dict[str, Any]) -> None:
        """Appends a durable line to `evaluations.jsonl`."""
        append_line(self.folder / "evaluations.jsonl", {"attempt": self.attempt, "time": utc_now(), **evaluation})

    def record_metrics(self, metrics: dict[str, Any]) -> None:
        """Appends a line to `metrics.jsonl`; not fsynced, since nothing is decided by it."""
        append_line(self.folder / "metrics.jsonl", {"attempt": self.attempt, **metrics}, durable=False)

    def ledger(self) -> Iterator[dict[str, Any]]:
        return _read(self.folder / "ledger.jsonl", "event", "attempt", "time")

    def evaluations(self) -> Iterator[dict[str, Any]]:
        return _read(self.folder / "evaluations.jsonl", "snapshot", "scheduled", "returns")

    def metrics(self) -> Iterator[dict[str, Any]]:
        return _read(self.folder / "metrics.jsonl", "agent_steps")

    def newest_metrics(self) -> dict[str, Any]:
        """The newest line of metrics with counters and rates; empty before the first."""
        lines = read_lines(self.folder / "metrics.jsonl", newest_bytes=_NEWEST_METRICS_BYTES)
        return next((line for line in reversed(list(lines)) if "agent_steps_per_second" in line), {})

    def scores(self) -> dict[str, float]:
        """Mean return by snapshot id, over the episodes of its scheduled evaluations."""
        returns: dict[str, list[float]] = {}
        for evaluation in self.evaluations():
            if evaluation["scheduled"]:
                returns.setdefault(evaluation["snapshot"], []).extend(evaluation["returns"])
        return {snapshot: sum(r) / len(r) for snapshot, r in returns.items() if r}

    def resolve(self, reference: str) -> Manifest:
        """The snapshot that a reference means: see `SnapshotStore.resolve`."""
        return self.store().resolve(reference, self.scores())

    def state(self) -> str:
        """`running`, `finished`, `stopped` (by a person) or `failed` (by an error or a crash)."""
        newest = None
        for line in self.ledger():
            if line["event"] in ("start", "end"):
                newest = line
        if newest is None:
            return "failed"
        if newest["event"] == "end":
            return str(newest["state"])
        if newest["host"] != socket.gethostname():
            return "running"  # all that can be known from here is that it has not said it ended
        started = _process_started(newest["pid"])
        return "running" if started is not None and abs(started - newest["process_started"]) < 1 else "failed"


def check_new_folder(folder: Path) -> None:
    """Raises `UsageError` if a run cannot be made here, or there is something already: nothing is ever overwritten."""
    if patterns := sorted(set(str(folder.absolute())) & set("*?[]\\")):
        raise UsageError(
            f"TensorFlow would take {' '.join(patterns)} in {folder} for a pattern; choose another --run-dir"
        )
    if folder.exists() or folder.is_symlink():
        raise UsageError(f"{folder} exists already; choose another --run-dir, or remove it")


def create(folder: Path | str, settings: Settings, protocol: Mapping[str, Any] = MappingProxyType({})) -> Run:
    """Makes the folder of a new run.

    Args:
      folder: must not exist yet.
      settings: of the whole run; they never change.
      protocol: what scores of the environment depend on, for people.

    Raises:
      UsageError: it exists already, or cannot be made. Nothing is overwritten.
    """
    from importlib.metadata import version  # slow to import, and only a new run needs it

    folder = Path(folder)
    check_new_folder(folder)
    try:
        folder.mkdir(parents=True)
    except (PermissionError, NotADirectoryError, FileExistsError) as error:
        raise UsageError(f"cannot make {folder}: {error.strerror}") from None
    description = {
        "format": FORMAT,
        "name": folder.resolve().name,
        "created": utc_now(),
        "settings": settings.model_dump(),
        "settings_sha256": settings.sha256(),
        "protocol": dict(protocol),
        "versions": {name: version(name) for name in VERSIONED},
        "cpu": cpu.describe()._asdict(),
    }
    try:
        write_file(folder / "run.json", json.dumps(description, indent=1) + "\n")
        fsync(folder.parent)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    return Run(folder)


def default_folder(settings: Settings) -> Path:
    """The first free `checkpoints/<preset>-seed<seed>-<number>`."""
    number = 1
    while (folder := RUNS / f"{settings.preset}-seed{settings.seed}-{number}").exists():
        number += 1
    return folder


def find(name: str) -> Run:
    """The run in a folder, or of that name under `checkpoints/`."""
    here, there = Path(name), RUNS / name
    return Run(here if (here / "run.json").exists() or not (there / "run.json").exists() else there)


def utc_now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds")


def _read(path: Path, *keys: str) -> Iterator[dict[str, Any]]:
    """The records of a file, each of which must have these keys."""
    for record in read_lines(path):
        if missing := [key for key in keys if key not in record]:
            raise DamagedError(f"{path} is damaged: a record has no {missing[0]!r}")
        yield record


def _process_started(pid: int) -> float | None:
    """When a living process of this machine began, in seconds after the machine did: not moved by a clock that is set.

    It tells the process from another that was given the same number later.
    """
    try:
        process = psutil.Process(pid)
        if process.status() == psutil.STATUS_ZOMBIE:
            return None
        return float(process.create_time() - psutil.boot_time())
    except psutil.NoSuchProcess:
        return None
