"""Asynchronous training on TensorFlow's own servers: what lies where, who counts what, and what faults leave."""

import contextlib
import math
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from commands import Command, python, twin_graph
from tables import rows
from test_learners import feed, minibatch, spec

from twin_graph import envs
from twin_graph.agent.live_run import LiveRun
from twin_graph.base.counters import Tally
from twin_graph.base.streams import NoiseKeys, Purpose
from twin_graph.config.loading import change
from twin_graph.config.rules import check_that_it_learns
from twin_graph.config.settings import Settings
from twin_graph.distributed.chief import Chief
from twin_graph.distributed.cluster import Cluster
from twin_graph.distributed.copy import Copy
from twin_graph.distributed.shared import Counts, Shared, placement, start_server
from twin_graph.distributed.supervisor import Supervisor
from twin_graph.distributed.task import parse
from twin_graph.distributed.worker import Worker, work
from twin_graph.envs import EnvSpec
from twin_graph.errors import DivergedError, InUseError, TwinGraphError, UsageError
from twin_graph.records import report
from twin_graph.records.verify import verify
from twin_graph.replay.ring import Batch
from twin_graph.snapshots.files import checked
from twin_graph.snapshots.ledger import End, Point, Restore
from twin_graph.snapshots.run import Run, create
from twin_graph.snapshots.store import Variable
from twin_graph.snapshots.workers import FOLDER, UpdateLog, own_status, statuses, write_status
from twin_graph.training.readiness import check_rescaling
from twin_graph.twin.model import ModelSpec
from twin_graph.twin.tf import tf
from twin_graph.twin.twin import Compute, Twin, session_config, weights_sha256

Make = Callable[..., Settings]


# What lies where


def test_variables_are_spread_by_size() -> None:
    variables = [
        Variable(name=name, shape=(size,), dtype="float32")
        for name, size in (("a", 100), ("b", 60), ("c", 50), ("d", 5))
    ]
    assert [[v.name for v in held] for held in placement(variables, 2)] == [["a", "d"], ["b", "c"]]
    assert placement(variables[::-1], 2) == placement(variables, 2)
    assert placement(variables, 1) == [variables]


@pytest.mark.parametrize("optimizer", ["adam", "rmsprop", "rmsprop_dqn3"])
def test_what_lies_on_the_servers_is_what_a_twin_has_without_its_sums(optimizer: str, tmp_path: Path) -> None:
    chosen = spec(optimizer=optimizer, accumulate=3, gradient_clip_norm=1.0)
    with (
        Twin("online", chosen, compute=Compute(threads=1)) as twin,
        sharing(3, 1, twin, 9, tmp_path) as (chief, worker),
    ):
        values = {name: value + 1 for name, value in twin.all_variables().items()}
        list(chief.begin(values, Counts(0, 0, 0), attempt=1))
        assert worker.wait_for_chief(30) == 1
        shared = worker.pull()
        assert sorted(shared) == sorted(name for name in values if not name.startswith("accumulated/"))
        for name, value in shared.items():
            np.testing.assert_array_equal(value, values[name], err_msg=name)


# Sessions

RUN = "0123456789abcdef" * 2


def leashed(launcher: int, cluster: Path, task: str, interpreter: str = sys.executable) -> list[str]:
    """The command of a task that ends with its launcher."""
    return [interpreter, "-m", "twin_graph.distributed", str(cluster), task, str(launcher)]


@contextlib.contextmanager
def clients(cluster: Cluster, twin: Twin, vector_steps: int) -> Iterator[list[Shared]]:
    """One of the servers for the chief and one for each worker."""
    with contextlib.ExitStack() as open_:
        each = [Shared(cluster, twin, vector_steps, RUN) for _ in range(1 + cluster.workers)]
        for client in each:
            open_.callback(client.close)
        yield each


@contextlib.contextmanager
def sharing(servers: int, workers: int, twin: Twin, vector_steps: int, folder: Path) -> Iterator[list[Shared]]:
    """Clients of servers in this process."""
    cluster = Cluster.on_this_machine(folder, workers=workers, servers=servers)
    kept = [start_server(address) for address in cluster.ps]
    with clients(cluster, twin, vector_steps) as each:
        yield each
    del kept


