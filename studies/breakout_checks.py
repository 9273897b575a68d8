"""Tests two explanations of why Breakout stops improving, on the run itself.

    python studies/breakout_checks.py RUN > studies/results/breakout-before/checks.json

`waiting` is the share of the agent steps in the replay at which there was no ball: a life was lost, and FIRE was not
pressed yet. `agreement` is the share of observations, spread over the replay, on which the last snapshot prefers the
same action in bfloat16 as in float32; `regret` is how much less Q its choices in bfloat16 have, and `gap` the median
distance of the best action's Q to the next one's, both by float32.
"""

import json

import click
import numpy as np

from twin_graph.evaluation.player import spec_of
from twin_graph.replay.ring import STORED
from twin_graph.snapshots.resumable import newest_point
from twin_graph.snapshots.run import Run, find
from twin_graph.twin.twin import Compute, Twin

FIRE = 1  # of NOOP, FIRE, RIGHT, LEFT


def replayed(run: Run) -> tuple[float, int, np.ndarray]:
    """The share of agent steps without a ball, the number of steps, and observations from all over the replay."""
    points, point = run.points(), newest_point(run).point
    observations, waiting = list[np.ndarray](), np.zeros(run.settings.env.count, bool)
    waited = steps = 0
    for segment in point.segments:
        arrays = points.read_segment(segment, STORED)
        for actions, ended in zip(arrays["actions"], arrays["terminal"] | arrays["last"], strict=True):
            waiting &= actions != FIRE
            waited += int(waiting.sum())
            waiting |= ended
        steps += arrays["actions"].size
        observations.append(arrays["frames"][: run.settings.env.stack].swapaxes(0, 1))
    return waited / steps, steps, np.concatenate(observations)


def q_values(run: Run, precision: str, observations: np.ndarray) -> np.ndarray:
    """By the last snapshot, `[B, A]`."""
    with Twin(
        precision, spec_of(run), compute=Compute(threads=run.settings.twin.threads, precision=precision), learns=False
    ) as twin:
        twin.restore_snapshot(run.resolve("latest"), run.store())
        return np.concatenate([twin.q_values(part) for part in np.array_split(observations, 100)])


@click.command()
@click.argument("folder", metavar="RUN")
def main(folder: str) -> None:
    """Print the findings as JSON."""
    run = find(folder)
    waiting, steps, observations = replayed(run)
    q, rounded = (q_values(run, precision, observations) for precision in ("fp32", "bf16"))
    ours, theirs = q.argmax(axis=1, keepdims=True), rounded.argmax(axis=1, keepdims=True)
    regret = np.take_along_axis(q, ours, 1) - np.take_along_axis(q, theirs, 1)
    best, second = np.sort(q, axis=1)[:, :-3:-1].T
    found = {
        "agent_steps": steps,
        "waiting": round(waiting, 4),
        "observations": len(q),
        "agreement": round(float((ours == theirs).mean()), 4),
        "regret": round(float(regret.mean()), 7),
        "gap": round(float(np.median(best - second)), 4),
    }
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
