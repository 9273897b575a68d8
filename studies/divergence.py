"""Where does divergence live: in the network that learns, or in what teaches it?

    python studies/divergence.py --train FOLDER --jobs 2     # run it again to continue
    python studies/divergence.py                             # prints the analysis of studies/results/divergence
    python studies/divergence.py --plot PICTURE              # also draws the branches
    python studies/divergence.py divergence-replication      # the same of the replication; see below

`latest` refreshed every 50 updates comes to expect more than a game can give. Ten parents train like that, until well
after their residual (`expected` less `truncated`: what a snapshot expects of a game, less what the game gave over as
many steps as the snapshot's depth) was first above 20 in an evaluation. Each is forked at that moment, 2,500 agent
steps before it, and 5,000 after it. From each fork seven branches train for 10,000 agent steps, with three seeds of
noise. The past is what was the newest snapshot 5,000 agent steps before the fork. (The limit was chosen by a parent of
seed 41, which is not used: its residual stayed between 6 and 11 for 12,000 agent steps, and then grew to 100.)

  continue  as before
  nudged    as before, one weight moved by one unit in the last place: how far do equal branches part?
  frozen    the present snapshot is the target until the end
  target    the target is always the snapshot of 2,000 updates ago
  online    the network that trains is put back to the past once; its optimizer starts afresh
  both      both of these
  mean      the mean of the last four snapshots is the target: ensemble(4, mean)
  slow      the newest snapshot is the target, but refreshed at every 2,000th update; in the replication alone

Named before the runs.
  Primary outcome  The residual at the end: the mean of a branch's last four evaluations. (At first this said two.)
  Comparison       Each branch less `continue`, the mean over seeds, in pairs of parents; Holm-corrected over all
                   moments and branches but `nudged`, which is no hypothesis and shows the size of chance.
  Hypothesis 1     Divergence lives in what teaches. `target` and `frozen` end with a lower residual than `continue` at
                   each of the three moments.
  Hypothesis 2     Putting the learner back does not help: `online` ends within 2 of `continue`, at each moment.
  Hypothesis 3     `mean` ends with a lower residual than `continue`.

The replication has twenty new parents, two new seeds of noise, and fewer arms, with one that the study lacked: in
`slow`, values pass through about as few bootstrap generations as in `target`, but nothing comes from before the fork.
(Its targets are younger, 0 to 2,000 updates old, and its first refresh is up to 2,000 updates after the fork. At first
it also committed a snapshot only when it refreshed its target, so that evaluations played old ones. That was noticed
during the runs, before any result was looked at; its branches were then trained again with snapshots as in the others.)
Named before its runs, with the same primary outcome, and each comparison in pairs of parents:
  Comparison       As above, corrected over twelve: three moments, four arms less `continue`.
  Hypothesis 1     `target` ends with a lower residual than `continue` at each of the three moments.
  Hypothesis 2     So does `online` before the limit and at it; in the study that was found, and not expected.
  Secondary        `target` less `slow`, and `both` less `target`, at each moment; corrected over these six.
  Hypothesis 3     `target` ends lower than `slow` at the limit and after it: it matters that the target is from the
                   past, not only that values pass through few generations.
  Hypothesis 4     `both` is not told apart from `target`, and their 95% interval lies within 5 to either side.
  If 1 fails       (A corrected p of 0.05 or more at any moment.) Claim 5 of docs/findings.md is withdrawn, and both
                   studies stay on the page.
"""

import contextlib
import csv
import multiprocessing
import os
import shutil
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from itertools import repeat
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

import click
import numpy as np
from matplotlib.figure import Figure
from rich.progress import track
from twin_graph_cli.main import cli

from twin_graph.experiments import statistics
from twin_graph.snapshots.points import PointState
from twin_graph.snapshots.run import DESCRIPTION, Run

RESULTS = Path(__file__).parent / "results"
LIMIT = 20.0
PARENT_STEPS, BRANCH_STEPS, EVALUATION_STEPS = 40_000, 10_000, 1_250
#: The evaluations of a branch that count.
LAST = 4
#: In evaluations: how far a moment is from the first one above the limit, and the past from it.
MOMENTS = {"before": -2, "at": 0, "after": 4}
PAST = 4
SETTINGS = (
    "train.learning_rate=2e-3",
    "act.epsilon_decay_steps=10_000",
    "target.refresh_every_updates=50",
    f"evaluate.every_steps={EVALUATION_STEPS}",
    "evaluate.episodes=10",
    # All that a fork may need is kept.
    f"resume.every_steps={EVALUATION_STEPS}",
    "resume.keep=all",
    "save.keep_last=1_000",
    "twin.threads=1",
    "twin.precision=fp32",
)


