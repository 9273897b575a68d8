"""Weights in and out: what other programs read of ours, and what we read of theirs."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from twin_graph.config import Settings
from twin_graph.errors import UsageError
from twin_graph.exchange import diff, export, import_checkpoint, spec_of
from twin_graph.snapshots.run import Run, locate
from twin_graph.twin import Twin

OBSERVATIONS = [[0.1, -0.2, 0.03, 0.4], [-0.5, 0.6, 0.07, -0.8]]


@pytest.fixture
def run(cartpole: Callable[..., Settings], train: Callable[[Settings], Run]) -> Run:
    return train(cartpole(train__steps=600, evaluate__episodes=0))


@pytest.fixture
def q_values(run: Run) -> list[list[float]]:
    """Of the newest snapshot, by a twin of ours."""
    with Twin("ours", spec_of(run), threads=1) as twin:
        twin.restore(run.store().prefix(run.store().newest.id))
        return twin.q_values(np.array(OBSERVATIONS, np.float32)).tolist()


def other_program(code: str, *arguments: object) -> list[list[float]]:
    """What a program without this package prints."""
    command = [sys.executable, "-I", "-c", f"import json, sys\nsys.modules['twin_graph'] = None\n{code}"]
    done = subprocess.run([*command, *map(str, arguments)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    printed: list[list[float]] = json.loads(done.stdout.splitlines()[-1])
    return printed


def test_classic_code_reads_an_export(run: Run, q_values: list[list[float]], tmp_path: Path) -> None:
    export(run, run.store().newest, "tf1", tmp_path / "network")
    code = """
import tensorflow.compat.v1 as tf
tf.disable_eager_execution()
sess = tf.Session()
saver = tf.train.import_meta_graph(sys.argv[1] + '.meta')
saver.restore(sess, sys.argv[1])
print(json.dumps(sess.run('q_tm1:0', {'s_tm1:0': json.loads(sys.argv[2])}).tolist()))
"""
    assert other_program(code, tmp_path / "network", json.dumps(OBSERVATIONS)) == q_values


def test_a_saved_model_serves_q_values(run: Run, q_values: list[list[float]], tmp_path: Path) -> None:
    export(run, run.store().newest, "savedmodel", tmp_path / "model")
    code = """
