"""Why a claim is not served: each text names what is missing, who has it, and what would help."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta

import pytest

from bullpen.api.device_cel import stored_expression
from bullpen.bench.hard_claims import claim, device, devices, different, lab, one, request, same
from bullpen.core.claims.allocator import Verdict
from bullpen.core.claims.claim import Constraint, Criteria, Terms
from bullpen.core.claims.criteria import ClassDefinition
from bullpen.core.claims.explanation import Explanation, explain
from bullpen.core.claims.inventory import NANOS, Inventory, Taint, Use
from bullpen.core.claims.why_not import why_not
from bullpen.kit.clock import EPOCH
from support.claim_reference import allocate, allocator_of, random_instance

HOUR = timedelta(hours=1)


def used(*names: str, hours: Sequence[int | None] = (1, 2, 3, 4)) -> tuple[Use, ...]:
    ends = [EPOCH + hour * HOUR if hour is not None else None for hour in hours]
    return tuple(
        Use(device=name, holder=f"lease-of-{name}", until=end)
        for name, end in zip(names, ends, strict=False)
    )


def told(inventory: Inventory, terms: Terms, waited_s: int = 0) -> Explanation:
    return explain(
        allocator_of(inventory),
        terms,
        inventory.uses,
        now=EPOCH,
        waited=timedelta(seconds=waited_s),
    )


def reasons(found: Explanation) -> list[str]:
    return [str(reason) for reason in found.reasons]


def test_the_funnel_counts_what_each_condition_leaves() -> None:
    inventory = lab(
        device("a", kind="board", slots=4),
        replace(device("b", kind="board", slots=4), blocked="offline"),
        replace(device("c", kind="board", slots=4), taints=(Taint(key="broken"),)),
        device("d", kind="board"),
        device("e", kind="camera", slots=4),
    )
    inventory = replace(inventory, uses=used("a"))
    found = told(inventory, claim(request("dut", one("kind == 'board' && device.slots > 3"))))
    assert str(found.funnels[0]) == (
        "dut needs 1: known 5 → class 5 → selector 3 → capacity 3 → allowed 3 → enabled 2"
        " → untainted 1 → free 0 (selector errors on 1)"
    )
    assert found.funnels[0].narrowest == "free"


def test_requests_that_compete_for_too_few_devices_are_named_together() -> None:
    inventory = lab(devices(2, "a", kind="a"), devices(9, "b", kind="b"))
    terms = claim(
        request("other", one("kind == 'b'")),
        request("dut", one("kind == 'a'", 2)),
        request("spare", one("kind == 'a'")),
    )
    found = told(inventory, terms)
    assert reasons(found) == ["dut and spare together need 3, only a00000 and a00001 qualify"]
    assert found.relaxation == "with 1 instead of 2 for dut"
    assert not found.possible


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("kynd == 'board'", ": no device has kynd"),
        ("device.kind > 3", ""),
        ("kind == 'board' && device.nothing > 3", ""),
    ],
    ids=["attribute that none has", "wrong type", "attribute that none has, in CEL"],
)
def test_a_selector_that_can_be_evaluated_nowhere_is_named(text: str, why: str) -> None:
    found = told(lab(devices(3, kind="board")), claim(request("dut", one(text))))
    assert reasons(found) == [
        f"dut: the selector {text} cannot be evaluated on any device{why}",
        "dut needs 1, no free device qualifies",
    ]
    other = claim(request("dut", one(text, name="odd"), one("kind == 'board'", 4, name="usual")))
    assert reasons(told(lab(devices(3, kind="board")), other))[0].startswith("dut/odd: the sel")


def test_a_selector_that_can_be_evaluated_on_one_device_is_no_reason() -> None:
    found = told(
        lab(device("a", kynd="camera"), devices(3)), claim(request("dut", one("kynd == 'board'")))
    )
    assert reasons(found) == ["dut needs 1, no free device qualifies"]
    empty = told(lab(), claim(request("dut", one("kynd == 'board'"))))
    assert reasons(empty) == ["dut needs 1, no free device qualifies"]


def test_a_class_with_an_expression_that_does_not_compile_is_named() -> None:
    """A cluster accepts it, because its policies cannot compile an expression."""
    criteria = Criteria(expressions=(stored_expression("kind =="),))
    allocator = allocator_of(
        lab(devices(2, kind="board")), [ClassDefinition(name="board", criteria=criteria)]
    )
    terms = claim(request("dut", one(device_class="board")))
    said = reasons(explain(allocator, terms, (), now=EPOCH))
    assert said[0].startswith(
        "dut: the selector kind == cannot be evaluated on any device: the expression does not"
    )


def test_a_join_that_is_short_at_every_site_says_how_near_each_comes() -> None:
    inventory = lab(
        device("a0", site="brno"), device("a1", site="brno"), device("a2", site="prague")
    )
    found = told(inventory, claim(request("dut", one(count=3)), same("site")))
    assert reasons(found) == ["no value of site has all: site brno 2 of 3, site prague 1 of 3"]
    assert found.relaxation == "without the match constraint on site"


def test_constraints_that_can_only_be_kept_one_at_a_time_are_named_together() -> None:
    inventory = lab(
        device("a", site="brno", rack="r1"),
        device("b", site="brno", rack="r2"),
        device("c", site="prague", rack="r1"),
    )
    pair = request("dut", one(count=2))
    found = told(inventory, claim(pair, same("site"), same("rack"), different("maker")))
    assert reasons(found)[0] == "no free device that qualifies has the attribute maker"
    found = told(inventory, claim(pair, same("site", "dut"), same("rack")))
    assert reasons(found) == [
        "no free devices that qualify keep match on site of dut and match on rack together"
    ]


def test_alternatives_that_are_each_too_few_are_named_one_by_one() -> None:
    ladder = request("dut", one("kind == 'a'", 2, name="fast"), one("kind == 'b'", 4, name="slow"))
    found = told(lab(device("a", kind="a"), devices(3, "b", kind="b")), claim(ladder))
    assert reasons(found) == [
        "dut/fast needs 2, only a qualifies",
        "dut/slow needs 4, only b00000, b00001 and b00002 qualify",
    ]


def test_a_total_that_is_not_reached_says_how_near_the_free_devices_come() -> None:
    inventory = lab(*(device(f"d{n}", mem=15 * NANOS) for n in range(9)))
    split = one(totals=(("mem", 128 * NANOS),), count_max=8)
    found = told(inventory, claim(request("gpu", split)))
    assert reasons(found) == [
        "gpu needs mem of 128 in total from at most 8 devices, the free ones that qualify reach 120"
    ]


def test_every_claim_that_cannot_be_served_is_given_a_reason() -> None:
    refused = 0
    for seed in range(600):
        inventory, terms = random_instance(random.Random(seed))
        found = told(inventory, terms)
        if found.answer.verdict is Verdict.UNSATISFIABLE:
            refused += 1
            assert found.reasons, seed
    assert refused > 200


def test_too_few_different_values_are_counted() -> None:
    inventory = lab(*(device(f"a{n}", host=f"h{n % 2}") for n in range(6)))
    found = told(inventory, claim(request("dut", one(count=3)), different("host")))
    assert reasons(found) == ["3 different values of host are needed, 2 are available"]


def test_the_counter_that_ran_out_is_named() -> None:
    inventory = lab(
        [device(f"a{n}", draws={"slots": NANOS, "watts": NANOS}) for n in range(4)],
        slots=2 * NANOS,
        watts=9 * NANOS,
    )
    found = told(inventory, claim(request("dut", one(count=3))))
    assert reasons(found) == ["counter slots has only 2 left"]
    assert found.relaxation == "with 2 instead of 3 for dut"


def test_the_leases_in_the_way_are_listed_with_their_ends_and_the_start_follows() -> None:
    inventory = replace(lab(devices(3)), uses=used("d00000", "d00001", "d00002", hours=(3, 1, 2)))
    found = told(inventory, claim(request("dut", one(count=2))))
    assert found.answer.verdict is Verdict.UNSATISFIABLE
    assert str(found.blockers[0]) == ("lease-of-d00001 has d00001 until 2026-01-01T01:00:00Z")
    assert found.starts == EPOCH + 2 * HOUR
    assert found.possible


def test_without_a_known_end_there_is_no_start_and_it_is_still_possible() -> None:
    inventory = replace(lab(devices(1)), uses=used("d00000", hours=(None,)))
    found = told(inventory, claim(request("dut")))
    assert found.starts is None
    assert found.possible
    assert str(found.blockers[0]) == "lease-of-d00000 has d00000 without a known end"


def test_an_alternative_opens_only_when_it_is_due_and_the_text_says_when() -> None:
    inventory = replace(
        lab(device("hw", kind="hw"), device("vm", kind="vm")), uses=used("hw", hours=(5,))
    )
    ladder = request(
        "dut", one("kind == 'hw'", name="hw"), one("kind == 'vm'", name="vm", after_s=300)
    )
    found = told(inventory, claim(ladder), waited_s=60)
    assert found.answer.verdict is Verdict.UNSATISFIABLE
    assert found.relaxation == "in 4m0s, when the next alternative opens"
    assert found.starts == EPOCH + timedelta(minutes=4)
    assert told(inventory, claim(ladder), waited_s=300).answer.devices == ("vm",)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("b-wrong", "the selector kind == 'board' does not match it"),
        ("c-off", "it is offline"),
        ("d-tainted", "it is tainted: broken:NoSchedule"),
        ("e-used", "lease-of-e-used has e-used until 2026-01-01T01:00:00Z"),
        ("f-free", "it qualifies and is free"),
        ("g-odd", "the selector kind == 'board' cannot be evaluated on it"),
    ],
)
def test_why_not_names_the_first_condition_that_one_device_fails(name: str, said: str) -> None:
    board = device("x", kind="board")
    inventory = Inventory(
        devices=(
            replace(board, name="b-wrong", attributes={"kind": "camera"}),
            replace(board, name="c-off", blocked="offline"),
            replace(board, name="d-tainted", taints=(Taint(key="broken"),)),
            replace(board, name="e-used"),
            replace(board, name="f-free"),
            replace(board, name="g-odd", attributes={}),
        ),
        uses=used("e-used"),
    )
    terms = claim(request("dut", one("kind == 'board'")))
    found = why_not(allocator_of(inventory), terms, inventory.uses, name)
    assert found == (f"dut: {said}",)


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize(
    ("constraint", "said"),
    [
        (same("site"), "with it, nothing keeps the match constraint on site"),
        (same("site", "dut"), "it qualifies and is free"),
        (same("site", prefer=True), "it qualifies and is free"),
        (different("site"), "it qualifies and is free"),
    ],
    ids=["match", "not with the other request", "preferred", "distinct"],
)
def test_why_not_names_the_constraint_that_an_exporter_cannot_keep(
    count: int, constraint: Constraint, said: str
) -> None:
    """All boards qualify, and only those in Brno have a peer at their site."""
    sites = ("prague", "prague", "brno", "brno")
    boards = [device(f"b{n}", kind="b", site=s, exporter=f"b{n}") for n, s in enumerate(sites)]
    count = 1 if constraint.distinct else count
    inventory = lab(boards, device("p", kind="p", site="brno", exporter="p"))
    terms = claim(
        request("dut", one("kind == 'b'", count)), request("peer", one("kind == 'p'")), constraint
    )
    found = why_not(allocator_of(inventory), terms, (), "b0")
    assert found[0] == f"dut: {said}"


def test_why_not_of_an_unknown_device_says_so() -> None:
    assert why_not(allocator_of(lab()), claim(request("dut")), (), "x") == ("there is no device x",)


def test_the_start_is_the_first_end_at_which_the_allocator_succeeds() -> None:
    """Compared with trying every end in turn, on random instances with random ends."""
    later = 0
    for seed in range(400):
        source = random.Random(seed)
        inventory, terms = random_instance(source)
        ends = {u.device: EPOCH + source.randint(1, 5) * HOUR for u in inventory.uses}
        uses = tuple(replace(u, until=ends[u.device]) for u in inventory.uses)
        found = told(replace(inventory, uses=uses), terms)
        expected = None
        for moment in sorted({EPOCH, *ends.values()}):
            left = tuple(u for u in uses if ends[u.device] > moment)
            if allocate(replace(inventory, uses=left), terms).verdict is Verdict.SATISFIED:
                expected = moment
                break
        assert found.starts == expected, seed
        assert found.possible == (expected is not None), seed
        later += expected is not None and expected > EPOCH
    assert later > 20
