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
from bullpen.sim.truth import Raw

POOL = "lasting"
LABELS = {"board": "lasting"}
REPLICAS_MAX = 4
PATH = f"/apis/subresources.{VIRTUAL}/namespaces/{SPACE}/virtualtargetpools/{POOL}/scaledownwith"


RETAINED = {"onScaleDown": "Retain"}
RECLAIMS: tuple[Raw, ...] = (
    RETAINED,
    {"onScaleDown": "Delete"},
    {**RETAINED, "ttl": "5s"},
    {**RETAINED, "ttl": "5s", "keep": 1},
)
"""What may become of the disks of a template."""


class LastingOperator:
    def __init__(self, stage: Stage, operator: Operator) -> None:
        self._stage = stage
        self._operator = operator
        self._flavour = "first"
        self._mebibytes = 8
        self._reclaims: dict[str, Raw] = {"root": RETAINED}
        """The disk templates, in boot order."""

    async def prepare(self, replicas: int) -> None:
        spec = {
            "replicas": replicas,
            "scaleDownPolicy": ("NewestFirst", "OldestFirst", "Explicit")[replicas % 3],
            "updateStrategy": {"type": "Replace" if replicas % 2 else "InPlace"},
            **self._members_and_disks(),
        }
        await self._operator.apply(object_of(VIRTUAL, "VirtualTargetPool", POOL, spec=spec))

    async def scale(self, chance: random.Random) -> None:
        await self._change({"replicas": chance.randint(0, REPLICAS_MAX)})

    async def edit_template(self, chance: random.Random) -> None:
        self._flavour = f"flavour{chance.randint(0, 2)}"
        await self._change({"template": self._members_and_disks()["template"]})

    async def grow(self, chance: random.Random) -> None:
        """Ask for another size; a smaller one concerns new disks only."""
        self._mebibytes = chance.choice((8, 16, 32, 64))
        await self._change(self._members_and_disks())

    async def change_disks(self, chance: random.Random) -> None:
        """Change what becomes of the boot disks, and add a second disk or remove it."""
        self._reclaims = {"root": chance.choice(RECLAIMS)}
        if chance.random() < 0.5:
            self._reclaims["cache"] = chance.choice(RECLAIMS)
        await self._change(self._members_and_disks())

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

    def _members_and_disks(self) -> Raw:
        """The template of the members, and those of their disks."""
        member = {
            "virtualTargetClassName": "fake",
            "drivers": [{"name": self._flavour, "type": "a.B"}],
            "disks": [{"virtualDisk": name} for name in self._reclaims],
        }
        size = {"size": f"{self._mebibytes}Mi"}
        return {
            "template": {"metadata": {"labels": LABELS}, "spec": member},
            "virtualDiskTemplates": [
                {"name": name, "reclaim": reclaim, "spec": size}
                for name, reclaim in self._reclaims.items()
            ],
        }

    def _members(self) -> list[str]:
        return sorted(
            target["metadata"]["name"] for target in self._stage.truth.all("VirtualTarget")
        )
