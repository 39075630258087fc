"""Lasting targets from creation to deletion: runs, stops, restarts, and never under a lease."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from bullpen.api.exporter_template import Driver
from bullpen.api.kinds.core import Event
from bullpen.api.kinds.exporter import Exporter
from bullpen.api.kinds.virtualdisk import DiskSource, VirtualDisk, VirtualDiskSpec
from bullpen.api.kinds.virtualtarget import (
    DURING_LEASE,
    RESTART,
    RestartPolicy,
    TargetDisk,
    UpdateApproval,
    VirtualTarget,
    VirtualTargetSpec,
)
from bullpen.api.meta import ObjectMeta
from bullpen.controllers.object_edit import change
from bullpen.core.conditions import get
from bullpen.core.targets.lasting_targets import BACK_OFF_MAX
from bullpen.core.targets.profiles import PROVISIONER
from bullpen.errors import NotFound, Refused
from bullpen.provisioners.base import ExitReason, InstancePhase
from support.pool_world import LABELS, NAMESPACE, World

KEY = (NAMESPACE, "vm")
HOUR = timedelta(hours=1)


async def make(world: World, name: str = "vm", **spec: Any) -> VirtualTarget:
    meta = ObjectMeta(name=name, namespace=NAMESPACE, labels=LABELS)
    given = VirtualTargetSpec(**{"virtual_target_class_name": "fake", **spec})
    return await world.objects.create(VirtualTarget(metadata=meta, spec=given))


async def make_disk(world: World, name: str, **spec: Any) -> None:
    meta = ObjectMeta(name=name, namespace=NAMESPACE)
    given = VirtualDiskSpec(**{"size": "8Mi", **spec})
    await world.objects.create(VirtualDisk(metadata=meta, spec=given))


def target(world: World, name: str = "vm") -> VirtualTarget:
    found = world.views[VirtualTarget].get(NAMESPACE, name)
    assert found is not None
    return found


def phase(world: World, name: str = "vm") -> str:
    found = world.views[VirtualTarget].get(NAMESPACE, name)
    return found.status.phase.value if found is not None else ""


def says(world: World, type_: str = "Ready", name: str = "vm") -> str:
    found = get(target(world, name).status.conditions, type_)
    return f"{found.status} {found.reason}" if found is not None else ""


def ready(world: World, name: str = "vm") -> bool:
    return says(world, name=name) == "True Running"


async def edit(world: World, name: str = "vm", **spec: Any) -> None:
    await change(
        world.objects,
        world.views[VirtualTarget],
        target(world, name),
        lambda found: replace(found, spec=replace(found.spec, **spec)),
    )


async def annotate(world: World, key: str, value: str) -> None:
    def edited(found: VirtualTarget) -> VirtualTarget:
        annotations = {**found.metadata.annotations, key: value}
        return replace(found, metadata=replace(found.metadata, annotations=annotations))

    await change(world.objects, world.views[VirtualTarget], target(world), edited)


async def set_annotations(world: World, kind: type[Any], **wanted: str | None) -> None:
    """Set annotations of the target or its Exporter, or remove them."""
    found = world.views[kind].get(*KEY)
    assert found is not None

    def edited(value: Any) -> Any:
        merged = {**value.metadata.annotations, **wanted}
        annotations = {key: text for key, text in merged.items() if text is not None}
        return replace(value, metadata=replace(value.metadata, annotations=annotations))

    await change(world.objects, world.views[kind], found, edited)


def test_an_annotation_removed_from_a_target_is_removed_from_its_exporter() -> None:
    def noted(world: World) -> dict[str, str]:
        found = world.views.exporters.get(*KEY)
        assert found is not None
        return dict(found.metadata.annotations)

    async def story(world: World) -> None:
        await running(world)
        before = noted(world)
        await set_annotations(world, VirtualTarget, team="a", rack="7")
        await world.until(lambda: noted(world).get("team") == "a")
        await set_annotations(world, Exporter, seen="yes")
        await set_annotations(world, VirtualTarget, team=None)
        await world.until(lambda: "team" not in noted(world))
        assert noted(world)["rack"] == "7"
        await set_annotations(world, VirtualTarget, rack=None)
        await world.until(lambda: noted(world) == {**before, "seen": "yes"})

    World().run(story)


def test_a_target_cannot_name_another_provisioner_for_its_exporter() -> None:
    async def story(world: World) -> None:
        await running(world)
        await set_annotations(world, VirtualTarget, **{PROVISIONER: "other", "team": "a"})

        def passed() -> str:
            found = world.views.exporters.get(*KEY)
            annotations = found.metadata.annotations if found is not None else {}
            return annotations[PROVISIONER] if "team" in annotations else ""

        await world.until(lambda: passed() != "")
        assert passed() == world.provisioner.name

    World().run(story)


def machine(world: World) -> object:
    """The machine itself: another one is another object."""
    return world.provisioner._machines.get(KEY)


async def running(world: World, **spec: Any) -> None:
    await world.make_class()
    await make(world, **spec)
    await world.until(lambda: ready(world))


def test_a_target_is_leased_by_label_and_kept_between_leases() -> None:
    async def story(world: World) -> None:
        await running(world)
        before, identity = machine(world), target(world).status.identity
        assert identity is not None
        for name in ("one", "two"):
            await world.ask(name)
            await world.until(lambda name=name: world.got(name) == "vm")  # type: ignore[misc]
            await world.until(lambda name=name: target(world).status.lease == name)  # type: ignore[misc]
            await world.release(name)
            await world.until(lambda: target(world).status.lease == "")
        assert machine(world) is before
        assert target(world).status.identity == identity

    World().run(story)


def test_a_target_stops_starts_and_goes_with_everything_it_had() -> None:
    async def story(world: World) -> None:
        await world.make_class()
        await make_disk(world, "root")
        await make(world, disks=(TargetDisk(virtual_disk="root"),))
        await world.until(lambda: ready(world))
        await edit(world, running=False)
        await world.until(lambda: phase(world) == "Stopped")
        assert not world.provisioner.held()
        assert target(world).status.disks == ()
        await edit(world, running=True)
        await world.until(lambda: phase(world) != "Stopped")
        await world.ask("early")
        await world.until(lambda: world.got("early") == "vm")
        await world.release("early")
        await world.until(lambda: target(world).status.lease == "")
        await world.remove(VirtualTarget, "vm")
        await world.until(lambda: phase(world) == "" and not world.provisioner.held())
        await world.until(lambda: not list(world.views.exporters.all(NAMESPACE)))
        assert len(world.disk_storage.stored) == 1

    World().run(story)


def test_a_machine_that_its_provider_keeps_is_started_again_and_goes_with_its_target() -> None:
    async def story(world: World) -> None:
        world.provisioner.keeps = True
        async with world.service():
            await running(world)
            before = machine(world)
            await edit(world, running=False)
            await world.until(lambda: phase(world) == "Stopped")
            assert machine(world) is before
            (kept,) = await world.provisioner.observe_all()
            assert kept.phase is InstancePhase.STOPPED
            assert target(world).status.provider_id == kept.provider_id
        async with world.service():
            await edit(world, running=True)
            await world.until(lambda: ready(world))
            assert machine(world) is before
            await annotate(world, RESTART, "1")
            await world.until(lambda: target(world).status.restarted == "1" and ready(world))
            assert machine(world) is before
            world.provisioner.crash(KEY)
            await world.until(lambda: target(world).status.restarts is not None)
            await world.until(lambda: ready(world))
            assert machine(world) is before, "its disks are kept"
            await edit(world, running=False)
            await world.until(lambda: phase(world) == "Stopped")
            await world.remove(VirtualTarget, "vm")
            await world.until(lambda: phase(world) == "" and machine(world) is None)

    World().run(story)


def test_a_target_says_where_its_machine_is_while_there_is_one() -> None:
    async def story(world: World) -> None:
        await world.make_class()
        await make(world)
        await world.until(lambda: ready(world))
        exporter = world.views.exporters.get(NAMESPACE, "vm")
        assert exporter is not None

        def place() -> tuple[str, str, tuple[str, ...]]:
            status = target(world).status
            return status.host, status.provider_id, status.addresses

        assert place() == ("fake", f"fake-{exporter.metadata.uid}", ("192.0.2.1",))
        await edit(world, running=False)
        await world.until(lambda: phase(world) == "Stopped")
        assert place() == ("", "", ())

    World().run(story)


def test_a_target_runs_again_after_a_restart_of_the_service_and_of_the_host() -> None:
    async def story(world: World) -> None:
        async with world.service():
            await running(world)
            identity, before = target(world).status.identity, machine(world)
        async with world.service():
            await world.until(lambda: ready(world))
            assert machine(world) is before
        world.provisioner._machines.clear()
        async with world.service():
            await world.until(lambda: ready(world) and machine(world) is not None)
            assert target(world).status.identity == identity
            assert target(world).status.restarts is None

    World().run_without_service(story)


@pytest.mark.parametrize(
    ("policy", "reason", "again"),
    [
        (RestartPolicy.ALWAYS, ExitReason.CRASHED, True),
        (RestartPolicy.ALWAYS, ExitReason.COMPLETED, True),
        (RestartPolicy.ON_FAILURE, ExitReason.CRASHED, True),
        (RestartPolicy.ON_FAILURE, ExitReason.COMPLETED, False),
        (RestartPolicy.NEVER, ExitReason.CRASHED, False),
        (RestartPolicy.NEVER, ExitReason.LOST, True),
    ],
)
def test_a_machine_that_ended_is_started_again_as_its_policy_says(
    policy: RestartPolicy, reason: ExitReason, again: bool
) -> None:
    async def story(world: World) -> None:
        await running(world, restart_policy=policy)
        before = machine(world)
        world.provisioner._exit(before, reason, "the end")  # type: ignore[arg-type]
        if again:
            await world.until(lambda: ready(world) and machine(world) is not before)
            return
        final = "Stopped" if reason is ExitReason.COMPLETED else "Failed"
        await world.until(lambda: phase(world) == final)
        await world.always(lambda: machine(world) is None, seconds=600)
        await annotate(world, RESTART, "again")
        await world.until(lambda: ready(world))

    World().run(story)


@pytest.mark.parametrize("step", [HOUR, -HOUR], ids=["ahead", "back"])
def test_a_machine_that_keeps_ending_is_started_in_time_although_the_clock_was_set(
    step: timedelta,
) -> None:
    async def story(world: World) -> None:
        await running(world)
        for _ in range(4):
            world.provisioner.crash(KEY)
            await world.until(lambda: not ready(world))
            await world.until(lambda: ready(world), seconds=400)
        world.provisioner.crash(KEY)
        await world.until(lambda: not ready(world))
        world.wall.jump(step)
        await world.until(lambda: ready(world), seconds=BACK_OFF_MAX.total_seconds())

    World().run(story)


def test_a_machine_that_keeps_ending_is_started_ever_later() -> None:
    async def story(world: World) -> None:
        await running(world)
        gaps = []
        for _ in range(7):
            world.provisioner.crash(KEY)
            ended = world.clock.now()
            await world.until(lambda: not ready(world))
            await world.until(lambda: ready(world), seconds=400)
            gaps.append((world.clock.now() - ended).total_seconds())
        assert gaps[0] < 10
        assert gaps[1] >= 10
        assert gaps[-1] >= 300
        restarts = target(world).status.restarts
        assert restarts is not None
        assert restarts.count == restarts.total == 7
        await world.sleep(700)
        world.provisioner.crash(KEY)
        await world.until(lambda: ready(world), seconds=10)

    World().run(story)


@pytest.mark.parametrize("what", ["stop", "restart", "settings", "delete"])
def test_nothing_stops_a_leased_target_until_its_lease_ends(what: str) -> None:
    async def story(world: World) -> None:
        await running(world)
        await world.ask("job")
        await world.until(lambda: target(world).status.lease == "job")
        before = machine(world)
        if what == "stop":
            await edit(world, running=False)
        elif what == "restart":
            await annotate(world, RESTART, "now")
        elif what == "settings":
            await edit(world, drivers=(Driver(name="power", type="a.Power"),))
        else:
            await world.remove(VirtualTarget, "vm")
        await world.always(lambda: machine(world) is before, seconds=120)
        assert not world.lease("job").status.ended
        if what in ("restart", "settings"):
            assert says(world, "RestartRequired").startswith("True ")
            assert "lease job" in str(get(target(world).status.conditions, "RestartRequired"))
        await world.release("job")
        await world.until(lambda: machine(world) is not before)
        if what in ("restart", "settings"):
            await world.until(lambda: ready(world))
            assert says(world, "RestartRequired") == "False UpToDate"

    World().run(story)


@pytest.mark.parametrize("what", ["stop", "delete"])
def test_a_lease_is_interrupted_if_it_is_named(what: str) -> None:
    async def story(world: World) -> None:
        await running(world)
        await world.ask("job")
        await world.until(lambda: target(world).status.lease == "job")
        await annotate(world, DURING_LEASE, "job")
        if what == "stop":
            await edit(world, running=False)
        else:
            await world.remove(VirtualTarget, "vm")
        await world.until(lambda: machine(world) is None)

    World().run(story)


def test_a_lease_waits_for_a_target_that_restarts() -> None:
    async def story(world: World) -> None:
        world.provisioner.faults = replace(world.provisioner.faults, stop_seconds=(5.0, 5.0))
        await running(world)
        await annotate(world, RESTART, "now")
        await world.until(lambda: phase(world) == "Stopping")
        await world.ask("job")
        await world.until(lambda: "target vm is" in world.waits("job"))
        await world.until(lambda: world.got("job") == "vm")

    World().run(story)


def test_a_change_that_needs_approval_waits_for_it_and_says_so() -> None:
    async def story(world: World) -> None:
        await world.make_class()
        await make_disk(world, "data")
        await make(world, update_approval=UpdateApproval.MANUAL)
        await world.until(lambda: ready(world))
        before = machine(world)
        await edit(world, disks=(TargetDisk(virtual_disk="data"),))
        await world.until(lambda: says(world, "RestartRequired") == "True ApprovalPending")
        status = target(world).status
        assert status.written_revision != status.effective_revision
        await world.always(lambda: machine(world) is before and ready(world), seconds=60)
        await annotate(world, RESTART, "approved")
        await world.until(lambda: ready(world) and machine(world) is not before)
        status = target(world).status
        assert status.written_revision == status.effective_revision
        assert status.disks == ("data",)

    World().run(story)


def test_labels_and_annotations_change_on_a_running_target() -> None:
    async def story(world: World) -> None:
        await running(world)
        before = machine(world)

        def edited(found: VirtualTarget) -> VirtualTarget:
            meta = replace(
                found.metadata, labels={"board": "new"}, annotations={"example.com/a": "b"}
            )
            return replace(found, metadata=meta)

        await change(world.objects, world.views[VirtualTarget], target(world), edited)

        def passed_on() -> bool:
            found = world.views.exporters.get(*KEY)
            return found is not None and found.metadata.labels == {"board": "new"}

        await world.until(passed_on)
        found = world.views.exporters.get(*KEY)
        assert found is not None
        assert found.metadata.annotations["example.com/a"] == "b"
        await world.ask("job", labels={"board": "new"})
        await world.until(lambda: world.got("job") == "vm")
        assert machine(world) is before

    World().run(story)


def test_two_targets_never_run_with_one_disk() -> None:
    async def story(world: World) -> None:
        await world.make_class()
        await make_disk(world, "root")
        for name in ("vm", "other"):
            await make(world, name, disks=(TargetDisk(virtual_disk="root"),))
        await world.until(lambda: ready(world, "vm") != ready(world, "other"))
        first = "vm" if ready(world) else "other"
        second = "other" if first == "vm" else "vm"
        assert says(world, "DisksReady", second) == "False DiskInUse"
        found = get(target(world, second).status.conditions, "DisksReady")
        assert found is not None
        assert found.message == f"VirtualDisk root is attached to {first}"
        await world.always(lambda: not ready(world, second), seconds=60)
        await world.remove(VirtualTarget, first)
        await world.until(lambda: ready(world, second))

    World().run(story)


def disk_phase(world: World, name: str) -> str:
    found = world.views[VirtualDisk].get(NAMESPACE, name)
    return found.status.phase.value if found is not None else ""


def test_a_running_machine_has_its_disks_although_another_controller_wrote_that_it_has_none() -> (
    None
):
    """That one had looked for the machine before this one started it."""

    async def story(world: World) -> None:
        await make_disk(world, "root")
        await running(world, disks=(TargetDisk(virtual_disk="root"),))
        assert target(world).status.disks == ("root",)
        before = machine(world)
        wrong = replace(target(world).status, disks=())
        await world.objects.update_status(replace(target(world), status=wrong))
        await annotate(world, "note", "look again")
        await world.until(lambda: target(world).status.disks == ("root",))
        assert machine(world) is before

    World().run(story)


def test_a_target_whose_disk_is_being_copied_waits_for_the_copy() -> None:
    """QEMU would not start, because the disk is locked. Also if the service is restarted."""

    async def story(world: World) -> None:
        copied = world.disk_storage.copied = asyncio.Event()
        async with world.service():
            await world.make_class()
            await make_disk(world, "root")
            await make_disk(world, "copy", size="", source=DiskSource(virtual_disk="root"))
            await world.until(lambda: disk_phase(world, "copy") == "Provisioning")
            await make(world, disks=disk_names("root"))
            await world.until(lambda: says(world) == "False DiskBeingCopied")
        async with world.service():
            await world.always(lambda: target(world).status.starts == 0, seconds=60)
            assert says(world, "DisksReady") == "False DiskBeingCopied"
            copied.set()
            await world.until(lambda: ready(world))
            assert disk_phase(world, "copy") == "Ready"

    World().run_without_service(story)


def test_a_running_machine_gets_a_disk_once_its_copy_is_complete() -> None:
    async def story(world: World) -> None:
        await with_disks(world, "root")
        copied = world.disk_storage.copied = asyncio.Event()
        await make_disk(world, "data")
        await make_disk(world, "copy", size="", source=DiskSource(virtual_disk="data"))
        await world.until(lambda: disk_phase(world, "copy") == "Provisioning")
        await edit(world, disks=disk_names("root", "data"))
        await world.always(lambda: named(world) == ("root",), seconds=60)
        assert ready(world)
        copied.set()
        await world.until(lambda: named(world) == ("root", "data"))

    World().run(story)


def test_a_machine_that_was_made_too_late_goes_with_its_target() -> None:
    """The backend made it after its Exporter was gone; while the target existed, it was its own."""

    async def story(world: World) -> None:
        await world.make_class()
        await make(world)
        await world.until(lambda: ready(world))
        spec = world.provisioner._machines[(NAMESPACE, "vm")].spec

        async def finalizers(*names: str) -> None:
            await change(
                world.objects,
                world.views[VirtualTarget],
                target(world),
                lambda found: replace(found, metadata=replace(found.metadata, finalizers=names)),
            )

        await finalizers(*target(world).metadata.finalizers, "example.com/hold")
        await world.remove(VirtualTarget, "vm")
        await world.until(lambda: not list(world.views.exporters.all(NAMESPACE)))
        await world.until(lambda: target(world).metadata.finalizers == ("example.com/hold",))
        await world.provisioner.ensure(spec)
        await world.sleep(30)
        await finalizers()
        await world.until(lambda: phase(world) == "" and not world.provisioner.held())

    World().run(story)


def test_an_exporter_of_somebody_else_is_left_alone() -> None:
    async def story(world: World) -> None:
        await world.make_class()
        await world.objects.create(Exporter(metadata=ObjectMeta(name="vm", namespace=NAMESPACE)))
        await make(world)
        await world.until(lambda: says(world) == "False ExporterNameTaken")
        await world.remove(VirtualTarget, "vm")
        await world.until(lambda: phase(world) == "")
        assert world.views.exporters.get(*KEY) is not None

    World().run(story)


def test_a_deleted_exporter_comes_back_with_another_machine() -> None:
    async def story(world: World) -> None:
        await running(world)
        before = machine(world)
        await world.remove(Exporter, "vm")
        await world.until(lambda: ready(world) and machine(world) not in (None, before))

    World().run(story)


def test_a_target_waits_for_capacity_and_says_so() -> None:
    async def story(world: World) -> None:
        await world.make_class()
        for name in ("vm", "other"):
            await make(world, name)
        await world.until(lambda: ready(world, "vm") or ready(world, "other"))
        waits = "other" if ready(world) else "vm"
        await world.until(lambda: says(world, name=waits) == "False NoCapacity")
        await world.remove(VirtualTarget, "vm" if waits == "other" else "other")
        await world.until(lambda: ready(world, waits))

    World(instances_max=1).run(story)


def test_a_target_without_a_class_says_so_and_can_be_deleted() -> None:
    async def story(world: World) -> None:
        await make(world)
        await world.until(lambda: says(world) == "False VirtualTargetClassNotFound")
        await world.make_class()
        await world.until(lambda: ready(world))
        await world.remove(VirtualTarget, "vm")
        await world.until(lambda: phase(world) == "")
        with pytest.raises(NotFound):
            await world.objects.get(VirtualTarget, NAMESPACE, "vm")

    World().run(story)


def test_the_machine_of_a_target_boots_before_it_takes_a_lease() -> None:
    async def story(world: World) -> None:
        await world.make_class()
        await make(world)
        await world.ask("job")
        await world.until(lambda: world.got("job") == "vm")
        found = world.provisioner.instance(KEY)
        assert found is not None
        assert found.phase is InstancePhase.RUNNING

    World().run(story)


def named(world: World) -> tuple[str, ...]:
    """The disks that the machine was given last, in order."""
    found = world.provisioner._machines[KEY].spec.profile.disks
    return tuple(disk.key[1] for disk in found)


def disk_names(*names: str) -> tuple[TargetDisk, ...]:
    return tuple(TargetDisk(virtual_disk=name) for name in names)


async def with_disks(world: World, *names: str) -> None:
    for name in names:
        await make_disk(world, name)
    await running(world, disks=disk_names(names[0]))


def in_effect(world: World) -> bool:
    status = target(world).status
    return status.written_revision == status.effective_revision


def test_a_disk_comes_under_a_lease_goes_after_it_and_nothing_restarts() -> None:
    async def story(world: World) -> None:
        await with_disks(world, "root", "data")
        before = machine(world)
        await world.ask("one")
        await world.until(lambda: world.got("one") == "vm")
        await edit(world, disks=disk_names("root", "data"))
        await world.until(lambda: named(world) == ("root", "data") and in_effect(world))
        assert target(world).status.disks == ("root", "data")
        await edit(world, disks=disk_names("root"))
        await world.sleep(60)
        assert named(world) == ("root", "data")
        assert "when lease one ends" in get(target(world).status.conditions, "Ready").message  # type: ignore[union-attr]
        await world.release("one")
        await world.until(lambda: named(world) == ("root",) and in_effect(world))
        assert target(world).status.disks == ("root",)
        found = world.views[VirtualDisk]
        await world.until(lambda: found.get(NAMESPACE, "data").status.attached_to == "")  # type: ignore[union-attr]
        assert machine(world) is before
        assert target(world).status.starts == 1
        assert says(world, "RestartRequired") == "False UpToDate"

    World().run(story)


def test_a_running_machine_is_told_the_new_size_of_its_disk_once() -> None:
    async def story(world: World) -> None:
        await with_disks(world, "root")
        before, root = machine(world), world.views[VirtualDisk].get(NAMESPACE, "root")
        assert root is not None
        grown = replace(root, spec=replace(root.spec, size="16Mi"))
        await world.objects.update(grown)

        def told() -> bool:
            disks = world.provisioner._machines[KEY].spec.profile.disks
            return disks[0].size_bytes == 16 << 20

        await world.until(told)
        assert machine(world) is before
        assert target(world).status.starts == 1

    World().run(story)


def test_a_disk_that_the_machine_refuses_waits_for_the_restart_and_says_why() -> None:
    async def story(world: World) -> None:
        await with_disks(world, "root", "data")
        world.provisioner.disks_fixed = "this board has no slots"
        await world.ask("one")
        await world.until(lambda: world.got("one") == "vm")
        await edit(world, disks=disk_names("root", "data"))
        await world.until(lambda: says(world, "RestartRequired") == "True SettingsChanged")
        found = get(target(world).status.conditions, "RestartRequired")
        assert found is not None
        assert "this board has no slots" in found.message
        assert target(world).status.starts == 1
        await world.release("one")
        await world.until(lambda: named(world) == ("root", "data") and in_effect(world))
        await world.until(lambda: ready(world))
        assert target(world).status.starts == 2

    World().run(story)


def test_another_boot_disk_is_a_restart() -> None:
    async def story(world: World) -> None:
        await with_disks(world, "root", "other")
        before = machine(world)
        await edit(world, disks=disk_names("other", "root"))
        await world.until(lambda: target(world).status.starts == 2 and ready(world))
        assert machine(world) is not before
        assert in_effect(world)

    World().run(story)


def test_a_machine_without_space_is_paused_takes_no_lease_and_goes_on() -> None:
    async def story(world: World) -> None:
        await with_disks(world, "root")
        world.provisioner.pause(KEY, "its host has no space for disk root")
        await world.until(lambda: says(world) == "False NoSpace")
        found = get(target(world).status.conditions, "Ready")
        assert found is not None
        assert "its host has no space for disk root" in found.message

        def root() -> VirtualDisk:
            disk = world.views[VirtualDisk].get(NAMESPACE, "root")
            assert disk is not None
            return disk

        def about_root() -> str:
            condition = get(root().status.conditions, "Ready")
            return f"{condition.status} {condition.reason}" if condition is not None else ""

        await world.until(lambda: about_root() == "False NoSpace", seconds=5)
        assert root().status.phase == "Ready"
        await world.ask("one")
        await world.until(lambda: "target vm is paused" in world.waits("one"))
        await world.always(lambda: world.got("one") == "", seconds=5)
        events = (await world.objects.list(Event)).items
        assert [each.type for each in events if each.reason == "NoSpace"] == ["Warning"]

        world.provisioner.pause(KEY, "")
        await world.until(lambda: world.got("one") == "vm")
        await world.until(lambda: about_root() == "True Ready" and ready(world))
        assert target(world).status.starts == 1

    World().run(story)


def test_a_disk_that_its_storage_does_not_grow_keeps_no_machine_from_running() -> None:
    async def story(world: World) -> None:
        await with_disks(world, "root")
        world.provisioner.disks_fixed = "a Pod gets its volumes only when it is created"
        world.disk_storage.grow_fault = Refused("the storage class does not allow expansion")

        def root() -> VirtualDisk:
            disk = world.views[VirtualDisk].get(NAMESPACE, "root")
            assert disk is not None
            return disk

        await world.objects.update(replace(root(), spec=replace(root().spec, size="16Mi")))
        await world.until(lambda: target(world).status.starts == 2 and ready(world), seconds=60)
        found = get(root().status.conditions, "Ready")
        assert found is not None
        assert (found.reason, root().status.phase) == ("ResizeRefused", "Ready")
        assert "does not allow expansion" in found.message
        await world.always(lambda: target(world).status.starts == 2, seconds=300)

    World().run(story)


@pytest.mark.parametrize("approval", UpdateApproval)
def test_a_disk_that_cannot_grow_under_its_machine_grows_in_a_restart(
    approval: UpdateApproval,
) -> None:
    async def story(world: World) -> None:
        for name in ("root", "data"):
            await make_disk(world, name)
        await running(world, disks=disk_names("root", "data"), update_approval=approval)
        world.provisioner.disks_fixed = "this board has no slots"
        data = world.views[VirtualDisk].get(NAMESPACE, "data")
        assert data is not None
        await world.objects.update(replace(data, spec=replace(data.spec, size="16Mi")))

        def size() -> str:
            found = world.views[VirtualDisk].get(NAMESPACE, "data")
            assert found is not None
            return str(found.status.capacity)

        if approval is UpdateApproval.MANUAL:
            await world.until(lambda: says(world, "RestartRequired") == "True DiskNotGrown")
            assert target(world).status.starts == 1
            await annotate(world, RESTART, "approved")
        await world.until(lambda: target(world).status.starts == 2 and ready(world), seconds=60)
        await world.until(lambda: says(world, "RestartRequired") == "False UpToDate", seconds=5)
        assert size() == "16Mi"
        await world.always(lambda: target(world).status.starts == 2, seconds=120)

    World().run(story)
