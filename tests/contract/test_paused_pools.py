"""A pool that is paused starts nothing, and keeps only what leases hold."""

from __future__ import annotations

from support.pool_world import World


def test_a_paused_pool_removes_what_is_idle_and_keeps_what_is_leased() -> None:
    async def story(world: World) -> None:
        await world.make_class()
        await world.make_set(min_replicas=1, min_available_replicas=2)
        await world.until(lambda: world.available(2))
        await world.ask("job")
        await world.until(lambda: world.got("job") and world.available(2))
        await world.edit_set(paused=True)
        await world.until(lambda: world.names() == [world.got("job")], seconds=5)
        assert world.reason("Available") == "Paused"
        assert world.condition("SetHealthy").status == "True"
        assert {d.rule for d in world.status().decisions if d.action == "Drain"} == {"Paused"}
        await world.ask("next")
        await world.until(lambda: "the pool is paused by spec.paused" in world.waits("next"))
        await world.always(lambda: len(world.names()) == 1, seconds=60)
        assert not world.lease("job").status.ended
        await world.release("job")
        await world.until(lambda: not world.names() and not world.instances(), seconds=5)
        await world.always(lambda: not world.names(), seconds=600)
        await world.edit_set(paused=False)
        await world.until(lambda: world.got("next") and world.available(2))
        assert world.reason("Available") == "MinimumReplicasReady"

    World().run(story)


def test_a_lease_goes_to_another_pool_while_one_is_paused() -> None:
    async def story(world: World) -> None:
        await world.make_class()
        await world.make_set("a", paused=True)
        await world.make_set("b")
        await world.ask("job")
        await world.until(lambda: world.got("job").startswith("b-"), seconds=10)

    World().run(story)


def test_a_paused_pool_without_a_limit_is_paused_as_well() -> None:
    async def story(world: World) -> None:
        await world.make_class()
        await world.make_set(max_replicas=0, min_available_replicas=3)
        await world.until(lambda: world.available(3))
        await world.edit_set(paused=True)
        await world.until(lambda: not world.names(), seconds=5)

    World().run(story)
