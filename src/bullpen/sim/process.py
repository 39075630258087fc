"""The simulated processes: the service without gRPC, HTTP and machines; and a router of its own.

A process can be killed at any moment: from then on nothing it does reaches the disk, the
API, the machines or its peers.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Protocol, TypeVar

from bullpen.api.fields import Kind
from bullpen.api.kinds.core import Event
from bullpen.api.objects import Feed, Foresight, Listing, Objects
from bullpen.app import controllers
from bullpen.app.lab import Keys, Lab, LabSettings
from bullpen.app.router import RouterLab
from bullpen.app.services import Services
from bullpen.app.sources import Sources
from bullpen.errors import LabError, Unreachable
from bullpen.placements.base import DiskStorage
from bullpen.provisioners.base import Provisioner
from bullpen.sim.routers import PlayedRouter

T = TypeVar("T")
K = TypeVar("K", bound=Kind)
A = TypeVar("A", bound=Kind)
B = TypeVar("B", bound=Kind)

SETTINGS = LabSettings(endpoint="lab:8082", ca_pem="PEM", retention=timedelta(minutes=5))

ROUTER_NAME, ROUTER_ENDPOINT = "apart", "router:8083"
"""The router that is a process of its own."""


class HomeSide(Protocol):
    """Where a process finds its objects."""

    def connected(self, process: Process) -> contextlib.AbstractAsyncContextManager[Objects]:
        """The objects, while the process lives."""

    def crashed(self, process: Process) -> None:
        """The process was killed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """The environment of a process."""

    home: HomeSide
    provisioner: Callable[[Process], Provisioner]
    sources: Sources
    keys: Keys
    failed: Callable[[Process, BaseException], None]
    say: Callable[[str, str], None]
    events: bool
    disk_storage: DiskStorage
    """The contents of lasting disks, which outlive processes."""


