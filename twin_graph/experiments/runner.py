"""Trains the runs of an experiment, each in a process of its own, by the commands that a person would type.

If this process is killed, nothing is lost: the runs that it started continue to their ends (on Ray they are killed with
it); whoever comes next waits for them, and resumes those that were killed.
"""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, NamedTuple, Protocol

import psutil

from twin_graph.base import ended
from twin_graph.base.signals import on_signal
from twin_graph.config import lookup, trust
from twin_graph.errors import INTERRUPTED_EXIT_CODE, DamagedError, DivergedError, InUseError, TwinGraphError, UsageError
from twin_graph.experiments.experiment import Experiment, State, edited_since, look, state_of
from twin_graph.snapshots.ledger import utc_now
from twin_graph.snapshots.resumable import has_begun
from twin_graph.snapshots.run import DESCRIPTION, Run

if TYPE_CHECKING:
    from twin_graph.experiments.plan import PlannedRun

_LOOK_SECONDS = 0.2
#: Exit codes after which another try is of no use: it would end in the same way.
_HOPELESS = UsageError.exit_code, DamagedError.exit_code, DivergedError.exit_code


class Process(Protocol):
    """A command that was begun, here or elsewhere; a `subprocess.Popen` is one."""

    def poll(self) -> int | None:
        """Its exit code, negative if a signal killed it; None while it runs."""

    def wait(self) -> int:
        """Its exit code, once it has ended."""

    def send_signal(self, sig: int) -> None:
        """Does nothing if it has ended."""


#: Starts `twin-graph` with these arguments, its output appended to a file, on this many threads in all.
Begin = Callable[[list[str], Path, int], Process]


