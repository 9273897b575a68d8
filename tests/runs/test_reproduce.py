"""Training a stretch of a run again: what recurs, what does not, and what is different then."""

import contextlib
import json
import os
import re
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from attempts import attempt, progress_of, stop_while_playing
from commands import twin_graph
from gymnasium.envs.classic_control import CartPoleEnv
from test_fork import VARIANTS, contents, forked

from twin_graph import config, envs, training
from twin_graph.agent.live_run import LiveRun
from twin_graph.analysis import nudge
from twin_graph.analysis import reproduce as reproducing
from twin_graph.analysis.reproduce import Reproduction, _check_recurs, reproduce
from twin_graph.base import machine
from twin_graph.config.settings import Settings
from twin_graph.errors import ForeignError, TwinGraphError, UsageError
from twin_graph.exchange.importing import import_checkpoint
from twin_graph.records import report
from twin_graph.records.verify import verify
from twin_graph.snapshots import control
from twin_graph.snapshots.files import append_line, checked, read_file, read_lines
from twin_graph.snapshots.fork import fork
from twin_graph.snapshots.ledger import Counters, End, Point, utc_now
from twin_graph.snapshots.points import PointState
from twin_graph.snapshots.resumable import newest_point, point_at
from twin_graph.snapshots.run import Run, create
from twin_graph.snapshots.store import FileRecord
from twin_graph.twin.tf import tf

Make = Callable[..., Settings]


def again(run: Run, folder: Path, begin: str | None = None, last: int | None = None) -> Reproduction:
    """What comes of training it again, from a point or from the beginning."""
    run = Run(run.folder)
    before = contents(run.folder)
    made = reproduce(run, point_at(run, begin) if begin else None, last, folder, lambda progress: None)
    assert contents(run.folder) == before
    return made


def asked(run: Run, cut: int | None, requests: dict[int, Callable[[], object]], stop: int | None = None) -> None:
    """Trains on, with what people request at some agent steps, until nobody goes on with it or somebody stops it."""
    waiting = dict(requests)
    with contextlib.closing(progress_of(run)) as progresses:
        for progress in progresses:
            for step in [step for step in waiting if progress.agent_steps >= step]:
                waiting.pop(step)()
            if stop and progress.agent_steps >= stop and not progress.stop.is_set():
                os.kill(os.getpid(), signal.SIGINT)
            if cut and progress.agent_steps >= cut:
                break


@pytest.fixture(params=[0, 64], ids=["step by step", "chunks"])
def eventful(request: pytest.FixtureRequest, cartpole: Make, tmp_path: Path) -> Run:
    """A run to which everything happens: kills, swaps at work and at rest, a stop, points on request, new settings."""
    settings = cartpole(
        loss="mse",
        train__chunk_steps=request.param,
        train__steps=2_000,
        target__policy="best(mean)",
        save__every_updates=20,
        resume__every_steps=300,
        resume__keep="all",
        evaluate__every_steps=200,
    )
    run = create(tmp_path / "eventful", settings)
    asked(run, 500, {400: lambda: control.ask(run.control, "swap", run.resolve("latest~1").id, hold=True)})
    control.ask(run.control, "undo")
    asked(run, 850, {740: lambda: control.ask(run.control, "point")})
    asked(run, None, {900: lambda: control.ask(run.control, "swap", run.resolve("000001").id, "online")}, stop=1_000)
    assert Run(run.folder).state() == "stopped"
    control.ask(run.control, "swap", run.resolve("000002").id)
    changed = Run(run.folder)
    changed.change_settings(config.change(changed.settings, [("train.learning_rate", 3e-3), ("train.steps", 1_400)]))
    asked(run, None, {})
    changed = Run(run.folder)
    changed.change_settings(config.change(changed.settings, [("train.steps", 2_000), ("target.policy", "latest")]))
    asked(run, 1_800, {})
    asked(run, None, {})
    assert Run(run.folder).state() == "finished"
    assert len(Run(run.folder).description["past_settings"]) == 2
    return Run(run.folder)


