"""Opponents from other runs' remotes: they are fetched while a run trains, and found again without the network."""

import contextlib
import itertools
import json
import signal
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from attempts import progress_of, wait_until
from commands import Command, twin_graph

from twin_graph import config
from twin_graph.analysis.reproduce import reproduce
from twin_graph.records.verify import verify
from twin_graph.remote import fetching, league
from twin_graph.remote.league import Arrival, League
from twin_graph.remote.sending import Sender
from twin_graph.remote.urls import place_at
from twin_graph.snapshots.files import checked
from twin_graph.snapshots.fork import fork
from twin_graph.snapshots.ledger import Restore, is_import
from twin_graph.snapshots.resumable import newest_point, point_at
from twin_graph.snapshots.run import Run, create
from twin_graph.snapshots.store import FileRecord
from twin_graph.twin.tf import tf
from twin_graph.twin.twin import weights_sha256

Train = Callable[[config.Settings], Run]


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(league, "_LOOK_SECONDS", 0.02)


def _push(run: Run, folder: Path) -> str:
    """Sends a run, and returns the URL."""
    sender = Sender(run, place_at(folder.as_uri()), "a" * 32)
    sender.begin()
    sender.send()
    return folder.as_uri()


def _arrivals(run: Run) -> list[Arrival]:
    """A run's snapshots, as they arrive elsewhere."""
    store = run.store()
    return [
        Arrival(f"file:///there/other:{one.id}", store.folder / one.id, store.manifest(one.id))
        for one in store.available
    ]


def _train(run: Run, arrivals: dict[int, Arrival], cut_off: int | None = None) -> None:
    """Trains a run, until nobody goes on with it; what is given arrives at the first moment after its agent steps."""
    left = dict(arrivals)
    with contextlib.closing(progress_of(run)) as progresses:
        for progress in progresses:
            for step in [step for step in left if progress.agent_steps >= step]:
                arrival = left.pop(step)
                progress.live.take_in(arrival)
            if cut_off and progress.agent_steps >= cut_off:
                break


def _opponents(run: Run) -> list[str]:
    swaps = [swap for swap in run.ledger.events(Restore) if swap.into == "opponent"]
    return [snapshot for swap in swaps for snapshot in swap.snapshots]


@pytest.mark.parametrize("chunk", [0, 64])
def test_what_arrived_is_found_again_by_a_resumed_run_a_fork_and_reproduce(
    tictactoe: Callable[..., config.Settings], trained: Train, tmp_path: Path, chunk: int
) -> None:
    """The last thing to arrive comes after the last resume point: whoever resumes from that has it at the same step."""
    changes = {"opponent__policy": "league(0.3, 4)", "train__chunk_steps": chunk, "resume__keep": "all"}
    others = _arrivals(trained(tictactoe(seed=7)))
    arrivals = {300: others[0], 610: others[-2], 820: others[-1]}
    settings = tictactoe(**changes)
    whole = create(tmp_path / "whole", settings)
    _train(whole, arrivals)
    end = newest_point(whole).point.weights_sha256
    assert len({name for name in _opponents(whole) if is_import(name)}) > 1
    assert not verify(whole).damage

    killed = create(tmp_path / "killed", settings)
    _train(killed, arrivals, cut_off=940)
    assert newest_point(killed).point.counters.agent_steps < 820
    assert len(killed.store().imports) == 3
    _train(killed, {})
    assert newest_point(killed).point.weights_sha256 == end
    assert _opponents(killed) == _opponents(whole)

    point = point_at(whole, "1")
    forked = fork(whole, point, tmp_path / "forked", settings)
    _train(forked, {step: arrival for step, arrival in arrivals.items() if step > point.counters.agent_steps})
    assert newest_point(forked).point.weights_sha256 == end

    for run in (whole, killed):
        assert reproduce(run, None, None, tmp_path / f"{run.name} again", lambda progress: None).difference is None


def test_what_was_no_opponent_goes_and_what_was_one_stays(
    tictactoe: Callable[..., config.Settings], trained: Train, tmp_path: Path
) -> None:
    others = _arrivals(trained(tictactoe(seed=7)))
    run = create(tmp_path / "run", tictactoe(opponent__policy="league(0)", train__steps=3_000))
    _train(run, {100 * i: other for i, other in enumerate(others[:8], 1)})
    store = run.store()
    there = {one.id for one in store.imports if store.has_weights(one.id)}
    assert there == {*filter(is_import, _opponents(run)), store.league(10**9)[0].id}
    assert 1 < len(there) < 8


def test_a_run_that_left_the_league_can_come_back(
    tictactoe: Callable[..., config.Settings], trained: Train, tmp_path: Path
) -> None:
    """The newest of each run stays, though nothing plays it meanwhile."""
    others = _arrivals(trained(tictactoe(seed=7)))
    run = create(tmp_path / "run", tictactoe(opponent__policy="league(1)"))
    _train(run, {100 * i: other for i, other in enumerate(others[:3], 1)})
    for steps, policy in ((2_600, "latest"), (2_800, "league(0)")):
        run.change_settings(config.change(run.settings, [("train.steps", steps), ("opponent.policy", policy)]))
        _train(run, {})
    assert is_import(_opponents(run)[-1])


