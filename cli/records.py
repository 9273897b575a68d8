"""Commands that read a run's records: `status`, `runs`, `log`, `show`, `explain`. None of them imports TensorFlow."""

import time
from collections.abc import Sequence
from pathlib import Path

import click
from rich.table import Table

from twin_graph.base.here import absolute, shortened
from twin_graph.base.text import counted, interval_before
from twin_graph.config.turns import Turns
from twin_graph.errors import UsageError
from twin_graph.records import code, report
from twin_graph.records.told import Damaged, Opponent, OpponentThen, Status, plain
from twin_graph.snapshots.ledger import ONLY_LEARNER
from twin_graph.snapshots.run import RUNS, Run, find
from twin_graph.snapshots.store import Variable
from twin_graph.snapshots.workers import SILENT_SECONDS, WorkerStatus

from .params import PATH, REF_HELP, Count, echo, json_option, print_json, ref_argument, run_argument, stdout


@click.command()
@run_argument
@json_option
def status(run: str, as_json: bool) -> None:
    """Show how RUN is doing: state, counters, target, scores.

    RUN is a run's folder or its name under checkpoints/.

    \b
    Example:
      twin-graph status pong-seed1-1
    """
    found = find(run)
    summary = report.status(found)
    if as_json:
        print_json(plain(summary))
        return
    table = Table.grid(padding=(0, 2))
    table.add_row("run", summary.run)
    table.add_row("state", ": ".join(part for part in (summary.state, summary.reason) if part))
    table.add_row("attempt", str(summary.attempt))
    if origin := summary.forked_from:
        moved = f"; moved {origin['moved']}" if origin.get("moved") else ""
        table.add_row(
            "forked from",
            f"{origin['run']}, resume point {origin['point']}, update {origin['updates']:,}{moved}",
        )
    table.add_row("agent steps", f"{summary.agent_steps:,} of {summary.total_steps:,}")
    for name in ("updates", "frames", "episodes", "snapshots"):
        table.add_row(name, f"{getattr(summary, name):,}")
    for target in summary.targets:
        since = f"for {counted(target.served_updates, 'update')}{', held' if target.held else ''}"
        table.add_row(
            "target" if target.learner == ONLY_LEARNER else f"{target.learner}'s target",
            f"{target.snapshot}  (policy {target.policy}, {since})",
        )
    if opponent := summary.opponent:
        since = f"for {counted(opponent.served_agent_steps, 'agent step')}{', held' if opponent.held else ''}"
        table.add_row("opponent", f"{_who(opponent)}  (policy {opponent.policy}, {since})")
    names = {
        "q_distance": "mean |Q - Q_target|",
        "greedy_agreement": "equal greedy actions",
        "weight_distance": "weights",
    }
    telemetry = {key.removeprefix("target/"): value for key, value in summary.telemetry.items() if value is not None}
    if facts := [f"{names[name]} {telemetry[name]:z.3g}" for name in names if name in telemetry]:
        table.add_row("target's distance", ", ".join(facts))
    for worker in summary.workers:
        table.add_row(worker.name, worker_line(worker))
    for request in summary.requests:
        table.add_row("requested", request.words)
    if point := summary.resume_point:
        table.add_row("resume point", f"{point.number}, at {point.agent_steps:,} agent steps")
    for sentence in summary.without_effect:
        table.add_row("note", sentence)
    if summary.agent_steps_per_second:
        table.add_row("rate", f"{summary.agent_steps_per_second:.0f} agent steps/s")
    for name in ("latest", "best"):
        if score := getattr(summary.scores, name):
            table.add_row(f"{name} score", f"{score.mean:z.2f}  ({score.snapshot})")
    if point:
        table.add_row("weights_sha256", f"{summary.weights_sha256}  (of that resume point{_of_both(found)})")
    stdout.print(table)


def _of_both(run: Run) -> str:
    """For people, after a hash of all weights."""
    return ", both learners together" if len(Turns(run.settings).learners) > 1 else ""


