"""Members are removed by name from Python, over HTTP."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass

import pytest

from bullpen.api import codec
from bullpen.api.kinds.virtualtarget import VirtualTarget
from bullpen.api.kinds.virtualtargetpool import VirtualTargetPool
from bullpen.api.objects import Objects
from bullpen.client.pools import Member, Pools, ScaledDown
from bullpen.cluster.objects import ClusterObjects
from bullpen.errors import BadRequest, NotFound
from support.objects_homes import http_home

SPACE = "lab"
MEMBER = {"virtualTargetClassName": "any"}


@dataclass(frozen=True)
class Lab:
    objects: Objects
    pools: Pools

    async def count(self) -> int:
        return (await self.objects.get(VirtualTargetPool, SPACE, "p")).spec.replicas


@pytest.fixture
async def lab() -> AsyncIterator[Lab]:
    """An Explicit pool of three, and the pools of its API server as a program sees them."""
    async with http_home() as home:
        assert isinstance(home.objects, ClusterObjects)
        spec = {"replicas": 3, "scaleDownPolicy": "Explicit", "template": {"spec": MEMBER}}
        pool = await home.objects.create(
            codec.decode(
                VirtualTargetPool, {"metadata": {"name": "p", "namespace": SPACE}, "spec": spec}
            )
        )
        owner = {
            "apiVersion": pool.api_version,
            "kind": pool.kind,
            "name": "p",
            "uid": pool.metadata.uid,
            "controller": True,
        }
        for number in range(3):
            meta = {"name": f"p-{number}", "namespace": SPACE, "ownerReferences": [owner]}
            await home.objects.create(
                codec.decode(VirtualTarget, {"metadata": meta, "spec": MEMBER})
            )
        async with Pools(home.objects.access) as pools:
            yield Lab(home.objects, pools)


async def test_members_leave_once_however_often_they_are_named(lab: Lab) -> None:
    done = await lab.pools.scale_down("virtualtargetpool/p", ["p-1", "p-1"], namespace=SPACE)
    assert done == ScaledDown(replicas=2, leaving=("p-1",), already_leaving=())
    again = await lab.pools.scale_down("virtualtargetpool/p", ["p-1"], namespace=SPACE)
    assert again == ScaledDown(replicas=2, leaving=(), already_leaving=("p-1",))
    assert await lab.count() == 2


async def test_a_dry_run_says_what_would_happen(lab: Lab) -> None:
    done = await lab.pools.scale_down("virtualtargetpool/p", ["p-0"], namespace=SPACE, dry_run=True)
    assert (done.replicas, done.leaving) == (2, ("p-0",))
    assert await lab.count() == 3


async def test_a_member_can_be_meant_by_its_uid(lab: Lab) -> None:
    target = await lab.objects.get(VirtualTarget, SPACE, "p-0")
    for uid, leaving in (("another", ()), (target.metadata.uid, ("p-0",))):
        named = [Member(name="p-0", uid=uid)]
        done = await lab.pools.scale_down("virtualtargetpools/p", named, namespace=SPACE)
        assert done.leaving == leaving


async def test_mistakes_are_refused_and_change_nothing(lab: Lab) -> None:
    scale_down = lab.pools.scale_down
    with pytest.raises(BadRequest, match="p-7 is not a member of p"):
        await scale_down("virtualtargetpool/p", ["p-0", "p-7"], namespace=SPACE)
    with pytest.raises(BadRequest, match="lease is no kind of pool"):
        await scale_down("lease/p", ["p-0"], namespace=SPACE)
    with pytest.raises(BadRequest, match="write virtualtargetpool/NAME"):
        await scale_down("virtualtargetpool", ["p-0"], namespace=SPACE)
    with pytest.raises(NotFound):
        await scale_down("virtualtargetpool/q", ["p-0"], namespace=SPACE)
    assert await lab.count() == 3
