"""Two runs side by side."""

import json
import os
import re
import warnings
from collections.abc import Callable
from pathlib import Path

import matplotlib
import numpy as np
import pytest
from attempts import attempt
from commands import twin_graph
from matplotlib import font_manager
from test_fork import forked

from twin_graph.analysis.compare import compare
from twin_graph.base import machine
from twin_graph.config.settings import Settings
from twin_graph.errors import DamagedError, UsageError
from twin_graph.experiments import figures, fonts
from twin_graph.snapshots.files import append_line, read_lines
from twin_graph.snapshots.run import Run, create
from twin_graph.twin import weights

Make = Callable[..., Settings]
Train = Callable[[Settings], Run]


def test_a_fork_parts_where_it_was_forked(cartpole: Make, trained: Train, tmp_path: Path) -> None:
    parent = trained(cartpole(resume__keep="all", save__every_updates=10))
    attempt(made := forked(parent, tmp_path / "fork", at="1", train__learning_rate=1e-2))
    found = compare(parent, made)
    assert found.settings == [("train.learning_rate", parent.settings.train.learning_rate, 1e-2)]
    assert found.equal == 76
    assert found.parted is not None
    assert found.parted.updates == 80
    assert found.parted.what == "the snapshot"
    assert {found.parted.first, found.parted.second} == {parent.resolve("@update:80").id, made.resolve("@update:80").id}
    assert [pair.updates for pair in found.pairs] == list(range(80, 251, 10))
    last = found.pairs[-1]
    [*_, whole] = weights.diff((parent.store(), parent.resolve("latest")), (made.store(), made.resolve("latest")))
    assert last.weight_distance == pytest.approx(whole.distance)
    assert last.relative == pytest.approx(whole.relative)
    assert last.q_distance is not None
    assert found.pairs[0].q_distance is not None
    assert 0 < found.pairs[0].q_distance < last.q_distance
    assert [score.agent_steps for score in found.scores[0]] == [600, 1_200]


