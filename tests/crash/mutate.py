"""Reads checkpoints with wrong bytes: a command must say so in one line, and neither abort nor hang.

    python tests/crash/mutate.py [--seeds 1000] [--first 0] [--json tests/crash/results/mutate.json]

Each seed makes one checkpoint from a good one: with wrong bytes, cut short, or with other fields whose checksums are
right. `import`, `evaluate`, `swap --dry-run` and `show` read it, the last three as a snapshot whose manifest has the
hashes of what is there. Many seeds share a process; its parent sees which of them ended it, and starts another.
"""

import contextlib
import io
import json
import os
import random
import select
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import click
from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).parents[1]))
from commands import twin_graph

from twin_graph.twin.checkpoints import _block, _handle, _pairs, _rows, masked_crc32c

COMMANDS = ("import", "evaluate", "swap", "show")
INDEX, DATA, META = "network.index", "network.data-00000-of-00001", "network.meta"
#: Values that a number of 64 bits can have, most of which mean nothing.
NUMBERS = [0, 1, 2, 7, 20, 21, 127, 255, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**40, 2**62, 2**63 - 1, 2**63, 2**64 - 1]
_HANG_SECONDS = 60.0

Files = dict[str, bytes]


class Mutant(NamedTuple):
    """A checkpoint's files, and in which way they are wrong."""

    kind: str
    files: Files


def good(folder: Path) -> list[Files]:
    """Two checkpoints, the same each time: of the network `[16]` for CartPole, and of that and of what it has not, a
    partitioned variable and some text."""
    import numpy as np

    from twin_graph.twin.tf import tf

    shapes = {"fc1/weights": (4, 16), "fc1/bias": (16,), "q/weights": (16, 2), "q/bias": (2,)}
    with tf.Graph().as_default(), tf.Session() as session:
        for name, shape in shapes.items():
            tf.get_variable(name, initializer=np.linspace(-1, 1, int(np.prod(shape)), dtype=np.float32).reshape(shape))
        zeros, parts = tf.zeros_initializer(), tf.fixed_size_partitioner(2)
        tf.get_variable("parts", [70, 2], initializer=zeros, partitioner=parts, use_resource=False)
        tf.get_variable("text", initializer=["a", "bcd" * 50], dtype=tf.string)
        session.run(tf.global_variables_initializer())
        plain = [variable for variable in tf.global_variables() if variable.op.name in shapes]
        for name, variables in (("plain", plain), ("more", tf.global_variables())):
            (folder / name).mkdir()
            tf.train.Saver(variables).save(session, str(folder / name / "network"), write_state=False)
    return read(folder)


def read(folder: Path) -> list[Files]:
    """What `good` has made."""
    return [{file: (folder / name / file).read_bytes() for file in (INDEX, DATA, META)} for name in ("plain", "more")]


def mutant(both: Sequence[Mapping[str, bytes]], seed: int) -> Mutant:
    """What a seed makes of one of two good checkpoints."""
    rng = random.Random(seed)
    files = both[seed % 2]
    kind = rng.choice([*_KINDS, *_REPAIRED * 2])
    return Mutant(kind.__name__.strip("_"), {**files, **kind(dict(files), rng)})


def _flipped_index(files: Files, rng: random.Random) -> Files:
    return {INDEX: _flipped(files[INDEX], rng)}


def _flipped_data(files: Files, rng: random.Random) -> Files:
    return {DATA: _flipped(files[DATA], rng)}


def _flipped_meta(files: Files, rng: random.Random) -> Files:
    return {META: _flipped(files[META], rng)}


def _cut(files: Files, rng: random.Random) -> Files:
    name = rng.choice([INDEX, DATA, META])
    return {name: files[name][: rng.randrange(len(files[name]))]}


def _flipped(content: bytes, rng: random.Random) -> bytes:
    changed = bytearray(content)
    for _ in range(rng.randint(1, 4)):
        changed[rng.randrange(len(changed))] ^= rng.randint(1, 255)
    return bytes(changed)


def _field(files: Files, rng: random.Random) -> Files:
    """A number in a row's protocol buffer is another."""
    return {INDEX: _with_row(files, rng, lambda value: _other_number(value, rng))}


def _value_byte(files: Files, rng: random.Random) -> Files:
    return {INDEX: _with_row(files, rng, lambda value: _flipped(value, rng) if value else b"\1")}


def _value_size(files: Files, rng: random.Random) -> Files:
    """A row's protocol buffer is cut short, or comes twice."""
    return {INDEX: _with_row(files, rng, lambda value: rng.choice([value * 2, value[: rng.randrange(len(value) + 1)]]))}


