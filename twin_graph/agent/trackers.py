"""A run's settings, metrics and films in Weights & Biases or MLflow, through their own clients, if `log.to` says so.

Both work offline: `WANDB_MODE=offline`, and `MLFLOW_TRACKING_URI=file:mlruns` with
`MLFLOW_ALLOW_FILE_STORE=true`. A resumed run continues the same record.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import os
import time
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from twin_graph.base.text import first_line
from twin_graph.config.loading import describe
from twin_graph.errors import UsageError

if TYPE_CHECKING:
    from twin_graph.config.settings import Settings
    from twin_graph.snapshots.run import Run

PROJECT = "twin-graph"

_AGAIN_SECONDS = 120.0  # after which what could not be sent is tried again: for 20 seconds, if MLflow is silent
_MLFLOW_STATUS = {"finished": "FINISHED", "stopped": "KILLED", "failed": "FAILED"}


class Client(Protocol):
    """Who sends what a `Tracker` is given; whatever it raises is an outage."""

    def log(self, at: float, agent_steps: int, values: Mapping[str, float]) -> None:
        """Adds numbers by their names, which were so at a time, in seconds since 1970."""
        ...

    def film(self, agent_steps: int, path: Path) -> None:
        """Adds a film of an evaluation."""
        ...

    def close(self, state: str) -> None:
        """Says how the attempt ended: `finished`, `stopped` or `failed`."""
        ...


class Tracker:
    """An outside record of a run. Training goes on through its outages: what cannot be sent waits and is tried again.

    Args:
      run: whose record it is.
      notices: where it says, for people, that an outage began or ended.

    Raises:
      UsageError: what `log.to` asks for is not installed, or does not answer.
    """

    def __init__(self, run: Run, notices: list[str]) -> None:
        check_tracker(run.settings)
        self._name = run.settings.log.to
        self._client: Client = CLIENTS[self._name](run)
        self._notices = notices
        self._unsent: deque[Callable[[], None]] = deque()
        self._again = 0.0  # when to try again, by the monotonic clock; 0 outside an outage

    def log(self, agent_steps: int, values: Mapping[str, float]) -> None:
        """Adds numbers by their names."""
        self._send(functools.partial(self._client.log, time.time(), agent_steps, values))

    def film(self, agent_steps: int, path: Path) -> None:
        """Adds a film of an evaluation."""
        self._send(functools.partial(self._client.film, agent_steps, path))

    def close(self, state: str) -> None:
        """Sends what is left, and how the attempt ended: `finished`, `stopped` or `failed`."""
        for _ in range(2):  # no client takes anything after its end
            if self._unsent:
                self._send_what_waits()
        if _error_of(functools.partial(self._client.close, state)) or self._unsent:
            self._notices.append(f"log.to={self._name} could not be sent the end of its record; metrics.jsonl has it")

    def _send(self, entry: Callable[[], None]) -> None:
        self._unsent.append(entry)
        if time.monotonic() >= self._again:
            self._send_what_waits()

    def _send_what_waits(self) -> None:
        """In the order in which it came, unless there is an outage."""
        if error := self._outage():
            if not self._again:
                later = "what it misses is in metrics.jsonl, and is sent to it later"
                self._notices.append(f"log.to={self._name} does not answer: {first_line(error)}; {later}")
            self._again = time.monotonic() + _AGAIN_SECONDS
        else:
            if self._again:
                self._notices.append(f"log.to={self._name} answers again; nothing is left to send")
            self._again = 0.0

    def _outage(self) -> Exception | None:
        """Sends what waits until the last entry, or two in a row, fail; returns why.

        One that fails twice although the next passes is refused, and is left out.
        """
        while self._unsent:
            if error := _error_of(self._unsent[0]):
                if len(self._unsent) == 1 or _error_of(self._unsent[1]):
                    return error
                del self._unsent[1]
                if error := _error_of(self._unsent[0]):
                    left_out = f"refuses an entry, which is left out: {first_line(error)}"
                    self._notices.append(f"log.to={self._name} {left_out}")
            self._unsent.popleft()
        return None


def _error_of(send: Callable[[], None]) -> Exception | None:
    try:
        send()
    except Exception as error:  # whatever a client raises, hours of training do not end for it
        return error
    return None


class WeightsAndBiases:
    """See `Client`."""

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

    def log(self, at: float, agent_steps: int, values: Mapping[str, float]) -> None:
        self._run.log({**values, "agent_steps": agent_steps, "_timestamp": at})

    def film(self, agent_steps: int, path: Path) -> None:
        self._run.log({"evaluation/film": self._video(str(path)), "agent_steps": agent_steps})

    def close(self, state: str) -> None:
        self._run.finish(exit_code=int(state == "failed"))


class MLflow:
    """See `Client`."""

    def __init__(self, run: Run) -> None:
        # Its own seven attempts of two minutes each would hold up training.
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "10")
        import mlflow

        self._metric = mlflow.entities.Metric
        try:
            self._client = mlflow.MlflowClient()
            experiment = self._client.get_experiment_by_name(PROJECT)
            experiment_id = experiment.experiment_id if experiment else self._client.create_experiment(PROJECT)
            found = self._client.search_runs([experiment_id], f"tags.`{PROJECT}` = '{_id(run)}'")
            tags = {PROJECT: _id(run)}
            self._run = found[0] if found else self._client.create_run(experiment_id, tags=tags, run_name=run.name)
            if found:
                self._client.update_run(self._run.info.run_id, status="RUNNING")
            else:
                for name, value in _settings(run).items():
                    self._client.log_param(self._run.info.run_id, name, value)
        except mlflow.exceptions.MlflowException as error:
            without_server = "MLFLOW_ALLOW_FILE_STORE=true MLFLOW_TRACKING_URI=file:mlruns"
            raise UsageError(f"log.to=mlflow: {error}; without a server: {without_server}") from None

    def log(self, at: float, agent_steps: int, values: Mapping[str, float]) -> None:
        milliseconds = int(1000 * at)
        metrics = [self._metric(name, value, milliseconds, agent_steps) for name, value in values.items()]
        self._client.log_batch(self._run.info.run_id, metrics)

    def film(self, agent_steps: int, path: Path) -> None:  # noqa: ARG002 - the file's name says which snapshot it is
        self._client.log_artifact(self._run.info.run_id, str(path), "films")

    def close(self, state: str) -> None:
        self._client.set_terminated(self._run.info.run_id, _MLFLOW_STATUS[state])


CLIENTS: dict[str, Any] = {"wandb": WeightsAndBiases, "mlflow": MLflow}


def check_tracker(settings: Settings) -> None:
    """Raises `UsageError` if what `log.to` asks for is not installed."""
    name = settings.log.to
    if name not in CLIENTS:
        return
    found = importlib.util.find_spec(name)
    if found is None or found.origin is None:  # a folder of this name, as W&B makes for its own files
        raise UsageError(f"log.to={name} needs {name}: pip install 'twin-graph[{name}]'")


def of(run: Run, notices: list[str]) -> Tracker | None:
    """The tracker that `log.to` asks for; None for TensorBoard alone. Raises as `Tracker` does."""
    return Tracker(run, notices) if run.settings.log.to in CLIENTS else None


def _settings(run: Run) -> dict[str, Any]:
    return {setting.key: setting.value for setting in describe(run.settings)}


def _id(run: Run) -> str:
    """The same when a run resumes, and different for a run of the same name elsewhere."""
    return hashlib.sha256(f"{run.name} {run.description['created']}".encode()).hexdigest()[:16]