class Process:
    """All that ``bullpen up`` runs except gRPC, HTTP and machines."""

    def __init__(self, name: str, around: Surroundings) -> None:
        self.name = name
        self.alive = True
        self.services: Services | None = None
        self.router = PlayedRouter(name, around.keys.tickets, around.sources.clock)
        self._around = around
        self._handlers: asyncio.TaskGroup | None = None
        self._task: asyncio.Task[None] | None = None

    def start(self, tasks: asyncio.TaskGroup) -> None:
        self._around.say(self.name, "starts")
        self._task = tasks.create_task(self._main())

    def crash(self) -> None:
        """Kill it, whatever it is doing."""
        if not self.alive:
            return
        self.alive = False
        self._around.say(self.name, "is killed")
        self.router.close()
        self._around.home.crashed(self)
        assert self._task is not None
        self._task.cancel()

    def failed(self, error: BaseException) -> None:
        """A part of it ended unexpectedly."""
        if self.alive:
            self._around.failed(self, error)

    async def _main(self) -> None:
        try:
            async with (
                self._around.home.connected(self) as objects,
                self._running(objects if self._around.events else Eventless(objects)) as running,
                asyncio.TaskGroup() as handlers,
            ):
                self.services, self._handlers = running, handlers
                self._around.say(self.name, "is ready")
                await asyncio.get_running_loop().create_future()
        except* LabError as group:
            self._around.say(self.name, f"ends: {_first(group)}")
            self.crash()
        except* Exception as group:
            self.failed(_first(group))
        finally:
            self.services = None

    @contextlib.asynccontextmanager
    async def _running(self, objects: Objects) -> AsyncIterator[Services]:
        lab = Lab(
            objects,
            SETTINGS,
            self._around.sources,
            keys=self._around.keys,
            provisioners=(self._around.provisioner(self),),
            disk_storage=self._around.disk_storage,
        )
        services = Services.of(lab)
        lab.attach_router(self.router, self.name)
        async with lab.running(controllers.WHOLE):
            self.router.open()
            yield services

    def handle(self, work: Callable[[Services], Coroutine[Any, Any, T]]) -> asyncio.Future[T]:
        """Run a call in the process; its caller gets an error if the process dies meanwhile."""
        answer: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        task = self.spawn(self._answer(work, answer))

        def over(_: object) -> None:
            if not answer.done():
                answer.set_exception(Unreachable("the connection was closed"))
            # A caller that left, or called twice, does not read the answer.
            if not answer.cancelled():
                answer.exception()

        task.add_done_callback(over)
        answer.add_done_callback(lambda _: task.cancel())
        return answer

    async def _answer(
        self, work: Callable[[Services], Coroutine[Any, Any, T]], answer: asyncio.Future[T]
    ) -> None:
        assert self.services is not None
        try:
            result = await work(self.services)
        except LabError as error:
            if self.alive and not answer.done():
                answer.set_exception(error)
        except Exception as error:
            self.failed(error)
        else:
            if self.alive and not answer.done():
                answer.set_result(result)

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run a task that ends with the process."""
        assert self._handlers is not None
        return self._handlers.create_task(work)

    @property
    def ready(self) -> bool:
        return self.alive and self.services is not None


def _first(group: BaseExceptionGroup[Any]) -> BaseException:
    found = group.exceptions[0]
    return _first(found) if isinstance(found, BaseExceptionGroup) else found


class RouterProcess:
    """A router like ``bullpen router``, without TLS and payload.

    It outlives the service, and dies and restarts on its own. Its fences are lost when it dies,
    and are read again from the leases.
    """

    def __init__(self, connect: Callable[[RouterProcess], Objects], around: Surroundings) -> None:
        self.name = ROUTER_NAME
        self.alive = True
        self.router = PlayedRouter(ROUTER_ENDPOINT, around.keys.tickets, around.sources.clock)
        self._connect = connect
        self._around = around
        self._task: asyncio.Task[None] | None = None

    def start(self, tasks: asyncio.TaskGroup) -> None:
        self._around.say(self.name, "starts")
        self._task = tasks.create_task(self._main())

    def crash(self) -> None:
        """Kill it, whatever it is doing."""
        self.alive = False
        self._around.say(self.name, "is killed")
        self.router.close()
        assert self._task is not None
        self._task.cancel()

    async def _main(self) -> None:
        objects = Eventless(self._connect(self))
        lab = RouterLab(
            self.router, objects, self._around.sources, name=ROUTER_NAME, endpoint=ROUTER_ENDPOINT
        )
        async with lab.following():
            await lab.synced()
            self.router.open()
            async with lab.announced():
                await asyncio.get_running_loop().create_future()


class Eventless:
    """Objects without Events: Events are accepted and not stored.

    Nothing depends on Events, and they are a third of all writes.
    """

    def __init__(self, objects: Objects) -> None:
        self._objects = objects

    async def get(self, kind: type[K], namespace: str, name: str) -> K:
        return await self._objects.get(kind, namespace, name)

    async def list(self, kind: type[K]) -> Listing[K]:
        return Listing((), 0) if kind is Event else await self._objects.list(kind)

    def watch(self, kind: type[K], *, since: int) -> Feed[K]:
        return self._objects.watch(kind, since=since)

    def pages(
        self, kind: type[K], *, namespace: str = "", labels: str = ""
    ) -> AsyncGenerator[tuple[K, ...], None]:
        return self._objects.pages(kind, namespace=namespace, labels=labels)

    def foresee(self, kind: type[K], listener: Foresight[K]) -> None:
        self._objects.foresee(kind, listener)

    async def create(self, value: K) -> K:
        return value if isinstance(value, Event) else await self._objects.create(value)

    async def apply(self, value: K) -> K:
        return await self._objects.apply(value)

    async def update(self, value: K) -> K:
        return value if isinstance(value, Event) else await self._objects.update(value)

    async def update_status(self, value: K) -> K:
        return await self._objects.update_status(value)

    async def update_statuses(self, first: A, second: B) -> tuple[A, B]:
        return await self._objects.update_statuses(first, second)

    async def delete(self, value: Kind) -> None:
        await self._objects.delete(value)
