"""How many leases a client may have, for how long, and how quickly it may request more.

Decided before a lease is created, from the current leases of the client and its namespace.
The messages name the limit that was exceeded and who can change it.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from bullpen.core.leases.access import Allowance
from bullpen.kit import durations

OPERATOR = "the operator of the service can change it"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rate:
    """How quickly one client may create leases: a burst, then a number per second."""

    burst: int
    per_second: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Quotas:
    """The limits of the service where no policy sets others; None means no limit."""

    active_max: int | None = 500
    """Leases of one client that hold an exporter."""

    waiting_max: int | None = 500
    """Leases of one client that wait for an exporter or are booked for later."""

    namespace_max: int | None = 10_000
    """Open leases in a namespace, of all clients together."""

    duration_max: timedelta | None = timedelta(days=7)
    priority_max: int | None = 0
    """The highest priority that a client may give its own claims."""

    rate: Rate | None = Rate(burst=500, per_second=20.0)


UNLIMITED = Quotas(
    active_max=None,
    waiting_max=None,
    namespace_max=None,
    duration_max=None,
    priority_max=None,
    rate=None,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """Open leases of a client, and of its namespace."""

    active: int = 0
    waiting: int = 0
    namespace: int = 0


def refusal(quotas: Quotas, allowance: Allowance, usage: Usage, *, client: str) -> str | None:
    """Why the client may not request another lease now; None if it may.

    A new lease waits first, so both limits of the client apply to it.
    """
    return (
        too_many_active(quotas, allowance, usage, client=client)
        or _too_many_waiting(quotas, allowance, usage, client)
        or _namespace_full(quotas, usage)
    )


def too_many_active(
    quotas: Quotas, allowance: Allowance, usage: Usage, *, client: str, more: int = 1
) -> str | None:
    """Why the client may not have one more active lease, or ``more`` of them at once."""
    most, where = quotas.active_max, _setting("maxActivePerClient")
    if allowance.active is not None:
        most, where = allowance.active, _policy("maximumActiveLeases")
    if most is None or usage.active + more <= most:
        return None
    has = f"{client} has {usage.active} active leases"
    if more > 1:
        return f"{has} and claims {more} more, the limit is {most}. {where}"
    return f"{has}, the limit is {most}; release one. {where}"


def _too_many_waiting(
    quotas: Quotas, allowance: Allowance, usage: Usage, client: str
) -> str | None:
    most, where = quotas.waiting_max, _setting("maxWaitingPerClient")
    if allowance.waiting is not None:
        most, where = allowance.waiting, _policy("maximumWaitingLeases")
    if most is None or usage.waiting < most:
        return None
    return f"{client} has {usage.waiting} waiting leases, the limit is {most}; delete one. {where}"


def _namespace_full(quotas: Quotas, usage: Usage) -> str | None:
    most = quotas.namespace_max
    if most is None or usage.namespace < most:
        return None
    where = _setting("maxPerNamespace")
    return f"the namespace has {usage.namespace} open leases, the limit is {most}. {where}"


def too_long(quotas: Quotas, lasts: timedelta | None) -> str | None:
    """Why a lease may not last that long; None if it may. No end is longer than any limit."""
    most = quotas.duration_max
    if most is None or (lasts is not None and lasts <= most):
        return None
    return f"a lease may last at most {durations.text(most)} here. {_setting('maxDuration')}"


def too_important(quotas: Quotas, priority: int) -> str | None:
    """Why a client may not give its claim that priority; None if it may.

    A higher priority is ahead of all other leases and claims, so an administrator grants it.
    """
    most = quotas.priority_max
    if most is None or priority <= most:
        return None
    where = _setting("maxClaimPriority")
    return f"clients may give their claims a priority of at most {most} here. {where}"


def _setting(name: str) -> str:
    return f"The limit is leases.{name} of the service's settings; {OPERATOR}"


def _policy(field: str) -> str:
    return (
        f"The limit is {field} of an ExporterAccessPolicy;"
        " an administrator of the namespace can change it"
    )


@dataclass(frozen=True, slots=True)
class Bucket:
    """The remaining tokens of a client's rate limit, at a time on the monotonic clock."""

    tokens: float
    at: float


def taken(rate: Rate, bucket: Bucket | None, *, now: float) -> tuple[Bucket, bool]:
    """The bucket after another lease was requested, and whether it had a token left.

    A client that is new, or has not requested a lease for long, has a full bucket.
    """
    before = bucket or Bucket(rate.burst, now)
    grown = before.tokens + max(0.0, now - before.at) * rate.per_second
    tokens = min(float(rate.burst), grown)
    return (Bucket(tokens - 1, now), True) if tokens >= 1 else (Bucket(tokens, now), False)


def too_fast(rate: Rate, *, client: str) -> str:
    """The message for a client that requests leases too quickly."""
    return (
        f"{client} creates leases too quickly: {rate.burst} at once, then"
        f" {rate.per_second:g} a second; try again later."
        f" The limit is leases.createRate and leases.createBurst of the service's settings;"
        f" {OPERATOR}"
    )
