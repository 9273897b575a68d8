"""Weights & Biases and MLflow, by their own clients, offline."""

import os
import re
import shutil
import sys
import time
from collections.abc import Callable, Mapping
from datetime import datetime
from pathlib import Path

import mlflow
import pytest
from attempts import attempt, progress_of
from commands import twin_graph

from twin_graph import config
from twin_graph.agent import trackers
from twin_graph.agent.agent import Agent
from twin_graph.config.loading import replace
from twin_graph.config.settings import Settings
from twin_graph.envs import EnvSpec
from twin_graph.errors import UsageError
from twin_graph.records.verify import verify
from twin_graph.snapshots.lines import record_metrics
from twin_graph.snapshots.resumable import newest_point
from twin_graph.snapshots.run import Run, create
from twin_graph.training import readiness

Make = Callable[..., Settings]


@pytest.fixture
def mlruns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """MLflow's own folder, without a server."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"file:{tmp_path / 'mlruns'}")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    return tmp_path / "mlruns"


def recorded_by_mlflow() -> mlflow.entities.Run:
    client = mlflow.MlflowClient()
    experiment = client.get_experiment_by_name(trackers.PROJECT)
    assert experiment is not None
    [recorded] = client.search_runs([experiment.experiment_id])
    return recorded


@pytest.mark.usefixtures("mlruns")
def test_mlflow_has_settings_and_metrics_and_a_resumed_run_continues_its_record(cartpole: Make, tmp_path: Path) -> None:
    run = create(tmp_path / "run", cartpole(log__to="mlflow", evaluate__video=True, evaluate__max_steps=20))
    for progress in progress_of(run):
        if progress.agent_steps >= 640:
            progress.stop.set()
    assert recorded_by_mlflow().info.status == "KILLED"
    states = {recorded_by_mlflow().info.status for progress in progress_of(run) if progress.agent_steps % 100 == 0}
    assert states == {"RUNNING"}
    recorded = recorded_by_mlflow()
    assert recorded.data.params["train.batch_size"] == "16"
    assert recorded.data.params["env.id"] == "CartPole-v1"
    assert recorded.info.status == "FINISHED"
    assert sent_losses() == losses_of(run)
    client = mlflow.MlflowClient()
    scores = client.get_metric_history(recorded.info.run_id, "evaluation/mean_return")
    assert [score.value for score in scores][-1] == [line["mean"] for line in run.evaluation_lines()][-1]
    films = {Path(film.path).name for film in client.list_artifacts(recorded.info.run_id, "films")}
    assert films == {path.name for path in run.videos.iterdir()}


def sent_losses() -> list[tuple[int, float]]:
    """Agent steps and losses, as they were sent."""
    return history_of("loss", recorded_by_mlflow())


def history_of(metric: str, recorded: mlflow.entities.Run) -> list[tuple[int, float]]:
    history = mlflow.MlflowClient().get_metric_history(recorded.info.run_id, metric)
    return [(metric.step, metric.value) for metric in history]


def losses_of(run: Run) -> list[tuple[int, float]]:
    """Agent steps and losses, as the run's own log has them."""
    return [(line["agent_steps"], line["loss"]) for line in run.metric_lines() if line.get("loss") is not None]


def change(run: Run, **changes: object) -> None:
    """As `resume --set` does."""
    settings = {name.replace("__", "."): value for name, value in changes.items()}
    Run(run.folder).change_settings(config.replace(Run(run.folder).settings, list(settings.items())))


@pytest.mark.usefixtures("mlruns")
def test_nothing_that_a_resume_abandons_is_sent(cartpole: Make, tmp_path: Path) -> None:
    run = create(tmp_path / "run", cartpole(log__to="mlflow", log__every_steps=40))
    attempt(run, cut_off=760)
    logged = [line["agent_steps"] for line in run.metric_lines()]
    assert max(logged) > 700
    assert [step for step, _ in sent_losses()][-1] < 540  # the resume point is at 504
    change(run, train__learning_rate=0.01)
    attempt(run, cut_off=900)
    attempt(run)
    assert sent_losses() == losses_of(run)
    before = [step for step in logged if 504 < step <= 760]
    assert set(before) <= {step for step, _ in sent_losses()}
    assert recorded_by_mlflow().info.status == "FINISHED"


