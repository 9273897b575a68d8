"""Lives of runs, at random, and whether their records say what happened.

    python tests/crash/lives.py [--lives 100] [--seed 1] [--json tests/crash/results/lives.json]

A life is a small run of a random kind to which everything happens that may: it is killed or stopped anywhere, also in
an evaluation; people swap targets, undo that, ask for resume points, change settings and import weights; it falls back
to an older point; it is forked, and goes on as the fork. Meanwhile this program sees which snapshots really gave each
update its targets. After every attempt `verify` must find the run whole, `explain` must name those snapshots, and the
depths of snapshots must be those that follow from them. At its end, and now and then before, `reproduce` must find no
difference, from the beginning and from resume points.
"""

import contextlib
import json
import random
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import click
from rich.console import Console

from twin_graph import config, envs, targets, training
from twin_graph.agent.learner import Learners, Prepared, Trained
from twin_graph.analysis.reproduce import reproduce
from twin_graph.base import machine
from twin_graph.config.settings import Settings
from twin_graph.errors import TwinGraphError, UsageError
from twin_graph.exchange.importing import import_checkpoint
from twin_graph.records import report
from twin_graph.records.depth import Depths, learnt_from
from twin_graph.records.verify import verify
from twin_graph.snapshots import control
from twin_graph.snapshots.fork import fork, settings_from
from twin_graph.snapshots.resumable import newest_point, point_at
from twin_graph.snapshots.run import Run, create
from twin_graph.targets.evaluations import nothing_left
from twin_graph.targets.policies import parse
from twin_graph.training.progress import Progress
from twin_graph.view.library import ShownRun
from twin_graph.view.records import Records, rounded

SMALL = {
    "env.count": 2,
    "train.steps": 1_200,
    "train.start_steps": 96,
    "train.every_steps": 4,
    "train.batch_size": 8,
    "model.hidden_units": [8],
    "replay.capacity_steps": 320,
    "target.refresh_every_updates": 20,
    "save.every_updates": 10,
    "resume.every_steps": 160,
    "resume.keep": "all",
    "evaluate.every_steps": 240,
    "evaluate.episodes": 2,
    "log.every_steps": 64,
    "loss": "mse",  # Huber's clips large errors, and with them the target's influence
    "twin.threads": 1,
    "twin.compiled": False,
}
KINDS: tuple[dict[str, Any], ...] = (
    {},
    {},
    {"train.chunk_steps": 32},
    {"train.chunk_steps": 32, "twin.overlap": False},
    {"replay.prioritized": True},
    {"mode": "mutual", "mutual.learn": "random"},
    {"mode": "mutual", "mutual.learn": "both", "mutual.act": "alternate"},
    {"env.id": "OpenSpiel/tic_tac_toe", "opponent.policy": "window(3)", "opponent.refresh_every_updates": 15},
    {"save.keep_last": 3, "save.keep_every": 0},
    {"train.until_score": 15.0},
)
POLICIES = (
    "latest",
    "lag(25)",
    "best(mean)",
    "window(3)",
    "mix(0.5, 3)",
    "ensemble(2, min)",
    "ensemble(3, mean)",
    "pinned(0)",
    "rollback(0.05)",
    "average(2)",
)
#: What may change when a run is resumed or forked.
CHANGES: dict[str, tuple[Any, ...]] = {
    "train.n_step": (1, 3, 5),
    "train.learning_rate": (1e-3, 3e-3),
    "train.discount": (0.9, 0.99),
    "train.steps": (1_500,),
    "train.minto": (False, True),
    "target.policy": POLICIES,
    "target.refresh_every_updates": (10, 20, 30),
    "save.every_updates": (5, 10, 15),
    "resume.every_steps": (100, 160, 300),
    "evaluate.every_steps": (120, 240, 400),
    "evaluate.episodes": (2, 3),
    "train.until_score": (None, 12.0, 30.0),
    "train.chunk_steps": (0, 32),
}


#: Why a stretch may not be reproduced.
REFUSED = ("has recorded no snapshot in that stretch", "is abandoned: the run continued from an earlier one")


class Learnt(NamedTuple):
    """What an update learnt from: by whose target, which snapshots, and how."""

    snapshots: tuple[str, ...]
    settings: Settings


