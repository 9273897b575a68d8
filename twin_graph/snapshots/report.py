"""What a run's records say, put together for `status`, `runs`, `log` and `show`."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from twin_graph.errors import DamagedError
from twin_graph.snapshots.run import Run
from twin_graph.snapshots.store import Manifest


def status(run: Run) -> dict[str, Any]:
    """State, counters, targets and scores of a run; the keys are part of the command line's contract."""
    return _status(run, run.store().manifests, run.scores())


def _status(run: Run, snapshots: Sequence[Manifest], scores: Mapping[str, float]) -> dict[str, Any]:
    metrics = run.newest_metrics()
    swaps = [line for line in run.ledger() if line["event"] == "swap" and line["into"] == "target"]
    counters = dict.fromkeys(("agent_steps", "updates", "frames", "episodes"), 0)
    if snapshots:
        counters = snapshots[-1].counters.model_dump()
    if metrics.get("agent_steps", 0) > counters["agent_steps"]:
        counters = {name: metrics[name] for name in counters}
    scored = [snapshot for snapshot in snapshots if snapshot.id in scores]
    best = max(scored, key=lambda snapshot: (scores[snapshot.id], snapshot.number), default=None)
    settings = run.settings
    return {
        "run": run.name,
        "state": run.state(),
        "attempt": run.attempt,
        "environment": settings.env.id,
        "total_steps": settings.train.steps,
        **counters,
        "targets": [
            {
                "lineage": "online",
                "snapshot": swap["snapshot"],
                "policy": swap["policy"],
                "age_updates": max(0, counters["updates"] - swap["first_update"] + 1),
            }
            for swap in swaps[-1:]
        ],
        "snapshots": len(snapshots),
        "agent_steps_per_second": metrics.get("agent_steps_per_second"),
        "scores": {
            name: {"snapshot": snapshot.id, "mean": scores[snapshot.id]} if snapshot else None
            for name, snapshot in (("latest", scored[-1] if scored else None), ("best", best))
        },
        "weights_sha256": snapshots[-1].weights_sha256 if snapshots else None,
    }


def runs(folder: Path) -> list[dict[str, Any]]:
    """The status of each run in a folder, by name; of a damaged one only `run`, `state` and `reason`."""
    summaries = []
    for path in sorted(folder.glob("*/run.json")):
        try:
            summaries.append(status(Run(path.parent)))
        except DamagedError as error:
            summaries.append({"run": path.parent.name, "state": "damaged", "reason": str(error)})
    return summaries


def log(run: Run) -> list[dict[str, Any]]:
    """The snapshots, newest first, with scores and with marks: `latest`, `best`, `target`."""
    snapshots = run.store().manifests
    scores = run.scores()
    summary = _status(run, snapshots, scores)
    marks: dict[str, list[str]] = {}
    if snapshots:
        marks.setdefault(snapshots[-1].id, []).append("latest")
    if best := summary["scores"]["best"]:
        marks.setdefault(best["snapshot"], []).append("best")
    for target in summary["targets"]:
        marks.setdefault(target["snapshot"], []).append("target")
    return [
        {
            "id": snapshot.id,
            "parent": snapshot.parent,
            "lineage": snapshot.lineage,
            "time": snapshot.time,
            **snapshot.counters.model_dump(),
            "score": scores.get(snapshot.id),
            "bytes": snapshot.bytes,
            "weights_sha256": snapshot.weights_sha256,
            "marks": marks.get(snapshot.id, []),
        }
        for snapshot in reversed(snapshots)
    ]


def show(run: Run, reference: str) -> dict[str, Any]:
    """One snapshot: its manifest, its evaluations, and the ledger's lines on when it became the target."""
    snapshot = run.resolve(reference)
    return {
        "manifest": snapshot.model_dump(mode="json"),
        "evaluations": [line for line in run.evaluations() if line["snapshot"] == snapshot.id],
        "swaps": [line for line in run.ledger() if line["event"] == "swap" and line["snapshot"] == snapshot.id],
    }
