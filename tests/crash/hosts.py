"""Two hosts on one machine, as network namespaces with a cable between them. Root only."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

FIRST, SECOND = "10.77.0.1", "10.77.0.2"


class Host:
    """A network of its own on this machine.

    Attributes:
      name: of the namespace.
      address: on the cable.
    """

    def __init__(self, name: str, address: str) -> None:
        self.name, self.address = name, address
        self._started: list[subprocess.Popen[str]] = []

    def start(self, *command: str, log: Path | None = None, user: int | None = None) -> subprocess.Popen[str]:
        """A command in this network, in a session of its own; what it says on stderr goes to a file."""
        as_user = [] if user is None else ["setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups"]
        with contextlib.ExitStack() as open_:
            err = open_.enter_context(log.open("a")) if log else subprocess.DEVNULL
            process = subprocess.Popen(
                ["ip", "netns", "exec", self.name, *as_user, *command],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=err,
                text=True,
                start_new_session=True,
            )
        self._started.append(process)
        return process

    def twin_graph(self, *arguments: str, log: Path) -> subprocess.Popen[str]:
        return self.start(sys.executable, "-P", "-m", "twin_graph_cli", *arguments, log=log)

    def says(self, *command: str) -> str:
        """What a command prints in this network."""
        done = subprocess.run(["ip", "netns", "exec", self.name, *command], capture_output=True, text=True, check=True)
        return done.stdout

    def listening(self) -> list[str]:
        """Addresses at which somebody listens, by TCP."""
        return sorted(line.split()[3] for line in self.says("ss", "-tlnH").splitlines())

    def processes(self) -> list[int]:
        """Those that are in this network, and those started here that have gone into one of their own."""
        here = {int(process) for process in _ip("netns", "pids", self.name).split()}
        return sorted(here | {process.pid for process in self._started if process.poll() is None})

    def plug(self, *, into: bool) -> None:
        """Puts the cable in, or pulls it out."""
        _ip("-n", self.name, "link", "set", "cable", "up" if into else "down")


@contextlib.contextmanager
def two_hosts() -> Iterator[tuple[Host, Host]]:
    """Raises `OSError` or `subprocess.CalledProcessError` where this machine does not allow them."""
    hosts = Host(f"twin-graph-{os.getpid()}-1", FIRST), Host(f"twin-graph-{os.getpid()}-2", SECOND)
    with contextlib.ExitStack() as made:
        for host in hosts:
            _ip("netns", "add", host.name)
            made.callback(_remove, host)
        _ip("-n", hosts[0].name, "link", "add", "cable", "type", "veth", "peer", "cable", "netns", hosts[1].name)
        for host in hosts:
            _ip("-n", host.name, "address", "add", f"{host.address}/24", "dev", "cable")
            _ip("-n", host.name, "link", "set", "lo", "up")
            _ip("-n", host.name, "link", "set", "cable", "up")
        yield hosts


def _remove(host: Host) -> None:
    for process in host.processes():
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, 9)
    _ip("netns", "delete", host.name)


def _ip(*words: str) -> str:
    return subprocess.run(["ip", *words], capture_output=True, text=True, check=True).stdout
