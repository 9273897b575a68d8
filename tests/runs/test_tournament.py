"""Tournaments: ratings from recorded games, continued where they were, and games against a person."""

import importlib
import itertools
import json
import shlex
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from commands import twin_graph
from tables import rows
from twin_graph_cli.selfplay import names_of

from twin_graph.config.settings import EnvSettings, Settings
from twin_graph.envs.seats import boards_of
from twin_graph.errors import UsageError
from twin_graph.evaluation import tournament
from twin_graph.evaluation.tournament import Contestant, Pairing, Rules
from twin_graph.records.verify import verify
from twin_graph.snapshots.files import append_line, lock_folder
from twin_graph.snapshots.run import GAMES, RATINGS, Run

Make = Callable[..., Settings]
RULES = Rules(games=12, opening_moves=2, epsilon=0.0, seed=0)


@pytest.fixture
def run(tictactoe: Make, trained: Callable[[Settings], Run]) -> Run:
    return trained(tictactoe(evaluate__episodes=0))


def test_a_tournament_that_was_killed_continues_and_ends_with_the_same_ratings(run: Run, tmp_path: Path) -> None:
    whole, killed = (Run(shutil.copytree(run.folder, tmp_path / name / "run")) for name in ("whole", "killed"))
    who = tournament.contestants([whole], 3, ["random", "perfect"])
    *_, (done, total, pairings) = tournament.play([whole], who, RULES)
    assert (done, total) == (10, 10)

    who = tournament.contestants([killed], 3, ["random", "perfect"])
    for done, _, _ in tournament.play([killed], who, RULES):
        if done == 4:
            break
    with (killed.folder / GAMES).open("a") as file:  # a line that a kill cut off
        file.write('{"time": "20')
    counts = [done for done, _, _ in tournament.play([killed], who, RULES)]
    assert counts == [4, 5, 6, 7, 8, 9, 10]
    *_, (_, _, again) = tournament.play([killed], who, RULES)
    assert sorted(again) == sorted(pairings)
    assert tournament.rate(who, again) == tournament.rate(who, pairings)


def test_as_many_snapshots_take_part_as_are_asked_for(tictactoe: Make, trained: Callable[[Settings], Run]) -> None:
    kept = {"save__keep_last": 4, "save__keep_every": 6, "resume__keep": 1, "resume__every_steps": 100_000}
    run = trained(tictactoe(evaluate__episodes=0, opponent__policy="latest", **kept))
    present = run.store().available  # few early ones, and the last
    for number in range(1, len(present) + 1):
        chosen = [one.snapshot for one in tournament.contestants([run], number, [])]
        assert len(chosen) == number
        assert chosen[-1] == present[-1]
        assert number == 1 or chosen[0] == present[0]


def test_snapshots_do_not_repeat_one_game(run: Run) -> None:
    who = tournament.contestants([run], 2, [])
    with pytest.raises(UsageError, match="without random moves two snapshots repeat one game: raise --opening"):
        list(tournament.play([run], who, RULES._replace(opening_moves=0)))
    one = tournament.contestants([run], 1, ["random"])
    for players, rules in ((who, RULES._replace(opening_moves=0, epsilon=0.1)), (one, RULES._replace(opening_moves=0))):
        *_, (done, _, _) = tournament.play([run], players, rules)
        assert done == 1


def test_a_tournament_needs_two_and_something_to_play(run: Run) -> None:
    with pytest.raises(UsageError, match="has nobody to play against; raise --snapshots, or add --against random"):
        list(tournament.play([run], tournament.contestants([run], 1, []), RULES))
    who = tournament.contestants([run], 1, ["random"])
    for moves in (9, 99):
        with pytest.raises(UsageError, match=f"after {moves} random moves every game is over; lower --opening"):
            list(tournament.play([run], who, RULES._replace(opening_moves=moves)))


