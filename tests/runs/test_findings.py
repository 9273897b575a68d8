"""The page of findings holds what its command prints."""

import csv
import functools
import hashlib
import json
import re
import runpy
import shutil
import sys
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
from click.testing import CliRunner
from matplotlib.image import imread

from twin_graph import config
from twin_graph.snapshots.files import read_file

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def _scripts_find_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where they are run as commands."""
    monkeypatch.syspath_prepend(ROOT / "studies")


@functools.cache
def script(name: str) -> dict[str, Any]:
    """What a study's script defines; it reads each table once."""
    return runpy.run_path(str(ROOT / "studies" / f"{name}.py"))


def output_of(study: str, *arguments: str) -> str:
    """What the command of a study's analysis prints."""
    return CliRunner().invoke(script(study)["main"], arguments).output


def page(name: str = "findings") -> str:
    return (ROOT / "docs" / f"{name}.md").read_text()


def cells(table: str) -> list[list[str]]:
    """The cells of a table's rows, without its head."""
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in table.strip().splitlines()[2:]]


def test_tables_of_the_findings_are_those_of_the_records(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path, str(ROOT / "examples")])  # the study's own policy
    findings = script("findings")
    for study, conditions in (("cartpole-policies", 9), ("mutual-vs-double", 6)):
        printed = findings["table"](study)
        assert len(printed) == 2 + conditions
        assert "\n".join(printed) in page()
    often, rarely = (findings["table"]("proposed-targets", part) for part in findings["PARTS"]["proposed-targets"])
    assert "\n".join(often) in page()
    scores = [row[2].split()[0] for row in cells("\n".join(rarely))[1:]]
    assert scores == ["-20", "-145", "-105"]
    assert min(float(row[3]) for row in cells("\n".join(rarely))[1:]) == 0.1
    assert {row[-1] for row in cells("\n".join(rarely))} == {"0 of 10"}
    assert "score 20, 145 and 105 less, and none of these differences survives" in " ".join(page().split())
    assert "\n".join(findings["table"]("proposed-targets-replication")) in page()
    # What is said in words: who expects the impossible, and that no score survives correction.
    rows = cells("\n".join([*findings["table"]("refresh-period"), *findings["table"]("own-policy")[2:]]))
    above = {condition.strip("`"): last for condition, *_, last in rows}
    assert above["latest, refresh_every_updates=50"] == above["latest"] == "5 of 5"
    assert above["window(4), refresh_every_updates=50"] == "4 of 5"
    assert above["window(8)"] == above["lag(300)"] == above["own_policy:modest(8)"] == "0 of 5"
    assert {last for name, last in above.items() if name.endswith(("=250", "=1000", "=4000"))} == {"0 of 5"}
    chances = [float(row[3]) for row in rows if row[3]]
    assert len(chances) == 15
    assert min(chances) > 0.05


def test_a_command_on_its_page_draws_each_picture() -> None:
    findings = script("findings")
    assert "\npython studies/findings.py --plot docs/findings\n" in page()
    by_findings = {"expected.png", *findings["PICTURES"].values()}
    for name in ("findings", "published"):
        shown = set(re.findall(r"\]\(findings/(.+?\.png)\)", page(name)))
        drawn = set(re.findall(r"--plot docs/findings/(.+?\.png)", " ".join(page(name).split())))
        assert drawn == shown - by_findings
        assert shown <= {path.name for path in (ROOT / "docs" / "findings").iterdir()}
    for study in findings["PICTURES"]:
        by_six, by_last = findings["picture_of_differences"](study).axes
        assert by_six.get_xlim() == by_last.get_xlim()
        names = [label.get_text() for label in by_six.get_yticklabels()]
        points = [float(line.get_xdata()[0]) for line in by_six.lines if line.get_marker() == "o"]
        rows = cells("\n".join(findings["table"](study)))[1:]
        assert [(f"`{name}`", f"{x:+.0f}") for name, x in zip(names, points, strict=True)][: len(rows)] == [
            (name, difference.split()[0]) for name, _, difference, *_ in rows
        ]
    assert (names[-1], f"{points[-1]:+.0f}") == ("mutual-both\nless plain-twice", "+32")


