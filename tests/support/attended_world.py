"""A world in virtual time in which a service is killed and started again.

The fake provider, the placement of exporters and the records outlive the service; its memory
does not. What the service does is decided by ``core.targets.instances``, as in production.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Awaitable, Callable, Collection, Coroutine, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar, Protocol

from bullpen.core.targets import instances
from bullpen.core.targets.backends import SETTLE_MAX
from bullpen.core.targets.exporter_config import Connection
from bullpen.core.targets.instances import (
    Create,
    Delete,
    Desired,
    Instance,
    InstancePhase,
    Observed,
)
from bullpen.core.targets.profiles import Profile
from bullpen.errors import LabError, Refused, Unavailable
from bullpen.kit.clock import VirtualClock
from bullpen.placements.base import InstanceSpec
from bullpen.provisioners.attended import AttendedProvisioner
from bullpen.provisioners.provider import Backend, MachineKeys, Provider
from bullpen.sim import virtual_time
from bullpen.testing.fake_placement import FakePlacement
from bullpen.testing.fake_provider import AccountFaults, FakeProvider

Key = tuple[str, str]

LAB = "lab-1"
ACCOUNTS: tuple[Key, ...] = (("lab", "east"), ("lab", "west"))
POLL_SECONDS = 5.0
SETTLE = SETTLE_MAX.total_seconds()


class Killed(BaseException):
    """The service was killed at this place."""


class MemoryRecords:
    """Records that outlive the service, as objects in its store do."""

    def __init__(self, world: AttendedWorld) -> None:
        self.kept: set[Key] = set()
        self.keys: dict[tuple[Key, str], MachineKeys] = {}
        self._world = world

    async def begin(self, backend: Key, place: str = "") -> None:
        await self._world.pause()
        if backend not in self._world.backends:
            raise Refused("it is deleted")
        self.kept.add(backend)
        await self._world.pause()

    async def end(self, backend: Key, is_empty: Callable[[], bool]) -> bool:
        if is_empty():
            self.kept.discard(backend)
        return backend not in self.kept

    async def release(self, secret: Key) -> None:
        """There are no Secrets here."""

    async def mark_class(self, key: Key, *, kept: bool) -> None:
        """There are no classes here."""

    async def keep_keys(self, key: Key, uid: str, made: MachineKeys) -> MachineKeys:
        await self._world.pause()
        kept = self.keys.setdefault((key, uid), made)
        await self._world.pause()
        return kept

    async def move_keys(self, key: Key, uid: str, backend: str) -> None:
        await self._world.pause()
        self.keys[key, uid] = replace(self.keys[key, uid], backend=backend)
        await self._world.pause()

    async def kept_keys(self, key: Key, uid: str) -> MachineKeys | None:
        await self._world.pause()
        return self.keys.get((key, uid))


class Account(Protocol):
    """An account of a cloud, as a fault run uses it."""

    faults: AccountFaults

    @property
    def machines(self) -> Collection[object]:
        """What exists, or is being deleted."""


class Cloud(Protocol):
    """The provider's side of a world: what exists there, and what goes wrong."""

    pause: Callable[[], Awaitable[None]]

    @property
    def made(self) -> int: ...
    @property
    def accounts(self) -> Mapping[Key, Account]: ...
    def account(self, key: Key) -> Account: ...
    def held(self) -> list[tuple[Key, str]]: ...


