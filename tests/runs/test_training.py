"""Whole trainings: refresh through the disk, determinism, records, evaluation, how they end."""

import contextlib
import functools
import io
import json
import math
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from attempts import progress_of
from commands import twin_graph
from rich.console import Console
from tables import rows
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from twin_graph_cli.display import TrainingDisplay

from twin_graph import envs, notebook, training
from twin_graph.agent.agent import Agent
from twin_graph.agent.ensemble import Ensemble
from twin_graph.agent.live_run import LiveRun
from twin_graph.analysis.compare import compare
from twin_graph.base.stopwatch import Stopwatch
from twin_graph.config.settings import EnvSettings, Settings
from twin_graph.envs import EnvSpec
from twin_graph.errors import DamagedError, DivergedError, ForeignError, TwinGraphError, TwinMismatchError, UsageError
from twin_graph.evaluation.games import Contender, Evaluation, last, play
from twin_graph.experiments import plan, results, statistics, tables
from twin_graph.records import report, verify
from twin_graph.records.told import Target, plain
from twin_graph.replay.ring import Transition
from twin_graph.snapshots import control
from twin_graph.snapshots.ledger import End, Point, Restore
from twin_graph.snapshots.lines import learning_curve
from twin_graph.snapshots.points import PointState
from twin_graph.snapshots.resumable import newest_point
from twin_graph.snapshots.run import Run, create
from twin_graph.training import readiness, requirements, trainer
from twin_graph.training.loop import StepByStep, Stepper
from twin_graph.training.progress import Progress
from twin_graph.twin.model import ModelSpec
from twin_graph.twin.twin import Compute, Twin
from twin_graph.view.records import Records

Make = Callable[..., Settings]
Train = Callable[[Settings], Run]


def refresh_in_memory(live: LiveRun, reason: str) -> None:
    """What a refresh does, without the disk: copies the online twin's variables into the target twin's."""
    target, [twin] = live.learners.first.target, live.learners.first.target.twins
    twin.load(live.learners.first.online.weights())
    twin.snapshot_id = live.store.newest.id
    target.active = [twin]
    target.since = live.tally.counters


def refresh_in_memory_if_due(live: LiveRun) -> None:
    if live.settings.refresh_schedule_of("target").due(live.learners.first.target.since, live.tally):
        refresh_in_memory(live, "due")


@pytest.mark.parametrize("combine", ["min", "mean"])
def test_an_ensemble_combines_the_values_of_its_members(cartpole: Make, trained: Train, combine: str) -> None:
    run = trained(cartpole(evaluate__episodes=0))
    store, observations = run.store(), np.random.default_rng(1).normal(size=(20, 4)).astype(np.float32)
    make = functools.partial(Twin, spec=ModelSpec.of(run.settings, EnvSpec((4,), 2)), compute=Compute(threads=1))
    with contextlib.closing(Ensemble("target", make, members=3, combine=combine)) as holder, make("one") as one:
        holder.restore(store.available[-3:], store)
        each = []
        for snapshot in store.available[-3:]:
            one.restore_snapshot(snapshot, store)
            each.append(one.q_values(observations))
        expected = getattr(np, combine)(each, axis=0)
        np.testing.assert_allclose(holder.q_values(observations), expected, rtol=1e-6)
    assert not np.allclose(np.min(each, axis=0), np.mean(each, axis=0))


def test_an_average_is_one_network_of_mean_weights(cartpole: Make, train: Train) -> None:
    settings = cartpole(target__policy="average(3)", save__every_updates=10, evaluate__episodes=0)
    run = train(settings)
    swap = [event for event in run.ledger.events() if isinstance(event, Restore)][-1]
    store, observations = run.store(), np.random.default_rng(1).normal(size=(20, 4)).astype(np.float32)
    spec = ModelSpec.of(settings, envs.make(settings.env, count=1).spec)
    make = functools.partial(Twin, spec=spec, compute=Compute(threads=1))
    with (
        contextlib.closing(Ensemble("target", make, members=3, combine="weights")) as holder,
        make("one") as one,
    ):
        holder.restore([store.find(snapshot) for snapshot in swap.snapshots], store)
        every, values = [], []
        for snapshot in swap.snapshots:
            one.restore_snapshot(store.find(snapshot), store)
            every.append(one.weights())
            values.append(one.q_values(observations))
        one.load({name: np.mean([weights[name] for weights in every], axis=0) for name in every[0]})
        assert len(every) == 3
        np.testing.assert_array_equal(holder.q_values(observations), one.q_values(observations))
        assert not np.allclose(holder.q_values(observations), np.mean(values, axis=0), atol=1e-6)
        assert holder.snapshots == swap.snapshots
        assert not holder.changed(store)


def test_one_twin_of_a_run_learns_and_all_others_are_networks_alone(tictactoe: Make, tmp_path: Path) -> None:
    settings = tictactoe(target__policy="ensemble(2, min)", opponent__policy="average(2)")
    with (
        contextlib.closing(envs.make(settings.env, count=1)) as env,
        Agent(create(tmp_path / "run", settings), env.spec) as agent,
    ):
        learner = agent.learners.first
        others = [twin for holder in learner.roles.values() for twin in [*holder.twins, holder._average] if twin]
        assert [twin.model.train_op is not None for twin in [learner.online, *others]] == [True] + [False] * 5


@pytest.mark.parametrize("preset", ["cartpole", "pong"])
def test_refreshing_through_the_disk_trains_exactly_as_a_copy_in_memory_would(
    request: pytest.FixtureRequest, train: Train, trained: Train, monkeypatch: pytest.MonkeyPatch, preset: str
) -> None:
    # Squared: the Huber loss clips the large errors of the beginning, and with them the target's influence.
    settings = request.getfixturevalue(preset)(loss="mse")
    through_disk = trained(settings)
    monkeypatch.setattr(LiveRun, "refresh", refresh_in_memory)
    monkeypatch.setattr(LiveRun, "refresh_if_due", refresh_in_memory_if_due)
    in_memory = train(settings)
    hashes = [[m.weights_sha256 for m in run.store().snapshots] for run in (through_disk, in_memory)]
    assert hashes[0] == hashes[1]
    assert len(set(hashes[0])) > 2


def test_the_time_of_a_refresh_is_that_of_those_that_were_made(cartpole: Make, tmp_path: Path) -> None:
    run = create(tmp_path / "run", cartpole())
    *_, last = progress_of(run)
    assert last.live.stopwatch.calls["refresh"] == len(run.ledger.events(Restore)) < last.updates / 10


def test_the_target_matters(cartpole: Make, trained: Train) -> None:
    """The comparison above would prove nothing if the target had no influence."""
    often, seldom = (trained(cartpole(loss="mse", target__refresh_every_updates=n)) for n in (50, 100))
    assert often.store().newest.weights_sha256 != seldom.store().newest.weights_sha256


