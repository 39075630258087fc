"""What tests of claims over the whole lab have in common: classes, claims, and what they got."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

from bullpen.api import codec
from bullpen.api.fields import Kind
from bullpen.api.kinds.deviceclaim import DeviceClaim
from bullpen.api.kinds.deviceclass import DeviceClass
from bullpen.api.kinds.exporter import Exporter
from bullpen.api.kinds.lease import Lease
from bullpen.core import conditions
from bullpen.core.lab_index import holder_of
from bullpen.errors import Conflict
from support.lab_world import SPACE, LabWorld


async def make(world: LabWorld, kind: type[Kind], name: str, **parts: Any) -> Any:
    meta = {"name": name} if kind is DeviceClass else {"name": name, "namespace": SPACE}
    document = {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": meta, **parts}
    return await world.objects.create(codec.decode(kind, document))


async def make_claim(world: LabWorld, name: str, *requests: dict[str, Any], **spec: Any) -> None:
    """A claim of alice for two exporters and an hour, unless it says otherwise."""
    asked = requests or ({"name": "boards", "exactly": {"deviceClassName": "any", "count": 2}},)
    whole = {"clientRef": {"name": "alice"}, "requests": list(asked), "duration": "1h", **spec}
    await make(world, DeviceClaim, name, spec=whole)


@contextlib.asynccontextmanager
async def lab(world: LabWorld, *exporters: str, obey: bool = True) -> AsyncIterator[None]:
    """Connected exporters, and a class of all of them."""
    everything = {"labels": {"matchExpressions": [{"key": "no-such", "operator": "DoesNotExist"}]}}
    await make(world, DeviceClass, "any", spec={"selectors": [everything]})
    async with contextlib.AsyncExitStack() as stack:
        for name in exporters:
            (await stack.enter_async_context(world.player(name))).obeys = obey
        await world.settle()
        yield


def claim(world: LabWorld, name: str = "c") -> DeviceClaim:
    found = world.views[DeviceClaim].get(SPACE, name)
    assert found is not None, f"there is no claim {name}"
    return found


def said(world: LabWorld, name: str = "c") -> tuple[str, str]:
    """Status and reason of the claim's condition Allocated."""
    found = world.views[DeviceClaim].get(SPACE, name)
    here = conditions.get(found.status.conditions, "Allocated") if found is not None else None
    return (here.status, here.reason) if here is not None else ("", "")


def leases_of(world: LabWorld, name: str = "c") -> list[Lease]:
    """Open leases of a claim."""
    found = world.views.leases.all(SPACE)
    mine = [x for x in found if any(r.name == name for r in x.metadata.owner_references)]
    return [x for x in mine if not x.status.ended]


def holders(world: LabWorld) -> dict[str, str]:
    """By exporter, the lease that holds it."""
    found = world.views.exporters.all(SPACE)
    return {e.metadata.name: holder_of(e) for e in found if holder_of(e)}


async def allocated(world: LabWorld, name: str = "c") -> DeviceClaim:
    await world.until(lambda: said(world, name) == ("True", "Allocated"))
    return claim(world, name)


async def ended(world: LabWorld, name: str = "c") -> str:
    await world.until(lambda: claim(world, name).status.ended, seconds=7200)
    return said(world, name)[1]


async def edit(world: LabWorld, name: str = "c", **spec: Any) -> None:
    for _ in range(5):
        found = await world.objects.get(DeviceClaim, SPACE, name)
        with contextlib.suppress(Conflict):
            await world.objects.update(replace(found, spec=replace(found.spec, **spec)))
            return
        await asyncio.sleep(0.01)
    raise AssertionError(f"{name} kept changing")


async def enable(world: LabWorld, name: str, *, enabled: bool) -> None:
    found = await world.objects.get(Exporter, SPACE, name)
    await world.objects.update(replace(found, spec=replace(found.spec, enabled=enabled)))
