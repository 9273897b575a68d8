"""A run in a notebook: data frames, policies, callbacks, and the example itself."""

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import nbformat
import numpy as np
import pytest
from commands import python
from commands import twin_graph as command
from nbclient import NotebookClient

import twin_graph
from twin_graph import config, envs, notebook
from twin_graph.base import machine
from twin_graph.errors import DamagedError, ForeignError, TwinGraphError, UsageError
from twin_graph.evaluation.games import Evaluation
from twin_graph.records import report
from twin_graph.snapshots.ledger import Restore
from twin_graph.snapshots.lines import record_evaluation
from twin_graph.snapshots.run import Run
from twin_graph.training import lines, readiness, tuning
from twin_graph.training import trainer as training
from twin_graph.training.progress import Progress
from twin_graph.view.records import Records

EXAMPLE = Path(__file__).parents[2] / "examples" / "notebook.ipynb"

Cartpole = Callable[..., config.Settings]


@pytest.fixture
def run(trained: Callable[[config.Settings], Run], cartpole: Cartpole) -> notebook.NotebookRun:
    return twin_graph.find(str(trained(cartpole(target__policy="ensemble(2, mean)")).folder))


def test_records_are_data_frames(run: notebook.NotebookRun) -> None:
    lines = list(run.evaluation_lines())
    scores = run.evaluations()
    assert list(scores["mean"]) == [line["mean"] for line in lines]
    assert list(zip(scores.low, scores.high, strict=True)) == [tuple(line["interval_95"]) for line in lines]
    assert list(scores.games) == [2, 2]
    metrics = run.metrics()
    assert list(metrics.agent_steps) == [line["agent_steps"] for line in run.metric_lines()]
    assert metrics.loss.dropna().between(0, 100).all()
    assert list(run.snapshots().id) == [entry.id for entry in report.log(run)][::-1]
    targets = run.targets()
    for update in (1, 50, 51, 60, 100, 101, 250):
        told = report.explain(run, update)
        then = targets[
            (targets.first_update <= update) & ((targets.last_update >= update) | targets.last_update.isna())
        ]
        assert list(then.snapshot) == [snapshot.id for snapshot in told.snapshots]
        assert set(then.reason) == {told.reason}
    assert targets.first_update.is_monotonic_increasing


def test_a_run_without_records_has_empty_frames_with_columns(cartpole: Cartpole, tmp_path: Path) -> None:
    run = twin_graph.create(tmp_path / "new", cartpole())
    for frame in (run.metrics(), run.evaluations(), run.targets(), run.snapshots()):
        assert frame.empty
        assert "agent_steps" in frame or "first_update" in frame


def test_a_policy_acts_as_the_snapshot_that_is_scored(run: notebook.NotebookRun) -> None:
    settings = run.settings
    played = run.play("latest", episodes=1, seed=4)
    assert played == run.play("latest", episodes=1, seed=4)
    env = gymnasium.make("CartPole-v1")
    with run.policy() as policy:
        observation, _ = env.reset(seed=played.seeds[0])
        score, over = 0.0, False
        while not over:
            action, state = policy.predict(observation)
            assert state is None
            observation, reward, terminated, truncated, _ = env.step(action)
            score, over = score + float(reward), terminated or truncated
        assert [score] == played.returns
        batch = np.stack([observation, -observation, 0 * observation])
        q = policy.q_values(batch)
        np.testing.assert_allclose(policy.q_values(observation), q[0], rtol=1e-5)
        np.testing.assert_allclose(run.q_values("latest", batch), q, rtol=1e-6)
        assert list(policy.predict(batch)[0]) == list(q.argmax(axis=1))
        many = np.zeros((20_000, 4), np.float32)
        taken = np.asarray(policy.predict(many, deterministic=False)[0])
        explored = (taken != policy.predict(many)[0]).mean()
        assert explored == pytest.approx(settings.act.epsilon_end / 2, rel=0.3)
        with pytest.raises(UsageError, match=r"has shape \[4\], or \[B, ...\] for B of them; this has \[5\]"):
            policy.predict(np.zeros(5))
    with pytest.raises(UsageError, match="no snapshot"):
        run.policy("nonsense")


def test_q_values_are_those_of_the_snapshot_that_is_asked_for(run: notebook.NotebookRun) -> None:
    observations = np.random.default_rng(0).normal(size=(5, 4)).astype(np.float32)
    names = [*run.snapshots().id.iloc[[0, -1, 0]]]
    first, last, again = (run.q_values(name, observations) for name in names)
    assert (first == again).all()
    assert (first != last).any()
    policy = run.policy(names[0])  # another's weights stay as they are
    run.q_values(names[1], observations)
    np.testing.assert_array_equal(policy.q_values(observations), first)


