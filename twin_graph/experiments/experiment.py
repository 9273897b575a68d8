"""The folder of an experiment, and how far its runs have come.

checkpoints/experiments/<name>/
  experiment.json      the file, its preset, and what was measured and fixed at the start
  outcomes.jsonl       how each process of a run ended
  <run>/               an ordinary run
  logs/<run>.log       what its processes said
  report/              see `twin_graph.experiments.report`

Only the runs' own records say what is done.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import filelock

from twin_graph import config
from twin_graph.base import machine
from twin_graph.base.here import absolute
from twin_graph.base.text import counted
from twin_graph.errors import DamagedError, InUseError, TwinGraphError, UsageError
from twin_graph.experiments import plan as plans
from twin_graph.experiments.trial import Trial
from twin_graph.records import code
from twin_graph.snapshots.files import (
    acquire,
    append_line,
    checked,
    file_lock,
    hold_folder,
    make_folder,
    read_file,
    read_lines,
    write_file,
)
from twin_graph.snapshots.fork import settings_from
from twin_graph.snapshots.forms import check_plain
from twin_graph.snapshots.ledger import Point, utc_now
from twin_graph.snapshots.run import DESCRIPTION, RUNS, Run, check_new_folder
from twin_graph.targets.evaluations import Matches

if TYPE_CHECKING:
    from twin_graph.experiments.plan import Origin, Pairs, Plan, PlannedRun

EXPERIMENTS = RUNS / "experiments"
_FORMAT = 1
_RECORD, _OUTCOMES, _LOGS = "experiment.json", "outcomes.jsonl", "logs"
#: Settings that each run would measure for itself, wrongly while other runs train.
_MEASURED = "twin.threads", "twin.precision"


class Experiment:
    """An experiment's folder: its plan, and what is known about its runs.

    Attributes:
      folder: of the experiment.
      plan: what to run.
      fixed: settings that all runs have in addition to the file's: threads and precision.
      trial: what was measured before the start.
    """

    def __init__(self, folder: Path, plan: Plan, fixed: Pairs, trial: Trial) -> None:
        self.folder = folder = absolute(folder)
        self.plan = plan
        self.fixed = fixed
        self.trial = trial

    @classmethod
    def open(cls, folder: Path) -> Experiment:
        """The experiment in a folder. Raises `UsageError` if there is none, `DamagedError`."""
        path = folder / _RECORD
        if not path.exists():
            raise UsageError(f"no experiment in {folder}; `twin-graph experiment run FILE.toml` makes one")
        check_plain(folder, runs_apart=True)
        record = read_file(path)
        try:
            if record["format"] != _FORMAT:
                raise UsageError(f"it has format {record['format']}, and this version of twin-graph reads {_FORMAT}")
            trial = Trial(*(record["trial"][name] for name in Trial._fields))
            return cls(folder, *plans.recorded(record), trial)
        except (LookupError, TypeError, ValueError, AttributeError, UsageError) as error:
            raise DamagedError(f"{path} cannot be used: {error}") from None

    @staticmethod
    def is_begun(folder: Path) -> bool:
        """Whether there is an experiment in a folder."""
        return (folder / _RECORD).exists()

    @classmethod
    def origin_in(cls, folder: Path) -> plans.Origin | None:
        """The run from which those in a folder are forked, if there is an experiment and they are."""
        return cls.open(folder).plan.origin if cls.is_begun(folder) else None

    @classmethod
    def check_free(cls, folder: Path) -> None:
        """Raises `InUseError` if there is an experiment in a folder, and somebody trains it."""
        if cls.is_begun(folder):
            with cls.open(folder).lock():
                pass

    @classmethod
    def prepare(
        cls, plan: Plan, folder: Path, jobs: int, measure: Callable[[Mapping[str, config.Settings]], Trial]
    ) -> Experiment:
        """The experiment of a plan, in a folder that may have a part of it already. Writes nothing.

        Args:
          plan: what is to be run.
          folder: of the experiment.
          jobs: runs at a time; decides the threads of each when an experiment begins.
          measure: see `twin_graph.experiments.trial.run`.

        Raises:
          UsageError: the folder has another experiment, or something else, or a run cannot be trained.
        """
        if cls.is_begun(folder):
            begun = cls.open(folder)
            was = begun.plan
            grown = plans.parse(plan.text, fixed=begun.fixed, origin=was.origin, preset=was.preset, names=was.names)
            _check_same(begun.plan, grown, folder)
            trial = begun.trial
            if list(map(_kind, _one_of_each(grown))) != list(map(_kind, _one_of_each(begun.plan))):
                trial = measure(_by_kind(grown))
            return cls(folder, grown, begun.fixed, trial)
        if folder.exists() and (not folder.is_dir() or any(path.name[0] != "." for path in folder.iterdir())):
            raise UsageError(f"{folder} holds something other than an experiment; choose another --out")
        check_new_folder(folder / "run", "choose another --out")  # says so if a run could not be made there
        fixed = _fixed(plan, jobs)
        new = plans.parse(plan.text, fixed=fixed, origin=plan.origin)
        return cls(folder, new, fixed, measure(_by_kind(new)))

    def write(self) -> None:
        """Records what it is; the caller has its lock. Raises `UsageError` if somebody began another one meanwhile."""
        if self.is_begun(self.folder):
            begun = self.open(self.folder)
            _check_same(begun.plan, self.plan, self.folder)
            if begun.fixed != self.fixed:
                raise UsageError(f"another `experiment run` began {self.folder} meanwhile; run this one again")
        record = {
            "format": _FORMAT,
            "name": self.plan.name,
            "trial": self.trial._asdict(),
            **plans.record(self.plan, self.fixed),
        }
        write_file(self.folder / _RECORD, checked(record, indent=1))
        make_folder(self.folder / _LOGS)

    @property
    def lock_file(self) -> Path:
        return self.folder / ".lock"

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        """Makes the folder; while it lasts, nobody else starts runs here.

        Raises:
          InUseError: somebody does already.
          MovedError: the folder was moved meanwhile.
        """
        make_folder(self.folder)
        lock = file_lock(self.lock_file)
        try:
            acquire(lock, self.folder)
        except filelock.Timeout:
            raise InUseError(f"{self.folder} is in use: another `experiment run` trains it") from None
        try:
            with hold_folder(self.folder):
                yield
        finally:
            lock.release()

    def disk(self, runs: Sequence[PlannedRun]) -> int:
        """Bytes that these runs will need, in all."""
        sizes = dict(zip(map(_kind, _one_of_each(self.plan)), self.trial.disk, strict=True))
        return sum(sizes[_kind(run)] for run in runs)

    def run_folder(self, planned: PlannedRun) -> Path:
        """Where a run is, or will be."""
        return self.folder / planned.name

    def log(self, planned: PlannedRun) -> Path:
        """What the processes of a run said."""
        return self.folder / _LOGS / f"{planned.name}.log"

    def found(self, planned: PlannedRun) -> Run | None:
        """The run, if it has begun. Raises `UsageError` if its settings are not those planned."""
        folder = self.run_folder(planned)
        if not (folder / DESCRIPTION).exists():
            return None
        run = Run(folder)
        for key, ours, theirs in self.differences(planned, run.settings):
            raise UsageError(
                f"{folder} is not what the file says: {key} is {theirs} there and {ours} in the file; remove that "
                "folder to train the run anew, or choose another --out"
            )
        if planned.point and not planned.nudge:
            origin = run.description.get("forked_from") or {}
            if origin.get("weights_sha256") != planned.point.weights_sha256:
                raise UsageError(f"{folder} does not begin with the weights of resume point {planned.point.number}")
        return run

    @staticmethod
    def differences(planned: PlannedRun, settings: config.Settings) -> Iterator[tuple[str, Any, Any]]:
        """What keeps settings from being those of a planned run: name, value in the plan, and here."""
        differing = config.differences(planned.settings, settings)
        return ((key, ours, theirs) for key, ours, theirs in differing if key not in (*_MEASURED, "train.steps"))

    def code_of(self, planned: PlannedRun) -> code.Code:
        """The users' modules with which a run was trained; none if it has not begun, or is damaged."""
        try:
            run = self.found(planned)
            return code.of(run, since_fork=True) if run else {}
        except (DamagedError, UsageError):
            return {}

    def codes(self) -> dict[str, code.Code]:
        """The users' modules with which each run was trained, by the run's name."""
        return {planned.name: self.code_of(planned) for planned in self.plan.runs}

    def check_code(self) -> None:
        """Raises `UsageError` if a run was trained with another file of a user's module than is there now."""
        for module, names in code.edited(self.codes()).items():
            raise UsageError(edited_since(module, names, self.folder))

    def command(self, planned: PlannedRun) -> list[str]:
        """The arguments of `twin-graph` that start a run, or continue it; one that is forked begins to train after."""
        folder = str(self.run_folder(planned).absolute())  # so that `_trainer` finds it, wherever it is called
        if self.found(planned):
            return ["resume", folder, "--steps", str(self.plan.steps)]
        if self.plan.origin and planned.point:
            sets = [f"--set={assignment(key, value)}" for key, value in _changes(self.plan.origin, planned)]
            named = ["--at", str(planned.point.number), "--seed", str(planned.seed), "--run-dir", folder]
            return ["fork", str(self.plan.origin.folder), *named, *(["--nudge"] if planned.nudge else []), *sets]
        named = ["--steps", str(self.plan.steps), "--seed", str(planned.seed), "--run-dir", folder]
        # From the preset as it is now, which may have changed since the experiment began.
        preset = config.load(self.plan.preset.preset, [("train.steps", self.plan.steps), ("seed", planned.seed)])
        sets = [f"--set={assignment(key, value)}" for key, _, value in config.differences(preset, planned.settings)]
        return ["train", preset.preset, *named, *sets]

    def record_outcome(self, planned: PlannedRun, command: str, code: int, seconds: float, error: str) -> None:
        """Remembers how a process of a run ended, durably."""
        line = {"run": planned.name, "time": utc_now(), "command": command, "code": code}
        append_line(self.folder / _OUTCOMES, {**line, "seconds": round(seconds, 3), "error": error})

    def failures(self) -> dict[str, str]:
        """By name of a run, why its newest process failed; those that went well since are not there."""
        newest = {record["run"]: record["error"] for record in self._outcomes()}
        return {name: error for name, error in newest.items() if error}

    def seconds_left(self, states: Sequence[State], jobs: int) -> tuple[float, str]:
        """About how long the rest will take, and how that is known."""
        spent: dict[str, float] = {}
        for record in self._outcomes():
            spent[record["run"]] = spent.get(record["run"], 0.0) + record["seconds"]
        done = [spent[s.planned.name] for s in states if s.state == "done" and s.planned.name in spent]
        length = sum(run.length for run in self.plan.runs) / len(self.plan.runs)
        by_run = sum(done) / len(done) if done else self.trial.startup + length / self.trial.rate
        how = (
            f"{counted(len(done), 'run')} took {by_run:.0f} s each"
            if done
            else f"measured: {self.trial.rate:.0f} agent steps/s in the first run, without evaluations"
        )
        left = [s.planned.length - s.trained for s in states if s.is_left]
        return sum(left) / length * by_run / max(1, min(jobs, len(left))), how

    def _outcomes(self) -> list[dict[str, Any]]:
        return [line.record for line in read_lines(self.folder / _OUTCOMES) if line.record]


