"""Runs in remotes, read from here: their records in the user's cache, weights as they are asked for; what is damaged.

Nothing of it is changed there. What commands record of such a run stays in the cache, and is gone with the next state.
"""

from __future__ import annotations

import hashlib
import shutil
import time
from typing import TYPE_CHECKING, NamedTuple

from twin_graph.config import trust
from twin_graph.errors import TwinGraphError
from twin_graph.remote import fetching, heads
from twin_graph.remote.places import again
from twin_graph.remote.urls import is_url, place_at
from twin_graph.snapshots.files import file_lock, make_folder
from twin_graph.snapshots.run import SNAPSHOTS, Run, find

if TYPE_CHECKING:
    from pathlib import Path

    from twin_graph.remote.heads import Head
    from twin_graph.remote.places import Place


_KEPT_SECONDS = 86_400.0


def cache() -> Path:
    """Where the records of remote runs are kept."""
    return trust.user_folder("XDG_CACHE_HOME", ".cache") / "remotes"


def opened(name: str) -> Run:
    """The run of this name or in this folder; or at this URL, whose records are fetched, unless they are here."""
    if not is_url(name):
        return find(name)
    place = place_at(name)
    return _cached(place, fetching.newest(place))


def _cached(place: Place, head: Head) -> Run:
    whole = cache() / hashlib.sha256(place.url.encode()).hexdigest()[:32]
    folder = whole / f"{head.number:08d}-{head.owner[:8]}" / head.name
    make_folder(whole)
    with file_lock(whole / "lock"):
        if not folder.exists():
            for old in [path for path in whole.iterdir() if path.is_dir()]:
                if time.time() - old.stat().st_mtime > _KEPT_SECONDS:  # or somebody may be reading it
                    shutil.rmtree(old, ignore_errors=True)
            fetching.pull(place, head, folder, wanted=fetching.is_record)
    return Run(folder)


def fetch_weights(url: str, run: Run, snapshot_id: str) -> None:
    """Adds the weights of one snapshot to a run that `opened` fetched. Raises `UsageError` if the remote has none."""
    run.store().prefix(snapshot_id)
    place = place_at(url)
    head = heads.read(place, int(run.folder.parent.name.partition("-")[0]))
    missing = [
        file
        for file in head.files
        if file.name.startswith(f"{SNAPSHOTS}/{snapshot_id}/") and not (run.folder / file.name).exists()
    ]
    with file_lock(run.folder.parent.parent / "lock"):
        fetching.add(place, missing, run.folder)


class Sent(NamedTuple):
    """A run in a remote, for a list of them; with `damage`, only the name and what is wrong."""

    name: str
    head: Head | None
    damage: str = ""


def runs(url: str) -> list[Sent]:
    """The run at a URL, or those in the folders below it."""
    place = place_at(url)
    if head := heads.newest(place):
        return [Sent(place.url, head)]
    found = []
    for name in place.folders():
        try:
            head = heads.newest(place_at(f"{place.url}/{name}"))
        except (OSError, TwinGraphError) as error:
            found.append(Sent(name, None, str(error)))
        else:
            found += [Sent(name, head)] if head else []
    return found


def damage_of(place: Place, head: Head) -> list[str]:
    """What is wrong with a state, a line each, as far as lists tell: objects that are missing, or of another length."""
    listed = again(lambda: place.objects(heads.OBJECTS))
    found = []
    for sha256, length in sorted(head.pieces.items()):
        path = heads.path_of(sha256)
        if path not in listed:
            found.append(f"{place.url}/{path} is gone")
        elif listed[path].bytes != length:
            found.append(f"{place.url}/{path} has {listed[path].bytes:,} bytes, and had {length:,} when it was sent")
    return found


def url_and_reference(text: str) -> tuple[str, str | None]:
    """`s3://bucket/pong:best` is the snapshot `best` of the run at `s3://bucket/pong`."""
    url, _, reference = text.rpartition(":")
    return (url, reference) if is_url(url) and "/" not in reference else (text, None)
