r"""Agent steps per second of twin-graph and of its peers, on the same work, in turn.

    pip install '.[peers]'
    python benchmarks/peers.py [--network nature] [--rounds 5] [--json benchmarks/results/peers.json]
    python benchmarks/peers.py --cleanrl CHECKOUT --cleanrl-python PYTHON   # CleanRL's own file too, in its environment
    python benchmarks/peers.py --network mlp --purejaxrl CHECKOUT --purejaxrl-python PYTHON   # purejaxrl's `dqn.py` too

Every side trains the same network on the same work, see `TASKS`: of the 2015 paper on Pong, 84x84x4 (`nature`); of
two hidden layers of 128 units on CartPole (`mlp`); of Young and Tian 2019 on MinAtar's Breakout (`minatar`, which needs
`pip install '.[minatar]'`). Each has 8 environments, but for the two single files, which are written for one.
Stable-Baselines3 clips the norm of each gradient besides, which no other side does; benchmarks/README.md has what that
would cost twin-graph on Pong. CleanRL's `dqn.py`, in `mlp`, has layers of 120 and 84 units. What is timed comes after a
warm-up, with all compilation in it; this program checks agent steps and updates, which each side counts, but for
CleanRL's file, which has no counter. Scores are not compared here: `learning.py` does that.
"""

import importlib
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
from typing import Any, NamedTuple

import click
from fresh import in_a_process
from rich.console import Console
from rich.progress import track
from rich.table import Table

ENVIRONMENTS, START = 8, 1_000
HERE = Path(__file__).parent

Work = dict[str, Any]


class Task(NamedTuple):
    """Work that is equal for all; the first five in agent steps.

    Attributes:
      warm_up, timed: whole chunks of 64, the first with updates.
      every: one update each.
      refresh: of the target.
      replay: its size; it begins with `START`.
      batch: transitions.
      epsilon: from the start on.
      learning_rate: of Adam, in `minatar` of centered RMSProp.
      preset: of twin-graph, which has the same network.
      environment: as the peers call it.
      cleanrl: which file of CleanRL's trains it.
    """

    warm_up: int
    timed: int
    every: int
    refresh: int
    replay: int
    batch: int
    epsilon: float
    learning_rate: float
    preset: str
    environment: str
    cleanrl: str = ""


TASKS = {
    "nature": Task(
        *(1_536, 2_048, 4, 1_000, 20_000, 32, 0.02, 1e-4), "pong", "PongNoFrameskip-v4", cleanrl="dqn_atari.py"
    ),
    "mlp": Task(*(4_096, 16_384, 2, 500, 100_000, 64, 0.1, 3e-4), "cartpole", "CartPole-v1", cleanrl="dqn.py"),
    "minatar": Task(*(2_048, 6_144, 1, 1_000, 100_000, 32, 0.1, 2.5e-4), "minatar", "MinAtar/Breakout-v1"),
}


def twin_graph(task: Task, settings: dict[str, Any]) -> Work:
    """The preset, brought to the common settings."""
    from twin_graph import config, envs, training
    from twin_graph.snapshots.run import create

    common = {
        "train.start_steps": START,
        "train.every_steps": task.every,
        "train.batch_size": task.batch,
        "train.n_step": 1,
        "train.learning_rate": task.learning_rate,
        "train.steps": task.warm_up + task.timed + 1_000,
        "env.count": ENVIRONMENTS,
        "replay.capacity_steps": task.replay,
        "act.epsilon_start": task.epsilon,
        "act.epsilon_end": task.epsilon,
        "target.refresh_every_updates": task.refresh // task.every,
        "evaluate.episodes": 0,
        "twin.threads": os.cpu_count() if task.preset == "pong" else 1,
        "twin.precision": "fp32",
    }
    chosen = config.load(task.preset, {**common, **settings}.items())
    env = envs.make(chosen.env, count=chosen.env.count)
    began, before = math.nan, 0
    with tempfile.TemporaryDirectory() as folder:
        for progress in training.train(create(Path(folder) / "run", chosen), env):
            if progress.agent_steps == task.warm_up:
                began, before = time.perf_counter(), progress.updates
            if progress.agent_steps == task.warm_up + task.timed:
                seconds = time.perf_counter() - began
                work = {"updates": progress.updates - before, "seconds": seconds}
                progress.stop.set()
    env.close()
    return {"agent_steps": task.timed, "batch_size": chosen.train.batch_size, **work}


