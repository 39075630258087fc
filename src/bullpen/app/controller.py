"""``bullpen controller``: leases, exporters, clients, credentials and their gRPC services.

For a Kubernetes cluster, which stores the objects, the keys and the leadership. Several
replicas may run; one leads and serves. Routers and provisioners are other processes.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import random
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field, replace
from datetime import datetime

from bullpen.api.document import Document
from bullpen.app import descriptors, issuing, lab
from bullpen.app.config import Config
from bullpen.app.descriptors import Shares
from bullpen.app.faultmetrics import FaultMetrics
from bullpen.app.httpserver import serving
from bullpen.app.issuing import Pair
from bullpen.app.joining import Joined, JoinSettings, joined, lead, leadership_of, taken_port
from bullpen.app.login import LoginDiscovery
from bullpen.app.poolmetrics import PoolMetrics
from bullpen.app.sharing import SharedKeys
from bullpen.app.tls import TlsFiles
from bullpen.app.wiring import hosts_of, lab_settings, outside_tokens
from bullpen.audit.events import NoAudit
from bullpen.errors import Refused
from bullpen.identity.tokens import Signer, Tickets
from bullpen.kit.clock import SystemClock
from bullpen.kit.ids import RandomIds
from bullpen.runtime.connections import Door
from bullpen.services.grpc.recording import CallRecorder
from bullpen.services.grpc.server import GrpcServer, Tls
from bullpen.services.routing import Routers

NAME = "bullpen-controller"


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerSettings:
    """The command line of ``bullpen controller``."""

    join: JoinSettings = field(default_factory=JoinSettings)
    port: int = 8082
    endpoint: str = ""
    """Its address for clients and exporters, as ``host:port``; by default, where it listens."""

    login_port: int = 8086
    """A negative port disables login discovery."""

    tls: TlsFiles | None = None
    """An external certificate; without one, our own authority issues it."""

    config: Config = field(default_factory=Config)


@dataclass(frozen=True, slots=True, kw_only=True)
class Keys:
    """Keys that all replicas share."""

    signer: Signer
    tickets: Tickets
    ca_pem: bytes
    server: Pair


async def run(settings: ControllerSettings, *, announce: Callable[[str], None]) -> None:
    """Stand by or lead until SIGTERM or SIGINT; raises if the leadership is lost."""
    clock = SystemClock()
    async with joined(settings.join, manager=NAME, clock=clock) as here:
        announce(f"Standing by for {NAME} in namespace {here.namespace}.")
        await lead(
            leadership_of(NAME, here, clock), here, lambda: _serving(settings, here, announce)
        )


@contextlib.asynccontextmanager
async def _serving(
    settings: ControllerSettings, here: Joined, announce: Callable[[str], None]
) -> AsyncIterator[str]:
    """Everything a leader does; yields a description once it is ready."""
    clock, ids = SystemClock(), RandomIds()
    keys = await _keys(settings, here, now=clock.now())
    grpc = _grpc(settings, keys.server)
    endpoint = settings.endpoint or f"{_host(settings)}:{grpc.port}"
    routers = Routers(clock=clock)
    async with contextlib.AsyncExitStack() as stack:
        running = await stack.enter_async_context(
            lab.running(
                here.objects,
                replace(
                    lab_settings(settings.config, endpoint=endpoint, ca_pem=keys.ca_pem),
                    authority_home=settings.join.watch_namespace or here.namespace,
                ),
                signer=keys.signer,
                outside=outside_tokens(settings.config, clock),
                tickets=keys.tickets,
                routers=routers,
                provisioners=None,
                clock=clock,
                ids=ids,
                chance=random.SystemRandom(),
            )
        )
        await stack.enter_async_context(
            grpc.serving(running.callers, running.controller, running.client)
        )
        if settings.login_port >= 0:
            discovery = LoginDiscovery(_discovery(settings, here, keys, endpoint))
            listener = taken_port(settings.join.listen, settings.login_port)
            stack.callback(listener.close)
            door = Door("login", _shares(settings).login)
            await stack.enter_async_context(serving(discovery, listener, None, door=door))
        for metrics in (PoolMetrics(running.views.sets.all), FaultMetrics(running.views.faults)):
            here.health.collectors.register(metrics)
            stack.callback(here.health.collectors.unregister, metrics)
        announce(f"Leading at {endpoint}.")
        yield f"leading at {endpoint}"


def _shares(settings: ControllerSettings) -> Shares:
    return descriptors.shares(descriptors.raise_limit(), settings.config.connections)


async def _keys(settings: ControllerSettings, here: Joined, *, now: datetime) -> Keys:
    shared = SharedKeys(here.objects, here.namespace)
    async with asyncio.TaskGroup() as tasks:
        signing = tasks.create_task(shared.signing_keys())
        stream = tasks.create_task(shared.stream_key())
    if settings.tls is not None:
        ca_pem, server = settings.tls.read()
    else:
        authority = await shared.authority(now=now)
        ca_pem = authority.certificate
        server = issuing.issue(authority, hosts_of(_host(settings)), now=now)
    return Keys(
        signer=Signer(signing.result()),
        tickets=Tickets(stream.result()),
        ca_pem=ca_pem,
        server=server,
    )


def _grpc(settings: ControllerSettings, server: Pair) -> GrpcServer:
    address = f"{settings.join.listen}:{settings.port}"
    # The cluster's own audit log records the writes of this process.
    recorder = CallRecorder(NoAudit(), clock=SystemClock(), ids=RandomIds())
    tls = Tls(chain=server.certificate, key=server.key)
    try:
        return GrpcServer(
            address=address, tls=tls, recorder=recorder, bounds=_shares(settings).controller
        )
    except RuntimeError:
        raise Refused(f"{address} cannot be used; choose another --listen or --port") from None


def _host(settings: ControllerSettings) -> str:
    """The host name that clients use, without the port."""
    if settings.endpoint:
        return settings.endpoint.rpartition(":")[0].strip("[]") or settings.endpoint
    listen = settings.join.listen
    return "127.0.0.1" if listen in ("0.0.0.0", "::") else listen


def _discovery(settings: ControllerSettings, here: Joined, keys: Keys, endpoint: str) -> Document:
    """What ``jmp login`` needs to know."""
    return {
        "grpcEndpoint": endpoint,
        "namespace": settings.join.watch_namespace or here.namespace,
        "caBundle": base64.b64encode(keys.ca_pem).decode(),
        "oidc": [
            {"issuer": item.issuer, "clientId": item.client_id, "audiences": item.audiences}
            for item in settings.config.oidc
        ],
    }
