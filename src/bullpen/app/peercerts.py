"""Passes client certificates from the TLS handshake to the application.

uvicorn does not pass them on. This protocol puts the certificate of the peer, which the
handshake has verified, into the ``tls`` extension of every request's scope.
"""

from __future__ import annotations

import asyncio

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from bullpen.apiserver.asgi import CLIENT_CERTIFICATE


class PeerCertificateProtocol(HttpToolsProtocol):
    """HTTP over TLS, where a client may present a certificate."""

    _certificate: bytes = b""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        tls = transport.get_extra_info("ssl_object")
        if tls is not None:
            self._certificate = tls.getpeercert(binary_form=True) or b""

    def on_message_begin(self) -> None:
        super().on_message_begin()
        if self._certificate:
            self.scope["extensions"] = {"tls": {CLIENT_CERTIFICATE: self._certificate}}
