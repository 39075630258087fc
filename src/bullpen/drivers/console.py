"""A machine's serial console, which buffers unread output.

A pseudo-terminal drops what a machine prints before a reader opens it, which is when
machines print the most important messages. Here the output is kept, as in the buffer of a
real serial port, and an open console stays open while the machine is switched off and on.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass

from anyio import EndOfStream
from anyio.abc import ObjectStream
from jumpstarter.driver import exportstream
from jumpstarter_driver_pyserial.driver import PySerial

UNREAD_BYTES_MAX = 1 << 16
"""Output kept while no console is open; then the oldest is dropped."""

BEHIND_BYTES_MAX = 1 << 18
"""How far a reader may fall behind before the machine has to wait for it."""


class SerialLine:
    """The host's end of a serial line, across power cycles."""

    def __init__(self) -> None:
        self._machine: _Machine | None = None
        self._unread = bytearray()
        self._streams: list[ConsoleStream] = []
        self._listener: Callable[[bytes], None] | None = None

    @contextlib.contextmanager
    def overheard(self, listener: Callable[[bytes], None]) -> Iterator[None]:
        """Call ``listener`` with all output meanwhile; consoles get it all the same."""
        self._listener = listener
        try:
            yield
        finally:
            self._listener = None

    async def plug(
        self, machine: socket.socket, listener: Callable[[bytes], None] | None = None
    ) -> None:
        """Connect a machine that is about to start. Unread output of the last run is dropped.

        ``listener`` is called with all output of this run; consoles get it all the same.
        """
        self.unplug()
        self._unread.clear()
        connection = _Machine(self, listener)
        await asyncio.get_running_loop().create_connection(lambda: connection, sock=machine)
        self._machine = connection

    @property
    def plugged(self) -> bool:
        """Whether a machine is connected."""
        return self._machine is not None

    def unplug(self) -> None:
        """Disconnect the machine. A later end of its connection does not concern the next one."""
        if self._machine is not None:
            self._machine.transport.abort()
            self._machine = None

    def open(self) -> ConsoleStream:
        stream = ConsoleStream(self, bytes(self._unread))
        self._unread.clear()
        self._streams.append(stream)
        return stream

    def close(self, stream: ConsoleStream) -> None:
        self._streams.remove(stream)
        self.resume()

    def write(self, data: bytes) -> None:
        """Input while the machine is off is discarded."""
        if self._machine is not None:
            self._machine.transport.write(data)

    def resume(self) -> None:
        """Let the machine go on once no reader is far behind."""
        if self._machine is not None and not self._is_behind():
            self._machine.transport.resume_reading()

    def receive(self, machine: _Machine, data: bytes) -> None:
        if self._listener is not None:
            self._listener(data)
        for stream in self._streams:
            stream.feed(data)
        if not self._streams:
            self._unread += data
            del self._unread[:-UNREAD_BYTES_MAX]
        elif self._is_behind():
            machine.transport.pause_reading()

    def lose(self, machine: _Machine) -> None:
        if self._machine is machine:
            self._machine = None

    def _is_behind(self) -> bool:
        return any(stream.behind > BEHIND_BYTES_MAX for stream in self._streams)


class _Machine(asyncio.Protocol):
    """The connection to the machine in one of its runs."""

    transport: asyncio.Transport

    def __init__(self, line: SerialLine, listener: Callable[[bytes], None] | None) -> None:
        self._line = line
        self._listener = listener

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def connection_lost(self, error: Exception | None) -> None:
        self._line.lose(self)

    def data_received(self, data: bytes) -> None:
        if self._listener is not None:
            self._listener(data)
        self._line.receive(self, data)


class ConsoleStream(ObjectStream[bytes]):
    """One open console."""

    def __init__(self, line: SerialLine, unread: bytes) -> None:
        self._line = line
        self._pending = bytearray(unread)
        self._news = asyncio.Event()
        self._closed = False

    @property
    def behind(self) -> int:
        return len(self._pending)

    def feed(self, data: bytes) -> None:
        self._pending += data
        self._news.set()

    async def receive(self) -> bytes:
        while not self._pending:
            if self._closed:
                raise EndOfStream
            self._news.clear()
            await self._news.wait()
        data = bytes(self._pending)
        self._pending.clear()
        self._line.resume()
        return data

    async def send(self, item: bytes) -> None:
        self._line.write(item)

    async def send_eof(self) -> None:
        """A serial line has no end of file."""

    async def aclose(self) -> None:
        if not self._closed:
            self._closed = True
            self._line.close(self)
            self._news.set()


@dataclass(kw_only=True)
class Console(PySerial):
    """The console driver. Clients see a serial port."""

    url: str = "virtual"
    check_present: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()  # type: ignore[no-untyped-call]
        self.line = SerialLine()

    @exportstream  # type: ignore[untyped-decorator]
    @contextlib.asynccontextmanager
    async def connect(self) -> AsyncIterator[ConsoleStream]:
        async with self.line.open() as stream:
            yield stream