def stable_baselines3(task: Task, library: str = "stable_baselines3") -> Work:
    """Its DQN as its documentation has it, with vector environments; or that of SBX, which has the same interface."""
    from stable_baselines3.common.callbacks import BaseCallback

    dqn = importlib.import_module(library).DQN

    class Clock(BaseCallback):
        began, before, seconds, updates = math.nan, 0, math.nan, 0

        def _on_step(self) -> bool:
            if self.num_timesteps == task.warm_up:
                self.began, self.before = time.perf_counter(), self.model._n_updates
            if self.num_timesteps == task.warm_up + task.timed:
                self.seconds, self.updates = time.perf_counter() - self.began, self.model._n_updates - self.before
            return bool(self.num_timesteps < task.warm_up + task.timed)

    policy, env, network = stable_baselines3_parts(task)
    model = dqn(
        policy,
        env,
        learning_rate=task.learning_rate,
        buffer_size=task.replay,
        learning_starts=START,
        batch_size=task.batch,
        train_freq=1,  # vector steps
        gradient_steps=ENVIRONMENTS // task.every,
        target_update_interval=task.refresh,
        exploration_initial_eps=task.epsilon,
        exploration_final_eps=task.epsilon,
        policy_kwargs=network,
        seed=1,
    )
    clock = Clock()
    model.learn(task.warm_up + 2 * task.timed, callback=clock)
    return {
        "agent_steps": task.timed,
        "updates": clock.updates,
        "batch_size": model.batch_size,
        "seconds": clock.seconds,
    }


def stable_baselines3_parts(task: Task) -> tuple[str, Any, dict[str, Any]]:
    """Its policy, environments and the policy's arguments."""
    from stable_baselines3.common.env_util import make_atari_env, make_vec_env

    if task.preset == "pong":
        import ale_py
        import gymnasium
        from stable_baselines3.common.vec_env import VecFrameStack

        gymnasium.register_envs(ale_py)
        return "CnnPolicy", VecFrameStack(make_atari_env(task.environment, n_envs=ENVIRONMENTS, seed=1), 4), {}
    if task.preset == "cartpole":
        env = make_vec_env(task.environment, n_envs=ENVIRONMENTS, seed=1)
        return "MlpPolicy", env, {"net_arch": [128, 128]}
    import torch

    network = {
        "features_extractor_class": minatar_features(),
        "net_arch": [],
        "optimizer_class": torch.optim.RMSprop,
        "optimizer_kwargs": RMSPROP,
    }
    return "MlpPolicy", make_vec_env(lambda: minatar_for_torch(task.environment), n_envs=ENVIRONMENTS), network


RMSPROP = {"alpha": 0.95, "eps": 0.01, "centered": True}


def minatar_for_torch(environment: str) -> Any:
    """A game whose observations are float32, channels first."""
    import gymnasium
    import minatar.gym
    import numpy as np

    if environment not in gymnasium.registry:
        minatar.gym.register_envs()
    env: Any = gymnasium.make(environment)
    height, width, channels = env.observation_space.shape
    space = gymnasium.spaces.Box(0, 1, (channels, height, width), np.float32)
    return gymnasium.wrappers.TransformObservation(env, lambda s: s.transpose(2, 0, 1).astype(np.float32), space)


def minatar_layers(channels: int) -> Any:
    """The network of Young and Tian 2019 up to its 128 units, in PyTorch."""
    from torch import nn

    return nn.Sequential(*(nn.Conv2d(channels, 16, 3), nn.ReLU(), nn.Flatten(), nn.Linear(1_024, 128), nn.ReLU()))


def minatar_features() -> Any:
    from stable_baselines3.common.torch_layers import BaseFeaturesExtractor

    class Features(BaseFeaturesExtractor):
        def __init__(self, space: Any) -> None:
            super().__init__(space, 128)
            self.layers = minatar_layers(space.shape[0])

        def forward(self, observations: Any) -> Any:
            return self.layers(observations)

    return Features


