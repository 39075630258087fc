"""What a pool says about itself at each moment of its life, and how many members it starts."""

from __future__ import annotations

import random
from datetime import timedelta

import pytest

from bullpen.api.exporter_template import Driver, Template, TemplateMetadata, TemplateSpec
from bullpen.core import conditions
from bullpen.core.exporters import presence
from bullpen.core.pools.members import REVISION
from bullpen.provisioners.base import InstancePhase
from bullpen.provisioners.fake import Faults
from support.pool_world import LABELS, World

HOUR = timedelta(hours=1)
SLOW = Faults(boot_seconds=(20.0, 20.0))
BROKEN = Faults(start_failed=1.0)
NEW = Template(
    metadata=TemplateMetadata(labels=LABELS),
    spec=TemplateSpec(drivers=(Driver(name="extra", type="example.Driver"),)),
)


def said(world: World) -> dict[str, tuple[str, str, str]]:
    found = world.status().conditions
    return {c.type: (str(c.status), c.reason, c.message) for c in found}


def counts(world: World) -> tuple[int, int, int, int, int]:
    """Members, and how many of them are ready, idle, leased and not ready."""
    s = world.status()
    return (
        s.replicas,
        s.ready_replicas,
        s.available_replicas,
        s.leased_replicas,
        s.unavailable_replicas,
    )


async def settled(world: World, seconds: float = 60) -> None:
    await world.until(lambda: world.reason("Progressing") == "Settled", seconds=seconds)


def test_the_conditions_of_a_pool_from_its_first_member_to_its_ceiling() -> None:
    async def story(world: World) -> None:
        await world.make_class()
        await world.make_set(min_available_replicas=2, max_replicas=3)
        await world.until(lambda: len(world.instances()) == 2)
        await world.sleep(1)
        assert counts(world) == (2, 0, 0, 0, 2)
        assert said(world) == {
            "Available": ("False", "WarmBufferNotReady", "0 of 2 warm, 2 starting"),
            "Progressing": ("True", "Starting", "2 starting"),
            "Synced": ("True", "UpToDate", ""),
            "Degraded": ("False", "Healthy", "0 of 2 warm, 2 starting"),
            "ScalingLimited": ("False", "WithinLimits", ""),
            "SetHealthy": ("False", "WarmBufferNotReady", "0 of 2 warm, 2 starting"),
        }
        await settled(world)
        assert counts(world) == (2, 2, 2, 0, 0)
        assert said(world) == {
            "Available": ("True", "MinimumReplicasReady", "2 of 2 warm"),
            "Progressing": ("False", "Settled", "2 of 2 warm"),
            "Synced": ("True", "UpToDate", ""),
            "Degraded": ("False", "Healthy", "2 of 2 warm"),
            "ScalingLimited": ("False", "WithinLimits", ""),
            "SetHealthy": ("True", "Healthy", ""),
        }
        await world.ask("a")
        await world.sleep(5)
        assert counts(world) == (3, 2, 1, 1, 1)
        text = "1 of 2 warm, 1 leased, 1 starting"
        assert said(world)["Available"] == ("True", "MinimumReplicasReady", text)
        text = "the ceiling is 3, 4 members are needed: 0 leases are waiting, 2 kept warm"
        await settled(world)
        await world.ask("b")
        await world.sleep(5)
        assert said(world)["ScalingLimited"] == ("True", "CeilingReached", text)
        assert said(world)["Available"] == (
            "True",
            "MinimumReplicasReady",
            "1 of 2 warm, 2 leased",
        )
        for name in "cd":
            await world.ask(name)
        await world.sleep(5)
        assert counts(world) == (3, 3, 0, 3, 0)
        text = "the ceiling is 3, 6 members are needed: 1 lease is waiting, 2 kept warm"
        assert said(world)["ScalingLimited"] == ("True", "CeilingReached", text)
        # At its ceiling, with all members leased, no buffer is expected of it.
        assert said(world)["Available"][:2] == ("True", "MinimumReplicasReady")
        assert world.waits("d")
        await world.release("a")
        await world.until(lambda: world.got("d"))

    World(faults=SLOW).run(story)


def test_a_pool_with_a_floor_counts_ready_members_and_one_for_leases_none() -> None:
    async def story(world: World) -> None:
        await world.make_class()
        await world.make_set(min_replicas=2, scale_down_cooldown=HOUR)
        await world.sleep(2)
        text = "0 of 2 ready, 2 starting"
        assert said(world)["Available"] == ("False", "MinimumReplicasNotReady", text)
        await settled(world)
        await world.ask("a")
        await world.sleep(5)
        text = "2 of 2 ready, 1 leased"
        assert said(world)["Available"] == ("True", "MinimumReplicasReady", text)
        labels = {"board": "none"}
        await world.make_set("cold", labels=labels, max_replicas=1)
        await world.sleep(2)
        assert (world.condition("Available", "cold").message) == "0 ready"
        await world.ask("b", labels=labels)
        await world.sleep(2)
        assert (world.condition("Available", "cold").message) == "0 ready, 1 starting"
        assert "cold" in world.waits("b")

    World(faults=SLOW).run(story)


