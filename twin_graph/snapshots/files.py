"""Writes that are whole or absent after a crash, durable once they return, and checked when read.

Every write, fsync, rename and removal of a run's records goes through this module, and none reaches another folder
that has got the name of one that was moved.
"""

import contextlib
import errno
import fcntl
import functools
import hashlib
import io
import json
import math
import os
import re
import shutil
import socket
import stat
import tempfile
import time
import zlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, TypeVar

import filelock

from twin_graph.base.counters import LARGEST_FILE
from twin_graph.errors import DamagedError, MovedError, UsageError

_Result = TypeVar("_Result")
_TEMPORARY = ".tmp-"
#: `.tmp-NAME-PROCESS.SINCE@MACHINE.BOOT`; those of 0.3.0 say neither since when nor which boot, and those of 0.2.0 no
#: machine.
_TEMPORARY_NAME = re.compile(
    r"\.tmp-(?P<of>.*)-(?P<process>\d+)(\.(?P<since>\d+))?(@(?P<machine>[0-9a-f]{8})(\.(?P<boot>[0-9a-f]{8}))?)?",
    re.DOTALL,
)
#: Letters in the longest name of what can be written, one byte each.
LONGEST_NAME = 255 - len(".tmp--4194304@00000000")
#: After so long nobody on another machine is still writing.
_ABANDONED_SECONDS = 7 * 86_400.0
_FICLONE = 0x40049409  # of linux/fs.h: the files share their blocks until one of them is written to
_WAIT_FOR_READERS_SECONDS = 2.0
_SUM = b'"crc": '
#: Bytes of a line, and of a record in a file of its own; see `LARGEST_FILE`.
_LARGEST_LINE, _LARGEST_RECORD = 2**24, 2**23
_BLOCK = 2**16
_MOST_DAMAGED = 1_000  # lines, after which nothing is to be expected of a file
_TAIL = len(_SUM) + 11  # of a line: its sum, eight digits in quotes, and the end of the record


def temporary_of(path: Path) -> Path:
    """Where this process writes what is to be at a path: beside it, under a name that no other process has, or had."""
    process = os.getpid()
    since = f".{since}" if (since := _since(process)) else ""
    boot = f".{boot}" if (boot := _boot()) else ""
    name = f"{_TEMPORARY}{path.name}-{process}{since}@{_machine()}{boot}"
    if len(os.fsencode(name)) > 255:  # the longest names have no room for more
        name = f"{_TEMPORARY}{path.name}-{process}@{_machine()}"
    return path.with_name(name)


def _since(process: int) -> str:
    """When a process of this machine began, in ticks since its boot; empty if that cannot be seen."""
    try:
        return Path(f"/proc/{process}/stat").read_text("latin-1").rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return ""


@functools.cache
def _boot() -> str:
    """Of this machine: the same until it is started again; empty if that cannot be seen."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text("latin-1").replace("-", "")[:8]
    except OSError:
        return ""
    return boot if re.fullmatch("[0-9a-f]{8}", boot) else ""


@functools.cache
def _machine() -> str:
    return hashlib.sha256(socket.gethostname().encode()).hexdigest()[:8]


def fsync(path: Path) -> None:
    """Makes a file's bytes, or a folder's entries, durable."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


#: Folders that this process writes to alone, by their paths: descriptors, which stay theirs wherever they are moved.
_held: dict[Path, int] = {}


@contextlib.contextmanager
def hold_folder(folder: Path) -> Iterator[None]:
    """While it lasts, writes below this path raise `MovedError` where another folder has it by now, or none.

    So does the end of it, if something else has failed for that reason.
    """
    _held[folder] = descriptor = os.open(folder, os.O_RDONLY)
    try:
        yield
    except Exception as error:
        if not isinstance(error, MovedError) and (moved := displaced(folder)):
            raise moved from error
        raise
    finally:
        del _held[folder]
        os.close(descriptor)


def displaced(path: Path) -> MovedError | None:
    """What to raise if a held folder, in which this path is, is no longer there; None if it is."""
    for folder, descriptor in _held.items():
        if path.is_relative_to(folder) and not _is_at(folder, descriptor):
            there = Path(f"/proc/self/fd/{descriptor}")
            with contextlib.suppress(OSError):  # where there is no /proc
                there = there.readlink()
            return MovedError(folder, there if _is_at(there, descriptor) else None)
    return None


