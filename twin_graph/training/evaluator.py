"""Scheduled evaluations of a run."""

import contextlib
from collections.abc import Iterator, Sequence

from twin_graph.errors import DamagedError, UsageError
from twin_graph.evaluation.film import Film
from twin_graph.evaluation.games import Evaluation, play
from twin_graph.snapshots.files import make_folder
from twin_graph.snapshots.ledger import Commit
from twin_graph.snapshots.run import Run
from twin_graph.training.progress import Happened, Progress
from twin_graph.twin.twin import Twin


def evaluate_newest(progress: Progress, twin: Twin | None) -> Iterator[Happened]:
    """Plays the newest snapshot, and the rivals it has to beat, with this twin; records all of these evaluations or
    none.

    Yields after each game, and each of the newest snapshots' evaluations once all are recorded.
    """
    live, settings = progress.live, progress.live.settings
    episodes = settings.evaluate.episodes
    if twin is None or progress.stop.is_set():
        return
    # Read once: workers keep making steps during the games, and rivals must play the same games.
    at = settings.seed, progress.agent_steps
    with live.stopwatch.phase("evaluate"):
        played: list[tuple[Commit, Commit, Evaluation]] = []
        for learner in live.learners:
            newest = learner.newest
            assert newest is not None
            roles: dict[Commit, list[str]] = {}
            for role, rival in live.rivals(learner).items():
                roles.setdefault(rival, []).append(role)
            for snapshot in [*(rival for rival in roles if rival != newest), newest]:
                try:
                    twin.restore_snapshot(snapshot, live.store)
                except DamagedError as error:
                    without = [f"{role}.policy=latest" for role in roles.get(snapshot, ())]
                    if snapshot is newest:  # play another one, later
                        left = settings.train.steps - progress.agent_steps
                        without = [f"evaluate.every_steps={progress.agent_steps + left // 2}"] if left > 0 else []
                    raise DamagedError(f"{error}. Restore its files{_instead(without)}") from error
                depth = progress.depth_of(snapshot)
                with _filmed(live.run, newest if snapshot is newest else None) as film:
                    watch = film.watch if film else None
                    for evaluation in play(twin.q_values, settings, episodes=episodes, at=at, depth=depth, watch=watch):
                        progress.note = f"evaluating {snapshot.id}: {len(evaluation.returns)} of {episodes} games"
                        yield Happened()
                        if progress.stop.is_set():
                            progress.note = ""
                            return
                    if film:
                        with contextlib.suppress(UsageError):  # someone has recorded one in the meantime
                            film.finish()
                        live.log_film(film.path)
                played.append((snapshot, newest, evaluation))
    progress.note = ""
    for snapshot, challenger, evaluation in played:
        played_at = progress.counters
        live.matches.record(snapshot, evaluation.summary(), challenger=challenger, played_at=played_at)
        if snapshot is challenger:
            whose = "" if len(live.learners) == 1 else f"/{snapshot.learner}"
            values = {
                f"evaluation/mean_return{whose}": evaluation.mean,
                f"evaluation/interval_low{whose}": evaluation.interval[0],
                f"evaluation/interval_high{whose}": evaluation.interval[1],
            }
            live.log(values, snapshot.counters)
    for snapshot, challenger, evaluation in played:
        if snapshot is challenger:
            progress.evaluation = progress.evaluations[snapshot.learner] = snapshot.id, evaluation
            yield Happened(evaluations=[(snapshot.id, evaluation)])


def _instead(without: Sequence[str]) -> str:
    """How to go on without a snapshot that is damaged, by other settings, in words."""
    options = " ".join(f"--set {assignment}" for assignment in without)
    return f", or resume with {options}" if options else "; this evaluation alone is left to do"


def _filmed(run: Run, snapshot: Commit | None) -> contextlib.AbstractContextManager[Film | None]:
    """The film of a snapshot's evaluation, where `evaluate.video` asks for one and there is none yet."""
    if snapshot is None or not run.settings.evaluate.video:
        return contextlib.nullcontext()
    path = run.videos / f"{snapshot.id}.mp4"
    if path.exists():  # from an attempt that was killed before it recorded the score
        return contextlib.nullcontext()
    make_folder(run.videos)
    return Film(path, (run.name, snapshot.id))
