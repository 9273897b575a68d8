"""Remotes: what was sent is fetched, whatever fails; one copy of a run continues it; nothing there is trusted."""

import contextlib
import json
import os
import shutil
import signal
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import hub
import huggingface_hub
import pytest
import s3
import sftp
from attempts import wait_until
from commands import Command, twin_graph

from twin_graph import config, envs, training
from twin_graph.errors import DamagedError, UsageError
from twin_graph.records.verify import verify
from twin_graph.remote import background, fetching, heads, owners, places, sending
from twin_graph.remote.background import Background
from twin_graph.remote.heads import TakenOverError
from twin_graph.remote.places import Place
from twin_graph.remote.sending import Sender
from twin_graph.remote.urls import place_at
from twin_graph.snapshots.files import checked, unchecked
from twin_graph.snapshots.resumable import newest_point
from twin_graph.snapshots.run import Run, create

_OWNER, _OTHER = "a" * 32, "b" * 32


@pytest.fixture(scope="module")
def server() -> Iterator[s3.S3]:
    with s3.serve() as server:
        yield server


@pytest.fixture(params=["folder", "s3", "sftp"])
def place(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    """An empty place of each kind."""
    if request.param == "folder":
        yield place_at((tmp_path / "remote").as_uri())
        return
    if request.param == "sftp":
        with sftp.serve(tmp_path / "home") as url:
            monkeypatch.setenv("HOME", str(tmp_path / "home"))
            yield place_at(f"{url}{tmp_path}/remote")
        return
    server: s3.S3 = request.getfixturevalue("server")
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)
    yield place_at(f"{server.url}/{tmp_path.name}")
    server.faults = s3.none


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits long before trying again."""
    monkeypatch.setattr(places, "_AGAIN_AFTER", (0.01, 0.02, 0.05, 0.1))
    monkeypatch.setattr(background, "_LOOK_SECONDS", 0.02)
    monkeypatch.setattr(background, "_AGAIN_SECONDS", 0.05)


def _push(run: Run, place: Place, owner: str = _OWNER, *, take_over: bool = False) -> heads.Head:
    sender = Sender(run, place, owner)
    sender.begin(take_over=take_over)
    return sender.send()


def _same(one: Path, other: Path) -> bool:
    """Whether two runs have equal files, but for what does not go with a run."""

    def files(folder: Path) -> dict[str, bytes]:
        found = {path.relative_to(folder).as_posix(): path for path in folder.rglob("*") if path.is_file()}
        return {name: path.read_bytes() for name, path in found.items() if heads.BELONGS.fullmatch(name)}

    return files(one) == files(other)


def test_what_is_pulled_is_what_was_pushed(trained: Callable, cartpole: Callable, place: Place, tmp_path: Path) -> None:
    run = trained(cartpole())
    head = _push(run, place)
    assert (head.number, head.run, head.agent_steps) == (1, run.id, 1_200)
    pulled = fetching.pull(place, fetching.newest(place), tmp_path / "pulled")
    assert _same(run.folder, pulled.folder)
    assert not verify(pulled).damage
    assert newest_point(pulled) == newest_point(run)


def test_only_what_is_new_is_sent(trained: Callable, cartpole: Callable, place: Place) -> None:
    run = trained(cartpole())
    head = _push(run, place)
    probe = heads.path_of(heads.packed(b"whether something can be written")[0].sha256)
    before = place.objects(heads.OBJECTS)
    assert set(before) == {probe} | {heads.path_of(sha256) for sha256 in head.pieces}
    assert _push(run, place) == head
    run.store().pin(run.store().newest.id, keep=True, attempt=1)
    second = _push(run, place)
    assert second.number == 2
    new = {heads.path_of(sha256) for sha256 in second.pieces.keys() - head.pieces.keys()}
    assert set(place.objects(heads.OBJECTS)) == set(before) | new
    assert len(new) == 1  # of the ledger


def test_a_large_file_that_grows_is_sent_in_pieces(
    trained: Callable, cartpole: Callable, place: Place, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for module in (heads, sending):
        monkeypatch.setattr(module, "PIECE", 500)
    run = trained(cartpole())
    sender = Sender(run, place, _OWNER)
    sender.begin()
    first = {file.name: file for file in sender.send().files}["ledger.jsonl"]
    run.store().pin(run.store().newest.id, keep=True, attempt=1)
    second = {file.name: file for file in sender.send().files}["ledger.jsonl"]
    assert len(first.pieces) > 10
    assert second.pieces[: len(first.pieces) - 1] == first.pieces[:-1]
    assert _same(run.folder, fetching.pull(place, fetching.newest(place), tmp_path / "pulled").folder)


def test_records_alone_and_single_snapshots_can_be_fetched(
    trained: Callable, cartpole: Callable, tmp_path: Path
) -> None:
    run = trained(cartpole())
    url = (tmp_path / "remote").as_uri()
    _command("push", run.folder, url)
    _command("pull", url, "--records-only", "--run-dir", tmp_path / "records")
    assert not list((tmp_path / "records").rglob("model.*"))
    for command in ("status", "log"):
        there, here = (_command(command, folder, "--json") for folder in (run.folder, tmp_path / "records"))
        assert len(json.loads(here)) == len(json.loads(there)), command
    _command("pull", url, "--snapshots", "latest", "--run-dir", tmp_path / "one")
    assert [path.parent.name for path in (tmp_path / "one").rglob("model.index")] == [run.store().newest.id]
    scores = [
        json.loads(_command("evaluate", folder, "latest", "--episodes", 2, "--json"))["mean"]
        for folder in (run.folder, tmp_path / "one")
    ]
    assert scores[0] == scores[1]


@pytest.mark.parametrize(
    ("name", "place"),
    [("cartpole", "folder"), ("cartpole", "s3"), ("cartpole", "sftp"), ("pong", "folder"), ("pong", "s3")],
    indirect=["place"],
)
def test_a_run_that_is_lost_continues_elsewhere_with_the_same_weights(
    name: str, request: pytest.FixtureRequest, trained: Callable, place: Place, tmp_path: Path
) -> None:
    """Nothing but the URL is known there: another folder, another home."""
    changes = {"train__steps": 1_600} if name == "cartpole" else {"train__steps": 320}
    settings = request.getfixturevalue(name)(**changes)
    whole = trained(settings)
    lost = _trained_with_a_remote(settings, place, tmp_path / "lost", until=settings.train.steps * 3 // 4)
    before = fetching.newest(place)
    assert 0 < before.agent_steps < settings.train.steps
    shutil.rmtree(lost.folder)
    here = tmp_path / "here"
    done = _command(*("resume", place.url, "--run-dir", here, "--json"), env=_elsewhere(tmp_path))
    assert json.loads(done)["weights_sha256"] == newest_point(whole).point.weights_sha256
    head = fetching.newest(place)
    assert head.owner != before.owner
    assert head.agent_steps == settings.train.steps
    fetched = fetching.pull(place, head, tmp_path / "fetched")
    assert newest_point(fetched).point.weights_sha256 == newest_point(whole).point.weights_sha256


def _command(*arguments: object, env: dict[str, str] | None = None) -> str:
    """What a command prints to stdout."""
    done = twin_graph(*map(str, arguments), cwd=Path.cwd(), env=env)
    assert done.returncode == 0, done.stderr
    return done.stdout


def _elsewhere(tmp_path: Path) -> dict[str, str]:
    """Another user's environment."""
    return {**os.environ, "XDG_CONFIG_HOME": str(tmp_path / "another home")}


