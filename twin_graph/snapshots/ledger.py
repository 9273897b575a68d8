"""The ledger: an append-only record of trainer starts, commits, swaps, resume points, forks, pins and removals.

After a crash the past is not rewritten. A start that resumes names the part of the ledger that is newer than its resume
point: the lines there are *abandoned*, kept for people and never used by a policy.
"""

import contextlib
import datetime
import itertools
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, Generic, Literal, Self, TypeVar, get_args, overload

import pydantic
from pydantic import Field, TypeAdapter

from twin_graph.base.counters import Counters as Counters
from twin_graph.base.counters import Whole
from twin_graph.errors import DamagedError
from twin_graph.snapshots.files import GrowingLines, Line, append_line, damaged_line, read_file
from twin_graph.snapshots.forms import LearnerName, Lengths, Record, RequestId, SnapshotId, WorkerName, first_problem


class Health(Record):
    """Q values of a snapshot on the run's held-out observations, for `rollback`.

    Attributes:
      q_abs_mean, q_abs_max: of |Q| over these and their legal actions; null where one is not finite.
      q_limit: what no true Q value can exceed: the largest |reward| met so far / (1 - discount); null before a reward
        was met, and where the discount is 1.
    """

    q_abs_mean: float | None
    q_abs_max: float | None
    q_limit: float | None


#: What snapshots are restored into.
Into = Literal["target", "opponent", "online"]
#: Name of the learner where there is one.
ONLY_LEARNER = "online"


class _Event(Record):
    attempt: Annotated[Whole, Field(ge=1)]
    time: str


class Start(_Event):
    """A process begins to train.

    Attributes:
      pid, host: which.
      process_started: in runs that earlier versions began, when.
      resumed_from: number of the resume point; None at the run's beginning.
      counters: those of the resume point.
      known_bytes: length of each file of records when that point was made, by the file's name; 0 at the beginning.
      found_bytes: how much of it there was at this start; what lies between is abandoned.
      modules: SHA-256 of the file of each module that the settings name, by the module's name.
      declared: what the environment observed and did; see `twin_graph.envs.EnvSpec`.
      processor: on which, as `twin_graph.base.machine.Cpu`; empty in runs of earlier versions.
    """

    event: Literal["start"] = "start"
    pid: int
    host: str
    process_started: float | None = None
    resumed_from: Whole | None = None
    counters: Counters | None = None
    known_bytes: Lengths = Field({})
    found_bytes: Lengths = Field({})
    modules: dict[str, str] = Field({})
    declared: tuple[str, ...] = ()
    processor: dict[str, Any] = Field({})


#: Why a training ended: it made all its steps; its score was reached; a callback ended it; a person interrupted it; its
#: caller did not go on, or went on too fast to let it stop; an error.
Cause = Literal["complete", "score", "callback", "interrupted", "abandoned", "error"]


class End(_Event):
    """The process that trained ended, and could record it.

    Attributes:
      reason: in words.
      cause: in runs of version 0.3.0 and before, read off the words.
    """

    event: Literal["end"] = "end"
    state: Literal["finished", "stopped", "failed"]
    reason: str
    cause: Cause

    @pydantic.model_validator(mode="before")
    @classmethod
    def _of_older_versions(cls, line: Any) -> Any:
        if not isinstance(line, dict) or "cause" in line:
            return line
        state, reason = line.get("state"), str(line.get("reason"))
        if state == "finished":
            cause = "complete" if not reason else "score" if reason.startswith("reached ") else "callback"
        else:
            cause = "error" if state == "failed" else "interrupted" if reason == "interrupted" else "abandoned"
        return {**line, "cause": cause}

    @property
    def is_deliberate(self) -> bool:
        """Whether it ended as its settings or a person wanted, so that a resume point was made there."""
        return self.cause not in ("abandoned", "error")


class SnapshotRecord(_Event):
    """What a snapshot's manifest and its line in the ledger have in common.

    Attributes:
      number: its place in the order of the run's commits, of all learners; None for lineage `import`.
      parent: the lineage's snapshot before it; None for the first.
      learner: whose weights these are; `learner_updates` are its own, `counters` the run's.
      weights_sha256: see `twin_graph.twin.twin.weights_sha256`.
      health: None before there are held-out observations.
      origin: of lineage `import`, the path from which it was imported, the snapshots of which it is the mean, or URL
        and id of one that arrived from another run's remote.
    """

    number: Whole | None
    lineage: LearnerName
    parent: SnapshotId | None
    learner: LearnerName = ONLY_LEARNER
    learner_updates: Whole | None = None
    counters: Counters
    weights_sha256: str
    health: Health | None = None
    origin: str | None = None


