"""The other end of a call's connection, as far as the services need to know it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Peer:
    unreachable: bool = False
    """Its machine stopped answering, and the connection was closed for that reason."""
