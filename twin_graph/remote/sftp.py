"""Folders on machines that are reached by SSH, as places."""

from __future__ import annotations

import contextlib
import os
import secrets
import stat
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

from twin_graph.errors import UsageError
from twin_graph.remote.places import Listed, as_os_errors

if TYPE_CHECKING:
    from collections.abc import Iterator

_SECONDS = 15.0


class Sftp:
    """Implements `Place`, on one connection, whose requests come one after the other.

    Host, user, port and key are those that `ssh HOST` uses by `~/.ssh/config`, or of its agent; a host whose key is
    not in `~/.ssh/known_hosts` is refused.

    Args:
      host: as for `ssh`.
      folder: absolute, on that machine.
    """

    is_only_for_publishing = False

    def __init__(self, host: str, folder: str) -> None:
        self.url, self._host, self._folder = f"sftp://{host}{folder}", host, folder
        self._lock = threading.RLock()
        self._client: Any = None
        self._connected: Any = None
        self._is_exclusive = False

    def read(self, path: str, most: int) -> bytes:
        with self._ftp() as ftp, ftp.open(self._at(path), "rb") as file:
            file.prefetch(min(file.stat().st_size, most + 1))
            return bytes(file.read(most + 1))

    def write(self, path: str, content: bytes) -> None:
        with self._ftp() as ftp, self._made(ftp, path, content) as made:
            ftp.posix_rename(made, self._at(path))

    def create(self, path: str, content: bytes) -> None:
        with self._ftp() as ftp:
            self._check_exclusive(ftp)
            with self._made(ftp, path, content) as made:
                self._rename(ftp, made, self._at(path))

    def objects(self, folder: str) -> dict[str, Listed]:
        found: dict[str, Listed] = {}
        with self._ftp() as ftp:
            waiting = [folder]
            while waiting:
                inside = waiting.pop()
                with contextlib.suppress(FileNotFoundError):
                    for entry in ftp.listdir_attr(self._at(inside)):
                        name = f"{inside}/{entry.filename}"
                        if stat.S_ISDIR(entry.st_mode or 0):
                            waiting.append(name)
                        elif not entry.filename.startswith("."):
                            found[name] = Listed(entry.st_size or 0, float(entry.st_mtime or 0))
        return found

    def folders(self) -> list[str]:
        with self._ftp() as ftp:
            try:
                entries = ftp.listdir_attr(self._folder)
            except FileNotFoundError:
                return []
        return sorted(entry.filename for entry in entries if stat.S_ISDIR(entry.st_mode or 0))

    def remove(self, path: str) -> None:
        with self._ftp() as ftp, contextlib.suppress(FileNotFoundError):
            ftp.remove(self._at(path))

    def _at(self, path: str) -> str:
        return f"{self._folder}/{path}"

    @contextlib.contextmanager
    def _ftp(self) -> Iterator[Any]:
        """The connection, for one thread at a time; after an error, the next time a new one is made."""
        with self._lock, as_os_errors(self.url):
            if self._connected is None:
                self._connect()
            try:
                yield self._connected
            except (FileNotFoundError, FileExistsError, PermissionError, UsageError):
                raise
            except Exception:
                self._client.close()
                self._connected = None
                raise

    def _connect(self) -> None:
        try:
            import paramiko
        except ImportError as error:
            raise UsageError(f"sftp:// needs the extra `remote` ({error}): pip install 'twin-graph[remote]'") from None
        known = paramiko.SSHConfig()
        with contextlib.suppress(FileNotFoundError):
            known = paramiko.SSHConfig.from_path(str(Path.home() / ".ssh" / "config"))
        host, _, port = self._host.partition(":")
        found = known.lookup(host)
        self._client = paramiko.SSHClient()  # which refuses hosts that it does not know
        self._client.load_system_host_keys()
        self._client.connect(
            found.get("hostname", host),
            int(port or found.get("port", 22)),
            found.get("user"),
            key_filename=found.get("identityfile"),
            timeout=_SECONDS,
            banner_timeout=_SECONDS,
            auth_timeout=_SECONDS,
        )
        self._connected = self._client.open_sftp()
        self._connected.get_channel().settimeout(_SECONDS)

    @contextlib.contextmanager
    def _made(self, ftp: Any, path: str, content: bytes) -> Iterator[str]:
        """A whole file to be given its name; it is gone in the end."""
        folder, _, name = self._at(path).rpartition("/")
        _make_folders(ftp, folder)
        made = f"{folder}/.{name}.{secrets.token_hex(8)}"
        try:
            with ftp.open(made, "wb") as file:
                file.set_pipelined()
                file.write(content)
            yield made
        finally:
            with contextlib.suppress(OSError, EOFError):
                ftp.remove(made)

    def _rename(self, ftp: Any, made: str, there: str) -> None:
        """Raises FileExistsError if something has the name: version 3 of the protocol says that this fails then."""
        try:
            ftp.rename(made, there)
        except OSError:
            with contextlib.suppress(FileNotFoundError):
                ftp.stat(there)
                raise FileExistsError(there) from None
            raise

    def _check_exclusive(self, ftp: Any) -> None:
        """Raises `UsageError` where renaming replaces what is there, as some servers do: two could continue one run."""
        if self._is_exclusive:
            return
        with self._made(ftp, "one", b"1") as one, self._made(ftp, "other", b"2") as other:
            try:
                self._rename(ftp, one, other)
            except FileExistsError:
                self._is_exclusive = True
        if not self._is_exclusive:
            raise UsageError(
                f"{self.url} is on a server that renames files over others, so two machines could continue one run "
                "there: choose another place"
            )


def _make_folders(ftp: Any, folder: str) -> None:
    try:
        ftp.stat(folder)
    except FileNotFoundError:
        if parent := os.path.dirname(folder):  # noqa: PTH120 - a path of another machine
            _make_folders(ftp, parent)
        with contextlib.suppress(OSError):  # another thread was faster; or what follows says why not
            ftp.mkdir(folder)