@contextlib.contextmanager
def serving(cluster: Cluster, folder: Path) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Servers in processes of their own."""
    cluster.write(folder / "cluster.json")
    with contextlib.ExitStack() as open_:
        processes = []
        for i in range(len(cluster.ps)):
            server = subprocess.Popen(leashed(os.getpid(), folder / "cluster.json", f"ps:{i}", python()))
            processes.append(open_.enter_context(server))
            open_.callback(server.kill)
        yield processes


def test_gradients_reach_the_shared_variables_as_an_optimizer_step_of_a_twin_would(tmp_path: Path) -> None:
    """Two servers, two workers; accumulated, clipped, by Adam; and one step at a time is counted to everyone."""
    chosen = spec(loss="mse", accumulate=3, gradient_clip_norm=2.0, learning_rate=0.01)
    with contextlib.ExitStack() as open_:
        twin, *own = (
            open_.enter_context(Twin(name, chosen, seed=5, compute=Compute(threads=1))) for name in ("online", "0", "1")
        )
        cluster = Cluster.on_this_machine(tmp_path, workers=2, servers=2)
        processes = open_.enter_context(serving(cluster, tmp_path))
        chief, *shared = open_.enter_context(clients(cluster, twin, 9))
        list(chief.begin(twin.all_variables(), Counts(vector_steps=3, updates=40, episodes=7), attempt=2))
        assert [each.wait_for_chief(30) for each in shared] == [2, 2]
        workers = [Copy(*each) for each in zip(shared, own, strict=True)]
        workers[0].pull()

        observations = np.eye(4, dtype=np.float32)
        np.testing.assert_array_equal(workers[0].twin.q_values(observations), twin.q_values(observations))
        for number, worker in enumerate([workers[0], workers[1], workers[0]]):
            batches = [minibatch(8, seed=10 * number + i) for i in range(3)]
            if number != 2:
                worker.pull()
            fed = [{getattr(worker.twin.model, name): values for name, values in batch.items()} for batch in batches]
            if number == 2:
                stale = twin.weights()
                applied = worker.apply(fed, 0.01)
                assert (applied.update, applied.staleness) == (42, 2)
                assert not np.allclose(chief.pull()["q/weights"], stale["q/weights"])
                continue
            each = [worker.twin.run((worker.twin.model.loss, worker.twin.model.q_mean), part) for part in fed]
            applied = worker.apply(fed, 0.01)
            np.testing.assert_allclose((applied.loss, applied.q_mean), np.mean(each, axis=0), rtol=1e-6)
            for batch in batches[:2]:
                twin.run(twin.model.accumulate_op, feed(twin, batch))
            twin.run(twin.model.train_op, feed(twin, batches[2]))
            assert (applied.update, applied.staleness) == (40 + number, 0)
            assert applied.td_error.shape == (24,)
            ours, theirs = chief.pull(), twin.all_variables()
            for name, value in ours.items():
                np.testing.assert_allclose(value, theirs[name], rtol=1e-5, atol=1e-7, err_msg=name)

        bad = {getattr(own[0].model, name): values for name, values in minibatch(8, seed=99).items()}
        bad[own[0].model.r_t] = np.full(8, np.nan, np.float32)
        before = chief.pull()
        with pytest.raises(DivergedError, match="the loss is nan after update 4"):
            workers[0].apply([bad], 0.01)
        for name, value in chief.pull().items():
            np.testing.assert_array_equal(value, before[name])

        claimed = [each.claim_step() for _ in range(4) for each in shared]
        assert claimed == [3, 4, 5, 6, 7, 8, None, None]
        shared[1].count_episodes(2)
        assert chief.counts() == Counts(vector_steps=9, updates=43, episodes=9)
        assert [process.poll() for process in processes] == [None, None]
        chief.leave()
        assert [process.wait(20) for process in processes] == [0, 0]


def test_every_step_is_claimed_once_by_workers_that_claim_at_the_same_time(tmp_path: Path) -> None:
    chosen, steps = spec(), 2_000
    with (
        Twin("online", chosen, compute=Compute(threads=1)) as twin,
        sharing(1, 2, twin, steps, tmp_path) as (chief, *workers),
    ):
        values = twin.all_variables()
        list(chief.begin(values, Counts(0, 0, 0), attempt=1))
        for worker in workers:
            assert worker.wait_for_chief(30) == 1
        with ThreadPoolExecutor(2) as threads:
            claimed = list(threads.map(lambda worker: list(iter(worker.claim_step, None)), workers))
        assert all(len(each) > steps / 10 for each in claimed)
        assert sorted([*claimed[0], *claimed[1]]) == list(range(steps))


def test_workers_of_an_earlier_attempt_change_nothing_any_more(tmp_path: Path) -> None:
    with (
        Twin("online", spec(), compute=Compute(threads=1)) as twin,
        sharing(2, 1, twin, 9, tmp_path) as (chief, worker),
    ):
        values = twin.all_variables()
        gradients = {name: np.ones_like(value) for name, value in twin.weights().items()}
        list(chief.begin(values, Counts(0, 0, 0), attempt=1))
        assert worker.wait_for_chief(30) == 1
        assert worker.apply(gradients, 0.01) == 0
        assert worker.claim_step() == 0
        list(chief.begin(values, Counts(0, 0, 0), attempt=2))
        for work in (
            lambda: worker.claim_step(),
            lambda: worker.count_episodes(3),
            lambda: worker.apply(gradients, 0.01),
        ):
            with pytest.raises(TwinGraphError, match=r"^the run was resumed without this task; start it again$"):
                work()
        assert chief.counts() == Counts(0, 0, 0)
        for name, value in chief.pull().items():  # on both servers
            np.testing.assert_array_equal(value, values[name], err_msg=name)


OTHER_RUN = "fedcba9876543210" * 2
SERVES_ANOTHER = (
    r"^the parameter server at {} serves another run \(its id begins with {}\); end it or use another address$"
)


def test_a_server_serves_one_run_and_changes_nothing_for_another(tmp_path: Path) -> None:
    with (
        Twin("online", spec(), compute=Compute(threads=1)) as twin,
        sharing(2, 1, twin, 9, tmp_path) as (chief, worker),
    ):
        values = {name: value + 1 for name, value in twin.all_variables().items()}
        list(chief.begin(values, Counts(3, 2, 1), attempt=1))
        assert worker.wait_for_chief(30) == 1
        cluster = Cluster(run=tmp_path, ps=tuple(chief._addresses), workers=1)
        with contextlib.closing(Shared(cluster, twin, 9, OTHER_RUN)) as other:
            message = SERVES_ANOTHER.format(cluster.ps[0], RUN[:15])
            with pytest.raises(TwinGraphError, match=message):
                list(other.begin(twin.all_variables(), Counts(0, 0, 0), attempt=1))
            with pytest.raises(TwinGraphError, match=message):
                other.wait_for_chief(30)
            for call in (other.ask_to_stop, other.counts, other.pull, lambda: other.push(twin.all_variables())):
                other._attempt = 1  # as where the server of its run was replaced by this one
                with pytest.raises(TwinGraphError, match="serves another run"):
                    call()
            other.leave()
        assert worker.claim_step() == 3
        assert chief.counts() == Counts(4, 2, 1)
        for name, value in chief.pull().items():
            np.testing.assert_array_equal(value, values[name], err_msg=name)


def test_of_two_runs_that_begin_on_a_server_at_once_one_gets_it(tmp_path: Path) -> None:
    with Twin("online", spec(), compute=Compute(threads=1)) as twin, sharing(1, 1, twin, 9, tmp_path) as (first, _):
        cluster = Cluster(run=tmp_path, ps=tuple(first._addresses), workers=1)
        values = twin.all_variables()
        with contextlib.ExitStack() as open_, ThreadPoolExecutor(6) as threads:
            chiefs = [Shared(cluster, twin, 9, f"{number}" * 32) for number in range(1, 7)]
            for chief in chiefs:
                open_.callback(chief.close)

            def begins(chief: Shared) -> bool:
                try:
                    return list(chief.begin(values, Counts(0, 0, 0), attempt=1)) == []
                except TwinGraphError as error:
                    assert "serves another run" in str(error)  # noqa: PT017
                    return False

            assert sum(threads.map(begins, chiefs)) == 1


def test_a_server_that_was_started_anew_is_not_taken_for_the_runs(tmp_path: Path) -> None:
    with Twin("online", spec(), compute=Compute(threads=1)) as twin, sharing(1, 1, twin, 9, tmp_path) as (chief, _):
        for call in (chief.counts, chief.pull, chief.claim_step, chief.ask_to_stop):
            with pytest.raises(TwinGraphError, match=r"was started anew, and the newest updates are lost$"):
                call()


def test_what_is_waited_for_is_said_if_it_takes_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("twin_graph.distributed.shared.PATIENT_SECONDS", 0.0)
    cluster = Cluster.on_this_machine(tmp_path, workers=1, servers=1)
    [address] = cluster.ps
    host, _, port = address.rpartition(":")
    with (
        Twin("online", spec(), compute=Compute(threads=1)) as twin,
        contextlib.closing(Shared(cluster, twin, 9, RUN)) as chief,
    ):
        waiting = chief.begin(twin.all_variables(), Counts(0, 0, 0), attempt=1)
        said = [next(waiting), next(waiting)]
        with socket.create_server((host, int(port))):
            said += [next(waiting), next(waiting)]
        kept = start_server(address)
        assert list(filter(None, waiting)) == []
        del kept
    no_server = f"no parameter server answers at {address}: "
    silent = "something listens there, and does not answer"
    assert said == [no_server + "nothing listens there", "", no_server + silent, ""]


def test_workers_stop_when_the_chief_asks(tmp_path: Path) -> None:
    chosen = spec()
    with (
        Twin("online", chosen, compute=Compute(threads=1)) as twin,
        sharing(1, 1, twin, 9, tmp_path) as (chief, worker),
    ):
        list(chief.begin(twin.all_variables(), Counts(0, 0, 0), attempt=1))
        assert worker.wait_for_chief(30) == 1
        assert worker.claim_step() == 0
        chief.ask_to_stop()
        assert worker.claim_step() is None
        assert chief.counts().vector_steps == 1


def test_a_task_ends_whose_launcher_was_killed_before_it_began(tmp_path: Path) -> None:
    launcher = subprocess.Popen([sys.executable, "-c", ""])
    launcher.wait()
    Cluster.on_this_machine(tmp_path, workers=1, servers=1).write(tmp_path / "cluster.json")
    command = leashed(launcher.pid, tmp_path / "cluster.json", "ps:0")
    assert subprocess.run(command, timeout=60, check=False).returncode == -signal.SIGKILL


def test_the_share_of_gpu_memory_reaches_a_workers_session_and_servers_take_none() -> None:
    options = session_config(Compute(1, 1, gpu_memory_fraction=0.25)).gpu_options
    assert (options.per_process_gpu_memory_fraction, options.allow_growth) == (0.25, False)
    assert session_config(Compute(1, 1)).gpu_options.allow_growth
    cluster = Cluster.on_this_machine(Path("run"), workers=1, servers=1)
    server = start_server(cluster.ps[0])
    assert dict(server.server_def.default_session_config.device_count) == {"GPU": 0}


def connects(host: str, port: int | str) -> bool:
    with socket.socket() as client:
        client.settimeout(1.5)
        return client.connect_ex((host, int(port))) == 0


def test_a_server_works_and_a_taken_port_is_said() -> None:
    cluster = Cluster.on_this_machine(Path("run"), workers=1, servers=1)
    port = int(cluster.ps[0].rpartition(":")[2])
    server = start_server(cluster.ps[0])
    with tf.Graph().as_default() as graph:
        three = tf.constant(3)
    with tf.Session(server.target, graph=graph) as session:
        assert session.run(three) == 3
    with pytest.raises(TwinGraphError, match=rf"cannot listen on 127.0.0.1:{port}: .* use the port\?"):
        start_server(cluster.ps[0])


# Descriptions


@pytest.mark.parametrize(("text", "message"), rows("distributed", "bad_descriptions", "text", "message"))
def test_a_bad_description_gets_one_line(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "cluster.toml"
    file.write_text(text, encoding="latin-1")
    with pytest.raises(UsageError, match=message):
        Cluster.described(file)


def test_a_description_in_json_is_told_what_it_should_be(tmp_path: Path) -> None:
    file = tmp_path / "cluster.json"
    file.write_text('{"run": "r", "ps": ["a:1"], "workers": 2}')
    with pytest.raises(UsageError, match=r"cluster.json is damaged: .*; one that you write is TOML: it needs run ="):
        Cluster.described(file)


@pytest.mark.parametrize("listen", ["10.0.0.1", "localhost"])
def test_a_server_listens_where_the_file_says_or_not_at_all(tmp_path: Path, listen: str) -> None:
    file = tmp_path / "cluster.toml"
    file.write_text('run = "r"\nps = ["127.0.0.1:2222"]\nworkers = 1')
    done = twin_graph("cluster", str(file), "--task", "ps:0", "--listen", listen, cwd=tmp_path)
    assert done.returncode == 2
    assert f"ps:0 is at 127.0.0.1:2222 in {file}: leave out --listen {listen}, or change the address" in done.stderr


def test_a_status_that_another_version_wrote_is_passed_over(tmp_path: Path) -> None:
    (tmp_path / FOLDER).mkdir()
    status = own_status(0, 1, "training")
    write_status(tmp_path, status)
    other = {**status.model_dump(mode="json"), "name": "worker-1", "mood": "good"}
    (tmp_path / FOLDER / "worker-1.json").write_bytes(checked(other))
    assert statuses(tmp_path, 1) == [status]


def test_tasks_have_names_that_must_be_there() -> None:
    cluster = Cluster(run=Path("r"), ps=("localhost:2", "10.0.0.1:3"), workers=2)
    assert parse(cluster, "worker:1") == ("worker", 1)
    assert cluster.beyond_this_machine == ["10.0.0.1:3"]
    with pytest.raises(UsageError, match="the cluster has only 2 of worker"):
        parse(cluster, "worker:2")
    with pytest.raises(UsageError, match="write ps:0 or worker:0"):
        parse(cluster, "chief")


@pytest.mark.parametrize(("settings", "message"), rows("distributed", "not_with_workers", "settings", "message"))
def test_what_workers_cannot_do_is_refused(cartpole: Make, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        cartpole(workers__count=4, **settings)


def test_workers_rescale_only_rewards_that_are_clipped(cartpole: Make) -> None:
    settings = cartpole(workers__count=2, loss="dqn3", train__rescale_r=True)
    with pytest.raises(UsageError, match=r"each worker would divide by .*: use --set train\.rescale_r=false"):
        check_rescaling(settings, EnvSpec((4,), 2))
    unclipped = cartpole(workers__count=2, loss="dqn3", train__rescale_r=True, env__clip_rewards=False)
    with pytest.raises(UsageError, match=r"use --set env\.clip_rewards=true"):
        check_rescaling(unclipped, EnvSpec((4,), 2))
    check_rescaling(settings, EnvSpec((4,), 2, reward_clip=1.0))
    check_rescaling(cartpole(loss="dqn3", train__rescale_r=True), EnvSpec((4,), 2))


def test_each_worker_has_random_numbers_of_its_own_and_its_part_of_the_replay(cartpole: Make) -> None:
    settings = cartpole(workers__count=3, train__start_steps=250, replay__capacity_steps=3_000)
    own = [settings.of_worker(i) for i in range(3)]
    assert len({settings.seed, *(each.seed for each in own)}) == 4
    assert {each.train.start_steps for each in own} == {math.ceil(250 / 3 / 8) * 8}
    assert {each.replay.capacity_steps for each in own} == {1_000}
    assert {each.replay.importance_updates for each in own} == {settings.replay.importance_updates // 3}


def test_a_worker_that_begins_late_takes_up_the_importance_of_the_run(cartpole: Make) -> None:
    settings = cartpole(workers__count=2, replay__importance_updates=1_000)
    late = settings.of_worker(1, updates=600).replay
    for own in (0, 50, 200):
        assert late.importance_at(own) == pytest.approx(settings.replay.importance_at(600 + 2 * own))
    assert settings.of_worker(1, updates=1_500).replay.importance_at(0) == 1


def test_whether_workers_ever_learn_depends_on_how_many_there_are(cartpole: Make) -> None:
    for count, learns in ((2, True), (32, False)):
        settings = cartpole(workers__count=count, train__steps=1_200, train__start_steps=100)
        own = settings.of_worker(0).train
        assert (count * (own.start_steps + own.every_steps) <= 1_200) == learns
        with contextlib.nullcontext() if learns else pytest.raises(UsageError, match="this run would never learn"):
            check_that_it_learns(settings)


def test_every_part_of_an_update_has_its_own_mask_and_so_has_every_worker(cartpole: Make) -> None:
    settings, seeds = cartpole(workers__count=3, train__accumulate=4, train__batch_size=2), []
    with Twin("worker", ModelSpec.of(settings, EnvSpec((4,), 2)), compute=Compute(threads=1)) as twin:
        model, batch = twin.model, Batch(*(np.zeros(8) for _ in Batch._fields))
        for version in (7, 8):
            copy = SimpleNamespace(twin=twin, version=version, pull=lambda: None)
            copy.apply = lambda parts, _: seeds.extend(part[model.dropout_seed] for part in parts)
            for index in range(3):
                worker = SimpleNamespace(
                    _run=SimpleNamespace(settings=settings),
                    _settings=settings,
                    _copy=copy,
                    _index=index,
                    _noise=NoiseKeys(settings.seed, Purpose.NOISE, draws=False),
                )
                Worker._apply(cast(Worker, worker), batch, {"q_target_t": np.zeros((8, 2))})
    assert len(set(seeds)) == len(seeds) == 24
    assert {seed for seed, _ in seeds} == {settings.seed}


def test_why_a_task_ended_is_read_from_what_it_printed_last(tmp_path: Path) -> None:
    cluster, log = Cluster.on_this_machine(tmp_path, workers=1, servers=1), tmp_path / "ps-0.log"
    cluster.write(tmp_path / "cluster.json")
    log.write_text("Error: of last week\n")
    with contextlib.closing(Supervisor(tmp_path / "cluster.json", cluster, 0)) as supervisor:
        assert supervisor._why("ps-0", 1) == "exit code 1"
        with log.open("a") as output:
            output.write("Traceback (most recent call last):\nMemoryError: no room\n")
        assert supervisor._why("ps-0", 1) == "exit code 1: MemoryError: no room"
        with log.open("a") as output:
            output.write("Error: what is to be read\nand a last line\n")
        assert supervisor._why("ps-0", 1) == "what is to be read"
        assert supervisor._why("ps-0", -9) == "killed by SIGKILL"


def test_a_worker_starts_to_learn_when_it_has_a_whole_transition_of_its_own(cartpole: Make) -> None:
    settings = cartpole(workers__count=8, train__n_step=20, train__start_steps=250)
    assert settings.of_worker(0).train.start_steps == settings.fewest_start_steps == 8 * (20 + 2)


def test_a_worker_whose_clock_is_wrong_counts_as_silent_when_it_says_nothing_new(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / FOLDER).mkdir()
    chief, now = Chief.__new__(Chief), [100.0]
    chief._run, chief._heard, chief.supervisor = cast(Run, SimpleNamespace(folder=tmp_path, attempt=1)), {}, None
    monkeypatch.setattr("twin_graph.distributed.chief.time.monotonic", lambda: now[0])
    said = own_status(0, 1, "training")
    for clock in (said.time - 3_600, said.time + 3_600):
        write_status(tmp_path, said.model_copy(update={"time": clock}))
        assert chief._going() == {0}
        assert chief._hear()[0].time == pytest.approx(time.time(), abs=10)  # as the display shows it
        now[0] += 29
        assert chief._going() == {0}
        now[0] += 2
        assert chief._going() == set()


@contextlib.contextmanager
def chief_of(settings: Settings, folder: Path) -> Iterator[tuple[LiveRun, Chief, Shared]]:
    """The chief of a new run whose worker never comes, on a server in this process, and another client of it."""
    run = create(folder / "run", settings)
    cluster = Cluster.on_this_machine(folder, workers=1, servers=1)
    kept = [start_server(address) for address in cluster.ps]
    with contextlib.closing(envs.make(settings.env, count=1)) as env:
        spec_of_run = ModelSpec.of(settings, env.spec)
        with LiveRun(run, spec_of_run, Tally(env.spec.frames_per_step), None, None) as live:
            online = live.learners.first.online
            with (
                contextlib.closing(Shared(cluster, online, settings.vector_steps, run.id)) as client,
                contextlib.closing(Chief(live, env, cluster, None)) as chief,
            ):
                list(chief.start())
                client.wait_for_chief(30)
                yield live, chief, client
    del kept


@pytest.mark.parametrize("next_call", ["advance", "settle"])
def test_a_swap_into_the_online_twin_reaches_the_servers_whenever_it_is_made(
    cartpole: Make, tmp_path: Path, next_call: str
) -> None:
    with chief_of(cartpole(workers__count=1), tmp_path) as (live, chief, client):
        online = live.learners.first.online
        online.load({name: value + 1 for name, value in online.weights().items()})
        [wanted] = live.commit()
        chief.begin()
        chief.settle()  # the servers still hold the first weights
        assert online.weights_sha256() != wanted.weights_sha256
        live.swap([wanted], learner="online", into="online", hold=False, request=f"request-{1:020}-00000000")
        getattr(chief, next_call)()
        trainable = {variable.op.name for variable in online.model.trainables}
        assert weights_sha256({k: v for k, v in client.pull().items() if k in trainable}) == wanted.weights_sha256
        chief.settle()
        assert online.weights_sha256() == wanted.weights_sha256


def test_where_no_worker_comes_the_chief_says_how_to_start_one(
    cartpole: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("twin_graph.distributed.chief._LATE_SECONDS", 0.0)
    monkeypatch.setattr("twin_graph.distributed.chief._LOOK_SECONDS", 0.0)
    with chief_of(cartpole(workers__count=1), tmp_path) as (live, chief, _):
        chief.begin()
        assert live.notices == []
        for _ in range(3):
            chief.advance()
        [notice] = live.notices
        assert notice.startswith("no worker has begun yet; start each with: twin-graph cluster FILE --task worker:N")


# Whole trainings, in processes

TINY = [
    "--set=model.hidden_units=[16]",
    "--set=train.start_steps=200",
    "--set=train.accumulate=2",
    "--set=resume.every_steps=1000",
    "--set=evaluate.every_steps=100000",
    "--set=evaluate.episodes=1",
    "--set=log.every_steps=500",
    "--set=target.refresh_every_updates=40",
]


def children(run: Path, task: str = "") -> list[int]:
    """Processes of this run's cluster, of one task if it is named."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            words = (process / "cmdline").read_bytes().decode().split("\0")
            if any(str(run) in word and word.endswith("cluster.json") for word in words) and (
                not task or task in words
            ):
                found.append(int(process.name))
    return found


