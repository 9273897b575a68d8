"""The public end of a parameter server: who is admitted, what gets through, and that there is no other way in."""

import contextlib
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from twin_graph.distributed import private
from twin_graph.distributed.connections import ESTABLISHED, Connections
from twin_graph.distributed.probe import NOTHING, OTHER, SILENT, look

ROOT_ONLY = pytest.mark.skipif(os.geteuid() != 0, reason="only root may become another user")
WITHOUT_NAMESPACES = [sys.executable, str(Path(__file__).parents[1] / "without_namespaces.py")]

# A server that listens on every interface, as TensorFlow's does, and says everything again.
ECHO = """
import os, socket, sys, threading, time
from twin_graph.distributed import relay
from twin_graph.errors import TwinGraphError

address, seconds, intrudes = sys.argv[1:]
relay._PORT_SECONDS = float(seconds)

def echo(connection):
    with connection:
        while some := connection.recv(1 << 16):
            connection.sendall(some)

try:
    public = relay.Relay(address)
    public.take_port()
    server = socket.create_server(("", 0))
    port = server.getsockname()[1]
    if intrudes:
        intruder = socket.create_connection(("127.0.0.1", port))
    public.serve(port)
except TwinGraphError as error:
    sys.exit(f"Error: {error}")
print(port, public.protection, flush=True)
while True:
    threading.Thread(target=echo, args=(server.accept()[0],)).start()
"""


class Served(NamedTuple):
    """A server in a process of its own, its public port, that which it listens at, and what protects it."""

    process: subprocess.Popen[str]
    port: int
    inner: int
    protection: str


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return int(taken.getsockname()[1])


def start(
    port: int, *, has_namespaces: bool = True, seconds: float = 60, intrudes: bool = False
) -> subprocess.Popen[str]:
    words = [sys.executable, "-c", ECHO, f"127.0.0.1:{port}", str(seconds), "1" if intrudes else ""]
    command = words if has_namespaces else [*WITHOUT_NAMESPACES, *words]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@contextlib.contextmanager
def serving(*, has_namespaces: bool) -> Iterator[Served]:
    port = free_port()
    with start(port, has_namespaces=has_namespaces) as process:
        try:
            assert process.stdout is not None
            said = process.stdout.readline()
            if not said:
                assert process.stderr is not None
                pytest.skip(process.stderr.read())  # neither namespaces nor filters
            inner, _, protection = said.strip().partition(" ")
            yield Served(process, port, int(inner), protection)
        finally:
            process.kill()


@pytest.fixture(params=["namespace", "filter"])
def served(request: pytest.FixtureRequest) -> Iterator[Served]:
    """A server by both ways to close it."""
    if request.param == "namespace" and not private.is_possible():
        pytest.skip("the kernel refuses network namespaces")
    with serving(has_namespaces=request.param == "namespace") as found:
        yield found


def says_again(port: int, words: bytes) -> bytes:
    """What a server answers to these words and an end."""
    with socket.create_connection(("127.0.0.1", port), timeout=10) as client:
        client.sendall(words)
        client.shutdown(socket.SHUT_WR)
        return b"".join(iter(lambda: client.recv(1 << 16), b""))


def connects(host: str, port: int) -> bool:
    with socket.socket() as client:
        client.settimeout(0.5)
        return client.connect_ex((host, port)) == 0


def test_the_owner_gets_through_and_there_is_no_other_way_in(served: Served) -> None:
    words = os.urandom(100_000)
    assert says_again(served.port, words) == words
    assert says_again(served.port, b"once more") == b"once more"
    assert not connects("127.0.0.1", served.inner)
    assert not connects("127.0.0.2", served.port)  # it listens at one address and at no other
    assert served.protection.startswith("only this user's processes can connect")


def test_many_connections_at_once_get_through(served: Served) -> None:
    clients = [socket.create_connection(("127.0.0.1", served.port), timeout=10) for _ in range(20)]
    for number, client in enumerate(clients):
        client.sendall(b"%02d" % number)
    assert [client.recv(2) for client in clients] == [b"%02d" % number for number in range(20)]
    clients[0].close()
    clients[1].sendall(b"on")
    assert clients[1].recv(2) == b"on"
    for client in clients:
        client.close()


