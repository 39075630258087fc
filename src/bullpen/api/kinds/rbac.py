"""Kubernetes' RBAC kinds: roles, and the bindings that give them to subjects."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from bullpen.api.fields import Kind, Struct, about
from bullpen.api.meta import LabelSelector, ObjectMeta
from bullpen.api.metadata_checks import selector_causes
from bullpen.api.paths import Document, shown
from bullpen.api.resource import resource
from bullpen.errors import Cause
from bullpen.kit.names import dns_label_problem, dns_subdomain_problem

GROUP = "rbac.authorization.k8s.io"
GROUP_VERSION = f"{GROUP}/v1"

USER, USER_GROUP, SERVICE_ACCOUNT = "User", "Group", "ServiceAccount"


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyRule(Struct):
    """Verbs allowed on resources of API groups, or on paths that are not resources."""

    verbs: tuple[str, ...] = field(
        metadata=about("Verbs that are allowed; * is all.", required=True, list_type="atomic")
    )
    api_groups: tuple[str, ...] = field(
        default=(),
        metadata=about('API groups of the resources; "" is core, * is all.', list_type="atomic"),
    )
    resources: tuple[str, ...] = field(
        default=(),
        metadata=about(
            "Resources such as leases, leases/status, */scale or *.", list_type="atomic"
        ),
    )
    resource_names: tuple[str, ...] = field(
        default=(),
        metadata=about("Names of the objects; empty means every object.", list_type="atomic"),
    )
    non_resource_urls: tuple[str, ...] = field(
        default=(),
        metadata=about(
            "Paths such as /metrics or /openapi/*; only in ClusterRoles.",
            name="nonResourceURLs",
            list_type="atomic",
        ),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class AggregationRule(Struct):
    """Which ClusterRoles are combined into this one."""

    cluster_role_selectors: tuple[LabelSelector, ...] = field(
        default=(),
        metadata=about(
            "Labels of the ClusterRoles whose rules are added; any selector may match.",
            list_type="atomic",
        ),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Role(Kind):
    """A set of rights within one namespace."""

    api_version: ClassVar[str] = GROUP_VERSION
    kind: ClassVar[str] = "Role"

    metadata: ObjectMeta = field(default=ObjectMeta(), metadata=about("Object metadata."))
    policy_rules: tuple[PolicyRule, ...] = field(
        default=(),
        metadata=about("What is allowed.", name="rules", nullable=True, list_type="atomic"),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterRole(Kind):
    """A set of rights that can be bound in the whole cluster or in a namespace."""

    api_version: ClassVar[str] = GROUP_VERSION
    kind: ClassVar[str] = "ClusterRole"

    metadata: ObjectMeta = field(default=ObjectMeta(), metadata=about("Object metadata."))
    policy_rules: tuple[PolicyRule, ...] = field(
        default=(),
        metadata=about("What is allowed.", name="rules", nullable=True, list_type="atomic"),
    )
    aggregation_rule: AggregationRule | None = field(
        default=None,
        metadata=about("If set, the rules are filled from other ClusterRoles.", nullable=True),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject(Struct):
    """A user, a group or a service account."""

    atomic: ClassVar[bool] = True

    kind: str = field(metadata=about("User, Group or ServiceAccount.", required=True))
    api_group: str = field(
        default="",
        metadata=about(f'{GROUP} for users and groups, "" for service accounts.'),
    )
    name: str = field(metadata=about("Name of the subject.", required=True))
    namespace: str = field(default="", metadata=about("Namespace of a service account."))


@dataclass(frozen=True, slots=True, kw_only=True)
class RoleRef(Struct):
    """The role that a binding gives."""

    atomic: ClassVar[bool] = True

    api_group: str = field(default="", metadata=about(f"Always {GROUP}."))
    kind: str = field(metadata=about("Role or ClusterRole.", required=True))
    name: str = field(metadata=about("Name of the role.", required=True))


@dataclass(frozen=True, slots=True, kw_only=True)
class RoleBinding(Kind):
    """Gives a Role or a ClusterRole to subjects, within one namespace."""

    api_version: ClassVar[str] = GROUP_VERSION
    kind: ClassVar[str] = "RoleBinding"

    metadata: ObjectMeta = field(default=ObjectMeta(), metadata=about("Object metadata."))
    subjects: tuple[Subject, ...] = field(
        default=(), metadata=about("Who gets the role.", nullable=True, list_type="atomic")
    )
    role_ref: RoleRef = field(metadata=about("The role; it never changes.", required=True))


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterRoleBinding(Kind):
    """Gives a ClusterRole to subjects, in every namespace and at the cluster scope."""

    api_version: ClassVar[str] = GROUP_VERSION
    kind: ClassVar[str] = "ClusterRoleBinding"

    metadata: ObjectMeta = field(default=ObjectMeta(), metadata=about("Object metadata."))
    subjects: tuple[Subject, ...] = field(
        default=(), metadata=about("Who gets the role.", nullable=True, list_type="atomic")
    )
    role_ref: RoleRef = field(metadata=about("The role; it never changes.", required=True))


def with_binding_defaults(document: Document) -> Document:
    """``document`` with the API groups of its role and subjects, which may be omitted."""
    filled = dict(document)
    ref = document.get("roleRef")
    if isinstance(ref, dict) and not ref.get("apiGroup"):
        filled["roleRef"] = {**ref, "apiGroup": GROUP}
    subjects = document.get("subjects")
    if isinstance(subjects, list):
        filled["subjects"] = [_with_group(subject) for subject in subjects]
    return filled


def _with_group(subject: Any) -> Any:
    if not isinstance(subject, dict) or subject.get("apiGroup"):
        return subject
    if subject.get("kind") in (USER, USER_GROUP):
        return {**subject, "apiGroup": GROUP}
    return subject


def role_causes(document: Document, old: Document | None) -> Iterator[Cause]:
    """Checks of a Role beyond its schema."""
    yield from _rules_causes(document, namespaced=True)


def cluster_role_causes(document: Document, old: Document | None) -> Iterator[Cause]:
    """Checks of a ClusterRole beyond its schema."""
    yield from _rules_causes(document, namespaced=False)
    aggregation = document.get("aggregationRule")
    if aggregation is None:
        return
    if not aggregation.get("clusterRoleSelectors"):
        yield _required(
            "aggregationRule.clusterRoleSelectors",
            "at least one clusterRoleSelector required if aggregationRule is non-nil",
        )
    yield from selector_causes(document, "aggregationRule", "clusterRoleSelectors", "*")


def _rules_causes(document: Document, *, namespaced: bool) -> Iterator[Cause]:
    for index, rule in enumerate(document.get("rules") or ()):
        yield from _rule_causes(rule, f"rules[{index}]", namespaced=namespaced)


def _rule_causes(rule: Mapping[str, Any], path: str, *, namespaced: bool) -> Iterator[Cause]:
    if not rule.get("verbs"):
        yield _required(f"{path}.verbs", "verbs must contain at least one value")
    if rule.get("nonResourceURLs"):
        urls = f"{path}.nonResourceURLs"
        if namespaced:
            yield _invalid(
                urls,
                rule["nonResourceURLs"],
                "namespaced rules cannot apply to non-resource URLs",
            )
        if any(rule.get(name) for name in ("apiGroups", "resources", "resourceNames")):
            yield _invalid(
                urls,
                rule["nonResourceURLs"],
                "rules cannot apply to both regular resources and non-resource URLs",
            )
        return
    if not rule.get("apiGroups"):
        yield _required(f"{path}.apiGroups", "resource rules must supply at least one api group")
    if not rule.get("resources"):
        yield _required(f"{path}.resources", "resource rules must supply at least one resource")


def role_binding_causes(document: Document, old: Document | None) -> Iterator[Cause]:
    """Checks of a RoleBinding beyond its schema."""
    yield from _binding_causes(document, old, ("Role", "ClusterRole"))


def cluster_role_binding_causes(document: Document, old: Document | None) -> Iterator[Cause]:
    """Checks of a ClusterRoleBinding beyond its schema."""
    yield from _binding_causes(document, old, ("ClusterRole",))


def _binding_causes(
    document: Document, old: Document | None, kinds: tuple[str, ...]
) -> Iterator[Cause]:
    ref = document["roleRef"]
    if old is not None and ref != old.get("roleRef"):
        yield _invalid("roleRef", ref, "cannot change roleRef")
    if ref.get("apiGroup") != GROUP:
        yield _unsupported("roleRef.apiGroup", ref.get("apiGroup"), (GROUP,))
    if ref["kind"] not in kinds:
        yield _unsupported("roleRef.kind", ref["kind"], kinds)
    if not ref["name"]:
        yield _required("roleRef.name", "")
    elif problem := role_name_problem(ref["name"]):
        yield _invalid("roleRef.name", ref["name"], problem)
    for index, subject in enumerate(document.get("subjects") or ()):
        yield from _subject_causes(subject, f"subjects[{index}]")


def _subject_causes(subject: Mapping[str, Any], path: str) -> Iterator[Cause]:
    kind, group = subject["kind"], subject.get("apiGroup") or ""
    if not subject["name"]:
        yield _required(f"{path}.name", "")
    if kind == SERVICE_ACCOUNT:
        problem = dns_subdomain_problem(subject["name"]) if subject["name"] else None
        if problem:
            yield _invalid(f"{path}.name", subject["name"], problem)
        if group:
            yield _unsupported(f"{path}.apiGroup", group, ("",))
        if not subject.get("namespace"):
            yield _required(f"{path}.namespace", "")
        elif problem := dns_label_problem(subject["namespace"]):
            yield _invalid(f"{path}.namespace", subject["namespace"], problem)
    elif kind in (USER, USER_GROUP):
        if group != GROUP:
            yield _unsupported(f"{path}.apiGroup", group, (GROUP,))
    else:
        yield _unsupported(f"{path}.kind", kind, (SERVICE_ACCOUNT, USER, USER_GROUP))


def role_name_problem(text: str) -> str | None:
    """Why ``text`` cannot name a role or binding: any path segment is valid."""
    if len(text) > NAME_LENGTH_MAX:
        return f"must be no more than {NAME_LENGTH_MAX} characters"
    if text in (".", ".."):
        return f"may not be '{text}'"
    if not text.isprintable() or "/" in text or "%" in text:
        return "may not contain '/', '%' or characters that cannot be printed"
    return None


NAME_LENGTH_MAX = 253


def _required(path: str, why: str) -> Cause:
    message = f"Required value: {why}" if why else "Required value"
    return Cause(field=path, message=message, reason="FieldValueRequired")


def _invalid(path: str, value: object, why: str) -> Cause:
    return Cause(field=path, message=f"Invalid value: {shown(value)}: {why}")


def _unsupported(path: str, value: object, known: tuple[str, ...]) -> Cause:
    listed = ", ".join(f'"{name}"' for name in known)
    message = f"Unsupported value: {shown(value)}: supported values: {listed}"
    return Cause(field=path, message=message, reason="FieldValueNotSupported")


RESOURCES = (
    resource(Role, "roles", custom=False, name_problem=role_name_problem, checks=(role_causes,)),
    resource(
        RoleBinding,
        "rolebindings",
        custom=False,
        name_problem=role_name_problem,
        fold=with_binding_defaults,
        checks=(role_binding_causes,),
    ),
    resource(
        ClusterRole,
        "clusterroles",
        custom=False,
        namespaced=False,
        name_problem=role_name_problem,
        checks=(cluster_role_causes,),
    ),
    resource(
        ClusterRoleBinding,
        "clusterrolebindings",
        custom=False,
        namespaced=False,
        name_problem=role_name_problem,
        fold=with_binding_defaults,
        checks=(cluster_role_binding_causes,),
    ),
)
