"""Bytes through the router, against the same bytes through a plain relay in Python.

Both ends use the same few frames in both cases, so that only the middle differs. The
published gRPC client is much slower than either.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import ssl
import struct
import tempfile
import time
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import cast

from bullpen.bench.measure import Goal, Result, compare, interleaved, percentile
from bullpen.bench.processes import served
from bullpen.datadir import certificates
from bullpen.datadir.certificates import Certificates
from bullpen.identity.subjects import Role
from bullpen.identity.tokens import STREAM_LIFETIME, Ticket, Tickets
from bullpen.kit.clock import SystemClock
from bullpen.services.router import frames
from bullpen.services.router.server import Router, tls_context

KEY = b"benchmark-key-of-32-bytes-length"
SIZES = {"64 B": 64, "4 KiB": 4 * 1024, "64 KiB": 64 * 1024, "1 MiB": 1024 * 1024}
GOAL_SIZE_MIN = 4 * 1024
STREAMS = 100
STREAMS_SIZE = 64 * 1024
SECONDS = 1.0
PINGS = 400
WINDOW = 8 * 1024 * 1024
CHUNK = 64 * 1024
HELLO_BYTES = 36

THROUGHPUT = Goal(0.7)
LATENCY = Goal(1.5, at_least=False)


async def run(*, rounds: int) -> tuple[Result, ...]:
    """Throughput by message size and latency, without and with TLS."""
    with tempfile.TemporaryDirectory() as directory:
        names = ("localhost", "127.0.0.1")
        certs = certificates.ensure(Path(directory), names, now=datetime.now(UTC))
        return (*await _compared(None, rounds), *await _compared(certs, rounds))


async def _compared(certs: Certificates | None, rounds: int) -> list[Result]:
    suffix = " TLS" if certs else ""
    with served(_serve_relay, certs) as relay, served(_serve_router, certs) as router:
        results = []
        for text, size in SIZES.items():
            ours, theirs = await interleaved(
                rounds,
                partial(_throughput, _End, router.facts, certs, size),
                partial(_throughput, _RelayedEnd, relay.facts, certs, size),
            )
            name = f"router throughput {text}{suffix}"
            goal = THROUGHPUT if size >= GOAL_SIZE_MIN else None
            results.append(compare(name, ours, theirs, unit="MB/s", goal=goal))
        ours, theirs = await interleaved(
            rounds,
            partial(_many, _End, router.facts, certs),
            partial(_many, _RelayedEnd, relay.facts, certs),
        )
        name = f"router {STREAMS} streams at once{suffix}"
        results.append(compare(name, ours, theirs, unit="MB/s", goal=None))
        ours, theirs = await interleaved(
            rounds,
            partial(_latency, _End, router.facts, certs),
            partial(_latency, _RelayedEnd, relay.facts, certs),
        )
        name = f"router ping-pong p50{suffix}"
        return [*results, compare(name, ours, theirs, unit="µs", goal=LATENCY)]


async def _throughput(kind: type[_End], port: int, certs: Certificates | None, size: int) -> float:
    async with _pair(kind, port, certs) as (sender, receiver):
        return await _pump(sender, receiver, size) / 1e6


async def _many(kind: type[_End], port: int, certs: Certificates | None) -> float:
    """All streams together."""
    async with contextlib.AsyncExitStack() as stack:
        pairs = [await stack.enter_async_context(_pair(kind, port, certs)) for _ in range(STREAMS)]
        speeds = await asyncio.gather(*(_pump(*pair, STREAMS_SIZE) for pair in pairs))
        return sum(speeds) / 1e6


async def _latency(kind: type[_End], port: int, certs: Certificates | None) -> float:
    async with _pair(kind, port, certs) as (sender, receiver):
        return percentile(await _ping(sender, receiver), 0.5) * 1e6


class _End:
    """One side of a stream: as much HTTP/2 as a load generator needs, with wide windows."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    _buffer = b""
    _room = frames.WINDOW_DEFAULT
    _stream_room = frames.WINDOW_DEFAULT
    _owed = 0

    async def open(self, role: Role, stream: str) -> None:
        now = datetime.now(UTC)
        ticket = Ticket(
            stream=stream, lease="bench", epoch=1, role=role, expires=now + STREAM_LIFETIME
        )
        token = Tickets(KEY).mint(ticket, now=now - timedelta(seconds=1))
        block = frames.header_block(
            (
                (":method", "POST"),
                (":scheme", "http"),
                (":path", "/jumpstarter.v1.RouterService/Stream"),
                (":authority", "bench"),
                ("content-type", "application/grpc"),
                ("te", "trailers"),
                ("authorization", f"Bearer {token}"),
            )
        )
        self.writer.write(
            frames.PREFACE
            + frames.settings({frames.SETTING_WINDOW: WINDOW, frames.SETTING_FRAME_SIZE: 1 << 20})
            + frames.window_update(0, WINDOW)
            + frames.head(len(block), frames.HEADERS, frames.END_HEADERS, 1)
            + block
        )
        await self.writer.drain()
        while self._stream_room <= frames.WINDOW_DEFAULT:
            await self._read()

    async def send(self, payload: bytes) -> None:
        message = b"\x00" + struct.pack(">I", len(payload)) + payload
        at = 0
        while at < len(message):
            room = min(self._room, self._stream_room, CHUNK, len(message) - at)
            if room <= 0:
                await self._read()
                continue
            self.writer.write(frames.head(room, frames.DATA, 0, 1) + message[at : at + room])
            self._room -= room
            self._stream_room -= room
            at += room
            await self.writer.drain()

    async def receive(self) -> int:
        while not (count := await self._read()):
            pass
        return count

    async def _read(self) -> int:
        """Read what has been received; returns how much of it was DATA."""
        data = self._buffer + await self.reader.read(1 << 20)
        at = count = 0
        while len(data) - at >= frames.HEAD_SIZE:
            length, kind, flags, stream = frames.parse_head(data, at)
            end = at + frames.HEAD_SIZE + length
            if end > len(data):
                break
            body = memoryview(data)[at + frames.HEAD_SIZE : end]
            if kind == frames.DATA:
                count += length
            else:
                self._control(kind, flags, stream, body)
            at = end
        self._buffer = data[at:]
        self._repay(count)
        return count

    def _control(self, kind: int, flags: int, stream: int, body: memoryview) -> None:
        if kind == frames.WINDOW_UPDATE:
            increment = int.from_bytes(body, "big")
            if stream:
                self._stream_room += increment
            else:
                self._room += increment
        elif kind == frames.SETTINGS and not flags & frames.ACK:
            for key, value in frames.parse_settings(body):
                if key == frames.SETTING_WINDOW:
                    self._stream_room += value - frames.WINDOW_DEFAULT
            self.writer.write(frames.SETTINGS_ACK)

    def _repay(self, count: int) -> None:
        self._owed += count
        if self._owed >= WINDOW // 4:
            update = frames.window_update(0, self._owed) + frames.window_update(1, self._owed)
            self.writer.write(update)
            self._owed = 0


