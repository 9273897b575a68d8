"""Target policies against their definitions: what each chooses, what it may choose later, what a text means."""

import contextlib
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tables import rows

from twin_graph import config
from twin_graph.base.streams import Purpose, stream
from twin_graph.errors import ForeignError, UsageError
from twin_graph.snapshots.ledger import Commit, Counters, Health
from twin_graph.targets import policies
from twin_graph.targets.evaluations import matches
from twin_graph.targets.policies import Choice, History, Match, parse

FORMS = [
    ("latest", "latest", {}),
    (" latest( ) ", "latest", {}),
    ("lag(1000)", "lag", {"updates": 1000}),
    ("window(8)", "window", {"size": 8}),
    ("mix(0.8, 8)", "mix", {"probability": 0.8, "size": 8}),
    ("mix(0.8)", "mix", {"probability": 0.8, "size": 8}),
    ("mix(1,3)", "mix", {"probability": 1.0, "size": 3}),
    ("pinned(000003)", "pinned", {"snapshot": "000003"}),
    ("pinned(3)", "pinned", {"snapshot": "000003"}),
    ("pinned(000003-00)", "pinned", {"snapshot": "000003-00"}),
    ("ensemble(4)", "ensemble", {"size": 4, "combine": "mean"}),
    ("ensemble(4, min)", "ensemble", {"size": 4, "combine": "min"}),
    ("average(4)", "average", {"size": 4}),
    ("best", "best", {"rule": "test", "stall": 3}),
    ("best(mean)", "best", {"rule": "mean", "stall": 3}),
    ("best(test, 5000)", "best", {"rule": "test", "stall": 5000}),
    ("rollback", "rollback", {"limit": 1.0}),
    ("rollback(2)", "rollback", {"limit": 2.0}),
]


def snapshot(number: int, updates: int, health: Health | None = None) -> Commit:
    return Commit(
        attempt=1,
        time="",
        snapshot=f"{number:06d}-{number:08x}",
        number=number,
        lineage="online",
        parent=None,
        counters=Counters(agent_steps=4 * updates, updates=updates, frames=16 * updates, episodes=0),
        weights_sha256=f"{number:064x}",
        bytes=0,
        health=health,
    )


def q(largest: float, limit: float | None) -> Health:
    return Health(q_abs_mean=largest / 2, q_abs_max=largest, q_limit=limit)


def numbers(snapshots: Sequence[Commit]) -> list[int | None]:
    return [s.number for s in snapshots]


def choose(text: str, history: History, counter: int = 0) -> Choice:
    return parse(text).choose(history, stream(1, Purpose.TARGET, counter))


def draw(text: str, history: History, times: int) -> list[Choice]:
    """What the policy chooses at the first so many updates."""
    policy = parse(text)
    return [policy.choose(history, stream(1, Purpose.TARGET, counter)) for counter in range(times)]


FIVE = [snapshot(number, 100 * number) for number in range(5)]

# Histories grow by events: a commit with so many updates since the event before, or a match of the newest.
_Q = st.sampled_from([0.0, 1.0, 2.0, 4.0, 100.0])
_COMMIT = st.tuples(st.integers(0, 300), st.none() | st.builds(q, _Q, st.none() | _Q))
_MATCH = st.tuples(st.integers(0, 100), st.integers(0, 3), st.integers(0, 3), st.booleans())
_EVENTS = st.tuples(_COMMIT, st.lists(_COMMIT | _MATCH, max_size=20)).map(lambda parts: [parts[0], *parts[1]])
_POLICIES = (
    st.sampled_from(["latest", "lag(1)", "lag(250)", "lag(5000)", "window(1)", "window(3)", "mix(0.5, 3)", "mix(0)"])
    | st.sampled_from(["pinned(000002)", "pinned(0000)", "pinned(9)", "ensemble(3, min)", "ensemble(1)"])
    | st.sampled_from(["rollback", "rollback(0.5)", "best", "best(mean)", "best(test, 2)", "best(mean, 1)"])
)


