"""A run's settings, metrics and films in Weights & Biases or MLflow, through their own clients, if `log.to` says so.

Both work offline: `WANDB_MODE=offline`, and `MLFLOW_TRACKING_URI=file:mlruns` with
`MLFLOW_ALLOW_FILE_STORE=true`. A resumed run continues the same record.
"""

import hashlib
import importlib.util
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from twin_graph.config import describe
from twin_graph.errors import UsageError
from twin_graph.settings import Settings
from twin_graph.snapshots.run import Run

PROJECT = "twin-graph"


class Tracker(Protocol):
    """An outside record of a run."""

    def log(self, agent_steps: int, values: Mapping[str, float]) -> None:
        """Adds numbers by their names."""
        ...

    def film(self, agent_steps: int, path: Path) -> None:
        """Adds a film of an evaluation."""
        ...

    def close(self) -> None:
        """Sends what is left."""
        ...


class WeightsAndBiases:
    """See `Tracker`."""

    def __init__(self, run: Run) -> None:
        import wandb

        self._video = wandb.Video
        try:
            self._run = wandb.init(
                project=PROJECT,
                id=_id(run),
                name=run.name,
                resume="allow",
                config=_settings(run),
                dir=run.folder,
                settings=wandb.Settings(silent=True),
            )
        except wandb.errors.Error as error:
            raise UsageError(f"log.to=wandb: {error}; WANDB_MODE=offline needs no account") from None
        # Its own steps may not go back, and those of a resumed run do.
        self._run.define_metric("*", step_metric="agent_steps")

    def log(self, agent_steps: int, values: Mapping[str, float]) -> None:
        self._run.log({**values, "agent_steps": agent_steps})

    def film(self, agent_steps: int, path: Path) -> None:
        self._run.log({"evaluation/film": self._video(str(path)), "agent_steps": agent_steps})

    def close(self) -> None:
        self._run.finish()


class MLflow:
    """See `Tracker`."""

    def __init__(self, run: Run) -> None:
        import mlflow

        self._metric = mlflow.entities.Metric
        try:
            self._client = mlflow.MlflowClient()
            experiment = self._client.get_experiment_by_name(PROJECT)
            experiment_id = experiment.experiment_id if experiment else self._client.create_experiment(PROJECT)
            found = self._client.search_runs([experiment_id], f"tags.`{PROJECT}` = '{_id(run)}'")
            tags = {PROJECT: _id(run)}
            self._run = found[0] if found else self._client.create_run(experiment_id, tags=tags, run_name=run.name)
        except mlflow.exceptions.MlflowException as error:
            without_server = "MLFLOW_ALLOW_FILE_STORE=true MLFLOW_TRACKING_URI=file:mlruns"
            raise UsageError(f"log.to=mlflow: {error}; without a server: {without_server}") from None
        if not found:
            for name, value in _settings(run).items():
                self._client.log_param(self._run.info.run_id, name, value)

    def log(self, agent_steps: int, values: Mapping[str, float]) -> None:
        now = int(1000 * time.time())
        metrics = [self._metric(name, value, now, agent_steps) for name, value in values.items()]
        self._client.log_batch(self._run.info.run_id, metrics)

    def film(self, agent_steps: int, path: Path) -> None:  # noqa: ARG002 - the file's name says which snapshot it is
        self._client.log_artifact(self._run.info.run_id, str(path), "films")

    def close(self) -> None:
        self._client.set_terminated(self._run.info.run_id)


TRACKERS: dict[str, Any] = {"wandb": WeightsAndBiases, "mlflow": MLflow}


def check(settings: Settings) -> None:
    """Raises `UsageError` if what `log.to` asks for is not installed."""
    name = settings.log.to
    if name in TRACKERS and importlib.util.find_spec(name) is None:
        raise UsageError(f"log.to={name} needs {name}: pip install 'twin-graph[{name}]'")


def of(run: Run) -> Tracker | None:
    """The tracker that `log.to` asks for; None for TensorBoard alone. Raises `UsageError` if it does not answer."""
    check(run.settings)
    tracker: Tracker | None = TRACKERS[run.settings.log.to](run) if run.settings.log.to in TRACKERS else None
    return tracker


def _settings(run: Run) -> dict[str, Any]:
    return {setting.key: setting.value for setting in describe(run.settings)}


def _id(run: Run) -> str:
    """The same when a run resumes, and different for a run of the same name elsewhere."""
    return hashlib.sha256(f"{run.name} {run.description['created']}".encode()).hexdigest()[:16]
