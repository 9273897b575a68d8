"""A snapshot that plays on request: for `twin-graph evaluate` and `record`, and in notebooks."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Self

from twin_graph import envs
from twin_graph.base.text import printable
from twin_graph.config import trust
from twin_graph.envs.observations import essence
from twin_graph.errors import UsageError
from twin_graph.evaluation.games import Contender, Evaluation, Watch
from twin_graph.evaluation.games import play as play_
from twin_graph.snapshots.ledger import Start
from twin_graph.twin.model import ModelSpec
from twin_graph.twin.twin import Compute, Twin

if TYPE_CHECKING:
    from twin_graph.envs.observations import Reading
    from twin_graph.snapshots.ledger import Commit
    from twin_graph.snapshots.run import Run

# Seeds of runs are below this, so that a game by hand is never one of a scheduled evaluation.
_BY_HAND = 2**31


def spec_of(run: Run) -> ModelSpec:
    """The model of a run; makes one of its environments to learn the shapes. Raises `UsageError`; see
    `check_declared`."""
    return _looked_at(run)[0]


def _looked_at(run: Run) -> tuple[ModelSpec, Reading | None]:
    """The model of a run, and how what its environment gives becomes an array."""
    settings = run.settings
    trust.check_all(settings, run.folder)
    with contextlib.closing(envs.make(settings.env, count=1)) as env:
        check_declared(run, env)
        return ModelSpec.of(settings, env.spec), env.reading


def check_declared(run: Run, env: envs.VectorEnv) -> None:
    """Raises `UsageError` if the environment observes or does something else than when the run was trained.

    Arrays of equal shape may mean something else: Gymnasium sorts the keys of a Dict, for example.
    """
    now = env.spec.declared
    starts = run.ledger.newest_first(Start)
    newest = next(starts, None)
    if newest is None or newest.declared == now:
        return
    id_ = run.settings.env.id
    if newest.declared:
        gone = ", ".join(line for line in newest.declared if line not in now)
        new = ", ".join(line for line in now if line not in newest.declared)
        differ = f"then {gone or 'nothing else'}; now {new or 'nothing else'}" if gone or new else "in another order"
        what = f"{id_} is not what it was when {run.folder} was trained: {differ}"
        if [*map(essence, newest.declared)] != [*map(essence, now)]:
            raise UsageError(f"{what}. Restore its code")
        warnings.warn(printable(what), stacklevel=2)
    if env.reading and env.reading.is_rescaled:
        raise UsageError(
            f"{run.folder} was trained by a version that took the observations of {id_} as they are, and this one "
            f"divides them by their bounds ({env.reading.words}): train a new run"
        )


class Player:
    """A snapshot with the weights in a twin of its own; `close()` or `with` ends its session.

    Args:
      run: whose snapshot it is.
      snapshot: its record.

    Attributes:
      run, snapshot: as given.
      twin: which holds it.
      reading: how what its environment gives becomes an array; None where that is an array already.
      lasting: what its environments had kept; see `twin_graph.envs.lasting`.

    Raises:
      UsageError: retention has removed the weights, or the environment is another.
      DamagedError: files are not what was written.
    """

    def __init__(self, run: Run, snapshot: Commit) -> None:
        self.run, self.snapshot = run, snapshot
        store = run.store()
        with store.reading():
            store.check_usable(snapshot.id)
            spec, self.reading = _looked_at(run)
            compute = Compute(threads=run.settings.twin.threads)
            self.twin = Twin("evaluation", spec, compute=compute, learns=False)
            try:
                self.twin.restore_snapshot(snapshot, store)
                self.lasting = store.lasting(snapshot.id)
            except BaseException:
                self.close()
                raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Ends the session. Safe to call twice."""
        self.twin.close()

    def play(
        self, *, episodes: int, seed: int, at_once: int | None = None, watch: Watch | None = None
    ) -> Iterator[Evaluation]:
        """Its games; see `twin_graph.evaluation.games.play`.

        Args:
          episodes, at_once, watch: as there.
          seed: of the games; the same seed gives this snapshot the same games, and a snapshot of another number others.
        """
        contender, at = Contender.of(self.twin, self.lasting), (_BY_HAND + seed, self.snapshot.number or 0)
        return play_(contender, self.run.settings, episodes=episodes, at=at, at_once=at_once, watch=watch)
