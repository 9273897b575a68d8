"""What the greedy policy of a snapshot gets, at worst, against any opponent: the exact best response, from both seats.

    python benchmarks/best_response.py RUN [REF]

Every answer that an opponent could give is followed to the end of the game, so the game has to be small, as tic-tac-toe
is. A policy that never loses has a worst return of 0 or more from either seat.
"""

import json
from typing import Any

import click
import numpy as np

from twin_graph.envs.open_spiel import Spiel
from twin_graph.exchange import spec_of
from twin_graph.snapshots.run import Run, find
from twin_graph.twin import Twin


def worst_returns(run: Run, reference: str = "latest") -> tuple[float, float]:
    """The least that the policy gets as the first player, and as the second, whatever the opponent does."""
    store = run.store()
    spec = spec_of(run)
    boards = Spiel(run.settings.env, 1)
    with Twin("best response", spec) as twin, store.reading():
        twin.restore_snapshot(store.resolve(reference, run.scores()), store)
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
@click.argument("run")
@click.argument("ref", default="latest")
def main(run: str, ref: str) -> None:
    """Print the worst returns of REF from both seats as JSON."""
    first, second = worst_returns(find(run), ref)
    click.echo(json.dumps({"first": first, "second": second}))


if __name__ == "__main__":
    main()
