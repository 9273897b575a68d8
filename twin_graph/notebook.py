"""Runs in a notebook: records as data frames, snapshots as policies. The core needs neither this nor pandas."""

from __future__ import annotations

import contextlib
import math
import sys
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from html import escape
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from twin_graph import config
from twin_graph.base import doing
from twin_graph.base.text import counted, printable
from twin_graph.config import trust
from twin_graph.config.settings import Settings
from twin_graph.envs.legal import is_illegal, pick
from twin_graph.errors import CompleteError, UsageError
from twin_graph.records import report
from twin_graph.snapshots import run
from twin_graph.snapshots.ledger import Commit, Restore, is_import
from twin_graph.snapshots.lines import learning_curve
from twin_graph.snapshots.resumable import newest_point
from twin_graph.snapshots.run import Run, locate

if TYPE_CHECKING:
    import gymnasium
    import pandas as pd

    from twin_graph.evaluation.games import Evaluation
    from twin_graph.training.progress import Progress
    from twin_graph.training.trainer import OnEpisode, OnEvaluation

_SHOWN_SECONDS = 5.0
_COUNTERS = "agent_steps", "updates", "frames", "episodes"


class NotebookRun(Run):
    """A run with its records as data frames and its snapshots as policies; what `find` and `create` return.

    Its table in Jupyter is what `twin-graph status` says. Raises `UsageError` where a reference means nothing, or
    pandas is missing.
    """

    _kept: Policy | None = None

    def _reread(self) -> None:
        """Its settings as they are now: somebody may have resumed it with others since it was opened."""
        now = Run(self.folder)
        self.description, self.settings = now.description, now.settings

    def metrics(self) -> pd.DataFrame:
        """What was logged while it trained, a row for each time; columns are those of `metrics.jsonl`."""
        return _frame(self.metric_lines(), ["attempt", *_COUNTERS])

    def evaluations(self) -> pd.DataFrame:
        """Scores, scheduled and by hand, a row for each evaluation.

        `agent_steps` and `updates` are those of the snapshot, NaN for an import or a mean of several. `mean` has the
        95% interval `low` to `high` (NaN of one game) over `games` games, whose `returns` are a list.
        """
        rows = [
            {
                **line,
                **dict(zip(("low", "high"), line["interval_95"] or (math.nan, math.nan), strict=True)),
                "games": len(line["returns"]),
                **(dict.fromkeys(_COUNTERS) if is_import(line["snapshot"]) else {}),
            }
            for line in self.evaluation_lines()
        ]
        names = ["snapshot", "agent_steps", "updates", "mean", "low", "high", "games", "scheduled", "returns", "time"]
        return _frame(rows, names)[names]

    def targets(self) -> pd.DataFrame:
        """When each snapshot was the target: a row for each time that one was restored, in an ensemble one per member.

        The snapshot supplied the target values of updates `first_update` to `last_update`, and was `age_updates`
        updates old at the first of these.
        """
        store, after = self.store(), dict[tuple[str, str], int]()
        rows: list[dict[str, Any]] = []
        for swap in self.ledger.newest_first(Restore):
            whose = swap.learner, swap.worker
            if swap.into != "target" or after.get(whose) == swap.first_update - 1:  # replaced before it served
                continue
            for snapshot in reversed(swap.snapshots):
                behind = store.find(snapshot)
                rows.append(
                    {
                        "snapshot": snapshot,
                        "first_update": swap.first_update,
                        "last_update": after.get(whose),
                        "age_updates": None if behind.number is None else swap.first_update - 1 - behind.updates,
                        "policy": swap.policy,
                        "reason": swap.reason,
                        "held": swap.hold,
                        "learner": swap.learner,
                        "worker": swap.worker,
                        "agent_steps": swap.counters.agent_steps,
                        "time": swap.time,
                    }
                )
            after[whose] = swap.first_update - 1
        names = ["snapshot", "first_update", "last_update", "age_updates", "policy", "reason", "held"]
        return _frame(reversed(rows), names).convert_dtypes()

    def snapshots(self) -> pd.DataFrame:
        """The snapshots, oldest first, a row for each: what `twin-graph log` lists."""
        self._reread()
        return _frame(
            map(vars, reversed(report.log(self))), ["id", "parent", *_COUNTERS, "score", "marks"]
        ).convert_dtypes()

    def policy(self, ref: str | int = "latest") -> Policy:
        """The snapshot that a reference means, to act with: its number, `"best"`, ...; `RUN:REF` is another run's."""
        return Policy(*locate(self, ref))

    def q_values(self, ref: str | int, observations: Any) -> np.ndarray:
        """Q values by a snapshot; see `Policy.q_values`."""
        return self._policy_of(ref).q_values(observations)

    def play(self, ref: str | int = "latest", *, episodes: int = 30, seed: int = 0) -> Evaluation:
        """The score of a snapshot over whole games: that of `twin-graph evaluate`, but not recorded."""
        return self._policy_of(ref).play(episodes=episodes, seed=seed)

    def train(
        self,
        *,
        steps: int | None = None,
        on_episode: OnEpisode | None = None,
        on_evaluation: OnEvaluation | None = None,
        quiet: bool = False,
    ) -> Self:
        """Trains to its end, from the newest resume point if there is one. Interrupting the kernel saves and stops.

        In Jupyter its table is shown meanwhile; elsewhere stderr gets a line when it begins, every 15 seconds and at
        its end.

        Args:
          steps: another length of the run, in agent steps, not below what it has made. A run that is complete, or has
            reached `train.until_score`, stays as it is.
          on_episode, on_evaluation: called as `on_episode(score, progress)` and `on_evaluation(evaluation, progress)`;
            to return False ends the run. See `twin_graph.training.train`.
          quiet: show nothing.
        """
        with _shown(self, quiet=quiet) as show, self.lock("train"):
            from twin_graph.training import readiness, trainer

            self._reread()
            settings = self.settings
            if settings.workers.count:
                started = self.points().folders()
                a_new_one = "train a new run with `twin-graph train PRESET --workers N`"
                instead = "`twin-graph resume` continues it" if started else a_new_one
                raise UsageError(f"{self.folder} is for workers, which no notebook starts: {instead}")
            if steps is not None:
                settings = config.change(settings, [("train.steps", steps)])
            point, damage = newest_point(self) if self.points().folders() else (None, ())
            for reason in damage:
                warnings.warn(f"skipped: {reason}", stacklevel=2)
            with contextlib.ExitStack() as open_:
                try:
                    begun = open_.enter_context(
                        readiness.ready(settings, self.folder, (self, point) if point else None)
                    )
                except CompleteError:
                    return self  # as where a cell is run twice
                for notice in begun.notices:
                    warnings.warn(notice, stacklevel=2)
                open_.enter_context(self.trying(begun.settings))
                trained = trainer.train(self, begun.env, point, on_episode=on_episode, on_evaluation=on_evaluation)
                for progress in trained:
                    show(progress)
        return self

    def trust_code(self) -> list[str]:
        """Lets the code run that the settings of this run name, though somebody else began it: read that code first.

        Returns:
          What is trusted from here on: settings, files and the beginnings of their hashes; empty if all was.
        """
        found = trust.untrusted(self.settings)
        for code in found:
            trust.accept(code)
        return [code.words() for code in found]

    def _policy_of(self, ref: str | int) -> Policy:
        """The policy of a snapshot, kept for the next call."""
        owner, snapshot = locate(self, ref)
        kept = self._kept
        if kept is None or (kept.run.folder, kept.snapshot.id) != (owner.folder, snapshot.id):
            if kept:
                kept.close()
                self._kept = None  # the next one may not be there
            self._kept = kept = Policy(owner, snapshot)
        return kept

    def _repr_html_(self) -> str:
        self._reread()
        told = report.status(self)
        state = ": ".join(part for part in (told.state, told.reason) if part)
        rows = [
            ("state", state),
            ("environment", told.environment),
            ("agent steps", f"{told.agent_steps:,} of {told.total_steps:,}"),
            ("updates", f"{told.updates:,}"),
            ("episodes", f"{told.episodes:,}"),
            ("snapshots", f"{told.snapshots:,}, {told.snapshots_with_weights:,} with weights"),
            *(
                (
                    "target",
                    f"{target.snapshot}, policy {target.policy}, for {counted(target.served_updates, 'update')}",
                )
                for target in told.targets
            ),
            *(
                (f"{name} score", f"{score.mean:z.2f} ({score.snapshot})")
                for name, score in (("latest", told.scores.latest), ("best", told.scores.best))
                if score
            ),
        ]
        cells = "".join(f"<tr><th>{escape(name)}</th><td>{escape(value)}</td></tr>" for name, value in rows)
        learner_of = {commit.id: commit.learner for commit in self.ledger.events(Commit)}
        curves: dict[str, list[tuple[int, float]]] = {}
        for line in learning_curve(self):
            point = line["agent_steps"], line["mean"]
            curves.setdefault(learner_of.get(line["snapshot"], ""), []).append(point)
        curve = "".join(map(_curve, curves.values()))
        return f"<div><b>{escape(told.run)}</b>{curve}<table>{cells}</table></div>"


