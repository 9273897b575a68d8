"""The depth of snapshots: by hand-made ledgers."""

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from twin_graph.config.settings import Settings
from twin_graph.records.depth import Depths, learnt_from, mean_depth, value_of
from twin_graph.snapshots.forms import LEDGER
from twin_graph.snapshots.ledger import Commit, Counters, Ledger, Restore, Start, utc_now
from twin_graph.snapshots.run import create

Make = Callable[..., Settings]


class Story:
    """Writes a ledger by hand."""

    def __init__(self, folder: Path, settings: Settings) -> None:
        self.run = create(folder, settings)
        self.run.record_start()
        self._ids: dict[str, str] = {}

    def commit(self, name: str, updates: int, *, learner: str = "online", imported: bool = False) -> None:
        counters = Counters(agent_steps=updates, updates=updates, frames=updates, episodes=0)
        commit = Commit(
            attempt=self.run.ledger.attempt,
            time=utc_now(),
            number=None if imported else len(self._ids),
            lineage="import" if imported else learner,
            learner=learner,
            parent=None,
            counters=counters,
            weights_sha256="0" * 64,
            snapshot=self._ids.setdefault(name, "import-" + "0" * 12 if imported else f"{len(self._ids):06d}-00000000"),
            bytes=1,
        )
        self.run.ledger.append(commit)

    def restore(
        self, names: Sequence[str], after: int, *, learner: str = "online", into: str = "target", combine: str = ""
    ) -> None:
        ids = tuple(self._ids[name] for name in names)
        counters = Counters(agent_steps=after, updates=after, frames=after, episodes=0)
        fields = {"attempt": self.run.ledger.attempt, "time": utc_now(), "into": into, "learner": learner}
        fields |= {
            "snapshots": ids,
            "combine": combine,
            "policy": "latest",
            "candidates": ids,
            "reason": "",
            "first_update": after + 1,
            "counters": counters,
        }
        self.run.ledger.append(Restore.model_validate(fields))

    def resume(self, after: int, settings: Settings) -> None:
        self.run.change_settings(settings)
        [start] = self.run.ledger.events(Start)
        counters = Counters(agent_steps=after, updates=after, frames=after, episodes=0)
        sizes = {**start.found_bytes, LEDGER: (self.run.folder / LEDGER).stat().st_size}
        resumed = {"attempt": 2, "resumed_from": 0, "counters": counters, "known_bytes": sizes, "found_bytes": sizes}
        self.run.ledger.append(start.model_copy(update=resumed))

    def depths(self, *names: str) -> list[float | None]:
        depths = Depths(self.run)
        depths.catch_up()
        return [depths.of(self._ids.get(name, name)) for name in names]


@pytest.mark.parametrize("discount", [0.99, 0.9, 1.0])
def test_a_mean_depth_is_worth_the_mean_of_what_depths_are_worth(discount: float) -> None:
    assert value_of(0, discount) == 0
    assert value_of(1, discount) == pytest.approx(1)
    assert value_of(3, discount) == pytest.approx(1 + discount + discount**2)
    for depths in ([0], [7, 7], [0, 20], [1, 2.5, 40]):
        mean = sum(value_of(depth, discount) for depth in depths) / len(depths)
        assert value_of(mean_depth(depths, discount), discount) == pytest.approx(mean)


@pytest.mark.parametrize("discount", [0.99, 0.9, 0.0])
def test_depths_grow_for_ever_though_values_do_not(discount: float) -> None:
    depth = 0.0
    for _ in range(20_000):
        depth = learnt_from([depth, depth + 1], n_steps=[1, 3], discount=discount, combine="mean")
    assert depth >= 20_000
    assert mean_depth([depth, depth + 1], discount) == pytest.approx(depth + mean_depth([0, 1], discount))


@pytest.mark.parametrize("combine", ["min", "mean"])
def test_what_is_learnt_sees_its_own_rewards_and_the_targets(combine: str) -> None:
    assert learnt_from([7], n_steps=[3], discount=0.9, combine=combine) == pytest.approx(10)
    together = learnt_from([0, 20], n_steps=[3], discount=0.9, combine=combine)
    value = min(value_of(0, 0.9), value_of(20, 0.9)) if combine == "min" else value_of(20, 0.9) / 2
    assert value_of(together, 0.9) == pytest.approx(1 + 0.9 + 0.81 + 0.9**3 * value)
    # A rollout of two steps: one bootstraps after both rewards, the other after one.
    of_two = learnt_from([0], n_steps=[1, 2], discount=0.9, combine=combine)
    assert value_of(of_two, 0.9) == pytest.approx((1 + 1.9) / 2)


