r"""What the Blob network learns from exact values, without bootstrap, replay or exploration.

    python benchmarks/blob_taught.py [--updates 2000] [--set loss=huber] [--set train.gradient_clip_norm=null]

Each update is on 64 new boards with an action each, and the target is what that action is worth: 25 for the food, -300
for the enemy, else -1 and the discounted value of the shortest way to the food, the enemy left aside. `right` is the
share of 500 boards on which the greedy action is a best one.
"""

import click
import numpy as np

from twin_graph import config
from twin_graph.envs import EnvSpec, blob
from twin_graph.twin.model import ModelSpec
from twin_graph.twin.twin import Compute, Twin

EVERY = 250
Squares = tuple[np.ndarray, np.ndarray, np.ndarray]


@click.command()
@click.option("--updates", default=2000, show_default=True)
@click.option(
    "--set", "assignments", multiple=True, metavar="KEY=VALUE", help="Change a setting of the preset; repeatable."
)
def main(updates: int, assignments: tuple[str, ...]) -> None:
    """Prints a line each 250 updates."""
    settings = config.load("blob", [config.parse_assignment(text) for text in assignments])
    actions, size = len(blob.MOVES), settings.train.batch_size
    spec = ModelSpec.of(settings, EnvSpec((blob.SIZE, blob.SIZE, 3), actions, "uint8"))
    random = np.random.default_rng(0)
    test = draw(random, 500)
    values = np.stack([value(test, np.full(500, a), settings.train.discount) for a in range(actions)], axis=1)
    best = np.isclose(values, values.max(axis=1, keepdims=True))
    print(f"{' '.join(assignments) or 'as the preset'}; by chance {best.mean():.3f} would be right")
    with Twin("online", spec, seed=1, compute=Compute(threads=2)) as twin:
        model = twin.model
        for update in range(updates + 1):
            if update % EVERY == 0:
                right = best[np.arange(500), twin.q_values(boards(test)).argmax(axis=1)]
                print(f"{update} updates: right {right.mean():.3f}", flush=True)
            squares, a = draw(random, size), random.integers(0, actions, size)
            feed = {
                model.s_tm1: boards(squares),
                model.a_tm1: a,
                model.r_t: value(squares, a, settings.train.discount),
                model.discount_t: np.zeros(size),
                model.q_target_t: np.zeros((size, actions)),
                model.dropout_seed: (1, update),
            }
            twin.run(model.train_op, feed)


def draw(random: np.random.Generator, boards: int) -> Squares:
    """Where player, food and enemy are, each `[boards, 2]`."""
    squares = np.array([random.permutation(blob.SIZE**2)[:3] for _ in range(boards)])
    player, food, enemy = (np.stack(divmod(squares[:, i], blob.SIZE), axis=1) for i in range(3))
    return player, food, enemy


def boards(squares: Squares) -> np.ndarray:
    """What the environment would show, uint8 `[boards, 10, 10, 3]`."""
    player, food, enemy = squares
    rows = np.arange(len(player))
    images = np.zeros((len(player), blob.SIZE, blob.SIZE, 3), np.uint8)
    for at, colour in ((food, blob._FOOD), (enemy, blob._ENEMY), (player, blob._PLAYER)):
        images[rows, at[:, 0], at[:, 1]] = colour
    return images


def value(squares: Squares, a: np.ndarray, discount: float) -> np.ndarray:
    """What actions `[boards]` are worth, float32 `[boards]`."""
    player, food, enemy = squares
    at = np.clip(player + blob.MOVES[a], 0, blob.SIZE - 1)
    left = discount ** (abs(at - food).max(axis=1) - 1.0)
    way = left * blob.FOOD_REWARD + blob.STEP_REWARD * (1 - left) / (1 - discount)
    usual = np.where((at == food).all(axis=1), blob.FOOD_REWARD, blob.STEP_REWARD + discount * way)
    return np.where((at == enemy).all(axis=1), blob.ENEMY_REWARD, usual).astype(np.float32)


if __name__ == "__main__":
    main()
