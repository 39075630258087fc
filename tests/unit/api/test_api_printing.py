"""Objects are printed the way kubectl's users know them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bullpen.api.columns import AGE, Column
from bullpen.api.fields import Kind
from bullpen.api.kinds.client import Client
from bullpen.api.kinds.core import ConfigMap, CoordinationLease, Event, Namespace, Secret
from bullpen.api.kinds.crd import CustomResourceDefinition
from bullpen.api.kinds.exporter import Exporter
from bullpen.api.kinds.exporterset import ExporterSet
from bullpen.api.kinds.lease import Lease
from bullpen.api.paths import Document
from bullpen.api.printing import cells, compile_path, human_duration, table_columns
from bullpen.api.resource import Resource
from bullpen.api.resources import RESOURCES
from support.api_documents import LEASE

NOW = datetime(2026, 1, 1, 1, tzinfo=UTC)
CREATED = {"name": "x", "creationTimestamp": "2026-01-01T00:00:00Z"}


def headings(kind: type[Kind], *, wide: bool = False) -> list[str]:
    columns = table_columns(RESOURCES.of(kind))
    return [item["name"].upper() for item in columns if wide or item["priority"] == 0]


@pytest.mark.parametrize(
    ("kind", "narrow", "wide"),
    [
        (Client, "NAME|TOKEN EXPIRES|AGE", ""),
        (Exporter, "NAME|ENABLED|STATUS|AGE", "NAME|ENABLED|STATUS|MESSAGE|AGE"),
        (Lease, "NAME|ENDED|CLIENT|EXPORTER|AGE", ""),
        (ExporterSet, "NAME|REPLICAS|READY|AVAILABLE|UNAVAILABLE|LEASED|CLASS|AGE", ""),
        (Secret, "NAME|TYPE|DATA|AGE", ""),
        (ConfigMap, "NAME|DATA|AGE", ""),
        (Namespace, "NAME|STATUS|AGE", ""),
        (CoordinationLease, "NAME|HOLDER|AGE", ""),
        (CustomResourceDefinition, "NAME|CREATED AT", ""),
        (
            Event,
            "LAST SEEN|TYPE|REASON|OBJECT|MESSAGE",
            "LAST SEEN|TYPE|REASON|OBJECT|SUBOBJECT|SOURCE|MESSAGE|FIRST SEEN|COUNT|NAME",
        ),
    ],
)
def test_headings(kind: type[Kind], narrow: str, wide: str) -> None:
    assert headings(kind) == narrow.split("|")
    assert headings(kind, wide=True) == (wide or narrow).split("|")


@pytest.mark.parametrize(
    ("kind", "document", "expected"),
    [
        pytest.param(Lease, LEASE, ["lease-1", False, "alice", "rpi4-0", "60m"], id="a lease"),
        pytest.param(
            Lease,
            {"metadata": CREATED, "status": {"ended": True}},
            ["x", True, None, None, "60m"],
            id="a custom kind leaves empty what is not there",
        ),
        pytest.param(Exporter, {}, [None] * 5, id="even if nothing is"),
        pytest.param(
            ExporterSet,
            {"metadata": CREATED, "status": {"replicas": 3, "readyReplicas": "no"}},
            ["x", 3, None, None, None, None, None, "60m"],
            id="a number that is no number is left empty",
        ),
        pytest.param(
            Client,
            {"metadata": {**CREATED, "creationTimestamp": "?"}, "status": {"tokenExpiresAt": {}}},
            ["x", "{}", "<invalid>"],
            id="text is anything, a date must be one",
        ),
        pytest.param(
            Secret,
            {"metadata": CREATED, "type": "Opaque", "data": {"a": "", "b": ""}},
            ["x", "Opaque", 2, "60m"],
            id="a secret counts its data",
        ),
        pytest.param(Secret, {}, ["", "", 0, "<unknown>"], id="an empty secret"),
        pytest.param(
            ConfigMap,
            {"metadata": CREATED, "data": {"a": ""}, "binaryData": {"b": ""}},
            ["x", 2, "60m"],
            id="a config map counts both kinds of data",
        ),
        pytest.param(
            Namespace,
            {"metadata": CREATED, "status": {"phase": "Active"}},
            ["x", "Active", "60m"],
            id="a namespace",
        ),
        pytest.param(
            CoordinationLease,
            {"metadata": CREATED, "spec": {"holderIdentity": "me"}},
            ["x", "me", "60m"],
            id="a coordination lease",
        ),
        pytest.param(
            CustomResourceDefinition,
            {"metadata": CREATED},
            ["x", "2026-01-01T00:00:00Z"],
            id="a definition",
        ),
        pytest.param(
            Event,
            {
                "metadata": CREATED,
                "involvedObject": {"kind": "Exporter", "name": "e", "fieldPath": "spec"},
                "type": "Normal",
                "reason": "ExporterOnline",
                "message": " it is back \n",
                "firstTimestamp": "2026-01-01T00:00:00Z",
                "lastTimestamp": "2026-01-01T00:59:55Z",
                "count": 4,
                "source": {"component": "controller", "host": "h1"},
            },
            [
                *("5s", "Normal", "ExporterOnline", "exporter/e", "spec", "controller, h1"),
                *("it is back", "60m", 4, "x"),
            ],
            id="an event",
        ),
        pytest.param(
            Event,
            {
                "metadata": CREATED,
                "involvedObject": {"kind": "Lab"},
                "eventTime": "2026-01-01T00:50:00.000000Z",
                "series": {"count": 7, "lastObservedTime": "2026-01-01T00:59:00.000000Z"},
                "reportingComponent": "bullpen",
            },
            ["60s", "", "", "lab", "", "bullpen", "", "10m", 7, "x"],
            id="an event of the newer kind",
        ),
        pytest.param(
            Event,
            {"metadata": CREATED, "eventTime": "2026-01-01T00:50:00.000000Z"},
            ["10m", "", "", "", "", "", "", "10m", 1, "x"],
            id="an event that happened once",
        ),
        pytest.param(
            Event,
            {},
            ["<unknown>", "", "", "", "", "", "", "<unknown>", 1, ""],
            id="an empty event",
        ),
    ],
)
def test_a_row(kind: type[Kind], document: Document, expected: list[Any]) -> None:
    assert cells(RESOURCES.of(kind), document, NOW) == expected


def test_the_first_column_is_marked_as_the_name() -> None:
    first, *_ = table_columns(RESOURCES.of(Lease))
    assert (first["name"], first["type"], first["format"]) == ("Name", "string", "name")
    assert first["description"]
    for column in table_columns(RESOURCES.of(ExporterSet)):
        assert set(column) == {"name", "type", "format", "description", "priority"}


def test_a_declared_age_is_not_added_again() -> None:
    numbers = Column(name="Share", path=".spec.share", type="number")
    resource = Resource(
        group="g", version="v1", kind="K", plural="ks", singular="k", columns=(AGE, numbers)
    )
    assert [item["name"] for item in table_columns(resource)] == ["Name", "Age", "Share"]
    row = cells(resource, {"metadata": CREATED, "spec": {"share": 0.5}}, NOW)
    assert row == ["x", "60m", 0.5]
    assert cells(resource, {"spec": {"share": True}}, NOW) == [None, None, None]


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (-5, "<invalid>"),
        (-1, "0s"),
        (0, "0s"),
        (5, "5s"),
        (119, "119s"),
        (120, "2m"),
        (200, "3m20s"),
        (599, "9m59s"),
        (600, "10m"),
        (659, "10m"),
        (179 * 60, "179m"),
        (180 * 60, "3h"),
        (200 * 60, "3h20m"),
        (8 * 3600 - 1, "7h59m"),
        (8 * 3600, "8h"),
        (48 * 3600 - 1, "47h"),
        (48 * 3600, "2d"),
        (51 * 3600, "2d3h"),
        (8 * 86400 - 1, "7d23h"),
        (8 * 86400, "8d"),
        (2 * 365 * 86400 - 1, "729d"),
        (2 * 365 * 86400, "2y"),
        (800 * 86400, "2y70d"),
        (8 * 365 * 86400, "8y"),
        (9 * 365 * 86400 - 1, "8y"),
    ],
)
def test_an_age_is_told_the_way_people_tell_it(seconds: int, text: str) -> None:
    assert human_duration(timedelta(seconds=seconds)) == text


DOCUMENT = {
    "metadata": {"annotations": {"example.com/a": "b"}},
    "status": {
        "conditions": [
            {"type": "Registered", "status": "True"},
            {"type": "Online", "status": "False"},
        ],
        "ports": [1, 2],
    },
}


@pytest.mark.parametrize(
    ("path", "found"),
    [
        ('.status.conditions[?(@.type=="Online")].status', "False"),
        (".status.conditions[?(@.type=='Online')].status", "False"),
        ('.status.conditions[?(@.type == "Ready")].status', None),
        (".status.conditions[*].type", "Registered"),
        (".status.conditions[1].type", "Online"),
        (".status.ports[2]", None),
        (".metadata.annotations['example.com/a']", "b"),
        (".status.ports.x", None),
        (".metadata[0]", None),
        (".metadata[*]", None),
        ('.metadata[?(@.a=="b")]', None),
        (".gone.gone", None),
    ],
)
def test_a_path_finds_the_first_value(path: str, found: Any) -> None:
    assert compile_path(path)(DOCUMENT) == found


@pytest.mark.parametrize("path", ["status", ".status[", ".a..b", ".a[?(@.b>1)]"])
def test_a_path_that_cannot_be_read_is_a_bug(path: str) -> None:
    with pytest.raises(ValueError, match="cannot read JSONPath"):
        compile_path(path)


kinds = pytest.mark.parametrize(
    "resource", [item for item in RESOURCES if item.custom], ids=lambda item: item.plural
)
odd: st.SearchStrategy[Any] = st.sampled_from([None, 7, "text", True, [], 0.5, {}])


@kinds
@given(
    document=st.dictionaries(
        st.sampled_from(["metadata", "spec", "status"]),
        st.dictionaries(st.sampled_from(["name", "creationTimestamp", "ended", "enabled"]), odd),
    )
)
def test_a_custom_kind_prints_whatever_is_there(resource: Resource, document: Document) -> None:
    assert len(cells(resource, document, NOW)) == len(table_columns(resource))
