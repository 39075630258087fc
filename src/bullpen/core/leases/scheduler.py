"""Which waiting lease gets which exporter: one decision over all of them.

Everything is read at one revision and decided together, so the outcome does not depend on
the order in which leases are visited. Requests are served first come, first served, within
what policies allow: rights of higher priority are served first, equal rights by age. A
lease that cannot be served now is told why, and its place in the queue.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import cached_property

from bullpen.core.exporters.offers import Offer, OfferIndex
from bullpen.core.leases import access
from bullpen.core.leases.access import Approval, Policies
from bullpen.core.matcher import Device, Matcher
from bullpen.kit import durations

MESSAGE_MAX = 4096

EXACT_MAX = 10
"""Queue positions up to this one are reported exactly."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """The part of a waiting lease that the scheduler looks at."""

    name: str
    client: str
    client_labels: Mapping[str, str] | None
    """None when the Client object does not exist."""

    matcher: Matcher
    since: datetime
    """The time that determines its place in the queue."""

    sequence: int = 0
    """Order of arrival among requests created in the same second."""

    allow_disabled: bool = False
    duration: timedelta | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Supply:
    """A pool that could create exporters, and its message about when."""

    name: str
    member: Device
    message: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lab:
    """Everything ``schedule`` may look at, in one namespace."""

    offers: OfferIndex
    requests: tuple[Request, ...]
    policies: Policies = access.OPEN
    supplies: tuple[Supply, ...] = field(default=())


@dataclass(frozen=True, slots=True, kw_only=True)
class Assign:
    lease: str
    exporter: str
    approval: Approval


@dataclass(frozen=True, slots=True, kw_only=True)
class Evict:
    """End a spot lease so that its exporter can go to ``by``."""

    lease: str
    exporter: str
    by: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    lease: str
    reason: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Refuse:
    """End a lease that can never be served."""

    lease: str
    type: str
    reason: str
    message: str


Decision = Assign | Evict | Wait | Refuse


@dataclass(frozen=True, slots=True)
class _Option:
    """An exporter a request may get, and the approval that allows it."""

    offer: Offer
    approval: Approval


def schedule(lab: Lab) -> tuple[Decision, ...]:
    """Return one decision for every request, in the order they are served.

    Requests with no exporter in common are independent, so only the affected ones need to be
    passed in.

    The same lab always gives the same decisions, whatever the order its parts are listed in.
    """
    candidates: dict[object, _Candidates] = {}
    queue = []
    for request in lab.requests:
        kind = kind_of(request)
        asked = candidates.get(kind)
        if asked is None:
            asked = candidates[kind] = _Candidates(lab, request)
        queue.append((asked, request))
    taken: set[str] = set()
    promised: set[str] = set()
    decisions: list[Decision] = []
    places = _Places()
    for asked, request in sorted(queue, key=lambda item: _turn(*item)):
        chosen = asked.next_free(taken)
        if chosen is not None:
            taken.add(chosen.offer.name)
            decisions.append(
                Assign(lease=request.name, exporter=chosen.offer.name, approval=chosen.approval)
            )
            continue
        next_free = _settling(asked.options, promised) or _victim(asked.options, promised)
        if next_free is not None:
            promised.add(next_free.offer.name)
            if next_free.offer.holder:
                decisions.append(_eviction(next_free.offer, request))
        soon = next_free is not None and next_free.offer.settling
        decisions.append(_unserved(lab, request, asked.options, places.next(asked), soon=soon))
    return tuple(decisions)


def kind_of(request: Request) -> object:
    """A key shared by all requests that the same exporters can serve."""
    client = request.client_labels
    return (
        request.matcher,
        request.allow_disabled,
        request.duration,
        None if client is None else frozenset(client.items()),
    )


class _Candidates:
    """The exporters that all requests of one kind could get. Looked up once for all of them."""

    def __init__(self, lab: Lab, request: Request) -> None:
        self._lab = lab
        self._request = request
        self._free = self._options_free()

    def next_free(self, taken: set[str]) -> _Option | None:
        """The best free option that is not taken; a taken exporter stays taken."""
        return next((o for o in self._free if o.offer.name not in taken), None)

    @cached_property
    def options(self) -> list[_Option]:
        """Every matching exporter, free or not, sorted by preference."""
        return _sorted(self._allowed(self._matching()))

    @property
    def best(self) -> Approval | None:
        """The best approval for any exporter."""
        if not self._lab.policies.enforced:
            return access.UNLIMITED
        return self.options[0].approval if self.options else None

    def _options_free(self) -> Iterator[_Option]:
        """Free options by preference. Without policies all of them are equally good."""
        if self._request.matcher.exporter or self._lab.policies.enforced:
            yield from (option for option in self.options if option.offer.free)
        elif not self._request.matcher.unrestricted and self._request.client_labels is not None:
            for offer in self._lab.offers.free(self._request.matcher):
                yield _Option(offer, access.UNLIMITED)

    def _matching(self) -> Iterator[Offer]:
        request, offers = self._request, self._lab.offers
        if request.allow_disabled and request.matcher.exporter:
            pinned = offers.get(request.matcher.exporter)
            if pinned is not None and request.matcher.matches(pinned):
                yield pinned
        elif not request.matcher.unrestricted:
            yield from offers.enabled(request.matcher)

    def _allowed(self, offers: Iterator[Offer]) -> Iterator[_Option]:
        client = self._request.client_labels
        if client is None:
            return
        for offer in offers:
            approval = access.approve(
                self._lab.policies,
                client=client,
                exporter=offer,
                duration=self._request.duration,
            )
            if approval is not None:
                yield _Option(offer, approval)


def _sorted(options: Iterator[_Option]) -> list[_Option]:
    return sorted(options, key=lambda o: (o.approval.spot, -o.approval.priority, o.offer.name))


def _turn(asked: _Candidates, request: Request) -> tuple[bool, int, datetime, int, str]:
    """Sort key of the queue: non-spot rights first, then priority, then age, then name."""
    best = asked.best
    spot, priority = (best.spot, best.priority) if best is not None else (True, 0)
    return (spot, -priority, request.since, request.sequence, request.name)


def _settling(options: list[_Option], promised: set[str]) -> _Option | None:
    """An option that will be free soon anyway, perhaps because its spot lease was just ended."""
    return next((o for o in options if o.offer.settling and o.offer.name not in promised), None)


def _victim(options: list[_Option], promised: set[str]) -> _Option | None:
    """An option held by a spot lease to which this request has a non-spot right."""
    for option in options:
        offer = option.offer
        held_by_spot = offer.holder and offer.holder_spot and offer.online
        if held_by_spot and not option.approval.spot and offer.name not in promised:
            return option
    return None


def _eviction(offer: Offer, request: Request) -> Evict:
    return Evict(lease=offer.holder, exporter=offer.name, by=request.name)


class _Places:
    """Queue positions: one behind the longest queue for any of the exporters asked for."""

    def __init__(self) -> None:
        self._ahead: dict[str, int] = {}
        self._last: _Candidates | None = None
        self._place = 0

    def next(self, asked: _Candidates) -> int:
        if asked is self._last:
            self._place += 1
            return self._place
        self._settle()
        ahead = (self._ahead.get(option.offer.name, 0) for option in asked.options)
        self._last, self._place = asked, 1 + max(ahead, default=0)
        return self._place

    def _settle(self) -> None:
        """Publish the queue length that was counted last, so that other requests see it."""
        if self._last is not None:
            for option in self._last.options:
                self._ahead[option.offer.name] = self._place


def _unserved(
    lab: Lab, request: Request, options: list[_Option], position: int, *, soon: bool
) -> Decision:
    """Why a request got no exporter this time: it waits, or it can never be served."""
    if request.matcher.unrestricted:
        return Refuse(
            lease=request.name,
            type="Invalid",
            reason="InvalidSelector",
            message="the lease has neither a selector nor an exporter name; give one of them",
        )
    supply = _supply(lab, request)
    if options:
        return _wait(request, _cause(options, soon=soon), position, supply)
    if supply is not None:
        return Wait(lease=request.name, reason="Provisioning", message=supply.message)
    return _refusal(lab, request)


def _wait(request: Request, why: tuple[str, str], position: int, supply: Supply | None) -> Wait:
    reason, cause = why
    message = f"position {_rounded(position)} in the queue: {cause}"
    if supply is not None and supply.message:
        message = f"{message}; {supply.message}"
    return Wait(lease=request.name, reason=reason, message=message[:MESSAGE_MAX])


def _rounded(number: int) -> str:
    """Exact for small numbers. Larger ones are rounded, so that serving one does not update all."""
    if number <= EXACT_MAX:
        return str(number)
    step = 10 ** (len(str(number)) - 1)
    return f"about {-(-number // step) * step}"


def _cause(options: list[_Option], *, soon: bool) -> tuple[str, str]:
    """Why no suitable exporter is available: the reason, and a sentence.

    The text does not count online exporters: each one that comes back would change the text of
    every waiting lease. ``soon``: an exporter is about to be free for this very request. For
    requests behind it the exporter is still in use, or each release would change the text of
    every waiting lease.
    """
    online = [o.offer for o in options if o.offer.online]
    one = len(options) == 1
    subject = f"{_exporters(len(options))} {'matches' if one else 'match'}"
    if not online:
        return "Offline", f"{subject}, {'but it is not' if one else 'but none is'} online"
    used = sum(1 for offer in online if offer.holder or offer.free or offer.settling)
    if soon or not used:
        return "NotReady", f"{subject}, {'but it is not' if one else 'but none is'} ready yet"
    if used < len(options):
        return "NotAvailable", f"{subject}, all online ones are in use"
    return "NotAvailable", f"{subject}, {'it is' if one else 'all are'} in use"


def _exporters(count: int) -> str:
    return "1 exporter" if count == 1 else f"{_rounded(count)} exporters"


def _supply(lab: Lab, request: Request) -> Supply | None:
    """A pool that could create what the request asks for."""
    if request.matcher.exporter or request.client_labels is None:
        return None
    for supply in sorted(lab.supplies, key=lambda s: s.name):
        allowed = access.approve(
            lab.policies,
            client=request.client_labels,
            exporter=supply.member,
            duration=request.duration,
        )
        if allowed is not None and request.matcher.matches(supply.member):
            return supply
    return None


def _refusal(lab: Lab, request: Request) -> Refuse:
    if request.client_labels is None:
        return _no_access(request, f"client {request.client} does not exist")
    named = request.matcher.exporter
    if named:
        pinned = lab.offers.get(named)
        if pinned is None:
            return _unsatisfiable(request, "ExporterNotFound", f"there is no exporter {named}")
        if not request.matcher.matches(pinned):
            text = f"exporter {pinned.name} does not match the selector {request.matcher}"
            return _unsatisfiable(request, "SelectorMismatch", text)
        if not pinned.enabled and not request.allow_disabled:
            return _unsatisfiable(
                request, "ExporterDisabled", f"exporter {pinned.name} is disabled"
            )
        return _denied(lab, request, [pinned])
    matching = [o for o in lab.offers if request.matcher.matches(o)]
    if matching and not any(o.enabled for o in matching):
        text = f"every exporter that matches {request.matcher} is disabled"
        return _unsatisfiable(request, "AllDisabled", text)
    if not matching:
        return _no_access(request, f"no exporter and no pool matches {request.matcher}")
    return _denied(lab, request, [o for o in matching if o.enabled])


def _denied(lab: Lab, request: Request, offers: list[Offer]) -> Refuse:
    """No policy allows the request; say whether a shorter lease would be allowed."""
    client = request.client_labels or {}
    limits = [
        access.longest(lab.policies, client=client, exporter=offer)
        for offer in offers
        if access.concerns(lab.policies, client=client, exporter=offer)
    ]
    known = [limit for limit in limits if limit is not None]
    if known:
        allowed = durations.text(max(known))
        return _no_access(request, f"the policies allow {request.client} at most {allowed}")
    said = [d for offer in offers for d in access.descriptions(lab.policies, exporter=offer)]
    text = f"no policy gives {request.client} access to {_those(offers)}"
    if said:
        text = f"{text}: {'; '.join(dict.fromkeys(said))}"
    return _no_access(request, text)


def _those(offers: list[Offer]) -> str:
    if len(offers) == 1:
        return f"exporter {offers[0].name}"
    return f"any of the {len(offers)} exporters that match"


def _no_access(request: Request, message: str) -> Refuse:
    return _unsatisfiable(request, "NoAccess", message)


def _unsatisfiable(request: Request, reason: str, message: str) -> Refuse:
    return Refuse(
        lease=request.name, type="Unsatisfiable", reason=reason, message=message[:MESSAGE_MAX]
    )
