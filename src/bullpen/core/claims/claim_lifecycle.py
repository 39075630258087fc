"""The life of one claim: the leases that serve it, when it ends, and how its status reads.

    waiting ──► leases created ──► all assigned: Allocated ──► ended
       ▲              │ an exporter is not free any more
       └──────────────┘ leases withdrawn

The leases of a claim are assigned together (``core.leases.lease_group``), so what a claim has is
what its open leases have. Its status only reports it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from bullpen.api.claim_allocation import ClaimAllocation
from bullpen.api.kinds.deviceclaim import (
    ClaimMember,
    DeviceClaim,
    DeviceClaimStatus,
)
from bullpen.api.kinds.exporterset import SET_NAME
from bullpen.api.kinds.lease import Lease, LeaseSpec
from bullpen.api.meta import (
    Condition,
    ConditionStatus,
    LabelSelector,
    LocalObjectReference,
    ObjectMeta,
    OwnerReference,
)
from bullpen.core import conditions
from bullpen.core.claims.allocator import Answer, Member
from bullpen.core.claims.pool_allocations import Held, alternative_name, full_name, is_pool_device
from bullpen.core.claims.startable_devices import pool_of
from bullpen.core.conditions import condition
from bullpen.core.leases.lease_group import DIGITS_MAX, GROUP_SIZE, group_size, pinned
from bullpen.kit import times
from bullpen.kit.names import DNS_SUBDOMAIN_LENGTH_MAX

REQUEST, ALTERNATIVE = (f"device.jumpstarter.dev/{part}" for part in ("request", "alternative"))
"""Annotations of a claim's lease: the request it serves, and the alternative that was chosen."""

POOL_DEVICES = "device.jumpstarter.dev/pool-devices"
"""Annotation of a claim's lease: how many devices of DevicePools the claim has besides."""

HASH_LENGTH = 8


@dataclass(frozen=True, slots=True)
class Create:
    """Create these leases."""

    leases: tuple[Lease, ...]


@dataclass(frozen=True, slots=True)
class Withdraw:
    """Delete these leases, which have no exporters, in this order.

    The first of them is written first when they are assigned. So either it is deleted before and
    none of them gets its exporter, or it cannot be deleted and all of them stay.
    """

    leases: tuple[Lease, ...]


def allocated(claim: DeviceClaim, leases: Sequence[Lease], held: Held = ()) -> bool:
    """Whether all leases of the claim have their exporters, and it has its devices of pools."""
    if any(lease.status.exporter_ref is None for lease in leases):
        return False
    if claim.status.members:
        return len(leases) + len(held) == len(claim.status.members)
    if leases:
        return (len(leases), len(held)) == (group_size(leases[0]), pool_devices(leases[0]))
    return bool(held) and held[0][1].members == len(held)


def pool_devices(lease: Lease) -> int:
    """How many devices of DevicePools the claim of the lease has."""
    written = lease.metadata.annotations.get(POOL_DEVICES, "")
    plain = written.isascii() and written.isdecimal() and len(written) <= DIGITS_MAX
    return int(written) if plain else 0


def surplus(leases: Sequence[Lease]) -> tuple[Lease, ...]:
    """Waiting leases of a claim that has all its exporters by others.

    Two controllers that work at the same time may have made them.
    """
    held = [lease for lease in leases if lease.status.exporter_ref is not None]
    if not held or len(held) != group_size(held[0]):
        return ()
    return tuple(lease for lease in leases if lease.status.exporter_ref is None)


def member_lost(claim: DeviceClaim, leases: Sequence[Lease], held: Held = ()) -> bool:
    """Whether a lease has ended, or a device of a pool is gone, after the claim had everything."""
    if claim.status.members:
        return len(leases) + len(held) < len(claim.status.members)
    assigned = [lease for lease in leases if lease.status.exporter_ref is not None]
    return any(
        len(leases) < group_size(lease) or len(held) < pool_devices(lease) for lease in assigned
    )


def being_assigned(leases: Sequence[Lease], holders: frozenset[str]) -> bool:
    """Whether the leases are taking their exporters just now, or were when the service stopped.

    ``holders``: names of the leases that the exporters' references name.
    """
    return any(x.status.exporter_ref or x.metadata.name in holders for x in leases)


def next_step(found: Sequence[Lease], wanted: Sequence[Lease]) -> Create | Withdraw | None:
    """How to come from the waiting leases of a claim to those it should have; None if it has.

    What is left of an earlier group is withdrawn, not completed: a controller that withdraws the
    group may be about to delete it.
    """
    if {x.metadata.name for x in found} == {x.metadata.name for x in wanted}:
        return None
    return Withdraw(tuple(found)) if found else Create(tuple(wanted))


