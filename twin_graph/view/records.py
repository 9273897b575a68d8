"""What the page shows of a run, read from its records. Files that grow are read one line at a time, each line once."""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from twin_graph.base.stopwatch import PHASES
from twin_graph.base.text import command, counted, printable
from twin_graph.config import turns
from twin_graph.errors import DamagedError, UsageError
from twin_graph.records import report
from twin_graph.records.depth import Depths
from twin_graph.records.told import plain
from twin_graph.snapshots.files import GrowingLines, damaged_line
from twin_graph.snapshots.forms import METRICS
from twin_graph.snapshots.ledger import (
    BY_HAND,
    ONLY_LEARNER,
    UNDO,
    Commit,
    End,
    Event,
    Follower,
    Fork,
    Pin,
    Point,
    Prune,
    Restore,
    Start,
    is_import,
)
from twin_graph.snapshots.lines import learning_curve, like_the_newest
from twin_graph.targets.policies import PURPOSES

if TYPE_CHECKING:
    from twin_graph.snapshots.run import Run

#: A plot has no more points, since no screen has more columns; lines of metrics are averaged to so many.
POINTS = 1_500
#: Episodes in one picture, about; beyond that every k-th of each evaluation is drawn.
EPISODES = 20_000
SPARK_POINTS = 60

_COUNTERS = "agent_steps", "updates"
_CURVES = "train_return", "loss", "q_mean", "epsilon", "agent_steps_per_second"
_CURVE_GROUPS = "target/", "learners/", "depth", "time_share/"


class Row(NamedTuple):
    """A line of the ledger, for people.

    Attributes:
      kind: the event; of a swap that a person asked for, `swap by hand`.
      updates, agent_steps: when it happened; None where the ledger does not say.
      snapshots: which it names, as far as the page can open them.
      holds: whether it was not abandoned.
    """

    time: str
    attempt: int
    kind: str
    updates: int | None
    agent_steps: int | None
    text: str
    snapshots: tuple[str, ...]
    holds: bool


#: What rows of the ledger can be filtered by.
KINDS = ("commit", "swap", "swap by hand", "point", "start", "end", "fork", "pin", "unpin", "prune")


