"""Checks everything that a run has on disk against what was recorded when it was written."""

import contextlib
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from twin_graph.base import doing
from twin_graph.errors import DamagedError
from twin_graph.snapshots import control, workers
from twin_graph.snapshots.files import abandoned, damaged_line, leftovers, read_file, read_lines, whole_bytes
from twin_graph.snapshots.forms import EVALUATIONS, ID, LEDGER, METRICS
from twin_graph.snapshots.ledger import Commit
from twin_graph.snapshots.points import SEGMENTS, STATE, PointState, PointStore
from twin_graph.snapshots.resumable import lost_point, too_short
from twin_graph.snapshots.run import DESCRIPTION, GAMES, RATINGS, Run
from twin_graph.snapshots.store import MANIFEST, MODEL_PREFIX, Manifest, SnapshotStore


class Findings(NamedTuple):
    """What was found.

    Attributes:
      damage: a line for each file that is not what was written.
      leftover: what a process that died had begun to write; nothing reads it, and the next that trains removes it.
      beside: what one had begun to write next to the run, as an export or a fork; the next of the same name removes it.
      unknown: paths that do not belong to a run; nothing reads them.
      unchecked: files that belong to a run, and of which nothing is recorded, such as films and TensorBoard's events.
      files, bytes: how much was read and found whole.
    """

    damage: list[str]
    leftover: list[str]
    beside: list[str]
    unknown: list[str]
    unchecked: list[str]
    files: int
    bytes: int


def verify(run: Run) -> Findings:
    """Reads every file of a run whose content is recorded."""
    verifier = _Verifier(run)
    verifier.records()
    verifier.snapshots()
    verifier.points()
    verifier.rest()
    sizes = list[int]()
    for path in verifier.known:
        with contextlib.suppress(FileNotFoundError):  # or a kind of file that this run does not have
            sizes.append(path.stat().st_size)
    unchecked = sorted(str(path) for path in verifier.unchecked if path.is_file())
    beside = [str(path) for path in abandoned(run.folder.parent)]
    return Findings(verifier.damage, verifier.leftover, beside, verifier.unknown, unchecked, len(sizes), sum(sizes))


