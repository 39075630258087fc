"""Documents and values turn into each other without loss."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Any, ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bullpen.api import codec
from bullpen.api.fields import Kind, Struct, about, camel_case
from bullpen.api.kinds.exporter import Device, Exporter, ExporterSpec
from bullpen.api.kinds.exporterset import ExporterSet
from bullpen.api.kinds.lease import Lease, LeaseSpec, LeaseStatus
from bullpen.api.meta import Condition, ConditionStatus, LocalObjectReference, ObjectMeta
from bullpen.api.resources import RESOURCES
from bullpen.errors import Invalid
from support.api_documents import EXPORTER_SET, LEASE, json_values, matching


class Colour(StrEnum):
    RED = "Red"
    BLUE = "Blue"


@dataclass(frozen=True, slots=True, kw_only=True)
class Inner(Struct):
    """An inner thing."""

    name: str = field(metadata=about("Its name.", required=True))
    size: int = field(default=0, metadata=about("Its size."))


@dataclass(frozen=True, slots=True, kw_only=True)
class Thing(Kind):
    """A thing with a field of every type."""

    api_version: ClassVar[str] = "example.com/v1"
    kind: ClassVar[str] = "Thing"

    text: str = field(default="", metadata=about("Text."))
    number: int = field(default=7, metadata=about("A number."))
    flag: bool = field(default=False, metadata=about("A flag."))
    moment: datetime | None = field(default=None, metadata=about("A time."))
    precise: datetime | None = field(default=None, metadata=about("A time.", micro=True))
    length: timedelta | None = field(default=None, metadata=about("A duration."))
    lengths: tuple[timedelta, ...] = field(default=(), metadata=about("Durations."))
    by_name: Mapping[str, timedelta] = field(default_factory=dict, metadata=about("Durations."))
    amount: int | str = field(default=0, metadata=about("A number or text."))
    colour: Colour | None = field(default=None, metadata=about("A colour."))
    inner: Inner | None = field(default=None, metadata=about("A struct."))
    always: Inner = field(default=Inner(name=""), metadata=about("A struct with a default."))
    inners: tuple[Inner, ...] = field(default=(), metadata=about("Structs."))
    labels: Mapping[str, str] = field(default_factory=dict, metadata=about("Texts."))
    free: Mapping[str, object] = field(default_factory=dict, metadata=about("Anything."))
    snake: str = field(default="", metadata=about("Oddly named.", name="snake_case"))
    from_: str = field(default="", metadata=about("A keyword."))
    counted: int = field(default=0, metadata=about("Always written.", required=True))


def thing(**fields: Any) -> dict[str, Any]:
    return {"apiVersion": "example.com/v1", "kind": "Thing", "counted": 0, **fields}


def read(**fields: Any) -> Thing:
    return codec.decode(Thing, thing(**fields))


NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("name", "raw", "value"),
    [
        pytest.param("text", "a", "a", id="text"),
        pytest.param("number", 3, 3, id="number"),
        pytest.param("flag", True, True, id="flag"),
        pytest.param("moment", "2026-01-31T12:00:00Z", NOON, id="a time"),
        pytest.param("precise", "2026-01-31T12:00:00.000000Z", NOON, id="a precise time"),
        pytest.param("length", "1m30s", timedelta(seconds=90), id="a duration"),
        pytest.param("lengths", ["1s"], (timedelta(seconds=1),), id="durations"),
        pytest.param("byName", {"a": "1s"}, {"a": timedelta(seconds=1)}, id="durations by name"),
        pytest.param("amount", "1Gi", "1Gi", id="an amount as text"),
        pytest.param("amount", 5, 5, id="an amount as a number"),
        pytest.param("colour", "Red", Colour.RED, id="an enum"),
        pytest.param("inner", {"name": "n", "size": 2}, Inner(name="n", size=2), id="a struct"),
        pytest.param("inners", [{"name": "n"}], (Inner(name="n"),), id="structs"),
        pytest.param("labels", {"a": "b"}, {"a": "b"}, id="texts by name"),
        pytest.param("free", {"a": [1, {"b": None}]}, {"a": [1, {"b": None}]}, id="anything"),
        pytest.param("snake_case", "s", "s", id="a field with its own name"),
        pytest.param("from", "f", "f", id="a keyword"),
    ],
)
def test_each_type_is_read_and_written(name: str, raw: Any, value: Any) -> None:
    document = thing(**{name: raw})
    found = codec.decode(Thing, document)
    attributes = {"byName": "by_name", "snake_case": "snake", "from": "from_"}
    attribute = attributes.get(name, name)
    assert getattr(found, attribute) == value
    assert codec.encode(found) == document
    # A value that was made, not read, is written the same way.
    assert codec.encode(Thing(**{attribute: value})) == document


@pytest.mark.parametrize(
    "fields",
    [
        pytest.param({"text": ""}, id="an empty text"),
        pytest.param({"labels": {}}, id="an empty map"),
        pytest.param({"inners": []}, id="an empty list"),
        pytest.param({"number": 7}, id="a default"),
        pytest.param({"labels": None, "text": None, "inner": None, "moment": None}, id="nulls"),
        pytest.param({"always": None}, id="null for a struct with a default"),
        pytest.param({"inner": {"name": "n", "new": 1}}, id="an unknown field in a struct"),
        pytest.param({"inners": [{"name": "n", "new": {"a": []}}]}, id="and in a list of them"),
        pytest.param({"new": [1]}, id="an unknown field at the top"),
        pytest.param({"always": {"name": ""}}, id="a struct that equals its default"),
        pytest.param({"length": "90s"}, id="a duration Go would write differently"),
        pytest.param({"lengths": ["60s", "1m0s"]}, id="a list of such"),
        pytest.param({"byName": {"a": "60s"}}, id="a map of such"),
        pytest.param({"moment": "2026-01-31T13:00:00.5+01:00"}, id="a time in another zone"),
        pytest.param({"precise": "2026-01-31T12:00:00Z"}, id="a precise time written short"),
    ],
)
def test_what_was_written_comes_back_as_it_was(fields: dict[str, Any]) -> None:
    document = thing(**fields)
    assert codec.encode(codec.decode(Thing, document)) == document


LEASES = matching(RESOURCES.of(Lease).schema, wild=True).map(
    lambda made: {
        **made,
        "apiVersion": Lease.api_version,
        "kind": Lease.kind,
        "spec": made.get("spec") or LEASE["spec"],
    }
)


@given(before=LEASES, after=LEASES)
def test_sections_known_from_another_document_are_taken_over_and_read_the_same(
    before: dict[str, Any], after: dict[str, Any]
) -> None:
    shared = {**after, "spec": before["spec"]}
    known = codec.Known(before, codec.decode(Lease, before))
    found = codec.decode(Lease, shared, known)
    assert found.spec is known.value.spec
    assert found == codec.decode(Lease, shared)
    assert codec.encode(found) == codec.encode(codec.decode(Lease, shared))


def test_a_change_elsewhere_keeps_the_spelling_of_everything_else() -> None:
    document = thing(length="90s", text="", new=1, inner={"name": "n", "new": 2, "size": 0})
    found = codec.decode(Thing, document)
    assert found.inner is not None
    changed = replace(found, flag=True, inner=replace(found.inner, name="m"))
    assert codec.encode(changed) == {
        **document,
        "flag": True,
        "inner": {"name": "m", "new": 2, "size": 0},
    }


def test_a_changed_field_is_written_our_way() -> None:
    found = read(length="90s", moment="2026-01-31T13:00:00+01:00", labels={}, text=None)
    changed = replace(
        found, length=timedelta(minutes=2), moment=NOON, labels={"a": "b"}, text="new"
    )
    assert codec.encode(changed) == thing(
        length="2m0s", moment="2026-01-31T12:00:00Z", labels={"a": "b"}, text="new"
    )


def test_a_field_set_back_to_its_default_is_left_out() -> None:
    found = read(text="a", number=3, inner={"name": "n"}, length="90s")
    changed = replace(found, text="", number=7, inner=None, length=None)
    assert codec.encode(changed) == thing()


def test_a_struct_made_on_purpose_is_written_though_it_says_nothing_new() -> None:
    assert codec.encode(Thing(always=Inner(name=""))) == thing(always={"name": ""})
    assert codec.encode(Thing()) == thing()


def test_a_required_field_is_written_even_if_it_was_absent() -> None:
    absent = {"apiVersion": "example.com/v1", "kind": "Thing"}
    assert codec.encode(codec.decode(Thing, absent)) == thing()


def test_a_whole_number_may_be_written_with_a_point() -> None:
    assert type(read(number=3.0).number) is int


def test_a_time_is_written_with_whole_seconds() -> None:
    moment = NOON + timedelta(microseconds=999_999)
    assert codec.encode(Thing(moment=moment, precise=moment)) == thing(
        moment="2026-01-31T12:00:00Z", precise="2026-01-31T12:00:00.999999Z"
    )


def test_filling_a_written_document_does_not_change_the_value() -> None:
    found = read(labels={})
    codec.encode(found)["labels"]["added"] = "later"
    assert codec.encode(found) == thing(labels={})


@pytest.mark.parametrize(
    ("fields", "path", "reason"),
    [
        pytest.param({"text": 1}, "text", "FieldValueTypeInvalid", id="a number for text"),
        pytest.param({"number": "1"}, "number", "FieldValueTypeInvalid", id="text for a number"),
        pytest.param({"number": True}, "number", "FieldValueTypeInvalid", id="a flag is no number"),
        pytest.param({"number": 1.5}, "number", "FieldValueTypeInvalid", id="a fraction"),
        pytest.param({"flag": 1}, "flag", "FieldValueTypeInvalid", id="a number for a flag"),
        pytest.param({"moment": 1}, "moment", "FieldValueTypeInvalid", id="a number for a time"),
        pytest.param({"moment": "noon"}, "moment", "FieldValueInvalid", id="no time"),
        pytest.param({"length": 5}, "length", "FieldValueTypeInvalid", id="a number of seconds"),
        pytest.param({"length": "5"}, "length", "FieldValueInvalid", id="no unit"),
        pytest.param({"lengths": "1s"}, "lengths", "FieldValueTypeInvalid", id="no list"),
        pytest.param({"lengths": ["1s", "x"]}, "lengths[1]", "FieldValueInvalid", id="in a list"),
        pytest.param({"byName": ["1s"]}, "byName", "FieldValueTypeInvalid", id="no map"),
        pytest.param({"byName": {"k": "x"}}, "byName[k]", "FieldValueInvalid", id="in a map"),
        pytest.param({"amount": 1.5}, "amount", "FieldValueTypeInvalid", id="a fractional amount"),
        pytest.param({"colour": "Pink"}, "colour", "FieldValueNotSupported", id="no such colour"),
        pytest.param({"colour": 1}, "colour", "FieldValueNotSupported", id="a number for a colour"),
        pytest.param({"inner": []}, "inner", "FieldValueTypeInvalid", id="a list for a struct"),
        pytest.param({"inner": {}}, "inner.name", "FieldValueRequired", id="a name is missing"),
        pytest.param(
            {"inner": {"name": None}}, "inner.name", "FieldValueRequired", id="a name is null"
        ),
        pytest.param(
            {"inners": [{"name": "a"}, {"name": 1}]},
            "inners[1].name",
            "FieldValueTypeInvalid",
            id="deep inside",
        ),
        pytest.param({"labels": {"a": 1}}, "labels[a]", "FieldValueTypeInvalid", id="a label"),
        pytest.param({"kind": "Other"}, "kind", "FieldValueInvalid", id="another kind"),
        pytest.param({"apiVersion": "v2"}, "apiVersion", "FieldValueInvalid", id="another version"),
    ],
)
def test_what_cannot_be_read_names_the_field(
    fields: dict[str, Any], path: str, reason: str
) -> None:
    with pytest.raises(Invalid) as caught:
        read(**fields)
    (cause,) = caught.value.causes
    assert (cause.field, cause.reason) == (path, reason)
    assert "Thing" in caught.value.message


@pytest.mark.parametrize("raw", [[], "text", None])
def test_what_is_no_object_is_no_kind(raw: Any) -> None:
    with pytest.raises(Invalid, match="must be an object"):
        codec.decode(Thing, raw)


def test_a_struct_can_be_read_by_itself() -> None:
    assert codec.decode(Inner, {"name": "n"}) == Inner(name="n")
    with pytest.raises(Invalid, match="this Inner cannot be read"):
        codec.decode(Inner, {})


def test_what_a_value_carries_along_is_neither_shown_nor_compared() -> None:
    carrying = codec.decode(Inner, {"name": "n", "size": 0, "new": 1})
    assert carrying == Inner(name="n")
    assert repr(carrying) == repr(Inner(name="n"))
    assert carrying.extra == {"new": 1}


@pytest.mark.parametrize("hint", [set[str], tuple[str, int], Mapping[int, str], int | None | str])
def test_a_type_without_a_wire_form_is_a_bug(hint: Any) -> None:
    with pytest.raises(TypeError, match="no wire form"):
        codec.encode_as(hint, None)


def test_names_on_the_wire() -> None:
    assert camel_case("credentials_secret_ref") == "credentialsSecretRef"
    assert camel_case("from_") == "from"
    assert camel_case("uid") == "uid"


def test_a_lease_becomes_the_value_that_code_reads() -> None:
    lease = codec.decode(Lease, LEASE)
    assert lease.metadata.name == "lease-1"
    assert lease.metadata.owner_references[0].controller
    assert lease.spec == LeaseSpec(
        client_ref=LocalObjectReference(name="alice"),
        selector=lease.spec.selector,
        duration=timedelta(minutes=30),
        tags={"build": "7"},
    )
    assert str(lease.spec.selector.selector()) == "board=rpi4"
    assert lease.status.conditions == (
        Condition(
            type="Ready",
            status=ConditionStatus.TRUE,
            reason="Ready",
            message="",
            last_transition_time=datetime(2026, 1, 1, 0, 0, 1, tzinfo=UTC),
            observed_generation=1,
        ),
    )


def test_a_device_keeps_its_snake_case_name() -> None:
    raw = {"uuid": "a", "parent_uuid": "b", "labels": {}}
    assert codec.decode(Device, raw).parent_uuid == "b"
    assert codec.encode(codec.decode(Device, raw)) == raw


def test_an_exporter_without_a_spec_is_enabled() -> None:
    exporter = codec.decode(Exporter, {"metadata": {"name": "x"}})
    assert exporter.spec.enabled
    assert codec.encode(replace(exporter, spec=ExporterSpec(enabled=False)))["spec"] == {
        "enabled": False
    }


def test_a_pools_cooldown_is_not_respelled_by_a_write_of_its_annotations() -> None:
    pool = codec.decode(ExporterSet, EXPORTER_SET)
    assert pool.spec.scale_down_cooldown == timedelta(minutes=5)
    noted = replace(pool, metadata=replace(pool.metadata, annotations={"a": "b"}))
    assert codec.encode(noted)["spec"] == EXPORTER_SET["spec"]


def test_a_lease_that_was_made_is_a_complete_document() -> None:
    lease = Lease(
        metadata=ObjectMeta(name="a", namespace="lab"),
        spec=LeaseSpec(client_ref=LocalObjectReference(name="alice")),
        status=LeaseStatus(),
    )
    assert codec.encode(lease) == {
        "apiVersion": "jumpstarter.dev/v1alpha1",
        "kind": "Lease",
        "metadata": {"name": "a", "namespace": "lab"},
        "spec": {"clientRef": {"name": "alice"}, "selector": {}},
        "status": {"ended": False},
    }


kinds = pytest.mark.parametrize("resource", list(RESOURCES), ids=lambda item: item.plural)


@kinds
@given(data=st.data())
def test_every_kind_survives_being_read_and_written(resource: Any, data: st.DataObject) -> None:
    document = data.draw(matching(resource.schema, wild=True))
    document |= {"apiVersion": resource.api_version, "kind": resource.kind}
    before = deepcopy(document)
    value = codec.decode(resource.value, document)
    assert json.dumps(codec.encode(value), sort_keys=True) == json.dumps(before, sort_keys=True)
    assert document == before


@kinds
@given(document=st.dictionaries(st.sampled_from(["metadata", "spec", "status"]), json_values))
def test_reading_anything_succeeds_or_is_refused(resource: Any, document: dict[str, Any]) -> None:
    try:
        found: object = codec.decode(resource.value, document)
    except Invalid as refused:
        (found,) = refused.causes
    assert dataclasses.is_dataclass(found)
