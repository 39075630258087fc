"""Machines of a provider with exporters beside us: nothing is unowned, and nothing is doubled."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bullpen.core.targets.backends import (
    EXPIRY,
    GRANT_HOLDS,
    GRANT_RENEWED,
    LOST_AFTER,
    BackendLimits,
    Machine,
)
from bullpen.core.targets.instances import ExitReason, InstancePhase
from bullpen.errors import NoCapacity, Refused, TooManyRequests, Unavailable, Unreachable
from bullpen.provisioners.attended import AttendedProvisioner
from bullpen.provisioners.provider import Backend, Order
from bullpen.testing.benches import AttendedBench, attended_bench
from bullpen.testing.fake_provider import AccountFaults
from bullpen.testing.provisioner_contract import ProvisionerContract
from support.attended_world import (
    ACCOUNTS,
    LAB,
    SETTLE,
    AttendedWorld,
    fault_run,
    killed_everywhere,
)

EAST, WEST = ACCOUNTS
ROUNDS = 1000


@pytest.mark.slow
class TestAttended(ProvisionerContract):
    @contextlib.asynccontextmanager
    async def bench(self, directory: Path) -> AsyncIterator[AttendedBench]:
        async with attended_bench(directory) as bench:
            yield bench


Story = Callable[[AttendedWorld], Coroutine[Any, Any, None]]


def story(*, idempotent: bool = True, keyed: bool = False) -> Callable[[Story], Callable[[], None]]:
    """Makes a test of a story that takes place in virtual time."""

    def made(told: Story) -> Callable[[], None]:
        def test() -> None:
            AttendedWorld(idempotent=idempotent, keyed=keyed).run(told)

        test.__doc__ = told.__doc__
        return test

    return made


@story()
async def test_a_machine_is_made_and_its_exporter_is_placed_when_it_runs(
    world: AttendedWorld,
) -> None:
    world.provider.account(EAST).faults.boot_seconds = 30
    world.want("a", "uid-1")
    await world.work()
    (found,) = await world.provisioner.observe_all()
    assert (found.phase, found.incomplete) == (InstancePhase.BOOTING, False)
    assert world.placement.exporters == {}

    await world.work(passes=6)
    (found,) = await world.provisioner.observe_all()
    assert found.phase is InstancePhase.RUNNING
    assert world.provider.held() == [(("lab", "a"), "uid-1")]


@story()
async def test_the_backend_is_on_record_before_anything_is_created(world: AttendedWorld) -> None:
    world.want("a", "uid-1")
    await world.work()
    assert world.records.kept == {EAST}

    del world.backends[EAST]
    world.want("b", "uid-2")
    with pytest.raises(Refused, match="is deleted"):
        await world.provisioner.ensure(world.spec(("lab", "b")))
    assert world.provider.held() == [(("lab", "a"), "uid-1")]


@story()
async def test_the_record_is_erased_after_complete_empty_listings_only(
    world: AttendedWorld,
) -> None:
    world.want("a", "uid-1")
    await world.work()
    world.wanted.clear()
    await world.work()
    assert world.provider.held() == []
    assert world.records.kept == {EAST}, "one empty listing proves nothing"
    await world.work(passes=int(SETTLE / 5) + 2)
    assert world.records.kept == set()


async def half_an_hour(world: AttendedWorld) -> None:
    await asyncio.sleep(1800)
    await world.work()


@story()
async def test_machines_are_renewed_as_long_as_somebody_needs_them(world: AttendedWorld) -> None:
    world.want("a", "uid-1")
    await world.work()
    (before,) = world.provider.account(EAST).machines.values()
    for _ in range(12):
        await half_an_hour(world)
    assert world.clock.now() > before.created + 2 * EXPIRY
    assert [*world.provider.account(EAST).machines.values()] == [before], "the same one, all along"


@story()
async def test_a_service_that_starts_again_renews_what_it_finds(world: AttendedWorld) -> None:
    world.want("a", "uid-1")
    await world.work()
    (before,) = world.provider.account(EAST).machines.values()
    for _ in range(8):
        world.restarted()
        await half_an_hour(world)
    assert [*world.provider.account(EAST).machines.values()] == [before]


@story()
async def test_an_exporter_is_granted_newer_files_in_time_and_after_a_restart(
    world: AttendedWorld,
) -> None:
    """Also one whose class has changed meanwhile, which is not created again."""
    world.want("a", "uid-1")
    await world.work()
    account, granted = world.provider.account(EAST), world.placement.granted
    first = granted["lab", "a"]
    await world.work()
    assert (account.granted, granted["lab", "a"]) == (1, first)
    await half_an_hour(world)
    assert account.granted == 2
    assert granted["lab", "a"] != first, "half an hour later"

    world.restarted()
    await world.provisioner.refresh(EAST)
    assert account.granted == 3
    account.faults.silent = True
    await half_an_hour(world)
    account.faults.silent = False
    await world.provisioner.refresh(EAST)
    assert account.granted == 4
    assert GRANT_HOLDS > 2 * GRANT_RENEWED, "so it has not lacked them"


@story()
async def test_nothing_is_lost_or_gone_before_the_backends_are_known(world: AttendedWorld) -> None:
    """A service that starts finds its exporters before it has read a ProviderConfig."""
    world.want("a", "uid-1")
    await world.work(passes=2)
    world.provisioner = AttendedProvisioner(
        world.provider,
        world.placement,
        world.records,
        clock=world.clock,
        chance=world.chance,
    )
    (found,) = await world.provisioner.observe_all()
    assert found.phase is InstancePhase.RUNNING
    with pytest.raises(Unreachable, match="no ProviderConfig has been read yet"):
        await world.provisioner.remove(("lab", "b"))
    world.provisioner.use(())
    await world.provisioner.remove(("lab", "b"))
    (found,) = await world.provisioner.observe_all()
    assert found.reason is ExitReason.LOST, "there is no backend that could have its machine"


@story()
async def test_machines_end_by_themselves_when_the_service_is_gone_for_good(
    world: AttendedWorld,
) -> None:
    for name in ("a", "b"):
        world.want(name, f"uid-{name}")
    await world.work()
    assert len(world.provider.held()) == 2
    await asyncio.sleep(EXPIRY.total_seconds())
    assert world.provider.held() == []
    cost = world.provider.charged()
    await asyncio.sleep(EXPIRY.total_seconds())
    assert world.provider.charged() == cost, "and cost nothing any more"


@story()
async def test_a_provider_that_is_silent_for_less_than_an_hour_ends_nothing(
    world: AttendedWorld,
) -> None:
    world.want("a", "uid-1")
    await world.work()
    (before,) = world.provider.account(EAST).machines.values()
    await half_an_hour(world)
    world.provider.account(EAST).faults.silent = True
    await half_an_hour(world)
    world.provider.account(EAST).faults.silent = False
    for _ in range(4):
        await half_an_hour(world)
    assert [*world.provider.account(EAST).machines.values()] == [before]


@story()
async def test_a_silent_backend_keeps_its_instances_and_costs_no_other(
    world: AttendedWorld,
) -> None:
    world.want("a", "uid-1", "east")
    world.want("b", "uid-2", "west")
    await world.work(passes=2)
    world.provider.account(EAST).faults.silent = True
    await world.work(passes=200)

    phases = {each.key[1]: each.phase for each in await world.provisioner.observe_all()}
    assert phases == {"a": InstancePhase.RUNNING, "b": InstancePhase.RUNNING}
    world.want("c", "uid-3", "east")
    with pytest.raises(Unreachable, match="east does not answer"):
        await world.provisioner.ensure(world.spec(("lab", "c")))
    world.want("d", "uid-4", "west")
    await world.provisioner.ensure(world.spec(("lab", "d")))


@story()
async def test_what_boots_at_a_silent_backend_is_lost_after_a_limit_and_not_made_twice(
    world: AttendedWorld,
) -> None:
    world.provider.account(EAST).faults.boot_seconds = 3600
    world.want("a", "uid-1")
    await world.work()
    world.provider.account(EAST).faults.silent = True
    await world.work()
    (found,) = await world.provisioner.observe_all()
    assert found.up
    await asyncio.sleep(LOST_AFTER.total_seconds())
    (found,) = await world.provisioner.observe_all()
    assert found.reason is ExitReason.LOST

    world.want("a", "uid-2")
    await world.work(passes=3)
    assert world.provider.held() == [(("lab", "a"), "uid-1")]
    world.provider.account(EAST).faults = AccountFaults()
    await world.work(passes=4)
    assert world.provider.held() == [(("lab", "a"), "uid-2")]


@story()
async def test_two_backends_that_are_one_account_end_none_of_its_machines(
    world: AttendedWorld,
) -> None:
    """Each lists the machines of both, and not at the same moment."""
    for key in ACCOUNTS:
        world.backends[key] = replace(world.backends[key], parameters={"account": "shared"})
    account = world.provider.account(("lab", "shared"))
    account.faults = AccountFaults(boot_seconds=11.5, delete_seconds=7)
    world.restarted()
    world.want("a", "uid-1", "east")
    world.want("b", "uid-2", "west")
    for _ in range(8):
        await world.work()
        for key in ACCOUNTS:
            await asyncio.sleep(1)
            await world.provisioner.refresh(key)
    await half_an_hour(world)
    await half_an_hour(world)
    assert [machine.owner_uid for machine in account.machines.values()] == ["uid-1", "uid-2"]
    assert world.provider.made == 2
    del world.wanted["lab", "a"]
    await world.work(passes=4)
    assert [machine.owner_uid for machine in account.machines.values()] == ["uid-2"]


@story()
async def test_a_backend_at_another_place_is_listed_before_it_is_used(
    world: AttendedWorld,
) -> None:
    await world.work()
    world.backends[EAST] = replace(world.backends[EAST], place="another")
    world.provisioner.use(world.backends.values())
    world.want("a", "uid-1")
    with pytest.raises(Unreachable, match="east does not answer"):
        await world.provisioner.ensure(world.spec(("lab", "a")))
    await world.work()
    assert world.provider.held() == [(("lab", "a"), "uid-1")]


@story()
async def test_the_machine_goes_although_its_exporter_cannot_be_stopped(
    world: AttendedWorld,
) -> None:
    world.want("a", "uid-1")
    await world.work(passes=2)
    world.wanted.clear()
    world.placement.silent = True
    await world.work(passes=2)
    assert world.provider.held() == []
    assert await world.provisioner.observe_all() != (), "it is not gone: its exporter is there"
    world.placement.silent = False
    await world.work(passes=2)
    assert await world.provisioner.observe_all() == ()


@story()
async def test_a_listing_while_an_exporter_stops_places_no_other(world: AttendedWorld) -> None:
    world.want("a", "uid-1")
    await world.work()
    stop = world.placement.stop

    async def stop_during_a_listing(key: tuple[str, str]) -> None:
        await stop(key)
        await world.provisioner.refresh(EAST)

    world.placement.stop = stop_during_a_listing  # type: ignore[method-assign]
    del world.wanted["lab", "a"]
    await world.work()
    assert world.placement.exporters == {}
    assert await world.provisioner.observe_all() == ()


@story()
async def test_machines_of_another_lab_are_not_touched(world: AttendedWorld) -> None:
    other = replace(world.backends[EAST], lab="another")
    world.want("a", "uid-1")
    await world.work()
    world.backends[EAST] = other
    world.wanted.clear()
    world.restarted()
    await world.work(passes=3)
    assert world.provider.held() == [(("lab", "a"), "uid-1")]
    assert other.lab != LAB


@story()
async def test_limits_of_a_backend_hold_for_creations_that_are_under_way(
    world: AttendedWorld,
) -> None:
    limits = {EAST: BackendLimits(instances=2), WEST: BackendLimits(hourly_cost=7.5)}
    world.backends = {
        key: replace(backend, limits=limits[key]) for key, backend in world.backends.items()
    }
    world.restarted()
    await world.work()
    for account, said in (("east", "at most 2 instances"), ("west", "maxHourlyCost")):
        for number in range(3):
            world.want(f"{account}-{number}", f"uid-{account}-{number}", account)
        specs = [world.spec(key) for key in world.wanted if key[1].startswith(account)]
        answers = await asyncio.gather(
            *map(world.provisioner.ensure, specs), return_exceptions=True
        )
        (refused,) = [each for each in answers if isinstance(each, NoCapacity)]
        assert said in refused.message


@story()
async def test_an_interrupted_machine_is_lost_and_replaced(world: AttendedWorld) -> None:
    world.want("a", "uid-1")
    await world.work(passes=2)
    world.provider.interrupt(("lab", "a"))
    await world.provisioner.refresh(EAST)
    (found,) = await world.provisioner.observe_all()
    assert found.reason is ExitReason.LOST
    await world.work(passes=4)
    (found,) = await world.provisioner.observe_all()
    assert found.phase is InstancePhase.RUNNING


@story()
async def test_when_an_exporter_ends_its_machine_costs_nothing_more(world: AttendedWorld) -> None:
    world.want("a", "uid-1")
    await world.work(passes=2)
    world.placement.end(("lab", "a"), ExitReason.COMPLETED)
    await world.provisioner.refresh(EAST)
    (found,) = await world.provisioner.observe_all()
    assert found.reason is ExitReason.COMPLETED
    assert world.provider.held() == []
    cost = world.provider.charged()
    await asyncio.sleep(3600)
    assert world.provider.charged() == cost > 0


@story(idempotent=False)
async def test_a_machine_that_cannot_be_deleted_delays_no_other(world: AttendedWorld) -> None:
    world.provider.account(EAST).faults.boot_seconds = 30
    world.want("a", "uid-1")
    await world.work()
    first, delete = world.provider.held(), world.provider.delete
    world.want("b", "uid-2")
    await world.provisioner.ensure(world.spec(("lab", "b")))
    await world.provider.create(world.backends[EAST], order_of(world, "a"))

    async def refused(backend: Backend, machine: Machine) -> None:
        if machine.key == ("lab", "a"):
            raise Refused("it is protected")
        await delete(backend, machine)

    world.provider.delete = refused  # type: ignore[method-assign]
    await asyncio.sleep(60)
    with pytest.raises(Refused, match="it is protected"):
        await world.provisioner.refresh(EAST)
    assert ("lab", "b") in world.placement.exporters
    assert len(world.provider.held()) == 3
    world.provider.delete = delete  # type: ignore[method-assign]
    await world.work()
    assert world.provider.held() == [*first, (("lab", "b"), "uid-2")]


def order_of(world: AttendedWorld, name: str) -> Order:
    spec = world.spec(("lab", name))
    return Order(
        key=spec.key,
        owner_uid=spec.owner_uid,
        token="t",
        profile=spec.profile,
        expires=world.clock.now() + EXPIRY,
    )


@story(idempotent=False)
async def test_a_creation_without_an_answer_is_not_repeated_before_listings_settle(
    world: AttendedWorld,
) -> None:
    faults = world.provider.account(EAST).faults
    await world.provisioner.refresh(EAST)
    faults.answer_lost, faults.listed_after = 1.0, SETTLE / 2
    world.want("a", "uid-1")
    with contextlib.suppress(Unavailable):
        await world.provisioner.ensure(world.spec(("lab", "a")))
    faults.answer_lost = 0.0
    await world.work(passes=int(SETTLE / 5) + 3)
    assert world.provider.held() == [(("lab", "a"), "uid-1")]
    assert world.provider.made == 1


@story()
async def test_only_listings_call_a_silent_backend(world: AttendedWorld) -> None:
    account = world.provider.account(EAST)
    account.faults.silent = True
    world.want("a", "uid-1")
    with contextlib.suppress(Unavailable):
        await world.provisioner.refresh(EAST)
    calls = account.calls
    for _ in range(20):
        with pytest.raises(Unreachable):
            await world.provisioner.ensure(world.spec(("lab", "a")))
        await world.provisioner.observe_all()
    assert account.calls == calls


@story()
async def test_a_backend_that_wants_fewer_calls_gets_fewer(world: AttendedWorld) -> None:
    """One limit for all: creations of others count, too, and waits grow."""
    account = world.provider.account(EAST)
    for number in range(4):
        world.want(f"m{number}", f"uid-{number}")
    await world.provisioner.refresh(EAST)
    account.faults.throttled = 1.0
    before = account.calls
    for step in range(600):
        with pytest.raises(TooManyRequests):
            await world.provisioner.ensure(world.spec(("lab", f"m{step % 4}")))
        await asyncio.sleep(1)
    assert 20 < account.calls - before < 40, "about every half minute in the end"
    account.faults.throttled = 0.0
    await asyncio.sleep(30)
    await world.work(passes=2)
    assert len(world.provider.held()) == 4


@pytest.mark.parametrize("idempotent", [True, False])
def test_killed_at_every_await_of_create_and_delete_nothing_is_left_or_doubled(
    idempotent: bool,
) -> None:
    assert killed_everywhere(lambda: AttendedWorld(idempotent=idempotent)) > 30


@story()
async def test_an_instance_says_why_its_exporter_is_granted_nothing(world: AttendedWorld) -> None:
    world.provider.account(EAST).faults.boot_seconds = 12
    world.want("a", "uid-1")
    await world.work()
    world.provider.refuses_grants = "no sessions for this user"
    await asyncio.sleep(12)
    with pytest.raises(Refused, match="no sessions"):
        await world.provisioner.refresh(EAST)
    (found,) = await world.provisioner.observe_all()
    assert (found.phase, found.detail) == (InstancePhase.BOOTING, "no sessions for this user")
    world.provider.refuses_grants = ""
    await world.provisioner.refresh(EAST)
    (found,) = await world.provisioner.observe_all()
    assert found.phase is InstancePhase.RUNNING


@story()
async def test_an_exporter_is_granted_files_for_a_new_address_at_once(world: AttendedWorld) -> None:
    world.want("a", "uid-1")
    await world.work(passes=2)
    granted, (machine,) = world.placement.granted, world.provider.account(EAST).machines.values()
    first = granted["lab", "a"]
    await world.work()
    assert granted["lab", "a"] == first
    machine.address = "192.0.2.9"
    await world.work()
    assert granted["lab", "a"] != first


def lasting(told: Story) -> Callable[[], None]:
    """Makes a test of a story about the machines of lasting targets."""

    @story(keyed=True)
    async def test(world: AttendedWorld) -> None:
        world.lasting = True
        await told(world)

    test.__doc__ = told.__doc__
    return test


@lasting
async def test_a_stopped_target_keeps_its_machine_which_costs_nothing(world: AttendedWorld) -> None:
    world.provider.account(EAST).faults = AccountFaults(boot_seconds=12, stop_seconds=20)
    world.want("a", "uid-1")
    await world.work(passes=4)
    first = world.provider.running()
    world.stopped.add(("lab", "a"))
    await world.work(passes=5)
    (found,) = await world.provisioner.observe_all()
    assert (found.phase, found.provider_id) == (InstancePhase.STOPPED, first["lab", "a"])
    assert world.placement.exporters == {}
    assert world.provisioner.listing(EAST).machines[0].hourly_cost == 0
    cost = world.provider.charged()
    for _ in range(6):
        await half_an_hour(world)
    assert world.provider.charged() == cost > 0
    assert world.records.kept == {EAST}, "it exists"

    world.restarted()
    world.stopped.clear()
    await world.work(passes=5)
    assert world.provider.running() == first
    assert list(world.placement.exporters) == [("lab", "a")]
    for _ in range(6):
        await half_an_hour(world)
    assert world.provider.running() == first, "it is renewed again"


@lasting
async def test_the_machine_of_a_lasting_target_stops_when_the_service_is_gone_for_good(
    world: AttendedWorld,
) -> None:
    world.want("a", "uid-1")
    await world.work(passes=2)
    await asyncio.sleep(EXPIRY.total_seconds() + 60)
    assert world.provider.running() == {}
    assert world.provider.held() == [(("lab", "a"), "uid-1")], "its disks are kept"
    world.restarted()
    world.placement.exporters.clear()
    await world.work(passes=3)
    assert world.provider.running() == {("lab", "a"): "m-1"}


@lasting
async def test_a_target_of_another_account_waits_until_its_machine_was_looked_for(
    world: AttendedWorld,
) -> None:
    """A service that starts again does not know what the former account has: its disks."""
    world.want("a", "uid-1", "west")
    await world.work(passes=2)
    first = world.provider.running()
    world.restarted()
    world.placement.exporters.clear()
    world.want("a", "uid-1", "east")
    world.provider.account(WEST).faults.silent = True
    await world.work(passes=3)
    with pytest.raises(Unreachable, match="west has not been listed"):
        await world.provisioner.ensure(world.spec(("lab", "a")))
    assert world.provider.running() == first
    world.provider.account(WEST).faults.silent = False
    await world.work(passes=3)
    assert world.provider.running() == first
    assert list(world.placement.exporters) == [("lab", "a")]

    world.provider.account(WEST).machines.clear()
    await world.work(passes=int(SETTLE / 5) + 3)
    assert list(world.provider.account(EAST).machines) == ["m-2"]
    assert world.records.keys[("lab", "a"), "uid-1"].backend == "east"


@lasting
async def test_a_stopped_machine_goes_with_its_exporter(world: AttendedWorld) -> None:
    world.want("a", "uid-1")
    world.want("b", "uid-2")
    await world.work(passes=2)
    world.stopped |= {("lab", "a"), ("lab", "b")}
    await world.work(passes=2)
    del world.wanted["lab", "a"]
    world.want("b", "uid-3")
    world.restarted()
    await world.work(passes=2)
    assert world.provider.held() == [(("lab", "b"), "uid-3")]


@lasting
async def test_a_machine_that_ends_by_itself_is_kept_and_says_how(world: AttendedWorld) -> None:
    world.want("a", "uid-1")
    await world.work(passes=2)
    first = world.provider.running()
    world.provider.shut_down(("lab", "a"))
    await world.provisioner.refresh(EAST)
    (found,) = await world.provisioner.observe_all()
    assert found.reason is ExitReason.COMPLETED
    await world.work(passes=2)
    assert world.provider.running() == first

    world.placement.end(("lab", "a"), ExitReason.CRASHED)
    await world.work(passes=3)
    assert world.provider.running() == first, "a crash of its exporter costs no disk"


@lasting
async def test_the_age_limit_restarts_a_lasting_machine_and_counts_what_it_ran(
    world: AttendedWorld,
) -> None:
    world.backends[EAST] = replace(world.backends[EAST], limits=BackendLimits(hours=3))
    world.restarted()
    world.want("a", "uid-1")
    world.want("b", "uid-2")
    await world.work(passes=2)
    first = world.provider.running()
    world.stopped.add(("lab", "b"))
    for _ in range(5):
        await half_an_hour(world)
    world.stopped.clear()
    await half_an_hour(world)
    await world.work(passes=3)
    machines = {each.key[1]: each for each in world.provider.account(EAST).machines.values()}
    assert machines["a"].started > machines["a"].created
    restarted = machines["a"].started
    await half_an_hour(world)
    assert machines["a"].started == restarted
    assert world.provider.running() == first


@lasting
async def test_a_stopped_machine_starts_only_within_the_limit_of_cost(world: AttendedWorld) -> None:
    world.backends[EAST] = replace(world.backends[EAST], limits=BackendLimits(hourly_cost=3.6))
    world.restarted()
    world.want("a", "uid-1")
    await world.work(passes=2)
    world.stopped.add(("lab", "a"))
    await world.work(passes=2)
    world.want("b", "uid-2")
    await world.work(passes=2)
    with pytest.raises(NoCapacity, match="maxHourlyCost"):
        await world.provisioner.ensure(world.spec(("lab", "a")))


@lasting
async def test_other_parameters_are_said_to_have_no_effect_on_a_kept_machine(
    world: AttendedWorld,
) -> None:
    world.want("a", "uid-1")
    await world.work(passes=2)
    (found,) = await world.provisioner.observe_all()
    assert found.warning == ""
    (machine,) = world.provider.account(EAST).machines.values()
    machine.settings = "others"
    await world.work()
    (found,) = await world.provisioner.observe_all()
    assert "keeps those, with its disks" in found.warning


@story(keyed=True)
async def test_the_keys_of_a_machine_outlive_the_service_that_ordered_it(
    world: AttendedWorld,
) -> None:
    """The stand-in checks that an exporter has the keys that its machine was created with."""
    await world.work()
    world.provider.account(EAST).faults = AccountFaults(answer_lost=1.0, boot_seconds=30)
    world.want("a", "uid-1")
    with pytest.raises(Unreachable):
        await world.provisioner.ensure(world.spec(("lab", "a")))
    assert len(world.provider.held()) == 1
    world.provider.account(EAST).faults = AccountFaults()
    world.restarted()
    await world.work(passes=4)
    assert list(world.placement.exporters) == [("lab", "a")]


@story(keyed=True)
async def test_a_machine_whose_keys_are_lost_is_replaced(world: AttendedWorld) -> None:
    world.provider.account(EAST).faults.boot_seconds = 30
    world.want("a", "uid-1")
    await world.work()
    first = [*world.provider.account(EAST).machines]
    world.records.keys.clear()
    await world.work(passes=12)
    assert list(world.placement.exporters) == [("lab", "a")]
    assert [*world.provider.account(EAST).machines] != first


def test_a_thousand_rounds_of_faults_and_kills_leave_nothing_unowned_or_doubled() -> None:
    def made(seed: int, chance: random.Random) -> AttendedWorld:
        return AttendedWorld(seed, idempotent=chance.random() < 0.5, keyed=chance.random() < 0.5)

    kills, created = fault_run(made, rounds=ROUNDS)
    assert kills > ROUNDS
    assert created > 2 * ROUNDS


def test_faults_and_kills_while_machines_stop_and_start_lose_no_disk() -> None:
    def made(seed: int, chance: random.Random) -> AttendedWorld:
        world = AttendedWorld(seed, keyed=True)
        world.lasting = True
        return world

    kills, created = fault_run(made, rounds=ROUNDS)
    assert kills > ROUNDS
    assert created > ROUNDS
