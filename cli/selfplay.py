"""`twin-graph tournament` and `twin-graph play`: games of two players."""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import numpy as np

from twin_graph.base import new_files
from twin_graph.errors import UsageError
from twin_graph.snapshots.run import find, locate

from .display import Meter
from .params import (
    ANY_REF_HELP,
    PATH,
    Count,
    Number,
    complete_run,
    echo,
    extra_is_missing,
    json_option,
    print_json,
    ref_argument,
    run_argument,
    say,
    trust_option,
)
from .tables import print_table, print_text

if TYPE_CHECKING:  # needs the extra `selfplay`
    from twin_graph.evaluation.tournament import Contestant, Rating


@click.command()
@click.argument("runs", nargs=-1, required=True, metavar="RUN...", shell_complete=complete_run)
@click.option(
    "--snapshots",
    type=Count(min=1),
    default=8,
    show_default=True,
    help="How many snapshots of each run take part.",
)
@click.option(
    "--against", default="random", show_default=True, help="Fixed players that take part too, e.g. 'random mcts(100)'."
)
@click.option(
    "--games",
    type=Count(min=2),
    default=40,
    show_default=True,
    help="Games of each pair, half of them from each seat.",
)
@click.option(
    "--opening",
    type=Count(min=0),
    default=2,
    show_default=True,
    help="Random moves at the start. A game that they end counts as much for one side as for the other.",
)
@click.option(
    "--epsilon", type=Number(0, 1), default=0.0, show_default=True, help="Share of snapshots' moves that are random."
)
@click.option("--seed", type=click.IntRange(0, 2**31 - 1), default=0, show_default=True, help="Seed of the games.")
@click.option("--plot", type=PATH, help="Also draw who beat whom, to this PNG, SVG or PDF file.")
@trust_option
@json_option
def tournament(
    runs: tuple[str, ...],
    snapshots: int,
    against: str,
    games: int,
    opening: int,
    epsilon: float,
    seed: int,
    plot: Path | None,
    as_json: bool,
) -> None:
    """Let snapshots of RUN... play each other, and rate them.

    Every player meets every other, each opening from both seats. Games are recorded with the runs as they are played:
    an interrupted tournament continues, and one with more snapshots plays only the new games. Ratings are Elo from the
    Bradley-Terry model, with 95% bootstrap intervals, which are too narrow for few openings and near-sweeps.

    \b
    Examples:
      twin-graph tournament tictactoe-seed1-1
      twin-graph tournament connect-four-seed1-1 connect-four-seed2-1 --against 'random mcts(1000)' --plot ratings.png
    """
    found = [find(run) for run in runs]
    if games % 2:
        raise UsageError(f"--games {games} is odd: each opening is played from both seats")

    try:
        from twin_graph.evaluation import tournament as tournaments
    except ImportError as error:
        raise extra_is_missing("a tournament", "selfplay", error) from None
    new_files.check_picture(plot)
    who = tournaments.contestants(found, snapshots, names_of(against))
    rules = tournaments.Rules(games, opening, epsilon, seed)
    with Meter() as meter:
        for done, total, pairings in tournaments.play(found, who, rules):  # noqa: B007
            meter.show("pairs of players", done, total)
    ratings = tournaments.rate(who, pairings)
    document = tournaments.record_ratings(found, who, ratings, rules)
    shares = tournaments.shares(who, pairings)
    circles, groups = tournaments.cycles(who, pairings), tournaments.groups(who, shares)
    if as_json:
        print_json({**document, "cycles": circles, "groups": groups})
    else:
        points = np.nanmean(shares, axis=1)
        _show(document, {one.key: float(share) for one, share in zip(who, points, strict=True)}, circles, groups)
    if plot:
        _draw(who, shares, ratings, plot)
        say(f"picture: {plot}")


def names_of(players: str) -> list[str]:
    """Names between which there are commas or spaces; those in parentheses belong to a name."""
    return re.findall(r"[^\s,(]+(?:\s*\([^)]*\)?)?", players)


