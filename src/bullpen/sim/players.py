"""Simulated exporters: they register, report a status, are told of leases, and are called.

They behave as ``jmp run`` 0.9: a failed registration ends the attempt, a lost Status stream
is reopened after a second, and a direct change from one lease to another goes unnoticed.
They outlive the service.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass
from typing import Protocol

from bullpen.api.kinds.exporter import Device, ExporterStatusValue
from bullpen.app.services import Services
from bullpen.core.exporters.conversation import Notice
from bullpen.errors import LabError, NotFound, Unavailable
from bullpen.identity.subjects import Role
from bullpen.services.callers import Claim
from bullpen.services.dialing import Call
from bullpen.services.peers import Peer
from bullpen.sim.history import History
from bullpen.sim.network import Network
from bullpen.sim.routers import PlayedRouter

RETRY = 1.0
"""Delay before a lost Status stream is reopened, and before a dead exporter restarts."""

STREAM_RETRIES_MAX = 5
REPORT_RETRIES_MAX = 6
NOTICE_SECONDS = 0.3
"""Seconds from being told of a lease to Listen."""


class Stage(Protocol):
    """What a player needs from its world."""

    network: Network
    history: History

    def router(self, endpoint: str) -> PlayedRouter | None: ...

    def say(self, who: str, what: str) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """The exporter to simulate, and its behaviour around leases."""

    namespace: str
    name: str
    token: Callable[[], str]
    began: Callable[[str], None] = lambda lease: None
    ended: Callable[[str], None] = lambda lease: None


class Player:
    def __init__(self, stage: Stage, part: Part) -> None:
        self._stage = stage
        self._part = part
        self._told = Notice()
        """The lease it believes to have."""

    async def run(self) -> None:
        """Run until cancelled, or until its object is deleted."""
        while True:
            try:
                await self._session()
            except NotFound:
                if self._part.token() == "":
                    return
            except LabError as error:
                self._say(f"fails: {error.reason}")
            self._lose()
            await asyncio.sleep(RETRY)

    async def _session(self) -> None:
        await self._register()
        await self._report(ExporterStatusValue.AVAILABLE)
        lost = 0
        while lost < STREAM_RETRIES_MAX:
            try:
                async with asyncio.TaskGroup() as serving:
                    await self._hear(serving)
            except* LabError:
                lost += 1
            await asyncio.sleep(RETRY)

    async def _register(self) -> None:
        async def work(services: Services) -> None:
            exporter = await services.callers.exporter(self._claim())
            device = Device(uuid=exporter.metadata.uid, labels={})
            await services.exporters.register(exporter, labels={}, devices=(device,))

        await self._stage.network.call(self._part.name, work)
        self._say("registered")

    async def _report(self, value: ExporterStatusValue) -> None:
        async def work(services: Services) -> None:
            exporter = await services.callers.exporter(self._claim())
            await services.exporters.report(exporter, value=value, message="")

        for attempt in range(REPORT_RETRIES_MAX):
            try:
                await self._stage.network.call(self._part.name, work)
            except Unavailable:
                await asyncio.sleep(2.0**attempt)
            except LabError as error:
                # As in jmp: the error is logged, and the service's information is out of date.
                self._say(f"could not say {value}: {error.reason}")
                return
            else:
                return

    async def _hear(self, serving: asyncio.TaskGroup) -> None:
        async def work(services: Services, peer: Peer) -> AsyncGenerator[Notice, None]:
            exporter = await services.callers.exporter(self._claim())
            return services.exporters.status(exporter, peer)

        listening: asyncio.Task[None] | None = None
        async with self._stage.network.stream(self._part.name, work) as notices:
            if self._told.leased:
                listening = serving.create_task(self._listen(self._told.lease))
            async for notice in notices:
                if notice.leased and not self._told.leased:
                    self._begin(notice)
                    listening = serving.create_task(self._serve(notice.lease))
                elif not notice.leased and self._told.leased:
                    if listening is not None:
                        listening.cancel()
                    await self._end()

    def _begin(self, notice: Notice) -> None:
        self._told = notice
        self._say(f"hears of lease {notice.lease}")
        self._part.began(notice.lease)

    async def _end(self) -> None:
        told, self._told = self._told, Notice()
        self._say(f"hears that lease {told.lease} is over")
        part = self._part
        self._stage.history.heard_end(part.namespace, part.name, told.lease, told.uid)
        await self._report(ExporterStatusValue.AVAILABLE)
        self._part.ended(told.lease)

    def _lose(self) -> None:
        """The process ended, and its state with it."""
        self._told = Notice()

    async def _serve(self, lease: str) -> None:
        await asyncio.sleep(NOTICE_SECONDS)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._listen(lease))
            await self._report(ExporterStatusValue.LEASE_READY)

    async def _listen(self, lease: str) -> None:
        async def work(services: Services, _: Peer) -> AsyncGenerator[Call, None]:
            exporter = await services.callers.exporter(self._claim())
            services.exporters.listens(exporter, lease)
            return services.switchboard.listen(exporter, lease)

        for _ in range(STREAM_RETRIES_MAX):
            try:
                async with self._stage.network.stream(self._part.name, work) as calls:
                    async for call in calls:
                        self._answer(call)
            except LabError as error:
                self._say(f"listens no more on {lease}: {error.reason}")
            await asyncio.sleep(RETRY)

    def _answer(self, call: Call) -> None:
        router = self._stage.router(call.endpoint)
        if router is None:
            return
        with contextlib.suppress(LabError):
            self._stage.network.join(self._part.name, router, call.token)

    def _claim(self) -> Claim:
        part = self._part
        return Claim(
            token=part.token(), role=Role.EXPORTER, namespace=part.namespace, name=part.name
        )

    def _say(self, what: str) -> None:
        self._stage.say(self._part.name, what)