def test_equal_seeds_give_equal_weights_and_other_seeds_others(cartpole: Make, train: Train, trained: Train) -> None:
    runs = trained(cartpole(seed=1)), train(cartpole(seed=1)), train(cartpole(seed=2))
    first, again, other = (run.store().newest.weights_sha256 for run in runs)
    assert first == again != other


def test_equal_seeds_give_equal_weights_on_the_real_emulator(pong: Make, train: Train) -> None:
    first, again = (train(pong()).store().newest for _ in range(2))
    assert first.weights_sha256 == again.weights_sha256
    assert first.counters.updates == 20


def test_snapshots_and_ledger_follow_the_schedule(cartpole: Make, trained: Train) -> None:
    run = trained(cartpole())
    manifests = run.store().snapshots
    # (1200 - 200) / 4 updates, one snapshot each 50 and one at the start.
    assert [m.counters.updates for m in manifests] == [0, 50, 100, 150, 200, 250]
    assert [m.counters.agent_steps for m in manifests] == [0, 400, 600, 800, 1000, 1200]
    events = run.ledger.events()
    # The last snapshot becomes the target when the next update needs it, which does not come.
    others = [event.event for event in events if event.event != "point"]
    assert others == ["start", *["commit", "swap"] * 5, "commit", "end"]
    # Before the first step, at the first vector steps from 500 and 1000 on, and at the end.
    assert [e.counters.agent_steps for e in events if isinstance(e, Point)] == [0, 504, 1_000, 1_200]
    swaps = [event for event in events if isinstance(event, Restore)]
    assert [(swap.snapshots, swap.first_update) for swap in swaps] == [
        ((m.id,), m.counters.updates + 1) for m in manifests[:-1]
    ]
    for manifest in manifests:
        run.store().check_files(manifest.id)


