"""The embedded home, ``bullpen up``: storage, API server, lab and router in one process."""

from __future__ import annotations

import asyncio
import contextlib
import re
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from prometheus_client.registry import Collector

from bullpen import __version__
from bullpen.api.resources import RESOURCES
from bullpen.apiserver.asgi import CLIENT_CERTIFICATE, Asgi
from bullpen.apiserver.authentication import (
    Authenticator,
    OidcTokens,
    ServiceAccountTokens,
    TokenTable,
)
from bullpen.apiserver.service import ApiService
from bullpen.app import controllers, process
from bullpen.app.config import Config
from bullpen.app.dashboard import DashboardParts, Shown, front_door
from bullpen.app.httpserver import bind, serving
from bullpen.app.initial_objects import FIELD_MANAGER, create_initial_objects
from bullpen.app.lab import Keys, Lab, LabSettings
from bullpen.app.lease_metrics import LeaseMetrics
from bullpen.app.login import LoginDiscovery, code_flow, discovery, outside_tokens
from bullpen.app.metrics import AuditMetrics, ConnectionMetrics, WebhookMetrics, lab_metrics
from bullpen.app.placements import local_disks, local_placement, provisioners_of
from bullpen.app.process import Shares
from bullpen.app.router_metrics import RouterMetrics
from bullpen.app.services import LabTokens, Services, pool_loads
from bullpen.app.sources import Sources
from bullpen.app.tracing import LeaseTraces, TracingSettings, tracing
from bullpen.audit.events import AuditSink, NoAudit
from bullpen.audit.log import AuditLog
from bullpen.core.rbac.authorization import AccessIndex, Attributes, User
from bullpen.dashboard.audit_trail import AuditTrail
from bullpen.dashboard.own_machine import OwnMachine
from bullpen.dashboard.pages import PREFIX
from bullpen.dashboard.sessions import Sessions
from bullpen.datadir import backups, certificates, credentials, keys, lab_identity
from bullpen.datadir.backups import BackupKeeper, Schedule
from bullpen.datadir.certificates import Certificates, hosts_of, load_certificate
from bullpen.datadir.directory import PUBLIC, Layout, write_atomically
from bullpen.errors import BadRequest, Refused
from bullpen.identity.serviceaccounts import AccountTokens
from bullpen.identity.tokens import Signer, Tickets
from bullpen.placements.local.capacity import host_load
from bullpen.placements.local.placement import LocalPlacement
from bullpen.provisioners import plugins
from bullpen.provisioners.base import Plugin
from bullpen.registry.expiry import EventSweeper
from bullpen.registry.garbage import GarbageCollector
from bullpen.registry.objects import RegistryObjects
from bullpen.registry.registry import Registry
from bullpen.runtime.connections import PortConnections
from bullpen.runtime.loop import supervise
from bullpen.services.grpc.external_scaler import ExternalScalerServicer, ScalerServer
from bullpen.services.grpc.recording import CallRecorder
from bullpen.services.grpc.server import GrpcServer, Tls
from bullpen.services.pool_loads import PoolLoads
from bullpen.services.router.server import Router, tls_context
from bullpen.store.sqlite import SqliteStore

EVERY_ADDRESS = ("0.0.0.0", "::")
HOST = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?|[0-9A-Fa-f:]*:[0-9A-Fa-f:.]*")
"""A host name or an address, not in brackets."""

API, CONTROLLER, ROUTER, SCALER, LOGIN = 0, 2, 3, 5, 6
"""Offset of each port from the base. With the default base, all but those of the API
and the scaler are upstream's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The command line of ``bullpen up``."""

    data: Path
    listen: str = "127.0.0.1"
    port_base: int = 8080
    """0 selects free ports."""

    endpoint: str = ""
    """The host name that other machines use; empty for the address that is listened on."""

    manifests: tuple[Path, ...] = ()
    tracing: TracingSettings = field(default_factory=TracingSettings)
    config: Config = field(default_factory=Config)

    def __post_init__(self) -> None:
        """Raises ``BadRequest`` if clients and exporters would be given no usable address."""
        if self.endpoint and not HOST.fullmatch(self.endpoint):
            raise BadRequest(
                f"--endpoint {self.endpoint} is not a host: give a host name or an address,"
                " without scheme and port"
            )
        if not self.endpoint and self.listen in EVERY_ADDRESS:
            raise BadRequest(
                f"--listen {self.listen} needs --endpoint HOST: the name or address under which"
                " clients and exporters on other machines reach this one"
            )

    def port(self, offset: int) -> int:
        return self.port_base + offset if self.port_base else 0

    @property
    def host(self) -> str:
        """The host name for clients and exporters: in every config and in the certificate."""
        return self.endpoint or self.listen


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    """A running service."""

    registry: Registry
    lab: Lab
    certificates: Certificates
    tokens: dict[credentials.Role, str]
    endpoints: dict[str, str]
    """``apiserver``, ``dashboard``, ``controller``, ``router``, ``login``; perhaps ``scaler``."""

    audit: AuditSink
    sessions: Sessions
    """Of the dashboard."""


