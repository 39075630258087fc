"""``bullpen router``: a router in a process of its own.

It shares the controller's stream key, watches leases to close the streams of ended ones,
and periodically announces itself and its load. Meanwhile the controller may restart, or
another replica may lead: streams are not affected.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from typing import Protocol

from bullpen.api.kinds.core import CoordinationLease, CoordinationLeaseSpec
from bullpen.api.kinds.lease import ENDED_LABEL, Lease, LeaseStatus
from bullpen.api.meta import ObjectMeta
from bullpen.api.objects import Objects
from bullpen.app import process
from bullpen.app.cluster_process import JoinSettings, before_stop, hear_signals, joined, taken_port
from bullpen.app.health import Health
from bullpen.app.router_metrics import RouterMetrics
from bullpen.app.sources import Sources
from bullpen.app.tracing import LeaseTraces, TracingSettings, tracing
from bullpen.cluster import kubeconfig
from bullpen.cluster.objects import ClusterObjects
from bullpen.controllers.leases.session_recorder import SessionRecorder
from bullpen.controllers.object_edit import change_status, together
from bullpen.core.leases import sessions
from bullpen.core.leases.sessions import Session
from bullpen.datadir import certificates, keys
from bullpen.datadir.certificates import TlsFiles, as_files, hosts_of
from bullpen.datadir.directory import Layout
from bullpen.datadir.keys import SharedKeys
from bullpen.errors import Conflict, Gone, LabError, NotFound, Refused, Unavailable
from bullpen.identity.tokens import Tickets
from bullpen.kit import durations
from bullpen.kit.clock import Clock
from bullpen.runtime.connections import PortConnections
from bullpen.runtime.events import Events
from bullpen.runtime.informer import Informer
from bullpen.services.router.pairing import Fenced, fencing
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
DRAIN_LOOK_SECONDS = 0.1
TELL_SECONDS_MAX = 2.0
"""How long a router that stops tries to write Events about its streams."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RouterSettings:
    """The command line of ``bullpen router``."""

    name: str
    home: Path | JoinSettings
    """Data directory of the router's service, or its cluster."""

    listen: str
    port: int
    endpoint: str = ""
    """Its address for clients; by default ``listen:port``."""

    tls: TlsFiles | None = None
    """An external certificate, in a cluster."""

    tracing: TracingSettings = field(default_factory=TracingSettings)
    drain: timedelta = timedelta(0)
    """How long streams may go on after the stop signal."""

    @property
    def host(self) -> str:
        """The host name that clients use, without the port."""
        named = self.endpoint.rpartition(":")[0].strip("[]")
        local = "127.0.0.1" if self.listen in ("0.0.0.0", "::") else self.listen
        return named or local


@dataclass(frozen=True, slots=True, kw_only=True)
class Home:
    """What a router needs from its service."""

    objects: Objects
    namespace: str
    """Namespace of the router's coordination Lease."""

    stream_key: bytes
    chain: str
    key: str
    """Paths of the certificate and of its key."""

    stop: asyncio.Event
    health: Health


class LocalRouter(Fenced, Protocol):
    """The part of a router that its own process uses."""

    on_session: Callable[[Session], None]

    @property
    def load(self) -> int:
        """The number of its legs."""


