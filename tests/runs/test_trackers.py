"""Weights & Biases and MLflow, by their own clients, offline."""

import math
import os
import re
import shutil
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import mlflow
import pytest
from attempts import progress_of
from commands import twin_graph

from twin_graph.agent import trackers
from twin_graph.config.settings import Settings
from twin_graph.errors import UsageError
from twin_graph.snapshots.run import Run, create

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


def sent_losses() -> dict[int, float]:
    """By agent step."""
    history = mlflow.MlflowClient().get_metric_history(recorded_by_mlflow().info.run_id, "loss")
    return {metric.step: metric.value for metric in history if not math.isnan(metric.value)}


def losses_of(run: Run) -> dict[int, float]:
    """By agent step, as the run's own log has them."""
    lines = [line for line in run.metric_lines() if line.get("loss") is not None]
    return {line["agent_steps"]: line["loss"] for line in lines if not math.isnan(line["loss"])}


@pytest.mark.parametrize("ends", [True, False])
def test_a_run_goes_on_through_an_outage_and_sends_later_what_it_logged(
    cartpole: Make, tmp_path: Path, mlruns: Path, monkeypatch: pytest.MonkeyPatch, ends: bool
) -> None:
    monkeypatch.setattr(trackers, "_AGAIN_SECONDS", 0.05)
    away = tmp_path / "away"
    run = create(tmp_path / "run", cartpole(log__to="mlflow"))
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
    assert sent_losses() == (ours if ends else {step: loss for step, loss in ours.items() if step <= 500})


@pytest.mark.usefixtures("mlruns")
def test_what_is_refused_keeps_nothing_else_from_being_sent(
    cartpole: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trackers, "_AGAIN_SECONDS", 0.0)
    notices: list[str] = []
    tracker = trackers.Tracker(create(tmp_path / "run", cartpole(log__to="mlflow")), notices)
    tracker.film(100, tmp_path / "removed.gif")
    for agent_steps in (200, 300, 400):
        tracker.log(agent_steps, {"loss": 1.0})
    tracker.close("finished")
    assert sorted(sent_losses()) == [200, 300, 400]
    assert recorded_by_mlflow().info.status == "FINISHED"
    refusal = r"log.to=mlflow refuses an entry, which is left out: .*removed\.gif"
    assert [re.match(refusal, notice) is not None for notice in notices] == [False, True, False]


class EndsLikeWeightsAndBiases(trackers.MLflow):
    """Takes nothing after its end, and fails when it is told to."""

    ended = False
    fails = 0

    def log(self, at: float, agent_steps: int, values: Mapping[str, float]) -> None:
        if self.ended:
            raise RuntimeError("the run is finished")
        if self.fails:
            self.fails -= 1
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
    tracker = trackers.Tracker(create(tmp_path / "run", cartpole(log__to="mlflow")), notices)
    client = tracker._client
    client.fails = 1  # type: ignore[attr-defined]
    for agent_steps in range(100, 1100, 100):  # an outage until the end
        tracker.log(agent_steps, {"loss": 1.0})
    assert sent_losses() == {}
    tracker.film(1000, tmp_path / "removed.gif")
    client.fails = 1  # type: ignore[attr-defined]
    tracker.log(1100, {"loss": 1.0})
    tracker.close("finished")
    assert list(sent_losses()) == [200, 100, *range(300, 1200, 100)]
    assert recorded_by_mlflow().info.status == "FINISHED"
    assert [notice.split(":")[0] for notice in notices] == [
        "log.to=mlflow does not answer",
        "log.to=mlflow refuses an entry, which is left out",
        "log.to=mlflow answers again; nothing is left to send",
    ]


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
