r"""QR-DQN, C51 and Rainbow beside the peers that have them, on CartPole and Acrobot, with each peer's own numbers.

    pip install '.[peers]'
    python benchmarks/distributional.py returns --seeds 5 --into benchmarks/results/distributional.jsonl
    python benchmarks/distributional.py speed --rounds 3 --into benchmarks/results/distributional-speed.jsonl
    python benchmarks/distributional.py tables

`--cleanrl CHECKOUT --cleanrl-python PYTHON` adds CleanRL's own file, unchanged, in an environment of its own.

A recipe is what a peer ships for an algorithm: sb3-contrib's QR-DQN with RL Zoo's tuned numbers, CleanRL's `c51.py`
with its defaults, Tianshou's C51, QR-DQN and Rainbow with those of its tests. For twin-graph it becomes settings of the
preset `cartpole`: as many updates and targets, the same sizes. What differs: weights start as Torch's layers do in all
of them, but with other numbers; CleanRL's file is written for one environment, and here there are eight, as in
Tianshou; an update comes at once there, and here up to 64 agent steps later (256 with RL Zoo's numbers for CartPole, as
there); in Tianshou's Rainbow the last layers are noisy, here all.

The outcome is the mean return of the training episodes that end in the last tenth of a run. Speed is that of the second
half of 20,000 agent steps, in turn, each side in a process of its own with one thread for each session, or for Torch.
"""

from __future__ import annotations

import json
import math
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import click
import numpy as np
from fresh import in_a_process
from rich.console import Console
from rich.table import Table

SPEED_STEPS = 20_000
OURS = "twin-graph"

#: Agent steps after which episodes ended, and their returns; seconds of the second half.
Made = dict[str, Any]


