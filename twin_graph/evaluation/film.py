"""Films of a snapshot at play: the game as people see it, and next to it what the network thinks."""

from __future__ import annotations

import contextlib
import errno
import shutil
import subprocess
from collections import deque
from collections.abc import Generator
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import numpy as np

from twin_graph import envs
from twin_graph.base import new_files
from twin_graph.envs.legal import is_illegal, legal_only
from twin_graph.errors import UsageError
from twin_graph.evaluation import fonts
from twin_graph.snapshots.files import fsync, publish, remove_leftovers, temporary_of

if TYPE_CHECKING:
    from twin_graph.config.settings import Settings
    from twin_graph.envs import VectorEnv, VectorStep
    from twin_graph.twin.twin import Distribution

HEIGHT = 420  # pixels, at scale 1: twice that of Atari's screen
KINDS = ".mp4", ".gif"
_HOLD_SECONDS = 1.0  # how long the end of a game stays
_WIDEST = 4 / 3  # a screen's width by the picture's height
_WINDOWS = 30, 60, 120, 240  # agent steps that the curve shows: the fewest that hold the game, or its newest
_SMALLEST_RANGE = 1e-3  # of Q values, so that bars and curve of equal ones stay quiet

_PANEL, _MARGIN = 320, 18  # width and margin at scale 1
_BARS_TOP, _BARS_MOST, _ROW_MOST = 134, 180, 24
_ROWS_MOST = 24  # actions that are shown
_ATOMS, _BINS, _UNLIKELY = 88, 48, 0.1  # height and bins of a histogram; what share of an even one an atom needs
_NAMES, _NUMBERS, _SCALE = 98, 44, 32  # widths of the columns left and right of the bars, and left of the curve
_BACKGROUND, _TEXT, _DIM, _GRID = (16, 20, 28), (232, 236, 244), (127, 138, 163), (38, 46, 62)
_BAR, _GREEDY, _RANDOM = (66, 80, 108), (76, 194, 255), (255, 159, 67)
_GAIN, _LOSS = (90, 214, 125), (255, 107, 107)


def check_path(path: Path) -> None:
    """Raises `UsageError` unless a film can be written there, and the extra `video` is installed."""
    new_files.check_new(path, "film", KINDS)
    check_installed()


def check_installed() -> None:
    """Raises `UsageError` if the extra `video` is missing."""
    try:
        import imageio_ffmpeg  # noqa: F401
        import PIL  # noqa: F401
    except ModuleNotFoundError as error:
        raise UsageError(f"films need {error.name}: pip install 'twin-graph[video]'") from None


def check_filming(settings: Settings) -> None:
    """Raises `UsageError` if `evaluate.video` cannot be done: the extra, or a way to draw the game, is missing."""
    if settings.evaluate.video:
        check_installed()
        with contextlib.closing(envs.make(settings.env, count=1, evaluation=True, screens=True)) as env:
            env.reset(np.zeros(1, np.int64))
            env.screens()


class Moment(NamedTuple):
    """What is shown next to the game while one action is carried out.

    Attributes:
      q: Q values `[A]` of the observation that the action was chosen from.
      action: the one taken.
      score: of the game, with this action's reward.
      step: agent steps of the game, this one included.
      game: number, from 1.
      last: whether the game ended.
      expected: the distribution of the return of that action: returns and their probabilities, `[N]` each; None if the
        network has values alone.
    """

    q: np.ndarray
    action: int
    score: float
    step: int
    game: int
    last: bool
    expected: tuple[np.ndarray, np.ndarray] | None = None