def test_learning_curves_on_atari_are_drawn_from_its_records(tmp_path: Path) -> None:
    picture = tmp_path / "new" / "memory.png"
    printed = output_of("atari_targets", str(ROOT / "studies" / "results" / "atari-memory"), "--plot", str(picture))
    assert "ahead in" in printed
    assert imread(picture).shape == (680, 1040, 4)


def test_comparisons_that_were_not_planned_are_those_of_the_records() -> None:
    findings = script("findings")
    ensemble, mutual, often, rarely = (findings["afterwards"](*conditions) for conditions in findings["AFTERWARDS"])
    assert ensemble.endswith("not planned: 10 pairs, +80 (+32 to +132), p = 0.0078, not corrected")
    assert mutual.endswith("not planned: 10 pairs, +32 (-14 to +76), p = 0.23, not corrected")
    assert often.endswith("not planned: 30 pairs, +103 (+49 to +158), p = 0.0016, not corrected")
    assert rarely.endswith("not planned: 30 pairs, +42 (+1 to +83), p = 0.064, not corrected")
    said = " ".join(page().split())
    assert "both studies together say 103 (49 to 158; p = 0.0016)" in said
    assert "in all thirty pairs it is 42 behind (1 to 83; p = 0.064)" in said


def test_what_the_replication_confirms_is_what_the_records_say() -> None:
    findings = script("findings")
    first, again = (
        {name.strip("`"): of for name, *of in cells("\n".join(findings["table"](*table)))}
        for table in (("proposed-targets", ", 50"), ("proposed-targets-replication",))
    )
    assert [table["latest, 50"][-1] for table in (first, again)] == ["10 of 10", "20 of 20"]
    assert [table["mean, 50"][-1] for table in (first, again)] == ["1 of 10", "6 of 20"]
    assert again["mean, 50"][-2] == "97 to 215"
    assert [again[name][1:3] for name in ("latest, 50", "latest, 250")] == [
        ["-67 (-123 to -4)", "0.086"],
        ["-24 (-81 to +33)", "0.44"],
    ]
    said = " ".join(page().split())
    for claim in (
        "`latest` comes to expect the impossible**, in thirty of thirty CartPole runs",
        "that happens in seven of thirty, mostly by little, but once up to 215",
        "it was ahead by 67 (p = 0.086), so that **claim is withdrawn**",
        "it is 24 behind (p = 0.44)",
    ):
        assert claim in said


def test_the_table_of_opponents_is_that_of_the_recorded_games() -> None:
    printed = output_of("opponents")
    table, cycles = printed.strip().split("\n\n")
    assert len(table.splitlines()) == 2 + 5
    assert table in page()
    assert cycles.splitlines() == [
        "0 cycles among 2,900 triples of 27 players.",
        "35 of 300 pairs of trained agents differ by the test used for cycles.",
    ]
    said = " ".join(page().split())
    assert "none among 2,900 triples of players who all met in the first study, and none among 2,600 in" in said


def test_the_replication_with_opponents_is_that_of_its_recorded_games() -> None:
    printed = output_of("opponents", str(ROOT / "studies" / "results" / "opponents-replication"))
    table, cycles = printed.strip().split("\n\n")
    assert table in page()
    assert cycles.splitlines() == [
        "0 cycles among 2,600 triples of 26 players.",
        "39 of 276 pairs of trained agents differ by the test used for cycles.",
    ]
    assert "by this test only 35 of 300 pairs of trained agents differ, and 39 of 276" in " ".join(page().split())
    rows = cells(table)
    assert [row[3] for row in rows] == ["", "0.016", "0.016"]  # the least that is possible, 2 * 2 / 2**8
    lost = [[int(number) for number in row[-1].split(" of ")] for row in rows]
    assert (sum(part for part, _ in lost), sum(whole for _, whole in lost)) == (29, 168)
    games = script("opponents")
    own = [
        pairing.score
        for pairing in games["read"](ROOT / "studies" / "results" / "opponents-replication" / "games.jsonl")
        if games["run_of"](pairing.first) == games["run_of"](pairing.second) != ""
    ]
    assert (sum(score < 0.5 for score in own), sum(0.4 <= score < 0.5 for score in own)) == (29, 23)
    assert "less than half of the points of 40 games, and in 23 of the 29 it is 40% or more" in " ".join(page().split())


