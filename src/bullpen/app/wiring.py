"""Puts the parts of the embedded home together. Nothing here decides anything."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import random
import socket
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path

from bullpen import __version__
from bullpen.api.crds import served_crds
from bullpen.api.document import Document, decode
from bullpen.api.lease import Lease
from bullpen.api.resources import RESOURCES
from bullpen.apiserver.asgi import Asgi
from bullpen.apiserver.auth import Role, TokenTable
from bullpen.apiserver.service import ApiService
from bullpen.app import certificates, credentials, keys
from bullpen.app.datadir import Layout
from bullpen.app.files import PUBLIC, SECRET, write_atomically
from bullpen.app.httpserver import bind, serving
from bullpen.app.lab import LabSettings
from bullpen.app.lab import running as running_lab
from bullpen.errors import BadRequest, Refused
from bullpen.identity.tokens import Signer, Tickets
from bullpen.kit.clock import Clock
from bullpen.kit.ids import Ids
from bullpen.registry.garbage import GarbageCollector
from bullpen.registry.objects import RegistryObjects
from bullpen.registry.options import PatchType, WriteOptions
from bullpen.registry.registry import Registry
from bullpen.services import routing
from bullpen.services.grpc.server import GrpcServer, Tls
from bullpen.services.router.server import Router, tls_context
from bullpen.services.routing import Routers
from bullpen.store.sqlite import SqliteStore

log = logging.getLogger("bullpen.app")

FIELD_MANAGER = "bullpen"
NAMESPACES = ("default", "kube-system")


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What ``bullpen up`` was told."""

    data: Path
    listen: str = "127.0.0.1"
    port_base: int = 8080
    """Each listener is at a fixed distance from it; 0 takes free ports."""

    manifests: tuple[Path, ...] = ()

    def port(self, offset: int) -> int:
        return self.port_base + offset if self.port_base else 0