def _draw(who: Sequence[Contestant], shares: np.ndarray, ratings: Sequence[Rating], path: Path) -> None:
    """Writes a picture: each row's share of points against each column, the strongest first."""
    from twin_graph.experiments import figures, fonts

    order = sorted(range(len(who)), key=lambda i: -ratings[i].elo)
    several = len({one.run.folder for one in who if one.run}) > 1
    names = [who[i].short(with_run=several) for i in order]
    labels = [f"{name}  {ratings[i].elo:z.0f}" for name, i in zip(names, order, strict=True)]
    label = "share of points of the row against the column"
    fonts.save(figures.heat_map(shares[np.ix_(order, order)], labels, names, label), path, dpi=200)
    for sentence in fonts.without_font(names):
        say(sentence)


def _show(
    document: Mapping[str, Any],
    shares: Mapping[str, float],
    circles: Sequence[tuple[str, str, str]],
    groups: Sequence[Sequence[str]],
) -> None:
    rows = []
    for one in document["players"]:
        interval = "-" if math.isnan(one["low"]) else f"{one['low']:z.0f} to {one['high']:z.0f}"
        rows.append([one["name"], f"{one['elo']:z.0f}", interval, f"{shares[one['key']]:.1%}"])
    print_table(("player", "Elo", "95% interval", "points"), rows)
    for a, b, c in circles[:_SHOWN]:
        print_text(f"cycle: {a} beats {b}, which beats {c}, which beats the first")
    if len(circles) > _SHOWN:
        print_text(f"and {len(circles) - _SHOWN} more cycles; --json has all of them")
    if len(groups) > 1:
        print_text(
            "Elo ranks these groups but cannot say how far apart they are, since one side won every game: "
            + " | ".join(", ".join(group) for group in groups)
        )


_SHOWN = 5
_HELP = "type a move or its number; ? for Q values, q to give up"


@click.command(epilog=ANY_REF_HELP)
@run_argument
@ref_argument(default="latest")
@click.option("--second", is_flag=True, help="Let the snapshot move first.")
@trust_option
def play(run: str, ref: str, second: bool) -> None:
    """Play a game against snapshot REF of RUN in the terminal.

    Type a move as it is shown, or its number.

    \b
    Example:
      twin-graph play connect-four-seed1-1 best
    """
    owner, snapshot = locate(find(run), ref)

    from twin_graph.envs.seats import NOBODY, boards_of
    from twin_graph.evaluation.player import Player

    board, mine, gained = np.array([0]), int(second), np.zeros(2)
    with (
        contextlib.closing(boards_of(owner.settings.env, 1)) as boards,
        Player(owner, snapshot) as player,
    ):
        boards.begin(0, np.random.default_rng())  # nothing is random in games that can be shown
        boards.show(0)
        while (seat := int(boards.to_move[0])) != NOBODY:
            observation = boards.observe(board, np.array([seat]))
            q = player.twin.q_values(observation)[0]
            shown, names = boards.show(0)
            if seat == mine:
                echo(f"\n{shown}\n")
                wanted = _ask(names, {action: float(q[action]) for action in names})
                if wanted is None:
                    echo(f"you give up; {snapshot.id} wins")
                    return
                action = wanted
            else:
                action = int(q.argmax())
                echo(f"\n{snapshot.id} plays {names[action]}")
            gained += boards.move(board, np.array([action]))[0]
        echo(f"\n{boards.show(0)[0]}\n")
    outcome = "you win" if gained[mine] > 0 else f"{snapshot.id} wins" if gained[mine] < 0 else "a draw"
    echo(outcome)


def _ask(names: dict[int, str], q: dict[int, float]) -> int | None:
    """A person's move, or None to give up; `names` are the legal moves, `q` what the snapshot would expect of each."""
    moves = {name: action for action, name in names.items()} | {str(action): action for action in names}
    listed = "  ".join(f"{action}: {name}" for action, name in names.items())
    echo(f"moves: {listed}")
    while True:
        try:
            given = click.prompt(f"your move ({_HELP})", prompt_suffix="\n> ").strip()
        except click.Abort:  # Ctrl-C, or the end of what is read
            echo()
            return None
        if given in moves:
            return moves[given]
        if given == "?":
            for action in sorted(q, key=lambda action: -q[action]):
                echo(f"  {names[action]:<10} {q[action]:+z.3f}")
        elif given in ("q", "quit", "exit"):
            return None
        else:
            echo(f"{given!r} is not a legal move: {listed}")
