"""What the scheduler is asked, and what it answers.

A request asks for one or several exporters and is served completely or not at all. A waiting
lease is a request with one want for one exporter.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from bullpen.core.exporters.offers import OfferIndex
from bullpen.core.leases import access
from bullpen.core.leases.access import Approval, Policies
from bullpen.core.matcher import Device, Matcher


@dataclass(frozen=True, slots=True, kw_only=True)
class Want:
    """One or several exporters of the same description."""

    matcher: Matcher
    name: str = ""
    """Identifies the want within its request; empty if the request has no other."""

    count: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """The part of a waiting lease that the scheduler looks at."""

    name: str
    client: str
    client_labels: Mapping[str, str] | None
    """None when the Client object does not exist."""

    wants: tuple[Want, ...]
    """Earlier wants have the first choice of exporters."""

    since: datetime
    """The time that determines its place in the queue."""

    sequence: int = 0
    """Order of arrival among requests created in the same second."""

    allow_disabled: bool = False
    """Whether a want for an exporter by name may get it although it is disabled."""

    duration: timedelta | None = None

    @property
    def size(self) -> int:
        """The number of exporters it needs."""
        return sum(want.count for want in self.wants)


def kind_of(request: Request) -> object:
    """A key shared by all requests that the same exporters can serve."""
    client = request.client_labels
    return (
        request.wants,
        request.allow_disabled,
        request.duration,
        None if client is None else frozenset(client.items()),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Supply:
    """A pool that could create exporters, and its message about when."""

    name: str
    member: Device
    message: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lab:
    """Everything the scheduler may look at, in one namespace."""

    offers: OfferIndex
    requests: tuple[Request, ...]
    policies: Policies = access.OPEN
    supplies: tuple[Supply, ...] = field(default=())


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    """One exporter of an assignment, and the approval that allows it."""

    exporter: str
    approval: Approval
    want: str = ""
    """The name of the want it serves."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Assign:
    """Everything the request needs, in the order of its wants."""

    request: str
    grants: tuple[Grant, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Evict:
    """End a spot lease so that its exporter can go to the request ``by``."""

    lease: str
    exporter: str
    by: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    request: str
    reason: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Refuse:
    """End a request that can never be served."""

    request: str
    type: str
    reason: str
    message: str


Decision = Assign | Evict | Wait | Refuse


def request_of(decision: Decision) -> str:
    """The name of the request a decision is about."""
    return decision.by if isinstance(decision, Evict) else decision.request