def reusing(
    found: Sequence[Lease], wanted: Sequence[Lease], pools: Mapping[str, str]
) -> tuple[Lease, ...]:
    """``wanted``, with leases for any member of a pool where they exist and the member is one.

    ``pools``: the pool of each exporter that is a member of one. A member that has just started
    must not be a reason to withdraw the lease it was started for.
    """
    names = {lease.metadata.name for lease in wanted}
    spare = [x for x in found if not pinned(x) and x.metadata.name not in names]
    result = []
    for lease in wanted:
        pool = pools.get(pinned(lease))
        match = next((x for x in spare if pool and _asks_for(x, lease, pool)), None)
        if match is not None:
            spare.remove(match)
        result.append(match or lease)
    return tuple(result)


def _asks_for(found: Lease, wanted: Lease, pool: str) -> bool:
    """Whether a lease asks for any member of the pool, and serves what another one would."""
    same = (found.metadata.annotations, found.spec.begin_time, found.spec.duration) == (
        wanted.metadata.annotations,
        wanted.spec.begin_time,
        wanted.spec.duration,
    )
    return same and found.spec.selector.match_labels.get(SET_NAME) == pool


def starting(leases: Sequence[Lease]) -> bool:
    """Whether the leases wait for a pool to start members."""
    return any(not pinned(lease) for lease in leases)


def wait_of(leases: Sequence[Lease]) -> Condition | None:
    """What the leases of a claim wait for, if they do: the scheduler did not assign them."""
    said = (conditions.get(lease.status.conditions, "Pending") for lease in leases)
    return next((c for c in said if c is not None and c.status is ConditionStatus.TRUE), None)


def leases_for(claim: DeviceClaim, answer: Answer, kept: Sequence[Lease] = ()) -> tuple[Lease, ...]:
    """The leases that serve the claim with these devices.

    ``kept``: leases that it has already. The others replace lost ones, and end together with them.
    """
    numbers: dict[str, int] = {}
    found = []
    leased = [member for member in answer.members if not is_pool_device(member.device)]
    besides = len(answer.members) - len(leased)
    for member in leased:
        number = numbers[member.request] = numbers.get(member.request, -1) + 1
        found.append(_lease(claim, member, number, len(leased) + len(kept), besides))
    if not kept:
        return tuple(found)
    begin = kept[0].spec.begin_time or kept[0].status.begin_time
    return tuple(replace(x, spec=replace(x.spec, begin_time=begin)) for x in found)


def _lease(claim: DeviceClaim, member: Member, number: int, size: int, besides: int) -> Lease:
    meta, spec = claim.metadata, claim.spec
    owner = OwnerReference(
        api_version=claim.api_version,
        kind=claim.kind,
        name=meta.name,
        uid=meta.uid,
        controller=True,
    )
    annotations = {GROUP_SIZE: str(size), REQUEST: member.request}
    if besides:
        annotations[POOL_DEVICES] = str(besides)
    chosen = alternative_name(claim, member)
    if chosen:
        annotations[ALTERNATIVE] = chosen
    pool = pool_of(member.device)
    return Lease(
        metadata=ObjectMeta(
            name=_name(claim, member, number),
            namespace=meta.namespace,
            annotations=annotations,
            owner_references=(owner,),
        ),
        spec=LeaseSpec(
            client_ref=spec.client_ref,
            exporter_ref=None if pool else LocalObjectReference(name=member.device),
            selector=LabelSelector(match_labels={SET_NAME: pool} if pool else {}),
            duration=spec.duration,
            begin_time=spec.begin_time,
        ),
    )


def _name(claim: DeviceClaim, member: Member, number: int) -> str:
    """A name that is the same in every pass, and differs for every claim, request and exporter.

    What is booked for another time has another name too; members of one pool are alike.
    """
    parts = [claim.metadata.uid, member.request, str(number)]
    parts.append(pool_of(member.device) or member.device)
    if claim.spec.begin_time is not None:
        parts += [times.text(claim.spec.begin_time), str(claim.spec.duration)]
    identity = "\0".join(parts)
    tail = f"-{hashlib.sha256(identity.encode()).hexdigest()[:HASH_LENGTH]}"
    head = f"{claim.metadata.name}-{member.request}-{number}"
    return head[: DNS_SUBDOMAIN_LENGTH_MAX - len(tail)].rstrip("-.") + tail


def books(lease: Lease, claim: DeviceClaim) -> bool:
    """Whether a waiting lease of the claim is booked for the time and client of the claim."""
    mine, asked = lease.spec, claim.spec
    return (mine.begin_time, mine.duration, mine.client_ref) == (
        asked.begin_time,
        asked.duration,
        asked.client_ref,
    )


