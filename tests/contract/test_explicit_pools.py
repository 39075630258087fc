"""Gap 2: an Explicit pool never shrinks anonymously, whichever way it is asked."""

from __future__ import annotations

from typing import Any

import pytest

from bullpen.api.paths import Document, decode
from bullpen.errors import Invalid
from bullpen.registry.options import PatchType
from bullpen.store.base import Store
from support.registry_helpers import Lab, document, resource

POOL = resource("virtualtarget.jumpstarter.dev/v1alpha1", "VirtualTargetPool")


@pytest.fixture
async def lab(store: Store) -> Lab:
    made = Lab(store)
    await made.registry.ensure_namespaces(["default"])
    return made


def pool(policy: str) -> Document:
    spec = {
        "replicas": 3,
        "scaleDownPolicy": policy,
        "template": {"spec": {"virtualTargetClassName": "qemu"}},
    }
    return document(POOL, "a", spec=spec)


WAYS: dict[str, tuple[PatchType | None, str]] = {
    "scale, by update": (None, "scale"),
    "scale, by patch": (PatchType.MERGE, "scale"),
    "scale, by apply": (PatchType.APPLY, "scale"),
    "the object, by update": (None, ""),
    "the object, by patch": (PatchType.MERGE, ""),
    "the object, by apply": (PatchType.APPLY, ""),
}


async def scale(lab: Lab, way: str, replicas: int) -> None:
    kind, subresource = WAYS[way]
    options: dict[str, Any] = {"subresource": subresource, "field_manager": "scaler"}
    if kind is None:
        found = decode(lab.registry.get(POOL, "default", "a", subresource=subresource))
        found["spec"]["replicas"] = replicas
        await lab.update(POOL, found, **options)
        return
    name = {"kind": "Scale", "apiVersion": "autoscaling/v1"} if subresource else {}
    whole = {"apiVersion": POOL.api_version, "kind": POOL.kind, "metadata": {"name": "a"}}
    identity = name or (whole if kind is PatchType.APPLY else {})
    force = {"force": True} if kind is PatchType.APPLY else {}
    patch = {**identity, "spec": {"replicas": replicas}}
    await lab.patch(POOL, "a", kind, patch, **options, **force)


@pytest.mark.parametrize("way", WAYS)
async def test_an_explicit_pool_refuses_a_lower_count_and_names_the_way_that_works(
    lab: Lab, way: str
) -> None:
    await lab.create(POOL, pool("Explicit"))
    with pytest.raises(Invalid, match="bullpen scale-down"):
        await scale(lab, way, 2)
    assert lab.get(POOL, "a")["spec"]["replicas"] == 3
    await scale(lab, way, 4)
    assert lab.get(POOL, "a")["spec"]["replicas"] == 4


@pytest.mark.parametrize("way", WAYS)
async def test_other_pools_take_any_count_through_every_way(lab: Lab, way: str) -> None:
    await lab.create(POOL, pool("NewestFirst"))
    for replicas in (5, 1, 0):
        await scale(lab, way, replicas)
        assert lab.get(POOL, "a")["spec"]["replicas"] == replicas
