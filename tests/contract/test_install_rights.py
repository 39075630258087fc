"""The rights of each process are those it uses: none is missing, none is left over.

Stories of pools and leases are told while every request is noted, with the module it came
from, which says in which process it would be made. Every first change of a kind meets a
conflict, so that what is done about conflicts is seen too.
"""

from __future__ import annotations

import asyncio
import sys
from collections import defaultdict
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from test_pod_pools import PodWorld

from bullpen.api import codec
from bullpen.api.fields import Kind
from bullpen.api.kinds.core import CoordinationLease, Namespace, Secret
from bullpen.api.kinds.deviceclaim import DeviceClaim, DeviceClaimSpec
from bullpen.api.kinds.deviceclass import DeviceClass
from bullpen.api.kinds.devicepool import DevicePool
from bullpen.api.kinds.exporterset import ExporterSet
from bullpen.api.kinds.lease import Lease
from bullpen.api.kinds.virtualdisk import VirtualDisk, VirtualDiskSpec
from bullpen.api.kinds.virtualtarget import (
    RestartPolicy,
    TargetDisk,
    VirtualTarget,
    VirtualTargetSpec,
)
from bullpen.api.kinds.virtualtargetpool import (
    DiskTemplate,
    MemberTemplate,
    OnScaleDown,
    Reclaim,
    VirtualTargetPool,
    VirtualTargetPoolSpec,
)
from bullpen.api.meta import ObjectMeta
from bullpen.api.pod import CLUSTER_RESOURCES, Pod
from bullpen.api.resources import RESOURCES
from bullpen.api.scale_down import ScaleDownPolicy
from bullpen.apiserver.routes import ObjectRoute, route
from bullpen.apiserver.scaledown import ScaleDowns
from bullpen.app import controllers
from bullpen.app.lab import Lab, Role
from bullpen.app.services import pool_loads
from bullpen.controllers.object_edit import change
from bullpen.core.leases.sessions import Session
from bullpen.errors import Conflict
from bullpen.install import rbac
from bullpen.placements.pod.claim_storage import ClaimStorage
from bullpen.services.claims import ClaimEdit
from bullpen.services.lease_requests import LeaseRequest
from bullpen.sim.keys import cheap_keys
from support.lab_world import SETTINGS, LabWorld
from support.pool_world import NAMESPACE, World

Right = tuple[str, str, str]
"""Group, resource and verb."""

PROCESSES = {
    "bullpen.apiserver.scaledown": ("controller",),
    "bullpen.controllers.authority": ("controller",),
    "bullpen.controllers.claims.claim_reconciler": ("controller",),
    "bullpen.controllers.claims.pool_holdings": ("controller",),
    "bullpen.controllers.exporters.credentials": ("controller",),
    "bullpen.controllers.leases.lease_actions": ("controller",),
    "bullpen.controllers.leases.lease_retention": ("controller",),
    "bullpen.controllers.exporters.presence_reconciler": ("controller",),
    "bullpen.controllers.leases.session_recorder": ("controller", "router"),
    "bullpen.services.callers": ("controller",),
    "bullpen.services.claims": ("controller",),
    "bullpen.services.exporters": ("controller",),
    "bullpen.services.leases": ("controller",),
    "bullpen.controllers.pools.exporterset_reconciler": ("provisioner",),
    "bullpen.controllers.targets.instance_reconciler": ("provisioner",),
    "bullpen.controllers.pools.lasting_pool_reconciler": ("provisioner",),
    "bullpen.controllers.pools.removals": ("provisioner",),
    "bullpen.controllers.targets.disk_reconciler": ("provisioner",),
    "bullpen.controllers.targets.target_reconciler": ("provisioner",),
    "bullpen.placements.pod.placement": ("provisioner",),
    "bullpen.placements.pod.claim_storage": ("provisioner",),
    "bullpen.runtime.events": ("controller", "provisioner", "router"),
}
HELPERS = ("bullpen.controllers.object_edit", "bullpen.runtime.loop", __name__)

MADE_BY = {Role.LEASES: controllers.LEASES, Role.POOLS: controllers.POOLS}

