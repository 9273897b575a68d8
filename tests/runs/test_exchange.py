"""Weights in and out: what other programs read of ours, and what we read of theirs."""

import contextlib
import itertools
import json
import os
import pickle
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, get_args

import click
import numpy as np
import onnxruntime
import pytest
from commands import python, twin_graph
from twin_graph_cli.exchange import export as command

from twin_graph import envs, training
from twin_graph.config.loading import load
from twin_graph.config.settings import Settings
from twin_graph.envs.legal import ILLEGAL
from twin_graph.errors import DamagedError, UsageError
from twin_graph.evaluation.player import Player, spec_of
from twin_graph.exchange.export import FORMATS, Format, export
from twin_graph.exchange.importing import Imported, import_checkpoint
from twin_graph.exchange.row_order import flattened
from twin_graph.records.report import restored
from twin_graph.snapshots.resumable import newest_point
from twin_graph.snapshots.run import Run, create, locate
from twin_graph.twin.model import ModelSpec
from twin_graph.twin.tf import tf
from twin_graph.twin.twin import Compute, Twin
from twin_graph.twin.weights import diff, read_checkpoint

HOWTO = Path(__file__).parents[2] / "docs" / "coming-from-two-graphs.md"
OBSERVATIONS = [[0.1, -0.2, 0.03, 0.4], [-0.5, 0.6, 0.07, -0.8]]


@pytest.fixture
def run(cartpole: Callable[..., Settings], trained: Callable[[Settings], Run]) -> Run:
    return trained(cartpole(train__steps=600, evaluate__episodes=0))


@pytest.fixture
def q_values(run: Run) -> list[list[float]]:
    """Of the newest snapshot, by a twin of ours."""
    with Twin("ours", spec_of(run), compute=Compute(threads=1)) as twin:
        twin.restore(run.store().prefix(run.store().newest.id))
        return twin.q_values(np.array(OBSERVATIONS, np.float32)).tolist()


def other_program(code: str, *arguments: object, interpreter: str = "") -> list[list[float]]:
    """What a program without this package prints; in a fork that has TensorFlow, if not by another interpreter."""
    command = [interpreter or python(), "-c", f"import json, sys\nsys.modules['twin_graph'] = None\n{code}"]
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
    arguments = tmp_path / "network", json.dumps(OBSERVATIONS)
    assert other_program(code, *arguments, interpreter=sys.executable) == q_values


TRAINED_ON = """
import numpy as np
import tensorflow.compat.v1 as tf
tf.disable_eager_execution()
sess = tf.Session()
saver = tf.train.import_meta_graph(sys.argv[1] + '.meta')
random = np.random.default_rng(0)
shape = sess.graph.get_tensor_by_name('s_tm1:0').shape.as_list()[1:]
actions = sess.graph.get_tensor_by_name('q_tm1:0').shape.as_list()[1]
observations = random.integers(0, 255, (8, *shape)) if len(shape) == 3 else random.normal(size=(8, *shape))
fed = {'s_tm1:0': observations, 's_t:0': observations, 'a_tm1:0': [0, 1] * 4,
       'r_t:0': [1.0] * 8, 'discount_t:0': [0.0] * 8, 'q_target_t:0': np.zeros((8, actions))}
loss = sess.graph.get_tensor_by_name('loss:0')
own = tf.train.AdamOptimizer(1e-4).minimize(loss, var_list=tf.trainable_variables())
sess.run(tf.global_variables_initializer())
losses = []
for train_op in (own, 'train_op'):
    saver.restore(sess, sys.argv[1])
    before = sess.run(loss, fed)
    for _ in range(10):
        sess.run(train_op, fed)
    losses.append([float(before), float(sess.run(loss, fed))])
print(json.dumps(losses))
"""
NETWORKS = {
    "mlp": {},
    "nature": {"network": "nature", "model__dueling": True, "train__double": True, "train__accumulate": 2},
}


@pytest.mark.parametrize("network", NETWORKS)
def test_classic_code_trains_on_from_an_export(
    pong: Callable[..., Settings], cartpole: Callable[..., Settings], tmp_path: Path, network: str
) -> None:
    """With an optimizer of its own and with ours, where this package cannot be imported."""
    settings = (pong if network == "nature" else cartpole)(**NETWORKS[network])
    run = create(tmp_path / "run", settings)
    with contextlib.closing(envs.make(settings.env, count=settings.env.count)) as env:
        next(training.train(run, env))
    export(run, run.store().newest, "tf1", tmp_path / "network")
    assert b"_gradient_op_type" not in (tmp_path / "network.meta").read_bytes()
    (own_before, own_after), (before, after) = other_program(TRAINED_ON, tmp_path / "network")
    assert own_before == before
    assert own_after < own_before
    assert after < before


def test_a_saved_model_serves_q_values(run: Run, q_values: list[list[float]], tmp_path: Path) -> None:
    export(run, run.store().newest, "savedmodel", tmp_path / "model")
    code = """
import tensorflow as tf
model = tf.saved_model.load(sys.argv[1])
serve = model.signatures['serving_default']
print(json.dumps(serve(observations=tf.constant(json.loads(sys.argv[2])))['q_values'].numpy().tolist()))
"""
    arguments = tmp_path / "model", json.dumps(OBSERVATIONS)
    served = other_program(code, *arguments, interpreter=sys.executable)  # which executes eagerly
    np.testing.assert_allclose(served, q_values, rtol=1e-5)


def by_onnxruntime(path: Path, observations: np.ndarray) -> np.ndarray:
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    q: np.ndarray = session.run(["q_values"], {"observations": observations})[0]
    return q


def by_tflite(path: Path, observations: np.ndarray) -> np.ndarray:
    interpreter = tf.lite.Interpreter(str(path))
    [given], [returned] = interpreter.get_input_details(), interpreter.get_output_details()
    assert (given["name"], returned["name"]) == ("observations", "q_values")
    interpreter.resize_tensor_input(given["index"], observations.shape)
    interpreter.allocate_tensors()
    interpreter.set_tensor(given["index"], observations)
    interpreter.invoke()
    q: np.ndarray = interpreter.get_tensor(returned["index"])
    return q


def by_tflite_signature(path: Path, observations: np.ndarray) -> np.ndarray:
    interpreter = tf.lite.Interpreter(str(path))
    assert interpreter.get_signature_list() == {
        "serving_default": {"inputs": ["observations"], "outputs": ["q_values"]}
    }
    q: np.ndarray = interpreter.get_signature_runner()(observations=observations)["q_values"]
    return q


