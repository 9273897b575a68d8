"""Failpoints: each call by which the store changes the disk fails, stops halfway, or is the last that a process makes.

An operation is carried out once to count its calls. Then it is carried out once for each call and each fault, in a
fresh copy of the run: whoever reads it then sees what was there before or what is new, whole, and whoever goes on can.
"""

import contextlib
import errno
import fcntl
import functools
import hashlib
import itertools
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from twin_graph import config
from twin_graph.agent.replay_log import ReplayLog
from twin_graph.errors import InUseError, UsageError
from twin_graph.experiments import plan as plans
from twin_graph.experiments.experiment import Experiment
from twin_graph.experiments.trial import Trial
from twin_graph.records.verify import verify
from twin_graph.replay.ring import Replay, Transition
from twin_graph.snapshots import control, store
from twin_graph.snapshots import run as runs
from twin_graph.snapshots.control import Answer
from twin_graph.snapshots.files import append_line, write_new
from twin_graph.snapshots.forms import RECORDS
from twin_graph.snapshots.ledger import Commit, Counters, utc_now
from twin_graph.snapshots.lines import record_evaluation, record_metrics
from twin_graph.snapshots.points import LearnerState, PointState, RoleState
from twin_graph.snapshots.resumable import newest_point
from twin_graph.snapshots.run import Run, create
from twin_graph.snapshots.store import Provenance, Variable
from twin_graph.targets.pruning import prune

#: `open` counts where it creates a file.
CALLS = ("open", "write", "fsync", "ftruncate", "rename", "replace", "unlink", "mkdir", "rmdir")
#: Faults after which the process lives: one call fails; the disk is gone from there on; the disk fills within a write.
ERRORS = ("EIO", "EIO for good", "short write")
#: To be killed before a call leaves what being killed after the one before it does.
DEATHS = ("killed after", "killed within", "killed while cleaning up")
KILLED = 9


