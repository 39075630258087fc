"""The default roles and bindings, and how they are kept up to date.

As in Kubernetes: at every start, missing objects are created, and rules and subjects that
were removed are added again. Rules and subjects that were added by hand stay. An object
annotated with ``rbac.authorization.kubernetes.io/autoupdate: "false"`` is left alone. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from bullpen.api.kinds.rbac import (
    GROUP,
    USER,
    USER_GROUP,
    AggregationRule,
    ClusterRole,
    ClusterRoleBinding,
    PolicyRule,
    RoleRef,
    Subject,
)
from bullpen.api.meta import LabelSelector, ObjectMeta
from bullpen.api.resources import RESOURCES
from bullpen.core.rbac.authorization import ALL, AUTHENTICATED, EVERYTHING, MASTERS, uncovered

AUTOUPDATE = "rbac.authorization.kubernetes.io/autoupdate"
BOOTSTRAPPING = "kubernetes.io/bootstrapping"
AGGREGATE = "rbac.authorization.k8s.io/aggregate-to-"

ADMIN_USER, VIEW_USER = "bullpen:admin", "bullpen:view"
"""The users that the two tokens in the data directory authenticate."""

UNAUTHENTICATED = "system:unauthenticated"

READ = ("get", "list", "watch")
WRITE = ("create", "delete", "deletecollection", "patch", "update")

JUMPSTARTER, VIRTUAL = "jumpstarter.dev", "virtualtarget.jumpstarter.dev"
DEVICE = "device.jumpstarter.dev"
SECRETS = ("", "secrets")

HEALTH_PATHS = ("/healthz", "/livez", "/readyz", "/version", "/version/")
DISCOVERY_PATHS = ("/", "/api", "/api/*", "/apis", "/apis/*", "/openapi", "/openapi/*")


def _role(
    name: str,
    rules: Iterable[PolicyRule] = (),
    *,
    labels: Mapping[str, str] | None = None,
    aggregates: str = "",
) -> ClusterRole:
    selector = LabelSelector(match_labels={f"{AGGREGATE}{aggregates}": "true"})
    return ClusterRole(
        metadata=_meta(name, labels),
        policy_rules=tuple(rules),
        aggregation_rule=AggregationRule(cluster_role_selectors=(selector,))
        if aggregates
        else None,
    )


def _meta(name: str, labels: Mapping[str, str] | None = None) -> ObjectMeta:
    return ObjectMeta(
        name=name,
        labels={BOOTSTRAPPING: "rbac-defaults", **(labels or {})},
        annotations={AUTOUPDATE: "true"},
    )


def _aggregate_to(name: str) -> dict[str, str]:
    return {f"{AGGREGATE}{name}": "true"}


def _binding(name: str, *subjects: tuple[str, str], role: str = "") -> ClusterRoleBinding:
    return ClusterRoleBinding(
        metadata=_meta(name),
        subjects=tuple(
            Subject(kind=kind, api_group=GROUP, name=subject) for kind, subject in subjects
        ),
        role_ref=RoleRef(api_group=GROUP, kind=ClusterRole.kind, name=role or name),
    )


def _rule(group: str, *resources: str, verbs: tuple[str, ...]) -> PolicyRule:
    return PolicyRule(verbs=verbs, api_groups=(group,), resources=resources)


def _reader_rules() -> Iterable[PolicyRule]:
    """Permission to read every served resource except Secrets, and every path."""
    groups: dict[str, list[str]] = {}
    for resource in RESOURCES:
        if (resource.group, resource.plural) == SECRETS:
            continue
        names = [resource.plural]
        names += [f"{resource.plural}/status"] if resource.status else []
        names += [f"{resource.plural}/scale"] if resource.scale else []
        groups.setdefault(resource.group, []).extend(names)
    for group, found in groups.items():
        yield _rule(group, *found, verbs=READ)
    yield _LOGS
    yield PolicyRule(verbs=("get",), non_resource_urls=(ALL,))


_LOGS = _rule(JUMPSTARTER, "exporters/log", verbs=("get",))
"""What the dashboard shows of the logs of instances; no path of the API server has them."""

_LASTING = ("virtualdisks", "virtualtargets", "virtualtargetpools")
_POOLS = ("exportersets", "virtualtargetpools")
_REPORTED = ("exportersets", "providerconfigs", *_LASTING)
_DECLARED = (*_REPORTED, "virtualtargetclasses")
_NAMED_REMOVAL = tuple(f"{name}/scaledownwith" for name in _POOLS)
_LAB = ("clients", "exporteraccesspolicies", "exporters", "leases")

CLUSTER_ROLES = (
    _role("cluster-admin", EVERYTHING),
    _role("admin", aggregates="admin"),
    _role("edit", labels=_aggregate_to("admin"), aggregates="edit"),
    _role("view", labels=_aggregate_to("edit"), aggregates="view"),
    _role(
        "system:aggregate-to-view",
        (
            _rule("", "configmaps", "events", "namespaces", "serviceaccounts", verbs=READ),
            _rule("coordination.k8s.io", "leases", verbs=READ),
            _rule(JUMPSTARTER, *_LAB, *(f"{name}/status" for name in _LAB), verbs=READ),
            _LOGS,
            _rule(
                VIRTUAL,
                "exportersets",
                *(f"{name}/scale" for name in _POOLS),
                "exportersets/status",
                *_LASTING,
                *(f"{name}/status" for name in _LASTING),
                "providerconfigs",
                "providerconfigs/status",
                "virtualtargetclasses",
                verbs=READ,
            ),
            _rule(
                DEVICE,
                "deviceclaims",
                "deviceclaims/status",
                "deviceclasses",
                "devicepools",
                "devicepools/status",
                verbs=READ,
            ),
        ),
        labels=_aggregate_to("view"),
    ),
    _role(
        "system:aggregate-to-edit",
        (
            _rule("", "secrets", verbs=READ),
            _rule("", "configmaps", "events", "secrets", "serviceaccounts", verbs=WRITE),
            _rule("", "serviceaccounts", verbs=("impersonate",)),
            _rule("", "serviceaccounts/token", verbs=("create",)),
            _rule("coordination.k8s.io", "leases", verbs=WRITE),
            _rule(JUMPSTARTER, "clients", "exporters", "leases", verbs=WRITE),
            _rule(VIRTUAL, *(f"{name}/scale" for name in _POOLS), verbs=("patch", "update")),
            _rule(DEVICE, "deviceclaims", verbs=WRITE),
            _rule(f"subresources.{VIRTUAL}", *_NAMED_REMOVAL, verbs=("create",)),
        ),
        labels=_aggregate_to("edit"),
    ),
    _role(
        "system:aggregate-to-admin",
        (
            _rule("authorization.k8s.io", "localsubjectaccessreviews", verbs=("create",)),
            _rule(GROUP, "roles", "rolebindings", verbs=(*READ, *WRITE)),
            _rule(JUMPSTARTER, "exporteraccesspolicies", verbs=WRITE),
            _rule(DEVICE, "devicepools", verbs=WRITE),
        ),
        labels=_aggregate_to("admin"),
    ),
    # Not part of admin: pool templates and classes name drivers and arguments, which run as code on
    # the hosts. The administrator of the service decides who may write them.
    _role(
        "bullpen:pool-admin",
        (
            _rule(VIRTUAL, *_DECLARED, verbs=(*READ, *WRITE)),
            _rule(VIRTUAL, *(f"{name}/scale" for name in _POOLS), verbs=READ),
            _rule(VIRTUAL, *(f"{name}/status" for name in _REPORTED), verbs=READ),
            _rule(VIRTUAL, *(f"{name}/scale" for name in _POOLS), verbs=("patch", "update")),
            _rule(f"subresources.{VIRTUAL}", *_NAMED_REMOVAL, verbs=("create",)),
        ),
    ),
    # Not part of admin either: what it takes, others had.
    _role("bullpen:claim-admin", (_rule(DEVICE, "deviceclaims", verbs=("adminaccess",)),)),
    _role("bullpen:reader", _reader_rules()),
    _role(
        "system:basic-user",
        (
            _rule(
                "authorization.k8s.io",
                "selfsubjectaccessreviews",
                "selfsubjectrulesreviews",
                verbs=("create",),
            ),
            _rule("authentication.k8s.io", "selfsubjectreviews", verbs=("create",)),
        ),
    ),
    _role(
        "system:discovery",
        (PolicyRule(verbs=("get",), non_resource_urls=(*DISCOVERY_PATHS, *HEALTH_PATHS)),),
    ),
    _role(
        "system:public-info-viewer",
        (PolicyRule(verbs=("get",), non_resource_urls=HEALTH_PATHS),),
    ),
)

CLUSTER_ROLE_BINDINGS = (
    _binding("cluster-admin", (USER_GROUP, MASTERS)),
    _binding(VIEW_USER, (USER, VIEW_USER), role="bullpen:reader"),
    _binding("system:basic-user", (USER_GROUP, AUTHENTICATED)),
    _binding("system:discovery", (USER_GROUP, AUTHENTICATED)),
    _binding(
        "system:public-info-viewer", (USER_GROUP, AUTHENTICATED), (USER_GROUP, UNAUTHENTICATED)
    ),
)


def starting_roles() -> tuple[ClusterRole, ...]:
    """The default roles as they are created: aggregated ones already have their rules."""
    roles = list(CLUSTER_ROLES)
    for _ in roles:
        for index, role in enumerate(roles):
            rules = aggregated_rules(role, roles)
            if rules is not None:
                roles[index] = replace(role, policy_rules=rules)
    return tuple(roles)


def reconciled_role(wanted: ClusterRole, found: ClusterRole) -> ClusterRole | None:
    """``found`` with the missing parts of ``wanted`` added; None if nothing is to be written."""
    if _is_left_alone(found.metadata):
        return None
    missing = uncovered(found.policy_rules, wanted.policy_rules)
    rules = found.policy_rules
    if wanted.aggregation_rule is None and missing != ():
        rules = (*rules, *(missing if missing is not None else wanted.policy_rules))
    new = replace(
        found,
        metadata=_reconciled_meta(wanted.metadata, found.metadata),
        policy_rules=rules,
        aggregation_rule=found.aggregation_rule or wanted.aggregation_rule,
    )
    return new if new != found else None


def reconciled_binding(
    wanted: ClusterRoleBinding, found: ClusterRoleBinding
) -> ClusterRoleBinding | None:
    """``found`` with the missing subjects of ``wanted`` added; None if nothing is to be written.

    A binding that refers to another role was created for another purpose and is left alone.
    """
    if _is_left_alone(found.metadata) or found.role_ref != wanted.role_ref:
        return None
    missing = tuple(item for item in wanted.subjects if item not in found.subjects)
    new = replace(
        found,
        metadata=_reconciled_meta(wanted.metadata, found.metadata),
        subjects=(*found.subjects, *missing),
    )
    return new if new != found else None


def _is_left_alone(meta: ObjectMeta) -> bool:
    return meta.annotations.get(AUTOUPDATE) == "false"


def _reconciled_meta(wanted: ObjectMeta, found: ObjectMeta) -> ObjectMeta:
    return replace(
        found,
        labels={**wanted.labels, **found.labels},
        annotations={**wanted.annotations, **found.annotations},
    )


def aggregated_rules(
    role: ClusterRole, others: Iterable[ClusterRole]
) -> tuple[PolicyRule, ...] | None:
    """The rules an aggregated ``role`` should have; None if the role is not aggregated.

    Sorted by the names of the roles they come from, without duplicates.
    """
    if role.aggregation_rule is None:
        return None
    selectors = [item.selector() for item in role.aggregation_rule.cluster_role_selectors]
    chosen = [
        other
        for other in others
        if other.metadata.name != role.metadata.name
        and any(selector.matches(other.metadata.labels) for selector in selectors)
    ]
    chosen.sort(key=lambda other: other.metadata.name)
    rules = (rule for other in chosen for rule in other.policy_rules)
    return tuple(dict.fromkeys(rules))