def test_a_snapshots_number_may_be_a_number(run: notebook.NotebookRun) -> None:
    observations = np.eye(4, dtype=np.float32)
    expected = run.q_values("2", observations)
    np.testing.assert_array_equal(run.q_values(2, observations), expected)
    assert run.resolve(2) == run.resolve("2")
    with run.policy(2) as policy:
        np.testing.assert_array_equal(policy.q_values(observations), expected)
    assert run.play(2, episodes=1) == run.play("2", episodes=1)
    with pytest.raises(UsageError, match="no snapshot"):
        run.policy(-1)


def test_a_policy_outlives_a_reference_to_nothing_that_is_there(run: notebook.NotebookRun) -> None:
    observations = np.zeros((1, 4), np.float32)
    first, *_, last = run.store().snapshots
    q = run.q_values(first.id, observations)
    run.store().prefix(last.id).with_suffix(".index").unlink()
    with pytest.raises(DamagedError):
        run.q_values(last.id, observations)
    np.testing.assert_array_equal(run.q_values(first.id, observations), q)


def test_images_are_bytes_and_emulator_numbers_are_told(
    train: Callable[[config.Settings], Run], pong: Cartpole
) -> None:
    run = notebook.find(train(pong(env__actions=[0, 2, 3])).folder)
    screens = np.random.default_rng(0).integers(0, 256, size=(8, 4, 84, 84), dtype=np.uint8)
    with run.policy() as policy:
        numbers = np.array([0, 2, 3])[policy.q_values(screens).argmax(axis=1)]
        assert list(policy.predict(screens)[0]) == list(numbers)
        with pytest.raises(UsageError, match="images are bytes"):
            policy.predict(screens / 255)


def test_scores_of_one_game_have_no_interval(cartpole: Cartpole, tmp_path: Path) -> None:
    run = notebook.create(tmp_path / "run", cartpole(train__steps=400, evaluate__episodes=1)).train()
    scores = run.evaluations()
    assert list(scores.games) == [1]
    assert scores[["low", "high"]].isna().all(axis=None)


def test_curves_have_the_newest_snapshots_scores_and_go_forward(cartpole: Cartpole, tmp_path: Path) -> None:
    """Its best snapshots play again and again, at steps that were long ago, and people play by hand."""
    settings = cartpole(target__policy="best", evaluate__every_steps=200, evaluate__episodes=10)
    run = notebook.create(tmp_path / "run", settings).train()
    best, games = run.store().snapshots[1], (10.0, 30.0, 50.0)
    for returns in (games[:2], games[2:]):
        record_evaluation(run, best, {"mean": 0.0, "returns": list(returns), "protocol": {}, "interval_95": [0.0, 0.0]})
    newest = [line for line in run.evaluation_lines() if line["snapshot"] == line["challenger"]]
    assert len(newest) < len([line for line in run.evaluation_lines() if line["scheduled"]])
    scheduled, by_hand = sorted(Records(run).curves()["scores"], key=lambda scores: not scores["scheduled"])
    assert scheduled["agent_steps"] == [0, 400, 600, 800, 1_000, 1_200]  # the first one played what was there
    assert scheduled["mean"] == [line["mean"] for line in newest]
    assert (by_hand["agent_steps"], by_hand["mean"]) == ([best.counters.agent_steps], [30.0])
    [points] = re.findall('polyline points="([^"]*)"', run._repr_html_())
    across = [float(point.partition(",")[0]) for point in points.split()]
    assert across == sorted(set(across))
    assert len(across) == 6


def test_every_text_of_the_table_is_escaped(run: notebook.NotebookRun, tmp_path: Path) -> None:
    named = run.folder.rename(tmp_path / "<script>&")
    found = notebook.find(named)
    ledger = found.ledger.events()[-1].model_copy(update={"reason": "<b>bold</b>", "state": "failed"})
    found.ledger.append(ledger)
    page = found._repr_html_()
    assert "<script>" not in page
    assert "<b>bold" not in page
    assert "&lt;script&gt;&amp;" in page
    assert "failed: &lt;b&gt;bold&lt;/b&gt;" in page
    assert "<svg" in page


