"""Connections to the page's server: those that send nothing hold up nobody.

Every user of the machine can open connections, also without the token. uvicorn waits for a request for as long as it
takes, and asyncio tells of each that cannot be accepted for want of descriptors in a traceback.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import resource
import socket
import sys
from typing import Any, ClassVar

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

#: For a request's head, and then for its body.
PATIENCE_SECONDS = 10.0
_MOST = 256
_OTHER_FILES = 64  # what the server opens besides connections: runs' files, its own
_AT_ONCE = 64  # how many asyncio accepts before any of them is looked at
_BACKLOG = 2048  # how many the kernel keeps meanwhile


@functools.cache
def most() -> int:
    """How many connections may be open: fewer than files may be."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _MOST if files == resource.RLIM_INFINITY else max(1, min(_MOST, (files - _OTHER_FILES - _AT_ONCE) // 2))


class ImpatientProtocol(H11Protocol):
    """HTTP for clients that send what they ask for: others are disconnected, the oldest first where there are many."""

    #: Those of this process that wait for something, the longest first.
    _waiting: ClassVar[dict[ImpatientProtocol, None]] = {}
    _timer: asyncio.TimerHandle | None = None
    #: What it waits for: a request's head or its body; empty while it answers.
    _awaits = ""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Disconnects the connection that has waited longest, or this one, if there are too many."""
        super().connection_made(transport)
        self._look()
        if len(self.connections) > most():
            next(iter(self._waiting)).disconnect()

    def disconnect(self) -> None:
        """At once, whatever was still to be sent."""
        self._now_awaits("")
        self.connections.discard(self)
        self.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """Also ends its timer."""
        super().connection_lost(exc)
        self._now_awaits("")

    def data_received(self, data: bytes) -> None:
        """Also sees whether a head or a body is whole now."""
        super().data_received(data)
        self._look()

    def on_response_complete(self) -> None:
        """Also waits for the next request."""
        super().on_response_complete()
        self._look()

    def _look(self) -> None:
        is_answered = self.cycle is None or self.cycle.response_complete
        if self.transport.is_closing():
            self._now_awaits("")
        elif self.conn.their_state is h11.SEND_BODY:
            self._now_awaits("body")
        else:
            self._now_awaits("head" if is_answered else "")

    def _now_awaits(self, what: str) -> None:
        """What is waited for already keeps its time, however much of it arrives."""
        if what == self._awaits:
            return
        self._awaits = what
        self._waiting.pop(self, None)
        if self._timer:
            self._timer.cancel()
            self._timer = None
        if what:
            self._waiting[self] = None
            self._timer = self.loop.call_later(PATIENCE_SECONDS, self.disconnect)


class Server(uvicorn.Server):
    """Accepts few connections at a time, and tells of each kind of failure once, in a line."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self._told = set[tuple[str, str]]()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """As uvicorn's."""
        asyncio.get_running_loop().set_exception_handler(self._tell)
        logging.getLogger("asyncio").setLevel(logging.CRITICAL)
        await super().startup(sockets)
        for listening in sockets or []:
            listening.listen(_BACKLOG)  # asyncio takes what it accepts at a time for that, too

    def _tell(self, _: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        kind = str(context.get("message", ""))[:60], type(error).__name__
        if kind not in self._told:
            self._told.add(kind)
            with contextlib.suppress(OSError):
                print(f"the page's server: {kind[0]}: {str(error or '').partition(chr(10))[0]}", file=sys.stderr)


def config(app: Any) -> uvicorn.Config:
    """For a server of this machine's own: as few words and features as possible."""
    return uvicorn.Config(
        app,
        http=ImpatientProtocol,
        backlog=_AT_ONCE,
        log_config=None,
        log_level="critical",
        access_log=False,
        lifespan="off",
        ws="none",
        server_header=False,
        timeout_graceful_shutdown=3,
    )
