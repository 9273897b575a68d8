"""Experiments on Ray: real clusters, of this machine, whose trainings are real ones, killed and gone on with."""

import contextlib
import ipaddress
import json
import os
import re
import secrets
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import filelock
import psutil
import pytest
from commands import twin_graph
from experiment_files import changed
from test_experiments import trainers, wait_for

from twin_graph.records import report
from twin_graph.snapshots.ledger import Start
from twin_graph.snapshots.run import Run

pytest.importorskip("ray", reason="needs the extra ray: pip install -e '.[dev,ray]'")

POLICY = """
from twin_graph.targets import latest

def mine(history, random):
    return latest(history, random)
"""
RUNS = ["latest,seed=1", "own-mine,seed=1"]
# Found only by a process that has both this environment and the folder of the command.
ENVIRONMENT = {**os.environ, "PYTHONPATH": "policies", "RAY_ADDRESS": ""}
RUN = ("experiment", "run", "tiny.toml", "--jobs=2")
SECONDS = 6_000  # agent steps: long enough for a runner or a machine to die before a training ends


def prepared(cwd: Path, steps: int = 600) -> Path:
    """The folder that an experiment with a policy of one's own will have; its file lies in `cwd`."""
    (cwd / "policies").mkdir()
    (cwd / "policies" / "own.py").write_text(POLICY)
    text = changed("lag(40)", "own:mine").replace("[1, 2]", "[1]").replace("steps = 600", f"steps = {steps}", 1)
    (cwd / "tiny.toml").write_text(text)
    return cwd / "checkpoints" / "experiments" / "tiny"


def begin(cwd: Path, **options: Any) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "twin_graph_cli", *RUN, "--executor=ray"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(command, cwd=cwd, env=ENVIRONMENT, start_new_session=True, **pipes, **options)


def children(process: subprocess.Popen[Any]) -> list[psutil.Process]:
    return psutil.Process(process.pid).children(recursive=True)


