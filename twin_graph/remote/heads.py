"""What is in a remote: immutable objects, named by their content, and heads that list the objects of a state.

URL/
  objects/3f/3fa9...    a piece of a file, compressed; its name is the SHA-256 of what is stored
  heads/00000007        a state of the run: every file with its pieces; created once, and never changed

A file is cut into pieces of `PIECE` bytes, so that of one that only grows all but the last piece stays as it is. A
machine that sends a state first sends the objects that are missing, and then creates the next head, which only one
machine can. So a reader sees whole states, and two machines that continue one run cannot both believe that they do.
"""

from __future__ import annotations

import hashlib
import re
import zlib
from typing import TYPE_CHECKING, Annotated, Literal, NamedTuple

from pydantic import Field

from twin_graph.base.counters import Whole
from twin_graph.errors import DamagedError, UsageError
from twin_graph.remote.places import again
from twin_graph.snapshots.files import checked, unchecked
from twin_graph.snapshots.forms import EachOnce, Record, problem

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from twin_graph.remote.places import Listed, Place

HEADS, OBJECTS = "heads", "objects"
#: Bytes of a file in one object.
PIECE = 2**22
#: How zlib compresses what shrinks, at its fastest: Pong's frames do, 69 times. Weights do not, and are stored.
_LEVEL, _AS_IT_IS = 1, 0
_SAMPLE, _SHRINKS = 2**16, 0.9
_MOST_STORED = PIECE + 2**12  # of what does not shrink
_MOST_OF_HEAD = 2**26
_NUMBER = re.compile(rf"{HEADS}/([0-9]{{8}})")
_NAME = r"[^/.\x00-\x1f\x7f][^/\x00-\x1f\x7f]{0,200}"
_OF_A_RUN = (
    r"run\.json",
    r"(ledger|evaluations|metrics|games)\.jsonl",
    r"ratings\.json",
    rf"(snapshots|resume)/[0-9a-z-]{{6,32}}/{_NAME}",
    r"resume/replay/[0-9-]{1,64}\.npys",
    rf"(videos|events)/{_NAME}",
)
#: Paths of a run's files that go with it; not its lock, requests, and what workers on its machines wrote.
BELONGS = re.compile("|".join(_OF_A_RUN))

_Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class Piece(NamedTuple):
    """An object: its name, and its length as it is stored."""

    sha256: _Sha256
    bytes: Annotated[int, Field(ge=1, le=_MOST_STORED)]


class Stored(Record):
    """A file of a state.

    Attributes:
      name: its path in the run's folder.
      bytes: its length.
      pieces: in their order.
    """

    name: Annotated[str, Field(pattern=rf"^({BELONGS.pattern})$")]
    bytes: Annotated[int, Field(ge=0, le=2**42)]
    pieces: tuple[Piece, ...]


class Head(Record):
    """A state of a run.

    Attributes:
      number: from 1, without gaps.
      owner: which machine's copy of the run made it; random, and the same until another takes over.
      run, name: id of the run, and what it is called: a name for a folder anywhere.
      time: by the clock of whoever made it, for people.
      agent_steps: of the newest resume point; 0 without one.
      files: all there are.
    """

    format: Literal[1] = 1
    number: Annotated[int, Field(ge=1, lt=10**8)]
    owner: Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")]
    run: Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")]
    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.,=+-]{0,199}$")]
    time: str
    agent_steps: Whole
    files: Annotated[tuple[Stored, ...], EachOnce]

    @property
    def pieces(self) -> dict[str, int]:
        """All objects that it needs, with their lengths."""
        return {piece.sha256: piece.bytes for file in self.files for piece in file.pieces}

    @property
    def bytes(self) -> int:
        """Of all its files."""
        return sum(file.bytes for file in self.files)


def path_of(sha256: str) -> str:
    """Where an object is."""
    return f"{OBJECTS}/{sha256[:2]}/{sha256}"


def path_of_head(number: int) -> str:
    """Where a head is."""
    return f"{HEADS}/{number:08d}"


