"""Opponents from other runs: their newest snapshots are fetched from their remotes while this run trains.

What arrives is committed as a snapshot of this run, with its origin and the agent step after which it arrived. From
then on nothing of it is asked of the network: a run that resumes, a fork and `reproduce` find it at that step again.
"""

from __future__ import annotations

import math
import queue
import shutil
import tempfile
import threading
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from twin_graph.errors import DamagedError, TwinGraphError, UsageError
from twin_graph.remote import fetching, heads
from twin_graph.snapshots.ledger import IMPORT, is_import
from twin_graph.snapshots.run import DESCRIPTION, SNAPSHOTS, Run
from twin_graph.snapshots.store import MANIFEST, MODEL_PREFIX, FileRecord, Manifest, Variable
from twin_graph.twin.twin import weights_sha256
from twin_graph.twin.weights import read_checkpoint

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from types import TracebackType
    from typing import Self

    from twin_graph.remote.heads import Head
    from twin_graph.remote.places import Place
    from twin_graph.training.progress import Progress

#: Bytes of a record of another run, or of a checkpoint beside its weights, at most.
_MOST_OF_RECORD = 2**22
#: Seconds between looks at the remotes.
_LOOK_SECONDS = 10.0


class Arrival(NamedTuple):
    """A snapshot of another run that was fetched and found to fit.

    Attributes:
      origin: URL of the remote, and its id there.
      folder: with its files.
      manifest: what it is there.
    """

    origin: str
    folder: Path
    manifest: Manifest

    def save(self, prefix: Path) -> None:
        """Writes its weights; see `SnapshotStore.commit`."""
        for file in filter(_is_model, self.manifest.files):
            shutil.copyfile(self.folder / file.name, prefix.with_name(file.name))


