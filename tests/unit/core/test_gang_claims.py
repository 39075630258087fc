"""Claims for several devices in one pass: room that others make, and what few others want."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta

import pytest

from bullpen.bench.hard_claims import claim, device, different, lab, one, request, same
from bullpen.core.claims import gang_claims
from bullpen.core.claims.allocator import Answer
from bullpen.core.claims.claim import Constraint, Terms
from bullpen.core.claims.claim_queue import Queue, Start, WaitingClaim, decide
from bullpen.core.claims.inventory import Inventory, InventoryDevice, Taint, Toleration
from bullpen.core.claims.ledger import Ledger
from bullpen.kit.clock import EPOCH
from support.claim_reference import allocator_of, brute_force, problems

HOUR = timedelta(hours=1)
SLOW = timedelta(minutes=1)


def wanting(name: str, terms: Terms, **more: object) -> WaitingClaim:
    """Of several claims, the one whose name comes first is the older."""
    asked = WaitingClaim(name=name, terms=terms, since=EPOCH, duration=HOUR)
    return replace(asked, **more)  # type: ignore[arg-type]


def several(count: int, selector: str = "", *constraints: Constraint) -> Terms:
    return claim(request("r", one(selector, count)), *constraints)


def answers(inventory: Inventory, *claims: WaitingClaim) -> dict[str, Answer]:
    found = decide(allocator_of(inventory), Queue(claims=claims), now=EPOCH)
    return {d.claim: d.answer for d in found if isinstance(d, Start)}


def served(inventory: Inventory, *claims: WaitingClaim) -> dict[str, set[str]]:
    return {name: set(answer.devices) for name, answer in answers(inventory, *claims).items()}


SITES = lab(*(device(f"{site}{n}", site=site) for site in "ab" for n in range(3)))


def test_a_gang_takes_what_the_fewest_claims_want() -> None:
    wanted = [wanting(f"z{n}", claim(request("r", one("site == 'a'")))) for n in range(2)]
    joined = wanting("c", several(2, "", same("site")))
    assert served(SITES, joined)["c"] == {"a0", "a1"}
    found = served(SITES, joined, *wanted)
    assert found["c"] == {"b0", "b1"}
    assert set().union(*(found[each.name] for each in wanted)) <= {"a0", "a1", "a2"}


def test_a_gang_takes_a_wanted_device_only_where_it_needs_one() -> None:
    inventory = lab(
        device("a", kind="x", rare="yes"),
        device("b", kind="y", rare="yes"),
        device("c", kind="y"),
    )
    gang = claim(request("x", one("kind == 'x'")), request("y", one("kind == 'y'")))
    crowd = [wanting(f"z{n}", several(1, "rare == 'yes'")) for n in range(3)]
    assert served(inventory, wanting("g", gang), *crowd)["g"] == {"a", "c"}


@pytest.mark.parametrize(
    "worse",
    [{"start": SLOW}, {"taints": (Taint(key="flaky"),)}],
    ids=["that has to be started", "that is tainted"],
)
def test_a_gang_takes_no_worse_device_to_leave_others_what_they_want(
    worse: dict[str, object],
) -> None:
    spare = [replace(device(f"spare{n}"), **worse) for n in range(2)]  # type: ignore[arg-type]
    inventory = lab(device("d0", kind="x"), device("d1", kind="x"), spare)
    tolerant = claim(request("r", one(count=2, tolerations=(Toleration(),))))
    crowd = [wanting(f"z{n}", several(1, "kind == 'x'")) for n in range(3)]
    assert served(inventory, wanting("g", tolerant), *crowd)["g"] == {"d0", "d1"}


def test_a_gang_keeps_what_it_was_given_whatever_others_want() -> None:
    wanted = [wanting(f"z{n}", several(1, "site == 'a'")) for n in range(2)]
    index = allocator_of(SITES).index
    kept = 1 << index.numbers["a1"] | 1 << index.numbers["a2"]
    joined = wanting("c", several(2, "", same("site")), kept=kept)
    assert served(SITES, joined, *wanted)["c"] == {"a1", "a2"}


def test_single_claims_make_room_for_a_gang() -> None:
    """Two claims have a device of each site; the gang needs all of one."""
    crowd = [wanting(f"z{n}", several(3, "site == 'a'", same("site"))) for n in range(3)]
    small = [wanting(name, claim(request("r"))) for name in ("s1", "s2", "s3")]
    found = served(SITES, *small, *crowd)
    assert set().union(*(found[each.name] for each in small)) == {"b0", "b1", "b2"}
    gang = wanting("t", several(3, "site == 'b'"))
    found = served(SITES, *small, gang, *crowd)
    assert found["t"] == {"b0", "b1", "b2"}
    assert set().union(*(found[each.name] for each in small)) == {"a0", "a1", "a2"}


def test_a_gang_makes_room_for_a_claim_for_one_device_within_its_constraint() -> None:
    inventory = lab(
        device("a0", site="a", rare="yes"),
        device("a1", site="a"),
        device("a2", site="a"),
        device("b0", site="b"),
    )
    gang = wanting("g", several(2, "", same("site")))
    # The crowd wants what the gang does not need, so that it first takes the rare one.
    crowd = [wanting(f"x{n}", several(1, "!has(device.rare) && site == 'a'")) for n in range(3)]
    rare = wanting("h", several(1, "rare == 'yes'"))
    found = served(inventory, gang, rare, *crowd)
    assert found["g"] == {"a1", "a2"}
    assert found["h"] == {"a0"}


def test_nothing_is_exchanged_for_a_gang_that_is_not_served_after_all() -> None:
    small = [wanting(f"s{n}", claim(request("r"))) for n in range(4)]
    alone = served(SITES, *small, wanting("t", several(3, "site == 'c'")))
    beside = served(SITES, *small, wanting("t", several(3, "", same("site"))))
    assert set(beside) == set(alone)
    assert beside == alone


def test_sets_that_cannot_be_made_free_are_limited_in_a_pass(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(gang_claims, "SETS_TOTAL_MAX", 5)
    inventory = lab(*(device(f"d{n:02}", site=f"s{n % 8}") for n in range(32)))
    small = [wanting(f"s{n:02}", several(1, f"site == 's{n % 8}'")) for n in range(24)]
    vain = [wanting(f"t{n:02}", several(2 + n % 2, f"site == 's{n % 8}'")) for n in range(16)]
    allocator = allocator_of(inventory)
    decide(allocator, Queue(claims=(*small, *vain)), now=EPOCH)
    few = allocator.questions
    monkeypatch.undo()
    allocator = allocator_of(inventory)
    decide(allocator, Queue(claims=(*small, *vain)), now=EPOCH)
    assert few <= allocator.questions


def test_every_claim_gets_what_is_as_good_as_without_those_behind_it() -> None:
    """Each claim of the queue gets a valid set, and none that is worse because of later claims.

    Whoever is served without exchanges is served with them.
    """
    exchanged = more = 0
    for seed in range(600):
        source = random.Random(seed)
        found = [_device(source, number) for number in range(source.randint(2, 8))]
        claims = [_claim(source, number) for number in range(source.randint(2, 6))]
        inventory = lab(found)
        result = answers(inventory, *claims)
        _check_all_valid(inventory, claims, result, seed)
        before: dict[str, Answer] = {}
        for count in range(1, len(claims) + 1):
            # The demand of later claims counts, so they wait too, but cannot be served.
            behind = [replace(c, allowed=0) for c in claims[count:]]
            now = answers(inventory, *claims[:count], *behind)
            for name, answer in before.items():
                assert _worth(inventory, answer) == _worth(inventory, now[name]), seed
                exchanged += set(answer.devices) != set(now[name].devices)
            before = now
        assert before == result, seed
        more += len(result) > len(_one_by_one(inventory, claims))
        source.shuffle(found)
        shuffled = list(claims)
        source.shuffle(shuffled)
        assert answers(lab(found), *shuffled) == result, f"{seed}: in another order"
    assert exchanged > 20
    assert more > 10, "queues in which taking what is free is not enough"


def test_the_most_wanted_device_of_a_gang_is_wanted_by_as_few_as_possible() -> None:
    differs = 0
    for seed in range(600):
        source = random.Random(seed)
        found = [replace(_device(source, n), start=timedelta(0), taints=()) for n in range(7)]
        inventory, gang = lab(found), _gang(source, "a")
        # The others wait, but cannot be served: for them the gang would exchange its devices.
        others = [replace(_claim(source, number), allowed=0) for number in range(1, 6)]
        waiting = [gang, *others]
        result = answers(inventory, *waiting).get("a")
        if result is None:
            continue
        demand = _demand(inventory, waiting)
        highest = max(demand[name] for name in result.devices)
        for limit in range(highest):
            fewer = lab([d for d in found if demand[d.name] <= limit])
            reference = brute_force(fewer, gang.terms)
            best = brute_force(inventory, gang.terms)
            assert reference is None or best is None or reference != best, (seed, limit)
        plain = allocator_of(inventory)
        differs += plain.allocate(gang.terms, Ledger(plain.index)).devices != result.devices
    assert differs > 50


def _check_all_valid(
    inventory: Inventory, claims: Sequence[WaitingClaim], result: dict[str, Answer], seed: int
) -> None:
    for each in claims:
        if each.name in result:
            assert not problems(inventory, each.terms, result[each.name]), seed
    taken = [name for answer in result.values() for name in answer.devices]
    assert len(set(taken)) == len(taken), f"{seed}: no device is used twice"


def _worth(inventory: Inventory, answer: Answer) -> object:
    """What must not become worse: alternatives, how fast devices start, taints, preferences."""
    by_name = {d.name: d for d in inventory.devices}
    return (
        answer.alternatives,
        [
            (m.request, by_name[m.device].start, len(by_name[m.device].taints))
            for m in answer.members
        ],
        answer.preferred,
    )


def _one_by_one(inventory: Inventory, claims: Sequence[WaitingClaim]) -> list[str]:
    """The claims that are served if each takes the best that is free."""
    allocator = allocator_of(inventory)
    ledger, found = Ledger(allocator.index), []
    for each in claims:
        answer = allocator.allocate(each.terms, ledger)
        for member in answer.members:
            ledger.take(allocator.index.numbers[member.device], member.share)
        found += [each.name] if answer.members else []
    return found


def _demand(inventory: Inventory, claims: Sequence[WaitingClaim]) -> dict[str, int]:
    allocator = allocator_of(inventory)
    return {
        d.name: sum(
            allocator.usable(each.terms) >> allocator.index.numbers[d.name] & 1 for each in claims
        )
        for d in inventory.devices
    }


def _device(source: random.Random, number: int) -> InventoryDevice:
    found = device(
        f"d{number}", kind=source.choice("ab"), site=source.choice("12"), host=source.choice("uvw")
    )
    return replace(
        found,
        start=source.choice((timedelta(0), timedelta(0), SLOW)),
        taints=source.choice(((), (), (Taint(key="flaky"),))),
    )


WANTED = ("kind == 'a'", "kind == 'b'", "site == '1'", "site == '2'", "host == 'u'")


def _claim(source: random.Random, number: int) -> WaitingClaim:
    name = f"c{number}"
    if source.random() < 0.5:
        chosen = source.sample(WANTED, source.randint(1, 2))
        ladder = [one(selector, tolerations=(Toleration(),)) for selector in chosen]
        return wanting(name, claim(request("r", *ladder)))
    return _gang(source, name)


def _gang(source: random.Random, name: str) -> WaitingClaim:
    requests = [
        request(
            f"r{number}",
            *(
                one(selector, source.randint(1, 2), tolerations=(Toleration(),))
                for selector in source.sample(WANTED, source.randint(1, 2))
            ),
        )
        for number in range(source.randint(1, 2))
    ]
    constraint = source.choice((None, same("site"), different("host"), same("kind")))
    if constraint is not None and source.random() < 0.3:
        constraint = replace(constraint, prefer=True)
    return wanting(name, claim(*requests, *([constraint] if constraint is not None else [])))
