"""The public end of a parameter server: admits the peers that may use it, and passes their bytes on.

TensorFlow's server listens on every interface, whatever address it is given, and obeys everyone who connects. So it
gets a network of its own (`private`), or a port that is closed to all others (`gate`), and this relay alone connects to
it. The relay listens at exactly the address that the cluster's description has.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator

from twin_graph.distributed import private
from twin_graph.distributed.cluster import LOOPBACK, is_loopback
from twin_graph.distributed.connections import Connections, plain
from twin_graph.distributed.gate import Gate
from twin_graph.errors import TwinGraphError, UsageError

_PORT_SECONDS = 60.0
_TRY_SECONDS = 0.5
_WAITING = 128  # connections that were not accepted yet
_AT_ONCE = 1 << 18  # bytes
_LOOKS = 3  # at a list that changes while it is read
# Of a peer whose machine or network is gone, for TCP to give its connection up.
_SILENT_SECONDS, _ASK_SECONDS = 30, 10
_ROOT = 0


class Relay:
    """Holds a server's public address, from before TensorFlow is imported to the end of the process.

    Made while the process has one thread: it moves the process into a network of its own, if the kernel allows that.

    Args:
      address: HOST:PORT, of this machine.

    Attributes:
      protection: what keeps others from the server, or that nothing does, for people.

    Raises:
      UsageError: the host is unknown.
      TwinGraphError: this is not Linux.
    """

    def __init__(self, address: str) -> None:
        self._address = address
        self._family, self._place = _resolved(address)
        self._user = os.geteuid()
        self._listening = self._new_socket()
        try:
            self._connections = Connections()
        except OSError:
            raise TwinGraphError("parameter servers need Linux: no other system says whose a connection is") from None
        self._is_private = private.is_possible() and _entered()
        self.protection = protection([address], is_private=self._is_private)
        self._connect: Callable[[], socket.socket]
        self._lock = threading.Lock()
        self._open, self._left = 0, time.monotonic()
        self._refused: set[str] = set()

    def take_port(self) -> None:
        """Binds the address; while somebody else has it, waits, and says so.

        Raises:
          TwinGraphError: it is still taken after a minute, or the host is not this machine's.
        """
        deadline, has_said = time.monotonic() + _PORT_SECONDS, False
        while True:
            try:
                self._listening.bind(self._place)
                self._listening.listen(_WAITING)
                return
            except OSError as error:
                if error.errno == errno.EADDRNOTAVAIL:
                    raise TwinGraphError(f"cannot listen on {self._address}: it is not this machine's") from None
                if error.errno != errno.EADDRINUSE or time.monotonic() > deadline:
                    taken = "; end what uses it, or choose another port" if error.errno == errno.EADDRINUSE else ""
                    raise TwinGraphError(f"cannot listen on {self._address}: {error.strerror}{taken}") from None
            if not has_said:
                _say(f"{self._address} is in use; waiting up to {_PORT_SECONDS:.0f} s for it")
                has_said = True
            time.sleep(_TRY_SECONDS)

    def serve(self, port: int) -> None:
        """Lets peers in from now on.

        Args:
          port: of 127.0.0.1, at which the server of this process listens.

        Raises:
          TwinGraphError: nothing keeps others from this port.
        """
        if self._is_private:
            self._connect = lambda: socket.create_connection((LOOPBACK, port))
        else:
            self._connect = Gate(port, self._connections).connect
        threading.Thread(target=self._accept, name="relay", daemon=True).start()

    def idle_seconds(self) -> float:
        """How long nobody has been connected."""
        with self._lock:
            return 0.0 if self._open else time.monotonic() - self._left

    def _new_socket(self) -> socket.socket:
        """In the network in which this object is made. The port of a server that was killed may be taken at once."""
        made = socket.socket(self._family, socket.SOCK_STREAM)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        return made

    def _accept(self) -> None:
        while True:
            try:
                peer, _ = self._listening.accept()
            except OSError:  # it is gone already, or there are too many
                time.sleep(0.1)
                continue
            threading.Thread(target=self._pass_on, args=(peer,), daemon=True).start()

    def _pass_on(self, peer: socket.socket) -> None:
        """The life of a connection."""
        with peer, contextlib.suppress(OSError):
            if why := self._refusal(peer):
                self._refuse(why)
                return
            with self._connect() as server, self._counted():
                for one in (peer, server):
                    one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                _give_up_the_silent(peer)
                back = threading.Thread(target=_move, args=(server, peer), daemon=True)
                back.start()
                _move(peer, server)
                back.join()

    def _refusal(self, peer: socket.socket) -> str | None:
        """Why a peer may not use the server: of another user of this machine, or where from; None if it may.

        Raises:
          OSError: it is gone already.
        """
        theirs, ours = plain(peer.getpeername()), plain(peer.getsockname())
        is_here = self._connections.is_own(theirs[0])
        if not is_here and not is_loopback(f"{ours[0]}:{ours[1]}"):
            return None  # the network was said to be trusted
        for _ in range(_LOOKS):
            end = self._connections.end_of(theirs, ours)
            if end and end.is_open:
                return None if end.user in (self._user, _ROOT) else f"of user {end.user}"
        if is_here:
            raise ConnectionError  # it says nothing any more
        return f"from {theirs[0]}"

    def _refuse(self, why: str) -> None:
        with self._lock:
            is_new = why not in self._refused
            self._refused.add(why)
        if is_new:
            _say(f"refused a connection {why} to {self._address}: only the server's owner may use it")

    @contextlib.contextmanager
    def _counted(self) -> Iterator[None]:
        with self._lock:
            self._open += 1
        try:
            yield
        finally:
            with self._lock:
                self._open -= 1
                self._left = time.monotonic()


def protection(addresses: list[str], *, is_private: bool) -> str:
    """What keeps others from servers at these addresses, or that nothing does, for people."""
    beyond = [address for address in addresses if not is_loopback(address)]
    if beyond:
        return f"no password: everyone on another machine who reaches {', '.join(beyond)} can read and write your files"
    if is_private:
        return "only this user's processes can connect"
    return "only this user's processes can connect, by a packet filter: this kernel refuses network namespaces"


def _entered() -> bool:
    try:
        private.enter()
    except OSError:  # as a rule since there are more threads
        return False
    return True


def _resolved(address: str) -> tuple[int, tuple[str, int]]:
    """Family and place of a listening socket; by IP version 4 if the host has both."""
    host, _, port = address.rpartition(":")
    try:
        found = socket.getaddrinfo(host, int(port), type=socket.SOCK_STREAM)
    except OSError as error:
        raise UsageError(f"cannot listen on {address}: {error.strerror}") from None
    family, _, _, _, place = min(found, key=lambda one: one[0] != socket.AF_INET)
    return family, (str(place[0]), int(place[1]))


def _give_up_the_silent(peer: socket.socket) -> None:
    """Ends the connection, some time after the peer's machine is gone; a server with none left may end."""
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _SILENT_SECONDS)
    peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, _ASK_SECONDS)
    peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 2_000 * _SILENT_SECONDS)


def _move(source: socket.socket, sink: socket.socket) -> None:
    """Passes bytes on until the source ends. (By `splice`, weights and gradients took a quarter longer.)"""
    view = memoryview(bytearray(_AT_ONCE))
    try:
        while count := source.recv_into(view):
            sink.sendall(view[:count])
        sink.shutdown(socket.SHUT_WR)
    except OSError:  # one of them is gone: so that the other direction ends, too
        for one in (source, sink):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
