"""The backends of one provider: what is known of each, and every call that changes one.

A backend is on record before its first machine is created, so that machines are found again after
any crash. Everything that a call has changed is known at once, without another listing.
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
from bullpen.core.targets.backends import Listing, Machine, MachineState
from bullpen.errors import NoCapacity, Refused, TooManyRequests, Unavailable, Unreachable
from bullpen.kit.clock import Backoff, Clock
from bullpen.provisioners.base import InstanceSpec, Key, Listener
from bullpen.provisioners.provider import (
    Backend,
    MachineKeys,
    MachineRecords,
    Order,
    Provider,
    StoppingProvider,
)

CALLS_MAX = 4
"""Creations, deletions and the like at one backend at a time."""

THROTTLED = Backoff(first=timedelta(seconds=2), cap=timedelta(seconds=30))
"""Between such calls of a backend that wants fewer; its listings have a wait of their own."""


class ProviderBackends:
    """The accounts or projects of a provider."""

    def __init__(
        self, provider: Provider, records: MachineRecords, *, clock: Clock, chance: random.Random
    ) -> None:
        self.records = records
        self.told = False
        """Whether it was told its backends: before, it cannot know what does not exist."""

        self._provider = provider
        self._clock = clock
        self._chance = chance
        self._known: dict[Key, Backend] = {}
        self._listings: dict[Key, Listing] = {}
        self._unanswered: dict[Key, tuple[Key, timedelta]] = {}
        """By instance, the backend and steady time of a creation whose answer is not known."""

        self._creating: Counter[Key] = Counter()
        self._gates: dict[Key, asyncio.Semaphore] = {}
        self._throttled: dict[Key, tuple[int, timedelta]] = {}
        """By backend, how often in a row it wanted fewer calls, and the steady time of the next."""

        self._listeners: list[Listener] = []

    # What is known

    def use(self, found: Iterable[Backend]) -> None:
        """The backends that exist now. Those that may hold something of ours stay known."""
        self.told = True
        given = {backend.key: backend for backend in found}
        kept = {
            key: replace(backend, closing=True)
            for key, backend in self._known.items()
            if key not in given and not self.is_empty(key)
        }
        moved = {
            key
            for key, backend in given.items()
            if key in self._known and self._known[key].place != backend.place
        }
        self._known = {**kept, **given}
        self._listings = {
            key: Listing() if key in moved else self.listing(key) for key in self._known
        }

    def __getitem__(self, key: Key) -> Backend:
        return self._known[key]

    @property
    def listings(self) -> Mapping[Key, Listing]:
        return self._listings

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

    def machines(self, key: Key) -> tuple[Machine, ...]:
        """The machines of an instance, in every backend: the first is the one that is shown.

        One that runs is shown before a stopped one of another Exporter, else it would cost money
        unseen.
        """
        found = (
            machine
            for listing in self._listings.values()
            for machine in listing.machines
            if machine.key == key
        )
        return tuple(sorted(found, key=lambda machine: machine.resting))

    def holder(self, machine: Machine) -> Backend | None:
        """The backend that lists a machine; None if it is gone meanwhile."""
        for key, listing in self._listings.items():
            if any(each.id == machine.id for each in listing.machines):
                return self._known[key]
        return None

    def listen(self, listener: Listener) -> None:
        """Call ``listener`` with a backend that should be listed now."""
        self._listeners.append(listener)

    # Calls

    async def list(self, key: Key) -> Listing:
        """List one backend. Raises if it gives no listing; then all stays as last seen."""
        begun = self._clock.steady()
        try:
            found = await self._provider.list_machines(self._known[key])
        except (Unavailable, Refused) as error:
            self._listings[key] = backends.silent(self.listing(key), error.message, now=begun)
            raise
        self._listings[key] = backends.listed(self.listing(key), found, begun=begun)
        for instance, (where, when) in tuple(self._unanswered.items()):
            if where == key and backends.is_settled(when, self._listings[key]):
                del self._unanswered[instance]
        return self._listings[key]

    async def keep_on_record(self, key: Key) -> None:
        """Write the record again if it was removed although instances are listed."""
        backend = self._known.get(key)
        if backend is not None and self.listing(key).machines and not backend.closing:
            await self.records.begin(key, backend.place)

    def usable(self, spec: InstanceSpec) -> Backend:
        """The backend in which a machine may be created or started now; raises if none is."""
        key = backend_of(spec)
        backend, listing = self._known.get(key), self.listing(key)
        if backend is None or backend.closing:
            state = "does not exist" if backend is None else "is being deleted"
            raise Refused(f"ProviderConfig {key[1]!r} {state}; the class names it")
        if backend.changed:
            raise Refused(
                f"ProviderConfig {key[1]} has other settings now, which take effect when no"
                " instance of those before is left"
            )
        if listing.begun is None or listing.silent_since is not None:
            said = f": {listing.error}" if listing.error else ""
            raise Unreachable(f"ProviderConfig {key[1]} does not answer{said}")
        if spec.key in self._unanswered and not self._provider.idempotent:
            raise Unreachable("a creation was not answered; its machine may still appear")
        return backend

    async def create(self, backend: Backend, spec: InstanceSpec) -> Machine:
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
            await self.records.begin(key, backend.place)
            keys = await self._keys(key, spec)
            token = backends.client_token(backend.lab, spec.key, spec.owner_uid)
            order = Order(
                key=spec.key,
                owner_uid=spec.owner_uid,
                token=token,
                profile=spec.profile,
                expires=self._clock.now() + backends.EXPIRY,
                keys=keys,
            )
            async with self._calling(key):
                self._unanswered[spec.key] = (key, self._clock.steady())
                made = await self._provider.create(backend, order)
            self._unanswered.pop(spec.key, None)
            self._put(backend, made)
        except (NoCapacity, Refused):
            self._unanswered.pop(spec.key, None)
            raise
        finally:
            self._creating[key] -= 1
            self._nudge(key)
        return made

    async def _keys(self, backend: Key, spec: InstanceSpec) -> Mapping[str, bytes]:
        """The keys of the machine to be created, once it can be at no other backend."""
        made = self._provider.new_keys()
        if not made:
            return {}
        wanted = MachineKeys(keys=made, backend=backend[1])
        found = await self.records.keep_keys(spec.key, spec.owner_uid, wanted)
        former = (backend[0], found.backend)
        if former != backend:
            unlisted = former in self._known and self.listing(former).begun is None
            if unlisted or self._unanswered.get(spec.key, (backend,))[0] == former:
                raise Unreachable(f"its machine may exist: {former[1]} has not been listed")
            await self.records.move_keys(spec.key, spec.owner_uid, backend[1])
        return found.keys

    async def start(self, backend: Backend, machine: Machine, spec: InstanceSpec) -> Machine:
        """Start a machine that is kept stopped."""
        assert isinstance(self._provider, StoppingProvider), "no other keeps a machine stopped"
        cost = self._provider.hourly_cost(spec.profile)
        full = backends.too_expensive(self.listing(backend.key), backend.limits, hourly_cost=cost)
        if full:
            raise NoCapacity(f"ProviderConfig {backend.key[1]}: {full}")
        expires = self._clock.now() + backends.EXPIRY
        async with self._calling(backend.key):
            # Before it runs: its own timer would stop it again.
            await self._provider.renew(backend, machine, expires)
            await self._provider.start(backend, machine)
        started = replace(
            machine,
            state=MachineState.STARTING,
            started=self._clock.now(),
            expires=expires,
            hourly_cost=cost,
            address="",
            shut_down=False,
            detail="it is being started",
        )
        self._put(backend, started)
        self._nudge(backend.key)
        return started

    async def stop(self, backend: Backend, machine: Machine) -> None:
        assert isinstance(self._provider, StoppingProvider), "no other keeps a machine stopped"
        async with self._calling(backend.key):
            await self._provider.stop(backend, machine)
        stopping = replace(
            machine, state=MachineState.STOPPING, address="", detail="it is being stopped"
        )
        self._put(backend, stopping)
        self._nudge(backend.key)

    async def delete(self, backend: Backend, machine: Machine) -> None:
        async with self._calling(backend.key):
            await self._provider.delete(backend, machine)
        ending = replace(machine, state=MachineState.ENDING, detail="it is being deleted")
        self._put(backend, ending)
        self._nudge(backend.key)

    async def renew(self, backend: Backend, machine: Machine) -> None:
        expires = self._clock.now() + backends.EXPIRY
        async with self._calling(backend.key):
            await self._provider.renew(backend, machine, expires)
        found = self.listing(backend.key).machines
        current = next((each for each in found if each.id == machine.id), None)
        if current is not None:
            self._put(backend, replace(current, expires=expires))

    async def grant(self, backend: Backend, machine: Machine) -> Mapping[str, bytes]:
        async with self._calling(backend.key):
            return await self._provider.grant(backend, machine)

    def _put(self, backend: Backend, machine: Machine) -> None:
        self._listings[backend.key] = backends.put(self.listing(backend.key), machine)

    @contextlib.asynccontextmanager
    async def _calling(self, backend: Key) -> AsyncIterator[None]:
        """One call besides a few others, and none while the provider wants fewer.

        Raises ``TooManyRequests`` without asking then.
        """
        async with self._gates.setdefault(backend, asyncio.Semaphore(CALLS_MAX)):
            before = refusals, until = self._throttled.get(backend, (0, timedelta(0)))
            left = until - self._clock.steady()
            if left > timedelta(0):
                wait = f"called again in {left.total_seconds():.0f} s"
                raise TooManyRequests(f"ProviderConfig {backend[1]} wants fewer calls; {wait}")
            try:
                yield
            except TooManyRequests:
                # Calls that were under way together are one refusal.
                if self._throttled.get(backend, (0, timedelta(0))) == before:
                    wait_for = THROTTLED.delay(refusals + 1, self._chance)
                    self._throttled[backend] = refusals + 1, self._clock.steady() + wait_for
                raise
            self._throttled.pop(backend, None)

    def _nudge(self, backend: Key) -> None:
        for listener in self._listeners:
            listener(backend)


def backend_of(spec: InstanceSpec) -> Key:
    return spec.key[0], spec.profile.provider