def test_policies_at_equal_depth_are_those_of_the_records() -> None:
    expected, scores, residuals, as_often = output_of("genealogy").strip().split("\n\n")
    shares = {(task, condition): abs(float(share.rstrip("%"))) for task, condition, *_, share in cells(expected)}
    assert len(shares) == 32
    assert {run: share for run, share in shares.items() if share >= 3} == {("Acrobot-v1", "n_step=3, latest"): 7.2}
    assert sum(share < 1.2 for share in shares.values()) == 29
    *pairs, cartpole, acrobot = cells(scores)
    assert len(pairs) == 16
    assert min(float(p) for *_, p in pairs) == 0.38
    assert cartpole[3:] == ["+4 (-11 to +15)", "0.61, not corrected"]
    assert acrobot[3:] == ["+25 (+6 to +40)", "0.033, not corrected"]
    assert max(abs(float(less.split()[0])) for *_, less, _ in cells(residuals)) == 0.4
    assert [row for row in cells(residuals)[:-2] if float(row[-1]) < 0.05] == [
        ["CartPole-v1", "n_step=1, mean", "latest-640", "-0.1 (-0.2 to -0.1)", "0.031"]
    ]
    *of, cartpole, acrobot = cells(as_often)
    assert sum(float(p) < 0.05 for *_, p in of) == 2
    assert cartpole[3:] == ["+19 (+6 to +34)", "0.029, not corrected"]
    assert acrobot[3:] == ["-126 (-147 to -106)", "0.002, not corrected"]


def test_lunarlander_at_equal_depth_is_that_of_the_records() -> None:
    folder = ROOT / "studies" / "results" / "genealogy-lunarlander"
    expected, scores, residuals, as_often = output_of("genealogy", str(folder)).strip().split("\n\n")
    shares = {condition: float(share.rstrip("%")) for _, condition, *_, share in cells(expected)}
    of = {
        n: sorted(share for condition, share in shares.items() if condition.startswith(n))
        for n in ("n_step=1", "n_step=3")
    }
    assert (of["n_step=1"][0], of["n_step=1"][-1]) == (15.6, 32.1)
    assert [share for share in of["n_step=3"] if share > 3] == [3.3, 3.8]
    assert {p for *_, p in cells(scores)[:-1]} == {"1"}
    assert max(abs(float(less.split()[0])) for *_, less, _ in cells(residuals)[:-1]) == 2.8
    assert min(float(p) for *_, p in cells(residuals)[:-1]) >= 0.05
    assert ["n_step=3, mean", "latest-640", "-2.8 (-5.1 to -0.4)"] in [row[1:4] for row in cells(residuals)]
    assert cells(as_often)[-1][3:] == ["-32 (-68 to +3)", "0.14, not corrected"]


def test_minatar_at_equal_depth_is_that_of_the_records() -> None:
    folder = ROOT / "studies" / "results" / "genealogy-minatar"
    expected, scores, residuals, as_often = output_of("genealogy", str(folder)).strip().split("\n\n")
    shares = {(task, condition): float(share.rstrip("%")) for task, condition, *_, share in cells(expected)}
    within = [task for (task, _), share in shares.items() if abs(share) < 3]
    assert (len(shares), len(within), set(within)) == (32, 8, {"MinAtar/SpaceInvaders-v1"})
    deep = sorted(share for run, share in shares.items() if run[0] == "MinAtar/Breakout-v1" and "n_step=3" in run[1])
    assert (deep[0], deep[-1]) == (-23.8, -16.3)
    assert min(float(p) for *_, p in cells(scores)[:-2]) == 0.56
    pairs = cells(residuals)[:-2]
    assert len(pairs) == 16
    limits = [float(limit) for *_, less, _ in pairs for limit in less.split("(")[1].rstrip(")").split(" to ")]
    assert (min(limits), max(limits)) == (-4.5, 4.5)
    assert [row[1:] for row in pairs if float(row[-1]) < 0.05] == [
        ["n_step=1, mean", "latest-640", "-3.2 (-4.1 to -2.3)", "0.031"]
    ]
    *of, breakout, invaders = cells(as_often)
    assert sum(float(p) < 0.05 for *_, p in of) == 1
    assert breakout[3:] == ["-0.2 (-0.3 to -0.1)", "0.0039, not corrected"]
    assert invaders[3:] == ["+1.2 (+0.4 to +1.8)", "0.023, not corrected"]


