"""Values of an attribute among some devices: the most preferred device's first."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from bullpen.core.claims import bitsets
from bullpen.core.claims.inventory import Attribute, Inventory, InventoryDevice
from bullpen.core.claims.inventory_index import InventoryIndex

scalars = st.sampled_from(["a", "b", "c", 1, True])
attributes = st.none() | scalars | st.lists(st.sampled_from("abcd"), max_size=3).map(tuple)


def index_of(values: list[Attribute | None]) -> InventoryIndex:
    devices = (
        InventoryDevice(name=f"d{n:03}", attributes={} if value is None else {"site": value})
        for n, value in enumerate(values)
    )
    return InventoryIndex(Inventory(devices=tuple(devices)))


@given(st.lists(attributes, max_size=12), st.sets(st.integers(0, 11)))
def test_values_are_the_same_if_they_are_looked_for_one_by_one(
    values: list[Attribute | None], chosen: set[int]
) -> None:
    index = index_of(values)
    devices = bitsets.of(chosen) & index.everything
    assert list(index.each_value_among("site", devices)) == index.values_among("site", devices)


def test_the_first_value_is_found_without_looking_at_the_others() -> None:
    index = index_of([f"s{n % 500}" for n in range(5000)])
    looked: list[object] = []

    class Looked(dict[object, int]):
        def __getitem__(self, key: object) -> int:
            looked.append(key)
            return super().__getitem__(key)

    index._values["site"] = Looked(index._values["site"])  # type: ignore[arg-type,assignment]
    found = index.each_value_among("site", index.everything)
    assert [next(found), next(found)] == [("str", "s0"), ("str", "s1")]
    assert looked == [("str", "s0")]
