"""Snapshots on disk: immutable records of one learner's weights, named by number and content.

snapshots/000042-3fa9c1d2/
  model.index, model.data-00000-of-00001    what a Saver wrote; retention may remove these two
  model.environment.npz                     what outlived episodes in its environments, if anything; goes with them
  manifest.json                             what it is: see `Manifest`

A snapshot exists from the moment that the ledger says so: the folder is made first, whole and durable, the line after.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, NamedTuple, Self

from twin_graph.base.counters import Whole
from twin_graph.base.text import counted
from twin_graph.errors import DamagedError, UsageError
from twin_graph.snapshots.files import (
    checked,
    commit_folder,
    lock_folder,
    make_folder,
    open_plain,
    remove_leftovers,
    write_new,
)
from twin_graph.snapshots.forms import LAST_NUMBER, EachOnce, FileName, Record, SnapshotId
from twin_graph.snapshots.ledger import (
    IMPORT,
    ONLY_LEARNER,
    Commit,
    Counters,
    Follower,
    Health,
    Ledger,
    Pin,
    Prune,
    SnapshotRecord,
    read_record,
    utc_now,
)

if TYPE_CHECKING:  # imported where arrays are read or written: commands that only look at records need not wait
    import numpy as np

FORMAT: Final = 1
MANIFEST = "manifest.json"
MODEL_PREFIX = "model"
_ENVIRONMENT = f"{MODEL_PREFIX}.environment.npz"


class Variable(Record):
    """Name, shape and type of a variable, in a twin or in the files of one."""

    name: str
    shape: tuple[Whole, ...]
    dtype: str

    @classmethod
    def of(cls, variable: Any) -> Self:
        """The record of a variable of TensorFlow's."""
        return cls(name=variable.op.name, shape=tuple(variable.shape.as_list()), dtype=variable.dtype.base_dtype.name)


class FileRecord(Record):
    """One file in the folder of the record that names it; size in bytes."""

    name: FileName
    size: Whole
    sha256: str

    @classmethod
    def of(cls, path: Path) -> Self:
        """Reads the whole file."""
        with open_plain(path, largest=None) as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
            return cls(name=path.name, size=os.fstat(file.fileno()).st_size, sha256=digest)

    def check_in(self, folder: Path) -> None:
        """Raises `DamagedError` unless the file in `folder` is the one recorded."""
        path = folder / self.name
        try:
            found = FileRecord.of(path)
        except FileNotFoundError:
            raise DamagedError(f"{path} is missing") from None
        except OSError as error:
            raise DamagedError(f"{path} cannot be read: {error.strerror}") from None
        if found != self:
            raise DamagedError(f"{path} is damaged: its size or sha256 is not the one recorded")


class Provenance(NamedTuple):
    """Of what a snapshot is.

    Attributes:
      lineage: where it goes.
      attempt, counters: when its weights were made; counters are the run's.
      settings_sha256: of the settings then.
      weights_sha256: see `twin_graph.twin.twin.weights_sha256`.
      variables: names, shapes and types.
      learner: whose weights these are; `learner_updates` are its own.
      health: of its Q values.
      origin: of an import, from where.
    """

    lineage: str
    attempt: int
    counters: Counters
    settings_sha256: str
    weights_sha256: str
    variables: Sequence[Variable]
    learner: str = ONLY_LEARNER
    learner_updates: int | None = None
    health: Health | None = None
    origin: str | None = None


class Manifest(SnapshotRecord):
    """Everything known about a snapshot when it is committed.

    Attributes:
      id: number and first eight digits of `weights_sha256`; `import-` and twelve digits for lineage `import`.
      settings_sha256: hash of the run's settings.
    """

    format: Literal[1] = FORMAT
    id: SnapshotId
    settings_sha256: str
    variables: tuple[Variable, ...]
    files: Annotated[tuple[FileRecord, ...], EachOnce]

    @property
    def bytes(self) -> int:
        """Size of the files, without the manifest."""
        return sum(file.size for file in self.files)

    @classmethod
    def read(cls, folder: Path) -> Self:
        """The manifest in a snapshot's folder.

        Raises:
          DamagedError: it is missing, not what was written, or does not belong to this folder.
        """
        path = folder / MANIFEST
        manifest = read_record(cls, path)
        if manifest.id != folder.name:
            raise DamagedError(f"{path} is damaged: it names itself {manifest.id}")
        return manifest


