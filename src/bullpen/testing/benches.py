"""Benches: a provisioner under test, and ways to act on its instances as a lab does."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

from bullpen.core.targets.backends import BackendLimits
from bullpen.kit.clock import SystemClock
from bullpen.kit.ids import RandomIds
from bullpen.placements.local import layout
from bullpen.placements.local.capacity import Limits
from bullpen.placements.local.connection import ZygoteSettings
from bullpen.placements.local.placement import LocalPlacement, LocalSettings
from bullpen.provisioners.attended import AttendedProvisioner
from bullpen.provisioners.base import (
    Connection,
    Instance,
    InstancePhase,
    InstanceSpec,
    Key,
    Profile,
    Provisioner,
    Recipe,
)
from bullpen.provisioners.fake import FakeProvisioner
from bullpen.provisioners.placed import PlacedProvisioner
from bullpen.provisioners.provider import Backend, MachineKeys, Provider
from bullpen.testing.controller_stub import TOKEN, StubController
from bullpen.testing.fake_provider import FakeProvider

INSTANCES_MAX = 3
"""The capacity that a bench gives its provisioner."""

BENCH_BACKEND = ("lab", "")
"""That of classes without a ProviderConfig."""

SECONDS_MAX = 60.0
POLL_SECONDS = 0.2


class Bench(Protocol):
    """A provisioner with capacity for ``INSTANCES_MAX``, and its environment."""

    provisioner: Provisioner

    def connection(self) -> Connection: ...
    async def begin_lease(self, key: Key) -> None: ...
    async def end_lease(self, key: Key) -> None: ...
    def crash(self, key: Key) -> None: ...


class Watcher:
    """Receives the notifications of a provisioner and waits for an expected state."""

    def __init__(self, bench: Bench, parameters: Mapping[str, object] | None = None) -> None:
        """``parameters``: what every instance has, unless a test chooses others."""
        self.bench = bench
        self.parameters = parameters or {}
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
        single_use: bool = True,
        lasting: bool = False,
        **parameters: object,
    ) -> InstanceSpec:
        provisioner = self.bench.provisioner.name
        return InstanceSpec(
            key=("lab", name),
            owner_uid=owner,
            profile=Profile(
                provisioner=provisioner,
                parameters={**self.parameters, **parameters},
                single_use=single_use,
                lasting=lasting,
            ),
            connection=self.bench.connection(),
        )

    async def instance(self, name: str) -> Instance | None:
        for found in await self.bench.provisioner.observe_all():
            if found.key == ("lab", name):
                return found
        return None

    async def until(self, name: str, phase: InstancePhase) -> Instance:
        """The instance once it is in ``phase``: observed only after a notification."""
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

    def connection(self) -> Connection:
        return Connection(endpoint="", token=TOKEN, ca_pem="")

    async def begin_lease(self, key: Key) -> None:
        self.fake.begin_lease(key)

    async def end_lease(self, key: Key) -> None:
        self.fake.end_lease(key)

    def crash(self, key: Key) -> None:
        self.fake.crash(key)


class LocalBench:
    """Real processes that register with a controller of ours."""

    def __init__(
        self, recipe: Recipe, placement: LocalPlacement, controller: StubController
    ) -> None:
        self.provisioner: Provisioner = PlacedProvisioner(recipe, placement)
        self._placement = placement
        self._controller = controller

    def connection(self) -> Connection:
        return self._controller.connection()

    async def begin_lease(self, key: Key) -> None:
        await self._controller.lease(key, leased=True)

    async def end_lease(self, key: Key) -> None:
        await self._controller.lease(key, leased=False)

    def crash(self, key: Key) -> None:
        process = layout.read_process(self._placement.layout.instance(key))
        assert process is not None
        os.kill(process.pid, signal.SIGKILL)


@contextlib.asynccontextmanager
async def local_bench(
    directory: Path, recipe: Recipe, preload: tuple[str, ...] = ()
) -> AsyncIterator[LocalBench]:
    """A recipe whose exporters run as processes of this machine, as ``bullpen up`` runs them."""
    limits = Limits(instances=INSTANCES_MAX, memory_bytes=1 << 40, cpus=100)
    settings = LocalSettings(data=directory / "data", limits=limits, zygote=ZygoteSettings())
    placement = LocalPlacement(settings, clock=SystemClock(), ids=RandomIds())
    async with StubController.serving(directory) as controller, placement.running():
        yield LocalBench(recipe, placement, controller)


class NoRecords:
    """Records for a bench, which holds nothing that outlives it."""

    def __init__(self) -> None:
        self._keys: dict[tuple[Key, str], MachineKeys] = {}

    async def begin(self, backend: Key, place: str = "") -> None:
        """Nothing is kept."""

    async def release(self, secret: Key) -> None:
        """Nothing is kept."""

    async def end(self, backend: Key, is_empty: Callable[[], bool]) -> bool:
        return is_empty()

    async def mark_class(self, key: Key, *, kept: bool) -> None:
        """Nothing is kept."""

    async def keep_keys(self, key: Key, uid: str, made: MachineKeys) -> MachineKeys:
        return self._keys.setdefault((key, uid), made)

    async def move_keys(self, key: Key, uid: str, backend: str) -> None:
        self._keys[key, uid] = replace(self._keys[key, uid], backend=backend)

    async def kept_keys(self, key: Key, uid: str) -> MachineKeys | None:
        return self._keys.get((key, uid))


class AttendedBench(LocalBench):
    """Machines of a provider, with real exporters."""

    def __init__(
        self,
        placement: LocalPlacement,
        controller: StubController,
        provider: Provider,
        backend: Backend,
    ) -> None:
        self._placement = placement
        self._controller = controller
        self.attended = AttendedProvisioner(
            provider, placement, NoRecords(), clock=SystemClock(), chance=random.Random()
        )
        self.provisioner: Provisioner = self.attended
        limits = BackendLimits(instances=INSTANCES_MAX)
        self._backend = replace(backend, key=BENCH_BACKEND, limits=limits)
        self.attended.use((self._backend,))

    async def poll(self) -> None:
        """List the backend when asked to, and now and then, as its controller does."""
        due = asyncio.Event()
        self.attended.listen_backends(lambda _: due.set())
        while True:
            await self.attended.refresh(self._backend.key)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(POLL_SECONDS):
                    await due.wait()
            due.clear()


@contextlib.asynccontextmanager
async def attended_bench(
    directory: Path,
    *,
    provider: Provider | None = None,
    backend: Backend | None = None,
) -> AsyncIterator[AttendedBench]:
    """A provider, by default the fake one, with exporters as processes."""
    provider = provider or FakeProvider(SystemClock(), random.Random(1))
    backend = backend or Backend(key=BENCH_BACKEND, lab="bench")
    limits = Limits(instances=2 * INSTANCES_MAX, memory_bytes=1 << 40, cpus=100)
    settings = LocalSettings(data=directory / "data", limits=limits, zygote=ZygoteSettings())
    placement = LocalPlacement(settings, clock=SystemClock(), ids=RandomIds())
    async with (
        StubController.serving(directory) as controller,
        placement.running(),
        asyncio.TaskGroup() as tasks,
    ):
        bench = AttendedBench(placement, controller, provider, backend)
        polling = tasks.create_task(bench.poll())
        await bench.attended.refresh(BENCH_BACKEND)
        yield bench
        polling.cancel()
