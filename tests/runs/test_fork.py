"""Forks: the same past, and a future that is the parent's own unless something is changed."""

import contextlib
import hashlib
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from attempts import attempt, end
from commands import Command, twin_graph
from twin_graph_cli.fork import fork as fork_command

from twin_graph import config, envs, training
from twin_graph.analysis import nudge
from twin_graph.analysis.compare import compare
from twin_graph.config.settings import Settings
from twin_graph.errors import DamagedError, UsageError
from twin_graph.exchange.importing import average
from twin_graph.records import report
from twin_graph.records.verify import verify
from twin_graph.snapshots import control, files, workers
from twin_graph.snapshots.files import read_file
from twin_graph.snapshots.fork import fork, settings_from
from twin_graph.snapshots.ledger import Fork, Point, Restore
from twin_graph.snapshots.resumable import newest_point, point_at
from twin_graph.snapshots.run import Run, create, folders_of_runs
from twin_graph.training import requirements

Make = Callable[..., Settings]

#: Runs in which everything that a point keeps matters.
VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "compiled": {"train__chunk_steps": 64, "twin__compiled": True},
    "prioritized": {"replay__prioritized": True, "loss": "huber", "replay__capacity_steps": 600},
    "ensemble": {"target__policy": "ensemble(3, min)", "save__every_updates": 20, "loss": "mse"},
    "best": {"target__policy": "best(mean)", "save__every_updates": 20, "loss": "mse"},
    "mutual": {"mode": "mutual", "mutual__learn": "random", "mutual__act": "random"},
    "opponent": {
        "env__id": "OpenSpiel/tic_tac_toe",
        "opponent__policy": "window(3)",
        "opponent__refresh_every_updates": 20,
        "save__every_updates": 20,
        "loss": "mse",
    },
}


def forked(parent: Run, folder: Path, at: str | None = None, seed: int | None = None, **changes: Any) -> Run:
    """A fork of a run, not trained yet."""
    parent = Run(parent.folder)
    point = point_at(parent, at) if at else newest_point(parent).point
    overrides = [(key.replace("__", "."), value) for key, value in changes.items()]
    settings = config.change(settings_from(parent, point), overrides, seed=seed)
    return fork(parent, point, folder, settings)


class FullAfter:
    """In place of `os.fsync`: works some times, then the disk is full."""

    def __init__(self, times: int) -> None:
        self._left, self._fsync = times, os.fsync

    def __call__(self, descriptor: int) -> None:
        self._left -= 1
        if self._left < 0:
            raise OSError(28, "No space left on device")
        self._fsync(descriptor)


def contents(folder: Path) -> dict[str, str]:
    """By path, the hash of every file that is a record of a run."""
    paths = (path for path in folder.rglob("*") if path.is_file() and path.parent.name not in ("control", "events"))
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(paths)}


@pytest.mark.parametrize("variant", VARIANTS)
def test_with_nothing_changed_a_fork_has_its_parents_future(
    cartpole: Make, trained: Callable[[Settings], Run], tmp_path: Path, variant: str
) -> None:
    parent = trained(cartpole(resume__keep="all", **VARIANTS[variant]))
    before = contents(parent.folder)
    made = forked(parent, tmp_path / "fork", at="1")
    assert made.outcome() == ("stopped", f"forked from {parent.name}, and not trained yet")
    assert made.points().newest() == point_at(parent, "1")
    attempt(made)
    assert end(made) == end(parent)
    assert verify(made).damage == verify(parent).damage == []
    assert verify(made).unknown == []
    assert contents(parent.folder) == before


def test_it_has_the_settings_with_which_its_parent_went_on(cartpole: Make, tmp_path: Path) -> None:
    parent = create(tmp_path / "run", cartpole(resume__keep="all", train__steps=600))
    attempt(parent)
    last = newest_point(parent).point.number
    parent.change_settings(config.change(parent.settings, [("train.learning_rate", 1e-2), ("train.steps", 1_200)]))
    attempt(parent)
    attempt(made := forked(parent, tmp_path / "fork", at=str(last)))
    assert made.settings.train.learning_rate == 1e-2
    assert end(made) == end(parent)
    assert forked(parent, tmp_path / "before", at="0").settings == parent.settings_of(1)


