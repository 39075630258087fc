"""The provisioner of hosts: which host an instance gets, and what is known of those there.

Hosts are asked in two places only: ``refresh``, which a controller repeats, and the calls for one
instance. What an agent reports in between is passed on at once. An instance is recorded with its
host before it is started, so that no second one of its name is started elsewhere.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import partial

from bullpen.core.targets import hosts
from bullpen.core.targets.backends import HostLoad, Listing, Machine, MachineState, Quota
from bullpen.core.targets.hosts import Chosen, Full, HostView, Placed, Silent, Unsuitable
from bullpen.errors import Cause, LabError, NoCapacity, Refused, Unreachable
from bullpen.kit.clock import Clock
from bullpen.provisioners import parameters, several_targets
from bullpen.provisioners.baremetal.links import Connector, HostLink, HostRecords, Visit
from bullpen.provisioners.baremetal.parameters import HostParameters, HostsParameters
from bullpen.provisioners.base import Instance, InstanceSpec, Key, Listener, Profile, Recipe
from bullpen.provisioners.provider import Backend

Place = tuple[Key, str]
"""A ProviderConfig and the name of one of its hosts."""

LAB_LENGTH = 24


@dataclass(slots=True, kw_only=True)
class Host:
    """A host of a ProviderConfig."""

    given: HostParameters
    link: HostLink | None = None
    instances: dict[Key, Instance] = field(default_factory=dict)
    starting: Counter[Key] = field(default_factory=Counter)
    listed: bool = False
    silent_since: timedelta | None = None
    error: str = ""
    load: HostLoad | None = None
    busy: asyncio.Lock = field(default_factory=asyncio.Lock)
    """One connection attempt at a time."""

    @property
    def view(self) -> HostView:
        given = self.given
        return HostView(
            name=given.name,
            address=given.address,
            slots=given.slots,
            labels=given.labels,
            drain=given.drain,
            instances=tuple(self.instances[key] for key in sorted(self.instances)),
            starting=frozenset(key for key, count in self.starting.items() if count),
            listed=self.listed,
            silent_since=self.silent_since,
            error=self.error,
            load=self.load,
        )

    def silence(self, error: str, *, now: timedelta) -> None:
        """It does not answer: everything stays as it was last seen."""
        self.error = error
        self.silent_since = self.silent_since or now
        link, self.link = self.link, None
        if link is not None:
            link.close()


class HostsProvisioner:
    """Runs ``recipe`` on the hosts of ProviderConfigs."""

    def __init__(
        self, recipe: Recipe, records: HostRecords, connect: Connector, *, clock: Clock
    ) -> None:
        self.name = recipe.name
        self.records: HostRecords = records
        self._recipe = recipe
        self._connect = connect
        self._clock = clock
        self._backends: dict[Key, Backend] = {}
        self._hosts: dict[Place, Host] = {}
        self._used = False
        """The ProviderConfigs are known."""

        self._started = clock.steady()
        self._recorded: Mapping[Key, Placed] | None = None
        """What was on record when this service started; None until it was read."""

        self._mistakes: dict[Key, str] = {}
        """By ProviderConfig, what is wrong with its parameters."""

        self._locks: dict[Key, asyncio.Lock] = {}
        self._users: Counter[Key] = Counter()
        self._listeners: list[Listener] = []
        self._backend_listeners: list[Listener] = []

    # The backends

    def use(self, found: Iterable[Backend]) -> None:
        """The ProviderConfigs that exist now, and their hosts.

        A host that is no longer named is forgotten, as one that is gone for good. If it is not, it
        ends by itself what it runs.
        """
        self._used = True
        given = {backend.key: backend for backend in found}
        kept = {
            key: replace(backend, closing=True)
            for key, backend in self._backends.items()
            if key not in given and not self.is_empty(key)
        }
        self._backends = {**kept, **given}
        self._mistakes = {key: _mistake(backend) for key, backend in self._backends.items()}
        wanted = {
            place: host
            for backend in self._backends.values()
            for place, host in self._named(backend)
        }
        for place in [place for place in self._hosts if place not in wanted]:
            self._forget(self._hosts.pop(place))
        for place, host in wanted.items():
            known = self._hosts.setdefault(place, Host(given=host))
            if _way(known.given) != _way(host) and known.link is not None:
                link, known.link = known.link, None
                link.close()
            known.given = host

    def _named(self, backend: Backend) -> Iterator[tuple[Place, HostParameters]]:
        if self._mistakes[backend.key]:
            # Those that were named before it was made are still in use.
            yield from ((place, host.given) for place, host in self._hosts_of(backend.key))
            return
        for given in parameters.read(HostsParameters, backend.parameters).hosts:
            yield (backend.key, given.name), given

    def _forget(self, host: Host) -> None:
        if host.link is not None:
            host.link.leave()
        for key in host.instances:
            self._tell(key)

    def listing(self, backend: Key) -> Listing:
        """What is known of the hosts of a ProviderConfig, together."""
        views = [host.view for _, host in self._hosts_of(backend)]
        silent = [view.silent_since for view in views if view.silent_since is not None]
        now = self._clock.now()
        machines = [
            _machine(view, instance, now=now) for view in views for instance in view.instances
        ]
        known = bool(views) and all(view.listed for view in views)
        return Listing(
            machines=tuple(machines),
            begun=self._clock.steady() if known else None,
            quota=Quota(
                instances=sum(view.slots for view in views),
                used=sum(len(view.taken) for view in views),
            ),
            hosts=tuple(view.state for view in views),
            silent_since=min(silent, default=None),
            error=self._mistakes.get(backend, "") or hosts.problems(views),
        )

    def is_empty(self, backend: Key) -> bool:
        """Whether every host has shown that it runs nothing of ours."""
        return all(
            host.view.answers and not host.instances and not host.view.starting
            for _, host in self._hosts_of(backend)
        )

    def listen_backends(self, listener: Listener) -> None:
        """Call ``listener`` with a ProviderConfig whose hosts should be asked now."""
        self._backend_listeners.append(listener)

    async def refresh(self, key: Key) -> Listing:
        """Ask every host of a ProviderConfig, at the same time.

        Raises ``Unreachable`` if any cannot be used; the others are not affected.
        """
        async with asyncio.TaskGroup() as tasks:
            for place, host in self._hosts_of(key):
                tasks.create_task(self._ask(place, host))
        await self._remove_surplus()
        found = self.listing(key)
        if found.error:
            raise Unreachable(found.error)
        return found

    async def _remove_surplus(self) -> None:
        """Remove instances of earlier Exporters of a name that has one on another host now."""
        held = Counter(key for host in self._hosts.values() for key in host.instances)
        for key in [key for key, count in held.items() if count > 1]:
            placed = await self.records.placed(key)
            for (config, name), host in tuple(self._hosts.items()):
                own = placed is not None and (config[1], name) == (placed.config, placed.host)
                if key in host.instances and not own and host.link is not None:
                    # If it fails, it is tried again after the next listing.
                    with contextlib.suppress(LabError):
                        await host.link.remove(key)
                        host.instances.pop(key, None)

    async def _ask(self, place: Place, host: Host) -> None:
        async with host.busy:
            if self._hosts.get(place) is not host:
                return
            try:
                if host.link is None:
                    host.link = await self._connect(self._visit(place, host))
                found = await host.link.list_instances()
            except LabError as error:
                host.silence(error.message, now=self._clock.steady())
            else:
                host.listed, host.silent_since, host.error = True, None, ""
                host.load = host.link.load
                gone = set(host.instances) - {each.key for each in found}
                host.instances = {each.key: each for each in found}
                for key in gone:
                    self._tell(key)
        for key in tuple(host.instances):
            self._tell(key)

    def _visit(self, place: Place, host: Host) -> Visit:
        backend = self._backends[place[0]]
        return Visit(
            host=host.given,
            lab=_directory(backend),
            credentials=backend.credentials(),
            changed=partial(self._changed, host),
            lost=partial(self._lost, place, host),
        )

    def _changed(self, host: Host, key: Key, instance: Instance | None) -> None:
        if instance is None:
            host.instances.pop(key, None)
        else:
            host.instances[key] = instance
        self._tell(key)

    def _lost(self, place: Place, host: Host, cause: str) -> None:
        if self._hosts.get(place) is host:
            host.silence(cause, now=self._clock.steady())
            for listener in self._backend_listeners:
                listener(place[0])

    async def close(self) -> None:
        """Disconnect from all hosts; what runs there goes on for a while."""
        for host in self._hosts.values():
            if host.link is not None:
                host.link.close()
                host.link = None

    # The contract

    def check(self, profile: Profile) -> tuple[Cause, ...]:
        return several_targets.causes(self._recipe, profile)

    async def ensure(self, spec: InstanceSpec) -> Instance:
        self._refuse_invalid(spec)
        backend = self._usable(spec)
        async with self._alone(spec.key):
            found = self._holder(spec.key)
            if found is not None:
                host = found[1]
                return self._seen(host, host.instances[spec.key])
            name = await self._choose(backend, spec)
            host = self._hosts[backend.key, name]
            problem = hosts.unusable_endpoint(spec.connection.endpoint, host.view)
            if problem:
                raise Refused(problem)
            with self._starting(host, spec.key):
                await self.records.begin(backend.key)
                on_record = Placed(uid=spec.owner_uid, config=backend.key[1], host=name)
                await self.records.place(spec.key, on_record)
                return await self._start(host, spec)

    async def _start(self, host: Host, spec: InstanceSpec) -> Instance:
        if host.link is None:
            raise Unreachable(f"host {host.given.name} does not answer: {host.error}")
        made = await host.link.ensure(spec)
        # What it has reported meanwhile is newer than its answer.
        made = host.instances.setdefault(spec.key, made)
        self._tell(spec.key)
        return made

    async def _choose(self, backend: Backend, spec: InstanceSpec) -> str:
        before = await self._on_record(spec.key)
        if before is not None:
            raise Unreachable(_silent(before, "may run it and"))
        placed = await self.records.placed(spec.key)
        own = placed is not None and placed.uid == spec.owner_uid
        again = placed.host if placed is not None and own else ""
        scheduling = spec.profile.scheduling
        choice = hosts.choose(
            (host.view for _, host in self._hosts_of(backend.key)),
            spec.key,
            recorded=again if placed is not None and placed.config == backend.key[1] else "",
            selector=scheduling.node_selector if scheduling is not None else {},
        )
        match choice:
            case Chosen(host=name):
                return name
            case Full(reason=reason):
                raise NoCapacity(f"ProviderConfig {backend.key[1]}: {reason}")
            case Silent(reason=reason):
                raise Unreachable(f"ProviderConfig {backend.key[1]}: {reason}")
            case Unsuitable(reason=reason):
                raise NoCapacity(f"ProviderConfig {backend.key[1]}: {reason}")

    async def remove(self, key: Key) -> None:
        async with self._alone(key):
            found = self._holder(key)
            host = found[1] if found is not None else await self._on_record(key)
            if host is None:
                return
            if host.link is None or not host.view.answers:
                # Also while it is asked for the first time: what it runs is not known yet.
                raise Unreachable(_silent(host, "may run it and"))
            await host.link.remove(key)
            host.instances.pop(key, None)
        self._tell(key)

    async def stop(self, key: Key) -> None:
        await self.remove(key)

    async def retire(self, key: Key) -> None:
        found = self._holder(key)
        if found is None or not found[1].instances[key].up:
            return
        if found[1].link is None:
            raise Unreachable(_silent(found[1], "runs it and"))
        await found[1].link.retire(key)

    async def change_disks(self, spec: InstanceSpec) -> None:
        raise Refused(f"machines of {self.name} have no lasting disks")

    async def update_credentials(self, spec: InstanceSpec) -> None:
        found = self._holder(spec.key)
        if found is None:
            return
        if found[1].link is None:
            raise Unreachable(_silent(found[1], "runs it and"))
        await found[1].link.update_credentials(spec)

    async def observe_all(self) -> tuple[Instance, ...]:
        if self._recorded is None:
            self._recorded = await self.records.all_placed(self.name)
        found = {
            key: seen
            for key, placed in self._recorded.items()
            if (seen := self._unseen(key, placed))
        }
        for host in self._hosts.values():
            for key, instance in host.instances.items():
                found[key] = self._seen(host, instance)
        return tuple(found[key] for key in sorted(found))

    def listen(self, listener: Listener) -> None:
        self._listeners.append(listener)

    # How it works

    def _refuse_invalid(self, spec: InstanceSpec) -> None:
        profile = spec.profile
        causes = self.check(profile)
        if causes:
            problems = "; ".join(f"{cause.field}: {cause.message}" for cause in causes)
            raise Refused(f"the parameters for {self.name} are invalid: {problems}")
        if any(disk.uid for disk in profile.disks):
            raise Refused(f"machines of {self.name} have no lasting disks")

    def _usable(self, spec: InstanceSpec) -> Backend:
        key = spec.key[0], spec.profile.provider
        backend = self._backends.get(key)
        if backend is None or backend.closing:
            state = "does not exist" if backend is None else "is being deleted"
            raise Refused(f"ProviderConfig {key[1]!r} {state}; the class names it")
        if self._mistakes[key] and not any(True for _ in self._hosts_of(key)):
            raise Refused(f"ProviderConfig {key[1]}: {self._mistakes[key]}")
        return backend

    def _holder(self, key: Key) -> tuple[Place, Host] | None:
        """The host that is known to have an instance; one that answers first."""
        found = [(place, host) for place, host in self._hosts.items() if key in host.instances]
        return min(found, key=lambda each: each[1].silent_since is not None, default=None)

    async def _on_record(self, key: Key) -> Host | None:
        """The host that may have an instance although it has not shown it."""
        placed = await self.records.placed(key)
        if placed is None:
            return None
        if not self._used:
            raise Unreachable(f"host {placed.host} may run it; the hosts are not known yet")
        host = self._hosts.get(((key[0], placed.config), placed.host))
        return host if host is not None and not host.view.answers else None

    def _hosts_of(self, backend: Key) -> tuple[tuple[Place, Host], ...]:
        return tuple((place, host) for place, host in self._hosts.items() if place[0] == backend)

    def _seen(self, host: Host, instance: Instance) -> Instance:
        view = host.view
        since = view.silent_since
        silent_for = self._clock.steady() - since if since is not None else timedelta(0)
        return hosts.seen(instance, view, silent_for=silent_for)

    def _unseen(self, key: Key, placed: Placed) -> Instance | None:
        """The instance of an earlier service, while its host has not shown what it runs."""
        host = self._hosts.get(((key[0], placed.config), placed.host))
        if host.listed if host is not None else self._used:
            return None
        view = host.view if host is not None else _unknown(placed)
        silent_for = self._clock.steady() - self._started
        made = hosts.unseen(key, placed, provisioner=self.name)
        return hosts.seen(made, view, silent_for=silent_for)

    @contextlib.contextmanager
    def _starting(self, host: Host, key: Key) -> Iterator[None]:
        host.starting[key] += 1
        try:
            yield
        finally:
            host.starting[key] -= 1

    @contextlib.asynccontextmanager
    async def _alone(self, key: Key) -> AsyncIterator[None]:
        """One creation or removal of an instance at a time."""
        lock = self._locks.setdefault(key, asyncio.Lock())
        self._users[key] += 1
        try:
            async with lock:
                yield
        finally:
            self._users[key] -= 1
            if not self._users[key]:
                del self._users[key], self._locks[key]

    def _tell(self, key: Key) -> None:
        for listener in self._listeners:
            listener(key)


def _mistake(backend: Backend) -> str:
    causes = parameters.causes_of(HostsParameters, backend.parameters)
    return "; ".join(f"{cause.field}: {cause.message}" for cause in causes)


def _way(host: HostParameters) -> tuple[object, ...]:
    """What a connection depends on. One that is no longer drained needs an agent."""
    return (
        host.address, host.port, host.user, host.host_key, host.python, host.directory, host.arch,
        host.drain,
    )  # fmt: skip


def _directory(backend: Backend) -> str:
    """The name of this lab's directory at its hosts: no two ProviderConfigs share an agent."""
    return hashlib.sha256("|".join((backend.lab, *backend.key)).encode()).hexdigest()[:LAB_LENGTH]


def _unknown(placed: Placed) -> HostView:
    return HostView(name=placed.host, address="", slots=0)


def _silent(host: Host, what: str) -> str:
    return f"host {host.given.name} {what} does not answer: {host.error or 'not asked yet'}"


def _machine(host: HostView, instance: Instance, *, now: datetime) -> Machine:
    return Machine(
        id="/".join((host.name, *instance.key)),
        key=instance.key,
        owner_uid=instance.owner_uid,
        state=MachineState.RUNNING if instance.up else MachineState.ENDING,
        created=now,
        address=host.address,
        detail=instance.detail,
    )
