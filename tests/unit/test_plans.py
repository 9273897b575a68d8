"""Experiment files: what they mean, and what is refused before anything runs."""

import contextlib
import io
import json
import re
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from experiment_files import FILE, changed, made_up
from hypothesis import given
from hypothesis import strategies as st
from tables import rows

from twin_graph import config
from twin_graph.errors import TwinGraphError, UsageError
from twin_graph.experiments import experiment, plan, statistics, tables, trial
from twin_graph.experiments.experiment import Experiment, assignment
from twin_graph.snapshots.files import checked, read_file

ROOT = Path(__file__).parents[2]
FACTORS = '[factors]\ntarget.policy = ["latest", "lag(40)"]'


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


def test_more_runs_than_anybody_means_are_refused_at_once() -> None:
    many = "\n".join(
        f'"{name}" = {list(range(1, 101))}'
        for name in ("save.keep_last", "replay.capacity_steps", "save.every_updates")
    )
    began = time.monotonic()
    with pytest.raises(
        UsageError, match=r"factors and seeds make 4,000,000 runs, and at most 10,000 are possible: leave "
    ):
        plan.parse(changed('target.policy = ["latest", "lag(40)"]', f'target.policy = ["latest", "lag(40)"]\n{many}'))
    assert time.monotonic() - began < 1


def test_a_check_that_was_killed_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dies = tmp_path / "python"
    dies.write_text("#!/bin/sh\necho half a line >&2\nkill -9 $$\n")
    dies.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(dies))
    with pytest.raises(TwinGraphError, match=r"check of the runs was killed by SIGKILL, .* memory .* try again$"):
        trial.run({})


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


@pytest.mark.parametrize(("replace", "by", "message"), rows("plans", "bad_files", "replace", "by", "message"))
def test_a_bad_file_is_refused_with_one_line(replace: str, by: str, message: str) -> None:
    text = changed(replace, by) if replace else FILE + by
    with pytest.raises(UsageError) as refused:
        plan.parse(text)
    assert message in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("path", sorted((ROOT / "studies").glob("*.toml")), ids=lambda path: path.stem)
def test_every_study_that_is_shipped_is_right(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "examples")
    found = plan.read(path)
    plan.check_plan(found, path)
    assert found.name == path.stem
    assert len({run.seed for run in found.runs}) >= 3


def test_a_policy_that_cannot_be_is_named_with_its_file(tmp_path: Path) -> None:
    path = tmp_path / "study.toml"
    path.write_text(changed('"latest"', '"lates"'))
    with pytest.raises(UsageError, match=r"study\.toml: target\.policy=lates: unknown policy 'lates'"):
        plan.check_plan(plan.read(path), path)


def test_more_evaluations_than_there_will_be_are_refused_before_any_run(tmp_path: Path) -> None:
    path = tmp_path / "study.toml"
    path.write_text("last_evaluations = 3\n" + FILE)
    plan.check_plan(plan.read(path), path)
    path.write_text("last_evaluations = 4\n" + FILE)
    there = "latest has 3 evaluations: evaluate.every_steps=200 in 600 agent steps"
    with pytest.raises(UsageError, match=rf"study\.toml: last_evaluations=4, but {there}$"):
        plan.check_plan(plan.read(path), path)
    # Between chunks, it is evaluated once however often that has been due.
    path.write_text("last_evaluations = 3\n" + changed("chunk_steps = 0", "chunk_steps = 400"))
    there = "latest has 2 evaluations: evaluate.every_steps=200, looked at every 400, in 600 agent steps"
    with pytest.raises(UsageError, match=there):
        plan.check_plan(plan.read(path), path)


@pytest.mark.parametrize(("replace", "by", "message"), rows("plans", "nothing_to_compare", "replace", "by", "message"))
def test_what_would_compare_nothing_is_refused_before_any_run(
    replace: str, by: str, message: str, tmp_path: Path
) -> None:
    path = tmp_path / "study.toml"
    path.write_text(changed(replace, by))
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
            plan.check_plan(forked, path)


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


def test_threads_are_shared_by_all_workers_of_all_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("twin_graph.base.machine.os.sched_getaffinity", lambda _: range(16))
    alone = changed('preset = "cartpole"', 'preset = "pong"')
    assert dict(experiment._fixed(plan.parse(alone), 2))["twin.threads"] == 8
    named = alone.replace("[factors]", "[factors.kind]").replace(
        'target.policy = ["latest", "lag(40)"]', "one = {twin.threads = 1}\nrest = {train.double = true}"
    )
    fixed = experiment._fixed(plan.parse(named), 2)
    assert [run.settings.twin.threads for run in plan.parse(named, fixed=fixed).runs] == [1, 8, 1, 8]
    shared = alone.replace("train.batch_size = 16", "train.batch_size = 16\nworkers.count = 4")
    assert dict(experiment._fixed(plan.parse(shared), 2))["twin.threads"] == 2


def test_a_value_that_no_legend_would_show_has_a_label_that_does() -> None:
    found = plan.parse(changed("[factors]", "[factors]\ntrain.optimizer = ['adam', '_mine:optimizer']"))
    assert 'optimizer="_mine:optimizer", latest' in found.conditions