def test_a_fork_of_a_fork_that_was_not_trained_yet_has_its_seed_and_settings(
    cartpole: Make, trained: Callable[[Settings], Run], tmp_path: Path
) -> None:
    parent = trained(cartpole(resume__keep="all"))
    first = forked(parent, tmp_path / "first", at="1", seed=7, target__policy="lag(100)")
    second = forked(first, tmp_path / "second")
    assert second.settings == first.settings
    assert second.settings.seed == 7
    attempt(first)
    attempt(second)
    assert end(second) == end(first)
    attempt(third := forked(first, tmp_path / "third", at="1"))
    assert end(third) == end(first)


def test_what_a_fork_needs_and_does_not_find_is_named(
    cartpole: Make, trained: Callable[[Settings], Run], tmp_path: Path
) -> None:
    parent = trained(cartpole(resume__keep="all"))
    gone = parent.store().prefix(parent.store().snapshots[1].id).with_name("manifest.json")
    gone.unlink()
    with pytest.raises(DamagedError, match=rf"{gone} cannot be read: No such file"):
        forked(parent, tmp_path / "fork")
    assert not (tmp_path / "fork").exists()


@pytest.mark.parametrize("what", ["gone", "damaged"])
def test_weights_that_are_not_whole_stay_behind_and_are_named(
    cartpole: Make, trained: Callable[[Settings], Run], tmp_path: Path, what: str, capsys: pytest.CaptureFixture[str]
) -> None:
    parent = trained(cartpole(resume__keep="all"))
    old = parent.store().snapshots[1].id
    path = parent.store().prefix(old).with_name("model.index")
    path.unlink() if what == "gone" else path.write_bytes(path.read_bytes()[:-1] + b"x")
    fork_command.main([str(parent.folder), "--run-dir", str(tmp_path / "fork")], standalone_mode=False)
    assert f"left behind, since they are damaged: the weights of {old}" in capsys.readouterr().err
    made = Run(tmp_path / "fork")
    assert [s.id for s in made.store().snapshots if not made.store().has_weights(s.id)] == [old]
    assert verify(made).damage == []
    attempt(made)


@pytest.mark.parametrize("variant", ["plain", "compiled", "mutual"])
def test_with_another_seed_it_has_another(
    cartpole: Make, trained: Callable[[Settings], Run], tmp_path: Path, variant: str
) -> None:
    parent = trained(cartpole(resume__keep="all", **VARIANTS[variant]))
    made = forked(parent, tmp_path / "fork", at="1", seed=2)
    attempt(made)
    ids, others = ([snapshot.id for snapshot in run.store().snapshots] for run in (made, parent))
    updates = point_at(parent, "1").counters.updates
    border = sum(snapshot.updates <= updates for snapshot in parent.store().snapshots)
    assert ids[:border] == others[:border]
    assert not set(ids[border:]) & set(others[border:])
    attempt(again := forked(parent, tmp_path / "again", at="1", seed=2))
    assert end(again) == end(made)


def test_the_real_emulator_and_network_have_it_too(
    pong: Make, trained: Callable[[Settings], Run], tmp_path: Path
) -> None:
    parent = trained(pong(loss="mse", train__steps=240, resume__keep="all"))
    attempt(made := forked(parent, tmp_path / "fork", at="1"))
    assert end(made) == end(parent)
    attempt(other := forked(parent, tmp_path / "other", at="1", seed=2))
    assert end(other)[0] != end(parent)[0]


def test_a_fork_of_a_fork_lives_when_both_parents_are_gone(
    cartpole: Make, trained: Callable[[Settings], Run], tmp_path: Path
) -> None:
    whole = trained(cartpole(resume__keep="all", loss="mse"))
    parent = Run(shutil.copytree(whole.folder, tmp_path / "parent"))
    child = forked(parent, tmp_path / "child", at="1")
    attempt(child, 900)
    grandchild = forked(child, tmp_path / "grandchild")
    shutil.rmtree(parent.folder)
    shutil.rmtree(child.folder)
    attempt(grandchild)
    assert end(grandchild) == end(whole)
    assert [event.run for event in grandchild.ledger.events(Fork)] == ["parent", "child"]
    assert {entry.run for entry in report.log(grandchild)} == {"parent", "grandchild"}


