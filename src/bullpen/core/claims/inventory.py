"""The devices that claims compete for, as values: what they are, draw and offer, and who uses them.

An inventory is one snapshot of a lab. It names devices; ``inventory_index`` numbers them.
Amounts of capacity and counters are whole numbers of a billionth, so that arithmetic is exact.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum

from bullpen.kit.quantities import Quantity

NANOS = 1_000_000_000

Amounts = tuple[tuple[str, int], ...]
"""Names and amounts, sorted by name: a mapping that can be hashed."""


@dataclass(frozen=True, slots=True, order=True)
class Version:
    """A semantic version as an attribute: never equal to a string of the same text."""

    text: str

    def __str__(self) -> str:
        return self.text


Scalar = str | int | bool | Version
Attribute = Scalar | tuple[Scalar, ...]
"""The value of an attribute. A list matches every value in it."""


class Effect(StrEnum):
    NONE = "None"
    NO_SCHEDULE = "NoSchedule"
    NO_EXECUTE = "NoExecute"


@dataclass(frozen=True, slots=True, kw_only=True)
class Taint:
    """A mark that keeps claims away from a device unless they tolerate it."""

    key: str
    value: str = ""
    effect: Effect = Effect.NO_SCHEDULE


@dataclass(frozen=True, slots=True, kw_only=True)
class Toleration:
    """The taints that a request accepts. Every part that is given must apply."""

    key: str = ""
    """Empty for every key."""

    value: str | None = None
    """None for every value."""

    effect: Effect | None = None

    def tolerates(self, taint: Taint) -> bool:
        return (
            self.key in ("", taint.key)
            and (self.value is None or self.value == taint.value)
            and self.effect in (None, taint.effect)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class InventoryDevice:
    """One device: an exporter, one that a pool could start, or an entry of a DevicePool."""

    name: str
    pool: str = ""
    driver: str = ""
    attributes: Mapping[str, Attribute] = field(default_factory=dict)
    capacity: Mapping[str, int] = field(default_factory=dict)
    draws: Amounts = ()
    """What it takes from the shared counters of the inventory while it is in use."""

    taints: tuple[Taint, ...] = ()
    shareable: bool = False
    """Several requests may use it at once, as long as its capacity suffices."""

    start: timedelta = timedelta(0)
    """How long it takes to start; zero if it runs."""

    blocked: str = ""
    """Why it cannot be used at all, such as "disabled" or "offline"; empty if it can."""

    position: int = 0
    """Its place among equally good devices, before its name."""

    @property
    def facts(self) -> Mapping[str, Attribute]:
        """Its attributes with its driver and pool, as selectors see them."""
        own = {"driver": self.driver, "pool": self.pool}
        return {**{key: value for key, value in own.items() if value}, **self.attributes}


@dataclass(frozen=True, slots=True, kw_only=True)
class Use:
    """A device, or a share of it, that a holder has until a time."""

    device: str
    holder: str
    share: Amounts | None = None
    """The capacity it uses of a shareable device; None if it has the whole device."""

    until: datetime | None = None
    """None if the end is not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Inventory:
    """Everything the allocator may look at, read at one revision."""

    devices: tuple[InventoryDevice, ...]
    counters: Mapping[str, int] = field(default_factory=dict)
    """The shared counters and their totals. A draw on an unknown counter never succeeds."""

    uses: tuple[Use, ...] = ()
    incomplete: frozenset[str] = frozenset()
    """Pools that have not published all their devices: "All" of them is not known."""


def amount(quantity: Quantity) -> int:
    """A quantity as a whole number of billionths; quantities are never finer."""
    return int(quantity.amount.scaleb(9))


def amounts(values: Mapping[str, int]) -> Amounts:
    return tuple(sorted(values.items()))