def edited_since(module: str, names: Sequence[str], folder: Path) -> str:
    """What to do where a user's module was edited after these runs began, in words."""
    return (
        f"{module} was edited after {code.some(names)} began, and runs of different code do not compare: put its file "
        f"back, remove the folders of those runs in {folder} to train them anew, choose another --out, or mix them by "
        "--allow-edited"
    )


def _changes(origin: Origin, planned: PlannedRun) -> Pairs:
    """The settings by which a run differs from what `fork` would make of the origin now, but for the seed: somebody may
    have resumed the origin with others since the experiment began."""
    assert planned.point
    try:
        parent = Run(origin.folder)
        point = parent.points().readable(planned.point.number)
    except TwinGraphError:
        point = None
    if point is None:  # `fork` says so
        return planned.overrides
    different = config.differences(settings_from(parent, point), planned.settings)
    return tuple((key, value) for key, _, value in different if key != "seed")


def assignment(key: str, value: Any) -> str:
    """A setting as `--set` takes it, so that it is read as the same value again."""
    # JSON is TOML here, but for one character that TOML wants escaped.
    text = "null" if value is None else json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    return f"{key}={text}"


def _one_of_each(plan: Plan) -> list[PlannedRun]:
    """The first run of each kind: they differ by more than their seeds."""
    return list({_kind(run): run for run in reversed(plan.runs)}.values())[::-1]