def test_saving_and_refreshing_follow_schedules_of_their_own(cartpole: Make, train: Train) -> None:
    options = {"target__refresh_every_updates": None, "target__refresh_every_episodes": 5, "save__every_steps": 160}
    run = train(cartpole(**options))
    # Each time a multiple was reached or passed, once something is learnt; and one at the end.
    steps = [snapshot.counters.agent_steps for snapshot in run.store().snapshots]
    assert steps == [0, 320, 480, 640, 800, 960, 1120, 1200]
    _, *refreshes = [event for event in run.ledger.events() if isinstance(event, Restore)]
    assert len(refreshes) > 1
    periods = [swap.counters.episodes // 5 for swap in refreshes]
    assert periods == sorted(set(periods))
    assert all(swap.reason.startswith("every 5 episodes: ") for swap in refreshes)
    for swap in refreshes:
        newest = [s for s in run.store().snapshots if s.updates < swap.first_update][-1]
        assert swap.snapshots == (newest.id,)


@pytest.mark.parametrize("chunk_steps", [0, 16])
@pytest.mark.parametrize("unit", ["updates", "steps", "episodes"])
def test_a_refresh_restores_what_was_saved_at_the_same_moment(
    cartpole: Make, train: Train, unit: str, chunk_steps: int
) -> None:
    period = {"updates": 25, "steps": 100, "episodes": 5}[unit]
    options = {"target__refresh_every_updates": None, f"target__refresh_every_{unit}": period}
    run = train(cartpole(**options, train__chunk_steps=chunk_steps))
    _, *refreshes = [event for event in run.ledger.events() if isinstance(event, Restore)]
    committed = {snapshot.id: snapshot.updates for snapshot in run.store().snapshots}
    assert len(refreshes) > 3
    assert [committed[swap.snapshots[0]] for swap in refreshes] == [swap.counters.updates for swap in refreshes]


@pytest.mark.parametrize("chunk_steps", [0, 8])
def test_an_evaluation_plays_what_was_saved_at_the_same_moment(cartpole: Make, train: Train, chunk_steps: int) -> None:
    """Also where no update is due at that moment: here they are due 2 agent steps later."""
    options = {"env__count": 1, "train__start_steps": 202, "train__chunk_steps": chunk_steps, "train__steps": 1_001}
    run = train(cartpole(**options, save__every_steps=200, evaluate__every_steps=200))
    played = [(line["agent_steps"], line["played_at"]["agent_steps"]) for line in run.evaluation_lines()]
    moments = [(committed, at) for committed, at in played if at % 200 == 0]
    assert moments == [(0, 200), (400, 400), (600, 600), (800, 800), (1_000, 1_000)]


def test_a_score_stands_where_its_snapshot_was_made_wherever_it_is_shown(
    cartpole: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Snapshots are committed every 30 updates here, some before the evaluations that play them."""
    settings = cartpole(save__every_updates=30, evaluate__every_steps=300, train__until_score=10_000)
    run = create(tmp_path / "run", settings)
    printed = Console(file=io.StringIO(), width=200)
    reached = []
    with TrainingDisplay(printed) as display, contextlib.closing(envs.make(settings.env, count=1)) as env:
        for progress in training.train(run, env):
            display.show(progress)
            if progress.happened.evaluations:
                reached.append(progress.live.matches.reached(-1.0, settings))
    lines = list(learning_curve(run))
    made = [run.store().find(line["snapshot"]).counters for line in lines]
    steps, updates = [one.agent_steps for one in made], [one.updates for one in made]
    places = list(zip(steps, updates, strict=True))
    assert steps != [line["played_at"]["agent_steps"] for line in lines]
    told = printed.file.getvalue()
    for line, at, how in zip(lines, steps, reached, strict=True):
        assert f"{at:>11,} agent steps: score of {line['snapshot']} is" in told
        assert f"with {line['snapshot']} of {at:,} agent steps, lower bound" in how

    records = Records(run)
    [curve] = records.curves()["scores"]
    assert (curve["agent_steps"], curve["updates"]) == (steps, updates)
    assert [at for at, _ in records.summary()["spark"]] == steps
    assert [(score.agent_steps, score.updates) for score in compare(run, run).scores[0]] == places
    logged = [line for line in run.metric_lines() if "evaluation/mean_return" in line]
    assert [(line["agent_steps"], line["updates"]) for line in logged] == places
    drawn: list[list[float]] = []
    monkeypatch.setattr(notebook, "_curve", lambda points: drawn.append([at for at, _ in points]) or "")
    notebook.find(run.folder)._repr_html_()
    assert drawn == [steps]

    planned = plan.PlannedRun("run", "", "CartPole-v1", 1, (), settings)
    result = results._result(results.State(planned, "done", 1_200), run)
    assert [result.position(moment) for moment in result.scores] == steps
    rows = list(tables._of_evaluations(result))
    assert [(row["agent_steps"], row["updates"]) for row in rows] == places
    assert [row["evaluated_at_agent_steps"] for row in rows] == [300, 600, 900, 1_200]
    assert result.reached(min(result.scores.values())) in steps
    band = statistics.curve([[result.scores]], statistics.mean_by_step)
    placed = statistics.placed(band, [result])
    assert placed is not None
    assert placed.at == steps


def test_check_mode_sees_a_target_that_changes_between_refreshes(
    cartpole: Make, train: Train, monkeypatch: pytest.MonkeyPatch
) -> None:
    train(cartpole(twin__check=True))
    learn = Agent.learn

    def tampering_learn(agent: Agent) -> list[float]:
        losses = learn(agent)
        if agent.updates == 70:
            [twin] = agent.learners.first.target.twins
            twin.load({name: value + 1e-3 for name, value in twin.weights().items()})
        return losses

    monkeypatch.setattr(Agent, "learn", tampering_learn)
    with pytest.raises(TwinMismatchError, match=r"the target twin of 000001-\w+ holds other weights, by update 71"):
        train(cartpole(twin__check=True))


def test_a_restore_of_other_weights_than_the_snapshots_ends_the_run(
    cartpole: Make, train: Train, monkeypatch: pytest.MonkeyPatch
) -> None:
    restore = Twin.restore

    def stale_restore(twin: Twin, prefix: Path) -> None:
        restore(twin, next(prefix.parent.parent.glob("000000-*")) / prefix.name)

    monkeypatch.setattr(Twin, "restore", stale_restore)
    with pytest.raises(DamagedError, match=r"000001-\w+ holds other weights than those committed"):
        train(cartpole())


def test_a_target_that_could_not_be_restored_stays_what_it_was(cartpole: Make, trained: Train) -> None:
    run = trained(cartpole())
    store = run.store()
    first, second, third = store.available[-3:]
    spec = ModelSpec.of(run.settings, EnvSpec((4,), 2))
    make = functools.partial(Twin, spec=spec, compute=Compute(threads=1))
    with contextlib.closing(Ensemble("target", make, members=2, combine="mean")) as target:
        target.restore([first, second], store)
        assert target.snapshots == (first.id, second.id)
        for path in store.folder.glob(f"{third.id}/model.*"):
            shutil.copy(next(store.folder.glob(f"{first.id}/{path.name}")), path)
        with pytest.raises(DamagedError):
            target.restore([second, third], store)
        assert target.snapshots == (first.id, second.id)
        assert target.changed(store) == ""


@pytest.mark.parametrize("into", ["the target", "an evaluation"])
def test_another_valid_checkpoint_in_a_snapshots_folder_is_never_used(
    cartpole: Make, tmp_path: Path, into: str
) -> None:
    """Files of another snapshot, whole by themselves: TensorFlow's own checksums cannot see the exchange."""
    by_policy = {"target__policy": "lag(60)"} if into == "the target" else {"target__refresh_every_updates": 1_000}
    run = create(tmp_path / "run", cartpole(save__every_updates=50, **by_policy))
    with (
        contextlib.closing(envs.make(run.settings.env, count=8)) as env,
        pytest.raises(DamagedError, match=r"holds other weights than those committed") as raised,
    ):
        for _ in trainer.train(run, env):
            newest = run.store().newest
            if newest.number:
                for path in (run.folder / "snapshots").glob("000000-*/model.*"):
                    shutil.copy(path, run.folder / "snapshots" / newest.id / path.name)
    assert raised.value.exit_code == 3
    last = run.ledger.events()[-1]
    assert isinstance(last, End)
    assert (last.state, last.reason) == ("failed", str(raised.value))
    assert not list(run.evaluation_lines()) or into == "the target"


def test_a_request_that_cannot_be_read_is_left_out_and_ends_nothing(cartpole: Make, tmp_path: Path) -> None:
    run = create(tmp_path / "run", cartpole())
    with contextlib.closing(envs.make(run.settings.env, count=8)) as env:
        for progress in trainer.train(run, env):
            path = run.control / "request-1.json"
            if progress.updates == 100:
                path.write_text("x")
                asked = control.ask(run.control, "swap", run.store().newest.id)
    assert run.state() == "finished"
    [notice] = [notice for notice in progress.notices if "request-1" in notice]
    assert notice.startswith(f"left out: {path} is damaged")
    answer = control.read(run.control, asked.id).answer
    assert answer
    assert answer.done
    assert report.status(run).requests == []
    assert [line for line in verify.verify(run).damage if "request-1.json" in line]


def test_a_replay_of_another_number_of_environments_is_not_called_damaged(cartpole: Make, tmp_path: Path) -> None:
    run = create(tmp_path / "run", cartpole())
    zeros, no = np.zeros((1, 4), np.float32), np.zeros(1, bool)
    with Agent(run, EnvSpec((4,), 2)) as agent:
        for _ in range(20):
            agent.observe(Transition(zeros, np.zeros(1, int), zeros[:, 0], no, no, zeros))
        agent.commit_point()
    with (
        contextlib.closing(envs.make(run.settings.env, count=8)) as env,
        pytest.raises(UsageError, match="trained with 1 environment, and its agent now has 8: resume it by the loop"),
    ):
        next(trainer.train(run, env, newest_point(run).point))


@pytest.mark.parametrize(("field", "what"), [("r_t", "reward"), ("s_t", "observation")])
def test_nan_in_a_loop_of_ones_own_is_no_matter_of_the_learning_rate(
    cartpole: Make, tmp_path: Path, field: str, what: str
) -> None:
    zeros = np.zeros((2, 4), np.float32)
    no = np.zeros(2, bool)
    step = Transition(zeros, np.zeros(2, int), zeros[:, 0].copy(), no, no, zeros.copy())
    getattr(step, field)[1] = np.nan
    run = create(tmp_path / "run", cartpole())
    with (
        Agent(run, EnvSpec((4,), 2), environments=2) as agent,
        pytest.raises(ForeignError, match=f"CartPole-v1, environment 1: the {what} is nan, and must be finite"),
    ):
        agent.observe(step)
    assert agent.agent_steps == 0


@pytest.mark.parametrize("wrong", [math.nan, math.inf])
def test_a_loop_of_ones_own_makes_no_point_that_could_not_be_read(cartpole: Make, tmp_path: Path, wrong: float) -> None:
    run = create(tmp_path / "run", cartpole())
    with Agent(run, EnvSpec((4,), 2)) as agent:
        agent.commit_point([np.float32(1.5)])
        ledger = run.ledger.path.read_bytes()
        with pytest.raises(UsageError, match="returns of training episodes must be finite, not"):
            agent.commit_point([1.0, wrong])
        assert run.ledger.path.read_bytes() == ledger
    assert (newest_point(run).point.number, newest_point(run).damage) == (0, [])


def test_episodes_that_ended_are_told_once(cartpole: Make, tmp_path: Path) -> None:
    """Though progress is also yielded while evaluations are played."""
    run = create(tmp_path / "run", cartpole(train__chunk_steps=64))
    told, played = [], []
    with contextlib.closing(envs.make(run.settings.env, count=1)) as env:
        for progress in trainer.train(run, env, on_episode=lambda score, _: played.append(score)):
            told += progress.happened.scores
    assert told == played
    assert len(told) == progress.counters.episodes


def test_a_loop_of_ones_own_may_log_numbers_of_numpy(cartpole: Make, tmp_path: Path) -> None:
    run = create(tmp_path / "run", cartpole())
    with Agent(run, EnvSpec((4,), 2)) as agent:
        agent.log({"return": np.float32(1.5), "count": np.int64(3), "won": np.bool_(True), "words": "as they are"})
    *_, line = run.metric_lines()
    assert [line[name] for name in ("return", "count", "won", "words")] == [1.5, 3, True, "as they are"]


def test_a_loss_that_is_no_number_stops_the_run_and_names_update_and_snapshot(cartpole: Make, tmp_path: Path) -> None:
    """A reward of 1e30 squares to infinity in single precision."""
    run = create(tmp_path / "run", cartpole(loss="mse", train__batch_size=200))
    env = envs.make(run.settings.env, count=8)
    step = env.step

    def step_with_a_huge_reward(actions: np.ndarray) -> envs.VectorStep:
        answer = step(actions)
        return answer._replace(r_t=np.full_like(answer.r_t, 1e30)) if agent_steps[0] > 500 else answer

    agent_steps = [0]
    env.step = step_with_a_huge_reward  # type: ignore[method-assign]
    with pytest.raises(DivergedError, match=r"the loss is (inf|nan) at update 8\d; the last good snapshot is 000001-"):
        for progress in trainer.train(run, env):
            agent_steps[0] = progress.agent_steps
    env.close()
    assert run.state() == "failed"
    end = run.ledger.events()[-1]
    assert isinstance(end, End)
    assert "the loss is" in end.reason


def test_a_full_disk_stops_the_run_and_loses_no_snapshot(
    cartpole: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = create(tmp_path / "run", cartpole())
    save = Twin.save

    def save_until_full(twin: Twin, prefix: Path, **options: bool) -> None:
        if "000003-" in str(prefix):
            raise OSError(28, "No space left on device")
        save(twin, prefix, **options)

    monkeypatch.setattr(Twin, "save", save_until_full)
    env = envs.make(run.settings.env, count=8)
    with pytest.raises(OSError, match="No space left"):
        for _ in trainer.train(run, env):
            pass
    env.close()
    assert run.state() == "failed"
    assert [m.number for m in run.store().snapshots] == [0, 1, 2]


def test_an_agent_that_cannot_begin_is_recorded_as_failed(
    cartpole: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    run = create(tmp_path / "run", cartpole())
    with monkeypatch.context() as patched, pytest.raises(OSError, match="No space left"):
        patched.setattr(Twin, "save", full)
        Agent(run, EnvSpec((4,), 2))
    assert run.state() == "failed"
    assert not run.store().snapshots
    Agent(run, EnvSpec((4,), 2)).close()
    assert run.state() == "finished"


def test_metrics_and_tensorboard_hold_the_same_numbers_in_one_event_file(cartpole: Make, trained: Train) -> None:
    run = trained(cartpole())
    [event_file] = run.events.iterdir()
    events = EventAccumulator(str(event_file))
    events.Reload()
    lines = list(run.metric_lines())
    scores = {line["agent_steps"]: line["evaluation/mean_return"] for line in lines if "loss" not in line}
    assert {event.step: event.value for event in events.Scalars("evaluation/mean_return")} == pytest.approx(scores)
    assert list(scores) == [600, 1200]
    assert [line["agent_steps"] for line in lines if "loss" in line] == [200, 400, 600, 800, 1000, 1200]
    lines = [line for line in lines if "loss" in line]
    for tag in ("loss", "q_mean", "epsilon", "updates", "target_served_updates", "agent_steps_per_second"):
        shown = {event.step: event.value for event in events.Scalars(tag)}
        written = {line["agent_steps"]: math.nan if line[tag] is None else line[tag] for line in lines}
        assert shown == pytest.approx(written, nan_ok=True)


def test_every_phase_is_timed_and_they_add_up(cartpole: Make, train: Train) -> None:
    by_chunks, classic = (
        [
            {key: line[key] for key in line if key.startswith("time_share/")}
            for line in train(cartpole(train__chunk_steps=chunk)).metric_lines()
            if "loss" in line
        ][1:]
        for chunk in (16, 0)
    )
    assert {key.split("/")[1] for key in classic[0]} == {
        "act",
        "environment",
        "sample",
        "target",
        "train",
        "wait",
        "save",
        "refresh",
        "telemetry",
        "evaluate",
        "resume point",
        "prune",
    }
    for shares in (by_chunks, classic):
        never = {key for key in shares[0] if max(line[key] for line in shares) == 0}
        assert never == (set() if shares is by_chunks else {"time_share/wait"})
    sums = [sum(line.values()) for line in classic]
    assert max(sums) <= 1
    assert np.mean(sums) > 0.6  # of all: of a line's few milliseconds other processes may take half


def test_scheduled_evaluations_are_recorded_by_snapshot(cartpole: Make, trained: Train) -> None:
    run = trained(cartpole())
    by_number = {m.id: m for m in run.store().snapshots}
    evaluations = list(run.evaluation_lines())
    assert [by_number[e["snapshot"]].counters.agent_steps for e in evaluations] == [600, 1200]
    for evaluation in evaluations:
        assert evaluation["scheduled"] is True
        assert len(evaluation["returns"]) == evaluation["episodes"] == 2
        assert evaluation["mean"] == np.mean(evaluation["returns"])
        assert evaluation["protocol"]["epsilon"] == 0
    assert evaluations[0]["seeds"] != evaluations[1]["seeds"]


def test_what_is_due_is_done_also_where_steps_are_made_meanwhile(
    cartpole: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with workers, who go on while the chief writes records and plays evaluations."""

    class Followed(Stepper):
        def begin(self) -> None:
            pass

        def advance(self) -> list[float]:
            agent.tally.agent_steps += 40
            agent.live.commit_if_due()
            return []

    metrics, commit_point = Progress.metrics, LiveRun.commit_point

    def slow_metrics(progress: Progress) -> dict[str, Any]:
        agent.tally.agent_steps += 48
        return metrics(progress)

    def counted_point(live: LiveRun, *arguments: Any) -> PointState:
        made.append(agent.agent_steps)
        return commit_point(live, *arguments)

    made: list[int] = []
    monkeypatch.setattr(Progress, "metrics", slow_metrics)
    monkeypatch.setattr(LiveRun, "commit_point", counted_point)
    settings = cartpole(train__steps=2_000, log__every_steps=200, evaluate__every_steps=200, resume__every_steps=200)
    run = create(tmp_path / "run", settings)
    with Agent(run, EnvSpec((4,), 2), environments=8) as agent:
        for _ in trainer.run_to_its_end(Progress(agent.live, threading.Event()), Followed()):
            pass
    due = list(range(11))
    assert [at // 200 for at in made] == due
    assert len(list(run.evaluation_lines())) == len(due[1:])


def test_a_rival_that_is_damaged_is_told_with_a_policy_that_needs_none(
    cartpole: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = create(tmp_path / "run", cartpole())
    monkeypatch.setattr(LiveRun, "rivals", lambda live, _: {"target": live.store.snapshots[0]})
    env = envs.make(run.settings.env, count=run.settings.env.count)
    with (
        contextlib.closing(env),
        pytest.raises(DamagedError, match=r"files, or resume with --set target\.policy=latest"),
    ):
        for progress in trainer.train(run, env):
            if progress.agent_steps > 300:
                [file] = run.store_folder.glob("000000-*/model.data*")
                file.write_bytes(b"")


def test_rivals_play_the_same_games_though_workers_go_on_meanwhile(cartpole: Make, tmp_path: Path) -> None:
    run = create(tmp_path / "run", cartpole(target__policy="best", evaluate__every_steps=200, evaluate__episodes=10))
    with contextlib.closing(envs.make(run.settings.env, count=run.settings.env.count)) as env:
        for progress in trainer.train(run, env):
            if progress.note:  # an evaluation is being played: a worker would make steps now
                progress.live.tally.agent_steps += env.count
    seeds: dict[str, list[list[int]]] = {}
    for line in run.evaluation_lines():
        seeds.setdefault(line["challenger"], []).append(line["seeds"])
    assert any(len(played) > 1 for played in seeds.values())
    for first, *others in seeds.values():
        assert all(other == first for other in others)


def test_what_is_evaluated_is_the_snapshot(cartpole: Make, train: Train) -> None:
    run = train(cartpole(evaluate__episodes=5))
    store = run.store()
    spec = ModelSpec.of(run.settings, EnvSpec((4,), 2))
    returns = []
    for snapshot in (store.resolve("@update:100", dict), store.newest, store.snapshots[0]):
        with Twin("again", spec, compute=Compute(threads=1)) as twin:
            twin.restore(store.prefix(snapshot.id))
            played = last(
                play(Contender(twin.q_values), run.settings, episodes=5, at=(1, snapshot.counters.agent_steps))
            )
        returns.append(played.returns)
    assert [evaluation["returns"] for evaluation in run.evaluation_lines()] == returns[:2]
    assert returns[0] != returns[2]


def test_the_run_loop_passes_on_what_each_value_is_for() -> None:
    """Every value that an environment answers is another number, so that none can stand for another."""

    class Numbered:
        count = 2

        def __init__(self) -> None:
            self.t = 0

        def reset(self, seeds: np.ndarray) -> np.ndarray:
            return np.full((2, 1), 1000.0)

        def step(self, actions: np.ndarray) -> envs.VectorStep:
            self.t += 1
            last = np.array([self.t == 2, False])
            numbers = [np.full(2, kind * 100.0 + self.t) for kind in (1, 2, 3)]
            s_t, r_t, score = numbers
            s_next = np.where(last, 1000.0 + self.t, s_t)
            return envs.VectorStep(s_t[:, None], r_t, np.array([False, self.t == 1]), last, s_next[:, None], score)

    class Recorder:
        live = SimpleNamespace(stopwatch=Stopwatch())

        def environment_seeds(self) -> None:
            pass

        def __init__(self) -> None:
            self.seen: list[Transition] = []
            self.order: list[str] = []

        def act(self, s: np.ndarray, *, frozen: bool) -> np.ndarray:
            assert not frozen
            self.order.append("act")
            return s[:, 0].astype(int)

        def observe_checked(self, transition: Transition) -> None:
            self.order.append("observe")
            self.seen.append(transition)

        def learn(self) -> None:
            self.order.append("learn")

    recorder = Recorder()
    stepper = StepByStep(recorder, Numbered())  # type: ignore[arg-type]
    stepper.begin()
    assert [stepper.advance() for _ in range(3)] == [[], [301 + 302], []]
    assert recorder.order == ["act", "observe", "learn"] * 3
    first, second, third = recorder.seen
    for transition, s_tm1, r_t, s_t in ((first, 1000, 201, 101), (second, 101, 202, 102)):
        assert transition.s_tm1.ravel().tolist() == [s_tm1, s_tm1]
        assert transition.a_tm1.tolist() == [s_tm1, s_tm1]
        assert transition.r_t.tolist() == [r_t, r_t]
        assert transition.s_t.ravel().tolist() == [s_t, s_t]
    assert first.terminal_t.tolist() == [False, True]
    assert second.last_t.tolist() == [True, False]
    assert third.s_tm1.ravel().tolist() == [1002, 102]


def test_frames_are_agent_steps_times_the_frame_skip(pong: Make, trained: Train) -> None:
    counters = trained(pong()).store().newest.counters
    assert (counters.agent_steps, counters.frames) == (160, 640)


def test_weights_that_are_not_finite_are_never_committed(cartpole: Make, tmp_path: Path) -> None:
    with Agent(create(tmp_path / "run", cartpole()), EnvSpec((4,), 2)) as agent:
        online = agent.learners.first.online
        variable = online.model.trainables[0]
        online.load_all({variable.op.name: np.full(variable.shape.as_list(), np.nan, np.float32)})
        agent.tally.updates = 50
        agent.live.held_out.observations = np.zeros((3, 4), np.float32)
        for commit in (agent.commit, agent.commit_point):
            with pytest.raises(DivergedError, match=r"not finite after update 50; the last good snapshot is 000000-"):
                commit()
        assert len(agent.store.snapshots) == 1
        assert agent.live.run.points().newest() is None


def test_a_moment_that_is_not_finite_is_in_no_resume_point(cartpole: Make, tmp_path: Path) -> None:
    """Weights may still be sound: the next update makes them NaN, and so would every resumed run."""
    with Agent(create(tmp_path / "run", cartpole()), EnvSpec((4,), 2)) as agent:
        online = agent.learners.first.online
        name = next(name for name in online.all_variables() if name.endswith("/Adam"))
        online.load_all({name: np.full_like(online.all_variables()[name], np.inf)})
        with pytest.raises(DivergedError, match=f"{name} is not finite after update 0"):
            agent.commit_point()
        assert agent.live.run.points().newest() is None


@pytest.mark.parametrize(("environment", "epsilon"), [("ALE/Pong-v5", 0.001), ("CartPole-v1", 0.0)])
def test_the_epsilon_of_evaluations_follows_the_environment_unless_it_is_set(
    cartpole: Make, environment: str, epsilon: float
) -> None:
    for settings, expected in (
        (cartpole(env__id=environment), epsilon),
        (cartpole(env__id=environment, evaluate__epsilon=0.05), 0.05),
    ):
        first = next(play(Contender(lambda s: np.zeros((len(s), 2))), settings, episodes=1, at=(0, 0)))
        assert first.protocol["epsilon"] == expected


def test_evaluating_does_not_change_the_training(cartpole: Make, trained: Train) -> None:
    hashes = {trained(cartpole(evaluate__episodes=n)).store().newest.weights_sha256 for n in (0, 3)}
    assert len(hashes) == 1


class Scripted:
    """Stands for a Q function: pushes the cart toward the side to which the pole leans."""

    def __call__(self, observations: np.ndarray) -> np.ndarray:
        return np.stack([-observations[:, 2] - observations[:, 3], observations[:, 2] + observations[:, 3]], axis=1)


@pytest.mark.parametrize("episodes", [1, 7, 23])
def test_an_evaluation_plays_as_many_games_as_asked_fixed_beforehand(cartpole: Make, episodes: int) -> None:
    told = [len(part.returns) for part in play(Contender(Scripted()), cartpole(), episodes=episodes, at=(5, 0))]
    assert told == sorted(told)
    assert (told[0], told[-1]) == (0, episodes)
    evaluation = last(play(Contender(Scripted()), cartpole(), episodes=episodes, at=(5, 0)))
    assert len(evaluation.returns) == episodes
    assert all(score > 100 for score in evaluation.returns)
    again = last(play(Contender(Scripted()), cartpole(), episodes=episodes, at=(5, 0)))
    assert again.returns == evaluation.returns


def test_long_games_count_as_often_as_short_ones(cartpole: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """Environment 0 plays games of 1 step, environment 1 games of 9: five each, whichever ends first."""

    class Uneven(envs.VectorEnv):
        count, spec, evaluation_epsilon, cut_after, protocol = 2, envs.EnvSpec((4,), 2), 0.0, None, {}
        age = np.zeros(2, int)

        def reset(self, seeds: np.ndarray) -> np.ndarray:
            return np.zeros((2, 4), np.float32)

        def step(self, actions: np.ndarray) -> envs.VectorStep:
            self.age = self.age + 1
            last = self.age == [1, 9]
            self.age[last] = 0
            zeros, ones = np.zeros((2, 4), np.float32), np.ones(2, np.float32)
            return envs.VectorStep(zeros, ones, last, last, zeros, ones)

        def close(self) -> None: ...

    monkeypatch.setattr(envs, "make", lambda *_, **__: Uneven())
    monkeypatch.setattr("twin_graph.evaluation.games.PARALLEL_GAMES", 2)
    evaluation = last(play(Contender(Scripted()), cartpole(), episodes=10, at=(0, 0)))
    assert evaluation.returns == [1.0, 9.0] * 5


def test_the_interval_of_a_mean_covers_it_as_often_as_it_says() -> None:
    """95% of the intervals of 30 normal scores should hold the true mean; the percentile bootstrap gets near."""
    random = np.random.default_rng(0)
    covered = 0
    for _ in range(200):
        low, high = Evaluation(list(random.normal(10, 5, size=30)), [], {}).interval
        covered += low <= 10 <= high
    assert 0.89 < covered / 200 < 0.99


def test_one_game_has_a_score_and_no_interval(cartpole: Make, train: Train) -> None:
    """All resamples of one score are alike: an interval of no width would say that there is no doubt."""
    one = Evaluation([54.5], [], {})
    assert one.interval is one.summary()["interval_95"] is None
    assert one.words() == "54.50 (1 episode)"
    run = train(cartpole(train__steps=400, evaluate__episodes=1))
    logged = [line for line in run.metric_lines() if "evaluation/mean_return" in line]
    assert logged
    assert not [name for line in logged for name in line if "interval" in name]


def test_the_needs_of_a_training_are_measured_and_checked(pong: Make, tmp_path: Path) -> None:
    settings = pong(replay__capacity_steps=1_000_000)
    env = envs.make(settings.env, count=1)
    needed = requirements.measure(settings, env, tmp_path / "not" / "there" / "yet")
    by_workers = [
        requirements.measure(
            pong(workers__count=16, replay__capacity_steps=1_000_000), env, tmp_path, elsewhere=elsewhere
        )
        for elsewhere in (False, True)
    ]
    env.close()
    # 84 x 84 bytes a frame, plus action, reward, two flags and age.
    replay = 1_000_000 * (84 * 84 + 18)
    assert by_workers[0].memory > replay + 17 * requirements.PROCESS_BYTES
    assert by_workers[1].memory < 2 * requirements.PROCESS_BYTES
    requirements.check_enough(needed)
    said = r"memory: .* 8\.4 GB, 7\.1 GB of it for the replay, and 8\.0 GB are free; lower replay\.capacity_steps"
    with pytest.raises(TwinGraphError, match=said):
        requirements.check_enough(needed._replace(memory_free=8_000_000_000))
    with pytest.raises(
        TwinGraphError, match=r"not enough disk space: .* of it for resume points, .*; lower resume\.keep, or choose"
    ):
        requirements.check_enough(needed._replace(disk_free=1_000))


def test_a_run_that_has_begun_is_advised_what_it_can_still_do(
    pong: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = pong(
        replay__capacity_steps=1_000_000,
        train__steps=1_000_000,
        target__refresh_every_updates=10_000,
        save__keep_every=0,
        resume__every_steps=100_000,
    )
    begun = create(tmp_path / "begun", settings).folder

    def told(folder: Path) -> str:
        with pytest.raises(TwinGraphError) as error, readiness.ready(settings, folder):
            pass
        return str(error.value)

    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=10**9))
    assert told(tmp_path / "new").endswith("; lower replay.capacity_steps, or choose another folder for the run")
    assert told(begun).endswith("; lower save.keep_last, or make room")
    monkeypatch.setattr("twin_graph.base.machine.memory_free", lambda: 7 * 10**9)
    assert told(tmp_path / "new").endswith("; lower replay.capacity_steps")
    assert told(begun).endswith("; close other programs")


def test_a_large_network_and_a_large_minibatch_need_what_was_measured(cartpole: Make, pong: Make) -> None:
    """3.4 GB, resident after an update, with hidden layers of 8,192 units; 0.7 GB more by 2,048 images at a time."""
    with contextlib.closing(envs.make(EnvSettings(id="CartPole-v1"), count=1)) as env:
        needed = requirements.measure(cartpole(model__hidden_units=[8192, 8192]), env, Path())
    assert 3.4e9 < needed.memory < 2 * 3.4e9
    with pytest.raises(TwinGraphError, match=r"GB of it for the network, and 3\.0 GB .*; choose a smaller"):
        requirements.check_enough(needed._replace(memory_free=3_000_000_000))
    kinds = [(workers, size) for workers in (0, 4) for size in (32, 2_048)]
    with contextlib.closing(envs.make(pong().env, count=1)) as env:
        alone, alone_large, small, large = (
            requirements.measure(
                pong(workers__count=workers, train__batch_size=size, train__chunk_steps=0), env, Path()
            ).memory
            for workers, size in kinds
        )
    assert 0.7e9 < alone_large - alone < 2 * 0.7e9
    assert large - small == 4 * (alone_large - alone)


def test_memory_of_all_processes_is_told_as_such(pong: Make) -> None:
    settings = pong(workers__count=8, train__chunk_steps=0)
    with contextlib.closing(envs.make(settings.env, count=1)) as env:
        words = requirements.measure(settings, env, Path()).words()
    assert f"{10 * requirements.PROCESS_BYTES / 1e9:.1f} GB of it for TensorFlow in 10 processes; disk" in words


def test_what_alone_would_be_enough_is_advised(pong: Make) -> None:
    with contextlib.closing(envs.make(pong().env, count=1)) as env:
        needed = requirements.measure(pong(replay__capacity_steps=100_000), env, Path())
    for free, advice in (
        (needed.memory - 10**8, "close other programs, or lower replay.capacity_steps"),
        (1, "close other"),
    ):
        with pytest.raises(TwinGraphError, match=f"of it for TensorFlow, .* are free; {advice}"):
            requirements.check_enough(needed._replace(memory_free=free))


@pytest.mark.parametrize(("settings", "message"), rows("training", "disk_space", "settings", "message"))
def test_what_takes_most_room_is_named(cartpole: Make, settings: dict[str, Any], message: str) -> None:
    chosen = cartpole(train__steps=1_000_000, model__hidden_units=[512, 512], **settings)
    with contextlib.closing(envs.make(chosen.env, count=1)) as env:
        needed = requirements.measure(chosen, env, Path())
    with pytest.raises(TwinGraphError, match=f"not enough disk space: .* {message}"):
        requirements.check_enough(needed._replace(disk_free=1_000))


def test_the_disk_that_was_asked_for_is_enough_and_not_far_too_much(cartpole: Make, trained: Train) -> None:
    run = trained(cartpole(evaluate__episodes=0))
    env = envs.make(run.settings.env, count=1)
    asked = requirements.measure(run.settings, env, run.folder.parent / "new").disk
    env.close()
    written = sum(path.stat().st_size for path in run.folder.rglob("*") if path.is_file())
    assert written < asked < 3 * written


def test_status_after_a_training(cartpole: Make, trained: Train) -> None:
    run = trained(cartpole())
    *_, target, newest = run.store().snapshots
    summary = report.status(run)
    assert summary.state == "finished"
    assert (summary.agent_steps, summary.updates, summary.frames) == (1200, 250, 1200)
    assert summary.targets == [Target(target.id, learner="online", policy="latest", served_updates=50, held=False)]
    assert summary.snapshots == 6
    assert summary.weights_sha256 == newest.weights_sha256
    assert summary.scores.latest.snapshot == newest.id
    json.dumps(plain(summary), allow_nan=False)


def test_an_agent_in_a_loop_of_ones_own_learns_what_pays(cartpole: Make, tmp_path: Path) -> None:
    """A bandit: action 1 pays 1, action 0 nothing, and every step ends the episode."""
    settings = cartpole(env__count=1, train__start_steps=100, train__learning_rate=0.01, train__n_step=1)
    state = np.ones((1, 4), np.float32)
    with Agent(create(tmp_path / "run", settings), EnvSpec((4,), 2)) as agent:
        losses: list[float] = []
        end = np.array([True])
        for _ in range(1_000):
            a_tm1 = agent.act(state)
            agent.observe(Transition(state, a_tm1, a_tm1.astype(np.float32), end, end, state))
            losses += agent.learn()
        assert agent.updates == len(losses) == (1_000 - 100) // 4
        assert agent.tally.episodes == 1_000
        assert agent.q_values(state)[0] == pytest.approx([0, 1], abs=0.1)


@pytest.mark.parametrize(
    ("changed", "error", "message"),
    [
        (
            {"s_tm1": np.zeros((1, 4), np.float32)},
            ValueError,
            r"s_tm1 is float32 \[1, 4\] and must be float32 \[2, 4\]",
        ),
        ({"a_tm1": np.array([0.0, 1.9])}, ValueError, r"a_tm1 is float64 \[2\] and must be int64 \[2\]"),
        ({"a_tm1": np.array([0, 2])}, ValueError, r"a_tm1 is \[0, 2\], and actions are 0 to 1"),
        ({"a_tm1": np.array([-1, 1])}, ValueError, r"a_tm1 is \[-1, 1\], and actions are 0 to 1"),
        ({"last_t": np.array([0, 1])}, ValueError, r"last_t is int64 \[2\] and must be bool \[2\]"),
        ({"s_tm1": np.full((2, 4), np.nan, np.float32)}, ForeignError, "the observation is nan"),
    ],
    ids=["one for all", "a fraction", "no action", "a negative one", "no flags", "NaN after a reset"],
)
def test_what_does_not_fit_is_not_converted_in_silence(
    cartpole: Make, tmp_path: Path, changed: dict[str, Any], error: type[Exception], message: str
) -> None:
    no, seen = np.zeros(2, np.bool_), np.zeros((2, 4), np.float32)
    fits = Transition(seen, np.array([0, 1]), np.ones(2, np.float32), no, no, seen)
    with Agent(create(tmp_path / "run", cartpole()), EnvSpec((4,), 2), environments=2) as agent:
        with pytest.raises(error, match=message):
            agent.observe(fits._replace(**changed))
        assert agent.agent_steps == 0
        agent.observe(fits)
        assert agent.agent_steps == 2
        agent.commit_point()  # new episodes begin
        with pytest.raises(error, match=message):
            agent.observe(fits._replace(**changed))
        agent.observe(Transition(*(array.tolist() for array in fits)))
        assert agent.agent_steps == 4


@pytest.mark.parametrize("dtype", ["bool", "uint16"])
def test_images_of_another_type_are_not_learnt(cartpole: Make, tmp_path: Path, dtype: str) -> None:
    no, seen = np.zeros(1, np.bool_), np.ones((1, 10, 10, 4), dtype)
    step = Transition(seen, np.array([0]), np.ones(1, np.float32), no, no, seen)
    run = create(tmp_path / "run", cartpole(network="minatar"))
    with Agent(run, EnvSpec((10, 10, 4), 2, "uint8"), environments=1) as agent:
        with pytest.raises(ValueError, match=rf"s_tm1 is {dtype} \[1, 10, 10, 4\] and must be uint8"):
            agent.observe(step)
        images = seen.astype(np.uint8)
        agent.observe(step._replace(s_tm1=images, s_t=images))


def test_images_of_fractions_are_not_taken_for_bytes(pong: Make) -> None:
    with Twin("images", ModelSpec.of(pong(), EnvSpec((4, 84, 84), 6, "uint8")), seed=1) as twin:
        for given in (np.float32, np.bool_, np.uint16):  # a truth value is no white, and 256 would be black
            with pytest.raises(ValueError, match=rf"{np.dtype(given)} was fed to s_tm1:0, which takes uint8"):
                twin.q_values(np.ones((1, 4, 84, 84), given))
        assert twin.q_values(np.full((1, 4, 84, 84), 127, np.uint8)).shape == (1, 6)


def test_an_agent_does_not_begin_anew_in_a_run_that_was_trained(cartpole: Make, trained: Train) -> None:
    run = trained(cartpole())
    with pytest.raises(UsageError, match="was trained already; `twin-graph resume` continues it"):
        Agent(run, EnvSpec((4,), 2))
    for folder in run.points().folders():
        shutil.rmtree(folder)
    with pytest.raises(UsageError, match="was trained already; it has no resume point, so train a new run"):
        Agent(run, EnvSpec((4,), 2))


def test_a_training_asked_to_stop_while_it_evaluates_stops_and_records_no_half_evaluation(
    cartpole: Make, tmp_path: Path
) -> None:
    run = create(tmp_path / "run", cartpole(evaluate__episodes=50))
    env = envs.make(run.settings.env, count=8)
    for progress in trainer.train(run, env):
        if progress.note:
            progress.stop.set()
    env.close()
    assert progress.agent_steps == 600
    assert list(run.evaluation_lines()) == []
    assert run.state() == "stopped"


def test_a_run_stopped_in_its_last_evaluation_plays_it_when_it_is_resumed(
    cartpole: Make, trained: Train, tmp_path: Path
) -> None:
    settings = cartpole()
    whole, run = trained(settings), create(tmp_path / "run", settings)
    env = envs.make(settings.env, count=settings.env.count)
    for progress in trainer.train(run, env):
        if progress.note and progress.agent_steps == progress.total_steps:
            progress.stop.set()
    env.close()
    assert run.state() == "stopped"
    assert [line["played_at"]["agent_steps"] for line in run.evaluation_lines()] == [600]
    done = twin_graph("resume", "run", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert Run(run.folder).state() == "finished"
    played = [[line["returns"] for line in of.evaluation_lines()] for of in (Run(run.folder), whole)]
    assert played[0] == played[1]
    assert twin_graph("evaluate", "run", "--episodes", "1", cwd=tmp_path).returncode == 0
    assert list(Run(run.folder).evaluation_lines())[-1]["attempt"] == 2
    again = twin_graph("resume", "run", cwd=tmp_path)
    assert (again.returncode, "is complete at 1,200 agent steps; give more with --steps" in again.stderr) == (2, True)


@pytest.mark.parametrize("warmup", [0, 300])
def test_epsilon_decays_linearly_by_agent_steps(cartpole: Make, tmp_path: Path, warmup: int) -> None:
    settings = cartpole(act__epsilon_warmup_steps=warmup, act__epsilon_decay_steps=1000, act__epsilon_end=0.1)
    with Agent(create(tmp_path / "run", settings), EnvSpec((4,), 2)) as agent:
        for steps, epsilon in ((-warmup, 1.0), (0, 1.0), (500, 0.55), (1000, 0.1), (5000, 0.1)):
            agent.tally.agent_steps = warmup + steps
            assert agent.epsilon == pytest.approx(epsilon)


def test_random_actions_are_as_frequent_as_epsilon_and_all_actions_occur(pong: Make, tmp_path: Path) -> None:
    settings = pong(act__epsilon_start=0.3, act__epsilon_end=0.3, network="mlp", **{"model__hidden_units": [4]})
    with Agent(create(tmp_path / "run", settings), EnvSpec((4,), 6), environments=2) as agent:
        observations = np.ones((2, 4), np.float32)
        greedy = agent.q_values(observations).argmax(axis=1)[0]
        actions = []
        for agent.tally.agent_steps in range(0, 4000, 2):
            actions += list(agent.act(observations))
    counts = np.bincount(actions, minlength=6) / len(actions)
    assert counts[greedy] == pytest.approx(0.7 + 0.05, abs=0.03)
    assert all(count == pytest.approx(0.05, abs=0.02) for a, count in enumerate(counts) if a != greedy)


def test_evaluations_take_as_many_random_actions_as_they_say(cartpole: Make) -> None:
    def left(observations: np.ndarray) -> np.ndarray:
        return np.tile([1.0, 0.0], (len(observations), 1))

    greedy, random = (
        last(play(Contender(left), cartpole(evaluate__epsilon=epsilon), episodes=5, at=(1, 0))).returns
        for epsilon in (0.0, 1.0)
    )
    assert max(greedy) < 12 < max(random)


def test_the_length_is_rounded_up_to_whole_vector_steps(cartpole: Make, train: Train) -> None:
    run = train(cartpole(train__steps=1_001))
    assert run.store().newest.counters.agent_steps == 1_008


def test_a_run_without_a_target_has_no_depth(cartpole: Make, trained: Callable[[Settings], Run]) -> None:
    run = trained(cartpole(train__target_q=False))
    assert [entry.depth_agent_steps for entry in report.log(run)] == [None] * 5 + [0]


def test_records_show_the_depth_of_a_real_run(cartpole: Make, trained: Callable[[Settings], Run]) -> None:
    run = trained(cartpole(train__n_step=3, save__every_updates=50))
    assert [entry.depth_agent_steps for entry in reversed(report.log(run))] == [0, 3, 6, 9, 12, 15]
    assert report.show(run, "000002").depth_agent_steps == 6
    [served] = report.explain(run, 120).snapshots
    assert (served.id, served.depth_agent_steps) == (run.resolve("000002").id, 6)
    assert [line["depth"] for line in run.metric_lines() if "depth" in line][-1] == 15


def test_environments_in_processes_of_their_own_give_the_same(train: Train, cartpole: Make) -> None:
    runs = [train(cartpole(train__steps=400, env__count=2, env__vectorization=how)) for how in ("sync", "async")]
    first, second = (run.store().newest.weights_sha256 for run in runs)
    assert first == second
