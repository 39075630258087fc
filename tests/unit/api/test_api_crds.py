"""The CRDs match Jumpstarter's, field by field, and a cluster would accept them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from bullpen.api.columns import Column
from bullpen.api.crds import crd, crds, served_crds
from bullpen.api.paths import Document
from bullpen.api.resource import Resource
from bullpen.api.resources import RESOURCES

CRDS = {definition["spec"]["names"]["kind"]: definition for definition in crds()}


def version_of(kind: str) -> Document:
    (version,) = CRDS[kind]["spec"]["versions"]
    return dict(version)


def schema_of(kind: str) -> Document:
    return dict(version_of(kind)["schema"]["openAPIV3Schema"])


def field(kind: str, path: str) -> Document:
    """The schema of a field; ``[]`` steps into items, ``{}`` into the values of a map."""
    schema = schema_of(kind)
    for step in path.split("."):
        if step == "[]":
            schema = schema["items"]
        elif step == "{}":
            schema = schema["additionalProperties"]
        else:
            schema = schema["properties"][step]
    return schema


# kind, path, type, what else the schema must say
FIELDS: list[tuple[str, str, str, dict[str, Any]]] = [
    ("Client", "spec", "object", {"default": {}}),
    ("Client", "spec.username", "string", {}),
    ("Client", "status.credential", "object", {"x-kubernetes-map-type": "atomic"}),
    ("Client", "status.credential.name", "string", {"default": ""}),
    ("Client", "status.endpoint", "string", {}),
    ("Client", "status.tokenExpiresAt", "string", {"format": "date-time"}),
    ("Client", "status.conditions", "array", {"x-kubernetes-list-map-keys": ["type"]}),
    ("Exporter", "spec", "object", {"default": {}}),
    ("Exporter", "spec.username", "string", {}),
    ("Exporter", "spec.enabled", "boolean", {"default": True}),
    ("Exporter", "status.credential.name", "string", {}),
    ("Exporter", "status.endpoint", "string", {}),
    ("Exporter", "status.devices", "array", {}),
    ("Exporter", "status.devices.[].uuid", "string", {}),
    ("Exporter", "status.devices.[].parent_uuid", "string", {}),
    ("Exporter", "status.devices.[].labels.{}", "string", {}),
    ("Exporter", "status.leaseRef.name", "string", {}),
    ("Exporter", "status.lastSeen", "string", {"format": "date-time"}),
    (
        "Exporter",
        "status.exporterStatus",
        "string",
        {
            "enum": [
                "Unspecified",
                "Offline",
                "Available",
                "BeforeLeaseHook",
                "LeaseReady",
                "AfterLeaseHook",
                "BeforeLeaseHookFailed",
                "AfterLeaseHookFailed",
            ]
        },
    ),
    ("Exporter", "status.statusMessage", "string", {}),
    ("Lease", "spec", "object", {"required": ["clientRef", "selector"]}),
    ("Lease", "spec.clientRef.name", "string", {}),
    ("Lease", "spec.selector", "object", {"default": {}, "x-kubernetes-map-type": "atomic"}),
    ("Lease", "spec.selector.matchLabels.{}", "string", {}),
    ("Lease", "spec.selector.matchExpressions.[]", "object", {"required": ["key", "operator"]}),
    ("Lease", "spec.selector.matchExpressions.[].values.[]", "string", {}),
    ("Lease", "spec.exporterRef.name", "string", {}),
    ("Lease", "spec.allowDisabled", "boolean", {}),
    ("Lease", "spec.duration", "string", {"format": "duration"}),
    ("Lease", "spec.beginTime", "string", {"format": "date-time"}),
    ("Lease", "spec.endTime", "string", {"format": "date-time"}),
    ("Lease", "spec.release", "boolean", {}),
    ("Lease", "spec.tags", "object", {"maxProperties": 10}),
    ("Lease", "spec.context", "object", {"maxProperties": 8}),
    ("Lease", "status", "object", {"required": ["ended"], "default": {"ended": False}}),
    ("Lease", "status.ended", "boolean", {"default": False}),
    ("Lease", "status.beginTime", "string", {"format": "date-time"}),
    ("Lease", "status.endTime", "string", {"format": "date-time"}),
    ("Lease", "status.exporterRef.name", "string", {}),
    ("Lease", "status.priority", "integer", {}),
    ("Lease", "status.spotAccess", "boolean", {}),
    ("Lease", "status.conditions", "array", {"default": []}),
    ("Lease", "status.conditions.[].type", "string", {"maxLength": 316}),
    ("Lease", "status.conditions.[].status", "string", {"enum": ["True", "False", "Unknown"]}),
    ("Lease", "status.conditions.[].observedGeneration", "integer", {"minimum": 0, "default": 0}),
    ("Lease", "status.conditions.[].lastTransitionTime", "string", {"format": "date-time"}),
    (
        "Lease",
        "status.conditions.[].reason",
        "string",
        {
            "minLength": 1,
            "maxLength": 1024,
            "pattern": "^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$",
        },
    ),
    ("Lease", "status.conditions.[].message", "string", {"maxLength": 32768}),
    ("ExporterAccessPolicy", "spec.exporterSelector.matchLabels", "object", {}),
    ("ExporterAccessPolicy", "spec.policies.[].description", "string", {}),
    ("ExporterAccessPolicy", "spec.policies.[].priority", "integer", {}),
    ("ExporterAccessPolicy", "spec.policies.[].from.[].clientSelector", "object", {}),
    ("ExporterAccessPolicy", "spec.policies.[].maximumDuration", "string", {"format": "duration"}),
    ("ExporterAccessPolicy", "spec.policies.[].spotAccess", "boolean", {}),
    ("ExporterAccessPolicy", "status", "object", {}),
    ("VirtualTargetClass", "spec", "object", {"required": ["provisioner"]}),
    ("VirtualTargetClass", "spec.provisioner", "string", {"minLength": 1}),
    ("VirtualTargetClass", "spec.credentialsSecretRef.name", "string", {}),
    (
        "VirtualTargetClass",
        "spec.parameters",
        "object",
        {"x-kubernetes-preserve-unknown-fields": True},
    ),
    (
        "VirtualTargetClass",
        "spec.bindingMode",
        "string",
        {"enum": ["Immediate", "WaitForFirstConsumer"], "default": "Immediate"},
    ),
    (
        "VirtualTargetClass",
        "spec.reclaimPolicy",
        "string",
        {"enum": ["Delete", "Retain"], "default": "Delete"},
    ),
    ("VirtualTargetClass", "spec.scheduling.nodeSelector.{}", "string", {}),
    ("VirtualTargetClass", "spec.scheduling.tolerations.[].tolerationSeconds", "integer", {}),
    ("VirtualTargetClass", "spec.caBundleConfigMapRef", "object", {"required": ["name"]}),
    ("VirtualTargetClass", "spec.caBundleConfigMapRef.key", "string", {"default": "ca-bundle.crt"}),
    ("VirtualTargetClass", "spec.images.exporter.image", "string", {}),
    (
        "VirtualTargetClass",
        "spec.images.runtime.imagePullPolicy",
        "string",
        {"enum": ["Always", "Never", "IfNotPresent"]},
    ),
    (
        "ExporterSet",
        "spec",
        "object",
        {"required": ["virtualTargetClassName", "selector", "template"]},
    ),
    ("ExporterSet", "spec.minReplicas", "integer", {"minimum": 0, "default": 0, "format": "int32"}),
    ("ExporterSet", "spec.maxReplicas", "integer", {"minimum": 0, "default": 4, "format": "int32"}),
    ("ExporterSet", "spec.minAvailableReplicas", "integer", {"minimum": 0, "default": 0}),
    ("ExporterSet", "spec.scaleDownCooldown", "string", {"default": "5m", "format": "duration"}),
    (
        "ExporterSet",
        "spec.recycleStrategy",
        "string",
        {"enum": ["ExitAndReplace", "InPlaceReuse"], "default": "ExitAndReplace"},
    ),
    ("ExporterSet", "spec.virtualTargetClassName", "string", {"minLength": 1}),
    ("ExporterSet", "spec.parameters", "object", {"x-kubernetes-preserve-unknown-fields": True}),
    ("ExporterSet", "spec.images.runtime.image", "string", {}),
    ("ExporterSet", "spec.selector", "object", {}),
    ("ExporterSet", "spec.template.metadata.labels.{}", "string", {}),
    ("ExporterSet", "spec.template.metadata.annotations.{}", "string", {}),
    ("ExporterSet", "spec.template.spec.drivers", "array", {"x-kubernetes-list-type": "map"}),
    ("ExporterSet", "spec.template.spec.drivers.[]", "object", {"required": ["name"]}),
    ("ExporterSet", "spec.template.spec.drivers.[].type", "string", {"minLength": 1}),
    (
        "ExporterSet",
        "spec.template.spec.drivers.[].ref",
        "string",
        {"pattern": "^[^.]+([.][^.]+)*$"},
    ),
    ("ExporterSet", "spec.template.spec.drivers.[].config", "object", {}),
    ("ExporterSet", "status.selector", "string", {}),
    ("ExporterSet", "status.observedGeneration", "integer", {}),
    ("ExporterSet", "status.conditions", "array", {}),
]


@pytest.mark.parametrize(
    ("kind", "path", "type_", "says"), FIELDS, ids=[f"{row[0]} {row[1]}" for row in FIELDS]
)
def test_a_field_is_what_the_reference_says(
    kind: str, path: str, type_: str, says: dict[str, Any]
) -> None:
    schema = field(kind, path)
    assert schema["type"] == type_
    assert {key: schema.get(key) for key in says} == says


def test_every_count_in_a_pools_status_is_required() -> None:
    counts = {
        *("replicas", "readyReplicas", "availableReplicas", "unavailableReplicas"),
        *("leasedReplicas", "podsPending", "podsRunning", "podsFailed", "podsUnknown"),
        *("exportersActive", "exportersIdle", "exportersDisabled", "exportersOffline"),
    }
    status = field("ExporterSet", "status")
    assert set(status["required"]) == counts
    assert {status["properties"][name]["format"] for name in counts} == {"int32"}


def test_quantities_are_numbers_or_text() -> None:
    for name in ("limits", "requests"):
        schema = field("VirtualTargetClass", f"spec.scheduling.resources.{name}.{{}}")
        assert schema["x-kubernetes-int-or-string"] is True
        assert "type" not in schema


@pytest.mark.parametrize(
    ("kind", "group", "plural"),
    [
        ("Client", "jumpstarter.dev", "clients"),
        ("Exporter", "jumpstarter.dev", "exporters"),
        ("Lease", "jumpstarter.dev", "leases"),
        ("ExporterAccessPolicy", "jumpstarter.dev", "exporteraccesspolicies"),
        ("VirtualTargetClass", "virtualtarget.jumpstarter.dev", "virtualtargetclasses"),
        ("ExporterSet", "virtualtarget.jumpstarter.dev", "exportersets"),
        ("VirtualDisk", "virtualtarget.jumpstarter.dev", "virtualdisks"),
        ("VirtualTarget", "virtualtarget.jumpstarter.dev", "virtualtargets"),
        ("VirtualTargetPool", "virtualtarget.jumpstarter.dev", "virtualtargetpools"),
    ],
)
def test_names_are_the_upstream_ones_without_short_names(
    kind: str, group: str, plural: str
) -> None:
    definition = CRDS[kind]
    assert definition["apiVersion"] == "apiextensions.k8s.io/v1"
    assert definition["metadata"]["name"] == f"{plural}.{group}"
    assert definition["spec"]["group"] == group
    assert definition["spec"]["scope"] == "Namespaced"
    assert definition["spec"]["names"] == {
        "kind": kind,
        "listKind": f"{kind}List",
        "plural": plural,
        "singular": kind.lower(),
    }
    version = version_of(kind)
    assert (version["name"], version["served"], version["storage"]) == ("v1alpha1", True, True)


def test_there_is_one_crd_for_each_custom_kind() -> None:
    assert sorted(CRDS) == sorted(item.kind for item in RESOURCES if item.custom)


@pytest.mark.parametrize(
    ("kind", "columns"),
    [
        ("Client", ["Token Expires .status.tokenExpiresAt string 0"]),
        (
            "Exporter",
            [
                "Enabled .spec.enabled boolean 0",
                "Status .status.exporterStatus string 0",
                "Message .status.statusMessage string 1",
            ],
        ),
        (
            "Lease",
            [
                "Ended .status.ended boolean 0",
                "Client .spec.clientRef.name string 0",
                "Exporter .status.exporterRef.name string 0",
            ],
        ),
        ("ExporterAccessPolicy", []),
        (
            "VirtualTargetClass",
            ["Provisioner .spec.provisioner string 0", "Binding .spec.bindingMode string 0"],
        ),
        (
            "ExporterSet",
            [
                "Replicas .status.replicas integer 0",
                "Ready .status.readyReplicas integer 0",
                "Available .status.availableReplicas integer 0",
                "Unavailable .status.unavailableReplicas integer 0",
                "Leased .status.leasedReplicas integer 0",
                "Class .spec.virtualTargetClassName string 0",
            ],
        ),
    ],
)
def test_columns_are_the_upstream_ones_and_then_the_age(kind: str, columns: list[str]) -> None:
    found = [
        f"{item['name']} {item['jsonPath']} {item['type']} {item.get('priority', 0)}"
        for item in version_of(kind)["additionalPrinterColumns"]
    ]
    assert found == [*columns, "Age .metadata.creationTimestamp date 0"]


@pytest.mark.parametrize("kind", list(CRDS))
def test_subresources(kind: str) -> None:
    expected: dict[str, Any] = {"status": {}} if kind != "DeviceClass" else {}
    counts = {"ExporterSet": ".spec.maxReplicas", "VirtualTargetPool": ".spec.replicas"}
    if kind in counts:
        expected["scale"] = {
            "specReplicasPath": counts[kind],
            "statusReplicasPath": ".status.replicas",
            "labelSelectorPath": ".status.selector",
        }
    assert version_of(kind).get("subresources", {}) == expected


@pytest.mark.parametrize(
    ("kind", "path", "fragments"),
    [
        (
            "Lease",
            "spec",
            ["exporterRef.name", "clientRef.name", "oldSelf.tags", "oldSelf.context", "<= 32"],
        ),
        (
            "ExporterSet",
            "spec",
            [
                "self.minReplicas <=",
                "self.minAvailableReplicas <=",
                "oldSelf.selector",
                "oldSelf.maxReplicas",
            ],
        ),
        (
            "ExporterSet",
            "spec.template.spec.drivers.[]",
            ["self.name", "has(self.type) || has(self.ref)", "!(has", "config"],
        ),
    ],
)
def test_rules_are_where_they_belong(kind: str, path: str, fragments: list[str]) -> None:
    rules = field(kind, path)["x-kubernetes-validations"]
    assert len(rules) == len(fragments)
    for rule, fragment in zip(rules, fragments, strict=True):
        assert fragment in rule["rule"]
        assert rule["message"]


def nodes(schema: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, Mapping[str, Any]]]:
    yield path, schema
    for name, part in schema.get("properties", {}).items():
        yield from nodes(part, f"{path}.{name}")
    for name in ("items", "additionalProperties"):
        if name in schema:
            yield from nodes(schema[name], f"{path}.{name}")


ALLOWED = {
    *("description", "type", "format", "properties", "required", "items", "default", "enum"),
    *("additionalProperties", "minimum", "minLength", "maxLength", "maxProperties", "maxItems"),
    *("maximum", "minItems"),
    *("pattern", "x-kubernetes-list-type", "x-kubernetes-list-map-keys", "x-kubernetes-map-type"),
    *("x-kubernetes-preserve-unknown-fields", "x-kubernetes-int-or-string"),
    "x-kubernetes-validations",
}


@pytest.mark.parametrize("kind", list(CRDS))
def test_the_schema_is_structural(kind: str) -> None:
    for path, schema in nodes(schema_of(kind)):
        assert set(schema) <= ALLOWED, path
        open_ended = schema.get("x-kubernetes-int-or-string") or (
            schema.get("x-kubernetes-preserve-unknown-fields") and "type" not in schema
        )
        assert open_ended or schema["type"] in {"object", "array", "string", "integer", "boolean"}
        assert not ("properties" in schema and "additionalProperties" in schema), path
        assert (schema.get("type") == "array") == ("items" in schema), path
        assert set(schema.get("required", ())) <= set(schema.get("properties", ())), path


@pytest.mark.parametrize("kind", list(CRDS))
def test_a_cluster_is_told_nothing_about_metadata(kind: str) -> None:
    schema = schema_of(kind)
    assert schema["properties"]["metadata"] == {"type": "object"}
    assert schema["properties"]["apiVersion"]["type"] == "string"
    assert schema["properties"]["kind"]["type"] == "string"


@pytest.mark.parametrize("kind", list(CRDS))
def test_keys_of_keyed_lists_are_required_and_scalar(kind: str) -> None:
    for path, schema in nodes(schema_of(kind)):
        for key in schema.get("x-kubernetes-list-map-keys", ()):
            assert key in schema["items"]["required"], path
            assert schema["items"]["properties"][key]["type"] == "string", path


@pytest.mark.parametrize("kind", list(CRDS))
def test_every_field_is_described(kind: str) -> None:
    for path, schema in nodes(schema_of(kind)):
        if not path.endswith((".items", ".additionalProperties", ".metadata")):
            assert schema.get("description"), path


@pytest.mark.parametrize("kind", list(CRDS))
def test_a_rules_field_path_leads_to_a_field(kind: str) -> None:
    for _, schema in nodes(schema_of(kind)):
        for rule in schema.get("x-kubernetes-validations", ()):
            found: Any = schema
            for step in rule.get("fieldPath", "").split(".")[1:]:
                found = found["properties"][step]


def test_the_rule_that_is_not_cel_is_documented() -> None:
    assert "must satisfy the selector" in field("ExporterSet", "spec")["description"]


def test_served_definitions_are_established() -> None:
    for definition in served_crds():
        status = definition["status"]
        conditions = {item["type"]: item["status"] for item in status["conditions"]}
        assert conditions == {"NamesAccepted": "True", "Established": "True"}
        assert status["acceptedNames"] == definition["spec"]["names"]
        assert status["storedVersions"] == ["v1alpha1"]


def test_the_definitions_are_valid_objects_themselves() -> None:
    resource = RESOURCES.of_kind("apiextensions.k8s.io/v1", "CustomResourceDefinition")
    assert resource is not None
    for definition in (*crds(), *served_crds()):
        assert resource.validate(resource.default(definition)) == ()
        assert resource.unknown_fields(definition) == ()


def test_changing_a_definition_does_not_change_the_kind() -> None:
    crds()[0]["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"].clear()
    assert field("Client", "spec")["type"] == "object"
    assert crds()[0] == CRDS["Client"]


def test_a_kind_with_every_extra_is_written_in_full() -> None:
    column = Column(name="A", path=".a", type="integer", format="int32", description="An a.")
    definition = crd(
        Resource(
            group="example.com",
            version="v1",
            kind="Thing",
            plural="things",
            singular="thing",
            namespaced=False,
            short_names=("th",),
            categories=("all",),
            columns=(column,),
            schema={"type": "object", "properties": {}},
        )
    )
    assert definition["spec"]["scope"] == "Cluster"
    assert definition["spec"]["names"]["shortNames"] == ["th"]
    assert definition["spec"]["names"]["categories"] == ["all"]
    (version,) = definition["spec"]["versions"]
    assert version["additionalPrinterColumns"][0] == {
        "name": "A",
        "type": "integer",
        "jsonPath": ".a",
        "format": "int32",
        "description": "An a.",
    }
    assert "subresources" not in version
