"""Wires the Jumpstarter side: views, controllers, services, gRPC."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from types import MappingProxyType

from bullpen.api.client import Client
from bullpen.api.exporter import Exporter
from bullpen.api.lease import Lease
from bullpen.api.objects import Objects
from bullpen.app.pools import Pools
from bullpen.controllers import authority
from bullpen.controllers.authority import AuthorityReconciler
from bullpen.controllers.exporters.credentials import CredentialReconciler, Holder, watch_holders
from bullpen.controllers.exporters.presence_reconciler import Connections, PresenceReconciler
from bullpen.controllers.faults import FaultReconciler
from bullpen.controllers.labs import Labs
from bullpen.controllers.leases.lease_reconciler import LeaseReconciler, watch_namespaces
from bullpen.controllers.leases.session_recorder import SessionRecorder
from bullpen.controllers.pools.pool_observer import TUNING, Tuning
from bullpen.controllers.pools.remote_pools import RemotePools
from bullpen.controllers.targets.class_reconciler import ClassReconciler, watch_classes
from bullpen.controllers.views import Views
from bullpen.core.leases.quotas import Quotas
from bullpen.core.leases.sessions import Session
from bullpen.identity.oidc import OutsideTokens
from bullpen.identity.tokens import Signer, Tickets
from bullpen.kit.backoff import Backoff
from bullpen.kit.clock import Clock
from bullpen.kit.ids import Ids
from bullpen.placements.local.confinement import Sandboxing
from bullpen.provisioners.base import Provisioner
from bullpen.runtime.events import Events
from bullpen.runtime.faults import ObjectKey
from bullpen.runtime.informer import Key, key_of
from bullpen.runtime.loop import ReconcileLoop
from bullpen.runtime.supervision import supervise
from bullpen.services.callers import Callers
from bullpen.services.dialing import Switchboard
from bullpen.services.exporters import Exporters
from bullpen.services.grpc.client import ClientServicer, LabelSettings
from bullpen.services.grpc.controller import ControllerServicer
from bullpen.services.leases import Leases
from bullpen.services.quotas import Gatekeeper
from bullpen.services.routing import Routers
from bullpen.services.signals import Signals

BACKOFF = Backoff(first=timedelta(milliseconds=20), cap=timedelta(seconds=30))
WORKERS = 32
"""Concurrent passes for bursts of thousands of objects: separate writes in few commits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LabSettings:
    """The operator's settings for leases and labels."""

    endpoint: str
    """Where clients and exporters reach the controller, as ``host:port``."""

    ca_pem: str
    """The CA that verifies their TLS connections."""

    retention: timedelta = timedelta(hours=24)
    """How long an ended lease stays readable."""

    stuck_after: timedelta = timedelta(minutes=5)
    """How long an exporter may take to become available after a lease."""

    quotas: Quotas = field(default_factory=Quotas)
    """The limits of one client."""

    pools: Tuning = TUNING
    labels: LabelSettings = field(default_factory=LabelSettings)
    provisioning: bool = False
    """Whether an unknown user of an outside issuer gets a Client at the first call."""

    authority_home: str | None = None
    """The namespace that gets our CA certificate besides those with labs; None for all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lab:
    """A running lab, ready to be served."""

    views: Views
    controller: ControllerServicer
    client: ClientServicer
    callers: Callers
    leases: Leases
    exporters: Exporters
    switchboard: Switchboard
    """The services behind ``controller`` and ``client``, for callers without gRPC."""

    saw_session: Callable[[Session], None]
    """Called by a router with its sessions."""


@contextlib.asynccontextmanager
async def running(
    objects: Objects,
    settings: LabSettings,
    *,
    signer: Signer,
    outside: OutsideTokens,
    tickets: Tickets,
    routers: Routers,
    provisioners: tuple[Provisioner, ...] | None,
    clock: Clock,
    ids: Ids,
    chance: random.Random,
    sandboxing: Mapping[str, Sandboxing] = MappingProxyType({}),
) -> AsyncIterator[Lab]:
    """Everything behind the gRPC services, while the context is open.

    Without ``provisioners``, other processes manage the pools. ``sandboxing`` is the sandbox
    each provisioner provides, if known here.
    """
    retry = functools.partial(BACKOFF.delay, chance=chance)
    views = Views.of(objects, retry=retry)
    views.coordination.listen(routers.observe)
    events = Events(objects, clock=clock, ids=ids, component="bullpen")
    connections = Connections(started=clock.now())
    labs = Labs(objects, views, connected=connections.connected, retention=settings.retention)
    connections.listen(labs.connection_changed)
    signals = Signals()

    credentials = CredentialReconciler(
        objects,
        views,
        signer=signer,
        endpoint=settings.endpoint,
        clock=clock,
        ids=ids,
        events=events,
    )
    fault_loop: ReconcileLoop[ObjectKey] = ReconcileLoop(
        FaultReconciler(
            objects,
            views.faults,
            clock=clock,
            events=events,
            kinds=None if provisioners is not None else (Client, Exporter, Lease),
        ),
        clock=clock,
        retry=retry,
    )
    views.faults.listen(fault_loop.add)

    credential_loop: ReconcileLoop[Holder] = ReconcileLoop(
        credentials, clock=clock, retry=retry, workers=WORKERS
    )
    watch_holders(views, credential_loop.add)

    authority_loop: ReconcileLoop[str] = ReconcileLoop(
        AuthorityReconciler(objects, views, ca_pem=settings.ca_pem, home=settings.authority_home),
        clock=clock,
        retry=retry,
    )
    authority.watch_namespaces(views, authority_loop.add)

    class_loop: ReconcileLoop[Key] = ReconcileLoop(
        ClassReconciler(objects, views.classes, sandboxing=sandboxing, clock=clock),
        clock=clock,
        retry=retry,
    )
    watch_classes(views.classes, class_loop.add)

    presence_loop: ReconcileLoop[Key] = ReconcileLoop(
        PresenceReconciler(
            objects,
            views,
            connections,
            clock=clock,
            events=events,
            stuck_after=settings.stuck_after,
        ),
        clock=clock,
        retry=retry,
        workers=WORKERS,
        faults=views.faults,
        subject=lambda key: views.exporters.get(*key),
    )

    def exporter_changed(old: Exporter | None, new: Exporter | None) -> None:
        exporter = new or old
        assert exporter is not None
        presence_loop.add(key_of(exporter))

    views.exporters.listen(exporter_changed)

    def supply_changed(namespace: str) -> None:
        lease_loop.add(namespace)

    pools: Pools | RemotePools
    if provisioners is None:
        pools = RemotePools(views, supply_changed=supply_changed)
    else:
        pools = Pools(
            objects,
            views,
            labs,
            provisioners,
            ca_pem=settings.ca_pem,
            supply_changed=supply_changed,
            clock=clock,
            events=events,
            chance=chance,
            retry=retry,
            tuning=settings.pools,
        )
    leasing = LeaseReconciler(
        objects, views, labs, clock=clock, events=events, supplies=pools.supplies
    )
    lease_loop: ReconcileLoop[str] = ReconcileLoop(
        leasing,
        clock=clock,
        retry=retry,
        faults=views.faults,
        subject=lambda namespace: views.namespaces.get("", namespace),
    )
    watch_namespaces(views, labs, lease_loop.add)

    sessions = SessionRecorder(objects, views.leases, clock=clock, events=events, retry=retry)

    def presence_changed(key: Key) -> None:
        presence_loop.add(key)
        lease_loop.add(key[0])

    callers = Callers(
        objects,
        views,
        signer=signer,
        outside=outside,
        provisioning=settings.provisioning,
        clock=clock,
    )
    gatekeeper = Gatekeeper(labs, settings.quotas, monotonic=asyncio.get_running_loop().time)
    leases = Leases(objects, views, gatekeeper=gatekeeper, signals=signals, clock=clock, ids=ids)
    exporters = Exporters(
        objects,
        views,
        connections=connections,
        presence_changed=presence_changed,
        signals=signals,
        clock=clock,
        events=events,
    )
    switchboard = Switchboard(
        views, tickets=tickets, routers=routers, signals=signals, clock=clock, ids=ids
    )
    controller = ControllerServicer(
        views, exporters=exporters, leases=leases, switchboard=switchboard
    )
    client = ClientServicer(views, leases, credentials, clock=clock, labels=settings.labels)
    async with asyncio.TaskGroup() as tasks:
        running = [
            tasks.create_task(views.run()),
            tasks.create_task(supervise("events", events.run, retry=retry)),
        ]
        # A controller that decided before its views are complete would end leases it has not seen.
        await views.synced()
        parts: dict[str, Callable[[], Awaitable[None]]] = {
            "faults": fault_loop.run,
            "credentials": credential_loop.run,
            "authority": authority_loop.run,
            "classes": class_loop.run,
            "presence": presence_loop.run,
            "leases": lease_loop.run,
            "sessions": sessions.run,
        }
        if isinstance(pools, Pools):
            parts["pools"] = pools.run
        running += [
            tasks.create_task(supervise(name, run, retry=retry)) for name, run in parts.items()
        ]
        yield Lab(
            views=views,
            controller=controller,
            client=client,
            callers=callers,
            leases=leases,
            exporters=exporters,
            switchboard=switchboard,
            saw_session=sessions.saw,
        )
        for task in running:
            task.cancel()
