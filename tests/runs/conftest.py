"""Runs that tests share: each is trained once, and copied."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from filelock import FileLock

from twin_graph import config, envs, training
from twin_graph.snapshots.run import Run, create


@pytest.fixture
def train(tmp_path: Path) -> Callable[..., Run]:
    """Trains to the end and returns the run, in a new folder each time."""

    def run_to_end(settings: config.Settings) -> Run:
        run = create(tmp_path / f"run{len(list(tmp_path.iterdir()))}", settings)
        env = envs.make(settings.env, count=settings.env.count)
        try:
            for _ in training.train(run, env):
                pass
        finally:
            env.close()
        return run

    return run_to_end


@pytest.fixture(scope="session")
def _trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of the runs that `trained` has made, by the hash of their settings; pytest-xdist's workers share it."""
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "trained"
    folder.mkdir(exist_ok=True)
    return folder


@pytest.fixture
def trained(
    train: Callable[[config.Settings], Run], tmp_path: Path, _trained: Path
) -> Callable[[config.Settings], Run]:
    """As `train`, but equal settings are trained once, and copied: of two runs that a test compares, one at most."""

    def copy(settings: config.Settings) -> Run:
        kept = _trained / settings.sha256()
        with FileLock(f"{kept}.lock"):
            if not kept.exists():
                shutil.copytree(train(settings).folder, kept.with_suffix(".part"))
                kept.with_suffix(".part").rename(kept)
        return Run(shutil.copytree(kept, tmp_path / f"copy{len(list(tmp_path.iterdir()))}"))

    return copy
