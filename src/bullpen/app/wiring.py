"""Puts the parts of the embedded home together. Nothing here decides anything."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import socket
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

from bullpen import __version__
from bullpen.api.crds import served_crds
from bullpen.api.document import Document, decode
from bullpen.api.resources import RESOURCES
from bullpen.apiserver.asgi import Asgi
from bullpen.apiserver.auth import Role, TokenTable
from bullpen.apiserver.service import ApiService
from bullpen.app import certificates, credentials
from bullpen.app.datadir import Layout
from bullpen.app.files import PUBLIC, SECRET, write_atomically
from bullpen.app.httpserver import bind, serving
from bullpen.errors import BadRequest, Refused
from bullpen.kit.clock import Clock
from bullpen.kit.ids import Ids
from bullpen.registry.garbage import GarbageCollector
from bullpen.registry.options import PatchType, WriteOptions
from bullpen.registry.registry import Registry
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    """A service that answers."""

    registry: Registry
    endpoints: Document


@contextlib.asynccontextmanager
async def running(
    settings: Settings, layout: Layout, *, clock: Clock, ids: Ids
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
        collector = GarbageCollector(registry)
        async with asyncio.TaskGroup() as tasks:
            collecting = tasks.create_task(collector.run())
            async with serving(Asgi(service), listener, certs):
                endpoints = _publish(settings, layout, certs, tokens, listener)
                yield Running(registry=registry, endpoints=endpoints)
                # Watchers are told first, so that their streams end by themselves.
                service.close()
            collecting.cancel()
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


def _publish(
    settings: Settings,
    layout: Layout,
    certs: certificates.Certificates,
    tokens: dict[Role, str],
    listener: socket.socket,
) -> Document:
    """Write how to reach us; ``endpoints.json`` last, because it means ready."""
    host = "127.0.0.1" if settings.listen in ("0.0.0.0", "::") else settings.listen
    shown = f"[{host}]" if ":" in host else host
    server = f"https://{shown}:{listener.getsockname()[1]}"
    ca_pem = certs.ca_pem()
    paths = {Role.ADMIN: layout.kubeconfig, Role.VIEW: layout.kubeconfig_view}
    for role, path in paths.items():
        content = credentials.kubeconfig(
            server=server, ca_pem=ca_pem, user=credentials.USERS[role].name, token=tokens[role]
        )
        write_atomically(path, content, mode=SECRET)
    endpoints: Document = {
        "apiserver": server,
        "kubeconfig": str(layout.kubeconfig),
        "ca": str(certs.ca),
    }
    write_atomically(layout.endpoints, json.dumps(endpoints, indent=2) + "\n", mode=PUBLIC)
    return endpoints
