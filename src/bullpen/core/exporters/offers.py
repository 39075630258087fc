"""Exporters as the scheduler sees them, indexed so that a search costs only what it finds.

A lab has thousands of exporters and a lease needs one; scanning all of them for every lease
would make a large lab slow. Offers are therefore indexed by label, and free offers are
indexed a second time.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from bullpen.core.matcher import Device, Matcher


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
        """Enabled offers that match, in name order."""
        return self._matching(self._enabled, matcher)

    def free(self, matcher: Matcher) -> Iterator[Offer]:
        """Matching offers that can be assigned now."""
        return self._matching(self._free, matcher)

    def _matching(self, file: _File, matcher: Matcher) -> Iterator[Offer]:
        for name in file.candidates(matcher):
            offer = self._offers[name]
            if matcher.matches(offer):
                yield offer

    def __iter__(self) -> Iterator[Offer]:
        return iter(self._offers.values())

    def __len__(self) -> int:
        return len(self._offers)


class _File:
    """Sorted names: all of them, and those under each label."""

    def __init__(self) -> None:
        self._all: list[str] = []
        self._labelled: dict[tuple[str, str], list[str]] = {}

    def add(self, offer: Offer) -> None:
        insort(self._all, offer.name)
        for label in offer.labels.items():
            insort(self._labelled.setdefault(label, []), offer.name)

    def remove(self, offer: Offer) -> None:
        _take_out(self._all, offer.name)
        for label in offer.labels.items():
            names = self._labelled[label]
            _take_out(names, offer.name)
            if not names:
                del self._labelled[label]

    def candidates(self, matcher: Matcher) -> list[str]:
        """The smallest indexed list of names that contains every match."""
        if matcher.exporter:
            at = bisect_left(self._all, matcher.exporter)
            return self._all[at : at + 1]
        best = self._all
        for label in matcher.required_labels.items():
            names = self._labelled.get(label, [])
            best = names if len(names) < len(best) else best
        return best


def _refile(file: _File, old: Offer | None, new: Offer, was: bool, now: bool) -> None:  # noqa: FBT001
    """Update an index after a change of one offer."""
    if was and now and old is not None and old.labels == new.labels:
        return
    if was and old is not None:
        file.remove(old)
    if now:
        file.add(new)


def _take_out(names: list[str], name: str) -> None:
    del names[bisect_left(names, name)]