def wait_until(condition: Callable[[], object], seconds: float = 90) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def steps_of(run: Path) -> int:
    try:
        return int(report.status(Run(run)).agent_steps)
    except (UsageError, OSError):
        return 0


def working(run: Path, attempt: int, workers: int = 2) -> bool:
    """Whether all workers have made steps in this attempt."""
    try:
        status = report.status(Run(run))
    except (UsageError, OSError):
        return False
    return status.attempt == attempt and sum(worker.agent_steps > 300 for worker in status.workers) == workers


def test_a_killed_worker_is_started_again_and_the_steps_are_exact(tmp_path: Path) -> None:
    run = tmp_path / "run"
    trainer = Command(
        "train", "cartpole", "--workers=2", "--ps=2", "--steps=4000", f"--run-dir={run}", *TINY, cwd=tmp_path
    )
    try:
        wait_until(lambda: working(run, attempt=1))
        [victim] = children(run, "worker:1")
        os.kill(victim, signal.SIGKILL)
        wait_until(lambda: children(run, "worker:1") not in ([], [victim]), 5)
        _, said = trainer.communicate(timeout=240)
    finally:
        trainer.kill()
    assert trainer.returncode == 0, said
    restarted = (
        "worker-1 ended (killed by SIGKILL) and is restarted with an empty replay (restart 1 of 3, workers.restarts)"
    )
    assert said.splitlines().count(restarted) == 1
    assert not children(run)
    status = report.status(Run(run))
    assert (status.state, status.agent_steps, status.updates > 100) == ("finished", 4_000, True)
    assert [worker.state for worker in status.workers] == ["done", "done"]
    assert verify(Run(run)).damage == []
    assert verify(Run(run)).unknown == []
    explained = 0
    commits = {snapshot.id: snapshot for snapshot in Run(run).store().snapshots}
    for update in range(1, status.updates + 1, 11):
        with contextlib.suppress(UsageError):  # what the victim had applied and not yet recorded
            told = report.explain(Run(run), update)
            assert told.worker in ("worker-0", "worker-1")
            assert all(commits[snapshot.id].updates < update for snapshot in told.snapshots)
            explained += 1
    assert explained >= len(range(1, status.updates + 1, 11)) - 1
    swaps = [event for event in Run(run).ledger.events() if isinstance(event, Restore)]
    assert {swap.worker for swap in swaps} == {"", "worker-0", "worker-1"}
    for swap in swaps:  # no update had a target that was not there when it was made
        assert all(commits[snapshot].updates < swap.first_update for snapshot in swap.snapshots)
    weights = [snapshot.weights_sha256 for snapshot in commits.values()]
    assert len(set(weights)) == len(weights) > 4