def test_a_callback_ends_the_run_and_is_its_recorded_reason(cartpole: Cartpole, tmp_path: Path) -> None:
    scores: list[float] = []
    evaluated: list[tuple[str, float]] = []

    def on_evaluation(evaluation: Evaluation, progress: Progress) -> bool:
        assert progress.evaluation is not None
        evaluated.append((progress.evaluation[0], evaluation.mean))
        return len(evaluated) < 2

    settings = cartpole(evaluate__every_steps=300, train__chunk_steps=16)
    run = twin_graph.create(tmp_path / "ended", settings)
    run.train(on_episode=lambda score, _: scores.append(score), on_evaluation=on_evaluation)
    lines = [(line["snapshot"], line["mean"]) for line in run.evaluation_lines()]
    assert evaluated == lines
    assert len(lines) == 2
    state, reason = run.outcome()
    assert (state, reason) == (
        "finished",
        f"on_evaluation returned False after {lines[1][0]} had a mean of {lines[1][1]:.2f}",
    )
    steps = report.status(run).agent_steps
    assert 600 <= steps < 600 + 32
    assert len(scores) == report.status(run).episodes > 5
    told = command("status", str(run.folder), cwd=tmp_path)
    assert "on_evaluation returned False" in told.stdout
    run.train(steps=900)
    assert run.outcome()[0] == "finished"
    assert report.status(run).agent_steps >= 900


def test_what_is_left_open_is_measured_and_fixed_as_train_does(
    cartpole: Cartpole, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tuning, "_ROUND_SECONDS", 0.05)
    for_workers = twin_graph.create(tmp_path / "workers", cartpole(workers__count=2))
    with pytest.raises(
        UsageError, match="for workers, which no notebook starts: train a new run with `twin-graph train"
    ):
        for_workers.train()
    run = twin_graph.create(tmp_path / "new", cartpole(twin__precision="auto"))
    run.train()
    fixed = Run(run.folder).settings.twin.precision
    assert fixed in (("fp32", "bf16") if machine.has_bf16() else ("fp32",))
    assert Run(run.folder).settings_of(1).twin.precision == fixed
    assert run.train(steps=1_240).settings.twin.precision == fixed


def test_each_of_two_learners_evaluations_is_told(cartpole: Cartpole, tmp_path: Path) -> None:
    run = twin_graph.create(tmp_path / "two", cartpole(mode="mutual", train__steps=700))
    told: list[float] = []
    run.train(on_evaluation=lambda evaluation, _: told.append(evaluation.mean))
    assert told == [line["mean"] for line in run.evaluation_lines()]
    assert len(told) == 4


def test_on_episode_ends_the_run_too(cartpole: Cartpole, tmp_path: Path) -> None:
    run = twin_graph.create(tmp_path / "ended", cartpole())
    scores: list[float] = []

    def third(score: float, progress: Progress) -> Any:
        assert progress.returns[-1] == score or score in progress.returns
        scores.append(score)
        return np.bool_(len(scores) < 3)

    run.train(on_episode=third)
    assert run.outcome() == ("finished", f"on_episode returned False after a score of {scores[2]:g}")
    assert report.status(run).agent_steps < 300
    assert report.status(run).resume_point.number == 1


def test_a_callback_that_fails_is_named_and_the_run_can_continue(cartpole: Cartpole, tmp_path: Path) -> None:
    run = twin_graph.create(tmp_path / "failed", cartpole())

    def on_evaluation(evaluation: Evaluation, progress: Progress) -> None:
        raise KeyError("mine")

    with pytest.raises(ForeignError, match=r"at agent step 60\d: on_evaluation: KeyError: 'mine' \(.*test_notebook.py"):
        run.train(on_evaluation=on_evaluation)
    assert run.outcome()[0] == "failed"
    run.train()
    assert run.outcome() == ("finished", "")


def test_callbacks_change_no_weights(
    cartpole: Cartpole, trained: Callable[[config.Settings], Run], tmp_path: Path
) -> None:
    run = twin_graph.create(tmp_path / "watched", cartpole())
    env = envs.make(run.settings.env, count=run.settings.env.count)
    for _ in training.train(run, env, on_episode=lambda *_: None, on_evaluation=lambda *_: None):
        pass
    env.close()
    assert report.status(run).weights_sha256 == report.status(trained(cartpole())).weights_sha256


