"""A small experiment, and results that nobody trained."""

from collections.abc import Callable

from twin_graph.experiments import plan, results

FILE = """
name = "tiny"
preset = "cartpole"
steps = 600
seeds = [1, 2]

[settings]
train.chunk_steps = 0
twin.compiled = false
train.start_steps = 200
train.every_steps = 4
train.batch_size = 16
model.hidden_units = [16]
target.refresh_every_updates = 20
resume.every_steps = 200
evaluate.every_steps = 200
evaluate.episodes = 3
log.every_steps = 100

[factors]
target.policy = ["latest", "lag(40)"]
"""


RUNS = ["latest,seed=1", "lag-40,seed=1", "latest,seed=2", "lag-40,seed=2"]


def changed(before: str, after: str) -> str:
    assert before in FILE
    return FILE.replace(before, after)


def made_up(planned: plan.Plan, scores: Callable[[str, int], float], failed: str = "") -> list[results.Result]:
    """Runs that all are done but for those of one condition, by condition and seed."""
    return [
        results._nothing(results.State(run, "failed" if run.condition == failed else "done", 600))._replace(
            scores={600: scores(run.condition, run.seed)}, games=20
        )
        for run in planned.runs
    ]
