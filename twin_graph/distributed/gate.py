"""Closes a port of TensorFlow's server to everybody else, where the kernel refuses a network of one's own.

The server listens on every interface, and obeys whoever connects. A classic BPF program at its listening socket drops
all packets. To connect, this process takes a port for itself, lets packets from it pass until the connection stands,
and drops all again: a connection keeps the program with which it was made, so that nobody can use the port afterwards.
"""

from __future__ import annotations

import ctypes
import os
import socket
import struct
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

from twin_graph.distributed.connections import ESTABLISHED, LISTENING
from twin_graph.errors import TwinGraphError

if TYPE_CHECKING:
    from twin_graph.distributed.connections import Connections

_SO_ATTACH_FILTER = 26
# Offset at which a socket filter finds the network header (linux/filter.h, SKF_NET_OFF).
_NETWORK_HEADER = 0xFFF00000
_LOAD_BYTE, _LOAD_HALF, _LOAD_WORD, _EQUAL, _SHIFT_RIGHT, _RETURN = 0x30, 0x28, 0x20, 0x15, 0x74, 0x06
_LOOPBACK = "127.0.0.1"
_SETTLE_SECONDS = 0.05  # for packets that the kernel was working on when the program changed
_CONNECT_SECONDS = 5.0

_NOTHING = [(_RETURN, 0, 0, 0)]


def _from_port(port: int) -> list[tuple[int, int, int, int]]:
    """A program that lets packets from this port of 127.0.0.1 pass, by IP version 4."""
    return [
        (_LOAD_BYTE, 0, 0, _NETWORK_HEADER),
        (_SHIFT_RIGHT, 0, 0, 4),
        (_EQUAL, 0, 5, 4),
        (_LOAD_WORD, 0, 0, _NETWORK_HEADER + 12),
        (_EQUAL, 0, 3, 0x7F000001),
        (_LOAD_HALF, 0, 0, 0),  # TCP's header begins with the port that sent it
        (_EQUAL, 0, 1, port),
        (_RETURN, 0, 0, 0xFFFFFFFF),
        (_RETURN, 0, 0, 0),
    ]


class Gate:
    """The only way to a port at which this process listens. For several threads.

    Args:
      port: at which a socket of this process listens.
      connections: this machine's.

    Raises:
      TwinGraphError: the kernel refuses the program, or somebody connected before it was there.
    """

    def __init__(self, port: int, connections: Connections) -> None:
        self._port, self._connections = port, connections
        self._lock = threading.Lock()
        self._listening = [each for each in _sockets() if _listens_on(each, port)]
        if not self._listening:
            raise TwinGraphError(f"cannot close port {port} to others: no socket listens there")
        self._let_pass(_NOTHING)
        time.sleep(_SETTLE_SECONDS)
        if any(one.local[1] == port and one.state != LISTENING for one in connections):
            raise TwinGraphError("somebody connected to the parameter server before its port was closed; start again")

    def connect(self) -> socket.socket:
        """A connection to the port. Raises `OSError` if none can be made."""
        ours = socket.socket()
        try:
            with self._lock:
                ours.bind((_LOOPBACK, 0))  # without SO_REUSEADDR and SO_REUSEPORT nobody else gets the same
                ours.settimeout(_CONNECT_SECONDS)
                self._let_pass(_from_port(ours.getsockname()[1]))
                try:
                    ours.connect((_LOOPBACK, self._port))
                    self._wait_for_the_other_end(ours)
                finally:
                    self._let_pass(_NOTHING)
            ours.settimeout(None)
        except BaseException:
            ours.close()
            raise
        return ours

    def _wait_for_the_other_end(self, ours: socket.socket) -> None:
        """Until the server's end stands, too: it takes over the program that there is at that moment."""
        deadline = time.monotonic() + _CONNECT_SECONDS
        while time.monotonic() < deadline:
            other = self._connections.end_of((_LOOPBACK, self._port), ours.getsockname())
            if other and other.state == ESTABLISHED:
                return
            time.sleep(_SETTLE_SECONDS / 10)
        raise TimeoutError

    def _let_pass(self, program: list[tuple[int, int, int, int]]) -> None:
        code = b"".join(struct.pack("HBBI", *instruction) for instruction in program)
        buffer = ctypes.create_string_buffer(code)
        described = struct.pack("HxxxxxxP", len(program), ctypes.addressof(buffer))
        for each in self._listening:
            try:
                each.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, described)
            except OSError as error:
                raise TwinGraphError(
                    f"cannot close port {self._port} to others: this kernel refuses network namespaces, and packet "
                    f"filters, too ({error.strerror}, SO_ATTACH_FILTER); train as root, in a container for instance, "
                    "or without workers"
                ) from None


def _sockets() -> list[socket.socket]:
    """This process' sockets, under numbers of their own."""
    found = []
    for path in Path("/proc/self/fd").glob("*"):
        try:
            if str(path.readlink()).startswith("socket:"):
                found.append(socket.socket(fileno=os.dup(int(path.name))))
        except OSError:  # closed meanwhile
            continue
    return found


def _listens_on(each: socket.socket, port: int) -> bool:
    try:
        return bool(each.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)) and each.getsockname()[1] == port
    except (OSError, IndexError):
        return False
