"""``bullpen controller``: leases, exporters, clients, credentials and their gRPC services.

For a Kubernetes cluster, which stores the objects, the keys and the leadership. Several
replicas may run; one leads and serves. Routers and provisioners are other processes.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from bullpen.app import controllers, process
from bullpen.app.aggregation import serving_removals
from bullpen.app.cluster_process import (
    Joined,
    JoinSettings,
    joined,
    lead,
    leadership_of,
    taken_port,
)
from bullpen.app.config import Config
from bullpen.app.httpserver import serving
from bullpen.app.lab import Keys, Lab, LabSettings, Role, scopes_of
from bullpen.app.lease_metrics import LeaseMetrics
from bullpen.app.login import LoginDiscovery, discovery, outside_tokens
from bullpen.app.metrics import WebhookMetrics, lab_metrics
from bullpen.app.process import Shares
from bullpen.app.services import Services, pool_loads
from bullpen.app.sources import Sources
from bullpen.app.tracing import TracingSettings, tracing
from bullpen.audit.events import NoAudit
from bullpen.cluster import reviews
from bullpen.cluster.leader_label import LeaderLabel
from bullpen.datadir import certificates
from bullpen.datadir.certificates import Pair, TlsFiles, hosts_of
from bullpen.datadir.keys import SharedKeys
from bullpen.errors import Refused
from bullpen.identity.tokens import Signer, Tickets
from bullpen.runtime.connections import PortConnections
from bullpen.services.grpc.external_scaler import ExternalScalerServicer, ScalerServer
from bullpen.services.grpc.recording import CallRecorder
from bullpen.services.grpc.server import GrpcServer, Tls
from bullpen.services.pool_loads import PoolLoads
from bullpen.services.traces import Traces

NAME = "bullpen-controller"
"""The leadership, and the value of the label of the leader's Pod."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerSettings:
    """The command line of ``bullpen controller``."""

    join: JoinSettings = field(default_factory=JoinSettings)
    port: int = 8082
    endpoint: str = ""
    """Its address for clients and exporters, as ``host:port``; by default, where it listens."""

    login_port: int = 8086
    """A negative port disables login discovery."""

    scaler_port: int = 8085
    scaler_client_ca: Path | None = None
    """The CA of the client certificates of KEDA; without one, its port is not served."""

    api_port: int = -1
    """Of the server behind the APIService, for removal by name; a negative port serves none."""

    pod: str = ""
    """The Pod of this process, which is labelled while it leads; empty outside a Pod."""

    tls: TlsFiles | None = None
    """An external certificate; without one, our own authority issues it."""

    tracing: TracingSettings = field(default_factory=TracingSettings)
    config: Config = field(default_factory=Config)


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """The keys and certificates of the lab, which all replicas share."""

    keys: Keys
    ca_pem: bytes
    server: Pair


async def run(settings: ControllerSettings, *, announce: Callable[[str], None]) -> None:
    """Stand by or lead until SIGTERM or SIGINT; raises if the leadership is lost."""
    sources = Sources.real()
    async with (
        joined(settings.join, manager=NAME, clock=sources.clock, scopes=scopes_of) as here,
        tracing(settings.tracing, "bullpen", clock=sources.clock) as traces,
    ):
        announce(f"Standing by for {NAME} in namespace {here.namespace}.")
        await lead(
            leadership_of(NAME, here, sources.clock),
            here,
            lambda: _serving(settings, here, sources, announce, traces),
            label=LeaderLabel(
                here.objects, namespace=here.namespace, pod=settings.pod, leadership=NAME
            ),
        )


