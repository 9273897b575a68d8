"""The figures of a report. Each is made to be read at a width of 500 pixels, and on a phone."""

from __future__ import annotations

import itertools
import math
import textwrap
from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator, ScalarFormatter

from twin_graph.snapshots.ledger import ONLY_LEARNER

if TYPE_CHECKING:  # these import TensorFlow, and rliable, which few pictures need
    from twin_graph.analysis.compare import Comparison
    from twin_graph.experiments.results import Curve, Result
    from twin_graph.experiments.statistics import Band, Estimate

# Told apart by those who do not see all colours, and in print (after Okabe and Ito 2008).
_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#b8860b", "#56b4e9")
_DASHES: tuple[Any, ...] = (
    "solid",
    (0, (5, 1.5)),
    (0, (1, 1)),
    (0, (7, 1.5, 1, 1.5)),
    (0, (3, 1, 1, 1, 1, 1)),
    (0, (9, 2)),
)
_MARKS = "osD^vP"  # once the colours are used up
_GREY, _LIGHT = "#6b7280", "#d1d5db"
_WIDTH = 5.2  # inches
_FONT = 9
_LEGEND_LINE = 0.18  # inches
_PARTS = 80


class Line(NamedTuple):
    """One condition in a figure of lines: its band, and the runs that it is made of."""

    name: str
    band: Band | None
    runs: Sequence[Curve] = ()


def lines(series: Sequence[Line], x_label: str, y_label: str, *, at: float | None = None, at_label: str = "") -> Figure:
    """Bands over the same axis: together while they are few, else one per panel, with the others in grey behind it.

    Args:
      series: what to draw.
      x_label, y_label: of the axes.
      at, at_label: a horizontal line and its label.
    """
    if len(series) <= len(_COLOURS):
        figure = _figure(3.4)
        axes = figure.subplots()
        for line, colour, dashes in zip(series, _COLOURS, _DASHES, strict=False):
            _line(axes, line, colour, dashes)
        _reference(axes, at, at_label)
        _finish(axes, x_label, y_label)
        handles, labels = axes.get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside upper left", ncols=2, frameon=False, fontsize=8.5)
        return figure
    figure, panels = _panels([line.name for line in series], x_label, y_label)
    for panel, line in zip(panels, series, strict=True):
        for other in series:
            if other.band:
                panel.plot(other.band.at, other.band.value, color=_LIGHT, linewidth=0.8)
        _line(panel, line, _COLOURS[0], _DASHES[0])
        _reference(panel, at, "")
    for panel in panels:  # only now: they share their axes, and limits once set no longer make room
        _finish(panel)
    return figure


def profiles(names: Sequence[str], bands: Sequence[Band | None], at: np.ndarray) -> Figure:
    """Performance profiles: the share of runs above each score."""
    series = [Line(name, band and band._replace(at=list(at))) for name, band in zip(names, bands, strict=True)]
    return lines(series, "normalised score", "share of runs above it")


def intervals(
    panels: Sequence[tuple[str, Sequence[Estimate]]], names: Sequence[str], *, at: float | None = None
) -> Figure:
    """Numbers with their intervals, a row for each condition; several numbers one above the other."""
    figure = _figure(len(panels) * (0.75 + 0.27 * len(names)))
    for axes, (label, estimates) in zip(np.atleast_1d(figure.subplots(len(panels))), panels, strict=True):
        for row, estimate in enumerate(estimates):
            if math.isnan(estimate.value):
                axes.text(
                    0.02,
                    row,
                    "no run is done",
                    transform=axes.get_yaxis_transform(),
                    color=_GREY,
                    va="center",
                    fontsize=_FONT,
                )
                continue
            axes.plot([estimate.low, estimate.high], [row, row], color=_COLOURS[0], linewidth=5, alpha=0.35)
            axes.plot([estimate.value], [row], marker="o", markersize=5, color=_COLOURS[0])
        _rows(axes, names)
        if at is not None:
            axes.axvline(at, color=_GREY, linewidth=1, linestyle="--")
        _finish(axes, label)
    return figure


def dots(panels: Sequence[tuple[str, float, Sequence[Sequence[float]]]], names: Sequence[str]) -> Figure:
    """A dot for each run, a row for each condition; the number of infinite ones is on the right.

    Args:
      panels: label, end of the axis, and values by condition; one panel above the other.
      names: of the conditions.
    """
    figure = _figure(len(panels) * (0.75 + 0.27 * len(names)))
    for axes, (label, end, rows) in zip(np.atleast_1d(figure.subplots(len(panels))), panels, strict=True):
        for row, values in enumerate(rows):
            there = sorted(value for value in values if math.isfinite(value))
            axes.plot(there, [row] * len(there), "o", markersize=5, color=_COLOURS[0], alpha=0.7)
            if never := len(values) - len(there):
                axes.text(1.02 * end, row, f"{never} never", color=_COLOURS[1], va="center", fontsize=8)
        _rows(axes, names)
        axes.set_xlim(0, 1.18 * end)
        _finish(axes, label)
    return figure