@pytest.mark.usefixtures("mlruns")
def test_what_a_killed_attempt_had_secured_but_not_sent_is_sent_by_the_next(
    cartpole: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = create(tmp_path / "run", cartpole(log__to="mlflow"))
    with monkeypatch.context() as patched:
        patched.setattr(trackers.Tracker, "_send", lambda _: True)
        attempt(run, cut_off=760)
    attempt(run)
    assert sent_losses() == losses_of(run)
    assert len(sent_losses()) > 3


@pytest.mark.usefixtures("mlruns")
def test_a_film_of_an_attempt_that_was_killed_before_it_recorded_the_score_is_sent(
    cartpole: Make, train: Callable[[Settings], Run], tmp_path: Path
) -> None:
    settings = cartpole(evaluate__video=True, evaluate__max_steps=20)
    films = train(settings).videos
    run = create(tmp_path / "killed", config.replace(settings, [("log.to", "mlflow")]))
    shutil.copytree(films, run.videos)
    attempt(run)
    sent = mlflow.MlflowClient().list_artifacts(recorded_by_mlflow().info.run_id, "films")
    assert {Path(film.path).name for film in sent} == {path.name for path in films.iterdir()}
    assert len(sent) == 2


@pytest.mark.usefixtures("mlruns")
def test_points_are_at_the_time_at_which_they_were_logged(cartpole: Make, tmp_path: Path) -> None:
    run = create(tmp_path / "run", cartpole(log__to="mlflow"))
    attempt(run)
    history = mlflow.MlflowClient().get_metric_history(recorded_by_mlflow().info.run_id, "epsilon")
    times = [datetime.fromisoformat(line["time"]) for line in run.metric_lines() if "epsilon" in line]
    assert [metric.timestamp for metric in history] == [round(1000 * time.timestamp()) for time in times]


@pytest.mark.usefixtures("mlruns")
def test_mlflow_shows_the_settings_that_a_resume_has_changed(cartpole: Make, tmp_path: Path) -> None:
    run = create(tmp_path / "run", cartpole(log__to="mlflow"))
    attempt(run, cut_off=560)
    first = recorded_by_mlflow().data
    assert (first.params["target.policy"], first.params["train.learning_rate"]) == ("latest", "0.0003")
    assert "mlflow.note.content" not in first.tags
    change(run, target__policy="window(3)", train__learning_rate=0.001)
    attempt(run, cut_off=660)
    changed = recorded_by_mlflow().data
    assert changed.params == first.params  # MLflow takes no others
    assert {"target.policy": "window(3)", "train.learning_rate": "0.001"}.items() <= changed.tags.items()
    note = "A resume has changed these parameters: train.learning_rate=0.001, target.policy=window(3)"
    assert changed.tags["mlflow.note.content"] == note
    change(run, target__policy="latest")
    attempt(run)
    last = recorded_by_mlflow().data
    assert "target.policy" not in last.tags
    assert last.tags["train.learning_rate"] == "0.001"
    assert last.tags["mlflow.note.content"].endswith("parameters: train.learning_rate=0.001")


@pytest.mark.usefixtures("mlruns")
def test_a_run_that_continues_from_before_what_was_sent_begins_a_new_record_with_all_that_holds(
    cartpole: Make, tmp_path: Path
) -> None:
    run = create(tmp_path / "run", cartpole(log__to="mlflow"))
    attempt(run)
    abandoned = losses_of(run)
    (run.points().path(run.points().next_number() - 1) / "state.json").write_bytes(b"damaged")
    change(run, train__steps=1_600, train__learning_rate=0.01)
    *_, progress = progress_of(run)
    known = "log.to=mlflow has more than the resume point, which is an older one; it gets a new record, run (2)"
    assert progress.notices == [known]
    client = mlflow.MlflowClient()
    experiment = client.get_experiment_by_name(trackers.PROJECT)
    by_name = {found.info.run_name: found for found in client.search_runs([experiment.experiment_id])}
    assert sorted(by_name) == ["run", "run (2)"]
    assert history_of("loss", by_name["run"]) == abandoned
    assert history_of("loss", by_name["run (2)"]) == losses_of(run)
    assert by_name["run (2)"].data.params["train.learning_rate"] == "0.01"
    change(run, train__steps=2_000)
    *_, progress = progress_of(run)
    assert progress.notices == []
    assert history_of("loss", by_name["run (2)"]) == losses_of(run)


@pytest.mark.usefixtures("mlruns")
def test_a_loop_of_ones_own_that_ends_without_a_resume_point_sends_what_it_logged(
    cartpole: Make, tmp_path: Path
) -> None:
    run = create(tmp_path / "run", cartpole(log__to="mlflow"))
    with Agent(run, EnvSpec((4,), 2)) as agent:
        agent.log({"loss": 0.5})
    assert sent_losses() == [(0, 0.5)]


def deleted_experiment() -> str:
    """Deletes the experiment of our runs, as a person does on MLflow's page; returns its id."""
    client = mlflow.MlflowClient()
    experiment = client.get_experiment_by_name(trackers.PROJECT)
    assert experiment is not None
    client.delete_experiment(experiment.experiment_id)
    return str(experiment.experiment_id)


@pytest.mark.usefixtures("mlruns")
def test_a_new_run_does_not_begin_in_an_experiment_that_was_deleted(cartpole: Make, tmp_path: Path) -> None:
    attempt(create(tmp_path / "other", cartpole(log__to="mlflow", train__steps=400)))
    number = deleted_experiment()
    run = create(tmp_path / "run", cartpole(log__to="mlflow"))
    with pytest.raises(UsageError) as refused:
        attempt(run)
    assert str(refused.value) == (
        f"log.to=mlflow: its experiment twin-graph is deleted: restore it with "
        f"`mlflow experiments restore --experiment-id {number}`, or train without it: --set log.to=tensorboard"
    )
    assert run.ledger.attempt == 0


@pytest.mark.usefixtures("mlruns")
@pytest.mark.parametrize("restored", [True, False])
def test_a_resume_is_not_blocked_by_an_experiment_that_was_deleted(
    cartpole: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, restored: bool
) -> None:
    monkeypatch.setattr(trackers, "_AGAIN_SECONDS", 0.0)
    run = create(tmp_path / "run", cartpole(log__to="mlflow", resume__every_steps=100))
    attempt(run, cut_off=560)
    number = deleted_experiment()
    for progress in progress_of(run):
        if restored and progress.agent_steps == 904:
            mlflow.MlflowClient().restore_experiment(number)
    assert run.outcome()[0] == "finished"
    first, last = progress.notices
    assert first.startswith("log.to=mlflow: its experiment twin-graph is deleted: restore it with ")
    assert first.endswith("; what it misses is in metrics.jsonl, and is sent to it later")
    if restored:
        assert last == "log.to=mlflow answers again; nothing is left to send"
        assert recorded_by_mlflow().info.status == "FINISHED"
        assert sent_losses() == losses_of(run)
    else:
        assert last == "log.to=mlflow could not be sent the end of its record; metrics.jsonl has it"
        mlflow.MlflowClient().restore_experiment(number)
        change(run, train__steps=1_600)
        attempt(run)
        assert sent_losses() == losses_of(run)


def test_a_resume_is_not_blocked_by_a_tracker_that_does_not_answer_or_is_not_installed(
    cartpole: Make, tmp_path: Path, mlruns: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = create(tmp_path / "run", cartpole(log__to="mlflow"))
    attempt(run, cut_off=560)
    env = {**os.environ, "MLFLOW_TRACKING_URI": "http://127.0.0.1:9"}
    done = twin_graph("resume", "run", cwd=tmp_path, env=env)
    assert done.returncode == 0
    assert done.stderr.count("log.to=mlflow: API request to http://127.0.0.1:9") == 1
    for name in [name for name in sys.modules if name.partition(".")[0] == "mlflow"]:
        monkeypatch.setitem(sys.modules, name, None)
    change(run, train__steps=1_600)
    run = Run(run.folder)
    with readiness.ready(run.settings, run.folder, (run, newest_point(run).point)):
        *_, progress = progress_of(run)
    assert progress.notices[0].startswith("log.to=mlflow needs mlflow: pip install 'twin-graph[mlflow]'; what it ")
    assert run.outcome()[0] == "finished"
    other = replace(run.settings, [("log.to", "wandb"), ("train.steps", 2_000)])
    monkeypatch.setitem(sys.modules, "wandb", None)
    with (
        pytest.raises(UsageError, match=r"^log\.to=wandb needs wandb"),  # which is to begin a record
        readiness.ready(other, run.folder, (run, newest_point(run).point)),
    ):
        pass


@pytest.mark.parametrize("ends", [True, False])
def test_a_run_goes_on_through_an_outage_and_sends_later_what_it_logged(
    cartpole: Make, tmp_path: Path, mlruns: Path, monkeypatch: pytest.MonkeyPatch, ends: bool
) -> None:
    monkeypatch.setattr(trackers, "_AGAIN_SECONDS", 0.05)
    away = tmp_path / "away"
    run = create(tmp_path / "run", cartpole(log__to="mlflow", resume__every_steps=100))
    for progress in progress_of(run):
        if progress.agent_steps == 504:
            mlruns.rename(away)
        if progress.agent_steps == 904:
            assert len(progress.notices) == 1
            if ends:
                away.rename(mlruns)
    assert run.outcome()[0] == "finished"
    assert progress.notices[0].startswith("log.to=mlflow does not answer: ")
    if ends:
        assert progress.notices[1:] == ["log.to=mlflow answers again; nothing is left to send"]
    else:
        end = "log.to=mlflow could not be sent the end of its record; metrics.jsonl has it"
        assert progress.notices[1:] == [end]
        shutil.rmtree(mlruns, ignore_errors=True)
        away.rename(mlruns)
    assert recorded_by_mlflow().info.status == ("FINISHED" if ends else "RUNNING")
    ours = losses_of(run)
    assert sent_losses() == (ours if ends else [(step, loss) for step, loss in ours if step <= 500])
    change(run, train__steps=1_600)
    attempt(run)
    assert sent_losses() == losses_of(run)


def logged(run: Run, *agent_steps: int, **values: object) -> int:
    """Logs for so many agent steps; returns the length of the log."""
    for steps in agent_steps:
        record_metrics(run, {"loss": 1.0, "agent_steps": steps, **values})
    return run.metrics_file.stat().st_size


@pytest.mark.usefixtures("mlruns")
def test_a_film_that_is_refused_keeps_nothing_else_from_being_sent(cartpole: Make, tmp_path: Path) -> None:
    notices: list[str] = []
    run = create(tmp_path / "run", cartpole(log__to="mlflow"))
    run.control.mkdir()
    tracker = trackers.Tracker(run, notices, 0)
    logged(run, 100, **{"evaluation/film": "removed.mp4"})
    tracker.send(logged(run, 200, 300, 400))
    tracker.close("finished")
    assert sent_losses() == [(100, 1.0), (200, 1.0), (300, 1.0), (400, 1.0)]
    assert recorded_by_mlflow().info.status == "FINISHED"
    [notice] = notices
    assert re.match(r"log.to=mlflow refuses a film, which is left out: .*removed\.mp4", notice)


class EndsLikeWeightsAndBiases(trackers.MLflow):
    """Takes nothing after its end, and fails when it is told to."""

    ended = False
    fails_at = 0

    def log(self, at: float, agent_steps: int, values: Mapping[str, float]) -> None:
        if self.ended:
            raise RuntimeError("the run is finished")
        if agent_steps == self.fails_at:
            raise TimeoutError
        super().log(at, agent_steps, values)

    def close(self, state: str) -> None:
        super().close(state)
        self.ended = True


@pytest.mark.usefixtures("mlruns")
def test_what_waits_at_the_end_is_sent_in_order_before_it(
    cartpole: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(trackers.CLIENTS, "mlflow", EndsLikeWeightsAndBiases)
    notices: list[str] = []
    run = create(tmp_path / "run", cartpole(log__to="mlflow"))
    run.control.mkdir()
    tracker = trackers.Tracker(run, notices, 0)
    client = tracker._client
    client.fails_at = 300  # type: ignore[attr-defined]
    tracker.send(logged(run, 100, 200, 300, 400))
    client.fails_at = 0  # type: ignore[attr-defined]
    tracker.send(logged(run, 500))  # the outage has just begun
    assert sent_losses() == [(100, 1.0), (200, 1.0)]
    tracker.close("finished")
    assert sent_losses() == [(steps, 1.0) for steps in range(100, 600, 100)]
    assert recorded_by_mlflow().info.status == "FINISHED"
    assert [notice.split(":")[0] for notice in notices] == [
        "log.to=mlflow does not answer",
        "log.to=mlflow answers again; nothing is left to send",
    ]


@pytest.mark.usefixtures("mlruns")
def test_a_run_of_an_older_version_is_not_sent_again(cartpole: Make, tmp_path: Path) -> None:
    """It sent what it logged at once, and kept no record of that."""
    run = create(tmp_path / "run", cartpole(log__to="mlflow"))
    attempt(run, cut_off=760)
    (run.control / "tracker-mlflow.json").unlink()
    sent = sent_losses()
    attempt(run)
    assert sent_losses() == losses_of(run)
    assert sent
    assert verify(run).unknown == []


@pytest.mark.usefixtures("mlruns")
def test_mlflow_is_told_of_an_error(cartpole: Make, tmp_path: Path) -> None:
    run = create(tmp_path / "run", cartpole(log__to="mlflow"))
    progresses = progress_of(run)
    next(progresses)
    with pytest.raises(ZeroDivisionError):
        progresses.throw(ZeroDivisionError)
    assert recorded_by_mlflow().info.status == "FAILED"


def test_weights_and_biases_has_settings_and_metrics(
    cartpole: Make, train: Callable[[Settings], Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    run = train(cartpole(log__to="wandb", evaluate__video=True, evaluate__max_steps=20))
    [recorded] = (run.folder / "wandb").glob("offline-run-*/run-*.wandb")
    names = {b"evaluation/mean_return", b"loss", b"train.batch_size", b"evaluation/film", b"agent_steps"}
    deadline = time.monotonic() + 60
    while missing := {name for name in names if name not in recorded.read_bytes()}:  # its own process writes the file
        assert time.monotonic() < deadline, missing
        time.sleep(0.1)
    assert run.outcome()[0] == "finished"


@pytest.mark.parametrize("name", ["wandb", "mlflow"])
def test_one_line_says_what_to_install(
    cartpole: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(UsageError, match=rf"^log.to={name} needs {name}: pip install 'twin-graph\[{name}\]'$"):
        trackers.check_tracker(cartpole(log__to=name))


def test_a_folder_of_its_name_is_no_tracker(cartpole: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """W&B keeps its files in one, in the working directory, where Python looks for modules too."""
    (tmp_path / "wandb").mkdir()
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    monkeypatch.delitem(sys.modules, "wandb", raising=False)
    with pytest.raises(UsageError, match=r"log\.to=wandb needs wandb"):
        trackers.check_tracker(cartpole(log__to="wandb"))


def test_without_an_account_one_line_says_how(tmp_path: Path) -> None:
    """In a process of its own: the client remembers how it was first used."""
    known = {name: value for name, value in os.environ.items() if not name.startswith("WANDB")}
    env = {**known, "HOME": str(tmp_path), "WANDB_MODE": "online"}
    told = twin_graph("train", "cartpole", "--set", "log.to=wandb", cwd=tmp_path, env=env)
    assert told.returncode == 2
    assert "Error: log.to=wandb: No API key configured" in told.stderr
    assert told.stderr.splitlines()[-1].endswith("WANDB_MODE=offline needs no account")
    assert list((tmp_path / "checkpoints").iterdir()) == []
    tiny = ("--steps=800", "--set=train.start_steps=200", "--set=evaluate.episodes=0", "--run-dir=run")
    assert twin_graph("train", "cartpole", *tiny, cwd=tmp_path, env=env).returncode == 0
    before = (tmp_path / "run" / "run.json").read_bytes()
    refused = twin_graph("resume", "run", "--steps=1600", "--set", "log.to=wandb", cwd=tmp_path, env=env)
    assert refused.returncode == 2
    assert (tmp_path / "run" / "run.json").read_bytes() == before
