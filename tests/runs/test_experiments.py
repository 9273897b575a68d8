"""Experiments: what a file means, what is refused, real runs in processes, killed and gone on with, and the report."""

import contextlib
import csv
import errno
import json
import math
import os
import re
import shutil
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import psutil
import pytest
from attempts import attempt
from click.testing import CliRunner
from commands import RESAMPLES, Command, twin_graph
from experiment_files import FILE, RUNS, changed, made_up
from rliable import library, metrics
from tables import rows
from twin_graph_cli.main import cli

from twin_graph import config
from twin_graph.agent.live_run import LiveRun
from twin_graph.base import doing
from twin_graph.config.settings import Settings
from twin_graph.errors import MovedError, UsageError
from twin_graph.experiments import clock, experiment, figures, page, plan, results, runner, statistics, tables, trial
from twin_graph.experiments import report as pages
from twin_graph.experiments.experiment import Experiment
from twin_graph.records import report
from twin_graph.snapshots import ledger
from twin_graph.snapshots.points import PointStore
from twin_graph.snapshots.run import Run, create

ROOT = Path(__file__).parents[2]
FIGURES = (
    *("learning", "aggregates", "profiles", "improvement", "threshold", "age", "served", "distance", "agreement"),
    *("overestimation", "clock"),
)


# Real runs


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a whole experiment with its report, and the file in the folder that holds `checkpoints/`."""
    cwd = tmp_path_factory.mktemp("experiment")
    (cwd / "tiny.toml").write_text(FILE)
    done = twin_graph("experiment", "run", "tiny.toml", "--jobs=2", cwd=cwd)
    assert done.returncode == 0, done.stderr
    assert "2 conditions, 4 runs of 600 agent steps" in done.stderr
    assert "agent steps/s in the first run" in done.stderr
    assert "4 of 4 runs done" in done.stderr
    reported = twin_graph("experiment", "report", "tiny", cwd=cwd)
    assert reported.returncode == 0, reported.stderr
    return cwd / "checkpoints" / "experiments" / "tiny"


def test_runs_of_an_experiment_are_ordinary_runs(finished: Path) -> None:
    listed = json.loads(twin_graph("runs", str(finished), "--json", cwd=finished).stdout)
    assert sorted(run["run"] for run in listed) == sorted(RUNS)
    assert {run["state"] for run in listed} == {"finished"}
    assert twin_graph("verify", str(finished / RUNS[1]), cwd=finished).returncode == 0
    assert Run(finished / RUNS[1]).settings.target.policy == "lag(40)"


def test_what_is_done_is_not_done_again(finished: Path) -> None:
    before = records(finished)
    again = twin_graph("experiment", "run", "tiny.toml", "--json", cwd=finished.parents[2])
    assert again.returncode == 0
    assert [run["state"] for run in json.loads(again.stdout)["runs"]] == ["done"] * 4
    assert records(finished) == before


def test_a_dry_run_shows_the_plan_and_writes_nothing(tmp_path: Path) -> None:
    (tmp_path / "tiny.toml").write_text(FILE)
    done = twin_graph("experiment", "run", "tiny.toml", "--dry-run", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert [run["run"] for run in json.loads(done.stdout)["runs"]] == RUNS
    assert json.loads(done.stdout)["disk_bytes"] > 100_000
    assert "time: about 0:" in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["tiny.toml"]


@pytest.mark.parametrize(("replace", "by", "message"), rows("experiments", "other_files", "replace", "by", "message"))
def test_a_file_that_does_not_fit_its_folder_starts_nothing(
    finished: Path, replace: str, by: str, message: str
) -> None:
    before = records(finished)
    other = finished.parents[2] / "other.toml"
    other.write_text(changed(replace, by))
    done = twin_graph("experiment", "run", "other.toml", cwd=finished.parents[2])
    assert done.returncode == 2
    assert message in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert records(finished) == before


@pytest.mark.parametrize(("replace", "by", "message"), rows("experiments", "not_trainable", "replace", "by", "message"))
def test_what_cannot_be_trained_is_known_before_anything_runs(
    tmp_path: Path, replace: str, by: str, message: str
) -> None:
    (tmp_path / "bad.toml").write_text(changed(replace, by))
    done = twin_graph("experiment", "run", "bad.toml", cwd=tmp_path)
    assert done.returncode == 2, done.stderr
    assert message in done.stderr
    assert not (tmp_path / "checkpoints").exists()


def test_a_folder_with_something_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "tiny.toml").write_text(FILE)
    done = twin_graph("experiment", "run", "tiny.toml", "--out", str(tmp_path), cwd=tmp_path)
    assert done.returncode == 2
    assert "holds something other than an experiment; choose another --out" in done.stderr


def test_who_was_first_to_begin_an_experiment_has_it(finished: Path) -> None:
    """Two that measure at the same time may come to other settings."""
    other = Experiment.open(finished)
    other.fixed = (("twin.threads", 7), *other.fixed[1:])
    with pytest.raises(UsageError, match=r"another `experiment run` began .* meanwhile"):
        other.write()
    assert Experiment.open(finished).fixed != other.fixed


def test_room_is_needed_for_runs_that_begin_alone(finished: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What trains already has its memory, what has begun has its files, and what is done needs neither."""
    monkeypatch.setattr("twin_graph.base.machine.memory_free", lambda: 1)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=1))
    states = experiment.look(Experiment.open(finished))
    command = ["experiment", "run", "tiny.toml", "--jobs", "2", "--dry-run"]
    monkeypatch.chdir(finished.parents[2])
    for kinds, refused in (
        (["done"] * 4, ""),
        (["running", "running", "done", "done"], ""),
        (["running", "cut", "done", "done"], ""),  # one begins, and looks itself
        (["cut", "failed", "done", "done"], "not enough memory: 2 runs at a time need"),
        (["running", "cut", "cut", "done"], ""),
    ):
        found = [state._replace(state=kind) for state, kind in zip(states, kinds, strict=True)]
        monkeypatch.setattr("twin_graph_cli.experiment.look", lambda _, found=found: found)
        outcome = CliRunner().invoke(cli, command)
        assert (outcome.exit_code, refused in str(outcome.exception)) == (int(bool(refused)), True)
    elsewhere = finished.with_name("nothing-has-begun")
    monkeypatch.setattr(Experiment, "run_folder", lambda _, planned: elsewhere / planned.name)
    outcome = CliRunner().invoke(cli, command)
    assert "not enough disk space: these runs need" in str(outcome.exception)