def tianshou_parts(task: Task) -> tuple[Any, Any, Any, dict[str, Any]]:
    """Its environments, network and optimizer, and the arguments of a buffer of stacked frames."""
    import gymnasium
    import numpy as np
    import torch
    from tianshou.algorithm.optim import AdamOptimizerFactory, RMSpropOptimizerFactory
    from tianshou.env import DummyVectorEnv

    adam = AdamOptimizerFactory(lr=task.learning_rate)
    if task.preset == "pong":
        from single_file_dqn import make_env
        from tianshou.env.atari.atari_network import DQNet

        class Scaled(DQNet):
            def forward(self, obs: Any, state: Any = None, info: Any = None) -> Any:
                return super().forward(np.asarray(obs, np.float32) / 255.0, state, info)

        envs = DummyVectorEnv([lambda seed=seed: make_env("ALE/Pong-v5", seed) for seed in range(ENVIRONMENTS)])
        stacked = {"ignore_obs_next": True, "save_only_last_obs": True, "stack_num": 4}
        return envs, Scaled(4, 84, 84, int(envs.action_space[0].n)), adam, stacked
    if task.preset == "cartpole":
        from tianshou.utils.net.common import Net

        envs = DummyVectorEnv([lambda: gymnasium.make(task.environment) for _ in range(ENVIRONMENTS)])
        return envs, Net(state_shape=(4,), action_shape=2, hidden_sizes=[128, 128]), adam, {}

    class Model(torch.nn.Module):
        def __init__(self, channels: int, actions: int) -> None:
            super().__init__()
            self.layers = minatar_layers(channels)
            self.layers.append(torch.nn.Linear(128, actions))

        def forward(self, obs: Any, state: Any = None, info: Any = None) -> Any:  # noqa: ARG002 - Tianshou's signature
            return self.layers(torch.as_tensor(obs)), state

    one = minatar_for_torch(task.environment)
    model = Model(one.observation_space.shape[0], int(one.action_space.n))
    envs = DummyVectorEnv([lambda: minatar_for_torch(task.environment) for _ in range(ENVIRONMENTS)])
    return envs, model, RMSpropOptimizerFactory(lr=task.learning_rate, **RMSPROP), {}