def history_of(events: Sequence[tuple[Any, ...]]) -> History:
    """What a policy sees after these events."""
    updates, snapshots, played = 0, [], []
    for event in events:
        updates += event[0]
        if len(event) == 2:
            snapshots.append(snapshot(len(snapshots), updates, event[1]))
            continue
        _, ours, theirs, by_test = event
        newest = snapshots[-1].id
        returns = {newest: [100.0 * ours + game for game in range(8)]}
        held = policies.incumbent(History(updates, snapshots, played), "test" if by_test else "mean")
        if held and held.snapshot != newest:
            returns[held.snapshot] = [100.0 * theirs + game for game in range(8)]
        played.append(Match(updates, newest, returns))
    return History(updates, snapshots, played)


@pytest.mark.parametrize(("rule", "stall"), [("test", 1), ("mean", 1), ("test", 3), ("mean", 3)])
def test_retention_of_those_who_lost_changes_nothing_for_the_best(rule: str, stall: int) -> None:
    """0 is best, 1 loses; then, of 2 and 3, each beats the one before, and 4 loses."""
    for played in range(1, 6):
        events: list[tuple[Any, ...]] = []
        for ours, theirs in [(1, 0), (0, 1), (2, 1), (3, 2), (0, 3)][:played]:
            events += [(100, None), (0, ours, theirs, rule == "test")]
        history = history_of(events)
        chosen = choose(f"best({rule}, {stall})", history)
        kept = history._replace(snapshots=[s for s in history.snapshots if s in chosen.candidates])
        assert choose(f"best({rule}, {stall})", kept) == chosen


@given(events=_EVENTS, text=_POLICIES, counter=st.integers(0, 10**9), data=st.data())
def test_what_is_chosen_later_was_a_candidate_or_is_newer_whatever_else_is_removed(
    events: list[tuple[Any, ...]], text: str, counter: int, data: st.DataObject
) -> None:
    """What retention relies on: it removes any of those that were no candidates, and no later choice changes."""
    cut = data.draw(st.integers(1, len(events)))
    before, after = history_of(events[:cut]), history_of(events)
    after = after._replace(updates=after.updates + data.draw(st.integers(0, 1000)))
    older = [s.id for s in before.snapshots[:-1]]
    gone = data.draw(st.sets(st.sampled_from(older)) if older else st.just(set()))
    before = before._replace(snapshots=[s for s in before.snapshots if s.id not in gone])
    after = after._replace(snapshots=[s for s in after.snapshots if s.id not in gone])

    candidates = {s.id for s in choose(text, before, counter).candidates}
    newer = {s.id for s in after.snapshots} - {s.id for s in before.snapshots}
    later = choose(text, after, counter + 1)
    assert {s.id for s in later.snapshots} <= candidates | newer
    assert {s.id for s in later.candidates} <= candidates | newer

    others = sorted({s.id for s in before.snapshots} - candidates)
    removed = data.draw(st.sets(st.sampled_from(others)) if others else st.just(set()))
    kept = after._replace(snapshots=[s for s in after.snapshots if s.id not in removed])
    again = choose(text, kept, counter + 1)
    assert (again.snapshots, again.draw) == (later.snapshots, later.draw)


@given(events=_EVENTS, text=_POLICIES, counter=st.integers(0, 10**9))
def test_a_choice_follows_from_history_and_stream_alone(events: list[tuple[Any, ...]], text: str, counter: int) -> None:
    first = choose(text, history_of(events), counter)
    policies.bootstrap_p.cache_clear()
    choose(text, history_of(events), counter + 1)
    assert choose(text, history_of(events), counter) == first
    assert {s.id for s in first.snapshots} <= {s.id for s in first.candidates}
    assert first.reason


@given(events=_EVENTS)
def test_latest_is_the_newest(events: list[tuple[Any, ...]]) -> None:
    history = history_of(events)
    choice = choose("latest", history)
    assert choice.snapshots == choice.candidates == [max(history.snapshots, key=lambda s: s.number or 0)]


@given(events=_EVENTS, age=st.integers(1, 2000), since=st.integers(0, 1000))
def test_lag_is_the_newest_that_is_old_enough_or_the_first(events: list[tuple[Any, ...]], age: int, since: int) -> None:
    history = history_of(events)
    history = history._replace(updates=history.updates + since)
    choice = choose(f"lag({age})", history)
    [chosen] = choice.snapshots
    old_enough = [s for s in history.snapshots if history.updates - s.updates >= age]
    assert chosen == (old_enough[-1] if old_enough else history.snapshots[0])
    assert choice.candidates == [s for s in history.snapshots if (s.number or 0) >= (chosen.number or 0)]


