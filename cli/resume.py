"""`twin-graph resume`."""

import contextlib
from pathlib import Path

import click

from twin_graph import config
from twin_graph.config import trust
from twin_graph.config.no_effect import without_effect
from twin_graph.errors import UsageError
from twin_graph.records.report import restored
from twin_graph.remote import owners
from twin_graph.remote.urls import is_url
from twin_graph.snapshots.resumable import newest_point
from twin_graph.snapshots.run import find

from .params import PATH, Count, json_option, overrides_of, run_argument, say, set_option, trust_option, verbose_option
from .remote import background, check_opponents, continued_here, league, remote_of, taken_over
from .train import (
    cluster_options,
    described_cluster,
    elsewhere_of,
    opponent_option,
    remote_option,
    show_training,
    starting_up,
)


@click.command()
@run_argument
@click.option("--steps", type=Count(min=1), help="Total length in agent steps.  [default: as before]")
@click.option("--run-dir", type=PATH, help="With a URL, folder of the run.  [default: checkpoints/NAME]")
@remote_option
@click.option("--no-remote", is_flag=True, help="From now on, send this run nowhere.")
@opponent_option
@click.option("--no-opponents", is_flag=True, help="From now on, fetch no opponents for this run.")
@click.option("--take-over", is_flag=True, help="Replace what another copy of RUN has sent to the remote.")
@cluster_options
@set_option
@verbose_option
@trust_option
@json_option
def resume(
    run: str,
    steps: int | None,
    run_dir: Path | None,
    remote: str | None,
    no_remote: bool,
    opponents: tuple[str, ...],
    no_opponents: bool,
    take_over: bool,
    cluster: Path | None,
    insecure_network: bool,
    assignments: tuple[str, ...],
    verbose: bool,
    as_json: bool,
) -> None:
    """Continue RUN, or the run at a URL, from its newest resume point.

    Weights, optimizer, replay, counters, random streams, target and manual swaps are restored: a run that was killed
    ends with the same weights as an uninterrupted one. Settings may change, except those that the stored weights and
    replay depend on.

    A run at a URL (`push`, `train --remote`) is fetched and continued here, where it then belongs: a machine that still
    trains it stops when it sends its next resume point.

    \b
    Examples:
      twin-graph resume pong-seed1-1
      twin-graph resume pong-seed1-1 --steps 1000000 --set target.policy='lag(5000)'
      twin-graph resume s3://our-bucket/pong
    """
    if run_dir and not is_url(run):
        raise UsageError("--run-dir is for a run at a URL; `fork` makes a run in another folder")
    if remote and (no_remote or is_url(run)):
        raise UsageError("--remote URL is for a run in a folder, and without --no-remote")
    if opponents and no_opponents:
        raise UsageError("give --opponent or --no-opponents, not both")
    found = continued_here(run, run_dir) if is_url(run) else find(run)
    described = described_cluster(cluster, insecure_network)
    if described and described.run.resolve() != found.folder.resolve():
        raise UsageError(f"{cluster} describes {described.run}, not {found.folder}")
    overrides = overrides_of(assignments, {"train.steps": steps})
    settings = config.change(found.settings, overrides)
    if any(key == "log.to" for key, _ in overrides):
        trust.claim(found.id)
    if described and described.workers != settings.workers.count:
        raise UsageError(
            f"{cluster} has {described.workers} workers, and {found.folder} is trained by "
            f"{settings.workers.count or 'none'}: change one of them (--set workers.count=N)"
        )

    if opponents:
        check_opponents(settings, opponents)
    if is_url(run):
        trust.check_all(settings, found.folder)
        found = taken_over(found, run)
    with found.lock("resume"), contextlib.ExitStack() as open_:
        with starting_up("the run resumed; nothing was changed"):
            from twin_graph.training import readiness

            point, damage = newest_point(found)
            for reason in damage:
                say(f"skipped: {reason}")
            elsewhere = elsewhere_of(described)
            begun = open_.enter_context(readiness.ready(settings, found.folder, (found, point), elsewhere=elsewhere))
        changes = list(config.differences(found.trained_settings, settings))
        open_.enter_context(found.trying(settings))
        say(f"{found.folder}: resume point {point.number} of {point.time[:19].replace('T', ' ')} UTC")
        for line in restored(found, point):
            say(f"  {line}")
        for key, before, after in changes:
            say(f"  changed: {key} from {before} to {after}")
        for notice in begun.notices:
            say(notice)
        for sentence in without_effect(settings, (key for key, _ in overrides)):
            say(sentence)
        if settings.workers.count:
            left, first = settings.total_steps - point.counters.agent_steps, settings.first_update_steps
            more = f"; with {left:,} left, probably nothing is learned" if left < first else ""
            say(f"the next update is due after about {first:,} agent steps{more}")
        url = remote_of(found, remote, stops=no_remote)
        sends = background(found, url, take_over=take_over) if url else None
        if no_opponents:
            owners.keep_opponents(found, ())
        others = league(found, settings, opponents)
        show_training(
            found, begun.env, point, cluster=described, remote=sends, others=others, as_json=as_json, verbose=verbose
        )
