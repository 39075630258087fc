"""Columns that ``bullpen get`` adds to the server's: who holds what, in which state, until when.

The server's columns are those of Jumpstarter's CustomResourceDefinitions, in both homes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from bullpen.api import codec
from bullpen.api.kinds.exporter import Exporter
from bullpen.api.kinds.lease import Lease
from bullpen.api.paths import Document
from bullpen.api.printing import human_duration
from bullpen.api.resource import Resource
from bullpen.api.resources import RESOURCES
from bullpen.core import conditions
from bullpen.core.exporters.target_state import target_state
from bullpen.core.leases import lifecycle
from bullpen.core.leases.lifecycle import Phase
from bullpen.core.matcher import matcher_of

Key = tuple[str, str]
"""Namespace and name of a lease."""

Leases = Callable[[Key], Lease | None]
"""The lease of that name, if it can be read."""

NONE = "<none>"


@dataclass(frozen=True, slots=True)
class Added:
    headers: tuple[str, ...]
    cells: Callable[[Document, datetime], tuple[str, ...]]
    """The cells of an object at a time."""


def added(resource: Resource, leases: Leases) -> Added | None:
    """The columns for a kind; None if there are none."""
    if resource is RESOURCES.of(Lease):
        return Added(("STATE", "ENDS", "WANTS"), _of_lease)
    if resource is RESOURCES.of(Exporter):
        return Added(
            ("STATE", "HOLDER", "ENDS"), lambda document, now: _of_exporter(document, leases, now)
        )
    return None


def holder(exporter: Exporter, leases: Leases) -> str:
    """The client that has it; the name of its lease if that cannot be read."""
    lease = held(exporter, leases)
    if lease is not None:
        return lifecycle.holder(lease)
    found = exporter.status.lease_ref
    return found.name if found is not None else ""


def held(exporter: Exporter, leases: Leases) -> Lease | None:
    """The lease that an exporter is in."""
    found = exporter.status.lease_ref
    return leases((exporter.metadata.namespace, found.name)) if found is not None else None


def relative(moment: datetime, now: datetime) -> str:
    if moment > now:
        return f"in {human_duration(moment - now)}"
    return f"{human_duration(now - moment)} ago"


def _ends(lease: Lease | None, now: datetime) -> str:
    """When a lease ends or has ended, relative to now."""
    end = lease and (lease.status.end_time or lifecycle.expires_at(lease))
    return relative(end, now) if end else NONE


def _of_lease(document: Document, now: datetime) -> tuple[str, ...]:
    lease = codec.decode_or_none(Lease, document)
    if lease is None:
        return (NONE, NONE, NONE)
    named = lease.spec.exporter_ref
    wants = f"name={named.name}" if named is not None else str(matcher_of(lease.spec))
    return (_state(lease, now), _ends(lease, now), wants)


def _state(lease: Lease, now: datetime) -> str:
    """The phase of a lease; why, if it waits or has ended."""
    phase = lifecycle.phase(lease, now=now)
    kinds = {Phase.ENDED: "Ready", Phase.WAITING: "Pending"}
    said = conditions.get(lease.status.conditions, kinds.get(phase, ""))
    word = phase.name.capitalize()
    return f"{word} ({said.reason})" if said is not None else word


def _of_exporter(document: Document, leases: Leases, now: datetime) -> tuple[str, ...]:
    exporter = codec.decode_or_none(Exporter, document)
    if exporter is None:
        return (NONE, NONE, NONE)
    state, who = target_state(exporter).capitalize(), holder(exporter, leases) or NONE
    return (state, who, _ends(held(exporter, leases), now))


def by_name(documents: list[Any]) -> Mapping[Key, Lease]:
    """Leases as documents, by their names."""
    found = [codec.decode_or_none(Lease, document) for document in documents]
    return {(each.metadata.namespace, each.metadata.name): each for each in found if each}
