"""Which client may lease which exporter: ExporterAccessPolicy as a decision.

In a namespace without policy objects everything is allowed. As soon as a policy exists,
only what some rule allows is permitted.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import timedelta

from bullpen.api.kinds.accesspolicy import ExporterAccessPolicy
from bullpen.api.kinds.lease import IDLE_MIN
from bullpen.core.matcher import Device, Matcher
from bullpen.kit.selectors import Selector


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One entry of one policy, with its selectors compiled."""

    exporters: Matcher
    clients: tuple[Selector, ...]
    priority: int
    maximum: timedelta | None
    spot: bool
    description: str
    active: int | None = None
    waiting: int | None = None
    """The maximum number of leases of a client under this rule; None if the rule sets no limit."""

    idle: timedelta | None = None
    """The idle time-out under this rule; None if the rule sets none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Approval:
    """A rule that permits a client to lease an exporter."""

    priority: int = 0
    spot: bool = False
    """The lease may be ended early in favour of a lease with a non-spot right to the exporter."""

    maximum: timedelta | None = None
    """The longest lease that any rule for this client and exporter allows; None for unlimited."""

    idle: timedelta | None = None
    """How long the lease may be without a connection; None for unlimited."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Allowance:
    """How many leases the policies allow a client; None where they set no limit."""

    active: int | None = None
    waiting: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Policies:
    """All rules of a namespace. ``enforced`` is False while no policy object exists."""

    enforced: bool = False
    rules: tuple[Rule, ...] = ()
    idle: timedelta | None = None
    """The idle time-out where no rule sets one: the service's setting."""

    @property
    def unlimited(self) -> Approval:
        """The approval of every client while no policy exists."""
        return Approval(idle=self.idle)


OPEN = Policies()


def policies(objects: Iterable[ExporterAccessPolicy], *, idle: timedelta | None = None) -> Policies:
    """Compile the policy objects of one namespace, in name order."""
    ordered = sorted(objects, key=lambda policy: policy.metadata.name)
    rules = tuple(
        Rule(
            exporters=Matcher(selector=policy.spec.exporter_selector.selector()),
            clients=tuple(source.client_selector.selector() for source in entry.from_),
            priority=entry.priority,
            maximum=entry.maximum_duration,
            spot=entry.spot_access,
            description=entry.description,
            active=entry.maximum_active_leases,
            waiting=entry.maximum_waiting_leases,
            # A cluster's API server does not know the minimum.
            idle=None if entry.idle_timeout is None else max(entry.idle_timeout, IDLE_MIN),
        )
        for policy in ordered
        for entry in policy.spec.policies
    )
    return Policies(enforced=bool(ordered), rules=rules, idle=idle)


def approve(
    found: Policies,
    *,
    client: Mapping[str, str],
    exporter: Device,
    duration: timedelta | None,
) -> Approval | None:
    """The best rule that allows the lease: non-spot before spot, then by priority.

    A lease without an end exceeds every maximum.
    """
    if not found.enforced:
        return found.unlimited
    rules = _concerning(found, client, exporter)
    allowing = [rule for rule in rules if _within(duration, rule.maximum)]
    best = max(allowing, key=lambda rule: (not rule.spot, rule.priority), default=None)
    if best is None:
        return None
    return Approval(
        priority=best.priority,
        spot=best.spot,
        maximum=_longest(rule.maximum for rule in rules),
        idle=_longest(found.idle if rule.idle is None else rule.idle for rule in rules),
    )


def longest(found: Policies, *, client: Mapping[str, str], exporter: Device) -> timedelta | None:
    """The longest lease any rule would allow here; None if there is no limit.

    Meaningful only if some rule applies to the client and exporter at all.
    """
    return _longest(rule.maximum for rule in _concerning(found, client, exporter))


def allowance(found: Policies, *, client: Mapping[str, str]) -> Allowance:
    """The most generous limits among the rules that apply to the client."""
    rules = [rule for rule in found.rules if _about(rule, client)]
    return Allowance(
        active=max((rule.active for rule in rules if rule.active is not None), default=None),
        waiting=max((rule.waiting for rule in rules if rule.waiting is not None), default=None),
    )


def concerns(found: Policies, *, client: Mapping[str, str], exporter: Device) -> bool:
    """Whether any rule applies to this client and exporter, whatever the duration."""
    return not found.enforced or bool(_concerning(found, client, exporter))


def descriptions(found: Policies, *, exporter: Device) -> tuple[str, ...]:
    """The descriptions of the rules for an exporter, used to explain a refusal."""
    said = (r.description for r in found.rules if r.exporters.matches(exporter) and r.description)
    return tuple(dict.fromkeys(said))


def _concerning(found: Policies, client: Mapping[str, str], exporter: Device) -> list[Rule]:
    return [
        rule for rule in found.rules if rule.exporters.matches(exporter) and _about(rule, client)
    ]


def _about(rule: Rule, client: Mapping[str, str]) -> bool:
    return any(selector.matches(client) for selector in rule.clients)


def _longest(limits: Iterable[timedelta | None]) -> timedelta | None:
    """The most generous of several limits; None, for no limit, is more generous than any."""
    known = list(limits)
    return (
        None if None in known else max((each for each in known if each is not None), default=None)
    )


def _within(duration: timedelta | None, maximum: timedelta | None) -> bool:
    return maximum is None or (duration is not None and duration <= maximum)
