"""RBAC at the API server: bindings, escalation, impersonation, reviews, tokens, audit."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from bullpen.apiserver.http import Request
from bullpen.core.rbac.authorization import AUTHENTICATED, User
from bullpen.errors import Forbidden, LabError, Unauthorized
from support.api_client import ADMIN, VIEWER, Api, collect, running_api

RBAC = "/apis/rbac.authorization.k8s.io/v1"
GROUP = "rbac.authorization.k8s.io"
LEASES = "/apis/jumpstarter.dev/v1alpha1/namespaces/{}/leases"
CLIENTS = "/apis/jumpstarter.dev/v1alpha1/namespaces/{}/clients"
ALICE = User(name="alice", groups=(AUTHENTICATED,))
ADAM = User(name="adam", groups=(AUTHENTICATED,))


@pytest.fixture
async def api() -> AsyncIterator[Api]:
    async with running_api() as found:
        yield found


def client(name: str) -> dict[str, Any]:
    return {
        "apiVersion": "jumpstarter.dev/v1alpha1",
        "kind": "Client",
        "metadata": {"name": name},
    }


def binding(name: str, role: str, user: str, *, kind: str = "ClusterRole") -> dict[str, Any]:
    return {
        "apiVersion": f"{GROUP}/v1",
        "kind": "RoleBinding",
        "metadata": {"name": name},
        "roleRef": {"apiGroup": GROUP, "kind": kind, "name": role},
        "subjects": [{"kind": "User", "name": user}],
    }


def cluster_binding(name: str, role: str, user: str) -> dict[str, Any]:
    return {**binding(name, role, user), "kind": "ClusterRoleBinding"}


def role(name: str, *rules: dict[str, Any], kind: str = "Role") -> dict[str, Any]:
    meta = {"name": name}
    return {"apiVersion": f"{GROUP}/v1", "kind": kind, "metadata": meta, "rules": list(rules)}


def rule(verbs: str, groups: str, resources: str) -> dict[str, Any]:
    return {
        "verbs": verbs.split(),
        "apiGroups": groups.split() or [""],
        "resources": resources.split(),
    }


async def bind(api: Api, role: str, user: User, namespace: str = "team-a") -> None:
    path = f"{RBAC}/namespaces/{namespace}/rolebindings"
    document = binding(f"{user.name}-{role}".replace(":", "-"), role, user.name)
    assert (await api.call("POST", path, document)).status == 201
    await settled()


async def settled() -> None:
    """Let informers hear of what was written."""
    for _ in range(20):
        await asyncio.sleep(0)


async def test_edit_in_a_namespace_writes_there_and_is_refused_elsewhere(api: Api) -> None:
    await bind(api, "edit", ALICE)
    made = await api.call("POST", CLIENTS.format("team-a"), client("c"), user=ALICE)
    assert made.status == 201
    refused = await api.call("GET", CLIENTS.format("default"), user=ALICE)
    assert refused.status == 403
    assert refused.document["message"] == (
        'clients.jumpstarter.dev is forbidden: User "alice" cannot list resource "clients"'
        ' in API group "jumpstarter.dev" in the namespace "default"'
    )
    assert refused.document["reason"] == "Forbidden"
    everywhere = await api.call("GET", "/apis/jumpstarter.dev/v1alpha1/clients", user=ALICE)
    assert everywhere.document["message"].endswith("at the cluster scope")
    one = await api.call("DELETE", f"{CLIENTS.format('default')}/c", user=ALICE)
    assert one.document["message"].startswith('clients.jumpstarter.dev "c" is forbidden')
    path = await api.call("GET", "/metrics", user=ALICE)
    assert path.document["message"] == 'forbidden: User "alice" cannot get path "/metrics"'


async def test_a_deleted_binding_ends_the_right_before_the_next_request(api: Api) -> None:
    await bind(api, "view", ALICE)
    assert (await api.call("GET", LEASES.format("team-a"), user=ALICE)).status == 200
    await api.call("DELETE", f"{RBAC}/namespaces/team-a/rolebindings/alice-view")
    await settled()
    assert (await api.call("GET", LEASES.format("team-a"), user=ALICE)).status == 403


async def test_a_deleted_binding_ends_the_watches_it_allowed_and_no_others(api: Api) -> None:
    await bind(api, "edit", ALICE)
    await bind(api, "edit", ADAM)
    secrets = "/api/v1/namespaces/team-a/secrets?watch=1"
    mine = asyncio.ensure_future(api.call("GET", secrets, user=ALICE))
    other = asyncio.ensure_future(api.call("GET", secrets, user=ADAM))
    await settled()
    await api.call("DELETE", f"{RBAC}/namespaces/team-a/rolebindings/alice-edit")
    async with asyncio.timeout(30):
        assert (await mine).status == 200
    assert not other.done()
    other.cancel()


async def test_a_binding_in_a_namespace_lets_its_holders_see_the_namespace_itself(
    api: Api,
) -> None:
    await bind(api, "view", ALICE)
    assert (await api.call("GET", "/api/v1/namespaces/team-a", user=ALICE)).status == 200
    assert (await api.call("GET", "/api/v1/namespaces/default", user=ALICE)).status == 403
    assert (await api.call("GET", "/api/v1/namespaces", user=ALICE)).status == 403


async def test_a_right_to_one_name_allows_a_list_and_a_watch_of_that_name_only(api: Api) -> None:
    named = {**rule("get list watch", "", "configmaps"), "resourceNames": ["mine"]}
    path = f"{RBAC}/namespaces/team-a/roles"
    assert (await api.call("POST", path, role("named", named))).status == 201
    document = binding("named", "named", "alice", kind="Role")
    assert (await api.call("POST", f"{RBAC}/namespaces/team-a/rolebindings", document)).status
    await settled()
    maps = "/api/v1/namespaces/team-a/configmaps"
    assert (await api.call("GET", maps, user=ALICE)).status == 403
    for selector, status in (("mine", 200), ("other", 403)):
        found = f"{maps}?fieldSelector=metadata.name%3D{selector}"
        assert (await api.call("GET", found, user=ALICE)).status == status
    negated = f"{maps}?fieldSelector=metadata.name!%3Dmine"
    assert (await api.call("GET", negated, user=ALICE)).status == 403


async def test_an_apply_that_creates_needs_the_right_to_create(api: Api) -> None:
    path = f"{RBAC}/namespaces/team-a/roles"
    patching = role("patcher", rule("patch get", "jumpstarter.dev", "clients"))
    await api.call("POST", path, patching)
    document = binding("patcher", "patcher", "alice", kind="Role")
    await api.call("POST", f"{RBAC}/namespaces/team-a/rolebindings", document)
    await settled()
    target = f"{CLIENTS.format('team-a')}/c?fieldManager=x"
    kind = "application/apply-patch+yaml"
    refused = await api.call("PATCH", target, client("c"), content_type=kind, user=ALICE)
    assert refused.status == 403
    assert "cannot create resource" in refused.document["message"]
    assert (await api.call("PATCH", target, client("c"), content_type=kind)).status == 201
    again = await api.call("PATCH", target, client("c"), content_type=kind, user=ALICE)
    assert again.status == 200


async def test_a_namespace_admin_grants_what_it_has_and_nothing_more(api: Api) -> None:
    await bind(api, "admin", ADAM)
    roles, bindings = (f"{RBAC}/namespaces/team-a/{kind}" for kind in ("roles", "rolebindings"))
    fine = role("fine", rule("get list", "jumpstarter.dev", "leases"))
    assert (await api.call("POST", roles, fine, user=ADAM)).status == 201
    more = role("more", rule("create", "virtualtarget.jumpstarter.dev", "exportersets"))
    refused = await api.call("POST", roles, more, user=ADAM)
    assert refused.status == 403
    assert "attempting to grant RBAC permissions not currently held" in refused.document["message"]
    assert 'Resources:["exportersets"]' in refused.document["message"]
    # Not by update, patch or apply of a role that is there either.
    wider = {"rules": [rule("*", "*", "*")]}
    for body, kind in (
        (wider, "application/merge-patch+json"),
        ({**fine, **wider}, "application/apply-patch+yaml"),
    ):
        target = f"{roles}/fine?fieldManager=x&force=true"
        if kind == "application/merge-patch+json":
            target = f"{roles}/fine"
        answer = await api.call("PATCH", target, body, content_type=kind, user=ADAM)
        assert answer.status == 403, answer.body
    assert (await api.call("PUT", f"{roles}/fine", {**fine, **wider}, user=ADAM)).status == 403
    # Binding what one holds is fine, binding more is not, nor is a role that is not there.
    for name, wanted in (("view", 201), ("admin", 201), ("cluster-admin", 403), ("none", 403)):
        answer = await api.call("POST", bindings, binding(f"b-{name}", name, "eve"), user=ADAM)
        assert answer.status == wanted, answer.body


async def test_the_verbs_bind_and_escalate_lift_the_restriction(api: Api) -> None:
    await bind(api, "admin", ADAM)
    lifted = role("lifted", rule("bind", GROUP, "clusterroles"), rule("escalate", GROUP, "roles"))
    await api.call("POST", f"{RBAC}/namespaces/team-a/roles", lifted)
    document = binding("lifted", "lifted", "adam", kind="Role")
    await api.call("POST", f"{RBAC}/namespaces/team-a/rolebindings", document)
    await settled()
    bindings = f"{RBAC}/namespaces/team-a/rolebindings"
    bound = await api.call("POST", bindings, binding("b", "cluster-admin", "eve"), user=ADAM)
    assert bound.status == 201
    wide = role("wide", rule("*", "*", "*"))
    made = await api.call("POST", f"{RBAC}/namespaces/team-a/roles", wide, user=ADAM)
    assert made.status == 201


async def test_a_label_cannot_smuggle_a_role_into_an_aggregated_one(api: Api) -> None:
    """A label decides what is aggregated, so a change of labels is a grant as well."""
    writer = role("writer", rule("get list update patch create", GROUP, "clusterroles"))
    await api.call("POST", f"{RBAC}/clusterroles", {**writer, "kind": "ClusterRole"})
    await api.call("POST", f"{RBAC}/clusterrolebindings", cluster_binding("w", "writer", "eve"))
    powerful = role("powerful", rule("*", "*", "*"), kind="ClusterRole")
    await api.call("POST", f"{RBAC}/clusterroles", powerful)
    await settled()
    eve = User(name="eve", groups=(AUTHENTICATED,))
    label = {"metadata": {"labels": {"rbac.authorization.k8s.io/aggregate-to-view": "true"}}}
    kind = "application/merge-patch+json"
    refused = await api.call(
        "PATCH", f"{RBAC}/clusterroles/powerful", label, content_type=kind, user=eve
    )
    assert refused.status == 403
    aggregate = {
        **role("all", kind="ClusterRole"),
        "aggregationRule": {"clusterRoleSelectors": [{"matchLabels": {"a": "b"}}]},
    }
    refused = await api.call("POST", f"{RBAC}/clusterroles", aggregate, user=eve)
    assert "must have cluster-admin privileges" in refused.document["message"]


async def test_an_aggregated_role_follows_the_roles_it_selects(api: Api) -> None:
    await bind(api, "view", ALICE)
    things = role("things", rule("list", GROUP, "rolebindings"), kind="ClusterRole")
    things["metadata"]["labels"] = {"rbac.authorization.k8s.io/aggregate-to-view": "true"}
    path = f"{RBAC}/namespaces/team-a/rolebindings"
    assert (await api.call("GET", path, user=ALICE)).status == 403
    await api.call("POST", f"{RBAC}/clusterroles", things)
    await settled()
    assert (await api.call("GET", path, user=ALICE)).status == 200
    await api.call("DELETE", f"{RBAC}/clusterroles/things")
    await settled()
    assert (await api.call("GET", path, user=ALICE)).status == 403


async def test_the_role_of_a_binding_cannot_change(api: Api) -> None:
    await bind(api, "view", ALICE)
    path = f"{RBAC}/namespaces/team-a/rolebindings/alice-view"
    answer = await api.call("PUT", path, binding("alice-view", "edit", "alice"))
    assert answer.status == 422
    assert "cannot change roleRef" in answer.document["message"]


@pytest.mark.parametrize(
    ("path", "document", "field"),
    [
        ("roles", role("x", {"verbs": []}), "rules[0].verbs"),
        ("roles", role("x", {"verbs": ["get"], "resources": ["a"]}), "rules[0].apiGroups"),
        ("roles", role("x", {"verbs": ["get"], "apiGroups": ["a"]}), "rules[0].resources"),
        (
            "roles",
            role("x", {"verbs": ["get"], "nonResourceURLs": ["/a"]}),
            "rules[0].nonResourceURLs",
        ),
        ("rolebindings", binding("x", "", "a"), "roleRef.name"),
        ("rolebindings", binding("x", "a", "a", kind="Other"), "roleRef.kind"),
        ("rolebindings", binding("x", "a", ""), "subjects[0].name"),
        (
            "rolebindings",
            {**binding("x", "a", "a"), "subjects": [{"kind": "ServiceAccount", "name": "a"}]},
            "subjects[0].namespace",
        ),
        (
            "rolebindings",
            {**binding("x", "a", "a"), "subjects": [{"kind": "Robot", "name": "a"}]},
            "subjects[0].kind",
        ),
        ("rolebindings", {**binding("x", "a", "a"), "roleRef": {}}, "roleRef.kind"),
        ("roles", role("a/b"), "metadata.name"),
    ],
)
async def test_a_wrong_role_or_binding_is_refused_by_its_field(
    api: Api, path: str, document: dict[str, Any], field: str
) -> None:
    answer = await api.call("POST", f"{RBAC}/namespaces/team-a/{path}", document)
    assert answer.status == 422, answer.body
    assert field in [cause["field"] for cause in answer.document["details"]["causes"]]


def request(
    path: str,
    *headers: tuple[str, str],
    token: str = "secret",
    method: str = "GET",
) -> Request:
    return Request(
        method=method,
        path=path,
        query={},
        headers={"authorization": f"Bearer {token}"},
        impersonation=headers,
        source="192.0.2.1",
    )


async def test_an_administrator_acts_as_others_and_others_do_not(api: Api) -> None:
    as_alice = request("/api", ("impersonate-user", "alice"), ("impersonate-group", "team-a"))
    caller = await api.service.authenticate(as_alice)
    assert caller is not None
    assert caller.user == User(name="alice", groups=("team-a", AUTHENTICATED))
    assert caller.impersonator == ADMIN
    with pytest.raises(Forbidden, match='cannot impersonate resource "users"'):
        await api.service.authenticate(replace(as_alice, headers={"authorization": "Bearer view"}))
    account = ("impersonate-user", "system:serviceaccount:team-a:ci")
    caller = await api.service.authenticate(request("/api", account))
    assert caller is not None
    assert caller.user.groups == (
        "system:serviceaccounts",
        "system:serviceaccounts:team-a",
        AUTHENTICATED,
    )
    with pytest.raises(LabError, match="without Impersonate-User"):
        await api.service.authenticate(request("/api", ("impersonate-group", "system:masters")))


async def test_the_right_to_impersonate_one_user_gives_no_other_user_and_no_group(
    api: Api,
) -> None:
    alone = {**rule("impersonate", "", "users"), "resourceNames": ["alice"]}
    await api.call("POST", f"{RBAC}/clusterroles", role("imp", alone, kind="ClusterRole"))
    await api.call("POST", f"{RBAC}/clusterrolebindings", cluster_binding("i", "imp", VIEWER.name))
    await settled()
    alice, masters = ("impersonate-user", "alice"), ("impersonate-group", "system:masters")
    extra, uid = ("impersonate-extra-scopes", "x"), ("impersonate-uid", "1")
    caller = await api.service.authenticate(request("/api", alice, token="view"))
    assert caller is not None
    assert caller.user.name == "alice"
    for headers in ((("impersonate-user", "bob"),), (alice, masters), (alice, extra), (alice, uid)):
        with pytest.raises(Forbidden):
            await api.service.authenticate(request("/api", *headers, token="view"))


ACCESS = "/apis/authorization.k8s.io/v1"


async def test_reviews_answer_about_others_for_those_who_may_ask(api: Api) -> None:
    await bind(api, "view", ALICE)
    wanted = {
        "verb": "list",
        "group": "jumpstarter.dev",
        "resource": "leases",
        "namespace": "team-a",
    }
    question = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SubjectAccessReview",
        "spec": {"user": "alice", "resourceAttributes": wanted},
    }
    answer = await api.call("POST", f"{ACCESS}/subjectaccessreviews", question)
    assert answer.document["status"]["allowed"] is True
    assert 'RoleBinding "alice-view/team-a"' in answer.document["status"]["reason"]
    refused = await api.call("POST", f"{ACCESS}/subjectaccessreviews", question, user=ALICE)
    assert refused.status == 403
    local = {**question, "kind": "LocalSubjectAccessReview"}
    path = f"{ACCESS}/namespaces/team-a/localsubjectaccessreviews"
    await bind(api, "admin", ADAM)
    assert (await api.call("POST", path, local, user=ADAM)).document["status"]["allowed"] is True
    elsewhere = f"{ACCESS}/namespaces/default/localsubjectaccessreviews"
    assert (await api.call("POST", elsewhere, local, user=ADAM)).status == 403
    assert (await api.call("POST", elsewhere, local)).status == 400


async def test_a_user_asks_about_itself_in_every_way(api: Api) -> None:
    await bind(api, "view", ALICE)
    rules = {"kind": "SelfSubjectRulesReview", "spec": {"namespace": "team-a"}}
    answer = await api.call("POST", f"{ACCESS}/selfsubjectrulesreviews", rules, user=ALICE)
    status = answer.document["status"]
    assert any("leases" in found["resources"] for found in status["resourceRules"])
    assert not any("secrets" in found["resources"] for found in status["resourceRules"])
    assert any("/api" in found["nonResourceURLs"] for found in status["nonResourceRules"])
    path = "/apis/authentication.k8s.io/v1/selfsubjectreviews"
    who = await api.call("POST", path, {"kind": "SelfSubjectReview"}, user=ALICE)
    assert who.document["status"]["userInfo"]["username"] == "alice"
    both: dict[str, Any] = {"resourceAttributes": {}, "nonResourceAttributes": {}}
    for spec in ({}, both):
        wrong = {"kind": "SelfSubjectAccessReview", "spec": spec}
        assert (await api.call("POST", f"{ACCESS}/selfsubjectaccessreviews", wrong)).status == 422


ACCOUNTS = "/api/v1/namespaces/team-a/serviceaccounts"


async def make_account(api: Api, name: str = "ci") -> None:
    account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": name}}
    assert (await api.call("POST", ACCOUNTS, account)).status == 201


async def token_for(api: Api, **spec: Any) -> str:
    question = {"kind": "TokenRequest", "spec": spec}
    answer = await api.call("POST", f"{ACCOUNTS}/ci/token", question)
    assert answer.status == 201, answer.body
    token: str = answer.document["status"]["token"]
    return token


async def test_a_service_account_token_ends_with_its_time_its_account_and_its_audience(
    api: Api,
) -> None:
    await make_account(api)
    token = await token_for(api)
    caller = await api.service.authenticate(request("/api", token=token))
    assert caller is not None
    assert caller.user.name == "system:serviceaccount:team-a:ci"
    assert "system:serviceaccounts:team-a" in caller.user.groups
    other = await token_for(api, audiences=["vault"])
    with pytest.raises(Unauthorized):
        await api.service.authenticate(request("/api", token=other))
    api.clock.advance(timedelta(hours=1, seconds=1))
    with pytest.raises(Unauthorized):
        await api.service.authenticate(request("/api", token=token))
    fresh = await token_for(api)
    await api.call("DELETE", f"{ACCOUNTS}/ci")
    await make_account(api)
    with pytest.raises(Unauthorized):
        await api.service.authenticate(request("/api", token=fresh))


async def test_a_token_review_tells_whose_token_it_is_and_never_repeats_it(api: Api) -> None:
    await make_account(api)
    token = await token_for(api, audiences=["vault"])
    path = "/apis/authentication.k8s.io/v1/tokenreviews"

    async def review(**spec: Any) -> Any:
        answer = await api.call("POST", path, {"kind": "TokenReview", "spec": spec})
        assert token.encode() not in answer.body
        return answer.document["status"]

    assert (await review(token=token))["authenticated"] is False
    status = await review(token=token, audiences=["vault"])
    assert status["user"]["username"] == "system:serviceaccount:team-a:ci"
    assert (await review(token="x"))["authenticated"] is False


@pytest.mark.parametrize(
    "spec",
    [
        {"expirationSeconds": 10},
        {"expirationSeconds": "x"},
        {"audiences": "vault"},
        {"boundObjectRef": {"kind": "Pod", "name": "x"}},
    ],
)
async def test_a_wrong_token_request_is_refused(api: Api, spec: dict[str, Any]) -> None:
    await make_account(api)
    question = {"kind": "TokenRequest", "spec": spec}
    assert (await api.call("POST", f"{ACCOUNTS}/ci/token", question)).status == 422


async def test_a_token_is_made_only_for_those_who_may(api: Api) -> None:
    await make_account(api)
    await bind(api, "view", ALICE)
    question = {"kind": "TokenRequest", "spec": {}}
    assert (await api.call("POST", f"{ACCOUNTS}/ci/token", question, user=ALICE)).status == 403
    assert (await api.call("GET", f"{ACCOUNTS}/ci/token")).status == 405
    assert (await api.call("POST", f"{ACCOUNTS}/none/token", question)).status == 404


async def test_every_change_and_every_refusal_is_recorded_and_reads_are_not(api: Api) -> None:
    api.recorder.events.clear()
    await api.call("GET", CLIENTS.format("team-a"))
    assert api.recorder.events == []
    await api.call("POST", CLIENTS.format("team-a"), client("c"))
    await api.call("GET", "/api/v1/namespaces/team-a/secrets?watch=1", user=VIEWER)
    made, refused = api.recorder.events
    assert (made.verb, made.user.name, made.code) == ("create", "admin", 201)
    assert made.target is not None
    assert (made.target.resource, made.target.namespace, made.target.name) == (
        "clients",
        "team-a",
        "c",
    )
    assert made.target.uid
    assert made.annotations["authorization.k8s.io/decision"] == "allow"
    assert (refused.verb, refused.user.name, refused.code) == ("watch", VIEWER.name, 403)
    assert refused.reason == "Forbidden"
    assert refused.annotations["authorization.k8s.io/decision"] == "forbid"


async def test_a_refused_caller_is_recorded_with_where_it_came_from(api: Api) -> None:
    api.recorder.events.clear()
    unknown = request("/api/v1/secrets", token="wrong-token")
    with pytest.raises(Unauthorized) as refused:
        await api.service.authenticate(unknown)
    assert (await collect(api.service.refuse(unknown, refused.value))).status == 401
    (event,) = api.recorder.events
    assert (event.user.name, event.source, event.code) == ("system:anonymous", "192.0.2.1", 401)
    assert "wrong-token" not in repr(event)


async def test_no_secret_of_a_body_is_recorded(api: Api) -> None:
    api.recorder.events.clear()
    secret = {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": "s"},
        "data": {"password": "hunter2 is not base64"},
    }
    path = "/api/v1/namespaces/team-a/secrets"
    assert (await api.call("POST", path, secret)).status == 422
    assert (await api.call("POST", f"{path}?access_token=hunter2", {**secret, "data": {}})).status
    await make_account(api)
    token = await token_for(api)
    text = repr(api.recorder.events)
    assert len(api.recorder.events) == 4
    assert "hunter2" not in text
    assert token not in text
