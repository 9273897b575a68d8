"""What the greedy policy of a snapshot gets, at worst, against any opponent: the exact best response, from both seats.

    python benchmarks/best_response.py RUN... [--json FILE]

Every reply that an opponent could make is followed to the end of the game, so the game has to be small, as tic-tac-toe
is. A policy that never loses has a worst return of 0 or more from either seat.
"""

import json
from pathlib import Path
from typing import Any

import click
import numpy as np

from twin_graph.envs.open_spiel import Spiel
from twin_graph.evaluation.player import spec_of
from twin_graph.snapshots.run import Run, find
from twin_graph.twin.twin import Twin


def worst_returns(run: Run, reference: str = "latest") -> tuple[float, float]:
    """The worst return of the policy as the first player and as the second, whatever the opponent does."""
    store = run.store()
    spec = spec_of(run)
    boards = Spiel(run.settings.env, 1)
    with Twin("best response", spec, learns=False) as twin, store.reading():
        twin.restore_snapshot(store.resolve(reference, run.scores), store)
        actions: dict[tuple[int, str], int] = {}

        def choose(seat: int, state: Any) -> int:
            key = seat, str(state)
            if key not in actions:
                boards.set_state(0, state)
                q = twin.q_values(boards.observe(np.array([0]), np.array([seat])))
                actions[key] = int(q.argmax())
            return actions[key]

        def worst(seat: int, state: Any) -> float:
            if state.is_terminal():
                return float(state.returns()[seat])
            if state.current_player() == seat:
                return worst(seat, state.child(choose(seat, state)))
            return min(worst(seat, state.child(action)) for action in state.legal_actions())

        return worst(0, boards.new_state()), worst(1, boards.new_state())


@click.command()
@click.argument("runs", nargs=-1, required=True)
@click.option("--ref", default="latest", show_default=True, help="Which snapshot of each run.")
@click.option("--json", "path", type=click.Path(path_type=Path), help="Write the figures here, too.")
def main(runs: tuple[str, ...], ref: str, path: Path | None) -> None:
    """Print the worst returns of a snapshot of each run, as the first player and as the second."""
    measured = []
    for name in runs:
        run = find(name)
        store = run.store()
        with store.reading():
            snapshot = store.resolve(ref, run.scores).snapshot
        first, second = worst_returns(run, ref)
        click.echo(f"{name} {snapshot}: {first:+g} as the first player, {second:+g} as the second, at worst")
        measured.append(
            {"run": name, "seed": run.settings.seed, "snapshot": snapshot, "as_first": first, "as_second": second}
        )
    if path:
        path.write_text(json.dumps(measured, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
