"""The API server's answers, request by request."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bullpen.apiserver import watches
from bullpen.apiserver.authentication import TokenTable, authenticate
from bullpen.apiserver.http import Request
from bullpen.core.rbac.authorization import User
from bullpen.errors import Unauthorized
from support.api_client import NOBODY, VIEWER, Api, made_api

CLIENTS = "/apis/jumpstarter.dev/v1alpha1/namespaces/default/clients"
CLIENT: dict[str, Any] = {
    "apiVersion": "jumpstarter.dev/v1alpha1",
    "kind": "Client",
    "metadata": {"name": "alice", "labels": {"team": "a"}},
}
TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json"
META = "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io"


@pytest.fixture
async def api() -> Api:
    return await made_api()


async def test_an_object_is_created_read_listed_and_deleted(api: Api) -> None:
    assert (await api.call("POST", CLIENTS, CLIENT)).status == 201
    one = await api.call("GET", f"{CLIENTS}/alice")
    assert one.document["metadata"]["name"] == "alice"
    many = (await api.call("GET", CLIENTS)).document
    assert (many["kind"], len(many["items"])) == ("ClientList", 1)
    gone = (await api.call("DELETE", f"{CLIENTS}/alice")).document
    assert (gone["kind"], gone["status"]) == ("Status", "Success")
    missing = await api.call("GET", f"{CLIENTS}/alice")
    assert (missing.status, missing.document["reason"]) == (404, "NotFound")


async def test_a_table_has_the_columns_and_the_metadata_of_each_row(api: Api) -> None:
    await api.call("POST", CLIENTS, CLIENT)
    table = (await api.call("GET", CLIENTS, accept=TABLE)).document
    assert table["kind"] == "Table"
    assert [c["name"] for c in table["columnDefinitions"]] == ["Name", "Token Expires", "Age"]
    assert table["rows"][0]["object"]["kind"] == "PartialObjectMetadata"
    whole = (await api.call("GET", f"{CLIENTS}?includeObject=Object", accept=TABLE)).document
    assert whole["rows"][0]["object"]["kind"] == "Client"
    partial = (await api.call("GET", CLIENTS, accept=META)).document
    assert partial["kind"] == "PartialObjectMetadataList"
    assert "spec" not in partial["items"][0]


async def test_a_form_nobody_here_speaks_is_not_acceptable(api: Api) -> None:
    await api.call("POST", CLIENTS, CLIENT)
    answer = await api.call("GET", CLIENTS, accept="application/vnd.kubernetes.protobuf")
    assert (answer.status, answer.document["reason"]) == (406, "NotAcceptable")


@pytest.mark.parametrize(
    ("method", "target", "code"),
    [
        ("GET", "/nothing", 404),
        ("GET", "/apis/jumpstarter.dev/v1alpha1/nothings", 404),
        ("GET", "/apis/nowhere.dev/v1/things", 404),
        ("GET", f"{CLIENTS}/../x", 400),
        ("GET", f"{CLIENTS}/%2e%2e", 400),
        ("GET", f"{CLIENTS}/a%2Fb", 400),
        ("GET", f"{CLIENTS}/alice/scale", 404),
        ("POST", f"{CLIENTS}/alice", 405),
        ("PUT", CLIENTS, 405),
        ("DELETE", "/apis/jumpstarter.dev/v1alpha1/clients", 405),
        ("POST", "/version", 405),
        ("GET", f"{CLIENTS}?limit=-1", 400),
        ("GET", f"{CLIENTS}?limit=1e9", 400),
        ("GET", f"{CLIENTS}?watch=perhaps", 400),
        ("GET", f"{CLIENTS}?labelSelector=a+in", 400),
        ("GET", f"{CLIENTS}?fieldSelector=what", 400),
        ("GET", f"{CLIENTS}?fieldSelector=nosuch.field%3Dx", 400),
        ("GET", f"{CLIENTS}?continue=rubbish", 400),
        ("GET", f"{CLIENTS}?includeObject=Half", 400),
        ("GET", f"{CLIENTS}?timeout=soon", 400),
        ("GET", f"{CLIENTS}?watch=true&resourceVersion=99999", 410),
        ("GET", f"{CLIENTS}?watch=true&sendInitialEvents=true", 400),
        ("DELETE", f"{CLIENTS}/alice?propagationPolicy=Never", 400),
        ("DELETE", f"{CLIENTS}/alice?dryRun=Some", 400),
        ("GET", "/" + "a/" * 50, 404),
    ],
)
async def test_what_makes_no_sense_is_refused_with_a_status(
    api: Api, method: str, target: str, code: int
) -> None:
    answer = await api.call(method, target)
    assert answer.status == code, answer.body
    assert answer.document["kind"] == "Status"
    assert answer.document["code"] == code
    assert answer.document["message"]


@pytest.mark.parametrize(
    ("body", "content_type", "code"),
    [
        (b"", "application/json", 400),
        (b"{", "application/json", 400),
        (b"[]", "application/json", 400),
        (b"\xff\xfe", "application/json", 400),
        (b"[" * 100_000, "application/json", 400),
        (b"a: &x [1]\nb: *x\n", "application/yaml", 400),
        (b"a: !!python/object/apply:os.system [ls]\n", "application/yaml", 400),
        (b"<x/>", "application/xml", 415),
        (b"k8s\x00\xff\xff", "application/vnd.kubernetes.protobuf", 400),
        (b"nope", "application/vnd.kubernetes.protobuf", 400),
        (b'{"kind":"Exporter","apiVersion":"jumpstarter.dev/v1alpha1"}', "application/json", 400),
        (b'{"metadata":{"name":"x"}}', "application/json", 400),
    ],
)
async def test_garbage_in_any_form_is_refused(
    api: Api, body: bytes, content_type: str, code: int
) -> None:
    answer = await api.call("POST", CLIENTS, body, content_type=content_type)
    assert answer.status == code, answer.body


async def test_a_watch_begins_with_the_state_and_goes_on_with_changes(api: Api) -> None:
    await api.call("POST", CLIENTS, CLIENT)

    async def change() -> None:
        await asyncio.sleep(0.05)
        await api.call("DELETE", f"{CLIENTS}/alice")

    async with asyncio.TaskGroup() as tasks:
        watching = tasks.create_task(api.call("GET", f"{CLIENTS}?watch=true&timeoutSeconds=1"))
        tasks.create_task(change())
    lines = watching.result().body.splitlines()
    assert [b'"ADDED"' in line or b'"DELETED"' in line for line in lines] == [True, True]


async def test_initial_events_end_with_a_marked_bookmark(api: Api) -> None:
    await api.call("POST", CLIENTS, CLIENT)
    query = "watch=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&timeoutSeconds=1"
    lines = (await api.call("GET", f"{CLIENTS}?{query}&allowWatchBookmarks=true")).body.splitlines()
    assert b'"ADDED"' in lines[0]
    assert b'"BOOKMARK"' in lines[1]
    assert b'"k8s.io/initial-events-end":"true"' in lines[1]


async def test_a_watch_is_bookmarked_from_time_to_time_and_ends_in_time(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watches, "BOOKMARK_SECONDS", 0.3)
    await api.call("POST", CLIENTS, CLIENT)
    query = "watch=true&timeoutSeconds=1&allowWatchBookmarks=true"
    lines = (await api.call("GET", f"{CLIENTS}?{query}")).body.splitlines()
    assert b'"ADDED"' in lines[0]
    assert 2 <= len(lines[1:]) <= 4
    assert all(b'"BOOKMARK"' in line for line in lines[1:])


async def test_discovery_speaks_both_dialects(api: Api) -> None:
    accept = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
    new = await api.call("GET", "/apis", accept=accept)
    assert new.content_type == accept
    groups = {item["metadata"]["name"] for item in new.document["items"]}
    old = (await api.call("GET", "/apis")).document
    assert {group["name"] for group in old["groups"]} == groups
    for group in groups:
        assert (await api.call("GET", f"/apis/{group}")).status == 200
        assert (await api.call("GET", f"/apis/{group}/v1beta9")).status == 404
    assert (await api.call("GET", "/api")).document["versions"] == ["v1"]


async def test_openapi_has_for_every_kind_what_kubectl_looks_for(api: Api) -> None:
    index = (await api.call("GET", "/openapi/v3")).document["paths"]
    for path, entry in index.items():
        document = (await api.call("GET", entry["serverRelativeURL"])).document
        assert path in entry["serverRelativeURL"]
        patches = [item["patch"] for item in document["paths"].values() if "patch" in item]
        for patch in patches:
            assert patch["x-kubernetes-group-version-kind"]["kind"]
            assert "fieldValidation" in {p["name"] for p in patch["parameters"]}
    assert "api/v1" in index
    assert (await api.call("GET", "/openapi/v3/apis/none/v1")).status == 404


async def test_readers_read_and_strangers_do_nothing(api: Api) -> None:
    assert (await api.call("GET", CLIENTS, user=VIEWER)).status == 200
    assert (await api.call("POST", CLIENTS, CLIENT, user=VIEWER)).status == 403
    secrets = "/api/v1/namespaces/default/secrets"
    assert (await api.call("GET", secrets, user=VIEWER)).status == 403
    for path in (CLIENTS, "/api", "/metrics", "/openapi/v3"):
        assert (await api.call("GET", path, user=NOBODY)).status == 403


SECRETS = "/api/v1/namespaces/default/secrets"


@pytest.mark.parametrize(
    "target",
    [
        f"{SECRETS}?watch=1",
        f"{SECRETS}?watch=true&resourceVersion=0",
        f"{SECRETS}?watch=1&fieldSelector=metadata.name%3Dalice-client",
        f"{SECRETS}/alice-client?watch=1",
        f"{SECRETS}/alice-client",
        "/api/v1/secrets?watch=1",
        "/api/v1/secrets?watch=1&sendInitialEvents=true&resourceVersionMatch=NotOlderThan",
        "/apis//v1/secrets?watch=1",
        "/api/v1/%73ecrets?watch=1",
    ],
)
@pytest.mark.parametrize("accept", ["", TABLE, META])
async def test_a_viewer_neither_reads_nor_watches_secrets(
    api: Api, target: str, accept: str
) -> None:
    # A watch that is answered after all would otherwise not end for half an hour.
    async with asyncio.timeout(10):
        answer = await api.call("GET", target, accept=accept, user=VIEWER)
    assert answer.status == 403, answer.body


@pytest.mark.parametrize(
    "path", ["/api/v1/watch/secrets", "/api/v1/watch/namespaces/default/secrets"]
)
async def test_the_deprecated_watch_paths_are_not_served(api: Api, path: str) -> None:
    assert (await api.call("GET", path, user=VIEWER)).status == 404


async def test_a_closing_server_says_so(api: Api) -> None:
    api.service.close()
    answer = await api.call("GET", CLIENTS)
    assert (answer.status, answer.headers["retry-after"]) == (503, "1")


@pytest.mark.parametrize("header", ["", "secret", "Basic secret", "Bearer", "Bearer ", "Bearer x"])
async def test_only_a_known_bearer_token_is_somebody(header: str) -> None:
    table = TokenTable({"secret": VIEWER})

    async def user_with(header: str) -> User:
        request = Request(method="GET", path="/", query={}, headers={"authorization": header})
        return await authenticate(request, (table,))

    with pytest.raises(Unauthorized):
        await user_with(header)
    assert await user_with("bearer secret") == VIEWER


bodies = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(("metadata", "spec", "name", "labels", "kind", "apiVersion", "x")),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)
targets = st.sampled_from(
    (CLIENTS, f"{CLIENTS}/alice", f"{CLIENTS}/alice/status", "/api/v1/namespaces", "/apis", "/x")
)
types = st.sampled_from(
    (
        "application/json",
        "application/merge-patch+json",
        "application/json-patch+json",
        "application/apply-patch+yaml",
        "application/strategic-merge-patch+json",
    )
)


@pytest.mark.slow
@settings(max_examples=200)
@given(st.sampled_from(("GET", "POST", "PUT", "PATCH", "DELETE")), targets, bodies, types)
def test_no_request_ever_fails_inside(method: str, target: str, body: object, kind: str) -> None:
    async def ask() -> int:
        api = await made_api()
        await api.call("POST", CLIENTS, CLIENT)
        separator = "&" if "?" in target else "?"
        answer = await api.call(
            method, f"{target}{separator}fieldManager=fuzz", body, content_type=kind
        )
        return answer.status

    assert asyncio.run(ask()) != 500
