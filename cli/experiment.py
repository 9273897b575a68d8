"""`twin-graph experiment run` and `experiment report`."""

from __future__ import annotations

import contextlib
import functools
import itertools
import shutil
import time
from collections.abc import Iterable
from contextlib import AbstractContextManager
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import click
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from twin_graph.base import doing, machine, new_files
from twin_graph.base.doing import LINE_SECONDS
from twin_graph.base.here import absolute, shortened
from twin_graph.base.text import command, counted, size
from twin_graph.errors import INTERRUPTED_EXIT_CODE, TwinGraphError, UsageError
from twin_graph.experiments import plan as plans
from twin_graph.experiments import trial
from twin_graph.experiments.experiment import EXPERIMENTS, Experiment, State, look
from twin_graph.experiments.runner import Begin, Runner, begin_here
from twin_graph.records import code
from twin_graph.remote.sending import check_writable
from twin_graph.remote.urls import place_at
from twin_graph.training.lines import RATE_SECONDS, clock

from .display import Meter
from .params import PATH, Count, extra_is_missing, json_option, print_json, say, stderr, stdout, trust_option
from .remote import place_to_train_with
from .tables import print_table

if TYPE_CHECKING:
    from twin_graph.experiments.results import Result

_RETRIES = 1  # of a run that fails


@click.group()
def experiment() -> None:
    """Compare settings over several seeds, with statistics: a file names them, `run` trains, `report` compares.

    \b
    Example:
      twin-graph experiment run studies/cartpole-policies.toml --dry-run
      twin-graph experiment run studies/cartpole-policies.toml --jobs 2
      twin-graph experiment report cartpole-policies
    """


