"""Which request gets which exporters: one decision over all waiting requests.

Everything is read at one revision and decided together, so the outcome does not depend on
the order in which requests are visited. Rights of higher priority are served first. Among equal
rights the priority of claims decides, then age less the handicap of the client, so that without
recent use requests are served first come, first served. A request gets every exporter it needs
or none, and nothing that is booked for another one before it would be over. A request that
cannot be served now is told why, and its place in the queue.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence, Set
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, islice

from bullpen.core.exporters.offers import Offer
from bullpen.core.leases import access
from bullpen.core.leases.access import Approval
from bullpen.core.leases.bookings import MOVES_MAX, Fence, Fences, fences
from bullpen.core.leases.explanation import explain
from bullpen.core.leases.requests import (
    Assign,
    Decision,
    Evict,
    Grant,
    Kind,
    Lab,
    Request,
    Want,
)
from bullpen.core.leases.target_set import complete_set


@dataclass(frozen=True, slots=True)
class _Option:
    """An exporter a request may get, and the approval that allows it."""

    offer: Offer
    approval: Approval


def schedule(lab: Lab) -> tuple[Decision, ...]:
    """Return one decision for every request, in the order they are served, and evictions.

    Requests with no exporter in common are independent, so only the affected ones need to be
    passed in.

    The same lab always gives the same decisions, whatever the order its parts are listed in.
    """
    candidates: dict[Kind, _Candidates] = {}
    queue = []
    for request in lab.requests:
        asked = candidates.get(request.kind)
        if asked is None:
            asked = candidates[request.kind] = _Candidates(lab, request)
        queue.append((asked, request))
    taken: set[str] = set()
    promised: set[str] = set()
    decisions: list[Decision] = []
    places = _Places()
    booked = fences(lab) if lab.bookings is not None else None
    for asked, request in sorted(queue, key=lambda item: (item[0].rank, lab.turn(item[1]))):
        kept = booked.kept_from(request) if booked is not None else frozenset()
        chosen = asked.free_set(taken | kept if kept else taken)
        if chosen is None and kept and booked is not None:
            chosen = asked.moved_set(booked, request, taken)
        if chosen is not None:
            taken.update(option.offer.name for option in chosen)
            decisions.append(_assignment(request, chosen))
            continue
        coming = asked.coming_set(*((s | kept if kept else s) for s in (taken, promised)))
        for option in coming or ():
            # Exporters that are already free are kept for it until the others are.
            (taken if option.offer.free else promised).add(option.offer.name)
            if option.offer.holder:
                decisions.append(_eviction(option.offer, request))
        soon = coming is not None and not any(option.offer.holder for option in coming)
        position = places.next(asked)
        fence = _fence(booked, asked, request, taken) if booked is not None else None
        decisions.append(
            explain(lab, request, asked.offers, position=position, soon=soon, fence=fence)
        )
    return tuple(decisions)


def _fence(booked: Fences, asked: _Candidates, request: Request, taken: set[str]) -> Fence | None:
    """What is booked and keeps the request from an exporter that is free or could be created."""
    free = (offer.name for found in asked.offers for offer in found if offer.free)
    return booked.over((name for name in free if name not in taken), request)


class _Candidates:
    """The exporters that all requests of one kind could get. Looked up once for all of them."""

    def __init__(self, lab: Lab, request: Request) -> None:
        self._wants = tuple(_WantOptions(lab, request, want) for want in request.wants)
        self._size = request.size
        self._exhausted = False

    def free_set(self, taken: Set[str]) -> tuple[_Option, ...] | None:
        """The best complete set of free exporters; None if there is none.

        Exporters stay taken, so a kind of request that cannot be served is not tried again.
        """
        if self._exhausted:
            return None
        found = self._complete([want.free(self._size, taken) for want in self._wants])
        self._exhausted = found is None
        return found

    def moved_set(
        self, booked: Fences, request: Request, taken: set[str]
    ) -> tuple[_Option, ...] | None:
        """A free exporter whose bookings can be served by others; for one exporter only."""
        if self._size > 1:
            return None
        free = (o for o in self._wants[0].options if o.offer.free and o.offer.name not in taken)
        for option in islice(free, MOVES_MAX):
            if booked.moved_off(option.offer.name, request, taken=taken):
                return (option,)
        return None

    def coming_set(self, taken: Set[str], promised: Set[str]) -> tuple[_Option, ...] | None:
        """The best complete set of exporters that are free, settling or held by spot leases."""
        return self._complete([want.coming(self._size, taken, promised) for want in self._wants])

    def _complete(self, options: list[list[_Option]]) -> tuple[_Option, ...] | None:
        if any(len(o) < w.count for o, w in zip(options, self._wants, strict=True)):
            return None
        if self._size == 1:
            return (options[0][0],)
        places = [o for o, w in zip(options, self._wants, strict=True) for _ in range(w.count)]
        names = complete_set([[option.offer.name for option in found] for found in places])
        if names is None:
            return None
        by_name = {option.offer.name: option for found in options for option in found}
        return tuple(by_name[name] for name in names)

    @cached_property
    def offers(self) -> tuple[Sequence[Offer], ...]:
        """For each want the offers that match and are allowed, whatever their state."""
        return tuple([option.offer for option in want.options] for want in self._wants)

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The names of all these offers."""
        return tuple(offer.name for found in self.offers for offer in found)

    @property
    def rank(self) -> tuple[bool, int]:
        """Sort key of its rights: those to the want with the weakest rights count."""
        return max(want.rank for want in self._wants)


