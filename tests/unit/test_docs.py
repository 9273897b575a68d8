"""The documentation's links lead somewhere, and its commands, options and settings exist."""

import ast
import re
import shlex
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from twin_graph_cli.main import cli

from twin_graph import config
from twin_graph.errors import UsageError

ROOT = Path(__file__).parents[2]
DOCS = sorted((ROOT / "docs").rglob("*.md"))
OTHERS = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "benchmarks/README.md", "checkpoints/README.md")
PAGES = [*(ROOT / name for name in OTHERS), *DOCS]
SECTIONS = {name.partition(".")[0] for name in config.setting_names() if "." in name}
#: `replay.py` and `store.json` are files.
FILES = (".csv", ".json", ".jsonl", ".npy", ".png", ".py", ".toml", ".zip")
#: Functions of other libraries.
FOREIGN = {"env.reset", "env.step", "model.learn", "model.load", "model.predict", "model.save"}

_FENCE = re.compile(r"^( *)```.*?^\1```", re.MULTILINE | re.DOTALL)
_INDENTED = re.compile(r"(?<=\n\n)(?: {4}.*\n)+")
_SPAN = re.compile(r"`([^`]+)`")

every_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))


def _prose(page: Path) -> str:
    return _INDENTED.sub("", _FENCE.sub("", page.read_text(encoding="utf-8")))


def _spans(page: Path) -> list[str]:
    """Inline code, each on one line."""
    return [" ".join(span.split()) for span in _SPAN.findall(_prose(page))]


def _code(page: Path) -> Iterator[str]:
    """Lines of code, inline or in blocks, without comments."""
    yield from _spans(page)
    text = page.read_text(encoding="utf-8")
    for block in [*_FENCE.finditer(text), *_INDENTED.finditer(_FENCE.sub("", text))]:
        for line in block[0].replace("\\\n", " ").splitlines():
            yield re.sub(r"(^|\s)#.*", "", line)


def _links(page: Path) -> list[str]:
    prose = _SPAN.sub("", _prose(page))
    links = re.findall(r"\]\(([^)\s]+)[^)]*\)|(?:src|href)=\"([^\"]+)\"|^\[[^]]+\]: (\S+)", prose, re.MULTILINE)
    return [link for found in links for link in found if link and "://" not in link]


def _anchors(page: Path) -> set[str]:
    """What GitHub makes of headings."""
    seen: Counter[str] = Counter()
    for heading in re.findall(r"^#+ (.*)$", _FENCE.sub("", page.read_text(encoding="utf-8")), re.MULTILINE):
        text = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading).lower()
        slug = re.sub(r"[^\w\- ]", "", text).replace(" ", "-")
        seen[slug] += 1
    return {f"{slug}-{n}" if n else slug for slug, count in seen.items() for n in range(count)}


def _target(page: Path, link: str) -> Path:
    path = link.partition("#")[0]
    return (page.parent / path).resolve() if path else page


@every_page
def test_links_and_pictures_lead_to_something(page: Path) -> None:
    wrong = []
    for link in _links(page):
        target, anchor = _target(page, link), link.partition("#")[2]
        if not target.exists() or (anchor and anchor not in _anchors(target)):
            wrong.append(link)
    assert wrong == []


def test_every_page_is_linked_from_another_or_from_the_site() -> None:
    nav = re.findall(r": (\S+\.md)$", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"), re.MULTILINE)
    linked = {ROOT / "docs" / name for name in nav}
    linked |= {_target(page, link) for page in PAGES for link in _links(page) if _target(page, link) != page}
    assert [page for page in DOCS if page not in linked] == []


def _commands(page: Path) -> Iterator[str]:
    """What follows `twin-graph`."""
    for line in _code(page):
        for part in re.split(r"\s(?:&&?|\|\|?|2?>>?)(?:\s|$)|;|\s{2,}(?=twin-graph )", line):
            found = re.search(r"(?:^|[\s/(\"])twin-graph +([^`]*)", part)
            if found:
                yield found[1].rstrip(' )"')


@every_page
def test_commands_exist_with_their_options(page: Path) -> None:
    wrong = []
    for text in _commands(page):
        try:
            _check(shlex.split(text))
        except (click.UsageError, UsageError, ValueError) as error:
            wrong.append(f"{text}: {error.message if isinstance(error, click.UsageError) else error}")
    assert wrong == []


def _check(words: list[str]) -> None:
    """Raises an error if there is no such command, option, value of an option, preset or setting.

    Words in capitals stand for something, as in `--seed N`, and `...` for more.
    """
    command: click.Command = cli
    context = click.Context(cli, info_name="twin-graph")
    while isinstance(command, click.Group):
        options, rest, _ = command.make_parser(context).parse_args([word for word in words if word != "..."])
        if not rest:
            return  # the group itself, or one of its own options
        found = command.get_command(context, rest[0])
        if found is None:
            raise ValueError(f"no command {rest[0]!r}")
        words, command, context = rest[1:], found, click.Context(found, context, info_name=rest[0])
    options, rest, _ = command.make_parser(context).parse_args(words)
    if rest:
        raise ValueError(f"too many arguments: {rest}")
    for parameter in command.params:
        value = options.get(parameter.name or "")
        if isinstance(parameter, click.Option) and isinstance(value, str) and not value.isupper():
            parameter.type_cast_value(context, value)
    preset = options.get("preset")
    assignments = [config.parse_assignment(text) for text in options.get("assignments") or () if text != "KEY=VALUE"]
    for name, _ in assignments:
        if not config.is_setting(name):
            raise ValueError(f"no setting {name}")
    if isinstance(preset, str) and preset != "..." and not preset.isupper():
        config.load(preset, assignments)


@every_page
def test_settings_exist(page: Path) -> None:
    names = [name for line in _code(page) for name in re.findall(r"--set [\"']?([\w.]+)=", line)]
    for span in _spans(page):
        found = re.fullmatch(r"([a-z]\w*\.[\w.]+?)(\.\.\.)?(=.*)?", span)
        if not found or found[1] in FOREIGN or found[1].endswith(FILES):
            continue
        if found[1].partition(".")[0] in SECTIONS:
            known = [name for name in config.setting_names() if name.startswith(found[1])] if found[2] else []
            names += known[:1] or [found[1]]
    assert [name for name in names if not config.is_setting(name) and name != "KEY"] == []


def test_what_rooms_export_is_what_the_reference_names() -> None:
    documented: dict[str, set[str]] = {}
    for path in re.findall(r"^::: ([\w.]+)$", (ROOT / "docs/reference/python.md").read_text(), re.MULTILINE):
        documented.setdefault(path.rpartition(".")[0], set()).add(path.rpartition(".")[2])
    exported: dict[str, set[str]] = {}
    for file in [*ROOT.glob("twin_graph/*.py"), *ROOT.glob("twin_graph/*/__init__.py")]:
        if names := re.search(r"^__all__ = (\[.*?\])", file.read_text(), re.MULTILINE | re.DOTALL):
            module = ".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
            exported[module] = set(ast.literal_eval(names[1]))
    root = exported.pop("twin_graph")
    assert root <= set().union(*documented.values()) | {"Settings", "TwinGraphError"}
    assert exported == {module: documented.get(module) for module in exported}
    rooms = {module for module in documented if (ROOT / module.replace(".", "/") / "__init__.py").exists()}
    assert rooms - {"twin_graph"} <= exported.keys()
