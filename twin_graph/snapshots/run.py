"""The folder of a run: where everything in it is, and what its records say.

checkpoints/<run>/
  run.json            what this run is: settings, protocol, versions, processor
  snapshots/<id>/     see `twin_graph.snapshots.store`
  resume/             see `twin_graph.snapshots.points`
  ledger.jsonl        see `twin_graph.snapshots.ledger`
  evaluations.jsonl   scores by snapshot id, every episode's return
  metrics.jsonl       what TensorBoard shows, as lines
  events/             TensorBoard's own file, one for each attempt
  videos/             films of scheduled evaluations, by snapshot id
  control/            people's requests to the trainer, the lock of the one process that may write, and how much of the
                      metrics an outside tracker has
"""

from __future__ import annotations

import contextlib
import errno
import functools
import hashlib
import math
import os
import re
import secrets
import socket
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import filelock

from twin_graph.base import machine
from twin_graph.base.here import absolute
from twin_graph.config import lookup, trust
from twin_graph.config.loading import replace, validate
from twin_graph.errors import DamagedError, InUseError, UsageError
from twin_graph.snapshots.files import (
    GrowingLines,
    Line,
    acquire,
    check_no_pattern,
    checked,
    commit_folder,
    damaged_line,
    displaced,
    file_lock,
    fsync,
    hold_folder,
    is_locked,
    lengthen,
    make_folder,
    read_file,
    read_lines,
    remove_leftovers,
    whole_bytes,
    write_file,
    write_new,
)
from twin_graph.snapshots.forms import (
    EVALUATIONS,
    LEDGER,
    METRICS,
    RECORDS,
    Description,
    EvaluationLine,
    Holder,
    MetricsLine,
    check_plain,
    problem,
)
from twin_graph.snapshots.ledger import (
    Commit,
    End,
    Fork,
    Ledger,
    Start,
    utc_now,
)
from twin_graph.snapshots.lines import comparable
from twin_graph.snapshots.points import PointState, PointStore
from twin_graph.snapshots.store import FORMAT, SnapshotStore

if TYPE_CHECKING:
    from twin_graph.config.settings import Settings

RUNS = Path("checkpoints")
#: The file of a run that says what it is; without one, a folder is no run.
DESCRIPTION = "run.json"
#: Files of a run that played tournaments.
GAMES, RATINGS = "games.jsonl", "ratings.json"
#: Folders of a run.
SNAPSHOTS, POINTS, VIDEOS, CONTROL = "snapshots", "resume", "videos", "control"

_NEWEST_METRICS_BYTES = 65_536
_ID_BYTES = 16
_MOST_ATTEMPTS = 2**40
_GLANCE_SECONDS = 0.2  # to wait for a process that only asks whether the run trains, and holds the lock far shorter

#: Packages whose versions a run records.
VERSIONED = ("twin-graph", "tensorflow", "numpy", "gymnasium", "ale-py")


