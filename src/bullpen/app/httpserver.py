"""Hosts an ASGI application with uvicorn, over TLS, under our own lifecycle.

``runtime.connections`` accepts and limits the connections. The headers of a request have a
deadline and a maximum size, which uvicorn's parser lacks.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from bullpen.datadir.certificates import Certificates
from bullpen.runtime.connections import AcceptedConnection, PortConnections, accepting

KEEP_ALIVE_SECONDS = 60
HEAD_SECONDS_MAX = 10.0
"""From the first byte, or from the connection, to the end of a request's headers."""

HEAD_BYTES_MAX = 64 * 1024
DRAIN_SECONDS = 2
"""How long responses in progress may take after the stop."""


class _Server(uvicorn.Server):
    def __init__(self, config: uvicorn.Config, certificate_extension: str) -> None:
        super().__init__(config)
        self.up = asyncio.Event()
        self._certificate_extension = certificate_extension

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Open no listeners: ``serving`` accepts the connections."""
        await self.lifespan.startup()
        self.servers = []
        self.started = True
        self.up.set()

    def protocol(self, accepted: AcceptedConnection) -> asyncio.Protocol:
        """The HTTP protocol of one connection."""
        return _Protocol(
            accepted,
            self._certificate_extension,
            config=self.config,
            server_state=self.server_state,
            app_state=self.lifespan.state,
        )

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        # ``app.up`` handles signals and stops the parts in order.
        yield


class _Protocol(HttpToolsProtocol):
    """One connection: busy from the end of a request's headers to the end of its response.

    uvicorn does not pass on client certificates; this protocol puts the one that the handshake
    has verified into the ``tls`` extension of every request's scope.
    """

    def __init__(
        self, accepted: AcceptedConnection, certificate_extension: str, **settings: Any
    ) -> None:
        super().__init__(**settings)
        self._accepted = accepted
        self._certificate_extension = certificate_extension
        self._certificate = b""
        self._head_bytes = 0
        self._in_head = True
        self._in_body = False
        self._begun = False
        """Whether part of a request's headers has been received."""

        self._deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        tls = transport.get_extra_info("ssl_object")
        if tls is not None and self._certificate_extension:
            self._certificate = tls.getpeercert(binary_form=True) or b""
        self._set_deadline()

    def connection_lost(self, exc: Exception | None) -> None:
        self._clear_deadline()
        self._accepted.left()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._in_head:
            self._set_deadline()
        super().data_received(data)
        if self._in_head:
            self._head_bytes += len(data)
            if self._head_bytes > HEAD_BYTES_MAX and not self.transport.is_closing():
                self.send_400_response("The head of the request is too long.")

    def on_message_begin(self) -> None:
        self._begun = True
        super().on_message_begin()
        if self._certificate:
            found: dict[object, object] = {self._certificate_extension: self._certificate}
            self.scope["extensions"] = {"tls": found}

    def on_headers_complete(self) -> None:
        self._in_head, self._in_body, self._begun = False, True, False
        self._clear_deadline()
        self._accepted.busy()
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        self._in_body = False
        super().on_message_complete()
        if self.cycle.response_complete and not self.pipeline:
            self._await_head()

    def on_response_complete(self) -> None:
        others = bool(self.pipeline)
        super().on_response_complete()
        if others:
            return
        self._accepted.idle()
        if self._in_body:
            # The request was refused before its body was read; the rest of the body has a deadline.
            self._set_deadline()
        else:
            self._await_head()

    def _await_head(self) -> None:
        """The next request may start at any time; once started, its headers have a deadline."""
        self._clear_deadline()
        self._in_head, self._head_bytes = True, 0
        if self._begun:
            self._set_deadline()

    def _set_deadline(self) -> None:
        if self._deadline is None:
            self._deadline = self.loop.call_later(HEAD_SECONDS_MAX, self.transport.abort)

    def _clear_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None


def bind(host: str, port: int) -> socket.socket:
    """Bind a listening address early, so that a port in use is reported before the start."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # The protocol is named, because asyncio sets TCP_NODELAY only where it sees TCP.
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
    *,
    certificate_extension: str = "",
    connections: PortConnections | None = None,
) -> AsyncIterator[None]:
    """Serve while the context is open; on exit, finish requests in progress, then stop.

    With ``client_ca``, clients may present a certificate issued by one of its CAs. The
    application finds it in the ``tls`` extension of the scope, as ``certificate_extension``.
    """
    config = uvicorn.Config(
        application,
        loop="none",
        http="httptools",
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=DRAIN_SECONDS,
        ssl_certfile=certificates.server_chain if certificates else None,
        ssl_keyfile=certificates.server_key if certificates else None,
        ssl_ca_certs=str(client_ca) if client_ca else None,
        ssl_cert_reqs=ssl.CERT_OPTIONAL if client_ca else ssl.CERT_NONE,
    )
    server = _Server(config, certificate_extension)
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(server.serve(sockets=[]))
        try:
            await server.up.wait()
            tls = config.ssl
            async with accepting(
                listener, server.protocol, connections or PortConnections("http"), tls=tls
            ):
                yield
        finally:
            server.should_exit = True