def test_weights_can_be_removed_while_a_tournament_is_played(run: Run) -> None:
    who = tournament.contestants([run], 3, ["random"])
    playing = tournament.play([run], who, RULES)
    next(playing)
    for path in run.store_folder.glob("*/model.*"):
        path.unlink()
    *_, (done, total, _) = playing
    assert (done, total) == (6, 6)


def test_other_rules_are_other_games(run: Run) -> None:
    who = tournament.contestants([run], 2, ["random", "perfect"])
    for _ in tournament.play([run], who, RULES):
        pass
    assert len(tournament.read([run], RULES)) == 2 * 6
    assert tournament.read([run], RULES._replace(seed=1)) == {}


@pytest.mark.parametrize("line", [{"rules": {}}, {"keys": ["a"]}, {"returns": ["1"]}, {"rules": None}])
def test_a_game_that_nobody_here_wrote_is_not_counted(run: Run, tmp_path: Path, line: dict[str, object]) -> None:
    strange = Run(Path(shutil.copytree(run.folder, tmp_path / "strange")))
    good = {"rules": RULES._asdict(), "keys": ["a", "b"], "returns": [1.0]}
    append_line(strange.folder / GAMES, good | {"keys": ["c", "d"]})
    append_line(strange.folder / GAMES, good | line)
    append_line(strange.folder / GAMES, {"rules": RULES._asdict()})
    assert set(tournament.read([strange], RULES)) >= {("c", "d"), ("d", "c")}
    assert not {("a", "b"), ("b", "a"), ("a",)} & set(tournament.read([strange], RULES))


def test_both_sides_of_an_opening_are_played() -> None:
    """A player that meets itself has one half of the points: what it gains from one seat it loses from the other."""
    boards = boards_of(EnvSettings(id="OpenSpiel/tic_tac_toe"), 40)
    perfect = boards.fixed_player("perfect")

    def first(turn: object) -> np.ndarray:  # deterministic
        return perfect(turn._replace(draws=np.zeros_like(turn.draws)))  # type: ignore[attr-defined]

    returns = np.array(tournament.match(boards, first, first, RULES._replace(games=40, opening_moves=3)))
    np.testing.assert_array_equal(returns[::2], -returns[1::2])
    assert set(returns) == {-1.0, 0.0, 1.0}


def test_a_game_that_is_cut_is_won_by_whoever_gained_more() -> None:
    boards = boards_of(EnvSettings(id="TwoPlayer/Pong", max_frames=3_000), 2)

    def idle(turn: object) -> np.ndarray:
        return np.zeros(len(turn.draws), np.int64)  # type: ignore[attr-defined]

    try:
        returns = np.array(tournament.match(boards, idle, idle, RULES._replace(games=2, opening_moves=0)))
    finally:
        boards.close()
    assert returns[0] == -returns[1] != 0


def test_runs_of_one_name_keep_their_own_networks(tictactoe: Make, trained: Callable[[Settings], Run]) -> None:
    runs = []
    for units in (8, 16):
        folder = trained(tictactoe(evaluate__episodes=0, model__hidden_units=[units])).folder
        (folder.parent / str(units)).mkdir()
        runs.append(Run(folder.rename(folder.parent / str(units) / "run")))
    who = tournament.contestants(runs, 1, [])
    *_, (done, total, _) = tournament.play(runs, who, RULES)
    assert done == total == 1
    assert [one.name for one in who] == [f"{run.folder}:{run.store().newest.id}" for run in runs]
    assert len({one.short(with_run=True) for one in who}) == 2


NAMES = [Contestant(name, name) for name in ("random", "a", "b", "c")]


def of(first: str, second: str, wins: int, losses: int) -> Pairing:
    """A pairing of 100 games; the rest are draws. Games of one opening end alike."""
    returns = [1.0] * wins + [-1.0] * losses + [0.0] * (100 - wins - losses)
    return Pairing(first, second, returns)


