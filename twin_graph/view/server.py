"""The page's server, for this machine alone: every request names the token, and nothing is written but swaps by hand.

http://127.0.0.1:PORT/TOKEN/                 the page and its files, from `static`
http://127.0.0.1:PORT/TOKEN/api/...          what it shows, as JSON; runs are named by their number in the library
http://127.0.0.1:PORT/TOKEN/api/events       what changes, as server-sent events
"""

from __future__ import annotations

import asyncio
import hmac
import json
import re
import socket
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import FileResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from twin_graph.errors import TwinGraphError, UsageError
from twin_graph.snapshots import swaps
from twin_graph.snapshots.run import Run
from twin_graph.targets.policies import PURPOSES
from twin_graph.view import connections
from twin_graph.view.records import Records, rounded

if TYPE_CHECKING:
    from twin_graph.view.library import Library

ADDRESS = "127.0.0.1"
STATIC = Path(__file__).parent / "static"

_LOOK_SECONDS = 1.0
_ALIVE_SECONDS = 15.0  # after which a comment is sent, so that a connection which is gone is noticed
_LARGEST_REQUEST = 10_000
_LARGEST_PAGE = 500

_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; media-src 'self'; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}


class Guard:
    """Lets through requests that name the token and were meant for this server; adds headers to every answer.

    The name that the browser asked for is checked, since another site's name may be made to resolve to this machine.
    """

    def __init__(self, app: ASGIApp, *, token: str, port: int, also: Sequence[str] = ()) -> None:
        self._app = app
        self._token = token.encode()
        names = (ADDRESS, "localhost")
        self._own = [f"{name}:{port}" for name in names]
        hosts = [*self._own, *(names if port == 80 else ())]  # browsers leave it out
        others = [name.lower() for name in also]
        self._hosts = {*hosts, *others}
        self._origins = {f"http://{host}" for host in self._hosts} | {f"https://{host}" for host in others}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                added = [(name.lower().encode(), value.encode()) for name, value in _HEADERS.items()]
                message["headers"] = [*message["headers"], *added]
            await send(message)

        refusal = self._refusal(scope)
        app: ASGIApp = self._app
        if refusal:
            closing = {"connection": "close"}
            app = PlainTextResponse(f"not for you: {refusal}\n", status_code=403, headers=closing)
        await app(scope, receive, with_headers)

    def _refusal(self, scope: Scope) -> str:
        """Why a request is not let through, and what to do; empty if it is."""
        headers: list[tuple[bytes, bytes]] = scope["headers"]
        hosts = [value.decode("latin-1").lower() for name, value in headers if name == b"host"]
        origins = [value.decode("latin-1") for name, value in headers if name == b"origin"]
        first = scope["path"].removeprefix("/").partition("/")[0].encode("utf-8", "surrogatepass")
        if not hmac.compare_digest(first, self._token):
            return "open the whole address that `twin-graph view` printed"
        if len(hosts) != 1 or hosts[0] not in self._hosts:
            asked = ", ".join(hosts) or "none"
            advice = f"; behind a proxy, let it send Host: {self._own[0]}"
            if len(hosts) == 1 and is_host(hosts[0]):
                advice += f", or allow this name: twin-graph view --host {hosts[0]}"
            return f"this page answers to the host {' or '.join(self._own)}, and was asked for as {asked}{advice}"
        if others := [origin for origin in origins if origin not in self._origins]:
            return f"{others[0]} is another site"
        return ""


def is_host(name: str) -> bool:
    """Whether it is a host's name or address, with a port or without."""
    return re.fullmatch(r"[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?(:\d{1,5})?", name) is not None


def listen(port: int) -> socket.socket:
    """A socket of this machine's loopback interface. Raises `UsageError` if the port is taken."""
    listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((ADDRESS, port))
        listening.listen()
    except OSError as error:
        listening.close()
        raise UsageError(f"port {port} cannot be used ({error.strerror}); choose another with --port") from None
    return listening


