"""Provisioners under test, each with a way to do to its instances what a lab does to them."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import os
import random
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Protocol

import grpc
import yaml
from jumpstarter.common import ExporterStatus
from jumpstarter_protocol import jumpstarter_pb2, jumpstarter_pb2_grpc

from bullpen.api.exporterset import RecycleStrategy
from bullpen.app import certificates
from bullpen.kit.clock import SystemClock
from bullpen.kit.ids import RandomIds
from bullpen.placements.local import layout
from bullpen.placements.local.capacity import Limits
from bullpen.placements.local.connection import ZygoteSettings
from bullpen.placements.local.placement import LocalPlacement, LocalSettings
from bullpen.provisioners.base import Instance, InstancePhase, InstanceSpec, Key, Provisioner
from bullpen.provisioners.fake import FakeProvisioner
from bullpen.provisioners.mock import MockRecipe
from bullpen.provisioners.placed import PlacedProvisioner

INSTANCES_MAX = 3
SECONDS_MAX = 30.0
TOKEN = "a token nobody must see"

DRIVERS = ("jumpstarter_driver_composite.driver", "jumpstarter_driver_power.driver")


class Bench(Protocol):
    """A provisioner with room for ``INSTANCES_MAX``, and the world around it."""

    provisioner: Provisioner

    def config(self, key: Key) -> str: ...
    async def begin_lease(self, key: Key) -> None: ...
    async def end_lease(self, key: Key) -> None: ...
    def crash(self, key: Key) -> None: ...


class Watcher:
    """Hears what a provisioner tells and waits for what a test expects."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self.told: list[Key] = []
        self._news = asyncio.Event()
        bench.provisioner.listen(self._listen)

    def _listen(self, key: Key) -> None:
        self.told.append(key)
        self._news.set()

    def spec(
        self,
        name: str,
        *,
        owner: str = "uid-1",
        recycle: RecycleStrategy = RecycleStrategy.EXIT_AND_REPLACE,
        **parameters: object,
    ) -> InstanceSpec:
        key = ("lab", name)
        return InstanceSpec(
            key=key,
            owner_uid=owner,
            parameters=parameters,
            exporter_config=self.bench.config(key),
            recycle=recycle,
        )

    async def instance(self, name: str) -> Instance | None:
        for found in await self.bench.provisioner.observe_all():
            if found.key == ("lab", name):
                return found
        return None

    async def until(self, name: str, phase: InstancePhase) -> Instance:
        """The instance once it is in ``phase``: looked at only when something was told."""
        async with asyncio.timeout(SECONDS_MAX):
            while True:
                self._news.clear()
                found = await self.instance(name)
                if found is not None and found.phase is phase:
                    return found
                await self._news.wait()

    async def running(self, name: str, **chosen: Any) -> Instance:
        await self.bench.provisioner.ensure(self.spec(name, **chosen))
        return await self.until(name, InstancePhase.RUNNING)


class FakeBench:
    def __init__(self) -> None:
        self.fake = FakeProvisioner(random.Random(1), instances_max=INSTANCES_MAX)
        self.provisioner: Provisioner = self.fake

    def config(self, key: Key) -> str:
        return f"token: {TOKEN}"

    async def begin_lease(self, key: Key) -> None:
        self.fake.begin_lease(key)

    async def end_lease(self, key: Key) -> None:
        self.fake.end_lease(key)

    def crash(self, key: Key) -> None:
        self.fake.crash(key)


class LocalBench:
    """Real processes that register with a controller of ours."""

    def __init__(self, placement: LocalPlacement, controller: StubController) -> None:
        self.provisioner: Provisioner = PlacedProvisioner(MockRecipe(), placement)
        self._placement = placement
        self._controller = controller

    def config(self, key: Key) -> str:
        return self._controller.config(key)

    async def begin_lease(self, key: Key) -> None:
        await self._controller.lease(key, leased=True)

    async def end_lease(self, key: Key) -> None:
        await self._controller.lease(key, leased=False)

    def crash(self, key: Key) -> None:
        process = layout.read_process(self._placement.layout.instance(key))
        assert process is not None
        os.kill(process.pid, signal.SIGKILL)