def begin_here(arguments: list[str], log: Path, threads: int) -> Process:  # noqa: ARG001
    """A `Begin`: a process on this machine, which survives if this one is killed."""
    with log.open("ab") as output:
        # In a process group of its own: Ctrl-C reaches it through us, once.
        return subprocess.Popen(
            [sys.executable, "-P", "-m", "twin_graph_cli", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )


class _Job(NamedTuple):
    """A run that is training.

    Attributes:
      planned: which.
      process: None if somebody else started it.
      command: of `twin-graph`.
      started: by the monotonic clock.
      printed: bytes that its log had before.
    """

    planned: PlannedRun
    process: Process | None
    command: str
    started: float
    printed: int


def _trainer(folder: Path) -> psutil.Process | None:
    """The process that trains in a run's folder, or is about to: an `experiment run` that was killed left it."""
    for process in psutil.process_iter(["cmdline"]):
        command = process.info["cmdline"] or ()
        if "twin_graph_cli" in command and str(folder.absolute()) in command:
            return process
    return None


class Runner:
    """Trains what is left of an experiment, `jobs` runs at a time.

    Args:
      experiment: whose lock the caller has.
      jobs: runs at a time.
      retries: how often a run that failed is tried again at once.
      show: called several times a second.
      begin: where the runs train.
      allow_edited: whether to begin runs though a user's module was edited after others began.

    Attributes:
      states: of all runs, by name.
      stop: set by `interrupt`.
    """

    def __init__(
        self,
        experiment: Experiment,
        *,
        jobs: int,
        retries: int,
        show: Callable[[Runner], None],
        begin: Begin = begin_here,
        allow_edited: bool = False,
    ) -> None:
        self.experiment = experiment
        self.states = {state.planned.name: state for state in look(experiment)}
        self.stop = threading.Event()
        self._slots = jobs
        self._tries = dict.fromkeys(self.states, 1 + retries)
        self._show = show
        self._begin = begin
        self._allow_edited = allow_edited
        self._codes = experiment.codes()
        self._waiting = deque(state.planned for state in self.states.values() if state.is_left)
        self._jobs: list[_Job] = []
        self._came = Counter[int]()
        self._requests = 0
        self._signalled: dict[str, int] = {}

    def run(self) -> list[State]:
        """Continues until nothing is left or it is interrupted; returns the states of all runs.

        Signals that ask to stop are passed on to the runs, which save and stop.

        Raises:
          OSError: a record could not be written; the runs were asked to save and stop.
        """
        with on_signal(self._request_stop):
            try:
                while self._jobs or (self._waiting and not self.stop.is_set()):
                    while self._waiting and len(self._jobs) < self._slots and not self.stop.is_set():
                        self._start(self._waiting.popleft())
                    self._pass_on_signals()
                    self._jobs = [job for job in self._jobs if not self._ended(job)]
                    self._show(self)
                    time.sleep(_LOOK_SECONDS)
            finally:
                self._requests = max(1, self._requests)
                self._pass_on_signals()
                for job in self._jobs:
                    if job.process:
                        job.process.wait()
        return list(self.states.values())

    def _start(self, planned: PlannedRun) -> None:
        """Starts a run, or waits for the process that trains it; not one that is done by now, or cannot be trained."""
        state = self._note(planned)
        if state.state in ("done", "damaged"):
            return
        folder = self.experiment.run_folder(planned)
        if state.state == "running" or _trainer(folder):
            self.states[planned.name] = state._replace(state="running")
            self._jobs.append(_Job(planned, None, "", time.monotonic(), 0))
            return
        try:
            _remove_unstarted(folder)
        except TwinGraphError as error:
            self.states[planned.name] = state._replace(state="failed", error=str(error))
            return
        if why := self._edited(planned):
            self.states[planned.name] = state._replace(state="failed", error=why)
            return
        trust.tell_children(planned.settings)
        command = self.experiment.command(planned)
        log = self.experiment.log(planned)
        with log.open("a", encoding="utf-8") as file:
            file.write(f"--- {utc_now()} twin-graph {' '.join(command)}\n")
            printed = file.tell()
        try:
            process = self._begin(command, log, planned.threads)
        except (OSError, TwinGraphError) as error:  # where others can go on
            self._tries[planned.name] -= 1
            if self._tries[planned.name] > 0 and not isinstance(error, UsageError):
                self._waiting.append(planned)
            self.states[planned.name] = state._replace(state="failed", error=str(error))
            return
        self.states[planned.name] = state._replace(state="running", error="")
        self._jobs.append(_Job(planned, process, command[0], time.monotonic(), printed))

    def _edited(self, planned: PlannedRun) -> str:
        """Why a run may not begin: a module of its settings is another one than runs have been trained with."""
        here = {module: (digest,) for module, digest in lookup.sources(planned.settings).items()}
        for name, used in self._codes.items():
            for module in here.keys() & used.keys():
                if used[module] != here[module] and not self._allow_edited:
                    return edited_since(module, [name], self.experiment.folder)
        self._codes[planned.name] = here  # until its own records say so
        return ""

    def _ended(self, job: _Job) -> bool:
        """Whether a job is over; if so, notes what to do about its run."""
        planned = job.planned
        folder = self.experiment.run_folder(planned)
        if job.process is None:
            state = self._note(planned)
            if not self.stop.is_set() and (state.state == "running" or _trainer(folder)):
                return False
            self._codes[planned.name] = self.experiment.code_of(planned)
            if state.state != "done":
                self._waiting.appendleft(planned)
            return True
        code = job.process.poll()
        state = self._note(planned, goes_on=code is None)
        if code is None:
            self.states[planned.name] = state._replace(state="running", error="")
            return False
        self._codes[planned.name] = self.experiment.code_of(planned)  # another machine may have had another
        is_forked = job.command == "fork" and code == 0
        is_fine = state.state == "done" or is_forked or self.stop.is_set()
        error = "" if is_fine else state.error or self._why(job, code)
        # Another process began or resumed it before this one could; this one's own training may still be dying.
        if (state.state == "running" and code >= 0) or code == InUseError.exit_code:
            self._waiting.appendleft(planned)
            return True
        self.experiment.record_outcome(planned, job.command, code, time.monotonic() - job.started, error)
        if is_forked:
            self._waiting.appendleft(planned)
            return True
        self._tries[planned.name] -= 1
        if error and self._tries[planned.name] > 0 and code not in _HOPELESS:
            self._waiting.appendleft(planned)
        self.states[planned.name] = state._replace(
            state="failed" if error and state.state != "damaged" else state.state, error=error
        )
        return True

    def _note(self, planned: PlannedRun, *, goes_on: bool = False) -> State:
        self.states[planned.name] = state = state_of(self.experiment, planned, goes_on=goes_on)
        return state

    def _why(self, job: _Job, code: int) -> str:
        """One line on how a process failed."""
        if code == INTERRUPTED_EXIT_CODE:
            return "interrupted"
        return ended.why(code, self.experiment.log(job.planned), job.printed)

    def _request_stop(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002
        self.stop.set()
        self._came[number] += 1
        # Not their sum: the SIGTERM that follows a warning asks for the same.
        self._requests = max(self._requests, self._came[number])

    def _pass_on_signals(self) -> None:
        """Passes each request that we get on to every run: the first makes it save and end, a second ends it at once.

        By SIGINT: other signals may have reached them without us, as Slurm's reach all processes of a job.
        """
        for job in self._jobs:
            if job.process is None or job.process.poll() is not None:
                continue
            for _ in range(self._signalled.get(job.planned.name, 0), min(2, self._requests)):
                job.process.send_signal(signal.SIGINT)
                time.sleep(0.05)  # two at once would count as one
            self._signalled[job.planned.name] = min(2, self._requests)


def _remove_unstarted(folder: Path) -> None:
    """Removes a run that was killed before its first resume point: there is nothing to resume, and nothing is lost."""
    if not folder.exists():
        return
    if (folder / DESCRIPTION).exists():
        if has_begun(Run(folder)):
            return  # where its points are gone, `resume` says so
    elif any(path.name[0] != "." for path in folder.iterdir()):
        raise TwinGraphError(f"{folder} holds something other than a run; remove it, or choose another --out")
    shutil.rmtree(folder)