class _Verifier:
    def __init__(self, run: Run) -> None:
        self._run = run
        # Before anything else is looked at: what a run writes meanwhile is no stranger's.
        self._there = [Path(folder, name) for folder, _, names in os.walk(run.folder) for name in names]
        self.damage: list[str] = []
        self.leftover: list[str] = []
        self.unknown: list[str] = []
        self.unchecked: set[Path] = set()
        self.known: set[Path] = {run.folder / DESCRIPTION}  # was read when the run was opened

    def _is_running(self) -> bool:
        try:
            return self._run.state() == "running"
        except DamagedError:  # of the ledger, which is named already
            return False

    def _try(self, check: Callable[..., object], *arguments: object) -> None:
        try:
            check(*arguments)
        except DamagedError as error:
            if str(error) not in self.damage:
                self.damage.append(str(error))

    def records(self) -> None:
        """The files of lines: each line's checksum; the ledger also as events."""
        for name in (LEDGER, EVALUATIONS, METRICS, GAMES):
            path = self._run.folder / name
            self.known.add(path)
            self._try(self._lines, path)
        self._try(self._run.ledger.events)
        if (ratings := self._run.folder / RATINGS).exists():
            self.known.add(ratings)
            self._try(read_file, ratings)
        for request in self._run.control.glob("request-*.json"):
            self.known.add(request)
            self._try(control.read, self._run.control, request.stem)

    def _lines(self, path: Path) -> None:
        for line in read_lines(path):
            if line.record is None:
                self.damage.append(damaged_line(path, line.number))
        if path.exists() and whole_bytes(path) < path.stat().st_size:
            self.unknown.append(f"{path}: a line without an end; what a crash left, or the newest line, damaged")

    def snapshots(self) -> None:
        """Each snapshot in the ledger: its manifest, and its weights unless retention removed them."""
        try:
            store = self._run.store()
        except DamagedError:  # named already
            self.known.update(self._run.store_folder.rglob("*"))
            return
        with store.reading():
            committed: dict[str, list[Commit]] = {}
            for snapshot, _ in self._run.ledger.with_abandoned(Commit):
                committed.setdefault(snapshot.id, []).append(snapshot)
            for i, records in enumerate(committed.values(), 1):
                doing.now(f"checking snapshots ({i:,} of {len(committed):,})")
                self._snapshot(store, records)
            for folder in store.folder.glob("*"):
                if folder.name not in committed and ID.fullmatch(folder.name):
                    self.known.update(folder.glob("*"))
                    if not self._is_running():  # or it has been committed since the ledger was read
                        self.unknown.append(f"{folder}: not in the ledger; a commit that a crash interrupted")

    def _snapshot(self, store: SnapshotStore, records: Sequence[Commit]) -> None:
        folder = store.folder / records[0].id
        self.known.add(folder / MANIFEST)
        try:
            manifest = store.manifest(folder.name)
            _check_recorded(folder, records, manifest)
            if store.has_weights(folder.name):
                self.known.update(folder / file.name for file in manifest.files)
                for file in manifest.files:
                    file.check_in(folder)
            else:  # a removal that a crash interrupted is finished by the next trainer
                self.known.update(folder.glob(f"{MODEL_PREFIX}.*"))
        except DamagedError as error:
            self.damage.append(str(error))
            self.known.update(folder.glob("*"))

    def points(self) -> None:
        """Each resume point, with all that it needs."""
        points = self._run.points()
        with points.reading():
            for folder in points.folders():
                doing.now(f"checking resume point {int(folder.name)}")
                self._point(points, folder)
            with contextlib.suppress(DamagedError):  # of the ledger, named already
                if lost := lost_point(self._run):
                    self.damage.append(lost)
            # Segments that no point names yet: of a run that is training, or of one that was killed.
            self.known.update((points.folder / SEGMENTS).glob("*.npys"))

    def _point(self, points: PointStore, folder: Path) -> None:
        self.known.update(folder.glob("*"))
        try:
            point = PointState.read(folder)
        except DamagedError as error:
            self.damage.append(str(error))
            return
        for file in point.files:
            self._try(file.check_in, folder)
        for path in folder.glob("*"):
            if path.name not in {STATE, *(file.name for file in point.files)}:
                self.unknown.append(str(path))
        for segment in point.segments:
            path = points.folder / SEGMENTS / segment.file.name
            if path not in self.known:
                self.known.add(path)
                self._try(segment.file.check_in, points.folder / SEGMENTS)
        self.damage.extend(filter(None, (too_short(self._run, point, name) for name in point.known_bytes)))

    def rest(self) -> None:
        """Whatever else there is."""
        run = self._run
        unfinished = [path for folder in run.written for path in leftovers(folder)]
        if not self._is_running():  # or they are being written
            self.leftover += map(str, unfinished)
        for path in (run.folder / workers.FOLDER).glob("*.json"):
            self._try(read_file, path)
        of_workers = {path for path in (run.folder / workers.FOLDER).glob("*") if path.suffix in workers.SUFFIXES}
        self.known |= {path for path in of_workers if path.suffix == ".json"}
        self.unchecked |= of_workers - self.known
        self.unchecked |= {*run.videos.glob("*.mp4"), *(run.folder / "wandb").rglob("*")}
        self.unchecked.update(run.events.glob("events.out.tfevents.*"))
        self.known.update(run.control.glob("request-*.json"))  # some may have come since `records` looked
        for path in (*run.control.glob("holder.json"), *run.control.glob("tracker-*.json")):
            self.known.add(path)
            self._try(read_file, path)
        ours = {*self.known, *self.unchecked, run.control / "lock"}
        self.unknown += sorted(
            str(p) for p in self._there if p.is_file() and p not in ours and not {p, *p.parents} & {*unfinished}
        )


def _check_recorded(folder: Path, records: Sequence[Commit], manifest: Manifest) -> None:
    """Raises `DamagedError` unless one of a snapshot's records says the same: where several attempts committed it, the
    manifest is that of the last."""
    for name in ("number", "lineage", "counters", "weights_sha256", "bytes"):
        records = [record for record in records if getattr(record, name) == getattr(manifest, name)]
        if not records:
            raise DamagedError(f"{folder / MANIFEST} is damaged: its {name} is not the ledger's")