def tianshou(task: Task) -> Work:
    """Its collector, buffer and DQN, stepped and updated in turn.

    Pong on the wrappers of the single file: those of Tianshou 2.0.1 fail with NumPy 2.4.
    """
    from tianshou.algorithm import DQN
    from tianshou.algorithm.modelfree.dqn import DiscreteQLearningPolicy
    from tianshou.data import Collector, VectorReplayBuffer
    from tianshou.utils.torch_utils import policy_within_training_step

    envs, model, optimizer, stacked = tianshou_parts(task)
    actions = envs.action_space[0]
    policy = DiscreteQLearningPolicy(model=model, action_space=actions, eps_training=task.epsilon)
    algorithm = DQN(
        policy=policy,
        optim=optimizer,
        target_update_freq=task.refresh // task.every,
        is_double=False,
        huber_loss_delta=1.0,
    )
    buffer = VectorReplayBuffer(task.replay, ENVIRONMENTS, **stacked)
    collector = Collector(policy, envs, buffer, exploration_noise=True)
    collector.reset()
    collector.collect(n_step=START, random=True)
    steps = updates = before = 0
    began = math.nan
    policy.train()
    while steps < task.warm_up - START + task.timed:
        if steps == task.warm_up - START:
            began, before = time.perf_counter(), updates
        collector.collect(n_step=ENVIRONMENTS)
        steps += ENVIRONMENTS
        with policy_within_training_step(policy):
            for _ in range(ENVIRONMENTS // task.every):
                algorithm.update(buffer, task.batch)
                updates += 1
    return {
        "agent_steps": task.timed,
        "updates": updates - before,
        "batch_size": task.batch,
        "seconds": time.perf_counter() - began,
    }


def single_file() -> Work:
    """single_file_dqn.py, in a process of its own."""
    done = subprocess.run(
        [sys.executable, HERE / "single_file_dqn.py"], check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    work: Work = json.loads(done.stdout.splitlines()[-1])
    return work


def cleanrl(task: Task, checkout: Path, python: str) -> Work:
    """CleanRL's own file, unchanged: a longer training less a shorter one, as it has no clock of its own."""
    start = (
        "import runpy, sys, ale_py, gymnasium; getattr(gymnasium, 'register_envs', lambda _: None)(ale_py); "
        "sys.argv = sys.argv[1:]; runpy.run_path(sys.argv[0], run_name='__main__')"
    )
    seconds = []
    for steps in (task.warm_up, task.warm_up + task.timed):
        options = {
            "env-id": task.environment,
            "total-timesteps": steps,
            "learning-starts": START,
            "buffer-size": task.replay,
            "start-e": task.epsilon,
            "end-e": task.epsilon,
            "learning-rate": task.learning_rate,
            "train-frequency": task.every,
            "target-network-frequency": task.refresh,
            "batch-size": task.batch,
        }
        arguments = [f"--{name}={value}" for name, value in options.items()]
        with tempfile.TemporaryDirectory() as folder:
            began = time.perf_counter()
            subprocess.run(
                [python, "-c", start, checkout / "cleanrl" / task.cleanrl, *arguments],
                check=True,
                cwd=folder,
                env={**os.environ, "PYTHONPATH": str(checkout)},
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
            seconds.append(time.perf_counter() - began)
    # It updates at every multiple of train-frequency beyond learning-starts.
    updates = task.timed // task.every
    return {"agent_steps": task.timed, "updates": updates, "batch_size": task.batch, "seconds": seconds[1] - seconds[0]}


def purejaxrl(task: Task, checkout: Path, python: str) -> Work:
    """purejaxrl's own file, brought to the same work by compiled_whole.py, in an environment of its own."""
    done = subprocess.run(
        [python, HERE / "compiled_whole.py", checkout, json.dumps(task._asdict())],
        check=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    work: Work = json.loads(done.stdout.splitlines()[-1])
    return work


def sides_of(network: str) -> dict[str, Callable[[], Work]]:
    """All sides but those that need a checkout."""
    from twin_graph.base import machine

    task = TASKS[network]
    sides: dict[str, Callable[[], Work]] = {
        "twin-graph": lambda: twin_graph(task, {}),
        "twin-graph, one thread for all": lambda: twin_graph(task, {"twin.overlap": False}),
        "twin-graph, classic loop": lambda: twin_graph(task, {"train.chunk_steps": 0, "twin.compiled": False}),
    }
    if network != "nature":
        sides["twin-graph, not compiled"] = lambda: twin_graph(task, {"twin.compiled": False})
    elif machine.has_bf16():
        sides["twin-graph, bf16"] = lambda: twin_graph(task, {"twin.precision": "bf16"})
    sides["Stable-Baselines3"] = lambda: stable_baselines3(task)
    if network != "minatar":  # it takes no network of one's own
        sides["SBX"] = lambda: stable_baselines3(task, "sbx")
    if network == "nature":
        sides["single file, PyTorch"] = single_file
    sides["Tianshou"] = lambda: tianshou(task)
    return sides


PEERS = ("Stable-Baselines3", "SBX", "single file, PyTorch", "Tianshou", "CleanRL", "purejaxrl")


@click.command()
@click.option("--network", type=click.Choice(list(TASKS)), default="nature", show_default=True)
@click.option("--rounds", default=5, show_default=True, type=click.IntRange(min=1))
@click.option("--json", "path", type=click.Path(path_type=Path), help="Also write the figures here.")
@click.option("--cleanrl", "checkout", type=click.Path(exists=True, path_type=Path), help="A checkout of CleanRL.")
@click.option("--cleanrl-python", default=sys.executable, help="The Python that has what CleanRL needs.")
@click.option("--purejaxrl", "whole", type=click.Path(exists=True, path_type=Path), help="A checkout of purejaxrl.")
@click.option("--purejaxrl-python", "whole_python", default=sys.executable, help="The Python that has what it needs.")
@click.option("--side", hidden=True)
def main(
    network: str,
    rounds: int,
    path: Path | None,
    checkout: Path | None,
    cleanrl_python: str,
    whole: Path | None,
    whole_python: str,
    side: str | None,
) -> None:
    """Run every side in turn, ROUNDS times; print a table."""
    if side:
        print(json.dumps(sides_of(network)[side]()))
        return
    from twin_graph.base import machine

    def side_of(name: str) -> Callable[[], Work]:
        return lambda: in_a_process(__file__, "--network", network, "--side", name)

    task = TASKS[network]
    sides = {name: side_of(name) for name in sides_of(network)}
    if checkout and task.cleanrl:
        sides["CleanRL"] = lambda: cleanrl(task, checkout.absolute(), cleanrl_python)
    if whole and network == "mlp":
        sides["purejaxrl"] = lambda: purejaxrl(task, whole.absolute(), whole_python)
    rates: dict[str, list[float]] = {name: [] for name in sides}
    for _ in track(range(rounds), "rounds", console=Console(stderr=True)):
        for name, run in sides.items():
            work = run()
            done = {key: work[key] for key in ("agent_steps", "updates", "batch_size")}
            wanted = {"agent_steps": task.timed, "updates": task.timed // task.every, "batch_size": task.batch}
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
    learners = ("twin-graph", "tensorflow", "stable-baselines3", "torch", "sbx-rl", "jax", "tianshou")
    packages = (*learners, "gymnasium", "ale-py", "numpy")
    document = {
        "processor": machine.describe()._asdict(),
        "versions": {name: importlib.metadata.version(name) for name in packages},
        "network": network,
        "work": task._asdict(),
        "agent_steps_per_second": rates,
        "fastest_peer": fastest,
        "ratios_by_round": ratios,
    }
    if path:
        path.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