def test_other_processors_of_one_name_are_named(
    cartpole: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = cartpole(evaluate__episodes=0, train__steps=600)
    here = machine.describe()
    for name, stepping, steps in (("first", 98, 500), ("second", 99, 500), ("third", 99, 500)):
        monkeypatch.setattr(machine, "describe", lambda stepping=stepping: here._replace(stepping=stepping))
        attempt(create(tmp_path / name, settings), steps)
    compared = twin_graph("compare", "first", "second", cwd=tmp_path).stdout
    assert re.search(r"^processor: .* stepping 98 in first, .* stepping 99 in second$", compared, re.MULTILINE)
    assert f"({here.instruction_set})" in compared
    same = twin_graph("compare", "second", "third", cwd=tmp_path).stdout
    assert "processor" not in same  # no difference is to be explained
    metrics = tmp_path / "third" / "metrics.jsonl"  # another loss, and no reason for it on record
    lines = [{**line.record, "loss": line.record.get("loss") and 1.0} for line in read_lines(metrics) if line.record]
    metrics.write_bytes(b"")
    for line in lines:
        append_line(metrics, {name: value for name, value in line.items() if name != "crc"})
    apart = twin_graph("compare", "second", "third", cwd=tmp_path).stdout
    assert "nothing else that is recorded differs: the processor's name, family, model, stepping and flags; " in apart


def test_settings_that_differed_where_runs_part_are_named_though_they_are_equal_now(
    cartpole: Make, trained: Train, tmp_path: Path
) -> None:
    whole = trained(cartpole())
    changed = create(tmp_path / "changed", cartpole(train__learning_rate=1e-2))
    attempt(changed, 700)
    changed.change_settings(whole.settings)
    attempt(changed)
    found = compare(changed, whole)
    assert found.settings == [("train.learning_rate", 1e-2, whole.settings.train.learning_rate)]


def test_equal_runs_have_nothing_to_show(cartpole: Make, trained: Train, tmp_path: Path) -> None:
    parent = trained(cartpole(resume__keep="all"))
    attempt(made := forked(parent, tmp_path / "fork", at="1"))
    found = compare(parent, made)
    assert (found.settings, found.parted, found.equal) == ([], None, 250)
    assert all(pair.weight_distance == 0 and pair.q_distance == 0 for pair in found.pairs)
    shorter = forked(parent, tmp_path / "shorter", at="1")
    assert compare(parent, shorter).parted is None


def test_other_networks_are_compared_by_what_they_say(cartpole: Make, trained: Train) -> None:
    first, second = trained(cartpole()), trained(cartpole(model__hidden_units=[8, 8]))
    found = compare(first, second)
    assert found.parted is not None
    assert found.parted.updates == 0
    assert {pair.weight_distance for pair in found.pairs} == {None}
    assert all(pair.q_distance is not None and np.isfinite(pair.q_distance) for pair in found.pairs)


def test_where_observations_have_other_shapes_no_q_values_are_compared(cartpole: Make, trained: Train) -> None:
    lakes = [cartpole(env__id="FrozenLake-v1", env__kwargs={"map_name": name}) for name in ("4x4", "8x8")]
    found = compare(*(trained(settings) for settings in lakes))
    assert {(pair.weight_distance, pair.q_distance) for pair in found.pairs} == {(None, None)}


def test_other_environments_are_refused(cartpole: Make, pong: Make, trained: Train) -> None:
    with pytest.raises(UsageError, match=r"plays CartPole-v1 and .* ALE/Pong-v5: there is nothing to compare"):
        compare(trained(cartpole()), trained(pong(train__steps=100)))


def test_the_command_prints_a_table_and_draws_a_picture(cartpole: Make, trained: Train, tmp_path: Path) -> None:
    parent = trained(cartpole(resume__keep="all"))
    attempt(forked(parent, tmp_path / "fork", at="1", seed=2))
    picture = tmp_path / "apart.png"
    done = twin_graph("compare", str(parent.folder), str(tmp_path / "fork"), "--plot", str(picture), cwd=tmp_path)
    assert done.returncode == 0
    lines = done.stdout.splitlines()
    assert lines[:2] == [f"seed: 1 in {parent.name}, 2 in fork", "equal up to update 76"]
    assert re.fullmatch(rf"first difference, after update 100: .+ is \S+ in {parent.name}, \S+ in fork", lines[2])
    assert picture.read_bytes().startswith(b"\x89PNG")
    document = json.loads(twin_graph("compare", str(parent.folder), "fork", "--json", cwd=tmp_path).stdout)
    assert document["equal_updates"] == 76
    assert document["pairs"][0]["updates"] == 100
    wrong = twin_graph("compare", str(parent.folder), "fork", "--plot", "apart.doc", cwd=tmp_path)
    assert wrong.returncode == 2
    assert "ends in .png, .svg or .pdf" in wrong.stderr


def test_scores_of_one_game_are_compared_without_intervals(cartpole: Make, trained: Train, tmp_path: Path) -> None:
    first, second = (trained(cartpole(train__steps=400, evaluate__episodes=1, seed=seed)) for seed in (1, 2))
    done = twin_graph("compare", str(first.folder), str(second.folder), "--plot=a.png", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    scores = [score for of_run in json.loads(done.stdout)["scores"] for score in of_run]
    assert [(score["low"], score["high"]) for score in scores] == [(None, None)] * 2


def test_of_two_learners_each_row_and_each_curve_says_whose_it_is(
    cartpole: Make, trained: Train, tmp_path: Path
) -> None:
    parent = trained(cartpole(mode="mutual", resume__keep="all"))
    attempt(other := forked(parent, tmp_path / "fork", at="1", seed=2))
    done = twin_graph("compare", str(parent.folder), "fork", "--plot=apart.svg", cwd=tmp_path)
    heading, *rows = done.stdout.splitlines()[3:]
    assert heading.split()[:2] == ["learner", "updates"]
    assert {row.split()[0] for row in rows} == {"a", "b"}
    assert {score.learner for score in compare(parent, other).scores[0]} == {"a", "b"}
    assert "fork, learner b" in (tmp_path / "apart.svg").read_text()


def test_damaged_observations_of_a_resume_point_are_named(cartpole: Make, trained: Train, tmp_path: Path) -> None:
    parent = trained(cartpole(resume__keep="all"))
    attempt(other := forked(parent, tmp_path / "fork", at="1", seed=2))
    newest = parent.points().newest()
    assert newest
    probe = parent.points().path(newest.number) / "probe.npy"
    probe.write_bytes(probe.read_bytes()[:40])
    with pytest.raises(DamagedError, match=r"probe\.npy is damaged"):
        compare(parent, other)


def test_letters_that_no_font_has_are_told_in_one_line(cartpole: Make, trained: Train, tmp_path: Path) -> None:
    names = "\u5b9e\u9a8c", "\u5b9e\u9a8c-2"
    for name in names:
        trained(cartpole()).folder.rename(tmp_path / name)
    without_fontconfig = {**os.environ, "PATH": str(tmp_path)}
    done = twin_graph("compare", *names, "--plot=a.png", cwd=tmp_path, env=without_fontconfig)
    assert done.returncode == 0
    picture, lacking = done.stderr.splitlines()
    assert picture.startswith("picture: ")
    assert lacking.startswith("no font of this system has \u5b9e\u9a8c: pictures show boxes instead")


def test_a_picture_has_letters_that_only_another_font_of_the_system_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = Path(matplotlib.get_data_path(), "fonts", "ttf", "STIXGeneral.ttf")
    letter = fonts._lacking(map(chr, font_manager.get_font(path).get_charmap()))[-1]
    monkeypatch.setattr(fonts, "having", lambda text: [path] if text == letter else [])
    figure = figures.heat_map(np.zeros((1, 1)), [letter], ["b"], "label")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fonts.save(figure, tmp_path / "a.png")
    assert figure.axes[0].get_yticklabels()[0].get_fontfamily() == ["DejaVu Sans", "STIXGeneral"]
    assert list(fonts.without_font([letter])) == []
