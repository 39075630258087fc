"""Whatever a client sends, the answer is a result or a refusal, and what is stored stays sound."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable
from typing import Any

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from bullpen.api.paths import decode, encode
from bullpen.api.resource import Resource
from bullpen.errors import Rejected
from bullpen.registry import managed_fields
from bullpen.registry.options import FieldValidation, PatchType, WriteOptions
from bullpen.store.journaled import MemoryStore
from support.registry_helpers import (
    LEASE,
    NAMESPACE,
    SECRET,
    SET,
    Lab,
    document,
    exporter_set,
    lease,
    secret,
)

SEEDS: list[tuple[Resource, dict[str, Any]]] = [
    (LEASE, lease("a", metadata={"labels": {"x": "y"}, "finalizers": ["x.io/y"]})),
    (SET, exporter_set("a", minReplicas=1)),
    (SECRET, secret("a", data={"k": "eA=="})),
    (NAMESPACE, document(NAMESPACE, "a")),
]

names = st.sampled_from(
    (
        *("metadata", "name", "labels", "annotations", "finalizers", "ownerReferences", "uid"),
        *("managedFields", "resourceVersion", "spec", "status", "conditions", "type", "data"),
        *("replicas", "selector", "matchLabels", "template", "duration", "minReplicas"),
        *("$patch", "$retainKeys", "f:spec", "x"),
    )
)
scalars = st.none() | st.booleans() | st.integers(-1, 2) | st.sampled_from(["", "a", "x.io/y", "é"])
junk = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=4),
    max_leaves=12,
)

pytestmark = pytest.mark.slow
operations = st.lists(
    st.fixed_dictionaries(
        {
            "op": st.sampled_from(["add", "remove", "replace", "move", "copy", "test"]),
            "path": st.lists(names, max_size=3).map(lambda p: "".join(f"/{n}" for n in p)),
            "value": junk,
            "from": st.sampled_from(["/metadata", "/spec", "/status"]),
        }
    ),
    max_size=3,
)
write_options = st.builds(
    WriteOptions,
    subresource=st.sampled_from(["", "", "status", "scale", "nope"]),
    dry_run=st.booleans(),
    field_manager=st.sampled_from(["", "m", "kubectl"]),
    field_validation=st.sampled_from(FieldValidation),
)
requests = st.tuples(
    st.sampled_from(["update", "create", *PatchType]), junk | operations, write_options
)


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(SEEDS), st.lists(requests, min_size=1, max_size=4))
def test_any_request_ends_in_a_result_or_a_refusal(
    seed: tuple[Resource, dict[str, Any]], steps: list[tuple[str, Any, WriteOptions]]
) -> None:
    asyncio.run(_play(*seed, steps))


async def _play(
    of: Resource, first: dict[str, Any], steps: list[tuple[str, Any, WriteOptions]]
) -> None:
    lab = Lab(MemoryStore())
    await lab.registry.ensure_namespaces(["default"])
    await lab.create(of, first, field_manager="first")
    namespace = "default" if of.namespaced else ""
    for verb, body, options in steps:
        with contextlib.suppress(Rejected):
            await _request(lab, of, namespace, verb, body, options)
            event(f"{verb} was accepted")
    for entry in lab.registry.list(of, None).entries:
        _check(of, entry.value, entry.revision)
        assert lab.registry.document(entry.value) == decode(entry.value), "nobody edited it"
    await lab.store.close()


def _request(
    lab: Lab, of: Resource, namespace: str, verb: str, body: Any, options: WriteOptions
) -> Awaitable[object]:
    identity = {"apiVersion": of.api_version, "kind": of.kind}
    if verb in ("update", "create"):
        whole = {**identity, **body} if isinstance(body, dict) else identity
        if verb == "update":
            return lab.registry.update(of, namespace, "a", whole, options)
        return lab.registry.create(of, namespace, whole, options)
    kind = PatchType(verb)
    if kind is PatchType.APPLY and isinstance(body, dict):
        body = {**identity, **body}
    return lab.registry.patch(of, namespace, "a", kind, body, options)


def _check(of: Resource, value: bytes, revision: int) -> None:
    found = decode(value)
    metadata = found["metadata"]
    assert metadata["resourceVersion"] == str(revision)
    assert (found["apiVersion"], found["kind"]) == (of.api_version, of.kind)
    assert metadata["uid"]
    assert of.validate(found) == ()
    assert encode(found) == value
    claims = managed_fields.read(metadata["managedFields"])
    assert len(claims) == len(metadata["managedFields"])


@pytest.mark.parametrize("kind", [PatchType.MERGE, PatchType.APPLY])
@pytest.mark.parametrize("metadata", [[], "x", 5, {"name": 5}, {"uid": []}, {"uid": "other"}])
async def test_a_scale_with_odd_metadata_is_refused(kind: PatchType, metadata: Any) -> None:
    lab = Lab(MemoryStore())
    await lab.registry.ensure_namespaces(["default"])
    await lab.create(SET, exporter_set("a"))
    scale = {"spec": {"replicas": 1}, "metadata": metadata}
    with pytest.raises(Rejected):
        await lab.patch(SET, "a", kind, scale, subresource="scale", field_manager="m")
    await lab.store.close()
