"""Exact resume: a training that was cut off ends with the weights of one that was not; see attempts.py."""

import contextlib
import importlib
import json
import os
import pty
import re
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, Literal

import numpy as np
import pytest
from attempts import attempt, end, progress_of, stop_while_playing, whole_and_killed
from click.testing import CliRunner
from commands import twin_graph
from gymnasium.envs.classic_control import CartPoleEnv
from twin_graph_cli.main import cli

from twin_graph import config, envs, training
from twin_graph.agent.agent import Agent
from twin_graph.agent.live_run import LiveRun
from twin_graph.analysis.compare import compare
from twin_graph.config.settings import Settings
from twin_graph.envs import EnvSpec
from twin_graph.errors import DamagedError, ForeignError, InUseError, MovedError, UsageError
from twin_graph.exchange.importing import average
from twin_graph.records import report
from twin_graph.records.verify import _Verifier, verify
from twin_graph.snapshots import control, swaps
from twin_graph.snapshots.control import Answer
from twin_graph.snapshots.fork import fork
from twin_graph.snapshots.forms import METRICS
from twin_graph.snapshots.ledger import BY_REQUEST, Commit, Restore, Start
from twin_graph.snapshots.points import PointState, PointStore
from twin_graph.snapshots.resumable import has_begun, newest_point
from twin_graph.snapshots.run import Run, create
from twin_graph.targets.evaluations import nothing_left
from twin_graph.training import requirements
from twin_graph.training.loop import StepByStep
from twin_graph.training.progress import Progress

Make = Callable[..., Settings]


POLICIES = ["latest", "best(mean)", "lag(60)", "mix(0.5, 3)", "ensemble(3, min)", "rollback(0.0031)"]


@pytest.mark.parametrize("policy", POLICIES)
def test_a_training_that_was_killed_twice_ends_as_one_that_was_not(
    cartpole: Make, trained: Callable[[Settings], Run], tmp_path: Path, policy: str
) -> None:
    # Squared: the Huber loss clips the large errors of the beginning, and with them the target's influence.
    settings = cartpole(target__policy=policy, loss="mse", save__every_updates=20, replay__capacity_steps=600)
    whole = trained(settings)
    killed = create(tmp_path / "killed", settings)
    held = attempt(killed, 640) + attempt(killed, 1_100) + attempt(killed)
    assert end(killed) == end(whole)
    assert len({snapshot for _, snapshots in held for snapshot in snapshots}) > 2
    assert verify(killed).damage == []


@pytest.mark.parametrize(
    "changes",
    [
        {"replay__capacity_steps": 1_000},  # a segment of the replay is full at the very step of a point
        {"env__id": "TwinGraph/Blob-v0", "network": "minatar", "loss": "dqn3", "train__rescale_r": True},
    ],
    ids=["segment", "largest reward"],
)
def test_so_does_one_that_was_killed_once(cartpole: Make, tmp_path: Path, changes: dict[str, Any]) -> None:
    settings = cartpole(**{"loss": "mse", "evaluate__episodes": 0, "train__steps": 800, **changes})
    whole, killed = whole_and_killed(settings, tmp_path, 640)
    assert end(killed) == end(whole)
    state = whole.points().newest()
    assert state
    assert state.r_max == (25 if settings.train.rescale_r else 1)


def test_policies_train_differently(cartpole: Make, trained: Callable[[Settings], Run]) -> None:
    """The comparison above would prove little if the policy had no influence."""
    options = {"loss": "mse", "save__every_updates": 20, "replay__capacity_steps": 600}
    ends = {end(trained(cartpole(target__policy=policy, **options)))[0] for policy in POLICIES}
    assert len(ends) == len(POLICIES)


def test_the_real_emulator_and_network_resume_exactly(
    pong: Make, trained: Callable[[Settings], Run], tmp_path: Path
) -> None:
    settings = pong(loss="mse", train__steps=240)
    killed = create(tmp_path / "killed", settings)
    attempt(killed, 150)
    attempt(killed)
    assert end(killed) == end(trained(settings))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1])
def test_a_training_that_was_interrupted_goes_on_from_there(cartpole: Make, tmp_path: Path, number: int) -> None:
    """The boundary that the signal adds is part of the training: with it, a kill later changes nothing."""
    ends = []
    for folder, cuts in (("a", ()), ("b", (900,))):
        run = create(tmp_path / folder, cartpole(loss="mse"))
        attempt(run, signal_at=(number, 720))
        assert run.state() == "stopped"
        point = run.points().newest()
        assert point is not None
        assert point.counters.agent_steps == 720
        assert run.store().newest.counters.agent_steps == 720
        for cut in cuts:
            attempt(run, cut)
        attempt(run)
        ends.append(end(run))
    assert ends[0] == ends[1]


def move(run: Run, what: str) -> Path:
    """Renames a run's folder, or the one that it is in, or lets another run take its name; returns its new place."""
    there = run.folder.with_name("renamed")
    if what == "parent":
        there = run.folder.parent.with_name("moved") / run.folder.name
        run.folder.parent.rename(there.parent)
    else:
        run.folder.rename(there)
    if what == "replaced":
        other = create(run.folder.with_name("other"), run.settings)
        with other.lock("train"):
            pass
        other.folder.rename(run.folder)
    return there


@pytest.mark.parametrize("what", ["renamed", "parent", "replaced"])
@pytest.mark.parametrize("then", ["commit", "log", "refresh_if_due", "commit_point"])
def test_a_run_that_is_renamed_while_it_trains_ends_there_and_goes_on_by_its_new_name(
    cartpole: Make,
    trained: Callable[[Settings], Run],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    what: str,
    then: str,
) -> None:
    """Nothing is written at its old name, also where that is another run's by now."""
    settings = cartpole()
    run = create(tmp_path / "runs" / "run", settings)
    there, before = run.folder, list[Path]()
    method = getattr(LiveRun, then)

    def moved_first(live: LiveRun, *arguments: Any) -> Any:
        nonlocal there, before
        if there == run.folder and live.tally.agent_steps >= 700:
            there = move(run, what)
            before = sorted(run.folder.rglob("*"))
        return method(live, *arguments)

    with monkeypatch.context() as patched, pytest.raises(MovedError) as raised:
        patched.setattr(LiveRun, then, moved_first)
        attempt(run)
    assert str(raised.value) == (
        f"{run.folder} was moved or renamed while it was in use: continue by its new name, {there}"
    )
    assert sorted(run.folder.rglob("*")) == before
    assert run.folder.exists() == (what == "replaced")
    moved = Run(there)
    assert moved.outcome() == ("failed", str(raised.value))
    assert verify(moved).damage == []
    point = moved.points().newest()
    assert point is not None
    assert point.counters.agent_steps >= 500
    attempt(moved)
    assert end(moved) == end(trained(settings))


def test_a_run_whose_folder_is_removed_while_it_trains_ends_and_leaves_no_stub(cartpole: Make, tmp_path: Path) -> None:
    run = create(tmp_path / "run", cartpole())
    with pytest.raises(MovedError, match=r"was moved, renamed or removed while it was in use$"):
        for progress in progress_of(run):
            if progress.agent_steps == 720:
                shutil.rmtree(run.folder)
    assert not run.folder.exists()


FAILING = """
from twin_graph.targets import Choice

limit = 150  # updates; None when somebody has mended it


def failing(history, random):
    if limit and history.updates >= limit:
        raise RuntimeError("no idea")
    return Choice(history.snapshots[-1:], history.snapshots[-1:], "the newest")
"""


