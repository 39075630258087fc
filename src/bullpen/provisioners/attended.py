"""A provisioner of machines that a provider's API makes, each with an exporter placed beside us.

The API is called in two places only: the listing of a backend (``refresh``), which a controller
repeats, and the creation and deletion of one machine. Everything else answers from the last
complete listing. A backend is on record before its first machine is created, so that machines
are found again after any crash.

An instance is its machine and its exporter together. The exporter goes first; the machine is
deleted even if the exporter's placement is unreachable.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Mapping
from dataclasses import replace
from datetime import timedelta

from bullpen.core.targets import backends
from bullpen.core.targets.backends import (
    Listing,
    Machine,
    MachineState,
)
from bullpen.errors import Cause, LabError, NoCapacity, Refused, Unavailable, Unreachable
from bullpen.kit.clock import Clock
from bullpen.placements.base import Placement, Workload
from bullpen.provisioners import several_targets
from bullpen.provisioners.base import (
    ExitReason,
    Instance,
    InstancePhase,
    InstanceSpec,
    Key,
    Listener,
    Profile,
    Site,
)
from bullpen.provisioners.placed import requested
from bullpen.provisioners.provider import Backend, MachineRecords, Order, Provider

REMOVE_SECONDS_MAX = 60.0
"""How long a removal waits until the backend no longer lists the machine."""

CALLS_MAX = 4
"""Creations and deletions at one backend at a time."""


class AttendedProvisioner:
    """Machines of a provider, with their exporters at ``placement``."""

    def __init__(
        self, provider: Provider, placement: Placement, records: MachineRecords, *, clock: Clock
    ) -> None:
        self.name = provider.name
        self._provider = provider
        self._placement = placement
        self.records = records
        self._clock = clock
        self._backends: dict[Key, Backend] = {}
        self._listings: dict[Key, Listing] = {}
        self._told = False
        """Whether it was told its backends: before, it cannot know what does not exist."""

        self._specs: dict[Key, InstanceSpec] = {}
        """By key of the instance: what its exporter is placed from."""

        self._waiting: dict[Key, str] = {}
        """By instance, why the exporter of its machine cannot be placed yet."""

        self._unanswered: dict[Key, tuple[Key, timedelta]] = {}
        """By instance, the backend and steady time of a creation whose answer is not known."""

        self._granted: dict[Key, tuple[str, timedelta]] = {}
        """By instance, the machine, and the steady time at which its exporter was granted files."""

        self._retired: set[Key] = set()
        self._creating: Counter[Key] = Counter()
        self._gates: dict[Key, asyncio.Semaphore] = {}
        self._busy: dict[Key, asyncio.Lock] = {}
        self._users: Counter[Key] = Counter()
        self._news = asyncio.Condition()
        self._listeners: list[Listener] = []
        self._backend_listeners: list[Listener] = []
        placement.listen(self._tell)

    # The backends

    def use(self, found: Iterable[Backend]) -> None:
        """The backends that exist now. Those that may hold something of ours stay known."""
        self._told = True
        given = {backend.key: backend for backend in found}
        kept = {
            key: replace(backend, closing=True)
            for key, backend in self._backends.items()
            if key not in given and not self.is_empty(key)
        }
        self._backends = {**kept, **given}
        self._listings = {key: self._listings.get(key, Listing()) for key in self._backends}

    def listing(self, backend: Key) -> Listing:
        """What is known of a backend."""
        return self._listings.get(backend, Listing())

    def silent_for(self, backend: Key) -> timedelta:
        """How long a backend has not answered; zero while it does."""
        since = self.listing(backend).silent_since
        return self._clock.steady() - since if since is not None else timedelta(0)

    def is_empty(self, backend: Key) -> bool:
        """Whether complete listings have shown that it holds nothing of ours."""
        return backends.holds_nothing(self.listing(backend)) and not self._creating[backend]

    def listen_backends(self, listener: Listener) -> None:
        """Call ``listener`` with a backend that should be listed now."""
        self._backend_listeners.append(listener)

    async def refresh(self, key: Key) -> Listing:
        """List one backend, and take the next step of each of its machines.

        Raises ``Unavailable`` or ``Refused`` if the backend gives no listing; its instances stay as
        last seen.
        """
        backend, begun = self._backends[key], self._clock.steady()
        try:
            found = await self._provider.list_machines(backend)
        except (Unavailable, Refused) as error:
            self._listings[key] = backends.silent(self.listing(key), error.message, now=begun)
            await self._announce(key)
            raise
        self._listings[key] = backends.listed(self.listing(key), found, begun=begun)
        for instance, (where, when) in tuple(self._unanswered.items()):
            if where == key and backends.is_settled(when, self._listings[key]):
                del self._unanswered[instance]
        problem = await self._tend(backend)
        await self._announce(key)
        if problem is not None:
            raise problem
        return self._listings[key]

    async def _tend(self, backend: Backend) -> LabError | None:
        """Take the next step of each machine; the first error, which stops no other step."""
        exporters, listing = await self._exporters(), self.listing(backend.key)
        own, now = set(listing.machines), self._clock.now()
        used = {machine.id for machine in listing.machines if self._is_used(machine, exporters)}
        old = backends.expired(listing, backend.limits, used=used, now=now)
        due = backends.due_for_renewal(listing, used=used, now=now)
        ends = [m for m in dict.fromkeys((*self._surplus(exporters), *old)) if m in own]
        problem: LabError | None = None
        for machine in listing.machines:
            try:
                if machine in ends:
                    await self._delete(backend, machine)
                else:
                    await self._attend(backend, machine, exporters.get(machine.key))
                if machine in due and machine not in ends:
                    await self._renew(backend, machine)
            except (Unavailable, Refused) as error:
                problem = problem or error
        return problem

    def _is_used(self, machine: Machine, exporters: Mapping[Key, Instance]) -> bool:
        """Whether an Exporter stands for it, as far as this process knows."""
        spec, exporter = self._specs.get(machine.key), exporters.get(machine.key)
        if spec is not None and spec.owner_uid == machine.owner_uid:
            return True
        return exporter is not None and exporter.up and exporter.owner_uid == machine.owner_uid

    async def _renew(self, backend: Backend, machine: Machine) -> None:
        expires = self._clock.now() + backends.EXPIRY
        async with self._gate(backend.key):
            await self._provider.renew(backend, machine, expires)
        found = self.listing(backend.key).machines
        current = next((each for each in found if each.id == machine.id), None)
        if current is not None:
            renewed = replace(current, expires=expires)
            self._listings[backend.key] = backends.put(self.listing(backend.key), renewed)

    def _surplus(self, exporters: Mapping[Key, Instance]) -> tuple[Machine, ...]:
        every = [machine for listing in self._listings.values() for machine in listing.machines]
        placed = {key: exporter.owner_uid for key, exporter in exporters.items() if exporter.up}
        known = {key: spec.owner_uid for key, spec in self._specs.items()}
        return backends.surplus(every, {**placed, **known})

    async def _announce(self, backend: Key) -> None:
        async with self._news:
            self._news.notify_all()
        for machine in self.listing(backend).machines:
            self._tell(machine.key)

    # The contract

    def check(self, profile: Profile) -> tuple[Cause, ...]:
        wrong = self._provider.check(profile.parameters, profile.drivers)
        return (*several_targets.refused(self.name, profile), *wrong)

    async def ensure(self, spec: InstanceSpec) -> Instance:
        self._refuse_invalid(spec.profile)
        async with self._alone(spec.key):
            exporters = await self._exporters()
            exporter = exporters.get(spec.key)
            found = self._machine_for(spec)
            if found is None and exporter is not None:
                return backends.without_machine(exporter, confirmed=self._all_listed())
            if found is None:
                found = await self._create(await self._usable(spec, exporters), spec)
            if found.owner_uid == spec.owner_uid:
                self._specs[spec.key] = spec
                holder = self._holder(found)
                if holder is not None:
                    await self._attend(holder, found, exporter)
            self._tell(spec.key)
            exporter = (await self._exporters()).get(spec.key)
            return self._joined(found, exporter, self._backend_of(spec))

    async def remove(self, key: Key) -> None:
        async with self._alone(key):
            problem = await self._stop_exporter(key)
            self._specs.pop(key, None)
            for backend in self._backends.values():
                for machine in self.listing(backend.key).machines:
                    if machine.key == key and machine.state is not MachineState.ENDING:
                        await self._delete(backend, machine)
            await self._wait_until_gone(key)
            self._retired.discard(key)
            self._waiting.pop(key, None)
            self._granted.pop(key, None)
        self._tell(key)
        if problem is not None:
            raise problem

    async def retire(self, key: Key) -> None:
        if not self._machines(key):
            return
        if key in await self._exporters():
            await self._placement.retire(key)
        else:
            self._retired.add(key)
            self._tell(key)

    async def change_disks(self, spec: InstanceSpec) -> None:
        raise Refused(f"machines of {self.name} have no lasting disks")

    async def update_credentials(self, spec: InstanceSpec) -> None:
        if spec.key in await self._exporters():
            await self._placement.update_credentials(spec.key, spec.credentials)

    async def observe_all(self) -> tuple[Instance, ...]:
        exporters = await self._exporters()
        found: dict[Key, Instance] = {}
        for backend, listing in self._listings.items():
            for machine in listing.machines:
                made = self._joined(machine, exporters.get(machine.key), backend)
                found.setdefault(machine.key, made)
        for key, exporter in exporters.items():
            confirmed = self._all_listed()
            found.setdefault(key, backends.without_machine(exporter, confirmed=confirmed))
        return tuple(found[key] for key in sorted(found))

    def listen(self, listener: Listener) -> None:
        self._listeners.append(listener)

    async def close(self) -> None:
        """Nothing is kept open between calls."""

    # How it works

    def _refuse_invalid(self, profile: Profile) -> None:
        causes = self.check(profile)
        if causes:
            problems = "; ".join(f"{cause.field}: {cause.message}" for cause in causes)
            raise Refused(f"the parameters for {self.name} are invalid: {problems}")

    def _backend_of(self, spec: InstanceSpec) -> Key:
        return spec.key[0], spec.profile.provider

    async def _usable(self, spec: InstanceSpec, exporters: Mapping[Key, Instance]) -> Backend:
        """The backend in which a machine may be created now; it is rid of ended ones first."""
        key = self._backend_of(spec)
        backend, listing = self._backends.get(key), self.listing(key)
        if backend is None or backend.closing:
            state = "does not exist" if backend is None else "is being deleted"
            raise Refused(f"ProviderConfig {key[1]!r} {state}; the class names it")
        if listing.begun is None or listing.silent_since is not None:
            said = f": {listing.error}" if listing.error else ""
            raise Unreachable(f"ProviderConfig {key[1]} does not answer{said}")
        if spec.key in self._unanswered and not self._provider.idempotent:
            raise Unreachable("a creation was not answered; its machine may still appear")
        for machine in listing.machines:
            await self._attend(backend, machine, exporters.get(machine.key))
        return backend

    async def _create(self, backend: Backend, spec: InstanceSpec) -> Machine:
        key = backend.key
        full = backends.no_room(
            self.listing(key),
            backend.limits,
            creating=self._creating[key],
            hourly_cost=self._provider.hourly_cost(spec.profile),
        )
        if full:
            raise NoCapacity(f"ProviderConfig {key[1]}: {full}")
        self._creating[key] += 1
        self._listings[key] = backends.touched(self.listing(key))
        try:
            await self.records.begin(key)
            keys = self._provider.new_keys()
            if keys:
                keys = await self.records.keep_keys(spec.key, spec.owner_uid, keys)
            token = backends.client_token(backend.lab, spec.key, spec.owner_uid)
            order = Order(
                key=spec.key,
                owner_uid=spec.owner_uid,
                token=token,
                profile=spec.profile,
                expires=self._clock.now() + backends.EXPIRY,
                keys=keys,
            )
            async with self._gate(key):
                self._unanswered[spec.key] = (key, self._clock.steady())
                made = await self._provider.create(backend, order)
            self._unanswered.pop(spec.key, None)
            self._listings[key] = backends.put(self.listing(key), made)
        except (NoCapacity, Refused):
            self._unanswered.pop(spec.key, None)
            raise
        finally:
            self._creating[key] -= 1
            self._nudge(key)
        return made

    async def _delete(self, backend: Backend, machine: Machine) -> None:
        async with self._gate(backend.key):
            await self._provider.delete(backend, machine)
        ending = replace(machine, state=MachineState.ENDING, detail="it is being deleted")
        self._listings[backend.key] = backends.put(self.listing(backend.key), ending)
        self._nudge(backend.key)

    async def _attend(self, backend: Backend, machine: Machine, exporter: Instance | None) -> None:
        """Place the exporter of a machine that runs; delete a machine whose exporter has ended."""
        key, spec = machine.key, self._specs.get(machine.key)
        if exporter is not None:
            own = exporter.owner_uid == machine.owner_uid
            if own and not exporter.up and machine.state is not MachineState.ENDING:
                await self._delete(backend, machine)
            elif own and exporter.up and self._is_grant_due(machine):
                files = await self._grant(backend, machine)
                if files:
                    await self._placement.grant(key, files)
                self._granted[key] = (machine.id, self._clock.steady())
            return
        if spec is None or spec.owner_uid != machine.owner_uid:
            return
        if machine.state is not MachineState.RUNNING or key in self._retired:
            return
        keys = await self._keys_of(spec)
        if keys is None:
            # No exporter can log in to it, so it is replaced.
            await self._delete(backend, machine)
            return
        granted = await self._grant(backend, machine)
        try:
            await self._placement.start(self._workload(spec, machine, keys, granted))
            self._granted[key] = (machine.id, self._clock.steady())
            self._waiting.pop(key, None)
        except Unavailable as error:
            # Tried again at the next listing; meanwhile the instance says so.
            self._waiting[key] = error.message

    async def _keys_of(self, spec: InstanceSpec) -> Mapping[str, bytes] | None:
        """The keys of a machine that exists; None if it has some, and they are lost."""
        if not self._provider.new_keys():
            return {}
        return await self.records.kept_keys(spec.key, spec.owner_uid)

    async def _grant(self, backend: Backend, machine: Machine) -> Mapping[str, bytes]:
        async with self._gate(backend.key):
            return await self._provider.grant(backend, machine)

    def _is_grant_due(self, machine: Machine) -> bool:
        """Whether an exporter that runs needs newer files. After a restart it does."""
        granted_to, when = self._granted.get(machine.key, ("", timedelta(0)))
        return granted_to != machine.id or self._clock.steady() - when >= backends.GRANT_RENEWED

    def _workload(
        self,
        spec: InstanceSpec,
        machine: Machine,
        keys: Mapping[str, bytes],
        granted: Mapping[str, bytes],
    ) -> Workload:
        profile = spec.profile

        def export(site: Site) -> Mapping[str, object]:
            return self._provider.export(profile, machine, keys)

        needs = requested(self._provider.needs(profile), profile.requests)
        return Workload(spec=spec, needs=needs, export=export, granted=granted)

    async def _stop_exporter(self, key: Key) -> Unavailable | None:
        """Stop the exporter. An error does not keep its machine, and is raised afterwards."""
        try:
            if key in await self._exporters():
                await self._placement.stop(key)
        except Unavailable as error:
            return error
        return None

    async def _wait_until_gone(self, key: Key) -> None:
        """Wait for listings without the machine, of every backend that may hold it."""
        unlisted = [backend for backend, listing in self._listings.items() if listing.begun is None]
        if not self._told:
            raise Unreachable("its machine may exist: no ProviderConfig has been read yet")
        if unlisted:
            names = ", ".join(name for _, name in unlisted)
            raise Unreachable(f"its machine may exist: {names} has not been listed")
        try:
            async with asyncio.timeout(REMOVE_SECONDS_MAX), self._news:
                await self._news.wait_for(lambda: not self._machines(key))
        except TimeoutError:
            raise Unreachable("the provider has not confirmed that its machine is gone") from None

    def _machines(self, key: Key) -> tuple[Machine, ...]:
        return tuple(
            machine
            for listing in self._listings.values()
            for machine in listing.machines
            if machine.key == key
        )

    def _machine_for(self, spec: InstanceSpec) -> Machine | None:
        """The machine of the Exporter, else that of another one of its name."""
        found = self._machines(spec.key)
        own = (machine for machine in found if machine.owner_uid == spec.owner_uid)
        return next(own, found[0] if found else None)

    def _holder(self, machine: Machine) -> Backend | None:
        """The backend that lists a machine; None if it is gone meanwhile."""
        for key, listing in self._listings.items():
            if any(each.id == machine.id for each in listing.machines):
                return self._backends[key]
        return None

    async def _exporters(self) -> dict[Key, Instance]:
        found = await self._placement.observe_all()
        return {each.key: each for each in found if each.provisioner == self.name}

    def _all_listed(self) -> bool:
        listings = self._listings.values()
        return self._told and all(listing.begun is not None for listing in listings)

    def _joined(self, machine: Machine, exporter: Instance | None, backend: Key) -> Instance:
        spec = self._specs.get(machine.key)
        made = backends.instance(
            machine,
            exporter,
            provisioner=self.name,
            known=spec is not None and spec.owner_uid == machine.owner_uid,
            silent_for=self.silent_for(backend),
        )
        if made.up and exporter is None and machine.key in self._retired:
            return replace(
                made, phase=InstancePhase.EXITED, reason=ExitReason.COMPLETED, detail="retired"
            )
        waits = self._waiting.get(machine.key, "") if exporter is None else ""
        return replace(made, detail=waits) if made.up and waits else made

    @contextlib.asynccontextmanager
    async def _alone(self, key: Key) -> AsyncIterator[None]:
        """One creation or removal of an instance at a time."""
        lock = self._busy.setdefault(key, asyncio.Lock())
        self._users[key] += 1
        try:
            async with lock:
                yield
        finally:
            self._users[key] -= 1
            if not self._users[key]:
                del self._users[key], self._busy[key]

    def _gate(self, backend: Key) -> asyncio.Semaphore:
        return self._gates.setdefault(backend, asyncio.Semaphore(CALLS_MAX))

    def _nudge(self, backend: Key) -> None:
        for listener in self._backend_listeners:
            listener(backend)

    def _tell(self, key: Key) -> None:
        for listener in self._listeners:
            listener(key)
