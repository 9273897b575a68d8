"""People's requests to the trainer of a run: one file each in `control/`, answered in place.

A request without an answer waits for the next trainer. So a swap that is requested while nothing trains takes effect
when the run resumes.
"""

import time
import uuid
from collections.abc import Callable, Container, Iterator
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from twin_graph.base.counters import Whole
from twin_graph.base.text import command
from twin_graph.errors import DamagedError
from twin_graph.snapshots.files import checked, make_folder, write_file
from twin_graph.snapshots.forms import REQUEST_ID, LearnerName, OptionalSnapshotId, Record, RequestId
from twin_graph.snapshots.ledger import ONLY_LEARNER, Into, read_record, utc_now

Kind = Literal["swap", "undo", "point"]
_PATTERN = "request-*.json"
_LAST_NS = 2**63 - 1  # of 64 bits: in the year 2262
_TICK_NS = 1_000_000_000  # more than a tick of any clock that marks files


class Answer(Record):
    """The outcome of a request.

    Attributes:
      done: whether it was carried out.
      message: in words.
      first_update: the first update whose targets used it.
    """

    done: bool
    message: str
    first_update: Whole | None = None


class Request(Record):
    """Something that a person asks of the trainer.

    Attributes:
      id: its file's name without the ending; ids sort by time.
      kind: `swap`, `undo` of the last swap by hand into a twin, or `point` for a resume point.
      snapshot: what to restore, for `swap`.
      into: which twin, for `swap` and `undo`.
      learner: whose, for `swap` and `undo`.
      hold: suspend refreshes by the schedule.
      undoes: the request whose swap an `undo` reverts; empty for whichever is the newest then, as earlier versions ask.
      answer: None until there is one.
    """

    id: Annotated[RequestId, Field(min_length=1)]
    time: str
    kind: Kind
    snapshot: OptionalSnapshotId = ""
    into: Into = "target"
    learner: LearnerName = ONLY_LEARNER
    hold: bool = False
    undoes: RequestId = ""
    answer: Answer | None = None

    def words(self) -> str:
        """For people; see `words_of_swap`."""
        if self.kind == "point":
            return "a resume point"
        if self.kind == "undo":
            return f"undo of the last swap into {words_of_twin(self.into, self.learner)}"
        return words_of_swap(self.snapshot, self.into, self.learner, hold=self.hold)


def swap_command(run: object, *words: object, into: str = "target", learner: str = ONLY_LEARNER) -> str:
    """The `twin-graph swap` that a person can paste, with the options that this twin needs."""
    options = ["--into", into] if into != "target" else []
    options += ["--learner", learner] if learner != ONLY_LEARNER else []
    return command("swap", run, *words, *options)


def words_of_swap(snapshot: str, into: str, learner: str, *, hold: bool) -> str:
    """For people: `swap 000042-3fa9c1d2 into the target twin`."""
    return f"swap {snapshot} into {words_of_twin(into, learner)}{', held' if hold else ''}"


def words_of_twin(into: str, learner: str) -> str:
    """For people: `the target twin`, `a's online twin`, `the opponent`."""
    whose = "the" if learner == ONLY_LEARNER else f"{learner}'s"
    return f"{whose} {into if into == 'opponent' else f'{into} twin'}"


def ask(
    folder: Path,
    kind: Kind,
    snapshot: str = "",
    into: Into = "target",
    *,
    learner: str = ONLY_LEARNER,
    hold: bool = False,
    undoes: str = "",
) -> Request:
    """Writes a request, durably."""
    make_folder(folder)
    earlier = (path.stem.split("-")[1] for path in folder.glob(_PATTERN) if REQUEST_ID.fullmatch(path.stem))
    newest = max((made for digits in earlier if (made := int(digits)) < _LAST_NS), default=0)
    now = max(time.time_ns(), newest + 1)  # later than that, though the clock may have been set back
    request_id = f"request-{now:020d}-{uuid.uuid4().hex[:8]}"
    what = {"kind": kind, "snapshot": snapshot, "into": into, "learner": learner, "hold": hold, "undoes": undoes}
    request = Request(id=request_id, time=utc_now(), **what)
    _write(folder, request)
    return request


def answer(folder: Path, request: Request, reply: Answer) -> None:
    """Answers a request, durably."""
    _write(folder, request.model_copy(update={"answer": reply}))


def read(folder: Path, request_id: str) -> Request:
    """The present state of a request. Raises `DamagedError`."""
    path = folder / f"{request_id}.json"
    request = read_record(Request, path)
    if request.id != request_id:
        raise DamagedError(f"{path} is damaged: it names itself {request.id}")
    return request


def pending(folder: Path) -> list[Request]:
    """Requests without an answer, oldest first; without damaged ones, which `verify` and a training run name."""
    return [request for request in _requests(folder, {}) if request.answer is None]


def _requests(folder: Path, damaged: dict[str, DamagedError], without: Container[str] = ()) -> Iterator[Request]:
    """Those that can be read; why others cannot is added to `damaged`, by the names of their files."""
    for path in sorted(folder.glob(_PATTERN)):
        if path.stem not in without:
            try:
                yield read(folder, path.stem)
            except DamagedError as error:
                damaged[path.stem] = error


def wait(folder: Path, request: Request, is_alive: Callable[[], bool], seconds: float) -> Answer | None:
    """Waits for the answer to a request; None if there is none in time, or nobody to give one."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        alive = is_alive()  # checked before reading the answer, which may be the last thing a trainer writes
        if reply := read(folder, request.id).answer:
            return reply
        if not alive:
            return None
        time.sleep(0.05)
    return None


def _write(folder: Path, request: Request) -> None:
    write_file(folder / f"{request.id}.json", checked(request.model_dump(mode="json"), indent=1))


class Inbox:
    """Tells a trainer at every vector step whether there are requests; costs little while there are none.

    Args:
      folder: of the requests.
      notices: where it says, for people, which of them cannot be read. They are left out, and end no training.
    """

    def __init__(self, folder: Path, notices: list[str]) -> None:
        self._folder = folder
        self._notices = notices
        self._seen: int | None = None
        self._done: set[str] = set()

    def new(self) -> list[Request]:
        """Requests without an answer, if the folder has changed since the last call."""
        changed = self._folder.stat().st_mtime_ns
        if changed == self._seen:
            return []
        # Where the kernel's clock ticks coarsely, a request that comes now may leave the folder's time as it is.
        self._seen = changed if time.time_ns() - changed > _TICK_NS else None
        damaged: dict[str, DamagedError] = {}
        found = list(_requests(self._folder, damaged, without=self._done))
        self._done.update(damaged, (request.id for request in found if request.answer))
        self._notices += [f"left out: {error}" for error in damaged.values()]
        return [request for request in found if request.answer is None]

    def look_again(self) -> None:
        """Makes the next call of `new()` look, whether or not the folder has changed."""
        self._seen = None