@contextlib.asynccontextmanager
async def running(settings: Settings, layout: Layout, sources: Sources) -> AsyncIterator[Running]:
    """Start everything in order; stop it in reverse order."""
    async with contextlib.AsyncExitStack() as stack:
        process = await _Process.opened(stack, settings, layout, sources)
        endpoints = process.endpoints()
        plugged = plugins.load_all()
        placement = await process.make_placement(plugged)
        lab = await process.make_lab(placement, plugged, endpoints)
        services, access = Services.of(lab), lab.access_index
        dashboard = DashboardParts(
            Shown.of(lab),
            history=layout.history,
            audit_trail=AuditTrail(
                layout.audit if process.audit is not None else None, sources.clock
            ),
            code_flow=code_flow(settings.config, process.keys.outside, sources.clock),
        )
        loads = pool_loads(lab) if process.scaler is not None else None
        lab.attach_router(process.router, endpoints["router"])
        await stack.enter_async_context(lab.running(controllers.EMBEDDED))
        counted = (
            *lab_metrics(lab.views),
            LeaseMetrics(lab.views, lab.lease_counter, clock=sources.clock),
            WebhookMetrics(lab.webhooks),
        )
        await process.run_beside("history of pools", dashboard.history.run)
        # The router starts only now: before it knows which leases have ended, it would admit their
        # tokens.
        await process.serve_router()
        await stack.enter_async_context(
            process.grpc.serving(
                services.callers, services.controller, services.client, services.claim_calls
            )
        )
        await process.serve_login(endpoints)
        await process.serve_scaler(loads, access)
        await process.serve_api(lab, services, access, dashboard, counted, placement)
        process.backups.service_ready()
        yield Running(
            registry=process.registry,
            lab=lab,
            certificates=process.certificates,
            tokens=process.tokens,
            endpoints=endpoints,
            audit=process.audit or NoAudit(),
            sessions=dashboard.sessions,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Process:
    """What the process holds besides the lab: files, ports, storage and keys."""

    stack: contextlib.AsyncExitStack
    settings: Settings
    layout: Layout
    sources: Sources
    certificates: Certificates
    tokens: dict[credentials.Role, str]
    listeners: dict[int, socket.socket]
    ports: dict[int, PortConnections]
    registry: Registry
    backups: BackupKeeper
    audit: AuditLog | None
    keys: Keys
    accounts: AccountTokens
    router: Router
    grpc: GrpcServer
    scaler: ScalerServer | None
    """Where KEDA asks how busy pools are, if enabled."""

    @classmethod
    async def opened(
        cls,
        stack: contextlib.AsyncExitStack,
        settings: Settings,
        layout: Layout,
        sources: Sources,
    ) -> _Process:
        """Open everything; nothing answers yet."""
        config, clock = settings.config, sources.clock
        shares = process.connection_shares(process.raise_descriptor_limit(), config.connections)
        certs = certificates.ensure(layout.pki, hosts_of(settings.host), now=clock.now())
        tokens = credentials.ensure_tokens(layout.tokens)
        listeners = {port: _listen(stack, settings, port) for port in (API, ROUTER, LOGIN)}
        store = await backups.open_store(layout)
        stack.push_async_callback(store.close)
        keeper = _backup_keeper(config, layout, store, sources)
        stack.push_async_callback(keeper.finish)
        registry = Registry(store, clock=clock, ids=sources.ids)
        await create_initial_objects(registry)
        audit = _audit(stack, config, layout, sources)
        await _start_background(stack, registry, keeper, sources)
        signing_keys = keys.signing_keys(layout.signing_keys)
        tickets = Tickets(keys.stream_key(layout.stream_key))
        return cls(
            stack=stack,
            settings=settings,
            layout=layout,
            sources=sources,
            certificates=certs,
            tokens=tokens,
            listeners=listeners,
            ports=_ports(shares),
            registry=registry,
            backups=keeper,
            audit=audit,
            keys=Keys(
                signer=Signer(signing_keys),
                tickets=tickets,
                outside=outside_tokens(config, clock),
            ),
            accounts=AccountTokens(signing_keys),
            router=Router(tickets, clock=clock),
            grpc=GrpcServer(
                address=_address(settings.listen, settings.port(CONTROLLER)),
                tls=_tls(certs),
                recorder=CallRecorder(audit or NoAudit(), clock=clock, ids=sources.ids),
                bounds=shares.controller,
            ),
            scaler=_scaler(settings, layout, certs, shares),
        )

    @property
    def objects(self) -> RegistryObjects:
        return RegistryObjects(self.registry, manager=FIELD_MANAGER)

    def endpoints(self) -> dict[str, str]:
        """Where clients reach each port."""
        host = self.settings.host
        ports = {name: each.getsockname()[1] for name, each in self.listeners.items()}
        scaler = {"scaler": _address(host, self.scaler.port)} if self.scaler is not None else {}
        return {
            **scaler,
            "apiserver": f"https://{_address(host, ports[API])}",
            "dashboard": f"https://{_address(host, ports[API])}{PREFIX}",
            "controller": _address(host, self.grpc.port),
            "router": _address(host, ports[ROUTER]),
            "login": f"http://{_address(host, ports[LOGIN])}",
        }

    async def make_placement(self, found: tuple[Plugin, ...]) -> LocalPlacement:
        """Where the targets of all installed provisioners run: this machine."""
        return await self.stack.enter_async_context(
            local_placement(self.layout.root, self.settings.config, found, self.sources).running()
        )

    async def make_lab(
        self, placement: LocalPlacement, found: tuple[Plugin, ...], endpoints: dict[str, str]
    ) -> Lab:
        """The lab, with every installed provisioner."""
        provisioners = await self.stack.enter_async_context(
            provisioners_of(found, placement, self.objects, self.sources)
        )
        local = {each.name for each in found if each.hosts is None}
        return Lab(
            self.objects,
            LabSettings.of(
                self.settings.config,
                endpoint=endpoints["controller"],
                ca_pem=self.certificates.ca_pem(),
                identity=lab_identity.ensure(self.layout, self.sources.ids),
            ),
            self.sources,
            keys=self.keys,
            provisioners=provisioners,
            sandboxing=dict.fromkeys(local, placement.sandboxing),
            disk_storage=local_disks(self.layout.root),
            traces=await self.make_traces(),
        )

    async def make_traces(self) -> LeaseTraces | None:
        traces = await self.stack.enter_async_context(
            tracing(self.settings.tracing, "bullpen", clock=self.sources.clock)
        )
        if traces is not None:
            self.router.on_first_byte = traces.first_byte
        return traces

    async def run_beside(self, name: str, run: Callable[[], Awaitable[None]]) -> None:
        """Run something until the service stops."""
        tasks = await self.stack.enter_async_context(asyncio.TaskGroup())
        task = tasks.create_task(supervise(name, run, retry=self.sources.retry))
        self.stack.callback(task.cancel)

    async def serve_router(self) -> None:
        certs = self.certificates
        tls = tls_context(str(certs.server_chain), str(certs.server_key))
        await self.stack.enter_async_context(
            self.router.serving(self.listeners[ROUTER], tls, connections=self.ports[ROUTER])
        )

    async def serve_login(self, endpoints: dict[str, str]) -> None:
        found = discovery(
            self.settings.config,
            endpoint=endpoints["controller"],
            router=endpoints["router"],
            namespace="default",
            ca_pem=self.certificates.ca_pem(),
        )
        await self.stack.enter_async_context(
            serving(
                LoginDiscovery(found), self.listeners[LOGIN], None, connections=self.ports[LOGIN]
            )
        )

    async def serve_scaler(self, loads: PoolLoads | None, access: AccessIndex) -> None:
        """Answer KEDA, if enabled; its users have the rights that they have at the API server."""
        if self.scaler is None or loads is None:
            return

        async def allows(user: User, request: Attributes) -> bool:
            return access.decide(user, request).allowed

        servicer = ExternalScalerServicer(loads, allows)
        await self.stack.enter_async_context(self.scaler.serving(servicer))

    async def serve_api(
        self,
        lab: Lab,
        services: Services,
        access: AccessIndex,
        dashboard: DashboardParts,
        counted: Iterable[Collector],
        placement: LocalPlacement,
    ) -> None:
        authenticators = self._authenticators(lab, services)
        service = ApiService(
            self.registry,
            resources=RESOURCES,
            clock=self.sources.clock,
            authenticators=authenticators,
            version=__version__,
            access=access,
            tokens=self.accounts,
            audit=self.audit,
            ids=self.sources.ids,
            problem=lambda: placement.problem,
            hindrance=services.extensions.refusal,
        )
        guards = [each.guard for each in (self.grpc, self.scaler) if each is not None]
        ports = ConnectionMetrics((*self.ports.values(), *guards))
        for metrics in (*counted, RouterMetrics(self.router), ports):
            service.metrics.collectors.register(metrics)
        if self.audit is not None:
            service.metrics.collectors.register(AuditMetrics(self.audit))
        own = OwnMachine(log=placement.layout.log, capacity=placement.capacity, load=host_load)
        audit = self.audit or NoAudit()
        served = front_door(dashboard, lab, service, services, authenticators, audit, own)
        await self.stack.enter_async_context(
            serving(
                Asgi(served),
                self.listeners[API],
                self.certificates,
                _client_authorities(self.certificates, self.settings.config, self.layout),
                certificate_extension=CLIENT_CERTIFICATE,
                connections=self.ports[API],
            )
        )
        # Watches are closed first, so that their streams end by themselves.
        self.stack.callback(served.close)

    def _authenticators(self, lab: Lab, services: Services) -> tuple[Authenticator, ...]:
        return (
            TokenTable({t: credentials.USERS[r] for r, t in self.tokens.items()}),
            LabTokens(self.keys.signer, services.callers, self.sources.clock),
            ServiceAccountTokens(self.accounts, lab.objects, self.sources.clock),
            OidcTokens(self.keys.outside),
        )


async def _start_background(
    stack: contextlib.AsyncExitStack, registry: Registry, keeper: BackupKeeper, sources: Sources
) -> None:
    """Start what works on the registry by itself."""
    tasks = await stack.enter_async_context(asyncio.TaskGroup())
    parts = {
        "garbage collector": GarbageCollector(registry).run,
        "event expiry": EventSweeper(registry, clock=sources.clock).run,
        "backups": keeper.run,
    }
    for name, run in parts.items():
        stack.callback(tasks.create_task(supervise(name, run, retry=sources.retry)).cancel)


def _audit(
    stack: contextlib.AsyncExitStack, config: Config, layout: Layout, sources: Sources
) -> AuditLog | None:
    """The audit log, unless disabled. It is closed after everything that writes to it."""
    if not config.audit.enabled:
        return None
    audit = AuditLog(layout.audit, config.audit.rotation(), clock=sources.clock)
    audit.start()
    stack.push_async_callback(asyncio.to_thread, audit.close)
    return audit


def _backup_keeper(
    config: Config, layout: Layout, store: SqliteStore, sources: Sources
) -> BackupKeeper:
    found = config.backups
    schedule = Schedule(every=found.interval(), keep=found.keep, max_age=found.age())
    return BackupKeeper(store, layout.backups, schedule, clock=sources.clock)


def _client_authorities(certs: Certificates, config: Config, layout: Layout) -> Path:
    """A file with every CA whose client certificates are accepted."""
    if not config.client_ca_file:
        return certs.ca
    try:
        added = Path(config.client_ca_file).read_bytes()
        load_certificate(added)
    except OSError as error:
        raise Refused(f"{config.client_ca_file} cannot be read: {error.strerror}") from None
    except ValueError:
        raise Refused(f"{config.client_ca_file} holds no certificate in PEM form") from None
    path = layout.pki / "client-ca.crt"
    write_atomically(path, certs.ca_pem() + b"\n" + added, mode=PUBLIC)
    return path


def _tls(certs: Certificates) -> Tls:
    return Tls(chain=certs.server_chain.read_bytes(), key=certs.server_key.read_bytes())


def _scaler(
    settings: Settings, layout: Layout, certs: Certificates, shares: Shares
) -> ScalerServer | None:
    """The port for KEDA, which trusts the same client certificates as the API server."""
    if not settings.config.external_scaler.enabled:
        return None
    return ScalerServer(
        address=_address(settings.listen, settings.port(SCALER)),
        tls=_tls(certs),
        authorities=_client_authorities(certs, settings.config, layout).read_bytes(),
        bounds=shares.scaler,
    )


def _ports(shares: Shares) -> dict[int, PortConnections]:
    return {
        API: PortConnections("apiserver", shares.api),
        ROUTER: PortConnections("router", shares.router),
        LOGIN: PortConnections("login", shares.login),
    }


def _listen(stack: contextlib.AsyncExitStack, settings: Settings, offset: int) -> socket.socket:
    """Bind a port before anything starts, so that a port in use is reported at once."""
    port = settings.port(offset)
    try:
        listener = bind(settings.listen, port)
    except OSError as error:
        raise Refused(
            f"{_address(settings.listen, port)} cannot be used: {error.strerror};"
            " choose another --listen or --port-base (0 takes free ports)"
        ) from None
    stack.callback(listener.close)
    return listener


def _address(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
