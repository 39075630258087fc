"""The sentences that say why a claim is not served, and who has what it needs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal

from bullpen.core.claims.claim import Constraint
from bullpen.kit import quantities, times

NAMES_MAX = 10
"""Devices, values or holders named in one sentence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SelectorFailure:
    """A selector that no device could be compared with, so that it matches none."""

    request: str
    text: str
    problem: str
    """Why, as far as it is known."""

    def __str__(self) -> str:
        why = f": {self.problem}" if self.problem else ""
        return f"{self.request}: the selector {self.text} cannot be evaluated on any device{why}"


@dataclass(frozen=True, slots=True, kw_only=True)
class HallSet:
    """Requests that together need more devices than qualify for them."""

    requests: tuple[str, ...]
    needed: int
    devices: tuple[str, ...]

    def __str__(self) -> str:
        who = _listed(self.requests)
        if not self.devices:
            return f"{who} {_needs(self.requests)} {self.needed}, no free device qualifies"
        verb = "qualifies" if len(self.devices) == 1 else "qualify"
        return f"{who} {_needs(self.requests)} {self.needed}, only {_listed(self.devices)} {verb}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ValueShortfall:
    """A constraint, and how near its best values come to fulfilling it."""

    constraint: Constraint
    values: tuple[tuple[str, int, int], ...]
    """Values with the number of needs that they fulfil, and the number there is; best first."""

    def __str__(self) -> str:
        attribute = self.constraint.attribute
        if not self.values:
            return f"no free device that qualifies has the attribute {attribute}"
        if self.constraint.distinct:
            _, found, needed = self.values[0]
            return f"{needed} different values of {attribute} are needed, {found} are available"
        said = ", ".join(f"{attribute} {v} {found} of {n}" for v, found, n in self.values)
        return f"no value of {attribute} has all: {said}"


@dataclass(frozen=True, slots=True, kw_only=True)
class CounterShortfall:
    """A shared counter that ran out."""

    counter: str
    left: int

    def __str__(self) -> str:
        left = quantities.Quantity(_base(self.left))
        return f"counter {self.counter} has only {left} left"


@dataclass(frozen=True, slots=True, kw_only=True)
class TotalShortfall:
    """A total that the free devices do not reach together."""

    request: str
    name: str
    wanted: int
    devices_max: int
    reached: int

    def __str__(self) -> str:
        least, most = (quantities.Quantity(_base(n)) for n in (self.wanted, self.reached))
        devices = "1 device" if self.devices_max == 1 else f"{self.devices_max} devices"
        return (
            f"{self.request} needs {self.name} of {least} in total from at most {devices},"
            f" the free ones that qualify reach {most}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Crowd:
    """Requests that cannot be served together, although all fewer of them can."""

    requests: tuple[str, ...]

    def __str__(self) -> str:
        if len(self.requests) == 1:
            return f"{self.requests[0]} cannot be served with what is free"
        return f"{_listed(self.requests)} cannot be served together with what is free"


@dataclass(frozen=True, slots=True, kw_only=True)
class Conflict:
    """Constraints that can each be kept, but not all of them."""

    constraints: tuple[Constraint, ...]

    def __str__(self) -> str:
        said = []
        for constraint in self.constraints:
            where = f" of {_listed(constraint.requests)}" if constraint.requests else ""
            said.append(f"{_kind(constraint)} on {constraint.attribute}{where}")
        return f"no free devices that qualify keep {_listed(said)} together"


@dataclass(frozen=True, slots=True, kw_only=True)
class Blocker:
    """A use of a device that the claim could have."""

    holder: str
    devices: tuple[str, ...]
    until: datetime | None

    def __str__(self) -> str:
        end = f"until {times.text(self.until)}" if self.until else "without a known end"
        return f"{self.holder} has {_listed(self.devices)} {end}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """Devices that the claim could have, but that are reserved while it would have them."""

    holder: str
    devices: tuple[str, ...]
    begin: datetime

    def __str__(self) -> str:
        verb = "is" if len(self.devices) == 1 else "are"
        since = times.text(self.begin)
        return f"{_listed(self.devices)} {verb} kept for {self.holder} from {since} on"


Reason = (
    SelectorFailure
    | HallSet
    | ValueShortfall
    | CounterShortfall
    | TotalShortfall
    | Crowd
    | Conflict
)


def _needs(requests: Sequence[str]) -> str:
    return "needs" if len(requests) == 1 else "together need"


def _listed(names: Sequence[str]) -> str:
    shown = list(names[:NAMES_MAX])
    if len(names) > NAMES_MAX:
        shown.append(f"{len(names) - NAMES_MAX} more")
    return shown[0] if len(shown) == 1 else f"{', '.join(shown[:-1])} and {shown[-1]}"


def _base(nanos: int) -> Decimal:
    return Decimal(nanos).scaleb(-9)


def _kind(constraint: Constraint) -> str:
    return "distinct" if constraint.distinct else "match"
