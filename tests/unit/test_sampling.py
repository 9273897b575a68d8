"""Which steps an update learns from: the sum tree, prioritized replay against its formulas, rollouts against theirs."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from twin_graph.base.streams import Purpose, Streams, stream
from twin_graph.config.settings import Settings
from twin_graph.errors import UsageError
from twin_graph.replay import sampling
from twin_graph.replay.ring import Batch, Replay, Transition
from twin_graph.replay.sampling import Prioritized, Rollouts, Uniform
from twin_graph.replay.sum_tree import SumTree

Make = Callable[..., Settings]
ENVIRONMENTS = 3


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=70), st.integers(0, 2**31))
def test_the_sum_tree_finds_what_a_cumulative_sum_finds(numbers: list[float], seed: int) -> None:
    tree = SumTree(len(numbers))
    random = np.random.default_rng(seed)
    for index in random.permutation(len(numbers)):  # one by one, over other values
        tree.set(np.array([index, index]), np.array([7.0, numbers[index]]))
    assert tree.total == pytest.approx(math.fsum(numbers))
    np.testing.assert_array_equal(tree.get(np.arange(len(numbers))), numbers)
    if tree.total > 0:
        sums = random.random(50) * tree.total
        found = tree.find(sums)
        ends = np.cumsum(numbers)
        slack = 1e-9 * tree.total
        assert (sums <= ends[found] + slack).all()
        assert (sums >= ends[found] - np.array(numbers)[found] - slack).all()
        assert (np.array(numbers)[found] > 0).all()


def test_a_sum_that_rounding_has_made_too_large_still_finds_a_number_that_is_not_zero() -> None:
    tree = SumTree(5)
    tree.set(np.array([0, 1]), np.array([0.1, 0.2]))
    np.testing.assert_array_equal(tree.find(np.array([np.nextafter(tree.total, 1), 0.0])), [1, 0])


def replay(n_step: int = 2, capacity_steps: int = 30) -> Replay:
    return Replay(
        capacity_steps=capacity_steps,
        environments=ENVIRONMENTS,
        observation_shape=(1,),
        dtype=np.float32,
        stack=1,
        n_step=n_step,
        discount=0.9,
    )


def transition(random: np.random.Generator, step: int, *, ends: float = 0.15) -> Transition:
    """Environment e observes 10 * step + e before its step, and that plus 5 after."""
    terminal = random.random(ENVIRONMENTS) < ends / 2
    s_tm1 = (10.0 * step + np.arange(ENVIRONMENTS, dtype=np.float32))[:, None].astype(np.float32)
    return Transition(
        s_tm1=s_tm1,
        a_tm1=random.integers(0, 4, ENVIRONMENTS),
        r_t=random.normal(size=ENVIRONMENTS).astype(np.float32),
        terminal_t=terminal,
        last_t=terminal | (random.random(ENVIRONMENTS) < ends / 2),
        s_t=s_tm1 + 5,
    )


@pytest.mark.parametrize("prioritized", [False, True])
def test_a_loop_of_ones_own_may_have_other_environments_than_the_settings_say(
    cartpole: Make, prioritized: bool
) -> None:
    ring, random = replay(n_step=1), np.random.default_rng(1)
    sampler = sampling.of(ring, cartpole(env__count=8, replay__prioritized=prioritized))
    for step in range(9):
        ring.add(transition(random, step))
        sampler.added()
    batch = sampler.sample(range(1, 3))
    assert set(batch.environment) == set(range(ENVIRONMENTS))
    np.testing.assert_array_equal(batch.s_tm1[:, 0], 10 * batch.step + batch.environment)


def test_rollouts_need_as_many_environments_as_their_settings_say(cartpole: Make) -> None:
    lengths = {"rollout_steps": 2, "n_step": 2, "every_steps": 16, "start_steps": 64, "batch_size": 16}
    settings = cartpole(env__count=8, **{f"train__{name}": value for name, value in lengths.items()})
    with pytest.raises(UsageError, match=r"needs env\.count=8 environments; the agent has 3"):
        sampling.of(replay(), settings)


def test_a_rollout_whose_frames_are_overwritten_is_refused(cartpole: Make) -> None:
    lengths = {"rollout_steps": 2, "n_step": 2, "every_steps": 6, "start_steps": 21, "batch_size": 6}
    settings = cartpole(env__count=3, **{f"train__{name}": value for name, value in lengths.items()})
    ring, random = replay(n_step=2, capacity_steps=30), np.random.default_rng(1)
    sampler = sampling.of(ring, settings)
    for step in range(18):
        ring.add(transition(random, step))
    assert set(sampler.sample(range(1, 2)).step) == {9, 10}
    with pytest.raises(UsageError, match="a rollout's frames were overwritten before its update"):
        sampler.sample(range(0, 2))


def prioritized(make: Make, ring: Replay, **changes: Any) -> Prioritized:
    return Prioritized(
        ring,
        make(env__count=ENVIRONMENTS, replay__prioritized=True, train__start_steps=100, **changes),
    )


def test_priorities_are_those_of_a_list_of_all_steps(cartpole: Make) -> None:
    """The tree against a dictionary: new steps, steps that are gone, TD errors of steps that went meanwhile."""
    ring = replay()
    sampler = prioritized(cartpole, ring, replay__priority_exponent=0.7)
    random = np.random.default_rng(0)
    priorities: dict[tuple[int, int], float] = {}
    largest = 1.0
    late: list[tuple[Batch, np.ndarray]] = []
    for step in range(60):
        ring.add(transition(random, step))
        sampler.added()
        now = {(s, e) for s in ring.steps() for e in range(ENVIRONMENTS)}
        priorities = {place: priorities.get(place, largest) for place in now}
        if now and step % 3 == 0:
            batch = sampler.sample(range(step, step + 2))
            late.append((batch, 3 * random.normal(size=len(batch.step)).astype(np.float32)))
        if len(late) == 3:  # in the schedule by chunks TD errors come late as well
            batch, td_error = late.pop(0)
            sampler.learnt(batch, td_error)
            largest = max(largest, float(np.abs(td_error).max()))
            for s, e, delta in zip(batch.step, batch.environment, td_error, strict=True):
                if (int(s), int(e)) in now:
                    priorities[int(s), int(e)] = abs(float(delta))
        stored = sampler.state()["priorities"]
        ours = [[priorities[s, e] ** 0.7 for e in range(ENVIRONMENTS)] for s in ring.steps()]
        np.testing.assert_allclose(stored, np.reshape(ours, stored.shape), rtol=1e-12)
        assert sampler._tree.total == pytest.approx(np.sum(ours))
    assert largest > 1


@pytest.mark.parametrize("mode", [{}, {"mode": "mutual", "mutual__learn": "both"}], ids=["plain", "both learn"])
def test_probabilities_and_weights_are_those_of_dqn_zoo(cartpole: Make, mode: dict[str, Any]) -> None:
    """Its `PrioritizedDistribution.sample` and `importance_sampling_weights`, written down for all steps at once."""
    ring = replay(capacity_steps=60)
    share, beta_start = 0.2, 0.4
    sampler = prioritized(
        cartpole,
        ring,
        train__batch_size=20_000,
        replay__capacity_steps=200,
        replay__uniform_share=share,
        replay__importance_updates=10,
        **mode,
    )
    random = np.random.default_rng(1)
    for step in range(40):
        ring.add(transition(random, step))
        sampler.added()
    everything = ring.gather(np.repeat(ring.steps(), ENVIRONMENTS), np.tile(np.arange(ENVIRONMENTS), len(ring.steps())))
    td_error = random.normal(size=len(everything.step)).astype(np.float32) * 2
    sampler.learnt(everything, td_error)

    exponentiated = np.abs(td_error.astype(np.float64)) ** 0.6
    probability = (1 - share) * exponentiated / exponentiated.sum() + share / len(td_error)
    for update in (0, 5, 10, 1000):
        minibatch = update // (2 if mode else 1)  # from which two updates learn
        beta = beta_start + (1 - beta_start) * min(1, minibatch * (2 if mode else 1) / 10)
        batch = sampler.sample(range(minibatch, minibatch + 1))
        row = (batch.step - ring.steps().start) * ENVIRONMENTS + batch.environment
        weight = (1 / len(td_error) / probability[row]) ** beta
        np.testing.assert_allclose(batch.weight, weight / weight.max(), rtol=1e-6)
        drawn = np.bincount(row, minlength=len(td_error))
        spread = np.sqrt(20_000 * probability * (1 - probability))
        assert (np.abs(drawn - 20_000 * probability) < 5 * spread).all()
        np.testing.assert_array_equal(batch.s_tm1[:, 0], 10 * batch.step + batch.environment)


def test_steps_whose_td_errors_are_all_zero_are_sampled_uniformly(cartpole: Make) -> None:
    """Where every reward is 0 and the target agrees, no step has a priority; the weights were NaN."""
    ring = replay(capacity_steps=30)
    sampler = prioritized(cartpole, ring, train__batch_size=2_000)
    random = np.random.default_rng(0)
    for step in range(40):  # the newest go into the ring before anything is learnt of them, the oldest are gone
        ring.add(transition(random, step))
        sampler.added()
    everything = ring.gather(np.repeat(ring.steps(), ENVIRONMENTS), np.tile(np.arange(ENVIRONMENTS), len(ring.steps())))
    sampler.learnt(everything, np.zeros(len(everything.step), np.float32))
    batch = sampler.sample(range(1, 3))
    np.testing.assert_array_equal(batch.weight, 1)
    drawn = np.bincount((batch.step - ring.steps().start) * ENVIRONMENTS + batch.environment)
    assert len(drawn) == len(everything.step)
    assert (np.abs(drawn - 4_000 / len(drawn)) < 5 * np.sqrt(4_000 / len(drawn))).all()


def test_a_sampler_goes_on_from_a_resume_point(cartpole: Make) -> None:
    rings = [replay(), replay()]
    first, second = (prioritized(cartpole, ring) for ring in rings)
    random = np.random.default_rng(2)
    for step in range(25):
        rings[0].add(transition(random, step))
        first.added()
        if len(rings[0].steps()) > 3:
            batch = first.sample(range(step, step + 1))
            first.learnt(batch, random.normal(size=len(batch.step)).astype(np.float32))
    rings[0].cut()
    rings[1].restore(rings[0].kept.start, rings[0].stored(rings[0].kept))
    second.restore(first.state())
    for step in range(25, 60):
        more = transition(random, step)
        batches = []
        for ring, sampler in zip(rings, (first, second), strict=True):
            ring.add(more)
            sampler.added()
            batches.append(sampler.sample(range(step, step + 2)))
            sampler.learnt(batches[-1], np.linspace(-3, 3, len(batches[-1].step)).astype(np.float32))
        for ours, theirs in zip(*batches, strict=True):
            np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize("n_step", [1, 4])
def test_a_sampler_goes_on_with_another_n_step(cartpole: Make, n_step: int) -> None:
    before, after = replay(n_step=2), replay(n_step=n_step)
    first, second = prioritized(cartpole, before), prioritized(cartpole, after)
    random = np.random.default_rng(3)
    for step in range(20):
        before.add(transition(random, step))
        first.added()
    batch = first.sample(range(4))
    first.learnt(batch, random.normal(size=len(batch.step)).astype(np.float32))
    before.cut()
    after.restore(before.kept.start, before.stored(before.kept))
    second.restore(first.state())
    stored, ours = first.state()["priorities"], second.state()["priorities"]
    both = min(len(stored), len(ours))
    assert len(ours) == len(after.steps()) == len(stored) + 2 - n_step
    np.testing.assert_array_equal(ours[:both], stored[:both])
    assert (ours[both:] == second.state()["largest_priority"] ** 0.6).all()  # never learnt from


def forward_view(steps: list[Transition], first: int, stop: int, e: int, start: int) -> tuple[float, float, float]:
    """Return, discount and bootstrap observation from `start`, backwards from the end, as algorithm S2 has it."""
    end = start
    while end < stop - 1 and not steps[end].last_t[e] and not steps[end].terminal_t[e]:
        end += 1
    value = 0.0
    discount = 0.0 if steps[end].terminal_t[e] else 1.0
    for i in range(end, start - 1, -1):
        value = float(steps[i].r_t[e]) + 0.9 * value
        discount *= 0.9
    return value, discount, float(steps[end].s_t[e, 0])


def test_rollouts_are_the_forward_view_of_all_new_steps_each_once(cartpole: Make) -> None:
    length = 4
    settings = cartpole(
        env__count=ENVIRONMENTS,
        train__rollout_steps=length,
        train__n_step=length,
        train__every_steps=12,
        train__batch_size=4,
        train__accumulate=3,
        train__start_steps=30,
    )
    ring = replay(n_step=length, capacity_steps=60)
    sampler = Rollouts(ring, settings)
    random = np.random.default_rng(3)
    steps = []
    for step in range(70):
        # The observation after a step that ends nothing is the next one before a step.
        steps.append(transition(random, step, ends=0.4))
        continues = ~(steps[-1].last_t | steps[-1].terminal_t)
        steps[-1].s_t[continues] += 5
        ring.add(steps[-1])
        sampler.added()
        update, rest = divmod(step + 1 - 10, length)
        if rest or update < 1:
            continue
        batch = sampler.sample(range(update - 1, update))
        first, stop = 10 + (update - 1) * length, step + 1
        places = [(s, e) for s in range(first, stop) for e in range(ENVIRONMENTS)]
        assert list(zip(batch.step.tolist(), batch.environment.tolist(), strict=True)) == places
        for row, (s, e) in enumerate(places):
            value, discount, bootstrap = forward_view(steps, first, stop, e, s)
            assert batch.r_t[row] == pytest.approx(value, abs=1e-5)
            assert batch.discount_t[row] == pytest.approx(discount)
            if discount:
                assert batch.s_t[row, 0] == bootstrap
    two = sampler.sample(range(12, 14))
    for ours, theirs, again in zip(two, sampler.sample(range(12, 13)), sampler.sample(range(13, 14)), strict=True):
        np.testing.assert_array_equal(ours, np.concatenate([theirs, again]))


def test_rollouts_of_stacked_frames_bootstrap_from_the_newest_observation(cartpole: Make) -> None:
    ring = Replay(
        capacity_steps=60,
        environments=2,
        observation_shape=(3, 1, 1),
        dtype=np.uint8,
        stack=3,
        n_step=4,
        discount=1.0,
    )
    frames = np.zeros((2, 3, 1, 1), np.uint8)
    frames[:, -1] = 1
    for step in range(8):
        following = np.concatenate([frames[:, 1:], np.full((2, 1, 1, 1), step + 2, np.uint8)], axis=1)
        never = np.zeros(2, np.bool_)
        ring.add(Transition(frames, np.zeros(2, np.int64), np.ones(2, np.float32), never, never, following))
        frames = following
    batch = ring.gather(np.array([4, 7]), np.array([0, 1]), limit=np.array([8, 8]))
    np.testing.assert_array_equal(batch.s_t[:, :, 0, 0], [[7, 8, 9], [7, 8, 9]])
    np.testing.assert_array_equal(batch.r_t, [4, 1])


@given(st.lists(st.integers(0, 2**40), min_size=2, max_size=5), st.integers(0, 2**32), st.integers(0, 3))
def test_streams_are_those_of_their_counters_whatever_was_drawn_before(
    counters: list[int], seed: int, drawn: int
) -> None:
    streams = Streams(seed, Purpose.SAMPLE)
    for counter in counters:
        ours, fresh = streams.at(counter), stream(seed, Purpose.SAMPLE, counter)
        for random in (ours, fresh):
            random.integers(0, 10, size=drawn)  # leaves half of a number behind
        assert (ours.integers(0, 1_000, 9) == fresh.integers(0, 1_000, 9)).all()
        assert ours.random() == fresh.random()


def test_nothing_to_sample_is_said(cartpole: Make) -> None:
    ring = replay()
    for sampler in (prioritized(cartpole, ring), Uniform(ring, cartpole())):
        with pytest.raises(ValueError, match="no transition of n steps is complete yet"):
            sampler.sample(range(1))
