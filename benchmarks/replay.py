r"""Transitions per second and memory of this project's replay and of two others, on the same steps, in turn.

    pip install '.[peers]'
    python benchmarks/replay.py [--rounds 5] [--steps 20000] [--json benchmarks/results/replay.json]

Every side gets the same kind of steps from 8 environments: 84x84 frames of random bytes in stacks of 4 (the newest 4
frames, zeros before an episode's first), episodes of 200 to 500 steps, of which each fourth ends by a cut (a time
limit) and not by a terminal step. A ring of `--steps` agent steps is filled, then overwritten once; then minibatches of
32 are drawn. Only calls of a side's public API are timed, not the making of the frames. Seconds are those for which the
process had a processor (`time.process_time`): other programs disturb these less. Every side uses one thread.

    added         transitions into the empty ring ("filling", when its memory is first touched) and into the full one
    sampled       transitions drawn, 32 at a time; the median of several blocks in each process
    faults        page faults for each 32 transitions drawn: memory that malloc had given back and takes again
    memory        growth of the process's resident set from before the ring is made to when it has been filled

The work is not the same in all respects:

    twin-graph            gives NumPy arrays, stacks first. s' is one step after s. A random stream is made for each
                          minibatch, as in the training. "16 in a call" draws 16 minibatches with one call, as the
                          training does.
    Stable-Baselines3     gives PyTorch tensors, which its `sample` copies from NumPy arrays; stacks first. With two
                          threads for PyTorch it drew up to a fifth more while two cores were free, else far less.
      half memory         optimize_memory_usage=True, handle_timeout_termination=False: a cut counts as a terminal step.
    cpprb                 gives NumPy arrays, stacks last. next_of and stack_compress are on for the observation; they
                          need the steps of an episode one after the other, so that 8 environments have 8 buffers here,
                          of which each gives 4 transitions, and these are concatenated.
      one environment     as many agent steps, all from one environment, in one buffer: nothing to concatenate.

What was drawn is checked in every process, untimed: shapes and types; that actions, rewards and ends belong to the
newest frame of s; that the frames before it are those of its episode, or zeros; and, where s' is bootstrapped from,
that it holds the 3 newest frames of s and the one that was seen next.
"""

import gc
import importlib.metadata
import json
import resource
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import click
import numpy as np
import psutil
from fresh import in_a_process
from rich.console import Console
from rich.progress import track
from rich.table import Table

from twin_graph.base import machine
from twin_graph.base.streams import Purpose, stream
from twin_graph.replay.ring import Batch, Replay, Transition

ENVIRONMENTS, STACK, SIDE, ACTIONS, BATCH, CHUNK = 8, 4, 84, 6, 32, 16
SHORTEST, LONGEST, CUT_EVERY = 200, 500, 4  # steps of an episode; which episodes are cut
DISCOUNT = 0.99
BLOCKS, BLOCK = 7, 160  # timed blocks in each process, minibatches in one
CHECKED = 100  # minibatches
OBSERVATION = (STACK, SIDE, SIDE)

Work = dict[str, Any]


class Source:
    """Steps whose frames say in their first bytes when and by whom they were seen; all else follows from that.

    The newest frame of s at vector step n has the stamp 2n+1, that of s' the stamp 2n+3, or 2n+2 if the episode ends.

    Attributes:
      ages: steps since the episode began, by vector step and environment.
      terminal, cut: vector step and environment of the ends of episodes.
    """

    def __init__(self, environments: int, vector_steps: int) -> None:
        self._random = np.random.default_rng(0)
        self._frames = self._random.integers(1, 256, (61, SIDE, SIDE), np.uint8)
        self._who = np.arange(environments)
        self._left = self._random.integers(SHORTEST, LONGEST, environments)
        self._episode = self._who.copy()
        self._step = 0
        self._s = self._stack(np.zeros((environments, *OBSERVATION), np.uint8), np.ones(environments))
        self.ages = np.full((vector_steps + 1, environments), -1)  # filled, so that its memory is there from now on
        self.ages[0] = 0
        self.terminal: set[tuple[int, int]] = set()
        self.cut: set[tuple[int, int]] = set()

    def step(self) -> Transition:
        """The next step of every environment, in arrays that are not written again."""
        s, n = self._s, self._step
        self._left -= 1
        last = self._left == 0
        cut = last & (self._episode % CUT_EVERY == 0)
        for e in np.flatnonzero(last):
            (self.cut if cut[e] else self.terminal).add((n, int(e)))
        self.ages[n + 1] = np.where(last, 0, self.ages[n] + 1)
        s_t = self._stack(s, np.where(last, 2 * n + 2, 2 * n + 3))
        self._s = s_t
        if last.any():
            self._s = s_t.copy()
            self._s[last] = self._stack(np.zeros_like(s), np.full(len(s), 2 * n + 3))[last]
            self._left[last] = self._random.integers(SHORTEST, LONGEST, int(last.sum()))
            self._episode += last
        self._step += 1
        return Transition(s, (n + self._who) % ACTIONS, np.full(len(s), n, np.float32), last & ~cut, last, s_t)

    def _stack(self, before: np.ndarray, stamps: np.ndarray) -> np.ndarray:
        after = np.empty_like(before)
        after[:, :-1] = before[:, 1:]
        after[:, -1] = self._frames[(7 * self._step + self._who) % len(self._frames)]
        after[:, -1, 0, :4] = stamps.astype("<u4").view(np.uint8).reshape(-1, 4)
        after[:, -1, 0, 4] = self._who
        return after


