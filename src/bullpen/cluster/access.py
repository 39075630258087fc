"""Access to an API server: its address, its CA, and our credentials.

Credentials are read before every request, because they change while a process runs: a
cluster renews the token in a file, the credentials of a plug-in expire.
"""

from __future__ import annotations

import ssl
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from bullpen.errors import Refused

DEFAULT_NAMESPACE = "default"


class Credentials(Protocol):
    async def authorization(self) -> str:
        """The ``Authorization`` header to send now; empty if none is needed."""

    def rejected(self) -> bool:
        """The server rejected the credentials; returns whether a retry may get better ones."""


@dataclass(frozen=True, slots=True)
class Token:
    """A constant token; empty if a client certificate is used instead."""

    token: str = field(default="", repr=False)

    async def authorization(self) -> str:
        return f"Bearer {self.token}" if self.token else ""

    def rejected(self) -> bool:
        return False


class TokenFile:
    """A token in a file that is renewed externally."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._stamp: tuple[int, int] = (0, 0)
        self._token = ""

    async def authorization(self) -> str:
        try:
            found = self._path.stat()
            stamp = (found.st_mtime_ns, found.st_ino)
            if stamp != self._stamp:
                self._token, self._stamp = self._path.read_text().strip(), stamp
        except OSError as error:
            raise Refused(f"the token in {self._path} cannot be read: {error.strerror}") from None
        return f"Bearer {self._token}"

    def rejected(self) -> bool:
        """The file may have been renewed within the resolution of its timestamp."""
        again, self._stamp = self._stamp != (0, 0), (0, 0)
        return again


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    server: str
    tls: ssl.SSLContext
    credentials: Credentials = Token()
    namespace: str = DEFAULT_NAMESPACE
    """The default namespace: that of the Pod, or of the context."""

    server_name: str | None = None
    """The name in the server's certificate, if it is not the host of ``server``."""

    proxy: str | None = None


def show_certificate(context: ssl.SSLContext, certificate: bytes, key: bytes) -> None:
    """Present a client certificate in every handshake from now on."""
    # OpenSSL reads certificates from files only; this one is deleted once it is loaded.
    with tempfile.NamedTemporaryFile() as file:
        file.write(certificate + b"\n" + key)
        file.flush()
        context.load_cert_chain(file.name)
