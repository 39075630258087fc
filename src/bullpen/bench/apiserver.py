"""Durable writes and watch fan-out over HTTPS, as clients see them.

The server runs in a process of its own with all parts of ``bullpen up``. The clients send
prepared requests and check nothing but lengths, to leave the other core to the server.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import select
import socket
import ssl
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable
from datetime import UTC, datetime
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path

from bullpen.api.paths import encode
from bullpen.api.resources import RESOURCES
from bullpen.apiserver.asgi import Asgi
from bullpen.apiserver.authentication import TokenTable
from bullpen.apiserver.service import ApiService
from bullpen.app.config import AuditConfig
from bullpen.app.httpserver import bind, serving
from bullpen.audit.log import AuditLog
from bullpen.bench.measure import Goal, Result, compare, interleaved, percentile
from bullpen.bench.processes import Served, served
from bullpen.bench.store import VALUE_BYTES, measure_bare
from bullpen.core.rbac.authorization import MASTERS, User
from bullpen.datadir import certificates
from bullpen.datadir.certificates import Certificates
from bullpen.kit.clock import SystemClock
from bullpen.kit.ids import RandomIds
from bullpen.registry.registry import Registry
from bullpen.store.sqlite import SqliteStore

TOKEN = "benchmark"
WRITERS = 64
WATCHERS = 1_000
EVENTS = 30
SECONDS = 2.0
PATH = "/api/v1/namespaces/default/configmaps"

WRITES = Goal(0.3)
LAST_WATCHER_MS = Goal(20, at_least=False)
ANSWER_MS = Goal(10, at_least=False)
WATCHER_KB = Goal(60, at_least=False)


async def run(*, rounds: int) -> tuple[Result, ...]:
    """Writes of 64 clients, then a thousand watchers."""
    with tempfile.TemporaryDirectory() as directory:
        certs = certificates.ensure(
            Path(directory) / "pki", ("localhost", "127.0.0.1"), now=datetime.now(UTC)
        )
        with served(_serve, Path(directory), certs) as server:
            return (
                await _writes(server, certs, rounds),
                *await _watches(server, certs, rounds),
            )


async def _serve(pipe: Connection, directory: Path, certs: Certificates) -> None:
    clock = SystemClock()
    store = await SqliteStore.open(directory / "state.db")
    registry = Registry(store, clock=clock, ids=RandomIds(random.Random()))
    await registry.ensure_namespaces(("default",))
    audit = AuditLog(directory / "audit", AuditConfig().rotation(), clock=clock)
    audit.start()
    service = ApiService(
        registry,
        resources=RESOURCES,
        clock=clock,
        authenticators=(TokenTable({TOKEN: User(name="bench", groups=(MASTERS,))}),),
        version="bench",
        audit=audit,
    )
    listener = bind("127.0.0.1", 0)
    async with serving(Asgi(service), listener, certs):
        pipe.send(listener.getsockname()[1])
        await asyncio.Event().wait()


async def _writes(server: Served, certs: Certificates, rounds: int) -> Result:
    latencies: list[float] = []
    ours, bare = await interleaved(
        rounds, partial(_put_all, server, certs, latencies), partial(_bare, WRITERS)
    )
    return compare(
        f"API server PUT over TLS, {WRITERS} writers",
        ours,
        bare,
        unit="writes/s",
        goal=WRITES,
        details={
            "p50_ms": percentile(latencies, 0.5) * 1e3,
            "p99_ms": percentile(latencies, 0.99) * 1e3,
        },
    )


async def _bare(writers: int) -> float:
    return (await measure_bare(writers, SECONDS)).writes_per_second


async def _put_all(server: Served, certs: Certificates, latencies: list[float]) -> float:
    async with contextlib.AsyncExitStack() as stack:
        connections = [
            await stack.enter_async_context(_connected(server.facts, certs)) for _ in range(WRITERS)
        ]
        for number, connection in enumerate(connections):
            await connection.call(_request("POST", PATH, _configmap(f"w{number}", 0)))
        deadline = time.perf_counter() + SECONDS
        counts = await asyncio.gather(
            *(
                _put_until(deadline, connection, f"w{number}", latencies)
                for number, connection in enumerate(connections)
            )
        )
        return sum(counts) / SECONDS


async def _put_until(
    deadline: float, connection: _Connection, name: str, latencies: list[float]
) -> int:
    count = 0
    requests = [_request("PUT", f"{PATH}/{name}", _configmap(name, i)) for i in (1, 2)]
    while (started := time.perf_counter()) < deadline:
        status = await connection.call(requests[count % 2])
        assert status == 200, f"the server answered {status}"
        latencies.append(time.perf_counter() - started)
        count += 1
    return count


async def _watches(server: Served, certs: Certificates, rounds: int) -> tuple[Result, ...]:
    before = server.resident()
    with served(_crowd, server.facts, certs, WATCHERS - 1):
        each = (server.resident() - before) / WATCHERS / 1024
        async with (
            _connected(server.facts, certs) as last,
            _connected(server.facts, certs) as writer,
        ):
            await last.watch(f"{PATH}?watch=true&labelSelector=seen")
            samples = [await _event_time(writer, last, number) for number in range(EVENTS * rounds)]
    seen, answered = zip(*samples, strict=True)
    return (
        _absolute("write to the last of 1,000 watchers, p99", [*seen], "ms", LAST_WATCHER_MS),
        _absolute("answer to a write with 1,000 watchers, p99", [*answered], "ms", ANSWER_MS),
        _absolute("memory of a watcher with TLS", [each], "KB", WATCHER_KB),
    )


async def _event_time(writer: _Connection, last: _Connection, number: int) -> tuple[float, float]:
    """Milliseconds from sending a write to the last watcher's event, and to its answer."""
    body = _configmap("seen", number, labels={"seen": "yes"})
    request = _request("PUT" if number else "POST", f"{PATH}/seen" if number else PATH, body)
    started = time.perf_counter()

    async def since(step: Awaitable[object]) -> float:
        await step
        return (time.perf_counter() - started) * 1e3

    writing = asyncio.ensure_future(since(writer.call(request)))
    return await since(last.event()), await writing


