"""Runs of strangers: no command and no route of the page runs their code, leaves their folder or fails on them.

The runs are those of tests/hostile.py, each given to all commands that need no TensorFlow, in this process.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import hostile
import pytest
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from twin_graph_cli import main

from twin_graph.base import modules
from twin_graph.config import trust
from twin_graph.errors import TwinGraphError
from twin_graph.view import server
from twin_graph.view.library import Library

_MOST_SECONDS = 5.0
VARIANTS = dict(hostile.variants())


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(modules, "_here", [])
    monkeypatch.setattr(trust, "_read", set())
    monkeypatch.setattr(trust, "_given", set())
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(sys, "path_hooks", [*sys.path_hooks])
    modules.find_here()
    yield tmp_path
    sys.modules.pop("evil", None)


def _run(words: str) -> tuple[str, int, float]:
    """What a command printed, its exit code, and how long it took."""
    output, code, began = io.TextIOWrapper(io.BytesIO(), encoding="utf-8", newline="\n"), 0, time.monotonic()
    argv, sys.argv = sys.argv, ["twin-graph", *words.split()]
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output), main.began_here():
        try:
            found: Any = main._run(debug=False)
            code = found if isinstance(found, int) else 0
        except SystemExit as ended:
            code = int(ended.code or 0)
        finally:
            sys.argv = argv
    output.seek(0)
    return output.read(), code, time.monotonic() - began


def _ask(app: Starlette, route: str) -> tuple[int, bytes]:
    """The status and the body of an answer."""
    path, _, query = route.partition("?")
    sent: list[Any] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {"type": "http", "method": "GET", "path": unquote(path), "query_string": query.encode(), "headers": []}
    asyncio.run(app({**scope, "root_path": "", "scheme": "http", "http_version": "1.1"}, receive, send))
    return sent[0]["status"], b"".join(message.get("body", b"") for message in sent[1:])


def _strings(document: Any) -> Iterator[str]:
    if isinstance(document, str):
        yield document
    elif isinstance(document, list | dict):
        for part in document:
            yield from _strings(part)
        if isinstance(document, dict):
            yield from _strings([*document.values()])


@pytest.mark.parametrize("name", VARIANTS)
def test_a_hostile_run_is_shown_or_refused_by_every_route_of_the_page(name: str, here: Path) -> None:
    run = hostile.make(here, VARIANTS[name])
    before = hostile.outside(here)
    library = Library([run, run.parent / "good"], None)
    app = Starlette(
        routes=server._Api(library, allow_swaps=False).routes(),
        exception_handlers={TwinGraphError: server._failed, HTTPException: server._refused},
    )
    wrong = []
    for index in (0, 1):
        for route in hostile.ROUTES:
            began = time.monotonic()
            status, body = _ask(app, route.format(index))
            if time.monotonic() - began > _MOST_SECONDS:
                wrong.append(f"{route}: {time.monotonic() - began:.1f} s")
            may_fail = not index or "differences" in route
            if status not in (200, 400, 404, *([500] if may_fail else [])):
                wrong.append(f"{route.format(index)}: {status} {body[:200]!r}")
            wrong += [f"{route}: {text!r}" for text in _strings(json.loads(body)) if hostile.RAW.search(text)]
    wrong += hostile.complaints(here, before, hostile.outside(here), "", 0)
    assert not wrong, "\n".join(wrong)


def test_there_are_enough_of_them() -> None:
    assert len(VARIANTS) >= 100


@pytest.mark.parametrize("name", VARIANTS)
def test_a_hostile_run_is_read_or_refused_by_every_command(name: str, here: Path) -> None:
    hostile.make(here, VARIANTS[name])
    wrong = []
    before = hostile.outside(here)
    for i, words in enumerate(hostile.PLAIN_COMMANDS):
        output, code, seconds = _run(words.format(fork=here / f"fork{i}"))
        after = hostile.outside(here)
        wrong += [f"{words}: {complaint}" for complaint in hostile.complaints(here, before, after, output, code)]
        before = after
        if seconds > _MOST_SECONDS:
            wrong.append(f"{words}: {seconds:.1f} s")
    assert not wrong, "\n".join(wrong)
