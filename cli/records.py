"""Commands that read a run's records: `status`, `runs`, `log`, `show`, `explain`. None of them imports TensorFlow."""

import dataclasses
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import click

from twin_graph.base.here import absolute, shortened
from twin_graph.base.text import counted, interval_before, size
from twin_graph.config.turns import Turns
from twin_graph.errors import UsageError
from twin_graph.records import code, report
from twin_graph.records.told import Damaged, Entry, Explained, Opponent, OpponentThen, Shown, Status, plain
from twin_graph.remote import owners, reading
from twin_graph.remote.urls import is_url
from twin_graph.snapshots.ledger import ONLY_LEARNER
from twin_graph.snapshots.run import RUNS, Run
from twin_graph.snapshots.workers import SILENT_SECONDS, WorkerStatus

from .params import REF_HELP, Count, json_option, print_json, ref_argument, run_argument, stdout
from .tables import print_facts, print_table, print_text


@click.command()
@run_argument
@json_option
def status(run: str, as_json: bool) -> None:
    """Show how RUN is doing: state, counters, target, scores.

    RUN is a run's folder, its name under checkpoints/, or a URL to which it was sent.

    \b
    Examples:
      twin-graph status pong-seed1-1
      twin-graph status s3://our-bucket/pong
    """
    found = reading.opened(run)
    summary = report.status(found)
    if is_url(run) and summary.reason.startswith("killed"):  # whoever trains it is elsewhere
        summary = dataclasses.replace(summary, state="sent", reason="it was training then")
    if as_json:
        print_json(plain(summary))
        return
    print_facts([*_about(summary, found), *_remote(found, summary)])


def _about(summary: Status, run: Run) -> Iterator[tuple[str, str]]:
    """What `status` says of a run, by names."""
    yield "run", summary.run
    yield "state", ": ".join(part for part in (summary.state, summary.reason) if part)
    yield "attempt", str(summary.attempt)
    if origin := summary.forked_from:
        moved = f"; moved {origin['moved']}" if origin.get("moved") else ""
        at = f"resume point {origin['point']}, update {origin['updates']:,}"
        yield "forked from", f"{origin['run']}, {at}{moved}"
    yield "agent steps", f"{summary.agent_steps:,} of {summary.total_steps:,}"
    for name in ("updates", "frames", "episodes", "snapshots"):
        yield name, f"{getattr(summary, name):,}"
    for target in summary.targets:
        since = f"for {counted(target.served_updates, 'update')}{', held' if target.held else ''}"
        name = "target" if target.learner == ONLY_LEARNER else f"{target.learner}'s target"
        yield name, f"{target.snapshot}  (policy {target.policy}, {since})"
    if opponent := summary.opponent:
        since = f"for {counted(opponent.served_agent_steps, 'agent step')}{', held' if opponent.held else ''}"
        yield "opponent", f"{_who(opponent)}  (policy {opponent.policy}, {since})"
    names = {
        "q_distance": "mean |Q - Q_target|",
        "greedy_agreement": "equal greedy actions",
        "weight_distance": "weights",
    }
    telemetry = {key.removeprefix("target/"): value for key, value in summary.telemetry.items() if value is not None}
    if distances := [f"{names[name]} {telemetry[name]:z.3g}" for name in names if name in telemetry]:
        yield "target's distance", ", ".join(distances)
    for worker in summary.workers:
        yield worker.name, worker_line(worker)
    for request in summary.requests:
        yield "requested", request.words
    if point := summary.resume_point:
        yield "resume point", f"{point.number}, at {point.agent_steps:,} agent steps"
    for sentence in summary.without_effect:
        yield "note", sentence
    if summary.agent_steps_per_second:
        yield "rate", f"{summary.agent_steps_per_second:.0f} agent steps/s"
    for name in ("latest", "best"):
        if score := getattr(summary.scores, name):
            yield f"{name} score", f"{score.mean:z.2f}  ({score.snapshot})"
    if point:
        yield "weights_sha256", f"{summary.weights_sha256}  (of that resume point{_of_both(run)})"


def _remote(run: Run, summary: Status) -> Iterator[tuple[str, str]]:
    """Where a run here is sent, and how far behind it is there."""
    if owner := owners.trains_with(run):
        point = summary.resume_point
        behind = point.agent_steps - owner.agent_steps if point else 0
        what = f"{behind:,} agent steps behind" if behind > 0 or not owner.state else f"state {owner.state}"
        yield "remote", f"{owner.url}  ({what}{f'; {owner.trouble}' if owner.trouble else ''})"


def _of_both(run: Run) -> str:
    """For people, after a hash of all weights."""
    return ", both learners together" if len(Turns(run.settings).learners) > 1 else ""


@click.command()
@click.argument("folder", default=str(RUNS))
@json_option
def runs(folder: str, as_json: bool) -> None:
    """List the runs in FOLDER (default: checkpoints/), or those that were sent to a URL.

    \b
    Examples:
      twin-graph runs
      twin-graph runs s3://our-bucket
    """
    if is_url(folder):
        _show_sent(reading.runs(folder), folder, as_json=as_json)
    else:
        _show_runs(absolute(Path(folder)), as_json=as_json)


