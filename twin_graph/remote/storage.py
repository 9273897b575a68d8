"""Places on disks and in buckets.

A local folder is written to as runs are: durably, by links. Buckets are reached through fsspec, whose libraries find
credentials where they always look for them.
"""

from __future__ import annotations

import contextlib
import errno
import importlib
import os
import threading
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any

from twin_graph.errors import UsageError
from twin_graph.remote.places import Listed, as_os_errors
from twin_graph.snapshots.files import fsync, make_folder, temporary_of, write_new

#: The module that fsspec needs, by what stands before `://`.
BUCKETS = {"s3": "s3fs", "gs": "gcsfs"}
_SECONDS = {"connect_timeout": 10, "read_timeout": 30}


class Folder:
    """Implements `Place` by a folder of this machine, or one that is mounted on it."""

    is_only_for_publishing = False

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.url = folder.as_uri()

    def read(self, path: str, most: int) -> bytes:
        with (self._folder / path).open("rb") as file:
            return file.read(most + 1)

    def write(self, path: str, content: bytes) -> None:
        with self._made(path, content) as made:
            made.replace(self._folder / path)

    def create(self, path: str, content: bytes) -> None:
        with self._made(path, content) as made:
            try:
                os.link(made, self._folder / path)
            except OSError as error:
                if error.errno not in (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS):
                    raise
                raise UsageError(
                    f"{self.url} is on storage without links ({error.strerror}), so two machines could continue one "
                    "run there: choose another place"
                ) from None

    @contextlib.contextmanager
    def _made(self, path: str, content: bytes) -> Iterator[Path]:
        """A durable file to be moved or linked to its place; several threads may write the same."""
        there = self._folder / path
        make_folder(there.parent)
        made = temporary_of(there.with_name(f"{there.name}.{threading.get_ident()}"))
        made.unlink(missing_ok=True)
        try:
            write_new(made, content)
            fsync(made)
            yield made
        finally:
            made.unlink(missing_ok=True)
        fsync(there.parent)

    def objects(self, folder: str) -> dict[str, Listed]:
        found = {}
        for path in (self._folder / folder).rglob("[!.]*"):
            with contextlib.suppress(FileNotFoundError):  # removed meanwhile
                if path.is_file():
                    status = path.stat()
                    found[path.relative_to(self._folder).as_posix()] = Listed(status.st_size, status.st_mtime)
        return found

    def folders(self) -> list[str]:
        try:
            return sorted(path.name for path in self._folder.iterdir() if path.is_dir() and path.name[0] != ".")
        except FileNotFoundError:
            return []

    def remove(self, path: str) -> None:
        (self._folder / path).unlink(missing_ok=True)


class Bucket:
    """Implements `Place` through fsspec, for storage whose conditional writes are atomic."""

    is_only_for_publishing = False

    def __init__(self, protocol: str, rest: str) -> None:
        self.url, self._root, self._protocol = f"{protocol}://{rest}", rest, protocol
        self._connected: Any = None

    @property
    def _storage(self) -> Any:
        if self._connected is None:
            try:
                importlib.import_module(BUCKETS[self._protocol])
                import fsspec
            except ImportError as error:
                raise UsageError(
                    f"{self._protocol}:// needs the extra `remote` ({error}): pip install 'twin-graph[remote]'"
                ) from None
            options: dict[str, Any] = {"skip_instance_cache": True, "use_listings_cache": False}
            if self._protocol == "s3":
                options["config_kwargs"] = {**_SECONDS, "retries": {"total_max_attempts": 1}}
            self._connected = fsspec.filesystem(self._protocol, **options)
            self._connected.retries = 1  # of s3fs, as of what is below it; `again` tries again
        return self._connected

    def read(self, path: str, most: int) -> bytes:
        with as_os_errors(self.url):
            return bytes(self._storage.cat_file(self._at(path), start=0, end=most + 1))

    def write(self, path: str, content: bytes) -> None:
        with as_os_errors(self.url):
            self._storage.pipe_file(self._at(path), content)

    def create(self, path: str, content: bytes) -> None:
        with as_os_errors(self.url):
            self._storage.pipe_file(self._at(path), content, mode="create")

    def objects(self, folder: str) -> dict[str, Listed]:
        with as_os_errors(self.url):
            try:
                found = self._storage.find(self._at(folder), detail=True)
            except FileNotFoundError:
                return {}
        inside = len(self._root) + 1
        return {path[inside:]: Listed(int(what["size"]), _written(what)) for path, what in found.items()}

    def folders(self) -> list[str]:
        with as_os_errors(self.url):
            try:
                found = self._storage.ls(self._root, detail=True)
            except FileNotFoundError:
                return []
        return sorted(PurePosixPath(what["name"]).name for what in found if what["type"] == "directory")

    def remove(self, path: str) -> None:
        with as_os_errors(self.url), contextlib.suppress(FileNotFoundError):
            self._storage.rm_file(self._at(path))

    def _at(self, path: str) -> str:
        return f"{self._root}/{path}"


def _written(what: dict[str, Any]) -> float:
    at: Any = what.get("LastModified") or what.get("mtime") or what.get("updated")
    return float(at.timestamp() if hasattr(at, "timestamp") else at or 0.0)