def _is_at(path: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(descriptor))
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:  # of storage that is out of order, a write says more
        return True


def check_in_place(path: Path) -> None:
    """Raises `MovedError` if a held folder, in which this path is, is no longer there."""
    if error := displaced(path):
        raise error


def make_folder(folder: Path) -> None:
    """Makes a folder and its parents, durably, unless it exists."""
    check_in_place(folder)
    if not folder.exists():
        make_folder(folder.parent)
        folder.mkdir(exist_ok=True)
        fsync(folder.parent)


def write_new(path: Path, *parts: bytes | memoryview) -> None:
    """Creates a file of these parts, one after the other; not durable yet. After an error, part of it may remain."""
    check_in_place(path)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
    try:
        for part in parts:
            _write(descriptor, part)
    finally:
        os.close(descriptor)


def commit_folder(destination: Path, fill: Callable[[Path], _Result], *, index: str = "") -> _Result:
    """Creates the folder `destination` with what `fill(folder)` writes into it: all of it, or nothing.

    Everything is written into a temporary folder next to it, made durable, and renamed.

    Args:
      destination: of the folder.
      fill: writes files.
      index: the name of the file that says what the others are. With it, `destination` may exist: its files are
        replaced one by one, this one last.

    Returns:
      What `fill` returned.

    Raises:
      OSError: the disk is full, a write or an fsync failed; `destination` does not exist then, or was there before.
    """
    check_in_place(destination)
    temporary = temporary_of(destination)
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir()
    try:
        result = fill(temporary)
        for file in temporary.iterdir():
            fsync(file)
        fsync(temporary)
        if index and destination.is_dir():
            for file in sorted(temporary.iterdir(), key=lambda file: file.name == index):
                file.replace(destination / file.name)
            fsync(destination)
            temporary.rmdir()
            return result
        temporary.rename(destination)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    try:
        fsync(destination.parent)
    except BaseException:
        with contextlib.suppress(OSError):
            remove_folder(destination)
        raise
    return result


def publish(made: Path, path: Path) -> None:
    """Gives a whole file or folder its name. Raises `UsageError` if something has got that name meanwhile, OSError."""
    try:
        if made.is_dir():
            made.rename(path)
        else:
            _link(made, path)
    except OSError as error:
        if error.errno in (errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR):
            raise UsageError(f"{path} exists already; choose another path") from None
        raise


def _link(made: Path, path: Path) -> None:
    try:
        os.link(made, path)
    except FileExistsError:
        raise
    except OSError:  # a disk without links
        made.rename(path)
    else:
        made.unlink()


def share(source: Path, destination: Path) -> None:
    """Makes a file of the same content, without using disk space twice if possible: a clone, or a hard link.

    For files that nobody changes in place. Durable when the folder is fsynced. Raises OSError.
    """
    with source.open("rb") as file, destination.open("xb") as clone:
        try:
            fcntl.ioctl(clone, _FICLONE, file.fileno())
        except OSError:
            is_clone = False
        else:
            is_clone = True
            os.fsync(clone.fileno())
    if not is_clone:
        destination.unlink()
        try:
            os.link(source, destination)
        except OSError:  # another disk, or one without links
            shutil.copyfile(source, destination)
            fsync(destination)


@contextlib.contextmanager
def lock_folder(folder: Path, *, shared: bool) -> Iterator[None]:
    """A lock between the readers of a folder's files and whoever removes some of them; nothing if there is no folder.

    Raises:
      BlockingIOError: it is not shared, and readers did not let go for seconds.
    """
    try:
        descriptor = os.open(folder, os.O_RDONLY)
    except FileNotFoundError:
        yield
        return
    try:
        if shared:
            fcntl.flock(descriptor, fcntl.LOCK_SH)
        else:
            _lock_alone(descriptor)
        yield
    finally:
        os.close(descriptor)


def _lock_alone(descriptor: int) -> None:
    deadline = time.monotonic() + _WAIT_FOR_READERS_SECONDS
    while True:
        try:
            return fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.01)


def file_lock(path: Path) -> filelock.BaseFileLock:
    """A lock that one process has at a time, and that ends with it; see `acquire`."""
    # Without filelock's fallback, a file that only marks the lock: a process that is killed would leave it.
    return filelock.FileLock(path, fallback_to_soft=False)


