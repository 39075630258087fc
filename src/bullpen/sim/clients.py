"""Simulated clients: each requests a target, waits, connects, edits and releases it.

Everything acknowledged to them is recorded, and must hold from then on.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import timedelta
from typing import Protocol

from bullpen.api.kinds.lease import Lease
from bullpen.app.services import Services
from bullpen.errors import LabError, Unavailable
from bullpen.identity.subjects import Role
from bullpen.kit.clock import Clock
from bullpen.services.callers import Claim
from bullpen.services.dialing import Call, NotReady
from bullpen.services.lease_requests import Edit, LeaseRequest
from bullpen.sim.history import History
from bullpen.sim.network import Network
from bullpen.sim.routers import Leg, PlayedRouter

POLL = 5.0
RETRY = 1.0
DIALS_MAX = 8
RELEASES_MAX = 6


class Stage(Protocol):
    """What a client needs from its world."""

    network: Network
    history: History

    @property
    def clock(self) -> Clock: ...

    def router(self, endpoint: str) -> PlayedRouter | None: ...

    def informed(self, router: PlayedRouter) -> bool: ...

    def token(self, role: Role, namespace: str, name: str) -> str: ...

    def say(self, who: str, what: str) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What a client will do."""

    client: str
    namespace: str = "default"
    selector: str = ""
    exporter: str = ""
    begin_in: float | None = None
    duration: float
    holds: float
    """Seconds it uses the target."""

    patience: float
    """Seconds it waits for a target."""

    dials: int = 1
    extends: bool = False
    hands_to: str = ""
    vanishes: bool = False
    """Whether it leaves without releasing the lease."""


class Client:
    def __init__(self, stage: Stage, job: Job) -> None:
        self._stage = stage
        self._job = job
        self._legs: list[tuple[PlayedRouter, Leg]] = []
        self._spare: Call | None = None
        self.lease = ""
        self.connected = False

    async def run(self) -> None:
        try:
            self.lease = lease = await self._create()
            if await self._wait(lease):
                await self._work(lease)
            if not self._job.vanishes:
                await self._release(lease)
        except LabError as error:
            self._say(f"gives up: {error.reason}")
        finally:
            for router, leg in self._legs:
                router.leave(leg)

    async def _create(self) -> str:
        job, now = self._job, self._stage.clock.now()
        asked = LeaseRequest(
            selector=job.selector,
            exporter=job.exporter,
            duration=timedelta(seconds=job.duration),
            begin=now + timedelta(seconds=job.begin_in) if job.begin_in is not None else None,
            tags={},
        )

        async def work(services: Services) -> Lease:
            return await services.leases.create(await services.callers.client(self._claim()), asked)

        lease = await self._stage.network.call(job.client, work)
        name = lease.metadata.name
        self._say(f"has asked: lease {name}")
        self._stage.history.created(job.namespace, name, lease.metadata.uid)
        return name

    async def _wait(self, lease: str) -> bool:
        """Whether the lease got its exporter in time."""

        async def work(services: Services) -> Lease:
            client = await services.callers.client(self._claim())
            return await services.leases.get(client.metadata.namespace, lease)

        loop = asyncio.get_running_loop()
        began = loop.time()
        while loop.time() < began + self._job.patience:
            try:
                found = await self._stage.network.call(self._job.client, work)
            except Unavailable:
                await asyncio.sleep(RETRY)
                continue
            self._stage.history.seen(found)
            if found.status.ended:
                return False
            if found.status.exporter_ref is not None:
                self._say(f"got {found.status.exporter_ref.name} by lease {lease}")
                return True
            await asyncio.sleep(POLL)
        return False

    async def _work(self, lease: str) -> None:
        job = self._job
        for _ in range(job.dials):
            await self._connect(lease)
        await asyncio.sleep(job.holds / 2)
        if job.extends:
            await self._extend(lease)
        if job.hands_to:
            await self._hand_over(lease)
        await asyncio.sleep(job.holds / 2)
        if job.dials > 1 and not job.hands_to:
            self._spare = await self._dial(lease)

    async def _connect(self, lease: str) -> None:
        for attempt in range(DIALS_MAX):
            try:
                call = await self._dial(lease)
            except (NotReady, Unavailable):
                await asyncio.sleep(min(2.0, 0.3 * 2**attempt))
                continue
            router = self._stage.router(call.endpoint)
            if router is None:
                return
            leg = self._stage.network.join(self._job.client, router, call.token)
            if leg is not None:
                self._legs.append((router, leg))
                self.connected = True
                self._steal(router, call.token, "again")
            return

    def _steal(self, router: PlayedRouter, token: str, when: str) -> None:
        """An attacker presents a copy of a token."""
        try:
            router.arrive(token, lambda: None)
        except LabError:
            return
        self._stage.history.admitted(self.lease, when)

    async def _late(self) -> None:
        """Present a token that was never used, long after the lease has ended."""
        if self._spare is None:
            return
        await asyncio.sleep(self._stage.history.slack)
        router = self._stage.router(self._spare.endpoint)
        if router is not None and self._stage.informed(router):
            self._steal(router, self._spare.token, "after its end")

    async def _dial(self, lease: str) -> Call:
        async def work(services: Services) -> Call:
            call = await services.switchboard.dial(
                await services.callers.client(self._claim()), lease
            )
            self._stage.history.minted(self._job.namespace, self._job.client, lease, call.token)
            return call

        return await self._stage.network.call(self._job.client, work)

    async def _extend(self, lease: str) -> None:
        longer = timedelta(seconds=self._job.duration + 60)
        await self._edit(lease, Edit(duration=longer))
        self._stage.history.extended(self._job.namespace, lease, longer)

    async def _hand_over(self, lease: str) -> None:
        await self._edit(lease, Edit(client=self._job.hands_to))
        self._stage.history.handed(self._job.namespace, lease, self._job.hands_to)

    async def _edit(self, lease: str, edit: Edit) -> None:
        async def work(services: Services) -> Lease:
            return await services.leases.update(
                await services.callers.client(self._claim()), lease, edit
            )

        await self._stage.network.call(self._job.client, work)
        self._say(f"changed lease {lease}")

    async def _release(self, lease: str) -> None:
        async def work(services: Services) -> None:
            client = await services.callers.client(self._claim())
            await services.leases.release(client, lease, idempotent=True)

        for _ in range(RELEASES_MAX):
            try:
                await self._stage.network.call(self._job.client, work)
            except Unavailable:
                await asyncio.sleep(RETRY)
            else:
                self._say(f"released lease {lease}")
                self._stage.history.released(self._job.namespace, lease)
                await self._late()
                return

    def _claim(self) -> Claim:
        job = self._job
        token = self._stage.token(Role.CLIENT, job.namespace, job.client)
        return Claim(token=token, role=Role.CLIENT, namespace=job.namespace, name=job.client)

    def _say(self, what: str) -> None:
        self._stage.say(self._job.client, what)
