r"""Agent steps per second of twin-graph and of its peers, on the same work, in turn.

    pip install '.[peers]'
    python benchmarks/peers.py [--rounds 5] [--json benchmarks/results/peers.json]
    python benchmarks/peers.py --cleanrl CHECKOUT --cleanrl-python PYTHON   # CleanRL's own file too, in its environment

Every side trains the network of the 2015 paper on Pong: 84x84x4, minibatches of 32, one update each 4 agent steps,
targets refreshed each 1,000 agent steps, Adam, a replay of 20,000 that begins with 1,000 steps, 8 environments (one
in the two single files, which are written for one). Stable-Baselines3 clips the norm of each gradient besides, which no
other side does; benchmarks/README.md has what that would cost twin-graph. What is timed comes after a warm-up: 2,048
agent steps and 512 updates, which this program checks; each side counts its own, but for CleanRL's file, which has no
counter. Scores are not compared here: `learning.py` does that.
"""

import importlib.metadata
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
from fresh import in_a_process
from rich.console import Console
from rich.progress import track
from rich.table import Table

WARM_UP, TIMED = 1_536, 2_048  # agent steps; both are whole chunks of 64
START, EVERY, BATCH, REFRESH, ENVIRONMENTS, REPLAY = 1_000, 4, 32, 1_000, 8, 20_000
EPSILON, LEARNING_RATE = 0.02, 1e-4
HERE = Path(__file__).parent

Work = dict[str, Any]


def twin_graph(settings: dict[str, Any]) -> Work:
    """The preset `pong`, brought to the common settings."""
    from twin_graph import config, envs, training
    from twin_graph.snapshots.run import create

    common = {
        "train.start_steps": START,
        "train.every_steps": EVERY,
        "train.batch_size": BATCH,
        "train.n_step": 1,
        "train.learning_rate": LEARNING_RATE,
        "train.steps": WARM_UP + TIMED + 1_000,
        "env.count": ENVIRONMENTS,
        "replay.capacity_steps": REPLAY,
        "act.epsilon_start": EPSILON,
        "act.epsilon_end": EPSILON,
        "target.refresh_every_steps": REFRESH,
        "evaluate.episodes": 0,
        "twin.threads": os.cpu_count(),
        "twin.precision": "fp32",
    }
    chosen = config.load("pong", {**common, **settings}.items())
    env = envs.make(chosen.env, count=chosen.env.count)
    began, before = math.nan, 0
    with tempfile.TemporaryDirectory() as folder:
        for progress in training.train(create(Path(folder) / "run", chosen), env):
            if progress.agent_steps == WARM_UP:
                began, before = time.perf_counter(), progress.updates
            if progress.agent_steps == WARM_UP + TIMED:
                seconds = time.perf_counter() - began
                work = {"updates": progress.updates - before, "seconds": seconds}
                progress.stop.set()
    env.close()
    return {"agent_steps": TIMED, "batch_size": chosen.train.batch_size, **work}


def stable_baselines3() -> Work:
    """Its DQN as its documentation has it, with vector environments."""
    import ale_py
    import gymnasium
    from stable_baselines3 import DQN
    from stable_baselines3.common.callbacks import BaseCallback
    from stable_baselines3.common.env_util import make_atari_env
    from stable_baselines3.common.vec_env import VecFrameStack

    gymnasium.register_envs(ale_py)

    class Clock(BaseCallback):
        began, before, seconds, updates = math.nan, 0, math.nan, 0

        def _on_step(self) -> bool:
            if self.num_timesteps == WARM_UP:
                self.began, self.before = time.perf_counter(), self.model._n_updates
            if self.num_timesteps == WARM_UP + TIMED:
                self.seconds, self.updates = time.perf_counter() - self.began, self.model._n_updates - self.before
            return self.num_timesteps < WARM_UP + TIMED

    model = DQN(
        "CnnPolicy",
        VecFrameStack(make_atari_env("PongNoFrameskip-v4", n_envs=ENVIRONMENTS, seed=1), 4),
        learning_rate=LEARNING_RATE,
        buffer_size=REPLAY,
        learning_starts=START,
        batch_size=BATCH,
        train_freq=1,  # vector steps
        gradient_steps=ENVIRONMENTS // EVERY,
        target_update_interval=REFRESH,
        exploration_initial_eps=EPSILON,
        exploration_final_eps=EPSILON,
        seed=1,
    )
    clock = Clock()
    model.learn(WARM_UP + 2 * TIMED, callback=clock)
    return {
        "agent_steps": TIMED,
        "updates": clock.updates,
        "batch_size": model.batch_size,
        "seconds": clock.seconds,
    }