def acquire(lock: filelock.BaseFileLock, folder: Path, *, timeout: float = 0.0) -> None:
    """Takes a lock of `file_lock`, which is somewhere in `folder`.

    Raises:
      filelock.Timeout: after these seconds another process still has it.
      UsageError: the storage has no locks.
    """
    try:
        lock.acquire(timeout=timeout)
    except OSError as error:
        if error.errno not in (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP):
            raise
        raise UsageError(
            f"{folder} is on storage without file locks ({error.strerror}), which twin-graph needs: "
            "choose another folder, or mount it with locks"
        ) from None


def write_file(path: Path, content: bytes) -> None:
    """Creates or replaces a small file, durably: readers see the old content or the new."""
    check_in_place(path)
    temporary = temporary_of(path)
    try:
        temporary.unlink(missing_ok=True)  # of a process that died and had the same number, as in containers
        write_new(temporary, content)
        fsync(temporary)
        temporary.replace(path)
    except BaseException as error:
        with contextlib.suppress(OSError):
            temporary.unlink()
        if isinstance(error, OSError):
            error.filename, error.filename2 = str(path), None  # people do not know the temporary one
        raise
    fsync(path.parent)


def lengthen(path: Path, length: int) -> None:
    """Makes a file of lines at least this long, durably: what it lacks becomes a damaged line."""
    there = path.stat().st_size if path.exists() else 0
    if there < length:
        with path.open("ab") as file:
            file.truncate(length - 1)  # which takes no room on most disks, however much is lost
            file.write(b"\n")
        fsync(path)
        fsync(path.parent)


@contextlib.contextmanager
def scratch_folder(beside: Path, folder: Path | None = None) -> Iterator[Path]:
    """The path of a folder to be made, and removed in the end; one that the caller names is kept.

    It is next to another, whose files it may then share, or where nothing can be written there, among the system's
    temporary ones.
    """
    if folder:
        yield folder
        return
    name = f"{beside.resolve().name}.again"
    parent = beside.absolute().parent
    if os.access(parent, os.W_OK):
        remove_leftovers(parent, of=name, spare_the_living=True)
    else:
        parent = Path(tempfile.gettempdir())
    temporary = temporary_of(parent / name)
    try:
        yield temporary
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def leftovers(folder: Path) -> list[Path]:
    """What dead writers left in a folder, or living ones are writing there."""
    return sorted(folder.glob(f"{_TEMPORARY}*"))


def remove_leftovers(folder: Path, *, of: str = "", spare_the_living: bool = False) -> None:
    """Removes what dead writers left behind in a folder.

    Args:
      folder: where this process alone writes.
      of: only of what was to have this name.
      spare_the_living: others write there too: leave what another living process may be writing.
    """
    for path in leftovers(folder):
        named = _TEMPORARY_NAME.fullmatch(path.name)
        if of and (named is None or named["of"] != of):
            continue
        if spare_the_living and _may_be_written(path):
            continue
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
            continue
        if named and named["of"].isdecimal() and (folder / named["of"]).is_dir():  # see `remove_folder`
            _remove_piece_by_piece(folder / named["of"])
        path.unlink(missing_ok=True)


def abandoned(folder: Path) -> list[Path]:
    """What dead writers left in a folder; what living ones may be writing is not among it."""
    return [path for path in leftovers(folder) if _TEMPORARY_NAME.fullmatch(path.name) and not _may_be_written(path)]


def _may_be_written(path: Path) -> bool:
    named = _TEMPORARY_NAME.fullmatch(path.name)
    if named is None:
        return False
    if named["machine"] not in (None, _machine()):  # whose processes cannot be seen from here
        with contextlib.suppress(FileNotFoundError):
            return time.time() - path.stat().st_mtime < _ABANDONED_SECONDS
        return False
    process = int(named["process"])
    if process == os.getpid() or (named["boot"] and named["boot"] != _boot()):
        return False
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except OSError:  # another user's
        pass
    # Another may have its number by now.
    return named["since"] is None or _since(process) in ("", named["since"])


def remove_folder(folder: Path) -> None:
    """Removes one of our folders: readers see all of it or nothing.

    In a container (overlayfs), a folder of the image cannot be renamed. There it goes piece by piece, and a mark beside
    it says so, that `remove_leftovers` may finish it; of a resume point, that is.
    """
    check_in_place(folder)
    doomed = temporary_of(folder)
    try:
        folder.rename(doomed)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
    else:
        shutil.rmtree(doomed)
        return
    write_new(doomed)
    fsync(folder.parent)
    _remove_piece_by_piece(folder)
    doomed.unlink()


