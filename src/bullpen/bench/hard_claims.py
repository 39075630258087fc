"""Claims on which searches of other schedulers explode, with the answer and a ceiling on work.

``bullpen bench claims`` measures them; the tests count the combinations that are tried.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from datetime import timedelta

from bullpen.api.device_selectors import parse_expression
from bullpen.core.claims.allocator import Verdict
from bullpen.core.claims.claim import Alternative, Constraint, Criteria, Request, Terms
from bullpen.core.claims.inventory import Attribute, Inventory, InventoryDevice

YES, NO = Verdict.SATISFIED, Verdict.UNSATISFIABLE


@dataclass(frozen=True)
class Hard:
    """One instance, its answer, and how many combinations may be tried to find it."""

    name: str
    inventory: Inventory
    terms: Terms
    verdict: Verdict
    steps_max: int
    alternatives: dict[str, int] | None = None


def singles(count: int, selector: str = "", prefix: str = "r") -> list[Request]:
    return [request(f"{prefix}{number}", one(selector)) for number in range(count)]


def sited(sites: int, each: int) -> list[InventoryDevice]:
    return [
        device(f"s{site:04}-{number}", site=f"s{site:04}")
        for site in range(sites)
        for number in range(each)
    ]


def ladders(count: int, rungs: int) -> list[Request]:
    """Requests that would take any of the same ``rungs`` kinds."""
    kinds = [one(f"kind == 'k{number}'") for number in range(rungs)]
    return [request(f"flexible{number}", *kinds) for number in range(count)]


def kinds(count: int, each: int) -> list[InventoryDevice]:
    return [d for n in range(count) for d in devices(each, prefix=f"k{n}-", kind=f"k{n}")]


def one_too_many() -> Hard:
    return Hard("H1", lab(devices(5_000)), claim(request("r", one(count=5_001))), NO, 1)


def pigeonhole() -> Hard:
    return Hard("H2", lab(devices(31)), claim(*singles(32)), NO, 1)


def hidden_hall_violation() -> Hard:
    terms = claim(*singles(12), *singles(20, "special == 'yes'", "s"))
    return Hard("H2b", lab(devices(19, "s", special="yes"), devices(12)), terms, NO, 1)


def group_one_short_everywhere() -> Hard:
    terms = claim(request("r", one(count=9)), same("site"))
    return Hard("H3", lab(sited(1_000, 8)), terms, NO, 1)


def join_at_the_last_value() -> Hard:
    duts = [device(f"dut{n}", role="dut", site=f"a{n}") for n in range(5_000)]
    peers = [device(f"peer{n}", role="peer", site=f"b{n}") for n in range(4_999)]
    last = device("peer4999", role="peer", site="a4999")
    terms = claim(
        request("dut", one("role == 'dut'")), request("peer", one("role == 'peer'")), same("site")
    )
    return Hard("H4", lab(duts, peers, last), terms, YES, 2)


def impossible_after_alternatives() -> Hard:
    terms = claim(*ladders(20, 8), request("never", one("kind == 'none'")))
    return Hard("H5", lab(kinds(8, 20)), terms, NO, 1)


def too_few_behind_alternatives() -> Hard:
    terms = claim(*ladders(12, 4), *singles(5, "kind == 'k0'", "fixed"))
    return Hard("H5b", lab(kinds(4, 4)), terms, NO, 2)


def join_behind_alternatives() -> Hard:
    inventory = lab(
        kinds(4, 6),
        [device(f"x{n}", kind="x", site="far") for n in range(3)],
    )
    terms = claim(*ladders(8, 4), request("x", one("kind == 'x'")), same("site"))
    return Hard("H5c", inventory, terms, NO, 2)


def favourites_given_up() -> Hard:
    terms = claim(*ladders(12, 4), *singles(12, "kind == 'k0'", "fixed"))
    inventory = lab(kinds(1, 12), [d for d in kinds(4, 4) if d.attributes["kind"] != "k0"])
    given_up = {f"flexible{n}": 1 + n // 4 for n in range(12)}
    return Hard("H5d", inventory, terms, YES, 60, given_up)


def fat_devices_first() -> Hard:
    fat = [device(f"a{n:02}", draws={"watts": 9}) for n in range(10)]
    thin = [device(f"b{n:02}", draws={"watts": 1}) for n in range(10)]
    return Hard("H6", lab(fat, thin, watts=10), claim(request("r", one(count=10))), YES, 40)


def knapsack_in_three_dimensions() -> Hard:
    mixed = [
        device(f"m{n:02}", draws={"x": 1 + n % 3, "y": 1 + (n + 1) % 3, "z": 1 + (n + 2) % 3})
        for n in range(24)
    ]
    return Hard("H6b", lab(mixed, x=21, y=21, z=21), claim(request("r", one(count=10))), YES, 500)


def knapsack_that_is_short() -> Hard:
    mixed = [device(f"m{n:02}", draws={"x": 1 + n % 2, "y": 2 - n % 2}) for n in range(24)]
    return Hard("H6c", lab(mixed, x=14, y=14), claim(request("r", one(count=10))), NO, 500)


def rare_match_in_a_big_scan() -> Hard:
    inventory = lab(devices(9_999, kind="common"), device("rare", kind="rare"))
    return Hard("H7", inventory, claim(request("r", one("kind == 'rare'"))), YES, 1)


def one_host_short() -> Hard:
    hosts = [device(f"d{n}", host=f"h{n % 6}") for n in range(10_000)]
    return Hard("H8", lab(hosts), claim(request("r", one(count=7)), different("host")), NO, 1)


def crossing_matches() -> Hard:
    source = random.Random(9)
    found = [
        device(
            f"d{n}",
            role=source.choice("abc"),
            site=f"s{source.randrange(100)}",
            rack=f"r{source.randrange(100)}",
            vendor=f"v{source.randrange(100)}",
        )
        for n in range(10_000)
    ]
    terms = claim(
        *(request(role, one(f"role == '{role}'")) for role in "abc"),
        same("site", "a", "b"),
        same("rack", "b", "c"),
        same("vendor", "c", "a"),
    )
    return Hard("H9", lab(found), terms, YES, 200)


def cyclic_matches_without_a_solution() -> Hard:
    """Every pair of constraints can be kept, and all three never."""
    found = [
        *(device(f"a{n}", role="a", site=f"s{n}", vendor=f"v{n}") for n in range(60)),
        *(device(f"b{n}", role="b", site=f"s{n}", rack=f"r{n}") for n in range(60)),
        *(device(f"c{n}", role="c", rack=f"r{n}", vendor=f"v{(n + 1) % 60}") for n in range(60)),
    ]
    terms = claim(
        *(request(role, one(f"role == '{role}'")) for role in "abc"),
        same("site", "a", "b"),
        same("rack", "b", "c"),
        same("vendor", "c", "a"),
    )
    return Hard("H9b", lab(found), terms, NO, 200)


def two_distinct_attributes() -> Hard:
    source = random.Random(3730)
    found = [
        device(f"d{n:02}", row=f"r{source.randrange(13)}", column=f"c{source.randrange(13)}")
        for n in range(19)
    ]
    terms = claim(request("r", one(count=11)), different("row"), different("column"))
    return Hard("H10", lab(found), terms, NO, 300)


def shrinking_lists() -> Hard:
    """Lists whose pairs always intersect; only the last value is common to all."""
    found = [
        device(f"d{n:02}", lane=tuple(f"l{m}" for m in range(33) if m != n)) for n in range(32)
    ]
    terms = claim(*singles(31), same("lane"))
    return Hard("H11", lab(found), terms, YES, 70)


def useless_devices_first() -> Hard:
    useless = [device(f"a{n:02}", lane=tuple(f"u{n}-{m}" for m in range(47))) for n in range(32)]
    useful = [device(f"b{n:02}", lane=tuple(f"l{m}" for m in range(47))) for n in range(32)]
    return Hard("H11b", lab(useless, useful), claim(*singles(32), same("lane")), YES, 3)


def a_selector_of_its_own() -> Hard:
    """The last of 10,000 values, each of which one device has."""
    found = [device(f"d{n}", serial=f"n{n}") for n in range(10_000)]
    return Hard("H12", lab(found), claim(request("r", one("serial == 'n9999'"))), YES, 1)


def all_of_a_pool_that_is_half_published() -> Hard:
    shelf = tuple(replace(found, pool="shelf") for found in devices(10_000))
    inventory = Inventory(devices=shelf, incomplete=frozenset({"shelf"}))
    return Hard("H19", inventory, claim(request("r", one(every=True))), NO, 1)


def an_expression_with_errors() -> Hard:
    """It needs the engine, and cannot be evaluated on every other device."""
    found = [
        device(f"d{n}", **({"slots": n % 50} if n % 2 else {"spare": n % 50}))  # type: ignore[arg-type]
        for n in range(10_000)
    ]
    return Hard("H20", lab(found), claim(request("r", one("slots > 48", 200))), YES, 1)


def an_expression_that_loops() -> Hard:
    """The evaluator gives up on each of 1,000 different devices."""
    many = f"[{', '.join(['1'] * 200)}]"
    bomb = f"{many}.all(i, {many}.all(j, {many}.all(k, i * j * k > 0)))"
    found = [device(f"d{n}", serial=f"n{n}") for n in range(1_000)]
    return Hard("H21", lab(found), claim(request("r", one(bomb))), NO, 1)


def equal_devices() -> Hard:
    """Interchangeable devices of a host whose counter allows nine of them."""
    found = [device(f"d{n:04}", host="h1", draws={"slots": 1}) for n in range(2_000)]
    terms = claim(request("r", one(count=10)), different("rack", "other"))
    return Hard("H22", lab(found, slots=9), terms, NO, 30)


def partitions_with_one_too_fat() -> Hard:
    parts = [device(f"p{n}", draws={"gpu": 2 if n == 0 else 1}) for n in range(8)]
    return Hard("DRA", lab(parts, gpu=7), claim(request("r", one(count=7))), YES, 30)


INSTANCES: list[Callable[[], Hard]] = [
    one_too_many,
    pigeonhole,
    hidden_hall_violation,
    group_one_short_everywhere,
    join_at_the_last_value,
    impossible_after_alternatives,
    too_few_behind_alternatives,
    join_behind_alternatives,
    favourites_given_up,
    fat_devices_first,
    knapsack_in_three_dimensions,
    knapsack_that_is_short,
    rare_match_in_a_big_scan,
    one_host_short,
    crossing_matches,
    cyclic_matches_without_a_solution,
    two_distinct_attributes,
    shrinking_lists,
    useless_devices_first,
    a_selector_of_its_own,
    all_of_a_pool_that_is_half_published,
    an_expression_with_errors,
    an_expression_that_loops,
    equal_devices,
    partitions_with_one_too_fat,
]


# Short spellings


def device(
    name: str, *, mem: int = 0, draws: dict[str, int] | None = None, **attributes: Attribute
) -> InventoryDevice:
    """A device; its position is the number at the end of its name."""
    digits = name[len(name.rstrip("0123456789")) :]
    return InventoryDevice(
        name=name,
        attributes=attributes,
        capacity={"mem": mem} if mem else {},
        draws=tuple(sorted((draws or {}).items())),
        position=int(digits or 0),
    )


def devices(count: int, prefix: str = "d", **attributes: Attribute) -> list[InventoryDevice]:
    return [
        replace(device(f"{prefix}{number:05}"), attributes=attributes) for number in range(count)
    ]


def lab(*groups: InventoryDevice | Iterable[InventoryDevice], **counters: int) -> Inventory:
    found: list[InventoryDevice] = []
    for group in groups:
        found += [group] if isinstance(group, InventoryDevice) else list(group)
    return Inventory(devices=tuple(found), counters=counters)


def one(
    selector: str = "", count: int = 1, *, name: str = "", after_s: int = 0, **more: object
) -> Alternative:
    expressions = (parse_expression(selector),) if selector else ()
    return Alternative(
        name=name,
        criteria=Criteria(expressions=expressions),
        count=count,
        after=timedelta(seconds=after_s),
        **more,  # type: ignore[arg-type]
    )


def request(name: str, *alternatives: Alternative) -> Request:
    return Request(name=name, alternatives=alternatives or (one(),))


def same(attribute: str, *requests: str, prefer: bool = False) -> Constraint:
    return Constraint(attribute=attribute, requests=requests, prefer=prefer)


def different(attribute: str, *requests: str, prefer: bool = False) -> Constraint:
    return Constraint(attribute=attribute, distinct=True, requests=requests, prefer=prefer)


def claim(*parts: Request | Constraint) -> Terms:
    return Terms(
        requests=tuple(part for part in parts if isinstance(part, Request)),
        constraints=tuple(part for part in parts if isinstance(part, Constraint)),
    )
