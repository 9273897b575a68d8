"""Checkpoints that are not what a Saver writes, which TensorFlow would end the process for."""

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import mutate
import numpy as np
import pytest
from mutate import DATA, INDEX, table

from twin_graph import envs
from twin_graph.config.settings import Settings
from twin_graph.errors import DamagedError
from twin_graph.snapshots import control
from twin_graph.snapshots.files import checked
from twin_graph.snapshots.ledger import Commit
from twin_graph.snapshots.run import Run, create
from twin_graph.snapshots.store import MANIFEST, FileRecord
from twin_graph.training import trainer
from twin_graph.twin import checkpoints
from twin_graph.twin.tf import tf
from twin_graph.twin.weights import read_checkpoint

#: Seeds of tests/crash/mutate.py whose checkpoints aborted `import`, of each kind.
ABORTED = [5, 7, 10, 13, 16, 25, 26, 27, 30, 33, 34, 35, 38, 41, 44, 45, 47, 52, 53, 60, 61, 65, 92, 111, 118]
HEADER = b"\x08\x01\x1a\x02\x08\x01"

Make = Callable[..., Settings]


def saved(path: Path, build: Callable[[], object], **options: object) -> Path:
    with tf.Graph().as_default(), tf.Session() as session:
        build()
        session.run(tf.global_variables_initializer())
        tf.train.Saver(**options).save(session, str(path), write_meta_graph=False)
    return path


def test_what_savers_write_is_whole(tmp_path: Path) -> None:
    def build() -> None:
        for rows in (3, 64, 70, 9_000, 3_200_000):  # numbers in keys of parts have one byte to four
            parts = tf.fixed_size_partitioner(3)
            tf.get_variable(f"parts{rows}", [rows, 1], tf.int8, partitioner=parts, use_resource=False)
        tf.get_variable("text", initializer=["", "a" * 300])
        tf.get_variable("none", [0], tf.string, initializer=tf.zeros_initializer())
        tf.get_variable("empty", [0, 4])
        tf.get_variable("scalar", [])
        for name in ("int32", "int64", "float16", "float64", "bfloat16", "bool", "uint8", "complex64", "complex128"):
            tf.get_variable(name, initializer=tf.cast(tf.ones([3, 2]), name))

    prefix = saved(tmp_path / "all", build)
    checkpoints.check(prefix)
    assert read_checkpoint(prefix)["parts3200000"].shape == (3_200_000, 1)
    names = [f"{i:03d}{'x' * 950}" for i in range(300)]
    with tf.Graph().as_default(), tf.Session() as session:
        many = str(tmp_path / "many")
        session.run(
            tf.raw_ops.SaveV2(prefix=many, tensor_names=names, shape_and_slices=[""] * 300, tensors=[[1]] * 300)
        )
    checkpoints.check(tmp_path / "many")  # of two blocks
    assert len(read_checkpoint(tmp_path / "many")) == 300


def entry(*fields: tuple[int, int | bytes]) -> bytes:
    """A protocol buffer of these fields."""
    content = b""
    for number, value in fields:
        if isinstance(value, int):
            content += mutate._varint(number << 3) + mutate._varint(value % 2**64)
        else:
            content += mutate._varint(number << 3 | 2) + mutate._varint(len(value)) + value
    return content


def shape(*axes: int) -> bytes:
    return entry(*((2, entry((1, axis))) for axis in axes))


def floats(*axes: int, **other: int) -> bytes:
    fields = {"dtype": 1, "shard": 0, "offset": 0, "size": 4 * int(np.prod(axes)), **other}
    numbers = [(3, fields["shard"]), (4, fields["offset"]), (5, fields["size"])]
    return entry((1, fields["dtype"]), (2, shape(*axes)), *numbers)


