"""The ledger: an append-only record of trainer starts, commits, swaps, pins and removals.

After a crash the past is not rewritten. A start that resumes names the part of the ledger that its resume point did
not know: the lines there are *abandoned*, kept for people and never looked at by a policy.
"""

import datetime
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import pydantic
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from twin_graph.errors import DamagedError
from twin_graph.snapshots.files import Line, append_line, read_file, read_lines


class Record(BaseModel):
    """What all that is read from a run's records has in common: no unknown keys, no changes."""

    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)

    @classmethod
    def from_file(cls, path: Path) -> Self:
        """The record in a file of its own. Raises `DamagedError` if it is missing or not what was written."""
        try:
            return cls.model_validate(read_file(path))
        except pydantic.ValidationError as error:
            raise DamagedError(f"{path} is damaged: {first_problem(error)}") from None


class Counters(Record):
    """How far a run had come. `frames` is agent steps times the frame skip."""

    agent_steps: int = Field(ge=0)
    updates: int = Field(ge=0)
    frames: int = Field(ge=0)
    episodes: int = Field(ge=0)


class Health(Record):
    """Q values of a snapshot on the run's probe batch, for `rollback`.

    Attributes:
      q_abs_mean, q_abs_max: of |Q| over the probe's observations and all actions; null where one is not finite.
      q_limit: what no true Q value can exceed: the largest |reward| met so far / (1 - discount); null before a reward
        was met, and where the discount is 1.
    """

    q_abs_mean: float | None
    q_abs_max: float | None
    q_limit: float | None


#: Name of the learner where there is one.
ONLY_LEARNER = "online"


class _Event(Record):
    attempt: int = Field(ge=1)
    time: str


class Start(_Event):
    """A process begins to train.

    Attributes:
      pid, host, process_started: which; see `twin_graph.snapshots.run.Run.state`.
      resumed_from: number of the resume point; None at the run's beginning.
      counters: those of the resume point.
      known_bytes: how much of each file of records that point knew, by the file's name.
      found_bytes: how much of it there was at this start; what lies between is abandoned.
    """

    event: Literal["start"] = "start"
    pid: int
    host: str
    process_started: float | None
    resumed_from: int | None = None
    counters: Counters | None = None
    known_bytes: dict[str, int] = {}
    found_bytes: dict[str, int] = {}


class End(_Event):
    """The process that trained ended and could say so."""

    event: Literal["end"] = "end"
    state: Literal["finished", "stopped", "failed"]
    reason: str


class Commit(_Event):
    """A snapshot was committed: all that lists of snapshots and policies need of its manifest.

    Attributes:
      snapshot: its id.
      number: its place in the order of its learner's snapshots; None for lineage `import`.
      parent: the lineage's snapshot before it; None for the first.
      learner: whose weights these are; `learner_updates` are its own, `counters` the run's.
      health: None before there is a probe batch.
    """

    event: Literal["commit"] = "commit"
    snapshot: str
    number: int | None = Field(ge=0)
    lineage: str
    parent: str | None
    learner: str = ONLY_LEARNER
    learner_updates: int | None = None
    counters: Counters
    weights_sha256: str
    bytes: int = Field(ge=0)
    health: Health | None = None

    @property
    def id(self) -> str:
        return self.snapshot

    @property
    def updates(self) -> int:
        return self.counters.updates


class Swap(_Event):
    """Snapshots were restored into a twin; those of a refresh supply the targets from `first_update` on.

    Attributes:
      into: `target` or `online`.
      learner: whose.
      worker: which worker's target; empty for that of the run, which workers follow as soon as they can.
      snapshots: one, or the members of an ensemble.
      policy: which chose; `BY_HAND` or `UNDO` where a person did.
      candidates: what it could choose from.
      reason: in words.
      draw: the random number that decided, if one did.
      first_update: the first update that used them, from 1.
      counters: when it happened.
      previous: what the twin held before.
      request: which request of a person this answers.
      hold: refreshes by the schedule are suspended until it is undone.
    """

    event: Literal["swap"] = "swap"
    into: Literal["target", "online"]
    learner: str = ONLY_LEARNER
    worker: str = ""
    snapshots: tuple[str, ...] = Field(min_length=1)
    policy: str
    candidates: tuple[str, ...]
    reason: str
    draw: float | None = None
    first_update: int = Field(ge=1)
    counters: Counters
    previous: tuple[str, ...] = ()
    request: str | None = None
    hold: bool = False


class Pin(_Event):
    """A person keeps a snapshot's weights, or releases them; never abandoned."""

    event: Literal["pin", "unpin"]
    snapshot: str


