"""Hosts an ASGI application with uvicorn, over TLS, under our own lifecycle."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import uvicorn

from bullpen.app.certificates import Certificates
from bullpen.app.peercerts import PeerCertificateProtocol

BACKLOG = 2048
KEEP_ALIVE_SECONDS = 60
DRAIN_SECONDS = 2
"""How long answers in progress may take once we stop."""


class _Server(uvicorn.Server):
    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.up = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.up.set()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        # Signals belong to app.up, which stops the parts in order.
        yield


def bind(host: str, port: int) -> socket.socket:
    """A listening address taken early, so that a port in use is known before anything starts."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # Named, because asyncio turns off waiting for more to send only where it sees TCP.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError:
        listener.close()
        raise
    return listener


@contextlib.asynccontextmanager
async def serving(
    application: Any,
    listener: socket.socket,
    certificates: Certificates | None,
    client_ca: Path | None = None,
) -> AsyncIterator[None]:
    """Serve while the context is open; on exit finish what is in progress, then stop.

    With ``client_ca`` clients may show a certificate of one of its authorities.
    """
    config = uvicorn.Config(
        application,
        loop="none",
        http=PeerCertificateProtocol if client_ca else "httptools",
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        backlog=BACKLOG,
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=DRAIN_SECONDS,
        ssl_certfile=certificates.server_chain if certificates else None,
        ssl_keyfile=certificates.server_key if certificates else None,
        ssl_ca_certs=str(client_ca) if client_ca else None,
        ssl_cert_reqs=ssl.CERT_OPTIONAL if client_ca else ssl.CERT_NONE,
    )
    server = _Server(config)
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(server.serve(sockets=[listener]))
        try:
            await server.up.wait()
            yield
        finally:
            server.should_exit = True
