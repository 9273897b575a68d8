"""Experiments: what a file means, what is refused, real runs in processes, killed and gone on with, and the report."""

import contextlib
import csv
import errno
import json
import math
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import psutil
import pytest
from click.testing import CliRunner
from commands import Command, twin_graph
from hypothesis import given
from hypothesis import strategies as st
from rliable import library, metrics
from test_resume import attempt
from twin_graph_cli.main import cli

from twin_graph import config
from twin_graph.errors import UsageError
from twin_graph.experiments import clock, experiment, figures, plan, results, runner, statistics, tables, trial
from twin_graph.experiments import report as pages
from twin_graph.experiments.experiment import Experiment, assignment
from twin_graph.keeper import Keeper
from twin_graph.settings import Settings
from twin_graph.snapshots import ledger, report
from twin_graph.snapshots.files import checked, read_file
from twin_graph.snapshots.points import PointStore
from twin_graph.snapshots.run import Run, create

ROOT = Path(__file__).parents[1]
FILE = """
name = "tiny"
preset = "cartpole"
steps = 600
seeds = [1, 2]

[settings]
train.chunk_steps = 0
twin.compiled = false
train.start_steps = 200
train.every_steps = 4
train.batch_size = 16
model.hidden_units = [16]
target.refresh_every_updates = 20
resume.every_steps = 200
evaluate.every_steps = 200
evaluate.episodes = 3
log.every_steps = 100

[factors]
target.policy = ["latest", "lag(40)"]
"""
RUNS = ["latest,seed=1", "lag-40,seed=1", "latest,seed=2", "lag-40,seed=2"]
FIGURES = (
    *("learning", "aggregates", "profiles", "improvement", "threshold", "age", "served", "distance", "agreement"),
    *("overestimation", "clock"),
)


def changed(before: str, after: str) -> str:
    assert before in FILE
    return FILE.replace(before, after)


# What a file means


def test_a_file_becomes_every_combination_seed_by_seed() -> None:
    found = plan.parse(
        changed(
            'target.policy = ["latest", "lag(40)"]', 'target.policy = ["latest", "lag(40)"]\nloss = ["huber", "mse"]'
        )
    )
    assert [run.name for run in found.runs[:4]] == [
        *("latest,huber,seed=1", "latest,mse,seed=1", "lag-40,huber,seed=1", "lag-40,mse,seed=1"),
    ]
    assert [run.seed for run in found.runs] == [1] * 4 + [2] * 4
    assert found.conditions == ["latest, huber", "latest, mse", "lag(40), huber", "lag(40), mse"]
    last = found.runs[-1].settings
    assert (last.target.policy, last.loss, last.seed, last.train.steps) == ("lag(40)", "mse", 2, 600)
    assert last.evaluate.every_steps == 200


@pytest.mark.parametrize(
    "factor",
    ['"train.double" = [true]', "train.double = [true]", "[factors.train]\ndouble = [true]"],
    ids=["quoted", "dotted", "table"],
)
def test_names_of_settings_may_be_quoted_dotted_or_in_a_table(factor: str) -> None:
    found = plan.parse(changed('target.policy = ["latest", "lag(40)"]', factor))
    assert found.runs[0].overrides[-1] == ("train.double", True)
    assert found.runs[0].name == "double=true,seed=1"


def test_a_factor_may_be_a_table_of_variants() -> None:
    variants = '[factors.learner]\nplain = {}\nmutual = { mode = "mutual", mutual.learn = "both" }'
    found = plan.parse(changed('[factors]\ntarget.policy = ["latest", "lag(40)"]', variants))
    assert found.conditions == ["plain", "mutual"]
    assert found.runs[1].overrides[-2:] == (("mode", "mutual"), ("mutual.learn", "both"))


def test_environments_are_tasks_of_the_same_condition() -> None:
    found = plan.parse(changed("[factors]", '[factors]\nenv.id = ["CartPole-v1", "Acrobot-v1"]'))
    assert found.tasks == ["CartPole-v1", "Acrobot-v1"]
    assert found.conditions == ["latest", "lag(40)"]
    assert len({run.name for run in found.runs}) == len(found.runs) == 8


SETTINGS = st.sampled_from(config.setting_names())
VALUES = (
    st.none() | st.booleans() | st.integers(0, 10**9) | st.floats(1e-9, 1e9) | st.text() | st.lists(st.integers(0, 9))
)