def missed_at(claim: DeviceClaim) -> datetime | None:
    """When the time is over for which a claim was booked; None if it has no begin time."""
    spec = claim.spec
    return times.shifted(spec.begin_time, spec.duration) if spec.begin_time is not None else None


def since(claim: DeviceClaim) -> datetime | None:
    """Since when the claim has its devices; None if it has none."""
    said = conditions.get(claim.status.conditions, "Allocated")
    holds = said is not None and said.status is ConditionStatus.TRUE
    return said.last_transition_time if said is not None and holds else None


def pools_until(claim: DeviceClaim, *, now: datetime) -> datetime | None:
    """When a claim without leases ends, if it has its devices; None if its leases decide that.

    One that does not say yet that it has them got them now.
    """
    begin = claim.spec.begin_time or since(claim) or now
    leased = any(member.lease_ref is not None for member in claim.status.members)
    return None if leased else times.shifted(begin, claim.spec.duration)


def following(lease: Lease, claim: DeviceClaim) -> Lease:
    """The lease with the duration and the client of its claim, which may have changed."""
    spec = replace(lease.spec, duration=claim.spec.duration, client_ref=claim.spec.client_ref)
    return replace(lease, spec=spec)


def released(lease: Lease) -> Lease:
    return replace(lease, spec=replace(lease.spec, release=True))


def widens_at(claim: DeviceClaim, *, now: datetime) -> datetime | None:
    """When the next alternative of a waiting claim opens."""
    since = claim.metadata.creation_timestamp
    assert since is not None
    delays = (a.after for r in claim.spec.requests for a in r.first_available)
    moments = (times.shifted(since, delay) for delay in delays)
    return min((moment for moment in moments if moment > now), default=None)


def has_all(
    claim: DeviceClaim, leases: Sequence[Lease], held: Held = (), *, now: datetime
) -> DeviceClaimStatus:
    """The status of a claim whose leases all have their exporters."""
    order = {request.name: number for number, request in enumerate(claim.spec.requests)}
    leased = [
        ClaimMember(
            request=lease.metadata.annotations.get(REQUEST, ""),
            alternative=lease.metadata.annotations.get(ALTERNATIVE, ""),
            device=lease.status.exporter_ref.name if lease.status.exporter_ref else "",
            lease_ref=LocalObjectReference(name=lease.metadata.name),
        )
        for lease in leases
    ]
    others = [
        ClaimMember(
            request=allocation.request,
            alternative=allocation.alternative,
            device=full_name(pool, allocation),
        )
        for pool, allocation in held
    ]
    members = sorted(
        (*leased, *others), key=lambda member: (order.get(member.request, 0), member.device)
    )
    number = len(leased)
    message = f"{number} exporters are assigned" if number > 1 else "1 exporter is assigned"
    if others:
        message = f"{len(members)} devices" if len(members) > 1 else "1 device"
        message += f" allocated, {number} of them exporters" if leased else " allocated"
    status = replace(claim.status, members=tuple(members))
    return _said(status, claim, holds=True, reason="Allocated", message=message, now=now)


def decided(claim: DeviceClaim, allocation: ClaimAllocation | None) -> DeviceClaimStatus:
    """The status that records what the choice of the claim's devices is based on."""
    return replace(claim.status, allocation=allocation)


def waiting(
    claim: DeviceClaim, *, reason: str, message: str, now: datetime, decided: bool = False
) -> DeviceClaimStatus:
    """The status of a claim that has not all of its devices.

    ``decided``: which ones it gets is decided, or it keeps some.
    """
    status = claim.status if decided else replace(claim.status, allocation=None)
    return _said(status, claim, holds=False, reason=reason, message=message, now=now)


def ended(claim: DeviceClaim, *, reason: str, message: str, now: datetime) -> DeviceClaimStatus:
    """The final status. The members are kept."""
    status = replace(claim.status, ended=True, end_time=now)
    return _said(status, claim, holds=False, reason=reason, message=message, now=now)


def says(claim: DeviceClaim) -> str:
    """The reason of its condition Allocated; empty if it has none yet."""
    found = conditions.get(claim.status.conditions, "Allocated")
    return found.reason if found is not None else ""


def _said(
    status: DeviceClaimStatus,
    claim: DeviceClaim,
    *,
    holds: bool,
    reason: str,
    message: str,
    now: datetime,
) -> DeviceClaimStatus:
    generation, found = claim.metadata.generation, status.conditions
    for type in ("Allocated", "Ready"):
        found = condition(
            found,
            type,
            status=holds,
            reason="Ready" if holds and type == "Ready" else reason,
            message=message,
            generation=generation,
            now=now,
        )
    return replace(status, observed_generation=generation, conditions=found)
