"""`twin-graph record`."""

import os
from pathlib import Path

import click

from twin_graph.base.here import absolute, shortened
from twin_graph.evaluation import film
from twin_graph.snapshots.files import make_folder
from twin_graph.snapshots.ledger import Commit
from twin_graph.snapshots.run import Run, find, locate

from .display import Meter
from .params import (
    ANY_REF_HELP,
    PATH,
    Count,
    Number,
    json_option,
    print_json,
    ref_argument,
    run_argument,
    say,
    stdout,
    trust_option,
)

#: Scale and pictures per second.
_SIZES = {".mp4": (1.5, 60), ".gif": (1.0, 20)}


@click.command(epilog=ANY_REF_HELP)
@run_argument
@ref_argument(default="latest")
@click.option("--episodes", type=Count(min=1), default=1, show_default=True, help="Games to film.")
@click.option("--seed", type=click.IntRange(0, 2**31 - 1), default=0, show_default=True, help="Seed of the games.")
@click.option("-o", "--output", type=PATH, help="File to write, .mp4 or .gif.  [default: RUN/videos/SNAPSHOT.mp4]")
@click.option("--speed", type=Number(0.01, 100), default=1.0, show_default=True, help="2 is twice as fast.")
@click.option(
    "--scale",
    type=Number(0.5, 4),
    help=f"Size of the picture; 1 is {film.HEIGHT} pixels high.  [default: 1.5; 1 for a GIF]",
)
@click.option("--seconds", type=Number(min=0, min_open=True), help="End the film after this long.")
@trust_option
@json_option
def record(
    run: str,
    ref: str,
    episodes: int,
    seed: int,
    output: Path | None,
    speed: float,
    scale: float | None,
    seconds: float | None,
    as_json: bool,
) -> None:
    """Film snapshot REF of RUN while it plays, with what the network thinks.

    Next to the game, the film shows the Q value of each action, the action taken, the value over time, and the
    score. The first game is the one that `twin-graph evaluate RUN REF --episodes 1` plays with the same --seed.
    Needs an extra: pip install 'twin-graph[video]'. `twin-graph view` shows films in RUN/videos. Without -o, the
    film of a run that you may only read is RUN-SNAPSHOT.mp4 in the current folder.

    \b
    Examples:
      twin-graph record pong-seed1-1 best
      twin-graph record pong-seed1-1 best --seconds 20 -o pong.gif
      twin-graph record cartpole-seed1-1 latest --episodes 3 --speed 2 --scale 2
    """
    owner, snapshot = locate(find(run), ref)
    path = output or _usual_path(owner, snapshot)
    if path.absolute().parent == owner.videos.absolute():
        make_folder(owner.videos)
    film.check_path(path)
    usual, per_second = _SIZES[path.suffix.lower()]
    owner.store().prefix(snapshot.id)

    from twin_graph.evaluation.player import Player

    with (
        film.Film(
            path,
            (owner.name, snapshot.id),
            games=episodes,
            speed=speed,
            scale=scale or usual,
            per_second=per_second,
            seconds=seconds,
        ) as made,
        Player(owner, snapshot) as player,
        Meter() as meter,
    ):
        meter.show(f"games of {snapshot.id}", 0, episodes)
        for evaluation in player.play(episodes=episodes, seed=seed, at_once=1, watch=made.watch):
            meter.show(f"games of {snapshot.id}", len(evaluation.returns), episodes)
            if made.full:
                break
        made.finish()
    if as_json:
        scored = {"scores": made.scores, "score_so_far": made.score}
        print_json({"film": shortened(str(path)), "snapshot": snapshot.id, **scored})
        return
    stdout.print(shortened(str(path)))
    scores = ", ".join(f"{score:zg}" for score in made.scores)
    say(f"score: {scores}" if scores else f"score so far: {made.score:zg}")


def _usual_path(run: Run, snapshot: Commit) -> Path:
    """Where the page of `view` looks for films; if nothing can be written there, the folder of the command."""
    if os.access(run.folder, os.W_OK):
        return run.videos / f"{snapshot.id}.mp4"
    return absolute(Path(f"{run.name}-{snapshot.id}.mp4"))