@pytest.mark.filterwarnings("ignore:.*tf.lite.Interpreter is deprecated")
@pytest.mark.parametrize(
    ("preset", "model"),
    [
        *itertools.product(["cartpole", "pong", "tictactoe"], [{}, {"model__dueling": True}]),
        ("cartpole", {"model__noisy": True, "model__head": "categorical"}),
        ("tictactoe", {"model__noisy": True, "model__head": "quantile", "model__layer_norm": True}),
        ("cartpole", {"model__head": "implicit"}),
        ("tictactoe", {"model__head": "implicit", "model__dueling": True, "model__noisy": True}),
    ],
    ids=str,
)
def test_onnx_and_tflite_give_the_same_q_values(
    request: pytest.FixtureRequest, tmp_path: Path, preset: str, model: dict[str, Any]
) -> None:
    """Of vectors, of images of bytes, and where some actions are illegal; of one observation and of 1,000."""
    run = create(tmp_path / "run", request.getfixturevalue(preset)(**model))
    with contextlib.closing(envs.make(run.settings.env, count=run.settings.env.count)) as env:
        next(training.train(run, env))
    newest, env_spec, random = run.store().newest, spec_of(run).env, np.random.default_rng(0)
    size = (1_000, *env_spec.observation_shape)
    numbers = random.integers(0, 256, size) if preset == "pong" else random.normal(size=size)
    observations = numbers.astype(env_spec.observation_dtype)
    if env_spec.masked:
        observations[:, -env_spec.n_actions :] = random.integers(0, 2, (1_000, env_spec.n_actions))
    with Twin("ours", spec_of(run), compute=Compute(threads=1)) as twin:
        twin.restore_snapshot(newest, run.store())
        wanted = np.concatenate([twin.q_values(part) for part in np.split(observations, 10)])
    assert (wanted == ILLEGAL).any() == env_spec.masked
    for form, q_values in (("onnx", by_onnxruntime), ("tflite", by_tflite), ("tflite", by_tflite_signature)):
        [path] = export(run, newest, form, tmp_path / q_values.__name__)  # type: ignore[arg-type]
        for count in (1, 1_000):
            # Relative: the mean of several -1e9 is about that.
            np.testing.assert_allclose(q_values(path, observations[:count]), wanted[:count], rtol=1e-6, atol=1e-5)