API_PORT_OFFSET = 0
CONTROLLER_PORT_OFFSET = 2
ROUTER_PORT_OFFSET = 3
"""As upstream's: with the default base these are 8082 and 8083."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    """A service that answers."""

    registry: Registry
    endpoints: Document


@contextlib.asynccontextmanager
async def running(
    settings: Settings, layout: Layout, *, clock: Clock, ids: Ids, chance: random.Random
) -> AsyncIterator[Running]:
    """Start everything in order; stop it in the opposite order."""
    listener = _bind(settings.listen, settings.port(API_PORT_OFFSET), "the API server")
    store = await SqliteStore.open(layout.database)
    try:
        registry = Registry(store, clock=clock, ids=ids)
        await prepare(registry)
        certs = certificates.ensure(layout.pki, _hosts(settings.listen), now=clock.now())
        tokens = credentials.ensure_tokens(layout.tokens)
        service = ApiService(
            registry,
            resources=RESOURCES,
            clock=clock,
            authenticators=(TokenTable({t: credentials.USERS[r] for r, t in tokens.items()}),),
            version=__version__,
        )
        async with contextlib.AsyncExitStack() as stack:
            tasks = await stack.enter_async_context(asyncio.TaskGroup())
            collecting = tasks.create_task(GarbageCollector(registry).run())
            stack.callback(collecting.cancel)
            grpc = GrpcServer(
                address=_address(settings.listen, settings.port(CONTROLLER_PORT_OFFSET)),
                tls=Tls(chain=certs.server_chain.read_bytes(), key=certs.server_key.read_bytes()),
            )
            endpoint = _address(_reachable(settings.listen), grpc.port)
            tickets = Tickets(keys.stream_key(layout.stream_key))
            routers = Routers()
            router = Router(tickets, clock=clock)
            streams = _bind(settings.listen, settings.port(ROUTER_PORT_OFFSET), "the router")
            router_endpoint = _address(_reachable(settings.listen), streams.getsockname()[1])
            context = tls_context(str(certs.server_chain), str(certs.server_key))
            await stack.enter_async_context(router.serving(streams, context))
            routers.add(routing.Router(router_endpoint, lambda: router.load))
            lab = await stack.enter_async_context(
                running_lab(
                    RegistryObjects(registry, manager=FIELD_MANAGER),
                    LabSettings(endpoint=endpoint, ca_pem=certs.ca_pem().decode()),
                    signer=Signer(keys.signing_keys(layout.signing_keys)),
                    tickets=tickets,
                    routers=routers,
                    clock=clock,
                    ids=ids,
                    chance=chance,
                )
            )
            lab.views.leases.listen(_fencing(router))
            await stack.enter_async_context(grpc.serving(lab.controller, lab.client))
            await stack.enter_async_context(serving(Asgi(service), listener, certs))
            endpoints = _publish(
                settings,
                layout,
                certs,
                tokens,
                listener,
                controller=endpoint,
                router=router_endpoint,
            )
            # Watchers are told first, so that their streams end by themselves.
            stack.callback(service.close)
            yield Running(registry=registry, endpoints=endpoints)
    finally:
        await store.close()


async def prepare(registry: Registry) -> None:
    """What is there before anybody asks: namespaces, and the CRDs we implement."""
    await registry.ensure_namespaces(NAMESPACES)
    for crd in served_crds():
        await _apply(registry, crd, force=True)


async def apply_manifests(registry: Registry, documents: tuple[Document, ...]) -> list[str]:
    """Server-side apply each document, in order; the names of what was applied."""
    return [await _apply(registry, document, force=True) for document in documents]


async def _apply(registry: Registry, document: Document, *, force: bool) -> str:
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
        WriteOptions(field_manager=FIELD_MANAGER, force=force),
    )
    return f"{resource.singular}/{decode(written.value)['metadata']['name']}"


def _bind(host: str, port: int, what: str) -> socket.socket:
    try:
        return bind(host, port)
    except OSError as error:
        raise Refused(
            f"{host}:{port} cannot be used for {what}: {error.strerror};"
            " choose another --listen or --port-base (0 takes free ports)"
        ) from None


def _hosts(listen: str) -> tuple[str, ...]:
    """The names clients may use for this machine."""
    names = {"localhost", "127.0.0.1", "::1", socket.gethostname()}
    if listen not in ("0.0.0.0", "::"):
        names.add(listen)
    return tuple(sorted(names))


def _fencing(router: Router) -> Callable[[Lease | None, Lease | None], None]:
    """Cut a lease's streams the moment it ends, is deleted, or changes hands."""

    def changed(old: Lease | None, new: Lease | None) -> None:
        lease = old or new
        assert lease is not None
        if new is None or new.status.ended:
            router.fence(lease.metadata.uid, lease.status.epoch)

    return changed


def _reachable(listen: str) -> str:
    """A host clients on this machine can use for a listen address."""
    return "127.0.0.1" if listen in ("0.0.0.0", "::") else listen


def _address(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _publish(
    settings: Settings,
    layout: Layout,
    certs: certificates.Certificates,
    tokens: dict[Role, str],
    listener: socket.socket,
    *,
    controller: str,
    router: str,
) -> Document:
    """Write how to reach us; ``endpoints.json`` last, because it means ready."""
    server = f"https://{_address(_reachable(settings.listen), listener.getsockname()[1])}"
    ca_pem = certs.ca_pem()
    paths = {Role.ADMIN: layout.kubeconfig, Role.VIEW: layout.kubeconfig_view}
    for role, path in paths.items():
        content = credentials.kubeconfig(
            server=server, ca_pem=ca_pem, user=credentials.USERS[role].name, token=tokens[role]
        )
        write_atomically(path, content, mode=SECRET)
    endpoints: Document = {
        "apiserver": server,
        "controller": controller,
        "router": router,
        "kubeconfig": str(layout.kubeconfig),
        "ca": str(certs.ca),
    }
    write_atomically(layout.endpoints, json.dumps(endpoints, indent=2) + "\n", mode=PUBLIC)
    return endpoints