class _Columns:
    """The numbers in `metrics.jsonl` that plots show, a column each."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._lines = GrowingLines(run.folder / METRICS)
        self._forget()

    def _forget(self) -> None:
        self._starts = array("q")
        self._columns: dict[str, array[float]] = {}
        self._damaged: list[tuple[int, int]] = []  # start and number of a line

    def read(self) -> tuple[dict[str, list[float]], str]:
        """The columns that hold, of at most `POINTS` rows, which are means, NaN where there is no number; and what is
        damaged there, if anything."""
        damage = ""
        try:
            self._catch_up()
        except DamagedError as error:
            damage = str(error)
        parts = [part for part in self._run.abandoned(METRICS) if part]
        for start, number in self._damaged:
            if not any(start in part for part in parts):
                damage = damage or damaged_line(self._run.folder / METRICS, number)
        starts = np.array(self._starts)
        holds = np.ones(len(starts), bool)
        for part in parts:
            holds &= (starts < part.start) | (starts >= part.stop)
        first = np.arange(0, holds.sum(), max(1, math.ceil(holds.sum() / POINTS)))
        return {name: _means(np.array(column)[holds], first) for name, column in self._columns.items()}, damage

    def _catch_up(self) -> None:
        is_anew, lines = self._lines.new()
        if is_anew:
            self._forget()
        for line in lines:
            record = line.record
            if record is None:
                self._damaged.append((line.start, line.number))
            elif "agent_steps_per_second" in record:
                row = len(self._starts)
                self._starts.append(line.start)
                for name in record.keys() - self._columns.keys():
                    if name in (*_COUNTERS, *_CURVES) or name.startswith(_CURVE_GROUPS):
                        self._columns[name] = array("d", [math.nan]) * row
                for name, column in self._columns.items():
                    column.append(_float(record.get(name)))


class Records:
    """One run, opened. Not for several threads at once."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self._depths = Depths(run)
        self._columns = _Columns(run)
        self._followed: Follower[Event] = Follower(run.ledger)
        self._updates = 0
        self._forget_ledger()

    def summary(self) -> dict[str, Any]:
        """What `twin-graph status` says, and the learning curve in little as `spark`."""
        summary = report.status(self.run)
        self._updates = summary.updates
        return {**plain(summary), "spark": self._spark()}

    def _spark(self) -> list[list[float]]:
        """Agent steps and scores, of two learners the first one's; of a run without scores, its training returns."""
        learner_of = {commit.id: commit.learner for commit in self.run.ledger.events(Commit)}
        lines = list(learning_curve(self.run))
        first = [line for line in lines if learner_of.get(line["snapshot"]) == learner_of.get(lines[0]["snapshot"])]
        curve = [(line["agent_steps"], line["mean"]) for line in first]
        if len(curve) < 2:
            columns, _ = self._columns.read()  # what is damaged is told where the metrics are shown
            pairs = zip(columns.get("agent_steps", []), columns.get("train_return", []), strict=True)
            curve = [(steps, mean) for steps, mean in pairs if math.isfinite(mean)]
        every = max(1, math.ceil(len(curve) / SPARK_POINTS))
        return [list(point) for point in [*curve[:-1:every], *curve[-1:]]]

    def about(self) -> dict[str, Any]:
        """What the page needs before any plot: protocol, settings that affect pictures, films."""
        settings = self.run.settings
        return {
            "fork": command("fork", self.run.folder, "--seed", 1 if settings.seed != 1 else 2),
            "learners": turns.Turns(settings).learners,
            "policy": settings.target.policy,
            "seed": settings.seed,
            "is_in_chunks": settings.train.chunk_steps > 0,
            "has_target": settings.train.target_q,
            "opponent": settings.opponent.policy,
            "kinds": KINDS,
            "films": self._films(),
        }

    def curves(self) -> dict[str, Any]:
        """Lines of metrics as columns, and scores by learner: the learning curve, and means of games by hand, of each
        snapshot those under the protocol of the newest."""
        learner_of = self._learner_of()
        scores: dict[tuple[str, bool], dict[str, list[Any]]] = {}

        def add(line: Mapping[str, Any], **values: Any) -> None:
            key = learner_of.get(line["snapshot"], ""), line["scheduled"]
            for name, value in values.items():
                scores.setdefault(key, {}).setdefault(name, []).append(value)

        for line in learning_curve(self.run):
            low, high = line["interval_95"] or (None, None)
            at = {name: line[name] for name in _COUNTERS}
            add(line, **at, mean=line["mean"], low=low, high=high)
        by_hand: dict[str, list[dict[str, Any]]] = {}
        for line in self._placed_evaluations():
            if not line["scheduled"]:
                by_hand.setdefault(line["snapshot"], []).append(line)
        for lines in sorted(by_hand.values(), key=lambda lines: int(lines[0]["agent_steps"])):
            at = {name: lines[0][name] for name in _COUNTERS}
            add(lines[0], **at, mean=fmean(score for line in like_the_newest(lines) for score in line["returns"]))
        metrics, damage = self._columns.read()
        counters = {
            name: [round(value) if math.isfinite(value) else None for value in metrics[name]]
            for name in _COUNTERS
            if name in metrics
        }
        return {
            "phases": PHASES,
            "metrics": metrics | counters,
            "damage": damage,
            "scores": [{"learner": key[0], "scheduled": key[1], **columns} for key, columns in scores.items()],
        }

    def timeline(self, role: str = "target") -> dict[str, Any]:
        """Which snapshot was the target, or the opponent, from which update to which; an ensemble has several rows."""
        self._catch_up()
        rows: list[tuple[Any, ...]] = []
        policies: dict[str, int] = {}
        ids: dict[str, int] = {}
        updates = self._updates
        for learner, swaps in self._served[role].items():
            ends = [swap.first_update - 1 for swap in swaps[1:]] + [updates]
            for swap, last in zip(swaps, ends, strict=True):
                if last < swap.first_update:
                    continue
                policy = policies.setdefault(swap.policy, len(policies))
                for snapshot in swap.snapshots:
                    commit = self._commits.get(snapshot)
                    made_at = commit.updates if commit and commit.number is not None else None
                    row = (swap.first_update, last, made_at, self._depths.of(snapshot), policy, swap.hold, learner)
                    rows.append((*row, ids.setdefault(snapshot, len(ids))))
        rows.sort(key=lambda row: row[:2])
        names = "first", "last", "made_at", "depth", "policy", "hold", "learner", "snapshot"
        columns = zip(*rows, strict=True) if rows else [()] * len(names)
        return {
            "updates": updates,
            "policies": list(policies),
            "by_hand": [policy in (BY_HAND, UNDO) for policy in policies],
            "ids": list(ids),
            **dict(zip(names, columns, strict=True)),
        }

    def episodes(self) -> dict[str, Any]:
        """Every episode of every evaluation, as columns; if there are many, every k-th of each. The means are of all
        episodes of scheduled evaluations, by agent steps."""
        lines = list(self._placed_evaluations())
        every = max(1, math.ceil(sum(len(line["returns"]) for line in lines) / EPISODES))
        columns: dict[str, list[Any]] = {name: [] for name in ("agent_steps", "return", "scheduled")}
        scheduled: dict[int, list[float]] = {}
        for line in lines:
            drawn = line["returns"][::every]
            for name in ("agent_steps", "scheduled"):
                columns[name] += [line[name]] * len(drawn)
            columns["return"] += drawn
            if line["scheduled"]:
                scheduled.setdefault(line["agent_steps"], []).extend(line["returns"])
        means = [[steps, fmean(returns)] for steps, returns in scheduled.items()]
        return {"every": every, "means": means, **columns}

    def _placed_evaluations(self) -> Iterator[dict[str, Any]]:
        """Those of the run's own snapshots: an import, or a mean, was made at no agent step of it."""
        return (line for line in self.run.evaluation_lines() if not is_import(line["snapshot"]))

    def evaluations(self, offset: int, count: int) -> dict[str, Any]:
        """A page of the evaluations, the newest first."""
        lines = list(self.run.evaluation_lines())[::-1]
        keys = ("snapshot", "scheduled", "time", *_COUNTERS, "mean", "interval_95", "returns", "seeds", "q_start")
        rows = [
            {key: line.get(key) for key in keys} | (dict.fromkeys(_COUNTERS) if is_import(line["snapshot"]) else {})
            for line in lines[offset : offset + count]
        ]
        return {"total": len(lines), "rows": rows}

    def ledger(self, offset: int, count: int, *, kind: str = "", text: str = "", abandoned: bool = False) -> Any:
        """A page of the ledger, the newest first.

        Args:
          offset: rows to leave out.
          count: rows to return.
          kind: only these; see `KINDS`.
          text: only rows that contain this, whatever its case.
          abandoned: also those that a resumed run left behind.
        """
        self._catch_up()
        wanted = text.casefold()
        rows = [
            row
            for row in reversed(self._rows)
            if (abandoned or row.holds)
            and (not kind or row.kind == kind)
            and (not wanted or wanted in row.text.casefold() or any(wanted in snapshot for snapshot in row.snapshots))
        ]
        return {"total": len(rows), "rows": [row._asdict() for row in rows[offset : offset + count]]}

    def snapshot(self, snapshot_id: str) -> dict[str, Any]:
        """One snapshot, as `twin-graph show` has it."""
        details = report.show(self.run, snapshot_id)
        manifest = plain(details.manifest)
        kept = ("id", "number", "lineage", "parent", "attempt", "time", "counters", "weights_sha256", "origin")
        return {
            "run": details.run,
            **{key: manifest[key] for key in kept},
            "bytes": sum(file["size"] for file in manifest["files"]),
            "depth_agent_steps": details.depth_agent_steps,
            "has_weights": details.has_weights,
            "pinned": details.pinned,
            "abandoned": details.abandoned,
            "variables": [{"name": v["name"], "shape": v["shape"]} for v in manifest["variables"]],
            "evaluations": [
                {key: line[key] for key in ("mean", "interval_95", "returns", "scheduled")}
                for line in details.evaluations
            ],
            "served_from": [swap.first_update for swap in details.swaps if swap.into == "target"],
            "film": snapshot_id in self._films(),
        }

    def explain(self, update: int) -> dict[str, Any]:
        """Which snapshots were the target of an update, as `twin-graph explain` has it."""
        told = report.explain(self.run, update)
        return {**plain(told), "candidates": len(told.candidates)}

    def film(self, snapshot_id: str) -> Path:
        """The film of a snapshot. Raises `UsageError` if there is none."""
        if snapshot_id not in self._films():
            raise UsageError(f"no film of {snapshot_id}; `twin-graph record RUN {snapshot_id}` makes one")
        return self.run.videos / f"{snapshot_id}.mp4"

    def _films(self) -> list[str]:
        """Snapshots of which there is a film, in the order of their ids; files of other names are passed over."""
        self._catch_up()
        paths = sorted(self.run.videos.glob("*.mp4"))
        return [path.stem for path in paths if path.stem in self._commits and path.is_file() and not path.is_symlink()]

    def _learner_of(self) -> dict[str, str]:
        self._catch_up()
        return {snapshot: commit.learner for snapshot, commit in self._commits.items()}

    def _forget_ledger(self) -> None:
        self._rows: list[Row] = []
        self._commits: dict[str, Commit] = {}
        self._served: dict[str, dict[str, list[_Served]]] = {role: {} for role in PURPOSES}

    def _catch_up(self) -> None:
        """Sees what the ledger has recorded since."""
        self._depths.catch_up()
        is_anew, events = self._followed.new()
        if is_anew:
            self._forget_ledger()
        for event, holds in events:
            self._rows.append(_row(event, holds))
            if isinstance(event, Commit) and (holds or event.id not in self._commits):
                self._commits[event.id] = event
            elif isinstance(event, Restore) and holds and event.into in self._served and not event.worker:
                served = _Served(event.first_update, event.snapshots, event.policy, event.hold)
                self._served[event.into].setdefault(event.learner, []).append(served)