class Rows(NamedTuple):
    """A minibatch, stacks first, all else `[B]`; `going` where s' is bootstrapped from."""

    s_tm1: np.ndarray
    a_tm1: np.ndarray
    r_t: np.ndarray
    going: np.ndarray
    s_t: np.ndarray


def check(rows: Rows, source: Source, ends: set[tuple[int, int]]) -> int:
    """Compares a minibatch with what was added; returns how many rows were bootstrapped from.

    Args:
      rows: the minibatch.
      source: of the steps.
      ends: vector steps and environments of the steps that the side has to take for terminal.
    """
    s, s_t = rows.s_tm1, rows.s_t
    if any(x.shape != (BATCH, *OBSERVATION) or x.dtype != np.uint8 for x in (s, s_t)):
        raise SystemExit(f"observations of another form: {s.shape} {s.dtype}, {s_t.shape} {s_t.dtype}")
    n, who = rows.r_t.astype(int), s[:, -1, 0, 4].astype(int)
    stamps, next_stamps = (np.ascontiguousarray(x[:, :, 0, :4]).view("<u4")[:, :, 0].astype(int) for x in (s, s_t))
    older = np.arange(STACK - 1, -1, -1)
    wanted = np.where(older <= source.ages[n, who][:, None], 2 * (n[:, None] - older) + 1, 0)
    at = list(zip(n.tolist(), who.tolist(), strict=True))
    ended = np.array([place in source.terminal or place in source.cut for place in at])
    facts = {
        "rewards are not those of the frames": stamps[:, -1] == 2 * n + 1,
        "actions are not those of the frames": rows.a_tm1 == (n + who) % ACTIONS,
        "stacks are not an episode's newest frames, or zeros": (stamps == wanted).all(axis=1),
        "ends are not where they were": rows.going == np.array([place not in ends for place in at]),
        "s' has not the newest frames of s": ~rows.going | (s_t[:, :-1] == s[:, 1:]).all(axis=(1, 2, 3)),
        "s' is not what was seen next": ~rows.going | (next_stamps[:, -1] == np.where(ended, 2 * n + 2, 2 * n + 3)),
    }
    for what, holds in facts.items():
        if not holds.all():
            raise SystemExit(f"{what} in {int((~holds).sum())} of {BATCH} transitions")
    return int(rows.going.sum())


class Side(Protocol):
    """A replay under test. `add` and `sample` are timed."""

    environments: int
    cut_is_terminal: bool

    def prepare(self, step: Transition) -> Any: ...
    def add(self, prepared: Any) -> None: ...
    def sample(self) -> Any: ...
    def rows(self, batch: Any) -> Rows: ...


class Ours:
    """twin_graph.replay.ring.Replay."""

    environments, cut_is_terminal = ENVIRONMENTS, False

    def __init__(self, steps: int) -> None:
        self._replay = Replay(
            capacity_steps=steps,
            environments=ENVIRONMENTS,
            observation_shape=OBSERVATION,
            dtype=np.uint8,
            stack=STACK,
            n_step=1,
            discount=DISCOUNT,
        )
        self._drawn = 0

    def prepare(self, step: Transition) -> Transition:
        return step

    def add(self, prepared: Transition) -> None:
        self._replay.add(prepared)

    def sample(self) -> Batch:
        return self._draw(1)

    def chunk(self) -> Batch:
        """16 minibatches."""
        return self._draw(CHUNK)

    def _draw(self, minibatches: int) -> Batch:
        first, self._drawn = self._drawn, self._drawn + minibatches
        return self._replay.sample(BATCH, [stream(0, Purpose.SAMPLE, i) for i in range(first, self._drawn)])

    def rows(self, batch: Batch) -> Rows:
        _same_type(batch.a_tm1, np.int32, batch.r_t, np.float32, batch.discount_t, np.float32)
        if not np.isin(batch.discount_t, np.array([0, DISCOUNT], np.float32)).all():
            raise SystemExit(f"discounts are {np.unique(batch.discount_t)}")
        return Rows(batch.s_tm1, batch.a_tm1, batch.r_t, batch.discount_t > 0, batch.s_t)


