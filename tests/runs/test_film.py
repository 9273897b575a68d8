"""Films: the game that they show is the one that is scored, and each is whole or not there."""

import contextlib
import json
import os
import re
import subprocess
import sys
import unicodedata
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gymnasium
import numpy as np
import pytest
from attempts import attempt, progress_of
from commands import twin_graph
from imageio_ffmpeg import count_frames_and_secs, get_ffmpeg_exe, read_frames
from twin_graph_cli.record import _usual_path

from twin_graph import config, envs
from twin_graph.envs.legal import ILLEGAL
from twin_graph.errors import UsageError
from twin_graph.evaluation import film, fonts
from twin_graph.evaluation.games import Contender, last, play
from twin_graph.snapshots.run import Run, create
from twin_graph.twin.model import ModelSpec
from twin_graph.twin.twin import Twin
from twin_graph.view.records import Records


def _random_q(actions: int) -> Callable[[np.ndarray], np.ndarray]:
    random = np.random.default_rng(0)
    return lambda observations: random.random((len(observations), actions)).astype(np.float32)


@pytest.mark.parametrize(
    ("game", "sticky", "max_frames"),
    [("Pong", 0.0, 1_001), ("Breakout", 0.25, 108_000), ("SpaceInvaders", 0.25, 999)],
)
def test_the_second_emulator_plays_the_game_of_the_first(game: str, sticky: float, max_frames: int) -> None:
    settings = config.load(
        "pong", [("env.id", f"ALE/{game}-v5"), ("env.sticky", sticky), ("env.max_frames", max_frames)]
    ).env
    first = envs.make(settings, count=2, evaluation=True, screens=True)
    assert first._screen is not None  # type: ignore[attr-defined]
    rewards, frames = [], []
    second = first._screen.step  # type: ignore[attr-defined]

    def step(action: np.ndarray) -> Any:
        told = second(action)
        rewards.append(float(told[1][0]))
        frames.append(bool(told[2][0] or told[3][0]))
        return told

    first._screen.step = step  # type: ignore[attr-defined]
    random, games = np.random.default_rng(1), 0
    first.reset(np.array([11, 12]))
    newest = None
    for _ in range(600):
        told = first.step(random.integers(0, first.spec.n_actions, size=2))
        assert sum(rewards) == told.score_t[0]
        assert any(frames) == told.last_t[0]
        screens = first.screens()
        assert len(screens) == len(rewards) + 1
        if newest is not None:
            assert (screens[0] == newest).all()
        # What the network sees is the maximum of the last two screens in grey, scaled.
        if len(screens) > 2 and not told.last_t[0]:
            grey = np.maximum(*(screen @ [0.299, 0.587, 0.114] for screen in screens[-2:]))
            assert abs(grey.mean() - told.s_t[0, -1].mean()) < 1.5
        newest = None if told.last_t[0] else screens[-1]
        games += int(told.last_t[0])
        rewards.clear()
        frames.clear()
    first.close()
    assert games


@pytest.mark.parametrize("preset", ["cartpole", "blob", "minatar"])
def test_environments_show_what_the_action_was_chosen_from_and_what_came_of_it(preset: str) -> None:
    env = envs.make(config.load(preset).env, count=2, evaluation=True, screens=True)
    env.reset(np.array([3, 4]))
    random, ended, after = np.random.default_rng(0), 0, None
    for _ in range(400):
        told = env.step(random.integers(0, env.spec.n_actions, size=2))
        before, now = env.screens()
        assert after is None or (before == after).all()
        assert before.dtype == np.uint8
        after = None if told.last_t[0] else now
        ended += int(told.last_t[0])
    env.close()
    assert ended
    assert len(env.action_names) == env.spec.n_actions


def test_watching_changes_no_score(tmp_path: Path) -> None:
    settings = config.load("breakout", [("env.max_frames", 900), ("evaluate.epsilon", 0.5)])
    at: dict[str, Any] = {"episodes": 3, "at": (5, 7)}
    unseen = last(play(Contender(_random_q(4)), settings, **at))
    with film.Film(tmp_path / "a.mp4", ("breakout", "random"), scale=0.5) as made:
        *_, seen = play(Contender(_random_q(4)), settings, **at, watch=made.watch)
        made.finish()
    assert seen == unseen
    assert made.scores == seen.returns[:1]