def test_runs_that_name_each_other_are_listed_and_those_in_the_making_are_not(tmp_path: Path) -> None:
    assert list(report.tree([("a", "b"), ("b", "a"), ("c", "b")])) == [(0, 0), (1, 1), (0, 2)]
    for name in ("b", "a", ".tmp-a.again-1234"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "run.json").touch()
    assert [folder.name for folder in folders_of_runs(tmp_path)] == ["a", "b"]


def test_a_fork_has_the_update_logs_of_its_past_alone(tmp_path: Path) -> None:
    (tmp_path / workers.FOLDER).mkdir()
    for number in (1, 2, 3):
        workers.UpdateLog(tmp_path, "worker-0", number).close()
    names = sorted(path.name for path in workers.update_logs(tmp_path, upto=2))
    assert names == ["worker-0-000001.updates", "worker-0-000002.updates"]


def test_a_run_may_be_forked_while_it_trains_and_prunes(cartpole: Make, tmp_path: Path) -> None:
    settings = cartpole(
        loss="mse", save__every_updates=10, save__keep_last=2, save__keep_every=0, resume__every_steps=200
    )
    parent = create(tmp_path / "parent", settings)
    forks = []
    with contextlib.closing(envs.make(settings.env, count=8)) as env:
        for progress in training.train(parent, env):
            if progress.agent_steps in (424, 648):
                forks.append(forked(parent, tmp_path / f"fork{len(forks)}"))
    assert len(parent.store().available) < len(parent.store().snapshots)
    ends = end(parent)
    shutil.rmtree(parent.folder)
    for made in forks:
        attempt(made)
        assert end(made) == ends
        assert verify(made).damage == []


def test_a_point_that_a_reader_keeps_from_removal_keeps_its_snapshots_too(cartpole: Make, tmp_path: Path) -> None:
    settings = cartpole(
        train__steps=4_000, resume__every_steps=1_000, resume__keep=1, save__keep_last=1, save__keep_every=0
    )
    parent = create(tmp_path / "parent", settings)
    reader = Run(parent.folder)
    with (
        contextlib.closing(envs.make(settings.env, count=settings.env.count)) as env,
        contextlib.closing(training.train(parent, env)) as steps,
    ):
        next(p for p in steps if p.agent_steps > 2_000)
        with reader.points().reading():
            point = point_at(reader, "@update:10000")
            next(p for p in steps if p.live.resume_points.newest.number > point.number)
            other = fork(reader, point, tmp_path / "fork", settings)
    found, damage = newest_point(other)
    assert (found.number, damage) == (point.number, [])


def test_both_runs_prune_for_themselves(cartpole: Make, trained: Callable[[Settings], Run], tmp_path: Path) -> None:
    parent = trained(cartpole(resume__keep="all", save__every_updates=10, loss="mse"))
    attempt(made := forked(parent, tmp_path / "fork", at="1", save__keep_last=1, save__keep_every=0, resume__keep=1))
    assert len(made.store().available) < len(parent.store().available) == len(parent.store().snapshots)
    assert len(made.points().folders()) == 1
    assert verify(parent).damage == verify(made).damage == []
    assert end(made)[0] == end(parent)[0]


@pytest.mark.parametrize("shares", ["hard links", "copies"])
def test_files_are_shared_where_the_disk_can_and_copied_where_not(
    cartpole: Make,
    trained: Callable[[Settings], Run],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    shares: str,
) -> None:
    def refuse(*arguments: object) -> None:
        raise OSError

    monkeypatch.setattr(files.fcntl, "ioctl", refuse)
    if shares == "copies":
        monkeypatch.setattr(os, "link", refuse)
    parent = trained(cartpole(resume__keep="all"))
    made = forked(parent, tmp_path / "fork", at="1")
    [weights, *_] = sorted(made.store_folder.glob("*/model.data*"))
    assert weights.stat().st_nlink == (2 if shares == "hard links" else 1)
    attempt(made)
    assert end(made) == end(parent)