def _show_sent(found: Sequence[reading.Sent], url: str, *, as_json: bool) -> None:
    if as_json:
        heads = [
            {**run.head.model_dump(exclude={"files"}), "id": run.head.run, "run": run.name} for run in found if run.head
        ]
        print_json([*heads, *({"run": run.name, "damage": run.damage} for run in found if run.damage)])
        return
    if not found:
        stdout.print(f"no runs in {url}")
        return
    headings = "run", "name", "state", "agent steps", "size", "sent (UTC)"
    rows = [
        (
            one.name,
            one.head.name,
            f"{one.head.number:,}",
            f"{one.head.agent_steps:,}",
            size(one.head.bytes),
            one.head.time[:19],
        )
        if one.head
        else (one.name, "damaged", "", "", "", "", one.damage)
        for one in found
    ]
    print_table(headings, rows, left=2)


def _show_runs(folder: Path, *, as_json: bool) -> None:
    if folder != absolute(RUNS) and not folder.is_dir():
        raise UsageError(f"{folder} is not a folder")
    summaries = report.runs(folder)
    if as_json:
        print_json(plain(summaries))
        return
    if not summaries:
        stdout.print(shortened(f"no runs in {folder}/ yet; start one with: twin-graph train cartpole"))
        return
    headings = "run", "state", "environment", "agent steps", "snapshots", "latest score", "best score"
    tree = report.tree([(summary.run, report.parent_of(summary)) for summary in summaries])
    print_table(headings, (_row(depth, summaries[place]) for depth, place in tree), left=3)
    for sentence in code.mixed({one.run: one.code for one in summaries if isinstance(one, Status)}):
        print_text(sentence)


def _row(depth: int, summary: Status | Damaged) -> tuple[str, ...]:
    """A run in the list of runs, with the number of its ancestors."""
    name = f"{'  ' * (depth - 1)}└ {summary.run}" if depth else summary.run
    if isinstance(summary, Damaged):
        return (name, "damaged", *[""] * 5, summary.reason)
    return (
        name,
        summary.state,
        summary.environment,
        f"{summary.agent_steps:,}",
        f"{summary.snapshots:,}",
        *(f"{score.mean:z.2f}" if score else "-" for score in (summary.scores.latest, summary.scores.best)),
    )


@click.command()
@run_argument
@click.option("-n", "count", type=Count(min=1), help="Only the newest N.")
@click.option("--all", "abandoned", is_flag=True, help="Also those that a resumed run abandoned.")
@json_option
def log(run: str, count: int | None, abandoned: bool, as_json: bool) -> None:
    """List the snapshots of RUN, newest first, with their scores.

    A snapshot's depth is how many agent steps ahead its values can reach, through the targets it learned from.

    \b
    Example:
      twin-graph log pong-seed1-1 -n 20
    """
    found = reading.opened(run)
    entries = report.log(found, abandoned=abandoned, count=count)
    if as_json:
        print_json(plain(entries))
        return
    headings = ["snapshot", "agent steps", "updates", "episodes", "depth", "score", "committed (UTC)"]
    rows = [_entry(entry, found.name) for entry in entries]
    several = len(Turns(found.settings).learners) > 1
    if several:
        headings.insert(0, "learner")
        whose = ["" if "imported" in entry.marks else entry.learner for entry in entries]
        rows = [(learner, *row) for learner, row in zip(whose, rows, strict=True)]
    print_table(headings, rows, left=1 + several)


def _entry(entry: Entry, run: str) -> tuple[str, ...]:
    """A snapshot in the list of a run's; an imported one was made outside of the run's counters."""
    imported = "imported" in entry.marks
    marks = [*entry.marks, *([f"of {entry.run}"] if entry.run != run else [])]
    return (
        entry.id,
        *("-" if imported else f"{getattr(entry, name):,}" for name in ("agent_steps", "updates", "episodes")),
        "-" if entry.depth_agent_steps is None else f"{entry.depth_agent_steps:,.0f}",
        "-" if entry.score is None else f"{entry.score:z.2f}",
        entry.time[:19].replace("T", " "),
        ", ".join(marks),
    )


@click.command(epilog=REF_HELP)
@run_argument
@ref_argument(default="latest")
@json_option
def show(run: str, ref: str, as_json: bool) -> None:
    """Show one snapshot of RUN: counters, scores, when it was the target, variables.

    \b
    Example:
      twin-graph show pong-seed1-1 best
    """
    found = reading.opened(run)
    details = report.show(found, ref)
    if as_json:
        print_json(plain(details))
        return
    print_facts(_about_snapshot(details, found.name))
    variables = ((one.name, str(list(one.shape)), one.dtype) for one in details.manifest.variables)
    print_table(("variable", "shape", "type"), variables, left=3)


