"""What `twin_graph.records.report` returns; `plain` makes of it what `--json` prints, with the same keys."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel

from twin_graph.snapshots.workers import WorkerStatus

if TYPE_CHECKING:
    from twin_graph.snapshots.ledger import Restore
    from twin_graph.snapshots.store import Manifest


@dataclasses.dataclass(frozen=True)
class Target:
    """A snapshot that supplies bootstrap values now, and for how many updates it has."""

    snapshot: str
    learner: str
    policy: str
    served_updates: int
    held: bool


@dataclasses.dataclass(frozen=True)
class Opponent:
    """Who has the other seat now, and for how many agent steps."""

    snapshots: Sequence[str]
    policy: str
    since_agent_steps: int
    served_agent_steps: int
    held: bool


@dataclasses.dataclass(frozen=True)
class NewestPoint:
    """The newest resume point."""

    number: int
    agent_steps: int
    updates: int
    frames: int
    episodes: int


@dataclasses.dataclass(frozen=True)
class Waiting:
    """A request that is not carried out yet; see `twin_graph.snapshots.control.Request`."""

    kind: str
    snapshot: str
    into: str
    learner: str
    hold: bool
    words: str


@dataclasses.dataclass(frozen=True)
class Score:
    """The mean return of a snapshot over its comparable evaluations."""

    snapshot: str
    mean: float


@dataclasses.dataclass(frozen=True)
class Scores:
    """Of the newest snapshot that has a score, and of the best."""

    latest: Score | None
    best: Score | None


@dataclasses.dataclass(frozen=True)
class Status:
    """How a run is doing.

    Attributes:
      run: its name.
      state, reason: see `Run.outcome`.
      forked_from: what `run.json` says of that.
      total_steps: agent steps of the whole run.
      agent_steps, updates, frames, episodes: so far.
      telemetry: the newest measured distances of targets from their online twins, by name.
      weights_sha256: of the newest resume point.
      code: SHA-256 of users' modules with which it was trained, by the module's name.
      without_effect: sentences on settings that have none.
    """

    run: str
    state: str
    reason: str
    attempt: int
    forked_from: dict[str, Any] | None
    environment: str
    total_steps: int
    agent_steps: int
    updates: int
    frames: int
    episodes: int
    targets: Sequence[Target]
    opponent: Opponent | None
    telemetry: dict[str, Any]
    refresh_milliseconds: float | None
    workers: Sequence[WorkerStatus]
    snapshots: int
    snapshots_with_weights: int
    resume_point: NewestPoint | None
    requests: Sequence[Waiting]
    agent_steps_per_second: float | None
    scores: Scores
    weights_sha256: str | None
    code: Mapping[str, Sequence[str]]
    without_effect: Sequence[str]


@dataclasses.dataclass(frozen=True)
class Damaged:
    """A run whose records cannot be read, and why."""

    run: str
    state: str
    reason: str


@dataclasses.dataclass(frozen=True)
class Entry:
    """A snapshot in the list of a run's; counters are None of an import.

    Attributes:
      learner: whose weights these are.
      run: in which it was made, before a fork.
      depth_agent_steps: see `twin_graph.records.depth`.
      marks: see `twin_graph.records.report.log`.
    """

    id: str
    parent: str | None
    lineage: str
    learner: str
    attempt: int
    run: str
    time: str
    agent_steps: int | None
    updates: int | None
    frames: int | None
    episodes: int | None
    score: float | None
    depth_agent_steps: float | None
    bytes: int
    weights_sha256: str
    marks: Sequence[str]


@dataclasses.dataclass(frozen=True)
class Shown:
    """One snapshot.

    Attributes:
      run: in which it was made, before a fork.
      evaluations: lines of `evaluations.jsonl`.
      swaps: when it was restored into a twin.
    """

    run: str
    depth_agent_steps: float | None
    manifest: Manifest
    has_weights: bool
    pinned: bool
    abandoned: bool
    evaluations: Sequence[dict[str, Any]]
    swaps: Sequence[Restore]


@dataclasses.dataclass(frozen=True)
class Served:
    """A snapshot that gave an update its targets; an import has an origin and no age in updates."""

    id: str
    lineage: str
    updates: int
    age_updates: int | None
    origin: str | None
    depth_agent_steps: float | None


@dataclasses.dataclass(frozen=True)
class OpponentThen:
    """Who had the other seat, and why; from which agent step to which, None for now."""

    snapshots: Sequence[str]
    policy: str
    reason: str
    draw: float | None
    agent_steps: list[int | None]
    held: bool
    request: str | None


@dataclasses.dataclass(frozen=True)
class Explained:
    """Which snapshots bootstrapped an update, and why they were chosen; see `twin_graph.snapshots.ledger.Restore`.

    Attributes:
      worker: which made the update; empty without workers.
      used_for_updates: the first and the last, so far.
      run: that recorded it, before a fork.
    """

    update: int
    learner: str
    worker: str
    snapshots: Sequence[Served]
    policy: str
    reason: str
    candidates: Sequence[str]
    draw: float | None
    used_for_updates: list[int]
    attempt: int
    run: str
    time: str
    held: bool
    request: str | None
    opponent: OpponentThen | None


@dataclasses.dataclass(frozen=True)
class ExplainedStep:
    """Who had the other seat at an agent step."""

    agent_step: int
    opponent: OpponentThen


def plain(value: Any) -> Any:
    """The same as mappings, lists and what JSON has."""
    if isinstance(value, WorkerStatus):
        return value.model_dump(mode="json", exclude={"returns", "attempt"})
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json")
    if dataclasses.is_dataclass(value):
        return {field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    return [plain(one) for one in value] if isinstance(value, list | tuple) else value