def test_records_of_a_fork_cross_the_border(cartpole: Make, trained: Callable[[Settings], Run], tmp_path: Path) -> None:
    settings = cartpole(resume__keep="all", mode="mutual", mutual__learn="random")
    parent = trained(settings)
    attempt(made := forked(parent, tmp_path / "fork", at="1", seed=2))
    border = made.description["forked_from"]["updates"]
    assert made.description["forked_from"]["run"] == parent.name
    assert made.description["forked_from"]["weights_sha256"] == point_at(parent, "1").weights_sha256
    for update in range(1, border + 1):  # who learned depends on the seed of then
        ours, theirs = (report.explain(run, update) for run in (made, parent))
        assert ours.run == parent.name
        assert (ours.learner, ours.snapshots) == (theirs.learner, theirs.snapshots)
    assert report.explain(made, border + 60).run == made.name
    assert {e.run for e in report.log(made) if e.updates <= border} == {parent.name}
    assert report.show(made, "000000").run == parent.name
    assert report.status(made).forked_from["point"] == 1
    evaluations = [line["returns"] for line in made.evaluation_lines()]
    assert len(evaluations) == len(list(parent.evaluation_lines()))


def test_swaps_by_hand_are_the_parents_own(cartpole: Make, tmp_path: Path) -> None:
    """A fork does not repeat what was asked of its parent, neither after the point nor in an attempt that was cut."""
    parent = create(tmp_path / "parent", cartpole(loss="mse", resume__keep="all"))
    plain = create(tmp_path / "plain", cartpole(loss="mse", resume__keep="all"))
    attempt(plain)
    with contextlib.closing(envs.make(parent.settings.env, count=8)) as env:
        for progress in training.train(parent, env):
            if progress.agent_steps == 640:
                control.ask(parent.control, "swap", parent.resolve("000001").id, hold=True)
            if progress.agent_steps == 800:
                break
    assert parent.ledger.events(Restore)[-1].request
    attempt(made := forked(parent, tmp_path / "fork", at="1"))
    assert end(made) == end(plain)
    attempt(parent)
    assert end(parent)[0] != end(plain)[0]
    attempt(made := forked(parent, tmp_path / "late", at="1"))
    assert end(made) == end(plain)


def test_a_weight_is_moved_by_the_least_that_it_can_be(
    cartpole: Make, trained: Callable[[Settings], Run], tmp_path: Path
) -> None:
    parent = trained(cartpole(resume__keep="all", loss="mse"))
    point = point_at(parent, "1")
    made = fork(parent, point, tmp_path / "fork", parent.settings, nudge.nudge)
    [event] = made.ledger.events(Fork)
    name, before, _, after = event.changed.replace("] from", "]|from").partition("|")[0], *event.changed.split()[-3:]
    assert name
    assert 0 < abs(float(after) - float(before)) < 1e-6
    assert newest_point(made).point.weights_sha256 != point.weights_sha256
    attempt(made)
    assert end(made)[0] != end(parent)[0]
    assert verify(made).damage == verify(parent).damage == []
    attempt(again := fork(parent, point, tmp_path / "again", parent.settings, nudge.nudge))
    assert end(again) == end(made)
    by_command = twin_graph("fork", str(parent.folder), "--at=1", "--nudge", "--run-dir=new", cwd=tmp_path)
    assert f"\n  moved: {event.changed}\n" in by_command.stderr
    status = twin_graph("status", "new", cwd=tmp_path).stdout
    assert f"resume point 1, update 76; moved {event.changed}" in " ".join(status.split())
    apart = compare(parent, Run(tmp_path / "new"))
    assert apart.parted == (76, "the resume point at 504 agent steps", point.weights_sha256, event.changed)


