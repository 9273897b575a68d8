"""What a person reads: short lines, right numbers, commands that can be pasted, and a word before every end."""

import contextlib
import io
import json
import os
import pty
import re
import select
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from commands import twin_graph
from experiment_files import FILE
from rich.console import Console
from rich.progress import TextColumn
from test_cli import TINY
from twin_graph_cli import display
from twin_graph_cli.experiment import ExperimentDisplay

from twin_graph import envs, training
from twin_graph.base.text import command, counted
from twin_graph.config.settings import Settings
from twin_graph.snapshots.run import Run, create
from twin_graph.snapshots.workers import own_status
from twin_graph.training import lines as progress_lines

SCRIPT = str(Path(sys.executable).with_name("twin-graph"))


def console_script(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """By the console script, as people do: `python -m` would find modules in the present folder by itself."""
    return subprocess.run([SCRIPT, *arguments], cwd=cwd, capture_output=True, text=True, check=False)


def test_memory_that_ran_out_is_told_in_a_line(tmp_path: Path) -> None:
    code = (
        "import numpy as np, twin_graph_cli.main as m\n"
        "m.cli.main = lambda *arguments, **options: np.zeros(1 << 50)\nm.main()"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith("Error: memory ran out (Unable to allocate 8.00 PiB ")
    assert done.stderr.endswith(
        ": end other programs, or set replay.capacity_steps, env.count or train.batch_size lower\n"
    )
    assert done.stderr.count("\n") == 1


MODULE = """
import gymnasium
from gymnasium.envs.classic_control import CartPoleEnv
from twin_graph.targets import Choice

gymnasium.register("Mine-v0", CartPoleEnv, max_episode_steps=50)


def oldest(history, random):
    return Choice(history.snapshots[:1], history.snapshots[:1], "the first")


def named(history, random, name: str):
    return Choice(history.snapshots[-1:], history.snapshots[-1:], "[b] :smile:")


def that_explodes(td_error, n_actions):
    return td_error * float("nan")
"""


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder whose name needs quotes, with a module of a person's own and a run with them."""
    folder = tmp_path_factory.mktemp("my work")
    (folder / "my_module.py").write_text(MODULE)
    (folder / "numpy.py").write_text("raise RuntimeError('a file of the same name stood in for the library')")
    options = ["--env", "my_module:Mine-v0", "--set", "target.policy=my_module:oldest", "--run-dir", "my run"]
    done = console_script("train", "cartpole", "--steps", "1200", *options, *TINY, cwd=folder)
    assert done.returncode == 0, done.stderr
    (folder / "said").write_text(done.stderr)
    return folder


def test_modules_in_the_present_folder_are_found_but_stand_in_for_none(here: Path) -> None:
    assert "environment my_module:Mine-v0" in (here / "said").read_text()


def test_a_run_of_an_own_environment_is_called_after_it(here: Path) -> None:
    done = twin_graph("train", "cartpole", "--env", "my_module:Mine-v0", "--steps=400", *TINY, cwd=here)
    assert (done.returncode, Run(here / "checkpoints" / "mine-seed1-1").state()) == (0, "finished"), done.stderr


def test_they_stand_in_for_none_in_other_processes_either(here: Path) -> None:
    (here / "plan.toml").write_text(
        'name = "mine"\npreset = "cartpole"\nsteps = 2000\nseeds = [1]\n'
        '[settings]\nenv.id = "my_module:Mine-v0"\n[factors]\ntarget.policy = ["my_module:oldest"]\n'
    )
    planned = console_script("experiment", "run", "plan.toml", "--dry-run", cwd=here)
    assert planned.returncode == 0, planned.stderr
    options = ["--env=my_module:Mine-v0", "--workers=1", "--steps=1200", "--run-dir=by a worker"]
    trained = console_script("train", "cartpole", *options, *TINY, cwd=here)
    assert trained.returncode == 0, trained.stderr


def test_an_encoding_without_a_letter_is_no_error(here: Path, tmp_path: Path) -> None:
    shown = subprocess.run(
        [SCRIPT, "presets", "cartpole"], cwd=here, capture_output=True, env={**os.environ, "PYTHONIOENCODING": "ascii"}
    )
    assert (shown.returncode, shown.stderr) == (0, b"")
    assert b"\\u2265" in shown.stdout
    shutil.copytree(here / "my run", tmp_path / "ö")
    told = subprocess.run(
        [SCRIPT, "status", "ö", "--json"],
        cwd=tmp_path,
        capture_output=True,
        env={**os.environ, "PYTHONIOENCODING": "koi8-r"},
    )
    assert json.loads(told.stdout)["run"] == "ö"


def test_an_interruption_while_modules_are_imported_is_one_line(here: Path) -> None:
    code = """
import sys
import twin_graph_cli

class Interrupted:
    def find_spec(self, name, path=None, target=None):
        if name == "twin_graph_cli.main":
            raise KeyboardInterrupt

sys.meta_path.insert(0, Interrupted())
twin_graph_cli.run()
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=here.parent, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (130, "interrupted\n")


def on_a_terminal(*arguments: str, cwd: Path, until: str) -> Iterator[tuple[str, bool]]:
    """What a command has written to its terminal so far, and whether it has TensorFlow, up to a certain text."""
    command, terminal = pty.fork()
    if command == 0:
        os.chdir(cwd)
        os.environ.update(TERM="xterm", COLUMNS="120")
        os.execv(SCRIPT, [SCRIPT, *arguments])
    written, deadline = b"", time.monotonic() + 120
    try:
        while until not in written.decode(errors="replace"):
            assert time.monotonic() < deadline, written
            if select.select([terminal], [], [], 1.0)[0]:
                written += os.read(terminal, 65536)
                yield written.decode(errors="replace"), "libtensorflow" in Path(f"/proc/{command}/maps").read_text()
    finally:
        os.kill(command, signal.SIGKILL)
        os.waitpid(command, 0)
        os.close(terminal)


@pytest.mark.parametrize(
    ("command", "until"),
    [
        ("train cartpole --run-dir=measured --set=twin.threads=0 --set=twin.compiled=false", "precision (2 of"),
        ("doctor", "looking at the machine"),
        ("compare 'my run' 'my run'", "comparing snapshots"),
        ("experiment run tiny.toml --dry-run", "measuring the speed of training: "),
    ],
)
def test_on_a_terminal_a_command_says_at_once_what_it_is_doing(here: Path, command: str, until: str) -> None:
    (here / "tiny.toml").write_text(FILE)
    for _ in range(3):  # on a busy machine this process may be late to look
        seen = list(on_a_terminal(*shlex.split(command), cwd=here, until=until))
        first, has_tensorflow = seen[0]
        if not has_tensorflow:
            break
    assert re.match(r"starting|loading", first)
    assert not has_tensorflow
    last, _ = seen[-1]
    assert "loading TensorFlow" in last
    assert "\n" not in last.rstrip()
    assert not (here / "measured").exists()


def test_a_terminal_that_cannot_redraw_gets_lines(
    cartpole: Callable[..., Settings], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", "dumb")
    monkeypatch.setattr(progress_lines, "LINE_SECONDS", 0.0)
    said = io.StringIO()
    run = create(tmp_path / "run", cartpole(train__steps=400))
    with (
        contextlib.closing(envs.make(run.settings.env, count=run.settings.env.count)) as env,
        display.TrainingDisplay(Console(file=said, width=80, force_terminal=True)) as shown,
    ):
        for progress in training.train(run, env):
            shown.show(progress)
            lines = said.getvalue()
            assert "of 400 agent steps" in lines, lines


def test_a_panel_cuts_no_name_where_a_line_has_80_letters(
    cartpole: Callable[..., Settings], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(display, "_PANEL_SECONDS", 0.0)
    monkeypatch.setenv("TERM", "xterm")
    said = io.StringIO()
    run = create(tmp_path / "run", cartpole(target__policy="ensemble(2, mean)"))
    with (
        contextlib.closing(envs.make(run.settings.env, count=run.settings.env.count)) as env,
        display.TrainingDisplay(Console(file=said, width=80, force_terminal=True)) as shown,
    ):
        for progress in training.train(run, env):
            said.truncate(0)
            shown.show(progress)
            assert not progress.target or progress.target[0] in said.getvalue()
        progress.live.tally.updates = 12_345_678
        progress.workers = [(own_status(0, 1, "training"), 2)]
        time.sleep(0.01)
        said.truncate(0)
        shown.show(progress)
    assert progress.evaluation
    panel = said.getvalue()
    assert "12,345,678" in panel
    assert re.search(r"worker-0 +0 agent steps, 0/s", panel)
    assert progress.evaluation[0] in panel
    assert re.search(r"target +\S+ and 1 more, serving for [\d,]+ updates", panel)
    assert "agent steps/s" in panel


@pytest.mark.parametrize(
    "options", [["--env", "no_module:Mine-v0"], ["--set", "target.policy=no_module:mine"]], ids=["env", "policy"]
)
def test_where_modules_are_looked_for_is_said(here: Path, options: list[str]) -> None:
    done = twin_graph("train", "cartpole", *options, cwd=here)
    assert done.returncode == 2
    assert f"No module named 'no_module'; modules are looked for in {here} and among" in done.stderr


def test_commands_that_are_proposed_can_be_pasted(here: Path) -> None:
    [line] = re.findall(r"next: (twin-graph log .*?)    twin-graph", (here / "said").read_text())
    assert shlex.split(line) == ["twin-graph", "log", "my run"]
    done = in_a_shell(line, here)
    assert done.returncode == 0, done.stderr


def in_a_shell(line: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    path = {**os.environ, "PATH": f"{Path(SCRIPT).parent}:{os.environ['PATH']}"}
    return subprocess.run(["bash", "-c", line], cwd=cwd, env=path, capture_output=True, text=True, check=False)


def test_names_are_printed_as_they_are_and_never_as_markup(here: Path) -> None:
    policy, folder = "my_module:named([/x])", here / "[red] folder"
    options = ["--set", f'target.policy="{policy}"', "--run-dir", "named"]
    done = twin_graph("train", "cartpole", "--steps=600", *options, *TINY, cwd=here)
    assert done.returncode == 0, done.stderr
    assert f"(policy {policy}, " in twin_graph("status", "named", cwd=here).stdout
    assert f"policy             {policy}" in twin_graph("explain", "named", "--update=60", cwd=here).stdout
    assert "[b] :smile:" in twin_graph("explain", "named", "--update=60", cwd=here).stdout
    folder.mkdir()
    done = twin_graph("runs", folder.name, cwd=here)
    assert (done.returncode, done.stdout.split("/ yet")[0]) == (0, "no runs in [red] folder")


def test_bars_print_names_as_they_are_too() -> None:
    no_runs: Any = SimpleNamespace(plan=SimpleNamespace(runs=[]))
    for bars in (display.Meter()._bar, ExperimentDisplay(no_runs)._bars):
        bars.add_task("[b] name")
        [column] = [c for c in bars.columns if isinstance(c, TextColumn) and "description" in c.text_format]
        assert str(column.render(bars.tasks[-1])) == "[b] name"


def test_the_scores_of_both_learners_are_told(here: Path) -> None:
    options = ["--set=mode=mutual", "--run-dir=mutual", "--json"]
    done = twin_graph("train", "cartpole", "--steps=1200", *options, *TINY, cwd=here)
    assert done.returncode == 0, done.stderr
    scores = json.loads(done.stdout)["evaluations"]
    run = Run(here / "mutual")
    assert [run.store().find(score["snapshot"]).learner for score in scores] == ["a", "b"]
    for score in scores:
        assert f"score of {score['snapshot']}: {score['mean']:.2f} (" in done.stderr


def test_what_both_learners_made_is_told_of_each(here: Path) -> None:
    done = twin_graph("train", "cartpole", "--steps=800", "--set=mode=mutual", "--run-dir=both", *TINY, cwd=here)
    store = Run(here / "both").store()
    a, b = (next(snapshot.id for snapshot in reversed(store.snapshots) if snapshot.learner == name) for name in "ab")
    assert f"newest snapshot of a: {a}\nnewest snapshot of b: {b}\n" in done.stderr
    assert re.search(r"^weights_sha256 of both learners together: [0-9a-f]{64}$", done.stderr, re.MULTILINE)
    heading, *lines = twin_graph("log", "both", cwd=here).stdout.splitlines()
    assert heading.split()[:2] == ["learner", "snapshot"]
    assert [tuple(line.split()[:2]) for line in lines] == [(s.learner, s.id) for s in reversed(store.snapshots)]
    assert "  (of that resume point, both learners together)" in twin_graph("status", "both", cwd=here).stdout
    assert twin_graph("log", "my run", cwd=here).stdout.startswith("snapshot ")


def test_who_diverged_is_not_told_to_do_the_same_again(here: Path) -> None:
    options = ["--set=loss=my_module:that_explodes", "--set=train.learning_rate=0.004", "--run-dir=diverged"]
    done = twin_graph("train", "cartpole", "--steps=1200", *options, *TINY, cwd=here)
    assert done.returncode == 5
    assert "Look at rewards, observations and the loss" in done.stderr  # no learning rate has had an effect yet
    [line] = re.findall(r"continue from resume point \d+, at \d+ agent steps, with: (.*)", done.stderr)
    assert line == "twin-graph resume diverged --set train.learning_rate=0.002"


def test_whoever_reads_may_stop_reading(here: Path) -> None:
    for reading in ("log 'my run' | head -1", "status 'my run' | true", "runs . | true"):
        done = in_a_shell(f"twin-graph {reading}; echo ${{PIPESTATUS[0]}}", here)
        assert done.stdout.splitlines()[-1] == "0", reading
        assert done.stderr == ""


def lines_while_training(run: Run, *, verbose: bool = False) -> list[str]:
    said = io.StringIO()
    with (
        contextlib.closing(envs.make(run.settings.env, count=8)) as env,
        display.TrainingDisplay(Console(file=said, width=1000), verbose=verbose) as shown,
    ):
        for progress in training.train(run, env):
            shown.show(progress)
    return said.getvalue().splitlines()


def test_lines_of_a_run_that_was_trained_in_parts_are_shown_while_it_is_reproduced(here: Path) -> None:
    train = "train", "cartpole", "--steps=1200", "--run-dir=parts", "--set=evaluate.every_steps=300"
    for part in (train, ("resume", "parts", "--steps=1500")):
        assert twin_graph(*part, cwd=here).returncode == 0
    done = twin_graph("reproduce", "parts", "--from=start", cwd=here)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("score of") == 5


def test_rate_and_time_left_are_not_those_of_filling_the_replay(
    cartpole: Callable[..., Settings], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 0.0
    monkeypatch.setattr(progress_lines, "time", SimpleNamespace(monotonic=lambda: now))
    monkeypatch.setattr(progress_lines, "LINE_SECONDS", 0.0)
    said = io.StringIO()
    run = create(tmp_path / "run", cartpole(train__start_steps=400, log__every_steps=600, evaluate__every_steps=1200))
    with (
        contextlib.closing(envs.make(run.settings.env, count=8)) as env,
        display.TrainingDisplay(Console(file=said, width=1000)) as shown,
    ):
        for progress in training.train(run, env):
            now += 1.0 if progress.updates else 2**-10  # 8 agent steps a second, and 8,192
            shown.show(progress)
    rated = [line for line in said.getvalue().splitlines() if "/s" in line]
    assert len(rated) > 50
    for line in rated:
        assert " 8/s" in line, line
        left = (1200 - int(line.split(" of ")[0].replace(",", ""))) / 8
        assert left == 0 or f"  {display.clock(left)} left" in line, line


@pytest.mark.parametrize(("verbose", "most"), [(False, 120), (True, 600)])
def test_lines_of_progress_are_short_and_tell_the_rest_if_asked(
    cartpole: Callable[..., Settings], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, verbose: bool, most: int
) -> None:
    monkeypatch.setattr(progress_lines, "LINE_SECONDS", 0.0)
    monkeypatch.setattr(progress_lines, "_MEASURED_SECONDS", 0.0)  # a fast machine is done before there are two
    monkeypatch.setattr(display, "_PANEL_SECONDS", 0.0)
    lines = lines_while_training(create(tmp_path / "run", cartpole()), verbose=verbose)
    assert max(map(len, lines)) <= most
    assert not [line for line in lines if "nan" in line]
    *_, last = (
        line for line in lines if "agent steps  return" in line and "  score" in line and " 1,200 of" not in line
    )
    for part in ("of 1,200 agent steps", "return ", "score ", "/s", " left", "target 00"):
        assert part in last
    assert ("loss" in last and "train " in last) == verbose


def test_a_run_without_a_target_shows_none(
    cartpole: Callable[..., Settings], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress_lines, "LINE_SECONDS", 0.0)
    run = create(tmp_path / "run", cartpole(train__target_q=False, train__steps=400))
    said = "\n".join(lines_while_training(run))
    assert "400 of 400 agent steps" in said
    assert "target" not in said
    told = twin_graph("status", str(run.folder), cwd=tmp_path)
    assert (told.returncode, "target" in told.stdout) == (0, False)


def test_without_a_terminal_lines_now_and_then_say_how_far_a_command_is(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now = 0.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    with display.Meter() as meter:
        for done in range(41):
            meter.show("games of 000012", done, 40)
            now += 1.0
    lines = capsys.readouterr().err.splitlines()
    assert lines == [f"games of 000012: {done} of 40, 0:00:{left} left" for done, left in ((15, 25), (30, 10))]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGUSR1])
def test_a_signal_before_the_run_began_is_answered_with_a_line(here: Path, number: signal.Signals) -> None:
    starting = [SCRIPT, "train", "pong", "--run-dir=never"]
    trainer = subprocess.Popen(starting, cwd=here, stderr=subprocess.PIPE, text=True)
    maps, deadline = Path(f"/proc/{trainer.pid}/maps"), time.monotonic() + 60
    try:
        while "libtensorflow" not in maps.read_text():  # it is being imported
            assert time.monotonic() < deadline
            time.sleep(0.05)
        trainer.send_signal(number)
        _, stderr = trainer.communicate(timeout=60)
    finally:
        trainer.kill()
    assert trainer.returncode == 130
    assert "interrupted before the run started; nothing was written" in stderr
    assert not (here / "never").exists()


def test_a_signal_that_a_module_swallows_while_it_is_imported_ends_the_start_all_the_same(here: Path) -> None:
    swallowing = "import os, signal\ntry:\n    os.kill(os.getpid(), signal.SIGINT)\nexcept BaseException:\n    pass\n"
    (here / "swallows.py").write_text(swallowing + MODULE.replace("Mine-v0", "Swallowed-v0"))
    ended = twin_graph("train", "cartpole", "--env", "swallows:Swallowed-v0", "--run-dir=swallowed", cwd=here)
    assert (ended.returncode, ended.stderr) == (130, "interrupted before the run started; nothing was written\n")
    assert not (here / "swallowed").exists()


def test_a_run_that_would_make_no_update_is_refused(here: Path) -> None:
    refused = twin_graph("train", "cartpole", "--steps=900", "--run-dir=none", cwd=here)
    assert refused.returncode == 2
    assert refused.stderr == (
        "Error: this run would never learn: the first update is due after 1,002 agent steps and train.steps=900; "
        "raise train.steps (--steps), or lower train.start_steps=1,000\n"
    )
    linear = "train.learning_rate_schedule=linear", "train.learning_rate_updates=100"
    refused = twin_graph(
        "train", "cartpole", "--steps=1400", *(f"--set={s}" for s in linear), "--run-dir=none", cwd=here
    )
    assert refused.returncode == 2
    assert refused.stderr == (
        "Error: this run would learn nothing after 100 of 200 updates, when the learning rate is at 0: "
        "set train.learning_rate_updates=200, or train.learning_rate_end\n"
    )
    assert not (here / "none").exists()


def test_an_end_that_is_no_closed_pipe_keeps_its_exit_code(here: Path) -> None:
    (here / "leaves.py").write_text("def network(*_):\n    raise SystemExit(3)\n")
    assert twin_graph("train", "cartpole", "--set", "network=leaves:network", cwd=here).returncode == 3


def test_status_says_of_which_moment_its_hash_is(here: Path) -> None:
    shown = twin_graph("status", "my run", cwd=here).stdout
    assert re.search(r"resume point +\d+, at 1,200 agent steps *\n", shown)
    assert re.search(r"weights_sha256 +[0-9a-f]{64}  \(of that resume point\)\n", shown)


def test_a_rate_after_resuming_is_of_this_process_alone(here: Path) -> None:
    done = twin_graph("resume", "my run", "--steps", "1400", cwd=here)
    assert done.returncode == 0, done.stderr
    newest = [json.loads(line) for line in (here / "my run" / "metrics.jsonl").read_text().splitlines()]
    logged = [line for line in newest if line["attempt"] == 2 and "seconds" in line]
    assert logged[0]["agent_steps_per_second"] * logged[0]["seconds"] == pytest.approx(200)


def test_one_is_not_many() -> None:
    assert (counted(1, "snapshot"), counted(0, "swap"), counted(2500, "update")) == (
        "1 snapshot",
        "0 swaps",
        "2,500 updates",
    )
    assert command("resume", Path("my run"), "--steps", 3) == "twin-graph resume 'my run' --steps 3"
