"""What is wrong with a document is said in Kubernetes' words, and nothing crashes."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bullpen.api import codec
from bullpen.api.fields import Kind
from bullpen.api.kinds.accesspolicy import ExporterAccessPolicy
from bullpen.api.kinds.client import Client
from bullpen.api.kinds.core import ConfigMap, Event, Namespace, Secret
from bullpen.api.kinds.deviceclaim import DeviceClaim
from bullpen.api.kinds.exporter import Exporter
from bullpen.api.kinds.exporterset import ExporterSet
from bullpen.api.kinds.lease import Lease
from bullpen.api.kinds.virtualtargetclass import VirtualTargetClass
from bullpen.api.limits import CAUSES_MAX, DEPTH_MAX
from bullpen.api.paths import Document
from bullpen.api.resource import Resource
from bullpen.api.resources import RESOURCES
from support.api_documents import (
    EXPORTER_SET,
    LEASE,
    VIRTUAL_TARGET_CLASS,
    json_values,
    matching,
    named,
)

EXAMPLES: dict[type[Kind], Document] = {
    Lease: LEASE,
    ExporterSet: EXPORTER_SET,
    VirtualTargetClass: VIRTUAL_TARGET_CLASS,
    DeviceClaim: named(
        {
            "spec": {
                "clientRef": {"name": "alice"},
                "requests": [{"name": "dut", "exactly": {"deviceClassName": "board"}}],
                "duration": "1h",
            }
        }
    ),
    Client: named({"spec": {}}),
    Exporter: named({"spec": {"enabled": True}}),
    ExporterAccessPolicy: named({"spec": {}}),
    Secret: named({"type": "Opaque", "data": {"token": "YQ=="}}),
    ConfigMap: named({"data": {"a": "b"}}),
    Namespace: named({}),
    Event: named({"involvedObject": {}}),
}


def changed(document: Document, path: str, value: Any) -> Document:
    """A copy with the value at a dotted path replaced; ``...`` removes it."""
    copy = deepcopy(document)
    *steps, last = [int(step) if step.isdigit() else step for step in path.split(".")]
    target: Any = copy
    for step in steps:
        target = target[step] if isinstance(step, int) else target.setdefault(step, {})
    if value is ...:
        del target[last]
    elif isinstance(last, int):
        target.insert(last, value)
    else:
        target[last] = value
    return copy


def problems(kind: type[Kind], document: Document, old: Document | None = None) -> list[str]:
    causes = RESOURCES.of(kind).validate(document, old)
    return [f"{cause.reason} {cause.field}: {cause.message}" for cause in causes]


@pytest.mark.parametrize("kind", list(EXAMPLES), ids=lambda kind: kind.kind)
def test_an_example_is_valid(kind: type[Kind]) -> None:
    assert problems(kind, EXAMPLES[kind]) == []
    assert problems(kind, RESOURCES.of(kind).default(EXAMPLES[kind])) == []
    assert problems(kind, EXAMPLES[kind], EXAMPLES[kind]) == []


LONG = "x" * 1000


@pytest.mark.parametrize(
    ("kind", "path", "value", "expected"),
    [
        pytest.param(
            ExporterSet,
            "spec.minReplicas",
            -1,
            "FieldValueInvalid spec.minReplicas: "
            "Invalid value: -1: should be greater than or equal to 0",
            id="below the minimum",
        ),
        pytest.param(
            ExporterSet,
            "spec.maxReplicas",
            2**31,
            "FieldValueInvalid spec.maxReplicas: "
            "Invalid value: 2147483648: should be less than or equal to 2147483647",
            id="beyond 32 bits",
        ),
        pytest.param(
            ExporterSet,
            "spec.maxReplicas",
            "many",
            "FieldValueTypeInvalid spec.maxReplicas: "
            'Invalid value: "many": must be of type integer',
            id="text for a number",
        ),
        pytest.param(
            ExporterSet,
            "spec.maxReplicas",
            None,
            "FieldValueTypeInvalid spec.maxReplicas: Invalid value: null: must be of type integer",
            id="null for a number",
        ),
        pytest.param(
            ExporterSet,
            "spec.virtualTargetClassName",
            ...,
            "FieldValueRequired spec.virtualTargetClassName: Required value",
            id="a required field is missing",
        ),
        pytest.param(
            ExporterSet,
            "spec.virtualTargetClassName",
            "",
            "FieldValueInvalid spec.virtualTargetClassName: "
            'Invalid value: "": should be at least 1 chars long',
            id="too short",
        ),
        pytest.param(
            ExporterSet,
            "spec.recycleStrategy",
            "Burn",
            "FieldValueNotSupported spec.recycleStrategy: "
            'Unsupported value: "Burn": supported values: "ExitAndReplace", "InPlaceReuse"',
            id="not one of the choices",
        ),
        pytest.param(
            ExporterSet,
            "spec.scaleDownCooldown",
            "soon",
            "FieldValueInvalid spec.scaleDownCooldown: "
            'Invalid value: "soon": must be a duration such as 300ms, 1.5h or 1h30m',
            id="no duration",
        ),
        pytest.param(
            ExporterSet,
            "spec.scaleDownCooldown",
            "99999999h",
            "FieldValueInvalid spec.scaleDownCooldown: "
            'Invalid value: "99999999h": must be a duration such as 300ms, 1.5h or 1h30m',
            id="a duration nobody can hold",
        ),
        pytest.param(
            ExporterSet,
            "spec.scaleDownCooldown",
            "-1s",
            'FieldValueInvalid spec.scaleDownCooldown: Invalid value: "-1s": must not be negative',
            id="a negative cooldown",
        ),
        pytest.param(
            ExporterSet,
            "spec.template.spec.drivers.0.ref",
            "a..b",
            "FieldValueInvalid spec.template.spec.drivers[0].ref: "
            "Invalid value: \"a..b\": should match '^[^.]+([.][^.]+)*$'",
            id="not the pattern",
        ),
        pytest.param(
            ExporterSet,
            "spec.template.spec.drivers.0.ref",
            "a.b",
            "FieldValueInvalid spec.template.spec.drivers[0]: "
            "Invalid value: type and ref exclude each other",
            id="a driver with type and ref",
        ),
        pytest.param(
            ExporterSet,
            "spec.template.spec.drivers.0.type",
            ...,
            "FieldValueInvalid spec.template.spec.drivers[0]: "
            "Invalid value: one of type or ref is required",
            id="a driver with neither",
        ),
        pytest.param(
            ExporterSet,
            "spec.template.spec.drivers.0",
            {"name": "r", "ref": "a", "config": {}},
            "FieldValueInvalid spec.template.spec.drivers[0]: "
            "Invalid value: a ref entry has no config",
            id="a ref with config",
        ),
        pytest.param(
            ExporterSet,
            "spec.template.spec.drivers.0.name",
            "",
            "FieldValueInvalid spec.template.spec.drivers[0]: Invalid value: name is required",
            id="a driver without a name",
        ),
        pytest.param(
            ExporterSet,
            "spec.template.spec.drivers.1",
            {"name": "qemu", "type": "x"},
            'FieldValueDuplicate spec.template.spec.drivers[1]: Duplicate value: {"name": "qemu"}',
            id="two drivers of one name",
        ),
        pytest.param(
            ExporterSet,
            "spec.minReplicas",
            5,
            "FieldValueInvalid spec.minReplicas: "
            "Invalid value: minReplicas must not be above maxReplicas, unless that is 0",
            id="a floor above the ceiling",
        ),
        pytest.param(
            ExporterSet,
            "spec.minAvailableReplicas",
            5,
            "FieldValueInvalid spec.minAvailableReplicas: "
            "Invalid value: minAvailableReplicas must not be above maxReplicas, unless that is 0",
            id="more warm ones than the ceiling",
        ),
        pytest.param(
            ExporterSet,
            "spec.template.metadata.labels",
            {"pool": "other"},
            "FieldValueInvalid spec.template.metadata.labels: "
            'Invalid value: must satisfy spec.selector, which is "pool=rpi4"',
            id="a template its set would not recognise",
        ),
        pytest.param(
            ExporterSet,
            "spec.template",
            {},
            "FieldValueInvalid spec.template.metadata.labels: "
            'Invalid value: must satisfy spec.selector, which is "pool=rpi4"',
            id="a template without labels",
        ),
        pytest.param(
            ExporterSet,
            "spec.selector",
            {"matchExpressions": [{"key": "a", "operator": "Near"}]},
            "FieldValueInvalid spec.selector: Invalid value: "
            "the selector's operator 'Near' is unknown; known are In, NotIn, Exists, DoesNotExist",
            id="an operator that does not exist",
        ),
        pytest.param(
            ExporterAccessPolicy,
            "spec.policies",
            [{"from": [{}, {"clientSelector": {"matchLabels": {"/": "x"}}}]}],
            "FieldValueInvalid spec.policies[0].from[1].clientSelector: Invalid value: "
            "the selector's requirement on '/' is wrong: the part before '/' must not be empty",
            id="a selector deep in a policy",
        ),
        pytest.param(
            ExporterAccessPolicy,
            "spec.exporterSelector",
            {"matchExpressions": [{"key": "a", "operator": "In"}]},
            "FieldValueInvalid spec.exporterSelector: Invalid value: "
            "the selector's requirement on 'a' is wrong: 'in' needs at least one value",
            id="a selector without values",
        ),
        pytest.param(
            ExporterAccessPolicy,
            "spec.policies",
            [{"from": 1}],
            "FieldValueTypeInvalid spec.policies[0].from: Invalid value: 1: must be of type array",
            id="a number for a list",
        ),
        pytest.param(
            ExporterAccessPolicy,
            "spec.policies",
            [{"from": [], "idleTimeout": "1s"}],
            "FieldValueInvalid spec.policies[0].idleTimeout: "
            'Invalid value: "1s": must be at least 10s',
            id="an idle time-out that ends every lease",
        ),
        pytest.param(
            Lease,
            "spec.tags",
            {"idle-timeout": "1s"},
            'FieldValueInvalid spec.tags.idle-timeout: Invalid value: "1s": must be at least 10s',
            id="an idle time-out that ends the lease",
        ),
        pytest.param(
            Lease,
            "spec.clientRef",
            {"name": ""},
            "FieldValueRequired spec.clientRef.name: "
            "Required value: a lease needs the name of its client",
            id="a lease for nobody",
        ),
        pytest.param(
            Lease,
            "spec.selector",
            {},
            "FieldValueInvalid spec: Invalid value: "
            "one of selector or exporterRef.name is required",
            id="a lease of nothing",
        ),
        pytest.param(
            Lease,
            "spec",
            ...,
            "FieldValueRequired spec: Required value",
            id="a lease without a spec",
        ),
        pytest.param(
            Lease,
            "spec.duration",
            "0s",
            'FieldValueInvalid spec.duration: Invalid value: "0s": must be positive',
            id="a lease of no length",
        ),
        pytest.param(
            DeviceClaim,
            "spec.requests",
            [],
            "FieldValueInvalid spec.requests: Invalid value: []: should have at least 1 items",
            id="too few requests",
        ),
        pytest.param(
            Lease,
            "spec.tags",
            {str(number): "" for number in range(11)},
            "FieldValueTooMany spec.tags: Too many: must have at most 10 items",
            id="too many tags",
        ),
        pytest.param(
            Lease,
            "spec.context",
            {"k" * 33: ""},
            "FieldValueInvalid spec.context: "
            "Invalid value: context keys have at most 32 characters, values at most 64",
            id="too long a key of the context",
        ),
        pytest.param(
            Lease,
            "spec.context",
            {"k": "v" * 65},
            "FieldValueInvalid spec.context: "
            "Invalid value: context keys have at most 32 characters, values at most 64",
            id="too long a value of the context",
        ),
        pytest.param(
            Lease,
            "spec.beginTime",
            "tomorrow",
            "FieldValueInvalid spec.beginTime: "
            'Invalid value: "tomorrow": must be a time such as 2026-01-31T12:00:00Z',
            id="no time",
        ),
        pytest.param(
            Lease,
            "spec.beginTime",
            "9999-12-31T23:59:59Z",
            'FieldValueInvalid spec.beginTime: Invalid value: "9999-12-31T23:59:59Z": '
            "must lie between 1970-01-01T00:00:00Z and 2970-01-01T00:00:00Z",
            id="a begin so late that adding a duration overflows",
        ),
        pytest.param(
            Lease,
            "spec.endTime",
            "0001-01-02T00:00:00Z",
            'FieldValueInvalid spec.endTime: Invalid value: "0001-01-02T00:00:00Z": '
            "must lie between 1970-01-01T00:00:00Z and 2970-01-01T00:00:00Z",
            id="an end so early that subtracting a duration overflows",
        ),
        pytest.param(
            Lease,
            "status.conditions.0.message",
            "x" * 32769,
            "FieldValueTooLong status.conditions[0].message: "
            "Too long: may not be more than 32768 chars long",
            id="too long a message",
        ),
        pytest.param(
            Lease,
            "status.conditions.1",
            LEASE["status"]["conditions"][0],
            'FieldValueDuplicate status.conditions[1]: Duplicate value: {"type": "Ready"}',
            id="two conditions of one type",
        ),
        pytest.param(
            Exporter,
            "status.exporterStatus",
            LONG,
            "FieldValueNotSupported status.exporterStatus: Unsupported value: "
            f'"{"x" * 120}…": supported values: "Unspecified", "Offline", "Available", '
            '"BeforeLeaseHook", "LeaseReady", "AfterLeaseHook", "BeforeLeaseHookFailed", '
            '"AfterLeaseHookFailed"',
            id="a long value is not repeated in full",
        ),
        pytest.param(
            VirtualTargetClass,
            "spec.scheduling.resources.limits",
            {"cpu": "many"},
            "FieldValueInvalid spec.scheduling.resources.limits.cpu: "
            'Invalid value: "many": should match '
            r"'^[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([KMGTPE]i|[numkMGTPE]|[eE][+-]?[0-9]+)?$'",
            id="no quantity",
        ),
        pytest.param(
            VirtualTargetClass,
            "spec.scheduling.resources.limits",
            {"cpu": 1.5},
            "FieldValueTypeInvalid spec.scheduling.resources.limits.cpu: "
            "Invalid value: 1.5: must be of type integer or string",
            id="a fractional quantity must be text",
        ),
        pytest.param(
            Secret,
            "data.token",
            "not base64!",
            'FieldValueInvalid data.token: Invalid value: "not base64!": must be base64',
            id="a secret that is not base64",
        ),
        pytest.param(
            Secret,
            "data.token",
            "ö",
            'FieldValueInvalid data.token: Invalid value: "ö": must be base64',
            id="nor even ASCII",
        ),
        pytest.param(
            ConfigMap,
            "data.a/b",
            "c",
            "FieldValueInvalid data.a/b: "
            "Invalid value: \"a/b\": must consist of letters, digits, '-', '_' and '.'",
            id="a key that cannot be a file",
        ),
        pytest.param(
            ConfigMap,
            "data",
            {"a": "x" * 2**19, "b": "x" * 2**19, "c": "x"},
            "FieldValueTooLong data: Too long: must be no more than 1048576 bytes in all",
            id="too much data",
        ),
    ],
)
def test_what_is_wrong_is_said(kind: type[Kind], path: str, value: Any, expected: str) -> None:
    assert problems(kind, changed(EXAMPLES[kind], path, value)) == [expected]


@pytest.mark.parametrize(
    ("kind", "path", "value"),
    [
        pytest.param(ExporterSet, "spec.maxReplicas", 0, id="without a ceiling any floor is fine"),
        pytest.param(ExporterSet, "spec.scaleDownCooldown", "0s", id="no cooldown at all"),
        pytest.param(
            ExporterSet, "spec.parameters", {"a": [-(2**63), 2**63 - 1]}, id="any 64-bit number"
        ),
        pytest.param(Lease, "spec.unknown", {"x": 1}, id="unknown fields are kept"),
        pytest.param(
            VirtualTargetClass,
            "spec.scheduling.resources",
            {"limits": {"cpu": 2, "memory": "512Mi"}, "claims": []},
            id="quantities as numbers and text",
        ),
        pytest.param(Exporter, "status.devices", [{}, {}], id="two devices may look the same"),
        pytest.param(ExporterSet, "spec.parameters", {"a": [None, 1.5]}, id="free-form is free"),
    ],
)
def test_what_is_right_is_accepted(kind: type[Kind], path: str, value: Any) -> None:
    assert problems(kind, changed(EXAMPLES[kind], path, value)) == []


def test_a_lease_by_name_needs_no_selector() -> None:
    pinned = changed(LEASE, "spec.selector", {})
    assert problems(Lease, changed(pinned, "spec.exporterRef", {"name": "rpi4-0"})) == []
    assert len(problems(Lease, changed(pinned, "spec.exporterRef", {"name": ""}))) == 1


@pytest.mark.parametrize("name", ["tags", "context"])
def test_tags_and_context_never_change_once_set(name: str) -> None:
    expected = [f"FieldValueInvalid spec.{name}: Invalid value: {name} {{}} immutable once set"]
    expected = [expected[0].format("are" if name == "tags" else "is")]
    with_it = changed(LEASE, f"spec.{name}", {"a": "1"})
    without = {**LEASE, "spec": {k: v for k, v in LEASE["spec"].items() if k != name}}
    assert problems(Lease, changed(with_it, f"spec.{name}", {"a": "2"}), with_it) == expected
    assert problems(Lease, without, with_it) == expected
    assert problems(Lease, with_it, without) == []
    assert problems(Lease, changed(with_it, "spec.duration", "1h"), with_it) == []


def test_what_did_not_change_is_not_asked_again() -> None:
    """A rule that became stricter must not freeze the objects it would refuse today."""
    old = changed(changed(LEASE, "spec.selector", {}), "spec.duration", "-1s")
    assert len(problems(Lease, old)) == 2
    assert problems(Lease, changed(old, "status.ended", True), old) == []
    assert len(problems(Lease, changed(old, "spec.release", True), old)) == 2


@pytest.mark.parametrize(
    ("path", "value", "expected"),
    [
        pytest.param("name", ..., "FieldValueRequired metadata.name", id="no name"),
        pytest.param("name", "", "FieldValueRequired metadata.name", id="an empty name"),
        pytest.param("name", "Upper", "FieldValueInvalid metadata.name", id="capitals"),
        pytest.param("name", "x" * 254, "FieldValueInvalid metadata.name", id="a long name"),
        pytest.param("name", 7, "FieldValueTypeInvalid metadata.name", id="a number as name"),
        pytest.param("generateName", "A-", "FieldValueInvalid metadata.generateName", id="prefix"),
        pytest.param("namespace", "a.b", "FieldValueInvalid metadata.namespace", id="namespace"),
        pytest.param("labels", {"a b": ""}, "FieldValueInvalid metadata.labels", id="a label key"),
        pytest.param("labels", {"a": "-"}, "FieldValueInvalid metadata.labels", id="a label value"),
        pytest.param("labels", {"a": 1}, "FieldValueTypeInvalid metadata.labels.a", id="a number"),
        pytest.param("annotations", {"/": ""}, "FieldValueInvalid metadata.annotations", id="key"),
        pytest.param(
            "annotations",
            {"a": "ä" * 2**17},
            "FieldValueTooLong metadata.annotations",
            id="too many bytes of annotations",
        ),
        pytest.param("finalizers", ["x"], "FieldValueInvalid metadata.finalizers[0]", id="bare"),
        pytest.param(
            "finalizers", ["a/x", "/"], "FieldValueInvalid metadata.finalizers[1]", id="no name"
        ),
        pytest.param(
            "finalizers",
            ["a/x", "a/x"],
            "FieldValueDuplicate metadata.finalizers[1]",
            id="a finalizer twice",
        ),
        pytest.param(
            "finalizers",
            [f"a/x{number}" for number in range(101)],
            "FieldValueTooMany metadata.finalizers",
            id="too many finalizers",
        ),
        pytest.param(
            "ownerReferences",
            [{"apiVersion": "v1", "kind": "", "name": "a", "uid": "1"}],
            "FieldValueRequired metadata.ownerReferences[0].kind",
            id="an owner of no kind",
        ),
        pytest.param(
            "ownerReferences",
            [{"apiVersion": "v1", "kind": "A", "name": "a"}],
            "FieldValueRequired metadata.ownerReferences[0].uid",
            id="an owner without identity",
        ),
        pytest.param(
            "ownerReferences",
            [
                {"apiVersion": "v1", "kind": "A", "name": "a", "uid": uid, "controller": True}
                for uid in "12"
            ],
            "FieldValueInvalid metadata.ownerReferences",
            id="two controllers",
        ),
        pytest.param(
            "ownerReferences",
            [{"apiVersion": "v1", "kind": "A", "name": "a", "uid": str(n)} for n in range(101)],
            "FieldValueTooMany metadata.ownerReferences",
            id="too many owners",
        ),
    ],
)
@pytest.mark.parametrize("kind", [Client, Lease], ids=lambda kind: kind.kind)
def test_metadata_is_checked_for_every_kind(
    kind: type[Kind], path: str, value: Any, expected: str
) -> None:
    document = changed(
        changed(EXAMPLES[kind], "metadata", {"name": "x"}), f"metadata.{path}", value
    )
    (found,) = problems(kind, document)
    assert found.startswith(f"{expected}:")


@pytest.mark.parametrize(
    "metadata",
    [
        pytest.param({"generateName": "lease-"}, id="a name to be completed"),
        pytest.param({"generateName": "x" * 253}, id="however long: the server cuts it"),
        pytest.param({"name": "x", "finalizers": ["orphan", "a.b/c"]}, id="standard finalizers"),
        pytest.param({"name": "x", "annotations": {"Example.com/A": "any text"}}, id="annotation"),
        pytest.param({"name": "x", "labels": {"a": ""}, "namespace": ""}, id="empties"),
    ],
)
def test_good_metadata_is_accepted(metadata: Document) -> None:
    assert problems(Client, {"metadata": metadata}) == []


def test_an_object_without_metadata_has_no_name() -> None:
    assert [item.split(":")[0] for item in problems(Client, {})] == [
        "FieldValueRequired metadata.name"
    ]


def test_a_namespaces_name_is_a_label() -> None:
    assert problems(Namespace, {"metadata": {"name": "a.b"}})
    assert problems(Namespace, {"metadata": {"name": "a" * 64}})
    assert problems(Namespace, {"metadata": {"name": "a" * 63}}) == []


FROZEN = {**EXAMPLES[Secret], "immutable": True}


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        pytest.param(EXAMPLES[Secret], FROZEN, [], id="freezing"),
        pytest.param(EXAMPLES[Secret], {**EXAMPLES[Secret], "data": {}}, [], id="changing"),
        pytest.param(FROZEN, {**FROZEN, "metadata": {"name": "x", "labels": {}}}, [], id="label"),
        pytest.param(FROZEN, EXAMPLES[Secret], ["immutable"], id="thawing"),
        pytest.param(FROZEN, {**FROZEN, "data": {}}, ["data"], id="changing what is frozen"),
        pytest.param(
            FROZEN, {**FROZEN, "immutable": False, "data": {}}, ["immutable", "data"], id="both"
        ),
        pytest.param(EXAMPLES[Secret], {**EXAMPLES[Secret], "type": "x"}, ["type"], id="retyping"),
    ],
)
def test_what_is_immutable_stays(old: Document, new: Document, expected: list[str]) -> None:
    found = RESOURCES.of(Secret).validate(new, old)
    assert [cause.field for cause in found] == expected
    assert {cause.reason for cause in found} <= {"FieldValueForbidden"}


@pytest.mark.parametrize("path", ["metadata.labels", "metadata.annotations", "metadata", "spec"])
def test_what_a_stranger_sent_is_not_repeated_in_full(path: str) -> None:
    long = {"x" * 100_000: 7} if path == "spec" else {"/" * 100_000: "y" * 100_000}
    for document in (changed(LEASE, path, long), changed(LEASE, f"{path}.name", "Z" * 100_000)):
        for cause in RESOURCES.of(Lease).validate(document):
            assert len(cause.field) + len(cause.message) < 1000
        assert all(len(item) < 1000 for item in RESOURCES.of(Lease).unknown_fields(document))


def test_problems_are_counted_up_to_a_limit() -> None:
    many = changed(LEASE, "status.conditions", [{} for _ in range(CAUSES_MAX)])
    assert len(problems(Lease, many)) == CAUSES_MAX
    labels = changed(LEASE, "metadata.labels", {f"/{n}": "" for n in range(CAUSES_MAX + 5)})
    assert len(problems(Lease, labels)) == CAUSES_MAX


@pytest.mark.parametrize(
    ("value", "hint"),
    [
        pytest.param(float("nan"), "finite", id="not a number"),
        pytest.param(float("-inf"), "finite", id="infinity"),
        pytest.param(2**63, "64 bits", id="a large integer"),
        pytest.param(-(2**63) - 1, "64 bits", id="a small integer"),
        pytest.param(10**5000, "64 bits", id="an enormous integer"),
        pytest.param("\ud800", "Unicode", id="half a character"),
        pytest.param({"\ud800": 1}, "Unicode", id="half a character as a key"),
        pytest.param({1: 2}, "keys must be strings", id="a number as a key"),
        pytest.param((1, 2), "tuple is not JSON", id="what is no JSON"),
    ],
)
def test_what_json_cannot_carry_is_refused_first(value: Any, hint: str) -> None:
    (found,) = problems(Lease, changed(LEASE, "spec.unknown", {"deep": [0, value]}))
    assert found.startswith("FieldValueInvalid spec.unknown.deep[1]")
    assert ": Invalid value: " in found
    assert hint in found


@pytest.mark.parametrize("levels", [DEPTH_MAX + 1, 100_000])
@pytest.mark.parametrize("wrap", [lambda inner: {"x": inner}, lambda inner: [inner]])
def test_what_is_nested_too_deeply_is_refused(levels: int, wrap: Any) -> None:
    value: Any = 0
    for _ in range(levels):
        value = wrap(value)
    (found,) = problems(Lease, changed_shallow(LEASE, value))
    assert "nested deeper" in found
    # Taking such a thing apart recursively would end the process.
    while isinstance(value, dict | list):
        value = value.pop("x") if isinstance(value, dict) else value.pop()


def changed_shallow(document: Document, value: Any) -> Document:
    return {**document, "spec": {**document["spec"], "unknown": value}}


def test_the_deepest_document_allowed_is_accepted() -> None:
    value: Any = 0
    for _ in range(DEPTH_MAX - 2):
        value = [value]
    assert problems(Lease, changed_shallow(LEASE, value)) == []


def test_unknown_fields_are_named_with_their_path() -> None:
    document = changed(LEASE, "spec.new", 1)
    document = changed(document, "status.conditions.0.why", {"deep": 1})
    document = changed(document, "metadata.colour", "red")
    document["more"] = []
    assert RESOURCES.of(Lease).unknown_fields(document) == (
        "metadata.colour",
        "spec.new",
        "status.conditions[0].why",
        "more",
    )


def test_free_form_parts_and_maps_have_no_unknown_fields() -> None:
    document = changed(EXPORTER_SET, "spec.parameters.anything", {"goes": 1})
    document = changed(document, "metadata.labels", {"any": "key"})
    assert RESOURCES.of(ExporterSet).unknown_fields(document) == ()


def test_unknown_fields_are_counted_up_to_a_limit() -> None:
    assert len(RESOURCES.of(Lease).unknown_fields({str(n): 1 for n in range(1000)})) == 100


kinds = pytest.mark.parametrize("resource", list(RESOURCES), ids=lambda item: item.plural)


@kinds
@given(data=st.data())
def test_any_document_gets_an_answer(resource: Resource, data: st.DataObject) -> None:
    fields = st.sampled_from(["apiVersion", "metadata", "spec", "status", "data", "stringData"])
    document = data.draw(st.dictionaries(fields, json_values))
    old = data.draw(st.none() | st.dictionaries(fields, json_values))
    before = repr(document)
    for cause in resource.validate(document, old):
        assert cause.message
        assert cause.reason.startswith("FieldValue")
    resource.unknown_fields(document)
    assert repr(document) == before


@kinds
@given(data=st.data())
def test_a_document_of_the_right_shape_but_one_gets_an_answer(
    resource: Resource, data: st.DataObject
) -> None:
    """One value somewhere is replaced by anything: this reaches what random JSON never does."""
    document = data.draw(matching(resource.schema, wild=False))
    places = list(_places(document))
    holder, key = data.draw(st.sampled_from(places)) if places else (document, "spec")
    holder[key] = data.draw(json_values)
    assert resource.value is not None
    for candidate in (document, resource.default(document)):
        if not resource.validate(candidate):
            codec.decode(resource.value, _typed(resource, candidate))


def _places(value: Any) -> Any:
    items = value.items() if isinstance(value, dict) else enumerate(value)
    for key, item in items:
        yield value, key
        if isinstance(item, dict | list):
            yield from _places(item)


def _typed(resource: Resource, document: Document) -> Document:
    return {**document, "apiVersion": resource.api_version, "kind": resource.kind}
