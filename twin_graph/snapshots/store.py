"""Snapshots on disk: immutable records of one learner's weights, named by number and content.

snapshots/000042-3fa9c1d2/
  model.index, model.data-00000-of-00001    what a Saver wrote
  manifest.json                             what it is: see `Manifest`
"""

import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final, Literal, Self

import pydantic
from pydantic import BaseModel, ConfigDict, Field

from twin_graph.errors import DamagedError, UsageError
from twin_graph.snapshots.files import commit_folder, fsync

FORMAT: Final = 1
MANIFEST = "manifest.json"
MODEL_PREFIX = "model"

_ID = re.compile(r"\d{6,}-[0-9a-f]{8}")


class _Record(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Counters(_Record):
    """How far a run had come. `frames` is agent steps times the frame skip."""

    agent_steps: int = Field(ge=0)
    updates: int = Field(ge=0)
    frames: int = Field(ge=0)
    episodes: int = Field(ge=0)


class VariableRecord(_Record):
    """One variable in the files."""

    name: str
    shape: tuple[int, ...]
    dtype: str


class FileRecord(_Record):
    """One file beside the manifest; size in bytes."""

    name: str
    size: int = Field(ge=0)
    sha256: str


class Manifest(_Record):
    """All that is known of a snapshot when it is committed.

    Attributes:
      id: number and first eight digits of `weights_sha256`.
      parent: the lineage's snapshot before this one; None for the first.
      attempt: the process life of the run that committed it, from 1.
      time: UTC, ISO 8601.
      settings_sha256: hash of the run's settings.
      weights_sha256: see `twin_graph.twin.weights_sha256`.
    """

    format: Literal[1] = FORMAT
    id: str
    number: int = Field(ge=0)
    lineage: str
    parent: str | None
    attempt: int = Field(ge=1)
    time: str
    counters: Counters
    settings_sha256: str
    weights_sha256: str
    variables: tuple[VariableRecord, ...]
    files: tuple[FileRecord, ...]

    @property
    def bytes(self) -> int:
        """Size of the files, without the manifest."""
        return sum(file.size for file in self.files)

    @classmethod
    def read(cls, folder: Path) -> Self:
        """The manifest in a snapshot's folder.

        Raises:
          DamagedError: it is missing, is not of the known format or does not belong to this folder.
        """
        path = folder / MANIFEST
        try:
            manifest = cls.model_validate_json(path.read_bytes())
        except OSError as error:
            raise DamagedError(f"{path} cannot be read: {error.strerror}") from None
        except pydantic.ValidationError as error:
            first = error.errors()[0]
            where = ".".join(str(part) for part in first["loc"])
            raise DamagedError(f"{path} is damaged: {f'{where}: ' if where else ''}{first['msg']}") from None
        if manifest.id != folder.name:
            raise DamagedError(f"{path} is damaged: it names itself {manifest.id}")
        return manifest


class SnapshotStore:
    """The committed snapshots in one folder. Reads it once; a second reader opens it again to see what is new.

    Raises:
      DamagedError: a manifest cannot be understood.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        found = [Manifest.read(path) for path in folder.glob("*-*") if _ID.fullmatch(path.name)]
        self._manifests = sorted(found, key=lambda manifest: manifest.number)

    @property
    def manifests(self) -> Sequence[Manifest]:
        """All committed snapshots, in the order of their numbers."""
        return self._manifests

    @property
    def newest(self) -> Manifest:
        """The last committed snapshot. Raises `UsageError` if there is none."""
        if not self._manifests:
            raise UsageError(f"{self.folder} holds no snapshot yet")
        return self._manifests[-1]

    def prefix(self, snapshot: Manifest) -> Path:
        """What `Saver.restore` takes."""
        return self.folder / snapshot.id / MODEL_PREFIX

    def commit(
        self,
        save: Callable[[Path], None],
        *,
        lineage: str,
        attempt: int,
        time: str,
        counters: Counters,
        settings_sha256: str,
        weights_sha256: str,
        variables: Sequence[VariableRecord],
    ) -> Manifest:
        """Calls `save(prefix)`, which writes the weights, and makes files and manifest one durable snapshot.

        Raises:
          OSError: nothing was committed.
        """
        number = self._manifests[-1].number + 1 if self._manifests else 0
        name = f"{number:06d}-{weights_sha256[:8]}"
        parents = [manifest.id for manifest in self._manifests if manifest.lineage == lineage]

        def fill(folder: Path) -> Manifest:
            save(folder / MODEL_PREFIX)
            manifest = Manifest(
                id=name,
                number=number,
                lineage=lineage,
                parent=parents[-1] if parents else None,
                attempt=attempt,
                time=time,
                counters=counters,
                settings_sha256=settings_sha256,
                weights_sha256=weights_sha256,
                variables=tuple(variables),
                files=tuple(_file_record(path) for path in sorted(folder.iterdir())),
            )
            (folder / MANIFEST).write_text(manifest.model_dump_json(indent=1) + "\n", encoding="utf-8")
            return manifest

        if not self.folder.exists():
            self.folder.mkdir()
            fsync(self.folder.parent)
        manifest = commit_folder(self.folder / name, fill)
        self._manifests.append(manifest)
        return manifest

    def check_files(self, snapshot: Manifest) -> None:
        """Compares the sizes and hashes of a snapshot's files with its manifest. Raises `DamagedError`."""
        for file in snapshot.files:
            path = self.folder / snapshot.id / file.name
            if not path.is_file():
                raise DamagedError(f"{path} is missing")
            if _file_record(path) != file:
                raise DamagedError(f"{path} is damaged: its size or sha256 is not the manifest's")

    def resolve(self, reference: str, scores: Mapping[str, float]) -> Manifest:
        """The snapshot that a reference means.

        Args:
          reference: an id or a unique beginning of one; `latest`, `latest~3` (three before it); `best` (the highest
            mean score); `@update:12000` (the newest at or before that update).
          scores: mean score by snapshot id, for `best`.

        Raises:
          UsageError: it means no snapshot, or more than one.
        """
        newest = self.newest
        if reference == "best":
            scored = [manifest for manifest in self._manifests if manifest.id in scores]
            if not scored:
                raise UsageError("no snapshot has been evaluated yet, so that there is no best one")
            return max(scored, key=lambda manifest: (scores[manifest.id], manifest.number))
        if match := re.fullmatch(r"latest(?:~(\d+))?", reference):
            back = int(match[1] or 0)
            if back >= len(self._manifests):
                raise UsageError(f"{reference}: there are only {len(self._manifests)} snapshots")
            return self._manifests[-1 - back]
        if match := re.fullmatch(r"@update:(\d+)", reference):
            before = [manifest for manifest in self._manifests if manifest.counters.updates <= int(match[1])]
            if not before:
                raise UsageError(f"{reference}: the first snapshot was committed after that update")
            return before[-1]
        matching = [manifest for manifest in self._manifests if reference and manifest.id.startswith(reference)]
        if len(matching) == 1:
            return matching[0]
        if matching:
            raise UsageError(f"{reference!r} begins {len(matching)} ids: {matching[0].id}, {matching[1].id}, ...")
        raise UsageError(
            f"no snapshot {reference!r}; the newest is {newest.id}. References are an id or its beginning, latest, "
            "latest~3, best, @update:12000"
        )


def _file_record(path: Path) -> FileRecord:
    with path.open("rb") as file:
        return FileRecord(
            name=path.name, size=path.stat().st_size, sha256=hashlib.file_digest(file, "sha256").hexdigest()
        )