def test_a_film_lasts_as_long_as_its_game(tmp_path: Path) -> None:
    settings = config.load("pong", [("env.max_frames", 240)])

    def filmed(name: str, **options: Any) -> tuple[int, float]:
        with film.Film(tmp_path / name, ("pong", "random"), scale=0.5, **options) as made:
            for _ in play(Contender(_random_q(6)), settings, episodes=1, at=(5, 7), watch=made.watch):
                if made.full:
                    break
            made.finish()
        return count_frames_and_secs(tmp_path / name)

    whole = 240 / 60 + 1  # the end stays for a second
    assert filmed("real.mp4", per_second=60.0) == pytest.approx((60 * whole, whole), rel=0.01)
    assert filmed("half.mp4") == pytest.approx((30 * whole, whole), rel=0.01)
    assert filmed("fast.mp4", speed=4.0)[1] == pytest.approx(240 / 60 / 4 + 1, rel=0.02)
    assert filmed("slow.mp4", speed=0.5, seconds=3.0)[1] == pytest.approx(3.0, rel=0.02)
    assert filmed("short.gif", seconds=2.0, per_second=20.0) == pytest.approx((40, 2.0), rel=0.03)
    assert not list(tmp_path.glob(".tmp*"))


def test_a_film_shows_score_values_and_actions(tmp_path: Path) -> None:
    """The picture is drawn from what is told: another score, value or action is another picture."""
    panel = film._Panel(("run", "snapshot"), ("left", "right"), 1, 1.0)
    q = np.array([1.0, 2.0], np.float32)
    screen = np.zeros((210, 160, 3), np.uint8)
    base = film.Moment(q, action=1, score=3.0, step=4, game=1, last=False)

    def drawn(moment: film.Moment) -> bytes:
        panel.clear()
        panel.add(moment, 0.0)
        return panel.frame(screen).tobytes()

    others = {"q": q + 1, "action": 0, "score": 4.0, "step": 5, "last": True}
    pictures = {drawn(base), *(drawn(base._replace(**{name: value})) for name, value in others.items())}
    assert len(pictures) == 1 + len(others)
    picture = np.frombuffer(drawn(base), np.uint8).reshape(420, 640, 3)
    assert not picture[:, :320].any()  # the screen, and nothing over it
    assert (picture == film._GREEDY).all(axis=2).sum() > 1_000  # the bar of the greedy action
    assert not (picture == film._RANDOM).all(axis=2).any()
    explored = np.frombuffer(drawn(base._replace(action=0)), np.uint8).reshape(420, 640, 3)
    assert (explored == film._RANDOM).all(axis=2).any()


def test_a_film_shows_the_distribution_of_the_action_taken() -> None:
    q, screen = np.array([1.0, 2.0], np.float32), np.zeros((210, 160, 3), np.uint8)
    base = film.Moment(q, action=1, score=3.0, step=4, game=1, last=False)
    support, even = np.linspace(-3, 5, 9, dtype=np.float32), np.full(9, 1 / 9, np.float32)
    quantiles = np.random.default_rng(0).normal(size=9).astype(np.float32)

    def drawn(*expected: np.ndarray) -> np.ndarray:
        panel = film._Panel(("run", "snapshot"), ("left", "right"), 1, 1.0, has_atoms=True)
        panel.add(base._replace(expected=expected), 0.0)
        return panel.frame(screen).copy()

    pictures = [drawn(support, even), drawn(support, np.eye(9, dtype=np.float32)[3]), drawn(quantiles, even)]
    assert len({picture.tobytes() for picture in pictures}) == 3
    histogram = pictures[0][film._BARS_TOP + 2 * film._ROW_MOST + 38 :][: film._ATOMS - 38, -320:]
    blue = (histogram == film._GREEDY).all(axis=2)
    assert blue.any(axis=0).sum() > 200  # a bar for each atom, side by side
    assert drawn(np.full(9, np.nan, np.float32), even).shape == (420, 640, 3)  # a diverged run is filmed, too


