"""Makes the positions by which `connect_four.py` judges moves: random ones, with the exact value of each move.

    pip install bitbully && python benchmarks/connect_four_positions.py

bitbully (AGPL) solves them; neither the package nor the benchmark that reads the set needs it. A position is in the set
only if its moves differ in value, so that there is something to get wrong.
"""

import json
from pathlib import Path

import click
import numpy as np

POSITIONS = Path(__file__).parent / "data" / "connect-four-positions.json"
_COUNT, _SEED, _MOVES = 1_000, 1, range(2, 35)


@click.command()
def main() -> None:
    """Write the set."""
    import bitbully

    solver, random = bitbully.BitBully(), np.random.default_rng(_SEED)
    found: dict[tuple[int, ...], list[int | None]] = {}
    while len(found) < _COUNT:
        board, moves = bitbully.Board(), []
        for _ in range(int(random.choice(_MOVES))):
            legal = board.legal_moves()
            if board.is_game_over() or not legal:
                break
            moves.append(int(random.choice(legal)))
            board.play(moves[-1])
        if board.is_game_over() or tuple(moves) in found:
            continue
        scores = solver.score_all_moves(board)
        values = [int(np.sign(scores[column])) if column in scores else None for column in range(7)]
        if len({value for value in values if value is not None}) > 1:
            found[tuple(moves)] = values
    POSITIONS.parent.mkdir(exist_ok=True)
    lines = [json.dumps({"moves": moves, "values": values}) for moves, values in found.items()]
    POSITIONS.write_text("[\n" + ",\n".join(lines) + "\n]\n")


if __name__ == "__main__":
    main()