AS_ANOTHER_USER = """
import os, socket, sys
"".encode("idna")  # imported while this user can read it
os.setgroups([])
os.setgid(65534)
os.setuid(65534)
public, inner = map(int, sys.argv[1:])
with socket.create_connection(("127.0.0.1", public), timeout=5) as client:
    try:
        client.sendall(b"let me in")
        answer = client.recv(100)
    except ConnectionError:
        answer = b""
with socket.socket() as direct:
    direct.settimeout(0.5)
    print(answer, direct.connect_ex(("127.0.0.1", inner)) == 0)
"""


@ROOT_ONLY
def test_another_user_is_refused_and_that_is_said_once(served: Served) -> None:
    for _ in range(2):
        command = [sys.executable, "-c", AS_ANOTHER_USER, str(served.port), str(served.inner)]
        tried = subprocess.run(command, capture_output=True, text=True, check=True)
        assert tried.stdout == "b'' False\n"
    assert says_again(served.port, b"still there") == b"still there"
    served.process.kill()
    _, said = served.process.communicate()
    assert said == (
        f"refused a connection of user 65534 to 127.0.0.1:{served.port}: only the server's owner may use it\n"
    )


@ROOT_ONLY
def test_whoever_connected_before_the_port_was_closed_ends_the_server() -> None:
    with start(free_port(), has_namespaces=False, intrudes=True) as process:
        _, said = process.communicate(timeout=30)
    assert said == "Error: somebody connected to the parameter server before its port was closed; start again\n"


def test_a_server_waits_for_a_port_that_is_taken() -> None:
    holder = socket.create_server(("127.0.0.1", 0))
    port = holder.getsockname()[1]
    with holder, start(port) as process:
        try:
            assert process.stderr is not None
            assert process.stdout is not None
            said = process.stderr.readline()
            assert said == f"127.0.0.1:{port} is in use; waiting up to 60 s for it\n"
            holder.close()
            assert process.stdout.readline()
            assert says_again(port, b"mine") == b"mine"
        finally:
            process.kill()


def test_a_server_ends_whose_port_stays_taken() -> None:
    with socket.create_server(("127.0.0.1", 0)) as holder, start(holder.getsockname()[1], seconds=0.2) as process:
        _, said = process.communicate(timeout=30)
        address = f"127.0.0.1:{holder.getsockname()[1]}"
    last = f"Error: cannot listen on {address}: Address already in use; end what uses it, or choose another port"
    assert (process.returncode, said.splitlines()[-1]) == (1, last)


def test_connections_are_found_by_their_addresses_with_their_owners() -> None:
    connections = Connections()
    with socket.create_server(("::", 0), family=socket.AF_INET6, dualstack_ipv6=True) as server:
        port = server.getsockname()[1]
        for host in ("127.0.0.1", "::ffff:127.0.0.1"):
            client = socket.create_connection((host, port))
            ours, theirs = ("127.0.0.1", client.getsockname()[1]), ("127.0.0.1", port)
            found = connections.end_of(ours, theirs)
            assert found is not None
            assert (found.state, found.user, found.is_open) == (ESTABLISHED, os.geteuid(), True)
            client.close()
            found = connections.end_of(ours, theirs)  # of which the kernel says that it is root's
            assert found is None or not found.is_open
    assert connections.is_own("127.3.2.1")
    assert connections.is_own("::1")
    assert not connections.is_own("192.0.2.1")


def test_what_is_no_parameter_server_is_told_from_nothing() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        began = time.monotonic()
        assert look(address) == SILENT
        assert time.monotonic() - began < 5
    assert look(address) == NOTHING
    command = [sys.executable, "-u", "-m", "http.server", "--bind", "127.0.0.1", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as web:
        assert web.stdout is not None
        port = web.stdout.readline().split()[5]
        assert look(f"127.0.0.1:{port}") == OTHER
        web.kill()
