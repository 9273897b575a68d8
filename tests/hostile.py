"""Hostile runs: each is the run in tests/data with one thing changed as an attacker would, behind valid checksums.

    python tests/hostile.py [--commands log,show] [VARIANT]...

gives each variant to every command, those that need TensorFlow too, and prints what was not as it should be: code that
ran, a file outside of the run that changed, more than a few seconds, a traceback, an escape, an exit code that is not
documented. The suite gives them to all commands that need no TensorFlow, and to all routes of the page.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import socket
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from twin_graph.snapshots.files import checked

ORIGINAL = Path(__file__).parent / "data" / "run-of-format-1"
ESCAPE = "\x1b]0;owned\x07\x1b[2J\x9b31m\u202egnp\nall is well"
#: A module in the present folder, as in an unpacked archive; to import it leaves a file.
EVIL = 'from pathlib import Path\nPath(__file__).with_name("RAN").touch()\ndef pick(*values): return None\n'
NOBODY = 2**80

Change = Callable[[Path], object]


def _lines(path: Path, change: Callable[[list[dict[str, Any]]], object]) -> None:
    records = []
    for line in path.read_bytes().splitlines():
        records.append(json.loads(line))
        del records[-1]["crc"]
    change(records)
    path.write_bytes(b"".join(checked(record) + b"\n" for record in records))


def _file(path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    record = json.loads(path.read_bytes())
    record.pop("crc", None)
    change(record)
    path.write_bytes(checked(record, indent=1))


def _put(where: str, value: Any) -> Callable[[dict[str, Any]], None]:
    """Sets what is at `a.b.0.c`."""

    def change(record: dict[str, Any]) -> None:
        *path, last = [int(part) if part.isdecimal() else part for part in where.split(".")]
        at: Any = record
        for part in path:
            at = at[part]
        at[last] = value

    return change


def _of_event(event: str, where: str, value: Any) -> Callable[[list[dict[str, Any]]], None]:
    def change(records: list[dict[str, Any]]) -> None:
        _put(where, value)(next(record for record in reversed(records) if record["event"] == event))

    return change


def _of_last(where: str, value: Any) -> Callable[[list[dict[str, Any]]], None]:
    return lambda records: _put(where, value)(records[-1])


def _add(record: dict[str, Any]) -> Callable[[list[dict[str, Any]]], None]:
    return lambda records: records.append({"attempt": 1, "time": "2026-11-23T05:08:09", **record})


def _raw(content: bytes) -> Callable[[Path], object]:
    return lambda path: path.write_bytes(content)


def _signed(text: str) -> bytes:
    """JSON that is not what `checked` would write, with its checksum."""
    import zlib

    head = text.encode()[:-1] + b", "
    head += b'"crc": '
    return head + b'"%08x"}' % zlib.crc32(head[: -len(b'"crc": ')])


def _sparse(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(2**40)


def _pipe(path: Path) -> None:
    path.unlink(missing_ok=True)
    os.mkfifo(path)


def _socket(path: Path) -> None:
    path.unlink(missing_ok=True)
    here = Path.cwd()
    os.chdir(path.parent)  # the name of a socket is short
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(path.name)
    os.chdir(here)


def _link(target: str) -> Callable[[Path], object]:
    def change(path: Path) -> None:
        path.parent.mkdir(exist_ok=True)
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        path.unlink(missing_ok=True)
        path.symlink_to(target)

    return change


def _folder(path: Path) -> None:
    path.unlink(missing_ok=True)
    path.mkdir()


NEWEST, POINT, REQUEST = "snapshots/000005-bdaa08a1", "resume/000003", "control/request-01795410490947464357-9d02f68c"
DEEP = '{"a": ' * 20_000 + "1" + "}" * 20_000
#: What may stand where a record is expected.
NO_RECORD: dict[str, Callable[[Path], object]] = {
    "pipe": _pipe,
    "socket": _socket,
    "folder": _folder,
    "endless": _sparse,
    "empty": _raw(b""),
    "binary": _raw(bytes(range(256)) * 40),
    "link": _link("/etc/passwd"),
    "device": _link("/dev/zero"),
    "list": _raw(_signed("[1]")),
    "deep": _raw(_signed(DEEP) + b"\n"),
    "digits": _raw(_signed('{"attempt": ' + "9" * 1_000_000 + "}") + b"\n"),
    "empty-lines": _raw(b"\n" * 1_000_000),
}

WRONG_SETTINGS = {
    "network": "evil:pick",
    "loss": "evil:pick",
    "train.optimizer": "evil:pick",
    "env.id": "evil:Evil-v0",
    "target.policy": "evil:pick(2)",
    "evaluate.against": "evil:pick",
    "train.steps": NOBODY,
    "env.count": "many",
    "twin.threads": -1,
    "env": None,
    "preset": ESCAPE,
    "log.to": "wandb",
}
WRONG_DESCRIPTION = {
    "format": "1",
    "id": "../../victim",
    "name": ESCAPE,
    "created": 5,
    "protocol": None,
    "versions": None,
    "versions.tensorflow": [ESCAPE],
    "versions.numpy": ESCAPE,
    "cpu": "none",
    "cpu.cores": ESCAPE,
    "past_settings": "none",
    "forked_from": "x",
    "settings": None,
}
WRONG_EVENTS = {
    "commit.snapshot": ["../../victim", "/etc/victim", "..", "\x00", ESCAPE, "0٠٠٠٠٠-3fa9c1d2", "000004-40b82b1d"],
    "commit.number": [-1, NOBODY, "5", None, 1.5],
    "commit.parent": ["../../victim"],
    "commit.learner": ["../../victim", ESCAPE],
    "commit.lineage": [ESCAPE],
    "commit.bytes": [-1, NOBODY, "x"],
    "commit.counters": [None, {"agent_steps": -1, "updates": 0, "frames": 0, "episodes": 0}],
    "commit.counters.updates": [NOBODY],
    "commit.health": [5, {"q_abs_mean": "x", "q_abs_max": None, "q_limit": None}],
    "commit.weights_sha256": [ESCAPE, 5],
    "commit.time": [ESCAPE, 5],
    "swap.snapshots": [["../../victim"], [], "000004-40b82b1d", [ESCAPE]],
    "swap.candidates": [["../../victim"] * 1000, None],
    "swap.previous": [["../../victim"]],
    "swap.policy": [ESCAPE, "evil:pick(2)"],
    "swap.reason": [ESCAPE, 5],
    "swap.first_update": [0, -5, NOBODY],
    "swap.worker": ["../../victim"],
    "swap.request": ["../../victim"],
    "swap.draw": ["x"],
    "swap.into": ["elsewhere"],
    "start.known_bytes": [{"../../victim": 1}, {"ledger.jsonl": 1}],
    "start.found_bytes": [{"ledger.jsonl": NOBODY, "evaluations.jsonl": 0, "metrics.jsonl": NOBODY}],
    "start.host": [ESCAPE],
    "start.counters": [5],
    "start.attempt": [0, -1, 2**62, NOBODY],
    "end.reason": [ESCAPE, None],
    "end.state": ["well"],
}
WRONG_NEW_EVENTS: list[dict[str, Any]] = [
    {"event": "prune", "snapshots": ["../../victim"]},
    {"event": "prune", "snapshots": [f"../../{i}" for i in range(1000)]},
    {"event": "pin", "snapshot": "../../victim"},
    {"event": "fork", "run": ESCAPE, "point": 3, "counters": {}, "weights_sha256": "x"},
    {"event": "point", "number": NOBODY, "counters": {}, "weights_sha256": "x"},
    {"event": ESCAPE},
    {"event": None},
    {"no": "event"},
]
WRONG_EVALUATIONS = {
    "snapshot": ["../../victim", 5, ESCAPE],
    "returns": ["x", [], [None], ["x"]],
    "mean": ["x"],
    "interval_95": ["x", [1], ["x", "y"]],
    "protocol": [None, {ESCAPE: ESCAPE}, {"environment": {"a": []}}],
    "played_at": ["x", {"updates": "x"}],
    "challenger": [5, ESCAPE],
    "scheduled": ["yes"],
    "agent_steps": ["x", NOBODY],
    "seeds": ["x"],
    "time": [ESCAPE, 5],
}
WRONG_METRICS = {
    "agent_steps": ["x", -1, NOBODY, 1.5],
    "agent_steps_per_second": ["x", [], 10**400],
    "target/q_distance": ["x", []],
    "attempt": ["x"],
    ESCAPE: [1.0],
    "loss": [ESCAPE],
}
WRONG_MANIFESTS = {
    "id": ["../../victim"],
    "files.0.name": ["../../victim", "/etc/victim", "..", ".hidden", "a\nb", ESCAPE, "manifest.json"],
    "files.0.size": [-1, NOBODY],
    "files.0.sha256": [ESCAPE],
    "variables.0.name": [ESCAPE],
    "variables.0.shape": [[-1], [NOBODY], ["x"]],
    "variables.0.dtype": [ESCAPE],
    "origin": [ESCAPE],
    "number": [-1],
    "format": [2],
}
WRONG_POINTS = {
    "number": [4, -1, NOBODY],
    "files.0.name": ["../../victim", "/etc/victim", "../../../victim.pth"],
    "segments.0.file.name": ["../../../victim", "/etc/passwd"],
    "segments.0.first": [-1, NOBODY],
    "learners.0.name": ["../victim", ESCAPE],
    "learners.0.target.snapshots": [["../../victim"], "x"],
    "learners.0.target.policy": ["evil:pick(2)", ESCAPE],
    "learners": [[], None],
    "known_bytes": [{}, {"ledger.jsonl": -1, "evaluations.jsonl": 0, "metrics.jsonl": 0}, {"../victim": 9}],
    "counters": [{}],
    "returns": [["x"]],
    "time": [ESCAPE],
}
WRONG_REQUESTS = {
    "id": ["../../package", "request-9", "/etc/victim", ESCAPE],
    "snapshot": ["../../victim", ESCAPE],
    "kind": ["format"],
    "into": ["disk"],
    "learner": ["../victim"],
    "undoes": ["../../victim"],
}


def variants() -> Iterator[tuple[str, Change]]:
    """Every hostile run: a name, and what makes it of the original."""
    for kind, make in NO_RECORD.items():
        for name in ("run.json", "ledger.jsonl", "evaluations.jsonl", "metrics.jsonl", f"{NEWEST}/manifest.json"):
            yield f"{name}: {kind}", lambda run, name=name, make=make: make(run / name)
        for name in (f"{POINT}/state.json", f"{REQUEST}.json", "control/holder.json", "control/lock"):
            yield f"{name}: {kind}", lambda run, name=name, make=make: make(run / name)
    for kind in ("link", "device", "pipe", "socket"):
        for name in (f"{NEWEST}/model.index", f"{NEWEST}/model.data-00000-of-00001", f"{POINT}/online.index"):
            yield f"{name}: {kind}", lambda run, name=name, kind=kind: NO_RECORD[kind](run / name)
    for name in ("snapshots", "resume", "control", "workers", "videos", "events", "wandb", NEWEST, POINT):
        yield f"{name}: link to a folder", lambda run, name=name: _link("/etc")(run / name)
    for name in ("workers/worker-0.new", "workers/worker-0.log", "workers/worker-0-000001.updates", "games.jsonl"):
        yield f"{name}: link", lambda run, name=name: _link("../../victim")(run / name)
    for name in ("videos/000005-bdaa08a1.mp4", "ratings.json", f"{NEWEST}/more", ".tmp-run.json-1@00000000"):
        yield f"{name}: link", lambda run, name=name: _link("/etc/passwd")(run / name)
    for where, value in WRONG_SETTINGS.items():
        yield (
            f"settings.{where}",
            lambda run, at=f"settings.{where}", value=value: _file(run / "run.json", _put(at, value)),
        )
    for where, value in WRONG_DESCRIPTION.items():
        yield f"run.json {where}", lambda run, at=where, value=value: _file(run / "run.json", _put(at, value))
    past = {"attempt": 0, "settings": {"target": {"policy": "evil:pick(2)"}}, "settings_sha256": "x"}
    yield "past settings", lambda run: _file(run / "run.json", _put("past_settings", [past, {"attempt": "x"}]))
    yield from _in_lines("ledger.jsonl", WRONG_EVENTS, events=True)
    for i, event in enumerate(WRONG_NEW_EVENTS):
        yield f"ledger.jsonl new event {i}", lambda run, event=event: _lines(run / "ledger.jsonl", _add(event))
    yield from _in_lines("evaluations.jsonl", WRONG_EVALUATIONS)
    yield from _in_lines("metrics.jsonl", WRONG_METRICS)
    yield from _in_file(f"{NEWEST}/manifest.json", WRONG_MANIFESTS)
    yield from _in_file(f"{POINT}/state.json", WRONG_POINTS)
    yield from _in_file(f"{REQUEST}.json", WRONG_REQUESTS)
    yield from _others()


def _in_lines(name: str, wrong: dict[str, list[Any]], *, events: bool = False) -> Iterator[tuple[str, Change]]:
    for where, values in wrong.items():
        for i, value in enumerate(values):
            change = _of_event(*where.split(".", 1), value) if events else _of_last(where, value)
            yield f"{name} {where!a} {i}", lambda run, change=change: _lines(run / name, change)


def _in_file(name: str, wrong: dict[str, list[Any]]) -> Iterator[tuple[str, Change]]:
    for where, values in wrong.items():
        for i, value in enumerate(values):
            put = _put(where, value)
            yield f"{name} {where} {i}", lambda run, put=put: _file(run / name, put)


def _others() -> Iterator[tuple[str, Change]]:
    def made(name: str, record: Any) -> Change:
        def change(run: Path) -> None:
            (run / name).parent.mkdir(exist_ok=True)
            (run / name).write_bytes(checked(record))

        return change

    worker = {"name": "worker-0", "pid": 1, "attempt": 1, "state": "training", "message": ESCAPE, "time": 0.0}
    yield "worker: escapes", made("workers/worker-0.json", {**worker, "state": ESCAPE})
    yield "worker: path", made("workers/worker-0.json", {**worker, "name": "../../victim"})
    yield "worker: type", made("workers/worker-0.json", {**worker, "time": "x", "returns": "x"})
    yield "worker: file", lambda run: _odd_file(run / "workers" / "worker-0-x.updates")
    yield "worker: unicode", lambda run: _odd_file(run / "workers" / "worker-٣-000001.updates")
    yield "holder: type", made("control/holder.json", {"pid": None, "host": 5, "purpose": ["train"]})
    yield "holder: escapes", made("control/holder.json", {"pid": 1, "host": ESCAPE, "purpose": ESCAPE, "since": "x"})
    yield "tracker: type", made("control/tracker-wandb.json", {"number": "x"})
    yield "games: type", made("games.jsonl", {"rules": 5, "keys": "x"})
    yield "ratings: type", made("ratings.json", {"players": 5})
    yield "requests: names", lambda run: _odd_file(run / "control" / f"request-{'9' * 200}-x.json")
    yield "point: name", lambda run: (run / POINT).rename(run / "resume" / "٣")
    yield "point: long name", lambda run: (run / POINT).rename(run / "resume" / ("9" * 200))
    yield "snapshot: name", lambda run: (run / NEWEST).rename(run / "snapshots" / "000005-bdaa08a1\x1b[2J")
    yield "file: name", lambda run: _odd_file(run / "\x1b[2J\nall is well")
    yield "point: more files", lambda run: _odd_file(run / POINT / "evil.pth")


def _odd_file(path: Path) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(b"odd")


def make(folder: Path, change: Change) -> Path:
    """A folder with a hostile run `run`, another one `victim`-to-be beside it, and a module that must not run."""
    (folder / "evil.py").write_text(EVIL)
    (folder / "victim").write_text("untouched")
    run = folder / "checkpoints" / "run"
    shutil.copytree(ORIGINAL, run, dirs_exist_ok=True)
    (folder / "checkpoints" / "victim").mkdir()
    (folder / "checkpoints" / "victim" / "model.index").write_text("untouched")
    shutil.copytree(ORIGINAL, folder / "checkpoints" / "good")
    change(run)
    return run


def outside(folder: Path) -> dict[str, tuple[int, int, str]]:
    """What is there besides the run: file, inode, length and content; whatever is new appears."""
    run = folder / "checkpoints" / "run"
    found = {}
    for path in folder.rglob("*"):
        if run not in (path, *path.parents) and path.is_file() and "__pycache__" not in path.parts:
            status = path.lstat()
            digest = hashlib.sha256(path.read_bytes()).hexdigest()
            found[str(path.relative_to(folder))] = status.st_ino, status.st_size, digest
    return found


RAW = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
#: Commands that need no TensorFlow; `{fork}` is a folder of the fork's own.
PLAIN_COMMANDS = (
    "status run",
    "runs",
    "runs --json",
    "log run --all",
    "log run --json",
    "show run latest",
    "show run 5 --json",
    "explain run --update 120",
    "verify run",
    "pin run 4",
    "unpin run 4",
    "swap run best --dry-run",
    "swap run 3",
    "swap run --undo",
    "point run",
    "prune run --dry-run --keep-last 1",
    "fork run --run-dir {fork}",
    "prune run --keep-last 1",
)
TENSORFLOW_COMMANDS = (
    "compare run good",
    "diff run 4 5",
    "evaluate run --episodes 1",
    "record run --seconds 1",
    "export run latest {fork}",
    "average run 4 5",
    "import run checkpoints/good/snapshots/000005-bdaa08a1/model",
    "reproduce run",
    "resume run --steps 1300",
    "tournament run",
)


#: What the page asks for of a run; the last of them of two.
ROUTES = (
    "/api/runs",
    *(f"/api/runs/{{}}/{what}" for what in ("about", "curves", "timeline", "episodes", "evaluations", "ledger")),
    "/api/runs/{}/timeline?role=opponent",
    "/api/runs/{}/ledger?kind=swap&text=the&abandoned=true",
    "/api/runs/{}/explain?update=120",
    "/api/runs/{}/snapshots/000005-bdaa08a1",
    "/api/runs/{}/snapshots/..%2f..%2fvictim",
    "/api/runs/{}/films/000005-bdaa08a1",
    "/api/differences?runs=0,1",
)


def complaints(folder: Path, before: dict[str, Any], after: dict[str, Any], output: str, code: int) -> Iterator[str]:
    """What is wrong with how a command ended; what was `outside` before and after it may have new files of its own."""
    if (folder / "RAN").exists():
        yield "code ran"
    yield from (f"changed {name}" for name in before if after.get(name) != before[name])
    if "Traceback" in output or "--debug shows" in output:
        yield f"failed: {output.strip().splitlines()[-1][:200]}"
    if found := RAW.search(output):
        yield f"printed {found[0]!r}"
    if code not in (0, 2, 3, 4):
        yield f"exit code {code}: {output[-200:]}"


def _main() -> None:
    from commands import Command

    sys.argv, wanted = sys.argv[:1], sys.argv[1:]
    chosen = (*PLAIN_COMMANDS, *TENSORFLOW_COMMANDS)
    if wanted[:1] == ["--commands"]:
        chosen = tuple(one for one in chosen if one.split()[0] in wanted[1].split(","))
        del wanted[:2]
    counts = {"variants": 0, "commands": 0, "complaints": 0}
    for name, change in variants():
        if wanted and name not in wanted:
            continue
        counts["variants"] += 1
        for words in chosen:
            counts["commands"] += 1
            with tempfile.TemporaryDirectory() as temporary:
                folder = Path(temporary)
                make(folder, change)
                before = outside(folder)
                command = Command(*words.format(fork=folder / "fork").split(), cwd=folder)
                try:
                    output = "".join(command.communicate(timeout=60))
                except TimeoutError:
                    command.kill()
                    print(f"{name} | {words}: not done after 60 s", flush=True)
                    counts["complaints"] += 1
                    continue
                code = command.wait()
                if words.startswith("reproduce") and code == 1:  # another result, which is what it is to find
                    code = 0
                for complaint in complaints(folder, before, outside(folder), output, code):
                    counts["complaints"] += 1
                    print(f"{name} | {words}: {complaint}", flush=True)
        print(counts, file=sys.stderr, flush=True)
    print(counts)


if __name__ == "__main__":
    _main()