class Arm(NamedTuple):
    """What is done to a branch: whether a weight is moved, its settings, and whether the learner is put back."""

    nudge: bool = False
    settings: tuple[str, ...] = ()
    back: bool = False


ARMS = {
    "continue": Arm(),
    "nudged": Arm(nudge=True),
    "frozen": Arm(settings=("target.policy=pinned({present})",)),
    "target": Arm(settings=("target.policy=lag(2000)",)),
    "online": Arm(back=True),
    "both": Arm(settings=("target.policy=lag(2000)",), back=True),
    "mean": Arm(settings=("target.policy=ensemble(4, mean)",)),
    "slow": Arm(settings=("target.refresh_every_updates=2000", "save.every_updates=50")),
}


class Study(NamedTuple):
    """Whose branches are trained: the parents' seeds, the branches' seeds of noise, and their arms.

    `secondary` are differences between arms that are tested besides those from `continue`.
    """

    parents: range
    seeds: Sequence[int]
    arms: Sequence[str]
    secondary: Sequence[tuple[str, str]] = ()


STUDIES = {
    "divergence": Study(range(51, 61), (101, 102, 103), [arm for arm in ARMS if arm != "slow"]),
    "divergence-replication": Study(
        range(81, 101),
        (111, 112),
        ["continue", "target", "slow", "online", "both"],
        [("target", "slow"), ("both", "target")],
    ),
}

#: Okabe and Ito's. `nudged` lies on `continue`.
COLOURS = {
    "continue": "#000000",
    "mean": "#e69f00",
    "online": "#cc79a7",
    "frozen": "#56b4e9",
    "slow": "#d55e00",
    "both": "#009e73",
    "target": "#0072b2",
}


class Row(NamedTuple):
    """An evaluation of a branch; `steps` are agent steps since the fork."""

    parent: int
    moment: str
    arm: str
    seed: int
    steps: int
    score: float
    expected: float
    truncated: float


class Branch(NamedTuple):
    """A fork that is to be trained; `present` and `past` are snapshots."""

    parent: Path
    point: int
    agent_steps: int
    present: str
    past: str
    moment: str
    arm: str
    seed: int


def command(*arguments: str | Path) -> None:
    """Runs `twin-graph` in this process, which says nothing."""
    with (
        Path(os.devnull).open("w") as nowhere,
        contextlib.redirect_stdout(nowhere),
        contextlib.redirect_stderr(nowhere),
    ):
        cli.main([str(argument) for argument in arguments], standalone_mode=False)


def evaluations(run: Run) -> list[dict[str, Any]]:
    """Its scheduled evaluations; `expected` less `truncated` is the residual."""
    lines = [line for line in run.evaluation_lines() if line["scheduled"]]
    return [line | {"expected": fmean(line["q_start"]), "came": fmean(line["truncated"])} for line in lines]


def train_parent(folder: Path, seed: int) -> Path:
    """The folder of this seed's parent, which is trained to its end."""
    place = folder / f"parent-{seed}"
    if not (place / DESCRIPTION).exists():
        options = [part for assignment in SETTINGS for part in ("--set", assignment)]
        command("train", "cartpole", "--seed", str(seed), "--steps", str(PARENT_STEPS), "--run-dir", place, *options)
    elif Run(place).state() != "finished":
        command("resume", place)
    return place


def branches(folder: Path, study: Study) -> list[Branch]:
    """A study's branches of a parent; none if it did not diverge, or too early or too late for its three moments."""
    parent = Run(folder)
    lines = evaluations(parent)
    first = next((i for i, line in enumerate(lines) if line["expected"] - line["came"] > LIMIT), len(lines))
    if first + MOMENTS["before"] < PAST or first + MOMENTS["after"] >= len(lines):
        click.echo(f"{parent.name} is left out: its evaluation {first + 1} of {len(lines)} is the first above {LIMIT}")
        return []
    points = [PointState.read(folder) for folder in parent.points().folders()]
    made_at = {point.counters.agent_steps: point.number for point in points}
    found = []
    for moment, later in MOMENTS.items():
        line, past = lines[first + later], lines[first + later - PAST]
        steps = line["played_at"]["agent_steps"]
        at = made_at[steps], steps, line["snapshot"], past["snapshot"]
        found += [Branch(folder, *at, moment, arm, seed) for arm in study.arms for seed in study.seeds]
    return found


