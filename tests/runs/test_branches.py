"""Experiments whose runs are forked from one run, and the tables from which reports are drawn again."""

import contextlib
import csv
import json
import math
import shutil
from collections.abc import Callable
from pathlib import Path
from statistics import fmean

import numpy as np
import pytest
from attempts import attempt, end
from commands import Command, twin_graph
from tables import rows
from test_fork import forked

from twin_graph import config
from twin_graph.config.settings import Settings
from twin_graph.errors import UsageError
from twin_graph.experiments import clock, plan, results, statistics, tables
from twin_graph.experiments import report as pages
from twin_graph.experiments.experiment import Experiment
from twin_graph.experiments.runner import Runner
from twin_graph.experiments.trial import Trial
from twin_graph.records.depth import Depths, value_of
from twin_graph.snapshots import control
from twin_graph.snapshots.fork import settings_from
from twin_graph.snapshots.run import Run

ROOT = Path(__file__).parents[2]
FILE = """
name = "what-if"
steps = 1_200
[from]
run = "parent"
points = [1]
noise_seeds = [1, 7]
chaos = true
[factors]
target.policy = ["latest", "lag(100)"]
"""


class Started(Command):
    """A command as `Runner` wants it: cheaper than a process that imports TensorFlow."""

    def poll(self) -> int | None:
        with contextlib.suppress(TimeoutError):
            return self.wait(0)
        return None


def train(file: Path, out: Path) -> None:
    """What `experiment run` does, two runs at a time."""
    planned = plan.read(file)
    kinds = len({(run.condition, run.task) for run in planned.runs})
    found = Experiment.prepare(planned, out, 2, lambda settings: Trial(1_000.0, 1.0, [0] * kinds, 0))
    with found.lock():
        found.write()
        begin = lambda arguments, log, threads: Started(*arguments, cwd=file.parent)  # noqa: E731
        states = Runner(found, jobs=2, retries=0, show=lambda runner: None, begin=begin).run()
    assert {state.state for state in states} == {"done"}