def serve(
    library: Library, listening: socket.socket, token: str, *, allow_swaps: bool, hosts: Sequence[str] = ()
) -> None:
    """Serves until the process is interrupted; `hosts` are names of a proxy's, to which it answers too."""
    api = _Api(library, allow_swaps=allow_swaps)
    inside = Mount(f"/{token}", routes=[*api.routes(), Mount("/", StaticFiles(directory=STATIC, html=True))])
    app = Starlette(routes=[inside], exception_handlers={TwinGraphError: _failed, HTTPException: _refused})
    guarded = Guard(app, token=token, port=listening.getsockname()[1], also=hosts)
    api.server = connections.Server(connections.config(guarded))
    sys.setswitchinterval(0.0005)  # seconds: files of the page are not to wait for a thread that reads runs
    threading.Thread(target=_read, args=(library,), daemon=True).start()
    api.server.run(sockets=[listening])


def _read(library: Library) -> None:
    """Reads all runs while the browser starts; the lock is free now and then for what it asks first."""
    library.changes(-1)
    while not library.is_read:
        time.sleep(0.01)
        library.changes(-1)


class _Api:
    """Requests for data. Starlette answers each in a thread; the library's lock lets one at a time read a run."""

    server: connections.Server

    def __init__(self, library: Library, *, allow_swaps: bool) -> None:
        self._library = library
        self._allow_swaps = allow_swaps

    def routes(self) -> list[Route]:
        """Everything that the page asks for; only a swap writes anything."""
        run = "/api/runs/{index:int}"
        routes = [
            Route("/api/runs", self._runs),
            Route("/api/events", self._events),
            Route("/api/differences", self._differences),
            Route(f"{run}/about", self._of_a_run(lambda records, _: records.about())),
            Route(f"{run}/curves", self._of_a_run(lambda records, _: records.curves())),
            Route(f"{run}/timeline", self._of_a_run(_timeline)),
            Route(f"{run}/episodes", self._of_a_run(lambda records, _: records.episodes())),
            Route(f"{run}/evaluations", self._of_a_run(_evaluations)),
            Route(f"{run}/ledger", self._of_a_run(_ledger)),
            Route(f"{run}/explain", self._of_a_run(_explain)),
            Route(f"{run}/snapshots/{{snapshot}}", self._of_a_run(_snapshot)),
            Route(f"{run}/films/{{snapshot}}", self._film),
        ]
        if self._allow_swaps:
            routes.append(Route(f"{run}/swap", self._swap, methods=["POST"]))
        return routes

    def _of_a_run(self, read: Callable[[Records, Request], Any]) -> Callable[[Request], Response]:
        def answer(request: Request) -> Response:
            with self._library.lock:
                return _json(read(self._library.find(request.path_params["index"]), request))

        return answer

    def _runs(self, request: Request) -> Response:  # noqa: ARG002
        version, runs = self._library.changes(-1)
        tree = self._library.tree()
        return _json({"version": version, "runs": runs, "tree": tree, "allow_swaps": self._allow_swaps})

    async def _events(self, request: Request) -> Response:
        since = request.headers.get("last-event-id") or request.query_params.get("since", "")
        return StreamingResponse(self._changes(_whole(since, "since")), media_type="text/event-stream")

    async def _changes(self, version: int) -> AsyncIterator[str]:
        sent = time.monotonic()
        while not self.server.should_exit:
            began = time.monotonic()
            version, runs = await run_in_threadpool(self._library.changes, version)
            if runs:
                tree = await run_in_threadpool(self._library.tree)  # both may wait for the lock of a long read
                yield f"id: {version}\ndata: {json.dumps(rounded({'runs': runs, 'tree': tree}))}\n\n"
                sent = time.monotonic()
            elif time.monotonic() - sent > _ALIVE_SECONDS:
                yield ": nothing new\n\n"
                sent = time.monotonic()
            if self._library.is_read:
                # Long records take long to look at: this takes a tenth of a processor, and no more.
                await asyncio.sleep(max(_LOOK_SECONDS, 10 * (time.monotonic() - began)))

    def _differences(self, request: Request) -> Response:
        indexes = [_whole(index, "runs") for index in request.query_params.get("runs", "").split(",")]
        with self._library.lock:
            return _json(self._library.differences(indexes))

    def _film(self, request: Request) -> Response:
        with self._library.lock:
            path = self._library.find(request.path_params["index"]).film(request.path_params["snapshot"])
        return FileResponse(path, media_type="video/mp4")

    async def _swap(self, request: Request) -> Response:
        """Answers when the trainer has, which may take as long as an evaluation."""
        wanted = await _body(request)

        def answer() -> Response:
            with self._library.lock:
                run = Run(self._library.find(request.path_params["index"]).run.folder)
            how = {name: wanted[name] for name in ("into", "learner", "dry_run", "yes")}
            if wanted["undo"]:
                outcome = swaps.undo(run, **how)
            else:
                outcome = swaps.swap(run, wanted["reference"], hold=wanted["hold"], **how)
            done = outcome.answer.done if outcome.answer else True
            told = {"message": outcome.message, "snapshot": outcome.snapshot, "loss": outcome.loss}
            return _json({"done": done, **told})

        return await run_in_threadpool(answer)