def train_branch(branch: Branch) -> list[Row]:
    """Forks and trains a branch as far as that is not done yet; returns its evaluations."""
    arm, seed = ARMS[branch.arm], Run(branch.parent).settings.seed
    folder = branch.parent.with_name(f"{seed}-{branch.moment}-{branch.arm}-{branch.seed}")
    end = branch.agent_steps + BRANCH_STEPS
    if not (folder / DESCRIPTION).exists():
        options = ["--nudge"] if arm.nudge else []
        for setting in arm.settings:
            options += ["--set", setting.format(present=branch.present)]
        at = ("--at", str(branch.point), "--seed", str(branch.seed))
        # It gets its name when it is whole: one that was killed before its swap would train without it.
        begun = folder.with_suffix(".begun")
        shutil.rmtree(begun, ignore_errors=True)
        command("fork", branch.parent, *at, "--run-dir", begun, *options)
        if arm.back:
            command("swap", begun, branch.past, "--into", "online", "--yes")
        begun.rename(folder)
    if Run(folder).state() != "finished":
        command("resume", folder, "--steps", str(end))
    rows = []
    for line in evaluations(Run(folder)):
        if (steps := line["played_at"]["agent_steps"] - branch.agent_steps) > 0:
            numbers = steps, fmean(line["returns"]), line["expected"], line["came"]
            rows.append(Row(seed, branch.moment, branch.arm, branch.seed, *numbers))
    return rows


def train(name: str, folder: Path, jobs: int) -> None:
    """Trains everything and writes the table."""
    study = STUDIES[name]
    # A process for each, forked from one that has imported TensorFlow.
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["twin_graph.training.trainer", "twin_graph.envs.gym", "twin_graph_cli.fork"])
    with ProcessPoolExecutor(jobs, mp_context=context, max_tasks_per_child=1) as pool:
        trained = pool.map(train_parent, repeat(folder), study.parents)
        parents = track(trained, "parents", total=len(study.parents))
        waiting = [branch for parent in parents for branch in branches(parent, study)]
        done = track(pool.map(train_branch, waiting), "branches", total=len(waiting))
        rows = [row for of_branch in done for row in of_branch]
    table(name).parent.mkdir(exist_ok=True)
    with table(name).open("w", newline="") as file:
        csv.writer(file).writerows([Row._fields, *rows])


def table(name: str) -> Path:
    """The file with a study's evaluations."""
    return RESULTS / name / "evaluations.csv"


def read(name: str) -> list[Row]:
    """A study's evaluations."""
    with table(name).open(newline="") as file:
        kinds = Row.__annotations__
        return [Row(**{name: kinds[name](value) for name, value in row.items()}) for row in csv.DictReader(file)]


def branches_of(rows: Sequence[Row], moment: str, arm: str) -> dict[int, list[list[Row]]]:
    """By parent, the evaluations of each of its branches, in order."""
    found: dict[tuple[int, int], list[Row]] = {}
    for row in rows:
        if (row.moment, row.arm) == (moment, arm):
            found.setdefault((row.parent, row.seed), []).append(row)
    by_parent: dict[int, list[list[Row]]] = {}
    for (parent, _), branch in sorted(found.items()):
        by_parent.setdefault(parent, []).append(sorted(branch, key=lambda row: row.steps))
    return by_parent


def residual_of(row: Row) -> float:
    """What the snapshot expected of its games beyond what they returned."""
    return row.expected - row.truncated


def ends(rows: Sequence[Row], moment: str, arm: str, number: Callable[[Row], float]) -> np.ndarray:
    """Of each parent the mean over seeds of the last evaluations, `[parents, 1]`."""
    by_parent = branches_of(rows, moment, arm).values()
    return np.array([[fmean(number(row) for branch in of for row in branch[-LAST:])] for of in by_parent])


def curve(rows: Sequence[Row], moment: str, arm: str) -> dict[int, float]:
    """The mean residual of branches, over parents, by agent steps since the fork."""
    at: dict[int, list[float]] = {}
    for branch in (branch for of in branches_of(rows, moment, arm).values() for branch in of):
        # Chunks end a few steps before or after; of two there, as many branches end with, the newest counts.
        newest = {round(row.steps / EVALUATION_STEPS) * EVALUATION_STEPS: row for row in branch}
        for steps, row in newest.items():
            at.setdefault(steps, []).append(residual_of(row))
    return {steps: fmean(found) for steps, found in sorted(at.items())}


