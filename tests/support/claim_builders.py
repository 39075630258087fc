"""Short spellings of devices, requests and claims, for tests."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from datetime import timedelta

from bullpen.api.device_selectors import parse_expression
from bullpen.core.claims.claim import Alternative, Constraint, Criteria, Request, Terms
from bullpen.core.claims.inventory import Attribute, Inventory, InventoryDevice


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
