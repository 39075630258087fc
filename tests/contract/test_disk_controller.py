"""VirtualDisks from creation to deletion, with what happens to them by hand and by accident."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from bullpen.api.kinds.core import Event
from bullpen.api.kinds.virtualdisk import (
    DiskImage,
    DiskPhase,
    DiskSource,
    VirtualDisk,
    VirtualDiskSpec,
)
from bullpen.api.kinds.virtualtarget import TargetDisk, VirtualTarget, VirtualTargetSpec
from bullpen.api.meta import ObjectMeta
from bullpen.core.conditions import get
from bullpen.core.targets.disks import StoredDisk
from bullpen.errors import NoCapacity, NotFound, Refused
from support.pool_world import NAMESPACE, World

MIB = 1 << 20


async def make(world: World, name: str = "root", **spec: Any) -> VirtualDisk:
    meta = ObjectMeta(name=name, namespace=NAMESPACE)
    given = VirtualDiskSpec(**{"size": "8Mi", **spec})
    return await world.objects.create(VirtualDisk(metadata=meta, spec=given))


def disk(world: World, name: str = "root") -> VirtualDisk:
    found = world.views[VirtualDisk].get(NAMESPACE, name)
    assert found is not None
    return found


def phase(world: World, name: str = "root") -> str:
    found = world.views[VirtualDisk].get(NAMESPACE, name)
    return found.status.phase.value if found is not None else ""


def reason(world: World, name: str = "root") -> str:
    found = get(disk(world, name).status.conditions, "Ready")
    return found.reason if found is not None else ""


async def attach(world: World, name: str, *disks: str, opened: bool = False) -> None:
    """A target that names these disks; no controller of it runs here."""
    spec = VirtualTargetSpec(
        virtual_target_class_name="none",
        disks=tuple(TargetDisk(virtual_disk=each) for each in disks),
    )
    meta = ObjectMeta(name=name, namespace=NAMESPACE)
    made = await world.objects.create(VirtualTarget(metadata=meta, spec=spec))
    if opened:
        await world.objects.update_status(replace(made, status=replace(made.status, disks=disks)))


async def resize(world: World, size: str) -> None:
    found = disk(world)
    await world.objects.update(replace(found, spec=replace(found.spec, size=size)))


def test_a_disk_is_created_grown_and_deleted_with_its_content() -> None:
    async def story(world: World) -> None:
        await make(world)
        await world.until(lambda: phase(world) == "Ready")
        assert (disk(world).status.capacity, disk(world).status.host) == ("8Mi", "memory")
        await resize(world, "16Mi")
        await world.until(lambda: disk(world).status.capacity == "16Mi")
        await world.remove(VirtualDisk, "root")
        await world.until(lambda: phase(world) == "")
        assert not world.disk_storage.stored

    World().run(story)


def test_a_copy_waits_for_its_source_and_for_the_machine_that_has_it_open() -> None:
    async def story(world: World) -> None:
        await make(world, "copy", size="", source=DiskSource(virtual_disk="golden"))
        await world.until(lambda: reason(world, "copy") == "SourceNotFound")
        await make(world, "golden")
        await world.until(lambda: phase(world, "copy") == "Ready", seconds=5)
        assert disk(world, "copy").status.capacity == "8Mi"
        await attach(world, "vm", "golden", opened=True)
        await world.until(lambda: disk(world, "golden").status.attached_to == "vm")
        await make(world, "late", size="", source=DiskSource(virtual_disk="golden"))
        await world.until(lambda: reason(world, "late") == "SourceInUse")
        await world.remove(VirtualTarget, "vm")
        await world.until(lambda: phase(world, "late") == "Ready", seconds=5)

    World().run(story)


def test_a_disk_is_attached_to_one_target_at_most_and_goes_to_the_next() -> None:
    async def story(world: World) -> None:
        await make(world)
        await attach(world, "first", "root")
        await world.until(lambda: disk(world).status.attached_to == "first")
        await attach(world, "second", "root", opened=True)
        await world.until(lambda: disk(world).status.attached_to == "second")
        await world.remove(VirtualTarget, "second")
        await world.until(lambda: disk(world).status.attached_to == "first")
        await world.remove(VirtualTarget, "first")
        await world.until(lambda: disk(world).status.attached_to == "")

    World().run(story)


def test_a_deleted_disk_stays_while_a_machine_has_it_open() -> None:
    async def story(world: World) -> None:
        await make(world)
        await attach(world, "vm", "root", opened=True)
        await world.until(lambda: disk(world).status.attached_to == "vm")
        await world.remove(VirtualDisk, "root")
        await world.until(lambda: phase(world) == "Terminating")
        assert reason(world) == "InUse"
        await world.always(lambda: len(world.disk_storage.stored) == 1, seconds=120)
        await world.remove(VirtualTarget, "vm")
        await world.until(lambda: not world.disk_storage.stored, seconds=5)

    World().run(story)


@pytest.mark.parametrize(
    ("found", "expected", "why"),
    [
        (None, DiskPhase.LOST, "ContentLost"),
        (
            StoredDisk(virtual_bytes=0, allocated_bytes=0, problem="not in qcow2 format"),
            DiskPhase.FAILED,
            "Damaged",
        ),
    ],
    ids=["lost", "damaged"],
)
def test_content_that_is_lost_or_damaged_is_reported_with_no_other_event(
    found: StoredDisk | None, expected: DiskPhase, why: str
) -> None:
    async def story(world: World) -> None:
        await make(world)
        await world.until(lambda: phase(world) == "Ready")
        (key, before), *_ = world.disk_storage.stored.items()
        if found is None:
            del world.disk_storage.stored[key]
        else:
            world.disk_storage.stored[key] = found
        await world.until(lambda: disk(world).status.phase is expected, seconds=90)
        assert reason(world) == why
        await world.sleep(1)
        events = (await world.objects.list(Event)).items
        assert any(event.reason == why and event.type == "Warning" for event in events)
        world.disk_storage.stored[key] = before
        await world.until(lambda: phase(world) == "Ready", seconds=90)

    World().run(story)


def test_a_full_storage_is_an_error_on_the_object_and_passes() -> None:
    async def story(world: World) -> None:
        world.disk_storage.fault = NoCapacity("3 MiB are free")
        await make(world)
        await world.until(lambda: reason(world) == "NoSpace")
        assert phase(world) == "Pending"
        world.disk_storage.fault = None
        await world.until(lambda: phase(world) == "Ready", seconds=30)

    World().run(story)


def test_a_refused_source_is_an_error_on_the_object_and_can_be_deleted() -> None:
    async def story(world: World) -> None:
        world.disk_storage.fault = Refused("/a has digest sha256:0")
        await make(world, source=DiskSource(image=DiskImage(path="/a")))
        await world.until(lambda: phase(world) == "Failed")
        assert reason(world) == "SourceRefused"
        await world.remove(VirtualDisk, "root")
        await world.until(lambda: phase(world) == "")
        with pytest.raises(NotFound):
            await world.objects.get(VirtualDisk, NAMESPACE, "root")

    World().run(story)


def test_a_disk_that_a_machine_has_open_grows_once_it_is_closed() -> None:
    async def story(world: World) -> None:
        await make(world)
        await attach(world, "vm", "root", opened=True)
        await world.until(lambda: disk(world).status.attached_to == "vm")
        await resize(world, "16Mi")
        await world.until(lambda: reason(world) == "ResizePending")
        await world.remove(VirtualTarget, "vm")
        await world.until(lambda: disk(world).status.capacity == "16Mi", seconds=5)

    World().run(story)
