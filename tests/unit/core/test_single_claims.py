"""Claims for one device in one pass: who gets which device, and who makes room for whom."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta

import pytest

from bullpen.bench.hard_claims import claim, device, devices, lab, one, request
from bullpen.core.claims import device_exchange
from bullpen.core.claims.bitsets import Tally
from bullpen.core.claims.claim import Terms
from bullpen.core.claims.claim_queue import Queue, Start, WaitingClaim, decide
from bullpen.core.claims.inventory import Inventory, InventoryDevice, Taint, Toleration
from bullpen.kit.clock import EPOCH
from support.claim_reference import allocator_of

HOUR = timedelta(hours=1)
SLOW = timedelta(minutes=1)


def wanting(name: str, *selectors: str, **more: object) -> WaitingClaim:
    """A claim for one device; of several, the one whose name comes first is the older."""
    ladder = [one(selector, tolerations=(Toleration(),)) for selector in selectors or ("",)]
    defaults: dict[str, object] = {
        "terms": claim(request("r", *ladder)),
        "since": EPOCH,
        "duration": HOUR,
    }
    return WaitingClaim(name=name, **{**defaults, **more})  # type: ignore[arg-type]


def served(inventory: Inventory, *claims: WaitingClaim) -> dict[str, str]:
    found = decide(allocator_of(inventory), Queue(claims=claims), now=EPOCH)
    return {d.claim: d.answer.devices[0] for d in found if isinstance(d, Start)}


CROWD = [wanting(f"x{n}", "site == '2'") for n in range(10)]
"""Claims that want d1, so that others take it last."""

CHAIN = (
    lab(
        device("d0", kind="a", site="1"),
        device("d1", kind="a", site="2"),
        device("d2", kind="b", site="1"),
    ),
    wanting("c1", "kind == 'a'"),
    wanting("c2", "site == '1'"),
    wanting("c3", "kind == 'b'"),
)
"""The third needs what the second has, who needs what the first has, who can move."""


def test_claims_ahead_move_to_equal_devices_so_that_a_later_one_is_served() -> None:
    inventory, first, second, third = CHAIN
    crowd = [wanting(f"x{n}", "kind == 'b'") for n in range(2)]
    before = served(inventory, first, second, *CROWD)
    assert before == {"c1": "d0", "c2": "d2", "x0": "d1"}
    found = served(inventory, first, second, third, *CROWD)
    assert found == {"c1": "d1", "c2": "d0", "c3": "d2"}
    assert served(inventory, first, second, third, *CROWD, *crowd) == found


@pytest.mark.parametrize(
    "worse",
    [
        replace(device("d1", kind="a"), start=SLOW),
        replace(device("d1", kind="a"), taints=(Taint(key="flaky"),)),
        device("d1", kind="b"),
    ],
    ids=["that has to be started", "that is tainted", "of a later alternative"],
)
def test_a_claim_makes_no_room_if_only_a_device_is_left(worse: InventoryDevice) -> None:
    inventory = lab(device("d0", kind="a", site="1"), worse)
    first = wanting("c1", "kind == 'a'", "kind == 'b'")
    assert served(inventory, first, wanting("c2", "site == '1'")) == {"c1": "d0"}


def test_a_claim_is_not_moved_from_what_its_leases_ask_for() -> None:
    inventory = lab(device("d0", kind="a", site="1"), device("d1", kind="a"))
    later = wanting("c2", "site == '1'")
    assert served(inventory, wanting("c1", "kind == 'a'"), later) == {"c1": "d1", "c2": "d0"}
    assert served(inventory, wanting("c1", "kind == 'a'", kept=1), later) == {"c1": "d0"}


def test_a_device_that_few_claims_want_is_taken_first() -> None:
    """What waits for its alternative to open is not in this pass, but will need its device."""
    inventory = lab(device("d0", kind="rare"), device("d1", kind="common"))
    later = claim(request("r", one("kind == 'rare'", after_s=60)))
    assert served(inventory, wanting("c1")) == {"c1": "d0"}
    assert served(inventory, wanting("c1"), wanting("c2", terms=later)) == {"c1": "d1"}


def test_nothing_moves_beyond_the_limit_and_claims_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    inventory, *claims = CHAIN
    monkeypatch.setattr(device_exchange, "LOOKS_MAX", 1)
    found = served(inventory, *claims, *CROWD)
    assert found == {"c1": "d0", "c2": "d2", "x0": "d1"}


def test_a_failed_search_for_room_is_not_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    """What cannot move once cannot move for the rest of the pass."""
    made: list[device_exchange.DeviceExchange] = []

    class Counted(device_exchange.DeviceExchange):
        def __init__(self, *arguments: object) -> None:
            super().__init__(*arguments)  # type: ignore[arg-type]
            made.append(self)

    monkeypatch.setattr("bullpen.core.claims.claim_queue.DeviceExchange", Counted)
    kinds = [replace(d, attributes={"kind": f"k{n % 9}"}) for n, d in enumerate(devices(90))]
    holding = [wanting(f"a{n:03}", f"kind == 'k{n % 9}'") for n in range(90)]
    vain = [wanting(f"b{n:03}", f"kind == 'k{n % 9}'", duration=n * HOUR) for n in range(1, 200)]
    assert len(served(lab(kinds), *holding, *vain)) == 90
    assert made[0].looks == 9, "once for each group of claims that could exchange devices"


def test_each_claim_gets_the_best_that_those_ahead_leave_possible() -> None:
    moved = 0
    for seed in range(400):
        source = random.Random(seed)
        found = [_device(source, number) for number in range(source.randint(1, 7))]
        claims = [_claim(source, number) for number in range(source.randint(1, 8))]
        inventory = lab(found)
        expected = best_ranks(found, claims)
        result = served(inventory, *claims)
        by_name = {d.name: d for d in found}
        ranks = {
            each.name: rank(each.terms, by_name[result[each.name]]) if each.name in result else None
            for each in claims
        }
        assert ranks == expected, seed
        assert len(set(result.values())) == len(result), "no device is used twice"
        moved += any(
            expected[c.name] != greedy
            for c, greedy in zip(claims, greedily(found, claims), strict=True)
        )
        source.shuffle(found)
        source.shuffle(claims)
        assert served(lab(found), *claims) == result, f"{seed}: in another order"
    assert moved > 10, "instances in which taking what is free is not enough"


@pytest.mark.parametrize("seed", range(5))
def test_a_tally_counts_sets(seed: int) -> None:
    source = random.Random(seed)
    tally, counted = Tally(), dict.fromkeys(range(40), 0)
    for _ in range(30):
        bits, times = source.getrandbits(40), source.randrange(9)
        tally.add(bits, times)
        for number in counted:
            counted[number] += times * (bits >> number & 1)
    bits = source.getrandbits(40)
    among = [number for number in counted if bits >> number & 1]
    least = min(counted[number] for number in among)
    assert tally.least(bits) == sum(1 << n for n in among if counted[n] == least)


# The reference: every set of claims and ranks is tried by matching claims to devices.

Rank = tuple[int, timedelta, int]


def rank(terms: Terms, found: InventoryDevice) -> Rank | None:
    """How good a device is to a claim: alternative, start, taints; None if it does not fit."""
    for number, alternative in enumerate(terms.requests[0].alternatives):
        (expression,) = alternative.criteria.expressions
        if all(found.attributes[t.attribute] in t.values for t in expression.terms):  # type: ignore[union-attr]
            return number, found.start, len(found.taints)
    return None


def best_ranks(
    found: Sequence[InventoryDevice], claims: Sequence[WaitingClaim]
) -> dict[str, Rank | None]:
    kept: list[tuple[WaitingClaim, Rank]] = []
    result: dict[str, Rank | None] = {}
    for each in claims:
        ranks = sorted({r for d in found if (r := rank(each.terms, d)) is not None})
        best = next((r for r in ranks if possible(found, [*kept, (each, r)])), None)
        result[each.name] = best
        kept += [(each, best)] if best is not None else []
    return result


def possible(found: Sequence[InventoryDevice], asked: Sequence[tuple[WaitingClaim, Rank]]) -> bool:
    if not asked:
        return True
    (each, wanted), rest = asked[0], asked[1:]
    return any(
        rank(each.terms, d) == wanted and possible([x for x in found if x is not d], rest)
        for d in found
    )


def greedily(found: Sequence[InventoryDevice], claims: Sequence[WaitingClaim]) -> list[Rank | None]:
    left, result = sorted(found, key=lambda d: (d.start, len(d.taints), d.name)), []
    for each in claims:
        fitting = [(r, d) for d in left if (r := rank(each.terms, d)) is not None]
        best = min(fitting, key=lambda pair: pair[0], default=None)
        result.append(best[0] if best else None)
        left = [d for d in left if best is None or d is not best[1]]
    return result


def _device(source: random.Random, number: int) -> InventoryDevice:
    found = device(f"d{number}", kind=source.choice("ab"), site=source.choice("12"))
    return replace(
        found,
        start=source.choice((timedelta(0), timedelta(0), SLOW)),
        taints=source.choice(((), (), (Taint(key="flaky"),))),
    )


def _claim(source: random.Random, number: int) -> WaitingClaim:
    wanted = ["kind == 'a'", "kind == 'b'", "site == '1'", "site == '2'", "kind in ['a', 'b']"]
    wanted.append("kind == 'a' && site == '1'")
    return wanting(f"c{number}", *source.sample(wanted, source.randint(1, 2)))