def weights(folder: Path) -> list[str]:
    assert [Run(folder / name).state() for name in RUNS] == ["finished"] * 2
    return [report.status(Run(folder / name)).weights_sha256 for name in RUNS]


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The weights with which the runs end on this machine, without Ray."""
    return weights_without_ray(tmp_path_factory.mktemp("here"), steps=SECONDS)


def weights_without_ray(cwd: Path, steps: int = 600) -> list[str]:
    folder = prepared(cwd, steps)
    done = twin_graph(*RUN, cwd=cwd, env=ENVIRONMENT)
    assert done.returncode == 0, done.stderr
    return weights(folder)


def test_ctrl_c_makes_trainings_save_wherever_they_are(tmp_path: Path) -> None:
    folder = prepared(tmp_path, steps=100_000)
    runner = begin(tmp_path)
    wait_for(lambda: len(list(folder.glob("*/evaluations.jsonl"))) == 2)
    os.killpg(runner.pid, signal.SIGINT)  # as a terminal does, also to Ray's processes
    stdout, stderr = runner.communicate(timeout=60)
    assert runner.returncode == 130
    assert stdout == ""
    assert "continue with: twin-graph experiment run tiny.toml --jobs 2 --executor ray" in stderr
    assert not trainers(folder)
    assert [Run(folder / name).state() for name in RUNS] == ["stopped"] * 2


def test_a_training_does_not_outlive_its_runner_and_the_next_one_goes_on(tmp_path: Path, expected: list[str]) -> None:
    """To the weights that there are without a cluster; and who trains on one sees nothing of it."""
    folder = prepared(tmp_path, SECONDS)
    runner = begin(tmp_path)
    wait_for(lambda: list(folder.glob("*/resume/*")))
    theirs = children(runner)
    trainings = [process for process in trainers(folder) if process in theirs]
    assert trainings
    listening = [
        connection.laddr.ip
        for process in theirs
        for connection in process.net_connections("inet")
        if connection.status == psutil.CONN_LISTEN
    ]
    assert listening
    assert all(ipaddress.ip_address(ip.removeprefix("::ffff:")).is_loopback for ip in listening)
    runner.kill()
    for process in set(theirs) - set(trainings):  # nothing of Ray is left that could end them
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    assert psutil.wait_procs(trainings, timeout=30)[1] == []
    runner.communicate()
    assert not trainers(folder)
    assert [Run(folder / name).state() for name in RUNS] != ["finished"] * 2
    again = twin_graph(*RUN, "--executor=ray", "--json", cwd=tmp_path, env=ENVIRONMENT, fresh=True)
    assert again.returncode == 0, again.stderr
    assert [run["state"] for run in json.loads(again.stdout)["runs"]] == ["done"] * 2
    assert weights(folder) == expected
    ours = r"condition +runs|(latest|own:mine|tiny|time|disk): |(latest|own:mine) +1 |(latest|own-mine),seed=1: "
    ours += r"|[\d,]+ of |fixed for|next: "
    assert [line for line in again.stderr.splitlines() if not re.match(ours, line)] == []


@pytest.fixture
def node() -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """Starts a node of a cluster; killed, it is a machine that dies."""
    nodes = []

    def start(*options: str, env: dict[str, str]) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "ray.scripts.scripts", "start", "--block", *options]
        nodes.append(subprocess.Popen(command, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))
        return nodes[-1]

    yield start
    for each in nodes:
        each.kill()
        each.wait()


def test_when_a_machine_dies_its_run_goes_on_elsewhere(
    tmp_path: Path, expected: list[str], node: Callable[..., subprocess.Popen[bytes]]
) -> None:
    folder = prepared(tmp_path, SECONDS)
    with socket.socket() as free:
        free.bind(("127.0.0.2", 0))  # for Ray, 127.0.0.1 is the address of the outer interface
        address = f"127.0.0.2:{free.getsockname()[1]}"
    env = {**ENVIRONMENT, "RAY_ADDRESS": address, "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
    env |= {"RAY_health_check_period_ms": "1000", "RAY_health_check_failure_threshold": "3"}  # not 5 times 3 s
    head = ("--head", "--node-ip-address=127.0.0.2", f"--port={address.partition(':')[2]}", "--num-cpus=0")
    node(*head, "--include-dashboard=false", "--disable-usage-stats", env=env)
    wait_for(lambda: answers(address))
    joined: list[subprocess.Popen[bytes]] = []
    for i in (3, 4):  # one after the other: of two that start together Ray may give both the same socket
        joined.append(node(f"--address={address}", f"--node-ip-address=127.0.0.{i}", "--num-cpus=1", env=env))
        wait_for(lambda: "ray::RuntimeEnvAgent" in {child.name() for child in children(joined[-1])})

    command = [sys.executable, "-m", "twin_graph_cli", *RUN, "--executor=ray"]
    with (tmp_path / "stderr").open("w") as stderr:
        runner = subprocess.Popen(command, cwd=tmp_path, env=env, stderr=stderr)
    wait_for(lambda: list(folder.glob("*/resume/*")))
    victim = next(each for each in joined if set(children(each)) & set(trainers(folder)))
    victim.kill()
    assert runner.wait() == 0, (tmp_path / "stderr").read_text()
    assert weights(folder) == expected
    ends = [json.loads(line) for line in (folder / "outcomes.jsonl").read_text().splitlines()]
    assert sorted(end["error"] for end in ends) == ["", "", "killed by SIGKILL"]
    assert "its node has died" in "".join(log.read_text() for log in folder.glob("logs/*"))


def test_with_a_remote_machines_share_no_storage(tmp_path: Path, expected: list[str]) -> None:
    """Each has a folder of its own; what is left of killed runs is in the remote, and all is fetched in the end."""
    folder = prepared(tmp_path, SECONDS)
    env = {**ENVIRONMENT, "PYTHONPATH": str(tmp_path / "policies")}
    options = [*RUN, "--executor=ray", "--remote", (tmp_path / "remote").as_uri()]
    command = [sys.executable, "-m", "twin_graph_cli", *options]
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    runner = subprocess.Popen(command, cwd=tmp_path, env=env, start_new_session=True, **pipes)
    wait_for(lambda: len(list((tmp_path / "remote").glob("*/heads/00000003"))) == 2)
    assert not [name for name in RUNS if (folder / name).exists()]
    for process in [*children(runner), psutil.Process(runner.pid)]:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    runner.communicate()
    again = twin_graph(*options, "--json", cwd=tmp_path, env=env, fresh=True)
    assert again.returncode == 0, again.stderr
    assert weights(folder) == expected
    for name in RUNS:
        assert len(Run(folder / name).ledger.events(Start)) == 2
        assert "twin-graph resume file:///" in (folder / "logs" / f"{name}.log").read_text()
        assert "weights_sha256" in (folder / "logs" / f"{name}.log").read_text()


def answers(address: str) -> bool:
    host, _, port = address.partition(":")
    with socket.socket() as probe:
        return probe.connect_ex((host, int(port))) == 0


def test_an_address_where_nobody_listens_is_refused_at_once(tmp_path: Path) -> None:
    prepared(tmp_path)
    for address, why in (("127.0.0.1:1", "Connection refused"), ("nonsense", "invalid literal")):
        done = twin_graph(*RUN, "--executor=ray", cwd=tmp_path, env={**ENVIRONMENT, "RAY_ADDRESS": address}, fresh=True)
        assert done.returncode == 2
        assert f"RAY_ADDRESS={address} is no Ray cluster's host:port" in done.stderr
        assert why in done.stderr
        assert len(done.stderr.splitlines()) == 1


def test_a_lock_that_is_not_seen_is_refused(tmp_path: Path) -> None:
    from twin_graph.experiments import on_ray  # not above: it changes the environment, and others are to begin without

    lock = tmp_path / ".lock"
    with pytest.raises(OSError, match="of another machine is not seen here"):
        on_ray.check_storage(lock)
    with filelock.FileLock(lock):
        on_ray.check_storage(lock)