def test_ratings_are_those_of_the_model() -> None:
    """Who wins 10 games for each that it loses is 400 points better, and a draw is half of each."""
    pairings = [of("random", "a", 10, 90)]
    ratings = tournament.rate(NAMES[:2], pairings)
    assert ratings[0].elo == 0
    assert ratings[1].elo == pytest.approx(400 * np.log10(9), abs=2)  # with a little credit
    assert ratings[1].low < ratings[1].elo < ratings[1].high
    assert ratings[1].high - ratings[1].low < 500
    assert tournament.rate(NAMES[:2], [of("random", "a", 0, 0)])[1].elo == pytest.approx(0, abs=1e-6)


def test_one_opening_says_nothing_of_another() -> None:
    [_, rating] = tournament.rate(NAMES[:2], [Pairing("random", "a", [-1.0, -1.0])])
    assert rating.elo > 0
    assert np.isnan([rating.low, rating.high]).all()


def test_an_interval_needs_a_game_that_says_how_far_it_is() -> None:
    """`a` and `b` won every game against `random`: how far above it they are rests on the credit alone."""
    sweeps = [of("random", "a", 0, 100), of("random", "b", 0, 100), of("a", "b", 40, 60)]
    random, *others = tournament.rate(NAMES[:3], sweeps)
    assert (random.low, random.elo, random.high) == (0, 0, 0)
    assert others[1].elo > others[0].elo > 0
    assert np.isnan([value for rating in others for value in (rating.low, rating.high)]).all()
    among = tournament.rate(NAMES[1:3], sweeps[2:])  # without `random`, their distance is known
    assert among[0].low < among[0].elo < among[0].high
    assert np.isnan([rating.low for rating in tournament.rate(NAMES[1:3], [of("a", "b", 100, 0)])]).all()


def test_each_rating_expects_as_many_points_as_were_made() -> None:
    """That is the maximum of the likelihood; a tenth of a win of credit for each against each is part of the games."""
    scores = {("random", "a"): (10, 90), ("random", "b"): (2, 98), ("random", "c"): (0, 100)}
    scores |= {("a", "b"): (30, 60), ("a", "c"): (20, 80), ("b", "c"): (35, 65)}
    ratings = tournament.rate(NAMES, [of(a, b, wins, losses) for (a, b), (wins, losses) in scores.items()])
    elo = {one.key: rating.elo for one, rating in zip(NAMES, ratings, strict=True)}
    made, expected = dict.fromkeys(elo, 0.0), dict.fromkeys(elo, 0.0)
    for (a, b), (wins, losses) in scores.items():
        chance = 1 / (1 + 10 ** ((elo[b] - elo[a]) / 400))
        points = wins + (100 - wins - losses) / 2
        for who, got, share in ((a, points, chance), (b, 100 - points, 1 - chance)):
            made[who] += got + 0.1
            expected[who] += 100.2 * share
    assert made == pytest.approx(expected, abs=0.01)


def test_who_won_everything_has_a_rating_too() -> None:
    pairings = [of(a.key, b.key, 0, 100) for a, b in itertools.combinations(NAMES, 2)]
    ratings = tournament.rate(NAMES, pairings)
    assert all(np.isfinite(rating.elo) for rating in ratings)
    assert [rating.elo for rating in ratings] == sorted(rating.elo for rating in ratings)


def test_cycles_are_named_once_and_only_where_they_are_certain() -> None:
    certain = [of("a", "b", 80, 20), of("b", "c", 80, 20), of("a", "c", 20, 80), of("random", "a", 0, 100)]
    assert tournament.cycles(NAMES, certain) == [("a", "b", "c")]
    assert tournament.cycles(NAMES, [*certain[:2], of("a", "c", 48, 52)]) == []
    assert tournament.cycles(NAMES, [*certain[:2], of("a", "c", 80, 20)]) == []
    # Two openings decide nothing, however clear they are; six are the fewest that do.
    for openings, found in ((2, []), (5, []), (6, [("a", "b", "c")])):
        ring = [Pairing(*two, [1.0, 0.0] * openings) for two in (("a", "b"), ("b", "c"), ("c", "a"))]
        assert tournament.cycles(NAMES, ring) == found


