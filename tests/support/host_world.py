"""Hosts in virtual time: they go down, answer late or not at all, and outlive the service.

A host does what its agent does: it has at most one instance of a name, and ends all of them when
nobody has reached it for ``LOST_AFTER``.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from bullpen.core.targets.backends import LOST_AFTER, HostLoad
from bullpen.core.targets.exporter_config import Connection
from bullpen.core.targets.hosts import Placed
from bullpen.core.targets.instances import ExitReason, Instance, InstancePhase
from bullpen.core.targets.profiles import Profile
from bullpen.errors import LabError, Refused, Unreachable
from bullpen.kit.clock import VirtualClock
from bullpen.placements.base import InstanceSpec
from bullpen.provisioners.baremetal.links import Visit
from bullpen.provisioners.baremetal.provisioner import HostsProvisioner
from bullpen.provisioners.baremetal.recipe import NAME, HostRecipe
from bullpen.provisioners.provider import Backend
from bullpen.sim import virtual_time

Key = tuple[str, str]
BENCH: Key = ("lab", "bench")
POLL_SECONDS = 5.0


class Killed(BaseException):
    """The service was killed at this place."""


@dataclass
class FakeHost:
    name: str
    instances: dict[Key, Instance] = field(default_factory=dict)
    down: bool = False
    key: str = "ssh-ed25519 AAAA"
    lost_answers: float = 0.0
    reached: timedelta = timedelta(0)
    links: list[FakeLink] = field(default_factory=list)

    def age(self, now: timedelta) -> None:
        """End what nobody has asked for in a long time, also while it cannot be reached."""
        if now - self.reached >= LOST_AFTER:
            self.instances.clear()


class FakeLink:
    def __init__(self, world: HostWorld, host: FakeHost, visit: Visit) -> None:
        self._world = world
        self._host = host
        self._visit = visit
        self.load: HostLoad | None = HostLoad(cpu=34, memory=57)

    async def _asked(self) -> None:
        await self._world.pause()
        if self._host.down:
            raise Unreachable("no answer")
        self._host.age(self._world.clock.steady())
        self._host.reached = self._world.clock.steady()

    async def _answered(self) -> None:
        await self._world.pause()
        if self._world.chance.random() < self._host.lost_answers:
            raise Unreachable("the answer was lost")

    async def list_instances(self) -> tuple[Instance, ...]:
        await self._asked()
        found = tuple(self._host.instances[key] for key in sorted(self._host.instances))
        await self._answered()
        return found

    async def ensure(self, spec: InstanceSpec) -> Instance:
        await self._asked()
        made = self._host.instances.setdefault(
            spec.key,
            Instance(
                key=spec.key,
                owner_uid=spec.owner_uid,
                provisioner=NAME,
                phase=InstancePhase.RUNNING,
            ),
        )
        await self._answered()
        return made

    async def update_credentials(self, spec: InstanceSpec) -> None:
        await self._asked()

    async def remove(self, key: Key) -> None:
        await self._asked()
        self._host.instances.pop(key, None)
        await self._answered()

    async def retire(self, key: Key) -> None:
        await self._asked()
        self._host.instances.pop(key, None)

    def exit(self, key: Key) -> None:
        """An instance ends by itself, and its host reports it."""
        found = self._host.instances[key]
        ended = Instance(
            key=key,
            owner_uid=found.owner_uid,
            provisioner=NAME,
            phase=InstancePhase.EXITED,
            reason=ExitReason.COMPLETED,
        )
        self._host.instances[key] = ended
        self._visit.changed(key, ended)

    def leave(self) -> None:
        self.close()

    def close(self) -> None:
        if self in self._host.links:
            self._host.links.remove(self)


class MemoryHostRecords:
    """Records that outlive the service, as annotations in its store do."""

    def __init__(self, world: HostWorld) -> None:
        self.kept: set[Key] = set()
        self.hosts: dict[Key, Placed] = {}
        self._world = world

    async def begin(self, backend: Key, place: str = "") -> None:
        await self._world.pause()
        self.kept.add(backend)

    async def end(self, backend: Key, is_empty: Callable[[], bool]) -> bool:
        if is_empty():
            self.kept.discard(backend)
        return backend not in self.kept

    async def release(self, secret: Key) -> None:
        """There are no Secrets here."""

    async def mark_class(self, key: Key, *, kept: bool) -> None:
        """There are no classes here."""

    async def place(self, key: Key, on_record: Placed) -> None:
        await self._world.pause()
        if self._world.wanted.get(key) != on_record.uid:
            raise Refused("its Exporter was deleted")
        self.hosts[key] = on_record
        await self._world.pause()

    async def placed(self, key: Key) -> Placed | None:
        await self._world.pause()
        return (await self.all_placed(NAME)).get(key)

    async def all_placed(self, provisioner: str) -> dict[Key, Placed]:
        wanted = self._world.wanted
        return {key: found for key, found in self.hosts.items() if wanted.get(key) == found.uid}


class HostWorld:
    def __init__(self, *names: str, seed: int = 1, slots: int = 2) -> None:
        self.clock = VirtualClock()
        self.chance = random.Random(seed)
        self.hosts = {name: FakeHost(name) for name in names}
        self.settings: dict[str, dict[str, Any]] = {
            name: {
                "name": name, "address": "127.0.0.1", "slots": slots, "hostKey": "ssh-ed25519 AAAA"
            }
            for name in names
        }  # fmt: skip
        self.wanted: dict[Key, str] = {}
        """The uid of every Exporter."""

        self.records = MemoryHostRecords(self)
        self.known = True
        """Whether a service that starts is told its ProviderConfigs."""

        self.visits: list[Visit] = []
        self.pauses = 0
        self.killed_at: int | None = None
        self.provisioner = self.restarted()

    def run(self, story: Callable[[HostWorld], Coroutine[Any, Any, None]]) -> None:
        virtual_time.run(self.clock, story(self))

    def restarted(self) -> HostsProvisioner:
        """A service with no memory of what it did before."""
        recipe = HostRecipe(host_arch="x86_64")
        self.provisioner = HostsProvisioner(recipe, self.records, self.connect, clock=self.clock)
        if self.known:
            self.use()
        return self.provisioner

    def use(self) -> None:
        parameters = {"hosts": list(self.settings.values())}
        self.provisioner.use([Backend(key=BENCH, lab="lab", parameters=parameters)])

    async def connect(self, visit: Visit) -> FakeLink:
        self.visits.append(visit)
        host = self.hosts[visit.host.name]
        await self.pause()
        if host.down:
            raise Unreachable("connection refused")
        if visit.host.host_key != host.key:
            raise Refused("it has another key than hostKey says")
        link = FakeLink(self, host, visit)
        host.links.append(link)
        return link

    async def pause(self) -> None:
        await asyncio.sleep(0)
        self.pauses += 1
        if self.pauses == self.killed_at:
            raise Killed

    def spec(self, name: str, **profile: Any) -> InstanceSpec:
        key = ("lab", name)
        return InstanceSpec(
            key=key,
            owner_uid=self.wanted.setdefault(key, f"uid-{len(self.wanted) + 1}"),
            profile=Profile(provisioner=NAME, provider=BENCH[1], **profile),
            connection=Connection(endpoint="127.0.0.1:8082", token="a secret", ca_pem=""),
        )

    async def poll(self) -> str:
        """Ask all hosts; why one of them cannot be used, or an empty string."""
        await asyncio.sleep(POLL_SECONDS)
        try:
            await self.provisioner.refresh(BENCH)
        except LabError as error:
            return error.message
        return ""

    def held(self) -> list[tuple[Key, str, str]]:
        """What exists, on which host, for which Exporter."""
        now = self.clock.steady()
        for host in self.hosts.values():
            host.age(now)
        return sorted(
            (key, host.name, instance.owner_uid)
            for host in self.hosts.values()
            for key, instance in host.instances.items()
        )