@pytest.mark.parametrize("head", ["scalar", "categorical", "quantile"])
def test_games_of_distributions_are_watched_with_that_of_the_first_environment(head: str) -> None:
    settings = config.load("cartpole", [("model.head", head), ("evaluate.max_steps", 5)])
    seen: list[Any] = []
    with contextlib.closing(envs.make(settings.env, count=1)) as env:
        spec = ModelSpec.of(settings, env.spec)
    with Twin("evaluation", spec, learns=False) as twin:
        watch = lambda *told: seen.append(told[-1])  # noqa: E731
        last(play(Contender.of(twin, {}), settings, episodes=2, at=(1, 0), watch=watch))
    shape = {"scalar": None, "categorical": (1, 2, 51), "quantile": (1, 2, 200)}[head]
    assert {told and told[0].shape for told in seen} == {shape}


@pytest.mark.parametrize("steps", [20, 28, 50, 200, 500])
def test_the_curve_of_a_short_game_takes_up_most_of_its_place(steps: int) -> None:
    panel = film._Panel(("run", "snapshot"), ("left", "right"), 1, 1.0)
    for step in range(steps):
        q = np.array([0.0, step % 7], np.float32)
        panel.add(film.Moment(q, action=1, score=3.0, step=step + 1, game=1, last=False), 1.0)
    curve = panel.frame(np.zeros((210, 160, 3), np.uint8))[250:, -320:]
    drawn = np.flatnonzero((curve == film._GREEDY).all(axis=2).any(axis=0))
    left, right = film._MARGIN + film._SCALE, film._PANEL - film._MARGIN
    assert drawn[0] < left + 10
    assert drawn[-1] > left + 0.45 * (right - left)
    assert drawn[-1] < right + 4


def titled(title: str) -> bytes:
    panel = film._Panel((title, ""), ("left", "right"), 1, 1.0)
    panel.add(film.Moment(np.zeros(2, np.float32), action=1, score=3.0, step=4, game=1, last=False), 1.0)
    return panel.frame(np.zeros((210, 160, 3), np.uint8)).tobytes()


@pytest.mark.parametrize("letter", [*"\u00e9\u00fc\u00f1\u0142\u0416\u0434\u03bb", "e\u0301"])
def test_titles_have_letters_with_accents_and_of_other_alphabets(letter: str) -> None:
    number = unicodedata.normalize("NFC", letter).encode("ascii", "backslashreplace").decode()
    assert titled(letter) not in (titled("\ufffe"), titled(number))  # the first of which no font has


def test_a_letter_that_no_font_has_is_written_by_its_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fonts, "having", lambda text: [])
    assert titled("run \u4e2d") == titled("run \\u4e2d")
    assert titled("run \udcff") == titled("run \\udcff")


@pytest.mark.parametrize("q", [[np.nan, 2.0], [np.nan, np.nan], [np.inf, -np.inf], [1e20, -1e30]])
def test_a_run_whose_values_diverged_is_filmed(q: list[float]) -> None:
    panel = film._Panel(("run", "snapshot"), ("left", "right"), 1, 1.0)
    for values in (q, [1.0, 2.0], q):
        panel.add(film.Moment(np.array(values, np.float32), action=1, score=3.0, step=4, game=1, last=False), 1.0)
    assert panel.frame(np.zeros((210, 160, 3), np.uint8)).shape == (420, 640, 3)


def test_of_thousands_of_actions_the_best_are_shown_and_the_one_taken() -> None:
    q = np.full(4_672, ILLEGAL, np.float32)
    q[[7, 30, 4_000]] = 0.1, 0.3, 0.2
    moment = film.Moment(q, action=4_000, score=0.0, step=1, game=1, last=False)
    panel = film._Panel(("run", "snapshot"), tuple(f"move {i}" for i in range(len(q))), 1, 1.0)
    panel.add(moment, 0.0)
    picture = panel.frame(np.zeros((210, 160, 3), np.uint8))
    assert picture.shape == (420, 640, 3)
    assert (picture == film._GREEDY).all(axis=2).sum() > 300
    assert (picture == film._RANDOM).all(axis=2).sum() > 100
    rising = moment._replace(q=np.arange(len(q), dtype=np.float32))
    assert panel._shown(rising)[:2] == [4_671, 4_670]
    assert panel._shown(rising._replace(action=2))[-2:] == [4_649, 2]


