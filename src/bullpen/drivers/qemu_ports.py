"""Ports of the guest: drivers that connect in the machine's own network, if it has one."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from dataclasses import dataclass

from anyio.abc import SocketStream
from jumpstarter.driver import exportstream
from jumpstarter_driver_network.driver import TcpNetwork

from bullpen.drivers.sandbox import Sandbox

CONNECT_SECONDS_MAX = 10.0
CONNECT_PAUSE_SECONDS = 0.05


@dataclass(kw_only=True)
class ForwardedPort(TcpNetwork):
    """Clients see a TCP network."""

    def __post_init__(self) -> None:
        super().__post_init__()  # type: ignore[no-untyped-call]
        self.sandbox = Sandbox()
        """The sandbox in which the machine was started."""

        self.opens_late = False
        """Whether the port may refuse connections for a while after the start."""

    @exportstream  # type: ignore[untyped-decorator]
    @contextlib.asynccontextmanager
    async def connect(self) -> AsyncIterator[SocketStream]:
        if not self.port:
            raise RuntimeError("the machine is off; switch it on first")
        async with asyncio.timeout(CONNECT_SECONDS_MAX):
            made = await self._connected()
        async with await SocketStream.from_socket(made) as stream:
            yield stream

    async def _connected(self) -> socket.socket:
        while True:
            made = self.sandbox.stream_socket()
            try:
                await asyncio.get_running_loop().sock_connect(made, (self.host, self.port))
            except BaseException as error:
                made.close()
                if not (self.opens_late and isinstance(error, ConnectionRefusedError)):
                    raise
                await asyncio.sleep(CONNECT_PAUSE_SECONDS)
            else:
                return made


def forwarded_ports(shown: str) -> dict[int, int]:
    """Ports of the host by those of the guest, from QEMU's ``info usernet``.

    ``TCP[HOST_FORWARD]  14  127.0.0.1 40123  10.0.2.15  22  0  0``
    """
    rows = (line.split() for line in shown.splitlines() if "HOST_FORWARD" in line)
    return {int(row[5]): int(row[3]) for row in rows}
