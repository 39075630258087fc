"""The service's own certificate authority and its server certificate, as files.

Keys are readable by their owner only. ``issuing`` creates the certificates.
"""

from __future__ import annotations

import socket
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from bullpen.app import issuing
from bullpen.app.files import PUBLIC, SECRET, write_atomically
from bullpen.app.issuing import Pair
from bullpen.errors import Refused


@dataclass(frozen=True, slots=True)
class Certificates:
    """The paths of the files; servers load them from there."""

    ca: Path
    server_chain: Path
    server_key: Path

    def ca_pem(self) -> bytes:
        return self.ca.read_bytes()


def hosts_of(host: str) -> tuple[str, ...]:
    """The names clients may use for this machine."""
    return tuple(sorted({"localhost", "127.0.0.1", "::1", socket.gethostname(), host}))


def ensure(directory: Path, hosts: tuple[str, ...], *, now: datetime) -> Certificates:
    """Create missing files; renew certificates that expire or lack one of ``hosts``.

    The authority is created once and kept, because clients pin it.
    """
    found = Certificates(
        ca=directory / "ca.crt",
        server_chain=directory / "server.crt",
        server_key=directory / "server.key",
    )
    ca_key = directory / "ca.key"
    if not found.ca.exists() or not ca_key.exists():
        authority = issuing.make_authority(now=now)
        write_atomically(ca_key, authority.key, mode=SECRET)
        write_atomically(found.ca, authority.certificate, mode=PUBLIC)
    if not _still_good(found, hosts, now=now):
        _issue(found, ca_key, hosts, now=now)
    return found


def _issue(found: Certificates, ca_key: Path, hosts: tuple[str, ...], *, now: datetime) -> None:
    authority = Pair(certificate=found.ca_pem(), key=ca_key.read_bytes())
    try:
        made = issuing.issue(authority, hosts, now=now)
    except ValueError as error:
        raise Refused(f"{ca_key} cannot sign: {error}; restore it from a backup") from None
    write_atomically(found.server_key, made.key, mode=SECRET)
    write_atomically(found.server_chain, made.certificate, mode=PUBLIC)


def _still_good(found: Certificates, hosts: tuple[str, ...], *, now: datetime) -> bool:
    if not found.server_chain.exists() or not found.server_key.exists():
        return False
    try:
        return issuing.serves(found.server_chain.read_bytes(), found.ca_pem(), hosts, now=now)
    except ValueError:
        raise Refused(
            f"{found.server_chain} or {found.ca} is not a certificate;"
            " remove it and restart the service"
        ) from None
