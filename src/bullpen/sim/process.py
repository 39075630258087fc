"""One process of the service: all that ``bullpen up`` runs except gRPC, HTTP and machines.

It can be killed at any moment: from then on nothing it does reaches the disk, the API, the
machines or its peers.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Protocol, TypeVar

from bullpen.api.objects import Objects
from bullpen.app import controllers
from bullpen.app.lab import Keys, Lab, LabSettings
from bullpen.app.services import Services
from bullpen.app.sources import Sources
from bullpen.errors import LabError, Unreachable
from bullpen.provisioners.base import Provisioner
from bullpen.sim.eventless import Eventless
from bullpen.sim.routers import PlayedRouter

T = TypeVar("T")

SETTINGS = LabSettings(endpoint="lab:8082", ca_pem="PEM", retention=timedelta(minutes=5))


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


class Process:
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