@given(SETTINGS, VALUES)
def test_every_value_survives_the_command_line(key: str, value: Any) -> None:
    text = assignment(key, value)
    assert config.parse_assignment(text) == (key, value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (changed("seeds =", "seed ="), "unknown key 'seed'; did you mean 'seeds'"),
        (changed("[factors]", "[facters]"), "unknown key 'facters'; did you mean 'factors'"),
        (changed("[factors]", "[form]\na = 1\n[factors]"), "unknown key 'form'; did you mean 'from'"),
        (changed('preset = "cartpole"', ""), "preset is missing"),
        (changed("cartpole", "cartpol"), "tictactoe; did you mean 'cartpole'?"),
        (
            changed("batch_size", "batchsize"),
            "settings: unknown setting 'train.batchsize'; did you mean 'train.batch_size'",
        ),
        (changed("target.policy =", "target.polcy ="), "unknown setting 'target.polcy'; did you mean 'target.policy'"),
        (changed("target.policy =", "targets ="), "unknown setting 'targets'"),
        (changed("log.every_steps = 100", "train.steps = 100"), "train.steps has its own place in the file: steps"),
        (changed("[1, 2]", "[]"), "seeds=[]: must be a list of at least 1"),
        (changed("[1, 2]", "[1, 1]"), "one of them is repeated"),
        (changed("[1, 2]", "[1, -2]"), "seed=-2: must be at least 0"),
        (changed("[1, 2]", "[1, true]"), "seeds=[1, True]: must be a whole number"),
        (changed("steps = 600", "steps = true"), "steps=True: must be a whole number"),
        (changed("steps = 600", "steps = 0"), "steps=0: must be at least 1"),
        (changed('["latest", "lag(40)"]', "[]"), "factors.target.policy has no values: the grid is empty"),
        (changed('target.policy = ["latest", "lag(40)"]', ""), "factors is empty"),
        (changed('["latest", "lag(40)"]', '"latest"'), "factors.target.policy=latest: give a list of values"),
        (
            changed('["latest", "lag(40)"]', '["latest", "latest"]'),
            "latest and latest are the same run, twice (seed 1)",
        ),
        (changed('["latest", "lag(40)"]', '["lag(40)", "lag 40"]'), "two runs would be called lag-40,seed=1"),
        (
            changed("lag(40)", "a" * 245),
            "aaaa..., has 252 letters, and at most 233 are possible: give its values shorter",
        ),
        (
            changed("[factors]", "[factors]\nlog.every_steps = [1]"),
            "log.every_steps is set by settings and by factors.log",
        ),
        (changed("[settings]", "[settings]\ntrain.batch_size = 0"), "this is not TOML"),
        (changed("batch_size = 16", "batch_size = 0"), "train.batch_size=0: must be at least 1"),
        (changed('"tiny"', '"../tiny"'), "name='../tiny': letters, digits, dots, dashes and underscores only"),
        (changed('["latest", "lag(40)"]', "[2020-01-01]"), "target.policy=2020-01-01"),
        (
            FILE + '[factors.game]\na = { "env.id" = "CartPole-v1" }\nb = { "env.id" = "Acrobot-v1" }',
            "latest, a is not compared in Acrobot-v1",
        ),
        (FILE + "[scores]\nlow = 5\nhigh = 1", "scores: low=5 must be below high=1"),
        (FILE + "[scores]\nlow = 5", "scores: give both low and high"),
        (FILE + "[scores]\nthreshold = nan", "scores: threshold=nan"),
        (FILE + '[factors.learner]\n"$x" = {}', "factors.learner.$x: a variant's name has no $"),
        (FILE + "[scores]\nhihg = 5", "scores: unknown key 'hihg'; did you mean 'high'"),
        (FILE + '[scores."CartPole-v0"]\nlow = 5', "'CartPole-v0' is no environment of this experiment"),
    ],
)
def test_a_bad_file_is_refused_with_one_line(text: str, message: str) -> None:
    with pytest.raises(UsageError) as refused:
        plan.parse(text)
    assert message in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("path", sorted((ROOT / "studies").glob("*.toml")), ids=lambda path: path.stem)
def test_every_study_that_is_shipped_is_right(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "examples")
    found = plan.read(path)
    plan.check(found, path)
    assert found.name == path.stem
    assert len({run.seed for run in found.runs}) >= 3


def test_a_policy_that_cannot_be_is_named_with_its_file(tmp_path: Path) -> None:
    path = tmp_path / "study.toml"
    path.write_text(changed('"latest"', '"lates"'))
    with pytest.raises(UsageError, match=r"study\.toml: target\.policy=lates: unknown policy 'lates'"):
        plan.check(plan.read(path), path)


def test_more_evaluations_than_there_will_be_are_refused_before_any_run(tmp_path: Path) -> None:
    path = tmp_path / "study.toml"
    path.write_text("last_evaluations = 3\n" + FILE)
    plan.check(plan.read(path), path)
    path.write_text("last_evaluations = 4\n" + FILE)
    there = "latest has 3 evaluations: evaluate.every_steps=200 in 600 agent steps"
    with pytest.raises(UsageError, match=rf"study\.toml: last_evaluations=4, but {there}$"):
        plan.check(plan.read(path), path)
    # Between chunks, it is evaluated once however often that has been due.
    path.write_text("last_evaluations = 3\n" + changed("chunk_steps = 0", "chunk_steps = 400"))
    there = "latest has 2 evaluations: evaluate.every_steps=200, looked at every 400, in 600 agent steps"
    with pytest.raises(UsageError, match=there):
        plan.check(plan.read(path), path)


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ("evaluate.episodes = 3", "evaluate.episodes = 0", "with evaluate.episodes=0 latest has no scores"),
        (
            'target.policy = ["latest", "lag(40)"]',
            "train.clip_delta = [1.0, 2.0]",
            "clip_delta=1.0 and clip_delta=2.0 would train the same: "
            "train.clip_delta has no effect here: it is used only with loss=dqn3",
        ),
        (
            '[factors]\ntarget.policy = ["latest", "lag(40)"]',
            "[factors.x]\na = {}\nb = { train.clip_delta = 2.0 }",
            "a and b would train the same: train.clip_delta has no effect here",
        ),
    ],
    ids=["no scores", "no effect", "no effect of a variant"],
)
def test_what_would_compare_nothing_is_refused_before_any_run(
    before: str, after: str, message: str, tmp_path: Path
) -> None:
    path = tmp_path / "study.toml"
    path.write_text(changed(before, after))
    with pytest.raises(UsageError, match=re.escape(message)):
        plan.check_new(plan.read(path), path)


