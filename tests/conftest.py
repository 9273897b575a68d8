"""What all tests share: small settings on real environments, and no fsync.

`tests/unit` needs no TensorFlow; `tests/runs` trains.
"""

import atexit
import os
import shutil
import signal
import tempfile
from collections.abc import Callable
from typing import Any

import hypothesis
import pytest

from twin_graph import config

# A killed process loses nothing that the kernel has, so that only tests of a power failure need the disk itself: those
# ask for `durable`. It is two thousand fsyncs a minute.
_FSYNC = os.fsync
os.fsync = lambda descriptor: None

# What tests begin is not to be remembered as the user's own. All processes of a session share one folder.
if "PYTEST_XDIST_WORKER" not in os.environ:
    os.environ["XDG_CONFIG_HOME"] = _configuration = tempfile.mkdtemp(prefix="twin-graph-")
    atexit.register(shutil.rmtree, _configuration, ignore_errors=True)

signal.signal(signal.SIGHUP, signal.SIG_DFL)  # also where they run under nohup: some send it

# No limit for an example's time: on a busy machine any may take long.
hypothesis.settings.register_profile("busy", deadline=None)
hypothesis.settings.load_profile("busy")

# One thread a session: tests compare hashes, and the tiny networks gain nothing from two. The classic loop, where a
# test does not ask for chunks; not compiled, which takes a second a run: tests/runs/test_block.py is about that.
CARTPOLE = {
    "train.chunk_steps": 0,
    "twin.compiled": False,
    "train.steps": 1_200,
    "train.start_steps": 200,
    "train.every_steps": 4,
    "train.n_step": 3,
    "train.batch_size": 16,
    "model.hidden_units": [16],
    "target.refresh_every_updates": 50,
    "resume.every_steps": 500,
    "evaluate.every_steps": 600,
    "evaluate.episodes": 2,
    "log.every_steps": 200,
    "twin.threads": 1,
}
PONG = {
    "env.count": 2,
    "train.steps": 160,
    "train.start_steps": 80,
    "train.every_steps": 4,
    "train.n_step": 3,
    "train.chunk_steps": 16,
    "train.batch_size": 4,
    "replay.capacity_steps": 1_000,
    "target.refresh_every_updates": 8,
    "resume.every_steps": 100,
    "evaluate.episodes": 0,
    "log.every_steps": 40,
}
TICTACTOE = {
    "env.count": 4,
    "train.chunk_steps": 0,
    "twin.compiled": False,
    "train.steps": 1_200,
    "train.start_steps": 200,
    "train.every_steps": 4,
    "train.batch_size": 16,
    "model.hidden_units": [16],
    "target.refresh_every_updates": 50,
    "save.every_updates": 20,
    "opponent.refresh_every_updates": 30,
    "resume.every_steps": 500,
    "evaluate.every_steps": 600,
    "evaluate.episodes": 4,
    "log.every_steps": 200,
}

# Files that take a minute or more, the longest first: one that began last would keep a single core busy at the end.
LONG = (
    *("distributed", "experiments", "experiments_ray", "resume", "howtos", "reproduce", "exchange", "selfplay"),
    *("remote", "findings", "combinations", "cli", "training", "kill", "strangers", "trust", "two_hosts", "branches"),
)


def pytest_xdist_auto_num_workers() -> int:
    """For `-n auto`: two more than there are cores, since many tests wait for processes that they started or killed."""
    return (os.cpu_count() or 1) + 2


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    place = {f"test_{name}": i for i, name in enumerate(LONG)}
    items.sort(key=lambda item: place.get(item.path.stem, len(LONG)))


@pytest.fixture
def durable(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets this test's fsyncs reach the disk."""
    monkeypatch.setattr(os, "fsync", _FSYNC)


@pytest.fixture
def cartpole() -> Callable[..., config.Settings]:
    """Settings of a CartPole training of seconds; keyword arguments are dotted names with `__` for the dot."""
    return lambda **changes: _settings("cartpole", CARTPOLE, changes)


@pytest.fixture
def pong() -> Callable[..., config.Settings]:
    """Settings of a Pong training of seconds, on the real emulator and the whole network."""
    return lambda **changes: _settings("pong", PONG, changes)


@pytest.fixture
def tictactoe() -> Callable[..., config.Settings]:
    """Settings of tic-tac-toe against a past self, for seconds."""
    return lambda **changes: _settings("tictactoe", TICTACTOE, changes)


def _settings(preset: str, small: dict[str, Any], changes: dict[str, Any]) -> config.Settings:
    dotted = {key.replace("__", "."): value for key, value in changes.items()}
    return config.load(preset, {**small, **dotted}.items())