def test_a_screen_of_another_size_is_shown_whole_where_the_first_was() -> None:
    panel = film._Panel(("run", "snapshot"), ("left", "right"), 1, 1.0)
    panel.add(film.Moment(np.zeros(2, np.float32), action=1, score=3.0, step=4, game=1, last=False), 1.0)

    def shown(height: int, width: int) -> tuple[int, int, int, int]:
        """Height and width in which a white screen is shown in the first's place, and where its top left corner is."""
        picture = panel.frame(np.full((height, width, 3), 255, np.uint8)).copy()
        assert picture.shape == (420, 420 + 320, 3)
        place = picture[:, :420]
        white = (place == 255).all(axis=2)
        assert (place[~white] == film._BACKGROUND).all()  # of the screen before, nothing is left
        rows, columns = np.flatnonzero(white.any(axis=1)), np.flatnonzero(white.any(axis=0))
        assert white.sum() == len(rows) * len(columns)
        return len(rows), len(columns), int(rows[0]), int(columns[0])

    assert shown(40, 40) == (420, 420, 0, 0)
    assert shown(40, 60) == (280, 420, 70, 0)
    assert shown(40, 80) == (210, 420, 105, 0)
    assert shown(80, 40) == (420, 210, 0, 105)
    assert shown(1000, 2000) == (210, 420, 105, 0)
    assert shown(1, 5000)[1] == 420
    assert shown(5000, 1)[0] == 420
    assert shown(40, 40) == (420, 420, 0, 0)


CHANGING = """
import gymnasium
import numpy as np
from gymnasium.envs.classic_control.cartpole import CartPoleEnv


class Changing(CartPoleEnv):
    def __init__(self, then, **options):
        super().__init__(**options)
        self.then, self.drawn = then, 0
        if then == "is not made" and self.render_mode:
            raise RuntimeError("there is no display")

    def render(self):
        self.drawn += 1
        if self.drawn <= 3:
            return np.full((40, 40, 3), 255, np.uint8)
        if self.then == "fails":
            raise RuntimeError("the display is gone")
        return np.full({"grows": (40, 80, 3), "is empty": (0, 80, 3)}[self.then], 255, np.uint8)


gymnasium.register("Changing-v0", Changing, max_episode_steps=50)
"""


@pytest.fixture
def changing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], dict[str, Any]]]:
    """Settings of an environment whose `render()` does something else from the fourth time on."""
    (tmp_path / "changing.py").write_text(CHANGING)
    monkeypatch.syspath_prepend(tmp_path)
    yield lambda then: {"env__id": "changing:Changing-v0", "env__kwargs": {"then": then}}
    gymnasium.registry.pop("Changing-v0", None)
    sys.modules.pop("changing", None)


Changing = Callable[[str], dict[str, Any]]


def test_a_game_whose_screens_change_their_size_is_filmed(
    train: Callable[[config.Settings], Run], cartpole: Callable[..., config.Settings], changing: Changing
) -> None:
    run = train(cartpole(**changing("grows"), evaluate__video=True))
    assert sorted(path.stem for path in run.videos.iterdir()) == [line["snapshot"] for line in run.evaluation_lines()]
    for path in run.videos.iterdir():
        frames = read_frames(path)
        assert next(frames)["size"] == (420 + 320, 420)
        *_, newest = (np.frombuffer(frame, np.uint8).reshape(420, 740, 3) for frame in frames)
        assert newest[210, :420].min() > 240  # white, but for the film's compression
        assert newest[:100, :420].max() < 50


