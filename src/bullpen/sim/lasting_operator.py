"""What people do with a pool of lasting targets."""

from __future__ import annotations

import asyncio
import random

from bullpen.api.resources import RESOURCES
from bullpen.apiserver.routes import ObjectRoute, route
from bullpen.apiserver.scaledown import MANAGER, ScaleDowns
from bullpen.registry.objects import RegistryObjects
from bullpen.registry.registry import Registry
from bullpen.sim.operators import SPACE, VIRTUAL, Operator, Stage, object_of

POOL = "lasting"
LABELS = {"board": "lasting"}
REPLICAS_MAX = 4
PATH = f"/apis/subresources.{VIRTUAL}/namespaces/{SPACE}/virtualtargetpools/{POOL}/scaledownwith"


class LastingOperator:
    def __init__(self, stage: Stage, operator: Operator) -> None:
        self._stage = stage
        self._operator = operator

    async def prepare(self, replicas: int) -> None:
        spec = {
            "replicas": replicas,
            "scaleDownPolicy": ("NewestFirst", "OldestFirst", "Explicit")[replicas % 3],
            "updateStrategy": {"type": "Replace" if replicas % 2 else "InPlace"},
            "template": _template("first"),
            "virtualDiskTemplates": [_disk(8)],
        }
        await self._operator.apply(object_of(VIRTUAL, "VirtualTargetPool", POOL, spec=spec))

    async def scale(self, chance: random.Random) -> None:
        await self._change({"replicas": chance.randint(0, REPLICAS_MAX)})

    async def edit_template(self, chance: random.Random) -> None:
        await self._change({"template": _template(f"flavour{chance.randint(0, 2)}")})

    async def grow(self, chance: random.Random) -> None:
        """Ask for another size; a smaller one concerns new disks only."""
        await self._change({"virtualDiskTemplates": [_disk(chance.choice((8, 16, 32, 64)))]})

    async def pause(self, chance: random.Random) -> None:
        await self._change({"paused": True})
        await asyncio.sleep(chance.uniform(1, 10))
        await self._change({"paused": False})

    async def remove_by_name(self, chance: random.Random) -> None:
        """Asked for twice, as by a caller that has not heard the answer."""
        members = self._members()
        if not members:
            return
        name = chance.choice(members)
        target = route(PATH, RESOURCES)
        assert isinstance(target, ObjectRoute)

        async def work(registry: Registry) -> None:
            body = {"targets": [name], "whenIdle": True}
            downs = ScaleDowns(RegistryObjects(registry, manager=MANAGER))
            await downs.answer(target, body, dry_run=False)

        for _ in range(2):
            await self._operator.do(f"removes {name} by name", work)
            await asyncio.sleep(chance.uniform(0, 3))

    async def delete_target(self, chance: random.Random) -> None:
        members = self._members()
        if members:
            await self._operator.delete("VirtualTarget", SPACE, chance.choice(members))

    async def stop_target(self, chance: random.Random) -> None:
        members = self._members()
        if members:
            name = chance.choice(members)
            await self._operator.change("VirtualTarget", name, {"spec": {"running": False}})
            await asyncio.sleep(chance.uniform(1, 10))
            await self._operator.change("VirtualTarget", name, {"spec": {"running": True}})

    async def _change(self, spec: dict[str, object]) -> None:
        await self._operator.change("VirtualTargetPool", POOL, {"spec": spec})

    def _members(self) -> list[str]:
        return sorted(
            target["metadata"]["name"] for target in self._stage.truth.all("VirtualTarget")
        )


def _disk(mebibytes: int) -> dict[str, object]:
    reclaim = {"onScaleDown": "Retain"}
    return {"name": "root", "reclaim": reclaim, "spec": {"size": f"{mebibytes}Mi"}}


def _template(flavour: str) -> dict[str, object]:
    member = {
        "virtualTargetClassName": "fake",
        "drivers": [{"name": flavour, "type": "a.B"}],
        "disks": [{"virtualDisk": "root"}],
    }
    return {"metadata": {"labels": LABELS}, "spec": member}