def _trained_with_a_remote(settings: config.Settings, place: Place, folder: Path, *, until: int) -> Run:
    """Sent as far as it came; then it is as if its process were killed."""
    run = create(folder, settings)
    env = envs.make(settings.env, count=settings.env.count)
    with Background(run, place, owners.of(run, place.url)) as sends:
        sends.begin()
        sends.start()
        for progress in sends.follow(training.train(run, env)):
            if progress.agent_steps >= until:
                break
        assert sends.close(30), sends.trouble
    env.close()
    return run


def test_another_machine_takes_over_and_the_first_one_stops(cartpole: Callable, tmp_path: Path) -> None:
    url = (tmp_path / "remote").as_uri()
    settings = cartpole(train__steps=10**6)
    small = [f"--set={key}={value}" for key, value in _different_from_preset(settings)]
    first = Command(*("train", "cartpole", *small, "--run-dir", "first", "--remote", url), cwd=tmp_path)
    wait_until(lambda: len(list((tmp_path / "remote" / "heads").glob("[0-9]*"))) > 2)
    second = Command("resume", url, "--run-dir", "second", cwd=tmp_path, env=_elsewhere(tmp_path))
    assert first.wait(60) == 4
    assert "was continued elsewhere" in first.communicate()[1]
    assert newest_point(Run(tmp_path / "first"))
    second.send_signal(signal.SIGTERM)
    assert second.wait(60) == 130
    assert fetching.newest(place_at(url)).owner == _owner(tmp_path / "second", _elsewhere(tmp_path)["XDG_CONFIG_HOME"])
    refused = twin_graph("resume", "first", cwd=tmp_path)
    assert refused.returncode == 4
    assert "has another copy of" in refused.stderr