def _remove_piece_by_piece(folder: Path) -> None:
    """Removes the file that says what the others are before these, durably."""
    for index in folder.glob("*.json"):
        index.unlink()
    fsync(folder)
    shutil.rmtree(folder)
    fsync(folder.parent)


def checked(record: dict[str, Any], *, indent: int | None = None) -> bytes:
    """A JSON object that ends with the CRC-32 of everything before it; NaN and infinity are written as null."""
    text = json.dumps(finite(record), ensure_ascii=False, allow_nan=False, indent=indent).encode()
    head = text[:-1] + b", " if indent is None else text[:-2] + b",\n" + b" " * indent
    return head + _sum(head) + (b"}" if indent is None else b"\n}\n")


def unchecked(content: bytes) -> dict[str, Any]:
    """The record that `checked` wrote, without its sum. Raises ValueError if it is not what was written."""
    head, mark, tail = content.rpartition(_SUM)
    if mark + tail not in (_sum(head) + b"}", _sum(head) + b"\n}\n"):
        raise ValueError("its checksum is wrong")
    return _record(content)


def _record(content: bytes) -> dict[str, Any]:
    try:
        record = json.loads(content)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    if not isinstance(record, dict):
        raise ValueError("it holds no record")
    record.pop("crc", None)
    return record


def append_line(path: Path, record: dict[str, Any], *, durable: bool = True) -> None:
    """Appends a record as one line.

    Several processes may append to one file. A last line without an end is what a crash left of a line that nobody
    was told of: it is removed first.

    Raises:
      OSError: the disk is full, or a write or an fsync failed; the line is not there, or will be taken for absent.
    """
    check_in_place(path)
    line = checked(record) + b"\n"
    is_new = not path.exists()
    descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o666)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        end = _end_of_whole_lines(descriptor, path)
        if end < os.fstat(descriptor).st_size:
            os.ftruncate(descriptor, end)
        try:
            _write(descriptor, line)
            if durable:
                os.fsync(descriptor)
        except BaseException:
            with contextlib.suppress(OSError):
                os.ftruncate(descriptor, end)
            raise
    finally:
        os.close(descriptor)
    if durable and is_new:
        fsync(path.parent)


class Line(NamedTuple):
    """One line of a file of records.

    Attributes:
      number: from 1.
      start: its first byte's place in the file.
      content: its bytes, without the end of the line.
      is_whole: whether its checksum is right.
    """

    number: int
    start: int
    content: bytes
    is_whole: bool

    @property
    def stop(self) -> int:
        """Where the next line begins."""
        return self.start + len(self.content) + 1

    @property
    def record(self) -> dict[str, Any] | None:
        """What it says; None where the line is not what was written."""
        try:
            return _record(self.content) if self.is_whole else None
        except ValueError:
            return None


def damaged_line(path: Path, number: int) -> str:
    """For people: this line of a file of records is not what was written."""
    return f"{path} is damaged: line {number} is not what was written"


def read_lines(path: Path, *, start: int = 0, newest_bytes: int | None = None) -> Iterator[Line]:
    """The lines of a file; none where there is no file. A last line without an end is one that is being written.

    Args:
      path: of the file.
      start: where the first of them begins; they are numbered from there.
      newest_bytes: only the lines that begin in the last `newest_bytes`; they are numbered from there.
    """
    try:
        with open_plain(path) as file:
            if newest_bytes is not None and file.seek(0, os.SEEK_END) > newest_bytes:
                file.seek(-newest_bytes - 1, os.SEEK_END)
                file.readline()  # the rest of a line that began earlier
                start = file.tell()
            file.seek(start)
            yield from _lines(file, path, number=1, start=start)
    except FileNotFoundError:
        return


