"""A run from its start, or from a resume point, to its end."""

import contextlib
import functools
import signal
import threading
from collections.abc import Generator, Iterator
from types import FrameType
from typing import Any

from twin_graph.agent import Agent
from twin_graph.envs import VectorEnv
from twin_graph.errors import DamagedError, ForeignError, TwinGraphError, UsageError
from twin_graph.evaluation import Evaluation, play
from twin_graph.loop import InChunks, StepByStep, Stepper, loop
from twin_graph.progress import Progress
from twin_graph.requests import Requests
from twin_graph.snapshots.ledger import INTERRUPTED, Commit
from twin_graph.snapshots.points import PointState
from twin_graph.snapshots.run import Run
from twin_graph.twin import Twin


def train(run: Run, env: VectorEnv, point: PointState | None = None) -> Generator[Progress, None, None]:
    """Trains to `train.steps` or `train.until_score`, from the beginning or from a resume point.

    Yields progress after each vector step, or chunk. SIGINT, SIGTERM and `progress.stop` end it where it next would
    yield. At the end, asked for or reached, a snapshot and a resume point are committed. After an error, or when the
    caller stops iterating, the newest are the last that the schedules committed; but where code that is not ours
    failed, or a target cannot be restored, a resume point is committed first. The ledger says how it ended.

    Raises:
      ForeignError: the environment or the target policy failed.
      DamagedError: a snapshot cannot be restored.
      DivergedError: a loss is NaN or infinite.
      OSError: a record could not be written.
      InUseError: another process has the run.
    """
    with (
        stop_requests() as stop,
        Agent(run, env.spec, environments=env.count, point=point) as agent,
    ):
        stepper = InChunks(agent, env) if run.settings.train.chunk_steps else StepByStep(agent, env)
        yield from run_to_its_end(Progress(agent.keeper, env.count, stop), stepper)


def run_to_its_end(progress: Progress, stepper: Stepper) -> Iterator[Progress]:
    """The run loop with its evaluations, and what is saved where it breaks off; closes the stepper. See `train`."""
    keeper, settings = progress.keeper, progress.keeper.settings
    online = keeper.learners.first.online
    with (
        contextlib.closing(stepper),
        # One for all evaluations: to build it takes as long as to play CartPole.
        Twin("evaluation", online.spec, threads=settings.twin.threads, like=online)
        if settings.evaluate.episodes
        else contextlib.nullcontext() as twin,
    ):
        evaluate = functools.partial(_evaluate_newest, progress, twin)
        try:
            yield from loop(stepper, progress, Requests(keeper.run, keeper), evaluate)
        except (ForeignError, UsageError, DamagedError) as error:
            with contextlib.suppress(OSError, TwinGraphError):  # a second failure: resuming takes the point before
                if not keeper.at_point:
                    keeper.commit_point(progress.returns)
            raise type(error)(f"at agent step {progress.agent_steps:,}: {error}") from error
        if progress.interrupted:
            keeper.close("stopped", INTERRUPTED)
        elif progress.reached:
            keeper.close("finished", f"reached {progress.reached}")


def _evaluate_newest(progress: Progress, twin: Twin | None) -> Iterator[Progress]:
    """Plays the newest snapshot, and rivals that it has to beat, by this twin; records all of them, or none."""
    keeper, settings = progress.keeper, progress.keeper.settings
    episodes = settings.evaluate.episodes
    if twin is None or progress.stop.is_set():
        return
    with keeper.stopwatch.phase("evaluate"):
        played: list[tuple[Commit, Commit, Evaluation]] = []
        for learner in keeper.learners:
            newest = learner.newest
            assert newest is not None
            for snapshot in [*keeper.rivals(learner), newest]:
                twin.restore_snapshot(snapshot, keeper.store)
                at = {"seed": settings.seed, "counter": progress.agent_steps}
                depth = progress.depth_of(snapshot)
                for evaluation in play(twin.q_values, settings, episodes=episodes, depth=depth, **at):
                    progress.note = f"evaluating {snapshot.id}: {len(evaluation.returns)} of {episodes} games"
                    yield progress
                    if progress.stop.is_set():
                        progress.note = ""
                        return
                played.append((snapshot, newest, evaluation))
    progress.note = ""
    for snapshot, challenger, evaluation in played:
        played_at = progress.counters
        keeper.matches.record(snapshot, evaluation.summary(), challenger=challenger, played_at=played_at)
        if snapshot is challenger:
            whose = "" if len(keeper.learners) == 1 else f"/{snapshot.learner}"
            values = {
                f"evaluation/mean_return{whose}": evaluation.mean,
                f"evaluation/interval_low{whose}": evaluation.interval[0],
                f"evaluation/interval_high{whose}": evaluation.interval[1],
            }
            keeper.log(values, snapshot.counters)
    progress.evaluation = snapshot.id, evaluation
    yield progress


@contextlib.contextmanager
def stop_requests() -> Iterator[threading.Event]:
    """Turns the first SIGINT or SIGTERM into a request; a second SIGINT interrupts at once, as usual."""
    requested = threading.Event()

    def request(number: int, frame: FrameType | None) -> None:  # noqa: ARG001
        requested.set()
        signal.signal(number, previous[number])

    if threading.current_thread() is not threading.main_thread():
        yield requested  # Python lets only the main thread handle signals
        return
    previous: dict[int, Any] = {number: signal.signal(number, request) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield requested
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
