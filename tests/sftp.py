"""An SFTP server on loopback for a folder, with paramiko; its user has a key, and it is a known host."""

import contextlib
import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import paramiko
from paramiko import SFTPAttributes, SFTPServer


class _Everybody(paramiko.ServerInterface):
    def check_auth_publickey(self, username: str, key: paramiko.PKey) -> int:
        return paramiko.AUTH_SUCCESSFUL

    def check_channel_request(self, kind: str, chanid: int) -> int:
        return paramiko.OPEN_SUCCEEDED


class _Files(paramiko.SFTPServerInterface):
    """Of this machine. As OpenSSH does it, `rename` fails where there is a file of the new name."""

    exclusive = True

    def list_folder(self, path: str) -> object:
        return _or_error(lambda: [SFTPAttributes.from_stat(one.stat(), one.name) for one in Path(path).iterdir()])

    def stat(self, path: str) -> object:
        return _or_error(lambda: SFTPAttributes.from_stat(Path(path).stat()))

    lstat = stat

    def open(self, path: str, flags: int, attr: SFTPAttributes) -> object:
        def opened() -> paramiko.SFTPHandle:
            handle = paramiko.SFTPHandle(flags)
            mode = "wb" if flags & os.O_WRONLY else "rb"
            file = os.fdopen(os.open(path, flags, 0o666), mode)
            handle.readfile = handle.writefile = file
            handle.stat = lambda: SFTPAttributes.from_stat(os.fstat(file.fileno()))
            return handle

        return _or_error(opened)

    def remove(self, path: str) -> object:
        return _or_error(Path(path).unlink)

    def rename(self, oldpath: str, newpath: str) -> object:
        def renamed() -> None:
            if self.exclusive:
                os.link(oldpath, newpath)
                Path(oldpath).unlink()
            else:
                Path(oldpath).rename(newpath)

        return _or_error(renamed)

    def posix_rename(self, oldpath: str, newpath: str) -> object:
        return _or_error(lambda: Path(oldpath).replace(newpath) and None)

    def mkdir(self, path: str, attr: SFTPAttributes) -> object:
        return _or_error(Path(path).mkdir)


def _or_error(do: object) -> object:
    try:
        found = do()
    except OSError as error:
        return SFTPServer.convert_errno(error.errno)
    return paramiko.SFTP_OK if found is None else found


@contextlib.contextmanager
def serve(home: Path, *, exclusive: bool = True) -> Iterator[str]:
    """`sftp://HOST:PORT`, as long as it lasts; `home` gets the `.ssh` of a user who knows it."""
    key = paramiko.RSAKey.generate(2048)
    files = type("Files", (_Files,), {"exclusive": exclusive})
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        (home / ".ssh").mkdir(parents=True)
        paramiko.RSAKey.generate(2048).write_private_key_file(str(home / ".ssh" / "id"))
        (home / ".ssh" / "config").write_text(
            f"Host there\n HostName 127.0.0.1\n User me\n IdentityFile {home}/.ssh/id\n"
        )
        known = f"[127.0.0.1]:{port} {key.get_name()} {key.get_base64()}\n"
        (home / ".ssh" / "known_hosts").write_text(known)
        transports = []

        def accept() -> None:
            with contextlib.suppress(OSError):  # it is closed
                while True:
                    connection, _ = listening.accept()
                    transport = paramiko.Transport(connection)
                    transports.append(transport)
                    transport.add_server_key(key)
                    transport.set_subsystem_handler("sftp", SFTPServer, files)
                    with contextlib.suppress(paramiko.SSHException, EOFError):
                        transport.start_server(server=_Everybody())

        threading.Thread(target=accept, daemon=True).start()
        yield f"sftp://there:{port}"
        for transport in transports:
            transport.close()