class League:
    """Fetches the newest snapshots of other runs while a run trains; ended by leaving its context.

    Args:
      run: which trains.
      places: the remotes of the others.

    Attributes:
      urls: of the remotes.
    """

    def __init__(self, run: Run, places: Sequence[Place]) -> None:
        self._run, self._places, self.urls = run, places, [place.url for place in places]
        # What the thread has to know of the run, whose records are the trainer's.
        self._variables: frozenset[Variable] = frozenset()
        self._known: set[str] = set()
        self._arrived: queue.SimpleQueue[Arrival] = queue.SimpleQueue()
        self._notices: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._looked_at: dict[str, int] = {}
        self._ends = threading.Event()
        self._folder = tempfile.TemporaryDirectory(prefix="twin-graph-league-", ignore_cleanup_errors=True)
        self._thread = threading.Thread(target=self._work, name="league", daemon=True)

    def check(self) -> list[str]:
        """Looks at the other runs before time is lost; returns the URLs at which there is none yet.

        Raises:
          UsageError: one plays another game.
          OSError: one cannot be reached.
        """
        empty = []
        for place in self._places:
            if head := heads.newest(place):
                self._check_game(place, head)
            else:
                empty.append(place.url)
        return empty

    def follow(self, progresses: Iterable[Progress]) -> Iterator[Progress]:
        """The same, taking in what has arrived: only between two advances, so that a resumed run can do the same."""
        for progress in progresses:
            store = progress.live.store
            if self._thread.ident is None:  # only now there is a snapshot to compare others with
                self._variables = frozenset(store.manifest(store.newest.id).variables)
                self._known = {str(snapshot.origin) for snapshot in store.imports}
                self._thread.start()
            while progress.agent_steps and not self._arrived.empty():
                arrival = self._arrived.get()
                if store.lineage_of(f"{IMPORT}-{arrival.manifest.weights_sha256[:12]}") is None:
                    taken = progress.live.take_in(arrival)
                    progress.notices.append(f"{taken.id} arrived: {arrival.origin}")
                shutil.rmtree(arrival.folder.parent.parent)
            while not self._notices.empty():
                progress.notices.append(self._notices.get())
            yield progress

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._ends.set()
        if self._thread.ident is not None:
            self._thread.join(timeout=1.0)  # one that waits for a network ends with the process
        self._folder.cleanup()

    def _work(self) -> None:
        told: dict[str, str] = {}
        while not self._ends.is_set():
            for place in self._places:
                try:
                    self._look(place)
                    told.pop(place.url, None)
                except Exception as error:  # whatever a library below raises, training goes on
                    words = str(error) if isinstance(error, OSError | TwinGraphError) else repr(error)
                    if told.get(place.url) != words:
                        told[place.url] = words
                        self._notices.put(f"nothing comes from {place.url} at present: {words}")
            self._ends.wait(_LOOK_SECONDS)

    def _look(self, place: Place) -> None:
        """Fetches the newest snapshot of a run if it has a new one. Raises as `fetching.pull`, and `UsageError`."""
        head = heads.newest(place)
        if head is None or head.number == self._looked_at.get(place.url):
            return
        try:
            if place.url not in self._looked_at:
                self._check_game(place, head)
            newest = _newest_with_weights(head)
            origin = f"{place.url}:{newest}"
            if newest and origin not in self._known and not self._ends.is_set():
                self._arrived.put(self._fetched(place, head, newest, origin))
                self._known.add(origin)
        except OSError:  # the network, perhaps: it is tried again
            raise
        except Exception:
            self._looked_at[place.url] = head.number  # nothing better comes of it before there is another state
            raise
        self._looked_at[place.url] = head.number

    def _check_game(self, place: Place, head: Head) -> None:
        """Raises `UsageError` if a run plays another game, or is this very run."""
        if head.run == self._run.id:
            raise UsageError(f"the run at {place.url} is this one, whose past opponent.policy knows already")
        with tempfile.TemporaryDirectory() as scratch:
            _fetch(place, head, [DESCRIPTION], Path(scratch), _MOST_OF_RECORD)
            theirs, ours = Run(Path(scratch)).settings.env.id, self._run.settings.env.id
        if theirs != ours:
            raise UsageError(f"the run at {place.url} plays {theirs}, and this one {ours}: it can be no opponent here")

    def _fetched(self, place: Place, head: Head, snapshot: str, origin: str) -> Arrival:
        """A snapshot of another run, if it is what its records say and fits. Raises `UsageError`, `DamagedError`."""
        whole = Path(tempfile.mkdtemp(dir=self._folder.name))
        try:
            inside = f"{SNAPSHOTS}/{snapshot}"
            _fetch(place, head, [f"{inside}/{MANIFEST}"], whole, _MOST_OF_RECORD)
            folder = whole / SNAPSHOTS / snapshot
            manifest = Manifest.read(folder)
            if differing := sorted({variable.name for variable in self._variables ^ {*manifest.variables}}):
                raise UsageError(f"{origin} does not fit this run's network: {', '.join(differing)} differ")
            weights = sum(math.prod(v.shape) * np.dtype(v.dtype).itemsize for v in self._variables)
            names = [file.name for file in manifest.files if _is_model(file)]
            _fetch(place, head, [f"{inside}/{name}" for name in names], whole, weights + _MOST_OF_RECORD)
            for file in manifest.files:
                if file.name in names:
                    file.check_in(folder)
            found = read_checkpoint(folder / MODEL_PREFIX)
            held = {Variable(name=name, shape=value.shape, dtype=value.dtype.name) for name, value in found.items()}
            if held != self._variables or weights_sha256(found) != manifest.weights_sha256:
                raise UsageError(f"{origin} holds other weights than its manifest says")
            if not all(np.isfinite(value).all() for value in found.values()):
                raise UsageError(f"{origin} has weights that are not finite")
        except BaseException:
            shutil.rmtree(whole, ignore_errors=True)
            raise
        return Arrival(origin, folder, manifest)


def _is_model(file: FileRecord) -> bool:
    """Whether a snapshot's file is one of the two that hold its weights."""
    return file.name in (f"{MODEL_PREFIX}.index", f"{MODEL_PREFIX}.data-00000-of-00001")


def _fetch(place: Place, head: Head, names: Sequence[str], folder: Path, most: int) -> None:
    """Adds files of a state to a folder. Raises `DamagedError` if they are larger than `most` bytes."""
    files = [file for file in head.files if file.name in names]
    if (size_ := sum(file.bytes for file in files)) > most:
        raise DamagedError(f"{place.url} has {size_:,} bytes where {most:,} would be enough")
    fetching.add(place, files, folder)


def _newest_with_weights(head: Head) -> str | None:
    """The run's own snapshot of the highest number whose weights are in a state."""
    names = (file.name.split("/") for file in head.files)
    found = (name[1] for name in names if name[0] == SNAPSHOTS and name[-1] == f"{MODEL_PREFIX}.index")
    own = (snapshot for snapshot in found if not is_import(snapshot))
    return max(own, key=lambda snapshot: int(snapshot.partition("-")[0]), default=None)
