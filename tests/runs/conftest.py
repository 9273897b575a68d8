"""Runs that tests share: each is trained once, and copied."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from filelock import FileLock

from twin_graph import config, envs, training
from twin_graph.snapshots.run import Run, create
from twin_graph.twin import twin
from twin_graph.twin.model import ModelSpec
from twin_graph.twin.twin import Built, Twin

_built, _close = twin.built, Twin.close
#: Graphs that no twin has at the moment.
_idle: dict[str, list[Built]] = {}


@pytest.fixture(autouse=True)
def _graphs_are_built_once(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Passes the graph of a twin that was closed on to the next that would build an equal one.

    Hundreds of tests train the same few networks, and building their graphs took a third of the suite's time. A graph
    is final, and what a session computed is gone with it. Commands, each in a process of its own, build all theirs; so
    does a test that asks for `graphs_of_its_own`, as one must that changes what is built.
    """
    if "graphs_of_its_own" in request.fixturenames:
        return

    def built(spec: ModelSpec, seed: int, dtype: object, **options: object) -> Built:
        key = f"{spec} {seed} {dtype} {options}"
        idle = [] if ":" in f"{spec.network}{spec.loss}{spec.train.optimizer}" else _idle.setdefault(key, [])
        found = idle.pop() if idle else _built(spec, seed, dtype, **options)
        idle_of[id(found)] = idle
        return found

    def close(one: Twin) -> None:
        _close(one)
        if (idle := idle_of.pop(id(one._built), None)) is not None:
            idle.append(one._built)

    idle_of: dict[int, list[Built]] = {}
    monkeypatch.setattr(twin, "built", built)
    monkeypatch.setattr(Twin, "close", close)


@pytest.fixture
def graphs_of_its_own() -> None:
    """This test's twins build their graphs."""


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
