"""Nobody grants more than they have; one sentence per test."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

from bullpen.api.kinds.deviceclaim import DeviceClaim, DeviceClaimSpec
from bullpen.api.kinds.rbac import ClusterRole, ClusterRoleBinding, PolicyRule, RoleRef, Subject
from bullpen.api.meta import LocalObjectReference, ObjectMeta
from bullpen.core.rbac.admin_access import admin_access_refusal
from bullpen.core.rbac.authorization import COVERED_MAX, AccessIndex, User
from bullpen.core.rbac.escalation import binding_refusal, role_refusal

ALICE = User(name="alice")
POWERFUL = ClusterRole(
    metadata=ObjectMeta(name="powerful"),
    policy_rules=(PolicyRule(verbs=("*",), api_groups=("*",), resources=("*",)),),
)
BINDING = ClusterRoleBinding(
    metadata=ObjectMeta(name="b"),
    subjects=(Subject(kind="User", name="bob", namespace=""),),
    role_ref=RoleRef(kind="ClusterRole", name="powerful"),
)


def test_a_role_or_binding_that_grants_what_it_did_may_be_written_by_anybody() -> None:
    index = AccessIndex()
    assert role_refusal(index, ALICE, POWERFUL, None)
    annotated = replace(POWERFUL, metadata=ObjectMeta(name="powerful", annotations={"a": "b"}))
    assert role_refusal(index, ALICE, annotated, POWERFUL) is None
    assert binding_refusal(index, ALICE, BINDING, None)
    assert binding_refusal(index, ALICE, BINDING, BINDING) is None


def test_only_the_verb_adminaccess_allows_claims_with_admin_access() -> None:
    plain = DeviceClaim(
        metadata=ObjectMeta(name="c", namespace="lab"),
        spec=DeviceClaimSpec(
            client_ref=LocalObjectReference(name="alice"), requests=(), duration=timedelta(hours=1)
        ),
    )
    admin = replace(plain, spec=replace(plain.spec, admin_access=True))
    index = AccessIndex()
    assert admin_access_refusal(index, ALICE, plain, None) is None
    refused = admin_access_refusal(index, ALICE, admin, None)
    assert refused is not None
    assert 'the verb "adminaccess" on deviceclaims.device.jumpstarter.dev' in refused
    assert admin_access_refusal(index, ALICE, admin, plain) == refused
    assert admin_access_refusal(index, ALICE, admin, admin) is None, "an edit of something else"
    claims = PolicyRule(verbs=("create", "update"), api_groups=("*",), resources=("deviceclaims",))
    role = replace(POWERFUL, policy_rules=(claims,))
    subject = replace(BINDING, subjects=(Subject(kind="User", name="alice", namespace=""),))
    index.observe_role(None, role)
    index.observe_binding(None, subject)
    assert admin_access_refusal(index, ALICE, admin, None) == refused
    may = PolicyRule(verbs=("adminaccess",), api_groups=("*",), resources=("deviceclaims",))
    index.observe_role(role, replace(role, policy_rules=(claims, may)))
    assert admin_access_refusal(index, ALICE, admin, None) is None


def test_a_role_with_too_many_rules_to_check_is_refused() -> None:
    names = tuple(f"r{number}" for number in range(COVERED_MAX + 1))
    large = PolicyRule(verbs=("get",), api_groups=("",), resources=names)
    found = role_refusal(AccessIndex(), ALICE, replace(POWERFUL, policy_rules=(large,)), None)
    assert found is not None
    assert "too many to check; split the role" in found
