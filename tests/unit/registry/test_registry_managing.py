"""Claims: reading, writing, and what an update does to them."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bullpen.registry import fields, managed_fields
from bullpen.registry.fields import members
from bullpen.registry.managed_fields import UPDATERS_MAX, Claim, Claimant, Claims, compare
from support.registry_shapes import SCHEMA, documents


def claimant(name: str) -> Claimant:
    return Claimant(manager=name, api_version="v1")


def play(steps: list[tuple[str, Any]]) -> tuple[Any, Claims]:
    state: Any = {}
    claims: Claims = ()
    for number, (who, document) in enumerate(steps):
        change = compare(SCHEMA, state, document)
        claims = managed_fields.updated(claims, change, claimant(who), time=f"{number:04}")
        state = document
    return state, claims


histories = st.lists(st.tuples(st.sampled_from(["x", "y", "z"]), documents), max_size=6)


@given(histories)
def test_every_field_there_is_has_exactly_one_updater(steps: list[tuple[str, Any]]) -> None:
    state, claims = play(steps)
    there = fields.difference(compare(SCHEMA, {}, state).added, managed_fields.UNMANAGED)
    owned = [path for claim in claims for path in members(claim.fields)]
    assert sorted(owned) == sorted(members(there))


@given(histories)
def test_claims_survive_being_written_and_read(steps: list[tuple[str, Any]]) -> None:
    _, claims = play(steps)
    written = managed_fields.write(claims)
    assert sorted(managed_fields.read(written), key=str) == sorted(claims, key=str)
    assert not claims or managed_fields.is_well_formed(written)


def test_an_update_that_changes_nothing_leaves_even_the_times() -> None:
    document = {"spec": {"size": 1}}
    _, claims = play([("x", document)])
    change = compare(SCHEMA, document, document)
    assert managed_fields.updated(claims, change, claimant("x"), time="later") is claims


def test_an_update_that_only_removes_claims_nothing() -> None:
    _, claims = play([("x", {"spec": {"size": 1, "mode": "a"}}), ("y", {"spec": {"size": 1}})])
    assert [claim.claimant.manager for claim in claims] == ["x"]


def test_the_oldest_updaters_are_merged_when_there_are_too_many() -> None:
    steps = []
    spec: dict[str, str] = {}
    for number in range(UPDATERS_MAX + 3):
        spec = {**spec, f"k{number:02}": "v"}
        steps.append((f"m{number:02}", {"spec": {"options": spec}}))
    _, claims = play(steps)
    names = [claim.claimant.manager for claim in claims]
    assert len(names) == UPDATERS_MAX
    assert names.count("ancient-changes") == 1
    assert "m00" not in names
    assert f"m{UPDATERS_MAX + 2}" in names
    assert len(list(members(managed_fields.all_fields(claims)))) == len(spec) + 2


def test_appliers_are_never_merged() -> None:
    claims = tuple(
        Claim(
            claimant=Claimant(manager=f"m{n}", api_version="v1", applied=True),
            fields={"f:a": {}},
        )
        for n in range(UPDATERS_MAX + 5)
    )
    change = compare(SCHEMA, {}, {"spec": {"size": 1}})
    assert len(managed_fields.updated(claims, change, claimant("x"), time="")) == len(claims) + 1


def test_claims_are_kept_in_kubernetes_order() -> None:
    def claim(manager: str, time: str, *, applied: bool = False) -> Claim:
        who = Claimant(manager=manager, api_version="v1", applied=applied)
        return Claim(claimant=who, fields={"f:a": {}}, time=time)

    mixed = (claim("b", "1"), claim("a", "2"), claim("c", "3", applied=True), claim("a", "1"))
    written = [(e["operation"], e["time"], e["manager"]) for e in managed_fields.write(mixed)]
    assert written == [
        ("Apply", "3", "c"),
        ("Update", "1", "a"),
        ("Update", "1", "b"),
        ("Update", "2", "a"),
    ]


GOOD: dict[str, Any] = {
    "manager": "m",
    "operation": "Update",
    "apiVersion": "v1",
    "fieldsType": "FieldsV1",
    "fieldsV1": {"f:a": {}},
}


@pytest.mark.parametrize(
    "entries",
    [
        pytest.param(None, id="nothing"),
        pytest.param([GOOD, "x"], id="an entry that is no object"),
        pytest.param([{**GOOD, "operation": "Guess"}], id="an unknown operation"),
        pytest.param([{**GOOD, "fieldsType": "FieldsV2"}], id="an unknown form of fields"),
        pytest.param([{**GOOD, "fieldsV1": []}], id="fields that are none"),
        pytest.param([{**GOOD, "manager": 5}], id="a manager that is no text"),
    ],
)
def test_what_cannot_be_read_is_no_claim(entries: object) -> None:
    assert managed_fields.read(entries) == ()


def test_fields_that_make_no_sense_are_not_well_formed() -> None:
    assert managed_fields.is_well_formed([GOOD])
    assert not managed_fields.is_well_formed([{**GOOD, "fieldsV1": {"x": {}}}])


def test_a_claimant_is_printed_as_kubernetes_prints_it() -> None:
    assert str(claimant("m")) == '"m" using v1'
    status = Claimant(manager="m", api_version="v1", applied=True, subresource="status")
    assert str(status) == '"m" with subresource "status"'


def test_a_claim_without_a_time_is_written_without_one() -> None:
    claim = Claim(claimant=claimant("x"), fields={"f:spec": {}}, time="")
    (entry,) = managed_fields.write((claim,))
    assert "time" not in entry
    assert managed_fields.read([entry]) == (claim,)
