"""Instances on which searches of other schedulers explode: the answer, and a ceiling on work."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import pytest

from bullpen.api.device_selectors import parse_expression
from bullpen.bench.hard_claims import (
    INSTANCES,
    NO,
    YES,
    Hard,
    claim,
    device,
    devices,
    different,
    kinds,
    lab,
    one,
    request,
    same,
    two_distinct_attributes,
)
from bullpen.bench.hard_queues import QUEUES, HardQueue, outcome
from bullpen.core.claims.allocator import Verdict
from bullpen.core.claims.claim import Constraint, Criteria
from bullpen.core.claims.claim_queue import affected
from bullpen.core.claims.criteria import ClassDefinition
from bullpen.core.claims.inventory import Inventory
from bullpen.core.claims.inventory_index import InventoryIndex
from bullpen.core.claims.ledger import Ledger
from support.claim_reference import allocate, allocator_of

UNKNOWN = Verdict.UNKNOWN


@pytest.mark.parametrize("make", INSTANCES, ids=lambda make: make.__name__)
def test_a_hard_instance_is_answered_with_little_work(make: Callable[[], Hard]) -> None:
    hard = make()
    answer = allocate(hard.inventory, hard.terms)
    assert answer.verdict is hard.verdict
    assert answer.steps <= hard.steps_max
    if hard.alternatives is not None:
        chosen = {k: v for k, v in answer.alternatives.items() if k in hard.alternatives}
        assert chosen == hard.alternatives


@pytest.mark.parametrize("make", QUEUES, ids=lambda make: make.__name__)
def test_a_hard_queue_is_decided_with_few_questions(make: Callable[[], HardQueue]) -> None:
    """H14 to H17: starvation, gangs that cross, bookings, and victims that are gangs."""
    hard = make()
    allocator, decisions = hard.answer(InventoryIndex(hard.inventory))
    assert Counter(map(outcome, decisions)) == hard.expected
    assert hard.first in (None, decisions[0])
    assert allocator.questions <= hard.questions_max
    assert allocator.steps <= hard.steps_max


def test_an_exhausted_budget_means_unknown_and_never_no() -> None:
    hard = two_distinct_attributes()
    answer = allocate(hard.inventory, hard.terms, budget=5)
    assert answer.verdict is UNKNOWN
    assert not answer.members


def test_equal_devices_under_different_names_cost_no_more_than_one() -> None:
    """H22: interchangeable devices are tried once, not in every order."""
    few, many = (
        lab([device(f"d{n:04}", host="h1", draws={"slots": 1}) for n in range(count)], slots=9)
        for count in (20, 2_000)
    )
    terms = claim(request("r", one(count=10)), different("rack", "other"))
    answers = [allocate(inventory, terms) for inventory in (few, many)]
    assert {answer.verdict for answer in answers} == {NO}
    assert answers[0].steps == answers[1].steps <= 30


def test_the_order_of_the_input_changes_no_answer() -> None:
    """H23: also not which of several equally good devices is taken."""
    source = random.Random(23)
    for make in INSTANCES:
        hard = make()
        if len(hard.inventory.devices) > 1_000:
            continue
        shuffled = list(hard.inventory.devices)
        source.shuffle(shuffled)
        other = replace(hard.inventory, devices=tuple(shuffled))
        assert allocate(other, hard.terms) == allocate(hard.inventory, hard.terms), hard.name


def test_a_flapping_device_costs_only_the_claims_that_could_use_it() -> None:
    """H13: once a second for a minute, 500 kinds of claims wait and two of them could use it."""
    inventory = lab(kinds(500, each=2))
    allocator = allocator_of(inventory)
    waiting = [claim(request("r", one(f"kind == 'k{n}'", 2))) for n in range(499)]
    waiting.append(claim(request("r", one("kind == 'k7'"), one("kind == 'k499'", after_s=60))))
    taken = Ledger(allocator.index)
    steps = answers = 0
    for second in range(60):
        ledger = taken.copy()
        ledger.unused = 0b11 if second % 2 else 0
        for terms in affected(allocator, waiting, inventory.devices[14].name):
            answers += 1
            steps += allocator.allocate(terms, ledger).steps
    assert answers == 2 * 60
    assert steps <= 2 * 60


def test_many_different_selectors_each_cost_one_step() -> None:
    """H12: no two claims share a selector, so no cache helps."""
    inventory = lab([device(f"d{n}", serial=f"n{n}") for n in range(200)])
    for number in range(200):
        answer = allocate(inventory, claim(request("r", one(f"serial == 'n{number}'"))))
        assert answer.devices == (f"d{number}",)
        assert answer.steps <= 1


def test_an_edited_class_is_seen_by_the_next_answer() -> None:
    """H18: the class is read when the claim is decided, not when it was created."""
    inventory = lab(device("old", model="a"), device("new", model="b"))
    terms = claim(request("r", one(device_class="board")))
    for model, expected in (("a", "old"), ("b", "new")):
        criteria = Criteria(expressions=(parse_expression(f"model == '{model}'"),))
        found = allocate(inventory, terms, [ClassDefinition(name="board", criteria=criteria)])
        assert found.devices == (expected,)


def test_all_of_a_pool_that_is_half_published_is_refused() -> None:
    """H19: with a part of the devices known, "all" would silently mean fewer."""
    found = tuple(replace(d, pool="shelf") for d in devices(3))
    terms = claim(request("r", one(every=True)))
    assert allocate(Inventory(devices=found), terms).verdict is YES
    partial = Inventory(devices=found[:2], incomplete=frozenset({"shelf"}))
    assert allocate(partial, terms).verdict is NO


def test_a_device_without_a_matched_attribute_is_not_eligible() -> None:
    inventory = lab(device("a"), device("b", site="x"), device("c", site="x"))
    answer = allocate(inventory, claim(request("r", one(count=2)), same("site")))
    assert answer.devices == ("b", "c")
    never = Constraint(attribute="unpublished")
    assert allocate(inventory, claim(request("r"), never)).verdict is NO
