"""Objects of every kind with one field at an extreme of what its type can hold."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass

from bullpen.api.resource import Resource
from bullpen.api.resources import RESOURCES
from bullpen.sim.schema_extremes import Json, Path, extremes_of, with_value

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
        for path, value in extremes_of(schema, (name,)):
            yield Extreme(resource, path, value, with_value(start, resource.schema, path, value))


def base(resource: Resource) -> dict[str, Json]:
    own = COORDINATION if resource.group == "coordination.k8s.io" else BASES[resource.kind]
    return {"apiVersion": resource.api_version, "kind": resource.kind, **copy.deepcopy(own)}