class AttendedWorld:
    parameters: ClassVar[Mapping[str, object]] = {}
    """Of the class of all instances."""

    account_parameters: ClassVar[Mapping[str, object]] = {}

    def __init__(self, seed: int = 1, *, idempotent: bool = True, keyed: bool = False) -> None:
        self.clock = VirtualClock()
        self.chance = random.Random(seed)
        self.provider = FakeProvider(self.clock, self.chance, idempotent=idempotent, keyed=keyed)
        self.provider.pause = self.pause
        self.begin(self.provider, self.provider)

    def begin(self, cloud: Cloud, provider: Provider) -> None:
        """Use another cloud than the fake provider."""
        self.cloud, self._asked = cloud, provider
        self.placement = FakePlacement(self.pause)
        self.records = MemoryRecords(self)
        self.backends: dict[Key, Backend] = {
            key: Backend(key=key, lab=LAB, parameters=self.account_parameters) for key in ACCOUNTS
        }
        self.wanted: dict[Key, tuple[str, str]] = {}
        """Uid and account of every Exporter."""

        self.running: Callable[[], Mapping[Key, str]] = self.provider.running
        """The ids of the machines that run, if the Exporters are those of lasting targets."""

        self.lasting = False
        """The Exporters are those of lasting targets."""

        self.stopped: set[Key] = set()
        """The targets that should not run."""

        self.used: dict[Key, set[str]] = {}
        """Of lasting targets, the machines on which an exporter ran: their disks."""

        self.pauses = 0
        self.killed_at: int | None = None
        self.provisioner = self.restarted()

    def run(self, story: Callable[[AttendedWorld], Coroutine[Any, Any, None]]) -> None:
        virtual_time.run(self.clock, story(self))

    def restarted(self) -> AttendedProvisioner:
        """A service with no memory of what it did before."""
        self.placement._listeners.clear()
        self.provisioner = AttendedProvisioner(
            self._asked, self.placement, self.records, clock=self.clock, chance=self.chance
        )
        self.provisioner.use(self.backends.values())
        return self.provisioner

    async def pause(self) -> None:
        await asyncio.sleep(0)
        self.pauses += 1
        if self.pauses == self.killed_at:
            raise Killed

    def want(self, name: str, uid: str, account: str = "east") -> None:
        if self.wanted.get(("lab", name)) != (uid, account):
            self.used.pop(("lab", name), None)
        self.wanted["lab", name] = (uid, account)

    def spec(self, key: Key) -> InstanceSpec:
        uid, account = self.wanted[key]
        made = Profile(provisioner=self._asked.name, provider=account, parameters=self.parameters)
        if self.lasting:
            made = replace(made, single_use=False, lasting=True)
        return InstanceSpec(
            key=key,
            owner_uid=uid,
            profile=made,
            connection=Connection(endpoint="", token="a secret", ca_pem=""),
        )

    async def work(self, *, passes: int = 1) -> None:
        """List every backend and do what is decided for every name, so many times."""
        for _ in range(passes):
            for key in sorted(self.backends):
                with contextlib.suppress(Unavailable):
                    await self.provisioner.refresh(key)
            found = {each.key: each for each in await self.provisioner.observe_all()}
            self._note_used(found)
            # Removals wait for a listing, so they run beside the next one.
            async with asyncio.TaskGroup() as tasks:
                working = [
                    tasks.create_task(self._reconcile(key, found))
                    for key in sorted({*self.wanted, *found})
                ]
                while not all(task.done() for task in working):
                    await asyncio.sleep(POLL_SECONDS)
                    for key in sorted(self.backends):
                        with contextlib.suppress(Unavailable):
                            await self.provisioner.refresh(key)
            await asyncio.sleep(POLL_SECONDS)
            await self.erase()

    def _note_used(self, found: Mapping[Key, Instance]) -> None:
        for key, (uid, _) in self.wanted.items():
            own = found.get(key)
            if own is not None and own.owner_uid == uid and own.phase is InstancePhase.RUNNING:
                self.used.setdefault(key, set()).update(filter(None, [own.provider_id]))

    async def erase(self) -> None:
        """Erase the records of backends that hold nothing."""
        for key in sorted(self.records.kept):
            await self.records.end(key, partial(self.provisioner.is_empty, key))

    async def _reconcile(self, key: Key, found: Mapping[Key, Instance]) -> None:
        wanted, own = None, found.get(key)
        if (
            self.lasting
            and key in self.wanted
            and (own is None or own.owner_uid == self.wanted[key][0])
        ):
            with contextlib.suppress(LabError):
                await self._keep(key, own)
            return
        if key in self.wanted:
            wanted = Desired(uid=self.wanted[key][0], provisioner=self._asked.name)
        seen = Observed(instances=(found[key],) if key in found else ())
        for step in instances.next_steps(wanted, seen, now=self.clock.now()):
            with contextlib.suppress(LabError):
                if isinstance(step, Delete):
                    await self.provisioner.remove(key)
                elif isinstance(step, Create):
                    await self.provisioner.ensure(self.spec(key))
        mine = wanted is not None and own is not None and own.owner_uid == wanted.uid
        if mine and own is not None and not own.up:
            # A pool replaces what has exited; here under the same name.
            with contextlib.suppress(LabError):
                await self.provisioner.remove(key)

    async def _keep(self, key: Key, own: Instance | None) -> None:
        """What is done for a lasting target, without its Exporter and its leases."""
        rests = own is None or own.phase is InstancePhase.STOPPED
        ended = own is not None and own.phase is InstancePhase.EXITED
        if ended or (key in self.stopped and not rests):
            await self.provisioner.stop(key)
        elif key not in self.stopped and (own is None or not own.up or own.incomplete):
            await self.provisioner.ensure(self.spec(key))

    async def live_until_killed(self, *, passes: int) -> bool:
        """Work until the end, or until the service is killed; then start it again."""
        try:
            await self.work(passes=passes)
        except BaseExceptionGroup as group:
            if group.subgroup(Killed) is None:
                raise
        except Killed:
            pass
        else:
            return False
        self.restarted()
        return True

    def owned(self) -> list[tuple[Key, str]]:
        return sorted((key, uid) for key, (uid, _) in self.wanted.items())