def _timeline(records: Records, request: Request) -> Any:
    role = request.query_params.get("role", "target")
    if role not in PURPOSES:
        raise UsageError(f"role must be {' or '.join(PURPOSES)}")
    return records.timeline(role)


def _evaluations(records: Records, request: Request) -> Any:
    return records.evaluations(*_page(request))


def _ledger(records: Records, request: Request) -> Any:
    asked = request.query_params
    return records.ledger(
        *_page(request),
        kind=asked.get("kind", ""),
        text=asked.get("text", ""),
        abandoned=asked.get("abandoned") == "true",
    )


def _explain(records: Records, request: Request) -> Any:
    return records.explain(_whole(request.query_params.get("update", ""), "update"))


def _snapshot(records: Records, request: Request) -> Any:
    return records.snapshot(request.path_params["snapshot"])


def _page(request: Request) -> tuple[int, int]:
    asked = request.query_params
    return _whole(asked.get("offset", "0"), "offset"), min(_LARGEST_PAGE, _whole(asked.get("count", "50"), "count"))


def _whole(text: str, name: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 16):
        raise UsageError(f"{name} must be a whole number")
    return int(text)


async def _body(request: Request) -> dict[str, Any]:
    """What somebody wants of `swap`. Raises `UsageError`."""
    names = "reference", "into", "learner", "hold", "undo", "dry_run", "yes"
    kinds = {name: str if name in ("reference", "into", "learner") else bool for name in names}
    if request.headers.get("content-type", "").partition(";")[0].strip() != "application/json":
        raise UsageError("a swap must be asked for as application/json")
    content = b""
    async for part in request.stream():
        content += part
        if len(content) > _LARGEST_REQUEST:
            raise UsageError("the request for a swap is too long")
    try:
        wanted = json.loads(content)
        is_one = {name: type(value) for name, value in wanted.items()} == kinds
    except (ValueError, AttributeError, RecursionError):
        is_one = False
    if not is_one or wanted["into"] not in ("target", "opponent", "online"):
        raise UsageError(f"a swap needs {', '.join(kinds)}")
    return dict(wanted)


def _json(document: Any, status: int = 200) -> Response:
    content = json.dumps(rounded(document), ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return Response(content.encode("utf-8", "replace"), status_code=status, media_type="application/json")


async def _failed(request: Request, error: Exception) -> Response:  # noqa: ARG001
    status = 400 if isinstance(error, UsageError) else 500
    return _json({"error": str(error)}, status)


async def _refused(request: Request, error: Exception) -> Response:  # noqa: ARG001
    assert isinstance(error, HTTPException)
    return _json({"error": error.detail}, error.status_code)
