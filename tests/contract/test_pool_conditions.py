"""What a pool says about itself while it cannot do what it should, and when it can again."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

from bullpen.api.kinds.core import Event
from bullpen.errors import ProgramMissing
from bullpen.provisioners.base import Instance, InstanceSpec
from bullpen.provisioners.fake import Faults
from support.pool_world import World


def test_a_pool_is_available_when_its_buffer_is_warm_and_says_how_many_are() -> None:
    async def story(world: World) -> None:
        await world.make_class()
        await world.make_set(min_available_replicas=2)
        await world.until(lambda: len(world.names()) == 2)
        await world.until(lambda: world.reason("Available") == "WarmBufferNotReady")
        await world.until(lambda: world.condition("Available").message == "0 of 2 warm, 2 starting")
        assert world.condition("Available").status == "False"
        await world.until(lambda: world.available(2))
        assert world.condition("Available").status == "True"
        assert world.condition("Available").message == "2 of 2 warm"

    World(faults=Faults(boot_seconds=(5, 5))).run(story)


def test_a_lease_does_not_make_a_pool_unavailable_but_an_empty_buffer_does() -> None:
    async def story(world: World) -> None:
        await world.make_class()
        await world.make_set(min_available_replicas=2, max_replicas=4)
        await world.until(lambda: world.available(2))
        assert world.condition("Available").status == "True"
        await world.ask("a")
        await world.until(lambda: world.available(1))
        assert world.condition("Available").status == "True"
        assert world.condition("Available").message.startswith("1 of 2 warm, 1 leased")
        await world.until(lambda: world.available(2))
        await world.ask("b")
        await world.ask("c")
        await world.until(lambda: world.available(0))
        assert world.reason("Available") == "WarmBufferNotReady"
        await world.until(lambda: world.available(1))
        await world.until(lambda: world.condition("Available").status == "True")
        await world.ask("d")
        await world.until(lambda: world.got("d"))
        await world.sleep(1)
        assert world.condition("Available").status == "True", "the ceiling leaves no buffer"

    World().run(story)


def test_a_pool_without_its_program_says_which_package_and_goes_on_when_it_is_installed() -> None:
    async def story(world: World) -> None:
        ensure = world.provisioner.ensure
        text = "qemu-system-arm is not installed on this machine; apt-get install qemu-system-arm"

        async def refuse(spec: InstanceSpec) -> Instance:
            raise ProgramMissing(text)

        world.provisioner.ensure = refuse  # type: ignore[method-assign]
        await world.make_class()
        await world.make_set(min_available_replicas=1)
        await world.until(lambda: world.reason("Degraded") == "ProgramMissing")
        assert text in world.condition("Degraded").message
        assert world.condition("SetHealthy").status == "False"
        world.provisioner.ensure = ensure  # type: ignore[method-assign]
        await world.until(lambda: world.available(1), seconds=30)
        assert world.condition("Degraded").status == "False"

    World().run(story)


def test_a_capacity_hold_survives_a_restart_without_a_false_recovery() -> None:
    async def story(world: World) -> None:
        async with world.service():
            await world.make_class()
            cooldown = timedelta(seconds=5)
            await world.make_set(
                min_available_replicas=1, max_replicas=0, scale_down_cooldown=cooldown
            )
            await world.until(lambda: world.available(1))
            for number in range(4):
                await world.ask(f"job-{number}")
            await world.until(lambda: world.reason("Degraded") == "NoCapacity", seconds=20)
            await world.sleep(30)
            before, created = world.condition("Degraded"), world.status().created
        async with world.service():
            await world.sleep(30)
            assert not await world.events("ExporterSetRecovered")
            assert world.condition("Degraded") == before
            assert world.status().created == created, "nothing is started without capacity"
            for number in range(4):
                await world.release(f"job-{number}")
            await world.until(lambda: world.reason("Degraded") == "Healthy", seconds=20)
            assert await world.events("ExporterSetRecovered")
            assert world.status().capacity_hold is None

    World(instances_max=2).run_without_service(story)


def test_a_hold_is_in_the_ledger_once_with_its_numbers() -> None:
    async def story(world: World) -> None:
        await world.make_class()
        await world.make_set(min_available_replicas=3)
        await world.until(lambda: world.reason("Degraded") == "NoCapacity", seconds=20)
        await world.sleep(600)
        holds = [d for d in world.status().decisions if d.action == "Hold"]
        assert [(d.rule, d.count, d.name) for d in holds] == [("NoCapacity", 1, "")]
        (hold,) = holds
        assert "0 leased, 0 waiting" in hold.message
        assert "target 3, ceiling 4" in hold.message
        assert "2 of at most 2 instances are running" in hold.message

    World(instances_max=2).run(story)


def test_a_pool_whose_starts_fail_has_each_pause_in_the_ledger() -> None:
    async def story(world: World) -> None:
        await world.make_class()
        await world.make_set(min_available_replicas=1)
        await world.until(lambda: world.reason("Degraded") == "StartStopped", seconds=120)
        rules = [(d.action, d.rule) for d in world.status().decisions]
        assert ("Hold", "StartBackoff") in rules
        (last,) = [d for d in world.status().decisions if d.rule == "StartStopped"][-1:]
        assert "target 1, ceiling 4; failed to start" in last.message

    World(faults=Faults(start_failed=1.0)).run(story)


def test_a_pool_that_recovers_says_with_how_many() -> None:
    async def story(world: World) -> None:
        await world.make_class(provisioner="mars.jumpstarter.dev")
        await world.make_set(min_available_replicas=1)
        await world.until(lambda: world.reason("Degraded") == "ProvisionerNotFound")
        await world.edit_class(provisioner="fake.jumpstarter.dev")
        await world.until(lambda: world.available(1))
        (recovered,) = await world.events("ExporterSetRecovered")
        assert recovered.message == "0 of 1 warm"
        assert world.condition("Degraded").message == "1 of 1 warm"

    World().run(story)


def test_a_set_is_told_once_that_its_machines_run_without_kvm() -> None:
    async def story(world: World) -> None:
        await world.make_class()
        await world.make_set(min_replicas=2)
        await world.until(lambda: world.available(2))
        for machine in world.provisioner._machines.values():
            machine.instance = replace(machine.instance, warning="KVM does not work")
            world.provisioner._tell(machine.spec.key)
        await world.sleep(30)
        found = [
            event
            for event in (await world.objects.list(Event)).items
            if event.reason == "InstanceWarning"
        ]
        assert [(event.involved_object.kind, event.type) for event in found] == [
            ("ExporterSet", "Warning")
        ]
        assert found[0].message == "qemu-0: KVM does not work"
        assert found[0].count == 1

    World().run(story)