# Names

#: What `pandas.read_csv` takes for nothing, for a number or for a truth value.
NO_TEXT = ["null", "NA", "N/A", "n/a", "nan", "NaN", "-nan", "None", "<NA>", "#N/A", "", "1e3", "-0.5", "07", "inf"]


@pytest.mark.parametrize("name", [*NO_TEXT, "True", "false", " 1", "1 "])
def test_labels_survive_being_read_from_csv(name: str) -> None:
    pandas = pytest.importorskip("pandas")
    variants = f"[factors.kind]\n{json.dumps(name)} = {{}}\nother = {{ train.double = true }}"
    for text in (variants, variants.replace("other", '"2e3"')):
        found = plan.parse(changed(FACTORS, text))
        table = tables.as_csv([{"condition": run.condition, "score": 1.0} for run in found.runs])
        assert list(pandas.read_csv(io.BytesIO(table))["condition"].unique()) == found.conditions
        assert found.conditions[0] == f"kind={name or json.dumps(name)}"
    by = 'target.policy = ["latest", "lag(40)"]'
    both = plan.parse(changed(FACTORS, f"[factors]\n{by}\n{variants}"))
    assert both.conditions[0] == f"latest, {name or 'kind=' + json.dumps(name)}"


def test_a_value_that_is_null_is_a_condition_of_its_own_in_a_table() -> None:
    pandas = pytest.importorskip("pandas")
    found = plan.parse(changed(FACTORS, '[factors]\ntrain.gradient_clip_norm = ["null", 10.0]'))
    assert found.conditions == ["gradient_clip_norm=null", "gradient_clip_norm=10.0"]
    assert [run.name for run in found.runs[:2]] == ["null,seed=1", "gradient_clip_norm=10.0,seed=1"]  # as before
    rows = tables.as_csv([{"condition": run.condition, "score": 1.0} for run in found.runs])
    assert list(pandas.read_csv(io.BytesIO(rows)).groupby("condition").size()) == [2, 2]


@pytest.mark.parametrize(
    ("factor", "names"),
    [
        ("env.kwargs.scale = [1e30, 1e-30]", ["scale=1e+30", "scale=1e-30"]),
        ('kind."基线" = {}\nkind."双重" = { train.double = true }', ["基线", "双重"]),
        ('kind."größer 1" = {}\nkind."groß" = { train.double = true }', ["größer-1", "groß"]),
        ('kind."-0.5" = {}\nkind."0.5" = { train.double = true }', ["kind=-0.5", "0.5"]),
        ('kind."" = {}\nkind."?" = { train.double = true }', ["kind=", "kind=3f"]),
        ('kind."a + b" = {}\nkind."lag(40)" = { train.double = true }', ["a-b", "lag-40"]),  # as before
    ],
)
def test_folders_are_named_by_what_their_runs_are_called(factor: str, names: list[str]) -> None:
    runs = plan.parse(changed(FACTORS, f"[factors]\n{factor}")).runs
    assert [run.name for run in runs[:2]] == [f"{name},seed=1" for name in names]


def test_an_experiment_that_an_earlier_version_began_keeps_the_names_of_its_folders(tmp_path: Path) -> None:
    for factor, names in (
        ("env.kwargs.scale = [1e30, 0.1]", ["scale=1e-30", "scale=0.1"]),
        ('kind."基线" = {}\nkind.b = { train.double = true }', ["", "b"]),
        ('target.policy = ["latest", "lag(40)"]', ["latest", "lag-40"]),
    ):
        (folder := tmp_path / names[1]).mkdir()
        planned = plan.parse(changed(FACTORS, f"[factors]\n{factor}"))
        Experiment.prepare(planned, folder, 1, lambda _: trial.Trial(100.0, 1.0, [1, 1], 1)).write()
        record = read_file(folder / "experiment.json")
        assert [run.name for run in Experiment.open(folder).plan.runs] == [run.name for run in planned.runs]
        del record["names"]  # which it did not write
        (folder / "experiment.json").write_bytes(checked(record))
        more = plan.parse(changed(FACTORS, f"[factors]\n{factor}").replace("[1, 2]", "[1, 2, 3]"))
        for found in (Experiment.open(folder), Experiment.prepare(more, folder, 1, pytest.fail)):
            assert [run.name for run in found.plan.runs[:2]] == [f"{name},seed=1" for name in names]
        begun = Experiment.prepare(more, folder, 1, pytest.fail)
        begun.write()
        assert Experiment.open(folder).plan == begun.plan


def test_runs_from_elsewhere_are_found_whatever_their_folders_are_called() -> None:
    text = changed(FACTORS, "[factors]\nenv.kwargs.scale = [1e30, 0.1]")
    here, there = plan.parse(text), plan.parse(text, names=1)
    elsewhere = made_up(there, lambda condition, seed: 1.0)
    waiting = [result._replace(state="waiting", scores={}) for result in made_up(here, lambda condition, seed: 1.0)]
    filled = tables.filled_in(waiting, elsewhere, Path("there"))
    assert [(result.state, result.planned.name) for result in filled] == [("done", run.name) for run in here.runs]