class Run:
    """Paths and records of one run. Opening it looks at the kinds of all files, and reads `run.json` alone.

    Attributes:
      folder: absolute.
      events, store_folder, control: the folders of TensorBoard, of snapshots, and of people's requests.
      videos: the folder of films.
      attempt: the process life of the run that this object writes for, from 1.
      settings: with which it trains, or will continue.

    Raises:
      UsageError: there is no run in this folder.
      DamagedError: its `run.json` is not what was written.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder = absolute(folder)
        self.events, self.store_folder, self.control = folder / "events", folder / SNAPSHOTS, folder / CONTROL
        self.videos = folder / VIDEOS
        self.evaluations_file, self.metrics_file = folder / EVALUATIONS, folder / METRICS
        self.attempt = 1
        self.ledger = Ledger(folder / LEDGER)
        self._evaluations = GrowingLines(self.evaluations_file)
        self._evaluated: list[tuple[Line, dict[str, Any] | None]] = []
        self._past_settings: dict[str, Settings] = {}  # by their hashes
        path = folder / DESCRIPTION
        if not path.exists():
            raise UsageError(f"no run in {folder}; `twin-graph runs` lists those in {RUNS}/")
        check_plain(folder)
        self.description = read_file(path)
        try:
            if self.description["format"] != FORMAT:
                raise DamagedError(
                    f"{folder} has format {self.description['format']}; this version of twin-graph reads {FORMAT}"
                )
            if wrong := problem(Description, self.description):
                raise DamagedError(f"{path} is damaged: {wrong}")
            self.settings: Settings = validate(self.description["settings"])
        except KeyError as error:
            raise DamagedError(f"{path} is damaged: it has no {error}") from None
        except UsageError as error:  # its checksum is right
            made_by = self.description["versions"].get("twin-graph", "?")
            raise DamagedError(f"{path}, of twin-graph {made_by}, has settings of another version: {error}") from None
        trust.take(self.settings)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.folder}>"

    @property
    def name(self) -> str:
        return self.folder.resolve().name

    @property
    def id(self) -> str:
        """Hexadecimal digits that no other run has, wherever it is moved; a copy of its folder has the same."""
        described = self.description
        known = f"{described['created']} {described['versions']} {described['cpu']}"  # of earlier versions
        return str(described.get("id") or hashlib.sha256(known.encode()).hexdigest()[: 2 * _ID_BYTES])

    @property
    def written(self) -> tuple[Path, ...]:
        """The folders in which a process that dies may leave something that it had begun to write."""
        return self.folder, self.control, self.store_folder, self.points().folder, self.videos

    @functools.cached_property
    def _lock(self) -> filelock.BaseFileLock:
        return file_lock(self.control / "lock")

    @contextlib.contextmanager
    def lock(self, purpose: str) -> Iterator[None]:
        """While it lasts, no other process trains, prunes or imports here. This object may take it again inside.

        What would be written inside after the folder was moved raises `MovedError`.

        Raises:
          InUseError: another process has it; the message says which.
          UsageError: the storage has no locks.
        """
        self.control.mkdir(exist_ok=True)
        holder = self.control / "holder.json"
        try:
            acquire(self._lock, self.folder, timeout=_GLANCE_SECONDS)
        except filelock.Timeout:
            by = "another process"
            with contextlib.suppress(DamagedError):
                if not problem(Holder, who := read_file(holder)):
                    by = f"process {who['pid']} on {who['host']} ({who['purpose']}, since {who['since'][:19]} UTC)"
            raise InUseError(f"{self.folder} is in use by {by}") from None
        with contextlib.ExitStack() as held:
            held.callback(self._lock.release)
            if self._lock.lock_counter == 1:
                held.enter_context(hold_folder(self.folder))
                for folder in self.written:  # requests, films and exports need no lock
                    remove_leftovers(folder, spare_the_living=True)
                here = {"pid": os.getpid(), "host": socket.gethostname(), "purpose": purpose, "since": utc_now()}
                try:
                    write_file(holder, checked(here))
                except OSError as error:
                    if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                        raise
                    holder.unlink(missing_ok=True)  # who needs the lock may be about to make room: `prune`
            yield

    def _is_training(self) -> bool:
        """Whether a process trains the run, or is about to, on any machine that shares locks with this storage."""
        if not is_locked(self.control / "lock"):
            return False
        try:
            return read_file(self.control / "holder.json").get("purpose") in ("train", "resume")
        except DamagedError:  # on a full disk, none says who has the lock
            return True

    def store(self) -> SnapshotStore:
        """The run's snapshots."""
        return SnapshotStore(self.store_folder, self.ledger)

    def points(self) -> PointStore:
        """The run's resume points."""
        return PointStore(self.folder / POINTS)

    def settle_records(self) -> dict[str, int]:
        """Makes the files of records durable, as a point needs all that came before it; returns their lengths, by name.

        Of whole lines, since another may be being written; and what another process has written may not be durable yet.
        """
        lengths = {name: whole_bytes(self.folder / name) for name in RECORDS}
        for name in RECORDS:
            if lengths[name]:
                fsync(self.folder / name)
        fsync(self.folder)
        return lengths

    def record_start(self, point: PointState | None = None, declared: tuple[str, ...] = ()) -> None:
        """Records in the ledger that this process trains from here on, from a resume point or from the beginning.

        All that was recorded beyond is abandoned. What is abandoned of a file is known by where it stands: a file of
        metrics of which some are lost gets its length back.

        Args:
          point: where it continues; None for the beginning.
          declared: of the environment; see `EnvSpec`.
        """
        self.attempt = self.ledger.attempt + 1
        if self.attempt > _MOST_ATTEMPTS:
            raise DamagedError(f"{self.ledger.path} is damaged: it has attempt {self.ledger.attempt:,}")
        if point:  # some metrics may be lost
            starts = [start.found_bytes[METRICS] for start in self.ledger.events(Start) if start.found_bytes]
            lengthen(self.metrics_file, max([point.known_bytes[METRICS], *starts]))
        self.ledger.append(
            Start(
                attempt=self.attempt,
                time=utc_now(),
                pid=os.getpid(),
                host=socket.gethostname(),
                resumed_from=point.number if point else None,
                counters=point.counters if point else None,
                known_bytes=point.known_bytes if point else dict.fromkeys(RECORDS, 0),
                found_bytes=self.settle_records(),
                modules=lookup.sources(self.settings),
                declared=declared,
                processor=machine.describe()._asdict(),
            )
        )

    def record_end(self, end: End) -> None:
        """Records in the ledger how this attempt ended, wherever the folder is by now; not if it was removed."""
        moved = displaced(self.folder)
        if moved is None:
            self.ledger.append(end)
        elif moved.there:
            Ledger(moved.there / LEDGER).append(end)

    def starts_since(self, update: int) -> Iterator[Start]:
        """The starts of the attempts that made the updates from this one on, newest first."""
        ended = math.inf  # at which update the attempt did
        for start in self.ledger.newest_first(Start):
            if ended >= update:
                yield start
            ended = start.counters.updates if start.counters else 0

    def processors(self, since: int = 0) -> list[machine.Cpu]:
        """On which the attempts trained that made the updates from this one on: each once, newest first.

        Of a run of an earlier version only that is known on which it began.
        """
        began = self.description["cpu"]
        found = [machine.Cpu.of(start.processor or began) for start in self.starts_since(since)]
        return list(dict.fromkeys(found)) or [machine.Cpu.of(began)]

    def change_settings(self, settings: Settings) -> None:
        """Records other settings for the next attempt; `run.json` keeps those before, with their last attempt."""
        before = self.settings.model_dump()
        past = {"attempt": self.ledger.attempt, "settings": before, "settings_sha256": self.settings.sha256()}
        self.description = {
            **self.description,
            "settings": settings.model_dump(),
            "settings_sha256": settings.sha256(),
            "past_settings": [*self.description["past_settings"], past],
        }
        self.settings = settings
        trust.remember(settings)
        write_file(self.folder / DESCRIPTION, checked(self.description, indent=1))

    @contextlib.contextmanager
    def trying(self, settings: Settings) -> Iterator[None]:
        """Other settings for an attempt that begins inside; if none does, because something fails, those before."""
        attempt, before, description = self.ledger.attempt, self.settings, self.description
        try:
            if settings != before:
                self.change_settings(settings)
            yield
        except BaseException:
            if self.settings != before and self.ledger.attempt == attempt:
                self.settings, self.description = before, description
                write_file(self.folder / DESCRIPTION, checked(description, indent=1))
            raise

    def settings_of(self, attempt: int) -> Settings:
        """The settings with which an attempt trained."""
        for past in self.description["past_settings"]:
            if past["attempt"] >= attempt:
                key = past["settings_sha256"]
                if key not in self._past_settings:
                    try:
                        self._past_settings[key] = validate(past["settings"])
                    except UsageError as error:
                        raise DamagedError(f"{self.folder / DESCRIPTION} has unknown past settings: {error}") from None
                    trust.take(self._past_settings[key])
                return self._past_settings[key]
        return self.settings

    @property
    def trained_settings(self) -> Settings:
        """Those of the newest attempt; not yet `settings` where a `resume --set` was killed before it trained.

        A fork that was not trained yet has none of its own, and so `settings`.
        """
        newest = next(self.ledger.newest_first(Start, Fork), None)
        return self.settings_of(newest.attempt) if isinstance(newest, Start) else self.settings

    def evaluation_lines(self) -> Iterator[dict[str, Any]]:
        """Evaluations that hold; `interval_95` is None of one game, also where an older version has recorded one.

        Raises `DamagedError`.
        """
        is_anew, lines = self._evaluations.new()
        if is_anew:
            self._evaluated = []
        self._evaluated += [(line._replace(content=b""), line.record) for line in lines]
        for line in self._that_hold(EVALUATIONS, self._evaluated):
            if wrong := problem(EvaluationLine, line):
                raise DamagedError(f"{self.evaluations_file} is damaged: {wrong}")
            yield line if len(line["returns"]) > 1 else {**line, "interval_95": None}

    def metric_lines(self) -> Iterator[dict[str, Any]]:
        """Metrics that hold, without damaged lines: no run depends on them, and `verify` names them."""
        lines = read_lines(self.metrics_file)
        return self._that_hold(METRICS, ((line, record) for line in lines if (record := line.record)))

    def abandoned(self, name: str) -> list[range]:
        """The parts of a file of records that a resumed run abandoned, in bytes."""
        starts = [start for start in self.ledger.events(Start) if start.known_bytes]
        return [range(start.known_bytes[name], start.found_bytes[name]) for start in starts]

    def _that_hold(self, name: str, lines: Iterable[tuple[Line, dict[str, Any] | None]]) -> Iterator[dict[str, Any]]:
        """The records of a file but for those abandoned; evaluations by hand are never abandoned."""
        parts = self.abandoned(name)
        for line, record in lines:
            abandoned = any(line.start in part for part in parts)
            if record is None:
                if abandoned:
                    continue
                raise DamagedError(damaged_line(self.folder / name, line.number))
            if not abandoned or record.get("scheduled") is False:
                yield record

    def newest_metrics(self) -> dict[str, Any]:
        """The newest line of metrics with counters and rates; empty before the first."""
        lines = read_lines(self.metrics_file, newest_bytes=_NEWEST_METRICS_BYTES)
        records = (line.record for line in reversed(list(lines)))
        return next((record for record in records if record and not problem(MetricsLine, record)), {})

    def scores(self) -> dict[str, float]:
        """Mean return by snapshot id, over the episodes of its scheduled evaluations that are comparable."""
        returns: dict[str, list[float]] = {}
        for evaluation in comparable(self.evaluation_lines()):
            returns.setdefault(evaluation["snapshot"], []).extend(evaluation["returns"])
        return {snapshot: sum(r) / len(r) for snapshot, r in returns.items() if r}

    def resolve(self, reference: str | int) -> Commit:
        """The snapshot that a reference means: see `SnapshotStore.resolve`."""
        return self.store().resolve(str(reference), self.scores)

    def state(self) -> str:
        """`running`, `finished`, `stopped` (by a person) or `failed` (by an error or a crash)."""
        return self.outcome()[0]

    def outcome(self) -> tuple[str, str]:
        """The state, and the reason for its end in words: an error's own, or that the process was killed."""
        newest = next(self.ledger.newest_first(Start, End, Fork), None)
        if isinstance(newest, Fork):
            return "stopped", f"forked from {newest.run}, and not trained yet"
        if isinstance(newest, End):
            return newest.state, newest.reason
        if self._is_training():
            return "running", ""
        if not isinstance(newest, Start):
            return "stopped", "not trained yet"
        return "failed", f"killed: process {newest.pid} on {newest.host} ended without recording why"


