"""Wires the parts of the embedded home. Nothing here decides anything."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import functools
import platform
import random
import socket
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path

from bullpen import __version__
from bullpen.api.crds import served_crds
from bullpen.api.document import Document, decode
from bullpen.api.resources import RESOURCES
from bullpen.apiserver.asgi import Asgi
from bullpen.apiserver.authentication import OidcTokens, ServiceAccountTokens, TokenTable
from bullpen.apiserver.service import ApiService
from bullpen.app import backups, certificates, credentials, descriptors, keys
from bullpen.app.access import access_index, ensure_policy
from bullpen.app.auditmetrics import AuditMetrics
from bullpen.app.backups import BackupKeeper, Schedule
from bullpen.app.certificates import Certificates
from bullpen.app.config import Config, PoolConfig, SandboxConfig
from bullpen.app.datadir import Layout
from bullpen.app.descriptors import ConnectionMetrics
from bullpen.app.faultmetrics import FaultMetrics
from bullpen.app.fetching import fetcher
from bullpen.app.files import PUBLIC, write_atomically
from bullpen.app.httpserver import bind, serving
from bullpen.app.issuing import load as load_certificate
from bullpen.app.lab import BACKOFF, Lab, LabSettings
from bullpen.app.lab import running as running_lab
from bullpen.app.login import LoginDiscovery
from bullpen.app.poolmetrics import PoolMetrics
from bullpen.audit.events import AuditSink, NoAudit
from bullpen.audit.log import AuditLog
from bullpen.controllers.pools.pool_observer import Tuning
from bullpen.core.pools.members import PATIENCE
from bullpen.core.pools.start_throttle import START_THROTTLE
from bullpen.errors import BadRequest, Refused
from bullpen.identity.oidc import Issuer, NamespaceRule, OutsideTokens
from bullpen.identity.serviceaccounts import AccountTokens
from bullpen.identity.tokens import Signer, Tickets
from bullpen.kit.clock import Clock
from bullpen.kit.ids import Ids
from bullpen.placements.local.capacity import host_limits
from bullpen.placements.local.confinement import Sandboxing
from bullpen.placements.local.connection import ZygoteSettings
from bullpen.placements.local.host_sandbox import SandboxSettings
from bullpen.placements.local.placement import LocalPlacement, LocalSettings
from bullpen.provisioners import plugins
from bullpen.provisioners.base import Host, Plugin, Provisioner
from bullpen.provisioners.placed import PlacedProvisioner
from bullpen.registry.expiry import EventSweeper
from bullpen.registry.garbage import GarbageCollector
from bullpen.registry.objects import RegistryObjects
from bullpen.registry.options import PatchType, WriteOptions
from bullpen.registry.registry import Registry
from bullpen.runtime.connections import Door
from bullpen.runtime.supervision import supervise
from bullpen.services import routing
from bullpen.services.grpc.client import LabelSettings
from bullpen.services.grpc.recording import CallRecorder
from bullpen.services.grpc.server import GrpcServer, Tls
from bullpen.services.router.fencing import fencing
from bullpen.services.router.server import Router, tls_context
from bullpen.store.sqlite import SqliteStore

FIELD_MANAGER = "bullpen"
NAMESPACES = ("default", "kube-system")

API, CONTROLLER, ROUTER, LOGIN = 0, 2, 3, 6
"""Offset of each port from the base. With the default base, all but the API's are upstream's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The command line of ``bullpen up``."""

    data: Path
    listen: str = "127.0.0.1"
    port_base: int = 8080
    """0 selects free ports."""

    manifests: tuple[Path, ...] = ()
    config: Config = field(default_factory=Config)

    def port(self, offset: int) -> int:
        return self.port_base + offset if self.port_base else 0

    @property
    def host(self) -> str:
        """The host name for clients on this machine."""
        return "127.0.0.1" if self.listen in ("0.0.0.0", "::") else self.listen


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """The sources of time, randomness and ids."""

    clock: Clock
    ids: Ids
    chance: random.Random


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    """A running service."""

    registry: Registry
    lab: Lab
    certificates: Certificates
    tokens: dict[credentials.Role, str]
    endpoints: dict[str, str]
    """``apiserver``, ``controller``, ``router`` and ``login``."""

    audit: AuditSink


@contextlib.asynccontextmanager
async def running(settings: Settings, layout: Layout, world: World) -> AsyncIterator[Running]:
    """Start everything in order; stop it in reverse order."""
    shares = descriptors.shares(descriptors.raise_limit(), settings.config.connections)
    doors = {
        API: Door("apiserver", shares.api),
        ROUTER: Door("router", shares.router),
        LOGIN: Door("login", shares.login),
    }
    certs = certificates.ensure(layout.pki, hosts_of(settings.host), now=world.clock.now())
    tokens = credentials.ensure_tokens(layout.tokens)
    async with contextlib.AsyncExitStack() as stack:
        listeners = {name: _listen(stack, settings, name) for name in (API, ROUTER, LOGIN)}
        store = await backups.open_store(layout)
        stack.push_async_callback(store.close)
        keeper = _backup_keeper(settings.config, layout, store, world)
        stack.push_async_callback(keeper.finish)
        registry = Registry(store, clock=world.clock, ids=world.ids)
        await prepare(registry)
        objects = RegistryObjects(registry, manager=FIELD_MANAGER)
        await ensure_policy(objects)
        audit = _audit(stack, settings.config, layout, world)
        tasks = await stack.enter_async_context(asyncio.TaskGroup())
        parts = {
            "garbage collector": GarbageCollector(registry).run,
            "event expiry": EventSweeper(registry, clock=world.clock).run,
            "backups": keeper.run,
        }
        retry = functools.partial(BACKOFF.delay, chance=world.chance)
        for name, run in parts.items():
            stack.callback(tasks.create_task(supervise(name, run, retry=retry)).cancel)

        signing_keys = keys.signing_keys(layout.signing_keys)
        signer, accounts = Signer(signing_keys), AccountTokens(signing_keys)
        tickets = Tickets(keys.stream_key(layout.stream_key))
        router = Router(tickets, clock=world.clock)
        grpc = GrpcServer(
            address=_address(settings.listen, settings.port(CONTROLLER)),
            tls=Tls(chain=certs.server_chain.read_bytes(), key=certs.server_key.read_bytes()),
            recorder=CallRecorder(audit or NoAudit(), clock=world.clock, ids=world.ids),
            bounds=shares.controller,
        )
        ports = {name: listener.getsockname()[1] for name, listener in listeners.items()}
        endpoints = {
            "apiserver": f"https://{_address(settings.host, ports[API])}",
            "controller": _address(settings.host, grpc.port),
            "router": _address(settings.host, ports[ROUTER]),
            "login": f"http://{_address(settings.host, ports[LOGIN])}",
        }
        found = plugins.load_all()
        placement = await stack.enter_async_context(
            _placement(settings, layout, world, preload=preloaded(found)).running()
        )
        host = Host(arch=platform.machine())
        provisioners = tuple(PlacedProvisioner(each.recipe(host), placement) for each in found)
        sandboxing = {found.name: placement.sandboxing for found in provisioners}
        outside = outside_tokens(settings.config, world.clock)
        lab = await stack.enter_async_context(
            _lab(
                settings,
                world,
                registry,
                certs,
                signer,
                outside,
                tickets,
                router,
                provisioners,
                endpoints,
                sandboxing,
            )
        )
        access = await stack.enter_async_context(
            access_index(objects, clock=world.clock, retry=retry, faults=lab.views.faults)
        )
        # The router starts only now: before it knows which leases have ended, it would admit their
        # tokens.
        tls = tls_context(str(certs.server_chain), str(certs.server_key))
        await stack.enter_async_context(router.serving(listeners[ROUTER], tls, door=doors[ROUTER]))
        await stack.enter_async_context(grpc.serving(lab.callers, lab.controller, lab.client))
        discovery = LoginDiscovery(_discovery(settings, certs, endpoints))
        await stack.enter_async_context(
            serving(discovery, listeners[LOGIN], None, door=doors[LOGIN])
        )
        service = ApiService(
            registry,
            resources=RESOURCES,
            clock=world.clock,
            authenticators=(
                TokenTable({t: credentials.USERS[r] for r, t in tokens.items()}),
                credentials.LabTokens(signer, lab.callers, world.clock),
                ServiceAccountTokens(accounts, objects, world.clock),
                OidcTokens(outside),
            ),
            version=__version__,
            access=access,
            tokens=accounts,
            audit=audit,
            ids=world.ids,
        )
        service.metrics.collectors.register(PoolMetrics(lab.views.sets.all))
        service.metrics.collectors.register(FaultMetrics(lab.views.faults))
        if audit is not None:
            service.metrics.collectors.register(AuditMetrics(audit))
        service.metrics.collectors.register(ConnectionMetrics((*doors.values(), grpc.guard)))
        client_ca = client_authorities(certs, settings.config, layout)
        await stack.enter_async_context(
            serving(Asgi(service), listeners[API], certs, client_ca, door=doors[API])
        )
        # Watches are closed first, so that their streams end by themselves.
        stack.callback(service.close)
        keeper.service_ready()
        yield Running(
            registry=registry,
            lab=lab,
            certificates=certs,
            tokens=tokens,
            endpoints=endpoints,
            audit=audit or NoAudit(),
        )


@contextlib.asynccontextmanager
async def _lab(
    settings: Settings,
    world: World,
    registry: Registry,
    certs: Certificates,
    signer: Signer,
    outside: OutsideTokens,
    tickets: Tickets,
    router: Router,
    provisioners: tuple[Provisioner, ...],
    endpoints: dict[str, str],
    sandboxing: dict[str, Sandboxing],
) -> AsyncIterator[Lab]:
    routers = routing.Routers(clock=world.clock)
    routers.set_local(routing.Router(endpoints["router"], lambda: router.load))
    async with running_lab(
        RegistryObjects(registry, manager=FIELD_MANAGER),
        lab_settings(settings.config, endpoint=endpoints["controller"], ca_pem=certs.ca_pem()),
        signer=signer,
        outside=outside,
        tickets=tickets,
        routers=routers,
        provisioners=provisioners,
        clock=world.clock,
        ids=world.ids,
        chance=world.chance,
        sandboxing=sandboxing,
    ) as lab:
        fence = fencing(router)
        for lease in lab.views.leases.all():
            fence(None, lease)
        lab.views.leases.listen(fence)
        router.on_session = lab.saw_session
        yield lab


def lab_settings(config: Config, *, endpoint: str, ca_pem: bytes) -> LabSettings:
    """The operator's settings for leases, exporters and pools."""
    return LabSettings(
        endpoint=endpoint,
        ca_pem=ca_pem.decode(),
        retention=config.leases.kept(),
        quotas=config.leases.quotas(),
        stuck_after=config.exporters.stuck(),
        pools=tuning(config.pools),
        labels=LabelSettings(
            hidden=frozenset(config.labels.hidden), deprecated=config.labels.deprecated
        ),
        provisioning=config.provisioning,
    )