def tianshou() -> Work:
    """Its collector, buffer and DQN, stepped and updated in turn.

    On the wrappers of the single file: those of Tianshou 2.0.1 fail with NumPy 2.4.
    """
    import numpy as np
    from single_file_dqn import make_env
    from tianshou.algorithm import DQN
    from tianshou.algorithm.modelfree.dqn import DiscreteQLearningPolicy
    from tianshou.algorithm.optim import AdamOptimizerFactory
    from tianshou.data import Collector, VectorReplayBuffer
    from tianshou.env import DummyVectorEnv
    from tianshou.env.atari.atari_network import DQNet
    from tianshou.utils.torch_utils import policy_within_training_step

    class Scaled(DQNet):
        def forward(self, obs: Any, state: Any = None, info: Any = None) -> Any:
            return super().forward(np.asarray(obs, np.float32) / 255.0, state, info)

    envs = DummyVectorEnv([lambda seed=seed: make_env("ALE/Pong-v5", seed) for seed in range(ENVIRONMENTS)])
    actions = envs.action_space[0]
    policy = DiscreteQLearningPolicy(
        model=Scaled(4, 84, 84, int(actions.n)), action_space=actions, eps_training=EPSILON
    )
    algorithm = DQN(
        policy=policy,
        optim=AdamOptimizerFactory(lr=LEARNING_RATE),
        target_update_freq=REFRESH // EVERY,
        is_double=False,
        huber_loss_delta=1.0,
    )
    buffer = VectorReplayBuffer(REPLAY, ENVIRONMENTS, ignore_obs_next=True, save_only_last_obs=True, stack_num=4)
    collector = Collector(policy, envs, buffer, exploration_noise=True)
    collector.reset()
    collector.collect(n_step=START, random=True)
    steps = updates = before = 0
    began = math.nan
    policy.train()
    while steps < WARM_UP - START + TIMED:
        if steps == WARM_UP - START:
            began, before = time.perf_counter(), updates
        collector.collect(n_step=ENVIRONMENTS)
        steps += ENVIRONMENTS
        with policy_within_training_step(policy):
            for _ in range(ENVIRONMENTS // EVERY):
                algorithm.update(buffer, BATCH)
                updates += 1
    return {
        "agent_steps": TIMED,
        "updates": updates - before,
        "batch_size": BATCH,
        "seconds": time.perf_counter() - began,
    }


def single_file() -> Work:
    """single_file_dqn.py, in a process of its own."""
    done = subprocess.run(
        [sys.executable, HERE / "single_file_dqn.py"], check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    work: Work = json.loads(done.stdout.splitlines()[-1])
    return work


def cleanrl(checkout: Path, python: str) -> Work:
    """CleanRL's own `dqn_atari.py`, unchanged: a longer training less a shorter one, as it has no clock of its own."""
    start = (
        "import runpy, sys, ale_py, gymnasium; getattr(gymnasium, 'register_envs', lambda _: None)(ale_py); "
        "sys.argv = sys.argv[1:]; runpy.run_path(sys.argv[0], run_name='__main__')"
    )
    seconds = []
    for steps in (WARM_UP, WARM_UP + TIMED):
        options = {
            "env-id": "PongNoFrameskip-v4",
            "total-timesteps": steps,
            "learning-starts": START,
            "buffer-size": REPLAY,
            "start-e": EPSILON,
            "end-e": EPSILON,
            "learning-rate": LEARNING_RATE,
            "train-frequency": EVERY,
            "target-network-frequency": REFRESH,
            "batch-size": BATCH,
        }
        arguments = [f"--{name}={value}" for name, value in options.items()]
        with tempfile.TemporaryDirectory() as folder:
            began = time.perf_counter()
            subprocess.run(
                [python, "-c", start, checkout / "cleanrl" / "dqn_atari.py", *arguments],
                check=True,
                cwd=folder,
                env={**os.environ, "PYTHONPATH": str(checkout)},
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
            seconds.append(time.perf_counter() - began)
    # It updates at every multiple of train-frequency beyond learning-starts.
    updates = TIMED // EVERY
    return {"agent_steps": TIMED, "updates": updates, "batch_size": BATCH, "seconds": seconds[1] - seconds[0]}


SIDES: dict[str, Callable[[], Work]] = {
    "twin-graph": lambda: twin_graph({}),
    "twin-graph, one thread for all": lambda: twin_graph({"twin.overlap": False}),
    "twin-graph, classic loop": lambda: twin_graph({"train.chunk_steps": 0}),
    "twin-graph, bf16": lambda: twin_graph({"twin.precision": "bf16"}),
    "Stable-Baselines3": stable_baselines3,
    "single file, PyTorch": single_file,
    "Tianshou": tianshou,
}
PEERS = ("Stable-Baselines3", "single file, PyTorch", "Tianshou", "CleanRL")


@click.command()
@click.option("--rounds", default=5, show_default=True, type=click.IntRange(min=1))
@click.option("--json", "path", type=click.Path(path_type=Path), help="Also write the figures here.")
@click.option("--cleanrl", "checkout", type=click.Path(exists=True, path_type=Path), help="A checkout of CleanRL.")
@click.option("--cleanrl-python", default=sys.executable, help="The Python that has what CleanRL needs.")
@click.option("--side", type=click.Choice(list(SIDES)), hidden=True)
def main(rounds: int, path: Path | None, checkout: Path | None, cleanrl_python: str, side: str | None) -> None:
    """Run every side in turn, ROUNDS times; print a table."""
    if side:
        print(json.dumps(SIDES[side]()))
        return
    from twin_graph import cpu, tuning

    def side_of(name: str) -> Callable[[], Work]:
        return lambda: in_a_process(__file__, "--side", name)

    possible = [name for name in SIDES if name != "twin-graph, bf16" or tuning.has_bf16()]
    sides = {name: side_of(name) for name in possible}
    if checkout:
        sides["CleanRL"] = lambda: cleanrl(checkout.absolute(), cleanrl_python)
    rates: dict[str, list[float]] = {name: [] for name in sides}
    for _ in track(range(rounds), "rounds", console=Console(stderr=True)):
        for name, run in sides.items():
            work = run()
            done = {key: work[key] for key in ("agent_steps", "updates", "batch_size")}
            wanted = {"agent_steps": TIMED, "updates": TIMED // EVERY, "batch_size": BATCH}
            if done != wanted:
                raise SystemExit(f"{name} did {done} and not {wanted}; the comparison would be unequal")
            rates[name].append(work["agent_steps"] / work["seconds"])
    peers = [name for name in PEERS if name in rates]
    fastest = max(peers, key=lambda name: statistics.median(rates[name]))
    ratios = {name: [a / b for a, b in zip(rates[name], rates[fastest], strict=True)] for name in rates}
    table = Table("", "agent steps/s", "least", "most", f"times {fastest}", "least", "most", box=None, pad_edge=False)
    for name in rates:
        row = [f"{number:.0f}" for number in (statistics.median(rates[name]), min(rates[name]), max(rates[name]))]
        row += [f"{x:.2f}" for x in (statistics.median(ratios[name]), min(ratios[name]), max(ratios[name]))]
        table.add_row(name, *row)
    Console(width=120).print(table)
    packages = ("twin-graph", "tensorflow", "torch", "stable-baselines3", "tianshou", "gymnasium", "ale-py", "numpy")
    document = {
        "processor": cpu.describe()._asdict(),
        "versions": {name: importlib.metadata.version(name) for name in packages},
        "work": {"agent_steps": TIMED, "updates": TIMED // EVERY, "batch_size": BATCH},
        "agent_steps_per_second": rates,
        "fastest_peer": fastest,
        "ratios_by_round": ratios,
    }
    if path:
        path.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