class StableBaselines3:
    """stable_baselines3.common.buffers.ReplayBuffer, on the CPU."""

    environments = ENVIRONMENTS

    def __init__(self, steps: int, *, half: bool) -> None:
        import torch
        from gymnasium.spaces import Box, Discrete
        from stable_baselines3.common.buffers import ReplayBuffer

        torch.set_num_threads(1)
        self.cut_is_terminal = half
        self._buffer = ReplayBuffer(
            steps,
            Box(0, 255, OBSERVATION, np.uint8),
            Discrete(ACTIONS),
            device="cpu",
            n_envs=ENVIRONMENTS,
            optimize_memory_usage=half,
            handle_timeout_termination=not half,
        )

    def prepare(self, step: Transition) -> tuple[Any, ...]:
        cut = step.last_t & ~step.terminal_t
        infos = [{"TimeLimit.truncated": bool(x)} for x in cut]  # as its vector environments say it
        return step.s_tm1, step.s_t, step.a_tm1, step.r_t, step.last_t, infos

    def add(self, prepared: tuple[Any, ...]) -> None:
        self._buffer.add(*prepared)

    def sample(self) -> Any:
        return self._buffer.sample(BATCH)

    def rows(self, batch: Any) -> Rows:
        s, a, s_t, done, r = (x.numpy() for x in batch[:5])
        _same_type(a[:, 0], np.int64, r[:, 0], np.float32, done[:, 0], np.float32)
        return Rows(s, a[:, 0], r[:, 0], done[:, 0] == 0, s_t)


