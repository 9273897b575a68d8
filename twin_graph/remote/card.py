"""The card of a published run: a README.md whose head the Hugging Face hub reads, and what people want to know."""

from __future__ import annotations

import importlib.metadata
from typing import TYPE_CHECKING, Any

from twin_graph import config
from twin_graph.base.text import command, interval_before
from twin_graph.snapshots.lines import like_the_newest

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from twin_graph.snapshots.run import Run

#: Names in the repository: that of films is what the hub shows for agents.
CARD, FILM = "README.md", "replay.mp4"


def film_of(run: Run, snapshot_id: str) -> Path | None:
    """The film of a snapshot, or else the newest one; None if there is none."""
    films = sorted(run.videos.glob("*.mp4"), key=lambda path: (path.stem == snapshot_id, path.stat().st_mtime))
    return films[-1] if films else None


def played(run: Run) -> Mapping[str, Any] | None:
    """The evaluation to publish: of the best snapshot, the one with the most games, if possible after the training.

    Scores that chose the snapshot are too high, so those of other games are preferred.
    """
    scores = run.scores()
    best = run.store().best(scores)
    lines = [line for line in run.evaluation_lines() if best and line["snapshot"] == best.id]
    if not lines:
        return None
    return max(like_the_newest(lines), key=lambda line: (not line["scheduled"], len(line["returns"])))


def card(run: Run, url: str, *, film: bool) -> str:
    """The card's text.

    Args:
      run: what is published.
      url: of the repository.
      film: whether it holds a film.
    """
    from huggingface_hub import EvalResult, ModelCardData

    environment, found = run.settings.env.id, played(run)
    results = []
    if found:
        results = [
            EvalResult(
                task_type="reinforcement-learning",
                task_name="reinforcement-learning",
                dataset_type=environment,
                dataset_name=environment,
                metric_type="mean_reward",
                metric_name="mean_reward",
                metric_value=f"{found['mean']:.2f} +/- {_deviation(found['returns']):.2f}",
                verified=False,
            )
        ]
    about = ModelCardData(
        library_name="twin-graph",
        tags=[environment, "deep-reinforcement-learning", "reinforcement-learning", "deep-q-learning", "tensorflow"],
        model_name=run.name,
        eval_results=results or None,
    )
    return f"---\n{about.to_yaml()}\n---\n\n" + "\n\n".join(_paragraphs(run, url, found, film=film)) + "\n"


def _paragraphs(run: Run, url: str, found: Mapping[str, Any] | None, *, film: bool) -> Iterator[str]:
    settings, point = run.settings, run.points().newest()
    steps = f"{point.counters.agent_steps:,} agent steps" if point else "no resume point"
    yield f"# {run.name}"
    yield (
        f"An agent for **{settings.env.id}**, trained by deep Q-learning with twin-graph "
        f"{importlib.metadata.version('twin-graph')}: preset `{settings.preset}`, seed {settings.seed}, {steps}."
    )
    if film:
        yield f'<video src="{FILM}" controls></video>'
    yield "## Score"
    if found:
        when = "during training; the snapshot was chosen by this score" if found["scheduled"] else "after training"
        games = f"{interval_before(found['interval_95'])}{len(found['returns'])} games {when}"
        yield f"**{found['mean']:.2f}** ({games}), snapshot `{found['snapshot']}`."
        yield _table(("protocol", ""), found["protocol"].items())
    else:
        yield "No snapshot was evaluated."
    yield "## Use it"
    commands = [
        ("pip install 'twin-graph[remote]'", ""),
        (command("pull", url, "--run-dir", "checkpoints/" + run.name), "every snapshot, with its record"),
        (command("evaluate", run.name, found["snapshot"] if found else "latest"), "the score, in other games"),
        (command("record", run.name, found["snapshot"] if found else "latest"), "a film"),
        (command("reproduce", run.name), "trains the last stretch again and compares all weights"),
    ]
    width = max(len(line) for line, _ in commands)
    yield "```sh\n" + "\n".join(f"{line:{width}}  # {why}" if why else line for line, why in commands) + "\n```"
    changed = list(config.differences(config.load(settings.preset), settings)) if settings.preset else []
    yield "## Settings"
    if changed:
        yield f"Those of the preset `{settings.preset}`, but for"
        yield _table(("setting", "value"), ((f"`{key}`", f"`{after}`") for key, _, after in changed))
    else:
        yield f"Those of the preset `{settings.preset}`."


def _table(headings: tuple[str, str], rows: Any) -> str:
    lines = [f"| {headings[0]} | {headings[1]} |", "|---|---|"]
    return "\n".join([*lines, *(f"| {name} | {value} |" for name, value in rows)])


def _deviation(returns: list[float]) -> float:
    mean = sum(returns) / len(returns)
    return float((sum((one - mean) ** 2 for one in returns) / len(returns)) ** 0.5)