@contextlib.asynccontextmanager
async def local_bench(directory: Path) -> AsyncIterator[LocalBench]:
    limits = Limits(instances=INSTANCES_MAX, memory_bytes=1 << 40, cpus=100)
    settings = LocalSettings(
        data=directory / "data", limits=limits, zygote=ZygoteSettings(load=DRIVERS)
    )
    placement = LocalPlacement(settings, clock=SystemClock(), ids=RandomIds())
    async with StubController.serving(directory) as controller, placement.running():
        yield LocalBench(placement, controller)


class StubController(jumpstarter_pb2_grpc.ControllerServiceServicer):
    """As much of the controller as an exporter needs to register and be leased."""

    def __init__(self) -> None:
        self._leased: dict[Key, bool] = {}
        self._status: dict[Key, int] = {}
        self._changed = asyncio.Condition()
        self.port = 0
        self.ca = ""

    @classmethod
    @contextlib.asynccontextmanager
    async def serving(cls, directory: Path) -> AsyncIterator[StubController]:
        certs = certificates.ensure(directory / "pki", ("127.0.0.1",), now=SystemClock().now())
        credentials = grpc.ssl_server_credentials(
            [(certs.server_key.read_bytes(), certs.server_chain.read_bytes())]
        )
        controller = cls()
        controller.ca = base64.b64encode(certs.ca_pem()).decode()
        server = grpc.aio.server()
        controller.port = server.add_secure_port("127.0.0.1:0", credentials)
        jumpstarter_pb2_grpc.add_ControllerServiceServicer_to_server(controller, server)
        await server.start()
        try:
            yield controller
        finally:
            await server.stop(None)

    def config(self, key: Key) -> str:
        return yaml.safe_dump(
            {
                "apiVersion": "jumpstarter.dev/v1alpha1",
                "kind": "ExporterConfig",
                "metadata": {"namespace": key[0], "name": key[1]},
                "endpoint": f"127.0.0.1:{self.port}",
                "tls": {"ca": self.ca},
                "token": TOKEN,
            }
        )

    async def lease(self, key: Key, *, leased: bool) -> None:
        """Lease or release, and wait until the exporter has acted on it."""
        expected = (_LEASE_READY,) if leased else (_AVAILABLE, _OFFLINE)
        async with asyncio.timeout(SECONDS_MAX), self._changed:
            self._leased[key] = leased
            self._changed.notify_all()
            await self._changed.wait_for(lambda: self._status.get(key) in expected)

    async def Register(self, request: Any, context: Any) -> Any:  # noqa: N802
        return jumpstarter_pb2.RegisterResponse()

    async def Unregister(self, request: Any, context: Any) -> Any:  # noqa: N802
        return jumpstarter_pb2.UnregisterResponse()

    async def ReportStatus(self, request: Any, context: Any) -> Any:  # noqa: N802
        async with self._changed:
            self._status[_caller(context)] = request.status
            self._changed.notify_all()
        return jumpstarter_pb2.ReportStatusResponse()

    async def ReleaseLease(self, request: Any, context: Any) -> Any:  # noqa: N802
        return jumpstarter_pb2.ReleaseLeaseResponse()

    async def Status(self, request: Any, context: Any) -> AsyncIterator[Any]:  # noqa: N802
        key = _caller(context)
        said: bool | None = None
        while True:
            async with self._changed:
                while said is self._leased.get(key, False):
                    await self._changed.wait()
                said = self._leased.get(key, False)
            names = {"lease_name": "lease", "client_name": "client"} if said else {}
            yield jumpstarter_pb2.StatusResponse(leased=said, **names)

    async def Listen(self, request: Any, context: Any) -> AsyncIterator[Any]:  # noqa: N802
        await asyncio.Event().wait()
        yield jumpstarter_pb2.ListenResponse()


_LEASE_READY = ExporterStatus.LEASE_READY.to_proto()
_AVAILABLE = ExporterStatus.AVAILABLE.to_proto()
_OFFLINE = ExporterStatus.OFFLINE.to_proto()


def _caller(context: Any) -> Key:
    found = {item.key: item.value for item in context.invocation_metadata()}
    return found["jumpstarter-namespace"], found["jumpstarter-name"]
