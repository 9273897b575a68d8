"""TensorBoard's event file, read back as TensorBoard reads it."""

import contextlib
import dataclasses
import errno
import itertools
import time
from collections.abc import Callable
from pathlib import Path

import attempts
import numpy as np
import pytest
from tensorboard import context
from tensorboard.backend.event_processing import plugin_event_accumulator
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.data import server_ingester
from tensorboard.util import grpc_util, tensor_util

from twin_graph import envs
from twin_graph.agent.tensorboard import EventFile
from twin_graph.config.settings import Settings
from twin_graph.envs import EnvSpec
from twin_graph.evaluation.player import spec_of
from twin_graph.snapshots.run import Run, create
from twin_graph.training import requirements
from twin_graph.twin.model import ModelSpec
from twin_graph.twin.tf import tf
from twin_graph.twin.twin import Compute, Twin

NAMES = ["fc1/bias", "fc1/weights", "q/bias", "q/weights"]


def written(folder: Path, values: np.ndarray) -> EventAccumulator:
    with EventFile(folder, tf.Graph()) as events:
        events.write_histograms(7, {"variables/w": values})
    read = EventAccumulator(str(folder), size_guidance={"histograms": 0})
    read.Reload()
    return read


def test_variables_are_shown_by_their_statistics_and_a_histogram(tmp_path: Path) -> None:
    values = np.random.default_rng(0).normal(3, 2, (40, 50)).astype(np.float32)
    read = written(tmp_path, values)
    statistics = {"mean": values.mean(), "std": values.std(), "min": values.min(), "max": values.max()}
    for name, value in statistics.items():
        [event] = read.Scalars(f"variables/w/{name}")
        assert (event.step, event.value) == (7, pytest.approx(value, rel=1e-5))
    [event] = read.Histograms("variables/w")
    histogram = event.histogram_value
    assert event.step == 7
    assert (histogram.min, histogram.max, histogram.num) == (values.min(), values.max(), 2000)
    assert histogram.sum == pytest.approx(values.sum(dtype=float))
    assert histogram.sum_squares == pytest.approx((values.astype(float) ** 2).sum())
    assert histogram.bucket_limit == sorted(set(histogram.bucket_limit))
    assert histogram.bucket_limit[-1] == values.max()
    lower = -np.inf
    for limit, count in zip(histogram.bucket_limit[:-1], histogram.bucket[:-1], strict=True):
        assert count == ((values >= lower) & (values < limit)).sum()
        lower = limit
    assert histogram.bucket[-1] == (values >= lower).sum()
    assert len(histogram.bucket) >= 20


def test_attempts_of_the_same_second_write_files_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.time", itertools.count(1_700_000_000, 0.001).__next__)
    for attempt in (1, 2):
        with EventFile(tmp_path, tf.Graph()) as events:
            events.write(attempt, {"x": attempt})
    read = EventAccumulator(str(tmp_path))
    read.Reload()
    assert [event.step for event in read.Scalars("x")] == [1, 2]


def steps_of_the_python_reader(events: Path) -> list[int]:
    """Those of the losses, as TensorBoard's own reader in Python has them."""
    read = EventAccumulator(str(events))
    read.Reload()
    return [event.step for event in read.Scalars("loss")]


def steps_of_the_fast_reader(events: Path) -> list[int]:
    """Those of the losses, as TensorBoard shows them."""
    ingester = server_ingester.SubprocessServerDataIngester(
        server_ingester.get_server_binary(),
        str(events),
        reload_interval=0,
        channel_creds_type=grpc_util.ChannelCredsType.LOCAL,
    )
    ingester.start()
    with contextlib.closing(ingester._stdin_handle):  # it ends with its input
        shown = ingester.data_provider.read_scalars(
            context.RequestContext(), experiment_id="", plugin_name="scalars", downsample=1000
        )
        return [point.step for point in shown["."]["loss"]]


@pytest.mark.parametrize("steps_shown", [steps_of_the_python_reader, steps_of_the_fast_reader])
def test_a_run_resumed_where_the_clock_is_behind_is_shown_whole_and_in_order(
    cartpole: Callable[..., Settings], tmp_path: Path, steps_shown: Callable[[Path], list[int]]
) -> None:
    run, now = create(tmp_path / "run", cartpole(evaluate__episodes=0)), time.time
    attempts.attempt(run, cut_off=900)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("time.time", lambda: now() - 86_400)
        attempts.attempt(run)
    assert steps_shown(run.events) == [200, 400, 600, 800, 1000, 1200]


@pytest.mark.parametrize("earlier", ["1900000000.123456.host", "1900000000.host.17.0.v2", "1900000000.123456.1.2.host"])
def test_event_files_are_named_later_than_those_of_any_version(tmp_path: Path, earlier: str) -> None:
    first = tmp_path / f"events.out.tfevents.{earlier}"
    first.touch()
    (tmp_path / "notes.txt").touch()
    for _ in range(2):
        with EventFile(tmp_path, tf.Graph()):
            pass
    made = sorted(path.name for path in tmp_path.glob("events.out.tfevents.*"))
    assert len(made) == 3
    assert made[0] == first.name


