"""An S3-speaking server on loopback: moto's, behind a proxy that can fail in the ways in which networks do.

moto looks whether an object exists and then writes it; S3 does both at once. So the proxy lets one conditional write
through at a time.
"""

import contextlib
import http.client
import logging
import random
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from moto.server import ThreadedMotoServer

BUCKET = "bucket"

#: What may become of a request: it never arrives; it arrives, and its answer does not; half of the answer arrives; an
#: answer of before; it takes long.
FAULTS = ("lost", "answer lost", "half", "stale", "slow")
#: Takes a request's method and path; returns one of these, or nothing.
Faults = Callable[[str, str], str | None]


class _Proxy(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, *_: object) -> None:
        """Nothing: clients are killed."""


class S3:
    """A server; see `serve`.

    Attributes:
      url: of the bucket, as a remote's.
      environment: variables by which its clients find it.
      faults: what goes wrong from here on.
      met: what went wrong so far, with the methods.
    """

    def __init__(self) -> None:
        self.url, self.faults = f"s3://{BUCKET}", none
        self.met: list[tuple[str, str]] = []
        self._conditional, self._before = threading.Lock(), dict[str, tuple[int, list[tuple[str, str]], bytes]]()
        logging.getLogger("werkzeug").setLevel(logging.ERROR)
        self._moto = ThreadedMotoServer(port=0, verbose=False)
        self._moto.start()
        self._behind = self._moto.get_host_and_port()
        self._proxy = _Proxy(("127.0.0.1", 0), self._handler())
        threading.Thread(target=self._proxy.serve_forever, daemon=True).start()
        self.environment = {
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{self._proxy.server_port}",
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "test",
            "AWS_DEFAULT_REGION": "us-east-1",
        }
        connection = http.client.HTTPConnection(*self._behind)
        connection.request("PUT", f"/{BUCKET}")
        assert connection.getresponse().status == 200

    def close(self) -> None:
        self._proxy.shutdown()
        self._proxy.server_close()
        self._moto.stop()

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        server = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def handle_any(self) -> None:
                server._answer(self)

            do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = handle_any  # noqa: N815 - their names there

            def log_message(self, *_: object) -> None:
                pass

        return Handler

    def _answer(self, asked: BaseHTTPRequestHandler) -> None:
        try:
            body = _body(asked)
        except ValueError:  # its client was killed: no server takes a part for the whole
            asked.close_connection = True
            return
        fault = self.faults(asked.command, asked.path)
        if fault:
            self.met.append((fault, asked.command))
        if fault == "lost":
            asked.close_connection = True
            return
        if fault == "slow":
            time.sleep(0.3)
        conditional = asked.command == "PUT" and asked.headers.get("If-None-Match")
        with self._conditional if conditional else contextlib.nullcontext():
            status, headers, content = self._passed_on(asked, body)
        key = f"{asked.command} {asked.path} {asked.headers.get('Range')}"
        if fault == "stale":
            status, headers, content = self._before.get(key, (status, headers, content))
        self._before[key] = status, headers, content
        if fault == "answer lost":
            asked.close_connection = True
            return
        asked.send_response(status)
        for name, value in headers:
            asked.send_header(name, value)
        asked.end_headers()
        if fault == "half" and content:
            content = content[: len(content) // 2]
            asked.close_connection = True
        with contextlib.suppress(OSError):  # who asked may have been killed
            asked.wfile.write(content)

    def _passed_on(self, asked: BaseHTTPRequestHandler, body: bytes) -> tuple[int, list[tuple[str, str]], bytes]:
        connection = http.client.HTTPConnection(*self._behind, timeout=30)
        with contextlib.closing(connection):
            kept = {name: value for name, value in asked.headers.items() if name.lower() not in _OF_THIS_HOP}
            connection.request(asked.command, asked.path, body, kept | {"Content-Length": str(len(body))})
            answer = connection.getresponse()
            content = answer.read()
            headers = [(name, value) for name, value in answer.getheaders() if name.lower() not in _OF_THIS_HOP]
            length = answer.getheader("Content-Length") if asked.command == "HEAD" else str(len(content))
            return answer.status, [*headers, ("Content-Length", length or "0")], content


_OF_THIS_HOP = ("connection", "transfer-encoding", "content-length", "keep-alive", "expect")


def _body(asked: BaseHTTPRequestHandler) -> bytes:
    if asked.headers.get("Transfer-Encoding", "").lower() != "chunked":
        return _read(asked, int(asked.headers.get("Content-Length", 0)))
    parts = []
    while size := int(asked.rfile.readline().split(b";")[0], 16):
        parts.append(_read(asked, size))
        asked.rfile.readline()
    asked.rfile.readline()
    return b"".join(parts)


def _read(asked: BaseHTTPRequestHandler, size: int) -> bytes:
    content = asked.rfile.read(size)
    if len(content) < size:
        raise ValueError("it ends early")
    return content


def none(method: str, path: str) -> None:
    return None


def at_random(seed: int, share: float, kinds: tuple[str, ...] = FAULTS) -> Faults:
    """Faults that a share of all requests meet."""
    draw, drawing = random.Random(seed), threading.Lock()

    def faults(method: str, path: str) -> str | None:
        with drawing:
            return draw.choice(kinds) if draw.random() < share else None

    return faults


@contextlib.contextmanager
def serve() -> Iterator[S3]:
    """A server, as long as it lasts."""
    server = S3()
    try:
        yield server
    finally:
        server.close()
