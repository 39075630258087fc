"""A new template reaches the members of a pool, also when it does not start at first."""

from __future__ import annotations

from datetime import timedelta

import pytest

from bullpen.api.exporter_template import Driver, Template, TemplateMetadata, TemplateSpec
from bullpen.core.pools.members import REVISION
from bullpen.provisioners.fake import Faults
from support.pool_world import BOOT, LABELS, World

BROKEN = Faults(start_failed=1.0)
HOUR = timedelta(hours=1)
NEW = Template(
    metadata=TemplateMetadata(labels=LABELS),
    spec=TemplateSpec(drivers=(Driver(name="extra", type="example.Driver"),)),
)


def revisions(world: World) -> set[str]:
    return {member.metadata.labels[REVISION] for member in world.members()}


@pytest.mark.parametrize("ceiling", [4, 3])
def test_a_start_that_fails_does_not_stop_a_rollout_for_ever(ceiling: int) -> None:
    async def story(world: World) -> None:
        await world.make_class()
        await world.make_set(min_replicas=3, max_replicas=ceiling, scale_down_cooldown=HOUR)
        await world.until(lambda: world.status().ready_replicas == 3)
        await world.sleep(30)
        world.provisioner.faults = BROKEN
        await world.edit_set(template=NEW)
        await world.until(lambda: world.status().start_failures, seconds=30)
        await world.always(lambda: world.status().ready_replicas >= 2, seconds=600)
        failures = world.status().start_failures
        assert failures is not None
        assert failures.count > 3, "it is tried again"
        world.provisioner.faults = BOOT
        await world.until(lambda: revisions(world) == {world.status().revision}, seconds=300)
        await world.until(lambda: world.status().ready_replicas == 3)
        assert world.reason("Degraded") == "Healthy"

    World().run(story)


def test_with_room_for_a_new_member_no_old_one_goes_before_it_has_started() -> None:
    async def story(world: World) -> None:
        await world.make_class()
        await world.make_set(min_replicas=3, max_replicas=4, scale_down_cooldown=HOUR)
        await world.until(lambda: world.status().ready_replicas == 3)
        await world.sleep(30)
        before = world.uids()
        world.provisioner.faults = BROKEN
        await world.edit_set(template=NEW)
        await world.always(lambda: before <= world.uids(), seconds=600)

    World().run(story)


def test_leased_members_of_an_old_template_show() -> None:
    async def story(world: World) -> None:
        await world.make_class()
        await world.make_set(min_available_replicas=1, max_replicas=3)
        await world.ask("job")
        await world.until(lambda: world.got("job") and world.available(1))
        assert (world.reason("Synced"), world.status().updated_replicas) == ("UpToDate", 2)
        await world.edit_set(template=NEW)
        await world.until(lambda: world.reason("Synced") == "RollingOut", seconds=5)
        await world.until(lambda: world.reason("Synced") == "WaitingForLeases")
        assert world.status().updated_replicas == 1
        assert world.condition("Synced").message == "1 of 2 updated, 1 outdated and leased"
        await world.release("job")
        await world.until(lambda: world.reason("Synced") == "UpToDate", seconds=10)

    World().run(story)