@pytest.fixture
def failing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """A module with a policy that raises from update 150 on."""
    (tmp_path / "failing_policies.py").write_text(FAILING)
    monkeypatch.syspath_prepend(tmp_path)
    yield importlib.import_module("failing_policies")
    del sys.modules["failing_policies"]


@pytest.mark.parametrize(
    ("options", "updates"),  # in chunks the target is refreshed at a chunk's end
    [({}, 150), ({"train__chunk_steps": 64}, 158), ({"train__chunk_steps": 64, "mode": "mutual"}, 158)],
)
def test_a_policy_that_fails_costs_no_steps_and_is_named_with_its_line(
    cartpole: Make, tmp_path: Path, failing: ModuleType, options: dict[str, Any], updates: int
) -> None:
    """The run ends with a resume point where it broke off, and once the policy is mended it makes all its updates."""
    settings = cartpole(target__policy="failing_policies:failing", resume__every_steps=10_000, **options)
    ends = []
    for folder in ("a", "b"):
        failing.limit = 150
        run = create(tmp_path / folder, settings)
        with pytest.raises(ForeignError) as raised:
            attempt(run)
        where = rf"{re.escape(failing.__file__)}:9, in failing"
        steps = re.escape(f"{run.points().newest().counters.agent_steps:,}")
        message = rf"at agent step {steps}: target\.policy=failing_policies:failing: RuntimeError: no idea \({where}\)"
        assert re.fullmatch(message, str(raised.value))
        assert Run(run.folder).outcome() == ("failed", str(raised.value))
        point = run.points().newest()
        assert point is not None
        assert point.counters.agent_steps >= 800
        assert point.counters.updates == updates
        failing.limit = None
        attempt(run)
        assert run.points().newest().counters.updates == 250
        assert verify(run).damage == []
        ends.append(end(run))
    assert ends[0] == ends[1]


@pytest.mark.parametrize("chunk", [0, 64])
def test_an_environment_that_fails_costs_no_steps(
    cartpole: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chunk: int
) -> None:
    """In the middle of an episode, and in the middle of a chunk, in the actor's thread."""
    step, made = CartPoleEnv.step, [0]

    def failing_step(env: CartPoleEnv, action: int) -> Any:
        made[0] += 1
        if made[0] == 80 * 8 + 4:  # the fourth of eight environments, after 640 agent steps
            raise RuntimeError("simulator exploded")
        return step(env, action)

    monkeypatch.setattr(CartPoleEnv, "step", failing_step)
    settings = cartpole(resume__every_steps=10_000, evaluate__episodes=0, train__chunk_steps=chunk)
    ends = []
    for folder in ("a", "b"):
        made[0] = 0
        run = create(tmp_path / folder, settings)
        with pytest.raises(ForeignError, match=r"^at agent step 640: CartPole-v1, environment 3, step: RuntimeErr"):
            attempt(run)
        point = run.points().newest()
        assert point is not None
        assert point.counters.agent_steps == 640
        attempt(run)
        assert run.points().newest().counters.updates == 250
        assert verify(run).damage == []
        ends.append(end(run))
    assert ends[0] == ends[1]


def test_a_target_that_cannot_be_restored_costs_no_steps(cartpole: Make, tmp_path: Path) -> None:
    run = create(tmp_path / "run", cartpole(target__policy="lag(120)", resume__every_steps=10_000))
    weights = "snapshots/000001-*/model.data*"
    with pytest.raises(DamagedError), contextlib.closing(envs.make(run.settings.env, count=8)) as env:
        for progress in training.train(run, env):
            if progress.updates == 150:
                [file] = run.folder.glob(weights)
                content = file.read_bytes()
                file.write_bytes(content[:100] + b"!" + content[101:])
    point = run.points().newest()
    assert point is not None
    assert point.counters.updates >= 150
    file.write_bytes(content)
    attempt(run)
    assert run.state() == "finished"


def test_a_damaged_snapshot_does_not_lock_a_run_out_of_resume(cartpole: Make, tmp_path: Path) -> None:
    often = {"save__every_updates": 20, "target__refresh_every_updates": 20, "resume__keep": 1}
    run = create(tmp_path / "run", cartpole(target__policy="lag(60)", **often))
    attempt(run, 900)
    point = run.points().newest()
    assert point is not None
    next_one = [s for s in run.store().snapshots if s.updates <= point.counters.updates][-1]
    [file] = run.folder.glob(f"snapshots/{next_one.id}/model.data*")
    file.write_bytes(file.read_bytes()[:-4] + b"!!!!")
    for _ in range(2):
        with pytest.raises(DamagedError, match=r"or hold another: `twin-graph swap \S+ --hold REF`; then resume"):
            attempt(run)
        point = run.points().newest()
        assert point is not None
        assert point.snapshots
    swaps.swap(run, point.snapshots[0], hold=True)
    held = attempt(run)
    assert run.state() == "finished"
    assert len({tuple(snapshots) for _, snapshots in held}) == 1


def test_where_the_newest_snapshot_lost_its_manifest_another_is_held_and_averaged(
    cartpole: Make, tmp_path: Path
) -> None:
    run = create(tmp_path / "run", cartpole(evaluate__episodes=0, target__refresh_every_updates=10))
    attempt(run, 1_100)
    store, point = run.store(), run.points().newest()
    assert point is not None
    before = [snapshot for snapshot in store.available if snapshot.updates < point.counters.updates][-1]
    for newer in store.available[store.available.index(before) + 1 :]:  # at the point, and those that resuming abandons
        (store.folder / newer.id / "manifest.json").write_bytes(b"damaged")
    assert average(run, [before]).id.startswith(f"import-{before.id[-8:]}")
    swaps.swap(run, before.id, hold=True)
    assert {tuple(snapshots) for _, snapshots in attempt(run)} == {(before.id,)}
    assert run.state() == "finished"


def test_a_policy_whose_snapshot_is_damaged_can_be_left_again(cartpole: Make, tmp_path: Path) -> None:
    run = create(tmp_path / "run", cartpole(evaluate__episodes=0))
    attempt(run, 1_100)
    [file] = run.folder.glob("snapshots/000002-*/model.data*")  # of no resume point
    file.write_bytes(file.read_bytes()[:-4] + b"!!!!")
    run.change_settings(config.change(run.settings, [("target.policy", "pinned(000002)")]))
    for _ in range(2):
        with pytest.raises(DamagedError, match=r"files, or resume with --set target\.policy=latest$"):
            attempt(run)
    run.change_settings(config.change(run.settings, [("target.policy", "latest")]))
    attempt(run)
    assert run.state() == "finished"


@pytest.mark.parametrize(
    "changes",
    [{}, {"target__policy": "best"}, {"train__until_score": 600.0}],
    ids=["latest", "best", "until a score"],
)
def test_a_run_whose_newest_snapshot_is_damaged_goes_on_as_it_says(
    cartpole: Make, tmp_path: Path, changes: dict[str, Any]
) -> None:
    never = {"target__refresh_every_updates": 100_000, "save__every_updates": 20}
    run = create(tmp_path / "run", cartpole(evaluate__episodes=10, **never, **changes))
    stop_while_playing(run)
    assert run.points().newest() is not None
    [file] = run.folder.glob(f"snapshots/{run.store().newest.id}/model.data*")
    file.write_bytes(file.read_bytes()[:-4] + b"!!!!")
    with pytest.raises(DamagedError, match=r"files, or resume with --set (evaluate\.every_steps=\d+)$") as told:
        attempt(run)
    assignment = str(told.value).rpartition("--set ")[2]
    run.change_settings(config.change(run.settings, [config.parse_assignment(assignment)]))
    attempt(run)
    assert run.state() == "finished"

    run.change_settings(config.change(run.settings, [("train.steps", 1_400)]))
    stop_while_playing(run)
    [file] = run.folder.glob(f"snapshots/{run.store().newest.id}/model.data*")
    file.write_bytes(file.read_bytes()[:-4] + b"!!!!")
    with pytest.raises(DamagedError, match=r"Restore its files; this evaluation alone is left to do$"):
        attempt(run)