def draw(rows: Sequence[Row], path: Path) -> None:
    """The residuals of the branches of each moment."""
    figure = Figure(figsize=(9, 3.4), layout="constrained")
    panels = figure.subplots(1, len(MOMENTS), sharey=True)
    for axes, moment in zip(panels, MOMENTS, strict=True):
        for arm, colour in COLOURS.items():
            if not (of := curve(rows, moment, arm)):
                continue
            axes.plot(list(of), list(of.values()), "o-", color=colour, markersize=3, label=arm)
        axes.axhline(LIMIT, color="#999999", linewidth=0.8, linestyle="--")
        axes.set_title(f"forked {moment} the limit", fontsize=10)
        axes.set_xlabel("agent steps since the fork")
        axes.spines[["top", "right"]].set_visible(False)
        axes.set_xticks([0, 5_000, 10_000], ["0", "5,000", "10,000"])
    panels[0].set_yscale("symlog", linthresh=10, linscale=0.5)
    panels[0].set_yticks([0, 5, 10, 20, 50, 100, 200], ["0", "5", "10", "20", "50", "100", "200"])
    panels[0].set_ylim(bottom=-3)
    panels[0].set_ylabel("residual, mean of the parents")
    panels[-1].text(BRANCH_STEPS, LIMIT, "the limit", color="#666666", fontsize=8, ha="right", va="bottom")
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside right upper", frameon=False, fontsize=8)
    figure.savefig(path, dpi=150)


@click.command()
@click.argument("name", type=click.Choice(list(STUDIES)), default="divergence")
@click.option("--train", "folder", type=click.Path(path_type=Path), help="Train first, in this folder.")
@click.option("--jobs", default=1, show_default=True, help="Branches that train at a time.")
@click.option("--plot", type=click.Path(path_type=Path), help="Draw the branches, too.")
def main(name: str, folder: Path | None, jobs: int, plot: Path | None) -> None:
    """Print the analysis of a study; train for it first, if asked to."""
    if folder:
        folder.mkdir(parents=True, exist_ok=True)
        train(name, folder, jobs)
    rows, study = read(name), STUDIES[name]
    kinds = [(moment, arm) for moment in MOMENTS for arm in study.arms]
    residuals = {kind: ends(rows, *kind, residual_of) for kind in kinds}
    less = {(moment, arm): found - residuals[moment, "continue"] for (moment, arm), found in residuals.items()}
    tested = [kind for kind in kinds if kind[1] not in ("continue", "nudged")]
    p = dict(zip(tested, statistics.holm([statistics.p_of(less[kind]) for kind in tested]), strict=True))
    print(f"| branch | {' | '.join(f'{moment}: residual (95%) | difference (95%)' for moment in MOMENTS)} |")
    print(f"|---{'|---|---' * len(MOMENTS)}|")
    for arm in study.arms:
        cells = [
            statistics.mean(of[moment, arm]).words(number) if of is residuals or arm != "continue" else ""
            for moment in MOMENTS
            for of, number in ((residuals, ".1f"), (less, "+.1f"))
        ]
        print(f"| `{arm}` | {' | '.join(cells)} |")
    heads = " | ".join(f"{moment}: p of the residual | score | difference (95%)" for moment in MOMENTS)
    print(f"\n| branch | {heads} |\n|---{'|---|---|---' * len(MOMENTS)}|")
    scores = {kind: ends(rows, *kind, lambda row: row.score) for kind in kinds}
    for arm in study.arms:
        cells = []
        for moment in MOMENTS:
            ours, theirs = scores[moment, arm], scores[moment, "continue"]
            more = statistics.mean(ours - theirs).words("+.0f") if arm != "continue" else ""
            cells += [f"{p[moment, arm]:.2g}" if (moment, arm) in p else "", f"{ours.mean():.0f}", more]
        print(f"| `{arm}` | {' | '.join(cells)} |")
    if study.secondary:
        print_secondary(study.secondary, residuals)
    print(f"\n{len(residuals['at', 'continue'])} parents, {len(study.seeds)} seeds a branch.")
    if plot:
        draw(rows, plot)


def print_secondary(secondary: Sequence[tuple[str, str]], residuals: dict[tuple[str, str], np.ndarray]) -> None:
    """The differences between these arms at each moment."""
    pairs = [(*names, moment) for names in secondary for moment in MOMENTS]
    differences = [residuals[moment, ours] - residuals[moment, theirs] for ours, theirs, moment in pairs]
    chances = statistics.holm([statistics.p_of(found) for found in differences])
    print("\n| branch | less | forked | difference (95%) | p |\n|---|---|---|---|---|")
    for (ours, theirs, moment), found, p in zip(pairs, differences, chances, strict=True):
        print(f"| `{ours}` | `{theirs}` | {moment} | {statistics.mean(found).words('+.1f')} | {p:.2g} |")


if __name__ == "__main__":
    main()
