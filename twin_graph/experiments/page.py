"""A report as one HTML page that needs nothing else, and as Markdown."""

import base64
import re
from collections.abc import Mapping, Sequence
from html import escape
from importlib.metadata import version
from typing import NamedTuple

from matplotlib.figure import Figure

from twin_graph.snapshots.ledger import utc_now


class Picture(NamedTuple):
    """A figure with its file's name, its heading, and what it shows."""

    name: str
    heading: str
    text: str
    figure: Figure


class Table(NamedTuple):
    """Rows under a heading; numbers are aligned right."""

    heading: str
    text: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]


class Page(NamedTuple):
    """The content of a report, before it is HTML or Markdown.

    Attributes:
      title, lead: what it is about.
      findings: what the numbers say, a sentence each.
      warnings: what they cannot say.
      comparison, runs: tables.
      pictures: the figures.
      method: how it was computed, a sentence each.
    """

    title: str
    lead: str
    findings: list[str]
    warnings: list[str]
    comparison: Table
    pictures: list[Picture]
    runs: Table
    method: list[str]


def markdown(page: Page) -> str:
    """The page as Markdown, with its pictures in separate files."""

    def table(t: Table) -> str:
        lines = [t.columns, ["---"] * len(t.columns), *t.rows]
        body = "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)
        return f"## {t.heading}\n\n{t.text}\n\n{body}"

    parts = [
        f"# {page.title}",
        page.lead,
        "\n".join(f"> **Warning.** {warning}\n>" for warning in page.warnings),
        "\n".join(f"- {finding}" for finding in page.findings),
        table(page.comparison),
        *(f"## {p.heading}\n\n{p.text}\n\n![{p.heading}]({p.name}.png)" for p in page.pictures),
        table(page.runs),
        "## Method\n\n" + "\n".join(f"- {line}" for line in page.method),
        _made(),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def html(page: Page, pictures: Mapping[str, bytes]) -> str:
    """The page as HTML; `pictures` are PNG files by name."""

    def items(lines: Sequence[str]) -> str:
        return "".join(f"<li>{escape(line)}</li>" for line in lines)

    def table(t: Table) -> str:
        head = "".join(f"<th>{escape(column)}</th>" for column in t.columns)
        rows = (zip(t.columns, row, strict=True) for row in t.rows)
        body = "".join(
            f"<tr><td>{escape(name)}</td>"
            + "".join(f'<td data-name="{escape(column)}">{_unbroken(cell)}</td>' for column, cell in cells)
            + "</tr>"
            for (_, name), *cells in rows
        )
        region = f'<div class=wide tabindex=0 role=region aria-label="{escape(t.heading)}">'
        inside = f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
        return f"<section><h2>{escape(t.heading)}</h2><p>{_rich(t.text)}</p>{region}{inside}</div></section>"

    def picture(p: Picture) -> str:
        heading, source = escape(p.heading), base64.b64encode(pictures[p.name]).decode()
        image = f'<img alt="{heading}" src="data:image/png;base64,{source}">'
        return f'<figure id="{p.name}"><h2>{heading}</h2>{image}<figcaption>{escape(p.text)}</figcaption></figure>'

    warnings = f"<section class=warnings><h2>Read this first</h2><ul>{items(page.warnings)}</ul></section>"
    title = escape(page.title)
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<link rel="icon" href="data:,">
<style>{_CSS}</style>
</head>
<body>
<main>
<header><h1>{title}</h1><p>{escape(page.lead)}</p></header>
{warnings if page.warnings else ""}
<section><h2>What the numbers say</h2><ul>{items(page.findings)}</ul></section>
{table(page.comparison)}
<div class=figures>
{"".join(picture(p) for p in page.pictures)}
</div>
{table(page.runs)}
<section><h2>Method</h2><ul>{items(page.method)}</ul></section>
<footer>{escape(_made())}</footer>
</main>
</body>
</html>
"""


def _rich(text: str) -> str:
    """Text as HTML, with `code` as Markdown writes it."""
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", escape(text))


def _unbroken(cell: str) -> str:
    """A cell as HTML: it may be broken before what is in parentheses, such as an interval, but nowhere else."""
    return re.sub(r"\([^)]*\)|^\S+ of \S+", lambda inside: inside[0].replace(" ", "\N{NO-BREAK SPACE}"), escape(cell))


def _made() -> str:
    return f"Made by twin-graph {version('twin-graph')}, {utc_now()[:16].replace('T', ' ')} UTC."


_CSS = """
:root { color-scheme: light; }
* { box-sizing: border-box; }
body { margin: 0; font: 16px/1.5 system-ui, sans-serif; color: #1f2937; background: #fff; overflow-wrap: anywhere; }
main { max-width: 1240px; margin: 0 auto; padding: 1.5rem 1rem 3rem; }
h1 { font-size: 1.7rem; line-height: 1.2; margin: 0 0 .5rem; }
h2 { font-size: 1.1rem; margin: 0 0 .4rem; }
p { margin: 0 0 .6rem; }
header p, section > p, section li { max-width: 75ch; }
ul { margin: 0; padding-left: 1.2rem; }
section { margin: 1.6rem 0; }
.warnings { background: #fff7ed; border-left: 4px solid #d55e00; padding: .8rem 1rem; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-size: .875rem; font-variant-numeric: tabular-nums; }
th, td { text-align: right; padding: .35rem .5rem; border-bottom: 1px solid #e5e7eb; overflow-wrap: normal; }
th { vertical-align: bottom; font-size: .8125rem; font-weight: 600; }
td { vertical-align: top; }
th:first-child, td:first-child { text-align: left; position: sticky; left: 0; background: #fff; padding-left: 0; }
td:first-child { overflow-wrap: anywhere; min-width: 7rem; }
tbody tr:first-child td { border-top: 1px solid #9ca3af; }
.figures { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 470px), 1fr)); }
.figures { gap: 2rem 2.5rem; align-items: start; }
figure { margin: 0; min-width: 0; }
figure img { display: block; width: 100%; height: auto; }
figcaption { font-size: .875rem; color: #4b5563; margin-top: .4rem; }
footer { color: #6b7280; font-size: .875rem; }
@media (max-width: 680px) {
  thead { display: none; }
  table, tbody, tr { display: block; }
  tr { padding: .5rem 0; border-bottom: 1px solid #e5e7eb; }
  td { display: flex; justify-content: space-between; gap: 1rem; padding: .1rem 0; border: 0; }
  td:first-child { font-weight: 600; position: static; }
  td:not(:first-child)::before { content: attr(data-name); color: #4b5563; text-align: left; }
  tbody tr:first-child td { border: 0; }
}
"""