def _owner(folder: Path, home: str) -> str:
    kept = [json.loads(path.read_text()) for path in Path(home, "twin-graph", "remotes").glob("*.json")]
    return next(one["owners"][0]["owner"] for one in kept if one["folder"] == str(folder))


def _different_from_preset(settings: config.Settings) -> list[tuple[str, str]]:
    found = config.differences(config.load("cartpole"), settings)
    return [(key, json.dumps(after)) for key, _, after in found]


def test_of_many_who_race_for_a_state_one_gets_it(trained: Callable, cartpole: Callable, place: Place) -> None:
    run = trained(cartpole())
    head = _push(run, place)
    for number in range(2, 52):
        got, begin = list[str](), threading.Barrier(4)

        def race(mine: heads.Head, got: list[str] = got, begin: threading.Barrier = begin) -> None:
            begin.wait()
            if heads.claim(place, mine) == mine:
                got.append(mine.owner)

        own = [head.model_copy(update={"number": number, "owner": f"{i:032x}"}) for i in range(4)]
        threads = [threading.Thread(target=race, args=(mine,)) for mine in own]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert got == [heads.read(place, number).owner]


def test_whatever_the_network_does_what_is_pulled_is_whole(
    trained: Callable, cartpole: Callable, server: s3.S3, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)
    run = trained(cartpole())
    place = place_at(f"{server.url}/faults")
    for seed in range(10):
        server.faults = s3.at_random(seed, 0.1)
        run.store().pin(run.store().newest.id, keep=seed % 2 == 0, attempt=1)  # something is new
        with contextlib.suppress(OSError, DamagedError):
            _push(run, place)
        server.faults = s3.none
        if (head := heads.newest(place)) is not None:
            pulled = fetching.pull(place, head, tmp_path / str(seed))
            assert not verify(pulled).damage
        server.faults = s3.at_random(seed, 0.1)
        try:
            pulled = fetching.pull(place, fetching.newest(place), tmp_path / f"{seed}-faults")
        except (OSError, DamagedError, UsageError):
            assert not (tmp_path / f"{seed}-faults").exists()
        else:
            assert not verify(pulled).damage
    assert {fault for fault, _ in server.met} == {*s3.FAULTS}
    server.faults = s3.none


def test_an_answer_that_is_lost_is_no_loss(trained: Callable, cartpole: Callable, server: s3.S3, monkeypatch) -> None:
    """The head was created, and nobody said so: it is one's own."""
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)
    run, place = trained(cartpole()), place_at(f"{server.url}/lost-answer")
    server.faults = lambda method, path: "answer lost" if method == "PUT" and "/heads/" in path else None
    assert _push(run, place).number == 1
    server.faults = s3.none
    assert set(heads.numbers(place)) == {1}


