"""Whose code runs: what the user named here, or trusted; never what came with a run."""

from __future__ import annotations

import importlib.util
import json
import os
import py_compile
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from commands import twin_graph

from twin_graph import notebook
from twin_graph.config import trust
from twin_graph.errors import UntrustedError
from twin_graph.snapshots.files import checked

POLICY = """
from pathlib import Path
from twin_graph.targets import Choice

with (Path(__file__).parent / "ran").open("a") as file:
    print("ran", file=file)

def mine(history, random, size: int = 1):
    return Choice(history.snapshots[-1:], history.snapshots[-size:], "mine")
"""
SMALL = (
    *("--steps", "600", "--set", "train.start_steps=200", "--set", "train.every_steps=4"),
    *("--set", "evaluate.episodes=0", "--set", "twin.threads=1", "--set", "twin.compiled=false"),
    *("--set", "model.hidden_units=[16]", "--set", "target.refresh_every_updates=50"),
)


def _environment(folder: Path, whose: str) -> dict[str, str]:
    return {**os.environ, "XDG_CONFIG_HOME": str(folder / whose)}


@pytest.fixture(scope="module")
def begun(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run and the module of its target's policy, and the user `author` who began it."""
    folder = tmp_path_factory.mktemp("begun")
    (folder / "ours.py").write_text(POLICY)
    policy = ("--set", "target.policy=ours:mine(2)")
    made = twin_graph(
        *("train", "cartpole", "--run-dir", "run", *policy, *SMALL), cwd=folder, env=_environment(folder, "author")
    )
    assert made.returncode == 0, made.stderr
    (folder / "ran").unlink()
    return folder


@pytest.fixture
def received(begun: Path, tmp_path: Path) -> Path:
    """The same at another user's, who has trusted nothing."""
    folder = tmp_path / "received"
    shutil.copytree(begun, folder)
    (folder / "ran").unlink(missing_ok=True)
    return folder


NEEDS_CODE = (
    *(("evaluate", "run", "--episodes", "1"), ("resume", "run", "--steps", "700"), ("prune", "run")),
    *(("prune", "run", "--dry-run"), ("reproduce", "run"), ("export", "run", "latest", "weights.npz")),
    *(("average", "run", "0", "1"), ("record", "run"), ("import", "run", "run/resume/NEWEST/online")),
)
READERS = (
    *(("log", "run"), ("show", "run", "latest"), ("explain", "run", "--update", "60"), ("status", "run"), ("runs",)),
    *(
        ("verify", "run"),
        ("fork", "run", "--run-dir", "fork"),
        ("swap", "run", "0", "--dry-run"),
        ("diff", "run", "0", "1"),
    ),
)


def test_readers_run_no_code_of_a_run(received: Path) -> None:
    environment = _environment(received, "reader")
    for arguments in READERS:
        told = twin_graph(*arguments, cwd=received, env=environment)
        assert (told.returncode, (received / "ran").exists()) == (0, False), (arguments, told.stderr)


@pytest.mark.parametrize("arguments", NEEDS_CODE, ids=" ".join)
def test_what_needs_code_names_it_and_asks(received: Path, arguments: tuple[str, ...]) -> None:
    newest = max(path.name for path in (received / "run" / "resume").glob("0*"))
    words = [word.replace("NEWEST", newest) for word in arguments]
    told = twin_graph(*words, cwd=received, env=_environment(received, "reader"))
    assert told.returncode == 2
    assert "run was not begun here" in told.stderr
    assert "target.policy=ours:mine(2) (ours.py, sha256" in told.stderr
    assert "--trust-code" in told.stderr
    assert not (received / "ran").exists()


def test_what_was_trusted_is_not_asked_for_again_until_it_changes(received: Path) -> None:
    environment = _environment(received, "reader")
    trusted = twin_graph("resume", "run", "--steps", "610", "--trust-code", cwd=received, env=environment)
    assert trusted.returncode == 0, trusted.stderr
    assert "trusted from here on: target.policy=ours:mine(2) (ours.py, sha256" in trusted.stderr
    assert (received / "ran").exists()
    again = twin_graph("resume", "run", "--steps", "620", cwd=received, env=environment)
    assert again.returncode == 0, again.stderr
    (received / "ours.py").write_text(POLICY + "\n")
    changed = twin_graph("resume", "run", "--steps", "630", cwd=received, env=environment)
    assert (changed.returncode, "--trust-code" in changed.stderr) == (2, True)


def test_who_began_a_run_may_edit_its_code_and_move_its_folder(begun: Path, tmp_path: Path) -> None:
    folder = tmp_path / "mine"
    shutil.copytree(begun / "run", folder / "checkpoints" / "moved")
    environment = _environment(begun, "author")
    before = (begun / "ours.py").read_text()
    (begun / "ours.py").write_text(before + "\n")
    told = twin_graph("prune", str(folder / "checkpoints" / "moved"), "--dry-run", cwd=begun, env=environment)
    (begun / "ours.py").write_text(before)
    assert told.returncode == 0, told.stderr


def test_a_module_of_the_same_name_elsewhere_is_not_the_users_own(received: Path, begun: Path) -> None:
    """Somebody sends a run back to who began it, with other code."""
    (received / "ours.py").write_text(POLICY + "\n")
    told = twin_graph("prune", "run", "--dry-run", cwd=received, env=_environment(begun, "author"))
    assert (told.returncode, (received / "ran").exists()) == (2, False)


def test_bytecode_beside_a_module_is_not_read(received: Path) -> None:
    """An archive may bring harmless source, and bytecode of something else that claims to be compiled from it."""
    source = received / "ours.py"
    harmless = source.read_text()
    source.write_text(harmless.replace('"ran"', '"pwn"'))
    cached = Path(importlib.util.cache_from_source(str(source)))
    py_compile.compile(str(source), cfile=str(cached))
    times = source.stat()
    source.write_text(harmless)
    os.utime(source, ns=(times.st_atime_ns, times.st_mtime_ns))
    told = twin_graph("prune", "run", "--dry-run", "--trust-code", cwd=received, env=_environment(received, "reader"))
    assert told.returncode == 0, told.stderr
    assert ((received / "ran").exists(), (received / "pwn").exists()) == (True, False)


def test_what_lies_in_the_present_folder_is_imported_only_if_settings_name_it(received: Path) -> None:
    for name in ("tf_keras", "wandb", "pygame", "pandas_stubs"):
        (received / f"{name}.py").write_text(f"raise SystemExit('{name} ran')")
    code = (
        "import sys; from twin_graph_cli import run; sys.argv = ['twin-graph', 'evaluate', 'run', '--episodes', '1',"
        " '--trust-code']; run()"
    )
    environment = _environment(received, "reader")
    command = [sys.executable, "-P", "-c", code]
    told = subprocess.run(command, cwd=received, env=environment, capture_output=True, text=True, check=False)
    assert told.returncode == 0, told.stderr


def test_a_packages_parents_do_not_run_when_a_modules_file_is_looked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "outer" / "inner").mkdir(parents=True)
    for folder in ("outer", "outer/inner"):
        (tmp_path / folder / "__init__.py").write_text("raise SystemExit('ran')")
    (tmp_path / "outer" / "inner" / "code.py").write_text("raise SystemExit('ran')")
    monkeypatch.syspath_prepend(tmp_path)
    assert trust.file_of("outer.inner.code:build") == tmp_path / "outer" / "inner" / "code.py"
    assert trust.file_of("outer.inner") == tmp_path / "outer" / "inner" / "__init__.py"
    assert trust.file_of("outer.absent:build") is None
    assert trust.file_of("../evil:x") is None
    assert str(trust.file_of("sys:exit")) == "built-in"