class GrowingLines:
    """The lines of a file that others append to; each is read once.

    Lines stay as they are but for the last, which a writer takes back if it cannot make it durable: see `append_line`.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._forget()

    def _forget(self) -> None:
        self._file: tuple[int, int] | None = None
        self._count = self._stop = 0
        self._last = b""

    def new(self) -> tuple[bool, list[Line]]:
        """Whether what was read before is no longer there, and the lines since: of the whole file, if so."""
        try:
            with open_plain(self._path) as file:
                status = os.fstat(file.fileno())
                file.seek(self._stop - len(self._last))
                is_same = self._file in (None, (status.st_dev, status.st_ino)) and (
                    file.read(len(self._last)) == self._last
                )
                if not is_same:
                    self._forget()
                    file.seek(0)
                lines = list(_lines(file, self._path, number=self._count + 1, start=self._stop))
        except FileNotFoundError:
            is_same = self._file is None
            self._forget()
            return not is_same, []
        self._file = status.st_dev, status.st_ino
        if lines:
            self._last = lines[-1].content + b"\n"
            self._stop = lines[-1].stop
            self._count += len(lines)
        return not is_same, lines


def open_plain(path: Path, largest: int | None = LARGEST_FILE) -> io.BufferedReader:
    """Opens a file to be read, without waiting. Raises OSError, and `DamagedError` if it is no file, or too large."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)  # a pipe would wait for a writer
    status = os.fstat(descriptor)
    if stat.S_ISREG(status.st_mode) and (largest is None or status.st_size <= largest):
        return os.fdopen(descriptor, "rb")
    os.close(descriptor)
    what = "is a folder" if stat.S_ISDIR(status.st_mode) else "is no file"
    raise DamagedError(f"{path} is damaged: it {'is too large' if stat.S_ISREG(status.st_mode) else what}")


def _lines(file: BinaryIO, path: Path, *, number: int, start: int) -> Iterator[Line]:
    damaged = 0
    while content := file.readline(_LARGEST_LINE):
        if not content.endswith(b"\n"):
            if len(content) == _LARGEST_LINE:
                raise DamagedError(f"{path} is damaged: line {number} is too long")
            return  # what follows, if its writer is about to end it, is no line of its own
        end = len(content) - 1 - _TAIL
        line = Line(number, start, content[:-1], end > 0 and content[end:-1] == _sum(content[:end]) + b"}")
        damaged += not line.is_whole
        if damaged > _MOST_DAMAGED:
            raise DamagedError(f"{path} is damaged: {damaged:,} of its lines are not what was written")
        yield line
        number, start = number + 1, line.stop


def whole_bytes(path: Path) -> int:
    """How much of a file is whole lines; 0 where there is no file."""
    try:
        with open_plain(path) as file:
            return _end_of_whole_lines(file.fileno(), path)
    except FileNotFoundError:
        return 0


def read_file(path: Path) -> dict[str, Any]:
    """The record in a file of its own that `checked` wrote.

    Raises:
      DamagedError: it is missing, or not what was written.
    """
    try:
        with open_plain(path) as file:
            if os.fstat(file.fileno()).st_size > _LARGEST_RECORD:
                raise DamagedError(f"{path} is damaged: it is too large")
            return unchecked(file.read())
    except OSError as error:
        raise DamagedError(f"{path} cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise DamagedError(f"{path} is damaged: {error}") from None


def _sum(head: bytes) -> bytes:
    return b'%s"%08x"' % (_SUM, zlib.crc32(head))


def _write(descriptor: int, content: bytes | memoryview) -> None:
    left = memoryview(content).cast("B")
    while left.nbytes:
        left = left[os.write(descriptor, left) :]


def _end_of_whole_lines(descriptor: int, path: Path) -> int:
    """Raises `DamagedError` if what follows is longer than any line."""
    size = end = os.fstat(descriptor).st_size
    while end:
        if size - end > _LARGEST_LINE:
            raise DamagedError(f"{path} is damaged: it ends with {size - end:,} bytes that are no line")
        block = os.pread(descriptor, min(end, _BLOCK), max(0, end - _BLOCK))
        if (at := block.rfind(b"\n")) >= 0:
            return end - len(block) + at + 1
        end -= len(block)
    return 0


def finite(value: Any) -> Any:
    """The same for JSON, which has no NaN and no infinity: None in their places."""
    if isinstance(value, Mapping):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def is_locked(path: Path) -> bool:
    """Whether another process has a file's lock."""
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return False
    except OSError:  # who may not even read it cannot tell
        return True
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(descriptor)
    return False


def check_no_pattern(path: Path, advice: str) -> None:
    """Raises `UsageError` where TensorFlow would not find what is at this path."""
    try:
        str(path.absolute()).encode()
    except UnicodeEncodeError:
        raise UsageError(f"TensorFlow cannot read {str(path)!a}, which is not UTF-8; {advice}") from None
    if patterns := sorted(set(str(path.absolute())) & set("*?[]\\")):
        raise UsageError(f"TensorFlow would take {' '.join(patterns)} in {path} for a pattern; {advice}")
