"""The analysis of studies/opponents.toml, which has what was named before the runs: ratings and forgetting.

    python studies/opponents.py [TABLES] [--plot PICTURE]
    python studies/opponents.py [TABLES] --play EXPERIMENT

TABLES is the folder of the experiment's tables, `studies/results/opponents` unless given; the records of games are in
it, `games.jsonl`. With --play they are made first, from the snapshots in the folder EXPERIMENT; a command that was
interrupted continues where it stopped. Everybody plays 40 games against everybody: the last snapshot of each run, a
random player and OpenSpiel's tree search with 100 simulations. (In the recorded games these two did not meet.) The last
snapshot of each run also plays 40 games against each of seven snapshots of its own past.
"""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

import click
import numpy as np
from rich.progress import track

from twin_graph.base.text import counted
from twin_graph.evaluation import tournament
from twin_graph.evaluation.tournament import Contestant, Pairing
from twin_graph.experiments import figures, statistics, tables
from twin_graph.snapshots.run import Run, folders_of_runs

GAMES = "games.jsonl"
RULES = tournament.Rules(games=40, opening_moves=2, epsilon=0.0, seed=0)
FIXED = ["random", "mcts(100)"]
PAST = 7


def play(experiment: Path) -> Iterator[dict[str, Any]]:
    """Plays all games that are not recorded with the runs in the folder yet; yields a record of each pair."""
    runs = [Run(folder) for folder in folders_of_runs(experiment)]
    last = tournament.contestants(runs, 1, FIXED)
    yield from played(runs, last, progress=True)
    for run in track(runs, "forgetting"):
        *past, newest = tournament.contestants([run], PAST + 1, [])
        for earlier in past:
            yield from played([run], [newest, earlier])


def played(runs: Sequence[Run], who: Sequence[Contestant], *, progress: bool = False) -> Iterator[dict[str, Any]]:
    """The games of these alone, whatever else was played with the runs."""
    names = {one.key: one.name for one in who}
    steps, pairs = tournament.play(runs, who, RULES), len(who) * (len(who) - 1) // 2
    *_, (_, _, done) = track(steps, "ratings", total=pairs + 1) if progress else steps
    for pairing in done:
        keys = [pairing.first, pairing.second]
        yield {"players": [names[key] for key in keys], "keys": keys, "returns": pairing.returns}


def read(path: Path) -> list[Pairing]:
    """The games of each two, by their names: snapshots of equal weights, as the first ones are, are several players."""
    records = [json.loads(line) for line in path.read_text().splitlines()]
    return [Pairing(record["players"][0], record["players"][1], record["returns"]) for record in records]


def run_of(player: str) -> str:
    """The run whose snapshot a player is; empty for one that never learns."""
    return player.rpartition(":")[0]


def compared(numbers: dict[str, np.ndarray]) -> Iterator[tuple[str, str, str]]:
    """For each condition its mean, the difference from the first in pairs of equal seeds, and that difference's p."""
    first, *others = numbers.values()
    corrected = statistics.holm([statistics.p_of(of - first) for of in others])
    yield statistics.mean(first).words(".0f"), "", ""
    for of, p in zip(others, corrected, strict=True):
        yield statistics.mean(of).words(".0f"), statistics.mean(of - first).words("+.0f"), f"{p:.2g}"


def table(conditions: Mapping[str, Sequence[str]], own: Sequence[Pairing], joint: Sequence[Pairing]) -> list[str]:
    """Its lines, of the runs of each condition, their games against their own past, and those of the tournament."""
    who = players(joint)
    elo = {run_of(one.name): rating.elo for one, rating in zip(who, tournament.rate(who, joint), strict=True)}
    compare = compared({name: np.array([[elo[run]] for run in runs]) for name, runs in conditions.items()})
    lines = [
        "| opponent | Elo (95%) | difference in pairs | p | points against `random` | against `mcts(100)` | against "
        "its own past | past selves that take more than half |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for (name, runs), cells in zip(conditions.items(), compare, strict=True):
        past = [pairing.score for pairing in own if run_of(pairing.first) in runs]
        shares = [points(joint, runs, [fixed]) for fixed in FIXED] + [np.mean(past)]
        lost = f"{sum(score < 0.5 for score in past)} of {len(past)}"
        lines.append(f"| {' | '.join([f'`{name}`', *cells, *(f'{share:.0%}' for share in shares), lost])} |")
    met = {frozenset(pairing[:2]) for pairing in joint}
    names = [one.name for one in who]
    triples = sum({*map(frozenset, combinations(three, 2))} <= met for three in combinations(names, 3))
    found, learnt = tournament.cycles(who, joint), [one for one in joint if run_of(one.first) and run_of(one.second)]
    return [
        *lines,
        "",
        f"{counted(len(found), 'cycle')} among {triples:,} triples of {len(who)} players.",
        f"{len(tournament.beats(learnt))} of {len(learnt)} pairs of trained agents differ by the test used for cycles.",
    ]


def players(pairings: Sequence[Pairing]) -> list[Contestant]:
    """Who plays, each once."""
    return [Contestant(name, name) for name in dict.fromkeys(name for pairing in pairings for name in pairing[:2])]


def points(joint: Sequence[Pairing], ours: Sequence[str], theirs: Sequence[str]) -> float:
    """The share of points of these runs, or players that never learn, against those; NaN if they have not met."""
    sides = [(run_of(pairing.first) or pairing.first, run_of(pairing.second) or pairing.second) for pairing in joint]
    found = [pairing.score for (a, b), pairing in zip(sides, joint, strict=True) if a in ours and b in theirs]
    found += [1 - pairing.score for (a, b), pairing in zip(sides, joint, strict=True) if b in ours and a in theirs]
    return float(np.mean(found)) if found else math.nan


@click.command()
@click.argument(
    "folder",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    default=Path(__file__).parent / "results" / "opponents",
)
@click.option("--play", "experiment", type=click.Path(path_type=Path, exists=True, file_okay=False))
@click.option("--plot", type=click.Path(path_type=Path))
def main(folder: Path, experiment: Path | None, plot: Path | None) -> None:
    """Print the ratings of an experiment's last snapshots; play for them first, if asked to."""
    if experiment:
        (folder / GAMES).write_text("".join(f"{json.dumps(record)}\n" for record in play(experiment)))
    plan, _, _ = tables.read(folder)
    conditions = {name: [run.name for run in plan.runs if run.condition == name] for name in plan.conditions}
    own: list[Pairing] = []
    joint: list[Pairing] = []
    for pairing in read(folder / GAMES):
        run = run_of(pairing.first)
        (own if run and run == run_of(pairing.second) else joint).append(pairing)
    print(*table(conditions, own, joint), sep="\n")
    if plot:
        ours = {f"trained against {name}": runs for name, runs in conditions.items()}
        theirs = ours | {f"the player {name}": [name] for name in FIXED}
        shares = np.array([[points(joint, runs, others) for others in theirs.values()] for runs in ours.values()])
        np.fill_diagonal(shares, math.nan)
        label = "share of points of the row against the column"
        figures.heat_map(shares, list(ours), list(theirs), label).savefig(plot, dpi=200)


if __name__ == "__main__":
    main()
