"""Kills trainings with SIGKILL, a thousand times, and looks at what is left each time.

    python tests/crash/kill.py [--kills 1000] [--fresh 50] [--network 5] [--seed 0] [--json FILE]

After every kill each file of the run is verified, and the newest resume point that had been committed must be the one
from which the training would go on. Then it goes on. At its end its weights must be, bit for bit, those of a training
that nobody killed.

A server imports TensorFlow once and forks each training before there is a session, so that a kill costs a second.
Trainings say in shared memory which part of the store they are writing: half of the kills wait for a part that was hit
too seldom. `--fresh` of the kills hit whole processes of the command line instead, `--network` of them the real
emulator with the nature network.

The server owns the folder of all runs: it removes it, and kills what it started, when the harness ends for any reason.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import mmap
import os
import random
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections import Counter, deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, NamedTuple

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from twin_graph import config
from twin_graph.base import machine
from twin_graph.errors import DamagedError, TwinGraphError, UsageError
from twin_graph.records.verify import verify
from twin_graph.snapshots.ledger import Ledger
from twin_graph.snapshots.points import PointStore
from twin_graph.snapshots.resumable import newest_point
from twin_graph.snapshots.run import Run, create
from twin_graph.snapshots.store import SnapshotStore

#: Trainings of a second or two in which everything happens often that is written to disk.
SMALL: dict[str, dict[str, Any]] = {
    "cartpole": {
        "env.count": 2,
        "train.steps": 640,
        "train.start_steps": 96,
        "train.every_steps": 4,
        "train.n_step": 3,
        "train.batch_size": 8,
        "model.hidden_units": [8],
        "replay.capacity_steps": 320,
        "target.refresh_every_updates": 10,
        "save.every_updates": 5,
        "save.keep_last": 2,
        "save.keep_every": 0,
        "resume.every_steps": 64,
        "evaluate.every_steps": 256,
        "evaluate.episodes": 10,
        "log.every_steps": 64,
        "twin.threads": 1,
    },
    "pong": {
        "env.count": 2,
        "train.steps": 160,
        "train.start_steps": 80,
        "train.every_steps": 4,
        "train.n_step": 3,
        "train.batch_size": 4,
        "replay.capacity_steps": 1_000,
        "target.refresh_every_updates": 8,
        "save.every_updates": 4,
        "save.keep_last": 2,
        "save.keep_every": 0,
        "resume.every_steps": 40,
        "evaluate.episodes": 0,
        "log.every_steps": 40,
        "twin.threads": 1,
    },
}
SEEDS = {"cartpole": 6, "pong": 1}
#: Of seeds 1, 2, 3, 4, ...: what the target is depends on draws, on scores, on both.
POLICIES = ("window(3)", "best", "mix(0.5, 4)")
#: Of CartPole's odd seeds, and of the even ones.
UPDATES: tuple[dict[str, Any], ...] = (
    {"train.chunk_steps": 0, "twin.compiled": False},
    {"train.chunk_steps": 32, "twin.compiled": True},
)
#: Of seeds 1, 2, 3, 4, ...: what the network says of each action, and whether its weights are noisy.
HEADS: tuple[dict[str, Any], ...] = (
    {},
    {"model.head": "quantile", "model.atoms": 11},
    {"model.head": "categorical", "model.noisy": True},
    {"model.head": "implicit", "model.atoms": 8, "model.layer_norm": True},
    {"model.head": "categorical", "loss": "hl_gauss", "train.munchausen": 0.9, "train.n_step": 1},
    {"model.noisy": True},
)

OTHER = "other"
SNAPSHOT, POINT, SEGMENT, APPEND, PRUNE = (
    "commit of a snapshot",
    "commit of a resume point",
    "write of a replay segment",
    "append to the ledger",
    "removal",
)
PHASES = (OTHER, SNAPSHOT, POINT, SEGMENT, APPEND, PRUNE)
FRESH = "whole process, anywhere"
LEAST = 50  # kills in each phase, of a thousand
_HUNG_SECONDS = 300.0

_WATCHED: list[tuple[type, str, str]] = [
    (SnapshotStore, "commit", SNAPSHOT),
    (SnapshotStore, "remove_weights", PRUNE),
    (SnapshotStore, "remove_leftovers", PRUNE),
    (PointStore, "commit", POINT),
    (PointStore, "write_segment", SEGMENT),
    (PointStore, "retain", PRUNE),
    (PointStore, "remove_leftovers", PRUNE),
    (Ledger, "append", APPEND),
]


class Slot(ctypes.Structure):
    """What one training at a time says of itself, in memory that outlives it.

    Attributes:
      phase: index in `PHASES`.
      wanted: the phase whose beginning it is to announce; 0 for none.
      point, snapshot: highest numbers whose commit has returned; -1 before.
    """

    phase: int
    wanted: int
    point: int
    snapshot: int
    _fields_ = [(name, ctypes.c_int32) for name in ("phase", "wanted", "point", "snapshot")]


def slots(path: Path, count: int) -> list[Slot]:
    """The slots in a file, made if need be."""
    size = count * ctypes.sizeof(Slot)
    with path.open("a+b") as file:
        file.truncate(size)
        memory = mmap.mmap(file.fileno(), size)
    return [Slot.from_buffer(memory, index * ctypes.sizeof(Slot)) for index in range(count)]


class Life(NamedTuple):
    """One process of a training, from its start or resumption to its end or death.

    Attributes:
      folder: of its run; made if there is none.
      game: key of `SMALL`.
      seed: of its run.
      fresh: a process of the command line, not a fork.
      slot: where it says what it does.
    """

    folder: str
    game: str
    seed: int
    fresh: bool
    slot: int

    @property
    def changes(self) -> dict[str, Any]:
        """The settings that are not the preset's."""
        updates = UPDATES[(self.seed - 1) % len(UPDATES)] if self.game == "cartpole" else {}
        policy = POLICIES[(self.seed - 1) % len(POLICIES)]
        head = HEADS[(self.seed - 1) % len(HEADS)]
        return {**SMALL[self.game], **updates, **head, "seed": self.seed, "target.policy": policy}

    @property
    def command(self) -> list[str]:
        """What a person would type."""
        if Path(self.folder).exists():
            words = ["resume", self.folder]
        else:
            words = ["train", self.game, "--run-dir", self.folder]
            words += [f"--set={key}={json.dumps(value)}" for key, value in self.changes.items()]
        return [sys.executable, "-m", "twin_graph_cli", *words]


