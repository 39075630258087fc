"""The simulated backend of virtual targets: it outlives the service, and is unreliable."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import TypeVar

from bullpen.errors import Cause, LabError, Refused, Unreachable
from bullpen.placements.memory_disks import MemoryDiskStorage
from bullpen.provisioners.base import Instance, InstanceSpec, Key, Listener, Profile
from bullpen.provisioners.fake import FakeProvisioner, Faults
from bullpen.sim.hangs import Hangs
from bullpen.sim.process import Process

T = TypeVar("T")

PATIENCE = 20.0
"""How long a caller waits for a backend that hangs."""


LEFT_OUT = 0.3
"""The share of instances that a lying backend leaves out of a listing."""

TAKES = (0.001, 0.05)
"""Seconds a backend needs to answer."""


class Machines:
    """All instances, and the behaviour of their backend."""

    def __init__(
        self,
        chance: random.Random,
        faults: Faults,
        tasks: asyncio.TaskGroup,
        hangs: Hangs,
        contents: MemoryDiskStorage,
    ) -> None:
        """``contents``: those of lasting disks, which machines make larger."""
        self.contents = contents
        self._hangs = hangs
        self.backend = FakeProvisioner(chance, faults=faults)
        self.specs: dict[Key, InstanceSpec] = {}
        self.away_until = 0.0
        self.hangs_until = 0.0
        self.refuses_until = 0.0
        self.doubles_until = 0.0
        """Until when every request is carried out a second time, some time later."""

        self.lies_until = 0.0
        """Until when a listing lacks some instances, and has some that are gone."""

        self.late = 0
        """Requests that are still going to be carried out."""

        self._chance = chance
        self._tasks = tasks
        self._listed: dict[Key, Instance] = {}

    async def listing(self) -> tuple[Instance, ...]:
        """All instances, as far as the backend tells the truth."""
        found = {instance.key: instance for instance in await self.backend.observe_all()}
        before, self._listed = self._listed, found
        if asyncio.get_running_loop().time() >= self.lies_until:
            return tuple(found.values())
        told = {**before, **found}
        return tuple(told[key] for key in sorted(told) if self._chance.random() >= LEFT_OUT)

    async def change_disks(self, spec: InstanceSpec) -> None:
        """A machine gets its disks, and makes those larger that are too small."""
        await self.backend.change_disks(spec)
        for disk in spec.profile.disks:
            if (disk.key, disk.uid) in self.contents.stored:
                await self.contents.grow(disk.key, disk.uid, disk.size_bytes)

    def heal(self) -> None:
        self.lies_until = 0.0
        self.away_until = self.hangs_until = self.refuses_until = self.doubles_until = 0.0
        self.backend.faults = Faults(boot_seconds=self.backend.faults.boot_seconds)

    async def ask(self, process: Process, work: Callable[[], Awaitable[T]]) -> T:
        """Carry out a request of a process, which may give up or die before it is done."""
        await self._hangs.awake(process.name)
        loop = asyncio.get_running_loop()
        if loop.time() < self.away_until:
            raise Unreachable("the backend does not answer")
        if loop.time() < self.doubles_until:
            self._tasks.create_task(self._late(work, None))
        if loop.time() < self.hangs_until:
            answer: asyncio.Future[T] = loop.create_future()
            self._tasks.create_task(self._late(work, answer))
            try:
                async with asyncio.timeout(PATIENCE):
                    return await answer
            except TimeoutError:
                raise Unreachable("the backend took too long") from None
        await asyncio.sleep(self._chance.uniform(*TAKES))
        if not process.alive:
            await loop.create_future()
        result = await work()
        await self._hangs.awake(process.name)
        return result

    async def _late(
        self, work: Callable[[], Awaitable[T]], answer: asyncio.Future[T] | None
    ) -> None:
        """Carry it out anyway, although its caller may have given up."""
        self.late += 1
        await asyncio.sleep(self._chance.uniform(0.0, 2 * PATIENCE))
        self.late -= 1
        try:
            result = await work()
        except LabError as error:
            if answer is not None and not answer.done():
                answer.set_exception(error)
        else:
            if answer is not None and not answer.done():
                answer.set_result(result)

    @property
    def refuses(self) -> bool:
        return asyncio.get_running_loop().time() < self.refuses_until


class Handle:
    """The provisioner of one process."""

    def __init__(self, machines: Machines, process: Process) -> None:
        self.name = machines.backend.name
        self._machines = machines
        self._process = process

    def check(self, profile: Profile) -> tuple[Cause, ...]:
        # All parameters are valid: the operator changes one to create a new revision.
        return ()

    async def ensure(self, spec: InstanceSpec) -> Instance:
        if self._machines.refuses:
            raise Refused("the backend will not make it")
        return await self._machines.ask(self._process, lambda: self._ensure(spec))

    async def _ensure(self, spec: InstanceSpec) -> Instance:
        made = await self._machines.backend.ensure(
            replace(spec, profile=replace(spec.profile, parameters={}))
        )
        if made.owner_uid == spec.owner_uid:
            self._machines.specs[spec.key] = spec
        return made

    async def remove(self, key: Key) -> None:
        await self._machines.ask(self._process, lambda: self._machines.backend.remove(key))

    async def stop(self, key: Key) -> None:
        await self._machines.ask(self._process, lambda: self._machines.backend.stop(key))

    async def retire(self, key: Key) -> None:
        await self._machines.ask(self._process, lambda: self._machines.backend.retire(key))

    async def change_disks(self, spec: InstanceSpec) -> None:
        await self._machines.ask(self._process, lambda: self._machines.change_disks(spec))

    async def update_credentials(self, spec: InstanceSpec) -> None:
        await self._machines.ask(
            self._process, lambda: self._machines.backend.update_credentials(spec)
        )

    async def observe_all(self) -> tuple[Instance, ...]:
        return await self._machines.ask(self._process, self._machines.listing)

    def listen(self, listener: Listener) -> None:
        def told(key: Key) -> None:
            if self._process.alive:
                listener(key)

        self._machines.backend.listen(told)
