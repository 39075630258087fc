"""Leases over gRPC, as ``jmp`` takes them, against an empty call and one durable commit.

The service runs in one process with everything behind it, the exporters in another: they
hold a Status stream each and are always willing. The clients are the published stubs.
"""

from __future__ import annotations

import asyncio
import base64
import random
import tempfile
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import grpc
from google.protobuf.duration_pb2 import Duration
from grpc_health.v1 import health_pb2, health_pb2_grpc
from jumpstarter_protocol import (
    client_pb2,
    client_pb2_grpc,
    jumpstarter_pb2,
    jumpstarter_pb2_grpc,
)

from bullpen.api.client import Client
from bullpen.api.core import Secret
from bullpen.api.exporter import Exporter
from bullpen.api.meta import ObjectMeta
from bullpen.app.datadir import DataDirectory
from bullpen.app.publishing import publish
from bullpen.app.wiring import Settings, World, running
from bullpen.bench.measure import Goal, Result, compare, percentile
from bullpen.bench.processes import served
from bullpen.cluster import kubeconfig
from bullpen.cluster.objects import ClusterObjects
from bullpen.errors import NotFound
from bullpen.kit.clock import SystemClock
from bullpen.kit.ids import RandomIds
from bullpen.store.base import ABSENT
from bullpen.store.sqlite import SqliteStore

EXPORTERS = 300
WARM = 100
HAND_OVERS = 50
SUSTAINED = 200
SUSTAINED_PER_SECOND = 40
HELD_SECONDS = 0.1
NAMESPACE = "default"
LOOK_SECONDS = 0.05
WAIT_SECONDS_MAX = 60.0

WARM_P50, WARM_P99 = Goal(3, at_least=False), Goal(10, at_least=False)
BURST = Goal(2, at_least=False)
HAND_OVER_P99 = Goal(3, at_least=False)


async def run(*, rounds: int) -> tuple[Result, ...]:
    """One at a time, steadily, all at once, and from one to the next."""
    with (
        tempfile.TemporaryDirectory() as directory,
        served(serve, Path(directory)) as service,
    ):
        lab = service.facts
        tokens = await _create_all(lab)
        with served(_export, lab, tokens):
            async with connected(lab, tokens[""]) as caller:
                await _all_online(caller)
                reference = await Reference.open(Path(directory) / "reference.db", lab)
                try:
                    return await _measured(caller, reference, rounds)
                finally:
                    await reference.close()


async def _measured(caller: Caller, reference: Reference, rounds: int) -> tuple[Result, ...]:
    await _warm(caller, 10)
    warm: list[list[float]] = []
    bare: list[list[float]] = []
    steady: list[list[float]] = []
    bursts: list[float] = []
    handed: list[list[float]] = []
    for _ in range(rounds):
        bare.append([await _timed(reference.once) for _ in range(WARM)])
        warm.append(await _warm(caller, WARM))
        steady.append(await _sustained(caller))
        bursts.append(await _burst(caller))
        handed.append(await _hand_overs(caller))
    p50 = [percentile(samples, 0.5) * 1e3 for samples in bare]
    return (
        _latency("warm lease p50", warm, 0.5, p50, WARM_P50),
        _latency("warm lease p99", warm, 0.99, p50, WARM_P99),
        _latency(f"{SUSTAINED_PER_SECOND} leases/s p50", steady, 0.5, p50, WARM_P50),
        _latency(f"{SUSTAINED_PER_SECOND} leases/s p99", steady, 0.99, p50, WARM_P99),
        compare(
            f"{EXPORTERS} leases at once",
            [seconds * 1e3 for seconds in bursts],
            [EXPORTERS * each for each in p50],
            unit="ms",
            goal=BURST,
        ),
        _latency(
            "hand-over p99",
            handed,
            0.99,
            [percentile(samples, 0.5) * 1e3 for samples in warm],
            HAND_OVER_P99,
        ),
    )


def _latency(
    name: str, rounds: list[list[float]], share: float, reference: list[float], goal: Goal
) -> Result:
    ours = [percentile(samples, share) * 1e3 for samples in rounds]
    return compare(name, ours, reference, unit="ms", goal=goal)