class Policy:
    """One snapshot that acts; `close()` or `with` ends its session.

    Attributes:
      run: whose snapshot it is.
      snapshot: its record.
    """

    def __init__(self, run: Run, snapshot: Commit) -> None:
        from twin_graph.evaluation.player import Player

        self.run, self.snapshot = run, snapshot
        self._player = Player(run, snapshot)
        self._random = np.random.default_rng(run.settings.seed)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Policy {self.snapshot.id} of {self.run.name}>"

    def close(self) -> None:
        """Ends the session. Safe to call twice."""
        self._player.close()

    def predict(
        self,
        observation: Any,
        state: None = None,
        episode_start: Any = None,
        deterministic: bool = True,
        action_masks: Any = None,
    ) -> tuple[Any, None]:
        """The action for an observation, or actions `[B]` for several, as Stable-Baselines3 returns them.

        Args:
          observation, action_masks: see `q_values`.
          state, episode_start: for recurrent policies; ignored, since this is not one.
          deterministic: take the greedy action; if false, a random legal one with probability `act.epsilon_end`.

        Returns:
          What the environment's `step` takes (with `env.actions`, the emulator's own number), and None.
        """
        del state, episode_start
        q = self.q_values(observation, action_masks)
        actions = np.asarray(q.argmax(axis=-1))
        if not deterministic:
            explore = self._random.random(actions.shape) < self.run.settings.act.epsilon_end
            legal = ~is_illegal(q).reshape(-1, q.shape[-1])
            anything = pick(legal, self._random.random(len(legal))).reshape(actions.shape)
            actions = np.where(explore, anything, actions)
        if chosen := self.run.settings.env.actions:
            actions = np.array(chosen)[actions]
        actions = actions + self._player.twin.spec.env.first_action
        return (actions if actions.shape else actions.item()), None

    def q_values(self, observations: Any, action_masks: Any = None) -> np.ndarray:
        """Q values, float32 `[B, A]`, of several observations; `[A]` of a single one.

        Args:
          observations: as the environment gives them, or as a vector environment of Gymnasium gives B of them.
          action_masks: where some actions are illegal and the observations do not say which, the mask, `[A]` or
            `[B, A]`, for example `info["action_mask"]`.

        Raises:
          UsageError: the environment observes nothing of the kind, or there is no mask.
        """
        given, is_one = self._given(observations, action_masks)
        q = self._player.twin.q_values(given)
        return q[0] if is_one else q

    def predict_distribution(self, observations: Any, action_masks: Any = None) -> tuple[np.ndarray, np.ndarray]:
        """The returns that the snapshot expects of each action, and how probable it takes each to be.

        With `model.head=categorical` N returns that are the same for all, with `quantile` and `implicit` N quantiles of
        equal probability, with `scalar` the Q value alone. Arguments and errors as of `q_values`.

        Returns:
          Returns and probabilities, float32 `[B, A, N]` each; `[A, N]` of a single observation. What illegal actions
          have means nothing.
        """
        given, is_one = self._given(observations, action_masks)
        returns, probabilities = self._player.twin.distribution(given)
        return (returns[0], probabilities[0]) if is_one else (returns, probabilities)

    def _given(self, observations: Any, action_masks: Any) -> tuple[np.ndarray, bool]:
        """Observations `[B, *observation_shape]`, and whether it was a single one. Raises `UsageError`."""
        twin, reading = self._player.twin, self._player.reading
        given = reading.arrays(observations, action_masks) if reading else np.asarray(observations)
        spec = twin.spec.env
        shape = spec.observation_shape
        if given.shape[max(0, given.ndim - len(shape)) :] != shape or given.ndim > len(shape) + 1:
            raise UsageError(
                f"an observation of {self.run.settings.env.id} has shape {list(shape)}, or [B, ...] for B of them; "
                f"this has {list(given.shape)}"
            )
        if spec.observation_dtype == "uint8" and given.dtype != np.uint8:
            raise UsageError(f"images are bytes from 0 to 255 (uint8); this is {given.dtype}")
        return given.reshape(-1, *shape), given.ndim == len(shape)

    def lend(self, env: gymnasium.Env[Any, Any]) -> None:
        """Prepares an environment of one's own for this snapshot, where its kind has normalizers of Gymnasium's, or
        other state that outlives an episode: they get the statistics of training, and keep them."""
        from twin_graph.envs import lasting

        lasting.freeze(env)
        lasting.lend(env, {name: array[0] for name, array in self._player.lasting.items()})

    def play(self, *, episodes: int = 30, seed: int = 0) -> Evaluation:
        """Its score over whole games; see `NotebookRun.play`."""
        from twin_graph.evaluation import games

        if episodes < 1:
            raise UsageError(f"episodes={episodes}: must be 1 or more")
        if not 0 <= seed < 2**31:
            raise UsageError(f"seed={seed}: must be 0 to {2**31 - 1}")
        return games.last(self._player.play(episodes=episodes, seed=seed))


