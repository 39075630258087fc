"""Gap 2: an Explicit pool never shrinks anonymously, whichever way it is asked."""

from __future__ import annotations

from typing import Any

import pytest

from bullpen.api.paths import Document, decode
from bullpen.errors import Invalid
from bullpen.registry.options import PatchType
from bullpen.store.base import Store
from support.registry_helpers import Lab, document, resource

POOLS = {
    kind: resource("virtualtarget.jumpstarter.dev/v1alpha1", kind)
    for kind in ("VirtualTargetPool", "ExporterSet")
}
COUNTS = {"VirtualTargetPool": "replicas", "ExporterSet": "maxReplicas"}
"""The field that the scale subresource writes."""


@pytest.fixture
async def lab(store: Store) -> Lab:
    made = Lab(store)
    await made.registry.ensure_namespaces(["default"])
    return made


def pool(kind: str, policy: str) -> Document:
    spec: Document = {COUNTS[kind]: 3, "scaleDownPolicy": policy}
    if kind == "ExporterSet":
        labels = {"board": "a"}
        spec |= {
            "virtualTargetClassName": "qemu",
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}},
        }
    else:
        spec["template"] = {"spec": {"virtualTargetClassName": "qemu"}}
    return document(POOLS[kind], "a", spec=spec)


WAYS: dict[str, tuple[PatchType | None, str]] = {
    "scale, by update": (None, "scale"),
    "scale, by patch": (PatchType.MERGE, "scale"),
    "scale, by apply": (PatchType.APPLY, "scale"),
    "the object, by update": (None, ""),
    "the object, by patch": (PatchType.MERGE, ""),
    "the object, by apply": (PatchType.APPLY, ""),
}


async def scale(lab: Lab, kind: str, way: str, count: int) -> None:
    patch_type, subresource = WAYS[way]
    found_in, options = POOLS[kind], {"subresource": subresource, "field_manager": "scaler"}
    field = "replicas" if subresource else COUNTS[kind]
    if patch_type is None:
        found = decode(lab.registry.get(found_in, "default", "a", subresource=subresource))
        found["spec"][field] = count
        await lab.update(found_in, found, **options)
        return
    name = {"kind": "Scale", "apiVersion": "autoscaling/v1"} if subresource else {}
    whole = {"apiVersion": found_in.api_version, "kind": kind, "metadata": {"name": "a"}}
    identity = name or (whole if patch_type is PatchType.APPLY else {})
    force = {"force": True} if patch_type is PatchType.APPLY else {}
    patch = {**identity, "spec": {field: count}}
    await lab.patch(found_in, "a", patch_type, patch, **options, **force)


def count(lab: Lab, kind: str) -> Any:
    return lab.get(POOLS[kind], "a")["spec"][COUNTS[kind]]


@pytest.mark.parametrize("kind", POOLS)
@pytest.mark.parametrize("way", WAYS)
async def test_an_explicit_pool_refuses_a_lower_count_and_names_the_way_that_works(
    lab: Lab, kind: str, way: str
) -> None:
    await lab.create(POOLS[kind], pool(kind, "Explicit"))
    with pytest.raises(Invalid, match=f"bullpen scale-down {kind.lower()}/NAME"):
        await scale(lab, kind, way, 2)
    assert count(lab, kind) == 3
    await scale(lab, kind, way, 4)
    assert count(lab, kind) == 4


@pytest.mark.parametrize("kind", POOLS)
@pytest.mark.parametrize("way", WAYS)
async def test_other_pools_take_any_count_through_every_way(lab: Lab, kind: str, way: str) -> None:
    await lab.create(POOLS[kind], pool(kind, "NewestFirst"))
    for wanted in (5, 1):
        await scale(lab, kind, way, wanted)
        assert count(lab, kind) == wanted


async def test_a_set_from_before_the_policy_can_shrink(lab: Lab) -> None:
    made = pool("ExporterSet", "NewestFirst")
    del made["spec"]["scaleDownPolicy"]
    await lab.create(POOLS["ExporterSet"], made)
    assert lab.get(POOLS["ExporterSet"], "a")["spec"]["scaleDownPolicy"] == "NewestFirst"
    await scale(lab, "ExporterSet", "scale, by patch", 2)
    assert count(lab, "ExporterSet") == 2
