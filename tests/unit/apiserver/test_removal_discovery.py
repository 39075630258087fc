"""Removal by name is discovered in its own group, in both formats."""

from __future__ import annotations

from typing import Any

import pytest

from bullpen.api.resources import RESOURCES
from bullpen.apiserver import discovery

GROUP = "subresources.virtualtarget.jumpstarter.dev"


def test_the_group_is_listed_with_its_version() -> None:
    found = discovery.api_group(RESOURCES, GROUP)
    assert found is not None
    assert found["preferredVersion"]["groupVersion"] == f"{GROUP}/v1alpha1"


POOLS = ("exportersets", "virtualtargetpools")


def test_it_has_the_subresources_and_no_resource() -> None:
    found = discovery.api_resources(RESOURCES, GROUP, "v1alpha1")
    assert found is not None
    entries = found["resources"]
    assert {entry["name"] for entry in entries} == {f"{name}/scaledownwith" for name in POOLS}
    assert {(entry["kind"], *entry["verbs"]) for entry in entries} == {("ScaleDownWith", "create")}


@pytest.mark.parametrize("plural", POOLS)
def test_a_plural_without_a_group_means_the_pool(plural: str) -> None:
    listed: Any = discovery.aggregated(RESOURCES, core=False, version="v2")["items"]
    having = [
        (group["metadata"]["name"], resource["verbs"] != [])
        for group in listed
        for version in group["versions"]
        for resource in version["resources"]
        if resource["resource"] == plural
    ]
    assert having == [("virtualtarget.jumpstarter.dev", True), (GROUP, False)]
    (last,) = (r for r in listed[-1]["versions"][0]["resources"] if r["resource"] == plural)
    assert [each["subresource"] for each in last["subresources"]] == ["scaledownwith"]