def test_a_generation_adds_n_steps_and_a_late_target_none(cartpole: Make, tmp_path: Path) -> None:
    story = Story(tmp_path / "run", cartpole(train__n_step=3))
    story.commit("s0", 0)
    story.restore(["s0"], 0)
    story.commit("s1", 50)
    story.restore(["s1"], 50)
    story.commit("s1b", 50)  # nothing was learnt from it yet
    story.commit("s2", 100)
    story.restore(["s0"], 100)  # an old target again
    story.commit("s3", 150)
    story.restore(["s2"], 150)
    story.restore(["s2", "s3"], 200)
    story.commit("s4", 250)
    mean = learnt_from([6, 3], n_steps=[3], discount=0.99, combine="mean")
    assert story.depths("s0", "s1", "s1b", "s2", "s3", "s4", "unknown") == [0, 3, 3, 6, 3, pytest.approx(mean), None]


def test_what_is_learnt_after_a_resume_goes_by_its_settings(cartpole: Make, tmp_path: Path) -> None:
    """From the resume on, the same target is learnt from by the new ones."""
    story = Story(tmp_path / "run", cartpole(train__n_step=3))
    story.commit("s0", 0)
    story.restore(["s0"], 0)
    story.commit("s1", 50)
    story.restore(["s1"], 50)
    story.resume(75, cartpole(train__n_step=1))
    story.commit("s2", 75)
    story.commit("s3", 80)
    story.restore(["s2"], 100)
    story.commit("s4", 150)
    assert story.depths("s1", "s2", "s3", "s4") == [3, 6, 4, 7]


def test_swaps_into_the_online_twin_and_imports(cartpole: Make, tmp_path: Path) -> None:
    story = Story(tmp_path / "run", cartpole(train__n_step=3))
    story.commit("s0", 0)
    story.restore(["s0"], 0)
    story.commit("s1", 50)
    story.restore(["s1"], 50)
    story.commit("s2", 100)
    story.restore(["s0"], 100, into="online")
    story.commit("s3", 100)  # the weights of s0
    story.commit("s4", 150)  # learnt since, from s1
    story.commit("import-1", 0, imported=True)
    story.restore(["import-1"], 150)
    story.commit("s5", 200)
    story.restore(["s5"], 200)
    story.commit("s6", 250)
    assert story.depths("s2", "s3", "s4", "import-1", "s5", "s6") == [6, 0, 6, None, None, None]


def test_the_depth_of_an_ensemble_is_known_by_its_record_alone(cartpole: Make, tmp_path: Path) -> None:
    """Records are read on other machines, too; those of earlier versions do not have it."""
    story = Story(tmp_path / "run", cartpole(train__n_step=3, target__policy="nowhere:spread"))
    story.commit("s0", 0)
    story.restore(["s0"], 0)
    story.commit("s1", 50)
    story.restore(["s0", "s1"], 50)
    story.commit("s2", 100)
    story.restore(["s0", "s1"], 100, combine="min")
    story.commit("s3", 150)
    assert story.depths("s0", "s1", "s2", "s3") == [0, 3, None, 3]


def test_two_learners_learn_through_each_other(cartpole: Make, tmp_path: Path) -> None:
    story = Story(tmp_path / "run", cartpole(train__n_step=2, mode="mutual"))
    for learner in "ab":
        story.commit(f"{learner}0", 0, learner=learner)
    story.restore(["b0"], 0, learner="a")
    story.restore(["a0"], 0, learner="b")
    for learner in "ab":
        story.commit(f"{learner}1", 50, learner=learner)
    story.restore(["b1"], 50, learner="a")
    story.commit("a2", 100, learner="a")
    story.commit("b2", 100, learner="b")
    assert story.depths("a1", "b1", "a2", "b2") == [2, 2, 4, 2]


def test_what_a_worker_records_after_the_run_was_resumed_without_it_does_not_hold(
    cartpole: Make, tmp_path: Path
) -> None:
    """It has not seen yet that there is another chief, and may write until a server refuses its gradient."""
    story = Story(tmp_path / "run", cartpole(workers__count=1))
    story.commit("s0", 0)
    story.restore(["s0"], 0)
    ledger = story.run.ledger
    [swap] = ledger.events(Restore)
    story.resume(0, story.run.settings)
    for attempt in (1, 2):
        assert ledger.attempt == 2  # it has read what came before
        ledger.append(swap.model_copy(update={"attempt": attempt, "worker": "worker-0"}))
    for read in (ledger, Ledger(ledger.path)):
        held = [(event.attempt, event.worker) for event in read.events(Restore)]
        assert held == [(1, ""), (2, "worker-0")]
        assert [holds for event, holds in read.with_abandoned(Restore)] == [True, False, True]
