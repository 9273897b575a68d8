"""Opens connections to `twin-graph view` that send little or nothing, and asks for the page meanwhile.

    python tests/crash/idle.py [--connections 2000] [--seconds 20] [--json tests/crash/results/idle.json]

A third of them sends nothing, a third half a request's head, a third a byte of it now and then; whoever is disconnected
comes back a second later. The page must answer within a second, with memory and descriptors to spare, and the server
must not be talkative.
"""

import contextlib
import http.client
import json
import resource
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from urllib.parse import urlsplit

import click
import psutil
from rich.console import Console

from twin_graph.base import machine

HEAD = b"GET /nothing/ HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Long: "


class Crowd:
    """Connections that are opened again whenever they are closed."""

    def __init__(self, address: tuple[str, int], count: int) -> None:
        self._address = address
        self._open: list[socket.socket | None] = [None] * count
        self._due = [0.0] * count
        self.opened = 0

    def step(self) -> None:
        """Opens those that are not open, and sends what is due."""
        now = time.monotonic()
        for i, one in enumerate(self._open):
            if one is None and now > self._due[i]:
                self._open[i] = self._new(i)
            elif one is not None and self._is_over(i, one):
                one.close()
                self._open[i], self._due[i] = None, now + 1.0

    def _new(self, i: int) -> socket.socket:
        one = socket.socket()
        one.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            one.connect(self._address)
        with contextlib.suppress(OSError):
            if i % 3 == 1:
                one.send(HEAD)
        self.opened += 1
        return one

    @staticmethod
    def _is_over(i: int, one: socket.socket) -> bool:
        try:
            if one.recv(1, socket.MSG_PEEK) == b"":
                return True
        except BlockingIOError:
            pass
        except OSError:
            return True
        if i % 3 == 2:
            with contextlib.suppress(OSError):
                one.send(b"x")
        return False

    def close(self) -> None:
        """Closes them all."""
        for one in self._open:
            if one:
                one.close()


def crowded(process: psutil.Process, address: str, count: int, seconds: float) -> dict[str, object]:
    """What the page's answers took, and what the server needed, with so many others connected."""
    place, page = urlsplit(address), []
    before = process.memory_info().rss
    crowd = Crowd((str(place.hostname), place.port or 80), count)
    most_files = most_memory = 0
    try:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            crowd.step()
            began = time.monotonic()
            asking = http.client.HTTPConnection(place.netloc, timeout=30)
            asking.request("GET", f"{place.path}api/runs")
            answer = asking.getresponse()
            answer.read()
            asking.close()
            page.append(time.monotonic() - began)
            assert answer.status == 200
            most_files = max(most_files, process.num_fds())
            most_memory = max(most_memory, process.memory_info().rss)
            time.sleep(0.1)
    finally:
        crowd.close()
    return {
        "connections": count,
        "opened": crowd.opened,
        "answers": len(page),
        "median_seconds": round(statistics.median(page), 4),
        "longest_seconds": round(max(page), 4),
        "memory_before_mb": before >> 20,
        "memory_most_mb": most_memory >> 20,
        "descriptors_most": most_files,
    }


@click.command()
@click.option("--connections", default=2_000, show_default=True)
@click.option("--seconds", default=20.0, show_default=True)
@click.option("--json", "path", type=click.Path(path_type=Path), help="Write what was found here.")
def main(connections: int, seconds: float, path: Path | None) -> None:
    """Exits with 1 if an answer took longer than a second, or the server had much to say."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    limited = resource.getrlimit(resource.RLIMIT_NOFILE)
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryFile("w+") as said:
        command = [sys.executable, "-m", "twin_graph_cli", "view", "--no-browser", "--folder", folder]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=said, text=True) as process:
            assert process.stdout
            try:
                address = process.stdout.readline().strip()
                resource.setrlimit(resource.RLIMIT_NOFILE, (min(most, connections + 1_000), most))
                found = crowded(psutil.Process(process.pid), address, connections, seconds)
            finally:
                process.terminate()
        said.seek(0)
        found |= {"stderr_bytes": len(said.read()), "servers_descriptors": limited[0]}
    found["cpu"] = machine.describe().model
    Console(stderr=True).print(found)
    if path:
        path.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    sys.exit(float(str(found["longest_seconds"])) > 1 or int(str(found["stderr_bytes"])) > 1_000)


if __name__ == "__main__":
    main()
