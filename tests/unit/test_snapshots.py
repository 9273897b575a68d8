"""The store: commits that are whole or absent, references, damage that is named, the ledger, a run's state."""

from __future__ import annotations

import errno
import functools
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tables import rows

from twin_graph import config
from twin_graph.base import machine
from twin_graph.errors import DamagedError, UsageError
from twin_graph.records import report
from twin_graph.snapshots import files
from twin_graph.snapshots.files import append_line, checked, read_lines, unchecked
from twin_graph.snapshots.ledger import Commit, Counters, End, Ledger, Start
from twin_graph.snapshots.lines import record_evaluation
from twin_graph.snapshots.run import Run, create, find, make_in
from twin_graph.snapshots.store import Provenance, SnapshotStore, Variable


def open_store(folder: Path) -> SnapshotStore:
    return SnapshotStore(folder / "snapshots", Ledger(folder / "ledger.jsonl"))


def commit(
    store: SnapshotStore, updates: int, save: Callable[[Path], None] | None = None, *, steps: int | None = None
) -> Commit:
    def write_two_files(prefix: Path) -> None:
        for name in ("index", "data"):
            prefix.with_suffix(f".{name}").write_bytes(f"{name} {updates}".encode())

    return store.commit(
        save or write_two_files,
        Provenance(
            lineage="online",
            attempt=1,
            counters=Counters(
                agent_steps=steps or 4 * updates, updates=updates, frames=16 * updates, episodes=updates // 10
            ),
            settings_sha256="0" * 64,
            weights_sha256=f"{updates:08x}" * 8,
            variables=[Variable(name="w", shape=(2,), dtype="float32")],
        ),
    )


@pytest.fixture
def store(tmp_path: Path) -> SnapshotStore:
    store = open_store(tmp_path)
    for updates in (0, 100, 200, 300):
        commit(store, updates)
    return store


def test_an_abandoned_snapshots_folder_is_adopted_if_it_says_the_same_and_is_written_anew_if_not(
    store: SnapshotStore,
) -> None:
    manifests = [store.folder / snapshot.id / "manifest.json" for snapshot in store.snapshots]
    same, other_steps, damaged, gone = (path.stat().st_mtime_ns for path in manifests)
    manifests[2].write_bytes(b"{}")
    next(manifests[3].parent.glob("*.data")).unlink()
    (store.folder.parent / "ledger.jsonl").unlink()
    again = open_store(store.folder.parent)
    for updates, steps in ((0, None), (100, 401), (200, None), (300, None)):
        commit(again, updates, steps=steps)
    for snapshot in again.snapshots:
        assert again.manifest(snapshot.id).counters == snapshot.counters
    now = [path.stat().st_mtime_ns for path in manifests]
    assert now[0] == same
    assert not {other_steps, damaged, gone} & set(now[1:])
    for snapshot in again.snapshots:
        again.check_files(snapshot.id)


def test_what_was_committed_is_read_back(store: SnapshotStore) -> None:
    again = open_store(store.folder.parent)
    assert again.snapshots == store.snapshots
    assert [manifest.id for manifest in again.snapshots] == [
        "000000-00000000",
        "000001-00000064",
        "000002-000000c8",
        "000003-0000012c",
    ]
    assert [manifest.parent for manifest in again.snapshots] == [None, *(m.id for m in again.snapshots[:-1])]
    for snapshot in again.snapshots:
        again.check_files(snapshot.id)
        manifest = again.manifest(snapshot.id)
        assert (manifest.counters, manifest.weights_sha256) == (snapshot.counters, snapshot.weights_sha256)
        assert manifest.bytes == snapshot.bytes
        assert {path.name for path in (store.folder / snapshot.id).iterdir()} == {
            "model.index",
            "model.data",
            "manifest.json",
        }


