"""Objects with one field at an extreme of what its type can hold, derived from the schemas.

What is generated need not be valid: admission may refuse it. What admission accepts, the
service must be able to live with.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from bullpen.api.resource import Resource
from bullpen.api.resources import RESOURCES

Json = Any
Path = tuple[str | int, ...]

TIMES = (
    "0001-01-01T00:00:00Z",
    "0001-01-02T00:00:00Z",
    "1969-12-31T23:59:59Z",
    "2969-12-31T23:59:59Z",
    "9999-12-31T23:59:59Z",
    "9999-12-31T23:59:59.999999999Z",
    "9999-12-31T23:59:59-00:01",
)
DURATIONS = ("0s", "1ns", "-1ns", "2562047h47m16.854775807s", "-2562047h47m16s", "876000h")
TEXTS = (
    "",
    " ",
    "a",
    "x" * 63,
    "x" * 254,
    "x" * 30_000,
    "\u0000",
    "\ud7ff\U0001f600",
    "../..",
    "%s{}",
)
QUANTITIES = (0, -1, 2**31, 2**63 - 1, "0", "-1", "1e100", "9223372036854775807Ei", "1n", "x")
NUMBERS = (0, 1, -1, 2**31 - 1, -(2**31), 2**63 - 1, -(2**63))
FREE_FORM: tuple[Json, ...] = (
    {},
    {"": {"": [[], {}, None, 1e308, -0.0, 2**53 + 1, True, "x" * 10_000]}},
    {"a": {"a": {"a": {"a": {"a": {"a": {"a": {"a": {"a": 1}}}}}}}}},
)
METADATA: tuple[dict[str, Json], ...] = (
    {"labels": {"a": "x" * 63, "x" * 63: "", "e.x/y": "1"}},
    {"annotations": {"a": "x" * 100_000}},
    {"finalizers": ["example.com/never"]},
    {"creationTimestamp": "0001-01-01T00:00:00Z", "generation": 2**63 - 1, "uid": "mine"},
    {"deletionTimestamp": "9999-12-31T23:59:59Z", "deletionGracePeriodSeconds": 2**63 - 1},
    {
        "ownerReferences": [
            {
                "apiVersion": "jumpstarter.dev/v1alpha1",
                "kind": "Exporter",
                "name": "missing",
                "uid": "missing",
                "controller": True,
                "blockOwnerDeletion": True,
            }
        ]
    },
)

RULE: dict[str, Json] = {"apiGroups": [""], "resources": ["configmaps"], "verbs": ["get"]}
BINDING: dict[str, Json] = {
    "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "view"},
    "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "odd"}],
}

BASES: dict[str, dict[str, Json]] = {
    "Client": {},
    "Exporter": {"metadata": {"labels": {"board": "odd"}}},
    "Lease": {
        "spec": {
            "clientRef": {"name": "alice"},
            "selector": {"matchLabels": {"board": "odd"}},
            "duration": "1h",
        }
    },
    "ExporterAccessPolicy": {
        "spec": {
            "exporterSelector": {"matchLabels": {"board": "elsewhere"}},
            "policies": [
                {
                    "priority": 1,
                    "maximumDuration": "1h",
                    "from": [{"clientSelector": {"matchLabels": {"team": "odd"}}}],
                }
            ],
        }
    },
    "VirtualTargetClass": {"spec": {"provisioner": "mock.jumpstarter.dev"}},
    "ExporterSet": {
        "spec": {
            "virtualTargetClassName": "mock",
            "minReplicas": 1,
            "maxReplicas": 2,
            "selector": {"matchLabels": {"pool": "odd"}},
            "template": {"metadata": {"labels": {"pool": "odd"}}, "spec": {}},
        }
    },
    "VirtualDisk": {"spec": {"size": "1Mi"}},
    "ProviderConfig": {"spec": {"provisioner": "none.example.com"}},
    "VirtualTarget": {
        "spec": {"virtualTargetClassName": "mock", "disks": [{"virtualDisk": "odd"}]},
    },
    "VirtualTargetPool": {
        "spec": {
            "replicas": 1,
            "scaleDownPolicy": "NewestFirst",
            "template": {
                "metadata": {"labels": {"pool": "odd"}},
                "spec": {"virtualTargetClassName": "mock", "disks": [{"virtualDisk": "root"}]},
            },
            "virtualDiskTemplates": [
                {
                    "name": "root",
                    "spec": {"size": "1Mi"},
                    "reclaim": {"onScaleDown": "Retain", "keep": 1, "ttl": "1h"},
                }
            ],
        }
    },
    "DeviceClass": {"spec": {"selectors": [{"cel": {"expression": "device.board == 'odd'"}}]}},
    "DevicePool": {"spec": {"driver": "odd", "devices": [{"name": "a"}]}},
    "DeviceClaim": {
        "spec": {
            "clientRef": {"name": "alice"},
            "requests": [{"name": "dut", "exactly": {"deviceClassName": "odd"}}],
            "constraints": [{"matchAttribute": "site"}],
            "duration": "1h",
        }
    },
    "Namespace": {},
    "Secret": {"data": {"key": "YQ=="}},
    "ConfigMap": {"data": {"key": "a"}},
    "Event": {"involvedObject": {"kind": "Lease", "name": "x", "namespace": "default"}},
    "ServiceAccount": {},
    "Role": {"rules": [RULE]},
    "ClusterRole": {"rules": [RULE]},
    "RoleBinding": BINDING,
    "ClusterRoleBinding": BINDING,
}
"""A valid object of each kind, to which one extreme is added."""

COORDINATION: dict[str, Json] = {"spec": {"holderIdentity": "x", "leaseDurationSeconds": 10}}


@dataclass(frozen=True)
class Extreme:
    resource: Resource
    path: Path
    value: Json
    document: dict[str, Json]

    @property
    def in_status(self) -> bool:
        return self.path[0] == "status"

    def __str__(self) -> str:
        where = ".".join(map(str, self.path))
        return f"{self.resource.kind} {where}={repr(self.value)[:60]}"


def resources() -> tuple[Resource, ...]:
    """The kinds that people can write."""
    return tuple(resource for resource in RESOURCES if not resource.read_only)


def extremes(resource: Resource) -> Iterator[Extreme]:
    """Documents of a kind, each with one field at an extreme."""
    start = base(resource)
    for index, metadata in enumerate(METADATA):
        document = copy.deepcopy(start)
        document.setdefault("metadata", {}).update(metadata)
        yield Extreme(resource, ("metadata", index), metadata, document)
    skipped = ("apiVersion", "kind", "metadata")
    properties: dict[str, Json] = resource.schema.get("properties", {})  # type: ignore[assignment]
    for name, schema in properties.items():
        if name in skipped:
            continue
        for path, value in _walk(schema, (name,)):
            yield Extreme(resource, path, value, _with(start, resource.schema, path, value))


def base(resource: Resource) -> dict[str, Json]:
    own = COORDINATION if resource.group == "coordination.k8s.io" else BASES[resource.kind]
    return {"apiVersion": resource.api_version, "kind": resource.kind, **copy.deepcopy(own)}


def _walk(schema: Json, path: Path) -> Iterator[tuple[Path, Json]]:
    for value in _values(schema):
        yield path, value
    for name, part in schema.get("properties", {}).items():
        yield from _walk(part, (*path, name))
    if "items" in schema:
        yield from _walk(schema["items"], (*path, 0))
    if isinstance(schema.get("additionalProperties"), dict):
        yield from _walk(schema["additionalProperties"], (*path, "key"))


def _values(schema: Json) -> tuple[Json, ...]:
    if "enum" in schema:
        return tuple(schema["enum"])
    if schema.get("x-kubernetes-int-or-string"):
        return QUANTITIES
    match schema.get("type"), schema.get("format"):
        case "string", "date-time":
            return TIMES
        case "string", "duration":
            return DURATIONS
        case "string", "byte":
            return ("", "AA==", "QUFB" * 10_000)
        case "string", _:
            most = schema.get("maxLength")
            return (*TEXTS, "x" * most) if most else TEXTS
        case "integer", _:
            bounds = [schema[key] for key in ("minimum", "maximum") if key in schema]
            return (*NUMBERS, *bounds)
        case "number", _:
            return (0, -1.5, 1e308)
        case "boolean", _:
            return (True, False)
        case "array", _:
            return ([], [_minimal(schema["items"])] * min(schema.get("maxItems", 3), 100))
        case "object", _:
            free = schema.get("x-kubernetes-preserve-unknown-fields")
            return FREE_FORM if free else ({}, None)
        case _:
            return FREE_FORM


def _minimal(schema: Json) -> Json:
    """The smallest value that a schema is likely to accept."""
    if "enum" in schema:
        return schema["enum"][0]
    if schema.get("x-kubernetes-int-or-string"):
        return 1
    match schema.get("type"), schema.get("format"):
        case "string", "date-time":
            return "2026-01-01T00:00:00Z"
        case "string", "duration":
            return "1h"
        case "string", "byte":
            return "YQ=="
        case "string", _:
            return "a"
        case (("integer" | "number"), _):
            return max(schema.get("minimum", 1), 1)
        case "boolean", _:
            return False
        case "array", _:
            return []
        case _:
            required = schema.get("required", ())
            return {name: _minimal(schema["properties"][name]) for name in required}


def _with(base: dict[str, Json], schema: Json, path: Path, value: Json) -> dict[str, Json]:
    """``base`` with ``value`` at ``path``, and what is missing on the way made minimal."""
    document = copy.deepcopy(base)
    place: Json = document
    for step, following in itertools.pairwise(path):
        schema = _part(schema, step)
        fresh = [] if isinstance(following, int) else _minimal(schema)
        if isinstance(step, int):
            if len(place) <= step:
                place.append(fresh)
            place = place[step]
        else:
            if not isinstance(place.get(step), dict | list):
                place[step] = fresh
            place = place[step]
    last = path[-1]
    if isinstance(last, int) and len(place) <= last:
        place.append(value)
    else:
        place[last] = value
    return document


def _part(schema: Json, step: str | int) -> Json:
    if isinstance(step, int):
        return schema.get("items", {})
    return schema.get("properties", {}).get(step) or schema.get("additionalProperties") or {}