class RouterLab:
    """What surrounds the router of a process: fences, presence, Events, sessions."""

    def __init__(
        self,
        router: LocalRouter,
        objects: Objects,
        sources: Sources,
        *,
        name: str,
        endpoint: str,
        namespace: str = NAMESPACE,
    ) -> None:
        clock, retry = sources.clock, sources.retry
        self._name, self._clock = name, clock
        self._leases: Informer[Lease] = Informer(objects, Lease, retry=retry)
        self._objects, self._retry = objects, retry
        self._fence = fencing(router)
        self._leases.listen(self._fence)
        self._presence = Presence(
            objects, name, endpoint, lambda: router.load, clock, namespace=namespace
        )
        self._events = Events(objects, clock=clock, ids=sources.ids, component=f"router-{name}")
        self._sessions = SessionRecorder(
            objects, self._leases, clock=clock, events=self._events, retry=retry
        )
        router.on_session = self._sessions.saw

    @contextlib.asynccontextmanager
    async def following(self) -> AsyncIterator[None]:
        """Follow the leases while the context is open."""
        async with asyncio.TaskGroup() as tasks:
            watching = tasks.create_task(self._leases.run())
            yield
            watching.cancel()

    async def synced(self) -> None:
        """Wait until the leases are known.

        Before it knows which leases have ended, a router would admit their tokens.
        """
        await self._leases.synced()
        failures = 0
        while True:
            try:
                return await self._fence_ended()
            except (Gone, Unavailable) as error:
                failures += 1
                log.warning("ended leases not read", extra={"key": "", "cause": error.message})
                await asyncio.sleep(self._retry(failures).total_seconds())

    async def _fence_ended(self) -> None:
        """Fence the leases that ended before this process began; the view leaves them out."""
        ended = self._objects.pages(Lease, labels=ENDED_LABEL)
        async with contextlib.aclosing(ended) as pages:
            async for page in pages:
                for lease in page:
                    self._fence(None, lease)

    async def say_draining(self, streams: Mapping[str, int], longest: timedelta) -> None:
        """Tell the leases with streams that the router stops, and how long they may go on."""
        if longest:
            text = (
                f"router {self._name} stops; open streams may go on for {durations.text(longest)}"
            )
            await self._say(streams, "RouterDraining", text, warning=False)

    async def say_cut(self, streams: Mapping[str, int], longest: timedelta) -> None:
        """Tell the leases whose streams are about to be cut: they go on, and may connect again."""
        waited = f" after {durations.text(longest)}" if longest else ""
        text = f"router {self._name} stops and cuts the open streams{waited}; connect again"
        told = await self._say(streams, "StreamsCut", text, warning=True)
        failed: list[LabError | None] = []
        # A router that stops does not wait for a home that is away.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(TELL_SECONDS_MAX):
                failed = await together(self._mark_cut(lease, text) for lease in told)
        if len(failed) < len(told) or any(failed):
            causes = {error.message for error in failed if error is not None}
            cause = "; ".join(sorted(causes)) or "no answer"
            log.warning("interruptions not recorded", extra={"key": "", "cause": cause})

    async def _mark_cut(self, lease: Lease, text: str) -> None:
        def cut(newest: Lease) -> LeaseStatus:
            if newest.status.ended:
                return newest.status
            return sessions.interrupted(newest, message=text, now=self._clock.now())

        await change_status(self._objects, self._leases, lease, cut)

    async def _say(
        self, streams: Mapping[str, int], reason: str, text: str, *, warning: bool
    ) -> list[Lease]:
        told = [lease for lease in self._leases.all() if lease.metadata.uid in streams]
        for lease in told:
            count = streams[lease.metadata.uid]
            message = f"{text} ({'1 stream' if count == 1 else f'{count} streams'})"
            self._events.emit(lease, reason=reason, message=message, warning=warning)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(TELL_SECONDS_MAX):
                await self._events.flush()
        return told

    @contextlib.asynccontextmanager
    async def announced(self) -> AsyncIterator[Callable[[], Awaitable[None]]]:
        """Announce the router and record its sessions while the context is open.

        Yields a function that withdraws the announcement, so that no new streams come.
        """
        async with asyncio.TaskGroup() as tasks:
            announcing = tasks.create_task(self._presence.run())
            recording = [tasks.create_task(part.run()) for part in (self._events, self._sessions)]

            async def withdraw() -> None:
                announcing.cancel()
                await self._presence.leave()

            yield withdraw
            for task in (announcing, *recording):
                task.cancel()


async def run(settings: RouterSettings, *, announce: Callable[[str], None]) -> None:
    """Route until SIGTERM or SIGINT."""
    sources = Sources.real()
    async with (
        _home(settings, sources.clock) as home,
        tracing(settings.tracing, "bullpen-router", clock=sources.clock) as traces,
    ):
        await route(settings, home, sources, announce, traces=traces)