def test_a_folder_that_takes_no_file_is_an_error_of_the_system_with_its_reason() -> None:
    """In /proc nobody can make one."""
    with pytest.raises(OSError, match="No such file") as raised:
        EventFile(Path("/proc"), tf.Graph())
    assert raised.value.errno == errno.EIO
    assert raised.value.filename.startswith("/proc/events")


def test_tensorboards_own_histograms_are_made_of_them(tmp_path: Path) -> None:
    written(tmp_path, np.linspace(-1, 2, 300, dtype=np.float32))
    shown = plugin_event_accumulator.EventAccumulator(str(tmp_path))
    shown.Reload()
    assert "variables/w" in shown.PluginTagToContent("histograms")
    [event] = shown.Tensors("variables/w")
    buckets = tensor_util.make_ndarray(event.tensor_proto)
    left, right, count = buckets.T
    assert left[0] == -1
    assert right[-1] == 2
    np.testing.assert_array_equal(left[1:], right[:-1])
    assert count.sum() == 300
    assert count.max() - count.min() <= 1


@pytest.mark.parametrize(
    "values", [np.zeros(5), np.full(3, -2.5), np.array([1.0]), np.array([1, np.nextafter(np.float32(1), 2)])]
)
def test_values_that_hardly_differ_or_not_at_all(tmp_path: Path, values: np.ndarray) -> None:
    read = written(tmp_path, values.astype(np.float32))
    [event] = read.Histograms("variables/w")
    assert sum(event.histogram_value.bucket) == len(values)
    assert event.histogram_value.bucket_limit[-1] == values.max()


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("wrong", [np.nan, np.inf])
def test_of_values_that_are_not_finite_there_is_no_histogram(tmp_path: Path, wrong: float) -> None:
    read = written(tmp_path, np.array([1, wrong, -1], np.float32))
    assert read.Tags()["histograms"] == []
    [event] = read.Scalars("variables/w/max")
    assert not np.isfinite(event.value)


def test_a_training_shows_the_online_twins_variables_if_it_is_asked_to(
    cartpole: Callable[..., Settings], train: Callable[[Settings], Run]
) -> None:
    small = {"evaluate__episodes": 0, "train__steps": 600}
    silent, run = train(cartpole(**small)), train(cartpole(**small, log__variables=True))
    assert silent.store().newest.weights_sha256 == run.store().newest.weights_sha256
    tags = []
    for events in (silent.events, run.events):
        read = EventAccumulator(str(events), size_guidance={"histograms": 0, "scalars": 0})
        read.Reload()
        tags.append(read.Tags()["histograms"])
    assert tags == [[], [f"variables/{name}" for name in NAMES] + ["activations/fc1"]]
    logged = [line["agent_steps"] for line in run.metric_lines()]
    with Twin("again", spec_of(run), compute=Compute(threads=1)) as twin:
        twin.restore(run.store().prefix(run.store().newest.id))
        weights = twin.weights()
    for name in NAMES:
        assert [event.step for event in read.Histograms(f"variables/{name}")] == logged == [200, 400, 600]
        last = read.Histograms(f"variables/{name}")[-1].histogram_value
        assert (last.min, last.max, last.num) == (weights[name].min(), weights[name].max(), weights[name].size)
        assert read.Scalars(f"variables/{name}/mean")[-1].value == pytest.approx(weights[name].mean(), rel=1e-4)


def test_activations_are_those_of_the_layers_written_down(cartpole: Callable[..., Settings]) -> None:
    spec = ModelSpec.of(cartpole(), EnvSpec((4,), 2))
    observations = np.random.default_rng(0).normal(size=(7, 4)).astype(np.float32)
    with Twin("any", spec, seed=3) as twin:
        weights = twin.weights()
        hidden = np.maximum(0, observations @ weights["fc1/weights"] + weights["fc1/bias"])
        assert list(twin.activations(observations)) == ["fc1"]
        np.testing.assert_allclose(twin.activations(observations)["fc1"], hidden, rtol=1e-5, atol=1e-6)


def test_activations_of_the_image_network_are_of_all_examples(pong: Callable[..., Settings]) -> None:
    """It computes them in halves."""
    spec = ModelSpec.of(pong(), EnvSpec((4, 84, 84), 6, "uint8"))
    images = np.random.default_rng(0).integers(0, 255, (6, 4, 84, 84), np.uint8)
    shapes = {"conv1": (6, 20, 20, 32), "conv2": (6, 9, 9, 64), "conv3": (6, 7, 7, 64), "fc1": (6, 512)}
    with Twin("any", spec, seed=3) as twin, Twin("plain", dataclasses.replace(spec, plain=True)) as plain:
        plain.load(twin.weights())
        activations, as_plain = twin.activations(images), plain.activations(images)
    assert {name: value.shape for name, value in activations.items()} == shapes
    for name in shapes:
        np.testing.assert_allclose(activations[name], as_plain[name], rtol=1e-4, atol=1e-5)


def test_the_disk_that_they_take_is_asked_for(
    cartpole: Callable[..., Settings], train: Callable[[Settings], Run]
) -> None:
    run = train(cartpole(evaluate__episodes=0, train__steps=600, log__every_steps=8, log__variables=True))
    with contextlib.closing(envs.make(run.settings.env, count=1)) as env:
        asked = requirements.measure(run.settings, env, run.folder).disk
    written = sum(path.stat().st_size for path in run.folder.rglob("*") if path.is_file())
    assert written < asked < 3 * written
