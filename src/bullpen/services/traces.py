"""What the services tell about a lease while it is served, if it is traced."""

from __future__ import annotations

from datetime import datetime
from typing import Protocol

from bullpen.api.kinds.lease import Lease
from bullpen.core.leases.sessions import Session
from bullpen.runtime.informer import Informer


class Traces(Protocol):
    def follow(self, leases: Informer[Lease]) -> None:
        """Also look at the changes of leases."""

    def requested(self, lease: Lease, *, start: datetime) -> None:
        """A lease was created by a call that began at ``start``; it is not decided yet."""

    def created(self, lease: Lease, *, start: datetime) -> None:
        """The call that created the lease is answered."""

    def dialled(self, lease: Lease, *, start: datetime) -> None:
        """A call to connect, which began at ``start``, is answered."""

    def first_byte(self, session: Session) -> None:
        """The first byte from the exporter was passed on."""