class Commit(SnapshotRecord):
    """A snapshot was committed: everything that lists of snapshots and policies need from its manifest.

    Attributes:
      snapshot: its id.
      bytes: of its files.
    """

    event: Literal["commit"] = "commit"
    snapshot: SnapshotId
    bytes: Whole

    @pydantic.model_validator(mode="after")
    def _is_in_order(self) -> Self:
        number = None if is_import(self.snapshot) else int(self.snapshot.partition("-")[0])
        if number != self.number:
            raise ValueError(f"{self.snapshot} has number {self.number}")
        return self

    @property
    def id(self) -> str:
        return self.snapshot

    @property
    def updates(self) -> int:
        return self.counters.updates

    @property
    def arrived_from(self) -> str:
        """The remote from which it arrived while the run trained, after the agent steps of its counters; else empty."""
        has_arrived = self.lineage == IMPORT and self.counters.agent_steps > 0
        return (self.origin or "").rpartition(":")[0] if has_arrived else ""


class Restore(_Event):
    """Snapshots were restored into a twin; those of a target supply bootstrap values from `first_update` on.

    Attributes:
      into: `target`, `opponent` or `online`.
      learner: whose.
      worker: which worker's target; empty for that of the run, which workers follow as soon as they can.
      snapshots: one, or the members of an ensemble; none for an opponent that needs none.
      combine: how several become one: `mean` or `min` of their Q values, or `weights`; empty in runs of earlier
        versions.
      policy: the one that chose; `BY_HAND` or `UNDO` if a person did.
      candidates: what it could choose from.
      reason: in words.
      draw: the random number that decided, if one did.
      first_update: the first update that used them, from 1.
      counters: when it happened.
      previous: what the twin held before.
      request: the person's request that this answers.
      hold: refreshes by the schedule are suspended until it is undone.
      at_point: of one by hand: a resume point was made just before, at the same agent step.
    """

    event: Literal["swap"] = "swap"
    into: Into
    learner: LearnerName = ONLY_LEARNER
    worker: WorkerName = ""
    snapshots: tuple[SnapshotId, ...]
    combine: Literal["", "mean", "min", "weights"] = ""
    policy: str
    candidates: tuple[SnapshotId, ...]
    reason: str
    draw: float | None = None
    first_update: Annotated[Whole, Field(ge=1)]
    counters: Counters
    previous: tuple[SnapshotId, ...] = ()
    request: RequestId | None = None
    hold: bool = False
    at_point: bool = False


class Point(_Event):
    """A resume point is about to be committed; if this record holds, it was committed.

    Attributes:
      number: of the point.
      counters: at which every episode ended.
      weights_sha256: see `twin_graph.snapshots.points.PointState`.
      request: which request of a person asked for it; None for those that the schedule, or an end, made.
    """

    event: Literal["point"] = "point"
    number: Whole
    counters: Counters
    weights_sha256: str
    request: RequestId | None = None


class Fork(_Event):
    """What comes before is the past of another run, up to one of its resume points; what follows is this run's own.
    Never abandoned.

    Attributes:
      run: the other's name.
      point, counters, weights_sha256: the resume point.
      changed: what was done to its variables; empty where nothing was.
    """

    event: Literal["fork"] = "fork"
    run: str
    point: Whole
    counters: Counters
    weights_sha256: str
    changed: str = ""


class Pin(_Event):
    """A person keeps a snapshot's weights, or releases them; never abandoned."""

    event: Literal["pin", "unpin"]
    snapshot: SnapshotId


class Prune(_Event):
    """The weight files of these snapshots are removed from here on; never abandoned."""

    event: Literal["prune"] = "prune"
    snapshots: tuple[SnapshotId, ...]


Event = Start | End | Commit | Restore | Point | Fork | Pin | Prune
_EVENT: TypeAdapter[Event] = TypeAdapter(Annotated[Event, Field(discriminator="event")])

#: In place of a policy, where a person chose.
BY_HAND, UNDO = "by hand", "undo"
#: Occurs in the line of a swap that a person requested, and in that of no other swap.
BY_REQUEST = '"request": "'
#: Lineage of what came from outside.
IMPORT = "import"
#: Occurs in the line of a swap of one of those, or one that could have been.
OF_AN_IMPORT = f'"{IMPORT}-'

#: How a line begins as `Ledger.append` writes it: enough to pass over those that nobody asks for.
_BEGINNING = re.compile(rb'\{"attempt": (\d+), "time": "[^"\\]*", "event": "(\w+)", ')
#: By the names that events have there.
_KINDS: dict[bytes, type[Event]] = {
    name.encode(): kind for kind in get_args(Event) for name in get_args(kind.model_fields["event"].annotation)
}
_E = TypeVar("_E", bound=_Event)
_Record = TypeVar("_Record", bound=Record)


