"""Retention: what keeps its weights and why, and removals that readers, pins, crashes and other processes meet."""

import errno
import json
import os
import socket
import subprocess
import sys
import threading
import time
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import pytest

from twin_graph import config
from twin_graph.config.settings import SaveSettings
from twin_graph.errors import InUseError, UsageError
from twin_graph.records import report
from twin_graph.snapshots import control, files
from twin_graph.snapshots.control import Answer
from twin_graph.snapshots.ledger import BY_HAND, IMPORT, Commit, Counters, Health, Pin, Point, Prune, Restore
from twin_graph.snapshots.lines import record_evaluation
from twin_graph.snapshots.points import LearnerState, PointState, RoleState
from twin_graph.snapshots.run import Run, create
from twin_graph.snapshots.store import Provenance, SnapshotStore, Variable
from twin_graph.targets.policies import check_present, parse
from twin_graph.targets.pruning import oldest_readable, prune
from twin_graph.targets.retention import removable

PROTOCOL = {"epsilon": 0.0}


LATEST = {"target": parse("latest")}


def counters(updates: int) -> Counters:
    return Counters(agent_steps=4 * updates, updates=updates, frames=4 * updates, episodes=updates // 10)


def commit(run: Run, updates: int, *, health: Health | None = None, lineage: str = "online") -> Commit:
    def write_two_files(prefix: Path) -> None:
        for name in ("index", "data"):
            prefix.with_suffix(f".{name}").write_bytes(f"{name} {updates}".encode())

    made = Provenance(
        lineage=lineage,
        attempt=run.attempt,
        counters=counters(updates),
        settings_sha256="0" * 64,
        weights_sha256=f"{updates:08x}" * 8,
        variables=[Variable(name="w", shape=(2,), dtype="float32")],
        health=health,
    )
    return run.store().commit(write_two_files, made)


def commit_each(run: Run, numbers: Iterable[int]) -> list[Commit]:
    """Snapshots of these numbers, committed each 100 updates."""
    return [commit(run, 100 * number) for number in numbers]


def commit_point(run: Run, updates: int, target: Sequence[Commit]) -> PointState:
    points = run.points()
    state = PointState(
        number=points.next_number(),
        attempt=run.attempt,
        time="",
        counters=counters(updates),
        weights_sha256="0" * 64,
        learners=(
            LearnerState(
                name="online",
                updates=updates,
                target=RoleState(
                    snapshots=tuple(s.id for s in target), since=counters(updates), policy="latest", held=False
                ),
            ),
        ),
        saved=counters(updates),
        reward_limit=1.0,
        returns=(),
        known_bytes=run.settle_records(),
        segments=(),
    )
    points.commit(state, lambda folder: (folder / "online.index").touch(), {})
    return state


def swap(run: Run, into: Commit, updates: int, previous: Sequence[Commit], request: str | None = None) -> None:
    run.ledger.append(
        Restore(
            attempt=run.attempt,
            time="",
            into="target",
            snapshots=(into.id,),
            policy=BY_HAND if request else "latest",
            candidates=(into.id,),
            reason="",
            first_update=updates + 1,
            counters=counters(updates),
            previous=tuple(s.id for s in previous),
            request=request,
        )
    )


def play(run: Run, updates: int, returns: dict[Commit, list[float]], protocol: dict[str, float] = PROTOCOL) -> None:
    """A scheduled evaluation; the last player is the newest."""
    *_, newest = returns
    for player, scores in returns.items():
        result = {"mean": fmean(scores), "interval_95": None, "returns": scores, "protocol": protocol}
        record_evaluation(run, player, result, played_at=counters(updates), challenger=newest.id)


def removed(run: Run, policy: str = "latest", *, keep_last: int = 1, keep_every: int = 0) -> list[int | None]:
    """Numbers of the snapshots that retention gives up."""
    save = SaveSettings(keep_last=keep_last, keep_every=keep_every)
    store = run.store()
    numbers = {s.id: s.number for s in [*store.snapshots, *store.abandoned]}
    return [numbers[i] for i in removable(run, store, oldest_readable(run), {"target": parse(policy)}, save)]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """A run without snapshots."""
    return create(tmp_path / "run", config.load("cartpole", [("save.keep_last", 1), ("save.keep_every", 0)]))


@pytest.fixture
def ten(run: Run) -> list[Commit]:
    """Its snapshots 0 to 9."""
    return commit_each(run, range(10))


@pytest.fixture
def seven(run: Run) -> list[Commit]:
    """Its snapshots 0 to 6; 7, 8 and 9 are for later."""
    return commit_each(run, range(7))


@pytest.mark.parametrize(
    ("keep_last", "keep_every", "kept"),
    [
        (1, 0, {9}),
        (3, 0, {7, 8, 9}),
        (10, 0, set(range(10))),
        (50, 20, set(range(10))),
        (1, 4, {0, 4, 8, 9}),
        (2, 3, {0, 3, 6, 8, 9}),
        (1, 1, set(range(10))),
        (1, 20, {0, 9}),
    ],
)
def test_the_newest_and_each_so_manieth_are_kept(
    run: Run, ten: list[Commit], keep_last: int, keep_every: int, kept: set[int]
) -> None:
    commit_point(run, 950, [ten[9]])
    assert set(range(10)) - set(removed(run, keep_last=keep_last, keep_every=keep_every)) == kept


def test_pins_are_kept_until_they_are_released(run: Run, ten: list[Commit]) -> None:
    commit_point(run, 950, [ten[9]])
    run.store().pin(ten[2].id, keep=True, attempt=1)
    run.store().pin(ten[4].id, keep=True, attempt=1)
    assert removed(run) == [0, 1, 3, 5, 6, 7, 8]
    run.store().pin(ten[4].id, keep=False, attempt=1)
    assert removed(run) == [0, 1, 3, 4, 5, 6, 7, 8]


def test_the_best_by_mean_of_scheduled_evaluations_is_kept(run: Run, ten: list[Commit]) -> None:
    commit_point(run, 950, [ten[9]])
    play(run, 100, {ten[1]: [5.0, 7.0]})
    play(run, 300, {ten[3]: [6.0, 6.0]})
    play(run, 500, {ten[5]: [0.0, 11.0]})
    record_evaluation(
        run, ten[7], {"mean": 500.0, "interval_95": None, "returns": [500.0], "protocol": PROTOCOL}
    )  # by hand
    assert removed(run) == [0, 1, 2, 4, 5, 6, 7, 8]  # 1 and 3 are equal: the newer
    play(run, 600, {ten[1]: [7.0], ten[6]: [1.0]})
    assert removed(run) == [0, 2, 3, 4, 5, 6, 7, 8]


def test_the_target_of_the_oldest_point_is_kept_and_all_that_were_the_target_since(run: Run, ten: list[Commit]) -> None:
    swap(run, ten[1], 100, [ten[0]])
    commit_point(run, 950, [ten[2], ten[3]])
    swap(run, ten[5], 950, [ten[2], ten[3]])
    swap(run, ten[6], 960, [ten[5]])
    commit_point(run, 970, [ten[6]])
    assert removed(run) == [0, 1, 4, 7, 8]


def test_what_was_committed_after_the_oldest_point_is_kept(run: Run) -> None:
    early = commit_each(run, range(4))
    commit_point(run, 350, [early[3]])
    late = commit_each(run, range(4, 10))
    commit_point(run, 950, [late[5]])
    assert removed(run) == [0, 1, 2]


def test_what_a_point_knew_is_kept_though_another_was_committed_after_the_same_update(
    run: Run, ten: list[Commit]
) -> None:
    """As after a swap into the online twin, which makes the point first."""
    commit_point(run, 900, [ten[9]])
    commit(run, 900)
    assert removed(run, "ensemble(2)") == [0, 1, 2, 3, 4, 5, 6, 7]


def test_of_two_learners_each_keeps_every_so_many_of_its_own(tmp_path: Path) -> None:
    run = create(tmp_path / "run", config.load("cartpole", [("mode", "mutual")]))
    made = [commit(run, 100 * (number // 2), lineage="ab"[number % 2]) for number in range(20)]
    commit_point(run, 950, [made[19]])
    assert removed(run, keep_last=2, keep_every=4) == [2, 3, 4, 5, 6, 7, 10, 11, 12, 13, 14, 15]


def test_a_snapshot_that_a_policy_has_to_have_is_there_or_one_line_says_why_not(run: Run, ten: list[Commit]) -> None:
    commit_point(run, 950, [ten[9]])
    prune(run, keep_last=1, keep_every=None, dry_run=False)
    store = run.store()
    for policy in ("pinned(9)", "pinned(77)", "latest"):
        check_present(config.change(run.settings, [("target.policy", policy)]), store, 950)
    pinned = config.change(run.settings, [("target.policy", "pinned(3)")])
    gone = r"target\.policy=pinned\(3\) cannot be used: retention has removed the weights of 000003-0000012c; choose"
    with pytest.raises(UsageError, match=gone):
        check_present(pinned, store, 950)
    check_present(pinned, store, ten[3].updates - 1)  # from there on, another of this number may still come


def test_the_log_is_in_the_order_of_commits_though_a_clock_was_set_back(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    for year in (2026, 2025, 2027):
        monkeypatch.setattr("twin_graph.snapshots.store.utc_now", lambda year=year: f"{year}-01-01T00:00:00.000+00:00")
        commit(run, year)
    assert [entry.updates for entry in report.log(run)] == [2027, 2025, 2026]
    assert [entry.updates for entry in report.log(run, count=1)] == [2027]


def test_scores_under_another_protocol_choose_no_best(run: Run, ten: list[Commit]) -> None:
    play(run, 300, {ten[3]: [9.0] * 10})
    play(run, 500, {ten[5]: [1.0] * 10}, {"epsilon": 0.05})
    play(run, 700, {ten[7]: [2.0] * 10}, {"epsilon": 0.05})
    assert run.scores() == {ten[5].id: 1.0, ten[7].id: 2.0}
    assert run.resolve("best") == ten[7]


@pytest.mark.parametrize(
    ("policy", "kept"),
    [
        ("latest", {6}),
        ("lag(1)", {6}),
        ("lag(250)", {4, 5, 6}),
        ("lag(251)", {3, 4, 5, 6}),
        ("lag(10000)", {0, 1, 2, 3, 4, 5, 6}),
        ("window(3)", {4, 5, 6}),
        ("mix(0.8, 2)", {5, 6}),
        ("mix(1)", {0, 1, 2, 3, 4, 5, 6}),
        ("ensemble(4, min)", {3, 4, 5, 6}),
        ("pinned(000002)", {2, 6}),  # 6 would play an evaluation that is due
        ("pinned(000008)", {6}),
        ("pinned(000077)", {6}),
        ("rollback", {6}),
        ("best", {6}),
        ("best(mean, 10)", {6}),
    ],
)
def test_what_the_policy_could_choose_from_the_oldest_point_on_is_kept(
    run: Run, seven: list[Commit], policy: str, kept: set[int]
) -> None:
    """At 650 updates snapshot 6 was the newest; 7, 8 and 9 came later."""
    commit_point(run, 650, [])
    commit_each(run, range(7, 10))
    commit_point(run, 950, [])
    assert set(range(10)) - set(removed(run, policy)) == kept | {7, 8, 9}


def test_the_healthy_snapshot_that_rollback_went_back_to_is_kept(run: Run) -> None:
    healths = [None, 1.0, 1.0, 20.0, 30.0, 40.0]
    snapshots = [
        commit(run, 100 * i, health=h and Health(q_abs_mean=h, q_abs_max=h, q_limit=10.0))
        for i, h in enumerate(healths)
    ]
    commit_point(run, 550, [snapshots[5]])
    assert removed(run, "rollback") == [0, 1, 3, 4]
    assert removed(run, "rollback(2.5)") == [0, 1, 2, 4]


def test_the_best_of_the_oldest_point_is_kept_though_others_have_higher_means_or_beat_it_later(
    run: Run, seven: list[Commit]
) -> None:
    play(run, 100, {seven[1]: [5.0] * 10})
    play(run, 300, {seven[1]: [5.0] * 10, seven[3]: [9.0] * 10})  # 3 is the best
    play(run, 500, {seven[3]: [9.0] * 10, seven[5]: [8.0] * 9 + [100.0]})  # by luck; has the highest mean
    commit_point(run, 650, [seven[6]])
    late = commit_each(run, range(7, 10))
    play(run, 700, {seven[3]: [9.0] * 10, late[0]: [400.0] * 10})
    assert removed(run, "best") == [0, 1, 2, 4, 5]
    assert removed(run, "best(mean)") == [0, 1, 2, 3, 4]
    assert removed(run) == [0, 1, 2, 3, 4, 5]


def test_the_best_of_the_oldest_point_is_kept_though_the_protocol_changed_since(run: Run, ten: list[Commit]) -> None:
    play(run, 300, {ten[3]: [9.0] * 10})
    play(run, 500, {ten[3]: [9.0] * 10, ten[5]: [8.0] * 9 + [100.0]})  # the best by mean is another
    commit_point(run, 650, [ten[6]])
    play(run, 700, {ten[7]: [1.0] * 10}, protocol={"epsilon": 0.05})
    assert 3 not in removed(run, "best")


def test_swaps_by_hand_since_the_oldest_point_are_kept_and_what_undoing_one_would_want_always(
    run: Run, seven: list[Commit]
) -> None:
    swap(run, seven[1], 150, [seven[0], seven[2]], request=f"request-{1:020}-00000000")
    swap(run, seven[3], 300, [seven[1]])
    commit_point(run, 650, [seven[6]])
    swap(run, seven[4], 650, [seven[6]], request=f"request-{2:020}-00000000")
    late = commit_each(run, range(7, 10))
    assert removed(run) == [1, 3, 5]
    last = commit_point(run, 950, [late[2]])
    run.points().retain([last], 2)
    assert removed(run) == [1, 3, 4, 5, 7, 8]  # 0, 2 and 6 are what those two replaced


def test_what_people_asked_for_is_kept_while_they_have_no_answer(run: Run, ten: list[Commit]) -> None:
    commit_point(run, 950, [ten[9]])
    request = control.ask(run.control, "swap", ten[4].id)
    control.ask(run.control, "undo")
    assert removed(run) == [0, 1, 2, 3, 5, 6, 7, 8]
    control.answer(run.control, request, Answer(done=False, message="no"))
    assert removed(run) == [0, 1, 2, 3, 4, 5, 6, 7, 8]


def test_requests_keep_their_order_where_the_clock_is_set_back(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = [control.ask(run.control, "swap", "000001-00000000")]
    monkeypatch.setattr("time.time_ns", lambda: 1)
    asked += [control.ask(run.control, "swap", name) for name in ("000002-00000000", "000003-00000000")]
    assert [request.snapshot for request in control.pending(run.control)] == [f"00000{i}-00000000" for i in (1, 2, 3)]
    assert asked == control.pending(run.control)


def test_what_was_seen_answered_is_not_read_again(run: Run) -> None:
    inbox, first = control.Inbox(run.control, []), control.ask(run.control, "undo")
    assert inbox.new() == [first]
    control.answer(run.control, first, Answer(done=True, message="done"))
    inbox.look_again()
    assert inbox.new() == []
    (run.control / f"{first.id}.json").write_bytes(b"changed")  # whoever reads it fails
    second = control.ask(run.control, "undo")
    assert inbox.new() == [second]


def test_imports_are_never_removed(run: Run, ten: list[Commit]) -> None:
    imported = commit(run, 77, lineage=IMPORT)
    commit_point(run, 950, [ten[9]])
    assert imported.id not in removable(run, run.store(), oldest_readable(run), LATEST, run.settings.save)


@pytest.fixture
def resumed(run: Run) -> list[Commit]:
    """Snapshots 0 to 7 of a run that crashed at update 750, and went on from a point at 350: 4 to 7 are abandoned."""
    run.record_start()
    early = commit_each(run, range(4))
    point = commit_point(run, 350, [early[3]])
    late = commit_each(run, range(4, 8))
    run.record_start(point)
    return [*early, *late]


def test_abandoned_snapshots_are_removed_unless_they_are_pinned_or_committed_again(
    run: Run, resumed: list[Commit]
) -> None:
    assert [s.number for s in run.store().abandoned] == [4, 5, 6, 7]
    assert removed(run) == [0, 1, 2, 4, 5, 6, 7]
    assert commit(run, 400).id == resumed[4].id
    run.ledger.append(Pin(event="pin", attempt=2, time="", snapshot=resumed[6].id))
    assert removed(run) == [0, 1, 2, 5, 7]


def test_an_abandoned_snapshot_whose_weights_were_removed_can_be_committed_again(
    run: Run, resumed: list[Commit]
) -> None:
    """A crash, a resume that makes a point and crashes before it has caught up, and another resume."""
    point = commit_point(run, 370, [resumed[3]])
    save = run.settings.save
    store = run.store()
    store.remove_weights(lambda: removable(run, store, oldest_readable(run), LATEST, save), attempt=run.attempt)
    run.record_start(point)
    again = commit(run, 400)
    assert again.id == resumed[4].id
    run.store().check_files(again.id)


def test_a_swap_by_hand_that_a_crash_took_back_and_that_happens_again_keeps_its_snapshot(
    run: Run, ten: list[Commit]
) -> None:
    run.record_start()
    point = commit_point(run, 950, [ten[9]])
    swap(
        run, ten[1], 980, [ten[9]], request=f"request-{1:020}-00000000"
    )  # `Requests` carries it out at update 980 again
    run.record_start(point)
    commit_point(run, 960, [ten[9]])
    assert 1 not in removed(run)


def weights(store: SnapshotStore) -> set[int | None]:
    """Numbers of the snapshots that have files of weights."""
    return {s.number for s in store.snapshots if list((store.folder / s.id).glob("model.*"))}


def test_removed_weights_leave_the_manifest_and_a_record(run: Run, ten: list[Commit]) -> None:
    store = run.store()
    assert store.remove_weights(lambda: [ten[1].id, ten[2].id], attempt=3) == [ten[1].id, ten[2].id]
    for seen in (store, run.store()):
        assert weights(seen) == {s.number for s in seen.available} == {0, 3, 4, 5, 6, 7, 8, 9}
        assert seen.snapshots == ten
        assert seen.manifest(ten[1].id).weights_sha256 == ten[1].weights_sha256
        with pytest.raises(UsageError, match=r"the weights of 000001-00000064 were removed by retention"):
            seen.prefix(ten[1].id)
    assert [path.name for path in (store.folder / ten[1].id).iterdir()] == ["manifest.json"]
    [record] = [event for event in run.ledger.events() if isinstance(event, Prune)]
    assert (record.snapshots, record.attempt) == ((ten[1].id, ten[2].id), 3)
    assert store.remove_weights(lambda: [ten[1].id], attempt=3) == []
    assert len([event for event in run.ledger.events() if isinstance(event, Prune)]) == 1


def test_removals_are_not_taken_back_by_resuming(run: Run, ten: list[Commit]) -> None:
    point = commit_point(run, 950, [ten[9]])
    run.store().remove_weights(lambda: [ten[1].id], attempt=1)
    run.record_start(point)
    assert not run.store().has_weights(ten[1].id)


def test_a_removal_that_is_interrupted_is_on_record_and_is_finished_by_the_next_trainer(
    run: Run, ten: list[Commit]
) -> None:
    """Killed after the second of four files."""
    code = """
import os, sys
from pathlib import Path
from twin_graph.snapshots.run import Run
calls, unlink = [], Path.unlink
def die_at_the_third(path, missing_ok=False):
    calls.append(path)
    if len(calls) == 3:
        os.kill(os.getpid(), 9)
    unlink(path)
Path.unlink = die_at_the_third
Run(Path(sys.argv[1])).store().remove_weights(lambda: sys.argv[2:], attempt=1)
"""
    killed = subprocess.run([sys.executable, "-c", code, str(run.folder), ten[1].id, ten[2].id], check=False)
    assert killed.returncode == -9
    store = run.store()
    assert [event.snapshots for event in run.ledger.events() if isinstance(event, Prune)] == [(ten[1].id, ten[2].id)]
    assert weights(store) == set(range(10)) - {1}
    assert {s.number for s in store.available} == set(range(10)) - {1, 2}
    (store.folder / ".tmp-000010-00000000-77").mkdir()
    store.remove_leftovers()
    store.remove_weights(list, attempt=1)
    assert weights(store) == set(range(10)) - {1, 2}
    assert not (store.folder / ".tmp-000010-00000000-77").exists()
    assert store.manifest(ten[2].id).id == ten[2].id


def test_a_removal_that_is_interrupted_is_finished_by_the_next(
    run: Run, ten: list[Commit], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(Path, "unlink", interrupted)
        run.store().remove_weights(lambda: [ten[1].id], attempt=1)
    assert weights(run.store()) == set(range(10))
    run.store().remove_weights(lambda: [ten[2].id], attempt=1)
    assert weights(run.store()) == set(range(10)) - {1, 2}


READ = """
import sys, time
from pathlib import Path
from twin_graph.snapshots.run import Run
store = Run(Path(sys.argv[1])).store()
with store.reading():
    print("reading", flush=True)
    time.sleep(float(sys.argv[2]))
    for snapshot in store.available:
        store.check_files(snapshot.id)
    print(time.monotonic(), flush=True)
"""


@contextmanager
def another_process(code: str, *arguments: object) -> Iterator[subprocess.Popen[str]]:
    """Runs code until the end of the `with`; entered when it has printed its first line."""
    command = [sys.executable, "-c", code, *map(str, arguments)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline()
        try:
            yield process
        finally:
            process.kill()


def test_a_removal_waits_for_readers_in_other_processes(run: Run, ten: list[Commit]) -> None:
    chosen_at: list[float] = []

    def choose() -> list[str]:
        chosen_at.append(time.monotonic())
        return [s.id for s in ten[:9]]

    with another_process(READ, run.folder, 0.5) as reader:
        assert run.store().remove_weights(choose, attempt=1) == [s.id for s in ten[:9]]
        output, _ = reader.communicate()
        assert reader.returncode == 0  # all that it listed could be read to the end
    assert chosen_at[0] > float(output)


def test_a_removal_is_given_up_when_readers_do_not_let_go(
    run: Run, ten: list[Commit], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "_WAIT_FOR_READERS_SECONDS", 0.2)
    commit_point(run, 950, [ten[9]])
    with another_process(READ, run.folder, 600):
        with pytest.raises(BlockingIOError):
            run.store().remove_weights(lambda: [ten[1].id], attempt=1)
        with pytest.raises(InUseError, match="is being read, and nothing was removed; try again"):
            prune(run, keep_last=1, keep_every=0, dry_run=False)
    assert weights(run.store()) == set(range(10))
    assert run.store().remove_weights(lambda: [ten[1].id], attempt=1) == [ten[1].id]


def test_a_reader_that_was_killed_holds_nothing_back(run: Run, ten: list[Commit]) -> None:
    with another_process(READ, run.folder, 600) as reader:
        reader.kill()
        reader.wait()
        assert run.store().remove_weights(lambda: [ten[1].id], attempt=1) == [ten[1].id]


def test_what_was_removed_cannot_be_pinned_and_what_is_not_pinned_not_released(run: Run, ten: list[Commit]) -> None:
    store = run.store()
    run.store().remove_weights(lambda: [ten[1].id], attempt=1)
    with pytest.raises(UsageError, match="the weights of 000001-00000064 were removed by retention"):
        store.pin(ten[1].id, keep=True, attempt=1)
    with pytest.raises(UsageError, match="000002-000000c8 is not pinned"):
        store.pin(ten[2].id, keep=False, attempt=1)
    assert run.store().pins == set()


def test_a_pin_of_another_process_is_seen_by_a_removal_that_comes_after_it(run: Run, ten: list[Commit]) -> None:
    commit_point(run, 950, [ten[9]])
    opened_before, point = run.store(), oldest_readable(run)
    run.store().pin(ten[3].id, keep=True, attempt=1)
    opened_before.remove_weights(lambda: removable(run, opened_before, point, LATEST, run.settings.save), attempt=1)
    assert weights(run.store()) == {3, 9}


def test_no_pin_comes_between_choosing_and_removing(run: Run, ten: list[Commit]) -> None:
    refused: list[str] = []

    def pin() -> None:
        try:
            Run(run.folder).store().pin(ten[1].id, keep=True, attempt=1)
        except UsageError as error:
            refused.append(str(error))

    person = threading.Thread(target=pin)

    def choose() -> Iterable[str]:
        person.start()
        person.join(0.3)
        assert person.is_alive()  # it waits
        return [ten[1].id]

    assert run.store().remove_weights(choose, attempt=1) == [ten[1].id]
    person.join(10)
    assert "were removed by retention" in refused[0]
    assert run.store().pins == set()


def test_prune_applies_the_settings_of_a_run_at_rest(run: Run, ten: list[Commit]) -> None:
    commit_point(run, 950, [ten[9]])
    assert prune(run, keep_last=3, keep_every=5, dry_run=True) == [ten[i] for i in (1, 2, 3, 4, 6)]
    assert weights(run.store()) == set(range(10))
    assert prune(run, keep_last=3, keep_every=5, dry_run=False) == [ten[i] for i in (1, 2, 3, 4, 6)]
    assert weights(run.store()) == {0, 5, 7, 8, 9}
    assert Run(run.folder).settings == run.settings
    assert prune(run, keep_last=None, keep_every=None, dry_run=False) == [ten[i] for i in (0, 5, 7, 8)]
    assert weights(run.store()) == {9}


def test_prune_goes_by_the_policy_of_the_run(tmp_path: Path) -> None:
    small = [("save.keep_last", 1), ("save.keep_every", 0), ("target.policy", "window(3)")]
    run = create(tmp_path / "run", config.load("cartpole", small))
    snapshots = [commit(run, 100 * number) for number in range(6)]
    commit_point(run, 550, [snapshots[5]])
    assert prune(run, keep_last=None, keep_every=None, dry_run=False) == snapshots[:3]


def test_prune_passes_over_a_resume_point_that_cannot_be_read(run: Run, ten: list[Commit]) -> None:
    """Training leaves it for a person to look at, so that it becomes the oldest."""
    for updates in (250, 950):
        commit_point(run, updates, [ten[9]])
    (run.points().folders()[0] / "state.json").write_bytes(b"damaged")
    assert prune(run, keep_last=1, keep_every=0, dry_run=False) == ten[:9]


def pruned(run: Run, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "twin_graph_cli", "prune", str(run.folder), *options]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def three_points(run: Run) -> list[Commit]:
    """Snapshots 0 to 8, and a resume point after each third of them."""
    made: list[Commit] = []
    for first in (0, 3, 6):
        made += commit_each(run, range(first, first + 3))
        state = commit_point(run, 100 * first + 250, [made[-1]])
        told = {name: getattr(state, name) for name in ("number", "attempt", "time", "counters", "weights_sha256")}
        run.ledger.append(Point(**told))
    return made


def test_prune_says_what_resume_points_hold_and_how_to_free_it(run: Run) -> None:
    made = three_points(run)
    assert pruned(run).stdout.split() == [snapshot.id for snapshot in made[:2]]
    done = pruned(run, "--keep-last", "1")
    assert (done.returncode, done.stdout) == (0, "")
    assert done.stderr.splitlines() == [
        "0 snapshots lost their weights, 0.0 MB",
        "resume points 0 and 1 hold 6 snapshots, 0.0 MB, that nothing else needs; to give these points up: "
        f"twin-graph prune {run.folder} --keep-last 1 --keep-points 1",
    ]
    told = json.loads(pruned(run, "--keep-last", "1", "--dry-run", "--json").stdout)
    assert told["removed"] == []
    assert told["held"] == {"by_newest_point": [], "by_older_points": [snapshot.id for snapshot in made[2:8]]}


def test_prune_gives_up_resume_points_for_their_weights(run: Run) -> None:
    made = three_points(run)
    every = [path.name for path in run.points().folders()]
    would = pruned(run, "--keep-points", "2", "--dry-run")
    assert would.stdout.split() == [snapshot.id for snapshot in made[:5]]
    assert "resume point 1 holds 3 snapshots" in would.stderr
    assert [path.name for path in run.points().folders()] == every
    assert pruned(run, "--keep-points", "2").stdout == would.stdout
    assert [path.name for path in run.points().folders()] == every[1:]
    assert pruned(run, "--keep-points", "1").stderr == "3 snapshots lost their weights, 0.0 MB\n"
    assert weights(run.store()) == {8}


def test_prune_knows_points_of_older_versions_by_their_numbers(run: Run, ten: list[Commit]) -> None:
    """Their ledgers do not name them."""
    for updates in (250, 550, 750, 950):
        commit_point(run, updates, [ten[9]])
    assert pruned(run, "--keep-points", "3").returncode == 0
    assert [path.name for path in run.points().folders()] == ["000001", "000002", "000003"]


def test_prune_says_what_the_newest_point_needs(run: Run, ten: list[Commit]) -> None:
    commit_point(run, 950, [ten[3], ten[4]])
    commit_each(run, range(10, 13))
    assert pruned(run).stderr.splitlines() == [
        "7 snapshots lost their weights, 0.0 MB",
        "resume point 0, the newest, holds 5 snapshots, 0.0 MB: what it needs to resume, and what was committed since",
    ]


def test_prune_gives_up_no_point_for_one_that_is_damaged(run: Run, ten: list[Commit]) -> None:
    for updates in (250, 950):
        commit_point(run, updates, [ten[9]])
    (run.points().path(1) / "online.index").unlink()
    done = pruned(run, "--keep-points", "1")
    assert done.returncode == 2
    assert "so no older resume point is given up" in done.stderr
    assert len(run.points().folders()) == 2


def test_prune_is_refused_without_a_resume_point(run: Run, ten: list[Commit]) -> None:
    with pytest.raises(UsageError, match="has no resume point that can be read"):
        prune(run, keep_last=1, keep_every=0, dry_run=False)


LOCK = """
import sys, time
from pathlib import Path
from twin_graph.snapshots.run import Run
with Run(Path(sys.argv[1])).lock("train"):
    print("locked", flush=True)
    time.sleep(600)
"""


def test_prune_is_refused_while_another_process_has_the_run(run: Run, ten: list[Commit]) -> None:
    commit_point(run, 950, [ten[9]])
    with another_process(LOCK, run.folder) as trainer:
        assert prune(run, keep_last=1, keep_every=0, dry_run=True) == ten[:9]  # to look is always allowed
        with pytest.raises(InUseError, match="is in use by") as refused:
            prune(run, keep_last=1, keep_every=0, dry_run=False)
        assert f"process {trainer.pid} on {socket.gethostname()} (train, since 20" in str(refused.value)
        assert refused.value.exit_code == 4
        command = [sys.executable, "-m", "twin_graph_cli", "prune", str(run.folder)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert (done.returncode, done.stdout) == (4, "")
        assert f"process {trainer.pid} on {socket.gethostname()} (train" in done.stderr
    assert weights(run.store()) == set(range(10))
    assert len(prune(run, keep_last=1, keep_every=0, dry_run=False)) == 9  # a killed process holds nothing


WRITE = """
import contextlib, os, sys, time
from pathlib import Path
from twin_graph.snapshots.ledger import Counters
from twin_graph.snapshots.run import Run
from twin_graph.snapshots.store import Provenance, Variable
run = Run(Path(sys.argv[1]))
store, commits, removals = run.store(), 0, 0
print("writing", flush=True)
with run.lock("train"):
    while not Path(sys.argv[2]).exists():
        def save(prefix):
            for name in ("index", "data"):
                with prefix.with_suffix("." + name).open("wb") as file:
                    for part in range(20):
                        file.write(os.urandom(10_000))
        made = Provenance(
            lineage="online", attempt=1, settings_sha256="", weights_sha256=os.urandom(32).hex(),
            counters=Counters(agent_steps=commits, updates=commits, frames=0, episodes=0),
            variables=[Variable(name="w", shape=(2,), dtype="float32")],
        )
        store.commit(save, made)
        commits += 1
        with contextlib.suppress(BlockingIOError):
            removals += len(store.remove_weights(lambda: [s.id for s in store.available[:-2]], attempt=1))
print(commits, removals)
"""

READ_ON = """
import random, sys, time
from pathlib import Path
from twin_graph.snapshots.run import Run
store, reads, seen = Run(Path(sys.argv[1])).store(), 0, set()
print("reading", flush=True)
deadline = time.monotonic() + 60
while len(seen) < 60 and time.monotonic() < deadline:
    with store.reading():
        if store.available:
            snapshot = random.choice(store.available)
            store.check_files(snapshot.id)
            names = {path.name for path in store.prefix(snapshot.id).parent.iterdir()}
            assert names == {"manifest.json", "model.index", "model.data"}, names
            reads += 1
            seen.add(snapshot.id)
    Run(Path(sys.argv[1])).scores()
    time.sleep(random.random() / 100)
print(reads, len(seen))
"""


def test_readers_beside_a_writer_that_commits_and_removes_see_whole_snapshots_alone(run: Run, tmp_path: Path) -> None:
    done = tmp_path / "done"
    commit(run, 0)
    with (
        another_process(READ_ON, run.folder) as one,
        another_process(READ_ON, run.folder) as two,
        another_process(WRITE, run.folder, done) as writer,
    ):
        outputs = [process.communicate()[0] for process in (one, two)]
        done.touch()
        outputs.append(writer.communicate()[0])
        assert [process.returncode for process in (writer, one, two)] == [0, 0, 0]
    *readers, (commits, removals) = ([int(number) for number in output.split()] for output in outputs)
    assert commits > 10
    assert removals > commits // 2
    assert all(reads >= seen > 5 for reads, seen in readers)
    assert len(weights(run.store())) < commits


@contextmanager
def counted(*functions: tuple[Any, str]) -> Iterator[Counter[str]]:
    """How often these functions of modules are called meanwhile."""
    calls: Counter[str] = Counter()

    def count(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            calls[function.__name__] += 1
            return function(*arguments, **options)

        return call

    with pytest.MonkeyPatch.context() as patched:
        for module, name in functions:
            patched.setattr(module, name, count(getattr(module, name)))
        yield calls


def long_run(folder: Path, removed_before: int) -> tuple[Run, SnapshotStore]:
    """A run of which so many snapshots lost their weights, ten at a time, and ten have them."""
    run = create(folder, config.load("cartpole", [("save.keep_last", 10), ("save.keep_every", 0)]))
    snapshots = [commit(run, 10 * number) for number in range(removed_before + 10)]
    store = run.store()
    for first in range(0, removed_before, 10):
        store.remove_weights(lambda first=first: [s.id for s in snapshots[first : first + 10]], attempt=1)
    return run, store


def calls_of_a_resume_point(run: Run, store: SnapshotStore) -> Counter[str]:
    """What a trainer does between two resume points, and at the second: a commit, a refresh, removals."""
    older, save = commit_point(run, 10 * len(store.snapshots), [store.newest]), run.settings.save
    with counted((os, "listdir"), (os, "scandir"), (os, "unlink"), (zlib, "crc32")) as calls:
        updates = 10 * len(store.snapshots)
        snapshot = store.commit(
            lambda prefix: prefix.with_suffix(".data").touch(),
            Provenance(
                lineage="online",
                attempt=1,
                counters=counters(updates),
                settings_sha256="",
                weights_sha256=f"{updates:08x}" * 8,
                variables=[],
            ),
        )
        swap(run, snapshot, updates, [])
        assert store.remove_weights(lambda: removable(run, store, older, LATEST, save), attempt=1)
    return calls


def test_a_resume_point_looks_at_what_is_new_and_not_at_all_that_was_ever_removed(tmp_path: Path) -> None:
    short, long = (
        calls_of_a_resume_point(*long_run(tmp_path / str(removed_before), removed_before))
        for removed_before in (10, 80)
    )
    assert long == short
    assert long["unlink"] == 2
    assert long["crc32"] < 20


def test_another_process_looks_for_files_of_the_newest_removal_alone(tmp_path: Path) -> None:
    run, _ = long_run(tmp_path / "run", 80)
    store = Run(run.folder).store()
    with counted((os, "listdir"), (os, "scandir")) as calls:
        store.remove_weights(list, attempt=2)
        store.remove_weights(list, attempt=2)
    assert calls.total() == 10


def test_a_removal_is_recorded_when_the_one_before_it_is_finished(
    run: Run, ten: list[Commit], monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that whoever comes later finds in the newest removal all that may be unfinished."""

    def interrupted(*_: object, **__: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as patched:
        patched.setattr(Path, "unlink", interrupted)
        for doomed in ten[1], ten[2]:
            for store in (run.store(), Run(run.folder).store()):
                with pytest.raises(OSError, match="Input/output"):
                    store.remove_weights(lambda doomed=doomed: [doomed.id], attempt=1)
    assert run.store().has_weights(ten[2].id)
    assert len(run.ledger.events(Prune)) == 1
    run.store().remove_weights(list, attempt=1)
    assert weights(run.store()) == set(range(10)) - {1}


def test_prune_by_hand_looks_for_files_of_every_removal(run: Run, ten: list[Commit]) -> None:
    """A disk that lost power, for example, may have files again that were removed long ago."""
    commit_point(run, 950, [ten[9]])
    for doomed in (ten[1], ten[2]):
        run.store().remove_weights(lambda doomed=doomed: [doomed.id], attempt=1)
    (run.store().folder / ten[1].id / "model.data").write_bytes(b"again")
    run.store().remove_weights(list, attempt=1)
    assert weights(run.store()) == set(range(10)) - {2}
    assert ten[1] not in prune(run, keep_last=9, keep_every=0, dry_run=False)
    assert weights(run.store()) == set(range(10)) - {0, 1, 2}


def what_it_says(store: SnapshotStore) -> tuple[Any, ...]:
    every = [*store.snapshots, *store.imports, *store.abandoned]
    gone = {s.id for s in every if not store.has_weights(s.id)}
    return store.snapshots, store.available, sorted(store.imports, key=str), store.abandoned, store.pins, gone


@pytest.mark.parametrize("seed", range(10))
def test_a_store_that_follows_its_ledger_sees_what_one_that_reads_it_anew_does(run: Run, seed: int) -> None:
    """Commits, removals, pins, imports and resumptions in any order, from any point, of whichever attempt."""
    random = np.random.default_rng(seed)
    following, points = run.store(), []
    run.record_start()
    for _ in range(60):
        followed = [*following.snapshots, *following.abandoned]
        available = [s.id for s in followed if following.has_weights(s.id)]
        what = random.choice(["commit"] * 5 + ["import", "remove", "remove", "pin", "point", "resume"])
        if what == "commit":
            commit(run, int(random.integers(5)) + (following.snapshots[-1].updates if following.snapshots else 0))
        elif what == "import":
            commit(run, int(random.integers(3)), lineage=IMPORT)
        elif what == "remove" and available:
            following.remove_weights(lambda: random.choice(available, 2), attempt=run.attempt)  # noqa: B023
        elif what == "pin" and available:
            run.ledger.append(Pin(event="pin", attempt=run.attempt, time="", snapshot=random.choice(available)))
        elif what == "point":
            points.append(commit_point(run, 0, []))
        elif what == "resume" and points:
            run.record_start(points[random.integers(len(points))])
        if random.random() < 0.7:
            following.reload()
            assert what_it_says(following) == what_it_says(Run(run.folder).store())
            for snapshot in following.abandoned:
                assert following.has_weights(snapshot.id) == bool(weights_of(following, snapshot.id))
            assert [s.id for s in following.available] == [
                s.id for s in following.snapshots if weights_of(following, s.id)
            ]


def weights_of(store: SnapshotStore, snapshot_id: str) -> list[Path]:
    return list((store.folder / snapshot_id).glob("model.*"))
