"""The run loop: steps, evaluations, requests and resume points, in the order in which they happen.

The updates, commits and refreshes of a vector step are in `Stepper.advance`. See docs/schedule.md.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from typing import TYPE_CHECKING

import numpy as np

from twin_graph.config.settings import Schedule
from twin_graph.envs.seats import Seat
from twin_graph.replay.ring import Transition
from twin_graph.training.progress import Happened, Progress, RunningScores

if TYPE_CHECKING:
    from twin_graph.agent.agent import Agent
    from twin_graph.agent.learner import Prepared
    from twin_graph.agent.live_run import LiveRun
    from twin_graph.envs import VectorEnv, VectorStep
    from twin_graph.snapshots.workers import WorkerStatus
    from twin_graph.training.requests import Requests


class Stepper:
    """Makes a run's steps and updates, and the commits and refreshes between them; closed by `close()`.

    Attributes:
      workers: in asynchronous training, each worker's last report and its number of restarts.
    """

    workers: Sequence[tuple[WorkerStatus, int]] = ()

    def begin(self) -> None:
        """Begins episodes: at the start, and after each resume point."""
        raise NotImplementedError

    def advance(self) -> list[float]:
        """Makes one vector step or more, and updates; returns the true scores of the episodes that ended."""
        raise NotImplementedError

    def aside(self) -> contextlib.AbstractContextManager[None]:
        """Lasts while an evaluation is played."""
        return contextlib.nullcontext()

    def meanwhile(self) -> None:
        """Called while an evaluation is played."""

    def settle(self) -> None:
        """Makes the updates that are already prepared, so that a resume point need not store them."""

    def end(self) -> list[float]:
        """Like `settle()`; called once, when no more steps will be made. Returns scores as `advance()`."""
        self.settle()
        return []

    def close(self) -> None:
        """Ends the threads and processes that it began."""


def loop(
    stepper: Stepper, progress: Progress, requests: Requests, evaluate: Callable[[], Iterator[Happened]]
) -> Iterator[Happened]:
    """Trains until all steps are made, `progress.stop` or `ended_by` is set, or a score reaches `train.until_score`.

    Yields what has happened after each advance, and while an evaluation is played.

    Args:
      stepper: makes the steps.
      progress: of the run, kept up to date.
      requests: people's requests, carried out between advances.
      evaluate: plays the newest snapshot, yielding meanwhile.
    """
    live, settings = progress.live, progress.live.settings
    log, evaluation, point = settings.log.schedule, settings.evaluate.schedule, settings.resume.schedule
    since = progress.counters
    done = progress.agent_steps >= progress.total_steps
    if live.resume_points.newest is None:
        live.commit_point()
    else:
        yield from _take_up(stepper, progress, evaluate)
    requests.carry_out()
    is_stopped = progress.stop.is_set() and not settings.workers.count  # workers are already training
    if done or is_stopped or progress.reached or progress.ended_by:
        yield Happened()
        return
    stepper.begin()
    while True:
        scores = stepper.advance()
        now = progress.counters  # read once: workers keep making steps while this process writes
        done = now.agent_steps >= progress.total_steps
        progress.returns.extend(scores)
        progress.workers = stepper.workers
        if done:
            last = _end(stepper, live)
            progress.returns.extend(last)
            scores = [*scores, *last]
        if done or log.due(since, now):
            live.log(progress.metrics())
            if settings.log.variables:
                live.log_variables()
        yield Happened(scores)
        if done or evaluation.due(since, now):
            yield from _play(stepper, evaluate)
        # Read once: a signal may arrive at any time.
        ends = done or progress.stop.is_set() or bool(progress.reached or progress.ended_by)
        if ends and not done:
            progress.returns.extend(_end(stepper, live))
        request = requests.carry_out()
        if ends or request or point.due(since, now):
            stepper.settle()
            live.commit_point(progress.returns, request)
            requests.carry_out()
            if ends:
                progress.workers = stepper.workers
                return
            stepper.begin()
        since = now


def _play(stepper: Stepper, evaluate: Callable[[], Iterator[Happened]]) -> Iterator[Happened]:
    with stepper.aside():
        for happened in evaluate():
            yield happened
            stepper.meanwhile()


def _end(stepper: Stepper, live: LiveRun) -> list[float]:
    """Makes what is still to be made, and commits the last snapshot; returns true scores, as `Stepper.end`."""
    scores = stepper.end()
    live.commit()
    return scores


def _take_up(stepper: Stepper, progress: Progress, evaluate: Callable[[], Iterator[Happened]]) -> Iterator[Happened]:
    """Plays the evaluation that is due since the last one, for example the one during which the run was stopped."""
    live, settings, now = progress.live, progress.live.settings, progress.counters
    played = live.matches.last
    is_unplayed = now.agent_steps >= progress.total_steps and played.agent_steps < now.agent_steps
    if is_unplayed or settings.evaluate.schedule.due(since=played, now=now):
        played_now = False
        for happened in _play(stepper, evaluate):
            played_now = played_now or bool(happened.evaluations)
            yield happened
        if played_now:  # the next resume would play it again
            stepper.settle()
            live.commit_point(progress.returns)


class StepByStep(Stepper):
    """The classic loop of Mnih et al. 2015, algorithm 1: one vector step, then the updates that are due."""

    def __init__(self, agent: Agent, env: VectorEnv) -> None:
        self._agent = agent
        self._play = Play(agent, env, frozen=False)

    def begin(self) -> None:
        self._play.begin()

    def advance(self) -> list[float]:
        ended = self._play.step()
        self._agent.learn()
        return ended

    def aside(self) -> contextlib.AbstractContextManager[None]:
        return self._play.aside()


class InChunks(Stepper):
    """Acts to the end of a chunk and prepares the updates due then, while those of the previous chunk are trained.

    Neither side reads what the other writes, so it does not matter which is faster, or whether they overlap at all:
    the actor has frozen weights, environments, replay and target; the trainer has the online weights.
    """

    def __init__(self, agent: Agent, env: VectorEnv) -> None:
        self._agent = agent
        self._play = Play(agent, env, frozen=True)
        self._prepared: Prepared | None = None
        self._acting = ThreadPoolExecutor(1, "actor")

    def begin(self) -> None:
        self._agent.learners.freeze()  # an opponent may move first
        self._play.begin()

    def advance(self) -> list[float]:
        agent = self._agent
        ready = self._refresh_and_take()
        agent.learners.freeze()
        collecting = self._acting.submit(self._collect, ready.updates.stop if ready else agent.updates)
        if not agent.settings.twin.overlap:
            wait([collecting])
        try:
            trained = agent.learners.train(ready) if ready else None
        finally:  # even if training fails: environments must not be closed while they are being stepped
            with agent.live.stopwatch.phase("wait"):
                wait([collecting])
        if ready and trained:
            agent.actor.sampler.learnt(ready.batch, trained.td_error)  # only now: the actor has sampled meanwhile
        ended, self._prepared = collecting.result()
        agent.live.commit_if_due()
        return ended

    def aside(self) -> contextlib.AbstractContextManager[None]:
        return self._play.aside()

    def settle(self) -> None:
        if ready := self._refresh_and_take():
            self._agent.train(ready)

    def close(self) -> None:
        self._acting.shutdown()

    def _refresh_and_take(self) -> Prepared | None:
        """If updates are prepared, refreshes the target if that is due, and returns them, evaluated by the present one.

        If anything fails afterwards, a resumed run prepares them again.
        """
        prepared, self._prepared = self._prepared, None
        if prepared is None:
            return None
        self._agent.live.refresh_if_due()
        return self._agent.learners.by_present_targets(prepared)

    def _collect(self, first: int) -> tuple[list[float], Prepared | None]:
        """Acts to the end of the chunk, then prepares the updates that are due, beginning with number `first`."""
        agent, train = self._agent, self._agent.settings.train
        chunk, began = Schedule("steps", train.chunk_steps), agent.tally.counters
        ended = self._play.step()
        while agent.agent_steps < train.steps and not chunk.due(began, agent.tally):
            ended += self._play.step()
        due = agent.actor.due_updates(first)
        return ended, agent.prepare(due) if due else None


class Play:
    """An agent's episodes in its environments.

    Args:
      agent: acts, and in two-player games also supplies the opponent's actions.
      env: the environments.
      frozen: see `Agent.act`.
    """

    def __init__(self, agent: Agent, env: VectorEnv, *, frozen: bool) -> None:
        self._agent, self._env, self._frozen = agent, env, frozen
        if isinstance(env, Seat):
            env.opponent = functools.partial(agent.opponent_actions, frozen=frozen)
        self._scores = RunningScores(env.count)
        self._s_tm1 = np.empty(0)

    def begin(self) -> None:
        """Begins an episode in every environment; unfinished ones get no score."""
        self._s_tm1 = self._env.reset(self._agent.environment_seeds())
        self._scores = RunningScores(self._env.count)

    @contextlib.contextmanager
    def aside(self) -> Iterator[None]:
        """Where only one environment can exist at a time, leaves its place to another: episodes end, and begin anew."""
        with self._env.aside() as leaves:
            if leaves:
                self._agent.actor.replay.cut()
            yield
        if leaves:
            self.begin()

    def step(self) -> list[float]:
        """One vector step; returns the true scores of the episodes that ended."""
        s_tm1, agent = self._s_tm1, self._agent
        a_tm1 = agent.act(s_tm1, frozen=self._frozen)
        with agent.live.stopwatch.phase("environment"):
            step: VectorStep = self._env.step(a_tm1)
        agent.observe_checked(Transition(s_tm1, a_tm1, step.r_t, step.terminal_t, step.last_t, step.s_t))
        self._s_tm1 = step.s_next
        return self._scores.add(step)
