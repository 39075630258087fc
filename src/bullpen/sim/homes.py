"""The home of the objects: the process's own store, or a misbehaving API.

The API of the cluster home keeps what it acknowledged, but answers late or not at all,
reports false conflicts, delivers changes late or twice, and returns stale lists.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import random
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable
from typing import Any, Protocol, TypeVar

from bullpen.api.fields import Kind
from bullpen.api.objects import Feed, Foresight, Listing, Objects, Seen
from bullpen.cluster.transport import CONNECT_SECONDS_MAX, REQUEST_SECONDS_MAX
from bullpen.errors import Conflict, Unavailable
from bullpen.kit.clock import Clock
from bullpen.kit.ids import Ids
from bullpen.registry.expiry import EventSweeper
from bullpen.registry.garbage import GarbageCollector
from bullpen.registry.objects import RegistryObjects
from bullpen.registry.registry import Registry
from bullpen.sim.disk import Disk, DiskStore
from bullpen.sim.hangs import Hangs
from bullpen.sim.plan import Weather
from bullpen.sim.process import Process

K = TypeVar("K", bound=Kind)
A = TypeVar("A", bound=Kind)
B = TypeVar("B", bound=Kind)
T = TypeVar("T")

NAMESPACES = ("default", "other", "kube-system")
MANAGER = "bullpen"
STALE_MAX = 5.0
"""Maximum age of a list in seconds."""

CATCH_UP = 30.0
"""Seconds after which a process that could not reach the API has caught up."""

NEVER = (-math.inf, -math.inf)

REWOUND_MAX = 30
"""Maximum number of revisions by which a watch starts too early."""


class EmbeddedHome:
    """Each process opens the disk and serves the objects itself."""

    def __init__(self, disk: Disk, clock: Clock, ids: Ids, api: PlayedApi) -> None:
        self.registry: Registry | None = None
        """The registry of the current process."""

        self._objects: RegistryObjects | None = None
        self._api = api
        self._disk = disk
        self._clock = clock
        self._ids = ids
        self._stores: dict[Process, DiskStore] = {}

    @contextlib.asynccontextmanager
    async def connected(self, process: Process) -> AsyncIterator[Objects]:
        store = self._stores[process] = self._disk.open()
        self.registry = registry = Registry(store, clock=self._clock, ids=self._ids)
        self._objects = objects = RegistryObjects(registry, manager=MANAGER)
        await registry.ensure_namespaces(NAMESPACES)
        async with asyncio.TaskGroup() as tasks:
            collecting = tasks.create_task(GarbageCollector(registry).run())
            sweeping = tasks.create_task(EventSweeper(registry, clock=self._clock).run())
            yield objects
            collecting.cancel()
            sweeping.cancel()

    def remote(self, process: ClientProcess) -> Objects:
        """The objects over HTTP, from the process that serves them."""
        return ApiObjects(lambda: _served(self._objects), process, self._api)

    def crashed(self, process: Process) -> None:
        store = self._stores.pop(process, None)
        if store is not None:
            store.crash()
        self.registry = self._objects = None


class ClusterHome:
    """One persistent registry for all processes."""

    def __init__(self, disk: Disk, clock: Clock, ids: Ids, api: PlayedApi) -> None:
        self.registry = Registry(disk.open(), clock=clock, ids=ids)
        self._objects = RegistryObjects(self.registry, manager=MANAGER)
        self._api = api

    async def prepare(self) -> None:
        await self.registry.ensure_namespaces(NAMESPACES)

    async def run(self) -> None:
        await GarbageCollector(self.registry).run()

    @contextlib.asynccontextmanager
    async def connected(self, process: Process) -> AsyncIterator[Objects]:
        yield self.remote(process)

    def remote(self, process: ClientProcess) -> Objects:
        """The objects as one process sees them through the API."""
        return ApiObjects(lambda: self._objects, process, self._api)

    def crashed(self, process: Process) -> None:
        """The process held no objects itself."""


def _served(objects: RegistryObjects | None) -> RegistryObjects:
    if objects is None:
        raise Unavailable("connection refused")
    return objects


class ClientProcess(Protocol):
    """A process that uses the API."""

    name: str
    alive: bool


class PlayedApi:
    """The behaviour of the API."""

    def __init__(self, chance: random.Random, weather: Weather, hangs: Hangs) -> None:
        self.weather = weather
        self._chance = chance
        self._hangs = hangs
        self._behind: dict[str, tuple[float, float]] = {}
        """By process, the period in which it hears nothing of the API."""

        self._cut_until: dict[str, float] = {}

    def cut(self, process: str, seconds: float) -> None:
        """Let a process not reach the API for this long."""
        self._cut_until[process] = asyncio.get_running_loop().time() + seconds
        self._fall_behind(process, seconds)

    def hang(self, process: str, seconds: float) -> None:
        """Let a process hang for this long; its requests are not refused, but late."""
        self._hangs.hang(process, seconds)
        self._fall_behind(process, seconds)

    def _fall_behind(self, process: str, seconds: float) -> None:
        now = asyncio.get_running_loop().time()
        since, until = self._behind.get(process, NEVER)
        if not self.was_cut(process):
            since = now
        self._behind[process] = since, max(until, now + seconds)

    def heal(self) -> None:
        now = asyncio.get_running_loop().time()
        self._behind = {
            name: (since, min(until, now)) for name, (since, until) in self._behind.items()
        }
        self._cut_until.clear()
        self.weather = Weather()

    def is_cut(self, process: str) -> bool:
        """Whether a process cannot reach the API."""
        return asyncio.get_running_loop().time() < self._cut_until.get(process, -math.inf)

    def was_cut(self, process: str) -> bool:
        """Whether a process may not have caught up with what happened while it was cut off."""
        _, until = self._behind.get(process, NEVER)
        return until - asyncio.get_running_loop().time() > -CATCH_UP

    def last_seen(self) -> float:
        """The oldest time whose state a process may still use."""
        missed = (since for process, (since, _) in self._behind.items() if self.was_cut(process))
        return min(missed, default=asyncio.get_running_loop().time())

    async def hop(self, process: ClientProcess) -> None:
        """The delay of a message in one direction."""
        if not process.alive:
            await asyncio.get_running_loop().create_future()
        await self._hangs.awake(process.name)
        if self.is_cut(process.name):
            await asyncio.sleep(CONNECT_SECONDS_MAX)
            raise Unavailable("the API does not answer")
        await asyncio.sleep(self._chance.uniform(0.0001, self.weather.delay_max))

    def happens(self, of: Callable[[Weather], float]) -> bool:
        chance = of(self.weather)
        return chance > 0 and self._chance.random() < chance

    def lag(self) -> float:
        return self._chance.uniform(0, self.weather.lag_max)

    async def age(self) -> None:
        """Delay a list, so that its content is stale."""
        if self.happens(lambda weather: weather.stale):
            await asyncio.sleep(self._chance.uniform(0, STALE_MAX))

    def since(self, revision: int) -> int:
        """The revision at which a watch actually starts."""
        if self.happens(lambda weather: weather.rewound):
            return max(0, revision - self._chance.randint(1, REWOUND_MAX))
        return revision


class ApiObjects:
    """The objects as one process sees them through the API."""

    def __init__(
        self, objects: Callable[[], RegistryObjects], process: ClientProcess, api: PlayedApi
    ) -> None:
        self._objects = objects
        self._process = process
        self._api = api

    async def get(self, kind: type[K], namespace: str, name: str) -> K:
        await self._api.hop(self._process)
        found = await self._objects().get(kind, namespace, name)
        await self._api.hop(self._process)
        return found

    async def list(self, kind: type[K]) -> Listing[K]:
        await self._api.hop(self._process)
        found = await self._objects().list(kind)
        await self._api.age()
        await self._api.hop(self._process)
        return found

    async def pages(
        self, kind: type[K], *, namespace: str = "", labels: str = ""
    ) -> AsyncGenerator[tuple[K, ...], None]:
        found = self._objects().pages(kind, namespace=namespace, labels=labels)
        async with contextlib.aclosing(found) as pages:
            async for page in pages:
                await self._api.hop(self._process)
                await self._api.age()
                yield page

    def watch(self, kind: type[K], *, since: int) -> Feed[K]:
        feed = self._objects().watch(kind, since=self._api.since(since))
        return _LaggingFeed(feed, self._process, self._api)

    def foresee(self, kind: type[K], listener: Foresight[K]) -> None:
        """A cluster does not announce writes."""

    async def create(self, value: K) -> K:
        return await self._write(lambda objects: objects.create, value)

    async def apply(self, value: K) -> K:
        return await self._write(lambda objects: objects.apply, value)

    async def update(self, value: K) -> K:
        return await self._change(lambda objects: objects.update, value)

    async def update_status(self, value: K) -> K:
        return await self._change(lambda objects: objects.update_status, value)

    async def update_statuses(self, first: A, second: B) -> tuple[A, B]:
        return await self.update_status(first), await self.update_status(second)

    async def delete(self, value: Kind) -> None:
        await self._change(lambda objects: objects.delete, value)

    async def _change(
        self, verb: Callable[[RegistryObjects], Callable[[K], Awaitable[T]]], value: K
    ) -> T:
        if self._api.happens(lambda weather: weather.refused):
            raise Conflict("the object has been modified; please apply your changes again")
        return await self._write(verb, value)

    async def _write(
        self, verb: Callable[[RegistryObjects], Callable[[K], Awaitable[T]]], value: K
    ) -> T:
        await self._api.hop(self._process)
        if not self._process.alive:
            await asyncio.get_running_loop().create_future()
        try:
            async with asyncio.timeout(REQUEST_SECONDS_MAX):
                written = await verb(self._objects())(value)
        except TimeoutError:
            raise Unavailable("the API did not answer in time") from None
        if self._api.happens(lambda weather: weather.unanswered):
            raise Unavailable("the API did not answer in time")
        await self._api.hop(self._process)
        return written


class _LaggingFeed:
    """A watch that delivers changes late and in order, and breaks now and then."""

    def __init__(self, feed: Feed[Any], process: ClientProcess, api: PlayedApi) -> None:
        self._feed = feed
        self._process = process
        self._api = api

    async def next(self) -> Iterable[Seen[Any]]:
        found = await self._feed.next()
        await asyncio.sleep(self._api.lag())
        await self._api.hop(self._process)
        if self._api.happens(lambda weather: weather.broken):
            raise Unavailable("the watch was closed")
        return found

    def close(self) -> None:
        self._feed.close()
