"""Exporters that pools could start, as devices of an inventory.

An ExporterSet with room under its ceiling offers them. The allocator takes them only where
running ones do not do. The lease of such a device asks for any member of its pool, which makes
the pool grow; it is assigned together with the other leases of the claim when the member is
there. A device of a provider with a limit draws one of its slots, which several pools may share.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from datetime import timedelta

from bullpen.api.kinds.deviceclaim import MEMBERS_MAX
from bullpen.api.kinds.exporterset import SET_NAME
from bullpen.core.claims.inventory import NANOS, InventoryDevice
from bullpen.core.exporters.offers import OfferIndex
from bullpen.core.leases.bookings import pool_places
from bullpen.core.leases.requests import Supply

STARTABLE_MAX = MEMBERS_MAX
"""Startable devices of one pool: no claim can have more."""

BOOT_UNKNOWN = timedelta(seconds=1)
"""The start time of a pool that has not started a member yet: any time above zero."""

_MARK = "/new-"


def startable_devices(supplies: Iterable[Supply], offers: OfferIndex) -> Iterator[InventoryDevice]:
    """The devices that pools could start besides the exporters that are connected."""
    for supply in sorted(supplies, key=lambda supply: supply.name):
        pool = supply.member.labels.get(SET_NAME, "")
        if not pool:
            continue
        room = pool_places(offers, supply).room
        if supply.slots is not None:
            room = supply.slots if room is None else min(room, supply.slots)
        for number in range(STARTABLE_MAX if room is None else min(room, STARTABLE_MAX)):
            yield InventoryDevice(
                name=f"{pool}{_MARK}{number}",
                pool=pool,
                attributes=supply.member.labels,
                start=supply.boot or BOOT_UNKNOWN,
                draws=((_slots(supply), NANOS),) if supply.slots is not None else (),
                position=number,
            )


def slot_counters(supplies: Iterable[Supply]) -> dict[str, int]:
    """The free slots of providers, as counters that startable devices draw on."""
    return {_slots(x): x.slots * NANOS for x in supplies if x.slots is not None}


def with_all_slots(supplies: Iterable[Supply]) -> tuple[Supply, ...]:
    """The supplies as they would be if providers had slots for everything."""
    return tuple(replace(supply, slots=None) for supply in supplies)


def _slots(supply: Supply) -> str:
    return f"slots of {supply.provider}"


def pool_of(device: str) -> str:
    """The pool that would start the device; empty if the device is an exporter."""
    return device.rpartition(_MARK)[0] if _MARK in device else ""