UNSEEN: dict[str, dict[Right, str]] = {
    "controller": {
        ("", "configmaps", "create"): "the stories have no authority to publish",
        ("", "configmaps", "patch"): "nor one that changes",
        ("jumpstarter.dev", "clients", "create"): "for unknown users of an outside issuer",
        ("", "secrets", "update"): "when a token is renewed",
        ("", "events", "update"): "when the same happens again",
        ("authorization.k8s.io", "subjectaccessreviews", "create"): "of the external scaler",
    },
    "provisioner": {
        ("jumpstarter.dev", "exporters/finalizers", "update"): "asked by admission, not by us",
        ("virtualtarget.jumpstarter.dev", "exportersets/finalizers", "update"): "the same",
        ("virtualtarget.jumpstarter.dev", "virtualtargets/finalizers", "update"): "the same",
        ("virtualtarget.jumpstarter.dev", "virtualtargetpools/finalizers", "update"): "the same",
        ("", "configmaps", "get"): "the controller's authority, read at the start",
        ("jumpstarter.dev", "leases/status", "update"): "before a provider ends a machine",
        **{
            (group, resource, verb): "of providers, which have stories of their own"
            for group, resource, verbs in (
                (rbac.VIRTUAL, "providerconfigs", ("get", "update")),
                (rbac.VIRTUAL, "providerconfigs/status", ("update",)),
                (rbac.VIRTUAL, "virtualtargetclasses", ("get", "update")),
                ("", "secrets", ("get", "update")),
            )
            for verb in verbs
        },
        ("", "events", "update"): "when the same happens again",
    },
    "router": {("", "events", "update"): "when the same happens again"},
}
"""Rights that no story here uses, and what uses them."""


class Noting:
    """Objects that note who asks for what, and refuse the first change of everything."""

    def __init__(self, objects: Any, used: dict[str, set[Right]]) -> None:
        self._objects = objects
        self._used = used
        self._refused: set[tuple[object, ...]] = set()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._objects, name)

    def _note(self, kind: type[Kind], verb: str, sub: str = "") -> None:
        resource = CLUSTER_RESOURCES.of(kind)
        frame = sys._getframe(2)
        while frame.f_globals["__name__"] in HELPERS and frame.f_back is not None:
            frame = frame.f_back
        for process in PROCESSES.get(frame.f_globals["__name__"], ()):
            self._used[process].add((resource.group, f"{resource.plural}{sub}", verb))

    def _refuse_once(self, value: Kind, sub: str) -> None:
        key = (type(value), sub, sys._getframe(2).f_globals["__name__"])
        if key not in self._refused and value.kind != "Event":
            self._refused.add(key)
            raise Conflict("the object has changed")

    async def get(self, kind: type[Kind], namespace: str, name: str) -> Any:
        self._note(kind, "get")
        return await self._objects.get(kind, namespace, name)

    async def create(self, value: Kind) -> Any:
        self._note(type(value), "create")
        return await self._objects.create(value)

    async def apply(self, value: Kind) -> Any:
        for verb in ("create", "patch"):
            self._note(type(value), verb)
        return await self._objects.apply(value)

    async def update(self, value: Kind) -> Any:
        self._note(type(value), "update")
        self._refuse_once(value, "")
        return await self._objects.update(value)

    async def update_status(self, value: Kind) -> Any:
        self._note(type(value), "update", "/status")
        self._refuse_once(value, "/status")
        return await self._objects.update_status(value)

    async def update_statuses(self, first: Kind, second: Kind) -> Any:
        for value in (first, second):
            self._note(type(value), "update", "/status")
        return await self._objects.update_statuses(first, second)

    async def delete(self, value: Kind) -> None:
        self._note(type(value), "delete")
        await self._objects.delete(value)


async def remove_by_name(world: World, pool: str, member: str) -> None:
    group = "subresources.virtualtarget.jumpstarter.dev/v1alpha1"
    target = route(f"/apis/{group}/namespaces/{NAMESPACE}/{pool}/scaledownwith", RESOURCES)
    assert isinstance(target, ObjectRoute)
    await ScaleDowns(world.objects).answer(target, {"targets": [member]}, dry_run=False)


