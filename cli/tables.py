"""Facts and tables for people: no name, number or hash is broken, and what does not fit goes on in a line below."""

import re
from collections.abc import Iterable, Sequence

from rich.cells import cell_len
from rich.console import Console

from twin_graph.base.text import printable

from .params import stdout

_GAP = "  "
#: What is kept together of a heading: all of it, its words, or their parts. The first way that makes a table fit.
_WHOLE = re.compile(r".+"), re.compile(r"\S+"), re.compile(r"[^\s-]+-*|-+")


def print_text(text: str, console: Console = stdout) -> None:
    """Prints sentences."""
    _print(_wrapped(text, console.width), console)


def print_facts(facts: Iterable[tuple[str, str]], console: Console = stdout) -> None:
    """Prints names, and beside each what is known of it."""
    facts = [(printable(name, one_line=True), printable(text)) for name, text in facts]
    beside = max(cell_len(name) for name, _ in facts) + len(_GAP)
    lines: list[str] = []
    for name, text in facts:
        longest = max(map(cell_len, text.split()), default=0)
        fits = beside + longest <= console.width
        indent = beside if fits else max(0, console.width - longest)
        first, *rest = _wrapped(text, console.width - indent)
        lines += [_padded(name, beside) + first] if fits else [name, " " * indent + first]
        lines += [" " * indent + line for line in rest]
    _print(lines, console)


def print_table(
    headings: Sequence[str], rows: Iterable[Sequence[str]], *, left: int = 1, console: Console = stdout
) -> None:
    """Prints rows under headings. Where they are too wide, the first cell of each has a line of its own.

    Args:
      headings: of the columns.
      rows: a cell for each column; one more is a note, for which there is no heading.
      left: how many columns, the first ones, are aligned left; the others are aligned right.
      console: where to.
    """
    rows, count = [[printable(cell, one_line=True) for cell in row] for row in rows], len(headings)
    cells = [max((cell_len(row[i]) for row in rows), default=0) for i in range(count)]
    heads, widths = _columns(headings, cells, console.width)
    if is_stacked := count > 1 and _total(widths) > console.width:
        rest = _columns(headings[1:], cells[1:], console.width - len(_GAP))
        heads, widths = [[headings[0]], *rest[0]], [widths[0], *rest[1]]

    def lines_of(row: Sequence[str]) -> list[str]:
        aligned = [_padded(row[i], widths[i], right=i >= left) for i in range(count)]
        parts = [aligned[:1], ["", *aligned[1:]]] if is_stacked else [aligned]
        return [_GAP.join(part).rstrip() for part in parts]

    height = max(map(len, heads))
    tops = [[""] * (height - len(head)) + head for head in heads]
    if is_stacked:
        tops[0].reverse()
    _print([line for top in zip(*tops, strict=True) for line in lines_of(top) if line], console, style="bold")
    lines: list[str] = []
    for row in rows:
        lines += lines_of(row[:count])
        if note := "".join(row[count:]):
            beside = lines[-1] + _GAP + note
            if cell_len(beside) <= console.width:
                lines[-1] = beside
            else:
                lines += [2 * _GAP + line for line in _wrapped(note, console.width - 2 * len(_GAP))]
    _print(lines, console)


def _columns(headings: Sequence[str], cells: Sequence[int], room: int) -> tuple[list[list[str]], list[int]]:
    """Headings, broken as far as columns with cells of these widths need to fit, and the columns' widths."""
    for whole in _WHOLE:
        widths = [max(cell, *map(cell_len, whole.findall(name))) for name, cell in zip(headings, cells, strict=True)]
        if _total(widths) <= room:
            break
    heads = [_wrapped(name, width, whole) for name, width in zip(headings, widths, strict=True)]
    return heads, widths


def _total(widths: Sequence[int]) -> int:
    return sum(widths) + len(_GAP) * (len(widths) - 1)


def _padded(text: str, width: int, *, right: bool = False) -> str:
    padding = " " * (width - cell_len(text))
    return padding + text if right else text + padding


def _wrapped(text: str, width: int, whole: re.Pattern[str] = _WHOLE[1]) -> list[str]:
    """The text in lines of at most so many columns; a word that is wider is a line of its own."""
    lines = []
    for paragraph in text.splitlines() or [""]:
        line = ""
        for word in re.findall(rf"\s*(?:{whole.pattern})", paragraph):
            if line and cell_len(line + word) > width:
                lines.append(line)
                line = word.lstrip()
            else:
                line += word
        lines.append(line)
    return lines


def _print(lines: Sequence[str], console: Console, *, style: str = "") -> None:
    if lines:
        console.print("\n".join(lines), style=style, soft_wrap=True)