def test_a_fork_that_fails_leaves_nothing(
    cartpole: Make, trained: Callable[[Settings], Run], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parent = trained(cartpole(resume__keep="all"))
    before = contents(parent.folder)
    folder = tmp_path / "forks" / "fork"
    for fails_at in range(0, 60, 7):
        with monkeypatch.context() as patched:
            patched.setattr(os, "fsync", FullAfter(fails_at))
            try:
                forked(parent, folder, at="1")
            except OSError:
                assert not folder.parent.exists() or not list(folder.parent.iterdir())
            else:
                break
    assert contents(parent.folder) == before
    attempt(Run(folder))


def test_points_that_are_not_there_or_damaged_are_named(
    cartpole: Make, trained: Callable[[Settings], Run], tmp_path: Path
) -> None:
    parent = trained(cartpole(resume__keep="all"))
    with pytest.raises(UsageError, match=r"has no resume point 7; kept are: 0 \(@update:0\), 1 \(@update:76\), 2"):
        forked(parent, tmp_path / "fork", at="7")
    with pytest.raises(UsageError, match="has no resume point latest"):
        forked(parent, tmp_path / "fork", at="latest")
    assert point_at(parent, "@update:200").number == 2
    with pytest.raises(UsageError, match=r"env\.count cannot change"):
        forked(parent, tmp_path / "fork", at="1", env__count=4)
    with pytest.raises(UsageError, match="exists already"):
        forked(parent, parent.folder, at="1")
    (parent.points().path(1) / "online.index").write_bytes(b"damaged")
    with pytest.raises(DamagedError, match=r"online\.index is damaged"):
        forked(parent, tmp_path / "fork", at="1")
    (parent.points().path(0) / "state.json").write_bytes(b"damaged")
    with pytest.raises(DamagedError, match=r"state\.json is damaged"):
        forked(parent, tmp_path / "fork", at="0")
    oldest = parent.points().oldest()
    assert oldest is not None
    assert oldest.number == 1


@pytest.mark.parametrize(("keep", "kept"), [(1, [3]), (3, [1, 2, 3]), ("all", [0, 1, 2, 3])])
def test_as_many_points_are_kept_as_asked_for(cartpole: Make, tmp_path: Path, keep: int | str, kept: list[int]) -> None:
    run = create(tmp_path / "run", cartpole(resume__keep=keep, replay__capacity_steps=200))
    attempt(run, 700)
    attempt(run)
    assert [int(folder.name) for folder in run.points().folders()] == kept
    for number in kept:
        assert point_at(run, str(number)).number == number
    named = {segment.file.name for number in kept for segment in point_at(run, str(number)).segments}
    assert {path.name for path in (run.folder / "resume" / "replay").glob("*")} == named


def test_the_disk_that_points_need_is_reckoned_with(cartpole: Make, trained: Callable[[Settings], Run]) -> None:
    few, many = (
        cartpole(resume__keep=keep, resume__every_steps=40, model__hidden_units=[128, 128]) for keep in (2, "all")
    )
    needed = {}
    for settings in (few, many):
        with contextlib.closing(envs.make(settings.env, count=8)) as env:
            needed[settings.resume.keep] = requirements.measure(settings, env, Path()).disk
    used = sum(path.stat().st_size for path in trained(many).folder.rglob("*") if path.is_file())
    assert needed[2] < used < needed[None]


def test_a_point_on_request_is_made_at_once_and_again_after_a_crash(cartpole: Make, tmp_path: Path) -> None:
    ends = []
    for folder, kill in (("a", False), ("b", True)):
        run = create(tmp_path / folder, cartpole(loss="mse", train__chunk_steps=64, resume__every_steps=600))
        asked = None
        with contextlib.closing(envs.make(run.settings.env, count=8)) as env:
            for progress in training.train(run, env):
                if progress.agent_steps >= 320 and not asked:
                    asked = control.ask(run.control, "point")
                if kill and progress.agent_steps >= 500:
                    break
        if kill:
            [point] = [p for p in run.points().folders() if p.name == "000001"]
            (point / "online.index").write_bytes(b"damaged")
            attempt(run)
        assert asked
        answer = control.read(run.control, asked.id).answer
        assert answer
        assert answer.message == "resume point 1 is after 30 updates"
        made = [point for point in run.ledger.events(Point) if point.request]
        assert [(point.counters.agent_steps, point.request) for point in made] == [(320, asked.id)]
        ends.append(end(run))
    assert ends[0] == ends[1]


def test_imports_and_means_are_named_after_the_run_that_they_were_made_in(
    cartpole: Make, trained: Callable[[Settings], Run], tmp_path: Path
) -> None:
    parent = trained(cartpole())
    ours = average(parent, parent.store().snapshots[:2])
    point = parent.points().newest()
    assert point is not None
    before = fork(parent, point, tmp_path / "before", parent.settings)
    average(before, before.store().snapshots[-2:])
    made_in = {entry.id: entry.run for entry in report.log(before)}
    theirs = [name for name in made_in if name.startswith("import-") and name != ours.id]
    assert {made_in[name] for name in theirs} == {"before"}
    assert {report.show(before, name).run for name in theirs} == {"before"}
    trained_by_parent = [run for name, run in made_in.items() if not name.startswith("import-")]
    assert set(trained_by_parent) == {parent.name}


def test_the_command_forks_and_lists_the_tree(
    cartpole: Make, trained: Callable[[Settings], Run], tmp_path: Path
) -> None:
    parent = trained(cartpole(resume__keep="all"))
    folder = tmp_path / "checkpoints"
    folder.mkdir()
    shutil.move(parent.folder, folder / "parent")
    made = twin_graph("fork", "parent", "--at", "1", "--seed", "5", "--set", "train.learning_rate=0.01", cwd=tmp_path)
    assert made.returncode == 0
    assert "checkpoints/parent-fork1: the past of parent up to resume point 1, 76 updates" in made.stderr
    assert "changed: seed from 1 to 5" in made.stderr
    assert "changed: train.learning_rate from" in made.stderr
    assert "continue with: twin-graph resume checkpoints/parent-fork1" in made.stderr
    assert twin_graph("fork", "parent-fork1", "--seed", "6", cwd=tmp_path).returncode == 0
    listed = twin_graph("runs", cwd=tmp_path).stdout.splitlines()
    assert [line.split("  ")[0] for line in listed[1:3]] == ["parent", "└ parent-fork1"]
    assert listed[3].startswith("  └ parent-fork1-fork1")
    refused = twin_graph("fork", "parent", "--set", "seed=3", cwd=tmp_path)
    assert refused.returncode == 2
    assert "--set seed=3: give a fork another seed with --seed 3" in refused.stderr
    store = Run(folder / "parent").store()
    gone = store.snapshots[1].id
    store.remove_weights(lambda: [gone], attempt=1)
    refused = twin_graph("fork", "parent", "--set", f"target.policy=pinned({gone})", cwd=tmp_path)
    assert (refused.returncode, f"has removed the weights of {gone}" in refused.stderr) == (2, True)
    asked = twin_graph("point", "parent", cwd=tmp_path)
    assert asked.returncode == 2
    assert "is not training; its newest resume point is 3, after 250 updates" in asked.stderr
    done = twin_graph("resume", "parent-fork1", cwd=tmp_path)
    assert done.returncode == 0
    status = twin_graph("status", "parent-fork1", cwd=tmp_path).stdout
    assert "parent, resume point 1, update 76" in status
    assert read_file(folder / "parent-fork1" / "run.json")["settings"]["seed"] == 5


def test_forks_that_are_made_at_once_take_different_names(trained: Callable[[Settings], Run], cartpole: Make) -> None:
    run = trained(cartpole())
    commands = [Command("fork", str(run.folder), cwd=run.folder.parent) for _ in range(4)]
    said = [command.communicate(timeout=60)[1] for command in commands]
    assert [command.returncode for command in commands] == [0] * 4, said
    made = sorted(path.name for path in (run.folder.parent / "checkpoints").iterdir())
    assert made == [f"{run.name}-fork{number}" for number in range(1, 5)]