async def _crowd(pipe: Connection, port: int, certs: Certificates, count: int) -> None:
    """Many watchers that read without decoding, and even without decrypting."""
    context = ssl.create_default_context(cafile=str(certs.ca))
    request = _request("GET", f"{PATH}?watch=true&labelSelector=seen", b"")
    epoll = select.epoll()
    kept = []
    for _ in range(count):
        plain = socket.create_connection(("127.0.0.1", port))
        secure = context.wrap_socket(plain, server_hostname="localhost")
        secure.sendall(request)
        secure.recv(1 << 16)
        secure.setblocking(False)
        epoll.register(secure.fileno(), select.EPOLLIN)
        kept.append(secure)
    pipe.send(len(kept))
    while True:
        for handle, _ in epoll.poll():
            os.read(handle, 1 << 16)


def _absolute(name: str, samples: list[float], unit: str, goal: Goal) -> Result:
    """A figure whose goal is not a ratio: compared with a value of the same unit."""
    found = percentile(samples, 0.99)
    return Result(
        name=name,
        unit=unit,
        ours=found,
        reference=1.0,
        ratio=found,
        ratio_min=min(samples),
        ratio_max=max(samples),
        goal=goal,
    )


class _Connection:
    """HTTP/1.1 with as little parsing as possible."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def call(self, request: bytes) -> int:
        """Send a request; returns the status once the whole response was received."""
        self._writer.write(request)
        head = await self._reader.readuntil(b"\r\n\r\n")
        at = head.index(b"content-length: ") + 16
        await self._reader.readexactly(int(head[at : head.index(b"\r", at)]))
        return int(head[9:12])

    async def watch(self, target: str) -> None:
        self._writer.write(_request("GET", target, b""))
        await self._reader.readuntil(b"\r\n\r\n")

    async def event(self) -> None:
        """One event: a chunk that ends with a newline."""
        size = int((await self._reader.readline()).strip() or b"0", 16)
        await self._reader.readexactly(size + 2)


@contextlib.asynccontextmanager
async def _connected(port: int, certs: Certificates) -> AsyncIterator[_Connection]:
    context = ssl.create_default_context(cafile=str(certs.ca))
    reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
    try:
        yield _Connection(reader, writer)
    finally:
        writer.close()


def _configmap(name: str, number: int, labels: dict[str, str] | None = None) -> bytes:
    return encode(
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": name, "labels": labels or {}},
            "data": {"number": str(number), "fill": "x" * (VALUE_BYTES - 400)},
        }
    )


def _request(method: str, target: str, body: bytes) -> bytes:
    head = (
        f"{method} {target} HTTP/1.1\r\nHost: bench\r\nAuthorization: Bearer {TOKEN}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body
