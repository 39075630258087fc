"""What one pass over claims may cost, and all of them together: counted, and bounded."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from bullpen.api.device_cel import checked_expression, compile_program
from bullpen.bench.hard_claims import claim, device, lab, one, request, two_distinct_attributes
from bullpen.core.claims import allocator as allocator_module
from bullpen.core.claims.allocator import Allocator, Verdict
from bullpen.core.claims.claim import Alternative, Criteria, Terms
from bullpen.core.claims.claim_queue import Queue, Start, Wait, WaitingClaim, WaitReason, decide
from bullpen.core.claims.criteria import ClassDefinition, CriteriaIndex
from bullpen.core.claims.explanation import explain
from bullpen.core.claims.inventory_index import InventoryIndex
from bullpen.core.claims.ledger import Ledger
from bullpen.core.claims.work import (
    BUDGET,
    BUDGET_MIN,
    BUDGETS_PER_PASS,
    LOOPS_MAX,
    LOOPS_MIN,
    PERIOD,
    QUESTIONS_MAX,
    QUESTIONS_MIN,
    PassBudget,
    loop_budget,
    question_budget,
)
from bullpen.kit.clock import EPOCH
from support.claim_reference import allocator_of

NINETY = "[" + ",".join(["1"] * 90) + "]"
LOOP = f"{NINETY}.all(i, {NINETY}.all(j, i * j > 0))"
BOUND = compile_program(LOOP).iterations(0)
MANY = InventoryIndex(lab([device(f"d{n}", serial=f"n{n}") for n in range(300)]))


def looping(number: int) -> Criteria:
    """Its loops are just below the limit of the evaluator on one device."""
    return Criteria(expressions=(checked_expression(f"{LOOP} && 'x{number}' != ''"),))


def test_passes_over_several_namespaces_share_what_long_loops_may_take() -> None:
    loops = loop_budget()
    taken = []
    for _ in range(10):
        loops.begin(EPOCH)
        # As a pass does that looks at the lab as it is, with all slots, and as if all were online.
        indexes = [CriteriaIndex(MANY, (), loops) for _ in range(3)]
        for number in range(5):
            for criteria in indexes:
                criteria.of_criteria(looping(number))
        taken.append(sum(criteria.evaluations for criteria in indexes) * BOUND)
    assert taken[0] <= LOOPS_MAX
    assert LOOPS_MIN // 2 < max(taken[1:]) <= LOOPS_MIN
    assert sum(taken) <= LOOPS_MAX + 9 * LOOPS_MIN
    loops.begin(EPOCH + PERIOD)
    again = CriteriaIndex(MANY, (), loops)
    again.of_criteria(looping(0))
    assert again.evaluations * BOUND > LOOPS_MAX - BOUND


def test_setting_the_clock_back_makes_nothing_available() -> None:
    loops = loop_budget()
    loops.begin(EPOCH)
    assert loops.spend(LOOPS_MAX)
    loops.begin(EPOCH - timedelta(days=1))
    assert not loops.spend(LOOPS_MIN + 1)
    assert loops.spend(LOOPS_MIN)


@pytest.mark.parametrize("of_class", [False, True], ids=["own selector", "selector of a class"])
def test_a_claim_whose_selector_was_cut_short_is_not_told_that_nothing_matches(
    of_class: bool,
) -> None:
    loops = loop_budget()
    loops.begin(EPOCH)
    assert loops.spend(LOOPS_MAX)
    classes = (ClassDefinition(name="slow", criteria=looping(0)),)
    allocator = Allocator(MANY, CriteriaIndex(MANY, classes, loops))
    asked = Alternative(device_class="slow") if of_class else Alternative(criteria=looping(0))
    for count in (1, 2):
        answer = allocator.allocate(_terms(replace(asked, count=count)), Ledger(MANY))
        assert answer.verdict is Verdict.UNKNOWN
    other = _terms(Alternative(criteria=Criteria(expressions=(_never(),))))
    assert allocator.allocate(other, Ledger(MANY)).verdict is Verdict.UNSATISFIABLE


def test_a_pass_tries_so_many_combinations_for_all_claims_together() -> None:
    hard = two_distinct_attributes()
    budget, count = 100, 40
    claims = [_waiting(f"c{n:02}", _varied(hard.terms, n)) for n in range(count)]
    easy = _waiting("easy", claim(request("r")))
    allocator = allocator_of(hard.inventory)
    queue = Queue(claims=(*claims, easy))
    found = {d.claim: d for d in decide(allocator, queue, now=EPOCH, budget=budget)}
    assert isinstance(found["easy"], Start)
    unknown = [d for d in found.values() if isinstance(d, Wait)]
    assert {d.reason for d in unknown} == {WaitReason.UNKNOWN}
    # Each claim may end one step beyond what it was allowed.
    assert allocator.steps <= budget * BUDGETS_PER_PASS + count * (BUDGET_MIN + 1)


def test_claims_that_ask_for_the_same_use_up_the_budget_once() -> None:
    hard = two_distinct_attributes()
    claims = tuple(_waiting(f"c{n:02}", hard.terms) for n in range(40))
    allocator = allocator_of(hard.inventory)
    decide(allocator, Queue(claims=claims), now=EPOCH, budget=100)
    assert allocator.questions == 1
    assert allocator.steps <= 101


def test_what_was_not_answered_leaves_half_of_the_next_pass_to_others() -> None:
    hard = two_distinct_attributes()
    budget = hard.steps_max
    older = [_waiting(f"a{n:02}", _varied(hard.terms, n)) for n in range(60)]
    allocator = allocator_of(hard.inventory)
    for _ in range(2):
        decide(allocator, Queue(claims=tuple(older)), now=EPOCH, budget=budget // 3)
    answerable = _waiting("z", hard.terms)
    queue = Queue(claims=(*older, answerable))
    (*_, last) = decide(allocator, queue, now=EPOCH, budget=budget)
    assert last.claim == "z"
    assert isinstance(last, Wait)
    assert last.reason is WaitReason.UNSATISFIABLE


def test_an_explanation_tries_so_many_combinations_for_all_it_asks() -> None:
    """It asks again with one thing changed, up to 64 times."""
    hard = two_distinct_attributes()
    (asked,) = hard.terms.requests
    many = tuple(replace(asked, name=f"r{n}") for n in range(30))
    terms = replace(hard.terms, requests=many)
    allocator = allocator_of(hard.inventory)
    explain(allocator, terms, (), now=EPOCH, budget=PassBudget(100))
    assert allocator.questions > 30
    assert allocator.steps <= 100 * BUDGETS_PER_PASS + allocator.questions * (BUDGET_MIN + 1)


def test_questions_of_clients_share_what_may_be_tried() -> None:
    questions = question_budget()
    taken = 0
    for _ in range(1_000):
        questions.begin(EPOCH)
        budget = PassBudget(BUDGET, 2 * questions.available)
        while (most := budget.of_claim()) > BUDGET_MIN:
            budget.spent(most)
        taken += budget.used
        questions.spend(min(budget.used, questions.available))
    assert taken <= QUESTIONS_MAX + 1_000 * QUESTIONS_MIN
    questions.begin(EPOCH + PERIOD / 2)
    assert questions.available == QUESTIONS_MAX // 2


def test_an_index_that_knows_too_much_is_made_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(allocator_module, "KNOWN_MAX", 5)
    found = allocator_of(lab(device("d")))
    for number in range(5):
        found.allocate(claim(request("r", one(f"kind == 'k{number}'"))), Ledger(found.index))
    assert found.reusable
    found.allocate(claim(request("r", one("kind == 'k9'"))), Ledger(found.index))
    assert not found.reusable


def _terms(alternative: Alternative) -> Terms:
    return claim(request("r", alternative))


def _never() -> Any:
    return checked_expression("serial == 'none'")


def _varied(terms: Terms, number: int) -> Terms:
    """The same question in other terms."""
    (asked,) = terms.requests
    return replace(terms, requests=(replace(asked, name=f"r{number}"),))


def _waiting(name: str, terms: Terms) -> WaitingClaim:
    return WaitingClaim(name=name, terms=terms, since=EPOCH, duration=timedelta(hours=1))