def test_the_last_games_count_in_the_training_return(tmp_path: Path) -> None:
    run = tmp_path / "run"
    train = Command("train", "cartpole", "--workers=1", "--steps=1500", f"--run-dir={run}", *TINY, cwd=tmp_path)
    _, said = train.communicate(timeout=240)
    assert train.returncode == 0, said
    *_, last = (line for line in Run(run).metric_lines() if "train_return" in line)
    [worker] = statuses(run, attempt=1)
    assert last["agent_steps"] >= 1_500
    assert last["train_return"] == pytest.approx(np.mean(worker.returns))


def test_a_worker_that_died_too_often_is_given_up_and_that_is_said(tmp_path: Path) -> None:
    run = tmp_path / "run"
    chosen = (*TINY, "--set=workers.restarts=0")
    trainer = Command("train", "cartpole", "--workers=2", "--steps=4000", f"--run-dir={run}", *chosen, cwd=tmp_path)
    try:
        wait_until(lambda: working(run, attempt=1))
        os.kill(children(run, "worker:1")[0], signal.SIGKILL)
        _, said = trainer.communicate(timeout=240)
    finally:
        trainer.kill()
    assert trainer.returncode == 0, said
    assert re.search(r"worker-1: given up: ended \(killed by SIGKILL\).*workers.restarts.*worker-1.log", said)
    status = report.status(Run(run))
    assert (status.state, status.agent_steps) == ("finished", 4_000)
    assert [worker.state for worker in status.workers] == ["done", "given up"]