def test_the_condition_that_cannot_be_trained_is_named() -> None:
    variants = """[factors.x]
plain = {}
other = { env.kwargs.foo = 1 }"""
    planned = plan.parse(FILE.replace('[factors]\ntarget.policy = ["latest", "lag(40)"]', variants))
    with pytest.raises(UsageError, match=r"^other: cannot make 'CartPole-v1': TypeError"):
        Experiment.prepare(planned, Path("nowhere"), 1, trial.run)


def test_the_process_that_checks_the_runs_says_what_it_is_doing() -> None:
    said: list[str] = []
    settings = plan.parse(FILE).runs[0].settings
    with doing.heard_by(said.append):
        trial.run({"one": config.replace(settings, [("twin.threads", 1), ("twin.precision", "fp32")])})
    assert said[:2] == ["loading TensorFlow to check the runs", "checking one"]
    assert any(re.fullmatch(r"measuring the speed of training: [\d,]+ of [\d,]+ agent steps", what) for what in said)


def test_who_comes_second_is_told_before_anything_is_measured(finished: Path) -> None:
    with Experiment.open(finished).lock():
        refused = twin_graph("experiment", "run", "tiny.toml", cwd=finished.parents[2])
    assert refused.returncode == 4
    folder = "checkpoints/experiments/tiny"
    assert refused.stderr == f"Error: {folder} is in use: another `experiment run` trains it\n"


def test_a_run_whose_points_are_gone_is_not_taken_for_one_that_never_began(finished: Path, tmp_path: Path) -> None:
    archived = Path(shutil.copytree(finished / RUNS[0], tmp_path / "archived", ignore=shutil.ignore_patterns("resume")))
    runner._remove_unstarted(archived)
    assert Run(archived).store().snapshots
    unstarted = create(tmp_path / "unstarted", Run(archived).settings)
    runner._remove_unstarted(unstarted.folder)
    assert not unstarted.folder.exists()


def test_the_rest_of_a_run_that_was_cut_counts_from_its_resume_point(finished: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(finished, tmp_path / "tiny"))
    (folder / "outcomes.jsonl").unlink()
    there = Experiment.open(folder)
    planned = there.plan.runs[0]
    run = Run(folder / planned.name)
    lines = run.ledger.path.read_bytes().splitlines(keepends=True)
    *_, before_last, _ = (i for i, line in enumerate(lines) if b'"event": "point"' in line)
    run.ledger.path.write_bytes(b"".join(lines[: before_last + 1]))
    state = experiment.state_of(there, planned)
    assert (state.state, state.agent_steps, state.trained) == ("cut", 400, 400)
    assert run.newest_metrics()["agent_steps"] == 600


