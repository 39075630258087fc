"""What a claim asks for, as values: requests with alternatives, and constraints across them.

The whole description can be hashed: claims that ask for the same thing are decided once.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from functools import cached_property

from bullpen.api.device_selectors import Expression
from bullpen.core.claims.inventory import Amounts, Toleration
from bullpen.kit.selectors import EVERYTHING, Selector


@dataclass(frozen=True, slots=True, kw_only=True)
class Criteria:
    """Conditions on one device that must all hold: labels and CEL expressions."""

    labels: Selector = EVERYTHING
    expressions: tuple[Expression, ...] = ()


EVERY_DEVICE = Criteria()


@dataclass(frozen=True, slots=True, kw_only=True)
class Alternative:
    """Devices of one description that would satisfy a request."""

    name: str = ""
    device_class: str = ""
    """Empty for devices of every class."""

    criteria: Criteria = EVERY_DEVICE
    count: int = 1
    every: bool = False
    """All matching devices, at least one, instead of ``count``."""

    capacity: Amounts = ()
    """What each device must offer; of a shareable device only this share is taken."""

    totals: Amounts = ()
    """What all devices together must offer; as few devices as possible are taken."""

    count_max: int = 0
    """With ``totals``, how many devices may be taken to reach them; zero for ``count``."""

    tolerations: tuple[Toleration, ...] = ()
    after: timedelta = timedelta(0)
    """The alternative is open only after the claim has waited so long."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A part of a claim. The first alternative that leads to a complete claim is taken."""

    name: str
    alternatives: tuple[Alternative, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Constraint:
    """A condition on one attribute across devices; a device without the attribute fails it."""

    attribute: str
    distinct: bool = False
    """All devices differ in the attribute; otherwise all have a value of it in common."""

    requests: tuple[str, ...] = ()
    """Names of requests, or ``request/alternative``; empty for all requests."""

    prefer: bool = False
    """Kept if possible, after the alternatives have been chosen."""

    def covers(self, request: Request, alternative: Alternative) -> bool:
        if not self.requests:
            return True
        return request.name in self.requests or (
            f"{request.name}/{alternative.name}" in self.requests
        )


@dataclass(frozen=True, kw_only=True)
class Terms:
    """Everything a claim asks for. The same devices serve claims with equal terms."""

    requests: tuple[Request, ...]
    constraints: tuple[Constraint, ...] = ()

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def _hash(self) -> int:
        """Computed once: a pass over a queue looks up the terms of every claim."""
        return hash((self.requests, self.constraints))

    @cached_property
    def delays(self) -> tuple[timedelta, ...]:
        """The times after which further alternatives open, in order."""
        found = {a.after for request in self.requests for a in request.alternatives}
        return tuple(sorted(delay for delay in found if delay > timedelta(0)))

    @cached_property
    def single(self) -> bool:
        """Whether it asks for one whole device, without any condition across devices."""
        return (
            len(self.requests) == 1
            and not self.constraints
            and all(
                a.count == 1 and not a.every and not a.capacity and not a.totals
                for a in self.requests[0].alternatives
            )
        )


def due_terms(terms: Terms, waited: timedelta) -> Terms | None:
    """The terms with the alternatives that are open by now; None if a request has none yet."""
    if not terms.delays or terms.delays[-1] <= waited:
        return terms
    requests = []
    for request in terms.requests:
        due = tuple(a for a in request.alternatives if a.after <= waited)
        if not due:
            return None
        requests.append(Request(name=request.name, alternatives=due))
    return Terms(requests=tuple(requests), constraints=terms.constraints)