@contextlib.contextmanager
def failing(at: int = 0, fault: str = "") -> Iterator[list[str]]:
    """Gives the names of the calls made meanwhile; the `at`-th goes wrong, counted from 1."""
    made: list[str] = []

    def wrap(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            if name == "open" and not arguments[1] & os.O_CREAT:
                return function(*arguments, **options)
            made.append(name)
            here, later = len(made) == at, 0 < at < len(made)
            if (here and fault in ("EIO", "killed while cleaning up")) or (fault == "EIO for good" and (here or later)):
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            if name == "write" and fault == "short write" and later and made[at - 1] == "write":
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            if name == "write" and here and fault in ("short write", "killed within"):
                arguments = arguments[0], arguments[1][: len(arguments[1]) // 2]
            try:
                return function(*arguments, **options)
            finally:
                if (here and fault in ("killed after", "killed within")) or (later and fault in DEATHS):
                    os._exit(KILLED)

        return call

    with pytest.MonkeyPatch.context() as patched:
        for name in CALLS:
            patched.setattr(os, name, wrap(name, getattr(os, name)))
        yield made


def save(prefix: Path) -> None:
    """Stands for a Saver."""
    write_new(prefix.with_suffix(".index"), b"index")
    write_new(prefix.with_suffix(".data"), b"data" * 3_000)


class Training:
    """What an agent does with the disk, from the newest resume point on, if there is one."""

    def __init__(self, folder: Path) -> None:
        self.run = Run(folder)
        self.store = self.run.store()
        self.store.remove_leftovers()
        self.points = self.run.points()
        self.points.remove_leftovers()
        self.replay = Replay(
            capacity_steps=8,
            environments=1,
            observation_shape=(2,),
            dtype=np.float32,
            stack=1,
            n_step=1,
            discount=0.9,
        )
        self.log = ReplayLog(self.points, self.replay)
        self.point = newest_point(self.run).point if self.points.folders() else None
        self.run.record_start(self.point)
        self.store.reload()
        if self.point:
            self.log.restore(self.point.segments)
        for _ in range(5):
            state = np.full((1, 2), self.replay.written, np.float32)
            no = np.zeros(1, np.bool_)
            self.replay.add(Transition(state, np.zeros(1, np.int64), np.ones(1, np.float32), no, no, state))

    @property
    def counters(self) -> Counters:
        steps = self.replay.written
        return Counters(agent_steps=steps, updates=10 * steps, frames=steps, episodes=0)

    def commit(self, settings_sha256: str = "0" * 64) -> Commit:
        return self.store.commit(
            save,
            Provenance(
                lineage="online",
                attempt=self.run.attempt,
                counters=self.counters,
                settings_sha256=settings_sha256,
                weights_sha256=f"{self.replay.written:08x}" * 8,
                variables=[Variable(name="w", shape=(2,), dtype="float32")],
            ),
        )

    def commit_point(self) -> None:
        newest = self.store.newest
        state = PointState(
            number=self.points.next_number(),
            attempt=self.run.attempt,
            time=utc_now(),
            counters=self.counters,
            weights_sha256=newest.weights_sha256,
            learners=(
                LearnerState(
                    name="online",
                    updates=0,
                    target=RoleState(snapshots=(newest.id,), since=newest.counters, policy="latest", held=False),
                ),
            ),
            saved=newest.counters,
            reward_limit=1.0,
            returns=(),
            known_bytes=self.run.settle_records(),
            segments=self.log.write_rest(self.run.attempt),
        )
        self.points.commit(state, lambda folder: save(folder / "online"), {"probe": np.arange(6, dtype=np.float32)})
        chain = [state, self.point] if self.point else [state]
        self.point = state
        self.points.retain(chain, 2)

    def record_evaluation(self) -> None:
        newest = self.store.newest
        result = {"mean": 1.0, "interval_95": [1.0, 1.0], "returns": [1.0] * 20, "protocol": {}}
        record_evaluation(self.run, newest, result, played_at=self.counters, challenger=newest.id)


class Seen(NamedTuple):
    """What the readers of a run see."""

    point: int
    snapshots: tuple[str, ...]
    weights: tuple[str, ...]
    pins: tuple[str, ...]
    evaluations: frozenset[str]
    metrics: frozenset[int]
    steps: int
    asked: bool
    answered: bool


def content(folder: Path) -> str:
    """A hash of all names and all bytes there. After most failpoints the disk is as after another one."""
    found = hashlib.sha256()
    for path, folders, names in os.walk(folder):
        folders.sort()
        found.update(f"{os.path.relpath(path, folder)}/{folders}".encode())
        for name in sorted(names):
            with open(f"{path}/{name}", "rb") as file:  # noqa: PTH123
                found.update(f"{name} {os.fstat(file.fileno()).st_size} ".encode() + file.read())
    return found.hexdigest()


_LOOKED: dict[str, Seen] = {}


def look(folder: Path) -> Seen:
    """What readers see; once for all folders of equal content."""
    now = content(folder)
    if now not in _LOOKED:
        _LOOKED[now] = read(folder)
    return _LOOKED[now]


def read(folder: Path) -> Seen:
    """Reads everything, and checks it on the way."""
    run = Run(folder)
    assert verify(run).damage == []
    found = newest_point(run)
    assert found.damage == []
    store = run.store()
    for snapshot in store.available:
        store.check_files(snapshot.id)
    requests = [control.read(run.control, path.stem) for path in run.control.glob("request-*.json")]
    return Seen(
        point=found.point.number,
        snapshots=tuple(snapshot.id for snapshot in store.snapshots),
        weights=tuple(snapshot.id for snapshot in store.available),
        pins=tuple(store.pins),
        evaluations=frozenset(line["snapshot"] for line in run.evaluation_lines()),
        metrics=frozenset(line["agent_steps"] for line in run.metric_lines()),
        steps=run.settings.train.steps,
        asked=len(requests) > 1,
        answered=any(request.answer for request in requests),
    )


Act = Callable[[], object]


def snapshot_again(training: Training) -> Act:
    """By an attempt with other settings, from the resume point before it: the same weights get another manifest."""
    training.commit()
    again = Training(training.run.folder)
    return lambda: again.commit(settings_sha256="1" * 64)


def removal(training: Training) -> Act:
    doomed = [training.store.snapshots[0].id]
    return lambda: training.store.remove_weights(lambda: doomed, attempt=training.run.attempt)


def pin(training: Training) -> Act:
    newest = training.store.newest.id
    return lambda: training.store.pin(newest, keep=True, attempt=training.run.attempt)


def pin_after_a_torn_line(training: Training) -> Act:
    with training.run.ledger.path.open("ab") as file:
        file.write(b'{"event": "swa')
    return pin(training)


def change_of_settings(training: Training) -> Act:
    settings = config.change(training.run.settings, [("train.steps", 77)])
    return lambda: training.run.change_settings(settings)


def answer(training: Training) -> Act:
    folder = training.run.control
    [path] = folder.glob("request-*.json")
    request = control.read(folder, path.stem)
    return lambda: control.answer(folder, request, Answer(done=True, message="done", first_update=7))


def lock(training: Training) -> Act:
    def take() -> None:
        with training.run.lock("train"):
            pass

    return take


def lock_anew(folder: Path) -> None:
    with Run(folder).lock("train"):
        pass


def start(training: Training) -> Act:
    """After a process that was killed while it wrote a snapshot or a resume point."""
    for name in ("snapshots/.tmp-000009-aaaaaaaa-1", "resume/.tmp-000009-1"):
        leftover = training.run.folder / name
        leftover.mkdir(exist_ok=True)
        (leftover / "model.data").write_bytes(b"unfinished")
    return lambda: Training(training.run.folder)


#: Each gives what is to be done, and done again after an error.
OPERATIONS: dict[str, Callable[[Training], Act]] = {
    "snapshot": lambda training: training.commit,
    "snapshot again": snapshot_again,
    "resume point": lambda training: training.commit_point,
    "removal": removal,
    "pin": pin,
    "pin after a torn line": pin_after_a_torn_line,
    "evaluation": lambda training: training.record_evaluation,
    "metrics": lambda training: lambda: record_metrics(training.run, {"agent_steps": training.replay.written}),
    "settings": change_of_settings,
    "request": lambda training: lambda: control.ask(training.run.control, "swap", "000000-00000000"),
    "answer": answer,
    "lock": lock,
    "start": start,
}


@pytest.fixture(autouse=True)
def _one_process_number_and_quick_fsyncs(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a container each process may be given the number of the one that was killed.

    No power is cut here, so that bytes need not reach the disk; fsyncs are counted, and fail, all the same.
    """
    monkeypatch.setattr(os, "getpid", lambda: 7)
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
    for module in (runs, store):  # what is done twice writes the same: see `content`
        monkeypatch.setattr(module, "utc_now", lambda: "2026-01-01T00:00:00.000+00:00")


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with two snapshots, two resume points, segments of a replay that is full, records, and a request."""
    run = create(tmp_path_factory.mktemp("base") / "run", config.load("cartpole"))
    with run.lock("train"):
        pass
    for _ in range(3):
        training = Training(run.folder)
        training.commit()
        training.commit_point()
    result = {"mean": 1.0, "interval_95": None, "returns": [1.0], "protocol": {}}
    record_evaluation(training.run, training.store.snapshots[0], result)
    control.ask(run.control, "swap", training.store.newest.id)
    return run.folder


def copy(run: Path, folder: Path) -> Path:
    """A copy of a run; what is never changed in place is the same file, so that it costs little."""

    def share(source: str, destination: str) -> None:
        changes = Path(source).parent in (run, run / "control")
        (shutil.copyfile if changes else os.link)(source, destination)

    return Path(shutil.copytree(run, folder, copy_function=share))


class Ready(NamedTuple):
    """What is about to do an operation, and what comes of it if nothing disturbs it.

    Attributes:
      run, act: in a process that dies, `act` does it in the folder `run`; to be done nowhere else.
      whole: that folder as it is before.
      before, after: what is seen.
      calls: the calls that it makes.
    """

    run: Path
    act: Act
    whole: Path
    before: Seen
    after: Seen
    calls: list[str]


@pytest.fixture(scope="module")
def ready(base: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Ready]:
    """By the name of an operation."""

    @functools.cache
    def make(operation: str) -> Ready:
        folder = tmp_path_factory.mktemp("ready")
        act = OPERATIONS[operation](Training(copy(base, folder / "undisturbed")))
        before = look(folder / "undisturbed")
        with failing() as calls:
            act()
        act = OPERATIONS[operation](Training(copy(base, folder / "run")))
        if operation == "lock":  # that of a Run is of the process that opened it
            act = functools.partial(lock_anew, folder / "run")
        whole = copy(folder / "run", folder / "whole")
        return Ready(folder / "run", act, whole, before, look(folder / "undisturbed"), list(calls))

    return make


def check_old_or_new(seen: Seen, before: Seen, after: Seen) -> None:
    for name, now, old, new in zip(Seen._fields, seen, before, after, strict=True):
        assert now in (old, new), name


_WENT_ON: set[tuple[str, str]] = set()


def check_goes_on(folder: Path, operation: str, after: Seen) -> None:
    """A process that starts now can do the operation, and leaves nothing behind; once for all folders of equal content.

    It depends on nothing else where who was here before left no file open, and so none locked.
    """
    found = operation, content(folder)
    if found in _WENT_ON:
        return
    training = Training(folder)
    OPERATIONS[operation](training)()
    check_new(look(folder), after)
    training.store.remove_weights(lambda: [], attempt=training.run.attempt)
    for snapshot in training.store.snapshots:
        weights = [*(training.store.folder / snapshot.id).glob("model.*")]
        assert bool(weights) == training.store.has_weights(snapshot.id)
    assert not [*folder.glob("snapshots/.tmp-*"), *folder.glob("resume/.tmp-*")]
    assert len(training.points.folders()) == 2
    _WENT_ON.add(found)


def open_files() -> int:
    return len([*Path("/proc/self/fd").iterdir()])


def check_new(seen: Seen, after: Seen) -> None:
    """Whoever makes a resume point again makes a further one."""
    assert seen.point >= after.point
    assert seen._replace(point=0) == after._replace(point=0)


def test_every_kind_of_call_is_met(ready: Callable[[str], Ready]) -> None:
    calls = {name for operation in OPERATIONS for name in ready(operation).calls}
    assert calls == {*CALLS}


@pytest.mark.parametrize("fault", ERRORS)
@pytest.mark.parametrize("operation", OPERATIONS)
def test_after_an_error_readers_see_old_or_new_and_it_can_be_done_again(
    base: Path, ready: Callable[[str], Ready], tmp_path: Path, operation: str, fault: str
) -> None:
    *_, before, after, calls = ready(operation)
    for at, name in enumerate(calls, start=1):
        if fault == "short write" and name != "write":
            continue
        folder = copy(base, tmp_path / str(at))
        act = OPERATIONS[operation](Training(folder))
        had = open_files()
        with failing(at, fault), contextlib.suppress(OSError):
            act()
        assert open_files() == had
        check_old_or_new(look(folder), before, after)
        if fault != "EIO for good":  # not even leftovers could be removed: that takes another process
            act()
            check_new(look(folder), after)
        check_goes_on(folder, operation, after)


@pytest.mark.parametrize("fault", DEATHS)
@pytest.mark.parametrize("operation", OPERATIONS)
def test_after_a_death_readers_see_old_or_new_and_another_process_goes_on(
    ready: Callable[[str], Ready], operation: str, fault: str
) -> None:
    run, act, whole, before, after, calls = ready(operation)
    for at, name in enumerate(calls, start=1):
        if fault == "killed within" and name != "write":
            continue
        shutil.rmtree(run)
        copy(whole, run)
        die(act, at, fault)
        check_old_or_new(look(run), before, after)
        check_goes_on(run, operation, after)


def die(act: Act, at: int, fault: str) -> None:
    """Carries an operation out in a process that dies at its `at`-th call, or at the one after that failed."""

    def live() -> None:
        with failing(at, fault):
            act()

    code = forked(live)
    assert code == KILLED or (code == 1 and fault == "killed while cleaning up")  # there was nothing to clean up


def forked(live: Act) -> int:
    """Does something in a process of its own; its exit code, 1 where an error ended it."""
    pid = os.fork()
    if pid == 0:
        try:
            live()
            os._exit(0)
        finally:
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def test_a_point_is_there_only_when_the_records_that_it_counts_on_are_durable(
    base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A power cut takes what was written and not fsynced; a point whose records are shorter than it says is refused."""
    training, afloat = Training(Path(shutil.copytree(base, tmp_path / "run"))), set[str]()
    write, rename = os.write, os.rename

    def written(descriptor: int, content: bytes) -> int:
        afloat.add(Path(f"/proc/self/fd/{descriptor}").readlink().name)
        return write(descriptor, content)

    def renamed(source: str, destination: Path) -> None:
        if Path(destination).parent == training.points.folder:
            assert not afloat & set(RECORDS)
        rename(source, destination)

    monkeypatch.setattr(os, "write", written)
    monkeypatch.setattr(os, "rename", renamed)
    monkeypatch.setattr(
        os, "fsync", lambda descriptor: afloat.discard(Path(f"/proc/self/fd/{descriptor}").readlink().name)
    )
    record_metrics(training.run, {"agent_steps": 1})
    # Another process has written a line, and is about to fsync it.
    append_line(training.run.folder / "evaluations.jsonl", {"by": "another"}, durable=False)
    assert afloat == {"metrics.jsonl", "evaluations.jsonl"}
    training.commit_point()
    assert not afloat & set(RECORDS)


@pytest.mark.parametrize("fault", [*ERRORS, *DEATHS])
def test_a_run_is_made_whole_or_not_at_all(tmp_path: Path, fault: str) -> None:
    settings = config.load("cartpole")
    with failing() as calls:
        create(tmp_path / "undisturbed", settings)

    def make(folder: Path, at: int) -> None:
        with failing(at, fault):
            create(folder, settings)

    for at in range(1, len(calls) + 1):
        folder = tmp_path / str(at)
        if fault in DEATHS:
            forked(functools.partial(make, folder, at))
        else:
            with contextlib.suppress(OSError, UsageError):
                make(folder, at)
        if (folder / "run.json").exists():
            assert Run(folder).settings == settings
        else:
            assert not folder.exists()
            create(folder, settings)


def test_a_resume_point_does_not_count_on_a_line_that_another_process_has_begun(base: Path, tmp_path: Path) -> None:
    """It may die, and the next who writes removes what it left: `evaluate` by hand, while a training goes on."""
    folder = tmp_path / "run"
    shutil.copytree(base, folder)
    training = Training(folder)
    with (folder / "evaluations.jsonl").open("ab") as file:
        file.write(b'{"attempt": 1, "snapshot": ' + b"x" * 2_000)
    training.commit_point()
    training.record_evaluation()
    found = newest_point(training.run)
    assert (found.point.number, found.damage) == (training.points.next_number() - 1, [])


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 2 MB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    try:
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(folder)], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("no file system can be mounted here")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


@pytest.mark.parametrize("operation", OPERATIONS)
def test_on_a_full_disk_readers_see_old_or_new_and_room_is_all_that_is_missing(
    base: Path, ready: Callable[[str], Ready], small_disk: Path, operation: str
) -> None:
    """With room for no page, for one, for two, ... until the operation succeeds."""
    *_, before, after, _ = ready(operation)
    for pages in itertools.count():
        folder = small_disk / "run"
        shutil.copytree(base, folder)
        act = OPERATIONS[operation](Training(folder))
        had = open_files()
        with filled(small_disk, pages):
            failed = False
            try:
                act()
            except OSError as error:
                assert error.errno == errno.ENOSPC  # noqa: PT017
                failed = True
            assert open_files() == had
            check_old_or_new(look(folder), before, after)
        if failed:
            act()
        check_new(look(folder), after)
        check_goes_on(folder, operation, after)
        shutil.rmtree(folder)
        if not failed:
            break
    if operation in ("snapshot", "resume point"):
        assert pages > 4


def test_a_full_disk_does_not_keep_away_who_makes_room(base: Path, small_disk: Path) -> None:
    run = Run(Path(shutil.copytree(base, small_disk / "run")))
    with filled(small_disk, 0), run.lock("prune"):
        assert not (run.control / "holder.json").exists()
        with pytest.raises(InUseError, match="is in use by another process"), Run(run.folder).lock("train"):
            pass


def test_on_a_full_disk_resume_points_make_room_for_their_own_removal(base: Path, small_disk: Path) -> None:
    run = Run(Path(shutil.copytree(base, small_disk / "run")))
    assert len(run.points().folders()) > 1
    with filled(small_disk, 0):
        prune(run, keep_last=1, keep_every=0, keep_points=1, dry_run=False)
        assert len(run.points().folders()) == 1


@contextlib.contextmanager
def filled(disk: Path, pages: int) -> Iterator[None]:
    """Leaves room for so many pages."""
    room = os.statvfs(disk)
    filler = disk / "filler"
    with filler.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, (room.f_bavail - pages) * room.f_frsize)
    try:
        yield
    finally:
        filler.unlink()


@pytest.mark.parametrize("why", [errno.ENOSYS, errno.ENOLCK])
def test_storage_without_locks_is_refused(
    base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, why: int
) -> None:
    """As Lustre and NFS can be mounted."""
    run = Run(Path(shutil.copytree(base, tmp_path / "run")))

    def flock(*arguments: object) -> None:
        raise OSError(why, os.strerror(why))

    monkeypatch.setattr(fcntl, "flock", flock)
    plan = plans.parse(
        'name = "one"\npreset = "cartpole"\nsteps = 6_000\nseeds = [1]\n[factors]\ntarget.policy = ["latest"]'
    )
    experiment = Experiment(tmp_path / "experiment", plan, (), Trial(rate=1.0, startup=0.0, disk=[], memory=0))
    for lock in (run.lock("train"), experiment.lock()):
        with pytest.raises(UsageError, match=r"is on storage without file locks .*: choose another folder"), lock:
            pytest.fail("it was locked")