@contextlib.contextmanager
def _shown(run: NotebookRun, *, quiet: bool) -> Iterator[Callable[[Progress], object]]:
    """Shows how a run trains, by calling what is yielded: in Jupyter in its table, elsewhere in lines on stderr."""
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    if quiet:
        yield lambda progress: None  # noqa: ARG005
    elif hasattr(shell, "kernel"):
        with _table(run) as show:
            yield show
    else:
        with _lines(run) as show:
            yield show


@contextlib.contextmanager
def _table(run: NotebookRun) -> Iterator[Callable[[Progress], object]]:
    """Jupyter's; it is gone in the end."""
    from IPython.display import HTML, display

    table = display(run, display_id=True)  # type: ignore[no-untyped-call]
    drawn = time.monotonic()

    def show(progress: Progress) -> None:  # noqa: ARG001
        nonlocal drawn
        if time.monotonic() - drawn > _SHOWN_SECONDS:
            table.update(run)
            drawn = time.monotonic()

    try:
        yield show
    finally:
        table.update(HTML(""))  # type: ignore[no-untyped-call]


@contextlib.contextmanager
def _lines(run: NotebookRun) -> Iterator[Callable[[Progress], object]]:
    """What the command line prints where there is no terminal."""

    def say(text: str) -> None:
        with contextlib.suppress(OSError):  # nobody reads it any more
            print(printable(text, one_line=True), file=sys.stderr, flush=True)

    newest = run.points().newest()
    begin = f"from {newest.counters.agent_steps:,} agent steps on" if newest else "from the beginning"
    say(f"{run.folder}: training {begin}")
    last: Progress | None = None
    with doing.heard_by(doing.now_and_then(say)):
        from twin_graph.training import lines

        shown = lines.Lines(say)

        def show(progress: Progress) -> None:
            nonlocal last
            last = progress
            shown.show(progress)

        yield show
    if last is not None:
        shown.show(last)  # what was noticed when it ended
        say(f"{run.folder}: {lines.ended(last)}, newest snapshot {last.newest_snapshot}")


