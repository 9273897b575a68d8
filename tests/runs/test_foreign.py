"""Other people's code: what it prints, and what it returns that is not as it should be."""

import json
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from attempts import end, whole_and_killed
from commands import twin_graph

LOUD = """
import os

import gymnasium
from gymnasium.envs.classic_control import CartPoleEnv

from twin_graph.layers import dense, last_layer, torch_default
from twin_graph.targets import Choice


def shout(what):
    print(f"LOUD {what}")
    os.write(1, f"LOUDER {what}\\n".encode())


shout("import")


class Loud(CartPoleEnv):
    def __init__(self, **options):
        shout("init")
        super().__init__(**options)

    def reset(self, **options):
        shout("reset")
        return super().reset(**options)

    def step(self, action):
        shout("step")
        return super().step(action)


gymnasium.register("Loud-v0", Loud, max_episode_steps=30)


def network(observation, n_actions, build):
    shout("network")
    return last_layer("q", dense("fc1", observation, 8, torch_default), n_actions, torch_default)


def loss(td_error, n_actions):
    shout("loss")
    return td_error ** 2


def policy(history, random):
    shout("policy")
    newest = history.snapshots[-1:]
    return Choice(newest, newest, "the newest")
"""

SHORT = ("train.start_steps=100", "evaluate.every_steps=200", "evaluate.episodes=1", "resume.every_steps=200")


def given(*settings: str) -> list[str]:
    return [f"--set={setting}" for setting in settings]


@pytest.mark.parametrize("vectorization", ["sync", "async"])
def test_json_is_one_document_whatever_foreign_code_prints(tmp_path: Path, vectorization: str) -> None:
    (tmp_path / "loud.py").write_text(LOUD)
    loud = given("network=loud:network", "loss=loud:loss", "target.policy=loud:policy", "twin.threads=1", "env.count=2")
    loud += given(*SHORT, f"env.vectorization={vectorization}", "twin.precision=fp32")
    # `explain` and the like import the policy's module; in processes of their own, environments print to descriptors.
    commands: Sequence[Sequence[str]] = [
        ("train", "cartpole", "--env=loud:Loud-v0", "--steps=400", "--run-dir=run", *loud),
        ("resume", "run", "--steps=600"),
        ("evaluate", "run", "--episodes=2"),
        *((command, "run") for command in ("status", "log", "verify", "prune")),
        ("show", "run", "latest"),
        ("explain", "run", "--update=10"),
        ("fork", "run"),
        ("compare", "run", "run-fork1"),
        ("reproduce", "run"),
        ("export", "run", "latest", "network.npz"),
        ("average", "run", "--last=2"),
        ("diff", "run", "latest", "latest~1"),
        ("swap", "run", "latest~1"),
        ("runs", "."),
    ]
    loudly = 0
    for words in commands if vectorization == "sync" else commands[:3]:
        done = twin_graph(*words, "--json", cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout), words
        loudly += "LOUD import" in done.stderr and "LOUDER import" in done.stderr
    assert loudly >= 3
    shown = twin_graph("export", "run", "latest", "again.npz", cwd=tmp_path)
    assert "LOUD" not in shown.stdout


