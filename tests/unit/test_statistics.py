"""The statistics, warnings and findings of a report, on results that are made up."""

import math
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from experiment_files import FILE, changed, made_up
from hypothesis import given
from hypothesis import strategies as st
from rliable import library, metrics
from tables import rows
from twin_graph_cli.main import cli

from twin_graph.base import text
from twin_graph.evaluation.games import Evaluation
from twin_graph.experiments import figures, plan, results, statistics
from twin_graph.experiments import report as pages
from twin_graph.snapshots import ledger
from twin_graph.snapshots.lines import record_evaluation, record_metrics
from twin_graph.snapshots.run import create


def test_no_number_is_printed_as_minus_zero() -> None:
    assert statistics.Estimate(-0.3, -0.4, 233.0).words(".0f") == "0 (0 to 233)"
    assert statistics.Estimate(-0.3, -0.6, 2.0).words("+.0f") == "+0 (-1 to +2)"
    assert text.interval_before((-0.001, 2.0)) == "95% interval 0.00 to 2.00, "
    assert Evaluation([-0.004], [0], {}).words() == "0.00 (1 episode)"
    assert pages._number(-0.0) == "0"


def test_statistics_and_reports_need_no_tensorflow() -> None:
    code = "import sys, twin_graph.experiments.report, twin_graph_cli.experiment; sys.exit('tensorflow' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_runs_with_workers_have_the_steps_in_common_at_which_they_were_due(tmp_path: Path) -> None:
    """What is played and logged a little later, at another step in each run, makes one curve."""
    more = "workers.count = 2\ntrain.start_steps = 200"
    planned, *others = plan.parse(changed("train.start_steps = 200", more)).runs
    alone = plan.parse(FILE).runs[0]

    def read(of: plan.PlannedRun, name: str, played: list[int], logged: list[int]) -> results.Result:
        run = create(tmp_path / name, of.settings)
        for step in played:
            counters = ledger.Counters.zero().model_copy(update={"agent_steps": step})
            snapshot: Any = SimpleNamespace(id="000000-00000000", counters=counters)
            told = {"mean": float(step), "interval_95": None, "returns": [float(step)], "protocol": {}}
            record_evaluation(run, snapshot, told, played_at=counters, challenger="000000-00000000")
        for step in logged:
            line = {"agent_steps": step, "updates": 0, "agent_steps_per_second": 1.0, "seconds": 1.0}
            record_metrics(run, {**line, "train_return": float(step)})
        return results._result(results.State(of, "done", 600), run)

    late = read(planned, "late", [209, 417, 600, 601], [101, 203, 399, 602])
    assert late.scores == {200: 209, 400: 417, 600: 601}  # one that was played until the end is not the last one
    assert late.train_return == {100: 101, 200: 203, 300: 399, 600: 602}
    assert late.seconds == {100: 1, 200: 2, 300: 3, 600: 4}
    assert late.agent_steps == 602
    other = read(others[0], "other", [203, 450, 601], [100, 201, 300, 601])
    band = statistics.curve([[late.scores], [other.scores]], statistics.mean_by_step)
    assert band is not None
    assert band.at == [200, 400, 600]
    assert read(alone, "alone", [209, 601], [101, 601]).scores == {209: 209, 601: 601}