class Recipe(NamedTuple):
    """What a peer ships for an algorithm in an environment; steps are agent steps.

    Attributes:
      peer, algorithm, environment: whose it is.
      steps: of a run.
      environments: stepped together; by CleanRL one.
      hidden: units of the hidden layers.
      start: before the first update.
      chunk: agent steps between two moments at which updates are made.
      every: agent steps for each update.
      refresh: updates of each target.
      replay: its size.
      batch, n_step, discount, learning_rate, adam_epsilon: of updates.
      epsilon: at the start, at the end, and after how many steps.
      atoms: of the distribution.
      support: of C51.
      rainbow: whether priorities and noise are added.
      double: whether the online network chooses the next action.
    """

    peer: str
    algorithm: str
    environment: str
    steps: int
    environments: int
    hidden: list[int]
    start: int
    chunk: int
    every: int
    refresh: int
    replay: int
    batch: int
    n_step: int
    discount: float
    learning_rate: float
    adam_epsilon: float
    epsilon: tuple[float, float, int]
    atoms: int
    support: tuple[float, float] = (-10.0, 10.0)
    rainbow: bool = False
    double: bool = False

    @property
    def name(self) -> str:
        return f"{self.algorithm}, {self.peer}, {self.environment}"

    def within(self, steps: int) -> Recipe:
        """The same, learning early enough that a run of so many steps has its second half for it."""
        return self._replace(start=min(self.start, steps // 10))


def _recipes() -> Iterator[Recipe]:
    zoo: Any = Recipe("sb3-contrib", "QR-DQN", "", 0, 1, [256, 256], 0, 0, 0, 0, 0, 0, 1, 0.99, 0, 0, (1, 0, 1), 0)
    yield zoo._replace(
        **{"environment": "CartPole-v1", "steps": 50_000, "start": 1_000, "chunk": 256, "every": 2, "refresh": 5},
        **{"replay": 100_000, "batch": 64, "learning_rate": 2.3e-3, "adam_epsilon": 0.01 / 64},
        **{"epsilon": (1.0, 0.04, 8_000), "atoms": 10},
    )
    yield zoo._replace(
        **{"environment": "Acrobot-v1", "steps": 100_000, "start": 128, "chunk": 4, "every": 1, "refresh": 250},
        **{"replay": 50_000, "batch": 128, "learning_rate": 6.3e-4, "adam_epsilon": 0.01 / 128},
        **{"epsilon": (1.0, 0.1, 12_000), "atoms": 25},
    )
    for environment in ("CartPole-v1", "Acrobot-v1"):
        yield Recipe(
            *("CleanRL", "C51", environment, 500_000, 8, [120, 84], 10_000, 10, 10, 50, 10_000, 128, 1, 0.99),
            *(2.5e-4, 0.01 / 128, (1.0, 0.05, 250_000), 101, (-100.0, 100.0)),
        )
        for algorithm, discount, atoms in (("C51", 0.9, 51), ("QR-DQN", 0.9, 200), ("Rainbow", 0.95, 51)):
            yield Recipe(
                *("Tianshou", algorithm, environment, 80_000, 8, [128, 128, 128, 128], 512, 8, 8, 320, 20_000, 64, 3),
                *(discount, 1e-3, 1e-8, (0.1, 0.01, 50_000), atoms, (-10.0, 10.0), algorithm == "Rainbow", True),
            )


RECIPES = {recipe.name: recipe for recipe in _recipes()}


def twin_graph(recipe: Recipe, seed: int, steps: int) -> Made:
    """The preset `cartpole` with the recipe's numbers."""
    from twin_graph import config, envs, training
    from twin_graph.snapshots.run import create

    first, last, decay = recipe.epsilon
    settings = {
        "seed": seed,
        "env.id": recipe.environment,
        "env.count": recipe.environments,
        "model.hidden_units": recipe.hidden,
        "model.head": "quantile" if recipe.algorithm == "QR-DQN" else "categorical",
        "model.atoms": recipe.atoms,
        "model.support": list(recipe.support),
        "model.noisy": recipe.rainbow,
        "model.noisy_sigma": 0.1,
        "model.dueling": recipe.rainbow,
        "train.steps": steps,
        "train.start_steps": max(recipe.start, recipe.environments * (recipe.n_step + 2)),
        "train.every_steps": recipe.every,
        "train.chunk_steps": max(64, recipe.chunk),
        "train.batch_size": recipe.batch,
        "train.n_step": recipe.n_step,
        "train.discount": recipe.discount,
        "train.learning_rate": recipe.learning_rate,
        "train.adam_epsilon": recipe.adam_epsilon,
        "train.double": recipe.double,
        "replay.capacity_steps": recipe.replay,
        "replay.prioritized": recipe.rainbow,
        "replay.importance_updates": max(1, recipe.steps // recipe.every),
        "act.epsilon_start": first,
        "act.epsilon_end": last,
        "act.epsilon_decay_steps": decay,
        "target.refresh_every_updates": recipe.refresh,
        "save.keep_last": 2,
        "save.keep_every": 0,
        "evaluate.episodes": 0,
        "twin.threads": 1,
        "twin.precision": "fp32",
    }
    chosen = config.load("cartpole", settings.items())
    clock = _Clock(steps)
    with tempfile.TemporaryDirectory() as folder:
        env = envs.make(chosen.env, count=chosen.env.count)
        for progress in training.train(create(Path(folder) / "run", chosen), env):
            clock.add(progress.agent_steps, progress.happened.scores)
        env.close()
    return clock.made()


class _Clock:
    """Takes the returns of a run, and the time of its second half."""

    def __init__(self, steps: int) -> None:
        self._half, self._ends, self._returns = steps // 2, list[int](), list[float]()
        self._began, self._from, self._at = math.nan, 0, 0

    def add(self, agent_steps: int, returns: Any) -> None:
        if math.isnan(self._began) and agent_steps >= self._half:
            self._began, self._from = time.perf_counter(), agent_steps
        self._at = agent_steps
        self._ends += [agent_steps] * len(returns)
        self._returns += map(float, returns)

    def made(self) -> Made:
        seconds = time.perf_counter() - self._began
        return {"ends": self._ends, "returns": self._returns, "steps": self._at - self._from, "seconds": seconds}


def sb3_contrib(recipe: Recipe, seed: int, steps: int) -> Made:
    """Its QR-DQN as RL Zoo calls it."""
    import torch
    from sb3_contrib import QRDQN
    from stable_baselines3.common.callbacks import BaseCallback
    from stable_baselines3.common.env_util import make_vec_env

    torch.set_num_threads(1)
    clock = _Clock(steps)

    class Listener(BaseCallback):
        def _on_step(self) -> bool:
            ended = [info["episode"]["r"] for info in self.locals["infos"] if "episode" in info]
            clock.add(self.num_timesteps, ended)
            return True

    _, last, decay = recipe.epsilon
    model = QRDQN(
        "MlpPolicy",
        make_vec_env(recipe.environment, n_envs=1, seed=seed),
        learning_rate=recipe.learning_rate,
        buffer_size=recipe.replay,
        learning_starts=recipe.start if recipe.environment == "CartPole-v1" else 0,
        batch_size=recipe.batch,
        gamma=recipe.discount,
        train_freq=recipe.chunk,
        gradient_steps=recipe.chunk // recipe.every,
        target_update_interval=recipe.refresh * recipe.every,
        exploration_fraction=decay / steps,
        exploration_final_eps=last,
        policy_kwargs={"net_arch": recipe.hidden, "n_quantiles": recipe.atoms},
        seed=seed,
    )
    model.learn(steps, callback=Listener())
    return clock.made()


def tianshou(recipe: Recipe, seed: int, steps: int) -> Made:
    """Its collector, buffer and algorithm, stepped and updated in turn as its tests do."""
    import gymnasium
    import torch
    from tianshou.algorithm import C51, QRDQN, RainbowDQN
    from tianshou.algorithm.modelfree.c51 import C51Policy
    from tianshou.algorithm.modelfree.qrdqn import QRDQNPolicy
    from tianshou.algorithm.optim import AdamOptimizerFactory
    from tianshou.data import Collector, PrioritizedVectorReplayBuffer, VectorReplayBuffer
    from tianshou.env import DummyVectorEnv
    from tianshou.utils.net.common import Net
    from tianshou.utils.net.discrete import NoisyLinear
    from tianshou.utils.torch_utils import policy_within_training_step

    torch.set_num_threads(1)
    np.random.seed(seed)
    torch.manual_seed(seed)
    envs = DummyVectorEnv([lambda: gymnasium.make(recipe.environment) for _ in range(recipe.environments)])
    envs.seed(seed)
    actions, (low, high) = envs.action_space[0], recipe.support
    noisy = {"linear_layer": lambda x, y: NoisyLinear(x, y, 0.1)}
    net = Net(
        state_shape=envs.observation_space[0].shape,
        action_shape=actions.n,
        hidden_sizes=recipe.hidden,
        softmax=recipe.algorithm != "QR-DQN",
        num_atoms=recipe.atoms,
        dueling_param=(noisy, noisy) if recipe.rainbow else None,
    )
    common = {
        "optim": AdamOptimizerFactory(lr=recipe.learning_rate),
        "gamma": recipe.discount,
        "n_step_return_horizon": recipe.n_step,
        "target_update_freq": recipe.refresh,
    }
    algorithm: Any
    if recipe.algorithm == "QR-DQN":
        policy: Any = QRDQNPolicy(model=net, action_space=actions)
        algorithm = QRDQN(policy=policy, num_quantiles=recipe.atoms, **common)
    else:
        policy = C51Policy(model=net, action_space=actions, num_atoms=recipe.atoms, v_min=low, v_max=high)
        algorithm = (RainbowDQN if recipe.rainbow else C51)(policy=policy, **common)
    prioritized = {"alpha": 0.6, "beta": 0.4, "weight_norm": True}
    buffer = (
        PrioritizedVectorReplayBuffer(recipe.replay, recipe.environments, **prioritized)
        if recipe.rainbow
        else VectorReplayBuffer(recipe.replay, recipe.environments)
    )
    collector, clock, made = Collector(policy, envs, buffer, exploration_noise=True), _Clock(steps), 0
    policy.train()
    collector.reset()
    while made < steps:
        first, last, decay = recipe.epsilon
        policy.set_eps_training(max(last, first + (last - first) * max(0, made - 10_000) / (decay - 10_000)))
        if recipe.rainbow:
            buffer.set_beta(min(1.0, 0.4 + 0.6 * made / recipe.steps))
        with policy_within_training_step(policy):
            told = collector.collect(n_step=recipe.environments)
            made += recipe.environments
            if made > recipe.start:
                for _ in range(recipe.environments // recipe.every):
                    algorithm.update(buffer, recipe.batch)
        clock.add(made, told.returns)
    return clock.made()


def cleanrl(recipe: Recipe, seed: int, steps: int, checkout: Path, python: str) -> Made:
    """Its own file, unchanged. It has no clock of its own: its prints come with the time at which they are read."""
    script = "import runpy, sys; sys.argv = sys.argv[1:]; runpy.run_path(sys.argv[0], run_name='__main__')"
    options = {"env-id": recipe.environment, "total-timesteps": steps, "seed": seed}
    options |= {"learning-starts": recipe.start}
    arguments = [f"--{name}={value}" for name, value in options.items()]
    clock = _Clock(steps)
    with tempfile.TemporaryDirectory() as folder:
        process = subprocess.Popen(
            [python, "-u", "-c", script, checkout / "cleanrl" / "c51.py", *arguments],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": str(checkout), "OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        assert process.stdout
        for line in process.stdout:
            if found := re.search(r"global_step=(\d+), episodic_return=\[?([-\d.e+]+)", line):
                clock.add(int(found[1]), [found[2]])
        if process.wait():
            raise SystemExit(f"CleanRL's file failed: {process.returncode}")
    return clock.made()


SIDES: dict[str, Callable[[Recipe, int, int], Made]] = {
    OURS: twin_graph,
    "sb3-contrib": sb3_contrib,
    "Tianshou": tianshou,
}


@click.group()
def main() -> None:
    """Returns and speed of twin-graph and its peers with distributions."""


_checkout = click.option("--cleanrl", "checkout", type=click.Path(exists=True, path_type=Path), help="Of CleanRL.")
_python = click.option("--cleanrl-python", default=sys.executable, help="The Python that has what CleanRL needs.")
_into = click.option("--into", type=click.Path(path_type=Path), required=True, help="Adds a line for each run.")


def _made(recipe: Recipe, side: str, seed: int, steps: int, checkout: Path | None, python: str) -> Made | None:
    """What a side makes of a recipe, in a process of its own; None of CleanRL without a checkout."""
    if side == "CleanRL":
        return cleanrl(recipe.within(steps), seed, steps, checkout.absolute(), python) if checkout else None
    return in_a_process(__file__, "one", recipe.name, side, str(seed), str(steps))


@main.command(hidden=True)
@click.argument("name")
@click.argument("side")
@click.argument("seed", type=int)
@click.argument("steps", type=int)
def one(name: str, side: str, seed: int, steps: int) -> None:
    print(json.dumps(SIDES[side](RECIPES[name].within(steps), seed, steps)))


@main.command()
@click.option("--seeds", default=5, show_default=True)
@_into
@_checkout
@_python
def returns(seeds: int, into: Path, checkout: Path | None, cleanrl_python: str) -> None:
    """Train every recipe on both sides; those that are in the file already are left out."""
    done = {(line["recipe"], line["side"], line["seed"]) for line in _lines(into)}
    for seed in range(1, seeds + 1):
        for recipe in RECIPES.values():
            for side in (OURS, recipe.peer):
                if (recipe.name, side, seed) in done:
                    continue
                if made := _made(recipe, side, seed, recipe.steps, checkout, cleanrl_python):
                    late = [r for end, r in zip(made["ends"], made["returns"], strict=True) if end > 0.9 * recipe.steps]
                    _add(into, recipe=recipe.name, side=side, seed=seed, late_return=statistics.fmean(late))


@main.command()
@click.option("--rounds", default=3, show_default=True)
@_into
@_checkout
@_python
def speed(rounds: int, into: Path, checkout: Path | None, cleanrl_python: str) -> None:
    """Time every recipe on both sides, in turn."""
    from twin_graph.base import machine

    processor = machine.describe()._asdict()
    for number in range(rounds):
        for recipe in RECIPES.values():
            for side in (OURS, recipe.peer):
                if made := _made(recipe, side, 1, SPEED_STEPS, checkout, cleanrl_python):
                    rate = made["steps"] / made["seconds"]
                    _add(into, recipe=recipe.name, side=side, round=number, agent_steps_per_second=rate, **processor)


@main.command()
@click.option("--results", default=Path(__file__).parent / "results", type=click.Path(path_type=Path))
def tables(results: Path) -> None:
    """Print what the two files in benchmarks/results hold."""
    late = _by_recipe(results / "distributional.jsonl", "late_return")
    table = Table("recipe", "seeds", "twin-graph", "peer", "difference (95%)", box=None, pad_edge=False)
    for name, sides in late.items():
        ours, theirs = sides[OURS], sides[RECIPES[name].peer]
        cells = [f"{statistics.fmean(of):.1f} ({min(of):.0f} to {max(of):.0f})" for of in (ours, theirs)]
        table.add_row(name, str(len(ours)), *cells, _difference(ours, theirs))
    Console(width=150).print(table)
    rates = _by_recipe(results / "distributional-speed.jsonl", "agent_steps_per_second")
    table = Table("recipe", "twin-graph", "peer", "times", "least", "most", box=None, pad_edge=False)
    for name, sides in rates.items():
        ours, theirs = sides[OURS], sides[RECIPES[name].peer]
        times = [a / b for a, b in zip(ours, theirs, strict=True)]
        cells = [f"{statistics.median(of):,.0f}" for of in (ours, theirs)]
        table.add_row(name, *cells, *(f"{x:.2f}" for x in (statistics.median(times), min(times), max(times))))
    Console(width=150).print(table)


def _difference(ours: list[float], theirs: list[float]) -> str:
    """The difference of the means, with Welch's interval."""
    if len(ours) < 2 or len(theirs) < 2:
        return ""
    from scipy import stats

    interval = stats.ttest_ind(ours, theirs, equal_var=False).confidence_interval()
    return f"{statistics.fmean(ours) - statistics.fmean(theirs):+.1f} ({interval.low:+.1f} to {interval.high:+.1f})"


def _lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def _by_recipe(path: Path, what: str) -> dict[str, dict[str, list[float]]]:
    found: dict[str, dict[str, list[float]]] = {}
    for line in _lines(path):
        found.setdefault(line["recipe"], {}).setdefault(line["side"], []).append(line[what])
    return {name: sides for name, sides in found.items() if len(sides) == 2}


def _add(path: Path, **line: Any) -> None:
    with path.open("a") as file:
        file.write(json.dumps(line) + "\n")
    print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