async def _warm(caller: Caller, count: int) -> list[float]:
    samples = []
    for _ in range(count):
        started = time.perf_counter()
        lease = await caller.lease("bench=yes")
        samples.append(time.perf_counter() - started)
        await caller.release(lease)
    return samples


async def _sustained(caller: Caller) -> list[float]:
    """Leases that come at a steady rate and do not wait for each other."""
    samples: list[float] = []

    async def one() -> None:
        started = time.perf_counter()
        lease = await caller.lease("bench=yes")
        samples.append(time.perf_counter() - started)
        await asyncio.sleep(HELD_SECONDS)
        await caller.release(lease)

    async with asyncio.TaskGroup() as tasks:
        begun = time.perf_counter()
        for number in range(SUSTAINED):
            due = begun + number / SUSTAINED_PER_SECOND
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
            tasks.create_task(one())
    return samples


async def _burst(caller: Caller) -> float:
    started = time.perf_counter()
    leases = await asyncio.gather(*(caller.lease("bench=yes") for _ in range(EXPORTERS)))
    taken = time.perf_counter() - started
    assert len({lease.exporter for lease in leases}) == EXPORTERS, "an exporter was given twice"
    await asyncio.gather(*(caller.release(lease) for lease in leases))
    return taken


async def _hand_overs(caller: Caller) -> list[float]:
    """From giving a lease back to the waiting one being ready."""
    samples = []
    held = await caller.lease("bench-0=yes")
    for _ in range(HAND_OVERS):
        waiting = asyncio.ensure_future(caller.lease("bench-0=yes"))
        await asyncio.sleep(0.02)
        started = time.perf_counter()
        await caller.release(held)
        held = await waiting
        samples.append(time.perf_counter() - started)
    await caller.release(held)
    return samples


async def _timed(act: Callable[[], Awaitable[object]]) -> float:
    started = time.perf_counter()
    await act()
    return time.perf_counter() - started


class Reference:
    """One empty gRPC call and one durable commit: the least a lease could cost."""

    def __init__(self, store: SqliteStore, channel: Any) -> None:
        self._store = store
        self._channel = channel
        self._health = health_pb2_grpc.HealthStub(channel)
        self._revision = ABSENT

    @classmethod
    async def open(cls, path: Path, lab: Lab) -> Reference:
        return cls(await SqliteStore.open(path), _channel(lab))

    async def once(self) -> None:
        await self._health.Check(health_pb2.HealthCheckRequest())
        entry = await self._store.put("a/b", lambda _: bytes(2200), expect=self._revision)
        self._revision = entry.revision

    async def close(self) -> None:
        await self._channel.close()
        await self._store.close()


class Caller:
    """A client that asks as ``jmp`` does: create, then look until it is ready."""

    def __init__(self, channel: Any, token: str) -> None:
        self._stub = client_pb2_grpc.ClientServiceStub(channel)
        self._headers = _headers("Client", "bench", token)

    async def lease(self, selector: str) -> Any:
        request = client_pb2.CreateLeaseRequest(
            parent=f"namespaces/{NAMESPACE}",
            lease=client_pb2.Lease(selector=selector, duration=Duration(seconds=600)),
        )
        lease = await self._stub.CreateLease(request, metadata=self._headers)
        deadline = time.perf_counter() + WAIT_SECONDS_MAX
        while time.perf_counter() < deadline:
            look = client_pb2.GetLeaseRequest(name=lease.name)
            lease = await self._stub.GetLease(look, metadata=self._headers)
            if lease.conditions and lease.conditions[-1].type == "Ready":
                return lease
            assert lease.conditions[-1].type == "Pending", lease.conditions
        raise TimeoutError(f"{lease.name} did not become ready")

    async def release(self, lease: Any) -> None:
        request = client_pb2.DeleteLeaseRequest(name=lease.name)
        await self._stub.DeleteLease(request, metadata=self._headers)

    async def exporters(self) -> list[Any]:
        request = client_pb2.ListExportersRequest(parent=f"namespaces/{NAMESPACE}")
        return list((await self._stub.ListExporters(request, metadata=self._headers)).exporters)


