"""ExporterAccessPolicy: which clients may lease which exporters."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from typing import ClassVar

from bullpen.api.admission_rules import selector_rules
from bullpen.api.fields import Kind, Struct, about
from bullpen.api.kinds.client import GROUP_VERSION
from bullpen.api.kinds.lease import idle_problem, idle_rule
from bullpen.api.meta import LabelSelector, ObjectMeta
from bullpen.api.metadata_checks import selector_causes
from bullpen.api.paths import Document, shown, walk
from bullpen.api.resource import resource
from bullpen.errors import Cause


@dataclass(frozen=True, slots=True, kw_only=True)
class From(Struct):
    """A group of clients."""

    client_selector: LabelSelector = field(
        default=LabelSelector(),
        metadata=about("Labels of the clients; empty means every client."),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy(Struct):
    """A rule: the clients it applies to, their priority and their limits."""

    description: str = field(default="", metadata=about("Shown to clients that are refused."))
    priority: int = field(
        default=0,
        metadata=about("Of several rules that apply, the one with the highest priority counts."),
    )
    from_: tuple[From, ...] = field(
        default=(),
        metadata=about(
            "Clients this rule applies to; an empty list applies to none.", list_type="atomic"
        ),
    )
    maximum_duration: timedelta | None = field(
        default=None, metadata=about("The longest lease this rule allows.")
    )
    idle_timeout: timedelta | None = field(
        default=None,
        metadata=about(
            "How long a lease under this rule may be without a connection before it ends;"
            " the service's setting if left out. Of several rules the most generous counts."
        ),
    )
    maximum_active_leases: int | None = field(
        default=None,
        metadata=about(
            "The most active leases a client under this rule may have in the namespace;"
            " the service's setting if left out. Of several rules the most generous counts.",
            minimum=0,
        ),
    )
    maximum_waiting_leases: int | None = field(
        default=None,
        metadata=about("Maximum number of waiting leases of a client under this rule.", minimum=0),
    )
    spot_access: bool = field(
        default=False, metadata=about("Whether leases under this rule may be displaced.")
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ExporterAccessPolicySpec(Struct):
    """The exporters and the rules that apply to them."""

    exporter_selector: LabelSelector = field(
        default=LabelSelector(),
        metadata=about("Labels of the exporters; empty means every exporter."),
    )
    policies: tuple[Policy, ...] = field(
        default=(), metadata=about("Rules for these exporters.", list_type="atomic")
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ExporterAccessPolicyStatus(Struct):
    """Nothing is observed about a policy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExporterAccessPolicy(Kind):
    """Which clients may lease which exporters; without a policy, all may lease all."""

    api_version: ClassVar[str] = GROUP_VERSION
    kind: ClassVar[str] = "ExporterAccessPolicy"

    metadata: ObjectMeta = field(default=ObjectMeta(), metadata=about("Object metadata."))
    spec: ExporterAccessPolicySpec = field(
        default=ExporterAccessPolicySpec(),
        metadata=about("The exporters and the rules that apply to them."),
    )
    status: ExporterAccessPolicyStatus = field(
        default=ExporterAccessPolicyStatus(), metadata=about("Always empty.")
    )


def policy_causes(document: Document, old: Document | None) -> Iterator[Cause]:
    """Checks of a policy beyond its schema."""
    yield from selector_causes(document, "spec", "exporterSelector")
    yield from selector_causes(document, "spec", "policies", "*", "from", "*", "clientSelector")
    for path, value in walk(document, ("spec", "policies", "*", "idleTimeout")):
        if problem := idle_problem(value):
            yield Cause(field=path, message=f"Invalid value: {shown(value)}: {problem}")


RESOURCES = (
    resource(
        ExporterAccessPolicy,
        "exporteraccesspolicies",
        status=True,
        checks=(policy_causes,),
        admission=(
            *selector_rules("spec.exporterSelector", "spec.policies.*.from.*.clientSelector"),
            idle_rule("spec.policies.*.idleTimeout"),
        ),
    ),
)