def served(results: Sequence[tuple[str, Result]]) -> Figure:
    """Which snapshot supplied the targets of which updates: a stroke for each time that one did."""
    figure, panels = _panels([name for name, _ in results], "update", "committed at update")
    for panel, (_, result) in zip(panels, results, strict=True):
        panel.plot([0, result.updates], [0, result.updates], color=_LIGHT, linewidth=1)
        for service in result.services:
            other = service.by_hand or service.learner == "b"
            for committed in service.committed:
                panel.plot(
                    [service.first - 1, service.last],
                    [committed, committed],
                    color=_COLOURS[1] if other else _COLOURS[0],
                    linewidth=1.2 if other else 2.4,
                    solid_capstyle="butt",
                )
    for panel in panels:
        _finish(panel)
    return figure


def against(points: Mapping[str, Sequence[tuple[float, float]]], x_label: str, y_label: str) -> Figure:
    """Numbers against what they were predicted to be, a colour and a mark for each name, and the diagonal."""
    figure = _figure(4.2 + _LEGEND_LINE * math.ceil(len(points) / 2))
    axes = figure.subplots()
    looks = itertools.cycle(itertools.product(_MARKS, _COLOURS))
    for (name, pairs), (mark, colour) in zip(points.items(), looks, strict=False):
        predicted, observed = ([pair[i] for pair in pairs] for i in (0, 1))
        axes.plot(predicted, observed, mark, color=colour, markersize=3, alpha=0.5, markeredgewidth=0, label=name)
    ends = [function(pair[0] for pairs in points.values() for pair in pairs) for function in (min, max)]
    axes.plot(ends, ends, color=_GREY, linewidth=1, linestyle="--")
    _finish(axes, x_label, y_label)
    figure.legend(loc="outside upper left", ncols=2, frameon=False, fontsize=8.5)
    return figure


def compared(comparison: Comparison, names: Sequence[str]) -> Figure:
    """Two runs by updates, one panel above the other: their scores, and how far apart Q values and weights are."""
    figure = _figure(6.2)
    scores, q_values, weights = figure.subplots(3, sharex=True)
    curves = [
        (
            f"{name}{'' if learner == ONLY_LEARNER else f', learner {learner}'}",
            [s for s in of_run if s.learner == learner],
        )
        for name, of_run in zip(names, comparison.scores, strict=True)
        for learner in dict.fromkeys(score.learner for score in of_run)
    ]
    for (name, curve), colour, dashes in zip(curves, _COLOURS, _DASHES, strict=False):
        at = [score.updates for score in curve]
        scores.fill_between(at, [s.low for s in curve], [s.high for s in curve], color=colour, alpha=0.18, linewidth=0)
        mark = "o" if len(at) <= 25 else ""
        scores.plot(at, [s.mean for s in curve], color=colour, linestyle=dashes, marker=mark, markersize=3, label=name)
    for learner, dashes in zip(dict.fromkeys(pair.learner for pair in comparison.pairs), _DASHES, strict=False):
        pairs = [pair for pair in comparison.pairs if pair.learner == learner]
        for axes, name in ((q_values, "q_distance"), (weights, "relative")):
            at = [pair.updates for pair in pairs if getattr(pair, name) is not None]
            apart = [value for pair in pairs if (value := getattr(pair, name)) is not None]
            axes.plot(at, apart, marker="o", markersize=3, color=_GREY, linestyle=dashes)
    for axes in (scores, q_values, weights):
        axes.axvline(comparison.equal, color=_GREY, linewidth=1, linestyle="--")
    _finish(scores, "", "score")
    _finish(q_values, "", "mean |Q - Q'|")
    _finish(weights, "update (dashed: equal until here)", "distance of weights / norm")
    figure.legend(*scores.get_legend_handles_labels(), loc="outside upper left", ncols=2, frameon=False, fontsize=8.5)
    return figure


