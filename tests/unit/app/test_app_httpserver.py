"""HTTP connections: what a request's head and body may take, and what keeps a connection."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest

from bullpen.app import httpserver
from bullpen.app.httpserver import HEAD_BYTES_MAX, bind, serving
from bullpen.runtime.connections import Bounds, PortConnections

REQUEST = b"GET /%s HTTP/1.1\r\nhost: x\r\n\r\n"
WAIT_SECONDS = 20.0


class Application:
    """Answers with the path; one that begins with ``held`` when it is let go."""

    def __init__(self) -> None:
        self.go = asyncio.Event()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["path"].startswith("/held"):
            await self.go.wait()
        body = scope["path"].encode()
        headers = [(b"content-length", str(len(body)).encode())]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})


class World:
    def __init__(self, application: Application, port: int, connections: PortConnections) -> None:
        self.application = application
        self.port = port
        self.connections = connections

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection("127.0.0.1", self.port)


@contextlib.asynccontextmanager
async def running(bounds: Bounds | None = None) -> AsyncIterator[World]:
    application, connections = Application(), PortConnections("http", bounds)
    listener = bind("127.0.0.1", 0)
    port = listener.getsockname()[1]
    async with asyncio.timeout(60), serving(application, listener, None, connections=connections):
        yield World(application, port, connections)
        application.go.set()


async def answer(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    async with asyncio.timeout(WAIT_SECONDS):
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
        return int(head.split()[1]), await reader.readexactly(length)


async def ended(reader: asyncio.StreamReader) -> bool:
    """Whether the other side closed; whatever it said before is passed over."""
    async with asyncio.timeout(WAIT_SECONDS):
        with contextlib.suppress(ConnectionError):
            await reader.read()
        return True


async def test_requests_that_come_together_are_answered_in_order() -> None:
    async with running() as world:
        reader, writer = await world.connect()
        writer.write(REQUEST % b"held" + REQUEST % b"two" + REQUEST % b"three")
        await asyncio.sleep(0.05)
        world.application.go.set()
        said = [await answer(reader) for _ in range(3)]
        assert said == [(200, b"/held"), (200, b"/two"), (200, b"/three")]
        writer.close()


async def test_a_connection_goes_on_after_a_body_that_was_not_read() -> None:
    """However long the body is: it is not the head of the next request."""
    async with running() as world:
        reader, writer = await world.connect()
        size = 4 * HEAD_BYTES_MAX
        writer.write(b"POST /early HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % size)
        assert await answer(reader) == (200, b"/early")
        writer.write(b"x" * size)
        await writer.drain()
        writer.write(REQUEST % b"next")
        assert await answer(reader) == (200, b"/next")
        writer.close()


async def test_a_head_over_its_size_is_refused() -> None:
    async with running() as world:
        reader, writer = await world.connect()
        writer.write(b"GET / HTTP/1.1\r\n" + b"x: %s\r\n" % (b"y" * 1_000) * 70)
        assert (await answer(reader))[0] == 400
        assert await ended(reader)
        writer.close()


@pytest.mark.parametrize(
    "said",
    [
        pytest.param(b"", id="nothing"),
        pytest.param(b"GET / HTTP/1.1\r\nho", id="half a head"),
        pytest.param(b"\r\n\r\n", id="empty lines"),
        pytest.param(REQUEST % b"one" + b"GET /tw", id="half a second head"),
        pytest.param(
            b"POST /early HTTP/1.1\r\nhost: x\r\ncontent-length: 9\r\n\r\nhalf",
            id="half a body that was refused",
        ),
    ],
)
async def test_a_request_that_does_not_become_complete_is_cut_at_the_deadline(
    monkeypatch: pytest.MonkeyPatch, said: bytes
) -> None:
    monkeypatch.setattr(httpserver, "HEAD_SECONDS_MAX", 0.2)
    async with running() as world:
        reader, writer = await world.connect()
        writer.write(said)
        assert await ended(reader)
        writer.close()


async def test_an_answer_that_takes_long_is_not_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(httpserver, "HEAD_SECONDS_MAX", 0.1)
    async with running() as world:
        reader, writer = await world.connect()
        writer.write(REQUEST % b"held")
        await asyncio.sleep(0.5)
        world.application.go.set()
        assert await answer(reader) == (200, b"/held")
        writer.close()


async def test_at_the_bound_an_idle_connection_gives_way_and_a_busy_one_does_not() -> None:
    async with running(Bounds(total=2, per_address=2)) as world:
        busy, busy_writer = await world.connect()
        busy_writer.write(REQUEST % b"held")
        idle, idle_writer = await world.connect()
        idle_writer.write(REQUEST % b"idle")
        assert await answer(idle) == (200, b"/idle")
        third, third_writer = await world.connect()
        third_writer.write(REQUEST % b"third")
        assert await answer(third) == (200, b"/third")
        assert await ended(idle)
        world.application.go.set()
        assert await answer(busy) == (200, b"/held")
        assert (world.connections.open, world.connections.displaced) == (2, 1)
        for writer in (busy_writer, idle_writer, third_writer):
            writer.close()
