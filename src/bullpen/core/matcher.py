"""Which exporters satisfy a request, a pool or an access policy: matched here and nowhere else.

Requests, policies and pools describe exporters by labels or by name. Each description is a
``Matcher``, and each exporter, or exporter that a pool could create, is a ``Device``.
Matchers are values: equal matchers are interchangeable and share one entry of an index.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from bullpen.api.kinds.exporter import Exporter
from bullpen.api.kinds.lease import LeaseSpec
from bullpen.kit.selectors import EVERYTHING, Selector


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """The part of an exporter that a matcher looks at."""

    labels: Mapping[str, str]
    name: str = ""
    """Empty for an exporter that a pool has yet to create."""


@dataclass(frozen=True, kw_only=True)
class Matcher:
    """A description of exporters. Every part that is given must apply."""

    selector: Selector = EVERYTHING
    exporter: str = ""
    """The name of the only exporter that matches; empty for any name."""

    @property
    def unrestricted(self) -> bool:
        """Whether every exporter matches, because no part is given."""
        return not self.exporter and not self.selector

    def matches(self, device: Device) -> bool:
        return self.exporter in ("", device.name) and self.selector.matches(device.labels)

    @cached_property
    def required_labels(self) -> Mapping[str, str]:
        """Labels that every match has, so that an index by label finds all matches; may be empty.

        An exporter that has them need not match.
        """
        return self.selector.equalities()

    def disjoint(self, other: Matcher) -> bool:
        """Whether no exporter at all can match both; False when in doubt."""
        if self.exporter and other.exporter:
            return self.exporter != other.exporter
        theirs = other.required_labels
        # A loop, because it runs for every pair of waiting groups and ``any`` takes twice as long.
        for key, value in self.required_labels.items():  # noqa: SIM110
            if theirs.get(key, value) != value:
                return True
        return False

    def __str__(self) -> str:
        return str(self.selector)


ANY = Matcher()


def device_of(exporter: Exporter) -> Device:
    return Device(name=exporter.metadata.name, labels=exporter.metadata.labels)


def matcher_of(spec: LeaseSpec) -> Matcher:
    """The exporters that a lease asks for."""
    named = spec.exporter_ref
    return Matcher(selector=spec.selector.selector(), exporter=named.name if named else "")
