"""What a waiting claim is told: true after the pass, also about claims of the same pass."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta

import pytest

from bullpen.bench.hard_claims import claim, device, lab, one, request, same
from bullpen.core.claims.claim import Terms
from bullpen.core.claims.claim_queue import (
    Preempt,
    Queue,
    Reservation,
    Start,
    Wait,
    WaitingClaim,
    decide,
    decide_all,
)
from bullpen.core.claims.explanation import Explanation, explain
from bullpen.core.claims.inventory import Inventory, Use
from bullpen.core.claims.preemption_victims import Holder
from bullpen.core.claims.why_not import why_not
from bullpen.kit.clock import EPOCH
from support.claim_reference import allocator_of, random_instance

HOUR = timedelta(hours=1)


def wanting(name: str, terms: Terms, **more: object) -> WaitingClaim:
    asked = WaitingClaim(name=name, terms=terms, since=EPOCH, duration=HOUR)
    return replace(asked, **more)  # type: ignore[arg-type]


def told(inventory: Inventory, queue: Queue, name: str) -> Explanation:
    """As a pass over the claims of a namespace explains a claim that waits."""
    allocator = allocator_of(inventory)
    decided = decide_all(allocator, queue, now=EPOCH)
    asked = next(c for c in queue.claims if c.name == name)
    return explain(
        allocator,
        asked.terms,
        (*queue.uses, *decided.left().given),
        now=EPOCH,
        waited=EPOCH - asked.since,
        allowed=asked.allowed,
        duration=asked.duration,
        reservations=(
            *queue.reservations,
            *(r for r in decided.left().reserved if r.claim != name),
        ),
        with_room=decided.left().with_room,
    )


TWO_SITES = lab(*(device(f"{site}{n}", site=site) for site in "ab" for n in range(2)))


def test_a_claim_is_told_which_claim_of_the_same_pass_gets_what_it_needs() -> None:
    queue = Queue(
        claims=(
            wanting("c", claim(request("r", one("site == 'a'", 2)))),
            wanting("d", claim(request("r", one("site == 'a'")))),
        )
    )
    found = told(TWO_SITES, queue, "d")
    assert [str(b) for b in found.blockers] == ["c has a0 and a1 until 2026-01-01T01:00:00Z"]
    assert [str(r) for r in found.reasons] == ["r needs 1, no free device qualifies"]


def test_no_change_is_said_to_help_whose_devices_are_promised() -> None:
    """Without its constraint it could have a device of each site, if nobody else got them."""
    pair = claim(request("r", one(count=2)), same("site"))
    uses = (Use(device="a0", holder="x"), Use(device="b0", holder="x"))
    inventory = replace(TWO_SITES, uses=uses)
    queue = Queue(claims=(wanting("d", pair),), uses=uses)
    assert told(inventory, queue, "d").relaxation == "without the match constraint on site"
    other = wanting("c", claim(request("r", one("site == 'a'"))))
    queue = Queue(claims=(other, wanting("d", pair)), uses=uses)
    assert told(inventory, queue, "d").relaxation == "with 1 instead of 2 for r"


def test_what_is_kept_for_a_claim_that_others_end_for_is_not_free() -> None:
    uses = (Use(device="a0", holder="cheap"),)
    holders = {"cheap": Holder(name="cheap", since=EPOCH - HOUR, preemptible=True)}
    urgent = wanting("c", claim(request("r", one("site == 'a'", 2))), priority=5)
    late = wanting("d", claim(request("r", one("site == 'a'"))))
    queue = Queue(claims=(urgent, late), uses=uses, holders=holders)
    assert isinstance(decide(allocator_of(TWO_SITES), queue, now=EPOCH)[0], Preempt)
    found = told(replace(TWO_SITES, uses=uses), queue, "d")
    assert [(b.holder, b.devices) for b in found.blockers] == [("c", ("a1",)), ("cheap", ("a0",))]


def test_no_claim_is_promised_what_others_end_for_before_it_is_over() -> None:
    uses = tuple(Use(device=d, holder="cheap", until=EPOCH + HOUR) for d in ("a0", "a1"))
    holders = {"cheap": Holder(name="cheap", since=EPOCH - HOUR, preemptible=True)}
    pair = claim(request("r", one("site == 'a'", 2)))
    urgent = wanting("c", pair, priority=5, duration=4 * HOUR)
    queue = Queue(claims=(urgent, wanting("d", pair)), uses=uses, holders=holders)
    found = {d.claim: d for d in decide(allocator_of(TWO_SITES), queue, now=EPOCH)}
    assert isinstance(found["c"], Preempt)
    late = found["d"]
    assert isinstance(late, Wait)
    assert late.starts == EPOCH + 4 * HOUR


def test_a_change_helps_if_claims_ahead_could_exchange_their_devices_for_it() -> None:
    first = wanting("c", claim(request("r")))
    crowd = [wanting(f"z{n}", claim(request("r", one("site == 'b'", 2)))) for n in range(2)]
    uses = (Use(device="b0", holder="x"),)
    second = wanting("d", claim(request("r", one("site == 'a'", 2)), same("rack")))
    queue = Queue(claims=(first, second, *crowd), uses=uses)
    decided = decide_all(allocator_of(TWO_SITES), queue, now=EPOCH)
    served = next(d for d in decided.decisions if isinstance(d, Start))
    assert served.answer.devices == ("a0",)
    bare = replace(second.terms, constraints=())
    assert decided.left().with_room(bare, -1)
    assert served.answer.devices == ("a0",), "nothing was exchanged"
    found = told(replace(TWO_SITES, uses=uses), queue, "d")
    assert found.relaxation == "without the match constraint on rack"


def test_booked_devices_are_named_and_the_time_after_the_booking_is_found() -> None:
    booked = Reservation(claim="lease x", devices=1, begin=EPOCH + HOUR / 2, end=EPOCH + 2 * HOUR)
    found = explain(
        allocator_of(lab(device("d0"))),
        claim(request("r")),
        (),
        now=EPOCH,
        duration=HOUR,
        reservations=(booked,),
    )
    assert found.starts == EPOCH + 2 * HOUR
    assert found.possible
    assert [str(kept) for kept in found.kept] == [
        "d0 is kept for lease x from 2026-01-01T00:30:00Z on"
    ]
    assert str(found.funnels[0]).endswith("free 1 → not reserved 0")
    assert why_not(
        allocator_of(lab(device("d0"))), claim(request("r")), (), "d0", reserved=(booked,)
    ) == ("r: d0 is kept for lease x from 2026-01-01T00:30:00Z on",)
    short = explain(
        allocator_of(lab(device("d0"))),
        claim(request("r")),
        (),
        now=EPOCH,
        duration=HOUR / 2,
        reservations=(booked,),
    )
    assert short.starts == EPOCH


@pytest.mark.parametrize("part", range(3))
def test_a_change_that_is_said_to_help_does_help(part: int) -> None:
    """The claim with the change is served in its place of the same queue, and was not before."""
    helped = 0
    for seed in range(part * 300, part * 300 + 300):
        source = random.Random(seed)
        inventory, _ = random_instance(source)
        claims = tuple(_claims(source))
        queue = Queue(claims=claims, uses=inventory.uses)
        allocator = allocator_of(inventory)
        decided = decide_all(allocator, queue, now=EPOCH)
        for decision in decided.decisions:
            if not isinstance(decision, Wait):
                continue
            found = told(inventory, queue, decision.claim)
            if not found.relaxation:
                continue
            asked = next(c for c in claims if c.name == decision.claim)
            starts = 0
            for changed in _changes(asked, found.relaxation):
                queued = tuple(changed if c is asked else c for c in claims)
                again = decide(allocator_of(inventory), replace(queue, claims=queued), now=EPOCH)
                starts += any(isinstance(d, Start) and d.claim == asked.name for d in again)
            assert starts, (seed, found.relaxation)
            helped += 1
    assert helped > 10


def _claims(source: random.Random) -> Iterator[WaitingClaim]:
    for number in range(4):
        _, terms = random_instance(source)
        yield wanting(f"c{number}", terms)


def _changes(asked: WaitingClaim, said: str) -> Iterator[WaitingClaim]:
    """The claim with the change that a text describes."""
    terms = asked.terms
    if said.startswith("without the "):
        kind, attribute = said.removeprefix("without the ").split(" constraint on ")
        for number, constraint in enumerate(terms.constraints):
            same_kind = constraint.distinct is (kind == "distinct")
            if same_kind and constraint.attribute == attribute and not constraint.prefer:
                rest = (*terms.constraints[:number], *terms.constraints[number + 1 :])
                yield replace(asked, terms=replace(terms, constraints=rest))
    else:
        count, _, _, most, _, name = said.removeprefix("with ").split()
        for number, each in enumerate(terms.requests):
            for place, alternative in enumerate(each.alternatives):
                if each.name == name and alternative.count == int(most):
                    smaller = replace(alternative, count=int(count))
                    others = each.alternatives
                    alternatives = (*others[:place], smaller, *others[place + 1 :])
                    changed = replace(each, alternatives=alternatives)
                    requests = (*terms.requests[:number], changed, *terms.requests[number + 1 :])
                    yield replace(asked, terms=replace(terms, requests=requests))
