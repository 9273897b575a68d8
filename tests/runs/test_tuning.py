"""Threads and precision: measured where they are left open, fixed afterwards."""

from __future__ import annotations

import contextlib
import json
import math
import re
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from twin_graph_cli.main import cli

from twin_graph import envs
from twin_graph.agent import ensemble
from twin_graph.base import doing
from twin_graph.base import machine as cpu
from twin_graph.config.settings import Settings
from twin_graph.envs import EnvSpec
from twin_graph.training import doctor, tuning
from twin_graph.twin.model import ModelSpec
from twin_graph.twin.twin import Compute, Twin

Make = Callable[..., Settings]


def spec_of(settings: Settings) -> ModelSpec:
    return ModelSpec.of(settings, EnvSpec((4,), 2))


def machine(monkeypatch: pytest.MonkeyPatch, *features: str) -> None:
    monkeypatch.setattr(cpu, "describe", lambda: cpu.Cpu("of a test", 2, features))


def test_what_is_given_is_not_measured(cartpole: Make) -> None:
    settings = cartpole(twin__threads=1, twin__precision="fp32")
    assert tuning.measure(settings, spec_of(settings)) == []


def test_a_precision_that_the_processor_emulates_is_named(
    cartpole: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A minibatch of images takes six times as long as in float32."""
    monkeypatch.chdir(tmp_path)
    wanted = ["--steps", "1100", "--set", "evaluate.episodes=0", "--set", "twin.precision=bf16"]
    machine(monkeypatch, "avx2")
    shown = CliRunner().invoke(cli, ["train", "cartpole", *wanted])
    assert shown.exit_code == 0
    [sentence] = cpu.emulated("bf16")
    assert "several times slower than fp32 here" in sentence
    assert sentence in shown.stderr
    assert list(cpu.emulated("fp32")) == []
    for feature in ("avx512_bf16", "amx_bf16"):
        machine(monkeypatch, feature)
        assert list(cpu.emulated("bf16")) == []


@pytest.mark.parametrize("learner", [{}, {"train__double": True}, {"train__target_q": False}], ids=str)
def test_what_is_left_open_is_measured(
    cartpole: Make, monkeypatch: pytest.MonkeyPatch, learner: dict[str, bool]
) -> None:
    machine(monkeypatch, "avx2")
    monkeypatch.setattr(tuning, "_ROUND_SECONDS", 0.05)
    settings = cartpole(twin__threads=0, twin__precision="auto", train__chunk_steps=16, **learner)
    said: list[str] = []
    with doing.heard_by(said.append):
        choices = tuning.measure(settings, spec_of(settings))
    assert said == [f"measuring threads and precision ({part} of 8)" for part in range(1, 9)]
    assert {(choice.threads, choice.precision) for choice in choices} == {(1, "fp32"), (2, "fp32")}
    assert all(choice.updates_per_second > 10 for choice in choices)


@pytest.mark.parametrize(
    ("settings", "at_once"),
    [
        ({"train__chunk_steps": 64, "train__every_steps": 4}, {128}),
        ({"train__chunk_steps": 24, "train__every_steps": 4}, {128, 64}),
        ({"train__chunk_steps": 0}, {32}),
        ({"train__chunk_steps": 64, "train__target_q": False}, set()),
    ],
)
def test_targets_are_measured_in_the_blocks_of_the_training(
    cartpole: Make, monkeypatch: pytest.MonkeyPatch, settings: dict[str, object], at_once: set[int]
) -> None:
    sizes = set()
    supplied = Twin.supplied

    def seen(twin: Twin, observations: np.ndarray) -> np.ndarray:
        sizes.add(len(observations))
        return supplied(twin, observations)

    monkeypatch.setattr(Twin, "supplied", seen)
    monkeypatch.setattr(tuning, "_ROUND_SECONDS", 0.05)
    monkeypatch.setattr(ensemble, "_FEW_NUMBERS", 0)  # as if CartPole's observations were images
    chosen = cartpole(train__batch_size=32, twin__threads=0, twin__precision="fp32", **settings)
    machine(monkeypatch, "avx2")
    tuning.measure(chosen, spec_of(chosen))
    assert sizes == at_once


@pytest.mark.parametrize(
    ("rates", "chosen"),
    [
        ({(2, "fp32"): 100, (1, "fp32"): 105, (2, "bf16"): 109, (1, "bf16"): 90}, (2, "fp32")),
        ({(2, "fp32"): 100, (1, "fp32"): 120, (2, "bf16"): 115, (1, "bf16"): 90}, (1, "fp32")),
        ({(2, "fp32"): 100, (1, "fp32"): 80, (2, "bf16"): 300, (1, "bf16"): 200}, (2, "bf16")),
    ],
)
def test_the_usual_choice_gives_way_to_one_that_is_clearly_faster(
    cartpole: Make,
    monkeypatch: pytest.MonkeyPatch,
    rates: dict[tuple[int, str], float],
    chosen: tuple[int, str],
) -> None:
    class Trial:
        def __init__(self, settings: Settings, spec: ModelSpec, threads: int, precision: str) -> None:
            self.rate = lambda: rates[threads, precision]

        def __enter__(self) -> Trial:
            return self

        def __exit__(self, *_: object) -> None:
            pass

    machine(monkeypatch, "avx2", "amx_bf16")
    monkeypatch.setattr(tuning, "_Trial", Trial)
    settings = cartpole(twin__threads=0, twin__precision="auto")
    choices = tuning.measure(settings, spec_of(settings))
    assert choices[0][:2] == chosen
    assert {choice[:2] for choice in choices} == set(rates)


@pytest.mark.parametrize("given", [{"threads": 1}, {"threads": 2, "at_once": 2}])
def test_a_session_has_the_threads_it_was_given_whatever_came_before(pong: Make, given: dict[str, int]) -> None:
    """The first session of a process once decided for all."""
    spec = ModelSpec.of(pong(), EnvSpec((4, 84, 84), 6, "uint8"))
    observations = np.zeros((32, 4, 84, 84), np.uint8)
    with Twin("first", spec, compute=Compute(threads=2)), Twin("second", spec, compute=Compute(**given)) as second:
        second.q_values(observations)
        wall, cpu_time = time.perf_counter(), time.process_time()
        for _ in range(20):
            second.q_values(observations)
        assert (time.process_time() - cpu_time) / (time.perf_counter() - wall) < 1.25


def test_the_rate_of_long_chunks_is_measured_over_several(cartpole: Make) -> None:
    settings = cartpole(train__chunk_steps=2048, twin__threads=1, twin__precision="fp32", twin__compiled=False)
    with contextlib.closing(envs.make(settings.env, count=settings.env.count)) as env:
        assert 0 < doctor.rate(env, settings) < math.inf


def test_the_doctor_trains_pong_and_says_what_the_machine_can_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "_MEASURED_STEPS", 200)
    monkeypatch.setattr(doctor, "_MEASURED_FROM", 100)
    monkeypatch.setattr(tuning, "_ROUND_SECONDS", 0.1)
    told = CliRunner().invoke(cli, ["doctor", "--json"])
    found = {finding["subject"]: finding for finding in json.loads(told.stdout)}
    assert {"processor", "packages", "oneDNN", "memory", "disk", "threads, precision", "speed"} <= found.keys()
    assert re.match(r"\d+ agent steps/s; pong takes about \d+ minutes", found["speed"]["found"])
    assert told.exit_code == (0 if all(finding["ok"] for finding in found.values()) else 1)


def test_a_container_has_what_its_limits_leave(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu, "_CONTROL_GROUP", tmp_path)
    cores, free = cpu.describe().cores, cpu.memory_free()
    (tmp_path / "cpu.max").write_text("max 100000\n")
    (tmp_path / "memory.max").write_text("max\n")
    assert cpu.describe().cores == cores
    (tmp_path / "cpu.max").write_text("50000 100000\n")
    assert cpu.describe().cores == 1
    (tmp_path / "memory.max").write_text("8000\n")
    (tmp_path / "memory.current").write_text("7600\n")
    (tmp_path / "memory.stat").write_text("anon 900\nfile 6600\ninactive_file 6500\nactive_file 100\n")
    assert free > cpu.memory_free() == 8000 - 7600 + 6500  # what only caches files is given back when it is needed
