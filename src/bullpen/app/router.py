"""``bullpen router``: a router in a process of its own.

It shares the controller's stream key, watches leases to cut the streams of ended ones, and
keeps saying that it is there and how much it carries. The controller may be restarted
meanwhile: streams do not notice.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import random
import signal
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path

from bullpen.api.core import CoordinationLease, CoordinationLeaseSpec
from bullpen.api.lease import Lease
from bullpen.api.meta import ObjectMeta
from bullpen.api.objects import Objects
from bullpen.app import certificates, keys
from bullpen.app.datadir import Layout
from bullpen.app.httpserver import bind
from bullpen.app.lab import BACKOFF
from bullpen.app.wiring import fencing, hosts_of
from bullpen.cluster import kubeconfig
from bullpen.cluster.objects import ClusterObjects
from bullpen.controllers.sessions import SessionRecorder
from bullpen.errors import Conflict, NotFound, Refused, Unavailable
from bullpen.identity.tokens import Tickets
from bullpen.kit.clock import Clock, SystemClock
from bullpen.kit.ids import RandomIds
from bullpen.runtime.events import Events
from bullpen.runtime.informer import Informer
from bullpen.services.router.server import Router, tls_context
from bullpen.services.routing import (
    ENDPOINT_ANNOTATION,
    LOAD_ANNOTATION,
    NAMESPACE,
    ROUTER_LABEL,
)

log = logging.getLogger("bullpen.router")

RENEW = timedelta(seconds=2)
LASTS = timedelta(seconds=10)


@dataclass(frozen=True, slots=True, kw_only=True)
class RouterSettings:
    """What ``bullpen router`` was told."""

    name: str
    data: Path
    """Data directory of the service this router belongs to."""

    listen: str
    port: int
    endpoint: str = ""
    """What clients call it; ``listen:port`` unless given."""


async def run(settings: RouterSettings, *, announce: Callable[[str], None]) -> None:
    """Route until SIGTERM or SIGINT."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    clock = SystemClock()
    layout = Layout(settings.data.resolve())
    if not layout.stream_key.exists():
        raise Refused(f"{settings.data} holds no stream key; run 'bullpen up' there first")
    certs = certificates.ensure(layout.pki, hosts_of(settings.listen), now=clock.now())
    router = Router(Tickets(keys.stream_key(layout.stream_key)), clock=clock)
    try:
        listener = bind(settings.listen, settings.port)
    except OSError as error:
        raise Refused(f"port {settings.port} cannot be used: {error.strerror}") from None
    endpoint = settings.endpoint or f"{settings.listen}:{listener.getsockname()[1]}"
    tls = tls_context(str(certs.server_chain), str(certs.server_key))
    access = kubeconfig.load(layout.kubeconfig)
    async with (
        ClusterObjects(access, manager=f"router-{settings.name}") as objects,
        router.serving(listener, tls),
        asyncio.TaskGroup() as tasks,
    ):
        retry = functools.partial(BACKOFF.delay, chance=random.SystemRandom())
        leases: Informer[Lease] = Informer(objects, Lease, retry=retry)
        leases.listen(fencing(router))
        presence = Presence(objects, settings.name, endpoint, router, clock)
        events = Events(objects, clock=clock, ids=RandomIds(), component=f"router-{settings.name}")
        sessions = SessionRecorder(objects, leases, clock=clock, events=events, retry=retry)
        router.on_session = sessions.saw
        running = [tasks.create_task(part.run()) for part in (leases, presence, events, sessions)]
        announce(endpoint)
        await stop.wait()
        await presence.leave()
        for task in running:
            task.cancel()


class Presence:
    """Says that the router is there, in a coordination Lease, until told to leave."""

    def __init__(
        self, objects: Objects, name: str, endpoint: str, router: Router, clock: Clock
    ) -> None:
        self._objects = objects
        self._name = name
        self._endpoint = endpoint
        self._router = router
        self._clock = clock
        self._written: CoordinationLease | None = None

    async def run(self) -> None:
        while True:
            try:
                await self._renew()
            except (Conflict, Unavailable) as error:
                self._written = None
                log.debug("not renewed", extra={"key": self._name, "cause": error.message})
            await asyncio.sleep(RENEW.total_seconds())

    async def leave(self) -> None:
        """Take no new streams: the controller stops handing out our address."""
        if self._written is not None:
            with contextlib.suppress(Conflict, Unavailable):
                await self._objects.delete(self._written)

    async def _renew(self) -> None:
        found = self._written or await self._find()
        fresh = self._lease()
        if found is None:
            self._written = await self._objects.create(fresh)
        else:
            meta = replace(
                found.metadata,
                labels=fresh.metadata.labels,
                annotations=fresh.metadata.annotations,
            )
            self._written = await self._objects.update(
                replace(found, metadata=meta, spec=fresh.spec)
            )

    async def _find(self) -> CoordinationLease | None:
        try:
            return await self._objects.get(CoordinationLease, NAMESPACE, f"router-{self._name}")
        except NotFound:
            return None

    def _lease(self) -> CoordinationLease:
        return CoordinationLease(
            metadata=ObjectMeta(
                name=f"router-{self._name}",
                namespace=NAMESPACE,
                labels={ROUTER_LABEL: "true"},
                annotations={
                    ENDPOINT_ANNOTATION: self._endpoint,
                    LOAD_ANNOTATION: str(self._router.load),
                },
            ),
            spec=CoordinationLeaseSpec(
                holder_identity=self._name,
                lease_duration_seconds=int(LASTS.total_seconds()),
                renew_time=self._clock.now(),
            ),
        )
