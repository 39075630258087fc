"""The queue of claims: order, reservations, backfill, alternatives in time, preemption."""

from __future__ import annotations

import random
from datetime import datetime, timedelta

import pytest

from bullpen.bench.hard_claims import claim, device, devices, lab, one, request
from bullpen.core.claims.claim import Terms
from bullpen.core.claims.claim_queue import (
    Book,
    Decision,
    Preempt,
    Queue,
    Reservation,
    Start,
    Wait,
    WaitingClaim,
    WaitReason,
    affected,
    decide,
)
from bullpen.core.claims.inventory import Inventory, Use
from bullpen.core.claims.preemption_victims import Holder
from bullpen.kit.clock import EPOCH
from support.claim_reference import allocator_of, problems, random_instance

HOUR, MINUTE = timedelta(hours=1), timedelta(minutes=1)


def many(count: int) -> Terms:
    return claim(request("r", one(count=count)))


def waiting(
    name: str, count: int = 1, *, age_s: int = 0, hours: float = 1, **more: object
) -> WaitingClaim:
    defaults: dict[str, object] = {
        "terms": many(count),
        "since": EPOCH - timedelta(seconds=age_s),
        "duration": hours * HOUR,
    }
    return WaitingClaim(name=name, **{**defaults, **more})  # type: ignore[arg-type]


def held(name: str, holder: str, hours: float | None = 1) -> Use:
    return Use(device=name, holder=holder, until=None if hours is None else EPOCH + hours * HOUR)


def ask(
    inventory: Inventory, *claims: WaitingClaim, now: datetime = EPOCH, **more: object
) -> dict[str, Decision]:
    queue = Queue(claims=claims, uses=inventory.uses, **more)  # type: ignore[arg-type]
    return {d.claim: d for d in decide(allocator_of(inventory), queue, now=now)}


def using(inventory: Inventory, *uses: Use) -> Inventory:
    return Inventory(devices=inventory.devices, counters=inventory.counters, uses=uses)


def started(decisions: dict[str, Decision]) -> dict[str, tuple[str, ...]]:
    return {n: d.answer.devices for n, d in decisions.items() if isinstance(d, Start)}


def test_priority_then_fair_share_then_age_decides() -> None:
    claims = [
        waiting("old", age_s=90, tenant="busy"),
        waiting("young", age_s=10, tenant="modest"),
        waiting("urgent", age_s=1, tenant="busy", priority=5),
    ]
    handicaps = {"busy": 20 * MINUTE, "modest": MINUTE}
    found = ask(lab(devices(2)), *claims, handicaps=handicaps)
    assert list(found) == ["urgent", "young", "old"]
    assert set(started(found)) == {"urgent", "young"}
    by_age = ask(lab(devices(1)), *claims[:2])
    assert set(started(by_age)) == {"old"}


def test_a_claim_gets_all_or_nothing_and_two_never_hold_half_each() -> None:
    """H15."""
    found = ask(lab(devices(3)), waiting("first", 2, age_s=9), waiting("second", 2))
    assert started(found) == {"first": ("d00000", "d00001")}
    assert isinstance(found["second"], Wait)


def test_no_two_claims_get_the_same_device_or_overdraw_a_counter() -> None:
    for seed in range(300):
        source = random.Random(seed)
        inventory, _ = random_instance(source)
        terms = [random_instance(source)[1] for _ in range(4)]
        claims = [waiting(f"c{n}", terms=found, age_s=n) for n, found in enumerate(terms)]
        uses = inventory.uses
        for name, decision in ask(inventory, *claims).items():
            if isinstance(decision, Start):
                so_far = using(inventory, *uses)
                assert not problems(so_far, terms[int(name[1:])], decision.answer), seed
                uses += tuple(
                    Use(device=m.device, holder=name, share=m.share)
                    for m in decision.answer.members
                )


def test_a_gang_behind_small_claims_starts_when_its_reservation_comes() -> None:
    """H14: without a reservation, the two devices would never be free at once."""
    inventory = using(lab(devices(2)), held("d00000", "a", 1), held("d00001", "b", 2))
    gang, small = waiting("gang", 2, age_s=60), waiting("small", hours=3)
    found = ask(inventory, gang, small)
    assert found["gang"] == Wait(
        claim="gang",
        reason=WaitReason.NOT_AVAILABLE,
        starts=EPOCH + 2 * HOUR,
        devices=("d00000", "d00001"),
    )
    # One device is free in between; what would run too long does not get it.
    later = using(lab(devices(2)), held("d00001", "b", 2))
    at = EPOCH + HOUR
    found = ask(later, gang, small, waiting("short", hours=1), now=at)
    assert started(found) == {"short": ("d00000",)}
    assert isinstance(found["small"], Wait)


def test_a_begin_time_is_booked_and_fenced_from_longer_work() -> None:
    inventory = lab(devices(1))
    begin = EPOCH + HOUR
    booking = waiting("booked", begin=begin)
    found = ask(inventory, booking, waiting("long", hours=2), waiting("short", hours=1))
    assert isinstance(found["booked"], Book)
    assert started(found) == {"short": ("d00000",)}
    reserved = (Reservation(claim="booked", devices=1, begin=begin, end=begin + HOUR),)
    again = ask(inventory, booking, waiting("long", hours=2), reservations=reserved)
    assert again["booked"] == Wait(claim="booked", reason=WaitReason.RESERVED, starts=begin)
    assert not started(again)
    due = ask(inventory, booking, waiting("walk-in"), reservations=reserved, now=begin)
    assert started(due) == {"booked": ("d00000",)}


