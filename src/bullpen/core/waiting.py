"""Waiting leases of a namespace, in lines: which of them a change can concern.

Deciding over everybody who waits is what makes the queue fair, and what would make a long
one slow: most changes concern a few. Those who ask for the same stand in one line. What
was decided about a line holds until something changes for it, or for a line that it may
share an exporter with.

A newcomer for whom something is free concerns only itself: whoever waits has been decided
about, so what is still free is of no use to them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from bullpen.core import access
from bullpen.core.access import Policies
from bullpen.core.scheduling import Request, Supply, kind_of
from bullpen.core.stock import Offer


class Waiting:
    """Who waits, and what has changed since they were last decided about."""

    def __init__(self) -> None:
        self._lines: dict[object, _Line] = {}
        self._places: dict[str, _Line] = {}
        self._changed: dict[object, _Line] = {}
        """Lines to decide about; also ones that have become empty."""

        self._new: dict[str, Request] = {}
        """Those about whom nothing was decided yet; the others do not know of them."""

        self._index = _Index()
        self._policies = access.OPEN
        self._supplies: tuple[Supply, ...] = ()

    def put(self, request: Request) -> None:
        """Somebody waits, or waits for something else now."""
        line = self._places.get(request.name)
        if line is not None and line.requests[request.name] == request:
            return
        new = line is None or request.name in self._new
        self.remove(request.name)
        kind = kind_of(request)
        line = self._lines.get(kind)
        if line is None:
            line = self._lines[kind] = _Line(request)
            self._index.add(line)
        line.requests[request.name] = request
        self._places[request.name] = line
        if new:
            self._new[request.name] = request
        else:
            self._changed[kind] = line

    def remove(self, name: str) -> None:
        line = self._places.pop(name, None)
        if line is None:
            return
        del line.requests[name]
        if self._new.pop(name, None) is None:
            self._changed[line.kind] = line
        if not line.requests:
            del self._lines[line.kind]
            self._index.remove(line)

    def offered(self, old: Offer | None, new: Offer | None) -> None:
        """An exporter is not what it was."""
        if old == new:
            return
        for offer in (old, new):
            if offer is not None:
                self._mark(line for line in self._index.near(offer) if line.wants(offer))

    def under(self, policies: Policies, supplies: tuple[Supply, ...]) -> None:
        """What may be had by whom, and what pools say, is this now."""
        if policies != self._policies:
            self._policies = policies
            self.everything()
        if supplies != self._supplies:
            changed = [s for s in supplies if s not in self._supplies]
            changed += [s for s in self._supplies if s not in supplies]
            self._supplies = supplies
            lines = self._lines.values()
            self._mark(line for line in lines if any(line.suits(s.labels) for s in changed))

    def everything(self) -> None:
        """Something changed that everybody depends on, or decisions were not carried out."""
        self._mark(self._lines.values())

    def newcomers(self) -> tuple[Request, ...]:
        """Those who have come, if nothing else has changed.

        Those of them for whom something is free may have it; the caller says so with ``served``.
        For the others ``take`` has everybody whom they concern.
        """
        return () if self._changed else tuple(self._new.values())

    def served(self, names: Iterable[str]) -> None:
        """Newcomers get something at once and no longer wait; the others never knew of them.

        Whoever does not get it after all is to be ``put`` again.
        """
        for name in names:
            self.remove(name)

    def take(self) -> tuple[Request, ...]:
        """All whom the changes can concern; whoever cannot finish calls ``everything``."""
        self._mark(self._places[name] for name in self._new)
        self._new = {}
        found = self._reached()
        self._changed = {}
        return tuple(request for line in found for request in line.requests.values())

    def _mark(self, lines: Iterable[_Line]) -> None:
        self._changed.update((line.kind, line) for line in lines)

    def _reached(self) -> list[_Line]:
        """The changed lines, those that may share an exporter with one, and so on."""
        if not self._changed:
            return []
        rest = {kind: line for kind, line in self._lines.items() if kind not in self._changed}
        found = list(self._changed.values())
        for line in found:  # grows while it is walked
            near = [kind for kind, other in rest.items() if line.may_share(other)]
            found += (rest.pop(kind) for kind in near)
        return found

    def __len__(self) -> int:
        return len(self._places)


class _Line:
    """Those for whom the same exporters will do."""

    def __init__(self, first: Request) -> None:
        self.kind = kind_of(first)
        self.requests: dict[str, Request] = {}
        self._selector = first.selector
        self._equalities = first.selector.equalities()
        self._exporter = first.exporter

    @property
    def sign(self) -> str | tuple[str, str] | None:
        """What every offer it wants has: the name, or one of the labels; None if nothing is."""
        return self._exporter or next(iter(self._equalities.items()), None)

    def wants(self, offer: Offer) -> bool:
        if self._exporter not in ("", offer.name):
            return False
        return bool(self._exporter) or self.suits(offer.labels)

    def suits(self, labels: Mapping[str, str]) -> bool:
        return self._selector.matches(labels)

    def may_share(self, other: _Line) -> bool:
        """False only if no exporter whatever would do for both."""
        if self._exporter and other._exporter:
            return self._exporter == other._exporter
        theirs = other._equalities
        return all(theirs.get(key, value) == value for key, value in self._equalities.items())


class _Index:
    """Lines by what the offers they want have in common, so that a change looks at few of them."""

    def __init__(self) -> None:
        self._lines: dict[object, dict[object, _Line]] = {}

    def add(self, line: _Line) -> None:
        self._lines.setdefault(line.sign, {})[line.kind] = line

    def remove(self, line: _Line) -> None:
        lines = self._lines[line.sign]
        del lines[line.kind]
        if not lines:
            del self._lines[line.sign]

    def near(self, offer: Offer) -> Iterator[_Line]:
        """All lines that may want the offer, and some others."""
        for sign in (None, offer.name, *offer.labels.items()):
            yield from self._lines.get(sign, {}).values()
