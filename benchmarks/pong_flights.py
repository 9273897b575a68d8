"""How balls fly between a snapshot of Pong for two and the cartridge's own player, and who returns which.

    python benchmarks/pong_flights.py RUN [REF] [--steps 2000]

Four games of the game of one player are played side by side, for so many agent steps each. A flight is a ball's way
from one paddle to the other, between the walls. Its slope is rows by columns a step, its speed columns a step, of an
image of 84x84, whatever size the agent sees; both are medians over the flight, so that a bounce in between does not
count. A flight that ends in a point was not returned.
"""

import contextlib
import itertools
import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import click
import numpy as np

from twin_graph import envs
from twin_graph.envs.pong import ALONE
from twin_graph.evaluation.player import Player
from twin_graph.snapshots.run import find

GAMES = 4
SIZE = 84  # in which this file counts
TOP, BOTTOM, LEFT, RIGHT = 16, 75, 12, 71  # of the court between walls and paddles
BALL = 200  # of 250, the sum of the ball's greys above the court's; less is a part of one
LEAST_STEPS = 3  # of a flight
SLOPES = (("flat, below 0.5", 0.0, 0.5), ("0.5 to 1", 0.5, 1.0), ("steep, above 1", 1.0, np.inf))
SPEEDS = (("slow", 0.0, 3.0), ("fast", 3.0, np.inf))


class Flight(NamedTuple):
    """Attributes: by: 1 if the agent, on the right, hit the ball, -1 if the cartridge's player did."""

    by: int
    slope: float
    speed: float
    returned: bool


def ball(image: np.ndarray) -> np.ndarray | None:
    """Row and column of the ball in an image `[H, W]`, as of one of 84x84; None where it is not whole."""
    rows, columns = SIZE / image.shape[0], SIZE / image.shape[1]
    inside = np.s_[math.ceil(TOP / rows) : int(BOTTOM / rows), math.ceil(LEFT / columns) : int(RIGHT / columns)]
    court = image[inside].astype(float)
    grey = (court - np.median(court)).clip(0)
    total = grey.sum()
    if total * rows * columns <= BALL:
        return None
    at = grey.sum(1) @ np.arange(court.shape[0]), grey.sum(0) @ np.arange(court.shape[1])
    place: np.ndarray = np.array(at) / total * (rows, columns)
    return place


def flights(track: Sequence[np.ndarray | None]) -> Iterator[Flight]:
    """Those of a ball's positions until a point; the last one is not returned."""
    found: list[tuple[int, list[np.ndarray]]] = []
    for before, now in itertools.pairwise(track):
        if before is None or now is None:
            continue
        moved = now - before
        by = -int(np.sign(moved[1]))
        if not found or found[-1][0] != by:
            found.append((by, []))
        found[-1][1].append(moved)
    whole = [(by, np.median(np.abs(moves), axis=0)) for by, moves in found if by and len(moves) >= LEAST_STEPS]
    for i, (by, (rows, columns)) in enumerate(whole):
        yield Flight(by, float(rows / columns), float(columns), returned=i < len(whole) - 1)


@click.command()
@click.argument("run")
@click.argument("ref", default="latest")
@click.option("--steps", default=2_000, show_default=True, help="Agent steps of each game.")
def main(run: str, ref: str, steps: int) -> None:
    """Print which flights of RUN's snapshot REF, and of the cartridge's player, are returned."""
    owner = find(run)
    settings = owner.settings.env.model_copy(update={"id": ALONE, "kwargs": {}})
    seen: list[Flight] = []
    with (
        Player(owner, owner.resolve(ref)) as player,
        contextlib.closing(envs.make(settings, count=GAMES, evaluation=True)) as games,
    ):
        tracks: list[list[np.ndarray | None]] = [[] for _ in range(GAMES)]
        s_tm1 = games.reset(np.arange(GAMES))
        for _ in range(steps):
            step = games.step(player.twin.q_values(s_tm1).argmax(axis=1))
            for game in range(GAMES):
                tracks[game].append(ball(step.s_t[game, -1]))
                if step.score_t[game] or step.last_t[game]:
                    seen += flights(tracks[game])
                    tracks[game] = []
            s_tm1 = step.s_next
    print("| hit by | speed | slope | flights | returned |")
    print("|---|---|---|---|---|")
    for who, by in (("the cartridge's player", -1), ("the agent", 1)):
        for speed, slowest, fastest in SPEEDS:
            for slope, least, most in SLOPES:
                those = [f for f in seen if f.by == by and slowest <= f.speed < fastest and least <= f.slope < most]
                if those:
                    share = np.mean([flight.returned for flight in those])
                    print(f"| {who} | {speed} | {slope} | {len(those)} | {share:.0%} |")


if __name__ == "__main__":
    main()
