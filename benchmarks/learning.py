"""Pong, learnt by twin-graph and by Stable-Baselines3 with equal hyperparameters: score over agent steps.

Each command trains one run, which takes an hour or more; the same command continues a run that was stopped.

    python benchmarks/learning.py train twin-graph --seed 1
    python benchmarks/learning.py train stable-baselines3 --seed 1
    python benchmarks/learning.py draw --json benchmarks/results/learning.json --picture benchmarks/results/learning.png

Both have what the preset `pong` had then: 8 environments, no sticky actions, clipped rewards and lost lives as ends in
training only, n-step 5, two updates of 32 every 8 agent steps, Adam 1e-4, discount 0.99, a replay of 100,000 and
learning after 10,000, a refresh every 2,000 agent steps, epsilon to 0.02 over 100,000. Optimizer, rate, minibatch and
replay are those of RL Baselines3 Zoo for Atari; n-step and refreshes are this project's. Where they differ, each does
what it does by default: initial weights (He et al. against Torch's), gradients clipped at a norm of 10
(Stable-Baselines3), FIRE pressed at the start of a game (Stable-Baselines3), games for the score played greedily
(Stable-Baselines3) or with 0.001 random actions, threads.

Every 50,000 agent steps 10 whole games are played for their score. Curves are over agent steps alone: these runs
ran beside other work, so their minutes mean nothing. `peers.py` measures speed.
"""

import datetime
import json
import time
from pathlib import Path
from typing import Any, NamedTuple

import click
import matplotlib as mpl

from twin_graph.snapshots.lines import learning_curve

mpl.use("Agg")
import matplotlib.pyplot as plt
from rich.console import Console
from rich.table import Table

SCORE = 18.0
STEPS, EVALUATE_EVERY, GAMES = 1_000_000, 50_000, 10
ENVIRONMENTS, START, BATCH, REPLAY, N_STEP, REFRESH = 8, 10_000, 32, 100_000, 5, 2_000
LEARNING_RATE, EPSILON, EPSILON_STEPS = 1e-4, 0.02, 100_000
SIDES = ("twin-graph", "stable-baselines3")
COLOURS = dict(zip(SIDES, ("#0b6e99", "#c0562f"), strict=True))


class Point(NamedTuple):
    """One evaluation: agent steps and seconds of training before it, the games' returns."""

    agent_steps: int
    seconds: float
    returns: list[float]

    @property
    def mean(self) -> float:
        return sum(self.returns) / len(self.returns)


@click.group()
def main() -> None:
    """Train one side with one seed, or draw all that was trained."""


@main.command()
@click.argument("side", type=click.Choice(SIDES))
@click.option("--seed", default=1, show_default=True)
@click.option("--steps", default=STEPS, show_default=True, help="Agent steps, unless the score is reached before.")
@click.option("--folder", type=click.Path(path_type=Path), default=Path("checkpoints/learning"), show_default=True)
def train(side: str, seed: int, steps: int, folder: Path) -> None:
    """Train SIDE until it scores 18, or to the end; go on if it was begun."""
    where = folder / f"{side}-{seed}"
    points = (
        (points_of_twin_graph if side == SIDES[0] else points_of_stable_baselines3)(where) if where.exists() else []
    )
    if points and points[-1].mean >= SCORE:
        show(side, points[-1])
        return
    (train_twin_graph if side == SIDES[0] else train_stable_baselines3)(where, seed, steps)


def show(side: str, point: Point) -> None:
    print(
        f"{datetime.datetime.now():%H:%M} {side}: {point.agent_steps:,} agent steps, "
        f"{point.seconds / 60:.1f} minutes, score {point.mean:.1f}",
        flush=True,
    )