def fault_run(
    made: Callable[[int, random.Random], AttendedWorld], *, rounds: int
) -> tuple[int, int]:
    """Rounds of faults and kills, each in a world of its own; how often it was killed, and created.

    After each round exactly the wanted machines exist, and after their end nothing does.
    """
    kills = created = 0
    for seed in range(rounds):
        chance = random.Random(seed)
        world = made(seed, chance)
        lives: list[int] = []
        world.run(partial(fault_round, chance=chance, lives=lives))
        kills += len(lives)
        created += world.cloud.made
    return kills, created


def killed_everywhere(made: Callable[[], AttendedWorld]) -> int:
    """Kill the service at each place of two creations and a deletion; how many there are.

    Every life is one in a world of its own; after it exactly the wanted machines exist.
    """
    reached, place = True, 0
    while reached:
        place += 1
        world, outcome = made(), list[bool]()
        world.killed_at = place

        async def life(world: AttendedWorld, outcome: list[bool] = outcome) -> None:
            world.want("a", "uid-1")
            world.want("b", "uid-2", "west")
            outcome.append(await world.live_until_killed(passes=2))
            del world.wanted["lab", "a"]
            outcome.append(await world.live_until_killed(passes=3))
            await settled(world)

        world.run(life)
        reached = any(outcome)
    return place - 1


async def fault_round(world: AttendedWorld, *, chance: random.Random, lives: list[int]) -> None:
    for life in range(chance.randint(2, 4)):
        for key in ACCOUNTS:
            world.cloud.account(key).faults = AccountFaults(
                silent=chance.random() < 0.2,
                throttled=chance.choice((0.0, 0.1, 0.3)),
                answer_lost=chance.choice((0.0, 0.1, 0.3)),
                omitted=chance.choice((0.0, 0.0, 0.2)),
                listed_after=chance.choice((0.0, 0.0, 20.0)),
                boot_seconds=chance.choice((0.0, 12.0)),
                stop_seconds=chance.choice((0.0, 7.0)),
                delete_seconds=chance.choice((0.0, 7.0)),
                quota=chance.choice((0, 3)),
            )
        for number in range(3):
            if chance.random() < 0.5:
                world.wanted.pop(("lab", f"m{number}"), None)
                world.used.pop(("lab", f"m{number}"), None)
            else:
                uid = chance.choice((f"uid-{number}", f"uid-{number}-{life}"))
                world.want(f"m{number}", uid, chance.choice(("east", "west")))
            change = world.stopped.add if chance.random() < 0.4 else world.stopped.discard
            change(("lab", f"m{number}"))
        world.killed_at = world.pauses + chance.randint(1, 30)
        if await world.live_until_killed(passes=chance.randint(1, 4)):
            lives.append(life)
    await settled(world)


async def settled(world: AttendedWorld) -> None:
    """Once faults stop, exactly the wanted machines exist; without any, no record is left."""
    world.killed_at = None
    for account in world.cloud.accounts.values():
        account.faults = AccountFaults()
    await world.work(passes=int(SETTLE / POLL_SECONDS) + 6)
    resting = world.stopped if world.lasting else frozenset()
    due = [each for each in world.owned() if each[0] not in resting]
    held = world.cloud.held()
    assert len(set(held)) == len(held), "nothing is doubled"
    assert set(due) <= set(held) <= set(world.owned()), "one that never ran has no machine"
    running = [each for each in await world.provisioner.observe_all() if each.up]
    assert [(each.key, each.owner_uid) for each in running] == due
    if world.lasting:
        assert sorted(world.running()) == [key for key, _ in due], "stopped ones cost nothing"
        assert {key: ids for key, ids in world.used.items() if len(ids) > 1} == {}, (
            "no disk is lost"
        )
    holding = {key for key, found in world.cloud.accounts.items() if found.machines}
    assert holding <= world.records.kept
    world.wanted.clear()
    await world.work(passes=int(SETTLE / POLL_SECONDS) + 4)
    assert world.cloud.held() == []
    assert world.placement.exporters == {}
    assert world.records.kept == set()