@pytest.mark.parametrize(
    ("processors", "named"),
    [
        (("AMD EPYC (AVX2)", "AMD EPYC (AVX512-BF16)"), "AMD EPYC (AVX2), AMD EPYC (AVX512-BF16)"),
        (("AMD EPYC", "AMD EPYC (AVX2)"), ""),  # an older table's: it may be the same
        (("AMD EPYC", "Xeon (AVX512)"), "AMD EPYC (instruction set not recorded), Xeon (AVX512)"),
        (("AMD EPYC (AVX2)", "AMD EPYC (AVX2)"), ""),
    ],
)
def test_runs_on_different_processors_are_named_with_their_instructions(
    processors: tuple[str, str], named: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(statistics, "RESAMPLES", 20)
    planned = plan.parse(FILE)
    done = [
        results._nothing(results.State(run, "done", 600))._replace(scores={600: 100.0}, games=20, processor=processor)
        for run, processor in zip(planned.runs, processors * 2, strict=True)
    ]
    norms = {"CartPole-v1": statistics.Norm(0, 500, 475, "")}
    conditions = statistics.analyse(planned, done, norms, lambda *_: None)
    warnings = " ".join(pages._warnings(pages._Data(planned, done, norms, conditions)))
    assert (f"Runs on different processors: {named}. Times" if named else "") in warnings
    assert ("different processors" in warnings) == bool(named)


@pytest.mark.parametrize(("seeds", "warning"), rows("statistics", "few_seeds", "seeds", "warning"))
def test_a_report_says_how_far_its_seeds_carry(seeds: int, warning: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(statistics, "RESAMPLES", 20)
    planned = plan.parse(changed("seeds = [1, 2]", f"seeds = {list(range(1, seeds + 1))}"))
    norms = {"CartPole-v1": statistics.Norm(0, 500, 475, "")}
    done = [
        results._nothing(results.State(run, "done", 600))._replace(scores={600: 100.0 + i}, games=20)
        for i, run in enumerate(planned.runs)
    ]
    conditions = statistics.analyse(planned, done, norms, lambda *_: None)
    warnings = list(pages._warnings(pages._Data(planned, done, norms, conditions)))
    assert len(warnings) == bool(warning)
    assert all(text.startswith(warning) for text in warnings)


def test_nothing_is_compared_with_runs_that_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(statistics, "RESAMPLES", 20)
    text = changed('["latest", "lag(40)"]', '["latest", "lag(40)", "lag(20)"]').replace("[1, 2]", "[1, 2, 3, 4, 5]")
    planned, norms = plan.parse(text), {"CartPole-v1": statistics.Norm(0, 500, 475, "")}

    def findings(failed: str) -> tuple[list[statistics.Condition], str]:
        done = made_up(planned, lambda condition, seed: 100.0 * len(condition) + seed, failed)
        conditions = statistics.analyse(planned, done, norms, lambda *_: None)
        return conditions, " ".join(pages._findings(pages._Data(planned, done, norms, conditions)))

    conditions, said = findings("")
    assert "2 comparisons with latest" in said
    assert conditions[1].difference is not None
    assert conditions[1].difference.value == 100
    both = [condition.p for condition in conditions[1:]]
    conditions, _ = findings("lag(20)")  # a planned comparison counts, though it cannot be made
    assert conditions[1].p == both[0] == 2 * 2 / 2**5
    conditions, said = findings("latest")
    assert said.endswith("No run of latest, with which the others are compared, is done.")
    assert all(condition.difference in (None, statistics.UNKNOWN) for condition in conditions)
    assert all(math.isnan(condition.p) for condition in conditions)


def test_pairs_are_of_runs_that_are_both_done(monkeypatch: pytest.MonkeyPatch) -> None:
    """Six of seven seeds are done of each, and five of both: too few to show anything."""
    monkeypatch.setattr(statistics, "RESAMPLES", 20)
    planned = plan.parse(changed("[1, 2]", str(list(range(1, 8)))))
    norms = {"CartPole-v1": statistics.Norm(0, 500, 475, "")}
    missing = {("latest", 1), ("lag(40)", 2)}
    done = [
        run._replace(state="failed") if (run.planned.condition, run.planned.seed) in missing else run
        for run in made_up(planned, lambda condition, seed: 50.0 * len(condition) + seed)
    ]
    conditions = statistics.analyse(planned, done, norms, lambda *_: None)
    found = " ".join(pages._findings(pages._Data(planned, done, norms, conditions)))
    assert "5 pairs cannot show a difference in 1 comparison" in found


def test_of_one_condition_the_score_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(statistics, "RESAMPLES", 20)
    planned, norms = plan.parse(changed(', "lag(40)"', "")), {"CartPole-v1": statistics.Norm(0, 500, 475, "")}
    done = made_up(planned, lambda condition, seed: 100.0 * seed)
    conditions = statistics.analyse(planned, done, norms, lambda *_: None)
    [said] = pages._findings(pages._Data(planned, done, norms, conditions))
    assert said == "Return at the end: latest, 150.0 (100.0 to 200.0) (interquartile mean)."


def test_the_time_to_a_threshold_is_shown_also_while_runs_are_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(statistics, "RESAMPLES", 20)
    planned, norms = plan.parse(FILE), {"CartPole-v1": statistics.Norm(0, 500, 475, "")}
    first, *others = made_up(planned, lambda condition, seed: 480.0)
    for first_has, panels in ({300: 60.0, 600: 120.0}, 2), ({}, 1):
        timed = [run._replace(seconds={300: 60.0, 600: 120.0}) for run in others]
        runs = [
            first._replace(seconds=first_has),
            *timed[:2],
            timed[2]._replace(state="waiting", scores={}, seconds={}),
        ]
        conditions = statistics.analyse(planned, runs, norms, lambda *_: None)
        figure = dict(pages._score_figures(pages._Data(planned, runs, norms, conditions)))["threshold"]
        assert len(figure.axes) == panels


def test_figures_of_targets_are_left_out_where_there_are_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(statistics, "RESAMPLES", 20)
    planned, norms = plan.parse(FILE), {"CartPole-v1": statistics.Norm(0, 500, 475, "")}
    done = made_up(planned, lambda condition, seed: 100.0)
    conditions = statistics.analyse(planned, done, norms, lambda *_: None)
    assert list(pages._target_figures(pages._Data(planned, done, norms, conditions))) == []


def test_pictures_of_other_commands_need_matplotlib_alone() -> None:
    code = "import sys; sys.modules |= {'rliable': None, 'scipy': None}; import twin_graph.experiments.figures"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_scores_of_an_unknown_game_are_normalised_by_what_was_seen_and_it_is_said() -> None:
    planned = plan.parse(changed("train.batch_size = 16", 'env.id = "Acrobot-v1"'))
    nothing = [results._nothing(results.State(run, "waiting", 0)) for run in planned.runs]
    seen = [result._replace(scores={200: -500.0, 600: -100.0}) for result in nothing]
    norm = statistics.norms(planned, seen)["Acrobot-v1"]
    assert (norm.low, norm.high, norm.source) == (-500, -100, "the lowest and highest score seen in these runs")
    assert norm.threshold == pytest.approx(-120)
    given_in_file = plan.parse(planned.text + "[scores]\nlow = -500\nhigh = -70\nthreshold = -100")
    assert statistics.norms(given_in_file, seen)["Acrobot-v1"][:3] == (-500, -70, -100)


def test_intervals_are_drawn_with_the_same_seed_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(statistics, "RESAMPLES", 200)
    scores = np.random.default_rng(0).uniform(size=(10, 2))

    def function(x: np.ndarray) -> np.ndarray:
        return np.array([metrics.aggregate_iqm(x)])

    before = np.random.get_state()[1].tolist()
    [estimate] = statistics.estimates(scores, function, 1)
    assert np.random.get_state()[1].tolist() == before
    np.random.seed(0)
    value, interval = library.get_interval_estimates({"": scores}, function, reps=200)
    assert estimate == (value[""][0], *interval[""][:, 0])


@given(st.lists(st.floats(-1e3, 1e3), min_size=1, max_size=30))
def test_the_interquartile_mean_is_that_of_rliable(numbers: list[float]) -> None:
    scores = np.array(numbers)[:, None]
    assert statistics.iqm(scores) == pytest.approx(metrics.aggregate_iqm(scores), abs=1e-9)


@pytest.mark.parametrize(("seeds", "others", "can"), [(5, 1, False), (6, 1, True), (6, 2, False), (10, 11, True)])
def test_nothing_is_found_where_nothing_could_be(seeds: int, others: int, can: bool) -> None:
    # The first one, those that are compared with it, and a control.
    found = sentence_on([math.nan, *[1.0] * others, math.nan], [seeds] * (others + 2))
    assert found.startswith("Of" if can else f"{seeds} pairs cannot show a difference in {others} comparison")


def test_a_condition_of_few_runs_hides_no_difference_of_another() -> None:
    for few in (1, 4, 5):
        assert "these differ" in sentence_on([math.nan, 0.004, 0.25], [10, 10, few])


def sentence_on(p: list[float], seeds: list[int]) -> str:
    """What a report finds on conditions with these p values, and so many runs each; the control's is NaN."""
    score = statistics.Estimate(1.0, 0.0, 2.0)
    of_each = {"name": "latest", "iqm": score, "difference": score}
    runs = [[SimpleNamespace(planned=SimpleNamespace(nudge=i > 0 and math.isnan(one)))] for i, one in enumerate(p)]
    conditions = [
        SimpleNamespace(**of_each, p=one, pairs=n, scores=np.ones((n, 1)), runs=of)
        for one, n, of in zip(p, seeds, runs, strict=True)
    ]
    data = SimpleNamespace(conditions=conditions, unit="return", estimate=lambda estimate: estimate)
    *_, found = pages._findings(data)  # type: ignore[arg-type]
    return found


def test_one_run_has_no_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(statistics, "RESAMPLES", 20)
    [estimate] = statistics.estimates(np.array([[0.5]]), lambda x: np.array([metrics.aggregate_iqm(x)]), 1)
    assert estimate.value == 0.5
    assert math.isnan(estimate.low)
    assert math.isnan(statistics.improvement(np.array([[0.5]]), np.array([[0.1]])).high)


def test_a_few_pairs_are_tested_exactly() -> None:
    """Five pairs that all point one way: of 2**5 ways to swap them two are as extreme."""
    assert statistics.p_of(np.array([[1.0], [2.0], [3.0], [4.0], [5.0]])) == pytest.approx(2 / 32)
    assert statistics.p_of(np.array([[1.0], [-1.0]])) == 1
    assert math.isnan(statistics.p_of(np.array([[1.0]])))


def test_holm_multiplies_by_what_is_left_and_never_turns_the_order() -> None:
    """0.01 * 4, 0.02 * 3, 0.03 * 2, and 0.06 * 1, none below the one before it."""
    found = statistics.holm([0.06, math.nan, 0.01, 0.03, 0.02])
    assert found == pytest.approx([0.06, math.nan, 0.04, 0.06, 0.06], nan_ok=True)
    assert statistics.holm([0.6, 0.7]) == [1, 1]
    assert statistics.holm([0.01, math.nan, 0.03], of=3) == pytest.approx([0.03, math.nan, 0.06], nan_ok=True)


def test_scores_of_several_environments_make_one_matrix(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(statistics, "RESAMPLES", 50)
    planned = plan.parse(changed("[factors]", '[factors]\nenv.id = ["CartPole-v1", "Acrobot-v1"]'))
    draw = np.random.default_rng(0)
    done = []
    for run in planned.runs:
        score = draw.uniform(0, 500) if run.task == "CartPole-v1" else draw.uniform(-500, -100)
        done.append(results._nothing(results.State(run, "done", 600))._replace(scores={300: score / 2, 600: score}))
    missing, *there = done  # of seed 1, latest lacks CartPole
    norms = {
        "CartPole-v1": statistics.Norm(0, 500, 475, ""),
        "Acrobot-v1": statistics.Norm(-500, -100, -120, ""),
    }
    first, second = statistics.analyse(planned, there, norms, lambda *_: None)
    assert first.scores.shape == (1, 2)
    assert second.scores.shape == (2, 2)
    expected = [[norms[r.planned.task].normalised(r.final) for r in there if r.planned in row] for row in seeds(second)]
    assert second.scores.tolist() == expected
    assert second.iqm.value == pytest.approx(metrics.aggregate_iqm(np.array(expected)))
    assert second.curve is not None
    assert second.curve.at == [300, 600]
    assert missing.planned.seed == 1
    assert np.isfinite(second.curve.low).all()
    assert first.curve is not None  # of one seed, whose resamples are all alike
    assert np.isfinite(first.curve.value).all()
    assert np.isnan([first.curve.low, first.curve.high]).all()
    assert first.profile is not None
    assert np.isnan([first.profile.low, first.profile.high]).all()


def test_runs_that_are_done_are_counted_though_their_seed_lacks_an_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(statistics, "RESAMPLES", 20)
    planned = plan.parse(changed("[factors]", '[factors]\nenv.id = ["CartPole-v1", "Acrobot-v1"]'))
    norms = {task: statistics.Norm(0, 500, 475, "") for task in planned.tasks}
    found = made_up(planned, lambda condition, seed: 100.0)
    for i in (0, 4):  # of both seeds, latest lacks CartPole
        found[i] = results._nothing(results.State(planned.runs[i], "running", 600))
    conditions = statistics.analyse(planned, found, norms, lambda *_: None)
    data = pages._Data(planned, found, norms, conditions)
    assert [row[1] for row in pages._comparison(data).rows] == ["2 of 4", "4 of 4"]
    assert "6 of them done" in pages._page(data).lead
    [said] = [text for text in pages._warnings(data) if text.startswith("Done, but")]
    assert said.endswith("lack another environment: Acrobot-v1,latest,seed=1 and Acrobot-v1,latest,seed=2.")


def seeds(condition: statistics.Condition) -> list[list[plan.PlannedRun]]:
    return [[result.planned for result in row] for row in condition.rows]


@pytest.mark.parametrize("command", ["run", "report", "clock"])
def test_every_command_has_help_with_an_example(command: str) -> None:
    shown = CliRunner().invoke(cli, ["experiment", command, "--help"])
    assert re.search(rf"Examples?:\n\s+twin-graph experiment {command}", shown.output)


def test_no_panel_of_many_cuts_off_what_another_needs() -> None:
    low, high = (
        statistics.Band([0, 1], np.array([top, top]), np.full(2, top / 2), np.full(2, top)) for top in (10.0, 100.0)
    )
    figure = figures.lines([*(figures.Line(str(i), low) for i in range(7)), figures.Line("high", high)], "x", "y")
    assert [axes.get_ylim()[1] > 100 for axes in figure.axes] == [True] * 8
    assert {axes.get_ylim()[0] for axes in figure.axes} == {0}
