"""A snapshot that plays on request: for `twin-graph evaluate` and `record`, and in notebooks."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

from twin_graph import envs
from twin_graph.evaluation.games import Evaluation, Watch
from twin_graph.evaluation.games import play as play_
from twin_graph.twin.model import ModelSpec
from twin_graph.twin.twin import Compute, Twin

if TYPE_CHECKING:
    from twin_graph.snapshots.ledger import Commit
    from twin_graph.snapshots.run import Run

# Seeds of runs are below this, so that a game by hand is never one of a scheduled evaluation.
_BY_HAND = 2**31


def spec_of(run: Run) -> ModelSpec:
    """The model of a run; makes one of its environments to learn the shapes."""
    settings = run.settings
    with contextlib.closing(envs.make(settings.env, count=1)) as env:
        return ModelSpec.of(settings, env.spec)


def restored(run: Run, snapshot: Commit) -> Twin:
    """A twin with the weights of a snapshot, to be closed.

    Raises:
      UsageError: retention has removed the weights.
      DamagedError: files are not what was written.
    """
    store = run.store()
    with store.reading():
        store.check_usable(snapshot.id)
        twin = Twin("evaluation", spec_of(run), compute=Compute(threads=run.settings.twin.threads), learns=False)
        try:
            twin.restore_snapshot(snapshot, store)
        except BaseException:
            twin.close()
            raise
    return twin


def play(
    twin: Twin,
    run: Run,
    snapshot: Commit,
    *,
    episodes: int,
    seed: int,
    at_once: int | None = None,
    watch: Watch | None = None,
) -> Iterator[Evaluation]:
    """Games of a snapshot, which `twin` holds; see `twin_graph.evaluation.games.play`.

    Args:
      twin: what `restored` returned.
      run: whose snapshot it is.
      snapshot: which.
      episodes, at_once, watch: as there.
      seed: of the games; the same seed gives this snapshot the same games, and a snapshot of another number others.
    """
    counter = snapshot.number or 0
    settings, seed = run.settings, _BY_HAND + seed
    return play_(twin.q_values, settings, episodes=episodes, at=(seed, counter), at_once=at_once, watch=watch)