def test_a_paused_pool_says_so_and_starts_nothing() -> None:
    async def story(world: World) -> None:
        await world.make_class()
        await world.make_set(min_available_replicas=1)
        await world.until(lambda: world.available(1))
        await world.ask("a")
        await world.until(lambda: world.got("a"))
        await world.edit_set(paused=True)
        await world.ask("b")
        await world.sleep(30)
        assert world.status().replicas == 1
        assert said(world)["Available"][:2] == ("False", "Paused")
        assert said(world)["Available"][2].endswith("; 0 of 1 warm, 1 leased")
        assert said(world)["ScalingLimited"][:2] == ("True", "Paused")
        assert said(world)["SetHealthy"][:2] == ("True", "Paused")
        await world.edit_set(paused=False)
        await world.until(lambda: world.got("b"))

    World().run(story)


def test_a_rollout_waits_for_leases_and_says_how_many_are_left() -> None:
    async def story(world: World) -> None:
        await world.make_class()
        await world.make_set(min_replicas=3, max_replicas=4, scale_down_cooldown=HOUR)
        await settled(world)
        await world.ask("a")
        await world.until(lambda: world.got("a"))
        await world.sleep(15)
        await world.edit_set(template=NEW)
        await world.until(lambda: said(world)["Synced"][1] == "RollingOut")
        await world.until(lambda: said(world)["Synced"][1] == "WaitingForLeases", seconds=120)
        await settled(world, seconds=120)
        members = len(world.members())
        text = f"{members - 1} of {members} updated, 1 outdated and leased"
        assert said(world)["Synced"] == ("False", "WaitingForLeases", text)
        assert world.status().updated_replicas == members - 1
        await world.release("a")
        await world.until(lambda: said(world)["Synced"][1] == "UpToDate", seconds=120)
        assert world.status().updated_replicas == len(world.members())

    World().run(story)


def failed_so_often(world: World) -> int:
    found = world.status().start_failures
    return found.count if found is not None else 0


def test_failing_starts_are_paused_for_longer_each_time_and_counted_until_one_succeeds() -> None:
    async def story(world: World) -> None:
        await world.make_class()
        await world.make_set(min_available_replicas=1)
        pauses: list[float] = []
        for count in range(1, 9):
            await world.until(
                lambda: failed_so_often(world) == count,  # noqa: B023
                seconds=200,
            )
            await world.sleep(0.5)
            failures = world.status().start_failures
            assert failures is not None
            pauses.append((failures.retry_time - failures.last_time).total_seconds())
            reason = "StartStopped" if count >= 5 else "StartFailing"
            status, found, text = said(world)["Degraded"]
            assert (status, found) == ("True", reason)
            assert text.startswith(f"{count} starts failed in a row (")
            assert len(world.members()) <= 1
        longest = [min(60.0, 2.0**doubled) for doubled in range(len(pauses))]
        for pause, most in zip(pauses, longest, strict=True):
            # The time of the failure is recorded in whole seconds.
            assert 0.8 * most <= pause <= most + 1, pauses
        world.provisioner.faults = Faults(boot_seconds=(1.0, 1.0))
        await world.until(lambda: world.available(1), seconds=120)
        assert world.status().start_failures is not None, "it may fail again soon"
        assert said(world)["Degraded"][0] == "True"
        await world.until(lambda: world.status().start_failures is None, seconds=30)
        assert said(world)["Degraded"] == ("False", "Healthy", "1 of 1 warm")

    World(faults=BROKEN).run(story)


def test_only_a_pool_that_got_worse_is_told_with_a_warning() -> None:
    async def story(world: World) -> None:
        await world.make_class()
        await world.make_set(min_available_replicas=1)
        await world.until(lambda: world.status().start_failures, seconds=60)
        world.provisioner.faults = Faults(boot_seconds=(1.0, 1.0))
        await world.until(lambda: world.reason("Degraded") == "Healthy", seconds=200)
        await world.sleep(1)
        kinds = {e.reason: e.type for e in await world.events() if "ExporterSet" in e.reason}
        assert kinds == {
            "ExporterSetDegraded": "Warning",
            "ExporterSetRecovered": "Normal",
            "ExporterSetAvailable": "Normal",
        }

    World(faults=BROKEN).run(story)


