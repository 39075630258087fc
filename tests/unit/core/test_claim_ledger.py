"""What is left of devices that several claims share."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

import pytest

from bullpen.bench.hard_claims import device, lab
from bullpen.core.claims import bitsets
from bullpen.core.claims.inventory import InventoryDevice, Use
from bullpen.core.claims.inventory_index import InventoryIndex
from bullpen.core.claims.ledger import Ledger
from support.claim_reference import random_instance


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


def test_giving_back_undoes_taking_whatever_else_is_in_use() -> None:
    shared = 0
    for seed in range(500):
        source = random.Random(seed)
        inventory, _ = random_instance(source)
        index = InventoryIndex(inventory)
        whole = {use.device for use in inventory.uses if use.share is None}
        found = [d for d in inventory.devices if not d.shareable or d.name not in whole]
        kept = [*inventory.uses, *_further_uses(source, found)]
        ended = _further_uses(source, found)
        ledger = Ledger(index, [*kept, *ended])
        for use in ended:
            ledger.give_back(index.numbers[use.device], use.share)
        expected = Ledger(index, kept)
        assert ledger.unused == expected.unused, seed
        assert ledger.shared == expected.shared, seed
        assert ledger.counters == expected.counters, seed
        for number in bitsets.members(ledger.shared):
            shared += 1
            for amount in range(5):
                asked = (("mem", amount),)
                assert ledger.has_room(number, asked) is expected.has_room(number, asked), seed
    assert shared > 50, "devices that are still shared"


def _further_uses(source: random.Random, found: Sequence[InventoryDevice]) -> list[Use]:
    """Shares of devices that can be shared, and other devices as a whole."""
    return [
        Use(device=d.name, holder="x", share=(("mem", 1),) if d.shareable else None)
        for d in found
        if source.random() < 0.4
    ]