def _placement(
    settings: Settings, layout: Layout, world: World, *, preload: tuple[str, ...]
) -> LocalPlacement:
    """The placement of virtual targets: processes of this machine."""
    local = LocalSettings(
        data=layout.root,
        limits=host_limits(instances=settings.config.pools.instances_max),
        zygote=ZygoteSettings(load=preload),
        sandbox=sandbox_settings(settings.config.sandbox),
    )
    return LocalPlacement(local, clock=world.clock, ids=world.ids)


def preloaded(found: Iterable[Plugin]) -> tuple[str, ...]:
    """Driver modules of provisioners, without duplicates."""
    return tuple(dict.fromkeys(module for plugin in found for module in plugin.preload))


def sandbox_settings(config: SandboxConfig) -> SandboxSettings:
    return SandboxSettings(mode=config.mode, first_user=config.first_user, paths=config.paths)


def tuning(config: PoolConfig) -> Tuning:
    return Tuning(
        patience=replace(PATIENCE, boot_max=config.boot()),
        throttle=replace(START_THROTTLE, stop_after=config.start_failures_max),
    )


def _audit(
    stack: contextlib.AsyncExitStack, config: Config, layout: Layout, world: World
) -> AuditLog | None:
    """The audit log, unless disabled. It is closed after everything that writes to it."""
    if not config.audit.enabled:
        return None
    audit = AuditLog(layout.audit, config.audit.rotation(), clock=world.clock)
    audit.start()
    stack.push_async_callback(asyncio.to_thread, audit.close)
    return audit


