"""Server-side apply as a pure function."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import assume, event, given
from hypothesis import strategies as st

from bullpen.errors import BadRequest, Conflict
from bullpen.registry import fields, managed_fields
from bullpen.registry.apply import Applied, apply
from bullpen.registry.fields import members
from bullpen.registry.managed_fields import Claimant, Claims, compare, field_set
from support.registry_shapes import SCHEMA, documents

TIME = "2026-01-01T00:00:00Z"


def applier(name: str) -> Claimant:
    return Claimant(manager=name, api_version="v1", applied=True)


def updater(name: str) -> Claimant:
    return Claimant(manager=name, api_version="v1")


def thing(**spec: Any) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "Thing", "metadata": {"name": "a"}, "spec": spec}


NOTHING = {"apiVersion": "v1", "kind": "Thing", "metadata": {"name": "a"}}


def applied(
    before: Applied | None, config: dict[str, Any], who: str, *, force: bool = False
) -> Applied:
    live, claims = (before.document, before.claims) if before else ({}, ())
    return apply(SCHEMA, live, config, claims, applier(who), force=force, time=TIME)


def owners(claims: Claims, path: fields.Path) -> set[str]:
    return {claim.claimant.manager for claim in claims if fields.has(claim.fields, path)}


@given(documents)
def test_applying_twice_is_applying_once(config: Any) -> None:
    once = applied(None, config, "me")
    assert applied(once, config, "me") == once


@given(documents, documents)
def test_applying_over_others_twice_is_applying_once(theirs: Any, mine: Any) -> None:
    once = applied(applied(None, theirs, "they"), mine, "me", force=True)
    assert applied(once, mine, "me") == once


@given(documents, documents)
def test_an_object_keeps_its_name_whatever_is_given_up(first: Any, second: Any) -> None:
    after = applied(applied(applied(None, first, "me"), second, "me"), NOTHING, "me")
    assert after.document == NOTHING


@given(documents, documents)
def test_alone_a_manager_gets_exactly_what_it_states(first: Any, second: Any) -> None:
    after = applied(applied(None, first, "me"), second, "me")
    change = compare(SCHEMA, second, after.document)
    assert not change.modified
    assert not change.removed
    # What may be left over are containers that were emptied.
    left = {path for path in members(change.added) if _leaf(after.document, path)}
    assert not left


def _leaf(document: Any, path: fields.Path) -> bool:
    for element in path:
        if element[:2] != "f:":
            return True
        document = document[element[2:]]
    return document not in ({}, [])


@given(documents, documents)
def test_a_managers_removal_removes_exactly_what_only_it_owned(theirs: Any, mine: Any) -> None:
    both = applied(applied(None, theirs, "they"), mine, "me", force=True)
    owned = managed_fields.all_fields(c for c in both.claims if c.claimant.manager == "they")
    gone = applied(both, NOTHING, "me")
    before, after = (set(members(field_set(SCHEMA, d.document))) for d in (both, gone))
    for path in before - after:
        assert owners(both.claims, path) == {"me"}, fields.display(path)
    for path in before & set(members(owned)):
        assert path in after, fields.display(path)
    assert not [c for c in gone.claims if c.claimant.manager == "me" and c.fields]
    event(f"something was removed: {bool(before - after)}")


@given(documents, documents)
def test_without_force_either_nothing_of_the_others_changes_or_it_is_refused(
    theirs: Any, mine: Any
) -> None:
    before = applied(None, theirs, "they")
    (theirs_claimed,) = before.claims
    forced = applied(before, mine, "me", force=True)
    change = compare(SCHEMA, before.document, forced.document)
    if fields.intersection(theirs_claimed.fields, change.changed):
        event("refused")
        with pytest.raises(Conflict):
            applied(before, mine, "me")
    else:
        event("accepted")
        assert applied(before, mine, "me") == forced
        assert theirs_claimed in forced.claims or not theirs_claimed.fields


@given(documents, documents)
def test_after_force_every_stated_field_is_owned_by_who_stated_it(theirs: Any, mine: Any) -> None:
    after = applied(applied(None, theirs, "they"), mine, "me", force=True)
    stated = fields.difference(field_set(SCHEMA, mine), managed_fields.UNMANAGED)
    held = managed_fields.all_fields(c for c in after.claims if c.claimant.manager == "me")
    assert held == stated


@given(st.lists(st.tuples(st.sampled_from(["x", "y", "z"]), documents), max_size=5))
def test_claims_never_name_what_is_not_there(steps: list[tuple[str, Any]]) -> None:
    state: Applied | None = None
    for who, config in steps:
        state = applied(state, config, who, force=True)
    assume(state is not None)
    assert state is not None
    there = set(members(compare(SCHEMA, {}, state.document).added))
    assert len(state.claims) == 1 or all(claim.fields for claim in state.claims)
    for claim in state.claims:
        assert set(members(claim.fields)) <= there


def test_two_managers_share_a_list_by_its_keys() -> None:
    first = applied(None, thing(ports=[{"name": "a", "port": 1}]), "me")
    both = applied(first, thing(ports=[{"name": "b", "port": 2}]), "you")
    assert [port["name"] for port in both.document["spec"]["ports"]] == ["a", "b"]
    left = applied(both, thing(), "me")
    assert left.document["spec"]["ports"] == [{"name": "b", "port": 2}]


def test_an_item_goes_with_the_fields_others_updated_inside() -> None:
    """As in Kubernetes: who only changed a field of an item does not own the item."""
    first = applied(None, thing(ports=[{"name": "a", "port": 1}]), "me")
    changed = thing(ports=[{"name": "a", "port": 2}])
    change = compare(SCHEMA, first.document, changed)
    claims = managed_fields.updated(first.claims, change, updater("they"), time=TIME)
    after = applied(Applied(document=changed, claims=claims), NOTHING, "me")
    assert after.document["spec"].get("ports", []) == []
    assert not managed_fields.all_fields(after.claims)


def test_what_nobody_owns_stays_as_long_as_what_it_is_in() -> None:
    """Such as a default: it was not given up, because it was never claimed."""
    both = applied(applied(None, thing(size=1), "me"), thing(mode="a"), "they")
    document = {**both.document, "spec": {**both.document["spec"], "args": ["default"]}}
    after = applied(Applied(document=document, claims=both.claims), NOTHING, "me")
    assert after.document["spec"] == {"mode": "a", "args": ["default"]}
    last = applied(after, NOTHING, "they")
    assert "spec" not in last.document


def test_atomic_lists_are_owned_whole() -> None:
    first = applied(None, thing(args=["a"]), "me")
    with pytest.raises(Conflict, match=r"conflict with \"me\": \.spec\.args$"):
        applied(first, thing(args=["a", "b"]), "you")


def test_what_was_there_before_the_first_apply_has_an_owner() -> None:
    live = Applied(document=thing(size=1), claims=())
    with pytest.raises(Conflict, match=r"\"before-first-apply\" using v1: \.spec\.size"):
        applied(live, thing(size=2), "me")
    after = applied(live, thing(size=2), "me", force=True)
    assert owners(after.claims, ("f:spec", "f:size")) == {"me"}


def test_an_update_takes_a_field_from_its_applier() -> None:
    first = applied(None, thing(size=1), "me")
    change = compare(SCHEMA, first.document, thing(size=2))
    claims = managed_fields.updated(first.claims, change, updater("they"), time=TIME)
    after = Applied(document=thing(size=2), claims=claims)
    with pytest.raises(Conflict, match=r"conflict with \"they\" using v1: \.spec\.size"):
        applied(after, thing(size=1), "me")


def test_the_same_name_applying_and_updating_are_two_managers() -> None:
    change = compare(SCHEMA, {}, thing(size=1))
    claims = managed_fields.updated((), change, updater("me"), time=TIME)
    live = Applied(document=thing(size=1), claims=claims)
    with pytest.raises(Conflict, match='conflict with "me" using v1'):
        applied(live, thing(size=2), "me")


@pytest.mark.parametrize(
    "config",
    [
        pytest.param(thing(ports=[{"name": "a"}, {"name": "a"}]), id="a repeated key"),
        pytest.param(thing(ports=[{"port": 1}]), id="an item without its key"),
        pytest.param(thing(ports=["a"]), id="an item that is no object"),
        pytest.param(thing(tags=["a", "a"]), id="a repeated value"),
        pytest.param(thing(ports=[{"name": "a", "tags": ["x", "x"]}]), id="inside an item"),
    ],
)
def test_a_list_that_cannot_be_merged_is_refused(config: dict[str, Any]) -> None:
    with pytest.raises(BadRequest, match="cannot be merged"):
        applied(None, config, "me")


def test_an_annotation_that_is_not_json_excuses_nothing() -> None:
    name = "kubectl.kubernetes.io/last-applied-configuration"
    live = thing(size=1)
    live["metadata"] = {"name": "a", "annotations": {name: "{"}}
    claims = managed_fields.updated((), compare(SCHEMA, {}, live), updater("x"), time=TIME)
    with pytest.raises(Conflict):
        applied(Applied(document=live, claims=claims), thing(size=2), "kubectl")


def test_without_an_annotation_nothing_excuses_kubectl() -> None:
    live = thing(size=1)
    claims = managed_fields.updated((), compare(SCHEMA, {}, live), updater("x"), time=TIME)
    before = Applied(document=live, claims=claims)
    with pytest.raises(Conflict):
        applied(before, thing(size=2), "kubectl")
    forced = applied(before, thing(size=2), "kubectl", force=True)
    assert "annotations" not in forced.document["metadata"]
