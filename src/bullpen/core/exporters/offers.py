"""Exporters as the scheduler sees them, indexed so that a search costs only what it finds.

A lab has thousands of exporters and a lease needs one; scanning all of them for every lease
would make a large lab slow. Offers are therefore indexed by label, and free offers are
indexed a second time.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime

from bullpen.core.matcher import Device, Matcher

NEVER = datetime.max.replace(tzinfo=UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer(Device):
    """A registered exporter with its availability: what the scheduler looks at."""

    name: str
    enabled: bool = True
    online: bool = True
    """Registered and connected."""

    idle: bool = True
    """The exporter reports that it is available, or never reports a status."""

    holder: str = ""
    """Name of the lease that holds the exporter."""

    holder_spot: bool = False

    stuck: bool = False
    """The exporter has been winding down for so long that requests should not count on it."""

    ready_at: datetime = NEVER
    """When it registered."""

    @property
    def turn(self) -> tuple[datetime, str]:
        """The order of assignment: whichever has been ready for longest, then by name."""
        return self.ready_at, self.name

    @property
    def free(self) -> bool:
        return self.online and self.idle and not self.holder

    @property
    def settling(self) -> bool:
        """Soon free: the last lease has ended and the exporter is winding down."""
        return self.online and not self.idle and not self.holder and not self.stuck


class OfferIndex:
    """Offers of one namespace, by name."""

    def __init__(self, offers: Iterable[Offer] = ()) -> None:
        self._offers: dict[str, Offer] = {}
        self._enabled = _File()
        self._free = _File()
        for offer in offers:
            self.put(offer)

    def put(self, offer: Offer) -> None:
        """Add an offer, or replace its previous state."""
        old = self._offers.get(offer.name)
        self._offers[offer.name] = offer
        _refile(self._enabled, old, offer, old is not None and old.enabled, offer.enabled)
        free = offer.enabled and offer.free
        _refile(self._free, old, offer, old is not None and old.enabled and old.free, free)

    def remove(self, name: str) -> None:
        old = self._offers.pop(name, None)
        if old is not None and old.enabled:
            self._enabled.remove(old)
            if old.free:
                self._free.remove(old)

    def get(self, name: str) -> Offer | None:
        return self._offers.get(name)

    def enabled(self, matcher: Matcher) -> Iterator[Offer]:
        """Enabled offers that match, in the order of assignment."""
        return (offer for offer in self._matching(self._enabled, matcher) if offer.enabled)

    def free(self, matcher: Matcher) -> Iterator[Offer]:
        """Matching offers that can be assigned now, in the order of assignment."""
        found = self._matching(self._free, matcher)
        return (offer for offer in found if offer.enabled and offer.free)

    def _matching(self, file: _File, matcher: Matcher) -> Iterator[Offer]:
        names: Iterable[str] = (matcher.exporter,) if matcher.exporter else file.names(matcher)
        for name in names:
            offer = self._offers.get(name)
            if offer is not None and matcher.matches(offer):
                yield offer

    def __iter__(self) -> Iterator[Offer]:
        return iter(self._offers.values())

    def __len__(self) -> int:
        return len(self._offers)


_Turn = tuple[datetime, str]


class _File:
    """Names in the order of assignment: all of them, and those under each label."""

    def __init__(self) -> None:
        self._all: list[_Turn] = []
        self._labelled: dict[tuple[str, str], list[_Turn]] = {}

    def add(self, offer: Offer) -> None:
        insort(self._all, offer.turn)
        for label in offer.labels.items():
            insort(self._labelled.setdefault(label, []), offer.turn)

    def remove(self, offer: Offer) -> None:
        _take_out(self._all, offer.turn)
        for label in offer.labels.items():
            turns = self._labelled[label]
            _take_out(turns, offer.turn)
            if not turns:
                del self._labelled[label]

    def names(self, matcher: Matcher) -> Iterator[str]:
        """The smallest indexed list of names that contains every match."""
        best = self._all
        for label in matcher.required_labels.items():
            turns = self._labelled.get(label, [])
            best = turns if len(turns) < len(best) else best
        return (name for _, name in best)


def _refile(file: _File, old: Offer | None, new: Offer, was: bool, now: bool) -> None:  # noqa: FBT001
    """Update an index after a change of one offer."""
    same = old is not None and old.labels == new.labels and old.turn == new.turn
    if was and now and same:
        return
    if was and old is not None:
        file.remove(old)
    if now:
        file.add(new)


def _take_out(turns: list[_Turn], turn: _Turn) -> None:
    del turns[bisect_left(turns, turn)]