class Film:
    """Records the first environment of an evaluation: `play(..., watch=film.watch)`.

    Written under another name until `finish()`; without that, closing it (`with`) leaves nothing.

    Args:
      path: of the film, `.mp4` or `.gif`; nothing may be there.
      title: what plays, in two lines.
      games: of the environment, after which the film ends.
      speed: 1 is as people see it played.
      scale: of the picture; 1 is `HEIGHT` pixels high.
      per_second: pictures, at most.
      seconds: after which the film ends; None for whole games.

    Attributes:
      path: as given.
      scores: of the games that ended in the film.
      score: so far, of a game that has not ended.
      full: whether it has everything that it was asked to show.

    Raises:
      UsageError: see `check_path`.
    """

    def __init__(
        self,
        path: Path,
        title: tuple[str, str],
        *,
        games: int = 1,
        speed: float = 1.0,
        scale: float = 1.0,
        per_second: float = 30.0,
        seconds: float | None = None,
    ) -> None:
        check_path(path)
        self.path, self._title, self._games = path, title, games
        self._speed, self._scale, self._most, self._seconds = speed, scale, per_second, seconds
        self._writer: _Writer | None = None
        self._panel: _Panel | None = None
        self.scores: list[float] = []
        self.score, self._steps = 0.0, 0
        self._shown = 0.0  # screens, so far
        self._newest: list[np.ndarray] = []
        self.full = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Removes what was not finished."""
        if self._writer:
            self._writer.close()

    def watch(
        self,
        env: VectorEnv,
        q: np.ndarray,
        actions: np.ndarray,
        step: VectorStep,
        distribution: Distribution | None = None,
    ) -> None:
        """Adds what the first environment showed in a step; see `twin_graph.evaluation.games.Watch`.

        Raises:
          OSError: the disk is full or cannot be written.
          ForeignError: the environment could not be drawn.
        """
        if self.full:
            return
        screens, last = env.screens(), bool(step.last_t[0])
        self.score, self._steps = self.score + float(step.score_t[0]), self._steps + 1
        action = int(actions[0])
        expected = distribution and (distribution[0][0, action], distribution[1][0, action])
        moment = Moment(q[0], action, self.score, self._steps, len(self.scores) + 1, last, expected)
        if self._panel is None:
            names = env.action_names or tuple(f"action {a}" for a in range(env.spec.n_actions))
            self._panel = _Panel(self._title, names, self._games, self._scale, has_atoms=expected is not None)
        self._panel.add(moment, float(step.score_t[0]))
        for screen in screens if last else screens[:-1]:
            self._show(env, screen)
        if last:
            self.scores.append(self.score)
            self.score, self._steps = 0.0, 0
            self._panel.clear()
            self._newest = []
            for _ in range(round(_HOLD_SECONDS * env.screens_per_second * self._speed)):
                self._show(env, screens[-1])
            self.full |= len(self.scores) == self._games

    def finish(self) -> None:
        """Makes the film durable under its name. Raises `OSError`, or `UsageError` if there is one by now."""
        assert self._writer is not None
        self._writer.finish()

    def _show(self, env: VectorEnv, screen: np.ndarray) -> None:
        """Adds a screen, of several in one picture's time the last; of an emulator's, the maximum of the last two.

        Many Atari games draw some of their objects in every other frame alone, which is why the network sees the
        maximum of two as well.
        """
        assert self._panel is not None
        per_second = env.screens_per_second * self._speed
        pictures_per_second = min(per_second, self._most)
        screens_per_picture = per_second / pictures_per_second
        self._newest = [*self._newest[-1:], screen]
        self._shown += 1
        if self._writer is None:
            size = self._panel.frame_size(screen)
            self._writer = _Writer(self.path, size, pictures_per_second)
        if not self.full and self._writer.pictures * screens_per_picture < self._shown:
            pooled = screens_per_picture > 1 and env.spec.frames_per_step > 1
            self._writer.add(self._panel.frame(np.maximum(*self._newest) if pooled and self._newest[1:] else screen))
            self.full = self._seconds is not None and self._writer.pictures >= self._seconds * pictures_per_second


class _Panel:
    """Draws pictures of a film: a screen, and right of it the moment that was added last.

    Args:
      title: in two lines.
      names: of the actions.
      games: of the film.
      scale: see `Film`.
      has_atoms: whether there is a distribution to show.
    """

    def __init__(
        self, title: tuple[str, str], names: tuple[str, ...], games: int, scale: float, *, has_atoms: bool = False
    ) -> None:
        self._title, self._names, self._games, self._scale = title, names, games, scale
        self._height = 2 * round(HEIGHT * scale / 2)  # H.264 wants even numbers
        self._width = 2 * round(_PANEL * scale / 2)
        self._rows = min(_ROWS_MOST, len(names))
        self._atoms_height = _ATOMS if has_atoms else 0
        self._row = min(_ROW_MOST, (_BARS_MOST - self._atoms_height) / self._rows)
        self._fonts: dict[tuple[Path | None, float], Any] = {}  # by file and size
        self._picture = np.empty(0)
        self._frame = np.empty(0)
        self.clear()

    def clear(self) -> None:
        """Begins a new game; the picture stays until a moment is added."""
        self._values: deque[float] = deque(maxlen=_WINDOWS[-1])  # max Q
        self._gains: deque[float] = deque(maxlen=_WINDOWS[-1])  # rewards that are unlike the one before
        self._ranges: deque[tuple[float, float]] = deque(maxlen=_WINDOWS[-1] // 4)  # of Q
        self._returns: deque[tuple[float, float]] = deque(maxlen=_WINDOWS[-1] // 4)  # likely ones, lowest and highest
        self._reward: float | None = None

    def frame_size(self, screen: np.ndarray) -> tuple[int, int]:
        """Width and height of a film that begins with this screen, in pixels."""
        return self._screen_size(screen, _WIDEST * self._height)[0] + self._width, self._height

    def frame(self, screen: np.ndarray) -> np.ndarray:
        """The picture, uint8 `[height, width, 3]`, with a screen `[H, W, 3]`; the next one overwrites it.

        The first screen's place is that of all: one of another shape is shown whole in its middle.
        """
        from PIL import Image

        if not self._frame.size:
            self._frame = np.empty((*self.frame_size(screen)[::-1], 3), np.uint8)
        place = self._frame[:, : -self._width]
        place[:] = _BACKGROUND
        width, height = self._screen_size(screen, place.shape[1])
        # Pixels of old games stay squares; what was drawn finer is scaled smoothly.
        way = Image.Resampling.NEAREST if height % screen.shape[0] == 0 else Image.Resampling.LANCZOS
        top, left = (self._height - height) // 2, (place.shape[1] - width) // 2
        shown = Image.fromarray(screen).resize((width, height), way)
        place[top : top + height, left : left + width] = np.asarray(shown)
        self._frame[:, -self._width :] = self._picture
        return self._frame

    def _screen_size(self, screen: np.ndarray, widest: float) -> tuple[int, int]:
        """Width and height in which a screen is shown, in pixels."""
        height, width = screen.shape[:2]
        factor = min(self._height / height, widest / width)
        return 2 * max(1, round(width * factor / 2)), max(1, round(height * factor))

    def add(self, moment: Moment, reward: float) -> None:
        """Shows another moment, which brought this reward."""
        legal = legal_only(moment.q)
        legal = legal[np.isfinite(legal)] if np.isfinite(legal).any() else np.zeros(1)  # a diverged run is filmed, too
        value = float(legal.max())
        self._values.append(value)
        self._gains.append(reward if reward != self._reward and self._reward is not None else 0.0)
        self._reward = reward
        self._ranges.append((float(legal.min()), value))
        if moment.expected:
            returns, probabilities = moment.expected
            likely = returns[(probabilities >= _UNLIKELY / len(returns)) & np.isfinite(returns)]
            self._returns.append((float(likely.min()), float(likely.max())) if likely.size else (0.0, 0.0))
        self._picture = self._drawn(moment)

    def _drawn(self, moment: Moment) -> np.ndarray:
        from PIL import Image, ImageDraw

        # Twice as large, and then reduced: Pillow draws shapes with jagged edges, and sets small type unevenly.
        picture = Image.new("RGB", (2 * self._width, 2 * self._height), _BACKGROUND)
        bars_bottom = _BARS_TOP + self._row * self._rows
        chart = bars_bottom + self._atoms_height + 40, HEIGHT - _MARGIN
        pen = ImageDraw.Draw(picture)
        actions = self._shown(moment)
        self._draw_bars(pen, moment, actions)
        if moment.expected:
            self._draw_atoms(pen, moment, bars_bottom + 40, bars_bottom + self._atoms_height)
        self._draw_curve(pen, *chart)
        self._write(pen, moment, actions, *chart)
        return np.asarray(picture.reduce(2))

    def _shown(self, moment: Moment) -> list[int]:
        """The action of each row: all of them, or of many those of the highest Q, and the one taken."""
        if len(self._names) <= self._rows:
            return list(range(len(self._names)))
        best = np.argsort(-moment.q, kind="stable")[: self._rows].tolist()
        return best if moment.action in best else [*best[:-1], moment.action]

    def _draw_bars(self, pen: Any, moment: Moment, actions: list[int]) -> None:
        low, high = _range(min(low for low, _ in self._ranges), max(high for _, high in self._ranges))
        left, right = _MARGIN + _NAMES, _PANEL - _MARGIN - _NUMBERS
        greedy, k = int(moment.q.argmax()), 2 * self._scale
        for row, action in enumerate(actions):
            top, bottom = _BARS_TOP + self._row * row, _BARS_TOP + self._row * (row + 0.72)
            q = moment.q[action]
            if is_illegal(q) or not np.isfinite(q):
                continue
            length = (right - left) * (0.03 + 0.97 * (float(q) - low) / (high - low))
            pen.rounded_rectangle([k * left, k * top, k * right, k * bottom], k * 2, _GRID)
            end = k * (left + length)
            pen.rounded_rectangle([k * left, k * top, end, k * bottom], k * 2, _colour(action, greedy, moment.action))
            if action == moment.action:
                middle, half = (top + bottom) / 2, min(4.0, self._row / 4)
                triangle = [(left - 10, middle - half), (left - 10 + 1.5 * half, middle), (left - 10, middle + half)]
                pen.polygon([(k * x, k * y) for x, y in triangle], _TEXT)

    def _draw_atoms(self, pen: Any, moment: Moment, top: float, bottom: float) -> None:
        """A histogram of the taken action's return, and a line at its mean, which is the action's Q."""
        assert moment.expected
        returns, probabilities = moment.expected
        k, left, right = 2 * self._scale, _MARGIN + _SCALE, _PANEL - _MARGIN
        low, high = _range(min(low for low, _ in self._returns), max(high for _, high in self._returns))
        colour = _colour(moment.action, int(moment.q.argmax()), moment.action)
        bins: Any = _BINS
        if np.allclose(np.diff(returns), spacing := returns[1] - returns[0]):  # of a fixed support: a bar for each
            low, high = low - spacing / 2, high + spacing / 2
            bins = max(1, round((high - low) / spacing))
        heights, edges = np.histogram(returns, bins, (low, high), weights=probabilities)
        at = k * (left + (right - left) * (edges - low) / (high - low))
        tops = k * (bottom - (bottom - top) * heights / max(float(heights.max()), 1e-9))
        pen.line([at[0], k * bottom, at[-1], k * bottom], _GRID, round(k))
        for begin, end, y in zip(at[:-1], at[1:], tops, strict=True):
            if y < k * bottom:
                pen.rectangle([begin + 0.15 * k, y, end - 0.15 * k, k * bottom], colour)
        q = float(moment.q[moment.action])
        if low <= q <= high:
            x = k * (left + (right - left) * (q - low) / (high - low))
            pen.line([x, k * (top - 2), x, k * bottom], _TEXT, round(k))
        title = f"RETURN OF {self._names[moment.action].upper()}"
        self._text(pen, (_MARGIN, top - 14), title, 10, _DIM, width=right - left)
        self._text(pen, (left, bottom + 8), _value(low), 9, _DIM)
        self._text(pen, (right, bottom + 8), _value(high), 9, _DIM, anchor="rm")

    def _draw_curve(self, pen: Any, top: float, bottom: float) -> None:
        k, left, right = 2 * self._scale, _MARGIN + _SCALE, _PANEL - _MARGIN
        low, high = _range(min(self._values), max(self._values))
        for y in (top, (top + bottom) / 2, bottom):
            pen.line([k * left, k * y, k * right, k * y], _GRID, round(k))
        window = next(steps for steps in _WINDOWS if len(self._values) <= steps)
        points = [
            (
                k * (left + (right - left) * i / (window - 1)),
                k * (bottom - (bottom - top) * (value - low) / (high - low)),
            )
            for i, value in enumerate(self._values)
        ]
        for (x, _), gain in zip(points, self._gains, strict=True):
            if gain:
                pen.line([x, k * top, x, k * bottom], _GAIN if gain > 0 else _LOSS, round(k))
        if points[1:]:
            pen.line(points, _GREEDY, round(1.6 * k), joint="curve")
        x, y = points[-1]
        pen.ellipse([x - 3 * k, y - 3 * k, x + 3 * k, y + 3 * k], _GREEDY)

    def _write(self, pen: Any, moment: Moment, actions: list[int], top: float, bottom: float) -> None:
        left, right = _MARGIN, _PANEL - _MARGIN
        write, greedy = self._text, int(moment.q.argmax())
        game = f"  game {moment.game} of {self._games}" if self._games > 1 else ""
        write(pen, (left, 25), self._title[0], 14, _TEXT, width=right - left)
        write(pen, (left, 43), self._title[1] + game, 11, _DIM, width=right - left)
        write(pen, (left, 68), "FINAL SCORE" if moment.last else "SCORE", 10, _DIM)
        write(pen, (left, 88), _number(moment.score), 28, _TEXT)
        write(pen, (right, 68), "AGENT STEP", 10, _DIM, anchor="rm")
        write(pen, (right, 88), f"{moment.step:,}", 28, _TEXT, anchor="rm")
        each = f"OF {self._rows} OF {len(self._names):,} ACTIONS" if self._names[self._rows :] else "OF EACH ACTION"
        write(pen, (left, _BARS_TOP - 14), f"Q {each}", 10, _DIM)
        if moment.action != greedy:
            write(pen, (right, _BARS_TOP - 14), "at random", 10, _RANDOM, anchor="rm")
        size = min(12.0, self._row * 0.8)
        for row, action in enumerate(actions):
            y, q = _BARS_TOP + self._row * (row + 0.36), moment.q[action]
            colour = _TEXT if action in (greedy, moment.action) else _DIM
            write(pen, (left, y), self._names[action], size, colour, width=_NAMES - 14)
            write(pen, (right, y), "illegal" if is_illegal(q) else _value(q), size, colour, anchor="rm")
        write(pen, (left, top - 14), "VALUE (MAX Q)", 10, _DIM)
        write(pen, (right, top - 14), _value(self._values[-1]), 12, _GREEDY, anchor="rm")
        low, high = _range(min(self._values), max(self._values))
        write(pen, (left, top), _value(high), 9, _DIM)
        write(pen, (left, bottom), _value(low), 9, _DIM)

    def _text(
        self,
        pen: Any,
        at: tuple[float, float],
        text: str,
        size: float,
        colour: tuple[int, int, int],
        *,
        anchor: str = "lm",
        width: float | None = None,
    ) -> None:
        k = 2 * self._scale
        path, text = (None, text) if text.isascii() else fonts.legible(text)
        font = self._fonts.get((path, size)) or self._fonts.setdefault((path, size), fonts.load(path, k * size))
        while width and len(text) > 2 and font.getlength(text) > k * width:
            text = f"{text[:-2]}\N{HORIZONTAL ELLIPSIS}"
        pen.text((k * at[0], k * at[1]), text, colour, font, anchor=anchor)


def _colour(action: int, greedy: int, taken: int) -> tuple[int, int, int]:
    if action == greedy:
        return _GREEDY
    return _RANDOM if action == taken else _BAR


def _range(low: float, high: float) -> tuple[float, float]:
    """Both, with some room between them."""
    least = max(_SMALLEST_RANGE, 0.01 * max(abs(low), abs(high)))
    return low, max(high, low + least)


def _value(q: float) -> str:
    return f"{q:z.2f}" if abs(q) < 100 else f"{q:,.0f}"


def _number(score: float) -> str:
    return f"{score:z,.0f}" if score == round(score) else f"{score:z,.2f}"


class _Writer:
    """A file of pictures, encoded by ffmpeg in a process of its own.

    A GIF is written in two passes, by way of a file without loss: its 256 colours are chosen from all pictures.

    Args:
      path: of the film; `close()` leaves nothing unless `finish()` came before.
      size: width and height in pixels.
      per_second: pictures.

    Attributes:
      pictures: added so far.
    """

    def __init__(self, path: Path, size: tuple[int, int], per_second: float) -> None:
        from imageio_ffmpeg import write_frames

        self._path = path
        remove_leftovers(path.parent, of=path.name, spare_the_living=True)
        # Absolute, since ffmpeg takes what is before a colon for a protocol.
        self._folder = temporary_of(path.absolute())
        self._folder.mkdir()
        self._is_gif = path.suffix.lower() == ".gif"
        self._encoded = self._folder / ("film.mkv" if self._is_gif else "film.mp4")
        lossless = {
            "codec": "libx264rgb",
            "pix_fmt_out": "rgb24",
            "output_params": ["-qp", "0", "-preset", "ultrafast"],
        }
        lossy = {"codec": "libx264", "output_params": ["-crf", "20", "-preset", "veryfast", "-movflags", "+faststart"]}
        self._frames: Generator[None, Any, None] = write_frames(
            self._encoded,
            size,
            fps=per_second,
            quality=None,
            macro_block_size=2,
            ffmpeg_log_level="fatal",
            **(lossless if self._is_gif else lossy),
        )
        self._frames.send(None)
        self.pictures = 0

    def add(self, picture: np.ndarray) -> None:
        """Adds a picture, uint8 `[height, width, 3]`. Raises `OSError`."""
        try:
            self._frames.send(np.ascontiguousarray(picture))
        except OSError as error:  # its text is ffmpeg's whole command
            raise self._failed() from error
        self.pictures += 1

    def finish(self) -> None:
        """Renames the film to its name, durably. Raises `OSError`, or `UsageError` if there is one by now."""
        from imageio_ffmpeg import count_frames_and_secs

        self._frames.close()
        try:
            if count_frames_and_secs(self._encoded)[0] != self.pictures:
                raise self._failed()
            made = self._folder / self._to_gif() if self._is_gif else self._encoded
        except (RuntimeError, subprocess.CalledProcessError) as error:
            raise self._failed() from error
        fsync(made)
        publish(made, self._path)
        fsync(self._path.absolute().parent)

    def close(self) -> None:
        """Ends ffmpeg, and removes an unfinished film."""
        self._frames.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _to_gif(self) -> str:
        from imageio_ffmpeg import get_ffmpeg_exe

        palette, made = "palette.png", "film.gif"
        for arguments in (
            ["-vf", "palettegen=stats_mode=full", palette],
            ["-i", palette, "-lavfi", "paletteuse=dither=none:diff_mode=rectangle", made],
        ):
            command = [get_ffmpeg_exe(), "-v", "fatal", "-i", self._encoded.name, *arguments]
            # There: in the name of a picture, ffmpeg takes % for the place of a number.
            subprocess.run(command, check=True, stdin=subprocess.DEVNULL, cwd=self._folder)
        return made

    def _failed(self) -> OSError:
        free = shutil.disk_usage(self._folder).free
        return OSError(
            errno.EIO, f"ffmpeg cannot write the film; the disk has {free / 1e6:,.0f} MB free", str(self._path)
        )
