"""CEL in selectors of devices: what it sees, what it refuses, and what an error means."""

from __future__ import annotations

import builtins
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bullpen.api import device_cel
from bullpen.api.device_cel import Program, checked_expression, compile_program
from bullpen.bench.hard_claims import device, lab
from bullpen.core.claims.claim import Criteria
from bullpen.core.claims.criteria import TOO_COSTLY_MAX, CriteriaIndex
from bullpen.core.claims.inventory import NANOS, Attribute, Inventory, InventoryDevice, Version
from bullpen.core.claims.inventory_index import InventoryIndex
from bullpen.core.claims.work import LOOPS_MAX
from bullpen.errors import BadRequest

BOARD = InventoryDevice(
    name="board",
    driver="lab.example",
    attributes={
        "site": "brno",
        "slots": 4,
        "spare": True,
        "buses": ("can", "lin"),
        "firmware": Version("1.10.2"),
        "vendor.example/model": "m1",
    },
    capacity={"memory": 2 * 1024**3 * NANOS, "cpu": NANOS // 10},
)


def matching(text: str, *devices: InventoryDevice) -> tuple[list[str], list[str]]:
    """The names of the devices that match, and of those with an error."""
    index = InventoryIndex(Inventory(devices=devices))
    found = CriteriaIndex(index).of_criteria(Criteria(expressions=(checked_expression(text),)))
    names = [d.name for d in index.devices]
    return (
        [name for n, name in enumerate(names) if found.devices >> n & 1],
        [name for n, name in enumerate(names) if found.errors >> n & 1],
    )


@pytest.mark.parametrize(
    "text",
    [
        "device.slots > 3",
        "slots >= 4 && spare",
        "'can' in buses",
        "buses.exists(bus, bus.startsWith('li'))",
        "device.capacity.memory >= quantity('2Gi')",
        "device.capacity.memory.isGreaterThan(quantity('1Gi'))",
        "device.capacity.cpu < quantity('200m')",
        "firmware.isGreaterThan(semver('1.9.0'))",
        "firmware.compareTo(semver('1.10.2')) == 0",
        "firmware.isGreaterThan(semver('1.10.2-rc.1'))",
        "firmware.major() == 1 && firmware.minor() == 10 && firmware.patch() == 2",
        "buses.includes('can') && site.includes('brno')",
        "device.attributes['vendor.example'].model.startsWith('m')",
        "device.attributes['lab.example'].site.startsWith('b')",
        "device.attributes['unknown.example'].?model.orValue('none') == 'none'",
        "cel.bind(s, site, s == 'brno')",
        "device.driver.endsWith('.example')",
        "site.matches('^b[rn]+o$')",
        "missing == 1 || true",
    ],
)
def test_an_expression_sees_attributes_and_capacity(text: str) -> None:
    assert matching(text, BOARD) == (["board"], [])


def test_an_error_on_one_device_is_counted_and_stops_no_other() -> None:
    """H20: one odd exporter must not stop a lab."""
    devices = (device("a", slots=4), device("b"), device("c", slots="many"), device("d", slots=1))
    assert matching("device.slots > 3", *devices) == (["a"], ["b", "c"])
    assert matching("slots == 4", *devices) == (["a"], ["b"])


def test_a_quantity_that_is_none_is_an_error_of_the_device() -> None:
    assert matching("quantity(site) > 1", BOARD) == ([], ["board"])


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("device.slots >", "does not compile"),
        ("'a' + 1 == 2", "does not compile"),
        ("slots + 1", "must be true or false"),
        ("unknown_function(site)", "does not compile"),
        ("+".join(["1"] * 4_000) + " > 3", "does not compile"),
        (" || ".join(["spare"] * 3_000), "more than 10240 bytes"),
    ],
    ids=["cut off", "types", "no truth value", "function", "deep", "long"],
)
def test_a_bad_expression_is_refused_when_it_is_compiled(text: str, said: str) -> None:
    """H21: a bomb is refused, or stopped by the evaluator's limits."""
    with pytest.raises(BadRequest, match=said):
        checked_expression(text)


def test_a_loop_bomb_is_stopped_and_counts_as_an_error() -> None:
    many = "[" + ",".join(["1"] * 200) + "]"
    bomb = f"{many}.all(i, {many}.all(j, {many}.all(k, i * j * k > 0)))"
    assert matching(bomb, BOARD) == ([], ["board"])


GROWING_TEXT = "'aaaaaaaaaa'" + ".replace('a', 'aaaaaaaaaa')" * 9 + " == site"
GROWING_LIST = "[site]" + ".map(x, x + x)" * 30 + " == [site]"
BOUND = "cel.bind(a, site + site, cel.bind(b, a + a, cel.bind(c, b + b, c + c + c + c == site)))"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (GROWING_TEXT, r"replace\(\) is not available"),
        ("[site, site].join // comment\n ('-') == site", r"join\(\) is not available"),
        (r"r'\' == site || '%s'.format([site]) == r'\'", r"format\(\) is not available"),
        ("strings.quote(site) == site", r"quote\(\) is not available"),
        (GROWING_LIST, "at most 4 additions"),
        (BOUND, "at most 4 additions"),
    ],
    ids=["replace", "join with a comment", "hidden in literals", "quote", "loops", "bindings"],
)
def test_an_expression_that_could_fill_the_memory_is_refused(text: str, said: str) -> None:
    with pytest.raises(BadRequest, match=said):
        checked_expression(text)