class Snapshots:
    """The snapshots of one run, to be read: those that its ledger says are committed, and were not abandoned.

    Args:
      folder: `snapshots/` of a run; made by the first commit.
      ledger: of the same run.
      upto: see only the first `upto` bytes of the ledger.

    Attributes:
      snapshots: of the learners, in the order of their numbers.
      imports: those brought in from outside.
      pins: ids that a person keeps.

    Raises:
      DamagedError: the ledger cannot be understood.
    """

    snapshots: list[Commit]
    imports: list[Commit]
    pins: set[str]

    def __init__(self, folder: Path, ledger: Ledger, *, upto: int | None = None) -> None:
        self.folder = folder
        self._ledger = ledger
        self._followed: Follower[Commit | Pin | Prune] = Follower(ledger, Commit, Pin, Prune, upto=upto)
        self.reload()

    def reload(self) -> None:
        """Reads what others have recorded since; what was read before costs nothing."""
        is_anew, events = self._followed.new()
        if is_anew:
            self._forget()
        for event, holds in events:
            if isinstance(event, Commit):
                self._see_commit(event, holds)
            elif isinstance(event, Pin):
                (self.pins.add if event.event == "pin" else self.pins.discard)(event.snapshot)
            elif isinstance(event, Prune):
                self._gone.update(event.snapshots)
                self._unfinished.clear()
                self._unfinished.update(event.snapshots)
                for snapshot_id in event.snapshots:
                    self._available.pop(snapshot_id, None)

    def _forget(self) -> None:
        self.snapshots, self.imports, self.pins = [], [], set()
        self._live: dict[str, Commit] = {}
        self._available: dict[str, Commit] = {}
        self._abandoned: dict[str, Commit] = {}
        self._gone: set[str] = set()
        self._unfinished: set[str] = set()

    def _see_commit(self, commit: Commit, holds: bool) -> None:
        name = commit.snapshot
        is_new = name not in self._live
        if not holds and not is_new:
            return
        self._gone.discard(name)  # it was written again
        if not holds:
            self._abandoned[name] = commit
            return
        self._abandoned.pop(name, None)
        is_next = is_new and (not self.snapshots or _order(commit) > _order(self.snapshots[-1]))
        if commit.lineage == IMPORT:
            self._live.setdefault(name, commit)  # what arrived once stays where it arrived
            self.imports = [c for c in self._live.values() if c.lineage == IMPORT]
            return
        self._live[name] = commit
        if is_next:
            self.snapshots.append(commit)
            self._available[name] = commit
        else:
            self.snapshots = sorted((c for c in self._live.values() if c.lineage != IMPORT), key=_order)
            self._available = {c.id: c for c in self.snapshots if c.id not in self._gone}

    @property
    def abandoned(self) -> Sequence[Commit]:
        """Those of attempts beyond a point from which the run resumed."""
        return list(self._abandoned.values())

    @property
    def available(self) -> Sequence[Commit]:
        """Those of `snapshots` whose weights are there."""
        return list(self._available.values())

    def league(self, agent_steps: int) -> list[Commit]:
        """The newest of each other run among those that arrived from its remote before this agent step."""
        before = [s for s in self.imports if s.arrived_from and s.counters.agent_steps < agent_steps]
        # Newest by what it has learned: after this run has resumed from before, an older one may arrive later.
        before.sort(key=lambda snapshot: (snapshot.learner_updates or 0, snapshot.counters.agent_steps))
        newest = {snapshot.arrived_from: snapshot for snapshot in before}
        return [newest[url] for url in sorted(newest)]

    @property
    def newest(self) -> Commit:
        """The last committed snapshot. Raises `UsageError` if there is none."""
        if not self.snapshots:
            raise UsageError(f"{self.folder} holds no snapshot yet")
        return self.snapshots[-1]

    def best(self, scores: Mapping[str, float]) -> Commit | None:
        """The snapshot with the highest mean score, the newest of equals; None where none has a score."""
        return _best(
            [snapshot for i in scores if (snapshot := self._live.get(i)) and snapshot.lineage != IMPORT], scores
        )

    def find(self, snapshot_id: str) -> Commit:
        """The snapshot of this id. Raises `UsageError` if there is none."""
        if snapshot := self._live.get(snapshot_id):
            return snapshot
        raise UsageError(f"no snapshot {snapshot_id!r} in {self.folder}")

    def lineage_of(self, snapshot_id: str) -> str | None:
        """Whose it is; None of one that is not here, or was abandoned."""
        snapshot = self._live.get(snapshot_id)
        return snapshot.lineage if snapshot else None

    def has_weights(self, snapshot_id: str) -> bool:
        """Whether the weight files are present: retention may have removed them."""
        return snapshot_id not in self._gone

    def manifest(self, snapshot_id: str) -> Manifest:
        """Reads the manifest of a snapshot. Raises `DamagedError`."""
        return Manifest.read(self.folder / snapshot_id)

    def prefix(self, snapshot_id: str) -> Path:
        """What `Saver.restore` takes. Raises `UsageError` if retention has removed the weights."""
        if not self.has_weights(snapshot_id):
            raise UsageError(
                f"the weights of {snapshot_id} were removed by retention; `twin-graph log` shows what is kept"
            )
        return self.folder / snapshot_id / MODEL_PREFIX

    def lasting(self, snapshot_id: str) -> dict[str, np.ndarray]:
        """What its environments had kept when it was committed, `[1, ...]` by name; see `twin_graph.envs.lasting`."""
        path = self.folder / snapshot_id / _ENVIRONMENT
        return read_arrays(path) if path.exists() else {}

    def check_files(self, snapshot_id: str) -> None:
        """Compares the sizes and hashes of a snapshot's files with its manifest. Raises `DamagedError`."""
        for file in self.manifest(snapshot_id).files:
            file.check_in(self.folder / snapshot_id)

    def check_usable(self, snapshot_id: str) -> None:
        """Raises `UsageError` if retention removed the weights, `DamagedError` if files are not what was written."""
        self.prefix(snapshot_id)
        self.check_files(snapshot_id)

    def check_fits(self, snapshot_id: str) -> None:
        """Compares a snapshot's variables with those of the newest that has its manifest.

        Raises:
          UsageError: some differ; the message names them.
          DamagedError: its own manifest is not what was written.
        """
        ours = self.manifest(snapshot_id).variables
        for other in reversed(self.snapshots):
            try:
                theirs = self.manifest(other.id).variables
            except DamagedError:
                continue
            if differing := sorted({variable.name for variable in {*ours} ^ {*theirs}}):
                names = ", ".join(differing)
                raise UsageError(f"{snapshot_id} does not fit this run's network: {names} differ from {other.id}'s")
            return

    def resolve(self, reference: str, scores: Callable[[], Mapping[str, float]]) -> Commit:
        """The snapshot that a reference means.

        Args:
          reference: a number, an id or a unique beginning of one; `latest`, `latest~3` (three before it); `best` (the
            highest mean score); `@update:12000` (the newest at or before that update); `a/latest` and so on for those
            of lineage `a` alone.
          scores: returns the mean score by snapshot id, for `best`.

        Raises:
          UsageError: it means no snapshot, or more than one.
        """
        inside = reference
        snapshots, imports = self.snapshots, self.imports
        if "/" in reference:
            lineage, _, inside = reference.rpartition("/")
            snapshots, imports = [snapshot for snapshot in self.snapshots if snapshot.lineage == lineage], []
            if not snapshots:
                there_are = ", ".join(sorted({snapshot.lineage for snapshot in self.snapshots}))
                raise UsageError(f"no lineage {lineage!r} in {self.folder}; there are {there_are}")
        _ = self.newest  # raises where there is no snapshot at all
        return _resolve(inside, snapshots, imports, scores)