def test_a_condition_that_is_added_may_not_be_like_one_that_has_begun(tmp_path: Path) -> None:
    path = tmp_path / "study.toml"
    path.write_text(
        changed('[factors]\ntarget.policy = ["latest", "lag(40)"]', "[factors.x]\na = {}\nb = { env.sticky = 0.2 }")
    )
    planned = plan.read(path)
    with pytest.raises(UsageError, match="a and b would train the same"):
        plan.check_new(planned, path, begun=["a"])
    plan.check_new(planned, path, begun=["a", "b"])


def test_what_some_conditions_or_environments_use_is_no_mistake(tmp_path: Path) -> None:
    path = tmp_path / "study.toml"
    of_both = "[factors.loss]\nhuber = {}\nclipped = { loss = 'dqn3', train.clip_delta = 0.5 }"
    of_some = '[factors]\nenv.id = ["CartPole-v1", "ALE/Pong-v5"]\nenv.sticky = [0.0, 0.25]'
    for factors in (of_both, of_some):
        path.write_text(changed('[factors]\ntarget.policy = ["latest", "lag(40)"]', factors))
        found = plan.read(path)
        plan.check_new(found, path)
        assert plan.unused(found) == []
    found = plan.parse(changed("train.batch_size = 16", "train.batch_size = 16\ntrain.clip_delta = 0.5"))
    assert plan.unused(found) == ["train.clip_delta has no effect here: it is used only with loss=dqn3"]


def test_runs_that_are_forked_are_evaluated_where_all_are_and_at_their_end(tmp_path: Path) -> None:
    """Forked at 450 agent steps: at 500 and at 600."""
    path = tmp_path / "study.toml"
    text = changed("evaluate.every_steps = 200", "evaluate.every_steps = 250")
    for last, fits in ((2, True), (3, False)):
        planned = plan.parse(f"last_evaluations = {last}\n" + text)
        point = plan.OriginPoint(1, 100, 450, "0" * 64, planned.runs[0].settings)
        forked = planned._replace(runs=tuple(run._replace(point=point) for run in planned.runs))
        with contextlib.nullcontext() if fits else pytest.raises(UsageError, match="latest has 2 evaluations"):
            plan.check(forked, path)


def test_statistics_and_reports_need_no_tensorflow() -> None:
    code = "import sys, twin_graph.experiments.report, twin_graph_cli.experiment; sys.exit('tensorflow' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


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


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            changed("evaluate.every_steps = 200", "evaluate.every_steps = 100"),
            "evaluate.every_steps is 200 there and 100",
        ),
        (changed('"lag(40)"', '"best(mean)"'), "lag-40,seed=1 is planned there and not in this one"),
        (changed("steps = 600", "steps = 800"), "train.steps is 600 there and 800"),
        ("last_evaluations = 2\n" + FILE, "last_evaluations is 1 there and 2 in this one"),
        (changed('"latest", "lag(40)"', '"lag(40)", "latest"'), "which is latest there and lag(40) in this one"),
        (changed('"lag(40)"', '"lag"'), "target.policy=lag: it takes lag(updates)"),
        (changed('"lag(40)"', '"best"'), "target.policy=best needs evaluate.episodes=10"),
        (changed('"lag(40)"', '"none:such"'), "No module named 'none'"),
    ],
)
def test_a_file_that_does_not_fit_its_folder_starts_nothing(finished: Path, text: str, message: str) -> None:
    before = records(finished)
    other = finished.parents[2] / "other.toml"
    other.write_text(text)
    done = twin_graph("experiment", "run", "other.toml", cwd=finished.parents[2])
    assert done.returncode == 2
    assert message in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert records(finished) == before


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (changed("train.batch_size = 16", 'env.id = "Pendulum-v1"'), "continuous actions"),
        (changed("train.batch_size = 16", 'network = "nature"'), "use --set network=mlp"),
    ],
)
def test_what_cannot_be_trained_is_known_before_anything_runs(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "bad.toml").write_text(text)
    done = twin_graph("experiment", "run", "bad.toml", cwd=tmp_path)
    assert done.returncode == 2, done.stderr
    assert message in done.stderr
    assert not (tmp_path / "checkpoints").exists()


