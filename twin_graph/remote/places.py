"""Where remotes are: folders under a URL, in which objects are read, listed, and written as a whole.

A local folder is written to as runs are: durably, by links. Everything else is reached through fsspec, whose libraries
find credentials where they always look for them; a URL has none.
"""

from __future__ import annotations

import contextlib
import errno
import importlib
import os
import re
import threading
import time
import urllib.parse
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple, Protocol, TypeVar

from twin_graph.errors import UsageError
from twin_graph.snapshots.files import fsync, make_folder, temporary_of, write_new

_Result = TypeVar("_Result")
_URL = re.compile(r"(?P<protocol>[a-z][a-z0-9]*)://(?P<rest>.*)", re.DOTALL)
#: What stands before `://`, and the module that fsspec needs for it.
PROTOCOLS = {"file": "", "s3": "s3fs", "gs": "gcsfs"}
_ADVICE = "give file:///FOLDER, s3://BUCKET/FOLDER or gs://BUCKET/FOLDER"
#: Seconds to wait before each further attempt to reach a place.
_AGAIN_AFTER = 0.5, 2.0, 8.0
_SECONDS = {"connect_timeout": 10, "read_timeout": 30}


class Listed(NamedTuple):
    """What a listing says of an object: its length, and when it was written, by the storage's own clock."""

    bytes: int
    written: float


class Place(Protocol):
    """A folder elsewhere. Paths inside it have slashes. Everything may raise `OSError`.

    Attributes:
      url: of the folder, without a slash at its end.
    """

    url: str

    def read(self, path: str, most: int) -> bytes:
        """An object's bytes; of a longer one, the first `most` and one more. Raises FileNotFoundError."""
        raise NotImplementedError

    def write(self, path: str, content: bytes) -> None:
        """Creates or replaces an object: readers see the old content or the new."""
        raise NotImplementedError

    def create(self, path: str, content: bytes) -> None:
        """Creates an object. Raises FileExistsError if there is one: of any number who try, one succeeds."""
        raise NotImplementedError

    def objects(self, folder: str) -> dict[str, Listed]:
        """All objects in a folder and those inside it, by their paths in the place."""
        raise NotImplementedError

    def folders(self) -> list[str]:
        """The names of the folders in this one."""
        raise NotImplementedError

    def remove(self, path: str) -> None:
        """Removes an object, if it is there."""
        raise NotImplementedError


def is_url(text: str) -> bool:
    """Whether a person means a remote by it, and no folder here."""
    return _URL.match(text) is not None


def place_at(url: str) -> Place:
    """The place at a URL; nothing is reached yet. Raises `UsageError` if there can be none."""
    match = _URL.fullmatch(url)
    if match is None:
        raise UsageError(f"{url!r} is no URL of a remote; {_ADVICE}")
    protocol, rest = match["protocol"], match["rest"].rstrip("/")
    if protocol not in PROTOCOLS:
        raise UsageError(f"{protocol}:// is none of the protocols of remotes; {_ADVICE}")
    parts = rest.split("/")
    if "@" in parts[0] or "?" in rest or "#" in rest or "::" in rest:
        raise UsageError(
            f"{protocol}://... has more than a place in it: leave out names, passwords, options and chains. "
            "Credentials are found where the storage's own tools look for them"
        )
    if not re.fullmatch(r"[^\x00-\x1f\x7f\\*\[\]]+", rest) or {".", ".."} & {*parts} or "" in parts[1:]:
        raise UsageError(f"{url!r} is no place for a remote; {_ADVICE}")
    if protocol == "file":
        folder = Path(urllib.parse.unquote(rest))
        if parts[0] or not folder.is_absolute():
            raise UsageError(f"{url}: write three slashes before an absolute path, as in file:///mnt/runs/pong")
        return Folder(folder)
    return Bucket(protocol, rest)


class Folder:
    """Implements `Place` by a folder of this machine, or one that is mounted on it."""

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

    def __init__(self, protocol: str, rest: str) -> None:
        self.url, self._root, self._protocol = f"{protocol}://{rest}", rest, protocol
        self._connected: Any = None

    @property
    def _storage(self) -> Any:
        if self._connected is None:
            try:
                importlib.import_module(PROTOCOLS[self._protocol])
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
        with _as_os_errors(self.url):
            return bytes(self._storage.cat_file(self._at(path), start=0, end=most + 1))

    def write(self, path: str, content: bytes) -> None:
        with _as_os_errors(self.url):
            self._storage.pipe_file(self._at(path), content)

    def create(self, path: str, content: bytes) -> None:
        with _as_os_errors(self.url):
            self._storage.pipe_file(self._at(path), content, mode="create")

    def objects(self, folder: str) -> dict[str, Listed]:
        with _as_os_errors(self.url):
            try:
                found = self._storage.find(self._at(folder), detail=True)
            except FileNotFoundError:
                return {}
        inside = len(self._root) + 1
        return {path[inside:]: Listed(int(what["size"]), _written(what)) for path, what in found.items()}

    def folders(self) -> list[str]:
        with _as_os_errors(self.url):
            try:
                found = self._storage.ls(self._root, detail=True)
            except FileNotFoundError:
                return []
        return sorted(PurePosixPath(what["name"]).name for what in found if what["type"] == "directory")

    def remove(self, path: str) -> None:
        with _as_os_errors(self.url), contextlib.suppress(FileNotFoundError):
            self._storage.rm_file(self._at(path))

    def _at(self, path: str) -> str:
        return f"{self._root}/{path}"


def _written(what: dict[str, Any]) -> float:
    at: Any = what.get("LastModified") or what.get("mtime") or what.get("updated")
    return float(at.timestamp() if hasattr(at, "timestamp") else at or 0.0)


@contextlib.contextmanager
def _as_os_errors(url: str) -> Iterator[None]:
    """Makes `OSError` of what the libraries below raise, and `UsageError` where credentials are missing or wrong."""
    try:
        yield
    except (OSError, UsageError):
        raise
    except Exception as error:  # each of these libraries has its own
        if "credential" in type(error).__name__.lower():
            raise UsageError(f"{url}: {' '.join(str(error).split())}") from None
        raise OSError(f"{url}: {type(error).__name__}: {' '.join(str(error).split())}") from error


def again(do: Callable[[], _Result]) -> _Result:
    """What `do` returns, which is tried several times; not where the answer is that something is there, or is not."""
    for seconds in _AGAIN_AFTER:
        try:
            return do()
        except (FileNotFoundError, FileExistsError, PermissionError):
            raise
        except OSError:
            time.sleep(seconds)
    return do()