@experiment.command()
@click.argument("file", type=PATH)
@click.option("--out", type=PATH, help=f"The experiment's folder.  [default: {EXPERIMENTS}/NAME]")
@click.option("--jobs", type=Count(min=1), default=1, show_default=True, help="How many runs train at once.")
@click.option(
    "--retries",
    type=Count(min=0),
    default=_RETRIES,
    show_default=True,
    help="How often to retry a run that fails.",
)
@click.option(
    "--executor",
    type=click.Choice(["local", "ray"]),
    default="local",
    show_default=True,
    help="Where to train: on this machine, or where Ray schedules it.",
)
@click.option(
    "--remote",
    metavar="URL",
    help="With --executor ray: machines share no storage; each sends its runs to URL/NAME, and they are fetched from "
    "there.",
)
@click.option(
    "--allow-edited",
    is_flag=True,
    help="Continue though a module of your own was edited after runs began. Reports then name their different code.",
)
@click.option("--dry-run", is_flag=True, help="Show the plan, with time and disk; begin no run, write nothing.")
@trust_option
@json_option
def run(
    file: Path,
    out: Path | None,
    jobs: int,
    retries: int,
    executor: str,
    remote: str | None,
    allow_edited: bool,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Train all runs of the experiment in FILE. Run it again to continue where it stopped.

    FILE is TOML: name, preset, steps, seeds, [factors] and, optionally, [settings] and [scores]; see
    docs/experiments.md. Finished runs are skipped, interrupted ones are resumed, failed ones are tried again. Ctrl-C
    makes all runs save and stop.

    With --executor ray (pip install 'twin-graph[ray]') runs train on the machines of the Ray cluster at RAY_ADDRESS,
    HOST:PORT, with storage that they all share, or with --remote; without an address, on a local Ray instance, started
    for this command only.

    \b
    Examples:
      twin-graph experiment run studies/cartpole-policies.toml --dry-run
      twin-graph experiment run studies/cartpole-policies.toml --jobs 2
      RAY_ADDRESS=10.0.0.1:6379 twin-graph experiment run studies/cartpole-policies.toml --jobs 8 --executor ray
    """
    if executor == "ray":
        try:
            from twin_graph.experiments import on_ray
        except ImportError as error:
            raise extra_is_missing("--executor ray", "ray", error) from None
        on_ray.check_address()
    if remote and executor != "ray":
        raise UsageError("--remote is for --executor ray")
    plan = plans.read(file, lambda name: Experiment.origin_in(out or EXPERIMENTS / name))
    plans.check_plan(plan, file)
    if remote:
        if plan.origin:
            raise UsageError(f"--remote: the runs of {file} are forks, which need the folder of the run they fork")
        remote = remote.rstrip("/")
        place_to_train_with(f"{remote}/{plan.runs[0].name}")
    folder = out or EXPERIMENTS / plan.name
    plans.check_new(plan, file, Experiment.open(folder).plan.conditions if Experiment.is_begun(folder) else ())
    if not dry_run:
        Experiment.check_free(folder)
    found = Experiment.prepare(plan, folder, jobs, trial.run)
    if not allow_edited:
        found.check_code()
    states = look(found)
    _check_room(found, states, jobs if executor == "local" else 1)
    _show_plan(found, states, jobs, stdout if dry_run and not as_json else stderr)
    if remote:
        on_ray.check_remote(found, remote)
    if not dry_run:
        if remote:
            check_writable(place_at(f"{remote}/{plan.runs[0].name}"))
        place: AbstractContextManager[Begin] = contextlib.nullcontext(begin_here)
        if executor == "ray":
            threads = max(run.threads for run in found.plan.runs)
            place = on_ray.cluster(found.lock_file, threads, found.trial.memory, remote)
        with place as begin, found.lock(), ExperimentDisplay(found) as display:
            found.write()
            training = Runner(
                found, jobs=jobs, retries=retries, show=display.show, begin=begin, allow_edited=allow_edited
            )
            states = training.run()
    if as_json:
        print_json(_summary(found, states, jobs))
    if not dry_run:
        again = _again(file, out, jobs, retries, executor, remote, allow_edited=allow_edited)
        _say_how_it_ended(found, states, again, interrupted=training.stop.is_set())


def _again(
    file: Path, out: Path | None, jobs: int, retries: int, executor: str, remote: str | None, *, allow_edited: bool
) -> str:
    """The command that continues, with those of the options that were given."""
    options = {
        "--out": out,
        "--jobs": jobs if jobs > 1 else None,
        "--retries": retries if retries != _RETRIES else None,
        "--executor": executor if executor != "local" else None,
        "--remote": remote,
    }
    given = [word for option, value in options.items() if value is not None for word in (option, value)]
    return command("experiment", "run", file, *given, *(["--allow-edited"] if allow_edited else []))


def _say_how_it_ended(found: Experiment, states: list[State], again: str, *, interrupted: bool) -> None:
    say(f"{sum(state.state == 'done' for state in states)} of {counted(len(states), 'run')} done, in {found.folder}")
    if interrupted:
        say(f"interrupted; continue with: {again}")
        raise click.exceptions.Exit(INTERRUPTED_EXIT_CODE)
    for sentence in code.mixed(found.codes()):
        say(sentence)
    failed = [state for state in states if state.state in ("failed", "damaged")]
    for state in failed:
        more = f"  (more in {found.log(state.planned)})" if state.state == "failed" else ""
        say(f"{state.state}: {state.planned.name}: {state.error}{more}")
    say(f"next: {command('experiment', 'report', found.folder)}")
    if failed:
        advice = f"; try again with: {again}" if any(state.is_left for state in failed) else ""
        raise TwinGraphError(f"{len(failed)} of {counted(len(states), 'run')} failed{advice}")


@experiment.command()
@click.argument("folders", metavar="FOLDER [MORE]...", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option(
    "--last",
    type=Count(min=1),
    metavar="K",
    help="A run's score is the mean of its last K evaluations, whatever the file says (last_evaluations).",
)
@click.option("--also", type=click.Choice(["pdf", "svg"]), help="Draw each picture in this format, too, for a paper.")
@json_option
def report(folders: tuple[Path, ...], last: int | None, also: str | None, as_json: bool) -> None:
    """Compare the runs of the experiment in FOLDER, finished or not.

    FOLDER may also be a name under checkpoints/experiments/, or a folder with the tables of a report, which is then
    drawn again from them. Runs that are not done in FOLDER are taken from MORE, folders in which other runs of the
    same experiment were trained, on another machine for example, and from the tables of its last report. Writes
    FOLDER/report/index.html, a single file that works offline, and the same as report.md, CSV files and PNG pictures.
    Needs an extra: pip install 'twin-graph[experiments]'.

    \b
    Example:
      twin-graph experiment report cartpole-policies
      twin-graph experiment report studies/results/cartpole-policies --last 6 --also pdf
      twin-graph experiment report pong-short from-the-other-machine/pong-short
    """
    folder, *more = map(_named, folders)
    doing.now("loading what reports need")
    try:
        from twin_graph.experiments import fonts, tables
        from twin_graph.experiments import report as library
    except ImportError as error:
        raise extra_is_missing("a report", "experiments", error) from None

    with Meter() as meter:
        meter.show("reading the runs", 0, 1)
        plan, fixed, read = tables.found(folder, more)
        for other in more:
            say(f"{counted(sum(result.taken_from == shortened(str(other)) for result in read), 'run')} from {other}")
        if last is not None:
            plan = plan.scored_by(last)
            read = [result.scored_by(last) for result in read]
        _say_mixed(read)
        written, numbers = library.write(plan, fixed, read, folder / tables.REPORT, meter.show, also=also)
        for sentence in fonts.without_font([*plan.conditions, *plan.tasks]):
            say(sentence)
    if as_json:
        print_json(numbers)
        return
    for path in written:
        stdout.print(shortened(str(path)))


@experiment.command("clock")
@click.argument("folders", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option(
    "--served",
    type=Count(min=1),
    default=1,
    show_default=True,
    help="Only runs whose targets served a median of at least this many updates; networks need time to fit them.",
)
@click.option("--plot", type=PATH, help="Also write a picture to this PNG, SVG or PDF file.")
@json_option
def ledgers_clock(folders: tuple[Path, ...], served: int, plot: Path | None, as_json: bool) -> None:
    """Compare what snapshots expect with what the ledger predicts, from the tables in FOLDERS.

    The ledger records which snapshots every value passed through, and so how many rewards a network can have learned
    about. Each of FOLDERS is an experiment with a report, by its folder or its name, or a folder of tables such as
    those in studies/results.

    \b
    Examples:
      twin-graph experiment clock cartpole-policies
      twin-graph experiment clock studies/results/cartpole-policies --served 250 --plot clock.png
    """
    doing.now("loading what pictures need")
    try:
        from twin_graph.experiments import clock as library
        from twin_graph.experiments import figures, fonts, tables
    except ImportError as error:
        raise extra_is_missing("the clock", "experiments", error) from None
    new_files.check_picture(plot)
    too_short = 0
    conditions: dict[str, list[list[tuple[float, float]]]] = {}  # predictions and observations of each run
    environments: dict[str, list[list[tuple[float, float]]]] = {}
    for folder in map(_named, folders):
        plan, _, runs = tables.found(folder)
        _say_mixed(runs)
        for run in runs:
            pairs, task = library.pairs(run), run.planned.task
            if pairs and library.served(run) < served:
                too_short += 1
            elif pairs:
                where = f", {task}" if len(plan.tasks) > 1 else ""
                conditions.setdefault(f"{plan.name}: {run.planned.condition}{where}", []).append(pairs)
                environments.setdefault(f"in all, {task}", []).append(pairs)
    if too_short and not conditions:
        raise UsageError(f"no run has targets that serve {served:,} updates or more: use a smaller --served")
    if not conditions:
        raise UsageError(
            "no run in these tables has both predictions and observations (older tables have no depths: where the runs "
            "are still there, write the report again)"
        )
    if plot:
        points = {name: list(itertools.chain(*of)) for name, of in conditions.items()}
        fonts.save(figures.against(points, "predicted by the ledger", "expected by the snapshot"), plot, dpi=160)
        say(f"picture: {plot}")
        for sentence in fonts.without_font(points):
            say(sentence)
    rows = {name: (len(of), library.fit(itertools.chain(*of))) for name, of in {**conditions, **environments}.items()}
    if as_json:
        print_json({name: {"runs": count, **fit._asdict()} for name, (count, fit) in rows.items()})
        return
    table = [
        [name, str(count), f"{fit.evaluations:,}", f"{fit.correlation:z.4f}", f"{fit.error:.2f}", f"{fit.bias:z.2f}"]
        for name, (count, fit) in rows.items()
    ]
    print_table(("condition", "runs", "evaluations", "r", "mean error", "mean excess"), table)


def _say_mixed(runs: Iterable[Result]) -> None:
    """Names different code of runs that are about to be averaged."""
    for sentence in code.mixed({run.planned.name: run.code for run in runs}):
        say(sentence)


def _named(folder: Path) -> Path:
    """A folder, or that of the experiment of this name."""
    return absolute(folder if folder.exists() else EXPERIMENTS / folder)


def _check_room(found: Experiment, states: list[State], jobs: int) -> None:
    """Raises `TwinGraphError` if disk or memory will not suffice."""
    # What has begun has its files, and `resume` asks for what they lack; what trains has its memory.
    left = [state for state in states if state.is_left]
    needed = found.disk([state.planned for state in left if not found.run_folder(state.planned).exists()])
    existing = next(parent for parent in [found.folder.absolute(), *found.folder.absolute().parents] if parent.exists())
    free = shutil.disk_usage(existing).free
    if needed > free:
        raise TwinGraphError(
            f"not enough disk space: these runs need about {size(needed)} and {size(free)} are free; lower "
            "save.keep_last, take fewer runs, or choose another --out"
        )
    memory_free = machine.memory_free()
    begin = min(jobs, len(left)) - sum(state.state == "running" for state in left)
    if begin > 1 and begin * found.trial.memory > memory_free:
        raise TwinGraphError(
            f"not enough memory: {begin} runs at a time need about {size(begin * found.trial.memory)} and "
            f"{size(memory_free)} are free; lower --jobs or replay.capacity_steps"
        )


def _show_plan(found: Experiment, states: list[State], jobs: int, console: Console) -> None:
    plan, tell = found.plan, functools.partial(say, console=console)
    kinds = ("waiting", "running", "cut", "failed", "damaged", "done")
    rows = []
    for condition in plan.conditions:
        its = [state.state for state in states if state.planned.condition == condition]
        rows.append([condition, str(len(its)), *(str(its.count(kind) or "") for kind in kinds)])
    print_table(("condition", "runs", *kinds), rows, console=console)
    seconds, how = found.seconds_left(states, jobs)
    left = [state for state in states if state.is_left]
    tell(
        f"{plan.name}: {counted(len(plan.conditions), 'condition')}, {counted(len(states), 'run')} of {plan.steps:,} "
        "agent steps (preset "
        f"{plan.preset.preset}), {len(states) - len(left)} done"
    )
    for sentence in plans.unused(plan):
        tell(sentence)
    for precision in {run.settings.twin.precision for run in plan.runs}:
        for sentence in machine.emulated(precision):
            tell(sentence)
    if found.fixed:
        tell("fixed for all runs: " + ", ".join(f"{key}={value}" for key, value in found.fixed))
    if left:
        at_a_time = f"{jobs} at a time" + (", if they do not slow each other down" if jobs > 1 else "")
        tell(f"time: about {clock(seconds)} for the rest, {at_a_time}  ({how})")
        tell(f"disk: {size(found.disk([state.planned for state in left]))} at most for the rest")


def _summary(found: Experiment, states: list[State], jobs: int) -> dict[str, Any]:
    seconds, _ = found.seconds_left(states, jobs)
    return {
        "experiment": found.plan.name,
        "folder": str(found.folder),
        "conditions": found.plan.conditions,
        "agent_steps": found.plan.steps,
        "seconds_left": round(seconds, 1),
        "disk_bytes": found.disk([state.planned for state in states if state.is_left]),
        "fixed": dict(found.fixed),
        "runs": [
            {
                "run": state.planned.name,
                "condition": state.planned.condition,
                "seed": state.planned.seed,
                "state": state.state,
                "agent_steps": state.agent_steps,
                "error": state.error,
            }
            for state in states
        ],
    }


class ExperimentDisplay:
    """Shows a `Runner` on stderr: a bar for each run and for all of them on a terminal, plain lines elsewhere."""

    def __init__(self, found: Experiment) -> None:
        self._total = sum(run.length for run in found.plan.runs)
        columns = TextColumn("{task.description}", markup=False), BarColumn(), TextColumn("{task.percentage:>3.0f}%")
        self._bars = Progress(*columns, TimeRemainingColumn(), console=stderr, speed_estimate_period=RATE_SECONDS)
        self._in_all = self._bars.add_task("in all", total=self._total)
        self._tasks: dict[str, TaskID] = {}
        self._known: dict[str, str] = {}
        self._begun = self._printed = time.monotonic()
        self._at_begin: int | None = None
        self._said: int | None = None

    def __enter__(self) -> Self:
        if stderr.is_interactive:
            self._bars.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if stderr.is_interactive:
            self._bars.stop()

    def show(self, training: Runner) -> None:
        """Called several times a second."""
        states = list(training.states.values())
        for state in states:
            self._show_run(state)
        steps = sum(state.trained for state in states)
        self._bars.update(self._in_all, completed=steps)
        now = time.monotonic()
        if self._at_begin is None:
            self._at_begin = steps
        if not stderr.is_interactive and now - self._printed > LINE_SECONDS and steps != self._said:
            self._printed, self._said = now, steps
            gained = steps - self._at_begin
            left = f", about {clock((self._total - steps) * (now - self._begun) / gained)} left" if gained > 0 else ""
            say(f"{steps:,} of {self._total:,} agent steps{left}")

    def _show_run(self, state: State) -> None:
        name, before = state.planned.name, self._known.get(state.planned.name)
        self._known[name] = state.state
        if before != state.state and (before or state.state == "running"):
            what = "trains" if state.state == "running" else state.state
            say(f"{name}: {what}{f': {state.error}' if state.error else ''}")
        if state.state == "running":
            if name not in self._tasks:
                self._tasks[name] = self._bars.add_task(name, total=state.planned.length)
            self._bars.update(self._tasks[name], completed=state.trained)
        elif name in self._tasks:
            self._bars.remove_task(self._tasks.pop(name))