def test_order_is_that_of_numbers_beyond_six_digits(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    first = commit(store, 1)
    ledger = Ledger(tmp_path / "ledger.jsonl")
    for number in (1_000_000, 999_999):
        ledger.append(first.model_copy(update={"snapshot": f"{number:06d}-aaaaaaaa", "number": number}))
    assert [snapshot.number for snapshot in open_store(tmp_path).snapshots] == [0, 999_999, 1_000_000]


@pytest.mark.parametrize(
    ("reference", "number"),
    [
        ("latest", 3),
        ("latest~0", 3),
        ("latest~3", 0),
        ("000001-00000064", 1),
        ("000002", 2),
        ("2", 2),
        ("0", 0),
        ("best", 1),
        ("@update:250", 2),
        ("@update:300", 3),
        ("@update:0", 0),
    ],
)
def test_references(store: SnapshotStore, reference: str, number: int) -> None:
    scores = {"000000-00000000": 3.0, "000001-00000064": 9.0}
    assert store.resolve(reference, lambda: scores).number == number


@pytest.mark.parametrize(("reference", "message"), rows("snapshots", "no_references", "reference", "message"))
def test_references_that_mean_nothing(store: SnapshotStore, reference: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        store.resolve(reference, dict)


def test_an_empty_store_has_no_newest(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no snapshot yet"):
        open_store(tmp_path).resolve("latest", dict)


@pytest.mark.parametrize("nth", range(1, 7))
def test_a_commit_fails_with_each_of_its_fsyncs(
    store: SnapshotStore, durable: None, monkeypatch: pytest.MonkeyPatch, nth: int
) -> None:
    """Two data files, the manifest, the folder, its parent, the ledger."""
    calls = [0]
    fsync = os.fsync

    def failing_fsync(descriptor: int) -> None:
        calls[0] += 1
        if calls[0] == nth:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        fsync(descriptor)

    with monkeypatch.context() as patched, pytest.raises(OSError, match="Input/output error"):
        patched.setattr(files.os, "fsync", failing_fsync)
        commit(store, 400)
    assert calls[0] == nth
    assert open_store(store.folder.parent).snapshots == store.snapshots
    assert commit(store, 400).number == 4
    assert calls[0] == nth


@pytest.mark.parametrize("failing", ["write", "fsync", "rename"])
def test_a_commit_that_fails_leaves_nothing(
    store: SnapshotStore, monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched, pytest.raises(OSError, match="No space left"):
        if failing == "fsync":
            patched.setattr(files.os, "fsync", full)
        if failing == "rename":
            patched.setattr(Path, "rename", full)
        commit(store, 400, save=full if failing == "write" else None)

    assert sorted(path.name for path in store.folder.iterdir()) == [manifest.id for manifest in store.snapshots]
    assert open_store(store.folder.parent).snapshots == store.snapshots
    assert commit(store, 400).number == 4


def test_files_are_durable_before_the_snapshot_has_its_name(
    store: SnapshotStore, durable: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []
    fsync, rename = os.fsync, Path.rename

    def recording_fsync(descriptor: int) -> None:
        done.append("fsync " + Path(f"/proc/self/fd/{descriptor}").resolve().name)
        fsync(descriptor)

    def recording_rename(source: Path, target: Path) -> Path:
        done.append("rename")
        return rename(source, target)

    monkeypatch.setattr(files.os, "fsync", recording_fsync)
    monkeypatch.setattr(Path, "rename", recording_rename)
    commit(store, 400)
    before, after = done[: done.index("rename")], done[done.index("rename") + 1 :]
    assert {"fsync model.index", "fsync model.data", "fsync manifest.json"} < set(before)
    assert before[-1].startswith("fsync .tmp-000004-")
    assert after == ["fsync snapshots", "fsync ledger.jsonl"]


def test_unknown_folders_are_left_alone(store: SnapshotStore) -> None:
    for name in (".tmp-000004-00000190-77", "notes", "000009-copy"):
        (store.folder / name).mkdir()
    assert open_store(store.folder.parent).snapshots == store.snapshots
    assert commit(store, 400).number == 4
    assert (store.folder / "notes").is_dir()


def test_damaged_files_are_named(store: SnapshotStore) -> None:
    snapshot = store.newest
    data = store.folder / snapshot.id / "model.data"
    whole = data.read_bytes()
    for damaged in (whole[:-1], bytes([whole[0] ^ 1]) + whole[1:]):
        data.write_bytes(damaged)
        with pytest.raises(DamagedError, match=r"000003-0000012c/model\.data is damaged"):
            store.check_files(snapshot.id)
    data.unlink()
    with pytest.raises(DamagedError, match=r"model\.data is missing"):
        store.check_files(snapshot.id)


@given(data=st.data())
def test_any_bytes_for_a_manifest_give_a_manifest_or_a_clean_error(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    store = open_store(tmp_path_factory.mktemp("run"))
    snapshot = commit(store, 7)
    path = store.folder / snapshot.id / "manifest.json"
    whole = path.read_bytes()
    flip = st.integers(0, len(whole) - 1).flatmap(
        lambda i: st.integers(1, 255).map(lambda x: whole[:i] + bytes([whole[i] ^ x]) + whole[i + 1 :])
    )
    path.write_bytes(data.draw(st.one_of(st.binary(), flip, st.integers(0, len(whole)).map(lambda n: whole[:n]))))
    try:
        assert store.manifest(snapshot.id).id == snapshot.id
    except DamagedError as error:
        assert str(path) in str(error)  # noqa: PT017
        assert "\n" not in str(error)  # noqa: PT017


def records(path: Path, **options: int) -> list[dict[str, object] | None]:
    return [line.record for line in read_lines(path, **options)]


def test_lines_are_read_back_and_a_line_cut_short_is_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    append_line(path, {"n": 1, "text": "größer"})
    whole = path.read_bytes()
    append_line(path, {"n": 2, "loss": float("nan")})
    assert records(path) == [{"n": 1, "text": "größer"}, {"n": 2, "loss": None}]
    path.write_bytes(whole + b'{"n": 2, "lo')
    assert records(path) == [{"n": 1, "text": "größer"}]
    append_line(path, {"n": 3})
    assert records(path) == [{"n": 1, "text": "größer"}, {"n": 3}]


def test_a_ledger_cut_anywhere_keeps_all_lines_before_the_cut(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    lines = [{"n": n, "text": "größer\u2028\x85"} for n in range(3)]
    ends = []
    for line in lines:
        append_line(path, line)
        ends.append(path.stat().st_size)
    whole = path.read_bytes()
    for cut in range(len(whole) + 1):
        path.write_bytes(whole[:cut])
        expected = [line for line, end in zip(lines, ends, strict=True) if end <= cut]
        assert records(path) == expected
        append_line(path, {"n": 9})
        assert records(path) == [*expected, {"n": 9}]


def test_a_line_that_cannot_be_written_leaves_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that fills in the middle of a line."""
    path = tmp_path / "ledger.jsonl"
    append_line(path, {"n": 1})
    whole = path.read_bytes()
    write = os.write

    def half_a_write(descriptor: int, content: memoryview) -> int:
        if len(content) < 10:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(descriptor, content[: len(content) // 2])

    with monkeypatch.context() as patched, pytest.raises(OSError, match="No space left"):
        patched.setattr(files.os, "write", half_a_write)
        append_line(path, {"n": 2, "long": "x" * 100})
    assert path.read_bytes() == whole


def test_every_flipped_bit_of_a_record_is_seen(tmp_path: Path) -> None:
    for indent in (None, 1):
        content = checked({"n": 1, "nested": {"text": 'x"crc": "', "list": [1.5, None]}}, indent=indent)
        assert unchecked(content) == {"n": 1, "nested": {"text": 'x"crc": "', "list": [1.5, None]}}
        for at in range(len(content)):
            for bit in range(8):
                flipped = content[:at] + bytes([content[at] ^ 1 << bit]) + content[at + 1 :]
                with pytest.raises(ValueError, match="checksum"):
                    unchecked(flipped)


def test_a_damaged_line_in_the_middle_is_named(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    for updates in (0, 100, 200):
        commit(store, updates)
    path = tmp_path / "ledger.jsonl"
    content = path.read_bytes()
    at = content.index(b"\n") + 40  # in the second line
    path.write_bytes(content[:at] + b"#" + content[at + 1 :])
    with pytest.raises(DamagedError, match=r"ledger\.jsonl is damaged: line 2 is not what was written"):
        open_store(tmp_path)


def test_the_newest_lines_are_read_without_the_rest(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    for n in range(100, 200):
        append_line(path, {"n": n}, durable=False)
    line = path.stat().st_size // 100
    assert records(path, newest_bytes=3 * line) == [{"n": 197}, {"n": 198}, {"n": 199}]
    assert records(path, newest_bytes=3 * line + 5) == [{"n": 197}, {"n": 198}, {"n": 199}]
    assert len(records(path, newest_bytes=100 * line)) == 100
    starts = [line.start for line in read_lines(path, newest_bytes=3 * line)]
    assert starts == [97 * line, 98 * line, 99 * line]


def test_several_processes_append_whole_lines(tmp_path: Path) -> None:
    path = tmp_path / "evaluations.jsonl"
    code = (
        "import sys; from pathlib import Path; from twin_graph.snapshots.files import append_line\n"
        "for n in range(50): append_line(Path(sys.argv[1]), {'n': n, 'long': 'x' * 20_000}, durable=False)"
    )
    writers = [subprocess.Popen([sys.executable, "-c", code, str(path)]) for _ in range(3)]
    assert [writer.wait() for writer in writers] == [0, 0, 0]
    assert sorted(line.record["n"] for line in read_lines(path) if line.record) == sorted(list(range(50)) * 3)


def test_nothing_is_appended_to_a_file_that_ends_with_no_line(tmp_path: Path) -> None:
    path = tmp_path / "lines.jsonl"
    append_line(path, {"n": 1})
    with path.open("ab") as file:
        file.truncate(2**40)
    with pytest.raises(DamagedError, match=r"lines\.jsonl is damaged: it ends with [0-9,]+ bytes that are no line"):
        append_line(path, {"n": 2})
    assert path.stat().st_size == 2**40


def test_counters_have_an_end_that_nothing_honest_reaches(tmp_path: Path) -> None:
    run = create(tmp_path / "run", config.load("cartpole"))
    run.record_start()
    [start] = run.ledger.events(Start)
    run.ledger.append(start.model_copy(update={"attempt": 2**62}))
    with pytest.raises(DamagedError, match=r"ledger\.jsonl is damaged: it has attempt 4,611,686,018"):
        Run(run.folder).record_start()
    store = open_store(tmp_path / "other")
    last = commit(store, 0)
    store._ledger.append(last.model_copy(update={"number": 10**15 - 1, "snapshot": f"{10**15 - 1}-00000000"}))
    store.reload()
    with pytest.raises(DamagedError, match="it has a snapshot 999,999,999,999,999"):
        commit(store, 100)


def test_records_that_lack_what_they_must_say_are_damage(tmp_path: Path) -> None:
    run = create(tmp_path / "run", config.load("cartpole"))
    append_line(run.folder / "evaluations.jsonl", {"snapshot": "a"})
    with pytest.raises(DamagedError, match=r"evaluations\.jsonl is damaged: attempt: Field required"):
        run.scores()


def test_a_run_that_cannot_be_written_leaves_no_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched, pytest.raises(OSError, match="No space left"):
        patched.setattr(files.os, "fsync", full)
        create(tmp_path / "run", config.load("cartpole"))
    assert not (tmp_path / "run").exists()


def test_who_finds_a_name_taken_meanwhile_takes_the_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    settings, found_free = config.load("cartpole"), []

    def make(folder: Path) -> Run:
        if not found_free:
            create(folder, settings)  # the other process
        found_free.append(folder.name)
        return create(folder, settings)

    assert make_in(None, "mine-", make).name == "mine-2"
    assert found_free == ["mine-1", "mine-2"]
    with pytest.raises(UsageError, match="mine-1 exists already"):
        make_in(Path("checkpoints/mine-1"), "mine-", make)


@given(lines=st.lists(st.one_of(st.binary(), st.dictionaries(st.text(), st.integers()).map(checked)), max_size=5))
def test_any_bytes_for_a_ledger_give_events_or_a_clean_error(
    lines: list[bytes], tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("run") / "ledger.jsonl"
    path.write_bytes(b"\n".join(lines))
    try:
        Ledger(path).events()
    except DamagedError as error:
        assert str(path) in str(error)  # noqa: PT017
        assert "\n" not in str(error)  # noqa: PT017


def test_a_run_is_never_overwritten(tmp_path: Path) -> None:
    run = create(tmp_path / "run", config.load("cartpole"))
    before = (run.folder / "run.json").read_bytes()
    for occupied in (tmp_path / "run", tmp_path / "run" / "run.json"):
        with pytest.raises(UsageError, match="exists already"):
            create(occupied, config.load("pong"))
    assert (run.folder / "run.json").read_bytes() == before


def test_a_run_with_settings_of_another_version_is_not_called_damaged(tmp_path: Path) -> None:
    path = create(tmp_path / "run", config.load("cartpole")).folder / "run.json"
    record = json.loads(path.read_text())
    del record["crc"]
    record["settings"]["train"]["new_knob"] = 1
    record["versions"]["twin-graph"] = "9.0.0"
    path.write_bytes(files.checked(record, indent=1))
    with pytest.raises(
        DamagedError, match=r"run\.json, of twin-graph 9\.0\.0, has settings of another version: unknown"
    ):
        Run(path.parent)


def test_films_that_died_unfinished_are_removed_by_the_next_writer(tmp_path: Path) -> None:
    run = create(tmp_path / "run", config.load("cartpole"))
    run.videos.mkdir()
    here = files.temporary_of(run.videos / "000001-aaaaaaaa.mp4").name
    name, us, parent = ".tmp-000001-aaaaaaaa.mp4", os.getpid(), os.getppid()
    since, its_since = (
        Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[19] for process in (us, parent)
    )
    machine, boot = here.rpartition("@")[2].split(".")
    assert here == f"{name}-{us}.{since}@{machine}.{boot}"
    longest = "x" * files.LONGEST_NAME
    assert files.temporary_of(Path(longest)).name == f".tmp-{longest}-{us}@{machine}"
    by_a_parent = f"{name}-{parent}.{its_since}@{machine}.{boot}"
    elsewhere, long_ago = f"{name}-{us}.{since}@00000000.{boot}", f"{name}-{us}.{since}@00000001.{boot}"
    by_older_versions = f"{name}-{parent}", f"{name}-{parent}@{machine}"
    dead = [
        *(here, f"{name}-4194305", f"{name}-4194305@{machine}", f"{name}-4194305.{since}@{machine}.{boot}"),
        f"{name}-{parent}.{int(its_since) - 1}@{machine}.{boot}",  # whose number is the parent's now
        f"{name}-{parent}.{its_since}@{machine}.00000000",  # before the machine was started again
    ]
    for one in (by_a_parent, elsewhere, long_ago, *by_older_versions, *dead):
        (run.videos / one).touch()
    os.utime(run.videos / long_ago, times=(0, 0))
    assert {path.name for path in files.abandoned(run.videos)} == {long_ago, *dead}
    with run.lock("train"):
        left = {path.name for path in run.videos.iterdir()}
    assert left == {by_a_parent, elsewhere, *by_older_versions}


def test_a_folder_that_cannot_be_renamed_goes_piece_by_piece(tmp_path: Path) -> None:
    """As one of an image in a container; and is gone after a death at any of its steps."""

    def rename(source: str, destination: str) -> None:
        raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))

    for steps in range(7):
        folder = tmp_path / f"points{steps}" / "000001"
        folder.mkdir(parents=True)
        for name in ("online.index", "online.data", "state.json"):
            (folder / name).write_text("")
        if process := os.fork():
            assert os.waitpid(process, 0)[1] in (0, 9)
        else:
            left = steps

            def step(path: object, *, function: Any, **options: Any) -> None:
                nonlocal left
                if not left:
                    os.kill(os.getpid(), 9)
                left -= 1
                function(path, **options)

            os.rename = rename
            os.unlink = functools.partial(step, function=os.unlink)
            os.rmdir = functools.partial(step, function=os.rmdir)
            files.remove_folder(folder)
            os._exit(0)
        if steps and folder.exists():
            assert not (folder / "state.json").exists()
        files.remove_leftovers(folder.parent)
        assert not any(folder.parent.iterdir())


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
def test_who_may_only_read_sees_whether_a_run_elsewhere_is_locked(monkeypatch: pytest.MonkeyPatch) -> None:
    with tempfile.TemporaryDirectory() as name:  # of pytest's folders others see nothing
        Path(name).chmod(0o755)
        run = create(Path(name) / "run", config.load("cartpole"))
        with run.lock("train"):
            run.record_start()
            monkeypatch.setattr(socket, "gethostname", lambda: "elsewhere")
            assert Run(run.folder).state() == "running"
        os.seteuid(65534)
        try:
            assert Run(run.folder).state() == "failed"
            os.seteuid(0)
            (run.control / "lock").chmod(0)
            os.seteuid(65534)
            assert Run(run.folder).state() == "running"  # as far as one can tell
        finally:
            os.seteuid(0)


def test_all_cores_are_recorded_as_their_number(tmp_path: Path) -> None:
    """On a machine with others as many threads give equal weights."""
    run = create(tmp_path / "run", config.load("cartpole", [("twin.threads", 0)]))
    assert run.settings.twin.threads == Run(run.folder).settings.twin.threads == machine.describe().cores


def cpuinfo(path: Path, *flags: str, model: int = 1, stepping: int = 1) -> Path:
    """What Linux says of a processor; several generations have this name."""
    facts = {"vendor_id": "AuthenticAMD", "cpu family": 25, "model": model, "model name": "AMD EPYC"}
    facts |= {"stepping": stepping, "flags": " ".join(("fpu", "fma", "avx2", *flags))}
    path.write_text("".join(f"{name}\t: {value}\n" for name, value in facts.items()))
    return path


def test_a_run_records_which_processor_trains_it_in_each_attempt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine, "CPUINFO", cpuinfo(tmp_path / "first", "avx512f", "avx512_bf16"))
    run = create(tmp_path / "run", config.load("cartpole"))
    run.record_start()
    recorded = run.description["cpu"]
    assert (recorded["family"], recorded["model_number"], recorded["stepping"]) == (25, 1, 1)
    assert recorded["flags"] == ["fpu", "fma", "avx2", "avx512f", "avx512_bf16"]
    monkeypatch.setattr(machine, "CPUINFO", cpuinfo(tmp_path / "second", model=17))
    run.record_start()
    starts = [machine.Cpu.of(start.processor) for start, _ in run.ledger.with_abandoned(Start)]
    assert [processor.words() for processor in starts] == ["AMD EPYC (AVX512-BF16)", "AMD EPYC (AVX2)"]
    assert Run(run.folder).processors() == starts[1:] == [machine.describe()]  # the first is abandoned


def test_processors_of_one_name_are_distinguished(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def described(*flags: str, **numbers: int) -> machine.Cpu:
        monkeypatch.setattr(machine, "CPUINFO", cpuinfo(tmp_path / "cpuinfo", *flags, **numbers))
        return machine.describe()

    usual = described()
    assert list(machine.differences(usual, described(stepping=2))) == [
        (
            "processor",
            "AMD EPYC (AVX2), family 25, model 1, stepping 1",
            "AMD EPYC (AVX2), family 25, model 1, stepping 2",
        )
    ]
    assert list(machine.differences(usual, described("vaes"))) == [("processor's flags", "without vaes", "with vaes")]
    assert machine.known(usual, described()) == ["name", "family", "model", "stepping", "flags"]


@pytest.mark.parametrize(
    ("flags", "name"),
    [
        ((), "AVX2"),
        (("avx512f",), "AVX512"),
        (("avx512f", "avx512_vnni", "avx512_bf16"), "AVX512-BF16"),
        (("avx512f", "avx512_bf16", "amx_bf16"), "AMX-BF16"),
    ],
)
def test_a_processor_is_named_with_its_instruction_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flags: tuple[str, ...], name: str
) -> None:
    monkeypatch.setattr(machine, "CPUINFO", cpuinfo(tmp_path / "cpuinfo", *flags))
    assert machine.describe().words() == f"AMD EPYC ({name})"


def test_of_what_was_not_recorded_neither_equality_nor_difference_is_claimed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine, "CPUINFO", cpuinfo(tmp_path / "cpuinfo", model=17))
    now = machine.describe()
    earlier = machine.Cpu.of({"model": "AMD EPYC", "cores": 2, "features": ["avx2"]})
    assert list(machine.differences(earlier, now)) == []
    assert machine.known(earlier, now) == ["name", "instruction set"]
    other = machine.Cpu.of({"model": "AMD EPYC", "cores": 2, "features": ["avx2", "avx512f"]})
    assert list(machine.differences(other, now)) == [
        ("processor", "AMD EPYC (AVX512)", "AMD EPYC (AVX2), family 25, model 17, stepping 1")
    ]
    monkeypatch.setattr(machine, "CPUINFO", tmp_path / "none")
    elsewhere = machine.describe()
    assert (elsewhere.family, elsewhere.model_number, elsewhere.stepping, elsewhere.flags) == (None,) * 4
    assert elsewhere.words().endswith(" (instruction set not recorded)")
    assert machine.known(earlier, elsewhere) == ["name"]


def test_a_run_knows_its_settings_and_versions(tmp_path: Path) -> None:
    settings = config.load("cartpole", [("seed", 9)])
    create(tmp_path / "run", settings, {"frame skip": 4})
    run = Run(tmp_path / "run")
    assert run.settings == settings
    assert run.description["protocol"] == {"frame skip": 4}
    assert run.description["versions"]["tensorflow"].startswith("2.2")


def test_a_folder_that_is_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no run in"):
        find(str(tmp_path / "nothing"))


@pytest.mark.parametrize(
    "content",
    [b"", b"{}", b"[]", b"\xff", checked({"format": 99}), checked({"format": 1, "settings": 5}), checked({"other": 1})],
)
def test_a_damaged_run_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "run.json").write_bytes(content)
    with pytest.raises(DamagedError, match=r"run\.json is damaged|has format 99"):
        Run(tmp_path)


def test_a_run_is_as_long_as_its_vector_steps(tmp_path: Path) -> None:
    run = create(tmp_path / "run", config.load("cartpole", [("train.steps", 1_001), ("env.count", 8)]))
    assert report.status(run).total_steps == run.settings.total_steps == 1_008


def test_the_state_of_a_run_follows_its_trainers_process(tmp_path: Path) -> None:
    run = create(tmp_path / "run", config.load("cartpole"))
    assert run.state() == "stopped"  # made, and no trainer ever began
    with run.lock("train"):
        run.record_start()
        assert run.state() == "running"
        run.ledger.append(End(attempt=1, time="", state="finished", reason="done"))
        assert run.state() == "finished"
        run.record_start()
        assert run.state() == "running"

    code = "import os, sys; from twin_graph.snapshots.run import Run; from pathlib import Path;"
    code += "run = Run(Path(sys.argv[1])); run.lock('train').__enter__(); run.record_start(); os._exit(0)"
    crashed = create(tmp_path / "crashed", config.load("cartpole"))
    subprocess.run([sys.executable, "-c", code, str(crashed.folder)], check=True)
    assert crashed.state() == "failed"


def test_a_process_number_that_was_given_again_is_not_taken_for_the_trainer(tmp_path: Path) -> None:
    run = create(tmp_path / "run", config.load("cartpole"))
    host = socket.gethostname()
    run.ledger.append(Start(attempt=1, time="", pid=os.getpid(), host=host, process_started=1.0))
    assert run.state() == "failed"


def test_a_run_of_another_machine_runs_while_its_lock_is_held(tmp_path: Path) -> None:
    run = create(tmp_path / "run", config.load("cartpole"))
    with run.lock("train"):
        run.ledger.append(Start(attempt=1, time="", pid=1, host="elsewhere.invalid", process_started=1.0))
        assert Run(run.folder).state() == "running"
    assert Run(run.folder).state() == "failed"


def test_a_trainer_is_known_by_its_lock_and_not_by_its_number(tmp_path: Path) -> None:
    """In a container of the same host name it has another number, and a copy of a run names a living process."""
    run = create(tmp_path / "run", config.load("cartpole"))
    with run.lock("train"):
        assert Run(run.folder).state() == "running"  # before it has recorded anything
        run.ledger.append(Start(attempt=1, time="", pid=2**22 + 1, host=socket.gethostname()))
        assert Run(run.folder).state() == "running"
        run.record_start()
        shutil.copytree(run.folder, tmp_path / "copy")
        assert Run(tmp_path / "copy").state() == "failed"
    with run.lock("prune"):
        assert Run(run.folder).state() == "failed"


def test_scores_come_from_scheduled_evaluations_alone(tmp_path: Path) -> None:
    run = create(tmp_path / "run", config.load("cartpole"))
    store = run.store()
    a, b = commit(store, 0), commit(store, 100)
    for snapshot, played_at, returns in ((a, a.counters, [1.0, 3.0]), (a, None, [99.0]), (b, b.counters, [4.0])):
        result = {"mean": fmean(returns), "interval_95": None, "returns": returns, "protocol": {}}
        record_evaluation(run, snapshot, result, played_at=played_at)
    assert run.scores() == {a.id: 2.0, b.id: 4.0}


def test_an_interval_that_an_older_version_gave_to_one_game_is_none(tmp_path: Path) -> None:
    run = create(tmp_path / "run", config.load("cartpole"))
    one = commit(run.store(), 0)
    for returns in ([54.5], [54.5, 60.5]):
        result = {
            "mean": fmean(returns),
            "returns": returns,
            "protocol": {},
            "interval_95": [min(returns), max(returns)],
        }
        record_evaluation(run, one, result, played_at=one.counters)
    assert [line["interval_95"] for line in run.evaluation_lines()] == [None, [54.5, 60.5]]


def test_run_json_is_plain_json(tmp_path: Path) -> None:
    run = create(tmp_path / "run", config.load("cartpole"))
    assert json.loads((run.folder / "run.json").read_text())["settings"]["env"]["id"] == "CartPole-v1"


def test_a_ledger_that_was_read_sees_that_a_line_was_taken_back_and_another_written_in_its_place(
    tmp_path: Path,
) -> None:
    """A writer takes a line back if it cannot make it durable; somebody may have read it by then."""
    ledger = Ledger(tmp_path / "ledger.jsonl")
    ledger.append(End(attempt=1, time="", state="finished", reason="one"))
    whole = ledger.path.read_bytes()
    ledger.append(End(attempt=2, time="", state="finished", reason="two"))
    assert [event.reason for event in ledger.events(End)] == ["one", "two"]
    status = ledger.path.stat()
    for content, reasons in (
        (whole + ledger.path.read_bytes()[len(whole) :].replace(b"two", b"six"), None),
        (whole, ["one"]),
        (b"", []),
    ):
        ledger.path.write_bytes(content)
        os.utime(ledger.path, ns=(status.st_atime_ns, status.st_mtime_ns))
        if reasons is None:
            with pytest.raises(DamagedError, match="line 2 is not what was written"):
                ledger.events(End)
        else:
            assert [event.reason for event in ledger.events(End)] == reasons
    ledger.path.unlink()
    assert ledger.events() == []
    ledger.append(End(attempt=3, time="", state="stopped", reason="anew"))
    assert [event.reason for event in ledger.events()] == ["anew"]


def test_each_line_of_a_ledger_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = open_store(tmp_path)
    checked_lines: list[int] = []
    crc32 = files.zlib.crc32

    def counting(content: bytes) -> int:
        checked_lines.append(len(content))
        return crc32(content)

    counts = []
    monkeypatch.setattr(files.zlib, "crc32", counting)
    for updates in range(0, 2_000, 100):
        checked_lines.clear()
        commit(store, updates)
        store.reload()
        store.reload()
        counts.append(len(checked_lines))
    assert {*counts} == {3}  # the manifest's and the line's when they are written, and the line's when it is read


def test_the_rest_of_a_line_that_was_being_written_is_no_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its writer ends it while somebody reads."""
    path = tmp_path / "ledger.jsonl"
    append_line(path, {"n": 1})
    whole = path.read_bytes()
    monkeypatch.setattr(Path, "open", lambda *_: Parts([whole, whole[:5], whole[5:]]))
    assert records(path) == [{"n": 1}]


class Parts(list[bytes]):
    """Stands for a file that grows while it is read."""

    def __enter__(self) -> Parts:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def seek(self, *_: int) -> int:
        return 0
