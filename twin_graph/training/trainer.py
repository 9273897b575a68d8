"""Trains a run to its end, from the start or from a resume point."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Generator, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from twin_graph.agent.agent import Agent
from twin_graph.base.signals import on_signal
from twin_graph.errors import DamagedError, ForeignError, NoWorkerError, TwinGraphError, UsageError, foreign_error
from twin_graph.evaluation.games import Evaluation
from twin_graph.training.evaluator import Evaluator
from twin_graph.training.loop import InChunks, StepByStep, Stepper, loop
from twin_graph.training.progress import Happened, Progress
from twin_graph.training.requests import Requests

if TYPE_CHECKING:
    from twin_graph.envs import VectorEnv
    from twin_graph.snapshots.points import PointState
    from twin_graph.snapshots.run import Run

#: Called with the score of each training episode that ended, or with each scheduled evaluation; False ends the run.
OnEpisode = Callable[[float, Progress], object]
OnEvaluation = Callable[[Evaluation, Progress], object]


def train(
    run: Run,
    env: VectorEnv,
    point: PointState | None = None,
    *,
    on_episode: OnEpisode | None = None,
    on_evaluation: OnEvaluation | None = None,
) -> Generator[Progress, None, None]:
    """Trains to `train.steps` or `train.until_score`, from the beginning or from a resume point.

    Yields progress after each vector step, or chunk, and while an evaluation is played. A signal of
    `twin_graph.base.signals` and `progress.stop` end the run where it would yield next. Whether it ends on request or
    because it is complete, a snapshot and a resume point are committed. After an error, or if the caller stops
    iterating, the last ones committed on schedule are the newest. If foreign code failed or a target cannot be
    restored, a resume point is committed first. The ledger records how the run ended.

    Args:
      run: with the settings.
      env: its environments.
      point: where to continue; None for the beginning.
      on_episode: called with the true score of each finished training episode, and the progress. Returning False ends
        the run with a snapshot and a resume point, and is recorded as the reason; any other value, including None, is
        ignored.
      on_evaluation: the same, for each scheduled evaluation (with two learners, for each learner's);
        `progress.evaluation[0]` is the snapshot's id.

    Raises:
      ForeignError: the environment, the target policy or a callback failed.
      DamagedError: a snapshot cannot be restored.
      DivergedError: a loss is NaN or infinite.
      OSError: a record could not be written.
      InUseError: another process has the run.
    """
    with (
        stop_requests() as stop,
        Agent(run, env.spec, environments=env.count, point=point, vector=env) as agent,
    ):
        stepper = InChunks(agent, env) if run.settings.train.chunk_steps else StepByStep(agent, env)
        progress = Progress(agent.live, stop)
        yield from run_to_its_end(progress, stepper, on_episode, on_evaluation)


class _Callbacks:
    """Passes new scores and evaluations to the user's callbacks; see `train`."""

    def __init__(self, progress: Progress, on_episode: OnEpisode | None, on_evaluation: OnEvaluation | None) -> None:
        self._progress = progress
        self._on_episode, self._on_evaluation = on_episode, on_evaluation

    def tell(self) -> None:
        """Raises `ForeignError` if one of them fails."""
        for score in self._progress.happened.scores:
            self._call("on_episode", self._on_episode, score, f"a score of {score:zg}")
        for snapshot, newest in self._progress.happened.evaluations:
            self._call("on_evaluation", self._on_evaluation, newest, f"{snapshot.id} had a mean of {newest.mean:z.2f}")

    def _call(self, name: str, function: Callable[[Any, Progress], object] | None, what: object, words: str) -> None:
        if function is None:
            return
        try:
            answer = function(what, self._progress)
        except Exception as error:
            raise foreign_error(name, error) from error
        if isinstance(answer, bool | np.bool_) and not answer:
            self._progress.ended_by = self._progress.ended_by or f"{name} returned False after {words}"


def run_to_its_end(
    progress: Progress,
    stepper: Stepper,
    on_episode: OnEpisode | None = None,
    on_evaluation: OnEvaluation | None = None,
) -> Iterator[Progress]:
    """Runs the loop with its evaluations, saves when it ends, and closes the stepper. See `train`."""
    callbacks = _Callbacks(progress, on_episode, on_evaluation)
    live = progress.live
    with (
        contextlib.closing(stepper),
        contextlib.closing(Evaluator(live, progress.depths, progress.stop)) as evaluator,
    ):
        try:
            for happened in loop(stepper, progress, Requests(live), evaluator.newest):
                progress.take(happened)
                callbacks.tell()
                yield progress
            progress.take(Happened())
        except (ForeignError, UsageError, DamagedError, NoWorkerError) as error:
            with contextlib.suppress(OSError, TwinGraphError):  # if this fails too, a resume uses the previous point
                if not live.at_point:
                    stepper.settle()
                    live.commit_point(progress.returns)
            raise type(error)(f"at agent step {progress.agent_steps:,}: {error}") from error
        if progress.interrupted:
            live.close("interrupted", "interrupted")
        elif progress.reached:
            live.close("score", f"reached {progress.reached}")
        elif progress.ended_by:
            live.close("callback", progress.ended_by)


@contextlib.contextmanager
def stop_requests() -> Iterator[threading.Event]:
    """Turns signals into a request; a second SIGINT or SIGTERM, a moment later, interrupts at once."""
    requested = threading.Event()

    with on_signal(lambda number, frame: requested.set(), once=True):  # noqa: ARG005
        yield requested