def test_the_replication_of_equal_depth_is_what_the_records_say() -> None:
    printed = output_of("genealogy_replication")
    assert printed.strip() in page()
    outcomes, policies = printed.split("\n\n")
    chances = {(row[0].strip("`"), row[1].removeprefix("MinAtar/")): row[-1] for row in cells(outcomes)}
    assert [chances["residual of `mean", game] for game in ("SpaceInvaders-v1", "CartPole-v1")] == [
        "0.0012",
        "0.047",
    ]
    confirmed = {game for (what, game), p in chances.items() if what == "score of looking back" and float(p) < 0.05}
    assert confirmed == {"Acrobot-v1", "Breakout-v1"}
    # The means over the three policies are those of the table above; in Breakout one of them alone is told apart.
    by_environment = zip(*(map(float, (cell.split()[0] for cell in row[1:])) for row in cells(policies)), strict=True)
    of_three = [float(row[3].split()[0]) for row in cells(outcomes) if row[0] == "score of looking back"]
    assert [fmean(of) for of in by_environment] == pytest.approx(of_three, abs=1)
    assert [row[3].endswith(" -0.7)") for row in cells(policies)] == [False, False, True]
    said = " ".join(page().split())
    assert (
        "in SpaceInvaders (2.25% of the largest return; p = 0.0012, corrected) and in CartPole (0.08%; p = 0.047)"
        in said
    )
    assert "it found 4.3%, where the first study had found 0.8%" in said


def test_where_divergence_lives_is_what_the_records_say() -> None:
    printed = output_of("divergence")
    table, tests, count = printed.strip().split("\n\n")
    assert len(table.splitlines()) == 2 + 7
    less = {row[0].strip("`"): [float(cell.split()[0]) for cell in row[2::2]] for row in cells(table)[1:]}
    highest = {
        row[0].strip("`"): [float(cell.rstrip(")").split()[-1]) for cell in row[2::2]] for row in cells(table)[1:]
    }
    assert less["target"] == [-118.1, -156.2, -129.4]
    assert less["online"] == [-90.6, -112.6, -55.5]
    assert less["frozen"] == [-111.8, -145.5, -94.6]  # -145.54
    assert less["mean"][:2] == [-75.5, -86.7]  # -75.506
    assert max(map(abs, less["nudged"])) == 9.0
    assert [limit < 0 for limit in highest["online"]] == [True, True, False]
    assert max(*highest["target"], *highest["frozen"], *highest["mean"][:2]) < 0 < highest["mean"][2]
    said = " ".join(page().split())
    assert (
        "`target` ends 118, 156 and 129 lower than `continue` (before, at, after), and no interval includes 0" in said
    )
    assert "(91, 113 and 55 lower; after the limit the interval includes 0)" in said
    assert "`frozen` ends 112, 146 and 95 lower" in said
    assert "`mean` ends 76 and 87 lower before and at the limit" in said
    chances = [float(p) for row in cells(tests) for p in row[1::3] if p]
    assert (len(chances), min(chances)) == (15, 0.23)
    assert count == "7 parents, 3 seeds a branch."


def test_the_replication_of_divergence_is_what_the_records_say() -> None:
    residuals, tests, secondary, count = output_of("divergence", "divergence-replication").strip().split("\n\n")
    assert residuals in page()
    assert secondary in page()
    assert tests in page()
    chances = {row[0].strip("`"): row[1::3] for row in cells(tests)}
    assert chances["target"] == ["0.0024", "0.011", "1"]
    assert chances["online"] == ["0.011", "1", "1"]
    assert chances["slow"] == ["0.0024", "0.43", "1"]
    [more] = [row[3::3] for row in cells(tests) if row[0] == "`target`"]
    assert more == ["+184 (+114 to +261)", "+70 (-12 to +161)", "-106 (-189 to -26)"]
    assert "before the limit (114 to 261), 70 more at it (-12 to 161), and 106 *less* after it (26 to 189)" in " ".join(
        page().split()
    )
    assert count == "14 parents, 2 seeds a branch."
    divergence = script("divergence")
    rows = divergence["read"]("divergence-replication")
    lower = {}
    for moment in divergence["MOMENTS"]:
        ours, theirs = (
            divergence["ends"](rows, moment, arm, divergence["residual_of"]).ravel() for arm in ("target", "continue")
        )
        lower[moment] = int((ours < theirs).sum())
        assert len(ours) == 14
    assert lower == {"before": 14, "at": 12, "after": 6}