def test_groups_between_which_one_side_won_everything_are_told() -> None:
    swept = [of("random", "a", 0, 100), of("random", "b", 0, 100), of("a", "b", 40, 60)]
    shares = tournament.shares(NAMES[:3], swept)
    np.testing.assert_array_equal(shares, [[np.nan, 0, 0], [1, np.nan, 0.4], [1, 0.6, np.nan]])
    assert sorted(tournament.groups(NAMES[:3], shares)) == [["a", "b"], ["random"]]
    shares = tournament.shares(NAMES[:3], [of("random", "a", 0, 99), *swept[1:]])
    assert tournament.groups(NAMES[:3], shares) == [["random", "a", "b"]]


def test_runs_of_one_game_meet_however_many_games_they_trained_on(
    tictactoe: Make, trained: Callable[[Settings], Run]
) -> None:
    runs = [trained(tictactoe(evaluate__episodes=0, env__count=count)) for count in (8, 4)]
    fixed = tournament.contestants(runs, 1, ["random", "random"])[2:]
    assert [one.name for one in fixed] == ["random"]


def test_a_fixed_player_takes_part_once_however_it_is_called(run: Run) -> None:
    fixed = tournament.contestants([run], 1, ["random", "mcts(100)", "mcts", "random()", "mcts( 20 )"])[1:]
    assert [one.name for one in fixed] == [one.key for one in fixed] == ["random", "mcts(100)", "mcts(20)"]


def test_players_are_told_apart_by_commas_and_spaces_between_them() -> None:
    given = "random, mcts( 50 ) mine:one(1, 2),mine:two mcts("
    assert names_of(given) == ["random", "mcts( 50 )", "mine:one(1, 2)", "mine:two", "mcts("]


