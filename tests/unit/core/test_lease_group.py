"""Leases of one claim are one group, and complete or not assigned at all."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bullpen.api.kinds.deviceclaim import DeviceClaim
from bullpen.api.kinds.lease import Lease, LeaseSpec
from bullpen.api.meta import LocalObjectReference, ObjectMeta, OwnerReference
from bullpen.core.leases.lease_group import (
    CALLED_OFF,
    GROUP_SIZE,
    LeaseGroups,
    called_off,
    claim_uid,
    first_to_write,
    group_size,
)


def member(name: str, exporter: str, *, size: str = "2", claim: str = "uid-1") -> Lease:
    owner = OwnerReference(
        api_version=DeviceClaim.api_version,
        kind=DeviceClaim.kind,
        name="c",
        uid=claim,
        controller=True,
    )
    meta = ObjectMeta(name=name, annotations={GROUP_SIZE: size}, owner_references=(owner,))
    client, wanted = LocalObjectReference(name="alice"), LocalObjectReference(name=exporter)
    return Lease(metadata=meta, spec=LeaseSpec(client_ref=client, exporter_ref=wanted))


def groups(*leases: Lease) -> LeaseGroups:
    found = LeaseGroups()
    for lease in leases:
        found.put(lease.metadata.name, None, lease)
    return found


def has_exporter(lease: Lease) -> Lease:
    return replace(lease, status=replace(lease.status, exporter_ref=lease.spec.exporter_ref))


FIRST, SECOND = member("z", "a"), member("y", "b")


def test_a_lease_without_a_claim_is_a_group_of_its_own() -> None:
    alone = replace(FIRST, metadata=ObjectMeta(name="x"))
    assert groups(alone, SECOND).assignable(alone) == (alone,)
    assert groups(alone, SECOND).partners(alone) == ()
    assert claim_uid(alone) == ""


def test_a_complete_group_is_assigned_in_the_order_of_its_exporters() -> None:
    found = groups(SECOND, FIRST)
    assert found.assignable(SECOND) == found.assignable(FIRST) == (FIRST, SECOND)
    assert found.partners(FIRST) == (SECOND,)


@pytest.mark.parametrize(
    "others",
    [(), (SECOND, member("w", "c"))],
    ids=["a lease is missing", "there is one too many"],
)
def test_an_incomplete_group_is_not_assigned(others: tuple[Lease, ...]) -> None:
    assert groups(FIRST, *others).assignable(FIRST) == ()


def test_a_missing_lease_is_a_partner_that_is_not_open() -> None:
    assert groups(FIRST).partners(FIRST) == (None,)


def test_a_lease_whose_group_is_assigned_gets_its_exporter_back_alone() -> None:
    assert groups(FIRST, has_exporter(SECOND)).assignable(FIRST) == (FIRST,)


def test_leases_of_other_claims_do_not_count() -> None:
    other = member("w", "b", claim="uid-2")
    assert groups(FIRST, other).assignable(FIRST) == ()


def test_a_change_of_one_lease_affects_the_others_of_its_group() -> None:
    found = groups(FIRST)
    assert found.put("y", None, SECOND) == ("z",)
    assert found.put("y", SECOND, None) == ("z",)
    assert found.put("z", FIRST, None) == ()


@pytest.mark.parametrize("written", ["", "two", "-1", "²"])
def test_a_size_that_somebody_else_wrote_is_no_size(written: str) -> None:
    assert group_size(member("z", "a", size=written)) == 0


@pytest.mark.parametrize(
    "forged", ["-1", "1e9", "٣", "65", "9" * 20, "9" * 100_000, "1_0", " 2", "2\n"]
)
def test_a_forged_size_costs_nothing_and_assigns_nothing(forged: str) -> None:
    lease = member("a", "x", size=forged)

    assert group_size(lease) == 0
    assert groups(lease).partners(lease) == ()
    assert groups(lease).assignable(lease) == ()


def test_the_first_lease_decides_until_one_is_written() -> None:
    assert first_to_write((FIRST, SECOND)) is FIRST
    assert first_to_write((FIRST, has_exporter(SECOND))) is None
    assert first_to_write(()) is None


def test_calling_an_assignment_off_changes_the_lease_each_time() -> None:
    once = called_off(FIRST)
    twice = called_off(once)
    found = [x.metadata.annotations.get(CALLED_OFF) for x in (FIRST, once, twice)]
    assert found == [None, "1", "2"]