WRONG = """
import os

import gymnasium
import numpy as np
from gymnasium import spaces


class Wrong(gymnasium.Env):
    observation_space = spaces.Box(-1, 1, (2,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(self, how, render_mode=None):
        self.how = how

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        seen = np.zeros(3 if self.how == "shape" else 2, np.float32)
        return seen if self.how == "no info" else (seen, None if self.how == "info" else {})

    def step(self, action):
        self.steps += 1
        how, over = self.how, self.steps == 10
        seen = np.zeros(2, np.float32)
        reward = {"reward": np.ones(1), "no reward": None, "not a number": np.nan}.get(how, 1.0)
        if how == "four":
            return seen, reward, over, {}
        if how == "raises":
            raise KeyError("price")
        if how == "observes nothing":
            seen = None
        if how == "huge":
            seen = np.full(2, np.inf, np.float32)
        return seen, reward, np.array([over]) if how == "done" else over, False, {}


gymnasium.register("Wrong-v0", Wrong)
"""


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("no info", "reset: it returned an array of shape [2], and must return (observation, info)"),
        ("info", "reset: it returned a tuple of 2: (an array of shape [2], NoneType None), and must return (obs"),
        ("shape", "reset: the observation has shape [3], and observation_space says [2]"),
        ("four", "step: it returned a tuple of 4: (an array of shape [2], float 1.0, bool False, dict {}), and must "),
        ("reward", "step: it returned a reward that is an array of shape [1], and must return a number"),
        ("no reward", "step: it returned a reward that is NoneType None, and must return a number"),
        ("not a number", "the reward is nan, and must be finite"),
        ("done", "step: it returned terminated that is an array of shape [1], and must return True or False"),
        ("observes nothing", "step: the observation has shape [], and observation_space says [2]"),
        ("huge", "the observation is inf, and must be finite"),
        ("raises", "step: KeyError: 'price' ("),
    ],
)
def test_a_wrong_environment_is_stopped_before_training_and_leaves_no_run(
    how: str, message: str, tmp_path: Path
) -> None:
    (tmp_path / "wrong.py").write_text(WRONG)
    wrong = given(f"env.kwargs.how={how}", "twin.threads=1")
    done = twin_graph("train", "cartpole", "--env=wrong:Wrong-v0", *wrong, "--run-dir=run", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (1, "")
    assert message in done.stderr
    assert done.stderr.startswith("Error: ")
    assert done.stderr.count("\n") == 1
    assert not (tmp_path / "run").exists()


ALONE = """
import gymnasium
from gymnasium.envs.classic_control import CartPoleEnv


class Alone(CartPoleEnv):
    living = 0

    def __init__(self, **options):
        super().__init__(**options)
        if Alone.living:
            raise OSError(98, "Address already in use")
        Alone.living += 1

    def close(self):
        super().close()
        Alone.living -= 1


gymnasium.register("Alone-v0", Alone, max_episode_steps=100)
"""


def test_a_simulator_of_which_there_can_be_one_is_evaluated_in_its_stead(tmp_path: Path) -> None:
    (tmp_path / "alone.py").write_text(ALONE)
    base = ("train", "cartpole", "--env=alone:Alone-v0", "--steps=480", *given(*SHORT, "twin.threads=1", "env.count=1"))
    refused = twin_graph(*base, "--run-dir=refused", cwd=tmp_path)
    assert refused.returncode == 2
    assert "Address already in use" in refused.stderr
    assert "If only one can exist at a time: --set env.alone=true --set env.count=1" in refused.stderr
    assert not (tmp_path / "refused").exists()
    several = twin_graph(*base, *given("env.alone=true", "env.count=2"), cwd=tmp_path)
    assert "only one can exist: set env.count=1" in several.stderr

    whole = twin_graph(*base, *given("env.alone=true"), "--run-dir=whole", "--json", cwd=tmp_path)
    assert whole.returncode == 0, whole.stderr
    again = twin_graph(*base, *given("env.alone=true"), "--steps=300", "--run-dir=killed", cwd=tmp_path)
    assert again.returncode == 0, again.stderr
    evaluated = twin_graph("evaluate", "whole", "--episodes=2", "--json", cwd=tmp_path)
    assert len(json.loads(evaluated.stdout)["returns"]) == 2
    assert len(json.loads(whole.stdout)["evaluations"]) == 1


def test_a_resumed_run_of_one_simulator_ends_like_an_uninterrupted_one(
    cartpole: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "alone_again.py").write_text(ALONE.replace("Alone-v0", "AloneAgain-v0"))
    monkeypatch.syspath_prepend(tmp_path)
    settings = cartpole(
        env__id="alone_again:AloneAgain-v0", env__count=1, env__alone=True, loss="mse", evaluate__every_steps=230
    )
    whole, killed = whole_and_killed(settings, tmp_path, 640)
    assert end(killed) == end(whole)


SCRIPT = """
import twin_graph
{guard}
settings = twin_graph.load("cartpole", [("env.vectorization", "async"), ("train.steps", 64), ("env.count", 2)])
twin_graph.create("run", settings).train()
"""


def test_a_script_without_a_guard_is_told_of_it(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT.format(guard=""))
    done = subprocess.run([sys.executable, script], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    last = done.stderr.strip().splitlines()[-1]
    assert re.search(
        r'ForeignError: CartPole-v1: .*; put what .*script\.py does under: if __name__ == "__main__":$', last
    )
