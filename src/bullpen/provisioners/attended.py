"""A provisioner of machines that a provider's API makes, each with an exporter placed beside us.

The API is called in two places only: the listing of a backend (``refresh``), which a controller
repeats, and the creation and deletion of one machine. Everything else answers from the last
complete listing. A backend is on record before its first machine is created, so that machines
are found again after any crash.

An instance is its machine and its exporter together. The exporter goes first; the machine is
deleted even if the exporter's placement is unreachable. The machine of a lasting target is stopped
instead, and deleted with its Exporter, if the provider can do so.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
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
from bullpen.errors import Cause, LabError, Refused, Unavailable, Unreachable
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
from bullpen.provisioners.provider import Backend, MachineRecords, Provider
from bullpen.provisioners.provider_backends import ProviderBackends, backend_of

REMOVE_SECONDS_MAX = 60.0
"""How long a removal waits until the backend lists the machine as stopped, or not at all."""


OTHER_SETTINGS = (
    "its machine was created with other parameters and keeps those, with its disks; delete the"
    " VirtualTarget and make it again to change them"
)


class AttendedProvisioner:
    """Machines of a provider, with their exporters at ``placement``."""

    def __init__(
        self,
        provider: Provider,
        placement: Placement,
        records: MachineRecords,
        *,
        clock: Clock,
        chance: random.Random,
    ) -> None:
        self.name = provider.name
        self._provider = provider
        self._placement = placement
        self._clock = clock
        self._backends = ProviderBackends(provider, records, clock=clock, chance=chance)
        self._specs: dict[Key, InstanceSpec] = {}
        """By key of the instance: what its exporter is placed from."""

        self._waiting: dict[Key, str] = {}
        """By instance, why the exporter of its machine cannot be placed yet."""

        self._granted: dict[Key, tuple[str, str, timedelta]] = {}
        """By instance, the machine, its address, and the steady time of what it was granted."""

        self._retired: set[Key] = set()
        self._busy: dict[Key, asyncio.Lock] = {}
        self._users: Counter[Key] = Counter()
        self._news = asyncio.Condition()
        self._listeners: list[Listener] = []
        placement.listen(self._tell)

    # The backends

    @property
    def records(self) -> MachineRecords:
        return self._backends.records

    def use(self, found: Iterable[Backend]) -> None:
        """The backends that exist now. Those that may hold something of ours stay known."""
        self._backends.use(found)

    def listing(self, backend: Key) -> Listing:
        """What is known of a backend."""
        return self._backends.listing(backend)

    def is_empty(self, backend: Key) -> bool:
        """Whether complete listings have shown that it holds nothing of ours."""
        return self._backends.is_empty(backend)

    def listen_backends(self, listener: Listener) -> None:
        """Call ``listener`` with a backend that should be listed now."""
        self._backends.listen(listener)

    async def refresh(self, key: Key) -> Listing:
        """List one backend, and take the next step of each of its machines.

        Raises ``Unavailable`` or ``Refused`` if the backend gives no listing; its instances stay as
        last seen.
        """
        try:
            await self._backends.list(key)
        except (Unavailable, Refused):
            await self._announce(key)
            raise
        problem = await self._tend(self._backends[key])
        await self._announce(key)
        # Last: machines are renewed although nothing can be written.
        await self._backends.keep_on_record(key)
        if problem is not None:
            raise problem
        return self.listing(key)

    async def _tend(self, backend: Backend) -> LabError | None:
        """Take the next step of each machine; the first error, which stops no other step."""
        exporters, listing = await self._exporters(), self.listing(backend.key)
        own, now = set(listing.machines), self._clock.now()
        used = {machine.id for machine in listing.machines if self._is_used(machine, exporters)}
        old = backends.expired(listing, backend.limits, used=used, now=now)
        due = backends.due_for_renewal(listing, used=used, now=now)
        extra = [machine for machine in self._surplus(exporters) if machine in own]
        ends = {*extra, *old}
        problem: LabError | None = None
        for machine in listing.machines:
            try:
                if machine in old and machine.lasting and machine not in extra:
                    await self._backends.stop(backend, machine)
                elif machine in ends:
                    await self._backends.delete(backend, machine)
                else:
                    await self._attend(backend, machine, exporters.get(machine.key))
                if machine in due and machine not in ends:
                    await self._backends.renew(backend, machine)
            except (Unavailable, Refused) as error:
                problem = problem or error
        return problem

    def _is_used(self, machine: Machine, exporters: Mapping[Key, Instance]) -> bool:
        """Whether an Exporter stands for it, as far as this process knows."""
        spec, exporter = self._specs.get(machine.key), exporters.get(machine.key)
        if spec is not None and spec.owner_uid == machine.owner_uid:
            return True
        return exporter is not None and exporter.up and exporter.owner_uid == machine.owner_uid

    def _surplus(self, exporters: Mapping[Key, Instance]) -> tuple[Machine, ...]:
        listings = self._backends.listings.values()
        every = [machine for listing in listings for machine in listing.machines]
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
                found = await self._backends.create(await self._usable(spec, exporters), spec)
            elif _is_kept(found, spec) and exporter is None:
                found = await self._started(found, spec)
            if found.owner_uid == spec.owner_uid:
                self._specs[spec.key] = spec
                holder = self._backends.holder(found)
                if holder is not None:
                    await self._attend(holder, found, exporter)
            self._tell(spec.key)
            exporter = (await self._exporters()).get(spec.key)
            return self._joined(found, exporter, backend_of(spec))

    async def remove(self, key: Key) -> None:
        await self._end(key, keep=False)

    async def stop(self, key: Key) -> None:
        await self._end(key, keep=True)

    async def _end(self, key: Key, *, keep: bool) -> None:
        """End the instance that is listed: its exporter, and all machines of its Exporter.

        Those of another Exporter of the name stay: they may have disks that are to be kept.
        ``keep``: a lasting machine is stopped.
        """
        async with self._alone(key):
            uid = await self._listed_owner(key)
            # Before its exporter stops: a listing would place another one beside its machine.
            if (spec := self._specs.get(key)) is not None and spec.owner_uid == uid:
                del self._specs[key]
            problem = await self._stop_exporter(key, uid)
            for backend, listing in tuple(self._backends.listings.items()):
                for machine in listing.machines:
                    if machine.key == key and machine.owner_uid == uid:
                        await self._end_machine(self._backends[backend], machine, keep=keep)
            await self._wait_until_ended(key, uid, kept=keep)
            self._retired.discard(key)
            self._waiting.pop(key, None)
            self._granted.pop(key, None)
        self._tell(key)
        if problem is not None:
            raise problem

    async def _listed_owner(self, key: Key) -> str:
        """The Exporter of the instance that ``observe_all`` shows."""
        for machine in self._backends.machines(key):
            return machine.owner_uid
        exporter = (await self._exporters()).get(key)
        return exporter.owner_uid if exporter is not None else ""

    async def _end_machine(self, backend: Backend, machine: Machine, *, keep: bool) -> None:
        if keep and machine.lasting:
            if machine.state in (MachineState.STARTING, MachineState.RUNNING):
                await self._backends.stop(backend, machine)
        elif machine.state is not MachineState.ENDING:
            await self._backends.delete(backend, machine)

    async def retire(self, key: Key) -> None:
        if not self._backends.machines(key):
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
        for backend, listing in self._backends.listings.items():
            for machine in listing.machines:
                made = self._joined(machine, exporters.get(machine.key), backend)
                before = found.setdefault(machine.key, made)
                if before.phase is InstancePhase.STOPPED and not machine.resting:
                    found[machine.key] = made
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

    async def _usable(self, spec: InstanceSpec, exporters: Mapping[Key, Instance]) -> Backend:
        """The backend in which a machine may be created now; it is rid of ended ones first."""
        backend = self._backends.usable(spec)
        for machine in self.listing(backend.key).machines:
            await self._attend(backend, machine, exporters.get(machine.key))
        return backend

    async def _started(self, machine: Machine, spec: InstanceSpec) -> Machine:
        """Start a machine that was stopped, wherever it is."""
        if machine.state is MachineState.STOPPING:
            raise Unreachable("its machine is still being stopped")
        self._backends.usable(spec)
        holder = self._backends.holder(machine)
        if holder is None:
            raise Unreachable("its machine is gone")
        return await self._backends.start(holder, machine, spec)

    async def _attend(self, backend: Backend, machine: Machine, exporter: Instance | None) -> None:
        """Place the exporter of a machine that runs; delete a machine whose exporter has ended."""
        key, spec = machine.key, self._specs.get(machine.key)
        if exporter is not None:
            own = exporter.owner_uid == machine.owner_uid
            ends = not machine.lasting and machine.state is not MachineState.ENDING
            if own and not exporter.up and ends:
                await self._backends.delete(backend, machine)
            elif own and exporter.up and self._is_grant_due(machine):
                files = await self._backends.grant(backend, machine)
                if files:
                    await self._placement.grant(key, files)
                self._granted[key] = (machine.id, machine.address, self._clock.steady())
            return
        if spec is None or spec.owner_uid != machine.owner_uid:
            return
        if machine.state is not MachineState.RUNNING or key in self._retired:
            return
        keys = await self._keys_of(spec)
        if keys is None:
            # No exporter can log in to it, so it is replaced, unless its disks are to be kept.
            if machine.lasting:
                self._waiting[key] = "the keys of its machine are lost"
            else:
                await self._backends.delete(backend, machine)
            return
        try:
            granted = await self._backends.grant(backend, machine)
        except (Unavailable, Refused) as error:
            self._waiting[key] = error.message
            raise
        try:
            await self._placement.start(self._workload(spec, machine, keys, granted))
            self._granted[key] = (machine.id, machine.address, self._clock.steady())
            self._waiting.pop(key, None)
        except Unavailable as error:
            # Tried again at the next listing; meanwhile the instance says so.
            self._waiting[key] = error.message

    async def _keys_of(self, spec: InstanceSpec) -> Mapping[str, bytes] | None:
        """The keys of a machine that exists; None if it has some, and they are lost."""
        if not self._provider.new_keys():
            return {}
        found = await self.records.kept_keys(spec.key, spec.owner_uid)
        return found.keys if found is not None else None

    def _is_grant_due(self, machine: Machine) -> bool:
        """Whether an exporter that runs needs newer files. After a restart it does."""
        granted_to, address, when = self._granted.get(machine.key, ("", "", timedelta(0)))
        if machine.address not in ("", address):
            return True
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

    async def _stop_exporter(self, key: Key, uid: str) -> Unavailable | None:
        """Stop the exporter. An error does not keep its machine, and is raised afterwards."""
        try:
            found = (await self._exporters()).get(key)
            if found is not None and found.owner_uid == uid:
                await self._placement.stop(key)
        except Unavailable as error:
            return error
        return None

    async def _wait_until_ended(self, key: Key, uid: str, *, kept: bool) -> None:
        """Wait for listings without the machine, of every backend that may hold it.

        ``kept``: it may be stopped instead.
        """
        listings = self._backends.listings
        unlisted = [backend for backend, listing in listings.items() if listing.begun is None]
        if not self._backends.told:
            raise Unreachable("its machine may exist: no ProviderConfig has been read yet")
        if unlisted:
            names = ", ".join(name for _, name in unlisted)
            raise Unreachable(f"its machine may exist: {names} has not been listed")

        def ended() -> bool:
            found = [each for each in self._backends.machines(key) if each.owner_uid == uid]
            stopped = (each.state is MachineState.STOPPED for each in found)
            return all(stopped) if kept else not found

        try:
            async with asyncio.timeout(REMOVE_SECONDS_MAX), self._news:
                await self._news.wait_for(ended)
        except TimeoutError:
            end = "stopped" if kept else "gone"
            raise Unreachable(f"the provider has not confirmed that its machine is {end}") from None

    def _machine_for(self, spec: InstanceSpec) -> Machine | None:
        """The machine of the Exporter, else that of another one of its name."""
        found = self._backends.machines(spec.key)
        own = (machine for machine in found if machine.owner_uid == spec.owner_uid)
        return next(own, found[0] if found else None)

    async def _exporters(self) -> dict[Key, Instance]:
        found = await self._placement.observe_all()
        return {each.key: each for each in found if each.provisioner == self.name}

    def _all_listed(self) -> bool:
        listings = self._backends.listings.values()
        return self._backends.told and all(listing.begun is not None for listing in listings)

    def _joined(self, machine: Machine, exporter: Instance | None, backend: Key) -> Instance:
        spec = self._specs.get(machine.key)
        made = backends.instance(
            machine,
            exporter,
            provisioner=self.name,
            known=spec is not None and spec.owner_uid == machine.owner_uid,
            silent_for=self._backends.silent_for(backend),
        )
        if made.up and exporter is None and machine.key in self._retired:
            return replace(
                made, phase=InstancePhase.EXITED, reason=ExitReason.COMPLETED, detail="retired"
            )
        if made.up and machine.lasting and spec is not None and machine.settings:
            same = machine.settings == backends.settings_of(spec.profile.parameters)
            made = made if same else replace(made, warning=OTHER_SETTINGS)
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

    def _tell(self, key: Key) -> None:
        for listener in self._listeners:
            listener(key)


def _is_kept(machine: Machine, spec: InstanceSpec) -> bool:
    """Whether it is the stopped machine of this lasting target."""
    return machine.lasting and machine.resting and machine.owner_uid == spec.owner_uid
