"""Which devices are left for an alternative after each condition, from all that are known.

The funnel is what people read when a claim finds nothing: it shows the condition that removes
the devices they counted on.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from bullpen.core.claims import bitsets
from bullpen.core.claims.allocator import Allocator
from bullpen.core.claims.claim import Alternative, Terms
from bullpen.core.claims.ledger import Ledger


class Stage(StrEnum):
    """A condition, in the order in which they are applied."""

    KNOWN = "known"
    CLASS = "class"
    SELECTOR = "selector"
    CAPACITY = "capacity"
    ALLOWED = "allowed"
    ENABLED = "enabled"
    UNTAINTED = "untainted"
    FREE = "free"
    UNRESERVED = "not reserved"
    """Only where something is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Funnel:
    """The number of devices that each stage leaves for one alternative."""

    request: str
    alternative: str
    wanted: int
    """How many devices it needs; zero for all."""

    left: tuple[tuple[Stage, int], ...]
    errors: int
    """Devices on which a selector of the class or the request could not be evaluated."""

    @property
    def narrowest(self) -> Stage | None:
        """The stage that first leaves too few devices; None if enough are free."""
        least = max(self.wanted, 1)
        return next((stage for stage, count in self.left if count < least), None)

    def __str__(self) -> str:
        name = f"{self.request}/{self.alternative}" if self.alternative else self.request
        stages = " → ".join(f"{stage} {count}" for stage, count in self.left)
        errors = f" (selector errors on {self.errors})" if self.errors else ""
        wanted = str(self.wanted) if self.wanted else "all"
        return f"{name} needs {wanted}: {stages}{errors}"


def stages(
    allocator: Allocator, alternative: Alternative, ledger: Ledger, usable: int, reserved: int = 0
) -> list[tuple[Stage, int]]:
    """The devices that are left after each stage."""
    index, criteria = allocator.index, allocator.criteria
    room = 0 if alternative.totals else ledger.with_room(alternative.capacity)
    offering = index.everything
    for name, least in alternative.capacity:
        offering &= index.offering(name, least)
    conditions = (
        (Stage.KNOWN, index.everything),
        (Stage.CLASS, criteria.of_class(alternative.device_class).devices),
        (Stage.SELECTOR, criteria.of_criteria(alternative.criteria).devices),
        (Stage.CAPACITY, offering),
        (Stage.ALLOWED, usable),
        (Stage.ENABLED, ~index.blocked),
        (Stage.UNTAINTED, ~index.tainted(alternative.tolerations)),
        (Stage.FREE, ledger.unused | room),
        *([(Stage.UNRESERVED, ~reserved)] if reserved else []),
    )
    left = index.everything
    found = []
    for stage, condition in conditions:
        left &= condition
        found.append((stage, left))
    return found


def funnels(
    allocator: Allocator, terms: Terms, ledger: Ledger, usable: int, *, reserved: int = 0
) -> tuple[Funnel, ...]:
    """One funnel for each alternative of each request."""
    return tuple(
        Funnel(
            request=request.name,
            alternative=alternative.name,
            wanted=0 if alternative.every else alternative.count,
            left=tuple(
                (stage, left.bit_count())
                for stage, left in stages(allocator, alternative, ledger, usable, reserved)
            ),
            errors=_errors(allocator, alternative),
        )
        for request in terms.requests
        for alternative in request.alternatives
    )


def _errors(allocator: Allocator, alternative: Alternative) -> int:
    criteria = allocator.criteria
    of_class = criteria.of_class(alternative.device_class)
    own = criteria.of_criteria(alternative.criteria)
    return bitsets.union((of_class.errors, own.errors & of_class.devices)).bit_count()
