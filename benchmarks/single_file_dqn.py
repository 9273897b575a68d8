"""DQN on Atari in PyTorch, in one file: a peer to be measured against, in the form that CleanRL gave such files.

One environment, wrappers and replay buffer of Stable-Baselines3, everything in one loop. It follows the 2015 paper as
the presets here do, trains, and prints how long the timed part took.

    python benchmarks/single_file_dqn.py --timed-steps 2048
"""

import json
import time
from typing import Any

import ale_py
import click
import gymnasium
import numpy as np
import torch
from stable_baselines3.common import atari_wrappers
from stable_baselines3.common.buffers import ReplayBuffer
from torch import nn

gymnasium.register_envs(ale_py)


def make_env(game: str, seed: int) -> gymnasium.Env:
    env = gymnasium.make(game, frameskip=1, repeat_action_probability=0.0)
    env = atari_wrappers.NoopResetEnv(env, noop_max=30)
    env = atari_wrappers.MaxAndSkipEnv(env, skip=4)
    env = atari_wrappers.EpisodicLifeEnv(env)
    env = atari_wrappers.ClipRewardEnv(env)
    env = gymnasium.wrappers.ResizeObservation(env, (84, 84))
    env = gymnasium.wrappers.GrayscaleObservation(env)
    env = gymnasium.wrappers.FrameStackObservation(env, 4)
    env.action_space.seed(seed)
    return env


class QNetwork(nn.Module):
    def __init__(self, n_actions: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(4, 32, 8, stride=4),
            nn.ReLU(),
            nn.Conv2d(32, 64, 4, stride=2),
            nn.ReLU(),
            nn.Conv2d(64, 64, 3, stride=1),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(3136, 512),
            nn.ReLU(),
            nn.Linear(512, n_actions),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x / 255.0)


@click.command()
@click.option("--game", default="ALE/Pong-v5")
@click.option("--seed", default=1)
@click.option("--learning-rate", default=1e-4)
@click.option("--buffer-steps", default=20_000)
@click.option("--start-steps", default=1_000)
@click.option("--warm-up-steps", default=1_536, help="When the timed part begins.")
@click.option("--timed-steps", default=2_048)
@click.option("--train-every-steps", default=4)
@click.option("--batch-size", default=32)
@click.option("--target-every-steps", default=1_000)
@click.option("--epsilon", default=0.02)
@click.option("--discount", default=0.99)
def main(
    game: str,
    seed: int,
    learning_rate: float,
    buffer_steps: int,
    start_steps: int,
    warm_up_steps: int,
    timed_steps: int,
    train_every_steps: int,
    batch_size: int,
    target_every_steps: int,
    epsilon: float,
    discount: float,
) -> None:
    random = np.random.default_rng(seed)
    torch.manual_seed(seed)
    envs: Any = gymnasium.vector.SyncVectorEnv(
        [lambda: make_env(game, seed)], autoreset_mode=gymnasium.vector.AutoresetMode.SAME_STEP
    )
    q_network = QNetwork(int(envs.single_action_space.n))
    target_network = QNetwork(int(envs.single_action_space.n))
    target_network.load_state_dict(q_network.state_dict())
    optimizer = torch.optim.Adam(q_network.parameters(), lr=learning_rate)
    buffer = ReplayBuffer(
        buffer_steps,
        envs.single_observation_space,
        envs.single_action_space,
        "cpu",
        optimize_memory_usage=True,
        handle_timeout_termination=False,
    )
    updates = updates_before = 0
    began = 0.0
    obs, _ = envs.reset(seed=seed)
    for step in range(warm_up_steps + timed_steps):
        if step == warm_up_steps:
            began, updates_before = time.perf_counter(), updates
        if step < start_steps or random.random() < epsilon:
            actions = envs.action_space.sample()
        else:
            with torch.no_grad():
                actions = q_network(torch.as_tensor(obs)).argmax(dim=1).numpy()
        next_obs, rewards, terminations, truncations, infos = envs.step(actions)
        real_next_obs = next_obs.copy()
        for i in np.flatnonzero(terminations | truncations):
            real_next_obs[i] = infos["final_obs"][i]
        buffer.add(obs, real_next_obs, actions, rewards, terminations, infos)
        obs = next_obs

        if step >= start_steps and step % train_every_steps == 0:
            data = buffer.sample(batch_size)
            with torch.no_grad():
                target_max = target_network(data.next_observations).max(dim=1).values
                td_target = data.rewards.flatten() + discount * target_max * (1 - data.dones.flatten())
            q = q_network(data.observations).gather(1, data.actions).squeeze(1)
            loss = nn.functional.smooth_l1_loss(q, td_target)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            updates += 1
        if step % target_every_steps == 0:
            target_network.load_state_dict(q_network.state_dict())
    seconds = time.perf_counter() - began
    work = {"agent_steps": timed_steps, "updates": updates - updates_before, "batch_size": batch_size}
    print(json.dumps({**work, "seconds": seconds, "torch_threads": torch.get_num_threads()}))


if __name__ == "__main__":
    main()
