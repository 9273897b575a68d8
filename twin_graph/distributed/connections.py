"""The machine's TCP connections and whose they are, as the kernel lists them under /proc/net."""

from __future__ import annotations

import ipaddress
import re
import struct
import threading
from pathlib import Path
from typing import IO, TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

ESTABLISHED, LISTENING = 1, 10  # net/tcp_states.h
#: Host in one spelling, port.
Address = tuple[str, int]


class Connection(NamedTuple):
    """One end of a connection.

    Attributes:
      local, remote: as that end sees it.
      state: see net/tcp_states.h.
      user: whose socket it is. Of one that its process has closed, the kernel says 0, which is root's number.
      is_open: whether a process has the socket.
    """

    local: Address
    remote: Address
    state: int
    user: int
    is_open: bool


class Connections:
    """Those of the network in which this object was made, wherever the process has gone since. For several threads.

    Raises:
      OSError: there is no such list, since this is not Linux.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        # Unbuffered: what is read anew must be what the kernel says now.
        self._lists = [
            path.open("rb", buffering=0)
            for path in (Path("/proc/self/net/tcp"), Path("/proc/self/net/tcp6"))
            if path.exists() or path.name == "tcp"
        ]
        self._routes = Path("/proc/self/net/fib_trie").open("rb", buffering=0)  # noqa: SIM115 - for as long as this
        newer = Path("/proc/self/net/if_inet6")
        self._newer = newer.open("rb", buffering=0) if newer.exists() else None

    def __iter__(self) -> Iterator[Connection]:
        for one in self._lists:
            for line in self._read(one).splitlines()[1:]:
                _, local, remote, state, _, _, _, user, _, inode, *_ = line.split()
                yield Connection(_address(local), _address(remote), int(state, 16), int(user), inode != b"0")

    def end_of(self, local: Address, remote: Address) -> Connection | None:
        """The end of a connection that has these addresses, if this machine has it."""
        return next((one for one in self if (one.local, one.remote) == (local, remote)), None)

    def is_own(self, host: str) -> bool:
        """Whether an address is one of this machine's."""
        if ipaddress.ip_address(host).is_loopback:
            return True
        hosts = set(re.findall(rb"\|-- (\S+)\n +/32 host LOCAL", self._read(self._routes)))
        if self._newer:
            lines = self._read(self._newer).splitlines()
            hosts |= {str(ipaddress.ip_address(bytes.fromhex(line[:32].decode()))).encode() for line in lines}
        return host.encode() in hosts

    def _read(self, one: IO[bytes]) -> bytes:
        with self._lock:
            one.seek(0)
            return b"".join(iter(lambda: one.read(1 << 20), b""))


def plain(address: tuple[str | int, ...]) -> Address:
    """An address of a socket as `Connections` spells it."""
    found = ipaddress.ip_address(str(address[0]).partition("%")[0])
    return str(getattr(found, "ipv4_mapped", None) or found), int(address[1])


def _address(text: bytes) -> Address:
    """Of the list: each four bytes of the host are a number in this machine's order, in hexadecimal digits."""
    host, _, port = text.decode().partition(":")
    words = [int(host[i : i + 8], 16) for i in range(0, len(host), 8)]
    packed = struct.pack(f"={len(words)}I", *words)
    return plain((str(ipaddress.ip_address(packed)), int(port, 16)))