@pytest.mark.parametrize(
    "written",
    ["env.kwargs = {size = 8, deep = {a = 1}}", '"env.kwargs.size" = 8\n"env.kwargs.deep" = {a = 1}'],
)
def test_arguments_of_the_environment_reach_every_run_and_its_command_line(written: str) -> None:
    planned = plan.parse(changed("train.batch_size = 16", written)).runs[0]
    assert planned.settings.env.kwargs == {"size": 8, "deep": {"a": 1}}
    sets = [config.parse_assignment(assignment(key, value)) for key, value in planned.overrides]
    assert config.load("cartpole", sets).env.kwargs == planned.settings.env.kwargs


def test_an_argument_of_the_environment_can_be_a_factor() -> None:
    text = changed('target.policy = ["latest", "lag(40)"]', '"env.kwargs.size" = [8, 16]')
    runs = plan.parse(text).runs
    assert [run.condition for run in runs] == ["size=8", "size=16"] * 2
    assert [run.settings.env.kwargs for run in runs] == [{"size": 8}, {"size": 16}] * 2


def test_conditions_of_one_name_are_refused() -> None:
    variants = """[factors.x]
"a, b" = { train.batch_size = 8 }
a = { train.batch_size = 9 }
[factors.y]
c = { train.double = true }
"b, c" = { train.double = false }"""
    text = changed("train.batch_size = 16\n", "")
    with pytest.raises(UsageError, match="two conditions would be called a, b, c: give their values other names"):
        plan.parse(text.replace('[factors]\ntarget.policy = ["latest", "lag(40)"]', variants))