class SnapshotStore(Snapshots):
    """The snapshots of one run, and what changes them."""

    def commit(
        self, save: Callable[[Path], None], made: Provenance, lasting: Mapping[str, np.ndarray] = MappingProxyType({})
    ) -> Commit:
        """Calls `save(prefix)`, which writes the weights, and makes files and manifest one durable snapshot.

        With it goes what outlives episodes in its environments, `lasting`.

        Where an attempt that was abandoned has committed the same under the same number, its folder is adopted.

        Raises:
          OSError: nothing was committed.
          DamagedError: there is a folder of this name with something else in it.
        """
        name, record = self._next(made)

        def fill(folder: Path) -> Manifest:
            save(folder / MODEL_PREFIX)
            if lasting:
                _write_arrays(folder / _ENVIRONMENT, lasting)
            manifest = Manifest(
                **record,
                time=utc_now(),
                id=name,
                settings_sha256=made.settings_sha256,
                variables=tuple(made.variables),
                files=tuple(FileRecord.of(path) for path in sorted(folder.iterdir())),
            )
            write_new(folder / MANIFEST, checked(manifest.model_dump(mode="json"), indent=1))
            return manifest

        make_folder(self.folder)
        adoptable = (self.folder / name).exists()
        manifest = self._adoptable(name, record, made.settings_sha256) if adoptable else None
        if manifest is None:
            manifest = commit_folder(self.folder / name, fill, index=MANIFEST)
        snapshot = Commit(**record, time=utc_now(), snapshot=name, bytes=manifest.bytes)
        self._ledger.append(snapshot)
        self.reload()
        return snapshot

    def _next(self, made: Provenance) -> tuple[str, dict[str, Any]]:
        """The name of the next snapshot, and what manifest and ledger both say of it."""
        if made.lineage == IMPORT:
            number, parent, name = None, None, f"{IMPORT}-{made.weights_sha256[:12]}"
        else:
            number = (self.snapshots[-1].number or 0) + 1 if self.snapshots else 0
            if number > LAST_NUMBER:
                raise DamagedError(f"{self.folder} is damaged: it has a snapshot {number - 1:,}")
            parent = next((s.id for s in reversed(self.snapshots) if s.lineage == made.lineage), None)
            name = f"{number:06d}-{made.weights_sha256[:8]}"
        both = set(Provenance._fields) & set(Commit.model_fields)
        record = {key: value for key, value in made._asdict().items() if key in both}
        return name, {**record, "number": number, "parent": parent}

    def _adoptable(self, name: str, record: Mapping[str, Any], settings_sha256: str) -> Manifest | None:
        """The manifest of a folder that is there already, if it is whole and says the same; any other is replaced."""
        try:
            manifest = self.manifest(name)
            self.check_files(name)
        except DamagedError:  # retention has removed its weights, or some damage: they are about to be written again
            return None
        if manifest.weights_sha256 != record["weights_sha256"]:
            raise DamagedError(f"{self.folder / name} holds other weights than its name says; move it away")
        # An attempt that saves at other moments may come to the same weights after more agent steps.
        same = all(getattr(manifest, key) == value for key, value in record.items() if key not in ("attempt", "health"))
        by_hand = record["lineage"] == IMPORT and not record["counters"].agent_steps
        fits = by_hand or (same and manifest.settings_sha256 == settings_sha256)
        return manifest if fits else None

    @contextlib.contextmanager
    def reading(self) -> Iterator[None]:
        """While it lasts, no weights are removed: what is listed inside can be loaded inside."""
        with lock_folder(self.folder, shared=True):
            self.reload()
            yield

    def pin(self, snapshot_id: str, *, keep: bool, attempt: int) -> None:
        """Records that a person keeps a snapshot's weights, or releases them.

        Raises:
          UsageError: the weights are gone already, or it is not pinned.
        """
        with self.reading():
            if keep:
                self.prefix(snapshot_id)
            elif snapshot_id not in self.pins:
                raise UsageError(f"{snapshot_id} is not pinned")
            event: Literal["pin", "unpin"] = "pin" if keep else "unpin"
            self._ledger.append(Pin(event=event, attempt=attempt, time=utc_now(), snapshot=snapshot_id))
            self.reload()

    def remove_weights(
        self, choose: Callable[[], Iterable[str]], *, attempt: int, look_again: bool = False
    ) -> list[str]:
        """Removes the weight files of the snapshots that `choose` names; their manifests stay.

        Only the process that holds the run's lock may call it. The ledger says so first: a crash in between leaves
        files that nobody reads. The next call removes these before the ledger speaks of others, so that only those of
        the newest removal need to be looked for.

        Args:
          choose: called when no reader can come in between, after the newest pins were read.
          attempt: the process life of the run.
          look_again: look for files of every removal there ever was.

        Returns:
          The ids.

        Raises:
          BlockingIOError: readers did not let go of the store for seconds; nothing was removed.
        """
        with lock_folder(self.folder, shared=False):
            self.reload()
            if look_again:
                self._unfinished |= self._gone
            self._finish_removals()
            doomed = [snapshot_id for snapshot_id in choose() if self.has_weights(snapshot_id)]
            if doomed:
                self._ledger.append(Prune(attempt=attempt, time=utc_now(), snapshots=tuple(doomed)))
                self.reload()
                self._finish_removals()
            return doomed

    def remove_leftovers(self) -> None:
        """Removes commits that a crash left unfinished; only for the process that holds the run's lock."""
        if self.folder.exists():
            remove_leftovers(self.folder)

    def _finish_removals(self) -> None:
        for snapshot_id in sorted(self._unfinished & self._gone):
            self._unlink_weights(snapshot_id)
        self._unfinished.clear()

    def _unlink_weights(self, snapshot_id: str) -> None:
        folder = self.folder / snapshot_id
        for path in folder.iterdir() if folder.exists() else ():
            if path.name.startswith(f"{MODEL_PREFIX}."):
                path.unlink(missing_ok=True)