def client_authorities(certs: Certificates, config: Config, layout: Layout) -> Path:
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


def _backup_keeper(
    config: Config, layout: Layout, store: SqliteStore, world: World
) -> BackupKeeper:
    found = config.backups
    schedule = Schedule(every=found.interval(), keep=found.keep, max_age=found.age())
    return BackupKeeper(store, layout.backups, schedule, clock=world.clock)


def outside_tokens(config: Config, clock: Clock) -> OutsideTokens:
    """The issuers whose tokens are accepted besides our own."""
    issuers = tuple(
        Issuer(
            address=item.issuer,
            audiences=frozenset(item.audiences),
            username_claim=item.username_claim,
            prefix=item.username_prefix,
            namespaces=frozenset(item.namespaces),
            namespace_rules=tuple(
                NamespaceRule(
                    claim=rule.claim, value=rule.value, namespaces=frozenset(rule.namespaces)
                )
                for rule in item.namespace_rules
            ),
            groups_claim=item.groups_claim,
            groups_prefix=item.groups_prefix,
        )
        for item in config.oidc
    )
    fetch = fetcher(item.ca_file for item in config.oidc if item.ca_file)
    return OutsideTokens(issuers, fetch=fetch, clock=clock)


async def prepare(registry: Registry) -> None:
    """Create the initial objects: namespaces, and the CRDs we implement."""
    await registry.ensure_namespaces(NAMESPACES)
    for crd in served_crds():
        await apply(registry, crd)