def test_where_no_worker_is_left_the_run_says_why_each_ended(tmp_path: Path) -> None:
    run = tmp_path / "run"
    chosen = (*TINY, "--set=workers.restarts=0")
    trainer = Command("train", "cartpole", "--workers=2", "--steps=90000", f"--run-dir={run}", *chosen, cwd=tmp_path)
    try:
        wait_until(lambda: working(run, attempt=1) and steps_of(run) > 300)
        os.kill(children(run, "worker:1")[0], signal.SIGKILL)
        wait_until(lambda: statuses(run, attempt=1)[1].state == "given up")
        os.kill(killed := statuses(run, attempt=1)[0].pid, signal.SIGKILL)
        _, said = trainer.communicate(timeout=60)
    finally:
        trainer.kill()
    assert trainer.returncode == 1
    for name in ("worker-0", "worker-1"):
        assert re.search(rf"Error: .*no worker is left: .*{name} ended \(killed by SIGKILL\), restarted 0 times", said)
    worker = statuses(run, attempt=1)[0]
    assert (worker.state, worker.pid) == ("given up", killed)
    point = Run(run).points().newest()
    assert point is not None
    assert point.counters.agent_steps > 300  # the servers still had all of it


BRITTLE = """
import gymnasium
from gymnasium.envs.classic_control import CartPoleEnv

class Brittle(CartPoleEnv):
    steps = 0  # of this process

    def step(self, action):
        Brittle.steps += 1
        assert Brittle.steps < 1_000, "it broke"
        return super().step(action)

gymnasium.register("Brittle-v0", entry_point=Brittle, max_episode_steps=500)
"""