class _Entry:
    """A line of the ledger; it becomes an event when somebody asks for its kind."""

    __slots__ = ("attempt", "event", "kind", "line")

    def __init__(self, line: Line) -> None:
        self.line = line
        self.event: Event | None = None
        self.kind: type[Event] | None = None  # where it is damaged
        self.attempt = 0
        if line.is_whole:
            if (found := _BEGINNING.match(line.content)) and (kind := _KINDS.get(found[2])):
                self.attempt, self.kind = int(found[1]), kind
            else:
                with contextlib.suppress(pydantic.ValidationError):
                    self.event = _EVENT.validate_python(line.record)
                    self.attempt, self.kind = self.event.attempt, type(self.event)

    def read(self) -> Event:
        """Raises ValidationError if it is no event. Swaps, which take most room and are asked for least, stay lines."""
        if self.event:
            return self.event
        if self.kind is None:
            return _EVENT.validate_python(self.line.record)
        event = self.kind.model_validate_json(self.line.content.rpartition(b', "crc": ')[0] + b"}")
        if self.kind is not Restore:
            self.event, self.line = event, self.line._replace(content=b"")
        return event

    def is_late(self, attempt: int) -> bool:
        """Whether a worker wrote it that had not seen yet that the run was resumed, in this attempt."""
        return self.kind is Restore and self.attempt < attempt

    @property
    def outlives_resuming(self) -> bool:
        """Whether it holds even if the run resumes from before it: what a person did to the store, and forks."""
        if self.kind is Commit:
            with contextlib.suppress(pydantic.ValidationError):
                event = self.read()
                return isinstance(event, Commit) and event.lineage == IMPORT
        return self.kind in (Pin, Prune, Fork)


class Ledger:
    """The ledger in one file. Reads each line once, when it is asked, and appends to it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = GrowingLines(path)
        self._entries: list[_Entry] = []
        self._holds: list[bool] = []  # of the entries, as far as that is known
        self._folds = self._attempt = 0

    def attempt_of(self, update: int) -> int:
        """The attempt that made an update, counted from 0; 0 before any attempt began."""
        starts = self.newest_first(Start)
        return next((s.attempt for s in starts if (s.counters.updates if s.counters else 0) <= update), 0)

    @property
    def attempt(self) -> int:
        """The run's newest attempt; 0 before the first."""
        self._folded()
        return self._attempt

    def append(self, event: Event) -> None:
        """Durable when this returns. Raises OSError."""
        beginning = {
            "attempt": event.attempt,
            "time": event.time,
            "event": event.event,
        }  # by which `_BEGINNING` sees it
        append_line(self.path, beginning | event.model_dump(mode="json"))

    @overload
    def events(self, *, upto: int | None = None) -> list[Event]: ...
    @overload
    def events(self, *kinds: type[_E], text: str = "") -> list[_E]: ...
    def events(self, *kinds: Any, upto: int | None = None, text: str = "") -> list[Any]:
        """What holds now: the events in order, without those abandoned.

        Args:
          kinds: only these, which takes less time than all.
          upto: only the first `upto` bytes.
          text: of swaps, only lines that contain this.

        Raises:
          DamagedError: a line that holds is not what was written.
        """
        return [event for event, holds in self.with_abandoned(*kinds, upto=upto, text=text) if holds]

    @overload
    def with_abandoned(self, *, upto: int | None = None) -> list[tuple[Event, bool]]: ...
    @overload
    def with_abandoned(self, *kinds: type[_E], upto: int | None = None, text: str = "") -> list[tuple[_E, bool]]: ...
    def with_abandoned(self, *kinds: Any, upto: int | None = None, text: str = "") -> list[tuple[Any, bool]]:
        """The events in order, and whether each holds. Damage in what is abandoned is passed over."""
        return list(self._read(self._folded(upto), kinds, text.encode()))

    def newest_first(self, *kinds: type[_E]) -> Iterator[_E]:
        """What holds now, newest first; it costs only as much as the caller looks at."""
        self._folded()
        backwards = zip(reversed(self._entries), reversed(self._holds), strict=True)
        return (event for event, holds in self._read(backwards, kinds) if holds)

    def since(self, fold: int | None, seen: int, kinds: Sequence[type[_E]]) -> tuple[int, int, list[tuple[_E, bool]]]:
        """For `Follower`: the present fold, which changes when what held before no longer does, the number of lines,
        and what `with_abandoned` gives beyond the first `seen` of them; if the fold has changed, all of it."""
        self._folded()
        first = seen if fold == self._folds else 0
        new = zip(self._entries[first:], self._holds[first:], strict=True)
        return self._folds, len(self._entries), list(self._read(new, kinds))

    def check_lines(self, *, upto: int) -> None:
        """Reads every event. Raises `DamagedError` if one that holds is not what was written."""
        for _ in self._read(self._folded(upto), ()):
            pass

    def beyond(self, known_bytes: int) -> list[Event]:
        """What holds now and would be abandoned by a start from a point that had this many bytes."""
        beyond = (
            (entry, holds and not entry.outlives_resuming)
            for entry, holds in self._folded()
            if entry.line.start >= known_bytes
        )
        return [event for event, would_be in self._read(beyond, ()) if would_be]

    def _folded(self, upto: int | None = None) -> Iterable[tuple[_Entry, bool]]:
        """The lines, and whether each holds, after a look at what is new."""
        is_anew, lines = self._file.new()
        if is_anew:
            self._entries, self._holds, self._attempt = [], [], 0
            self._folds += 1
        new = [_Entry(line) for line in lines]
        self._entries += new
        self._attempt = max((self._attempt, *(entry.attempt for entry in new)))
        if upto is not None:
            entries = [entry for entry in self._entries if entry.line.start < upto]
            return zip(entries, self._fold(entries), strict=True)
        new = self._entries[len(self._holds) :]
        if any(entry.kind is Start for entry in new):  # one that resumes changes what holds of the lines before
            self._holds = self._fold(self._entries)
            self._folds += 1
        else:
            for entry in new:
                if entry.kind is None:
                    self._event(entry)
            self._holds += [not entry.is_late(self._attempt) for entry in new]
        return zip(self._entries, self._holds, strict=True)

    def _fold(self, entries: Sequence[_Entry]) -> list[bool]:
        found: list[bool] = []
        attempts = list(itertools.accumulate((entry.attempt for entry in entries), max))
        abandoned_from: int | None = None  # going backwards: lines from there on are abandoned
        for entry, attempt in zip(reversed(entries), reversed(attempts), strict=True):
            if abandoned_from is not None and entry.line.start < abandoned_from:
                abandoned_from = None
            abandoned = abandoned_from is not None or entry.is_late(attempt)
            if not abandoned and entry.kind in (None, Start):
                event = self._event(entry)
                if event.known_bytes:
                    abandoned_from = event.known_bytes[self.path.name]
            found.append(not abandoned or entry.outlives_resuming)
        return found[::-1]

    def _read(
        self, entries: Iterable[tuple[_Entry, bool]], kinds: Sequence[type[Any]], text: bytes = b""
    ) -> Iterator[tuple[Any, bool]]:
        for entry, holds in entries:
            if (not kinds or entry.kind in kinds) and text in entry.line.content:
                try:
                    event = self._event(entry)
                except DamagedError:
                    if holds:
                        raise
                else:
                    yield event, holds

    def _event(self, entry: _Entry) -> Any:
        try:
            return entry.read()
        except pydantic.ValidationError as error:
            number = entry.line.number
            if entry.line.record is None:
                raise DamagedError(damaged_line(self.path, number)) from None
            raise DamagedError(f"{self.path} is damaged: line {number}: {first_problem(error)}") from None


