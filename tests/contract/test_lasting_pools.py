"""Pools of lasting targets keep their count, their disks and everybody's lease."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from bullpen.api.exporter_template import Driver
from bullpen.api.kinds.virtualdisk import DiskImage, VirtualDisk, VirtualDiskSpec
from bullpen.api.kinds.virtualtarget import (
    RestartPolicy,
    TargetDisk,
    VirtualTarget,
    VirtualTargetSpec,
)
from bullpen.api.kinds.virtualtargetclass import VirtualTargetClass
from bullpen.api.kinds.virtualtargetpool import (
    DISK_TEMPLATE,
    FREE_SINCE,
    POOL_UID,
    DiskTemplate,
    MemberMetadata,
    MemberTemplate,
    OnScaleDown,
    Reclaim,
    UpdateStrategy,
    UpdateType,
    VirtualTargetPool,
    VirtualTargetPoolSpec,
)
from bullpen.api.meta import ObjectMeta
from bullpen.api.scale_down import Removal, ScaleDownPolicy
from bullpen.controllers.object_edit import change
from bullpen.core.conditions import get
from bullpen.errors import Invalid
from support.pool_world import LABELS, NAMESPACE, World

RETAIN = Reclaim(on_scale_down=OnScaleDown.RETAIN)


def template(labels: dict[str, str] | None = None, **spec: Any) -> MemberTemplate:
    fields = {
        "virtual_target_class_name": "fake",
        "disks": (TargetDisk(virtual_disk="root"),),
        **spec,
    }
    meta = MemberMetadata(labels=labels or LABELS)
    return MemberTemplate(metadata=meta, spec=VirtualTargetSpec(**fields))


def root(reclaim: Reclaim | None = None, size: str = "8Mi") -> DiskTemplate:
    return DiskTemplate(name="root", reclaim=reclaim or Reclaim(), spec=VirtualDiskSpec(size=size))


async def make(world: World, replicas: int, **spec: Any) -> None:
    await world.make_class()
    fields = {
        "replicas": replicas,
        "scale_down_policy": ScaleDownPolicy.NEWEST_FIRST,
        "template": template(),
        "virtual_disk_templates": (root(),),
        **spec,
    }
    made = VirtualTargetPool(
        metadata=ObjectMeta(name="p", namespace=NAMESPACE), spec=VirtualTargetPoolSpec(**fields)
    )
    await world.objects.create(made)
    await world.until(lambda: ready(world) == replicas)


def pool(world: World) -> VirtualTargetPool:
    found = world.views[VirtualTargetPool].get(NAMESPACE, "p")
    assert found is not None
    return found


def ready(world: World) -> int:
    found = world.views[VirtualTargetPool].get(NAMESPACE, "p")
    return found.status.ready_replicas if found is not None else -1


def reason(world: World, type_: str) -> str:
    found = get(pool(world).status.conditions, type_)
    return found.reason if found is not None else ""


async def edit(world: World, **spec: Any) -> None:
    await change(
        world.objects,
        world.views[VirtualTargetPool],
        pool(world),
        lambda found: replace(found, spec=replace(found.spec, **spec)),
    )


def targets(world: World) -> dict[str, VirtualTarget]:
    return {t.metadata.name: t for t in world.views[VirtualTarget].all(NAMESPACE)}


def names(world: World) -> list[str]:
    return sorted(targets(world))


def disks(world: World) -> dict[str, VirtualDisk]:
    return {d.metadata.name: d for d in world.views[VirtualDisk].all(NAMESPACE)}


def disk_of(world: World, name: str) -> str:
    return targets(world)[name].spec.disks[0].virtual_disk


async def lease(world: World, name: str) -> str:
    await world.ask(name)
    await world.until(lambda: world.got(name))
    return world.got(name)


def test_a_pool_keeps_its_count_grows_shrinks_and_replaces_what_is_lost() -> None:
    async def story(world: World) -> None:
        await make(world, 2)
        assert names(world) == ["p-0", "p-1"]
        assert sorted(disks(world)) == ["p-0-root", "p-1-root"]
        assert reason(world, "Available") == "AllReplicasReady"
        await edit(world, replicas=3)
        await world.until(lambda: ready(world) == 3)
        await world.remove(VirtualTarget, "p-0")
        await world.until(lambda: names(world) == ["p-1", "p-2", "p-3"] and ready(world) == 3)
        await world.until(lambda: "p-0-root" not in disks(world))
        await edit(world, replicas=1)
        await world.until(lambda: names(world) == ["p-1"])
        await world.until(lambda: sorted(disks(world)) == ["p-1-root"])
        await world.until(lambda: reason(world, "Progressing") == "ReplicasSettled")
        rules = {decision.rule for decision in pool(world).status.decisions}
        assert rules == {"Missing", "Surplus"}
        await world.remove(VirtualTargetPool, "p")
        await world.until(lambda: not names(world) and not disks(world))
        assert not world.disk_storage.stored

    World().run(story)


def test_gap_1_a_slow_shutdown_does_not_freeze_the_pool() -> None:
    async def story(world: World) -> None:
        await make(world, 2)
        world.provisioner.faults = replace(world.provisioner.faults, stop_seconds=(300.0, 300.0))
        await edit(world, replicas=1)
        await world.until(lambda: targets(world)["p-1"].metadata.deletion_timestamp is not None)
        await edit(world, replicas=3)
        await world.until(lambda: {"p-2", "p-3"} <= set(names(world)), seconds=5)

    World().run(story)


def test_a_leased_member_leaves_when_its_lease_ends_if_the_pool_still_shrinks() -> None:
    async def story(world: World) -> None:
        await make(world, 3)
        first, second = await lease(world, "one"), await lease(world, "two")
        await edit(world, replicas=0)
        await world.until(lambda: names(world) == sorted((first, second)))
        await world.always(lambda: len(names(world)) == 2, seconds=120)
        assert reason(world, "Progressing") == "WaitingForLeases"
        await world.release("one")
        await world.until(lambda: names(world) == [second])
        await edit(world, replicas=1)
        await world.release("two")
        await world.always(lambda: names(world) == [second], seconds=60)

    World().run(story)


@pytest.mark.parametrize(
    ("policy", "left"),
    [(ScaleDownPolicy.NEWEST_FIRST, "p-0"), (ScaleDownPolicy.OLDEST_FIRST, "p-3")],
)
def test_gap_7_members_of_one_second_go_in_the_order_of_their_creation(
    policy: ScaleDownPolicy, left: str
) -> None:
    async def story(world: World) -> None:
        await make(world, 4, scale_down_policy=policy)
        created = {t.metadata.creation_timestamp for t in targets(world).values()}
        assert len(created) == 1
        await edit(world, replicas=1)
        await world.until(lambda: names(world) == [left])

    World().run(story)


def test_members_that_are_not_ready_go_first() -> None:
    async def story(world: World) -> None:
        await make(world, 3)
        found = targets(world)["p-0"]
        await world.objects.update(replace(found, spec=replace(found.spec, running=False)))
        await world.until(lambda: ready(world) == 2)
        await edit(world, replicas=2)
        await world.until(lambda: names(world) == ["p-1", "p-2"])

    World().run(story)


def test_gap_2_switching_the_policy_fires_no_backlog() -> None:
    async def story(world: World) -> None:
        await make(world, 3, scale_down_policy=ScaleDownPolicy.EXPLICIT)
        with pytest.raises(Invalid, match="bullpen scale-down"):
            await edit(world, replicas=1)
        await edit(world, scale_down_policy=ScaleDownPolicy.NEWEST_FIRST)
        await world.always(lambda: len(names(world)) == 3, seconds=60)

    World().run(story)


def test_members_removed_by_name_leave_in_the_write_that_lowers_the_count() -> None:
    async def story(world: World) -> None:
        await make(world, 3, scale_down_policy=ScaleDownPolicy.EXPLICIT)
        held = await lease(world, "job")
        gone = next(name for name in names(world) if name != held)
        removals = tuple(
            Removal(name=name, uid=targets(world)[name].metadata.uid, when_idle=True)
            for name in (gone, held)
        )
        await edit(world, replicas=1, removals=removals)
        await world.until(lambda: gone not in names(world))
        await world.always(lambda: held in names(world) and len(names(world)) == 2, seconds=60)
        await world.release("job")
        await world.until(lambda: held not in names(world) and not pool(world).spec.removals)
        await world.always(lambda: len(names(world)) == 1, seconds=30)

    World().run(story)


def test_gap_4_a_new_pool_of_the_same_name_inherits_nothing() -> None:
    async def story(world: World) -> None:
        await make(world, 2)
        await world.remove(VirtualTargetPool, "p")
        await world.until(lambda: not names(world))
        await world.remove(VirtualTargetClass, "fake")
        await make(world, 2)
        assert names(world) == ["p-0", "p-1"]

    World().run(story)


def test_gap_5_labels_reach_live_members_before_the_pool_is_synced() -> None:
    async def story(world: World) -> None:
        await make(world, 2)
        before = {name: world.provisioner._machines[NAMESPACE, name] for name in names(world)}
        await edit(world, template=template({"board": "new"}))
        old = pool(world).status.desired_template_hash
        await world.until(lambda: pool(world).status.desired_template_hash != old)
        await world.until(lambda: reason(world, "Synced") == "PoolSynced")
        assert all(t.metadata.labels["board"] == "new" for t in targets(world).values())
        await world.ask("job", labels={"board": "new"})
        await world.until(lambda: world.got("job"))
        after = {name: world.provisioner._machines[NAMESPACE, name] for name in names(world)}
        assert after == before

    World().run(story)


def test_gap_14_new_members_are_not_rewritten_and_keep_what_is_their_own() -> None:
    async def story(world: World) -> None:
        await make(world, 2)
        assert {t.metadata.generation for t in targets(world).values()} == {1}
        identities = {n: t.status.identity for n, t in targets(world).items()}
        await edit(world, template=template(restart_policy=RestartPolicy.NEVER))
        await world.until(lambda: pool(world).status.updated_replicas == 2)
        assert {n: t.status.identity for n, t in targets(world).items()} == identities
        assert sorted(disk_of(world, name) for name in names(world)) == ["p-0-root", "p-1-root"]

    World().run(story)


def drivers(name: str) -> tuple[Driver, ...]:
    return (Driver(name=name, type="a.B"),)


@pytest.mark.parametrize("strategy", [UpdateType.IN_PLACE, UpdateType.REPLACE])
def test_an_update_takes_no_more_members_than_allowed_and_no_lease(strategy: UpdateType) -> None:
    async def story(world: World) -> None:
        await make(world, 4, update_strategy=UpdateStrategy(type=strategy, max_unavailable=2))
        held = await lease(world, "job")
        await edit(world, template=template(drivers=drivers("new")))

        def enough() -> bool:
            assert targets(world)[held].metadata.deletion_timestamp is None
            return ready(world) >= 2

        await world.always(enough, seconds=60)
        assert not world.lease("job").status.ended
        await world.release("job")
        await world.until(lambda: pool(world).status.updated_replicas == 4)
        await world.until(lambda: reason(world, "Synced") == "PoolSynced")
        assert len(pool(world).status.revisions) == 2

    World().run(story)


def test_on_delete_changes_new_members_only() -> None:
    async def story(world: World) -> None:
        await make(world, 2, update_strategy=UpdateStrategy(type=UpdateType.ON_DELETE))
        await edit(world, template=template(drivers=drivers("new")))
        await world.until(lambda: reason(world, "Synced") == "UpdatedOnDelete")
        await world.remove(VirtualTarget, "p-0")
        await world.until(lambda: pool(world).status.updated_replicas == 1)
        await world.always(lambda: pool(world).status.updated_replicas == 1, seconds=60)

    World().run(story)


def test_a_broken_template_halts_and_the_next_one_goes_on() -> None:
    async def story(world: World) -> None:
        await make(world, 3)
        await edit(world, template=template(virtual_target_class_name="missing"))
        await world.until(lambda: reason(world, "Synced") == "RestartPendingApproval")
        await world.always(lambda: ready(world) == 3, seconds=120)
        written = [t.spec.virtual_target_class_name for t in targets(world).values()]
        assert sorted(written) == ["fake", "fake", "missing"]
        assert pool(world).status.updated_replicas == 0
        await edit(world, template=template(drivers=drivers("new")))
        await world.until(lambda: pool(world).status.updated_replicas == 3)
        await world.until(lambda: reason(world, "Synced") == "PoolSynced")

    World().run(story)


def test_gap_15_a_paused_pool_changes_nothing() -> None:
    async def story(world: World) -> None:
        await make(world, 2)
        await edit(world, paused=True, replicas=4, template=template(drivers=drivers("new")))
        await world.remove(VirtualTarget, "p-0")
        await world.until(lambda: names(world) == ["p-1"])
        await world.always(lambda: names(world) == ["p-1"], seconds=60)
        assert reason(world, "Paused") == "Paused"
        await edit(world, paused=False)
        await world.until(lambda: ready(world) == 4)

    World().run(story)


def test_members_are_adopted_and_released_by_owner_reference_alone() -> None:
    async def story(world: World) -> None:
        await make(world, 2)
        found = targets(world)["p-0"]
        meta = replace(found.metadata, owner_references=())
        await world.objects.update(replace(found, metadata=meta))
        await world.until(lambda: names(world) == ["p-0", "p-1", "p-2"] and ready(world) == 2)
        assert targets(world)["p-0"].metadata.labels[POOL_UID] == pool(world).metadata.uid
        await edit(world, replicas=0)
        await world.until(lambda: names(world) == ["p-0"])

    World().run(story)


def test_hazard_1_targets_outside_the_pool_are_never_touched() -> None:
    async def story(world: World) -> None:
        meta = ObjectMeta(name="p-1", namespace=NAMESPACE, labels=LABELS)
        spec = VirtualTargetSpec(virtual_target_class_name="missing")
        await world.objects.create(VirtualTarget(metadata=meta, spec=spec))
        await make(world, 2)
        assert names(world) == ["p-0", "p-1", "p-2"]
        await edit(world, replicas=0)
        await world.until(lambda: names(world) == ["p-1"])
        await world.always(lambda: names(world) == ["p-1"], seconds=60)

    World().run(story)


class TestRetainedDisks:
    """Gaps 8 to 11: what becomes of a disk whose member is gone."""

    def test_gap_11_the_disk_freed_last_is_reused_first(self) -> None:
        async def story(world: World) -> None:
            await make(world, 3, virtual_disk_templates=(root(RETAIN),))
            assert sorted(disks(world)) == ["p-root-0", "p-root-1", "p-root-2"]
            for left in (2, 1):
                await edit(world, replicas=left)
                await world.until(lambda left=left: len(names(world)) == left)  # type: ignore[misc]
                await world.sleep(5)
            await world.until(lambda: free_disks(world) == ["p-root-1", "p-root-2"])
            await edit(world, replicas=2)
            await world.until(lambda: ready(world) == 2)
            assert "p-root-1" in {disk_of(world, name) for name in names(world)}
            assert sorted(disks(world)) == ["p-root-0", "p-root-1", "p-root-2"]
            await world.until(lambda: free_disks(world) == ["p-root-2"])

        World().run(story)

    def test_gap_9_a_disk_of_a_member_that_is_still_stopping_is_not_free(self) -> None:
        async def story(world: World) -> None:
            await make(world, 1, virtual_disk_templates=(root(RETAIN),))
            world.provisioner.faults = replace(world.provisioner.faults, stop_seconds=(60.0, 60.0))
            await world.remove(VirtualTarget, "p-0")
            await world.until(lambda: "p-1" in names(world))
            assert disk_of(world, "p-1") == "p-root-1"
            assert FREE_SINCE not in disks(world)["p-root-0"].metadata.annotations
            await world.until(lambda: free_disks(world) == ["p-root-0"], seconds=90)

        World().run(story)

    def test_ttl_is_due_on_time_in_a_pool_without_members_and_events(self) -> None:
        async def story(world: World) -> None:
            reclaim = replace(RETAIN, keep=1, ttl=timedelta(hours=1))
            await make(world, 3, virtual_disk_templates=(root(reclaim),))
            await edit(world, replicas=0)
            await world.until(lambda: len(free_disks(world)) == 3)
            await world.always(lambda: len(disks(world)) == 3, seconds=3500)
            await world.until(lambda: len(disks(world)) == 1, seconds=200)
            await world.always(lambda: len(disks(world)) == 1, seconds=7200)

        World().run(story)

    def test_without_ttl_nothing_is_ever_deleted(self) -> None:
        async def story(world: World) -> None:
            await make(world, 2, virtual_disk_templates=(root(RETAIN),))
            await edit(world, replicas=0)
            await world.until(lambda: len(free_disks(world)) == 2)
            await world.sleep(40_000)
            assert len(disks(world)) == 2

        World().run(story)

    def test_gap_8_a_lost_disk_is_not_reused_and_takes_no_place_of_keep(self) -> None:
        async def story(world: World) -> None:
            reclaim = replace(RETAIN, keep=1, ttl=timedelta(hours=1))
            await make(world, 2, virtual_disk_templates=(root(reclaim),))
            await edit(world, replicas=0)
            await world.until(lambda: len(free_disks(world)) == 2)
            lost = disks(world)["p-root-1"]
            del world.disk_storage.stored[(NAMESPACE, "p-root-1"), lost.metadata.uid]
            await world.until(lambda: disks(world)["p-root-1"].status.phase == "Lost", seconds=90)
            await world.until(lambda: list(disks(world)) == ["p-root-0"], seconds=4000)
            await edit(world, replicas=1)
            await world.until(lambda: ready(world) == 1)
            assert [disk_of(world, name) for name in names(world)] == ["p-root-0"]

        World().run(story)

    @pytest.mark.parametrize("first", [RETAIN, Reclaim()], ids=["to Delete", "to Retain"])
    def test_gap_10_a_changed_reclaim_keeps_one_disk_per_member(self, first: Reclaim) -> None:
        async def story(world: World) -> None:
            await make(world, 2, virtual_disk_templates=(root(first),))
            before = sorted(disks(world))
            second = Reclaim() if first is RETAIN else RETAIN
            await edit(world, virtual_disk_templates=(root(second),))
            await world.sleep(30)
            assert sorted(disks(world)) == before
            await edit(world, replicas=1)
            await world.until(lambda: len(names(world)) == 1)
            left = 1 if second.on_scale_down is OnScaleDown.DELETE else 2
            await world.until(lambda: len(disks(world)) == left)
            await world.always(lambda: len(disks(world)) == left, seconds=30)

        World().run(story)

    def test_two_members_with_one_disk_are_repaired(self) -> None:
        async def story(world: World) -> None:
            await make(world, 2, virtual_disk_templates=(root(RETAIN),))
            other = targets(world)["p-1"]
            wrong = replace(other.spec, disks=targets(world)["p-0"].spec.disks)
            await world.objects.update(replace(other, spec=wrong))
            await world.until(lambda: len({disk_of(world, name) for name in names(world)}) == 2)
            await world.until(lambda: ready(world) == 2)
            assert disk_of(world, "p-0") == "p-root-0"

        World().run(story)


def free_disks(world: World) -> list[str]:
    return sorted(n for n, d in disks(world).items() if FREE_SINCE in d.metadata.annotations)


def test_growing_a_template_grows_its_disks_and_never_shrinks_them() -> None:
    async def story(world: World) -> None:
        await make(world, 2, virtual_disk_templates=(root(RETAIN),))
        await edit(world, replicas=1)
        await world.until(lambda: len(free_disks(world)) == 1)
        await edit(world, virtual_disk_templates=(root(RETAIN, size="16Mi"),))
        await world.until(lambda: {d.spec.size for d in disks(world).values()} == {"16Mi"})
        await edit(world, virtual_disk_templates=(root(RETAIN, size="8Mi"),))
        await world.always(
            lambda: {d.spec.size for d in disks(world).values()} == {"16Mi"}, seconds=30
        )

    World().run(story)


def test_disks_that_grow_in_a_restart_take_no_more_members_than_allowed_and_no_lease() -> None:
    async def story(world: World) -> None:
        await make(world, 4)
        world.provisioner.disks_fixed = "a Pod gets its volumes only when it is created"
        held = await lease(world, "job")
        most = 0

        def down() -> int:
            return sum(
                "False" in str(found.status)
                for t in targets(world).values()
                if (found := get(t.status.conditions, "Ready")) is not None
            )

        def looked(old: VirtualTarget | None, new: VirtualTarget | None) -> None:
            nonlocal most
            most = max(most, down())

        world.views[VirtualTarget].listen(looked)
        await edit(world, virtual_disk_templates=(root(size="16Mi"),))

        def grown() -> set[str]:
            return {name for name, d in disks(world).items() if d.status.capacity == "16Mi"}

        free = {f"{name}-root" for name in names(world) if name != held}
        await world.until(lambda: grown() == free, seconds=120)
        await world.always(lambda: targets(world)[held].status.starts == 1, seconds=30)
        assert most == 1
        await world.release("job")
        await world.until(lambda: len(grown()) == 4 and ready(world) == 4, seconds=60)
        await world.until(lambda: reason(world, "Synced") == "PoolSynced")
        await world.sleep(120)
        assert {t.status.starts for t in targets(world).values()} == {2}
        assert "MemberRestarted" in {event.reason for event in await world.events()}

    World().run(story)


def placeholders(*names: str) -> tuple[TargetDisk, ...]:
    return tuple(TargetDisk(virtual_disk=name) for name in names)


def test_several_placeholders_are_resolved_in_their_places_at_the_creation() -> None:
    async def story(world: World) -> None:
        image = TargetDisk(image=DiskImage(path="/images/tools.qcow2"))
        cache = replace(root(RETAIN), name="cache")
        home = replace(root(), name="home")
        first, *rest = placeholders("cache", "root", "home")
        seen: list[tuple[TargetDisk, ...]] = []

        def born(old: VirtualTarget | None, new: VirtualTarget | None) -> None:
            if old is None and new is not None:
                seen.append(new.spec.disks)

        world.views[VirtualTarget].listen(born)
        await make(
            world,
            2,
            virtual_disk_templates=(root(), cache, home),
            template=template(disks=(first, image, *rest)),
        )
        for number in range(2):
            one, *others = placeholders(f"p-cache-{number}", f"p-{number}-root", f"p-{number}-home")
            assert seen[number] == (one, image, *others)
            assert targets(world)[f"p-{number}"].spec.disks == seen[number]
        assert len(disks(world)) == 6

    World().run(story)


def test_the_boot_disk_of_a_removed_template_goes_when_its_member_is_recreated() -> None:
    async def story(world: World) -> None:
        data = replace(root(), name="data")
        both = placeholders("root", "data")
        await make(
            world, 1, virtual_disk_templates=(root(RETAIN), data), template=template(disks=both)
        )
        alone = template(disks=placeholders("data"))
        await edit(world, virtual_disk_templates=(data,), template=alone)
        await world.until(lambda: reason(world, "Synced") == "PoolSynced", seconds=60)
        await world.sleep(60)
        assert targets(world)["p-0"].spec.disks == placeholders("p-root-0", "p-0-data")
        assert sorted(disks(world)) == ["p-0-data", "p-root-0"]
        await world.remove(VirtualTarget, "p-0")
        await world.until(lambda: names(world) == ["p-1"] and ready(world) == 1)
        assert targets(world)["p-1"].spec.disks == placeholders("p-1-data")
        await world.until(lambda: sorted(disks(world)) == ["p-1-data"])

    World().run(story)


def test_removing_a_template_detaches_first_and_deletes_what_nobody_has() -> None:
    async def story(world: World) -> None:
        cache = replace(root(RETAIN), name="cache")
        both = (TargetDisk(virtual_disk="root"), TargetDisk(virtual_disk="cache"))
        await make(world, 2, virtual_disk_templates=(root(), cache), template=template(disks=both))
        assert len(disks(world)) == 4
        held = await lease(world, "job")
        await edit(world, virtual_disk_templates=(root(),), template=template())
        await world.sleep(60)
        mine = [d for d in disks(world).values() if d.metadata.labels[DISK_TEMPLATE] == "cache"]
        assert [d.status.attached_to for d in mine] == [held]
        await world.release("job")
        await world.until(lambda: len(disks(world)) == 2)
        await world.until(lambda: ready(world) == 2)

    World().run(story)


def test_gap_12_a_refused_template_is_tried_once_and_then_less_and_less() -> None:
    async def story(world: World) -> None:
        await make(world, 1)
        tries = 0
        create = world.objects.create

        async def refusing(value: Any) -> Any:
            nonlocal tries
            if isinstance(value, VirtualTarget):
                tries += 1
                raise Invalid("the template is refused by somebody's policy")
            return await create(value)

        world.objects.create = refusing  # type: ignore[method-assign]
        await edit(world, replicas=500)
        await world.until(lambda: reason(world, "ReplicaFailure") == "CreateRefused")
        assert tries <= 8
        await world.sleep(120)
        assert tries < 25
        world.objects.create = create  # type: ignore[method-assign]
        await world.until(lambda: len(names(world)) == 500, seconds=300)

    World(instances_max=2).run(story)