class _WantOptions:
    """The exporters that one want of a request could get."""

    def __init__(self, lab: Lab, request: Request, want: Want) -> None:
        self.count = want.count
        self._lab = lab
        self._request = request
        self._matcher = want.matcher
        self._unseen = self._options_free()
        self._next: list[_Option] = []
        """The best free options, as far as they have been looked up."""

    def free(self, count: int, taken: Set[str]) -> list[_Option]:
        """The best ``count`` free options that are not taken; fewer if there are no more."""
        self._next = [option for option in self._next if option.offer.name not in taken]
        for option in self._unseen if len(self._next) < count else ():
            if option.offer.name not in taken:
                self._next.append(option)
                if len(self._next) == count:
                    break
        return self._next[:count]

    def coming(self, count: int, taken: Set[str], promised: Set[str]) -> list[_Option]:
        """The best ``count`` options that are free or can become free without waiting for a client.

        Exporters that become free anyway, perhaps because their spot lease was just ended, come
        before those whose spot lease would have to be ended.
        """
        later = (o for o in self._later if o.offer.name not in promised)
        return list(islice(chain(self.free(count, taken), later), count))

    @cached_property
    def _later(self) -> list[_Option]:
        settling = [option for option in self.options if option.offer.settling]
        return settling + [option for option in self.options if _evictable(option)]

    @cached_property
    def options(self) -> list[_Option]:
        """Every matching exporter, free or not, sorted by preference."""
        return _sorted(self._allowed(self._matching()))

    @property
    def rank(self) -> tuple[bool, int]:
        """Sort key of the best approval for any exporter: not spot, then by priority."""
        if not self._lab.policies.enforced:
            return _rank(self._lab.policies.unlimited)
        return _rank(self.options[0].approval) if self.options else (True, 0)

    def _options_free(self) -> Iterator[_Option]:
        """Free options by preference. Without policies all of them are equally good."""
        if self._matcher.exporter or self._lab.policies.enforced:
            yield from (option for option in self.options if option.offer.free)
        elif not self._matcher.unrestricted and self._request.client_labels is not None:
            for offer in self._lab.offers.free(self._matcher):
                yield _Option(offer, self._lab.policies.unlimited)

    def _matching(self) -> Iterable[Offer]:
        matcher, offers = self._matcher, self._lab.offers
        if matcher.unrestricted:
            return ()
        if matcher.exporter and self._request.allow_disabled:
            named = offers.get(matcher.exporter)
            return (named,) if named is not None and matcher.matches(named) else ()
        return offers.enabled(matcher)

    def _allowed(self, offers: Iterable[Offer]) -> Iterator[_Option]:
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
    return sorted(options, key=lambda o: (_rank(o.approval), o.offer.turn))


def _rank(approval: Approval) -> tuple[bool, int]:
    return (approval.spot, -approval.priority)


def _evictable(option: _Option) -> bool:
    """Whether a spot lease holds the exporter, to which the request has a non-spot right."""
    offer = option.offer
    held_by_spot = bool(offer.holder) and offer.holder_spot and offer.online
    return held_by_spot and not option.approval.spot


def _assignment(request: Request, chosen: Sequence[_Option]) -> Assign:
    names = [want.name for want in request.wants for _ in range(want.count)]
    grants = (
        Grant(exporter=option.offer.name, approval=option.approval, want=name)
        for name, option in zip(names, chosen, strict=True)
    )
    return Assign(request=request.name, grants=tuple(grants))


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
        ahead = (self._ahead.get(name, 0) for name in asked.names)
        self._last, self._place = asked, 1 + max(ahead, default=0)
        return self._place

    def _settle(self) -> None:
        """Publish the queue length that was counted last, so that other requests see it."""
        if self._last is not None:
            self._ahead.update(dict.fromkeys(self._last.names, self._place))