def check_new_folder(folder: Path, advice: str = "choose another folder") -> None:
    """Raises `UsageError` if a run cannot be made here, or something exists already: nothing is ever overwritten."""
    check_no_pattern(folder, advice)
    if not folder.name:
        raise UsageError(f"{str(folder)!r} is no name for a new folder; {advice}")
    if folder.exists() or folder.is_symlink():
        raise UsageError(f"{folder} exists already; {advice}")


def new_id() -> str:
    """That of a new run; see `Run.id`."""
    return secrets.token_hex(_ID_BYTES)


def create(folder: Path | str, settings: Settings, protocol: Mapping[str, Any] = MappingProxyType({})) -> Run:
    """Makes the folder of a new run.

    Args:
      folder: must not exist yet.
      settings: of the run. Where `twin.threads` is 0, this machine's cores are recorded: as many threads give equal
        weights on another.
      protocol: what scores of the environment depend on, for people.

    Raises:
      UsageError: it exists already, or cannot be made. Nothing is overwritten.
    """
    from importlib.metadata import version  # slow to import, and only a new run needs it

    folder = Path(folder)
    if not settings.twin.threads:
        settings = replace(settings, [("twin.threads", machine.describe().cores)])
    run_id = new_id()
    description = {
        "format": FORMAT,
        "id": run_id,
        "name": folder.resolve().name,
        "created": utc_now(),
        "settings": settings.model_dump(),
        "settings_sha256": settings.sha256(),
        "protocol": dict(protocol),
        "versions": {name: version(name) for name in VERSIONED},
        "cpu": machine.describe()._asdict(),
        "past_settings": [],
    }
    trust.remember(settings)
    trust.claim(run_id)
    return make_run(folder, lambda temporary: write_new(temporary / DESCRIPTION, checked(description, indent=1)))


