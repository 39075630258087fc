"""Writes the files users need: kubeconfigs, a client config, and the readiness marker."""

from __future__ import annotations

import asyncio
import json

from bullpen.api.client import Client
from bullpen.api.document import Document
from bullpen.app.clientconfig import client_config
from bullpen.app.credentials import USERS, Role, kubeconfig
from bullpen.app.datadir import Layout
from bullpen.app.embedded import Running
from bullpen.app.files import PUBLIC, SECRET, write_atomically
from bullpen.app.initial_objects import apply
from bullpen.controllers.exporters.credentials import token_of
from bullpen.controllers.views import Views
from bullpen.errors import TimedOut
from bullpen.identity import subjects

NAMESPACE, CLIENT = "default", "default"
CREDENTIAL_SECONDS_MAX = 10.0


async def publish(running: Running, layout: Layout) -> Document:
    """Write every file a user needs; ``endpoints.json`` last, because it signals readiness."""
    _write_kubeconfigs(running, layout)
    await _write_client(running, layout)
    endpoints: Document = {
        **running.endpoints,
        "kubeconfig": str(layout.kubeconfig),
        "client": str(layout.client_config),
        "ca": str(running.certificates.ca),
    }
    write_atomically(layout.endpoints, json.dumps(endpoints, indent=2) + "\n", mode=PUBLIC)
    return endpoints


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
