"""A fake provider, for tests: no machine exists, and nothing but its own ledger is charged.

It has several accounts, each with faults of its own: it does not answer, throttles, loses the
answer of a call that it has carried out, lists machines late or not at all for a while, and
charges for every second that a machine runs. A machine that nobody renews ends; one of a lasting
target stops, and can be started. Time is that of the clock it is given.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from bullpen.api.exporter_template import Driver
from bullpen.core.targets.backends import (
    Inventory,
    Key,
    Machine,
    MachineState,
    Quota,
    settings_of,
)
from bullpen.errors import Cause, NoCapacity, Refused, TooManyRequests, Unreachable
from bullpen.kit.clock import Clock
from bullpen.provisioners.base import Needs, Profile
from bullpen.provisioners.provider import Backend, Order

NAME = "fake-provider.bullpen.dev"
MOCK_DRIVER = "jumpstarter_driver_power.driver.MockPower"
HOURLY_COST = 3.6
"""Of every machine: a thousandth for each second."""

SECONDS_PER_HOUR = 3600


@dataclass(slots=True, kw_only=True)
class AccountFaults:
    """What goes wrong at one account: probabilities between 0 and 1, times in seconds."""

    silent: bool = False
    throttled: float = 0.0
    answer_lost: float = 0.0
    """A call is carried out, and its answer does not arrive."""

    omitted: float = 0.0
    """A listing does not show a machine that exists."""

    listed_after: float = 0.0
    """How long listings do not show a new machine."""

    boot_seconds: float = 0.0
    stop_seconds: float = 0.0
    delete_seconds: float = 0.0
    quota: int = 0
    """Machines that may exist; 0 for no limit."""


@dataclass(slots=True, kw_only=True)
class FakeMachine:
    """A machine that an account is charged for while it runs."""

    id: str
    lab: str
    key: Key
    owner_uid: str
    token: str
    created: datetime
    expires: datetime
    started: datetime
    lasting: bool
    settings: str
    keys: Mapping[str, bytes] = field(repr=False)
    address: str = "192.0.2.1"
    stopped: datetime | None = None
    shut_down: bool = False
    """It was stopped from inside."""

    charged: float = 0.0
    """For the times before its last start."""

    deleted: datetime | None = None
    interrupted: bool = False


@dataclass(slots=True)
class FakeAccount:
    faults: AccountFaults = field(default_factory=AccountFaults)
    machines: dict[str, FakeMachine] = field(default_factory=dict)
    calls: int = 0
    granted: int = 0
    charged: float = 0.0
    """For machines that are gone."""


async def _nothing() -> None:
    """A pause that lets other tasks run."""
    await asyncio.sleep(0)


class FakeProvider:
    """The API of the fake, as ``AttendedProvisioner`` uses it."""

    name = NAME

    def __init__(
        self,
        clock: Clock,
        chance: random.Random,
        *,
        idempotent: bool = True,
        keyed: bool = False,
    ) -> None:
        """``keyed``: every machine has keys, which its exporter needs."""
        self.idempotent = idempotent
        self.keyed = keyed
        self.accounts: dict[Key, FakeAccount] = {}
        self.pause: Callable[[], Awaitable[None]] = _nothing
        """Awaited before and after every effect; a test ends its caller here."""

        self.refuses_grants = ""
        """Why exporters get no files; empty if they do."""

        self._clock = clock
        self._chance = chance
        self.made = 0
        """Machines that were created so far."""

        self._keys = 0

    # The API

    def check(
        self, parameters: Mapping[str, object], drivers: tuple[Driver, ...]
    ) -> tuple[Cause, ...]:
        return tuple(
            Cause(field=f"parameters.{name}", message="Forbidden: there is no such parameter")
            for name in sorted(parameters)
        )

    def needs(self, profile: Profile) -> Needs:
        return Needs(memory_bytes=64 << 20, cpus=0.1)

    def hourly_cost(self, profile: Profile) -> float:
        return HOURLY_COST

    def new_keys(self) -> Mapping[str, bytes]:
        if not self.keyed:
            return {}
        self._keys += 1
        return {"login": f"key {self._keys}".encode()}

    def export(
        self, profile: Profile, machine: Machine, keys: Mapping[str, bytes]
    ) -> Mapping[str, object]:
        assert machine.address, "an exporter is placed for a machine that can be reached"
        assert keys == self._machine(machine.id).keys, "each machine opens with its own keys"
        return {"power": {"type": MOCK_DRIVER, "config": {}}}

    async def grant(self, backend: Backend, machine: Machine) -> Mapping[str, bytes]:
        account = await self._reached(backend)
        if self.refuses_grants:
            raise Refused(self.refuses_grants)
        account.granted += 1
        await self._answer(account)
        return {"pass": f"{machine.id}, pass {account.granted}".encode()}

    async def list_machines(self, backend: Backend) -> Inventory:
        account = await self._reached(backend)
        shown = tuple(
            self._shown(account, machine)
            for machine in self._existing(account)
            if machine.lab == backend.lab and self._is_shown(account, machine)
        )
        limit, used = account.faults.quota, len(self._existing(account))
        await self._answer(account)
        return Inventory(machines=shown, quota=Quota(instances=limit, used=used) if limit else None)

    async def create(self, backend: Backend, order: Order) -> Machine:
        account = await self._reached(backend)
        existing = self._existing(account)
        known = [machine for machine in existing if machine.token == order.token]
        if known and self.idempotent:
            made = known[0]
        else:
            if account.faults.quota and len(existing) >= account.faults.quota:
                raise NoCapacity(f"the quota of {account.faults.quota} machines is used up")
            self.made += 1
            made = FakeMachine(
                id=f"m-{self.made}",
                lab=backend.lab,
                key=order.key,
                owner_uid=order.owner_uid,
                token=order.token,
                created=self._clock.now(),
                expires=order.expires,
                started=self._clock.now(),
                lasting=order.profile.lasting,
                settings=settings_of(order.profile.parameters),
                keys=order.keys,
            )
            account.machines[made.id] = made
        await self._answer(account)
        return self._shown(account, made)

    async def renew(self, backend: Backend, machine: Machine, expires: datetime) -> None:
        account = await self._reached(backend)
        found = account.machines.get(machine.id)
        if found is not None:
            found.expires = expires
        await self._answer(account)

    async def stop(self, backend: Backend, machine: Machine) -> None:
        account = await self._reached(backend)
        self._existing(account)
        found = account.machines.get(machine.id)
        if found is not None:
            assert found.lasting, "only machines of lasting targets are stopped"
            _stop(found, self._clock.now())
        await self._answer(account)

    async def start(self, backend: Backend, machine: Machine) -> None:
        account = await self._reached(backend)
        found = account.machines.get(machine.id)
        if found is not None and found.stopped is not None:
            delay = timedelta(seconds=account.faults.stop_seconds)
            if self._clock.now() < found.stopped + delay:
                raise Unreachable("it is still stopping")
            found.stopped, found.started, found.shut_down = None, self._clock.now(), False
        await self._answer(account)

    async def delete(self, backend: Backend, machine: Machine) -> None:
        account = await self._reached(backend)
        found = account.machines.get(machine.id)
        if found is not None and found.deleted is None:
            found.deleted = self._clock.now()
        await self._answer(account)

    # What happens at the provider, and what a test may know

    def account(self, key: Key) -> FakeAccount:
        return self.accounts.setdefault(key, FakeAccount())

    def interrupt(self, key: Key) -> None:
        """End the machines of an instance, as a provider ends spot machines."""
        for account in self.accounts.values():
            for machine in account.machines.values():
                if machine.key == key:
                    machine.interrupted = True

    def shut_down(self, key: Key) -> None:
        """Stop the machines of an instance from inside."""
        for account in self.accounts.values():
            for machine in account.machines.values():
                if machine.key == key:
                    _stop(machine, self._clock.now())
                    machine.shut_down = True

    def running(self) -> dict[Key, str]:
        """The ids of the machines that run, by the key of their instance."""
        return {
            machine.key: machine.id
            for account in self.accounts.values()
            for machine in self._existing(account)
            if machine.deleted is None and machine.stopped is None
        }

    def held(self) -> list[tuple[Key, str]]:
        """Key and uid of every machine that exists and is not being deleted."""
        return sorted(
            (machine.key, machine.owner_uid)
            for account in self.accounts.values()
            for machine in self._existing(account)
            if machine.deleted is None
        )

    def charged(self) -> float:
        """What all machines have cost so far."""
        now, total = self._clock.now(), 0.0
        for account in self.accounts.values():
            self._existing(account)
            total += account.charged
            total += sum(_charge(machine, now) for machine in account.machines.values())
        return total

    def _machine(self, machine_id: str) -> FakeMachine:
        found = (account.machines.get(machine_id) for account in self.accounts.values())
        return next(machine for machine in found if machine is not None)

    async def _reached(self, backend: Backend) -> FakeAccount:
        """The account that a ProviderConfig means: that of its name, if its settings name none."""
        named = backend.parameters.get("account")
        account = self.account((backend.key[0], str(named)) if named else backend.key)
        account.calls += 1
        await self.pause()
        if account.faults.silent:
            raise Unreachable(f"account {backend.key[1]} does not answer")
        if self._happens(account.faults.throttled):
            raise TooManyRequests(f"account {backend.key[1]} is throttled")
        return account

    async def _answer(self, account: FakeAccount) -> None:
        await self.pause()
        if self._happens(account.faults.answer_lost):
            raise Unreachable("the answer was lost")

    def _existing(self, account: FakeAccount) -> tuple[FakeMachine, ...]:
        """The machines that exist now; those that are gone are charged."""
        now, delay = self._clock.now(), timedelta(seconds=account.faults.delete_seconds)
        for machine in tuple(account.machines.values()):
            if machine.deleted is None and machine.stopped is None and now >= machine.expires:
                if machine.lasting:
                    _stop(machine, machine.expires)
                else:
                    machine.deleted = machine.expires
            if machine.deleted is not None and now >= machine.deleted + delay:
                account.charged += _charge(machine, now)
                del account.machines[machine.id]
        return tuple(account.machines.values())

    def _is_shown(self, account: FakeAccount, machine: FakeMachine) -> bool:
        age = (self._clock.now() - machine.created).total_seconds()
        return age >= account.faults.listed_after and not self._happens(account.faults.omitted)

    def _shown(self, account: FakeAccount, machine: FakeMachine) -> Machine:
        age = (self._clock.now() - machine.started).total_seconds()
        state = (
            MachineState.RUNNING if age >= account.faults.boot_seconds else MachineState.STARTING
        )
        if machine.stopped is not None:
            stopping = (self._clock.now() - machine.stopped).total_seconds()
            ended = stopping >= account.faults.stop_seconds
            state = MachineState.STOPPED if ended else MachineState.STOPPING
        if machine.interrupted:
            state = MachineState.FAILED
        if machine.deleted is not None:
            state = MachineState.ENDING
        return Machine(
            id=machine.id,
            key=machine.key,
            owner_uid=machine.owner_uid,
            state=state,
            created=machine.created,
            started=machine.started,
            address=machine.address if state is MachineState.RUNNING else "",
            hourly_cost=HOURLY_COST if machine.stopped is None else 0.0,
            expires=machine.expires,
            lasting=machine.lasting,
            settings=machine.settings,
            shut_down=machine.shut_down,
        )

    def _happens(self, chance: float) -> bool:
        return chance > 0 and self._chance.random() < chance


def _stop(machine: FakeMachine, when: datetime) -> None:
    if machine.stopped is None:
        machine.charged = _charge(machine, when)
        machine.stopped = when


def _charge(machine: FakeMachine, now: datetime) -> float:
    """What a machine has cost so far."""
    if machine.stopped is not None:
        return machine.charged
    ran = (now - machine.started).total_seconds()
    return machine.charged + HOURLY_COST * ran / SECONDS_PER_HOUR
