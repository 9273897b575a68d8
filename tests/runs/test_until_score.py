"""A run that ends when a scheduled evaluation's lower bound reaches a score."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from attempts import attempt, end
from commands import twin_graph
from test_fork import forked

from twin_graph import config
from twin_graph.agent.live_run import LiveRun
from twin_graph.config.settings import Settings
from twin_graph.errors import UsageError
from twin_graph.experiments import plan
from twin_graph.snapshots.run import Run, create
from twin_graph.targets import evaluations

Make = Callable[..., Settings]


def settings(make: Make, **changes: Any) -> Settings:
    """An evaluation every 200 of 1,200 agent steps, with scores about 9."""
    return make(
        **{"evaluate__every_steps": 200, "evaluate__episodes": 4, "train__until_score": 5, "seed": 2, **changes}
    )


def test_a_run_ends_at_the_first_evaluation_whose_lower_bound_reaches_the_score(cartpole: Make, tmp_path: Path) -> None:
    whole = create(tmp_path / "whole", settings(cartpole, train__until_score=None))
    attempt(whole)
    bounds = [line["interval_95"][0] for line in whole.evaluation_lines()]
    assert len(bounds) == 6
    for score in {bounds[0], max(bounds)}:
        run = create(tmp_path / f"until{score}", settings(cartpole, train__until_score=score))
        attempt(run)
        made = bounds.index(score) + 1
        line = list(whole.evaluation_lines())[made - 1]
        snapshot = f"{line['snapshot']} of {line['agent_steps']:,} agent steps"
        how = f"reached train.until_score={score:g} with {snapshot}, lower bound {score:.2f}"
        assert run.outcome() == ("finished", how)
        played = [line["returns"] for line in run.evaluation_lines()]
        assert played == [line["returns"] for line in whole.evaluation_lines()][:made]
        point = run.points().newest()
        assert point is not None
        assert point.counters.agent_steps == 200 * made


def test_what_was_reached_is_looked_up_once_an_evaluation(
    cartpole: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []
    settings_of = Run.settings_of
    monkeypatch.setattr(Run, "settings_of", lambda run, n: asked.append(n) or settings_of(run, n))
    run = create(tmp_path / "run", settings(cartpole, train__until_score=1_000))
    attempt(run)
    assert len(list(run.evaluation_lines())) == 6
    assert len(asked) < 100  # of 1,200 vector steps


def test_a_score_that_is_not_reached_changes_nothing(cartpole: Make, tmp_path: Path) -> None:
    runs = [create(tmp_path / str(score), settings(cartpole, train__until_score=score)) for score in (None, 1_000)]
    for run in runs:
        attempt(run)
        assert run.outcome() == ("finished", "")
    assert end(runs[0]) == end(runs[1])


def test_a_run_killed_before_it_said_so_ends_where_it_would_have(
    cartpole: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, killed = (create(tmp_path / name, settings(cartpole)) for name in ("run", "killed"))
    attempt(run)
    with monkeypatch.context() as patched:
        patched.setattr(LiveRun, "close", lambda *_: None)  # what a kill after the last resume point leaves
        attempt(killed)
    assert killed.outcome()[0] != "finished"
    attempt(killed)
    assert killed.outcome() == run.outcome()
    assert end(killed) == end(run)


def test_of_two_learners_both_reach_it(cartpole: Make, tmp_path: Path) -> None:
    run = create(tmp_path / "run", settings(cartpole, mode="mutual", train__until_score=1_000, seed=4))
    attempt(run)
    newest = [(line["interval_95"][0], line["snapshot"]) for line in run.evaluation_lines()][-2:]
    assert [run.store().find(snapshot).learner for _, snapshot in newest] == ["a", "b"]
    assert evaluations.Matches(run).lower_bound(run.settings) == min(newest)


def test_one_game_reaches_no_score(cartpole: Make, tmp_path: Path) -> None:
    """The lower bound of a mean of one game is unknown, though older versions recorded the game's score as one."""
    run = create(tmp_path / "run", settings(cartpole, train__steps=400, train__until_score=None, evaluate__episodes=1))
    attempt(run)
    assert list(run.evaluation_lines())
    assert evaluations.Matches(run).lower_bound(run.settings)[0] == -math.inf
    resumed = twin_graph(
        *("resume", "run", "--steps=600", "--set=evaluate.episodes=2", "--set=train.until_score=1"), cwd=tmp_path
    )
    assert resumed.returncode == 0, resumed.stderr


def test_an_ended_run_is_resumed_with_another_score_only(cartpole: Make, tmp_path: Path) -> None:
    run = create(tmp_path / "run", settings(cartpole))
    attempt(run)
    refused = twin_graph("resume", "run", cwd=tmp_path)
    assert refused.returncode == 2
    assert refused.stderr.startswith("Error: run has reached train.until_score=5 with 0")
    assert refused.stderr.endswith("give a higher one, or null, with --set\n")
    resumed = twin_graph("resume", "run", "--set=train.until_score=null", cwd=tmp_path)
    assert resumed.returncode == 0, resumed.stderr
    assert "finished at 1,200 agent steps\n" in resumed.stderr
    assert Run(run.folder).outcome() == ("finished", "")


def test_a_score_by_other_rules_does_not_count(cartpole: Make, tmp_path: Path) -> None:
    run = create(tmp_path / "run", settings(cartpole))
    attempt(run)
    score = run.settings.train.until_score
    assert score is not None
    assert evaluations.Matches(run).reached(score, run.settings)
    shorter = config.change(run.settings, [("evaluate.max_steps", 4)])
    run.change_settings(shorter)
    assert not evaluations.Matches(Run(run.folder)).reached(score, shorter)
    attempt(run)
    assert Run(run.folder).outcome() == ("finished", "")


def test_a_fork_of_a_run_that_has_reached_its_score_ends_at_once(cartpole: Make, tmp_path: Path) -> None:
    parent = create(tmp_path / "parent", settings(cartpole, train__until_score=None))
    attempt(parent)
    fork = forked(parent, tmp_path / "fork", train__steps=9_000)
    resumed = twin_graph("resume", "fork", "--set=train.until_score=5", cwd=tmp_path)
    assert resumed.returncode == 0, resumed.stderr
    state, reason = fork.outcome()
    assert (state, reason.partition(" with ")[0]) == ("finished", "reached train.until_score=5")


@pytest.mark.parametrize("episodes", [0, 1])
def test_a_score_needs_evaluations_with_an_interval(cartpole: Make, episodes: int) -> None:
    with pytest.raises(UsageError, match=r"train.until_score=475 waits .* evaluate.episodes=2 or more"):
        cartpole(train__until_score=475, evaluate__episodes=episodes)


@pytest.mark.parametrize(
    "setting",
    ["[settings]\ntrain.until_score = 475\n[factors]", "[factors]\ntrain.until_score = [475, 'null']"],
)
def test_an_experiment_compares_runs_of_equal_lengths(setting: str) -> None:
    text = f"name = 'x'\npreset = 'cartpole'\nsteps = 2000\nseeds = [1, 2]\n{setting}\n"
    text += "target.policy = ['latest', 'best']\n"
    with pytest.raises(UsageError, match=r"train.until_score ends runs at different steps"):
        plan.parse(text)
