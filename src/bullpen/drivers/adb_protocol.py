"""The part of adb's protocol between client and server that a target needs.

A request is a text with its length before it, and the server answers OKAY or FAIL. A connection
that has chosen a device becomes a stream of the service it asks for. The server is the target's
own and runs in its sandbox, so everything that it sends is bounded here.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Mapping
from typing import BinaryIO

ANSWER_BYTES_MAX = 1 << 16
PIECE_BYTES = 1 << 16
CONNECT_SECONDS_MAX = 5.0
ANSWER_SECONDS_MAX = 20.0
INSTALL_SECONDS_MAX = 300.0
"""How long a device may take to install a package that it has received."""

LOOPBACK = "127.0.0.1"

BOOTED = "getprop sys.boot_completed"
"""A command that prints 1 on a device that has booted."""

NO_DISCOVERY = {"ADB_EMU": "0", "ADB_MDNS": "0", "ADB_USB": "0"}
"""By itself, an adb server finds devices at USB and in the network, and connects to every emulator
of the host, on ports from 5555. ADB_LOCAL_TRANSPORT_MAX_PORT does not prevent that for certain: it
is read while the search begins.
"""


def adb_command(directory: str, port: int, environment: Mapping[str, str]) -> tuple[str, ...]:
    """An adb server that stays in the foreground and knows no device by itself."""
    values = {
        "HOME": directory,
        "TMPDIR": directory,
        "ANDROID_USER_HOME": f"{directory}/.android",
        "ANDROID_ADB_SERVER_PORT": str(port),
        **NO_DISCOVERY,
        **environment,
    }
    variables = (f"{name}={value}" for name, value in sorted(values.items()))
    return ("env", "-C", directory, *variables, "adb", "-P", str(port), "server", "nodaemon")


class AdbFailed(RuntimeError):
    """The adb server does not answer, or refuses."""


class AdbSession:
    """One connection to the adb server. Use it in ``async with``."""

    def __init__(self, made: socket.socket, port: int, seconds: float) -> None:
        """``seconds``: how long each answer may take."""
        self._socket = made
        self._port = port
        self._seconds = seconds

    async def __aenter__(self) -> AdbSession:
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(CONNECT_SECONDS_MAX):
                await loop.sock_connect(self._socket, (LOOPBACK, self._port))
        except (OSError, TimeoutError) as error:
            self._socket.close()
            raise AdbFailed(f"the adb server does not answer: {error}") from None
        return self

    async def __aexit__(self, *_: object) -> None:
        self._socket.close()

    def detached(self) -> socket.socket:
        """The connection, for another owner."""
        return self._socket.dup()

    async def send(self, request: str) -> None:
        await self._send(b"%04x" % len(request.encode()) + request.encode())

    async def ask(self, request: str) -> None:
        """Send a request. Raises ``AdbFailed`` if the server refuses."""
        await self.send(request)
        status = await self._exactly(4)
        if status != b"OKAY":
            raise AdbFailed(await self._text() if status == b"FAIL" else f"said {status!r}")

    async def answer(self, request: str) -> str:
        """The text with which the server answers."""
        await self.ask(request)
        return await self._text()

    async def write(self, content: BinaryIO) -> None:
        while piece := await asyncio.to_thread(content.read, PIECE_BYTES):
            await self._send(piece)

    async def rest(self) -> str:
        """What the device says until it closes the stream."""
        said = b""
        while len(said) < ANSWER_BYTES_MAX:
            piece = await self._receive(ANSWER_BYTES_MAX)
            if not piece:
                break
            said += piece
        return said.decode(errors="replace").strip()

    async def _text(self) -> str:
        try:
            size = int(await self._exactly(4), 16)
        except ValueError:
            raise AdbFailed("the adb server sent something else than an answer") from None
        return (await self._exactly(size)).decode(errors="replace")

    async def _exactly(self, size: int) -> bytes:
        found = b""
        while len(found) < size:
            piece = await self._receive(size - len(found))
            if not piece:
                raise AdbFailed("the adb server has closed the connection")
            found += piece
        return found

    async def _receive(self, size: int) -> bytes:
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self._seconds):
                return await loop.sock_recv(self._socket, size)
        except (OSError, TimeoutError) as error:
            raise AdbFailed(f"the adb server does not answer: {error}") from None

    async def _send(self, data: bytes) -> None:
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self._seconds):
                await loop.sock_sendall(self._socket, data)
        except (OSError, TimeoutError) as error:
            raise AdbFailed(f"the adb server does not answer: {error}") from None


class Adb:
    """What a target asks of its adb server."""

    def __init__(self, new_socket: Callable[[], socket.socket], port: int) -> None:
        self._new_socket = new_socket
        self._port = port

    def session(self, seconds: float = ANSWER_SECONDS_MAX) -> AdbSession:
        return AdbSession(self._new_socket(), self._port, seconds)

    async def version(self) -> str:
        async with self.session() as adb:
            return await adb.answer("host:version")

    async def devices(self) -> str:
        async with self.session() as adb:
            return await adb.answer("host:devices-l")

    async def introduce(self, device_port: int) -> None:
        """Tell the server of an emulator, as emulators do; again does no harm. It never answers."""
        async with self.session() as adb:
            await adb.send(f"host:emulator:{device_port}")
            await adb.rest()

    async def connect(self, serial: str) -> None:
        """Let the server connect to a device over TCP; again does no harm."""
        async with self.session() as adb:
            said = await adb.answer(f"host:connect:{serial}")
        if "connected to" not in said:
            raise AdbFailed(said)

    async def shell(self, serial: str, command: str) -> str:
        """What a command on the device prints."""
        async with self.session() as adb:
            await adb.ask(f"host:transport:{serial}")
            await adb.ask(f"shell:{command}")
            return await adb.rest()

    async def terminal(self, serial: str) -> socket.socket:
        """A shell on the device, as a connection."""
        async with self.session() as adb:
            await adb.ask(f"host:transport:{serial}")
            await adb.ask("shell:")
            return adb.detached()

    async def install(self, serial: str, package: BinaryIO, size: int) -> str:
        """Install a package; what the device says about it: Success, or why not."""
        async with self.session(INSTALL_SECONDS_MAX) as adb:
            await adb.ask(f"host:transport:{serial}")
            await adb.ask(f"exec:cmd package install -r -S {size}")
            await adb.write(package)
            return await adb.rest()