def test_an_experiment_keeps_the_preset_with_which_it_began(tmp_path: Path) -> None:
    """The preset may change before its runs do; what is recorded here is another one than the present."""
    folder, planned = tmp_path / "tiny", plan.parse(FILE)
    folder.mkdir()
    Experiment.prepare(planned, folder, 1, lambda _: trial.Trial(100.0, 1.0, [1, 1], 1)).write()
    record = read_file(folder / "experiment.json")
    record["preset"]["train"]["learning_rate"] = 0.5
    (folder / "experiment.json").write_bytes(checked(record))

    again = Experiment.prepare(planned, folder, 1, pytest.fail)
    assert {run.settings.train.learning_rate for run in again.plan.runs} == {0.5}
    assert "--set=train.learning_rate=0.5" in again.command(again.plan.runs[0])
    record["preset"]["target"]["refresh_every_updates"] = 300
    by_steps = changed("target.refresh_every_updates = 20", "target.refresh_every_steps = 40")
    (folder / "experiment.json").write_bytes(checked({**record, "file": by_steps}))
    for run in (other := Experiment.open(folder)).plan.runs:
        name, *words = other.command(run)[1:]
        given = [config.parse_assignment(word.removeprefix("--set=")) for word in words if word.startswith("--set=")]
        assert config.load(name, [*given, ("train.steps", 600), ("seed", run.seed)]) == run.settings

    done = [run._replace(evaluated={600: 100}) for run in made_up(again.plan, lambda condition, seed: 100.0)]
    norms = {"CartPole-v1": statistics.Norm(0, 500, 475, "")}
    written = tmp_path / "tables"
    written.mkdir()
    for name, content in tables.write(again.plan, again.fixed, done, norms).items():
        (written / name).write_bytes(content)
    _, _, read = tables.read(written)
    assert [result.planned.settings for result in read] == [run.settings for run in again.plan.runs]
    waiting = [result._replace(state="waiting", planned=run) for result, run in zip(read, planned.runs, strict=True)]
    with pytest.raises(UsageError, match=r"is of another experiment in .*: train\.learning_rate is 0\.5, not 0\.0003"):
        tables.filled_in(waiting, read, written)


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
    monkeypatch.setattr("twin_graph.cpu.memory_free", lambda: 1)
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
    instants = random.Random(1)
    runner = Command("experiment", "run", "tiny.toml", "--jobs=2", cwd=tmp_path)
    wait_for(lambda: trainers(folder))
    time.sleep(instants.uniform(0, 2))  # TensorFlow takes a second or more, and so does the training
    runner.kill()
    runner.wait()
    orphans = trainers(folder)
    again = Command("experiment", "run", "tiny.toml", "--jobs=2", cwd=tmp_path)
    psutil.wait_procs(orphans, timeout=60)
    # They went on by themselves, and nobody began them again.
    assert all(path.read_text().count("--- ") == 1 for path in folder.glob("logs/*"))
    wait_for(lambda: trainers(folder))
    time.sleep(instants.uniform(0, 1))  # on an idle machine all are done after less than two
    children = trainers(folder)
    again.kill()
    for process in children:
        process.kill()
    again.wait()
    last = twin_graph("experiment", "run", "tiny.toml", "--jobs=2", cwd=tmp_path)
    assert last.returncode == 0, last.stderr
    assert not trainers(folder)

    assert twin_graph("experiment", "report", "tiny", cwd=tmp_path).returncode == 0
    for name in RUNS:
        ours, theirs = (report.status(Run(root / name)) for root in (folder, finished))
        assert ours["weights_sha256"] == theirs["weights_sha256"]
        assert ours["state"] == "finished"
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
    where = r"target\.policy=own:fragile: ValueError: the policy broke \(.*/own\.py:7, in fragile\)"
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
                {label: scores[label]}, lambda x, f=function: np.array([f(x)]), reps=statistics.RESAMPLES
            )
            assert float(rows[label][name]) == pytest.approx(value[label][0])
            limits = [float(rows[label][f"{name}_{end}"]) for end in ("low", "high")]
            assert limits == pytest.approx(interval[label][:, 0].tolist())
    np.random.seed(0)
    value, interval = library.get_interval_estimates(
        {"": (scores["lag(40)"], scores["latest"])}, metrics.probability_of_improvement, reps=statistics.RESAMPLES
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


def test_runs_with_workers_have_the_steps_in_common_at_which_they_were_due(tmp_path: Path) -> None:
    """What is played and logged a little later, at another step in each run, makes one curve."""
    more = "workers.count = 2\ntrain.start_steps = 200"
    planned, *others = plan.parse(changed("train.start_steps = 200", more)).runs
    alone = plan.parse(FILE).runs[0]

    def read(of: plan.PlannedRun, name: str, played: list[int], logged: list[int]) -> results.Result:
        run = create(tmp_path / name, of.settings)
        for step in played:
            counters = ledger.Counters.zero().model_copy(update={"agent_steps": step})
            snapshot: Any = SimpleNamespace(id="a", counters=counters)
            told = {"returns": [float(step)], "protocol": {}}
            run.record_evaluation(snapshot, told, played_at=counters, challenger="a")
        for step in logged:
            line = {"agent_steps": step, "updates": 0, "agent_steps_per_second": 1.0, "seconds": 1.0}
            run.record_metrics({**line, "train_return": float(step)})
        return results._result(results.State(of, "done", 600), run)

    late = read(planned, "late", [209, 417, 600, 601], [101, 203, 399, 602])
    assert late.scores == {200: 209, 400: 417, 600: 601}  # one that was played until the end is not the last one
    assert late.train_return == {100: 101, 200: 203, 300: 399, 600: 602}
    assert late.seconds == {100: 1, 200: 2, 300: 3, 600: 4}
    assert late.agent_steps == 602
    other = read(others[0], "other", [203, 450, 601], [100, 201, 300, 601])
    band = statistics.curve([[late.scores], [other.scores]], statistics.mean_by_step)
    assert band is not None
    assert band.at == [200, 400, 600]
    assert read(alone, "alone", [209, 601], [101, 601]).scores == {209: 209, 601: 601}


def test_only_a_stop_that_commits_a_resume_point_counts_as_one(
    cartpole: Callable[..., Settings], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others are resumed from a scheduled point, and change nothing."""
    run = create(tmp_path / "run", cartpole(resume__every_steps=200, evaluate__episodes=0))
    stops = []
    for owner, name in ((Keeper, "log"), (PointStore, "commit")):
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
            assert result.mean_age(update, update) == told["snapshots"][0]["age_updates"]
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


@pytest.mark.skipif(
    not (shutil.which("chromium") and shutil.which("chromedriver")),
    reason="needs Debian's packages chromium and chromium-driver",
)
@pytest.mark.parametrize("width", [390, 1280])
def test_a_browser_shows_the_page_whole(finished: Path, width: int) -> None:
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


def test_the_report_says_what_two_seeds_cannot_carry(finished: Path) -> None:
    for text in ((finished / "report" / name).read_text() for name in ("index.html", "report.md")):
        assert "Too few seeds: 2 per condition" in text
        assert "A score is the mean of only 3 games; evaluate.episodes=10 or more leaves less to luck." in text
        assert "0 counts as 0 and 500 as 1 (the range of what the game can score)" in text


@pytest.mark.parametrize(
    ("seeds", "warning"),
    [
        (4, "Too few seeds: 4 per condition. Bootstrap intervals from so few"),
        (5, "Few seeds: 5 per condition. Only believe large differences, or use 10."),
        (9, "Few seeds: 9 per condition."),
        (10, None),
    ],
)
def test_a_report_says_how_far_its_seeds_carry(
    seeds: int, warning: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(statistics, "RESAMPLES", 20)
    planned = plan.parse(changed("seeds = [1, 2]", f"seeds = {list(range(1, seeds + 1))}"))
    norms = {"CartPole-v1": statistics.Norm(0, 500, 475, "")}
    done = [
        results._nothing(results.State(run, "done", 600))._replace(scores={600: 100.0 + i}, games=20)
        for i, run in enumerate(planned.runs)
    ]
    conditions = statistics.analyse(planned, done, norms, lambda *_: None)
    warnings = list(pages._warnings(pages._Data(planned, done, norms, conditions)))
    assert len(warnings) == (warning is not None)
    assert all(text.startswith(str(warning)) for text in warnings)


def made_up(planned: plan.Plan, scores: Callable[[str, int], float], failed: str = "") -> list[results.Result]:
    """Runs that all are done but for those of one condition, by condition and seed."""
    return [
        results._nothing(results.State(run, "failed" if run.condition == failed else "done", 600))._replace(
            scores={600: scores(run.condition, run.seed)}, games=20
        )
        for run in planned.runs
    ]


def test_nothing_is_compared_with_runs_that_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(statistics, "RESAMPLES", 20)
    text = changed('["latest", "lag(40)"]', '["latest", "lag(40)", "lag(20)"]').replace("[1, 2]", "[1, 2, 3, 4, 5]")
    planned, norms = plan.parse(text), {"CartPole-v1": statistics.Norm(0, 500, 475, "")}

    def findings(failed: str) -> tuple[list[statistics.Condition], str]:
        done = made_up(planned, lambda condition, seed: 100.0 * len(condition) + seed, failed)
        conditions = statistics.analyse(planned, done, norms, lambda *_: None)
        return conditions, " ".join(pages._findings(pages._Data(planned, done, norms, conditions)))

    conditions, said = findings("")
    assert "2 comparisons with latest" in said
    assert conditions[1].difference is not None
    assert conditions[1].difference.value == 100
    both = [condition.p for condition in conditions[1:]]
    conditions, _ = findings("lag(20)")  # a planned comparison counts, though it cannot be made
    assert conditions[1].p == both[0] == 2 * 2 / 2**5
    conditions, said = findings("latest")
    assert said.endswith("No run of latest, with which the others are compared, is done.")
    assert all(condition.difference in (None, statistics.UNKNOWN) for condition in conditions)
    assert all(math.isnan(condition.p) for condition in conditions)


def test_pairs_are_of_runs_that_are_both_done(monkeypatch: pytest.MonkeyPatch) -> None:
    """Six of seven seeds are done of each, and five of both: too few to show anything."""
    monkeypatch.setattr(statistics, "RESAMPLES", 20)
    planned = plan.parse(changed("[1, 2]", str(list(range(1, 8)))))
    norms = {"CartPole-v1": statistics.Norm(0, 500, 475, "")}
    missing = {("latest", 1), ("lag(40)", 2)}
    done = [
        run._replace(state="failed") if (run.planned.condition, run.planned.seed) in missing else run
        for run in made_up(planned, lambda condition, seed: 50.0 * len(condition) + seed)
    ]
    conditions = statistics.analyse(planned, done, norms, lambda *_: None)
    found = " ".join(pages._findings(pages._Data(planned, done, norms, conditions)))
    assert "5 pairs cannot show a difference in 1 comparison" in found


def test_of_one_condition_the_score_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(statistics, "RESAMPLES", 20)
    planned, norms = plan.parse(changed(', "lag(40)"', "")), {"CartPole-v1": statistics.Norm(0, 500, 475, "")}
    done = made_up(planned, lambda condition, seed: 100.0 * seed)
    conditions = statistics.analyse(planned, done, norms, lambda *_: None)
    [said] = pages._findings(pages._Data(planned, done, norms, conditions))
    assert said == "Return at the end: latest, 150.0 (100.0 to 200.0) (interquartile mean)."


def test_the_time_to_a_threshold_is_shown_also_while_runs_are_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(statistics, "RESAMPLES", 20)
    planned, norms = plan.parse(FILE), {"CartPole-v1": statistics.Norm(0, 500, 475, "")}
    first, *others = made_up(planned, lambda condition, seed: 480.0)
    for first_has, panels in ({300: 60.0, 600: 120.0}, 2), ({}, 1):
        timed = [run._replace(seconds={300: 60.0, 600: 120.0}) for run in others]
        runs = [
            first._replace(seconds=first_has),
            *timed[:2],
            timed[2]._replace(state="waiting", scores={}, seconds={}),
        ]
        conditions = statistics.analyse(planned, runs, norms, lambda *_: None)
        figure = dict(pages._score_figures(pages._Data(planned, runs, norms, conditions)))["threshold"]
        assert len(figure.axes) == panels


def test_a_value_that_no_legend_would_show_has_a_label_that_does() -> None:
    found = plan.parse(changed("[factors]", "[factors]\ntrain.optimizer = ['adam', '_mine:optimizer']"))
    assert 'optimizer="_mine:optimizer", latest' in found.conditions


def test_figures_of_targets_are_left_out_where_there_are_none() -> None:
    planned, norms = plan.parse(FILE), {"CartPole-v1": statistics.Norm(0, 500, 475, "")}
    done = made_up(planned, lambda condition, seed: 100.0)
    conditions = statistics.analyse(planned, done, norms, lambda *_: None)
    assert list(pages._target_figures(pages._Data(planned, done, norms, conditions))) == []


def test_without_rliable_a_report_says_what_to_install(finished: Path, tmp_path: Path) -> None:
    (tmp_path / "rliable.py").write_text("raise ModuleNotFoundError('No module', name='rliable')")
    done = twin_graph(
        "experiment", "report", str(finished), cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(tmp_path)}, fresh=True
    )
    assert done.returncode == 1
    assert done.stderr == "Error: a report needs rliable: pip install 'twin-graph[experiments]'\n"


def test_pictures_of_other_commands_need_matplotlib_alone() -> None:
    code = "import sys; sys.modules |= {'rliable': None, 'scipy': None}; import twin_graph.experiments.figures"
    subprocess.run([sys.executable, "-c", code], check=True)


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


def test_scores_of_an_unknown_game_are_normalised_by_what_was_seen_and_it_is_said() -> None:
    planned = plan.parse(changed("train.batch_size = 16", 'env.id = "Acrobot-v1"'))
    nothing = [results._nothing(results.State(run, "waiting", 0)) for run in planned.runs]
    seen = [result._replace(scores={200: -500.0, 600: -100.0}) for result in nothing]
    norm = statistics.norms(planned, seen)["Acrobot-v1"]
    assert (norm.low, norm.high, norm.source) == (-500, -100, "the lowest and highest score seen in these runs")
    assert norm.threshold == pytest.approx(-120)
    given_in_file = plan.parse(planned.text + "[scores]\nlow = -500\nhigh = -70\nthreshold = -100")
    assert statistics.norms(given_in_file, seen)["Acrobot-v1"][:3] == (-500, -70, -100)


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


def test_intervals_are_drawn_with_the_same_seed_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(statistics, "RESAMPLES", 200)
    scores = np.random.default_rng(0).uniform(size=(10, 2))

    def function(x: np.ndarray) -> np.ndarray:
        return np.array([metrics.aggregate_iqm(x)])

    before = np.random.get_state()[1].tolist()
    [estimate] = statistics.estimates(scores, function, 1)
    assert np.random.get_state()[1].tolist() == before
    np.random.seed(0)
    value, interval = library.get_interval_estimates({"": scores}, function, reps=200)
    assert estimate == (value[""][0], *interval[""][:, 0])


@given(st.lists(st.floats(-1e3, 1e3), min_size=1, max_size=30))
def test_the_interquartile_mean_is_that_of_rliable(numbers: list[float]) -> None:
    scores = np.array(numbers)[:, None]
    assert statistics.iqm(scores) == pytest.approx(metrics.aggregate_iqm(scores), abs=1e-9)


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


@pytest.mark.parametrize(("seeds", "others", "can"), [(5, 1, False), (6, 1, True), (6, 2, False), (10, 11, True)])
def test_nothing_is_found_where_nothing_could_be(seeds: int, others: int, can: bool) -> None:
    # The first one, those that are compared with it, and a control.
    found = sentence_on([math.nan, *[1.0] * others, math.nan], [seeds] * (others + 2))
    assert found.startswith("Of" if can else f"{seeds} pairs cannot show a difference in {others} comparison")


def test_a_condition_of_few_runs_hides_no_difference_of_another() -> None:
    for few in (1, 4, 5):
        assert "these differ" in sentence_on([math.nan, 0.004, 0.25], [10, 10, few])


def sentence_on(p: list[float], seeds: list[int]) -> str:
    """What a report finds on conditions with these p values, and so many runs each; the control's is NaN."""
    score = statistics.Estimate(1.0, 0.0, 2.0)
    of_each = {"name": "latest", "iqm": score, "difference": score}
    runs = [[SimpleNamespace(planned=SimpleNamespace(nudge=i > 0 and math.isnan(one)))] for i, one in enumerate(p)]
    conditions = [
        SimpleNamespace(**of_each, p=one, pairs=n, scores=np.ones((n, 1)), runs=of)
        for one, n, of in zip(p, seeds, runs, strict=True)
    ]
    data = SimpleNamespace(conditions=conditions, unit="return", estimate=lambda estimate: estimate)
    *_, found = pages._findings(data)  # type: ignore[arg-type]
    return found


def test_threads_are_shared_by_all_workers_of_all_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("twin_graph.cpu.os.sched_getaffinity", lambda _: range(16))
    alone = changed('preset = "cartpole"', 'preset = "pong"')
    assert dict(experiment._fixed(plan.parse(alone), 2))["twin.threads"] == 8
    named = alone.replace("[factors]", "[factors.kind]").replace(
        'target.policy = ["latest", "lag(40)"]', "one = {twin.threads = 1}\nrest = {train.double = true}"
    )
    fixed = experiment._fixed(plan.parse(named), 2)
    assert [run.settings.twin.threads for run in plan.parse(named, fixed=fixed).runs] == [1, 8, 1, 8]
    shared = alone.replace("train.batch_size = 16", "train.batch_size = 16\nworkers.count = 4")
    assert dict(experiment._fixed(plan.parse(shared), 2))["twin.threads"] == 2


def test_one_run_has_no_interval() -> None:
    [estimate] = statistics.estimates(np.array([[0.5]]), lambda x: np.array([metrics.aggregate_iqm(x)]), 1)
    assert estimate.value == 0.5
    assert math.isnan(estimate.low)
    assert math.isnan(statistics.improvement(np.array([[0.5]]), np.array([[0.1]])).high)


def test_a_few_pairs_are_tested_exactly() -> None:
    """Five pairs that all point one way: of 2**5 ways to swap them two are as extreme."""
    assert statistics.p_of(np.array([[1.0], [2.0], [3.0], [4.0], [5.0]])) == pytest.approx(2 / 32)
    assert statistics.p_of(np.array([[1.0], [-1.0]])) == 1
    assert math.isnan(statistics.p_of(np.array([[1.0]])))


def test_holm_multiplies_by_what_is_left_and_never_turns_the_order() -> None:
    """0.01 * 4, 0.02 * 3, 0.03 * 2, and 0.06 * 1, none below the one before it."""
    found = statistics.holm([0.06, math.nan, 0.01, 0.03, 0.02])
    assert found == pytest.approx([0.06, math.nan, 0.04, 0.06, 0.06], nan_ok=True)
    assert statistics.holm([0.6, 0.7]) == [1, 1]
    assert statistics.holm([0.01, math.nan, 0.03], of=3) == pytest.approx([0.03, math.nan, 0.06], nan_ok=True)


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


def test_scores_of_several_environments_make_one_matrix(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(statistics, "RESAMPLES", 50)
    planned = plan.parse(changed("[factors]", '[factors]\nenv.id = ["CartPole-v1", "Acrobot-v1"]'))
    draw = np.random.default_rng(0)
    done = []
    for run in planned.runs:
        score = draw.uniform(0, 500) if run.task == "CartPole-v1" else draw.uniform(-500, -100)
        done.append(results._nothing(results.State(run, "done", 600))._replace(scores={300: score / 2, 600: score}))
    missing, *there = done  # of seed 1, latest lacks CartPole
    norms = {
        "CartPole-v1": statistics.Norm(0, 500, 475, ""),
        "Acrobot-v1": statistics.Norm(-500, -100, -120, ""),
    }
    first, second = statistics.analyse(planned, there, norms, lambda *_: None)
    assert first.scores.shape == (1, 2)
    assert second.scores.shape == (2, 2)
    expected = [[norms[r.planned.task].normalised(r.final) for r in there if r.planned in row] for row in seeds(second)]
    assert second.scores.tolist() == expected
    assert second.iqm.value == pytest.approx(metrics.aggregate_iqm(np.array(expected)))
    assert second.curve is not None
    assert second.curve.at == [300, 600]
    assert missing.planned.seed == 1
    assert np.isfinite(second.curve.low).all()
    assert first.curve is not None  # of one seed, whose resamples are all alike
    assert np.isfinite(first.curve.value).all()
    assert np.isnan([first.curve.low, first.curve.high]).all()
    assert first.profile is not None
    assert np.isnan([first.profile.low, first.profile.high]).all()


def test_runs_that_are_done_are_counted_though_their_seed_lacks_an_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(statistics, "RESAMPLES", 20)
    planned = plan.parse(changed("[factors]", '[factors]\nenv.id = ["CartPole-v1", "Acrobot-v1"]'))
    norms = {task: statistics.Norm(0, 500, 475, "") for task in planned.tasks}
    found = made_up(planned, lambda condition, seed: 100.0)
    for i in (0, 4):  # of both seeds, latest lacks CartPole
        found[i] = results._nothing(results.State(planned.runs[i], "running", 600))
    conditions = statistics.analyse(planned, found, norms, lambda *_: None)
    data = pages._Data(planned, found, norms, conditions)
    assert [row[1] for row in pages._comparison(data).rows] == ["2 of 4", "4 of 4"]
    assert "6 of them done" in pages._page(data).lead
    [said] = [text for text in pages._warnings(data) if text.startswith("Done, but")]
    assert said.endswith("lack another environment: Acrobot-v1,latest,seed=1 and Acrobot-v1,latest,seed=2.")


def seeds(condition: statistics.Condition) -> list[list[plan.PlannedRun]]:
    return [[result.planned for result in row] for row in condition.rows]


@pytest.mark.parametrize("command", ["run", "report", "clock"])
def test_every_command_has_help_with_an_example(command: str) -> None:
    shown = CliRunner().invoke(cli, ["experiment", command, "--help"])
    assert re.search(rf"Examples?:\n\s+twin-graph experiment {command}", shown.output)


def test_no_panel_of_many_cuts_off_what_another_needs() -> None:
    low, high = (
        statistics.Band([0, 1], np.array([top, top]), np.full(2, top / 2), np.full(2, top)) for top in (10.0, 100.0)
    )
    figure = figures.lines([*(figures.Line(str(i), low) for i in range(7)), figures.Line("high", high)], "x", "y")
    assert [axes.get_ylim()[1] > 100 for axes in figure.axes] == [True] * 8
    assert {axes.get_ylim()[0] for axes in figure.axes} == {0}
