"""How well a snapshot plays connect four: against fixed players, and move by move against perfect play.

    python benchmarks/connect_four.py RUN [REF] --json FILE

The share of right moves is that of positions in `data/connect-four-positions.json` in which the greedy move has the
value of the best one: a win stays won, a draw is not lost.
"""

import json
from pathlib import Path
from typing import Any

import click
import numpy as np
import pyspiel
from connect_four_positions import POSITIONS

from twin_graph.config.settings import EnvSettings
from twin_graph.envs.open_spiel import Spiel
from twin_graph.evaluation.games import Contender, last, play
from twin_graph.evaluation.player import spec_of
from twin_graph.snapshots.run import find
from twin_graph.twin.twin import Compute, Twin

GAMES = {"random": 1_000, "mcts(100)": 400, "mcts(1000)": 200}
_SEED = 2**31  # no run has it, so that no scheduled evaluation played these games


def right_moves(q_values: Any, positions: list[dict[str, Any]]) -> np.ndarray:
    """Whether the greedy move keeps the exact value, bool `[positions]`."""
    boards = Spiel(EnvSettings(id="OpenSpiel/connect_four"), len(positions))
    every = np.arange(len(positions))
    for board, position in enumerate(positions):
        state = pyspiel.load_game("connect_four").new_initial_state()
        for move in position["moves"]:
            state.apply_action(move)
        boards.set_state(board, state)
    chosen = q_values(boards.observe(every, boards.to_move)).argmax(axis=1)
    values = [[-2 if value is None else value for value in position["values"]] for position in positions]
    return np.array([of[move] == max(of) for of, move in zip(values, chosen, strict=True)])


def by_chance(positions: list[dict[str, Any]]) -> float:
    """The share of right moves of a player that takes any legal one."""
    legal = [[value for value in position["values"] if value is not None] for position in positions]
    return float(np.mean([values.count(max(values)) / len(values) for values in legal]))


def wilson(successes: int, count: int) -> tuple[float, float]:
    """95% interval of a share (Wilson 1927)."""
    z, share = 1.96, successes / count
    middle, spread = share + z**2 / (2 * count), z * np.sqrt(share * (1 - share) / count + z**2 / (4 * count**2))
    return float((middle - spread) / (1 + z**2 / count)), float((middle + spread) / (1 + z**2 / count))


@click.command()
@click.argument("run")
@click.argument("ref", default="latest")
@click.option("--json", "path", type=click.Path(path_type=Path), help="Where to write the figures too.")
def main(run: str, ref: str, path: Path | None) -> None:
    """Measure REF of RUN."""
    found = find(run)
    store, positions = found.store(), json.loads(POSITIONS.read_text())
    snapshot = store.resolve(ref, found.scores)
    measured: dict[str, Any] = {"run": found.name, "snapshot": snapshot.id, **snapshot.counters.model_dump()}
    with Twin("measured", spec_of(found), compute=Compute(threads=1), learns=False) as twin, store.reading():
        twin.restore_snapshot(snapshot, store)
        for against, games in GAMES.items():
            changed = found.settings.evaluate.model_copy(update={"against": against})
            settings = found.settings.model_copy(update={"evaluate": changed})
            returns = last(play(Contender(twin.q_values), settings, episodes=games, at=(_SEED, 0))).returns
            won, drawn = sum(r > 0 for r in returns), sum(r == 0 for r in returns)
            low, high = wilson(won, games)
            measured[against] = {"games": games, "won": won, "drawn": drawn, "interval_95": [low, high]}
            click.echo(f"against {against}: won {won / games:.1%} of {games} ({low:.1%} to {high:.1%}), drew {drawn}")
        right = right_moves(twin.q_values, positions)
    low, high = wilson(int(right.sum()), len(right))
    measured["right_moves"] = {
        "positions": len(right),
        "right": int(right.sum()),
        "interval_95": [low, high],
        "by_chance": by_chance(positions),
    }
    click.echo(
        f"right moves: {right.mean():.1%} of {len(right)} positions ({low:.1%} to {high:.1%}); "
        f"by chance {by_chance(positions):.1%}"
    )
    if path:
        path.write_text(json.dumps(measured, indent=1) + "\n")


if __name__ == "__main__":
    main()
