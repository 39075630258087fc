"""Kubernetes RBAC: which rule allows which request, and which rights cover which."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bullpen.api.kinds.rbac import (
    ClusterRole,
    ClusterRoleBinding,
    PolicyRule,
    Role,
    RoleBinding,
    RoleRef,
    Subject,
)
from bullpen.api.meta import ObjectMeta
from bullpen.core.rbac import authorization
from bullpen.core.rbac.authorization import MASTERS, AccessIndex, Attributes, User, uncovered

ALICE = User(name="alice", groups=("team-a", "system:authenticated"))
GROUP = "jumpstarter.dev"


def rule(
    *verbs: str, groups: str = GROUP, resources: str = "leases", names: str = ""
) -> PolicyRule:
    return PolicyRule(
        verbs=verbs,
        api_groups=tuple(groups.split(",")),
        resources=tuple(resources.split(",")),
        resource_names=tuple(names.split(",")) if names else (),
    )


def cluster_role(name: str, *rules: PolicyRule) -> ClusterRole:
    return ClusterRole(metadata=ObjectMeta(name=name), policy_rules=rules)


def subject(kind: str, name: str, namespace: str = "") -> Subject:
    return Subject(kind=kind, name=name, namespace=namespace)


def cluster_binding(role: str, *subjects: Subject, name: str = "b") -> ClusterRoleBinding:
    return ClusterRoleBinding(
        metadata=ObjectMeta(name=name),
        subjects=subjects,
        role_ref=RoleRef(kind="ClusterRole", name=role),
    )


def binding(
    role: str, *subjects: Subject, namespace: str, kind: str = "ClusterRole", name: str = "b"
) -> RoleBinding:
    return RoleBinding(
        metadata=ObjectMeta(name=name, namespace=namespace),
        subjects=subjects,
        role_ref=RoleRef(kind=kind, name=role),
    )


def lists(namespace: str = "", verb: str = "list", **more: str) -> Attributes:
    found = Attributes(verb=verb, group=GROUP, resource="leases", namespace=namespace)
    return replace(found, **more)


def index_with(*parts: ClusterRole | Role | ClusterRoleBinding | RoleBinding) -> AccessIndex:
    index = AccessIndex()
    for part in parts:
        if isinstance(part, ClusterRole | Role):
            index.observe_role(None, part)
        else:
            index.observe_binding(None, part)
    return index


def test_a_cluster_role_binding_allows_everywhere_and_names_itself_as_the_reason() -> None:
    index = index_with(
        cluster_role("reader", rule("list")), cluster_binding("reader", subject("User", "alice"))
    )
    for namespace in ("", "team-a", "default"):
        decision = index.decide(ALICE, lists(namespace))
        assert decision.allowed
        assert decision.reason == (
            'RBAC: allowed by ClusterRoleBinding "b" of ClusterRole "reader" to User "alice"'
        )
    assert not index.decide(User(name="bob"), lists()).allowed


def test_a_role_binding_allows_in_its_namespace_only() -> None:
    index = index_with(
        cluster_role("reader", rule("list")),
        binding("reader", subject("Group", "team-a"), namespace="team-a"),
    )
    assert index.decide(ALICE, lists("team-a")).allowed
    assert not index.decide(ALICE, lists("default")).allowed
    assert not index.decide(ALICE, lists("")).allowed, "all namespaces need a cluster binding"


def test_a_role_counts_only_in_its_own_namespace() -> None:
    role = Role(metadata=ObjectMeta(name="r", namespace="other"), policy_rules=(rule("list"),))
    index = index_with(
        role, binding("r", subject("User", "alice"), namespace="team-a", kind="Role")
    )
    assert not index.decide(ALICE, lists("team-a")).allowed


def test_a_service_account_is_bound_by_its_namespace_and_name() -> None:
    index = index_with(
        cluster_role("reader", rule("list")),
        cluster_binding("reader", subject("ServiceAccount", "ci", "team-a")),
    )
    assert index.decide(User(name="system:serviceaccount:team-a:ci"), lists()).allowed
    assert not index.decide(User(name="system:serviceaccount:team-b:ci"), lists()).allowed
    assert not index.decide(User(name="ci"), lists()).allowed


def test_masters_may_do_everything_without_any_binding() -> None:
    admin = User(name="x", groups=(MASTERS,))
    assert AccessIndex().decide(admin, lists("a", verb="delete")).allowed
    assert AccessIndex().decide(admin, Attributes(verb="get", path="/metrics")).allowed


def test_changes_of_roles_and_bindings_take_effect_and_leave_nothing_behind() -> None:
    role, bound = cluster_role("r", rule("list")), cluster_binding("r", subject("User", "alice"))
    index = index_with(role, bound)
    index.observe_role(role, cluster_role("r", rule("get")))
    assert not index.decide(ALICE, lists()).allowed
    assert index.decide(ALICE, lists(verb="get")).allowed
    other = cluster_binding("r", subject("User", "bob"))
    index.observe_binding(bound, other)
    assert not index.decide(ALICE, lists(verb="get")).allowed
    index.observe_binding(other, None)
    index.observe_role(role, None)
    assert index._grants == {}
    assert index._roles == {}


@pytest.mark.parametrize(
    ("granted", "asked", "allowed"),
    [
        (rule("list"), lists(), True),
        (rule("*"), lists(verb="watch"), True),
        (rule("list"), lists(verb="watch"), False),
        (rule("list"), lists(verb="deletecollection"), False),
        (rule("get", groups="*", resources="*"), lists(verb="get", group="anything"), True),
        (rule("get", groups=""), lists(verb="get"), False),
        (rule("get", names="x"), lists(verb="get", name="x"), True),
        (rule("get", names="x"), lists(verb="get", name="y"), False),
        (rule("list", names="x"), lists(), False),
        (rule("create", names="x"), lists(verb="create"), False),
        (rule("update"), lists(verb="update", subresource="status"), False),
        (rule("update", resources="leases/status"), lists(verb="update"), False),
        (
            rule("update", resources="leases/status"),
            lists(verb="update", subresource="status"),
            True,
        ),
        (rule("update", resources="*/status"), lists(verb="update", subresource="status"), True),
        (rule("update", resources="*/scale"), lists(verb="update", subresource="status"), False),
        (rule("update", resources="*"), lists(verb="update", subresource="status"), True),
        (rule("get", resources="leases/*"), lists(verb="get", subresource="status"), False),
    ],
)
def test_a_rule_matches_as_in_kubernetes(
    granted: PolicyRule, asked: Attributes, allowed: bool
) -> None:
    index = index_with(cluster_role("r", granted), cluster_binding("r", subject("User", "alice")))
    assert index.decide(ALICE, asked).allowed is allowed


@pytest.mark.parametrize(
    ("url", "path", "allowed"),
    [
        ("/metrics", "/metrics", True),
        ("/metrics", "/metrics/", False),
        ("/openapi/*", "/openapi/v3", True),
        ("/openapi/*", "/openapi", False),
        ("*", "/anything", True),
        ("/api*", "/apis", True),
    ],
)
def test_a_rule_of_paths_matches_as_in_kubernetes(url: str, path: str, allowed: bool) -> None:
    granted = PolicyRule(verbs=("get",), non_resource_urls=(url,))
    index = index_with(cluster_role("r", granted), cluster_binding("r", subject("User", "alice")))
    assert index.decide(ALICE, Attributes(verb="get", path=path)).allowed is allowed
    assert not index.decide(ALICE, lists()).allowed


@pytest.mark.parametrize(
    ("owned", "wanted", "covered"),
    [
        (rule("get", "list"), rule("get"), True),
        (rule("get"), rule("get", "list"), False),
        (rule("*"), rule("*"), True),
        (rule("get", "list", "watch"), rule("*"), False),
        (rule("get", resources="*"), rule("get", resources="secrets"), True),
        (rule("get", resources="leases"), rule("get", resources="*"), False),
        (rule("get", names="a,b"), rule("get", names="a"), True),
        (rule("get", names="a"), rule("get"), False),
        (rule("get"), rule("get", names="a"), True),
        (rule("get", resources="*/status"), rule("get", resources="leases/status"), True),
        (rule("get", resources="leases"), rule("get", resources="leases/status"), False),
        (rule("get", groups="*"), rule("get", groups="*"), True),
        (rule("get", groups="a"), rule("get", groups="a,b"), False),
        (
            PolicyRule(verbs=("get",), non_resource_urls=("/a/*",)),
            PolicyRule(verbs=("get",), non_resource_urls=("/a/b",)),
            True,
        ),
        (
            PolicyRule(verbs=("get",), non_resource_urls=("/a/b",)),
            PolicyRule(verbs=("get",), non_resource_urls=("/a/*",)),
            False,
        ),
    ],
)
def test_rights_are_covered_as_in_kubernetes(
    owned: PolicyRule, wanted: PolicyRule, covered: bool
) -> None:
    assert (uncovered((owned,), (wanted,)) == ()) is covered


def test_rights_that_are_spread_over_rules_cover_a_rule() -> None:
    owned = (rule("get", resources="leases"), rule("get", resources="clients"))
    assert uncovered(owned, (rule("get", resources="leases,clients"),)) == ()


def test_too_many_combinations_are_not_checked_one_by_one() -> None:
    many = tuple(map(str, range(authorization.COVERED_MAX)))
    wanted = PolicyRule(verbs=many, api_groups=("a",), resources=("b", "c"))
    assert uncovered((rule("*", groups="*", resources="*"),), (wanted,)) is None


words = st.sampled_from(("a", "b", "*"))
rules = st.builds(
    PolicyRule,
    verbs=st.lists(words, min_size=1, max_size=2).map(tuple),
    api_groups=st.lists(words, min_size=1, max_size=2).map(tuple),
    resources=st.lists(st.sampled_from(("a", "b", "*", "a/s", "*/s")), min_size=1, max_size=2).map(
        tuple
    ),
    resource_names=st.lists(st.sampled_from(("a", "b")), max_size=2).map(tuple),
)


@given(st.lists(rules, max_size=3), st.lists(rules, min_size=1, max_size=2))
def test_whoever_covers_a_role_may_do_all_that_it_allows(
    owned: list[PolicyRule], wanted: list[PolicyRule]
) -> None:
    if uncovered(owned, wanted) != ():
        return
    writer, holder = User(name="writer"), User(name="holder")
    index = index_with(
        cluster_role("owned", *owned),
        cluster_role("wanted", *wanted),
        cluster_binding("owned", subject("User", "writer"), name="o"),
        cluster_binding("wanted", subject("User", "holder"), name="w"),
    )
    for verb in "abc":
        for group in "abc":
            for resource in "abc":
                for subresource in ("", "s", "t"):
                    for name in ("", "a", "b"):
                        asked = Attributes(
                            verb=verb,
                            group=group,
                            resource=resource,
                            subresource=subresource,
                            name=name,
                        )
                        if index.decide(holder, asked).allowed:
                            assert index.decide(writer, asked).allowed, asked


def test_masters_have_every_rule() -> None:
    assert index_with().rules_of(User(name="root", groups=(MASTERS,)), "") == (
        authorization.EVERYTHING
    )


def test_a_binding_that_goes_leaves_the_other_bindings_of_its_subject() -> None:
    alice = subject("User", "alice")
    one, other = (cluster_binding("reader", alice, name=name) for name in ("one", "other"))
    index = index_with(cluster_role("reader", rule("list")), one, other)
    index.observe_binding(one, None)
    assert index.decide(ALICE, lists()).allowed
    index.observe_binding(other, None)
    assert not index.decide(ALICE, lists()).allowed