async def route(
    settings: RouterSettings,
    home: Home,
    sources: Sources,
    announce: Callable[[str], None],
    *,
    traces: LeaseTraces | None = None,
) -> None:
    """Route until the home asks to stop."""
    router = Router(
        Tickets(home.stream_key),
        clock=sources.clock,
        on_first_byte=traces.first_byte if traces is not None else None,
    )
    with contextlib.closing(taken_port(settings.listen, settings.port)) as listener:
        endpoint = settings.endpoint or f"{settings.host}:{listener.getsockname()[1]}"
        lab = RouterLab(
            router,
            home.objects,
            sources,
            name=settings.name,
            endpoint=endpoint,
            namespace=home.namespace,
        )
        async with lab.following():
            if not await before_stop(lab.synced(), home.stop):
                return
            tls = tls_context(home.chain, home.key)
            connections = PortConnections(
                "router", process.only_port_bounds(process.raise_descriptor_limit())
            )
            async with (
                lab.announced() as withdraw,
                router.serving(listener, tls, connections=connections),
            ):
                home.health.ready = f"routing at {endpoint}"
                announce(endpoint)
                with home.health.counting((RouterMetrics(router),)):
                    await home.stop.wait()
                home.health.ready, home.health.waiting = "", "stopping"
                await withdraw()
                await lab.say_draining(router.streams(), settings.drain)
                await _drain(router, settings.drain)
                await lab.say_cut(router.streams(), settings.drain)


async def _drain(router: Router, longest: timedelta) -> None:
    """Wait a limited time for the existing streams to end by themselves."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(longest.total_seconds()):
            while router.load:  # noqa: ASYNC110 - the router counts, it does not tell
                await asyncio.sleep(DRAIN_LOOK_SECONDS)


@contextlib.asynccontextmanager
async def _home(settings: RouterSettings, clock: Clock) -> AsyncIterator[Home]:
    if isinstance(settings.home, JoinSettings):
        async with _cluster_home(settings, settings.home, clock) as home:
            yield home
        return
    layout = Layout(settings.home.resolve())
    if not layout.stream_key.exists():
        raise Refused(f"{settings.home} holds no stream key; run 'bullpen up' there first")
    certs = certificates.ensure(layout.pki, hosts_of(settings.host), now=clock.now())
    access = kubeconfig.load(layout.kubeconfig)
    async with ClusterObjects(access, manager=f"router-{settings.name}") as objects:
        yield Home(
            objects=objects,
            namespace=NAMESPACE,
            stream_key=keys.stream_key(layout.stream_key),
            chain=str(certs.server_chain),
            key=str(certs.server_key),
            stop=hear_signals(),
            health=Health(),
        )


@contextlib.asynccontextmanager
async def _cluster_home(
    settings: RouterSettings, join: JoinSettings, clock: Clock
) -> AsyncIterator[Home]:
    async with joined(join, manager=f"bullpen-router-{settings.name}", clock=clock) as here:
        shared = SharedKeys(here.objects, here.namespace)
        if settings.tls is not None:
            _, server = settings.tls.read()
        else:
            authority = await shared.authority(now=clock.now())
            server = certificates.issue(authority, hosts_of(settings.host), now=clock.now())
        with as_files(server) as (chain, key):
            yield Home(
                objects=here.objects,
                namespace=here.namespace,
                stream_key=await shared.stream_key(),
                chain=chain,
                key=key,
                stop=here.stop,
                health=here.health,
            )


class Presence:
    """Announces the router in a coordination Lease, until asked to leave."""

    def __init__(
        self,
        objects: Objects,
        name: str,
        endpoint: str,
        load: Callable[[], int],
        clock: Clock,
        namespace: str = NAMESPACE,
    ) -> None:
        self._objects = objects
        self._namespace = namespace
        self._name = name
        self._endpoint = endpoint
        self._load = load
        self._clock = clock
        self._written: CoordinationLease | None = None

    async def run(self) -> None:
        while True:
            try:
                await self._renew()
            except (Conflict, Unavailable) as error:
                self._written = None
                log.debug(
                    "router lease not renewed", extra={"key": self._name, "cause": error.message}
                )
            await asyncio.sleep(RENEW.total_seconds())

    async def leave(self) -> None:
        """Accept no new streams: the controller stops handing out our address."""
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
            return await self._objects.get(
                CoordinationLease, self._namespace, f"router-{self._name}"
            )
        except NotFound:
            return None

    def _lease(self) -> CoordinationLease:
        return CoordinationLease(
            metadata=ObjectMeta(
                name=f"router-{self._name}",
                namespace=self._namespace,
                labels={ROUTER_LABEL: "true"},
                annotations={
                    ENDPOINT_ANNOTATION: self._endpoint,
                    LOAD_ANNOTATION: str(self._load()),
                },
            ),
            spec=CoordinationLeaseSpec(
                holder_identity=self._name,
                lease_duration_seconds=int(LASTS.total_seconds()),
                renew_time=self._clock.now(),
            ),
        )
