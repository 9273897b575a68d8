"""The run loop, and what a training records on its way."""

import contextlib
import functools
import math
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from types import FrameType
from typing import Any

import numpy as np

from twin_graph.agent import Agent, Work
from twin_graph.by_hand import Requests
from twin_graph.envs import VectorEnv, VectorStep
from twin_graph.errors import DamagedError, ForeignError, TwinGraphError, UsageError
from twin_graph.evaluation import Evaluation, play
from twin_graph.replay import Transition
from twin_graph.snapshots.ledger import Commit
from twin_graph.snapshots.points import PointState
from twin_graph.snapshots.run import Run
from twin_graph.stopwatch import PHASES
from twin_graph.twin import Twin

RECENT_EPISODES = 20

#: What makes an agent's steps and updates, and yields the vector steps that were made here.
Loop = Callable[[Any, VectorEnv], Iterator[list[VectorStep]]]


def run_loop(agent: Agent, env: VectorEnv) -> Iterator[list[VectorStep]]:
    """Acts, steps the environments, observes, learns, for ever; yields the vector steps made since it last did.

    Where a resume point is made at the yield, every environment begins a new episode: that is what makes a training
    that goes on from the point equal to this one.
    """
    by_chunks = agent.settings.train.chunk_steps > 0
    with ThreadPoolExecutor(1, "actor") as actor:
        s_tm1 = env.reset(agent.environment_seeds())
        while True:
            steps = _chunk(agent, env, s_tm1, actor) if by_chunks else [_step(agent, env, s_tm1)]
            if not by_chunks:
                agent.learn()
            yield steps
            s_tm1 = env.reset(agent.environment_seeds()) if agent.at_point else steps[-1].s_next


def _step(agent: Agent, env: VectorEnv, s_tm1: np.ndarray, *, frozen: bool = False) -> VectorStep:
    a_tm1 = agent.act(s_tm1, frozen=frozen)
    with agent.stopwatch.phase("environment"):
        step = env.step(a_tm1)
    agent.observe(Transition(s_tm1, a_tm1, step.r_t, step.terminal_t, step.last_t, step.s_t))
    return step


def _chunk(agent: Agent, env: VectorEnv, s_tm1: np.ndarray, actor: Executor) -> list[VectorStep]:
    """Trains what the chunk before prepared, and meanwhile acts to the chunk's end and prepares what is due then.

    Neither side reads what the other writes, so that it does not matter which is faster, or whether they overlap at
    all: the actor has the frozen weights, environments, replay and target, the trainer the online weights.
    """
    train = agent.settings.train

    def collect() -> tuple[list[VectorStep], Work | None]:
        steps = [_step(agent, env, s_tm1, frozen=True)]
        while agent.agent_steps < train.steps and not crossed(agent.agent_steps, env.count, train.chunk_steps):
            steps.append(_step(agent, env, steps[-1].s_next, frozen=True))
        return steps, agent.prepare()

    agent.begin_chunk()
    if agent.settings.twin.overlap:
        collecting = actor.submit(collect)
        agent.train_work()
        with agent.stopwatch.phase("wait"):
            steps, agent.work = collecting.result()
    else:
        collected = collect()
        agent.train_work()
        steps, agent.work = collected
    agent.end_chunk()
    return steps


