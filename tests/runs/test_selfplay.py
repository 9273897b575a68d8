"""Games of two players: boards, seats, opponents out of the store, and what the records say of them."""

import contextlib
import itertools
import json
import re
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyspiel
import pytest
from attempts import attempt, end
from best_response import worst_returns
from commands import Command, twin_graph
from pong_flights import ball
from tables import rows

from twin_graph import envs
from twin_graph.agent.held_out import q_distance
from twin_graph.config.loading import change, load
from twin_graph.config.settings import EnvSettings, Settings
from twin_graph.envs.legal import ILLEGAL
from twin_graph.envs.open_spiel import Spiel
from twin_graph.envs.seats import NOBODY, Seat, Turn, at_random, boards_of, by_values, play_turn
from twin_graph.errors import ForeignError, UsageError
from twin_graph.evaluation.games import Contender, last, play
from twin_graph.records import report
from twin_graph.records.verify import verify
from twin_graph.snapshots import swaps
from twin_graph.snapshots.ledger import Restore
from twin_graph.snapshots.run import Run, create
from twin_graph.targets.policies import parse, roles

Make = Callable[..., Settings]

TICTACTOE = EnvSettings(id="OpenSpiel/tic_tac_toe")


def pieces(observation: np.ndarray) -> np.ndarray:
    """Of an observation of tic-tac-toe `[36]`: 1 for one's own pieces, -1 for the other's, 0 for none, `[9]`."""
    planes = observation[:27].reshape(9, 3)
    return planes[:, 2] - planes[:, 1]


def test_from_either_seat_one_sees_ones_own_pieces_in_the_same_place() -> None:
    boards = Spiel(TICTACTOE, 1)
    board = np.array([0])
    for action in (4, 0, 8):
        boards.move(board, np.array([action]))
    expected = np.array([-1, 0, 0, 0, 1, 0, 0, 0, 1])
    first, second = (boards.observe(board, np.array([seat]))[0] for seat in (0, 1))
    np.testing.assert_array_equal(pieces(first), expected)
    np.testing.assert_array_equal(pieces(second), -expected)
    np.testing.assert_array_equal(boards.spec.legal(first[None])[0], expected == 0)


@pytest.mark.parametrize("game", ["connect_four", "hex", "othello", "breakthrough", "tic_tac_toe"])
def test_any_such_game_can_be_played_to_its_end(game: str) -> None:
    env = envs.make(EnvSettings(id=f"OpenSpiel/{game}"), count=4)
    assert isinstance(env, Seat)
    env.opponent = at_random(env.spec)
    random, scores = np.random.default_rng(1), []
    s_tm1 = env.reset(np.arange(4))
    while len(scores) < 12:
        actions = [random.choice(np.flatnonzero(legal)) for legal in env.spec.legal(s_tm1)]
        step = env.step(np.array(actions))
        assert (step.score_t[~step.last_t] == 0).all()
        scores += step.score_t[step.last_t].tolist()
        s_tm1 = step.s_next
    assert set(scores) <= {-1.0, 0.0, 1.0}
    assert len(set(scores)) > 1


def test_seats_alternate_and_each_reward_is_that_of_the_agents_seat() -> None:
    """Whoever moves first completes a row first: the agent takes the first free square, its opponent the last one."""
    env = Seat(boards_of(TICTACTOE, 2))

    def last_free(turn: Turn) -> np.ndarray:
        return 8 - env.spec.legal(turn.observations)[:, ::-1].argmax(axis=1)

    env.opponent = last_free
    s_tm1 = env.reset(np.array([1, 2]))
    moved_first = [[not pieces(s).any()] for s in s_tm1]
    scores: list[list[float]] = [[], []]
    while min(map(len, scores)) < 4:
        step = env.step(env.spec.legal(s_tm1).argmax(axis=1))
        s_tm1 = step.s_next
        for board in np.flatnonzero(step.last_t):
            scores[board].append(float(step.score_t[board]))
            moved_first[board].append(not pieces(s_tm1[board]).any())
    assert [first[:4] for first in moved_first] == [[True, False, True, False], [False, True, False, True]]
    assert [of_board[:4] for of_board in scores] == [[1, -1, 1, -1], [-1, 1, -1, 1]]