def test_in_a_script_lines_say_how_it_trains(
    cartpole: Cartpole, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What the command line prints where there is no terminal, with a first line at once."""
    monkeypatch.setattr(lines, "LINE_SECONDS", 0.1)
    run = twin_graph.create(tmp_path / "run", cartpole(evaluate__every_steps=400))
    ready, before = readiness.ready, list[str]()

    def seen(*arguments: Any, **options: Any) -> Any:
        before.append(capsys.readouterr().err)
        return ready(*arguments, **options)

    monkeypatch.setattr(readiness, "ready", seen)
    run.train(steps=800)
    out, err = capsys.readouterr()
    assert (before, out) == ([f"{run.folder}: training from the beginning\n"], "")
    *shown, last = err.splitlines()
    assert any(re.match(r" +\d[\d,]* of 800 agent steps  return", line) for line in shown), err
    assert sum("agent steps: score of " in line for line in shown) == 2
    assert last == f"{run.folder}: finished at 800 agent steps, newest snapshot {run.store().newest.id}"

    run.train(steps=1_200, on_evaluation=lambda *_: False)
    assert before[1] == f"{run.folder}: training from 800 agent steps on\n"
    capsys.readouterr()
    run.train(steps=1_600, quiet=True)
    assert capsys.readouterr() == ("", "")
    assert before[2] == ""


def test_opening_a_run_imports_neither_tensorflow_nor_pandas(run: notebook.NotebookRun) -> None:
    lines = (
        "import sys, twin_graph",
        f"run = twin_graph.find({str(run.folder)!r})",
        "run._repr_html_()",
        "assert not {'tensorflow', 'pandas'} & set(sys.modules)",
    )
    subprocess.run([sys.executable, "-c", "\n".join(lines)], check=True)


def test_the_example_runs(tmp_path: Path) -> None:
    example = nbformat.read(EXAMPLE, as_version=4)  # type: ignore[no-untyped-call]
    assert not any(cell.get("outputs") for cell in example.cells)
    NotebookClient(example, timeout=120, resources={"metadata": {"path": str(tmp_path)}}).execute()
    shown = [output for cell in example.cells for output in cell.get("outputs", [])]
    assert any("<svg" in output.get("data", {}).get("text/html", "") for output in shown)
    [training] = [cell for cell in example.cells if "run.train(" in cell.source]
    tables = [(output.output_type, output.data["text/html"]) for output in training.outputs if "data" in output]
    assert tables[0] == ("display_data", "")  # while it trained
    assert tables[1][0] == "execute_result"
    assert sum("image/png" in output.get("data", {}) for output in shown) == 2


def test_slips_of_the_pen_are_answered_with_a_line(run: notebook.NotebookRun) -> None:
    with pytest.raises(UsageError, match="episodes=0: must be 1 or more"):
        run.play(episodes=0)
    with pytest.raises(UsageError, match="seed=-1: must be 0 to 2147483647"):
        run.play(seed=-1)
    assert repr(run) == f"<NotebookRun {run.folder}>"
    assert config.load("cartpole", {"train.steps": 7_000}) == config.load("cartpole", [("train.steps", 7_000)])


def test_messages_name_no_options_that_python_does_not_have(cartpole: Cartpole, tmp_path: Path) -> None:
    run = twin_graph.create(tmp_path / "run", cartpole(train__steps=200, train__start_steps=200))
    with pytest.raises(UsageError, match=r"run exists already; choose another folder$"):
        twin_graph.create(tmp_path / "run", cartpole())
    with pytest.raises(UsageError, match=r"; raise train\.steps \(--steps\), or lower train\.start_steps=200$"):
        run.train()


def test_settings_are_those_that_load_returns(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"^settings='cartpole': give twin_graph.load\(preset\), or "):
        notebook.create(tmp_path / "run", "cartpole")  # type: ignore[arg-type]
    assert not (tmp_path / "run").exists()


def test_a_run_that_the_machine_cannot_hold_is_refused_before_it_begins(cartpole: Cartpole, tmp_path: Path) -> None:
    run = notebook.create(tmp_path / "run", cartpole(replay__capacity_steps=10**12, train__steps=10**12))
    with pytest.raises(TwinGraphError, match="not enough memory"):
        run.train(steps=2 * 10**12)
    assert run.settings.train.steps == 10**12
    assert not run.ledger.attempt


def test_a_run_that_would_never_learn_is_refused_before_it_begins(cartpole: Cartpole, tmp_path: Path) -> None:
    made = notebook.create(tmp_path / "run", cartpole(train__steps=200, train__start_steps=200))
    with pytest.raises(UsageError, match=r"^this run would never learn: the first update is due after 204 agent steps"):
        made.train()
    assert not made.ledger.path.exists()


def test_what_was_trained_elsewhere_since_is_gone_on_with(cartpole: Cartpole, tmp_path: Path) -> None:
    run = notebook.create(tmp_path / "run", cartpole(train__steps=300)).train()
    elsewhere = twin_graph.find(run.folder)
    elsewhere.change_settings(config.change(elsewhere.settings, [("train.steps", 400), ("train.n_step", 2)]))
    assert "304 of 400</td>" in run._repr_html_()
    elsewhere.train()
    run.train(steps=500)
    now = twin_graph.find(run.folder)
    assert [now.settings_of(attempt).train.n_step for attempt in (1, 2, 3)] == [3, 2, 2]
    assert now.settings.train.steps == 500


def test_to_train_a_run_again_that_reached_its_score_changes_nothing(cartpole: Cartpole, tmp_path: Path) -> None:
    run = twin_graph.create(tmp_path / "run", cartpole(train__until_score=1.0)).train()
    assert run.outcome()[1].startswith("reached train.until_score")
    before = run.ledger.path.read_bytes()
    assert twin_graph.find(run.folder).train().ledger.path.read_bytes() == before


def test_where_the_newest_point_is_damaged_it_is_said(
    cartpole: Cartpole, trained: Callable[[config.Settings], Run]
) -> None:
    run = twin_graph.find(trained(cartpole(resume__every_steps=200)).folder)
    newest = run.points().newest()
    assert newest is not None
    next(run.points().path(newest.number).glob("*.index")).unlink()
    with pytest.warns(UserWarning, match="^skipped: "):
        run.train()


def test_a_target_that_was_replaced_before_it_served_has_no_row(
    cartpole: Cartpole, trained: Callable[[config.Settings], Run]
) -> None:
    run = twin_graph.find(trained(cartpole()).folder)
    before = run.targets()
    last = run.ledger.events(Restore)[-1]
    run.ledger.append(last.model_copy(update={"reason": "again"}))
    after = run.targets()
    assert len(after) == len(before)
    assert after.reason.iloc[-1] == "again"
    assert (after.last_update.dropna() >= after.first_update[after.last_update.notna()]).all()


def test_to_train_a_complete_run_again_changes_nothing(cartpole: Any, trained: Any) -> None:
    run = twin_graph.find(trained(cartpole(train__steps=300, evaluate__episodes=0)).folder)
    before = (run.folder / "ledger.jsonl").read_bytes()
    run.train()
    run.train(steps=300)  # which are 304, since 8 environments are stepped together
    with pytest.raises(
        UsageError, match=r"^100 would be the total length, .* made 304 agent steps; to train 100 more, give 404"
    ):
        run.train(steps=100)
    assert (run.folder / "ledger.jsonl").read_bytes() == before
    assert twin_graph.find(run.folder).settings.train.steps == 300


def test_a_run_stays_the_same_when_the_notebook_changes_its_folder(
    cartpole: Cartpole, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    for folder, seed in ((here, 1), (there, 2)):
        folder.mkdir()
        monkeypatch.chdir(folder)
        twin_graph.create("mine", cartpole(seed=seed))
    monkeypatch.chdir(here)
    run = twin_graph.find("mine")
    monkeypatch.chdir(there)
    run.train(steps=400)
    assert run.settings.seed == 1
    assert not Run(Path("mine")).points().folders()
    assert twin_graph.create("other", cartpole()).folder == there / "other"


#: A notebook with a model of its own, before and after it asks a run; its arguments are the run's folder and a length.
BESIDE_KERAS = """
import sys
import keras, numpy as np, tensorflow as tf, twin_graph

x = np.ones((4, 4), np.float32)

def learns(model):
    model.fit(x, x[:, :2], verbose=0)
    assert model.predict(x, verbose=0).shape == (4, 2)
    assert float(tf.reduce_sum(tf.ones([3]))) == 3
    return model

def made():
    model = keras.Sequential([keras.layers.Dense(2)])
    model.compile("sgd", "mse")
    return learns(model)

first = made()
run = twin_graph.find(sys.argv[1])
q = run.q_values("latest", x)
second = made()
run.play("latest", episodes=1)
run.train(steps=int(sys.argv[2]))
for model in (first, second, made()):
    learns(model)
np.testing.assert_array_equal(twin_graph.find(sys.argv[1]).q_values("0", x), run.q_values("0", x))
"""


@pytest.mark.parametrize("chunk_steps", [0, 16])
def test_a_model_of_the_notebooks_own_works_before_and_after(
    cartpole: Cartpole, trained: Callable[[config.Settings], Run], chunk_steps: int
) -> None:
    """Twins have graphs of their own, and the rest of the process executes as it did."""
    settings = cartpole(train__steps=400, train__chunk_steps=chunk_steps, twin__compiled=bool(chunk_steps))
    arguments = [python(), "-c", BESIDE_KERAS, str(trained(settings).folder), "600"]
    done = subprocess.run(arguments, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
