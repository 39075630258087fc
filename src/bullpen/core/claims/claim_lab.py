"""What a pass over the waiting claims of a namespace looks at, and what it decides, as values."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from bullpen.api.claim_allocation import ClaimAllocation
from bullpen.api.kinds.deviceclaim import DeviceClaim
from bullpen.api.kinds.deviceclass import DeviceClass
from bullpen.api.kinds.devicepool import DevicePool
from bullpen.api.kinds.exporter import Exporter
from bullpen.api.kinds.lease import Lease
from bullpen.core.claims import claim_lifecycle, pool_allocations
from bullpen.core.claims.allocator import Answer
from bullpen.core.claims.inventory import Inventory, Use
from bullpen.core.claims.lab_inventory import OFFLINE, inventory_of
from bullpen.core.claims.startable_devices import slot_counters, startable_devices
from bullpen.core.exporters.offers import OfferIndex
from bullpen.core.lab_index import holder_of
from bullpen.core.leases import lifecycle
from bullpen.core.leases.access import Policies
from bullpen.core.leases.lease_group import claim_uid
from bullpen.core.leases.preemption import PREEMPTION, PreemptionTimes, Taker
from bullpen.core.leases.quotas import Quotas
from bullpen.core.leases.requests import Bookings, Request, Supply, Want
from bullpen.core.matcher import Matcher
from bullpen.kit import times

SETTLING = timedelta(seconds=1)
"""How soon an exporter is expected to be free after its last lease.

What is kept for a claim is kept from then on, so a longer time would let others in before.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimLab:
    """Everything one pass looks at, in one namespace."""

    claims: tuple[DeviceClaim, ...]
    """Claims that wait."""

    clients: Mapping[str, Mapping[str, str]]
    """The labels of the clients that exist, by name."""

    exporters: tuple[Exporter, ...]
    offers: OfferIndex
    leases: tuple[Lease, ...]
    """Open leases."""

    classes: tuple[DeviceClass, ...]
    pools: tuple[DevicePool, ...]
    policies: Policies
    quotas: Quotas
    active: Mapping[str, int]
    """By client, the leases that have exporters or are getting them."""

    handicaps: Mapping[str, timedelta] = field(default_factory=dict)
    """By client, by how much recent use delays its claims in the queue."""

    bookings: Bookings | None = None
    """Leases that are booked for later, those of claims among them; None if there are none."""

    supplies: tuple[Supply, ...] = ()
    """What pools could create, also for booked leases."""

    served: tuple[DeviceClaim, ...] = ()
    """Claims that have their devices."""

    preemption: PreemptionTimes = PREEMPTION


