"""Refuses to extend leases and claims past what others have booked."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime

from bullpen.api.fields import Kind
from bullpen.api.kinds.deviceclaim import DeviceClaim
from bullpen.api.kinds.lease import Lease
from bullpen.controllers.labs import Labs
from bullpen.core.claims import claim_lifecycle
from bullpen.core.leases import bookings, lifecycle
from bullpen.core.leases.requests import Lab, Supply
from bullpen.kit import times
from bullpen.kit.clock import Clock
from bullpen.services.dialing import Precondition


class Extensions:
    def __init__(
        self, labs: Labs, supplies: Callable[[str], tuple[Supply, ...]], *, clock: Clock
    ) -> None:
        """``supplies``: what the pools of a namespace could create for bookings."""
        self._labs = labs
        self._supplies = supplies
        self._clock = clock

    def refusal(self, new: Kind, old: Kind) -> str:
        """Why an edit of a lease or claim with kubectl is refused; empty if it is not."""
        try:
            match new, old:
                case Lease(), Lease() if new.spec != old.spec and new.status.exporter_ref:
                    if _later(lifecycle.expires_at(new), lifecycle.expires_at(old)):
                        until = {new.metadata.name: lifecycle.expires_at(new)}
                        self.check(new.metadata.namespace, until)
                case DeviceClaim(), DeviceClaim() if new.spec.duration > old.spec.duration:
                    self.check_claim(new)
        except Precondition as refused:
            return str(refused)
        return ""

    def check_claim(self, claim: DeviceClaim) -> None:
        """Raise ``Precondition`` if a booking would lose an exporter of the claim as it is now."""
        leases = self._labs.of(claim.metadata.namespace).groups.of(claim.metadata.uid)
        until = {
            lease.metadata.name: lifecycle.expires_at(claim_lifecycle.following(lease, claim))
            for lease in leases
            if lease.status.exporter_ref is not None
        }
        self.check(claim.metadata.namespace, until)

    def check(self, namespace: str, until: Mapping[str, datetime | None]) -> None:
        """Raise ``Precondition`` if a booking would lose its exporter.

        ``until``: the new ends of leases that have exporters, by name; None for no end.
        """
        index = self._labs.of(namespace)
        scheduled = index.scheduled(self._clock.now())
        if scheduled is None:
            return
        lab = Lab(
            offers=index.offers,
            requests=(),
            policies=self._labs.policies(namespace),
            supplies=self._supplies(namespace),
            bookings=scheduled,
        )
        lost = bookings.hindered(lab, until)
        if lost is not None:
            begin = times.text(lost.fence.begin)
            raise Precondition(
                f"exporter {lost.exporter} is booked {lost.fence} by {lost.request.client};"
                f" the end must not be later than {begin}"
            )


def _later(end: datetime | None, before: datetime | None) -> bool:
    """Whether an end is later than the one before; None for no end."""
    return before is not None and (end is None or end > before)