def make_run(folder: Path, fill: Callable[[Path], None]) -> Run:
    """Makes the folder of a run with what `fill` writes into it: all of it, or nothing.

    Raises:
      UsageError: it exists already, or cannot be made.
      OSError: the disk is full or failed.
    """
    folder = absolute(folder)
    check_new_folder(folder)
    try:
        make_folder(folder.parent)
        remove_leftovers(folder.parent, of=folder.name, spare_the_living=True)
        commit_folder(folder, fill)
    except OSError as error:
        if error.errno not in (errno.EACCES, errno.EPERM, errno.ENOTDIR, errno.EEXIST, errno.ENOTEMPTY):
            raise
        raise UsageError(f"cannot make {folder}: {error.strerror}") from None
    return Run(folder)


def free_folder(stem: str) -> Path:
    """The first of `checkpoints/<stem>1`, `checkpoints/<stem>2`, ... that does not exist."""
    number = 1
    while (folder := absolute(RUNS / f"{stem}{number}")).exists():
        number += 1
    return folder


def make_in(folder: Path | None, stem: str, make: Callable[[Path], Run]) -> Run:
    """Makes a run in a folder, or, where none is given, under the first free name of this stem.

    Two processes may find the same name free; the one that comes too late takes the next.
    """
    while True:
        here = folder or free_folder(stem)
        try:
            return make(here)
        except UsageError:
            if folder or not here.exists():
                raise


def find(name: str) -> Run:
    """The run in a folder, or of that name under `checkpoints/`."""
    here, there = absolute(Path(name)), absolute(RUNS / name)
    return Run(here if (here / DESCRIPTION).exists() or not (there / DESCRIPTION).exists() else there)


def folders_of_runs(folder: Path) -> list[Path]:
    """The folders in a folder that hold a run, sorted by name; not temporary ones, whose names begin with a dot."""
    return sorted(path.parent for path in folder.glob(f"[!.]*/{DESCRIPTION}"))


def locate(run: Run, reference: str | int) -> tuple[Run, Commit]:
    """The snapshot that a reference means, and whose it is: `RUN:REF` is another run's."""
    match = re.fullmatch(r"(?!([^/:]+/)?@update:)(.+?):(([^/:]+/)?@update:[\d,]+|[^:]+)", str(reference))
    owner, inside = (find(match[2]), match[3]) if match else (run, reference)
    return owner, owner.resolve(inside)