@dataclass(frozen=True, slots=True, kw_only=True)
class Lab:
    """How to reach the service."""

    controller: str
    kubeconfig: Path
    ca_pem: bytes


class connected:  # noqa: N801
    def __init__(self, lab: Lab, token: str) -> None:
        self._channel = _channel(lab)
        self._token = token

    async def __aenter__(self) -> Caller:
        return Caller(self._channel, self._token)

    async def __aexit__(self, *_: object) -> None:
        await self._channel.close()


def _channel(lab: Lab) -> Any:
    credentials = grpc.ssl_channel_credentials(lab.ca_pem)
    return grpc.aio.secure_channel(lab.controller, credentials)


def _headers(kind: str, name: str, token: str) -> tuple[tuple[str, str], ...]:
    return (
        ("jumpstarter-kind", kind),
        ("jumpstarter-namespace", NAMESPACE),
        ("jumpstarter-name", name),
        ("authorization", f"Bearer {token}"),
    )


async def serve(pipe: Connection, directory: Path) -> None:
    settings = Settings(data=directory / "lab", port_base=0)
    world = World(clock=SystemClock(), ids=RandomIds(), chance=random.Random())
    with DataDirectory.open(settings.data) as found:
        async with running(settings, found.layout, world) as service:
            endpoints = await publish(service, found.layout)
            pipe.send(
                Lab(
                    controller=endpoints["controller"],
                    kubeconfig=found.layout.kubeconfig,
                    ca_pem=service.certificates.ca_pem(),
                )
            )
            await asyncio.Event().wait()


async def _create_all(lab: Lab) -> dict[str, str]:
    """A client (under the empty name) and the exporters; their tokens."""
    async with ClusterObjects(kubeconfig.load(lab.kubeconfig), manager="bench") as objects:
        await objects.create(Client(metadata=ObjectMeta(name="bench", namespace=NAMESPACE)))
        for number in range(EXPORTERS):
            labels = {"bench": "yes", f"bench-{number}": "yes"}
            meta = ObjectMeta(name=f"e{number}", namespace=NAMESPACE, labels=labels)
            await objects.create(Exporter(metadata=meta))
        tokens = {"": await token(objects, "bench-client")}
        for number in range(EXPORTERS):
            tokens[f"e{number}"] = await token(objects, f"e{number}-exporter")
        return tokens


async def token(objects: ClusterObjects, name: str) -> str:
    deadline = time.perf_counter() + WAIT_SECONDS_MAX
    while time.perf_counter() < deadline:
        try:
            secret = await objects.get(Secret, NAMESPACE, name)
        except NotFound:
            await asyncio.sleep(LOOK_SECONDS)
        else:
            return base64.b64decode(secret.data["token"]).decode()
    raise TimeoutError(f"{name} was not made")


async def _all_online(caller: Caller) -> None:
    deadline = time.perf_counter() + WAIT_SECONDS_MAX
    while not all(exporter.online for exporter in await caller.exporters()):
        assert time.perf_counter() < deadline, "the exporters did not come online"
        await asyncio.sleep(LOOK_SECONDS)


async def _export(pipe: Connection, lab: Lab, tokens: dict[str, str]) -> None:
    """Exporters that register and listen, all on a few connections."""
    channels = [_channel(lab) for _ in range(10)]
    async with asyncio.TaskGroup() as tasks:
        registered = [
            tasks.create_task(_register(channels[i % len(channels)], name, token))
            for i, (name, token) in enumerate(tokens.items())
            if name
        ]
        streams = [await task for task in registered]
        pipe.send(len(streams))
        for stream in streams:
            tasks.create_task(_listen(stream))


async def _register(channel: Any, name: str, token: str) -> Any:
    stub = jumpstarter_pb2_grpc.ControllerServiceStub(channel)
    headers = _headers("Exporter", name, token)
    await stub.Register(jumpstarter_pb2.RegisterRequest(), metadata=headers)
    available = jumpstarter_pb2.ReportStatusRequest(status=2, message="available")
    await stub.ReportStatus(available, metadata=headers)
    stream = stub.Status(jumpstarter_pb2.StatusRequest(), metadata=headers)
    await stream.read()
    return stream


async def _listen(stream: Any) -> None:
    while await stream.read():
        pass