def test_a_player_of_ones_own_is_another_one_when_its_code_has_changed(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    keys = []
    for choice in ("min", "max", "min"):
        (tmp_path / "firm.py").write_text(f"def firm(game, spec):\n    return {choice}\n")
        sys.modules.pop("firm", None)
        importlib.invalidate_caches()
        [one] = tournament.contestants([run], 1, ["firm:firm"])[1:]
        assert one.name == "firm:firm"
        keys.append(one.key)
    assert keys[0] == keys[2] != keys[1]


def test_equal_weights_are_one_contestant(run: Run, tmp_path: Path) -> None:
    twin = Run(shutil.copytree(run.folder, tmp_path / "twin"))
    assert len(tournament.contestants([run, twin], 4, [])) == len(tournament.contestants([run], 4, [])) == 4
    names = [one.name for one in tournament.contestants([run], 4, [])]
    assert [one.snapshot for one in tournament.contestants([run], 1, [])] == [run.store().newest]
    assert names[0] == f"{run.name}:{run.store().available[0].id}"
    assert names[-1] == f"{run.name}:{run.store().newest.id}"


def test_snapshots_are_spaced_over_the_training_though_more_of_the_newest_are_kept(run: Run) -> None:
    present = run.store().available
    gone = [snapshot.id for snapshot in present if present[0].updates < snapshot.updates < present[-1].updates // 2]
    assert len(gone) > 3
    run.store().remove_weights(lambda: gone, attempt=1)
    chosen = [one.snapshot.updates for one in tournament.contestants([run], 3, []) if one.snapshot]
    middle = min((s.updates for s in present if s.id not in gone), key=lambda n: abs(n - present[-1].updates / 2))
    assert chosen == [present[0].updates, middle, present[-1].updates]


def test_the_command_rates_draws_and_records(run: Run, tmp_path: Path) -> None:
    command = ("tournament", str(run.folder), "--snapshots", "2", "--games", "8", "--against", "random perfect")
    told = twin_graph(*command, "--plot", "who.png", "--json", cwd=tmp_path)
    assert told.returncode == 0, told.stderr
    document = json.loads(told.stdout)
    assert [player["elo"] for player in document["players"] if player["name"] == "random"] == [0]
    assert document["players"][0]["name"] == "perfect"
    assert (tmp_path / "who.png").stat().st_size > 5_000
    recorded = json.loads((run.folder / RATINGS).read_text())
    assert recorded["players"] == document["players"]
    again = twin_graph(*command, cwd=tmp_path)
    assert again.stdout.splitlines()[1].startswith("perfect")
    assert verify(run).unknown == []
    games = (run.folder / GAMES).read_bytes()
    (run.folder / GAMES).write_bytes(games.replace(b'"games": 8', b'"games": 9', 1))
    assert verify(run).damage == [f"{run.folder / GAMES} is damaged: line 1 is not what was written"]
    (run.folder / GAMES).unlink()
    for picture, words in (
        ("who.png", "exists already; choose another path"),
        ("who.gif", "ends in .png, .svg or .pdf"),
    ):
        refused = twin_graph(*command, "--plot", picture, cwd=tmp_path)
        assert words in refused.stderr
        assert refused.returncode == 2
    assert not (run.folder / GAMES).exists()  # known before hours of games


@pytest.mark.parametrize(("options", "message"), rows("tournament", "not_playable", "options", "message"))
def test_what_cannot_be_played_is_said_in_one_line(run: Run, tmp_path: Path, options: str, message: str) -> None:
    told = twin_graph("tournament", str(run.folder), *shlex.split(options), cwd=tmp_path)
    assert told.returncode == 2
    assert message in told.stderr
    assert len(told.stderr.splitlines()) == 1


def test_games_of_one_player_have_no_tournament(cartpole: Make, trained: Callable[[Settings], Run]) -> None:
    single = trained(cartpole(train__steps=300, evaluate__episodes=0))
    with pytest.raises(UsageError, match="CartPole-v1 has one player: there is nobody to play against"):
        tournament.contestants([single], 2, [])


def test_runs_of_different_games_cannot_meet(run: Run, cartpole: Make, trained: Callable[[Settings], Run]) -> None:
    other = trained(cartpole(train__steps=300, evaluate__episodes=0))
    with pytest.raises(UsageError, match=r"plays OpenSpiel/tic_tac_toe and .* plays CartPole-v1"):
        tournament.contestants([run, other], 2, [])


def test_a_person_plays_a_game_to_its_end(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """By moves of both kinds, with a look at the Q values, and with what is no move."""
    from click.testing import CliRunner
    from twin_graph_cli.selfplay import play

    moves = ["?", "z", "x(9,9)", *[str(action) for action in range(9)] * 5]
    result = CliRunner().invoke(play, [str(run.folder), "latest"], input="\n".join(moves))
    assert result.exit_code == 0, result.output
    assert "'z' is not a legal move: 0: x(0,0)" in result.output
    assert result.output.splitlines()[-1] in ("you win", "a draw", f"{run.store().newest.id} wins")
    assert result.output.count("  x(") >= 9
    given_up = CliRunner().invoke(play, [str(run.folder), "--second"], input="q\n")
    assert given_up.exit_code == 0
    assert f"{run.store().newest.id} plays x" in given_up.output
    assert given_up.output.splitlines()[-1] == f"you give up; {run.store().newest.id} wins"


def test_weights_can_be_removed_while_a_person_plays(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    from click.testing import CliRunner
    from twin_graph_cli import selfplay

    asked = []

    def move(names: dict[int, str], q: dict[int, float]) -> int:
        with lock_folder(run.store().folder, shared=False):
            asked.append(q)
        return next(iter(names))

    monkeypatch.setattr(selfplay, "_ask", move)
    result = CliRunner().invoke(selfplay.play, [str(run.folder)])
    assert result.exit_code == 0, result.output
    assert len(asked) >= 3


def test_absurd_numbers_are_answered(run: Run) -> None:
    assert len(tournament.contestants([run], 10**12, [])) == len(run.store().available)
    rules = tournament.Rules(games=2, opening_moves=10**12, epsilon=0.0, seed=0)
    who = tournament.contestants([run], 1, ["random"])
    with pytest.raises(UsageError, match="every game is over; lower --opening"):
        list(tournament.play([run], who, rules))
