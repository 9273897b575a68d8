"""Whether a Saver's files are what TensorFlow expects, found out before it opens them. No TensorFlow import.

TensorFlow ends the process where fields of an `.index` contradict each other, even if their checksums are right. Such a
file is a sorted table of LevelDB's format (data blocks, an index block, a footer); its rows are protocol buffers of
tensor_bundle.proto: the header under the empty key, then an entry for each variable by name. Numbers in the `.data-`
files have checksums, which TensorFlow compares.
"""

from __future__ import annotations

import itertools
import math
import struct
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from twin_graph.errors import DamagedError

#: What `Saver` has written since TensorFlow 0.12 ends with it, and what it wrote before, too.
_MAGIC = bytes.fromhex("57fb808b247547db")
_FOOTER = 48
_TRAILER = 5  # of a block: how it is compressed, and its checksum
_LARGEST_INDEX = 8 << 20  # bytes
_MOST_ROWS = 100_000
_LONGEST_KEY = 1_024
_MOST_AXES = 32
_MOST_SHARDS = 99_999
_VERSION = 1  # of TensorFlow's bundles: what it can read has `min_consumer` of at most that
_STRING = 7
#: Bytes of an element by the number of its type in types.proto; of `_STRING` it depends.
_ITEM_SIZES = {
    **{1: 4, 2: 8, 3: 4, 4: 1, 5: 2, 6: 1, 8: 8, 9: 8, 10: 1, 11: 1, 12: 1, 13: 4, 14: 2, 15: 2, 16: 2, 17: 2, 18: 16},
    **{19: 2, 22: 4, 23: 8, 24: 1, 25: 1},
}
_VARINT, _BYTES, _FIXED32 = 0, 2, 5
_INT64 = 1 << 63


def _crc_table() -> list[int]:
    table = []
    for crc in range(256):
        for _ in range(8):
            crc = crc >> 1 ^ 0x82F63B78 * (crc & 1)
        table.append(crc)
    return table


_CRC_TABLE = _crc_table()