# ---- The server and its forks ---------------------------------------------------------------------------------------


def serve(folder: Path, keep: bool, bells: list[int]) -> None:
    """Starts trainings as the harness asks on stdin, until there is no harness.

    Args:
      folder: of all runs; removed at the end, unless `keep`.
      keep: whether to leave it.
      bells: an eventfd for each slot, rung when a phase begins that the harness waits for.
    """
    children: set[int] = set()
    try:
        from twin_graph.envs import atari, gym  # noqa: F401  imported here so that forks need not
        from twin_graph.training import trainer

        memory = slots(folder / "memory", len(bells))
        print(json.dumps("ready"), flush=True)
        for line in sys.stdin:
            request = json.loads(line)
            if isinstance(request, int):
                status = os.waitstatus_to_exitcode(os.waitpid(request, 0)[1])
                children.remove(request)
                print(json.dumps(status), flush=True)
                continue
            life = Life(*request)
            pid = os.fork()
            if pid == 0:
                _live(life, memory[life.slot], bells[life.slot], folder / f"log{life.slot}", trainer.train)
            children.add(pid)
            print(json.dumps(pid), flush=True)
    finally:
        for pid in children:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        if not keep:
            shutil.rmtree(folder, ignore_errors=True)


def _live(life: Life, slot: Slot, bell: int, log: Path, train: Callable[..., Iterator[object]]) -> None:
    """A fork's whole life; never returns."""
    server = os.getppid()
    try:
        ctypes.CDLL(None, use_errno=True).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: it does not outlive the server
        if os.getppid() != server:
            os._exit(1)
        streams = os.open(os.devnull, os.O_RDONLY), os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        for descriptor, source in ((0, streams[0]), (1, streams[1]), (2, streams[1])):
            os.dup2(source, descriptor)
        if life.fresh:
            os.execv(sys.executable, life.command)
        _watch(slot, bell)
        _train(life, train)
        os._exit(0)
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
    finally:
        os._exit(1)


