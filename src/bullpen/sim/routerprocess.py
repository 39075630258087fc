"""A router in a process of its own, like ``bullpen router``, without TLS and payload.

It outlives the service, and dies and restarts on its own. Its fences are lost when it dies,
and are read again from the leases.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import timedelta

from bullpen.api.lease import Lease
from bullpen.api.objects import Objects
from bullpen.app.router import Presence
from bullpen.controllers.leases.session_recorder import SessionRecorder
from bullpen.runtime.events import Events
from bullpen.runtime.informer import Informer
from bullpen.services.router.fencing import fencing
from bullpen.sim.eventless import Eventless
from bullpen.sim.process import Surroundings
from bullpen.sim.routers import PlayedRouter

NAME = "apart"
ENDPOINT = "router:8083"
RETRY = timedelta(seconds=1)


class RouterProcess:
    def __init__(self, connect: Callable[[RouterProcess], Objects], around: Surroundings) -> None:
        self.name = NAME
        self.alive = True
        self.router = PlayedRouter(ENDPOINT, around.tickets, around.clock)
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
        around, objects = self._around, Eventless(self._connect(self))
        leases: Informer[Lease] = Informer(objects, Lease, retry=lambda failures: RETRY)
        leases.listen(fencing(self.router))
        presence = Presence(objects, NAME, ENDPOINT, lambda: self.router.load, around.clock)
        events = Events(objects, clock=around.clock, ids=around.ids, component=f"router-{NAME}")
        sessions = SessionRecorder(
            objects, leases, clock=around.clock, events=events, retry=lambda failures: RETRY
        )
        self.router.on_session = sessions.saw
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(leases.run())
            await leases.synced()
            self.router.open()
            for part in (presence, events, sessions):
                tasks.create_task(part.run())
