"""Waiting leases of a namespace, in lines: which of them a change can concern.

Deciding over everybody who waits is what makes the queue fair, and what would make a long
one slow: most changes concern a few. Those who ask for the same stand in one line. What
was decided about a line holds until something changes for it, or for a line that it may
share an exporter with.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

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

        self._policies = access.OPEN
        self._supplies: tuple[Supply, ...] = ()

    def put(self, request: Request) -> None:
        """Somebody waits, or waits for something else now."""
        line = self._places.get(request.name)
        if line is not None and line.requests[request.name] == request:
            return
        self.remove(request.name)
        kind = kind_of(request)
        line = self._lines.get(kind)
        if line is None:
            line = self._lines[kind] = _Line(request)
        line.requests[request.name] = request
        self._places[request.name] = line
        self._changed[kind] = line

    def remove(self, name: str) -> None:
        line = self._places.pop(name, None)
        if line is None:
            return
        del line.requests[name]
        self._changed[line.kind] = line
        if not line.requests:
            del self._lines[line.kind]

    def offered(self, old: Offer | None, new: Offer | None) -> None:
        """An exporter is not what it was."""
        if old == new:
            return
        self._mark(line for line in self._lines.values() if line.wants(old) or line.wants(new))

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

    def take(self) -> tuple[Request, ...]:
        """All whom the changes can concern; whoever cannot finish calls ``everything``."""
        found = self._reached()
        self._changed = {}
        return tuple(request for line in found for request in line.requests.values())

    def _mark(self, lines: Iterable[_Line]) -> None:
        self._changed.update((line.kind, line) for line in lines)

    def _reached(self) -> list[_Line]:
        """The changed lines, those that may share an exporter with one, and so on."""
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

    def wants(self, offer: Offer | None) -> bool:
        if offer is None or self._exporter not in ("", offer.name):
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