def _watch(slot: Slot, bell: int) -> None:
    """Makes the functions of the store say which of them runs; the innermost counts."""

    def watched(method: Callable[..., Any], index: int) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            outer = slot.phase
            slot.phase = index
            if slot.wanted == index:
                os.eventfd_write(bell, 1)
            try:
                result = method(*arguments, **options)
            finally:
                slot.phase = outer
            if method.__qualname__ == "PointStore.commit":
                slot.point = arguments[1].number
            if method.__qualname__ == "SnapshotStore.commit":
                slot.snapshot = result.number
            return result

        return call

    for owner, name, phase in _WATCHED:
        setattr(owner, name, watched(getattr(owner, name), PHASES.index(phase)))


def _train(life: Life, train: Callable[..., Iterator[object]]) -> None:
    from twin_graph import envs

    folder = Path(life.folder)
    settings = config.load(life.game, life.changes.items())
    with contextlib.closing(envs.make(settings.env, count=settings.env.count)) as env:
        if folder.exists():
            run = Run(folder)
            point = newest_point(run).point
        else:
            run, point = create(folder, settings, env.protocol), None
        for _ in train(run, env, point):
            pass


# ---- The harness ----------------------------------------------------------------------------------------------------


class Server:
    """Owns the server's process; `with` ends it, with all that it started and the folder of the runs."""

    def __init__(self, jobs: int, *, keep: bool = False) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="twin-graph-kill-"))
        self.bells = [os.eventfd(0, os.EFD_NONBLOCK) for _ in range(jobs)]
        self.slots = slots(self.folder / "memory", jobs)
        self._keep = keep
        self._lock = threading.Lock()
        start = time.perf_counter()
        self._process = subprocess.Popen(
            [sys.executable, __file__, "serve", str(self.folder), str(int(keep)), *map(str, self.bells)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            pass_fds=self.bells,
            start_new_session=True,  # Ctrl-C is the harness's alone
            env={**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},  # no threads before a fork
        )
        try:
            self._answer()
        except BaseException:
            self.__exit__()
            raise
        self.import_seconds = time.perf_counter() - start

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        self._process.wait()
        for bell in self.bells:
            os.close(bell)
        if not self._keep:
            shutil.rmtree(self.folder, ignore_errors=True)

    def start(self, life: Life) -> int:
        """Begins a life; its process number, not given to another before `reap`."""
        return self._ask(list(life))

    def reap(self, pid: int) -> int:
        """The exit code of a process that is dead."""
        return self._ask(pid)

    def _ask(self, request: Any) -> int:
        with self._lock:
            assert self._process.stdin is not None
            print(json.dumps(request), file=self._process.stdin, flush=True)
            return int(self._answer())

    def _answer(self) -> Any:
        stdout: IO[str] | None = self._process.stdout
        assert stdout is not None
        line = stdout.readline()
        if not line:
            raise RuntimeError("the server ended; what it said stands above")
        return json.loads(line)


class Reference(NamedTuple):
    """What came of a training that nobody killed, and how long it took."""

    weights_sha256: str
    seconds: float


@dataclass
class Trial:
    """A run that is killed again and again.

    Attributes:
      point: highest number of a resume point known to be committed; -1 before the first.
      past: in which phases it was killed.
    """

    folder: Path
    game: str
    seed: int
    point: int = -1
    past: list[str] = field(default_factory=list)


@dataclass
class Tally:
    """What happened."""

    kills: Counter[str] = field(default_factory=Counter)  # by phase
    network: int = 0  # of the kills, those of the nature network
    lives: int = 0
    runs: int = 0
    equal: int = 0
    begun_anew: int = 0
    damaged: int = 0
    lost: int = 0
    failed: int = 0
    problems: list[str] = field(default_factory=list)

    @property
    def whole(self) -> bool:
        """Whether nothing was wrong."""
        return not self.problems and self.equal == self.runs


class Harness:
    """Kills, looks, goes on; each job in a thread of its own, one training at a time.

    Args:
      server: starts the trainings, with as many slots as there are jobs.
      plan: of each kill: `fork`, `fresh` or `network`.
      seed: of moments and phases; what happens is not repeated exactly, since it depends on time.
      killed: called after each kill.
    """

    def __init__(self, server: Server, plan: list[str], seed: int, killed: Callable[[], None] = lambda: None) -> None:
        self.tally = Tally()
        self._server = server
        self._plan = deque(plan)
        self._enough = len(plan) * LEAST / 1000 * 1.2
        self._seed = seed
        self._killed = killed
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._references: dict[tuple[str, int], Reference] = {}
        self._reference_lock = threading.Lock()
        self._begun = Counter[str]()
        self._delays = dict.fromkeys(PHASES, 1e-3)

    def run(self) -> Tally:
        """Carries the plan out."""
        switch_interval = sys.getswitchinterval()
        sys.setswitchinterval(1e-4)  # a job that is told of a phase must not wait for another that verifies
        jobs = len(self._server.slots)
        try:
            with ThreadPoolExecutor(jobs) as pool:
                futures = [pool.submit(self._job, index) for index in range(jobs)]
                try:
                    for future in futures:
                        future.result()
                except BaseException:
                    self._stop.set()
                    raise
        finally:
            sys.setswitchinterval(switch_interval)
        return self.tally

    def _job(self, slot: int) -> None:
        chance = random.Random(f"{self._seed}/{slot}")
        trials: dict[str, Trial] = {}
        try:
            while not self._stop.is_set():
                with self._lock:
                    if not self._plan:
                        break
                    kind = self._plan.popleft()
                game = "pong" if kind == "network" else "cartpole"
                killed = False
                while not killed and not self._stop.is_set():  # a training that ended first was not killed
                    trial = trials.get(game) or self._new_trial(game)
                    killed, rest = self._life(trial, slot, chance, fresh=kind == "fresh")
                    trials.pop(game, None)
                    if rest:
                        trials[game] = rest
                with self._lock:
                    self.tally.network += kind == "network"
                self._killed()
            while trials and not self._stop.is_set():  # what is under way may end, so that its weights can be compared
                _, trial = trials.popitem()
                _, rest = self._life(trial, slot, None, fresh=False)
                if rest:
                    trials[rest.game] = rest
        except BaseException:
            self._stop.set()
            raise

    def _new_trial(self, game: str) -> Trial:
        with self._lock:
            self._begun[game] += 1
            number = self._begun[game]
        return Trial(self._server.folder / f"{game}{number}", game, 1 + (number - 1) % SEEDS[game])

    def _life(self, trial: Trial, slot: int, chance: random.Random | None, *, fresh: bool) -> tuple[bool, Trial | None]:
        """One life, and a look at what it left.

        Returns:
          Whether it was killed, and what goes on; None where the run is at its end.
        """
        reference = self._reference(trial.game, trial.seed, slot)
        life = Life(str(trial.folder), trial.game, trial.seed, fresh, slot)
        code, phase = self._run_life(life, chance, reference.seconds)
        killed = code == -signal.SIGKILL and chance is not None
        if killed:
            trial.past.append(FRESH if fresh else phase)
        seen = self._server.slots[slot]
        with self._lock:
            self.tally.lives += 1
            if killed:
                self.tally.kills[trial.past[-1]] += 1
            elif code:
                log = (self._server.folder / f"log{slot}").read_text(errors="replace")
                self._problem("failed", trial, f"ended by itself with exit code {code}:\n{log[-2000:]}")
                return killed, None
        try:
            point, steps = self._look(trial, seen)
        except (AssertionError, TwinGraphError) as error:
            kind = "lost" if isinstance(error, AssertionError) else "damaged"
            with self._lock:
                self._problem(kind, trial, f"{error}")
            return killed, None
        if point is None:
            shutil.rmtree(trial.folder, ignore_errors=True)
            with self._lock:
                self.tally.begun_anew += 1
            return killed, Trial(trial.folder, trial.game, trial.seed)
        if steps < SMALL[trial.game]["train.steps"]:
            return killed, trial
        with self._lock:
            self.tally.runs += 1
            if point == reference.weights_sha256:
                self.tally.equal += 1
            else:
                self._problem("", trial, f"ended with weights {point}, not with {reference.weights_sha256}")
                return killed, None
        shutil.rmtree(trial.folder)
        return killed, None

    def _problem(self, kind: str, trial: Trial, text: str) -> None:
        if kind:
            setattr(self.tally, kind, getattr(self.tally, kind) + 1)
        past = ", ".join(trial.past)
        self.tally.problems.append(f"{trial.folder} (seed {trial.seed}; killed in: {past}): {text}")

    def _look(self, trial: Trial, seen: Slot) -> tuple[str | None, int]:
        """Verifies everything, and that nothing committed is lost.

        Returns:
          `weights_sha256` and agent steps of the newest resume point; None and 0 before the first.

        Raises:
          AssertionError: a committed record is lost.
          TwinGraphError: something is damaged.
        """
        try:
            run = Run(trial.folder)
        except UsageError:  # killed before there was a run
            assert trial.point < 0, f"the run is gone, with its resume point {trial.point}"
            return None, 0
        found = verify(run)
        if found.damage:
            raise DamagedError("; ".join(found.damage))
        on_disk = run.points().newest()
        trial.point = max(trial.point, seen.point, on_disk.number if on_disk else -1)
        newest = max((snapshot.number or 0 for snapshot in run.store().snapshots), default=-1)
        assert newest >= seen.snapshot, f"snapshot {seen.snapshot} was committed, the newest is {newest}"
        if trial.point < 0:
            return None, 0
        try:
            point, damage = newest_point(run)
        except UsageError:
            raise AssertionError(f"there is no resume point; {trial.point} was committed") from None
        if damage:
            raise DamagedError("; ".join(damage))
        assert point.number == trial.point, f"resume point {trial.point} was committed, {point.number} is found"
        return point.weights_sha256, point.counters.agent_steps

    def _run_life(self, life: Life, chance: random.Random | None, seconds: float) -> tuple[int, str]:
        """Lets a process live until the end that chance has for it; gives its exit code and last phase."""
        slot, bell = self._server.slots[life.slot], self._server.bells[life.slot]
        slot.phase, slot.wanted, slot.point, slot.snapshot = 0, 0, -1, -1
        pid = self._server.start(life)
        process = os.pidfd_open(pid)
        try:
            if chance is None:
                self._wait(_HUNG_SECONDS, process)
            else:
                begin = self._server.import_seconds if life.fresh else 0.0
                wanted = 0 if life.fresh or chance.random() < 0.5 else self._choose_phase(chance)
                died = self._wait(chance.uniform(0, begin + seconds), process)
                if wanted and not died:
                    with contextlib.suppress(BlockingIOError):
                        os.eventfd_read(bell)  # of the life before
                    slot.wanted = wanted
                    died = self._wait(_HUNG_SECONDS, process, bell)
                    time.sleep(chance.uniform(0, self._delays[PHASES[wanted]]))
                if not died:
                    signal.pidfd_send_signal(process, signal.SIGKILL)
                self._wait(_HUNG_SECONDS, process)
                if wanted and not died:  # delays grow and shrink to where half of the kills come too late
                    self._delays[PHASES[wanted]] *= 1.1 if slot.phase == wanted else 0.9
            if not self._wait(0, process):
                signal.pidfd_send_signal(process, signal.SIGKILL)
                raise RuntimeError(f"{life.folder} has neither ended nor died in {_HUNG_SECONDS:.0f} s")
            return self._server.reap(pid), PHASES[slot.phase]
        finally:
            os.close(process)

    def _wait(self, seconds: float, process: int, bell: int | None = None) -> bool:
        """Waits for a process's death, or the bell; whether it died."""
        poll = select.poll()
        for descriptor in (process, bell):
            if descriptor is not None:
                poll.register(descriptor, select.POLLIN)
        return process in [descriptor for descriptor, _ in poll.poll(1000 * seconds)]

    def _choose_phase(self, chance: random.Random) -> int:
        with self._lock:
            lacking = [phase for phase in PHASES[1:] if self.tally.kills[phase] < self._enough]
        return PHASES.index(chance.choice(lacking or PHASES[1:]))

    def _reference(self, game: str, seed: int, slot: int) -> Reference:
        with self._reference_lock:
            if (game, seed) not in self._references:
                folder = self._server.folder / f"{game}-seed{seed}"
                start = time.perf_counter()
                code, _ = self._run_life(Life(str(folder), game, seed, False, slot), None, 0.0)
                seconds = time.perf_counter() - start
                if code:
                    log = (self._server.folder / f"log{slot}").read_text(errors="replace")
                    raise RuntimeError(f"a training that nobody killed ended with exit code {code}:\n{log}")
                point = newest_point(Run(folder)).point
                self._references[game, seed] = Reference(point.weights_sha256, seconds)
                shutil.rmtree(folder)
            return self._references[game, seed]


def make_plan(kills: int, fresh: int, network: int, seed: int) -> list[str]:
    """The kind of each kill, in an order by chance."""
    fresh, network = min(fresh, kills), min(network, max(0, kills - fresh))
    plan = ["fresh"] * fresh + ["network"] * network + ["fork"] * (kills - fresh - network)
    random.Random(seed).shuffle(plan)
    return plan


@click.command()
@click.option("--kills", default=1000, show_default=True, help="All kills.")
@click.option("--fresh", default=50, show_default=True, help="Of these, of whole processes of the command line.")
@click.option("--network", default=5, show_default=True, help="Of these, with the emulator and the nature network.")
@click.option("--seed", default=0, show_default=True, help="Of moments and phases.")
@click.option("--jobs", default=2, show_default=True, help="Trainings at a time.")
@click.option("--keep", is_flag=True, help="Keep the folder of the runs that went wrong.")
@click.option("--json", "output", type=click.Path(path_type=Path), help="Where the figures are written.")
def main(kills: int, fresh: int, network: int, seed: int, jobs: int, keep: bool, output: Path | None) -> None:
    """Kill trainings; exit with 1 if anything was lost or damaged."""
    start = time.perf_counter()
    console = Console(stderr=True)
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    with Server(jobs, keep=keep) as server, Progress(*columns, console=console) as progress:
        if keep:
            console.print(f"runs are in {server.folder}")
        task = progress.add_task("kills", total=kills)
        tally = Harness(server, make_plan(kills, fresh, network, seed), seed, lambda: progress.advance(task)).run()
    seconds = time.perf_counter() - start
    rare = [phase for phase in PHASES if tally.kills[phase] < LEAST] if kills >= 1000 else []

    table = Table("killed in", "kills", box=None)
    for phase in (*PHASES, FRESH):
        table.add_row(phase, f"{tally.kills[phase]}{f' (fewer than {LEAST})' if phase in rare else ''}")
    summary = {
        "kills": tally.kills.total(),
        "kills with the nature network": tally.network,
        "begun anew, killed before the first resume point": tally.begun_anew,
        "runs completed": tally.runs,
        "equal end weights": tally.equal,
        "damaged stores": tally.damaged,
        "lost resume points or snapshots": tally.lost,
        "failed processes": tally.failed,
        "seconds": round(seconds),
    }
    table.add_section()
    for name, value in summary.items():
        table.add_row(name, str(value))
    Console().print(table)
    for problem in tally.problems:
        console.print(f"[red]wrong:[/] {problem}", highlight=False)
    if output:
        phases = {phase: tally.kills[phase] for phase in (*PHASES, FRESH)}
        document = {"seed": seed, "jobs": jobs, "phases": phases, **summary, "problems": tally.problems}
        document["cpu"] = machine.describe()._asdict()
        output.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    sys.exit(0 if tally.whole and not rare else 1)


if __name__ == "__main__":
    if sys.argv[1:2] == ["serve"]:
        serve(Path(sys.argv[2]), bool(int(sys.argv[3])), [int(descriptor) for descriptor in sys.argv[4:]])
    else:
        main()
