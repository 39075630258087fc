"""``bullpen up``: the whole service in the foreground, until a signal.

When it is ready it writes the files users need: kubeconfigs, a client config, and
``endpoints.json``, which signals readiness.
"""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import signal
from collections.abc import Callable

import uvloop

from bullpen.api import yaml
from bullpen.api.kinds.client import Client
from bullpen.api.paths import Document
from bullpen.app.embedded import Running, Settings, running
from bullpen.app.initial_objects import apply
from bullpen.app.local_audit import applied_event
from bullpen.app.sources import Sources
from bullpen.app.systemd import READY, STOPPING, notify
from bullpen.controllers.exporters.credentials import token_of
from bullpen.controllers.views import Views
from bullpen.dashboard.sign_in import link_path
from bullpen.datadir.credentials import USERS, Role, client_config, kubeconfig
from bullpen.datadir.directory import PUBLIC, SECRET, DataDirectory, Layout, write_atomically
from bullpen.errors import BadRequest, NotFound, TimedOut
from bullpen.identity import subjects

log = logging.getLogger("bullpen.app")

# With its default thresholds, the collector would scan all cached objects too often.
GC_THRESHOLDS = (50_000, 20, 100)


NAMESPACE, CLIENT = "default", "default"
CREDENTIAL_SECONDS_MAX = 10.0


def up(settings: Settings, *, announce: Callable[[Document, list[str]], None]) -> None:
    """Run until SIGTERM or SIGINT. ``announce`` is called once everything is ready."""
    documents = read_manifests(settings)
    with (
        DataDirectory.open(settings.data) as directory,
        asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
    ):
        gc.set_threshold(*GC_THRESHOLDS)
        runner.run(_serve(settings, directory, documents, announce))


def read_manifests(settings: Settings) -> tuple[Document, ...]:
    """Every document of every ``-f``, read before anything starts."""
    documents: list[Document] = []
    for path in settings.manifests:
        try:
            found = yaml.load_manifests(path.read_bytes())
        except FileNotFoundError:
            raise NotFound(f"{path} does not exist") from None
        except OSError as error:
            raise BadRequest(f"{path} cannot be read: {error.strerror}") from None
        if not found:
            raise BadRequest(f"{path} has no objects")
        for document in found:
            if not isinstance(document, dict):
                raise BadRequest(f"{path} contains a document that is not an object")
            for name in ("kind", "apiVersion"):
                if not document.get(name):
                    raise BadRequest(f"{path}: a document has no {name}; is it a manifest?")
            documents.append(document)
    return tuple(documents)


async def _serve(
    settings: Settings,
    directory: DataDirectory,
    documents: tuple[Document, ...],
    announce: Callable[[Document, list[str]], None],
) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    sources = Sources.real()
    async with running(settings, directory.layout, sources) as service:
        applied = []
        for document in documents:
            applied.append(await apply(service.registry, document))
            service.audit.record(applied_event(document, clock=sources.clock, ids=sources.ids))
        endpoints = await publish(service, directory.layout)
        gc.freeze()
        announce(endpoints, applied)
        notify(READY)
        await stop.wait()
        notify(STOPPING)
        log.info("stopping", extra={"key": settings.data})
    log.info("stopped", extra={"key": settings.data})


async def publish(running: Running, layout: Layout) -> Document:
    """Write every file a user needs; ``endpoints.json`` last, because it signals readiness.

    The returned endpoints have the dashboard's one-time link too.
    """
    _write_kubeconfigs(running, layout)
    await _write_client(running, layout)
    endpoints: Document = {
        **running.endpoints,
        "kubeconfig": str(layout.kubeconfig),
        "client": str(layout.client_config),
        "ca": str(running.certificates.ca),
    }
    write_atomically(layout.endpoints, json.dumps(endpoints, indent=2) + "\n", mode=PUBLIC)
    return {**endpoints, "link": _link(running)}


def _link(running: Running) -> str:
    """The address that signs in once at the dashboard, as the administrator. Not for files."""
    secret = running.sessions.issue_link(running.tokens[Role.ADMIN])
    return f"{running.endpoints['apiserver']}{link_path(secret)}"


def _write_kubeconfigs(running: Running, layout: Layout) -> None:
    paths = {Role.ADMIN: layout.kubeconfig, Role.VIEW: layout.kubeconfig_view}
    for role, path in paths.items():
        content = kubeconfig(
            server=running.endpoints["apiserver"],
            ca_pem=running.certificates.ca_pem(),
            user=USERS[role].name,
            token=running.tokens[role],
        )
        write_atomically(path, content, mode=SECRET)


async def _write_client(running: Running, layout: Layout) -> None:
    """A client that exists from the start, so that ``jmp`` works without an administrator."""
    document = {
        "apiVersion": Client.api_version,
        "kind": Client.kind,
        "metadata": {"name": CLIENT, "namespace": NAMESPACE},
    }
    await apply(running.registry, document)
    token = await _token(running.lab.views)
    content = client_config(
        namespace=NAMESPACE,
        name=CLIENT,
        endpoint=running.endpoints["controller"],
        ca_pem=running.certificates.ca_pem(),
        token=token,
    )
    write_atomically(layout.client_config, content, mode=SECRET)


async def _token(views: Views) -> str:
    """The default client's token, as soon as its controller has created it."""
    name = subjects.secret_name(subjects.Role.CLIENT, CLIENT)
    news = asyncio.Event()
    views.secrets.listen(lambda old, new: news.set())
    try:
        async with asyncio.timeout(CREDENTIAL_SECONDS_MAX):
            while not (token := token_of(views.secrets.get(NAMESPACE, name))):
                news.clear()
                await news.wait()
            return token
    except TimeoutError:
        raise TimedOut("the default client got no token; the log says why") from None