@click.command()
@click.argument("folder", default=str(RUNS), type=PATH)
@json_option
def runs(folder: Path, as_json: bool) -> None:
    """List the runs in FOLDER (default: checkpoints/).

    \b
    Example:
      twin-graph runs
    """
    if folder != absolute(RUNS) and not folder.is_dir():
        raise UsageError(f"{folder} is not a folder")
    summaries = report.runs(folder)
    if as_json:
        print_json(plain(summaries))
        return
    if not summaries:
        stdout.print(shortened(f"no runs in {folder}/ yet; start one with: twin-graph train cartpole"))
        return
    table = Table(box=None, pad_edge=False)
    for heading in ("run", "state", "environment", "agent steps", "snapshots", "latest score", "best score"):
        table.add_column(heading, justify="left" if heading in ("run", "state", "environment") else "right")
    for depth, place in report.tree([(summary.run, report.parent_of(summary)) for summary in summaries]):
        summary = summaries[place]
        name = f"{'  ' * (depth - 1)}└ {summary.run}" if depth else summary.run
        if isinstance(summary, Damaged):
            table.add_row(name, "damaged", summary.reason)
            continue
        scores = summary.scores.latest, summary.scores.best
        table.add_row(
            name,
            summary.state,
            summary.environment,
            f"{summary.agent_steps:,}",
            f"{summary.snapshots:,}",
            *(f"{score.mean:z.2f}" if score else "-" for score in scores),
        )
    stdout.print(table)
    for sentence in code.mixed({one.run: one.code for one in summaries if isinstance(one, Status)}):
        stdout.print(sentence, soft_wrap=True)


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
    found = find(run)
    entries = report.log(found, abandoned=abandoned, count=count)
    if as_json:
        print_json(plain(entries))
        return
    # Not rich's table, which takes seconds for ten thousand rows.
    line = "{:<20} {:>12} {:>10} {:>9} {:>7} {:>9}  {:<19}  {}"
    headings = ["snapshot", "agent steps", "updates", "episodes", "depth", "score", "committed (UTC)", ""]
    several = len(Turns(found.settings).learners) > 1
    if several:
        line, headings = f"{{:<7}}  {line}", ["learner", *headings]
    echo(line.format(*headings).rstrip())
    for entry in entries:
        imported = "imported" in entry.marks  # it was made outside of this run's counters
        numbers = ("-" if imported else f"{getattr(entry, name):,}" for name in ("agent_steps", "updates", "episodes"))
        score = "-" if entry.score is None else f"{entry.score:z.2f}"
        depth = "-" if entry.depth_agent_steps is None else f"{entry.depth_agent_steps:,.0f}"
        time = entry.time[:19].replace("T", " ")
        marks = [*entry.marks, *([f"of {entry.run}"] if entry.run != found.name else [])]
        whose = ["" if imported else entry.learner] if several else []
        echo(line.format(*whose, entry.id, *numbers, depth, score, time, ", ".join(marks)).rstrip())


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
    found = find(run)
    details = report.show(found, ref)
    if as_json:
        print_json(plain(details))
        return
    manifest = details.manifest
    table = Table.grid(padding=(0, 2))
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
        table.add_row(name, "-" if value is None else str(value))
    if details.run != found.name:
        table.add_row("made by", f"{details.run}, from which this run was forked")
    if origin := manifest.origin:
        table.add_row("origin", _origin(origin))
    if details.abandoned:
        table.add_row("abandoned", "the run went back to a resume point before it")
    for name, value in manifest.counters.model_dump().items() if not origin else ():
        table.add_row(name.replace("_", " "), f"{value:,}")
    if (depth := details.depth_agent_steps) is not None:
        table.add_row("depth", f"{depth:,.0f} agent steps")
    for evaluation in details.evaluations:
        table.add_row(
            "score" if evaluation["scheduled"] else "score, by `evaluate`",
            f"{evaluation['mean']:z.2f}  ({interval_before(evaluation['interval_95'])}"
            f"{counted(evaluation['episodes'], 'episode')})",
        )
    for swap in details.swaps:
        table.add_row(f"restored into {swap.into}", f"from update {swap.first_update:,}  ({swap.reason})")
    stdout.print(table)
    stdout.print(_variables(manifest.variables))


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
    found = find(run)
    if (update is None) == (step is None):
        raise UsageError("give --update, or --step to see who the opponent was; one of them")
    if step is not None:
        about = report.explain_step(found, step)
        if as_json:
            print_json(plain(about))
            return
        table = Table.grid(padding=(0, 2))
        table.add_row("agent step", f"{step:,}")
        _add_opponent(table, about.opponent)
        stdout.print(table)
        return
    assert update is not None
    told = report.explain(found, update)
    if as_json:
        print_json(plain(told))
        return
    table = Table.grid(padding=(0, 2))
    whose = "" if told.learner == ONLY_LEARNER else f", of learner {told.learner}"
    whose += f", by {told.worker}" if told.worker else ""
    table.add_row("update", f"{told.update:,}{whose}")
    for snapshot in told.snapshots:
        if snapshot.age_updates is None:
            age = _origin(snapshot.origin or "")
        else:
            behind = f"{counted(snapshot.age_updates, 'update')} behind"
            age = behind if snapshot.age_updates >= 0 else "committed later"
        if snapshot.depth_agent_steps is not None:
            age += f", depth {snapshot.depth_agent_steps:,.0f} agent steps"
        table.add_row("bootstrapped from", f"{snapshot.id}  ({age})")
    table.add_row("policy", told.policy)
    table.add_row("reason", told.reason)
    candidates = told.candidates
    listed = ", ".join(candidates) if len(candidates) <= 8 else f"{candidates[0]} ... {candidates[-1]}"
    table.add_row("candidates", f"{len(candidates)}: {listed}")
    if told.draw is not None:
        table.add_row("random draw", f"{told.draw:.6f}")
    first, last = told.used_for_updates
    table.add_row("used for", f"updates {first:,} to {last:,}{', held' if told.held else ''}")
    if told.opponent:
        _add_opponent(table, told.opponent)
    of = f" of {told.run}" if told.run != found.name else ""
    table.add_row("recorded", f"attempt {told.attempt}{of}, {told.time[:19].replace('T', ' ')} UTC")
    stdout.print(table)


def _add_opponent(table: Table, opponent: OpponentThen) -> None:
    """Adds rows on who had the other seat."""
    first, until = opponent.agent_steps
    span = f"agent steps {first:,} to {until:,}" if until else f"from agent step {first:,} on"
    table.add_row("opponent", f"{_who(opponent)}  ({span}{', held' if opponent.held else ''})")
    table.add_row("its policy", opponent.policy)
    table.add_row("its reason", opponent.reason)
    if opponent.draw is not None:
        table.add_row("its draw", f"{opponent.draw:.6f}")


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


def _variables(variables: Sequence[Variable]) -> Table:
    table = Table(box=None, pad_edge=False)
    for heading in ("variable", "shape", "type"):
        table.add_column(heading)
    for variable in variables:
        table.add_row(variable.name, str(list(variable.shape)), variable.dtype)
    return table