def _by_kind(plan: Plan) -> dict[str, config.Settings]:
    """The settings of each kind of run, by what people call it."""
    return {
        run.condition if len(plan.tasks) == 1 else f"{run.condition}, {run.task}": run.settings
        for run in _one_of_each(plan)
    }


def _kind(run: PlannedRun) -> tuple[str, str]:
    return run.condition, run.task


def _fixed(plan: Plan, jobs: int) -> Pairs:
    """Threads and precision, where the file and the preset leave them to be measured: all runs shall have the same."""
    processes = jobs * max(1, *(run.settings.workers.count for run in plan.runs))
    chosen = {"twin.threads": max(1, machine.describe().cores // processes), "twin.precision": "fp32"}
    if plan.origin:  # the runs keep what was fixed for the one that they are forked from
        return ()
    twins = [run.settings.twin for run in plan.runs]
    left_open = {
        "twin.threads": any(twin.threads == 0 for twin in twins),
        "twin.precision": any(twin.precision == "auto" for twin in twins),
    }
    return tuple((key, value) for key, value in chosen.items() if left_open[key])  # what the file names goes before


def _check_same(begun: Plan, wanted: Plan, folder: Path) -> None:
    """Raises `UsageError` unless all that was planned is still wanted, as it was: an experiment may only grow. How its
    scores are normalised may change."""
    if begun.last != wanted.last:
        raise UsageError(
            f"{folder} belongs to another file: last_evaluations is {begun.last} there and {wanted.last} in this one; "
            f"keep it, and look at others by `twin-graph experiment report {folder} --last {wanted.last}`"
        )
    if begun.runs[0].condition != wanted.runs[0].condition:
        raise UsageError(
            f"{folder} belongs to another file: conditions are compared with the first one, which is "
            f"{begun.runs[0].condition} there and {wanted.runs[0].condition} in this one; choose another --out"
        )
    ours = {run.name: run for run in wanted.runs}
    for theirs in begun.runs:
        run = ours.get(theirs.name)
        if run is None:
            raise UsageError(
                f"{folder} belongs to another file: {theirs.name} is planned there and not in this one; choose "
                "another --out (values and seeds may be added to a file, not taken away)"
            )
        for key, before, now in config.differences(theirs.settings, run.settings):
            raise UsageError(
                f"{folder} belongs to another file: {key} is {before} there and {now} in this one; choose another --out"
            )


class State(NamedTuple):
    """How far a run has come.

    Attributes:
      planned: which.
      state: `waiting` (not begun), `cut` (begun, and not at its end), `running`, `done`, `failed`, `damaged` (or with
        other settings than planned).
      agent_steps: as far as its records say; while nobody trains it, those of its newest resume point.
      error: why it failed.
    """

    planned: PlannedRun
    state: str
    agent_steps: int
    error: str = ""

    @property
    def is_left(self) -> bool:
        """Whether `experiment run` trains it: not where that is done, or a person has to look first."""
        return self.state not in ("done", "damaged")

    @property
    def trained(self) -> int:
        """Agent steps since it began, of `planned.length`: those before a fork were the parent's."""
        return max(0, self.agent_steps - self.planned.span[0])


def look(experiment: Experiment) -> list[State]:
    """How each run is, by its own records."""
    failures = experiment.failures()
    return [state_of(experiment, planned, failures.get(planned.name, "")) for planned in experiment.plan.runs]


def state_of(experiment: Experiment, planned: PlannedRun, error: str = "", *, goes_on: bool = False) -> State:
    """How a run is, by its own records.

    Args:
      experiment: of which it is one.
      planned: which.
      error: why its newest process failed; empty if it did not.
      goes_on: its process is known to be alive.
    """
    try:
        run = experiment.found(planned)
        if run is None:
            return State(planned, "failed" if error else "waiting", planned.span[0], error)
        if not goes_on and _is_complete(run, planned):
            return State(planned, "done", experiment.plan.steps)
        # A process that is known to be alive is not asked: it may be about to take the lock that this looks at.
        if goes_on or run.state() == "running":
            steps = run.newest_metrics().get("agent_steps", planned.span[0])
            return State(planned, "running", min(steps, experiment.plan.steps))
    except (DamagedError, UsageError) as damage:  # UsageError: somebody has changed its settings
        return State(planned, "damaged", 0, str(damage))
    return State(planned, "failed" if error else "cut", min(_kept_steps(run), experiment.plan.steps), error)


def _kept_steps(run: Run) -> int:
    """The agent steps of its newest resume point; 0 without any."""
    newest = next(run.ledger.newest_first(Point), None)
    return newest.counters.agent_steps if newest else 0


def _is_complete(run: Run, planned: PlannedRun) -> bool:
    """Whether it has all that was planned; somebody may have resumed it for longer since."""
    steps = planned.settings.train.steps
    return _kept_steps(run) >= steps and Matches(run).complete(steps, planned.settings)