@pytest.mark.parametrize("restarts", [0, 3])
def test_where_an_environment_fails_in_a_worker_the_run_is_kept(tmp_path: Path, restarts: int) -> None:
    (tmp_path / "brittle.py").write_text(BRITTLE)
    rarely = (f"--set={name}=100000" for name in ("resume.every_steps", "save.every_updates", "log.every_steps"))
    run, chosen = tmp_path / "run", (*TINY, "--env=brittle:Brittle-v0", *rarely, f"--set=workers.restarts={restarts}")
    done = twin_graph("train", "cartpole", "--workers=2", "--steps=9000", f"--run-dir={run}", *chosen, cwd=tmp_path)
    assert done.returncode == 1
    assert re.search(
        r"Error: .*worker-\d: brittle:Brittle-v0, environment \d, step: AssertionError: it broke", done.stderr
    )
    point = Run(run).ledger.events(Point)[-1]  # a swap of the other worker may follow
    end = Run(run).ledger.events()[-1]
    assert point.counters.agent_steps > 500
    state = Run(run).points().newest()
    assert state is not None
    assert state.learners[0].updates == state.counters.updates > 0  # and so are its weights
    assert (isinstance(end, End), Run(run).state()) == (True, "failed")


def test_servers_are_reached_without_the_proxy_of_the_machine(tmp_path: Path) -> None:
    arguments = ("train", "cartpole", "--workers=1", "--steps=600", "--run-dir=run", *TINY)
    environment = {**os.environ, "http_proxy": "http://127.0.0.1:9", "no_proxy": ""}
    done = twin_graph(*arguments, cwd=tmp_path, env=environment)
    assert done.returncode == 0, done.stderr


def test_resuming_says_when_workers_will_learn_again(tmp_path: Path) -> None:
    begun = twin_graph("train", "cartpole", "--workers=1", "--steps=600", "--run-dir=run", *TINY, cwd=tmp_path)
    assert begun.returncode == 0, begun.stderr
    before = report.status(Run(tmp_path / "run")).updates
    again = twin_graph("resume", "run", "--steps=640", cwd=tmp_path)
    assert again.returncode == 0, again.stderr
    assert re.search(
        r"the next update is due after about \d+ agent steps; with 40 left, probably nothing is learned", again.stderr
    )
    assert report.status(Run(tmp_path / "run")).updates == before


def test_a_task_that_there_is_not_or_that_runs_already_is_refused(tmp_path: Path, cartpole: Make) -> None:
    run = create(tmp_path / "run", cartpole(workers__count=2))
    (run.folder / FOLDER).mkdir()
    wider = Cluster(run=run.folder, ps=("127.0.0.1:1",), workers=3)
    with pytest.raises(UsageError, match="is trained by 2 workers: there is no worker-2"):
        work(wider, 2)
    with (
        contextlib.closing(UpdateLog(run.folder, "worker-0", 1)),
        pytest.raises(InUseError, match=r"worker-0 of .*run has been started already"),
    ):
        UpdateLog(run.folder, "worker-0", 1)


def with_request_numbers_that_meet(
    folder: Path, command: list[str], seed_bytes: int
) -> subprocess.CompletedProcess[str]:
    """Runs a command whose /dev/urandom has few bits, by which TensorFlow numbers requests, so that numbers meet."""
    pipe = folder / "urandom"
    os.mkfifo(pipe)
    apart = ["unshare", "-m" if os.geteuid() == 0 else "-rm", "sh", "-c"]
    bound = f"mount --bind {pipe} /dev/urandom"
    if subprocess.run([*apart, bound], capture_output=True).returncode:
        pytest.skip("this machine does not let everyone mount in a namespace of one's own")
    seed = f"os.urandom({seed_bytes}) + bytes(4 - {seed_bytes})"
    seeds = f"import os\nwith open({str(pipe)!r}, 'wb', 0) as out:\n  while True: out.write({seed})"
    with pipe.open("r+b", buffering=0), subprocess.Popen([sys.executable, "-c", seeds]) as seeding:
        try:
            return subprocess.run(
                [*apart, f"{bound} && {shlex.join(command)}"], capture_output=True, text=True, timeout=240
            )
        finally:
            seeding.kill()


def test_requests_that_a_server_takes_for_others_are_made_again(tmp_path: Path) -> None:
    run = tmp_path / "run"
    chosen = (*TINY, "--set=workers.restarts=0", "--workers=2", "--ps=2", "--steps=2000", f"--run-dir={run}")
    train = [sys.executable, "-m", "twin_graph_cli", "train", "cartpole", *chosen]
    trained = with_request_numbers_that_meet(tmp_path, train, seed_bytes=2)
    assert trained.returncode == 0, trained.stderr
    assert "given up" not in trained.stderr
    status = report.status(Run(run))
    assert (status.state, status.agent_steps) == ("finished", 2_000)
    assert [worker.state for worker in status.workers] == ["done", "done"]
    assert sum(worker.updates for worker in status.workers) == status.updates


def test_a_refused_request_is_made_again_where_its_numbers_look_like_names_of_operations(tmp_path: Path) -> None:
    script = """
import numpy as np
from twin_graph.distributed.shared import ServerSession
from twin_graph.twin.tf import tf

server = tf.train.Server({"ps": ["127.0.0.1:0"]}, job_name="ps", task_index=0)
refused = []
run = tf.Session.run

def counting(*args):
    try:
        return run(*args)
    except Exception as error:
        refused.append(type(error))
        raise

tf.Session.run = counting
with tf.Graph().as_default():
    fed = tf.placeholder(tf.float32, [2])
    doubled = 2 * fed
    with ServerSession(server.target) as session:
        for _ in range(100):
            session.run(doubled, {fed: np.frombuffer(b"[[as:0 x", np.float32)})
assert ValueError in refused, refused
"""
    # 256 possible seeds for 100 requests: that no two meet happens once in a billion runs.
    ran = with_request_numbers_that_meet(tmp_path, [sys.executable, "-c", script], seed_bytes=1)
    assert ran.returncode == 0, ran.stderr