def test_of_two_that_arrived_in_the_wrong_order_the_newer_one_is_played(
    tictactoe: Callable[..., config.Settings], trained: Train, tmp_path: Path
) -> None:
    """As after this run has resumed from before the first arrived."""
    others = _arrivals(trained(tictactoe(seed=7)))
    run = create(tmp_path / "run", tictactoe(opponent__policy="league(0)"))
    _train(run, {300: others[-1], 600: others[0]})
    [newest] = run.store().league(10**9)
    assert newest.origin == others[-1].origin


def test_two_runs_on_two_machines_play_each_others_newest_snapshots(
    tictactoe: Callable[..., config.Settings], tmp_path: Path
) -> None:
    settings = tictactoe(train__steps=10**6, opponent__policy="league(0.5)", log__every_steps=10_000)
    small = [
        f"--set={key}={json.dumps(after)}" for key, _, after in config.differences(config.load("tictactoe"), settings)
    ]
    urls = {name: (tmp_path / f"{name}'s remote").as_uri() for name in ("a", "b")}
    runs = {}
    for mine, other in itertools.permutations("ab"):
        options = ["--run-dir", mine, "--remote", urls[mine], "--opponent", urls[other]]
        runs[mine] = Command("train", "tictactoe", *small, *options, cwd=tmp_path)

    def played() -> bool:
        found = [tmp_path / name for name in runs]
        return all((one / "run.json").exists() and any(map(is_import, _opponents(Run(one)))) for one in found)

    wait_until(played)
    for name, command in runs.items():
        command.send_signal(signal.SIGTERM)
        assert command.wait(60) == 130
        assert f"arrived: {urls['b' if name == 'a' else 'a']}:" in command.communicate()[1]
        swaps = [swap for swap in Run(tmp_path / name).ledger.events(Restore) if any(map(is_import, swap.snapshots))]
        assert f"number 1 of 1 other run: {urls['b' if name == 'a' else 'a']}:" in swaps[0].reason


def _forged(run: Run) -> Run:
    """Its newest manifest says the variables that it had, and the hash of the weights of another network."""
    store = run.store()
    newest = store.folder / store.newest.id
    with tf.Graph().as_default(), tf.Session() as session:
        names = [variable.name for variable in store.manifest(store.newest.id).variables]
        variables = [tf.get_variable(name, [3], initializer=tf.zeros_initializer()) for name in names]
        session.run(tf.global_variables_initializer())
        tf.train.Saver(variables).save(session, str(newest / "model"), write_meta_graph=False, write_state=False)
    manifest = store.manifest(store.newest.id).model_copy(
        update={
            "weights_sha256": weights_sha256({name: np.zeros(3, np.float32) for name in names}),
            "files": tuple(FileRecord.of(path) for path in sorted(newest.glob("model.*"))),
        }
    )
    (newest / "manifest.json").write_bytes(checked(manifest.model_dump(mode="json")))
    return run


def test_only_what_fits_and_plays_the_same_game_arrives(
    tictactoe: Callable[..., config.Settings],
    cartpole: Callable[..., config.Settings],
    trained: Train,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    mine = trained(tictactoe(opponent__policy="league(0.5)"))
    same = _push(trained(tictactoe(seed=7)), tmp_path / "same")
    wider = _push(trained(tictactoe(model__hidden_units=[32])), tmp_path / "wider")
    other = _push(trained(cartpole()), tmp_path / "other")
    itself = _push(mine, tmp_path / "itself")
    forged = _push(_forged(trained(tictactoe(seed=8))), tmp_path / "forged")
    for url, words in ((other, "plays CartPole-v1, and this one OpenSpiel/tic_tac_toe"), (itself, "is this one")):
        refused = twin_graph("resume", str(mine.folder), "--steps", "1300", "--opponent", url, cwd=tmp_path)
        assert refused.returncode == 2
        assert words in refused.stderr
    fetched: list[str] = []
    add = fetching.add
    monkeypatch.setattr(fetching, "add", lambda place, *rest: (fetched.append(place.url), add(place, *rest)))
    with League(mine, [place_at(url) for url in (same, wider, forged)]) as found:
        assert found.check() == []
        mine.change_settings(config.change(mine.settings, [("train.steps", 10**6)]))
        with contextlib.closing(progress_of(mine)) as progresses:
            for progress in found.follow(progresses):
                words = "\n".join(progress.notices)
                if all(what in words for what in ("does not fit", "arrived", "other weights than its manifest says")):
                    break
                assert progress.agent_steps < 500_000, words
        time.sleep(0.5)  # many looks
        assert not list(Path(found._folder.name).iterdir())
    assert [one.arrived_from for one in mine.store().imports] == [same]
    assert {url: fetched.count(url) for url in (same, wider, forged)} == {same: 4, wider: 3, forged: 4}
