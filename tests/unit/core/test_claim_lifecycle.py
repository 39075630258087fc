"""The leases of a claim: which are made, kept and withdrawn."""

from __future__ import annotations

import pytest

from bullpen.api.kinds.deviceclaim import (
    DeviceClaim,
    DeviceClaimSpec,
    DeviceRequest,
    ExactRequest,
)
from bullpen.api.kinds.lease import Lease
from bullpen.api.meta import LocalObjectReference, ObjectMeta
from bullpen.core.claims.allocator import Answer, Member, Verdict
from bullpen.core.claims.claim_lifecycle import (
    Create,
    Withdraw,
    leases_for,
    next_step,
    reusing,
)
from bullpen.kit import durations

PEER = DeviceRequest(name="peer", exactly=ExactRequest(device_class_name="peer", count=2))
CLAIM = DeviceClaim(
    metadata=ObjectMeta(name="c", namespace="default", uid="uid"),
    spec=DeviceClaimSpec(
        client_ref=LocalObjectReference(name="alice"),
        requests=(PEER,),
        duration=durations.parse("1h"),
    ),
)
POOLS = {"peer-0": "peer", "peer-1": "peer"}


def leases(*devices: str) -> tuple[Lease, ...]:
    members = tuple(Member(request="peer", alternative=0, device=device) for device in devices)
    return leases_for(CLAIM, Answer(verdict=Verdict.SATISFIED, members=members))


@pytest.mark.parametrize(
    "chosen",
    [
        ("peer-0", "peer-1"),
        ("peer-0", "peer/new-0"),
        ("peer/new-0", "peer-1"),
        ("peer/new-0", "peer/new-1"),
    ],
    ids=["both started", "the first started", "the second started", "none started"],
)
def test_leases_for_a_pool_are_kept_when_its_members_have_started(chosen: tuple[str, str]) -> None:
    found = leases("peer/new-0", "peer/new-1")
    assert next_step(found, reusing(found, leases(*chosen), POOLS)) is None


def test_leases_for_a_pool_are_withdrawn_for_exporters_outside_of_it() -> None:
    found = leases("peer/new-0", "peer/new-1")
    assert next_step(found, reusing(found, leases("board", "peer-1"), POOLS)) is not None


def test_what_is_left_of_a_withdrawn_group_is_not_completed() -> None:
    """Another controller may be about to delete it, and would leave the new ones alone."""
    wanted = leases("board", "peer-1")
    assert next_step((), wanted) == Create(wanted)
    for left in wanted:
        assert next_step((left,), wanted) == Withdraw((left,))
    assert next_step(wanted, wanted) is None
