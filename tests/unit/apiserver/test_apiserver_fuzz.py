"""Whatever is sent to the API server, it answers: never with an error of its own.

Requests are made from the server's own OpenAPI, some as it says and some not, and from what
people and programs have been seen to send to servers that parse.
"""

from __future__ import annotations

import asyncio
import json
import os
from typing import Any
from urllib.parse import urlencode

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from schemathesis import GenerationMode
from schemathesis.core.result import Ok

from support.api_fuzz import Wire, judge, made_wire

EXAMPLES_MAX = int(os.environ.get("FUZZ_EXAMPLES", "1"))
"""Of each operation in each mode; a search sets more."""

LEASES = "/apis/jumpstarter.dev/v1alpha1/namespaces/default/leases"
LEASE = {
    "apiVersion": "jumpstarter.dev/v1alpha1",
    "kind": "Lease",
    "metadata": {"name": "held", "labels": {"a": "b"}, "finalizers": ["x/y"]},
    "spec": {
        "clientRef": {"name": "alice"},
        "selector": {"matchLabels": {"board": "b"}},
        "duration": "1h",
    },
}
PATCHES = (
    "application/merge-patch+json",
    "application/json-patch+json",
    "application/strategic-merge-patch+json",
    "application/apply-patch+yaml",
)

pytestmark = pytest.mark.slow


def documents() -> list[Any]:
    async def read() -> list[Any]:
        wire = await made_wire()
        listed = json.loads((await wire.send("GET", "/openapi/v3")).body)
        paths = sorted(listed["paths"])
        return [json.loads((await wire.send("GET", f"/openapi/v3/{p}")).body) for p in paths]

    return asyncio.run(read())


def operation(result: Any) -> Any:
    assert isinstance(result, Ok), result
    return result.ok()


OPERATIONS = [
    operation(result)
    for document in documents()
    for result in schemathesis.openapi.from_dict(document).get_all_operations()
]


async def asked(wire: Wire, case: Any) -> None:
    query = urlencode({key: _text(value) for key, value in (case.query or {}).items()})
    body = b"" if isinstance(case.body, schemathesis.core.NotSet) else _bytes(case.body)
    headers = {"content-type": case.media_type or "application/json"}
    target = f"{case.formatted_path}?{query}" if query else case.formatted_path
    judge(await wire.send(case.method, target, body, headers), (case.method, target, body))


def _text(value: object) -> str:
    text = value if isinstance(value, str) else json.dumps(value, default=str)
    return text.encode("utf-8", "replace").decode()


def _bytes(body: object) -> bytes:
    if isinstance(body, bytes):
        return body
    return json.dumps(body, default=str).encode("utf-8", "replace")


@pytest.mark.slow
@pytest.mark.timeout(60)
@pytest.mark.parametrize("mode", list(GenerationMode), ids=lambda mode: str(mode.value))
@pytest.mark.parametrize(
    "operation", OPERATIONS, ids=[f"{op.method} {op.path}" for op in OPERATIONS]
)
def test_what_the_schema_describes_or_forbids_is_answered(
    operation: Any, mode: GenerationMode
) -> None:
    @settings(
        max_examples=EXAMPLES_MAX,
        suppress_health_check=list(HealthCheck),
    )
    @given(st.lists(operation.as_strategy(generation_mode=mode), min_size=1, max_size=2))
    def ask(cases: list[Any]) -> None:
        async def all_of_them() -> None:
            wire = await made_wire()
            for case in cases:
                await asked(wire, case)

        asyncio.run(all_of_them())

    ask()