@pytest.mark.parametrize(
    ("rows", "reason"),
    [
        ([(b"v", floats(2))], "it has no header"),
        ([(b"", b"\x08\x00"), (b"v", floats(2))], "number of files is impossible"),
        ([(b"", b"\x08\xff\xff\xff\xff\x0f"), (b"v", floats(2))], "number of files is impossible"),
        ([(b"", b"\x08\x02\x1a\x02\x08\x01"), (b"v", floats(2))], r"data-00000-of-00002 is missing$"),
        ([(b"", b"\x08\x01\x10\x01"), (b"v", floats(2))], "another order of bytes"),
        ([(b"", b"\x08\x01\x1a\x02\x10\x07"), (b"v", floats(2))], "another version"),
        ([(b"", HEADER), (b"v", floats(2)), (b"v", floats(2))], "keys are not in order"),
        ([(b"", HEADER), (b"w", floats(2)), (b"v", floats(2))], "keys are not in order"),
        ([(b"", HEADER), (b"v" * 2_000, floats(2))], "outside of its block"),
        ([(b"", HEADER), (b"v", floats(2, dtype=99))], "v is of a type that is no number and no text"),
        ([(b"", HEADER), (b"v", floats(2, dtype=20))], "v is of a type that is no number and no text"),
        ([(b"", HEADER), (b"v", floats(-2, size=8))], "impossible shape"),
        ([(b"", HEADER), (b"v", entry((2, shape(*[2**31] * 3))))], "impossible shape"),
        ([(b"", HEADER), (b"v", entry((1, 1), (2, shape(*[1] * 300)), (5, 4)))], "impossible shape"),
        ([(b"", HEADER), (b"v", entry((1, 1), (2, entry((3, 1)))))], "unknown number of axes"),
        ([(b"", HEADER), (b"v", floats(2, shard=1))], "in a file that does not exist"),
        ([(b"", HEADER), (b"v", floats(2, offset=-1))], "before its file's beginning"),
        ([(b"", HEADER), (b"v", floats(2, offset=993))], r"data-00000-of-00001 is damaged: it ends before v does"),
        ([(b"", HEADER), (b"v", floats(2, size=7))], "v has 7 bytes, which its shape has not"),
        ([(b"", HEADER), (b"v", floats(2)), (b"w", floats(2, offset=4))], "two variables are in the same place"),
        ([(b"", HEADER), (b"v", floats(2**40, dtype=7, size=900))], "texts of other lengths"),
        ([(b"", HEADER), (b"v", floats(2)[:-1])], "v: a number is cut short"),
        ([(b"", HEADER), (b"v", floats(2) + b"\x4b")], r"a field that TensorFlow does not write \(9\)"),
        ([(b"", HEADER), (b"v", floats(2) + floats(2))], "fields are not in order"),
        ([(b"", HEADER), (b"\xff", floats(2))], "is damaged: "),
        ([(b"", HEADER), (b"v", entry((1, 1), (2, shape(4)), (7, entry((1, entry((2, 9)))))))], "is outside of it"),
        ([(b"", HEADER), (b"v", entry((1, 1), (2, shape(4)), (7, entry((1, entry((2, 2)))))))], "part of v is missing"),
        ([(b"", HEADER), (b"v", entry((1, 1), (2, shape(4)), (7, entry((1, b"")))))], "other axes"),
    ],
)
def test_what_tensorflow_would_abort_for_is_named(
    tmp_path: Path, rows: Sequence[tuple[bytes, bytes]], reason: str
) -> None:
    (tmp_path / INDEX).write_bytes(table(list(rows)))
    (tmp_path / DATA).write_bytes(bytes(1_000))
    with pytest.raises(DamagedError, match=reason) as error:
        read_checkpoint(tmp_path / "network")
    assert str(error.value).startswith(f"{tmp_path}/network.")
    assert "\n" not in str(error.value)


def test_files_that_are_none_are_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / INDEX)
    with pytest.raises(DamagedError, match=r"network\.index is damaged: it is no file"):
        checkpoints.check(tmp_path / "network")
    with (tmp_path / "large.index").open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(DamagedError, match=r"large\.index is damaged: it has 1,099,511,627,776 bytes"):
        checkpoints.check(tmp_path / "large")


def test_a_checkpoint_of_the_first_format_is_read_by_a_process_of_its_own(tmp_path: Path) -> None:
    path = saved(tmp_path / "v1", lambda: tf.get_variable("a/v", [3]), write_version=tf.train.SaverDef.V1)
    found = read_checkpoint(path)
    assert {name: (value.shape, value.dtype) for name, value in found.items()} == {"a/v": ((3,), np.float32)}
    whole = path.read_bytes()
    path.write_bytes(whole[:20] + bytes(64) + whole[84:])
    with pytest.raises(DamagedError, match=r"v1 cannot be read, though it ends as a checkpoint of TensorFlow's first"):
        read_checkpoint(path)


READS = """
import json, sys
from pathlib import Path
import mutate
from twin_graph.errors import DamagedError
from twin_graph.twin.weights import read_checkpoint
folder = Path(sys.argv[1])
files = mutate.good(folder)
found = {}
for seed in json.loads(sys.argv[2]):
    for name, content in mutate.mutant(files, seed).files.items():
        (folder / name).write_bytes(content)
    try:
        read_checkpoint(folder / "network")
    except DamagedError as error:
        found[seed] = str(error)
print(json.dumps(found))
"""


def test_checkpoints_that_once_ended_the_process_are_damaged(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", READS, tmp_path, json.dumps(ABORTED)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout)
    assert list(map(int, found)) == ABORTED
    assert not any("\n" in message for message in found.values())


def replaced(run: Run, snapshot: Commit) -> None:
    """Gives a snapshot an index that TensorFlow would abort for, and a manifest that says that this is right."""
    folder = run.folder / "snapshots" / snapshot.id
    (folder / "model.index").write_bytes(table([(b"", HEADER), (b"v", entry((2, shape(*[2**31] * 3))))]))
    files = tuple(FileRecord.of(path) for path in sorted(folder.glob("model.*")))
    manifest = run.store().manifest(snapshot.id).model_copy(update={"files": files})
    (folder / MANIFEST).write_bytes(checked(manifest.model_dump(mode="json"), indent=1))


@pytest.mark.parametrize("into", ["target", "online"])
def test_a_swap_of_what_cannot_be_restored_is_refused_and_training_goes_on(
    cartpole: Make, trained: Callable[[Settings], Run], tmp_path: Path, into: control.Into
) -> None:
    settings = cartpole()
    untouched = trained(settings)
    run, asked = create(tmp_path / "run", settings), None
    with contextlib.closing(envs.make(settings.env, count=settings.env.count)) as env:
        for progress in trainer.train(run, env):
            if asked is None and progress.updates >= 100:
                replaced(run, run.store().snapshots[0])
                asked = control.ask(run.control, "swap", run.store().snapshots[0].id, into)
    assert run.state() == "finished"
    assert asked
    answer = control.read(run.control, asked.id).answer
    assert answer
    assert not answer.done
    assert "model.index is damaged: v: a variable has an impossible shape" in answer.message
    assert run.store().newest.id == untouched.store().newest.id
