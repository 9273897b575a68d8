"""The runs that the page shows, followed while they train."""

import threading
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from twin_graph import config
from twin_graph.errors import DamagedError, TwinGraphError, UsageError, place
from twin_graph.records import report
from twin_graph.snapshots.forms import EVALUATIONS, LEDGER, METRICS
from twin_graph.snapshots.run import CONTROL, DESCRIPTION, VIDEOS, Run, folders_of_runs
from twin_graph.view.records import Records

# How long a request waits for runs that nobody has read yet; what is missing then comes with the next.
_PATIENCE_SECONDS = 0.1


class ShownRun:
    """A run that the page shows.

    Attributes:
      folder: of the run.
      summary: see `Records.summary`. Before the first `look` its state is `reading`; of a damaged run it is `damaged`,
        of one whose folder was removed `gone`, with the reason.
      changed: the library's version when the summary last changed.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.summary: dict[str, Any] = {"run": folder.resolve().name, "state": "reading"}
        self.changed = 0
        self._files = [folder / name for name in (LEDGER, EVALUATIONS, METRICS, CONTROL, VIDEOS)]
        self._seen: object = None
        self._described: object = None
        self._records: Records | None = None
        self._is_kept = False

    def look(self) -> bool:
        """Whether there is something new, which `summary` then has."""
        described = _stamp(self.folder / DESCRIPTION)
        seen = described, [_stamp(path) for path in self._files]
        if seen == self._seen and not self._may_have_ended():
            return False
        self._seen = seen
        if described is None:
            self._fail("gone", "its folder was removed")
            return True
        try:
            if described != self._described or self._records is None:
                self._records, self._described = Records(Run(self.folder)), described
            self.summary = self._records.summary()
            if self.summary["state"] != "running" and not self._is_kept:
                self._records = None  # a list of runs needs no more of it
        except OSError as error:  # may pass, and the files would not say so: the next look tries again
            before, self._seen = self.summary, None
            self._fail("damaged", str(error))
            return self.summary != before
        except TwinGraphError as error:
            self._fail("damaged", str(error))
        except Exception as error:  # others are shown all the same
            self._fail("damaged", f"{type(error).__name__}: {error} ({place(error)})")
        return True

    def _may_have_ended(self) -> bool:
        try:
            return self.summary["state"] == "running" and not (self._records and self._records.run.state() == "running")
        except TwinGraphError:  # `look` says what is wrong
            return True

    def _fail(self, state: str, reason: str) -> None:
        self.summary = {"run": self.folder.resolve().name, "state": state, "reason": reason}
        self._records = None

    def records(self) -> Records:
        """Opens the run, and keeps what is read of it from here on. Call after `look`.

        Raises:
          UsageError: its folder was removed.
          DamagedError: its records are not what was written.
        """
        if self.summary["state"] == "gone":
            raise UsageError(f"{self.folder} was removed")
        if self.summary["state"] == "damaged":
            raise DamagedError(self.summary["reason"])
        self._is_kept = True
        if self._records is None:
            self._records = Records(Run(self.folder))
            self._records.summary()
        return self._records


class Library:
    """The runs of the page, each known by its place in this list, which stays. For several threads.

    Args:
      folders: of runs that were named.
      folder: all runs in it are shown, also those made later; None for the named ones alone.

    Attributes:
      lock: held by whoever reads a run.
    """

    def __init__(self, folders: Iterable[Path], folder: Path | None) -> None:
        self.lock = threading.Lock()
        self._folder = folder
        self._known = [ShownRun(path) for path in folders]
        self._version = 0

    def find(self, index: int) -> Records:
        """The run with this number. Raises `UsageError` if there is none, or none any more, and `DamagedError`."""
        if not 0 <= index < len(self._known):
            raise UsageError("there is no such run")
        self._look(self._known[index])
        return self._known[index].records()

    def changes(self, since: int) -> tuple[int, list[dict[str, Any]]]:
        """What is new on disk after a version that this returned before; all of it after -1.

        Returns:
          The present version, and the summaries of runs that changed, with their `index`.
        """
        with self.lock:
            if self.is_read:
                self._discover()
            if self.is_read:
                for known in self._known:
                    self._look(known)
            else:
                self._read_more()
            return self._version, [
                {**known.summary, "index": index} for index, known in enumerate(self._known) if known.changed > since
            ]

    @property
    def is_read(self) -> bool:
        """Whether every run that is known was read."""
        return all(known.summary["state"] != "reading" for known in self._known)

    def tree(self) -> list[tuple[int, int]]:
        """Depth and number of each run, forks after the run that they were forked from."""
        with self.lock:
            summaries = [
                {**known.summary, "index": index}
                for index, known in enumerate(self._known)
                if known.summary["state"] != "gone"
            ]
        by_name = sorted(summaries, key=lambda summary: str(summary["run"]))
        runs = [(str(one["run"]), str((one.get("forked_from") or {}).get("run", ""))) for one in by_name]
        return [(depth, by_name[place]["index"]) for depth, place in report.tree(runs)]

    def differences(self, indexes: Sequence[int]) -> list[dict[str, Any]]:
        """The settings in which runs differ, with the value of each."""
        runs = [self.find(index).run for index in indexes]
        described = [{setting.key: setting.value for setting in config.describe(run.settings)} for run in runs]
        return [
            {"key": key, "values": [settings[key] for settings in described]}
            for key, value in described[0].items()
            if any(settings[key] != value for settings in described)
        ]

    def _discover(self) -> None:
        if self._folder is None:
            return
        folders = {known.folder for known in self._known}
        self._known += [ShownRun(folder) for folder in folders_of_runs(self._folder) if folder not in folders]

    def _read_more(self) -> None:
        """Reads some runs that nobody has read yet; one at least, or there would be no end to it on slow storage."""
        until = time.monotonic() + _PATIENCE_SECONDS
        for known in self._known:
            if known.summary["state"] == "reading":
                self._look(known)
                if time.monotonic() > until:
                    break

    def _look(self, known: ShownRun) -> None:
        if known.look():
            self._version += 1
            known.changed = self._version


def _stamp(path: Path) -> tuple[int, int] | None:
    """Changes when the file does, or what is in the folder."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size