def ages(results: Sequence[Result]) -> Callable[[Result], Curve]:
    """Returns what computes the age of a run's targets by update, as means over equal parts, the same for all runs.

    A part is as long as some refreshes, or the line would show nothing but the age that grows from one to the next.
    """
    updates = max(result.updates for result in results)
    periods = [median(s.last - s.first + 1 for s in own) for result in results if (own := result.own_services)]
    period = max(1, round(max(periods, default=1)))
    part = period * max(1, updates // _PARTS // period)
    edges = list(range(0, updates + 1, part)) if part <= updates else [0, updates]

    def of(result: Result) -> Curve:
        means = {last: result.mean_age(first + 1, last) for first, last in itertools.pairwise(edges)}
        return {update: age for update, age in means.items() if age is not None}

    return of


def heat_map(values: np.ndarray, rows: Sequence[str], columns: Sequence[str], label: str) -> Figure:
    """Shares from 0 to 1 as colours, with the number in each cell; cells that are not a number stay empty.

    Args:
      values: `[len(rows), len(columns)]`.
      rows, columns: their names.
      label: what the colours say.
    """
    figure = Figure(figsize=(_WIDTH + 0.3 * len(columns), 1.2 + 0.36 * len(rows)), layout="constrained")
    axes = figure.subplots()
    axes.imshow(values, cmap="RdBu", vmin=0, vmax=1, aspect="auto")
    axes.set_xticks(range(len(columns)), columns, rotation=45, ha="right", fontsize=_FONT - 1)
    axes.set_yticks(range(len(rows)), rows, fontsize=_FONT - 1)
    for (row, column), value in np.ndenumerate(values):
        if not math.isnan(value):
            colour = "white" if abs(value - 0.5) > 0.3 else "black"
            axes.text(column, row, f"{100 * value:z.0f}", ha="center", va="center", fontsize=_FONT - 2, color=colour)
    axes.set_title(f"{label}, in %", fontsize=_FONT)
    axes.tick_params(length=0)
    for spine in axes.spines.values():
        spine.set_visible(False)
    return figure


def _figure(height: float) -> Figure:
    return Figure(figsize=(_WIDTH, height), layout="constrained")


def _panels(names: Sequence[str], x_label: str, y_label: str) -> tuple[Figure, list[Axes]]:
    """A panel for each name, two in a row, with the same axes."""
    columns = min(2, len(names))
    rows = math.ceil(len(names) / columns)
    figure = _figure(0.5 + 1.4 * rows if columns > 1 else 3.2)
    grid = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False).reshape(-1)
    for panel, name in zip(grid, names, strict=False):
        panel.set_title(textwrap.fill(name, 32), fontsize=8.5, loc="left")
    for panel in grid[len(names) :]:
        panel.set_visible(False)
    figure.supxlabel(x_label, fontsize=_FONT)
    figure.supylabel(y_label, fontsize=_FONT)
    return figure, list(grid[: len(names)])


def _line(axes: Axes, line: Line, colour: str, dashes: Any) -> None:
    for run in line.runs:
        axes.plot(list(run), list(run.values()), color=colour, linewidth=0.6, alpha=0.35)
    if line.band is None:
        axes.plot([], [], color=colour, label=f"{line.name} (nothing)")
        return
    mark = "o" if len(line.band.at) <= 25 else ""
    axes.fill_between(line.band.at, line.band.low, line.band.high, color=colour, alpha=0.18, linewidth=0)
    axes.plot(
        line.band.at,
        line.band.value,
        color=colour,
        linestyle=dashes,
        linewidth=1.8,
        marker=mark,
        markersize=3,
        label=line.name,
    )


def _reference(axes: Axes, at: float | None, label: str) -> None:
    if at is not None:
        axes.axhline(at, color=_GREY, linewidth=1, linestyle="--", label=label or None)


def _rows(axes: Axes, names: Sequence[str]) -> None:
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(len(names) - 0.5, -0.5)


def _finish(axes: Axes, x_label: str = "", y_label: str = "") -> None:
    axes.set_xlabel(x_label, fontsize=_FONT)
    axes.set_ylabel(y_label, fontsize=_FONT)
    axes.tick_params(labelsize=8.5)
    low, high = axes.get_ylim()
    if 0 <= low < high:  # what cannot be negative begins at 0, so that small differences look small
        axes.set_ylim(bottom=0)
    axes.grid(color="#e5e7eb", linewidth=0.7)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.xaxis.set_major_locator(MaxNLocator(5))
    axes.xaxis.set_major_formatter(FuncFormatter(_thousands))
    if isinstance(axes.yaxis.get_major_formatter(), ScalarFormatter):  # and not the names of rows
        axes.yaxis.set_major_formatter(FuncFormatter(_thousands))


def _thousands(value: float, position: Any = None) -> str:  # noqa: ARG001
    return f"{value / 1000:,.6g}k" if abs(value) >= 1_000 else f"{value:z,.6g}"