def test_everything_that_happened_to_a_run_recurs(eventful: Run, tmp_path: Path) -> None:
    whole = again(eventful, tmp_path / "again")
    assert whole.difference is None
    assert (whole.first, whole.last) == (1, 450)
    assert whole.snapshots == len(eventful.store().snapshots)
    assert whole.evaluations == len(list(eventful.evaluation_lines()))
    numbers = [int(folder.name) for folder in eventful.points().folders()]
    for number in (numbers[1], numbers[len(numbers) // 2], numbers[-2]):
        part = again(eventful, tmp_path / f"from{number}", begin=str(number))
        assert part.difference is None
        assert part.first == point_at(eventful, str(number)).counters.updates + 1
        assert part.last == 450
        assert 0 < part.snapshots < whole.snapshots
    short = again(eventful, tmp_path / "short", last=100)
    assert short.difference is None
    assert short.last <= 100


@pytest.mark.parametrize("variant", ["compiled", "ensemble", "mutual", "opponent"])
def test_what_every_kind_of_run_did_recurs(
    cartpole: Make, trained: Callable[[Settings], Run], tmp_path: Path, variant: str
) -> None:
    run = trained(cartpole(resume__keep="all", **VARIANTS[variant]))
    found = again(run, tmp_path / "again", begin="1")
    assert found.difference is None
    assert found.snapshots >= 3


def test_a_fork_recurs_with_the_stretch_of_its_parent(
    cartpole: Make, trained: Callable[[Settings], Run], tmp_path: Path
) -> None:
    parent = trained(cartpole(resume__keep="all", loss="mse"))
    attempt(made := forked(parent, tmp_path / "fork", at="1", seed=2, target__policy="lag(60)"))
    assert again(made, tmp_path / "whole").difference is None
    attempt(moved := fork(parent, point_at(parent, "1"), tmp_path / "moved", parent.settings, nudge.nudge))
    assert again(moved, tmp_path / "since", begin="1").difference is None
    with pytest.raises(UsageError, match="a weight was moved when"):
        again(moved, tmp_path / "from the start")


def test_a_fork_from_where_its_parent_was_stopped_recurs_from_the_start(cartpole: Make, tmp_path: Path) -> None:
    """The stop is in the parent's past, and not in the fork's."""
    parent = create(tmp_path / "parent", cartpole(resume__keep="all"))
    attempt(parent, signal_at=(signal.SIGINT, 640))
    assert parent.outcome()[0] == "stopped"
    attempt(made := forked(parent, tmp_path / "fork", seed=2))
    assert again(made, tmp_path / "again").difference is None


def test_a_stop_while_an_evaluation_was_played_again_recurs(cartpole: Make, tmp_path: Path) -> None:
    run = create(tmp_path / "run", cartpole(resume__keep="all"))
    stop_while_playing(run)
    begin = run.points().newest()
    stop_while_playing(run)
    assert Run(run.folder).state() == "stopped"
    assert run.points().newest() == begin  # nothing was done that a new one would keep
    assert again(run, tmp_path / "stopped").difference is None
    attempt(run)
    found = again(run, tmp_path / "again")
    assert found.difference is None
    assert found.evaluations == 2


def test_a_stop_before_the_first_step_after_a_kill_recurs(
    cartpole: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the evaluation that the killed attempt had played there."""
    settings = cartpole(resume__every_steps=600, evaluate__every_steps=600, resume__keep="all")
    run, restore = create(tmp_path / "run", settings), LiveRun._restore
    attempt(run, 640)
    assert [line["played_at"]["agent_steps"] for line in run.evaluation_lines()] == [600]

    def stopped_while_restoring(live: LiveRun, point: PointState) -> None:
        restore(live, point)
        os.kill(os.getpid(), signal.SIGINT)

    with monkeypatch.context() as patched:
        patched.setattr(LiveRun, "_restore", stopped_while_restoring)
        attempt(run)
    assert Run(run.folder).outcome() == ("stopped", "interrupted")
    assert newest_point(run).point.counters.agent_steps == 600
    found = again(run, tmp_path / "again")
    assert (found.difference, found.evaluations) == (None, 1)


def test_what_a_killed_run_had_still_to_do_is_no_difference(cartpole: Make, tmp_path: Path) -> None:
    run = create(tmp_path / "run", cartpole(evaluate__every_steps=400))
    for progress in progress_of(run):
        if progress.note.startswith("evaluating"):
            break
    assert progress.updates % run.settings.target.refresh_every_updates == 0  # one is due after that evaluation
    assert again(run, tmp_path / "again").difference is None


def test_a_swap_that_a_parent_lost_does_not_recur_in_its_fork(cartpole: Make, tmp_path: Path) -> None:
    parent = create(tmp_path / "parent", cartpole(loss="mse", resume__keep="all", resume__every_steps=300))
    asked(parent, 840, {800: lambda: control.ask(parent.control, "swap", parent.resolve("000001").id)})
    asked(parent, 700, {640: lambda: control.ask(parent.control, "point")})
    attempt(made := forked(parent, tmp_path / "fork"))
    begin = made.description["forked_from"]["point"]
    assert made.description["forked_from"]["agent_steps"] == 640
    assert again(made, tmp_path / "again", begin=str(begin)).difference is None


def test_a_fork_from_where_a_stop_left_an_evaluation_out_recurs(cartpole: Make, tmp_path: Path) -> None:
    """Its parent was stopped where the schedule made a point, too, and so the fork played what was due there."""
    settings = cartpole(resume__every_steps=600, evaluate__every_steps=600, evaluate__episodes=8, resume__keep="all")
    attempt(parent := create(tmp_path / "parent", settings), signal_at=(signal.SIGINT, 600))
    assert not list(parent.evaluation_lines())
    attempt(made := forked(parent, tmp_path / "fork", seed=2))
    assert again(made, tmp_path / "again").difference is None


def test_a_fork_with_another_seed_from_the_beginning_recurs_with_the_first_weights_of_its_parent(
    cartpole: Make, trained: Callable[[Settings], Run], tmp_path: Path
) -> None:
    parent = trained(cartpole(resume__keep="all"))
    attempt(made := forked(parent, tmp_path / "fork", at="0", seed=2))
    assert again(made, tmp_path / "again").difference is None


def test_what_an_attempt_did_without_a_step_recurs_by_its_own_settings(cartpole: Make, tmp_path: Path) -> None:
    """It played what a stop had left out, and was killed; then others went on."""
    run = create(tmp_path / "run", cartpole(resume__keep="all"))
    stop_while_playing(run)
    left_out = newest_point(run).point
    with contextlib.closing(progress_of(run)) as progresses:
        for progress in progresses:
            if progress.live.resume_points.newest != left_out:
                break
    assert newest_point(run).point.counters == left_out.counters
    changed = Run(run.folder)
    changed.change_settings(config.change(changed.settings, [("evaluate.episodes", 4)]))
    attempt(run)
    assert [len(line["returns"]) for line in Run(run.folder).evaluation_lines()] == [2, 4]
    assert again(run, tmp_path / "again").difference is None


def test_the_real_emulator_and_network_recur(pong: Make, trained: Callable[[Settings], Run], tmp_path: Path) -> None:
    run = trained(pong(loss="mse", train__steps=240, resume__keep="all"))
    assert again(run, tmp_path / "again", begin="1").difference is None


def forge(run: Run, reference: str) -> str:
    """Changes a byte of a snapshot's weights, and everything that says what they should be, but for the ledger."""
    snapshot = run.resolve(reference)
    folder = run.store_folder / snapshot.id
    prefix = folder / "model"
    reader = tf.train.load_checkpoint(str(prefix))
    values = {name: reader.get_tensor(name) for name in reader.get_variable_to_shape_map()}
    name = min(values)
    values[name].ravel()[0] += 1e-3
    for path in folder.glob("model.*"):
        path.unlink()
    nudge._write(prefix, dict(sorted(values.items())))
    manifest = read_file(folder / "manifest.json")
    manifest["files"] = [FileRecord.of(path).model_dump() for path in sorted(folder.glob("model.*"))]
    (folder / "manifest.json").write_bytes(checked(manifest, indent=1))
    return snapshot.id


def test_a_snapshot_that_was_forged_with_its_manifest_does_not_recur(
    cartpole: Make, trained: Callable[[Settings], Run], tmp_path: Path
) -> None:
    run = trained(cartpole(resume__keep="all"))
    forged = forge(run, "000003")
    assert verify(run).damage == []
    found = again(run, tmp_path / "again").difference
    assert found is not None
    assert found.what == f"the weights in the files of {forged}"
    assert found.after_updates == 150
    assert found.recorded != found.reproduced


def test_a_forged_evaluation_and_forged_settings_do_not_recur(
    cartpole: Make, trained: Callable[[Settings], Run], tmp_path: Path
) -> None:
    run = trained(cartpole())
    path = run.folder / "evaluations.jsonl"
    records = [line.record for line in read_lines(path)]
    path.unlink()
    for record in records:
        assert record is not None
        append_line(path, {**record, "returns": [score + 1 for score in record["returns"]]})
    found = again(run, tmp_path / "scores").difference
    assert found is not None
    assert found.what.startswith("returns of the evaluation of ")
    path.unlink()

    run.change_settings(config.replace(run.settings, [("train.learning_rate", 2e-3)]))
    description = {**run.description, "past_settings": []}
    (run.folder / "run.json").write_bytes(checked(description, indent=1))
    found = again(run, tmp_path / "settings").difference
    assert found is not None
    assert found.what == "snapshot 1"


def test_what_was_imported_serves_again(cartpole: Make, tmp_path: Path) -> None:
    run = create(tmp_path / "run", cartpole(loss="mse", resume__keep="all"))
    attempt(run, 700)
    outside = run.store().prefix(run.resolve("000001").id)
    copy = Path(shutil.copytree(outside.parent, tmp_path / "outside")) / outside.name
    imported = import_checkpoint(Run(run.folder), copy, {}).snapshot
    control.ask(run.control, "swap", imported.id)
    attempt(run)
    assert again(run, tmp_path / "again").difference is None


@pytest.mark.parametrize("what", ["on_episode", "on_evaluation"])
def test_what_a_callback_ended_recurs_to_its_end(cartpole: Make, tmp_path: Path, what: str) -> None:
    run = create(tmp_path / "run", cartpole())
    end: dict[str, Any] = {what: lambda _, progress: progress.agent_steps < 600}
    with contextlib.closing(envs.make(run.settings.env, count=8)) as env:
        *_, progress = training.train(run, env, **end)
    assert 600 <= progress.agent_steps < 800
    found = again(run, tmp_path / "again")
    assert found.difference is None
    assert (found.snapshots, found.evaluations) == (len(run.store().snapshots), 1)


def test_what_cannot_recur_is_said_at_once(cartpole: Make, trained: Callable[[Settings], Run], tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="has not been trained yet"):
        again(create(tmp_path / "new", cartpole()), tmp_path / "new again")
    run = trained(cartpole(resume__keep="all"))
    with pytest.raises(UsageError, match="no snapshot in that stretch"):
        again(run, tmp_path / "nothing", begin="3")
    with pytest.raises(UsageError, match="no snapshot in that stretch"):
        again(run, tmp_path / "no update", last=0)
    workers = create(tmp_path / "workers", config.replace(run.settings, [("workers.count", 2)]))
    with pytest.raises(UsageError, match="is asynchronous"):
        again(workers, tmp_path / "workers again")
    cut = create(tmp_path / "cut", run.settings)
    attempt(cut, 1_100)
    (cut.points().path(2) / "online.index").rename(tmp_path / "aside")
    attempt(cut, 700)
    (tmp_path / "aside").rename(cut.points().path(2) / "online.index")
    with pytest.raises(UsageError, match="resume point 2 is abandoned"):
        again(cut, tmp_path / "cut again", begin="2")


def test_what_does_not_fit_is_not_begun_and_what_was_filmed_is_not_filmed_again(
    cartpole: Make, trained: Callable[[Settings], Run], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = trained(cartpole(evaluate__video=True))
    assert list(run.videos.iterdir())
    again(run, tmp_path / "again")
    assert not Run(tmp_path / "again").videos.exists()
    monkeypatch.setattr("twin_graph.base.machine.memory_free", lambda: 1)
    with pytest.raises(TwinGraphError, match="not enough memory"):
        again(run, tmp_path / "too large")
    assert not (tmp_path / "too large").exists()


def test_a_boundary_that_an_error_made_does_not_recur(
    cartpole: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    step, made = CartPoleEnv.step, [0]

    def failing_step(env: CartPoleEnv, action: int) -> Any:
        made[0] += 1
        if made[0] == 80 * 8 + 4:
            raise RuntimeError("simulator exploded")
        return step(env, action)

    run = create(tmp_path / "run", cartpole(resume__every_steps=400, resume__keep="all", evaluate__episodes=0))
    with monkeypatch.context() as patched:
        patched.setattr(CartPoleEnv, "step", failing_step)
        with pytest.raises(ForeignError):
            attempt(run)
    attempt(run)
    with pytest.raises(UsageError, match="attempt 1 failed at agent step 640 and so ended all episodes there"):
        again(run, tmp_path / "whole")
    assert again(run, tmp_path / "since", begin="2").difference is None
    assert again(run, tmp_path / "before", last=100).difference is None


@pytest.mark.parametrize("is_known", [True, False])
def test_another_stepping_is_named_where_it_is_recorded(
    cartpole: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_known: bool
) -> None:
    """The marketing name and the instruction set are the same."""
    here = machine.describe()
    there = here._replace(stepping=99) if is_known else here._replace(**dict.fromkeys(machine.EXACT))
    with monkeypatch.context() as elsewhere:
        elsewhere.setattr(machine, "describe", lambda: there)
        run = create(tmp_path / "run", cartpole(evaluate__episodes=0, train__steps=1_000))
        attempt(run, 600)
    differences = list(reproducing.differences_of_machine(run, 1))
    assert len(differences) == is_known
    assert all("stepping 99, here " in line and f"({here.instruction_set})" in line for line in differences)
    restored = [line for line in report.restored(run, newest_point(run).point) if "not guaranteed" in line]
    assert len(restored) == is_known
    assert all("stepping 99, here " in line for line in restored)
    known = reproducing.known_of_machine(run, 1)
    assert known.startswith(
        "the processor's name, family, model, stepping and flags; "
        if is_known
        else "the processor's name and instruction set, but not its family, model, stepping and flags; "
    )
    attempt(run)
    assert len(list(reproducing.differences_of_machine(run, 1))) == is_known
    assert list(reproducing.differences_of_machine(run, 150)) == []  # by then it trained here


def test_the_command_reports_what_recurred_and_leaves_nothing(
    cartpole: Make, trained: Callable[[Settings], Run], tmp_path: Path
) -> None:
    run = trained(cartpole(resume__keep="all"))
    folder = tmp_path / "here"
    folder.mkdir()
    shutil.move(run.folder, folder / "run")
    done = twin_graph("reproduce", "run", "--from", "1", "--to", "2", "--json", cwd=folder)
    assert done.returncode == 0
    document = json.loads(done.stdout)
    assert (document["first"], document["last"], document["snapshots"]) == (77, 200, 3)
    assert document["difference"] is None
    assert document["machine"] == []
    forged = forge(Run(folder / "run"), "000003")
    different = twin_graph("reproduce", "run", cwd=folder)
    assert different.returncode == 1
    assert f"not reproduced: after update 150, the weights in the files of {forged} differ" in different.stderr
    [same] = [line for line in different.stderr.splitlines() if "nothing that is recorded differs" in line]
    assert "the processor's name, family, model, stepping and flags; versions of twin-graph, tensorflow, " in same
    assert [path.name for path in folder.iterdir()] == ["run"]
    kept = twin_graph("reproduce", "run", "--from", "@update:100", "--to", "@update:140", "--run-dir", "it", cwd=folder)
    assert kept.returncode == 0
    assert (folder / "it" / "run.json").exists()
    refused = twin_graph("reproduce", "run", "--to", "9", cwd=folder)
    assert refused.returncode == 2
    assert "has made no resume point 9; there are 0, 1, 2, 3" in refused.stderr
    nothing = twin_graph("reproduce", "run", "--from", "3", "--run-dir", "refused", cwd=folder)
    assert "no snapshot in that stretch" in nothing.stderr
    assert not (folder / "refused").exists()
    (folder / "run" / "resume" / "000000" / "online.index").write_bytes(b"damaged")
    passed_over = twin_graph("reproduce", "run", "--to", "@update:140", cwd=folder)
    assert passed_over.returncode == 0
    assert re.match(
        r"skipped: .*online\.index is damaged.*\ntraining run again from resume point 1", passed_over.stderr
    )
    backwards = twin_graph("reproduce", "run", "--from", "2", "--to", "1", cwd=folder)
    assert backwards.returncode == 2
    assert "--to 1 is after update 76, and --from 2 is after update 200: no update is between" in backwards.stderr


def test_a_point_at_the_end_of_a_chunk_that_passes_its_multiple_recurs(cartpole: Callable[..., Settings]) -> None:
    """With 24 environments, chunks of 64 agent steps end at 72, 144, 192 and so on: up to 23 beyond a multiple."""
    settings = cartpole(env__count=24, train__chunk_steps=64, train__start_steps=1_000, resume__every_steps=50_000)
    for steps, recurs in ((50_064, True), (50_088, False)):
        counters = Counters.zero().model_copy(update={"agent_steps": steps})
        point = Point(attempt=1, time=utc_now(), number=1, counters=counters, weights_sha256="0" * 64)
        end = End(attempt=1, time=utc_now(), state="failed", reason="")
        with contextlib.nullcontext() if recurs else pytest.raises(UsageError, match="cannot be reproduced"):
            _check_recurs(end, settings, point)
