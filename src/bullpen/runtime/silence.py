"""How long the machine at the other end of a TCP connection has been silent.

The kernel probes idle connections, and the kernel of the other machine answers, so healthy
connections cost this process nothing but a look now and then, and a program that is too
busy to answer is not mistaken for a machine that cannot be reached.
"""

from __future__ import annotations

import socket
import struct
from typing import Protocol

PROBE_SECONDS = 1
"""Seconds without traffic after which a connection is probed, and between two probes."""

SILENCE_SECONDS_MAX = 3.5
"""A machine that has not answered for this long, three probes included, is unreachable."""

LOOK_SECONDS = 1.0
"""Seconds between two looks at all connections."""

DETECTION_SECONDS_MAX = SILENCE_SECONDS_MAX + LOOK_SECONDS
"""The longest time after which an unreachable machine is noticed."""

_LAST_HEARD_OFFSET = 52
"""Offset of ``tcpi_last_data_recv`` and ``tcpi_last_ack_recv`` in Linux' ``struct tcp_info``."""

_LAST_HEARD = struct.Struct("II")
_INFO_BYTES = _LAST_HEARD_OFFSET + _LAST_HEARD.size


class HasOptions(Protocol):
    """The part of a socket, or of the socket that asyncio lends, that is used here."""

    def getsockopt(self, level: int, option: int, size: int, /) -> bytes: ...


def probe_accepted(listener: socket.socket) -> None:
    """Let the kernel probe the connections that ``listener`` accepts: they inherit its options."""
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, PROBE_SECONDS)
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, PROBE_SECONDS)


def silence(connection: HasOptions) -> float:
    """Seconds since the other machine last sent data or an acknowledgement.

    Raises ``OSError`` if this is not a TCP connection.
    """
    info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _INFO_BYTES)
    data, acknowledgement = _LAST_HEARD.unpack_from(info, _LAST_HEARD_OFFSET)
    return float(min(data, acknowledgement)) / 1000


def unreachable(connection: HasOptions) -> bool:
    """Whether the other machine has been silent for too long."""
    return silence(connection) > SILENCE_SECONDS_MAX
