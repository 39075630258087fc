"""A world in virtual time in which a service is killed and started again.

The fake provider, the placement of exporters and the records outlive the service; its memory
does not. What the service does is decided by ``core.targets.instances``, as in production.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Callable, Coroutine, Mapping
from functools import partial
from typing import Any

from bullpen.core.targets import instances
from bullpen.core.targets.exporter_config import Connection
from bullpen.core.targets.instances import Create, Delete, Desired, Instance, Observed
from bullpen.core.targets.profiles import Profile
from bullpen.errors import LabError, Refused, Unavailable
from bullpen.kit.clock import VirtualClock
from bullpen.placements.base import InstanceSpec
from bullpen.provisioners.attended import AttendedProvisioner
from bullpen.provisioners.provider import Backend
from bullpen.sim import virtual_time
from bullpen.testing.fake_placement import FakePlacement
from bullpen.testing.fake_provider import NAME, FakeProvider

Key = tuple[str, str]

LAB = "lab-1"
ACCOUNTS: tuple[Key, ...] = (("lab", "east"), ("lab", "west"))
POLL_SECONDS = 5.0


class Killed(BaseException):
    """The service was killed at this place."""


class MemoryRecords:
    """Records that outlive the service, as objects in its store do."""

    def __init__(self, world: AttendedWorld) -> None:
        self.kept: set[Key] = set()
        self.keys: dict[tuple[Key, str], Mapping[str, bytes]] = {}
        self._world = world

    async def begin(self, backend: Key) -> None:
        await self._world.pause()
        if backend not in self._world.backends:
            raise Refused("it is deleted")
        self.kept.add(backend)
        await self._world.pause()

    async def end(self, backend: Key, is_empty: Callable[[], bool]) -> bool:
        if is_empty():
            self.kept.discard(backend)
        return backend not in self.kept

    async def mark_class(self, key: Key, *, kept: bool) -> None:
        """There are no classes here."""

    async def keep_keys(self, key: Key, uid: str, made: Mapping[str, bytes]) -> Mapping[str, bytes]:
        await self._world.pause()
        kept = self.keys.setdefault((key, uid), made)
        await self._world.pause()
        return kept

    async def kept_keys(self, key: Key, uid: str) -> Mapping[str, bytes] | None:
        await self._world.pause()
        return self.keys.get((key, uid))


class AttendedWorld:
    def __init__(self, seed: int = 1, *, idempotent: bool = True, keyed: bool = False) -> None:
        self.clock = VirtualClock()
        self.chance = random.Random(seed)
        self.provider = FakeProvider(self.clock, self.chance, idempotent=idempotent, keyed=keyed)
        self.provider.pause = self.pause
        self.placement = FakePlacement(self.pause)
        self.records = MemoryRecords(self)
        self.backends: dict[Key, Backend] = {key: Backend(key=key, lab=LAB) for key in ACCOUNTS}
        self.wanted: dict[Key, tuple[str, str]] = {}
        """Uid and account of every Exporter."""

        self.pauses = 0
        self.killed_at: int | None = None
        self.provisioner = self.restarted()

    def run(self, story: Callable[[AttendedWorld], Coroutine[Any, Any, None]]) -> None:
        virtual_time.run(self.clock, story(self))

    def restarted(self) -> AttendedProvisioner:
        """A service with no memory of what it did before."""
        self.placement._listeners.clear()
        self.provisioner = AttendedProvisioner(
            self.provider, self.placement, self.records, clock=self.clock
        )
        self.provisioner.use(self.backends.values())
        return self.provisioner

    async def pause(self) -> None:
        await asyncio.sleep(0)
        self.pauses += 1
        if self.pauses == self.killed_at:
            raise Killed

    def want(self, name: str, uid: str, account: str = "east") -> None:
        self.wanted["lab", name] = (uid, account)

    def spec(self, key: Key) -> InstanceSpec:
        uid, account = self.wanted[key]
        return InstanceSpec(
            key=key,
            owner_uid=uid,
            profile=Profile(provisioner=NAME, provider=account),
            connection=Connection(endpoint="", token="a secret", ca_pem=""),
        )

    async def work(self, *, passes: int = 1) -> None:
        """List every backend and do what is decided for every name, so many times."""
        for _ in range(passes):
            for key in sorted(self.backends):
                with contextlib.suppress(Unavailable):
                    await self.provisioner.refresh(key)
            found = {each.key: each for each in await self.provisioner.observe_all()}
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

    async def erase(self) -> None:
        """Erase the records of backends that hold nothing."""
        for key in sorted(self.records.kept):
            await self.records.end(key, partial(self.provisioner.is_empty, key))

    async def _reconcile(self, key: Key, found: Mapping[Key, Instance]) -> None:
        wanted = None
        if key in self.wanted:
            wanted = Desired(uid=self.wanted[key][0], provisioner=NAME)
        seen = Observed(instances=(found[key],) if key in found else ())
        for step in instances.next_steps(wanted, seen, now=self.clock.now()):
            with contextlib.suppress(LabError):
                if isinstance(step, Delete):
                    await self.provisioner.remove(key)
                elif isinstance(step, Create):
                    await self.provisioner.ensure(self.spec(key))
        if wanted is not None and key in found and not found[key].up:
            # A pool replaces what has exited; here under the same name.
            with contextlib.suppress(LabError):
                await self.provisioner.remove(key)

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