def test_a_booking_is_refused_where_a_longer_lease_still_runs() -> None:
    """H16: also where the end of the lease is not known."""
    for hours in (3, None):
        inventory = using(lab(devices(1)), held("d00000", "open-ended", hours))
        found = ask(inventory, waiting("booked", begin=EPOCH + HOUR))
        assert found["booked"] == Wait(claim="booked", reason=WaitReason.NOT_AVAILABLE)


def test_a_later_alternative_is_taken_only_when_it_is_due() -> None:
    inventory = using(lab(device("hw", kind="hw"), device("vm", kind="vm")), held("hw", "other", 5))
    ladder = claim(request("r", one("kind == 'hw'"), one("kind == 'vm'", after_s=300)))
    patient = waiting("c", terms=ladder)
    found = ask(inventory, patient)
    assert found["c"] == Wait(
        claim="c",
        reason=WaitReason.NOT_AVAILABLE,
        starts=EPOCH + 5 * MINUTE,
        devices=("vm",),
    )
    assert started(ask(inventory, patient, now=EPOCH + 5 * MINUTE)) == {"c": ("vm",)}


def test_preemption_ends_the_cheapest_holders_that_suffice_and_no_more() -> None:
    """H17: a victim that is a gang ends as a whole."""
    inventory = using(
        lab(device("d0", kind="x"), device("d1", kind="x"), device("d2", kind="y")),
        held("d0", "gang"),
        held("d2", "gang"),
        held("d1", "single"),
    )
    old = EPOCH - HOUR
    holders = {
        "gang": Holder(name="gang", since=old, preemptible=True, priority=1),
        "single": Holder(name="single", since=old, preemptible=True),
    }
    one_x = claim(request("r", one("kind == 'x'")))
    two_x = claim(request("r", one("kind == 'x'", 2)))
    found = ask(inventory, waiting("c", terms=one_x, priority=5), holders=holders)
    assert found["c"] == Preempt(claim="c", holders=("single",), devices=("d1",))
    found = ask(
        inventory,
        waiting("c", terms=two_x, priority=5),
        waiting("d", terms=claim(request("r", one("kind == 'y'")))),
        holders=holders,
    )
    assert found["c"] == Preempt(claim="c", holders=("single", "gang"), devices=("d0", "d1"))
    # What the gang loses besides is free only when it has ended.
    assert isinstance(found["d"], Wait)


def test_a_claim_ends_others_for_what_is_not_promised_to_claims_before_it() -> None:
    """The simulator found a claim that ended no one, for a device that was promised already."""
    inventory = using(
        lab(*(device(f"d{number}", kind="x") for number in range(3))),
        held("d1", "cheap"),
        held("d2", "dear"),
    )
    old = EPOCH - HOUR
    holders = {
        "cheap": Holder(name="cheap", since=old, preemptible=True),
        "dear": Holder(name="dear", since=old, preemptible=True, priority=1),
    }
    found = ask(
        inventory,
        waiting("c", 2, priority=5, age_s=60),
        waiting("d", priority=5),
        holders=holders,
    )
    assert found["c"] == Preempt(claim="c", holders=("cheap",), devices=("d0", "d1"))
    assert found["d"] == Preempt(claim="d", holders=("dear",), devices=("d2",))


@pytest.mark.parametrize(
    "holder",
    [
        Holder(name="h", since=EPOCH - HOUR, priority=5, preemptible=True),
        Holder(name="h", since=EPOCH - HOUR, preemptible=False),
        Holder(name="h", since=EPOCH - MINUTE, preemptible=True),
    ],
    ids=["of the same priority", "not preemptible", "just started"],
)
def test_a_holder_is_not_ended_if_it_is(holder: Holder) -> None:
    inventory = using(lab(devices(1)), held("d00000", "h"))
    found = ask(inventory, waiting("c", priority=5), holders={"h": holder})
    assert isinstance(found["c"], Wait)


def test_what_can_never_be_served_is_told_so() -> None:
    assert ask(lab(devices(1)), waiting("c", 2))["c"] == Wait(
        claim="c", reason=WaitReason.UNSATISFIABLE
    )


def test_impossible_claims_use_up_no_reservation() -> None:
    inventory = using(lab(devices(2)), held("d00000", "a", 1), held("d00001", "b", 2))
    impossible = [waiting(f"no-{n}", 3 + n, age_s=99) for n in range(20)]
    found = ask(inventory, *impossible, waiting("gang", 2), waiting("small", age_s=-9, hours=3))
    assert found["gang"] == Wait(
        claim="gang",
        reason=WaitReason.NOT_AVAILABLE,
        starts=EPOCH + 2 * HOUR,
        devices=("d00000", "d00001"),
    )
    assert {d.reason for n, d in found.items() if n.startswith("no-") and isinstance(d, Wait)} == {
        WaitReason.UNSATISFIABLE
    }


def test_the_order_in_which_claims_are_listed_changes_nothing() -> None:
    claims = [waiting(f"c{n}", 1 + n % 3, age_s=n % 2, tenant=f"t{n % 2}") for n in range(9)]
    first = ask(lab(devices(8)), *claims)
    assert first == ask(lab(devices(8)), *reversed(claims))
    assert list(first) == list(ask(lab(devices(8)), *reversed(claims)))


def test_a_freed_device_affects_only_the_terms_that_could_use_it() -> None:
    allocator = allocator_of(lab(device("a", kind="a"), device("b", kind="b")))
    wants = {kind: claim(request("r", one(f"kind == '{kind}'"))) for kind in "abc"}
    either = claim(request("r", one("kind == 'c'"), one("kind == 'b'", after_s=60)))
    assert affected(allocator, [*wants.values(), either], "b") == [wants["b"], either]
