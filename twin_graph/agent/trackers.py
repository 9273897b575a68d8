"""A run's settings, metrics and films in Weights & Biases or MLflow, through their own clients, if `log.to` says so.

Both work offline: `WANDB_MODE=offline`, and `MLFLOW_TRACKING_URI=file:mlruns` with
`MLFLOW_ALLOW_FILE_STORE=true`. A resumed run continues the same record. Neither can take back what it has, so each gets
only what a resume point has secured.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import time
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from twin_graph.base.text import first_line
from twin_graph.config import trust
from twin_graph.config.loading import describe
from twin_graph.errors import DamagedError, UsageError
from twin_graph.snapshots.files import checked, read_file, read_lines, whole_bytes, write_file
from twin_graph.snapshots.forms import METRICS
from twin_graph.snapshots.ledger import Fork, Start

if TYPE_CHECKING:
    from twin_graph.config.settings import Settings
    from twin_graph.snapshots.run import Run

PROJECT = "twin-graph"
#: In a line of `metrics.jsonl` with a score: the name of the evaluation's film.
FILM = "evaluation/film"

_AGAIN_SECONDS = 120.0  # after which what could not be sent is tried again: for 10 seconds, if MLflow is silent
_MLFLOW_STATUS = {"finished": "FINISHED", "stopped": "KILLED", "failed": "FAILED"}
_NOTE, _CHANGED = "mlflow.note.content", "A resume has changed these parameters: "  # shown as the description


class Client(Protocol):
    """Sends what a `Tracker` reads.

    Made from a run, and the number of its record: 1, unless there had to be another. Whatever `log` raises is an
    outage; a film that fails is left out.
    """

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
    """An outside record of a run: what `metrics.jsonl` says up to the newest resume point, so nothing that a resume
    abandons.

    Training goes on through its outages, and a run that has a record there is resumed without it, if need be.
    `control/tracker-NAME.json` says how much was sent; the rest is tried again at later resume points, and by later
    attempts.

    Args:
      run: whose record it is.
      notices: where it says, for people, that an outage began or ended.
      secured: bytes of `metrics.jsonl` that the resume point has from which the run continues; 0 at the beginning.

    Raises:
      UsageError: the record is to begin, and what `log.to` asks for is not installed, or does not answer.
    """

    def __init__(self, run: Run, notices: list[str], secured: int) -> None:
        self._run, self._name, self._notices, self._secured = run, run.settings.log.to, notices, secured
        self._file = run.control / f"tracker-{self._name}.json"
        self._number, self._sent = self._where_it_is()
        self._client: Client | None = None  # until it answers
        self._again = 0.0  # when to try again, by the monotonic clock; 0 outside an outage
        try:
            self._connected()
        except Exception as error:  # as in `_send`
            if not has_record(run, run.settings):
                raise
            self._begin_outage(error)
        self._remember()

    def _connected(self) -> Client:
        if self._client is None:
            check_tracker(self._run.settings)
            client: Client = CLIENTS[self._name](self._run, self._number)
            self._client = client
        return self._client

    def _where_it_is(self) -> tuple[int, int]:
        """The number of the outside record, and how many bytes were sent to it."""
        try:
            place = read_file(self._file)
        except DamagedError:  # none yet: an older version sent what it logged at once
            return 1, self._secured
        number, sent = int(place["number"]), int(place["sent"])
        if sent <= self._secured:
            return number, sent
        older = "has more than the resume point, which is an older one"
        self._notices.append(f"log.to={self._name} {older}; it gets a new record, {_title(self._run, number + 1)}")
        return number + 1, 0

    def _remember(self) -> None:
        write_file(self._file, checked({"number": self._number, "sent": self._sent}))

    def send(self, secured: int) -> None:
        """Sends what is in the first `secured` bytes of `metrics.jsonl`, which a resume point has."""
        self._secured = secured
        if time.monotonic() >= self._again:
            self._send()

    def close(self, state: str) -> None:
        """Sends what is left, and how the attempt ended: `finished`, `stopped` or `failed`."""
        if state == "finished":  # a loop of a user's own need not end with a resume point
            self._secured = whole_bytes(self._run.metrics_file)
        is_sent = self._send()
        try:
            if self._client:
                self._client.close(state)
        except Exception:  # as in `_send`
            is_sent = False
        if not is_sent:
            self._notices.append(f"log.to={self._name} could not be sent the end of its record; metrics.jsonl has it")

    def _send(self) -> bool:
        """Sends what is secured, up to what cannot be sent; returns whether that was all."""
        try:
            self._send_lines()
        except Exception as error:  # whatever a client raises, hours of training do not end for it
            self._begin_outage(error)
            return False
        if self._again:
            self._notices.append(f"log.to={self._name} answers again; nothing is left to send")
        self._again = 0.0
        return True

    def _begin_outage(self, error: Exception) -> None:
        """People are told when it begins, and not of each try."""
        if not self._again:
            words = first_line(error)
            what = words if isinstance(error, UsageError) else f"log.to={self._name} does not answer: {words}"
            self._notices.append(f"{what}; what it misses is in metrics.jsonl, and is sent to it later")
        self._again = time.monotonic() + _AGAIN_SECONDS

    def _send_lines(self) -> None:
        client = self._connected()
        abandoned = self._run.abandoned(METRICS)
        try:
            for line in read_lines(self._run.metrics_file, start=self._sent):
                if line.start >= self._secured:
                    break
                if not any(line.start in part for part in abandoned) and (record := line.record):
                    self._send_record(client, record)
                self._sent = line.stop
        finally:
            self._remember()

    def _send_record(self, client: Client, record: Mapping[str, Any]) -> None:
        agent_steps = record["agent_steps"]
        numbers = {name: float(value) for name, value in record.items() if isinstance(value, int | float)}
        client.log(_seconds(record), agent_steps, numbers)
        if film := record.get(FILM):
            try:
                client.film(agent_steps, self._run.videos / Path(str(film)).name)
            except Exception as error:  # it may have been removed, or there is no place for files
                left_out = f"refuses a film, which is left out: {first_line(error)}"
                self._notices.append(f"log.to={self._name} {left_out}")


class WeightsAndBiases:
    """See `Client`. Shows the present settings: those of a resumed run replace those before."""

    def __init__(self, run: Run, number: int) -> None:
        import wandb

        self._video = wandb.Video
        try:
            self._run = wandb.init(
                project=PROJECT,
                id=_id(run, number),
                name=_title(run, number),
                resume="allow",
                config=_settings(run),
                dir=run.folder,
                settings=wandb.Settings(silent=True),
            )
        except wandb.errors.Error as error:
            raise UsageError(f"log.to=wandb: {first_line(error)}; WANDB_MODE=offline needs no account") from None
        # Its own steps may not go back, and an evaluated snapshot's may.
        self._run.define_metric("*", step_metric="agent_steps")

    def log(self, at: float, agent_steps: int, values: Mapping[str, float]) -> None:
        self._run.log({**values, "agent_steps": agent_steps, "_timestamp": at})

    def film(self, agent_steps: int, path: Path) -> None:
        self._run.log({FILM: self._video(str(path)), "agent_steps": agent_steps})

    def close(self, state: str) -> None:
        self._run.finish(exit_code=int(state == "failed"))


class MLflow:
    """See `Client`. Its parameters cannot be changed: where one is no longer true, a tag of its name has the present
    value, and the description says so."""

    def __init__(self, run: Run, number: int) -> None:
        # Its own seven attempts of two minutes each would hold up training.
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "10")
        import mlflow

        self._metric = mlflow.entities.Metric
        try:
            self._client = mlflow.MlflowClient()
            experiment = self._client.get_experiment_by_name(PROJECT)
            if experiment and experiment.lifecycle_stage != "active":
                restore = f"mlflow experiments restore --experiment-id {experiment.experiment_id}"
                instead = f"restore it with `{restore}`, or train without it: --set log.to=tensorboard"
                raise UsageError(f"log.to=mlflow: its experiment {PROJECT} is deleted: {instead}")
            experiment_id = experiment.experiment_id if experiment else self._client.create_experiment(PROJECT)
            tags, title = {PROJECT: _id(run, number)}, _title(run, number)
            found = self._client.search_runs([experiment_id], f"tags.`{PROJECT}` = '{tags[PROJECT]}'")
            self._run = found[0] if found else self._client.create_run(experiment_id, tags=tags, run_name=title)
            if found:
                self._client.update_run(self._run.info.run_id, status="RUNNING")
            self._show_settings(_settings(run))
        except mlflow.exceptions.MlflowException as error:
            without_server = "MLFLOW_ALLOW_FILE_STORE=true MLFLOW_TRACKING_URI=file:mlruns"
            raise UsageError(f"log.to=mlflow: {first_line(error)}; without a server: {without_server}") from None

    def _show_settings(self, settings: Mapping[str, Any]) -> None:
        run_id, params, tags = self._run.info.run_id, self._run.data.params, self._run.data.tags
        changed = []
        for name, value in settings.items():
            if name not in params:
                self._client.log_param(run_id, name, value)
            elif str(value) != params[name]:
                changed.append(f"{name}={value}")
                self._client.set_tag(run_id, name, value)
            elif name in tags:  # as in the beginning again
                self._client.delete_tag(run_id, name)
        if tags.get(_NOTE, _CHANGED).startswith(_CHANGED) and (changed or _NOTE in tags):  # else a person's own
            self._client.set_tag(run_id, _NOTE, _CHANGED + (", ".join(changed) or "none"))

    def log(self, at: float, agent_steps: int, values: Mapping[str, float]) -> None:
        milliseconds = round(1000 * at)
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


def has_record(run: Run, settings: Settings) -> bool:
    """Whether an outside record of a run has begun where these settings have it: its newest attempt logged there."""
    newest = next(run.ledger.newest_first(Start, Fork), None)
    return isinstance(newest, Start) and run.settings_of(newest.attempt).log.to == settings.log.to


def needs_nothing(run: Run, settings: Settings) -> bool:
    """Whether a run can be continued though what these settings ask for is not installed, or does not answer."""
    return has_record(run, settings) or not trust.is_own(run.id)


def of(run: Run, notices: list[str], secured: int) -> Tracker | None:
    """The tracker that `log.to` asks for; None for TensorBoard alone, and for a run that the user has not begun, whose
    records others may have written. Takes and raises the same as `Tracker`."""
    name = run.settings.log.to
    if name not in CLIENTS:
        return None
    if not trust.is_own(run.id):
        notices.append(f"log.to={name} gets nothing: this run was not begun here; resume with --set log.to={name}")
        return None
    return Tracker(run, notices, secured)


def _seconds(record: Mapping[str, Any]) -> float:
    """When a line of metrics was logged, in seconds since 1970; now, for one of an older version."""
    try:
        return datetime.fromisoformat(record["time"]).timestamp()
    except (KeyError, TypeError, ValueError):  # users log what they like
        return time.time()


def _settings(run: Run) -> dict[str, Any]:
    return {setting.key: setting.value for setting in describe(run.settings)}


def _id(run: Run, number: int) -> str:
    """The same when a run resumes, and different for a run of the same name elsewhere."""
    return hashlib.sha256(f"{_title(run, number)} {run.description['created']}".encode()).hexdigest()[:16]


def _title(run: Run, number: int) -> str:
    return run.name if number == 1 else f"{run.name} ({number})"