nasty_text = st.one_of(
    st.text(max_size=30),
    st.sampled_from(
        ("", "\ud800", "\x00", "..", "../..", "a/b", "%2e%2e", "~1", "~0", "-", "/", "0" * 400, "é")
    ),
)
json_values: st.SearchStrategy[Any] = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(),
        st.sampled_from((2**63, -(2**70), 10**400)),
        st.floats(),
        nasty_text,
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4), st.dictionaries(nasty_text, inner, max_size=4)
    ),
    max_leaves=12,
)
field_names = st.sampled_from(
    (
        *("apiVersion", "kind", "metadata", "name", "namespace", "labels", "annotations"),
        *("finalizers", "ownerReferences", "managedFields", "resourceVersion", "uid", "spec"),
        *("status", "clientRef", "selector", "matchLabels", "matchExpressions", "duration"),
        *("conditions", "$patch", "$setElementOrder/conditions", "$deleteFromPrimitiveList/x"),
        *("$retainKeys", "deletionTimestamp", "generation", "fieldsV1", "f:metadata", "k:{}"),
    )
)
patch_bodies = st.recursive(
    json_values,
    lambda inner: st.dictionaries(field_names, inner, max_size=5),
    max_leaves=10,
)
pointers = st.lists(st.one_of(field_names, nasty_text), max_size=4).map(
    lambda parts: "".join(f"/{part}" for part in parts)
)
operations = st.lists(
    st.fixed_dictionaries(
        {
            "op": st.sampled_from(("add", "remove", "replace", "move", "copy", "test", "x")),
            "path": pointers,
        },
        optional={"from": pointers, "value": patch_bodies},
    ),
    max_size=5,
)


def written(value: object) -> bytes:
    """As a careless program writes it: NaN, lone surrogates and all."""
    return json.dumps(value).encode("utf-8", "surrogatepass")


@settings(suppress_health_check=list(HealthCheck), max_examples=50)
@given(
    st.sampled_from(PATCHES), st.one_of(patch_bodies, operations), st.sampled_from(("", "/status"))
)
def test_any_patch_is_applied_or_refused(form: str, body: object, sub: str) -> None:
    async def patch() -> None:
        wire = await made_wire()
        assert (await wire.send("POST", LEASES, written(LEASE))).status == 201
        target = f"{LEASES}/held{sub}?fieldManager=me&force=true"
        heard = await wire.send("PATCH", target, written(body), {"content-type": form})
        judge(heard, (form, body))
        judge(await wire.send("GET", f"{LEASES}/held"), "reading it afterwards")
        judge(await wire.send("GET", LEASES, headers={"accept": TABLE}), "the table afterwards")

    asyncio.run(patch())


TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json"


@settings(suppress_health_check=list(HealthCheck), max_examples=50)
@given(
    st.sampled_from(("POST", "PUT")),
    st.dictionaries(field_names, patch_bodies, max_size=6),
    st.dictionaries(field_names, json_values, max_size=4),
)
def test_any_object_is_taken_or_refused(
    method: str, fields: dict[str, Any], meta: dict[str, Any]
) -> None:
    async def write() -> None:
        wire = await made_wire()
        body = {**LEASE, **fields}
        if isinstance(body.get("metadata"), dict):
            body["metadata"] = {"name": "held", **meta}
        target = LEASES if method == "POST" else f"{LEASES}/held"
        assert (await wire.send("POST", LEASES, written(LEASE))).status == 201
        judge(await wire.send(method, target, written(body)), body)
        judge(await wire.send("GET", LEASES, headers={"accept": TABLE}), "the table afterwards")

    asyncio.run(write())


FORMS = ("application/json", "application/yaml", "application/vnd.kubernetes.protobuf", *PATCHES)


@settings(suppress_health_check=list(HealthCheck), max_examples=50)
@given(st.sampled_from(FORMS), st.one_of(st.binary(max_size=200), nasty_text.map(written)))
def test_bytes_that_are_no_document_are_refused(form: str, body: bytes) -> None:
    async def send() -> None:
        wire = await made_wire()
        headers = {"content-type": form}
        for method, target in (("POST", LEASES), ("PUT", f"{LEASES}/held"), ("DELETE", LEASES)):
            judge(await wire.send(method, target, body, headers), (method, form, body))

    asyncio.run(send())


