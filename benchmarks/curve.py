"""Draws a run's learning curve: the true score of its snapshots, and of its training episodes.

python benchmarks/curve.py checkpoints/pong-seed1-1 benchmarks/results/pong/curve.png
"""

import datetime
from pathlib import Path

import click
import matplotlib as mpl

mpl.use("Agg")
import matplotlib.pyplot as plt

from twin_graph.snapshots.run import find


@click.command()
@click.argument("run")
@click.argument("picture", type=click.Path(path_type=Path))
def main(run: str, picture: Path) -> None:
    """Draw the learning curve of RUN into PICTURE (PNG or SVG)."""
    found = find(run)
    metrics = [line for line in found.metrics() if "train_return" in line]
    evaluations = [line for line in found.evaluations() if line["scheduled"]]
    times = [datetime.datetime.fromisoformat(event.time) for event in found.ledger.events()]
    minutes = (times[-1] - times[0]).total_seconds() / 60

    figure, axes = plt.subplots(figsize=(8, 4.2), layout="constrained")
    played = [line for line in metrics if line["train_return"] is not None]
    axes.plot(
        [line["agent_steps"] / 1000 for line in played],
        [line["train_return"] for line in played],
        color="#9aa7b4",
        linewidth=1,
        label="training, last 20 games, exploring",
    )
    steps = [line["agent_steps"] / 1000 for line in evaluations]
    axes.fill_between(
        steps,
        [line["interval_95"][0] for line in evaluations],
        [line["interval_95"][1] for line in evaluations],
        color="#0b6e99",
        alpha=0.2,
        linewidth=0,
    )
    axes.plot(
        steps,
        [line["mean"] for line in evaluations],
        color="#0b6e99",
        marker="o",
        markersize=4,
        label=f"snapshots, {evaluations[0]['episodes']} games each, 95% interval",
    )
    settings, processor = found.settings, found.description["cpu"]
    sticky = f"sticky {settings.env.sticky}" if settings.env.sticky else "no sticky actions"
    protocol = f", {sticky}" if settings.env.id.startswith("ALE/") else ""
    axes.set_title(
        f"{settings.env.id}, seed {settings.seed}{protocol}: {minutes:.0f} minutes\n"
        f"on {processor['cores']} cores ({processor['model']})",
        fontsize=10,
    )
    axes.set_xlabel("thousand agent steps")
    axes.set_ylabel("return of a game, unclipped")
    axes.grid(alpha=0.3)
    axes.legend(loc="upper left", frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(picture, dpi=130)


if __name__ == "__main__":
    main()
