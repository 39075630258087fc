"""Defaults are filled in as Kubernetes' structural defaulting does."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bullpen.api.fields import Kind
from bullpen.api.kinds.accesspolicy import ExporterAccessPolicy
from bullpen.api.kinds.client import Client
from bullpen.api.kinds.core import Event, Namespace, Secret
from bullpen.api.kinds.exporter import Exporter
from bullpen.api.kinds.exporterset import ExporterSet
from bullpen.api.kinds.lease import Lease
from bullpen.api.kinds.virtualtargetclass import VirtualTargetClass
from bullpen.api.limits import DEPTH_MAX
from bullpen.api.paths import Document
from bullpen.api.resource import Resource
from bullpen.api.resources import RESOURCES
from bullpen.api.schema import with_defaults
from support.api_documents import EXPORTER_SET, LEASE, json_values


@pytest.mark.parametrize(
    ("kind", "given_", "expected"),
    [
        pytest.param(Client, {}, {"spec": {}}, id="a client has a spec"),
        pytest.param(Exporter, {}, {"spec": {"enabled": True}}, id="an exporter is enabled"),
        pytest.param(
            Exporter,
            {"spec": {"enabled": False}},
            {"spec": {"enabled": False}},
            id="what is there stays",
        ),
        pytest.param(
            Exporter,
            {"spec": {"enabled": None}},
            {"spec": {"enabled": True}},
            id="null where null is not allowed counts as absent",
        ),
        pytest.param(
            Exporter,
            {"spec": None, "metadata": {"creationTimestamp": None, "labels": {"a": None}}},
            {"spec": {"enabled": True}, "metadata": {"labels": {}}},
            id="nulls are dropped wherever they mean nothing",
        ),
        pytest.param(
            Lease,
            {"spec": {"clientRef": {}}},
            {
                "spec": {"clientRef": {"name": ""}, "selector": {}},
                "status": {"ended": False, "conditions": []},
            },
            id="a lease has the status that jmp admin needs",
        ),
        pytest.param(
            Lease,
            {"status": {"conditions": [{"type": "Ready"}]}},
            {
                "status": {
                    "ended": False,
                    "conditions": [{"type": "Ready", "observedGeneration": 0}],
                }
            },
            id="also a status that is there, and items of lists",
        ),
        pytest.param(
            ExporterSet,
            {"spec": {"minReplicas": 2}},
            {
                "spec": {
                    "minReplicas": 2,
                    "maxReplicas": 4,
                    "minAvailableReplicas": 0,
                    "scaleDownPolicy": "NewestFirst",
                    "scaleDownCooldown": "5m",
                    "recycleStrategy": "ExitAndReplace",
                }
            },
            id="a pool",
        ),
        pytest.param(ExporterSet, {}, {}, id="nothing is filled into what does not exist"),
        pytest.param(
            VirtualTargetClass,
            {"spec": {"caBundleConfigMapRef": {"name": "ca"}}},
            {
                "spec": {
                    "caBundleConfigMapRef": {"name": "ca", "key": "ca-bundle.crt"},
                    "credentialRotation": "Replace",
                    "bindingMode": "Immediate",
                    "reclaimPolicy": "Delete",
                }
            },
            id="a class",
        ),
        pytest.param(
            ExporterAccessPolicy, {"spec": {}}, {"spec": {}}, id="a policy has no defaults"
        ),
        pytest.param(
            Namespace,
            {},
            {"spec": {"finalizers": ["kubernetes"]}, "status": {"phase": "Active"}},
            id="a namespace is active",
        ),
        pytest.param(
            Event,
            {"eventTime": None},
            {"reportingComponent": "", "reportingInstance": ""},
            id="an event",
        ),
        pytest.param(Secret, {}, {"type": "Opaque"}, id="a secret is opaque"),
        pytest.param(
            Secret,
            {"data": {"a": "Kg=="}, "stringData": {"b": "ä", "a": "new"}},
            {"type": "Opaque", "data": {"a": "bmV3", "b": "w6Q="}},
            id="text in a secret moves into its data and wins",
        ),
        pytest.param(Secret, {"stringData": {}}, {"type": "Opaque"}, id="no text leaves no trace"),
        pytest.param(
            Secret,
            {"data": {}, "stringData": {}},
            {"type": "Opaque", "data": {}},
            id="and empty data stays empty",
        ),
        pytest.param(
            Secret,
            {"stringData": {"a": 1}},
            {"type": "Opaque", "stringData": {"a": 1}},
            id="what is no text is left for validation to refuse",
        ),
        pytest.param(
            Secret,
            {"data": [], "stringData": {"a": "b"}},
            {"type": "Opaque", "data": [], "stringData": {"a": "b"}},
            id="as is data that is no map",
        ),
        pytest.param(
            Lease,
            {"spec": 7, "status": [], "other": {"x": None}},
            {"spec": 7, "status": [], "other": {"x": None}},
            id="wrong types and unknown fields are left alone",
        ),
    ],
)
def test_defaults(kind: type[Kind], given_: Document, expected: Document) -> None:
    assert RESOURCES.of(kind).default(given_) == expected


def test_a_complete_document_is_not_changed() -> None:
    assert RESOURCES.of(Lease).default(LEASE) == LEASE


def test_the_result_shares_nothing_with_the_argument() -> None:
    before = deepcopy(EXPORTER_SET)
    filled = RESOURCES.of(ExporterSet).default(EXPORTER_SET)
    filled["spec"]["parameters"]["resources"]["cpu"] = 99
    filled["spec"]["template"]["spec"]["drivers"].append({})
    filled["metadata"]["labels"] = {}
    assert before == EXPORTER_SET


def test_the_result_shares_nothing_with_the_schema() -> None:
    resource = RESOURCES.of(Namespace)
    resource.default({})["spec"]["finalizers"].clear()
    assert resource.default({})["spec"] == {"finalizers": ["kubernetes"]}


def test_what_is_nested_too_deeply_is_passed_over() -> None:
    deep: Document = {}
    level = deep
    for _ in range(10 * DEPTH_MAX):
        level["x"] = level = {}
    assert with_defaults({"properties": {"y": {"default": 1}}}, deep)["y"] == 1


def test_null_stays_where_it_is_allowed() -> None:
    schema = {"properties": {"x": {"type": "string", "nullable": True, "default": "d"}}}
    assert with_defaults(schema, {"x": None}) == {"x": None}
    assert with_defaults(schema, {}) == {"x": "d"}


kinds = pytest.mark.parametrize("resource", list(RESOURCES), ids=lambda item: item.plural)


@kinds
@given(
    document=st.dictionaries(
        st.sampled_from(["metadata", "spec", "status", "data", "stringData", "x"]), json_values
    )
)
def test_any_document_can_be_defaulted_once_and_for_all(
    resource: Resource, document: dict[str, Any]
) -> None:
    before = repr(document)
    filled = resource.default(document)
    assert repr(document) == before
    assert repr(resource.default(filled)) == repr(filled)
