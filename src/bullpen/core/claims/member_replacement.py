"""What replaces the lost members of a claim that keeps the others.

The members that are left decide what fits: the replacements have the values in common with
them, or differ from them, that the claim's constraints ask for.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta

from bullpen.api.kinds.deviceclaim import ClaimMember, DeviceClaim, MemberLoss
from bullpen.api.kinds.lease import Lease
from bullpen.core.claims.claim import Alternative, Constraint, Request, Terms
from bullpen.core.claims.inventory import Attribute, InventoryDevice
from bullpen.core.leases import lifecycle
from bullpen.kit.selectors import Operator, Requirement, Selector

NO_TIME = timedelta(0)


def lost_members(claim: DeviceClaim, leases: Iterable[Lease]) -> tuple[ClaimMember, ...]:
    """The members whose leases are not open any more."""
    names = {lease.metadata.name for lease in leases}
    return tuple(m for m in claim.status.members if m.lease_ref and m.lease_ref.name not in names)


def kept_leases(leases: Iterable[Lease]) -> tuple[Lease, ...]:
    """The leases of the claim that have their exporters."""
    return tuple(lease for lease in leases if lease.status.exporter_ref is not None)


def replacing(claim: DeviceClaim, leases: Sequence[Lease], *, now: datetime) -> bool:
    """Whether the claim had all its members, has lost some, and replaces them."""
    if claim.spec.release or claim.spec.member_loss is not MemberLoss.REPLACE:
        return False
    kept = kept_leases(leases)
    if not kept or len(kept) >= len(claim.status.members):
        return False
    return rest(leases, now=now) > NO_TIME and all(
        replaceable(claim, member) for member in lost_members(claim, kept)
    )


def replaceable(claim: DeviceClaim, member: ClaimMember) -> bool:
    """Whether the member can be replaced alone; "All" and totals are about all of a request."""
    forms = (
        form
        for request in claim.spec.requests
        if request.name == member.request
        for form in (request.exactly, *request.first_available)
        if form is not None
    )
    return all(form.allocation_mode == "ExactCount" and not form.totals for form in forms)


def rest(leases: Iterable[Lease], *, now: datetime) -> timedelta:
    """How long the claim goes on."""
    ends = (lifecycle.expires_at(lease) for lease in kept_leases(leases))
    return min((end - now for end in ends if end is not None), default=NO_TIME)


def replacement_terms(
    terms: Terms,
    lost: Sequence[ClaimMember],
    kept: Sequence[ClaimMember],
    devices: Mapping[str, InventoryDevice],
) -> Terms:
    """What the lost members of a claim with these terms are replaced by.

    A request that lost all its members may use another alternative; one that has members left
    stays with theirs.
    """
    requests = []
    for request in terms.requests:
        count = sum(member.request == request.name for member in lost)
        if not count:
            continue
        chosen = {member.alternative for member in kept if member.request == request.name}
        forms = (a for a in request.alternatives if not chosen or a.name in chosen)
        narrowed = (_narrowed(terms, request, form, kept, devices) for form in forms)
        found = tuple(replace(form, count=count if chosen else form.count) for form in narrowed)
        requests.append(Request(name=request.name, alternatives=found))
    return Terms(requests=tuple(requests), constraints=_among(terms, requests))


def _among(terms: Terms, requests: Sequence[Request]) -> tuple[Constraint, ...]:
    """The constraints on these requests, without their references to other requests."""
    names = {request.name for request in requests}
    found = []
    for constraint in terms.constraints:
        mine = tuple(name for name in constraint.requests if name.split("/")[0] in names)
        if mine or not constraint.requests:
            found.append(replace(constraint, requests=mine))
    return tuple(found)


def _narrowed(
    terms: Terms,
    request: Request,
    form: Alternative,
    kept: Sequence[ClaimMember],
    devices: Mapping[str, InventoryDevice],
) -> Alternative:
    """The alternative, restricted to devices that fit to the members that are left."""
    added = tuple(
        requirement
        for constraint in terms.constraints
        if constraint.covers(request, form) and not constraint.prefer
        for requirement in _fitting(terms, constraint, kept, devices)
    )
    if not added:
        return form
    labels = Selector(tuple(sorted((*form.criteria.labels.requirements, *added), key=_by_key)))
    return replace(form, criteria=replace(form.criteria, labels=labels))


def _fitting(
    terms: Terms,
    constraint: Constraint,
    kept: Sequence[ClaimMember],
    devices: Mapping[str, InventoryDevice],
) -> Iterator[Requirement]:
    found = [
        set(_values(devices[member.device].facts.get(constraint.attribute)))
        for member in kept
        if member.device in devices and _covers(terms, constraint, member)
    ]
    if not found:
        return
    if constraint.distinct:
        values, operator = set().union(*found), Operator.NOT_IN
    else:
        values, operator = set.intersection(*found), Operator.IN
    yield Requirement(constraint.attribute, operator, tuple(sorted(values)))


def _covers(terms: Terms, constraint: Constraint, member: ClaimMember) -> bool:
    return any(
        constraint.covers(request, form)
        for request in terms.requests
        if request.name == member.request
        for form in request.alternatives
        if form.name == member.alternative
    )


def _values(value: Attribute | None) -> tuple[str, ...]:
    if value is None:
        return ()
    return tuple(str(one) for one in (value if isinstance(value, tuple) else (value,)))


def _by_key(requirement: Requirement) -> tuple[str, str]:
    return requirement.key, requirement.operator.value