def find(name: str | Path) -> NotebookRun:
    """The run in a folder, or of that name under `checkpoints/`. Raises `UsageError` if there is none."""
    return NotebookRun(run.find(str(name)).folder.absolute())  # a notebook may change its folder


def create(folder: Path | str, settings: Settings, protocol: Mapping[str, Any] = MappingProxyType({})) -> NotebookRun:
    """Makes the folder of a new run. Raises `UsageError` if it exists already, or cannot be made of these settings.

    Args:
      folder: must not exist yet.
      settings: of the run, as `twin_graph.load` returns them.
      protocol: what scores of the environment depend on, for people.
    """
    if not isinstance(settings, Settings):
        raise UsageError(f"settings={settings!r}: give twin_graph.load(preset), or load(preset, [(name, value), ...])")
    return NotebookRun(run.create(folder, settings, protocol).folder.absolute())


def _frame(rows: Iterable[dict[str, Any]], names: list[str]) -> pd.DataFrame:
    """A data frame with these columns first, even if there are no rows."""
    try:
        import pandas as pd
    except ModuleNotFoundError as error:
        raise UsageError(f"data frames need {error.name}: pip install 'twin-graph[notebook]'") from None
    frame = pd.DataFrame(list(rows))
    return frame.reindex(columns=[*names, *(name for name in frame.columns if name not in names)])


def _curve(points: list[tuple[int, float]]) -> str:
    """Scores over agent steps as a small drawing; nothing for fewer than two."""
    if len(points) < 2:
        return ""
    width, height = 320, 60
    (x0, x1), (y0, y1) = ((min(values), max(values)) for values in zip(*points, strict=True))
    line = " ".join(
        f"{4 + (width - 8) * (x - x0) / ((x1 - x0) or 1):.1f},{4 + (height - 8) * (y1 - y) / ((y1 - y0) or 1):.1f}"
        for x, y in points
    )
    title = escape(f"scores from {y0:z.2f} to {y1:z.2f}")
    return (
        f'<br><svg width="{width}" height="{height}" role="img"><title>{title}</title>'
        f'<polyline points="{line}" fill="none" stroke="#2f7fd0" stroke-width="1.5"/></svg>'
    )