@contextlib.asynccontextmanager
async def _serving(
    settings: ControllerSettings,
    here: Joined,
    sources: Sources,
    announce: Callable[[str], None],
    traces: Traces | None,
) -> AsyncIterator[str]:
    """Everything a leader does; yields a description once it is ready."""
    identity = await _identity(settings, here, sources)
    grpc = _grpc(settings, identity.server, sources)
    endpoint = settings.endpoint or f"{_host(settings)}:{grpc.port}"
    home = settings.join.watch_namespace or here.namespace
    lab = Lab(
        here.objects,
        replace(
            LabSettings.of(settings.config, endpoint=endpoint, ca_pem=identity.ca_pem),
            authority_home=home,
        ),
        sources,
        role=Role.LEASES,
        keys=identity.keys,
        traces=traces,
    )
    services = Services.of(lab)
    loads = pool_loads(lab) if settings.scaler_client_ca is not None else None
    counted = (
        *lab_metrics(lab.views, providers=False),
        LeaseMetrics(lab.views, lab.lease_counter, clock=sources.clock),
        WebhookMetrics(lab.webhooks),
    )
    async with (
        lab.running(controllers.LEASES),
        grpc.serving(services.callers, services.controller, services.client, services.claim_calls),
        _login(settings, identity, endpoint, namespace=home),
        _scaler(settings, here, identity, loads),
        _removals(settings, here, sources),
    ):
        with here.health.counting(counted):
            announce(f"Leading at {endpoint}.")
            yield f"leading at {endpoint}"


@contextlib.asynccontextmanager
async def _login(
    settings: ControllerSettings, identity: Identity, endpoint: str, *, namespace: str
) -> AsyncIterator[None]:
    """Answer login discovery while the context is open, unless it is disabled."""
    if settings.login_port < 0:
        yield
        return
    found = discovery(
        settings.config, endpoint=endpoint, namespace=namespace, ca_pem=identity.ca_pem
    )
    with contextlib.closing(taken_port(settings.join.listen, settings.login_port)) as listener:
        connections = PortConnections("login", _shares(settings).login)
        async with serving(LoginDiscovery(found), listener, None, connections=connections):
            yield


@contextlib.asynccontextmanager
async def _scaler(
    settings: ControllerSettings, here: Joined, identity: Identity, loads: PoolLoads | None
) -> AsyncIterator[None]:
    """Answer KEDA while the context is open, if enabled; the cluster decides about its rights."""
    if settings.scaler_client_ca is None or loads is None:
        yield
        return
    address = f"{settings.join.listen}:{settings.scaler_port}"
    try:
        server = ScalerServer(
            address=address,
            tls=Tls(chain=identity.server.certificate, key=identity.server.key),
            authorities=settings.scaler_client_ca.read_bytes(),
            bounds=_shares(settings).scaler,
        )
    except OSError as error:
        raise Refused(f"{error.filename} cannot be read: {error.strerror}") from None
    except RuntimeError:
        raise Refused(f"{address} cannot be used; choose another --scaler-port") from None
    servicer = ExternalScalerServicer(loads, partial(reviews.allows, here.objects))
    async with server.serving(servicer):
        yield


def _removals(
    settings: ControllerSettings, here: Joined, sources: Sources
) -> AbstractAsyncContextManager[None]:
    """Answer removals of members by name, unless disabled."""
    if settings.api_port < 0:
        return contextlib.nullcontext()
    return serving_removals(
        here,
        listen=settings.join.listen,
        port=settings.api_port,
        bounds=_shares(settings).api,
        now=sources.clock.now(),
    )


def _shares(settings: ControllerSettings) -> Shares:
    return process.connection_shares(process.raise_descriptor_limit(), settings.config.connections)


async def _identity(settings: ControllerSettings, here: Joined, sources: Sources) -> Identity:
    shared, now = SharedKeys(here.objects, here.namespace), sources.clock.now()
    async with asyncio.TaskGroup() as tasks:
        signing = tasks.create_task(shared.signing_keys())
        stream = tasks.create_task(shared.stream_key())
    if settings.tls is not None:
        ca_pem, server = settings.tls.read()
    else:
        authority = await shared.authority(now=now)
        ca_pem = authority.certificate
        server = certificates.issue(authority, hosts_of(_host(settings)), now=now)
    keys = Keys(
        signer=Signer(signing.result()),
        tickets=Tickets(stream.result()),
        outside=outside_tokens(settings.config, sources.clock),
    )
    return Identity(keys=keys, ca_pem=ca_pem, server=server)


def _grpc(settings: ControllerSettings, server: Pair, sources: Sources) -> GrpcServer:
    address = f"{settings.join.listen}:{settings.port}"
    # The cluster's own audit log records the writes of this process.
    recorder = CallRecorder(NoAudit(), clock=sources.clock, ids=sources.ids)
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