@pytest.mark.parametrize(("updates", "number"), [(0, 0), (99, 0), (100, 0), (199, 0), (200, 1), (399, 2), (10_000, 4)])
def test_lag_by_hand(updates: int, number: int) -> None:
    history = History(updates, [s for s in FIVE if s.updates <= updates])
    assert numbers(choose("lag(100)", history).snapshots) == [number]


@pytest.mark.parametrize("there", [3, 8, 30])
def test_window_draws_each_of_the_last_with_the_same_probability(there: int) -> None:
    history = History(0, [snapshot(number, number) for number in range(there)])
    last, draws = range(max(0, there - 8), there), 4_000
    counts: Counter[int | None] = Counter()
    for choice in draw("window(8)", history, draws):
        counts.update(numbers(choice.snapshots))
        assert numbers(choice.candidates) == list(last)
        assert choice.draw is not None
    assert set(counts) == set(last)
    expected = draws / len(last)
    assert sum((count - expected) ** 2 / expected for count in counts.values()) < 30  # chi-square, 99.9% even of 7: 24


@pytest.mark.parametrize("probability", [0.0, 0.3, 0.8, 1.0])
def test_mix_takes_the_newest_with_its_probability_and_else_draws_from_the_window(probability: float) -> None:
    history = History(0, [snapshot(number, number) for number in range(30)])
    draws, size = 4_000, 4
    choices = draw(f"mix({probability}, {size})", history, draws)
    counts = Counter(choice.snapshots[0].number for choice in choices)
    assert set(counts) == ({26, 27, 28, 29} if probability < 1 else {29})
    for number in (26, 27, 28, 29):
        share = (1 - probability) / size + (probability if number == 29 else 0)
        assert abs(counts[number] / draws - share) < 4.5 * np.sqrt(share * (1 - share) / draws) + 1e-9
    assert all(numbers(choice.candidates) == [26, 27, 28, 29] for choice in choices)
    by_window = sum("drawn at random" in choice.reason for choice in choices)
    assert abs(by_window / draws - (1 - probability)) < 0.035


def arrived(number: int, agent_steps: int, url: str) -> Commit:
    """A snapshot that arrived from another run's remote after so many agent steps."""
    return snapshot(number, agent_steps // 4).model_copy(
        update={
            "snapshot": f"import-{number:012x}",
            "number": None,
            "lineage": "import",
            "origin": f"{url}:{number:06d}-{number:08x}",
        }
    )


@pytest.mark.parametrize("past", [0.0, 0.3, 1.0])
def test_league_draws_the_own_past_and_the_other_runs_each_with_its_probability(past: float) -> None:
    others = [arrived(i, 400, url) for i, url in enumerate(("s3://a/one", "s3://a/two", "file:///three"))]
    draws = 3_000
    choices = draw(f"league({past}, 2)", History(0, FIVE, league=others), draws)
    counts = Counter(choice.snapshots[0].id for choice in choices)
    expected = {one.id: past / 2 for one in FIVE[-2:]} | {one.id: (1 - past) / 3 for one in others}
    for name, share in expected.items():
        assert abs(counts[name] / draws - share) < 4.5 * np.sqrt(share * (1 - share) / draws) + 1e-9, name
    assert all(list(choice.candidates) == [*FIVE[-2:], *others] for choice in choices)
    assert {others[0].arrived_from, FIVE[0].arrived_from} == {"s3://a/one", ""}


def test_league_is_of_the_own_past_until_another_run_is_there() -> None:
    choices = draw("league(0, 2)", History(0, FIVE), 50)
    assert {number for choice in choices for number in numbers(choice.snapshots)} == {3, 4}


def test_draws_come_from_seed_and_updates_and_not_from_the_draws_before() -> None:
    draws = [choose("window(8)", History(0, FIVE), counter).draw for counter in (3, 1, 2, 3)]
    assert draws[0] == draws[3]
    assert len(set(draws)) == 3


def test_pinned_is_the_snapshot_of_that_id_and_the_newest_until_it_is_there() -> None:
    assert numbers(choose("pinned(000003)", History(0, FIVE)).snapshots) == [3]
    assert numbers(choose(f"pinned({FIVE[1].id})", History(0, FIVE)).candidates) == [1]
    assert [numbers(choose("pinned(0000)", History(0, FIVE[:n])).snapshots) for n in (1, 3, 5)] == [[0], [0], [0]]
    waiting = choose("pinned(000003)", History(0, FIVE[:3]))
    assert numbers(waiting.snapshots) == numbers(waiting.candidates) == [2]
    assert "000003 is not among these" in waiting.reason


