"""A run on two hosts, which are network namespaces: what listens where, exact steps, a second run on its server."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hosts import FIRST, Host, two_hosts
from test_distributed import TINY, wait_until, working

from twin_graph.records import report
from twin_graph.records.verify import verify
from twin_graph.snapshots.run import Run

AS_ANOTHER_USER = """
import os, socket, sys
os.setgroups([])
os.setgid(65534)
os.setuid(65534)
with socket.socket() as client:
    client.settimeout(10)
    client.connect((b"10.77.0.1", 24000))
    try:
        print(client.recv(100))
    except ConnectionError:
        print(b"")
"""


@pytest.fixture
def hosts() -> Iterator[tuple[Host, Host]]:
    try:
        made = two_hosts()
        both = made.__enter__()
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"no network namespaces can be made here: {getattr(error, 'stderr', '') or error}")
    try:
        yield both
    finally:
        made.__exit__(None, None, None)


def test_a_run_on_two_hosts_is_exact_listens_where_it_was_asked_to_and_shares_no_server(
    hosts: tuple[Host, Host], tmp_path: Path
) -> None:
    first, second = hosts
    address, run = f"{FIRST}:24000", tmp_path / "run"
    file, other = tmp_path / "cluster.toml", tmp_path / "other.toml"
    file.write_text(f'run = "{run}"\nps = ["{address}"]\nworkers = 2\n')
    other.write_text(f'run = "{tmp_path / "other"}"\nps = ["{address}"]\nworkers = 1\n')
    logs = {name: tmp_path / f"{name}.log" for name in ("ps", "w0", "w1", "chief", "second")}
    consent = ("--insecure-network",)
    listen = ("--task=ps:0", f"--listen={FIRST}", *consent)
    chief = second.twin_graph(
        "train", "cartpole", f"--cluster={file}", "--steps=9000", *TINY, *consent, log=logs["chief"]
    )
    tasks = [
        first.twin_graph("cluster", str(file), *listen, log=logs["ps"]),
        first.twin_graph("cluster", str(file), "--task=worker:0", log=logs["w0"]),
        second.twin_graph("cluster", str(file), "--task=worker:1", log=logs["w1"]),
    ]
    wait_until(lambda: working(run, attempt=1) or chief.poll() is not None)
    assert first.listening() == [address]
    assert second.listening() == []
    assert first.says(sys.executable, "-c", AS_ANOTHER_USER) == "b''\n"
    workers = tasks[1:]
    for worker in workers:  # or the first run might end before the second has begun
        os.killpg(worker.pid, signal.SIGSTOP)
    late = second.twin_graph("train", "cartpole", f"--cluster={other}", *TINY, *consent, log=logs["second"])
    assert late.wait(240) == 1
    for worker in workers:
        os.killpg(worker.pid, signal.SIGCONT)
    refused = rf"Error: the parameter server at {address} serves another run .*; end it or use another address"
    assert re.fullmatch(refused, logs["second"].read_text().splitlines()[-1])
    assert chief.wait(240) == 0, logs["chief"].read_text()
    assert [task.wait(60) for task in tasks] == [0, 0, 0], [log.read_text() for log in logs.values()]
    assert (first.processes(), second.processes()) == ([], [])
    status = report.status(Run(run))
    assert (status.state, status.agent_steps) == ("finished", 9_000)
    assert [worker.state for worker in status.workers] == ["done", "done"]
    assert verify(Run(run)).damage == []
    said = f"no password: everyone on another machine who reaches {address} can read and write your files"
    assert said in logs["ps"].read_text()
    assert said in logs["chief"].read_text()
