"""The run loop, and what a training records on its way."""

import contextlib
import math
import signal
import threading
import time
from collections import deque
from collections.abc import Iterator
from types import FrameType
from typing import Any

from twin_graph.agent import Agent
from twin_graph.envs import VectorEnv, VectorStep
from twin_graph.evaluation import Evaluation, play
from twin_graph.events import EventFile
from twin_graph.replay import Transition
from twin_graph.snapshots.run import Run
from twin_graph.snapshots.store import Manifest
from twin_graph.stopwatch import PHASES
from twin_graph.streams import Purpose, environment_seeds
from twin_graph.twin import Twin

RECENT_EPISODES = 20


def run_loop(agent: Agent, env: VectorEnv) -> Iterator[VectorStep]:
    """Acts, steps the environments, observes, learns, for ever; yields after each vector step."""
    seed = agent.settings.seed
    s_tm1 = env.reset(environment_seeds(seed, Purpose.ENVIRONMENT, agent.agent_steps, env.count))
    while True:
        a_tm1 = agent.act(s_tm1)
        with agent.stopwatch.phase("environment"):
            step = env.step(a_tm1)
        agent.observe(Transition(s_tm1, a_tm1, step.r_t, step.terminal_t, step.last_t, step.s_t))
        agent.learn()
        yield step
        s_tm1 = step.s_next


class Progress:
    """Where a training stands, for `metrics.jsonl`, TensorBoard and the terminal alike.

    Attributes:
      agent: whose counters and target are meant.
      total_steps: agent steps of the whole training.
      returns: true scores of the newest training episodes.
      evaluation: the newest, with its snapshot's id; None before the first.
      note: what is being done when it is not training, for people.
      latest: what `metrics()` last gave; empty before.
      stop: set by whoever wants the training to end at its next vector step.
    """

    def __init__(self, agent: Agent, environments: int, stop: threading.Event) -> None:
        self.agent = agent
        self.stop = stop
        self.total_steps = math.ceil(agent.settings.train.steps / environments) * environments
        self.returns: deque[float] = deque(maxlen=RECENT_EPISODES)
        self.evaluation: tuple[str, Evaluation] | None = None
        self.note = ""
        self.latest: dict[str, Any] = {}
        self._scores = [0.0] * environments
        self._marked = time.perf_counter()
        self._mark = (0, 0, dict(agent.stopwatch.seconds), dict(agent.stopwatch.calls))

    def count(self, step: VectorStep) -> None:
        """Adds up the true scores of the training episodes."""
        for e, score in enumerate(step.score_t):
            self._scores[e] += float(score)
            if step.last_t[e]:
                self.returns.append(self._scores[e])
                self._scores[e] = 0.0

    def metrics(self) -> dict[str, Any]:
        """Everything there is to log; rates and times are those since this was last called."""
        agent = self.agent
        now = time.perf_counter()
        steps, updates, seconds, calls = self._mark
        elapsed = now - self._marked
        metrics: dict[str, Any] = {
            **agent.counters.model_dump(),
            "epsilon": agent.epsilon,
            "loss": agent.last_loss,
            "q_mean": agent.last_q,
            "train_return": sum(self.returns) / len(self.returns) if self.returns else math.nan,
            "target_snapshot": agent.target_snapshot.id,
            "target_age_updates": agent.updates - agent.target_since_update,
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


def train(run: Run, env: VectorEnv) -> Iterator[Progress]:
    """Trains from the beginning to `train.steps`; yields where it stands after each vector step.

    SIGINT, SIGTERM and `progress.stop` end it at the next vector step. A snapshot of what was learnt is committed at
    the end, asked for or reached. After an error, or when the caller stops iterating, the newest snapshot is the last
    that the schedule committed. The ledger says how it ended.

    Raises:
      DivergedError: a loss is NaN or infinite.
      OSError: a record could not be written.
    """
    with (
        _stop_requests() as stop,
        Agent(
            run,
            observation_shape=env.observation_shape,
            observation_dtype=env.observation_dtype,
            n_actions=env.n_actions,
            environments=env.count,
            stack=env.stack,
            frames_per_step=env.frames_per_step,
        ) as agent,
        EventFile(run.events, agent.online.graph) as events,
    ):
        progress = Progress(agent, env.count, stop)
        yield from _steps_and_records(run, env, progress, events)
        agent.commit()
        yield from _evaluate_newest(run, progress, events)
        if progress.latest.get("agent_steps") != agent.agent_steps:
            _log(run, progress, events)
        if stop.is_set():
            agent.close("stopped", "interrupted")


def _steps_and_records(run: Run, env: VectorEnv, progress: Progress, events: EventFile) -> Iterator[Progress]:
    agent, settings = progress.agent, run.settings
    for step in run_loop(agent, env):
        progress.count(step)
        if _crossed(agent.agent_steps, env.count, settings.log.every_steps):
            _log(run, progress, events)
        yield progress
        done = agent.agent_steps >= progress.total_steps
        if not done and _crossed(agent.agent_steps, env.count, settings.evaluate.every_steps):
            yield from _evaluate_newest(run, progress, events)
        if done or progress.stop.is_set():
            return


def _crossed(agent_steps: int, environments: int, every: int) -> bool:
    """Whether the last vector step reached or passed a multiple of `every`."""
    return agent_steps // every > (agent_steps - environments) // every


def _evaluate_newest(run: Run, progress: Progress, events: EventFile) -> Iterator[Progress]:
    """Plays the newest snapshot, restored into a twin of its own, and records its score, unless asked to stop."""
    agent, settings = progress.agent, run.settings
    episodes = settings.evaluate.episodes
    if not episodes or progress.stop.is_set():
        return
    snapshot = agent.store.newest
    with (
        agent.stopwatch.phase("evaluate"),
        Twin("evaluation", agent.online.spec, threads=settings.twin.threads, like=agent.online) as twin,
    ):
        twin.restore(agent.store.prefix(snapshot))
        games = play(twin.q_values, settings, episodes=episodes, seed=settings.seed, counter=agent.agent_steps)
        for evaluation in games:
            progress.note = f"evaluating {snapshot.id}: {len(evaluation.returns)} of {episodes} games"
            yield progress
            if progress.stop.is_set():
                break
    progress.note = ""
    if len(evaluation.returns) < episodes:
        return
    progress.evaluation = snapshot.id, evaluation
    record_evaluation(run, snapshot, evaluation, scheduled=True)
    values = {
        "evaluation/mean_return": evaluation.mean,
        "evaluation/interval_low": evaluation.interval[0],
        "evaluation/interval_high": evaluation.interval[1],
    }
    run.record_metrics({**snapshot.counters.model_dump(), **values})
    events.write(snapshot.counters.agent_steps, values)
    yield progress


def record_evaluation(run: Run, snapshot: Manifest, evaluation: Evaluation, *, scheduled: bool) -> None:
    """Appends an evaluation to the run's records; one made by hand is not `scheduled` and steers nothing."""
    run.record_evaluation(
        {
            "snapshot": snapshot.id,
            "scheduled": scheduled,
            **snapshot.counters.model_dump(),
            **evaluation.summary(),
        }
    )


def _log(run: Run, progress: Progress, events: EventFile) -> None:
    metrics = progress.metrics()
    run.record_metrics(metrics)
    events.write(metrics["agent_steps"], {k: v for k, v in metrics.items() if isinstance(v, int | float)})


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