def test_a_server_whose_renames_exclude_nobody_is_refused(
    trained: Callable, cartpole: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    served, refused = sftp.serve(tmp_path / "home", exclusive=False), pytest.raises(UsageError, match="renames files o")
    with served as url, refused:
        _push(trained(cartpole()), place_at(f"{url}{tmp_path}/remote"))
    assert not list((tmp_path / "remote").rglob(heads.path_of_head(1)))


def test_a_host_that_nobody_knows_is_refused(
    trained: Callable, cartpole: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    with sftp.serve(tmp_path / "home") as url:
        (tmp_path / "home" / ".ssh" / "known_hosts").write_text("")
        with pytest.raises(OSError, match="known_hosts"):
            _push(trained(cartpole()), place_at(f"{url}{tmp_path}/remote"))


def test_old_states_go_after_a_time(
    trained: Callable, cartpole: Callable, place: Place, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    run = trained(cartpole())
    sender = Sender(run, place, _OWNER)
    sender.begin()
    place.write(heads.path_of("f" * 64), b"of a push that was killed")
    for keep in (True, False, True):
        sender.send()
        run.store().pin(run.store().newest.id, keep=keep, attempt=1)
    assert len(heads.numbers(place)) == 3
    monkeypatch.setattr(sending, "GRACE_SECONDS", -1e9)
    head = _push(run, place)
    assert set(heads.numbers(place)) == {head.number}
    assert set(place.objects(heads.OBJECTS)) == {heads.path_of(sha256) for sha256 in head.pieces}
    assert _same(run.folder, fetching.pull(place, head, tmp_path / "pulled").folder)


def test_what_was_removed_is_sent_again_where_it_is_needed_again(
    trained: Callable, cartpole: Callable, place: Place, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A resumed run makes the same parts of the replay again, which an old state had."""
    run = trained(cartpole())
    sender = Sender(run, place, _OWNER)
    sender.begin()
    sender.send()
    segment = next((run.folder / "resume" / "replay").glob("*.npys"))
    kept = segment.rename(tmp_path / "kept")
    sender.send()
    kept.rename(segment)
    sender.send_segments()  # it is there
    monkeypatch.setattr(sending, "GRACE_SECONDS", -1e9)
    run.store().pin(run.store().newest.id, keep=True, attempt=1)
    kept = segment.rename(tmp_path / "kept")
    sender.send()  # removes it
    kept.rename(segment)
    assert _same(run.folder, fetching.pull(place, sender.send(), tmp_path / "pulled").folder)


def test_a_copy_of_a_run_must_say_that_it_takes_over(trained: Callable, cartpole: Callable, place: Place) -> None:
    run = trained(cartpole())
    _push(run, place)
    with pytest.raises(TakenOverError, match=r"has another copy of .* at 1,200 agent steps, and this one is at 1,200:"):
        _push(run, place, _OTHER)
    run.store().pin(run.store().newest.id, keep=True, attempt=1)
    assert _push(run, place, _OTHER, take_over=True).number == 2
    with pytest.raises(TakenOverError):
        _push(run, place)


def test_a_run_that_is_renamed_stays_the_same_copy_and_one_that_is_copied_does_not(
    trained: Callable, cartpole: Callable, tmp_path: Path
) -> None:
    """Neither the path nor what is in the folder tells: two machines with one home can have both alike."""
    run, url = trained(cartpole()), (tmp_path / "remote").as_uri()
    _command("push", run.folder, url)
    renamed = Run(run.folder.rename(tmp_path / "renamed"))
    assert owners.of(renamed, url).state == 1
    _command("push", renamed.folder, url)
    shutil.copytree(renamed.folder, run.folder)
    assert owners.of(Run(run.folder), url).state == 0
    refused = twin_graph("push", str(run.folder), url, cwd=tmp_path)
    assert refused.returncode == 4
    assert "has another copy of" in refused.stderr


def test_an_end_waits_not_long_where_nothing_can_be_sent(
    trained: Callable, cartpole: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(background, "_TROUBLE_SECONDS", 0.3)
    run, place = trained(cartpole()), place_at((tmp_path / "remote").as_uri())
    _push(run, place, owners.of(run, place.url).owner)
    shutil.rmtree(tmp_path / "remote")
    (tmp_path / "remote").write_text("in the way")
    with Background(run, place, owners.of(run, place.url)) as sends:
        sends.start()
        began = time.monotonic()
        assert not sends.close(60)
    assert sends.trouble
    assert time.monotonic() - began < 20


def test_an_older_copy_at_the_same_path_is_no_newer_state(trained: Callable, cartpole: Callable, place: Place) -> None:
    whole = trained(cartpole(train__steps=1_600))
    head = _push(whole, place)
    shutil.rmtree(whole.folder / "resume" / f"{whole.points().newest().number:06d}")
    with pytest.raises(TakenOverError, match=r"has copy\d* at 1,600 agent steps, and this one is at 1,\d+: "):
        _push(whole, place)
    assert fetching.newest(place) == head


def test_a_copy_without_resume_points_replaces_no_whole_run(
    trained: Callable, cartpole: Callable, place: Place, tmp_path: Path
) -> None:
    head = _push(trained(cartpole()), place)
    records = fetching.pull(place, head, tmp_path / "records", wanted=fetching.is_record)
    with pytest.raises(UsageError, match="lacks its resume points, and would replace a whole run"):
        _push(records, place, _OTHER, take_over=True)


def test_a_run_that_is_gone_is_no_state(trained: Callable, cartpole: Callable, place: Place, tmp_path: Path) -> None:
    run = trained(cartpole())
    head, sender = _push(run, place), Sender(run, place, _OWNER)
    sender.begin()
    run.folder.rename(tmp_path / "moved")
    with pytest.raises(UsageError, match="is no run any more"):
        sender.send()
    assert fetching.newest(place) == head


def test_a_push_by_hand_takes_nothing_from_a_training(trained: Callable, cartpole: Callable, place: Place) -> None:
    """Both are the same copy: what one has sent is not what the other would have."""
    run = trained(cartpole())
    training_, by_hand = Sender(run, place, _OWNER), Sender(run, place, _OWNER)
    training_.begin()
    by_hand.begin()
    assert by_hand.send().number == 1
    run.store().pin(run.store().newest.id, keep=True, attempt=1)
    head = training_.send()
    assert head.number == 2
    assert head == fetching.newest(place)
    ledger = next(file for file in head.files if file.name == "ledger.jsonl")
    assert ledger.bytes == (run.folder / "ledger.jsonl").stat().st_size


def test_each_remote_of_a_run_knows_it(trained: Callable, cartpole: Callable, tmp_path: Path) -> None:
    """To push elsewhere, or to fail there, changes nothing for the first."""
    run, one, other = trained(cartpole()), (tmp_path / "one").as_uri(), (tmp_path / "other").as_uri()
    _command("push", run.folder, one)
    owners.keep(run, owners.of(run, one), to_train=True)
    _command("push", run.folder, other)
    (tmp_path / "file").write_text("")
    assert twin_graph("push", str(run.folder), (tmp_path / "file" / "x").as_uri(), cwd=tmp_path).returncode != 0
    _command("push", run.folder, one)
    _command("push", run.folder, other)
    kept = owners.trains_with(run)
    assert kept
    assert kept.url == one


def test_what_is_damaged_and_old_keeps_nobody_from_sending(trained: Callable, cartpole: Callable, place: Place) -> None:
    run = trained(cartpole())
    for keep in (True, False):
        _push(run, place)
        if keep:
            run.store().pin(run.store().newest.id, keep=True, attempt=1)
    place.write(heads.path_of_head(1), b"x")
    run.store().pin(run.store().newest.id, keep=False, attempt=1)
    assert _push(run, place).number == 3


def test_a_state_can_be_fetched_for_a_time_after_the_next_was_sent(
    trained: Callable, cartpole: Callable, tmp_path: Path
) -> None:
    """However long it was the newest."""
    run, place = trained(cartpole()), place_at((tmp_path / "remote").as_uri())
    head = _push(run, place)
    for path in (tmp_path / "remote").rglob("*"):
        os.utime(path, (time.time() - 3 * sending.GRACE_SECONDS,) * 2)
    run.store().pin(run.store().newest.id, keep=True, attempt=1)
    assert _push(run, place).number == 2
    assert not verify(fetching.pull(place, head, tmp_path / "pulled")).damage


def test_a_place_that_cannot_be_written_is_told_before_training(server: s3.S3, tmp_path: Path) -> None:
    environment = {**os.environ, **server.environment}
    done = twin_graph("train", "cartpole", "--remote", "s3://no-such-bucket/x", cwd=tmp_path, env=environment)
    assert done.returncode != 0
    assert "bucket does not exist" in done.stderr
    assert not (tmp_path / "checkpoints").exists()


def test_it_is_fetched_only_where_there_is_room(
    trained: Callable, cartpole: Callable, place: Place, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    head = _push(trained(cartpole()), place)
    monkeypatch.setattr(fetching.shutil, "disk_usage", lambda _: _Free(1_000))
    with pytest.raises(UsageError, match=r"are to be fetched, and 0\.0 MB are free in"):
        fetching.pull(place, head, tmp_path / "pulled")


class _Free:
    def __init__(self, free: int) -> None:
        self.free = free


def test_a_place_has_one_run(trained: Callable, cartpole: Callable, place: Place) -> None:
    _push(trained(cartpole()), place)
    with pytest.raises(UsageError, match=r"which is another run; choose another place"):
        _push(trained(cartpole(seed=2)), place)


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("checkpoints/run", "is no URL of a remote"),
        ("http://host/run", "is none of the protocols"),
        ("simplecache::s3://bucket/run", "is no URL of a remote"),
        ("s3://key:secret@bucket/run", "leave out names, passwords"),
        ("s3://bucket/run?secret=1", "leave out names, passwords"),
        ("s3://bucket/../other", "is no place for a remote"),
        ("s3://bucket//run", "is no place for a remote"),
        ("s3://", "is no place for a remote"),
        ("file://run", "write three slashes"),
        ("file:///tmp/../etc", "is no place for a remote"),
        ("file:///tmp/%2e%2e/etc", "is no place for a remote"),
        ("file:///tmp/%00", "is no place for a remote"),
        ("memory://run", "is none of the protocols"),
        ("sftp://me:secret@host/run", "leave out names, passwords"),
        ("sftp://host", "write it as sftp://HOST/FOLDER"),
        ("sftp://-oProxyCommand=x/run", "write it as sftp://HOST/FOLDER"),
    ],
)
def test_a_url_is_a_place_and_nothing_else(url: str, said: str) -> None:
    with pytest.raises(UsageError, match=said) as raised:
        place_at(url)
    assert "secret" not in str(raised.value) or "checkpoints" in url


def _forged(place: Place, change: Callable[[dict], None]) -> None:
    path = heads.path_of_head(1)
    record = unchecked(place.read(path, 2**26))
    change(record)
    place.write(path, checked(record))


@pytest.mark.parametrize(
    "name",
    ["../outside", "/etc/passwd", "control/lock", "snapshots/000001-00000000/../../x", "run.json/x", ".hidden", "x\n"],
)
def test_a_head_names_nothing_but_files_of_a_run(
    name: str, trained: Callable, cartpole: Callable, place: Place, tmp_path: Path
) -> None:
    _push(trained(cartpole()), place)
    _forged(place, lambda record: record["files"][0].update(name=name))
    with pytest.raises(DamagedError, match="is damaged: files"):
        fetching.newest(place)


def test_what_is_not_what_its_name_says_is_not_used(
    trained: Callable, cartpole: Callable, place: Place, tmp_path: Path
) -> None:
    head = _push(trained(cartpole()), place)
    sha256 = next(iter(head.pieces))
    whole = place.read(heads.path_of(sha256), 2**26)
    for content in (whole[:-1], whole + b"x", whole[:-1] + bytes([whole[-1] ^ 1]), b"x"):
        place.write(heads.path_of(sha256), content)
        with pytest.raises(DamagedError, match="it is not what its name says"):
            fetching.pull(place, head, tmp_path / "pulled")
    place.remove(heads.path_of(sha256))
    with pytest.raises(DamagedError, match="is gone"):
        fetching.pull(place, head, tmp_path / "pulled")
    assert not list(tmp_path.glob("*pulled*"))


def test_an_object_that_would_fill_the_memory_is_not_unpacked(
    trained: Callable, cartpole: Callable, place: Place, tmp_path: Path
) -> None:
    _push(trained(cartpole()), place)
    piece, content = heads.packed(bytes(200_000_000))
    place.write(heads.path_of(piece.sha256), content)
    _forged(place, lambda record: record["files"][0].update(bytes=10, pieces=[list(piece)]))
    with pytest.raises(DamagedError, match="it does not hold 10 bytes"):
        fetching.pull(place, fetching.newest(place), tmp_path / "pulled")
    assert zlib.decompress(content, bufsize=1)


def test_a_run_is_read_from_afar(trained: Callable, cartpole: Callable, tmp_path: Path) -> None:
    """Its records, and of its weights those of one snapshot; what is asked again is not fetched again."""
    run, url = trained(cartpole()), (tmp_path / "there" / "pole").as_uri()
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path / "cache")}
    _command("push", run.folder, url)
    for command in (["log"], ["explain", "--update", "200"], ["show", "latest"]):
        name, *rest = command
        here, there = (_command(name, of, *rest, "--json", env=environment) for of in (run.folder, url))
        assert json.loads(here) == json.loads(there)
    cached = [path for path in (tmp_path / "cache").rglob("*") if path.is_file()]
    assert not [path for path in cached if path.name.startswith("model.")]
    best = run.resolve("best").id
    said = json.loads(_command("evaluate", f"{url}:best", "--episodes", 2, "--json", env=environment))
    assert said["snapshot"] == best
    assert said["mean"] == json.loads(_command("evaluate", run.folder, "best", "--episodes", 2, "--json"))["mean"]
    weights = [path.parent.name for path in (tmp_path / "cache").rglob("model.index")]
    assert weights == [best]
    (tmp_path / "there" / "pole" / "objects").rename(tmp_path / "gone")
    _command("status", url, env=environment)  # it is here
    (tmp_path / "gone").rename(tmp_path / "there" / "pole" / "objects")
    _command("push", run.folder, url)  # the score of that evaluation is new
    _command("status", url, env=environment)
    assert len(list((tmp_path / "cache").rglob("run.json"))) == 2  # somebody may be reading the first
    for path in (tmp_path / "cache").rglob("0*"):
        os.utime(path, (time.time() - 2 * 86_400,) * 2)
    run.store().pin(best, keep=True, attempt=1)
    _command("push", run.folder, url)
    _command("status", url, env=environment)
    assert len(list((tmp_path / "cache").rglob("run.json"))) == 1


def test_runs_of_a_place_are_listed(trained: Callable, cartpole: Callable, tmp_path: Path) -> None:
    run = trained(cartpole())
    for name in ("one", "two", "three"):
        _push(run, place_at((tmp_path / name).as_uri()))
    (tmp_path / "three" / heads.path_of_head(1)).write_text("{}")
    listed = {one["run"]: one for one in json.loads(_command("runs", tmp_path.as_uri(), "--json"))}
    assert {name: "damage" in one for name, one in listed.items()} == {"one": False, "two": False, "three": True}
    assert listed["one"]["agent_steps"] == 1_200
    assert "damaged" in _command("runs", tmp_path.as_uri())


def test_status_says_how_far_behind_a_remote_is(trained: Callable, cartpole: Callable, tmp_path: Path) -> None:
    run, url = trained(cartpole()), (tmp_path / "remote").as_uri()
    owner = owners.of(run, url)
    owners.keep(run, owner.model_copy(update={"state": 2, "agent_steps": 500, "trouble": "no route"}), to_train=True)
    assert f"{url}  (700 agent steps behind; no route)" in _command("status", run.folder)
    _command("push", run.folder, url)
    assert f"{url}  (state 1)" in _command("status", run.folder)


@pytest.mark.parametrize("harm", ["gone", "shorter", "another"])
def test_verify_finds_what_is_wrong_in_a_remote(
    harm: str, trained: Callable, cartpole: Callable, tmp_path: Path
) -> None:
    url = (tmp_path / "remote").as_uri()
    head = _push(trained(cartpole()), place_at(url))
    assert "every byte as it was sent" in _command("verify", url, "--read")
    assert "records as they were sent" in _command("verify", url)
    weights = next(file for file in head.files if file.name.endswith("model.data-00000-of-00001"))
    broken = tmp_path / "remote" / heads.path_of(weights.pieces[0].sha256)
    content = broken.read_bytes()
    if harm == "gone":
        broken.unlink()
    else:
        broken.write_bytes(content[:-1] if harm == "shorter" else bytes(reversed(content)))
    for read in ([], ["--read"]):
        done = twin_graph("verify", url, *read, cwd=tmp_path)
        found = read or harm != "another"  # its length is right
        assert done.returncode == (3 if found else 0), done.stderr
    assert not list(tmp_path.glob("*.again*"))


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (["pull", "--snapshots", ""], "name snapshots, with commas between them"),
        (["pull", "--snapshots", "best", "--records-only"], "--records-only has no weights"),
        (["pull", "--snapshots", "elsewhere:latest"], "no snapshot 'elsewhere:latest'"),
        (["resume", "--remote", "file:///elsewhere"], "--remote URL is for a run in a folder"),
        (["resume", "--set", "nonsense=1"], "nonsense"),
    ],
)
def test_what_makes_no_sense_changes_nothing(
    command: list[str], said: str, trained: Callable, cartpole: Callable, tmp_path: Path
) -> None:
    """Nobody loses a run by it."""
    url = (tmp_path / "remote").as_uri()
    head = _push(trained(cartpole()), place_at(url))
    name, *options = command
    done = twin_graph(name, url, *options, cwd=tmp_path)
    assert done.returncode == 2
    assert said in done.stderr
    assert fetching.newest(place_at(url)) == head


def test_a_run_that_was_training_when_it_was_sent_is_not_called_killed(cartpole: Callable, tmp_path: Path) -> None:
    place = place_at((tmp_path / "remote").as_uri())
    _trained_with_a_remote(cartpole(train__steps=4_000), place, tmp_path / "run", until=2_000)
    assert "sent: it was training then" in _command("status", place.url)


def test_a_run_is_published_with_its_card_and_comes_back_whole(
    trained: Callable, cartpole: Callable, tmp_path: Path
) -> None:
    """On a hub that speaks what its client calls."""
    run = trained(cartpole())
    _command("evaluate", run.folder, "best", "--episodes", 3)
    run.videos.mkdir()
    (run.videos / f"{run.store().newest.id}.mp4").write_bytes(b"a film")
    with hub.serve() as there:
        environment = {**os.environ, "HF_ENDPOINT": there.url, "HF_TOKEN": "hf_x", "HF_HOME": str(tmp_path / "hf")}
        _command("push", run.folder, "hf://lab/pole", env=environment)
        _command("pull", "hf://lab/pole", "--run-dir", tmp_path / "pulled", env=environment)
        assert _same(run.folder, tmp_path / "pulled")
        assert there.files["replay.mp4"] == b"a film"
        text = there.files["README.md"].decode()
        assert "library_name: twin-graph" in text
        assert "type: mean_reward" in text
        assert "3 games after training" in text
        assert f"twin-graph evaluate {run.name} {run.resolve('best').id}" in text
        assert "| `env.id` |" not in text
        assert len(there.commits) == 1
        _command("push", run.folder, "hf://lab/pole", env=environment)
        assert len(there.commits) == 1  # nothing was new
        refused = twin_graph("train", "cartpole", "--remote", "hf://lab/pole", cwd=tmp_path, env=environment)
    assert refused.returncode == 2
    assert "keeps all that is ever sent" in refused.stderr


def test_of_two_who_publish_at_once_one_succeeds(
    trained: Callable, cartpole: Callable, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A commit names the one before it."""
    head = _push(trained(cartpole()), place_at((tmp_path / "remote").as_uri()))
    with hub.serve() as there:
        api = huggingface_hub.HfApi(there.url, "hf_x")
        places_ = [place_at("hf://lab/pole") for _ in range(4)]
        for one in places_:
            monkeypatch.setattr(one, "_connected", api)
        got = list[str]()

        def race(place: Place, owner: str) -> None:
            mine = head.model_copy(update={"owner": owner})
            if heads.claim(place, mine) == mine:
                got.append(owner)

        threads = [threading.Thread(target=race, args=(one, f"{i:032x}")) for i, one in enumerate(places_)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(there.commits) == 1
        assert got == [json.loads(there.files["heads/00000001"])["owner"]]


def test_trouble_is_told_and_ends_when_the_place_is_back(
    cartpole: Callable, server: s3.S3, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A training goes on without its remote, and catches up."""
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)
    settings, place = cartpole(), place_at(f"{server.url}/trouble")
    run = create(tmp_path / "run", settings)
    env = envs.make(settings.env, count=settings.env.count)
    owners.keep(run, owner := owners.of(run, place.url), to_train=True)
    with Background(run, place, owner) as sends:
        sends.begin()
        server.faults = lambda method, path: "lost"
        sends.start()
        for _ in sends.follow(training.train(run, env)):
            pass
        assert not sends.close(0.2)
        wait_until(lambda: bool((kept := owners.trains_with(run)) and kept.trouble))
    server.faults = s3.none
    assert _push(run, place, sends._owner.owner).agent_steps == 1_200
    env.close()
