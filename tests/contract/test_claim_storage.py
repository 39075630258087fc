"""Lasting disks in a cluster: a claim for each, which no Pod owns, and Pods that mount it."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest
from test_pod_pools import PodWorld

from bullpen.api.claim import ClaimStatus, PersistentVolumeClaim
from bullpen.api.kinds.virtualdisk import DiskImage, DiskSource, VirtualDisk, VirtualDiskSpec
from bullpen.api.kinds.virtualtarget import TargetDisk, VirtualTarget, VirtualTargetSpec
from bullpen.api.meta import ObjectMeta
from bullpen.api.objects import Objects
from bullpen.api.pod import CLUSTER_RESOURCES, Pod
from bullpen.core.targets.disks import Create
from bullpen.errors import Forbidden, NoCapacity, NotFound, Refused, Unreachable
from bullpen.kit.clock import SystemClock
from bullpen.kit.ids import RandomIds
from bullpen.placements.pod.claim_storage import SIZE, ClaimStorage
from bullpen.provisioners.mock import NAME
from bullpen.registry.objects import RegistryObjects
from bullpen.registry.registry import Registry
from bullpen.store.journaled import MemoryStore
from support.pool_world import NAMESPACE

MIB = 1 << 20
KEY = (NAMESPACE, "root")


@pytest.fixture
async def objects() -> Objects:
    ids = RandomIds(random.Random(3))
    registry = Registry(MemoryStore(), clock=SystemClock(), ids=ids, resources=CLUSTER_RESOURCES)
    await registry.ensure_namespaces((NAMESPACE,))
    return RegistryObjects(registry, manager="test")


async def make(objects: Objects, name: str = "root", **spec: Any) -> VirtualDisk:
    meta = ObjectMeta(name=name, namespace=NAMESPACE)
    given = VirtualDiskSpec(**{"size": "8Mi", **spec})
    return await objects.create(VirtualDisk(metadata=meta, spec=given))


async def claim(objects: Objects, name: str = "root") -> PersistentVolumeClaim:
    return await objects.get(PersistentVolumeClaim, NAMESPACE, name)


async def test_a_disk_is_a_claim_with_room_for_its_file(objects: Objects) -> None:
    disk, storage = await make(objects, storage_class_name="fast"), ClaimStorage(objects)
    uid = disk.metadata.uid
    assert await storage.look(KEY, uid) is None
    for _ in range(2):
        made = await storage.create(KEY, uid, Create(size_bytes=8 * MIB))
        assert (made.virtual_bytes, made.problem) == (8 * MIB, "")
    found = await claim(objects)
    assert found.spec["storageClassName"] == "fast"
    assert found.spec["resources"] == {"requests": {"storage": "73Mi"}}
    (owner,) = found.metadata.owner_references
    assert (owner.kind, owner.uid) == ("VirtualDisk", uid), "and no Pod"
    assert await storage.look(KEY, uid) == made
    assert await storage.look(KEY, "another") is None


async def test_a_claim_that_waits_for_its_first_pod_is_as_good_as_a_bound_one(
    objects: Objects,
) -> None:
    """Else a disk that is bound by its first use would never be used (field bug 3)."""
    disk, storage = await make(objects), ClaimStorage(objects)
    await storage.create(KEY, disk.metadata.uid, Create(size_bytes=8 * MIB))
    for phase, usable in (("Pending", True), ("Bound", True), ("Lost", False)):
        found = await claim(objects)
        status = ClaimStatus(phase=phase, capacity={"storage": "80Mi"})
        await objects.update_status(replace(found, status=status))
        seen = await storage.look(KEY, disk.metadata.uid)
        assert seen is not None
        assert (not seen.problem) is usable, phase
        assert seen.allocated_bytes == 80 * MIB


async def test_a_claim_grows_with_its_disk_and_never_shrinks(objects: Objects) -> None:
    disk, storage = await make(objects), ClaimStorage(objects)
    uid = disk.metadata.uid
    await storage.create(KEY, uid, Create(size_bytes=8 * MIB))
    for size in (16 * MIB, 8 * MIB):
        assert (await storage.grow(KEY, uid, size)).virtual_bytes == 16 * MIB
    found = await claim(objects)
    assert found.spec["resources"] == {"requests": {"storage": "82Mi"}}
    assert found.metadata.annotations[SIZE] == str(16 * MIB)
    with pytest.raises(Refused, match="is gone"):
        await storage.grow(KEY, "another", 32 * MIB)


async def test_a_copy_is_made_by_the_storage_of_the_cluster(objects: Objects) -> None:
    source = await make(objects, "golden")
    status = replace(source.status, capacity="32Mi")
    source = await objects.update_status(replace(source, status=status))
    copied = DiskSource(virtual_disk="golden")
    disk, storage = await make(objects, size="", source=copied), ClaimStorage(objects)
    made = await storage.create(KEY, disk.metadata.uid, Create(size_bytes=None, copy_of=source))
    assert made.virtual_bytes == 32 * MIB
    found = await claim(objects)
    assert found.spec["dataSource"] == {"kind": "PersistentVolumeClaim", "name": "golden"}


async def test_an_image_without_a_size_is_refused(objects: Objects) -> None:
    disk, storage = await make(objects), ClaimStorage(objects)
    step = Create(size_bytes=None, image=DiskImage(path="/image.qcow2"))
    with pytest.raises(Refused, match="needs a size"):
        await storage.create(KEY, disk.metadata.uid, step)


async def test_only_the_claim_of_this_disk_is_touched(objects: Objects) -> None:
    disk, storage = await make(objects), ClaimStorage(objects)
    uid = disk.metadata.uid
    meta = ObjectMeta(name="root", namespace=NAMESPACE)
    await objects.create(PersistentVolumeClaim(metadata=meta, spec={"accessModes": []}))
    with pytest.raises(Refused, match="does not belong to this disk"):
        await storage.create(KEY, uid, Create(size_bytes=8 * MIB))
    await storage.delete(KEY, uid)
    await objects.delete(await claim(objects))
    await storage.create(KEY, uid, Create(size_bytes=8 * MIB))
    await storage.delete(KEY, "another")
    await claim(objects)
    for _ in range(2):
        await storage.delete(KEY, uid)
    with pytest.raises(NotFound):
        await claim(objects)


@pytest.mark.parametrize(
    ("text", "expected"),
    [("exceeded quota: storage", NoCapacity), ("only dynamically provisioned pvc", Refused)],
)
async def test_what_the_cluster_refuses_is_said_about_the_disk(
    objects: Objects, text: str, expected: type[Exception]
) -> None:
    disk = await make(objects)

    class Refusing:
        def __getattr__(self, name: str) -> Any:
            return getattr(objects, name)

        async def create(self, value: Any) -> Any:
            raise Forbidden(text)

    storage = ClaimStorage(Refusing())
    with pytest.raises(expected, match=text):
        await storage.create(KEY, disk.metadata.uid, Create(size_bytes=MIB))


async def test_a_claim_that_is_still_being_deleted_is_waited_for(objects: Objects) -> None:
    disk, storage = await make(objects), ClaimStorage(objects)
    await storage.create(KEY, disk.metadata.uid, Create(size_bytes=MIB))
    found = await claim(objects)
    protected = replace(found.metadata, finalizers=("kubernetes.io/pvc-protection",))
    await objects.delete(await objects.update(replace(found, metadata=protected)))
    seen = await storage.look(KEY, disk.metadata.uid)
    assert seen is not None
    assert "is being deleted" in seen.problem
    with pytest.raises(Unreachable, match="is being deleted"):
        await storage.create(KEY, "a new disk", Create(size_bytes=MIB))


def test_a_target_that_starts_again_has_the_same_claim() -> None:
    async def story(world: PodWorld) -> None:
        await make(world.objects)
        await world.make_class("mock", provisioner=NAME)
        spec = VirtualTargetSpec(
            virtual_target_class_name="mock", disks=(TargetDisk(virtual_disk="root"),)
        )
        meta = ObjectMeta(name="vm", namespace=NAMESPACE)
        await world.objects.create(VirtualTarget(metadata=meta, spec=spec))
        await world.until(lambda: phase(world) == "Running")
        first = world.pods.get(NAMESPACE, "vm")
        assert first is not None
        bound = (await claim(world.objects)).metadata.uid
        await world.objects.delete(await world.objects.get(Pod, NAMESPACE, "vm"))
        await world.until(lambda: (again(world) or first).metadata.uid != first.metadata.uid)
        await world.until(lambda: phase(world) == "Running")
        assert (await claim(world.objects)).metadata.uid == bound, "the claim is the same"
        await world.remove(VirtualTarget, "vm")
        await world.until(lambda: not list(world.pods.all()))
        assert (await claim(world.objects)).metadata.uid == bound, "a disk outlives its target"
        await world.remove(VirtualDisk, "root")
        await world.until(lambda: world.views[VirtualDisk].get(NAMESPACE, "root") is None)
        with pytest.raises(NotFound):
            await claim(world.objects)

    world = PodWorld()
    world.disk_storage = ClaimStorage(world.objects)  # type: ignore[assignment]
    world.tell(story)


def test_a_disk_grows_before_the_next_pod_of_its_target() -> None:
    async def story(world: PodWorld) -> None:
        await make(world.objects)
        await world.make_class("mock", provisioner=NAME)
        spec = VirtualTargetSpec(
            virtual_target_class_name="mock", disks=(TargetDisk(virtual_disk="root"),)
        )
        meta = ObjectMeta(name="vm", namespace=NAMESPACE)
        await world.objects.create(VirtualTarget(metadata=meta, spec=spec))
        await world.until(lambda: phase(world) == "Running")
        before, first = await claim(world.objects), again(world)
        assert first is not None
        disk = await world.objects.get(VirtualDisk, NAMESPACE, "root")
        await world.objects.update(replace(disk, spec=replace(disk.spec, size="64Mi")))
        await world.until(lambda: (again(world) or first).metadata.uid != first.metadata.uid)
        grown = await claim(world.objects)
        assert grown.metadata.annotations[SIZE] == str(64 * MIB), "before the Pod was made"
        assert grown.metadata.uid == before.metadata.uid
        await world.until(lambda: phase(world) == "Running")
        second = again(world)
        assert second is not None
        await world.always(lambda: again(world) is second, seconds=60)

    world = PodWorld()
    world.disk_storage = ClaimStorage(world.objects)  # type: ignore[assignment]
    world.tell(story)


def phase(world: PodWorld) -> str:
    found = world.views[VirtualTarget].get(NAMESPACE, "vm")
    return found.status.phase.value if found is not None else ""


def again(world: PodWorld) -> Pod | None:
    return world.pods.get(NAMESPACE, "vm")
