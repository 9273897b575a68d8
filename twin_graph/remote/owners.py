"""Where runs here are sent, and as whom: kept in the user's own configuration, outside of any run.

A run may come from a stranger, and a copy of its folder is another run to a remote: so neither is told by the run.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
from typing import TYPE_CHECKING, Any

from twin_graph.base.counters import Whole
from twin_graph.config.trust import configuration
from twin_graph.errors import DamagedError, UsageError
from twin_graph.snapshots.files import (
    checked,
    file_lock,
    fsync,
    make_folder,
    open_plain,
    read_file,
    temporary_of,
    write_file,
)
from twin_graph.snapshots.forms import Record, problem

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from twin_graph.remote.heads import Head
    from twin_graph.snapshots.run import Run


_MARK, _REMOTES = "copy", "remotes"


class Owner(Record):
    """What a run here is to one remote.

    Attributes:
      url: of the remote.
      owner: see `heads.Head`.
      state, agent_steps, sent: the newest state that was sent or fetched, how far the run was in it, and when; 0 and
        empty before.
      trouble: why nothing could be sent since; empty if nothing is wrong.
    """

    url: str
    owner: str
    state: Whole = 0
    agent_steps: Whole = 0
    sent: str = ""
    trouble: str = ""

    def of(self, head: Head) -> Owner:
        """The same once it has sent or fetched a state."""
        known = {"state": head.number, "agent_steps": head.agent_steps, "sent": head.time, "trouble": ""}
        return self.model_copy(update=known)


class _Kept(Record):
    """What is kept of a run here: which and where, for people; where it is sent while it trains; what it is there; the
    remotes of its opponents."""

    run: str
    folder: str
    trains_with: str = ""
    owners: tuple[Owner, ...] = ()
    opponents: tuple[str, ...] = ()


def of(run: Run, url: str) -> Owner:
    """What a run here is to a remote; if that is not known, a new owner, which is not kept yet."""
    return _of(_read(run), url)


def claimed(run: Run, url: str) -> Owner:
    """The same, kept: two processes that come at once are one owner. Raises as `keep`."""

    def changed(kept: _Kept) -> dict[str, Any]:
        owner = _of(kept, url)
        return {} if owner in kept.owners else {"owners": (*kept.owners, owner)}

    _change(run, changed)
    return of(run, url)


def _of(kept: _Kept, url: str) -> Owner:
    return next((owner for owner in kept.owners if owner.url == url), Owner(url=url, owner=secrets.token_hex(16)))


def trains_with(run: Run) -> Owner | None:
    """What it is to the remote to which it is sent while it trains; None if there is none."""
    kept = _read(run)
    return next((owner for owner in kept.owners if owner.url == kept.trains_with), None)


def keep(run: Run, owner: Owner, *, to_train: bool = False) -> None:
    """Keeps what a run is to a remote, for later processes; with `to_train` it is sent there while it trains.

    Raises:
      UsageError: that is not possible.
    """

    def changed(kept: _Kept) -> dict[str, Any]:
        others = [one for one in kept.owners if one.url != owner.url]
        return {"owners": (*others, owner)} | ({"trains_with": owner.url} if to_train else {})

    _change(run, changed)


def train_without(run: Run) -> None:
    """From now on, a run here is sent nowhere while it trains."""
    if trains_with(run):
        _change(run, lambda _: {"trains_with": ""})


def opponents(run: Run) -> tuple[str, ...]:
    """The remotes from which a run here gets opponents."""
    return _read(run).opponents


def keep_opponents(run: Run, urls: Sequence[str]) -> None:
    """From now on, a run here gets opponents from these remotes. Raises as `keep`."""
    if tuple(urls) != opponents(run):
        _change(run, lambda _: {"opponents": tuple(urls)})


def _change(run: Run, changed: Callable[[_Kept], dict[str, Any]]) -> None:
    _mark(run)
    path = _path(run)
    try:
        make_folder(path.parent)
        with file_lock(path.with_suffix(".lock")):
            kept = _read(run)
            write_file(path, checked(kept.model_copy(update=changed(kept)).model_dump(mode="json"), indent=1))
    except OSError as error:
        raise UsageError(
            f"cannot keep in {path.parent} where {run.name} is sent ({error.strerror}); set XDG_CONFIG_HOME to a "
            "folder that can be written"
        ) from None


def _read(run: Run) -> _Kept:
    path = _path(run)
    if not path.exists():
        return _Kept(run=run.id, folder=str(run.folder))
    record = read_file(path)
    if wrong := problem(_Kept, record):
        raise DamagedError(f"{path} is damaged: {wrong}")
    return _Kept.model_validate(record)


def is_copy(run: Run) -> bool:
    """Whether this is a copy of a run that is sent somewhere, and nothing is kept of the copy."""
    return (run.control / _MARK).exists() and not _path(run).exists()


def _mark(run: Run) -> None:
    """Gives the run in this folder a mark of its own, unless it has one, or nothing can be written there."""
    mark = run.control / _MARK
    if mark.exists():
        return
    temporary = temporary_of(mark)
    with contextlib.suppress(OSError):
        make_folder(mark.parent)
        write_file(temporary, secrets.token_hex(16).encode())
        with contextlib.suppress(FileExistsError):
            os.link(temporary, mark)  # whole, and the first of two that come at once
        fsync(mark.parent)
    with contextlib.suppress(OSError):
        temporary.unlink()


def _path(run: Run) -> Path:
    """Where it is kept what the run in this folder is.

    A mark in the folder tells it from others, and the number of that file on its disk from copies: this stays when the
    folder is renamed. Without a mark its path does.
    """
    try:
        with open_plain(run.control / _MARK) as file:
            mark = f"{run.id} {file.read(64)!r} {os.fstat(file.fileno()).st_ino}"
    except OSError:
        mark = f"{run.id} in {run.folder.resolve()!r}"
    return configuration() / _REMOTES / f"{hashlib.sha256(mark.encode()).hexdigest()}.json"
