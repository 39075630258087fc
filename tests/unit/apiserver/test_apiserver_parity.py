"""Requests that Kubernetes' own API server answers in a particular way, and ours too."""

from __future__ import annotations

import base64
from typing import Any

import pytest

from support.api_client import Api, made_api

SECRETS = "/api/v1/namespaces/default/secrets"
CONFIG_MAPS = "/api/v1/namespaces/default/configmaps"
EVENTS = "/api/v1/namespaces/default/events"
LEASES = "/apis/coordination.k8s.io/v1/namespaces/default/leases"
CLIENTS = "/apis/jumpstarter.dev/v1alpha1/namespaces/default/clients"
CLIENT = {"apiVersion": "jumpstarter.dev/v1alpha1", "kind": "Client"}
MERGE = "application/merge-patch+json"
APPLY = "application/apply-patch+yaml"
TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io"


@pytest.fixture
async def api() -> Api:
    return await made_api()


def core(kind: str, name: str = "x", **content: Any) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": kind, "metadata": {"name": name}, **content}


def coded(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


async def test_an_update_of_a_custom_resource_must_name_its_version(api: Api) -> None:
    client = {**CLIENT, "metadata": {"name": "alice"}, "spec": {}}
    assert (await api.call("POST", CLIENTS, client)).status == 201
    for version in ({}, {"resourceVersion": "0"}):
        blind = {**client, "metadata": {"name": "alice", **version}}
        answer = await api.call("PUT", f"{CLIENTS}/alice", blind)
        assert (answer.status, answer.document["message"]) == (
            422,
            'clients.jumpstarter.dev "alice" is invalid: metadata.resourceVersion:'
            " Invalid value: 0x0: must be specified for an update",
        )
    current = (await api.call("GET", f"{CLIENTS}/alice")).document
    assert (await api.call("PUT", f"{CLIENTS}/alice", current)).status == 200


async def test_an_update_of_a_secret_may_leave_its_version_out(api: Api) -> None:
    await api.call("POST", SECRETS, core("Secret"))
    assert (await api.call("PUT", f"{SECRETS}/x", core("Secret"))).status == 200


async def test_an_update_of_a_coordination_lease_must_name_its_version(api: Api) -> None:
    lease = {**core("Lease"), "apiVersion": "coordination.k8s.io/v1", "spec": {}}
    assert (await api.call("POST", LEASES, lease)).status == 201
    assert (await api.call("PUT", f"{LEASES}/x", lease)).status == 422


@pytest.mark.parametrize(
    ("validation", "status", "warned"), [("Strict", 400, 0), ("Warn", 201, 1), ("Ignore", 201, 0)]
)
async def test_duplicate_keys_are_refused_reported_or_ignored(
    api: Api, validation: str, status: int, warned: int
) -> None:
    body = (
        b'{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"x",'
        b'"labels":{"a":"1","a":"2"}},"data":{"k":"v"}}'
    )
    answer = await api.call("POST", f"{CONFIG_MAPS}?fieldValidation={validation}", body)
    assert answer.status == status
    if status == 400:
        assert (
            'strict decoding error: duplicate field "metadata.labels.a"'
            in answer.document["message"]
        )
    warnings = [text for name, text in answer.headers.items() if name == "warning"]
    assert ["duplicate field" in text for text in warnings] == [True] * warned


@pytest.mark.parametrize("validation", ["Warn", "Ignore"])
async def test_an_unknown_field_of_a_built_in_kind_is_not_stored(api: Api, validation: str) -> None:
    odd = core("ConfigMap", data={"k": "v"}, colour="red")
    assert (
        await api.call("POST", f"{CONFIG_MAPS}?fieldValidation={validation}", odd)
    ).status == 201
    changed = {**odd, "spec": {"a": 1}}
    answer = await api.call("PUT", f"{CONFIG_MAPS}/x?fieldValidation={validation}", changed)
    assert answer.document.keys() == {"apiVersion", "kind", "metadata", "data"}


async def test_items_of_a_list_of_a_built_in_kind_do_not_repeat_their_type(api: Api) -> None:
    await api.call("POST", CONFIG_MAPS, core("ConfigMap"))
    await api.call("POST", CLIENTS, {**CLIENT, "metadata": {"name": "alice"}, "spec": {}})
    (item,) = (await api.call("GET", CONFIG_MAPS)).document["items"]
    assert "kind" not in item
    assert "apiVersion" not in item
    assert item["metadata"]["name"] == "x"
    (custom,) = (await api.call("GET", CLIENTS)).document["items"]
    assert (custom["kind"], custom["apiVersion"]) == ("Client", CLIENT["apiVersion"])


@pytest.mark.parametrize("seconds", [0, -5])
async def test_a_coordination_lease_lasts_longer_than_nothing(api: Api, seconds: int) -> None:
    spec = {"leaseDurationSeconds": seconds}
    lease = {**core("Lease"), "apiVersion": "coordination.k8s.io/v1", "spec": spec}
    answer = await api.call("POST", LEASES, lease)
    assert answer.status == 422
    assert "spec.leaseDurationSeconds" in answer.document["message"]


@pytest.mark.parametrize(
    ("kind", "data", "missing"),
    [
        ("kubernetes.io/tls", {"tls.crt": "a"}, "data[tls.key]"),
        ("kubernetes.io/ssh-auth", {}, "data[ssh-privatekey]"),
        ("kubernetes.io/basic-auth", {"user": "a"}, "data[username]"),
        ("kubernetes.io/dockercfg", {}, "data[.dockercfg]"),
        ("kubernetes.io/dockerconfigjson", {".dockerconfigjson": "nonsense"}, "redacted"),
        ("kubernetes.io/service-account-token", {}, "kubernetes.io/service-account.name"),
    ],
)
async def test_a_secret_of_a_known_type_has_its_keys(
    api: Api, kind: str, data: dict[str, str], missing: str
) -> None:
    content = {key: coded(text) for key, text in data.items()}
    answer = await api.call("POST", SECRETS, core("Secret", type=kind, data=content))
    assert answer.status == 422
    assert missing in answer.document["message"]


async def test_secrets_of_known_types_with_their_keys_are_accepted(api: Api) -> None:
    for name, kind, data in (
        ("a", "kubernetes.io/tls", {"tls.crt": "", "tls.key": ""}),
        ("b", "kubernetes.io/dockerconfigjson", {".dockerconfigjson": "{}"}),
        ("c", "kubernetes.io/basic-auth", {"password": ""}),
        ("d", "example.org/own", {}),
    ):
        content = {key: coded(text) for key, text in data.items()}
        answer = await api.call("POST", SECRETS, core("Secret", name, type=kind, data=content))
        assert answer.status == 201, answer.document


async def test_one_key_is_not_in_data_and_in_binary_data(api: Api) -> None:
    both = core("ConfigMap", data={"k": "v"}, binaryData={"k": coded("v")})
    answer = await api.call("POST", CONFIG_MAPS, both)
    assert answer.status == 422
    assert {cause["field"] for cause in answer.document["details"]["causes"]} == {
        "data[k]",
        "binaryData[k]",
    }


async def test_an_event_is_in_the_namespace_of_its_object(api: Api) -> None:
    foreign = core("Event", involvedObject={"kind": "Lease", "namespace": "team-a"})
    answer = await api.call("POST", EVENTS, foreign)
    assert answer.status == 422
    assert "does not match event.namespace" in answer.document["message"]
    own = core("Event", involvedObject={"kind": "Lease", "namespace": "default"})
    assert (await api.call("POST", EVENTS, own)).status == 201
    of_the_cluster = core("Event", "y", involvedObject={"kind": "Namespace"})
    assert (await api.call("POST", EVENTS, of_the_cluster)).status == 201


async def test_apply_without_an_api_version_is_refused(api: Api) -> None:
    for path, name, content in (
        (CONFIG_MAPS, "x", b"kind: ConfigMap\nmetadata: {name: x}\n"),
        (CLIENTS, "alice", b"kind: Client\nmetadata: {name: alice}\n"),
    ):
        target = f"{path}/{name}?fieldManager=me"
        answer = await api.call("PATCH", target, content, content_type=APPLY)
        assert answer.status == 400
        assert "Incorrect version specified in apply patch" in answer.document["message"]


async def test_a_version_from_the_future_has_its_cause(api: Api) -> None:
    answer = await api.call("GET", f"{CONFIG_MAPS}?resourceVersion=999999")
    assert answer.status == 504
    causes = [cause["reason"] for cause in answer.document["details"]["causes"]]
    assert causes == ["ResourceVersionTooLarge"]


async def test_creating_in_a_terminating_namespace_has_its_cause(api: Api) -> None:
    held = core("ConfigMap")
    held["metadata"]["finalizers"] = ["example.org/held"]
    await api.call("POST", "/api/v1/namespaces/team-a/configmaps", held)
    await api.call("DELETE", "/api/v1/namespaces/team-a")
    new = core("ConfigMap", "y")
    answer = await api.call("POST", "/api/v1/namespaces/team-a/configmaps", new)
    assert answer.status == 403
    assert answer.document["details"]["causes"] == [
        {
            "reason": "NamespaceTerminating",
            "message": "namespace team-a is being terminated",
            "field": "metadata.namespace",
        }
    ]


async def test_a_patch_of_the_status_of_a_namespace_changes_its_metadata_too(api: Api) -> None:
    patch = {"metadata": {"labels": {"a": "b"}}, "spec": {"finalizers": []}}
    target = "/api/v1/namespaces/team-a/status"
    answer = await api.call("PATCH", target, patch, content_type=MERGE)
    assert answer.status == 200
    assert answer.document["metadata"]["labels"]["a"] == "b"
    assert answer.document["spec"]["finalizers"] == ["kubernetes"]


async def test_a_patch_of_the_status_of_a_client_leaves_its_metadata_alone(api: Api) -> None:
    await api.call("POST", CLIENTS, {**CLIENT, "metadata": {"name": "alice"}, "spec": {}})
    patch = {"metadata": {"labels": {"a": "b"}}}
    answer = await api.call("PATCH", f"{CLIENTS}/alice/status", patch, content_type=MERGE)
    assert answer.status == 200
    assert "labels" not in answer.document["metadata"]


async def test_a_review_is_not_shown_as_a_table(api: Api) -> None:
    path = "/apis/authentication.k8s.io/v1/selfsubjectreviews"
    review = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}
    assert (await api.call("POST", path, review, accept=TABLE)).status == 406
    assert (await api.call("POST", path, review, accept=f"{TABLE},application/json")).status == 201


async def test_options_of_a_deletion_are_read_as_protobuf_in_every_group(api: Api) -> None:
    lease = {**core("Lease"), "apiVersion": "coordination.k8s.io/v1", "spec": {}}
    await api.call("POST", LEASES, lease)
    group, kind = b"coordination.k8s.io/v1", b"DeleteOptions"
    type_meta = b"\x0a" + bytes([len(group)]) + group + b"\x12" + bytes([len(kind)]) + kind
    policy = b"\x22\x0aBackground"
    body = (
        b"k8s\x00\x0a"
        + bytes([len(type_meta)])
        + type_meta
        + b"\x12"
        + bytes([len(policy)])
        + policy
    )
    protobuf = "application/vnd.kubernetes.protobuf"
    assert (await api.call("DELETE", f"{LEASES}/x", body, content_type=protobuf)).status == 200