def _keys(files: Files, rng: random.Random) -> Files:
    rows = _rows(files[INDEX])
    at, other = rng.randrange(len(rows)), rng.randrange(len(rows))
    if rng.random() < 0.4:
        rows[at], rows[other] = (rows[at][0], rows[other][1]), (rows[other][0], rows[at][1])
    elif rng.random() < 0.5:
        del rows[at]
    else:
        rows[at] = (_flipped(rows[at][0] or b"\0", rng), rows[at][1])
        if rng.random() < 0.5:
            rows.sort()
    return {INDEX: table(rows)}


def _block_bytes(files: Files, rng: random.Random) -> Files:
    """Bytes of a block are others, and its checksum is theirs."""
    content = bytearray(files[INDEX])
    meta, at = _handle(bytes(content[-48:]), 0)
    index, _ = _handle(bytes(content[-48:]), at)
    data, _ = _handle(_pairs(_block(bytes(content), index))[0][1], 0)
    start, size = rng.choice([index, data, data, meta])
    content[start : start + size + 1] = _flipped(bytes(content[start : start + size + 1]), rng)
    stop = start + size + 1
    content[stop : stop + 4] = masked_crc32c(content[start:stop]).to_bytes(4, "little")
    return {INDEX: bytes(content)}


_KINDS = [_flipped_index, _flipped_data, _flipped_meta, _cut]
_REPAIRED = [_field, _value_byte, _value_size, _keys, _block_bytes]


def _with_row(files: Files, rng: random.Random, change: Callable[[bytes], bytes]) -> bytes:
    rows = _rows(files[INDEX])
    for _ in range(rng.choice([1, 1, 2])):
        at = rng.choice([0, *range(len(rows))])
        rows[at] = (rows[at][0], change(rows[at][1]))
    return table(rows)


def _other_number(message: bytes, rng: random.Random) -> bytes:
    """With another number for one of those whose bytes end here and there, whether it is one, a tag or a length."""
    if not message:
        return _varint(8) + _varint(rng.choice(NUMBERS))
    at = rng.randrange(len(message))
    return message[:at] + _varint(rng.choice(NUMBERS)) + message[at + rng.choice([1, 1, 1, 0, 2]) :]


def _varint(number: int) -> bytes:
    content = bytearray()
    while number > 127:
        content.append(number & 127 | 128)
        number >>= 7
    return bytes([*content, number])


def table(rows: list[tuple[bytes, bytes]]) -> bytes:
    """A table of one block with right checksums, whatever its rows are."""

    def block(pairs: list[tuple[bytes, bytes]]) -> bytes:
        content, restarts = b"", []
        for key, value in pairs:
            restarts.append(len(content))
            content += _varint(0) + _varint(len(key)) + _varint(len(value)) + key + value
        restarts = restarts or [0]
        content += b"".join(place.to_bytes(4, "little") for place in [*restarts, len(restarts)]) + b"\0"
        return content + masked_crc32c(content).to_bytes(4, "little")

    data, meta = block(rows), block([])
    at = [0, len(data) - 5]
    index = block([(b"\xff" * 8, _varint(at[0]) + _varint(at[1]))])
    handles = [len(data), len(meta) - 5, len(data) + len(meta), len(index) - 5]
    footer = b"".join(map(_varint, handles)).ljust(40, b"\0") + bytes.fromhex("57fb808b247547db")
    return data + meta + index + footer


def _prepare(folder: Path) -> None:
    """A run, and the good checkpoint as a snapshot of it."""
    settings = ["--set=train.start_steps=64", "--set=model.hidden_units=[16]", "--set=evaluate.episodes=0"]
    for arguments in (
        ["train", "cartpole", "--steps", "200", *settings, "--set=twin.compiled=false", "--run-dir", "run"],
        ["import", "run", "good/plain/network"],
    ):
        done = twin_graph(*arguments, cwd=folder)
        assert done.returncode == 0, done.stderr


# In the process that reads.


def _read_all(seeds: Iterator[int], folder: Path) -> None:
    """Runs the commands in this process, and says before each what it is, and after it how it ended."""
    from twin_graph_cli.main import main as command_line

    from twin_graph.snapshots.files import checked
    from twin_graph.snapshots.store import MANIFEST, FileRecord, Manifest

    told = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(os.open(folder / "stderr", os.O_WRONLY | os.O_CREAT | os.O_APPEND), 2)
    files = read(folder / "good")
    [snapshot] = (folder / "run" / "snapshots").glob("import-*")
    manifest = Manifest.read(snapshot)
    arguments = {
        "import": ["import", "run", "bad/network"],
        "evaluate": ["evaluate", "run", snapshot.name, "--episodes", "1"],
        "swap": ["swap", "run", snapshot.name, "--dry-run"],
        "show": ["show", "run", snapshot.name],
    }
    os.chdir(folder)
    for seed in seeds:
        made = mutant(files, seed)
        for name, content in made.files.items():
            (folder / "bad" / name).write_bytes(content)
            if name != META:
                (snapshot / name.replace("network", "model")).write_bytes(content)
        records = tuple(FileRecord.of(path) for path in sorted(snapshot.glob("model.*")))
        changed = manifest.model_copy(update={"files": records}).model_dump(mode="json")
        (snapshot / MANIFEST).write_bytes(checked(changed, indent=1))
        for command in COMMANDS:
            print(json.dumps([seed, made.kind, command]), file=told)
            sys.argv = ["twin-graph", *arguments[command]]
            out, err = io.StringIO(), io.StringIO()
            code: object = 0
            with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
                try:
                    command_line()
                except SystemExit as ended:
                    code = ended.code or 0
                except BaseException as error:
                    code = f"traceback: {error!r}"
            print(json.dumps([code, err.getvalue()[-2000:]]), file=told)


