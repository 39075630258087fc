"""The part of QEMU's machine protocol needed to start a machine and query it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from collections.abc import AsyncIterator
from typing import Any

ANSWER_SECONDS_MAX = 10.0
LINE_BYTES_MAX = 1 << 20


class QmpError(RuntimeError):
    """QEMU rejected a command, or does not answer."""


class Qmp:
    """A QMP session. Created by ``talking``."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def greet(self) -> None:
        await self._message()  # the greeting of QEMU
        await self.execute("qmp_capabilities")

    async def execute(self, name: str, **arguments: object) -> Any:
        """The result of a command; raises ``QmpError`` if QEMU rejects it."""
        self._writer.write(json.dumps({"execute": name, "arguments": arguments}).encode() + b"\n")
        while True:
            message = await self._message()
            if "error" in message:
                raise QmpError(f"{name}: {message['error']['desc']}")
            if "return" in message:
                return message["return"]

    async def _message(self) -> dict[str, Any]:
        try:
            async with asyncio.timeout(ANSWER_SECONDS_MAX):
                line = await self._reader.readline()
        except TimeoutError:
            raise QmpError(f"QEMU did not answer within {ANSWER_SECONDS_MAX:g} s") from None
        except ConnectionError:
            line = b""
        if not line:
            raise QmpError("QEMU ended")
        message: dict[str, Any] = json.loads(line)
        return message


@contextlib.asynccontextmanager
async def talking(connection: socket.socket) -> AsyncIterator[Qmp]:
    """A session over one end of a socket pair whose other end QEMU inherited."""
    reader, writer = await asyncio.open_connection(sock=connection, limit=LINE_BYTES_MAX)
    try:
        qmp = Qmp(reader, writer)
        await qmp.greet()
        yield qmp
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


def forwarded_ports(shown: str) -> dict[int, int]:
    """Ports of the host by those of the guest, from QEMU's ``info usernet``.

    ``TCP[HOST_FORWARD]  14  127.0.0.1 40123  10.0.2.15  22  0  0``
    """
    rows = (line.split() for line in shown.splitlines() if "HOST_FORWARD" in line)
    return {int(row[5]): int(row[3]) for row in rows}