import tensorflow as tf
model = tf.saved_model.load(sys.argv[1])
serve = model.signatures['serving_default']
print(json.dumps(serve(observations=tf.constant(json.loads(sys.argv[2])))['q_values'].numpy().tolist()))
"""
    served = other_program(code, tmp_path / "model", json.dumps(OBSERVATIONS))
    np.testing.assert_allclose(served, q_values, rtol=1e-5)


def test_npz_holds_the_variables_by_name(run: Run, tmp_path: Path) -> None:
    [path] = export(run, run.store().newest, "npz", tmp_path / "weights")
    with np.load(path) as arrays, Twin("ours", spec_of(run), threads=1) as twin:
        twin.restore(run.store().prefix(run.store().newest.id))
        assert {name: arrays[name].tolist() for name in arrays} == {n: w.tolist() for n, w in twin.weights().items()}


@pytest.mark.parametrize(("form", "there"), [("tf1", "n.index"), ("npz", "n.npz"), ("savedmodel", "n")])
def test_an_export_overwrites_nothing(run: Run, tmp_path: Path, form: str, there: str) -> None:
    folder = tmp_path / "out"
    folder.mkdir()
    (folder / there).write_text("mine")
    with pytest.raises(UsageError, match=f"{there} exists already"):
        export(run, run.store().newest, form, folder / "n")  # type: ignore[arg-type]
    assert [(path.name, path.read_text()) for path in folder.iterdir()] == [(there, "mine")]


def test_what_is_exported_comes_back_bit_for_bit(run: Run, tmp_path: Path) -> None:
    newest = run.store().newest
    export(run, newest, "tf1", tmp_path / "network")
    imported = import_checkpoint(run, tmp_path / "network.index", {})
    assert imported.snapshot.weights_sha256 == newest.weights_sha256
    assert imported.snapshot.lineage == "import"
    assert run.resolve("latest") == newest
    assert run.store().manifest(imported.snapshot.id).origin == str(tmp_path / "network")
    assert import_checkpoint(run, tmp_path / "network", {}).snapshot.id == imported.snapshot.id
    assert len(run.store().imports) == 1


CLASSIC = """
import tensorflow.compat.v1 as tf
tf.disable_eager_execution()
shapes = json.loads(sys.argv[2])
variables = [tf.Variable(tf.random_normal(shape)) for shape in shapes]
steps = tf.Variable(7)
sess = tf.Session()
sess.run(tf.global_variables_initializer())
tf.train.Saver().save(sess, sys.argv[1])
print(json.dumps(sess.run(variables[0]).tolist()))
"""
SHAPES = [[16], [4, 16], [2], [16, 2]]  # of fc1/bias, fc1/weights, q/bias, q/weights


def test_classic_code_whose_variables_were_never_named_comes_in_by_a_map(run: Run, tmp_path: Path) -> None:
    first = other_program(CLASSIC, tmp_path / "old", json.dumps(SHAPES))
    with pytest.raises(
        UsageError, match=r"has no fc1/bias \[16\]; of that shape it has Variable: --map Variable=fc1/bias"
    ):
        import_checkpoint(run, tmp_path / "old", {})
    names = ["fc1/bias", "fc1/weights", "q/bias", "q/weights"]
    renamed = {"Variable" + (f"_{i}" if i else ""): name for i, name in enumerate(names)}
    with pytest.raises(UsageError, match=r"q/bias is float32\[16, 2\] in .* and float32\[2\] here"):
        import_checkpoint(run, tmp_path / "old", {**renamed, "Variable_2": "q/weights", "Variable_3": "q/bias"})
    with pytest.raises(UsageError, match=r"--map Variable_9: not in"):
        import_checkpoint(run, tmp_path / "old", {"Variable_9": "fc1/bias"})
    imported = import_checkpoint(run, tmp_path / "old", renamed)
    assert imported.ignored == ["Variable_4"]
    with Twin("ours", spec_of(run), threads=1) as twin:
        twin.restore(run.store().prefix(imported.snapshot.id))
        assert twin.weights()["fc1/bias"].tolist() == first


def test_what_is_no_checkpoint_is_refused(run: Run, tmp_path: Path) -> None:
    (tmp_path / "x.index").write_bytes(b"nonsense")
    for path in (tmp_path / "x", tmp_path / "nothing"):
        with pytest.raises(UsageError, match="is no checkpoint of TensorFlow's Saver"):
            import_checkpoint(run, path, {})


def test_differences_are_those_of_the_weights(run: Run) -> None:
    store = run.store()
    first, last = store.snapshots[0], store.newest
    weights = []
    with Twin("ours", spec_of(run), threads=1) as twin:
        for snapshot in (first, last):
            twin.restore(store.prefix(snapshot.id))
            weights.append(twin.weights())
    *rows, whole = diff((store, first), (store, last))
    for row in rows:
        change = weights[1][row.name] - weights[0][row.name]
        assert row.distance == pytest.approx(np.linalg.norm(change), rel=1e-5)
        assert row.largest == pytest.approx(np.abs(change).max(), rel=1e-5)
    assert whole.distance == pytest.approx(np.sqrt(sum(row.distance**2 for row in rows)))
    assert all(row.distance == row.relative == 0 for row in diff((store, last), (store, last)))


def test_a_reference_may_name_another_run(run: Run) -> None:
    owner, snapshot = locate(Run(run.folder), f"{run.folder}:latest~1")
    assert owner.folder == run.folder
    assert snapshot == run.store().snapshots[-2]
    assert locate(run, "@update:50")[1] == run.resolve("@update:50")
