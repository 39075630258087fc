"""The table of resources answers every way of asking, and costs little to load."""

from __future__ import annotations

import subprocess
import sys
from datetime import timedelta

import pytest

from bullpen.api.fields import Struct, attributes
from bullpen.api.kinds.core import CoordinationLease, Namespace, Secret
from bullpen.api.kinds.crd import CustomResourceDefinition
from bullpen.api.kinds.exporterset import ExporterSet, ExporterSetSpec
from bullpen.api.kinds.lease import Lease
from bullpen.api.meta import (
    LabelSelector,
    LabelSelectorRequirement,
    label_selector,
)
from bullpen.api.resources import RESOURCES, Resources
from bullpen.errors import BadRequest
from bullpen.kit import durations
from bullpen.kit.selectors import parse_labels


def test_a_resource_is_found_by_path_by_kind_and_by_type() -> None:
    lease = RESOURCES.of(Lease)
    assert RESOURCES.find("jumpstarter.dev", "v1alpha1", "leases") is lease
    assert RESOURCES.of_kind("jumpstarter.dev/v1alpha1", "Lease") is lease
    assert lease.value is Lease
    assert RESOURCES.find("jumpstarter.dev", "v1", "leases") is None
    assert RESOURCES.of_kind("v1", "Lease") is None


def test_two_kinds_may_share_a_name_in_different_groups() -> None:
    ours, theirs = RESOURCES.of(Lease), RESOURCES.of(CoordinationLease)
    assert ours.kind == theirs.kind == "Lease"
    assert ours.plural == theirs.plural == "leases"
    assert ours.prefix == "jumpstarter.dev/leases/"
    assert theirs.prefix == "coordination.k8s.io/leases/"


def test_keys_in_the_store() -> None:
    secret = RESOURCES.of(Secret)
    assert secret.api_version == "v1"
    assert secret.key("lab", "a") == "core/secrets/lab/a"
    assert RESOURCES.of(Namespace).key("", "lab") == "core/namespaces//lab"
    assert RESOURCES.of(Lease).api_version == "jumpstarter.dev/v1alpha1"


def test_the_order_is_stable_and_each_group_comes_once() -> None:
    assert len(RESOURCES) == len(list(RESOURCES)) == 24
    assert RESOURCES.group_versions() == (
        ("jumpstarter.dev", "v1alpha1"),
        ("virtualtarget.jumpstarter.dev", "v1alpha1"),
        ("device.jumpstarter.dev", "v1alpha1"),
        ("", "v1"),
        ("coordination.k8s.io", "v1"),
        ("rbac.authorization.k8s.io", "v1"),
        ("apiextensions.k8s.io", "v1"),
    )
    assert list(Resources(RESOURCES)) == list(RESOURCES)


def test_short_names_are_kubernetes_own() -> None:
    found = {item.plural: item.short_names for item in RESOURCES if item.short_names}
    assert found == {
        "namespaces": ("ns",),
        "configmaps": ("cm",),
        "events": ("ev",),
        "serviceaccounts": ("sa",),
        "customresourcedefinitions": ("crd", "crds"),
    }


def test_what_is_not_ours_is_not_custom() -> None:
    custom = {item.group for item in RESOURCES if item.custom}
    ours = {"jumpstarter.dev", "virtualtarget.jumpstarter.dev", "device.jumpstarter.dev"}
    assert custom == ours
    cluster_wide = {item.kind for item in RESOURCES if not item.namespaced}
    assert cluster_wide == {
        "Namespace",
        "CustomResourceDefinition",
        "ClusterRole",
        "ClusterRoleBinding",
        "DeviceClass",
    }
    assert RESOURCES.of(CustomResourceDefinition).categories == ("api-extensions",)


def test_a_pool_scales_by_its_ceiling() -> None:
    scale = RESOURCES.of(ExporterSet).scale
    assert scale is not None
    assert scale.spec == ("spec", "maxReplicas")


def test_loading_the_table_loads_no_validator() -> None:
    """The command line must start at once; most commands validate nothing."""
    heavy = ("jsonschema_rs", "cel_expr_python.cel", "yaml", "grpc", "hypothesis")
    code = f"import sys, bullpen.api.resources; print([m for m in {heavy!r} if m in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=30
    )
    assert done.stdout.strip() == "[]"


def test_the_schemas_default_cooldown_is_the_values() -> None:
    (cooldown,) = (a for a in attributes(ExporterSetSpec) if a.name == "scale_down_cooldown")
    assert cooldown.default == durations.parse(str(cooldown.limits.default))
    assert cooldown.default == timedelta(minutes=5)


@pytest.mark.parametrize("resource", list(RESOURCES), ids=lambda item: item.plural)
def test_every_struct_of_every_kind_is_described(resource: object) -> None:
    seen: set[object] = set()

    def walk(cls: object) -> None:
        if not (isinstance(cls, type) and issubclass(cls, Struct)) or cls in seen:
            return
        seen.add(cls)
        assert cls.__doc__
        assert not cls.__doc__.startswith(f"{cls.__name__}("), cls
        for attribute in attributes(cls):
            assert attribute.limits.description.endswith("."), attribute.name
            for part in (attribute.hint, *getattr(attribute.hint, "__args__", ())):
                walk(part)

    walk(getattr(resource, "value", None))
    assert seen


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param("", LabelSelector(), id="nothing"),
        pytest.param(
            "b=1,a=2", LabelSelector(match_labels={"a": "2", "b": "1"}), id="equalities are labels"
        ),
        pytest.param("a=1,a=1", LabelSelector(match_labels={"a": "1"}), id="said twice"),
        pytest.param(
            "a in (y,x),!b,c",
            LabelSelector(
                match_expressions=(
                    LabelSelectorRequirement(key="a", operator="In", values=("x", "y")),
                    LabelSelectorRequirement(key="b", operator="DoesNotExist"),
                    LabelSelectorRequirement(key="c", operator="Exists"),
                )
            ),
            id="the rest are expressions",
        ),
        pytest.param(
            "a!=2,a!=1,a notin (1,3)",
            LabelSelector(
                match_expressions=(
                    LabelSelectorRequirement(key="a", operator="NotIn", values=("1", "2", "3")),
                )
            ),
            id="what one key must not be is one requirement",
        ),
        pytest.param(
            "a in (x),a in (y)",
            LabelSelector(
                match_expressions=(
                    LabelSelectorRequirement(key="a", operator="In", values=("x",)),
                    LabelSelectorRequirement(key="a", operator="In", values=("y",)),
                )
            ),
            id="what it must be is not merged: that would mean something else",
        ),
    ],
)
def test_a_selector_has_an_object_form(text: str, expected: LabelSelector) -> None:
    assert label_selector(parse_labels(text)) == expected


@pytest.mark.parametrize("text", ["", "a=1", "a in (x,y),b notin (z)", "!a,b"])
def test_the_object_form_prints_as_it_was_written(text: str) -> None:
    assert str(label_selector(parse_labels(text)).selector()) == text


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        pytest.param("a=1,a=2", "two different values of 'a'", id="a contradiction"),
        pytest.param("a>1", "compares numbers", id="a comparison"),
    ],
)
def test_what_the_object_form_cannot_say_is_refused(text: str, hint: str) -> None:
    with pytest.raises(BadRequest, match=hint):
        label_selector(parse_labels(text))


def test_a_secrets_data_is_read_decoded() -> None:
    secret = Secret(data={"token": "YWJj"})
    assert secret.read("token") == b"abc"
    assert secret.read("gone") is None