class Prune(_Event):
    """The weight files of these snapshots are removed from here on; never abandoned."""

    event: Literal["prune"] = "prune"
    snapshots: tuple[str, ...]


Event = Start | End | Commit | Swap | Pin | Prune
_EVENT: TypeAdapter[Event] = TypeAdapter(Annotated[Event, Field(discriminator="event")])

#: In place of a policy, where a person chose.
BY_HAND, UNDO = "by hand", "undo"
#: Lineage of what came from outside.
IMPORT = "import"


class Ledger:
    """The ledger in one file. Reads it when asked, and appends to it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._read: tuple[tuple[int, int, int | None], list[tuple[Event, bool]]] | None = None

    @property
    def attempt(self) -> int:
        """The newest process life of the run; 0 before the first."""
        return max((event.attempt for event, _ in self.with_abandoned()), default=0)

    def append(self, event: Event) -> None:
        """Durable when this returns. Raises OSError."""
        append_line(self.path, event.model_dump(mode="json"))

    def events(self, *, upto: int | None = None) -> list[Event]:
        """What holds now: all events in order, but for those abandoned.

        Args:
          upto: only what the first so many bytes say.

        Raises:
          DamagedError: a line that holds is not what was written.
        """
        return [event for event, holds in self.with_abandoned(upto=upto) if holds]

    def with_abandoned(self, *, upto: int | None = None) -> list[tuple[Event, bool]]:
        """All events in order, and whether each holds. Damage in what is abandoned is passed over."""
        if not self.path.exists():
            return []
        status = self.path.stat()
        key = status.st_size, status.st_mtime_ns, upto
        if self._read is None or self._read[0] != key:  # one command asks several times
            self._read = key, self._fold(upto)
        return self._read[1]

    def _fold(self, upto: int | None) -> list[tuple[Event, bool]]:
        lines = [line for line in read_lines(self.path) if upto is None or line.start < upto]
        found: list[tuple[Event, bool]] = []
        abandoned_from: int | None = None  # going backwards: lines from there on are abandoned
        for line in reversed(lines):
            if abandoned_from is not None and line.start < abandoned_from:
                abandoned_from = None
            abandoned = abandoned_from is not None
            try:
                event = self._parse(line)
            except DamagedError:
                if abandoned:
                    continue
                raise
            found.append((event, not abandoned or _outlives_resuming(event)))
            if not abandoned and isinstance(event, Start) and event.known_bytes:
                abandoned_from = event.known_bytes[self.path.name]
        return found[::-1]

    def beyond(self, known_bytes: int) -> list[Event]:
        """What holds now and would be abandoned by a start that knows only so many bytes."""
        return self.events()[len(self.events(upto=known_bytes)) :]

    def _parse(self, line: Line) -> Event:
        if line.record is None:
            raise DamagedError(f"{self.path} is damaged: line {line.number} is not what was written")
        try:
            return _EVENT.validate_python(line.record)
        except pydantic.ValidationError as error:
            raise DamagedError(f"{self.path} is damaged: line {line.number}: {first_problem(error)}") from None


def _outlives_resuming(event: Event) -> bool:
    """Whether it says what a person did to the store: that holds, whatever becomes of the training around it."""
    return isinstance(event, Pin | Prune) or (isinstance(event, Commit) and event.lineage == IMPORT)


def commits(events: Sequence[Event]) -> Iterator[Commit]:
    """The commits among events; of a snapshot that was committed again, the newer."""
    by_id = {event.snapshot: event for event in events if isinstance(event, Commit)}
    yield from by_id.values()


def target_swaps(events: Sequence[Event], *, learner: str = ONLY_LEARNER, worker: str = "") -> list[Swap]:
    """What went into a learner's target, in order; into that of one of its workers, if it is named."""
    whose = (learner, worker)
    return [e for e in events if isinstance(e, Swap) and e.into == "target" and (e.learner, e.worker) == whose]


def pruned(events: Sequence[Event]) -> set[str]:
    """The snapshots whose weights are gone."""
    gone: set[str] = set()
    for event in events:
        if isinstance(event, Prune):
            gone.update(event.snapshots)
        elif isinstance(event, Commit):
            gone.discard(event.snapshot)
    return gone


def pinned(events: Sequence[Event]) -> set[str]:
    """The snapshots that a person keeps."""
    kept: set[str] = set()
    for event in events:
        if isinstance(event, Pin):
            (kept.add if event.event == "pin" else kept.discard)(event.snapshot)
    return kept


def first_problem(error: pydantic.ValidationError) -> str:
    """One line for the first thing that is wrong with a record."""
    first: Any = error.errors()[0]
    where = ".".join(str(part) for part in first["loc"])
    return f"{f'{where}: ' if where else ''}{first['msg']}"


def utc_now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds")