def test_minatar_beside_its_paper_is_what_the_records_say() -> None:
    printed = output_of("minatar")
    table, count = printed.strip().split("\n\n")
    assert len(table.splitlines()) == 2 + 5
    assert table in page("published")
    assert count == "15 of 15 runs have all 1,000,000 frames."


def test_breakout_at_the_published_rate_is_what_the_records_say() -> None:
    printed = output_of("minatar", str(ROOT / "studies" / "results" / "minatar-breakout"))
    assert "| Breakout | 8.6 (7.9 to 9.6) | 9.1 (2^-9) |" in printed
    assert "They returned 8.6 (7.9 to 9.6);" in page("published")


def test_breakout_beside_published_curves_is_what_the_records_say() -> None:
    printed, published = output_of("breakout"), page("published")
    assert len(printed.splitlines()) == 2 + 10
    assert printed.strip() in published
    assert hashlib.sha256((ROOT / "docs" / "findings" / "breakout.gif").read_bytes()).hexdigest() in published
    before, now = (ROOT / "studies" / "results" / name for name in ("breakout-before", "breakout"))
    checks = json.loads((before / "checks.json").read_text())
    said = " ".join(published.split())
    assert f"on {checks['observations']:,} observations from the replay" in said
    assert f"as in float32 in {checks['agreement']:.1%}, and" in said
    assert f"of training only {checks['waiting']:.1%} passed without a ball" in said
    assert checks["regret"] < checks["gap"] / 10_000
    [_, was, ours, cleanrl, zoo, *_] = cells(printed.strip())[-1]
    assert f"it returns {ours}, CleanRL's runs {cleanrl} on average, and RL Zoo's {zoo}" in said
    assert f"It returned {was}." in said
    for name in ("ledger.jsonl", "metrics.jsonl", "evaluations.jsonl"):
        hashes = (f"`{hashlib.sha256((run / name).read_bytes()).hexdigest()}`" for run in (now, before))
        assert f"| `{name}` | {' | '.join(hashes)} |" in published
    # The commands on the page are those of the records, but for what the machine decided and what had no effect.
    [command] = re.findall(r"twin-graph train breakout (--steps 2500000 --set .*?)\n```", published, re.DOTALL)
    words = command.replace("\\\n", " ").replace("--steps ", "--set train.steps=").replace("--set ", "").split()
    for run, given in ((now, words[:1]), (before, words)):
        preset = config.load("breakout", map(config.parse_assignment, given))
        recorded = config.validate(read_file(run / "run.json")["settings"])
        assert preset.refresh_schedule_of("target") == recorded.refresh_schedule_of("target")
        differ = {key for key, *_ in config.differences(preset, recorded)}
        assert differ - {"train.clip_delta", "target.refresh_every_updates"} == {"twin.threads", "twin.precision"}


def test_atari_beside_published_runs_is_what_the_records_say() -> None:
    table, ours, published = output_of("atari_100k").strip().split("\n\n")
    assert table in page("published")
    rows = cells(table)
    assert published.endswith("0.69 (0.66 to 0.73)")
    assert "5 runs of each game: 0.97 (0.68 to 1.51)" in ours
    assert [row[2] for row in rows] == ["5"] * 4
    said = " ".join(page("published").split())
    assert f"(p = {rows[1][6]}, corrected for four games" in said
    assert "is 0.97 (0.68 to 1.51); that of the published runs is 0.69 (0.66 to 0.73)." in said


