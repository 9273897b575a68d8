"""Which threads and precision are fastest on this machine for this network, measured once at the start of a run."""

from __future__ import annotations

import contextlib
import itertools
import statistics
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, NamedTuple, Self

import numpy as np

from twin_graph import config
from twin_graph.agent.ensemble import blocks
from twin_graph.base import doing, machine
from twin_graph.base.text import counted
from twin_graph.twin.twin import Compute, Twin

if TYPE_CHECKING:
    from twin_graph.config.settings import Settings
    from twin_graph.twin.model import ModelSpec

_ROUNDS = 3
_ROUND_SECONDS = 0.6
_CHUNK_UPDATES = 8  # at most; more of them would take longer than a round
# An alternative must be this much faster than the first choice: timings scatter, and two runs with the same seed should
# not differ because of it.
_MARGIN = 1.1


class Timing(NamedTuple):
    """How sessions are set up, and the updates per second measured that way."""

    threads: int
    precision: str
    updates_per_second: float

    def __str__(self) -> str:
        return f"{counted(self.threads, 'thread')}, {self.precision}: {self.updates_per_second:.0f} updates/s"


def fix(settings: Settings, spec: ModelSpec, *, elsewhere: bool = False) -> tuple[Settings, list[Timing]]:
    """The settings with threads and precision decided, and the timings that decided.

    Workers share the cores evenly, or, if they are `elsewhere`, are assumed to have machines like this one to
    themselves.
    """
    if settings.workers.count:
        sharing = 1 if elsewhere else settings.workers.count
        threads = settings.twin.threads or max(1, machine.describe().cores // sharing)
        return config.change(settings, [("twin.threads", threads), ("twin.precision", "fp32")]), []
    timings = measure(settings, spec)
    threads, precision = timings[0][:2] if timings else _possible(settings)[0]
    return config.change(settings, [("twin.threads", threads), ("twin.precision", precision)]), timings


def measure(settings: Settings, spec: ModelSpec) -> list[Timing]:
    """Times what the settings leave open, on random minibatches; the one to use first, empty if nothing is open.

    Targets are evaluated in the blocks that training uses, and at the same time as updates if training does so.
    Environments are left out.
    """
    possible = _possible(settings)
    if len(possible) == 1:
        return []
    parts = itertools.count(1)

    def say() -> None:
        doing.now(f"measuring threads and precision ({next(parts)} of {len(possible) * (1 + _ROUNDS)})")

    rates: dict[tuple[int, str], tuple[_Trial, list[float]]] = {}
    with contextlib.ExitStack() as trials:
        for timing in possible:
            say()
            rates[timing] = trials.enter_context(_Trial(settings, spec, *timing)), []
        for _ in range(_ROUNDS):  # interleaved, so that a disturbance meets all of them
            for trial, measured in rates.values():
                say()
                measured.append(trial.rate())
    timings = [Timing(*timing, statistics.median(measured)) for timing, (_, measured) in rates.items()]
    fastest = max(timings, key=lambda timing: timing.updates_per_second)
    if fastest.updates_per_second > _MARGIN * timings[0].updates_per_second:
        timings.remove(fastest)
        timings.insert(0, fastest)
    return timings


def _possible(settings: Settings) -> list[tuple[int, str]]:
    """Threads and precisions that the settings allow on this processor, the usual ones first.

    What XLA compiles is too small to split among threads, and its bfloat16 products are slow.
    """
    processor, given = machine.describe(), settings.twin
    if given.compiled:
        return [(given.threads or 1, "fp32" if given.precision == "auto" else given.precision)]
    threads = [given.threads] if given.threads else sorted({1, processor.cores}, reverse=True)
    precisions = [given.precision]
    if given.precision == "auto":
        precisions = ["fp32", "bf16"] if machine.has_bf16() else ["fp32"]
    return [(count, precision) for precision in precisions for count in threads]


class _Trial:
    """Two twins and a minibatch; closed by `with`."""

    def __init__(self, settings: Settings, spec: ModelSpec, threads: int, precision: str) -> None:
        train, size = settings.train, settings.train.batch_size
        self._beside = ThreadPoolExecutor(1) if train.chunk_steps and settings.twin.overlap else None
        self._updates = min(_CHUNK_UPDATES, max(1, train.chunk_steps // train.every_steps))
        self._online, self._target = (
            Twin(
                name,
                spec,
                compute=Compute(threads=threads, at_once=settings.ops_at_once, precision=precision),
                learns=learns,
            )
            for name, learns in (("online", True), ("target", False))
        )
        random = np.random.default_rng(0)
        shape = self._updates * size, *spec.env.observation_shape
        observations = random.integers(0, 256, shape).astype(spec.env.observation_dtype)
        self._blocks = list(blocks(observations)) if train.target_q else []
        self._feed = {
            tensor: observations[:size]
            if name in ("s_tm1", "s_t")
            else np.zeros((size, *tensor.shape[1:]), tensor.dtype.as_numpy_dtype)
            for name, tensor in self._online.model.fed.items()
        }
        self._chunk()  # the first runs are slow

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._beside:
            self._beside.shutdown()
        self._online.close()
        self._target.close()

    def rate(self) -> float:
        """Updates per second."""
        began, made = time.perf_counter(), 0
        while (elapsed := time.perf_counter() - began) < _ROUND_SECONDS:
            self._chunk()
            made += self._updates
        return made / elapsed

    def _chunk(self) -> None:
        evaluated = self._beside.submit(self._evaluate).result if self._beside else self._evaluate
        for _ in range(self._updates):
            self._online.run((self._online.model.train_op, self._online.model.loss), self._feed)
        evaluated()

    def _evaluate(self) -> None:
        for block in self._blocks:
            self._target.supplied(block)
