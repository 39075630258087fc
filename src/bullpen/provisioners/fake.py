"""A provisioner without a backend: an example for authors, and used by the simulator.

It keeps its instances in a dict, boots them after a delay and injects faults at a given
rate. Randomness is an input and time is that of the event loop, so with a virtual loop and
a seed every run is the same. It fulfils the contract like any other.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass, replace

from bullpen.errors import Cause, NoCapacity, Refused, Unreachable
from bullpen.provisioners.base import (
    ExitReason,
    Instance,
    InstancePhase,
    InstanceSpec,
    Key,
    Listener,
    Profile,
)

NAME = "fake.jumpstarter.dev"


@dataclass(frozen=True, slots=True, kw_only=True)
class Faults:
    """Rates of injected faults: probabilities between 0 and 1, times in seconds."""

    unreachable: float = 0.0
    """A call does not reach the backend."""

    start_failed: float = 0.0
    """An instance exits instead of running."""

    crashed: float = 0.0
    """A running instance exits by itself, within ``crash_seconds_max``."""

    boot_seconds: tuple[float, float] = (0.0, 0.0)
    stop_seconds: tuple[float, float] = (0.0, 0.0)
    crash_seconds_max: float = 600.0


@dataclass(slots=True)
class _Machine:
    """One instance and its pending events."""

    spec: InstanceSpec
    instance: Instance
    next_event: asyncio.TimerHandle | None = None
    leased: bool = False
    retired: bool = False


class FakeProvisioner:
    name = NAME

    def __init__(
        self,
        chance: random.Random,
        *,
        faults: Faults = Faults(),  # noqa: B008 - frozen
        instances_max: int | None = None,
    ) -> None:
        self.faults = faults
        self.disks_fixed = ""
        """Why no disk of a running instance can be changed; empty if it can."""

        self.keeps = False
        """Stopped machines are kept, as those of a provider that can do so."""

        self._chance = chance
        self._instances_max = instances_max
        self._machines: dict[Key, _Machine] = {}
        self._listeners: list[Listener] = []

    # The contract

    def check(self, profile: Profile) -> tuple[Cause, ...]:
        return tuple(
            Cause(field=f"parameters.{name}", message="Forbidden: there is no such parameter")
            for name in sorted(profile.parameters)
        )

    async def ensure(self, spec: InstanceSpec) -> Instance:
        self._reach()
        found = self._machines.get(spec.key)
        if found is not None and found.instance.phase is InstancePhase.STOPPED:
            found.instance = replace(found.instance, phase=InstancePhase.BOOTING)
            self._later(found, self._between(self.faults.boot_seconds), self._boot)
            self._tell(spec.key)
        if found is not None:
            return found.instance
        if causes := self.check(spec.profile):
            raise Refused(f"the parameters for {NAME} are invalid: {causes[0].field}")
        running = sum(machine.instance.up for machine in self._machines.values())
        if self._instances_max is not None and running >= self._instances_max:
            raise NoCapacity(f"{running} of at most {self._instances_max} instances are running")
        instance = Instance(
            key=spec.key,
            owner_uid=spec.owner_uid,
            provisioner=NAME,
            phase=InstancePhase.BOOTING,
            host="fake",
            provider_id=f"fake-{spec.owner_uid}",
            addresses=("192.0.2.1",),
        )
        machine = self._machines[spec.key] = _Machine(spec, instance)
        self._later(machine, self._between(self.faults.boot_seconds), self._boot)
        self._tell(spec.key)
        return instance

    async def remove(self, key: Key) -> None:
        self._reach()
        machine = self._machines.get(key)
        if machine is None:
            return
        _cancel(machine)
        await asyncio.sleep(self._between(self.faults.stop_seconds))
        # A concurrent removal may have been faster.
        if self._machines.get(key) is machine:
            del self._machines[key]
            self._tell(key)

    async def stop(self, key: Key) -> None:
        machine = self._machines.get(key)
        if machine is None or not self.keeps:
            await self.remove(key)
            return
        self._reach()
        _cancel(machine)
        await asyncio.sleep(self._between(self.faults.stop_seconds))
        machine.instance = replace(machine.instance, phase=InstancePhase.STOPPED, reason=None)
        self._tell(key)

    async def retire(self, key: Key) -> None:
        self._reach()
        machine = self._machines.get(key)
        if machine is None or _has_exited(machine):
            return
        machine.retired = True
        if not machine.leased:
            self._exit(machine, ExitReason.COMPLETED, "retired")

    async def change_disks(self, spec: InstanceSpec) -> None:
        self._reach()
        machine = self._machines.get(spec.key)
        if machine is None or machine.instance.phase is not InstancePhase.RUNNING:
            raise Unreachable("it is not running")
        if self.disks_fixed:
            raise Refused(self.disks_fixed)
        machine.spec = spec

    async def update_credentials(self, spec: InstanceSpec) -> None:
        self._reach()
        machine = self._machines.get(spec.key)
        if machine is not None:
            machine.spec = spec

    async def observe_all(self) -> tuple[Instance, ...]:
        self._reach()
        return tuple(self._machines[key].instance for key in sorted(self._machines))

    def listen(self, listener: Listener) -> None:
        self._listeners.append(listener)

    # What happens to instances in a test or a simulation

    def instance(self, key: Key) -> Instance | None:
        """The instance, whether or not the backend answers."""
        machine = self._machines.get(key)
        return machine.instance if machine is not None else None

    def held(self) -> list[Key]:
        """Every existing instance, including exited ones."""
        return sorted(self._machines)

    def begin_lease(self, key: Key) -> None:
        machine = self._machines[key]
        assert machine.instance.phase is InstancePhase.RUNNING, "only what runs is leased"
        machine.leased = True

    def end_lease(self, key: Key) -> None:
        """A single-use or retired instance exits; any other one stays."""
        machine = self._machines.get(key)
        if machine is None or not machine.leased:
            return
        machine.leased = False
        if machine.retired or machine.spec.profile.single_use:
            self._exit(machine, ExitReason.COMPLETED, "served its lease")

    def crash(self, key: Key) -> None:
        """As after ``kill -9``."""
        machine = self._machines.get(key)
        if machine is not None and not _has_exited(machine):
            self._exit(machine, ExitReason.CRASHED, "it was killed")

    def give_notice(self, key: Key, why: str) -> None:
        """As if its provider were about to end it."""
        machine = self._machines[key]
        machine.instance = replace(machine.instance, notice=why)
        self._tell(key)

    def pause(self, key: Key, why: str) -> None:
        """As if nothing could be written on its host; with an empty reason, it goes on."""
        machine = self._machines[key]
        machine.instance = replace(machine.instance, paused=why)
        self._tell(key)

    # How it works

    def _boot(self, machine: _Machine) -> None:
        if self._happens(self.faults.start_failed):
            self._exit(machine, ExitReason.START_FAILED, "it did not boot")
            return
        machine.instance = replace(machine.instance, phase=InstancePhase.RUNNING)
        self._tell(machine.spec.key)
        if self._happens(self.faults.crashed):
            seconds = self._between((0.0, self.faults.crash_seconds_max))
            self._later(machine, seconds, lambda found: self.crash(found.spec.key))

    def _exit(self, machine: _Machine, reason: ExitReason, detail: str) -> None:
        _cancel(machine)
        machine.leased = False
        machine.instance = replace(
            machine.instance, phase=InstancePhase.EXITED, reason=reason, detail=detail
        )
        self._tell(machine.spec.key)

    def _reach(self) -> None:
        if self._happens(self.faults.unreachable):
            raise Unreachable("the fake backend does not answer")

    def _happens(self, chance: float) -> bool:
        return chance > 0 and self._chance.random() < chance

    def _between(self, span: tuple[float, float]) -> float:
        return self._chance.uniform(*span)

    def _later(self, machine: _Machine, seconds: float, act: Callable[[_Machine], None]) -> None:
        loop = asyncio.get_running_loop()
        machine.next_event = loop.call_later(seconds, act, machine)

    def _tell(self, key: Key) -> None:
        for listener in self._listeners:
            listener(key)


def _has_exited(machine: _Machine) -> bool:
    return machine.instance.phase is InstancePhase.EXITED


def _cancel(machine: _Machine) -> None:
    if machine.next_event is not None:
        machine.next_event.cancel()