def test_the_opponent_is_asked_for_all_boards_in_one_call() -> None:
    env = Seat(boards_of(EnvSettings(id="OpenSpiel/connect_four"), 8))
    asked: list[int] = []
    random = at_random(env.spec)

    def count(turn: Turn) -> np.ndarray:
        asked.append(len(turn.observations))
        return random(turn)

    env.opponent = count
    s_tm1 = env.reset(np.arange(8))
    for _ in range(3):
        s_tm1 = env.step(env.spec.legal(s_tm1).argmax(axis=1)).s_next
    assert asked == [4, 8, 8, 8]


@pytest.mark.parametrize(("game", "message"), rows("selfplay", "other_games", "game", "message"))
def test_games_of_other_kinds_are_refused_in_one_line(game: str, message: str) -> None:
    with pytest.raises(UsageError) as refused:
        envs.make(EnvSettings(id=f"OpenSpiel/{game}"), count=1)
    assert message in str(refused.value)
    assert "\n" not in str(refused.value)


def test_pieces_are_not_exchanged_twice() -> None:
    kwargs = {"egocentric_obs_tensor": True}
    with pytest.raises(UsageError, match="egocentric_obs_tensor: each player sees its own pieces first anyway"):
        envs.make(EnvSettings(id="OpenSpiel/connect_four", kwargs=kwargs), count=1)


def test_perfect_players_draw_and_never_lose_to_a_search() -> None:
    boards = boards_of(TICTACTOE, 40)
    perfect, others = boards.fixed_player("perfect"), [boards.fixed_player(name) for name in ("mcts(50)", "random")]
    every = np.arange(40)
    for other, least in zip(others, (0.0, 0.7), strict=True):
        randoms = [np.random.default_rng(i) for i in every]
        gained = np.zeros(40)
        for board in every.tolist():
            boards.begin(board, randoms[board])
        while (boards.to_move != NOBODY).any():
            for seat, player in ((0, perfect), (1, other)):
                which = np.flatnonzero(boards.to_move == seat)
                if len(which):
                    gained[which] += play_turn(boards, which, player, [randoms[i] for i in which])[:, 0]
        assert gained.min() >= 0
        assert gained.mean() >= least


@pytest.mark.parametrize("game", ["chess", "connect_four"])
def test_a_perfect_player_of_a_long_game_is_refused_at_once(game: str) -> None:
    with (
        contextlib.closing(boards_of(EnvSettings(id=f"OpenSpiel/{game}"), 1)) as boards,
        pytest.raises(UsageError, match=f"the perfect player needs a smaller game than {game}"),
    ):
        boards.fixed_player("perfect")


def test_a_perfect_player_knows_whose_turn_it_is() -> None:
    """The words for a position of dots and boxes do not say. Who begins wins against whomever."""
    boards, every = boards_of(EnvSettings(id="OpenSpiel/dots_and_boxes"), 60), np.arange(60)
    players, randoms = [boards.fixed_player(name) for name in ("perfect", "random")], list[np.random.Generator]()
    for board in every.tolist():
        randoms.append(np.random.default_rng(board))
        boards.begin(board, randoms[board])
    gained = np.zeros(60)
    while (boards.to_move != NOBODY).any():
        for seat, player in enumerate(players):
            which = np.flatnonzero(boards.to_move == seat)
            if len(which):
                gained[which] += play_turn(boards, which, player, [randoms[i] for i in which])[:, 0]
    assert gained.min() > 0


def test_games_whose_illegal_moves_have_no_name_can_be_played() -> None:
    """OpenSpiel ends the process where somebody asks for one of chess."""
    board, random = np.array([0]), np.random.default_rng(1)
    for game in ("chess", "shogi"):
        boards = boards_of(EnvSettings(id=f"OpenSpiel/{game}"), 1)
        boards.begin(0, random)
        for _ in range(6):
            play_turn(boards, board, at_random(boards.spec), [random])
        assert boards.to_move[0] != NOBODY


