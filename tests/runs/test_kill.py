"""`tests/crash/kill.py` in short: trainings that are killed lose nothing, and end as if they had not been."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import kill
import psutil


def test_a_training_that_is_killed_loses_nothing_and_ends_with_equal_weights() -> None:
    with kill.Server(jobs=2) as server:
        tally = kill.Harness(server, ["fork"] * 3 + ["fresh"] + ["fork"] * 3, seed=1).run()
    assert tally.problems == []
    assert tally.kills.total() == 7
    assert tally.kills[kill.FRESH] == 1
    assert tally.equal == tally.runs >= 2
    assert not server.folder.exists()


def test_a_harness_that_is_killed_leaves_no_process_and_no_folder(tmp_path: Path) -> None:
    harness = subprocess.Popen(
        [sys.executable, kill.__file__, "--fresh", "0", "--network", "0", "--jobs", "1"],
        env={**os.environ, "TMPDIR": str(tmp_path)},
        stderr=subprocess.DEVNULL,
    )
    try:
        wait_until(lambda: any(tmp_path.glob("*/cartpole-seed1/run.json")))
        assert processes_in(tmp_path)
    finally:
        harness.send_signal(signal.SIGKILL)
        harness.wait()
    wait_until(lambda: not any(tmp_path.iterdir()) and not processes_in(tmp_path))


def processes_in(folder: Path) -> list[psutil.Process]:
    """The server and its forks, which have its command line."""
    return [process for process in psutil.process_iter(["cmdline"]) if str(folder) in str(process.info["cmdline"])]


def wait_until(done: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not done():
        assert time.monotonic() < deadline
        time.sleep(0.05)
