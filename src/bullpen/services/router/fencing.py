"""What leases tell a router: whose streams are over."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from bullpen.api.lease import Lease
from bullpen.core.leases import lifecycle


class Fenced(Protocol):
    """A router, seen from here."""

    def fence(self, lease: str, epoch: int) -> object:
        """Cut what the lease has up to an epoch, and admit nothing of it any more."""


def fencing(router: Fenced) -> Callable[[Lease | None, Lease | None], None]:
    """Cut a lease's streams the moment it ends, is deleted, or goes to another client."""

    def changed(old: Lease | None, new: Lease | None) -> None:
        lease, epoch = new or old, lifecycle.fenced(old, new)
        if lease is not None and epoch is not None:
            router.fence(lease.metadata.uid, epoch)

    return changed
