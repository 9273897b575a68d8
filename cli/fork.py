"""`twin-graph fork` and `twin-graph point`. Neither imports TensorFlow, except to move a weight."""

from pathlib import Path
from typing import Any

import click

from twin_graph import config, targets
from twin_graph.base.text import command, counted, some_of
from twin_graph.config import trust
from twin_graph.config.no_effect import without_effect
from twin_graph.errors import UsageError
from twin_graph.snapshots import control, swaps
from twin_graph.snapshots import fork as forks
from twin_graph.snapshots.fork import settings_from
from twin_graph.snapshots.points import PointState
from twin_graph.snapshots.resumable import newest_point, point_at
from twin_graph.snapshots.run import Run, find, make_in

from .params import PATH, json_option, print_json, run_argument, say, set_option
from .swap import tell


@click.command()
@run_argument
@click.option(
    "--at",
    "at",
    metavar="POINT",
    help="Number of a resume point, or @update:N for the newest up to update N.  [default: the newest]",
)
@click.option("--seed", type=int, help="Another seed from there on.  [default: the same]")
@click.option(
    "--run-dir",
    type=PATH,
    help="Folder of the new run, which must not exist yet.  [default: checkpoints/RUN-forkN]",
)
@click.option(
    "--nudge", is_flag=True, help="Move one weight by one unit in the last place, to see how far that spreads."
)
@set_option
@json_option
def fork(
    run: str,
    at: str | None,
    seed: int | None,
    run_dir: Path | None,
    nudge: bool,
    assignments: tuple[str, ...],
    as_json: bool,
) -> None:
    """Start a new run from a resume point of RUN.

    The new run has RUN's weights, optimizer, replay, counters and snapshots as they were then. With nothing changed it
    continues just as RUN does, bit for bit; --seed and --set give it a different future. RUN may be training meanwhile,
    and may be deleted afterwards: files are shared where the disk can share them, and otherwise copied.

    \b
    Examples:
      twin-graph fork pong-seed1-1 --seed 2
      twin-graph fork pong-seed1-1 --at @update:175000 --set target.policy='lag(5000)' --run-dir checkpoints/what-if
    """
    parent = find(run)
    overrides = [config.parse_assignment(text) for text in assignments]
    if given := [value for key, value in overrides if key == "seed"]:
        raise UsageError(f"--set seed={given[0]}: give a fork another seed with --seed {given[0]}")
    with parent.points().reading():
        if at is None:
            point, damage = newest_point(parent)
            for reason in damage:
                say(f"skipped: {reason}")
        else:
            point = point_at(parent, at)
        before = settings_from(parent, point)
        settings = config.change(before, overrides, seed=seed)
        if not trust.untrusted(settings):  # else `resume` looks, and asks first
            targets.check_present(settings, parent.store(), point.counters.updates)
        change: forks.Change | None = None
        if nudge:
            from twin_graph.analysis import nudge as nudging

            change = nudging.nudge
        made = make_in(
            run_dir, f"{parent.name}-fork", lambda folder: forks.fork(parent, point, folder, settings, change)
        )
    if any(key == "log.to" for key, _ in overrides):
        trust.claim(made.id)
    changes = list(config.differences(before, settings))
    if as_json:
        changed = {key: after for key, _, after in changes}
        print_json({"run": str(made.folder), "forked_from": made.description["forked_from"], "changed": changed})
    _tell(made, parent, point, changes)
    for sentence in without_effect(settings, (key for key, _ in overrides)):
        say(sentence)
    _tell_of_holds(made, point)
    more = ("--steps", "N") if point.counters.agent_steps >= settings.train.steps else ()
    say(f"continue with: {command('resume', made.folder, *more)}")


def _tell(made: Run, parent: Run, point: PointState, changes: list[tuple[str, Any, Any]]) -> None:
    """What the fork has of its parent, and what it has not."""
    counters = point.counters
    made_by_then = f"{counted(counters.updates, 'update')} and {counted(counters.agent_steps, 'agent step')}"
    say(f"{made.folder}: the past of {parent.name} up to resume point {point.number}, {made_by_then}")
    if moved := made.description["forked_from"]["moved"]:
        say(f"  moved: {moved}")
    for key, was, now in changes:
        say(f"  changed: {key} from {was} to {now}")
    left = [one.id for one in made.store().snapshots if not made.store().has_weights(one.id)]
    if damaged := [i for i in left if parent.store().has_weights(i)]:
        say(f"  left behind, since they are damaged: the weights of {some_of(damaged)}")


def _tell_of_holds(made: Run, point: PointState) -> None:
    for learner in point.learners:
        of, on = (f" of {learner.name}", f" on {learner.name}") if len(point.learners) > 1 else ("", "")
        for role in (role for role, holder in learner.roles.items() if holder.held):
            end = control.swap_command(made.folder, "latest", into=role, learner=learner.name)
            say(f"the {role}{of} is held by hand: {role}.policy has no effect{on} until the hold ends, as by {end}")


@click.command()
@run_argument
@json_option
def point(run: str, as_json: bool) -> None:
    """Make a resume point of RUN now, while it trains. This restarts all of its episodes.

    \b
    Example:
      twin-graph point pong-seed1-1
      twin-graph fork pong-seed1-1 --seed 2
    """
    found = find(run)
    if found.state() != "running":
        newest = found.points().newest()
        there = (
            f"its newest resume point is {newest.number}, after {counted(newest.counters.updates, 'update')}"
            if newest
            else "it has no resume point"
        )
        raise UsageError(f"{found.folder} is not training; {there}")
    request = control.ask(found.control, "point")
    tell(request, swaps.answered(found, request, "the point will be made when the run continues"), as_json)