def _about_snapshot(details: Shown, run: str) -> Iterator[tuple[str, str]]:
    """What `show` says of a snapshot of a run, by names."""
    manifest = details.manifest
    for name in (
        "id",
        "lineage",
        "learner",
        "learner_updates",
        "parent",
        "attempt",
        "time",
        "weights_sha256",
        "settings_sha256",
    ):
        value = getattr(manifest, name)
        yield name, "-" if value is None else str(value)
    if details.run != run:
        yield "made by", f"{details.run}, from which this run was forked"
    if origin := manifest.origin:
        yield "origin", _origin(origin)
    if details.abandoned:
        yield "abandoned", "the run went back to a resume point before it"
    for name, value in manifest.counters.model_dump().items() if not origin else ():
        yield name.replace("_", " "), f"{value:,}"
    if (depth := details.depth_agent_steps) is not None:
        yield "depth", f"{depth:,.0f} agent steps"
    for evaluation in details.evaluations:
        from_what = f"{interval_before(evaluation['interval_95'])}{counted(evaluation['episodes'], 'episode')}"
        name = "score" if evaluation["scheduled"] else "score, by `evaluate`"
        yield name, f"{evaluation['mean']:z.2f}  ({from_what})"
    for swap in details.swaps:
        yield f"restored into {swap.into}", f"from update {swap.first_update:,}  ({swap.reason})"


@click.command()
@run_argument
@click.option("--update", type=Count(min=1), help="Which update, counted from 1.")
@click.option("--step", type=Count(min=1), help="Which agent step, to see the opponent in two-player games.")
@json_option
def explain(run: str, update: int | None, step: int | None, as_json: bool) -> None:
    """Show which snapshot an update of RUN was bootstrapped from, or was the opponent at a step, and why it was chosen.

    \b
    Examples:
      twin-graph explain pong-seed1-1 --update 12000
      twin-graph explain connect-four-seed1-1 --step 90000
    """
    found = reading.opened(run)
    if (update is None) == (step is None):
        raise UsageError("give --update, or --step to see who the opponent was; one of them")
    if step is not None:
        about = report.explain_step(found, step)
        if as_json:
            print_json(plain(about))
            return
        print_facts([("agent step", f"{step:,}"), *_about_opponent(about.opponent)])
        return
    assert update is not None
    told = report.explain(found, update)
    if as_json:
        print_json(plain(told))
        return
    print_facts(_about_update(told, found.name))


def _about_update(told: Explained, run: str) -> Iterator[tuple[str, str]]:
    """What `explain` says of an update of a run, by names."""
    whose = "" if told.learner == ONLY_LEARNER else f", of learner {told.learner}"
    whose += f", by {told.worker}" if told.worker else ""
    yield "update", f"{told.update:,}{whose}"
    for snapshot in told.snapshots:
        if snapshot.age_updates is None:
            age = _origin(snapshot.origin or "")
        else:
            behind = f"{counted(snapshot.age_updates, 'update')} behind"
            age = behind if snapshot.age_updates >= 0 else "committed later"
        if snapshot.depth_agent_steps is not None:
            age += f", depth {snapshot.depth_agent_steps:,.0f} agent steps"
        yield "bootstrapped from", f"{snapshot.id}  ({age})"
    yield "policy", told.policy
    yield "reason", told.reason
    candidates = told.candidates
    listed = ", ".join(candidates) if len(candidates) <= 8 else f"{candidates[0]} ... {candidates[-1]}"
    yield "candidates", f"{len(candidates)}: {listed}"
    if told.draw is not None:
        yield "random draw", f"{told.draw:.6f}"
    first, last = told.used_for_updates
    yield "used for", f"updates {first:,} to {last:,}{', held' if told.held else ''}"
    if told.opponent:
        yield from _about_opponent(told.opponent)
    of = f" of {told.run}" if told.run != run else ""
    yield "recorded", f"attempt {told.attempt}{of}, {told.time[:19].replace('T', ' ')} UTC"


def _about_opponent(opponent: OpponentThen) -> Iterator[tuple[str, str]]:
    """What `explain` says of who had the other seat, by names."""
    first, until = opponent.agent_steps
    span = f"agent steps {first:,} to {until:,}" if until else f"from agent step {first:,} on"
    yield "opponent", f"{_who(opponent)}  ({span}{', held' if opponent.held else ''})"
    yield "its policy", opponent.policy
    yield "its reason", opponent.reason
    if opponent.draw is not None:
        yield "its draw", f"{opponent.draw:.6f}"


def _origin(origin: str) -> str:
    """What an imported snapshot is, in words."""
    return origin if origin.startswith("mean of ") else f"imported from {origin}"


def _who(opponent: Opponent | OpponentThen) -> str:
    return ", ".join(opponent.snapshots) or "no snapshot"


def worker_line(worker: WorkerStatus) -> str:
    """How a worker is doing, for people."""
    if worker.state != "training":
        return f"{worker.state}{': ' if worker.message else ''}{worker.message}"
    silent = time.time() - worker.time
    return (
        (f"silent for {silent:.0f} s; before: " if silent > SILENT_SECONDS else "")
        + f"{worker.agent_steps:,} agent steps, {worker.agent_steps_per_second:.0f}/s, "
        f"{counted(worker.updates, 'update')}, gradients {worker.staleness:.1f} updates old, "
        f"target {', '.join(worker.target)}"
    )
