"""Whether a user may do something: Kubernetes RBAC over an index of roles and bindings.

Pure and synchronous. ``AccessIndex`` observes every change of a role or a binding and
answers from dictionaries: a decision looks only at the bindings of the user and of the
user's groups, and decodes nothing. Rules are additive; no rule denies.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from bullpen.api.kinds.core import username
from bullpen.api.kinds.rbac import (
    SERVICE_ACCOUNT,
    USER,
    USER_GROUP,
    ClusterRole,
    ClusterRoleBinding,
    PolicyRule,
    Role,
    RoleBinding,
    RoleRef,
    Subject,
)

ALL = "*"
MASTERS = "system:masters"
"""Members of this group may do everything, whatever roles and bindings exist."""

AUTHENTICATED = "system:authenticated"


@dataclass(frozen=True, slots=True, kw_only=True)
class User:
    """An authenticated caller, or the user that a review asks about."""

    name: str
    uid: str = ""
    groups: tuple[str, ...] = ()
    extra: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Attributes:
    """A request, in the terms of a SubjectAccessReview."""

    verb: str
    group: str = ""
    resource: str = ""
    """Plural name; empty for paths that are not resources."""

    subresource: str = ""
    namespace: str = ""
    """Empty at the cluster scope and for all namespaces at once."""

    name: str = ""
    path: str = ""


@dataclass(frozen=True, slots=True)
class Decision:
    allowed: bool
    reason: str = ""
    """The binding that allows the request; empty if none does."""


@dataclass(frozen=True, slots=True)
class _Rule:
    """A PolicyRule with its lists as sets, so that matching does not depend on their length."""

    verbs: frozenset[str]
    groups: frozenset[str]
    resources: frozenset[str]
    names: frozenset[str]
    urls: frozenset[str]

    def allows(self, request: Attributes) -> bool:
        if ALL not in self.verbs and request.verb not in self.verbs:
            return False
        if not request.resource:
            return any(_url_matches(url, request.path) for url in self.urls)
        if ALL not in self.groups and request.group not in self.groups:
            return False
        if self.names and request.name not in self.names:
            return False
        return self._has_resource(request.resource, request.subresource)

    def _has_resource(self, resource: str, subresource: str) -> bool:
        if ALL in self.resources:
            return True
        if not subresource:
            return resource in self.resources
        return f"{resource}/{subresource}" in self.resources or f"*/{subresource}" in self.resources


def _url_matches(pattern: str, path: str) -> bool:
    if pattern in (ALL, path):
        return True
    return pattern.endswith(ALL) and path.startswith(pattern.rstrip(ALL))


def _compiled(rule: PolicyRule) -> _Rule:
    return _Rule(
        verbs=frozenset(rule.verbs),
        groups=frozenset(rule.api_groups),
        resources=frozenset(rule.resources),
        names=frozenset(rule.resource_names),
        urls=frozenset(rule.non_resource_urls),
    )


@dataclass(frozen=True, slots=True)
class _RoleRules:
    rules: tuple[PolicyRule, ...]
    compiled: tuple[_Rule, ...]


@dataclass(frozen=True, slots=True)
class _Grant:
    """One subject of one binding."""

    role: tuple[str, str, str]
    """Kind, namespace and name of the role."""

    reason: str


_Holder = tuple[str, str]
"""Kind and name of a subject; service accounts are users here."""

_Binding = RoleBinding | ClusterRoleBinding

EVERYTHING = (
    PolicyRule(verbs=(ALL,), api_groups=(ALL,), resources=(ALL,)),
    PolicyRule(verbs=(ALL,), non_resource_urls=(ALL,)),
)


class AccessIndex:
    """All roles and bindings, indexed by subject."""

    def __init__(self) -> None:
        self._roles: dict[tuple[str, str, str], _RoleRules] = {}
        self._grants: dict[str, dict[_Holder, dict[str, tuple[_Grant, ...]]]] = {}
        """By namespace of the binding ("" for ClusterRoleBindings), holder and binding."""

        self._listeners: list[Callable[[], None]] = []

    def listen(self, listener: Callable[[], None]) -> None:
        """Call ``listener`` when a decision may have changed."""
        self._listeners.append(listener)

    def observe_role(self, old: Role | ClusterRole | None, new: Role | ClusterRole | None) -> None:
        """A role was created (``old`` is None), changed, or deleted (``new`` is None)."""
        role = new or old
        assert role is not None
        key = (role.kind, role.metadata.namespace, role.metadata.name)
        if new is None:
            self._roles.pop(key, None)
        else:
            compiled = tuple(map(_compiled, new.policy_rules))
            self._roles[key] = _RoleRules(new.policy_rules, compiled)
        self._tell()

    def observe_binding(self, old: _Binding | None, new: _Binding | None) -> None:
        """A binding was created (``old`` is None), changed, or deleted (``new`` is None)."""
        if old is not None:
            self._unbind(old)
        if new is not None:
            self._bind(new)
        self._tell()

    def decide(self, user: User, request: Attributes) -> Decision:
        """Whether ``user`` may make ``request``."""
        if MASTERS in user.groups:
            return Decision(True, f'RBAC: allowed to Group "{MASTERS}"')
        for grant in self._grants_of(user, request.namespace):
            role = self._roles.get(grant.role)
            if role and any(rule.allows(request) for rule in role.compiled):
                return Decision(True, grant.reason)
        return Decision(False)

    def rules_of(self, user: User, namespace: str) -> tuple[PolicyRule, ...]:
        """Everything ``user`` may do in ``namespace``, or at the cluster scope for ""."""
        if MASTERS in user.groups:
            return EVERYTHING
        found: dict[PolicyRule, None] = {}
        for grant in self._grants_of(user, namespace):
            role = self._roles.get(grant.role)
            found.update(dict.fromkeys(role.rules if role else ()))
        return tuple(found)

    def role_rules(self, ref: RoleRef, namespace: str) -> tuple[PolicyRule, ...] | None:
        """What the role that a binding in ``namespace`` refers to allows; None if it is absent."""
        role = self._roles.get(_role_key(ref, namespace))
        return role.rules if role else None

    def _tell(self) -> None:
        for listener in self._listeners:
            listener()

    def _grants_of(self, user: User, namespace: str) -> Iterator[_Grant]:
        holders = [(USER, user.name), *((USER_GROUP, group) for group in user.groups)]
        for place in ("", namespace) if namespace else ("",):
            held = self._grants.get(place)
            if held is None:
                continue
            for holder in holders:
                for grants in held.get(holder, {}).values():
                    yield from grants

    def _bind(self, binding: _Binding) -> None:
        place = binding.metadata.namespace
        held = self._grants.setdefault(place, {})
        for subject in binding.subjects:
            bindings = held.setdefault(_holder(subject, place), {})
            grant = _Grant(_role_key(binding.role_ref, place), _reason(binding, subject))
            name = binding.metadata.name
            bindings[name] = (*bindings.get(name, ()), grant)

    def _unbind(self, binding: _Binding) -> None:
        place = binding.metadata.namespace
        held = self._grants.get(place, {})
        for subject in binding.subjects:
            holder = _holder(subject, place)
            bindings = held.get(holder, {})
            bindings.pop(binding.metadata.name, None)
            if not bindings:
                held.pop(holder, None)
        if not held:
            self._grants.pop(place, None)


def _role_key(ref: RoleRef, namespace: str) -> tuple[str, str, str]:
    return (ref.kind, namespace if ref.kind == Role.kind else "", ref.name)


def _holder(subject: Subject, namespace: str) -> _Holder:
    if subject.kind == SERVICE_ACCOUNT:
        return (USER, username(subject.namespace or namespace, subject.name))
    return (subject.kind, subject.name)


def _reason(binding: _Binding, subject: Subject) -> str:
    meta, ref = binding.metadata, binding.role_ref
    name = f"{meta.name}/{meta.namespace}" if meta.namespace else meta.name
    who = f"{subject.name}/{subject.namespace}" if subject.namespace else subject.name
    return (
        f'RBAC: allowed by {binding.kind} "{name}" of {ref.kind} "{ref.name}"'
        f' to {subject.kind} "{who}"'
    )


COVERED_MAX = 50_000
"""Combinations of verb, group, resource and name in one role that are checked one by one."""


def uncovered(
    owned: Iterable[PolicyRule], wanted: Iterable[PolicyRule]
) -> tuple[PolicyRule, ...] | None:
    """The parts of ``wanted`` that ``owned`` does not allow; None if there are too many to check.

    A rule is split into its smallest parts, each of which one owned rule must allow as
    a whole, wildcards included: holding ``get`` on every known resource is not ``get`` on ``*``.
    """
    rules = tuple(map(_compiled, owned))
    missing: list[PolicyRule] = []
    for count, part in enumerate(_parts(wanted)):
        if count >= COVERED_MAX:
            return None
        if not any(_covers(rule, part) for rule in rules):
            missing.append(part)
    return tuple(missing)


def _parts(rules: Iterable[PolicyRule]) -> Iterator[PolicyRule]:
    for rule in rules:
        for verb in rule.verbs:
            for url in rule.non_resource_urls:
                yield PolicyRule(verbs=(verb,), non_resource_urls=(url,))
            for group in rule.api_groups:
                for resource in rule.resources:
                    part = PolicyRule(verbs=(verb,), api_groups=(group,), resources=(resource,))
                    if not rule.resource_names:
                        yield part
                    for name in rule.resource_names:
                        yield replace(part, resource_names=(name,))


def _covers(owned: _Rule, part: PolicyRule) -> bool:
    if not _has(owned.verbs, part.verbs[0]):
        return False
    if part.non_resource_urls:
        return any(_url_matches(url, part.non_resource_urls[0]) for url in owned.urls)
    if not _has(owned.groups, part.api_groups[0]):
        return False
    if owned.names and not (part.resource_names and part.resource_names[0] in owned.names):
        return False
    resource = part.resources[0]
    if _has(owned.resources, resource):
        return True
    _, slash, subresource = resource.partition("/")
    return bool(slash) and f"*/{subresource}" in owned.resources


def _has(values: frozenset[str], wanted: str) -> bool:
    return ALL in values or wanted in values