def test_a_new_pool_starts_sixteen_members_then_twice_as_many_as_are_up() -> None:
    async def story(world: World) -> None:
        most = 0

        def starting() -> int:
            nonlocal most
            found = world.status()
            most = max(most, found.replicas - found.ready_replicas)
            return found.replicas

        await world.make_class()
        await world.make_set(min_replicas=60, max_replicas=60)
        await world.until(lambda: world.instances())
        await world.sleep(5)
        assert starting() == 16
        assert len(world.instances()) == 16
        await world.until(lambda: starting() == 60, seconds=300)
        await world.until(lambda: world.status().ready_replicas == 60, seconds=300)
        assert most <= 44
        # A pool that has shown that its members start is not held back any more.
        await world.edit_set(min_replicas=120, max_replicas=120)
        await world.sleep(5)
        assert world.status().replicas == 120

    World(faults=SLOW).run(story)


def test_surplus_members_leave_after_the_cooldown_and_not_before() -> None:
    async def story(world: World) -> None:
        await world.make_class()
        await world.make_set(
            min_available_replicas=4, max_replicas=6, scale_down_cooldown=timedelta(minutes=5)
        )
        await settled(world)
        assert world.status().replicas == 4
        begin = world.clock.now()
        await world.edit_set(min_available_replicas=1)
        await world.until(lambda: world.status().surplus is not None, seconds=120)
        found = world.status().surplus
        assert found is not None
        assert timedelta(0) <= world.clock.now() - found.since < timedelta(seconds=60)
        assert found.count == 3
        # It is counted from when it began, not from the last look.
        await world.sleep(120)
        assert world.status().surplus == found
        await world.until(lambda: world.status().replicas == 1, seconds=900)
        took = world.clock.now() - begin
        assert timedelta(minutes=5) <= took < timedelta(minutes=7)
        assert world.status().surplus is None
        assert world.available(1)

    World().run(story)


@pytest.mark.parametrize("seed", range(6))
def test_the_counts_of_a_pool_are_those_of_its_members(seed: int) -> None:
    """Whatever happened to it: leases, releases, new sizes, new templates and dead machines."""

    async def story(world: World) -> None:
        source = random.Random(seed)
        await world.make_class()
        await world.make_set(
            min_available_replicas=1, max_replicas=5, scale_down_cooldown=timedelta(seconds=30)
        )
        asked: list[str] = []
        for number in range(14):
            what = source.choice(("ask", "ask", "release", "size", "template", "die", "remove"))
            if what == "ask":
                asked.append(f"l{number}")
                await world.ask(asked[-1])
            elif what == "release" and asked:
                await world.release(asked.pop(0))
            elif what == "size":
                least = source.randint(0, 3)
                await world.edit_set(min_available_replicas=least, max_replicas=least + 3)
            elif what == "template":
                drivers = (Driver(name=f"d{number}", type="example.Driver"),)
                await world.edit_set(
                    template=Template(
                        metadata=TemplateMetadata(labels=LABELS), spec=TemplateSpec(drivers=drivers)
                    )
                )
            elif what == "die" and world.instances():
                world.provisioner.crash(("default", source.choice(world.instances())))
            elif what == "remove" and world.members():
                await world.objects.delete(source.choice(world.members()))
            await world.sleep(source.choice((0.5, 3.0, 20.0)))
            assert len(world.members()) <= 6, world.picture()
        await settled(world, seconds=600)
        compare(world)

    World(seed=seed).run(story)


def compare(world: World) -> None:
    status, members = world.status(), world.members()
    leased = [m for m in members if m.status.lease_ref is not None]
    ready = [m for m in members if presence.online(m) and presence.idle(m)]
    assert status.replicas == len(members) == len(world.instances()), world.picture()
    assert status.leased_replicas == status.exporters_active == len(leased), world.picture()
    assert status.available_replicas == status.exporters_idle, world.picture()
    assert status.available_replicas == len([m for m in ready if m not in leased])
    assert status.ready_replicas == status.available_replicas + status.leased_replicas
    assert status.unavailable_replicas == status.replicas - status.ready_replicas
    running = [
        m for m in world.provisioner._machines.values() if m.instance.phase is InstancePhase.RUNNING
    ]
    assert status.pods_running == len(running)
    assert (status.pods_pending, status.pods_failed, status.pods_unknown) == (0, 0, 0)
    newest = [m for m in members if m.metadata.labels[REVISION] == status.revision]
    assert status.updated_replicas == len(newest)
    waiting = [x for x in world.views.leases.all() if x.status.exporter_ref is None]
    (owner,) = world.views.sets.all()
    assert not waiting or status.replicas == owner.spec.max_replicas, world.picture()
    assert conditions.holds(status.conditions, "Available"), world.picture()
