"""Runs on file systems that are not plain: a container's, in memory, read-only, full."""

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from commands import twin_graph

from twin_graph.records.verify import verify
from twin_graph.snapshots.run import Run

#: Kept small: two resume points, the first of which is retired.
TINY = [
    *("--set=train.start_steps=64", "--set=train.every_steps=4", "--set=train.batch_size=16", "--set=env.count=4"),
    *("--set=model.hidden_units=[16]", "--set=save.every_updates=20", "--set=save.keep_last=1"),
    *("--set=save.keep_every=0", "--set=target.refresh_every_updates=20", "--set=resume.every_steps=200"),
    *("--set=resume.keep=1", "--set=evaluate.episodes=0", "--set=twin.compiled=false", "--set=train.chunk_steps=0"),
]


@contextlib.contextmanager
def mounted(folder: Path, kind: str, options: str) -> Iterator[Path]:
    """A file system at a folder that is made for it."""
    folder.mkdir()
    done = subprocess.run(["mount", "-t", kind, "-o", options, kind, folder], capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"{kind} cannot be mounted here: {done.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True)


def remount(folder: Path, options: str) -> None:
    subprocess.run(["mount", "-o", f"remount,{options}", folder], check=True)


def leave(folder: Path, kilobytes: int) -> None:
    """Makes a file system so small that not more is free."""
    disk = os.statvfs(folder)
    remount(folder, f"size={(disk.f_blocks - disk.f_bfree) * disk.f_bsize // 1024 + kilobytes}k")


@pytest.fixture(scope="module")
def half(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was trained halfway."""
    if os.geteuid():
        pytest.skip("only root can mount")
    folder = tmp_path_factory.mktemp("half")
    done = twin_graph("train", "cartpole", "--steps", "500", *TINY, "--run-dir", "run", cwd=folder)
    assert done.returncode == 0, done.stderr
    return folder / "run"


@pytest.fixture(scope="module")
def end(half: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The weights with which it ends on a plain disk."""
    folder = tmp_path_factory.mktemp("plain")
    return resumed(Path(shutil.copytree(half, folder / "run")))


def resumed(folder: Path) -> str:
    done = twin_graph("resume", str(folder), "--steps", "900", cwd=folder.parent)
    assert done.returncode == 0, done.stderr
    run = Run(folder)
    findings = verify(run)
    assert (findings.damage, findings.leftover, findings.unknown) == ([], [], [])
    assert len(run.points().folders()) == 1
    newest = run.points().newest()
    assert newest
    return newest.weights_sha256


@pytest.mark.parametrize("upper", ["disk", "memory"])
def test_a_run_of_a_containers_image_ends_with_equal_weights(half: Path, end: str, tmp_path: Path, upper: str) -> None:
    with contextlib.ExitStack() as stack:
        above = tmp_path / "above"
        if upper == "memory":
            stack.enter_context(mounted(above, "tmpfs", "size=64m"))
        for name in ("upper", "work"):
            (above / name).mkdir(parents=True)
        layers = f"lowerdir={half.parent},upperdir={above / 'upper'},workdir={above / 'work'}"
        merged = stack.enter_context(mounted(tmp_path / "merged", "overlay", layers))
        before = sorted(path.name for path in (half / "resume").iterdir())
        assert resumed(merged / "run") == end
        fork = twin_graph("fork", "run", "--run-dir", "fork", cwd=merged)
        assert fork.returncode == 0, fork.stderr
        export = twin_graph("export", "run", "latest", "out", "--format", "savedmodel", cwd=merged)
        assert export.returncode == 0, export.stderr
        assert sorted(path.name for path in (half / "resume").iterdir()) == before


def test_a_run_in_memory_ends_with_equal_weights(half: Path, end: str, tmp_path: Path) -> None:
    with mounted(tmp_path / "memory", "tmpfs", "size=64m") as memory:
        assert resumed(Path(shutil.copytree(half, memory / "run"))) == end


def test_a_run_that_is_read_only_is_named_in_a_line(half: Path, tmp_path: Path) -> None:
    with mounted(tmp_path / "memory", "tmpfs", "size=64m") as memory:
        shutil.copytree(half, memory / "run")
        remount(memory, "ro")
        for arguments in (["resume", "run", "--steps", "900"], ["fork", "run"], ["average", "run", "--last", "2"]):
            done = twin_graph(*arguments, cwd=memory)
            assert done.returncode in (1, 2)
            assert done.stderr.startswith("Error: ")
            assert "ead-only file system" in done.stderr
            assert done.stderr.count("\n") == 1
        for arguments in (["status", "run"], ["verify", "run"], ["log", "run"]):
            assert twin_graph(*arguments, cwd=memory).returncode == 0


def test_a_disk_that_is_nearly_full_loses_nothing(half: Path, end: str, tmp_path: Path) -> None:
    with mounted(tmp_path / "memory", "tmpfs", "size=64m") as memory:
        run = Path(shutil.copytree(half, memory / "run"))
        for spare in (0, 4, 24, 64):  # kilobytes
            leave(memory, spare)
            done = twin_graph("resume", "run", "--steps", "900", cwd=memory)
            if done.returncode:
                errors = [line for line in done.stderr.splitlines() if line.startswith("Error: ")]
                assert len(errors) == 1
                assert "No space left on device" in errors[0] or "not enough disk space" in errors[0]
            assert "Traceback" not in done.stderr
            assert verify(Run(run)).damage == []
        leave(memory, 8)
        full = twin_graph("export", "run", "latest", "out", "--format", "savedmodel", cwd=memory)
        remount(memory, "size=64m")
        assert resumed(run) == end
        assert full.returncode == 1
        assert full.stderr.count("\n") == 1
        assert "No space left on device" in full.stderr
        assert not (memory / "out").exists()