def test_sums_without_loops_and_short_ones_in_them_are_evaluated() -> None:
    assert compile_program("slots + 1 + 1 + 1 + 1 + 1 + 1 > 6").names == ("slots",)
    assert compile_program("tags.exists(t, t + '-' + site == 'a-brno')").names


def test_a_loop_bomb_is_not_tried_on_every_device() -> None:
    """H21: 1,000 different devices would take two seconds."""
    many = "[" + ",".join(["1"] * 200) + "]"
    bomb = f"{many}.all(i, {many}.all(j, {many}.all(k, i * j * k > 0)))"
    index = InventoryIndex(lab([device(f"d{n}", serial=f"n{n}") for n in range(1_000)]))
    criteria = CriteriaIndex(index)
    found = criteria.of_criteria(Criteria(expressions=(checked_expression(bomb),)))
    assert (found.devices, found.errors.bit_count()) == (0, 1_000)
    assert criteria.evaluations == TOO_COSTLY_MAX


def test_long_loops_are_bounded_in_total_and_short_ones_are_not() -> None:
    """Many different expressions, each just below the limit of the evaluator on one device."""
    many = "[" + ",".join(["1"] * 90) + "]"
    index = InventoryIndex(lab([device(f"d{n}", serial=f"n{n}") for n in range(150)]))
    criteria = CriteriaIndex(index)
    for number in range(20):
        text = f"{many}.all(i, {many}.all(j, i * j > 0)) && serial != 'x{number}'"
        criteria.of_criteria(Criteria(expressions=(checked_expression(text),)))
    assert criteria.cut_short
    bound = compile_program(f"{many}.all(i, {many}.all(j, i * j > 0))").iterations(0)
    assert criteria.evaluations == LOOPS_MAX // bound
    before = criteria.evaluations
    short = checked_expression("['n1', 'n2'].exists(x, x == serial)")
    found = criteria.of_criteria(Criteria(expressions=(short,)))
    assert (found.devices.bit_count(), found.errors) == (2, 0)
    assert criteria.evaluations == before + 150


def test_an_expression_is_evaluated_once_for_each_description_that_is_left() -> None:
    devices = [device(f"d{n:03}", site=f"s{n % 4}", slots=n % 2) for n in range(100)]
    index = InventoryIndex(lab(devices))
    criteria = CriteriaIndex(index)
    asked = Criteria(expressions=(checked_expression("site == 's1' && slots > 0"),))
    assert criteria.of_criteria(asked).devices.bit_count() == 25
    assert criteria.evaluations == 1
    criteria.of_criteria(asked)
    assert criteria.evaluations == 1


def test_comparisons_work_where_the_engine_does_not_exist(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    real = builtins.__import__

    def refusing(name: str, *rest: Any, **more: Any) -> Any:
        if name.startswith("cel_expr_python"):
            raise ImportError(name)
        return real(name, *rest, **more)

    device_cel._engine.cache_clear()
    compile_program.cache_clear()
    monkeypatch.setattr(builtins, "__import__", refusing)
    try:
        assert matching("site == 'brno' && slots in [3, 4]", BOARD) == (["board"], [])
        with pytest.raises(BadRequest, match="cel-expr-python"):
            checked_expression("slots > 3")
    finally:
        monkeypatch.undo()
        device_cel._engine.cache_clear()
        compile_program.cache_clear()


VALUES: st.SearchStrategy[Attribute] = st.sampled_from(
    ["x", "y", "1", "true", 1, 2, 0, True, False, ("x",), ("x", "y"), ()]
)
LITERALS = st.sampled_from(["'x'", "'1'", "1", "0", "true", "false", "'true'"])


@st.composite
def _terms(draw: st.DrawFn) -> str:
    name = draw(st.sampled_from(["device.a", "device.b", "device.attributes.a", "device.c"]))
    form = draw(st.sampled_from(["==", "!=", "in", "has"]))
    if form == "has":
        return f"has({name})"
    if form == "in":
        return f"{name} in [{', '.join(draw(st.lists(LITERALS, max_size=3)))}]"
    return f"{name} {form} {draw(LITERALS)}"


@given(
    terms=st.lists(_terms(), min_size=1, max_size=3),
    attributes=st.dictionaries(st.sampled_from("ab"), VALUES, max_size=2),
)
def test_comparisons_mean_what_cel_means(
    terms: list[str], attributes: Mapping[str, Attribute]
) -> None:
    text = " && ".join(terms)
    assert not checked_expression(text).rest
    plain: dict[str, Any] = {
        name: list(value) if isinstance(value, tuple) else value
        for name, value in attributes.items()
    }
    program: Program = compile_program(text)
    expected = program.holds(plain, {}, driver="") is True
    found, _ = matching(text, InventoryDevice(name="d", attributes=attributes))
    assert bool(found) == expected