class Follower(Generic[_E]):
    """What a ledger has recorded since somebody looked last.

    Args:
      ledger: which.
      kinds: only these events; all if there is none.
      upto: only the first `upto` bytes, each time all of them.
    """

    def __init__(self, ledger: Ledger, *kinds: type[_E], upto: int | None = None) -> None:
        self._ledger, self._kinds, self._upto = ledger, kinds, upto
        self._fold: int | None = None  # of the ledger, when somebody looked last
        self._seen = 0  # lines, by then

    def new(self) -> tuple[bool, list[tuple[_E, bool]]]:
        """What is new, and whether each holds.

        Returns:
          Whether that is everything, since some of what held at the last look holds no longer, or it is the first; and
          the events in order.
        """
        if self._upto is not None:
            return True, self._ledger.with_abandoned(*self._kinds, upto=self._upto)
        fold, lines, events = self._ledger.since(self._fold, self._seen, self._kinds)
        is_anew, self._fold, self._seen = fold != self._fold, fold, lines
        return is_anew, events


def is_target_of(swap: Restore, learner: str, worker: str = "") -> bool:
    """Whether it went into a learner's target; into that of one worker, if that is named."""
    return swap.into == "target" and (swap.learner, swap.worker) == (learner, worker)


def target_swaps(events: Sequence[Event], *, learner: str = ONLY_LEARNER, worker: str = "") -> list[Restore]:
    """What went into a learner's target, in order; into that of one worker, if that is named."""
    return [event for event in events if isinstance(event, Restore) and is_target_of(event, learner, worker)]


def is_import(snapshot: str) -> bool:
    """Whether a snapshot of this id was imported, or is a mean of others: it was made at no update of its run."""
    return snapshot.startswith(f"{IMPORT}-")


def read_record(form: type[_Record], path: Path) -> _Record:
    """The record in a file of its own. Raises `DamagedError` if it is missing or not what was written."""
    try:
        return form.model_validate(read_file(path))
    except pydantic.ValidationError as error:
        raise DamagedError(f"{path} is damaged: {first_problem(error)}") from None


def utc_now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds")
