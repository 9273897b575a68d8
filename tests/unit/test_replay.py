"""The ring against a naive list of whole transitions."""

from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from twin_graph.replay.ring import Replay, Transition

DISCOUNT = 0.9


class Step(NamedTuple):
    """One step of one environment, remembered whole."""

    s_tm1: np.ndarray
    a_tm1: int
    r_t: float
    terminal_t: bool
    last_t: bool
    s_t: np.ndarray


class Walk:
    """E environments whose frames are all different, so that a wrong one is seen; images are 1x2 or vectors of 2."""

    def __init__(self, environments: int, stack: int, dtype: type) -> None:
        self.stack, self.dtype, self.count = stack, dtype, 0
        self.observations = [self._first() for _ in range(environments)]
        self.history: list[list[Step]] = [[] for _ in range(environments)]

    def _frame(self) -> np.ndarray:
        self.count += 1
        frame = np.array([self.count % 251 + 1, self.count // 251 % 251 + 1], self.dtype)
        return frame[None] if self.stack > 1 else frame

    def _first(self) -> np.ndarray:
        frame = self._frame()
        return np.stack([np.zeros_like(frame)] * (self.stack - 1) + [frame]) if self.stack > 1 else frame

    def step(self, ends: list[str]) -> Transition:
        """Each environment goes on, loses a life, terminates or is cut."""
        steps = []
        for e, end in enumerate(ends):
            s_tm1 = self.observations[e]
            s_t = np.concatenate([s_tm1[1:], self._frame()[None]]) if self.stack > 1 else self._frame()
            last = end in ("terminal", "cut")
            step = Step(s_tm1, self.count % 7, float(self.count % 5), end in ("terminal", "life"), last, s_t)
            steps.append(step)
            self.history[e].append(step)
            self.observations[e] = self._first() if last else s_t
        return Transition(*(np.array(column) for column in zip(*steps, strict=True)))


def n_step(history: list[Step], start: int, n: int) -> tuple[float, float, np.ndarray]:
    """Return, discount and bootstrap observation by the definition."""
    total, discount = 0.0, 1.0
    for k, step in enumerate(history[start : start + n]):
        total += discount * step.r_t
        discount *= DISCOUNT
        if step.terminal_t:
            return total, 0.0, step.s_t
        if step.last_t or k == n - 1:
            return total, discount, step.s_t
    raise AssertionError("the window runs out of the history")


ENDS = st.sampled_from(["goes on"] * 6 + ["life", "terminal", "cut"])


@settings(max_examples=150)
@given(data=st.data())
def test_every_transition_is_that_of_a_naive_list(data: st.DataObject) -> None:
    environments = data.draw(st.integers(1, 3), "environments")
    stack = data.draw(st.sampled_from([1, 2, 4]), "stack")
    n = data.draw(st.integers(1, 4), "n_step")
    length = data.draw(st.integers(stack + n + 1, 20), "ring length")
    steps = data.draw(st.lists(st.lists(ENDS, min_size=environments, max_size=environments), max_size=50), "steps")
    dtype = np.uint8 if stack > 1 else np.float32
    replay = Replay(
        capacity_steps=length * environments + environments - 1,
        environments=environments,
        observation_shape=(stack, 1, 2) if stack > 1 else (2,),
        dtype=dtype,
        stack=stack,
        n_step=n,
        discount=DISCOUNT,
    )
    walk = Walk(environments, stack, dtype)
    for ends in steps:
        replay.add(walk.step(ends))

    valid = replay.steps()
    assert len(valid) >= min(len(steps), length - stack + 1) - n
    pairs = data.draw(st.permutations([(start, e) for start in valid for e in range(environments)]), "order")
    if not pairs:
        return
    batch = replay.gather(*np.array(pairs).T)
    for row, (start, e) in enumerate(pairs):
        step = walk.history[e][start]
        r_t, discount_t, s_t = n_step(walk.history[e], start, n)
        np.testing.assert_array_equal(batch.s_tm1[row], step.s_tm1)
        assert batch.a_tm1[row] == step.a_tm1
        assert batch.r_t[row] == pytest.approx(r_t, rel=1e-6)
        assert batch.discount_t[row] == pytest.approx(discount_t, rel=1e-6)
        if discount_t:
            np.testing.assert_array_equal(batch.s_t[row], s_t)


def filled(steps: int = 40, capacity: int = 20) -> Replay:
    replay = Replay(
        capacity_steps=capacity,
        environments=2,
        observation_shape=(2,),
        dtype=np.float32,
        stack=1,
        n_step=1,
        discount=DISCOUNT,
    )
    walk = Walk(2, 1, np.float32)
    for _ in range(steps):
        replay.add(walk.step(["goes on", "goes on"]))
    return replay


def test_sampling_is_uniform_over_all_that_can_be_sampled() -> None:
    replay = filled()
    batch = replay.sample(90_000, [np.random.default_rng(0)])
    _, counts = np.unique(batch.s_tm1, axis=0, return_counts=True)
    assert len(counts) == 2 * len(replay.steps()) == 18
    # 5000 expected in each; six standard deviations.
    assert abs(counts - 5_000).max() < 6 * 5_000**0.5


def test_the_same_stream_gives_the_same_sample() -> None:
    replay = filled()
    first, again = (replay.sample(16, [np.random.default_rng(5)]) for _ in range(2))
    np.testing.assert_array_equal(first.s_tm1, again.s_tm1)


def test_nothing_can_be_sampled_from_an_empty_ring() -> None:
    with pytest.raises(ValueError, match="no transition"):
        filled(steps=0).sample(1, [np.random.default_rng(0)])


def test_memory_is_what_was_said_beforehand() -> None:
    replay = filled()
    arrays = [value for value in vars(replay).values() if np.shape(value)[:1] == (replay.length,)]
    assert sum(array.nbytes for array in arrays) == Replay.bytes_needed(20, (2,), np.float32, 1)


def test_a_stack_that_could_not_be_read_back_is_refused() -> None:
    replay = Replay(
        capacity_steps=20, environments=1, observation_shape=(2, 1, 2), dtype=np.uint8, stack=2, n_step=1, discount=0.9
    )
    transition = Walk(1, 2, np.uint8).step(["goes on"])
    repeated = np.repeat(transition.s_tm1[:, -1:], 2, axis=1)  # how Gymnasium's FrameStackObservation pads
    with pytest.raises(ValueError, match='padding_type="zero"'):
        replay.add(transition._replace(s_tm1=repeated))


def test_observations_are_put_where_they_are_asked_for() -> None:
    replay = filled(steps=60)
    anew = replay.sample(16, [np.random.default_rng(5)])
    into = np.full_like(anew.s_tm1, 99), np.full_like(anew.s_t, 99)
    again = replay.sample(16, [np.random.default_rng(5)], into)
    assert again.s_tm1 is into[0]
    assert again.s_t is into[1]
    for ours, theirs in zip(again, anew, strict=True):
        np.testing.assert_array_equal(ours, theirs)
