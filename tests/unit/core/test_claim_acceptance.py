"""The acceptance cases of claims: graphics cards, network cards, partitions, and pods on nodes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from bullpen.bench.hard_claims import claim, device, different, lab, one, request, same
from bullpen.core.claims.allocator import Answer, Verdict
from bullpen.core.claims.claim import Constraint, Request, Terms
from bullpen.core.claims.inventory import Inventory, InventoryDevice, Use
from support.claim_reference import allocate

LADDER = request(
    "gpu",
    one("model == '4000'", name="big"),
    one("model == '2000'", 2, name="two"),
    one("model == '1000'", 4, name="four"),
)
ONE_ROOT_EACH = same("root", "gpu/two", "gpu/four")
NIC = request("nic", one("kind == 'nic'"))


def gpus(*cards: str) -> list[InventoryDevice]:
    """Cards as ``model@root``, in order of preference."""
    parts = [card.split("@") for card in cards]
    return [
        device(f"g{number}", model=model, root=root) for number, (model, root) in enumerate(parts)
    ]


MIXED = gpus("4000@r0", "2000@r0", "2000@r0", "1000@r1", "1000@r1", "1000@r1", "1000@r1")


def nic(root: str) -> InventoryDevice:
    return device("n0", kind="nic", root=root)


@pytest.mark.parametrize(
    ("case", "found", "terms", "expected"),
    [
        ("X01", MIXED, claim(LADDER, ONE_ROOT_EACH), (0, "g0")),
        ("X02", MIXED[1:], claim(LADDER, ONE_ROOT_EACH), (1, "g1 g2")),
        (
            "X03",
            [*gpus("2000@r0", "2000@r1"), *MIXED[3:]],
            claim(LADDER, ONE_ROOT_EACH),
            (2, "g3 g4 g5 g6"),
        ),
        (
            "X04",
            gpus("1000@r0", "1000@r0", "1000@r1", "1000@r1"),
            claim(LADDER, ONE_ROOT_EACH),
            None,
        ),
        ("X05", [*MIXED, nic("r1")], claim(LADDER, NIC, same("root")), (2, "g3 g4 g5 g6 n0")),
        ("X06", [*MIXED, nic("r0")], claim(LADDER, NIC, same("root")), (0, "g0 n0")),
        ("X07", [*MIXED, nic("r9")], claim(LADDER, NIC, same("root")), None),
        (
            "X08",
            [*gpus("1000@r0", "1000@r1"), nic("r1")],
            claim(request("gpu", one("model == '1000'")), NIC, same("root")),
            (0, "g1 n0"),
        ),
        (
            "X09",
            gpus("1000@r0", "1000@r1", "4000@r1", "4000@r1"),
            claim(request("gpu", one(count=2)), same("model"), same("root")),
            (0, "g2 g3"),
        ),
        (
            "X10",
            gpus("1000@r0", "4000@r0", "1000@r1", "1000@r1"),
            claim(
                request("first", one("model == '1000'")),
                request("second", one("model == '1000'")),
                same("root"),
            ),
            (0, "g2 g3"),
        ),
        (
            "X11",
            gpus("1000@r0", "4000@r0", "4000@r1"),
            claim(request("gpu", one(count=2)), same("model")),
            (0, "g1 g2"),
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_ladder_of_cards_is_climbed_as_far_as_the_join_allows(
    case: str,
    found: list[InventoryDevice],
    terms: Terms,
    expected: tuple[int, str] | None,
) -> None:
    answer = allocate(lab(found), terms)
    if expected is None:
        assert answer.verdict is Verdict.UNSATISFIABLE
    else:
        assert answer.members[0].alternative == expected[0]
        assert " ".join(answer.devices) == expected[1]


@pytest.mark.parametrize(
    ("case", "count", "each", "taken"),
    [("X12", 8, 40, 4), ("X13", 8, 16, 8), ("X14", 7, 16, 0), ("X15", 9, 15, 0)],
)
def test_a_total_takes_the_fewest_devices_that_reach_it(
    case: str, count: int, each: int, taken: int
) -> None:
    found = [device(f"g{n}", mem=each) for n in range(count)]
    split = one(totals=(("mem", 128),), count_max=8)
    answer = allocate(lab(found), claim(request("gpu", split)))
    assert len(answer.members) == taken


@pytest.mark.parametrize(("cards", "verdict"), [(4, Verdict.SATISFIED), (3, Verdict.UNSATISFIABLE)])
def test_x16_four_ports_on_different_cards_need_four_cards(cards: int, verdict: Verdict) -> None:
    ports = [device(f"p{n}", vendor="v", card=f"c{n % cards}") for n in range(8)]
    terms = claim(request("nic", one(count=4)), same("vendor"), different("card"))
    assert allocate(lab(ports), terms).verdict is verdict


def test_x17_shares_of_one_device_fit_together_and_keep_a_whole_claim_out() -> None:
    card = replace(device("g0", mem=40), shareable=True)
    share = claim(request("gpu", one(capacity=(("mem", 8),))))
    whole = claim(request("gpu", one(capacity=(("mem", 40),))))
    inventory = lab(card)
    for holder in ("first", "second"):
        answer = allocate(inventory, share)
        assert answer.members[0].share == (("mem", 8),)
        use = Use(device="g0", holder=holder, share=answer.members[0].share)
        inventory = replace(inventory, uses=(*inventory.uses, use))
    assert allocate(inventory, whole).verdict is Verdict.UNSATISFIABLE
    assert allocate(inventory, claim(request("gpu"))).verdict is Verdict.UNSATISFIABLE
    left = replace(inventory, uses=inventory.uses[1:])
    assert allocate(left, whole).verdict is Verdict.UNSATISFIABLE
    assert allocate(replace(inventory, uses=()), whole).verdict is Verdict.SATISFIED


PROFILES = {
    # name: compute slices of seven, memory slices of eight, first slices, media engines
    "1g.5gb": (1, 1, range(7), 0),
    "1g.5gb+me": (1, 1, range(7), 1),
    "1g.10gb": (1, 2, (0, 2, 4, 6), 0),
    "2g.10gb": (2, 2, (0, 2, 4), 0),
    "3g.20gb": (3, 4, (0, 4), 0),
    "4g.20gb": (4, 4, (0,), 0),
    "full": (7, 8, (0,), 1),
}


def partitions() -> Inventory:
    """One card with every partition it can be divided into, as devices that draw on counters."""
    found = []
    for profile, (compute, memory, starts, media) in PROFILES.items():
        for start in starts:
            draws = {"compute": compute, "media": media}
            draws |= {f"slice{start + number}": 1 for number in range(memory)}
            drawn = {name: amount for name, amount in draws.items() if amount}
            found.append(device(f"{profile}-at-{start}", profile=profile, draws=drawn))
    counters = {f"slice{number}": 1 for number in range(8)} | {"compute": 7, "media": 1}
    return lab(found, **counters)


@pytest.mark.parametrize(
    ("case", "wanted", "fits"),
    [
        ("X18", ["7 1g.5gb"], True),
        ("X19", ["8 1g.5gb"], False),
        ("X20", ["1 full", "1 1g.5gb"], False),
        ("X21", ["2 3g.20gb"], True),
        ("X22", ["1 4g.20gb", "1 3g.20gb"], True),
        ("X23", ["2 3g.20gb", "1 1g.5gb"], False),
        ("X24", ["3 2g.10gb", "1 1g.5gb"], True),
        ("X25", ["4 1g.10gb"], True),
        ("X25 and one more", ["4 1g.10gb", "1 1g.5gb"], False),
        ("X26", ["2 1g.5gb+me"], False),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_partitions_of_a_card_never_exceed_its_counters(
    case: str, wanted: list[str], fits: bool
) -> None:
    parts = [text.split() for text in wanted]
    terms = claim(
        *(
            request(f"r{number}", one(f"profile == '{profile}'", int(count)))
            for number, (count, profile) in enumerate(parts)
        )
    )
    answer = allocate(partitions(), terms)
    assert (answer.verdict is Verdict.SATISFIED) == fits
    assert answer.steps <= 400


def test_two_halves_of_a_card_start_at_slices_0_and_4() -> None:
    answer = allocate(partitions(), claim(request("r", one("profile == '3g.20gb'", 2))))
    assert answer.devices == ("3g.20gb-at-0", "3g.20gb-at-4")


def test_x27_a_draw_on_a_counter_that_does_not_exist_never_succeeds() -> None:
    """The other devices stay usable."""
    inventory = lab(device("a", draws={"memory-slices-00": 1}), device("b"))
    assert allocate(inventory, claim(request("r"))).devices == ("b",)
    assert allocate(inventory, claim(request("r", one(count=2)))).verdict is Verdict.UNSATISFIABLE


def node(name: str, driver: str, pools: int, each: int) -> list[InventoryDevice]:
    model = f"{driver}-1000"
    return [
        replace(
            device(f"{name}-{driver}-{numa}-{number}", model=model, node=name, numa=f"n{numa}"),
            driver=driver,
            pool=f"{name}-{numa}",
        )
        for numa in range(pools)
        for number in range(each)
    ]


ZERO = [*node("z1", "foozer", 1, 2), *node("z2", "foozer", 1, 2)]
THREE = [*node("t1", "barzer", 4, 4), *node("t2", "barzer", 4, 4)]
ONE = [*node("o1", "foozer", 2, 2), *node("o2", "foozer", 2, 2)]
BOTH = [d for n in ("b1", "b2") for x in ("foozer", "barzer") for d in node(n, x, 4, 2)]
ONE_NODE = same("node")


def of(driver: str, count: int = 1, name: str = "r") -> Request:
    return request(name, one(f"device.driver == '{driver}'", count))


def on_one_node(found: Sequence[InventoryDevice], *parts: Request | Constraint) -> Answer:
    return allocate(lab(found), claim(*parts, ONE_NODE))


@pytest.mark.parametrize(
    ("case", "found", "parts", "fits"),
    [
        ("G1", [*ZERO, *THREE], [of("foozer")], True),
        ("G2", [*ZERO, *THREE], [request("r", one("model == 'foozer-1000'"))], True),
        ("G3", [*ZERO, *THREE], [request("r", one("model == 'foozer-8000'"))], False),
        ("G4", ZERO, [of("foozer", 2), same("pool")], True),
        ("G5", ONE, [of("foozer", 4)], True),
        ("G6", [*ZERO, *THREE], [of("foozer", 2, "f"), of("barzer", 2, "b")], False),
        ("G7", BOTH, [of("foozer", 2, "f"), of("barzer", 2, "b")], True),
        ("G8", ONE, [of("foozer", 4), same("numa")], False),
        ("G9", ZERO[:2], [of("foozer", 2, "first"), of("foozer", 2, "second")], False),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_the_devices_of_a_pod_are_on_one_node_and_are_used_once(
    case: str, found: list[InventoryDevice], parts: list[Request | Constraint], fits: bool
) -> None:
    answer = on_one_node(found, *parts)
    assert (answer.verdict is Verdict.SATISFIED) == fits
    assert answer.steps <= 10
