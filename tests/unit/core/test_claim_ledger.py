"""What is left of devices that several claims share."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bullpen.bench.hard_claims import device, lab
from bullpen.core.claims.inventory import Use
from bullpen.core.claims.inventory_index import InventoryIndex
from bullpen.core.claims.ledger import Ledger


@pytest.mark.parametrize(
    ("asked", "fits"),
    [
        pytest.param((("mem", 1),), True, id="enough of the only one"),
        pytest.param((("mem", 1), ("slots", 1)), True, id="enough of both"),
        pytest.param((("mem", 1), ("slots", 2)), False, id="too little of the second"),
        pytest.param((("mem", 9), ("slots", 1)), False, id="too little of the first"),
        pytest.param((("mem", 1), ("licences", 0)), False, id="one that the device does not have"),
    ],
)
def test_a_shared_device_has_room_only_if_it_has_enough_of_everything(
    asked: tuple[tuple[str, int], ...], fits: bool
) -> None:
    shared = replace(device("a"), capacity={"mem": 4, "slots": 2}, shareable=True)
    taken = Use(device="a", holder="other", share=(("mem", 2), ("slots", 1)))
    index = InventoryIndex(lab(shared))
    ledger = Ledger(index, [taken])
    assert ledger.has_room(index.numbers["a"], asked) is fits
