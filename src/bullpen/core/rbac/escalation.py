"""Whether writing a role or a binding would grant rights that the writer does not have.

Kubernetes' rule: a role may contain only rights that its writer has, and a binding may
refer only to a role whose rights its writer has. The verbs ``escalate`` and ``bind`` lift
the two restrictions. Pure.
"""

from __future__ import annotations

from bullpen.api.kinds.rbac import (
    GROUP,
    AggregationRule,
    ClusterRole,
    ClusterRoleBinding,
    PolicyRule,
    Role,
    RoleBinding,
)
from bullpen.core.rbac.authorization import AccessIndex, Attributes, User, uncovered

MISSING_SHOWN_MAX = 20
"""Rights named in a refusal."""

_PLURALS = {Role.kind: "roles", ClusterRole.kind: "clusterroles"}


def role_refusal(
    index: AccessIndex, user: User, new: Role | ClusterRole, old: Role | ClusterRole | None
) -> str | None:
    """Why ``user`` may not write ``new`` over ``old``; None if the user may."""
    if old is not None and _grants_the_same(new, old):
        return None
    place = _role_attributes("escalate", new.kind, new.metadata.namespace, new.metadata.name)
    if index.decide(user, place).allowed:
        return None
    if _aggregation(new) or (old is not None and _aggregation(old)):
        # Aggregated rules can become anything, so writing them requires the right to everything,
        # which includes the right to escalate.
        return "must have cluster-admin privileges to use the aggregationRule"
    owned = index.rules_of(user, new.metadata.namespace)
    return _missing_refusal(user, uncovered(owned, new.policy_rules))


def binding_refusal(
    index: AccessIndex,
    user: User,
    new: RoleBinding | ClusterRoleBinding,
    old: RoleBinding | ClusterRoleBinding | None,
) -> str | None:
    """Why ``user`` may not write ``new`` over ``old``; None if the user may."""
    if old is not None and (old.role_ref, old.subjects) == (new.role_ref, new.subjects):
        return None
    namespace, ref = new.metadata.namespace, new.role_ref
    place = _role_attributes("bind", ref.kind, namespace, ref.name)
    if index.decide(user, place).allowed:
        return None
    rules = index.role_rules(ref, namespace)
    if rules is None:
        return (
            f'{_PLURALS.get(ref.kind, ref.kind)}.{GROUP} "{ref.name}" not found; only users with'
            " the verb bind on it may refer to a role that does not exist yet"
        )
    return _missing_refusal(user, uncovered(index.rules_of(user, namespace), rules))


def _role_attributes(verb: str, kind: str, namespace: str, name: str) -> Attributes:
    return Attributes(
        verb=verb,
        group=GROUP,
        resource=_PLURALS.get(kind, kind),
        namespace=namespace,
        name=name,
    )


def _aggregation(role: Role | ClusterRole) -> AggregationRule | None:
    return role.aggregation_rule if isinstance(role, ClusterRole) else None


def _grants_the_same(new: Role | ClusterRole, old: Role | ClusterRole) -> bool:
    """Labels count, because they decide into which roles this one is aggregated."""
    return (
        _aggregation(new) == _aggregation(old)
        and dict(new.metadata.labels) == dict(old.metadata.labels)
        and new.policy_rules == old.policy_rules
    )


def _missing_refusal(user: User, missing: tuple[PolicyRule, ...] | None) -> str | None:
    if missing == ():
        return None
    groups = " ".join(f'"{group}"' for group in user.groups)
    start = (
        f'user "{user.name}" (groups=[{groups}]) is attempting to grant RBAC permissions'
        " not currently held"
    )
    if missing is None:
        return f"{start}: the rules are too many to check; split the role"
    shown = [_shown(rule) for rule in missing[:MISSING_SHOWN_MAX]]
    more = len(missing) - len(shown)
    return "\n".join([f"{start}:", *shown, *([f"and {more} more"] if more else [])])


def _shown(rule: PolicyRule) -> str:
    parts = {
        "APIGroups": rule.api_groups,
        "Resources": rule.resources,
        "ResourceNames": rule.resource_names,
        "NonResourceURLs": rule.non_resource_urls,
        "Verbs": rule.verbs,
    }
    listed = (
        f"{name}:[{' '.join(chr(34) + value + chr(34) for value in values)}]"
        for name, values in parts.items()
        if values
    )
    return "{" + ", ".join(listed) + "}"
