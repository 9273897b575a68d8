"""Which processes train together, and where they listen."""

import ipaddress
import socket
import tomllib
from pathlib import Path
from typing import Annotated, Self

import pydantic
from pydantic import Field

from twin_graph.errors import DamagedError, UsageError
from twin_graph.snapshots.files import checked, read_file, write_file
from twin_graph.snapshots.forms import Record, first_problem


def _valid(address: str) -> str:
    host, _, port = address.rpartition(":")
    try:
        host.encode("idna")
    except UnicodeError:
        raise ValueError(f"{host} is not a host's name") from None
    if not 1 <= int(port) <= 65_535:
        raise ValueError("a port is 1 to 65535")
    return address


def _each_once(addresses: tuple[str, ...]) -> tuple[str, ...]:
    if repeated := next((one for one in addresses if addresses.count(one) > 1), ""):
        raise ValueError(f"{repeated} is given twice")
    return addresses


Address = Annotated[str, Field(pattern=r"^[^:\s]+:\d{1,5}$"), pydantic.AfterValidator(_valid)]
LOOPBACK = "127.0.0.1"


class Cluster(Record):
    """The processes of a cluster.

    Attributes:
      run: the run's folder, on storage that all machines see at this path.
      ps: host and port of each parameter server.
      workers: how many.
    """

    run: Path
    ps: Annotated[tuple[Address, ...], pydantic.AfterValidator(_each_once)] = Field(min_length=1)
    workers: int = Field(ge=1)

    @classmethod
    def on_this_machine(cls, run: Path, *, workers: int, servers: int) -> Self:
        """On the loopback interface, on ports that are free now."""
        addresses = tuple(f"{LOOPBACK}:{port}" for port in _free_ports(servers))
        return cls(run=run.absolute(), ps=addresses, workers=workers)

    @classmethod
    def described(cls, path: Path) -> Self:
        """Reads a cluster from a file that `write` wrote, or a user's TOML. Raises `UsageError`."""
        needs = 'it needs run = "FOLDER", ps = ["HOST:PORT"], workers = 2'
        try:
            if path.suffix == ".json":
                return cls.model_validate(read_file(path))
            return cls.model_validate(tomllib.loads(path.read_text(encoding="utf-8")))
        except DamagedError as error:
            hint = f"; one that you write is TOML: {needs}" if path.exists() else ""
            raise UsageError(f"{error}{hint}") from None
        except OSError as error:
            raise UsageError(f"cannot read {path}: {error.strerror}") from None
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise UsageError(f"{path}: {error}; {needs}") from None
        except pydantic.ValidationError as error:
            raise UsageError(f"{path}: {first_problem(error)}; {needs}") from None

    def write(self, path: Path) -> None:
        """For `described`."""
        write_file(path, checked(self.model_dump(mode="json")))

    @property
    def beyond_this_machine(self) -> list[str]:
        """Addresses that are not of the loopback interface."""
        return [address for address in self.ps if not is_loopback(address)]


def is_loopback(address: str) -> bool:
    """Whether only this machine can reach it."""
    host = address.rpartition(":")[0]
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    try:
        for each in sockets:
            each.bind((LOOPBACK, 0))
        return [each.getsockname()[1] for each in sockets]
    finally:
        for each in sockets:
            each.close()
