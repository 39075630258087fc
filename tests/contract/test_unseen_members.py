"""Instances that a view has not seen yet, as after a process that hung."""

from __future__ import annotations

from dataclasses import replace

from bullpen.api.kinds.virtualdisk import VirtualDisk, VirtualDiskSpec
from bullpen.api.kinds.virtualtarget import TargetDisk, VirtualTarget, VirtualTargetSpec
from bullpen.api.meta import ObjectMeta
from bullpen.provisioners.fake import NAME
from support.pool_world import LABELS, NAMESPACE, World

KEY = (NAMESPACE, "vm")


def test_a_member_that_a_view_has_not_seen_yet_keeps_its_instance() -> None:
    async def story(world: World) -> None:
        await world.make_class()
        await world.make_set(min_available_replicas=1)
        await world.until(lambda: world.available(1))
        (member,) = world.members()
        world.lab.views.exporters._drop(member)
        await world.sleep(10)
        assert member.metadata.name in world.instances()

    World().run(story)


def test_a_list_from_before_a_start_does_not_say_that_the_machine_is_gone() -> None:
    async def story(world: World) -> None:
        await world.make_class()
        disk = ObjectMeta(name="home", namespace=NAMESPACE)
        await world.objects.create(VirtualDisk(metadata=disk, spec=VirtualDiskSpec(size="8Mi")))
        meta = ObjectMeta(name=KEY[1], namespace=NAMESPACE, labels=LABELS)
        spec = VirtualTargetSpec(
            virtual_target_class_name="fake", disks=(TargetDisk(virtual_disk="home"),)
        )
        await world.objects.create(VirtualTarget(metadata=meta, spec=spec))
        targets = world.views[VirtualTarget]

        def found() -> VirtualTarget:
            target = targets.get(*KEY)
            assert target is not None
            return target

        await world.until(lambda: found().status.phase == "Running")
        phases: set[str] = set()
        targets.listen(lambda _, new: phases.add(new.status.phase if new else "gone"))
        # As if another process had started it while this one hung.
        status = replace(found().status, starts=found().status.starts + 1)
        await world.objects.update_status(replace(found(), status=status))
        await world.until(lambda: found().status.starts == status.starts)
        world.lab.instance_view.drop(NAME, KEY)
        await world.until(lambda: world.lab.instance_view.holders(KEY))
        await world.sleep(10)
        assert phases == {"Running"}
        assert found().status.starts == status.starts, "it was started although it runs"
        assert found().status.disks == ("home",)

    World().run(story)
