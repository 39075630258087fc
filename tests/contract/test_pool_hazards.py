"""Mistakes that pools of machines are known to make, and that ours does not.

docs/explanation/pool-hazards.md lists all of them; most tests are beside what they concern.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from test_lasting_pools import (
    RETAIN,
    disk_of,
    disks,
    drivers,
    edit,
    free_disks,
    lease,
    make,
    names,
    pool,
    ready,
    reason,
    root,
    targets,
    template,
)

from bullpen.api.kinds.virtualdisk import VirtualDisk
from bullpen.api.kinds.virtualtarget import RestartPolicy, TargetDisk, VirtualTarget
from bullpen.api.kinds.virtualtargetpool import (
    OnScaleDown,
    Reclaim,
    UpdateStrategy,
    UpdateType,
    VirtualTargetPool,
)
from bullpen.api.scale_down import ScaleDownPolicy
from bullpen.errors import Unavailable
from bullpen.provisioners.fake import Faults
from support.pool_world import LABELS, NAMESPACE, World


def test_gap_6_a_member_is_ready_when_its_exporter_serves_not_when_its_machine_runs() -> None:
    async def story(world: World) -> None:
        await make(world, 2)
        world.players.mute = lambda name: name == "p-2"
        await edit(world, replicas=3)
        await world.until(lambda: "p-2" in world.instances())
        await world.always(lambda: ready(world) == 2, seconds=60)
        assert reason(world, "Available") == "InsufficientReadyReplicas"
        world.players.mute = lambda name: False
        await world.players.reconcile((NAMESPACE, "p-2"))
        await world.until(lambda: ready(world) == 3)
        assert reason(world, "Available") == "AllReplicasReady"

    World().run(story)


def test_gap_11_a_disk_that_still_provisions_is_used_rather_than_a_second_new_one() -> None:
    async def story(world: World) -> None:
        await make(world, 1, virtual_disk_templates=(root(RETAIN),))
        world.disk_storage.fault = Unavailable("the images cannot be read now")
        await edit(world, replicas=2)
        await world.until(lambda: len(disks(world)) == 2)
        await edit(world, replicas=1)
        await world.until(lambda: names(world) == ["p-0"])
        await edit(world, replicas=2)
        await world.until(lambda: names(world) == ["p-0", "p-2"])
        await world.always(lambda: len(disks(world)) == 2, seconds=60)
        assert disk_of(world, "p-2") == "p-root-1"
        world.disk_storage.fault = None
        await world.until(lambda: ready(world) == 2)

    World().run(story)


def test_disks_for_members_that_wait_for_an_update_are_not_handed_out_again_and_again() -> None:
    """They take no disk before they are updated, so that nothing is written for them meanwhile."""

    async def story(world: World) -> None:
        waits = UpdateStrategy(type=UpdateType.ON_DELETE)
        await make(world, 2, update_strategy=waits)
        cache = replace(root(RETAIN), name="cache")
        both = (TargetDisk(virtual_disk="root"), TargetDisk(virtual_disk="cache"))
        await edit(world, template=template(disks=both), virtual_disk_templates=(root(), cache))
        for count in (4, 2):
            await edit(world, replicas=count)
            await world.until(lambda count=count: len(names(world)) == count)  # type: ignore[misc]
        free = {"p-cache-0", "p-cache-1"}
        await world.until(lambda: set(free_disks(world)) == free)
        await world.sleep(10)
        writes: list[str] = []
        world.views[VirtualDisk].listen(lambda old, new: writes.append(str(new or old)))
        world.views[VirtualTargetPool].listen(lambda old, new: writes.append(str(new or old)))
        await world.sleep(300)
        assert not writes
        await edit(world, update_strategy=UpdateStrategy())
        await world.until(lambda: reason(world, "Synced") == "PoolSynced")
        assert {t.spec.disks[1].virtual_disk for t in targets(world).values()} == free
        await world.until(lambda: not free_disks(world))

    World().run(story)


def test_gap_15_a_machine_that_fails_is_restarted_and_its_member_stays() -> None:
    async def story(world: World) -> None:
        await make(world, 2, template=template(restart_policy=RestartPolicy.ALWAYS))
        before = {name: found.metadata.uid for name, found in targets(world).items()}
        disk = disk_of(world, "p-0")
        world.provisioner.crash((NAMESPACE, "p-0"))
        await world.until(lambda: ready(world) == 1)
        await world.until(lambda: ready(world) == 2)
        assert {name: found.metadata.uid for name, found in targets(world).items()} == before
        assert disk_of(world, "p-0") == disk

    World().run(story)


def test_hazard_2_a_surplus_with_fewer_idle_members_removes_those_and_waits() -> None:
    async def story(world: World) -> None:
        await make(world, 3)
        held = {await lease(world, "one"), await lease(world, "two")}
        await edit(world, replicas=0)
        await world.until(lambda: set(names(world)) == held)
        await world.always(lambda: set(names(world)) == held, seconds=60)
        assert reason(world, "Progressing") == "WaitingForLeases"
        for job in ("one", "two"):
            await world.release(job)
        await world.until(lambda: not names(world))

    World().run(story)


@pytest.mark.parametrize("policy", list(ScaleDownPolicy))
@pytest.mark.parametrize("paused", [False, True], ids=["active", "paused"])
def test_hazard_3_a_member_deleted_by_hand_goes_in_every_state_of_its_pool(
    policy: ScaleDownPolicy, paused: bool
) -> None:
    async def story(world: World) -> None:
        await make(world, 2, scale_down_policy=policy)
        held = await lease(world, "job")
        if policy is not ScaleDownPolicy.EXPLICIT:
            await edit(world, replicas=0)
        await edit(world, paused=paused)
        for name in names(world):
            await world.remove(VirtualTarget, name)
        await world.release("job")
        await world.until(lambda: held not in names(world))
        await world.until(lambda: not {"p-0", "p-1"} & set(names(world)))

    World().run(story)


class TestHazard4:
    """Every value that the API accepts does something of its own."""

    def test_hazard_4_each_scale_down_policy_leaves_other_members(self) -> None:
        left = {}
        for policy in ScaleDownPolicy:

            async def story(world: World, policy: ScaleDownPolicy = policy) -> None:
                await make(world, 3, scale_down_policy=policy)
                if policy is not ScaleDownPolicy.EXPLICIT:
                    await edit(world, replicas=1)
                    await world.until(lambda: len(names(world)) == 1)
                left[policy] = tuple(names(world))

            World().run(story)
        assert len(set(left.values())) == len(ScaleDownPolicy)

    def test_hazard_4_each_update_strategy_has_another_outcome(self) -> None:
        found = {}
        for strategy in UpdateType:

            async def story(world: World, strategy: UpdateType = strategy) -> None:
                await make(world, 1, update_strategy=UpdateStrategy(type=strategy))
                uid = targets(world)["p-0"].metadata.uid
                await edit(world, template=template(drivers=drivers("new")))
                await world.sleep(60)
                (member,) = targets(world).values()
                found[strategy] = (member.metadata.uid == uid, reason(world, "Synced"))

            World().run(story)
        assert found == {
            UpdateType.IN_PLACE: (True, "PoolSynced"),
            UpdateType.REPLACE: (False, "PoolSynced"),
            UpdateType.ON_DELETE: (True, "UpdatedOnDelete"),
        }

    @pytest.mark.parametrize("rule", list(OnScaleDown))
    def test_hazard_4_each_reclaim_rule_has_another_outcome(self, rule: OnScaleDown) -> None:
        async def story(world: World) -> None:
            await make(world, 1, virtual_disk_templates=(root(Reclaim(on_scale_down=rule)),))
            await edit(world, replicas=0)
            await world.until(lambda: not names(world))
            await world.sleep(60)
            assert len(disks(world)) == (rule is OnScaleDown.RETAIN)

        World().run(story)


def test_hazard_5_leases_and_removals_look_at_what_a_member_has_not_at_its_template() -> None:
    async def story(world: World) -> None:
        await make(world, 2)
        found = targets(world)["p-0"]
        labels = {**found.metadata.labels, "rack": "seven"}
        meta = replace(found.metadata, labels=labels)
        await world.objects.update(replace(found, metadata=meta))

        def known() -> bool:
            exporter = world.views.exporters.get(NAMESPACE, "p-0")
            return exporter is not None and "rack" in exporter.metadata.labels

        await world.until(known)
        await world.ask("job", labels={**LABELS, "rack": "seven"})
        await world.until(lambda: world.got("job") == "p-0")
        # Not ready goes first, as it is now, whatever the age.
        world.provisioner.faults = Faults(boot_seconds=(600.0, 600.0))
        await world.release("job")
        await world.until(lambda: not targets(world)["p-0"].status.lease)
        world.provisioner.crash((NAMESPACE, "p-0"))
        await world.until(lambda: ready(world) == 1)
        await edit(world, replicas=1)
        await world.until(lambda: names(world) == ["p-1"])
        assert pool(world).status.ready_replicas == 1

    World().run(story)


def test_hazard_5_the_pause_before_a_restart_counts_from_the_end_of_the_machine() -> None:
    async def story(world: World) -> None:
        await make(world, 1, template=template(restart_policy=RestartPolicy.ALWAYS))
        for _ in range(3):
            await world.until(lambda: ready(world) == 1, seconds=120)
            world.provisioner.crash((NAMESPACE, "p-0"))
            await world.until(lambda: ready(world) == 0)
        ended = targets(world)["p-0"].status.restarts
        assert ended is not None
        pause = ended.retry_time - ended.last_time
        await world.sleep(pause.total_seconds() / 2)
        # Looking again in between does not start the pause anew.
        await edit(world, template=template({**LABELS, "new": "label"}))
        await world.until(lambda: ready(world) == 1, seconds=pause.total_seconds() / 2 + 30)

    World().run(story)