class Broken(Exception):  # noqa: N818  # a problem, told with the life that led to it
    """The records of a life do not say what happened."""


class Life:
    """One life.

    Attributes:
      story: what happened, a line each.
      seen: how often what was checked.
    """

    def __init__(self, folder: Path, chance: random.Random) -> None:
        self._folder, self._random = folder, chance
        kind = {**chance.choice(KINDS), "target.policy": chance.choice(POLICIES), "seed": chance.randrange(1_000)}
        self._run = create(folder / "run", config.load("cartpole", {**SMALL, **kind}))
        self.story = [f"begins with {kind}"]
        self.seen: Counter[str] = Counter()
        self._learnt: dict[tuple[int, int], Learnt] = {}  # by attempt and update
        self._forks = 0
        self._is_swapped = False  # into the online twin
        self._shown: dict[Path, ShownRun] = {}  # as the page follows runs

    def live(self) -> None:
        """All of it. Raises `Broken`, and whatever the program raises that it should not."""
        for _ in range(self._random.randrange(2, 6)):
            self._attempt(self._random.choice(["kill", "kill", "stop", "kill while playing", "stop while playing"]))
            if self._run.points().newest() is None:
                continue
            self._look()
            happens: list[Callable[[], None]] = [self._change, self._fork, self._request, self._fall_back, self._import]
            for event in self._random.sample(happens, self._random.randrange(3)):
                event()
            if self._random.random() < 0.2:
                self._reproduce()
        self._attempt("end")
        self._look()
        self._reproduce()
        if self._run.state() == "finished":
            self.seen["lives to the end"] += 1

    # What happens

    def _attempt(self, how: str) -> None:
        run = self._run = Run(self._run.folder)
        point = newest_point(run).point if run.points().folders() else None
        begin = point.counters.agent_steps if point else 0
        if nothing_left(run, begin, run.settings):  # as the command line refuses it
            return
        last = self._random.randrange(begin, run.settings.train.steps + 40)
        asks = sorted(self._random.randrange(begin, last + 1) for _ in range(self._random.choice([0, 0, 1, 2, 3])))
        self.story.append(f"attempt {run.ledger.attempt + 1} from {begin}: to {how} at {last}, asked at {asks}")
        with (
            contextlib.closing(envs.make(run.settings.env, count=run.settings.env.count)) as env,
            self._traced(),
            contextlib.closing(training.train(run, env, point)) as progresses,
        ):
            for progress in progresses:
                if self._random.random() < 0.02:
                    self._page().timeline()
                while asks and progress.agent_steps >= asks[0]:
                    asks.pop(0)
                    self._request()
                is_there = progress.agent_steps >= last and how != "end"
                if is_there and ("playing" not in how or progress.note.startswith("evaluating")):
                    if how.startswith("kill"):
                        self._kill(progresses)
                        return
                    progress.stop.set()
            self.story += [f"  notice: {notice}" for notice in progress.live.notices]

    def _kill(self, progresses: Iterator[Progress]) -> None:
        """Nothing is written after the moment in which a process is killed."""
        then = self._folder / "then"
        shutil.copytree(self._run.folder, then)
        progresses.close()
        shutil.rmtree(self._run.folder)
        then.rename(self._run.folder)

    def _request(self) -> None:
        run, kind = Run(self._run.folder), self._random.choice(["swap", "swap", "hold", "undo", "point", "online"])
        store = run.store()
        learner = self._random.choice(["a", "b"]) if run.settings.mode == "mutual" else "online"
        into: Any = "online" if kind == "online" else "target"
        if run.settings.opponent.policy and into == "target" and self._random.random() < 0.5:
            into = "opponent"
        if kind == "undo" and self._is_swapped:
            into = "online"
        if kind in ("undo", "point"):
            control.ask(run.control, kind, into=into, learner=learner)
        elif store.available:
            snapshot = self._random.choice(store.available).id
            control.ask(run.control, "swap", snapshot, into, learner=learner, hold=kind == "hold")
            self._is_swapped |= into == "online"
        self.story.append(f"  asks for {kind} into {learner}'s {into}")

    def _changed(self, settings: Settings, updates: int, seed: int | None = None) -> Settings:
        """Other settings to go on with after so many updates, if they are accepted."""
        names = self._random.sample(sorted(CHANGES), self._random.randrange(4))
        changes = [(name, self._random.choice(CHANGES[name])) for name in names]
        self.story.append(f"  changes {changes}")
        try:
            changed = config.change(settings, changes, seed=seed)
            targets.check_present(changed, self._run.store(), updates)
        except UsageError as refusal:
            self.story.append(f"  refused: {refusal}")
            return config.change(settings, [], seed=seed)
        return changed

    def _change(self) -> None:
        self.story.append("is to be resumed with other settings")
        run = Run(self._run.folder)
        run.change_settings(self._changed(run.settings, newest_point(run).point.counters.updates))

    def _fork(self) -> None:
        parent = Run(self._run.folder)
        point = self._random.choice(self._points(parent))
        state = point_at(parent, str(point))
        seed = self._random.choice([None, self._random.randrange(1_000)])
        self._forks += 1
        self.story.append(f"forks at point {point} ({state.counters}) with seed {seed}")
        settings = self._changed(settings_from(parent, state), state.counters.updates, seed)
        self._run = fork(parent, state, self._folder / f"fork{self._forks}", settings)
        self._learnt = {by: learnt for by, learnt in self._learnt.items() if by[0] <= state.attempt}

    def _fall_back(self) -> None:
        """Its newest point is damaged for a time, in which it goes on from the one before."""
        *before, newest = self._points(self._run)
        if before:
            [learner, *_] = self._run.points().path(newest).glob("*.index")
            learner.rename(self._folder / "aside")
            self.story.append(f"point {newest} is damaged for a time")
            self._attempt("kill")
            if learner.parent.exists():
                (self._folder / "aside").rename(learner)

    def _import(self) -> None:
        """What it was once, as weights from outside, which people may swap in later."""
        run = Run(self._run.folder)
        snapshot = self._random.choice(run.store().available).id
        prefix = run.store().prefix(snapshot)
        outside = Path(shutil.copytree(prefix.parent, self._folder / "outside"))
        imported = import_checkpoint(run, outside / prefix.name, {}).snapshot
        shutil.rmtree(outside)
        self.story.append(f"imports {snapshot} as {imported.id}")

    # What the records say of it

    @contextlib.contextmanager
    def _traced(self) -> Iterator[None]:
        train, settings, attempt = Learners.train, self._run.settings, self._run.ledger.attempt + 1

        def traced(learners: Learners, prepared: Prepared) -> Trained:
            by_name = dict(zip((learner.name for learner in learners), prepared.snapshots, strict=True))
            for update in prepared.updates:
                self._learnt[attempt, update + 1] = Learnt(by_name[learners.turns.learns(update)], settings)
            return train(learners, prepared)

        Learners.train = traced
        try:
            yield
        finally:
            Learners.train = train

    @staticmethod
    def _points(run: Run) -> list[int]:
        return [int(folder.name) for folder in run.points().folders()]

    def _look(self) -> None:
        run = Run(self._run.folder)
        found = verify(run)
        if found.damage or found.unknown:
            raise Broken(f"verify: {found}")
        updates = report.status(run).updates
        for update in self._random.sample(range(1, updates + 1), min(updates, 10)):
            told = tuple(snapshot.id for snapshot in report.explain(run, update).snapshots)
            if told != (was := self._of(run, update).snapshots):
                raise Broken(f"explain {update}: {told}, and it was {was}")
            self.seen["updates explained"] += 1
        if not self._is_swapped and run.settings.mode == "plain":
            self._look_at_depths(run)
        self._look_at_page(run)

    def _page(self) -> Records:
        shown = self._shown.setdefault(self._run.folder, ShownRun(self._run.folder))
        shown.look()
        return shown.records()

    def _look_at_page(self, run: Run) -> None:
        """What has followed the run all along shows what is read of it anew."""
        followed, anew = self._page(), Records(run)
        if _shown(followed.summary()) != _shown(anew.summary()):
            raise Broken(f"page: {followed.summary()}, and it is {anew.summary()}")
        for what in (
            lambda records: records.timeline(),
            lambda records: records.timeline("opponent") if run.settings.opponent.policy else None,
            lambda records: records.curves(),
            lambda records: records.episodes(),
            lambda records: records.evaluations(0, 1_000),
            lambda records: records.ledger(0, 10_000, abandoned=True),
            lambda records: [records.snapshot(snapshot.id) for snapshot in run.store().snapshots[::5]],
        ):
            if _shown(what(followed)) != _shown(what(anew)):
                raise Broken(f"page: {_shown(what(followed))}, and it is {_shown(what(anew))}")
            self.seen["page"] += 1

    def _of(self, run: Run, update: int) -> Learnt:
        return self._learnt[run.ledger.attempt_of(update - 1), update]

    def _look_at_depths(self, run: Run) -> None:
        depths, known = Depths(run), dict[str, float]()
        depths.catch_up()
        for snapshot in run.store().snapshots:
            known[snapshot.id] = 0.0
            if snapshot.updates:
                of, settings = self._of(run, snapshot.updates)
                if any(one not in known for one in of):  # a mean of others, which is no snapshot of the run's own
                    return
                combine = parse(settings.target.policy).combine if len(of) > 1 else "mean"
                assert combine
                train = settings.train
                known[snapshot.id] = learnt_from(
                    [known[one] for one in of], n_steps=train.return_lengths, discount=train.discount, combine=combine
                )
            told = depths.of(snapshot.id)
            if told is None or abs(told - known[snapshot.id]) > 1e-6:
                raise Broken(f"depth of {snapshot.id}: {told}, and it is {known[snapshot.id]}")
            self.seen["depths"] += 1

    def _reproduce(self) -> None:
        run = Run(self._run.folder)
        points = self._points(run)
        for begin in [None, *self._random.sample(points, min(2, len(points)))]:
            folder = self._folder / "again"
            try:
                point = None if begin is None else point_at(run, str(begin))
                difference = reproduce(run, point, None, folder, lambda progress: None).difference
            except UsageError as refusal:
                if not any(expected in str(refusal) for expected in REFUSED):
                    raise
                self.seen["refused"] += 1
            else:
                if difference:
                    raise Broken(f"reproduce from {begin}: {difference}")
                self.seen["reproduced"] += 1
            shutil.rmtree(folder, ignore_errors=True)


