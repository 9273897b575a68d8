"""Scheduled evaluations of a run."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Generator, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from twin_graph.agent.trackers import FILM
from twin_graph.base.text import first_line
from twin_graph.errors import DamagedError, UsageError
from twin_graph.evaluation.film import Film
from twin_graph.evaluation.games import Contender, Evaluation, play
from twin_graph.snapshots.files import make_folder
from twin_graph.training.progress import Happened
from twin_graph.twin.twin import Compute, Twin

if TYPE_CHECKING:
    from twin_graph.agent.live_run import LiveRun
    from twin_graph.records.depth import Depths
    from twin_graph.snapshots.ledger import Commit
    from twin_graph.snapshots.run import Run


class _Played(NamedTuple):
    """A snapshot's evaluation, and the newest snapshot then, which played the same games."""

    snapshot: Commit
    challenger: Commit
    evaluation: Evaluation


class Evaluator:
    """Plays scheduled evaluations, all with one twin: building it takes as long as playing CartPole.

    Closed by `close()`.

    Args:
      live: the run while it is trained.
      depths: of its snapshots.
      stop: set where people want an end.
    """

    def __init__(self, live: LiveRun, depths: Depths, stop: threading.Event) -> None:
        self._live, self._depths, self._stop = live, depths, stop
        online, threads = live.learners.first.online, live.settings.twin.threads
        compute = Compute(threads=threads)
        plays = live.settings.evaluate.episodes > 0
        self._twin = Twin("evaluation", online.spec, compute=compute, learns=False, like=online) if plays else None

    def close(self) -> None:
        """Ends the twin's session."""
        if self._twin:
            self._twin.close()

    def newest(self) -> Iterator[Happened]:
        """Plays each learner's newest snapshot, and the rivals it has to beat; records all of these or none.

        Yields after each game, and each newest snapshot's evaluation once all are recorded.

        Raises:
          DamagedError: a snapshot cannot be restored.
        """
        live = self._live
        if self._twin is None or self._stop.is_set():
            return
        # Read once: workers keep making steps during the games, and rivals must play the same games.
        at = live.settings.seed, live.tally.agent_steps
        played: list[_Played] = []
        with live.stopwatch.phase("evaluate"):
            for learner in live.learners.each:
                newest = learner.newest
                assert newest is not None
                roles: dict[Commit, list[str]] = {}
                for role, rival in live.rivals(learner).items():
                    roles.setdefault(rival, []).append(role)
                for snapshot in [*(rival for rival in roles if rival != newest), newest]:
                    self._restore(snapshot, roles.get(snapshot, ()), is_newest=snapshot is newest)
                    evaluation = yield from self._play(self._twin, snapshot, at, is_newest=snapshot is newest)
                    if evaluation is None:
                        return
                    played.append(_Played(snapshot, newest, evaluation))
        for one in played:
            live.matches.record(
                one.snapshot, one.evaluation.summary(), challenger=one.challenger, played_at=live.tally.counters
            )
        newest_alone = [(one.snapshot, one.evaluation) for one in played if one.snapshot is one.challenger]
        for snapshot, evaluation in newest_alone:
            whose = "" if len(newest_alone) == 1 else f"/{snapshot.learner}"
            values: dict[str, float | str] = {f"evaluation/mean_return{whose}": evaluation.mean}
            if interval := evaluation.interval:
                values |= {f"evaluation/interval_{end}{whose}": interval[i] for i, end in enumerate(("low", "high"))}
            if (film := _film_of(live.run, snapshot)).exists():
                values[FILM] = film.name
            live.log(values, snapshot.counters)
        for told in newest_alone:
            yield Happened(evaluations=[told])

    def _restore(self, snapshot: Commit, roles: Sequence[str], *, is_newest: bool) -> None:
        """Restores a snapshot that is to be played. Raises `DamagedError`, with what to do instead."""
        assert self._twin is not None
        try:
            self._twin.restore_snapshot(snapshot, self._live.store)
        except DamagedError as error:
            without = [f"{role}.policy=latest" for role in roles]
            if is_newest:  # play another one, later
                made = self._live.tally.agent_steps
                left = self._live.settings.train.steps - made
                without = [f"evaluate.every_steps={made + left // 2}"] if left > 0 else []
            raise DamagedError(f"{error}. Restore its files{_instead(without)}") from error

    def _play(
        self, twin: Twin, snapshot: Commit, at: tuple[int, int], *, is_newest: bool
    ) -> Generator[Happened, None, Evaluation | None]:
        """Plays the games of a snapshot, which `twin` holds; None if a person stopped that."""
        live, episodes = self._live, self._live.settings.evaluate.episodes
        self._depths.catch_up()
        who = Contender.of(twin, live.store.lasting(snapshot.id), self._depths.of(snapshot.id))
        evaluation = None
        with contextlib.closing(_Filming(live, snapshot if is_newest else None)) as filming:
            watch = filming.watch if filming.begun else None
            for evaluation in play(who, live.settings, episodes=episodes, at=at, watch=watch):
                yield Happened(note=f"evaluating {snapshot.id}: {len(evaluation.returns)} of {episodes} games")
                if self._stop.is_set():
                    return None
            filming.finish()
        return evaluation


def _instead(without: Sequence[str]) -> str:
    """How to go on without a snapshot that is damaged, by other settings, in words."""
    options = " ".join(f"--set {assignment}" for assignment in without)
    return f", or resume with {options}" if options else "; this evaluation alone is left to do"


def _film_of(run: Run, snapshot: Commit) -> Path:
    return run.videos / f"{snapshot.id}.mp4"


class _Filming:
    """Films a snapshot's evaluation, if `evaluate.video` asks for it. What fails in that is a notice, and no error."""

    def __init__(self, live: LiveRun, snapshot: Commit | None) -> None:
        self._live, self._snapshot = live, snapshot
        self._film: Film | None = None
        if snapshot is None or not live.settings.evaluate.video:
            return
        path = _film_of(live.run, snapshot)
        if not path.exists():  # else from an attempt that was killed before it recorded the score
            with self._noticed():
                make_folder(path.parent)
                self._film = Film(path, (live.run.name, snapshot.id))

    @property
    def begun(self) -> bool:
        """Whether it films."""
        return self._film is not None

    def watch(self, *seen: Any) -> None:
        """See `Film.watch`."""
        if self._film:
            with self._noticed():
                self._film.watch(*seen)

    def finish(self) -> None:
        """See `Film.finish`."""
        if self._film:
            with self._noticed(), contextlib.suppress(UsageError):  # someone has recorded one in the meantime
                self._film.finish()

    def close(self) -> None:
        """Removes what was not finished."""
        if self._film:
            with self._noticed():
                self._film.close()

    @contextlib.contextmanager
    def _noticed(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # of the environment, of ffmpeg, of the disk: training does not end for a film
            assert self._snapshot
            film, self._film = self._film, None
            self._live.notices.append(f"no film of {self._snapshot.id}: {first_line(error)}")
            if film:
                with contextlib.suppress(Exception):
                    film.close()