def test_targets_on_atari_are_compared_in_pairs_of_equal_game_and_seed(tmp_path: Path) -> None:
    """On the tables of another study, since its own runs are to come: all its seeds, and then one that lacks a run."""
    for name in ("plan.json", "runs.csv", "curves.csv"):
        shutil.copy(ROOT / "studies" / "results" / "genealogy-minatar" / name, tmp_path)
    with (tmp_path / "runs.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    for first, is_whole in ((31, True), (32, False)):
        scores = {
            (row["condition"], row["environment"], row["seed"]): float(row["normalised_score"])
            for row in rows
            if int(row["seed"]) >= first
        }
        less = [
            score - scores["n_step=1, latest", game, seed]
            for (condition, game, seed), score in scores.items()
            if condition == "n_step=3, mean"
        ]
        printed = output_of("atari_targets", str(tmp_path))
        assert f"in {len(less)} pairs of equal game and seed" in printed
        [line] = re.findall(r"^`n_step=3, mean`: (.*)", printed, re.MULTILINE)
        assert line.startswith(f"{fmean(less):+.2f} (")
        assert line.endswith(f"ahead in {sum(one > 0 for one in less)} of {len(less)}")
        assert (", p = " in line, "nothing is tested before all are done" in printed) == (is_whole, not is_whole)
        rows[0]["state"] = "failed"  # of seed 31
        with (tmp_path / "runs.csv").open("w", newline="") as file:
            writer = csv.DictWriter(file, rows[0])
            writer.writeheader()
            writer.writerows(rows)


def targets_compared(folder: Path) -> tuple[str, str, dict[str, str]]:
    """What is printed of a study of targets: its table, the comparison, and of that what is said of each policy."""
    table, compared = output_of("atari_targets", str(folder)).strip().split("\n\n")
    return table, compared, dict(re.findall(r"^`(.+)`: (.*)$", compared, re.MULTILINE))


def test_targets_on_ataris_memory_are_compared_as_the_records_say() -> None:
    table, compared, said = targets_compared(ROOT / "studies" / "results" / "atari-memory")
    assert table in page()
    assert "less those of `latest`, which scores 0.67, in 12 pairs" in compared
    assert said == {
        "lag(1000)": "+0.02 (-0.06 to +0.11), p = 1, ahead in 6 of 12",
        "ensemble(4, mean)": "-0.04 (-0.17 to +0.07), p = 1, ahead in 7 of 12",
        "best": "+0.06 (-0.05 to +0.18), p = 0.9, ahead in 9 of 12",
    }
    text = " ".join(page().split())
    assert "are +0.02 (-0.06 to 0.11) and -0.04 (-0.17 to 0.07), both with p = 1" in text
    assert "+0.06 (-0.05 to 0.18; p = 0.9), and it is ahead in nine of twelve pairs" in text
    ages = {(game, policy): float(age.replace(",", "")) for game, policy, _, age, _ in cells(table)}
    older = [age / ages[game, "`latest`"] for (game, policy), age in ages.items() if policy == "`best`"]
    assert (round(min(older)), round(max(older))) == (7, 11)
    assert "seven to eleven times as old as those of `latest`" in text


def test_targets_on_ataris_small_images_are_compared_as_the_records_say() -> None:
    folder = ROOT / "studies" / "results" / "atari-images"
    table, compared, said = targets_compared(folder)
    assert table in page()
    assert "less those of `latest`, which scores 0.23, in 12 pairs" in compared
    assert said == {
        "lag(1000)": "+0.16 (-0.18 to +0.44), p = 0.72, ahead in 8 of 12",
        "ensemble(4, mean)": "+0.24 (+0.00 to +0.50), p = 0.31, ahead in 9 of 12",
        "best": "+0.06 (-0.15 to +0.27), p = 0.72, ahead in 6 of 12",
    }
    text = " ".join(page().split())
    assert "are +0.16 (-0.18 to 0.44; p = 0.72) for `lag(1000)`, +0.24 (0.00 to 0.50; p = 0.31) for" in text
    assert "and +0.06 (-0.15 to 0.27; p = 0.72) for `best`" in text
    scores = {(game, policy): float(score.split()[0]) for game, policy, score, *_ in cells(table)}
    for game, more in (("Krull-v5", True), ("Breakout-v5", False)):
        usual, *others = (score for (where, _), score in scores.items() if where == game)
        assert [score > usual for score in others] == [more] * 3
    with (folder / "runs.csv").open(newline="") as file:
        runs = list(csv.DictReader(file))
    assert sum(int(run["stops"]) for run in runs) == 1
    assert {run["processor"].split()[0] for run in runs if run["seed"] == "21"} == {"AMD"}
    assert {run["processor"].split()[0] for run in runs if run["seed"] != "21"} == {"Intel(R)"}


def test_spread_of_scores_is_that_of_the_records() -> None:
    printed = script("findings")["spread"]()
    assert printed.startswith("`latest`, standard deviation: 145 within a run, 72 between runs' means; ")
    assert "a difference of 191 by the last evaluation, 93 by the mean of 6, and 138 by that" in printed
    text = " ".join(page().split())
    assert "deviation 145) as the means of different runs (72)" in text
    assert "of 191 points (of 500) by last evaluations, of 93 by means of six, and of 138 where eight" in text