class Progress:
    """Where a training stands, for `metrics.jsonl`, TensorBoard and the terminal alike.

    Attributes:
      agent: whose counters and target are meant.
      total_steps: agent steps of the whole training.
      returns: true scores of the newest training episodes.
      evaluation: the newest, with its snapshot's id; None before the first.
      note: what is being done when it is not training, for people.
      latest: what `metrics()` last gave; empty before.
      stop: set by whoever wants the training to end after its next vector step, or chunk.
    """

    def __init__(self, agent: Agent, environments: int, stop: threading.Event) -> None:
        self.agent = agent
        self.stop = stop
        self.total_steps = agent.settings.vector_steps * environments
        self.returns = deque(agent.point.returns if agent.point else (), maxlen=RECENT_EPISODES)
        self.evaluation: tuple[str, Evaluation] | None = None
        self.note = ""
        self.latest: dict[str, Any] = {}
        self._scores = [0.0] * environments
        self._marked = time.perf_counter()
        # A resumed run has steps that this process did not make.
        self._mark = (agent.agent_steps, agent.updates, dict(agent.stopwatch.seconds), dict(agent.stopwatch.calls))

    @property
    def interrupted(self) -> bool:
        """Whether it was asked to stop before it had all its steps."""
        return self.stop.is_set() and self.agent.agent_steps < self.total_steps

    def count(self, steps: Sequence[VectorStep]) -> None:
        """Adds up the true scores of the training episodes; takes those that others have added up."""
        self.returns.extend(self.agent.take_returns())
        for step in steps:
            for e, score in enumerate(step.score_t):
                self._scores[e] += float(score)
                if step.last_t[e]:
                    self.returns.append(self._scores[e])
                    self._scores[e] = 0.0

    def cut(self) -> None:
        """The environments begin anew: the episodes that were going on have no score."""
        self._scores = [0.0] * len(self._scores)

    def metrics(self) -> dict[str, Any]:
        """Everything there is to log; rates and times are those since this was last called."""
        agent = self.agent
        with agent.stopwatch.phase("telemetry"):
            telemetry = agent.telemetry()
        now = time.perf_counter()
        steps, updates, seconds, calls = self._mark
        elapsed = now - self._marked
        metrics: dict[str, Any] = {
            **agent.counters.model_dump(),
            "epsilon": agent.epsilon,
            "loss": agent.last_loss,
            "q_mean": agent.last_q,
            "train_return": sum(self.returns) / len(self.returns) if self.returns else math.nan,
            "target_snapshots": agent.target_snapshots,
            "target_age_updates": agent.target_age,
            **telemetry,
            "agent_steps_per_second": (agent.agent_steps - steps) / elapsed,
            "updates_per_second": (agent.updates - updates) / elapsed,
            "seconds": elapsed,
        }
        for phase in PHASES:
            spent = agent.stopwatch.seconds[phase] - seconds[phase]
            metrics[f"time_share/{phase}"] = spent / elapsed
            metrics[f"milliseconds/{phase}"] = 1000 * spent / max(1, agent.stopwatch.calls[phase] - calls[phase])
        self._marked = now
        self._mark = (agent.agent_steps, agent.updates, dict(agent.stopwatch.seconds), dict(agent.stopwatch.calls))
        self.latest = metrics
        return metrics


def train(
    run: Run,
    env: VectorEnv,
    point: PointState | None = None,
    *,
    make_agent: Callable[..., Agent] = Agent,
    loop: Loop = run_loop,
) -> Iterator[Progress]:
    """Trains to `train.steps`, from the beginning or from a resume point; yields its progress after each vector step.

    By chunks it yields after each chunk. SIGINT, SIGTERM and `progress.stop` end it where it next would yield. At the
    end, asked for or reached, a snapshot and a resume point are committed. After an error, or when the caller stops
    iterating, the newest are the last that the schedules committed; but where code that is not ours failed, or a target
    cannot be restored, a resume point is committed first. The ledger says how it ended.

    Raises:
      ForeignError: the environment or the target policy failed.
      DamagedError: a snapshot cannot be restored.
      DivergedError: a loss is NaN or infinite.
      OSError: a record could not be written.
      InUseError: another process has the run.
    """
    with (
        _stop_requests() as stop,
        make_agent(
            run,
            observation_shape=env.observation_shape,
            observation_dtype=env.observation_dtype,
            n_actions=env.n_actions,
            environments=env.count,
            stack=env.stack,
            frames_per_step=env.frames_per_step,
            point=point,
        ) as agent,
        # One for all evaluations: to build it takes as long as to play CartPole.
        Twin("evaluation", agent.online.spec, threads=run.settings.twin.threads, like=agent.online)
        if run.settings.evaluate.episodes
        else contextlib.nullcontext() as twin,
    ):
        progress = Progress(agent, env.count, stop)
        evaluate = functools.partial(_evaluate_newest, run, progress, twin)
        try:
            if point is None:
                agent.commit_point()
            elif _evaluation_is_missing(agent):
                yield from evaluate()
            yield from _steps_and_records(run, env, progress, evaluate, loop)
        except (ForeignError, UsageError, DamagedError) as error:
            with contextlib.suppress(OSError, TwinGraphError):  # a second failure: resuming takes the point before
                agent.commit_point_where_it_broke_off(progress.returns)
            raise type(error)(f"at agent step {agent.agent_steps:,}: {error}") from error
        if progress.interrupted:
            agent.close("stopped", "interrupted")


