"""The queueing model of `benchmarks/async_model.py`, against what is known of closed queueing networks."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from queueing import Cost, Load, demands, fit, full_at, update_rate

times = st.floats(1e-4, 10)
lists_of_times = st.lists(times, min_size=1, max_size=3)


@given(think=times, visits=lists_of_times)
def test_one_worker_waits_for_nobody(think: float, visits: list[float]) -> None:
    assert update_rate(1, think, visits) == pytest.approx(1 / (think + sum(visits)))


@given(times_of_slowest=st.floats(0, 10), visits=lists_of_times)
def test_many_workers_fill_the_slowest_station(times_of_slowest: float, visits: list[float]) -> None:
    think = times_of_slowest * max(visits)
    assert update_rate(500, think, visits) == pytest.approx(1 / max(visits), rel=0.01)


def test_one_station_follows_the_machine_repairman() -> None:
    """Think and service exponential, for which mean value analysis is exact: Erlang's formula for a finite source."""
    workers, think, service = 5, 3.0, 1.0
    weights = [math.perm(workers, busy) * (service / think) ** busy for busy in range(workers + 1)]
    assert update_rate(workers, think, [service]) == pytest.approx((1 - weights[0] / sum(weights)) / service)


@given(workers=st.integers(1, 64), think=times, visits=lists_of_times)
def test_more_workers_make_more_and_never_more_than_either_bound(
    workers: int, think: float, visits: list[float]
) -> None:
    rate = update_rate(workers, think, visits)
    assert update_rate(workers + 1, think, visits) >= rate * (1 - 1e-9)
    assert rate <= min(workers / (think + sum(visits)), 1 / max(visits)) * (1 + 1e-9)


@given(workers=st.integers(1, 64), think=times, visits=lists_of_times, slower=st.floats(1, 10))
def test_slower_stations_and_longer_thought_never_help(
    workers: int, think: float, visits: list[float], slower: float
) -> None:
    rate = update_rate(workers, think, visits) * (1 + 1e-9)
    assert update_rate(workers, slower * think, visits) <= rate
    assert update_rate(workers, think, [slower * visits[0], *visits[1:]]) <= rate


def test_two_servers_with_equal_halves_double_the_capacity_and_the_largest_variable_limits_it() -> None:
    def capacity(*sizes: int) -> float:
        loads = [Load(2, size) for size in sizes]
        return 1 / max(demands(loads, Cost(0.0, 0.0, 2e-9), bits_per_second=1e9).values())

    assert capacity(4_000_000, 4_000_000) == pytest.approx(2 * capacity(8_000_000))
    assert capacity(7_600_000, 400_000) == pytest.approx(capacity(8_000_000) / 0.95)
    assert capacity(7_600_000, 200_000, 200_000) == capacity(7_600_000, 400_000)


def test_messages_variables_bytes_and_claims_are_counted_where_they_fall() -> None:
    processor = Cost(messages=0.001, per_variable=0.0002, per_byte=1e-9)
    one = demands([Load(5, 1_000_000), Load(10, 500_000)], processor, counting=0.002, bits_per_second=1e10)
    assert one == pytest.approx({"processor": 0.005, "network in": 0.0008, "network out": 0.0008})
    other = demands([Load(1, 500_000), Load(20, 1_000_000)], processor, counting=0.002)
    assert other == pytest.approx({"processor": 0.006, "network in": 0.0, "network out": 0.0})


def test_the_fullest_station_and_the_workers_that_fill_it() -> None:
    workers, station = full_at(0.9, {"processor": 0.02, "network in": 0.05, "network out": 0.03})
    assert station == "network in"
    assert workers == pytest.approx(20)


LOADS = [Load(4, 20_000), Load(16, 120_000), Load(8, 3_000_000), Load(4, 4_000_000), Load(8, 12_000_000)]


@given(messages=st.floats(1e-4, 1e-2), per_variable=st.floats(1e-5, 1e-3), per_byte=st.floats(1e-10, 1e-8))
def test_a_fit_finds_what_the_parts_cost(messages: float, per_variable: float, per_byte: float) -> None:
    cost = Cost(messages, per_variable, per_byte)
    assert fit((load, cost.at(load)) for load in LOADS) == pytest.approx(cost, rel=1e-4)


def test_no_part_of_a_fit_is_negative_and_the_others_make_the_best_of_it() -> None:
    cost = Cost(0.005, 0.0002, 1e-9)
    assert fit((load, cost._replace(messages=-0.0005).at(load)) for load in LOADS).messages == 0
    falling = fit((load, 0.01 - 1e-10 * load.size) for load in LOADS)
    assert falling.per_byte == 0
    assert falling.at(LOADS[2]) == pytest.approx(0.0095, rel=0.06)
