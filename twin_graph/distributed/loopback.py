"""Keeps TensorFlow's servers, which listen on every interface whatever address they are given, to this machine."""

import ctypes
import os
import socket
import struct
from pathlib import Path

from twin_graph.errors import TwinGraphError

_SO_ATTACH_FILTER = 26
# Offset at which a socket filter finds the network header (linux/filter.h, SKF_NET_OFF).
_NETWORK_HEADER = 0xFFF00000
_LOAD_BYTE, _LOAD_WORD, _EQUAL, _SHIFT_RIGHT, _RETURN = 0x30, 0x20, 0x15, 0x74, 0x06

#: A classic BPF program: packets from 127.0.0.0/8 and ::1 pass, all others are dropped.
_PROGRAM = [
    (_LOAD_BYTE, 0, 0, _NETWORK_HEADER),
    (_SHIFT_RIGHT, 0, 0, 4),
    (_EQUAL, 0, 2, 4),  # IP version 4
    (_LOAD_BYTE, 0, 0, _NETWORK_HEADER + 12),
    (_EQUAL, 8, 9, 127),
    (_LOAD_WORD, 0, 0, _NETWORK_HEADER + 8),
    (_EQUAL, 0, 7, 0),
    (_LOAD_WORD, 0, 0, _NETWORK_HEADER + 12),
    (_EQUAL, 0, 5, 0),
    (_LOAD_WORD, 0, 0, _NETWORK_HEADER + 16),
    (_EQUAL, 0, 3, 0),
    (_LOAD_WORD, 0, 0, _NETWORK_HEADER + 20),
    (_EQUAL, 0, 1, 1),
    (_RETURN, 0, 0, 0xFFFFFFFF),
    (_RETURN, 0, 0, 0),
]


def accept_loopback_only(port: int) -> None:
    """Drops what comes from elsewhere, at the sockets of this process that listen on a port (Linux).

    Raises:
      TwinGraphError: there is no such socket, this is not Linux, or its kernel allows filters to root alone.
    """
    listening = [each for each in _sockets() if _listens_on(each, port)]
    code = b"".join(struct.pack("HBBI", *instruction) for instruction in _PROGRAM)
    buffer = ctypes.create_string_buffer(code)
    program = struct.pack("HxxxxxxP", len(_PROGRAM), ctypes.addressof(buffer))
    for each in listening:
        with each:
            try:
                each.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, program)
            except OSError as error:
                raise TwinGraphError(
                    f"cannot restrict port {port} to this machine: {error.strerror} (SO_ATTACH_FILTER); some kernels "
                    "allow that only to root: train as root, in a container for instance, or without workers"
                ) from None
    if not listening:
        raise TwinGraphError(f"cannot restrict port {port} to this machine: only Linux is supported")


def _sockets() -> list[socket.socket]:
    """This process' sockets, under numbers of their own."""
    found = []
    for path in Path("/proc/self/fd").glob("*"):  # nothing where there is no such folder
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