def _ends_in_ffmpeg(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = run.folder.parent / "ffmpeg"
    broken.write_text("#!/bin/sh\nexit 1\n")
    broken.chmod(0o755)
    monkeypatch.setenv("IMAGEIO_FFMPEG_EXE", str(broken))


def _has_no_place(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    run.videos.write_text("a file where the folder should be")


def _ends_in_the_panel(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise ValueError("cannot draw it")

    monkeypatch.setattr(film._Panel, "frame", fail)


@pytest.mark.parametrize(
    ("then", "breaks", "reason"),
    [
        ("fails", None, r"changing:Changing-v0, render: RuntimeError: the display is gone \(.*, in render\)"),
        ("is not made", None, r"changing:Changing-v0, environment 0: RuntimeError: there is no display .*"),
        ("is empty", None, r"changing:Changing-v0, render: it gave uint8\[0, 80, 3\], not uint8 \[H, W, 3\]"),
        ("grows", _ends_in_ffmpeg, r"ffmpeg cannot write the film; the disk has [\d,]+ MB free"),
        ("grows", _has_no_place, "there is no folder .*videos"),
        ("grows", _ends_in_the_panel, "cannot draw it"),
    ],
)
def test_a_film_that_fails_is_a_notice_and_training_goes_on(
    cartpole: Callable[..., config.Settings],
    trained: Callable[[config.Settings], Run],
    changing: Changing,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    then: str,
    breaks: Callable[[Run, pytest.MonkeyPatch], None] | None,
    reason: str,
) -> None:
    settings = cartpole(**changing(then), evaluate__video=True)
    unseen = trained(config.replace(settings, [("evaluate.video", False)]))
    run = create(tmp_path / "run", settings)
    if breaks:
        breaks(run, monkeypatch)
    *_, progress = progress_of(run)
    assert run.outcome() == ("finished", "")
    played = [(line["snapshot"], line["returns"]) for line in run.evaluation_lines()]
    assert played == [(line["snapshot"], line["returns"]) for line in unseen.evaluation_lines()]
    expected = [f"no film of {snapshot}: " for snapshot, _ in played]
    assert len(expected) == 2
    for notice, begin in zip(progress.notices, expected, strict=True):
        assert re.fullmatch(f"{begin}(\\[Errno 5\\] )?{reason}.*", notice), notice
    assert not run.videos.is_dir() or not list(run.videos.iterdir())


@pytest.mark.parametrize("then", ["fails", "is empty", "is not made"])
def test_record_says_in_one_line_why_a_game_cannot_be_drawn(
    trained: Callable[[config.Settings], Run],
    cartpole: Callable[..., config.Settings],
    changing: Changing,
    tmp_path: Path,
    then: str,
) -> None:
    run = trained(cartpole(**changing(then)))  # by another test, perhaps, with the module where that had it
    told = twin_graph("record", str(run.folder), "-o", "a.mp4", "--trust-code", cwd=tmp_path)
    assert told.returncode == 1
    assert told.stderr.splitlines()[-1].startswith("Error: changing:Changing-v0, ")
    assert "Traceback" not in told.stderr
    assert not (tmp_path / "a.mp4").exists()


def test_record_plays_the_game_that_evaluate_scores(
    trained: Callable[[config.Settings], Run], cartpole: Callable[..., config.Settings], tmp_path: Path
) -> None:
    run = trained(cartpole(evaluate__epsilon=1.0))
    told = twin_graph("record", str(run.folder), "--seed", "3", "--scale", "0.5", "-o", "a.mp4", cwd=tmp_path)
    assert (told.returncode, told.stdout) == (0, "a.mp4\n"), told.stderr
    again = twin_graph("evaluate", str(run.folder), "--seed", "3", "--episodes", "1", "--json", cwd=tmp_path)
    [score] = json.loads(again.stdout)["returns"]
    assert f"score: {score:g}\n" in told.stderr
    frames = count_frames_and_secs(tmp_path / "a.mp4")[0]
    assert frames == score + 1 + 50  # each step's screen, the last one, and a second of it
    size = next(read_frames(tmp_path / "a.mp4"))["size"]
    assert size == (280 + 160, 210)
    options = "--seconds", "0.2", "--scale", "0.5", "-o", "b.gif", "--json"
    short = json.loads(twin_graph("record", str(run.folder), *options, cwd=tmp_path).stdout)
    assert (short["film"], short["scores"], short["score_so_far"]) == (
        "b.gif",
        [],
        8,
    )  # its four pictures show steps 1, 3, 6 and 8
    refused = twin_graph("record", str(run.folder), "-o", "a.mp4", cwd=tmp_path)
    assert (refused.returncode, refused.stderr) == (
        2,
        "Error: a.mp4 exists already; choose another path, or remove it\n",
    )
    assert len(list(run.evaluation_lines())) == 3  # two scheduled, and the one by hand: `record` measures nothing


def test_the_page_shows_what_record_films(
    trained: Callable[[config.Settings], Run], cartpole: Callable[..., config.Settings], tmp_path: Path
) -> None:
    run = trained(cartpole(evaluate__epsilon=1.0))
    newest = run.store().newest.id
    short = "--seconds", "0.2", "--scale", "0.5"
    told = twin_graph("record", str(run.folder), *short, cwd=tmp_path)
    assert told.returncode == 0, told.stderr
    assert told.stdout == f"{run.folder}/videos/{newest}.mp4\n"
    assert Records(run).film(newest).is_file()
    again = twin_graph("record", str(run.folder), *short, cwd=tmp_path)
    assert "exists already; choose another path" in again.stderr
    assert not list(tmp_path.glob("*.mp4"))


def test_a_film_of_a_run_that_may_only_be_read_is_in_the_present_folder(
    cartpole: Callable[..., config.Settings], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, snapshot = create(tmp_path / "run", cartpole()), SimpleNamespace(id="000001-12345678")
    assert _usual_path(run, snapshot) == run.videos / "000001-12345678.mp4"
    monkeypatch.setattr("os.access", lambda *_: False)
    monkeypatch.chdir(tmp_path)
    assert _usual_path(run, snapshot) == tmp_path / "run-000001-12345678.mp4"


def test_what_cannot_be_filmed_is_refused_in_one_line(
    trained: Callable[[config.Settings], Run], cartpole: Callable[..., config.Settings], tmp_path: Path
) -> None:
    run = trained(cartpole(evaluate__epsilon=0.2))
    with pytest.raises(UsageError, match=r"a film's name ends in .mp4 or .gif"):
        film.check_path(tmp_path / "film.avi")
    with pytest.raises(UsageError, match="there is no folder"):
        film.check_path(tmp_path / "none" / "film.mp4")
    (tmp_path / "mine.py").write_text(
        "import gymnasium\nfrom gymnasium.envs.classic_control.cartpole import CartPoleEnv\n"
        "class Blind(CartPoleEnv):\n    metadata = {'render_modes': ['human']}\n"
        "gymnasium.register('Blind-v0', Blind, max_episode_steps=20)\n"
    )
    settings = "--set", "env.id=mine:Blind-v0", "--set", "evaluate.video=true"
    told = twin_graph("train", "cartpole", *settings, "--run-dir", "blind", cwd=tmp_path)
    words = "mine:Blind-v0 cannot be drawn: it has no render mode rgb_array (it has human)"
    assert (told.returncode, told.stderr) == (2, f"Error: {words}\n")
    assert not (tmp_path / "blind").exists()
    # As without the extra: a module of that name that cannot be imported.
    (tmp_path / "imageio_ffmpeg.py").write_text("raise ModuleNotFoundError(name='imageio_ffmpeg')")
    env = {**os.environ, "PYTHONPATH": str(tmp_path)}
    told = twin_graph("record", str(run.folder), cwd=tmp_path, env=env, fresh=True)
    assert told.returncode == 2
    assert told.stderr == "Error: films need imageio_ffmpeg: pip install 'twin-graph[video]'\n"


@pytest.mark.parametrize("kind", ["dies", "loses the end"])
def test_where_ffmpeg_fails_one_line_says_so_and_nothing_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    broken = tmp_path / "ffmpeg"
    loses = f'head -c 1000000 | {get_ffmpeg_exe()} "$@"; cat > /dev/null' if kind == "loses the end" else "exit 1"
    broken.write_text(f'#!/bin/sh\ncase "$*" in *rawvideo*) {loses};; *) exec {get_ffmpeg_exe()} "$@";; esac\n')
    broken.chmod(0o755)
    monkeypatch.setenv("IMAGEIO_FFMPEG_EXE", str(broken))
    settings = config.load("cartpole")
    with (
        pytest.raises(OSError, match=r"ffmpeg cannot write the film; the disk has [\d,]+ MB free") as error,
        film.Film(tmp_path / "a.mp4", ("cartpole", "random"), scale=0.5) as made,
    ):
        for _ in play(Contender(_random_q(2)), settings, episodes=1, at=(5, 7), watch=made.watch):
            pass
        made.finish()
    assert error.value.filename == str(tmp_path / "a.mp4")
    assert list(tmp_path.iterdir()) == [broken]


def test_a_film_overwrites_nothing_that_was_not_there_when_it_began(tmp_path: Path) -> None:
    path = tmp_path / "a.mp4"
    with film.Film(path, ("cartpole", "random"), scale=0.5, seconds=0.1) as made:
        for _ in play(Contender(_random_q(2)), config.load("cartpole"), episodes=1, at=(5, 7), watch=made.watch):
            pass
        path.write_text("mine")
        with pytest.raises(UsageError, match=r"a\.mp4 exists already; choose another path"):
            made.finish()
    assert [(one, one.read_text()) for one in tmp_path.iterdir()] == [(path, "mine")]


@pytest.mark.parametrize("name", ["run:best.mp4", "run:best.gif", "a%d.gif"])
def test_a_film_may_have_any_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.chdir(tmp_path)
    settings = config.load("cartpole")
    with film.Film(Path(name), ("cartpole", "random"), scale=0.5, seconds=0.1) as made:
        for _ in play(Contender(_random_q(2)), settings, episodes=1, at=(5, 7), watch=made.watch):
            pass
        made.finish()
    assert [path.name for path in tmp_path.iterdir()] == [name]
    assert count_frames_and_secs(tmp_path / name)[0] > 1


def test_a_film_that_somebody_records_meanwhile_ends_no_training(
    cartpole: Callable[..., config.Settings], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    finish = film.Film.finish

    def too_late(self: film.Film) -> None:
        self.path.write_text("mine")
        finish(self)

    monkeypatch.setattr(film.Film, "finish", too_late)
    run = create(tmp_path / "run", cartpole(evaluate__video=True, evaluate__epsilon=0.2))
    attempt(run)
    assert run.outcome() == ("finished", "")
    assert {path.read_text() for path in run.videos.iterdir()} == {"mine"}


def test_scheduled_evaluations_are_filmed(
    train: Callable[[config.Settings], Run], cartpole: Callable[..., config.Settings]
) -> None:
    settings = cartpole(evaluate__video=True, evaluate__epsilon=0.2)
    run, unseen = train(settings), train(config.replace(settings, [("evaluate.video", False)]))
    scores = [(line["snapshot"], line["returns"]) for line in run.evaluation_lines()]
    assert scores == [(line["snapshot"], line["returns"]) for line in unseen.evaluation_lines()]
    films = {path.stem: count_frames_and_secs(path)[0] for path in run.videos.iterdir()}
    # Pictures at 30 a second of a game at 50: its steps, the last screen and a second of it.
    assert films == {snapshot: pytest.approx((returns[0] + 51) * 0.6, abs=1.5) for snapshot, returns in scores}
    told = twin_graph("verify", str(run.folder), "--json", cwd=run.folder)
    assert told.returncode == 0
    found = json.loads(told.stdout)
    assert not found["unknown"]
    assert sorted(found["unchecked"]) == sorted(map(str, [*run.videos.iterdir(), *run.events.iterdir()]))
    counted = [path for path in run.folder.rglob("*") if path.is_file() and path.name != "lock"]
    assert found["files"] == len(counted) - len(found["unchecked"])
    said = twin_graph("verify", str(run.folder), cwd=run.folder)
    assert said.stdout.startswith("3 files in events, videos not checked: no hashes of these are recorded\n")
    (run.videos / ".tmp-x.mp4-1").mkdir()
    left = json.loads(twin_graph("verify", str(run.folder), "--json", cwd=run.folder).stdout)["leftover"]
    assert left == [str(run.videos / ".tmp-x.mp4-1")]


def test_a_drawn_game_leaves_signals_to_python() -> None:
    """pygame's library would answer SIGTERM, where nobody else does, with nothing."""
    script = """
import re, signal
from pathlib import Path
import numpy as np
from twin_graph import config, envs
env = envs.make(config.load("cartpole").env, count=1, evaluation=True, screens=True)
env.reset(np.array([1]))
env.step(np.array([0]))
caught = int(re.search("SigCgt:\\t(.*)", Path("/proc/self/status").read_text())[1], 16)
assert not caught >> signal.SIGTERM - 1 & 1
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