def _steps_and_records(
    run: Run,
    env: VectorEnv,
    progress: Progress,
    evaluate: Callable[[], Iterator[Progress]],
    loop: Loop,
) -> Iterator[Progress]:
    agent, settings, stop = progress.agent, run.settings, progress.stop
    requests = Requests(run, agent)
    requests.carry_out()
    if agent.agent_steps >= progress.total_steps:
        return
    seen = agent.agent_steps
    for steps in loop(agent, env):
        progress.count(steps)
        # Looked at once: where workers make the steps, they go on while this writes records and evaluates.
        taken, seen = agent.agent_steps - seen, agent.agent_steps
        done = agent.agent_steps >= progress.total_steps
        if done:
            agent.end()
        if done or crossed(seen, taken, settings.log.every_steps):
            agent.log(progress.metrics())
            if settings.log.variables:
                agent.log_variables()
        yield progress
        if done or crossed(seen, taken, settings.evaluate.every_steps):
            yield from evaluate()
        ends = done or stop.is_set()  # looked at once: a signal may come at any moment
        if ends:
            agent.end()
        wants_point = requests.carry_out()
        if ends or wants_point or crossed(seen, taken, settings.resume.every_steps):
            agent.commit_point(progress.returns)
            progress.cut()
            requests.carry_out()
        if ends:
            return


def crossed(agent_steps: int, taken: int, every: int) -> bool:
    """Whether the newest `taken` of these agent steps reached or passed a multiple of `every`."""
    return agent_steps // every > (agent_steps - taken) // every


def _evaluation_is_missing(agent: Agent) -> bool:
    """Whether an evaluation was due before the resume point was made, and was interrupted."""
    every = agent.settings.evaluate.every_steps
    return agent.agent_steps // every > max(agent.evaluated_at, default=0) // every


def _evaluate_newest(run: Run, progress: Progress, twin: Twin | None) -> Iterator[Progress]:
    """Plays the newest snapshot, and the rival that it has to beat, by this twin; records both, or neither."""
    agent, settings = progress.agent, run.settings
    episodes = settings.evaluate.episodes
    if twin is None or progress.stop.is_set():
        return
    with agent.stopwatch.phase("evaluate"):
        played: list[tuple[Commit, Commit, Evaluation]] = []
        for learner in agent.learners:
            newest, rival = learner.newest, agent.rival(learner)
            assert newest is not None
            for snapshot in [newest] if rival is None else [rival, newest]:
                twin.restore_snapshot(snapshot, agent.store)
                games = play(twin.q_values, settings, episodes=episodes, seed=settings.seed, counter=agent.agent_steps)
                for evaluation in games:
                    progress.note = f"evaluating {snapshot.id}: {len(evaluation.returns)} of {episodes} games"
                    yield progress
                    agent.meanwhile()
                    if progress.stop.is_set():
                        progress.note = ""
                        return
                played.append((snapshot, newest, evaluation))
    progress.note = ""
    for snapshot, challenger, evaluation in played:
        agent.record_evaluation(snapshot, evaluation.summary(), challenger=challenger)
        if snapshot is challenger:
            whose = "" if len(agent.learners) == 1 else f"/{snapshot.learner}"
            values = {
                f"evaluation/mean_return{whose}": evaluation.mean,
                f"evaluation/interval_low{whose}": evaluation.interval[0],
                f"evaluation/interval_high{whose}": evaluation.interval[1],
            }
            agent.log(values, snapshot.counters)
    progress.evaluation = snapshot.id, evaluation
    yield progress


@contextlib.contextmanager
def _stop_requests() -> Iterator[threading.Event]:
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