def test_killed_is_told_from_failed(cartpole: Make, tmp_path: Path) -> None:
    run = create(tmp_path / "run", cartpole())
    script = """
import os, sys
from twin_graph.snapshots.run import find
find(sys.argv[1]).record_start()
os.kill(os.getpid(), 9)
"""
    with subprocess.Popen([sys.executable, "-c", script, str(run.folder)]) as process:
        process.wait()
    assert process.returncode == -signal.SIGKILL
    told = report.status(run)
    assert told.state == "failed"
    assert told.reason.startswith(f"killed: process {process.pid} on ")


def test_explain_names_what_the_holder_held_at_every_update(cartpole: Make, tmp_path: Path) -> None:
    """Through kills, prunes, an older point than the newest, and swaps by hand: against what the twins recorded."""
    settings = cartpole(
        target__policy="ensemble(2, mean)", save__every_updates=10, save__keep_last=2, save__keep_every=0, loss="mse"
    )
    settings = config.change(settings, [("resume.every_steps", 200), ("target.refresh_every_updates", 30)])
    run = create(tmp_path / "run", settings)
    held = dict(attempt(run, 470))  # of an update that is made again, the last time counts
    control.ask(run.control, "swap", run.resolve("latest~1").id, hold=True)
    held |= dict(attempt(run, 760))
    control.ask(run.control, "undo")
    held |= dict(attempt(run, 930))
    points = run.points()
    (points.path(points.next_number() - 1) / "online.index").write_bytes(b"damaged")
    held |= dict(attempt(run))

    assert sorted(held) == list(range(1, 251))
    for update, snapshots in held.items():
        assert sorted(s.id for s in report.explain(run, update).snapshots) == sorted(snapshots), update
    policies = {report.explain(run, update).policy for update in held}
    assert policies == {"ensemble(2, mean)", "by hand", "undo"}
    assert any(not run.store().has_weights(snapshot.id) for snapshot in run.store().snapshots)
    for update in (0, 251):
        with pytest.raises(UsageError, match="updates 1 to 250"):
            report.explain(run, update)
    with pytest.raises(UsageError, match="has made no update yet"):
        report.explain(create(tmp_path / "new", settings), 1)


def test_an_undo_at_rest_takes_a_swap_back_and_leaves_other_requests(cartpole: Make, tmp_path: Path) -> None:
    run = create(tmp_path / "run", cartpole(evaluate__episodes=0))
    attempt(run, 500)
    swaps.swap(run, "latest~1")
    control.ask(run.control, "point")
    assert swaps.undo(run).message.startswith("undone: swap ")
    assert [request.kind for request in control.pending(run.control)] == ["point"]


def test_an_undo_of_a_swap_that_was_made_and_not_answered_follows_it(cartpole: Make, tmp_path: Path) -> None:
    """The process was killed in between: the swap will be repeated."""
    run = create(tmp_path / "run", cartpole(evaluate__episodes=0))
    attempt(run, 560)
    swaps.swap(run, "000001", hold=True)
    attempt(run, 720)
    [swap] = run.ledger.events(Restore, text=BY_REQUEST)
    assert swap.request
    unanswered = control.read(run.control, swap.request).model_copy(update={"answer": None})
    control._write(run.control, unanswered)
    assert [request.kind for request in control.pending(run.control)] == ["swap"]
    assert f": swap {swap.snapshots[0]} into the target twin" in swaps.undo(run, dry_run=True).message
    assert swaps.undo(run).request
    attempt(run, 900)
    assert [swap.policy for swap in run.ledger.events(Restore, text=BY_REQUEST)] == ["by hand", "undo"]


def test_a_run_is_not_made_shorter_than_it_is(cartpole: Make, tmp_path: Path) -> None:
    run = create(tmp_path / "run", cartpole(evaluate__episodes=0, train__steps=5_000))
    attempt(run, signal_at=(signal.SIGTERM, 720))
    before, made = (run.folder / "ledger.jsonl").read_bytes(), newest_point(run).point.counters.agent_steps
    refused = CliRunner().invoke(cli, ["resume", str(run.folder), "--steps", "100"])
    assert f"already made {made:,} agent steps; to train 100 more, give {made + 100}" in str(refused.exception)
    assert (run.folder / "ledger.jsonl").read_bytes() == before
    assert Run(run.folder).settings.train.steps == 5_000


def test_a_swap_at_rest_takes_only_what_the_run_has_when_it_resumes(cartpole: Make, tmp_path: Path) -> None:
    run = create(tmp_path / "run", cartpole(evaluate__episodes=0))
    attempt(run, 720)
    point, store = newest_point(run).point, run.store()
    kept = [snapshot for snapshot in store.snapshots if snapshot.updates <= point.counters.updates]
    assert len(kept) < len(store.snapshots)
    for dry_run in (True, False):
        with pytest.raises(UsageError, match=f"the newest that it then has is {kept[-1].id}"):
            swaps.swap(run, "latest", dry_run=dry_run)
    assert control.pending(run.control) == []
    swaps.swap(run, kept[-1].id, hold=True)
    attempt(run)
    assert [swap.snapshots for swap in run.ledger.events(Restore, text=BY_REQUEST)] == [(kept[-1].id,)]


