"""Instances on hosts, in virtual time: none is doubled, and a silent host costs no other."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

import pytest

from bullpen.api.kinds.virtualtargetclass import Scheduling
from bullpen.core.targets.backends import LOST_AFTER
from bullpen.core.targets.hosts import Placed
from bullpen.core.targets.instances import ExitReason, InstancePhase
from bullpen.core.targets.profiles import ProfileDisk
from bullpen.errors import LabError, NoCapacity, Refused, Unreachable
from support.host_world import BENCH, POLL_SECONDS, HostWorld, Killed

LOST_POLLS = int(LOST_AFTER.total_seconds() / POLL_SECONDS) + 2
ROUNDS = 1000

Story = Callable[[HostWorld], Coroutine[Any, Any, None]]


def story(*names: str, slots: int = 2) -> Callable[[Story], Callable[[], None]]:
    """Makes a test of a story with these hosts, in virtual time."""

    def made(told: Story) -> Callable[[], None]:
        def test() -> None:
            HostWorld(*names, slots=slots).run(told)

        test.__doc__ = told.__doc__
        return test

    return made


@story("a", "b")
async def test_instances_are_spread_and_recorded_before_they_are_started(world: HostWorld) -> None:
    await world.poll()
    for name in ("one", "two", "three"):
        await world.provisioner.ensure(world.spec(name))
    assert [(key[1], host) for key, host, _ in world.held()] == [
        ("one", "a"), ("three", "a"), ("two", "b"),
    ]  # fmt: skip
    uid = world.wanted["lab", "two"]
    assert world.records.hosts["lab", "two"] == Placed(uid=uid, config="bench", host="b")
    assert world.records.kept == {BENCH}


@story("a", "b", slots=1)
async def test_hosts_without_a_free_slot_have_no_capacity_until_one_exits(
    world: HostWorld,
) -> None:
    await world.poll()
    for name in ("one", "two"):
        await world.provisioner.ensure(world.spec(name))
    with pytest.raises(NoCapacity, match="all 2 slots of a, b are taken"):
        await world.provisioner.ensure(world.spec("three"))
    world.hosts["a"].links[0].exit(("lab", "one"))
    await world.provisioner.ensure(world.spec("three"))
    quota = world.provisioner.listing(BENCH).quota
    assert quota is not None
    assert (quota.instances, quota.used) == (2, 2)


@story("a", "b")
async def test_a_silent_host_is_named_keeps_what_it_had_and_costs_no_other(
    world: HostWorld,
) -> None:
    await world.poll()
    await world.provisioner.ensure(world.spec("one"))
    world.hosts["a"].down = True
    assert await world.poll() == "host a: no answer"
    assert world.provisioner.listing(BENCH).error == "host a: no answer"
    (found,) = await world.provisioner.observe_all()
    assert found.phase is InstancePhase.RUNNING
    await world.provisioner.ensure(world.spec("two"))
    await world.provisioner.ensure(world.spec("three"))
    assert [host for _, host, _ in world.held()] == ["a", "b", "b"]
    with pytest.raises(Unreachable, match="host a may run it and does not answer"):
        await world.provisioner.remove(("lab", "one"))

    world.hosts["a"].down = False
    assert await world.poll() == ""
    await world.provisioner.remove(("lab", "one"))
    assert [host for _, host, _ in world.held()] == ["b", "b"]


@story("a", "b")
async def test_instances_of_a_silent_host_are_lost_when_it_has_ended_them(
    world: HostWorld,
) -> None:
    await world.poll()
    await world.provisioner.ensure(world.spec("one"))
    world.hosts["a"].down = True
    for _ in range(LOST_POLLS):
        await world.poll()
    (found,) = await world.provisioner.observe_all()
    assert found.reason is ExitReason.LOST
    assert world.held() == [], "the host has ended it by itself"


@story("a", "b")
async def test_after_a_restart_a_silent_host_keeps_its_names(world: HostWorld) -> None:
    """The new service has never seen the host, and must not start the instance elsewhere."""
    await world.poll()
    spec = world.spec("one")
    await world.provisioner.ensure(spec)
    world.hosts["a"].down = True
    world.restarted()
    (found,) = await world.provisioner.observe_all()
    assert (found.key, found.owner_uid, found.up) == (spec.key, spec.owner_uid, True)
    await world.poll()
    (found,) = await world.provisioner.observe_all()
    assert found.detail == "host a has not answered yet", "what is not known is not gone"
    with pytest.raises(Unreachable, match="host a may run it"):
        await world.provisioner.ensure(spec)
    with pytest.raises(Unreachable, match="host a may run it"):
        await world.provisioner.remove(spec.key)

    world.hosts["a"].down = False
    await world.poll()
    assert (await world.provisioner.ensure(spec)).phase is InstancePhase.RUNNING
    assert [host for _, host, _ in world.held()] == ["a"]


@story("a", "b")
async def test_what_a_silent_host_may_run_after_a_restart_is_lost_after_the_limit(
    world: HostWorld,
) -> None:
    await world.poll()
    await world.provisioner.ensure(world.spec("one"))
    world.hosts["a"].down = True
    world.restarted()
    for _ in range(LOST_POLLS):
        await world.poll()
    (found,) = await world.provisioner.observe_all()
    assert found.reason is ExitReason.LOST


def test_before_the_hosts_are_known_nothing_counts_as_gone() -> None:
    async def told(world: HostWorld) -> None:
        await world.poll()
        await world.provisioner.ensure(world.spec("one"))
        world.known = False
        world.restarted()
        (found,) = await world.provisioner.observe_all()
        assert found.up
        with pytest.raises(Unreachable, match="not known yet"):
            await world.provisioner.remove(found.key)

    HostWorld("a").run(told)


@story("a")
async def test_nothing_counts_as_removed_while_its_host_is_asked_for_the_first_time(
    world: HostWorld,
) -> None:
    await world.poll()
    spec = world.spec("one")
    await world.provisioner.ensure(spec)
    world.restarted()
    world.hosts["a"].links.clear()
    async with asyncio.TaskGroup() as tasks:
        asking = tasks.create_task(world.provisioner.refresh(BENCH))
        for _ in range(3):
            await asyncio.sleep(0)
        assert world.hosts["a"].links
        assert not asking.done(), "it is connected, and has not answered"
        with pytest.raises(Unreachable, match="host a may run it"):
            await world.provisioner.remove(spec.key)
    assert [key for key, _, _ in world.held()] == [spec.key]
    await world.provisioner.remove(spec.key)
    assert world.held() == []


@story("a", "b")
async def test_a_start_without_an_answer_is_not_repeated_elsewhere(world: HostWorld) -> None:
    await world.poll()
    world.hosts["a"].lost_answers = 1.0
    spec = world.spec("one")
    with pytest.raises(Unreachable, match="was lost"):
        await world.provisioner.ensure(spec)
    world.hosts["a"].lost_answers = 0.0
    await world.poll()
    await world.provisioner.ensure(spec)
    assert [host for _, host, _ in world.held()] == ["a"]


@story("a", "b")
async def test_a_drained_host_keeps_its_instances_and_gets_no_other(world: HostWorld) -> None:
    await world.poll()
    await world.provisioner.ensure(world.spec("one"))
    world.settings["a"]["drain"] = True
    world.use()
    await world.poll()
    await world.provisioner.ensure(world.spec("two"))
    await world.provisioner.ensure(world.spec("three"))
    assert [(key[1], host) for key, host, _ in world.held()] == [
        ("one", "a"), ("three", "b"), ("two", "b"),
    ]  # fmt: skip
    with pytest.raises(NoCapacity):
        await world.provisioner.ensure(world.spec("four"))

    world.settings["a"]["drain"] = False
    world.use()
    await world.poll()
    await world.provisioner.ensure(world.spec("four"))


@story("a", "b")
async def test_a_host_that_is_no_longer_named_is_forgotten(world: HostWorld) -> None:
    await world.poll()
    await world.provisioner.ensure(world.spec("one"))
    world.hosts["a"].down = True
    await world.poll()
    del world.settings["a"]
    world.use()
    assert await world.poll() == ""
    assert await world.provisioner.observe_all() == ()
    await world.provisioner.remove(("lab", "one"))
    assert world.provisioner.is_empty(BENCH)


@story("a")
async def test_labels_of_hosts_are_what_the_node_selector_of_a_class_means(
    world: HostWorld,
) -> None:
    await world.poll()
    gpu = world.spec("one", scheduling=Scheduling(node_selector={"gpu": "yes"}))
    with pytest.raises(NoCapacity, match="nodeSelector"):
        await world.provisioner.ensure(gpu)
    world.settings["a"]["labels"] = {"gpu": "yes"}
    world.use()
    await world.provisioner.ensure(gpu)


@story("a", "b")
async def test_a_host_with_another_key_is_not_used(world: HostWorld) -> None:
    world.hosts["a"].key = "ssh-ed25519 BBBB"
    assert await world.poll() == "host a: it has another key than hostKey says"
    await world.provisioner.ensure(world.spec("one"))
    assert [host for _, host, _ in world.held()] == ["b"]


@story("a")
async def test_mistakes_in_the_parameters_are_named_and_hosts_in_use_are_kept(
    world: HostWorld,
) -> None:
    await world.poll()
    await world.provisioner.ensure(world.spec("one"))
    world.settings["a"]["slots"] = -1
    world.use()
    assert "parameters.hosts[0].slots" in await world.poll()
    (found,) = await world.provisioner.observe_all()
    assert found.phase is InstancePhase.RUNNING


@story("a")
async def test_what_no_host_can_do_is_refused(world: HostWorld) -> None:
    await world.poll()
    disk = ProfileDisk(name="data", key=("lab", "data"), uid="uid-disk")
    with pytest.raises(Refused, match="no lasting disks"):
        await world.provisioner.ensure(world.spec("one", disks=(disk,)))
    world.settings["a"]["address"] = "192.0.2.1"
    world.use()
    await world.poll()
    with pytest.raises(Refused, match="--endpoint"):
        await world.provisioner.ensure(world.spec("one"))
    assert world.held() == []


@story("a")
async def test_credentials_of_hosts_are_read_at_each_connection(world: HostWorld) -> None:
    """And what depends on them alone is not started again."""
    await world.poll()
    await world.poll()
    assert len(world.visits) == 1
    world.settings["a"]["port"] = 2222
    world.use()
    await world.poll()
    assert [visit.host.port for visit in world.visits] == [22, 2222]


async def live(world: HostWorld, *, passes: int) -> None:
    """What the controllers do: start what is wanted, remove what is not or has ended."""
    for _ in range(passes):
        await world.poll()
        found = {each.key: each for each in await world.provisioner.observe_all()}
        for key in sorted({*world.wanted, *found}):
            seen = found.get(key)
            with contextlib.suppress(LabError):
                if seen is not None and (seen.owner_uid != world.wanted.get(key) or not seen.up):
                    await world.provisioner.remove(key)
                elif seen is None:
                    await world.provisioner.ensure(world.spec(key[1]))
        # One of an earlier Exporter of the name is refused by the service: its token has its uid.
        owned = [(key, uid) for key, _, uid in world.held()]
        assert len(owned) == len(set(owned)), f"two for one Exporter: {world.held()}"


async def one_round(chance: random.Random, kills: list[int], world: HostWorld) -> None:
    """Kill the service somewhere while hosts come and go; then let the faults end."""
    for number in range(3):
        world.wanted["lab", f"t{number}"] = f"uid-{number}"
    for host in world.hosts.values():
        host.lost_answers = chance.choice([0.0, 0.3])
    for number in range(chance.randrange(1, 4)):
        world.killed_at = world.pauses + chance.randrange(1, 40)
        host = chance.choice([*world.hosts.values()])
        host.down = chance.random() < 0.6
        if chance.random() < 0.3:
            del world.wanted[chance.choice([*world.wanted])]
            world.wanted["lab", "t3"] = f"uid-{chance.randrange(3, 9)}-{number}"
        try:
            await live(world, passes=chance.randrange(1, 8))
        except BaseExceptionGroup as group:
            if group.subgroup(Killed) is None:
                raise
        except Killed:
            pass
        else:
            continue
        kills.append(number)
        world.restarted()
    world.killed_at = None
    for host in world.hosts.values():
        host.down, host.lost_answers = False, 0.0
    await live(world, passes=6)
    assert [(key, uid) for key, _, uid in world.held()] == sorted(world.wanted.items())


def test_whatever_fails_nothing_is_doubled_and_nothing_is_left() -> None:
    kills: list[int] = []
    for seed in range(ROUNDS):
        chance = random.Random(seed)
        world = HostWorld("a", "b", "c", seed=seed)
        world.run(partial(one_round, chance, kills))
    assert len(kills) > ROUNDS
