"""Which remote a run here is sent to, and as whom: kept in the user's own configuration, outside of any run.

A run may come from a stranger, and a copy of its folder is another run to a remote: so neither is told by the run.
"""

from __future__ import annotations

import hashlib
import secrets
from typing import TYPE_CHECKING

from twin_graph.base.counters import Whole
from twin_graph.config.trust import configuration
from twin_graph.errors import DamagedError, UsageError
from twin_graph.snapshots.files import checked, make_folder, read_file, write_file
from twin_graph.snapshots.forms import Record, problem

if TYPE_CHECKING:
    from pathlib import Path

    from twin_graph.snapshots.run import Run


class Owner(Record):
    """What a run here is to its remote.

    Attributes:
      url: of the remote.
      owner: see `heads.Head`.
      run, folder: which run, for people.
      state, agent_steps, sent: the newest state that was sent, how far the run was in it, and when; 0 and empty before.
      trouble: why nothing could be sent since; empty if nothing is wrong.
    """

    url: str
    owner: str
    run: str
    folder: str
    state: Whole = 0
    agent_steps: Whole = 0
    sent: str = ""
    trouble: str = ""

    @classmethod
    def new(cls, run_id: str, folder: Path, url: str) -> Owner:
        """One that no remote knows yet."""
        return cls(url=url, owner=secrets.token_hex(16), run=run_id, folder=str(folder))


def of(run: Run) -> Owner | None:
    """That of a run here; None if it has no remote."""
    path = _path(run)
    if not path.exists():
        return None
    record = read_file(path)
    if wrong := problem(Owner, record):
        raise DamagedError(f"{path} is damaged: {wrong}")
    return Owner.model_validate(record)


def keep(run: Run, owner: Owner) -> None:
    """Keeps it for later processes. Raises `UsageError` if that is not possible."""
    path = _path(run)
    try:
        make_folder(path.parent)
        write_file(path, checked(owner.model_dump(mode="json"), indent=1))
    except OSError as error:
        raise UsageError(
            f"cannot keep in {path.parent} where {run.name} is sent ({error.strerror}); set XDG_CONFIG_HOME to a "
            "folder that can be written"
        ) from None


def forget(run: Run) -> None:
    """A run here has no remote from now on."""
    _path(run).unlink(missing_ok=True)


def _path(run: Run) -> Path:
    name = hashlib.sha256(f"{run.id} in {run.folder.resolve()}".encode("utf-8", "surrogateescape")).hexdigest()
    return configuration() / "remotes" / f"{name}.json"