def test_a_lost_server_a_signal_and_a_killed_launcher_leave_no_process_and_a_run_that_goes_on(tmp_path: Path) -> None:
    run = tmp_path / "run"
    trainer = Command("train", "cartpole", "--workers=2", "--steps=60000", f"--run-dir={run}", *TINY, cwd=tmp_path)
    try:
        wait_until(lambda: steps_of(run) >= 1_500)
        os.kill(children(run, "ps:0")[0], signal.SIGKILL)
        _, said = trainer.communicate(timeout=40)
        assert trainer.returncode == 1
        ended = r"parameter server 0 ended \(killed by SIGKILL\)"
        assert re.search(rf"Error: ({ended}|(a parameter server|the parameter server at \S+) does not answer)", said)
        assert re.search(r"continue from resume point \d+, at [\d,]+ agent steps, with: twin-graph resume", said)
        wait_until(lambda: not children(run), 10)

        trainer = Command("resume", str(run), cwd=tmp_path)
        wait_until(lambda: working(run, attempt=2))
        before = steps_of(run)
        assert before >= 1_000
        trainer.send_signal(signal.SIGINT)
        asked = time.monotonic()
        _, said = trainer.communicate(timeout=60)
        assert trainer.returncode == 130, said
        assert not children(run)
        assert time.monotonic() - asked < 20  # 10 on a machine that does nothing else
        status = report.status(Run(run))
        assert status.state == "stopped"
        assert status.resume_point.agent_steps == status.agent_steps >= before

        trainer = Command("resume", str(run), cwd=tmp_path)
        wait_until(lambda: len(children(run)) == 3 and Run(run).state() == "running")
        trainer.kill()
        trainer.wait()
        wait_until(lambda: not children(run), 10)
        assert verify(Run(run)).damage == []
    finally:
        trainer.kill()


def test_a_folder_that_is_renamed_ends_chief_and_workers_and_goes_on_by_its_new_name(tmp_path: Path) -> None:
    run, renamed = tmp_path / "run", tmp_path / "renamed"
    trainer = Command("train", "cartpole", "--workers=2", "--steps=90000", f"--run-dir={run}", *TINY, cwd=tmp_path)
    try:
        wait_until(lambda: working(run, attempt=1))
        run.rename(renamed)
        _, said = trainer.communicate(timeout=60)
        assert trainer.returncode == 1, said
        assert said.endswith(
            f"Error: {run} was moved or renamed while it was in use: continue by its new name, {renamed}\n"
        )
        assert not children(run)
        assert not run.exists()
        assert report.status(Run(renamed)).reason.endswith("was in use: continue by its new name, " + str(renamed))
        assert verify(Run(renamed)).damage == []
    finally:
        trainer.kill()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_a_signal_to_all_processes_of_a_run_is_answered_by_the_chief(tmp_path: Path, number: int) -> None:
    """Slurm, systemd and Docker send theirs to all of them, whatever session they have."""
    run = tmp_path / "run"
    trainer = Command("train", "cartpole", "--workers=1", "--steps=90000", f"--run-dir={run}", *TINY, cwd=tmp_path)
    try:
        wait_until(lambda: working(run, attempt=1, workers=1))
        before = steps_of(run)
        for process in (*children(run), trainer.pid):
            os.kill(process, number)
        _, said = trainer.communicate(timeout=60)
        assert trainer.returncode == 130, said
        assert not children(run)
        status = report.status(Run(run))
        assert status.state == "stopped"
        assert status.resume_point.agent_steps == status.agent_steps >= before
        assert "restarted" not in said
    finally:
        trainer.kill()


def test_a_warning_does_not_end_the_tasks_that_a_person_started(tmp_path: Path) -> None:
    """Slurm warns all steps of a job: the chief's answer is to save, for which it needs the others."""
    file, _ = described(tmp_path)
    tasks = [Command("cluster", str(file), f"--task={task}", cwd=tmp_path) for task in ("ps:0", "worker:0")]
    chief = Command("train", "cartpole", f"--cluster={file}", "--steps=90000", *TINY, cwd=tmp_path)
    try:
        wait_until(lambda: working(tmp_path / "run", attempt=1, workers=1))
        for process in (*tasks, chief):
            process.send_signal(signal.SIGUSR1)
        _, said = chief.communicate(timeout=60)
        assert chief.returncode == 130, said
        assert [task.wait(30) for task in tasks] == [0, 0]
    finally:
        for process in (chief, *tasks):
            process.kill()
    assert Run(tmp_path / "run").state() == "stopped"


def described(folder: Path) -> tuple[Path, Cluster]:
    """A file that describes a cluster of one server and one worker on this machine."""
    cluster = Cluster.on_this_machine(folder / "run", workers=1, servers=1)
    file = folder / "cluster.toml"
    file.write_text(f'run = "{cluster.run}"\nps = ["{cluster.ps[0]}"]\nworkers = 1\n')
    return file, cluster


def test_a_described_cluster_starts_in_any_order(tmp_path: Path) -> None:
    file, _ = described(tmp_path)
    tasks = [Command("cluster", str(file), "--task=worker:0", cwd=tmp_path)]
    time.sleep(2)
    trainer = Command("train", "cartpole", f"--cluster={file}", "--steps=1200", *TINY, cwd=tmp_path)
    tasks.append(Command("cluster", str(file), "--task=ps:0", cwd=tmp_path))
    try:
        _, said = trainer.communicate(timeout=180)
        assert trainer.returncode == 0, said
        assert [task.wait(30) for task in tasks] == [0, 0]
    finally:
        for process in (trainer, *tasks):
            process.kill()
    status = report.status(Run(tmp_path / "run"))
    assert status.agent_steps == sum(worker.agent_steps for worker in status.workers) == 1_200


def test_a_second_run_on_the_same_server_is_refused_and_the_first_ends_exactly(tmp_path: Path) -> None:
    file, cluster = described(tmp_path)
    other = tmp_path / "other.toml"
    other.write_text(f'run = "{tmp_path / "other"}"\nps = ["{cluster.ps[0]}"]\nworkers = 1\n')
    tasks = [Command("cluster", str(file), f"--task={task}", cwd=tmp_path) for task in ("ps:0", "worker:0")]
    chief = Command("train", "cartpole", f"--cluster={file}", "--steps=4000", *TINY, cwd=tmp_path)
    try:
        wait_until(lambda: working(tmp_path / "run", attempt=1, workers=1))
        second = twin_graph("train", "cartpole", f"--cluster={other}", "--steps=2000", *TINY, cwd=tmp_path)
        assert second.returncode == 1
        message = SERVES_ANOTHER.format(cluster.ps[0], Run(tmp_path / "run").id[:15])
        assert re.match(message.replace("^", "Error: "), second.stderr.splitlines()[-1]), second.stderr
        _, said = chief.communicate(timeout=60)
        assert chief.returncode == 0, said
        assert [task.wait(30) for task in tasks] == [0, 0]
    finally:
        for process in (chief, *tasks):
            process.kill()
    assert not (tmp_path / "other").exists()
    status = report.status(Run(tmp_path / "run"))
    assert (status.state, status.agent_steps) == ("finished", 4_000)
    assert status.updates > 100


# A server that waits for a second only.
IMPATIENT = """
import runpy, sys
from twin_graph.distributed import server
server.ALONE_SECONDS = 1.0
runpy.run_module("twin_graph.distributed", run_name="__main__", alter_sys=True)
"""


