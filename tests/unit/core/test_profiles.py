"""The revision of members, and what is changed in place instead."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

import pytest

from bullpen.api.exporter_template import Driver, Target, Template, TemplateMetadata
from bullpen.api.kinds.exporterset import ExporterSet, ExporterSetSpec, RecycleStrategy
from bullpen.api.kinds.virtualtargetclass import (
    CABundleReference,
    Image,
    Images,
    Scheduling,
    VirtualTargetClass,
    VirtualTargetClassSpec,
)
from bullpen.api.meta import LabelSelector, ObjectMeta
from bullpen.core.targets import profiles
from bullpen.core.targets.profiles import NOT_IN_REVISION, TEMPLATE_KEYS, Profile

LABELS = {"board": "x"}


def exporter_set(
    labels: Mapping[str, str] = LABELS, annotations: Mapping[str, str] | None = None, **spec: Any
) -> ExporterSet:
    template = TemplateMetadata(labels=dict(labels), annotations=dict(annotations or {}))
    fields: dict[str, Any] = {
        "virtual_target_class_name": "fake",
        "selector": LabelSelector(match_labels=LABELS),
        "template": Template(metadata=template),
        **spec,
    }
    meta = ObjectMeta(name="pool", namespace="lab", uid="u1")
    return ExporterSet(metadata=meta, spec=ExporterSetSpec(**fields))


def target_class(**spec: Any) -> VirtualTargetClass:
    return VirtualTargetClass(
        metadata=ObjectMeta(name="fake", namespace="lab"),
        spec=VirtualTargetClassSpec(provisioner="fake", **spec),
    )


OTHER: dict[str, object] = {
    "provisioner": "other",
    "parameters": {"memory": "1Gi"},
    "drivers": (Driver(name="power", type="a.b.C"),),
    "images": Images(exporter=Image(image="other")),
    "scheduling": Scheduling(node_selector={"zone": "a"}),
    "single_use": False,
    "retain": True,
    "ca_bundle": CABundleReference(name="ca", key="pem"),
    "credentials": "secret",
    "contents": "digest",
    "targets": (Target(name="board"),),
    "provider": "account",
}
"""For each field of a profile that is part of the revision, another value than the default."""


def test_every_field_of_a_profile_is_in_the_revision_or_excluded_by_name() -> None:
    """A new field fails here until it is decided what a change of it does to members."""
    assert {item.name for item in fields(Profile)} == OTHER.keys() | NOT_IN_REVISION


@pytest.mark.parametrize("name", OTHER)
def test_a_change_of_the_field_is_another_revision(name: str) -> None:
    made = Profile(provisioner="fake")
    changed = replace(made, **{name: OTHER[name]})  # type: ignore[arg-type]
    assert profiles._revision(changed) != profiles._revision(made)


@pytest.mark.parametrize(
    "same",
    [
        pytest.param((exporter_set({**LABELS, "more": "y"}), target_class()), id="another label"),
        pytest.param(
            (exporter_set(annotations={"note": "y"}), target_class()), id="another annotation"
        ),
        pytest.param((exporter_set(parameters={}), target_class()), id="empty parameters"),
        pytest.param(
            (exporter_set(parameters={"net": {}}), target_class(parameters={})),
            id="an empty map in the parameters",
        ),
        pytest.param((exporter_set(max_replicas=7), target_class()), id="another size"),
        pytest.param(
            (exporter_set(), target_class(scheduling=Scheduling(node_selector={}))),
            id="an empty map in the class",
        ),
    ],
)
def test_a_change_that_needs_no_new_member_is_the_same_revision(
    same: tuple[ExporterSet, VirtualTargetClass],
) -> None:
    assert (
        profiles.profile(*same).revision
        == profiles.profile(exporter_set(), target_class()).revision
    )


def test_the_recycle_strategy_is_part_of_the_revision() -> None:
    reused = exporter_set(recycle_strategy=RecycleStrategy.IN_PLACE_REUSE)
    made = profiles.profile(reused, target_class())
    assert made.revision != profiles.profile(exporter_set(), target_class()).revision


def test_labels_and_annotations_are_added_changed_and_removed_in_place() -> None:
    first = exporter_set({**LABELS, "old": "1", "both": "1"}, {"gone": "1"})
    made = profiles.profile(first, target_class())
    meta = profiles.member_metadata(first, "pool-0", made)
    assert profiles.updated_in_place(first, meta) == meta
    meta = replace(meta, labels={**meta.labels, "theirs": "kept"})
    second = exporter_set({**LABELS, "both": "2", "new": "1"}, {"note": "1"})
    found = profiles.updated_in_place(second, meta)
    assert "old" not in found.labels
    assert "gone" not in found.annotations
    assert {found.labels[key] for key in ("theirs",)} == {"kept"}
    assert (found.labels["both"], found.labels["new"], found.annotations["note"]) == ("2", "1", "1")
    assert found.annotations[profiles.PROVISIONER] == "fake"
    assert profiles.updated_in_place(second, found) == found


@pytest.mark.parametrize("record", ["", "null", "[]", "{", '{"labels": 7}'])
def test_a_record_that_others_have_edited_is_replaced(record: str) -> None:
    made = profiles.profile(exporter_set(), target_class())
    meta = profiles.member_metadata(exporter_set(), "pool-0", made)
    edited = replace(meta, annotations={**meta.annotations, TEMPLATE_KEYS: record})
    assert profiles.updated_in_place(exporter_set(), edited) == meta