def _tell_of_pools(used: dict[str, set[Right]]) -> None:
    async def story(world: PodWorld) -> None:
        # Somebody of the same name was here before.
        meta = ObjectMeta(name="exporter-config-qemu-0", namespace=NAMESPACE)
        await world.objects.create(Secret(metadata=meta))
        await world.make_pool(min_replicas=2, min_available_replicas=2)
        await world.until(lambda: world.available(2))
        await world.ask("one")
        await world.until(lambda: world.got("one"))
        await world.release("one")
        await world.until(lambda: world.lease("one").status.ended)
        await world.until(lambda: world.available(2))
        await world.edit_set(max_replicas=3, min_replicas=1, min_available_replicas=0)
        (first, *_) = world.members()
        await remove_by_name(world, "exportersets/qemu", first.metadata.name)
        await world.until(lambda: first.metadata.uid not in world.uids())
        await world.edit_set(max_replicas=1)
        await world.sleep(900)
        await world.remove(ExporterSet, "qemu")
        await world.until(lambda: not world.pod_names())
        await _tell_of_a_claim(world)
        await world.sleep(90_000)

    world = PodWorld()
    world.objects = Noting(world.objects, used)  # type: ignore[assignment]
    world.disk_storage = ClaimStorage(world.objects)  # type: ignore[assignment]
    world.tell(story)


async def _tell_of_a_claim(world: PodWorld) -> None:
    """A disk is made, grows and is deleted."""
    meta = ObjectMeta(name="root", namespace=NAMESPACE)
    await world.objects.create(VirtualDisk(metadata=meta, spec=VirtualDiskSpec(size="1Gi")))
    disks = world.views[VirtualDisk]
    await world.until(lambda: [d.status.capacity for d in disks.all()] == ["1Gi"])
    found = await world.objects.get(VirtualDisk, NAMESPACE, "root")
    grown = replace(found, spec=VirtualDiskSpec(size="2Gi"))
    await change(world.objects, disks, found, lambda _: grown)
    await world.until(lambda: [d.status.capacity for d in disks.all()] == ["2Gi"])
    await world.remove(VirtualDisk, "root")
    await world.until(lambda: not list(disks.all()))


async def _tell_of_a_pool(world: World) -> None:
    reclaim = Reclaim(on_scale_down=OnScaleDown.RETAIN, ttl=timedelta(minutes=1))
    disk = DiskTemplate(name="root", reclaim=reclaim, spec=VirtualDiskSpec(size="1Gi"))
    member = VirtualTargetSpec(
        virtual_target_class_name="fake", disks=(TargetDisk(virtual_disk="root"),)
    )
    spec = VirtualTargetPoolSpec(
        replicas=2,
        scale_down_policy=ScaleDownPolicy.NEWEST_FIRST,
        template=MemberTemplate(spec=member),
        virtual_disk_templates=(disk,),
    )
    meta = ObjectMeta(name="p", namespace=NAMESPACE)
    await world.objects.create(VirtualTargetPool(metadata=meta, spec=spec))
    pools, targets = world.views[VirtualTargetPool], world.views[VirtualTarget]
    await world.until(lambda: [p.status.ready_replicas for p in pools.all()] == [2])

    async def edit(**fields: Any) -> None:
        found = await world.objects.get(VirtualTargetPool, NAMESPACE, "p")
        edited = replace(found, spec=replace(found.spec, **fields))
        await change(world.objects, pools, found, lambda _: edited)

    (first, *_) = targets.all()
    await remove_by_name(world, "virtualtargetpools/p", first.metadata.name)
    await world.until(lambda: len(list(targets.all())) == 1)
    await edit(template=MemberTemplate(spec=replace(member, restart_policy=RestartPolicy.NEVER)))
    await world.sleep(300)


def _tell_of_lasting_targets(used: dict[str, set[Right]]) -> None:
    async def story(world: World) -> None:
        meta = ObjectMeta(name="root", namespace=NAMESPACE)
        made = VirtualDisk(metadata=meta, spec=VirtualDiskSpec(size="1Gi"))
        await world.objects.create(made)
        disks = world.views[VirtualDisk]
        await world.until(lambda: [d.status.phase.value for d in disks.all()] == ["Ready"])
        await world.make_class()
        spec = VirtualTargetSpec(virtual_target_class_name="fake")
        meta = ObjectMeta(name="vm", namespace=NAMESPACE)
        await world.objects.create(VirtualTarget(metadata=meta, spec=spec))
        targets = world.views[VirtualTarget]
        await world.until(lambda: [t.status.phase.value for t in targets.all()] == ["Running"])
        await world.remove(VirtualTarget, "vm")
        await world.until(lambda: not list(targets.all()))
        await world.remove(VirtualDisk, "root")
        await world.until(lambda: not list(disks.all()))
        await _tell_of_a_pool(world)

    world = World()
    world.objects = Noting(world.objects, used)  # type: ignore[assignment]
    world.run(story)