@dataclass(frozen=True, slots=True)
class Serve:
    """The claim gets these exporters now, or at its begin time."""

    claim: DeviceClaim
    answer: Answer
    begin: datetime | None = None
    """When they are booked for; None for now."""

    allocation: ClaimAllocation | None = None
    """What the status of the claim records about the decision."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hold:
    """The claim waits."""

    claim: DeviceClaim
    reason: str
    message: str
    wake_at: datetime | None = None
    kept: tuple[str, ...] = ()
    """Exporters that are kept for it from ``starts`` on."""

    starts: datetime | None = None
    booked: bool = False
    """Its leases are booked and stay as they are."""


@dataclass(frozen=True, slots=True)
class Preempted:
    """The claim ends, after a grace period, for another one."""

    claim: DeviceClaim
    by: Taker


@dataclass(frozen=True, slots=True)
class PreemptedLease:
    """A lease of no claim ends, after a grace period, for a claim with admin access."""

    lease: Lease
    by: Taker


ClaimDecision = Serve | Hold | Preempted | PreemptedLease


def reservation(lab: ClaimLab, decision: ClaimDecision) -> Request | None:
    """What is kept from leases that go after the claim, as a booking; None if nothing is.

    A claim that is served keeps its exporters until its leases have them.
    """
    if isinstance(decision, Preempted | PreemptedLease):
        return None
    claim, client = decision.claim, decision.claim.spec.client_ref.name
    since = claim.metadata.creation_timestamp
    assert since is not None
    match decision:
        case Serve(answer=answer, begin=booked):
            begin, devices = booked or since, answer.devices
        case Hold(starts=datetime() as begin, kept=devices) if devices:
            pass
        case _:
            return None
    # Only exporters are leased.
    devices = tuple(name for name in devices if "/" not in name)
    if not devices:
        return None
    return Request(
        name=claim.metadata.name,
        client=client,
        client_labels=lab.clients[client],
        wants=tuple(Want(matcher=Matcher(exporter=name), name=name) for name in devices),
        since=since,
        duration=claim.spec.duration,
        begin=begin,
        priority=claim.spec.rank,
        claim=claim.metadata.uid,
    )


def offered_inventory(lab: ClaimLab, now: datetime) -> Inventory:
    """The exporters as the scheduler of leases sees them: what it would not assign is not free."""
    found = inventory_of(lab.exporters, lab.leases, lab.pools)
    claims = {claim.metadata.uid: holder_name(claim) for claim in lab.served}
    owners = {
        lease.metadata.name: claims[claim_uid(lease)]
        for lease in lab.leases
        if claim_uid(lease) in claims
    }
    held = tuple(replace(use, holder=owners.get(use.holder, use.holder)) for use in found.uses)
    devices = tuple(
        replace(device, blocked=device.blocked or OFFLINE)
        if "/" not in device.name and _offline(lab, device.name)
        else device
        for device in found.devices
    )
    used = {use.device for use in held}
    uses = (*held, *_other_uses(lab, used, now), *_pool_uses(lab, now))
    startable = startable_devices(lab.supplies, lab.offers)
    counters = {**found.counters, **slot_counters(lab.supplies)}
    return replace(found, devices=(*devices, *startable), uses=uses, counters=counters)


def _pool_uses(lab: ClaimLab, now: datetime) -> Iterator[Use]:
    """Devices of DevicePools that claims have; a claim that waits gives its own up again.

    What a claim has booked is kept from others from the booking on.
    """
    waiting = {
        claim.metadata.uid
        for claim in lab.claims
        if not claim.status.members and claim.spec.begin_time is None
    }
    until: dict[str, datetime | None] = {
        claim.metadata.uid: times.shifted(claim.spec.begin_time or now, claim.spec.duration)
        for claim in lab.claims
    }
    until |= {c.metadata.uid: claim_lifecycle.pools_until(c, now=now) for c in lab.served}
    for lease in lab.leases:
        claim = claim_uid(lease)
        if claim and lease.status.exporter_ref is not None:
            until[claim] = lifecycle.expires_at(lease)
    yield from pool_allocations.uses(lab.pools, besides=waiting, until=until)


def holder_name(claim: DeviceClaim) -> str:
    """How a claim that has devices is named to those that wait for them."""
    return f"claim {claim.metadata.name}"


def _offline(lab: ClaimLab, name: str) -> bool:
    offer = lab.offers.get(name)
    return offer is None or not offer.online


def _other_uses(lab: ClaimLab, used: Set[str], now: datetime) -> Iterator[Use]:
    """Exporters that are being assigned, or have not finished with their last lease."""
    leases = {lease.metadata.name: lease for lease in lab.leases}
    for exporter in lab.exporters:
        name, holder = exporter.metadata.name, holder_of(exporter)
        offer = lab.offers.get(name)
        if name in used or offer is None or not offer.online:
            continue
        if holder in leases:
            lasts = lifecycle.lasts(leases[holder], now=now)
            end = None if lasts is None else times.shifted(now, lasts)
            yield Use(device=name, holder=holder, until=end)
        elif holder or not offer.idle:
            until = None if offer.stuck else times.shifted(now, SETTLING)
            yield Use(device=name, holder="the end of the last lease", until=until)