FINE, BAD, UNKNOWN, NO_LIMIT = q(9.0, 10.0), q(11.0, 10.0), None, q(1e9, None)
NOT_FINITE = Health(q_abs_mean=None, q_abs_max=None, q_limit=None)


@pytest.mark.parametrize(
    ("healths", "number"),
    [
        ([UNKNOWN, FINE, FINE], 2),
        ([UNKNOWN, FINE, BAD], 1),
        ([UNKNOWN, FINE, BAD, BAD, BAD], 1),
        ([UNKNOWN, BAD, FINE, BAD], 2),
        ([UNKNOWN, BAD, FINE], 2),
        ([UNKNOWN, BAD, BAD], 0),
        ([BAD, BAD, BAD], 0),
        ([BAD], 0),
        ([UNKNOWN, UNKNOWN, UNKNOWN], 2),
        ([BAD, FINE, NO_LIMIT], 2),
        ([NO_LIMIT, NOT_FINITE], 0),
        ([FINE, q(10.0, 10.0)], 1),
    ],
)
def test_rollback_goes_back_to_the_newest_healthy_snapshot(healths: list[Health | None], number: int) -> None:
    history = History(0, [snapshot(i, i, health) for i, health in enumerate(healths)])
    choice = choose("rollback", history)
    assert numbers(choice.snapshots) == [number]
    assert set(numbers(choice.candidates)) == {number, len(healths) - 1}
    assert ("diverges: |Q| is up to 11, returns at most 10" in choice.reason) == (healths[-1] is BAD)
    assert choice.reason.endswith("diverges: |Q| is not finite") == (healths[-1] is NOT_FINITE)


@pytest.mark.parametrize(("limit", "number"), [(0.5, 0), (1, 1), (1.5, 2), (2.5, 3)])
def test_rollback_multiplies_the_largest_return_by_its_limit(limit: float, number: int) -> None:
    history = History(0, [snapshot(i, i, q(largest, 10.0)) for i, largest in enumerate([5.0, 10.0, 15.0, 25.0])])
    assert numbers(choose(f"rollback({limit})", history).snapshots) == [number]


@pytest.mark.parametrize("size", [1, 3, 5, 8])
@pytest.mark.parametrize("combine", ["min", "mean"])
def test_ensemble_is_the_last_ones_together(size: int, combine: str) -> None:
    policy = parse(f"ensemble({size}, {combine})")
    choice = policy.choose(History(0, FIVE), stream(1, Purpose.TARGET, 0))
    assert choice.snapshots == choice.candidates == FIVE[-size:]
    assert (policy.members, policy.combine) == (size, combine)


def test_an_average_is_of_what_an_ensemble_has() -> None:
    ours, theirs = (
        parse(text).choose(History(0, FIVE), stream(1, Purpose.TARGET, 0)) for text in ("average(3)", "ensemble(3)")
    )
    assert ours == theirs
    assert (parse("average(3)").members, parse("average(3)").combine) == (3, "weights")


def test_one_target_is_enough_for_a_policy_that_is_no_ensemble() -> None:
    assert {parse(text).members for text, name, _ in FORMS if name not in ("ensemble", "average")} == {1}


def games(*means: float) -> list[list[float]]:
    """Returns of ten games for each mean: the same games, so that differences are those of the means."""
    return [[mean + 10.0 * game for game in range(10)] for mean in means]


def match(updates: int, challenger: Commit, *others: Commit, means: Sequence[float]) -> Match:
    players = [challenger, *others]
    return Match(updates, challenger.id, {s.id: r for s, r in zip(players, games(*means), strict=True)})


A, B, C = FIVE[:3]


@pytest.mark.parametrize("text", ["best", "best(mean)"])
def test_best_is_the_newest_until_one_was_evaluated_and_then_that(text: str) -> None:
    assert choose(text, History(200, [A, B])).snapshots == [B]
    played = [match(100, B, means=[5])]
    choice = choose(text, History(200, [A, B, C], played))
    assert (choice.snapshots, choice.candidates) == ([B], [B, C])
    assert choice.reason == "the first that was evaluated"
    assert choose(text, History(100, [A, B], played)).candidates == [B]