def test_without_its_extra_onnx_says_what_to_install(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tf2onnx", None)
    with pytest.raises(UsageError, match=r"^--format onnx needs tf2onnx: pip install 'twin-graph\[onnx\]'$"):
        export(run, run.store().newest, "onnx", tmp_path / "network")
    assert not list(tmp_path.glob("*network*"))


def test_the_command_offers_every_format() -> None:
    [choice] = [p.type for p in command.params if isinstance(p.type, click.Choice)]
    assert list(choice.choices) == list(FORMATS) == list(get_args(Format))


def test_npz_holds_the_variables_by_name(run: Run, tmp_path: Path) -> None:
    [path] = export(run, run.store().newest, "npz", tmp_path / "weights")
    with np.load(path) as arrays, Twin("ours", spec_of(run), compute=Compute(threads=1)) as twin:
        twin.restore(run.store().prefix(run.store().newest.id))
        assert {name: arrays[name].tolist() for name in arrays} == {n: w.tolist() for n, w in twin.weights().items()}


def test_the_ending_says_the_format_and_may_not_contradict_it(run: Run, tmp_path: Path) -> None:
    folder = str(run.folder)
    assert twin_graph("export", folder, "latest", "q.npz", cwd=tmp_path).stdout == "q.npz\n"
    done = twin_graph("export", folder, "latest", "q", "--format", "npz", cwd=tmp_path)
    assert done.stderr == "Error: q.npz exists already; choose another path\n"
    refused = twin_graph("export", folder, "latest", "p.npz", "--format", "tf1", cwd=tmp_path)
    assert refused.stderr == "Error: p.npz ends in .npz, but --format says tf1: change one of them\n"
    for name, form in (("p.pb", "savedmodel"), ("p.h5", "weights.h5")):
        meant = twin_graph("export", folder, "latest", name, cwd=tmp_path)
        told = f"{name} would be a checkpoint of TensorFlow 1 of this name: give --format {form}, or tf1"
        assert meant.stderr == f"Error: {told}\n"
    assert [path.name for path in tmp_path.glob("[pq].*")] == ["q.npz"]


@pytest.mark.parametrize(
    ("form", "there"),
    [("tf1", "n.index"), ("savedmodel", "n"), ("onnx", "n.onnx"), ("tflite", "n.tflite"), ("npz", "n.npz")],
)
def test_an_export_overwrites_nothing(run: Run, tmp_path: Path, form: str, there: str) -> None:
    folder = tmp_path / "out"
    folder.mkdir()
    (folder / there).write_text("mine")
    with pytest.raises(UsageError, match=f"{there} exists already"):
        export(run, run.store().newest, form, folder / "n")  # type: ignore[arg-type]
    assert [(path.name, path.read_text()) for path in folder.iterdir()] == [(there, "mine")]


@pytest.mark.parametrize(("form", "there"), [("savedmodel", "n/mine"), ("npz", "n.npz")])
def test_an_export_overwrites_nothing_that_was_not_there_when_it_began(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: Format, there: str
) -> None:
    ends, write = FORMATS[form]
    folder = tmp_path / "out"
    folder.mkdir()

    def meanwhile(twin: Twin, path: Path) -> None:
        write(twin, path)
        (folder / there).parent.mkdir(exist_ok=True)
        (folder / there).write_text("mine")

    monkeypatch.setitem(FORMATS, form, (ends, meanwhile))
    with pytest.raises(UsageError, match=r"n(\.npz)? exists already; choose another path"):
        export(run, run.store().newest, form, folder / "n")
    assert [(path, path.read_text()) for path in folder.rglob("*") if path.is_file()] == [(folder / there, "mine")]


def test_an_export_says_where_it_is_and_needs_a_name(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "[x]"
    done = twin_graph("export", str(run.folder), "latest", str(path), "--format", "npz", cwd=tmp_path)
    assert done.stdout == f"{path}.npz\n"
    with pytest.raises(UsageError, match="is a folder: give a path in it, such as network"):
        export(run, run.store().newest, "npz", Path())
    with pytest.raises(UsageError, match="is a folder: give a path in it, such as"):
        export(run, run.store().newest, "tf1", Path(".."))
    with pytest.raises(UsageError, match=r"TensorFlow would take \[ \] in .* for a pattern; choose another path"):
        export(run, run.store().newest, "tf1", path)
    with pytest.raises(UsageError, match=r"TensorFlow would take \* in .* for a pattern"):
        export(run, run.store().newest, "savedmodel", tmp_path / "a*b")


def test_what_is_exported_comes_back_bit_for_bit(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match=r"there is no TensorFlow Saver checkpoint \.: give what"):
        import_checkpoint(run, Path(), {})
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
    names = ["fc1/bias", "fc1/weights", "q/bias", "q/weights"]
    renamed = {"Variable" + (f"_{i}" if i else ""): name for i, name in enumerate(names)}
    with pytest.raises(UsageError) as refused:
        import_checkpoint(run, tmp_path / "old", {})
    hint, proposed = str(refused.value).split(". All 4 that are missing, by shape and order, to be checked: ")
    assert hint.endswith("has no fc1/bias [16]; of that shape it has Variable: --map Variable=fc1/bias")
    assert proposed == " ".join(f"--map {old}={new}" for old, new in renamed.items())
    with pytest.raises(UsageError, match=r"q/bias is float32\[16, 2\] in .* and float32\[2\] here"):
        import_checkpoint(run, tmp_path / "old", {**renamed, "Variable_2": "q/weights", "Variable_3": "q/bias"})
    with pytest.raises(UsageError, match=r"--map Variable_9: not in"):
        import_checkpoint(run, tmp_path / "old", {"Variable_9": "fc1/bias"})
    imported = import_checkpoint(run, tmp_path / "old", renamed)
    assert imported.ignored == ["Variable_4"]
    with Twin("ours", spec_of(run), compute=Compute(threads=1)) as twin:
        twin.restore(run.store().prefix(imported.snapshot.id))
        assert twin.weights()["fc1/bias"].tolist() == first


def classic_checkpoint(path: Path, build: Callable[[], object]) -> Path:
    """What classic code saves: all variables that `build` makes, in a graph of their own."""
    with tf.Graph().as_default(), tf.Session() as session:
        build()
        session.run(tf.global_variables_initializer())
        tf.train.Saver().save(session, str(path))
    return path


NAMES = ["fc1/bias", "fc1/weights", "q/bias", "q/weights"]


@pytest.fixture
def both(tmp_path: Path) -> Path:
    """A checkpoint of an online network, full of ones, and of a target network, full of twos."""

    def build() -> None:
        for prefix, value in (("", 1.0), ("target/", 2.0)):
            for name, shape in zip(NAMES, SHAPES, strict=True):
                tf.Variable(tf.fill(shape, value), name=prefix + name)

    return classic_checkpoint(tmp_path / "both", build)


def test_a_mapping_wins_over_a_variable_that_has_the_name_already(run: Run, both: Path) -> None:
    """TensorFlow's unordered iteration decided which of the two networks came in, variable by variable."""
    imported = import_checkpoint(run, both, {f"target/{name}": name for name in NAMES})
    assert imported.ignored == NAMES
    with Twin("ours", spec_of(run), compute=Compute(threads=1)) as twin:
        twin.restore(run.store().prefix(imported.snapshot.id))
        assert {np.unique(value).tolist()[0] for value in twin.weights().values()} == {2.0}
    assert import_checkpoint(run, both, {}).ignored == [f"target/{name}" for name in NAMES]


@pytest.mark.parametrize(
    ("renamed", "message"),
    [
        (
            {"target/fc1/bias": "q/bias", "target/q/bias": "q/bias"},
            r"target/fc1/bias and target/q/bias are both mapped to q/bias; keep one",
        ),
        (
            {"fc1/bias": "fc1/biases"},
            r"--map fc1/bias=fc1/biases: this network has no fc1/biases; did you mean 'fc1/bias'",
        ),
    ],
)
def test_maps_that_contradict_each_other_or_the_network_are_refused(
    run: Run, both: Path, renamed: dict[str, str], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        import_checkpoint(run, both, renamed)
    assert run.store().imports == []


def test_what_is_proposed_leaves_out_what_fits_and_counts_as_people_do(
    train: Callable[[Settings], Run], cartpole: Callable[..., Settings], tmp_path: Path
) -> None:
    """Otherwise fc1's bias would come into another layer, and layer_10's before layer_2's."""
    run = train(cartpole(model__hidden_units=[16] * 3, train__steps=400, evaluate__episodes=0))

    def build() -> None:
        tf.Variable(tf.zeros([4, 16]), name="fc1/weights")
        for name in ("fc1", "layer_2", "layer_10"):
            tf.Variable(tf.zeros([16]), name=f"{name}/bias")
        for name in ("fc2", "fc3"):
            tf.Variable(tf.zeros([16, 16]), name=f"{name}/weights")
        tf.Variable(tf.zeros([16, 2]), name="q/weights")
        tf.Variable(tf.zeros([2]), name="q/bias")

    with pytest.raises(UsageError) as refused:
        import_checkpoint(run, classic_checkpoint(tmp_path / "old", build), {})
    _, proposed = str(refused.value).split(", to be checked: ")
    assert proposed == "--map layer_2/bias=fc2/bias --map layer_10/bias=fc3/bias"


def test_the_hint_proposes_no_moment_of_an_optimizer_and_counts_as_people_do(run: Run, tmp_path: Path) -> None:

    def build() -> None:
        variables = [tf.Variable(tf.zeros(shape)) for shape in [[3]] * 2 + [[16]] * 10]
        tf.train.AdamOptimizer().minimize(tf.add_n([tf.reduce_sum(v) for v in variables]))

    old = classic_checkpoint(tmp_path / "old", build)
    with pytest.raises(UsageError) as refused:
        import_checkpoint(run, old, {"Variable_2": "q/bias"})
    names = ", ".join(f"Variable_{i}" for i in range(3, 11))
    assert str(refused.value).endswith(f"; of that shape it has {names}, ...: --map Variable_3=fc1/bias")


def unnamed() -> list[Any]:
    """The variables of classic code for the network of `run`, in the order of `NAMES`."""
    return [tf.Variable(tf.zeros(shape)) for shape in SHAPES]


def by(optimizer: Callable[[], Any]) -> Callable[[], object]:
    """Unnamed variables, and what this optimizer keeps of each, made in a scope."""

    def build() -> None:
        loss = tf.add_n([tf.reduce_sum(variable) for variable in unnamed()])
        with tf.variable_scope("Learn"):
            optimizer().minimize(loss)

    return build


def beside(*names: str, weights: Callable[[], object] = unnamed) -> Callable[[], object]:
    """Unnamed variables, and others of these names, each fourth of which has the shape of the same one."""
    return lambda: [weights(), *(tf.get_variable(name, SHAPES[i % 4]) for i, name in enumerate(names))]


def with_iterations() -> object:
    return [unnamed(), tf.get_variable("Learns/_iterations/.ATTRIBUTES/VARIABLE_VALUE", [], tf.int64)]


KERAS_3 = [f"Learns/_variables/{i}/.ATTRIBUTES/VARIABLE_VALUE" for i in range(2, 10)]
#: What else is saved with four unnamed variables, and a name of it.
MOMENTS = {
    "adam": (by(tf.train.AdamOptimizer), "Learn/Variable_3/Adam_1"),
    "rmsprop": (by(lambda: tf.train.RMSPropOptimizer(0.1, momentum=0.9)), "Learn/Variable/RMSProp_1"),
    "momentum": (by(lambda: tf.train.MomentumOptimizer(0.1, 0.9)), "Learn/Variable_2/Momentum"),
    "another name": (by(lambda: tf.train.AdamOptimizer(name="mine")), "Learn/Variable_1/mine"),
    "old keras": (beside(*(f"A/Adam/Variable_{i}" for i in range(8))), "A/Adam/Variable_4"),
    "keras 2": (beside(*(f"Adam/v/Variable_{i}" for i in range(4))), "Adam/v/Variable_3"),
    "keras 3": (beside(*KERAS_3, weights=with_iterations), KERAS_3[0]),
}


@pytest.mark.parametrize(("build", "moment"), MOMENTS.values(), ids=MOMENTS)
def test_moments_of_an_optimizer_are_neither_proposed_nor_taken(
    run: Run, tmp_path: Path, build: Callable[[], object], moment: str
) -> None:
    """Names of moments made in a scope come first by their order, and have the shapes of weights."""
    old = classic_checkpoint(tmp_path / "old", build)
    right = dict(zip(["Variable", "Variable_1", "Variable_2", "Variable_3"], NAMES, strict=True))
    with pytest.raises(UsageError) as refused:
        import_checkpoint(run, old, {})
    _, proposed = str(refused.value).split(". All 4 that are missing, by shape and order, to be checked: ")
    assert proposed == " ".join(f"--map {old}={new}" for old, new in right.items())
    name = NAMES[[tuple(shape) for shape in SHAPES].index(read_checkpoint(old)[moment].shape)]
    wrong = {old: new for old, new in right.items() if new != name} | {moment: name}
    with pytest.raises(UsageError, match=rf"^--map {moment}={name}: {moment} is no weights, but what an optimizer"):
        import_checkpoint(run, old, wrong)
    assert len(import_checkpoint(run, old, right).ignored) == len(read_checkpoint(old)) - 4


def test_slots_of_an_object_based_checkpoint_are_known(run: Run, tmp_path: Path) -> None:
    with tf.Graph().as_default(), tf.Session() as session:
        module = tf.Module()
        module.v = [tf.Variable(tf.zeros(shape), use_resource=True) for shape in SHAPES]
        optimizer = tf.train.AdamOptimizer()
        optimizer.minimize(tf.add_n([tf.reduce_sum(variable) for variable in module.v]))
        checkpoint = tf.train.Checkpoint(net=module, a=optimizer)
        session.run([tf.global_variables_initializer(), checkpoint.save_counter.initializer])
        old = Path(checkpoint.save(str(tmp_path / "old"), session=session))
    right = {f"net/v/{i}/.ATTRIBUTES/VARIABLE_VALUE": name for i, name in enumerate(NAMES)}
    with pytest.raises(UsageError) as refused:
        import_checkpoint(run, old, {})
    assert str(refused.value).endswith(": " + " ".join(f"--map {old}={new}" for old, new in right.items()))
    slot = "net/v/0/.OPTIMIZER_SLOT/a/m/.ATTRIBUTES/VARIABLE_VALUE"
    with pytest.raises(UsageError, match=r"\.OPTIMIZER_SLOT/a/m/\S+ is no weights, but what an optimizer"):
        import_checkpoint(run, old, {slot: NAMES[0]})
    import_checkpoint(run, old, right)


def test_a_checkpoint_as_tf_agents_writes_them_comes_in_as_the_documentation_says(run: Run, tmp_path: Path) -> None:
    """Objects within objects: an agent with two networks of layers as Keras 2 names them, a step counter."""
    script = """
import sys
import numpy as np
import tensorflow as tf

def dense(inputs, units, scale):
    layer = tf.Module()
    layer.kernel = tf.Variable(scale * tf.random.stateless_normal([inputs, units], [inputs, units]))
    layer.bias = tf.Variable(tf.random.stateless_normal([units], [units, 0]))
    return layer

def network(scale):
    made = tf.Module()
    made._sequential_layers = [dense(4, 16, scale), dense(16, 2, scale)]
    return made

agent = tf.Module()
agent._q_network, agent._target_q_network = network(1.0), network(2.0)
step = tf.Variable(7, dtype=tf.int64)
tf.train.Checkpoint(agent=agent, global_step=step).save(sys.argv[1] + "/ckpt")
s = np.random.default_rng(0).normal(size=(5, 4)).astype(np.float32)
first, last = agent._q_network._sequential_layers
np.save(sys.argv[1] + "/q.npy", tf.nn.relu(s @ first.kernel + first.bias) @ last.kernel + last.bias)
"""
    done = subprocess.run([sys.executable, "-c", script, str(tmp_path)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    page = (Path(__file__).parents[2] / "docs" / "coming-from-tf-agents.md").read_text()
    renamed = dict(re.findall(r"--map (\S+)=(\S+)", page))
    assert len(renamed) == 4
    imported = import_checkpoint(run, tmp_path, renamed)
    assert "global_step/.ATTRIBUTES/VARIABLE_VALUE" in imported.ignored
    with Player(run, imported.snapshot) as player:
        q = player.twin.q_values(np.random.default_rng(0).normal(size=(5, 4)).astype(np.float32))
    np.testing.assert_allclose(q, np.load(tmp_path / "q.npy"), rtol=1e-5)


def test_moving_averages_of_weights_are_taken_by_a_map_but_not_proposed(run: Run, tmp_path: Path) -> None:
    def build() -> None:
        variables = unnamed()
        with tf.variable_scope("A"):
            tf.train.ExponentialMovingAverage(0.9).apply(variables)

    old = classic_checkpoint(tmp_path / "old", build)
    with pytest.raises(UsageError, match=r"to be checked: --map Variable=fc1/bias --map Variable_1=fc1/weights "):
        import_checkpoint(run, old, {})
    averages = [name for name in read_checkpoint(old) if name.endswith("/ExponentialMovingAverage")]
    assert import_checkpoint(run, old, dict(zip(averages, NAMES, strict=True))).ignored == [
        *("Variable", "Variable_1", "Variable_2", "Variable_3")
    ]


def test_a_network_in_a_scope_that_is_named_like_an_optimizer_comes_in(run: Run, tmp_path: Path) -> None:
    def build() -> None:
        with tf.variable_scope("rmsprop"):
            variables = [tf.get_variable(name, shape) for name, shape in zip(NAMES, SHAPES, strict=True)]
        tf.train.RMSPropOptimizer(0.1).minimize(tf.add_n([tf.reduce_sum(variable) for variable in variables]))

    right = {f"rmsprop/{name}": name for name in NAMES}
    old = classic_checkpoint(tmp_path / "old", build)
    with pytest.raises(UsageError, match=re.escape(": " + " ".join(f"--map {o}={n}" for o, n in right.items())) + "$"):
        import_checkpoint(run, old, {})
    import_checkpoint(run, old, right)


def test_the_hint_says_that_another_network_of_the_file_would_fit_as_well(run: Run, tmp_path: Path) -> None:
    old = classic_checkpoint(tmp_path / "old", lambda: [unnamed(), unnamed(), tf.Variable(tf.zeros([16], tf.int32))])
    with pytest.raises(UsageError) as refused:
        import_checkpoint(run, old, {})
    hint, proposed = str(refused.value).split(
        ". All 4 that are missing, by shape and order, to be checked, since Variable_4, Variable_5, Variable_6, "
        "Variable_7 would fit, too, which may be a target network: "
    )
    assert hint.endswith("; of that shape it has Variable, Variable_4: --map Variable=fc1/bias")
    assert proposed.split()[1::2] == [f"Variable{f'_{i}' if i else ''}={name}" for i, name in enumerate(NAMES)]


@pytest.fixture
def of_images(pong: Callable[..., Settings], trained: Callable[[Settings], Run]) -> Run:
    """A run with three convolutions, whose output, 7x7x64, is flattened for a dense layer."""
    return trained(pong(train__steps=64, evaluate__episodes=0))


class Classic(NamedTuple):
    """Classic code with the network `nature`, whose weights are zeros until they are initialized.

    Attributes:
      convolves: `NCHW`, as on a GPU, where the batch's pictures are channels first, or `NHWC`.
      flattens: what the rows of the first dense layer are, `CHW` or `HWC`.
    """

    convolves: str
    flattens: str

    def build(self, images: Any, weights: Mapping[str, np.ndarray]) -> Any:
        """Q values of images `[B, 4, 84, 84]`."""
        data_format, channels_last = self.convolves, self.convolves == "NHWC"
        v = {name: tf.get_variable(name, initializer=value) for name, value in weights.items()}
        x = tf.cast(images, tf.float32) / 255
        x = tf.transpose(x, [0, 2, 3, 1]) if channels_last else x
        for i, stride in enumerate((4, 2, 1), start=1):
            strides = [1, stride, stride, 1] if channels_last else [1, 1, stride, stride]
            x = tf.nn.conv2d(x, v[f"conv{i}/weights"], strides, "VALID", data_format=data_format)
            x = tf.nn.relu(tf.nn.bias_add(x, v[f"conv{i}/bias"], data_format=data_format))
        if self.flattens != data_format[1:]:
            x = tf.transpose(x, [0, 3, 1, 2] if channels_last else [0, 2, 3, 1])
        x = tf.nn.relu(tf.matmul(tf.reshape(x, [-1, 7 * 7 * 64]), v["fc1/weights"]) + v["fc1/bias"])
        return tf.matmul(x, v["q/weights"]) + v["q/bias"]


IMAGES = np.random.default_rng(0).integers(0, 256, (3, 4, 84, 84), np.uint8)


def saved(run: Run, classic: Classic, path: Path, prefix: str = "") -> list[list[float]]:
    """Saves what classic code would, its names after a prefix; returns its Q values of `IMAGES`.

    No CPU convolves channels first, so that these come from other convolutions with the same weights.
    """
    random = np.random.default_rng(1)
    shapes = {name: value.shape for name, value in read_checkpoint(run.store().prefix(run.store().newest.id)).items()}
    weights = {
        name: random.normal(0, len(shape) and np.prod(shape[:-1]) ** -0.5, shape).astype(np.float32)
        for name, shape in shapes.items()
    }
    with tf.Graph().as_default(), tf.Session() as session:
        classic.build(tf.placeholder(tf.uint8, IMAGES.shape), weights)
        session.run(tf.global_variables_initializer())
        tf.train.Saver({prefix + v.op.name: v for v in tf.global_variables()}).save(session, str(path))
    with tf.Graph().as_default(), tf.Session() as session:
        q = classic._replace(convolves="NHWC").build(tf.constant(IMAGES), weights)
        session.run(tf.global_variables_initializer())
        values: list[list[float]] = session.run(q).tolist()
    return values


def q_of(run: Run, imported: Imported) -> list[list[float]]:
    with Twin("ours", spec_of(run), compute=Compute(threads=1)) as twin:
        twin.restore_snapshot(imported.snapshot, run.store())
        return twin.q_values(IMAGES).tolist()


@pytest.mark.parametrize("convolves", ["NCHW", "NHWC"])
@pytest.mark.parametrize("flattens", ["CHW", "HWC"])
def test_rows_of_a_dense_layer_are_put_in_our_order(
    of_images: Run, tmp_path: Path, convolves: str, flattens: str
) -> None:
    q = saved(of_images, Classic(convolves, flattens), tmp_path / "old")
    imported = import_checkpoint(of_images, tmp_path / "old", {})
    np.testing.assert_allclose(q_of(of_images, imported), q, atol=1e-4)
    assert imported.reordered == (["fc1/weights"] if flattens == "CHW" else [])
    assert not imported.assumed


def test_without_a_graph_the_order_of_rows_is_as_it_is_given(of_images: Run, tmp_path: Path) -> None:
    q = saved(of_images, Classic("NCHW", "CHW"), tmp_path / "old")
    (tmp_path / "old.meta").unlink()
    assumed = import_checkpoint(of_images, tmp_path / "old", {})
    assert (assumed.assumed, assumed.reordered) == (["fc1/weights"], [])
    told = import_checkpoint(of_images, tmp_path / "old", {}, "NCHW")
    assert (told.assumed, told.reordered) == ([], ["fc1/weights"])
    np.testing.assert_allclose(q_of(of_images, told), q, atol=1e-4)
    done = twin_graph("import", str(of_images.folder), "old", cwd=tmp_path)
    assert done.stderr.splitlines()[0] == (
        "fc1/weights: rows are taken for height, width, channels, since there is no .meta beside old to say so; if it "
        "was trained with data_format=NCHW, import it with --data-format NCHW"
    )
    done = twin_graph("import", str(of_images.folder), "old", "--data-format", "NCHW", cwd=tmp_path)
    assert done.stderr.splitlines()[0] == (
        "fc1/weights: rows are put in the order height, width, channels; they were channels first"
    )


def test_where_a_graph_leaves_the_order_open_it_has_to_be_given(of_images: Run, tmp_path: Path) -> None:
    q = saved(of_images, Classic("NCHW", "CHW"), tmp_path / "old", prefix="agent/")
    names = [name.removeprefix("agent/") for name in read_checkpoint(tmp_path / "old")]
    renamed = {f"agent/{name}": name for name in names}
    with pytest.raises(UsageError) as refused:
        import_checkpoint(of_images, tmp_path / "old", renamed)
    assert str(refused.value) == (
        f"{tmp_path / 'old'}.meta convolves channels first (data_format=NCHW), and does not show in which order agent/"
        "fc1/weights has its rows: give --data-format NCHW, or NHWC if they are channels last"
    )
    told = import_checkpoint(of_images, tmp_path / "old", renamed, "NCHW")
    np.testing.assert_allclose(q_of(of_images, told), q, atol=1e-4)


def test_rows_of_numbers_and_of_whole_boards_have_no_order_of_images(
    run: Run, tictactoe: Callable[..., Settings], trained: Callable[[Settings], Run], tmp_path: Path
) -> None:
    boards = trained(tictactoe(network="mlp", train__steps=400, evaluate__episodes=0))
    for i, of in enumerate((run, boards)):
        old = tmp_path / f"old{i}"
        export(of, of.store().newest, "tf1", old)
        Path(f"{old}.meta").unlink()
        assert not import_checkpoint(of, old, {}).assumed
        with pytest.raises(
            UsageError, match=r"^--data-format NCHW: this network flattens no output of convolutions; l"
        ):
            import_checkpoint(of, old, {}, "NCHW")


@pytest.mark.parametrize("network", ["minatar", "board", "blob", "dopamine", "mnih2013", "pooled80"])
def test_what_each_network_flattens_is_found(network: str) -> None:
    """By a CPU's layers and by plain ones, with two streams and with one."""
    frames = network in ("dopamine", "mnih2013", "pooled80")
    env = envs.EnvSpec((4, 80, 80) if frames else (10, 10, 4), 3, "uint8", 4 if frames else 1)
    first, image = {
        "minatar": ("fc1", (8, 8, 16)),
        "board": ("fc1", (7, 7, 64)),
        "blob": ("fc1", (1, 1, 256)),
        "dopamine": ("fc1", (6, 6, 64)),
        "mnih2013": ("fc1", (8, 8, 32)),
        "pooled80": ("q", (10, 10, 32)),
    }[network]
    for plain in (False, True):
        for dueling in (False, True):
            if dueling and network in ("blob", "pooled80"):
                continue
            settings = load("pong", [("network", network), ("model.dueling", dueling)])
            spec = ModelSpec(env, network, "huber", settings.model, settings.train, plain=plain)
            with Twin("ours", spec, learns=False) as twin:
                found = flattened(twin.graph.as_graph_def(add_shapes=True), twin.weights())
            streams = ("value_", "advantage_") if dueling and network != "dopamine" else ("",)
            wanted = {f"{stream}{first}/weights": image for stream in streams}
            assert found == ({} if network == "blob" else wanted)  # one pixel has no order


def test_a_graph_that_cannot_be_read_is_named(of_images: Run, tmp_path: Path) -> None:
    saved(of_images, Classic("NCHW", "CHW"), tmp_path / "old")
    meta = tmp_path / "old.meta"
    meta.write_bytes(meta.read_bytes()[:-10])
    with pytest.raises(DamagedError, match=r"old\.meta cannot be read; without it, import with --data-format"):
        import_checkpoint(of_images, tmp_path / "old", {})


def _is_none(meta: Path) -> None:
    meta.write_bytes(b"\xff" * 1_000)


def _is_a_pipe(meta: Path) -> None:
    meta.unlink()
    os.mkfifo(meta)


def _reads_itself(meta: Path) -> None:
    """What is multiplied by the first dense layer's weights is read from what it is read from."""
    graph = tf.MetaGraphDef.FromString(meta.read_bytes())
    [weights] = [node for node in graph.graph_def.node if node.name == "fc1/weights"]
    weights.op = "Identity"
    weights.input[:] = ["fc1/weights"]
    meta.write_bytes(graph.SerializeToString())


def _has_no_inputs(meta: Path) -> None:
    graph = tf.MetaGraphDef.FromString(meta.read_bytes())
    for node in graph.graph_def.node:
        node.input[:] = ["nothing"] if node.op == "Reshape" else node.input
    meta.write_bytes(graph.SerializeToString())


def _is_deep(meta: Path) -> None:
    graph = tf.MetaGraphDef.FromString(meta.read_bytes())
    for node in graph.graph_def.node:
        if node.op == "Reshape":
            node.input[0] = "deep0"
    for i in range(5_000):
        graph.graph_def.node.add(name=f"deep{i}", op="Identity", input=[f"deep{i + 1}"])
    meta.write_bytes(graph.SerializeToString())


def _transposes_by_too_much(meta: Path) -> None:
    """A constant of one number and of a shape that no memory holds."""
    graph = tf.MetaGraphDef.FromString(meta.read_bytes())
    for node in graph.graph_def.node:
        if node.op == "Const" and node.name.endswith("/perm"):
            node.attr["value"].tensor.tensor_content = b""
            node.attr["value"].tensor.int_val[:] = [3]
            node.attr["value"].tensor.tensor_shape.dim[0].size = 1 << 50
    meta.write_bytes(graph.SerializeToString())


@pytest.mark.parametrize("spoil", [_is_none, _is_a_pipe, _reads_itself, _has_no_inputs, _is_deep])
def test_a_graph_that_no_saver_writes_neither_hangs_nor_fails_unnamed(
    of_images: Run, tmp_path: Path, spoil: Callable[[Path], None]
) -> None:
    saved(of_images, Classic("NHWC", "CHW"), tmp_path / "old")
    spoil(tmp_path / "old.meta")
    if spoil is _reads_itself:
        assert import_checkpoint(of_images, tmp_path / "old", {}).reordered == ["fc1/weights"]
        return
    with pytest.raises(DamagedError, match=r"old\.meta cannot be read; without it, import with --data-format"):
        import_checkpoint(of_images, tmp_path / "old", {})


def test_a_constant_that_no_memory_holds_is_not_made(of_images: Run, tmp_path: Path) -> None:
    saved(of_images, Classic("NHWC", "CHW"), tmp_path / "old")
    _transposes_by_too_much(tmp_path / "old.meta")
    assert not import_checkpoint(of_images, tmp_path / "old", {}).reordered


def test_what_is_no_checkpoint_is_refused(run: Run, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"there is no TensorFlow Saver checkpoint \S+nothing: give what was passed"):
        import_checkpoint(run, tmp_path / "nothing", {})
    (tmp_path / "x").write_bytes(b"nonsense")
    with pytest.raises(DamagedError, match="x cannot be read: "):
        import_checkpoint(run, tmp_path / "x", {})
    with pytest.raises(UsageError, match="which is not UTF-8; move the checkpoint elsewhere"):
        import_checkpoint(run, tmp_path / os.fsdecode(b"\xff"), {})


def foreign(path: Path) -> Path:
    """A file of another program, of the kind that its name ends in."""
    ending = path.suffix or path.name
    if ending == ".npz":
        np.savez(path, w=np.zeros(2))
    elif ending == ".npy":
        np.save(path, np.zeros(2))
    elif ending == ".pkl":
        path.write_bytes(pickle.dumps({"w": [0.0]}))
    elif ending in (".keras", ".pt", ".zip"):
        inside = {".keras": "model.weights.h5", ".pt": "archive/data.pkl", ".zip": "policy.pth"}[ending]
        with zipfile.ZipFile(path, "w") as file:
            file.writestr(inside, b"...")
    else:
        path.write_bytes({".h5": b"\x89HDF\r\n\x1a\n..."}.get(ending, b"..."))
    return path


@pytest.mark.parametrize(
    ("name", "what"),
    [
        *(("model.h5", "an HDF5 file, as Keras writes,"), ("model.keras", "a model of Keras")),
        *(("model.pkl", "a pickle"), ("model.pt", "a file of PyTorch"), ("model.npz", "arrays of NumPy")),
        *(("model.npy", "an array of NumPy"), ("model.zip", "a model of Stable-Baselines3")),
        *(("model.onnx", "a network in ONNX"), ("model.tflite", "a network in TFLite")),
        *(("model.safetensors", "a file of safetensors"), ("frozen.pb", "a graph of TensorFlow")),
    ],
)
def test_a_file_of_another_program_is_named_and_not_called_damaged(
    run: Run, tmp_path: Path, name: str, what: str
) -> None:
    path = foreign(tmp_path / name)
    told = f"{path} is {what} and no TensorFlow checkpoint: load it with the program that made it, and write its "
    with pytest.raises(UsageError, match=f"^{re.escape(told)}weights as one; docs/coming-from-two-graphs.md shows how"):
        import_checkpoint(run, path, {})
    if name in ("model.h5", "model.npz"):  # under another name, too
        renamed = path.rename(tmp_path / "model")
        with pytest.raises(UsageError, match=f"model is {what} and no TensorFlow checkpoint"):
            import_checkpoint(run, renamed, {})
        done = twin_graph("import", str(run.folder), "model", cwd=tmp_path)
        assert (done.returncode, done.stderr.count("\n")) == (2, 1)


def test_weights_of_other_programs_come_in_as_the_documentation_says(run: Run, tmp_path: Path) -> None:
    [recipe] = re.findall(r"```python\n(import numpy.*?)```", HOWTO.read_text(encoding="utf-8"), re.DOTALL)
    newest = run.store().newest
    export(run, newest, "npz", tmp_path / "model.npz")
    done = subprocess.run([python(), "-c", recipe], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert import_checkpoint(run, tmp_path / "network", {}).snapshot.weights_sha256 == newest.weights_sha256


def test_a_saved_model_is_told_by_its_weights_which_are_a_checkpoint(run: Run, tmp_path: Path) -> None:
    newest = run.store().newest
    export(run, newest, "savedmodel", tmp_path / "model")
    weights = tmp_path / "model" / "variables" / "variables"
    for path in (tmp_path / "model", tmp_path / "model" / "saved_model.pb"):
        with pytest.raises(UsageError, match=rf"is a SavedModel: give the checkpoint in it, {weights}$"):
            import_checkpoint(run, path, {})
    assert import_checkpoint(run, weights, {}).snapshot.weights_sha256 == newest.weights_sha256


def test_a_folder_that_was_moved_is_read_where_it_is(run: Run, tmp_path: Path) -> None:
    """Its `checkpoint` file still names where it was, and what may be there now is another network."""
    first, newest = run.store().available[0], run.store().newest
    there, here = tmp_path / "there", tmp_path / "here"
    for folder, snapshot in ((there, first), (here, newest)):
        folder.mkdir()
        export(run, snapshot, "tf1", folder / "net-7")
        (folder / "checkpoint").write_text(f'model_checkpoint_path: "{there / "net-7"}"\n')
    assert import_checkpoint(run, here, {}).snapshot.weights_sha256 == newest.weights_sha256
    shutil.rmtree(there)
    assert import_checkpoint(run, here, {}).snapshot.weights_sha256 == newest.weights_sha256
    (here / "checkpoint").unlink()
    assert import_checkpoint(run, here, {}).snapshot.weights_sha256 == newest.weights_sha256
    export(run, first, "tf1", here / "net-10")
    (here / "checkpoint").unlink()
    with pytest.raises(UsageError, match=r"here holds net-7, net-10, and no `checkpoint` says which is the newest: "):
        import_checkpoint(run, here, {})


@pytest.mark.parametrize("ending", ["", ".index"])
def test_a_prefix_that_begins_with_a_dash_is_no_option(run: Run, tmp_path: Path, ending: str) -> None:
    """As a Saver's does whose prefix ends in a slash, with a global step."""
    export(run, run.store().newest, "tf1", tmp_path / "-3250000")
    done = twin_graph("import", str(run.folder), f"-3250000{ending}", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    missing = twin_graph("import", str(run.folder), "-325", cwd=tmp_path)
    assert "there is no TensorFlow Saver checkpoint -325" in missing.stderr
    assert "No such option" in twin_graph("import", str(run.folder), "--mpa", "a=b", "x", cwd=tmp_path).stderr


def test_an_export_makes_its_folder(run: Run, tmp_path: Path) -> None:
    done = twin_graph("export", str(run.folder), "latest", "back/again/network", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert (tmp_path / "back" / "again" / "network.index").exists()


LATEST = """
import tensorflow.compat.v1 as tf
print(json.dumps(tf.train.latest_checkpoint(sys.argv[1])))
"""


def test_an_exported_network_is_the_latest_checkpoint_of_its_folder(run: Run, tmp_path: Path) -> None:
    folder = tmp_path / "out"
    folder.mkdir()
    done = twin_graph("export", str(run.folder), "latest", "out/net", cwd=tmp_path)
    assert done.stdout.split() == [
        f"out/{name}" for name in ("net.meta", "net.data-00000-of-00001", "net.index", "checkpoint")
    ]
    moved = folder.rename(tmp_path / "moved")
    assert other_program(LATEST, moved) == str(moved / "net")
    before = (moved / "checkpoint").read_bytes()
    done = twin_graph("export", str(run.folder), "latest", "moved/another", cwd=tmp_path)
    assert (moved / "checkpoint").read_bytes() == before
    assert "checkpoint" not in done.stdout
    assert done.stderr == (
        "moved/checkpoint is there already and stays as it is: tf.train.latest_checkpoint does not find moved/another\n"
    )


@pytest.mark.parametrize("damage", ["cut", "flipped", "gone"])
def test_a_checkpoint_that_is_not_whole_is_damaged_and_not_missing(run: Run, tmp_path: Path, damage: str) -> None:
    _, data, *_ = export(run, run.store().newest, "tf1", tmp_path / "net")
    content = data.read_bytes()
    data.unlink()
    if damage != "gone":
        half = len(content) // 2
        data.write_bytes(
            content[:half] + (b"" if damage == "cut" else bytes([content[half] ^ 1]) + content[half + 1 :])
        )
    name, reason = {
        "cut": (data.name, "is damaged: it ends before "),
        "flipped": ("net", "cannot be read: "),
        "gone": (data.name, "is missing"),
    }[damage]
    with pytest.raises(DamagedError, match=rf"{name} {reason}[^\n]*$"):
        import_checkpoint(run, tmp_path / "net", {})


def test_a_sharded_checkpoint_goes_by_each_of_its_files(run: Run, tmp_path: Path) -> None:
    newest = run.store().newest
    with tf.Graph().as_default(), tf.Session(config=tf.ConfigProto(device_count={"CPU": 2})) as session:
        for i, (name, value) in enumerate(read_checkpoint(run.store().prefix(newest.id)).items()):
            with tf.device(f"/cpu:{i % 2}"):
                tf.get_variable(name, initializer=value)
        session.run(tf.global_variables_initializer())
        tf.train.Saver(sharded=True).save(session, str(tmp_path / "net"), write_meta_graph=False)
    files = list(tmp_path.glob("net.*"))
    assert len(files) == 3
    for path in files:
        assert import_checkpoint(run, path, {}).snapshot.weights_sha256 == newest.weights_sha256


def test_an_export_makes_a_step_of_each_minibatch_also_where_the_run_accumulates(
    cartpole: Callable[..., Settings], tmp_path: Path
) -> None:
    code = """
import tensorflow.compat.v1 as tf
tf.disable_eager_execution()
saver = tf.train.import_meta_graph(sys.argv[1] + ".meta")
names = "s_tm1", "a_tm1", "r_t", "discount_t", "q_target_t"
values = [[0.1, -0.2, 0.03, 0.4]], [1], [1.0], [1.0], [[0.0, 0.0]]
with tf.Session() as sess:
    sess.run(tf.global_variables_initializer())
    saver.restore(sess, sys.argv[1])
    bias = next(v for v in tf.global_variables() if v.op.name == "q/bias")
    before = sess.run(bias)
    sess.run("train_op", {name + ":0": value for name, value in zip(names, values)})
    print(json.dumps((sess.run(bias) - before).tolist()))
"""
    steps = []
    for accumulate in (1, 4):
        settings = cartpole(train__accumulate=accumulate, train__optimizer="rmsprop", train__learning_rate=0.01)
        run = create(tmp_path / f"run{accumulate}", settings)
        with contextlib.closing(envs.make(settings.env, count=settings.env.count)) as env:
            next(training.train(run, env))
        export(run, run.store().newest, "tf1", tmp_path / f"network{accumulate}")
        steps.append(other_program(code, tmp_path / f"network{accumulate}"))
    assert any(steps[0])
    assert steps[0] == steps[1]


def test_differences_are_those_of_the_weights(run: Run) -> None:
    store = run.store()
    first, last = store.snapshots[0], store.newest
    weights = []
    with Twin("ours", spec_of(run), compute=Compute(threads=1)) as twin:
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


def test_the_mean_of_snapshots_is_a_snapshot_that_can_be_used_like_any_other(run: Run, tmp_path: Path) -> None:
    done = twin_graph("average", str(run.folder), "--last", "3", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    document, store = json.loads(done.stdout), run.store()
    newest = store.available[-3:]
    assert document["of"] == [snapshot.id for snapshot in newest]
    values = []
    with Twin("reader", spec_of(run), compute=Compute(threads=1)) as twin:
        for snapshot in [*newest, store.find(document["snapshot"])]:
            twin.restore_snapshot(snapshot, store)
            values.append(twin.weights())
    for name, mean in values[3].items():
        np.testing.assert_array_equal(mean, np.mean([weights[name] for weights in values[:3]], axis=0))
        assert (mean != values[2][name]).any()
    assert run.resolve("latest").id == newest[-1].id
    assert not [line for line in restored(run, newest_point(run).point) if "abandoned" in line]  # it outlives resuming
    origin = store.manifest(document["snapshot"]).origin
    assert origin == f"mean of {', '.join(document['of'])}"
    played = twin_graph("evaluate", str(run.folder), document["snapshot"], "--episodes", "1", cwd=tmp_path)
    assert played.returncode == 0, played.stderr
    shown = twin_graph("show", str(run.folder), document["snapshot"], cwd=tmp_path)
    assert re.search(rf"^origin +{origin} *$", shown.stdout, re.MULTILINE)
    assert not re.search(r"^(updates|agent steps) ", shown.stdout, re.MULTILINE)  # it was made at none


def test_a_mean_is_of_one_learners_snapshots(
    cartpole: Callable[..., Settings], trained: Callable[[Settings], Run], tmp_path: Path
) -> None:
    run = trained(cartpole(train__steps=600, evaluate__episodes=0, mode="mutual", store__shared=True))
    document = json.loads(twin_graph("average", str(run.folder), "--json", cwd=tmp_path).stdout)
    store = run.store()
    assert {store.find(one).learner for one in document["of"]} == {store.newest.learner}
    assert len({snapshot.learner for snapshot in store.available}) == 2


def test_a_mean_takes_two_snapshots_whose_weights_are_there(run: Run, tmp_path: Path) -> None:
    before = [snapshot.id for snapshot in run.store().imports]
    (gone, *_), folder = run.store().available, str(run.folder)
    for path in (run.store_folder / gone.id).glob("model.*"):
        path.unlink()
    for refs, words in (
        (["latest", "@update:999999"], "a mean needs two or more snapshots"),
        (["latest", "nobody"], "no snapshot 'nobody'"),
        (["latest", gone.id], gone.id),
        (["latest", "latest~1", "--last", "3"], "--last 3 is for a mean without REF"),
    ):
        refused = twin_graph("average", folder, *refs, cwd=tmp_path)
        assert refused.returncode in (2, 3)
        assert words in refused.stderr
        assert len(refused.stderr.splitlines()) == 1
    with run.lock("train"):
        weights = str(run.store().prefix(run.store().newest.id))
        assert twin_graph("import", folder, weights, cwd=tmp_path).returncode == 4
        assert twin_graph("average", folder, cwd=tmp_path).returncode == 4
    assert [snapshot.id for snapshot in run.store().imports] == before


def test_a_reference_may_name_another_run(run: Run) -> None:
    owner, snapshot = locate(Run(run.folder), f"{run.folder}:latest~1")
    assert owner.folder == run.folder
    assert snapshot == run.store().snapshots[-2]
    assert locate(run, "@update:50")[1] == run.resolve("@update:50")
    assert locate(run, "online/@update:50")[1] == run.resolve("@update:50")
    assert locate(run, f"{run.folder}:online/@update:50")[1] == run.resolve("@update:50")
    owner, snapshot = locate(Run(run.folder), f"{run.folder}:@update:50")
    assert (owner.folder, snapshot) == (run.folder, run.resolve("@update:50"))


@pytest.mark.parametrize("ending", ["", ".index", ".meta", ".data-00000-of-00001"])
def test_a_checkpoint_goes_by_each_of_its_files(run: Run, tmp_path: Path, ending: str) -> None:
    newest = run.store().newest
    export(run, newest, "tf1", tmp_path / "net")
    made = import_checkpoint(run, tmp_path / f"net{ending}", {})
    assert made.snapshot.weights_sha256 == newest.weights_sha256


def test_a_checkpoint_that_tensorflow_would_look_for_by_a_pattern_is_refused(run: Run, tmp_path: Path) -> None:
    (tmp_path / "a[1]").mkdir()
    with pytest.raises(UsageError, match=r"a\[1\]/net .*; move the checkpoint elsewhere$"):
        import_checkpoint(run, tmp_path / "a[1]" / "net", {})


def test_a_folder_of_a_checkpoints_name_is_not_taken_for_it(run: Run, tmp_path: Path) -> None:
    """As TensorFlow's `load_checkpoint` does."""
    first, newest = run.store().available[0], run.store().newest
    export(run, newest, "tf1", tmp_path / "net")
    (tmp_path / "net").mkdir()
    export(run, first, "tf1", tmp_path / "net" / "other")
    (tmp_path / "net" / "checkpoint").write_text('model_checkpoint_path: "other"\n')
    assert import_checkpoint(run, tmp_path / "net", {}).snapshot.weights_sha256 == newest.weights_sha256
    (tmp_path / "net.index").unlink()
    assert import_checkpoint(run, tmp_path / "net", {}).snapshot.weights_sha256 == first.weights_sha256