@pytest.mark.parametrize(
    ("game", "kwargs", "words"),
    [
        ("chinese_checkers", {"players": 3}, "has 3 players, "),
        ("hex", {"board_size": 0}, "has 2 players, 0 actions and"),
    ],
)
def test_arguments_make_no_game_for_more_players_or_without_moves(game: str, kwargs: Any, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        boards_of(EnvSettings(id=f"OpenSpiel/{game}", kwargs=kwargs), 1)


def test_what_a_game_does_not_have_is_known_before_training(tmp_path: Path) -> None:
    for preset, given, words in (
        ("tictactoe", "evaluate.against=perfct", "did you mean 'perfect'"),
        ("connect-four", "evaluate.against=perfect", "needs a smaller game than connect_four"),
        ("tictactoe", "evaluate.max_steps=3", "games of OpenSpiel/tic_tac_toe end by themselves"),
        ("pong-selfplay", "env.vectorization=async", "leave it out for TwoPlayer/Pong"),
    ):
        told = twin_graph("train", preset, "--set", given, "--run-dir=run", cwd=tmp_path)
        assert told.returncode == 2
        assert words in told.stderr
        assert not (tmp_path / "run").exists()


def test_illegal_actions_do_not_make_twins_look_alike() -> None:
    q = np.array([[1.0, ILLEGAL], [2.0, 4.0]], np.float32)
    assert q_distance(q, np.array([[2.0, ILLEGAL], [4.0, 7.0]], np.float32)) == 2
    assert np.isnan(q_distance(q * np.nan, q))


def test_fixed_players_are_named_like_policies() -> None:
    boards = boards_of(TICTACTOE, 1)
    with pytest.raises(UsageError, match=r"against=mcts\(one\): simulations=one: must be a whole number"):
        boards.fixed_player("mcts(one)")
    with pytest.raises(UsageError, match=r"unknown against 'perfct'; choose random, .*; did you mean 'perfect'"):
        boards.fixed_player("perfct")
    with pytest.raises(UsageError, match=r"needs a smaller game than connect_four"):
        boards_of(EnvSettings(id="OpenSpiel/connect_four"), 1).fixed_player("perfect")


def test_the_full_name_of_a_player_is_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where no text can be read as a parameter's default."""
    (tmp_path / "deep.py").write_text(
        "import numpy as np\n"
        "def player(game, spec, depth: int | None = None, width: int = 3):\n"
        "    return lambda turn: np.full(len(turn.observations), width if depth is None else depth)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    boards = boards_of(TICTACTOE, 1)
    boards.begin(0, np.random.default_rng())
    turn = Turn(boards.observe(np.array([0]), np.array([0])), np.zeros((1, 2)))
    for name in ("deep:player", "deep:player(2)"):
        whole = boards.full_name(name)
        assert boards.full_name(whole) == whole
        assert boards.fixed_player(whole)(turn) == boards.fixed_player(name)(turn)
    assert boards.fixed_player("deep:player")(turn) == 3
    assert boards.fixed_player("deep:player(2)")(turn) == 2


@pytest.mark.parametrize(("code", "message"), rows("selfplay", "failing_players", "code", "message"))
def test_a_player_of_ones_own_that_fails_costs_no_step(
    tictactoe: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: str, message: str
) -> None:
    (tmp_path / "mine.py").write_text(
        f"import numpy as np\ndef player(game, spec):\n    def move(turn): {code}\n    return move\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "mine", raising=False)
    run = create(tmp_path / "run", tictactoe(evaluate__against="mine:player", resume__every_steps=100_000))
    with pytest.raises(ForeignError, match=rf"at agent step 600: .*{message}"):
        attempt(run)
    point = run.points().newest()
    assert point
    assert point.counters.agent_steps == 600


def test_a_player_of_ones_own_is_a_function(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "no_player.py").write_text("def none(game, spec): pass\ndef fails(game, spec): 1 / 0\n")
    monkeypatch.syspath_prepend(tmp_path)
    for name, message in (("none", "returned None, which is no function of a Turn"), ("fails", "division by zero")):
        with pytest.raises(ForeignError, match=f"against=no_player:{name}.*{message}"):
            boards_of(TICTACTOE, 1).fixed_player(f"no_player:{name}")


@pytest.mark.parametrize(
    ("game", "arguments", "message"), rows("selfplay", "bad_arguments", "game", "arguments", "message")
)
def test_arguments_of_which_no_game_can_be_made_are_refused(game: str, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=rf"^[^\n]*{message}[^\n]*$"):
        envs.make(EnvSettings(id=f"OpenSpiel/{game}", kwargs=arguments), count=1)


def test_arguments_of_a_game_are_part_of_its_protocol() -> None:
    env = envs.make(EnvSettings(id="OpenSpiel/hex", kwargs={"board_size": 4}), count=1)
    assert env.protocol["arguments"] == "board_size=4"


@pytest.mark.parametrize(
    ("game", "arguments"), [("dots_and_boxes", {"num_rows": 2, "num_cols": 2}), ("tic_tac_toe", {})]
)
def test_no_limit_is_given_to_games_that_nothing_but_their_rules_ends(game: str, arguments: dict[str, Any]) -> None:
    """Who closes a box moves again: half of all moves is no limit of one player's."""
    settings = EnvSettings(id=f"OpenSpiel/{game}", kwargs=arguments)
    env = envs.make(settings, count=20)
    assert isinstance(env, Seat)
    assert env.protocol["time limit, steps"] == "none"
    env.opponent, random = env.boards.fixed_player("random"), np.random.default_rng(0)
    s_tm1, steps, longest = env.reset(np.arange(20)), np.zeros(20, int), 0
    for _ in range(60):
        step = env.step(env.spec.random_actions(s_tm1, random))
        s_tm1, steps = step.s_next, steps + 1
        longest = max(longest, *steps)
        steps[step.last_t] = 0
        assert (step.terminal_t == step.last_t).all()
    assert longest > 6 if game == "dots_and_boxes" else longest <= 5


def test_a_share_of_moves_is_random() -> None:
    boards = boards_of(TICTACTOE, 1)
    observations = np.repeat(boards.observe(np.array([0]), np.array([0])), 4_000, axis=0)
    draws = np.random.default_rng(5).random((4_000, 2))
    greedy = by_values(boards.spec, lambda seen: np.tile(np.arange(9.0), (len(seen), 1)), 0.3)
    moves = greedy(Turn(observations, draws))
    assert abs((moves != 8).mean() - 0.3 * 8 / 9) < 0.03


OPPONENTS = ["mix(0.5, 3)", "best(mean)", "ensemble(2, mean)", "random", "self"]


@pytest.mark.parametrize("policy", OPPONENTS)
def test_a_killed_run_ends_as_an_uninterrupted_one(
    tictactoe: Make, train: Callable[[Settings], Run], tmp_path: Path, policy: str
) -> None:
    settings = tictactoe(opponent__policy=policy, opponent__epsilon=0.2)
    whole = train(settings)
    killed = create(tmp_path / "killed", settings)
    attempt(killed, 640)
    attempt(killed, 1_100)
    attempt(killed)
    assert end(killed) == end(whole)
    assert verify(killed).damage == []
    opponents = [
        [(s.counters.agent_steps, s.snapshots, s.reason) for s in _into_opponent(run)] for run in (killed, whole)
    ]
    assert opponents[0] == opponents[1]
    assert len(opponents[0]) > 6
    assert all(snapshots if policy not in ("random", "self") else not snapshots for _, snapshots, _ in opponents[0][1:])


def _into_opponent(run: Run) -> list[Restore]:
    return [swap for swap in run.ledger.events(Restore) if swap.into == "opponent"]


def test_opponents_train_differently(tictactoe: Make, train: Callable[[Settings], Run]) -> None:
    """The comparison above would prove little if the opponent had no influence."""
    policies = ("latest", "random", "self", "self()")
    runs = [train(tictactoe(opponent__policy=policy, evaluate__episodes=0)) for policy in policies]
    *different, written_otherwise = [run.store().newest.weights_sha256 for run in runs]
    assert len(set(different)) == 3
    assert written_otherwise == different[-1]


@pytest.mark.parametrize("policy", ["window(3)", "self"])
def test_in_chunks_it_does_not_matter_whether_they_overlap(
    tictactoe: Make, train: Callable[[Settings], Run], policy: str
) -> None:
    runs = [
        train(tictactoe(opponent__policy=policy, train__chunk_steps=32, twin__overlap=overlap, evaluate__episodes=0))
        for overlap in (False, True, True)
    ]
    assert len({run.store().newest.weights_sha256 for run in runs}) == 1


def test_the_records_say_who_the_opponent_was(tictactoe: Make, train: Callable[[Settings], Run]) -> None:
    run = train(tictactoe(opponent__policy="window(3)"))
    swaps = _into_opponent(run)
    for swap, after in itertools.pairwise(swaps):
        for step in (swap.counters.agent_steps + 1, after.counters.agent_steps):
            told = report.explain_step(run, step).opponent
            assert told.snapshots == list(swap.snapshots)
            assert told.agent_steps == [swap.counters.agent_steps + 1, after.counters.agent_steps]
    told = report.explain(run, 100)
    assert told.opponent.policy == "window(3)"
    assert (told.opponent.reason.partition(":")[0], told.reason.partition(":")[0]) == (
        "every 30 updates",
        "every 50 updates",
    )
    now = report.status(run).opponent
    assert now.snapshots == list(swaps[-1].snapshots)
    assert now.served_agent_steps == 1_200 - swaps[-1].counters.agent_steps
    evaluation = next(iter(run.evaluation_lines()))
    assert evaluation["protocol"]["against"] == "perfect"
    for step in (0, 1_201):
        with pytest.raises(UsageError, match="the records hold agent steps 1 to 1,200"):
            report.explain_step(run, step)


def test_evaluations_are_against_whom_the_settings_say(tictactoe: Make) -> None:
    def first_legal(observations: np.ndarray) -> np.ndarray:
        return np.where(observations[:, -9:] == 0, -1e9, 0.0)

    against = {
        name: last(play(Contender(first_legal), tictactoe(evaluate__against=name), episodes=20, at=(1, 0))).mean
        for name in ("random", "perfect")
    }
    assert against["perfect"] < against["random"]
    assert against["perfect"] < 0


def test_the_opponent_moves_at_random_as_often_as_its_epsilon_says(
    tictactoe: Make, train: Callable[[Settings], Run]
) -> None:
    runs = [train(tictactoe(opponent__epsilon=epsilon, evaluate__episodes=0)) for epsilon in (0.0, 0.5)]
    assert len({run.store().newest.weights_sha256 for run in runs}) == 2


def test_retention_keeps_the_opponent_that_a_resume_point_holds(tictactoe: Make, tmp_path: Path) -> None:
    settings = tictactoe(
        opponent__policy="latest", opponent__refresh_every_updates=10_000, save__keep_last=1, save__keep_every=0
    )
    run = create(tmp_path / "run", settings)
    attempt(run, 1_100)
    attempt(run)
    assert run.state() == "finished"


def test_retention_keeps_whom_the_opponents_policy_could_choose(
    tictactoe: Make, train: Callable[[Settings], Run]
) -> None:
    settings = tictactoe(opponent__policy="window(9)", save__keep_last=1, save__keep_every=0)
    run = train(settings)
    store = run.store()
    present = {snapshot.id for snapshot in store.available}
    assert {snapshot.id for snapshot in store.snapshots[-9:]} <= present
    assert len(present) < len(store.snapshots)
    assert set(roles(settings)) == {"target", "opponent"}


def test_policies_without_snapshots_are_for_opponents_alone(tictactoe: Make) -> None:
    for name in ("random", "self", "self()"):
        message = re.escape(f"target.policy={name} needs a game to play: it is for opponent.policy")
        with pytest.raises(UsageError, match=message):
            roles(tictactoe(target__policy=name))
    with pytest.raises(
        UsageError, match=r"opponent.policy=windw: unknown policy 'windw'; choose latest, .*; did you mean 'window'"
    ):
        parse("windw", "opponent.policy")


@pytest.mark.parametrize("other", [{"mode": "mutual"}, {"workers__count": 2}])
def test_an_opponent_needs_one_learner(tictactoe: Make, other: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=r"opponent.policy=window\(16\) needs one learner in one process"):
        tictactoe(**other)


@pytest.mark.parametrize("policy", ["latest", "self"])
def test_a_person_chooses_the_opponent_while_it_trains(tictactoe: Make, tmp_path: Path, policy: str) -> None:
    """By the command line, on a run that trains in a process of its own; undone, killed and resumed."""
    settings = tictactoe(opponent__policy=policy, train__steps=200_000, evaluate__episodes=0, save__keep_last=10_000)
    run = create(tmp_path / "run", settings)
    attempt(run, 640)
    training = Command("resume", "run", cwd=tmp_path)
    try:
        _wait(lambda: run.state() == "running")
        chosen = Run(run.folder).store().snapshots[1].id
        swapped = twin_graph("swap", "run", chosen, "--into", "opponent", "--hold", "--json", cwd=tmp_path)
        assert swapped.returncode == 0, swapped.stderr
        assert "is in the opponent from update" in swapped.stderr
        _wait(lambda: report.status(Run(run.folder)).agent_steps > 4_000)
        now = report.status(Run(run.folder)).opponent
        assert (now.snapshots, now.policy, now.held) == ([chosen], "by hand", True)
        assert twin_graph("swap", "run", "--undo", "--into", "opponent", cwd=tmp_path).returncode == 0
        after = report.status(Run(run.folder)).opponent.snapshots
        assert after == [] if policy == "self" else after not in ([], [chosen])
    finally:
        training.kill()
        training.wait(30)
    again = _into_opponent(Run(run.folder))
    assert [swap.policy for swap in again if swap.request] == ["by hand", "undo"]
    resumed = json.loads(twin_graph("status", "run", "--json", cwd=tmp_path).stdout)
    assert resumed["opponent"]["held"] is False


def test_a_player_without_snapshots_is_none_of_a_policy_that_needs_some(tictactoe: Make, tmp_path: Path) -> None:
    often = {"resume__every_steps": 100, "opponent__refresh_every_updates": 1_000}
    run = create(tmp_path / "run", tictactoe(opponent__policy="random", evaluate__episodes=0, **often))
    attempt(run, 320)
    swaps.swap(run, "000000", "opponent", hold=True)
    attempt(run, 440)
    swaps.undo(run, "opponent")
    attempt(run, 560)
    run = Run(run.folder)
    point = run.points().newest()
    assert point
    opponent = point.learners[0].opponent
    assert opponent
    assert (opponent.policy, opponent.snapshots) == ("undo", ())
    run.change_settings(change(run.settings, [("opponent.policy", "average(2)")]))
    attempt(run, 960)
    swap = next(swap for swap in _into_opponent(run) if swap.policy == "average(2)")
    assert swap.reason.startswith("the policy was undo: ")


def test_the_undo_of_an_opponent_follows_the_policy_where_there_was_no_snapshot_before(
    tictactoe: Make, tmp_path: Path
) -> None:
    run = create(tmp_path / "run", tictactoe(opponent__policy="random", evaluate__episodes=0))
    attempt(run, 320)
    swaps.swap(run, "000000", "opponent", hold=True)
    attempt(run, 640)
    run = Run(run.folder)
    run.change_settings(change(run.settings, [("opponent.policy", "average(2)")]))
    swaps.undo(run, "opponent")
    attempt(run, 960)
    undone = next(swap for swap in _into_opponent(run) if swap.policy == "undo")
    assert (undone.previous == (), len(undone.snapshots)) == (False, 2)


def test_the_undo_of_an_opponent_is_of_the_present_attempt(tictactoe: Make, tmp_path: Path) -> None:
    often = {"resume__every_steps": 100, "opponent__refresh_every_updates": 1_000}
    run = create(tmp_path / "run", tictactoe(opponent__policy="latest", evaluate__episodes=0, **often))
    attempt(run, 320)
    swaps.swap(run, "000000", "opponent", hold=True)
    attempt(run, 440)
    assert swaps.undo(run, "opponent", dry_run=True).loss == ""
    attempt(run, 640)
    none = "no manual swap to undo in .*: the newest, swap 000000-.* into the opponent, held, was made by attempt 2, "
    for yes in (False, True):
        with pytest.raises(UsageError, match=none):
            swaps.undo(run, "opponent", yes=yes)


def test_a_game_without_a_first_move_of_the_agent_is_refused() -> None:
    settings = EnvSettings(id="OpenSpiel/nim", kwargs={"pile_sizes": "1"})
    with contextlib.closing(envs.make(settings, count=2)) as env:
        assert isinstance(env, Seat)
        env.opponent = at_random(env.spec)
        with pytest.raises(UsageError, match="nim can end before its second player's first move"):
            env.reset(np.arange(2))


def _wait(until: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not until():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_the_best_response_finds_what_an_untrained_policy_loses(
    tictactoe: Make, train: Callable[[Settings], Run]
) -> None:
    run = train(tictactoe(train__steps=300, evaluate__episodes=0))
    assert worst_returns(run, "000000") == (-1, -1)


def test_the_observation_at_the_end_of_a_game_has_nothing_that_is_legal() -> None:
    boards = Spiel(TICTACTOE, 1)
    for action in (0, 3, 1, 4, 2):
        gains = boards.move(np.array([0]), np.array([action]))
    assert boards.to_move.tolist() == [NOBODY]
    assert gains.tolist() == [[1.0, -1.0]]
    assert not boards.observe(np.array([0]), np.array([1]))[0, -9:].any()
    assert isinstance(boards.new_state(), pyspiel.State)


PONG = EnvSettings(id="TwoPlayer/Pong", noop_max=0)


def test_settings_of_atari_hold_for_two_as_for_one() -> None:
    settings = PONG.model_copy(update={"clip_rewards": False, "max_frames": 401})
    alone = settings.model_copy(update={"id": "ALE/Pong-v5"})
    pair, one = (envs.make(of, count=1) for of in (settings, alone))
    try:
        assert pair.spec.reward_clip is one.spec.reward_clip is None
        assert pair.protocol["time limit, frames"] == one.protocol["time limit, frames"] == 401
        assert isinstance(pair, Seat)
        pair.opponent = pair.boards.fixed_player("random")
        for env in (pair, one):
            assert not env.endless
            env.reset(np.array([1]))
            cut = [bool(env.step(np.array([0])).last_t[0]) for _ in range(101)]
            assert cut == [False] * 100 + [True]
    finally:
        pair.close()
        one.close()


def test_pong_for_two_looks_as_pong_for_one_does() -> None:
    """The screen before the first serve differs by the paddles alone, and by a rounding."""
    with (
        contextlib.closing(envs.make(EnvSettings(id="ALE/Pong-v5", noop_max=0), count=1)) as alone,
        contextlib.closing(boards_of(PONG, 1)) as boards,
    ):
        theirs = alone.reset(np.array([1]))[0, -1].astype(int)
        boards.begin(0, np.random.default_rng(1))
        for _ in range(15):  # the cartridge draws its court later in this mode
            for _ in (0, 1):
                boards.move(np.array([0]), np.array([0]))
            theirs = alone.step(np.array([0])).s_t[0, -1].astype(int)
        ours = boards.observe(np.array([0]), np.array([0]))[0, -1].astype(int)
        assert boards.spec == alone.spec._replace(players=2)
        assert (abs(ours - theirs) <= 1).mean() > 0.98
        left = boards.observe(np.array([0]), np.array([1]))[0, -1]
        np.testing.assert_array_equal(left, ours[:, ::-1])


def test_in_pong_each_player_moves_its_own_paddle_the_same_way() -> None:
    def height(seat: int) -> float:
        court = boards.observe(np.array([0]), np.array([seat]))[0, -1][14:76, 73:77]
        return float(np.flatnonzero((court > 100).any(axis=1)).mean())

    with contextlib.closing(boards_of(PONG, 1)) as boards:
        for up, still in ((0, 1), (1, 0)):
            boards.begin(0, np.random.default_rng(1))
            for _ in range(15):
                for _ in (0, 1):
                    boards.move(np.array([0]), np.array([0]))
            before = [height(seat) for seat in (0, 1)]
            for _ in range(4):
                for seat in (0, 1):
                    boards.move(np.array([0]), np.array([2 if seat == up else 0]))
            assert height(up) < before[up] - 3
            assert height(still) == before[still]


def test_the_ball_of_pong_for_two_is_served_without_the_button() -> None:
    """Nobody is fined for letting the ball wait. Fewer actions can be chosen, as in Pong for one."""
    settings = PONG.model_copy(update={"actions": [0, 2, 3]})
    random, gains = np.random.default_rng(1), []
    with contextlib.closing(boards_of(settings, 1)) as boards:
        assert boards.action_names == ("NOOP", "RIGHT", "LEFT")
        assert boards.spec.n_actions == 3
        boards.begin(0, random)
        for _ in range(1_000):
            for action in random.integers(0, 3, 2):
                gained = boards.move(np.array([0]), np.array([action]))[0]
            if gained.any():
                gains.append(gained.tolist())
    assert len(gains) > 20
    assert all(sorted(gained) == [-1.0, 1.0] for gained in gains)
    with pytest.raises(UsageError, match=r"env.actions=\[0, 6\]: give two or more different actions of TwoPlayer/Pong"):
        boards_of(PONG.model_copy(update={"actions": [0, 6]}), 1)


def speeds(settings: EnvSettings) -> tuple[np.ndarray, np.ndarray]:
    """Of a ball between players who always press the button: rows and columns of the image that it makes in frames."""
    random, at = np.random.default_rng(1), list[np.ndarray]()
    with contextlib.closing(boards_of(settings.model_copy(update={"frame_skip": 1}), 1)) as boards:
        boards.begin(0, random)
        for frame in range(6_000):
            if frame % 16 == 0:
                actions = random.choice([1, 4, 5], 2)  # those with FIRE
            for action in actions:
                boards.move(np.array([0]), np.array([action]))
            if boards.to_move[0] == NOBODY:
                boards.begin(0, random)
            seen = ball(boards.observe(np.array([0]), np.array([0]))[0, -1])
            at.append(np.full(2, np.nan) if seen is None else seen)
    made = np.abs(np.diff(at, axis=0))
    rows, columns = made[~np.isnan(made).any(axis=1)].T
    return rows, columns


def test_the_ball_of_pong_for_two_flies_as_in_pong_for_one() -> None:
    """A player may hit it twice as fast, and not at the steep angles of the cartridge's other variation."""
    rows, columns = speeds(PONG)
    assert (columns > 0.8).mean() > 0.02  # two of the screen's 160 columns, in place of one
    assert (rows > 1.2 * columns).mean() < 0.1  # nine in ten in the other variation


def test_a_button_works_in_as_many_games_of_pong_as_is_asked_for() -> None:
    _, columns = speeds(PONG.model_copy(update={"kwargs": {"button": 0}}))
    assert (columns > 0.8).mean() < 0.002
    boards = boards_of(PONG.model_copy(update={"kwargs": {"button": 0.25}}), 1)
    random, broken = np.random.default_rng(1), []
    for _ in range(200):
        boards.begin(0, random)
        broken.append(boards._broken[0].tolist())  # type: ignore[attr-defined]
    boards.close()
    assert np.mean(broken, axis=0) == pytest.approx([0.75, 0.75], abs=0.07)
    assert abs(np.corrcoef(np.transpose(broken))[0, 1]) < 0.15
    for wrong, words in (({"button": 2}, "button=2: must be a number from 0 to 1"), ({"knob": 1}, "takes only button")):
        with pytest.raises(UsageError, match=words):
            boards_of(PONG.model_copy(update={"kwargs": wrong}), 1)


def test_a_game_of_pong_follows_from_its_seeds(tmp_path: Path) -> None:
    """On emulators that are new and on those that have played; with sticky actions, which are drawn for each player."""
    env = envs.make(PONG.model_copy(update={"noop_max": 30, "sticky": 0.25}), count=2)
    assert isinstance(env, Seat)
    env.opponent = at_random(env.spec)
    played = []
    for _ in (1, 2):
        s_tm1, random, seen = env.reset(np.array([3, 4])), np.random.default_rng(1), []
        for _ in range(250):
            step = env.step(random.integers(0, 6, 2))
            seen.append((step.s_next.tobytes(), step.r_t.tolist()))
        played.append([s_tm1.tobytes(), *seen])
    env.close()
    assert played[0] == played[1]
    assert {reward for _, rewards in played[0][1:] for reward in rewards} == {-1.0, 0.0, 1.0}


def test_pong_for_two_resumes_exactly(train: Callable[[Settings], Run], tmp_path: Path) -> None:
    small = {
        "env.count": 2,
        "train.steps": 160,
        "train.start_steps": 80,
        "train.chunk_steps": 16,
        "train.batch_size": 4,
        "replay.capacity_steps": 1_000,
        "target.refresh_every_updates": 8,
        "opponent.refresh_every_updates": 4,
        "resume.every_steps": 100,
        "evaluate.every_steps": 160,
        "evaluate.episodes": 1,
        "evaluate.max_steps": 30,
    }
    settings = load("pong-selfplay", small.items())
    whole, killed = train(settings), create(tmp_path / "killed", settings)
    attempt(killed, 120)
    attempt(killed)
    assert end(killed) == end(whole)
    [evaluation] = whole.evaluation_lines()
    assert evaluation["protocol"]["environment"] == "ALE/Pong-v5"


def test_a_board_is_filmed_and_one_that_cannot_be_drawn_says_so(
    tictactoe: Make, train: Callable[[Settings], Run], tmp_path: Path
) -> None:
    run = train(tictactoe(train__steps=300, evaluate__episodes=0))
    told = twin_graph("record", str(run.folder), "-o", "game.gif", cwd=tmp_path)
    assert told.returncode == 0, told.stderr
    assert (tmp_path / "game.gif").stat().st_size > 5_000
    with pytest.raises(UsageError, match=r"OpenSpiel/hex cannot be drawn; tic_tac_toe and connect_four can"):
        envs.make(EnvSettings(id="OpenSpiel/hex"), count=1, evaluation=True, screens=True)


def test_both_players_pieces_are_drawn_where_they_lie() -> None:
    boards = Spiel(EnvSettings(id="OpenSpiel/connect_four"), 1)
    for column in (3, 3):
        boards.move(np.array([0]), np.array([column]))
    picture = boards.draw()
    centres = picture[30::60, 30::60].tolist()
    first, second, free = centres[5][3], centres[4][3], centres[0][0]
    assert picture.shape == (6 * 60, 7 * 60, 3)
    assert len({tuple(first), tuple(second), tuple(free)}) == 3
    assert sum(colour == free for row in centres for colour in row) == 40
