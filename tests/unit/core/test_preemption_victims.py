"""Who ends for a claim of a higher priority: the cheapest that suffice, found with little work."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import timedelta

import pytest

from bullpen.bench.hard_claims import claim, device, devices, kinds, lab, one, request
from bullpen.core.claims import claim_queue
from bullpen.core.claims.claim import Terms
from bullpen.core.claims.claim_queue import Decision, Preempt, Queue, Start, WaitingClaim, decide
from bullpen.core.claims.inventory import Inventory, Use
from bullpen.core.claims.inventory_index import InventoryIndex
from bullpen.core.claims.ledger import Ledger
from bullpen.core.claims.preemption_victims import VICTIMS_MAX, Holder
from bullpen.kit.clock import EPOCH
from support.claim_reference import allocator_of, brute_force, random_instance

HOUR = timedelta(hours=1)


def urgent(name: str, terms: Terms, **more: object) -> WaitingClaim:
    asked = WaitingClaim(name=name, terms=terms, since=EPOCH, duration=HOUR, priority=9)
    return replace(asked, **more)  # type: ignore[arg-type]


def using(inventory: Inventory, uses: Sequence[Use]) -> Inventory:
    return replace(inventory, uses=tuple(uses))


def of_kind(number: int) -> Terms:
    return claim(request("r", one(f"kind == 'k{number}'")))


def preemptible(*names: str) -> dict[str, Holder]:
    return {
        name: Holder(name=name, since=EPOCH - HOUR, priority=rank, preemptible=True)
        for rank, name in enumerate(names)
    }


def test_victims_are_those_that_a_search_without_shortcuts_finds() -> None:
    ended = several = 0
    for seed in range(1_500):
        source = random.Random(seed)
        inventory, terms = random_instance(source)
        uses = [replace(use, holder=f"h{source.randint(0, 3)}") for use in _uses(source, inventory)]
        inventory = using(inventory, uses)
        holders = preemptible(*sorted({use.holder for use in uses}))
        asked = urgent("c", terms)
        queue = Queue(claims=(asked,), uses=inventory.uses, holders=holders)
        (found,) = decide(allocator_of(inventory), queue, now=EPOCH)
        expected = _expected(inventory, terms, holders)
        assert isinstance(found, Start) is (expected == ()), seed
        assert (found.holders if isinstance(found, Preempt) else None) == (expected or None), seed
        ended += isinstance(found, Preempt)
        several += isinstance(found, Preempt) and len(found.holders) > 1
    assert ended > 100
    assert several > 10


def test_a_pass_that_ends_nobody_looks_at_what_is_in_use_a_fixed_number_of_times(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each look costs as much as the lab is large."""

    def looks(waiting: int) -> int:
        count = 0

        class Counted(Ledger):
            def take(self, number: int, share: object) -> None:
                nonlocal count
                count += 1
                super().take(number, share)  # type: ignore[arg-type]

        monkeypatch.setattr(claim_queue, "Ledger", Counted)
        uses = [Use(device=d.name, holder="x") for d in devices(100)]
        vain = [urgent(f"c{n:03}", of_kind(n)) for n in range(waiting)]
        queue = Queue(claims=tuple(vain), uses=tuple(uses))
        assert not any(
            isinstance(d, Start) for d in decide(allocator_of(lab(devices(100))), queue, now=EPOCH)
        )
        return count

    assert looks(500) == looks(10)


def test_a_claim_that_none_can_help_costs_one_question_more() -> None:
    """However many holders there are: they are asked about together first."""
    found = kinds(1, 200)
    uses = [Use(device=d.name, holder=d.name) for d in found]
    holders = preemptible(*(d.name for d in found))
    for number in (0, 1):
        terms = claim(request("r", one(f"kind == 'k{number}'", VICTIMS_MAX + 1)))
        allocator = allocator_of(lab(found))
        queue = Queue(claims=(urgent("c", terms),), uses=tuple(uses), holders=holders)
        (decision,) = decide(allocator, queue, now=EPOCH)
        assert not isinstance(decision, Preempt)
        # One for what is free, one for what the victims have, one for when it could start.
        assert allocator.questions <= 3


def test_the_work_for_one_claim_does_not_grow_with_the_holders() -> None:
    questions = []
    for count in (100, 400):
        found = kinds(1, count)
        uses = [Use(device=d.name, holder=d.name) for d in found]
        allocator = allocator_of(lab(found))
        holders = preemptible(*(d.name for d in found))
        wants = claim(request("r", one("kind == 'k0'", 8)))
        queue = Queue(claims=(urgent("c", wants),), uses=tuple(uses), holders=holders)
        (decision,) = decide(allocator, queue, now=EPOCH)
        assert isinstance(decision, Preempt)
        assert decision.holders == tuple(d.name for d in found[:8])
        questions.append(allocator.questions)
    assert questions[0] == questions[1] <= 20


def test_a_holder_and_a_waiting_claim_may_have_the_same_name() -> None:
    """A lease and a claim may. What the claim gets in this pass is not the lease's to give."""
    inventory = using(lab(device("d0"), device("d1")), [Use(device="d0", holder="same")])
    holders = preemptible("same")
    first = urgent("same", claim(request("r")))
    second = urgent("z", claim(request("r", one(count=2))))
    queue = Queue(claims=(first, second), uses=inventory.uses, holders=holders)
    found = {d.claim: d for d in decide(allocator_of(inventory), queue, now=EPOCH)}
    assert isinstance(found["same"], Start)
    assert not isinstance(found["z"], Preempt)


def test_a_counter_that_was_promised_is_not_promised_again() -> None:
    inventory = Inventory(
        devices=tuple(replace(device(f"d{n}"), draws=(("usb", 1),)) for n in range(4)),
        counters={"usb": 2},
        uses=(Use(device="d0", holder="a"), Use(device="d1", holder="b")),
    )
    first, second, third = (urgent(name, claim(request("r"))) for name in "xyz")
    queue = Queue(claims=(first, second, third), uses=inventory.uses, holders=preemptible("a", "b"))
    found: list[Decision] = list(decide(allocator_of(inventory), queue, now=EPOCH))
    assert [getattr(d, "holders", ()) for d in found] == [("a",), ("b",), ()]


def _uses(source: random.Random, inventory: Inventory) -> list[Use]:
    """As in the instance, and more of what draws on no counter."""
    used = {use.device for use in inventory.uses}
    more = [d for d in inventory.devices if d.name not in used and not d.draws]
    plain = [Use(device=d.name, holder="") for d in more if source.random() < 0.5]
    return [*inventory.uses, *plain]


def _expected(
    inventory: Inventory, terms: Terms, holders: Mapping[str, Holder]
) -> tuple[str, ...] | None:
    """The holders that end; empty if none has to; None if ending all does not help."""

    def serves(ended: Sequence[str]) -> bool:
        left = [use for use in inventory.uses if use.holder not in ended]
        return brute_force(using(inventory, left), terms) is not None

    if serves(()):
        return ()
    reach = allocator_of(inventory).usable(terms)
    index = InventoryIndex(inventory)
    having = {u.holder for u in inventory.uses if reach >> index.numbers[u.device] & 1}
    chosen: list[str] = []
    for name in sorted(having, key=lambda name: (holders[name].priority, name)):
        chosen.append(name)
        if serves(chosen):
            break
    else:
        return None
    for name in list(chosen):
        rest = [other for other in chosen if other != name]
        if serves(rest):
            chosen = rest
    return tuple(chosen)