def masked_crc32c(content: bytes) -> int:
    """The checksum of LevelDB's blocks."""
    crc, table = 0xFFFFFFFF, _CRC_TABLE
    for byte in content:
        crc = table[(crc ^ byte) & 255] ^ crc >> 8
    crc ^= 0xFFFFFFFF
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def check(prefix: Path) -> None:
    """Checks the files of a checkpoint, all but the numbers in it.

    Raises:
      DamagedError: one of them is missing, or not what a Saver writes; the message names it.
    """
    path = Path(f"{prefix}.index")
    try:
        if not path.exists() and prefix.is_file():
            raise DamagedError(f"{prefix} cannot be read: it is no checkpoint of TensorFlow")
        rows = _rows(_content(path))
        _check_bundle(rows, prefix)
    except OSError as error:
        raise DamagedError(f"{error.filename or path} cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise DamagedError(f"{path} is damaged: {error}") from None


def is_of_first_format(prefix: Path) -> bool:
    """Whether it is a single file, as Savers wrote before TensorFlow 0.12: its tables are not checked here."""
    if Path(f"{prefix}.index").exists() or not prefix.is_file():
        return False
    with prefix.open("rb") as file:
        file.seek(max(0, prefix.stat().st_size - len(_MAGIC)))
        return file.read() == _MAGIC


def _content(path: Path) -> bytes:
    size = path.stat().st_size
    if not path.is_file():
        raise ValueError("it is no file")
    if size > _LARGEST_INDEX:
        raise ValueError(f"it has {size:,} bytes, more than {_LARGEST_INDEX:,}")
    return path.read_bytes()


# The table.


def _rows(table: bytes) -> list[tuple[bytes, bytes]]:
    """Keys and values of a table, in order. Raises ValueError."""
    if len(table) < _FOOTER or not table.endswith(_MAGIC):
        raise ValueError("it is cut short, or no checkpoint's")
    footer = table[-_FOOTER : -len(_MAGIC)]
    meta, at = _handle(footer, 0)
    index, _ = _handle(footer, at)
    _pairs(_block(table, meta))  # which is empty
    rows, last, stop = list[tuple[bytes, bytes]](), b"", 0
    for separator, value in _pairs(_block(table, index)):
        handle, end = _handle(value, 0)
        pairs = _pairs(_block(table, handle))
        if end != len(value) or handle.at < stop or not pairs:
            raise ValueError("its blocks are not in order")
        if (rows and pairs[0][0] <= last) or pairs[-1][0] > separator:
            raise ValueError("its keys are not in order")
        stop, last = handle.at + handle.size, separator
        rows += pairs
        if len(rows) > _MOST_ROWS:
            raise ValueError(f"it names more than {_MOST_ROWS:,} variables")
    return rows


class _Handle(NamedTuple):
    at: int
    size: int


def _handle(content: bytes, at: int) -> tuple[_Handle, int]:
    start, at = _varint(content, at)
    size, at = _varint(content, at)
    return _Handle(start, size), at


def _block(table: bytes, handle: _Handle) -> bytes:
    end = handle.at + handle.size
    if end + _TRAILER > len(table) - _FOOTER:
        raise ValueError("a block is outside of it")
    if table[end]:
        raise ValueError("a block of it is compressed, as none of a Saver's is")
    if masked_crc32c(table[handle.at : end + 1]) != int.from_bytes(table[end + 1 : end + _TRAILER], "little"):
        raise ValueError("a checksum is wrong")
    return table[handle.at : end]


def _pairs(block: bytes) -> list[tuple[bytes, bytes]]:
    """Keys and values of a block; each key is stored as what differs from the one before it."""
    count = int.from_bytes(block[-4:], "little")
    stop = len(block) - 4 * (count + 1)
    if len(block) < 8 or not count or stop < 0:
        raise ValueError("a block has no end")
    at, key, pairs, whole = 0, b"", list[tuple[bytes, bytes]](), {0}
    while at < stop:
        start = at
        shared, at = _varint(block, at)
        more, at = _varint(block, at)
        size, at = _varint(block, at)
        if shared > len(key) or shared + more > _LONGEST_KEY or at + more + size > stop:
            raise ValueError("a row is outside of its block")
        before, key = key, key[:shared] + block[at : at + more]
        if pairs and key <= before:
            raise ValueError("its keys are not in order")
        if not shared:
            whole.add(start)
        pairs.append((key, block[at + more : at + more + size]))
        if len(pairs) > _MOST_ROWS:
            raise ValueError(f"it names more than {_MOST_ROWS:,} variables")
        at += more + size
    restarts = struct.unpack(f"<{count}I", block[stop:-4])
    ascending = all(one < next_ for one, next_ in itertools.pairwise(restarts))
    if restarts[0] or not ascending or not whole.issuperset(restarts):
        raise ValueError("a block's list of rows is wrong")
    return pairs


# Protocol buffers.


def _varint(content: bytes, at: int) -> tuple[int, int]:
    """An unsigned number of at most 64 bits, and where what follows it begins."""
    value = 0
    for shift in range(0, 70, 7):
        if at >= len(content):
            break
        byte = content[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            if value < 1 << 64:
                return value, at
            break
    raise ValueError("a number is cut short or too large")


def _fields(message: bytes, kinds: Mapping[int, int]) -> Iterator[tuple[int, int, bytes]]:
    """Number, value and bytes of each field: either is empty. `kinds` are the fields' wire types by their numbers."""
    at = 0
    while at < len(message):
        tag, at = _varint(message, at)
        number, kind = tag >> 3, tag & 7
        if kinds.get(number) != kind:
            raise ValueError(f"it has a field that TensorFlow does not write ({number})")
        if kind == _VARINT:
            value, at = _varint(message, at)
            yield number, value - (value >> 63 << 64), b""
            continue
        size, at = (4, at) if kind == _FIXED32 else _varint(message, at)
        if at + size > len(message):
            raise ValueError("a field is longer than what it is in")
        yield number, 0, message[at : at + size]
        at += size


def _numbers(message: bytes, count: int) -> list[int]:
    """A message whose fields 1 to `count` are numbers, 0 unless given."""
    values = [0] * (count + 1)
    for number, value, _ in _fields(message, dict.fromkeys(range(1, count + 1), _VARINT)):
        values[number] = value
    return values[1:]


class _Extent(NamedTuple):
    """A part of an axis; of all of it, `length` is None."""

    start: int
    length: int | None


class _Entry(NamedTuple):
    """Where a variable is. A partitioned one has `slices`, each of which has an entry of its own."""

    dtype: int
    shape: tuple[int, ...]
    shard: int
    offset: int
    size: int
    slices: list[list[_Extent]]

    @property
    def elements(self) -> int:
        return math.prod(self.shape)


_ENTRY = {1: _VARINT, 2: _BYTES, 3: _VARINT, 4: _VARINT, 5: _VARINT, 6: _FIXED32, 7: _BYTES}


def _entry(message: bytes) -> _Entry:
    numbers, shape, slices = [0] * 7, tuple[int, ...](), list[list[_Extent]]()
    seen = 0
    for number, value, content in _fields(message, _ENTRY):
        if number == 7:
            slices.append(_slice(content))
            continue
        if number <= seen:
            raise ValueError("a variable's fields are not in order")
        seen = number
        if number == 2:
            shape = _shape(content)
        else:
            numbers[number] = value
    _, dtype, _, shard, offset, size, _ = numbers
    return _Entry(dtype, shape, shard, offset, size, slices)


def _shape(message: bytes) -> tuple[int, ...]:
    shape = []
    for number, value, axis in _fields(message, {2: _BYTES, 3: _VARINT}):
        if number == 3:
            if value:
                raise ValueError("a variable has an unknown number of axes")
            continue
        size = 0
        for named, value, name in _fields(axis, {1: _VARINT, 2: _BYTES}):
            size = value if named == 1 else size
            name.decode()
        shape.append(size)
    if len(shape) > _MOST_AXES or min(shape, default=0) < 0 or math.prod(filter(None, shape)) >= _INT64:
        raise ValueError("a variable has an impossible shape")
    return tuple(shape)


def _slice(message: bytes) -> list[_Extent]:
    extents = []
    for _, _, extent in _fields(message, {1: _BYTES}):
        start, length = 0, None
        for number, value, _ in _fields(extent, {1: _VARINT, 2: _VARINT}):
            start, length = (value, length) if number == 1 else (start, value)
        if start < 0 or (length is None and start) or (length is not None and length < 1):
            raise ValueError("a part of a variable has an impossible shape")
        extents.append(_Extent(start, length))
    return extents


# What they say.


def _check_bundle(rows: Sequence[tuple[bytes, bytes]], prefix: Path) -> None:
    if not rows or rows[0][0]:
        raise ValueError("it has no header")
    shards = [_Shard(path) for path in _shards(rows[0][1], prefix)]
    entries = {key: _named_entry(key, value) for key, value in rows[1:]}
    placed = list[tuple[int, int, int]]()
    for key, entry in entries.items():
        what = _words(key)
        if entry.slices:
            _check_partitioned(key, entry, entries)
        elif entry.dtype not in (*_ITEM_SIZES, _STRING):
            raise ValueError(f"{what} is of a type that is no number and no text ({entry.dtype})")
        elif not 0 <= entry.shard < len(shards):
            raise ValueError(f"{what} is in a file that does not exist")
        else:
            shards[entry.shard].check(entry, what)
            placed.append((entry.shard, entry.offset, entry.size))
    placed.sort()
    for (shard, offset, size), following in itertools.pairwise(placed):
        if following < (shard, offset + size):
            raise ValueError("two variables are in the same place")


def _named_entry(key: bytes, value: bytes) -> _Entry:
    try:
        if not key.startswith(b"\0"):  # which a part of a partitioned variable's does
            key.decode()
        return _entry(value)
    except ValueError as error:
        raise ValueError(f"{_words(key)}: {error}") from None


def _words(key: bytes) -> str:
    return ascii(key.decode(errors="replace"))[1:-1]


def _shards(header: bytes, prefix: Path) -> list[Path]:
    """The paths of the files with numbers, which exist."""
    count = endianness = 0
    version = b""
    for number, value, content in _fields(header, {1: _VARINT, 2: _VARINT, 3: _BYTES}):
        if number == 1:
            count = value
        elif number == 2:
            endianness = value
        else:
            version = content
    producer, min_consumer = _numbers(version, 2)
    if not 1 <= count <= _MOST_SHARDS:
        raise ValueError("its number of files is impossible")
    if endianness:
        raise ValueError("it is of a machine with another order of bytes")
    if producer < 0 or not 0 <= min_consumer <= _VERSION:
        raise ValueError("it is of another version of TensorFlow's format")
    paths = [Path(f"{prefix}.data-{i:05d}-of-{count:05d}") for i in range(count)]
    for path in paths:
        if not path.is_file():
            raise DamagedError(f"{path} is missing")
    return paths


class _Shard:
    """A file with numbers."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._size = path.stat().st_size

    def check(self, entry: _Entry, what: str) -> None:
        """Raises unless a variable is in it, with the number of bytes that its shape has."""
        if entry.offset < 0 or entry.size < 0:
            raise ValueError(f"{what} is before its file's beginning")
        if entry.offset + entry.size > self._size:
            raise DamagedError(f"{self._path} is damaged: it ends before {what} does")
        if entry.dtype == _STRING:
            self._check_texts(entry, what)
        elif entry.elements * _ITEM_SIZES[entry.dtype] != entry.size:
            raise ValueError(f"{what} has {entry.size:,} bytes, which its shape has not")

    def _check_texts(self, entry: _Entry, what: str) -> None:
        """The lengths of all texts, their checksum, and the texts."""
        with self._path.open("rb") as file:
            file.seek(entry.offset)
            content = file.read(entry.size)
        at = total = 0
        if entry.elements <= len(content):
            for _ in range(entry.elements):
                length, at = _varint(content, at)
                total += length
            if at + 4 + total == len(content):
                return
        raise ValueError(f"{what} has texts of other lengths than it says")


def _check_partitioned(name: bytes, entry: _Entry, entries: Mapping[bytes, _Entry]) -> None:
    what, covered = _words(name), 0
    if entry.size:
        raise ValueError(f"{what} is partitioned, and is not")
    for extents in entry.slices:
        if len(extents) != len(entry.shape) or all(extent.length is None for extent in extents):
            raise ValueError(f"a part of {what} has other axes")
        shape = tuple(
            axis if extent.length is None else extent.length for extent, axis in zip(extents, entry.shape, strict=True)
        )
        if any(extent.start + size > axis for extent, size, axis in zip(extents, shape, entry.shape, strict=True)):
            raise ValueError(f"a part of {what} is outside of it")
        part = entries.get(_key_of_part(name, extents))
        if part is None or part.slices or (part.dtype, part.shape) != (entry.dtype, shape):
            raise ValueError(f"a part of {what} is missing, or is not as it says")
        covered += part.elements
    if covered != entry.elements:
        raise ValueError(f"parts of {what} are missing")


def _key_of_part(name: bytes, extents: Sequence[_Extent]) -> bytes:
    """As `EncodeTensorNameSlice` of TensorFlow."""
    key = b"\0" + name.replace(b"\xff", b"\xff\0").replace(b"\0", b"\0\xff") + b"\0\1" + bytes([1, len(extents)])
    for start, length in extents:
        key += _ordered(start) + _ordered(-1 if length is None else length)
    return key


def _ordered(number: int) -> bytes:
    """As `OrderedCode::WriteSignedNumIncreasing`, for numbers from -1."""
    if number < 64:
        return bytes([(number & 255) ^ 128])
    count = number.bit_length() // 7 + 1
    header = (0xFF00 >> count) & 0xFF if count < 9 else 0xFF
    content = bytearray(number.to_bytes(count, "big"))
    content[0] ^= header
    if count > 8:
        content[1] ^= 0x80 if count == 9 else 0xC0
    return bytes(content)