def _tell_of_leases(used: dict[str, set[Right]]) -> None:
    async def story(world: LabWorld) -> None:
        async with world.player():
            asked = LeaseRequest(duration=timedelta(hours=1), selector="board=x", tags={})
            lease = await world.leases.create(world.client(), asked)
            await world.assigned(lease.metadata.name)
            uid, now = lease.metadata.uid, world.clock.now()
            world.sessions.saw(Session(stream="one", lease=uid, started=now))
            await asyncio.sleep(10)
            labels = {"jumpstarter.dev/kind": "new"}
            await world.exporters.register(world.exporter(), labels=labels, devices=())
            await world.leases.release(world.client(), lease.metadata.name)
            await world.ended(lease.metadata.name)
        await world.settle()

    world = LabWorld()
    world.objects = Noting(world.objects, used)  # type: ignore[assignment]
    world.run(story)


def _tell_of_claims(used: dict[str, set[Right]]) -> None:
    async def story(world: LabWorld) -> None:
        labels = {"matchLabels": {"board": "x"}}
        made = {"spec": {"selectors": [{"labels": labels}]}, "metadata": {"name": "any"}}
        await world.objects.create(codec.decode(DeviceClass, made))
        of_pool = {"labels": {"matchLabels": {"pool": "licences"}}}
        licence = {"spec": {"selectors": [of_pool]}, "metadata": {"name": "licence"}}
        await world.objects.create(codec.decode(DeviceClass, licence))
        seats = {"name": "licences", "namespace": "default"}
        pool = {"metadata": seats, "spec": {"devices": [{"name": "seat"}]}}
        await world.objects.create(codec.decode(DevicePool, pool))
        asked = [
            {"name": name, "exactly": {"deviceClassName": device_class}}
            for name, device_class in (("dut", "any"), ("seat", "licence"))
        ]
        spec = {"clientRef": {"name": "alice"}, "requests": asked, "duration": "1h"}
        async with world.player():
            claims, client = world.claim_service, world.client()
            await claims.create(client, "c", codec.decode(DeviceClaimSpec, spec))
            await claims.update(client, "c", ClaimEdit(duration=timedelta(minutes=30)))
            found = world.views[DeviceClaim]
            await world.until(lambda: [c.status.members for c in found.all()] not in ([], [()]))
            (lease,) = world.views.leases.all()
            await world.edit_lease(lease.metadata.name, release=True)
            await world.until(lambda: [c.status.ended for c in found.all()] == [True])
            await asyncio.sleep(SETTINGS.retention.total_seconds() + 60)
            assert not list(found.all())

    world = LabWorld()
    world.objects = Noting(world.objects, used)  # type: ignore[assignment]
    world.run(story)


def viewed(process: str) -> set[Right]:
    """What informers ask for: a router has a view of leases alone."""
    kinds: set[type[Kind]] = {Lease}
    if process != "router":
        role = Role.LEASES if process == "controller" else Role.POOLS
        world = LabWorld()
        lab = Lab(world.objects, SETTINGS, world.sources, role=role, keys=cheap_keys(world.clock))
        for make in MADE_BY[role]:
            make(lab)
        if role is Role.LEASES:
            pool_loads(lab)
        kinds = {*lab.views.kinds} - {Namespace, CoordinationLease}
    if process == "provisioner":
        kinds.add(Pod)
    return {
        (resource.group, resource.plural, verb)
        for resource in map(CLUSTER_RESOURCES.of, kinds)
        for verb in rbac.LOOK
    }


@pytest.fixture(scope="module")
def used() -> dict[str, set[Right]]:
    """What each process asked for in the stories."""
    found: dict[str, set[Right]] = defaultdict(set)
    _tell_of_pools(found)
    _tell_of_lasting_targets(found)
    _tell_of_leases(found)
    _tell_of_claims(found)
    return found


def granted(process: str) -> set[Right]:
    return {
        (group, resource, verb)
        for grants in (
            rbac.LAB[process],
            rbac.CLUSTER_SCOPED.get(process, {}),
            rbac.PODS if process == "provisioner" else {},
        )
        for (group, resource), verbs in grants.items()
        for verb in verbs
    }


@pytest.mark.parametrize("process", rbac.PROCESSES)
def test_no_right_is_missing(process: str, used: dict[str, set[Right]]) -> None:
    assert not (used[process] | viewed(process)) - granted(process)


@pytest.mark.parametrize("process", rbac.PROCESSES)
def test_no_right_is_left_over(process: str, used: dict[str, set[Right]]) -> None:
    spare = granted(process) - used[process] - viewed(process)
    assert spare == UNSEEN[process].keys()
