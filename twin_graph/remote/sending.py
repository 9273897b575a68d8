"""Sends states of a run to its remote: first the objects that are missing there, then the head that names them."""

from __future__ import annotations

import itertools
import os
import re
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from twin_graph.errors import DamagedError, UsageError
from twin_graph.remote import heads
from twin_graph.remote.heads import BELONGS, PIECE, Head, Piece, Stored, TakenOverError
from twin_graph.remote.places import again
from twin_graph.snapshots.files import lock_folder, whole_bytes
from twin_graph.snapshots.forms import RECORDS
from twin_graph.snapshots.ledger import Point, utc_now
from twin_graph.snapshots.points import SEGMENTS
from twin_graph.snapshots.run import DESCRIPTION, GAMES, POINTS, RATINGS

if TYPE_CHECKING:
    from twin_graph.remote.places import Place
    from twin_graph.snapshots.run import Run

#: Seconds for which a state that is no longer the newest can still be fetched, and for which objects that no head
#: names yet are left alone.
GRACE_SECONDS = 86_400.0
_LINES = (*RECORDS, GAMES)  # files that only grow, by whole lines
_GROWING = f"events{os.sep}"
_REPLACED = (DESCRIPTION, RATINGS)
_TRIES = 1_000  # to find nothing changed while a run's files are listed


#: Called with the bytes of files that are done, and with those of all.
Tell = Callable[[int, int], object]


def _nobody(done: int, total: int) -> None:
    """Who is told where nobody looks."""


class _File(NamedTuple):
    """A file as it was at one moment.

    Attributes:
      name: its path in the run's folder.
      length: how much of it belongs to the state.
      signature: the same as long as it is the same file; of one that grows, whatever its length.
      content: of one that is replaced.
    """

    name: str
    length: int
    signature: tuple[int, ...]
    content: bytes | None = None


