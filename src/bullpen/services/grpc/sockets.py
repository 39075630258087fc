"""The sockets of the gRPC port.

gRPC owns them and offers no way to configure or inspect them, so they are borrowed by their
descriptors. gRPC may close a descriptor at any time, and another file may get its number:
check again before changing something.
"""

from __future__ import annotations

import contextlib
import os
import resource
import socket
import struct
from collections.abc import Iterable, Iterator, Set
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote

from bullpen.runtime import silence

DESCRIPTORS = Path("/proc/self/fd")

_RECEIVED_OFFSET = 128
"""Offset of ``tcpi_bytes_received`` in Linux' ``struct tcp_info``."""

_INFO_BYTES = _RECEIVED_OFFSET + 8

Endpoint = tuple[str, int]
"""Address and port of a peer."""


@dataclass(frozen=True, slots=True)
class Connection:
    """One accepted connection of a port, as the kernel reports it."""

    descriptor: int
    endpoint: Endpoint
    received: int
    """Bytes the peer has sent so far."""

    @property
    def address(self) -> str:
        return self.endpoint[0]


@contextlib.contextmanager
def borrowed(descriptor: int) -> Iterator[socket.socket]:
    """The socket of a descriptor; raises ``OSError`` if it is none. Its owner keeps it open."""
    found = socket.socket(fileno=descriptor)
    try:
        yield found
    finally:
        found.detach()


def unreachable(descriptor: int) -> bool:
    """Whether the peer of a TCP connection is unreachable; raises ``OSError`` if it is none.

    Called for every exporter once a second. The address family does not matter here, and
    ``borrowed`` would ask the kernel for it.
    """
    found = socket.socket(socket.AF_INET, socket.SOCK_STREAM, 0, descriptor)
    try:
        return silence.unreachable(found)
    finally:
        found.detach()


def connections(port: int, *, besides: Set[int] = frozenset()) -> list[Connection]:
    """The accepted connections of a port, except those with the descriptors ``besides``."""
    looked_at = (number for number in _descriptors() if number not in besides)
    found = (connection(descriptor, port) for descriptor in looked_at)
    return [each for each in found if each is not None]


def connection(descriptor: int, port: int) -> Connection | None:
    """The connection of a descriptor, if it is an accepted connection of the port."""
    with contextlib.suppress(OSError), borrowed(descriptor) as found:
        if not _is_bound(found, port):
            return None
        # A listening socket has no peer, and raises.
        endpoint = _endpoint(found.getpeername())
        info = found.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _INFO_BYTES)
        (received,) = struct.unpack_from("Q", info, _RECEIVED_OFFSET)
        return Connection(descriptor, endpoint, received)
    return None


def listeners(port: int) -> list[int]:
    """The descriptors that listen on a port: one for each address that is listened on."""
    return [descriptor for descriptor in _descriptors() if _listens(descriptor, port)]


def shut_down(descriptor: int, port: int) -> None:
    """Shut a connection of the port down; gRPC sees it end and closes it."""
    if connection(descriptor, port) is None:
        return
    with contextlib.suppress(OSError), borrowed(descriptor) as found:
        found.shutdown(socket.SHUT_RDWR)


def parse_peer(text: str) -> Endpoint:
    """A peer as gRPC writes it, such as ``ipv4:192.0.2.1:5000``; the port is 0 if it has none."""
    kind, _, rest = unquote(text).partition(":")
    if kind not in ("ipv4", "ipv6"):
        return rest, 0
    address, _, port = rest.rpartition(":")
    return address.strip("[]"), int(port)


def _endpoint(name: tuple[str, int] | tuple[str, int, int, int]) -> Endpoint:
    """As gRPC writes it: IPv4 addresses without the prefix that makes them IPv6 addresses."""
    return name[0].removeprefix("::ffff:"), name[1]


def _listens(descriptor: int, port: int) -> bool:
    with contextlib.suppress(OSError), borrowed(descriptor) as found:
        listening = found.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
        return bool(listening) and _is_bound(found, port)
    return False


def _is_bound(found: socket.socket, port: int) -> bool:
    internet = found.family in (socket.AF_INET, socket.AF_INET6)
    return internet and found.getsockname()[1] == port


def _descriptors() -> Iterable[int]:
    """The open descriptors; if none is left to list them with, all possible ones."""
    try:
        return [int(name) for name in os.listdir(DESCRIPTORS)]
    except OSError:
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        return range(soft)
