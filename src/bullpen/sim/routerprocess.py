"""A router in a process of its own, like ``bullpen router``, without TLS and payload.

It outlives the service, and dies and restarts on its own. Its fences are lost when it dies,
and are read again from the leases.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from bullpen.api.objects import Objects
from bullpen.app.router import RouterLab
from bullpen.sim.eventless import Eventless
from bullpen.sim.process import Surroundings
from bullpen.sim.routers import PlayedRouter

NAME = "apart"
ENDPOINT = "router:8083"


class RouterProcess:
    def __init__(self, connect: Callable[[RouterProcess], Objects], around: Surroundings) -> None:
        self.name = NAME
        self.alive = True
        self.router = PlayedRouter(ENDPOINT, around.keys.tickets, around.sources.clock)
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
        lab = RouterLab(self.router, objects, self._around.sources, name=NAME, endpoint=ENDPOINT)
        async with lab.following():
            await lab.synced()
            self.router.open()
            async with lab.announced():
                await asyncio.get_running_loop().create_future()
