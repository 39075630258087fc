"""Why a request was not served: what it waits for, or why it can never be served.

The texts end up in conditions of leases, where users and clients read them. They count as
little as possible: a text that changes with every release would be written to every waiting
lease each time.
"""

from __future__ import annotations

from collections.abc import Sequence

from bullpen.core.exporters.offers import Offer
from bullpen.core.leases import access
from bullpen.core.leases.bookings import Fence
from bullpen.core.leases.requests import Lab, Refuse, Request, Supply, Wait, Want
from bullpen.core.leases.target_set import largest_matching
from bullpen.kit import durations, times

MESSAGE_MAX = 4096

EXACT_MAX = 10
"""Queue positions up to this one are reported exactly."""


def explain(
    lab: Lab,
    request: Request,
    offers: Sequence[Sequence[Offer]],
    *,
    position: int,
    soon: bool,
    fence: Fence | None = None,
) -> Wait | Refuse:
    """Whether the request waits or is refused, and the message for its client.

    ``offers``: for each want the offers it could get, whatever their state. ``soon``: everything
    the request needs is free or about to be. ``fence``: the booking for which it waits.
    """
    if any(want.matcher.unrestricted for want in request.wants):
        return Refuse(
            request=request.name,
            type="Invalid",
            reason="InvalidSelector",
            message="the lease has neither a selector nor an exporter name; give one of them",
        )
    supplies = [_supply(lab, request, want) for want in request.wants]
    for want, found, supply in zip(request.wants, offers, supplies, strict=True):
        if not found and supply is None:
            refusal = _refusal(lab, request, want)
            if request.patient and _is_unmatched(lab, request, want):
                text = f"{refusal.message}; waiting a moment for one to appear"
                return Wait(request=request.name, reason="NoMatch", message=text[:MESSAGE_MAX])
            return refusal
    if request.size > 1 and _too_few(request, offers, supplies):
        text = f"the exporters that match are too few for the {request.size} it needs"
        return _unsatisfiable(request, "TooFewExporters", text)
    if fence is not None:
        return _booked(request, fence, position=position)
    short = _short(request, offers) if request.size > 1 else 0
    return _wait(request, short, offers[short], supplies[short], position=position, soon=soon)


def _booked(request: Request, fence: Fence, *, position: int) -> Wait:
    text = (
        f"position {_rounded(position)} in the queue: what is free is booked {fence};"
        f" a lease that ends before {times.text(fence.begin)} can have it now"
    )
    return Wait(request=request.name, reason="Booked", message=text)


def _is_unmatched(lab: Lab, request: Request, want: Want) -> bool:
    """Whether there is nothing yet that the want could ask for."""
    if request.client_labels is None:
        return False
    if want.matcher.exporter:
        return lab.offers.get(want.matcher.exporter) is None
    return not any(want.matcher.matches(offer) for offer in lab.offers)


def _too_few(
    request: Request, offers: Sequence[Sequence[Offer]], supplies: Sequence[Supply | None]
) -> bool:
    """Whether the request could not be served even if every exporter were free."""
    places = [
        [offer.name for offer in found[: request.size]]
        for want, found, supply in zip(request.wants, offers, supplies, strict=True)
        if supply is None
        for _ in range(want.count)
    ]
    return len(largest_matching(places)) < len(places)


def _short(request: Request, offers: Sequence[Sequence[Offer]]) -> int:
    """The first want with too few free exporters, or the first one if none is short alone."""
    for number, (want, found) in enumerate(zip(request.wants, offers, strict=True)):
        if sum(offer.free for offer in found) < want.count:
            return number
    return 0


def _wait(
    request: Request,
    number: int,
    offers: Sequence[Offer],
    supply: Supply | None,
    *,
    position: int,
    soon: bool,
) -> Wait:
    if not offers and supply is not None:
        return Wait(request=request.name, reason="Provisioning", message=supply.message)
    reason, cause = _cause(offers, soon=soon)
    if request.size > 1:
        want = request.wants[number]
        many = _exporters(len(offers))
        cause = f"{want.name} needs {want.count} of {many} that match, and too few are free"
    message = f"position {_rounded(position)} in the queue: {cause}"
    if supply is not None and supply.message:
        message = f"{message}; {supply.message}"
    return Wait(request=request.name, reason=reason, message=message[:MESSAGE_MAX])


def _rounded(number: int) -> str:
    """Exact for small numbers. Larger ones are rounded, so that serving one does not update all."""
    if number <= EXACT_MAX:
        return str(number)
    step = 10 ** (len(str(number)) - 1)
    return f"about {-(-number // step) * step}"


def _cause(offers: Sequence[Offer], *, soon: bool) -> tuple[str, str]:
    """Why too few suitable exporters are available: the reason, and a sentence.

    The text does not count online exporters: each one that comes back would change the text of
    every waiting lease. ``soon``: an exporter is about to be free for this very request. For
    requests behind it the exporter is still in use, or each release would change the text of
    every waiting lease.
    """
    online = [offer for offer in offers if offer.online]
    one = len(offers) == 1
    subject = f"{_exporters(len(offers))} {'matches' if one else 'match'}"
    if not online:
        return "Offline", f"{subject}, {'but it is not' if one else 'but none is'} online"
    # What is free here goes to a request in front, so it counts as in use.
    used = sum(1 for offer in online if offer.holder or offer.idle or not offer.stuck)
    if soon or not used:
        return "NotReady", f"{subject}, {'but it is not' if one else 'but none is'} ready yet"
    if used < len(offers):
        return "NotAvailable", f"{subject}, all online ones are in use"
    return "NotAvailable", f"{subject}, {'it is' if one else 'all are'} in use"


def _exporters(count: int) -> str:
    return "1 exporter" if count == 1 else f"{_rounded(count)} exporters"


def _supply(lab: Lab, request: Request, want: Want) -> Supply | None:
    """A pool that could create what the want asks for."""
    if request.client_labels is None:
        return None
    for supply in sorted(lab.supplies, key=lambda s: s.name):
        if want.matcher.matches(supply.member) and access.approve(
            lab.policies,
            client=request.client_labels,
            exporter=supply.member,
            duration=request.duration,
        ):
            return supply
    return None


def _refusal(lab: Lab, request: Request, want: Want) -> Refuse:
    """Why no exporter and no pool can ever serve a want."""
    matcher = want.matcher
    if request.client_labels is None:
        return _no_access(request, f"client {request.client} does not exist")
    if matcher.exporter:
        named = lab.offers.get(matcher.exporter)
        if named is None:
            text = f"there is no exporter {matcher.exporter}"
            return _unsatisfiable(request, "ExporterNotFound", text)
        if not matcher.matches(named):
            text = f"exporter {named.name} does not match the selector {matcher}"
            return _unsatisfiable(request, "SelectorMismatch", text)
        if not named.enabled and not request.allow_disabled:
            return _unsatisfiable(request, "ExporterDisabled", f"exporter {named.name} is disabled")
        return _denied(lab, request, [named])
    matching = [offer for offer in lab.offers if matcher.matches(offer)]
    if matching and not any(offer.enabled for offer in matching):
        text = f"every exporter that matches {matcher} is disabled"
        return _unsatisfiable(request, "AllDisabled", text)
    if not matching:
        return _no_access(request, f"no exporter and no pool matches {matcher}")
    return _denied(lab, request, [offer for offer in matching if offer.enabled])


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
        request=request.name, type="Unsatisfiable", reason=reason, message=message[:MESSAGE_MAX]
    )
