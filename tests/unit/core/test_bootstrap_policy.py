"""The default roles: what they allow, how they are kept, and how roles are aggregated."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bullpen.api import codec
from bullpen.api.kinds.rbac import ClusterRole, PolicyRule, Subject
from bullpen.api.meta import ObjectMeta
from bullpen.api.resource import Resource
from bullpen.api.resources import RESOURCES
from bullpen.core.rbac.authorization import AUTHENTICATED, AccessIndex, Attributes, User
from bullpen.core.rbac.bootstrap_policy import (
    AUTOUPDATE,
    CLUSTER_ROLE_BINDINGS,
    VIEW_USER,
    aggregated_rules,
    reconciled_binding,
    reconciled_role,
    starting_roles,
)

ROLES = {role.metadata.name: role for role in starting_roles()}


def allows(role: str, verb: str, group: str, resource: str, subresource: str = "") -> bool:
    index = AccessIndex()
    index.observe_role(None, ROLES[role])
    given = replace(
        CLUSTER_ROLE_BINDINGS[0],
        subjects=(Subject(kind="User", name="x"),),
        role_ref=replace(CLUSTER_ROLE_BINDINGS[0].role_ref, name=role),
    )
    index.observe_binding(None, given)
    asked = Attributes(verb=verb, group=group, resource=resource, subresource=subresource)
    return index.decide(User(name="x"), asked).allowed


@pytest.mark.parametrize("verb", ["get", "list", "watch"])
@pytest.mark.parametrize("role", ["view", "bullpen:reader"])
def test_roles_that_read_do_not_read_or_watch_secrets(role: str, verb: str) -> None:
    assert not allows(role, verb, "", "secrets")
    assert not allows(role, "create", "", "serviceaccounts", "token")
    assert allows(role, verb, "jumpstarter.dev", "leases")


@pytest.mark.parametrize("resource", tuple(RESOURCES), ids=lambda item: item.plural)
def test_the_reader_reads_every_resource_but_secrets_and_writes_none(resource: Resource) -> None:
    readable = (resource.group, resource.plural) != ("", "secrets")
    for verb in ("get", "list", "watch"):
        assert allows("bullpen:reader", verb, resource.group, resource.plural) is readable
    for verb in ("create", "update", "patch", "delete", "deletecollection", "impersonate"):
        assert not allows("bullpen:reader", verb, resource.group, resource.plural)


VIRTUAL, DEVICE = "virtualtarget.jumpstarter.dev", "device.jumpstarter.dev"
RBAC = "rbac.authorization.k8s.io"


@pytest.mark.parametrize(
    ("role", "verb", "group", "resource", "allowed"),
    [
        ("view", "list", RBAC, "roles", False),
        ("view", "create", "jumpstarter.dev", "leases", False),
        ("edit", "create", "jumpstarter.dev", "leases", True),
        ("edit", "watch", "", "secrets", True),
        ("edit", "create", RBAC, "rolebindings", False),
        ("edit", "update", "jumpstarter.dev", "exporteraccesspolicies", False),
        ("admin", "create", RBAC, "rolebindings", True),
        ("view", "watch", VIRTUAL, "virtualtargetpools", True),
        ("view", "get", VIRTUAL, "virtualdisks", True),
        ("admin", "create", VIRTUAL, "virtualtargets", False),
        ("bullpen:pool-admin", "create", VIRTUAL, "virtualtargets", True),
        ("bullpen:pool-admin", "delete", VIRTUAL, "virtualdisks", True),
        ("bullpen:pool-admin", "patch", VIRTUAL, "virtualtargetpools", True),
        ("admin", "update", "jumpstarter.dev", "exporteraccesspolicies", True),
        ("admin", "create", RBAC, "clusterroles", False),
        ("admin", "create", VIRTUAL, "exportersets", False),
        ("admin", "update", VIRTUAL, "virtualtargetclasses", False),
        ("view", "watch", DEVICE, "deviceclaims", True),
        ("view", "create", DEVICE, "deviceclaims", False),
        ("edit", "create", DEVICE, "deviceclaims", True),
        ("edit", "create", DEVICE, "devicepools", False),
        ("admin", "create", DEVICE, "devicepools", True),
        ("admin", "create", DEVICE, "deviceclasses", False),
        ("admin", "adminaccess", DEVICE, "deviceclaims", False),
        ("bullpen:claim-admin", "adminaccess", DEVICE, "deviceclaims", True),
        ("bullpen:pool-admin", "create", VIRTUAL, "exportersets", True),
        ("cluster-admin", "anything", "any", "thing", True),
    ],
)
def test_a_default_role_allows(
    role: str, verb: str, group: str, resource: str, allowed: bool
) -> None:
    assert allows(role, verb, group, resource) is allowed


def test_every_authenticated_user_can_discover_and_ask_about_itself() -> None:
    index = AccessIndex()
    for role in ROLES.values():
        index.observe_role(None, role)
    for binding in CLUSTER_ROLE_BINDINGS:
        index.observe_binding(None, binding)
    user = User(name="new", groups=(AUTHENTICATED,))
    for path in ("/api", "/apis/jumpstarter.dev/v1alpha1", "/openapi/v3", "/version", "/"):
        assert index.decide(user, Attributes(verb="get", path=path)).allowed
    assert not index.decide(user, Attributes(verb="get", path="/metrics")).allowed
    reader = User(name=VIEW_USER, groups=(AUTHENTICATED,))
    assert index.decide(reader, Attributes(verb="get", path="/metrics")).allowed
    review = Attributes(
        verb="create", group="authorization.k8s.io", resource="selfsubjectaccessreviews"
    )
    assert index.decide(user, review).allowed


@pytest.mark.parametrize("role", tuple(ROLES.values()), ids=lambda role: role.metadata.name)
def test_a_default_role_is_valid_and_needs_no_second_write(role: ClusterRole) -> None:
    document = codec.encode(role)
    assert RESOURCES.of(ClusterRole).validate(document) == ()
    assert reconciled_role(role, role) is None


def test_what_was_removed_from_a_default_role_comes_back_and_additions_stay() -> None:
    wanted = ROLES["system:basic-user"]
    added = PolicyRule(verbs=("get",), api_groups=("x",), resources=("y",))
    found = replace(wanted, policy_rules=(added,))
    mended = reconciled_role(wanted, found)
    assert mended is not None
    assert mended.policy_rules[0] == added
    assert reconciled_role(wanted, mended) is None


def test_a_default_object_that_opted_out_is_left_alone() -> None:
    opted_out = ObjectMeta(name="x", annotations={AUTOUPDATE: "false"})
    role = replace(ROLES["system:basic-user"], metadata=opted_out, policy_rules=())
    assert reconciled_role(ROLES["system:basic-user"], role) is None
    wanted = CLUSTER_ROLE_BINDINGS[0]
    assert reconciled_binding(wanted, replace(wanted, metadata=opted_out, subjects=())) is None
    mended = reconciled_binding(wanted, replace(wanted, subjects=()))
    assert mended is not None
    assert mended.subjects == wanted.subjects


def test_an_aggregated_role_has_the_rules_of_all_that_its_selectors_choose() -> None:
    rule = PolicyRule(verbs=("get",), api_groups=("example.com",), resources=("things",))
    added = ClusterRole(
        metadata=ObjectMeta(
            name="things", labels={"rbac.authorization.k8s.io/aggregate-to-view": "true"}
        ),
        policy_rules=(rule,),
    )
    rules = aggregated_rules(ROLES["view"], (*ROLES.values(), added))
    assert rules is not None
    assert rule in rules
    assert set(ROLES["view"].policy_rules) < set(rules)
    assert aggregated_rules(added, ROLES.values()) is None