# In the process that watches.


class Watch:
    """Starts processes that read, and counts how their commands ended.

    Attributes:
      outcomes: by command and outcome: an exit code, `abort`, `hang` or `unclear` (no exit code that says what is
        wrong, or several lines).
      bad: seed, kind, command and what was said, of those that no command may end with.
    """

    def __init__(self, folder: Path, seeds: range) -> None:
        self._folder, self._left = folder, list(seeds)
        self.outcomes = Counter[tuple[str, str]]()
        self.kinds = Counter[str]()
        self.bad: list[tuple[int, str, str, str]] = []

    def run(self) -> None:
        while self._left:
            self._start()

    def _start(self) -> None:
        """One process, until it has read all that are left, or one of them has ended it."""
        command = [sys.executable, __file__, "--reads", str(self._folder)]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
            assert process.stdin
            assert process.stdout
            process.stdin.write(json.dumps(self._left).encode())
            process.stdin.close()
            doing = None
            while line := self._line(process):
                told = json.loads(line)
                if len(told) == 3:
                    doing = told
                    continue
                assert doing
                self._count(*doing, *told)
                self._left = self._left[self._left.index(doing[0]) + (doing[2] == COMMANDS[-1]) :]
                doing = None
            ended = process.poll() is not None or process.wait(10)
            if doing:
                self._tell(*doing, "abort" if ended else "hang", f"signal {-(process.returncode or 0)}")
                self._left = self._left[self._left.index(doing[0]) + 1 :]

    def _line(self, process: subprocess.Popen[bytes]) -> bytes:
        assert process.stdout
        if not select.select([process.stdout], [], [], _HANG_SECONDS)[0]:
            process.kill()
            return b""
        return process.stdout.readline()

    def _count(self, seed: int, kind: str, command: str, code: object, said: str) -> None:
        lines = [line for line in said.splitlines() if line.strip()]
        wrong = code not in (0, 2, 3) or "Traceback" in said or (code and len(lines) != 1) or "--debug" in said
        self._tell(seed, kind, command, f"unclear {code}"[:40] if wrong else str(code), said)

    def _tell(self, seed: int, kind: str, command: str, outcome: str, said: str) -> None:
        self.outcomes[command, outcome] += 1
        self.kinds[kind] += command == "import"
        if not outcome.isdecimal():
            self.bad.append((seed, kind, command, f"{outcome}: {said.strip()[-300:]}"))


@click.command()
@click.option("--seeds", default=1000, show_default=True, help="How many checkpoints.")
@click.option("--first", default=0, show_default=True, help="The first seed.")
@click.option("--json", "path", type=click.Path(path_type=Path), help="Write what was found here.")
@click.option("--reads", type=click.Path(path_type=Path), hidden=True)
def main(seeds: int, first: int, path: Path | None, reads: Path | None) -> None:
    """Reads so many mutated checkpoints; exits with 1 if one of them aborts, hangs or is not named."""
    if reads:
        _read_all(json.load(sys.stdin), reads)
        return
    console, began = Console(stderr=True), time.monotonic()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "good").mkdir()
        good(folder / "good")
        (folder / "bad").mkdir()
        _prepare(folder)
        watch = Watch(folder, range(first, first + seeds))
        watch.run()
    columns = sorted({outcome for _, outcome in watch.outcomes})
    shown = Table("command", *columns, title=f"seeds {first} to {first + seeds - 1}")
    for command in COMMANDS:
        shown.add_row(command, *(str(watch.outcomes[command, outcome]) for outcome in columns))
    console.print(shown)
    for bad in watch.bad:
        console.print(*bad)
    found = {
        "seeds": [first, first + seeds - 1],
        "kinds": dict(watch.kinds),
        "outcomes": {command: {o: watch.outcomes[command, o] for o in columns} for command in COMMANDS},
        "bad": watch.bad,
        "seconds": round(time.monotonic() - began),
    }
    if path:
        path.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    sys.exit(bool(watch.bad))


if __name__ == "__main__":
    main()