def _shown(what: object) -> str:
    return json.dumps(rounded(what))


@click.command()
@click.option("--lives", default=100, show_default=True)
@click.option("--seed", default=1, show_default=True, help="Of the first life; the next has the next.")
@click.option("--keep", type=click.Path(path_type=Path), help="Keep what is broken here.")
@click.option("--json", "path", type=click.Path(path_type=Path), help="Write what was found here.")
def main(lives: int, seed: int, keep: Path | None, path: Path | None) -> None:
    """Lives so many lives; exits with 1 if the records of one do not say what happened."""
    console, began = Console(stderr=True, soft_wrap=True), time.monotonic()
    seen, problems = Counter[str](), list[dict[str, Any]]()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in range(seed, seed + lives):
        with tempfile.TemporaryDirectory() as name:
            life = Life(Path(name), random.Random(number))
            try:
                life.live()
            except (TwinGraphError, Broken, AssertionError, LookupError, ValueError, OSError) as error:
                why = "".join(traceback.format_exception_only(error)).strip()
                problems.append({"life": number, "problem": why, "story": life.story})
                console.print(f"life {number}: {why}\n  " + "\n  ".join(life.story), markup=False)
                if not isinstance(error, Broken):
                    console.print("".join(traceback.format_exception(error)), markup=False)
                if keep:
                    shutil.copytree(name, keep / str(number))
            seen += life.seen
            if not number % 10:
                console.print(f"{number + 1 - seed} lives, {len(problems)} broken")
    found = {
        "lives": lives,
        "seen": dict(sorted(seen.items())),
        "problems": problems,
        "seconds": round(time.monotonic() - began),
        "cpu": machine.describe()._asdict(),
    }
    console.print_json(data=found)
    if path:
        path.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    sys.exit(bool(problems))


if __name__ == "__main__":
    main()
