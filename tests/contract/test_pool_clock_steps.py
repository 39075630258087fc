"""Pools while the wall clock is set by hours: no member is lost or kept because of it."""

from __future__ import annotations

from datetime import timedelta

import pytest

from bullpen.core.pools import start_throttle
from bullpen.core.pools.members import PATIENCE
from bullpen.provisioners.fake import Faults
from support.pool_world import BOOT, NAMESPACE, World

HOUR = timedelta(hours=1)
BOOT_SECONDS = 60.0
SLOW = Faults(boot_seconds=(BOOT_SECONDS, BOOT_SECONDS))


@pytest.mark.parametrize("step", [HOUR, -HOUR], ids=["ahead", "back"])
def test_a_member_that_boots_is_not_given_up_because_the_clock_was_set(step: timedelta) -> None:
    async def story(world: World) -> None:
        await world.make_class()
        await world.make_set(min_available_replicas=2)
        await world.until(lambda: len(world.instances()) == 2)
        await world.sleep(5)
        world.wall.jump(step)
        await world.until(lambda: world.available(2), seconds=BOOT_SECONDS + 10)
        assert world.status().created == 2
        boot = world.status().typical_boot
        assert boot is not None
        assert abs(boot.total_seconds() - BOOT_SECONDS) < 5

    World(faults=SLOW).run(story)


def test_a_boot_that_hangs_is_given_up_in_time_although_the_clock_was_set_back() -> None:
    async def story(world: World) -> None:
        await world.make_class()
        await world.make_set(min_available_replicas=1)
        await world.until(lambda: len(world.instances()) == 1)
        world.wall.jump(-HOUR)
        await world.until(lambda: world.status().created >= 2, seconds=200)

    World(faults=Faults(boot_seconds=(3600.0, 3600.0))).run(story)


@pytest.mark.parametrize("step", [HOUR, -HOUR], ids=["ahead", "back"])
def test_a_cooldown_lasts_as_long_as_it_says_although_the_clock_was_set(step: timedelta) -> None:
    cooldown = timedelta(seconds=120)

    async def story(world: World) -> None:
        await world.make_class()
        await world.make_set(min_replicas=3, scale_down_cooldown=cooldown)
        await world.until(lambda: world.available(3))
        await world.sleep(200)
        await world.edit_set(min_replicas=1)
        await world.sleep(10)
        world.wall.jump(step)
        await world.always(lambda: world.available(3), seconds=100)
        await world.until(lambda: world.available(1), seconds=cooldown.total_seconds())

    World().run(story)


@pytest.mark.parametrize("step", [HOUR, -HOUR], ids=["ahead", "back"])
def test_a_pool_grows_after_failed_starts_although_the_clock_was_set(step: timedelta) -> None:
    async def story(world: World) -> None:
        await world.make_class()
        await world.make_set(min_available_replicas=4, max_replicas=8)
        await world.until(lambda: failures(world) >= 3, seconds=120)
        world.provisioner.faults = BOOT
        world.wall.jump(step)
        pauses = 2 * start_throttle.BACKOFF.cap.total_seconds()
        await world.until(lambda: world.available(4), seconds=pauses)
        await world.until(lambda: world.status().start_failures is None)

    def failures(world: World) -> int:
        found = world.status().start_failures
        return found.count if found is not None else 0

    World(faults=Faults(start_failed=1.0)).run(story)


@pytest.mark.parametrize("step", [HOUR, -HOUR], ids=["ahead", "back"])
def test_a_member_that_lost_its_connection_is_replaced_in_time_although_the_clock_was_set(
    step: timedelta,
) -> None:
    patience = PATIENCE.offline_max.total_seconds()

    async def story(world: World) -> None:
        await world.make_class()
        await world.make_set(min_replicas=1, max_replicas=2)
        await world.until(lambda: world.available(1))
        await world.sleep(60)
        (lost,) = world.names()
        world.players.mute = lambda name: name == lost
        world.players._hang_up((NAMESPACE, lost))
        await world.until(lambda: not world.available(1), seconds=30)
        world.wall.jump(step)
        await world.always(lambda: lost in world.names(), seconds=patience / 2)
        await world.until(
            lambda: world.available(1) and lost not in world.names(), seconds=patience
        )

    World().run(story)