class _RelayedEnd(_End):
    """The same frames, straight to the other end: only the middle differs."""

    async def open(self, role: Role, stream: str) -> None:
        self.writer.write(stream.encode().ljust(HELLO_BYTES))
        await self.writer.drain()
        self._room = self._stream_room = WINDOW


async def _pump(sender: _End, receiver: _End, size: int) -> float:
    """Bytes per second of messages of ``size``, in one direction, for a while."""
    payload = os.urandom(size)
    burst = max(1, CHUNK // size)
    received = 0
    deadline = time.perf_counter() + SECONDS

    async def send() -> None:
        while time.perf_counter() < deadline:
            for _ in range(burst):
                await sender.send(payload)
            await asyncio.sleep(0)  # sending alone does not let other tasks run

    async def receive() -> None:
        nonlocal received
        while True:
            received += await receiver.receive()

    started = time.perf_counter()
    reading = asyncio.ensure_future(receive())
    try:
        await send()
        taken = time.perf_counter() - started
        return received / taken
    finally:
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)


async def _ping(sender: _End, receiver: _End) -> list[float]:
    samples = []
    for _ in range(PINGS):
        started = time.perf_counter()
        await sender.send(b"x")
        await receiver.receive()
        await receiver.send(b"x")
        await sender.receive()
        samples.append(time.perf_counter() - started)
    return samples[PINGS // 10 :]


@contextlib.asynccontextmanager
async def _pair(
    kind: type[_End], port: int, certs: Certificates | None
) -> AsyncIterator[tuple[_End, _End]]:
    """Two ends that were paired in the middle."""
    context = None
    if certs is not None:
        context = ssl.create_default_context(cafile=str(certs.ca))
        context.set_alpn_protocols(["h2"])
    stream = os.urandom(16).hex()
    ends = []
    for role in (Role.CLIENT, Role.EXPORTER):
        reader, writer = await asyncio.open_connection(
            "127.0.0.1", port, ssl=context, limit=1 << 20
        )
        end = kind(reader, writer)
        await end.open(role, stream)
        ends.append(end)
    try:
        await ends[0].send(b"hello")
        await ends[1].receive()
        yield ends[0], ends[1]
    finally:
        for end in ends:
            end.writer.close()


def _tls(certs: Certificates | None) -> ssl.SSLContext | None:
    return tls_context(str(certs.server_chain), str(certs.server_key)) if certs else None


async def _serve_router(pipe: Connection, certs: Certificates | None) -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    router = Router(Tickets(KEY), clock=SystemClock())
    async with router.serving(listener, _tls(certs)):
        pipe.send(listener.getsockname()[1])
        await asyncio.Event().wait()


async def _serve_relay(pipe: Connection, certs: Certificates | None) -> None:
    waiting: dict[bytes, _Relay] = {}
    server = await asyncio.get_running_loop().create_server(
        lambda: _Relay(waiting), "127.0.0.1", 0, ssl=_tls(certs)
    )
    pipe.send(server.sockets[0].getsockname()[1])
    await server.serve_forever()


class _Relay(asyncio.Protocol):
    """The simplest relay: the first 36 bytes identify the pair, the rest is passed on."""

    def __init__(self, waiting: dict[bytes, _Relay]) -> None:
        self._waiting = waiting
        self._hello = b""
        self._held: list[bytes] = []
        self._other: _Relay | None = None
        self.transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        if len(self._hello) < HELLO_BYTES:
            self._hello += data
            if len(self._hello) < HELLO_BYTES:
                return
            data, self._hello = self._hello[HELLO_BYTES:], self._hello[:HELLO_BYTES]
            self._meet()
        if self._other is None:
            self._held.append(data)
        elif data and not self._other.transport.is_closing():
            self._other.transport.write(data)

    def _meet(self) -> None:
        other = self._waiting.pop(self._hello, None)
        if other is None:
            self._waiting[self._hello] = self
            return
        self._other, other._other = other, self
        for held in other._held:
            self.transport.write(held)

    def pause_writing(self) -> None:
        if self._other is not None:
            self._other.transport.pause_reading()

    def resume_writing(self) -> None:
        if self._other is not None:
            self._other.transport.resume_reading()
