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

from twin_graph import config, notebook
from twin_graph.base import modules
from twin_graph.config import trust
from twin_graph.errors import UntrustedError, UsageError
from twin_graph.experiments import plan as plans
from twin_graph.snapshots.files import checked
from twin_graph.snapshots.run import Run

POLICY = """
from pathlib import Path
from twin_graph.layers import last_layer, torch_default
from twin_graph.targets import Choice

with (Path(__file__).parent / "ran").open("a") as file:
    print("ran", file=file)

def mine(history, random, size: int = 1):
    return Choice(history.snapshots[-1:], history.snapshots[-size:], "mine")

def build(observation, n_actions, build):
    return last_layer("q", observation, n_actions, torch_default)
"""
SMALL = (
    *("--steps", "600", "--set", "train.start_steps=200", "--set", "train.every_steps=4"),
    *("--set", "evaluate.episodes=0", "--set", "twin.threads=1", "--set", "twin.compiled=false"),
    *("--set", "target.refresh_every_updates=50"),
)


def _environment(folder: Path, whose: str) -> dict[str, str]:
    return {**os.environ, "XDG_CONFIG_HOME": str(folder / whose)}


@pytest.fixture(scope="module")
def begun(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run and the module of its target's policy, and the user `author` who began it."""
    folder = tmp_path_factory.mktemp("begun")
    (folder / "ours.py").write_text(POLICY)
    policy = ("--set", "target.policy=ours:mine(2)", "--set", "network=ours:build")
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
    *(
        ("average", "run", "0", "1"),
        ("record", "run"),
        ("compare", "run", "run"),
        ("import", "run", "run/resume/NEWEST/online"),
    ),
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
    assert "network=ours:build (ours.py, sha256" in told.stderr
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
    first, second = tmp_path / "outer" / "__init__.py", tmp_path / "outer" / "inner" / "__init__.py"
    assert modules.files_of("outer.inner.code") == [first, second, second.with_name("code.py")]
    assert modules.files_of("outer.inner") == [first, second]
    assert modules.files_of("outer.absent") == modules.files_of("../evil") == modules.files_of(" outer") == []
    assert modules.files_of("sys") == [Path("built-in")]


def test_a_machine_that_keeps_nothing_is_told_by_its_environment(received: Path) -> None:
    environment = {**_environment(received, "reader"), trust.ALSO_TRUSTED: "ours:mine,ours:build"}
    told = twin_graph("prune", "run", "--dry-run", cwd=received, env=environment)
    assert told.returncode == 0, told.stderr


def test_where_the_users_folder_cannot_be_written_a_run_trains_all_the_same(begun: Path, tmp_path: Path) -> None:
    (tmp_path / "ours.py").write_text(POLICY)
    (tmp_path / "no-folder").write_text("")
    environment = _environment(tmp_path, "no-folder")
    environment |= {"MLFLOW_TRACKING_URI": f"file:{tmp_path}/mlruns", "MLFLOW_ALLOW_FILE_STORE": "true"}
    policy = ("--set", "target.policy=ours:mine", "--set", "log.to=mlflow")
    told = twin_graph("train", "cartpole", "--run-dir", "run", *policy, *SMALL, cwd=tmp_path, env=environment)
    assert told.returncode == 0, told.stderr
    assert "gets nothing" not in told.stderr


def test_a_notebook_asks_too(received: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trust, "_given", set())
    monkeypatch.chdir(received)
    monkeypatch.syspath_prepend(received)
    run = notebook.find("run")
    with pytest.raises(UntrustedError, match="ours:mine"):
        run.play(episodes=1)
    named = ["network=ours:build", "target.policy=ours:mine(2)"]
    assert [words.partition(" (")[0] for words in run.trust_code()] == named
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
    (received / "run" / "run.json").write_bytes(checked(description, indent=1))
    more = ("--trust-code", *(("--set", "log.to=mlflow") if is_own else ()))
    told = twin_graph("resume", "run", "--steps", "620", *more, cwd=received, env=environment)
    assert told.returncode == 0, told.stderr
    assert ("log.to=mlflow gets nothing: this run was not begun here" in told.stderr) is not is_own
    assert bool(sent_to(received)) is is_own


@pytest.fixture
def sent_to() -> Callable[[Path], list[str]]:
    return lambda folder: [str(path) for path in folder.glob("mlruns/**/metrics/*")]


def _in_a_fresh_process(*command: str, cwd: Path, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, check=False)


def test_processes_of_environments_import_nothing_from_the_present_folder(tmp_path: Path) -> None:
    """By the console script: a process that Python starts looks there first, unless it is told not to."""
    environment = _environment(tmp_path, "reader")
    made = ("train", "cartpole", "--run-dir", "run", *SMALL, "--set", "env.vectorization=async")
    assert twin_graph(*made, cwd=tmp_path, env=environment).returncode == 0
    (tmp_path / "multiprocessing.py").write_text("from pathlib import Path\nPath(__file__).with_name('RAN').touch()\n")
    command = (str(Path(sys.executable).with_name("twin-graph")), "evaluate", "run", "--episodes", "1")
    told = _in_a_fresh_process(*command, cwd=tmp_path, environment=environment)
    assert (told.returncode, (tmp_path / "RAN").exists()) == (0, False), told.stderr


def test_the_package_run_as_a_module_imports_nothing_from_the_present_folder(tmp_path: Path) -> None:
    (tmp_path / "psutil.py").write_text("raise SystemExit('psutil ran')")
    command = (sys.executable, "-m", "twin_graph_cli", "runs")
    told = _in_a_fresh_process(*command, cwd=tmp_path, environment=_environment(tmp_path, "reader"))
    assert "psutil ran" not in told.stderr


def test_what_a_package_runs_first_is_a_part_of_what_is_trusted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trusting: None
) -> None:
    (tmp_path / "lab").mkdir()
    first, module = tmp_path / "lab" / "__init__.py", tmp_path / "lab" / "pol.py"
    first.write_text("")
    module.write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    code = trust.Code("target.policy=lab.pol:mine", "lab.pol:mine")
    monkeypatch.setattr(trust, "_read", {code.name})
    assert not code.is_trusted
    trust.accept(code)
    monkeypatch.setattr(trust, "_accepted", set())
    assert code.is_trusted
    assert f"after {first}" in code.words()
    first.write_text("import os\n")
    assert not code.is_trusted