def test_a_clear_winner_becomes_the_best() -> None:
    played = [match(100, A, means=[50]), match(200, B, A, means=[90, 50])]
    choice = choose("best", History(250, [A, B, C], played))
    assert (choice.snapshots, choice.candidates) == ([B], [B, C])
    assert choice.reason == f"beat {A.id} in the same games (p 0.0000)"


@pytest.mark.parametrize(
    ("ours", "rule", "winner"),
    [
        ([10.0] * 10, "test", A),
        ([10.0] * 10, "mean", A),
        ([10.0] * 9 + [12.0], "test", A),
        ([10.0] * 9 + [12.0], "mean", B),
        ([10.0] * 7 + [12.0] * 3, "test", A),
        ([10.0] * 5 + [12.0] * 5, "test", B),
        ([12.0] * 5 + [8.0] * 5, "test", A),
        ([9.0] * 9 + [100.0], "test", A),
        ([9.0] * 9 + [100.0], "mean", B),
        ([9.0] * 10, "mean", A),
    ],
)
def test_a_tie_or_a_slightly_better_mean_is_enough_for_best_mean_alone(
    ours: list[float], rule: str, winner: Commit
) -> None:
    played = [Match(100, A.id, {A.id: [10.0] * 10}), Match(200, B.id, {B.id: ours, A.id: [10.0] * 10})]
    assert choose(f"best({rule})", History(200, [A, B], played)).snapshots == [winner]


def test_the_bootstrap_p_is_the_share_of_resamples_and_the_same_each_time() -> None:
    """Ten games, one of them won: a resample without it is as likely as (9 / 10) ** 10."""
    chances = []
    for _ in range(2):
        policies.bootstrap_p.cache_clear()
        chances.append(policies.bootstrap_p((1.0,) + (0.0,) * 9, (0.0,) * 10))
    assert chances[0] == chances[1] == pytest.approx(0.9**10, abs=0.02)


def test_best_mean_counts_all_games_of_a_snapshot_and_needs_no_rival_in_the_match() -> None:
    played = [Match(100, A.id, {A.id: [4.0]}), Match(150, A.id, {A.id: [10.0]}), Match(200, B.id, {B.id: [8.0]})]
    choice = choose("best(mean)", History(200, [A, B], played))
    assert choice.snapshots == [B]
    assert choice.reason == f"mean return 8.00, {A.id} had 7.00"
    assert choose("best(mean)", History(200, [A, B], played[1:])).snapshots == [A]
    assert choose("best(test)", History(200, [A, B], played)).snapshots == [A]  # B did not play against it


def test_the_newest_is_chosen_after_a_stall_until_the_best_changes() -> None:
    newest = snapshot(5, 700)
    snapshots = [A, B, C, newest]
    played = [match(100, A, means=[50])]
    lost = [match(200, B, A, means=[40, 50]), match(300, C, A, means=[50, 50])]
    for stood, chosen in ((0, A), (1, A), (2, newest)):
        choice = choose("best(test, 2)", History(700, snapshots, played + lost[:stood]))
        assert (choice.snapshots, choice.candidates) == ([chosen], [A, newest])
    assert choose("best", History(700, snapshots, played + lost)).snapshots == [A]  # three by default
    assert choose("best", History(700, snapshots, [*played, *lost, lost[0]])).snapshots == [newest]
    won = [*played, *lost, match(400, C, A, means=[90, 50])]
    assert choose("best(test, 2)", History(700, snapshots, won)).snapshots == [C]


def test_best_is_the_best_of_those_whose_weights_are_there() -> None:
    played = [match(100, A, means=[50]), match(200, B, A, means=[90, 50])]
    choice = choose("best", History(300, [A, C], played))
    assert (choice.snapshots, choice.candidates) == ([A], [A, C])
    assert choose("best", History(300, [C], played)).snapshots == [C]


def test_a_best_whose_weights_are_gone_is_no_rival() -> None:
    played = [match(100, A, means=[50])]
    assert parse("best").rival(History(300, [B, C], played)) is None