def test_a_swap_can_be_undone_while_the_run_that_is_to_make_it_still_starts(
    cartpole: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = create(tmp_path / "run", cartpole(evaluate__episodes=0))
    attempt(run, 500)
    swaps.swap(run, "latest~1", hold=True)
    with monkeypatch.context() as starting:  # its process has the lock, and has not looked for requests yet
        starting.setattr(Run, "state", lambda run: "running")
        starting.setattr(swaps, "answered", lambda run, request, otherwise: Answer(done=True, message="not awaited"))
        swaps.undo(run)
    attempt(run)
    *_, swapped, undone = run.ledger.events(Restore, text=BY_REQUEST)
    assert (swapped.policy, swapped.hold) == ("by hand", True)
    assert undone.policy == "undo"
    assert control.pending(run.control) == []


def test_a_second_undo_brings_back_what_the_first_undid(cartpole: Make, tmp_path: Path) -> None:
    """Of two swaps into twins of their own, each is undone by its own name; a hold ends with its undo, and returns."""
    rarely = {"target__refresh_every_updates": 1_000, "save__every_updates": 20, "resume__every_steps": 100}
    run = create(tmp_path / "run", cartpole(evaluate__episodes=0, train__steps=2_000, **rarely))
    attempt(run, 560)
    swaps.swap(run, "000001", hold=True)
    swaps.swap(run, "000000", "online", yes=True)
    attempt(run, 760)
    for steps, into in ((900, "target"), (1_000, "target"), (1_100, "target")):
        assert swaps.undo(run, into).request
        attempt(run, steps)
    into_target = [swap for swap in run.ledger.events(Restore, text=BY_REQUEST) if swap.into == "target"]
    assert [(swap.policy, swap.hold) for swap in into_target] == [
        ("by hand", True),
        ("undo", False),
        ("undo", True),
        ("undo", False),
    ]
    assert into_target[0].snapshots == into_target[2].snapshots
    assert into_target[1].snapshots == into_target[3].snapshots == into_target[0].previous


def test_an_undo_returns_to_the_hold_of_before(cartpole: Make, tmp_path: Path) -> None:
    run = create(tmp_path / "run", cartpole(evaluate__episodes=0, resume__every_steps=100, train__steps=2_000))
    attempt(run, 560)
    swaps.swap(run, "000001", hold=True)
    swaps.swap(run, "000000", hold=True)  # into the same twin
    attempt(run, 660)
    swaps.undo(run)
    attempt(run, 760)
    first, _, undone = run.ledger.events(Restore, text=BY_REQUEST)
    assert (undone.snapshots, undone.hold) == (first.snapshots, True)


ASKS = r"loses what it learned in \d+ updates? and \d+ agent steps? since .*, and the optimizer's state; "


def swap_by_command(run: Run, *arguments: str) -> tuple[int, list[str]]:
    """Exit code and lines for people of a `swap` that nobody can answer."""
    done = twin_graph("swap", str(run.folder), *arguments, cwd=run.folder.parent)
    return done.returncode, done.stderr.splitlines()


def test_an_undo_into_the_online_twin_says_first_what_it_loses_and_is_agreed_to(cartpole: Make, tmp_path: Path) -> None:
    run = create(tmp_path / "run", cartpole(evaluate__episodes=0, resume__every_steps=100, train__steps=2_000))
    attempt(run, 560)
    code, [asked] = swap_by_command(run, "000001", "--into", "online")
    assert code == 2
    assert re.search(ASKS, asked)
    assert asked.endswith("agree with --yes")
    assert control.pending(run.control) == []
    code, [told, recorded] = swap_by_command(run, "000001", "--into", "online", "--yes")
    assert (code, bool(re.search(ASKS, told)), recorded.startswith("recorded: ")) == (0, True, True)
    attempt(run, 900)
    [swapped] = run.ledger.events(Restore, text=BY_REQUEST)

    made = newest_point(run).point.counters.updates - swapped.counters.updates
    assert made > 0
    code, [tried] = swap_by_command(run, "--undo", "--into", "online", "--dry-run")
    assert (code, f"learned in {made} updates and" in tried) == (0, True)
    code, [asked] = swap_by_command(run, "--undo", "--into", "online")
    assert (code, bool(re.search(ASKS, asked)), f"in {made} updates" in asked) == (2, True, True)
    with pytest.raises(UsageError, match="agree with --yes"):
        swaps.undo(run, "online")
    assert control.pending(run.control) == []
    code, [refused] = swap_by_command(run, "--undo", "--yes")
    assert (code, "none was made into the target twin" in refused, "--undo --into online" in refused) == (2, True, True)
    code, [told, recorded] = swap_by_command(run, "--undo", "--into", "online", "--yes")
    assert (code, f"in {made} updates" in told, recorded.startswith("recorded: ")) == (0, True, True)
    attempt(run, 1_100)
    assert swaps.undo(run, "online", yes=True).request
    attempt(run, 1_300)
    _, undone, redone = run.ledger.events(Restore, text=BY_REQUEST)
    assert undone.snapshots == swapped.previous
    [present] = [one for one in run.ledger.events(Commit) if (one.id,) == undone.previous]
    assert present.counters == undone.counters  # the weights that it replaced: nothing is lost
    assert redone.snapshots == undone.previous


@pytest.mark.parametrize("into", ["target", "online"])
def test_an_undo_is_of_the_present_attempt(cartpole: Make, tmp_path: Path, into: Literal["target", "online"]) -> None:
    run = create(tmp_path / "run", cartpole(evaluate__episodes=0, resume__every_steps=100, train__steps=2_000))
    attempt(run, 560)
    assert swaps.swap(run, "000001", into, hold=into == "target", yes=True).request
    attempt(run, 760)
    attempt(run, 960)
    [swapped] = run.ledger.events(Restore, text=BY_REQUEST)
    for agreed in ([], ["--yes"]):
        code, [refused] = swap_by_command(run, "--undo", "--into", into, *agreed)
        assert code == 2
        assert f": the newest, swap {swapped.snapshots[0]} into the {into} twin" in refused
        assert "was made by attempt 2, and the run has been resumed since" in refused
        assert f"swap {run.folder} {swapped.previous[0]}" in refused
        assert "twin-graph fork" in refused
    assert control.pending(run.control) == []


@pytest.mark.parametrize("says", ["n", "y"])
def test_who_is_at_a_terminal_is_asked(cartpole: Make, tmp_path: Path, says: str) -> None:
    run = create(tmp_path / "run", cartpole(evaluate__episodes=0))
    attempt(run, 560)
    terminal, inside = pty.openpty()
    command = [sys.executable, "-m", "twin_graph_cli", "swap", str(run.folder), "000001", "--into", "online"]
    with subprocess.Popen(command, stdin=inside, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as asking:
        os.write(terminal, f"{says}\n".encode())
        _, told = asking.communicate(timeout=60)
    os.close(terminal)
    os.close(inside)
    assert re.search(ASKS, told)
    assert ("nothing was changed" in told, asking.returncode) == ((True, 1) if says == "n" else (False, 0))
    assert len(control.pending(run.control)) == (says == "y")


def test_an_undo_takes_back_the_swap_that_was_meant(cartpole: Make, tmp_path: Path) -> None:
    """Not one that somebody else asked for in between."""
    run = create(tmp_path / "run", cartpole(evaluate__episodes=0, resume__every_steps=100, train__steps=2_000))
    attempt(run, 560)
    swaps.swap(run, "000001", "online", yes=True)
    attempt(run, 760)
    swaps.undo(run, "online", yes=True)
    [meant] = control.pending(run.control)
    control.answer(run.control, meant, Answer(done=False, message="not yet"))
    control.ask(run.control, "swap", run.resolve("000002").id, "online")
    control.ask(run.control, "undo", into="online", undoes=meant.undoes)
    attempt(run, 960)
    assert [swap.policy for swap in run.ledger.events(Restore, text=BY_REQUEST)] == ["by hand", "by hand"]


def test_a_run_that_has_learned_nothing_has_nothing_to_lose(cartpole: Make, tmp_path: Path) -> None:
    run = create(tmp_path / "run", cartpole(evaluate__episodes=0, resume__every_steps=50))
    attempt(run, 60)
    assert newest_point(run).point.counters.updates == 0
    assert swaps.swap(run, "000000", "online").request


def test_a_damaged_evaluation_that_resuming_abandons_is_no_matter(cartpole: Make, tmp_path: Path) -> None:
    run = create(tmp_path / "run", cartpole(evaluate__every_steps=300, resume__every_steps=500))
    attempt(run, 760)
    point = newest_point(run).point
    path = run.folder / "evaluations.jsonl"
    lines = path.read_bytes()
    assert len(lines) > point.known_bytes[path.name]
    path.write_bytes(lines[: point.known_bytes[path.name]] + b"no record\n")
    assert nothing_left(Run(run.folder), point.counters.agent_steps, run.settings) == ""
    attempt(run)
    assert Run(run.folder).outcome()[0] == "finished"


def test_an_undo_that_cannot_be_is_refused(cartpole: Make, tmp_path: Path) -> None:
    run = create(tmp_path / "run", cartpole(evaluate__episodes=0))
    attempt(run, 560)
    swaps.swap(run, "latest~1")
    attempt(run, 760)
    with pytest.raises(UsageError, match=r"no manual swap to undo in \S+: the schedule has replaced 0000\S+ since"):
        swaps.undo(run)
    swaps.swap(run, "000001", hold=True)
    attempt(run, 900)  # no resume point since: the swap is repeated, and then undone
    assert swaps.undo(run, dry_run=True).message.startswith("would undo: swap 000001-")
    assert swaps.undo(run).request
    attempt(run, 1_100)
    assert [swap.policy for swap in run.ledger.events(Restore, text=BY_REQUEST)] == ["by hand", "by hand", "undo"]
    for dry_run in (True, False):
        with pytest.raises(UsageError, match="there is no manual swap to undo in"):
            swaps.undo(run, dry_run=dry_run)
    refused = CliRunner().invoke(cli, ["swap", str(run.folder), "--undo", "--into", "opponent"])
    assert "has no opponent" in str(refused.exception)
    refused = CliRunner().invoke(cli, ["swap", str(run.folder), "--undo", "--hold"])
    assert "leave out --hold" in str(refused.exception)
    control.ask(run.control, "undo")  # as somebody at the same moment might
    with contextlib.closing(envs.make(run.settings.env, count=8)) as env:
        *_, progress = training.train(Run(run.folder), env, newest_point(run).point)
    [notice] = progress.notices
    assert notice.startswith(
        f"undo of the last swap into the target twin is refused: there is no manual swap to undo in {run.folder}"
    )


@pytest.mark.parametrize("into", ["target", "online"])
def test_a_swap_by_hand_after_the_resume_point_happens_again(cartpole: Make, tmp_path: Path, into: str) -> None:
    ends = []
    for folder, kill in (("a", False), ("b", True)):
        run = create(tmp_path / folder, cartpole(loss="mse"))
        env = envs.make(run.settings.env, count=8)
        asked = False
        for progress in training.train(run, env):
            if progress.agent_steps >= 640 and not asked:
                asked = True
                control.ask(run.control, "swap", run.resolve("000001").id, into, hold=into == "target")  # type: ignore[arg-type]
            if kill and progress.agent_steps >= 880:
                break
        env.close()
        if kill:
            state = run.points().newest()
            assert state is not None
            if into == "target":
                assert state.counters.agent_steps < 640
            attempt(run)
        swaps = [e for e in run.ledger.events() if e.event == "swap" and e.request]
        assert [(swap.into, swap.first_update) for swap in swaps] == [(into, 111)]
        ends.append(end(run))
    assert ends[0][:2] == ends[1][:2]


def test_a_hold_outlives_a_resume_point(cartpole: Make, tmp_path: Path) -> None:
    run = create(tmp_path / "run", cartpole(evaluate__episodes=0))
    attempt(run, 560)
    swaps.swap(run, "000001", hold=True)
    attempt(run, 1_080)  # beyond the point at 1,000
    attempt(run)
    [target] = report.status(Run(run.folder)).targets
    assert (target.snapshot[:6], target.held) == ("000001", True)


def test_a_swap_into_the_online_twin_loses_nothing_and_resets_the_optimizer(cartpole: Make, tmp_path: Path) -> None:
    with Agent(create(tmp_path / "run", cartpole()), EnvSpec((4,), 2)) as agent:
        online, first = agent.learners.first.online, agent.store.snapshots[0]
        initial = online.all_variables()
        online.load_all({name: value + 1 for name, value in initial.items()})
        learnt, agent.tally.updates = online.weights_sha256(), 7
        agent.live.swap([first], learner="online", into="online", hold=False, request=f"request-{1:020}-00000000")
        assert agent.store.newest.weights_sha256 == learnt
        for name, value in online.all_variables().items():
            np.testing.assert_array_equal(value, initial[name], err_msg=name)


def test_a_swap_that_is_requested_at_rest_comes_after_those_that_are_repeated(cartpole: Make, tmp_path: Path) -> None:
    run = create(tmp_path / "run", cartpole(loss="mse", evaluate__episodes=0))
    asked = False
    with contextlib.closing(envs.make(run.settings.env, count=8)) as env:
        for progress in training.train(run, env):
            if progress.agent_steps >= 640 and not asked:
                asked = True
                control.ask(run.control, "swap", run.resolve("000001").id, hold=True)
            if progress.agent_steps >= 700:
                break
    swaps.swap(run, "000000", hold=True)
    attempt(run)
    made = run.ledger.events(Restore, text=BY_REQUEST)
    assert [swap.snapshots[0][:6] for swap in made] == ["000001", "000000"]
    assert [swap.counters.agent_steps for swap in made] == [640, 640]
    assert report.status(run).targets[0].snapshot.startswith("000000")
    assert report.status(run).targets[0].held


def test_a_swap_that_is_requested_while_others_are_still_to_be_repeated_is_made_at_once(
    cartpole: Make, tmp_path: Path
) -> None:
    run = create(tmp_path / "run", cartpole(loss="mse", evaluate__episodes=0))
    for at, until in ((800, 900), (600, 1_200)):  # killed, and resumed from the point at 504
        point, asked = newest_point(run).point if run.points().folders() else None, False
        with contextlib.closing(envs.make(run.settings.env, count=8)) as env:
            for progress in training.train(run, env, point):
                if progress.agent_steps >= at and not asked:
                    asked = True
                    control.ask(run.control, "swap", run.resolve("000001").id)
                if progress.agent_steps >= until:
                    break
    made = run.ledger.events(Restore, text=BY_REQUEST)
    assert [swap.counters.agent_steps for swap in made] == [600, 800]


@pytest.mark.parametrize("undone", [False, True])
def test_a_swap_by_hand_whose_snapshot_is_not_made_again_is_left_out_and_named(
    cartpole: Make, tmp_path: Path, *, undone: bool
) -> None:
    run = create(tmp_path / "run", cartpole(loss="mse", save__every_updates=20, evaluate__episodes=0))
    for _ in newest_swapped(run, at=640, end=800, undone=undone):
        pass
    run.change_settings(config.change(run.settings, [("train.learning_rate", 1e-2)]))
    run = Run(run.folder)
    notices: list[str] = []
    with contextlib.closing(envs.make(run.settings.env, count=8)) as env:
        for progress in training.train(run, env, newest_point(run).point):
            notices = progress.notices
    assert run.outcome()[0] == "finished"
    assert re.fullmatch(r"a swap after \d+ agent steps was not repeated: no snapshot '\S+'.*", notices[0])
    assert len(notices) == 1 + undone
    # Not later either, when it would be at another step.
    run.change_settings(config.change(run.settings, [("train.steps", 1_400)]))
    with contextlib.closing(envs.make(run.settings.env, count=8)) as env:
        for progress in training.train(run, env, newest_point(run).point):
            assert progress.notices == []
    assert run.ledger.events(Restore, text=BY_REQUEST) == []
    assert verify(run).damage == []


def newest_swapped(run: Run, *, at: int, end: int, undone: bool) -> Iterator[Progress]:
    """Trains to `end` steps, and swaps the newest snapshot into the target `at` some."""
    asked = 0
    with contextlib.closing(envs.make(run.settings.env, count=8)) as env:
        for progress in training.train(run, env):
            if progress.agent_steps >= at + 80 * asked and asked < 1 + undone:
                asked += 1
                control.ask(run.control, "undo" if asked == 2 else "swap", run.resolve("latest").id, hold=asked == 1)
            if progress.agent_steps >= end:
                return
            yield progress


def test_an_evaluation_that_was_made_up_for_stays_when_the_run_is_resumed_once_more(
    cartpole: Make, tmp_path: Path
) -> None:
    run = create(tmp_path / "run", cartpole(train__steps=1_100, evaluate__every_steps=400))
    with contextlib.closing(envs.make(run.settings.env, count=8)) as env:
        for progress in training.train(run, env):
            if progress.agent_steps >= 1_100 and progress.note:
                progress.stop.set()
    assert [line["agent_steps"] for line in run.evaluation_lines()] == [400, 800]
    attempt(run)
    run = Run(run.folder)
    run.change_settings(config.change(run.settings, [("train.steps", 1_500)]))
    attempt(run)
    steps = [line["played_at"]["agent_steps"] for line in Run(run.folder).evaluation_lines()]
    assert steps == [400, 800, 1_104, 1_200, 1_504]


def test_a_request_is_seen_though_the_folder_seems_unchanged(tmp_path: Path) -> None:
    inbox, now = control.Inbox(tmp_path, []), time.time_ns()
    os.utime(tmp_path, ns=(now, now))
    assert inbox.new() == []
    asked = control.ask(tmp_path, "point")
    os.utime(tmp_path, ns=(now, now))  # as a clock leaves it that ticks coarsely
    assert inbox.new() == [asked]


def test_a_request_for_a_point_is_answered_once_a_resumed_run_has_made_it(
    cartpole: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = create(tmp_path / "run", cartpole(evaluate__episodes=0))
    monkeypatch.setattr(control, "_TICK_NS", 0)  # or the folder is looked at again for a second

    def full(*arguments: object) -> None:
        raise OSError("full")

    with (
        monkeypatch.context() as patched,
        contextlib.closing(envs.make(run.settings.env, count=8)) as env,
        pytest.raises(OSError, match="full"),
    ):
        for progress in training.train(run, env):
            if progress.agent_steps == 640:
                control.ask(run.control, "point")
                patched.setattr(PointStore, "commit", full)
    [request] = control.pending(run.control)
    attempt(run)
    answer = control.read(run.control, request.id).answer
    assert answer is not None
    assert answer.message == "resume point 2 is after 110 updates"


def test_what_was_abandoned_is_kept_and_never_looked_at(cartpole: Make, tmp_path: Path) -> None:
    """Other settings after a crash make other weights: the same numbers under other names."""
    run = create(tmp_path / "run", cartpole(loss="mse", save__every_updates=20))
    attempt(run, 900)
    before = [snapshot.id for snapshot in run.store().snapshots]
    point = newest_point(run).point
    run.store().pin(before[-1], keep=True, attempt=1)
    run.change_settings(config.change(run.settings, [("train.learning_rate", 1e-2)]))
    attempt(run)
    store = run.store()
    assert store.has_weights(before[-1])
    assert CliRunner().invoke(cli, ["unpin", str(run.folder), before[-1]]).exit_code == 0
    assert not run.store().pins
    abandoned = [snapshot.id for snapshot in store.abandoned]
    assert abandoned == [i for i in before if i not in {s.id for s in store.snapshots}]
    assert abandoned
    assert all(store.find(i).updates <= point.counters.updates for i in before if i not in abandoned)
    numbers = [snapshot.number for snapshot in store.snapshots]
    assert numbers == list(range(len(numbers)))
    assert {e.id for e in report.log(run, abandoned=True)} - {e.id for e in report.log(run)} == set(abandoned)
    for snapshot in abandoned:
        assert (store.folder / snapshot / "manifest.json").exists()
    metrics = [line["agent_steps"] for line in run.metric_lines() if "loss" in line]
    assert metrics == sorted(set(metrics))
    assert Run(run.folder).description["past_settings"][0]["settings"]["train"]["learning_rate"] != 1e-2


def flip(path: Path, at: int) -> None:
    content = bytearray(path.read_bytes())
    content[at] ^= 1 << (at % 8)
    path.write_bytes(bytes(content))


def test_damage_in_any_file_is_named_and_resume_goes_on_from_what_is_whole_or_refuses(
    cartpole: Make, trained: Callable[[Settings], Run]
) -> None:
    run = trained(cartpole(resume__every_steps=400))
    control.ask(run.control, "swap", run.store().newest.id)
    whole = newest_point(run).point
    assert verify(run).damage == verify(run).unknown == []
    random = np.random.default_rng(0)
    files = [p for p in run.folder.rglob("*") if p.is_file() and p.stat().st_size and p.parent.name != "events"]
    assert len(files) > 30
    for path in files:
        content = path.read_bytes()
        size = len(content)
        for at in sorted({0, size // 2, size - 1, *random.integers(0, size, 3).tolist(), -1}):
            if at < 0:
                path.write_bytes(content[: size - 1])
            else:
                flip(path, at)
            try:
                assert_noticed(run, path, whole)
            finally:
                path.write_bytes(content)
    assert newest_point(run).point == whole


def assert_noticed(run: Run, path: Path, whole: PointState) -> None:
    try:
        findings = verify(Run(run.folder))
    except DamagedError as error:  # run.json
        assert str(path) in str(error)  # noqa: PT017
        return
    assert any(str(path) in line for line in findings.damage + findings.unknown), path
    try:
        found = newest_point(run)
    except DamagedError as error:
        assert error.exit_code == 3  # noqa: PT017
        return
    if found.point != whole:
        assert found.point.number == whole.number - 1
        assert found.damage


def test_a_ledger_that_was_cut_is_named_though_retention_has_removed_older_points(
    cartpole: Make, trained: Callable[[Settings], Run]
) -> None:
    run = trained(cartpole(resume__every_steps=100))
    path = run.ledger.path
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[: len(lines) // 2]))
    with pytest.raises(DamagedError, match=rf"no intact resume point: {path} is damaged: it is shorter"):
        newest_point(Run(run.folder))
    with pytest.raises(DamagedError, match=rf"^{path} is damaged: it lacks the commit of \S+, which was evaluated$"):
        compare(Run(run.folder), run)


@pytest.mark.parametrize("left", [0.0, 0.3, None], ids=["none", "a third", "all but a bit"])
def test_damaged_metrics_stop_no_training_and_those_that_follow_are_kept(
    cartpole: Make, trained: Callable[[Settings], Run], tmp_path: Path, left: float | None
) -> None:
    settings = cartpole(evaluate__episodes=0, log__every_steps=80, resume__every_steps=200)
    run = create(tmp_path / "run", settings)
    attempt(run, 780)  # and abandons what follows 600
    attempt(run, 900)
    path, whole = run.folder / METRICS, [line["agent_steps"] for line in run.metric_lines()]
    if left is None:
        flip(path, path.stat().st_size // 3)
    elif left:
        path.write_bytes(path.read_bytes()[: int(left * path.stat().st_size)])
    else:
        path.unlink()

    found = newest_point(run)
    assert found.point.counters.agent_steps == 800
    assert [str(path) in line for line in found.damage] == [True]
    forked = fork(Run(run.folder), found.point, tmp_path / "fork", run.settings)
    for one in (run, forked):
        attempt(one)
        assert end(one)[0] == end(trained(settings))[0]
        kept = [line["agent_steps"] for line in Run(one.folder).metric_lines()]
        assert [step for step in kept if step > 800] == [880, 960, 1_040, 1_120, 1_200]
        before = [step for step in kept if step <= 800]
        assert set(before) < {step for step in whole if step <= 800}
        assert len(before) >= (6 if left is None else 1 if left else 0)
        assert [line for line in verify(Run(one.folder)).damage if "shorter" in line] == []


def test_a_resumed_run_may_change_settings_but_not_those_that_its_data_depend_on(cartpole: Make) -> None:
    settings = cartpole()
    assert config.change(settings, [("train.steps", 9_000)]).train.steps == 9_000
    fixed = {"env.count": 4, "network": "nature", "replay.capacity_steps": 9, "train.rmsprop_momentum": 0.9, "seed": 3}
    for key, value in fixed.items():
        with pytest.raises(UsageError, match=f"{key} cannot change in a run that has started"):
            config.change(settings, [(key, value)])
    for key in ("seedling", "modes", "networks", "train.every_stepss"):
        with pytest.raises(UsageError, match=f"unknown setting '{key}'"):
            config.change(settings, [(key, 1)])


def test_a_run_that_never_made_a_point_says_so(cartpole: Make, tmp_path: Path) -> None:
    run = create(tmp_path / "run", cartpole())
    assert run.outcome() == ("stopped", "not trained yet")
    with pytest.raises(
        UsageError, match=r"call its train\(\) in Python; or `twin-graph train cartpole` begins a new run"
    ):
        newest_point(run)
    run.record_start()
    with pytest.raises(
        UsageError, match="ended before its first resume point; or `twin-graph train cartpole` begins a new run"
    ):
        newest_point(run)


def test_a_run_that_is_resumed_needs_no_room_for_what_it_has(
    cartpole: Make, trained: Callable[[Settings], Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = trained(cartpole(evaluate__episodes=0))
    with contextlib.closing(envs.make(run.settings.env, count=1)) as env:
        needed = requirements.measure(run.settings, env, run.folder.parent / "new")
    for free, code in ((1_000, 1), (needed.disk * 3 // 4, 0)):
        monkeypatch.setattr("shutil.disk_usage", lambda _, free=free: SimpleNamespace(free=free))
        done = CliRunner().invoke(cli, ["resume", str(run.folder), "--steps", "1240"])
        assert done.exit_code == code, done.exception
        assert not code or "not enough disk space" in str(done.exception)


def test_no_more_replay_is_said_to_be_restored_than_there_is(
    cartpole: Make, trained: Callable[[Settings], Run]
) -> None:
    """Its oldest segment may be needed for its newest steps alone."""
    run = trained(cartpole(replay__capacity_steps=406, train__steps=1_176, evaluate__episodes=0))
    said = "\n".join(report.restored(run, newest_point(run).point))
    assert "restored: replay, 400 agent steps in 3 segments\n" in said


def test_one_process_at_a_time(cartpole: Make, tmp_path: Path) -> None:
    run = create(tmp_path / "run", cartpole())
    code = "import sys, time; from pathlib import Path; from twin_graph.snapshots.run import Run\n"
    code += "with Run(Path(sys.argv[1])).lock('train'): print('locked', flush=True); time.sleep(60)"
    with subprocess.Popen([sys.executable, "-c", code, str(run.folder)], stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "locked\n"
        try:
            with pytest.raises(InUseError, match=rf"in use by process {holder.pid} on .* \(train, since"):
                run.lock("prune").__enter__()
        finally:
            holder.kill()
    with run.lock("prune"):
        pass


def test_finished_means_finished_and_more_steps_go_on(cartpole: Make, trained: Callable[[Settings], Run]) -> None:
    run = trained(cartpole())
    run.change_settings(config.change(run.settings, [("train.steps", 1_600)]))
    point = newest_point(run).point
    assert point.counters.agent_steps == 1_200
    env = envs.make(run.settings.env, count=8)
    for _ in training.train(run, env, point):
        pass
    env.close()
    summary = report.status(run)
    assert (summary.state, summary.attempt, summary.agent_steps) == ("finished", 2, 1_600)
    assert sorted(int(path.name) for path in run.points().folders()) == [point.number + 1, point.number + 2][-2:]


def test_what_a_death_left_unfinished_is_named_as_that_and_the_next_resume_removes_all_of_it(
    cartpole: Make, tmp_path: Path
) -> None:
    run = create(tmp_path / "run", cartpole(train__steps=400, resume__every_steps=100, evaluate__episodes=0))
    attempt(run, 150)
    assert verify(run).leftover == verify(run).unknown == []
    dead, living = subprocess.Popen(["true"]), subprocess.Popen(["sleep", "60"])
    dead.wait()
    names = [
        f".tmp-run.json-{dead.pid}",
        f"control/.tmp-request-1.json-{dead.pid}",
        f"control/.tmp-holder.json-{os.getpid()}",  # in a container each process may have the same number
        f"resume/.tmp-000009-{dead.pid}",
        f"snapshots/.tmp-000009-aaaaaaaa-{living.pid}",  # whose number another process has now
    ]
    for name in names:
        if name.startswith((".", "control")):
            (run.folder / name).write_bytes(b"{")
        else:
            (run.folder / name).mkdir()
            (run.folder / name / "model.data").write_bytes(b"unfinished")
    segment = run.folder / "resume/replay/000001-000000900-000000901.npys"
    segment.write_bytes(b"\x93NUM")
    filming = run.folder / f".tmp-film.mp4-{living.pid}"
    filming.mkdir()
    asking, stranger = run.folder / f"control/.tmp-request-2.json-{living.pid}", run.folder / "snapshots/notes.txt"
    for path in asking, stranger:
        path.write_bytes(b"{")
    paths = [str(run.folder / name) for name in names]

    findings = verify(run)
    assert sorted(findings.leftover) == sorted([*paths, str(asking), str(filming)])
    assert (findings.damage, findings.unknown) == ([], [str(stranger)])
    command = [sys.executable, "-m", "twin_graph_cli", "verify", str(run.folder)]
    told = subprocess.run([*command, "--json"], capture_output=True, text=True, check=True)
    assert json.loads(told.stdout)["leftover"] == findings.leftover
    lines = told.stderr.splitlines()
    assert f"left by a process that died; the next `resume` removes it: {paths[0]}" in lines
    assert f"unknown, left alone: {stranger}" in lines
    assert len(lines) == 9

    attempt(run)
    assert not [path for path in (*paths, segment) if Path(path).exists()]
    assert asking.exists()  # somebody may be about to ask for a swap
    assert filming.exists()
    assert stranger.exists()
    living.kill()
    living.wait()
    averaging = run.folder / f"snapshots/.tmp-import-aaaaaaaa-{dead.pid}"
    averaging.mkdir()
    with run.lock("resume"):  # which then may find nothing to train
        assert not asking.exists()
        assert not averaging.exists()
        assert not filming.exists()
    assert verify(run).leftover == []


def test_what_a_dead_export_or_fork_left_beside_a_run_is_named(cartpole: Make, tmp_path: Path) -> None:
    run = create(tmp_path / "run", cartpole())
    left, living = tmp_path / ".tmp-network-4194305", tmp_path / f".tmp-fork-{os.getppid()}"
    for path in left, living, tmp_path / ".tmp-of-somebody-else":
        path.mkdir()
    assert verify(run).beside == [str(left)]
    told = twin_graph("verify", "run", cwd=tmp_path)
    assert told.returncode == 0
    assert f"left beside the run by a process that died, and of no use: remove it: {left.name}" in told.stdout


def test_a_run_that_goes_back_to_a_point_that_was_mended_is_whole(cartpole: Make, tmp_path: Path) -> None:
    """Meanwhile another attempt committed the same weights after more agent steps."""
    settings = cartpole(train__chunk_steps=64, save__every_updates=8, resume__keep="all", evaluate__episodes=0)
    attempt(run := create(tmp_path / "run", settings), signal_at=(signal.SIGINT, 640))
    [*_, before, newest] = run.points().folders()
    (newest / "online.index").rename(tmp_path / "aside")
    attempt(run, 700)
    (tmp_path / "aside").rename(newest / "online.index")
    attempt(run)
    starts = run.ledger.with_abandoned(Start)
    assert [start.resumed_from for start, _ in starts] == [None, int(before.name), int(newest.name)]
    committed = Counter(snapshot.id for snapshot, _ in run.ledger.with_abandoned(Commit))
    assert max(committed.values()) == 2
    assert verify(run).damage == verify(run).unknown == []


def test_where_all_points_are_kept_a_new_one_reads_no_old_one(
    cartpole: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[int] = []
    readable = PointStore.readable

    def noted(self: PointStore, number: int) -> PointState | None:
        read.append(number)
        return readable(self, number)

    monkeypatch.setattr(PointStore, "readable", noted)
    run = create(tmp_path / "run", cartpole(resume__keep="all", resume__every_steps=100, evaluate__episodes=0))
    attempt(run)
    assert len(run.points().folders()) > 8
    assert not read


def test_the_last_evaluation_is_played_once_though_its_point_was_damaged_for_a_time(
    cartpole: Make, trained: Callable[[Settings], Run], tmp_path: Path
) -> None:
    run = trained(cartpole(resume__keep="all"))
    evaluated = [line["played_at"]["agent_steps"] for line in run.evaluation_lines()]
    [*_, newest] = run.points().folders()
    (newest / "online.index").rename(tmp_path / "aside")
    attempt(run, 1)
    (tmp_path / "aside").rename(newest / "online.index")
    told = report.status(Run(run.folder))
    assert told.agent_steps < run.settings.train.steps  # the point is whole again, and abandoned
    assert told.resume_point.number == int(newest.name) - 1
    attempt(run)
    assert [line["played_at"]["agent_steps"] for line in Run(run.folder).evaluation_lines()] == evaluated


def test_what_a_run_writes_while_it_is_verified_belongs_to_it(
    cartpole: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = create(tmp_path / "run", cartpole(evaluate__episodes=0))
    (run.folder / "notes.txt").write_text("")
    points = _Verifier.points
    with contextlib.closing(progress_of(run)) as progresses:
        next(progresses)
        begun = len(run.store().snapshots)

        def points_and_more(verifier: _Verifier) -> None:
            points(verifier)
            while len(run.points().folders()) < 2:
                next(progresses)

        monkeypatch.setattr(_Verifier, "points", points_and_more)
        found = verify(run)
    assert len(run.store().snapshots) > begun
    assert found.unknown == [str(run.folder / "notes.txt")]


def test_steps_are_looked_after_also_while_an_interrupted_evaluation_is_played_again(
    cartpole: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a chief has to, whose workers have begun to train."""
    run = create(tmp_path / "run", cartpole())
    stop_while_playing(run)
    assert not list(run.evaluation_lines())
    looked: list[str] = []
    monkeypatch.setattr(StepByStep, "meanwhile", lambda _: looked.append("looked at"))
    monkeypatch.setattr(StepByStep, "settle", lambda _: looked.append("settled"))
    monkeypatch.setattr(StepByStep, "begin", lambda _: looked.append("begun"))
    monkeypatch.setattr(StepByStep, "advance", lambda _: [])
    progresses = progress_of(run)
    while "begun" not in looked:
        next(progresses)
    progresses.close()
    assert looked[0] == "looked at"
    assert looked[-2:] == ["settled", "begun"]


def test_what_falls_due_while_an_interrupted_evaluation_is_played_again_is_done_after_it(
    cartpole: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with workers, who go on."""
    run = create(tmp_path / "run", cartpole(evaluate__every_steps=200))
    stop_while_playing(run)
    interrupted = newest_point(run).point.counters.agent_steps
    every = run.settings.evaluate.every_steps

    def train(stepper: StepByStep) -> None:
        tally = stepper._agent.tally
        tally.agent_steps = max(tally.agent_steps, interrupted + every)

    monkeypatch.setattr(StepByStep, "meanwhile", train)
    for _ in progress_of(run):
        pass
    assert len(list(run.evaluation_lines())) == run.settings.train.steps // every


def test_a_resume_point_that_is_gone_is_named(
    cartpole: Make, trained: Callable[[Settings], Run], tmp_path: Path
) -> None:
    """It was there, since something came after it; and the one before is taken."""
    run = trained(cartpole())
    newest = run.points().folders()[-1]
    newest.rename(tmp_path / "aside")
    point, damage = newest_point(run)
    assert point.number == int(newest.name) - 1
    assert damage == verify(run).damage == [f"{newest} is gone, which the ledger has"]
    attempt(run)
    assert newest_point(run).damage == verify(run).damage == []


def test_a_resume_point_that_a_crash_kept_from_being_is_not_gone(
    cartpole: Make, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    run = create(tmp_path / "run", cartpole())
    attempt(run, 840)
    newest = run.points().folders()[-1]

    def fail(*_: object) -> None:
        raise OSError("the disk is full")

    with monkeypatch.context() as patched:
        patched.setattr(PointStore, "commit", fail)
        with pytest.raises(OSError, match="full"):
            attempt(run)
    assert run.points().folders()[-1] == newest
    assert newest_point(run).damage == verify(run).damage == []


def test_a_run_has_begun_though_its_points_are_out_of_sight(
    cartpole: Make, trained: Callable[[Settings], Run], tmp_path: Path
) -> None:
    """`train` removes the folder of a run that has not."""
    run = trained(cartpole())
    run.points().folder.rename(tmp_path / "aside")
    assert has_begun(run)
    new = create(tmp_path / "new", cartpole())
    new.record_start()
    assert not has_begun(new)
    with (run.folder / "ledger.jsonl").open("r+b") as file:
        file.write(b"?")
    assert has_begun(Run(run.folder))


def test_settings_of_an_attempt_that_never_began_are_taken_back(
    cartpole: Make, trained: Callable[[Settings], Run]
) -> None:
    run = trained(cartpole())
    before, settings = (run.folder / "run.json").read_bytes(), run.settings
    other = config.change(settings, [("train.steps", 9_000)])
    with pytest.raises(RuntimeError), run.trying(other):
        assert run.settings == Run(run.folder).settings == other
        raise RuntimeError
    assert (run.folder / "run.json").read_bytes() == before
    assert run.settings == settings
    with pytest.raises(RuntimeError), run.trying(other):
        run.record_start()
        raise RuntimeError
    assert Run(run.folder).settings == other


@pytest.mark.parametrize("name", ["a[1]", os.fsdecode(b"a\xff")])
def test_a_run_that_was_moved_where_tensorflow_cannot_read_it_is_not_called_damaged(
    cartpole: Make, trained: Callable[[Settings], Run], tmp_path: Path, name: str
) -> None:
    run = Run(shutil.copytree(trained(cartpole()).folder, tmp_path / name))
    before = (run.folder / "run.json").read_bytes()
    for command in (["evaluate", str(run.folder), "--episodes=1"], ["resume", str(run.folder), "--steps=9000"]):
        done = CliRunner().invoke(cli, command)
        assert isinstance(done.exception, UsageError)
        assert re.match(r"TensorFlow (would take|cannot read).*; rename the folder$", str(done.exception))
    assert (run.folder / "run.json").read_bytes() == before
