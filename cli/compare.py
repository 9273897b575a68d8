"""`twin-graph compare`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from twin_graph.base import new_files
from twin_graph.records import code
from twin_graph.snapshots.ledger import ONLY_LEARNER
from twin_graph.snapshots.run import find

from .params import PATH, complete_run, json_option, print_json, say, trust_option
from .tables import print_table, print_text

if TYPE_CHECKING:  # imports TensorFlow
    from twin_graph.analysis.compare import Comparison


@click.command()
@click.argument("first", shell_complete=complete_run)
@click.argument("second", shell_complete=complete_run)
@click.option("--plot", type=PATH, help="Also write a picture to this PNG, SVG or PDF file.")
@trust_option
@json_option
def compare(first: str, second: str, plot: Path | None, as_json: bool) -> None:
    """Show where runs FIRST and SECOND diverge, and by how much.

    Lists the settings, processors and versions that differ, the first thing that the runs did differently, and, for
    each pair of snapshots made after the same number of updates, how far apart they are in weights and in Q values on a
    fixed set of observations.

    \b
    Example:
      twin-graph compare pong-seed1-1 pong-seed1-1-fork1 --plot parted.png
    """
    runs = find(first), find(second)
    new_files.check_picture(plot)

    from twin_graph.analysis import compare as comparing

    found = comparing.compare(*runs)
    names = [run.name if runs[0].name != runs[1].name else str(run.folder) for run in runs]
    if plot:
        from twin_graph.experiments import figures, fonts

        fonts.save(figures.compared(found, names), plot, dpi=160)
        say(f"picture: {plot}")
        for sentence in fonts.without_font(names):
            say(sentence)
    mixed = list(code.mixed(dict(zip(names, found.code, strict=True))))
    if as_json:
        parted = found.parted and found.parted._asdict()
        document = {
            "runs": names,
            "settings": _named(found.settings),
            "machines": _named(found.machines),
            "different_code": mixed,
            "equal_updates": found.equal,
            "parted": parted,
            "pairs": [pair._asdict() for pair in found.pairs],
            "scores": [[score._asdict() for score in scores] for scores in found.scores],
        }
        print_json(document)
        return
    for name, ours, theirs in (*found.settings, *found.machines):
        print_text(f"{name}: {ours} in {names[0]}, {theirs} in {names[1]}")
    for sentence in mixed:
        print_text(sentence)
    if not found.settings:
        print_text("equal settings" if not mixed else "equal settings, but different code")
    print_text(f"equal up to update {found.equal:,}")
    if found.parted is None:
        print_text("no difference in what both runs recorded")
        return
    words = f"first difference, after update {found.parted.updates:,}: {found.parted.what} is"
    ours, theirs = (f"{what or 'missing'} in {name}" for what, name in zip(found.parted[2:], names, strict=True))
    print_text(f"{words} {ours}, {theirs}")
    if not found.settings and not found.machines and not mixed:
        print_text(f"nothing else that is recorded differs: {found.recorded}")
    if not found.pairs:
        print_text("no pair of snapshots made after the same number of updates still has weights")
        return
    _print_pairs(found, names)


def _named(differences: Sequence[tuple[str, Any, Any]]) -> list[dict[str, Any]]:
    return [{"name": name, "first": ours, "second": theirs} for name, ours, theirs in differences]


def _print_pairs(found: Comparison, names: Sequence[str]) -> None:
    """A row for each pair of snapshots; with whose they are, if there are two learners."""
    two = any(pair.learner != ONLY_LEARNER for pair in found.pairs)
    headings = (
        *(["learner"] if two else []),
        "updates",
        "agent steps",
        "weights apart",
        "|Q-Q'|",
        "same action",
        *(f"score of {n}" for n in names),
    )
    rows = []
    scores = [{score.snapshot: f"{score.mean:z.2f}" for score in of_run} for of_run in found.scores]
    for pair in found.pairs:
        numbers = [
            "-" if pair.relative is None else f"{100 * pair.relative:.3g}%",
            "-" if pair.q_distance is None else f"{pair.q_distance:.3g}",
            "-" if pair.agreement is None else f"{pair.agreement:.0%}",
        ]
        played = scores[0].get(pair.first, ""), scores[1].get(pair.second, "")
        whose = [pair.learner] if two else []
        rows.append([*whose, f"{pair.updates:,}", f"{pair.agent_steps:,}", *numbers, *played])
    print_table(headings, rows, left=0)