def csv_rows(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


@pytest.fixture
def parent(cartpole: Callable[..., Settings], trained: Callable[[Settings], Run], tmp_path: Path) -> Run:
    """A run `parent` under `checkpoints/`, with all its resume points."""
    settings = cartpole(resume__keep="all", target__policy="window(3)", loss="mse", evaluate__every_steps=300)
    (tmp_path / "checkpoints").mkdir()
    return Run(Path(shutil.move(trained(settings).folder, tmp_path / "checkpoints" / "parent")))


def test_a_target_that_is_held_by_hand_is_named_where_a_policy_would_have_no_effect(
    parent: Run, cartpole: Callable[..., Settings], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    control.ask(parent.control, "swap", parent.resolve("latest").id, hold=True)
    with parent.trying(config.change(parent.settings, [("train.steps", 2_000)])):
        attempt(parent)
    monkeypatch.chdir(tmp_path)
    made = twin_graph("fork", "parent", "--set", "target.policy=lag(100)", "--run-dir", "what-if", cwd=tmp_path)
    told = "the target is held by hand: target.policy has no effect until the hold ends, as by twin-graph swap what-if "
    assert f"\n{told}latest\n" in made.stderr
    held = parent.points().newest()
    assert held is not None
    Path("file.toml").write_text(FILE.replace("points = [1]", f"points = [{held.number}]").replace("1_200", "3_000"))
    with pytest.raises(UsageError, match=f"at resume point {held.number} the target is held by hand"):
        plan.read(Path("file.toml"))


def test_conditions_begin_from_the_same_states_and_are_compared_in_pairs(
    parent: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file.toml").write_text(FILE.replace('"latest"', '"window(3)"'))
    folder = tmp_path / "checkpoints" / "experiments" / "what-if"
    monkeypatch.chdir(tmp_path)
    train(tmp_path / "file.toml", folder)
    runs = {path.parent.name: Run(path.parent) for path in folder.glob("*/run.json")}
    assert sorted(runs) == [
        f"{condition},point=1,seed={seed}"
        for condition in ("lag-100", "window-3", "window-3-one-weight-moved")
        for seed in (1, 7)
    ]
    # The first condition is the parent's, and so with its seed is the future that the parent had.
    assert end(runs["window-3,point=1,seed=1"]) == end(parent)
    assert len({end(run)[0] for run in runs.values()}) == 6
    border = runs["lag-100,point=1,seed=7"].description["forked_from"]["updates"]
    shared = {tuple(s.id for s in run.store().snapshots if s.updates <= border) for run in runs.values()}
    assert len(shared) == 1

    # Whatever the parent is resumed with meanwhile, a run that is left begins as it was planned.
    name = "lag-100,point=1,seed=7"
    ended = end(runs[name])
    shutil.rmtree(runs[name].folder)
    point = parent.points().readable(1)
    assert point
    with parent.trying(config.change(parent.settings, [("train.learning_rate", 0.01)])), parent.lock("train"):
        parent.record_start(point)
    assert settings_from(parent, point).train.learning_rate == 0.01
    train(tmp_path / "file.toml", folder)
    assert end(Run(runs[name].folder)) == ended

    shutil.rmtree(parent.folder)
    again = twin_graph("experiment", "run", "file.toml", cwd=tmp_path)
    assert "6 of 6 runs done" in again.stderr
    whole = (tmp_path / "file.toml").read_text()
    (tmp_path / "file.toml").write_text(whole.replace('run = "parent"', 'run = "another"'))
    refused = twin_graph("experiment", "run", "file.toml", cwd=tmp_path)
    assert refused.returncode == 2
    assert "from.run=another: these runs are forked from checkpoints/parent; choose another --out" in refused.stderr
    (tmp_path / "file.toml").write_text(whole)
    assert twin_graph("experiment", "report", "what-if", cwd=tmp_path).returncode == 0
    final = {name: [line["mean"] for line in run.evaluation_lines()][-1] for name, run in runs.items()}
    compared = {row["condition"]: row for row in csv_rows(folder / "report" / "conditions.csv")}
    assert compared["window(3)"]["difference"] == ""
    for condition, slug in (("lag(100)", "lag-100"), ("window(3), one weight moved", "window-3-one-weight-moved")):
        pairs = [final[f"{slug},point=1,seed={seed}"] - final[f"window-3,point=1,seed={seed}"] for seed in (1, 7)]
        assert float(compared[condition]["difference"]) == pytest.approx(fmean(pairs))
        limits = [float(compared[condition][f"difference_{name}"]) for name in ("low", "high")]
        assert limits == pytest.approx([min(pairs), max(pairs)])
        # Not corrected for the control, which is no hypothesis.
        p = f"{statistics.p_of(np.array(pairs)[:, None])}" if condition == "lag(100)" else ""
        assert compared[condition]["difference_p"] == p
    text = (folder / "report" / "report.md").read_text()
    assert "All are forked from parent at resume point 1 (update 76)." in text

    read = list(results.read(Experiment.open(folder)))
    for result in read:  # the parent's past is nobody's merit
        assert result.planned.point is not None
        assert list(result.scores) == [600, 904, 1_200]
        assert result.reached(0) == 600
        assert min(result.seconds) > 504
        assert result.attempts == 1
        [first, *_] = [service for service in result.services if service.last > border]
        begun = first._replace(first=border + 1)
        assert result.own_services[0] == begun
        assert result.mean_age(1, first.last) == begun.mean_age(border + 1, first.last)[0]

    # The same report again, from its tables alone.
    copy = Path(shutil.copytree(folder / "report", tmp_path / "tables"))
    shutil.rmtree(folder)
    *_, drawn = tables.read(copy)
    assert drawn == read
    assert twin_graph("experiment", "report", str(copy), cwd=tmp_path).returncode == 0
    for path in copy.iterdir():
        if path.suffix in (".csv", ".json"):
            assert (copy / "report" / path.name).read_bytes() == path.read_bytes(), path.name


@pytest.mark.parametrize(("replace", "by", "message"), rows("branches", "bad_files", "replace", "by", "message"))
def test_a_bad_file_is_refused_before_anything_is_forked(
    parent: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, replace: str, by: str, message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    text = FILE.replace(replace, by)
    assert text != FILE
    with pytest.raises(UsageError, match=message):
        plan.parse(text)
    assert [path.name for path in parent.folder.parent.iterdir()] == ["parent"]


def test_ordinary_files_need_a_preset_and_seeds() -> None:
    for missing in ("preset", "seeds"):
        lines = ["name = 'x'", "steps = 100", "preset = 'cartpole'", "seeds = [1]", "[factors]", "loss = ['mse']"]
        text = "\n".join(line for line in lines if not line.startswith(missing))
        with pytest.raises(UsageError, match=f"{missing} is missing"):
            plan.parse(text)


# The ledger's clock


def test_predictions_are_the_depths_of_the_ledger(
    cartpole: Callable[..., Settings], tmp_path: Path, trained: Callable[[Settings], Run]
) -> None:
    """Also of what an experiment's run cannot say by itself: what a fork learnt, by the settings of then."""
    for mode, policy in (("plain", "ensemble(3, mean)"), ("plain", "lag(60)"), ("mutual", "latest")):
        run = trained(cartpole(mode=mode, target__policy=policy, train__n_step=3, save__every_updates=25))
        check_clock(run)
    parent = trained(cartpole(save__every_updates=30, resume__keep="all"))
    run = forked(parent, tmp_path / "fork", "1", train__n_step=1)
    attempt(run)
    check_clock(run)


def check_clock(run: Run) -> None:
    """What is predicted of a run of CartPole is the value of its snapshots' depths."""
    planned = plan.PlannedRun("run", "", "CartPole-v1", 1, (), run.settings)
    read = results._result(results.State(planned, "done", 0), run)
    depths = Depths(run)
    depths.catch_up()
    wanted: dict[int, list[float]] = {}
    for line in run.evaluation_lines():
        depth = depths.of(line["snapshot"])
        assert depth is not None
        wanted.setdefault(line["played_at"]["agent_steps"], []).append(depth)
    assert read.depths == {step: tuple(of) for step, of in wanted.items()}
    assert clock.predicted(read) == pytest.approx({s: fmean(value_of(d, 0.99) for d in of) for s, of in wanted.items()})


def test_nothing_is_predicted_where_the_depth_of_one_learner_is_not_known(
    cartpole: Callable[..., Settings], trained: Callable[[Settings], Run]
) -> None:
    """As after an import into its target."""
    first, second, *others = trained(cartpole(mode="mutual")).evaluation_lines()
    del others[-1]["depth_agent_steps"]
    known = (first["depth_agent_steps"], second["depth_agent_steps"])
    assert others[-1]["played_at"]["agent_steps"] > first["played_at"]["agent_steps"]
    assert results._depths([first, second, *others]) == {first["played_at"]["agent_steps"]: known}


def test_truncated_returns_are_of_as_many_steps_as_the_depth(
    cartpole: Callable[..., Settings], trained: Callable[[Settings], Run]
) -> None:
    for line in trained(cartpole(train__n_step=3)).evaluation_lines():
        depth = line["depth_agent_steps"]
        assert line["truncated"] == pytest.approx([value_of(min(depth, steps), 0.99) for steps in line["returns"]])


def test_the_clock_of_the_committed_studies_agrees(tmp_path: Path) -> None:
    """A run of CartPole expects what its ledger allows, where targets serve long enough to be fitted."""
    cartpole = "cartpole-policies", "refresh-period", "proposed-targets", "mutual-vs-double", "own-policy"
    names = *cartpole, "proposed-targets-replication"
    studies = [str(ROOT / "studies" / "results" / name) for name in names]
    done = twin_graph("experiment", "clock", *studies, "--served", "250", "--json", cwd=tmp_path)
    found = json.loads(done.stdout)["in all, CartPole-v1"]
    assert (found["runs"], found["evaluations"]) == (245, 2_940)
    assert round(found["correlation"], 4) == 0.9993
    assert round(found["error"], 2) == 0.76
    picture = tmp_path / "clock.svg"
    fast = twin_graph("experiment", "clock", studies[1], "--plot", str(picture), cwd=tmp_path)
    assert "refresh-period: latest, refresh_every_updates=50" in fast.stdout
    drawn = picture.read_bytes()
    again = twin_graph("experiment", "clock", studies[1], "--plot", str(picture), cwd=tmp_path)
    assert (again.returncode, picture.read_bytes()) == (2, drawn)
    assert "exists already; choose another path" in again.stderr
    pong = twin_graph("experiment", "clock", str(ROOT / "studies" / "results" / "pong-short"), cwd=tmp_path)
    assert pong.returncode == 2
    assert "no run in these tables has both" in pong.stderr


def test_predictions_are_judged_in_each_environment_apart(tmp_path: Path) -> None:
    """Values of 1 a step and of -1 a step correlate when they are pooled, whatever is known of either."""
    study = ROOT / "studies" / "results" / "genealogy"
    done = twin_graph("experiment", "clock", str(study), "--json", cwd=tmp_path)
    found = json.loads(done.stdout)
    planned, _, runs = tables.read(study)
    assert len(found) == 2 * 16 + 2
    report = pages._fits(pages._Data(planned, runs, {}, []))
    for task, one in zip(planned.tasks, report.split(". "), strict=True):
        of = clock.fit(pair for run in runs if run.planned.task == task for pair in clock.pairs(run))
        assert found[f"in all, {task}"] == {"runs": 160, **of._asdict()}
        assert one == f"{task}: {clock.words(of)}"


def test_a_fit_of_nothing_or_of_one_number_has_no_correlation() -> None:
    assert math.isnan(clock.fit([]).error)
    assert clock.fit([(1, 3)] * 5)[2:] == (2, 2)
    assert math.isnan(clock.fit([(1, 3)] * 5).correlation)
    assert clock.fit([(1, 2), (2, 4), (3, 6)]).correlation == pytest.approx(1)
