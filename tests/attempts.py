"""Lives of a run in this process: trained, cut off, resumed; and what two runs must agree on at their end.

Cut off means that nobody goes on with it: nothing is written after that but the ledger's line on the end, which is
abandoned when it resumes. Real SIGKILLs are in tests/crash.
"""

import contextlib
import os
import time
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import pytest

from twin_graph import envs, training
from twin_graph.agent.learner import Learners, Prepared, Trained
from twin_graph.analysis.reproduce import reproduce
from twin_graph.config.settings import Settings
from twin_graph.snapshots.fork import fork
from twin_graph.snapshots.ledger import Restore
from twin_graph.snapshots.resumable import newest_point, point_at
from twin_graph.snapshots.run import Run, create
from twin_graph.training.progress import Progress


def wait_until(condition: Callable[[], bool], seconds: float = 60) -> None:
    """Fails if that takes longer."""
    ends = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < ends
        time.sleep(0.05)


def progress_of(run: Run) -> Generator[Progress, None, None]:
    """Trains from the newest resume point on, if there is one."""
    run = Run(run.folder)
    point = newest_point(run).point if run.points().folders() else None
    with (
        contextlib.closing(envs.make(run.settings.env, count=run.settings.env.count)) as env,
        contextlib.closing(training.train(run, env, point)) as progresses,
    ):
        yield from progresses


def attempt(run: Run, cut_off: int | None = None, signal_at: tuple[int, int] | None = None) -> list[Any]:
    """Trains from the newest resume point on, if there is one.

    Args:
      run: to train.
      cut_off: agent steps at which nobody goes on with it.
      signal_at: a signal, and the agent steps at which this process gets it.

    Returns:
      For each update its number and what the target twins held.
    """
    held: list[Any] = []
    train = Learners.train

    def traced_train(learners: Learners, prepared: Prepared) -> Trained:
        trained = train(learners, prepared)
        held.extend((update + 1, list(learners.first.target.snapshots)) for update in prepared.updates)
        return trained

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Learners, "train", traced_train)
        with contextlib.closing(progress_of(run)) as progresses:
            for progress in progresses:
                steps = progress.agent_steps
                if signal_at and steps >= signal_at[1] and not progress.stop.is_set():
                    os.kill(os.getpid(), signal_at[0])
                if cut_off and steps >= cut_off:
                    break
    return held


def stop_while_playing(run: Run) -> None:
    """Trains on until the next evaluation is being played, and stops then."""
    for progress in progress_of(run):
        if progress.note.startswith("evaluating"):
            progress.stop.set()


def end(run: Run) -> tuple[Any, ...]:
    """What two trainings must agree on: weights, snapshots and scores first, then what is recorded of these and of
    targets."""
    state, store = run.points().newest(), run.store()
    assert state is not None
    evaluations = list(run.evaluation_lines())
    manifests = [store.manifest(snapshot.id) for snapshot in store.snapshots]
    swaps = run.ledger.events(Restore)
    return (
        state.weights_sha256,
        [snapshot.id for snapshot in store.snapshots],
        [line["returns"] for line in evaluations],
        [(line["q_start"], line["discounted"], line.get("truncated")) for line in evaluations],
        [(m.counters, m.learner, m.learner_updates, m.parent, m.health) for m in manifests],
        [(s.into, s.learner, s.snapshots, s.first_update, s.policy, s.draw, s.hold) for s in swaps],
    )


def reproduced_and_forked(settings: Settings, folder: Path) -> tuple[Any, Run, Run]:
    """Where reproducing a training finds a difference, the training, and a fork of its point 1 that was trained on."""
    run = create(folder / "run", settings)
    attempt(run)
    difference = reproduce(run, None, None, folder / "again", lambda _: None).difference
    made = fork(run, point_at(run, "1"), folder / "fork", run.settings)
    attempt(made)
    return difference, run, Run(made.folder)


def whole_and_killed(settings: Settings, folder: Path, *killed_at: int) -> tuple[Run, Run]:
    """A training at one go, and one that was killed after so many agent steps, each time, and resumed."""
    whole, killed = (create(folder / name, settings) for name in ("whole", "killed"))
    attempt(whole)
    for agent_steps in killed_at:
        attempt(killed, agent_steps)
    attempt(killed)
    return whole, killed