def test_what_the_user_named_is_trusted_in_its_file_wherever_a_command_is_started(begun: Path, tmp_path: Path) -> None:
    environment = {**_environment(begun, "author"), "PYTHONPATH": f"{begun}:{os.environ.get('PYTHONPATH', '')}"}
    told = twin_graph("prune", str(begun / "run"), "--dry-run", cwd=tmp_path, env=environment)
    assert told.returncode == 0, told.stderr
    (tmp_path / "ours.py").write_text((begun / "ours.py").read_text())
    told = twin_graph("prune", str(begun / "run"), "--dry-run", cwd=tmp_path, env=_environment(begun, "author"))
    assert (told.returncode, "--trust-code" in told.stderr) == (2, True)


def test_folders_without_an_init_file_are_packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / "b" / "c.py").write_text("")
    monkeypatch.setattr(modules, "_here", [str(tmp_path)])
    assert modules.files_of("a.b.c") == [tmp_path / "a" / "b" / "c.py"]
    monkeypatch.setattr(modules, "_here", [])
    monkeypatch.syspath_prepend(tmp_path)
    assert modules.files_of("a.b.c") == [tmp_path / "a" / "b" / "c.py"]


def test_a_name_that_python_would_not_import_is_refused() -> None:
    for name in (" nets:Mine-v0", "../nets:Mine-v0", "nets/x:Mine-v0", ".nets:Mine-v0"):
        with pytest.raises(UsageError, match="cannot be the name of a module"):
            trust.check("env.id", name)


def test_what_an_experiment_has_recorded_is_not_its_users_word(trusting: None) -> None:
    text = """
        name = "study"
        preset = "cartpole"
        steps = 5000
        seeds = [1]
        last_evaluations = 1
        [factors]
        "target.policy" = ["latest", "evil:pick(2)"]
    """
    given, _ = plans.recorded({"file": text, "fixed": {}})
    assert [code.name for run in given.runs for code in trust.untrusted(run.settings)] == ["evil:pick"]
    asked = plans.parse(text)
    assert [code.name for run in asked.runs for code in trust.untrusted(run.settings)] == []
    with pytest.raises(UsageError, match="network is fixed for all runs"):
        plans.recorded({"file": text, "fixed": {"network": "evil:pick"}})


def test_what_was_trusted_reaches_child_processes_where_it_cannot_be_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trusting: None
) -> None:
    monkeypatch.setattr(trust, "_folder", lambda: tmp_path / "no-folder" / "trusted")
    (tmp_path / "no-folder").write_text("")
    (tmp_path / "ours.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    trust.accept(trust.Code("loss=ours:mine", "ours:mine"))
    assert os.environ[trust.ALSO_TRUSTED] == "ours:mine"
    trust.claim("a run")
    assert trust.is_own("a run")


def test_the_id_of_a_run_without_one_stays(tmp_path: Path) -> None:
    run = Run(Path(shutil.copytree(Path(__file__).parents[1] / "data" / "run-of-format-1", tmp_path / "run")))
    before = run.id
    run.change_settings(config.change(run.settings, [("train.steps", 1_900)]))
    assert Run(run.folder).id == before


@pytest.fixture
def trusting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing was given, read or trusted yet."""
    for name in ("_given", "_read", "_accepted", "_owned"):
        monkeypatch.setattr(trust, name, set())
    monkeypatch.setenv(trust.ALSO_TRUSTED, "")
