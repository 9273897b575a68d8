"""Whether a parameter server answers at an address: a session would not say, and could not be interrupted meanwhile."""

from __future__ import annotations

import contextlib
import socket

#: What is at an address if it is no server: nothing, something that says nothing, something that says something else.
NOTHING, SILENT, OTHER = "nothing", "silent", "other"

_SECONDS = 1.0
# What begins each HTTP/2 connection (RFC 9113, 3.4): gRPC answers by a frame of settings, too, of stream 0.
_GREETING = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
_HEADER_BYTES = 9
_SETTINGS = 4


def look(address: str) -> str:
    """What is at an address, for at most a few seconds; empty if it answers as a gRPC server does."""
    host, _, port = address.rpartition(":")
    try:
        connection = socket.create_connection((host, int(port)), timeout=_SECONDS)
    except OSError:
        return NOTHING
    with connection:
        header = b""
        with contextlib.suppress(OSError):
            connection.sendall(_GREETING)
            while len(header) < _HEADER_BYTES and (more := connection.recv(_HEADER_BYTES - len(header))):
                header += more
    if len(header) < _HEADER_BYTES:
        return OTHER if header else SILENT
    return "" if header[3] == _SETTINGS and not any(header[5:]) else OTHER
