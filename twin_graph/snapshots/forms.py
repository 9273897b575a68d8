"""What the records of a run may hold: checked where they are read, since anybody may have written them.

A checksum says that a record is what was written, not by whom. So ids and names of files have one pattern each, numbers
a range and values a type, before anything is made of them.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import pydantic
from pydantic import BaseModel, ConfigDict, Field

from twin_graph.base.counters import LARGEST_FILE, Counters, Whole
from twin_graph.errors import DamagedError

RECORDS = LEDGER, EVALUATIONS, METRICS = "ledger.jsonl", "evaluations.jsonl", "metrics.jsonl"

_NUMBER = r"[0-9]{6,15}"
LAST_NUMBER = 10**15 - 1  # of snapshots and resume points
_ID = rf"{_NUMBER}-[0-9a-f]{{8}}|import-[0-9a-f]{{12}}"
_REQUEST = r"request-[0-9]{20}-[0-9a-f]{8}"
#: Of a snapshot: its number and the beginning of its weights' hash, or, of one that was brought in, of that alone.
ID = re.compile(_ID)
#: Of the folder of a resume point.
POINT_FOLDER = re.compile(_NUMBER)
#: Of a person's request.
REQUEST_ID = re.compile(_REQUEST)
#: Of the updates that a worker applied in an attempt.
UPDATES_FILE = re.compile(r"(?P<worker>worker-[0-9]{1,5})-(?P<attempt>[0-9]{6,15})\.updates")
#: Of W&B's own files in a run's folder, which has links of its own and which nothing here reads.
FOREIGN_FOLDER = "wandb"

SnapshotId = Annotated[str, Field(pattern=rf"^({_ID})$")]
#: Or none: empty.
OptionalSnapshotId = Annotated[str, Field(pattern=rf"^({_ID})?$")]
RequestId = Annotated[str, Field(pattern=rf"^({_REQUEST})?$")]
FileName = Annotated[str, Field(pattern=r"^[^/.\x00-\x1f\x7f][^/\x00-\x1f\x7f]{0,200}$")]
LearnerName = Annotated[str, Field(pattern=r"^[a-z]{1,16}$")]
WorkerName = Annotated[str, Field(pattern=r"^(worker-[0-9]{1,5})?$")]


def _each_once(files: tuple[Any, ...]) -> tuple[Any, ...]:
    if len({file.name for file in files}) < len(files):
        raise ValueError("names a file twice")
    return files


#: Of files with names, each of which there is once.
EachOnce = pydantic.AfterValidator(_each_once)


def _of_all_records(lengths: dict[str, int]) -> dict[str, int]:
    if lengths and lengths.keys() != set(RECORDS):
        raise ValueError(f"must have the lengths of {', '.join(RECORDS)}")
    return lengths


#: Of each file of records in bytes, by its name; empty in some of earlier versions.
Lengths = Annotated[dict[str, Annotated[int, Field(ge=0, le=LARGEST_FILE)]], pydantic.AfterValidator(_of_all_records)]


class Record(BaseModel):
    """The base of everything read from a run's records: no unknown keys, no changes."""

    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)


def first_problem(error: pydantic.ValidationError) -> str:
    """One line for the first thing that is wrong with a record."""
    first: Any = error.errors()[0]
    where = ".".join(str(part) for part in first["loc"])
    return f"{f'{where}: ' if where else ''}{first['msg'].removeprefix('Value error, ')}"


class _Document(BaseModel):
    """The base of what is used as it is in JSON, once it is clear that what is used of it is there."""

    model_config = ConfigDict(extra="allow", frozen=True, strict=True, defer_build=True)


class _PastSettings(_Document):
    attempt: Whole
    settings: dict[str, Any]
    settings_sha256: str


class _ForkedFrom(_Document):
    run: str
    folder: str = ""
    point: Whole
    updates: Whole
    moved: str = ""


_Plain = str | int | float | bool | None


class Description(_Document):
    """What is used of `run.json`, besides its format."""

    id: str = Field("", pattern=r"^([0-9a-f]{32})?$")
    created: str
    settings: dict[str, Any]
    settings_sha256: str
    protocol: dict[str, _Plain | list[_Plain]]
    versions: dict[str, str]
    cpu: dict[str, _Plain | list[str]]
    past_settings: list[_PastSettings]
    forked_from: _ForkedFrom | None = None


