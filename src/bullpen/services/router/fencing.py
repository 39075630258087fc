"""Tells a router which leases have ended, so that it closes their streams."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from bullpen.api.lease import Lease
from bullpen.core.leases import lifecycle


class Fenced(Protocol):
    """The part of a router that fencing uses."""

    def fence(self, lease: str, epoch: int) -> object:
        """Close the lease's streams up to an epoch, and admit no more of them."""


def fencing(router: Fenced) -> Callable[[Lease | None, Lease | None], None]:
    """Close a lease's streams as soon as it ends, is deleted, or goes to another client."""

    def changed(old: Lease | None, new: Lease | None) -> None:
        lease, epoch = new or old, lifecycle.fenced(old, new)
        if lease is not None and epoch is not None:
            router.fence(lease.metadata.uid, epoch)

    return changed