def train_twin_graph(where: Path, seed: int, steps: int) -> None:
    from twin_graph import config, envs, training
    from twin_graph.snapshots.resumable import newest_point
    from twin_graph.snapshots.run import DESCRIPTION, Run, create
    from twin_graph.training import tuning
    from twin_graph.twin.model import ModelSpec

    chosen = {
        "seed": seed,
        "train.steps": steps,
        "train.start_steps": START,
        "train.batch_size": BATCH,
        "train.n_step": N_STEP,
        "train.learning_rate": LEARNING_RATE,
        "env.count": ENVIRONMENTS,
        "replay.capacity_steps": REPLAY,
        "act.epsilon_end": EPSILON,
        "act.epsilon_decay_steps": EPSILON_STEPS,
        "target.refresh_every_steps": REFRESH,
        "evaluate.every_steps": EVALUATE_EVERY,
        "evaluate.episodes": GAMES,
    }
    settings = config.load("pong", chosen.items())
    env = envs.make(settings.env, count=ENVIRONMENTS)
    point = None
    if (where / DESCRIPTION).exists():
        run = Run(where)
        point = newest_point(run).point
        run.change_settings(config.change(run.settings, [("train.steps", steps)]))
    else:
        spec = ModelSpec.of(settings, env.spec)
        run = create(where, tuning.fix(settings, spec)[0], env.protocol)
    for progress in training.train(run, env, point):
        if progress.happened.evaluations:
            newest = points_of_twin_graph(where)[-1]
            show(SIDES[0], newest)
            if newest.mean >= SCORE:
                progress.stop.set()
    env.close()


def points_of_twin_graph(where: Path) -> list[Point]:
    """From the run's own records: the seconds of all lines of metrics, without their share of evaluation."""
    from twin_graph.snapshots.run import Run

    run = Run(where)
    clock: list[tuple[int, float]] = [(0, 0.0)]
    for line in run.metric_lines():
        if "seconds" in line:
            trained = line["seconds"] * (1 - line["time_share/evaluate"])
            clock.append((line["agent_steps"], clock[-1][1] + trained))
    points = []
    for line in learning_curve(run):
        steps = line["agent_steps"]
        seconds = max(at for logged, at in clock if logged <= steps)
        points.append(Point(steps, seconds, line["returns"]))
    return points


def train_stable_baselines3(where: Path, seed: int, steps: int) -> None:
    import ale_py
    import gymnasium
    from stable_baselines3 import DQN
    from stable_baselines3.common.callbacks import BaseCallback
    from stable_baselines3.common.env_util import make_atari_env
    from stable_baselines3.common.evaluation import evaluate_policy
    from stable_baselines3.common.vec_env import VecFrameStack

    gymnasium.register_envs(ale_py)
    where.mkdir(parents=True, exist_ok=True)
    saved = where / "saved"

    def make(count: int, seed: int, **wrapper: Any) -> VecFrameStack:
        return VecFrameStack(make_atari_env("PongNoFrameskip-v4", count, seed, wrapper_kwargs=wrapper), 4)

    points = points_of_stable_baselines3(saved)
    if saved.exists():
        model = DQN.load(saved / "model", env=make(ENVIRONMENTS, seed + 1_000 * len(points)))
        model.load_replay_buffer(saved / "replay.pkl")
    else:
        model = DQN(
            "CnnPolicy",
            make(ENVIRONMENTS, seed),
            learning_rate=LEARNING_RATE,
            buffer_size=REPLAY,
            learning_starts=START,
            batch_size=BATCH,
            gamma=0.99,
            train_freq=1,  # vector steps
            gradient_steps=2,
            n_steps=N_STEP,
            target_update_interval=REFRESH,
            exploration_fraction=EPSILON_STEPS / steps,
            exploration_final_eps=EPSILON,
            seed=seed,
        )
    games = make(GAMES, seed + 500, terminal_on_life_loss=False, clip_reward=False)

    class Evaluate(BaseCallback):
        trained = points[-1].seconds if points else 0.0

        def _on_training_start(self) -> None:
            self.since = time.perf_counter()

        def _on_step(self) -> bool:
            if self.num_timesteps % EVALUATE_EVERY:
                return True
            self.trained += time.perf_counter() - self.since
            returns, _ = evaluate_policy(self.model, games, GAMES, return_episode_rewards=True)
            points.append(Point(self.num_timesteps, self.trained, [float(r) for r in returns]))
            show(SIDES[1], points[-1])
            (where / "points.json").write_text(json.dumps(points), encoding="utf-8")
            fresh = where / "saving"
            fresh.mkdir(exist_ok=True)
            self.model.save(fresh / "model")
            self.model.save_replay_buffer(fresh / "replay.pkl")
            (fresh / "points.json").write_text(json.dumps(points), encoding="utf-8")
            replace(fresh, saved)
            self.since = time.perf_counter()
            return points[-1].mean < SCORE and self.num_timesteps < steps

    model.learn(steps - model.num_timesteps, callback=Evaluate(), reset_num_timesteps=False)