class _Served(NamedTuple):
    """What the timeline needs of a swap; the rest, its candidates above all, stays on disk."""

    first_update: int
    snapshots: tuple[str, ...]
    policy: str
    hold: bool


def rounded(value: Any) -> Any:
    """Numbers for a screen, with only as many digits as it shows, null for what is not a number; texts without
    anything that is no text."""
    if isinstance(value, dict):
        return {key: rounded(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [rounded(item) for item in value]
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, float):
        if not math.isfinite(value):
            return None
        return float(f"{value:.6g}") if abs(value) < 10_000 else round(value, 2)
    return value


def _float(value: Any) -> float:
    """NaN for what is no number, since users log what they like."""
    try:
        return float(value) if isinstance(value, float | int) else math.nan
    except OverflowError:
        return math.nan


def _means(column: np.ndarray, first: np.ndarray) -> list[float]:
    """Means of the rows from each of `first` to the next, without those that hold no number; NaN where none does."""
    if not len(first):
        return []
    is_number = np.isfinite(column)
    sums = np.add.reduceat(np.where(is_number, column, 0.0), first)
    with np.errstate(invalid="ignore"):
        means: list[float] = (sums / np.add.reduceat(is_number.astype(int), first)).tolist()
    return means


def _row(event: Event, holds: bool) -> Row:
    kind: str = event.event
    if isinstance(event, Restore) and event.request:
        kind = "swap by hand"
    counters = None if isinstance(event, End | Pin | Prune) else event.counters
    updates, agent_steps = (counters.updates, counters.agent_steps) if counters else (None, None)
    snapshots: tuple[str, ...] = ()
    if isinstance(event, Commit | Pin):
        snapshots = (event.snapshot,)
    elif isinstance(event, Restore):
        snapshots = event.snapshots
    text = "; ".join(part for part in _words(event) if part)
    return Row(event.time, event.attempt, kind, updates, agent_steps, text, snapshots, holds)


def _words(event: Event) -> Iterator[str]:
    """What a line of the ledger says, beyond its columns."""
    if isinstance(event, Start):
        yield f"process {event.pid} on {event.host}"
        yield "from the beginning" if event.resumed_from is None else f"from resume point {event.resumed_from}"
    elif isinstance(event, End):
        yield event.state
        yield event.reason
    elif isinstance(event, Commit):
        yield f"of lineage {event.lineage}"
        yield f"{event.bytes:,} bytes"
    elif isinstance(event, Restore):
        twin = event.into if event.into == "opponent" else f"{event.into} twin"
        yield f"into the {twin} from update {event.first_update:,} on" + (", held" if event.hold else "")
        yield f"of {event.worker}" if event.worker else ""
        yield f"of learner {event.learner}" if event.learner != ONLY_LEARNER else ""
        yield f"policy {event.policy}" if event.policy not in (BY_HAND, UNDO) else event.policy
        yield event.reason
        yield f"from {counted(len(event.candidates), 'candidate')}" if event.candidates else ""
    elif isinstance(event, Point):
        yield f"resume point {event.number}"
        yield "on request" if event.request else ""
    elif isinstance(event, Fork):
        yield f"the past of {event.run} up to its resume point {event.point}"
        yield event.changed
    elif isinstance(event, Prune):
        yield f"weights removed of {counted(len(event.snapshots), 'snapshot')}: {_list(event.snapshots)}"


def _list(snapshots: Sequence[str]) -> str:
    return ", ".join(snapshots) if len(snapshots) <= 3 else f"{snapshots[0]} to {snapshots[-1]}"
