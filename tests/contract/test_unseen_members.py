"""Instances of members that a view has not seen yet, as after a process that hung."""

from __future__ import annotations

from support.pool_world import World


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
