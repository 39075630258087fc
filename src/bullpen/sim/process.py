"""One process of the service: all that ``bullpen up`` runs except gRPC, HTTP and machines.

It can be killed at any moment: from then on nothing it does reaches the disk, the API, the
machines or its peers.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Protocol, TypeVar

from bullpen.api.objects import Objects
from bullpen.app import lab
from bullpen.app.lab import Lab, LabSettings
from bullpen.errors import LabError, Unreachable
from bullpen.identity.oidc import OutsideTokens
from bullpen.identity.tokens import Tickets
from bullpen.kit.clock import Clock
from bullpen.kit.ids import Ids
from bullpen.provisioners.base import Provisioner
from bullpen.services.router.fencing import fencing
from bullpen.services.routing import Router as LocalRouter
from bullpen.services.routing import Routers
from bullpen.sim.eventless import Eventless
from bullpen.sim.routers import PlayedRouter
from bullpen.sim.signing import CheapSigner

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
    clock: Clock
    ids: Ids
    chance: random.Random
    tickets: Tickets
    failed: Callable[[Process, BaseException], None]
    say: Callable[[str, str], None]
    events: bool


class Process:
    def __init__(self, name: str, around: Surroundings) -> None:
        self.name = name
        self.alive = True
        self.lab: Lab | None = None
        self.router = PlayedRouter(name, around.tickets, around.clock)
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
                self.lab, self._handlers = running, handlers
                self._around.say(self.name, "is ready")
                await asyncio.get_running_loop().create_future()
        except* LabError as group:
            self._around.say(self.name, f"ends: {_first(group)}")
            self.crash()
        except* Exception as group:
            self.failed(_first(group))
        finally:
            self.lab = None

    @contextlib.asynccontextmanager
    async def _running(self, objects: Objects) -> AsyncIterator[Lab]:
        around = self._around
        routers = Routers(clock=around.clock)
        routers.set_local(LocalRouter(self.name, lambda: 0))
        async with lab.running(
            objects,
            SETTINGS,
            signer=CheapSigner(),
            outside=OutsideTokens((), fetch=_no_fetch, clock=around.clock),
            tickets=around.tickets,
            routers=routers,
            provisioners=(around.provisioner(self),),
            clock=around.clock,
            ids=around.ids,
            chance=around.chance,
        ) as running:
            fence = fencing(self.router)
            for lease in running.views.leases.all():
                fence(None, lease)
            running.views.leases.listen(fence)
            self.router.on_session = running.saw_session
            self.router.open()
            yield running

    def handle(self, work: Callable[[Lab], Coroutine[Any, Any, T]]) -> asyncio.Future[T]:
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
        self, work: Callable[[Lab], Coroutine[Any, Any, T]], answer: asyncio.Future[T]
    ) -> None:
        assert self.lab is not None
        try:
            result = await work(self.lab)
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
        return self.alive and self.lab is not None


def _first(group: BaseExceptionGroup[Any]) -> BaseException:
    found = group.exceptions[0]
    return _first(found) if isinstance(found, BaseExceptionGroup) else found


async def _no_fetch(address: str) -> bytes:
    raise Unreachable(f"{address} does not exist")
