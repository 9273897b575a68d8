"""A network of this process's own, in which nobody else reaches what listens: a network namespace of Linux.

Run as a program, it tries whether the kernel lets it have one: there is no way back from half of one.
"""

import ctypes
import fcntl
import os
import socket
import struct
import subprocess
import sys
from pathlib import Path

_NEW_USER, _NEW_NETWORK = 0x10000000, 0x40000000  # linux/sched.h
_GET_FLAGS, _SET_FLAGS, _UP = 0x8913, 0x8914, 1  # linux/sockios.h, linux/if.h


def is_possible() -> bool:
    """Whether the kernel allows it, tried by another process."""
    if sys.platform != "linux":
        return False
    return subprocess.run([sys.executable, "-I", "-S", __file__], capture_output=True, check=False).returncode == 0


def enter() -> None:
    """Moves this process, which must still have one thread, into a network with a loopback interface and no other.

    Sockets that it has open, and files under `/proc/net`, stay with the network that they were opened in. Who is not
    root needs a user namespace for it, in which user and group keep their numbers: files have the same owner.

    Raises:
      OSError: the kernel refuses.
    """
    user, group = os.geteuid(), os.getegid()
    try:
        _unshare(_NEW_NETWORK)
    except PermissionError:
        _unshare(_NEW_USER | _NEW_NETWORK)
        Path("/proc/self/setgroups").write_text("deny")  # without which nobody but root may write the next but one
        Path("/proc/self/uid_map").write_text(f"{user} {user} 1")
        Path("/proc/self/gid_map").write_text(f"{group} {group} 1")
    with socket.socket() as any_socket:
        request = struct.pack("16sH22x", b"lo", 0)
        flags = struct.unpack("16sH22x", fcntl.ioctl(any_socket, _GET_FLAGS, request))[1]
        fcntl.ioctl(any_socket, _SET_FLAGS, struct.pack("16sH22x", b"lo", flags | _UP))


def _unshare(namespaces: int) -> None:
    if ctypes.CDLL(None, use_errno=True).unshare(namespaces):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


if __name__ == "__main__":
    enter()
