"""Documents for the tests of the api package: examples, and strategies made from schemas."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from hypothesis import strategies as st

from bullpen.api.paths import Document
from bullpen.kit import durations, times

LEASE: Document = {
    "apiVersion": "jumpstarter.dev/v1alpha1",
    "kind": "Lease",
    "metadata": {
        "name": "lease-1",
        "namespace": "default",
        "uid": "3a7c",
        "resourceVersion": "12",
        "generation": 1,
        "creationTimestamp": "2026-01-01T00:00:00Z",
        "labels": {"board": "rpi4"},
        "managedFields": [{"manager": "jmp", "fieldsV1": {"f:spec": {}}}],
        "ownerReferences": [
            {
                "apiVersion": "jumpstarter.dev/v1alpha1",
                "kind": "Exporter",
                "name": "rpi4-0",
                "uid": "77",
                "controller": True,
            }
        ],
    },
    "spec": {
        "clientRef": {"name": "alice"},
        "selector": {"matchLabels": {"board": "rpi4"}},
        "duration": "30m0s",
        "tags": {"build": "7"},
    },
    "status": {
        "ended": False,
        "beginTime": "2026-01-01T00:00:01Z",
        "exporterRef": {"name": "rpi4-0"},
        "conditions": [
            {
                "type": "Ready",
                "status": "True",
                "reason": "Ready",
                "message": "",
                "lastTransitionTime": "2026-01-01T00:00:01Z",
                "observedGeneration": 1,
            }
        ],
    },
}

EXPORTER_SET: Document = {
    "apiVersion": "virtualtarget.jumpstarter.dev/v1alpha1",
    "kind": "ExporterSet",
    "metadata": {"name": "rpi4", "namespace": "default"},
    "spec": {
        "minReplicas": 1,
        "maxReplicas": 4,
        "scaleDownCooldown": "5m",
        "virtualTargetClassName": "qemu",
        "parameters": {"arch": "aarch64", "resources": {"cpu": 2}},
        "selector": {"matchLabels": {"pool": "rpi4"}},
        "template": {
            "metadata": {"labels": {"pool": "rpi4", "board": "rpi4"}},
            "spec": {"drivers": [{"name": "qemu", "type": "jumpstarter_driver_qemu.driver.Qemu"}]},
        },
    },
}

VIRTUAL_TARGET_CLASS: Document = {
    "apiVersion": "virtualtarget.jumpstarter.dev/v1alpha1",
    "kind": "VirtualTargetClass",
    "metadata": {"name": "qemu", "namespace": "default"},
    "spec": {"provisioner": "qemu.jumpstarter.dev"},
}


def named(document: Document) -> Document:
    return {"metadata": {"name": "x"}, **document}


scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=8),
    st.sampled_from(["metadata", "5m", "2026-01-01T00:00:00Z", "\ud800", 10**400]),
)
json_values: st.SearchStrategy[Any] = st.recursive(
    scalars,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=6), inner, max_size=3)
    ),
    max_leaves=12,
)
plain_json: st.SearchStrategy[Any] = st.recursive(
    st.one_of(st.booleans(), st.integers(-(2**63), 2**63 - 1), st.text("ab", max_size=3)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=2), st.dictionaries(st.text("xyz", max_size=3), inner, max_size=2)
    ),
    max_leaves=5,
)

_moments = st.integers(-(10**10), 10**11).map(
    lambda seconds: datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=seconds)
)
_times = st.one_of(
    _moments.map(times.text),
    _moments.map(times.micro_text),
    st.just("2026-01-31T13:00:00.1+01:00"),
)
_durations = st.one_of(
    st.timedeltas(min_value=timedelta(days=-9), max_value=timedelta(days=9)).map(durations.text),
    st.sampled_from(["5m", "0", "1.5h", "300s", "+1s"]),
)


def matching(schema: Mapping[str, Any], *, wild: bool) -> st.SearchStrategy[Any]:
    """Values of the shape ``schema`` describes.

    ``wild`` adds what must survive though no schema asks for it: unknown
    fields, and null for anything optional.
    """
    if schema.get("x-kubernetes-int-or-string"):
        return st.one_of(st.integers(0, 9), st.sampled_from(["1Gi", "100m"]))
    match schema.get("type"):
        case "object":
            return _objects(schema, wild=wild)
        case "array":
            return st.lists(matching(schema["items"], wild=wild), max_size=2)
        case "string":
            return _texts(schema)
        case "integer":
            return st.integers(schema.get("minimum", -5), 2**31 - 1)
        case "boolean":
            return st.booleans()
        case _:
            return plain_json


def _texts(schema: Mapping[str, Any]) -> st.SearchStrategy[str]:
    if "enum" in schema:
        return st.sampled_from(schema["enum"])
    match schema.get("format"):
        case "date-time":
            return _times
        case "duration":
            return _durations
        case "byte":
            return st.just("YQ==")
        case _:
            least = 1 if "pattern" in schema else schema.get("minLength", 0)
            return st.text("ab", min_size=least, max_size=3)


def _objects(schema: Mapping[str, Any], *, wild: bool) -> st.SearchStrategy[Document]:
    if "additionalProperties" in schema:
        inner = matching(schema["additionalProperties"], wild=wild)
        return st.dictionaries(st.text("kl", min_size=1, max_size=2), inner, max_size=2)
    if "properties" not in schema:
        return st.dictionaries(st.text("xyz", max_size=3), plain_json, max_size=2)
    parts = {name: matching(part, wild=wild) for name, part in schema["properties"].items()}
    required = {name: parts[name] for name in schema.get("required", ())}
    optional = {name: part for name, part in parts.items() if name not in required}
    if wild:
        optional = {name: st.none() | part for name, part in optional.items()}
        optional["unknownField"] = plain_json
    return st.fixed_dictionaries(required, optional=optional)