class Sender:
    """Sends states of one run, as one owner; for one thread at a time.

    Args:
      run: whose.
      place: of the remote.
      owner: see `Head`.
      at_once: files that are sent at the same time.

    Attributes:
      head: the newest in the remote; None where there is none.
    """

    def __init__(self, run: Run, place: Place, owner: str, *, at_once: int = 8) -> None:
        self.run, self.place, self.owner, self._at_once = run, place, owner, at_once
        self.head: Head | None = None
        self._sent: dict[str, tuple[_File, Stored]] = {}
        self._there: dict[str, int] = {}  # objects with their lengths
        self._heads: dict[int, Head] = {}

    def begin(self, *, take_over: bool = False) -> None:
        """Looks at what is there.

        Raises:
          UsageError: there is another run.
          TakenOverError: there is a state of another owner, and it is not to be taken over.
        """
        self.head = head = heads.newest(self.place)
        if head:
            self._check(head, take_over=take_over)
        listed = again(lambda: self.place.objects(heads.OBJECTS))
        check_writable(self.place)
        made = heads.numbers(self.place)
        now = max((one.written for one in [*listed.values(), *made.values()]), default=0.0)
        named = set(head.pieces) if head else set()
        for path, one in listed.items():
            sha256 = path.rpartition("/")[2]
            # Whoever cleans up leaves these alone long enough to name them.
            if sha256 in named or one.written > now - GRACE_SECONDS / 2:
                self._there[sha256] = one.bytes
        if head and head.owner == self.owner:
            self._remove_unnamed({path: one.written for path, one in listed.items()}, made, now)

    def _check(self, head: Head, *, take_over: bool) -> None:
        url = self.place.url
        if head.run != self.run.id:
            raise UsageError(f"{url} holds {head.name}, which is another run; choose another place for {self.run.name}")
        if self.run.ledger.events(Point) and not self.run.points().folders():
            raise UsageError(f"{self.run.folder} lacks its resume points, and would replace a whole run in {url}")
        if take_over:
            return
        here, whose = _agent_steps(self.run), "another copy of " if head.owner != self.owner else ""
        if whose or head.agent_steps > here:
            raise TakenOverError(
                f"{url} has {whose}{head.name} at {head.agent_steps:,} agent steps, and this one is at {here:,}: "
                f"`resume {url}` and `pull` take that one; --take-over replaces it by this one"
            )

    def _remove_unnamed(self, written: dict[str, float], made: Iterable[int], now: float) -> None:
        """What was sent for heads that were never created, a grace time ago."""
        try:
            named = {sha256 for number in made for sha256 in self._read(number).pieces}
        except DamagedError:  # who looks for it finds it by `verify`; meanwhile nothing is removed
            return
        for path, at in written.items():
            if at < now - GRACE_SECONDS and path.rpartition("/")[2] not in named:
                self.place.remove(path)

    def _read(self, number: int) -> Head:
        if number not in self._heads:
            self._heads[number] = heads.read(self.place, number)
        return self._heads[number]

    def send(self, tell: Tell = _nobody) -> Head:
        """Sends the present state, unless the newest one there is the same.

        Raises:
          TakenOverError: another has continued the run.
          OSError: the place cannot be reached, or a file cannot be read.
        """
        while True:
            state, agent_steps = self._state()
            try:
                files = self._store_all(state, tell)
                break
            except FileNotFoundError as error:  # retention has removed it since: what is there now needs it no more
                if not error.filename or not Path(error.filename).is_relative_to(self.run.folder):
                    raise
        if self.head and self.head.owner == self.owner and self.head.files == files:
            return self.head
        return self._claim(
            Head(
                number=self.head.number + 1 if self.head else 1,
                owner=self.owner,
                run=self.run.id,
                name=_plain(self.run.name),
                time=utc_now(),
                agent_steps=agent_steps,
                files=files,
            )
        )

    def send_segments(self) -> None:
        """Sends what is new of the replay before a resume point names it, so that little is left to send then."""
        folder = self.run.folder / POINTS / SEGMENTS
        for path in sorted(folder.glob("*.npys")):
            name = path.relative_to(self.run.folder).as_posix()
            if name not in self._sent:
                self._store(_File(name, *_looked_at(path)))

    def _claim(self, head: Head) -> Head:
        while (there := heads.claim(self.place, head)) != head:
            if there.owner != self.owner:
                raise TakenOverError(
                    f"{self.place.url} was continued elsewhere: another copy of {head.name} made its state "
                    f"{there.number}, at {there.agent_steps:,} agent steps"
                )
            head = head.model_copy(update={"number": head.number + 1})  # a push by hand was faster
        self.head = self._heads[head.number] = head
        self._there |= head.pieces
        self._tidy(head)
        return head

    def _tidy(self, head: Head) -> None:
        """Removes heads whose successors are old, and what only they need."""
        made = heads.numbers(self.place)
        if head.number not in made:  # an old list
            return
        now = made[head.number].written
        old = [one for one, after in itertools.pairwise(sorted(made)) if made[after].written < now - GRACE_SECONDS]
        if not old:
            return
        try:
            gone = [self._read(number) for number in old]
            kept = [self._read(number) for number in made if number not in old]
        except DamagedError:  # as above
            return
        listed = again(lambda: self.place.objects(heads.OBJECTS))
        for number in old:
            self.place.remove(heads.path_of_head(number))
            del self._heads[number]
        for path in map(heads.path_of, heads.unneeded(kept, gone)):
            if path in listed and listed[path].written < now - GRACE_SECONDS:  # or it was sent anew, to be named soon
                self._there.pop(path.rpartition("/")[2], None)
                self.place.remove(path)
        whole = {name: one for name, one in self._sent.items() if all(p.sha256 in self._there for p in one[1].pieces)}
        self._sent = whole

    def _state(self) -> tuple[list[_File], int]:
        """All files of one moment, so that what the records name is there; and the agent steps of its newest point."""
        folder = self.run.folder
        for _ in range(_TRIES):
            with lock_folder(folder / POINTS, shared=True), lock_folder(self.run.store_folder, shared=True):
                before = _names(folder)
                lengths = {name: whole_bytes(folder / name) for name in _LINES}
                replaced = {name: (folder / name).read_bytes() for name in _REPLACED if (folder / name).exists()}
                agent_steps = _agent_steps(self.run)
                if _names(folder) != before:
                    continue
                if DESCRIPTION not in before:
                    raise UsageError(f"{folder} is no run any more: was it moved or removed?")
                state = [_File(name, len(content), (), content) for name, content in replaced.items()]
                for name in before - replaced.keys():
                    size, signature = _looked_at(folder / name)
                    if name in _LINES or name.startswith(_GROWING):
                        state.append(_File(name, lengths.get(name, size), signature[:1]))
                    else:
                        state.append(_File(name, size, signature))
            return sorted(state), agent_steps
        raise UsageError(f"{folder} changes all the time: is something else writing there?")

    def _store_all(self, state: list[_File], tell: Tell) -> tuple[Stored, ...]:
        total, done, counting = sum(file.length for file in state), 0, threading.Lock()

        def store(file: _File) -> Stored:
            nonlocal done
            stored = self._store(file)
            with counting:
                done += file.length
                tell(done, total)
            return stored

        if self._at_once == 1:  # Python would wait for a pool's threads where it ends
            return tuple(map(store, state))
        with ThreadPoolExecutor(self._at_once, "sending") as pool:
            waiting = [pool.submit(store, file) for file in state]
            try:
                return tuple(one.result() for one in waiting)
            except BaseException:
                pool.shutdown(cancel_futures=True)
                raise

    def _store(self, file: _File) -> Stored:
        """Sends what is missing of a file, and says where it is."""
        before = self._sent.get(file.name)
        if before and before[0] == file:
            return before[1]
        same = before is not None and before[0].signature == file.signature and before[0].length <= file.length
        pieces = list(before[1].pieces[: before[0].length // PIECE]) if before and same and file.content is None else []
        for part in self._parts(file, len(pieces) * PIECE):
            piece, content = heads.packed(part)
            if self._there.get(piece.sha256) != piece.bytes:
                self._write(piece, content)
            pieces.append(piece)
        stored = Stored(name=file.name, bytes=file.length, pieces=tuple(pieces))
        self._sent[file.name] = file, stored
        return stored

    def _write(self, piece: Piece, content: bytes) -> None:
        again(lambda: self.place.write(heads.path_of(piece.sha256), content))
        self._there[piece.sha256] = piece.bytes

    def _parts(self, file: _File, start: int) -> Iterator[bytes]:
        if file.content is not None:
            yield from (file.content[at : at + PIECE] for at in range(start, file.length, PIECE))
            return
        path = self.run.folder / file.name
        with path.open("rb") as opened:
            opened.seek(start)
            for at in range(start, file.length, PIECE):
                part = opened.read(min(PIECE, file.length - at))
                if len(part) < min(PIECE, file.length - at):
                    raise DamagedError(f"{path} became shorter while it was sent")
                yield part


def check_writable(place: Place) -> None:
    """Raises OSError unless something can be written there."""
    piece, content = heads.packed(b"whether something can be written")
    again(lambda: place.write(heads.path_of(piece.sha256), content))


def _plain(name: str) -> str:
    """A run's name without what not every folder may have in its name."""
    return re.sub(r"[^A-Za-z0-9_.,=+-]", "-", f"run{name}" if re.match(r"[^A-Za-z0-9_]", name) else name)[:200]


def _names(folder: Path) -> set[str]:
    found = set()
    for where, _, names in os.walk(folder):
        inside = os.path.relpath(where, folder)
        found |= {name if inside == "." else f"{inside}/{name}" for name in names}
    return {name for name in found if BELONGS.fullmatch(name)}


def _looked_at(path: Path) -> tuple[int, tuple[int, ...]]:
    """The length of a file, and its signature."""
    status = path.stat()
    return status.st_size, (status.st_ino, status.st_mtime_ns, status.st_size)


def _agent_steps(run: Run) -> int:
    point = run.points().newest()
    return point.counters.agent_steps if point else 0