def test_a_run_that_ended_while_it_made_its_first_point_never_began(
    cartpole: Callable[..., Settings], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The ledger names the point before it is there. Of a run that was killed it lacks the end alone."""
    run = create(tmp_path / "run", cartpole())
    monkeypatch.setattr(PointStore, "commit", full)
    with pytest.raises(OSError, match="full"):
        attempt(run)
    assert [event.event for event in run.ledger.events()] == ["start", "commit", "swap", "point", "end"]
    runner._remove_unstarted(run.folder)
    assert not run.folder.exists()


def full(*arguments: object) -> None:
    """In place of what writes to a disk."""
    raise OSError("full")


def test_the_clock_takes_an_experiment_by_its_name(finished: Path) -> None:
    done = twin_graph("experiment", "clock", "tiny", cwd=finished.parents[2])
    assert "tiny: lag(40)" in done.stdout, done.stderr


# Killed, and gone on with


def records(folder: Path) -> dict[str, Any]:
    """What must not change in a run that is done: all of its records."""
    names = ("ledger.jsonl", "evaluations.jsonl", "metrics.jsonl", "run.json")
    return {str(path): path.read_bytes() for name in names for path in sorted(folder.glob(f"*/{name}"))}


def table(folder: Path, name: str, *, without: tuple[str, ...] = ()) -> list[dict[str, str]]:
    with (folder / "report" / name).open() as file:
        return [{key: value for key, value in row.items() if key not in without} for row in csv.DictReader(file)]


def trainers(folder: Path) -> list[psutil.Process]:
    found = psutil.process_iter(["cmdline"])
    return [process for process in found if any(str(folder / "") in part for part in process.info["cmdline"] or ())]


def wait_for(what: Callable[[], Any]) -> None:
    deadline = time.monotonic() + 120
    while not what():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_what_was_killed_is_gone_on_with_and_gives_the_same_numbers(finished: Path, tmp_path: Path) -> None:
    """First the runner alone, then all; and 20 times at random in tests/crash/kill_experiment.py."""
    (tmp_path / "tiny.toml").write_text(FILE)
    folder = tmp_path / "checkpoints" / "experiments" / "tiny"
    points = lambda: {path.parent for path in folder.glob("*/resume/*")}  # noqa: E731
    runner = Command("experiment", "run", "tiny.toml", "--jobs=2", cwd=tmp_path)
    wait_for(points)
    runner.kill()
    runner.wait()
    orphans = trainers(folder)
    begun = points()
    again = Command("experiment", "run", "tiny.toml", "--jobs=2", cwd=tmp_path)
    psutil.wait_procs(orphans, timeout=60)
    # They went on by themselves, and nobody began them again.
    assert all(path.read_text().count("--- ") == 1 for path in folder.glob("logs/*"))
    wait_for(lambda: points() - begun)
    children = trainers(folder)
    again.kill()
    for process in children:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    again.wait()
    last = twin_graph("experiment", "run", "tiny.toml", "--jobs=2", cwd=tmp_path)
    assert last.returncode == 0, last.stderr
    assert not trainers(folder)

    assert twin_graph("experiment", "report", "tiny", cwd=tmp_path).returncode == 0
    for name in RUNS:
        ours, theirs = (report.status(Run(root / name)) for root in (folder, finished))
        assert ours.weights_sha256 == theirs.weights_sha256
        assert ours.state == "finished"
    for name in ("curves.csv", "targets.csv"):
        assert table(folder, name) == table(finished, name)
    for name in ("conditions.csv", "runs.csv"):
        clock = ("seconds_to_threshold", "attempts", "stops")
        assert table(folder, name, without=clock) == table(finished, name, without=clock)
    outcomes = folder / "outcomes.jsonl"  # none where every training ended while no runner lived
    lines = map(json.loads, outcomes.read_text().splitlines()) if outcomes.exists() else ()
    ends = Counter(line["run"] for line in lines if line["code"] == 0)
    assert max(ends.values(), default=0) <= 1  # none was brought to its end twice


def test_what_a_person_trained_further_stays_done_and_what_ended_early_is_not(finished: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(finished, tmp_path / "tiny"))
    before = list(results.read(Experiment.open(folder)))
    longer = Command("resume", str(folder / RUNS[0]), "--steps", "1_000_000".replace("_", ""), cwd=tmp_path)
    wait_for(lambda: Run(folder / RUNS[0]).newest_metrics()["agent_steps"] > 800)
    longer.send_signal(signal.SIGINT)
    longer.wait()
    there = Experiment.open(folder)
    read = list(results.read(there))
    assert [result.state for result in read] == ["done"] * 4
    assert read[0].scores == before[0].scores
    assert read[0].services == before[0].services
    assert there.command(there.plan.runs[1])[-2:] == ["--steps", "600"]
    longer_plan = there.plan.runs[1]._replace(
        settings=config.change(there.plan.runs[1].settings, [("train.steps", 700)])
    )
    taken_up = Run(folder / RUNS[1])
    with taken_up.lock("resume"):  # nobody waits for what a person trains on
        taken_up.record_start(taken_up.points().newest())
        assert taken_up.state() == "running"
        assert experiment.look(there)[1].state == "done"
    assert experiment._is_complete(Run(folder / RUNS[1]), there.plan.runs[1])
    assert not experiment._is_complete(Run(folder / RUNS[1]), longer_plan)


def test_ctrl_c_makes_trainings_save_and_says_how_to_go_on(tmp_path: Path) -> None:
    (tmp_path / "long.toml").write_text(changed("steps = 600", "steps = 100_000"))
    folder = tmp_path / "checkpoints" / "experiments" / "tiny"
    runner = Command("experiment", "run", "long.toml", "--jobs=2", cwd=tmp_path)
    wait_for(lambda: len(list(folder.glob("*/evaluations.jsonl"))) == 2)
    os.killpg(runner.pid, signal.SIGINT)  # as a terminal does
    _, stderr = runner.communicate(timeout=60)
    assert runner.returncode == 130
    assert "continue with: twin-graph experiment run long.toml --jobs 2" in stderr
    assert not trainers(folder)
    assert [Run(folder / name).state() for name in RUNS[:2]] == ["stopped", "stopped"]
    reported = json.loads(twin_graph("experiment", "report", "tiny", "--json", cwd=tmp_path).stdout)
    assert any("Unfinished: 4 of 4 runs are not done" in warning for warning in reported["warnings"])
    assert reported["findings"] == ["Too few runs are done for a comparison."]
    assert table(folder, "curves.csv")


POLICY = """
from pathlib import Path
from twin_graph.targets import latest

def fragile(history, random):
    if history.updates > 40 and not Path("mended").exists():
        raise ValueError("the policy broke")
    return latest(history, random)
"""


def test_a_run_that_fails_is_tried_again_recorded_and_does_not_stop_the_others(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(POLICY)
    (tmp_path / "tiny.toml").write_text(changed("[1, 2]", "[1]").replace("lag(40)", "own:fragile"))
    failed = twin_graph("experiment", "run", "tiny.toml", "--json", cwd=tmp_path)
    assert failed.returncode == 1
    where = r"target\.policy=own:fragile: ValueError: the policy broke \(.*own\.py:7, in fragile\)"
    assert re.search(rf"failed: own-fragile,seed=1: at agent step \d+: {where}", failed.stderr)
    assert [run["state"] for run in json.loads(failed.stdout)["runs"]] == ["done", "failed"]
    folder = tmp_path / "checkpoints" / "experiments" / "tiny"
    assert (folder / "outcomes.jsonl").read_text().count("the policy broke") == 2
    reported = json.loads(twin_graph("experiment", "report", "tiny", "--json", cwd=tmp_path).stdout)
    assert re.search(rf"own-fragile,seed=1 failed: at agent step \d+: {where}", "".join(reported["warnings"]))

    (tmp_path / "mended").touch()
    mended = twin_graph("experiment", "run", "tiny.toml", cwd=tmp_path)
    assert mended.returncode == 0, mended.stderr
    assert Run(folder / "own-fragile,seed=1").state() == "finished"


class Pretended:
    """In place of a run's process: after some looks it ends with a code, and has left behind what `leave` makes.

    Attributes:
      signals: that it was sent.
    """

    def __init__(self, code: int = 0, leave: Callable[[], object] = lambda: None) -> None:
        self.signals: list[int] = []
        self._looks, self._code, self._leave = 3, code, leave

    def poll(self) -> int | None:
        self._looks -= 1
        if self._looks == 0:
            self._leave()
        return self._code if self._looks <= 0 else None

    def wait(self) -> int:
        return self._code

    def send_signal(self, sig: int) -> None:
        self.signals.append(sig)


def pretend(
    folder: Path, begin: Callable[[str, Path], Pretended], *, jobs: int, retries: int = 0
) -> dict[str, tuple[str, str]]:
    """The states and errors of an experiment's runs after it was run with such processes."""
    experiment = Experiment.open(folder)

    def start(arguments: list[str], log: Path, threads: int) -> Pretended:
        return begin(next(name for name in RUNS if any(name in argument for argument in arguments)), log)

    training = runner.Runner(experiment, jobs=jobs, retries=retries, show=lambda _: None, begin=start)
    return {state.planned.name: (state.state, state.error) for state in training.run()}


def test_an_experiment_whose_folder_is_renamed_says_so(finished: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(finished, tmp_path / "tiny", ignore=shutil.ignore_patterns("report", RUNS[0]))
    process = Pretended(1, leave=lambda: folder.rename(tmp_path / "renamed"))
    with (
        pytest.raises(MovedError, match=f"continue by its new name, {tmp_path}/renamed$"),
        Experiment.open(folder).lock(),
    ):
        pretend(folder, lambda name, log: process, jobs=1, retries=1)
    assert not folder.exists()


def test_a_warning_and_what_follows_it_ask_runs_to_save_once(
    finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Slurm warns with SIGUSR1 and ends with SIGTERM; a second request of the same kind would end runs at once."""
    folder = shutil.copytree(finished, tmp_path / "tiny", ignore=shutil.ignore_patterns("report", RUNS[0]))
    numbers = iter((signal.SIGUSR1, signal.SIGUSR1, signal.SIGTERM))
    process = Pretended()

    def poll() -> int | None:
        if number := next(numbers, None):
            os.kill(os.getpid(), number)
            return None
        return 130

    monkeypatch.setattr(process, "poll", poll)
    pretend(folder, lambda name, log: process, jobs=1)
    assert process.signals == [signal.SIGINT]


# Edited code

MINE = """
from twin_graph.targets import latest

def mine(history, random):
    return latest(history, random)
"""
EDITED = MINE + "# edited\n"


def test_runs_of_an_edited_module_are_not_mixed_without_a_word(tmp_path: Path) -> None:
    module, file = tmp_path / "own.py", tmp_path / "tiny.toml"
    module.write_text(MINE)
    file.write_text(changed("[1, 2]", "[1]").replace('"latest", "lag(40)"', '"own:mine"'))
    run = ("experiment", "run", "tiny.toml")
    assert twin_graph(*run, cwd=tmp_path).returncode == 0
    folder = tmp_path / "checkpoints" / "experiments" / "tiny"
    assert twin_graph("experiment", "report", "tiny", cwd=tmp_path).stderr.count("Different code") == 0
    before = records(folder)

    module.write_text(EDITED)
    file.write_text(file.read_text().replace("[1]", "[1, 2]", 1))
    for more in ((), ("--dry-run",)):
        refused = twin_graph(*run, *more, cwd=tmp_path)
        assert (refused.returncode, refused.stdout) == (2, "")
        assert len(refused.stderr.splitlines()) == 1
        assert "own was edited after own-mine,seed=1 began" in refused.stderr
        assert "--out" in refused.stderr
        assert "--allow-edited" in refused.stderr
    assert records(folder) == before

    allowed = twin_graph(*run, "--allow-edited", cwd=tmp_path)
    assert allowed.returncode == 0, allowed.stderr
    told = "Different code of own: own-mine,seed=1 with "
    assert told in allowed.stderr
    reported = twin_graph("experiment", "report", "tiny", cwd=tmp_path)
    assert told in reported.stderr
    words = (folder / "report" / "report.md").read_text()
    assert words.index("Different code of own") < words.index("Too few seeds") < words.index("at the end:")
    runs = {row["run"]: row["code"] for row in table(folder, "runs.csv")}
    assert all(re.search(r"\bown=[0-9a-f]{64}\b", code) for code in runs.values())
    assert len(set(runs.values())) == 2
    compared = twin_graph("compare", str(folder / "own-mine,seed=1"), str(folder / "own-mine,seed=2"), cwd=tmp_path)
    assert "Different code of own: own-mine,seed=1 with " in compared.stdout
    listed = twin_graph("runs", str(folder), cwd=tmp_path)
    assert told in listed.stdout


def test_a_module_that_is_edited_while_runs_train_begins_no_other_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = tmp_path / "own_edited.py"
    module.write_text(MINE)
    monkeypatch.syspath_prepend(tmp_path)
    planned = plan.parse(FILE.replace("lag(40)", "own_edited:mine"))
    made = Experiment(tmp_path / "tiny", planned, (), trial.Trial(1.0, 1.0, [0, 0], 0))
    begun = []

    def leave() -> None:
        one = planned.runs[len(begun) - 1]
        create(made.run_folder(one), one.settings).record_start()
        if "own_edited" in one.name:
            module.write_text(EDITED)

    def begin(arguments: list[str], log: Path, threads: int) -> Pretended:
        begun.append(arguments)
        return Pretended(code=5, leave=leave)

    with made.lock():
        made.write()
        training = runner.Runner(made, jobs=1, retries=0, show=lambda _: None, begin=begin)
        states = training.run()
    assert len(begun) == 3  # all of "latest", which does not use it, and the first that does
    assert "own_edited was edited after " in states[3].error
    assert states[3].state == "failed"


def test_reports_over_several_folders_name_other_code(finished: Path, tmp_path: Path) -> None:
    """Which another machine had, where the same file was trained."""
    _, _, read = tables.found(finished)
    codes = {"own": ("a" * 64,)}, {"own": ("a" * 64, "b" * 64)}
    here = [result._replace(code=codes[i % 2], taken_from="") for i, result in enumerate(read)]
    there, fixed, _ = tables.found(finished)
    folder = tmp_path / "tables"
    pages.write(there, fixed, here, folder, lambda *_: None)
    _, _, again = tables.read(folder)
    assert [result.code for result in again] == [result.code for result in here]
    assert [(result.made, result.scores) for result in again] == [(result.made, result.scores) for result in here]
    warning = json.loads(twin_graph("experiment", "report", str(folder), "--json", cwd=tmp_path).stdout)["warnings"][0]
    assert warning.startswith(
        f"Different code of own: {RUNS[0]} and 1 more run with aaaaaaaaaaaa...; "
        f"{RUNS[1]} and 1 more run with aaaaaaaaaaaa... and then bbbbbbbbbbbb..."
    )


def test_a_folder_that_holds_something_else_stops_no_other_run(finished: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(finished, tmp_path / "tiny", ignore=shutil.ignore_patterns("report", *RUNS[:2]))
    (folder / RUNS[1]).mkdir()
    (folder / RUNS[1] / "notes.txt").touch()
    process = Pretended(leave=lambda: shutil.copytree(finished / RUNS[0], folder / RUNS[0]))
    states = pretend(folder, lambda name, log: process, jobs=2)
    assert not process.signals
    assert [states[name][0] for name in RUNS] == ["done", "failed", "done", "done"]
    assert "holds something other than a run" in states[RUNS[1]][1]


def test_what_was_trained_or_changed_while_it_waited_is_not_begun(finished: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(finished, tmp_path / "tiny", ignore=shutil.ignore_patterns("report", *RUNS[:3]))
    begun = []

    def leave() -> None:
        for name in RUNS[:3]:
            shutil.copytree(finished / name, folder / name)
        changed = Run(folder / RUNS[2])
        changed.change_settings(config.change(changed.settings, [("train.learning_rate", 0.5)]))

    def begin(name: str, log: Path) -> Pretended:
        begun.append(name)
        return Pretended(leave=leave)

    states = pretend(folder, begin, jobs=1)
    assert begun == [RUNS[0]]
    assert [states[name][0] for name in RUNS] == ["done", "done", "damaged", "done"]
    assert "train.learning_rate" in states[RUNS[2]][1]
    assert [result.state for result in results.read(Experiment.open(folder))] == ["done", "done", "damaged", "done"]
    again = twin_graph("experiment", "run", "tiny.toml", "--out", str(folder), cwd=finished.parents[2])
    assert again.returncode == 1
    assert "remove that folder to train the run anew, or choose another --out" in again.stderr
    assert again.stderr.endswith("Error: 1 of 4 runs failed\n")


def test_a_run_failed_for_what_its_last_process_said(finished: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(finished, tmp_path / "tiny", ignore=shutil.ignore_patterns("report", *RUNS))
    tries = {RUNS[0]: [(1, "Error: not enough memory\n"), (1, "killed\n")], RUNS[1]: [(130, "next: log\n")] * 2}
    tries |= {RUNS[2]: [(1, "Error: once\n"), (-9, "")], RUNS[3]: [(5, "Error: the loss is nan\n")]}

    def begin(name: str, log: Path) -> Pretended:
        code, words = tries[name].pop(0)
        with log.open("a") as output:
            output.write(words)
        return Pretended(code)

    states = pretend(folder, begin, jobs=1, retries=1)
    assert [states[name] for name in RUNS] == [
        *(("failed", "exit code 1: killed"), ("failed", "interrupted")),
        *(("failed", "killed by SIGKILL"), ("failed", "the loss is nan")),
    ]
    for code, said in ((1, "exit code 1"), (-40, "killed by signal 40")):  # somebody removed the logs
        states = pretend(folder, lambda name, log, code=code: (log.unlink(), Pretended(code))[1], jobs=1)  # type: ignore[misc]
        assert states == dict.fromkeys(RUNS, ("failed", said))


# The report


def raw(folder: Path) -> dict[str, np.ndarray]:
    """Last score of each run, normalised, by condition, straight from the files."""
    scores = {}
    for label, slug in (("latest", "latest"), ("lag(40)", "lag-40")):
        rows = []
        for seed in (1, 2):
            lines = (folder / f"{slug},seed={seed}" / "evaluations.jsonl").read_text().splitlines()
            rows.append([np.mean(json.loads(lines[-1])["returns"]) / 500])
        scores[label] = np.array(rows)
    return scores


def test_the_reports_numbers_are_those_of_rliable(finished: Path) -> None:
    scores = raw(finished)
    rows = {row["condition"]: row for row in table(finished, "conditions.csv")}
    for name, function in (("iqm", metrics.aggregate_iqm), ("optimality_gap", metrics.aggregate_optimality_gap)):
        for label in scores:
            np.random.seed(0)
            value, interval = library.get_interval_estimates(
                {label: scores[label]}, lambda x, f=function: np.array([f(x)]), reps=RESAMPLES
            )
            assert float(rows[label][name]) == pytest.approx(value[label][0])
            limits = [float(rows[label][f"{name}_{end}"]) for end in ("low", "high")]
            assert limits == pytest.approx(interval[label][:, 0].tolist())
    np.random.seed(0)
    value, interval = library.get_interval_estimates(
        {"": (scores["lag(40)"], scores["latest"])}, metrics.probability_of_improvement, reps=RESAMPLES
    )
    row = rows["lag(40)"]
    numbers = [float(row[f"improvement{end}"]) for end in ("", "_low", "_high")]
    assert numbers == pytest.approx([float(value[""]), *interval[""].reshape(-1)])


def test_expected_and_realised_returns_are_of_the_same_games(finished: Path) -> None:
    run = Run(finished / RUNS[0])
    for line in run.evaluation_lines():
        # CartPole pays 1 a step, so that a game's return says what its discounted return must be.
        discounted = [(1 - 0.99**steps) / 0.01 for steps in line["returns"]]
        assert line["discounted"] == pytest.approx(discounted)
        assert len(line["q_start"]) == len(line["returns"])
    [result, *_] = results.read(Experiment.open(finished))
    step = max(result.scores)
    assert result.overestimation[step] == pytest.approx(np.mean(line["q_start"]) - np.mean(discounted))
    assert len(set(line["q_start"])) == 3  # of each game's own beginning


def test_returns_in_training_are_those_that_the_run_logged(finished: Path) -> None:
    for result in results.read(Experiment.open(finished)):
        lines = [line for line in Run(finished / result.planned.name).metric_lines() if line.get("train_return")]
        assert result.train_return == {line["agent_steps"]: line["train_return"] for line in lines}
        assert len(result.train_return) >= 4


def test_what_workers_restored_of_the_target_is_not_counted_again(finished: Path, tmp_path: Path) -> None:
    folder = tmp_path / "copy"
    shutil.copytree(finished, folder)
    [before, *_] = results.read(Experiment.open(folder))
    run = Run(folder / before.planned.name)
    target = ledger.target_swaps(run.ledger.events())[-1]
    run.ledger.append(target.model_copy(update={"worker": "worker-0", "first_update": target.first_update + 2}))
    [after, *_] = results.read(Experiment.open(folder))
    assert after.services == before.services
    assert len(before.services) > 2


def test_a_run_that_has_just_been_made_stops_no_report(finished: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(finished, tmp_path / "tiny", ignore=shutil.ignore_patterns("report", RUNS[0])))
    there = Experiment.open(folder)
    create(folder / RUNS[0], there.plan.runs[0].settings)
    assert [result.state for result in results.read(there)] == ["cut", "done", "done", "done"]


def test_only_a_stop_that_commits_a_resume_point_counts_as_one(
    cartpole: Callable[..., Settings], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others are resumed from a scheduled point, and change nothing."""
    run = create(tmp_path / "run", cartpole(resume__every_steps=200, evaluate__episodes=0))
    stops = []
    for owner, name in ((LiveRun, "log"), (PointStore, "commit")):
        attempt(run, signal_at=(signal.SIGINT, 300 * len(stops) + 300))
        with monkeypatch.context() as patched, pytest.raises(OSError, match="full"):
            patched.setattr(owner, name, full)
            attempt(run)
        attempt(run, 300 * len(stops) + 550)
        stops.append(results._stops(run.ledger.with_abandoned(), 1_200))
    assert stops == [1, 2]
    assert results._stops(run.ledger.with_abandoned(), 500) == 1
    points = [event.counters.agent_steps for event in run.ledger.events(ledger.Point)]
    stopped = next(steps for steps in points if steps % 200 >= 8)  # not by the schedule
    # Nothing follows a point at the end, as after a stop while the last games are played.
    assert [results._stops(run.ledger.with_abandoned(), end) for end in (stopped, stopped + 1)] == [0, 1]


def test_the_age_of_targets_is_what_explain_says(finished: Path) -> None:
    for result in results.read(Experiment.open(finished)):
        run = Run(finished / result.planned.name)
        for update in range(1, result.updates + 1, 7):
            told = report.explain(run, update)
            assert result.mean_age(update, update) == told.snapshots[0].age_updates
        ages = figures.ages([result])(result)
        assert ages
        shorter = result._replace(updates=10)  # of another factor, or one that has just begun
        assert figures.ages([result, shorter])(result) == ages
        whole = result.mean_age(1, result.updates)
        assert whole == pytest.approx(np.mean([result.mean_age(u, u) for u in range(1, result.updates + 1)]))


class References(HTMLParser):
    """Everything in a page that a browser would fetch."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []
        self.images: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found += [value or "" for name, value in attrs if name in ("src", "href", "srcset", "data", "action")]
        self.images += [str(value) for name, value in attrs if name == "id" and tag == "figure"]


def test_the_page_needs_nothing_else(finished: Path) -> None:
    text = (finished / "report" / "index.html").read_text()
    page = References()
    page.feed(text)
    assert len(page.found) > len(FIGURES)
    assert all(reference.startswith("data:") for reference in page.found)
    assert "//" not in text.split("<style>")[1].split("</style>")[0]
    assert "<script" not in text
    assert tuple(page.images) == FIGURES
    markdown = (finished / "report" / "report.md").read_text()
    for name in FIGURES:
        assert f"]({name}.png)" in markdown
        assert (finished / "report" / f"{name}.png").stat().st_size > 5_000


@contextlib.contextmanager
def browser_of(width: int) -> Iterator[Any]:
    """A browser whose window is so wide, in pixels."""
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium") or ""
    for argument in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    service = webdriver.ChromeService(shutil.which("chromedriver"))
    with webdriver.Chrome(options=options, service=service) as browser:
        size = {"width": width, "height": 844, "deviceScaleFactor": 2, "mobile": width < 500}
        browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        yield browser


needs_browser = pytest.mark.skipif(
    not (shutil.which("chromium") and shutil.which("chromedriver")),
    reason="needs Debian's packages chromium and chromium-driver",
)


@needs_browser
@pytest.mark.parametrize("width", [390, 1280])
def test_tables_of_a_report_fit_the_window(tmp_path: Path, width: int) -> None:
    columns = pages.COMPARISON[0], *(name.format(unit="return", first="latest") for name in pages.COMPARISON[1:])
    numbers = "10 of 10", "1,234.5 (1,198.7 to 1,301.2)", "0.978 (0.975 to 0.981)", "0.512 (0.431 to 0.604)"
    row = *numbers, "-1,012.5 (-1,133.1 to -902.4)", "0.00049", "1,250,000 (10 of 10)", "12,187.0", "-1,234.5"
    names = "latest", "window(3)", "target.policy=ensemble(2, mean), train.n_step=3", "a-name-of-one-long-word-123456"
    compared = page.Table("Comparison", "", columns, [(name, *row) for name in names])
    runs = page.Table("Runs", "", ("run", "state"), [("target.policy=ensemble-2-mean,train.n_step=3,seed=10", "done")])
    file = tmp_path / "index.html"
    file.write_text(page.html(page.Page("many", "", [], [], compared, [], runs, []), {}))
    with browser_of(width) as browser:
        browser.get(file.as_uri())
        cut = browser.execute_script(
            "return [...document.querySelectorAll('body *')].map(e => [e.tagName, e.textContent, e.scrollWidth,"
            " e.clientWidth]).filter(([, , all, seen]) => seen && all > seen)"
        )
        overflow = browser.execute_script("return document.documentElement.scrollWidth")
        text = re.sub(r"\s", " ", browser.find_element("tag name", "main").text)
        named = browser.execute_script(
            "return [...document.querySelectorAll('td')].map(e => getComputedStyle(e, '::before').content)"
        )
    assert cut == []
    assert overflow <= width
    assert all(number in text for number in row)
    assert named.count('"optimality gap (95%)"') == (len(names) if width < 500 else 0)  # once above in a wide window


@needs_browser
@pytest.mark.parametrize("width", [390, 1280])
def test_a_browser_shows_the_page_whole(finished: Path, width: int) -> None:
    with browser_of(width) as browser:
        browser.get((finished / "report" / "index.html").as_uri())
        shown = browser.execute_script(
            "return [...document.images].map(i => [i.closest('figure').id, i.naturalWidth, i.getBoundingClientRect()])"
        )
        overflow = browser.execute_script("return document.documentElement.scrollWidth - arguments[0]", width)
        small = browser.execute_script(
            "return [...document.querySelectorAll('p, li, td, th, figcaption')]"
            ".filter(e => parseFloat(getComputedStyle(e).fontSize) < 13).length"
        )
        messages = browser.get_log("browser")
        network = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    assert messages == []
    assert [name for name, *_ in shown] == list(FIGURES)
    assert all(pixels > 500 and place["width"] > 300 and place["right"] <= width for _, pixels, place in shown)
    assert overflow <= 0
    assert small == 0
    asked = [entry["params"]["request"]["url"] for entry in network if entry["method"] == "Network.requestWillBeSent"]
    page = next(url for url in asked if url.endswith("/report/index.html"))
    assert page.startswith("file://")
    assert all(url.startswith("data:") for url in asked[asked.index(page) + 1 :])


def test_each_of_many_names_has_a_look_of_its_own() -> None:
    names = [f"condition {number}" for number in range(20)]
    figure = figures.against({name: [(0.0, 1.0), (1.0, 2.0)] for name in names}, "predicted", "expected")
    looks = {(line.get_color(), line.get_marker()) for line in figure.axes[0].lines if line.get_label() in names}
    assert len(looks) == 20
    assert [text.get_text() for text in figure.legends[0].get_texts()] == names


def test_the_report_says_what_two_seeds_cannot_carry(finished: Path) -> None:
    for text in ((finished / "report" / name).read_text() for name in ("index.html", "report.md")):
        assert "Too few seeds: 2 per condition" in text
        assert "A score is the mean of only 3 games; evaluate.episodes=10 or more leaves less to luck." in text
        assert "0 counts as 0 and 500 as 1 (the range of what the game can score)" in text


def test_without_rliable_a_report_says_what_to_install(finished: Path, tmp_path: Path) -> None:
    (tmp_path / "rliable.py").write_text("raise ModuleNotFoundError('No module', name='rliable')")
    done = twin_graph(
        "experiment", "report", str(finished), cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(tmp_path)}, fresh=True
    )
    assert done.returncode == 1
    assert done.stderr == "Error: a report needs rliable: pip install 'twin-graph[experiments]'\n"


def test_without_choix_a_tournament_says_what_to_install(finished: Path, tmp_path: Path) -> None:
    (tmp_path / "choix.py").write_text("raise ModuleNotFoundError('No module', name='choix')")
    done = twin_graph(
        "tournament", str(finished / RUNS[0]), cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(tmp_path)}, fresh=True
    )
    assert done.returncode == 1
    assert done.stderr == "Error: a tournament needs choix: pip install 'twin-graph[selfplay]'\n"


def test_without_ray_its_executor_says_what_to_install_before_anything_else(tmp_path: Path) -> None:
    (tmp_path / "ray.py").write_text("raise ModuleNotFoundError('No module', name='ray')")
    done = twin_graph(
        *("experiment", "run", "there-is-no-such-file.toml", "--executor", "ray"),
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        fresh=True,
    )
    assert done.returncode == 1
    assert done.stderr == "Error: --executor ray needs ray: pip install 'twin-graph[ray]'\n"


def test_what_is_known_of_a_game_is_not_believed_where_its_arguments_may_change_it(finished: Path) -> None:
    plain = plan.parse(FILE)
    shorter = plan.parse(changed("train.batch_size = 16", "env.kwargs.max_episode_steps = 100"))
    for planned, high, reward in ((plain, 500.0, 1.0), (shorter, 90.0, None)):
        seen = made_up(planned, lambda condition, seed: 40.0 + 50 * (seed - 1))
        assert statistics.norms(planned, seen)["CartPole-v1"].high == high
        assert clock.step_reward(planned.runs[0]) == reward
    read = next(results.read(Experiment.open(finished)))
    other = read._replace(planned=read.planned._replace(settings=shorter.runs[0].settings))
    assert clock.predicted(other) == read.truncated != clock.predicted(read)


def test_the_clock_knows_what_a_support_allows(finished: Path) -> None:
    read = next(results.read(Experiment.open(finished)))._replace(depths={10: [0.0], 20: [10.0], 30: [1e6]})

    def predicted(*support: float) -> list[float]:
        settings = read.planned.settings
        model = settings.model.model_copy(update={"head": "categorical", "support": list(support)})
        planned = read.planned._replace(settings=settings.model_copy(update={"model": model}))
        return list(clock.predicted(read._replace(planned=planned)).values())

    ten = (1 - 0.99**10) / 0.01
    assert predicted(-200, 200) == pytest.approx([0, ten, 100])
    assert predicted(0, 200) == pytest.approx([100, ten + 0.99**10 * 100, 100])
    assert predicted(-5, 5) == pytest.approx([0, 5, 5])


def test_time_is_known_between_what_was_logged_and_nowhere_else(finished: Path) -> None:
    first, *_ = results.read(Experiment.open(finished))
    logged = first._replace(seconds={100: 10.0, 300: 20.0})
    assert [logged.seconds_at(step) for step in (50, 100, 150, 300)] == [5, 10, 12.5, 20]
    assert math.isnan(first._replace(seconds={}).seconds_at(300))
    point = plan.OriginPoint(1, 0, 100, "", first.planned.settings)
    forked = first._replace(planned=first.planned._replace(point=point), seconds={300: 10.0})
    assert [forked.seconds_at(step) for step in (100, 200, 300)] == [0, 5, 10]
    assert statistics.typical([3.0, math.inf, 4.0]) == 4
    assert math.isnan(statistics.typical([3.0, math.nan, 4.0]))


def test_a_score_may_be_the_mean_of_the_last_evaluations(finished: Path, tmp_path: Path) -> None:
    expected = {}
    for result in results.read(Experiment.open(finished)):
        assert result.final == result.scores[600]
        late = result.scored_by(2)
        expected[result.planned.name] = (result.scores[400] + result.scores[600]) / 2
        assert late.final == pytest.approx(expected[result.planned.name])
    assert {run.last for run in plan.parse(FILE).runs} == {1}
    assert {run.last for run in plan.parse("last_evaluations = 2\n" + FILE).runs} == {2}
    shutil.copytree(finished / "report", tmp_path / "tables")
    done = twin_graph("experiment", "report", "tables", "--last", "2", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    scores = {row["run"]: float(row["score"]) for row in table(tmp_path / "tables", "runs.csv")}
    assert scores == pytest.approx(expected)
    words = (tmp_path / "tables/report/report.md").read_text()
    assert "the mean of its last 2 scheduled evaluations. That was chosen when this report was made" in words
    assert "Nothing is chosen afterwards" not in words
    assert "Nothing is chosen afterwards" in (finished / "report/report.md").read_text()
    again = twin_graph("experiment", "report", "tables/report", "--also", "pdf", cwd=tmp_path)
    assert again.returncode == 0, again.stderr
    assert table(tmp_path / "tables/report", "runs.csv") == table(tmp_path / "tables", "runs.csv")
    drawn = sorted(path.stem for path in (tmp_path / "tables/report/report").glob("*.pdf"))
    assert drawn == sorted(FIGURES)


TABLES = ("runs.csv", "curves.csv", "targets.csv", "telemetry.csv", "conditions.csv")


def test_runs_whose_folders_are_gone_are_kept_in_the_tables(finished: Path, tmp_path: Path) -> None:
    shutil.copytree(finished, tmp_path / "here", ignore=shutil.ignore_patterns("resume", "snapshots"))
    before = table(tmp_path / "here", "runs.csv")
    for row in before[1:]:
        shutil.rmtree(tmp_path / "here" / row["run"])
    done = twin_graph("experiment", "report", "here", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    told = (tmp_path / "here/report/report.md").read_text()
    names = [row["run"] for row in before[1:]]
    assert f"taken from here/report: {'; '.join(names[:-1])} and {names[-1]}." in told
    for name in TABLES:
        assert table(tmp_path / "here", name) == table(finished, name)


def test_a_report_loses_no_run_that_the_last_one_had(finished: Path, tmp_path: Path) -> None:
    """One that was begun here, and taken from elsewhere where it is done."""
    folder = shutil.copytree(finished, tmp_path / "tiny", ignore=shutil.ignore_patterns("resume", "snapshots"))
    _, _, before = tables.found(folder)
    shutil.rmtree(folder / RUNS[0])
    attempt(create(folder / RUNS[0], before[0].planned.settings), 300)
    assert experiment.look(Experiment.open(folder))[0].state == "cut"
    _, _, after = tables.found(folder)
    assert after[0] == before[0]._replace(taken_from=str(folder / "report"))


def test_runs_that_were_trained_elsewhere_are_added(finished: Path, tmp_path: Path) -> None:
    first, *rest = table(finished, "runs.csv")
    for place, others in (("here", rest), ("there", [first])):
        gone = "report", "resume", "snapshots", *(row["run"] for row in others)
        shutil.copytree(finished, tmp_path / place, ignore=shutil.ignore_patterns(*gone))
    done = twin_graph("experiment", "report", "here", "there", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert f"{len(rest)} runs from there" in done.stderr
    for name in TABLES:
        assert table(tmp_path / "here", name) == table(finished, name)
    again = twin_graph("experiment", "report", "here", "there", cwd=tmp_path)
    assert f"{len(rest)} runs from there" in again.stderr  # not from the last report
    _, _, (ours, *_) = tables.found(tmp_path / "here")
    there = tmp_path / "there"
    begun = [ours._replace(state=state, scores={}) for state in ("waiting", "cut", "running", "failed", "damaged")]
    taken = [tables.filled_in([result], [ours], there)[0] for result in begun]
    assert [result.state for result in taken] == ["done", "done", "done", "failed", "damaged"]
    assert [bool(result.taken_from) for result in taken] == [True, True, True, False, False]
    other = ours.planned._replace(settings=config.change(ours.planned.settings, [("train.discount", 0.5)]))
    with pytest.raises(UsageError, match=r"is of another experiment in .*there: train\.discount is 0\.5, not 0\.99"):
        tables.filled_in([begun[0]], [ours._replace(planned=other)], there)
    points = [plan.OriginPoint(1, 100, 200, weights, ours.planned.settings) for weights in ("a" * 64, "b" * 64)]
    forks = [ours._replace(planned=ours.planned._replace(point=point)) for point in points]
    assert tables.filled_in([forks[0]._replace(state="waiting")], [forks[0]], there)[0].state == "done"
    with pytest.raises(UsageError, match="it is forked from other weights"):
        tables.filled_in([forks[0]._replace(state="waiting")], [forks[1]], there)


def test_a_report_that_breaks_off_can_be_written_again(
    finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = shutil.copytree(finished, tmp_path / "tiny", ignore=shutil.ignore_patterns("report", "resume"))
    found = tables.found(folder)
    monkeypatch.setattr(statistics, "RESAMPLES", 20)
    write_file, written = pages.write_file, list[str]()

    def full(path: Path, content: bytes) -> None:
        if path.name == "runs.csv":
            raise OSError(errno.ENOSPC, "No space left on device")
        write_file(path, content)
        written.append(path.name)

    monkeypatch.setattr(pages, "write_file", full)
    with pytest.raises(OSError, match="No space left"):
        pages.write(*found, folder / "report", lambda *_: None)
    assert written
    shutil.rmtree(folder / found[2][0].planned.name)  # else the tables would not be looked at
    assert [result.state for result in tables.found(folder)[2]] == ["waiting"] + ["done"] * (len(found[2]) - 1)