def read_arrays(path: Path, names: Sequence[str] = ()) -> dict[str, np.ndarray]:
    """As `twin_graph.base.arrays.load_all`. Raises `DamagedError`."""
    from twin_graph.base import arrays

    try:
        return arrays.load_all(path, names)
    except (ValueError, MemoryError) as error:
        raise DamagedError(f"{path} is damaged: {error}") from None


def _write_arrays(path: Path, arrays: Mapping[str, np.ndarray]) -> None:
    import numpy as np

    content: dict[str, Any] = dict(arrays)
    np.savez(path, **content)


def _resolve(
    reference: str, snapshots: Sequence[Commit], imports: Sequence[Commit], scores: Callable[[], Mapping[str, float]]
) -> Commit:
    if reference == "best":
        best = _best(snapshots, scores())
        if best is None:
            raise UsageError("no snapshot has a scheduled evaluation yet, and `best` counts no others")
        return best
    if match := re.fullmatch(r"latest(?:~(\d{1,15}))?", reference):
        back = int(match[1] or 0)
        if back >= len(snapshots):
            raise UsageError(f"{reference}: the run has only {counted(len(snapshots), 'snapshot')}")
        return snapshots[-1 - back]
    if (update := update_of(reference)) is not None:
        before = [snapshot for snapshot in snapshots if snapshot.updates <= update]
        if not before:
            raise UsageError(f"{reference}: the first snapshot was committed after that update")
        return before[-1]
    beginning = f"{int(reference):06d}-" if re.fullmatch(r"0|[1-9]\d{0,14}", reference) else reference
    every = [*snapshots, *imports]
    matching = [snapshot for snapshot in every if reference and snapshot.id.startswith(beginning)]
    if len(matching) == 1:
        return matching[0]
    if matching:
        more = ", ..." if len(matching) > 2 else ""
        raise UsageError(f"{reference!r} matches {len(matching)} ids: {matching[0].id}, {matching[1].id}{more}")
    raise UsageError(
        f"no snapshot {reference!r}; the newest is {snapshots[-1].id}. References are a number, an id or its "
        "beginning, latest, latest~3, best, @update:12000"
    )


def update_of(reference: str) -> int | None:
    """The update that `@update:12000` names, also with commas; None for any other reference."""
    match = re.fullmatch(r"@update:(\d{1,15}|\d{1,3}(?:,\d{3}){1,4})", reference)
    return int(match[1].replace(",", "")) if match else None


def _best(snapshots: Iterable[Commit], scores: Mapping[str, float]) -> Commit | None:
    scored = [snapshot for snapshot in snapshots if snapshot.id in scores]
    return max(scored, key=lambda snapshot: (scores[snapshot.id], snapshot.number), default=None)


def _order(snapshot: Commit) -> int:
    return snapshot.number or 0