def test_a_server_whose_chief_was_killed_waits_for_resume_and_ends_when_all_steps_are_made(tmp_path: Path) -> None:
    file, _ = described(tmp_path)
    run, log = tmp_path / "run", tmp_path / "ps.log"
    with log.open("w") as output:
        server = subprocess.Popen([python(), "-c", IMPATIENT, str(file), "ps:0"], stderr=output)
    worker = Command("cluster", str(file), "--task=worker:0", cwd=tmp_path)
    chief = Command("train", "cartpole", f"--cluster={file}", "--steps=4000", *TINY, cwd=tmp_path)
    try:
        wait_until(lambda: working(run, attempt=1, workers=1))
        for process in (worker, chief):
            process.kill()
            process.wait(10)
        time.sleep(3)
        assert server.poll() is None
        worker = Command("cluster", str(file), "--task=worker:0", cwd=tmp_path)  # it takes part in either attempt
        chief = Command("resume", str(run), f"--cluster={file}", cwd=tmp_path)
        wait_until(lambda: working(run, attempt=2, workers=1))
        chief.kill()
        assert worker.wait(60) == 0
        assert server.wait(20) == 0
    finally:
        for process in (chief, worker, server):
            process.kill()
    ends = "all steps are made, and nobody was connected for 1 s: this server ends"
    assert log.read_text().splitlines()[-1] == ends


def test_a_worker_takes_part_in_the_attempt_after_its_own(tmp_path: Path) -> None:
    file, _ = described(tmp_path)
    run = tmp_path / "run"
    server, worker = (Command("cluster", str(file), f"--task={task}", cwd=tmp_path) for task in ("ps:0", "worker:0"))
    chief = Command("train", "cartpole", f"--cluster={file}", "--steps=6000", *TINY, cwd=tmp_path)
    try:
        wait_until(lambda: working(run, attempt=1, workers=1))
        chief.kill()
        chief.wait(10)
        chief = Command("resume", str(run), f"--cluster={file}", cwd=tmp_path)
        _, said = chief.communicate(timeout=60)
        assert chief.returncode == 0, said
        assert [worker.wait(30), server.wait(30)] == [0, 0]
        _, said = worker.communicate()
    finally:
        for process in (chief, worker, server):
            process.kill()
    assert "the run was resumed: this worker begins again, with an empty replay\n" in said
    status = report.status(Run(run))
    assert (status.state, status.attempt, status.agent_steps) == ("finished", 2, 6_000)


def test_a_server_that_is_lost_is_named(tmp_path: Path) -> None:
    file, cluster = described(tmp_path)
    server, worker = (Command("cluster", str(file), f"--task={task}", cwd=tmp_path) for task in ("ps:0", "worker:0"))
    chief = Command("train", "cartpole", f"--cluster={file}", "--steps=90000", *TINY, cwd=tmp_path)
    try:
        wait_until(lambda: working(tmp_path / "run", attempt=1, workers=1))
        server.kill()
        server.wait(10)
        _, said = chief.communicate(timeout=60)
        assert (chief.returncode, worker.wait(60)) == (1, 1)
        assert f"the parameter server at {cluster.ps[0]} does not answer" in said
    finally:
        for process in (chief, worker, server):
            process.kill()


def test_a_server_ends_with_its_chief_though_a_worker_died(tmp_path: Path) -> None:
    file, _ = described(tmp_path)
    server = Command("cluster", str(file), "--task=ps:0", cwd=tmp_path)
    worker = Command("cluster", str(file), "--task=worker:0", cwd=tmp_path)
    chief = Command("train", "cartpole", f"--cluster={file}", "--steps=90000", *TINY, cwd=tmp_path)
    try:
        wait_until(lambda: working(tmp_path / "run", attempt=1, workers=1))  # and has said so
        worker.kill()
        worker.wait(10)
        chief.send_signal(signal.SIGINT)
        time.sleep(2)  # it waits for the worker
        chief.send_signal(signal.SIGINT)
        _, said = chief.communicate(timeout=60)
        assert chief.returncode == 130, said
        assert server.wait(10) == 0
    finally:
        for process in (chief, worker, server):
            process.kill()


def test_who_waits_for_a_server_can_be_stopped_and_leaves_no_folder(tmp_path: Path) -> None:
    file, _ = described(tmp_path)
    chief = Command("train", "cartpole", f"--cluster={file}", *TINY, cwd=tmp_path)
    worker = Command("cluster", str(file), "--task=worker:0", cwd=tmp_path)
    try:
        wait_until(lambda: (tmp_path / "run" / "ledger.jsonl").exists())
        time.sleep(2)  # both have asked for the server by now
        for process in (worker, chief):
            process.send_signal(signal.SIGINT)
            _, said = process.communicate(timeout=20)
            assert (process.returncode, said.splitlines()[-1]) == (130, "interrupted")
        assert not (tmp_path / "run").exists()
        (tmp_path / "run").mkdir()
        again = twin_graph("train", "cartpole", f"--cluster={file}", cwd=tmp_path)
        assert again.stderr == f"Error: {tmp_path / 'run'} exists already; change `run` in {file}\n"
    finally:
        for process in (chief, worker):
            process.kill()


def test_ctrl_c_ends_a_server_that_a_person_started(tmp_path: Path) -> None:
    file, loopback = described(tmp_path)
    server = Command("cluster", str(file), "--task=ps:0", cwd=tmp_path)
    try:
        wait_until(lambda: connects(*loopback.ps[0].split(":")))
        time.sleep(2)  # it waits for the chief now
        server.send_signal(signal.SIGINT)
        assert server.wait(10) == -signal.SIGINT
    finally:
        server.kill()


def test_a_run_does_not_change_between_workers_and_none(cartpole: Make) -> None:
    for before, after in ((0, 2), (2, 0)):
        with pytest.raises(UsageError, match="began with workers continues with workers"):
            change(cartpole(workers__count=before), [("workers.count", after)])
    assert change(cartpole(workers__count=2), [("workers.count", 3)]).workers.count == 3


def test_addresses_beyond_this_machine_need_a_word_of_consent(tmp_path: Path) -> None:
    file = tmp_path / "cluster.toml"
    file.write_text('run = "r"\nps = ["10.0.0.1:4000"]\nworkers = 1\n')
    for arguments in (("cluster", str(file), "--task=ps:0"), ("train", "cartpole", f"--cluster={file}")):
        process = Command(*arguments, cwd=tmp_path)
        _, said = process.communicate(timeout=60)
        assert process.returncode == 2
        assert "--insecure-network" in said
        assert "no password" in said
