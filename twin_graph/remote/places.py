"""Where remotes are: folders elsewhere, in which objects are read, listed, and written as a whole."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import NamedTuple, Protocol, TypeVar

from twin_graph.errors import UsageError, one_line

_Result = TypeVar("_Result")
#: Seconds to wait before each further attempt to reach a place.
_AGAIN_AFTER = 0.5, 2.0, 8.0


class Listed(NamedTuple):
    """What a listing says of an object: its length, and when it was written, by the storage's own clock."""

    bytes: int
    written: float


class Place(Protocol):
    """A folder elsewhere. Paths inside it have slashes. Everything may raise `OSError`.

    Attributes:
      url: of the folder, without a slash at its end.
      is_only_for_publishing: whether it keeps all that was ever written, so that nothing should be sent while training.
    """

    url: str
    is_only_for_publishing: bool

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


@contextlib.contextmanager
def as_os_errors(url: str) -> Iterator[None]:
    """Makes `OSError` of what the libraries below raise, and `UsageError` where credentials are missing or wrong."""
    try:
        yield
    except (FileNotFoundError, FileExistsError, PermissionError, UsageError):
        raise
    except Exception as error:  # each of these libraries has its own
        if "credential" in type(error).__name__.lower():
            raise UsageError(f"{url}: {one_line(error)}") from None
        raise OSError(f"{url}: {one_line(error) or type(error).__name__}") from error


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
