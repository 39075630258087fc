"""A router lets nobody in before it knows whose lease is over."""

from __future__ import annotations

import asyncio
import random
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bullpen.api.kinds.lease import Lease, LeaseSpec, LeaseStatus
from bullpen.api.meta import LabelSelector, LocalObjectReference, ObjectMeta
from bullpen.app.cluster_process import JoinSettings
from bullpen.app.health import Health
from bullpen.app.router import Home, RouterLab, RouterSettings, route
from bullpen.app.sources import Sources
from bullpen.core.leases import lifecycle
from bullpen.core.leases.sessions import Session
from bullpen.datadir import certificates
from bullpen.kit.clock import SystemClock
from bullpen.kit.ids import RandomIds
from bullpen.registry.objects import RegistryObjects
from bullpen.registry.registry import Registry
from bullpen.services.routing import NAMESPACE
from bullpen.store.journaled import MemoryStore


class SlowObjects(RegistryObjects):
    """Objects that are listed only once somebody allows it."""

    def __init__(self, registry: Registry) -> None:
        super().__init__(registry, manager="test")
        self.asked = asyncio.Event()
        self.allowed = asyncio.Event()

    async def list(self, kind: type[Any]) -> Any:
        self.asked.set()
        await self.allowed.wait()
        return await super().list(kind)


@pytest.fixture
async def objects() -> AsyncIterator[SlowObjects]:
    store = MemoryStore()
    registry = Registry(store, clock=SystemClock(), ids=RandomIds(random.Random(3)))
    await registry.ensure_namespaces((NAMESPACE,))
    yield SlowObjects(registry)
    await store.close()


@pytest.fixture
def home(objects: SlowObjects, tmp_path: Path) -> Home:
    found = certificates.ensure(tmp_path, ("127.0.0.1",), now=SystemClock().now())
    return Home(
        objects=objects,
        namespace=NAMESPACE,
        stream_key=b"k" * 32,
        chain=str(found.server_chain),
        key=str(found.server_key),
        stop=asyncio.Event(),
        health=Health(),
    )


def settings(port: int) -> RouterSettings:
    return RouterSettings(name="r", home=JoinSettings(), listen="127.0.0.1", port=port)


@pytest.fixture
def port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return int(taken.getsockname()[1])


async def test_a_router_lets_nobody_in_before_it_has_read_the_leases(
    home: Home, objects: SlowObjects, port: int
) -> None:
    ready = asyncio.Event()
    async with asyncio.timeout(30), asyncio.TaskGroup() as tasks:
        tasks.create_task(route(settings(port), home, Sources.real(), lambda _: ready.set()))
        await objects.asked.wait()
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("127.0.0.1", port)
        objects.allowed.set()
        await ready.wait()
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.close()
        home.stop.set()


async def test_a_router_that_waits_for_the_leases_stops_when_it_is_told_to(
    home: Home, objects: SlowObjects, port: int
) -> None:
    async with asyncio.timeout(30), asyncio.TaskGroup() as tasks:
        routing = route(settings(port), home, Sources.real(), lambda _: pytest.fail("not ready"))
        tasks.create_task(routing)
        await objects.asked.wait()
        home.stop.set()


UNNEEDED = (
    "apsw",
    "grpc",
    "google.protobuf",
    "bullpen.apiserver",
    "bullpen.app.lab",
    "bullpen.audit",
    "bullpen.controllers.labs",
    "bullpen.controllers.pools",
    "bullpen.controllers.targets",
    "bullpen.core.pools",
    "bullpen.drivers",
    "bullpen.placements",
    "bullpen.provisioners",
    "bullpen.registry",
    "bullpen.services.grpc",
    "bullpen.store",
)
"""Packages that a router has no use for; each of them would cost its process memory."""

IMPORTED = """
import sys
import bullpen.cli.main, bullpen.cli.router, bullpen.app.process, bullpen.app.router
print("\\n".join(sys.modules))
"""


def test_a_router_process_imports_neither_the_api_server_nor_the_provisioners() -> None:
    imported = subprocess.run(
        (sys.executable, "-c", IMPORTED), check=True, capture_output=True, text=True
    ).stdout.split()
    assert "bullpen.services.router.server" in imported
    unneeded = tuple(f"{name}." for name in UNNEEDED)
    assert [name for name in imported if f"{name}.".startswith(unneeded)] == []


class Fences:
    """Notes what a router is told to fence."""

    def __init__(self) -> None:
        self.on_session: Callable[[Session], None] = lambda _: None
        self.load = 0
        self.fenced: dict[str, int] = {}

    def fence(self, lease: str, epoch: int) -> None:
        self.fenced[lease] = epoch

    def admit_only(self, knows: Callable[[str], bool]) -> None:
        raise AssertionError("a router of its own process may not know a new lease yet")


async def test_a_router_admits_no_tokens_of_leases_that_ended_before_it_began(
    objects: SlowObjects,
) -> None:
    spec = LeaseSpec(
        client_ref=LocalObjectReference(name="me"),
        selector=LabelSelector(match_labels={"board": "x"}),
    )
    meta = ObjectMeta(name="ended", namespace=NAMESPACE)
    made = await objects.create(Lease(metadata=meta, spec=spec))
    made = await objects.update_status(replace(made, status=LeaseStatus(ended=True, epoch=3)))
    await objects.update(lifecycle.labelled_ended(made))
    objects.allowed.set()
    router = Fences()
    lab = RouterLab(router, objects, Sources.real(), name="r", endpoint="r:1")
    async with asyncio.timeout(30), lab.following():
        await lab.synced()
        assert router.fenced == {made.metadata.uid: 3}