async def apply(registry: Registry, document: Document) -> str:
    """Server-side apply one document under our own name; returns its ``kind/name``."""
    api_version, kind = str(document.get("apiVersion", "")), str(document.get("kind", ""))
    resource = RESOURCES.of_kind(api_version, kind)
    if resource is None:
        raise BadRequest(f"no kind {kind!r} in version {api_version!r} is served here")
    meta = document.get("metadata") or {}
    namespace = str(meta.get("namespace") or "default") if resource.namespaced else ""
    written = await registry.patch(
        resource,
        namespace,
        str(meta.get("name", "")),
        PatchType.APPLY,
        document,
        WriteOptions(field_manager=FIELD_MANAGER, force=True),
    )
    return f"{resource.singular}/{decode(written.value)['metadata']['name']}"


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


def hosts_of(host: str) -> tuple[str, ...]:
    """The names clients may use for this machine."""
    return tuple(sorted({"localhost", "127.0.0.1", "::1", socket.gethostname(), host}))


def _address(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _discovery(settings: Settings, certs: Certificates, endpoints: dict[str, str]) -> Document:
    """What ``jmp login`` needs to know."""
    return {
        "grpcEndpoint": endpoints["controller"],
        "routerEndpoint": endpoints["router"],
        "namespace": "default",
        "caBundle": base64.b64encode(certs.ca_pem()).decode(),
        "oidc": [
            {"issuer": item.issuer, "clientId": item.client_id, "audiences": item.audiences}
            for item in settings.config.oidc
        ],
    }
