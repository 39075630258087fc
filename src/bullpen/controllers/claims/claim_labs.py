"""What decisions about claims look at, gathered from the views, and what starts a pass."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

from bullpen.api.fields import Kind
from bullpen.api.kinds.deviceclaim import DeviceClaim
from bullpen.api.kinds.deviceclass import DeviceClass
from bullpen.api.kinds.devicepool import DevicePool
from bullpen.api.kinds.providerconfig import ProviderConfig
from bullpen.controllers.labs import Labs
from bullpen.controllers.views import Views
from bullpen.core.claims.claim_lab import ClaimLab
from bullpen.core.leases.preemption import PREEMPTION, PreemptionTimes
from bullpen.core.leases.quotas import Quotas
from bullpen.core.leases.requests import Supply
from bullpen.runtime.informer import Key, key_of


class ClaimLabs:
    """What decisions about claims look at, by namespace. Made before the views start."""

    def __init__(
        self,
        views: Views,
        labs: Labs,
        quotas: Quotas,
        supplies: Callable[[str], tuple[Supply, ...]],
        *,
        preemption: PreemptionTimes = PREEMPTION,
    ) -> None:
        self._views = views
        self._supplies = supplies
        self._preemption = preemption
        self._classes = views[DeviceClass]
        self._pools = views[DevicePool]
        self._labs = labs
        self._quotas = quotas

    def of(
        self,
        namespace: str,
        claims: tuple[DeviceClaim, ...] = (),
        served: tuple[DeviceClaim, ...] = (),
        *,
        now: datetime,
    ) -> ClaimLab:
        """``claims``: those that wait. ``served``: those that have their devices."""
        views, index = self._views, self._labs.of(namespace)
        tenants = {claim.spec.client_ref.name for claim in claims}
        return ClaimLab(
            claims=claims,
            clients={c.metadata.name: c.metadata.labels for c in views.clients.all(namespace)},
            exporters=tuple(views.exporters.all(namespace)),
            offers=index.offers,
            leases=tuple(index.open.values()),
            classes=tuple(self._classes.all()),
            pools=tuple(self._pools.all(namespace)),
            policies=self._labs.policies(namespace),
            quotas=self._quotas,
            active=index.active_by_client(),
            handicaps=index.fair_share.handicaps(tenants, now=now),
            bookings=index.scheduled(now),
            supplies=self._supplies(namespace),
            served=served,
            preemption=self._preemption,
        )


def watch_claims(
    views: Views,
    labs: Labs,
    presence: Callable[[Callable[[Key], None]], None],
    supply: Callable[[Callable[[str], None]], None],
    add: Callable[[str], None],
) -> None:
    """Start a pass when something changes that claims depend on.

    Until the first claim appears, nothing else is listened to: leases cost no more than before.
    ``presence``: listens to exporters that connect and disconnect. ``supply``: listens to what
    pools could create.
    """
    claims, listening = views[DeviceClaim], False

    def claimed(namespace: str) -> None:
        if next(claims.all(namespace), None) is not None:
            add(namespace)

    def others(old: Kind | None, new: Kind | None) -> None:
        value = new or old
        assert value is not None
        claimed(key_of(value)[0])

    def a_class(old: DeviceClass | None, new: DeviceClass | None) -> None:
        for namespace in claims.namespaces():
            add(namespace)

    def a_claim(old: DeviceClaim | None, new: DeviceClaim | None) -> None:
        nonlocal listening
        if not listening:
            listening = True
            labs.leases.listen(others)
            views.exporters.listen(others)
            views.clients.listen(others)
            views.policies.listen(others)
            views[DevicePool].listen(others)
            views[ProviderConfig].listen(others)
            views[DeviceClass].listen(a_class)
            presence(lambda key: claimed(key[0]))
            supply(claimed)
        # What a claim gives up, others may get: also when one is deleted.
        if new is None and old is not None:
            # The last one may have had devices of DevicePools.
            add(key_of(old)[0])
        elif old is None or new is None or old.spec != new.spec or new.status.ended:
            others(old, new)

    claims.listen(a_claim)
