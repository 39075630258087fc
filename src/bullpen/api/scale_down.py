"""How a pool shrinks: its policy, and the members that were removed by name.

ExporterSet and VirtualTargetPool share these fields.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from bullpen.api.fields import Rule, Struct, about
from bullpen.api.resource import Resource

REMOVALS_MAX = 1_000
"""Members of one pool that are on their way out by name."""


class ScaleDownPolicy(StrEnum):
    NEWEST_FIRST = "NewestFirst"
    OLDEST_FIRST = "OldestFirst"
    EXPLICIT = "Explicit"


@dataclass(frozen=True, slots=True, kw_only=True)
class Removal(Struct):
    """A member that was removed by name, until it is gone."""

    name: str = field(metadata=about("Name of the member.", required=True, max_length=253))
    uid: str = field(metadata=about("Its uid.", required=True, min_length=1, max_length=64))
    when_idle: bool = field(
        default=False, metadata=about("Wait for the end of a lease that holds it.")
    )


REMOVALS = about(
    "Members on their way out by name; the count was lowered in the same write. Use the"
    " scaledownwith subresource, which checks them.",
    list_keys=("uid",),
    max_items=REMOVALS_MAX,
)
"""The description of ``spec.removals``."""

_ADDED = (
    "(has(self.removals) ? size(self.removals) : 0)"
    " - (has(oldSelf.removals) ? size(oldSelf.removals) : 0)"
)
_FREE = " && ".join(
    f"(!has({spec}.scaleDownPolicy) || {spec}.scaleDownPolicy != 'Explicit')"
    for spec in ("self", "oldSelf")
)


def explicit_rule(kind: str, count: str, *, unlimited: bool = False) -> Rule:
    """Refuses a lower ``count`` of an Explicit pool, whichever way it is written.

    A removal by name lowers it by as many as it adds to the removals. ``unlimited``: a count of
    0 means no limit.
    """
    new, old = f"self.{count}", f"oldSelf.{count}"
    fell = f"{new} >= {old} || {old} - {new} <= {_ADDED}"
    if unlimited:
        fell = f"{new} == 0 || ({old} != 0 && ({fell}))"
    return Rule(
        rule=f"({_FREE}) || {fell}",
        message="scaleDownPolicy Explicit removes members by name only: POST the names to the"
        f" scaledownwith subresource, or run bullpen scale-down {kind}/NAME --with TARGET",
        field_path=f".{count}",
    )


def removal_path(resource: Resource, namespace: str, name: str) -> str:
    """The path to POST names of members of a pool to."""
    group = f"subresources.{resource.group}/{resource.version}"
    return f"/apis/{group}/namespaces/{namespace}/{resource.plural}/{name}/scaledownwith"