def test_the_rival_of_the_newest_is_the_best_by_test() -> None:
    played = [match(100, A, means=[50])]
    assert parse("best").rival(History(200, [A, B])) is None
    assert parse("best").rival(History(200, [A], played)) is None
    assert parse("best").rival(History(200, [A, B], played)) == A.id
    assert parse("best(test, 5)").rival(History(200, [A, B], played)) == A.id
    assert parse("best(mean)").rival(History(200, [A, B], played)) is None
    assert parse("latest").rival(History(200, [A, B], played)) is None


def evaluation(player: Commit, challenger: Commit, updates: int, **changes: object) -> dict[str, Any]:
    """A line of `evaluations.jsonl`, as far as policies look at it."""
    counters = Counters(agent_steps=4 * updates, updates=updates, frames=0, episodes=0).model_dump()
    line = {"snapshot": player.id, "challenger": challenger.id, "scheduled": True, "played_at": counters}
    return {**line, "returns": [float(updates)], "protocol": {"epsilon": 0.0}, **changes}


def test_matches_are_the_evaluations_of_one_moment() -> None:
    lines = [evaluation(A, A, 100), evaluation(A, B, 200), evaluation(B, B, 200, returns=[7.0])]
    assert matches(lines) == [Match(100, A.id, {A.id: [100.0]}), Match(200, B.id, {A.id: [200.0], B.id: [7.0]})]
    assert matches([]) == []


def test_a_match_that_the_newest_did_not_play_is_none() -> None:
    """A crash between the two lines of a match leaves that of the rival."""
    assert matches([evaluation(A, A, 100), evaluation(A, B, 200)]) == [Match(100, A.id, {A.id: [100.0]})]


def test_evaluations_under_another_protocol_are_not_looked_at() -> None:
    other = {"epsilon": 0.05}
    lines = [evaluation(A, A, 100, protocol=other), evaluation(B, B, 200), evaluation(C, C, 300)]
    assert [m.challenger for m in matches(lines)] == [B.id, C.id]
    assert [m.challenger for m in matches([*lines, evaluation(C, C, 400, protocol=other)])] == [A.id, C.id]
    fewer_at_once = [evaluation(A, A, 100, protocol={"epsilon": 0.0, "environments": 4}), *lines[1:]]
    assert [m.challenger for m in matches(fewer_at_once)] == [A.id, B.id, C.id]


def test_a_limit_that_older_versions_named_for_board_games_changes_no_score() -> None:
    before = {"environment": "OpenSpiel/tic_tac_toe", "seats": "both, in turns", "time limit, steps": 5}
    lines = [
        evaluation(A, A, 100, protocol=before),
        evaluation(B, B, 200, protocol={**before, "time limit, steps": "none"}),
    ]
    assert [m.challenger for m in matches(lines)] == [A.id, B.id]
    alone = {"environment": "CartPole-v1", "time limit, steps": 500}
    lines = [
        evaluation(A, A, 100, protocol=alone),
        evaluation(B, B, 200, protocol={**alone, "time limit, steps": 300}),
    ]
    assert [m.challenger for m in matches(lines)] == [B.id]


def test_evaluations_by_hand_never_count() -> None:
    by_hand = evaluation(C, C, 300, scheduled=False, played_at=None, protocol={"epsilon": 0.5})
    lines = [evaluation(A, A, 100), evaluation(B, B, 200)]
    assert matches([by_hand, lines[0], by_hand, lines[1], by_hand]) == matches(lines)
    assert matches([by_hand]) == []


Returns = Callable[[np.random.Generator, tuple[int, int]], np.ndarray]