@settings(suppress_health_check=list(HealthCheck), max_examples=50)
@given(
    st.sampled_from(("GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS", "BREW")),
    st.lists(st.one_of(nasty_text, st.sampled_from(LEASES.split("/"))), max_size=9),
    st.dictionaries(
        st.sampled_from(
            (
                *("limit", "continue", "resourceVersion", "resourceVersionMatch", "watch"),
                *("timeoutSeconds", "labelSelector", "fieldSelector", "dryRun", "fieldManager"),
                *("propagationPolicy", "gracePeriodSeconds", "sendInitialEvents", "pretty"),
            )
        ),
        nasty_text,
        max_size=4,
    ),
    st.dictionaries(
        st.sampled_from(("accept", "content-length", "authorization", "accept-encoding")),
        nasty_text,
        max_size=2,
    ),
)
def test_any_path_query_and_header_is_answered(
    method: str, parts: list[str], query: dict[str, str], headers: dict[str, str]
) -> None:
    async def send() -> None:
        wire = await made_wire()
        fields = urlencode({key: _text(value) for key, value in query.items()})
        for path in ("/" + "/".join(parts), LEASES, f"{LEASES}/held"):
            target = f"{path.replace('?', '')}?{fields}"
            judge(await wire.send(method, target, b"{}", headers), (method, target, headers))

    asyncio.run(send())


@pytest.mark.parametrize("length", ["\xb2", "9" * 5000, "-1", "1e3", ""])
async def test_a_length_that_is_none_is_answered(length: str) -> None:
    wire = await made_wire()
    heard = await wire.send("POST", LEASES, written(LEASE), {"content-length": length})
    judge(heard, length)


def nested(levels: int) -> bytes:
    return b'{"a":' * levels + b"1" + b"}" * levels


BOMB = "\n".join(
    [
        *("apiVersion: jumpstarter.dev/v1alpha1", "kind: Lease", "metadata: {name: bomb}"),
        "a: &a [x, x, x, x, x, x, x, x, x]",
        *(
            f"{b}: &{b} [{', '.join([f'*{a}'] * 9)}]"
            for a, b in zip("abcdefgh", "bcdefghi", strict=True)
        ),
    ]
).encode()


@pytest.mark.parametrize("form", ["application/json", "application/yaml", *PATCHES])
@pytest.mark.parametrize(
    "body",
    [
        pytest.param(nested(50), id="deep"),
        pytest.param(nested(100_000), id="deeper than any stack"),
        pytest.param(b"[" * 1_000_000, id="a million open brackets"),
        pytest.param(BOMB, id="a billion laughs"),
        pytest.param(b"a: &a [*a]", id="a list of itself"),
        pytest.param(b'{"metadata": {"name": "\\ud800"}}', id="half a character"),
        pytest.param(b'{"metadata": {"name": "x", "name": "y"}}', id="one key twice"),
        pytest.param(b'{"spec": {"duration": NaN}}', id="not a number"),
        pytest.param(b"spec: {duration: .nan, a: .inf}", id="not a number in YAML"),
        pytest.param(b'{"spec": ' + b"9" * 100_000 + b"}", id="a number of many digits"),
        pytest.param(b"--- {}\n--- {}\n", id="two documents"),
        pytest.param(b"!!python/object/apply:os.system ['true']", id="a call"),
        pytest.param(b"\xff\xfe" + "{}".encode("utf-16-le"), id="UTF-16"),
        pytest.param(b"? [a]\n: b", id="a key that is no text"),
        pytest.param(b"\x00" * 1000, id="zeros"),
    ],
)
async def test_a_body_made_to_hurt_is_refused(form: str, body: bytes) -> None:
    wire = await made_wire()
    assert (await wire.send("POST", LEASES, written(LEASE))).status == 201
    for method, target in (("POST", LEASES), ("PATCH", f"{LEASES}/held?fieldManager=me")):
        heard = await wire.send(method, target, body, {"content-type": form})
        judge(heard, (method, form, body[:60]))