def test_a_machine_that_keeps_nothing_is_told_by_its_environment(received: Path) -> None:
    environment = {**_environment(received, "reader"), trust.ALSO_TRUSTED: "ours:mine"}
    told = twin_graph("prune", "run", "--dry-run", cwd=received, env=environment)
    assert told.returncode == 0, told.stderr


def test_where_the_users_folder_cannot_be_written_a_run_trains_all_the_same(begun: Path, tmp_path: Path) -> None:
    (tmp_path / "ours.py").write_text(POLICY)
    (tmp_path / "no-folder").write_text("")
    environment = _environment(tmp_path, "no-folder")
    policy = ("--set", "target.policy=ours:mine")
    told = twin_graph("train", "cartpole", "--run-dir", "run", *policy, *SMALL, cwd=tmp_path, env=environment)
    assert told.returncode == 0, told.stderr


def test_a_notebook_asks_too(received: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trust, "_given", set())
    monkeypatch.chdir(received)
    monkeypatch.syspath_prepend(received)
    run = notebook.find("run")
    with pytest.raises(UntrustedError, match="ours:mine"):
        run.play(episodes=1)
    assert [words.partition(" (")[0] for words in run.trust_code()] == ["target.policy=ours:mine(2)"]
    assert run.trust_code() == []
    assert len(run.play(episodes=1).returns) == 1


@pytest.mark.parametrize("is_own", [False, True])
def test_the_record_elsewhere_of_a_strangers_run_gets_nothing(
    received: Path, is_own: bool, sent_to: Callable[[Path], list[str]]
) -> None:
    environment = {
        **_environment(received, "reader"),
        **{"MLFLOW_TRACKING_URI": f"file:{received}/mlruns", "MLFLOW_ALLOW_FILE_STORE": "true"},
    }
    description = json.loads((received / "run" / "run.json").read_text())
    del description["crc"]
    description["settings"]["log"]["to"] = "mlflow"
    description["settings"]["target"]["policy"] = "latest"
    (received / "run" / "run.json").write_bytes(checked(description, indent=1))
    more = ("--set", "log.to=mlflow") if is_own else ()
    told = twin_graph("resume", "run", "--steps", "620", *more, cwd=received, env=environment)
    assert told.returncode == 0, told.stderr
    assert ("log.to=mlflow gets nothing: this run was not begun here" in told.stderr) is not is_own
    assert bool(sent_to(received)) is is_own


@pytest.fixture
def sent_to() -> Callable[[Path], list[str]]:
    return lambda folder: [str(path) for path in folder.glob("mlruns/**/metrics/*")]