@pytest.fixture
def few_resamples(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A tenth of the resamples, so that thousands of comparisons take seconds."""
    policies.bootstrap_p.cache_clear()
    monkeypatch.setattr(policies, "_RESAMPLES", 1_000)
    yield
    policies.bootstrap_p.cache_clear()


@pytest.mark.parametrize(
    "returns",
    [
        pytest.param(lambda random, shape: random.normal(0, 1, shape), id="normal"),
        pytest.param(lambda random, shape: random.standard_t(2, shape), id="heavy tails"),
        pytest.param(lambda random, shape: (random.random(shape) < 0.1) * 1.0, id="mostly ties"),
        pytest.param(lambda random, shape: (random.random(shape) < 0.5) * 1.0, id="half ties"),
        pytest.param(lambda random, shape: 100.0 * (random.random(shape) < 0.1) + random.poisson(5, shape), id="rare"),
        pytest.param(lambda random, shape: random.normal(450, 150, shape).clip(8, 500).round(), id="CartPole"),
    ],
)
def test_snapshots_of_equal_strength_change_places_in_at_most_5_percent_of_matches(
    returns: Returns, few_resamples: None
) -> None:
    """The true shares for 8 games are up to 3.9%: 5% is three standard errors away."""
    random = np.random.default_rng(0)
    for episodes, simulated in ((8, 3_000), (10, 2_000), (30, 500)):
        changes = 0
        for _ in range(simulated):
            ours, theirs = returns(random, (2, episodes)).tolist()
            played = [Match(1, A.id, {A.id: theirs}), Match(2, B.id, {B.id: ours, A.id: theirs})]
            best = policies.incumbent(History(2, [A, B], played))
            changes += best is not None and best.snapshot == B.id
        assert changes <= 0.05 * simulated, f"{changes / simulated:.1%} with {episodes} games"


def test_best_mean_changes_places_by_luck_and_best_does_not(few_resamples: None) -> None:
    """A hundred equal snapshots in a row: what the test is for."""
    random = np.random.default_rng(0)
    snapshots = [snapshot(number, 100 * number) for number in range(100)]
    changes = {}
    for rule in ("test", "mean"):
        played: list[Match] = []
        winners = []
        for s in snapshots:
            held = policies.incumbent(History(s.updates, snapshots, played), rule)
            players = {s.id, held.snapshot} if held else {s.id}
            played.append(Match(s.updates, s.id, {p: random.normal(0, 1, 10).tolist() for p in sorted(players)}))
            winners.append(policies.incumbent(History(s.updates, snapshots, played), rule))
        changes[rule] = sum(ours.snapshot != theirs.snapshot for ours, theirs in pairwise(winners) if ours and theirs)
    assert changes["test"] <= 5 < changes["mean"]


@pytest.mark.parametrize(("text", "name", "arguments"), FORMS)
def test_a_text_names_a_policy_and_its_parameters(text: str, name: str, arguments: dict[str, Any]) -> None:
    policy = parse(text)
    assert policy.text == text
    assert policy.function.__name__ == name
    assert policy.arguments == arguments
    assert {key: type(value) for key, value in policy.arguments.items()} == {k: type(v) for k, v in arguments.items()}


@pytest.mark.parametrize(("text", "message"), rows("targets", "no_policies", "text", "message"))
def test_a_text_that_names_no_policy_is_refused_with_what_is_wrong(text: str, message: str) -> None:
    with pytest.raises(UsageError) as refused:
        parse(text)
    assert str(refused.value).startswith("target.policy=")
    assert message in str(refused.value)
    assert "\n" not in str(refused.value)


MINE = '''
from typing import Annotated

import numpy as np
from pydantic import Field

from twin_graph.targets import Choice, History, needs


def older(history: History, random: np.random.Generator, back: Annotated[int, Field(ge=1)] = 1) -> Choice:
    """So many before the newest."""
    chosen = history.snapshots[-1 - back :][:1]
    return Choice(chosen, history.snapshots[-1 - back :], f"{back} back")


def of_an_array(history: History, random: np.random.Generator, back: np.ndarray) -> Choice:
    return Choice(history.snapshots, history.snapshots, f"{back} back")


def nothing(history: History, random: np.random.Generator) -> None:
    return None


def nobody(history: History, random: np.random.Generator) -> Choice:
    return Choice([], [], "nobody")


def stranger(history: History, random: np.random.Generator) -> Choice:
    unseen = [history.snapshots[0].model_copy(update={"snapshot": "000099-00000099"})]
    return Choice(unseen, unseen, "a stranger")


def bare_tuple(history: History, random: np.random.Generator) -> tuple:
    return (history.snapshots[-1:], history.snapshots, "no Choice", None)


def no_list(history: History, random: np.random.Generator) -> Choice:
    return Choice(history.snapshots[-1], history.snapshots, "not in a list")


def ids(history: History, random: np.random.Generator) -> Choice:
    return Choice([history.snapshots[-1].id], history.snapshots, "an id")


def no_candidates(history: History, random: np.random.Generator) -> Choice:
    return Choice(history.snapshots[-1:], None, "no candidates")


def outside(history: History, random: np.random.Generator) -> Choice:
    return Choice(history.snapshots[:1], history.snapshots[-1:], "retention may remove it")


def speechless(history: History, random: np.random.Generator) -> Choice:
    return Choice(history.snapshots[-1:], history.snapshots, 5)


def drawn(history: History, random: np.random.Generator) -> Choice:
    return Choice(history.snapshots[-1:], history.snapshots, "the newest", "a half")


@needs(members=2, combine="max")
def combined(history: History, random: np.random.Generator) -> Choice:
    return Choice(history.snapshots[-2:], history.snapshots, "the last two")


def two(history: History, random: np.random.Generator) -> Choice:
    return Choice(history.snapshots[-2:], history.snapshots, "more than there are twins for")


def without_annotation(history, random, back=1):
    return Choice(history.snapshots[-1:], history.snapshots, "")


@needs(rival=lambda history: history.best)
def no_rival(history: History, random: np.random.Generator) -> Choice:
    return Choice(history.snapshots[-1:], history.snapshots, "the newest")
'''


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The name of a user's own module of policies, in a folder on PYTHONPATH."""
    (tmp_path / "my_policies.py").write_text(MINE)
    monkeypatch.syspath_prepend(tmp_path)
    yield "my_policies"
    sys.modules.pop("my_policies", None)


def test_a_policy_of_ones_own_is_named_by_module_and_function(mine: str) -> None:
    assert numbers(choose(f"{mine}:older", History(0, FIVE)).snapshots) == [3]
    choice = choose(f"{mine}:older(2)", History(0, FIVE))
    assert (numbers(choice.snapshots), numbers(choice.candidates)) == ([2], [2, 3, 4])
    policy = parse(f"{mine}:older(2)")
    assert (policy.members, policy.combine, policy.rival(History(0, FIVE))) == (1, "mean", None)


@pytest.mark.parametrize(("text", "message"), rows("targets", "own_parameters", "text", "message"))
def test_parameters_of_ones_own_policy_are_checked(mine: str, text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        parse(f"{mine}:{text}")


def test_what_a_module_fails_to_import_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "broken_policies.py").write_text("import nowhere_at_all")
    (tmp_path / "script_of_policies.py").write_text("import sys\n\nsys.exit(0)\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(UsageError, match=r"target\.policy=broken_policies:mine: No module named 'nowhere_at_all'"):
        parse("broken_policies:mine")
    with pytest.raises(UsageError, match=r"script_of_policies:mine: SystemExit: 0 \(.*script_of_policies\.py:3, in"):
        parse("script_of_policies:mine")


@pytest.mark.parametrize(
    "function",
    [
        "nothing",
        "nobody",
        "stranger",
        "bare_tuple",
        "no_list",
        "ids",
        "no_candidates",
        "outside",
        "speechless",
        "drawn",
        "two",
    ],
)
def test_a_policy_that_answers_with_nonsense_is_named(mine: str, function: str) -> None:
    with pytest.raises(
        ForeignError,
        match=rf"target\.policy=my_policies:{function} (must return a Choice|must give its (reason|draw)|chose )",
    ):
        choose(f"{mine}:{function}", History(0, FIVE))


def test_an_unknown_way_to_combine_is_refused(mine: str, cartpole: Callable[..., config.Settings]) -> None:
    with pytest.raises(UsageError, match="my_policies:combined combines by 'max'; possible are mean, min, weights"):
        parse(f"{mine}:combined").check_settings(cartpole())


def test_a_policy_that_fails_to_say_whom_to_beat_is_named_with_its_line(mine: str) -> None:
    """As a `ForeignError`, for which a run commits a resume point."""
    failed = r"target\.policy=my_policies:no_rival: AttributeError: .* 'best' \(.*my_policies\.py:\d+, in <lambda>\)"
    with pytest.raises(ForeignError, match=failed):
        parse(f"{mine}:no_rival").rival(History(0, FIVE))


@pytest.mark.parametrize(
    ("text", "settings", "message"), rows("targets", "without_evaluations", "text", "settings", "message")
)
def test_best_is_refused_without_the_evaluations_that_it_needs(
    text: str, settings: dict[str, int], message: str
) -> None:
    small = {"train.steps": 10_000, "evaluate.every_steps": 1_000}
    run = config.load("cartpole", [*small.items(), *settings.items()])
    with pytest.raises(UsageError, match=message) if message else contextlib.nullcontext():
        parse(text).check_settings(run)
