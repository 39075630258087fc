"""Claims in the simulator: a run with them holds, and each promise about them can be broken."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from bullpen.api.kinds.deviceclaim import DeviceClaim, DeviceClaimStatus
from bullpen.api.kinds.devicepool import DevicePool, DevicePoolStatus, PoolAllocation
from bullpen.core.claims import claim_lifecycle, claim_queue, pool_allocations
from bullpen.core.claims.claim_queue import Wait, WaitReason
from bullpen.core.leases import fair_share
from bullpen.core.leases.lease_group import LeaseGroups
from bullpen.core.leases.requests import RequestIndex
from bullpen.sim.checkers import GROUP_SIZE, AllocatedIsTrue, ClaimsAreWhole
from bullpen.sim.plan import Act, Home, Size, plan
from bullpen.sim.run import run
from bullpen.sim.truth import Fact, Raw

QUIET = plan(2, Home.EMBEDDED, Size.CLAIMS)


def broken_promise() -> str:
    """The promise that is broken first by a run with claims; empty if none is."""
    violations = run(QUIET).violations
    return violations[0].promise if violations else ""


def test_a_run_with_claims_breaks_no_promise() -> None:
    outcome = run(QUIET)
    assert outcome.ok, "\n".join(outcome.tail)
    assert any(step.act is Act.CLAIM for step in QUIET.steps)


def test_leases_of_a_claim_that_are_assigned_one_by_one_are_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(LeaseGroups, "assignable", lambda self, lease: (lease,))
    assert broken_promise() == "a claim has all of its targets or none"


def test_a_claim_that_names_what_it_does_not_have_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    real = claim_lifecycle.has_all

    def has_others(claim: DeviceClaim, leases: Any, held: Any, **more: Any) -> DeviceClaimStatus:
        found = real(claim, leases, held, **more)
        members = tuple(replace(member, device="other") for member in found.members)
        return replace(found, members=members)

    monkeypatch.setattr(claim_lifecycle, "has_all", has_others)
    assert broken_promise() == "an allocated claim has its leases"


def test_a_claim_that_starves_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RequestIndex, "reserve", lambda self, reserved: False)
    assert broken_promise() == "no claim starves"


def test_a_claim_that_is_not_booked_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def not_booked(self: Any, claim: Any, begin: Any) -> Wait:
        return Wait(claim=claim.name, reason=WaitReason.NOT_AVAILABLE)

    monkeypatch.setattr(claim_queue._Pass, "_book", not_booked)
    assert broken_promise() == "what a claim booked is kept"


def test_a_counter_that_is_used_twice_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def unchecked(pool: DevicePool, uid: str, mine: tuple[PoolAllocation, ...]) -> DevicePoolStatus:
        status = pool_allocations.without(pool, {uid})
        return replace(status, allocations=(*status.allocations, *mine))

    monkeypatch.setattr(pool_allocations, "uses", lambda pools, **more: iter(()))
    monkeypatch.setattr(pool_allocations, "taken", unchecked)
    assert broken_promise() == "no counter is used twice"


def test_a_claim_without_the_licence_that_it_names_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(claim_lifecycle, "full_name", lambda pool, found: f"{pool}/seat-9")
    assert broken_promise() == "an allocated claim has its devices of pools"


def test_a_licence_that_is_not_given_up_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool_allocations, "without", lambda pool, uids: pool.status)
    assert broken_promise() == "no claim starves"


def test_a_released_claim_that_goes_on_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claim_lifecycle, "released", lambda lease: lease)
    real = claim_lifecycle.ended
    monkeypatch.setattr(
        claim_lifecycle,
        "ended",
        lambda claim, **said: claim.status if said["reason"] == "Released" else real(claim, **said),
    )
    assert broken_promise() == "released claims end"


def test_a_share_that_is_not_fair_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fair_share, "handicap", lambda debt: fair_share.NO_HANDICAP)
    assert broken_promise() == "the share of a client is fair within a bound"


def test_a_share_without_a_bound_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    real = fair_share.handicap
    monkeypatch.setattr(fair_share, "handicap", lambda debt: 10 * real(debt))
    assert broken_promise() == "the share of a client is fair within a bound"


def lease(name: str, exporter: str = "") -> Raw:
    meta = {
        "name": name,
        "uid": f"uid-{name}",
        "annotations": {GROUP_SIZE: "2"},
        "ownerReferences": [{"kind": "DeviceClaim", "uid": "claim"}],
    }
    status = {"exporterRef": {"name": exporter}} if exporter else {}
    return {"apiVersion": "jumpstarter.dev/v1alpha1", "metadata": meta, "status": status}


@pytest.mark.parametrize(("taken", "complaints"), [("uid-b", 0), ("uid-other", 1)])
def test_exporters_are_taken_for_all_leases_before_the_first_is_written(
    taken: str, complaints: int
) -> None:
    checker = ClaimsAreWhole(lambda kind: iter([lease("a", "x"), lease("b")]))
    exporter: Raw = {"metadata": {"name": "y"}, "status": {"leaseUid": taken}}
    assert not list(checker.see(Fact("Exporter", "default", "y", None, exporter, 1, 0.0)))
    fact = Fact("Lease", "default", "a", lease("a"), lease("a", "x"), 1, 0.0)
    assert len(list(checker.see(fact))) == complaints


@pytest.mark.parametrize(("got", "complaints"), [("x", 0), ("y", 1), ("", 1)])
def test_an_allocated_claim_names_what_its_leases_got(got: str, complaints: int) -> None:
    member = {"device": "x", "leaseRef": {"name": "a"}}
    said = {
        "members": [member],
        "conditions": [{"type": "Allocated", "status": "True"}],
    }
    checker = AllocatedIsTrue(lambda namespace, name: lease(name, got))
    new: Raw = {"metadata": {"name": "c", "uid": "claim"}, "status": said}
    fact = Fact("DeviceClaim", "default", "c", None, new, 1, 0.0)
    assert len(list(checker.see(fact))) == complaints
