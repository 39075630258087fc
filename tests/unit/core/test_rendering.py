"""What members are made from and what their exporters are told."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jumpstarter.config.exporter import ExporterConfigV1Alpha1

from bullpen.api.exporter_template import Driver, Template, TemplateMetadata, TemplateSpec
from bullpen.api.kinds.exporterset import (
    SET_NAME,
    SET_UID,
    ExporterSet,
    ExporterSetSpec,
    RecycleStrategy,
)
from bullpen.api.kinds.virtualtargetclass import (
    BindingMode,
    Image,
    Images,
    ReclaimPolicy,
    ResourceRequirements,
    Scheduling,
    VirtualTargetClass,
    VirtualTargetClassSpec,
)
from bullpen.api.meta import LabelSelector, LocalObjectReference, ObjectMeta
from bullpen.core.pools import member_names
from bullpen.core.pools.members import REVISION, SINGLE_USE
from bullpen.core.targets import exporter_config, profiles
from bullpen.core.targets.exporter_config import Connection
from bullpen.core.targets.profiles import FINALIZER, PROVISIONER, TEMPLATE_KEYS

KEY = ("lab", "rpi4-0")
CONNECTION = Connection(endpoint="127.0.0.1:8082", token="secret", ca_pem="PEM")
EXPORT = {"a": {"ref": "b.c"}}


def test_an_exporter_config_has_the_connection_and_the_exports() -> None:
    config = exporter_config.exporter_config(KEY, CONNECTION, single_use=True, export=EXPORT)
    assert config == {
        "apiVersion": "jumpstarter.dev/v1alpha1",
        "kind": "ExporterConfig",
        "metadata": {"namespace": "lab", "name": "rpi4-0"},
        "endpoint": "127.0.0.1:8082",
        "tls": {"ca": base64.b64encode(b"PEM").decode(), "insecure": False},
        "token": "secret",
        "exitOnLeaseEnd": True,
        "export": EXPORT,
    }


def test_jumpstarter_reads_the_config() -> None:
    config = exporter_config.exporter_config(KEY, CONNECTION, single_use=False, export=EXPORT)
    found = ExporterConfigV1Alpha1.model_validate(config)
    assert (found.endpoint, found.token, found.metadata.name) == (
        "127.0.0.1:8082",
        "secret",
        "rpi4-0",
    )


def test_a_token_is_not_printed() -> None:
    assert "secret" not in repr(CONNECTION)


@pytest.mark.parametrize(
    ("base", "over", "expected"),
    [
        pytest.param({"a": 1}, {}, {"a": 1}, id="nothing on top"),
        pytest.param({"a": 1}, {"b": 2}, {"a": 1, "b": 2}, id="new keys are added"),
        pytest.param({"a": 1}, {"a": 2}, {"a": 2}, id="scalars are replaced"),
        pytest.param({"a": [1, 2]}, {"a": [3]}, {"a": [3]}, id="lists are replaced"),
        pytest.param(
            {"a": {"x": 1, "y": {"z": 2}}},
            {"a": {"y": {"w": 3}}},
            {"a": {"x": 1, "y": {"z": 2, "w": 3}}},
            id="maps are merged all the way down",
        ),
        pytest.param({"a": {"x": 1}}, {"a": 2}, {"a": 2}, id="a scalar replaces a map"),
        pytest.param({"a": 2}, {"a": {"x": 1}}, {"a": {"x": 1}}, id="a map replaces a scalar"),
        pytest.param({"a": {"x": 1}}, {"a": None}, {"a": None}, id="null replaces"),
    ],
)
def test_parameters_merge(
    base: Mapping[str, Any], over: Mapping[str, Any], expected: Mapping[str, Any]
) -> None:
    assert exporter_config.merged(base, over) == expected


trees: st.SearchStrategy[dict[str, Any]] = st.recursive(
    st.dictionaries(st.sampled_from("abc"), st.integers(0, 3), max_size=3),
    lambda inner: st.dictionaries(st.sampled_from("abc"), inner | st.integers(0, 3), max_size=3),
    max_leaves=10,
)


@given(trees, trees)
def test_merging_again_changes_nothing_and_leaves_its_arguments_alone(
    base: dict[str, Any], over: dict[str, Any]
) -> None:
    before = repr((base, over))
    once = exporter_config.merged(base, over)
    assert exporter_config.merged(once, over) == once
    assert repr((base, over)) == before


def test_images_are_replaced_one_by_one() -> None:
    base = Images(exporter=Image(image="a"), runtime=Image(image="b"))
    over = Images(runtime=Image(image="c"))
    merged = exporter_config.merged_images(base, over)
    assert (merged.exporter, merged.runtime) == (Image(image="a"), Image(image="c"))
    assert exporter_config.merged_images(None, None) == Images()


def test_drivers_of_the_same_name_are_found() -> None:
    drivers = [Driver(name=name, type="x.Y") for name in ("a", "b", "a")]
    assert exporter_config.duplicates(drivers) == ("a",)


# Profiles and revisions

CLASS = VirtualTargetClass(
    metadata=ObjectMeta(name="qemu", namespace="lab"),
    spec=VirtualTargetClassSpec(
        provisioner="qemu.jumpstarter.dev",
        parameters={"arch": "aarch64", "resources": {"cpu": 1, "memory": "128Mi"}},
        credentials_secret_ref=LocalObjectReference(name="vault"),
    ),
)
SET = ExporterSet(
    metadata=ObjectMeta(name="uboot", namespace="lab", uid="s1"),
    spec=ExporterSetSpec(
        virtual_target_class_name="qemu",
        parameters={"resources": {"memory": "256Mi"}},
        selector=LabelSelector(match_labels={"board": "qemu"}),
        template=Template(
            metadata=TemplateMetadata(labels={"board": "qemu"}, annotations={"note": "x"}),
            spec=TemplateSpec(drivers=(Driver(name="power", type="x.Power"),)),
        ),
    ),
)


def spec(**changes: Any) -> ExporterSet:
    return replace(SET, spec=replace(SET.spec, **changes))


def cls(**changes: Any) -> VirtualTargetClass:
    return replace(CLASS, spec=replace(CLASS.spec, **changes))


def revision(owner: ExporterSet = SET, found: VirtualTargetClass = CLASS) -> str:
    return profiles.profile(owner, found).revision


def test_a_profile_is_the_class_with_the_set_laid_over_it() -> None:
    made = profiles.profile(SET, CLASS)
    assert made.parameters == {"arch": "aarch64", "resources": {"cpu": 1, "memory": "256Mi"}}
    assert (made.single_use, made.retain, made.on_demand) == (True, False, False)
    assert made.credentials == "vault"
    kept = profiles.profile(
        spec(recycle_strategy=RecycleStrategy.IN_PLACE_REUSE),
        cls(
            reclaim_policy=ReclaimPolicy.RETAIN,
            binding_mode=BindingMode.WAIT_FOR_FIRST_CONSUMER,
            credentials_secret_ref=None,
        ),
    )
    assert (kept.single_use, kept.retain, kept.on_demand) == (False, True, True)
    assert kept.credentials == ""


@pytest.mark.parametrize(
    ("owner", "found"),
    [
        pytest.param(spec(parameters={}), CLASS, id="the set's parameters"),
        pytest.param(spec(template=Template()), CLASS, id="the template"),
        pytest.param(
            spec(recycle_strategy=RecycleStrategy.IN_PLACE_REUSE), CLASS, id="the strategy"
        ),
        pytest.param(spec(images=Images(runtime=Image(image="x"))), CLASS, id="an image"),
        pytest.param(SET, cls(parameters={}), id="the class's parameters"),
        pytest.param(SET, cls(provisioner="mock.jumpstarter.dev"), id="the provisioner"),
        pytest.param(SET, cls(reclaim_policy=ReclaimPolicy.RETAIN), id="what is kept"),
    ],
)
def test_what_makes_a_member_another_one_changes_the_revision(
    owner: ExporterSet, found: VirtualTargetClass
) -> None:
    assert revision(owner, found) != revision()


@pytest.mark.parametrize(
    ("owner", "found"),
    [
        pytest.param(
            spec(min_replicas=3, max_replicas=9, min_available_replicas=2), CLASS, id="sizes"
        ),
        pytest.param(
            SET, cls(binding_mode=BindingMode.WAIT_FOR_FIRST_CONSUMER), id="the binding mode"
        ),
        pytest.param(
            spec(parameters=dict(reversed([*SET.spec.parameters.items()]))), CLASS, id="key order"
        ),
    ],
)
def test_what_only_changes_how_many_there_are_keeps_the_revision(
    owner: ExporterSet, found: VirtualTargetClass
) -> None:
    assert revision(owner, found) == revision()


def test_a_member_carries_what_others_know_it_by() -> None:
    made = profiles.profile(SET, CLASS)
    meta = profiles.member_metadata(SET, "uboot-0", made)
    assert meta.labels == {
        "board": "qemu",
        SET_NAME: "uboot",
        SET_UID: "s1",
        REVISION: made.revision,
    }
    assert meta.annotations == {
        "note": "x",
        TEMPLATE_KEYS: '{"labels":["board"],"annotations":["note"]}',
        PROVISIONER: "qemu.jumpstarter.dev",
        SINGLE_USE: "true",
    }
    assert meta.finalizers == (FINALIZER,)
    (reference,) = meta.owner_references
    assert (reference.uid, reference.controller) == ("s1", True)


def test_a_set_with_a_long_name_has_members_without_its_label() -> None:
    long = replace(SET, metadata=replace(SET.metadata, name="x" * 64))
    assert SET_NAME not in profiles.labels(long)


# Names


def test_names_of_a_very_long_set_still_fit_and_differ() -> None:
    one, other = "a" * 250 + "x", "a" * 250 + "y"
    assert len(member_names.prefix(one)) <= member_names.PREFIX_LENGTH_MAX
    assert member_names.prefix(one) != member_names.prefix(other)
    made = member_names.new_names(one, 1, ceiling=None, created=7, members=())
    assert member_names.number(one, made[0]) == 7


@pytest.mark.parametrize(
    ("name", "number"),
    [
        pytest.param("uboot-12", 12, id="ours"),
        pytest.param("uboot-12-3", -1, id="of a set whose name begins like ours"),
        pytest.param("uboot-", -1, id="without a number"),
        pytest.param("other-1", -1, id="of another set"),
    ],
)
def test_a_number_is_read_only_from_our_own_names(name: str, number: int) -> None:
    assert member_names.number("uboot", name) == number


def test_a_name_comes_again_after_all_the_others_have_been() -> None:
    names = [
        member_names.new_names("uboot", 1, ceiling=3, created=n, members=())[0] for n in range(4)
    ]
    assert names == ["uboot-0", "uboot-1", "uboot-2", "uboot-0"]


def called(numbers: Iterable[int]) -> set[str]:
    return {f"uboot-{number}" for number in numbers}


def test_naming_members_costs_the_same_below_any_ceiling() -> None:
    """A pool with a ceiling of two thousand million stopped the service for minutes."""
    made = member_names.new_names(
        "uboot", 3, ceiling=2**31 - 1, created=5, members=("uboot-6", "uboot-x", "uboot-08")
    )
    assert made == ("uboot-5", "uboot-7", "uboot-8")


@given(
    st.sets(st.integers(0, 20)),
    st.sets(st.integers(0, 20)),
    st.integers(0, 20),
    st.integers(0, 10),
    st.none() | st.integers(1, 10),
)
def test_new_names_are_never_taken(
    members: set[int], others: set[int], created: int, wanted: int, ceiling: int | None
) -> None:
    made = member_names.new_names(
        "uboot",
        wanted,
        ceiling=ceiling,
        created=created,
        members=called(members),
        taken=called(others),
    )
    assert len(set(made)) == len(made) <= wanted
    assert not set(made) & called(members | others)


@given(
    st.sets(st.integers(0, 20)),
    st.integers(0, 20),
    st.integers(0, 10),
    st.none() | st.integers(1, 10),
)
def test_there_are_names_for_all_that_are_below_the_ceiling(
    members: set[int], created: int, wanted: int, ceiling: int | None
) -> None:
    made = member_names.new_names(
        "uboot", wanted, ceiling=ceiling, created=created, members=called(members)
    )
    places = wanted if ceiling is None else max(0, ceiling - len(members))
    assert len(made) == min(wanted, places)


@given(
    st.sets(st.integers(4, 9), max_size=4),
    st.lists(st.tuples(st.sets(st.integers(0, 3)), st.integers(0, 99), st.integers(0, 9))),
)
def test_however_little_writers_know_they_make_no_more_than_the_ceiling(
    beyond: set[int], views: list[tuple[set[int], int, int]]
) -> None:
    """They all know who is there since before the ceiling was lowered to 4."""
    made: set[str] = set()
    for seen, created, wanted in views:
        members = called(seen | beyond)
        made |= {
            *member_names.new_names("uboot", wanted, ceiling=4, created=created, members=members)
        }
    assert len(made | called(beyond)) <= 4


@given(st.sets(st.integers(0, 20)), st.integers(0, 20))
def test_without_a_ceiling_no_number_comes_twice(taken: set[int], created: int) -> None:
    members = {f"uboot-{number}" for number in taken}
    (made,) = member_names.new_names("uboot", 1, ceiling=None, created=created, members=members)
    assert member_names.number("uboot", made) >= max(created, *(n + 1 for n in taken), 0)


def test_the_requests_of_a_class_are_accounted_for() -> None:
    resources = ResourceRequirements(requests={"cpu": 2})

    assert profiles.Profile(provisioner="p").requests == {}
    assert profiles.Profile(provisioner="p", scheduling=Scheduling()).requests == {}
    made = profiles.Profile(provisioner="p", scheduling=Scheduling(resources=resources))
    assert made.requests == {"cpu": 2}