def replace(fresh: Path, saved: Path) -> None:
    old = saved.with_name("old")
    if saved.exists():
        saved.rename(old)
    fresh.rename(saved)
    if old.exists():
        for file in old.iterdir():
            file.unlink()
        old.rmdir()


def points_of_stable_baselines3(where: Path) -> list[Point]:
    log = where / "points.json"
    return [Point(*point) for point in json.loads(log.read_text(encoding="utf-8"))] if log.exists() else []


class Curve(NamedTuple):
    """One training: its side, seed and processor, its row in the table that is printed, its evaluations."""

    side: str
    seed: int
    processor: dict[str, Any]
    row: str
    points: list[Point]


def curves_of(folder: Path) -> list[Curve]:
    """What was trained there so far."""
    from twin_graph.base import machine
    from twin_graph.snapshots.run import Run

    curves, processor = [], machine.describe()._asdict()
    for where in sorted(folder.iterdir()) if folder.exists() else []:
        side, _, seed = where.name.rpartition("-")
        if side == SIDES[0]:
            bf16 = Run(where).settings.twin.precision == "bf16"
            row, points = "twin-graph, bf16" if bf16 else side, points_of_twin_graph(where)
        else:
            row, points = "Stable-Baselines3", points_of_stable_baselines3(where)
        curves.append(Curve(side, int(seed), processor, row, points))
    return [curve for curve in curves if curve.points]


def curves_in(path: Path) -> list[Curve]:
    """What was drawn before, perhaps on another machine."""
    written = json.loads(path.read_text(encoding="utf-8"))["curves"] if path.exists() else []
    return [Curve(**{**curve, "points": [Point(**point) for point in curve["points"]]}) for curve in written]


@main.command()
@click.option("--folder", type=click.Path(path_type=Path), default=Path("checkpoints/learning"), show_default=True)
@click.option("--json", "path", type=click.Path(path_type=Path), help="Write the figures here; add to those there.")
@click.option("--picture", type=click.Path(path_type=Path), help="Draw the curves here, PNG or SVG.")
def draw(folder: Path, path: Path | None, picture: Path | None) -> None:
    """Print, write and draw what was trained so far, by agent steps: `peers.py` measures the time of a step."""
    found = {(curve.side, curve.seed): curve for curve in [*(curves_in(path) if path else []), *curves_of(folder)]}
    curves = sorted(found.values(), key=lambda curve: (SIDES.index(curve.side), curve.seed))

    table = Table("side", "seed", "agent steps", "last score", f"score {SCORE:g} after", box=None)
    for curve in curves:
        last, reached = curve.points[-1], next((point for point in curve.points if point.mean >= SCORE), None)
        table.add_row(
            curve.row,
            str(curve.seed),
            f"{last.agent_steps:,}",
            f"{last.mean:.1f}",
            f"{reached.agent_steps:,} agent steps" if reached else "not reached",
        )
    Console().print(table)
    if path:
        document = {
            "score": SCORE,
            "curves": [{**curve._asdict(), "points": [point._asdict() for point in curve.points]} for curve in curves],
        }
        path.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    if picture:
        figure, axes = plt.subplots(figsize=(6, 3.8), layout="constrained")
        for curve in curves:
            axes.plot(
                [p.agent_steps / 1000 for p in curve.points],
                [p.mean for p in curve.points],
                "os^"[(curve.seed - 1) % 3] + "-",
                color=COLOURS[curve.side],
                ms=3.5,
                lw=1.2,
                label=f"{curve.row}, seed {curve.seed}",
            )
        axes.axhline(SCORE, color="#888", lw=0.8, ls=":")
        axes.set_xlabel("thousand agent steps")
        axes.set_ylabel(f"Pong, mean return of {GAMES} whole games")
        axes.grid(alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
        figure.legend(frameon=False, fontsize=8, loc="outside upper center", ncols=2)
        figure.savefig(picture, dpi=130)


if __name__ == "__main__":
    main()
