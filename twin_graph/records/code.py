"""The users' modules that runs were trained with, and which of them were edited between these runs, or since."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from twin_graph.base.text import counted
from twin_graph.config import lookup
from twin_graph.snapshots.ledger import Fork, Start

if TYPE_CHECKING:
    from twin_graph.snapshots.run import Run

#: By module or package, what a run was trained with: SHA-256 of the module's file, several if it was edited meanwhile,
#: or the package's version.
Code = Mapping[str, Sequence[str]]

_DIGITS = 12  # of a hash, for people


def of(run: Run, *, since_fork: bool = False) -> Code:
    """The modules that a run's settings name, as the ledger has them; those of earlier versions' runs are not known.

    Args:
      run: which.
      since_fork: without what it was trained with before it was forked.
    """
    starts: list[Start] = []
    for event in run.ledger.newest_first(Start, Fork):
        if isinstance(event, Start):
            starts.insert(0, event)
        elif since_fork:
            break
    found: dict[str, tuple[str, ...]] = {}
    for start in starts:
        for module, digest in start.modules.items():
            found[module] = tuple(dict.fromkeys((*found.get(module, ()), digest)))
    return found


def packages(run: Run) -> Code:
    """The versions of the packages that a run began with, likewise."""
    return {name: (version,) for name, version in run.description["versions"].items()}


def edited(codes: Mapping[str, Code]) -> dict[str, list[str]]:
    """By module, the runs that were trained with another file than is there now.

    Args:
      codes: of runs, by their names.
    """
    found: dict[str, list[str]] = {}
    for run, code in codes.items():
        for module, digests in code.items():
            if any(lookup.edited({module: digest}) for digest in digests):
                found.setdefault(module, []).append(run)
    return found


def mixed(codes: Mapping[str, Code]) -> Iterator[str]:
    """A sentence on each module, or package, of which these runs have different versions, or one of them has several.

    Args:
      codes: of runs, by their names.
    """
    for module in dict.fromkeys(module for code in codes.values() for module in code):
        runs: dict[tuple[str, ...], list[str]] = {}
        for run, code in codes.items():
            if module in code:
                runs.setdefault(tuple(code[module]), []).append(run)
        if len(runs) > 1 or any(len(versions) > 1 for versions in runs):
            parts = (f"{some(names)} with {' and then '.join(map(_short, of))}" for of, names in runs.items())
            yield f"Different code of {module}: {'; '.join(parts)}"


def some(names: Sequence[str]) -> str:
    """The first of these names, and how many more there are."""
    return names[0] if len(names) == 1 else f"{names[0]} and {counted(len(names) - 1, 'more run')}"


def _short(version: str) -> str:
    return f"{version[:_DIGITS]}..." if len(version) == 64 else version