class EvaluationLine(_Document):
    """What is used of a line of `evaluations.jsonl`."""

    attempt: Whole
    time: str
    snapshot: SnapshotId
    scheduled: bool
    played_at: dict[str, Whole] | None
    challenger: str
    agent_steps: Whole
    updates: Whole
    mean: float | None
    interval_95: Annotated[list[float | None], Field(min_length=2, max_length=2)] | None
    returns: list[float] = Field(min_length=1)
    seeds: list[int] = []
    q_start: list[float | None] | None = None
    protocol: dict[str, _Plain | list[_Plain]]

    @pydantic.field_validator("played_at")
    @classmethod
    def _are_counters(cls, played_at: dict[str, int] | None) -> dict[str, int] | None:
        if played_at is not None and played_at.keys() != set(Counters.model_fields):
            raise ValueError(f"must have {', '.join(Counters.model_fields)}")
        return played_at


class MetricsLine(_Document):
    """What is used of the newest line of `metrics.jsonl`; the rest is shown if it is numbers."""

    attempt: Whole
    agent_steps: Whole
    updates: Whole
    frames: Whole
    episodes: Whole
    agent_steps_per_second: float | None


class GameLine(_Document):
    """What is used of a line of `games.jsonl`."""

    rules: dict[str, _Plain]
    keys: list[str] = Field(min_length=2, max_length=2)
    returns: list[float]


class Holder(_Document):
    """Who has a run's lock, as `control/holder.json` says."""

    pid: int
    host: str
    purpose: str
    since: str


def problem(form: type[BaseModel], record: Any) -> str:
    """What keeps a record from having a form, in words; empty if it has it."""
    try:
        form.model_validate(record)
    except pydantic.ValidationError as error:
        return first_problem(error)
    return ""


_FILES = re.compile(r"^lock$|\.(index|jsonl?|mp4|npys?|npz|updates)$")
_KINDS = {stat.S_IFIFO: "a pipe", stat.S_IFSOCK: "a socket", stat.S_IFCHR: "a device", stat.S_IFBLK: "a device"}


def check_plain(folder: Path, *, runs_apart: bool = False) -> None:
    """Raises `DamagedError` if there is anything in the folder of a run but folders and files, each in their places: a
    link would lead elsewhere, and to open a pipe or a device may take forever.

    Args:
      folder: of the run, or of an experiment.
      runs_apart: leave out what is in folders of runs inside, which is looked at when these are opened.
    """
    for entry in _entries(folder, runs_apart=runs_apart):
        with contextlib.suppress(FileNotFoundError):  # what a process that trains has removed meanwhile
            if _FILES.search(entry.name) and entry.is_dir(follow_symlinks=False):
                raise DamagedError(f"{entry.path} is damaged: it is a folder")
            if not (entry.is_file(follow_symlinks=False) or entry.is_dir(follow_symlinks=False)):
                kind = stat.S_IFMT(entry.stat(follow_symlinks=False).st_mode)
                what = "a symbolic link" if entry.is_symlink() else _KINDS.get(kind, "no file")
                raise DamagedError(f"{entry.path} is {what}, which no run has; look where it comes from, and remove it")


def _entries(folder: Path, *, runs_apart: bool) -> Iterator[os.DirEntry[str]]:
    waiting, foreign = [str(folder)], str(folder / FOREIGN_FOLDER)
    while waiting:
        inside = waiting.pop()
        try:
            with os.scandir(inside) as entries:
                for entry in entries:
                    yield entry
                    is_run = runs_apart and os.path.lexists(os.path.join(entry.path, "run.json"))  # noqa: PTH118
                    if entry.is_dir(follow_symlinks=False) and entry.path != foreign and not is_run:
                        waiting.append(entry.path)
        except FileNotFoundError:  # what a process that trains has removed meanwhile
            continue
        except NotADirectoryError as error:
            raise DamagedError(f"{inside} is no folder: {error.strerror}") from None
