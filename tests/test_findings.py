"""The page of findings holds what its command prints."""

import hashlib
import runpy
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

ROOT = Path(__file__).parents[1]


def output_of(study: str, *arguments: str) -> str:
    """What the command of a study's analysis prints."""
    return CliRunner().invoke(runpy.run_path(str(ROOT / "studies" / f"{study}.py"))["main"], arguments).output


def test_tables_of_the_findings_are_those_of_the_records(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path, str(ROOT / "examples")])  # the study's own policy
    findings = runpy.run_path(str(ROOT / "studies" / "findings.py"))
    page = (ROOT / "docs" / "findings.md").read_text()
    printed = findings["table"]("own-policy")
    assert len(printed) == 2 + 5
    assert "\n".join(printed) in page
    for part in findings["PARTS"]["proposed-targets"]:
        assert "\n".join(findings["table"]("proposed-targets", part)) in page


def test_the_table_of_opponents_is_that_of_the_recorded_games() -> None:
    printed = output_of("opponents")
    table, cycles = printed.strip().split("\n\n")
    assert len(table.splitlines()) == 2 + 5
    assert table in (ROOT / "docs" / "findings.md").read_text()
    assert cycles == "0 cycles among 2,925 triples of 27 players."


def test_policies_at_equal_depth_are_those_of_the_records() -> None:
    printed = output_of("genealogy")
    expected, pairs, _ = printed.strip().split("\n\n")
    assert pairs in (ROOT / "docs" / "findings.md").read_text()
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in expected.splitlines()[2:]]
    shares = {(task, condition): abs(float(share.rstrip("%"))) for task, condition, *_, share in rows}
    assert len(shares) == 32
    assert {run: share for run, share in shares.items() if share >= 3} == {("Acrobot-v1", "n_step=3, latest"): 7.2}
    assert sum(share < 1.2 for share in shares.values()) == 29


def test_lunarlander_at_equal_depth_is_that_of_the_records() -> None:
    page = (ROOT / "docs" / "findings.md").read_text()
    expected, scores, residuals = (
        output_of("genealogy", str(ROOT / "studies" / "results" / "genealogy-lunarlander")).strip().split("\n\n")
    )
    assert expected in page
    assert residuals in page
    assert {line.split("|")[-2].strip() for line in scores.splitlines()[2:]} == {"1"}
    differences = [float(line.split("|")[4].split()[0]) for line in residuals.splitlines()[2:]]
    assert len(differences) == 8
    assert max(map(abs, differences)) == 2.8


def test_where_divergence_lives_is_what_the_records_say() -> None:
    printed = output_of("divergence")
    table, count = printed.strip().split("\n\n")
    assert len(table.splitlines()) == 2 + 3 * 7
    assert table in (ROOT / "docs" / "findings.md").read_text()
    assert count == "7 parents, 3 seeds a branch."


def test_minatar_beside_its_paper_is_what_the_records_say() -> None:
    printed = output_of("minatar")
    table, count = printed.strip().split("\n\n")
    assert len(table.splitlines()) == 2 + 5
    assert table in (ROOT / "docs" / "findings.md").read_text()
    assert count == "15 of 15 runs have all 1,000,000 frames."


def test_breakout_at_the_published_rate_is_what_the_records_say() -> None:
    printed = output_of("minatar", str(ROOT / "studies" / "results" / "minatar-breakout"))
    assert "| Breakout | 8.6 (7.9 to 9.6) | 9.1 (2^-9) |" in printed
    assert "They have 8.6 (7.9 to 9.6);" in (ROOT / "docs" / "findings.md").read_text()


def test_breakout_beside_published_curves_is_what_the_records_say() -> None:
    printed, page = output_of("breakout"), (ROOT / "docs" / "findings.md").read_text()
    assert len(printed.splitlines()) == 2 + 10
    assert printed.strip() in page
    assert hashlib.sha256((ROOT / "docs" / "findings" / "breakout.gif").read_bytes()).hexdigest() in page
    for name in ("ledger.jsonl", "metrics.jsonl", "evaluations.jsonl"):
        content = (ROOT / "studies" / "results" / "breakout" / name).read_bytes()
        assert f"| `{name}` | `{hashlib.sha256(content).hexdigest()}` |" in page


def test_spread_of_scores_is_that_of_the_records() -> None:
    printed = runpy.run_path(str(ROOT / "studies" / "findings.py"))["spread"]()
    assert printed.startswith("`latest`, standard deviation: 145 within a run, 72 between runs' means.")
    assert "10 seeds find a difference of 145 by the last evaluation, 90 by the mean of 6." in printed
    page = " ".join((ROOT / "docs" / "findings.md").read_text().split())
    assert "deviation 145) as the means of different runs (72)" in page
    assert "a difference of 145 points (of 500) by last evaluations, or of 90 by means of six" in page