def packed(part: bytes) -> tuple[Piece, bytes]:
    """A piece of a file as it is stored."""
    sample = part[:_SAMPLE]
    shrinks = len(zlib.compress(sample, _LEVEL)) < _SHRINKS * len(sample)
    stored = zlib.compress(part, _LEVEL if shrinks else _AS_IT_IS)
    return Piece(hashlib.sha256(stored).hexdigest(), len(stored)), stored


def numbers(place: Place) -> dict[int, Listed]:
    """The heads in a place, by their numbers."""
    found = again(lambda: place.objects(HEADS))
    return {int(match[1]): listed for path, listed in found.items() if (match := _NUMBER.fullmatch(path))}


def newest(place: Place) -> Head | None:
    """The newest head; None where there is none."""
    there = numbers(place)
    return read(place, max(there)) if there else None


def read(place: Place, number: int) -> Head:
    """A head. Raises FileNotFoundError, and `DamagedError` if it is not what a head can be."""
    where = f"{place.url}/{path_of_head(number)}"
    content = again(lambda: place.read(path_of_head(number), _MOST_OF_HEAD))
    try:
        record = unchecked(content)
    except ValueError as error:
        raise DamagedError(f"{where} is damaged: {error}") from None
    if wrong := problem(Head, record):
        raise DamagedError(f"{where} is damaged: {wrong}")
    head = Head.model_validate(record)
    if head.number != number:
        raise DamagedError(f"{where} is damaged: it names itself {head.number}")
    for file in head.files:
        if len(file.pieces) != -(-file.bytes // PIECE):
            raise DamagedError(f"{where} is damaged: {file.name} has {len(file.pieces)} pieces")
    return head


class TakenOverError(UsageError):
    """Another machine, or another copy of the run, has continued it."""

    exit_code = 4


def claim(place: Place, head: Head) -> Head:
    """Creates a head, or returns the one of its number that is there instead.

    An error says nothing about whether it was created, so then what is there is read.

    Raises:
      OSError: the place cannot be reached.
    """
    content = checked(head.model_dump(mode="json"))

    def create() -> Head:
        try:
            place.create(path_of_head(head.number), content)
        except OSError:
            try:
                return read(place, head.number)
            except FileNotFoundError:
                pass
            raise
        return head

    return again(create)


def content_of(place: Place, file: Stored) -> Iterable[bytes]:
    """The bytes of a file, piece by piece. Raises `DamagedError` if an object is not what its name says."""
    for i, piece in enumerate(file.pieces):
        length = min(PIECE, file.bytes - i * PIECE)
        yield _part(place, piece, length)


def _part(place: Place, piece: Piece, length: int) -> bytes:
    where, wrong = f"{place.url}/{path_of(piece.sha256)}", "it is not what its name says"

    def fetched() -> bytes:
        nonlocal wrong
        try:
            stored = place.read(path_of(piece.sha256), piece.bytes)
        except FileNotFoundError:
            raise DamagedError(f"{where} is gone") from None
        if len(stored) != piece.bytes or hashlib.sha256(stored).hexdigest() != piece.sha256:
            raise OSError(wrong)  # on its way, perhaps: it is asked for again
        return stored

    try:
        stored = again(fetched)
    except OSError as error:
        if str(error) != wrong:
            raise
        raise DamagedError(f"{where} is damaged: {wrong}") from None
    unpacking = zlib.decompressobj()
    try:
        part = unpacking.decompress(stored, length + 1)
    except zlib.error:
        part = b""
    if len(part) != length or not unpacking.eof or unpacking.unused_data:
        raise DamagedError(f"{where} is damaged: it does not hold {length:,} bytes")
    return part


def unneeded(kept: Sequence[Head], gone: Iterable[Head]) -> set[str]:
    """The objects that only heads of the second kind need."""
    needed = {sha256 for head in kept for sha256 in head.pieces}
    return {sha256 for head in gone for sha256 in head.pieces} - needed