class Cpprb:
    """cpprb.ReplayBuffer, one an environment."""

    cut_is_terminal = False

    def __init__(self, steps: int, *, environments: int) -> None:
        from cpprb import ReplayBuffer

        self.environments = environments
        form = {
            "obs": {"shape": (SIDE, SIDE, STACK), "dtype": np.uint8},
            "act": {"dtype": np.int32},
            "rew": {"dtype": np.float32},
            "done": {"dtype": np.bool_},
        }
        self._buffers = [
            ReplayBuffer(steps // environments, form, next_of="obs", stack_compress="obs") for _ in range(environments)
        ]

    def prepare(self, step: Transition) -> list[tuple[dict[str, Any], bool]]:
        s, s_t = (np.moveaxis(x, 1, -1) for x in (step.s_tm1, step.s_t))  # views: faster than copies, stack last
        return [
            (
                {
                    "obs": s[e],
                    "act": step.a_tm1[e],
                    "rew": step.r_t[e],
                    "done": step.terminal_t[e],
                    "next_obs": s_t[e],
                },
                bool(step.last_t[e]),
            )
            for e in range(self.environments)
        ]

    def add(self, prepared: list[tuple[dict[str, Any], bool]]) -> None:
        for buffer, (values, last) in zip(self._buffers, prepared, strict=True):
            buffer.add(**values)
            if last:
                buffer.on_episode_end()

    def sample(self) -> dict[str, np.ndarray]:
        parts = [buffer.sample(BATCH // self.environments) for buffer in self._buffers]
        return parts[0] if len(parts) == 1 else {key: np.concatenate([p[key] for p in parts]) for key in parts[0]}

    def rows(self, batch: dict[str, np.ndarray]) -> Rows:
        a, r, done = (batch[key][:, 0] for key in ("act", "rew", "done"))
        _same_type(a, np.int32, r, np.float32, done, np.bool_)
        return Rows(np.moveaxis(batch["obs"], -1, 1), a, r, ~done, np.moveaxis(batch["next_obs"], -1, 1))


def _same_type(*arrays_and_types: Any) -> None:
    for array, wanted in zip(arrays_and_types[::2], arrays_and_types[1::2], strict=True):
        if array.dtype != wanted or array.shape != (BATCH,):
            raise SystemExit(f"got {array.dtype}{list(array.shape)} and not {np.dtype(wanted)}[{BATCH}]")


SIDES: dict[str, Callable[[int], Side]] = {
    "twin-graph": Ours,
    "Stable-Baselines3": lambda steps: StableBaselines3(steps, half=False),
    "Stable-Baselines3, half memory": lambda steps: StableBaselines3(steps, half=True),
    "cpprb, a buffer for each environment": lambda steps: Cpprb(steps, environments=ENVIRONMENTS),
    "cpprb, one environment": lambda steps: Cpprb(steps, environments=1),
}
PACKAGES = ("twin-graph", "numpy", "torch", "stable-baselines3", "cpprb", "psutil")


def measure(name: str, steps: int) -> Work:
    """Fills, overwrites, checks and samples one side in this process."""
    small = SIDES[name](64 * ENVIRONMENTS)  # imports what it needs
    environments = small.environments
    adding(small, Source(environments, 100), 100)
    del small
    source = Source(environments, 2 * steps // environments)
    gc.collect()
    before = psutil.Process().memory_info().rss
    side = SIDES[name](steps)
    filling = adding(side, source, steps // environments)
    gc.collect()
    grown = psutil.Process().memory_info().rss - before
    full = adding(side, source, steps // environments)
    ends = source.terminal | source.cut if side.cut_is_terminal else source.terminal
    bootstrapped = sum(check(side.rows(side.sample()), source, ends) for _ in range(CHECKED))
    if not BATCH * CHECKED * 0.9 < bootstrapped < BATCH * CHECKED:
        raise SystemExit(f"{bootstrapped} of {BATCH * CHECKED} transitions were bootstrapped from")
    work = {
        "agent_steps": steps,
        "added_per_second_filling": steps / filling,
        "added_per_second_full": steps / full,
        "memory_bytes": grown,
        "one": sampling(side.sample, BATCH),
    }
    if isinstance(side, Ours):
        check_chunk(side, source)
        work["chunk"] = sampling(side.chunk, BATCH * CHUNK)
    return work


def adding(side: Side, source: Source, vector_steps: int) -> float:
    """Seconds that `add` took."""
    seconds = 0.0
    for _ in range(vector_steps):
        prepared = side.prepare(source.step())
        began = time.process_time()
        side.add(prepared)
        seconds += time.process_time() - began
    return seconds


def sampling(draw: Callable[[], Any], transitions: int) -> Work:
    """Transitions per second and page faults, medians of blocks; a minibatch is kept until the next one is there."""
    calls = BLOCK * BATCH // transitions
    rates, faults = [], []
    for _ in range(1 + BLOCKS):
        before, began = resource.getrusage(resource.RUSAGE_SELF).ru_minflt, time.process_time()
        for _ in range(calls):
            batch = draw()
        rates.append(calls * transitions / (time.process_time() - began))
        faults.append((resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before) / BLOCK)
    del batch
    return {"sampled_per_second": statistics.median(rates[1:]), "page_faults": statistics.median(faults[1:])}


def check_chunk(side: Ours, source: Source) -> None:
    """Each minibatch of a chunk is checked as one alone is."""
    chunk = side.chunk()
    for i in range(CHUNK):
        batch = Batch(*(part[i * BATCH : (i + 1) * BATCH] for part in chunk))
        check(side.rows(batch), source, source.terminal)


@click.command()
@click.option("--rounds", default=5, show_default=True, type=click.IntRange(min=1))
@click.option("--steps", default=20_000, show_default=True, type=click.IntRange(min=8_000), help="Agent steps kept.")
@click.option("--json", "path", type=click.Path(path_type=Path), help="Also write the figures here.")
@click.option("--side", type=click.Choice(list(SIDES)), hidden=True)
def main(rounds: int, steps: int, path: Path | None, side: str | None) -> None:
    """Run every side in turn, ROUNDS times; print a table."""
    steps -= steps % ENVIRONMENTS
    if side:
        print(json.dumps(measure(side, steps)))
        return
    works: dict[str, list[Work]] = {name: [] for name in SIDES}
    for _ in track(range(rounds), "rounds", console=Console(stderr=True)):
        for name, done in works.items():
            done.append(in_a_process(__file__, "--side", name, "--steps", str(steps)))
    headings = ("added/s, filling", "full", "sampled/s", "least", "most", "faults", "MB", "bytes/step")
    table = Table("", *headings, box=None, pad_edge=False)
    for name, done in works.items():
        added = (median(done, f"added_per_second_{ring}") for ring in ("filling", "full"))
        memory = median(done, "memory_bytes")
        table.add_row(
            name, *map(thousands, added), *drawn(done, "one"), *map(thousands, (memory / 1e6, memory / steps))
        )
        if "chunk" in done[0]:
            table.add_row(f"  {CHUNK} in a call", "", "", *drawn(done, "chunk"))
    Console(width=120).print(table)
    document = {
        "processor": machine.describe()._asdict(),
        "versions": {name: importlib.metadata.version(name) for name in PACKAGES},
        "work": {"agent_steps": steps, "environments": ENVIRONMENTS, "batch_size": BATCH, "chunk": CHUNK},
        "rounds": works,
    }
    if path:
        path.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


def drawn(done: list[Work], what: str) -> list[str]:
    """The cells about sampling."""
    samplings = [work[what] for work in done]
    rates = [sampling["sampled_per_second"] for sampling in samplings]
    return [thousands(x) for x in (statistics.median(rates), min(rates), max(rates), median(samplings, "page_faults"))]


def median(done: list[Work], key: str) -> float:
    """Over the rounds."""
    return float(statistics.median(work[key] for work in done))


def thousands(number: float) -> str:
    """As the table has numbers."""
    return f"{number:,.0f}"


if __name__ == "__main__":
    main()
