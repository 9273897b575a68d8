"""A run of an earlier version, with a swap by hand that waits, is read, explained, verified and resumed by this one.

tests/data/run-of-format-1 was trained by version 5da31f5: CartPole, 1,200 agent steps, `target.policy=mix(0.5, 4)`.
That version resumed it to 1,800 with the weights `f6e15c7d...`, on the processor that its `run.json` names.
"""

import contextlib
import shutil
from pathlib import Path

import pytest

from twin_graph import config, envs, training
from twin_graph.base import machine
from twin_graph.records import report
from twin_graph.records.verify import verify
from twin_graph.snapshots.resumable import newest_point
from twin_graph.snapshots.run import Run


@pytest.fixture
def old(tmp_path: Path) -> Run:
    return Run(Path(shutil.copytree(Path(__file__).parents[1] / "data" / "run-of-format-1", tmp_path / "old")))


def test_records_of_an_earlier_version_say_what_they_said(old: Run) -> None:
    status = report.status(old)
    assert (status.state, status.agent_steps, status.updates) == ("finished", 1_200, 250)
    assert status.weights_sha256.startswith("bdaa08a1")
    assert [request.snapshot for request in status.requests] == ["000003-b36458d7"]
    assert [entry.id[:6] for entry in report.log(old)] == [f"{number:06d}" for number in range(5, -1, -1)]
    explained = report.explain(old, 120)
    assert (explained.policy, explained.used_for_updates) == ("mix(0.5, 4)", [101, 150])
    assert report.show(old, "best").evaluations
    findings = verify(old)
    assert (findings.damage, findings.unknown, findings.leftover) == ([], [], [])


def test_a_damaged_ledger_makes_no_snapshot_unknown(old: Run) -> None:
    lines = (old.folder / "ledger.jsonl").read_bytes().splitlines(keepends=True)
    lines[3] = lines[3].replace(b"0", b"1", 1)
    (old.folder / "ledger.jsonl").write_bytes(b"".join(lines))
    findings = verify(Run(old.folder))
    assert findings.damage
    assert findings.unknown == []


def test_a_run_of_an_earlier_version_resumes_and_ends_as_that_version_ended_it(old: Run) -> None:
    old.change_settings(config.change(old.settings, [("train.steps", 1_800)]))
    with contextlib.closing(envs.make(old.settings.env, count=old.settings.env.count)) as env:
        for _ in training.train(old, env, newest_point(old).point):
            pass
    status = report.status(old)
    assert (status.state, status.attempt, status.agent_steps, status.updates) == (
        "finished",
        2,
        1_800,
        400,
    )
    assert status.requests == []
    assert report.explain(old, 251).snapshots[0].id == "000003-b36458d7"
    recorded = old.description["cpu"]
    if (recorded["model"], tuple(recorded["features"])) == (
        machine.describe().model,
        tuple(machine.describe().features),
    ):
        assert status.weights_sha256.startswith("f6e15c7d")
