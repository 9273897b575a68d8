"""As much of the Hugging Face hub as its client needs to publish and fetch files: one repository, in memory.

It speaks the routes that the client calls. Files are taken in the body of a commit; the real hub takes large ones by
way of its storage.
"""

import base64
import contextlib
import hashlib
import json
import re
import threading
import urllib.parse
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class FakeHub:
    """A server; see `serve`.

    Attributes:
      url: of the server.
      files: of the repository, by their paths.
      commits: their messages, oldest first.
    """

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.commits: list[str] = []
        self._lock = threading.Lock()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    @property
    def sha(self) -> str:
        """Of the newest commit."""
        return hashlib.sha1(str(len(self.commits)).encode()).hexdigest()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        hub = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def handle_any(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                status, headers, content = hub.answer(self.command, urllib.parse.unquote(self.path), body)
                self.send_response(status)
                for name, value in ({"Content-Length": str(len(content))} | headers).items():
                    self.send_header(name, value)
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(content)

            do_GET = do_POST = do_HEAD = handle_any  # noqa: N815 - their names there

            def log_message(self, *_: object) -> None:
                pass

        return Handler

    def answer(self, method: str, path: str, body: bytes) -> tuple[int, dict[str, str], bytes]:
        """Status, headers and content."""
        path = path.partition("?")[0]
        if path == "/api/repos/create":
            return _json({"url": f"{self.url}/lab/pole"})
        if path == "/api/validate-yaml":
            return _json({"errors": [], "warnings": []})
        if path.endswith("/preupload/main"):
            asked = json.loads(body)["files"]
            return _json(
                {"files": [{"path": one["path"], "uploadMode": "regular", "shouldIgnore": False} for one in asked]}
            )
        if path.endswith("/commit/main"):
            return self._commit(body)
        if match := re.match(r"/api/models/lab/pole/tree/main/?(.*)", path):
            return self._tree(match[1])
        if match := re.match(r"/lab/pole/resolve/[^/]+/(.*)", path):
            return self._file(match[1], method)
        if re.match(r"/api/models/lab/pole(/revision/main)?$", path):
            return _json({"id": "lab/pole", "sha": self.sha, "siblings": [], "private": False, "tags": []})
        return _missing("RepoNotFound")

    def _commit(self, body: bytes) -> tuple[int, dict[str, str], bytes]:
        lines = [json.loads(line) for line in body.splitlines() if line]
        header = next(line["value"] for line in lines if line["key"] == "header")
        with self._lock:
            if header.get("parentCommit") not in (None, self.sha):
                return _json({"error": "A commit has happened since. Please refresh and try again."}, 412)
            for line in lines:
                if line["key"] == "file":
                    self.files[line["value"]["path"]] = base64.b64decode(line["value"]["content"])
            self.commits.append(header["summary"])
            return _json(
                {"commitUrl": f"{self.url}/lab/pole/commit/{self.sha}", "commitOid": self.sha, "hookOutput": ""}
            )

    def _tree(self, folder: str) -> tuple[int, dict[str, str], bytes]:
        inside = [path for path in self.files if path.startswith(f"{folder}/")]
        if not inside:
            return _missing("EntryNotFound")
        return _json(
            [
                {"type": "file", "path": path, "size": len(self.files[path]), "oid": _oid(self.files[path])}
                for path in inside
            ]
        )

    def _file(self, path: str, method: str) -> tuple[int, dict[str, str], bytes]:
        if path not in self.files:
            return _missing("EntryNotFound")
        content = self.files[path]
        known = {"ETag": f'"{_oid(content)}"', "X-Repo-Commit": self.sha, "Content-Length": str(len(content))}
        return 200, known, content if method == "GET" else b""


def _oid(content: bytes) -> str:
    return hashlib.sha1(content).hexdigest()


def _json(value: Any, status: int = 200) -> tuple[int, dict[str, str], bytes]:
    return status, {"Content-Type": "application/json"}, json.dumps(value).encode()


def _missing(code: str) -> tuple[int, dict[str, str], bytes]:
    return 404, {"X-Error-Code": code, "X-Error-Message": "Not found"}, b"{}"


@contextlib.contextmanager
def serve() -> Iterator[FakeHub]:
    """A hub, as long as it lasts."""
    hub = FakeHub()
    try:
        yield hub
    finally:
        hub.close()
